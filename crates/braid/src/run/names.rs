//! Names of hosts in paths: resolved again whenever their path is to be connected again.
//!
//! # Contract
//! The engine says when no connection of a path is left ([`HostEvent::Disconnected`]); from then on
//! until its next attempt the address number of the path may stand for another address. Each
//! look-up has a thread of its own, one for each path at most: no reactor and no other path waits
//! for it.
//! A name that can't be resolved is tried again with growing pauses, its path has the address that
//! it had, if any, and `status`, `check` and the log say why. Of several addresses the next one is
//! tried after each failed attempt. An address that is found there is checked as after every
//! reconnect (T32).
//!
//! Core 0 is asked after the look-up: the address changes only if the path waits for its next
//! attempt, and at least half of that wait is left. Otherwise what was found is kept for
//! [`FOUND_MAX`] and taken when the path waits again, so that a resolver that is slower than the
//! attempts are apart is followed as well. Then the look-up is repeated.
//!
//! A path whose controller may have unflushed writes keeps its address, whatever its name stands
//! for: another controller's flush would not cover them (T13).
//!
//! [`HostEvent::Disconnected`]: engine::host::HostEvent::Disconnected
use super::service::Service;
use crate::ends::{self, Place};
use crate::log;
use crate::uri::{Found, NvmeTcp, PathUri, Start, zone};
use cores::PathStanding;
use engine::host::{Disconnected, PathState, ReconnectWait};
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// First and longest pause before a name that can't be resolved is tried again.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Longest time that what was found is kept for a path that can't take it at once. Longer than an
/// attempt to connect takes.
const FOUND_MAX: Duration = Duration::from_secs(20);

/// Longest time that an answer of core 0 is relied on.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// A name to look up.
struct LookUp {
    of: Disconnected,
    uri: String,
    tcp: NvmeTcp,
    /// The place's.
    generation: u64,
}

/// A path's state on core 0, as far as its address depends on it.
#[derive(Clone, Copy, Debug)]
enum Standing {
    /// Lost, and not connected again before `until`.
    Waits { until: Instant, of: ReconnectWait },
    /// Being connected, or unknown.
    Busy,
    /// Connected, or not to be connected again.
    Settled,
}

/// Attempts to connect a path that failed, as core 0 counts them since its loss.
#[derive(Clone, Copy, Debug, Default)]
struct Failures {
    now: u32,
    /// Those of an address that the path has no more.
    before_move: u32,
}

impl Failures {
    fn count(&mut self, now: u32) {
        // Fewer than before: it was connected meanwhile.
        if now < self.now {
            self.before_move = 0;
        }
        self.now = now;
    }

    fn moved(&mut self) {
        self.before_move = self.now;
    }

    /// Whether an attempt at the present address has failed: then the next one is tried.
    fn is_of_address(&self) -> bool {
        self.now > self.before_move
    }
}

/// Result of one attempt to resolve a name.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The path is connected at this address from now on.
    Moved { to: SocketAddr, is_news: bool },
    /// It stays at its address.
    Same,
    /// It stays, though its name stands for others; `is_news`: the log has not said so.
    Kept { is_news: bool },
    /// Its address can't be changed now.
    Later,
    /// It has none; `is_news`: for another reason than before.
    Waits { is_news: bool },
}

impl Outcome {
    /// Whether the look-up is over.
    fn is_final(&self) -> bool {
        !matches!(self, Self::Later | Self::Waits { .. })
    }
}

impl Standing {
    /// As core 0 said when it was `asked`; `None`: it did not answer.
    fn of(said: Option<PathStanding>, asked: Instant) -> Self {
        said.map_or(Self::Busy, |(state, wait)| Self::new(wait, state, asked))
    }

    fn new(wait: Option<ReconnectWait>, state: PathState, asked: Instant) -> Self {
        match (wait, state) {
            (Some(of), _) => Self::Waits {
                // The answer came after it was asked for, so this is early. The other half is for
                // the way of the address to the reactors.
                until: asked + Duration::from_nanos(of.left_ns / 2).min(ANSWER_MAX),
                of,
            },
            (None, PathState::Connecting | PathState::Reconnecting) => Self::Busy,
            (None, _) => Self::Settled,
        }
    }
}

