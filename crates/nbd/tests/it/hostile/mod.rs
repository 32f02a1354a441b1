//! Arbitrary input from a peer, by tapes of the models: a session that goes well up to some place,
//! then acts that are nearly right.
use crate::model::client::{CHUNK, REPORT_SENT, SIMPLE, SUBMIT};
use crate::model::server::GIVE_BUFFER;
use crate::model::{FEED, FLIP, ZEROES, client, seeds, server, tape};
use nbd::wire::{OptionHeader, OptionReply, RequestHeader, chunk, cmd};
use proptest::collection::vec;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

/// An act, or several: a part of a tape.
type Act = BoxedStrategy<Vec<u8>>;

fn arrival(bytes: &[u8]) -> Vec<u8> {
    let mut tape = Vec::new();
    tape::put(&mut tape, FEED, ZEROES, bytes);
    tape
}

fn zeroes(count: u32) -> Vec<u8> {
    let [low, high, ..] = count.to_le_bytes();
    vec![ZEROES, low, high]
}

fn garbage() -> Act {
    vec(any::<u8>(), 0..80)
        .prop_map(|bytes| arrival(&bytes))
        .boxed()
}

fn word(operation: u8) -> Act {
    let tape = |word: u16, operation| [&[operation][..], &word.to_le_bytes()].concat();
    any::<u16>()
        .prop_map(move |word| tape(word, operation))
        .boxed()
}

/// A request of 1 to 100 blocks, near the beginning of the export.
fn submit() -> Act {
    (0..7u8, 0..3u8, 1..100u8)
        .prop_map(|(kind, block, blocks)| vec![SUBMIT, kind, block, 0, blocks])
        .boxed()
}

fn chunk_header(ago: u8, done: u16, kind: u16, len: u32) -> Vec<u8> {
    let words = [done.to_le_bytes(), kind.to_le_bytes()];
    [&[CHUNK, ago], words.as_flattened(), &len.to_le_bytes()].concat()
}

/// A chunk of data or a hole, mostly inside a request.
fn content() -> Act {
    (0..5u8, 0..2u16, 0u64..60_000, 0u32..60_000)
        .prop_map(|(ago, done, place, len)| {
            let place = place.to_be_bytes();
            if len % 3 == 0 {
                let header = chunk_header(ago, done, chunk::OFFSET_HOLE, 12);
                let body = [&place[..], &len.to_be_bytes()].concat();
                return [header, arrival(&body)].concat();
            }
            let header = chunk_header(ago, done, chunk::OFFSET_DATA, 8 + len);
            [header, arrival(&place), zeroes(len)].concat()
        })
        .boxed()
}

/// One act of a hostile server, or of the client's owner.
fn at_client() -> Act {
    let kinds = prop_oneof![0u16..7, (1u16 << 15)..(1 << 15) + 4, any::<u16>()];
    let chunk =
        (0..5u8, 0..3u16, kinds, vec(any::<u8>(), 0..60)).prop_map(|(ago, done, kind, body)| {
            let header = chunk_header(ago, done, kind, body.len() as u32);
            [header, arrival(&body)].concat()
        });
    let simple = (0..5u8, 0..3u8, 0u32..60_000)
        .prop_map(|(ago, error, len)| [vec![SIMPLE, ago, error], zeroes(len)].concat());
    let option = (0u32..12, 0u32..5, vec(any::<u8>(), 0..60)).prop_map(|(option, kind, data)| {
        let (mut bytes, len) = (Vec::new(), data.len() as u32);
        OptionReply { option, kind, len }.emit(&mut bytes);
        arrival(&[bytes, data].concat())
    });
    prop_oneof![
        6 => submit(),
        3 => simple,
        4 => chunk,
        6 => content(),
        1 => option,
        1 => garbage(),
        1 => word(FLIP),
        4 => Just(vec![REPORT_SENT]),
        1 => Just(vec![0]),
        1 => word(1),
    ]
    .boxed()
}

fn header() -> impl Strategy<Value = RequestHeader> {
    let edge = prop_oneof![
        0u64..MIB,
        (MIB - 2000)..(MIB + 2000),
        any::<u64>(),
        Just(u64::MAX)
    ];
    let length = prop_oneof![
        0u32..3000,
        Just(64 << 10),
        Just((64 << 10) + 1),
        any::<u32>()
    ];
    let flags = prop_oneof![4 => Just(0u16), 2 => 0u16..32, 1 => any::<u16>()];
    (flags, 0u16..9, any::<u64>(), edge, length, any::<bool>()).prop_map(
        |(flags, command, cookie, offset, length, aligned)| RequestHeader {
            flags,
            command,
            cookie,
            offset: if aligned { offset & !511 } else { offset },
            length: if aligned { length & !511 } else { length },
        },
    )
}

/// One act of a hostile client, or of the server's driver.
fn at_server() -> Act {
    let request = (header(), 0u32..70_000).prop_map(|(header, data)| {
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        let data = match header.command {
            cmd::WRITE => zeroes(data.min(header.length)),
            _ => Vec::new(),
        };
        [arrival(&bytes), data].concat()
    });
    let option = (0u32..14, vec(any::<u8>(), 0..80)).prop_map(|(option, data)| {
        let (mut bytes, len) = (Vec::new(), data.len() as u32);
        OptionHeader { option, len }.emit(&mut bytes);
        arrival(&[bytes, data].concat())
    });
    // Ends one of the driver's requests: well, with an error, with extents.
    let complete = (any::<u8>(), any::<u8>(), vec(any::<u8>(), 0..40))
        .prop_map(|(at, how, rest)| [vec![2, at, how], rest].concat());
    prop_oneof![
        2 => option,
        10 => request,
        1 => garbage(),
        1 => word(FLIP),
        8 => complete,
        4 => Just(vec![GIVE_BUFFER]),
        4 => Just(vec![REPORT_SENT]),
        4 => Just(vec![15]),
        1 => word(1),
        1 => Just(vec![0]),
    ]
    .boxed()
}

/// One of the `sessions` up to some place, and acts behind that.
fn attacks(sessions: fn(u8) -> Vec<u8>, act: fn() -> Act) -> impl Strategy<Value = Vec<u8>> {
    let begun = (any::<u8>(), 0..16u8, any::<prop::sample::Index>());
    (begun, vec(act(), 1..60)).prop_map(move |((choice, number, end), acts)| {
        let mut tape = sessions(number);
        tape[0] ^= choice & 0xfc;
        tape.truncate(1 + end.index(tape.len()));
        tape.extend(acts.concat());
        tape
    })
}

proptest! {
    #![proptest_config(hostile::model_config())]

    #[test]
    fn clients_withstand_their_server(tape in attacks(seeds::client_session, at_client)) {
        client::run(&tape);
    }

    #[test]
    fn servers_withstand_their_client(tape in attacks(seeds::server_session, at_server)) {
        server::run(&tape);
    }
}
