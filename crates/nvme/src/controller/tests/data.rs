//! Data in both directions: R2T and H2CData, C2HData and SUCCESS, digests, flow control, slots.
use super::io::{read, write};
use super::*;
use crate::wire::pdu::Fes;

fn digests() -> IcReq {
    IcReq {
        header_digest: true,
        data_digest: true,
        ..plain()
    }
}

fn with(request: IcReq) -> Options {
    Options {
        request,
        ..Options::default()
    }
}

/// An R2T for a write of 32 blocks (16 KiB) that was just sent.
fn r2t(bench: &mut Bench) -> DataHeader {
    let got = bench.send(1, write(1, 0, 32, Sgl::Transport { len: 16 << 10 }), &[]);
    let [Got::R2t(r2t)] = got[..] else {
        panic!("{got:?}")
    };
    r2t
}

fn piece(r2t: &DataHeader, offset: u32, length: u32) -> DataHeader {
    DataHeader {
        offset,
        length,
        ..*r2t
    }
}

#[test]
fn t19_one_r2t_asks_for_all_and_only_when_there_is_a_buffer() {
    let mut bench = Bench::ready(config(), &Options::default());
    bench.hold_buffers = true;
    let sqe = write(1, 0, 32, Sgl::Transport { len: 16 << 10 });
    assert_eq!(bench.send(1, sqe, &[]), []);
    // The stream goes on meanwhile.
    assert!(matches!(
        bench.send(1, read(1, 0, 1, 512), &[])[..],
        [Got::Data { .. }, Got::Response(_)]
    ));
    let (conn, token, len) = bench.wanted[0];
    assert_eq!((conn, len), (1, 16 << 10));
    bench.target.buffer_ready(ConnId(1), token, bench.now);
    bench.settle();
    let got = bench.receive(1);
    assert!(matches!(got[..], [Got::R2t(r2t)] if r2t.offset == 0 && r2t.length == 16 << 10));
    // A second call changes nothing.
    bench.target.buffer_ready(ConnId(1), token, bench.now);
    bench.settle();
    assert_eq!(bench.receive(1), []);
}

#[test]
fn in_capsule_data_waits_for_its_buffer_and_blocks_the_stream() {
    let mut bench = Bench::ready(config(), &with(digests()));
    bench.hold_buffers = true;
    let data = pattern(1, 4096);
    let cid = bench.cid(1);
    let sqe = write(
        1,
        0,
        8,
        Sgl::InCapsule {
            offset: 0,
            len: 4096,
        },
    )
    .cid(cid);
    let bytes = bench.capsule(1, &sqe, &data);
    let header = bytes.len() - 4096 - 4;
    let taken = bench.feed(1, &bytes);
    assert_eq!(taken, header, "data isn't taken before there is a buffer");
    assert!(bench.target.placement(ConnId(1)).is_none());
    let token = bench.wanted[0].1;
    bench.target.buffer_ready(ConnId(1), token, bench.now);
    let place = bench.target.placement(ConnId(1)).unwrap();
    assert_eq!(
        (place.token, place.offset, place.len, place.crc),
        (token, 0, 4096, Some(0))
    );
    assert_eq!(bench.feed(1, &bytes[taken..]), 4100);
    assert!(matches!(bench.receive(1)[..], [Got::Response(cqe)] if cqe.status.is_success()));
    assert_eq!(bench.disks[&1][..4096], data);
}

