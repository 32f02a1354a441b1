//! The write fence of a volume: which changes of data may not be executed now, why, and until when.
//!
//! * **Held**, per path: a lost controller may still execute the change (T9). [`Evidence`] is what
//!   is known of that controller.
//! * **Gated**: the engine before this one stopped uncleanly, and what it had sent may still be
//!   executed.
//! * **Blocked**: the change overlaps an earlier one that is or was held, is in flight on a lost
//!   path, is cut into pieces, or is itself gated or blocked.
//! * **Released**: no longer blocked, and about to be placed.
//!
//! Not here: the reset that proves something (`proof`), the time from which a bound counts
//! (`reconnect`), the marks that tell the next engine (`mark`), and what becomes of a change that
//! may go on (`wait`).
//!
//! # Contract
//! Reads don't wait: what they overlap is not acknowledged, so either content is right. But a read
//! whose bytes are to be written back is gated: what the engine before this one sent might come
//! between, be read, and then be undone where no client wrote. (Writes of this engine can't: the
//! caller lets no other change of these bytes be under way, a held one included.)
use super::explain::Wait;
use super::io_table::{AttemptEnd, IoState, IoTable, Kind, Lane, Slot};
use super::recovery::{HoldReason, HoldStats, Recovery};
use super::types::{Io, IoOp};
use alloc::vec::Vec;
use block::Range;
use block::order::{ChangeOrder, Ticket as Place};
use canary::Bug;
use nvme::host::ControllerInfo;
use policy::PathIndex;

/// The bytes that an I/O may change.
pub(super) fn range(io: &Io) -> Option<Range> {
    match io.op {
        IoOp::Read | IoOp::Flush => None,
        IoOp::Write { .. } | IoOp::WriteZeroes { .. } | IoOp::Deallocate => {
            Some(Range::new(io.offset, io.length.into()))
        }
    }
}

/// How long a lost controller may execute what it had, from the end of its last connection on, ns.
/// `None`: it has no keep-alive timer, so nothing bounds it.
pub(super) fn bound_ns(
    recovery: &Recovery,
    kato_ms: u32,
    controller: &ControllerInfo,
) -> Option<u64> {
    let grain_ms = u32::from(controller.kas) * 100;
    if grain_ms == 0 {
        return None;
    }
    // The controller may round the time-out up to its granularity (Base 2.0, 3.9).
    let kato_ms = kato_ms.next_multiple_of(grain_ms);
    let reported_ns = u64::from(controller.cqt_ms) * 1_000_000;
    // A user who sets more than the default knows disks that take longer than a target may think.
    let is_longer = recovery.quiesce_ns > Recovery::QUIESCE_NS;
    let cqt_ns = match reported_ns {
        1.. if is_longer => reported_ns.max(recovery.quiesce_ns),
        _ => reported_ns,
    };
    let kato_ns = u64::from(kato_ms) * 1_000_000;
    let traffic = controller.traffic_keep_alive;
    multipath::bound_ns(kato_ns, traffic, cqt_ns, recovery.quiesce_ns)
}

/// Knowledge of the controller of a path's present association.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Evidence {
    /// Nothing: once it is lost, it may execute what it had until the bound is over.
    #[default]
    None,
    /// It answered that it was reset, but reports no time that it takes to quiesce: it is believed
    /// from then on, ns.
    Quiescing(u64),
    /// It was reset: it executes nothing that it had.
    Proved,
}

/// The controller of one path, as far as the fence is concerned.
#[derive(Debug)]
struct Controller {
    /// Number of its present association. A proof holds for one association only.
    association: u32,
    evidence: Evidence,
    /// Core 0 resets it, and expects the answer by then, ns; until its admin connection is over.
    resetting_ns: Option<u64>,
    /// Changes that one of its lost associations may still execute, oldest hold first.
    held: Lane,
}

/// State of a held change.
struct Hold {
    until_ns: u64,
    association: u32,
    is_proof: bool,
}

impl Hold {
    /// # Panics
    /// If the change is not held.
    fn of(slot: &Slot) -> Self {
        match slot.state() {
            IoState::Held {
                until_ns,
                association,
                is_proof,
            } => Self {
                until_ns,
                association,
                is_proof,
            },
            other => panic!("a change among the held ones is {other:?}"),
        }
    }
}

