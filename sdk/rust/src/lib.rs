//! Programs that choose a path for each I/O of a braid volume.
//!
//! Implement [`Policy`] and name the type in [`export!`]. The layout of [`Request`] and [`Path`] is
//! version 1 of docs/programs.md; a static of this crate holds the context that braid fills.
//!
//! ```
//! use braid_policy_sdk::{Path, Policy, Request};
//!
//! pub struct Fewest;
//!
//! impl Policy for Fewest {
//!     const NEW: Self = Self;
//!
//!     fn select(&mut self, _: &mut Request, paths: &mut [Path]) -> Option<usize> {
//!         let usable = (0..paths.len()).filter(|&at| paths[at].is_usable());
//!         usable.min_by_key(|&at| paths[at].in_flight)
//!     }
//! }
//! # #[cfg(target_arch = "wasm32")]
//! braid_policy_sdk::export!(Fewest);
//! ```
#![no_std]
use core::cell::UnsafeCell;

/// Most paths of a volume.
pub const PATHS_MAX: usize = 64;

/// An I/O that needs a path.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Request {
    /// Version of the interface: 1.
    pub version: u32,
    flags: u32,
    /// Time, ns; only differences mean something.
    pub now_ns: u64,
    /// Number of the reader; 0 in [`Policy::complete`].
    pub source: u64,
    /// First byte on the volume; 0 in [`Policy::complete`].
    pub address: u64,
    /// Bytes.
    pub length: u32,
    /// [`READ`], [`WRITE`] or [`OTHER`].
    pub group: u32,
    count: u32,
    reserved: [u32; 5],
    /// The program's own words for the volume on this core. They outlive a trap.
    pub words: [u64; 8],
}

/// Group of reads.
pub const READ: u32 = 0;
/// Group of writes, and of other changes of data.
pub const WRITE: u32 = 1;
/// Group of flushes and everything else.
pub const OTHER: u32 = 2;

/// One path, as it is now.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    flags: u32,
    /// ANA state: 0 optimized, 1 non-optimized; others are not usable.
    pub ana: u32,
    /// NUMA distance from this core; smaller is nearer.
    pub distance: u32,
    /// This core's I/Os in flight on it.
    pub in_flight: u32,
    /// Other cores' I/Os in flight on it, as last published.
    pub in_flight_elsewhere: u32,
    /// Relative throughput, 0 to 100, as configured.
    pub throughput: u32,
    reserved: [u32; 2],
    /// The program's own words for this path on this core. They outlive a trap, and are 0 after a
    /// reset of the path.
    pub words: [u64; 4],
}

impl Path {
    /// A path for tests on the host.
    pub fn new(is_usable: bool, is_optimized: bool) -> Self {
        Self {
            flags: is_usable as u32 | (is_optimized as u32) << 1,
            ..Self::default()
        }
    }

    /// It may be chosen.
    pub fn is_usable(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Usable, and preferred over all that are not optimized.
    pub fn is_optimized(&self) -> bool {
        self.flags & 2 != 0
    }

    /// I/Os in flight on it, of all cores.
    pub fn depth(&self) -> u64 {
        u64::from(self.in_flight) + u64::from(self.in_flight_elsewhere)
    }
}

/// How an I/O ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Well: its latency is a sample.
    Good,
    /// It failed, or was never sent.
    Failed,
    /// It was taken back, since its result was no longer needed.
    Dropped,
}

/// A policy. Each core has its own.
pub trait Policy: Sized {
    /// As it begins, and as it begins anew after a trap.
    const NEW: Self;

    /// Chooses one of the usable paths. `None`: braid's `queue-depth` chooses, and counts a fault.
    fn select(&mut self, request: &mut Request, paths: &mut [Path]) -> Option<usize>;

    /// An I/O on `path` has ended. Of the request only group, length and time are known; `paths`
    /// are as at the last choice.
    fn complete(
        &mut self,
        _path: usize,
        _latency_ns: u64,
        _outcome: Outcome,
        _request: &mut Request,
        _paths: &mut [Path],
    ) {
    }

    /// Every 10 ms, if there is I/O.
    fn tick(&mut self, _now_ns: u64) {}

    /// Forgets what was learnt of `path`: it was connected anew, has another size, or is gone.
    fn reset(&mut self, _path: usize) {}
}

