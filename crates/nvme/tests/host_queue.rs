//! The I/O queue against a scripted controller: the rules of the traps, one test each.
mod host_peer;

use host_peer::{CNTLID, Peer, Sent, config, identity, parse_sent, pattern};
use nvme::host::{Command, Digests, HostError, IoQueueConfig, QueueEvent, Step, SubmitError};
use nvme::wire::cqe::SQHD_NONE;
use nvme::wire::fabrics::{CATTR_DISABLE_SQ_FLOW, Connect, ConnectData, connect_status};
use nvme::wire::pdu::{Fes, Framing, IcResp, PduError, PduType, TermReq, flags};
use nvme::wire::sqe::Sgl;
use nvme::wire::{Cqe, Status};

const BOTH: Digests = Digests {
    header: true,
    data: true,
};

/// The TermReq that the host sends, after the queue failed with `error`.
fn refused(peer: &mut Peer, error: PduError) {
    let sent = peer.sent();
    assert_eq!(sent.len(), 1, "a TermReq and nothing else");
    assert_eq!(sent[0].kind, PduType::H2cTermReq);
    let term = TermReq::parse(&sent[0].header).unwrap();
    assert_eq!((term.fes, term.fei), (error.fes as u16, error.fei));
    assert!(!sent[0].data.is_empty() && sent[0].data.len() <= 128);
    assert_eq!(
        peer.events().last(),
        Some(&QueueEvent::Failed(HostError::Protocol(error)))
    );
    assert_eq!(
        peer.queue.submit(&Command::flush(1, 0), 0),
        Err(SubmitError::NotReady)
    );
}

fn read(token: u32, blocks: u32) -> Command {
    Command::read(1, 64, blocks, 9, false, token)
}

fn write(token: u32, bytes: u32) -> Command {
    Command::write(1, 64, bytes / 512, 9, false, token)
}

#[test]
fn connect_carries_who_we_are() {
    let mut peer = Peer::new(config());
    let icreq = peer.sent().remove(0);
    assert_eq!((icreq.kind, icreq.header.len()), (PduType::IcReq, 128));
    assert_eq!(peer.queue.poll_timeout(), Some(1_000));
    peer.now_ns = 400;
    peer.handshake(Digests::default(), 0, 4096);
    assert_eq!(peer.queue.poll_timeout(), Some(1_400));
    let sent = peer.sent().remove(0);
    let connect = Connect::parse(&sent.sqe());
    assert_eq!((connect.qid, connect.sqsize, connect.kato_ms), (1, 7, 0));
    assert_eq!(connect.cattr, CATTR_DISABLE_SQ_FLOW);
    assert_eq!(
        sent.sqe().sgl(),
        Sgl::InCapsule {
            offset: 0,
            len: 1024
        }
    );
    let data = ConnectData::parse(&sent.data).unwrap();
    assert_eq!((data.hostid, data.cntlid), (identity().id, CNTLID));
    assert_eq!(data.subnqn, b"nqn.2026-01.org.example:v0");
    assert_eq!(data.hostnqn, identity().nqn.as_bytes());
    assert_eq!(peer.try_submit(read(0, 8)), Err(SubmitError::NotReady));
    peer.respond(Cqe {
        cid: sent.sqe().cid(),
        sqhd: 1,
        result: CNTLID.into(),
        ..Cqe::default()
    });
    assert_eq!(peer.events(), [QueueEvent::Ready]);
    assert_eq!(peer.queue.poll_timeout(), None);
    assert_eq!((peer.queue.capacity(), peer.queue.in_flight()), (7, 0));
}

#[test]
fn a_rejected_connect_fails_with_its_status() {
    let status = connect_status::INVALID_HOST.with_dnr();
    let cases = [
        (
            Cqe {
                status,
                ..Cqe::default()
            },
            HostError::Connect { status, result: 0 },
        ),
        (
            Cqe {
                result: 9,
                ..Cqe::default()
            },
            HostError::ControllerId {
                want: CNTLID,
                got: 9,
            },
        ),
        (
            Cqe {
                result: 1 << 17 | 7,
                ..Cqe::default()
            },
            HostError::Authentication,
        ),
    ];
    for (cqe, error) in cases {
        let mut peer = Peer::new(config());
        peer.sent();
        peer.handshake(Digests::default(), 0, 4096);
        let cid = peer.sent()[0].sqe().cid();
        peer.respond(Cqe { cid, ..cqe });
        assert_eq!(peer.events(), [QueueEvent::Failed(error)]);
        assert!(peer.sent().is_empty());
    }
}

