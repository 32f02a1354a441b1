//! Changes of volumes, mirrors and legs, which no core knows whole: read when something has
//! happened, and compared with what was read before.
//!
//! # Contract
//! A thread of its own asks the cores, as `braid check` does, each time that [`Watch::look`] was
//! called, but not within [`PAUSE`] of the time before; while a volume is not ok, or the cores did
//! not answer, it asks every [`PERIOD`]. With all well and nothing happening it sleeps.
use super::super::service::Service;
use super::{Event, Kind};
use crate::log;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a volume that is not ok is looked at.
const PERIOD: Duration = Duration::from_secs(2);
/// Shortest time between two looks: each is a report of all cores.
const PAUSE: Duration = Duration::from_millis(250);

/// Wakes the thread.
#[derive(Default)]
pub struct Watch {
    wanted: Mutex<Wanted>,
    news: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wanted {
    #[default]
    Nothing,
    Look,
    End,
}

/// Looks until now.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// When the last one ended.
    last: Option<Instant>,
    /// It was answered, and all volumes were ok.
    is_all_well: bool,
}

impl Pace {
    /// When the next look is due; `None`: none is.
    fn due(self, is_wanted: bool, now: Instant) -> Option<Instant> {
        match self.last {
            None => is_wanted.then_some(now),
            Some(last) if is_wanted => Some(last + PAUSE),
            Some(last) => (!self.is_all_well).then_some(last + PERIOD),
        }
    }
}

/// An object: its kind, its volume, and its name there.
type Object = (Kind, String, Option<String>);

/// State of an object, and why it has that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    pub kind: Kind,
    pub volume: String,
    /// Of a leg.
    pub name: Option<String>,
    pub state: &'static str,
    pub reason: Option<String>,
}

