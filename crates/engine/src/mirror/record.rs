//! The record that the program keeps of a mirror on its host: which lineage the host began last.
//!
//! # Contract
//! A lineage is recorded durably before its first event is written to a leg: until then changes
//! wait. From then on the record follows the legs that are in sync, and the clean stop; nothing
//! waits for that. Where the mirror stops before that event, the record before counts again. The
//! state that a start by itself shows is recorded too, once the owner's record is on all its legs
//! in sync: no newer state can be elsewhere, and no other host's record counts any more.
//!
//! A start for which a leg is missing that had everything asks for the record, once per decision,
//! and is decided by it ([`decide`]); unless the leg comes meanwhile, or a user says what to do.
use super::device::{Context, MirrorDevice, Phase};
use super::dispatch::Running;
use super::messages;
use super::types::RecordRequest;
use crate::host::HostEvent;
use alloc::format;
use alloc::vec::Vec;
use mirror::Superblock;
use mirror::assembly::degraded::{
    Decision, Evidence, Missing, Permission, Reason, Record, decide, missing,
};
use mirror::assembly::{Assembly, Refusal, Wishes, assemble};
use mirror::copies::{Chosen, NoLeg};

/// How long a stop waits for the record of a lineage, from when it was handed over, ns: by then
/// the program has written it, or can't.
const RECORD_WAIT_NS: u64 = 1_000_000_000;

/// Whether the program was asked for the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    No,
    Yes,
    Answered(Evidence),
}

/// The record of a mirror that runs.
pub(super) struct LineageRecord {
    /// The event of the committed state by which it was last looked at.
    event: u64,
    /// The record that was handed over last.
    last: Option<Record>,
    /// Until then a stop waits for the program to keep it, ns.
    until_ns: Option<u64>,
}

impl LineageRecord {
    /// Of a mirror that begins with this event.
    pub fn new(event: u64) -> Self {
        Self {
            event,
            last: None,
            until_ns: None,
        }
    }

    /// Whether a stop still waits for the program to keep it.
    pub fn is_awaited(&self, now_ns: u64) -> bool {
        self.until_ns.is_some_and(|at_ns| now_ns < at_ns)
    }

    pub fn until_ns(&self) -> Option<u64> {
        self.until_ns
    }

    /// It is not waited for any more.
    pub fn give_up(&mut self) {
        self.until_ns = None;
    }
}

pub(super) fn superblocks(given: &[Result<Chosen, NoLeg>]) -> Vec<Result<Superblock, NoLeg>> {
    given.iter().map(|it| it.map(|it| it.superblock)).collect()
}

impl MirrorDevice {
    /// How long a decision waits for missing legs, ns: shorter if they had lost data before.
    pub(super) fn decision_wait_ns(&self) -> u64 {
        let (usual, of) = (self.config.assemble_wait_ns, self.config.degraded);
        if of.gone_wait_ns.is_none() && of.outdated_wait_ns.is_none() {
            return usual;
        }
        let found = self.legs.iter().filter_map(|leg| leg.superblocks.found());
        let found: Vec<_> = found.map(|it| it.map(|it| it.superblock)).collect();
        let wait_ns = match missing(&found) {
            Some(Missing::Gone) => of.gone_wait_ns,
            Some(Missing::Outdated) => of.outdated_wait_ns,
            Some(Missing::InSync) | None => None,
        };
        wait_ns.unwrap_or(usual)
    }

    /// Asks for the record, if the decision depends on it. Returns whether it waits for the answer.
    pub(super) fn ask_for_record(
        &mut self,
        given: &[Result<Chosen, NoLeg>],
        cx: &mut Context<'_>,
    ) -> bool {
        if !self.needs_record(given) {
            return false;
        }
        let Some(leg) = given.iter().flatten().next() else {
            unreachable!("legs are missing of a mirror of which none is there");
        };
        let request = RecordRequest::Read(leg.superblock.mirror);
        self.expect_starting().evidence = Asked::Yes;
        let event = HostEvent::Record(cx.number, request);
        cx.events.push_back(event);
        true
    }

    /// Whether the decision depends on the record, and it was not asked for.
    pub(super) fn needs_record(&self, given: &[Result<Chosen, NoLeg>]) -> bool {
        let may = self.config.degraded.permission == Permission::On;
        may && self.evidence() == Asked::No && self.is_incomplete(given)
    }

    /// Whether legs are missing that no user has told to go on without.
    fn is_incomplete(&self, given: &[Result<Chosen, NoLeg>]) -> bool {
        let plain = Wishes::default();
        self.config.wishes == plain
            && matches!(
                assemble(&superblocks(given), plain),
                Err(Refusal::Incomplete(_))
            )
    }

    /// Whether the decision waits for the record: not if the legs have come, or a user has said
    /// what to do.
    pub(super) fn waits_for_evidence(&self) -> bool {
        self.evidence() == Asked::Yes && self.is_incomplete(&self.given().1)
    }

    fn evidence(&self) -> Asked {
        match &self.phase {
            Phase::Starting(it) => it.evidence,
            Phase::Running(_) | Phase::Over(_) => Asked::No,
        }
    }

