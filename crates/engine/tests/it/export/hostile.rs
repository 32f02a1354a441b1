//! Whatever clients say: the engine stands, others are served, and all memory comes back.
use super::common::{MS, SECOND};
use super::rig::{Plain, Rig, Setup, config};
use nbd::wire::RequestHeader;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Words {
    /// A request with so many bytes behind it.
    Request(RequestHeader, usize),
    Bytes(Vec<u8>),
    Pause(u64),
}

fn words() -> impl Strategy<Value = Words> {
    let edge = prop_oneof![
        0u64..70_000,
        (16u64 << 20) - 5000..(16 << 20) + 5000,
        any::<u64>()
    ];
    let length = prop_oneof![0u32..9000, Just(1 << 20), Just(1 << 25), any::<u32>()];
    let header = (
        prop_oneof![4 => 0u16..2, 1 => any::<u16>()],
        0u16..9,
        0u64..4,
        edge,
        length,
    );
    let header = header.prop_map(|(flags, command, cookie, offset, length)| RequestHeader {
        flags,
        command,
        cookie,
        offset,
        length,
    });
    prop_oneof![
        8 => (header, 0usize..10_000).prop_map(|(header, data)| Words::Request(header, data)),
        1 => prop::collection::vec(any::<u8>(), 0..60).prop_map(Words::Bytes),
        2 => (0u64..2 * MS).prop_map(Words::Pause),
    ]
}

fn say(rig: &mut Rig, conn: usize, words: &Words) {
    let mut bytes = Vec::new();
    match words {
        Words::Request(header, data) => {
            header.emit(&mut bytes);
            bytes.resize(bytes.len() + data, 0x5a);
        }
        Words::Bytes(it) => bytes.extend_from_slice(it),
        Words::Pause(ns) => return rig.pass(*ns),
    }
    if !rig.is_closed(conn) {
        rig.clients.borrow_mut().say(conn, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn whatever_clients_say_others_are_served(
        hostile in prop::collection::vec(prop::collection::vec(words(), 1..20), 1..4),
        greeted: bool,
        seed: u64,
    ) {
        let mut rig = Rig::ready(Setup::default());
        (0..seed % 64).for_each(|_| { rig.world.next(7); });
        let client = rig.connect(config(4));
        let mut conns = Vec::new();
        for script in &hostile {
            let conn = rig.clients.borrow_mut().connect_raw(0);
            if greeted {
                rig.clients.borrow_mut().say(conn, &Plain::hello());
            }
            conns.push(conn);
            script.iter().for_each(|words| say(&mut rig, conn, words));
        }
        let data = super::pattern(8 << 20, 65536, seed);
        rig.write(client, 8 << 20, &data);
        let read = rig.read(client, 8 << 20, 65536);
        prop_assert_eq!(read.len(), data.len());
        for conn in conns.into_iter().chain([client]) {
            if !rig.is_closed(conn) {
                rig.clients.borrow_mut().reset(conn);
            }
        }
        rig.pass(20 * SECOND);
        rig.at_rest();
    }
}
