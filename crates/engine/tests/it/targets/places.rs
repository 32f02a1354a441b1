//! More hosts than places: those who are here stay and are served, the rest is turned away.

use crate::target_hand::{Hand, MS, SECOND, config};
use engine::target::{Event, Log};
use nvme::wire::fabrics::{Cc, Property, property};
use std::sync::Arc;

/// Those turned away, as the log has it.
fn turned_away(log: &Arc<Log>) -> Vec<u32> {
    let events = std::iter::from_fn(|| log.pop());
    let counts = events.filter_map(|(_, event)| match event {
        Event::TurnedAway { port: 0, count } => Some(count),
        _ => None,
    });
    counts.collect()
}

#[test]
fn who_comes_when_all_places_are_taken_is_turned_away_and_few_are_spoken_of() {
    let mut config = config(&[shape::Config::default()]);
    config.subsystem.connections_max = 3;
    let mut hand = Hand::new(config);
    let log = hand.target.log();
    let queue = hand.queue(0, 16);
    let silent = hand.accept(0).unwrap();
    for _ in 0..1000 {
        assert_eq!(hand.accept(0), None);
        hand.pass(MS);
    }
    assert_eq!(turned_away(&log), [1]);
    hand.read(queue, 0, 1);
    assert_eq!(hand.done(queue).len(), 1, "who is here is served");

    // One that doesn't connect in time gives its place to another.
    hand.pass(10 * SECOND);
    assert_eq!(hand.wire(silent).closed, Some(true));
    assert_eq!(hand.accept(0), None, "not before it is gone");
    assert_eq!(turned_away(&log), [1000]);
    hand.finish_close(silent);
    assert_eq!(hand.accept(0), Some(silent));
    assert_eq!(hand.accept(0), None);
    assert_eq!(turned_away(&log), []);
    hand.read(queue, 0, 1);
    assert_eq!(hand.done(queue).len(), 1);
}

/// Its host may have vanished while it was being reset: no keep-alive timer runs then.
#[test]
fn a_controller_that_is_reset_and_asked_nothing_leaves_when_its_place_is_wanted() {
    let mut config = config(&[shape::Config::default()]);
    config.subsystem.connections_max = 1;
    let mut hand = Hand::new(config);
    let (conn, _) = hand.admin(0);
    let reset = Property {
        offset: property::CC,
        wide: false,
        value: (Cc::enabled(0, 0).0 & !1).into(),
    };
    assert!(hand.ask(conn, reset.emit_set(), &[]).status.is_success());
    assert_eq!(hand.accept(0), None, "it may go on at once");
    hand.pass(4 * SECOND);
    assert_eq!(hand.accept(0), None);
    assert_eq!(hand.wire(conn).closed, None);
    hand.pass(SECOND);
    assert_eq!(hand.wire(conn).closed, None, "nobody came");
    assert_eq!(hand.accept(0), None);
    hand.settle();
    assert!(hand.wire(conn).closed.is_some());
    hand.finish_close(conn);
    assert_eq!(hand.accept(0), Some(conn));
}
