//! Cells in which a path, a leg or the engine goes while requests are under way.
use super::Front;
use super::stage::{Failed, Op, Stage, at, blocks, pattern};
use crate::common::{BLOCK, HOST, MS, SECOND};
use crate::nvme_server::rig::{Below, Setup};
use engine::export::ExportControl;
use engine::machine::DeviceError;
use engine::mirror::{LegStatus, MIRRORS_FROM, MirrorState};
use engine::{LocalDevice, Machine};
use multipath::Outcome;
use nbd::Errno;
use nbd::client::CommandError;
use nvme::wire::Status;

/// Longest time until a leg that is lost is left out, and until it is in sync again.
const LEG: u64 = 600 * SECOND;
/// ENODEV: of a device that was unplugged.
const GONE: DeviceError = DeviceError::Os(19);

pub fn loss(front: Front, below: Below) {
    match below {
        Below::File => cut_file(front, below),
        Below::Paths => paths(front, below),
        Below::Mirror => leg_fails(front, below),
        Below::MirrorOfPaths => leg_loses_paths(front, below),
        Below::Memory | Below::Local => unreachable!("there is no such cell"),
    }
}

/// The file becomes shorter: what lay there is an error for good, the rest is served.
fn cut_file(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let kept = pattern(2, 2, 1);
    stage.write(at(2), &kept);
    stage.disk_mut(0).cut_at = Some(at(64));
    let now_ns = stage.rig.world.now_ns;
    let mut core = stage.rig.core.borrow_mut();
    core.handle_cut(LocalDevice(0), at(64), now_ns);
    drop(core);
    stage.watch();
    for op in [Op::Read, Op::Write] {
        let data = pattern(100, 1, 2);
        let data = if op == Op::Write { &data[..] } else { &[] };
        let failed = stage.ask(op, (at(100), BLOCK), data);
        let expected = match front {
            Front::Nbd => Failed::Nbd(CommandError::Server(Errno::Io)),
            Front::Nvme => Failed::Nvme(Outcome::MediaError),
            Front::Queue if op == Op::Read => Failed::Queue(Status::UNRECOVERED_READ),
            Front::Queue => Failed::Queue(Status::WRITE_FAULT),
            // ENODATA, EIO.
            Front::Ublk => Failed::Ublk(if op == Op::Read { -61 } else { -5 }),
        };
        assert_eq!(failed, Err(expected), "{op:?}");
    }
    assert!(stage.changes(0).is_empty());
    stage.assert_everywhere(at(2), &kept);
    stage.assert_at_rest();
}

/// Four writes under way, slowly.
fn begin(stage: &mut Stage, version: u64) {
    stage.rig.slow(50 * MS);
    for number in 0..4 {
        let bytes = pattern(number.into(), 1, version);
        stage.start(number, Op::Write, (at(number.into()), BLOCK), &bytes);
    }
    stage.rig.pass(10 * MS);
    assert!((0..4).all(|number| !stage.has_ended(number)));
    stage.rig.slow(0);
}

/// All four end well, and are what each leg has.
fn end(stage: &mut Stage, version: u64) {
    for number in 0..4 {
        assert_eq!(
            stage.end(number, 0, LEG),
            Ok(Vec::new()),
            "{:?}",
            stage.front
        );
    }
    let bytes = pattern(0, 4, version);
    assert!(stage.read(blocks(0..4)) == bytes, "{:?}", stage.below);
}

/// One path is lost, and the other does it; then that one, and requests wait for a path.
fn paths(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    begin(&mut stage, 1);
    stage.rig.lose(0..1);
    end(&mut stage, 1);
    begin(&mut stage, 2);
    stage.rig.lose(1..2);
    assert!((0..4).all(|number| !stage.ends(number, 2 * SECOND)));
    stage.rig.find(0..2);
    end(&mut stage, 2);
    stage.assert_everywhere(0, &pattern(0, 4, 2));
    stage.assert_at_rest();
}

fn leg_status(stage: &Stage) -> LegStatus {
    let core = stage.rig.core.borrow();
    core.mirror(MIRRORS_FROM).unwrap().legs[1].status
}

