//! Overlapping changes of any bytes from several connections against a model of every byte.
//!
//! NBD says nothing of the order of requests that are in flight together, so a byte may have the
//! value of any change that no other one replaced: one that was sent after its end and had ended
//! before the reading began. An outcome that must never be is a byte that no such change put there,
//! which is what a merge with what was there before would do.
use super::common::{MS, SECOND, TARGET};
use super::rig::{Plain, Reply, Rig, Setup, config};
use nbd::wire::{cmd, flag};
use nbd::{Kind, Request};
use proptest::prelude::*;

/// Bytes that are written to: three blocks.
const AREA: u64 = 3 * 4096;
const FIRST: u64 = 2 * 4096;

/// One connection's requests.
#[derive(Clone, Copy, Debug)]
struct Act {
    who: usize,
    what: What,
    from: u64,
    len: u32,
    fua: bool,
    /// How long the others have before the next act.
    pause_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Write,
    Zero,
    Trim,
    Read,
    Flush,
}

fn act() -> impl Strategy<Value = Act> {
    let what = prop_oneof![
        6 => Just(What::Write),
        2 => Just(What::Zero),
        1 => Just(What::Trim),
        3 => Just(What::Read),
        1 => Just(What::Flush),
    ];
    let from = prop_oneof![0..AREA, Just(0), Just(4096), Just(4095), Just(8192)];
    let len = prop_oneof![1u32..300, 1u32..9000, Just(4096u32)];
    let pause = prop_oneof![3 => Just(0u64), 2 => 1_000u64..100_000, 1 => Just(MS)];
    (0usize..4, what, from, len, any::<bool>(), pause).prop_map(
        |(who, what, from, len, fua, pause_ns)| Act {
            who,
            what,
            from,
            len: len.min((AREA - from) as u32),
            fua: fua && what != What::Read && what != What::Flush,
            pause_ns,
        },
    )
}

/// A change, and when: in steps of the test.
struct Change {
    from: u64,
    end: u64,
    value: u8,
    sent: usize,
    over: usize,
}

const NEVER: usize = usize::MAX;

#[derive(Default)]
struct Model(Vec<Change>);

impl Model {
    /// Whether a byte may have `value` for somebody who looked from `since` to `until`.
    fn may_be(&self, at: u64, value: u8, since: usize, until: usize) -> bool {
        let here = || self.0.iter().filter(move |c| (c.from..c.end).contains(&at));
        // Bytes that were there at the beginning are replaced as any other.
        let replaced = |over: usize| here().any(|next| next.sent > over && next.over < since);
        (value == 0 && !here().any(|next| next.over < since))
            || here().any(|c| c.value == value && c.sent < until && !replaced(c.over))
    }

    /// Changes that may be durable once `fua` is: itself, or one that was not over when it was
    /// sent. That another one has replaced it since says nothing, as that one need not be durable.
    fn durable(&self, fua: &Change, bytes: &[u8]) -> Result<(), String> {
        let late = || self.0.iter().filter(|c| c.over >= fua.sent);
        for (at, &value) in (fua.from..).zip(bytes) {
            if !late().any(|c| c.value == value && (c.from..c.end).contains(&at)) {
                return Err(format!("byte {at} is {value:#x} and not durable"));
            }
        }
        Ok(())
    }

    /// The bytes of a range, as they may be.
    fn check(&self, from: u64, bytes: &[u8], since: usize, until: usize) -> Result<(), String> {
        for (at, &value) in (from..).zip(bytes) {
            if !self.may_be(at, value, since, until) {
                return Err(format!("byte {at} is {value:#x}"));
            }
        }
        Ok(())
    }
}

/// A request under way, by whose it is and its name there.
struct Open {
    who: usize,
    name: u64,
    act: Act,
    sent: usize,
    /// Of the model, where it is a change.
    change: Option<usize>,
}

/// The one that has agreed to block sizes; the others are [`Plain`].
const ALIGNED: usize = 3;

struct Test {
    rig: Rig,
    plains: Vec<Plain>,
    aligned: usize,
    open: Vec<Open>,
    model: Model,
    step: usize,
}

impl Test {
    fn new() -> Self {
        let mut setup = Setup::default().with_volume(1);
        setup.target.subsystem.volatile_write_cache = true;
        let mut rig = Rig::ready(setup);
        rig.disk = rig.disk.clone().with_cache();
        rig.disk.delay_ns = 30_000;
        rig.world.nodes[TARGET].disks = vec![rig.disk.clone()];
        let aligned = rig.connect(config(16));
        let plains = (0..ALIGNED).map(|_| rig.connect_plain()).collect();
        Self {
            rig,
            plains,
            aligned,
            open: Vec::new(),
            model: Model::default(),
            step: 1,
        }
    }

