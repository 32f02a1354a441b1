//! Alarms about paths that work, but not as they should: measures of the cores become alarms, lines
//! in the log, and parts of the reports.
//!
//! # Contract
//! [`Health::measured`] never waits: a thread of its own judges. It sleeps while there is nothing
//! to be judged, and cores that rest report nothing. Only the monotonic clock decides; the time of
//! day is shown.
//!
//! * [`space`]: file systems that fill
//! * [`maintenance`]: paths, legs and volumes that `check` does not miss; [`verb`]: its verb
pub mod maintenance;
mod space;
pub mod verb;

use super::events::{Event, Kind as EventKind};
use super::service::{Service, State};
use crate::log;
use crate::units::{format_ns, format_utc};
use anyhow::Context;
use cores::CoreWindow;
use engine::alarms::{Alarm, Alarms, Kind, Limits, Subject, Why};
use maintenance::Maintenance;
use policy::PathIndex;
use serde_json::{Value, json};
use space::Space;
use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often the cores are asked for probes while a path is slow: without I/O they show its end.
const PROBES: Duration = Duration::from_secs(2);
/// States of a path that are kept.
const HISTORY_MAX: usize = 16;
/// Ended alarms are part of `check` for so long.
const ENDED_NS: u64 = 3_600_000_000_000;

/// See the module.
pub struct Health {
    pub space: Space,
    begun: Instant,
    judged: Mutex<Judged>,
    pub maintenance: Maintenance,
    /// When probes may be asked for again.
    probes_at: Mutex<Option<Instant>>,
    /// Set once the thread runs.
    to: OnceLock<mpsc::Sender<Option<CoreWindow>>>,
}

/// A state that a path had from then on.
struct Past {
    at_ns: u64,
    state: String,
    reason: Option<String>,
}

/// State of the alarms.
#[derive(Default)]
struct Judged {
    alarms: Alarms,
    /// The last states of each path, oldest first.
    history: BTreeMap<Subject, VecDeque<Past>>,
    /// Each path when it was measured or changed last: its number may be another one's.
    named: BTreeMap<Subject, Named>,
    /// Alarms that ended as their paths left, until they are reported.
    left: Vec<(Named, Alarm)>,
}

/// A path, as alarms name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub volume: String,
    pub name: String,
    pub uri: String,
}

/// Paths with their volumes, or mirrors: those of one are peers.
type Paths = BTreeMap<Subject, (u16, Named)>;

impl Health {
    /// Nothing is measured yet.
    pub fn new(maintenance: Maintenance) -> Self {
        Self {
            space: Space::default(),
            begun: Instant::now(),
            judged: Mutex::default(),
            maintenance,
            probes_at: Mutex::default(),
            to: OnceLock::new(),
        }
    }

