use super::*;
use crate::chaos::START_NS;
use shape::Random;
use std::vec;
use std::vec::Vec;

fn read(tag: u64, start_ns: u64, end_ns: u64) -> Op {
    Op {
        deed: Deed::Read(Tag(tag)),
        start_ns,
        end_ns,
    }
}

fn write(tag: u64, start_ns: u64, end_ns: u64) -> Op {
    Op {
        deed: Deed::Write {
            tag: Tag(tag),
            durable: false,
        },
        start_ns,
        end_ns,
    }
}

fn history(ops: &[Op]) -> History {
    let mut history = History::default();
    ops.iter().for_each(|op| history.record(7, *op));
    history
}

fn wrong(ops: &[Op]) -> Option<Wrong> {
    history(ops).check().err().map(|(_, wrong)| wrong)
}

#[test]
fn t09_a_late_write_is_found() {
    let (lost, late) = (write(2, 20, 30), read(1, 40, 50));
    // The first one's end was told, or never: it comes after the second one all the same.
    for end_ns in [10, NEVER] {
        let ops = [write(1, 1, end_ns), lost, late];
        let found = wrong(&ops);
        assert_eq!(found.is_none(), end_ns == NEVER, "{found:?}");
        // A read saw the second one in between, and then the first again.
        let ops = [
            write(1, 1, end_ns),
            read(1, 12, 18),
            lost,
            read(2, 31, 35),
            late,
        ];
        assert!(matches!(wrong(&ops), Some(Wrong::OutOfOrder(..))));
    }
}

/// As of one who begins the next in the instant in which it is told the end of one.
#[test]
fn what_begins_when_another_ends_comes_after_it() {
    assert!(
        wrong(&[write(1, 1, 10), read(0, 10, 20)]).is_some(),
        "stale"
    );
    assert_eq!(wrong(&[write(1, 1, 10), read(1, 10, 20)]), None);
    // A write that no read saw took effect and was replaced while another value was there all the
    // time.
    let old = [write(1, 1, 10), write(2, 10, 20), read(1, 20, 30)];
    assert!(matches!(wrong(&old), Some(Wrong::OutOfOrder(..))));
    let early = read(1, 1, 10);
    let ops = [early, write(1, 10, 20)];
    assert_eq!(wrong(&ops), Some(Wrong::FromNowhere(early)));
    // A write that spans a loss of caches is recorded after it, and may have been before.
    let cut = [write(1, 1, 10), write(2, 15, 25), read(1, 25, 30)];
    let mut history = history(&cut);
    history.crash(20);
    assert!(history.check().is_ok());
}

#[test]
fn what_was_never_there_is_found() {
    assert_eq!(
        wrong(&[read(9, 1, 2)]),
        Some(Wrong::FromNowhere(read(9, 1, 2)))
    );
    let early = read(1, 1, 2);
    assert_eq!(
        wrong(&[write(1, 3, 4), early]),
        Some(Wrong::FromNowhere(early))
    );
    assert_eq!(
        wrong(&[read(0, 1, 2), write(1, 3, NEVER), read(0, 5, 6)]),
        None
    );
    assert!(wrong(&[write(1, 3, 4), read(0, 5, 6)]).is_some(), "stale");
}

#[test]
fn what_was_flushed_survives_and_what_was_not_may_go() {
    let crashed = |durable: bool, flush_ns: Option<u64>, seen: u64| {
        let mut second = write(2, 20, 30);
        second.deed = Deed::Write {
            tag: Tag(2),
            durable,
        };
        let mut history = history(&[write(1, 1, 10), second, read(seen, 60, 70)]);
        if let Some(start_ns) = flush_ns {
            history.flushed(0, start_ns, start_ns + 5);
        }
        history.crash(50);
        history.check().is_ok()
    };
    for seen in 0..=2 {
        assert!(crashed(false, None, seen), "{seen}");
        assert_eq!(crashed(false, Some(12), seen), seen >= 1, "{seen}");
        assert_eq!(crashed(false, Some(31), seen), seen == 2, "{seen}");
        assert_eq!(
            crashed(false, Some(25), seen),
            seen >= 1,
            "too early for the second"
        );
        assert!(crashed(false, Some(48), seen), "over after the crash");
        assert_eq!(crashed(true, None, seen), seen == 2, "{seen}");
    }
}

