//! Less of everything than is asked for: memory, slots. Everything waits and nothing is lost.
use super::common::{MS, SECOND, TARGET};
use super::rig::{Plain, Rig, Setup, config};
use engine::export::{ExportControl, Reader};
use engine::limits::REQUEST_IOS_MAX;
use nbd::{Kind, Request};
use policy::PathIndex;

/// Six clients with 4 × 8 MiB each, where 68 MiB are there.
#[test]
fn t06_requests_wait_for_memory_and_all_of_them_end_well() {
    const BYTES: u32 = 8 << 20;
    let mut rig = Rig::ready(
        Setup {
            slot_bytes: BYTES.into(),
            ..Setup::default()
        }
        .with_volume(256),
    );
    rig.world.piece_max = 1 << 20;
    rig.world.nodes[TARGET].disks[0].delay_ns = 100_000;
    let clients: Vec<usize> = (0..6).map(|_| rig.connect(config(4))).collect();
    for (kind, version) in [(Kind::Write, 0), (Kind::Read, 1)] {
        for (n, &client) in (0u64..).zip(&clients) {
            for token in 0..4 {
                let offset = (n * 4 + u64::from(token)) * u64::from(BYTES);
                let data = super::pattern(offset, BYTES as usize, 1);
                let request = Request::new(token, kind, offset, BYTES);
                rig.submit(client, request, &data);
            }
        }
        let all = |rig: &Rig| {
            clients
                .iter()
                .all(|&c| rig.clients.borrow().in_flight(c) == 0)
        };
        rig.until(60 * SECOND, all);
        for (n, &client) in (0u64..).zip(&clients) {
            for end in rig.ended(client) {
                assert_eq!(end.result, Ok(()));
                let offset = (n * 4 + u64::from(end.token)) * u64::from(BYTES);
                let data = super::pattern(offset, BYTES as usize, 1);
                assert!(version == 0 || end.data == data, "{offset}");
            }
        }
    }
    let counters = rig.engine.borrow().counters(0);
    assert!(counters.waited_buffer > 0, "there was enough");
    assert_eq!((counters.errors, counters.requests), (0, 48));
    for client in clients {
        rig.clients.borrow_mut().leave(client);
    }
    rig.pass(SECOND);
    rig.at_rest();
}

#[test]
fn t06_requests_wait_for_slots_of_the_engine_and_all_of_them_end_well() {
    let mut setup = Setup::default();
    setup.host.io_max = 3;
    let mut rig = Rig::ready(setup);
    rig.world.nodes[TARGET].disks[0].delay_ns = 200_000;
    let clients: Vec<usize> = (0..4).map(|_| rig.connect(config(16))).collect();
    let mut plain = rig.connect_plain();
    for (n, &client) in (0u64..).zip(&clients) {
        for token in 0..16 {
            let offset = (n * 16 + u64::from(token)) * 16384;
            let data = super::pattern(offset, 16384, 1);
            rig.submit(
                client,
                Request::new(token, Kind::Write, offset, 16384),
                &data,
            );
        }
    }
    // One that reads, merges and writes meanwhile.
    let far = super::rig::VOLUME - 8192;
    plain.write(&rig, 1, far + 1, &[3; 5000]);
    assert_eq!(plain.reply(&mut rig).error, 0);
    rig.until(SECOND, |rig| {
        clients
            .iter()
            .all(|&c| rig.clients.borrow().in_flight(c) == 0)
    });
    for &client in &clients {
        let ended = rig.ended(client);
        assert_eq!(ended.len(), 16);
        assert!(ended.iter().all(|end| end.result.is_ok()));
    }
    let bytes = rig.disk.bytes.borrow();
    assert!(bytes[..64 * 16384] == super::pattern(0, 64 * 16384, 1));
    assert_eq!(
        bytes[far as usize..][..5002],
        [&[0][..], &[3; 5000], &[0]].concat()
    );
    assert!(rig.world.now_ns > 20 * MS, "three at a time");
}

/// A client that asks for more at once than it may have in flight: the last answers of a batch make
/// room for the next requests, and nothing else happens that would.
#[test]
fn t06_requests_beyond_those_in_flight_are_read_when_the_answers_are_out() {
    let mut rig = Rig::ready(Setup::default());
    let mut plain = rig.connect_plain();
    let mut bytes = Vec::new();
    for cookie in 0..100 {
        bytes.extend(plain.request(nbd::wire::cmd::WRITE, 0, cookie, (4096 * cookie, 4096)));
        bytes.extend([cookie as u8; 4096]);
    }
    rig.clients.borrow_mut().say(plain.conn, &bytes);
    rig.pass(SECOND);
    assert_eq!(plain.replies(&rig).len(), 100);
}

