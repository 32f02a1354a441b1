//! A host whose paths come back, and what can be said of it.
use super::{MS, Rig, SECOND, host_config, target_config};
use engine::host::{Change, HostConfig, HostControl, HostEvent, PathState, Recovery};
use engine::target::TargetConfig;
use policy::PathIndex;

pub const P0: PathIndex = PathIndex(0);
pub const P1: PathIndex = PathIndex(1);

/// A path of volume 0 leaves, whatever is lost with it.
pub fn remove_by_force(path: PathIndex) -> HostControl {
    HostControl::Change {
        ticket: 1,
        change: Change::RemovePath {
            volume: 0,
            path,
            force: true,
        },
        wait_ns: SECOND,
    }
}

/// How long writes are held in a rig of [`rig_with`]: keep-alive 1 s, so twice that, and the 500 ms
/// that stand in for CQT.
pub const HELD_NS: u64 = 2_500 * MS;

/// A host and a target of `paths` paths that come back; volume 0 is ready.
pub fn rig_with(paths: u32, change: impl FnOnce(&mut Recovery)) -> Rig {
    rig_of(paths, |host, _| change(&mut host.volumes[0].recovery))
}

/// As [`rig_with`], with more to change.
pub fn rig_of(paths: u32, change: impl FnOnce(&mut HostConfig, &mut TargetConfig)) -> Rig {
    let mut host = host_config(paths);
    host.kato_ms = 1000;
    let recovery = &mut host.volumes[0].recovery;
    recovery.enabled = true;
    recovery.quiesce_ns = 500 * MS;
    let mut target = target_config(paths as u16);
    target.subsystem.connections_max = 64;
    change(&mut host, &mut target);
    let mut rig = Rig::new(host, target);
    rig.ready();
    rig
}

pub fn state(rig: &Rig, path: PathIndex) -> PathState {
    rig.host.borrow().path_state(0, path)
}

pub fn returned(events: &[HostEvent]) -> usize {
    let those = events.iter();
    those
        .filter(|event| matches!(event, HostEvent::Returned(..)))
        .count()
}

pub fn until_returned(rig: &mut Rig, limit_ns: u64) {
    let before = returned(&rig.events);
    assert!(
        rig.run(limit_ns, |events, _| returned(events) > before),
        "never came back: {:?}",
        rig.failures()
    );
}

/// Nothing waits, and nothing is counted as in flight.
pub fn at_rest(rig: &Rig, paths: u8) {
    let host = rig.host.borrow();
    let stats = host.hold_stats(0);
    let waiting = stats.held + stats.behind + stats.queued + stats.delayed;
    assert_eq!(waiting, 0, "{stats:?}");
    for path in (0..paths).map(PathIndex) {
        assert_eq!(host.in_flight(0, path), 0);
    }
}
