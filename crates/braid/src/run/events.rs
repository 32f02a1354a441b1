//! Changes of state that people and programs wait for: numbered, and the last of them kept.
//!
//! # Contract
//! [`Events::emit`] is the one way in. It takes a lock that is held for moments only, so it is for
//! every thread but a core's: cores report by [`RunEvent`](cores::RunEvent). A reader has its own
//! place, the number of the last event that it has seen: it never keeps anything from going on, and
//! one that is too slow, or away, is told how many events it has lost.
//!
//! # Limits
//! [`KEPT_MAX`] events are kept, each with a text of [`TEXT_MAX`] bytes at most. Events of clients,
//! which can come and go as often as they like, take [`CLIENT_EVENTS_MAX`] of these places once all
//! are taken. [`FOLLOWERS_MAX`] readers may wait for more.
pub mod hook;
pub mod show;
pub mod watch;

use crate::control::rpc::ControlError;
use crate::units::format_rfc3339;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Events that are kept.
const KEPT_MAX: usize = 1024;
/// Events of clients among them, once there is no room for others.
const CLIENT_EVENTS_MAX: usize = KEPT_MAX / 2;
/// Longest text of an event, bytes.
const TEXT_MAX: usize = 512;
/// Events of one answer: they fit into a control message.
const ANSWER_MAX: usize = 256;
/// Readers that wait for events, at a time: half of the places of control clients.
const FOLLOWERS_MAX: usize = 8;
/// How often a reader that waits is looked for.
const GONE_PERIOD: Duration = Duration::from_secs(1);
/// Numbers of one second of starts: an engine numbers its events from the second of its start on,
/// so that no number is used again after a restart.
const PER_SECOND: u64 = 1_000_000;

/// Kind of an object that changed its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The engine.
    Engine,
    /// A volume or mirror, in the words of `braid check`.
    Volume,
    /// A path of a volume, or of a leg.
    Path,
    /// A leg of a mirror.
    Leg,
    /// A mirror, as a machine that starts, runs and stops.
    Mirror,
    /// A client of an export.
    Client,
    /// A verb that changes something.
    Verb,
    /// An alarm about something that works, but not as it should.
    #[allow(dead_code)] // for alarms
    Health,
}

impl Kind {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Volume => "volume",
            Self::Path => "path",
            Self::Leg => "leg",
            Self::Mirror => "mirror",
            Self::Client => "client",
            Self::Verb => "verb",
            Self::Health => "health",
        }
    }
}

/// One change of state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    kind: Kind,
    volume: Option<String>,
    path: Option<String>,
    client: Option<String>,
    from: Option<String>,
    to: String,
    reason: Option<String>,
}

impl Event {
    /// Of an object that is in the state `to` from now on.
    pub fn new(kind: Kind, to: impl Into<String>) -> Self {
        Self {
            kind,
            volume: None,
            path: None,
            client: None,
            from: None,
            to: bounded(to.into()),
            reason: None,
        }
    }

    /// Of this volume or mirror.
    pub fn volume(mut self, name: impl Into<String>) -> Self {
        self.volume = Some(bounded(name.into()));
        self
    }

    /// Of this path or leg, by its name.
    pub fn path(mut self, name: impl Into<String>) -> Self {
        self.path = Some(bounded(name.into()));
        self
    }

    /// Of this client, or caller of a verb.
    pub fn client(mut self, name: impl Into<String>) -> Self {
        self.client = Some(bounded(name.into()));
        self
    }

    /// The state before.
    pub fn from(mut self, state: impl Into<String>) -> Self {
        self.from = Some(bounded(state.into()));
        self
    }

    /// Why.
    pub fn reason(mut self, text: impl Into<String>) -> Self {
        self.reason = Some(bounded(text.into()));
        self
    }
}

/// Cuts a text that a peer may have chosen.
fn bounded(mut text: String) -> String {
    if text.len() > TEXT_MAX {
        let end = (0..=TEXT_MAX - 3)
            .rev()
            .find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or_default());
        text.push('…');
    }
    text
}

