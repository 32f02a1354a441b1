//! Volumes whose numbers were a leg's.
use super::common::{Disk, SECOND};
use super::made::leg_id;
use super::rig::{LEG_BYTES, Rig, WITHOUT, configured, data, made};
use engine::LocalDevice;
use engine::host::{HostConfig, PathKind};
use engine::machine::DeviceError;
use engine::mirror::{LegOrder, LegStatus, MIRRORS_FROM, MirrorConfig, MirrorOrder, Pending};
use mirror::layout::COPIES_AT;
use multipath::Outcome;

#[test]
fn t33_a_volume_that_has_the_number_of_a_leg_says_nothing_of_the_leg_in_its_place() {
    let (all, host, mirror) = and_a_third();
    let mut rig = Rig::with(&all, host, mirror);
    rig.until(30 * SECOND, Rig::is_ready);
    rig.order_leg(1, LegOrder::Remove);
    rig.until(5 * SECOND, |rig| rig.statuses() == [LegStatus::InSync]);
    rig.order(super::rig::add(2));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    // The volume of the leg that was removed is still there, and becomes larger.
    let now_ns = rig.world.now_ns;
    let mut engine = rig.engine.borrow_mut();
    engine.host_mut().resize_device(1, 2 * LEG_BYTES, now_ns);
    engine.host_mut().resize_device(0, 2 * LEG_BYTES, now_ns);
    drop(engine);
    rig.run(SECOND, |_| false);
    rig.order(MirrorOrder::Grow(Vec::new()));
    rig.until(5 * SECOND, |rig| rig.report().grown.is_some());
    let why = rig.report().grown.unwrap().unwrap_err();
    assert!(why.contains("leg 1 is not larger"), "{why}");
    rig.stop();
}

/// An error of the medium.
const EIO: DeviceError = DeviceError::Os(5);

