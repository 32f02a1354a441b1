//! Commands that the host engine has not: Compare and Get LBA Status.
use super::common::{host_config, volume};
use super::rig::local;
use crate::target_hand::*;
use engine::export::ExportConfig;
use engine::host::{Multipath, PathConfig};
use engine::limits::{COMPARE_BYTES, EXPORT_ARENA_MIN, EXPORTS_MAX, EXTENT_WAIT_NS};
use engine::machine::{DeviceError, DeviceExtent};
use engine::{Core, DeviceOp, Machine, NvmeConfig, NvmePlace};
use nvme::wire::lba_status::{ALLOCATED, List, Request};
use nvme::wire::sqe::{Sgl, admin, nvm};
use nvme::wire::{SqeBuilder, Status};

const ARENA: u64 = 16 << 20;
/// Blocks of the largest transfer.
const LARGEST: u32 = 1 << 8;

/// An engine whose volume is the hand's disk, as namespace 1.
pub fn hand() -> Hand<Core> {
    hand_over(vec![local(0, SHIFT)])
}

/// An engine with a volume of each path, the first of which is namespace 1.
pub fn hand_over(paths: Vec<PathConfig>) -> Hand<Core> {
    let mut host = host_config(0);
    host.volumes = paths.into_iter().map(|it| volume(vec![it])).collect();
    let volumes = host.volumes.len();
    let export = ExportConfig {
        clients_max: 1,
        requests_max: 4,
        arena_bytes: EXPORT_ARENA_MIN,
    };
    let mut core = Core::new(Multipath::new(host), volumes, export);
    let mut subsystem = config(&[shape::Config::default()]).subsystem;
    subsystem.entries_max = 64;
    let config = NvmeConfig {
        subsystem,
        volumes: vec![0],
    };
    let place = core.reserve_nvme_server(NvmePlace {
        connections: config.subsystem.connections_max,
        arena_at: EXPORT_ARENA_MIN,
        arena_bytes: ARENA,
    });
    core.serve_nvme(place, config, 0).unwrap();
    let mut hand = Hand::around(core, (EXPORT_ARENA_MIN + ARENA) as usize);
    hand.first_port = EXPORTS_MAX;
    hand.settle();
    hand.pass(SECOND);
    hand.requests.clear();
    hand
}

fn used(hand: &Hand<Core>) -> u64 {
    hand.target.buffers() - hand.target.buffers_free()
}

/// Sends a Compare from block 0 on, with its data.
fn compare(hand: &mut Hand<Core>, conn: u32, data: &[u8]) {
    let len = data.len() as u32;
    let sqe = io(nvm::COMPARE, 0, len >> SHIFT).sgl(Sgl::Transport { len });
    hand.send(conn, sqe, &[]);
    let [(_, Got::R2t(r2t))] = hand.take(conn)[..] else {
        panic!("no R2T")
    };
    hand.answer(conn, &r2t, data);
}

fn status(hand: &mut Hand<Core>, conn: u32) -> Status {
    let [(_, _, status)] = hand.done(conn)[..] else {
        panic!("not one completion")
    };
    status
}

#[test]
fn compare_tells_whether_the_device_has_these_bytes() {
    let mut hand = hand();
    let conn = hand.queue(0, 64);
    let data = pattern(3, (LARGEST << SHIFT) as usize);
    hand.disk[..data.len()].copy_from_slice(&data);
    compare(&mut hand, conn, &data);
    assert!(status(&mut hand, conn).is_success());
    let pieces = data.len() / COMPARE_BYTES as usize;
    let reads = hand.requests.iter().all(|it| it.op == DeviceOp::Read);
    assert!(reads && hand.requests.len() == pieces);
    for (at, read) in [(0, 1), (data.len() - 1, pieces)] {
        hand.requests.clear();
        hand.disk[at] ^= 1;
        compare(&mut hand, conn, &data);
        hand.disk[at] ^= 1;
        let status = status(&mut hand, conn);
        assert_eq!(status, Status::COMPARE_FAILURE.with_dnr());
        assert_eq!(hand.requests.len(), read, "the first difference ends it");
    }
    assert_eq!(used(&hand), 0);
}

