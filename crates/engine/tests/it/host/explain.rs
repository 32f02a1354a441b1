//! Why an I/O went where it went: what is written down is what happened.

use crate::common::*;
use engine::host::{Io, IoDone, IoOp, Obstacle, PathState, Sample, Wait, Wanted};
use multipath::{AnaUse, Hindrance, Outcome};
use policy::{Ana, Basis, Policy, Why};
use std::collections::BTreeMap;

const ALL: Wanted = Wanted {
    count: 1000,
    reads: true,
    writes: true,
    length_min: 0,
};

fn ask(rig: &Rig, wanted: Wanted) {
    let now_ns = rig.world.now_ns;
    assert!(rig.host.borrow_mut().explain(0, wanted, now_ns));
}

fn told(rig: &Rig) -> Vec<Sample> {
    std::iter::from_fn(|| rig.host.borrow_mut().explained(0)).collect()
}

/// `total` I/Os, 16 at a time, with cookies of their own: all ends, and what was written down.
fn load(rig: &mut Rig, total: u64, op: fn(u64) -> Io) -> (BTreeMap<u64, IoDone>, Vec<Sample>) {
    let (mut next, mut samples, mut ended) = (0, Vec::new(), BTreeMap::new());
    while (ended.len() as u64) < total {
        while next < total && next - (ended.len() as u64) < 16 {
            let io = Io {
                cookie: next,
                ..op(next)
            };
            rig.submit(&io).unwrap();
            next += 1;
        }
        assert!(rig.run(SECOND, |_, done| !done.is_empty()));
        ended.extend(rig.done.drain(..).map(|done| (done.cookie, done)));
        samples.extend(told(rig));
    }
    (ended, samples)
}

fn mixed(n: u64) -> Io {
    let op = if n.is_multiple_of(3) { write } else { read };
    op(n % 1000, n % 60)
}

fn rig(policy: Policy) -> Rig {
    rig_of(2, |host, target| {
        host.volumes[0].policy = policy;
        for (shape, delay_ns) in target.shapes.iter_mut().zip([100_000, 700_000]) {
            shape.delay_ns = delay_ns;
        }
    })
}

/// The program's number of an I/O: the upper half of the engine's cookie says whose it is.
fn number_of(io: &Io) -> u64 {
    u64::from(io.cookie as u32)
}

#[test]
fn what_is_written_down_is_what_happened_under_every_policy() {
    for policy in Policy::EACH {
        let mut rig = rig(policy);
        load(&mut rig, 200, mixed);
        ask(&rig, ALL);
        let (ended, samples) = load(&mut rig, 12_000, mixed);
        assert!(samples.len() > 10, "{policy}: {}", samples.len());
        assert!(samples.len() < 400, "{policy}: {}", samples.len());
        for sample in &samples {
            let (choice, came) = (&sample.choice, sample.came.unwrap());
            let done = ended[&number_of(&sample.io)];
            assert_eq!(choice.policy, policy);
            assert_eq!(choice.chosen, Some(done.path), "{policy}");
            assert_eq!(
                (came.outcome, came.latency_ns),
                (Outcome::Done, done.latency_ns)
            );
            assert_eq!((sample.waited_ns, sample.hops, sample.retries), (0, 0, 0));
            assert_eq!(choice.looks().len(), 2);
            assert!(sample.obstacles[..2].iter().all(Option::is_none));
            let in_flight = choice.looks().iter().map(|look| look.in_flight);
            assert!(in_flight.sum::<u32>() < 16, "itself not counted");
        }
        // Not only the first of a turn, which finds nothing in flight.
        let busy = |it: &&Sample| it.choice.looks().iter().any(|look| look.in_flight > 3);
        assert!(samples.iter().filter(busy).count() > 3, "{policy}");
        assert_eq!(rig.host.borrow_mut().explain_no_more(0).count(), 0);
    }
}

#[test]
fn soonest_expects_what_comes_true() {
    let mut rig = rig(Policy::Soonest);
    load(&mut rig, 2000, mixed);
    ask(&rig, ALL);
    let (_, samples) = load(&mut rig, 4000, mixed);
    let near = |sample: &&Sample| {
        let (look, came) = (sample.choice.look().unwrap(), sample.came.unwrap());
        let expected_ns = look.expected_ns().unwrap();
        expected_ns.abs_diff(came.latency_ns) <= came.latency_ns / 4
    };
    let count = samples.iter().filter(near).count();
    assert!(
        count * 10 >= samples.len() * 9,
        "{count} of {}",
        samples.len()
    );
    for sample in samples {
        assert!(matches!(
            sample.choice.look().unwrap().basis,
            Basis::Forecast(_)
        ));
        assert!(matches!(
            sample.choice.why,
            Why::Least | Why::Fewest | Why::Explored
        ));
    }
}

