use super::*;
use proptest::prelude::*;
use proptest::sample::Index;

const CORES: u16 = 3;
const VOLUME: u16 = 4;

#[derive(Clone, Debug)]
enum Act {
    /// A change of whole blocks comes to a core.
    Whole(u16, u64, u64),
    /// One that has to be alone.
    Alone(u16, u64, u64),
    /// A change ends, or the client of one that has not begun goes.
    End(Index),
    /// A core takes the oldest message of another one.
    Take(Index),
    /// Changes of a core are under way for long.
    Look(u16),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let range = || (0u64..12, 1u64..5).prop_map(|(start, len)| (start, start + len));
    let core = || 0..CORES;
    let whole = (core(), range()).prop_map(|(core, (start, end))| Act::Whole(core, start, end));
    let alone = (core(), range()).prop_map(|(core, (start, end))| Act::Alone(core, start, end));
    let end = any::<Index>().prop_map(Act::End);
    let take = any::<Index>().prop_map(Act::Take);
    let act = prop_oneof![
        3 => whole,
        2 => alone,
        3 => end,
        8 => take,
        1 => core().prop_map(Act::Look)
    ];
    prop::collection::vec(act, 1..200)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Is {
    /// It asked, and has no place.
    Asking,
    Waiting,
    Begun,
    Ended,
}

#[derive(Clone, Copy, Debug)]
struct Change {
    core: usize,
    range: Range,
    is_alone: bool,
    place: Option<Ticket>,
    is: Is,
}

struct One {
    order: ChangeOrder,
    cross: CrossCore,
    now_ns: u64,
}

/// Three cores, and the messages between them. A change's cookie is its number.
struct All {
    cores: Vec<One>,
    /// By sender, by receiver.
    mail: Vec<Vec<VecDeque<CoreMessage>>>,
    changes: Vec<Change>,
}

impl All {
    fn new() -> Self {
        let one = |core| One {
            order: ChangeOrder::new(4),
            cross: CrossCore::new(core, CORES),
            now_ns: 1,
        };
        let none = || (0..CORES).map(|_| VecDeque::new()).collect();
        Self {
            cores: (0..CORES).map(one).collect(),
            mail: (0..CORES).map(|_| none()).collect(),
            changes: Vec::new(),
        }
    }

    /// # Panics
    /// If a change that has begun before keeps it from beginning.
    fn begin(&mut self, number: usize) {
        let it = self.changes[number];
        assert_eq!(it.is, Is::Waiting, "change {number}");
        for (other, before) in self.changes.iter().enumerate() {
            let is_apart = before.core != it.core && !before.is_alone && !it.is_alone;
            let may = before.is != Is::Begun || is_apart || !before.range.overlaps(it.range);
            assert!(may, "{number} {it:?} begins beside {other} {before:?}");
        }
        self.changes[number].is = Is::Begun;
    }

    /// The change has a place; `begins`: its turn has come on its core.
    fn has_place(&mut self, number: usize, place: Ticket, begins: bool) {
        let it = &mut self.changes[number];
        (it.place, it.is) = (Some(place), Is::Waiting);
        match (begins, it.is_alone) {
            (false, _) => {}
            (true, true) => self.cores[it.core].cross.has_turn(number as u64),
            (true, false) => self.begin(number),
        }
    }

    fn place(&mut self, number: usize) {
        let it = self.changes[number];
        let order = &mut self.cores[it.core].order;
        let (place, begins) = order.admit(number as u64, VOLUME.into(), it.range);
        self.has_place(number, place, begins);
    }

    fn come(&mut self, core: u16, range: Range, is_alone: bool) {
        let number = self.changes.len();
        let at = usize::from(core);
        if is_alone {
            self.cores[at].cross.ask(number as u64, VOLUME, range);
        }
        self.changes.push(Change {
            core: at,
            range,
            is_alone,
            place: None,
            is: if is_alone { Is::Asking } else { Is::Waiting },
        });
        if !is_alone {
            self.place(number);
        }
        self.settle();
    }