#[test]
fn each_step_of_connecting_has_its_deadline() {
    let mut peer = Peer::new(config());
    peer.queue.handle_timeout(999);
    assert_eq!(peer.events(), []);
    peer.queue.handle_timeout(1_000);
    assert_eq!(
        peer.events(),
        [QueueEvent::Failed(HostError::TimedOut(Step::Handshake))]
    );

    let mut peer = Peer::new(config());
    peer.handshake(Digests::default(), 0, 4096);
    peer.queue.handle_timeout(1_000);
    assert_eq!(
        peer.events(),
        [QueueEvent::Failed(HostError::TimedOut(Step::Connect))]
    );
    assert_eq!(peer.queue.poll_timeout(), None);
}

#[test]
fn t25_icresp_with_another_version_or_digests_is_refused() {
    let good = IcResp {
        pfv: 0,
        cpda: 0,
        header_digest: false,
        data_digest: false,
        maxh2cdata: 4096,
    };
    let got = |header, data| HostError::Digests {
        asked: Digests::default(),
        got: Digests { header, data },
    };
    let cases = [
        (IcResp { pfv: 1, ..good }, HostError::PduVersion(1), 6, 8),
        (
            IcResp {
                header_digest: true,
                ..good
            },
            got(true, false),
            6,
            11,
        ),
        (
            IcResp {
                data_digest: true,
                ..good
            },
            got(false, true),
            6,
            11,
        ),
        (
            IcResp {
                maxh2cdata: 4094,
                ..good
            },
            HostError::Protocol(PduError::field(12)),
            1,
            12,
        ),
        (
            IcResp { cpda: 32, ..good },
            HostError::Protocol(PduError::field(10)),
            1,
            10,
        ),
    ];
    for (response, error, fes, fei) in cases {
        let mut peer = Peer::new(config());
        peer.sent();
        let mut out = Vec::new();
        response.emit(&mut out);
        peer.give(&out);
        assert_eq!(peer.events(), [QueueEvent::Failed(error)]);
        let sent = peer.sent();
        let term = TermReq::parse(&sent[0].header).unwrap();
        assert_eq!((term.fes, term.fei, sent[0].data.len()), (fes, fei, 128));
    }
    // Asked for, not echoed: refused as well.
    let mut peer = Peer::new(IoQueueConfig {
        digests: BOTH,
        ..config()
    });
    peer.handshake(Digests::default(), 0, 4096);
    let error = HostError::Digests {
        asked: BOTH,
        got: Digests::default(),
    };
    assert_eq!(peer.events(), [QueueEvent::Failed(error)]);
}

#[test]
fn t25_nothing_but_icresp_may_come_first() {
    let mut peer = Peer::new(config());
    peer.sent();
    peer.succeed(0);
    refused(&mut peer, PduError::SEQUENCE);
    // And it comes once.
    let mut peer = Peer::ready(config());
    peer.handshake(Digests::default(), 0, 4096);
    refused(&mut peer, PduError::SEQUENCE);
}

#[test]
fn a_read_arrives_in_its_buffer_however_it_is_cut() {
    for digests in [
        Digests::default(),
        BOTH,
        Digests {
            header: true,
            data: false,
        },
    ] {
        for piece in [1, 2, 3, 7, 25, 4096, usize::MAX] {
            let mut peer = Peer::ready(IoQueueConfig {
                digests,
                ..config()
            });
            peer.piece = piece;
            let cid = peer.submit(read(3, 8)).sqe().cid();
            let data: Vec<u8> = (0..4096).map(|i| i as u8 ^ (i >> 8) as u8).collect();
            let mut stream = peer.c2h(cid, 0, &data[..1024], 0);
            stream.extend(peer.c2h(cid, 1024, &data[1024..], flags::LAST));
            peer.give(&stream);
            assert_eq!(peer.queue.poll_event(), None);
            peer.succeed(cid);
            assert_eq!(peer.outcome(), (3, Status::SUCCESS));
            assert_eq!(peer.buffers[&3], data);
            assert_eq!(peer.queue.in_flight(), 0);
        }
    }
}