/// An event with its number and time.
#[derive(Clone, Debug)]
pub struct Numbered {
    pub number: u64,
    time: SystemTime,
    event: Event,
}

impl Numbered {
    /// As programs read it: all keys, whether or not they say something.
    pub fn json(&self) -> Value {
        let it = &self.event;
        json!({
            "seq": self.number,
            "time": format_rfc3339(self.time),
            "kind": it.kind.name(),
            "volume": it.volume,
            "path": it.path,
            "client": it.client,
            "from": it.from,
            "to": it.to,
            "reason": it.reason,
        })
    }
}

/// Events that a reader has not seen.
#[derive(Debug)]
pub struct Unseen {
    /// In their order; there may be more.
    pub events: Vec<Numbered>,
    /// Those before and between them that are not kept any more.
    pub lost: u64,
    /// The reader has the number of an earlier run of the engine: all that came between is lost,
    /// and nothing tells how many.
    pub is_of_other_run: bool,
    /// Number from which the reader goes on.
    pub last: u64,
    /// Number of the newest event.
    pub newest: u64,
}

struct Kept {
    /// Number of the next one.
    next: u64,
    /// By ascending number. Numbers are missing where events of clients were dropped.
    events: VecDeque<Numbered>,
    closed: bool,
}

/// See the module.
pub struct Events {
    first: u64,
    kept: Mutex<Kept>,
    news: Condvar,
    followers: AtomicUsize,
}

/// Parameters of `events`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsParams {
    /// Those behind this number; `None`: all that are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Longest wait for the first of them.
    #[serde(default)]
    pub wait_ns: u64,
}

/// Longest wait of one request.
pub const WAIT_MAX: Duration = Duration::from_secs(8);

impl Default for Events {
    fn default() -> Self {
        Self::started(SystemTime::now())
    }
}