    fn judged(&self) -> MutexGuard<'_, Judged> {
        self.judged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }

    /// A core has measured paths.
    pub fn measured(&self, window: CoreWindow) {
        if let Some(to) = self.to.get() {
            let _ = to.send(Some(window));
        }
    }

    /// Whether to ask for probes, once per [`PROBES`] at most, and how long until the next time.
    fn ask_probes(&self, now: Instant) -> (bool, Duration) {
        let mut at = self
            .probes_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match at.filter(|at| *at > now) {
            Some(at) => (false, at - now),
            None => {
                *at = Some(now + PROBES);
                (true, PROBES)
            }
        }
    }

    /// Other thresholds.
    pub fn set_limits(&self, limits: Limits) {
        let now_ns = self.now_ns();
        self.judged().alarms.set_limits(limits, now_ns);
        self.wake();
    }

    /// Lets the thread look at the times anew.
    pub fn wake(&self) {
        if let Some(to) = self.to.get() {
            let _ = to.send(None);
        }
    }

    /// The time of day of a moment, s since 1970.
    fn unix_s(&self, at_ns: u64) -> u64 {
        unix_s_ago(Duration::from_nanos(self.now_ns().saturating_sub(at_ns)))
    }

    /// Alarms of a path that hold, and those that ended lately, in JSON.
    pub fn of(&self, volume: u16, path: PathIndex) -> (Vec<Value>, Vec<Value>) {
        let subject = Subject { volume, path };
        let now_ns = self.now_ns();
        let judged = self.judged();
        let holds = judged.alarms.of(subject).map(|it| self.json(it, now_ns));
        let holds = holds.collect();
        let ended = judged.alarms.ended().filter(|it| it.subject == subject);
        let is_late = |it: &&Alarm| {
            let age_ns = it.ended_ns.map(|at_ns| now_ns.saturating_sub(at_ns));
            age_ns.is_some_and(|age_ns| age_ns < ENDED_NS)
        };
        let ended = ended.filter(is_late).map(|it| self.json(it, now_ns));
        (holds, ended.collect())
    }

    /// A path has another state from now on.
    pub fn note_state(&self, subject: Subject, named: Named, state: &str, reason: Option<String>) {
        let now_ns = self.now_ns();
        self.judged().note(subject, named, now_ns, state, reason);
    }

    /// A path was removed: its alarms end.
    pub fn end_alarms(&self, subject: Subject) {
        let now_ns = self.now_ns();
        self.judged().end_alarms(subject, now_ns);
        self.wake();
    }

    /// The last states of a path, oldest first, in JSON.
    pub fn history(&self, volume: u16, path: PathIndex) -> Vec<Value> {
        let judged = self.judged();
        let history = judged.history.get(&Subject { volume, path });
        let shown = history.into_iter().flatten().map(|it| {
            json!({
                "since_s": self.unix_s(it.at_ns),
                "state": it.state,
                "reason": it.reason,
            })
        });
        shown.collect()
    }

    fn json(&self, alarm: &Alarm, now_ns: u64) -> Value {
        let end_ns = alarm.ended_ns.unwrap_or(now_ns);
        json!({
            "alarm": alarm.why.kind().name(),
            "why": words(&alarm.why),
            "since_s": self.unix_s(alarm.since_ns),
            "for_ns": end_ns.saturating_sub(alarm.since_ns),
            "ended_s": alarm.ended_ns.map(|at_ns| self.unix_s(at_ns)),
        })
    }
}

/// The time of day so long ago, s since 1970.
fn unix_s_ago(ago: Duration) -> u64 {
    let at = SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH);
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The state that an alarm is, for people.
fn state<'a>(kind: Kind) -> &'a str {
    match kind {
        Kind::Slow => "slow",
        Kind::Errors => "answering with errors",
        Kind::Flapping => "flapping",
        Kind::LateKeepAlive => "late with keep-alives",
    }
}

/// The reason of an alarm, with figures.
pub fn words(why: &Why) -> String {
    let time = |ns: u64| format_ns(ns as f64);
    match *why {
        Why::Slow {
            writes,
            now_ns,
            was_ns,
            peers_ns,
        } => {
            let op = if writes { "writes" } else { "reads" };
            let peers = match peers_ns {
                Some(ns) => format!("; other paths {}", time(ns)),
                None => String::new(),
            };
            format!(
                "p90 of {op} is {}, was {}{peers}",
                time(now_ns),
                time(was_ns)
            )
        }
        Why::Errors { errors, ios } => {
            format!("{errors} of {ios} I/Os within 4 s ended with errors")
        }
        Why::Flapping { losses, window_ns } => {
            format!("lost {losses} times within {}", time(window_ns))
        }
        Why::LateKeepAlive { took_ns, limit_ns } => format!(
            "a keep-alive was answered after {}, more than {}",
            time(took_ns),
            time(limit_ns)
        ),
    }
}

/// The same by the word in reports.
fn state_of(word: &str) -> &str {
    let all = [
        Kind::Slow,
        Kind::Errors,
        Kind::Flapping,
        Kind::LateKeepAlive,
    ];
    let found = all.into_iter().find(|it| it.name() == word);
    found.map_or(word, |it| state(it))
}

/// One alarm of a report in words, as a state and since when, or until when.
pub fn line(alarm: &Value) -> String {
    let text = |key: &str| alarm[key].as_str().unwrap_or_default();
    let utc = |key: &str| alarm[key].as_u64().map(format_utc).unwrap_or_default();
    let name = state_of(text("alarm"));
    let lasted = format_ns(alarm["for_ns"].as_u64().unwrap_or(0) as f64);
    match alarm["ended_s"].is_null() {
        true => format!(
            "{name} since {} ({lasted}): {}",
            utc("since_s"),
            text("why")
        ),
        false => format!(
            "was {name} for {lasted} until {}: {}",
            utc("ended_s"),
            text("why")
        ),
    }
}

impl Judged {
    /// Adds to the history of a path.
    fn note(
        &mut self,
        subject: Subject,
        named: Named,
        at_ns: u64,
        state: &str,
        reason: Option<String>,
    ) {
        self.enter(subject, named, at_ns);
        let history = self.history.entry(subject).or_default();
        if history.len() == HISTORY_MAX {
            history.pop_front();
        }
        history.push_back(Past {
            at_ns,
            state: state.to_owned(),
            reason,
        });
    }