    /// The program has answered. It may have been asked for a start that is decided by now.
    pub(super) fn handle_evidence(&mut self, evidence: Evidence) {
        if let Phase::Starting(it) = &mut self.phase
            && it.evidence == Asked::Yes
        {
            it.evidence = Asked::Answered(evidence);
        }
    }

    /// The lineage of this run is recorded; the answer may be of one before.
    pub(super) fn handle_recorded(&mut self, lineage: u64, now_ns: u64) {
        let is_ours = self.config.lineage == lineage;
        if let Phase::Running(it) = &mut self.phase
            && is_ours
        {
            it.machine.handle_recorded(now_ns);
        }
    }

    /// Assembles legs that were refused, if the mirror may start without the missing ones.
    ///
    /// # Errors
    /// It does not: the refusal, and why not by itself.
    pub(super) fn without_missing(
        &self,
        given: &[Result<Superblock, NoLeg>],
        refusal: Refusal,
        wishes: Wishes,
    ) -> Result<Assembly, (Refusal, Option<Reason>)> {
        let missing = match &refusal {
            Refusal::Incomplete(missing) if wishes == Wishes::default() => missing,
            _ => return Err((refusal, None)),
        };
        if self.needs_writing(&refusal).is_some() {
            return Err((refusal, None));
        }
        let permission = self.config.degraded.permission;
        let evidence = match self.evidence() {
            Asked::Answered(evidence) => evidence,
            // A leg was lost while it was acquired: the record is asked for when it is tried again.
            Asked::No | Asked::Yes if permission == Permission::On => return Err((refusal, None)),
            Asked::No | Asked::Yes => Evidence::None,
        };
        let run = self.config.owner.run;
        match decide(given, missing, permission, evidence, run) {
            Decision::Start(assembly) => Ok(*assembly),
            Decision::Wait(reason) => Err((refusal, Some(reason))),
        }
    }

    /// The mirror begins to run with these legs: a start without legs is said, and what one that
    /// no user has forced shows is recorded.
    pub(super) fn handle_start(
        &mut self,
        given: &[Result<Chosen, NoLeg>],
        wishes: Wishes,
        cx: &mut Context<'_>,
    ) {
        let given = superblocks(given);
        let plain = assemble(&given, Wishes::default());
        let is_forced = wishes != Wishes::default() && plain.is_err();
        // Where nothing may be written the legs don't show this run.
        let is_owner = given.iter().flatten().all(|it| it.features.read_only == 0);
        if let Phase::Running(it) = &mut self.phase
            && self.config.degraded.records
            && is_owner
            && !is_forced
        {
            let record = it.machine.lineage_record();
            it.record.last = Some(record);
            let has_all = matches!(&plain, Ok(it) if it.absent.is_empty());
            let request = RecordRequest::Started(record, has_all);
            cx.events.push_back(HostEvent::Record(cx.number, request));
        }
        self.started_without = match plain {
            Err(Refusal::Incomplete(missing)) if !is_forced => missing,
            _ => Vec::new(),
        };
        if !self.started_without.is_empty() {
            let known: Vec<Superblock> = given.iter().filter_map(|it| it.ok()).collect();
            let line = messages::started_without(&self.started_without, &known);
            let line = format!("{}: {line}", self.config.name);
            cx.events.push_back(HostEvent::Warning(cx.number, line));
        }
    }

    /// Hands over the record of the lineage that is to begin: changes wait for it.
    pub(super) fn keep_lineage(&mut self, cx: &mut Context<'_>) {
        let it = self.expect_running();
        let record = it.machine.lineage_record();
        it.record.last = Some(record);
        it.record.until_ns = Some(cx.now_ns.saturating_add(RECORD_WAIT_NS));
        let request = RecordRequest::Keep(record);
        let event = HostEvent::Record(cx.number, request);
        cx.events.push_back(event);
    }

    /// The mirror has stopped: says so if the lineage that was to begin did not. The program may
    /// not have written its record yet, and does so before it hears this.
    pub(super) fn withdraw_lineage(&mut self, cx: &mut Context<'_>) {
        let it = self.expect_running();
        let proposed = it.machine.superblock().history.current().id;
        if let Some(record) = it.record.last.filter(|it| it.lineage != proposed) {
            let request = RecordRequest::NeverBegan(record);
            let event = HostEvent::Record(cx.number, request);
            cx.events.push_back(event);
        }
    }

    /// Hands over the record of the committed state, if other legs are in sync in it than in the
    /// one before, or it is that of a clean stop.
    pub(super) fn keep_record(&mut self, cx: &mut Context<'_>) {
        let keeps = self.config.degraded.records;
        let Running {
            machine,
            record: kept,
            ..
        } = self.expect_running();
        let event = machine.committed().event;
        let is_news = core::mem::replace(&mut kept.event, event) != event;
        if !is_news || !keeps {
            return; // no record is kept, or it has this state
        }
        let record = machine.lineage_record();
        let what = |of: &Record| (of.lineage, of.in_sync, of.clean, of.run);
        if kept.last.as_ref().map(what) != Some(what(&record)) {
            kept.last = Some(record);
            let request = RecordRequest::Keep(record);
            cx.events.push_back(HostEvent::Record(cx.number, request));
        }
    }
}