#[test]
fn t20_write_in_pieces_of_every_size_up_to_the_limit() {
    for (request, size) in [
        (plain(), 8192),
        (digests(), 4096),
        (plain(), 4),
        (digests(), 1020),
    ] {
        let mut bench = Bench::ready(config(), &with(request));
        let data = pattern(9, 16 << 10);
        let r2t = r2t(&mut bench);
        for (i, part) in data.chunks(size).enumerate() {
            let offset = (i * size) as u32;
            let last = offset as usize + part.len() == data.len();
            let bytes = bench.h2c(1, &piece(&r2t, offset, part.len() as u32), last, part);
            // Header and data in separate segments, and a segment that ends within the data.
            bench.feed(1, &bytes[..10]);
            bench.feed(1, &bytes[10..bytes.len() - 2]);
            bench.feed(1, &bytes[bytes.len() - 2..]);
        }
        assert!(matches!(bench.receive(1)[..], [Got::Response(cqe)] if cqe.status.is_success()));
        assert_eq!(bench.disks[&1][..16 << 10], data);
    }
}

#[test]
fn t20_every_h2cdata_that_breaks_a_rule_is_fatal() {
    type Change = fn(&mut DataHeader, &mut u32, &mut bool);
    let cases: &[(Change, Fes, u32)] = &[
        (|h, _, _| h.ttag = 99, Fes::InvalidHeaderField, 10),
        (|h, _, _| h.ttag += 1, Fes::InvalidHeaderField, 10),
        (|h, _, _| h.cccid += 1, Fes::InvalidHeaderField, 8),
        (|h, _, _| h.length -= 4, Fes::InvalidHeaderField, 16),
        (|h, _, _| h.offset = 4, Fes::DataRange, 0),
        (|h, _, _| h.offset = u32::MAX - 3, Fes::DataRange, 0),
        (|h, len, _| (h.length, *len) = (8196, 8196), Fes::Limit, 0),
        (|_, _, last| *last = true, Fes::InvalidHeaderField, 1),
    ];
    for (change, fes, fei) in cases {
        let mut bench = Bench::ready(config(), &Options::default());
        let r2t = r2t(&mut bench);
        let (mut header, mut len, mut last) = (piece(&r2t, 0, 4096), 4096, false);
        change(&mut header, &mut len, &mut last);
        let bytes = bench.h2c(1, &header, last, &vec![0; len as usize]);
        bench.feed(1, &bytes);
        let got = bench.receive(1);
        let [Got::Term { fes: f, fei: i, .. }] = got[..] else {
            panic!("{got:?}")
        };
        assert_eq!((f, i), (*fes as u16, *fei), "{header:?}");
        assert_eq!(bench.closed, [(1, CloseReason::Protocol)]);
        // Until the connection is gone a receive may still run into the buffer.
        assert_eq!(bench.buffers.len(), 1);
        bench.gone(1);
        assert!(bench.buffers.is_empty() && bench.executed.is_empty());
    }
}

#[test]
fn t20_last_must_come_with_the_end_and_nothing_behind_it() {
    let mut bench = Bench::ready(config(), &Options::default());
    let tag = r2t(&mut bench);
    for offset in [0, 8192] {
        let bytes = bench.h2c(1, &piece(&tag, offset, 8192), false, &[0; 8192]);
        bench.feed(1, &bytes);
    }
    assert!(matches!(
        bench.receive(1)[..],
        [Got::Term { fes: 1, fei: 1, .. }]
    ));

    let mut bench = Bench::ready(config(), &Options::default());
    let tag = r2t(&mut bench);
    bench.hold_commands = true;
    for offset in [0, 8192, 16384] {
        let bytes = bench.h2c(1, &piece(&tag, offset, 8192), offset > 0, &[0; 8192]);
        bench.feed(1, &bytes);
    }
    // All data has arrived: the transfer tag is no longer valid.
    assert!(matches!(
        bench.receive(1)[..],
        [Got::Term {
            fes: 1,
            fei: 10,
            ..
        }]
    ));
}

