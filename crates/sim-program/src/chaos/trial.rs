//! One world, whatever becomes of it: a panic is a finding too.
//!
//! # Limits
//! One hook for panics in the whole program; it keeps those of [`outcome`] and [`story()`], and
//! shows all others as before.
use super::programs::Modules;
use sim::chaos::plan::Plan;
use sim::chaos::run::{self, Report};
use sim::chaos::story::{self, Line, Lines};
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

/// A violation found in a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The part that two worlds with the same violation share.
    pub kind: String,
    /// In words.
    pub text: String,
    /// The block in question.
    pub block: Option<u64>,
    /// When it could be seen, ns.
    pub seen_ns: Option<u64>,
}

/// Result of a world.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Empty after a panic.
    pub report: Report,
    pub found: Option<Found>,
}

#[derive(Default)]
struct Panic {
    text: String,
    place: String,
}

thread_local! {
    static IS_KEPT: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<Option<Panic>> = const { RefCell::new(None) };
}

/// From now on, panics of worlds are kept instead of shown.
pub fn keep_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let show = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_KEPT.get() {
                return show(info);
            }
            let place = info.location().map(ToString::to_string);
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().map(|it| (*it).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            KEPT.set(Some(Panic {
                text: text.unwrap_or_default(),
                place: place.unwrap_or_default(),
            }));
        }));
    });
}

/// Runs the world of a plan.
pub fn outcome(plan: &Plan) -> Outcome {
    attempt(|| run::run(plan, &Modules::new()))
}

/// As [`outcome`], of any world.
pub fn attempt(world: impl FnOnce() -> Report) -> Outcome {
    match kept(world) {
        Ok(report) => {
            let found = report.finding.as_ref().map(|finding| Found {
                kind: finding.thing(),
                text: finding.to_string(),
                block: report.block,
                seen_ns: report.seen_ns,
            });
            Outcome { report, found }
        }
        Err(Panic { text, place }) => Outcome {
            report: Report::default(),
            found: Some(Found {
                text: format!("panic at {place}: {text}"),
                kind: format!("panic at {place}"),
                block: None,
                seen_ns: None,
            }),
        },
    }
}

/// Events in the world of a plan until the violation could be seen, as far as it came.
pub fn story(plan: &Plan, found: &Found) -> Vec<Line> {
    let lines = Lines::default();
    let _ = kept(|| story::story(plan, &Modules::new(), found.block, &lines));
    let mut lines = lines.take();
    lines.retain(|line| found.seen_ns.is_none_or(|seen_ns| line.at_ns <= seen_ns));
    lines
}

fn kept<T>(work: impl FnOnce() -> T) -> Result<T, Panic> {
    IS_KEPT.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    IS_KEPT.set(false);
    result.map_err(|_| KEPT.take().unwrap_or_default())
}

/// The kind of a world that does not come back.
pub const HANGS: &str = "hangs";

/// A world that does not come back.
pub fn hangs() -> Outcome {
    Outcome {
        report: Report::default(),
        found: Some(Found {
            kind: HANGS.to_owned(),
            text: "the world does not come back".to_owned(),
            block: None,
            seen_ns: None,
        }),
    }
}
