//! Less of everything than is asked for: memory, slots. Everything waits and nothing is lost.
use super::common::{MS, SECOND, TARGET};
use super::rig::{Rig, Setup, config};
use nbd::{Kind, Request};

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