#[test]
fn data_behind_padding_is_found() {
    // A controller may align its data more than we asked for.
    for pad in [1u8, 4, 101] {
        let mut peer = Peer::ready(config());
        peer.piece = 5;
        let cid = peer.submit(read(3, 1)).sqe().cid();
        let mut pdu = peer.c2h(cid, 0, &[7; 512], flags::LAST);
        pdu.splice(24..24, std::iter::repeat_n(0xaa, pad.into()));
        pdu[3] += pad;
        pdu[4..8].copy_from_slice(&(536 + u32::from(pad)).to_le_bytes());
        peer.give(&pdu);
        if pad % 4 != 0 {
            refused(&mut peer, PduError::field(3));
            continue;
        }
        peer.succeed(cid);
        assert_eq!(peer.outcome(), (3, Status::SUCCESS));
        assert_eq!(peer.buffers[&3], [7; 512]);
    }
}

#[test]
fn t11_the_identifier_of_an_ended_command_is_refused() {
    let mut peer = Peer::ready(config());
    let cid = peer.submit(Command::flush(1, 0)).sqe().cid();
    peer.succeed(cid);
    peer.completed();
    let next = peer.submit(Command::flush(1, 1)).sqe().cid();
    assert_ne!(next, cid);
    peer.succeed(cid);
    refused(&mut peer, PduError::field(20));
}

#[test]
fn t11_a_command_whose_capsule_was_not_sent_cannot_end() {
    let mut peer = Peer::ready(config());
    let cid = peer.submit(Command::flush(1, 0)).sqe().cid();
    for token in 1..7 {
        peer.try_submit(Command::flush(1, token)).unwrap();
    }
    let unsent = (0..8).find(|&slot| slot != cid & 7).unwrap() | (cid & !7);
    peer.succeed(unsent);
    assert!(matches!(
        peer.events().last(),
        Some(QueueEvent::Failed(HostError::Protocol(_)))
    ));
}

#[test]
fn t16_a_short_read_is_an_error() {
    for sent in [0, 512, 3584] {
        let mut peer = Peer::ready(config());
        let cid = peer.submit(read(3, 8)).sqe().cid();
        if sent > 0 {
            let pdu = peer.c2h(cid, 0, &vec![1; sent], flags::LAST);
            peer.give(&pdu);
        }
        peer.succeed(cid);
        assert_eq!(peer.outcome(), (3, Status::DATA_TRANSFER_ERROR));
    }
    // The controller's own error isn't hidden by it.
    let mut peer = Peer::ready(config());
    let cid = peer.submit(read(3, 8)).sqe().cid();
    peer.respond(Cqe {
        cid,
        status: Status::UNRECOVERED_READ.with_dnr(),
        ..Cqe::default()
    });
    assert_eq!(peer.outcome(), (3, Status::UNRECOVERED_READ.with_dnr()));
    // Nor does the SUCCESS flag make it one.
    let mut peer = Peer::ready(config());
    let cid = peer.submit(read(3, 8)).sqe().cid();
    let pdu = peer.c2h(cid, 0, &[1; 512], flags::LAST | flags::SUCCESS);
    peer.give(&pdu);
    assert_eq!(peer.outcome(), (3, Status::DATA_TRANSFER_ERROR));
}

#[test]
fn t16_a_write_that_was_not_asked_for_all_its_data_is_an_error() {
    let mut peer = Peer::ready(config());
    let cid = peer.submit(write(3, 8192)).sqe().cid();
    peer.r2t(cid, 1, 0, 4096);
    assert_eq!(peer.sent().len(), 1);
    peer.succeed(cid);
    assert_eq!(peer.outcome(), (3, Status::DATA_TRANSFER_ERROR));
}