#[test]
fn an_io_that_moves_is_written_down_again_with_what_stood_in_the_way() {
    let mut rig = rig(Policy::QueueDepth);
    ask(&rig, Wanted { count: 1, ..ALL });
    rig.world.pass(6 * MS); // the next one is taken, whichever it is
    rig.submit(&read(1, 1)).unwrap();
    rig.world.pass(MS / 100);
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    assert!(rig.run(SECOND, |_, done| done.len() == 1));
    let [first, second] = told(&rig)[..] else {
        panic!("{:?}", rig.done);
    };
    assert_eq!(first.choice.chosen, Some(P0));
    assert_eq!(first.choice.why, Why::Tie);
    assert_eq!(first.came.unwrap().outcome, Outcome::PathError);
    assert_eq!((second.choice.chosen, second.hops), (Some(P1), 1));
    assert_eq!(second.choice.why, Why::Only);
    assert_eq!(
        second.obstacles[0],
        Some(Obstacle::State(PathState::Reconnecting))
    );
    assert!(second.waited_ns > 0 && second.came.unwrap().outcome.is_done());
    // It was the only one that was asked for.
    rig.world.pass(10 * MS);
    rig.one(&read(2, 2), SECOND);
    assert!(told(&rig).is_empty());
}

#[test]
fn without_a_usable_path_that_is_said_and_then_what_served_it() {
    let mut rig = rig(Policy::Numa);
    let way = rig.world.nodes[HOST].addresses[1];
    for path in [P0, P1] {
        rig.world.nodes[HOST].addresses[usize::from(path.0)] = Address::Refused;
        rig.world.cut(HOST, path.0.into());
    }
    rig.world.pass(MS);
    ask(&rig, Wanted { count: 1, ..ALL });
    rig.world.pass(6 * MS);
    rig.submit(&read(1, 1)).unwrap();
    let [waits] = told(&rig)[..] else {
        panic!("not one");
    };
    assert_eq!(
        (waits.choice.chosen, waits.choice.why),
        (None, Why::NoneUsable)
    );
    assert_eq!((waits.came, waits.wait), (None, Some(Wait::Path(u64::MAX))));
    let lost = Some(Obstacle::State(PathState::Reconnecting));
    assert_eq!(waits.obstacles[..2], [lost, lost]);
    // A path comes back.
    rig.world.nodes[HOST].addresses[1] = way;
    assert!(rig.run(60 * SECOND, |_, done| done.len() == 1));
    let [served] = told(&rig)[..] else {
        panic!("not one");
    };
    assert_eq!((served.choice.chosen, served.hops), (Some(P1), 0));
    assert_eq!(served.first_ns, waits.at_ns, "the same I/O");
    assert!(served.came.unwrap().outcome.is_done() && served.waited_ns > 0);
}

#[test]
fn t09_what_waits_for_the_fence_says_so_before_it_is_served() {
    let mut rig = rig(Policy::Numa);
    rig.world.nodes[TARGET].disks[0].delay_ns = 30 * SECOND;
    ask(&rig, ALL);
    rig.world.pass(6 * MS);
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.cut(HOST, 0);
    // One now and then is written down.
    rig.world.pass(20 * MS);
    rig.submit(&write(0, 1)).unwrap();
    let said = |samples: Vec<Sample>| -> Vec<_> {
        let those = samples.into_iter();
        those
            .map(|it| (number_of(&it.io), it.wait, it.came.is_some()))
            .collect()
    };
    let held = Some(Wait::Held(u64::MAX));
    let want = [
        (0, None, true),
        (0, held, false),
        (1, Some(Wait::Behind), false),
    ];
    assert_eq!(said(told(&rig)), want);
    assert!(rig.run(10 * SECOND, |_, done| done.len() == 2));
    assert_eq!(said(told(&rig)), [(0, None, true), (1, None, true)]);
}

#[test]
fn only_what_is_wanted_is_written_down_and_what_has_not_ended_is_handed_out_at_the_end() {
    let mut rig = rig(Policy::RoundRobin { bytes: 0 });
    ask(
        &rig,
        Wanted {
            reads: false,
            length_min: 8192,
            ..ALL
        },
    );
    rig.world.pass(6 * MS);
    rig.one(&read(0, 0), SECOND);
    rig.one(&write(0, 0), SECOND);
    let large = io(IoOp::Write { fua: false }, 0, 8192, 0);
    rig.submit(&large).unwrap();
    assert!(told(&rig).is_empty(), "it has not ended");
    let rest: Vec<Sample> = rig.host.borrow_mut().explain_no_more(0).collect();
    assert_eq!(rest.len(), 1);
    assert_eq!((rest[0].io.length, rest[0].came), (8192, None));
    assert!(rig.run(SECOND, |_, done| !done.is_empty()));
    assert!(told(&rig).is_empty(), "nobody asks any more");
    assert!(!rig.host.borrow_mut().explain(7, ALL, 0), "no such volume");
}

#[test]
fn pieces_and_paths_that_stand_by_are_said_to_be() {
    let mut rig = rig_of(2, |host, target| {
        host.volumes[0].policy = Policy::QueueDepth;
        host.volumes[0].recovery.ana = Some(AnaUse::Strict);
        target.subsystem.ports[1].ana = nvme::host::AnaState::NonOptimized;
        carry(target, 13);
    });
    ask(&rig, ALL);
    rig.world.pass(6 * MS);
    rig.one(&io(IoOp::Read, 0, 64 << 10, 0), SECOND);
    let samples = told(&rig);
    assert_eq!(samples.len(), 1, "one in a while");
    let [first] = samples[..] else { panic!() };
    assert!(first.piece && first.io.length == 8192);
    assert_eq!(first.obstacles[1], Some(Obstacle::StandsBy));
    assert_eq!(
        (first.choice.chosen, first.choice.why),
        (Some(P0), Why::Only)
    );
    assert!(
        !Obstacle::Hindered(Hindrance::Ana(Ana::Change))
            .in_words()
            .is_empty()
    );
}
