//! Legs that get no writes, and are read where no other leg can be.
use super::common::SECOND;
use super::rig::{Rig, made, shared};
use engine::machine::DeviceError;
use engine::mirror::{LegOrder, LegStatus};
use multipath::Outcome;
use nvme::wire::Status;

/// A leg that its user has taken out serves what was not written since, also where another host
/// reaches the legs; a path that is lost and found again makes no difference.
#[test]
fn leg_that_was_taken_out_is_the_last_resort() {
    for is_shared in [false, true] {
        let disks = made(2, true);
        let mut rig = match is_shared {
            true => shared(&disks),
            false => Rig::new(&disks),
        };
        rig.until(60 * SECOND, Rig::is_ready);
        for block in [0, 300] {
            assert_eq!(rig.write(block, 3), Outcome::Done);
        }
        rig.run(60 * SECOND, |_| false); // all is flushed
        rig.order_leg(1, LegOrder::Fail);
        rig.until(SECOND, |rig| rig.statuses()[1] == LegStatus::Stale);
        assert_eq!(rig.write(0, 4), Outcome::Done);
        rig.run(60 * SECOND, |_| false);
        rig.disk(0).error = Some(DeviceError::Nvme(Status::UNRECOVERED_READ));
        // Its superblocks can't be read either, but a block that was not written is on leg 1.
        assert_eq!(rig.read(300), Ok(3), "{:?}", rig.lines());
        assert_eq!(rig.read(0), Err(Outcome::MediaError));
        let facts = rig.report().legs[1].facts.unwrap();
        assert!(facts.rescued > 0 && !facts.rebuilding, "{facts:?}");
        let says = |line: &String| line.contains("is not in sync, and was read");
        assert!(rig.lines().iter().any(says), "{:?}", rig.lines());
        rig.disk(0).error = None;
        rig.order_leg(1, LegOrder::Return);
        rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
        assert_eq!((rig.read(0), rig.read(300)), (Ok(4), Ok(3)));
    }
}
