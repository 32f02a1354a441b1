//! The client of a hardware queue: open it, submit, poll.
//!
//! * [`Queue`]: a queue that is open; [`Options`]: what to ask for
//! * [`Region`]: memory that its commands may use
//! * [`layout`], [`protocol`]: what lies where, and what is said on the socket, for both sides
//! * [`Parts`]: a queue on its way to another process
//!
//! # Contract
//! A queue has one user at a time; any thread on any CPU may be it (U6). The compiler holds that,
//! for what is asked on the socket too, where nothing but their order says whose an answer is:
//!
//! ```compile_fail,E0596
//! fn asks_beside_another_thread(queue: &queue::Queue) {
//!     let _ = queue.namespace(1);
//! }
//! ```
//!
//! Submitting and polling never enter the kernel while the broker is awake; no I/O allocates.
#![forbid(unsafe_code)]

mod error;
pub mod layout;
pub mod limits;
mod memory;
mod open;
mod parts;
pub mod protocol;
mod queue;
mod region;

pub use error::{Error, SubmitError};
pub use layout::Kind;
pub use memory::Memory;
pub use nvme::queue::pointer::{Form, Piece};
pub use nvme::wire::Status;
pub use nvme::wire::dsm::Range;
pub use open::{Identity, Namespace, Options, list, show};
pub use parts::Parts;
pub use protocol::Coalescing;
pub use queue::{Counts, Done, Queue};
pub use region::Region;
