//! Legs that are added to a mirror that runs, and legs that are removed from it.
//!
//! # Contract
//! A leg that is added is a volume of the host that is ready, with nothing on it that is needed; it
//! is rebuilt at once. It may take the place of another one, which is removed when it is in sync.
//! The superblocks of a removed leg are overwritten, so that no mirror has it; then it is not
//! reported any more, and its volume may be removed.
//!
//! # Limits
//! A leg that can only be read is refused, and one with `write_failover = "immediate"` where the
//! others are under a lease. An ability that it lacks is not used on the others any more.
use super::device::{Context, MirrorDevice, Phase};
use super::dispatch::Running;
use super::leg::{Absence, LegDevice, LegReturn, Seat};
use super::messages;
use super::names::slot_of;
use super::sizes::Extent;
use super::table::{Entry, Table, Task};
use super::types::{NewLeg, Pending};
use crate::devices::BackEnds;
use crate::host::{HostEvent, IoOp};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use block::DeviceId;
use mirror::Label;
use mirror::assembly::Wishes;
use mirror::copies::{Chosen, NoLeg};
use mirror::layout::{COPIES_AT, Place};
use mirror::superblock::SUPERBLOCK_BYTES;
use multipath::Outcome;

/// Bytes of a superblock, as spans count.
const BLOCK: u32 = SUPERBLOCK_BYTES as u32;

/// Why a leg from which nothing can be taken back is none of a mirror that another host may take.
const IMMEDIATE: &str = "it has write_failover = \"immediate\": nothing could be taken back from \
                         it when another host takes the mirror over; give it \"fenced\" (or start \
                         the mirror with that leg, then nothing is taken back from any)";

impl MirrorDevice {
    /// Checks that a leg may be added. Returns for how long it may execute late writes, ms.
    fn may_be_added(&self, new: &NewLeg, below: BackEnds<'_>) -> Result<u32, String> {
        let Phase::Running(it) = &self.phase else {
            return Err("the mirror does not run".into());
        };
        let state = it.machine.superblock();
        if new.info.block_shift > state.geometry.block_shift {
            return Err(format!(
                "it has blocks of {} B, and the mirror's have {} B",
                1_u32 << new.info.block_shift,
                1_u32 << state.geometry.block_shift
            ));
        }
        let volume = new.config.volume;
        match below.limits(DeviceId(volume)) {
            None => return Err("it is not ready".into()),
            Some(limits) if limits.read_only => return Err("it can only be read".into()),
            Some(_) => {}
        }
        if it.machine.has_lease() && !below.host.is_fenced(volume) {
            return Err(IMMEDIATE.into());
        }
        self.bound_with(volume, "it", below.host)
    }

    /// Adds a leg. Returns its place among the legs. `given`: the table of requests, and the
    /// mirror's index in it.
    ///
    /// # Errors
    /// Why it is none, for people.
    pub(super) fn add(
        &mut self,
        new: &NewLeg,
        below: BackEnds<'_>,
        given: (&Table, u8),
        now_ns: u64,
    ) -> Result<u8, String> {
        let bound_ms = self.may_be_added(new, below)?;
        // The superblocks with which it becomes a leg have this bound.
        self.record_bound(bound_ms, now_ns);
        let unused = (0..self.legs.len()).find(|&at| self.is_vacant(at, given));
        let state = *self.expect_running().machine.superblock();
        let at = u8::try_from(unused.unwrap_or(self.legs.len()))
            .map_err(|_| "too many legs came and went: restart the engine")?;
        let place = Place {
            leg_bytes: new.info.bytes,
            ..state.place
        };
        let uri = new.config.uris.first().unwrap_or(&new.config.name);
        let label = Label::of_uri(uri);
        // Their superblocks are still being overwritten, or will be once they are known: in the
        // same slot the ends of these writes would be taken for the new leg's.
        let wiped = self.legs.iter().filter_map(|leg| match leg.seat {
            Seat::Wiping(_) => leg.slot,
            _ => Some(leg.leaves_with()?.0),
        });
        let wiped = wiped.collect();
        let it = self.expect_running();
        let slot = it.machine.add_leg(new.id, label, place, wiped, now_ns);
        let slot = slot.map_err(|error| error.to_string())?;
        it.places[usize::from(slot)] = Some(at);
        it.reads
            .set_leg(slot, new.config.distance, new.config.throughput);
        let mut leg = LegDevice {
            info: Some(new.info),
            slot: Some(slot),
            returns: LegReturn::new(Extent::of(new.info.bytes)),
            replaces: new.replaces,
            ..LegDevice::new(new.config.clone())
        };
        leg.superblocks.set_found(Ok(Chosen {
            superblock: state.on(slot, place),
            copy: 1,
            other: Ok(0),
        }));
        match self.legs.get_mut(usize::from(at)) {
            Some(there) => *there = leg,
            None => self.legs.push(leg),
        }
        // The number was maybe one of a leg that the user had taken out.
        self.keep_admin_offline(slot, false, now_ns);
        self.restack(below);
        self.needs_turn = true;
        Ok(at)
    }