/// A leg has been removed, and another one has its slot: an order about the first is none about it.
#[test]
fn order_about_a_removed_leg_spares_its_successor() {
    let (disks, mut rig) = without_1();
    rig.order_leg(1, LegOrder::Remove);
    rig.until(5 * SECOND, |rig| rig.statuses() == [LegStatus::InSync]);
    // It replaces a leg that is none by then.
    let MirrorOrder::Add(mut new) = super::rig::add(2) else {
        unreachable!();
    };
    new.replaces = Some(leg_id(1));
    rig.order(MirrorOrder::Add(new));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(slots(&rig), [Some(0), Some(1)]);
    let fail = MirrorOrder::Leg(leg_id(1), LegOrder::Fail);
    rig.order(fail.clone());
    rig.run(SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
    let said = |line: &String| line.contains("removed or replaced meanwhile");
    assert!(rig.lines().iter().any(said), "{:?}", rig.lines());
    assert_eq!(rig.write(3, 7), Outcome::Done);
    assert_eq!(data(&disks[0]), data(&disks[2]));
    // The new leg has an identifier of its own; a mirror that has stopped has no leg.
    rig.order_leg(1, LegOrder::Fail);
    rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
    rig.stop();
    let before = rig.lines().len();
    rig.order(fail);
    assert_eq!(rig.lines().len(), before);
}

/// A new mirror of two disks, and a third one that may become a leg.
fn and_a_third() -> (Vec<Disk>, HostConfig, MirrorConfig) {
    let disks = made(2, true);
    let (mut host, mirror) = configured(&disks);
    let mut third = host.volumes[1].clone();
    (third.name, third.paths[0].uri) = ("m0/2".into(), "disk:2".into());
    if let PathKind::Device { device, .. } = &mut third.paths[0].kind {
        *device = LocalDevice(2);
    }
    host.volumes.push(third);
    let new = Disk::new(LEG_BYTES as usize).with_cache();
    let all = vec![disks[0].clone(), disks[1].clone(), new];
    (all, host, mirror)
}

/// The slots of all legs, by their places.
fn slots(rig: &Rig) -> Vec<Option<u8>> {
    rig.report().legs.iter().map(|leg| leg.slot).collect()
}

/// A mirror that runs without its leg 1, which was not there.
fn without_1() -> (Vec<Disk>, Rig) {
    let (mut all, host, mirror) = and_a_third();
    all[1].error = Some(DeviceError::Os(19));
    let mut rig = Rig::with(&all, host, mirror);
    rig.run(SECOND, |_| false);
    rig.order(WITHOUT);
    rig.until(30 * SECOND, Rig::is_ready);
    assert_eq!(rig.statuses(), [LegStatus::InSync, LegStatus::Missing]);
    (all, rig)
}

#[test]
fn a_leg_that_is_not_there_is_removed_with_its_place_and_another_one_has_its_number() {
    let (disks, mut rig) = without_1();
    rig.order_leg(1, LegOrder::Remove);
    rig.until(5 * SECOND, |rig| rig.statuses() == [LegStatus::InSync]);
    rig.order(super::rig::add(2));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    // A leg that was removed is there again, and says nothing for the one that has its number.
    rig.disk(1).error = None;
    rig.run(120 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
    assert_eq!(rig.write(3, 7), Outcome::Done);
    assert_eq!(data(&disks[0]), data(&disks[2]));
    assert_ne!(data(&disks[0]), data(&disks[1]));
}

#[test]
fn a_leg_that_is_replaced_while_it_is_not_there_leaves_no_place_behind() {
    let (disks, mut rig) = without_1();
    let MirrorOrder::Add(mut new) = super::rig::add(2) else {
        unreachable!();
    };
    new.replaces = Some(leg_id(1));
    rig.order(MirrorOrder::Add(new));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(slots(&rig), [Some(0), Some(2)]);
    assert_eq!(data(&disks[0]), data(&disks[2]));
}

/// A dead disk is removed to put another one in its place, and may hang with its last writes.
#[test]
fn a_leg_is_added_while_the_superblocks_of_a_removed_one_hang() {
    let (disks, host, mirror) = and_a_third();
    let mut rig = Rig::with(&disks, host, mirror);
    rig.until(30 * SECOND, Rig::is_ready);
    rig.disk(1).delay_ns = 3600 * SECOND;
    rig.order_leg(1, LegOrder::Remove);
    rig.run(10 * SECOND, |_| false);
    rig.order(super::rig::add(2));
    let in_sync = |rig: &Rig| {
        let legs = rig.report().legs;
        let legs = legs.iter().filter(|leg| leg.status == LegStatus::InSync);
        legs.map(|leg| leg.slot).collect::<Vec<_>>()
    };
    rig.until(60 * SECOND, |rig| in_sync(rig) == [Some(0), Some(2)]);
    assert_eq!(rig.write(3, 7), Outcome::Done);
    assert_eq!(data(&disks[0]), data(&disks[2]));
}

/// Whether both copies of its superblock were overwritten.
fn is_wiped(disk: &Disk) -> bool {
    let bytes = disk.bytes.borrow();
    let mut copies = COPIES_AT.iter().map(|at| &bytes[*at as usize..][..4096]);
    copies.all(|copy| copy.iter().all(|it| *it == 0))
}

/// It comes while its removal is being written to the other leg.
#[test]
fn leg_that_comes_before_its_removal_is_wiped() {
    let (disks, mut rig) = without_1();
    rig.disk(0).delay_ns = 20 * SECOND;
    rig.order_leg(1, LegOrder::Remove);
    rig.disk(1).error = None;
    rig.run(15 * SECOND, |_| false);
    assert_eq!(rig.report().legs[1].slot, Some(1), "{:?}", rig.report());
    assert!(rig.report().legs[1].reachable);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync]);
    rig.disk(0).delay_ns = 0;
    assert!(is_wiped(&disks[1]));
    // Its place is free.
    rig.order(super::rig::add(2));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(rig.report().legs.len(), 2);
}

/// The user takes the removal back: the leg that came meanwhile is rebuilt.
#[test]
fn leg_that_comes_while_its_removal_is_taken_back_returns() {
    let (disks, mut rig) = without_1();
    rig.disk(0).delay_ns = 5 * SECOND;
    assert_eq!(rig.write(3, 7), Outcome::Done);
    rig.order_leg(1, LegOrder::Remove);
    rig.order(MirrorOrder::TakeBack(Pending::Remove(1)));
    rig.disk(0).delay_ns = 0;
    rig.disk(1).error = None;
    rig.until(120 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
}

/// The reads of a leg that was removed end while those of another one are under way.
#[test]
fn place_of_a_leg_is_kept_until_its_reads_end() {
    let (disks, host, mirror) = and_a_third();
    let mut rig = Rig::with(&disks, host, mirror);
    rig.until(30 * SECOND, Rig::is_ready);
    rig.order_leg(1, LegOrder::Fail);
    rig.run(SECOND, |_| false);
    // It is read to return, which takes long; its superblocks are overwritten at once.
    rig.disk(1).delay_ns = 9 * SECOND;
    rig.order_leg(1, LegOrder::Return);
    rig.run(SECOND, |_| false);
    rig.disk(1).delay_ns = 0;
    rig.order_leg(1, LegOrder::Remove);
    rig.run(SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync]);
    rig.order(super::rig::add(2));
    rig.run(SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2]);
    // So do the new one's heartbeats.
    rig.disk(2).delay_ns = 4 * SECOND;
    rig.run(20 * SECOND, |_| false);
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2], "{:?}", rig.lines());
    // Nothing of the mirror's memory is lost.
    rig.disk(2).delay_ns = 0;
    rig.run(12 * SECOND, |_| false);
    let used = rig.engine.borrow().mirror_memory(MIRRORS_FROM).unwrap().0;
    assert_eq!(used, 2 << 20);
}

