//! Properties of a queue, and texts of statuses.
use crate::{braid_queue, braid_queue_facts, with};
use queue::{Kind, Status};
use std::ffi::c_char;

/// Returns the properties of the queue, and how much is in flight.
///
/// # Safety
/// As for all; `facts` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_show(queue: *mut braid_queue, facts: *mut braid_queue_facts) {
    let shown = |whole: &mut braid_queue| {
        let queue = &whole.queue;
        braid_queue_facts {
            number: queue.number(),
            kind: match queue.kind() {
                Kind::UserPoll => 0,
                Kind::UserIrq => 1,
            },
            depth: queue.depth().into(),
            in_flight: queue.in_flight().into(),
            transfer_max: queue.transfer_max(),
            namespaces: queue.namespaces(),
        }
    };
    // SAFETY: the caller's.
    let shown = unsafe { with(queue, shown) };
    // SAFETY: the caller's: valid to be written.
    unsafe { facts.write(shown) };
}

/// Words for the status of a command that has ended, as `snprintf` writes them: at most `size`
/// bytes with the zero at their end; how long they are without it.
///
/// # Safety
/// Room for `size` bytes at `text`, which may be null where that is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_status_text(status: u16, text: *mut c_char, size: usize) -> usize {
    let words = Status(status).to_string();
    if size > 0 {
        let count = words.len().min(size - 1);
        // SAFETY: the caller's: there is room for `size` bytes, and `count` is less.
        unsafe { words.as_ptr().copy_to_nonoverlapping(text.cast(), count) };
        // SAFETY: as above.
        unsafe { text.add(count).write(0) };
    }
    words.len()
}
