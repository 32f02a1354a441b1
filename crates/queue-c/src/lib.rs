//! The client of hardware queues, for C.
//!
//! # Contract
//! With `sys`, the only place with `unsafe`: each block does one thing with a pointer of the
//! caller's, who keeps what the header says of it. Functions return 0 or more, or a negative
//! `errno`; [`braid_queue_error`] has the words. A queue has one user at a time: use from two
//! threads at once aborts in debug builds and is undefined otherwise.
#![allow(non_camel_case_types, reason = "C's names")]
#![allow(clippy::too_many_arguments, reason = "C has no tuples")]

mod facts;
mod guard;
mod memory;
mod pass;
mod types;

use guard::Guard;
use queue::{Coalescing, Error, Form, Kind, Options, Piece, Queue, Range, Region, SubmitError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::time::Duration;

pub use facts::*;
pub use memory::*;
pub use pass::*;
pub use types::*;

/// A queue that is open.
pub struct braid_queue {
    queue: Queue,
    guard: Guard,
    error: CString,
    regions: Vec<Region>,
}

impl From<Queue> for braid_queue {
    fn from(queue: Queue) -> Self {
        Self {
            queue,
            guard: Guard::default(),
            error: CString::default(),
            regions: Vec::new(),
        }
    }
}

thread_local! {
    /// Why this thread got no queue last.
    static NO_QUEUE: RefCell<CString> = RefCell::default();
}

/// No queue came of it, and why.
fn no_queue(words: &str, errno: c_int) -> c_int {
    let words = CString::new(words).unwrap_or_default();
    NO_QUEUE.with(|it| *it.borrow_mut() = words);
    -errno
}

const ENOENT: c_int = 2;
const EIO: c_int = 5;
const EAGAIN: c_int = 11;
const EINVAL: c_int = 22;
const EPIPE: c_int = 32;

const NO_INTERRUPT: &str = "a user_poll queue has no interrupt: open one of kind 1 (user_irq)";

impl braid_queue {
    fn fail(&mut self, error: &Error) -> c_int {
        self.error = CString::new(error.to_string()).unwrap_or_default();
        -errno(error)
    }

    fn say(&mut self, what: &str, errno: c_int) -> c_int {
        self.error = CString::new(what).unwrap_or_default();
        -errno
    }

    fn refused(&mut self, error: &SubmitError) -> c_int {
        self.error = CString::new(error.to_string()).unwrap_or_default();
        match error {
            SubmitError::Full => -EAGAIN,
            SubmitError::Pieces(_) | SubmitError::Count | SubmitError::Bytes { .. } => -EINVAL,
        }
    }

    fn submitted(&mut self, taken: Result<u16, SubmitError>) -> c_int {
        match taken {
            Ok(cid) => cid.into(),
            Err(error) => self.refused(&error),
        }
    }
}

fn errno(error: &Error) -> c_int {
    match error {
        Error::System { source, .. } => source.raw_os_error(),
        Error::Refused { errno, .. } => errno.raw_os_error(),
        Error::Gone | Error::OutOfStep => EPIPE,
        Error::Busy => EAGAIN,
        Error::Protocol(_) | Error::Misbehaved(_) | Error::UnknownCommand { .. } => EIO,
    }
}

/// The queue behind a pointer, as long as its user is the only one.
///
/// # Safety
/// From `braid_queue_open`, not closed yet.
unsafe fn with<T>(queue: *mut braid_queue, call: impl FnOnce(&mut braid_queue) -> T) -> T {
    // SAFETY: the caller's; the field alone is looked at, by an atomic.
    let used = unsafe { &(*queue).guard }.enter();
    // SAFETY: the caller's, and not used elsewhere now (checked in debug builds).
    let result = call(unsafe { &mut *queue });
    drop(used);
    result
}

/// Opens a queue of the server whose socket is at `path`; `options` may be null. On success 0, and
/// `*opened` is the queue; else a negative errno, and `braid_queue_open_error` has the words.
///
/// # Safety
/// `path` is a string that ends with a zero; `options` is null or valid; `opened` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_open(
    path: *const c_char,
    options: *const braid_queue_options,
    opened: *mut *mut braid_queue,
) -> c_int {
    // SAFETY: the caller's.
    let path = unsafe { CStr::from_ptr(path) };
    // SAFETY: the caller's: null or valid.
    let wanted = match unsafe { options.as_ref() } {
        None => Some(Options {
            data_bytes: 0,
            ..Options::default()
        }),
        Some(options) => self::options(options),
    };
    let Some(wanted) = wanted else {
        return no_queue("an option has a value that it can't have", EINVAL);
    };
    let queue = match Queue::open(Path::new(OsStr::from_bytes(path.to_bytes())), &wanted) {
        Ok(queue) => queue,
        Err(error) => {
            let words = format!("{}: {error}", path.to_string_lossy());
            return no_queue(&words, errno(&error));
        }
    };
    let whole = Box::new(braid_queue::from(queue));
    // SAFETY: the caller's: valid to be written.
    unsafe { opened.write(Box::into_raw(whole)) };
    0
}