#[test]
fn t13_what_was_rolled_back_is_told_with_the_flush_that_was_to_keep_it() {
    const HOST: u64 = 1 << 48;
    let lost = write(HOST + 2, 20, 30);
    let other = write(HOST + 3, 2, 5);
    let mut history = history(&[write(HOST + 1, 1, 10), other, lost, read(HOST + 1, 70, 75)]);
    for start_ns in [15, 31, 40] {
        history.flushed(
            1,
            START_NS + 1000 * start_ns,
            START_NS + 1000 * (start_ns + 5),
        );
        history.flushed(1, start_ns, start_ns + 5);
    }
    history.crash(60);
    let (block, wrong) = history.check().unwrap_err();
    assert!(matches!(wrong, Wrong::RolledBack { .. }), "{wrong:?}");
    let keys = history.keys(block, &wrong);
    let is_key = |line: &str| keys.iter().any(|key| line.contains(key.as_str()));
    let story = history.story(block);
    let told = |tag: u64| {
        let tag = std::format!("{tag:#x} ");
        let of = story.iter().filter(|it| it.1.contains(&tag));
        of.map(|it| is_key(&it.1)).collect::<Vec<_>>()
    };
    assert_eq!(told(HOST + 1), [true; 4], "begin and end of write and read");
    assert_eq!(
        (told(HOST + 2), told(HOST + 3)),
        (vec![true; 2], vec![false; 2])
    );
    assert!(is_key("caches are lost: all"));
    let mut flushes = story.iter().filter(|it| it.1.contains("flush"));
    assert!(flushes.any(|it| it.0 == 31 && is_key(&it.1)));
    let late = START_NS + 31_000;
    assert!(
        !story.iter().any(|it| it.0 == late && is_key(&it.1)),
        "{keys:?}"
    );
}

#[test]
fn t13_a_flush_covers_nothing_that_was_given_up_before() {
    // Written, a flush failed from 20 to 25, another one passed.
    let crashed = |write_ns: u64, early_ns: Option<u64>, seen: u64| {
        let second = write(2, write_ns, write_ns + 2);
        let mut history = history(&[write(1, 1, 2), second, read(seen, 60, 70)]);
        if let Some(start_ns) = early_ns {
            history.flushed(0, start_ns, start_ns + 2);
        }
        history.given_up(0, 20, 25);
        history.given_up(1, 3, 45); // another's
        history.flushed(0, 40, 45);
        history.crash(50);
        history.check().is_ok()
    };
    assert!(crashed(10, None, 1), "it had ended before");
    assert!(crashed(22, None, 1), "and while that flush was under way");
    assert!(!crashed(26, None, 1), "it ended later");
    assert!(!crashed(10, Some(14), 1), "an earlier flush had covered it");
    assert!(!crashed(10, Some(14), 0), "and what was before");
    assert!(crashed(10, Some(19), 1), "which was over only afterwards");
}

#[test]
fn after_a_crash_there_is_one_past_and_it_stays() {
    let ops = [
        write(1, 1, 10),
        write(2, 20, 30),
        read(1, 60, 70),
        read(2, 80, 90),
    ];
    let mut two = history(&ops);
    two.crash(50);
    assert!(matches!(two.check(), Err((7, Wrong::TwoPasts(..)))));
    // A second crash leaves the contents that the first one left.
    let mut again = history(&[
        write(1, 1, 10),
        write(2, 20, 30),
        read(1, 60, 70),
        read(2, 90, 95),
    ]);
    again.crash(50);
    again.crash(80);
    assert!(again.check().is_err());
    // But where one of several caches was lost, what is there may be in another one.
    let ops = || [write(1, 1, 10), write(2, 20, 30), read(2, 60, 70)];
    let lost = |crash: fn(&mut History, u64), flush_ns: Option<u64>, seen| {
        let mut history = history(&[&ops()[..], &[read(seen, 90, 95)]].concat());
        crash(&mut history, 50);
        if let Some(start_ns) = flush_ns {
            history.flushed(0, start_ns, start_ns + 5);
        }
        crash(&mut history, 80);
        history.check().is_err()
    };
    for seen in 0..=1 {
        assert!(lost(History::crash, None, seen), "{seen}");
        assert!(!lost(History::crash_of_one, None, seen), "{seen}");
        assert!(lost(History::crash_of_one, Some(35), seen), "{seen}");
        assert!(lost(History::crash_of_one, Some(72), seen), "{seen}");
        assert!(!lost(History::crash_of_one, Some(78), seen), "not before");
    }
    assert!(!lost(History::crash_of_one, Some(72), 2));
    // A write that the crash cut in two may be of either side.
    let ops = [write(1, 1, 10), write(2, 40, 60), read(2, 65, 70)];
    let mut cut = history(&ops);
    cut.crash(50);
    assert_eq!(cut.check(), Ok(()));
}