    fn end(&mut self, number: usize) {
        let it = &mut self.changes[number];
        it.is = Is::Ended;
        let (is_alone, place) = (it.is_alone, it.place);
        let One { order, cross, .. } = &mut self.cores[it.core];
        if let Some(place) = place {
            cross.hide(place);
            order.withdraw(place);
        }
        if is_alone {
            cross.end(number as u64);
        }
        self.settle();
    }

    /// Posts what cores have to say, takes what they say to themselves, and begins changes whose
    /// turn has come.
    fn settle(&mut self) {
        for core in 0..self.cores.len() {
            loop {
                let One { order, cross, .. } = &mut self.cores[core];
                if let Some(begun) = order.poll_begun() {
                    if !is_own(begun.owner) {
                        cross.begun(begun.ticket);
                    } else {
                        self.has_place(begun.owner as usize, begun.ticket, true);
                    }
                } else if let Some((to, message)) = cross.poll() {
                    match usize::from(to) == core {
                        true => self.take(core, message),
                        false => self.mail[core][usize::from(to)].push_back(message),
                    }
                } else {
                    break;
                }
            }
        }
    }

    fn take(&mut self, core: usize, message: CoreMessage) {
        let One { order, cross, .. } = &mut self.cores[core];
        match cross.handle(order, message) {
            Some(Step::Place(cookie)) => self.place(cookie as usize),
            Some(Step::Begin(cookie)) => self.begin(cookie as usize),
            Some(Step::Settle(arrival)) => cross.settled(arrival),
            None => {}
        }
    }

    /// A core takes the oldest message of another one.
    fn take_of(&mut self, from: usize, to: usize) {
        let message = self.mail[from][to].pop_front().unwrap();
        self.take(to, message);
        self.settle();
    }

    fn take_any(&mut self, choose: impl FnOnce(usize) -> usize) -> bool {
        let pairs =
            (0..self.cores.len()).flat_map(|from| (0..CORES.into()).map(move |to| (from, to)));
        let with_mail: Vec<(usize, usize)> = pairs
            .filter(|&(from, to)| !self.mail[from][to].is_empty())
            .collect();
        if with_mail.is_empty() {
            return false;
        }
        let (from, to) = with_mail[choose(with_mail.len())];
        let message = self.mail[from][to].pop_front().unwrap();
        self.take(to, message);
        self.settle();
        true
    }

    fn look(&mut self, core: u16) {
        let it = &mut self.cores[usize::from(core)];
        for _ in 0..3 {
            it.now_ns += SHOWN_AFTER_NS;
            it.cross.turn(&mut it.order, it.now_ns);
        }
        self.settle();
    }