    /// The leg of a slot is to be none of the mirror's.
    ///
    /// # Errors
    /// Why it stays, for people.
    pub(super) fn remove(&mut self, slot: u8, now_ns: u64) -> Result<(), String> {
        let Phase::Running(it) = &mut self.phase else {
            return Err("the mirror does not run".into());
        };
        messages::may_leave(slot, it.machine.last_copy_on(slot))?;
        let entry = it.machine.superblock().legs.get(usize::from(slot));
        let id = entry.and_then(|it| Some(it.as_ref()?.id));
        let absent = absent(it, &self.legs, slot).zip(id);
        it.machine
            .remove_leg(slot, now_ns)
            .map_err(|error| error.to_string())?;
        if let Some((at, id)) = absent {
            self.legs[at].set_seat(Seat::LeavesWith(slot, id));
        }
        self.needs_turn = true;
        self.unwiped &= !(1 << (slot & 15));
        Ok(())
    }

    /// Takes back an order whose caller has timed out. Returns whether nothing of it can be on a
    /// leg.
    pub(super) fn take_back(&mut self, pending: Pending, now_ns: u64) -> bool {
        let legs = self.legs.iter_mut();
        match (pending, &mut self.phase) {
            // Once the legs are being acquired its decision is being written.
            (Pending::Assemble, Phase::Starting(it)) if it.ownership.acquiring().is_some() => false,
            // One that was stopped meanwhile keeps nothing of it for the next start.
            (Pending::Assemble, phase @ (Phase::Starting(_) | Phase::Over(None))) => {
                if let Phase::Starting(it) = phase {
                    it.ownership.take_back_force();
                }
                self.config.wishes = Wishes::default();
                self.refusal.accepts_name = false;
                true
            }
            (Pending::Remove(slot), Phase::Running(it)) => {
                let taken = it.machine.take_back_removal(slot, now_ns);
                for leg in legs.filter(|_| taken) {
                    if leg.leaves_with().is_some_and(|it| it.0 == slot) {
                        leg.set_seat(Seat::Taken);
                    }
                    // It may have come meanwhile, when the machine did not want it.
                    if leg.slot == Some(slot) {
                        leg.returns.change_retry(|it| it.at_ns = now_ns);
                    }
                }
                self.needs_turn |= taken;
                taken
            }
            (Pending::Add(volume), Phase::Running(it)) => {
                let mut legs = legs.filter(|leg| !leg.is_gone() && leg.slot.is_some());
                let leg = legs.find(|leg| leg.config.volume == volume);
                let Some((slot, leg)) = leg.and_then(|leg| Some((leg.slot?, leg))) else {
                    return true; // it was never one
                };
                let taken = it.machine.take_back_addition(slot, now_ns);
                if taken {
                    it.places[usize::from(slot)] = None;
                    leg.free_seat();
                    (leg.slot, leg.replaces) = (None, None);
                    leg.superblocks.forget();
                }
                taken
            }
            (Pending::Grow, Phase::Running(it)) => it.machine.take_back_growth(now_ns),
            (_, Phase::Starting(_) | Phase::Running(_) | Phase::Over(_)) => false,
        }
    }

    /// Frees the place of a missing leg whose slot was removed. If the leg has come meanwhile, its
    /// superblocks are overwritten first.
    pub(super) fn settle_leaving(&mut self, at: usize, cx: &mut Context<'_>) {
        let Some((slot, id)) = self.legs[at].leaves_with() else {
            return; // it stays
        };
        // A read of the leg can end after the mirror has stopped; the next start finds the leg.
        let Some(it) = self.running() else { return };
        let is_ordered = it.machine.changing_legs().1.has(slot);
        let leg = &mut self.legs[at];
        if is_ordered || leg.superblocks.are_read() {
            return; // it is settled when both are over
        }
        match leg.superblocks.found() {
            None => leg.free_seat(),
            // Which one it is may never be known.
            Some(Err(NoLeg::Unreadable)) => {
                leg.free_seat();
                self.stays_marked(at, slot, Outcome::MediaError, cx);
            }
            Some(Ok(found)) if found.superblock.leg().is_some_and(|it| it.id == id) => {
                leg.slot = Some(slot);
                leg.returns.set_absence(Absence::None);
                self.wipe_superblocks(at, cx);
            }
            Some(_) => leg.set_seat(Seat::Taken),
        }
    }

