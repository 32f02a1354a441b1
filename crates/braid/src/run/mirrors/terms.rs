//! Conditions for an order to a mirror, and its answers.
use crate::control::rpc::ControlError;
use crate::run::call::{EngineCall as Call, MirrorParams};
use crate::run::service::Service;
use engine::mirror::{LegReport, LegStatus, MirrorReport};
use mirror::machine::LegFacts;
use serde_json::{Value, json};

impl Service {
    /// A mirror as it is. A volume that is no leg any more goes, unless another verb
    /// changes the mirror just now: a leg that is about to be one must not. That may take its time,
    /// and keeps no verb of another volume waiting.
    pub(super) fn status_of_mirror(&self, volume: u16, name: &str) -> Result<Value, ControlError> {
        if let Some(_alone) = self.alone_with_mirror_now(name) {
            self.tidy_legs(volume);
        }
        let report = self.report()?;
        // Meanwhile it may have left, and another one may have its number.
        let volume = report.mirror_named(name)?;
        Ok(report.mirror(volume))
    }

    /// # Errors
    /// A newer braid has written on its legs what this one would not write down again.
    pub(super) fn may_write(&self, volume: u16, report: &MirrorReport) -> Result<(), ControlError> {
        match report.superblock.map_or(0, |it| it.features.read_only) {
            0 => Ok(()),
            _ => Err(ControlError::refused(format!(
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
) -> Result<(), ControlError> {
    let legs = report.legs.iter();
    let in_sync = legs.filter(|leg| leg.status == LegStatus::InSync && leg.slot != but);
    let in_sync: Vec<&LegReport> = in_sync.collect();
    if in_sync.is_empty() || in_sync.iter().any(|leg| leg.reachable) {
        return Ok(());
    }
    let legs: Vec<&str> = in_sync.iter().map(|leg| leg.name.as_str()).collect();
    Err(ControlError::refused(format!(
        "{name}: no leg in sync can be written now, so nothing can be noted on one: {}; try again \
         when it is back (braid mirror status shows it)",
        legs.join(", ")
    )))
}

/// # Errors
/// There are no two copies to compare; a check is under way, whose user would be told of another
/// one's end.
pub(super) fn may_check(name: &str, report: &MirrorReport) -> Result<(), ControlError> {
    if report.checking.is_some() {
        let why = format!("end it first (braid mirror end-check {name}), or wait for its end");
        return Err(ControlError::refused(format!(
            "{name}: a check or a repair is under way: {why}"
        )));
    }
    let legs = report.legs.iter();
    match legs.filter(|leg| leg.status == LegStatus::InSync).count() {
        2.. => Ok(()),
        _ => Err(ControlError::refused(format!(
            "{name}: fewer than two legs are in sync, so there is nothing to compare: bring \
             another one back first (braid mirror restore, status --wait)"
        ))),
    }
}

/// Number and name of the leg by which a repair goes that names none: the lowest number of legs
/// between which this engine knows no difference.
///
/// # Errors
/// Some came in sync later than others, or were found bad and rewritten, or could not be written or
/// read: which one is right is for a user to say.
pub(super) fn source<'a>(
    name: &str,
    report: &'a MirrorReport,
) -> Result<(&'a LegReport, String), ControlError> {
    let legs = report.legs.iter();
    let in_sync = legs.filter(|leg| leg.status == LegStatus::InSync);
    let known = in_sync.filter_map(|leg| Some((leg.slot?, leg, leg.facts?)));
    let mut known: Vec<_> = known.collect();
    known.sort_by_key(|it| it.0);
    let Some((slot, first, facts)) = known.first() else {
        let why = "no leg in sync is known yet: try again (braid mirror status shows them)";
        return Err(ControlError::refused(format!("{name}: {why}")));
    };
    let mut ages = known.iter().map(|it| it.2.since_event);
    let same_age = ages.all(|age| age == facts.since_event);
    if same_age && known.iter().all(|it| history(&it.2).is_empty()) {
        return Ok((first, format!("leg {slot} ({})", first.name)));
    }
    let each = known.iter().map(|(slot, leg, facts)| {
        format!(
            "leg {slot} ({}) in sync since event {}, shows event {}{}",
            leg.name,
            facts.since_event,
            facts.event,
            history(facts).concat()
        )
    });
    let differ = match same_age {
        true => "differ in what happened to them",
        false => "are not equally old",
    };
    Err(ControlError::refused(format!(
        "{name}: its legs {differ}, so none is taken unasked: {}; say which one counts: braid \
         mirror repair {name} --from LEG",
        each.collect::<Vec<_>>().join("; ")
    )))
}

/// Event that makes the copy of a leg in sync worth less than others, as far as this
/// engine knows.
fn history(facts: &LegFacts) -> Vec<String> {
    let counted = [
        (u64::from(facts.errors), "failed reads lately"),
        (facts.repaired, "ranges rewritten from others"),
        (u64::from(facts.bad.0), "ranges that it could not write"),
    ];
    let mut all: Vec<String> = counted
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!(", {count} {what}"))
        .collect();
    if facts.cut_short || facts.cut_end.is_some() {
        all.push(", was cut off".into());
    }
    all
}

/// The answer to an order that a mirror has.
pub(super) fn answer(call: &Call, params: &MirrorParams) -> Value {
    let state = match call {
        Call::MirrorCheck(_) => "checking",
        Call::MirrorRepair(_) => "repairing",
        Call::MirrorPause(_) => "check-paused",
        Call::MirrorResume(_) => "check-resumed",
        Call::MirrorEnd(_) => "check-ended",
        Call::MirrorFail(_) => "taken-out",
        Call::MirrorRestore(_) => "returning",
        Call::MirrorAcceptLoss(_) => "accepted",
        _ => "running",
    };
    let leg = params.leg.as_ref().map(|leg| match leg.parse::<u8>() {
        Ok(slot) => json!(slot),
        Err(_) => json!(leg),
    });
    json!({"volume": params.volume, "leg": leg, "state": state})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any of it makes a difference between legs, so none of them is taken unasked.
    #[test]
    fn history_names_each_fault_of_a_leg_in_sync() {
        let well = LegFacts {
            in_sync: true,
            rebuilding: false,
            returning: false,
            leaving: false,
            lapsed: false,
            cut_short: false,
            cut_end: None,
            accepting: false,
            event: 3,
            since_event: 3,
            lacks: 0,
            stuck: 0,
            errors: 0,
            bad: (0, 0, None),
            bad_full: false,
            bad_more: None,
            last_copy: None,
            repaired: 0,
            rescued: 0,
            in_flight: 5,
        };
        assert!(history(&well).is_empty());
        type Fault = fn(&mut LegFacts);
        let faults: [(Fault, &str); 4] = [
            (|it| it.errors = 1, "1 failed reads"),
            (|it| it.repaired = 2, "2 ranges rewritten"),
            (|it| it.bad.0 = 3, "3 ranges that it could not write"),
            (|it| it.cut_end = Some(4096), "cut off"),
        ];
        for (fault, word) in faults {
            let mut facts = well;
            fault(&mut facts);
            let told = history(&facts).concat();
            assert!(told.contains(word), "{told}");
        }
    }
}
