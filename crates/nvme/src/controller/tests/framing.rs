//! Illegal PDUs, in any split (T24), and the parameters agreed in the handshake.
use super::*;
use crate::wire::pdu::Fes;

/// A connection that broke the rules: its TermReq, checked to be the only thing sent and the end.
fn term(bench: &mut Bench, conn: u32) -> (u16, u32) {
    let got = bench.receive(conn);
    let [Got::Term { fes, fei, .. }] = got[..] else {
        panic!("{got:?}")
    };
    // A damaged header is the network's fault, not the host's.
    let reason = match fes {
        3 => CloseReason::Damaged,
        _ => CloseReason::Protocol,
    };
    assert_eq!(bench.closed.last(), Some(&(conn, reason)));
    // All later bytes are discarded.
    assert_eq!(bench.feed(conn, &[0; 100]), 100);
    assert_eq!(bench.receive(conn), []);
    (fes, fei)
}

fn fresh() -> Bench {
    let mut bench = Bench::new(config());
    bench.target.open(ConnId(0), 0, bench.now).unwrap();
    bench.wires.insert(0, Wire::default());
    bench
}

#[test]
fn handshake_in_every_split_agrees_on_digests_and_alignment() {
    let mut request = Vec::new();
    IcReq {
        hpda: 3,
        header_digest: true,
        data_digest: true,
        ..plain()
    }
    .emit(&mut request);
    for cut in 0..=request.len() {
        let mut bench = fresh();
        bench.feed(0, &request[..cut]);
        bench.feed(0, &request[cut..]);
        let want = IcResp {
            pfv: 0,
            cpda: 0,
            header_digest: true,
            data_digest: true,
            maxh2cdata: 8192,
        };
        assert_eq!(bench.receive(0), [Got::IcResp(want)], "cut at {cut}");
    }
}

#[test]
fn t24_bad_version_type_and_length_before_the_handshake() {
    let mut good = Vec::new();
    plain().emit(&mut good);
    let cases: &[(usize, u8, (Fes, u32))] = &[
        (0, 0x0a, (Fes::InvalidHeaderField, 0)),
        (0, 0x01, (Fes::Sequence, 0)),
        (0, 0x04, (Fes::InvalidHeaderField, 2)),
        (2, 72, (Fes::InvalidHeaderField, 2)),
        (4, 127, (Fes::InvalidHeaderField, 4)),
        (7, 1, (Fes::InvalidHeaderField, 4)),
        (8, 1, (Fes::UnsupportedParameter, 8)),
        (10, 32, (Fes::InvalidHeaderField, 10)),
    ];
    for &(at, value, (fes, fei)) in cases {
        for whole in [true, false] {
            let mut bytes = good.clone();
            bytes[at] = value;
            let mut bench = fresh();
            if whole {
                bench.feed(0, &bytes);
            } else {
                bytes.iter().for_each(|byte| {
                    bench.feed(0, &[*byte]);
                });
            }
            let got = bench.wires[&0].bytes.clone();
            assert_eq!(
                term(&mut bench, 0),
                (fes as u16, fei),
                "byte {at} = {value}"
            );
            // The refused header follows, as far as it had arrived.
            assert!(got.len() > 24 && bytes.starts_with(&got[24..]));
        }
    }
}

#[test]
fn t24_capsule_before_icreq_and_second_icreq_are_sequence_errors() {
    let mut bench = fresh();
    let bytes = bench.capsule(0, &SqeBuilder::new(0), &[]);
    bench.feed(0, &bytes);
    assert_eq!(term(&mut bench, 0), (Fes::Sequence as u16, 0));

    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    let mut bytes = Vec::new();
    plain().emit(&mut bytes);
    bench.feed(0, &bytes);
    assert_eq!(term(&mut bench, 0), (Fes::Sequence as u16, 0));
}

#[test]
fn t24_header_digest_error_ends_the_connection_with_the_digest_received() {
    let request = IcReq {
        header_digest: true,
        ..plain()
    };
    let mut bench = Bench::ready(
        config(),
        &Options {
            request,
            ..Options::default()
        },
    );
    let mut bytes = bench.capsule(1, &SqeBuilder::new(0).nsid(1), &[]);
    bytes[20] ^= 1;
    let digest = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
    bench.feed(1, &bytes);
    assert_eq!(term(&mut bench, 1), (Fes::HeaderDigest as u16, digest));
    assert!(bench.executed.is_empty());
    assert_eq!(bench.closed.last(), Some(&(1, CloseReason::Damaged)));
}

