//! Memory of requests that legs of mirrors have beyond the end of its I/Os (T10).
//!
//! # Contract
//! A request has a debt from the first I/O of it on that lends memory, until all loans are back
//! ([`Debts::lend`], [`Debts::pay`]). Where it ends before, its memory is kept here
//! ([`Debts::keep`]), and given out with the last loan.
//!
//! # Limits
//! Each step takes the same time, however much is lent. Memory is taken only where more is lent
//! than ever before, and a place is used again with the room that it has for spans.
use crate::machine::Span;
use alloc::vec::Vec;
use block::{Key, SlotMap};

/// All of them.
#[derive(Default)]
pub(super) struct Debts {
    all: SlotMap<Debt>,
    /// Which one a loan is of, by its slot.
    by_loan: Vec<Option<Key>>,
    /// Lists of spans that no debt has, with the room that they have.
    spare: Vec<Vec<Span>>,
}

struct Debt {
    ticket: u32,
    loans: u32,
    kept: Option<Kept>,
    spans: Vec<Span>,
}

/// Owner of the memory once its request has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub client: u16,
    /// It is the client's own piece.
    pub own: bool,
    pub need: u64,
}

/// Rest of a debt when a loan is back.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Paid<'a> {
    /// Other loans.
    Some,
    /// Nothing; this request goes on.
    Request(u32),
    /// Nothing; this is the memory of a request that has ended.
    Kept(Kept, &'a [Span]),
}

impl Debts {
    /// One loan more of a request; its debt, which is a new one where it had none.
    pub fn lend(&mut self, ticket: u32, debt: Option<Key>, loan: Key) -> Key {
        let debt = debt.unwrap_or_else(|| self.open(ticket));
        self.all[debt].loans += 1;
        let at = loan.index() as usize;
        if at >= self.by_loan.len() {
            self.by_loan.resize(at + 1, None);
        }
        self.by_loan[at] = Some(debt);
        debt
    }

    fn open(&mut self, ticket: u32) -> Key {
        let mut spans = self.spare.pop().unwrap_or_default();
        spans.clear();
        self.all.insert(Debt {
            ticket,
            loans: 0,
            kept: None,
            spans,
        })
    }

    /// Its request ends: where its memory is to be put.
    pub fn keep(&mut self, debt: Key, kept: Kept) -> &mut Vec<Span> {
        let it = &mut self.all[debt];
        it.kept = Some(kept);
        &mut it.spans
    }

    /// A loan is back.
    pub fn pay(&mut self, loan: Key) -> Paid<'_> {
        let Some(debt) = self.by_loan[loan.index() as usize].take() else {
            unreachable!("a loan is of a request, and comes back once");
        };
        let it = &mut self.all[debt];
        it.loans -= 1;
        if it.loans > 0 {
            return Paid::Some;
        }
        let Debt {
            ticket,
            kept,
            spans,
            ..
        } = self.all.remove(debt);
        let at = self.spare.len();
        self.spare.push(spans);
        match kept {
            None => Paid::Request(ticket),
            Some(kept) => Paid::Kept(kept, &self.spare[at]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of a loan.
    fn of(loan: u32) -> Key {
        Key::from_bits(loan.into())
    }

    const REQUESTS: usize = 32;
    const LOANS: u32 = 64;

    /// The plain way: what is out of each request that was.
    #[derive(Default)]
    struct Plain {
        loans: Vec<u32>,
        kept: Option<Kept>,
    }

    /// The request of a ticket that goes on.
    fn find(all: &[(u32, Plain)], ticket: usize) -> Option<usize> {
        let is = |(of, it): &(u32, Plain)| *of as usize == ticket && it.kept.is_none();
        all.iter().position(is)
    }

    /// Lends, ends requests and gives back at random; how often anything was allocated.
    fn live(debts: &mut Debts, steps: u32) -> u64 {
        let mut free: Vec<u32> = (0..LOANS).collect();
        // Requests by ticket, and those that have ended.
        let mut open = [const { None::<Key> }; REQUESTS];
        let mut plain: Vec<(u32, Plain)> = Vec::new();
        let (mut taken, mut random) = (0, 7_u64);
        let mut draw = |below: usize| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) as usize % below
        };
        for step in 0..steps {
            let ticket = draw(REQUESTS);
            match (draw(3), open[ticket]) {
                (0, debt) if !free.is_empty() => {
                    let loan = free.swap_remove(draw(free.len()));
                    let info = allocation_counter::measure(|| {
                        open[ticket] = Some(debts.lend(ticket as u32, debt, of(loan)));
                    });
                    taken += info.count_total;
                    let at = find(&plain, ticket).unwrap_or_else(|| {
                        plain.push((ticket as u32, Plain::default()));
                        plain.len() - 1
                    });
                    plain[at].1.loans.push(loan);
                }
                (1, Some(debt)) => {
                    let kept = Kept {
                        client: ticket as u16,
                        own: step % 2 == 0,
                        need: step.into(),
                    };
                    let span = Span {
                        at: step.into(),
                        len: 1,
                    };
                    let info = allocation_counter::measure(|| debts.keep(debt, kept).push(span));
                    taken += info.count_total;
                    let at = find(&plain, ticket).unwrap();
                    (plain[at].1.kept, open[ticket]) = (Some(kept), None);
                }
                (2, _) if !plain.is_empty() => {
                    let at = draw(plain.len());
                    let it = &mut plain[at].1;
                    let loan = it.loans.swap_remove(draw(it.loans.len()));
                    free.push(loan);
                    let paid = debts.pay(of(loan));
                    if !it.loans.is_empty() {
                        assert_eq!(paid, Paid::Some);
                        continue;
                    }
                    let (ticket, it) = plain.swap_remove(at);
                    match (it.kept, paid) {
                        (None, paid) => {
                            assert_eq!(paid, Paid::Request(ticket));
                            open[ticket as usize] = None;
                        }
                        (Some(kept), Paid::Kept(given, spans)) => {
                            assert_eq!((given, spans.len()), (kept, 1));
                            assert_eq!(spans[0].at, kept.need);
                        }
                        other => panic!("{other:?}"),
                    }
                }
                _ => {}
            }
        }
        taken
    }

    #[test]
    fn t10_memory_comes_back_with_the_last_loan_as_a_walk_over_all_finds_and_none_is_taken_anew() {
        let mut debts = Debts::default();
        // As much as there may be was lent once.
        let kept = Kept {
            client: 0,
            own: false,
            need: 0,
        };
        for loan in 0..LOANS {
            let debt = debts.lend(loan, None, of(loan));
            debts.keep(debt, kept).push(Span::default());
        }
        (0..LOANS).for_each(|loan| assert!(matches!(debts.pay(of(loan)), Paid::Kept(..))));
        assert_eq!(live(&mut debts, 50_000), 0);
    }
}