/// Counters for [`HoldStats`], which has their meaning.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    held: u64,
    proved: u64,
    bounded: u64,
    gated: u64,
    past_gate: u64,
    held_ns_max: u64,
}

/// The fence of one volume on this core. See the module.
#[derive(Debug)]
pub(super) struct WriteFence {
    /// Overlap order of all changes that others may have to wait for, and of those that wait.
    order: ChangeOrder,
    /// By path index.
    controllers: Vec<Controller>,
    gated: Lane,
    /// End of what the engine before this one may have under way, ns; 0: it is over.
    gated_until_ns: u64,
    blocked: Lane,
    released: Lane,
    /// A caller further up the stack places the released changes.
    is_releasing: bool,
    totals: Totals,
    /// A volume that does not wait: when it lost a path last under changes without an answer, ns.
    unfenced_loss_ns: Option<u64>,
}

impl WriteFence {
    /// Holds nothing. Room for so many changes before it takes more memory.
    pub(super) fn new(changes: usize) -> Self {
        Self {
            order: ChangeOrder::new(changes),
            controllers: Vec::new(),
            gated: Lane::EMPTY,
            gated_until_ns: 0,
            blocked: Lane::EMPTY,
            released: Lane::EMPTY,
            is_releasing: false,
            totals: Totals::default(),
            unfenced_loss_ns: None,
        }
    }