#[test]
fn t17_a_data_digest_error_is_sticky() {
    for success_flag in [false, true] {
        let mut peer = Peer::ready(IoQueueConfig {
            digests: BOTH,
            ..config()
        });
        let cid = peer.submit(read(3, 2)).sqe().cid();
        let mut bad = peer.c2h(cid, 0, &[1; 512], 0);
        *bad.last_mut().unwrap() ^= 1;
        peer.give(&bad);
        assert_eq!(peer.queue.poll_event(), None);
        let end = flags::LAST | if success_flag { flags::SUCCESS } else { 0 };
        let good = peer.c2h(cid, 512, &[1; 512], end);
        peer.give(&good);
        if !success_flag {
            peer.succeed(cid);
        }
        let status = peer.completed().status;
        assert_eq!(status, Status::TRANSIENT_TRANSPORT);
        assert!(!status.dnr(), "retryable");
        // The connection lives on.
        let cid = peer.submit(Command::flush(1, 4)).sqe().cid();
        peer.succeed(cid);
        assert_eq!(peer.outcome(), (4, Status::SUCCESS));
    }
}

#[test]
fn t17_a_header_digest_error_ends_the_connection() {
    let mut peer = Peer::ready(IoQueueConfig {
        digests: BOTH,
        ..config()
    });
    let cid = peer.submit(read(3, 2)).sqe().cid();
    let mut pdu = peer.c2h(cid, 0, &[1; 1024], flags::LAST);
    pdu[20] ^= 1; // a reserved byte: only the digest can tell
    let digest = u32::from_le_bytes(pdu[24..28].try_into().unwrap());
    peer.give(&pdu);
    refused(
        &mut peer,
        PduError {
            fes: Fes::HeaderDigest,
            fei: digest,
        },
    );
}

#[test]
fn t18_success_flag_ends_the_command_after_its_digest() {
    let mut peer = Peer::ready(IoQueueConfig {
        digests: BOTH,
        ..config()
    });
    let cid = peer.submit(read(3, 1)).sqe().cid();
    let pdu = peer.c2h(cid, 0, &[9; 512], flags::LAST | flags::SUCCESS);
    let (most, end) = pdu.split_at(pdu.len() - 1);
    peer.give(most);
    assert_eq!(peer.queue.poll_event(), None, "the digest isn't whole");
    peer.give(end);
    assert_eq!(peer.outcome(), (3, Status::SUCCESS));
    assert_eq!(peer.queue.in_flight(), 0);
    // A response that follows all the same names a command that has ended.
    peer.succeed(cid);
    refused(&mut peer, PduError::field(20));
}

#[test]
fn t18_success_flag_is_illegal_without_last_or_with_flow_control() {
    let mut peer = Peer::ready(config());
    let cid = peer.submit(read(3, 2)).sqe().cid();
    let pdu = peer.c2h(cid, 0, &[9; 512], flags::SUCCESS);
    peer.give(&pdu);
    refused(&mut peer, PduError::field(1));

    let mut peer = Peer::ready(IoQueueConfig {
        disable_sq_flow_control: false,
        ..config()
    });
    let cid = peer.submit(read(3, 1)).sqe().cid();
    let pdu = peer.c2h(cid, 0, &[9; 512], flags::SUCCESS | flags::LAST);
    peer.give(&pdu);
    refused(&mut peer, PduError::field(1));
}

