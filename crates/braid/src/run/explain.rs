//! `explain`: why I/Os went where they went, asked of all cores and told in JSON.
//!
//! # Contract
//! Asks about one volume for a bounded time, then no core writes anything down any more. One call
//! at a time for each volume; the calls of others are answered meanwhile.
//!
//! # Limits
//! [`COUNT_MAX`] I/Os in an answer, [`ATTEMPTS_MAX`] with their further attempts: what 64 paths say
//! of each then fits a control message.
mod show;

pub use show::{ExplainArgs, ask};

use super::call::ExplainParams;
use super::entries::PathEntry;
use super::service::Service;
use crate::control::rpc::ControlError;
use cores::Told;
use engine::host::{IoOp, Obstacle, Sample, Wait, Wanted};
use multipath::Outcome;
use policy::{Basis, Forecast, Look};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Most I/Os of one call.
const COUNT_MAX: u32 = 24;
/// Most attempts in one answer.
const ATTEMPTS_MAX: usize = 32;
/// Longest wait for them.
const WAIT_NS_MAX: u64 = 60_000_000_000;
/// Records of cores that nobody has looked at: no core waits for room.
const TOLD_MAX: usize = 64;
/// How long a core may take to hear that it is over.
const END_WAIT: Duration = Duration::from_secs(5);

/// Volumes that somebody asks about.
#[derive(Default)]
pub struct Asked(Mutex<BTreeSet<u16>>);

impl ExplainParams {
    fn wanted(&self) -> Result<Wanted, ControlError> {
        let rules = [
            (
                (1..=COUNT_MAX).contains(&self.count),
                format!("count must be 1…{COUNT_MAX}"),
            ),
            (
                (1..=WAIT_NS_MAX).contains(&self.wait_ns),
                format!("wait_ns must be 1…{WAIT_NS_MAX}"),
            ),
            (
                self.reads || self.writes,
                "reads or writes must be true".into(),
            ),
        ];
        match rules.into_iter().find(|(holds, _)| !holds) {
            Some((_, why)) => Err(ControlError::params(why)),
            None => Ok(Wanted {
                count: self.count,
                reads: self.reads,
                writes: self.writes,
                length_min: self.bytes_min,
            }),
        }
    }
}

/// One volume is asked about for as long as this lives.
struct Asking<'a> {
    asked: &'a Asked,
    volume: u16,
}

impl<'a> Asking<'a> {
    /// `None`: somebody else asks.
    fn begin(asked: &'a Asked, volume: u16) -> Option<Self> {
        let mut all = asked.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Not `then_some`: what is dropped there would take the lock again.
        all.insert(volume).then(|| Self { asked, volume })
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let all = self.asked.0.lock();
        all.unwrap_or_else(PoisonError::into_inner)
            .remove(&self.volume);
    }
}

/// Name and URI of a path.
type Shown = (String, String);

impl Service {
    /// Why the next I/Os of a volume went where they went.
    ///
    /// # Errors
    /// There is no such volume, or it was removed meanwhile; somebody else asks about it; what is
    /// asked for can't be.
    pub fn explain(&self, params: &ExplainParams) -> Result<Value, ControlError> {
        let wanted = params.wanted()?;
        let (volume, _, before) = self.volume_paths(&params.volume)?;
        let Some(_asking) = Asking::begin(&self.asked, volume) else {
            return Err(ControlError::refused(format!(
                "{}: somebody else is being told why its I/O goes where it goes; try again",
                params.volume
            )));
        };
        let begun = Instant::now();
        let (to, told) = mpsc::sync_channel(TOLD_MAX);
        self.senders.explain(volume, Some((wanted, to)));
        let deadline = begun + Duration::from_nanos(params.wait_ns);
        let mut samples = collect(&told, params.count, deadline);
        let waited = begun.elapsed();
        self.senders.explain(volume, None);
        samples.extend(std::iter::from_fn(|| told.recv_timeout(END_WAIT).ok()));
        let samples = first(samples, params.count);
        let (now, policy, after) = self.volume_paths(&params.volume)?;
        if now != volume {
            let text = format!("{}: it was removed meanwhile", params.volume);
            return Err(ControlError::refused(text));
        }
        let ios: Vec<_> = samples.iter().map(|told| attempt(told, &after)).collect();
        // A path that has another number now, or had, would be taken for another path.
        let same = |(path, of): &(&u8, &Shown)| before.get(*path).is_some_and(|it| it.1 == of.1);
        let paths = after.iter().filter(same);
        let paths =
            paths.map(|(path, (name, uri))| json!({"path": path, "name": name, "uri": uri}));
        Ok(json!({
            "volume": params.volume,
            "policy": policy,
            "wanted": params.count,
            "waited_ns": waited.as_nanos() as u64,
            "paths": paths.collect::<Vec<_>>(),
            "ios": ios,
        }))
    }