/// A controller may acknowledge one part of a large write and lose it, before the other part ends.
#[test]
fn t13_a_write_that_one_loss_cut_in_two_may_be_lost_though_flushed_later() {
    let lost = |durable, between: Option<u64>, seen| {
        let mut second = write(2, 40, 60);
        second.deed = Deed::Write {
            tag: Tag(2),
            durable,
        };
        let between = between.map(|tag| read(tag, 61, 64));
        let mut history = history(&[write(1, 1, 10), second, read(seen, 90, 95)]);
        between.into_iter().for_each(|op| history.record(7, op));
        history.flushed(0, 12, 15);
        history.crash_of_one(50);
        history.flushed(0, 65, 70);
        history.crash(80);
        history.check().is_err()
    };
    assert!(!lost(false, Some(1), 1) && !lost(false, None, 1));
    assert!(!lost(false, None, 2) && !lost(false, Some(2), 2));
    assert!(lost(false, Some(2), 1), "it was there after the first loss");
    assert!(lost(true, None, 1), "it was never in a cache");
    assert!(lost(false, None, 0), "what was flushed before stays");
}

/// Whether some sequence of all that ended, and any of what did not, is a register's.
fn brute(ops: &[Op]) -> bool {
    fn go(left: &mut Vec<Op>, value: u64) -> bool {
        if left.iter().all(|op| op.end_ns == NEVER) {
            return true;
        }
        for at in 0..left.len() {
            let op = left[at];
            if left.iter().any(|other| other.precedes(&op)) {
                continue;
            }
            let next = match op.deed {
                Deed::Failed(_) => unreachable!("none is drawn"),
                Deed::Read(tag) if tag.0 != value => continue,
                Deed::Read(_) => value,
                Deed::Write { tag, .. } => tag.0,
            };
            left.remove(at);
            let found = go(left, next);
            left.insert(at, op);
            if found {
                return true;
            }
        }
        false
    }
    go(&mut ops.to_vec(), 0)
}

#[test]
fn the_zones_say_what_trying_all_orders_says() {
    let mut random = Random::new(11);
    let mut verdicts = [0; 2];
    for _ in 0..20_000 {
        let writes = 1 + random.up_to(2);
        let mut ops = vec![];
        for n in 0..2 + random.up_to(4) {
            let start_ns = 1 + random.up_to(20);
            let mut end_ns = start_ns + 1 + random.up_to(8);
            if n < writes {
                if random.up_to(3) == 0 {
                    end_ns = NEVER;
                }
                ops.push(write(n + 1, start_ns, end_ns));
            } else {
                ops.push(read(random.up_to(writes), start_ns, end_ns));
            }
        }
        let (found, want) = (wrong(&ops), brute(&ops));
        assert_eq!(found.is_none(), want, "{ops:#?}: {found:?}");
        verdicts[usize::from(want)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 4000), "{verdicts:?}");
}

#[test]
fn t09_writes_of_the_dead_are_over_once_a_later_life_is_known_to_write() {
    const LIFE: u64 = 1 << 48;
    let killed = |ops: &[Op]| {
        let mut history = history(ops);
        history.died(1, 20);
        history.check().is_ok()
    };
    let dead = write(LIFE + 1, 10, NEVER);
    let late = [read(0, 50, 55), read(LIFE + 1, 60, 65)];
    let also = |ops: &[Op]| killed(&[ops, &[dead], &late].concat());
    assert!(also(&[]), "done at 57");
    assert!(!also(&[write(LIFE + 2, 30, 40)]), "it replaced a later one");
    assert!(also(&[write(LIFE + 2, 30, NEVER)]), "that was never sent");
    let failed = Op {
        deed: Deed::Failed(Tag(LIFE + 2)),
        ..write(0, 30, 40)
    };
    assert!(
        also(&[failed]),
        "it waited for the gate, and then no path did it"
    );
    assert!(!also(&[failed, read(LIFE + 2, 42, 45)]), "a read saw it");
    // A write of another block says the same, if it is of a later life.
    for (start_ns, later) in [(15, false), (30, true)] {
        let mut history = history(&[&[dead][..], &late].concat());
        history.died(1, 20);
        history.record(8, write(LIFE + 3, start_ns, 40));
        assert_eq!(history.check().is_err(), later);
    }
}

