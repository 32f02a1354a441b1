//! The life of an I/O queue against a scripted controller: handshake, Connect, identifiers, flow
//! control, end.
use crate::host_peer::{CNTLID, Peer, Sent, config, identity, parse_sent, read, refused, write};
use nvme::host::{Command, Digests, HostError, IoQueueConfig, QueueEvent, Step, SubmitError};
use nvme::wire::cqe::SQHD_NONE;
use nvme::wire::fabrics::{CATTR_DISABLE_SQ_FLOW, Connect, ConnectData, connect_status};
use nvme::wire::pdu::{Framing, IcResp, PduError, PduType, TermReq};
use nvme::wire::sqe::Sgl;
use nvme::wire::{Cqe, Status};

const BOTH: Digests = Digests {
    header: true,
    data: true,
};

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
}

#[test]
fn t25_digests_that_were_asked_for_must_be_echoed() {
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
fn t08_t22_a_write_is_never_sent_again_but_reported_once() {
    let mut peer = Peer::ready_with(config(), 0, 4096);
    let cid = peer.submit(write(1, 16384)).sqe().cid();
    peer.r2t(cid, 0, 0, 16384);
    let mut out = Vec::new();
    // A quarter leaves, the rest is queued when the connection ends.
    let begun = peer.queue.poll_transmit(&mut out, 0).unwrap();
    peer.queue.handle_sent(begun.payload.unwrap().token);
    peer.queue.handle_closed(0);
    assert_eq!(peer.outcome(), (1, Status::HOST_PATH));
    assert_eq!(peer.events(), [QueueEvent::Failed(HostError::Closed)]);
    assert!(peer.sent().is_empty());
    // Not on a later connection either: that belongs to another queue.
    peer.queue.handle_connected(1);
    assert!(peer.sent().is_empty());
    assert_eq!(peer.try_submit(write(1, 512)), Err(SubmitError::NotReady));
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

/// The number of commands in flight does not tell whether there is room.
#[test]
fn t06_t11_a_slot_that_an_abort_keeps_is_no_room() {
    let mut peer = Peer::ready(config());
    let cids: Vec<u16> = (0..7)
        .map(|token| peer.submit(Command::flush(1, token)).sqe().cid())
        .collect();
    assert_eq!(peer.queue.abort(3), Some(cids[3]));
    peer.succeed(cids[3]);
    assert_eq!(peer.completed().token, 3);
    assert!(peer.queue.in_flight() < peer.queue.capacity());
    let flush = Command::flush(1, 7);
    assert_eq!(peer.try_submit(flush), Err(SubmitError::Full));
    peer.queue.abort_over(cids[3]);
    assert_eq!(peer.try_submit(flush), Ok(()));
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
    // Answered, but the entry isn't free: the head has not moved (1, after Connect).
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

#[test]
#[should_panic(expected = "payload that was not placed")]
fn payload_without_placement_panics() {
    let mut peer = Peer::ready(config());
    peer.queue.handle_payload(0, 0, 0);
}

#[test]
#[should_panic(expected = "handle_sent without a payload")]
fn handle_sent_without_payload_panics() {
    let mut peer = Peer::ready(config());
    peer.queue.handle_sent(3);
}

#[test]
fn late_driver_calls_after_the_end_are_ignored() {
    let mut peer = Peer::ready(config());
    peer.queue.handle_closed(0);
    peer.queue.handle_payload(1, 0, 0);
    peer.queue.handle_sent(3);
}