    /// A number is this path's. Another one that had it has left.
    fn enter(&mut self, subject: Subject, named: Named, now_ns: u64) {
        let before = self.named.get(&subject);
        if before.is_some_and(|it| it.uri != named.uri) {
            self.leave(subject, now_ns);
        }
        self.named.insert(subject, named);
    }

    /// Forgets a path.
    fn leave(&mut self, subject: Subject, now_ns: u64) {
        self.end_alarms(subject, now_ns);
        self.named.remove(&subject);
        self.history.remove(&subject);
    }

    fn end_alarms(&mut self, subject: Subject, now_ns: u64) {
        let ended = self.alarms.remove(subject, now_ns);
        if let Some(named) = self.named.get(&subject) {
            let ended = ended.into_iter().map(|it| (named.clone(), it));
            self.left.extend(ended);
        }
    }

    /// Forgets paths that have left, and those whose numbers others have now.
    fn forget_others(&mut self, paths: &Paths, now_ns: u64) {
        let leads = |it: &Subject| paths.get(it).map(|(_, named)| &named.uri);
        let gone = |(it, of): (&Subject, &Named)| (leads(it) != Some(&of.uri)).then_some(*it);
        let gone: Vec<Subject> = self.named.iter().filter_map(gone).collect();
        gone.into_iter().for_each(|it| self.leave(it, now_ns));
    }
}

impl State {
    /// All paths.
    fn named_paths(&self) -> Paths {
        let volumes = self.volumes.iter();
        let paths = volumes.flat_map(|(volume, running)| {
            let mirror = running.of.leg_of.as_deref();
            let mirror = mirror.and_then(|it| self.volumes.number(it).ok());
            running.entries().iter().map(move |entry| {
                let path = entry.index();
                let named = Named {
                    volume: running.of.name.clone(),
                    name: entry.name().to_owned(),
                    uri: entry.config().uri.to_string(),
                };
                let group = mirror.unwrap_or(volume);
                (Subject { volume, path }, (group, named))
            })
        });
        paths.collect()
    }
}

impl Service {
    /// Starts the thread that judges.
    ///
    /// # Errors
    /// No thread is left.
    pub fn watch_health(self: &Arc<Self>) -> anyhow::Result<()> {
        let (to, windows) = mpsc::channel();
        let _ = self.health.to.set(to);
        self.apply_alarm_keys();
        let service = Arc::downgrade(self);
        let watch = move || {
            let mut wait = Duration::MAX;
            loop {
                let window = match windows.recv_timeout(wait) {
                    Ok(window) => window,
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                };
                let Some(service) = service.upgrade() else {
                    return;
                };
                wait = service.judge(window);
            }
        };
        let builder = std::thread::Builder::new().name("health".into());
        builder.spawn(watch).context("cannot start a thread")?;
        Ok(())
    }

    /// Thresholds as configured.
    pub fn apply_alarm_keys(&self) {
        let limits = {
            let state = self.state();
            state.configured.alarms.limits(state.configured.kato_ms())
        };
        self.health.set_limits(limits);
    }

    /// Judges what is due, and says what has begun and ended. Returns how long nothing is.
    fn judge(&self, window: Option<CoreWindow>) -> Duration {
        let now_ns = self.health.now_ns();
        // Reports take the alarms while they have the state, so both are never held here.
        let paths = self.state().named_paths();
        let mut judged = self.health.judged();
        judged.forget_others(&paths, now_ns);
        let late_ns = window.as_ref().map_or(0, |it| it.late_ns);
        for (subject, measured) in window.iter().flat_map(|it| &it.paths) {
            if let Some((group, named)) = paths.get(subject) {
                judged.enter(*subject, named.clone(), now_ns);
                let alarms = &mut judged.alarms;
                alarms.observe(*subject, *group, measured, late_ns, now_ns);
            }
        }
        judged.alarms.handle_timeout(now_ns);
        let mut changes = std::mem::take(&mut judged.left);
        while let Some(change) = judged.alarms.poll_change() {
            if let Some((_, named)) = paths.get(&change.subject) {
                let (state, reason) = past(&change);
                judged.note(change.subject, named.clone(), now_ns, &state, reason);
                changes.push((named.clone(), change));
            }
        }
        let due_ns = judged.alarms.poll_timeout();
        let is_slow = judged.alarms.is_any_slow();
        drop(judged);
        for (named, change) in &changes {
            say(named, change);
            self.events.emit(event(named, change));
        }
        if !changes.is_empty() {
            self.watch.look();
        }
        let ended = self.health.maintenance.end_expired();
        ended.into_iter().for_each(log::say);
        let probes = is_slow.then(|| {
            let (is_due, left) = self.health.ask_probes(Instant::now());
            if is_due {
                self.senders.measure();
            }
            left
        });
        let due = due_ns.map(|at_ns| Duration::from_nanos(at_ns.saturating_sub(now_ns)));
        let all = [due, probes, self.health.maintenance.next_end()];
        all.into_iter().flatten().min().unwrap_or(Duration::MAX)
    }
}