fn options(options: &braid_queue_options) -> Option<Options> {
    Some(Options {
        kind: Kind::from_number(options.kind)?,
        entries: match options.entries {
            0 => 128,
            entries => u16::try_from(entries).ok()?,
        },
        data_bytes: options.data_bytes,
        coalescing: Coalescing {
            completions: options.coalesce_completions,
            time_us: options.coalesce_us,
        },
        form: match options.pointers {
            0 => Form::Auto,
            1 => Form::Prp,
            2 => Form::Sgl,
            _ => return None,
        },
    })
}

/// Words for the last `braid_queue_open` or `braid_queue_receive` of this thread that gave no
/// queue, until its next one.
#[unsafe(no_mangle)]
pub extern "C" fn braid_queue_open_error() -> *const c_char {
    NO_QUEUE.with(|it| it.borrow().as_ptr())
}

/// Gives the queue back, also one whose server hangs. Of the commands in flight, those that it has
/// not begun are not executed any more, also if it stands still now and goes on later. Those that
/// it has begun end unheard, and may yet write to memory files of the caller's
/// (`braid_queue_register_file`): where that matters, reap first.
///
/// # Safety
/// From `braid_queue_open`, not closed yet, or null. Neither it nor its memory is used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_close(queue: *mut braid_queue) {
    if !queue.is_null() {
        // SAFETY: the caller's.
        drop(unsafe { closed(queue) });
    }
}

/// Takes a queue back from its only owner.
///
/// # Safety
/// From `braid_queue_open`, not closed yet, and not used afterwards.
unsafe fn closed(queue: *mut braid_queue) -> Box<braid_queue> {
    // SAFETY: the caller's; the field alone is looked at, by an atomic.
    let used = unsafe { &(*queue).guard }.enter();
    // It goes with the queue.
    core::mem::forget(used);
    // SAFETY: made by `Box::into_raw`, and never given here twice.
    unsafe { Box::from_raw(queue) }
}

/// Words for the last error of this queue, until the next call.
///
/// # Safety
/// From `braid_queue_open`, not closed yet; so for all that follow.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_error(queue: *mut braid_queue) -> *const c_char {
    // SAFETY: the caller's.
    unsafe { with(queue, |whole| whole.error.as_ptr()) }
}

/// Returns the properties of namespace `nsid`: 0, or a negative errno.
///
/// # Safety
/// As for all; `namespace_` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_namespace(
    queue: *mut braid_queue,
    nsid: u32,
    namespace_: *mut braid_namespace,
) -> c_int {
    // SAFETY: the caller's.
    let found = unsafe {
        with(queue, |whole| {
            let asked = whole.queue.namespace(nsid);
            asked.map_err(|error| whole.fail(&error))
        })
    };
    match found {
        Err(errno) => errno,
        Ok(found) => {
            let shown = braid_namespace {
                blocks: found.blocks,
                block_bytes: 1 << found.block_shift,
                read_only: found.read_only.into(),
            };
            // SAFETY: the caller's: valid to be written.
            unsafe { namespace_.write(shown) };
            0
        }
    }
}

