//! Controllers that send anything at any time: no panic, no growth, every command ends once, and
//! all bytes that the host sends stay well-formed.
use std::collections::BTreeSet;

use crate::host_peer::admin::{AdminPeer, Answer, Model, SECOND, admin_config};
use crate::host_peer::{Peer, config};
use nvme::host::{AdminConfig, AdminEvent, Command, Data, Digests, IoQueueConfig, QueueEvent};
use nvme::wire::pdu::{
    DataHeader, Framing, Header, IcReq, IcResp, PduType, TermReq, flags, parse_response,
};
use nvme::wire::{Cqe, Status};
use proptest::collection::vec;
use proptest::prelude::*;

/// One step of an attack on an I/O queue.
#[derive(Clone, Debug)]
enum Op {
    Submit {
        kind: u8,
        blocks: u32,
    },
    /// The correct answer to the n-th command in flight.
    Right {
        nth: usize,
    },
    /// A PDU about the n-th command in flight with some fields changed.
    Wrong {
        nth: usize,
        kind: u8,
        flags: u8,
        offset: u32,
        length: u32,
        cid: u16,
        status: u16,
    },
    Raw(Vec<u8>),
    /// The driver reports one payload as sent.
    Sent,
    Events,
    Time(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let near = prop_oneof![Just(0u32), Just(512), Just(4096), Just(8192), any::<u32>()];
    let wrong = (
        any::<usize>(),
        prop_oneof![Just(5u8), Just(7), Just(9), 0..12u8],
        prop_oneof![Just(0u8), Just(4), Just(12), any::<u8>()],
        near.clone(),
        near,
        prop_oneof![8 => Just(0u16), 1 => any::<u16>()],
        prop_oneof![Just(0u16), any::<u16>()],
    );
    prop_oneof![
        6 => (0..6u8, 1..40u32).prop_map(|(kind, blocks)| Op::Submit { kind, blocks }),
        6 => any::<usize>().prop_map(|nth| Op::Right { nth }),
        2 => wrong.prop_map(|(nth, kind, flags, offset, length, cid, status)| {
            Op::Wrong { nth, kind, flags, offset, length, cid, status }
        }),
        1 => vec(any::<u8>(), 0..200).prop_map(Op::Raw),
        4 => Just(Op::Sent),
        4 => Just(Op::Events),
        1 => (0..3_000u64).prop_map(Op::Time),
    ]
}

/// A command that the controller has: identifier, data, and the bytes moved so far.
#[derive(Clone, Copy)]
struct Known {
    cid: u16,
    data: Data,
    moved: u32,
}

/// An I/O queue under attack, and the invariants.
struct Attack {
    peer: Peer,
    known: Vec<Known>,
    next: u32,
    taken: BTreeSet<u32>,
    ended: BTreeSet<u32>,
    failed: u32,
}

impl Attack {
    fn new(config: IoQueueConfig, piece: usize) -> Self {
        let mut peer = Peer::ready_with(config, 3, 4096);
        peer.sends_complete = false;
        peer.piece = piece;
        let (taken, ended) = (BTreeSet::new(), BTreeSet::new());
        Self {
            peer,
            known: Vec::new(),
            next: 0,
            taken,
            ended,
            failed: 0,
        }
    }

    fn submit(&mut self, kind: u8, blocks: u32) {
        let token = self.next;
        let command = match kind {
            0 | 1 => Command::read(1, 0, blocks, 9, false, token),
            2 | 3 => Command::write(1, 0, blocks, 9, false, token),
            4 => Command::flush(1, token),
            _ => Command::deallocate(1, 0, blocks, token),
        };
        if self.peer.try_submit(command).is_ok() {
            self.next += 1;
            self.taken.insert(token);
        }
    }

