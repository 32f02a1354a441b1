//! Memory of users' I/Os that legs have parts of, and which of it is lent beyond its I/O's end.
//!
//! # Contract
//! An I/O has a loan while legs have parts of it ([`Loans::add`], [`Loans::end`] once for each).
//! One that ends before that lends its memory ([`Loans::lend`]): a leg that has left may still read
//! it (T10). Its number is another one's only when all parts have ended.
//!
//! # Limits
//! As many as there are parts under way; each step takes the same time, however many there are.
//! Room is made once for as many as the host has slots; what waits for a slot may need a little
//! more.
use crate::machine::Span;
use block::{Key, SlotMap};

/// All of them.
pub(super) struct Loans {
    all: SlotMap<Loan>,
    /// How many are lent.
    lent: usize,
}

#[derive(Clone, Copy)]
struct Loan {
    span: Span,
    parts: u32,
    /// The cookie of its I/O, once that has ended.
    lent: Option<u64>,
}

/// What is left of a loan when a part has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// Other parts.
    Some,
    /// Nothing, and its I/O goes on or has no memory.
    None,
    /// Nothing; its I/O, of this cookie, had ended before.
    NoneOfLent(u64),
}

impl Loans {
    pub fn new(room: usize) -> Self {
        Self {
            all: SlotMap::new(room as u32),
            lent: 0,
        }
    }

    /// A leg has one part more of an I/O with this memory; its loan, which is a new one where it
    /// had none.
    pub fn add(&mut self, loan: Option<Key>, span: Span) -> Key {
        if let Some(loan) = loan {
            self.all[loan].parts += 1;
            return loan;
        }
        self.all.insert(Loan {
            span,
            parts: 1,
            lent: None,
        })
    }

    /// The I/O of this cookie ends, and legs still have parts of it.
    pub fn lend(&mut self, loan: Key, cookie: u64) {
        let it = &mut self.all[loan];
        let before = it.lent.replace(cookie);
        assert!(it.parts > 0 && before.is_none(), "memory is lent once");
        self.lent += 1;
    }

    /// A part has ended.
    pub fn end(&mut self, loan: Key) -> Left {
        let it = &mut self.all[loan];
        it.parts -= 1;
        if it.parts > 0 {
            return Left::Some;
        }
        match self.all.remove(loan).lent {
            Some(cookie) => {
                self.lent -= 1;
                Left::NoneOfLent(cookie)
            }
            None => Left::None,
        }
    }

    /// Whether anything is lent.
    pub fn lends(&self) -> bool {
        self.lent > 0
    }

    /// Whether something of this memory is lent; it looks at all loans.
    pub fn is_lent(&self, span: Span) -> bool {
        let end = |it: Span| it.at + u64::from(it.len);
        let mut lent = self.all.iter().filter(|(_, it)| it.lent.is_some());
        lent.any(|(_, it)| it.span.at < end(span) && span.at < end(it.span))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: usize = 64;

    /// The plain way: an I/O, and the parts that legs have.
    #[derive(Clone, Copy, Default)]
    struct Plain {
        loan: Option<Key>,
        parts: u32,
        ended: bool,
    }

    fn span(at: usize) -> Span {
        Span {
            at: at as u64 * 4096,
            len: 4096,
        }
    }

    /// One step of an I/O; what it came to.
    fn step(loans: &mut Loans, (at, it): (usize, &mut Plain), what: u64) -> Option<Left> {
        match (what, it.loan) {
            (0 | 1, loan) if !it.ended => {
                it.loan = Some(loans.add(loan, span(at)));
                it.parts += 1;
            }
            (2, Some(loan)) if !it.ended => {
                loans.lend(loan, at as u64);
                it.ended = true;
            }
            (3, Some(loan)) => {
                it.parts -= 1;
                return Some(loans.end(loan));
            }
            _ => {}
        }
        None
    }

    #[test]
    fn t10_what_is_lent_is_what_a_walk_over_all_ios_finds_and_no_step_takes_memory() {
        let mut loans = Loans::new(PLACES);
        let mut all = [Plain::default(); PLACES];
        let (mut random, mut came_back) = (7_u64, 0);
        for _ in 0..50_000 {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let (at, what) = ((random >> 33) as usize % PLACES, random >> 48 & 3);
            let mut left = None;
            let info = allocation_counter::measure(|| {
                left = step(&mut loans, (at, &mut all[at]), what);
            });
            assert_eq!(info.count_total, 0);
            let it = &mut all[at];
            let plain = match (it.parts, it.ended) {
                (0, true) => Left::NoneOfLent(at as u64),
                (0, false) => Left::None,
                _ => Left::Some,
            };
            assert!(left.is_none_or(|left| left == plain), "{left:?} {plain:?}");
            if left.is_some_and(|left| left != Left::Some) {
                came_back += u32::from(it.ended);
                *it = Plain::default();
            }
            let lent = |it: &Plain| it.ended && it.parts > 0;
            assert_eq!(loans.lends(), all.iter().any(lent));
            assert_eq!(loans.is_lent(span(at)), lent(&all[at]));
        }
        assert!(came_back > 1000, "{came_back}");
    }
}
