//! Memory for commands.
use crate::{EINVAL, EIO, ENOENT, braid_memory, braid_queue, with};
use queue::{Error, Queue, Region};
use std::ffi::c_int;
use std::os::fd::BorrowedFd;

/// The memory that the server made for the queue: 0, or -EINVAL if it was not asked for.
///
/// # Safety
/// As for all; `memory` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_data(
    queue: *mut braid_queue,
    memory: *mut braid_memory,
) -> c_int {
    // SAFETY: the caller's.
    let data = unsafe {
        with(queue, |whole| {
            let data = whole.queue.data().map(shown);
            if data.is_none() {
                whole.say("the queue was opened without data memory", EINVAL);
            }
            data
        })
    };
    match data {
        None => -EINVAL,
        Some(data) => {
            // SAFETY: the caller's: valid to be written.
            unsafe { memory.write(data) };
            0
        }
    }
}

/// Registers more memory, which is made here: 0, or a negative errno. It is this process's until
/// it is unregistered or the queue is closed.
///
/// # Safety
/// As for all; `memory` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_register(
    queue: *mut braid_queue,
    len: u64,
    memory: *mut braid_memory,
) -> c_int {
    // SAFETY: the caller's.
    let made = unsafe { with(queue, |whole| whole.keep(|it| it.register(len))) };
    // SAFETY: the caller's.
    unsafe { tell(made, memory) }
}

/// Registers memory of the caller's: the first `len` bytes of a memory file that can't shrink
/// (F_SEAL_SHRINK; -EPERM if it can). The descriptor stays the caller's. 0, or a negative errno.
///
/// # Safety
/// As for all; `memory` is valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_register_file(
    queue: *mut braid_queue,
    descriptor: c_int,
    len: u64,
    memory: *mut braid_memory,
) -> c_int {
    if descriptor < 0 {
        // SAFETY: the caller's.
        return unsafe { with(queue, |whole| whole.say("that is no descriptor", EINVAL)) };
    }
    // SAFETY: the caller's: open for as long as this call.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    // SAFETY: the caller's.
    let made = unsafe {
        with(queue, |whole| match file.try_clone_to_owned() {
            Ok(file) => whole.keep(|it| it.register_file(file, len)),
            Err(error) => Err(whole.say(
                &format!("duplicate the descriptor: {error}"),
                error.raw_os_error().unwrap_or(EIO),
            )),
        })
    };
    // SAFETY: the caller's.
    unsafe { tell(made, memory) }
}

/// Lets go of registered memory, by its address in data pointers: 0, or a negative errno (-ENOENT:
/// there is no such memory). The server keeps it until its last command has ended; here it is gone,
/// so nothing may touch it afterwards.
///
/// # Safety
/// As for all; that memory is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn braid_queue_unregister(queue: *mut braid_queue, address: u64) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        with(queue, |whole| {
            let all = &whole.regions;
            let Some(at) = all.iter().position(|it| it.address() == address) else {
                let what = format!("no memory is registered at address {address:#x}");
                return whole.say(&what, ENOENT);
            };
            match whole.queue.unregister(&whole.regions[at]) {
                Ok(()) => {
                    whole.regions.swap_remove(at);
                    0
                }
                Err(error) => whole.fail(&error),
            }
        })
    }
}

impl braid_queue {
    /// Keeps memory that was registered for as long as the queue is open.
    fn keep(
        &mut self,
        register: impl FnOnce(&mut Queue) -> Result<Region, Error>,
    ) -> Result<braid_memory, c_int> {
        match register(&mut self.queue) {
            Err(error) => Err(self.fail(&error)),
            Ok(region) => {
                let made = shown(&region);
                self.regions.push(region);
                Ok(made)
            }
        }
    }
}

/// # Safety
/// `memory` is valid.
unsafe fn tell(made: Result<braid_memory, c_int>, memory: *mut braid_memory) -> c_int {
    match made {
        Err(errno) => errno,
        Ok(made) => {
            // SAFETY: the caller's: valid to be written.
            unsafe { memory.write(made) };
            0
        }
    }
}

fn shown(region: &Region) -> braid_memory {
    braid_memory {
        data: region.as_ptr().cast(),
        len: region.len() as u64,
        address: region.address(),
    }
}
