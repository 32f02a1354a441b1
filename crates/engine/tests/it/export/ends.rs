//! Clients that die, whatever they were about, and exports that go away.
use super::common::{HOST, MS, SECOND, TARGET};
use super::rig::{Plain, Rig, Setup, config, offer};
use engine::export::{ExportControl, ExportEvent, Reader};
use engine::host::{Change, HostControl, HostEvent, Recovery};
use nbd::wire::cmd;
use nbd::{Errno, Kind, Request};

/// Another client finds everything as if the first had never been.
fn others_go_on(rig: &mut Rig) {
    rig.pass(SECOND);
    rig.at_rest();
    let client = rig.connect(config(4));
    let data = super::pattern(65536, 65536, 5);
    rig.write(client, 65536, &data);
    assert!(rig.read(client, 65536, 65536) == data);
    rig.clients.borrow_mut().reset(client);
    rig.pass(SECOND);
    rig.at_rest();
}

/// Where in its own bytes a client dies: in its flags, an option, a header, a payload.
#[test]
fn a_client_may_die_behind_any_byte() {
    let mut script = Plain::hello();
    let write = |plain: &mut Vec<u8>, cookie: u64, len: u32| {
        nbd::wire::RequestHeader {
            flags: 0,
            command: cmd::WRITE,
            cookie,
            offset: 100,
            length: len,
        }
        .emit(plain);
        plain.resize(plain.len() + len as usize, 3);
    };
    write(&mut script, 1, 5000);
    write(&mut script, 2, 10);
    let fine = 0..Plain::hello().len() + 60;
    let coarse = (fine.end..script.len()).step_by(397);
    let mut rig = Rig::ready(Setup::default());
    for cut in fine.chain(coarse).chain([script.len()]) {
        let conn = rig.clients.borrow_mut().connect_raw(0);
        rig.clients.borrow_mut().say(conn, &script[..cut]);
        // Some die at once, some when all came to rest.
        rig.pass(if cut % 2 == 0 { 100_000 } else { 10 * MS });
        rig.clients.borrow_mut().reset(conn);
        rig.until(SECOND, |rig| rig.is_closed(conn));
        rig.pass(MS);
        rig.at_rest();
    }
    others_go_on(&mut rig);
    assert!(rig.lines().is_empty(), "{:?}", rig.lines());
}

#[test]
fn requests_of_a_dead_client_end_and_give_back_their_memory() {
    let mut rig = Rig::ready(Setup::default());
    rig.world.nodes[TARGET].disks[0].delay_ns = 50 * MS;
    for wait_ns in [0, 20_000, 100_000, MS, 49 * MS, 60 * MS] {
        let client = rig.connect(config(8));
        for token in 0..6 {
            let offset = u64::from(token) * 65536;
            let kind = [Kind::Write, Kind::Read, Kind::WriteZeroes][token as usize % 3];
            let request = Request::new(token, kind, offset, 65536);
            rig.submit(client, request, &[1; 65536]);
        }
        rig.pass(wait_ns);
        rig.clients.borrow_mut().reset(client);
        rig.pass(SECOND);
        rig.at_rest();
    }
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    others_go_on(&mut rig);
}

#[test]
fn t09_a_held_write_outlives_its_client_and_then_gives_back_its_memory() {
    let mut setup = Setup::default();
    setup.host.kato_ms = 1000;
    setup.host.volumes[0].recovery.enabled = true;
    setup.target.subsystem.connections_max = 64;
    let mut rig = Rig::ready(setup);
    rig.world.nodes[TARGET].disks[0].delay_ns = 50 * MS;
    let client = rig.connect(config(4));
    rig.submit(client, Request::new(0, Kind::Write, 0, 4096), &[9; 4096]);
    rig.pass(10 * MS);
    rig.world.cut(HOST, 0);
    rig.pass(10 * MS);
    assert_eq!(rig.clients.borrow().in_flight(client), 1, "held");
    rig.clients.borrow_mut().reset(client);
    rig.pass(100 * MS);
    let engine = rig.engine.borrow();
    assert_eq!(engine.counters(0).clients, 1, "its request still is");
    assert!(engine.buffers_free() < engine.buffers());
    drop(engine);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    rig.pass(30 * SECOND);
    assert_eq!(rig.disk.bytes.borrow()[..4096], [9; 4096]);
    others_go_on(&mut rig);
}