/// Requests that fail and clients that go while they wait for slots: the engine asserts that each
/// waits once, and that requests that wait have places.
#[test]
fn t06_the_line_for_slots_is_bounded_whoever_comes_and_goes() {
    let mut setup = Setup::default();
    (setup.export.clients_max, setup.export.requests_max) = (4, 4);
    setup.host.io_max = 2;
    let mut rig = Rig::ready(setup);
    rig.world.nodes[TARGET].disks[0].delay_ns = MS;
    for round in 0..60_u64 {
        let clients: Vec<usize> = (0..4).map(|_| rig.connect(config(4))).collect();
        for &client in &clients {
            for token in 0..4 {
                let kind = [Kind::Write, Kind::Read][(round + u64::from(token)) as usize % 2];
                let request = Request::new(token, kind, u64::from(token) * 65536, 65536);
                rig.submit(client, request, &[1; 65536]);
            }
        }
        rig.pass(round * 137_000 % (5 * MS));
        for (n, &client) in (0_u64..).zip(&clients) {
            match (round + n) % 3 {
                0 => rig.clients.borrow_mut().leave(client),
                _ => rig.clients.borrow_mut().reset(client),
            }
        }
        rig.until(SECOND, |rig| {
            clients.iter().all(|&client| rig.is_closed(client))
        });
        rig.until(SECOND, |rig| rig.engine.borrow().counters(0).clients == 0);
    }
    rig.at_rest();
}

/// Bytes sent by a client that stops in the middle of a write of `len` bytes.
fn half_a_write(rig: &mut Rig, len: u32) -> Plain {
    let mut plain = rig.connect_plain();
    let mut bytes = plain.request(nbd::wire::cmd::WRITE, 0, 1, (0, len));
    bytes.extend([1; 100]);
    rig.clients.borrow_mut().say(plain.conn, &bytes);
    rig.pass(MS);
    plain
}

const LONG: u64 = 61 * SECOND;

/// Each lot of stalled clients that has all memory is given up, and so are those that waited for
/// it, without another minute for each lot. A client that waits and is alive is served.
#[test]
fn stalled_clients_that_wait_for_memory_are_given_up() {
    let mut setup = Setup::default().with_volume(64);
    (setup.export.clients_max, setup.slot_bytes) = (256, 1 << 20);
    let mut rig = Rig::ready(setup);
    let stalled: Vec<Plain> = (0..240).map(|_| half_a_write(&mut rig, 1 << 20)).collect();
    let honest = rig.connect(config(1));
    let data = super::pattern(0, 1 << 20, 3);
    rig.submit(honest, Request::new(0, Kind::Write, 0, 1 << 20), &data);
    let count = |rig: &Rig| stalled.iter().filter(|it| !rig.is_closed(it.conn)).count();
    rig.pass(28 * SECOND);
    assert_eq!(count(&rig), 240, "too early");
    rig.pass(14 * SECOND);
    assert!(count(&rig) < 52, "{} are left", count(&rig));
    assert_eq!(rig.clients.borrow().in_flight(honest), 0);
    assert_eq!(rig.ended(honest)[0].result, Ok(()));
    // The last lot keeps nobody waiting, and has waited itself.
    rig.pass(5 * SECOND);
    assert_eq!(count(&rig), 0);
    rig.pass(LONG);
    assert!(!rig.is_closed(honest));
    let engine = rig.engine.borrow();
    assert_eq!(engine.buffers_free(), engine.buffers());
}

/// The same of clients that read and take no answers.
#[test]
fn clients_that_wait_and_take_no_answers_are_given_up() {
    let mut setup = Setup::default().with_volume(64);
    setup.export.clients_max = 256;
    let mut rig = Rig::ready(setup);
    let mut deaf = Vec::new();
    for _ in 0..120 {
        let mut plain = rig.connect_plain();
        rig.world
            .stuff(super::rig::CLIENTS, plain.conn as u32, true);
        let bytes = plain.request(nbd::wire::cmd::READ, 0, 1, (0, 4 << 20));
        rig.clients.borrow_mut().say(plain.conn, &bytes);
        deaf.push(plain);
    }
    rig.pass(28 * SECOND);
    let count = |rig: &Rig| deaf.iter().filter(|it| !rig.is_closed(it.conn)).count();
    assert_eq!(count(&rig), 120, "too early");
    rig.pass(40 * SECOND);
    assert!(count(&rig) < 13, "{} are left", count(&rig));
    rig.pass(LONG);
    assert_eq!(count(&rig), 0);
}

