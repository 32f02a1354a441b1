//! The target takes no memory on the I/O path.
use crate::target_hand::*;
use engine::machine::Memory;
use engine::{ConnId, Machine, Output, Span};
use nvme::wire::pdu::{Framing, PduType};
use nvme::wire::sqe::Sgl;
use shape::Config;

const DEPTH: u16 = 256;
/// Of the CID in a capsule: behind the common header, opcode and flags (Base 2.0, 3.3.3.1).
const CID_AT: usize = 8 + 2;

/// No test looks at payload.
struct NoMemory;

impl Memory for NoMemory {
    fn bytes(&self, _: Span) -> &[u8] {
        &[]
    }
    fn bytes_mut(&mut self, _: Span) -> &mut [u8] {
        &mut []
    }
}

/// A reactor that takes no memory itself.
struct Bare {
    hand: Hand,
    conn: ConnId,
    read: Vec<u8>,
    write: Vec<u8>,
    out: Vec<u8>,
    next: u16,
}

impl Bare {
    fn new(shape: Config) -> Self {
        let mut hand = Hand::new(config(&[shape]));
        let conn = ConnId(hand.queue(0, 2 * DEPTH));
        let capsule = |opcode, sgl, data: &[u8]| {
            let mut bytes = Vec::new();
            let sqe = io(opcode, 0, 1).sgl(sgl);
            Framing::PLAIN.whole(&mut bytes, PduType::CapsuleCmd, 0, sqe.bytes(), data);
            bytes
        };
        Bare {
            hand,
            conn,
            read: capsule(0x02, Sgl::Transport { len: 4096 }, &[]),
            write: capsule(
                0x01,
                Sgl::InCapsule {
                    offset: 0,
                    len: 4096,
                },
                &[0; 4096],
            ),
            out: Vec::with_capacity(1 << 20),
            next: 0,
        }
    }

    /// One read and one write come in; time passes; what is to be done is done.
    fn turn(&mut self) {
        let (target, now) = (&mut self.hand.target, self.hand.now);
        for capsule in [&mut self.read, &mut self.write] {
            self.next = (self.next + 1) % DEPTH;
            capsule[CID_AT..CID_AT + 2].copy_from_slice(&self.next.to_le_bytes());
            let taken = target.handle_bytes(self.conn, capsule, now);
            if let Some(place) = target.placement(self.conn) {
                assert_eq!(capsule.len() - taken, place.span.len as usize);
                target.handle_payload(self.conn, place.span.len, 0, now);
            }
        }
        self.hand.now += 10_000;
        let now = self.hand.now;
        if target.poll_timeout().is_some_and(|at| at <= now) {
            target.handle_timeout(now);
        }
        target.turn(&mut NoMemory, now);
        while let Some(output) = target.poll_output() {
            match output {
                Output::Device(request) => target.handle_device(request.id, Ok(()), now),
                Output::Transmit(conn) => {
                    while let Some(send) = target.poll_transmit(conn, &mut self.out, now) {
                        self.out.clear();
                        if let Some(send) = send {
                            target.handle_sent(conn, send.cookie, now);
                        }
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_io_allocates_nothing_shaped_or_not() {
    let shaped = Config {
        delay_ns: MS,
        jitter_ns: 100_000,
        bytes_per_s: 1 << 30,
        servers: 4,
        service_ns: 1000,
        ..Config::default()
    };
    for shape in [Config::default(), shaped] {
        let mut bare = Bare::new(shape);
        for _ in 0..2000 {
            bare.turn();
        }
        let before = bare.hand.target.port_stats(0).commands;
        let counted = allocation_counter::measure(|| {
            for _ in 0..10_000 {
                bare.turn();
            }
        });
        let commands = bare.hand.target.port_stats(0).commands - before;
        assert!(commands > 19_000, "{commands} commands");
        assert_eq!(counted.count_total, 0, "allocations in {commands} commands");
    }
}
