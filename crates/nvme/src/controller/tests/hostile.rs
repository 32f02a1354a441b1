//! Arbitrary input from a host: no panic, every connection ends, and memory stays within its
//! bounds.
use super::io::{read, write};
use super::*;
use crate::wire::sqe::{FABRICS, NSID_ALL};
use proptest::prelude::*;

/// Offers bytes in pieces; buffers are supplied, commands executed. Every byte must be taken.
fn offer(bench: &mut Bench, conn: u32, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece.max(1)) {
        let taken = bench.feed(conn, piece);
        assert_eq!(taken, piece.len(), "bytes are stuck");
        bench.wires.get_mut(&conn).unwrap().bytes.clear();
    }
}

/// After the attack the subsystem still serves other hosts, and nothing of this one is left.
fn check(mut bench: Bench, conns: u32) {
    for conn in 0..conns {
        bench.gone(conn);
    }
    assert!(bench.buffers.is_empty(), "buffers are lost");
    assert_eq!(bench.target.connections().count(), 0);
    assert_eq!(bench.target.controllers().count(), 0);
    assert_eq!(bench.target.poll_timeout(), None);
    bench.target.set_ana(0, AnaState::Optimized, bench.now);
    let cntlid = bench.admin(0, 0);
    bench.io(1, 0, cntlid, 1, &Options::default());
    assert_eq!(bench.send(1, read(1, 0, 1, 512), &[]).len(), 2);
}

/// Before Connect a connection has room for one command: a second one before the answer was taken
/// is more than the queue holds.
#[test]
fn before_connect_one_command_is_outstanding_and_a_second_one_ends_the_connection() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    let early = SqeBuilder::new(FABRICS);
    for _ in 0..10 {
        let got = bench.send(0, early, &[]);
        assert!(
            matches!(got[..], [Got::Response(cqe)] if !cqe.status.is_success()),
            "{got:?}"
        );
    }
    let two = [bench.capsule(0, &early, &[]), bench.capsule(0, &early, &[])].concat();
    let taken = bench.target.handle_bytes(ConnId(0), &two, bench.now);
    assert_eq!(taken, two.len());
    bench.settle();
    let got = bench.receive(0);
    assert!(matches!(got[..], [.., Got::Term { fes: 2, .. }]), "{got:?}");
    assert_eq!(bench.closed, [(0, CloseReason::Protocol)]);
}

fn options(bits: u8) -> Options {
    let request = IcReq {
        header_digest: bits & 1 != 0,
        data_digest: bits & 2 != 0,
        hpda: bits >> 3,
        ..plain()
    };
    Options {
        request,
        flow_control: bits & 4 != 0,
        ..Options::default()
    }
}

/// A command that is nearly right: each field from a small set of likely and unlikely values.
fn entry() -> impl Strategy<Value = [u8; 64]> {
    let opcode = prop_oneof![
        Just(FABRICS),
        prop::sample::select(vec![0u8, 1, 2, 5, 6, 8, 9, 0x0a, 0x0c, 0x18]),
        any::<u8>()
    ];
    let nsid = prop_oneof![0u32..8, Just(NSID_ALL), any::<u32>()];
    let sgl = prop_oneof![
        prop::sample::select(vec![0u32, 16, 512, 1024, 4096, 16384])
            .prop_map(|len| Sgl::Transport { len }),
        prop::sample::select(vec![0u32, 16, 512, 1024, 4096])
            .prop_map(|len| Sgl::InCapsule { offset: 0, len }),
        any::<[u8; 16]>().prop_map(|b| Sgl::parse(&b)),
    ];
    let dword = prop_oneof![0u32..16, Just(BLOCKS as u32), any::<u32>()];
    let cdw = prop::array::uniform6(dword);
    (opcode, any::<u16>(), nsid, sgl, cdw, any::<u8>()).prop_map(
        |(opcode, cid, nsid, sgl, cdw, flags)| {
            let mut entry = *SqeBuilder::new(opcode)
                .cid(cid)
                .nsid(nsid)
                .sgl(sgl)
                .cdws(&cdw)
                .bytes();
            if flags < 16 {
                entry[1] = flags << 4;
            }
            entry
        },
    )
}

/// One step of a hostile host on a connection that is up.
#[derive(Clone, Debug)]
enum Act {
    Capsule([u8; 64], Vec<u8>),
    Data(DataHeader, bool, usize),
    /// A flipped bit in the bytes of the next act.
    Flip(usize),
    Garbage(Vec<u8>),
    Time(u32),
    Ana(u8),
    Resize(u64),
}

fn act() -> impl Strategy<Value = Act> {
    let data = prop::sample::select(vec![0usize, 0, 0, 16, 512, 1024, 4096]);
    let header = (
        0u16..8,
        0u16..8,
        prop_oneof![Just(0u32), any::<u32>()],
        0u32..9000,
    )
        .prop_map(|(cccid, ttag, offset, length)| DataHeader {
            cccid,
            ttag,
            offset,
            length,
        });
    prop_oneof![
        8 => (entry(), data).prop_map(|(entry, len)| Act::Capsule(entry, pattern(1, len))),
        2 => (header, any::<bool>(), 1usize..9000).prop_map(|(h, l, n)| Act::Data(h, l, n)),
        1 => (0usize..200).prop_map(Act::Flip),
        1 => prop::collection::vec(any::<u8>(), 1..200).prop_map(Act::Garbage),
        1 => (0u32..30_000).prop_map(Act::Time),
        1 => prop::sample::select(vec![1u8, 2, 3, 4, 15]).prop_map(Act::Ana),
        1 => (1u64..BLOCKS).prop_map(Act::Resize),
    ]
}

