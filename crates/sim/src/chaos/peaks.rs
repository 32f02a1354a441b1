//! Peaks of memory while a world goes on, which do not show once it rests.
//!
//! # Contract
//! Looked at after each turn of a target, and after one of some of a core. At a target all that its
//! devices have is memory that it counts as used, and that is no more than its arena; a core has no
//! more I/Os that wait or are under way than it may have, and no more memory in requests than there
//! is. A mirror that runs has what it copies and compares with of its own, and at rest (`check`)
//! nothing beside.
use super::prelude::*;
use engine::limits::{HEDGES_MAX, MIRROR_COPIES, MIRROR_COPY_BYTES};
use engine::target::TargetEngine;

/// One turn of a core in so many.
const CORES_EACH: u64 = 8;

/// The most that there ever was.
#[derive(Clone, Copy, Debug, Default)]
pub struct Peaks {
    /// Bytes at the devices of one target.
    pub at_devices: u64,
    /// I/Os of one core that waited or were under way.
    pub ios: u64,
    /// Bytes of a mirror's own that it had, beside [`MIRROR_KEPT`].
    pub of_mirror: u64,
}

/// Bytes that a mirror has of its own as long as it runs: to copy through, and to compare with.
pub(super) const MIRROR_KEPT: u64 = 2 * MIRROR_COPIES as u64 * MIRROR_COPY_BYTES as u64;

impl World {
    /// Looks at a machine that has just had its turn.
    pub(super) fn measure(&mut self, number: usize) {
        let node = &self.nodes[number];
        let arena = node.arena.len() as u64;
        let wrong = match &node.body {
            Body::Target(engine) => {
                let there = node.at_device.values().sum();
                self.peaks.at_devices = self.peaks.at_devices.max(there);
                of_target(engine, there, arena)
            }
            Body::Core(engine) => {
                self.core_turns += 1;
                if !self.core_turns.is_multiple_of(CORES_EACH) {
                    return;
                }
                let ios = ios(engine);
                self.peaks.ios = self.peaks.ios.max(ios);
                let of_mirror = beside(engine).unwrap_or(Ok(0));
                let most = *of_mirror.as_ref().unwrap_or(&0);
                self.peaks.of_mirror = self.peaks.of_mirror.max(most);
                of_core(engine, ios, arena).or(of_mirror.err())
            }
            _ => None,
        };
        self.blame(number, wrong);
    }
}

/// Returns the violation in the memory of a target whose devices have so many bytes.
fn of_target(engine: &TargetEngine, there: u64, arena: u64) -> Option<String> {
    let (all, free) = (engine.buffers(), engine.buffers_free());
    let well = all <= arena && free <= all && there <= all - free;
    (!well).then(|| {
        format!(
            "its devices have {there} bytes, and of {all} in an arena of {arena} {free} are free"
        )
    })
}

/// I/Os of a core, in all.
fn ios(engine: &Core) -> u64 {
    let host = engine.host();
    let mut ios = 0;
    for volume in 0..host.volumes() {
        let it = host.hold_stats(volume);
        ios += u64::from(it.held + it.behind + it.queued + it.delayed + it.flushes);
        let paths = host.paths(volume);
        ios += paths
            .map(|path| u64::from(host.in_flight(volume, path)))
            .sum::<u64>();
    }
    ios
}

fn of_core(engine: &Core, ios: u64, arena: u64) -> Option<String> {
    let (all, free) = (engine.buffers(), engine.buffers_free());
    let most = engine.host().io_max() as u64 + u64::from(HEDGES_MAX);
    let well = all <= arena && free <= all && ios <= most;
    (!well).then(|| {
        format!("{ios} I/Os of {most}, and of {all} bytes in an arena of {arena} {free} are free")
    })
}

/// Bytes of its own that a running mirror has beside [`MIRROR_KEPT`], or what is wrong with them;
/// `None`: there is none that runs.
pub(super) fn beside(engine: &Core) -> Option<Result<u64, String>> {
    let (used, runs) = engine.mirror_memory(MIRRORS_FROM)?;
    let told = || format!("its mirror runs with {used} bytes of its own");
    runs.then(|| used.checked_sub(MIRROR_KEPT).ok_or_else(told))
}