    /// Number of a volume, its policy, and its paths by their numbers.
    fn volume_paths(&self, name: &str) -> Result<(u16, String, BTreeMap<u8, Shown>), ControlError> {
        let state = self.state();
        let volume = state.volumes.number(name)?;
        state.has_paths(volume)?;
        let running = &state.volumes[volume];
        let paths = running.entries().iter();
        let shown = |it: &PathEntry| (it.name().to_owned(), it.config().uri.to_string());
        let paths = paths.map(|it| (it.index().0, shown(it)));
        let paths = paths.collect();
        Ok((volume, running.of.policy.to_string(), paths))
    }
}

/// Which I/O an attempt is of.
fn identity((core, sample): &Told) -> (u64, u16) {
    (sample.first_ns, *core)
}

/// Whether its I/O has ended with this attempt.
fn is_final((_, sample): &Told) -> bool {
    let goes_on =
        |outcome: Outcome| outcome.is_path_error() || matches!(outcome, Outcome::Busy { .. });
    sample.came.is_some_and(|came| !goes_on(came.outcome))
}

/// Until so many I/Os have ended for good, or the time is over.
fn collect(told: &Receiver<Told>, count: u32, deadline: Instant) -> Vec<Told> {
    let mut samples: Vec<Told> = Vec::new();
    let mut ended = 0;
    while ended < count && samples.len() < ATTEMPTS_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        match told.recv_timeout(left) {
            Ok(sample) => {
                ended += u32::from(is_final(&sample));
                samples.push(sample);
            }
            Err(RecvTimeoutError::Timeout) => break,
            Err(RecvTimeoutError::Disconnected) => break, // no core has it
        }
    }
    samples
}

/// So many I/Os in order of time, each with its further attempts. I/Os under way are among them
/// only where too few have ended.
fn first(mut samples: Vec<Told>, count: u32) -> Vec<Told> {
    let ended: BTreeSet<_> = samples
        .iter()
        .filter(|it| is_final(it))
        .map(identity)
        .collect();
    if ended.len() >= count as usize {
        samples.retain(|told| ended.contains(&identity(told)));
    }
    samples.sort_by_key(|told| (identity(told), told.1.at_ns));
    let mut ios = BTreeSet::new();
    samples.retain(|told| {
        ios.insert(identity(told));
        ios.len() <= count as usize
    });
    samples.truncate(ATTEMPTS_MAX);
    samples
}

fn attempt((core, sample): &Told, paths: &BTreeMap<u8, Shown>) -> Value {
    let choice = &sample.choice;
    let (waits_for, waits_ns) = waits(sample).unzip();
    let chose = matches!(sample.wait, None | Some(Wait::Path(_)));
    let chosen = choice.chosen.filter(|_| chose);
    let look = choice.look().filter(|_| chose);
    let expected_ns = look.and_then(Look::expected_ns);
    let latency_ns = sample.came.map(|came| came.latency_ns);
    let error_ns = latency_ns.zip(expected_ns);
    let error_ns = error_ns.map(|(latency_ns, expected_ns)| latency_ns as i64 - expected_ns as i64);
    let looks = (0_u8..).zip(choice.looks().iter().zip(&sample.obstacles));
    let there = looks.filter(|(path, _)| chose && paths.contains_key(path));
    let looks = there.map(|(path, (look, obstacle))| path_in_json(path, look, *obstacle));
    let op = match sample.io.op {
        IoOp::Read => "read",
        IoOp::Write { fua: false } => "write",
        IoOp::Write { fua: true } => "write-fua",
        IoOp::Flush => "flush",
        IoOp::WriteZeroes { .. } => "write-zeroes",
        IoOp::Deallocate => "deallocate",
    };
    json!({
        "io": sample.first_ns,
        "at_ns": sample.at_ns,
        "core": core,
        "op": op,
        "offset": sample.io.offset,
        "bytes": sample.io.length,
        "piece": sample.piece,
        "moves": sample.hops,
        "repetitions": sample.retries,
        "waited_ns": sample.waited_ns,
        "policy": choice.policy.to_string(),
        "paths": looks.collect::<Vec<_>>(),
        "chosen": chosen.map(|path| path.0),
        "why": chose.then(|| choice.why.name()),
        "waits_for": waits_for,
        "waits_ns": waits_ns.flatten(),
        "outcome": sample.came.map(|came| came.outcome.to_string()),
        "latency_ns": latency_ns,
        "queued_ns": sample.came.map(|came| came.queued_ns),
        "expected_ns": expected_ns,
        "error_ns": error_ns,
    })
}

