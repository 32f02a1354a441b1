//! Estimate of what other cores have in flight, when their counts are old.
//!
//! Between two counts the others are taken to do as this core does: what it has more or less in
//! flight on a path since, each of them has. Without that all cores would send to the path that was
//! idle when it was counted, and flee it together after the next count (T40).
//!
//! # Contract
//! Counts are new when any of them has changed. Where they always are, nothing is added.
//!
//! # Limits
//! A core is taken for at most 2^12 others.

use crate::limits::PATHS_MAX;
use crate::types::PathView;

/// Others for each I/O of our own: Q4, at most this.
const RATIO_MAX: u32 = 1 << 16;

/// The counts are looked at so often, if there are choices.
const LOOK_NS: u64 = 200_000;
/// Counts that were the same at so many more looks are old.
const OLD: u32 = 4;

/// Of one path.
pub(super) const PATH_BYTES: usize = 8;

/// The last counts, and what this core had in flight then.
#[derive(Clone, Debug)]
pub(super) struct Others {
    counted: [u32; PATHS_MAX],
    own: [u32; PATHS_MAX],
    /// I/Os of others for one of our own, Q4.
    ratio: u32,
    /// The same, once the counts have not changed for a while; 0 until then.
    gain: i64,
    /// Looks since the counts changed, up to [`OLD`].
    same: u32,
    /// When to look next.
    next_ns: u64,
}

impl Others {
    pub(super) fn new() -> Self {
        Self {
            counted: [0; PATHS_MAX],
            own: [0; PATHS_MAX],
            ratio: 0,
            gain: 0,
            same: 0,
            next_ns: 0,
        }
    }

    /// Before each choice. Looks at the counts now and then: of what a core does in between, they
    /// tell little.
    #[inline]
    pub(super) fn see(&mut self, now_ns: u64, paths: &[PathView], in_flight: &[u32; PATHS_MAX]) {
        if now_ns >= self.next_ns {
            self.next_ns = now_ns.saturating_add(LOOK_NS);
            self.look(paths, in_flight);
        }
    }

    /// Whether the counts are too old to be taken as they are.
    #[inline]
    pub(super) fn are_old(&self) -> bool {
        self.gain != 0
    }

    #[cold]
    fn look(&mut self, paths: &[PathView], in_flight: &[u32; PATHS_MAX]) {
        let pairs = paths.iter().zip(&self.counted);
        let differ = pairs.fold(0, |sum, (view, old)| sum | (view.in_flight_elsewhere ^ old));
        if differ != 0 {
            self.note(paths, in_flight);
            return;
        }
        self.same += u32::from(self.same < OLD);
        if self.same == OLD {
            self.gain = self.ratio.into();
        }
    }

    fn note(&mut self, paths: &[PathView], in_flight: &[u32; PATHS_MAX]) {
        let (mut others, mut ours) = (0_u64, 0_u64);
        for (path, view) in paths.iter().enumerate() {
            self.counted[path] = view.in_flight_elsewhere;
            self.own[path] = in_flight[path];
            others += u64::from(view.in_flight_elsewhere);
            ours += u64::from(in_flight[path]);
        }
        (self.gain, self.same) = (0, 0);
        let step = 1 + self.ratio / 16;
        self.ratio = if others << 4 > ours * u64::from(self.ratio) {
            (self.ratio + step).min(RATIO_MAX)
        } else {
            self.ratio.saturating_sub(step)
        };
    }

    /// I/Os that others have in flight on a path by now.
    #[inline]
    pub(super) fn now(&self, path: usize, view: &PathView, own: u32) -> u32 {
        let more = i64::from(own) - i64::from(self.own[path % PATHS_MAX]);
        let others = i64::from(view.in_flight_elsewhere) + ((more * self.gain) >> 4);
        others.clamp(0, u32::MAX.into()) as u32
    }
}
