//! Hosts that are told that acknowledged writes may be lost with a controller's cache (T13).
use super::common::{Address, BLOCK, HOST, MS, P0, SECOND, io, remove_by_force};
use super::rig::{Below, GUEST, QUEUE, Rig, Setup, to};
use crate::matrix::queue::QueueClient;
use crate::matrix::stage::{Op, at, pattern};
use engine::export::{ExportControl, ExportEvent};
use engine::host::{Change, HostControl, HostEvent, Io, IoOp, Recovery};
use engine::limits::EXPORTS_MAX;
use engine::mirror::{LegStatus, MIRRORS_FROM, MirrorState};
use engine::{ConnId, Machine};
use multipath::Outcome;
use nbd::client::CommandError;
use nbd::{Errno, Kind, Request};
use nvme::wire::Status;
use nvme::wire::fabrics::{Property, property};
use nvme::wire::pdu::{Framing, PduType};

fn flush() -> Io {
    let mut it = io(IoOp::Flush, 0, 0, 40);
    it.span.len = 0;
    it
}

/// The host of a flush that waits takes nothing more, so that its connections don't close at once.
fn flushing(recovery: Recovery) -> Rig {
    let mut setup = Setup::over(Below::Paths);
    setup.core.volumes[0].recovery = recovery;
    setup.guest.io_timeout_ns = 100 * SECOND;
    let mut rig = Rig::ready(setup);
    lose_a_path(&mut rig);
    rig.submit(&flush(), 0);
    rig.pass(10 * MS);
    for conn in 0..2 {
        rig.world.stuff(GUEST, conn, true);
    }
    rig
}

/// Each path's controller gets an unflushed write of the host, and path 0 is lost.
fn lose_a_path(rig: &mut Rig) {
    for slot in 0..2 {
        let at = slot * u64::from(BLOCK);
        let write = io(IoOp::Write { fua: false }, at, BLOCK, slot);
        assert_eq!(rig.one(&write, 1), Outcome::Done);
    }
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.pass(10 * MS);
}

/// The path leaves by force.
fn remove_it(rig: &mut Rig) {
    rig.control(ExportControl::Host(remove_by_force(P0)));
    rig.pass(SECOND);
}

/// Clears CC.EN over the host's admin connection.
fn reset(rig: &mut Rig) {
    let set = Property {
        offset: property::CC,
        wide: false,
        value: 0,
    };
    let mut bytes = Vec::new();
    let sqe = set.emit_set().cid(500);
    Framing::PLAIN.whole(&mut bytes, PduType::CapsuleCmd, 0, sqe.bytes(), &[]);
    let conns = rig.world.nodes[GUEST].conns.get(&0);
    let (_, admin, _) = conns.and_then(|conn| conn.peer).unwrap();
    let now_ns = rig.world.now_ns;
    let taken = rig
        .core
        .borrow_mut()
        .handle_bytes(ConnId(admin), &bytes, now_ns);
    assert_eq!(taken, bytes.len());
    rig.pass(10 * MS);
}

/// Nothing is answered on a queue that a reset has deleted, though its connection is there yet.
#[test]
fn t13_flush_of_a_reset_controller_fails_the_next_one() {
    let mut rig = flushing(Recovery::default());
    let client = rig.connect();
    reset(&mut rig);
    remove_it(&mut rig);
    assert!(!rig.has_ended(40));
    let ended = rig.nbd(client, Kind::Flush, (0, 0), &[]);
    assert_eq!(ended.result, Err(CommandError::Server(Errno::Io)));
    let ended = rig.nbd(client, Kind::Flush, (0, 0), &[]);
    assert_eq!(ended.result, Ok(()));
}

/// Its own writes may be lost, though another client flushed first.
#[test]
fn t13_host_that_has_written_hears_once_of_a_loss_that_another_client_was_told() {
    let mut rig = Rig::ready(Setup::over(Below::Paths));
    let client = rig.connect();
    lose_a_path(&mut rig);
    remove_it(&mut rig);
    let ended = rig.nbd(client, Kind::Flush, (0, 0), &[]);
    assert_eq!(ended.result, Err(CommandError::Server(Errno::Io)));
    assert_eq!(rig.one(&flush(), 1), Outcome::MediaError);
    let again = Io {
        cookie: 41,
        ..flush()
    };
    assert_eq!(rig.one(&again, 1), Outcome::Done);
}

/// Its association ended before: it comes back with a file system that is mounted yet.
#[test]
fn t13_host_that_was_away_when_writes_were_lost_hears_of_it() {
    let mut rig = Rig::ready(Setup::over(Below::Paths));
    let client = rig.connect();
    lose_a_path(&mut rig);
    let address = rig.world.nodes[GUEST].addresses[0];
    rig.world.nodes[GUEST].addresses[0] = Address::Refused;
    rig.world.cut(GUEST, 0);
    rig.pass(100 * MS);
    remove_it(&mut rig);
    let ended = rig.nbd(client, Kind::Flush, (0, 0), &[]);
    assert_eq!(ended.result, Err(CommandError::Server(Errno::Io)));
    rig.world.nodes[GUEST].addresses[0] = address;
    rig.pass(5 * SECOND);
    assert_eq!(rig.one(&flush(), 1), Outcome::MediaError);
}

