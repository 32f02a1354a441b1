//! Reads, writes and durability of a host over each kind of device.
use super::common::{BLOCK, BLOCKS, HOST, MS, SECOND, io, tcp_path, volume};
use super::rig::{Below, GUEST, Rig, Setup, add_namespace, local};
use crate::mirror::rig::LEG_BYTES;
use engine::Machine;
use engine::export::{ExportControl, ExportEvent};
use engine::host::{Change, HostControl, HostEvent, Io, IoOp, PathKind};
use engine::limits::EXPORTS_MAX;
use engine::target::TargetControl;
use multipath::Outcome;
use nbd::{Kind, Request};

const WRITE: IoOp = IoOp::Write { fua: false };
const FUA: IoOp = IoOp::Write { fua: true };
const ZEROES: IoOp = IoOp::WriteZeroes { deallocate: false };
const ALL: [Below; 3] = [Below::Paths, Below::Local, Below::Mirror];

fn blocks(op: IoOp, block: u64, count: u32, slot: u64) -> Io {
    let mut it = io(op, block * u64::from(BLOCK), count * BLOCK, slot);
    if !matches!(op, IoOp::Read | IoOp::Write { .. }) {
        it.span.len = 0;
    }
    it
}

fn flush() -> Io {
    let mut it = io(IoOp::Flush, 0, 0, 40);
    it.span.len = 0;
    it
}

/// First byte of a block on a leg, or on the disk.
pub fn at(rig: &Rig, below: Below, block: u64) -> usize {
    let start = if below.is_mirror() {
        let superblock = crate::mirror::rig::superblock(&rig.disks[0]).superblock;
        superblock.place.data_offset
    } else {
        0
    };
    (start + block * u64::from(BLOCK)) as usize
}

/// Content of a block after a loss of power, on each disk.
pub fn durable(rig: &Rig, below: Below, block: u64) -> Vec<u8> {
    let count = if below == Below::Mirror { 2 } else { 1 };
    let disks = rig.disks[..count].iter();
    let byte = |disk: &super::common::Disk| {
        let durable = disk.durable.as_ref().unwrap().borrow();
        durable[at(rig, below, block)]
    };
    disks.map(byte).collect()
}

#[test]
fn data_is_that_of_the_device_below() {
    for below in ALL {
        let mut rig = Rig::ready(Setup::over(below));
        let info = rig.info().unwrap();
        let bytes = match below {
            Below::Mirror => LEG_BYTES - at(&rig, below, 0) as u64,
            _ => BLOCKS * u64::from(BLOCK),
        };
        assert_eq!((info.bytes, info.block_shift), (bytes, 12), "{below:?}");
        let it = blocks(WRITE, 7, 16, 0);
        assert_eq!(rig.one(&it, 0x5a), Outcome::Done, "{below:?}");
        let first = at(&rig, below, 7);
        for disk in &rig.disks[..if below == Below::Mirror { 2 } else { 1 }] {
            let disk = disk.bytes.borrow();
            assert!(
                disk[first..][..16 * BLOCK as usize]
                    .iter()
                    .all(|it| *it == 0x5a)
            );
        }
        let it = blocks(IoOp::Read, 7, 16, 1);
        assert_eq!(rig.one(&it, 0), Outcome::Done);
        assert_eq!(rig.byte(&it), 0x5a, "{below:?}");
        for op in [ZEROES, IoOp::Deallocate] {
            assert_eq!(rig.one(&blocks(WRITE, 7, 16, 0), 0x77), Outcome::Done);
            assert_eq!(
                rig.one(&blocks(op, 7, 16, 2), 0),
                Outcome::Done,
                "{op:?} {below:?}"
            );
            assert_eq!(rig.one(&it, 1), Outcome::Done);
            if op == ZEROES {
                assert_eq!(rig.byte(&it), 0, "{below:?}");
            }
        }
        assert_eq!(rig.used(), 0);
    }
}

