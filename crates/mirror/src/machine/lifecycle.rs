//! From an assembly to the first change, and from the last one to the clean stop.
//!
//! # Contract
//! First the bitmaps of all legs in sync are read. Nothing is written before a user changes
//! something, an unclean stop is to be repaired, or a leg returns. Then the host records the
//! lineage, where it does so ([`LineageRecord`]); stale superblocks of legs in sync get the newest
//! state; the first generation of the lineage is committed; the union of all bitmaps goes to all
//! legs; and diverged regions are resynced. A clean stop: nothing under way, all flushed, dirty
//! bits cleared as far as possible, a last generation, no owner.
use super::accept::Accepting;
use super::bad::Bad;
use super::checks::Checks;
use super::commit::SuperblockUpdate;
use super::dirty_log::DirtyLog;
use super::diverged::Diverged;
use super::generation::Generation;
use super::jobs::Jobs;
use super::leg::{Cut, Leg, LegState, LegTable, Stale};
use super::legs::{Legs, Work};
use super::loss::Loss;
use super::outputs::Outputs;
use super::planted;
use super::requests::Phase;
use super::requests::Requests;
use super::startup::{StartState, Startup};
use super::stop::{Stop, StopState};
use super::unreadable::Unreadable;
use super::unverified::Unverified;
use super::{Changes, Config, Mirror, News, Start};
use crate::assembly::degraded::Record;
use crate::assembly::{Role, Why};
use crate::ownership::Ownership;
use crate::{Name, Properties};
use alloc::boxed::Box;
use block::Outcome;

/// Whether the host has recorded the lineage, by which the next start knows a leg that has every
/// acknowledged write ([`degraded`](crate::assembly::degraded)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineageRecord {
    /// It was not asked to.
    Due,
    /// It was.
    Asked,
    /// It has, durably; or it keeps none.
    Kept,
}

/// How long a copy that failed for the path's sake waits.
pub(super) const COPY_PAUSE_NS: u64 = 1_000_000_000;
const HOUR_NS: u64 = 3_600_000_000_000;
/// A leg that executes nothing late.
const NO_FENCE: u64 = 0;

impl Mirror {
    /// Begins to run what was assembled.
    pub fn start(start: &Start<'_>, mut ownership: Ownership, config: Config, now_ns: u64) -> Self {
        let (assembly, state) = (start.assembly, start.assembly.next);
        ownership.begin(assembly.read_only, now_ns);
        let owner = Some(*ownership.owner());
        Self {
            config,
            now_ns,
            ownership,
            lineage: start.lineage,
            startup: Startup::new(state, assembly.unclean),
            record: match config.records {
                true => LineageRecord::Due,
                false => LineageRecord::Kept,
            },
            stop: Stop::default(),
            read_only: assembly.read_only,
            loss: Loss::default(),
            legs: LegTable::default(),
            generation: Generation::new(state, owner, Legs::default()),
            accepting: Accepting::default(),
            changes: Changes::default(),
            update: SuperblockUpdate::default(),
            sequence: state.sequence,
            unverified: Unverified::default(),
            log: DirtyLog::new(&state.geometry),
            ios: Requests::new(&config),
            copies: Jobs::new(&config, now_ns),
            diverged: Diverged::new(state.geometry.regions()),
            rescue_reported_until_ns: 0,
            bad: Bad::new(&state, &config),
            unreadable: Unreadable::new(state.geometry.regions()),
            checks: Checks::default(),
            errors_halved_ns: now_ns,
            outputs: Outputs::new(),
        }
        .with_legs(start)
    }