#[test]
fn t19_r2t_that_breaks_a_rule_is_refused() {
    // (offset, length, error), for a write of 16384 bytes of which 4096 were asked for and sent.
    let cases = [
        (4096, 0, PduError::field(16)),
        (0, 4096, PduError::field(12)),
        (8192, 4096, PduError::field(12)),
        (4096, 12289, PduError::RANGE),
        (4096, u32::MAX, PduError::RANGE),
        (u32::MAX, 2, PduError::RANGE),
        (0xffff_f000, 0x2000, PduError::RANGE),
    ];
    for (offset, length, error) in cases {
        let mut peer = Peer::ready(config());
        let cid = peer.submit(write(3, 16384)).sqe().cid();
        peer.r2t(cid, 1, 0, 4096);
        assert_eq!(peer.sent().len(), 1);
        peer.r2t(cid, 1, offset, length);
        refused(&mut peer, error);
    }
    // Not a write; unknown; a write whose data went in the capsule.
    for (command, flip, error) in [
        (read(3, 8), 0, PduError::field(8)),
        (Command::flush(1, 3), 0, PduError::field(8)),
        (write(3, 8192), 8, PduError::field(8)),
        (write(3, 4096), 0, PduError::field(12)),
    ] {
        let mut peer = Peer::ready(config());
        let cid = peer.submit(command).sqe().cid();
        peer.r2t(cid ^ flip, 1, 0, 512);
        refused(&mut peer, error);
    }
}

#[test]
fn t19_more_r2ts_than_agreed_are_refused() {
    let mut peer = Peer::ready_with(config(), 0, 4096);
    let cid = peer.submit(write(3, 16384)).sqe().cid();
    peer.r2t(cid, 1, 0, 8192);
    peer.r2t(cid, 2, 8192, 8192); // MAXR2T was 0: one at a time
    refused(&mut peer, PduError::LIMIT);
}

#[test]
fn t20_h2cdata_is_sliced_tagged_and_padded() {
    for (cpda, digests) in [(0, Digests::default()), (31, BOTH), (1, BOTH)] {
        let mut peer = Peer::ready_with(
            IoQueueConfig {
                digests,
                ..config()
            },
            cpda,
            4096,
        );
        let capsule = peer.submit(write(3, 16384));
        let cid = capsule.sqe().cid();
        assert_eq!(capsule.sqe().sgl(), Sgl::Transport { len: 16384 });
        assert!(capsule.data.is_empty());
        for (ttag, offset, length) in [(0xabcd, 0, 10_000), (0x1234, 10_000, 6_384)] {
            peer.r2t(cid, ttag, offset, length);
            let sent = peer.sent();
            let mut at = offset;
            for (i, pdu) in sent.iter().enumerate() {
                let header = pdu.data_header();
                assert_eq!(
                    (pdu.kind, header.cccid, header.ttag),
                    (PduType::H2cData, cid, ttag)
                );
                assert_eq!(
                    (header.offset, header.length as usize),
                    (at, pdu.data.len())
                );
                assert!(header.length <= 4096);
                assert_eq!(u32::from(pdu.pdo) % ((u32::from(cpda) + 1) * 4), 0);
                assert_eq!(pdu.flags & flags::LAST != 0, i + 1 == sent.len());
                let expected: Vec<u8> = (at..at + header.length).map(|x| pattern(3, x)).collect();
                assert_eq!(pdu.data, expected);
                at += header.length;
            }
            assert_eq!(at, offset + length);
        }
        peer.succeed(cid);
        assert_eq!(peer.outcome(), (3, Status::SUCCESS));
    }
}

#[test]
fn large_writes_take_turns_and_let_small_commands_through() {
    let mut peer = Peer::ready_with(config(), 0, 4096);
    let a = peer.submit(write(1, 8192)).sqe().cid();
    let b = peer.submit(write(2, 8192)).sqe().cid();
    peer.r2t(a, 0, 0, 8192);
    peer.r2t(b, 0, 0, 8192);
    peer.try_submit(Command::flush(1, 3)).unwrap();
    let order: Vec<_> = peer
        .sent()
        .iter()
        .map(|pdu| (pdu.kind, pdu.data.len()))
        .collect();
    let data = (PduType::H2cData, 4096);
    assert_eq!(order, [data, data, (PduType::CapsuleCmd, 0), data, data]);
}