fn await_leg(stage: &mut Stage, is_in_sync: bool) {
    let core = stage.rig.core.clone();
    stage.rig.until(LEG, |_| {
        let status = core.borrow().mirror(MIRRORS_FROM).unwrap().legs[1].status;
        (status == LegStatus::InSync) == is_in_sync
    });
}

/// A leg's device goes, and the leg is left out; the other has everything. The leg is rebuilt when
/// the device is back.
fn leg_fails(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    assert_eq!(leg_status(&stage), LegStatus::InSync);
    begin(&mut stage, 1);
    stage.disk_mut(1).error = Some(GONE);
    end(&mut stage, 1);
    await_leg(&mut stage, false);
    assert!(stage.stored(blocks(0..4))[0] == pattern(0, 4, 1));
    stage.disk_mut(1).error = None;
    await_leg(&mut stage, true);
    stage.assert_everywhere(0, &pattern(0, 4, 1));
    stage.assert_at_rest();
}

/// A leg loses one path and stays in sync; then its last one, and is left out; it returns with its
/// paths. Targets have no volatile caches: a leg would be left out with the first path (T13).
fn leg_loses_paths(front: Front, below: Below) {
    let mut setup = Setup::over(below);
    setup.target.subsystem.volatile_write_cache = false;
    let mut stage = Stage::of(front, setup);
    begin(&mut stage, 1);
    stage.rig.lose(2..3);
    end(&mut stage, 1);
    assert_eq!(leg_status(&stage), LegStatus::InSync);
    stage.assert_everywhere(0, &pattern(0, 4, 1));
    begin(&mut stage, 2);
    stage.rig.lose(3..4);
    end(&mut stage, 2);
    await_leg(&mut stage, false);
    assert!(stage.stored(blocks(0..4))[0] == pattern(0, 4, 2));
    stage.rig.find(2..4);
    await_leg(&mut stage, true);
    stage.assert_everywhere(0, &pattern(0, 4, 2));
    stage.assert_at_rest();
}

pub fn stop(front: Front, below: Below) {
    let mut stage = Stage::new(front, below);
    let acknowledged = pattern(9, 2, 1);
    stage.write(at(9), &acknowledged);
    begin(&mut stage, 2);
    stage.rig.control(ExportControl::Stop(5 * SECOND));
    stage
        .rig
        .until(60 * SECOND, |rig| rig.world.nodes[HOST].stopped);
    stage.assert_refuses_clients();
    let ended = [0, 1, 2, 3].map(|number| stage.has_ended(number));
    assert_eq!(stage.rig.used(), 0, "{front:?} {below:?}");
    let is_durable = |stage: &Stage, block: u64, bytes: &[u8]| {
        let count = bytes.len() as u64 / u64::from(BLOCK);
        let range = blocks(block..block + count);
        let kept = match below {
            Below::Memory => stage.stored(range),
            _ => stage.durable(range),
        };
        kept.iter().all(|it| it == bytes)
    };
    assert!(is_durable(&stage, 9, &acknowledged), "{front:?} {below:?}");
    for (number, has_ended) in (0..).zip(ended) {
        // An NVMe/TCP host repeats what was not answered; other clients are always answered.
        assert!(has_ended || front == Front::Nvme, "{below:?}: {number}");
        if has_ended {
            assert_eq!(stage.end(number, 0, 0), Ok(Vec::new()));
            let block = number.into();
            assert!(
                is_durable(&stage, block, &pattern(block, 1, 2)),
                "{below:?}"
            );
        }
    }
    if below.is_mirror() {
        let core = stage.rig.core.borrow();
        assert_eq!(
            core.mirror(MIRRORS_FROM).unwrap().state,
            MirrorState::Stopped
        );
        let superblock = |disk| crate::mirror::rig::superblock(disk).superblock;
        let owners = stage.disks().iter().map(|disk| superblock(disk).owner);
        assert!(
            owners.flatten().next().is_none(),
            "a stop releases the legs"
        );
    }
}
