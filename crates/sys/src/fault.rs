//! Faults in memory that other processes have too (SIGBUS): the file was cut off, a page is
//! damaged, or the system has no memory for it.
//!
//! # Contract
//! The first access to a guarded mapping that faults makes all of the mapping private zeroes, and
//! the access goes on there. The mapping is *lost* from then on ([`crate::Shared::is_lost`]): what
//! was read from it before that was asked may be zeroes instead of the client's bytes. [`count`]
//! says at the price of a load whether there is anything to ask. A SIGBUS anywhere else has the
//! effect that it had before.
//!
//! The handler takes no lock and allocates nothing. It reads the table of guarded mappings, a word
//! each, and calls `mmap`. The thread that faults uses the mapping, so its entry stays meanwhile.
use crate::mapping::PAGE;
use crate::{Errno, Error};
use libc::{c_int, c_void, siginfo_t};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, compiler_fence};

/// Most guarded mappings: as many as Linux gives a process by default (`vm.max_map_count`).
const GUARDED_MAX: usize = 1 << 16;
/// Bits of an entry for the number of pages; those above are for the number of the first page.
const COUNT_BITS: u32 = 28;

static TABLE: [Guard; GUARDED_MAX] = [const { Guard::free() }; GUARDED_MAX];
/// Entries behind this one were never taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);
static FAULTS: AtomicU64 = AtomicU64::new(0);
/// The action for SIGBUS before ours, or why there is none of ours.
static BEFORE: OnceLock<Result<libc::sigaction, Errno>> = OnceLock::new();

/// The entry of a guarded mapping.
#[derive(Debug)]
pub(crate) struct Guard {
    /// First page and number of pages, in one word, so that the handler reads them together; 0:
    /// free.
    pages: AtomicU64,
    /// Never set while it is free.
    lost: AtomicBool,
}

/// Faults in guarded mappings so far, of all threads.
#[inline]
pub fn count() -> u64 {
    // The handler runs on this thread, inside of the access: nothing else orders the two.
    compiler_fence(Ordering::SeqCst);
    FAULTS.load(Ordering::Acquire)
}

impl Guard {
    const fn free() -> Self {
        Self {
            pages: AtomicU64::new(0),
            lost: AtomicBool::new(false),
        }
    }

    /// Guards a mapping, until [`Self::release`].
    ///
    /// # Errors
    /// `sigaction`. `guard`: there are too many of them (ENOSPC), or it is too large (EFBIG).
    pub(crate) fn take(at: usize, len: usize) -> Result<&'static Self, Error> {
        let installed = BEFORE.get_or_init(install).as_ref();
        installed.map_err(|&errno| Error::new("sigaction", errno))?;
        let (first, pages) = ((at / PAGE) as u64, len.div_ceil(PAGE) as u64);
        if first >> (u64::BITS - COUNT_BITS) > 0 || pages >> COUNT_BITS > 0 {
            return Err(Error::new("guard", Errno::FBIG));
        }
        let word = first << COUNT_BITS | pages;
        let take = |guard: &Self| {
            let pages = &guard.pages;
            pages.load(Ordering::Relaxed) == 0
                && pages
                    .compare_exchange(0, word, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
        };
        let found = TABLE.iter().position(take);
        let found = found.ok_or(Error::new("guard", Errno::NOSPC))?;
        TAKEN.fetch_max(found + 1, Ordering::AcqRel);
        Ok(&TABLE[found])
    }

    /// Frees the entry; nothing uses the mapping any more.
    pub(crate) fn release(&self) {
        self.lost.store(false, Ordering::Relaxed);
        self.pages.store(0, Ordering::Release);
    }

    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        compiler_fence(Ordering::SeqCst);
        self.lost.load(Ordering::Acquire)
    }

    /// First byte and number of bytes, if `at` is among them.
    fn range_around(&self, at: usize) -> Option<(usize, usize)> {
        let word = self.pages.load(Ordering::Acquire);
        let (first, pages) = (word >> COUNT_BITS, word & ((1 << COUNT_BITS) - 1));
        let (begin, len) = (first as usize * PAGE, pages as usize * PAGE);
        (begin..begin + len).contains(&at).then_some((begin, len))
    }
}

fn install() -> Result<libc::sigaction, Errno> {
    let mut before = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: all its fields are integers, or pointers that may be null.
    let mut ours = unsafe { std::mem::zeroed::<libc::sigaction>() };
    ours.sa_sigaction = on_fault as extern "C" fn(_, _, _) as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both are structures of the C library. The handler has the type that SA_SIGINFO wants,
    // and calls only what may be called in a handler.
    let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, before.as_mut_ptr()) };
    if installed != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL));
    }
    // SAFETY: the call succeeded, so it is filled.
    Ok(unsafe { before.assume_init() })
}

extern "C" fn on_fault(signal: c_int, info: *mut siginfo_t, _context: *mut c_void) {
    // SAFETY: with SA_SIGINFO the kernel passes information that is valid during the call; of a
    // SIGBUS it may have an address in any case, which is only compared.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    // Codes above 0 are the kernel's; a process that sends the signal chooses its contents.
    let is_fault = code > 0;
    if is_fault && absorb(at) {
        return;
    }
    // Another thread may fault before the first mapping is guarded, but not in such a mapping.
    let before = BEFORE.get().and_then(|before| before.as_ref().ok());
    let before = before.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: it is what `sigaction` gave, or null, with which it does nothing.
    unsafe { libc::sigaction(signal, before, ptr::null_mut()) };
    if !is_fault {
        // A fault happens again when this returns. A signal has to be sent again.
        // SAFETY: it takes and leaves no memory.
        unsafe { libc::raise(signal) };
    }
}

