//! Handles the news of the state machine: legs that leave and return, repairs, and the stop.
//!
//! # Contract
//! A leg that has left is announced to the machine again when it can be reached, after a pause that
//! doubles while it goes on leaving; while its superblocks are being read, when that read ends. Its
//! earlier requests have ended by then; where its volume doesn't fence its writes, it waits
//! `leg_quiesce` besides (T9). The last leg in sync doesn't leave: where it has failed a request,
//! changes wait as long.
use super::device::{Context, MirrorDevice, Phase};
use super::dispatch::Health;
use super::leg::{Absence, BadRoom, LegDevice, Retry, Seat};
use super::messages;
use super::probe::Purpose;
use super::settings::admin_offline;
use super::sizes::LegSize;
use crate::devices::BackEnds;
use crate::host::HostEvent;
use crate::limits::LEG_RETRY_NS;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use block::Range;
use mirror::Superblock;
use mirror::copies::NoLeg;
use mirror::machine::{Mirror, News, Unfit};
use multipath::Outcome;

impl LegDevice {
    /// Reports to the machine whether a leg that is missing can be read as the last resort. Returns
    /// whether that may change anything. A truncated or fenced leg, or one that can't return, is
    /// not read.
    pub(super) fn report_spare(
        &self,
        slot: u8,
        below: BackEnds<'_>,
        machine: &mut Mirror,
        now_ns: u64,
    ) -> bool {
        if machine.may_read(slot) {
            return false;
        }
        let returns = &self.returns;
        let has_nothing = returns.extent.has_nothing() || returns.unfit.is_some();
        let is_barred = has_nothing || self.watch.is_fenced || self.is_gone();
        let is_there = self.info.is_some() && below.is_usable(self.device());
        match is_there && !is_barred {
            true => machine.spare_found(slot, now_ns),
            false => machine.spare_lost(slot),
        }
    }
}

impl MirrorDevice {
    /// Something has happened.
    pub(super) fn handle_news(&mut self, news: News, cx: &mut Context<'_>) {
        let is_good = matches!(
            news,
            News::Rebuilding(_)
                | News::InSync(_)
                | News::Added(_)
                | News::Removed(_)
                | News::Rewritten(_)
                | News::Resynced
                | News::Grown(_)
                | News::Restored
                | News::Renewed(_)
        );
        let line = match news {
            News::Left(slot, _)
            | News::Rebuilding(slot)
            | News::InSync(slot)
            | News::Unfit(slot, _)
            | News::Added(slot)
            | News::Removed(slot)
            | News::Repaired(slot, _)
            | News::Rescued(slot, _)
            | News::Unwritable(slot, _)
            | News::Rewritten(slot)
            | News::NoCopy(slot, _) => {
                let line = self.handle_leg_news(slot, news, cx.now_ns);
                self.apply_leg_news(slot, news, cx);
                line
            }
            News::Resynced => "all legs in sync are alike".into(),
            News::Lost(range) => format!(
                "no leg can read {} bytes at {}: {}",
                range.end - range.start,
                range.start,
                self.recovery_advice(range)
            ),
            News::Grown(bytes) => {
                self.has_grown(bytes, cx);
                format!("it has {bytes} bytes now; the new part is made alike")
            }
            News::NotGrown => {
                let why = "a leg has left, or it stops: it stays as large as it is";
                self.orders.grown = Some(Err(why.into()));
                why.into()
            }
            News::Checked => {
                let report = self.expect_running().machine.check_report();
                (self.orders.checked, self.orders.checking_ns) = (Some(report), None);
                let name = |slot| self.name_of(slot);
                let found = messages::checked(&self.config.name, &report, name);
                format!("checked: {found}")
            }
            News::LostOwnership => {
                let owner = self.expect_running().machine.foreign_owner();
                let whose = owner.map_or("somebody else".into(), |it| format!("{}", it.label));
                let line = format!("{whose} has the mirror now: all I/O fails from now on");
                self.fail(line.clone());
                line
            }
            News::Broken => {
                let line = "nothing can be written to its last leg: changes fail until it can";
                self.fail(line.into());
                line.into()
            }
            News::Unverified(slot) => self.describe_unverified(slot, cx.now_ns),
            News::Cut(slot, end) => {
                let is_small = self
                    .legs
                    .iter()
                    .any(|leg| leg.slot == Some(slot) && leg.returns.extent.is_too_small());
                let why = messages::cut_at(&self.config.name, end, is_small);
                format!("leg {slot} ({}): {why}", self.name_of(slot))
            }
            News::Lapsed(slot) => self.fence_leg(slot, cx),
            News::Renewed(slot) => match self.unfence_leg(slot, cx) {
                Some(line) => line,
                None => return, // it was not fenced
            },
            News::Restored => {
                self.expect_running().set_health(Health::Good);
                "its last leg can be written again".into()
            }
            News::Begins => return self.keep_lineage(cx),
            News::Stopped(clean) => {
                self.keep_record(cx);
                self.withdraw_lineage(cx);
                self.end();
                self.orders
                    .grown
                    .get_or_insert(Err("it was stopped".into()));
                match clean {
                    true => return, // the program reports it
                    false => "stopped, but not cleanly: it is made alike at the next start".into(),
                }
            }
        };
        let line = format!("{}: {line}", self.config.name);
        cx.events.push_back(match is_good {
            true => HostEvent::Returned(cx.number, line),
            false => HostEvent::Warning(cx.number, line),
        });
    }