impl Service {
    /// A path is to be connected again: where its host is written as a name, that is looked up.
    pub fn look_up_host(self: &Arc<Self>, of: Disconnected) {
        let begun = self.ends.with_port(of.address, |uri, place| {
            if !place.tcp.is_named() {
                return None;
            }
            if of.failures == 0 {
                place.logged.clear();
            }
            if let Some(look_up) = &mut place.look_up {
                look_up.lost_again = true;
                // Full: it is told already.
                let _ = look_up.waits.try_send(());
                return None;
            }
            let (to, waits) = mpsc::sync_channel(1);
            place.look_up = Some(ends::LookUp {
                lost_again: false,
                waits: to,
            });
            let it = LookUp {
                of,
                uri: uri.to_owned(),
                tcp: place.tcp.clone(),
                generation: place.generation,
            };
            Some((it, waits))
        });
        let Some((it, waits)) = begun.flatten() else {
            return;
        };
        let service = Arc::clone(self);
        let builder = std::thread::Builder::new().name("resolve".into());
        if let Err(error) = builder.spawn(move || service.resolve_until_found(&it, &waits)) {
            log::say(format!(
                "a host name is not looked up: no thread can be started: {error}"
            ));
            self.ends
                .with_port(of.address, |_, place| place.look_up = None);
        }
    }