impl Events {
    fn started(at: SystemTime) -> Self {
        let second = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let first = second.saturating_mul(PER_SECOND).saturating_add(1);
        Self {
            first,
            kept: Mutex::new(Kept {
                next: first,
                events: VecDeque::with_capacity(KEPT_MAX),
                closed: false,
            }),
            news: Condvar::new(),
            followers: AtomicUsize::new(0),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Every change leaves it whole.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more event.
    pub fn emit(&self, event: Event) {
        let mut kept = self.kept();
        kept.make_room();
        let number = kept.next;
        kept.next += 1;
        kept.events.push_back(Numbered {
            number,
            time: SystemTime::now(),
            event,
        });
        drop(kept);
        self.news.notify_all();
    }

    /// Nothing waits for events any more.
    pub fn close(&self) {
        self.kept().closed = true;
        self.news.notify_all();
    }

    /// Number before that of the first one.
    pub fn first(&self) -> u64 {
        self.first - 1
    }

    /// Events behind number `since` (`None`: all that are kept), `most` at most.
    pub fn since(&self, since: Option<u64>, most: usize) -> Unseen {
        self.kept().since(since, self.first, most)
    }

    /// As [`Self::since`], once there are some or until `until` says so, which is asked now and
    /// then, and at the end of the engine.
    pub fn wait(&self, since: u64, most: usize, until: impl Fn() -> bool) -> Unseen {
        let mut kept = self.kept();
        while !kept.closed && kept.next - 1 == since && !until() {
            let waited = self.news.wait_timeout(kept, GONE_PERIOD);
            kept = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        kept.since(Some(since), self.first, most)
    }

    /// Whether the engine ends.
    pub fn is_closed(&self) -> bool {
        self.kept().closed
    }

    /// Answers `events`.
    ///
    /// # Errors
    /// Too many readers wait.
    pub fn answer(
        &self,
        params: &EventsParams,
        is_gone: impl Fn() -> bool,
    ) -> Result<Value, ControlError> {
        let wait = Duration::from_nanos(params.wait_ns).min(WAIT_MAX);
        let unseen = match params.since {
            Some(since) if !wait.is_zero() => {
                let _place = Follower::new(&self.followers)?;
                let end = Instant::now() + wait;
                self.wait(since, ANSWER_MAX, || Instant::now() >= end || is_gone())
            }
            since => self.since(since, ANSWER_MAX),
        };
        if unseen.events.is_empty() && self.is_closed() {
            return Err(ControlError::refused("the engine is ending"));
        }
        let events: Vec<Value> = unseen.events.iter().map(Numbered::json).collect();
        Ok(json!({
            "events": events,
            "lost": unseen.lost,
            "other_run": unseen.is_of_other_run,
            "last": unseen.last,
            "newest": unseen.newest,
        }))
    }
}

impl Kept {
    /// Drops an event where all places are taken: the oldest of clients if they have more than
    /// their share, or a client that reconnects all the time would drive out all others.
    fn make_room(&mut self) {
        if self.events.len() < KEPT_MAX {
            return;
        }
        let of_client = |it: &Numbered| it.event.kind == Kind::Client;
        let count = self.events.iter().filter(|it| of_client(it)).count();
        let oldest = self.events.iter().position(of_client);
        match oldest.filter(|_| count > CLIENT_EVENTS_MAX) {
            Some(at) => drop(self.events.remove(at)),
            None => drop(self.events.pop_front()),
        }
    }

    fn since(&self, since: Option<u64>, first: u64, most: usize) -> Unseen {
        let oldest = self.events.front().map_or(self.next, |it| it.number);
        // The clock may have been set back between two runs.
        let known = since.filter(|it| *it == 0 || (first - 1..self.next).contains(it));
        let is_of_other_run = since.is_some() && known.is_none();
        // 0: all of this run, those that are not kept any more included.
        let known = known.map(|it| it.max(first - 1));
        let from = known.map_or(oldest, |it| it + 1);
        let skipped = self.events.partition_point(|it| it.number < from);
        let events = self.events.iter().skip(skipped);
        let events: Vec<Numbered> = events.take(most).cloned().collect();
        let last = events.last().map_or(self.next - 1, |it| it.number);
        let lost = last + 1 - from - events.len() as u64;
        Unseen {
            events,
            lost,
            is_of_other_run,
            last,
            newest: self.next - 1,
        }
    }
}

/// One of the places of readers that wait; free again when it is dropped.
struct Follower<'a>(&'a AtomicUsize);

impl<'a> Follower<'a> {
    fn new(taken: &'a AtomicUsize) -> Result<Self, ControlError> {
        let more = |count| (count < FOLLOWERS_MAX).then_some(count + 1);
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Self(taken)),
            Err(_) => Err(ControlError::refused(format!(
                "{FOLLOWERS_MAX} readers follow the events, the most there may be: end one"
            ))),
        }
    }
}