    /// Changes of a mirror that runs fail from now on.
    fn fail(&mut self, why: String) {
        self.expect_running().set_health(Health::Failed(why));
    }

    /// The user's way to recover bytes that no leg can read.
    fn recovery_advice(&mut self, range: Range) -> String {
        let backup = "restore them from a backup";
        let slots: Vec<u8> = self.legs.iter().filter_map(|leg| leg.slot).collect();
        let machine = &self.expect_running().machine;
        match slots
            .into_iter()
            .find(|slot| machine.may_have(*slot, range))
        {
            Some(slot) => format!(
                "nothing was written there since leg {slot} ({}) left: they are read when it can \
                 be reached; else {backup}",
                self.name_of(slot)
            ),
            None => backup.into(),
        }
    }

    /// The name of a leg.
    fn name_of(&self, slot: u8) -> String {
        let leg = self.legs.iter().find(|leg| leg.slot == Some(slot));
        leg.map_or(String::new(), |leg| leg.config.name.clone())
    }

    /// The message that the last leg in sync may execute a failed write late.
    fn describe_unverified(&self, slot: u8, now_ns: u64) -> String {
        let left_ns = self.held_until_ns().unwrap_or(0).saturating_sub(now_ns);
        format!(
            "leg {slot} ({}) may yet execute what it had when its path was lost, and no other leg \
             is in sync: changes wait for {} s (leg_quiesce)",
            self.name_of(slot),
            left_ns.div_ceil(1_000_000_000)
        )
    }

    /// Fences a leg that another host may take over: its requests are withdrawn.
    fn fence_leg(&mut self, slot: u8, cx: &mut Context<'_>) -> String {
        let Some((at, ..)) = self.at(slot) else {
            return format!("leg {slot}: its heartbeats don't end");
        };
        let why = "its owner's heartbeats don't end there: another host may take it over";
        let leg = &mut self.legs[at];
        leg.watch.is_fenced = true;
        cx.below.host.cut(leg.config.volume, why, cx.now_ns);
        format!(
            "leg {slot} ({}): no heartbeat has ended there for two intervals; nothing is read or \
             written there before its record was read again",
            leg.config.name
        )
    }

