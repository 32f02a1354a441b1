//! Our own death is a lost path as well (T9): what a killed engine had sent may be executed after
//! its successor has begun to write.
//!
//! Before a controller's I/O queues are opened, core 0 asks its owner for a durable mark that holds
//! the controller's bound ([`HostEvent::Mark`]), and waits for [`HostControl::Marked`]; so no write
//! of any core goes out unmarked. The owner also compares the namespace with the one that the
//! volume is known to have, and does not answer while it is another one. An engine whose
//! predecessor left its mark holds changes of data, and what is read for a change of parts of
//! blocks, but no other reads, for the bound that it says, from its own start on. Its first flush
//! goes to every controller: each may have unflushed writes of the one before (T13). Changes with
//! [`Hints::past_gate`] don't wait: the records by which a mirror is taken over, which are safe by
//! their order and not by their time.
//!
//! # Limits
//! The mark is there from the first connection on, whether or not data are changed: an engine
//! that only reads and is killed makes its successor wait as well.
//!
//! [`HostControl::Marked`]: super::HostControl::Marked
//! [`Hints::past_gate`]: super::Hints::past_gate
use super::explain::Wait;
use super::path::{Path, Phase, Role};
use super::session::namespace;
use super::slots::Course;
use super::types::{HostEvent, PathFacts};
use super::volumes::Volume;
use super::{HostEngine, WriteFailover, report};
use alloc::boxed::Box;
use alloc::format;
use canary::Bug;

impl Volume {
    /// Whether controllers may have in their caches what an engine before this one acknowledged and
    /// did not flush (T13).
    pub(super) fn inherits(&self) -> bool {
        let unclean = self.recovery.unclean_stop_ns.is_some() || self.left_unflushed;
        self.recovery.enabled && unclean && !canary::has(Bug::FlushOfOneLife)
    }

    /// Whether a change of data waits for what the engine before this one had sent; counted where
    /// one goes past that.
    pub(super) fn gates(&mut self, course: &Course) -> bool {
        let shut = self.gate_ns > 0;
        self.totals.past_gate_total += u64::from(shut && course.past_gate);
        shut && !course.past_gate
    }
}

impl HostEngine {
    /// A mirror is ours. It had another owner, here or on another host, that didn't stop in order
    /// if it is `unclean`: controllers of its legs may have in their caches what that one
    /// acknowledged and did not flush, though no mark of this host says so; also those whose paths
    /// have left since we began.
    pub fn inherit(&mut self, volume: u16, unclean: bool) {
        let Some(it) = self.volumes.get_mut(usize::from(volume)) else {
            return;
        };
        it.is_claimed = true;
        let early = it.left_early.take();
        if !unclean {
            return;
        }
        it.left_unflushed = true;
        let inherits = it.inherits();
        if inherits {
            it.lost_cache = it.lost_cache.take().or(early);
        }
        for path in self.indexes(volume) {
            if let Some(number) = self.number(volume, path) {
                self.paths[number].inherited |= inherits;
            }
        }
    }

    /// A volume begins: after an unclean stop its changes of data wait; what the engine before has
    /// lost, and told nobody, the first flush tells.
    pub(super) fn shut_gate(&mut self, volume: u16, now_ns: u64) {
        let it = &mut self.volumes[usize::from(volume)];
        let recovery = it.recovery;
        if recovery.untold_loss && !canary::has(Bug::FlushOfOneLife) {
            let line = format!("{}: {}", it.name, report::LOST_BEFORE);
            self.loses(volume, line);
        }
        let it = &mut self.volumes[usize::from(volume)];
        let fenced = recovery.write_failover == WriteFailover::Fenced;
        let bound_ns = recovery.unclean_stop_ns.unwrap_or_default();
        let marked = bound_ns > 0 && !canary::has(Bug::IgnoredMark);
        if recovery.enabled && fenced && marked {
            it.gate_ns = now_ns.saturating_add(bound_ns);
            let gate_ns = it.gate_ns;
            self.wake_by(gate_ns);
        }
    }

    /// A change of data waits until what the engine before this one had sent is over.
    pub(super) fn put_at_gate(&mut self, index: u32) {
        let slot = self.slots.get_mut(index);
        let it = &mut self.volumes[usize::from(slot.io.volume)];
        slot.until_ns = it.gate_ns;
        it.totals.held_total += 1;
        it.totals.gated_total += 1;
        let (gate_ns, at_ns) = (it.gate_ns, slot.placed_ns);
        self.slots.push(&mut it.gate, index, false);
        self.explain_wait(index, Wait::UncleanStop(gate_ns), at_ns);
    }

