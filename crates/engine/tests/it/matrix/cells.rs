//! Cells of one request each, and of sizes.
use super::Front;
use super::hand::Wire;
use super::stage::{Failed, Op, Stage, at, blocks, pattern};
use crate::common::{BLOCK, SECOND};
use crate::mirror::rig::LEG_BYTES;
use crate::nvme_server::rig::Below;
use engine::DeviceOp;
use engine::Machine;
use engine::export::ExportControl;
use engine::mirror::{MIRRORS_FROM, MirrorOrder};
use engine::target::TargetControl;
use nbd::Errno;
use nbd::client::CommandError;
use nvme::wire::Status;
use nvme::wire::sqe::nvm;

/// Bytes of all requests together.
fn total(requests: &[engine::DeviceRequest]) -> u64 {
    requests.iter().map(|it| it.length).sum()
}

pub fn read(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let bytes = pattern(7, 3, 1);
    stage.store(at(7), &bytes);
    assert!(stage.read(blocks(7..10)) == bytes, "{front:?} {below:?}");
    let legs = 0..stage.disks().len();
    let requests: Vec<_> = legs.flat_map(|leg| stage.reached(leg)).collect();
    assert!(
        requests.iter().all(|it| it.op == DeviceOp::Read),
        "{requests:?}"
    );
    assert_eq!(total(&requests), at(3), "{front:?} {below:?}");
    stage.assert_at_rest();
}

pub fn write(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let before = pattern(6, 18, 1);
    stage.store(at(6), &before);
    let bytes = pattern(7, 16, 2);
    stage.write(at(7), &bytes);
    for leg in 0..stage.disks().len() {
        let changes = stage.changes(leg);
        let plain = DeviceOp::Write { fua: false };
        assert!(changes.iter().all(|it| it.op == plain), "{changes:?}");
        assert_eq!(total(&changes), at(16), "{front:?} {below:?}: {changes:?}");
    }
    for durable in stage.durable(blocks(7..23)) {
        assert!(
            durable == before[BLOCK as usize..][..bytes.len()],
            "{front:?} {below:?}"
        );
    }
    let mut after = before;
    after[BLOCK as usize..][..bytes.len()].copy_from_slice(&bytes);
    stage.assert_everywhere(at(6), &after);
    stage.assert_at_rest();
}

pub fn fua(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    stage.write(at(1), &pattern(1, 1, 1));
    stage.watch();
    let bytes = pattern(4, 2, 2);
    stage.done(Op::WriteFua, (at(4), 2 * BLOCK), &bytes);
    for (leg, durable) in stage.durable(blocks(4..6)).iter().enumerate() {
        assert!(
            *durable == bytes,
            "{front:?} {below:?}: leg {leg} is not durable"
        );
    }
    for leg in 0..stage.disks().len() {
        let requests = stage.reached(leg);
        let is_durable = |op| matches!(op, DeviceOp::Write { fua: true } | DeviceOp::Flush);
        assert!(requests.iter().any(|it| is_durable(it.op)), "{requests:?}");
        assert_eq!(total(&stage.changes(leg)), at(2), "{requests:?}");
    }
    stage.assert_everywhere(at(4), &bytes);
    stage.assert_at_rest();
}

pub fn flush(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let bytes = pattern(9, 4, 1);
    stage.write(at(9), &bytes);
    stage.watch();
    stage.done(Op::Flush, (0, 0), &[]);
    for leg in 0..stage.disks().len() {
        let requests = stage.reached(leg);
        let flushes = requests.iter().filter(|it| it.op == DeviceOp::Flush);
        assert_ne!(flushes.count(), 0, "{front:?} {below:?}: leg {leg}");
        assert!(stage.changes(leg).is_empty(), "{requests:?}");
    }
    for durable in stage.durable(blocks(9..13)) {
        assert!(durable == bytes, "{front:?} {below:?}");
    }
    stage.assert_at_rest();
}

pub fn zeroes(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let mut bytes = pattern(20, 8, 1);
    stage.store(at(20), &bytes);
    stage.done(Op::Zeroes, (at(22), 4 * BLOCK), &[]);
    for leg in 0..stage.disks().len() {
        let changes = stage.changes(leg);
        assert_eq!(total(&changes), at(4), "{front:?} {below:?}: {changes:?}");
    }
    bytes[2 * BLOCK as usize..][..4 * BLOCK as usize].fill(0);
    stage.assert_everywhere(at(20), &bytes);
    stage.assert_at_rest();
}

pub fn discard(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let before = pattern(8, 80, 1);
    stage.store(at(8), &before);
    stage.done(Op::Discard, (at(16), 64 * BLOCK), &[]);
    for leg in 0..stage.disks().len() {
        let changes = stage.changes(leg);
        let gives_up = |op| {
            let holes = DeviceOp::WriteZeroes { deallocate: true };
            op == DeviceOp::Deallocate || op == holes
        };
        assert!(changes.iter().any(|it| gives_up(it.op)), "{changes:?}");
        let inside =
            |it: &engine::DeviceRequest| it.offset >= at(16) && it.offset + it.length <= at(80);
        assert!(
            changes.iter().all(inside),
            "{front:?} {below:?}: {changes:?}"
        );
    }
    let stored = stage.stored(blocks(8..88));
    assert!(
        stored.iter().all(|it| *it == stored[0]),
        "{front:?} {below:?}"
    );
    for (block, bytes) in (8_u64..).zip(stored[0].chunks(BLOCK as usize)) {
        let old = &before[at(block - 8) as usize..][..BLOCK as usize];
        let is_given_up = (16..80).contains(&block) && bytes.iter().all(|byte| *byte == 0);
        assert!(
            bytes == old || is_given_up,
            "{front:?} {below:?}: block {block}"
        );
    }
    let stored = stored[0].clone();
    assert!(stage.read(blocks(8..88)) == stored, "{front:?} {below:?}");
    stage.assert_at_rest();
}

