//! Controllers that grant fewer I/O queues than there are cores.

use crate::common::*;
use engine::host::{HostEvent, Io, IoOp, PathState};
use engine::target::{
    ErrorRule, Faults, Ops, Probability, TargetConfig, TargetControl, TargetEngine,
};
use engine::{Machine, QueueMemory, Span, UblkOp, UblkRequest};
use multipath::Outcome;
use nvme::host::AnaState;
use nvme::wire::Status;

/// A target of this many ports that grants `granted` I/O queues, with a volatile cache.
fn granting(ports: u16, granted: u16) -> TargetConfig {
    let mut target = target(ports);
    target.subsystem.io_queues_max = granted;
    target.subsystem.volatile_write_cache = true;
    target
}

/// Three cores, of which `home` has the I/O.
fn fleet(ports: u16, granted: u16, home: u16) -> Fleet {
    Fleet::of(3, ports.into(), granting(ports, granted), |host| {
        host.volumes[0].recovery.home = Some(home);
    })
}

fn flush(slot: u64) -> Io {
    io(IoOp::Flush, 0, 0, slot)
}

fn warned(fleet: &Fleet, part: &str) -> usize {
    let lines = fleet.events.iter().flatten();
    lines
        .filter(|it| matches!(it, HostEvent::Warning(0, line) if line.contains(part)))
        .count()
}

#[test]
fn few_queues_serve_the_core_that_has_the_io() {
    for granted in 1..=3 {
        for home in 0..3 {
            let mut it = fleet(2, granted, home);
            let core = usize::from(home);
            for n in 0..8 {
                assert_eq!(it.one(core, &write(n, n), SECOND), Some(Outcome::Done));
            }
            assert_eq!(it.one(core, &read(0, 0), SECOND), Some(Outcome::Done));
            assert_eq!(it.one(core, &flush(9), SECOND), Some(Outcome::Done));
            for host in &it.hosts {
                let host = host.borrow();
                for path in [P0, P1] {
                    assert_eq!(host.path_state(0, path), PathState::Live);
                    assert_eq!(host.path_hindrance(0, path), None);
                }
            }
            let ios = |path| it.hosts[core].borrow().counters(0, path).ios[1];
            assert_eq!((ios(P0), ios(P1)), (4, 4), "both paths are used");
            let lines = usize::from(granted < 3) * 2;
            assert_eq!(warned(&it, "for 3 cores"), lines, "{:?}", it.events);
        }
    }
}

/// Each I/O on a core without a queue waits for 5 s, whatever waits before it.
#[test]
fn io_without_a_queue_ends_after_its_own_time() {
    let mut it = fleet(1, 1, 2);
    assert_eq!(it.one(1, &write(0, 0), 3 * SECOND), None);
    let first = it.one(1, &write(1, 1), 3 * SECOND);
    assert_eq!(first, Some(Outcome::PathError), "it waited for 5 s");
    assert_eq!(it.end(1, 2 * SECOND), None);
    assert_eq!(it.end(1, 2 * SECOND), Some(Outcome::PathError));
}

/// A core with a queue of a block device of the kernel.
fn with_node(it: &Fleet, core: usize) {
    let mut host = it.hosts[core].borrow_mut();
    host.0.reserve_ublk(QueueMemory {
        arena_at: 4 << 20,
        arena_bytes: 4 << 20,
    });
    host.0.open_ublk_queue(0, 0, "/dev/ublkb0");
}

/// A write of a block of zeroes, and a flush, of that device.
fn ask_node(it: &Fleet, core: usize) {
    let (mut host, now_ns) = (it.hosts[core].borrow_mut(), it.world.now_ns);
    for (tag, op, bytes) in [
        (0, UblkOp::Write { fua: false }, BLOCK.into()),
        (1, UblkOp::Flush, 0),
    ] {
        let request = UblkRequest {
            queue: 0,
            tag,
            op,
            offset: 0,
            bytes,
        };
        assert!(host.0.begin_ublk_request(request, now_ns));
    }
}

/// Results of its requests that end within so long, by tag.
fn ends_of_node(it: &mut Fleet, core: usize, limit_ns: u64) -> Vec<(u16, Option<i32>)> {
    let end_ns = it.world.now_ns + limit_ns;
    let mut ended = Vec::new();
    while it.world.now_ns < end_ns {
        let mut host = it.hosts[core].borrow_mut();
        while let Some(load) = host.0.ublk().next_load() {
            host.0.ublk_payload_loaded(load.id, it.world.now_ns);
        }
        while let Some(done) = host.0.ublk().next_done() {
            ended.push((done.tag, done.result));
            host.0.release_ublk_request(done.id, true);
        }
        drop(host);
        it.run(10 * MS, |_| false);
    }
    ended.sort();
    ended
}

