//! Rate limiter for log lines that a remote peer can trigger.
//!
//! # Contract
//! One of a kind for each log: at most so many lines per [`SAID_NS`]; each counts all since the one
//! before. Times are of one clock, ns (T42).
use crate::limits::SAID_NS;

/// How many, and how many of them may be spoken of.
#[derive(Clone, Debug)]
pub struct Seldom {
    most: u32,
    /// Lines of this period.
    said: u32,
    /// Since it was said last.
    count: u32,
    /// When the next period begins.
    next_ns: u64,
}

impl Seldom {
    /// With `most` lines in a period.
    pub fn new(most: u32) -> Self {
        Self {
            most,
            said: 0,
            count: 0,
            next_ns: 0,
        }
    }

    /// One more. If it is spoken of: how many there are since the last one that was, with it.
    pub fn one_more(&mut self, now_ns: u64) -> Option<u32> {
        self.count = self.count.saturating_add(1);
        if now_ns >= self.next_ns {
            self.said = 0;
            self.next_ns = now_ns.saturating_add(SAID_NS);
        }
        if self.said >= self.most {
            return None;
        }
        self.said += 1;
        Some(core::mem::take(&mut self.count))
    }

    /// When [`Self::overdue`] has something to say, ns; `None`: nothing was left out.
    #[inline]
    pub fn due_ns(&self) -> Option<u64> {
        (self.count > 0).then_some(self.next_ns)
    }

    /// How many were not spoken of, once the period is over.
    pub fn overdue(&mut self, now_ns: u64) -> Option<u32> {
        let is_over = self.due_ns().is_some_and(|due_ns| due_ns <= now_ns);
        is_over.then(|| core::mem::take(&mut self.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_period_are_said_and_the_rest_is_counted() {
        let mut seldom = Seldom::new(2);
        let said = |now_ns: u64, seldom: &mut Seldom| seldom.one_more(now_ns);
        let first: [_; 5] = core::array::from_fn(|at| said(at as u64, &mut seldom));
        assert_eq!(first, [Some(1), Some(1), None, None, None]);
        assert_eq!(said(SAID_NS - 1, &mut seldom), None);
        assert_eq!(said(SAID_NS, &mut seldom), Some(5));
        assert_eq!(said(SAID_NS, &mut seldom), Some(1));
        assert_eq!(said(SAID_NS + 1, &mut seldom), None);
    }
}