    fn with_legs(mut self, start: &Start<'_>) -> Self {
        let assembly = start.assembly;
        // The generation that others may be forced to go on with counts until it is durable that we
        // go on without.
        let newest = start.given.get(assembly.newest).and_then(|it| it.ok());
        let newest = newest.filter(|_| assembly.unclean);
        let required = newest.map_or(assembly.next, |it| it.superblock);
        let next = assembly.next;
        self.generation = Generation::new(
            next,
            Some(*self.ownership.owner()),
            required.in_sync().collect(),
        );
        *self.startup.newest = *self.generation.committed();
        for (at, (given, role)) in start.given.iter().zip(&assembly.roles).enumerate() {
            let Ok(found) = given else {
                continue;
            };
            let slot = found.superblock.slot;
            self.sequence = self.sequence.max(found.superblock.sequence);
            if matches!(role, Role::Unusable(_)) && self.legs.get(slot).is_some() {
                continue; // a removed leg, whose slot another one has
            }
            let mut stale = Box::<Stale>::default();
            stale.is_discarded = matches!(role, Role::Behind { why, .. } if *why == Why::Discarded);
            let cut_at = found.superblock.cut_at;
            let is_cut = cut_at > 0 && !planted::has(planted::Bug::CutForgotten);
            let state = match role {
                // Without writing legs can't be resynced: one of them is read.
                Role::InSync if self.read_only && !self.legs.in_sync().is_empty() => {
                    LegState::Missing(stale)
                }
                Role::InSync if is_cut => LegState::Truncated(Cut::at(cut_at)),
                Role::InSync => LegState::InSync,
                Role::Behind { .. } if !self.read_only => {
                    let late_until_ns = start.late_until_ns.get(at).copied();
                    LegState::Fenced(stale, late_until_ns.unwrap_or(NO_FENCE))
                }
                Role::Behind { .. } | Role::Unusable(_) => LegState::Missing(stale),
            };
            let mut leg = Leg::new(found.superblock, found.copy, state);
            if leg.stale().is_none() {
                leg.since_event = self.generation.proposed().event;
            }
            if at == assembly.newest {
                *self.startup.newest = found.superblock;
            }
            if assembly.lagging.contains(&at) {
                self.startup.lagging.add(slot);
            }
            self.legs.insert(slot, leg);
        }
        // A leg that lags is rebuilt, and has the last copies that it had, as one that is away.
        let lags = |role: &Role| matches!(role, Role::Behind { why: Why::Lags, .. });
        let given = start.given.iter().zip(&assembly.roles);
        let there = given.filter(|it| !lags(it.1)).filter_map(|it| it.0.ok());
        let there = there.map(|it| it.superblock.slot).collect();
        self.bad
            .keep_left_out(self.generation.proposed(), &self.startup.newest, there);
        self.begin_leases(start.terms);
        let recovers = self.startup.is_unclean && !self.read_only;
        self.startup.needs_write = recovers || self.legs.has_fenced();
        // Requests that can be made of all legs at once.
        let (ios, jobs) = (self.config.ios, usize::from(self.config.copies));
        let legs = self.generation.proposed().entries().count();
        self.log.reserve(ios);
        self.outputs.reserve((ios + 2 * jobs + 4) * (legs + 2));
        self.startup.begin_reading(self.legs.in_sync());
        for leg in self.legs.in_sync().iter() {
            self.log.read_pages(leg, 0, &mut self.outputs);
        }
        self
    }

    /// Pages of a leg's bitmap were read; from `next` on there are more.
    pub(super) fn continue_reading(&mut self, leg: u8, next: Option<u32>) {
        match next {
            Some(first) if self.legs.in_sync().has(leg) || self.startup.is_running() => {
                self.log.read_pages(leg, first, &mut self.outputs);
            }
            _ if self.startup.is_reading() => {
                if self.startup.note_read(leg) {
                    self.all_read();
                }
            }
            _ => self.begin_rebuild(leg),
        }
    }

    /// All bitmaps were read.
    fn all_read(&mut self) {
        self.startup.set(StartState::Unchanged);
        self.outputs.wake();
        self.log.begin_unflushed();
        if self.startup.is_unclean && !self.read_only {
            self.diverged.mark_only(self.log.dirty(), self.now_ns);
            if self.diverged.is_empty() {
                self.outputs.news(News::Resynced);
            }
        }
        self.resume_waiting();
    }