    /// Lets go what waits for a time that has come.
    pub(super) fn open_gates(&mut self, now_ns: u64) {
        for volume in 0..self.volumes.len() {
            let it = &mut self.volumes[volume];
            if it.gate_ns == 0 || it.gate_ns > now_ns {
                continue;
            }
            it.gate_ns = 0;
            while let Some(index) = self.volumes[volume].gate.front() {
                let it = &mut self.volumes[volume];
                self.slots.unlink(&mut it.gate, index);
                let held_ns = now_ns.saturating_sub(self.slots.get(index).placed_ns);
                it.totals.held_ns_max = it.totals.held_ns_max.max(held_ns);
                it.totals.bounded_total += 1;
                self.let_go(index, now_ns);
            }
        }
    }

    /// Core 0: a controller is known; its queues are opened once its bound is marked, and when it
    /// is its turn.
    pub(super) fn mark_then_find(&mut self, facts: Box<PathFacts>, now_ns: u64) {
        let Some(number) = self.number(facts.volume, facts.path) else {
            return;
        };
        match self.unmarked_ns(&facts) {
            None if !self.awaits_turn(number) => self.found(facts, now_ns),
            unmarked_ns => {
                let volume = facts.volume;
                let namespace = namespace(&facts.controller, &facts.namespace);
                self.paths[number].unmarked = Some(facts);
                let namespace = Box::new(namespace);
                let mark = |bound_ns| HostEvent::Mark(volume, bound_ns, namespace);
                self.events.extend(unmarked_ns.map(mark));
            }
        }
    }

    /// The bound that must be marked before a controller is used, if it isn't yet.
    fn unmarked_ns(&self, facts: &PathFacts) -> Option<u64> {
        let it = &self.volumes[usize::from(facts.volume)];
        let wanted = it.recovery.marks && it.recovery.enabled;
        let bound_ns = self.bound_of(facts.volume, &facts.controller);
        let bound_ns = bound_ns.unwrap_or(u64::MAX);
        (wanted && bound_ns > it.marked_ns).then_some(bound_ns)
    }

    /// Whether a path must wait for those before it: at the start the first of a volume's paths
    /// that can be had says what it is (T31), not the one that was the fastest this time. The
    /// volume isn't ready before all were tried anyway.
    fn awaits_turn(&self, number: usize) -> bool {
        let path = &self.paths[number];
        let undecided = |it: &Path| {
            let early = matches!(it.phase, Phase::Unknown | Phase::Learning);
            it.index < path.index && early && !it.comeback.tried
        };
        let ready = self.volumes[usize::from(path.volume)].ready.is_some();
        !ready && !path.comeback.tried && self.paths_of(path.volume).any(undecided)
    }

    /// Core 0: a path of a volume was found, or is lost: those behind it may have their turn.
    pub(super) fn take_turns(&mut self, volume: u16, now_ns: u64) {
        for path in self.indexes(volume) {
            let Some(number) = self.number(volume, path) else {
                continue;
            };
            let facts = self.paths[number].unmarked.as_ref();
            if facts.is_some_and(|facts| self.unmarked_ns(facts).is_none()) {
                self.find_marked(number, now_ns);
            }
        }
    }

    /// Core 0: a mark that holds this bound is durable.
    pub(super) fn marked(&mut self, volume: u16, bound_ns: u64, now_ns: u64) {
        let Some(it) = self.volumes.get_mut(usize::from(volume)) else {
            return;
        };
        it.marked_ns = it.marked_ns.max(bound_ns);
        for number in 0..self.paths.len() {
            if self.paths[number].volume == volume {
                self.find_marked(number, now_ns);
            }
        }
    }

    /// What was put aside of a path is looked at again.
    fn find_marked(&mut self, number: usize, now_ns: u64) {
        let path = &mut self.paths[number];
        let waits = path.phase == Phase::Learning && path.is_open(Role::Admin);
        if let Some(facts) = path.unmarked.take_if(|_| waits) {
            self.mark_then_find(facts, now_ns);
        }
    }
}
