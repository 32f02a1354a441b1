//! More clients than places.
use super::common::SECOND;
use super::rig::{Rig, Setup, config};
use engine::export::ExportEvent;
use engine::limits::{CLIENT_LINES_MAX, SAID_NS};

/// Those turned away since.
fn turned_away(rig: &mut Rig) -> Vec<u32> {
    let counts = rig.events.iter().filter_map(|event| match event {
        ExportEvent::TurnedAway { export: 0, count } => Some(*count),
        _ => None,
    });
    let counts = counts.collect();
    rig.events.clear();
    counts
}

#[test]
fn who_comes_when_all_places_are_taken_is_turned_away_and_few_are_spoken_of() {
    let mut setup = Setup::default();
    setup.export.clients_max = 3;
    let mut rig = Rig::ready(setup);
    let client = rig.connect(config(4));
    let idle = rig.connect_plain();
    let silent = rig.clients.borrow_mut().connect_raw(0);
    rig.pass(SECOND);
    turned_away(&mut rig);
    for _ in 0..5 {
        let refused = rig.clients.borrow_mut().connect_raw(0);
        rig.until(SECOND, |rig| rig.is_closed(refused));
    }
    assert_eq!(turned_away(&mut rig), [1]);
    rig.write(client, 0, &[5; 4096]);

    // One that doesn't choose an export in time gives its place to another; one that did may be
    // silent for as long as it likes.
    rig.until(20 * SECOND, |rig| rig.is_closed(silent));
    let another = rig.connect(config(4));
    rig.pass(2 * SECOND);
    let refused = rig.clients.borrow_mut().connect_raw(0);
    rig.until(SECOND, |rig| rig.is_closed(refused));
    rig.pass(SECOND);
    assert_eq!(turned_away(&mut rig), [5]);
    rig.pass(200 * SECOND);
    assert!(!rig.is_closed(idle.conn) && !rig.is_closed(client));
    assert_eq!(rig.read(another, 0, 4096), [5; 4096]);
    for conn in [client, idle.conn, another] {
        rig.clients.borrow_mut().reset(conn);
    }
    rig.pass(SECOND);
    rig.at_rest();
}

/// Of how many ends of sessions each line speaks, since.
fn ended(rig: &mut Rig) -> Vec<u32> {
    let counts = rig.events.iter().filter_map(|event| match event {
        ExportEvent::Client { count, .. } => Some(*count),
        _ => None,
    });
    let counts = counts.collect();
    rig.events.clear();
    counts
}

#[test]
fn of_many_who_break_the_protocol_few_are_spoken_of() {
    let mut rig = Rig::ready(Setup::default());
    rig.pass(SECOND);
    ended(&mut rig);
    let broken = |rig: &mut Rig| {
        let conn = rig.clients.borrow_mut().connect_raw(0);
        rig.clients.borrow_mut().say(conn, &[0xff; 4]);
        rig.until(SECOND, |rig| rig.is_closed(conn));
    };
    let begin_ns = rig.world.now_ns;
    (0..CLIENT_LINES_MAX + 24).for_each(|_| broken(&mut rig));
    assert!(rig.world.now_ns < begin_ns + SAID_NS, "all in one period");
    assert_eq!(ended(&mut rig), [1; CLIENT_LINES_MAX as usize]);
    rig.pass(SAID_NS);
    broken(&mut rig);
    assert_eq!(ended(&mut rig), [25]);
    rig.pass(SECOND);
    rig.at_rest();
}
