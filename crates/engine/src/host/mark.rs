//! Our own death is a lost path as well (T9): what a killed engine had sent may be executed after
//! its successor has begun to write.
//!
//! Before a controller's I/O queues are opened, core 0 asks its owner for a durable mark that holds
//! the controller's bound ([`HostEvent::Mark`]), and waits for [`HostControl::Marked`]; so no write
//! of any core goes out unmarked. The owner also compares the namespace with the one that the
//! volume is known to have: its answer names the namespace, and counts only for paths that show it.
//! Paths ask one after the other, in their order. An engine whose
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
use nvme::host::NamespaceInfo;
use volume::Namespace;

/// A controller that is known and not used yet.
pub(super) struct Unmarked {
    pub facts: Box<PathFacts>,
    /// [`HostEvent::Mark`] was told of it.
    asked: bool,
    /// Its namespace is not the volume's as things stand.
    barred: bool,
}

impl Unmarked {
    pub(super) fn new(facts: Box<PathFacts>) -> Self {
        Self {
            facts,
            asked: false,
            barred: false,
        }
    }

    /// Takes what it shows now. What was asked of another namespace holds no more.
    pub(super) fn show(&mut self, namespace: &NamespaceInfo) {
        let before = self.namespace();
        self.facts.namespace.clone_from(namespace);
        let same = before.is_same(&self.namespace());
        self.asked &= same;
        self.barred &= same;
    }

    fn namespace(&self) -> Namespace {
        namespace(&self.facts.controller, &self.facts.namespace)
    }
}

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

    /// Core 0: a controller is known; its queues are opened when it is its turn and once its bound
    /// is marked.
    pub(super) fn find_or_ask(&mut self, number: usize, mut it: Unmarked, now_ns: u64) {
        if self.awaits_turn(number) {
            self.paths[number].unmarked = Some(it);
            return;
        }
        let Some(bound_ns) = self.unmarked_ns(&it) else {
            return self.found(it.facts, now_ns);
        };
        if !it.asked {
            it.asked = true;
            let path = &self.paths[number];
            let namespace = Box::new(it.namespace());
            let mark = HostEvent::Mark(path.volume, path.index, bound_ns, namespace);
            self.events.push_back(mark);
        }
        self.paths[number].unmarked = Some(it);
    }

    /// The bound that must be marked before a controller is used, if it isn't yet for the namespace
    /// that it shows.
    fn unmarked_ns(&self, waits: &Unmarked) -> Option<u64> {
        let facts = &waits.facts;
        let it = &self.volumes[usize::from(facts.volume)];
        let wanted = it.recovery.marks && it.recovery.enabled;
        let bound_ns = self.bound_of(facts.volume, &facts.controller);
        let bound_ns = bound_ns.unwrap_or(u64::MAX);
        let covers = |marked: &Namespace| marked.is_same(&waits.namespace());
        let covered = bound_ns <= it.marked_ns && it.marked_as.as_deref().is_some_and(covers);
        (wanted && !covered).then_some(bound_ns)
    }

    /// Whether a path must wait for those before it: at the start the first of a volume's paths
    /// that can be had says what it is (T31), not the one that was the fastest this time. The
    /// volume isn't ready before all were tried anyway.
    fn awaits_turn(&self, number: usize) -> bool {
        let path = &self.paths[number];
        let undecided = |it: &Path| {
            let early = matches!(it.phase, Phase::Unknown | Phase::Learning);
            let barred = it.unmarked.as_ref().is_some_and(|it| it.barred);
            it.index < path.index && early && !it.comeback.tried && !barred
        };
        let ready = self.volumes[usize::from(path.volume)].ready.is_some();
        !ready && !path.comeback.tried && self.paths_of(path.volume).any(undecided)
    }

    /// Core 0: a path of a volume was found, is lost, or is marked: those behind it may have their
    /// turn.
    pub(super) fn take_turns(&mut self, volume: u16, now_ns: u64) {
        for path in self.indexes(volume) {
            if let Some(number) = self.number(volume, path) {
                self.find_marked(number, now_ns);
            }
        }
    }

    /// Core 0: a mark that holds this bound, for paths that show this namespace, is durable.
    pub(super) fn marked(
        &mut self,
        volume: u16,
        bound_ns: u64,
        namespace: Box<Namespace>,
        now_ns: u64,
    ) {
        let Some(it) = self.volumes.get_mut(usize::from(volume)) else {
            return;
        };
        it.marked_ns = it.marked_ns.max(bound_ns);
        it.marked_as = Some(namespace);
        self.take_turns(volume, now_ns);
    }

    /// Core 0: a namespace is not the volume's. The paths that show it are lost for this reason;
    /// without one they wait.
    pub(super) fn bar_namespace(
        &mut self,
        volume: u16,
        of: &Namespace,
        why: Option<&str>,
        now_ns: u64,
    ) {
        if usize::from(volume) >= self.volumes.len() {
            return;
        }
        for path in self.indexes(volume) {
            let Some(number) = self.number(volume, path) else {
                continue;
            };
            let path = &mut self.paths[number];
            let waits = path.unmarked.as_mut();
            let Some(it) = waits.filter(|it| it.asked && it.namespace().is_same(of)) else {
                continue;
            };
            it.barred = true;
            if why.is_some() {
                path.refused = true;
                self.lose(number, why, now_ns);
            }
        }
        self.take_turns(volume, now_ns);
    }

    /// What was put aside of a path is looked at again.
    fn find_marked(&mut self, number: usize, now_ns: u64) {
        let path = &mut self.paths[number];
        let waits = path.phase == Phase::Learning && path.is_open(Role::Admin);
        if let Some(it) = path.unmarked.take_if(|_| waits) {
            self.find_or_ask(number, it, now_ns);
        }
    }
}
