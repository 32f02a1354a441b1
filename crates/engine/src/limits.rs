//! All limits of this crate.

/// How long the command of an expired I/O has to end once an Abort was sent, ns: many round trips,
/// and little beside the `io_timeout` that is over by then.
pub const ABORT_WAIT_NS: u64 = 2_000_000_000;
/// The same for a probe while another path is well, from the answer to its Abort on, ns: the
/// controller answers, and nothing comes over the I/O queue.
pub const ABORT_ANSWERED_WAIT_NS: u64 = 500_000_000;
/// How long a probe of a path on probation goes without an answer, while nothing else ends there,
/// until it is aborted, ns. Other paths do well meanwhile: it need not be `keep_alive_tmo`.
pub const PROBE_WAIT_NS: u64 = 2_000_000_000;
/// The same for an idle path where keep-alive is off, ns; else it is `keep_alive_tmo`.
pub const IDLE_PROBE_WAIT_NS: u64 = 5_000_000_000;
/// So often the wait for the probe of an idle path doubles at most. It is not longer than
/// `io_timeout` anyway.
pub const RENEWALS_MAX: u8 = 10;
/// Paths of a volume are compared by the errors that call themselves passing for so long, ns; then
/// anew.
pub const DEVICE_ERRORS_COMPARED_NS: u64 = 60_000_000_000;
/// So many errors a path has before it is compared, and so many I/Os one that it is compared with:
/// of two paths with the same share, one has four times the errors of the other by chance less than
/// once in a thousand times.
pub const DEVICE_ERRORS_MIN: u64 = 16;
/// A path does better than another one only if it would have had so many errors at the other's
/// share: none or two instead of eight are chance less than once in fifty times.
pub const DEVICE_ERRORS_EXPECTED: u64 = 8;
/// Age of an answer of a path, ns, up to which, and at most twice that, it counts as recent.
pub const DEVICE_ERRORS_RECENT_NS: u64 = 60_000_000_000;
/// Most Aborts of one path and core at a time. Controllers commonly take four.
pub const ABORTS_MAX: usize = 4;
/// Shortest time between two lines about I/Os of one path that were aborted, ns.
pub const ABORTS_SAID_NS: u64 = 10_000_000_000;
/// Most bytes one buffer may have (and so the largest single transfer).
pub const BUFFER_MAX: u32 = 1 << 20;

/// How long a target that ends lets its connections send what is queued; then, how long it waits
/// for its devices. ns.
pub const TARGET_LINGER_NS: u64 = 2_000_000_000;

/// How often a target whose commands wait for memory looks who holds it and moves nothing, ns:
/// twice that is well within the I/O time-outs of hosts, which are 30 s.
pub const TARGET_STALL_NS: u64 = 5_000_000_000;
/// A host moves nothing if what it holds would take so many of these looks: a minute.
pub const TARGET_STALL_SHARE: u64 = 12;

/// Of memory for payload that connections share, one part in so many is kept for those that move.
pub const KEPT_SHARE: u64 = 8;
/// A connection that moves less in [`MOVED_SHIFT`] is not known to: so much a socket takes from us
/// by default though its peer reads nothing.
pub const MOVED_MIN: u64 = 4 << 20;
/// Windows of time in which that is counted: 2 to this power, ns (1.07 s).
pub const MOVED_SHIFT: u32 = 30;

/// Most I/Os in flight on one core of the host: their slots have 16-bit numbers.
pub const IO_MAX: u32 = 65_535;

/// Most bytes that one I/O of the host reads or writes; larger than a command, it is cut.
pub const IO_BYTES_MAX: u32 = 32 << 20;

/// Most pieces of one I/O that are under way together: enough to fill a path whose commands carry
/// 128 KiB, and few enough to leave room beside a large I/O.
pub const PIECES_MAX: u16 = 32;

/// Memory of a core of the host for payload of its own, bytes: as much as 64 second copies of
/// reads of 32 KiB, with their originals. It is touched only when used.
pub const SCRATCH_BYTES: u32 = 4 << 20;

/// Most second copies of reads on a core of the host, with what is left of earlier ones: what a
/// policy saves up, and none takes a slot from a caller.
pub const HEDGES_MAX: u32 = 64;