/// Replaces the guarded mapping around an address by zeroes; whether there is one.
fn absorb(at: usize) -> bool {
    let taken = TABLE.iter().take(TAKEN.load(Ordering::Acquire));
    let found = taken.filter_map(|guard| Some((guard, guard.range_around(at)?)));
    let Some((guard, (begin, len))) = found.into_iter().next() else {
        return false;
    };
    // Before the zeroes are there: no thread reads them and finds that nothing is lost.
    guard.lost.store(true, Ordering::SeqCst);
    FAULTS.fetch_add(1, Ordering::SeqCst);
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let zeroes = |at: usize, len| {
        // SAFETY: inside a mapping that its user keeps (the entry is taken). All accesses to it are
        // atomic or copies that assume nothing of the bytes, so that they may be others.
        unsafe { mmap_anonymous(ptr::with_exposed_provenance_mut(at), len, protection, flags) }
    };
    // Where memory is accounted strictly, there may be none for all of it.
    zeroes(begin, len).is_ok() || zeroes(at / PAGE * PAGE, PAGE).is_ok()
}

#[cfg(test)]
mod tests {
    use crate::{Shared, fault};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::OwnedFd;
    use std::os::unix::process::ExitStatusExt;

    const BYTES: usize = 64 << 10;

    fn unsealed() -> OwnedFd {
        let file = memfd_create("braid-unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        file
    }

    #[test]
    fn a_cut_off_mapping_is_lost_and_others_stay() {
        let files = [(); 2].map(|()| unsealed());
        let [one, other] = files.each_ref().map(|it| Shared::map_unsealed(it, BYTES));
        let (one, other) = (one.unwrap(), other.unwrap());
        one.write(0, &[1; BYTES]);
        other.write(0, &[2; BYTES]);
        let before = fault::count();
        ftruncate(&files[0], 4096).unwrap();
        let mut bytes = [9; BYTES];
        one.read(0, &mut bytes[..4096]);
        assert!(!one.is_lost(), "this page is left");
        // Half a copy from the page that is left, half from one that is not.
        one.read(2048, &mut bytes[..4096]);
        assert!(one.is_lost() && fault::count() > before);
        assert_eq!((bytes[2047], bytes[2048]), (1, 0));
        one.read(0, &mut bytes);
        assert!(bytes == [0; BYTES], "all of it");
        // It can be written, which the file does not notice.
        one.write(0, &[3; BYTES]);
        one.store_word(BYTES - 4, 7);
        assert_eq!(one.load_word(BYTES - 4), 7);
        other.read(0, &mut bytes);
        assert!(bytes == [2; BYTES] && !other.is_lost());
        // A system call fails instead.
        ftruncate(&files[1], 0).unwrap();
        let written = other.write_to((0, 4096), unsealed(), 0, false);
        assert_eq!(
            (written, other.is_lost()),
            (Err(crate::Errno::FAULT), false)
        );
    }

    #[test]
    fn an_entry_that_was_lost_is_free_again() {
        for _ in 0..3 {
            let file = unsealed();
            let shared = Shared::map_unsealed(&file, BYTES).unwrap();
            assert!(!shared.is_lost());
            ftruncate(&file, 0).unwrap();
            shared.store::<1>(8192, &[1]);
            assert!(shared.is_lost());
            assert_eq!(shared.load::<1>(8192), [1]);
        }
    }

    #[test]
    fn threads_that_fault_at_once_all_go_on() {
        let file = unsealed();
        let shared = Shared::map_unsealed(&file, BYTES).unwrap();
        ftruncate(&file, 0).unwrap();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let shared = &shared;
                scope.spawn(move || {
                    shared.read(n * 4096, &mut [0; 4096]);
                    assert!(shared.is_lost());
                });
            }
        });
    }

    #[test]
    fn pages_that_cannot_be_had_are_an_error() {
        let file = unsealed();
        let shared = Shared::map_unsealed(&file, BYTES).unwrap();
        assert_eq!(shared.populate(0, BYTES), Ok(()));
        let pages = rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        assert_eq!(pages, BYTES as i64);
        ftruncate(&file, 4096).unwrap();
        assert_eq!(shared.populate(0, 4096), Ok(()));
        let error = shared.populate(0, BYTES).unwrap_err();
        assert_eq!(
            (error.operation, error.source),
            ("madvise", crate::Errno::FAULT)
        );
        assert!(!shared.is_lost());
    }

    /// In a process of its own, which ends as it would without a handler.
    #[test]
    fn a_fault_elsewhere_ends_the_process() {
        const CHILD: &str = "BRAID_TEST_FAULT";
        if std::env::var_os(CHILD).is_some() {
            let file = unsealed();
            let guarded = Shared::map_unsealed(&file, BYTES).unwrap();
            let other = Shared::map_unguarded(&file, BYTES).unwrap();
            ftruncate(&file, 0).unwrap();
            assert_eq!(guarded.load::<1>(0), [0]);
            println!("absorbed {}", guarded.is_lost());
            other.load::<1>(0);
            println!("still here");
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "--nocapture",
            "fault::tests::a_fault_elsewhere_ends_the_process",
        ]);
        let output = child.env(CHILD, "1").output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("absorbed true"), "{said}");
        assert!(!said.contains("still here"), "{said}");
        assert_eq!(output.status.signal(), Some(libc::SIGBUS));
    }
}
