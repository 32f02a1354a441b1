//! A mirror before it runs: its legs are read, assembled and acquired.
//!
//! # Contract
//! [`Ownership`] decides which legs are read (`probe`), when a start is decided, and which writes
//! acquire the mirror. Nothing is written before [`assemble`] has agreed. Then the owner's record
//! is written, and the machine begins. A record that takes the mirror over does not wait for writes
//! of this host's previous engine (`Acquire`, T9); everything else does. A refusal is logged once;
//! the next decision is made after a pause, when a leg comes or goes, or when the user asks for it,
//! by the superblocks of that time. Where a leg is missing that had everything, the program's
//! record of the mirror decides ([`record`](super::record)). A mirror that another host owns is
//! tried again only when a leg comes or the user asks for it: an owner that is silent for long must
//! not lose it to a contender. A refusal that only a user can end is reported
//! ([`HostEvent::Refused`]), so that clients don't wait.
use super::device::{Context, MirrorDevice, Phase};
use super::dispatch::Running;
use super::leg::LegDevice;
use super::messages;
use super::probe::{BLOCK, Purpose};
use super::quiesce::whole_ms;
use super::record::{Asked, superblocks};
use super::table::{Entry, Task};
use super::types::MirrorConfig;
use crate::host::{HostEvent, IoOp};
use crate::limits::LEG_RETRY_NS;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use canary::Bug;
use mirror::assembly::{Assembly, Refusal, Role, Wishes, assemble};
use mirror::copies::{Chosen, NoLeg};
use mirror::layout::COPIES_AT;
use mirror::machine::Mirror;
use mirror::ownership::{Acquire, AcquireOutput, LegRead, Ownership, Reach};
use mirror::{Name, Superblock};
use multipath::Outcome;

/// A mirror until it runs.
pub(super) struct Starting {
    pub ownership: Ownership,
    /// The legs that are acquired, by place in the configuration.
    legs: Vec<u8>,
    /// The wishes by which that was decided: later ones of a user were not considered (T45).
    wishes: Wishes,
    /// The program's record of the mirror.
    pub evidence: Asked,
}

impl Starting {
    /// Of which nothing is known yet.
    pub fn new(config: &MirrorConfig) -> Box<Self> {
        Box::new(Self {
            ownership: Ownership::new(config.owner, config.assemble_wait_ns),
            legs: Vec::new(),
            wishes: Wishes::default(),
            evidence: Asked::No,
        })
    }
}

/// Why it does not start.
pub(super) struct Refused {
    why: String,
    until: Until,
}

/// The event that may end the refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// Time alone.
    Later,
    /// A leg that is missing, and has paths by which it may come.
    Legs,
    /// Only a user.
    Told,
}

impl Refused {
    fn new(until: Until, why: impl Into<String>) -> Self {
        let why = why.into();
        Self { why, until }
    }
}

/// Pause before a refused start is tried again: short for a user who waits, and cheap for legs that
/// stay as they are.
pub(super) const TRY_AGAIN_NS: u64 = 10_000_000_000;

impl MirrorDevice {
    /// Reads legs, and decides when it is time to. Returns whether anything was done.
    #[cold]
    #[inline(never)] // else each turn makes room for its stack: superblocks, policies
    fn drive_assembly(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        let known = self
            .legs
            .iter()
            .filter(|leg| leg.superblocks.found().is_some());
        let known = known.count();
        let now_ns = cx.now_ns;
        self.expect_starting().ownership.handle_turn(known, now_ns);
        for at in 0..self.legs.len() {
            let read = self.read_state(at);
            let wants = |it: &Ownership| it.wants_read(read, now_ns);
            if self.ownership().is_some_and(wants) {
                any |= self.probe(at, Purpose::Identify, cx);
            }
        }
        any |= self.give_up_late_probes(cx);
        let (reads, wait_ns) = (self.reads(), self.decision_wait_ns());
        if self.waits_for_evidence() {
            return any; // the answer is an order
        }
        let it = self.expect_starting();
        it.ownership.set_wait(wait_ns);
        if it.ownership.decides(&reads, now_ns) {
            self.acquire(cx);
            any = true;
        }
        any
    }

