//! Threads that run worlds, and a thread that hears of them in the order of their seeds.
//!
//! # Contract
//! A world is run by one thread. After a request to stop, no world begins any more and those under
//! way are run to their end: the results are always those of all worlds from the first to some
//! last. Where one does not come back, later worlds that have ended are reported too.
//!
//! # Limits
//! A world that is still under way after [`Work::patience`] of this program's time ends everything:
//! its thread can't be stopped, and is left behind.
use super::trial::{self, Outcome};
use anyhow::Context;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};
use terminal::limits::{STACK_BYTES, THREADS_MAX};
use terminal::signals::Interrupt;

/// Worlds that have ended and wait for an earlier one's result; then threads wait.
const WAITING_MAX: usize = 64;
/// How often a stop is checked for.
const TICK: Duration = Duration::from_millis(100);
/// Worlds take a tenth of a second; slow machines, debug builds and others' load some more.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Worlds to be run.
#[derive(Clone, Debug)]
pub struct Work {
    /// First seed.
    pub first: u64,
    /// How many; `u64::MAX`: without end.
    pub count: u64,
    /// No world begins later.
    pub until: Option<Instant>,
    pub threads: usize,
    /// How long each may take of this program's time.
    pub patience: Duration,
}

/// Why no more worlds were run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// There were no more.
    All,
    Time,
    /// A signal.
    Asked,
    /// The receiver wants no further results.
    Enough,
    /// A world does not come back.
    Hangs,
}

#[derive(Default)]
struct Shared {
    /// The next world's number, from 0.
    next: AtomicU64,
    stop: AtomicBool,
}

/// The number that says that a thread has no world.
const NONE: u64 = u64::MAX;

/// Runs the worlds; `each` hears of them one after the other, and says whether to go on.
///
/// # Errors
/// No thread can be started.
pub fn run(
    work: &Work,
    interrupt: &Interrupt,
    world: impl Fn(u64) -> Outcome + Send + Sync + 'static,
    mut each: impl FnMut(u64, Outcome) -> bool,
) -> anyhow::Result<Ended> {
    let shared = Arc::new(Shared::default());
    let (results, workers) = start(work, &shared, Arc::new(world))?;
    let (mut heard, mut early) = (0, BTreeMap::new());
    let mut watch = Watch::new(workers, work.patience);
    let mut ended = Ended::All;
    loop {
        match results.recv_timeout(TICK) {
            Ok((number, outcome)) => {
                early.insert(number, outcome);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(ended),
        }
        while let Some(outcome) = early.remove(&heard) {
            if !each(work.first.wrapping_add(heard), outcome) {
                shared.stop.store(true, Ordering::Relaxed);
                return Ok(Ended::Enough);
            }
            heard += 1;
        }
        let over = work.until.is_some_and(|until| Instant::now() >= until);
        if ended == Ended::All && (over || interrupt.is_set()) {
            ended = if over { Ended::Time } else { Ended::Asked };
            shared.stop.store(true, Ordering::Relaxed);
        }
        if let Some(number) = watch.look() {
            shared.stop.store(true, Ordering::Relaxed);
            // Results of the other worlds are not lost with it.
            early.extend(results.try_iter());
            early.insert(number, trial::hangs());
            for (number, outcome) in early {
                if !each(work.first.wrapping_add(number), outcome) {
                    break;
                }
            }
            return Ok(Ended::Hangs);
        }
    }
}

/// Runs one world on a thread of its own; `None`: it is not back after that long (its thread is
/// left behind), or there can be no thread.
pub fn watched(
    patience: Duration,
    world: impl Fn() -> Outcome + Send + Sync + 'static,
) -> Option<Outcome> {
    let one = Work {
        first: 0,
        count: 1,
        until: None,
        threads: 1,
        patience,
    };
    let mut outcome = None;
    let ended = run(
        &one,
        &Interrupt::default(),
        move |_| world(),
        |_, it| {
            outcome = Some(it);
            true
        },
    );
    outcome.filter(|_| ended.is_ok_and(|it| it == Ended::All))
}

type Results = Receiver<(u64, Outcome)>;
/// The number of the world of each thread.
type Workers = Vec<Arc<AtomicU64>>;

fn start<F: Fn(u64) -> Outcome + Send + Sync + 'static>(
    work: &Work,
    shared: &Arc<Shared>,
    world: Arc<F>,
) -> anyhow::Result<(Results, Workers)> {
    let (to, results) = sync_channel(WAITING_MAX);
    let mut workers = Workers::new();
    let most = usize::try_from(work.count).unwrap_or(usize::MAX);
    for _ in 0..work.threads.min(THREADS_MAX).min(most) {
        let under_way = Arc::new(AtomicU64::new(NONE));
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        let (of_thread, shared, to) = (Arc::clone(&under_way), Arc::clone(shared), to.clone());
        let (world, work) = (Arc::clone(&world), work.clone());
        let run = move || work.perform(&shared, &of_thread, &*world, &to);
        match thread.name("world".into()).spawn(run) {
            Ok(_) => workers.push(under_way),
            Err(why) if workers.is_empty() => return Err(why).context("cannot start a thread"),
            Err(_) => break, // those that are there do it
        }
    }
    Ok((results, workers))
}

