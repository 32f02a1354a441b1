//! Arbitrary input from a client: no panic, the session ends, and memory stays within its bounds.
use super::*;
use crate::limits::OPTION_DATA_MAX;
use crate::wire::cmd;
use proptest::prelude::*;

/// One step of a hostile client.
#[derive(Clone, Debug)]
enum Act {
    Option(u32, Vec<u8>),
    Request(RequestHeader, usize),
    Garbage(Vec<u8>),
    /// One bit of what comes next is wrong.
    Flip(usize),
    /// The driver ends one of its requests.
    Complete(usize, Result<(), Errno>),
    Status(usize, Vec<(u32, u32)>),
    FailAt(usize, u64),
    Buffer,
    Sent,
    Time(u16),
    Shutdown,
}

fn header() -> impl Strategy<Value = RequestHeader> {
    let edge = prop_oneof![
        0u64..MIB,
        (MIB - 2000)..(MIB + 2000),
        any::<u64>(),
        Just(u64::MAX)
    ];
    let length = prop_oneof![0u32..3000, Just(64 * KIB), Just(64 * KIB + 1), any::<u32>()];
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

fn act() -> impl Strategy<Value = Act> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..80);
    let errno = prop_oneof![
        3 => Just(Ok(())),
        1 => Just(Err(Errno::Io)),
        1 => Just(Err(Errno::Overflow)),
        1 => Just(Err(Errno::NotSup)),
    ];
    let extents = prop::collection::vec((any::<u32>(), any::<u32>()), 0..30);
    prop_oneof![
        2 => (0u32..14, bytes()).prop_map(|(option, data)| Act::Option(option, data)),
        10 => (header(), 0usize..70_000).prop_map(|(header, data)| Act::Request(header, data)),
        1 => bytes().prop_map(Act::Garbage),
        1 => any::<usize>().prop_map(Act::Flip),
        6 => (any::<usize>(), errno).prop_map(|(at, result)| Act::Complete(at, result)),
        1 => (any::<usize>(), extents).prop_map(|(at, extents)| Act::Status(at, extents)),
        1 => (any::<usize>(), 0u64..MIB).prop_map(|(at, byte)| Act::FailAt(at, byte)),
        4 => Just(Act::Buffer),
        4 => Just(Act::Sent),
        1 => any::<u16>().prop_map(Act::Time),
        1 => Just(Act::Shutdown),
    ]
}

/// Offers bytes in pieces, as far as the session takes them.
fn offer(bench: &mut Bench, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        if bench.feed(piece) < piece.len() {
            return;
        }
    }
}

fn play(bench: &mut Bench, acts: &[Act], piece: usize) {
    let mut flip = None;
    for act in acts {
        let mut bytes = Vec::new();
        match act {
            Act::Option(option, data) => bytes = option_bytes(*option, data),
            Act::Request(header, data) => {
                header.emit(&mut bytes);
                if header.command == cmd::WRITE {
                    bytes.resize(28 + (*data).min(header.length as usize), 5);
                }
            }
            Act::Garbage(garbage) => bytes = garbage.clone(),
            Act::Flip(at) => flip = Some(*at),
            _ => drive(bench, act),
        }
        if let Some(at) = flip.take_if(|_| !bytes.is_empty()) {
            let at = at % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
        }
        offer(bench, &bytes, piece);
        assert!(bench.session.in_flight() <= 4);
        assert!(bench.session.rx.capacity() <= OPTION_DATA_MAX as usize);
    }
}

/// Applies a step of the driver or the clock.
fn drive(bench: &mut Bench, act: &Act) {
    let now = bench.now;
    match act {
        Act::Complete(at, _) | Act::Status(at, _) | Act::FailAt(at, _)
            if !bench.requests.is_empty() =>
        {
            let request = bench.requests.swap_remove(at % bench.requests.len());
            match act {
                Act::Complete(_, result) => bench.session.complete(request.token, *result, now),
                Act::FailAt(_, at) => {
                    bench
                        .session
                        .complete_failed_at(request.token, Errno::Io, *at, now);
                }
                Act::Status(_, extents) => {
                    let extents: Vec<Extent> = extents
                        .iter()
                        .map(|&(length, flags)| Extent { length, flags })
                        .collect();
                    if matches!(request.kind, Kind::BlockStatus { .. }) {
                        bench.session.complete_status(request.token, &extents, now);
                    } else {
                        bench.session.complete(request.token, Ok(()), now);
                    }
                }
                _ => {}
            }
        }
        Act::Buffer => {
            let wanted = core::mem::take(&mut bench.wanted);
            wanted
                .into_iter()
                .for_each(|token| bench.session.buffer_ready(token));
        }
        Act::Sent => {
            let unsent = core::mem::take(&mut bench.unsent);
            unsent
                .into_iter()
                .for_each(|token| bench.session.handle_sent(token));
        }
        Act::Time(ms) => {
            bench.now += u64::from(*ms) * MS;
            let now = bench.now;
            bench.session.handle_timeout(now);
        }
        Act::Shutdown => bench.session.shutdown(100 * MS, now),
        _ => {}
    }
    bench.pump();
}

/// Ends the connection and finishes the driver's work: nothing may be left.
fn finish(mut bench: Bench) {
    bench.gone();
    bench.hold = Hold::default();
    for request in core::mem::take(&mut bench.requests) {
        let now = bench.now;
        bench.session.complete(request.token, Ok(()), now);
    }
    for token in core::mem::take(&mut bench.unsent) {
        bench.session.handle_sent(token);
    }
    bench.pump();
    assert!(bench.session.is_over());
    assert!(bench.buffers.is_empty(), "buffers were not released");
    assert_eq!(bench.session.poll_timeout(), None);
    assert!(bench.closed.len() <= 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn bytes_of_no_sense(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        start in 0u8..4,
        piece in 1usize..200,
    ) {
        let mut bench = match start {
            0 => Bench::with(config(), exports()),
            1 => Bench::greeted(),
            2 => Bench::open(false, false),
            _ => Bench::open(true, true),
        };
        offer(&mut bench, &bytes, piece);
        finish(bench);
    }

    #[test]
    fn acts_of_a_hostile_client_from_the_first_byte(
        acts in prop::collection::vec(act(), 1..40),
        piece in 1usize..5000,
    ) {
        let mut bench = Bench::greeted();
        play(&mut bench, &acts, piece);
        finish(bench);
    }

    #[test]
    fn acts_of_a_hostile_client_in_transmission(
        structured: bool,
        block_size: bool,
        holds in 0u8..16,
        acts in prop::collection::vec(act(), 1..60),
        piece in 1usize..50_000,
    ) {
        let mut bench = Bench::open(structured, block_size);
        bench.hold = Hold {
            buffers: holds & 1 != 0,
            requests: holds & 2 != 0,
            sends: holds & 4 != 0,
            transmit: holds & 8 != 0,
        };
        play(&mut bench, &acts, piece);
        finish(bench);
    }
}