#[test]
fn an_answer_that_comes_early_ends_the_transfer() {
    let mut peer = Peer::ready_with(config(), 0, 4096);
    peer.sends_complete = false;
    let cid = peer.submit(write(1, 8192)).sqe().cid();
    peer.r2t(cid, 5, 0, 8192);
    let mut out = Vec::new();
    let lent = peer
        .queue
        .poll_transmit(&mut out, 0)
        .unwrap()
        .payload
        .unwrap();
    assert_eq!((lent.token, lent.offset, lent.len), (1, 0, 4096));
    peer.respond(Cqe {
        cid,
        status: Status::WRITE_FAULT,
        ..Cqe::default()
    });
    assert!(peer.sent().is_empty(), "the rest isn't sent");
    assert_eq!(peer.queue.poll_event(), None, "its buffer is still read");
    peer.queue.handle_sent(1);
    assert_eq!(peer.outcome(), (1, Status::WRITE_FAULT));
}

#[test]
fn t21_c2hdata_that_breaks_a_rule_is_refused() {
    let last = flags::LAST;
    // (command, identifier flipped, offset, length, flags, error) after 512 bytes of a 1024-byte read
    let cases: [(u16, u32, usize, u8, PduError); 6] = [
        (8, 512, 512, last, PduError::field(8)),
        (0, 0, 512, last, PduError::field(12)),
        (0, 1024, 512, last, PduError::RANGE),
        (0, 512, 1024, last, PduError::RANGE),
        (0, u32::MAX, 512, last, PduError::RANGE),
        (0, 516, 4, last, PduError::field(12)),
    ];
    for (flip, offset, length, flag, error) in cases {
        let mut peer = Peer::ready(config());
        let cid = peer.submit(read(3, 2)).sqe().cid();
        let mut stream = peer.c2h(cid, 0, &[1; 512], 0);
        stream.extend(peer.c2h(cid ^ flip, offset, &vec![2; length], flag));
        peer.give(&stream);
        refused(&mut peer, error);
    }
}

#[test]
fn t21_c2hdata_for_a_write_or_after_the_last_is_refused() {
    let mut peer = Peer::ready(config());
    let cid = peer.submit(write(3, 4096)).sqe().cid();
    let pdu = peer.c2h(cid, 0, &[1; 512], 0);
    peer.give(&pdu);
    refused(&mut peer, PduError::field(8));

    let mut peer = Peer::ready(config());
    let cid = peer.submit(read(3, 8)).sqe().cid();
    let mut stream = peer.c2h(cid, 0, &[1; 512], flags::LAST);
    stream.extend(peer.c2h(cid, 512, &[1; 512], flags::LAST));
    peer.give(&stream);
    refused(&mut peer, PduError::SEQUENCE);

    // DATAL and PLEN must agree.
    let mut peer = Peer::ready(config());
    let cid = peer.submit(read(3, 8)).sqe().cid();
    let mut pdu = peer.c2h(cid, 0, &[1; 512], 0);
    pdu[16] = 8;
    peer.give(&pdu);
    refused(&mut peer, PduError::field(16));
}

#[test]
fn t23_data_goes_in_the_capsule_when_it_fits() {
    let mut peer = Peer::ready(config());
    let fits = peer.submit(write(1, 4096));
    assert_eq!(
        fits.sqe().sgl(),
        Sgl::InCapsule {
            offset: 0,
            len: 4096
        }
    );
    assert_eq!((fits.data.len(), fits.data[5]), (4096, pattern(1, 5)));
    let large = peer.submit(write(2, 4608));
    assert_eq!(large.sqe().sgl(), Sgl::Transport { len: 4608 });
    assert!(large.data.is_empty());
    let mut peer = Peer::ready(IoQueueConfig {
        in_capsule_max: 0,
        ..config()
    });
    assert!(peer.submit(write(1, 512)).data.is_empty());
}

#[test]
fn t23_a_write_completes_when_sent_and_answered_in_either_order() {
    for sent_first in [true, false] {
        let mut peer = Peer::ready(config());
        peer.sends_complete = false;
        let cid = peer.submit(write(1, 4096)).sqe().cid();
        assert_eq!(peer.unsent.len(), 1);
        if sent_first {
            peer.queue.handle_sent(1);
            assert_eq!(peer.queue.poll_event(), None);
            peer.succeed(cid);
        } else {
            peer.succeed(cid);
            assert_eq!(peer.queue.poll_event(), None);
            assert_eq!(peer.queue.in_flight(), 1);
            peer.queue.handle_sent(1);
        }
        assert_eq!(peer.outcome(), (1, Status::SUCCESS));
    }
}

