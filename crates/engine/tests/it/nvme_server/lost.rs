//! A device that loses its last path, while hosts have commands there.
use super::common::{BLOCK, MS, SECOND, io};
use super::rig::{Below, GUEST, Rig, Setup};
use engine::Machine;
use engine::export::{ExportControl, ExportEvent};
use engine::host::{HostEvent, Io, IoOp};
use engine::limits::EXPORTS_MAX;
use engine::mirror::{MIRRORS_FROM, MirrorOrder};
use engine::target::Event;
use multipath::Outcome;
use std::ops::Range;

fn write(slot: u64) -> Io {
    let at = slot * u64::from(BLOCK);
    io(IoOp::Write { fua: false }, at, BLOCK, slot)
}

/// Whether the host may use its path, by the path's ANA state.
fn is_accessible(rig: &Rig) -> bool {
    rig.guest.borrow().volume(0).unwrap().usability().0
}

/// Commands wait as long as the device lets them, their connection lives on with its keep-alive,
/// and the host knows why.
fn wait(below: Below, paths: Range<usize>) {
    let mut setup = Setup::over(below);
    setup.target.subsystem.volatile_write_cache = false;
    setup.guest.kato_ms = 1000;
    setup.guest.io_timeout_ns = 100 * SECOND;
    let mut rig = Rig::ready(setup);
    rig.slow(SECOND);
    rig.submit(&write(0), 7);
    rig.pass(10 * MS);
    rig.slow(0);
    let before = rig.world.connections(GUEST);
    rig.lose(paths.clone());
    rig.until(SECOND, |rig| !is_accessible(rig));
    // A command that comes now waits with the host, for an ANA state that lets it go.
    rig.submit(&write(1), 8);
    assert!(!rig.run(20 * SECOND, |rig| rig.has_ended(0) || rig.has_ended(1)));
    assert_eq!(rig.world.connections(GUEST), before);
    let stats = rig.core.borrow().port_stats(EXPORTS_MAX).unwrap();
    assert_eq!(
        (stats.keep_alive_expired, stats.errors),
        (0, 0),
        "{stats:?}"
    );
    rig.find(paths);
    assert_eq!(rig.end(0, 100 * SECOND), Outcome::Done);
    assert_eq!(rig.end(1, 10 * SECOND), Outcome::Done);
    assert!(is_accessible(&rig));
    let at = super::data::at(&rig, below, 0);
    assert_eq!(rig.disks[0].bytes.borrow()[at], 7);
    assert_eq!(rig.world.connections(GUEST), before);
}

#[test]
fn commands_wait_for_a_path_and_their_connection_lives() {
    wait(Below::Paths, 0..2);
}

#[test]
fn commands_wait_for_a_leg_and_their_connection_lives() {
    wait(Below::MirrorOfPaths, 0..4);
}

#[test]
fn fast_io_fail_tmo_ends_commands_with_a_status_of_the_path() {
    let mut setup = Setup::over(Below::Paths);
    setup.core.volumes[0].recovery.fast_io_fail_ns = 5 * SECOND;
    setup.guest.volumes[0].recovery.fast_io_fail_ns = MS;
    setup.guest.io_timeout_ns = 100 * SECOND;
    let mut rig = Rig::ready(setup);
    rig.slow(SECOND);
    rig.submit(&write(0), 7);
    rig.pass(10 * MS);
    rig.slow(0);
    let (lost_ns, before) = (rig.world.now_ns, rig.world.connections(GUEST));
    rig.lose_paths();
    assert_eq!(rig.end(0, 60 * SECOND), Outcome::PathError);
    let waited_ns = rig.world.now_ns - lost_ns;
    assert!(
        (4 * SECOND..10 * SECOND).contains(&waited_ns),
        "{waited_ns}"
    );
    assert_eq!(rig.used(), 0);
    // By an answer, and not by the end of its connection.
    let stats = rig.core.borrow().port_stats(EXPORTS_MAX).unwrap();
    assert_eq!((stats.errors, rig.world.connections(GUEST)), (1, before));
}

/// Its legs may have other contents when it begins anew, so hosts must not keep theirs: the
/// namespace goes, and comes back as another disk.
#[test]
fn stopped_mirror_is_no_namespace_until_it_begins_anew() {
    let mut setup = Setup::over(Below::Mirror);
    setup.guest.volumes[0].recovery.fast_io_fail_ns = SECOND;
    let mut rig = Rig::ready(setup);
    assert_eq!(rig.one(&write(0), 1), Outcome::Done);
    rig.control(ExportControl::Mirror(MIRRORS_FROM, MirrorOrder::Stop));
    rig.until(SECOND, |rig| !is_accessible(rig));
    rig.pass(2 * SECOND);
    let said =
        |event: &HostEvent| format!("{event:?}").contains("namespace 1 was removed or detached");
    assert!(rig.guest_events.iter().any(said), "{:?}", rig.guest_events);
    rig.begin_mirror();
    rig.until(60 * SECOND, is_accessible);
    assert_eq!(rig.one(&write(1), 2), Outcome::Done);
}

/// The path that asked is lost, so what its host keeps for the answer ends with it.
#[test]
fn t09_mark_asked_for_a_namespace_that_goes_ends() {
    let mut setup = Setup::over(Below::Mirror);
    setup.guest.volumes[0].recovery.marks = Some(7);
    let mut rig = Rig::new(setup);
    let is_asked = |event: &HostEvent| matches!(event, HostEvent::Mark(_));
    rig.until(60 * SECOND, |rig| rig.guest_events.iter().any(is_asked));
    let ends = |event: &HostEvent| matches!(event, HostEvent::MarkEnded(0, 7, _));
    assert!(!rig.guest_events.iter().any(ends));
    rig.control(ExportControl::Mirror(MIRRORS_FROM, MirrorOrder::Stop));
    rig.until(60 * SECOND, |rig| rig.guest_events.iter().any(ends));
}

#[test]
fn hosts_that_find_no_place_are_reported() {
    let mut setup = Setup::over(Below::Local);
    setup.server.subsystem.connections_max = 2;
    let mut rig = Rig::ready(setup);
    let now_ns = rig.world.now_ns;
    for _ in 0..3 {
        let refused = rig.core.borrow_mut().handle_accepted(EXPORTS_MAX, now_ns);
        assert!(refused.is_none());
    }
    rig.pass(MS);
    let reported = rig.events.iter().filter_map(|event| match event {
        ExportEvent::Port { event, .. } => Some(*event),
        _ => None,
    });
    let turned_away = Event::TurnedAway { port: 0, count: 1 };
    assert_eq!(reported.collect::<Vec<_>>(), [turned_away]);
}
