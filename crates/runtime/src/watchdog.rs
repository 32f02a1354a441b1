//! Notices a reactor that does not come back from a system call.
//!
//! # Contract
//! Files that may block are the business of workers (`filesystem`), so a reactor stands still only
//! where the kernel does what it should not. One thread of the process looks at all reactors: one
//! that has requests to files and made no turn since the last look is woken, and one that made none
//! after that stands still. It is logged once, with the file that it submitted to last, and again
//! when it goes on. [`stuck`] reports it to a program that is to end.
//!
//! # Limits
//! A look every [`WATCHDOG_LOOK`]: what stands still is known after two to three of them. Without a
//! thread nothing is watched.
use crate::limits::WATCHDOG_LOOK;
use crate::mailbox::Wake;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::time::Duration;

/// State that a reactor shows to the watchdog.
pub(crate) struct Pulse {
    name: String,
    wake: Arc<Wake>,
    /// Turns of its loop. Written by the reactor, once a turn.
    turns: AtomicU64,
    /// Requests to files that have not ended. Written by the reactor, once a turn.
    files: AtomicU32,
    /// Device to which the last of them went. Written by the reactor with each.
    last: AtomicU32,
    /// Paths of files, by device. Written when devices come and go.
    paths: Mutex<Vec<Option<String>>>,
    /// It stands still. Written by the watchdog.
    stuck: AtomicBool,
}

impl Pulse {
    pub(crate) fn new(name: &str, wake: Arc<Wake>) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            wake,
            turns: AtomicU64::new(0),
            files: AtomicU32::new(0),
            last: AtomicU32::new(0),
            paths: Mutex::default(),
            stuck: AtomicBool::new(false),
        })
    }

    /// A turn begins, with so many requests to files under way.
    #[inline]
    pub(crate) fn beat(&self, turns: u64, files: usize) {
        self.turns.store(turns, Ordering::Relaxed);
        self.files.store(files as u32, Ordering::Relaxed);
    }

    /// A request goes to a device; so many to files are under way then.
    #[inline]
    pub(crate) fn submits(&self, device: usize, files: usize) {
        if files > 0 {
            self.last.store(device as u32, Ordering::Relaxed);
            // The turn may be the last for long.
            self.files.store(files as u32, Ordering::Relaxed);
        }
    }

    /// Sets the name of a device number.
    pub(crate) fn name_device(&self, device: usize, path: Option<String>) {
        let mut paths = lock(&self.paths);
        if paths.len() <= device {
            paths.resize(device + 1, None);
        }
        paths[device] = path;
    }

    fn last_path(&self) -> String {
        let last = self.last.load(Ordering::Relaxed) as usize;
        let path = lock(&self.paths).get(last).cloned().flatten();
        path.unwrap_or_else(|| "a file".to_owned())
    }
}

/// The watchdog's record of a reactor.
struct Watched {
    pulse: Weak<Pulse>,
    /// Turns at the last look.
    turns: u64,
    /// Looks since then without a turn, after it was woken.
    still: u32,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// From now on a reactor is watched, as long as it lives.
pub(crate) fn watch(pulse: &Arc<Pulse>) {
    static STARTED: Once = Once::new();
    lock(&WATCHED).push(Watched {
        pulse: Arc::downgrade(pulse),
        turns: 0,
        still: 0,
    });
    STARTED.call_once(|| {
        let looks = || {
            loop {
                std::thread::sleep(WATCHDOG_LOOK);
                look(&mut lock(&WATCHED));
            }
        };
        let name = "braid-watchdog".into();
        let _ = std::thread::Builder::new().name(name).spawn(looks);
    });
}

/// A reactor that stands still in a system call, and the file that it submitted to last.
pub fn stuck() -> Option<(String, String)> {
    let watched = lock(&WATCHED);
    let mut pulses = watched.iter().filter_map(|it| it.pulse.upgrade());
    let found = pulses.find(|pulse| pulse.stuck.load(Ordering::Relaxed))?;
    Some((found.name.clone(), found.last_path()))
}

fn look(watched: &mut Vec<Watched>) {
    watched.retain_mut(|it| {
        let Some(pulse) = it.pulse.upgrade() else {
            return false;
        };
        it.look(&pulse);
        true
    });
}

impl Watched {
    fn look(&mut self, pulse: &Pulse) {
        let turns = pulse.turns.load(Ordering::Relaxed);
        if turns != self.turns || pulse.files.load(Ordering::Relaxed) == 0 {
            self.turns = turns;
            self.still = 0;
            if pulse.stuck.swap(false, Ordering::Relaxed) {
                tracing::warn!("{} goes on", pulse.name);
            }
            return;
        }
        self.still = self.still.saturating_add(1);
        if self.still == 1 {
            // It may sleep until something ends.
            pulse.wake.raise();
            return;
        }
        if !pulse.stuck.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "{} has not come back from a system call for {:?}: it submitted to {} last; all \
                 that it serves stands still until that returns",
                pulse.name,
                WATCHDOG_LOOK * self.still,
                pulse.last_path()
            );
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long after a stop a program waits for a reactor that stands still, beyond what it grants
/// anyway.
pub const STUCK_GRACE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t52_a_reactor_without_turns_is_stuck_after_a_wake() {
        let pulse = Pulse::new("r", Arc::new(Wake::new("r").unwrap()));
        pulse.name_device(3, Some("/srv/v0".to_owned()));
        let mut it = Watched {
            pulse: Arc::downgrade(&pulse),
            turns: 0,
            still: 0,
        };
        let mut stuck = |pulse: &Pulse| {
            it.look(pulse);
            pulse.stuck.load(Ordering::Relaxed)
        };
        pulse.beat(1, 0);
        assert!((0..4).all(|_| !stuck(&pulse)), "it has nothing to do");
        pulse.submits(3, 1);
        assert!(!stuck(&pulse), "it is woken");
        pulse.beat(2, 1);
        assert!(!stuck(&pulse), "it slept");
        assert!(!stuck(&pulse) && stuck(&pulse));
        assert_eq!(pulse.last_path(), "/srv/v0");
        pulse.beat(3, 1);
        assert!(!stuck(&pulse), "it goes on");
    }
}
