//! A queue on its way to another process (U2).
use crate::{EAGAIN, EINVAL, EIO, braid_queue, closed, errno, no_queue, with};
use queue::{Parts, Queue};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;

/// A Unix socket of the caller's, who keeps it.
///
/// # Safety
/// `socket` is open.
unsafe fn stream(socket: c_int) -> Result<UnixStream, c_int> {
    if socket < 0 {
        return Err(EINVAL);
    }
    // SAFETY: the caller's.
    let socket = unsafe { BorrowedFd::borrow_raw(socket) };
    let cloned = socket.try_clone_to_owned();
    let cloned = cloned.map_err(|error| error.raw_os_error().unwrap_or(EIO))?;
    Ok(UnixStream::from(cloned))
}

/// Passes the queue, with the memory that the server made for it, to the receiver at the other end
/// of the Unix socket. -EAGAIN: commands are in flight, and nothing has happened. Else the queue is
/// closed here: 0, it is the receiver's; or a negative errno, `braid_queue_open_error` has the
/// message, and the queue has no owner any more.
///
/// # Safety
/// As for all; `socket` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_send(queue: *mut braid_queue, socket: c_int) -> c_int {
    // SAFETY: the caller's.
    if unsafe { with(queue, |whole| whole.queue.in_flight() > 0) } {
        return -EAGAIN;
    }
    // SAFETY: the caller's.
    let whole = unsafe { closed(queue) };
    // SAFETY: the caller's.
    let to = match unsafe { stream(socket) } {
        Ok(to) => to,
        Err(errno) => return no_queue("no socket to pass a queue on by", errno),
    };
    let sent = match whole.queue.into_parts() {
        Ok(parts) => parts.send(&to),
        Err(busy) => Err(busy.0),
    };
    match sent {
        Ok(()) => 0,
        Err(error) => no_queue(&error.to_string(), errno(&error)),
    }
}

/// Receives a queue that another process passes on; waits for it. On success 0, and `*opened` is
/// the queue; else a negative errno, and `braid_queue_open_error` has the words.
///
/// # Safety
/// `socket` is open; `opened` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_receive(
    socket: c_int,
    opened: *mut *mut braid_queue,
) -> c_int {
    // SAFETY: the caller's.
    let from = match unsafe { stream(socket) } {
        Ok(from) => from,
        Err(errno) => return no_queue("no socket to receive a queue by", errno),
    };
    match Parts::receive(&from).and_then(Queue::from_parts) {
        Ok(queue) => {
            let whole = Box::new(braid_queue::from(queue));
            // SAFETY: the caller's: valid to be written.
            unsafe { opened.write(Box::into_raw(whole)) };
            0
        }
        Err(error) => no_queue(&error.to_string(), errno(&error)),
    }
}