#[test]
fn t24_unknown_types_lengths_and_directions_are_refused() {
    let header = |kind, flag, hlen, pdo, plen: u32| {
        let mut pdu = vec![kind, flag, hlen, pdo];
        pdu.extend(plen.to_le_bytes());
        pdu.resize(64, 0);
        pdu
    };
    let cases = [
        (header(0x08, 0, 24, 0, 24), PduError::field(0)),
        (header(0x20, 0, 24, 0, 24), PduError::field(0)),
        (header(0x04, 0, 72, 0, 72), PduError::SEQUENCE),
        (header(0x05, 0, 20, 0, 24), PduError::field(2)),
        (header(0x05, 0, 24, 0, 23), PduError::field(4)),
        (header(0x05, 1, 24, 0, 28), PduError::field(1)),
        (header(0x07, 0, 24, 23, 1024), PduError::field(3)),
        (header(0x03, 0, 24, 0, 153), PduError::field(4)),
        (header(0x03, 0, 24, 0, u32::MAX), PduError::field(4)),
    ];
    for (bytes, error) in cases {
        for piece in [1, usize::MAX] {
            let mut peer = Peer::ready(config());
            peer.piece = piece;
            peer.give(&bytes);
            refused(&mut peer, error);
        }
    }
}

#[test]
fn t24_a_termreq_from_the_controller_ends_the_connection() {
    let mut peer = Peer::ready(config());
    peer.submit(read(3, 8));
    let mut out = Vec::new();
    TermReq::emit(PduError::field(2), false, &[0x55; 72], &mut out);
    peer.piece = 9;
    peer.give(&out);
    peer.give(&[0xff; 1000]); // whatever comes is ignored
    assert_eq!(peer.outcome(), (3, Status::HOST_PATH));
    let error = HostError::Terminated { fes: 1, fei: 2 };
    assert_eq!(peer.events(), [QueueEvent::Failed(error)]);
    assert!(peer.sent().is_empty(), "no answer to a TermReq");
}

#[test]
fn a_closed_connection_ends_every_command_once_then_the_queue() {
    let mut peer = Peer::ready(config());
    peer.sends_complete = false;
    let cid = peer.submit(read(1, 8)).sqe().cid();
    peer.submit(write(2, 4096));
    peer.try_submit(Command::flush(1, 3)).unwrap();
    let half = peer.c2h(cid, 0, &[1; 512], 0);
    peer.give(&half[..100]);
    peer.queue.handle_closed(0);
    assert_eq!(peer.queue.placement(), None);
    let mut events = peer.events();
    assert_eq!(events.pop(), Some(QueueEvent::Failed(HostError::Closed)));
    let mut tokens: Vec<u32> = events
        .into_iter()
        .map(|event| match event {
            QueueEvent::Completed(end) if end.status == Status::HOST_PATH => end.token,
            other => panic!("{other:?}"),
        })
        .collect();
    tokens.sort();
    assert_eq!(tokens, [1, 2, 3]);
    assert!(peer.sent().is_empty());
    peer.queue.handle_closed(0);
    assert_eq!(peer.events(), []);
}

#[test]
fn t06_a_full_queue_refuses_until_a_completion_was_polled() {
    let mut peer = Peer::ready(config());
    let mut cids = Vec::new();
    for token in 0..7 {
        cids.push(peer.submit(Command::flush(1, token)).sqe().cid());
    }
    assert_eq!(
        peer.try_submit(Command::flush(1, 7)),
        Err(SubmitError::Full)
    );
    peer.succeed(cids[3]);
    assert_eq!(
        peer.try_submit(Command::flush(1, 7)),
        Err(SubmitError::Full)
    );
    assert_eq!(peer.completed().token, 3);
    assert_eq!(peer.try_submit(Command::flush(1, 7)), Ok(()));
}