    fn unfence_leg(&mut self, slot: u8, cx: &mut Context<'_>) -> Option<String> {
        let (at, ..) = self.at(slot)?;
        let leg = &mut self.legs[at];
        if !core::mem::take(&mut leg.watch.is_fenced) {
            return None; // it has just begun
        }
        cx.below.host.uncut(leg.config.volume);
        let name = &leg.config.name;
        Some(format!(
            "leg {slot} ({name}): heartbeats end there again, and it is still ours"
        ))
    }

    /// Applies news of a leg to its device.
    fn apply_leg_news(&mut self, slot: u8, news: News, cx: &mut Context<'_>) {
        let Some((at, ..)) = self.at(slot) else {
            let places = match news {
                News::Removed(_) => 0..self.legs.len(),
                _ => 0..0,
            };
            for at in places {
                let leg = &self.legs[at];
                let is_here = leg.info.is_some() && cx.below.ask().is_usable(leg.device());
                // One that has just come is read first, which settles it.
                if leg.superblocks.found().is_some() || !is_here {
                    self.settle_leaving(at, cx);
                }
            }
            return;
        };
        match news {
            News::Rebuilding(_) => {
                let facts = self.expect_running().machine.facts(slot);
                self.legs[at].rebuild = facts.map(|it| (cx.now_ns, it.lacks));
            }
            News::InSync(_) => {
                self.legs[at].rebuild = None;
                self.remove_replaced(at, cx);
            }
            News::Left(..) => self.legs[at].rebuild = None,
            News::Removed(_) => {
                self.keep_admin_offline(slot, false, cx.now_ns);
                self.wipe_superblocks(at, cx);
            }
            _ => {}
        }
        self.restack(cx.below.ask());
    }

    /// How much of the mirror a rebuild that has ended has copied to a leg, in words.
    fn copied(&mut self, at: usize, now_ns: u64) -> String {
        let Some((since_ns, lacked)) = self.legs[at].rebuild else {
            return String::new(); // it came in sync without one
        };
        let it = self.expect_running();
        let regions = it.machine.superblock().geometry.regions();
        let tenths = now_ns.saturating_sub(since_ns) / 100_000_000;
        let (s, tenth) = (tenths / 10, tenths % 10);
        format!(": it lacked {lacked} of {regions} regions, and has them after {s}.{tenth} s")
    }