    fn act(&mut self, act: &Act) {
        match *act {
            Act::Whole(core, start, end) => self.come(core, Range { start, end }, false),
            Act::Alone(core, start, end) => self.come(core, Range { start, end }, true),
            Act::End(index) => {
                let ends = |it: &Change| it.is == Is::Begun || it.is_alone && it.is != Is::Ended;
                let may: Vec<usize> = (0..self.changes.len())
                    .filter(|&number| ends(&self.changes[number]))
                    .collect();
                if !may.is_empty() {
                    self.end(*index.get(&may));
                }
            }
            Act::Take(index) => drop(self.take_any(|count| index.index(count))),
            Act::Look(core) => self.look(core),
        }
    }
}

proptest! {
    /// A change that asked is alone, none waits for ever, and nothing is left of those that ended.
    #[test]
    fn t46_changes_on_several_cores_are_alone_where_they_ask(acts in acts()) {
        let mut all = All::new();
        for act in &acts {
            all.act(act);
        }
        loop {
            while all.take_any(|_| 0) {}
            let Some(number) = all.changes.iter().position(|it| it.is == Is::Begun) else {
                break;
            };
            all.end(number);
        }
        for (number, it) in all.changes.iter().enumerate() {
            prop_assert_eq!(it.is, Is::Ended, "change {} waits for ever", number);
        }
        for it in &all.cores {
            prop_assert!(it.order.is_empty() && it.cross.places.is_empty());
            prop_assert!(it.cross.own.is_empty() && it.cross.asking.is_empty());
            prop_assert!(it.cross.shown.is_empty() && it.cross.waiting.is_empty());
            prop_assert!(it.cross.alone.is_empty());
        }
    }
}

/// A change that is under way for long keeps the same one, sent again to another core, waiting.
#[test]
fn t46_change_that_lasts_is_known_to_all_cores() {
    let mut all = All::new();
    all.come(1, Range { start: 0, end: 4 }, false);
    all.look(1);
    for to in [0, 2] {
        let message = all.mail[1][to].pop_front().unwrap();
        all.take(to, message);
    }
    all.come(2, Range { start: 2, end: 3 }, false);
    all.come(0, Range { start: 4, end: 8 }, false);
    let is = |all: &All| all.changes.iter().map(|it| it.is).collect::<Vec<_>>();
    assert_eq!(is(&all), [Is::Begun, Is::Waiting, Is::Begun]);
    all.end(0);
    let message = all.mail[1][2].pop_front().unwrap();
    all.take(2, message);
    all.settle();
    assert_eq!(is(&all)[1], Is::Begun);
}

/// A core that has ended is not waited for.
#[test]
fn t46_core_that_ends_holds_up_no_change() {
    let mut all = All::new();
    all.come(0, Range { start: 0, end: 4 }, true);
    all.cores[2].cross.leave();
    all.settle();
    let left = all.mail[2][0].pop_front().unwrap();
    all.take(0, left);
    all.settle();
    let place = all.mail[0][1].pop_front().unwrap();
    all.take(1, place);
    all.settle();
    let turn = all.mail[1][0].pop_front().unwrap();
    assert_eq!(all.changes[0].is, Is::Waiting);
    all.take(0, turn);
    all.settle();
    assert_eq!(all.changes[0].is, Is::Begun);
    all.end(0);
    // It goes on for a while. One that asks now has no place there, and is not over there.
    all.mail[0][2].clear();
    all.come(0, Range { start: 0, end: 4 }, true);
    all.end(1);
    assert!(all.mail[0][2].is_empty());
}

/// A new client waits for every core, behind what that has shown, but not for one that has ended.
#[test]
fn t46_client_is_settled_once_all_cores_answered() {
    let mut all = All::new();
    let settled = |all: &mut All| all.cores[1].cross.poll_settled();
    let number = all.cores[1].cross.arrive(VOLUME, false);
    all.settle();
    all.take_of(1, 0);
    all.take_of(0, 1);
    assert_eq!(settled(&mut all), None, "core 2 has not answered");
    all.come(2, Range { start: 0, end: 4 }, false);
    let One { order, cross, .. } = &mut all.cores[2];
    cross.show_all(order, |_| true);
    all.settle();
    all.take_of(1, 2);
    all.take_of(2, 1);
    assert_eq!(settled(&mut all), None, "its change is known first");
    all.take_of(2, 1);
    assert_eq!(settled(&mut all), Some(number));
    all.come(1, Range { start: 0, end: 4 }, false);
    assert_eq!(all.changes[1].is, Is::Waiting);

    let number = all.cores[1].cross.arrive(VOLUME, false);
    all.settle();
    all.cores[2].cross.leave();
    all.settle();
    all.take_of(1, 2);
    all.take_of(2, 1);
    assert_eq!(settled(&mut all), None, "core 0 has not answered");
    all.take_of(1, 0);
    all.take_of(0, 1);
    assert_eq!(settled(&mut all), Some(number));
    all.take_of(2, 1); // its answer, after its end
    let alone = all.cores[1].cross.arrive(VOLUME, true);
    all.settle();
    assert_eq!(
        settled(&mut all),
        Some(alone),
        "a mirror's clients are on one core"
    );
}