/// Most volumes of the host.
pub const VOLUMES_MAX: usize = 256;

/// Most discovery controllers at a time: a log has at most 1024 entries of 1 KiB, so that all of
/// them together keep some MiB.
pub const DISCOVERY_CONTROLLERS_MAX: usize = 16;

/// Most referrals between a discovery controller and one that was asked for.
pub const DISCOVERY_DEPTH_MAX: u8 = 4;

/// Most namespaces that an error lists.
pub const NAMESPACES_LISTED_MAX: usize = 16;

/// Most rules of injected errors at one port.
pub const ERROR_RULES_MAX: usize = 16;

/// Events that a target's log keeps until they are read.
pub const LOG_EVENTS_MAX: usize = 1024;

/// How long what strangers cause may be spoken of only so often ([`crate::seldom`]), ns.
pub const SAID_NS: u64 = 10_000_000_000;
/// Errors of clients that a front end describes in that time, of each volume.
pub const CLIENT_ERRORS_MAX: u32 = 10;
/// Lines in that time about clients whose sessions were ended.
pub const CLIENT_LINES_MAX: u32 = 16;

/// Most commands that all connections of a target may have under way together.
pub const TARGET_COMMANDS_MAX: u64 = 1 << 20;

/// Most exports of one core: their numbers are below.
pub const EXPORTS_MAX: u32 = 1024;

/// Most NBD clients of one core: with its paths, as many connections as a reactor has.
pub const CLIENTS_MAX: u16 = 12 << 10;

/// Requests of all clients of a core for whose lines room is made at once; more than that wait only
/// where hundreds of clients are busy together.
pub const TICKETS_READY: usize = 1 << 16;

/// How often an export whose clients wait for memory looks who holds it and moves nothing, ns.
pub const EXPORT_STALL_NS: u64 = 500_000_000;
/// So many looks a client may move nothing that waited for memory for long: what it sent meanwhile
/// lies in its socket, and TCP sends a lost segment again three times in that.
pub const EXPORT_STALL_LOOKS: u32 = 4;

/// Changes in flight of a core for whose order room is made at once.
pub const CHANGES_READY: usize = 1024;

/// Block Status requests of all clients of a core that ask devices; further ones are answered
/// "data". The same of all hosts of an NVMe/TCP server.
pub const EXTENT_QUESTIONS_MAX: usize = 64;
/// Questions that one of them asks, one after the other, before it is answered.
pub const EXTENT_STEPS_MAX: u8 = 64;
/// How long they may take in all, ns; what is not known by then counts as data.
pub const EXTENT_WAIT_NS: u64 = 5_000_000_000;

/// Smallest arena of a core with exports, bytes: one largest request, and as much beside it.
pub const EXPORT_ARENA_MIN: u64 = 2 * (nbd::limits::BLOCK_MAX as u64 + 2 * BUFFER_MAX as u64);

/// Largest piece of the arena that every client of a core has for itself, bytes: one request of
/// the size that most file systems ask for goes on whatever the other clients do.
pub const OWN_MAX: u32 = 128 << 10;

/// How often a change that was cut is done again, for what was given up meanwhile (T4, T13).
pub const AGAIN_MAX: u8 = 8;

/// Share of a front end's arena for zeroes that a device can't write by command, bytes: a
/// whole block of each size, and as much as paths take in one command.
pub const ZEROES_BYTES: u32 = 128 << 10;

/// Memory of a namespace of an NVMe/TCP export for its Compares, bytes.
pub const COMPARE_BYTES: u32 = 32 << 10;

/// Most I/Os that one request has under way: one client's large request leaves room for others.
pub const REQUEST_IOS_MAX: u16 = 32;

/// Time of a client to read the answers after its I/O failed for want of time to drain.
pub const DRAIN_ANSWER_NS: u64 = 1_000_000_000;

/// Attempts of I/Os of a volume that are written down, with why they went where they went, and not
/// yet handed out. Each takes 5 KiB while somebody asks.
pub const EXPLAINED_MAX: usize = 8;

