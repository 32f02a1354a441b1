//! Which of the paths that are told is tried next.
//!
//! # Contract
//! Who tells of many has no more turns than who tells of few: among those that are due, controllers
//! take turns, and each one's paths come in the order in which they became due. A refused path is
//! due again after a pause that grows, so that every path has its turn however many are refused.
//! Times are arguments.
//!
//! # Limits
//! Of the places of a volume, [`SHARE`] are each controller's: others take more only while these
//! stay free for those that tell of paths which are not there.
use super::plan::Plan;
use crate::uri::PathUri;
use crate::uri::discovery::in_words;
use engine::discovery::Endpoint;
use engine::limits::DISCOVERY_CONTROLLERS_MAX;
use policy::limits::PATHS_MAX;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::{Duration, Instant};

/// Places of a volume that are a controller's own: so that all can have theirs.
pub const SHARE: usize = PATHS_MAX / DISCOVERY_CONTROLLERS_MAX;
/// First pause before what was refused is tried again.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Pause before what has no place is looked at again.
const PAUSE_CROWDED: Duration = Duration::from_secs(5);
/// Reasons of one path that are remembered.
const REASONS_MAX: usize = 8;

/// The paths of one volume that are to join or to leave.
#[derive(Debug, Default)]
pub struct Queue {
    /// By URI.
    waits: BTreeMap<String, Wait>,
    /// Controller that had its turn last.
    last: Option<Endpoint>,
    /// It was said that there is no place.
    crowded: bool,
}

#[derive(Debug)]
struct Wait {
    at: Instant,
    pause: Duration,
    /// Why it was refused, as said.
    said: Vec<String>,
}

/// Places of a volume.
#[derive(Debug)]
pub struct Places {
    taken: usize,
    /// Of these, by who told of them.
    of: BTreeMap<String, usize>,
    /// How many each controller that tells of others may want.
    wanted: BTreeMap<String, usize>,
}

impl Queue {
    /// Only these are to join or to leave; those that are new are due at once.
    pub fn keep(&mut self, named: impl Iterator<Item = String>, now: Instant) {
        let mut before = std::mem::take(&mut self.waits);
        let new = || Wait {
            at: now,
            pause: Duration::ZERO,
            said: Vec::new(),
        };
        let kept = named.map(|uri| {
            let wait = before.remove(&uri).unwrap_or_else(new);
            (uri, wait)
        });
        self.waits = kept.collect();
    }

    /// The path that is to join next, if one is due that has a place; and for whom.
    pub fn next(
        &mut self,
        plan: &Plan,
        places: &Places,
        now: Instant,
    ) -> Option<(PathUri, Endpoint)> {
        // The first that is due of each controller.
        let mut firsts: BTreeMap<&Endpoint, (Instant, &PathUri)> = BTreeMap::new();
        for (uri, tellers) in &plan.missing {
            let wait = self.waits.get(&uri.to_string());
            let Some(wait) = wait.filter(|it| it.at <= now) else {
                continue;
            };
            for by in tellers.iter().filter(|by| places.has_one_for(by)) {
                let first = firsts.entry(by).or_insert((wait.at, uri));
                if wait.at < first.0 {
                    *first = (wait.at, uri);
                }
            }
        }
        let after = self.last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut later = firsts.range::<Endpoint, _>((after, Bound::Unbounded));
        let (by, (_, uri)) = later.next().or_else(|| firsts.iter().next())?;
        let next = ((*uri).clone(), (*by).clone());
        self.last = Some(next.1.clone());
        Some(next)
    }

    /// Whether this one is to be tried now.
    pub fn is_due(&self, uri: &str, now: Instant) -> bool {
        self.waits.get(uri).is_some_and(|it| it.at <= now)
    }

    /// It has joined, or left.
    pub fn done(&mut self, uri: &str) {
        self.waits.remove(uri);
    }

    /// It could not; comes back if that is to be said.
    pub fn refused(
        &mut self,
        uri: &str,
        why: String,
        most: Duration,
        now: Instant,
    ) -> Option<String> {
        let wait = self.waits.get_mut(uri)?;
        wait.pause = (wait.pause * 2).clamp(PAUSE_MIN, most);
        wait.at = now + wait.pause;
        if why.is_empty() || wait.said.contains(&why) || wait.said.len() == REASONS_MAX {
            return None;
        }
        wait.said.push(why.clone());
        Some(why)
    }

    /// Those that are due and have no place wait; in words, if that is news.
    pub fn crowded(&mut self, plan: &Plan, places: &Places, now: Instant) -> Option<String> {
        let mut count = 0;
        for (uri, tellers) in &plan.missing {
            if tellers.iter().any(|by| places.has_one_for(by)) {
                continue;
            }
            count += 1;
            let wait = self.waits.get_mut(&uri.to_string());
            if let Some(wait) = wait.filter(|it| it.at <= now) {
                wait.at = now + PAUSE_CROWDED;
            }
        }
        let news = count > 0 && !self.crowded;
        self.crowded = count > 0;
        news.then(|| {
            format!(
                "no place for {count} paths that are discovered: a volume has at most {PATHS_MAX}, \
                 of which {SHARE} are each discovery controller's"
            )
        })
    }

    /// When the next one is due.
    pub fn next_at(&self) -> Option<Instant> {
        self.waits.values().map(|it| it.at).min()
    }
}

impl Places {
    /// Of a volume with so many paths, of which these were found; `unheard`: controllers that have
    /// not told anything yet.
    pub fn new(
        taken: usize,
        found: &BTreeMap<String, String>,
        plan: &Plan,
        unheard: &[Endpoint],
    ) -> Self {
        let mut of: BTreeMap<String, usize> = BTreeMap::new();
        for by in found.values() {
            *of.entry(by.clone()).or_default() += 1;
        }
        let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
        for by in plan.missing.iter().flat_map(|(_, tellers)| tellers) {
            *wanted.entry(in_words(by)).or_default() += 1;
        }
        wanted.extend(unheard.iter().map(|by| (in_words(by), SHARE)));
        Self { taken, of, wanted }
    }

    /// Whether a path that this controller tells of has a place.
    pub fn has_one_for(&self, by: &Endpoint) -> bool {
        let by = in_words(by);
        let has = |of: &str| self.of.get(of).copied().unwrap_or(0);
        let others = self.wanted.iter().filter(|(of, _)| **of != by);
        let kept = others.map(|(of, wanted)| SHARE.saturating_sub(has(of)).min(*wanted));
        let kept = match has(&by) < SHARE {
            true => 0,
            false => kept.sum(),
        };
        self.taken + kept < PATHS_MAX
    }
}

#[cfg(test)]
mod tests;