    /// Does all that is due besides users' I/O.
    pub(super) fn turn(&mut self, now_ns: u64) {
        self.at(now_ns);
        self.outputs.begin_turn();
        self.drop_left_legs();
        if self.ownership.is_lost() || self.startup.is_stopped() || self.is_abandoned() {
            return;
        }
        self.leave_cut();
        if now_ns >= self.errors_halved_ns.saturating_add(HOUR_NS) {
            self.errors_halved_ns = now_ns;
            for (_, leg) in self.legs.iter_mut() {
                leg.errors /= 2;
            }
        }
        self.unreadable.handle_time(now_ns);
        if self.ownership.leases.end_hold(now_ns) {
            self.resume_waiting();
        }
        self.end_unverified();
        match self.startup.state() {
            // A newer version may have written features that this one would lose.
            StartState::Unchanged if self.ownership.leases.holds(self.now_ns) || self.read_only => {
            }
            StartState::Unchanged if self.startup.needs_write && self.update.is_idle() => {
                match self.record {
                    LineageRecord::Due => {
                        self.record = LineageRecord::Asked;
                        self.outputs.news(News::Begins);
                    }
                    LineageRecord::Asked => {}
                    LineageRecord::Kept => self.write_newest(),
                }
            }
            StartState::WritingBitmaps if !self.log.is_writing_all() => {
                self.startup.set(StartState::Running);
                self.log.clear_at(self.now_ns + self.config.clear_after_ns);
                self.resume_waiting();
            }
            _ => {}
        }
        self.resync_alone();
        self.advance_acceptance();
        if self.startup.is_running() {
            self.advance_returns();
            self.advance_spares();
            self.advance_rebuilds();
        }
        self.advance_growth();
        self.advance_heals();
        self.propose();
        if self.stop.is_begun() {
            self.advance_stop();
        }
        self.write_due();
        self.begin_heartbeats();
        if self.startup.is_running() {
            if !self.stop.is_begun() && self.log.clears_at().is_some_and(|at| now_ns >= at) {
                self.clear_cold();
            }
            self.start_copies();
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest.
    pub fn poll_timeout(&self) -> Option<u64> {
        if self.ownership.is_lost() || self.startup.is_stopped() {
            return None;
        }
        if self.outputs.is_turn_due() {
            return Some(self.now_ns);
        }
        let relax = self.log.clears_at().filter(|_| !self.stop.is_begun());
        let retry = match self.update.is_broken() {
            // A mirror that stops proposes nothing again.
            true if self.update.is_idle() && self.update.retry_at_ns() > self.now_ns => {
                self.update.retry_at_ns()
            }
            _ => u64::MAX,
        };
        // Also when it is over, until a turn has seen that.
        let when = |until_ns| if until_ns == 0 { u64::MAX } else { until_ns };
        let held =
            when(self.ownership.leases.hold_until_ns()).min(when(self.unverified.until_ns()));
        let times = [
            retry,
            self.unreadable.retries_at(),
            self.heartbeats_at(),
            held,
            relax.unwrap_or(u64::MAX),
            self.legs.fence_at(self.now_ns),
            self.spares_at(),
            self.legs.save_at(self.now_ns),
            self.copies_at(),
            self.bad.flush_at(self.now_ns),
            self.accepts_at(),
        ];
        times.into_iter().min().filter(|&at| at != u64::MAX)
    }

    /// Stops: no I/O is accepted, and [`News::Stopped`] is the last output.
    pub fn stop(&mut self, now_ns: u64) {
        self.at(now_ns);
        self.stop.begin();
        self.outputs.wake();
    }

    /// The lineage was recorded durably ([`News::Begins`]).
    pub fn handle_recorded(&mut self, now_ns: u64) {
        self.at(now_ns);
        self.record = LineageRecord::Kept;
        self.outputs.wake();
    }

    /// Whether changes wait for the record of the lineage.
    pub fn waits_for_lineage_record(&self) -> bool {
        self.startup.state() == StartState::Unchanged && self.record == LineageRecord::Asked
    }

    /// Returns what the host records of the mirror: the lineage that is to begin, once that was
    /// asked for; else the last state that was committed.
    pub fn lineage_record(&self) -> Record {
        let committed = Record::of(self.generation.committed());
        if committed.lineage == self.lineage || self.record == LineageRecord::Due {
            return committed;
        }
        Record {
            lineage: self.lineage,
            event: self.generation.committed().event + 1,
            in_sync: self.legs.in_sync().0,
            clean: false,
            ..committed
        }
    }

    /// Returns the properties, with a pending change.
    pub fn properties(&self) -> Properties {
        self.changes
            .properties
            .unwrap_or(self.generation.proposed().properties)
    }

    /// Whether the properties are durable on the legs.
    pub fn has_kept_properties(&self) -> bool {
        self.properties() == self.generation.committed().properties
    }

    /// Sets the abilities of all legs: see [`Config`]. Called before a leg that can do less
    /// returns; requests that wait go by it too.
    pub fn set_abilities(&mut self, deallocate: bool, write_zeroes: bool) {
        (self.config.deallocate, self.config.write_zeroes) = (deallocate, write_zeroes);
    }

    /// Sets the mirror to `properties`, by an event; not one that can only be read.
    pub fn set_properties(&mut self, properties: Properties, now_ns: u64) {
        self.at(now_ns);
        if self.read_only {
            return;
        }
        self.changes.properties = Some(properties);
        self.startup.needs_write = true;
        self.outputs.wake();
    }

    /// Renames the mirror, by an event; not one that can only be read.
    pub fn rename(&mut self, name: Name, now_ns: u64) {
        self.at(now_ns);
        if self.read_only {
            return;
        }
        self.changes.name = Some(name);
        self.startup.needs_write = true;
        self.outputs.wake();
    }

    /// Whether everything is on the legs, so that a stop is clean.
    pub(super) fn is_at_rest(&self) -> bool {
        self.stop.is_begun()
            && self.startup.is_running()
            && self.stop.is_clearing()
            && self.log.is_written()
            && !self.outputs.has_busy_leg()
            && self.diverged.is_empty()
    }

    /// The next step of a stop, when all before it is over.
    fn advance_stop(&mut self) {
        // Nothing was written of a lineage that may never be recorded.
        if self.update.is_broken() || self.waits_for_lineage_record() {
            // I/O that waits for what will not come.
            self.finish_where(Outcome::PathError, |_, slot| match slot.phase() {
                Phase::Leaving => slot.request.reads().is_some(),
                phase => phase == Phase::Held,
            });
        }
        let begins = matches!(
            self.startup.state(),
            StartState::WritingNewest
                | StartState::FirstGeneration { .. }
                | StartState::WritingBitmaps
        );
        let busy = self.ios.iter().next().is_some()
            || !self.copies.is_empty()
            || self.outputs.has_busy_leg()
            || !self.update.is_idle()
            || self.unverified.is_held(self.now_ns) && !self.update.is_broken()
            || self.log.is_clearing()
            || self.diverged.is_flushing()
            || !self.log.is_written()
            || self.startup.is_reading()
            || begins && !self.update.is_broken()
            || self.legs.is_any_returning() && !self.update.is_broken();
        if busy {
            return;
        }
        if self.read_only {
            return self.stopped(self.generation.proposed().clean);
        }
        if !self.startup.has_proposed() && self.ownership.leases.holds(self.now_ns)
            || self.unverified.is_held(self.now_ns)
        {
            // The next owner must know that it has to wait.
            return self.stopped(false);
        }
        if !self.startup.has_proposed() || self.update.is_broken() {
            // Without a lease nothing is written, and the next owner has nothing to wait for.
            return match self.lapsed().is_empty() {
                true => self.release_ownership(),
                false => self.stopped(false),
            };
        }
        match self.stop.state() {
            StopState::No => unreachable!("it stops"),
            StopState::Draining => {
                let round = self.outputs.flush(self.legs.writable(), Work::Stop);
                self.stop.set(StopState::Flushing(round));
            }
            StopState::Flushing(round) if !round.waits.is_empty() => {}
            StopState::Flushing(_) => {
                self.stop.set(StopState::Clearing);
                self.outputs.wake();
                if self.may_clear() {
                    self.clear_all_dirty();
                }
            }
            // Nothing is left to be written.
            StopState::Clearing if self.generation.proposed().clean => self.stopped(true),
            StopState::Clearing => self.release_ownership(),
        }
    }

    pub(super) fn stop_flushed(&mut self, leg: u8, outcome: Outcome) {
        let Some(round) = self.stop.leg_flushed(leg, outcome) else {
            return; // others have not ended it; or one has failed it, and it is done again
        };
        self.outputs.wake();
        if round.outcome.is_some() {
            // Once more, with those that stay; if none can flush the stop is unclean.
            self.stop.set(StopState::Draining);
            self.leave(round);
            if round.done.both(self.legs.in_sync()).is_empty() {
                self.update.set_broken();
            }
        } else {
            self.bad.all_flushed(round.done);
        }
    }

    pub(super) fn stopped(&mut self, clean: bool) {
        self.startup.stop();
        self.ownership.end();
        self.outputs.news(News::Stopped(clean));
    }
}
