//! Changes that overlap, of clients that are there and of clients that are gone (T9).
use super::common::{MS, SECOND, TARGET};
use super::rig::{Rig, Setup, config};
use nbd::{Kind, Request};

const BYTES: usize = 4096;

fn write(rig: &mut Rig, client: usize, offset: u64, value: u8) {
    let request = Request::new(0, Kind::Write, offset, BYTES as u32);
    rig.submit(client, request, &[value; BYTES]);
}

fn slow(rig: &mut Rig, delay_ns: u64) {
    rig.world.nodes[TARGET].disks[0].delay_ns = delay_ns;
}

/// A client's connection breaks while its write is on a slow path. It connects again, sends the
/// write again, writes something newer, flushes: the first write is executed before all of these.
#[test]
fn t09_an_orphaned_write_undoes_no_later_one() {
    let mut rig = Rig::ready(Setup::default());
    let first = rig.connect(config(4));
    slow(&mut rig, 3 * SECOND);
    write(&mut rig, first, 0, 1);
    rig.pass(10 * MS);
    rig.clients.borrow_mut().reset(first);
    rig.pass(10 * MS);
    slow(&mut rig, 0);
    let begun_ns = rig.world.now_ns;
    let second = rig.connect(config(4));
    rig.write(second, 0, &[1; BYTES]);
    assert!(rig.world.now_ns - begun_ns > 2 * SECOND, "it waits");
    rig.write(second, 0, &[2; BYTES]);
    let flushed = rig.one(second, Request::flush(0), &[]);
    assert_eq!(flushed.result, Ok(()));
    rig.pass(5 * SECOND);
    assert_eq!(rig.read(second, 0, BYTES as u32), [2; BYTES]);
}

#[test]
fn t09_writes_beside_an_orphaned_one_do_not_wait() {
    let mut rig = Rig::ready(Setup::default());
    let first = rig.connect(config(4));
    slow(&mut rig, 3 * SECOND);
    write(&mut rig, first, 4096, 1);
    rig.pass(10 * MS);
    rig.clients.borrow_mut().reset(first);
    slow(&mut rig, 0);
    let second = rig.connect(config(4));
    let begun_ns = rig.world.now_ns;
    for offset in [0, 8192] {
        rig.write(second, offset, &[2; BYTES]);
    }
    assert!(rig.world.now_ns - begun_ns < SECOND);
}

/// A request of a broken connection that waits behind another change and was not begun is dropped.
#[test]
fn t09_a_waiting_write_goes_with_its_connection() {
    let mut rig = Rig::ready(Setup::default());
    let (first, other) = (rig.connect(config(4)), rig.connect(config(4)));
    slow(&mut rig, SECOND);
    write(&mut rig, other, 0, 1);
    rig.pass(10 * MS);
    write(&mut rig, first, 0, 2);
    rig.pass(10 * MS);
    rig.clients.borrow_mut().reset(first);
    rig.pass(5 * SECOND);
    assert_eq!(rig.ended(other).len(), 1);
    assert_eq!(rig.read(other, 0, BYTES as u32), [1; BYTES]);
    assert_eq!(rig.engine.borrow().counters(0).clients, 1);
    rig.write(other, 0, &[3; BYTES]);
}

/// The one that said DISC before it went meant it.
#[test]
fn a_waiting_write_of_a_client_that_left_is_done() {
    let mut rig = Rig::ready(Setup::default());
    let (mut first, other) = (rig.connect_plain(), rig.connect(config(4)));
    slow(&mut rig, SECOND);
    write(&mut rig, other, 0, 1);
    rig.pass(10 * MS);
    first.write(&rig, 1, 0, &[2; BYTES]);
    let disc = first.request(nbd::wire::cmd::DISC, 0, 2, (0, 0));
    rig.clients.borrow_mut().say(first.conn, &disc);
    rig.pass(10 * MS);
    rig.clients.borrow_mut().reset(first.conn);
    rig.pass(5 * SECOND);
    assert_eq!(rig.ended(other).len(), 1);
    assert_eq!(rig.read(other, 0, BYTES as u32), [2; BYTES]);
}

/// Of several connections the disk gets overlapping changes in the order in which they came.
#[test]
fn t46_overlapping_changes_of_connections_keep_their_order() {
    let mut rig = Rig::ready(Setup::default());
    let clients: Vec<_> = (0..4).map(|_| rig.connect(config(4))).collect();
    slow(&mut rig, SECOND);
    for (client, value) in clients.iter().zip(1..) {
        write(&mut rig, *client, 0, value);
        rig.pass(10 * MS);
        // A later one would be done first.
        slow(&mut rig, SECOND / 10);
    }
    rig.pass(10 * SECOND);
    for client in &clients {
        assert_eq!(rig.ended(*client)[0].result, Ok(()));
    }
    assert_eq!(rig.read(clients[0], 0, BYTES as u32), [4; BYTES]);
}