#[test]
fn t17_a_data_digest_error_fails_its_command_alone_and_sticks() {
    let mut bench = Bench::ready(config(), &with(digests()));
    let tag = r2t(&mut bench);
    // The first of four pieces is damaged, the others are whole.
    for i in 0..4 {
        let mut bytes = bench.h2c(1, &piece(&tag, i * 4096, 4096), i == 3, &[i as u8; 4096]);
        if i == 0 {
            let at = bytes.len() - 100;
            bytes[at] ^= 0x10;
        }
        bench.feed(1, &bytes);
    }
    let got = bench.receive(1);
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status == Status::TRANSIENT_TRANSPORT));
    assert!(bench.executed.is_empty() && bench.buffers.is_empty());
    // In the capsule just so, and the connection lives.
    let sqe = write(
        1,
        0,
        8,
        Sgl::InCapsule {
            offset: 0,
            len: 4096,
        },
    );
    let mut bytes = bench.capsule(1, &sqe, &[1; 4096]);
    *bytes.last_mut().unwrap() ^= 1;
    bench.feed(1, &bytes);
    let got = bench.receive(1);
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status == Status::TRANSIENT_TRANSPORT));
    let got = bench.send(1, sqe, &[1; 4096]);
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()));
    assert_eq!(bench.executed.len(), 1);
}

#[test]
fn t18_success_flag_only_without_flow_control_and_only_on_the_last_piece() {
    for (flow_control, c2h_success) in [(true, true), (false, false), (true, false), (false, true)]
    {
        let config = SubsystemConfig {
            c2h_success,
            ..config()
        };
        let mut bench = Bench::ready(
            config,
            &Options {
                flow_control,
                ..Options::default()
            },
        );
        bench.disks.get_mut(&1).unwrap()[..4096].copy_from_slice(&pattern(4, 4096));
        let got = bench.send(1, read(1, 0, 8, 4096), &[]);
        let Got::Data {
            header,
            flags: f,
            bytes,
        } = &got[0]
        else {
            panic!("{got:?}")
        };
        assert_eq!((header.offset, header.length), (0, 4096));
        assert_eq!(*bytes, pattern(4, 4096));
        if c2h_success && !flow_control {
            assert_eq!((*f, got.len()), (flags::LAST | flags::SUCCESS, 1));
        } else {
            let Got::Response(cqe) = got[1] else {
                panic!("{got:?}")
            };
            assert_eq!((*f, got.len()), (flags::LAST, 2));
            assert_eq!(cqe.sqhd, if flow_control { 2 } else { 0xffff });
        }
    }
}

/// Hosts exist whose tables hold the pieces of one PDU only (SPDK 26.05): each read up to the
/// transfer size is answered by one C2HData PDU, with and without digests.
#[test]
fn t21_a_read_of_any_size_is_one_data_pdu() {
    for request in [plain(), digests()] {
        let config = SubsystemConfig {
            transfer_shift: 20,
            ..config()
        };
        let options = Options {
            flow_control: false,
            ..with(request)
        };
        let mut bench = Bench::ready(config, &options);
        let whole = pattern(2, 1 << 20);
        bench.disks.get_mut(&1).unwrap()[..1 << 20].copy_from_slice(&whole);
        for len in [512, 4096, 1 << 18, (1 << 18) + 512, 1 << 19, 1 << 20] {
            let got = bench.send(1, read(1, 0, len / 512, len), &[]);
            let [
                Got::Data {
                    header,
                    flags: seen,
                    bytes,
                },
            ] = &got[..]
            else {
                panic!("{len}: {} PDUs", got.len())
            };
            assert_eq!((header.offset, header.length), (0, len));
            assert_eq!(*bytes, whole[..len as usize]);
            let last = flags::LAST | flags::SUCCESS;
            assert_eq!(seen & last, last);
        }
    }
}