    /// The mirror, which does not run yet.
    pub(super) fn expect_starting(&mut self) -> &mut Starting {
        let Phase::Starting(it) = &mut self.phase else {
            unreachable!("{}: it does not start", self.config.name);
        };
        it
    }

    fn read_state(&self, at: usize) -> LegRead {
        let leg = &self.legs[at];
        leg.superblocks.read_state(leg.info.is_some())
    }

    /// The reads of all legs.
    fn reads(&self) -> Vec<LegRead> {
        (0..self.legs.len()).map(|at| self.read_state(at)).collect()
    }

    /// The acquisition under way.
    pub(super) fn acquiring(&self) -> Option<&Acquire> {
        self.ownership()?.acquiring()
    }

    /// The ownership of a mirror that does not run yet.
    pub(super) fn ownership(&self) -> Option<&Ownership> {
        match &self.phase {
            Phase::Starting(it) => Some(&it.ownership),
            Phase::Running(_) | Phase::Over(_) => None,
        }
    }

    /// As [`Self::ownership`], to change it.
    pub(super) fn ownership_mut(&mut self) -> Option<&mut Ownership> {
        match &mut self.phase {
            Phase::Starting(it) => Some(&mut it.ownership),
            Phase::Running(_) | Phase::Over(_) => None,
        }
    }

    /// Until when the read of a leg is waited for at a start, ns; `u64::MAX`: none is under way.
    pub(super) fn probe_until(&self, at: usize) -> u64 {
        let read = self.read_state(at);
        self.ownership().map_or(u64::MAX, |it| it.gives_up_at(read))
    }

    /// Does what is due before the mirror runs. Returns whether that was anything.
    pub(super) fn start(&mut self, cx: &mut Context<'_>) -> bool {
        match self.ownership().map(Ownership::acquiring) {
            Some(Some(_)) => self.drive_acquisition(cx),
            _ => self.drive_assembly(cx),
        }
    }

    /// When something is due before the mirror runs, ns.
    pub(super) fn start_timeout(&self) -> Option<u64> {
        let it = self.ownership()?;
        match it.acquiring() {
            Some(acquire) => acquire.poll_timeout(),
            None if self.waits_for_evidence() => None,
            None => it.assembling_timeout(&self.reads()),
        }
    }

    /// The legs of which something is known, by place, and their superblocks.
    pub(super) fn given(&self) -> (Vec<u8>, Vec<Result<Chosen, NoLeg>>) {
        let legs = (0..).zip(&self.legs);
        let known = legs.filter_map(|(at, leg)| Some((at, *leg.superblocks.found()?)));
        known.unzip()
    }

    /// Decides whether there is a mirror, and begins to make it ours.
    #[cold]
    #[inline(never)] // else each turn makes room for its stack: superblocks, policies
    fn acquire(&mut self, cx: &mut Context<'_>) {
        let (legs, mut given) = self.given();
        if let Some(why) = self.needless_discard(&given) {
            self.config.wishes.discard = None;
            return self.refuse(Refused::new(Until::Later, why), TRY_AGAIN_NS, cx);
        }
        if self.ask_for_record(&given, cx) {
            return; // the answer is an order
        }
        let read_only = match self.assembled(&legs, &given, self.config.wishes) {
            Ok(assembly) if let Some(why) = self.is_other_mirror(&assembly) => {
                return self.refuse(why, TRY_AGAIN_NS, cx);
            }
            Ok(assembly) => {
                drop_unusable(&mut given, &assembly);
                assembly.read_only
            }
            Err(why) => return self.refuse(why, TRY_AGAIN_NS, cx),
        };
        self.report_left_out(&legs, &given, cx);
        let bound_ms = match self.bound(cx.below.host) {
            Ok(bound_ms) => bound_ms,
            Err(why) => return self.refuse(Refused::new(Until::Told, why), TRY_AGAIN_NS, cx),
        };
        let reach = match self.config.shared {
            true => Reach::Shared,
            false => Reach::Here,
        };
        let wishes = self.config.wishes;
        let it = self.expect_starting();
        (it.legs, it.wishes) = (legs, wishes);
        it.ownership.acquire(bound_ms, &given, reach, read_only);
        if core::mem::take(&mut self.refusal.is_final) {
            cx.events.push_back(HostEvent::Refused(cx.number, None));
        }
    }