    /// Learns from the bytes that the host sends; all of them must be well-formed.
    fn transmit(&mut self) {
        for pdu in self.peer.sent() {
            if pdu.kind == PduType::CapsuleCmd {
                let sqe = pdu.sqe();
                let data = match sqe.sgl() {
                    nvme::wire::sqe::Sgl::Transport { len: 0 } => Data::None,
                    nvme::wire::sqe::Sgl::Transport { len } if sqe.opcode() == 2 => Data::In(len),
                    nvme::wire::sqe::Sgl::Transport { len } => Data::Out(len),
                    _ => Data::None,
                };
                self.known.push(Known {
                    cid: sqe.cid(),
                    data,
                    moved: 0,
                });
            }
        }
    }

    fn right(&mut self, nth: usize) {
        if self.known.is_empty() {
            return;
        }
        let at = nth % self.known.len();
        let Known { cid, data, moved } = self.known[at];
        match data {
            Data::In(len) if moved < len => {
                let piece = (len - moved).min(1536);
                let last = if moved + piece == len { flags::LAST } else { 0 };
                let pdu = self.peer.c2h(cid, moved, &vec![7; piece as usize], last);
                self.known[at].moved += piece;
                self.peer.give(&pdu);
            }
            Data::Out(len) if moved < len => {
                let piece = (len - moved).min(5000);
                self.known[at].moved += piece;
                self.peer.r2t(cid, at as u16, moved, piece);
                self.transmit();
            }
            _ => {
                self.known.swap_remove(at);
                self.peer.succeed(cid);
            }
        }
    }

    fn wrong(&mut self, op: &Op) {
        let Op::Wrong {
            nth,
            kind,
            flags,
            offset,
            length,
            cid,
            status,
        } = *op
        else {
            return;
        };
        let known = self
            .known
            .get(nth % self.known.len().max(1))
            .map_or(0, |known| known.cid);
        let cccid = known ^ cid;
        let bytes = match PduType::from_byte(kind) {
            Some(PduType::CapsuleResp) => {
                let cqe = Cqe {
                    cid: cccid,
                    status: Status(status >> 1),
                    ..Cqe::default()
                };
                self.peer
                    .pdu(PduType::CapsuleResp, flags & !3, &cqe.emit(), &[])
            }
            Some(kind @ (PduType::C2hData | PduType::R2t)) => {
                let data = vec![
                    1;
                    if kind == PduType::R2t {
                        0
                    } else {
                        length % 9000
                    } as usize
                ];
                let header = DataHeader {
                    cccid,
                    ttag: 1,
                    offset,
                    length,
                };
                self.peer.pdu(kind, flags & !3, &header.emit(), &data)
            }
            _ => vec![kind, flags, 24, offset as u8, length as u8, 0, 0, 0],
        };
        self.peer.give(&bytes);
    }

    fn events(&mut self) {
        for event in self.peer.events() {
            assert_eq!(self.failed, 0, "nothing after a failure");
            match event {
                QueueEvent::Completed(end) => {
                    assert!(self.taken.contains(&end.token));
                    assert!(self.ended.insert(end.token), "ended twice");
                }
                QueueEvent::Failed(_) => self.failed += 1,
                QueueEvent::Ready => panic!("ready twice"),
            }
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Submit { kind, blocks } => self.submit(*kind, *blocks),
            Op::Right { nth } => self.right(*nth),
            Op::Wrong { .. } => self.wrong(op),
            Op::Raw(bytes) => self.peer.give(bytes),
            Op::Sent => {
                if !self.peer.unsent.is_empty() {
                    let payload = self.peer.unsent.remove(0);
                    self.peer.queue.handle_sent(payload.token);
                }
            }
            Op::Events => self.events(),
            Op::Time(ns) => {
                self.peer.now_ns += ns;
                self.peer.queue.handle_timeout(self.peer.now_ns);
            }
        }
        self.transmit();
        let in_flight = self.peer.queue.in_flight();
        assert!(in_flight <= self.peer.queue.capacity());
        assert_eq!(in_flight as usize, self.taken.len() - self.ended.len());
    }