/// Over NVMe/TCP only.
pub fn compare(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let bytes = pattern(0, 1, 1);
    stage.store(0, &bytes);
    let rig = &mut stage.rig;
    let mut queue = Wire::queue(rig);
    let other = pattern(0, 1, 2);
    for (data, status) in [
        (&bytes, Status::SUCCESS),
        (&other, Status::COMPARE_FAILURE),
        (&bytes, Status::SUCCESS),
    ] {
        let cqe = queue.io(rig, nvm::COMPARE, (0, 1), data);
        assert!(cqe.status.is(status), "{below:?}: {}", cqe.status);
        let differs = status != Status::SUCCESS;
        assert_eq!(cqe.status.dnr(), differs, "a host must not repeat it");
    }
    let identify = queue.identify_controller(rig);
    let oncs = u16::from_le_bytes([identify[520], identify[521]]);
    assert_eq!(oncs & 1, 1, "Compare is announced");
    for leg in 0..stage.disks().len() {
        assert!(stage.changes(leg).is_empty(), "{below:?}");
    }
    stage.assert_everywhere(0, &bytes);
    stage.assert_at_rest();
}

/// Over NBD only.
pub fn partial_blocks(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let mut model = pattern(0, 5, 1);
    stage.store(0, &model);
    let ranges = [(1, 1), (4095, 2), (4000, 9000), (8191, 4097), (0, 20_480)];
    for (version, (offset, length)) in (2..).zip(ranges) {
        let mut data = vec![0; length];
        crate::common::fill(&mut data, offset, version);
        stage.write(offset, &data);
        model[offset as usize..][..length].copy_from_slice(&data);
        stage.assert_everywhere(0, &model);
    }
    for (op, offset, length) in [(Op::Zeroes, 5000, 100), (Op::Zeroes, 4090, 4110)] {
        stage.done(op, (offset, length), &[]);
        model[offset as usize..][..length as usize].fill(0);
        stage.assert_everywhere(0, &model);
    }
    let part = stage.read(4000..8200);
    assert!(part == model[4000..8200], "{below:?}");
    stage.done(Op::WriteFua, (77, 5), b"parts");
    model[77..82].copy_from_slice(b"parts");
    for durable in stage.durable(blocks(0..1)) {
        assert!(durable == model[..BLOCK as usize], "{below:?}");
    }
    stage.assert_everywhere(0, &model);
    stage.assert_at_rest();
}

/// Makes the device twice as large, or half where it is no mirror: disks stay as they are.
fn change_size(stage: &mut Stage, before: u64) -> u64 {
    let grow = |stage: &mut Stage, sizes| {
        let order = ExportControl::Mirror(MIRRORS_FROM, MirrorOrder::Grow(sizes));
        stage.rig.control(order);
    };
    let larger = 2 * LEG_BYTES;
    if stage.below.is_mirror() {
        for disk in stage.disks() {
            disk.bytes.borrow_mut().resize(larger as usize, 0);
            let durable = disk.durable.as_ref().unwrap();
            durable.borrow_mut().resize(larger as usize, 0);
        }
    }
    match stage.below {
        Below::Paths => {
            let half = before / 2 / u64::from(BLOCK);
            stage.rig.target_control(TargetControl::Resize(1, half));
            before / 2
        }
        Below::Mirror => {
            grow(stage, vec![(0, larger), (1, larger)]);
            before + LEG_BYTES
        }
        Below::MirrorOfPaths => {
            let resize = || TargetControl::Resize(1, larger / u64::from(BLOCK));
            stage.rig.target_control(resize());
            let second = stage.rig.second_target.clone().unwrap();
            let now_ns = stage.rig.world.now_ns;
            second.borrow_mut().handle_control(resize(), now_ns);
            stage.rig.pass(SECOND);
            grow(stage, Vec::new());
            before + LEG_BYTES
        }
        Below::Memory | Below::File | Below::Local => unreachable!("it keeps its size"),
    }
}

pub fn resize(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let before = stage.bytes();
    let bytes = change_size(&mut stage, before);
    stage
        .rig
        .until(10 * SECOND, |rig| rig.guest_bytes() == bytes);
    if front == Front::Nbd {
        // A client keeps its size until it connects again; the server goes by the new one.
        assert_eq!(stage.bytes(), before);
        if bytes < before {
            let past = stage.ask(Op::Write, (bytes, BLOCK), &pattern(0, 1, 1));
            let no_space = CommandError::Server(Errno::NoSpc);
            assert_eq!(past, Err(Failed::Nbd(no_space)), "{below:?}");
        }
        stage.reconnect();
    }
    assert_eq!(stage.bytes(), bytes, "{front:?} {below:?}");
    let last = bytes / u64::from(BLOCK) - 1;
    let data = pattern(last, 1, 3);
    stage.write(at(last), &data);
    stage.assert_everywhere(at(last), &data);
    stage.assert_at_rest();
}
