//! Reports of a mirror, and orders to it.
use super::device::{Life, MirrorDevice, Phase};
use super::dispatch::Running;
use super::leg::{BadRoom, LegDevice};
use super::messages;
use super::names::slot_of;
use super::reads::for_mirror;
use super::sizes::LegSize;
use super::types::{LegOrder, LegReport, LegStatus, MirrorOrder, MirrorReport};
use crate::devices::{BackEnds, BackEndsMut};
use crate::host::{Multipath, Volume};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use mirror::superblock::{EntryState, LegEntry};
use mirror::{Id, Label, Named, Superblock};
use policy::{Knobs, Policy};

/// Finds the slots of legs that are configured and not there, by their labels.
fn name_missing(legs: &mut [LegReport], state: &Superblock) {
    for at in 0..legs.len() {
        let (leg, uris) = (&legs[at], legs.iter().map(|leg| leg.uris.as_slice()));
        if leg.slot.is_some() || leg.status != LegStatus::Missing {
            continue;
        }
        let slot = slot_of(state, uris, at);
        let is_free = |slot: &u8| !legs.iter().any(|leg| leg.slot == Some(*slot));
        legs[at].slot = slot.filter(is_free);
    }
}

/// Adds a leg that the mirror has and that is not among those that are configured.
fn place_entry(legs: &mut Vec<LegReport>, slot: u8, entry: &LegEntry) {
    if legs.iter().any(|leg| leg.slot == Some(slot)) {
        return; // it is among them
    }
    let mut report = LegReport {
        name: entry.label.to_string(),
        slot: Some(slot),
        id: Some(entry.id),
        ..LegReport::default()
    };
    let mut named = legs.iter().filter(|leg| report.names(&leg.uris).is_some());
    let first = named.find(|leg| leg.volume.is_some());
    let why = match first {
        None => "it is not in the configuration".into(),
        Some(it) if it.slot.is_none() && it.status == LegStatus::Missing => format!(
            "which of the legs that are not there it is can't be told by the beginning of a URI: \
             call it {slot}"
        ),
        Some(it) if report.names(&it.uris) == Some(Named::Beginning) => {
            format!("its URI can't be told from those that begin in_sync: call it {slot}")
        }
        Some(LegReport {
            slot: Some(other), ..
        }) => format!("its place is taken by leg {other}: remove {slot}"),
        // Another disk, or one in which nothing was written.
        Some(it) => format!(
            "{} is there, and not this leg: replace {slot} by it",
            it.name
        ),
    };
    report.why = Some(why);
    legs.push(report);
}

impl MirrorDevice {
    /// How it is doing.
    pub fn report(&self, below: BackEnds<'_>) -> MirrorReport {
        let (running, _) = self.last_state();
        let superblock = running.map(|it| {
            let mut latest = *it.machine.superblock();
            latest.properties = it.machine.properties();
            latest
        });
        let geometry = superblock.map(|it| it.geometry);
        let changing = running.map(|it| it.machine.changing_legs());
        let (adding, removing) = changing.map_or((0, 0), |it| (it.0.0, it.1.0));
        MirrorReport {
            state: self.state(),
            not_begun: self.orders.not_begun.clone(),
            refusals: self.refusal.count,
            other_name: self.refusal.other_name,
            acquiring: self.acquiring().is_some(),
            started_without: self.started_without.clone(),
            waits_for_record: running.is_some_and(|it| it.machine.waits_for_lineage_record()),
            unwiped: self.unwiped,
            adding,
            removing,
            superblock,
            kept: running.is_none_or(|it| it.machine.has_kept_properties()),
            policy: running.map_or(Policy::Soonest, |it| it.reads.policy()),
            knobs: running.map_or(self.config.knobs, |it| it.reads.knobs()),
            legs: self.report_legs(below),
            resync: running.and_then(|it| it.machine.resync()),
            region_bytes: geometry.map_or(0, |it| 1 << it.region_shift),
            regions: geometry.map_or(0, |it| it.regions()),
            grown: self.orders.grown.clone(),
            not_added: self.orders.not_added.clone(),
            taken_back: self.orders.taken_back,
            checked: self.orders.checked,
            checking: (self.orders.checking_ns.zip(running))
                .map(|(at, it)| (at, it.machine.check_report())),
            speed: running.map_or(self.config.speed, |it| it.machine.speed()),
            rate: running.map(|it| it.machine.rate()),
            gate_until_ns: self.gate_until_ns(below.host),
            watched: self.watched(),
            held_until_ns: self.held_until_ns(),
        }
    }