/// States as they were said.
#[derive(Default)]
struct Said(BTreeMap<Object, (&'static str, Instant)>);

/// A change: an event, and for volumes a line.
#[derive(Debug, PartialEq, Eq)]
struct Changed {
    event: Event,
    /// A volume got worse (`true`), or better: a line about it.
    line: Option<(bool, String)>,
}

impl Said {
    fn update(&mut self, shown: &[Shown], now: Instant) -> Vec<Changed> {
        let mut changed = Vec::new();
        for it in shown {
            let object = (it.kind, it.volume.clone(), it.name.clone());
            let before = self.0.get(&object).copied();
            if before.is_some_and(|(state, _)| state == it.state) {
                continue;
            }
            self.0.insert(object, (it.state, now));
            let mut event = Event::new(it.kind, it.state).volume(&it.volume);
            if let Some(name) = &it.name {
                event = event.path(name);
            }
            if let Some((state, _)) = before {
                event = event.from(state);
            }
            if let Some(reason) = &it.reason {
                event = event.reason(reason);
            }
            let line = (it.kind == Kind::Volume).then(|| line(it, before, now));
            let line = line.flatten();
            changed.push(Changed { event, line });
        }
        let is_there = |of: &Object| {
            let mut all = shown.iter();
            all.any(|it| (it.kind, &it.volume, &it.name) == (of.0, &of.1, &of.2))
        };
        let gone: Vec<Object> = self.0.keys().filter(|it| !is_there(it)).cloned().collect();
        for object in gone {
            let Some((state, _)) = self.0.remove(&object) else {
                continue;
            };
            let (kind, volume, name) = object;
            let mut event = Event::new(kind, "removed").volume(volume).from(state);
            if let Some(name) = name {
                event = event.path(name);
            }
            changed.push(Changed { event, line: None });
        }
        changed
    }

    fn is_all_well(&self) -> bool {
        let mut volumes = self.0.iter().filter(|(of, _)| of.0 == Kind::Volume);
        volumes.all(|(_, (state, _))| *state == "ok")
    }
}

/// Line about a volume: none while it comes up.
fn line(
    it: &Shown,
    before: Option<(&'static str, Instant)>,
    now: Instant,
) -> Option<(bool, String)> {
    let (from, since) = before?;
    let name = &it.volume;
    if it.state == "ok" {
        let lasted = now.duration_since(since).as_secs_f64();
        return Some((
            false,
            format!("{name}: ok again, after {lasted:.1} s {from}"),
        ));
    }
    let reason = it.reason.as_ref();
    let reason = reason.map_or(String::new(), |it| format!(" ({it})"));
    Some((true, format!("{name}: {}{reason}", it.state)))
}

impl Watch {
    fn wanted(&self) -> MutexGuard<'_, Wanted> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has happened.
    pub fn look(&self) {
        let mut wanted = self.wanted();
        if *wanted == Wanted::Nothing {
            *wanted = Wanted::Look;
            self.news.notify_one();
        }
    }

    /// The thread ends.
    pub fn end(&self) {
        *self.wanted() = Wanted::End;
        self.news.notify_one();
    }

    /// Waits until a look is due. Returns whether to look: else the engine ends.
    fn wait(&self, pace: Pace) -> bool {
        let mut wanted = self.wanted();
        while *wanted != Wanted::End {
            let now = Instant::now();
            let due = pace.due(*wanted == Wanted::Look, now);
            let left = due.map(|it| it.saturating_duration_since(now));
            wanted = match left {
                None => self
                    .news
                    .wait(wanted)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => {
                    *wanted = Wanted::Nothing;
                    return true;
                }
                Some(left) => {
                    let waited = self.news.wait_timeout(wanted, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        false
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// There can be none.
    pub fn start(service: &Arc<Service>) -> std::io::Result<()> {
        let service = Arc::clone(service);
        let run = move || {
            let mut said = Said::default();
            let mut pace = Pace::default();
            while service.watch.wait(pace) {
                let report = service.report();
                pace = Pace {
                    last: Some(Instant::now()),
                    is_all_well: false,
                };
                // An engine that ends has said so; one whose core hangs is asked again.
                let Ok(report) = report else {
                    continue;
                };
                let shown = report.states();
                drop(report);
                for it in said.update(&shown, Instant::now()) {
                    match it.line {
                        Some((true, line)) => log::warn(line),
                        Some((false, line)) => log::say(line),
                        None => {}
                    }
                    service.events.emit(it.event);
                }
                pace.is_all_well = said.is_all_well();
            }
        };
        let builder = std::thread::Builder::new().name("states".into());
        builder.spawn(run).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(state: &'static str, reason: Option<&str>) -> Shown {
        Shown {
            kind: Kind::Volume,
            volume: "v0".into(),
            name: None,
            state,
            reason: reason.map(String::from),
        }
    }

    #[test]
    fn each_change_is_said_once_with_its_start_and_its_end() {
        let mut said = Said::default();
        let now = Instant::now();
        let first = said.update(&[volume("ok", None)], now);
        let event = |to| Event::new(Kind::Volume, to).volume("v0");
        assert_eq!(first[0].event, event("ok"));
        assert_eq!(first[0].line, None, "it comes up");
        assert!(said.update(&[volume("ok", None)], now).is_empty() && said.is_all_well());
        let worse = said.update(&[volume("degraded", Some("path a: lost"))], now);
        let want = event("degraded").from("ok").reason("path a: lost");
        assert_eq!(worse[0].event, want);
        let line = (true, "v0: degraded (path a: lost)".to_owned());
        assert_eq!(worse[0].line.as_ref(), Some(&line));
        assert!(!said.is_all_well());
        let later = now + Duration::from_millis(1500);
        let better = said.update(&[volume("ok", None)], later);
        let line = (false, "v0: ok again, after 1.5 s degraded".to_owned());
        assert_eq!(better[0].line.as_ref(), Some(&line));
        let gone = said.update(&[], later);
        assert_eq!(gone[0].event, event("removed").from("ok"));
    }

    #[test]
    fn looks_have_a_pause_and_failed_ones_are_repeated() {
        let now = Instant::now();
        let due = |pace: Pace| [false, true].map(|it| pace.due(it, now));
        assert_eq!(due(Pace::default()), [None, Some(now)]);
        let last = Some(now);
        let well = Pace {
            last,
            is_all_well: true,
        };
        assert_eq!(due(well), [None, Some(now + PAUSE)]);
        // Also one that was not answered: its wish is not forgotten.
        let not_well = Pace {
            last,
            is_all_well: false,
        };
        assert_eq!(due(not_well), [Some(now + PERIOD), Some(now + PAUSE)]);
    }

    #[test]
    fn thread_sleeps_until_it_is_called_and_then_ends() {
        let watch = Arc::new(Watch::default());
        watch.look();
        watch.look();
        assert!(watch.wait(Pace::default()), "one for both");
        let other = Arc::clone(&watch);
        let waits = std::thread::spawn(move || other.wait(Pace::default()));
        watch.end();
        assert!(!waits.join().unwrap());
        watch.look();
        assert!(!watch.wait(Pace::default()), "it stays ended");
    }
}