/// An alarm as a state of its path, and why.
fn past(change: &Alarm) -> (String, Option<String>) {
    let state = state(change.why.kind());
    match change.ended_ns {
        None => (state.to_owned(), Some(words(&change.why))),
        Some(_) => (format!("no longer {state}"), None),
    }
}

fn event(named: &Named, change: &Alarm) -> Event {
    let name = change.why.kind().name();
    let (from, to) = match change.ended_ns {
        None => ("ok", name),
        Some(_) => (name, "ok"),
    };
    Event::new(EventKind::Health, to)
        .from(from)
        .volume(&named.volume)
        .path(&named.name)
        .reason(words(&change.why))
}

/// Writes a line about an alarm that has begun, or ended.
fn say(named: &Named, change: &Alarm) {
    let Named {
        volume, name, uri, ..
    } = named;
    let (state, why) = (state(change.why.kind()), words(&change.why));
    let path = format!("{volume}: path {name} ({uri})");
    match change.ended_ns {
        None => log::warn(format!("{path} is {state}: {why}")),
        Some(ended_ns) => {
            let lasted_ns = ended_ns.saturating_sub(change.since_ns);
            let lasted = format_ns(lasted_ns as f64);
            log::say(format!("{path} is no longer {state}, after {lasted}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn reasons_have_figures() {
        let slow = |peers_ns| Why::Slow {
            writes: false,
            now_ns: 104 * MS,
            was_ns: 900_000,
            peers_ns,
        };
        let flapping = Why::Flapping {
            losses: 3,
            window_ns: 600_000 * MS,
        };
        let late = Why::LateKeepAlive {
            took_ns: 900 * MS,
            limit_ns: 500 * MS,
        };
        for (why, want) in [
            (
                slow(Some(1_100_000)),
                "p90 of reads is 104 ms, was 900 µs; other paths 1.10 ms",
            ),
            (slow(None), "p90 of reads is 104 ms, was 900 µs"),
            (
                Why::Errors {
                    errors: 20,
                    ios: 100,
                },
                "20 of 100 I/Os within 4 s ended with errors",
            ),
            (flapping, "lost 3 times within 600 s"),
            (
                late,
                "a keep-alive was answered after 900 ms, more than 500 ms",
            ),
        ] {
            assert_eq!(words(&why), want);
        }
    }

    #[test]
    fn new_path_of_a_reused_number_inherits_nothing() {
        let (mut judged, subject) = (
            Judged::default(),
            Subject {
                volume: 0,
                path: PathIndex(1),
            },
        );
        let named = |uri: &str| Named {
            volume: "v0".into(),
            name: "b".into(),
            uri: uri.into(),
        };
        judged.note(subject, named("mem:1MiB"), MS, "live", None);
        let lost = engine::alarms::PathWindow {
            losses: 3,
            ..Default::default()
        };
        judged.alarms.observe(subject, 0, &lost, 0, MS);
        judged.alarms.handle_timeout(1000 * MS);
        assert_eq!(judged.alarms.of(subject).count(), 1);
        judged.note(subject, named("mem:2MiB"), 2000 * MS, "live", None);
        assert_eq!(judged.alarms.of(subject).count(), 0);
        assert_eq!(judged.history[&subject].len(), 1);
        let [(of, ended)] = &judged.left[..] else {
            panic!("one alarm has ended: {:?}", judged.left);
        };
        assert_eq!(*of, named("mem:1MiB"));
        assert_eq!(ended.ended_ns, Some(2000 * MS));
        judged.forget_others(&Paths::default(), 3000 * MS);
        assert!(judged.history.is_empty() && judged.named.is_empty());
    }
}
