//! Option haggling from the client's side.
use super::*;

/// Options that the client sent: number and data.
fn options(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(bytes[..8], OPTION_MAGIC.to_be_bytes());
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let (option, len) = (word(8), word(12) as usize);
        found.push((option, bytes[16..16 + len].to_vec()));
        bytes = &bytes[16 + len..];
    }
    found
}

impl Bench {
    fn options_sent(&mut self) -> Vec<(u32, Vec<u8>)> {
        options(&core::mem::take(&mut self.sent))
    }

    fn greeted(config: Config) -> Self {
        let mut bench = Self::new(config);
        bench.greet(3);
        assert_eq!(bench.sent.drain(..4).as_slice(), [0, 0, 0, 3]);
        bench
    }
}

fn plain() -> Config {
    Config {
        structured: false,
        ..config()
    }
}

fn go() -> (u32, Vec<u8>) {
    (opt::GO, b"\0\0\0\x04disk\0\x01\0\x03".to_vec())
}

#[test]
fn the_server_speaks_first() {
    let mut bench = Bench::new(config());
    assert!(bench.sent.is_empty());
    assert_eq!(
        bench.session.submit(&Request::flush(0)),
        Err(SubmitError::NotReady)
    );
    // Unknown handshake flags are ignored, and not repeated (Newstyle negotiation).
    bench.greet(0xffff);
    assert_eq!(bench.sent[..4], [0, 0, 0, 3]);
}

#[test]
fn everything_is_asked_for_in_order() {
    let mut bench = Bench::greeted(config());
    assert_eq!(bench.options_sent(), [(opt::STRUCTURED_REPLY, vec![])]);
    bench.reply(opt::STRUCTURED_REPLY, rep::ACK, &[]);
    let query = b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation".to_vec();
    assert_eq!(bench.options_sent(), [(opt::SET_META_CONTEXT, query)]);
    let name = [&[0, 0, 0, 9][..], b"base:allocation"].concat();
    bench.reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, &name);
    bench.reply(opt::SET_META_CONTEXT, rep::ACK, &[]);
    assert_eq!(bench.options_sent(), [go()]);
    bench.reply(opt::GO, rep::INFO, &[0, 1, b'x']);
    bench.reply(opt::GO, rep::INFO, &[0xff, 0xff]);
    bench.reply(opt::GO, rep::INFO, &export_info(MIB, ALL_FLAGS));
    bench.reply(opt::GO, rep::INFO, &size_info(512, 4096, u32::MAX));
    assert!(bench.events.is_empty());
    bench.reply(opt::GO, rep::ACK, &[]);
    let ready = Info {
        size: MIB,
        features: Features {
            block_status: true,
            ..Features::from_flags(ALL_FLAGS)
        },
        block_sizes: Some(BlockSizes {
            minimum: 512,
            preferred: 4096,
            maximum: u32::MAX,
        }),
        structured: true,
    };
    assert_eq!(bench.events, [Event::Ready(ready)]);
    assert_eq!(bench.session.poll_timeout(), None);
    assert!(bench.sent.is_empty());
}

#[test]
fn a_server_without_structured_replies_or_contexts_will_do() {
    let mut bench = Bench::greeted(config());
    bench.reply(opt::STRUCTURED_REPLY, rep::ERR_UNSUP, b"what?");
    assert_eq!(bench.options_sent().pop(), Some(go()));
    let mut bench = Bench::greeted(config());
    bench.reply(opt::STRUCTURED_REPLY, rep::ACK, &[]);
    let name = [&[0, 0, 0, 9][..], b"base:allocation"].concat();
    bench.reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, &name);
    bench.reply(opt::SET_META_CONTEXT, rep::ERR_INVALID, &[]);
    assert_eq!(bench.options_sent().pop(), Some(go()));
    bench.reply(opt::GO, rep::INFO, &export_info(MIB, ALL_FLAGS));
    bench.reply(opt::GO, rep::ACK, &[]);
    let [Event::Ready(ready)] = bench.events[..] else {
        panic!("{:?}", bench.events);
    };
    assert!(ready.structured && !ready.features.block_status);
    assert_eq!(ready.block_sizes, None);
}

#[test]
fn a_server_without_go_is_asked_the_old_way() {
    for (flags, zeroes) in [(3, 0), (1, 124)] {
        let mut bench = Bench::new(plain());
        bench.greet(flags);
        bench.sent.drain(..4);
        assert_eq!(bench.options_sent(), [go()]);
        bench.reply(opt::GO, rep::ERR_UNSUP, &[]);
        assert_eq!(bench.options_sent(), [(opt::EXPORT_NAME, b"disk".to_vec())]);
        let mut bytes = export_info(MIB, 1).split_off(2);
        bytes.resize(10 + zeroes, 0);
        let (last, rest) = bytes.split_last().unwrap();
        bench.feed(rest);
        assert!(bench.events.is_empty());
        bench.feed(&[*last]);
        assert!(matches!(bench.events[..], [Event::Ready(_)]));
    }
}

#[test]
fn a_server_of_the_unfixed_newstyle_is_asked_nothing_else() {
    let mut bench = Bench::new(config());
    bench.greet(0);
    assert_eq!(bench.sent.drain(..4).as_slice(), [0; 4]);
    assert_eq!(bench.options_sent(), [(opt::EXPORT_NAME, b"disk".to_vec())]);
}