#[test]
fn compare_of_bytes_that_cannot_be_read_says_so() {
    let mut hand = hand();
    let conn = hand.queue(0, 64);
    let data = vec![0; COMPARE_BYTES as usize + 4096];
    hand.hold_device = true;
    // Blocks that were read before differ as little as those that follow, which are not known.
    compare(&mut hand, conn, &data);
    hand.answer_device();
    hand.device_error = Some(DeviceError::Os(5));
    hand.answer_device();
    let status = status(&mut hand, conn);
    assert_eq!(status.code(), Status::UNRECOVERED_READ);
    assert_eq!(used(&hand), 0);
}

#[test]
fn compares_of_a_namespace_wait_for_each_other() {
    let mut hand = hand();
    let (first, second) = (hand.queue(0, 64), hand.queue(0, 64));
    hand.hold_device = true;
    let data = vec![0; 4096];
    for conn in [first, first, second] {
        compare(&mut hand, conn, &data);
    }
    assert_eq!(hand.at_device.len(), 1);
    // One that waits ends with its connection, at once.
    let before = used(&hand);
    hand.hang_up(second);
    assert_eq!(used(&hand), before - 4096);
    for _ in 0..2 {
        hand.answer_device();
        assert!(status(&mut hand, first).is_success());
    }
    // The device has that of a connection that is gone; the next one begins behind it.
    let third = hand.queue(0, 64);
    compare(&mut hand, first, &data);
    compare(&mut hand, third, &data);
    hand.hang_up(first);
    assert_eq!(hand.at_device.len(), 1);
    hand.answer_device();
    hand.answer_device();
    assert!(status(&mut hand, third).is_success());
    assert_eq!((used(&hand), hand.at_device.len()), (0, 0));
}

/// Asks which blocks of the namespace are allocated.
fn ask(hand: &mut Hand<Core>, conn: u32) {
    let request = Request {
        slba: 0,
        len: 4096,
        action: ALLOCATED,
        blocks: 0,
    };
    let sqe = SqeBuilder::new(admin::GET_LBA_STATUS).nsid(1);
    let sqe = (10..)
        .zip(request.emit())
        .fold(sqe, |sqe, (n, value)| sqe.cdw(n, value));
    hand.send(conn, sqe.sgl(Sgl::Transport { len: 4096 }), &[]);
}

fn listed(hand: &mut Hand<Core>, conn: u32) -> Vec<(u64, u32)> {
    let got = hand.take(conn);
    let Some((_, Got::Data { bytes, .. })) = got.first() else {
        panic!("{got:?}")
    };
    let list = List::parse(bytes).unwrap();
    list.entries().map(|it| (it.slba, it.blocks)).collect()
}

#[test]
fn allocated_blocks_are_those_that_the_device_calls_no_hole() {
    let mut hand = hand();
    let (conn, _) = hand.admin(0);
    ask(&mut hand, conn);
    let extents = [(8 << SHIFT, true), (4 << SHIFT, false), (u32::MAX, true)];
    for (length, is_zero) in extents {
        let request = hand.extents.pop().unwrap();
        assert!(hand.extents.is_empty());
        let extent = DeviceExtent { length, is_zero };
        hand.target.handle_extent(request.id, extent, hand.now);
        hand.settle();
    }
    assert_eq!(listed(&mut hand, conn), [(8, 4)]);
}

#[test]
fn blocks_of_which_a_device_says_nothing_are_allocated() {
    let mut hand = hand();
    let (conn, _) = hand.admin(0);
    ask(&mut hand, conn);
    let late = hand.extents.pop().unwrap();
    hand.pass(EXTENT_WAIT_NS - MS);
    assert_eq!(hand.take(conn), []);
    hand.pass(2 * MS);
    assert_eq!(listed(&mut hand, conn), [(0, BLOCKS as u32)]);
    let hole = DeviceExtent {
        length: 4096,
        is_zero: true,
    };
    hand.target.handle_extent(late.id, hole, hand.now);
    hand.settle();
    assert_eq!(hand.take(conn), []);
}
