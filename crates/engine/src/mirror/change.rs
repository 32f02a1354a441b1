//! Legs that are added to a mirror that runs, and legs that are removed from it.
//!
//! # Contract
//! A leg that is added is a volume of the host that is ready, with nothing on it that is needed; it
//! is rebuilt at once. It may take the place of another one, which is removed when it is in sync.
//! The superblocks of a leg that was removed are overwritten, so that it is nobody's leg; then it
//! is not reported any more, and its volume may go.
//!
//! # Limits
//! A leg that can only be read is refused. What else it can do less than the others, none of them
//! is asked any more.
use super::one::{Kit, Leg, Mirrored, Phase};
use super::table::{Entry, Task};
use super::types::{LegCounters, NewLeg};
use crate::host::{HostEvent, IoOp};
use alloc::format;
use alloc::string::{String, ToString};
use volume::mirror::Label;
use volume::mirror::copies::Chosen;
use volume::mirror::layout::{COPIES_AT, Place};
use volume::mirror::superblock::SUPERBLOCK_BYTES;
use volume::{IoLimits, Outcome};

/// Bytes of a superblock, as spans count.
const BLOCK: u32 = SUPERBLOCK_BYTES as u32;

impl Mirrored {
    /// Takes a new leg in; its place among the legs.
    ///
    /// # Errors
    /// Why it is none, for people.
    pub(super) fn add(
        &mut self,
        new: &NewLeg,
        limits: Option<IoLimits>,
        now_ns: u64,
    ) -> Result<u8, String> {
        let Phase::Running(it) = &mut self.phase else {
            return Err("the mirror does not run".into());
        };
        let state = *it.machine.superblock();
        if new.info.block_shift > state.geometry.block_shift {
            return Err(format!(
                "it has blocks of {} B, and the mirror's have {} B",
                1_u32 << new.info.block_shift,
                1_u32 << state.geometry.block_shift
            ));
        }
        match limits {
            None => return Err("it is not ready".into()),
            Some(limits) if limits.read_only => return Err("it can only be read".into()),
            Some(_) => {}
        }
        let unused = self.legs.iter().position(|leg| leg.removed);
        let at = u8::try_from(unused.unwrap_or(self.legs.len()))
            .map_err(|_| "too many legs came and went: restart the engine")?;
        let place = Place {
            leg_bytes: new.info.bytes,
            ..state.place
        };
        let label = Label::cut(&new.config.name);
        let slot = it.machine.add_leg(new.id, label, place, now_ns);
        let slot = slot.map_err(|error| error.to_string())?;
        it.places[usize::from(slot)] = Some(at);
        it.reads
            .set_leg(slot, new.config.distance, new.config.throughput);
        let leg = Leg {
            config: new.config.clone(),
            info: Some(new.info),
            look: None,
            look_at_ns: 0,
            dated: false,
            found: Some(Ok(Chosen {
                superblock: state.on(slot, place),
                copy: 1,
                other: Ok(0),
            })),
            last: None,
            slot: Some(slot),
            away: None,
            aside: false,
            unfit: None,
            counters: LegCounters::default(),
            rebuild: None,
            replaces: new.replaces,
            wiping: 0,
            removed: false,
            lost_caches: 0,
        };
        match self.legs.get_mut(usize::from(at)) {
            Some(there) => *there = leg,
            None => self.legs.push(leg),
        }
        // The number was maybe one of a leg that the user had taken out.
        self.keep_aside(slot, false, now_ns);
        self.again = true;
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
        let removed = it.machine.remove_leg(slot, now_ns);
        self.again = true;
        removed.map_err(|error| error.to_string())
    }

    /// A leg is in sync: the one whose place it takes goes.
    pub(super) fn take_over(&mut self, at: usize, kit: &mut Kit<'_>) {
        let Some(old) = self.legs[at].replaces.take() else {
            return;
        };
        if let Err(why) = self.remove(old, kit.now_ns) {
            let line = format!("{}: leg {old} stays: {why}", self.config.name);
            kit.events.push_back(HostEvent::Warning(kit.number, line));
        }
    }

    /// It was said that this leg is none any more: its superblocks are overwritten.
    pub(super) fn wipe(&mut self, at: usize, kit: &mut Kit<'_>) {
        for copy in 0..2_u8 {
            let Some(span) = self.scratch.take(BLOCK) else {
                continue;
            };
            kit.memory.bytes_mut(span).fill(0);
            self.legs[at].wiping += 1;
            let entry = Entry {
                mirror: kit.index,
                leg: at as u8,
                task: Task::Wipe,
                for_change: false,
                on: None,
                span,
            };
            let offset = COPIES_AT[usize::from(copy)];
            let io = self.io(at, IoOp::Write { fua: true }, offset, span);
            self.give(entry, io, kit);
        }
        if self.legs[at].wiping == 0 {
            self.wiped(at, Outcome::PathError, kit);
        }
    }

    /// One of them was, or could not be.
    pub(super) fn wiped(&mut self, at: usize, outcome: Outcome, kit: &mut Kit<'_>) {
        let leg = &mut self.legs[at];
        leg.wiping = leg.wiping.saturating_sub(1);
        if !outcome.is_done() {
            let line = format!(
                "{}: {}: what says that it is a leg can't be overwritten ({outcome}): it is \
                 refused wherever it is given",
                self.config.name, leg.config.name
            );
            kit.events.push_back(HostEvent::Warning(kit.number, line));
        }
        if leg.wiping > 0 {
            return;
        }
        (leg.removed, leg.info, leg.away) = (true, None, None);
        let slot = leg.slot.take();
        if let (Some(slot), Phase::Running(it)) = (slot, &mut self.phase)
            && it.places[usize::from(slot)] == Some(at as u8)
        {
            it.places[usize::from(slot)] = None;
        }
    }
}