    /// Until the path has an address, has left, or the engine ends.
    fn resolve_until_found(&self, it: &LookUp, waits: &mpsc::Receiver<()>) {
        let (mut pause, mut failures) = (PAUSE_MIN, Failures::default());
        failures.count(it.of.failures);
        loop {
            let start = self.with_place(it, |place| Start {
                before: place.address,
                failed: failures.is_of_address(),
            });
            let Some(start) = start else {
                return;
            };
            let found = it.tcp.find(start);
            if self.state().is_closed() {
                return;
            }
            if self.take_when_possible(it, &found, waits, &mut failures) {
                return;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Takes what was found as soon as the path can take it, within [`FOUND_MAX`]; whether the
    /// look-up is over.
    fn take_when_possible(
        &self,
        it: &LookUp,
        found: &anyhow::Result<Found>,
        waits: &mpsc::Receiver<()>,
        failures: &mut Failures,
    ) -> bool {
        let until = Instant::now() + FOUND_MAX;
        loop {
            let _ = waits.try_recv(); // core 0 is asked now
            let standing = self.standing(&it.of);
            if let Standing::Waits { of, .. } = standing {
                failures.count(of.failures);
            }
            let Some((outcome, is_over)) = self.take_found(it, found, standing) else {
                return true;
            };
            if matches!(outcome, Outcome::Moved { .. }) {
                failures.moved();
            }
            self.log_outcome(it, &outcome);
            let left = until.saturating_duration_since(Instant::now());
            if outcome != Outcome::Later || waits.recv_timeout(left).is_err() {
                return is_over;
            }
        }
    }

    /// Changes the place as [`take`] says, and the reactors' address; also whether the look-up is
    /// over. `None`: the path has left.
    fn take_found(
        &self,
        it: &LookUp,
        found: &anyhow::Result<Found>,
        standing: Standing,
    ) -> Option<(Outcome, bool)> {
        self.with_place(it, |place| {
            let outcome = take(place, found, standing);
            // Here, while the number is this path's. All cores know the address before the
            // engine's next attempt.
            if let Outcome::Moved { to, .. } = outcome {
                self.senders.set_address(it.of.address, to);
            }
            let look_up = place.look_up.as_mut();
            let again = look_up.is_some_and(|it| std::mem::take(&mut it.lost_again));
            let is_over = outcome.is_final() && !again;
            if is_over {
                place.look_up = None;
            }
            (outcome, is_over)
        })
    }

    fn with_place<T>(&self, it: &LookUp, change: impl FnOnce(&mut Place) -> T) -> Option<T> {
        let changed = self.ends.with_port(it.of.address, |_, place| {
            // The number may be another path's by now.
            (place.generation == it.generation).then(|| change(place))
        });
        changed.flatten()
    }

    fn standing(&self, of: &Disconnected) -> Standing {
        let asked = Instant::now();
        Standing::of(self.senders.standing(of.volume, of.path), asked)
    }

    fn log_outcome(&self, it: &LookUp, outcome: &Outcome) {
        let what = match outcome {
            Outcome::Moved { to, is_news: true } => {
                Some(format!("its host is {} now", zone::authority(to)))
            }
            Outcome::Kept { is_news: true } => {
                self.with_place(it, |place| place.why.clone()).flatten()
            }
            Outcome::Waits { is_news: true } => self
                .waits_for_name(&it.uri)
                .map(|why| format!("{why}; it is tried again")),
            _ => None,
        };
        if let Some(what) = what {
            let name = self.name(it.of.volume);
            log::say(format!("{name}: path {}: {what}", it.uri));
        }
    }

    fn waits_for_name(&self, uri: &str) -> Option<String> {
        self.name_hindrance(&uri.parse().ok()?)
    }

    /// Why a path waits for the address of its host.
    pub fn name_hindrance(&self, uri: &PathUri) -> Option<String> {
        let (why, waits) = self.ends.unresolved(uri)?;
        waits.then(|| format!("waits for its name: {why}"))
    }

    /// Why a path that has an address does not follow its name now.
    pub fn name_doubt(&self, uri: &PathUri) -> Option<String> {
        let (why, waits) = self.ends.unresolved(uri)?;
        (!waits).then_some(why)
    }
}

/// Takes what was found for a path. Its address changes only while it waits for its next attempt,
/// and not while its controller has unflushed writes (T13).
fn take(place: &mut Place, found: &anyhow::Result<Found>, standing: Standing) -> Outcome {
    let (address, all) = match found {
        Ok(found) => (found.address, found.all.clone()),
        Err(why) => return not_found(place, why),
    };
    let before = place.address;
    let is_its = before.is_some_and(|it| all.contains(&it));
    if is_its && before == Some(address) {
        (place.why, place.all) = (None, all);
        return Outcome::Same;
    }
    let in_doubt = match standing {
        Standing::Settled => {
            place.why = None;
            return Outcome::Same;
        }
        Standing::Waits { until, of } if Instant::now() < until => of.in_doubt,
        Standing::Waits { .. } | Standing::Busy => return Outcome::Later,
    };
    match before {
        Some(before) if in_doubt && !is_its => {
            let why = kept(before, &all);
            // Its present address is another path's to use: discovery may add one.
            place.all = vec![before];
            let is_news = place.why.as_ref() != Some(&why);
            place.why = Some(why);
            return Outcome::Kept { is_news };
        }
        Some(before) if in_doubt || before == address => {
            place.why = None;
            return Outcome::Same;
        }
        _ => {}
    }
    place.why = None;
    if sorted(&place.all) != sorted(&all) {
        place.logged.clear();
    }
    let is_news = !place.logged.contains(&address);
    if is_news {
        place.logged.push(address);
    }
    place.all = all;
    place.address = Some(address);
    Outcome::Moved {
        to: address,
        is_news,
    }
}

fn not_found(place: &mut Place, why: &anyhow::Error) -> Outcome {
    let why = match place.address {
        Some(_) => format!("its name could not be resolved again: {why:#}"),
        None => format!("{why:#}"),
    };
    let is_news = place.why.as_ref() != Some(&why);
    place.why = Some(why);
    match place.address {
        Some(_) => Outcome::Same,
        None => Outcome::Waits { is_news },
    }
}

/// Says that a path keeps its address though its name stands for others.
fn kept(address: SocketAddr, all: &[SocketAddr]) -> String {
    let all: Vec<String> = sorted(all).iter().map(zone::authority).collect();
    format!(
        "its name stands for {} now; it keeps {}, whose writes are not flushed",
        all.join(", "),
        zone::authority(&address)
    )
}

/// Name servers change the order.
fn sorted(all: &[SocketAddr]) -> Vec<SocketAddr> {
    let mut all = all.to_vec();
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    const A: &str = "10.0.0.1:4420";
    const B: &str = "10.0.0.2:4420";

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn found(address: &str, all: &[&str]) -> anyhow::Result<Found> {
        Ok(Found {
            address: at(address),
            all: all.iter().map(|it| at(it)).collect(),
            refused: None,
        })
    }

    fn place() -> Place {
        let uri: PathUri = "nvme-tcp://there/nqn.x".parse().unwrap();
        let crate::uri::UriKind::NvmeTcp(tcp) = uri.kind() else {
            unreachable!()
        };
        Place::new(tcp, Err(anyhow!("not yet")))
    }

    fn waits(left: Duration, in_doubt: bool) -> Standing {
        let of = ReconnectWait {
            left_ns: left.as_nanos() as u64,
            failures: 0,
            in_doubt,
        };
        Standing::new(Some(of), PathState::Reconnecting, Instant::now())
    }

    fn lost() -> Standing {
        waits(Duration::from_secs(60), false)
    }

    fn moved(to: &str, is_news: bool) -> Outcome {
        let to = at(to);
        Outcome::Moved { to, is_news }
    }

    #[test]
    fn path_waits_until_its_name_is_found() {
        let mut place = place();
        let none = || Err(anyhow!("no"));
        let waits = |is_news| Outcome::Waits { is_news };
        assert_eq!(take(&mut place, &none(), lost()), waits(true));
        assert_eq!(take(&mut place, &none(), lost()), waits(false));
        assert_eq!(take(&mut place, &found(A, &[A]), lost()), moved(A, true));
        assert_eq!((&place.why, place.all.len()), (&None, 1));
        assert_eq!(take(&mut place, &found(A, &[A]), lost()), Outcome::Same);
        assert_eq!(take(&mut place, &none(), lost()), Outcome::Same);
        let why = place.why.as_deref().unwrap();
        assert!(why.starts_with("its name could not"), "{why}");
        assert_eq!(place.address, Some(at(A)), "kept");
    }

    #[test]
    fn only_a_path_that_waits_changes_its_address() {
        let mut place = place();
        take(&mut place, &found(A, &[A]), lost()).is_final();
        let asked = Instant::now();
        let new = |state| Standing::new(None, state, asked);
        for standing in [
            new(PathState::Connecting),
            new(PathState::Reconnecting),
            Standing::of(None, asked),
            waits(Duration::ZERO, false),
        ] {
            let outcome = take(&mut place, &found(B, &[B]), standing);
            assert_eq!(outcome, Outcome::Later, "{standing:?}");
        }
        for state in [PathState::Live, PathState::Failed, PathState::Draining] {
            assert_eq!(take(&mut place, &found(B, &[B]), new(state)), Outcome::Same);
        }
        assert_eq!((place.address, &place.all[..]), (Some(at(A)), &[at(A)][..]));
        assert_eq!(take(&mut place, &found(B, &[B]), lost()), moved(B, true));
    }

    #[test]
    fn t13_path_in_doubt_keeps_its_address() {
        let mut place = place();
        take(&mut place, &found(A, &[A]), lost()).is_final();
        let in_doubt = waits(Duration::from_secs(60), true);
        // Also where the look-up began before the path came to be in doubt.
        for (address, is_news) in [(B, true), (A, false), (B, false)] {
            let outcome = take(&mut place, &found(address, &[B]), in_doubt);
            assert_eq!(outcome, Outcome::Kept { is_news });
        }
        assert_eq!(place.address, Some(at(A)));
        // A path to B may join by discovery.
        assert_eq!(place.all, [at(A)]);
        assert_eq!(
            place.why.as_deref(),
            Some(
                "its name stands for 10.0.0.2:4420 now; it keeps 10.0.0.1:4420, whose writes are \
                 not flushed"
            )
        );
        let both = || found(B, &[B, A]);
        assert_eq!(take(&mut place, &both(), in_doubt), Outcome::Same);
        assert_eq!(take(&mut place, &found(A, &[B]), lost()), Outcome::Same);
        assert_eq!(place.address, Some(at(A)));
        assert_eq!(take(&mut place, &both(), lost()), moved(B, true));
    }

    /// A look-up that is repeated after its path has moved begins with the new address, which was
    /// not tried yet.
    #[test]
    fn address_is_left_only_after_an_attempt_there_failed() {
        let mut failures = Failures::default();
        assert!(!failures.is_of_address());
        failures.count(2);
        assert!(failures.is_of_address());
        failures.moved();
        assert!(!failures.is_of_address(), "not tried yet");
        failures.count(2);
        assert!(!failures.is_of_address(), "not tried yet");
        failures.count(3);
        assert!(failures.is_of_address());
        failures.moved();
        // Connected there, and lost again.
        for (now, want) in [(0, false), (1, true)] {
            failures.count(now);
            assert_eq!(failures.is_of_address(), want, "{now}");
        }
    }

    #[test]
    fn each_address_is_logged_once_for_a_loss() {
        let mut place = place();
        for (address, is_news) in [(A, true), (B, true), (A, false), (B, false)] {
            let all = if is_news { [A, B] } else { [B, A] };
            let outcome = take(&mut place, &found(address, &all), lost());
            assert_eq!(outcome, moved(address, is_news));
        }
        let all = [A, B, "10.0.0.3:4420"];
        assert_eq!(take(&mut place, &found(A, &all), lost()), moved(A, true));
        assert_eq!(take(&mut place, &found(B, &all), lost()), moved(B, true));
        assert_eq!(take(&mut place, &found(A, &all), lost()), moved(A, false));
    }
}
