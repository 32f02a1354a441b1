//! Volumes whose numbers were a leg's.
use super::common::{Disk, SECOND};
use super::rig::{LEG_BYTES, Rig, configured, made};
use engine::DeviceId;
use engine::host::PathKind;
use engine::mirror::{LegStatus, MirrorOrder};

#[test]
fn t33_a_volume_that_has_the_number_of_a_leg_says_nothing_of_the_leg_in_its_place() {
    let disks = made(2, true);
    let (mut host, mirror) = configured(&disks);
    let mut third = host.volumes[1].clone();
    (third.name, third.paths[0].uri) = ("m0/2".into(), "disk:2".into());
    if let PathKind::Device { device, .. } = &mut third.paths[0].kind {
        *device = DeviceId(2);
    }
    host.volumes.push(third);
    let new = Disk::new(LEG_BYTES as usize).with_cache();
    let all = [disks[0].clone(), disks[1].clone(), new];
    let mut rig = Rig::with(&all, host, mirror);
    rig.until(30 * SECOND, Rig::is_ready);
    rig.order(MirrorOrder::Remove(1));
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
