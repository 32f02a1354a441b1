//! Paths on probation: who is put there, and what gets them out.
//!
//! The head judges ([`volume::health`]); here is what it needs for that: a look at the oldest I/O
//! of each path at the time when it would have been silent for too long, and probes. A probe is a
//! read of the first block into memory of the engine's own, in a spare slot, and in a lane like any
//! I/O: so it has the time-out of an I/O, and ends with its path (T10, T12). Nobody waits for it or
//! is told of its end, also when the engine stops; no policy learns from it (T43), and it is not
//! counted as I/O.
//!
//! Each core judges for itself, and tells the others through core 0: one that has hardly any I/O
//! there can't know, and one that sees the path answer well right now goes on (its queue is its
//! own).
//!
//! # Limits
//! Without memory of its own ([`HostConfig::scratch`](super::HostConfig)) or spare slots an engine
//! can't probe, and puts nothing on probation. A probe that finds no room is put off (T6). A path
//! that may not be read, for its ANA state or its size's sake, is not probed until it may.
use super::path::{Path, Phase, Will};
use super::slots::{EMPTY, Slot};
use super::types::{HostEvent, Io, IoOp, PathNews};
use super::volumes::Volume;
use super::{HostEngine, hedge, report};
use crate::machine::Span;
use alloc::vec::Vec;
use volume::Outcome;
use volume::health::{Limits, Probation, Tally, Why};

/// Of the oldest I/Os of a path so many are looked at for one whose time says something.
const LOOKED_AT: usize = 8;

/// How a path is doing on this core, where that is not well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathHealth {
    /// While it is on probation.
    pub probation: Option<Probation>,
    /// Totals.
    pub tally: Tally,
}

/// Whether how long an I/O takes says something of its path: a flush, or a range to be zeroed, may
/// take any time, and of some the caller says so.
#[inline]
pub(super) fn is_timed(slot: &Slot) -> bool {
    matches!(slot.io.op, IoOp::Read | IoOp::Write { .. }) && !slot.course.untimed
}

/// What may put paths on probation in an engine that has so many I/Os, and this memory of its own.
pub(super) fn limits(limits: Limits, io_max: u32, scratch: Span) -> Limits {
    match hedge::spare(io_max, scratch) {
        0 => Limits::OFF,
        _ => limits,
    }
}

/// How long an I/O may go without an answer before its path is looked at, ns.
pub(super) fn unseen_ns_max(volumes: &[Volume], io_timeout_ns: u64) -> u64 {
    let silences = volumes.iter().map(|it| it.recovery.health.silence_ns);
    let least_ns = silences.filter(|&ns| ns > 0).min();
    least_ns.map_or(io_timeout_ns, |ns| ns.min(io_timeout_ns))
}

impl HostEngine {
    /// How well a path is on this core.
    pub fn path_health(&self, volume: u16, path: policy::PathIndex) -> PathHealth {
        let number = self.number(volume, path);
        number.map_or_else(PathHealth::default, |_| {
            let head = &self.volumes[usize::from(volume)].head;
            PathHealth {
                probation: head.probation(path),
                tally: head.tally(path),
            }
        })
    }

    /// When a path is to be looked at, or probed.
    pub(super) fn probation_timeout(&self, path: &Path) -> Option<u64> {
        if path.phase != Phase::Live {
            return None;
        }
        let head = &self.volumes[usize::from(path.volume)].head;
        let due_ns = match head.probation(path.index) {
            Some(_) => head.probe_due_ns(path.index),
            None => {
                let issued_ns = self.oldest_timed(path)?;
                head.silent_ns(path.index, issued_ns).max(path.look_ns)
            }
        };
        Some(due_ns).filter(|&at_ns| at_ns < u64::MAX)
    }

    /// When the oldest I/O of a path was given to its queue, of those whose time says something.
    fn oldest_timed(&self, path: &Path) -> Option<u64> {
        // Those that wait for room were not given to it.
        let issued = |&index: &u32| path.lane.waiting() != Some(index);
        let next = |&index: &u32| self.slots.next(index).filter(issued);
        let oldest = core::iter::successors(path.lane.oldest_issued(), next).take(LOOKED_AT);
        let mut slots = oldest.map(|index| self.slots.get(index));
        let timed = slots.find(|slot| is_timed(slot) && !slot.course.probe);
        timed.map(|slot| slot.issued_ns)
    }

    /// Looks at the paths whose time it is, after this turn's ends of I/O.
    #[cold]
    pub(super) fn watch_health(&mut self, now_ns: u64) {
        self.look_due = false;
        for number in 0..self.paths.len() {
            let path = &self.paths[number];
            if self
                .probation_timeout(path)
                .is_none_or(|at_ns| at_ns > now_ns)
            {
                continue;
            }
            let (volume, index) = (usize::from(path.volume), path.index);
            if self.volumes[volume].head.probation(index).is_some() {
                self.probe(number, now_ns);
            } else if let Some(issued_ns) = self.oldest_timed(path) {
                // Whoever is silent together with all others is looked at again.
                self.paths[number].look_ns = now_ns.saturating_add(self.unseen_ns_max / 4);
                if let Some(why) = self.volumes[volume].head.look(index, issued_ns, now_ns) {
                    self.on_probation(number, why, now_ns);
                }
            }
        }
        self.wake_by(now_ns);
    }

