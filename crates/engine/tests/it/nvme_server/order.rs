//! Changes that overlap, of hosts and NBD clients of one device (T9, T46), and memory that a leg
//! keeps (T10).
use super::common::{Address, BLOCK, HOST, MS, SECOND, io};
use super::rig::{Below, GUEST, Rig, Setup};
use crate::export::rig::Plain;
use crate::mirror::made::leg_id;
use engine::export::ExportControl;
use engine::host::{Io, IoOp};
use engine::limits::EXPORTS_MAX;
use engine::machine::DeviceOp;
use engine::mirror::{LegOrder, MIRRORS_FROM, MirrorOrder};
use multipath::Outcome;
use nbd::wire::{RequestHeader, cmd};
use nbd::{Kind, Request};

fn write(slot: u64, length: u32) -> Io {
    io(IoOp::Write { fua: false }, 0, length, slot)
}

/// A block as the disk below has it.
fn block(rig: &Rig) -> Vec<u8> {
    rig.disks[0].bytes.borrow()[..BLOCK as usize].to_vec()
}

/// An NBD client's write of a part of a block is read, merged and written: what a host writes
/// meanwhile comes before or behind all of it.
#[test]
fn t46_part_of_a_block_over_nbd_and_the_whole_over_nvme() {
    for nbd_first in [true, false] {
        let mut rig = Rig::ready(Setup::over(Below::Local));
        // One that never asked for the block sizes.
        let client = rig.clients.borrow_mut().connect_raw(0);
        rig.clients.borrow_mut().say(client, &Plain::hello());
        rig.pass(10 * MS);
        rig.slow(100 * MS);
        let said = |rig: &Rig| rig.clients.borrow().all[client].said.len();
        let greeted = said(&rig);
        let mut part = Vec::new();
        RequestHeader {
            flags: 0,
            command: cmd::WRITE,
            cookie: 1,
            offset: 0,
            length: 100,
        }
        .emit(&mut part);
        part.extend([1; 100]);
        let steps: [&dyn Fn(&mut Rig); 2] =
            [&|rig| rig.clients.borrow_mut().say(client, &part), &|rig| {
                rig.submit(&write(0, BLOCK), 2)
            }];
        let order = if nbd_first { [0, 1] } else { [1, 0] };
        for at in order {
            steps[at](&mut rig);
            rig.pass(10 * MS);
        }
        assert_eq!(rig.end(0, SECOND), Outcome::Done);
        rig.until(SECOND, |rig| said(rig) > greeted);
        let mut want = vec![2; BLOCK as usize];
        if !nbd_first {
            want[..100].fill(1);
        }
        assert!(block(&rig) == want, "{nbd_first}");
    }
}

/// A later write is faster below, and waits all the same.
#[test]
fn t46_overlapping_writes_of_both_front_ends_keep_their_order() {
    for below in [Below::Paths, Below::Local] {
        let mut rig = Rig::ready(Setup::over(below));
        let client = rig.connect();
        for round in 0..4_u64 {
            rig.slow([400, 300, 200, 1][round as usize] * MS);
            let byte = round as u8 + 1;
            if round % 2 == 0 {
                rig.submit(&write(round, BLOCK), byte);
            } else {
                let request = Request::new(round as u32, Kind::Write, 0, BLOCK);
                rig.ask(client, request, &[byte; BLOCK as usize]);
            }
            rig.pass(10 * MS);
        }
        rig.pass(3 * SECOND);
        assert_eq!(rig.done.len(), 2, "{below:?}");
        assert_eq!(rig.clients.borrow().all[client].ended.len(), 2, "{below:?}");
        assert!(block(&rig) == [4; BLOCK as usize], "{below:?}");
    }
}

/// A host's connection breaks for good while its write is at the device: what an NBD client writes
/// meanwhile waits for it, and is not undone.
#[test]
fn t09_write_of_a_lost_connection_undoes_no_later_one() {
    for below in [Below::Paths, Below::Local] {
        let mut rig = Rig::ready(Setup::over(below));
        let client = rig.connect();
        rig.slow(3 * SECOND);
        rig.submit(&write(0, BLOCK), 1);
        rig.pass(10 * MS);
        rig.slow(0);
        rig.world.nodes[GUEST].addresses = vec![Address::Refused; 2];
        rig.world.cut(GUEST, 0);
        rig.pass(10 * MS);
        let begun_ns = rig.world.now_ns;
        let request = Request::new(0, Kind::Write, 0, BLOCK);
        rig.ask(client, request, &[2; BLOCK as usize]);
        rig.until(10 * SECOND, |rig| {
            !rig.clients.borrow().all[client].ended.is_empty()
        });
        assert!(
            rig.world.now_ns - begun_ns > 2 * SECOND,
            "it waits: {below:?}"
        );
        rig.pass(5 * SECOND);
        assert!(block(&rig) == [2; BLOCK as usize], "{below:?}");
        assert_eq!(rig.used(), 0);
    }
}

/// A command that waits behind another change when its connection is lost is not begun.
#[test]
fn t09_waiting_write_goes_with_its_connection() {
    let mut rig = Rig::ready(Setup::over(Below::Local));
    let client = rig.connect();
    *rig.disks[0].log.borrow_mut() = Some(Vec::new());
    rig.slow(SECOND);
    rig.ask(
        client,
        Request::new(0, Kind::Write, 0, BLOCK),
        &[1; BLOCK as usize],
    );
    rig.pass(10 * MS);
    rig.submit(&write(0, BLOCK), 2);
    rig.pass(10 * MS);
    rig.world.nodes[GUEST].addresses = vec![Address::Refused; 2];
    rig.world.cut(GUEST, 0);
    rig.pass(5 * SECOND);
    let log = rig.disks[0].log.borrow_mut().take().unwrap();
    let is_write = |op: DeviceOp| matches!(op, DeviceOp::Write { .. });
    let writes: Vec<u8> = log
        .iter()
        .filter(|(request, _)| is_write(request.op))
        .map(|(_, data)| data[0])
        .collect();
    assert_eq!(writes, [1]);
    assert_eq!(rig.used(), 0);
}