/// The next engine tells it.
#[test]
fn t13_flush_that_fails_after_a_stop_is_unheard() {
    let mut rig = flushing(Recovery {
        flush_timeout_ns: 500 * MS,
        ..Recovery::default()
    });
    rig.control(ExportControl::Stop(30 * SECOND));
    rig.pass(900 * MS);
    let is_loss = |event: &ExportEvent| match event {
        ExportEvent::Host(HostEvent::Loss(0, unheard)) => Some(*unheard),
        _ => None,
    };
    let losses: Vec<bool> = rig.events.iter().filter_map(is_loss).collect();
    assert_eq!(losses.last(), Some(&true), "{losses:?}");
}

/// It was asked for before they were, and finds nothing unflushed when it gets a slot.
#[test]
fn t13_flush_that_waits_for_a_slot_while_writes_are_given_up_fails() {
    let mut setup = Setup::over(Below::Paths);
    setup.core.io_max = 4;
    setup.core.volumes[0].recovery.flush_timeout_ns = 500 * MS;
    setup.guest.io_timeout_ns = 100 * SECOND;
    let mut rig = Rig::ready(setup);
    let (reader, client) = (rig.connect(), rig.connect());
    lose_a_path(&mut rig);
    rig.submit(&flush(), 0);
    rig.pass(10 * MS);
    rig.slow(2 * SECOND);
    for token in 0..8 {
        let at = u64::from(token) * u64::from(BLOCK);
        rig.ask(reader, Request::new(token, Kind::Read, at, BLOCK), &[]);
    }
    rig.pass(10 * MS);
    let ended = rig.nbd(client, Kind::Flush, (0, 0), &[]);
    assert_ne!(rig.end(40, SECOND), Outcome::Done);
    assert_eq!(ended.result, Err(CommandError::Server(Errno::Io)));
    let ended = rig.nbd(client, Kind::Flush, (0, 0), &[]);
    assert_eq!(ended.result, Ok(()));
}

/// The end of a queue's command.
fn end(rig: &mut Rig, client: &mut QueueClient, number: u16) -> Result<Vec<u8>, Status> {
    for _ in 0..100 {
        client.exchange(rig);
        if client.has_ended(number) {
            return client.end(number);
        }
        rig.pass(SECOND);
    }
    panic!("command {number} never ended");
}

/// A mirror whose last leg in sync has lost acknowledged writes: the flush of a queue failed for
/// that, and its client had gone before. No host has connected yet.
fn lost_by_last_leg() -> Rig {
    let mut rig = Rig::new(Setup::over(Below::MirrorOfPaths));
    rig.world.nodes[GUEST].addresses = vec![Address::Refused; 2];
    let core = rig.core.clone();
    let mirror = || core.borrow().mirror(MIRRORS_FROM).unwrap();
    rig.until(60 * SECOND, |_| mirror().state == MirrorState::Running);
    rig.lose(2..4);
    let mut client = QueueClient::default();
    for number in 0..8 {
        let block = number.into();
        let bytes = pattern(block, 1, 1);
        client.start(&mut rig, number, Op::Write, (at(block), BLOCK), &bytes);
    }
    rig.until(60 * SECOND, |_| {
        mirror().legs[1].status != LegStatus::InSync
    });
    for number in 0..8 {
        assert_eq!(end(&mut rig, &mut client, number), Ok(Vec::new()));
    }
    rig.control(ExportControl::Host(HostControl::Change {
        ticket: 1,
        change: Change::FailPath(0, P0, true),
        wait_ns: 0,
    }));
    client.start(&mut rig, 9, Op::Flush, (0, 0), &[]);
    core.borrow_mut().shut_queue(QUEUE);
    client.has_gone = true;
    assert!(end(&mut rig, &mut client, 9).is_err());
    rig
}

/// With a status that may be repeated its second flush would hide the loss.
#[test]
fn t13_queue_that_came_after_a_loss_may_not_repeat() {
    let (mut rig, mut client) = (lost_by_last_leg(), QueueClient::default());
    let late = QUEUE + 1;
    let gone = Box::new(|| false);
    rig.core.borrow_mut().open_queue(late, "late".into(), gone);
    let mut flush = || {
        client.start_on(&mut rig, late, 9, (Op::Flush, (0, 0), &[]));
        end(&mut rig, &mut client, 9)
    };
    assert_eq!(flush(), Err(Status::WRITE_FAULT.with_dnr()));
    assert_eq!(flush(), Ok(Vec::new()), "once");
}

/// A host repeats a flush that ends with the status of a path.
#[test]
fn t13_host_that_came_after_a_loss_may_not_repeat() {
    let mut rig = lost_by_last_leg();
    rig.world.nodes[GUEST].addresses = vec![to(HOST, EXPORTS_MAX); 2];
    rig.until(60 * SECOND, |rig| rig.info().is_some());
    assert_eq!(rig.one(&flush(), 1), Outcome::MediaError);
    let again = Io {
        cookie: 41,
        ..flush()
    };
    assert_eq!(rig.one(&again, 1), Outcome::Done, "once");
}