#[test]
fn t24_digest_flags_must_match_what_was_agreed() {
    let request = IcReq {
        header_digest: true,
        data_digest: true,
        ..plain()
    };
    for clear in [flags::HDGST, flags::DDGST] {
        let mut bench = Bench::ready(
            config(),
            &Options {
                request,
                ..Options::default()
            },
        );
        let write = io::write(
            1,
            0,
            8,
            Sgl::InCapsule {
                offset: 0,
                len: 4096,
            },
        );
        let mut bytes = bench.capsule(1, &write, &[0; 4096]);
        bytes[1] &= !clear;
        bench.feed(1, &bytes);
        assert_eq!(term(&mut bench, 1), (Fes::InvalidHeaderField as u16, 1));
    }
    let mut bench = Bench::ready(config(), &Options::default());
    let mut bytes = bench.capsule(1, &SqeBuilder::new(0).nsid(1), &[]);
    bytes[1] |= flags::HDGST;
    bench.feed(1, &bytes);
    assert_eq!(term(&mut bench, 1), (Fes::InvalidHeaderField as u16, 1));
}

#[test]
fn t23_capsules_hold_up_to_their_limit_and_no_more() {
    // I/O queue: 4096 bytes as configured.
    let mut bench = Bench::ready(config(), &Options::default());
    let write = io::write(
        1,
        0,
        8,
        Sgl::InCapsule {
            offset: 0,
            len: 4096,
        },
    );
    let got = bench.send(1, write, &pattern(1, 4096));
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()));
    let bytes = bench.capsule(1, &write, &[0; 4100]);
    bench.feed(1, &bytes);
    assert_eq!(term(&mut bench, 1), (Fes::InvalidHeaderField as u16, 4));

    // Admin queue: 8 KiB, whatever the I/O queues have. The command itself is refused without
    // ending the connection.
    let mut bench = Bench::ready(config(), &Options::default());
    let got = bench.send(0, SqeBuilder::new(0x81), &[0; 8192]);
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status.is(Status::INVALID_OPCODE)));
    let bytes = bench.capsule(0, &SqeBuilder::new(0x81), &[0; 8196]);
    bench.feed(0, &bytes);
    assert_eq!(term(&mut bench, 0), (Fes::InvalidHeaderField as u16, 4));
}

#[test]
fn capsules_in_every_split_with_digests_and_padding() {
    let request = IcReq {
        hpda: 7,
        header_digest: true,
        data_digest: true,
        ..plain()
    };
    for (alignment, step) in [(4, 1), (64, 3), (128, 5)] {
        let mut bench = Bench::new(config());
        bench.target.set_data_alignment(alignment).unwrap();
        let cntlid = bench.admin(0, 0);
        bench.io(
            1,
            0,
            cntlid,
            1,
            &Options {
                request,
                ..Options::default()
            },
        );
        let data = pattern(5, 512);
        let cid = bench.cid(1);
        let write = io::write(
            1,
            3,
            1,
            Sgl::InCapsule {
                offset: 0,
                len: 512,
            },
        )
        .cid(cid);
        let bytes = bench.capsule(1, &write, &data);
        for piece in bytes.chunks(step) {
            assert_eq!(bench.feed(1, piece), piece.len());
        }
        let got = bench.receive(1);
        assert!(
            matches!(got[..], [Got::Response(cqe)] if cqe.cid == cid),
            "{got:?}"
        );
        assert_eq!(bench.disks[&1][3 * 512..4 * 512], data);
    }
}

#[test]
fn a_term_req_of_the_host_ends_the_connection_without_an_answer() {
    let mut bench = Bench::ready(config(), &Options::default());
    let mut bytes = Vec::new();
    TermReq::emit(
        crate::wire::pdu::PduError::RANGE,
        true,
        &[1; 24],
        &mut bytes,
    );
    bench.feed(1, &bytes);
    assert_eq!(bench.receive(1), []);
    assert_eq!(bench.closed, [(1, CloseReason::Terminated)]);
    // The admin queue lives on.
    assert!(bench.csts(0).rdy());
}
