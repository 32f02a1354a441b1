//! Volumes offered to NBD clients, in virtual time: real sessions of clients, the engine with
//! exports, a target and its disk.
mod arrivals;
mod bytes;
pub mod clients;
mod ends;
mod errors;
mod extents;
mod gate;
mod hostile;
mod memory;
mod order;
mod places;
mod pressure;
mod removal;
mod resize;
pub mod rig;
mod told;

use crate::common::{self, BLOCK, MS, SECOND, WIRE_NS, fill};
use nbd::{Errno, Kind, Request};
use rig::{Plain, Rig, Setup, VOLUME, config};

/// `len` bytes that tell where they are.
fn pattern(offset: u64, len: usize, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fill(&mut bytes, offset, version);
    bytes
}

#[test]
fn a_client_sees_the_volume_as_it_is() {
    for structured in [true, false] {
        let mut rig = Rig::ready(Setup::default());
        let client = rig.connect(nbd::client::Config {
            structured,
            ..config(4)
        });
        let info = rig.clients.borrow().all[client].ready.unwrap();
        assert_eq!((info.size, info.structured), (VOLUME, structured));
        assert_eq!(info.block_sizes.unwrap().minimum, BLOCK);
        assert!(info.features.multi_conn && info.features.flush && info.features.fua);
        assert!(info.features.trim && info.features.write_zeroes);
        assert!(!info.features.block_status, "it was not asked for");
        let data = pattern(8192, 65536, 3);
        rig.write(client, 8192, &data);
        assert_eq!(rig.read(client, 8192, 65536), data);
        assert_eq!(rig.disk.bytes.borrow()[8192..8192 + 65536], data);
        rig.clients.borrow_mut().leave(client);
        rig.until(SECOND, |rig| rig.is_closed(client));
        rig.pass(MS);
        rig.at_rest();
        assert!(rig.lines().is_empty(), "a goodbye is worth no line");
    }
}

/// The target takes 128 KiB at once.
#[test]
fn requests_up_to_the_largest_are_cut_and_larger_ones_are_refused() {
    let largest = nbd::limits::BLOCK_MAX;
    let mut rig = Rig::ready(
        Setup {
            slot_bytes: u64::from(largest) + 4096,
            ..Setup::default()
        }
        .with_volume(80),
    );
    rig.world.piece_max = 1 << 20;
    let client = rig.connect(config(2));
    let data = pattern(4096, largest as usize, 9);
    rig.write(client, 4096, &data);
    assert!(rig.disk.bytes.borrow()[4096..4096 + data.len()] == data);
    assert!(rig.read(client, 4096, largest) == data);
    // Our client would not ask for more, so another does.
    let mut plain = rig.connect_plain();
    for command in [nbd::wire::cmd::READ, nbd::wire::cmd::WRITE] {
        let mut bytes = plain.request(command, 0, 5, (0, largest + 1));
        if command == nbd::wire::cmd::WRITE {
            bytes.resize(bytes.len() + largest as usize + 1, 7);
        }
        rig.clients.borrow_mut().say(plain.conn, &bytes);
        let reply = plain.reply(&mut rig);
        assert_eq!(reply.error, Errno::Inval.code(), "command {command}");
    }
    // And goes on.
    let mut unaligned = data[1..][..largest as usize - 1].to_vec();
    unaligned.push(1);
    plain.write(&rig, 6, 4097, &unaligned);
    assert_eq!(plain.reply(&mut rig).error, 0);
    assert!(rig.read(client, 4096, 4096) == data[..4096]);
    assert_eq!(rig.disk.bytes.borrow()[4096 + largest as usize], 1);
}

#[test]
fn a_client_that_comes_before_its_volume_is_greeted_when_it_is_ready() {
    let mut rig = Rig::new(Setup::default());
    let client = rig.begin(config(4));
    rig.until(20 * SECOND, |rig| rig.is_ready());
    let now_ns = rig.world.now_ns;
    let ready = |rig: &Rig| rig.clients.borrow().all[client].ready.is_some();
    rig.world
        .run(SECOND, |_| rig.clients.borrow().all[client].ready.is_some());
    assert!(ready(&rig) && rig.world.now_ns < now_ns + MS);
    assert_eq!(rig.read(client, 0, BLOCK), vec![0; BLOCK as usize]);
}

/// World 710830: it was greeted, and its place kept for ever.
#[test]
fn a_client_that_goes_in_the_turn_in_which_its_volume_is_ready_leaves_nothing_behind() {
    let begun = || {
        let mut rig = Rig::new(Setup::default());
        let client = rig.begin(config(4));
        (rig, client)
    };
    let (mut first, _) = begun();
    first.until(20 * SECOND, |rig| rig.is_ready());
    let ready_ns = first.world.now_ns;
    let (mut rig, client) = begun();
    rig.pass(ready_ns - WIRE_NS - rig.world.now_ns);
    rig.clients.borrow_mut().reset(client);
    rig.until(SECOND, |rig| rig.is_ready());
    assert_eq!(rig.world.now_ns, ready_ns);
    rig.pass(SECOND);
    rig.at_rest();
}

#[test]
fn a_flush_covers_what_was_acknowledged_on_another_connection() {
    let mut setup = Setup::default();
    setup.target.subsystem.volatile_write_cache = true;
    let mut rig = Rig::ready(setup);
    rig.disk = rig.disk.clone().with_cache();
    rig.world.nodes[common::TARGET].disks = vec![rig.disk.clone()];
    let (writer, flusher) = (rig.connect(config(4)), rig.connect(config(4)));
    let data = pattern(0, 8192, 1);
    rig.write(writer, 0, &data);
    let durable = rig.disk.durable.clone().unwrap();
    assert!(durable.borrow()[..8192] != data, "the cache would be lost");
    let flushed = rig.one(flusher, Request::flush(0), &[]);
    assert_eq!(flushed.result, Ok(()));
    assert!(durable.borrow()[..8192] == data);
    // FUA needs no flush, whatever is changed.
    for (version, kind) in [(2, Kind::Write), (3, Kind::WriteZeroes), (4, Kind::Trim)] {
        let data = pattern(0, 8192, version);
        rig.write(writer, 0, &data);
        let request = Request::new(0, kind, 0, 4096).with_fua();
        assert_eq!(rig.one(flusher, request, &data[..4096]).result, Ok(()));
        let now = rig.disk.bytes.borrow()[..4096].to_vec();
        assert!(durable.borrow()[..4096] == now, "{kind:?}");
    }
}

#[test]
fn a_write_that_covers_blocks_partly_leaves_the_rest_alone() {
    let mut rig = Rig::ready(Setup::default());
    let client = rig.connect(config(4));
    let mut model = pattern(0, 5 * 4096, 1);
    rig.write(client, 0, &model);
    let mut plain: Plain = rig.connect_plain();
    for (cookie, (offset, len)) in (0..).zip([
        (1, 1),
        (4095, 2),
        (4000, 9000),
        (4096, 100),
        (8191, 4097),
        (0, 20480),
    ]) {
        let data = pattern(offset, len, 50 + cookie);
        plain.write(&rig, cookie, offset, &data);
        assert_eq!(plain.reply(&mut rig).error, 0);
        model[offset as usize..][..len].copy_from_slice(&data);
        assert!(rig.read(client, 0, 20480) == model, "{len} at {offset}");
    }
    assert_eq!(rig.engine.borrow().counters(0).merged, 5);
}