/// The context; braid writes it between calls.
#[repr(C, align(8))]
pub struct Context {
    request: Request,
    paths: [Path; PATHS_MAX],
}

/// A value that only one call at a time uses: a module has one thread.
#[repr(transparent)]
pub struct Single<T>(UnsafeCell<T>);

// SAFETY: a module has one thread, and braid makes one call at a time.
unsafe impl<T> Sync for Single<T> {}

impl<T> Single<T> {
    /// Wraps it.
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// # Safety
    /// No other reference to the value is alive.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self) -> &mut T {
        // SAFETY: as the caller promises.
        unsafe { &mut *self.0.get() }
    }
}

/// Nothing yet.
pub const EMPTY: Context = Context {
    request: Request {
        version: 0,
        flags: 0,
        now_ns: 0,
        source: 0,
        address: 0,
        length: 0,
        group: 0,
        count: 0,
        reserved: [0; 5],
        words: [0; 8],
    },
    paths: [Path {
        flags: 0,
        ana: 0,
        distance: 0,
        in_flight: 0,
        in_flight_elsewhere: 0,
        throughput: 0,
        reserved: [0; 2],
        words: [0; 4],
    }; PATHS_MAX],
};

impl Context {
    fn parts(&mut self) -> (&mut Request, &mut [Path]) {
        let count = self.request.count as usize;
        // Not more than there are: without the check, code for a panic is linked.
        let count = if count < PATHS_MAX { count } else { PATHS_MAX };
        (&mut self.request, &mut self.paths[..count])
    }

    /// For [`export!`].
    pub fn select<P: Policy>(&mut self, policy: &mut P) -> i32 {
        let (request, paths) = self.parts();
        // The first call of an instance is a trial: it may allocate, and must leave no trace.
        let chosen = if request.flags & 1 != 0 {
            let mut trial = P::NEW;
            let mut words = *request;
            trial.select(&mut words, paths)
        } else {
            policy.select(request, paths)
        };
        match chosen {
            Some(path) => path as i32,
            None => -1,
        }
    }

    /// For [`export!`].
    pub fn complete<P: Policy>(&mut self, policy: &mut P, path: i32, latency_ns: i64, how: i32) {
        let outcome = match how {
            0 => Outcome::Good,
            1 => Outcome::Failed,
            _ => Outcome::Dropped,
        };
        let (request, paths) = self.parts();
        policy.complete(path as usize, latency_ns as u64, outcome, request, paths);
    }
}

/// Exports a type that implements [`Policy`] as the program of this module, and ends a panic with a
/// trap. Once per module, for wasm32.
#[macro_export]
macro_rules! export {
    ($policy:ty) => {
        #[no_mangle]
        #[allow(non_upper_case_globals)]
        pub static braid_context: $crate::Single<$crate::Context> =
            $crate::Single::new($crate::EMPTY);
        static POLICY: $crate::Single<$policy> =
            $crate::Single::new(<$policy as $crate::Policy>::NEW);

        #[no_mangle]
        pub extern "C" fn braid_select(_request: i32, _paths: i32) -> i32 {
            // SAFETY: one call at a time; no reference outlives it.
            unsafe { braid_context.get().select(POLICY.get()) }
        }

        #[no_mangle]
        pub extern "C" fn braid_complete(path: i32, latency_ns: i64, how: i32, _request: i32) {
            // SAFETY: one call at a time; no reference outlives it.
            unsafe {
                braid_context
                    .get()
                    .complete(POLICY.get(), path, latency_ns, how)
            }
        }

        #[no_mangle]
        pub extern "C" fn braid_tick(now_ns: i64) {
            // SAFETY: one call at a time; no reference outlives it.
            $crate::Policy::tick(unsafe { POLICY.get() }, now_ns as u64);
        }

        #[no_mangle]
        pub extern "C" fn braid_reset(path: i32) {
            // SAFETY: one call at a time; no reference outlives it.
            $crate::Policy::reset(unsafe { POLICY.get() }, path as usize);
        }

        #[panic_handler]
        fn panic(_: &core::panic::PanicInfo) -> ! {
            core::arch::wasm32::unreachable()
        }
    };
}

const _: () = assert!(core::mem::size_of::<Request>() == 128);
const _: () = assert!(core::mem::size_of::<Path>() == 64);
