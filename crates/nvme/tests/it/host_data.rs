//! Data in both directions against a scripted controller: one test for each rule of the traps.
use crate::host_peer::{Peer, config, pattern, read, refused, write};
use nvme::host::{Command, Digests, IoQueueConfig};
use nvme::wire::pdu::{Fes, PduError, PduType, flags};
use nvme::wire::sqe::Sgl;
use nvme::wire::{Cqe, Status};

const BOTH: Digests = Digests {
    header: true,
    data: true,
};

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

/// From the header on, before any of its bytes can be placed, the buffer is taken.
#[test]
fn t10_a_read_is_awaited_until_the_first_of_its_data_is_named() {
    let mut peer = Peer::ready(config());
    assert!(!peer.queue.awaits(3), "unknown");
    let cid = peer.submit(read(3, 8)).sqe().cid();
    assert!(peer.queue.awaits(3));
    let pdu = peer.c2h(cid, 0, &[1; 4096], flags::LAST);
    let (header, payload) = pdu.split_at(pdu.len() - 4096);
    let (some, rest) = header.split_at(10);
    assert_eq!(peer.queue.handle_bytes(some, 0), some.len());
    assert!(peer.queue.awaits(3), "nobody knows yet whose it is");
    assert_eq!(peer.queue.handle_bytes(rest, 0), rest.len());
    assert!(peer.queue.placement().is_some());
    assert!(!peer.queue.awaits(3));
    peer.give(payload);
    peer.succeed(cid);
    assert!(!peer.queue.awaits(3));
    assert_eq!(peer.outcome(), (3, Status::SUCCESS));
    assert!(!peer.queue.awaits(3), "ended");
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
    // (command, identifier flipped, offset, length, flags, error) after 512 bytes of a 1024-byte
    // read
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