    /// Why it does not start: the mirror that its legs are of has another name, or is not the one
    /// that ran last under this name, and no user has accepted that.
    fn is_other_mirror(&mut self, assembly: &Assembly) -> Option<Refused> {
        let (name, legs) = (&self.config.name, &assembly.next);
        // One that no mirror can have ties it to nothing.
        let can_be = Name::new(name).is_ok();
        let known = self.config.known.filter(|known| *known != legs.mirror);
        let why = match known {
            _ if self.refusal.accepts_name || canary::has(Bug::NameUnasked) => None,
            _ if can_be && legs.name.as_str() != name => Some(messages::other_name(name, legs)),
            Some(known) => Some(messages::other_mirror(name, legs, known)),
            None => None,
        };
        self.refusal.other_name = why.is_some().then_some(legs.name);
        why.map(|why| Refused::new(Until::Told, why))
    }

    /// A mirror that was accepted under this name is called so from now on.
    fn adopt_name(&mut self, now_ns: u64) {
        let name = Name::new(&self.config.name).ok();
        self.refusal.accepts_name = false;
        if let Phase::Running(it) = &self.phase {
            self.config.known = Some(it.machine.superblock().mirror);
        }
        if let Phase::Running(it) = &mut self.phase
            && let Some(name) = name.filter(|name| *name != it.machine.superblock().name)
        {
            it.machine.rename(name, now_ns);
        }
    }

    /// Reports legs that can't be used; they get no record.
    fn report_left_out(
        &mut self,
        legs: &[u8],
        given: &[Result<Chosen, NoLeg>],
        cx: &mut Context<'_>,
    ) {
        for (&at, found) in legs.iter().zip(given) {
            let leg = &mut self.legs[usize::from(at)];
            let (Some(_), Err(why)) = (leg.superblocks.chosen(), found) else {
                continue;
            };
            let line = format!("{}: {}: {why}", self.config.name, leg.config.name);
            leg.returns.unfit = Some(format!("{why}"));
            cx.events.push_back(HostEvent::Warning(cx.number, line));
        }
    }

    /// Why the leg that is to be given up is not: nothing calls for that, and it could be the only
    /// one that has everything.
    fn needless_discard(&self, given: &[Result<Chosen, NoLeg>]) -> Option<String> {
        let leg = self.legs.get(self.config.wishes.discard?)?;
        let superblocks = superblocks(given);
        let wishes = Wishes {
            discard: None,
            ..self.config.wishes
        };
        match assemble(&superblocks, wishes) {
            Ok(_) | Err(Refusal::Incomplete(_) | Refusal::NoneInSync(_)) => Some(format!(
                "the legs of {} have not parted, so {} is not given up: braid mirror assemble \
                 without --discard",
                self.config.name, leg.config.name
            )),
            Err(_) => None,
        }
    }

    /// Assembles the legs.
    fn assembled(
        &self,
        legs: &[u8],
        given: &[Result<Chosen, NoLeg>],
        mut wishes: Wishes,
    ) -> Result<Assembly, Refused> {
        let name = |at: usize| {
            let leg = legs
                .get(at)
                .and_then(|&leg| self.legs.get(usize::from(leg)));
            leg.map_or(String::new(), |leg| leg.config.name.clone())
        };
        for (at, leg) in legs.iter().zip(given) {
            let (Some(info), Ok(it)) = (self.legs[usize::from(*at)].info, leg) else {
                continue;
            };
            let (its, ours) = (info.block_shift, it.superblock.geometry.block_shift);
            if its > ours {
                return Err(Refused::new(
                    Until::Told,
                    format!(
                        "{} has blocks of {} B now, and the mirror's have {} B: it can't be used \
                         so",
                        self.legs[usize::from(*at)].config.name,
                        1_u32 << its,
                        1_u32 << ours
                    ),
                ));
            }
        }
        let superblocks = superblocks(given);
        if let Some(place) = wishes.discard {
            // As configured; those that are not there are not among the given.
            let at = legs.iter().position(|&leg| usize::from(leg) == place);
            let leg = self.legs.get(place).map_or("", |leg| &leg.config.name);
            let why = || {
                let why = format!("{leg} is to be given up, and is not there: leave it out");
                Refused::new(Until::Later, why)
            };
            wishes.discard = Some(at.ok_or_else(why)?);
        }
        let assembled = assemble(&superblocks, wishes);
        let assembled = assembled.or_else(|why| self.without_missing(&superblocks, why, wishes));
        assembled.map_err(|(refusal, reason)| {
            let known: Vec<Superblock> = superblocks.iter().filter_map(|it| it.ok()).collect();
            let why = self.needs_writing(&refusal).unwrap_or_else(|| {
                let why = messages::refusal(&self.config.name, &refusal, name, &known);
                match reason.and_then(|it| messages::waits(&it, &known)) {
                    Some(reason) => format!("{why}; not by itself: {reason}"),
                    None => why,
                }
            });
            match refusal {
                Refusal::Incomplete(_) | Refusal::NoneInSync(_) | Refusal::Nothing => {
                    Refused::new(Until::Legs, why)
                }
                _ => Refused::new(Until::Told, why),
            }
        })
    }

