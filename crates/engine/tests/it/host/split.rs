//! I/Os larger than what one command may carry, in virtual time: every byte, one end, order kept.

use crate::common::*;
use block::IoLimits;
use engine::host::{Change, Hints, HostEvent, IoOp, PathKind, SubmitError};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl, TargetEngine};
use engine::{DeviceOp, LocalDevice};
use multipath::Outcome;
use nvme::wire::Status;
use std::cell::RefCell;
use std::rc::Rc;

const MIB: u32 = 1 << 20;

/// Paths whose commands carry 2^`shift` bytes.
fn rig(paths: u32, shift: u8) -> Rig {
    rig_of(paths, |_, target| carry(target, shift))
}

/// Requests that the target's disk executed since the last call.
fn executed(rig: &Rig) -> Vec<(DeviceOp, u64, u64)> {
    let log = rig.disk.log.replace(Some(Vec::new())).unwrap_or_default();
    let of = |it: &engine::DeviceRequest| (it.op, it.offset, it.length);
    log.iter().map(|(request, _)| of(request)).collect()
}

/// Puts version `version` of `offset` into the memory of an I/O.
fn put(rig: &mut Rig, it: &engine::host::Io, version: u64) {
    let memory = &mut rig.world.nodes[HOST].arena.0[it.span.at as usize..][..it.length as usize];
    fill(memory, it.offset, version);
}

/// Whether the disk holds `version` at `offset`.
fn holds(rig: &Rig, offset: u64, length: u32, version: u64) -> bool {
    let mut want = vec![0; length as usize];
    fill(&mut want, offset, version);
    rig.disk.bytes.borrow()[offset as usize..][..length as usize] == want
}

/// Limits of one command on every path.
fn limits(rig: &Rig) -> IoLimits {
    rig.host.borrow().volume(0).unwrap().limits().unwrap()
}

#[test]
fn t34_a_large_write_and_read_are_cut_at_mdts_and_end_once() {
    let mut rig = rig(2, 17);
    assert_eq!(limits(&rig).transfer_max, 128 << 10);
    executed(&rig);
    let it = io(IoOp::Write { fua: true }, 40960, MIB + 4096, 0);
    put(&mut rig, &it, 1);
    let done = rig.one(&it, SECOND);
    assert_eq!((done.outcome, done.cookie), (Outcome::Done, 0));
    let mut pieces = executed(&rig);
    pieces.sort_by_key(|piece| piece.1);
    let fua = DeviceOp::Write { fua: true };
    let mut want: Vec<_> = (0..8).map(|n| (fua, 40960 + (n << 17), 1 << 17)).collect();
    want.push((fua, 40960 + (8 << 17), 4096));
    assert_eq!(pieces, want, "FUA is on each");
    assert!(holds(&rig, 40960, MIB + 4096, 1));
    let back = io(IoOp::Read, 40960, MIB + 4096, 16);
    assert_eq!(rig.one(&back, SECOND).outcome, Outcome::Done);
    let arena = &rig.world.nodes[HOST].arena.0;
    let bytes = |it: &engine::host::Io| &arena[it.span.at as usize..][..it.length as usize];
    assert!(bytes(&back) == bytes(&it), "each piece in its place");
    assert!(
        rig.shares(2).iter().all(|&ios| ios == 9),
        "{:?}",
        rig.shares(2)
    );
    assert!(rig.done.is_empty());
    at_rest(&rig, 2);
}

/// A target that reports no limit at all (MDTS 0, and a WZSL of 2 GiB): NLB has 16 bits, so a Write
/// Zeroes command has 65,536 blocks at most, whatever is said.
#[test]
fn write_zeroes_is_cut_at_65536_blocks_whatever_is_reported() {
    const BLOCKS: u64 = 200_000;
    let mut config = target_config(1);
    (
        config.subsystem.namespaces[0].block_shift,
        config.subsystem.namespaces[0].blocks,
    ) = (9, BLOCKS);
    let mut rig = Rig::new(host_config(1), target_config(1));
    let mut target = Patched::new(TargetEngine::new(config).unwrap());
    target.page = Box::new(|page| {
        if page[768..].starts_with(b"nqn.") {
            page[77] = 0;
        } else if page.iter().all(|byte| *byte == 0) {
            page[1] = 19;
        }
    });
    let node = rig.world.add(Rc::new(RefCell::new(target)), 64 << 20);
    let disk = Disk::new((BLOCKS << 9) as usize);
    disk.bytes.borrow_mut().fill(7);
    rig.world.nodes[node].disks = vec![disk.clone()];
    rig.world.nodes[HOST].addresses[0] = Address::To {
        node,
        listener: 0,
        delay_ns: WIRE_NS,
    };
    rig.ready();
    let limits = limits(&rig);
    assert_eq!(limits.write_zeroes_max, 65_536 << 9);
    let mut it = io(
        IoOp::WriteZeroes { deallocate: false },
        512,
        190_000 << 9,
        0,
    );
    it.span = engine::Span::default();
    assert_eq!(rig.one(&it, SECOND).outcome, Outcome::Done);
    let bytes = disk.bytes.borrow();
    assert!(bytes[..512].iter().all(|byte| *byte == 7));
    assert!(bytes[512..190_001 << 9].iter().all(|byte| *byte == 0));
    assert!(bytes[190_001 << 9..].iter().all(|byte| *byte == 7));
}

