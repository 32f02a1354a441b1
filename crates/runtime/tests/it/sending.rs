//! Sending: copied and direct payload, order, digests, back-pressure, when `handle_sent` comes.
use crate::connections::accepted;
use crate::recorder::{Command, Event, LENT, Options, Recording, span};
use engine::machine::*;
use nvme::crc32c;
use runtime::{Device, MemoryDevice};
use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;

const C0: ConnId = ConnId(0);

#[test]
fn headers_payload_and_digests_leave_in_order() {
    let (recording, mut peer) = accepted();
    let mut expected = Vec::new();
    let lengths = [1, 4096, 16383, 16384, 100, 65536, 200_000, 8, 1 << 20, 512];
    let mut at = 0;
    for (cookie, &len) in lengths.iter().enumerate() {
        let source = span(at, len);
        at += u64::from(len).next_multiple_of(4096);
        recording.command(Command::Fill(source, cookie as u8 + 1));
        let send = Send {
            span: source,
            digest: cookie % 2 == 0,
            cookie: cookie as u32,
            read: None,
        };
        recording.command(Command::Say(C0, vec![0xaa; 24], Some(send)));
        let data = vec![cookie as u8 + 1; len as usize];
        expected.extend_from_slice(&[0xaa; 24]);
        expected.extend_from_slice(&data);
        if send.digest {
            expected.extend_from_slice(&crc32c(0, &data).to_le_bytes());
        }
    }
    recording.command(Command::Say(C0, b"the end".to_vec(), None));
    expected.extend_from_slice(b"the end");
    let mut read = vec![0; expected.len()];
    peer.read_exact(&mut read).unwrap();
    assert!(read == expected);
    let mut sent: Vec<u32> = Vec::new();
    for _ in lengths {
        match recording.next() {
            Event::Sent(C0, cookie) => sent.push(cookie),
            other => panic!("{other:?}"),
        }
    }
    sent.sort_unstable();
    assert_eq!(sent, (0..lengths.len() as u32).collect::<Vec<u32>>());
    drop(peer);
    let (_, stats) = recording.stop();
    let (small, large): (Vec<u64>, Vec<u64>) = lengths
        .iter()
        .map(|&len| u64::from(len))
        .partition(|&len| len < 16384);
    assert_eq!(stats.bytes_copied_out, small.iter().sum::<u64>());
    assert_eq!(stats.bytes_direct_out, large.iter().sum::<u64>());
}

#[test]
fn t10_payload_that_may_still_be_read_is_reported_before_the_end_only() {
    let (recording, peer) = accepted();
    // Far more than the sockets hold: the first message can't leave.
    for cookie in 0..20 {
        let send = Send {
            span: span(0, 4 << 20),
            digest: false,
            cookie,
            read: None,
        };
        recording.command(Command::Say(C0, vec![0; 8], Some(send)));
    }
    // The arena is being sent from: reading it is allowed, and shows that the loop goes on.
    assert_eq!(recording.data(span(0, 1)), [0]);
    sys::os::set_abortive_close(&peer).unwrap();
    drop(peer);
    let mut events = vec![recording.next()];
    while !matches!(events.last(), Some(Event::Closed(..))) {
        events.push(recording.next());
    }
    let sent = events
        .iter()
        .filter(|event| matches!(event, Event::Sent(C0, _)))
        .count();
    assert_eq!(sent, events.len() - 1, "{events:?}");
    assert!(
        (1..20).contains(&sent),
        "only what was taken is reported: {sent}"
    );
    assert!(matches!(
        events.last(),
        Some(Event::Closed(C0, Closed::Error(_)))
    ));
    // Reading has ended.
    recording.command(Command::Fill(span(0, 4 << 20), 1));
    assert_eq!(recording.data(span(0, 1)), [1]);
}

#[test]
fn a_peer_that_does_not_read_bounds_what_is_staged() {
    let (recording, mut peer) = accepted();
    let count = 2000;
    for cookie in 0..count {
        let send = Send {
            span: span(0, 16000),
            digest: false,
            cookie,
            read: None,
        };
        recording.command(Command::Say(C0, Vec::new(), Some(send)));
    }
    let mut early = 0;
    recording.command(Command::TimeoutAt(0));
    while recording.next() != Event::Timeout {
        early += 1;
    }
    assert!(early < count, "32 MB can't have been staged");
    let mut read = vec![0; 16000 * count as usize];
    peer.read_exact(&mut read).unwrap();
    for cookie in early..count {
        recording.expect(Event::Sent(C0, cookie));
    }
}

/// Data that a device in memory lends are sent from where they lie, as they were when read.
#[test]
fn lent_data_are_sent_as_they_were_when_they_were_read() {
    const LEN: u32 = 256 << 10;
    // Not where a stripe begins.
    const OFFSET: u64 = 4096;
    let memory = Arc::new(MemoryDevice::new(1 << 20).unwrap());
    let old = |stripe: &mut sys::Stripe, range: std::ops::Range<usize>, _| stripe[range].fill(5);
    memory.each(OFFSET, LEN.into(), old);
    let (recording, address) = Recording::listening(Options {
        devices: vec![Device::Memory(memory)],
        ..Options::default()
    });
    let mut peer = TcpStream::connect(address).unwrap();
    recording.expect(Event::Accepted(0, C0));
    recording.command(Command::Output(Output::Device(DeviceRequest {
        id: LENT,
        device: LocalDevice(0),
        op: DeviceOp::Read,
        offset: OFFSET,
        length: LEN.into(),
        span: span(0, LEN),
    })));
    recording.expect(Event::Device(LENT, Ok(())));
    recording.command(Command::Fill(span(1 << 20, LEN), 9));
    let written = recording.device(
        DeviceOp::Write { fua: false },
        OFFSET,
        LEN.into(),
        span(1 << 20, LEN),
    );
    assert_eq!(written, Ok(()));
    let mut expected = Vec::new();
    for (cookie, at, len) in [(1, 0, 100_000), (2, 100_000, LEN - 100_000)] {
        let send = Send {
            span: span(at.into(), len),
            digest: true,
            cookie,
            read: Some(LentRead { id: LENT, at }),
        };
        recording.command(Command::Say(C0, vec![0xaa; 24], Some(send)));
        let data = vec![5; len as usize];
        expected.extend_from_slice(&[0xaa; 24]);
        expected.extend_from_slice(&data);
        expected.extend_from_slice(&crc32c(0, &data).to_le_bytes());
    }
    let mut read = vec![0; expected.len()];
    peer.read_exact(&mut read).unwrap();
    assert!(read == expected);
    recording.expect(Event::Sent(C0, 1));
    recording.expect(Event::Sent(C0, 2));
    assert!(
        recording.data(span(0, LEN)).iter().all(|&byte| byte == 0),
        "it was copied"
    );
    // The device has what was written since.
    let read = recording.device(DeviceOp::Read, OFFSET, LEN.into(), span(0, LEN));
    assert_eq!(read, Ok(()));
    assert!(recording.data(span(0, LEN)).iter().all(|&byte| byte == 9));
}
