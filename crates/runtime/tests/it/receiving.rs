//! Receiving: placements, copies, direct receives, blocking.
use crate::connections::accepted;
use crate::recorder::{Command, Event, Options, Recording, span};
use engine::machine::{Closed, ConnId, Output, Place};
use nvme::crc32c;
use std::io::Write;
use std::net::{Shutdown, TcpStream};

const C0: ConnId = ConnId(0);

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// Waits until `len` bytes of payload are in place; the last running digest.
fn payload(recording: &Recording, len: u32) -> u32 {
    let mut placed = 0;
    loop {
        match recording.next() {
            Event::Payload(C0, count, crc) => {
                placed += count;
                if placed == len {
                    return crc;
                }
            }
            other => panic!("{other:?} after {placed} bytes"),
        }
    }
}

#[test]
fn payload_of_any_size_lands_in_place_with_its_digest() {
    for len in [1, 511, 4096, 16383, 16384, 16385, 65536, 100_000, 1 << 20] {
        for digest in [false, true] {
            let (recording, mut peer) = accepted();
            let data = pattern(len);
            let place = Place {
                span: span(4096, len as u32),
                crc: digest.then_some(0),
            };
            recording.command(Command::Take(C0, 3));
            recording.command(Command::Place(C0, place));
            // The commands must be in before the bytes: an answer from the machine says so.
            recording.data(span(0, 1));
            peer.write_all(b"hdr").unwrap();
            peer.write_all(&data).unwrap();
            peer.write_all(b"end").unwrap();
            assert_eq!(recording.bytes(3), b"hdr");
            let crc = payload(&recording, len as u32);
            assert_eq!(crc, if digest { crc32c(0, &data) } else { 0 }, "{len}");
            assert_eq!(recording.bytes(3), b"end");
            assert!(recording.data(span(4096, len as u32)) == data, "{len}");
            drop(peer);
            let (_, stats) = recording.stop();
            assert_eq!(stats.bytes_copied_in + stats.bytes_direct_in, len as u64);
            if len < 16384 {
                assert_eq!(stats.bytes_direct_in, 0, "{len}");
            }
        }
    }
}

#[test]
fn a_large_remainder_is_received_into_place() {
    let (recording, mut peer) = accepted();
    let data = pattern(1 << 20);
    recording.command(Command::Take(C0, 2));
    recording.command(Command::Place(
        C0,
        Place {
            span: span(0, 1 << 20),
            crc: Some(0),
        },
    ));
    recording.data(span(2 << 20, 1));
    // The buffer is used up with the first piece; the rest can only go directly.
    peer.write_all(&[&[9, 9], &data[..1000]].concat()).unwrap();
    assert_eq!(recording.bytes(2), [9, 9]);
    let mut placed = 0;
    while placed < 1000 {
        match recording.next() {
            Event::Payload(C0, count, _) => placed += count,
            other => panic!("{other:?}"),
        }
    }
    peer.write_all(&data[1000..]).unwrap();
    let crc = payload(&recording, (1 << 20) - 1000);
    assert_eq!(crc, crc32c(0, &data));
    assert!(recording.data(span(0, 1 << 20)) == data);
    let (_, stats) = recording.stop();
    assert_eq!(
        (stats.bytes_copied_in, stats.bytes_direct_in),
        (1000, (1 << 20) - 1000)
    );
}

#[test]
fn bytes_one_by_one_arrive_all_the_same() {
    let (recording, mut peer) = accepted();
    let data = pattern(300);
    recording.command(Command::Take(C0, 10));
    recording.command(Command::Place(
        C0,
        Place {
            span: span(0, 200),
            crc: Some(0),
        },
    ));
    recording.data(span(4096, 1));
    let mut read = Vec::new();
    let mut last_crc = 0;
    let mut placed = 0;
    for byte in &data {
        peer.write_all(std::slice::from_ref(byte)).unwrap();
        match recording.next() {
            Event::Bytes(C0, bytes) => read.extend(bytes),
            Event::Payload(C0, count, crc) => (placed, last_crc) = (placed + count, crc),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((read.len(), placed), (100, 200));
    assert_eq!(read, [&data[..10], &data[210..]].concat());
    assert_eq!(last_crc, crc32c(0, &data[10..210]));
}

#[test]
fn a_blocked_connection_keeps_its_bytes_and_others_go_on() {
    let (recording, address) = Recording::listening(Options {
        connections: 40,
        ..Options::default()
    });
    let mut blocked = Vec::new();
    for conn in 0..39 {
        let mut peer = TcpStream::connect(address).unwrap();
        recording.expect(Event::Accepted(0, ConnId(conn)));
        recording.command(Command::Take(ConnId(conn), 1));
        recording.data(span(0, 1));
        peer.write_all(b"abc").unwrap();
        recording.expect(Event::Bytes(ConnId(conn), b"a".to_vec()));
        blocked.push(peer);
    }
    // Each of them keeps a buffer; there are enough for the next one all the same.
    let mut peer = TcpStream::connect(address).unwrap();
    recording.expect(Event::Accepted(0, ConnId(39)));
    peer.write_all(b"free").unwrap();
    assert_eq!(recording.bytes(4), b"free");
    for conn in 0..39 {
        recording.command(Command::Take(ConnId(conn), 1));
        recording.output(Output::Resume(ConnId(conn)));
        recording.expect(Event::Bytes(ConnId(conn), b"b".to_vec()));
    }
    blocked[7].write_all(b"d").unwrap();
    recording.command(Command::Take(ConnId(7), 9));
    recording.output(Output::Resume(ConnId(7)));
    assert_eq!(recording.bytes(2), b"cd");
}

#[test]
fn a_blocked_connection_can_be_closed() {
    for abort in [false, true] {
        let (recording, mut peer) = accepted();
        recording.command(Command::Take(C0, 0));
        recording.data(span(0, 1));
        peer.write_all(b"abc").unwrap();
        // Blocked or not yet: either way it must end.
        recording.output(Output::Close { conn: C0, abort });
        drop(peer);
        recording.expect(Event::Closed(C0, Closed::ByUs));
    }
}

#[test]
fn the_stream_may_end_inside_payload() {
    let (recording, mut peer) = accepted();
    recording.command(Command::Place(
        C0,
        Place {
            span: span(0, 100_000),
            crc: None,
        },
    ));
    recording.data(span(1 << 20, 1));
    peer.write_all(&[3; 50_000]).unwrap();
    peer.shutdown(Shutdown::Write).unwrap();
    payload(&recording, 50_000);
    recording.expect(Event::Closed(C0, Closed::ByPeer));
    assert!(recording.data(span(0, 50_000)) == [3; 50_000]);
}

#[test]
fn closing_during_a_direct_receive_frees_the_memory() {
    let (recording, mut peer) = accepted();
    // Payload is expected before the first byte, so all that follows is direct.
    recording.command(Command::Place(
        C0,
        Place {
            span: span(0, 100_000),
            crc: None,
        },
    ));
    recording.data(span(1 << 20, 1));
    peer.write_all(&[1; 10]).unwrap();
    payload(&recording, 10);
    recording.output(Output::Close {
        conn: C0,
        abort: true,
    });
    recording.expect(Event::Closed(C0, Closed::ByUs));
    // Would panic in the reactor if the kernel still had it.
    recording.command(Command::Fill(span(0, 100_000), 4));
    assert!(recording.data(span(0, 100_000)) == [4; 100_000]);
}