    /// The mirror that runs, or the last superblock of one that was stopped.
    fn last_state(&self) -> (Option<&Running>, Option<&Superblock>) {
        match &self.phase {
            Phase::Running(it) => (Some(it), None),
            Phase::Over(last) => (None, last.as_deref()),
            Phase::Starting(_) => (None, None),
        }
    }

    /// Its legs alone.
    pub fn report_legs(&self, below: BackEnds<'_>) -> Vec<LegReport> {
        let there = self.legs.iter().filter(|leg| !leg.is_gone());
        let mut legs: Vec<LegReport> = there.map(|leg| self.leg(leg, below)).collect();
        if let Phase::Running(it) = &self.phase {
            let state = it.machine.superblock();
            name_missing(&mut legs, state);
            for (slot, entry) in state.entries() {
                place_entry(&mut legs, slot, entry);
            }
            for leg in &mut legs {
                let slot = leg.slot.map(usize::from);
                let entry = slot.and_then(|slot| state.legs.get(slot)?.as_ref());
                leg.id = entry.map(|entry| entry.id);
            }
        }
        legs
    }

    /// Until when the owner's record is kept from the legs.
    fn gate_until_ns(&self, host: &Multipath) -> Option<u64> {
        let waits = self.acquiring().is_some_and(|it| !it.takes_over());
        let legs = self.legs.iter().filter(|_| waits);
        let gates = legs.filter_map(|leg| host.hold_stats(leg.config.volume).gate_until_ns);
        gates.max()
    }

    /// The owner before, while its heartbeats are watched for, and how long that takes in all, ns.
    fn watched(&self) -> Option<(Label, u64)> {
        let (owner, whole_ns) = self.acquiring()?.watched()?;
        Some((owner.label, whole_ns))
    }

    /// Whether it was told to stop, or has, and was not begun anew.
    pub fn is_stopped(&self) -> bool {
        self.is_stopping() || matches!(self.phase, Phase::Over(_))
    }

    /// Whether it runs and a leg in sync has a usable path.
    pub fn is_usable(&self, below: BackEnds<'_>) -> bool {
        let Phase::Running(it) = &self.phase else {
            return false;
        };
        let is_usable = |leg: &LegDevice| {
            let facts = leg.slot.and_then(|slot| it.machine.facts(slot));
            facts.is_some_and(|facts| facts.in_sync) && below.is_usable(leg.device())
        };
        !self.is_stopping() && !it.frozen && self.legs.iter().any(is_usable)
    }