    /// Frees the place of a configured volume that is no leg, so that it may be removed.
    ///
    /// # Errors
    /// It is one, or is just being looked at.
    pub(super) fn forget(&mut self, volume: u16) -> Result<(), String> {
        let mut legs = self.legs.iter_mut().filter(|leg| !leg.is_gone());
        let leg = legs.find(|leg| leg.config.volume == volume);
        match leg.filter(|leg| leg.slot.is_none() && !leg.superblocks.are_read()) {
            Some(leg) => {
                leg.free_seat();
                leg.superblocks.forget();
                leg.returns.unfit = None;
                Ok(())
            }
            None => Err(format!("volume {volume} is one of its legs, or may be")),
        }
    }

    /// Removes the leg that a leg in sync replaces.
    pub(super) fn remove_replaced(&mut self, at: usize, cx: &mut Context<'_>) {
        let old = self.legs[at].replaces.take();
        let Some(old) = old.and_then(|id| self.expect_running().slot_of(id)) else {
            return; // it replaces none, or that was removed meanwhile
        };
        if let Err(why) = self.remove(old, cx.now_ns) {
            let line = format!("{}: leg {old} stays: {why}", self.config.name);
            cx.events.push_back(HostEvent::Warning(cx.number, line));
        }
    }

    /// Overwrites the superblocks of a removed leg.
    pub(super) fn wipe_superblocks(&mut self, at: usize, cx: &mut Context<'_>) {
        let mut wiping = 0;
        for copy in 0..2_u8 {
            let Some(span) = self.scratch.take(BLOCK) else {
                continue;
            };
            cx.memory.bytes_mut(span).fill(0);
            wiping += 1;
            self.legs[at].set_seat(Seat::Wiping(wiping));
            let entry = Entry::new(cx.index, at as u8, Task::Wipe, span);
            let offset = COPIES_AT[usize::from(copy)];
            let io = self.io(at, IoOp::Write { fua: true }, offset, span);
            self.submit_urgent(entry, io, cx);
        }
        if wiping == 0 {
            self.legs[at].set_seat(Seat::Wiping(1));
            self.superblock_wiped(at, Outcome::PathError, cx);
        }
    }

    /// Handles the end of one of these writes.
    pub(super) fn superblock_wiped(&mut self, at: usize, outcome: Outcome, cx: &mut Context<'_>) {
        let leg = &mut self.legs[at];
        let Seat::Wiping(wiping) = leg.seat else {
            unreachable!("{}: superblocks of a leg that stays", leg.config.name);
        };
        leg.set_seat(Seat::Wiping(wiping - 1));
        if !outcome.is_done()
            && let Some(slot) = leg.slot
        {
            self.stays_marked(at, slot, outcome, cx);
        }
        if wiping > 1 {
            return; // the other copy is still being overwritten
        }
        let leg = &mut self.legs[at];
        leg.free_seat();
        let slot = leg.slot.take();
        if let (Some(slot), Phase::Running(it)) = (slot, &mut self.phase)
            && it.places[usize::from(slot)] == Some(at as u8)
        {
            it.places[usize::from(slot)] = None;
        }
    }

    /// The superblocks of a removed leg stay on it.
    fn stays_marked(&mut self, at: usize, slot: u8, outcome: Outcome, cx: &mut Context<'_>) {
        self.unwiped |= 1 << (slot & 15);
        let line = format!(
            "{}: {}: what says that it is a leg can't be overwritten ({outcome}): it is refused \
             wherever it is given",
            self.config.name, self.legs[at].config.name
        );
        cx.events.push_back(HostEvent::Warning(cx.number, line));
    }
}

/// Which of the legs that are not there the one of a slot is to be, where its label tells that.
fn absent(it: &Running, legs: &[LegDevice], slot: u8) -> Option<usize> {
    if it.places.get(usize::from(slot))?.is_some() {
        return None;
    }
    let there: Vec<(usize, &LegDevice)> = (0..).zip(legs).filter(|it| !it.1.is_gone()).collect();
    let uris = || there.iter().map(|it| it.1.config.uris.as_slice());
    let is_it = |at: usize| slot_of(it.machine.superblock(), uris(), at) == Some(slot);
    let mut absent = (0..).zip(&there).filter(|it| it.1.1.is_absent());
    let found = absent.find(|it| is_it(it.0))?;
    Some(found.1.0)
}