/// Reason of an attempt without a path to wait, and for how long at most, if that is known.
fn waits(sample: &Sample) -> Option<(&'static str, Option<u64>)> {
    let (word, until_ns) = match sample.wait? {
        Wait::Path(until_ns) => ("path", until_ns),
        Wait::Held(until_ns) => ("lost-controller", until_ns),
        Wait::Behind => ("overlapping-write", u64::MAX),
        Wait::UncleanStop(until_ns) => ("unclean-stop", until_ns),
    };
    let left_ns = (until_ns < u64::MAX).then(|| until_ns.saturating_sub(sample.at_ns));
    Some((word, left_ns))
}

fn path_in_json(path: u8, look: &Look, obstacle: Option<Obstacle>) -> Value {
    let mut facts = Map::new();
    let mut add = |key: &str, value: Value| facts.insert(key.to_owned(), value);
    add("path", path.into());
    add("usable", look.usable.into());
    add("why_not", obstacle.map(Obstacle::in_words).into());
    add("stands_by", look.stands_by.into());
    add("in_flight", look.in_flight.into());
    add("in_flight_elsewhere", look.elsewhere.into());
    if look.usable {
        for (key, value) in basis(&look.basis) {
            add(key, value);
        }
    }
    facts.into()
}

/// Basis of the policy's choice.
fn basis(basis: &Basis) -> Vec<(&'static str, Value)> {
    match *basis {
        Basis::Unknown => vec![("known", false.into())],
        Basis::Distance(distance) => vec![("distance", distance.into())],
        Basis::Turn { before, left } => {
            vec![("before", before.into()), ("bytes_left", left.into())]
        }
        Basis::TurnWithin {
            before,
            left,
            recent_ns,
        } => vec![
            ("before", before.into()),
            ("bytes_left", left.into()),
            ("recent_ns", recent_ns.into()),
        ],
        Basis::Depth => Vec::new(),
        Basis::Credit {
            weight,
            credit,
            smoothed_ns,
        } => vec![
            ("weight", weight.into()),
            ("credit", credit.into()),
            ("smoothed_ns", smoothed_ns.into()),
        ],
        Basis::Forecast(forecast) => forecast_in_json(&forecast),
        Basis::Crowd { forecast, usual_ns } => {
            let mut facts = forecast_in_json(&forecast);
            facts.push(("usual_ns", usual_ns.into()));
            facts
        }
        Basis::Reader { number, of, wanted } => vec![
            ("number", number.into()),
            ("of", of.into()),
            ("wanted", wanted.into()),
        ],
        Basis::Named(named) => vec![("named", named.into())],
        Basis::Recent(mean_ns) => vec![("recent_ns", mean_ns.into())],
        Basis::Bytes { bytes, throughput } => vec![
            ("bytes_in_flight", bytes.into()),
            ("throughput", throughput.into()),
        ],
        Basis::Served {
            service_ns,
            estimate_ns,
        } => vec![
            ("service_ns", service_ns.into()),
            ("estimate_ns", estimate_ns.into()),
        ],
    }
}

/// Forecast of `soonest`.
fn forecast_in_json(it: &Forecast) -> Vec<(&'static str, Value)> {
    vec![
        ("known", true.into()),
        ("base_ns", it.base_ns.into()),
        ("wait_ns", it.wait_ns.into()),
        ("tail_ns", it.tail_ns.into()),
        ("expected_ns", it.time_ns().into()),
        ("price_ns", it.price_ns.into()),
        ("penalty_ns", it.penalty_ns().into()),
        ("cost_ns", it.cost_ns.into()),
        ("silent", it.silent.into()),
        ("failed_lately", it.has_failed().into()),
    ]
}
