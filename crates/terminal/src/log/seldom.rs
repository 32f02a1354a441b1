//! Rate limits of lines that a peer can cause as often as it likes.
//!
//! # Contract
//! Of one kind of line about one object [`BURST`] pass in [`PERIOD`]; the rest is counted, and the
//! count is a line of its own when the period is over, whether or not another line comes.
//!
//! # Limits
//! [`OBJECTS_MAX`] objects are told apart; those beyond share the limit of their kind.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tracing::Level;

/// Lines of a period.
const BURST: u32 = 10;
/// Length of a period.
pub const PERIOD: Duration = Duration::from_secs(10);
/// Objects that are told apart.
const OBJECTS_MAX: usize = 512;
/// The object of all beyond them.
const OTHERS: &str = "others";

/// See the module.
#[derive(Debug, Default)]
pub struct Seldom {
    limits: BTreeMap<(&'static str, String), Limit>,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    until: Instant,
    passed: u32,
    dropped: u32,
    level: Level,
}

impl Seldom {
    /// Whether one more line passes.
    pub fn admit(&mut self, kind: &'static str, object: &str, level: Level, now: Instant) -> bool {
        let mut key = (kind, object.to_owned());
        if !self.limits.contains_key(&key) && self.limits.len() >= OBJECTS_MAX {
            self.limits.retain(|_, it| it.until > now || it.dropped > 0);
            if self.limits.len() >= OBJECTS_MAX {
                key.1 = OTHERS.to_owned();
            }
        }
        let new = Limit {
            until: now + PERIOD,
            passed: 0,
            dropped: 0,
            level,
        };
        let limit = self.limits.entry(key).or_insert(new);
        if limit.until <= now && limit.dropped == 0 {
            *limit = new;
        }
        if limit.passed >= BURST {
            limit.dropped = limit.dropped.saturating_add(1);
            return false;
        }
        limit.passed += 1;
        true
    }

    /// Lines about those that were dropped in periods that are over.
    pub fn over(&mut self, now: Instant) -> Vec<(Level, String)> {
        let mut lines = Vec::new();
        self.limits.retain(|(kind, object), it| {
            if it.until > now {
                return true;
            }
            if it.dropped > 0 {
                let (count, period) = (it.dropped, PERIOD.as_secs());
                let line = format!(
                    "{object}: {count} more lines about {kind} within {period} s were dropped"
                );
                lines.push((it.level, line));
            }
            false
        });
        lines
    }

    /// When the first period in which lines were dropped is over.
    pub fn next(&self) -> Option<Instant> {
        let dropped = self.limits.values().filter(|it| it.dropped > 0);
        dropped.map(|it| it.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_lines_are_counted_by_kind_and_object_and_said_in_time() {
        let mut seldom = Seldom::default();
        let now = Instant::now();
        let mut admit = |kind, object, at| seldom.admit(kind, object, Level::WARN, at);
        let passed = (0..BURST + 7)
            .filter(|_| admit("errors", "v0", now))
            .count();
        assert_eq!(passed, BURST as usize);
        assert!(admit("errors", "v1", now) && admit("clients", "v0", now));
        assert_eq!(seldom.next(), Some(now + PERIOD));
        let just_before = now + PERIOD - Duration::from_nanos(1);
        assert_eq!(seldom.over(just_before), []);
        let line = "v0: 7 more lines about errors within 10 s were dropped".to_owned();
        assert_eq!(seldom.over(now + PERIOD), [(Level::WARN, line)]);
        assert_eq!(seldom.next(), None);
        assert!(seldom.admit("errors", "v0", Level::WARN, now + PERIOD));
        assert!(seldom.over(now + PERIOD + PERIOD).is_empty());
    }

    #[test]
    fn objects_beyond_the_most_share_a_limit() {
        let mut seldom = Seldom::default();
        let now = Instant::now();
        let all = (0..2 * OBJECTS_MAX).map(|it| it.to_string());
        let passed = all.filter(|it| seldom.admit("errors", it, Level::WARN, now));
        assert_eq!(passed.count(), OBJECTS_MAX + BURST as usize);
        assert!(seldom.limits.len() <= OBJECTS_MAX + 1);
        let later = now + PERIOD;
        let lines = seldom.over(later);
        assert!(
            lines.len() == 1 && lines[0].1.starts_with("others: 502 more"),
            "{lines:?}"
        );
    }
}