    fn leg(&self, leg: &LegDevice, below: BackEnds<'_>) -> LegReport {
        let (running, last) = self.last_state();
        let facts = leg.slot.and_then(|slot| running?.machine.facts(slot));
        let state_in = |superblock: Option<&Superblock>| {
            let entry = superblock?.legs.get(usize::from(leg.slot?))?.as_ref();
            Some(entry?.state)
        };
        let said = state_in(running.map(|it| it.machine.superblock()));
        let reachable = leg.info.is_some() && below.is_usable(leg.device());
        let (superblocks, returns) = (&leg.superblocks, &leg.returns);
        let found = superblocks.found().map(Result::as_ref);
        let part = facts.is_some_and(|it| it.in_sync || it.rebuilding);
        let unwritten = superblocks.unwritten.filter(|_| !part);
        let status = match (found, said, facts) {
            (None, ..) if unwritten.is_some() => LegStatus::Unusable,
            (None, ..) => LegStatus::Missing,
            (Some(Err(_)), ..) => LegStatus::Unusable,
            (Some(Ok(_)), None, _) if unwritten.is_some() => LegStatus::Unusable,
            (_, _, Some(facts)) if facts.in_sync => LegStatus::InSync,
            (_, _, Some(facts)) if facts.rebuilding => LegStatus::Rebuilding,
            (_, Some(_), _) => LegStatus::Stale,
            (Some(Ok(_)), None, _) if running.is_some() => LegStatus::Unusable,
            (Some(Ok(found)), None, _) => {
                match state_in(last).or(found.superblock.leg().map(|it| it.state)) {
                    Some(EntryState::InSync) => LegStatus::InSync,
                    Some(EntryState::Rebuilding(_)) => LegStatus::Rebuilding,
                    _ => LegStatus::Stale,
                }
            }
        };
        let left_for = returns.retry().and_then(|it| it.outcome);
        let why = match (&returns.unfit, found, left_for) {
            _ if facts.is_some_and(|it| it.leaving) => {
                Some("it is leaving: that is not on the other legs yet, and writes wait".into())
            }
            _ if returns.admin_offline => Some("it was taken out, until it is restored".into()),
            _ if returns.extent.left_for_cut() => Some(messages::CUT_SHORT.into()),
            _ if let Some(end) = facts.and_then(|it| it.cut_end) => Some(messages::cut_at(
                &self.config.name,
                end,
                returns.extent.is_too_small(),
            )),
            _ if facts.is_some_and(|it| it.cut_short) => Some(messages::CUT_AND_LAST.into()),
            _ if status == LegStatus::Stale && returns.extent.size != LegSize::Enough => {
                self.why_small(leg)
            }
            _ if facts.is_some_and(|it| it.is_stuck()) => facts.map(|it| messages::stuck(it.stuck)),
            _ if returns.bad_room != BadRoom::Enough
                && !facts.is_some_and(|it| it.in_sync || it.rebuilding) =>
            {
                Some(self.full(leg))
            }
            (Some(why), ..) => Some(why.clone()),
            (None, Some(Err(why)), _) => Some(why.to_string()),
            (None, None, _) if superblocks.are_late() => Some("it doesn't answer".into()),
            (None, _, _) if !reachable => Some("none of its paths can be used".into()),
            (None, ..) if let Some(outcome) = unwritten => Some(messages::unwritable(outcome)),
            (None, _, Some(outcome)) if status == LegStatus::Stale => {
                Some(format!("it has left: {outcome}"))
            }
            _ if facts.is_some_and(|it| it.lapsed) => Some(messages::LAPSED.into()),
            _ if let Some(facts) = facts.filter(|it| it.bad.0 > 0) => {
                let name = &self.config.name;
                Some(messages::bad(
                    name,
                    &facts,
                    running.and_then(|it| it.machine.without_any_copy()),
                ))
            }
            _ => None,
        };
        // Before the mirror runs its slot is that in its own superblock.
        let says = found.and_then(Result::ok).map(|it| it.superblock.slot);
        let leaves = leg.leaves_with().map(|it| it.0);
        LegReport {
            name: leg.config.name.clone(),
            uris: leg.config.uris.clone(),
            volume: Some(leg.config.volume),
            id: None,
            slot: leg.slot.or(leaves).or(says.filter(|_| running.is_none())),
            status,
            reachable,
            admin_offline: returns.admin_offline,
            cut_short: returns.extent.left_for_cut(),
            small: returns.extent.size == LegSize::Small,
            stuck: returns.bad_room == BadRoom::Stuck,
            due: returns.is_due(),
            why,
            facts,
            counters: leg.counters,
            rebuild: leg.rebuild,
        }
    }