#[test]
fn a_client_stalled_in_the_middle_of_a_write_is_given_up_with_a_line() {
    let mut rig = Rig::ready(Setup::default().with_volume(64));
    rig.control(ExportControl::Source(
        0,
        Reader {
            source: 5,
            name: "192.0.2.9:4711".into(),
            ..Reader::default()
        },
    ));
    let plain = half_a_write(&mut rig, 32 << 20);
    assert!(rig.engine.borrow().buffers_free() < 40 << 20);
    rig.pass(29 * SECOND);
    assert!(!rig.is_closed(plain.conn), "too early");
    rig.until(LONG, |rig| rig.is_closed(plain.conn));
    let line = "192.0.2.9:4711: the client stopped in the middle of a request";
    assert_eq!(rig.lines(), [line]);
    rig.pass(MS);
    rig.at_rest();
    assert!(
        rig.disk.bytes.borrow().iter().all(|byte| *byte == 0),
        "half a write"
    );
}

/// Stalled clients have all shared memory; whoever asks for little goes on, and large requests wait
/// for the stalled ones' end and not longer.
#[test]
fn stalled_clients_cannot_keep_others_from_going_on() {
    let mut rig = Rig::ready(
        Setup {
            slot_bytes: 32 << 20,
            ..Setup::default()
        }
        .with_volume(64),
    );
    rig.world.piece_max = 1 << 20;
    let stalled: Vec<Plain> = (0..3).map(|_| half_a_write(&mut rig, 32 << 20)).collect();
    let (small, large) = (rig.connect(config(8)), rig.connect(config(1)));
    let all = super::pattern(0, 32 << 20, 3);
    rig.submit(large, Request::new(0, Kind::Write, 0, 32 << 20), &all);
    let before_ns = rig.world.now_ns;
    for n in 0..100 {
        let data = super::pattern(n, 65536, n);
        let offset = (32 << 20) + n * 65536;
        for token in 0..8 {
            let kind = [Kind::Write, Kind::Read][token as usize % 2];
            rig.submit(small, Request::new(token, kind, offset, 65536), &data);
        }
        rig.until(SECOND, |rig| rig.clients.borrow().in_flight(small) == 0);
        assert!(rig.ended(small).iter().all(|end| end.result.is_ok()));
    }
    assert!(
        rig.world.now_ns - before_ns < SECOND,
        "as if nobody stalled"
    );
    assert_eq!(rig.clients.borrow().in_flight(large), 1, "it waits");
    rig.until(LONG, |rig| rig.clients.borrow().in_flight(large) == 0);
    assert_eq!(rig.ended(large)[0].result, Ok(()));
    assert!(rig.disk.bytes.borrow()[..32 << 20] == all);
    rig.pass(LONG);
    assert!(stalled.iter().all(|plain| rig.is_closed(plain.conn)));
    assert_eq!(rig.lines().len(), 3);
}

/// Memory is kept for clients that move data: one that was busy before others took all else doesn't
/// wait, and one that comes later waits only until it has shown that it moves.
#[test]
fn who_moves_goes_on_beside_clients_that_have_all_memory_and_move_nothing() {
    let mut setup = Setup::default().with_volume(64);
    (setup.slot_bytes, setup.export.arena_bytes) = (32 << 20, 100 << 20);
    let mut rig = Rig::ready(setup);
    rig.world.piece_max = 1 << 20;
    // Eight at once, several times; how many of them had to wait.
    let busy = |rig: &mut Rig, client, rounds: u64| {
        let before = rig.engine.borrow().counters(0).waited_buffer;
        for n in 0..rounds {
            for token in 0..8 {
                let request = Request::new(token, Kind::Read, n * 65536, 65536);
                rig.submit(client, request, &[]);
            }
            rig.until(SECOND, |rig| rig.clients.borrow().in_flight(client) == 0);
        }
        assert!(rig.ended(client).iter().all(|end| end.result.is_ok()));
        rig.engine.borrow().counters(0).waited_buffer - before
    };
    let early = rig.connect(config(8));
    assert_eq!(busy(&mut rig, early, 20), 0, "alone");
    (0..4).for_each(|_| drop(half_a_write(&mut rig, 32 << 20)));
    assert_eq!(busy(&mut rig, early, 20), 0, "as if nobody stalled");
    let late = rig.connect(config(8));
    assert!(busy(&mut rig, late, 20) > 0, "nobody knows it");
    assert_eq!(busy(&mut rig, late, 20), 0, "it moves");
}

#[test]
fn one_request_has_a_bounded_number_of_ios_at_a_time() {
    let mut setup = Setup::default().with_volume(64);
    setup.slot_bytes = 32 << 20;
    // Each I/O is one command, and the queue has room for more of them.
    setup.target.subsystem.transfer_shift = 20;
    let mut rig = Rig::ready(setup);
    let client = rig.connect(config(1));
    let request = Request::new(0, Kind::Read, 0, 32 << 20);
    rig.submit(client, request, &[]);
    let mut most = 0;
    for _ in 0..10_000 {
        rig.pass(MS / 50);
        most = most.max(rig.engine.borrow().host().in_flight(0, PathIndex(0)));
    }
    assert!(rig.ended(client).iter().all(|end| end.result.is_ok()));
    assert_eq!(rig.clients.borrow().in_flight(client), 0);
    assert_eq!(most, u32::from(REQUEST_IOS_MAX));
}