    fn begin(&mut self, mut act: Act) {
        let busy = self.open.iter().filter(|open| open.who == act.who);
        if busy.count() >= 8 {
            return;
        }
        if act.who == ALIGNED {
            let from = act.from & !4095;
            let end = (act.from + u64::from(act.len)).next_multiple_of(4096);
            (act.from, act.len) = (from, (end - from) as u32);
        }
        self.step += 1;
        let (from, end) = (act.from, act.from + u64::from(act.len));
        let value = (self.model.0.len() % 255 + 1) as u8;
        let change = match act.what {
            What::Write => Some((from, end, value)),
            What::Zero => Some((from, end, 0)),
            What::Trim => Some((from.next_multiple_of(4096), end & !4095, 0)),
            What::Read | What::Flush => None,
        };
        let change = change.map(|(from, end, value)| {
            self.model.0.push(Change {
                from,
                end,
                value,
                sent: self.step,
                over: NEVER,
            });
            self.model.0.len() - 1
        });
        let data = match act.what {
            What::Write => vec![value; act.len as usize],
            _ => Vec::new(),
        };
        let name = match act.who {
            ALIGNED => self.send_aligned(&act, &data),
            _ => self.send_plain(&act, &data),
        };
        self.open.push(Open {
            who: act.who,
            name,
            act,
            sent: self.step,
            change,
        });
    }

    fn send_aligned(&mut self, act: &Act, data: &[u8]) -> u64 {
        let kind = match act.what {
            What::Write => Kind::Write,
            What::Zero => Kind::WriteZeroes,
            What::Trim => Kind::Trim,
            What::Read => Kind::Read,
            What::Flush => Kind::Flush,
        };
        let token = self.rig.clients.borrow().free_token(self.aligned).unwrap();
        let mut request = Request::new(token, kind, FIRST + act.from, act.len);
        if kind == Kind::Flush {
            request = Request::flush(token);
        }
        request.fua = act.fua;
        self.rig.submit(self.aligned, request, data);
        token.into()
    }

    fn send_plain(&mut self, act: &Act, data: &[u8]) -> u64 {
        let command = match act.what {
            What::Write => cmd::WRITE,
            What::Zero => cmd::WRITE_ZEROES,
            What::Trim => cmd::TRIM,
            What::Read => cmd::READ,
            What::Flush => cmd::FLUSH,
        };
        let flags = if act.fua { flag::FUA } else { 0 };
        let range = match act.what {
            What::Flush => (0, 0),
            _ => (FIRST + act.from, act.len),
        };
        let plain = &mut self.plains[act.who];
        let mut bytes = plain.request(command, flags, self.step as u64, range);
        bytes.extend(data);
        self.rig.clients.borrow_mut().say(plain.conn, &bytes);
        self.step as u64
    }

    /// Takes what has ended.
    fn poll(&mut self) -> Result<(), String> {
        for end in self.rig.ended(self.aligned) {
            assert_eq!(end.result, Ok(()));
            self.over(ALIGNED, end.token.into(), &end.data)?;
        }
        for who in 0..ALIGNED {
            let replies: Vec<Reply> = self.plains[who].replies(&self.rig);
            for reply in replies {
                assert_eq!(reply.error, 0);
                self.over(who, reply.cookie, &reply.data)?;
            }
        }
        Ok(())
    }

    fn over(&mut self, who: usize, name: u64, data: &[u8]) -> Result<(), String> {
        let at = self
            .open
            .iter()
            .position(|o| o.who == who && o.name == name);
        let open = self
            .open
            .remove(at.expect("a reply to a request in flight"));
        self.step += 1;
        if let Some(change) = open.change {
            self.model.0[change].over = self.step;
        }
        let (model, now) = (&self.model, self.step);
        let durable = self.rig.disk.durable.as_ref().unwrap().borrow();
        let durable = &durable[FIRST as usize..];
        let change = open.change.map(|at| &model.0[at]);
        let checked = match open.act.what {
            What::Read => model.check(open.act.from, data, open.sent, now),
            What::Flush => model.check(0, &durable[..AREA as usize], open.sent, now),
            _ => match change.filter(|_| open.act.fua) {
                Some(fua) if fua.from < fua.end => {
                    model.durable(fua, &durable[fua.from as usize..fua.end as usize])
                }
                _ => Ok(()),
            },
        };
        checked.map_err(|why| format!("{:?}: {why}", open.act))
    }