fn play(bench: &mut Bench, acts: &[(u8, Act)], piece: usize) {
    let mut flip = None;
    for (conn, act) in acts {
        let conn = u32::from(conn & 1);
        let mut bytes = match act {
            Act::Capsule(entry, data) => {
                let mut bytes = Vec::new();
                bench.wires[&conn]
                    .to
                    .whole(&mut bytes, PduType::CapsuleCmd, 0, entry, data);
                bytes
            }
            Act::Data(header, last, len) => bench.h2c(conn, header, *last, &vec![7; *len]),
            Act::Garbage(bytes) => bytes.clone(),
            Act::Flip(at) => {
                flip = Some(*at);
                continue;
            }
            Act::Time(ms) => {
                bench.advance(u64::from(*ms) * MS);
                continue;
            }
            Act::Ana(code) => {
                let state = crate::wire::log::ana_state(*code).unwrap();
                bench.target.set_ana(0, state, bench.now);
                continue;
            }
            Act::Resize(blocks) => {
                bench.target.resize(1, *blocks, bench.now).unwrap();
                continue;
            }
        };
        if let Some(at) = flip.take() {
            let at = at % bytes.len();
            bytes[at] ^= 1 << (at % 8);
        }
        offer(bench, conn, &bytes, piece);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn bytes_of_no_sense(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        piece in 1usize..200,
    ) {
        let mut bench = Bench::new(config());
        bench.target.open(ConnId(0), 0, bench.now).unwrap();
        bench.wires.insert(0, Wire::default());
        offer(&mut bench, 0, &bytes, piece);
        check(bench, 1);
    }

    #[test]
    fn a_good_handshake_with_one_byte_changed(at in 0usize..2000, value: u8, piece in 1usize..200) {
        let mut bench = Bench::new(config());
        bench.target.open(ConnId(0), 0, bench.now).unwrap();
        bench.wires.insert(0, Wire::default());
        let mut bytes = Vec::new();
        plain().emit(&mut bytes);
        let sqe = admin_connect().emit().sgl(Sgl::InCapsule { offset: 0, len: 1024 });
        bytes.extend(bench.capsule(0, &sqe, &connect_data(NQN, CNTLID_ANY).emit()));
        let at = at % bytes.len();
        bytes[at] = value;
        offer(&mut bench, 0, &bytes, piece);
        check(bench, 1);
    }

    #[test]
    fn acts_of_a_hostile_host(
        bits in 0u8..64,
        acts in prop::collection::vec((any::<u8>(), act()), 1..60),
        piece in 1usize..5000,
    ) {
        let mut bench = Bench::ready(config(), &options(bits));
        // Namespace 2 keeps its size; the driver's storage must never be asked beyond its end.
        play(&mut bench, &acts, piece);
        check(bench, 2);
    }

    #[test]
    fn the_same_with_commands_and_buffers_held(
        bits in 0u8..64,
        acts in prop::collection::vec((any::<u8>(), entry()), 1..40),
    ) {
        let mut bench = Bench::ready(config(), &options(bits));
        bench.hold_commands = true;
        bench.hold_sends = true;
        for (conn, entry) in &acts {
            let conn = u32::from(conn & 1);
            let mut bytes = Vec::new();
            bench.wires[&conn].to.whole(&mut bytes, PduType::CapsuleCmd, 0, entry, &[]);
            bench.feed(conn, &bytes);
        }
        // At most one slot per entry of the queue is ever in use.
        let names: Vec<_> = bench.buffers.keys().filter(|(conn, _)| *conn == 1).collect();
        prop_assert!(names.len() <= 8);
        prop_assert!(names.iter().all(|(_, token)| *token < 8));
        bench.gone(1);
        bench.gone(0);
        bench.hold_commands = false;
        while !bench.held.is_empty() {
            bench.execute_one();
        }
        for (conn, token) in core::mem::take(&mut bench.unsent) {
            bench.target.handle_sent(ConnId(conn), token);
        }
        bench.settle();
        bench.hold_sends = false;
        check(bench, 0);
    }
}

#[test]
fn a_host_that_never_reads_holds_slots_and_no_memory() {
    let mut bench = Bench::ready(config(), &Options::default());
    let id = ConnId(1);
    let mut bytes = Vec::new();
    for cid in 0..7 {
        bytes.extend(bench.capsule(1, &read(1, 0, 256, 128 << 10).cid(cid), &[]));
    }
    bytes.extend(bench.capsule(1, &write(1, 0, 8, Sgl::Transport { len: 4096 }).cid(7), &[]));
    assert_eq!(
        bench.target.handle_bytes(id, &bytes, bench.now),
        bytes.len()
    );
    // The events are not polled: one event for all, and the eighth command is one too many.
    let events: Vec<_> = core::iter::from_fn(|| bench.target.poll_event()).collect();
    let commands = events
        .iter()
        .filter(|e| matches!(e, ControllerEvent::Command(_)))
        .count();
    let transmits = events
        .iter()
        .filter(|e| matches!(e, ControllerEvent::Transmit(_)))
        .count();
    assert_eq!((commands, transmits), (7, 1));
    assert!(events.iter().any(|e| matches!(
        e,
        ControllerEvent::Close { conn, reason: CloseReason::Protocol } if *conn == id
    )));
}