    /// The head has put a path on probation.
    #[cold]
    pub(super) fn on_probation(&mut self, number: usize, why: Why, now_ns: u64) {
        let core = self.settings.core;
        let path = &self.paths[number];
        let (volume, index) = (path.volume, path.index);
        let it = &self.volumes[usize::from(volume)];
        let line = report::line(&it.name, path, core, report::on_probation(&path.kind, why));
        self.events.push_back(HostEvent::Warning(volume, line));
        let sits_out = it.head.sits_out(index);
        if self.settings.cores > 1 && path.address().is_some() {
            let path = index;
            let news = PathNews::Sick { volume, path, why };
            self.events.push_back(match core {
                0 => HostEvent::Publish(news),
                _ => HostEvent::Report(news),
            });
        }
        self.wake_by(now_ns);
        if sits_out {
            self.move_waiting(number, now_ns);
        }
    }

    /// Path `number` has done an I/O: those that stayed busy with it are no better than ones that
    /// fail.
    pub(super) fn blame(&mut self, number: usize, index: u32, now_ns: u64) {
        let done = self.paths[number].index;
        let course = &mut self.slots.get_mut(index).course;
        let refused = core::mem::take(&mut course.refused) & !(1 << done.0);
        if refused == 0 {
            return;
        }
        let volume = self.paths[number].volume;
        for path in self.indexes(volume).filter(|it| refused & 1 << it.0 != 0) {
            let Some(other) = self.number(volume, path) else {
                continue;
            };
            if let Some(why) = self.head(other).refused(path, now_ns) {
                self.on_probation(other, why, now_ns);
            }
        }
    }

    /// What a path has not yet begun needn't wait for it, once each; but a flush, which is of this
    /// very controller (T13).
    pub(super) fn move_waiting(&mut self, number: usize, now_ns: u64) {
        let first = self.paths[number].lane.waiting();
        let waiting = core::iter::successors(first, |&index| self.slots.next(index));
        let movable = waiting.filter(|&index| self.slots.get(index).io.op != IoOp::Flush);
        let tokens: Vec<u32> = movable.map(|index| self.slots.token(index)).collect();
        let path = self.paths[number].index;
        for token in tokens {
            let there = self.slots.find(token);
            if let Some(index) = there.filter(|&index| self.slots.get(index).path == path) {
                self.slots.get_mut(index).course.unanswered = false;
                self.finish(number, index, Outcome::PathError, false, now_ns);
            }
        }
    }

    /// Another core has put a path on probation.
    pub(super) fn sick_elsewhere(&mut self, number: usize, why: Why, now_ns: u64) {
        let path = &self.paths[number];
        let (volume, index, live) = (path.volume, path.index, path.phase == Phase::Live);
        if !live {
            return;
        }
        match self.head(number).told(index, why, now_ns) {
            Some(why) => self.on_probation(number, why, now_ns),
            None if self.settings.core == 0 => {
                let path = index;
                let news = PathNews::Sick { volume, path, why };
                self.events.push_back(HostEvent::Publish(news));
            }
            None => {}
        }
    }

    /// Sends a probe.
    fn probe(&mut self, number: usize, now_ns: u64) {
        let path = &self.paths[number];
        let (volume, index) = (path.volume, path.index);
        let wanted = path.will == Will::Used && self.stop.is_none();
        let length = 1_u32 << self.paths[number].target.block_shift;
        let span = match wanted {
            true => self.scratch.take(length),
            false => None,
        };
        let io = span.map(|span| Io {
            volume,
            op: IoOp::Read,
            length,
            span,
            ..EMPTY
        });
        let slot = io.and_then(|io| self.slots.take_spare(&io, now_ns));
        self.head(number).probe(index, slot.is_some(), now_ns);
        let Some(slot) = slot else {
            span.into_iter()
                .for_each(|span| self.scratch.give_back(span));
            return;
        };
        let course = &mut self.slots.get_mut(slot).course;
        (course.probe, course.watched, course.helper) = (true, true, true);
        self.give(number, slot, index, now_ns);
    }

    /// A probe has ended, and nobody refers to its memory any more.
    #[cold]
    pub(super) fn probed(&mut self, number: usize, index: u32, outcome: Outcome, now_ns: u64) {
        let slot = self.slots.get(index);
        let (span, latency_ns) = (slot.io.span, now_ns.saturating_sub(slot.placed_ns));
        self.scratch.give_back(span);
        self.slots.free_spare(index);
        let path = &self.paths[number];
        let (volume, at) = (path.volume, path.index);
        let over = self.head(number).probed(at, outcome, latency_ns, now_ns);
        if let Some(took_ns) = over {
            let it = &self.volumes[usize::from(volume)];
            let path = &self.paths[number];
            let line = report::line(
                &it.name,
                path,
                self.settings.core,
                &report::well_again(took_ns),
            );
            self.events.push_back(HostEvent::Warning(volume, line));
            self.release(volume, now_ns);
        }
        self.wake_by(now_ns);
    }
}