    /// Executes an order of a user.
    ///
    /// # Errors
    /// Why nothing comes of it, for people.
    pub fn order(&mut self, order: &MirrorOrder, now_ns: u64) -> Result<(), String> {
        self.needs_turn = true;
        match *order {
            MirrorOrder::TakeBack(pending) => {
                let taken = self.take_back(pending, now_ns);
                self.orders.taken_back = Some((pending, taken));
            }
            MirrorOrder::AcceptName(accepts) => {
                // A mirror that runs has its name; a later one was not accepted.
                let runs = matches!(self.phase, Phase::Running(_));
                self.refusal.accepts_name = accepts && !runs;
                if let Some(it) = self.ownership_mut() {
                    it.try_again(now_ns);
                }
            }
            MirrorOrder::Assemble(_) if matches!(self.phase, Phase::Over(_)) => {
                return Err("it was stopped, and not begun anew".into());
            }
            MirrorOrder::Assemble(wishes) => {
                self.config.wishes = wishes;
                if let Some(it) = self.ownership_mut() {
                    it.force();
                }
                // Each is asked now, whatever it is to wait for.
                let legs = self.legs.iter_mut();
                legs.for_each(|leg| leg.superblocks.next_ns = 0);
            }
            MirrorOrder::Leg(id, order) => return self.order_leg(id, order, now_ns),
            MirrorOrder::Forget(volume) => return self.forget(volume),
            MirrorOrder::Grow(_) => {
                (self.orders.grow_requested, self.orders.grown) = (true, None);
            }
            MirrorOrder::Evidence(evidence) => self.handle_evidence(evidence),
            MirrorOrder::Recorded(lineage) => self.handle_recorded(lineage, now_ns),
            MirrorOrder::Stop => {
                // It was accepted for the start that ends here, which may wait for legs.
                self.refusal.accepts_name = false;
                self.stop(now_ns);
            }
            MirrorOrder::Leave => {
                self.stop(now_ns);
                self.life = Life::Leaving;
            }
            MirrorOrder::Check(repair) => {
                if let Some(it) = self.running() {
                    it.machine.check(repair, now_ns);
                    self.orders.begin_check(now_ns);
                }
            }
            MirrorOrder::PauseCheck(pause) => {
                if let Some(it) = self.running() {
                    it.machine.pause_check(pause, now_ns);
                }
            }
            MirrorOrder::EndCheck => {
                if let Some(it) = self.running() {
                    it.machine.end_check(now_ns);
                }
            }
            MirrorOrder::Speed(speed) => {
                if let Some(it) = self.running() {
                    it.machine.set_speed(speed, now_ns);
                }
            }
            MirrorOrder::KeepSpeed(speed) => {
                if self.running().is_some() {
                    self.keep_speed(speed, now_ns);
                }
            }
            MirrorOrder::Begin(_) | MirrorOrder::Add(_) => {
                unreachable!("the table of legs changes with {order:?}")
            }
        }
        Ok(())
    }

    /// Executes an order about one leg.
    fn order_leg(&mut self, id: Id, order: LegOrder, now_ns: u64) -> Result<(), String> {
        let Phase::Running(it) = &mut self.phase else {
            // It has stopped since the caller has seen it run.
            return Err(format!("leg {id}: the mirror does not run"));
        };
        let Some(slot) = it.slot_of(id) else {
            return Err(format!("leg {id} was removed or replaced meanwhile"));
        };
        let leg = self.legs.iter_mut().find(|leg| leg.slot == Some(slot));
        match order {
            LegOrder::Fail => {
                messages::may_leave(slot, it.machine.last_copy_on(slot))?;
                it.machine.leg_lost(slot, now_ns);
                // The last leg in sync stays.
                if !it.machine.may_read(slot) {
                    if let Some(leg) = leg {
                        leg.returns.admin_offline = true;
                    }
                    self.keep_admin_offline(slot, true, now_ns);
                }
            }
            LegOrder::Return => {
                // Of one that is not there the property holds when it comes.
                if let Some(leg) = leg {
                    let facts = it.machine.facts(slot);
                    let is_stale = facts.is_some_and(|it| !it.in_sync);
                    leg.returns.restore(is_stale, now_ns);
                }
                self.keep_admin_offline(slot, false, now_ns);
            }
            LegOrder::Remove => return self.remove(slot, now_ns),
            LegOrder::RepairFrom => {
                if !it.machine.repair_from(slot, now_ns) {
                    self.orders.checked = None;
                    return Err(format!(
                        "leg {slot} is not in sync: nothing is repaired from it"
                    ));
                }
                self.orders.begin_check(now_ns);
            }
            LegOrder::AcceptCut => {
                let is_small = |leg: &LegDevice| leg.returns.extent.size == LegSize::Small;
                if leg.as_ref().is_some_and(|leg| is_small(leg)) {
                    return Err(format!("leg {slot} is still smaller than the mirror needs"));
                }
                if !it.machine.accept_cut(slot, now_ns) {
                    return Err(format!(
                        "leg {slot} has lost nothing as the last one in sync"
                    ));
                }
                if let Some(leg) = leg {
                    leg.returns.extent.accept();
                }
            }
        }
        Ok(())
    }