    /// Refuses the start, and logs it once for each reason. It is tried again after `pause_ns`.
    pub(super) fn refuse(&mut self, refused: Refused, pause_ns: u64, cx: &mut Context<'_>) {
        if self.is_stopping() {
            return self.end();
        }
        self.refusal.count += 1;
        let is_absent =
            |leg: &&LegDevice| leg.superblocks.found().is_none() || leg.superblocks.are_unread();
        let missing = self.legs.iter().filter(is_absent);
        let missing: Vec<&str> = missing.map(|leg| leg.config.name.as_str()).collect();
        let missing = match missing.is_empty() {
            true => String::new(),
            false => format!("; not there: {}", missing.join(", ")),
        };
        let Refused { why, until } = refused;
        let mut absent = self.legs.iter().filter(is_absent);
        let lasts = match until {
            Until::Later => false,
            Until::Legs => {
                !absent.any(|leg| cx.below.host.paths(leg.config.volume).next().is_some())
            }
            Until::Told => true,
        };
        let meanwhile = if lasts {
            "; its clients are refused meanwhile"
        } else {
            ""
        };
        let line = format!(
            "{}: not started: {why}{missing}{meanwhile}",
            self.config.name
        );
        let is_news = self.refusal.line.as_ref() != Some(&line);
        if is_news || lasts != self.refusal.is_final {
            let why = lasts.then(|| line.clone());
            cx.events.push_back(HostEvent::Refused(cx.number, why));
            self.refusal.is_final = lasts;
        }
        if is_news {
            self.refusal.line = Some(line.clone());
            cx.events.push_back(HostEvent::Failed(cx.number, line));
        }
        let it = self.expect_starting();
        it.ownership.refuse(pause_ns, cx.now_ns);
        // The user's wishes were about the legs as they were, as was the record.
        it.evidence = Asked::No;
        self.config.wishes = Wishes::default();
        self.legs
            .iter_mut()
            .for_each(|leg| leg.superblocks.outdate());
    }

    /// Writes the owner's record, as far as it goes. Returns whether anything was done.
    #[cold]
    #[inline(never)] // else each turn makes room for its stack: superblocks, policies
    fn drive_acquisition(&mut self, cx: &mut Context<'_>) -> bool {
        let it = self.expect_starting();
        let Some(output) = it.ownership.poll_output(cx.now_ns) else {
            return false;
        };
        let place = |index: usize, it: &Starting| usize::from(it.legs[index]);
        match output {
            AcquireOutput::Read(index) => {
                let at = place(index, it);
                let began = self.probe(at, Purpose::Acquire(index), cx);
                assert!(
                    began,
                    "a mirror that does not run uses its memory for superblocks alone"
                );
            }
            AcquireOutput::Write(index, copy) => {
                let at = place(index, it);
                let Some(acquire) = it.ownership.acquiring() else {
                    unreachable!("it writes a record");
                };
                let takes_over = acquire.takes_over();
                let block = acquire.encode(index, copy, cx.crc32c);
                let Some(span) = self.scratch.take(BLOCK) else {
                    unreachable!(
                        "a mirror that does not run uses its memory for superblocks alone"
                    );
                };
                cx.memory.bytes_mut(span).copy_from_slice(&block);
                let mut entry = Entry::new(cx.index, at as u8, Task::Acquire(index), span);
                entry.hints.past_gate = takes_over;
                let offset = COPIES_AT[usize::from(copy & 1)];
                let io = self.io(at, IoOp::Write { fua: true }, offset, span);
                self.submit_urgent(entry, io, cx);
            }
            AcquireOutput::Acquired => self.acquired(cx),
            AcquireOutput::Refused(owner) => {
                let why = format!(
                    "{} has it: stop it there first (or, when that host is gone for certain, \
                     `braid mirror assemble`)",
                    owner.label
                );
                match owner.host == self.config.owner.host {
                    true => self.refuse(Refused::new(Until::Later, why), TRY_AGAIN_NS, cx),
                    false => self.refuse(Refused::new(Until::Told, why), u64::MAX, cx),
                }
            }
            AcquireOutput::Slow => {
                let why = "its legs take longer to answer than its heartbeat interval: other hosts \
                           can't tell who has it (make mirrors of such legs with a longer one)";
                self.refuse(Refused::new(Until::Later, why), TRY_AGAIN_NS, cx);
            }
            AcquireOutput::Failed(index, outcome) => {
                let at = place(index, it);
                let name = &self.legs[at].config.name;
                let line = format!("{}: {name}: {outcome}; it is left out", self.config.name);
                cx.events.push_back(HostEvent::Warning(cx.number, line));
            }
        }
        true
    }