#[test]
fn t13_flush_and_fua_make_durable_what_either_front_end_wrote() {
    for below in ALL {
        let mut rig = Rig::ready(Setup::over(below));
        let client = rig.connect();
        let size = (u64::from(BLOCK), BLOCK);
        assert_eq!(rig.one(&blocks(FUA, 0, 1, 0), 1), Outcome::Done);
        assert!(
            durable(&rig, below, 0).iter().all(|it| *it == 1),
            "{below:?}"
        );
        let ended = rig.nbd(client, Kind::Write, size, &[2; BLOCK as usize]);
        assert_eq!(ended.result, Ok(()));
        assert!(
            durable(&rig, below, 1).iter().all(|it| *it == 0),
            "{below:?}"
        );
        assert_eq!(rig.one(&flush(), 0), Outcome::Done);
        assert!(
            durable(&rig, below, 1).iter().all(|it| *it == 2),
            "{below:?}"
        );
        assert_eq!(rig.one(&blocks(WRITE, 1, 1, 0), 3), Outcome::Done);
        assert_eq!(rig.nbd(client, Kind::Flush, (0, 0), &[]).result, Ok(()));
        assert!(
            durable(&rig, below, 1).iter().all(|it| *it == 3),
            "{below:?}"
        );
        let ended = rig.nbd(client, Kind::Read, size, &[]);
        assert_eq!(ended.data, [3; BLOCK as usize], "{below:?}");
    }
}

#[test]
fn more_commands_than_the_device_has_slots_wait_for_one() {
    let mut setup = Setup::over(Below::Paths);
    setup.core.io_max = 2;
    let mut rig = Rig::ready(setup);
    let client = rig.connect();
    rig.slow(10 * MS);
    for slot in 0..20 {
        rig.submit(&blocks(WRITE, slot, 1, slot), slot as u8 + 1);
    }
    let ended = rig.nbd(client, Kind::Write, (64 << 12, BLOCK), &[9; BLOCK as usize]);
    assert_eq!(ended.result, Ok(()));
    for slot in 0..20 {
        assert_eq!(rig.end(slot, SECOND), Outcome::Done);
    }
    for slot in 0..20 {
        let it = blocks(IoOp::Read, slot, 1, slot);
        assert_eq!(rig.one(&it, 0), Outcome::Done);
        assert_eq!(rig.byte(&it), slot as u8 + 1);
    }
}

/// Each slot that becomes free has NBD requests that wait for it.
#[test]
fn busy_nbd_client_leaves_slots_to_hosts() {
    let mut setup = Setup::over(Below::Local);
    setup.core.io_max = 2;
    let mut rig = Rig::ready(setup);
    let client = rig.connect();
    rig.slow(MS);
    let ask = |rig: &mut Rig, token: u32| {
        let request = Request::new(token, Kind::Read, u64::from(token) << 12, BLOCK);
        rig.ask(client, request, &[]);
    };
    (0..8).for_each(|token| ask(&mut rig, token));
    for round in 0..100 {
        if round == 10 {
            rig.submit(&blocks(WRITE, 100, 1, 0), 1);
        }
        rig.pass(MS);
        let ended = rig.clients.borrow_mut().all[client].ended.split_off(0);
        ended.iter().for_each(|it| ask(&mut rig, it.token));
    }
    assert!(rig.has_ended(0));
}

#[test]
fn t33_another_size_of_the_device_reaches_its_hosts() {
    let mut rig = Rig::ready(Setup::over(Below::Paths));
    rig.target_control(TargetControl::Resize(1, BLOCKS / 2));
    let half = BLOCKS / 2 * u64::from(BLOCK);
    rig.until(SECOND, |rig| {
        let mut sizes = rig.guest_events.iter().filter_map(|event| match event {
            HostEvent::Resized(0, info) => Some(info.bytes),
            _ => None,
        });
        sizes.any(|bytes| bytes == half)
    });
    let it = blocks(IoOp::Read, BLOCKS / 2 - 1, 1, 0);
    assert_eq!(rig.one(&it, 0), Outcome::Done);
}

#[test]
fn namespaces_of_one_subsystem_are_their_devices() {
    let mut setup = Setup::over(Below::Local);
    let mut second = setup.core.volumes[0].clone();
    second.paths = vec![local(1, 9)];
    setup.core.volumes.push(second);
    add_namespace(&mut setup.server, 7, 1);
    setup.guest.volumes.push(volume(vec![tcp_path(1)]));
    for (at, nsid) in [(0, 1), (1, 7)] {
        if let PathKind::NvmeTcp { nsid: of, .. } = &mut setup.guest.volumes[at].paths[0].kind {
            *of = Some(nsid);
        }
    }
    let mut rig = Rig::ready(setup);
    rig.until(SECOND, |rig| {
        super::common::ready_of(&rig.guest_events, 1).is_some()
    });
    let info = super::common::ready_of(&rig.guest_events, 1).unwrap();
    assert_eq!(info.block_shift, 9);
    for (volume, byte) in [(0, 3), (1, 4)] {
        let it = Io {
            volume,
            ..blocks(WRITE, 5, 1, 0)
        };
        assert_eq!(rig.one(&it, byte), Outcome::Done);
    }
    for (disk, byte) in rig.disks.iter().zip([3, 4]) {
        assert_eq!(disk.bytes.borrow()[5 * BLOCK as usize], byte);
    }
}

