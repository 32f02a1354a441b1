//! All limits of this crate.

/// Most queues of one kind.
pub const QUEUES_MAX: u32 = 4096;
/// Most namespaces.
pub const NAMESPACES_MAX: usize = queue::layout::SHAPES;
/// Most cores that have the queues of one server.
pub const CORES_MAX: usize = 64;
/// Connections beyond one for each queue: for those who only look.
pub const LOOKERS_MAX: usize = 64;
/// The same of one user: nobody has all of them.
pub const LOOKERS_OF_USER_MAX: usize = 16;
/// How long a connection without a queue may say nothing, or not take its answer, ns.
pub const PATIENCE_NS: u64 = 10_000_000_000;
/// Stack of the thread of a connection, bytes.
pub const EAR_STACK_BYTES: usize = 256 << 10;
/// How long until it is tried again, when the system had nothing to accept a connection with, ns.
pub const DEAF_NS: u64 = 500_000_000;
/// Connections that are taken leave of at the end, those that nobody heard yet.
pub const FAREWELLS_MAX: usize = 4096;
/// Commands that are fetched from one queue before it is the next one's turn.
pub const BATCH: u16 = 32;
/// Bytes that are copied for one queue, or zeroed, before it is the next one's turn; what is begun
/// is done.
pub const TURN_BYTES: u64 = 1 << 20;
/// How long requests to devices are waited for when everything ends, ns: one that never returns
/// does not keep the server from ending.
pub const STOP_NS: u64 = 10_000_000_000;
/// Descriptors that a client may send before they are used.
pub const DESCRIPTORS_WAITING_MAX: usize = 4;
/// How long a queue whose client has gone may wait for its last requests before it counts as held
/// by storage that hangs, ns.
pub const LEAVING_NS: u64 = 1_000_000_000;
/// How often a client that may have a queue in a moment is looked after, ns.
pub const AGAIN_NS: u64 = 5_000_000;
/// A user gets no further queue of a kind while one in so many of all of them are its own that wait
/// for storage, without a client.
pub const STUCK_PART: u32 = 2;
/// Namespaces that the list of queues names of one that waits for them.
pub const AWAITED_SHOWN: usize = 4;
/// How often a core that polls looks at its queues in a turn, at most.
pub const LOOKS_MAX: u32 = 64;
/// After so many commands it ends that.
pub const LOOKED_MAX: u32 = 16;
