//! A load on hardware queues, in fio's words.
//!
//! * [`mod@bench`]: on queues of a queue server; `local`: the same on devices that the kernel
//!   drives
pub mod bench;
mod local;

use service::queues::{QUEUE as SERVICE, client_error};