#[test]
fn a_client_that_says_goodbye_gets_all_its_answers() {
    let mut rig = Rig::ready(Setup::default());
    rig.world.nodes[TARGET].disks[0].delay_ns = 50 * MS;
    let mut plain = rig.connect_plain();
    plain.write(&rig, 1, 0, &[1; 4096]);
    let mut bytes = plain.request(cmd::READ, 0, 2, (4096, 4096));
    bytes.extend(plain.request(cmd::DISC, 0, 3, (0, 0)));
    rig.clients.borrow_mut().say(plain.conn, &bytes);
    rig.until(SECOND, |rig| rig.is_closed(plain.conn));
    let mut cookies: Vec<u64> = plain.replies(&rig).iter().map(|r| r.cookie).collect();
    cookies.sort_unstable();
    assert_eq!(cookies, [1, 2]);
    others_go_on(&mut rig);
}

#[test]
fn an_export_that_is_withdrawn_under_load_ends_in_order() {
    let mut rig = Rig::ready(Setup::default());
    rig.world.nodes[TARGET].disks[0].delay_ns = MS;
    let clients: Vec<usize> = (0..3).map(|_| rig.connect(config(8))).collect();
    for &client in &clients {
        for token in 0..8 {
            let kind = [Kind::Write, Kind::Read][token as usize % 2];
            let request = Request::new(token, kind, u64::from(token) * 65536, 65536);
            rig.submit(client, request, &[2; 65536]);
        }
    }
    rig.pass(300_000);
    rig.control(ExportControl::Withdraw(0, SECOND));
    rig.until(SECOND, |rig| {
        clients.iter().all(|&client| rig.is_closed(client))
    });
    for &client in &clients {
        for end in rig.ended(client) {
            use nbd::client::CommandError::{Lost, Server};
            let told = [Ok(()), Err(Server(Errno::Shutdown)), Err(Lost)];
            assert!(told.contains(&end.result), "{end:?}");
        }
        assert_eq!(rig.clients.borrow().in_flight(client), 0);
    }
    rig.pass(SECOND);
    rig.at_rest();
    assert_eq!(rig.vacated(), 1);
    let late = rig.clients.borrow_mut().connect_raw(0);
    rig.until(SECOND, |rig| rig.is_closed(late));
    assert!(
        rig.clients.borrow().all[late].said.is_empty(),
        "nothing is offered"
    );
    rig.control(ExportControl::Offer(0, offer(false)));
    others_go_on(&mut rig);
}

/// A device that answers no more in time: the drain's end is the clients' end.
#[test]
fn a_drain_is_over_in_time() {
    let mut rig = Rig::ready(Setup::default());
    rig.world.nodes[TARGET].disks[0].delay_ns = 5 * SECOND;
    let client = rig.connect(config(4));
    rig.submit(client, Request::new(0, Kind::Read, 0, 4096), &[]);
    rig.pass(10 * MS);
    rig.control(ExportControl::Withdraw(0, SECOND));
    rig.until(SECOND + MS, |rig| rig.is_closed(client));
    assert_eq!(rig.lines().len(), 1, "{:?}", rig.lines());
    assert_eq!(rig.vacated(), 0, "its request is still with the device");
    rig.pass(10 * SECOND);
    rig.at_rest();
    assert_eq!(rig.vacated(), 1);
    // Without clients it is so at once.
    rig.control(ExportControl::Offer(0, offer(false)));
    rig.control(ExportControl::Withdraw(0, SECOND));
    rig.pass(MS);
    assert_eq!(rig.vacated(), 2);
}