impl Drop for Follower<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(to: &str) -> Event {
        Event::new(Kind::Path, to).volume("v0").path("a")
    }

    fn numbers(unseen: &Unseen) -> Vec<u64> {
        unseen.events.iter().map(|it| it.number).collect()
    }

    #[test]
    fn reader_goes_on_where_it_was_and_slow_one_learns_what_it_lost() {
        let events = Events::started(UNIX_EPOCH);
        (0..5).for_each(|_| events.emit(event("live")));
        let first = events.since(None, 2);
        assert_eq!(
            (numbers(&first), first.last, first.lost),
            (vec![1, 2], 2, 0)
        );
        let rest = events.since(Some(first.last), 9);
        assert_eq!((numbers(&rest), rest.last), (vec![3, 4, 5], 5));
        let none = events.since(Some(5), 9);
        assert_eq!((numbers(&none), none.last, none.lost), (vec![], 5, 0));
        (0..KEPT_MAX).for_each(|_| events.emit(event("failed")));
        let late = events.since(Some(3), 1);
        assert_eq!((numbers(&late), late.lost), (vec![6], 2));
        assert_eq!(events.since(Some(0), 1).lost, 5);
        assert_eq!(events.since(None, 1).lost, 0, "it asks for what is kept");
    }

    /// A client that reconnects all the time, and a path that was lost before it.
    #[test]
    fn storm_of_clients_keeps_other_events_and_is_counted() {
        let events = Events::started(UNIX_EPOCH);
        events.emit(event("failed"));
        let storm = 3 * KEPT_MAX as u64;
        for _ in 0..storm {
            events.emit(Event::new(Kind::Client, "connected"));
        }
        events.emit(event("live"));
        let (mut seen, mut read, mut lost) = (0, 0, 0);
        let mut others = Vec::new();
        loop {
            let unseen = events.since(Some(seen), 100);
            if unseen.events.is_empty() {
                break;
            }
            let of_path = unseen.events.iter();
            let of_path = of_path.filter(|it| it.event.kind == Kind::Path);
            others.extend(of_path.map(|it| it.event.to.clone()));
            read += unseen.events.len();
            lost += unseen.lost;
            seen = unseen.last;
        }
        assert_eq!(others, ["failed", "live"]);
        assert_eq!((read, lost), (KEPT_MAX, storm + 2 - KEPT_MAX as u64));
        assert_eq!(events.since(Some(seen), 9).lost, 0);
        // Others have the places that they need.
        (0..KEPT_MAX).for_each(|_| events.emit(event("live")));
        let kept = events.since(Some(0), KEPT_MAX).events;
        let clients = kept.iter().filter(|it| it.event.kind == Kind::Client);
        assert!(clients.count() <= CLIENT_EVENTS_MAX);
    }

    #[test]
    fn numbers_go_on_after_a_restart_and_those_of_other_runs_are_known() {
        let at = |second| Events::started(UNIX_EPOCH + Duration::from_secs(second));
        let (before, after) = (at(7), at(9));
        for events in [&before, &after] {
            events.emit(event("live"));
        }
        let seen = before.since(None, 1).last;
        let unseen = after.since(Some(seen), 9);
        assert!(unseen.is_of_other_run && unseen.events.len() == 1);
        assert!(unseen.last > seen);
        // The clock was set back, so this run has smaller numbers than the one before.
        let unseen = before.since(Some(after.since(None, 1).last), 9);
        assert!(unseen.is_of_other_run && unseen.events.len() == 1);
        assert!(!after.since(Some(0), 1).is_of_other_run);
    }

    #[test]
    fn waiting_reader_gets_the_next_event_and_ends_with_the_engine() {
        let events = Events::started(UNIX_EPOCH);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| events.wait(0, 9, || false));
            events.emit(event("live"));
            assert_eq!(numbers(&waits.join().unwrap()), [1]);
            let waits = scope.spawn(|| events.wait(1, 9, || false));
            events.close();
            assert!(waits.join().unwrap().events.is_empty());
        });
        let all: Vec<_> = (0..FOLLOWERS_MAX)
            .map(|_| Follower::new(&events.followers).unwrap())
            .collect();
        let wait = EventsParams {
            since: Some(1),
            wait_ns: 1,
        };
        let error = events.answer(&wait, || true).unwrap_err().to_string();
        assert!(error.starts_with("8 readers follow"), "{error}");
        drop(all);
        let error = events.answer(&wait, || true).unwrap_err().to_string();
        assert_eq!(error, "the engine is ending");
    }

    #[test]
    fn texts_of_peers_are_cut_and_all_keys_are_there() {
        let events = Events::started(UNIX_EPOCH);
        let long = "ä".repeat(TEXT_MAX);
        events.emit(event("live").from("connecting").reason(long));
        let json = events.since(None, 1).events[0].json();
        assert!(json["reason"].as_str().unwrap().len() <= TEXT_MAX);
        assert_eq!(json["client"], Value::Null);
        assert_eq!(json["seq"], 1);
        assert_eq!(json.as_object().unwrap().len(), 9);
    }
}
