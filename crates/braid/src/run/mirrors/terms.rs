//! What has to be so before something is asked of a mirror, and what is answered when it was.
use super::orders::MirrorParams;
use crate::control::rpc::Failure;
use crate::run::service::Service;
use engine::mirror::{LegReport, LegStatus, MirrorOrder, MirrorReport, Pending};
use serde_json::{Value, json};
use std::time::Duration;

/// How long the engine has to take an order back.
const TAKE_BACK: Duration = Duration::from_secs(5);

impl Service {
    /// A mirror as it is. What is left of legs that are none any more goes, unless somebody changes
    /// something just now: a leg that is about to be one must not.
    pub(super) fn status_of_mirror(&self, volume: u16) -> Result<Value, Failure> {
        if let Some(_alone) = self.changes.alone_now() {
            self.tidy_legs(volume)?;
        }
        Ok(self.report()?.mirror(volume))
    }

    /// Takes an order back whose answer is not waited for any more (T55); what became of it, for
    /// people: nothing is pending, or what is, and how it is undone.
    pub(super) fn take_back(&self, volume: u16, pending: Pending, undo: &str) -> String {
        self.senders.order(volume, MirrorOrder::TakeBack(pending));
        let mut taken = None;
        self.wait_for(volume, TAKE_BACK, |it| {
            let answer = it.taken_back.filter(|it| it.0 == pending);
            taken = answer.map(|it| it.1);
            taken.is_some()
        });
        match taken {
            Some(true) => "nothing has changed, and nothing is pending".into(),
            Some(false) => format!(
                "it is being written to the legs, and takes effect when they answer (braid mirror \
                 status shows it); {undo}"
            ),
            None => format!("the mirror's core does not answer: it may take effect yet; {undo}"),
        }
    }

    /// # Errors
    /// A newer braid has written on its legs what this one would not write down again.
    pub(super) fn may_write(&self, volume: u16, report: &MirrorReport) -> Result<(), Failure> {
        match report.superblock.map_or(0, |it| it.features.read_only) {
            0 => Ok(()),
            _ => Err(Failure::refused(format!(
                "{} was written by a newer braid, and this one may only read it: take that one",
                self.name(volume)
            ))),
        }
    }
}

/// Refuses a change of a mirror that could not be noted now: no leg in sync, other than `but`, can
/// be written. Else it would be pending until one can.
///
/// # Errors
/// Why, and which ones.
pub(super) fn may_be_noted(
    name: &str,
    report: &MirrorReport,
    but: Option<u8>,
) -> Result<(), Failure> {
    let legs = report.legs.iter();
    let in_sync = legs.filter(|leg| leg.status == LegStatus::InSync && leg.slot != but);
    let in_sync: Vec<&LegReport> = in_sync.collect();
    if in_sync.is_empty() || in_sync.iter().any(|leg| leg.reachable) {
        return Ok(());
    }
    let legs: Vec<&str> = in_sync.iter().map(|leg| leg.name.as_str()).collect();
    Err(Failure::refused(format!(
        "{name}: no leg in sync can be written now, so nothing can be noted on one: {}; try again \
         when it is back (braid mirror status shows it)",
        legs.join(", ")
    )))
}

/// # Errors
/// There are no two copies to compare; a check is under way, whose user would be told of another
/// one's end.
pub(super) fn may_check(name: &str, report: &MirrorReport) -> Result<(), Failure> {
    if report.checking.is_some() {
        let why = format!("end it first (braid mirror end-check {name}), or wait for its end");
        return Err(Failure::refused(format!(
            "{name}: a check or a repair is under way: {why}"
        )));
    }
    let legs = report.legs.iter();
    match legs.filter(|leg| leg.status == LegStatus::InSync).count() {
        2.. => Ok(()),
        _ => Err(Failure::refused(format!(
            "{name}: fewer than two legs are in sync, so there is nothing to compare: bring \
             another one back first (braid mirror restore, status --wait)"
        ))),
    }
}

/// The leg by which a repair goes that names none.
///
/// # Errors
/// Some came in sync later than others: which one is right is for a user to say.
pub(super) fn source(name: &str, report: &MirrorReport) -> Result<Option<String>, Failure> {
    let legs = report.legs.iter();
    let in_sync = legs.filter(|leg| leg.status == LegStatus::InSync);
    let mut ages: Vec<_> = in_sync
        .filter_map(|leg| Some((leg.slot?, leg, leg.facts?)))
        .collect();
    ages.sort_by_key(|it| it.0);
    let Some((slot, first, facts)) = ages.first() else {
        return Ok(None);
    };
    if ages.iter().all(|it| it.2.since_event == facts.since_event) {
        return Ok(Some(format!("leg {slot} ({})", first.name)));
    }
    let each = ages.iter().map(|(slot, leg, facts)| {
        format!(
            "leg {slot} ({}) in sync since event {}, shows event {}",
            leg.name, facts.since_event, facts.event
        )
    });
    Err(Failure::refused(format!(
        "{name}: its legs are not equally old, so none is taken unasked: {}; say which one counts: \
         braid mirror repair {name} --from LEG",
        each.collect::<Vec<_>>().join("; ")
    )))
}

/// The answer to an order that a mirror has.
pub(super) fn answer(verb: &str, params: &MirrorParams) -> Value {
    let state = match verb {
        "check" => "checking",
        "repair" => "repairing",
        "pause" => "check-paused",
        "resume" => "check-resumed",
        "end" => "check-ended",
        "fail" => "taken-out",
        "restore" => "returning",
        "accept-loss" => "accepted",
        _ => "running",
    };
    let leg = params.leg.as_ref().map(|leg| match leg.parse::<u8>() {
        Ok(slot) => json!(slot),
        Err(_) => json!(leg),
    });
    json!({"volume": params.volume, "leg": leg, "state": state})
}
