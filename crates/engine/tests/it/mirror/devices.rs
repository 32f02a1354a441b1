//! Mirrors and their legs as devices of one layer.
use super::made;
use super::rig::{Rig, configured, made as disks};
use engine::host::{IoOp, Multipath, SubmitError};
use engine::mirror::{Devices, MIRRORS_FROM};

/// A mirror over these devices.
fn over(legs: &[u16]) -> Devices {
    let (host, mut mirror) = configured(&disks(2, true));
    mirror.legs = legs.iter().map(|&leg| made::leg(leg)).collect();
    Devices::new(Multipath::new(host), made::mirrors(mirror, 4 << 20))
}

#[test]
#[should_panic(expected = "DeviceId(256) stands over DeviceId(256)")]
fn mirror_that_is_its_own_leg_panics() {
    over(&[0, MIRRORS_FROM]);
}

#[test]
#[should_panic(expected = "DeviceId(256) stands over DeviceId(257)")]
fn leg_of_higher_number_panics() {
    over(&[MIRRORS_FROM + 1]);
}

/// A front end reaches a leg as the mirror does, and each completion goes to its issuer.
#[test]
fn completions_of_one_device_go_to_their_issuers() {
    let disks = disks(2, true);
    let mut rig = Rig::ready(&disks);
    let mirrored = super::rig::io(IoOp::Read, 3);
    let mut leg = super::rig::io(IoOp::Read, 4);
    leg.volume = 1;
    for it in [&mirrored, &leg] {
        rig.submit(it);
    }
    rig.until(1_000_000_000, |rig| rig.done.len() == 2);
    let mut ended: Vec<_> = rig.done.iter().map(|it| it.cookie).collect();
    ended.sort_unstable();
    assert_eq!(ended, [3, 4]);
    assert!(rig.done.iter().all(|it| it.outcome.is_done()));
    let limits = |device| rig.engine.borrow().devices().limits(device);
    let (whole, part) = (limits(MIRRORS_FROM).unwrap(), limits(1).unwrap());
    assert!(whole.transfer_max <= part.transfer_max);
    assert!(rig.engine.borrow().devices().is_usable(MIRRORS_FROM));
}

#[test]
fn device_that_is_not_there_takes_nothing() {
    let rig = Rig::ready(&disks(2, true));
    for device in [2, MIRRORS_FROM - 1, MIRRORS_FROM + 1, u16::MAX] {
        let mut it = super::rig::io(IoOp::Read, 0);
        it.volume = device;
        let mut engine = rig.engine.borrow_mut();
        let submitted = engine.submit(&it, rig.world.now_ns);
        assert_eq!(submitted, Err(SubmitError::NotReady), "{device}");
        assert_eq!(engine.devices().limits(device), None);
        assert!(!engine.devices().is_usable(device));
    }
}

#[test]
#[should_panic(expected = "cookie 4294967296")]
fn cookie_that_a_front_end_cannot_have_panics() {
    let rig = Rig::ready(&disks(2, true));
    let mut it = super::rig::io(IoOp::Read, 0);
    it.cookie = 1 << 32;
    let _ = rig.engine.borrow_mut().submit(&it, rig.world.now_ns);
}