#[test]
fn zeroing_and_deallocating_a_large_range_needs_no_memory() {
    let mut rig = rig(2, 17);
    rig.disk.bytes.borrow_mut().fill(7);
    for op in [IoOp::WriteZeroes { deallocate: false }, IoOp::Deallocate] {
        let mut it = io(op, 4096, 12 << 20, 0);
        it.span = engine::Span::default();
        executed(&rig);
        assert_eq!(rig.one(&it, SECOND).outcome, Outcome::Done);
        let pieces = executed(&rig);
        let bytes: u64 = pieces.iter().map(|piece| piece.2).sum();
        assert_eq!(bytes, 12 << 20);
        let want = if op == IoOp::Deallocate { 1 } else { 96 };
        assert_eq!(pieces.len(), want, "{op:?}");
    }
    let disk = rig.disk.bytes.borrow();
    assert!(disk[4096..][..12 << 20].iter().all(|&byte| byte == 0));
    assert!(disk[..4096].iter().all(|&byte| byte == 7));
}

#[test]
fn a_table_full_of_large_ios_goes_on() {
    for io_max in [1, 2, 3, 8] {
        let mut rig = rig_of(2, |host, target| {
            host.io_max = io_max;
            carry(target, 13);
        });
        for slot in 0..u64::from(io_max) {
            let it = io(IoOp::Write { fua: false }, slot << 17, 128 << 10, slot);
            put(&mut rig, &it, slot + 1);
            // Pieces of others may have taken the slots: that is no failure.
            while rig.submit(&it) == Err(SubmitError::Full) {
                let ended = rig.done.len();
                assert!(rig.run(SECOND, |_, done| done.len() > ended));
            }
        }
        assert!(rig.run(SECOND, |_, done| done.len() == io_max as usize));
        assert!((0..u64::from(io_max)).all(|n| holds(&rig, n << 17, 128 << 10, n + 1)));
        at_rest(&rig, 2);
    }
}

#[test]
fn the_failed_piece_of_the_lowest_offset_tells_and_nothing_is_cut_after_it() {
    let mut rig = rig(2, 13);
    let rule = |block, status| ErrorRule {
        status,
        ops: Ops::ALL,
        blocks: Some((block, block)),
        rate: Probability::ALWAYS,
    };
    for port in 0..2 {
        let errors = vec![
            rule(20, Status::CAPACITY_EXCEEDED.with_dnr()),
            rule(9, Status::UNRECOVERED_READ.with_dnr()),
            rule(25, Status::WRITE_PROTECTED.with_dnr()),
        ];
        let faults = Faults {
            errors,
            ..Faults::default()
        };
        rig.target_control(TargetControl::Faults(port, faults));
    }
    executed(&rig);
    let done = rig.one(&io(IoOp::Write { fua: false }, 0, MIB, 0), SECOND);
    assert_eq!(done.outcome, Outcome::MediaError, "block 9 of 256");
    let last = executed(&rig).iter().map(|it| it.1 >> 12).max().unwrap();
    assert!(last < 100, "up to block {last} of 256 was written");
    assert!(rig.done.is_empty());
    at_rest(&rig, 2);
    // The I/O of others goes on.
    assert!(rig.one(&read(0, 0), SECOND).outcome.is_done());
}

#[test]
fn t09_pieces_survive_paths_that_die_and_return() {
    for writes in [|_| true, |_| false, |n| n % 2 == 0] {
        let mut rig = rig_with_small_commands();
        let mut load = Load::new(600, 16, 128 << 10);
        load.writes = writes;
        for turn in 0..4 {
            assert!(rig.load_until(&mut load, 60 * SECOND, 100 * (turn + 1) + 1));
            rig.world.cut(HOST, (turn % 2) as u32);
        }
        rig.load(&mut load, 60 * SECOND);
        assert_eq!(load.errors(), 0);
        assert_ne!(rig.host.borrow().hold_stats(0).moved_total, 0);
        at_rest(&rig, 2);
    }
}