impl Work {
    fn perform(
        &self,
        shared: &Shared,
        under_way: &AtomicU64,
        world: &dyn Fn(u64) -> Outcome,
        to: &SyncSender<(u64, Outcome)>,
    ) {
        while !shared.stop.load(Ordering::Relaxed) {
            let number = shared.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.count {
                return;
            }
            under_way.store(number, Ordering::Relaxed);
            let outcome = world(self.first.wrapping_add(number));
            under_way.store(NONE, Ordering::Relaxed);
            if to.send((number, outcome)).is_err() {
                return; // the receiver has gone
            }
        }
    }
}

/// How long each thread has had its world. Time in which this program stood still does not count.
struct Watch {
    workers: Vec<(Arc<AtomicU64>, u64, Duration)>,
    last: Instant,
    patience: Duration,
}

impl Watch {
    fn new(workers: Workers, patience: Duration) -> Self {
        let watched = |it| (it, NONE, Duration::ZERO);
        Self {
            workers: workers.into_iter().map(watched).collect(),
            last: Instant::now(),
            patience,
        }
    }

    /// The number of a world that takes too long.
    fn look(&mut self) -> Option<u64> {
        let now = Instant::now();
        let passed = (now - self.last).min(2 * TICK);
        self.last = now;
        for (under_way, number, age) in &mut self.workers {
            let at = under_way.load(Ordering::Relaxed);
            if at != *number || at == NONE {
                (*number, *age) = (at, Duration::ZERO);
                continue;
            }
            *age += passed;
            if *age > self.patience {
                return Some(at);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::trial::Found;

    fn work(count: u64, threads: usize) -> Work {
        Work {
            first: 10,
            count,
            until: None,
            threads,
            patience: PATIENCE,
        }
    }

    fn found(seed: u64) -> Outcome {
        let found = Found {
            kind: String::new(),
            text: seed.to_string(),
            block: None,
            seen_ns: None,
        };
        Outcome {
            found: seed.is_multiple_of(3).then_some(found),
            ..Outcome::default()
        }
    }

    /// Worlds may end in any order; small seeds take longer here.
    fn heard(count: u64, threads: usize, most: usize) -> (Vec<u64>, Ended) {
        let mut heard = Vec::new();
        let world = |seed| {
            (0..(40_u64.saturating_sub(seed) * 10_000)).for_each(|it| {
                std::hint::black_box(it);
            });
            found(seed)
        };
        let ended = run(
            &work(count, threads),
            &Interrupt::default(),
            world,
            |seed, it| {
                assert_eq!(it.found.is_some(), seed.is_multiple_of(3));
                heard.push(seed);
                heard.len() < most
            },
        );
        (heard, ended.unwrap())
    }

    #[test]
    fn worlds_are_heard_of_in_order_whoever_runs_them() {
        for threads in [1, 2, 7, usize::MAX] {
            let (seeds, ended) = heard(30, threads, usize::MAX);
            assert_eq!((seeds, ended), ((10..40).collect(), Ended::All));
            let (seeds, ended) = heard(u64::MAX, threads, 12);
            assert_eq!((seeds, ended), ((10..22).collect(), Ended::Enough));
        }
    }

    /// Seed 10 does not come back, and 11 to 14 have ended long before it is given up.
    #[test]
    fn what_others_have_found_is_not_lost_with_a_world_that_hangs() {
        let (held, never) = std::sync::mpsc::channel::<()>();
        let never = std::sync::Mutex::new(never);
        let world = move |seed| {
            if seed == 10 {
                let _ = never.lock().unwrap().recv();
            }
            found(seed)
        };
        let work = Work {
            patience: Duration::from_millis(500),
            ..work(5, 2)
        };
        let mut heard = Vec::new();
        let ended = run(&work, &Interrupt::default(), world, |seed, it| {
            heard.push((seed, it.found.map(|it| it.text)));
            true
        });
        drop(held);
        assert_eq!(ended.unwrap(), Ended::Hangs);
        let seeds: Vec<u64> = heard.iter().map(|it| it.0).collect();
        assert_eq!(seeds, [10, 11, 12, 13, 14]);
        assert!(
            heard[0]
                .1
                .as_ref()
                .is_some_and(|it| it.contains("come back"))
        );
        assert_eq!(heard[2].1.as_deref(), Some("12"));
    }

    #[test]
    fn after_its_time_no_world_begins() {
        let until = Some(Instant::now());
        let work = Work {
            until,
            ..work(u64::MAX, 2)
        };
        let mut seeds = Vec::new();
        let ended = run(&work, &Interrupt::default(), found, |seed, _| {
            seeds.push(seed);
            true
        });
        assert_eq!(ended.unwrap(), Ended::Time);
        assert_eq!(seeds, (10..10 + seeds.len() as u64).collect::<Vec<_>>());
    }
}