#[test]
fn a_wrong_greeting_ends_the_session() {
    let mut bench = Bench::new(config());
    bench.feed(b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53");
    assert_eq!(bench.failure(), Some(Error::Oldstyle));
    for bytes in [&b"SSH-2.0-"[..], b"NBDMAGICIHAVEOPX"] {
        let mut bench = Bench::new(config());
        bench.feed(&bytes[..bytes.len() - 1]);
        assert_eq!(bench.failure(), None);
        bench.feed(bytes);
        assert_eq!(bench.failure(), Some(Error::Protocol(Fault::Greeting)));
        assert!(bench.sent.is_empty());
    }
}

#[test]
fn a_refused_export_is_told_and_we_take_our_leave() {
    for kind in [
        rep::ERR_UNKNOWN,
        rep::ERR_POLICY,
        rep::ERR_TLS_REQD,
        rep::ERR_SHUTDOWN,
        rep::ERROR + 99,
    ] {
        let mut bench = Bench::greeted(plain());
        bench.options_sent();
        bench.reply(opt::GO, kind, b"no");
        assert_eq!(bench.failure(), Some(Error::Refused(kind)));
        assert_eq!(bench.options_sent(), [(opt::ABORT, vec![])]);
    }
    let mut bench = Bench::greeted(config());
    bench.reply(opt::STRUCTURED_REPLY, rep::ERR_SHUTDOWN, &[]);
    let refused = Error::Refused(rep::ERR_SHUTDOWN);
    assert_eq!(bench.failure(), Some(refused));
}

#[test]
fn replies_that_make_no_sense_end_the_session() {
    let unexpected = Fault::OptionReply;
    let info = export_info(MIB, 1);
    let cases: [(u32, u32, &[u8], Fault); 10] = [
        (opt::LIST, rep::ACK, &[], unexpected),
        (opt::STRUCTURED_REPLY, rep::ACK, &[], unexpected),
        (opt::GO, rep::SERVER, &[], unexpected),
        (opt::GO, 0, &[], unexpected),
        (opt::GO, rep::ACK, &[], Fault::Info),
        (opt::GO, rep::INFO, &[0], Fault::Info),
        (opt::GO, rep::INFO, &info[..11], Fault::Info),
        (opt::GO, rep::INFO, &[&info[..], &[0]].concat(), Fault::Info),
        (opt::GO, rep::INFO, &[0, 3, 0, 0, 2, 0], Fault::Info),
        (
            opt::GO,
            rep::INFO,
            &[0; 8193],
            Fault::OptionReplyLength(8193),
        ),
    ];
    for (option, kind, data, fault) in cases {
        let mut bench = Bench::greeted(plain());
        bench.reply(option, kind, data);
        assert_eq!(bench.failure(), Some(Error::Protocol(fault)));
        assert_eq!(bench.feed(&[1; 100]), 100, "swallowed");
    }
    let mut bench = Bench::greeted(plain());
    bench.feed(&[3; 20]);
    assert_eq!(bench.failure(), Some(Error::Protocol(unexpected)));
    let mut bench = Bench::greeted(plain());
    for _ in 0..64 {
        bench.reply(opt::GO, rep::INFO, &info);
        assert_eq!(bench.failure(), None);
    }
    bench.reply(opt::GO, rep::INFO, &info);
    let endless = Error::Protocol(Fault::OptionReplies);
    assert_eq!(bench.failure(), Some(endless));
}

#[test]
fn sizes_that_can_not_be_are_refused() {
    for (minimum, preferred, maximum) in [(0, 512, 512), (3, 4096, 4095), (512, 256, 512)] {
        let mut bench = Bench::greeted(plain());
        bench.options_sent();
        bench.reply(opt::GO, rep::INFO, &size_info(minimum, preferred, maximum));
        assert!(matches!(bench.failure(), Some(Error::BlockSizes(_))));
        assert_eq!(bench.options_sent(), [(opt::ABORT, vec![])]);
    }
    let mut bench = Bench::greeted(plain());
    bench.reply(opt::GO, rep::INFO, &export_info(1 << 63, 1));
    bench.reply(opt::GO, rep::ACK, &[]);
    assert_eq!(bench.failure(), Some(Error::Protocol(Fault::Info)));
}

#[test]
fn the_handshake_has_a_deadline() {
    let mut bench = Bench::greeted(config());
    let deadline = bench.session.poll_timeout().unwrap();
    assert_eq!(deadline, 1 + 1000 * MS);
    bench.session.handle_timeout(deadline - 1);
    bench.pump();
    assert_eq!(bench.failure(), None);
    bench.session.handle_timeout(deadline);
    bench.pump();
    assert_eq!(bench.failure(), Some(Error::TimedOut));
    assert_eq!(bench.session.poll_timeout(), None);
}

#[test]
fn a_connection_that_ends_early_is_told_once() {
    for connected in [false, true] {
        let mut bench = Bench::new(config());
        if connected {
            bench.greet(3);
        }
        bench.gone();
        bench.gone();
        assert_eq!(bench.events, [Event::Failed(Error::Closed)]);
    }
}
