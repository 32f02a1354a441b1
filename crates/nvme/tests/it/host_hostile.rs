//! Controllers that send anything at any time on an admin connection: no panic, no growth. On an
//! I/O queue: `tests/hostile`.
use crate::host_peer::admin::{AdminPeer, Answer, Model, SECOND, admin_config};
use nvme::host::{AdminConfig, AdminEvent, Digests};
use nvme::wire::Status;
use nvme::wire::pdu::{Framing, Header, PduType};
use proptest::collection::vec;
use proptest::prelude::*;

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