    fn finish(&mut self) {
        self.peer
            .unsent
            .drain(..)
            .for_each(|payload| self.peer.queue.handle_sent(payload.token));
        self.peer.queue.handle_closed(self.peer.now_ns);
        self.events();
        assert_eq!(self.taken, self.ended);
        assert_eq!((self.failed, self.peer.queue.in_flight()), (1, 0));
        assert_eq!(self.peer.queue.placement(), None);
        assert_eq!(self.peer.queue.poll_timeout(), None);
        assert!(self.peer.sent().is_empty() && self.peer.events().is_empty());
    }
}

fn digests() -> impl Strategy<Value = Digests> {
    (any::<bool>(), any::<bool>()).prop_map(|(header, data)| Digests { header, data })
}

/// Damage to one answer of the admin connection's controller.
#[derive(Clone, Debug)]
enum Twist {
    No,
    Silent,
    Status(u16),
    Result(u64),
    /// Bytes of the data changed.
    Bytes(Vec<(usize, u8)>),
    Fill(u8),
    Cut(usize),
    /// These come before the answer.
    Raw(Vec<u8>),
}

fn twist() -> impl Strategy<Value = Twist> {
    let place = prop_oneof![0..64usize, 500..560usize, 0..4096usize];
    prop_oneof![
        30 => Just(Twist::No),
        1 => Just(Twist::Silent),
        2 => any::<u16>().prop_map(Twist::Status),
        2 => any::<u64>().prop_map(Twist::Result),
        4 => vec((place, any::<u8>()), 1..12).prop_map(Twist::Bytes),
        2 => any::<u8>().prop_map(Twist::Fill),
        1 => (0..4096usize).prop_map(Twist::Cut),
        1 => vec(any::<u8>(), 1..64).prop_map(Twist::Raw),
    ]
}

fn twisted(mut answer: Answer, twist: &Twist) -> Answer {
    match twist {
        Twist::Silent => answer.silent = true,
        Twist::Status(status) => answer.status = Status(status >> 1),
        Twist::Result(result) => answer.result = *result,
        Twist::Fill(byte) => answer.data.fill(*byte),
        Twist::Cut(len) => answer.data.truncate(*len),
        Twist::Bytes(bytes) => {
            let data = &mut answer.data;
            let len = data.len();
            bytes
                .iter()
                .filter(|(at, _)| *at < len)
                .for_each(|&(at, byte)| data[at] = byte);
        }
        Twist::No | Twist::Raw(_) => {}
    }
    answer
}

/// Nothing is written into the tree; the seed is in the message of a failure.
fn proptest_config() -> ProptestConfig {
    ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(proptest_config())]

    #[test]
    fn an_io_queue_withstands_its_controller(
        ops in vec(op(), 0..120),
        digests in digests(),
        disable_sq_flow_control in any::<bool>(),
        in_capsule_max in prop_oneof![Just(0u32), Just(4096)],
        piece in prop_oneof![Just(1usize), 2..100usize, Just(usize::MAX)],
    ) {
        let config =
            IoQueueConfig { digests, disable_sq_flow_control, in_capsule_max, ..config() };
        let mut attack = Attack::new(config, piece);
        ops.iter().for_each(|op| attack.step(op));
        attack.finish();
    }

    #[test]
    fn an_io_queue_withstands_garbage_from_the_start(
        bytes in vec(prop_oneof![Just(0u8), Just(1), Just(128), any::<u8>()], 0..600),
        piece in 1..64usize,
    ) {
        let mut peer = Peer::new(config());
        peer.sent();
        peer.piece = piece;
        peer.give(&bytes);
        peer.sent();
        peer.queue.handle_closed(0);
        let events = peer.events();
        prop_assert!(matches!(events[..], [QueueEvent::Failed(_)]));
    }