    /// The owner's record was written to the leg of this number among those given, or could not be.
    pub(super) fn record_written(&mut self, index: usize, outcome: Outcome, now_ns: u64) {
        let Phase::Starting(it) = &mut self.phase else {
            return; // the mirror was stopped meanwhile
        };
        let at = usize::from(it.legs[index]);
        let Some(acquire) = it.ownership.acquiring_mut() else {
            unreachable!("an acquisition waits for its writes");
        };
        acquire.handle_written(index, outcome, now_ns);
        // The volume of a leg that can't be reached reports that itself.
        let refuses = outcome.is_device_error();
        self.legs[at].superblocks.unwritten = refuses.then_some(outcome);
    }

    /// Legs that are there, whose newest owner's record could not be written: slot, and a line.
    fn unwritable(&self) -> Vec<(u8, String)> {
        let legs = self.legs.iter().filter_map(|leg| {
            let slot = leg.superblocks.chosen()?.superblock.slot;
            let why = messages::unwritable(leg.superblocks.unwritten?);
            Some((slot, format!("{}: {why}", leg.config.name)))
        });
        legs.collect()
    }

    /// Why it does not start, where that is a leg which is there and can't be written: to go on
    /// without it is no advice.
    pub(super) fn needs_writing(&self, refusal: &Refusal) -> Option<String> {
        let needs = |slot: u8| match refusal {
            Refusal::Incomplete(missing) | Refusal::NoneInSync(missing) => missing.contains(&slot),
            Refusal::Nothing => true,
            _ => false,
        };
        let legs = self.unwritable().into_iter();
        let lines: Vec<String> = legs
            .filter_map(|(slot, line)| needs(slot).then_some(line))
            .collect();
        (!lines.is_empty()).then(|| lines.join("; "))
    }