    /// Handles the news of one leg. Returns them in words.
    fn handle_leg_news(&mut self, slot: u8, news: News, now_ns: u64) -> String {
        let at = self.at(slot).map(|it| it.0);
        let name = at.map(|at| self.legs[at].config.name.clone());
        // It may have no device: another leg has its path by now.
        let leg = match name {
            Some(name) => format!("leg {slot} ({name})"),
            None => format!("leg {slot}"),
        };
        match (news, at) {
            (News::Left(_, outcome), Some(at)) => {
                self.leg_left(at, outcome, now_ns);
                let returns = &self.legs[at].returns;
                match returns.admin_offline {
                    true => format!("{leg} was taken out; what it misses is noted"),
                    // An engine that stops ends requests so: no leg leaves for that.
                    false if outcome == Outcome::CutShort => {
                        let why = match self.why_small(&self.legs[at]) {
                            Some(why) => why,
                            None if returns.extent.is_cut_file() => messages::CUT_SHORT.into(),
                            None => messages::WAS_TOO_SMALL.into(),
                        };
                        format!("{leg} has left: {why}")
                    }
                    false
                        if returns.bad_room != BadRoom::Enough
                            && outcome == Outcome::MediaError =>
                    {
                        format!("{leg} has left: {}", self.full(&self.legs[at]))
                    }
                    false if outcome == Outcome::Stopped => format!("{leg} is being removed"),
                    false => format!("{leg} has left: {outcome}; what it misses is noted"),
                }
            }
            (News::Rebuilding(_), Some(at)) => {
                let of = &mut self.legs[at];
                (of.returns.unfit, of.superblocks.unwritten) = (None, None);
                of.refuses_holes = false;
                self.expect_running().reads.reset_leg(slot);
                format!("{leg} returns, and is being rebuilt")
            }
            (News::InSync(_), Some(at)) => {
                let facts = self.expect_running().machine.facts(slot);
                let of = &mut self.legs[at];
                of.superblocks.unwritten = None;
                of.returns.set_absence(Absence::None);
                if facts.is_some_and(|it| it.in_sync) {
                    of.returns.extent.size = LegSize::Enough;
                }
                of.returns.bad_room = BadRoom::Enough;
                let copied = self.copied(at, now_ns);
                format!("{leg} is in sync{copied}")
            }
            (News::Unfit(_, why), Some(at)) => {
                let why_not = messages::unfit(&why);
                let returns = &mut self.legs[at].returns;
                match why {
                    Unfit::Failed(outcome) => returns.wait_longer(outcome, now_ns),
                    Unfit::Owned(_) => returns.wait_longer(Outcome::Reservation, now_ns),
                    _ => returns.unfit = Some(why_not.clone()),
                }
                match returns.admin_offline {
                    true => format!("{leg} was taken out before it has returned"),
                    false => format!("{leg} can't return: {why_not}"),
                }
            }
            (News::Repaired(_, range), _) => {
                let bytes = range.end - range.start;
                format!("{leg}: {bytes} bytes at {} were rewritten", range.start)
            }
            (News::Rescued(_, range), _) => {
                let bytes = range.end - range.start;
                format!(
                    "{leg} is not in sync, and was read: no leg in sync can read {bytes} bytes at \
                     {}, which it does not lack",
                    range.start
                )
            }
            (News::Unwritable(_, range), _) => format!(
                "{leg} can't write {}: that is recorded, it is not read there, and stays",
                messages::bytes_of(range)
            ),
            (News::Rewritten(_), _) => {
                format!("{leg}: all that it could not write was written again")
            }
            (News::NoCopy(_, range), _) => format!(
                "{} can't be read: no leg in sync could write them, and {leg} has left, which had \
                 them: bring it back, or write them again",
                messages::bytes_of(range)
            ),
            (News::Added(_), _) => format!("{leg} was added"),
            (News::Removed(_), _) => format!("{leg} was removed"),
            _ => format!("{leg}: {news:?}"),
        }
    }

    /// Why a leg has left that could not write more blocks than are recorded.
    pub(super) fn full(&self, leg: &LegDevice) -> String {
        let machine = match &self.phase {
            Phase::Running(it) => Some(&it.machine),
            _ => None,
        };
        let facts = machine.zip(leg.slot).and_then(|(it, slot)| it.facts(slot));
        messages::full(
            facts.and_then(|it| it.bad_more),
            leg.returns.bad_room == BadRoom::Stuck,
        )
    }

    /// Handles that the mirror goes on without a leg.
    fn leg_left(&mut self, at: usize, outcome: Outcome, now_ns: u64) {
        let slot = self.legs[at].slot;
        let facts = slot.and_then(|slot| self.running()?.machine.facts(slot));
        let leg = &mut self.legs[at];
        if outcome == Outcome::MediaError && facts.is_some_and(|it| it.bad_full) {
            leg.returns.note_bad_full();
        }
        leg.returns.wait_longer(outcome, now_ns);
    }

    /// Announces missing legs that can be reached again. Returns whether there were any.
    pub(super) fn announce_returned(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        for at in 0..self.legs.len() {
            let leg = &self.legs[at];
            let is_due = |it: &Retry| it.at_ns <= cx.now_ns;
            let Some(retry) = leg.returns.waiting().filter(is_due) else {
                continue;
            };
            let is_here = leg.info.is_some() && cx.below.ask().is_usable(leg.device());
            // The superblocks of a spare are read in each heartbeat interval.
            let are_read = leg.superblocks.are_read();
            let returns = is_here && !are_read && !leg.returns.stays_missing();
            if returns && !self.is_stopping() && self.announce(at, retry, cx) {
                any = true;
                continue;
            }
            let here_later = is_here && are_read;
            self.legs[at].returns.change_retry(|it| {
                it.is_requested &= here_later;
                // The end of the read drives the mirror, so a leg that is being read stays due: a
                // pause of one second would fall into the next read of a one second heartbeat.
                if !here_later {
                    // Not at once: the mirror would be busy with that while it waits.
                    it.at_ns = cx.now_ns.saturating_add(LEG_RETRY_NS);
                }
            });
        }
        any
    }