/// Clients of one export have rights of their own, and each can be dismissed alone.
#[test]
fn read_only_client_is_dismissed_and_another_stays() {
    let mut rig = Rig::ready(Setup::default());
    let mut connect = |number, read_only| {
        let reader = Reader {
            number,
            read_only,
            ..Reader::default()
        };
        rig.control(ExportControl::Source(0, reader));
        rig.connect(config(4))
    };
    let [reader, writer] = [connect(1, true), connect(2, false)];
    let is_read_only = |rig: &Rig, client: usize| {
        let ready = rig.clients.borrow().all[client].ready;
        ready.unwrap().features.read_only
    };
    assert!(is_read_only(&rig, reader) && !is_read_only(&rig, writer));
    rig.write(writer, 0, &super::pattern(0, 4096, 1));
    assert_eq!(rig.read(reader, 0, 4096), super::pattern(0, 4096, 1));
    rig.control(ExportControl::Dismiss(1, [2].into(), SECOND));
    rig.control(ExportControl::Dismiss(0, [1, 3].into(), SECOND));
    rig.until(SECOND, |rig| rig.is_closed(reader));
    assert!(!rig.is_closed(writer));
    rig.write(writer, 0, &super::pattern(0, 4096, 2));
}

/// Else who withdraws it next would hear that it is free while clients are there.
#[test]
fn an_export_that_is_offered_anew_is_free_for_nobody_until_it_is_withdrawn() {
    let mut rig = Rig::ready(Setup::default());
    rig.control(ExportControl::Renew(0, offer(true), SECOND));
    rig.pass(MS);
    let before = rig.connect(config(4));
    rig.control(ExportControl::Renew(0, offer(false), SECOND));
    rig.until(SECOND, |rig| rig.is_closed(before));
    others_go_on(&mut rig);
    let client = rig.connect(config(4));
    assert_eq!(rig.vacated(), 0);
    rig.control(ExportControl::Withdraw(0, SECOND));
    rig.until(SECOND, |rig| rig.is_closed(client));
    rig.pass(MS);
    assert_eq!(rig.vacated(), 1);
}

#[test]
fn a_volume_that_is_removed_takes_its_clients_and_offers_along() {
    let mut setup = Setup::default();
    setup.host.volumes[0].recovery = Recovery::default();
    let volume = setup.host.volumes[0].clone();
    let mut rig = Rig::ready(setup);
    let client = rig.connect(config(4));
    rig.write(client, 0, &super::pattern(0, 4096, 1));
    let change = |ticket, change| {
        ExportControl::Host(HostControl::Change {
            ticket,
            change,
            wait_ns: 5 * SECOND,
        })
    };
    rig.world.nodes[TARGET].disks[0].delay_ns = 100 * MS;
    rig.submit(client, Request::new(0, Kind::Read, 0, 4096), &[]);
    rig.pass(MS);
    rig.control(change(1, Change::RemoveVolume(0)));
    rig.until(10 * SECOND, |rig| rig.is_closed(client));
    let ended = rig.ended(client);
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0].result, Ok(()), "it was under way");
    rig.pass(SECOND);
    rig.at_rest();
    // Its number is the next one's.
    rig.events.clear();
    rig.control(change(2, Change::AddVolume(Box::new(volume))));
    rig.until(10 * SECOND, Rig::is_ready);
    let ready = |event: &ExportEvent| matches!(event, ExportEvent::Host(HostEvent::Ready(0, _)));
    assert!(rig.events.iter().any(ready), "{:?}", rig.events);
    let client = rig.begin(config(4));
    rig.until(SECOND, |rig| rig.is_closed(client));
    rig.at_rest();
    rig.control(ExportControl::Offer(0, offer(false)));
    let client = rig.connect(config(4));
    assert!(rig.read(client, 0, 4096) == super::pattern(0, 4096, 1));
}