    /// Another policy, which becomes a property (row B6), and other knobs.
    pub fn set_policy(&mut self, policy: Policy, knobs: Knobs, now_ns: u64) {
        self.config.knobs = knobs;
        let Phase::Running(it) = &mut self.phase else {
            return; // it starts with these knobs, and the policy that its legs have
        };
        if it.reads.set_policy(policy, knobs).is_err() {
            return; // they are checked where they come from
        }
        let mut properties = it.machine.properties();
        let word = for_mirror(policy).to_string();
        if properties.value("policy") != Some(&word) && properties.set("policy", &word).is_ok() {
            it.machine.set_properties(properties, now_ns);
        }
        self.needs_turn = true;
    }

    /// Stops: takes no more I/O, and ends the I/O that is under way.
    pub fn stop(&mut self, now_ns: u64) {
        self.life = self.life.max(Life::Stopping);
        self.needs_turn = true;
        match &mut self.phase {
            Phase::Running(it) => it.stop(now_ns),
            // Nothing of it was written.
            Phase::Starting(it) if it.ownership.acquiring().is_none() => self.end(),
            // It stops when the acquisition has ended.
            Phase::Starting(_) | Phase::Over(_) => {}
        }
    }

    /// Whether nothing of it is under way that a stop would wait for.
    pub fn has_stopped(&self) -> bool {
        match &self.phase {
            // Without the ownership nothing is written.
            Phase::Running(it) => it.frozen || it.machine.has_lost_ownership(),
            Phase::Starting(_) | Phase::Over(_) => true,
        }
    }

    /// Whether it writes nothing any more, in order or because another owner has it.
    pub fn is_over(&self) -> bool {
        match self.phase {
            Phase::Running(_) => self.is_stopping() && self.has_stopped(),
            Phase::Starting(_) => false,
            Phase::Over(_) => true,
        }
    }

    /// Once a turn: which legs can be reached, and which may have lost what they acknowledged: what
    /// is in such a leg's cache has its intents set, so it leaves, and gets that again (T13), also
    /// by another path than the one that is lost: the last leg, which stays, has no other source.
    /// A leg that is just being rebuilt from that one begins anew.
    pub fn inspect_legs(&mut self, below: &mut BackEndsMut<'_>, now_ns: u64) {
        if matches!(self.phase, Phase::Running(_)) {
            self.inspect_bounds(below.host, now_ns);
        }
        let Phase::Running(it) = &mut self.phase else {
            return; // its legs get nothing but superblocks
        };
        let legs = self.legs.iter();
        let legs = legs.filter_map(|leg| Some((leg.slot?, leg.device())));
        it.reads.inspect(below.ask(), legs);
        for at in 0..self.legs.len() {
            let leg = &mut self.legs[at];
            let (Some(slot), volume) = (leg.slot, leg.config.volume) else {
                continue;
            };
            let device = below.host.volume(volume);
            let hangs = device.is_some_and(Volume::hangs) && it.machine.may_read(slot);
            if leg.watch.note_hang(hangs, now_ns) {
                // The last one stays, and is looked at again.
                it.machine.leg_lost(slot, now_ns);
                self.needs_turn = true;
            }
            self.needs_turn |= leg.report_spare(slot, below.ask(), &mut it.machine, now_ns);
            if !it.machine.may_read(slot) {
                let given_up = below.ask().times_given_up(leg.device());
                leg.watch.note_given_up(given_up);
            }
            let lost = below.host.volume(volume).map_or(0, Volume::lost_caches);
            let is_news = leg.watch.note_lost_caches(lost);
            if lost == 0 {
                continue;
            }
            if it.machine.may_read(slot) {
                it.machine.leg_lost(slot, now_ns);
                self.needs_turn = true;
            }
            if !it.machine.may_read(slot) {
                below.host.forget_cache(volume, now_ns);
            } else if is_news {
                // The last leg may have lost data that others have copied from it.
                for other in self.legs.iter().filter_map(|leg| leg.slot) {
                    if it.machine.facts(other).is_some_and(|it| it.rebuilding) {
                        it.machine.leg_lost(other, now_ns);
                    }
                }
            }
        }
    }
}
