//! Changes after an unclean stop: gated until the engine before can have nothing under way.

use crate::common::*;
use crate::host::mark::{BOUND_NS, config};
use engine::host::{
    Change, Hints, HoldReason, HostConfig, HostEvent, Io, IoDone, PathConfig, PathKind, Recovery,
    WriteFailover,
};
use engine::{LocalDevice, Machine};
use multipath::Outcome;
use std::cell::RefCell;
use std::rc::Rc;

#[test]
fn t09_after_an_unclean_stop_changes_wait_in_order_and_reads_do_not() {
    let mut rig = Rig::new(
        config(|it| it.unclean_stop_ns = Some(3 * SECOND)),
        target_config(2),
    );
    let start_ns = rig.world.now_ns;
    rig.ready();
    for (slot, version) in [(0, 1), (1, 2)] {
        let at = slot as usize * (128 << 10);
        fill(&mut rig.world.nodes[HOST].arena.0[at..][..4096], 0, version);
        rig.submit(&write(0, slot)).unwrap();
    }
    rig.submit(&write(5, 2)).unwrap();
    assert_eq!(rig.one(&read(0, 3), 10 * MS).outcome, Outcome::Done);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.behind), (2, 1));
    let until_ns = start_ns + 3 * SECOND;
    assert_eq!(stats.reason, Some(HoldReason::UncleanStop(until_ns)));
    let gated = (stats.gated, stats.gated_since_ns, stats.gate_until_ns);
    assert_eq!(gated, (2, stats.held_since_ns, Some(until_ns)));
    assert!(rig.run(4 * SECOND, |_, done| done.len() == 3));
    assert!((until_ns..until_ns + 10 * MS).contains(&rig.world.now_ns));
    let mut want = vec![0; 4096];
    fill(&mut want, 0, 2);
    assert_eq!(rig.disk.bytes.borrow()[..4096], want[..]);
    assert_eq!(rig.one(&write(0, 1), 10 * MS).outcome, Outcome::Done);
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.gated, stats.gated_total), (0, 0, 2));
    assert_eq!((stats.gated_since_ns, stats.gate_until_ns), (None, None));
}

#[test]
fn t09_a_change_that_is_safe_by_its_order_does_not_wait_for_the_engine_before() {
    let mut rig = Rig::new(
        config(|it| it.unclean_stop_ns = Some(3 * SECOND)),
        target_config(2),
    );
    rig.ready();
    let hints = Hints {
        past_gate: true,
        ..Hints::default()
    };
    let submit = |rig: &mut Rig, it: &Io| {
        let now_ns = rig.world.now_ns;
        rig.host
            .borrow_mut()
            .submit_with(it, hints, now_ns)
            .unwrap();
    };
    submit(&mut rig, &write(0, 0));
    assert!(rig.run(10 * MS, |_, done| done.len() == 1));
    // Another one of the same bytes waits, and so do all behind that one.
    rig.submit(&write(5, 1)).unwrap();
    submit(&mut rig, &write(5, 2));
    assert!(!rig.run(SECOND, |_, done| done.len() > 1));
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!(
        (stats.gated, stats.behind, stats.past_gate_total),
        (1, 1, 1)
    );
    assert!(rig.run(3 * SECOND, |_, done| done.len() == 3));
}

/// Kills an engine whose write the disk executes 2 s later, starts another, which writes version 2;
/// what block 0 holds in the end.
fn killed(second: HostConfig) -> u64 {
    let mut rig = Rig::new(config(|_| ()), target_config(2));
    rig.ready();
    fill(&mut rig.world.nodes[HOST].arena.0[..4096], 0, 1);
    rig.world.nodes[TARGET].disks[0].delay_ns = 2 * SECOND;
    rig.submit(&write(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.nodes[HOST].stopped = true;
    rig.world.cut(HOST, 0);
    rig.world.cut(HOST, 1);
    let heir = Rc::new(RefCell::new(HostCore::new(second)));
    let node = rig.world.add(heir.clone(), 8 << 20);
    rig.world.nodes[node].addresses = rig.world.nodes[HOST].addresses.clone();
    fill(&mut rig.world.nodes[node].arena.0[..4096], 0, 2);
    let mut done: Option<IoDone> = None;
    let mut asked = false;
    rig.world.run(60 * SECOND, |world| {
        while let Some(event) = { heir.borrow_mut().poll_event() } {
            if let HostEvent::Done(end) = event {
                done = Some(end);
            }
        }
        if !asked {
            asked = heir.borrow_mut().submit(&write(0, 0), world.now_ns).is_ok();
        }
        false
    });
    assert_eq!(done.unwrap().outcome, Outcome::Done);
    let _ = heir.borrow_mut().poll_output();
    let mut want = vec![0; 4096];
    let version = (1..=2).find(|&version| {
        fill(&mut want, 0, version);
        rig.disk.bytes.borrow()[..4096] == want[..]
    });
    version.unwrap()
}

#[test]
fn t09_a_write_of_an_engine_that_was_killed_does_not_overwrite_its_successors() {
    let immediate = |it: &mut Recovery| {
        it.unclean_stop_ns = Some(BOUND_NS);
        it.write_failover = WriteFailover::Immediate;
    };
    for change in [|_: &mut Recovery| (), immediate] {
        assert_eq!(killed(config(change)), 1, "canary: the late write is real");
    }
    assert_eq!(killed(config(|it| it.unclean_stop_ns = Some(BOUND_NS))), 2);
}

#[test]
fn t09_a_volume_that_comes_later_waits_for_an_unclean_stop_of_its_own() {
    let mut fleet = Fleet::new(2, 1, target(1));
    for &node in &fleet.nodes {
        fleet.world.nodes[node].disks = vec![Disk::new(1 << 20)];
    }
    let mut more = volume(vec![PathConfig {
        uri: "mem:0".into(),
        kind: PathKind::Device {
            device: LocalDevice(0),
            bytes: 1 << 20,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        distance: 0,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    }]);
    more.name = "v1".into();
    more.recovery = Recovery {
        unclean_stop_ns: Some(3 * SECOND),
        ..Recovery::default()
    };
    fleet.change(Change::AddVolume(Box::new(more))).unwrap();
    let start_ns = fleet.world.now_ns;
    for core in 0..2 {
        let of = |mut io: Io| {
            io.volume = 1;
            io
        };
        let done = fleet.one(core, &of(read(0, 0)), 10 * MS);
        assert_eq!(done, Some(Outcome::Done));
        let done = fleet.one(core, &of(write(0, 0)), 10 * SECOND);
        assert_eq!(done, Some(Outcome::Done));
        let waited_ns = fleet.world.now_ns - start_ns;
        assert!(waited_ns > 2990 * MS, "core {core}: {waited_ns}");
    }
}