#[test]
fn hpda_pads_data_and_nothing_else() {
    for hpda in [0, 1, 7, 31] {
        let request = IcReq { hpda, ..digests() };
        let mut bench = Bench::ready(config(), &with(request));
        let cid = bench.cid(1);
        let bytes = bench.capsule(1, &read(1, 0, 1, 512).cid(cid), &[]);
        bench.feed(1, &bytes);
        let raw = bench.wires[&1].bytes.clone();
        let pdo = 28u32.next_multiple_of((u32::from(hpda) + 1) * 4) as usize;
        assert_eq!(usize::from(raw[3]), pdo);
        assert!(raw[28..pdo].iter().all(|&byte| byte == 0));
        assert_eq!(bench.receive(1).len(), 2);
    }
}

#[test]
fn responses_carry_the_head_as_commands_are_answered() {
    let mut bench = Bench::ready(
        config(),
        &Options {
            entries: 4,
            ..Options::default()
        },
    );
    // Connect was entry 0 of four.
    for want in [2, 3, 0, 1, 2] {
        let cqe = bench.ask(1, SqeBuilder::new(0).nsid(1));
        assert_eq!((cqe.sqhd, cqe.sqid), (want, 0));
    }
    // Three held: the head doesn't move on arrival, so the host never gets room that isn't there.
    bench.hold_commands = true;
    for _ in 0..3 {
        assert_eq!(bench.send(1, SqeBuilder::new(0).nsid(1), &[]), []);
    }
    bench.execute_one();
    assert!(matches!(bench.receive(1)[..], [Got::Response(cqe)] if cqe.sqhd == 3));
}

#[test]
fn more_commands_than_the_queue_holds_end_the_association() {
    for flow_control in [true, false] {
        let options = Options {
            entries: 4,
            flow_control,
            ..Options::default()
        };
        let mut bench = Bench::ready(config(), &options);
        bench.hold_commands = true;
        for _ in 0..3 {
            assert_eq!(bench.send(1, SqeBuilder::new(0).nsid(1), &[]), []);
        }
        let got = bench.send(1, SqeBuilder::new(0).nsid(1), &[]);
        assert!(matches!(got[..], [Got::Term { fes: 2, .. }]), "{got:?}");
        assert!(bench.closed.contains(&(1, CloseReason::Protocol)));
        // CFS stands, for the host to read.
        assert!(bench.csts(0).cfs());
    }
}

#[test]
fn t23_a_slot_is_reused_only_when_its_payload_is_reported_sent() {
    let options = Options {
        entries: 3,
        flow_control: false,
        ..Options::default()
    };
    let mut bench = Bench::ready(config(), &options);
    bench.hold_sends = true;
    // The host has its answers, but no send was reported: all three slots are taken.
    for _ in 0..3 {
        assert_eq!(bench.send(1, read(1, 0, 1, 512), &[]).len(), 1);
    }
    let cid = bench.cid(1);
    let bytes = bench.capsule(1, &read(1, 0, 1, 512).cid(cid), &[]);
    assert_eq!(
        bench.feed(1, &bytes),
        0,
        "no slot: nothing is taken, nothing is lost"
    );
    assert!(bench.released.iter().all(|&(conn, _)| conn != 1));
    let (conn, token) = bench.unsent.remove(1);
    bench.target.handle_sent(ConnId(conn), token);
    bench.settle();
    assert_eq!(
        (bench.resumed.as_slice(), bench.released.as_slice()),
        (&[1][..], &[(1, token)][..])
    );
    assert_eq!(bench.feed(1, &bytes), bytes.len());
    assert_eq!(bench.receive(1).len(), 1);
}