/// I/Os of a volume of which attempts were written down and that have not ended for good.
pub const EXPLAINED_OPEN_MAX: usize = 8;

/// At most one I/O of a volume in this time is written down, so that asking slows nothing; ns.
pub const EXPLAIN_PAUSE_NS: u64 = 5_000_000;

/// Most mirrors: their numbers are above those of volumes.
pub const MIRRORS_MAX: usize = 256;
/// Local devices of a core without paths.
pub const LOCALS_MAX: usize = 64;
/// I/Os of all of them in flight: with a flush of each, as many requests as a reactor has for files
/// at a time, so that one that hangs never takes the places of the others (T52).
pub const LOCAL_IO_MAX: u32 = 512 - LOCALS_MAX as u32;
/// Pause after which an I/O of a local device that found the system without room is repeated (T6).
pub const LOCAL_BUSY_PAUSE_NS: u64 = 10_000_000;
/// How long it is repeated, ns; then it fails. As long as an attempt on a path has by default.
pub const LOCAL_BUSY_NS: u64 = 30_000_000_000;
/// How long after a change of a local device was allowed it may start, ns: a fraction of the time
/// for which hosts of a lost queue hold its writes (`quiesce_time`).
pub const START_WITHIN_NS: u64 = 1_000_000_000;

/// Most I/Os of users that a mirror has under way: as many as several clients have with 128 each.
pub const MIRROR_IOS_MAX: usize = 1024;

/// Data I/O that a leg of a mirror may have outstanding after a time in which it had less, and may
/// have become slow: 32 take a disk with one head 0.5 s.
pub const LEG_DEPTH_FIRST: u32 = 32;
/// However slow it is: so many, that it is not idle while an answer is under way. Each may be
/// several commands, and a heartbeat, a read and then a write, waits behind all of them twice.
pub const LEG_DEPTH_MIN: u32 = 4;
/// However fast it is: more than users and copies have.
pub const LEG_DEPTH_MAX: u32 = 2 * MIRROR_IOS_MAX as u32;

/// Copy jobs of a mirror at a time, each with a buffer and one to compare with: enough that a leg
/// with a millisecond of latency is rebuilt at 1 GiB/s, and little beside what users have.
pub const MIRROR_COPIES: u8 = 4;
/// Bytes of such a buffer.
pub const MIRROR_COPY_BYTES: u32 = 256 << 10;

/// The smallest hole that a copy of a mirror leaves: the commands for smaller ones cost more than
/// the space.
pub const MIRROR_HOLE_BYTES: u32 = 64 << 10;

/// Memory of a core for each of its mirrors, bytes: copy buffers, and as much again for
/// superblocks and pages of bitmaps. It is touched only when used.
pub const MIRROR_SCRATCH_BYTES: u32 = 4 << 20;

/// How long a local leg that lost its last path may still end what it has, before the mirror goes
/// on without it: others are told to let go of it, and do so at once.
pub const LEG_HANGS_NS: u64 = 1_000_000_000;

/// How long after a leg has left it is tried again at first, ns; doubled each time, as it may leave
/// again at once.
pub const LEG_RETRY_NS: u64 = 1_000_000_000;
/// The longest of these.
pub const LEG_RETRY_MAX_NS: u64 = 300_000_000_000;

/// For how long a change is under way, at the least, before the other cores are told of it, ns.
/// Clients wait for a second or more before they send a change again.
pub const SHOWN_AFTER_NS: u64 = 125_000_000;
/// Most changes that the other cores are told of at a time for their age: other news has room in
/// the mailboxes too.
pub const SHOWN_AT_ONCE: u32 = 512;
/// New clients of a core for whose greeting room is made at once.
pub const ARRIVALS_READY: usize = 16;
/// How long the end of a client's connection is read for, once it has arrived and a new client of
/// the volume waits for that, ns; then what was not read is dropped. Little beside the time that
/// clients wait for a greeting.
pub const END_READ_NS: u64 = 1_000_000_000;
/// How long I/O waits on a core that has no queue to any usable path while others have, ns: its
/// clients are sent to those. Not that of block devices of the kernel, which stay.
pub const NO_QUEUE_WAIT_NS: u64 = 5_000_000_000;
