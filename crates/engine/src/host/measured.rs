//! Measures of the paths of this core since its last report, for alarms
//! ([`alarms`](crate::alarms)): differences of their counters, so an I/O costs nothing more.
//!
//! # Limits
//! A path that rests is not reported: its keep-alives only where one was late, its probes only when
//! they are asked for, or it is on probation.
use super::Multipath;
use super::counters::{ErrorClass, PathCounters};
use super::path::Path;
use crate::alarms::{PathWindow, Subject};
use crate::latency::LatencyHistogram;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// A Keep Alive that took so long is reported, and so many after it. 50 ms: below any limit.
const KEEP_ALIVE_NS: u64 = 50_000_000;
const KEEP_ALIVES: u8 = 8;

/// Errors that a path answered with, or that show on the way; not those of I/O that was not
/// answered, or was wrong.
const CLASSES: [ErrorClass; 5] = [
    ErrorClass::Busy,
    ErrorClass::Transfer,
    ErrorClass::Media,
    ErrorClass::Space,
    ErrorClass::Access,
];

/// State of a path's reports.
#[derive(Default)]
pub(super) struct Measured {
    /// Reads and writes, as reported last.
    latency: Box<[LatencyHistogram; 2]>,
    /// Bytes that they moved, as reported last.
    bytes: [u64; 2],
    /// Errors, as reported last.
    errors: u64,
    /// Losses by its own fault that are not reported; on core 0.
    pub losses: u32,
    /// Probes that are not reported.
    probes: Box<LatencyHistogram>,
    /// They are to be reported unasked.
    has_news: bool,
    /// The longest Keep Alive that is not reported, ns.
    keep_alive_ns: Option<u64>,
    /// So many of the next are reported too.
    keep_alives_left: u8,
}

impl Measured {
    /// A probe was answered; `idle`: only because the path rests.
    pub fn note_probe(&mut self, took_ns: u64, idle: bool) {
        self.probes.record(took_ns);
        self.has_news |= !idle;
    }

    /// A Keep Alive was answered.
    pub fn note_keep_alive(&mut self, took_ns: u64) {
        if took_ns >= KEEP_ALIVE_NS {
            self.keep_alives_left = KEEP_ALIVES;
        }
        if self.keep_alives_left > 0 {
            self.keep_alives_left -= 1;
            self.keep_alive_ns = self.keep_alive_ns.max(Some(took_ns));
        }
    }
}

fn errors(counters: &PathCounters) -> u64 {
    let of = |class| counters.errors_by_class[class as usize];
    CLASSES.into_iter().map(of).sum()
}

impl Path {
    /// Takes the measures that are not reported; `None`: there are none.
    fn window(&mut self, with_probes: bool) -> Option<PathWindow> {
        let it = &mut self.measured;
        let mut window = PathWindow::default();
        for op in 0..2 {
            if self.latency[op] != it.latency[op] {
                window.latencies[op] = self.latency[op].since(&it.latency[op]);
                it.latency[op] = self.latency[op];
            }
        }
        for (op, bytes) in self.counters.bytes.into_iter().enumerate() {
            window.bytes[op] = bytes - it.bytes[op];
        }
        it.bytes = self.counters.bytes;
        let errors = errors(&self.counters);
        window.errors = (errors - it.errors) as u32;
        it.errors = errors;
        window.losses = core::mem::take(&mut it.losses);
        window.keep_alive_ns = it.keep_alive_ns.take();
        let has_news = core::mem::take(&mut it.has_news);
        if with_probes || has_news || !window.is_empty() {
            window.latencies[0].add(&it.probes);
            *it.probes = LatencyHistogram::default();
        }
        (!window.is_empty()).then_some(window)
    }
}

impl Multipath {
    /// Takes what was measured of all paths since the last call; `with_probes`: also of those that
    /// rest. Looks at all paths.
    pub fn take_windows(&mut self, with_probes: bool) -> Vec<(Subject, PathWindow)> {
        let volumes = self.volumes.iter_mut();
        let paths = volumes.flat_map(|it| it.paths.iter_mut());
        let windows = paths.filter_map(|path| {
            let (volume, index) = (path.volume, path.index);
            let of = Subject {
                volume,
                path: index,
            };
            Some((of, path.window(with_probes)?))
        });
        windows.collect()
    }

    /// Returns the longest time since the last call for which the core noticed nothing, ns.
    pub fn take_late_ns(&mut self) -> u64 {
        self.on.standstills.take_longest_ns()
    }
}
