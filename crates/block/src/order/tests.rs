use super::*;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Admit(u32, u64, u64),
    End(prop::sample::Index),
    Withdraw(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let admit = (0u32..2, 0u64..24, 0u64..9)
        .prop_map(|(volume, start, length)| Step::Admit(volume, start, start + length));
    let end = any::<prop::sample::Index>().prop_map(Step::End);
    let withdraw = any::<prop::sample::Index>().prop_map(Step::Withdraw);
    prop::collection::vec(prop_oneof![4 => admit, 3 => end, 1 => withdraw], 1..120)
}

#[derive(Clone, Copy, PartialEq)]
enum Is {
    Waiting,
    Begun,
    Withdrawn,
}

struct Entry {
    owner: u64,
    volume: u32,
    range: Range,
    ticket: Ticket,
    is: Is,
}

/// An empty range has no byte in common with any.
fn overlap(one: Range, other: Range) -> bool {
    let is_empty = |range: Range| range.start >= range.end;
    !is_empty(one) && !is_empty(other) && one.overlaps(other)
}

/// All changes in order of arrival.
#[derive(Default)]
struct Model(Vec<Entry>);

impl Model {
    fn may_begin(&self, at: usize) -> bool {
        let it = &self.0[at];
        !self.0[..at]
            .iter()
            .any(|of| of.volume == it.volume && overlap(of.range, it.range))
    }

    /// Drops withdrawn ones that have nothing before them; names what begins.
    fn settle(&mut self) -> Vec<u64> {
        let ghost = |model: &Self, at: usize| model.0[at].is == Is::Withdrawn;
        while let Some(at) = (0..self.0.len()).find(|at| ghost(self, *at) && self.may_begin(*at)) {
            self.0.remove(at);
        }
        let mut begun = Vec::new();
        for at in 0..self.0.len() {
            if self.0[at].is == Is::Waiting && self.may_begin(at) {
                self.0[at].is = Is::Begun;
                begun.push(self.0[at].owner);
            }
        }
        begun
    }

    fn check(&mut self, order: &mut ChangeOrder) -> Result<(), TestCaseError> {
        let mut told = Vec::new();
        while let Some(begun) = order.poll_begun() {
            let known = self.0.iter().find(|it| it.owner == begun.owner);
            prop_assert!(known.is_some_and(|it| it.ticket == begun.ticket));
            told.push(begun.owner);
        }
        let mut want = self.settle();
        for it in self.0.iter().filter(|it| it.is != Is::Withdrawn) {
            prop_assert_eq!(order.may_begin(it.ticket), it.is == Is::Begun);
        }
        told.sort_unstable();
        want.sort_unstable();
        prop_assert_eq!(told, want);
        Ok(())
    }
}

fn at(index: prop::sample::Index, model: &Model, which: impl Fn(Is) -> bool) -> Option<usize> {
    let all: Vec<_> = (0..model.0.len())
        .filter(|at| which(model.0[*at].is))
        .collect();
    (!all.is_empty()).then(|| all[index.index(all.len())])
}

proptest! {
    /// Against a model that compares each change with all before it.
    #[test]
    fn t09_a_change_begins_when_all_before_it_ended(steps in steps()) {
        let mut order = ChangeOrder::new(4);
        let mut model = Model::default();
        let mut owner = 0;
        for step in steps {
            match step {
                Step::Admit(volume, start, end) => {
                    owner += 1;
                    let range = Range { start, end };
                    let waits = |it: &Entry| it.volume == volume && overlap(it.range, range);
                    let overlaps = model.0.iter().any(waits);
                    prop_assert!(start == end || order.overlaps(volume, range) == overlaps);
                    let (ticket, begins) = order.admit(owner, volume, range);
                    let is = if begins { Is::Begun } else { Is::Waiting };
                    model.0.push(Entry { owner, volume, range, ticket, is });
                    prop_assert_eq!(begins, model.may_begin(model.0.len() - 1));
                }
                Step::End(index) => {
                    if let Some(at) = at(index, &model, |is| is == Is::Begun) {
                        order.end(model.0.remove(at).ticket);
                    }
                }
                Step::Withdraw(index) => {
                    if let Some(at) = at(index, &model, |is| is != Is::Withdrawn) {
                        order.withdraw(model.0[at].ticket);
                        match model.0[at].is {
                            Is::Begun => drop(model.0.remove(at)),
                            _ => model.0[at].is = Is::Withdrawn,
                        }
                    }
                }
            }
            model.check(&mut order)?;
        }
        while let Some(at) = model.0.iter().position(|it| it.is == Is::Begun) {
            order.end(model.0.remove(at).ticket);
            model.check(&mut order)?;
        }
        prop_assert!(model.0.is_empty() && order.is_empty());
        prop_assert!(order.nodes.is_empty());
        let mut free = 0;
        let mut next = order.free_link;
        while next != NONE {
            (free, next) = (free + 1, order.links[next as usize].next);
        }
        prop_assert_eq!(free, order.links.len());
    }
}

