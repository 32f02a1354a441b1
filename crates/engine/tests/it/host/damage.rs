//! Damage in transit: counted, reported, and charged to the path that does it.

use crate::common::*;
use engine::Span;
use engine::host::{HostEvent, PathState};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl};
use multipath::Outcome;
use multipath::health::{Limits, Why};
use nvme::wire::Status;

/// Path 0 fails this share of its I/O, in billionths, with a transport error, as a wrong digest
/// does.
fn rig(rate: u32) -> Rig {
    let mut rig = rig_of(2, |host, _| {
        host.scratch = Span {
            at: 7 << 20,
            len: 64 << 10,
        };
        host.volumes[0].recovery.health = Limits {
            idle_ns: 0,
            ..Limits::default()
        };
    });
    let faults = Faults {
        errors: vec![ErrorRule {
            status: Status::TRANSIENT_TRANSPORT,
            ops: Ops::ALL,
            blocks: None,
            rate: Probability::new(rate).unwrap(),
        }],
        ..Faults::default()
    };
    rig.target_control(TargetControl::Faults(0, faults));
    rig
}

fn warned(rig: &Rig, part: &str) -> usize {
    let said = |event: &&HostEvent| match event {
        HostEvent::Warning(0, line) | HostEvent::Trouble(0, line) => line.contains(part),
        _ => false,
    };
    rig.events.iter().filter(said).count()
}

/// The first three failures of an I/O are repeated on the path like those of a busy device; that
/// must not hide that nothing passes.
#[test]
fn t17_damage_on_each_transfer_is_four_in_a_row() {
    for (io, direction) in [(read(0, 0), 0), (write(0, 0), 1)] {
        let mut rig = rig(1_000_000_000);
        let mut ios = 0;
        while state(&rig, P0) == PathState::Live {
            assert_eq!(rig.one(&io, 5 * SECOND).outcome, Outcome::Done);
            ios += 1;
            assert!(ios < 4, "{ios} I/Os, and it is live");
        }
        rig.poll();
        let host = rig.host.clone();
        let host = host.borrow();
        let probation = host.path_report(0, P0, 0).health.probation;
        assert_eq!(probation.map(|it| it.why), Some(Why::Errors));
        let counters = host.counters(0, P0);
        assert!(counters.damaged_ns > 0);
        let mut want = [0, 0];
        want[direction] = 4;
        assert_eq!(counters.damaged, want);
        assert_eq!(counters.device_errors, 0, "the device did nothing wrong");
        assert_eq!(host.counters(0, P1).damaged, [0, 0]);
        let way = ["from the target", "to the target"][direction];
        assert_eq!(warned(&rig, way), 1, "{:?}", rig.events);
        assert_eq!(warned(&rig, "on probation: too much of what it carries"), 1);
        assert_eq!(warned(&rig, "answered with an error"), 0);
    }
}

/// Far below the share that is tolerated nothing is on probation, and all is counted.
#[test]
fn rare_damage_is_counted_and_repeated() {
    let mut rig = rig(2_000_000);
    for n in 0..4000 {
        assert_eq!(rig.one(&read(n % 64, 0), 5 * SECOND).outcome, Outcome::Done);
    }
    rig.poll();
    let damaged = rig.host.borrow().counters(0, P0).damaged;
    assert!(damaged[0] > 0 && damaged[1] == 0, "{damaged:?}");
    assert_eq!(state(&rig, P0), PathState::Live);
}