#[test]
fn what_failed_was_done_by_then_or_never() {
    let failed = Op {
        deed: Deed::Failed(Tag(1)),
        start_ns: 1,
        end_ns: 10,
    };
    let after = write(2, 20, 30);
    assert_eq!(wrong(&[failed, after, read(2, 40, 50)]), None, "not done");
    assert_eq!(wrong(&[failed, read(1, 12, 15), after]), None, "done");
    assert_eq!(wrong(&[failed, read(0, 12, 15), after]), None, "not done");
    // Done later than its end: it came back.
    assert!(matches!(
        wrong(&[failed, after, read(1, 40, 50)]),
        Some(Wrong::OutOfOrder(..))
    ));
    assert!(matches!(
        wrong(&[failed, read(0, 12, 15), read(1, 16, 19)]),
        Some(Wrong::OutOfOrder(..))
    ));
}

#[test]
fn t09_of_copies_what_failed_may_be_executed_late_but_not_over_a_later_write() {
    const SECOND: u64 = 1_000_000_000;
    let told = |left: &[u64], ops: &[Op]| {
        let mut history = History {
            copies: true,
            left: left.to_vec(),
            ..history(&[])
        };
        ops.iter().for_each(|op| history.record(7, *op));
        history.check().is_ok()
    };
    let failed = Op {
        deed: Deed::Failed(Tag(1)),
        start_ns: 10,
        end_ns: 20,
    };
    let fits = |ops: &[Op]| told(&[15], ops);
    let late = [failed, read(0, 30, 40), read(1, 50, 60)];
    assert!(fits(&late), "late");
    assert!(!told(&[25], &late), "no leg had left");
    let never = [
        read(0, 10 * SECOND, 11 * SECOND),
        read(1, 12 * SECOND, 13 * SECOND),
    ];
    assert!(!fits(&[failed, never[0], never[1]]), "later than that");
    let next = write(2, 50, 60);
    assert!(fits(&[failed, read(0, 30, 40), read(1, 41, 45), next]));
    assert!(!fits(&[failed, next, read(2, 61, 62), read(1, 70, 80)]));
}

#[test]
fn t46_where_several_write_at_a_time_nothing_comes_back_and_nothing_changes_by_itself() {
    let crowd = |ops: &[Op], crashes: &[u64]| super::crowd::check(ops, crashes).is_ok();
    let (one, two) = (write(1, 10, 50), write(2, 20, 40));
    // Both are under way: each may be seen, and again.
    let seen = [read(1, 12, 14), read(2, 22, 24), read(1, 42, 44)];
    assert!(crowd(&[&[one, two][..], &seen].concat(), &[]));
    assert!(
        wrong(&[&[one, two][..], &seen].concat()).is_some(),
        "no register does that"
    );
    // Then one of them is there, and stays.
    assert!(crowd(&[one, two, read(1, 60, 61), read(1, 70, 71)], &[]));
    assert!(!crowd(&[one, two, read(1, 60, 61), read(2, 70, 71)], &[]));
    assert!(crowd(&[one, two, read(1, 60, 61), read(2, 70, 71)], &[65]));
    // Overwritten values are gone.
    let over = write(3, 60, 70);
    assert!(!crowd(&[one, two, over, read(1, 80, 90)], &[]));
    assert!(crowd(&[one, two, over, read(1, 80, 90)], &[75]));
    assert!(
        crowd(&[one, two, over, read(1, 65, 90)], &[]),
        "not yet over"
    );
    assert!(
        crowd(&[write(1, 10, NEVER), over, read(1, 80, 90)], &[]),
        "it had no end"
    );
    assert!(!crowd(&[one, read(9, 60, 70)], &[]), "never written");
    assert!(!crowd(&[one, read(1, 3, 5)], &[]), "not written by then");
}

#[test]
fn t46_where_each_write_was_executed_once_overlapping_ones_have_one_order() {
    let seen = [read(1, 12, 14), read(2, 22, 24), read(1, 42, 44)];
    let ops = [&[write(1, 10, 50), write(2, 20, 40)][..], &seen].concat();
    let mut history = history(&ops);
    history.crowded(7);
    assert!(
        history.check().is_ok(),
        "the first may have been done again"
    );
    history.once.insert(7);
    assert!(matches!(history.check(), Err((7, Wrong::OutOfOrder(..)))));
}