#[test]
fn whole_and_part_wait_for_each_other_in_order() {
    let mut order = ChangeOrder::new(4);
    let (first, begins) = order.admit(1, 0, Range::new(0, 8));
    assert!(begins);
    let (second, begins) = order.admit(2, 0, Range::new(4, 8));
    assert!(!begins);
    assert!(order.admit(3, 1, Range::new(4, 8)).1, "another volume");
    assert!(order.admit(4, 0, Range::new(12, 4)).1, "touches only");
    order.end(first);
    let begun = order.poll_begun();
    assert_eq!(begun.map(|it| (it.owner, it.ticket)), Some((2, second)));
    assert_eq!(order.poll_begun(), None);
}

/// A withdrawn change keeps those behind it waiting for those before it.
#[test]
fn t09_a_withdrawn_change_lets_nothing_overtake() {
    let mut order = ChangeOrder::new(4);
    let (first, _) = order.admit(1, 0, Range::new(0, 8));
    let (second, _) = order.admit(2, 0, Range::new(0, 8));
    let (_, begins) = order.admit(3, 0, Range::new(0, 8));
    assert!(!begins);
    order.withdraw(second);
    assert_eq!(order.poll_begun(), None);
    order.end(first);
    assert_eq!(order.poll_begun().map(|it| it.owner), Some(3));
}

#[test]
#[should_panic = "a change is taken back that is not there"]
fn a_change_that_has_ended_cannot_be_withdrawn() {
    let mut order = ChangeOrder::new(4);
    let (first, _) = order.admit(1, 0, Range::new(0, 8));
    order.end(first);
    order.admit(2, 0, Range::new(0, 8));
    order.withdraw(first);
}

#[test]
#[should_panic = "a change ends that has not begun"]
fn the_end_of_a_waiting_change_panics() {
    let mut order = ChangeOrder::new(4);
    order.admit(1, 0, Range::new(0, 8));
    let (second, _) = order.admit(2, 0, Range::new(0, 8));
    order.end(second);
}

/// Many that wait for one another, all but the first and last withdrawn: ended in a loop.
#[test]
fn a_long_chain_of_withdrawn_changes_ends_flat() {
    let mut order = ChangeOrder::new(4);
    let (first, _) = order.admit(0, 0, Range::new(0, 8));
    for owner in 1..100_000 {
        let (ticket, _) = order.admit(owner, 0, Range::new(0, 8));
        order.withdraw(ticket);
    }
    order.admit(7, 0, Range::new(0, 8));
    order.end(first);
    assert_eq!(order.poll_begun().map(|it| it.owner), Some(7));
}

/// After the first round the tables are large enough for any later one.
#[test]
fn tables_stay_after_the_first_round() {
    let mut order = ChangeOrder::new(0);
    for round in 0..3 {
        let info = allocation_counter::measure(|| {
            let mut tickets = [None; 64];
            for (n, ticket) in (0..).zip(&mut tickets) {
                *ticket = Some(order.admit(n, 0, Range::new(n * 3, 4)).0);
            }
            for ticket in tickets.into_iter().flatten() {
                order.end(ticket);
                while order.poll_begun().is_some() {}
            }
        });
        assert_eq!(info.count_total > 0, round == 0, "round {round}");
    }
}