    /// The legs are ours: the machine begins.
    fn acquired(&mut self, cx: &mut Context<'_>) {
        let it = self.expect_starting();
        let Some(acquire) = it.ownership.acquiring() else {
            unreachable!("it was acquired just now");
        };
        let (mut given, mut terms) = (acquire.given().to_vec(), acquire.terms());
        let (legs, wishes) = (core::mem::take(&mut it.legs), it.wishes);
        let assembly = match self.assembled(&legs, &given, wishes) {
            Ok(assembly) if let Some(why) = self.is_other_mirror(&assembly) => {
                return self.refuse(why, TRY_AGAIN_NS, cx);
            }
            Ok(assembly) => assembly,
            Err(why) => {
                // A leg was lost just now: the next decision asks for the record.
                let asks = self.needs_record(&given) && self.unwritable().is_empty();
                let pause_ns = if asks { LEG_RETRY_NS } else { TRY_AGAIN_NS };
                return self.refuse(why, pause_ns, cx);
            }
        };
        drop_unusable(&mut given, &assembly);
        for (&at, found) in legs.iter().zip(&given) {
            let leg = &mut self.legs[usize::from(at)];
            leg.slot = found.ok().map(|it| match canary::has(Bug::LegByPlace) {
                true => at,
                false => it.superblock.slot,
            });
            // A leg that could not be read or written just now is read again.
            let was_leg = leg.superblocks.chosen().is_some();
            let useless = found.is_err_and(|why| is_unusable(&why));
            match found.is_ok() || !was_leg || useless {
                true => leg.superblocks.set_found(*found),
                false => leg.superblocks.forget(),
            }
            leg.was_made_long();
        }
        for leg in &mut self.legs {
            let superblocks = &leg.superblocks;
            let is_unusable =
                matches!(superblocks.found(), Some(Err(_))) && !superblocks.are_unread();
            if leg.info.is_some() && leg.slot.is_none() && !is_unusable {
                leg.returns.wait_since_start(cx.now_ns);
            }
        }
        let newest = given.get(assembly.newest).and_then(|it| it.ok());
        let unclean = newest.is_some_and(|it| !it.superblock.clean);
        for &at in &legs {
            let leg = &mut self.legs[usize::from(at)];
            let volume = leg.config.volume;
            cx.below.host.inherit(volume, unclean);
            leg.watch
                .note_given_up(cx.below.ask().times_given_up(leg.device()));
        }
        // Nothing but records goes to a leg before what our own engine before had sent there is
        // over: a superblock that waited for it there would keep heartbeats from it.
        let gates = legs.iter().filter_map(|&at| {
            let volume = self.legs[usize::from(at)].config.volume;
            cx.below.host.hold_stats(volume).gate_until_ns
        });
        terms.hold_until_ns = gates.fold(terms.hold_until_ns, u64::max);
        // An unfenced volume can't withdraw the writes of an owner before.
        let fenced = |leg: &LegDevice| cx.below.host.is_fenced(leg.config.volume);
        let late = |(&at, role): (&u8, &Role)| {
            let leg = &self.legs[usize::from(at)];
            *role == Role::InSync && !fenced(leg)
        };
        if unclean && legs.iter().zip(&assembly.roles).any(late) {
            let late_until_ns = cx.now_ns.saturating_add(self.config.leg_quiesce_ns);
            terms.hold_until_ns = terms.hold_until_ns.max(late_until_ns);
            terms.left_ms = terms.left_ms.max(whole_ms(self.config.leg_quiesce_ns));
        }
        if !self.legs.iter().all(fenced) {
            terms.written_ns = None;
        }
        match Running::begin(self, &assembly, &given, terms, cx) {
            Ok(running) => self.phase = Phase::Running(Box::new(running)),
            Err(why) => return self.refuse(Refused::new(Until::Later, why), TRY_AGAIN_NS, cx),
        }
        self.handle_start(&given, wishes, cx);
        self.adopt_name(cx.now_ns);
        self.apply_admin_offline(cx.now_ns);
        self.check_sizes(cx.now_ns);
        self.restack(cx.below.ask());
        self.report_held_changes(cx);
    }
}

/// Whether a leg can be read, and is left out for what it says.
fn is_unusable(why: &NoLeg) -> bool {
    matches!(
        why,
        NoLeg::TooOld | NoLeg::Removed | NoLeg::Small | NoLeg::Worn
    )
}

/// Treats legs that can't be used as missing.
fn drop_unusable(given: &mut [Result<Chosen, NoLeg>], assembly: &Assembly) {
    for (leg, role) in given.iter_mut().zip(&assembly.roles) {
        if let Role::Unusable(why) = role {
            *leg = Err(*why);
        }
    }
}

/// The machine of a mirror that begins.
pub(super) fn machine(
    start: &mirror::machine::Start<'_>,
    ownership: Ownership,
    limits: &block::IoLimits,
    speed: mirror::machine::Speed,
    records: bool,
    now_ns: u64,
) -> Mirror {
    use crate::limits::{MIRROR_COPIES, MIRROR_COPY_BYTES, MIRROR_IOS_MAX};
    let config = mirror::machine::Config {
        copies: MIRROR_COPIES,
        copy_bytes: MIRROR_COPY_BYTES,
        speed,
        deallocate: limits.deallocate,
        write_zeroes: limits.write_zeroes,
        records,
        ..mirror::machine::Config::new(MIRROR_IOS_MAX)
    };
    Mirror::start(start, ownership, config, now_ns)
}