/// The target starts anew, and grants so many queues then.
fn restart(it: &mut Fleet, granted: u16) {
    let live: Vec<_> = it
        .nodes
        .iter()
        .map(|&node| it.world.nodes[node].addresses.clone())
        .collect();
    for &node in &it.nodes.clone() {
        it.world.nodes[node].addresses.fill(Address::Refused);
        it.world.cut(node, 0);
    }
    it.run(100 * MS, |_| false);
    let target = TargetEngine::new(granting(1, granted)).unwrap();
    *it.target.borrow_mut() = target;
    for (&node, addresses) in it.nodes.iter().zip(live) {
        it.world.nodes[node].addresses = addresses;
    }
}

/// An error would reach its file system.
#[test]
fn io_of_a_node_waits_for_a_queue_of_its_core() {
    let mut it = fleet(1, 1, 2);
    with_node(&it, 1);
    assert_eq!(it.one(2, &write(3, 3), SECOND), Some(Outcome::Done));
    let losses = |it: &Fleet| it.hosts[1].borrow().volume(0).unwrap().flush_losses();
    let before = losses(&it);
    ask_node(&it, 1);
    assert_eq!(ends_of_node(&mut it, 1, 100 * SECOND), []);
    // That of a client which can go to another core ends; its flush reports no loss.
    for of in [write(1, 1), flush(8)] {
        assert_eq!(it.one(1, &of, 4 * SECOND), None, "{of:?}");
        assert_eq!(it.end(1, 2 * SECOND), Some(Outcome::PathError), "{of:?}");
    }
    restart(&mut it, 3);
    let ended = ends_of_node(&mut it, 1, 20 * SECOND);
    assert_eq!(
        ended,
        [(0, Some(BLOCK as i32)), (1, Some(0))],
        "{:?}",
        it.events
    );
    assert_eq!(losses(&it), before);
}

#[test]
fn io_of_a_node_without_a_queue_may_fail_fast() {
    let mut it = Fleet::of(3, 1, granting(1, 1), |host| {
        host.volumes[0].recovery.home = Some(2);
        host.volumes[0].recovery.fast_io_fail_ns = 30 * SECOND;
    });
    with_node(&it, 1);
    ask_node(&it, 1);
    assert_eq!(ends_of_node(&mut it, 1, 29 * SECOND), []);
    let ended = ends_of_node(&mut it, 1, 2 * SECOND);
    assert_eq!(ended, [(0, Some(-5)), (1, Some(-5))], "EIO");
}

/// A path is lost and comes back, with writes that no flush has covered.
#[test]
fn few_queues_survive_a_reconnect() {
    for home in [0, 2] {
        let mut it = fleet(2, 1, home);
        let core = usize::from(home);
        for n in 0..8 {
            assert_eq!(it.one(core, &write(n, n), SECOND), Some(Outcome::Done));
        }
        for &node in &it.nodes.clone() {
            it.world.cut(node, 0);
        }
        let live = |it: &Fleet| {
            let mut all = it.hosts.iter();
            all.all(|host| host.borrow().path_state(0, P0) == PathState::Live)
        };
        assert!(it.run(SECOND, |it| !live(it)));
        assert!(it.run(20 * SECOND, live), "{:?}", it.events);
        assert_eq!(it.one(core, &write(3, 3), SECOND), Some(Outcome::Done));
        assert_eq!(it.one(core, &flush(9), 5 * SECOND), Some(Outcome::Done));
        let no_path = |event: &&HostEvent| matches!(event, HostEvent::NoPath(_));
        let told = it.events.iter().flatten().filter(no_path).count();
        assert_eq!(told, 0, "{:?}", it.events);
    }
}

/// Core 0 flushes for a path that leaves; here it has no queue, and the writes are another core's.
#[test]
fn t13_path_without_a_queue_of_core_0_is_flushed_before_it_leaves() {
    let mut it = fleet(2, 1, 2);
    for n in 0..8 {
        assert_eq!(it.one(2, &write(n, n), SECOND), Some(Outcome::Done));
    }
    let answer = it.remove(P1, false);
    assert!(answer.is_ok(), "{answer:?}");
    let others = it.hosts[2].borrow().counters(0, P0).ios[2];
    assert_eq!(it.one(2, &write(3, 3), SECOND), Some(Outcome::Done));
    assert_eq!(it.one(2, &flush(9), SECOND), Some(Outcome::Done));
    assert_eq!(it.hosts[2].borrow().counters(0, P0).ios[2], others + 1);
    assert_eq!(warned(&it, "never flushed"), 0, "{:?}", it.events);
}