/// Prepares a read of `blocks` blocks from `slba` into `count` pieces of registered memory. As all
/// that prepare: the command's identifier, or -EAGAIN (full: reap first), or -EINVAL (what can't
/// be: so where the pieces together have more bytes than the blocks, or fewer).
///
/// # Safety
/// As for all; `pieces` has `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_read(
    queue: *mut braid_queue,
    nsid: u32,
    slba: u64,
    blocks: u32,
    pieces: *const braid_piece,
    count: usize,
    token: u64,
) -> c_int {
    // SAFETY: the caller's.
    let pieces = unsafe { self::pieces(pieces, count) };
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let taken = whole.queue.read(nsid, slba, blocks, &pieces, token);
            whole.submitted(taken)
        })
    }
}

/// Prepares a write; `fua` not 0: durable when it has ended.
///
/// # Safety
/// As for all; `pieces` has `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_write(
    queue: *mut braid_queue,
    nsid: u32,
    slba: u64,
    blocks: u32,
    pieces: *const braid_piece,
    count: usize,
    fua: c_int,
    token: u64,
) -> c_int {
    // SAFETY: the caller's.
    let pieces = unsafe { self::pieces(pieces, count) };
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let to = (nsid, fua != 0);
            let taken = whole.queue.write(to, slba, blocks, &pieces, token);
            whole.submitted(taken)
        })
    }
}

/// A few pieces without allocating; more of them are copied.
enum Pieces {
    One([Piece; 1]),
    Many(Vec<Piece>),
}

impl std::ops::Deref for Pieces {
    type Target = [Piece];

    fn deref(&self) -> &[Piece] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

/// The caller's pieces.
///
/// # Safety
/// There are `count` at `pieces`.
unsafe fn pieces(pieces: *const braid_piece, count: usize) -> Pieces {
    let piece = |piece: &braid_piece| Piece {
        address: piece.address,
        len: piece.len,
    };
    if count == 0 || pieces.is_null() {
        // A command with data but without a piece is refused.
        return Pieces::One([Piece::default()]);
    }
    // SAFETY: the caller's.
    let all = unsafe { std::slice::from_raw_parts(pieces, count) };
    match all {
        [one] => Pieces::One([piece(one)]),
        all => Pieces::Many(all.iter().map(piece).collect()),
    }
}

/// Prepares a flush; `nsid` ffffffffh: of all namespaces.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_flush(
    queue: *mut braid_queue,
    nsid: u32,
    token: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let one = (nsid != u32::MAX).then_some(nsid);
            let taken = whole.queue.flush(one, token);
            whole.submitted(taken)
        })
    }
}

/// Prepares writing zeroes; `deallocate` not 0: the blocks may be deallocated.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_write_zeroes(
    queue: *mut braid_queue,
    nsid: u32,
    slba: u64,
    blocks: u32,
    deallocate: c_int,
    token: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let to = (nsid, deallocate != 0);
            let taken = whole.queue.write_zeroes(to, slba, blocks, token);
            whole.submitted(taken)
        })
    }
}

/// Prepares deallocating 1 to 256 ranges.
///
/// # Safety
/// As for all; `ranges` has `count` of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_deallocate(
    queue: *mut braid_queue,
    nsid: u32,
    ranges: *const braid_range,
    count: usize,
    token: u64,
) -> c_int {
    if ranges.is_null() || count > 256 {
        // SAFETY: the caller's.
        return unsafe { with(queue, |whole| whole.submitted(Err(SubmitError::Count))) };
    }
    // SAFETY: the caller's.
    let all = unsafe { std::slice::from_raw_parts(ranges, count) };
    let range = |range: &braid_range| Range {
        attributes: 0,
        blocks: range.blocks,
        slba: range.slba,
    };
    let all: Vec<Range> = all.iter().map(range).collect();
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let taken = whole.queue.deallocate(nsid, &all, token);
            whole.submitted(taken)
        })
    }
}