    fn announce(&mut self, at: usize, retry: Retry, cx: &mut Context<'_>) -> bool {
        let Some(slot) = self.legs[at].slot else {
            return self.identify(at, cx);
        };
        if self.legs[at].watch.is_fenced {
            let facts = self.expect_running().machine.facts(slot);
            if facts.is_some_and(|it| it.in_flight > 0) {
                return false; // it ends first, and is not tried again
            }
            self.legs[at].watch.is_fenced = false;
            cx.below.host.uncut(self.legs[at].config.volume);
        }
        if !self.may_be_announced(at, cx) {
            return false;
        }
        let announced = Absence::Announced(retry);
        self.legs[at].returns.set_absence(announced);
        self.restack(cx.below.ask());
        let quiesce_ns = match cx.below.host.is_fenced(self.legs[at].config.volume) {
            true => 0,
            false => self.config.leg_quiesce_ns,
        };
        let fence_ns = cx.now_ns.saturating_add(quiesce_ns);
        let machine = &mut self.expect_running().machine;
        machine.leg_found(slot, fence_ns, cx.now_ns);
        self.check_size(at, cx.now_ns);
        true
    }

    /// Identifies a leg that was missing at the start by its superblocks.
    fn identify(&mut self, at: usize, cx: &mut Context<'_>) -> bool {
        let superblocks = &self.legs[at].superblocks;
        let found = superblocks.found().filter(|_| !superblocks.are_unread());
        let Some(leg) = found.map(|it| it.map(|it| it.superblock)) else {
            let is_due = superblocks.next_ns <= cx.now_ns;
            return is_due && self.probe(at, Purpose::Identify, cx);
        };
        let leaves = self.legs[at].leaves_with().map(|it| it.1);
        let it = self.expect_running();
        let ours = it.machine.superblock();
        let is_known = |leg: &Superblock| {
            let entry = ours
                .legs
                .get(usize::from(leg.slot))
                .and_then(|it| it.as_ref());
            entry.is_some_and(|entry| leg.leg().is_some_and(|it| it.id == entry.id))
        };
        let why = match leg {
            Ok(leg) if leg.mirror != ours.mirror => Some("it is of another mirror".into()),
            // Until that has happened: then its superblocks are overwritten.
            Ok(leg) if leaves.is_some() && leaves == leg.leg().map(|it| it.id) => return false,
            Ok(leg) if !is_known(&leg) => Some(format!("{}", NoLeg::Removed)),
            Ok(leg) if it.places[usize::from(leg.slot)].is_some() => {
                Some(format!("leg {} is there already: one is a copy", leg.slot))
            }
            Ok(leg) => {
                let slot = leg.slot;
                it.places[usize::from(slot)] = Some(at as u8);
                let is_offline = admin_offline(&it.machine.properties()).has(slot);
                let leg = &mut self.legs[at];
                let (distance, throughput) = (leg.config.distance, leg.config.throughput);
                leg.slot = Some(slot);
                leg.set_seat(Seat::Taken);
                leg.returns.admin_offline = is_offline;
                let reads = &mut self.expect_running().reads;
                reads.set_leg(slot, distance, throughput);
                None
            }
            Err(why) => Some(format!("{why}")),
        };
        if let Some(why) = why {
            let (name, leg) = (&self.config.name, &mut self.legs[at]);
            let line = format!("{name}: {}: {why}", leg.config.name);
            leg.returns.refuse(why);
            cx.events.push_back(HostEvent::Warning(cx.number, line));
        }
        true
    }
}