/// That flush fails, on whichever core: each core's next flush fails for it, once.
#[test]
fn t13_failed_flush_before_leaving_is_told_on_all_cores() {
    for granted in [1, 3] {
        let mut it = fleet(2, granted, 2);
        for n in 0..8 {
            assert_eq!(it.one(2, &write(n, n), SECOND), Some(Outcome::Done));
        }
        let errors = vec![ErrorRule {
            status: Status::WRITE_FAULT,
            ops: Ops::FLUSH,
            blocks: None,
            rate: Probability::ALWAYS,
        }];
        let faults = |it: &mut Fleet, errors| {
            let faults = Faults {
                errors,
                ..Faults::default()
            };
            let now_ns = it.world.now_ns;
            let control = TargetControl::Faults(1, faults);
            it.target.borrow_mut().handle_control(control, now_ns);
        };
        faults(&mut it, errors);
        let _ = it.remove(P1, false);
        faults(&mut it, Vec::new());
        it.run(SECOND, |_| false);
        let ends = [(); 2].map(|()| it.one(2, &flush(9), 8 * SECOND));
        let wanted = [Outcome::PathError, Outcome::Done].map(Some);
        assert_eq!(ends, wanted, "{granted}: {:?}", it.events[2]);
    }
}

/// A path that ANA closes serves no core, also where another core has its queue.
#[test]
fn volume_whose_paths_ana_closes_is_out_on_every_core() {
    let mut it = fleet(2, 1, 2);
    let tell = |it: &mut Fleet, state| {
        let now_ns = it.world.now_ns;
        for port in 0..2 {
            let control = TargetControl::Ana(port, state);
            it.target.borrow_mut().handle_control(control, now_ns);
        }
    };
    let told = |it: &Fleet, core: usize| {
        let events = it.events[core].iter();
        events
            .filter(|it| matches!(it, HostEvent::NoPath(_)))
            .count()
    };
    tell(&mut it, AnaState::Inaccessible);
    assert!(it.run(5 * SECOND, |it| (0..3).all(|core| told(it, core) == 1)));
    tell(&mut it, AnaState::Optimized);
    it.run(SECOND, |_| false);
    assert_eq!(it.one(2, &write(3, 3), SECOND), Some(Outcome::Done));
    assert!((0..3).all(|core| told(&it, core) == 1), "{:?}", it.events);
}

/// Core 0 passes on that another core has put a path on probation; the other says that it is well
/// again, in a line that is heard from any core.
#[test]
fn end_of_a_probation_is_said_where_core_0_has_no_queue() {
    let mut it = Fleet::of(3, 2, granting(2, 1), |host| {
        host.volumes[0].recovery.home = Some(2);
        host.scratch = Span {
            at: 7 << 20,
            len: 64 << 10,
        };
    });
    let fail = |it: &mut Fleet, rate| {
        let errors = vec![ErrorRule {
            status: Status::HOST_PATH,
            ops: Ops::ALL,
            blocks: None,
            rate,
        }];
        let faults = Faults {
            errors,
            ..Faults::default()
        };
        let now_ns = it.world.now_ns;
        let control = TargetControl::Faults(0, faults);
        it.target.borrow_mut().handle_control(control, now_ns);
    };
    fail(&mut it, Probability::ALWAYS);
    for n in 0..16 {
        assert_eq!(it.one(2, &read(n, n), SECOND), Some(Outcome::Done));
    }
    let state = |it: &Fleet| it.hosts[2].borrow().path_state(0, P0);
    assert_eq!(state(&it), PathState::Probation);
    fail(&mut it, Probability::new(0).unwrap());
    assert!(it.run(60 * SECOND, |it| state(it) == PathState::Live));
    let said = |core: usize, part: &str| {
        let is = |event: &&HostEvent| match event {
            HostEvent::Warning(0, line) => core == 0 && line.contains(part),
            HostEvent::Trouble(0, line) => line.contains(part),
            _ => false,
        };
        it.events[core].iter().filter(is).count()
    };
    assert_eq!((said(0, "on probation"), said(2, "in use again")), (1, 1));
}