/// Prepares any command of 64 bytes; its identifier is put in. Whether its data pointer leads to as
/// many bytes as it moves is the caller's to know.
///
/// # Safety
/// As for all; 64 bytes at `entry`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_raw(
    queue: *mut braid_queue,
    entry: *const c_void,
    token: u64,
) -> c_int {
    // SAFETY: the caller's; at any alignment.
    let bytes = unsafe { ptr::read_unaligned(entry.cast::<[[u8; 8]; 8]>()) };
    let entry = bytes.map(u64::from_le_bytes);
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let taken = whole.queue.raw(&entry, token);
            whole.submitted(taken)
        })
    }
}

/// Prepares asking for the command with this identifier to end soon. It ends in any case.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_cancel(
    queue: *mut braid_queue,
    cid: u16,
    token: u64,
) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let taken = whole.queue.cancel(cid, token);
            whole.submitted(taken)
        })
    }
}

/// Submits what was prepared: 0, or a negative errno. No system call while the server is awake.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_submit(queue: *mut braid_queue) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| match whole.queue.submit() {
            Ok(()) => 0,
            Err(error) => whole.fail(&error),
        })
    }
}

/// Up to `most` commands that have ended: how many, or a negative errno. Never enters the kernel.
/// After an error that came behind some of them their number is returned, and the error by the next
/// call.
///
/// # Safety
/// As for all; room for `most` at `done`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_reap(
    queue: *mut braid_queue,
    done: *mut braid_done,
    most: usize,
) -> c_int {
    let most = most.min(c_int::MAX as usize);
    let mut count = 0;
    let each = |one: queue::Done| {
        let one = braid_done {
            token: one.token,
            result: one.result,
            status: one.status.0,
        };
        // SAFETY: the caller's: `count` is below `most`.
        unsafe { done.add(count).write(one) };
        count += 1;
    };
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| match whole.queue.reap(most, each) {
            Ok(reaped) => reaped as c_int,
            Err(error) => whole.fail(&error),
        })
    }
}

/// Sleeps until commands have ended (1) or the time is over (0); a negative errno if the server is
/// gone. A user_poll queue looks, and does not sleep.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_wait(queue: *mut braid_queue, at_most_us: u64) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            match whole.queue.wait(Duration::from_micros(at_most_us)) {
                Ok(ready) => ready.into(),
                Err(error) => whole.fail(&error),
            }
        })
    }
}

/// The descriptor that becomes readable when commands have ended after `braid_queue_arm`, for epoll
/// or io_uring; -EINVAL of a user_poll queue. It is the queue's: don't close it.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_interrupt(queue: *mut braid_queue) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let event = whole.queue.interrupt().map(|event| event.as_raw_fd());
            event.unwrap_or_else(|| whole.say(NO_INTERRUPT, EINVAL))
        })
    }
}

/// Asks for one interrupt when commands have ended: 1; or 0 if some have already; -EINVAL of a
/// user_poll queue, which has none.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_arm(queue: *mut braid_queue) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| match whole.queue.interrupt().is_some() {
            true => whole.queue.arm().into(),
            false => whole.say(NO_INTERRUPT, EINVAL),
        })
    }
}

/// A descriptor to be watched for POLLRDHUP, with epoll for EPOLLRDHUP: then the server has ended
/// or has given up this queue; or a negative errno. POLLIN is no proof of that: a late answer to a
/// request that was given up causes it too. The caller owns it and closes it.
///
/// # Safety
/// As for all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_end_event(queue: *mut braid_queue) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| match whole.queue.end_event() {
            Ok(event) => event.into_raw_fd(),
            Err(error) => whole.fail(&error),
        })
    }
}

/// Returns the counters since the queue was opened.
///
/// # Safety
/// As for all; `counts` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_count(queue: *mut braid_queue, counts: *mut braid_counts) {
    // SAFETY: the caller's.
    let counted = unsafe { with(queue, |whole| whole.queue.counts()) };
    let shown = braid_counts {
        polls: counted.polls,
        empty_polls: counted.empty_polls,
        calls: counted.calls,
    };
    // SAFETY: the caller's: valid to be written.
    unsafe { counts.write(shown) };
}
