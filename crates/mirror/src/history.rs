//! Order of a mirror's generations, by the lineages of its writers.
//!
//! # Contract
//! An engine that assembles a mirror and then changes anything begins a *lineage*: a number drawn
//! at random, and the number of its first generation (`event`). All generations of a lineage have
//! one writer, so the last generation of a leg and its lineage identify the leg's state. It
//! precedes another state if that one's history has the lineage, up to that generation at least. If
//! neither of two precedes the other, they have diverged.
//!
//! # Limits
//! [`LINEAGES_MAX`]: older states can't be compared ([`Standing::TooOld`]).
use crate::limits::LINEAGES_MAX;

/// The generations of one writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lineage {
    /// Drawn at random, not 0.
    pub id: u64,
    /// Number of its first generation.
    pub first_event: u64,
}

/// A generation that a leg has for certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its number.
    pub event: u64,
    /// Its lineage. It is kept, since the history forgets lineages.
    pub lineage: u64,
}

/// The last lineages, oldest first; there is at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct History {
    lineages: [Lineage; LINEAGES_MAX],
    count: u8,
}

/// Relation of a state to a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The state is part of the history.
    Within,
    /// It is not: they have diverged.
    Outside,
    /// It is older than what the history still has.
    TooOld,
}

impl History {
    /// History of a new mirror.
    pub fn new(first: Lineage) -> Self {
        let mut lineages = [Lineage::default(); LINEAGES_MAX];
        lineages[0] = first;
        Self { lineages, count: 1 }
    }

    /// Makes a history of lineages that were read. `None`: there are none or too many, one is 0, or
    /// their generations don't rise.
    pub fn from_slice(read: &[Lineage]) -> Option<Self> {
        let (&first, others) = read.split_first()?;
        let rises = read
            .windows(2)
            .all(|it| it[0].first_event < it[1].first_event);
        if first.first_event == 0 || !rises || read.len() > LINEAGES_MAX {
            return None;
        }
        let mut history = Self::new(first);
        for &lineage in others {
            history.push(lineage);
        }
        read.iter().all(|it| it.id != 0).then_some(history)
    }

    /// All of them, oldest first.
    pub fn as_slice(&self) -> &[Lineage] {
        &self.lineages[..self.count.into()]
    }

    /// The latest one.
    pub fn current(&self) -> Lineage {
        self.as_slice().last().copied().unwrap_or_default()
    }

    /// Begins a lineage. Without room the oldest is dropped.
    pub fn push(&mut self, lineage: Lineage) {
        if usize::from(self.count) == LINEAGES_MAX {
            self.lineages.rotate_left(1);
            self.count -= 1;
        }
        self.lineages[usize::from(self.count)] = lineage;
        self.count += 1;
    }

    /// The lineage of a generation; the oldest known one for earlier generations.
    pub fn lineage_of(&self, event: u64) -> u64 {
        let mut lineages = self.as_slice().iter().rev();
        let found = lineages.find(|it| it.first_event <= event);
        found.unwrap_or(&self.lineages[0]).id
    }

    /// Compares generation `event` of `lineage` with this history, whose last generation is `last`.
    pub fn standing(&self, event: u64, lineage: u64, last: u64) -> Standing {
        let all = self.as_slice();
        let Some(at) = all.iter().position(|it| it.id == lineage) else {
            let forgotten = all.len() == LINEAGES_MAX && event < all[0].first_event;
            return match forgotten {
                true => Standing::TooOld,
                false => Standing::Outside,
            };
        };
        let end = all.get(at + 1).map_or(last, |next| next.first_event - 1);
        match (all[at].first_event..=end).contains(&event) {
            true => Standing::Within,
            false => Standing::Outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lineage(id: u64, first_event: u64) -> Lineage {
        Lineage { id, first_event }
    }

    #[test]
    fn what_came_before_is_within_and_what_parted_is_not() {
        let history = History::from_slice(&[lineage(7, 1), lineage(8, 5), lineage(9, 6)]).unwrap();
        for (event, id, standing) in [
            (1, 7, Standing::Within),
            (4, 7, Standing::Within),
            (5, 7, Standing::Outside),
            (5, 8, Standing::Within),
            (6, 8, Standing::Outside),
            (9, 9, Standing::Within),
            (10, 9, Standing::Outside),
            (5, 9, Standing::Outside),
            (2, 1, Standing::Outside),
        ] {
            assert_eq!(history.standing(event, id, 9), standing, "{event} of {id}");
        }
        assert_eq!([4, 5, 9].map(|event| history.lineage_of(event)), [7, 8, 9]);
    }

    #[test]
    fn what_was_forgotten_is_too_old_to_tell() {
        let mut history = History::new(lineage(1, 1));
        for id in 2..=LINEAGES_MAX as u64 + 1 {
            history.push(lineage(id, id * 10));
        }
        assert_eq!(history.as_slice().len(), LINEAGES_MAX);
        assert_eq!(history.standing(9, 1, 500), Standing::TooOld);
        assert_eq!(history.standing(20, 1, 500), Standing::Outside);
        assert_eq!(history.standing(20, 2, 500), Standing::Within);
        assert_eq!(history.current().id, LINEAGES_MAX as u64 + 1);
        assert_eq!(history.lineage_of(3), 2);
    }

    #[test]
    fn what_is_no_history_is_refused() {
        for read in [
            &[][..],
            &[lineage(0, 1)],
            &[lineage(1, 0)],
            &[lineage(1, 1), lineage(0, 2)],
            &[lineage(1, 2), lineage(2, 2)],
            &[lineage(1, 2), lineage(2, 1)],
            &[lineage(1, 1); LINEAGES_MAX + 1],
        ] {
            assert_eq!(History::from_slice(read), None, "{read:?}");
        }
    }
}