    #[test]
    fn an_admin_association_withstands_its_controller(
        twists in vec(twist(), 0..60),
        events in vec(any::<u32>(), 0..4),
        digests in digests(),
        piece in prop_oneof![1..100usize, Just(usize::MAX)],
    ) {
        let config = AdminConfig { digests, ..admin_config() };
        let mut peer = AdminPeer::new(config, Model::default());
        peer.piece = piece;
        let mut model = Model::default();
        let mut twists = twists.into_iter();
        let mut answers = 0;
        // After a bounded number of answers the controller falls silent.
        peer.script = Box::new(move |sqe| {
            answers += 1;
            let answer = model.answer(sqe);
            Some(match twists.next() {
                _ if answers > 40_000 => Answer::silent(),
                Some(twist) => twisted(answer, &twist),
                None => answer,
            })
        });
        peer.run();
        for event in events {
            if let Some(cid) = peer.event_cid.take() {
                peer.reply(cid, &Answer::result(event.into()));
                peer.run();
            }
            peer.run_until(peer.now_ns + SECOND);
        }
        peer.admin.shutdown(peer.now_ns);
        peer.run();
        peer.run_until(peer.now_ns + 30 * SECOND);
        peer.admin.handle_closed(peer.now_ns);
        let events = peer.events();
        let failed = events.iter().filter(|event| matches!(event, AdminEvent::Failed(_))).count();
        prop_assert_eq!(failed, 1);
        prop_assert!(matches!(events.last(), Some(AdminEvent::Failed(_))));
        prop_assert_eq!(peer.admin.poll_timeout(), None);
    }

    #[test]
    fn an_admin_association_withstands_garbage(
        twist in twist(),
        after in 0..16usize,
        piece in 1..64usize,
    ) {
        let Twist::Raw(bytes) = twist else { return Ok(()) };
        let mut peer = AdminPeer::new(admin_config(), Model::default());
        peer.piece = piece;
        let mut answers = 0;
        let mut model = Model::default();
        peer.script = Box::new(move |sqe| {
            answers += 1;
            Some(if answers > after { Answer::silent() } else { model.answer(sqe) })
        });
        peer.run();
        peer.give(&bytes);
        peer.run();
        peer.run_until(peer.now_ns + 30 * SECOND);
        peer.admin.handle_closed(peer.now_ns);
        prop_assert!(matches!(peer.events().last(), Some(AdminEvent::Failed(_))));
    }

    #[test]
    fn a_layout_accounts_for_every_byte_of_the_pdu(
        bytes in vec(prop_oneof![Just(0u8), Just(24), Just(72), Just(128), any::<u8>()], 0..160),
        from_host in any::<bool>(),
        header_digest in any::<bool>(),
        data_digest in any::<bool>(),
        words in 1..=32u32,
    ) {
        let framing = Framing { header_digest, data_digest, alignment: words * 4 };
        // Each parser takes any bytes.
        let _ = (IcReq::parse(&bytes), IcResp::parse(&bytes), TermReq::parse(&bytes));
        let _ = (DataHeader::parse(&bytes), parse_response(&bytes));
        let Ok(header) = Header::parse(&bytes) else { return Ok(()) };
        prop_assert_eq!(&header.emit()[..], &bytes[..8]);
        if let Ok(l) = header.layout(from_host, &framing) {
            let sum = u64::from(l.header) + u64::from(l.pad) + u64::from(l.data);
            prop_assert_eq!(sum + u64::from(l.data_digest), u64::from(header.plen));
            prop_assert!(l.header as usize <= nvme::wire::pdu::HEADER_MAX && l.pad < 256);
        }
    }

    #[test]
    fn emitted_structures_parse_back(
        kind in prop_oneof![
            Just(PduType::CapsuleCmd), Just(PduType::C2hData), Just(PduType::H2cData)
        ],
        data in vec(any::<u8>(), 1..300),
        digests in digests(),
        words in 1..=32u32,
    ) {
        let Digests { header: header_digest, data: data_digest } = digests;
        let framing = Framing { header_digest, data_digest, alignment: words * 4 };
        let own = vec![0x5a; kind.header_len() - 8];
        let mut out = Vec::new();
        framing.whole(&mut out, kind, 0, &own, &data);
        let l = Header::parse(&out).unwrap().layout(kind.from_host(), &framing).unwrap();
        let at = (l.header + l.pad) as usize;
        prop_assert_eq!(&out[at..at + l.data as usize], &data[..]);
        prop_assert!(framing.header_digest_ok(kind, &out[..l.header as usize]));
    }
}