#[test]
fn sq_flow_control_waits_for_sqhd() {
    let mut peer = Peer::ready(IoQueueConfig {
        disable_sq_flow_control: false,
        ..config()
    });
    let mut cids = Vec::new();
    for token in 0..7 {
        cids.push(peer.submit(Command::flush(1, token)).sqe().cid());
    }
    // Answered, but the entry isn't free: the head stands where it stood (1, after Connect).
    peer.respond(Cqe {
        cid: cids[0],
        sqhd: 1,
        ..Cqe::default()
    });
    peer.completed();
    assert_eq!(
        peer.try_submit(Command::flush(1, 9)),
        Err(SubmitError::Full)
    );
    peer.respond(Cqe {
        cid: cids[1],
        sqhd: 3,
        ..Cqe::default()
    });
    peer.completed();
    for token in 10..12 {
        cids.push(peer.submit(Command::flush(1, token)).sqe().cid());
    }
    assert_eq!(
        peer.try_submit(Command::flush(1, 12)),
        Err(SubmitError::Full)
    );
    // A head that goes back is ignored; with nothing in flight all entries are free.
    for cid in cids.drain(2..) {
        peer.respond(Cqe {
            cid,
            sqhd: 2,
            ..Cqe::default()
        });
        peer.completed();
    }
    assert_eq!(peer.queue.in_flight(), 0);
    let cid = peer.submit(Command::flush(1, 20)).sqe().cid();
    // A head outside the ring can't be.
    peer.respond(Cqe {
        cid,
        sqhd: 8,
        ..Cqe::default()
    });
    refused(&mut peer, PduError::field(16));
}

#[test]
fn flow_control_stays_on_where_the_controller_does_not_agree() {
    let mut peer = Peer::new(config());
    peer.handshake(Digests::default(), 0, 4096);
    let connect = peer.sent().pop().unwrap();
    let cid = connect.sqe().cid();
    peer.respond(Cqe {
        cid,
        sqhd: 1,
        result: CNTLID.into(),
        ..Cqe::default()
    });
    assert_eq!(peer.events(), [QueueEvent::Ready]);
    let cid = peer.submit(Command::flush(1, 0)).sqe().cid();
    peer.respond(Cqe {
        cid,
        sqhd: SQHD_NONE,
        ..Cqe::default()
    });
    refused(&mut peer, PduError::field(16));
}

#[test]
fn deallocate_sends_its_range_itself() {
    for in_capsule_max in [4096, 0] {
        let mut peer = Peer::ready(IoQueueConfig {
            digests: BOTH,
            in_capsule_max,
            ..config()
        });
        let mut capsule = peer.submit(Command::deallocate(5, 0x1_0000_0007, 100, 3));
        let (sqe, cid) = (capsule.sqe(), capsule.sqe().cid());
        assert_eq!(
            (sqe.opcode(), sqe.nsid(), sqe.cdw(10), sqe.cdw(11)),
            (9, 5, 0, 4)
        );
        assert!((12..=15).all(|n| sqe.cdw(n) == 0));
        if in_capsule_max == 0 {
            assert_eq!(sqe.sgl(), Sgl::Transport { len: 16 });
            peer.r2t(cid, 9, 0, 16);
            capsule = peer.sent().remove(0);
        }
        assert_eq!(
            capsule.data,
            [0, 0, 0, 0, 100, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0]
        );
        peer.succeed(cid);
        assert_eq!(peer.outcome(), (3, Status::SUCCESS));
    }
}

#[test]
fn many_reads_leave_in_one_run() {
    let mut peer = Peer::ready(IoQueueConfig {
        entries: 256,
        ..config()
    });
    for token in 0..100 {
        peer.try_submit(read(token, 8)).unwrap();
    }
    let mut out = Vec::new();
    let mut calls = 0;
    while let Some(transmit) = peer.queue.poll_transmit(&mut out, 0) {
        assert_eq!(transmit.payload, None);
        calls += 1;
    }
    assert_eq!(calls, 2);
    let sent: Vec<Sent> = parse_sent(&out, &Framing::PLAIN);
    let lbas: Vec<u64> = sent.iter().map(|pdu| pdu.sqe().slba()).collect();
    assert_eq!(lbas, [64; 100]);
}