/// The third waits for memory behind two that have it, and dies; who waits behind it goes on.
#[test]
fn whoever_waits_behind_a_client_that_died_waiting_goes_on() {
    let mut setup = Setup::default().with_volume(64);
    setup.slot_bytes = 2 << 20;
    let mut rig = Rig::ready(setup);
    let first: Vec<Plain> = [32 << 20, 32 << 20]
        .map(|len| half_a_write(&mut rig, len))
        .into();
    let second = half_a_write(&mut rig, 32 << 20);
    let client = rig.connect(config(1));
    let request = Request::new(0, Kind::Write, 0, 2 << 20);
    rig.submit(client, request, &vec![4; 2 << 20]);
    rig.pass(MS);
    assert_eq!(rig.clients.borrow().in_flight(client), 1, "in the line");
    rig.clients.borrow_mut().reset(second.conn);
    rig.until(SECOND, |rig| rig.clients.borrow().in_flight(client) == 0);
    assert!(first.iter().all(|plain| !rig.is_closed(plain.conn)));
}

#[test]
fn a_client_that_takes_no_answers_is_given_up_and_its_memory_comes_back() {
    let mut rig = Rig::ready(Setup::default().with_volume(64));
    let (deaf, other) = (rig.connect_plain(), rig.connect(config(4)));
    rig.world.stuff(super::rig::CLIENTS, deaf.conn as u32, true);
    let mut plain = deaf;
    for cookie in 0..40 {
        let bytes = plain.request(nbd::wire::cmd::READ, 0, cookie, (0, 4 << 20));
        rig.clients.borrow_mut().say(plain.conn, &bytes);
    }
    for _ in 0..50 {
        rig.write(other, 0, &[5; 65536]);
        rig.pass(500 * MS);
    }
    assert!(!rig.is_closed(plain.conn), "too early");
    let engine = rig.engine.borrow();
    assert!(
        engine.buffers_free() >= engine.buffers() / 3,
        "it has at most half"
    );
    drop(engine);
    rig.until(LONG, |rig| rig.is_closed(plain.conn));
    assert_eq!(rig.lines(), [": the client does not take its answers"]);
    rig.pass(MS);
    let engine = rig.engine.borrow();
    assert_eq!(engine.buffers_free(), engine.buffers());
}

#[test]
fn a_client_that_pauses_and_goes_on_is_served() {
    let mut rig = Rig::ready(Setup::default().with_volume(64));
    let mut plain = rig.connect_plain();
    rig.world
        .stuff(super::rig::CLIENTS, plain.conn as u32, true);
    let bytes = plain.request(nbd::wire::cmd::READ, 0, 1, (0, 4 << 20));
    rig.clients.borrow_mut().say(plain.conn, &bytes);
    rig.pass(20 * SECOND);
    rig.world
        .stuff(super::rig::CLIENTS, plain.conn as u32, false);
    assert_eq!(plain.reply(&mut rig).data.len(), 4 << 20);
    rig.pass(2 * LONG);
    assert!(!rig.is_closed(plain.conn), "idle is no stall");
}

#[test]
fn a_handshake_that_never_ends_is_ended() {
    let mut rig = Rig::ready(Setup::default());
    let hello = Plain::hello();
    let silent = rig.clients.borrow_mut().connect_raw(0);
    let halfway = rig.clients.borrow_mut().connect_raw(0);
    rig.clients.borrow_mut().say(halfway, &hello[..10]);
    // One that asks for the list again and again, and doesn't read it.
    let deaf = rig.clients.borrow_mut().connect_raw(0);
    rig.clients.borrow_mut().say(deaf, &hello[..4]);
    rig.pass(MS);
    rig.world.stuff(super::rig::CLIENTS, deaf as u32, true);
    for _ in 0..9 {
        let mut list = Vec::new();
        let (option, len) = (nbd::wire::opt::LIST, 0);
        nbd::wire::OptionHeader { option, len }.emit(&mut list);
        rig.clients.borrow_mut().say(deaf, &list);
        rig.pass(SECOND);
    }
    let all = [silent, halfway, deaf];
    assert!(all.iter().all(|conn| !rig.is_closed(*conn)));
    rig.until(2 * SECOND, |rig| {
        all.iter().all(|conn| rig.is_closed(*conn))
    });
    assert_eq!(rig.lines(), [": the handshake took too long"; 3]);
    rig.pass(MS);
    rig.at_rest();
}