#[test]
fn t23_send_reported_before_the_response_went_out() {
    let mut bench = Bench::ready(config(), &Options::default());
    let cid = bench.cid(1);
    let bytes = bench.capsule(1, &read(1, 0, 1, 512).cid(cid), &[]);
    bench.target.handle_bytes(ConnId(1), &bytes, bench.now);
    let Some(ControllerEvent::Command(command)) = bench.target.poll_event() else {
        panic!()
    };
    bench
        .target
        .complete(ConnId(1), command.token, Status::SUCCESS, bench.now);
    let mut out = Vec::new();
    let first = bench
        .target
        .poll_transmit(ConnId(1), &mut out, bench.now)
        .unwrap();
    let payload = first.payload.unwrap();
    assert_eq!(
        (payload.token, payload.offset, payload.len),
        (command.token, 0, 512)
    );
    bench.target.handle_sent(ConnId(1), payload.token);
    let transmit = ControllerEvent::Transmit(ConnId(1));
    assert_eq!(bench.target.poll_event(), Some(transmit));
    assert_eq!(
        bench.target.poll_event(),
        None,
        "not released: the response isn't out"
    );
    assert!(
        bench
            .target
            .poll_transmit(ConnId(1), &mut out, bench.now)
            .is_some()
    );
    let release = ControllerEvent::Release {
        conn: ConnId(1),
        token: command.token,
    };
    assert_eq!(bench.target.poll_event(), Some(release));
    assert!(
        bench
            .target
            .poll_transmit(ConnId(1), &mut out, bench.now)
            .is_none()
    );
}

#[test]
fn many_responses_and_one_header_go_out_in_one_call_with_one_transmit_event() {
    let mut bench = Bench::ready(config(), &Options::default());
    bench.hold_commands = true;
    for _ in 0..4 {
        bench.send(1, SqeBuilder::new(0).nsid(1), &[]);
    }
    bench.send(1, read(1, 0, 1, 512), &[]);
    for command in core::mem::take(&mut bench.held) {
        bench
            .target
            .complete(ConnId(1), command.token, Status::SUCCESS, bench.now);
    }
    assert_eq!(
        bench.target.poll_event(),
        Some(ControllerEvent::Transmit(ConnId(1)))
    );
    assert_eq!(bench.target.poll_event(), None);
    let mut out = Vec::new();
    let payload = bench
        .target
        .poll_transmit(ConnId(1), &mut out, 0)
        .unwrap()
        .payload;
    assert!(payload.is_some());
    assert_eq!(out.len(), 4 * 24 + 24);
}

#[test]
fn nothing_grows_on_the_io_path() {
    let capacities = |bench: &Bench| {
        let connection = bench.target.connections[1].as_deref().unwrap();
        let queue = connection.tx.queue.capacity();
        (
            bench.target.events.capacity(),
            queue,
            connection.slots.capacity(),
        )
    };
    let options = Options {
        entries: 16,
        ..with(digests())
    };
    let mut bench = Bench::ready(config(), &options);
    let before = capacities(&bench);
    bench.hold_commands = true;
    bench.hold_sends = true;
    for round in 0..20u16 {
        // As many at once as the queue takes, the driver polled only when all are in.
        let mut bytes = Vec::new();
        for i in 0..15 {
            let cid = round * 16 + i;
            let sqe = match i % 3 {
                0 => read(1, u64::from(i) * 8, 8, 4096),
                1 => write(1, u64::from(i) * 8, 8, Sgl::Transport { len: 4096 }),
                _ => SqeBuilder::new(0).nsid(1),
            };
            bytes.extend(bench.capsule(1, &sqe.cid(cid), &[]));
        }
        assert_eq!(bench.target.handle_bytes(ConnId(1), &bytes, 0), bytes.len());
        bench.settle();
        for got in bench.receive(1) {
            let Got::R2t(r2t) = got else {
                panic!("{got:?}")
            };
            let bytes = bench.h2c(1, &r2t, true, &[round as u8; 4096]);
            bench.feed(1, &bytes);
        }
        for command in core::mem::take(&mut bench.held) {
            bench.execute(command);
        }
        bench.settle();
        for (conn, token) in core::mem::take(&mut bench.unsent) {
            bench.target.handle_sent(ConnId(conn), token);
        }
        bench.settle();
        assert_eq!(bench.receive(1).len(), 5 + 15);
    }
    assert_eq!(bench.released.len(), 20 * 15);
    assert_eq!(capacities(&bench), before);
}