    fn run(&mut self, acts: &[Act]) -> Result<(), String> {
        for act in acts {
            self.begin(*act);
            let end_ns = self.rig.world.now_ns + act.pause_ns;
            while self.rig.world.now_ns < end_ns {
                self.rig
                    .world
                    .pass((end_ns - self.rig.world.now_ns).min(10_000));
                self.poll()?;
            }
        }
        for _ in 0..1000 {
            if self.open.is_empty() {
                break;
            }
            self.rig.world.pass(10 * MS);
            self.poll()?;
        }
        assert!(self.open.is_empty(), "{} never ended", self.open.len());
        let bytes = self.rig.disk.bytes.borrow();
        let area = &bytes[FIRST as usize..][..AREA as usize];
        self.step += 1;
        self.model.check(0, area, self.step, self.step)?;
        let outside = [&bytes[..FIRST as usize], &bytes[(FIRST + AREA) as usize..]];
        let untouched = |part: &&[u8]| part.iter().all(|byte| *byte == 0);
        assert!(
            outside.iter().all(untouched),
            "written outside of any request"
        );
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn no_change_undoes_another(acts in prop::collection::vec(act(), 1..60)) {
        let mut test = Test::new();
        let checked = test.run(&acts);
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
        prop_assert!(test.rig.lines().is_empty());
    }
}

/// A write that is over before another one is sent, both beside a trim with FUA: what was durable
/// with the trim may be the first.
#[test]
fn force_unit_access_makes_durable_what_it_came_with_and_no_more() {
    let act = |who, what, len, fua, pause_ns| Act {
        who,
        what,
        from: 0,
        len,
        fua,
        pause_ns,
    };
    let acts = [
        act(0, What::Write, 4096, false, 0),
        act(2, What::Trim, 4096, true, 70_000),
        act(0, What::Write, 1, false, 0),
    ];
    Test::new().run(&acts).unwrap();
    let change = |value, sent, over| Change {
        from: 0,
        end: 1,
        value,
        sent,
        over,
    };
    let model = Model(vec![change(1, 1, 2), change(2, 3, 9), change(3, 4, 5)]);
    let durable = |value| model.durable(&model.0[1], &[value]).is_ok();
    assert_eq!([0, 1, 2, 3].map(durable), [false, false, true, true]);
}

/// The model bites: a merge with what was there before another change is noticed.
#[test]
fn the_model_knows_a_lost_change() {
    let change = |value, sent, over| Change {
        from: 0,
        end: 10,
        value,
        sent,
        over,
    };
    let model = Model(vec![change(1, 1, 4), change(2, 2, 6), change(3, 7, 9)]);
    // While 1 and 2 are under way anything goes; after them either; after 3 nothing else.
    assert!((0..3).all(|value| model.may_be(5, value, 3, 3)));
    assert!(!model.may_be(5, 3, 3, 3), "not yet sent");
    assert!(!model.may_be(5, 0, 7, 7), "replaced");
    assert!(model.may_be(5, 1, 7, 7) && model.may_be(5, 2, 7, 7));
    assert!(!model.may_be(5, 1, 10, 10) && !model.may_be(5, 2, 10, 10));
    assert!(model.may_be(5, 3, 10, 10) && model.may_be(11, 0, 10, 10));
}

/// Overlapping changes of whole blocks are not ordered among each other, as on a disk; each waits
/// for those that it merges with.
#[test]
fn t46_after_the_last_answer_every_connection_reads_the_same() {
    let mut test = Test::new();
    let write = |who: usize| Act {
        who,
        what: What::Write,
        from: 4096 - 10 * who as u64,
        len: 4096,
        fua: false,
        pause_ns: 0,
    };
    for _ in 0..8 {
        (0..=ALIGNED).for_each(|who| test.begin(write(who)));
        test.run(&[]).unwrap();
        let bytes = test.rig.disk.bytes.borrow()[FIRST as usize..][..AREA as usize].to_vec();
        let read = test.rig.read(test.aligned, FIRST, AREA as u32);
        assert!(read == bytes);
        for who in 0..ALIGNED {
            let Test { rig, plains, .. } = &mut test;
            let request = plains[who].request(cmd::READ, 0, 9, (FIRST, AREA as u32));
            rig.clients.borrow_mut().say(plains[who].conn, &request);
            assert!(plains[who].reply(rig).data == bytes);
        }
    }
    assert!(test.rig.world.now_ns < 100 * SECOND);
}