    /// Whether a new change need not be admitted: no change would wait.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.order.is_empty() && self.gated_until_ns == 0
    }

    // Admission.

    /// Decides whether a new I/O waits, and registers it if so. Returns what it waits for. `None`:
    /// it may be executed now. `for_change`: a read whose bytes are to be written back.
    pub(super) fn admit(
        &mut self,
        ios: &mut IoTable,
        index: u32,
        for_change: bool,
    ) -> Option<Wait> {
        let slot = ios.get(index);
        let Some(range) = range(&slot.io) else {
            let waits = for_change && self.gated_until_ns > 0 && !canary::has(Bug::EdgeBeforeGate);
            return waits.then(|| self.gate(ios, index));
        };
        let overlaps = self.order.overlaps(0, range) && !canary::has(Bug::NoBehind);
        if !overlaps && !self.gates(slot) {
            return None;
        }
        self.register(ios, index, range);
        Some(match overlaps {
            true => self.block(ios, index),
            false => self.gate(ios, index),
        })
    }

    /// Registers a change that is about to be cut, so that later ones wait for all of it. Returns
    /// what it waits for itself. `None`: it may be executed now, is no change, or is registered.
    pub(super) fn admit_whole(&mut self, ios: &mut IoTable, index: u32) -> Option<Wait> {
        let slot = ios.get(index);
        let range = range(&slot.io).filter(|_| slot.fence.is_none())?;
        let gated = self.gates(slot);
        if !self.register(ios, index, range) {
            return Some(self.block(ios, index));
        }
        gated.then(|| self.gate(ios, index))
    }

    /// Registers the changes that are in flight on a lost path: later ones that overlap them wait,
    /// even while the transport has not yet returned the commands.
    pub(super) fn admit_in_flight(&mut self, ios: &mut IoTable, lane: &Lane) {
        let mut next = lane.front();
        while let Some(index) = next {
            next = ios.next(index);
            self.register_own(ios, index);
        }
    }

    /// Whether a change that has to be repeated waits for an earlier one, behind which it was
    /// registered while both were in flight.
    pub(super) fn is_blocked(&self, slot: &Slot) -> bool {
        slot.fence.is_some_and(|place| !self.order.may_begin(place))
    }

    /// Puts a registered change among the blocked ones.
    pub(super) fn block(&mut self, ios: &mut IoTable, index: u32) -> Wait {
        ios.push(&mut self.blocked, index, IoState::Blocked);
        Wait::Behind
    }

    /// Returns whether the change may be executed as far as others are concerned.
    fn register(&mut self, ios: &mut IoTable, index: u32, range: Range) -> bool {
        let (place, is_first) = self.order.admit(index.into(), 0, range);
        let slot = ios.get_mut(index);
        slot.fence = Some(place);
        slot.watched = true;
        is_first
    }

    /// Registers a change unless it is already. A piece needs no entry: the whole has one.
    fn register_own(&mut self, ios: &mut IoTable, index: u32) {
        let slot = ios.get(index);
        let own = slot.fence.is_none() && slot.kind != Kind::Helper;
        if let Some(range) = range(&slot.io).filter(|_| own) {
            self.register(ios, index, range);
        }
    }

    /// Ends a registered change, and releases those that waited for it alone. Returns whether the
    /// caller has to place what [`Self::next_released`] returns; else a caller further up the stack
    /// does: one that ends at once must not be placed from within another, and so on.
    pub(super) fn end(&mut self, ios: &mut IoTable, place: Place) -> bool {
        // Also of one that ended well on its lost path, before its turn to be repeated.
        self.order.withdraw(place);
        while let Some(begun) = self.order.poll_begun() {
            let index = begun.owner as u32;
            // Else it was registered while in flight: it goes on where it is.
            if ios.get(index).state() == IoState::Blocked {
                ios.unlink(&mut self.blocked, index);
                ios.push(&mut self.released, index, IoState::Placing);
            }
        }
        !core::mem::replace(&mut self.is_releasing, true)
    }

    /// The next change to place.
    pub(super) fn next_released(&mut self, ios: &mut IoTable) -> Option<u32> {
        let index = self.released.front();
        match index {
            Some(index) => ios.unlink(&mut self.released, index),
            None => self.is_releasing = false,
        }
        index
    }

    /// Takes a change out of the order that has failed together with all that wait for it: none is
    /// released.
    pub(super) fn withdraw(&mut self, place: Place) {
        self.order.withdraw(place);
    }

    // Lost controllers.

    /// Makes room for a path, perhaps in the place of one that is gone.
    pub(super) fn add_path(&mut self, path: PathIndex) {
        let count = usize::from(path.0) + 1;
        if self.controllers.len() < count {
            self.controllers.resize_with(count, || Controller {
                association: 0,
                evidence: Evidence::None,
                resetting_ns: None,
                held: Lane::EMPTY,
            });
        }
        let of = self.of_mut(path);
        assert!(
            of.held.is_empty(),
            "changes are held for a path that is gone"
        );
        (of.evidence, of.resetting_ns) = (Evidence::None, None);
    }

    fn of(&self, path: PathIndex) -> &Controller {
        &self.controllers[usize::from(path.0)]
    }

    fn of_mut(&mut self, path: PathIndex) -> &mut Controller {
        &mut self.controllers[usize::from(path.0)]
    }

    /// A path is connected anew: nothing is known of what its new association may do. A write that
    /// earlier ones may still execute stays held.
    pub(super) fn begin_association(&mut self, path: PathIndex) {
        let of = self.of_mut(path);
        of.association = of.association.wrapping_add(1);
        of.evidence = Evidence::None;
    }

    /// A path is being reset, and must answer by `until_ns`; `None`: the reset is over. Returns
    /// whether that is news.
    pub(super) fn set_resetting(&mut self, path: PathIndex, until_ns: Option<u64>) -> bool {
        let resetting_ns = &mut self.of_mut(path).resetting_ns;
        core::mem::replace(resetting_ns, until_ns) != until_ns
    }

    /// Whether the controller of a path is being reset.
    pub(super) fn is_resetting(&self, path: PathIndex) -> bool {
        self.of(path).resetting_ns.is_some()
    }

    /// Whether the controller of a path was reset, and so executes nothing that it had.
    pub(super) fn is_proved(&self, path: PathIndex) -> bool {
        self.of(path).evidence == Evidence::Proved
    }

    /// Holds a change that the lost controller of `path` may still execute. Returns until when,
    /// ns; `u64::MAX`: that is not known yet.
    pub(super) fn hold(
        &mut self,
        ios: &mut IoTable,
        path: PathIndex,
        index: u32,
        now_ns: u64,
    ) -> u64 {
        self.register_own(ios, index);
        self.totals.held += 1;
        let of = &mut self.controllers[usize::from(path.0)];
        let quiet_ns = match of.evidence {
            Evidence::Quiescing(until_ns) => Some(until_ns),
            Evidence::None => None,
            Evidence::Proved => unreachable!("a reset controller executes nothing"),
        };
        let until_ns = quiet_ns.unwrap_or(u64::MAX);
        let state = IoState::Held {
            until_ns,
            association: of.association,
            is_proof: quiet_ns.is_some(),
        };
        ios.get_mut(index).placed_ns = now_ns;
        ios.push(&mut of.held, index, state);
        until_ns
    }

    /// The bound of the present association counts: what it holds is over at `until_ns`, at the
    /// latest. Returns whether anything is held.
    pub(super) fn bound(&mut self, ios: &mut IoTable, path: PathIndex, until_ns: u64) -> bool {
        self.limit(ios, path, until_ns, false)
    }

    /// The controller of a path answered that it was reset, and is believed from `until_ns` on.
    /// Returns whether anything is held.
    pub(super) fn believe_from(
        &mut self,
        ios: &mut IoTable,
        path: PathIndex,
        until_ns: u64,
    ) -> bool {
        self.of_mut(path).evidence = Evidence::Quiescing(until_ns);
        self.limit(ios, path, until_ns, true)
    }

    /// The controller of a path was reset: what its association holds is due now.
    pub(super) fn prove(&mut self, ios: &mut IoTable, path: PathIndex, now_ns: u64) {
        self.of_mut(path).evidence = Evidence::Proved;
        self.limit(ios, path, now_ns, true);
    }

    /// The holds of the present association of a path are over at `until_ns`, at the latest, by
    /// proof or by the bound. Holds of an earlier one have their own time, or none.
    fn limit(&mut self, ios: &mut IoTable, path: PathIndex, until_ns: u64, is_proof: bool) -> bool {
        let of = self.of(path);
        let mut next = of.held.front();
        while let Some(index) = next {
            next = ios.next(index);
            let held = Hold::of(ios.get(index));
            if held.association == of.association && until_ns < held.until_ns {
                let state = IoState::Held {
                    until_ns,
                    association: of.association,
                    is_proof,
                };
                ios.set_state(index, state);
            }
        }
        !of.held.is_empty()
    }

    /// The first change held for a path, in the order of holds; the others follow it in its lane.
    pub(super) fn first_held(&self, path: PathIndex) -> Option<u32> {
        self.of(path).held.front()
    }

    /// Releases a held change whose time has come.
    pub(super) fn release(&mut self, ios: &mut IoTable, path: PathIndex, index: u32, now_ns: u64) {
        let held = Hold::of(ios.get(index));
        assert!(held.until_ns <= now_ns, "a held change is released early");
        ios.unlink(&mut self.of_mut(path).held, index);
        let slot = ios.get_mut(index);
        slot.history.attempt = AttemptEnd::Fenced;
        let held_ns = now_ns.saturating_sub(slot.placed_ns);
        self.totals.held_ns_max = self.totals.held_ns_max.max(held_ns);
        let total = match held.is_proof {
            true => &mut self.totals.proved,
            false => &mut self.totals.bounded,
        };
        *total += 1;
    }

    /// A change without an answer is repeated, or fails, while the lost controller may execute it:
    /// the volume does not wait.
    pub(super) fn note_unfenced_loss(&mut self, now_ns: u64) {
        self.unfenced_loss_ns = Some(now_ns);
    }

    /// When that was last, ns.
    pub(super) fn unfenced_loss_ns(&self) -> Option<u64> {
        self.unfenced_loss_ns
    }

    // The engine before this one.

    /// Changes wait until `until_ns` for what the engine before this one may have under way.
    pub(super) fn gate_until(&mut self, until_ns: u64) {
        self.gated_until_ns = until_ns;
    }

    /// Whether the time until which changes are gated has come; they are open from then on.
    pub(super) fn open_gate(&mut self, now_ns: u64) -> bool {
        let is_over = (1..=now_ns).contains(&self.gated_until_ns);
        if is_over {
            self.gated_until_ns = 0;
        }
        is_over
    }

    /// The next gated change to place, once the gate is open.
    pub(super) fn next_gated(&mut self, ios: &mut IoTable, now_ns: u64) -> Option<u32> {
        let index = self.gated.front()?;
        ios.unlink(&mut self.gated, index);
        ios.set_state(index, IoState::Placing);
        let held_ns = now_ns.saturating_sub(ios.get(index).placed_ns);
        self.totals.held_ns_max = self.totals.held_ns_max.max(held_ns);
        self.totals.bounded += 1;
        Some(index)
    }

    /// Whether a change waits for what the engine before this one had sent; counts those that don't
    /// though the others do.
    fn gates(&mut self, slot: &Slot) -> bool {
        let is_shut = self.gated_until_ns > 0;
        let passes = slot.hints.past_gate;
        self.totals.past_gate += u64::from(is_shut && passes);
        is_shut && !passes
    }

    fn gate(&mut self, ios: &mut IoTable, index: u32) -> Wait {
        self.totals.held += 1;
        self.totals.gated += 1;
        ios.push(&mut self.gated, index, IoState::Gated);
        Wait::UncleanStop(self.gated_until_ns)
    }

    // All of them.

    /// When the first held or gated change is due, ns; `None`: that is not known of any.
    pub(super) fn timeout(&self, ios: &IoTable) -> Option<u64> {
        let held = self.controllers.iter().flat_map(|of| ios.of(&of.held));
        let gate = Some(self.gated_until_ns).filter(|&until_ns| until_ns > 0);
        let first_ns = held.map(|slot| Hold::of(slot).until_ns).chain(gate).min();
        first_ns.filter(|&at_ns| at_ns < u64::MAX)
    }

    /// Takes a held change of a path out, whether or not it is due: the engine stops.
    pub(super) fn abandon_held(&mut self, ios: &mut IoTable, path: PathIndex) -> Option<u32> {
        let held = &mut self.of_mut(path).held;
        let index = held.front()?;
        ios.unlink(held, index);
        Some(index)
    }

    /// Takes a blocked or gated change out: it fails, and with it all that are blocked.
    pub(super) fn abandon_waiting(&mut self, ios: &mut IoTable) -> Option<u32> {
        for lane in [&mut self.blocked, &mut self.gated] {
            if let Some(index) = lane.front() {
                ios.unlink(lane, index);
                return Some(index);
            }
        }
        None
    }

    /// Fills in what waits here, and why. `is_bounded`: whether a bound of a path's controller is
    /// known.
    pub(super) fn stats(
        &self,
        ios: &IoTable,
        others: HoldStats,
        is_bounded: impl Fn(PathIndex) -> bool,
    ) -> HoldStats {
        let held = || {
            (0..)
                .map(PathIndex)
                .zip(&self.controllers)
                .flat_map(|(path, of)| {
                    let ios = ios.of(&of.held);
                    ios.map(move |slot| (path, slot))
                })
        };
        let gated = || ios.of(&self.gated);
        let oldest_held = held().min_by_key(|(_, slot)| slot.started_ns);
        let gated_since_ns = gated().map(|slot| slot.started_ns).min();
        let held_since_ns = oldest_held.map(|(_, slot)| slot.started_ns);
        // Of two that are as old, the held one.
        let reason = match (oldest_held, gated_since_ns) {
            (Some((path, slot)), since_ns) if since_ns.is_none_or(|ns| slot.started_ns <= ns) => {
                Some(self.reason(path, slot, is_bounded))
            }
            (_, Some(_)) => Some(HoldReason::UncleanStop(self.gated_until_ns)),
            (_, None) => None,
        };
        HoldStats {
            held: (held().count() + gated().count()) as u32,
            held_since_ns: held_since_ns.into_iter().chain(gated_since_ns).min(),
            reason,
            gated: gated().count() as u32,
            gated_since_ns,
            gate_until_ns: Some(self.gated_until_ns).filter(|&until_ns| until_ns > 0),
            behind: ios.of(&self.blocked).count() as u32,
            held_total: self.totals.held,
            proved_total: self.totals.proved,
            bounded_total: self.totals.bounded,
            gated_total: self.totals.gated,
            past_gate_total: self.totals.past_gate,
            held_ns_max: self.totals.held_ns_max,
            ..others
        }
    }

    /// Why a change is held for a path.
    fn reason(
        &self,
        path: PathIndex,
        slot: &Slot,
        is_bounded: impl Fn(PathIndex) -> bool,
    ) -> HoldReason {
        let held = Hold::of(slot);
        match self.of(path).resetting_ns {
            _ if held.is_proof => HoldReason::Quiescing(held.until_ns),
            _ if held.until_ns < u64::MAX => HoldReason::Until(held.until_ns),
            Some(until_ns) => HoldReason::Resetting(until_ns),
            None if is_bounded(path) => HoldReason::Closing,
            None => HoldReason::Unbounded,
        }
    }
}

#[cfg(test)]
mod tests;