/// Bytes of the NVMe/TCP server's memory that are in use.
fn used_by_hosts(rig: &Rig) -> u64 {
    let core = rig.core.borrow();
    let used = core.targets().map(|it| it.buffers() - it.buffers_free());
    used.sum()
}

/// A command that the device does not have ends with the connection: at once, not when its turn
/// comes.
#[test]
fn commands_that_only_wait_end_with_their_connection() {
    for (io_max, first) in [(64, 0), (1, 0), (1, 1)] {
        let mut setup = Setup::over(Below::Local);
        setup.core.io_max = io_max;
        let mut rig = Rig::ready(setup);
        let client = rig.connect();
        rig.slow(5 * SECOND);
        let request = Request::new(0, Kind::Write, first * u64::from(BLOCK), BLOCK);
        rig.ask(client, request, &[1; BLOCK as usize]);
        rig.pass(10 * MS);
        for slot in 0..3 {
            rig.submit(&write(slot, BLOCK), 2);
        }
        if io_max == 1 {
            rig.submit(&io(IoOp::Read, 0, BLOCK, 3), 2);
        }
        rig.pass(10 * MS);
        assert!(used_by_hosts(&rig) > 0);
        rig.world.nodes[GUEST].addresses = vec![Address::Refused; 2];
        rig.world.cut(GUEST, 0);
        rig.pass(100 * MS);
        assert_eq!(used_by_hosts(&rig), 0, "{io_max} {first}");
        rig.until(10 * SECOND, |rig| {
            !rig.clients.borrow().all[client].ended.is_empty()
        });
        assert_eq!(rig.used(), 0);
        // Their places among the changes are free as well.
        rig.slow(0);
        let ended = rig.nbd(
            client,
            Kind::Write,
            (0, 4 * BLOCK),
            &[3; 4 * BLOCK as usize],
        );
        assert_eq!(ended.result, Ok(()));
        assert!(block(&rig) == [3; BLOCK as usize]);
    }
}

/// A host whose `io_timeout` is over keeps its path: it learns that the write was not executed.
#[test]
fn t12_write_that_only_waits_is_aborted() {
    for (io_max, first) in [(64, 0), (1, 1)] {
        let mut setup = Setup::over(Below::Local);
        setup.core.io_max = io_max;
        (setup.guest.kato_ms, setup.guest.io_timeout_ns) = (500, SECOND);
        let mut rig = Rig::ready(setup);
        let client = rig.connect();
        rig.slow(5 * SECOND);
        let request = Request::new(0, Kind::Write, first * u64::from(BLOCK), BLOCK);
        rig.ask(client, request, &[1; BLOCK as usize]);
        rig.pass(10 * MS);
        rig.slow(0);
        rig.submit(&write(0, BLOCK), 2);
        let is_lost = |rig: &Rig| !rig.guest.borrow().volume(0).unwrap().usability().0;
        assert!(!rig.run(4 * SECOND + 500 * MS, is_lost), "{io_max}");
        let stats = rig.core.borrow().port_stats(EXPORTS_MAX).unwrap();
        assert!(stats.errors > 0, "{stats:?}");
        assert_eq!(rig.end(0, 10 * SECOND), Outcome::Done);
        assert!(block(&rig) == [2; BLOCK as usize]);
        assert_eq!(rig.used(), 0);
    }
}

#[test]
fn t10_buffer_of_an_answered_write_is_nobodys_while_a_leg_has_it() {
    const BYTES: u32 = 64 << 10;
    let mut rig = Rig::ready(Setup::over(Below::Mirror));
    assert_eq!(rig.one(&write(0, BYTES), 0x11), Outcome::Done);
    assert_eq!(rig.used(), 0);
    rig.world.nodes[HOST].disks[0].delay_ns = 9 * SECOND;
    *rig.disks[0].log.borrow_mut() = Some(Vec::new());
    rig.submit(&write(0, BYTES), 0x22);
    assert!(!rig.run(SECOND, |rig| rig.has_ended(0)), "leg 0 hangs");
    rig.control(ExportControl::Mirror(
        MIRRORS_FROM,
        MirrorOrder::Leg(leg_id(0), LegOrder::Fail),
    ));
    assert_eq!(rig.end(0, SECOND), Outcome::Done);
    assert!(rig.used() >= BYTES.into());
    for _ in 0..20 {
        assert_eq!(rig.one(&write(0, BYTES), 0x33), Outcome::Done);
    }
    // Also the connection's place is its own until then.
    rig.world.cut(GUEST, 0);
    rig.pass(10 * MS);
    assert!(rig.used() >= BYTES.into());
    // It is executed at last, with what was to be written.
    rig.pass(10 * SECOND);
    let log = rig.disks[0].log.borrow_mut().take().unwrap();
    let mut written = log.iter().filter(|(request, data)| {
        matches!(request.op, DeviceOp::Write { .. }) && data.len() == BYTES as usize
    });
    let whole = |data: &[u8]| data.iter().all(|it| *it == 0x22);
    assert!(written.all(|(_, data)| whole(data)));
    assert_eq!(rig.used(), 0);
}