/// A device that is late keeps nobody from the others.
#[test]
fn namespace_appears_when_its_device_is_ready() {
    let mut setup = Setup::over(Below::Paths);
    let mut local_one = setup.core.volumes[0].clone();
    local_one.paths = vec![local(0, 12)];
    setup.core.volumes.push(local_one);
    add_namespace(&mut setup.server, 2, 1);
    if let PathKind::NvmeTcp { nsid, .. } = &mut setup.guest.volumes[0].paths[0].kind {
        *nsid = Some(2);
    }
    setup.guest.volumes.push(volume(vec![tcp_path(1)]));
    setup.guest.volumes[1].recovery = setup.guest.volumes[0].recovery;
    if let PathKind::NvmeTcp { nsid, .. } = &mut setup.guest.volumes[1].paths[0].kind {
        *nsid = Some(1);
    }
    let mut rig = Rig::new(setup);
    rig.world.nodes[HOST].disks = vec![rig.disks[1].clone()];
    rig.lose_paths();
    rig.until(20 * SECOND, |rig| rig.info().is_some());
    assert_eq!(rig.one(&blocks(WRITE, 0, 1, 0), 5), Outcome::Done);
    let other = |rig: &Rig| super::common::ready_of(&rig.guest_events, 1).is_some();
    assert!(!rig.run(5 * SECOND, other));
    rig.find_paths();
    rig.until(120 * SECOND, other);
}

#[test]
fn device_with_other_blocks_is_no_namespace_and_says_why() {
    let mut setup = Setup::over(Below::Local);
    setup.core.volumes[0].paths = vec![local(0, 13)];
    let mut rig = Rig::new(setup);
    rig.pass(SECOND);
    let unfit = rig.events.iter().find_map(|event| match event {
        ExportEvent::Unfit { volume, nsid, why } => Some((*volume, *nsid, why.field)),
        _ => None,
    });
    assert_eq!(unfit, Some((0, 1, "block_shift")));
    assert!(rig.info().is_none());
}

#[test]
fn removed_device_is_no_namespace_any_more() {
    let mut setup = Setup::over(Below::Paths);
    let mut second = setup.core.volumes[0].clone();
    second.name = "v1".into();
    second.paths = vec![local(0, 12)];
    setup.core.volumes.push(second);
    add_namespace(&mut setup.server, 2, 1);
    setup.guest.volumes[0].recovery.fast_io_fail_ns = MS;
    if let PathKind::NvmeTcp { nsid, .. } = &mut setup.guest.volumes[0].paths[0].kind {
        *nsid = Some(1);
    }
    let mut rig = Rig::new(setup);
    rig.world.nodes[HOST].disks = vec![rig.disks[1].clone()];
    rig.until(20 * SECOND, |rig| rig.info().is_some());
    assert_eq!(rig.one(&blocks(WRITE, 0, 1, 0), 5), Outcome::Done);
    let change = Change::RemoveVolume(0);
    rig.control(ExportControl::Host(HostControl::Change {
        ticket: 1,
        change,
        wait_ns: SECOND,
    }));
    rig.until(10 * SECOND, |rig| {
        let gone = |event: &ExportEvent| matches!(event, ExportEvent::Host(HostEvent::Removed(0)));
        rig.events.iter().any(gone)
    });
    let now_ns = rig.world.now_ns;
    if rig
        .guest
        .borrow_mut()
        .submit(&blocks(WRITE, 0, 1, 0), now_ns)
        .is_ok()
    {
        assert_ne!(rig.end(0, 60 * SECOND), Outcome::Done);
    }
    rig.pass(SECOND);
    assert_eq!(rig.used(), 0);
}

#[test]
fn stop_ends_hosts_first_and_then_the_devices() {
    for below in ALL {
        let mut rig = Rig::ready(Setup::over(below));
        assert_eq!(rig.one(&blocks(WRITE, 0, 1, 0), 5), Outcome::Done);
        assert!(rig.world.connections(GUEST) > 0);
        rig.control(ExportControl::Stop(5 * SECOND));
        rig.until(20 * SECOND, |rig| rig.world.nodes[HOST].stopped);
        assert_eq!(rig.used(), 0);
        let now_ns = rig.world.now_ns;
        let refused = rig.core.borrow_mut().handle_accepted(EXPORTS_MAX, now_ns);
        assert!(refused.is_none());
        assert!(
            durable(&rig, below, 0).iter().all(|it| *it == 5),
            "{below:?}"
        );
    }
}