/// It comes back before its removal was said: it is none, and nobody waits for it.
#[test]
fn a_leg_that_was_removed_elsewhere_does_not_return() {
    let disks = made(2, true);
    let mut other = Rig::ready(&disks);
    let before = disks[1].bytes.borrow().clone();
    other.order_leg(1, LegOrder::Remove);
    other.until(5 * SECOND, |rig| rig.statuses() == [LegStatus::InSync]);
    other.stop();
    *disks[1].bytes.borrow_mut() = before;
    let mut all = disks.clone();
    all[1].error = Some(DeviceError::Os(19));
    let mut rig = Rig::new(&all);
    rig.until(60 * SECOND, Rig::is_ready);
    rig.disk(1).error = None;
    rig.run(60 * SECOND, |_| false);
    let legs = rig.report().legs;
    assert_eq!(legs[1].slot, None, "{:?}", legs[1]);
    assert_eq!(legs[1].status, LegStatus::Unusable);
    assert!(
        legs[1]
            .why
            .as_ref()
            .is_some_and(|it| it.contains("was removed"))
    );
}

/// Its superblocks are being read when its removal is committed: it is overwritten as the leg of
/// its slot, which no other one has until then.
#[test]
fn slot_of_a_leg_that_comes_as_it_is_removed_is_kept_until_it_is_wiped() {
    let (disks, mut rig) = without_1();
    (rig.disk(1).error, rig.disk(1).delay_ns) = (None, 9 * SECOND);
    rig.until(60 * SECOND, |rig| rig.report().legs[1].reachable);
    rig.run(2 * SECOND, |_| false);
    rig.order_leg(1, LegOrder::Remove);
    rig.run(SECOND, |_| false);
    assert_eq!(rig.report().legs[1].slot, Some(1), "{:?}", rig.report());
    rig.order(super::rig::add(2));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert_eq!(slots(&rig), [Some(0), Some(2)]);
    assert!(is_wiped(&disks[1]) && !is_wiped(&disks[2]));
}

/// An error of its medium: which leg it is may never be known.
#[test]
fn removed_leg_that_comes_unreadable_leaves_its_place() {
    let (_, mut rig) = without_1();
    rig.disk(0).delay_ns = 5 * SECOND;
    rig.order_leg(1, LegOrder::Remove);
    rig.disk(1).error = Some(EIO);
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync]);
    assert_eq!(rig.report().unwiped, 0b10);
    let lines = rig.lines();
    let is_said = |it: &String| it.contains("it is refused wherever it is given");
    assert!(lines.iter().any(is_said), "{lines:?}");
}

/// It is there, and was reported to the machine, when its removal is taken back.
#[test]
fn leg_that_was_to_return_as_it_was_removed_returns_when_that_is_taken_back() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    // While its leaving is being said on the other leg.
    rig.disk(0).delay_ns = 20 * SECOND;
    rig.order_leg(1, LegOrder::Fail);
    rig.run(SECOND, |_| false);
    rig.order_leg(1, LegOrder::Remove);
    rig.order_leg(1, LegOrder::Return);
    rig.run(3 * SECOND, |_| false);
    rig.order(MirrorOrder::TakeBack(Pending::Remove(1)));
    let taken = Some((Pending::Remove(1), true));
    assert_eq!(rig.report().taken_back, taken);
    rig.disk(0).delay_ns = 0;
    rig.until(120 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
}

/// Its superblocks are being read for its return.
#[test]
fn leg_that_is_inspected_as_it_is_removed_returns_when_that_is_taken_back() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    rig.order_leg(1, LegOrder::Fail);
    rig.run(SECOND, |_| false);
    rig.disk(1).delay_ns = 9 * SECOND;
    rig.order_leg(1, LegOrder::Return);
    rig.run(SECOND, |_| false);
    rig.disk(1).delay_ns = 0;
    rig.order_leg(1, LegOrder::Remove);
    rig.order(MirrorOrder::TakeBack(Pending::Remove(1)));
    let taken = Some((Pending::Remove(1), true));
    assert_eq!(rig.report().taken_back, taken);
    rig.until(120 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
}