fn rig_with_small_commands() -> Rig {
    rig(2, 14)
}

#[test]
fn t09_a_newer_write_waits_for_all_of_an_older_one_that_is_cut_also_for_what_is_not_yet_cut() {
    let mut rig = rig(2, 13);
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    let old = io(IoOp::Write { fua: false }, 0, 256 << 12, 0);
    put(&mut rig, &old, 1);
    rig.submit(&old).unwrap();
    rig.world.pass(MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.world.cut(HOST, 0);
    rig.world.pass(MS);
    assert_ne!(rig.host.borrow().hold_stats(0).held, 0);
    // The last block of it: no piece holds that yet; and the first, which is held or under way.
    for (slot, block) in [(16, 255), (17, 0)] {
        let new = write(block, slot);
        put(&mut rig, &new, 2);
        rig.submit(&new).unwrap();
    }
    // One that is cut itself, and one beside it.
    let wide = io(IoOp::Write { fua: false }, 252 << 12, 16 << 12, 18);
    put(&mut rig, &wide, 3);
    rig.submit(&wide).unwrap();
    assert!(rig.one(&write(300, 20), 10 * MS).outcome.is_done());
    assert_eq!(rig.host.borrow().hold_stats(0).behind, 3);
    assert!(rig.run(20 * SECOND, |_, done| done.len() == 4));
    let order: Vec<_> = rig.done.iter().map(|done| done.cookie).collect();
    assert_eq!(order[0], 0, "{order:?}");
    let at = |cookie| order.iter().position(|it| *it == cookie);
    assert!(at(16) < at(18), "{order:?}");
    rig.world.pass(10 * SECOND);
    assert!(holds(&rig, 0, 4096, 2));
    assert!(holds(&rig, 4096, 251 << 12, 1));
    assert!(holds(&rig, 252 << 12, 16 << 12, 3));
    at_rest(&rig, 2);
}

#[test]
fn large_io_without_a_path_waits_or_fails_once() {
    let mut rig = rig_with(2, |it| it.fast_io_fail_ns = 3 * SECOND);
    for path in 0..2 {
        rig.world.nodes[HOST].addresses[path as usize] = Address::Refused;
        rig.world.cut(HOST, path);
    }
    rig.world.pass(MS);
    let done = rig.one(&io(IoOp::Read, 0, MIB, 0), 4 * SECOND);
    assert_eq!(done.outcome, Outcome::PathError);
    // From the loss on, which was just before.
    assert!((2990 * MS..=3 * SECOND).contains(&done.latency_ns));
    at_rest(&rig, 2);
}

/// A second target with the same namespace, whose commands carry less; at address 1.
fn narrow_target(rig: &mut Rig, shift: u8) {
    let mut config = target_config(1);
    carry(&mut config, shift);
    (config.subsystem.cntlid_min, config.subsystem.cntlid_max) = (1001, 1100);
    config.subsystem.connections_max = 64;
    let target = Rc::new(RefCell::new(TargetEngine::new(config).unwrap()));
    let node = rig.world.add(target, 16 << 20);
    rig.world.nodes[node].disks = vec![rig.disk.clone()];
    rig.world.nodes[HOST].addresses[1] = Address::To {
        node,
        listener: 0,
        delay_ns: WIRE_NS,
    };
}

#[test]
fn t34_a_narrower_path_that_comes_later_joins_and_gets_only_what_it_carries() {
    let mut rig = rig(2, 17);
    rig.world.nodes[HOST].addresses[1] = Address::Refused;
    rig.world.cut(HOST, 1);
    rig.world.pass(MS);
    // Under way with the old limits, and its path dies: all of it must go over the narrow one.
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    let ios: Vec<_> = (0..6_u64)
        .map(|n| {
            let op = match n % 3 {
                0 => IoOp::Read,
                1 => IoOp::Write { fua: false },
                _ => IoOp::WriteZeroes { deallocate: false },
            };
            io(
                op,
                n << 20,
                if n < 3 { 128 << 10 } else { 512 << 10 },
                8 * n,
            )
        })
        .collect();
    for it in &ios {
        put(&mut rig, it, 1);
        rig.submit(it).unwrap();
    }
    rig.world.pass(MS);
    narrow_target(&mut rig, 13);
    assert!(rig.run(SECOND - 200 * MS, |events, _| returned(events) == 1));
    assert_eq!(limits(&rig).transfer_max, 8192);
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    assert!(rig.run(60 * SECOND, |_, done| done.len() == ios.len()));
    assert!(
        rig.done.iter().all(|done| done.outcome.is_done()),
        "{:?}",
        rig.done
    );
    for it in ios.iter().filter(|it| matches!(it.op, IoOp::Write { .. })) {
        assert!(holds(&rig, it.offset, it.length, 1));
    }
    at_rest(&rig, 2);
}

#[test]
fn t34_io_to_local_devices_is_cut_alike() {
    let mut rig = {
        let mut host = host_config(2);
        for path in &mut host.volumes[0].paths {
            path.kind = PathKind::Device {
                device: LocalDevice(0),
                bytes: 16 << 20,
                block_shift: 9,
                identity: None,
                read_only: false,
                deallocate_zeroes: false,
                hole_bytes: 0,
            };
        }
        let mut rig = Rig::new(host, target_config(1));
        rig.world.nodes[HOST].disks = vec![rig.disk.clone()];
        rig.ready();
        rig
    };
    let it = io(IoOp::Write { fua: false }, 512, 4 * MIB, 0);
    put(&mut rig, &it, 5);
    executed(&rig);
    assert_eq!(rig.one(&it, SECOND).outcome, Outcome::Done);
    assert_eq!(executed(&rig).len(), 4);
    assert!(holds(&rig, 512, 4 * MIB, 5));
}

#[test]
fn t09_after_an_unclean_stop_a_large_change_waits_uncut_and_keeps_its_order() {
    let mut rig = rig_of(2, |host, target| {
        host.volumes[0].recovery.unclean_stop_ns = Some(3 * SECOND);
        carry(target, 13);
    });
    let old = io(IoOp::Write { fua: false }, 0, 64 << 10, 0);
    put(&mut rig, &old, 1);
    rig.submit(&old).unwrap();
    let new = write(15, 16);
    put(&mut rig, &new, 2);
    rig.submit(&new).unwrap();
    executed(&rig);
    let back = io(IoOp::Read, 0, 64 << 10, 32);
    assert!(
        rig.one(&back, 10 * MS).outcome.is_done(),
        "reads don't wait"
    );
    let stats = rig.host.borrow().hold_stats(0);
    assert_eq!((stats.held, stats.behind), (1, 1));
    let writes = |it: &(DeviceOp, u64, u64)| it.0 != DeviceOp::Read;
    assert_eq!(executed(&rig).iter().filter(|it| writes(it)).count(), 0);
    assert!(rig.run(4 * SECOND, |_, done| done.len() == 2));
    assert!(holds(&rig, 0, 60 << 10, 1) && holds(&rig, 60 << 10, 4096, 2));
    at_rest(&rig, 2);
}

#[test]
fn t09_a_large_change_that_is_safe_by_its_order_is_cut_before_the_gate_opens() {
    let mut rig = rig_of(2, |host, target| {
        host.volumes[0].recovery.unclean_stop_ns = Some(3 * SECOND);
        carry(target, 13);
    });
    let it = io(IoOp::Write { fua: false }, 0, 64 << 10, 0);
    put(&mut rig, &it, 1);
    let hints = Hints {
        past_gate: true,
        ..Hints::default()
    };
    let now_ns = rig.world.now_ns;
    rig.host
        .borrow_mut()
        .submit_with(&it, hints, now_ns)
        .unwrap();
    assert!(rig.run(100 * MS, |_, done| done.len() == 1));
    assert!(holds(&rig, 0, 64 << 10, 1));
    assert_eq!(rig.host.borrow().hold_stats(0).gated_total, 0);
    at_rest(&rig, 2);
}

#[test]
fn an_io_that_is_being_cut_ends_when_its_volume_is_removed() {
    for op in [IoOp::Read, IoOp::Write { fua: false }] {
        let mut fleet = Fleet::new(1, 2, target(2));
        fleet.world.nodes[TARGET].disks[0].delay_ns = 20 * MS;
        let now_ns = fleet.world.now_ns;
        let large = io(op, 0, 8 << 20, 0);
        fleet.hosts[0].borrow_mut().submit(&large, now_ns).unwrap();
        fleet.run(MS, |_| false);
        fleet.ask(Change::RemoveVolume(0), 5 * SECOND);
        let outcome = fleet.end(0, 20 * SECOND);
        assert_eq!(outcome, Some(Outcome::Stopped), "{op:?}");
        let freed = |it: &Fleet| {
            let mut events = it.events[0].iter();
            events.any(|event| matches!(event, HostEvent::Freed(0, None)))
        };
        assert!(fleet.run(20 * SECOND, freed), "{:?}", fleet.events[0]);
    }
}
