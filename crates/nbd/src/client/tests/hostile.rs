//! Arbitrary input from a server: no panic, the session ends, and nothing is placed outside a
//! buffer.
use super::*;
use crate::limits::REPLY_DATA_MAX;
use proptest::prelude::*;

/// One step of a hostile server.
#[derive(Clone, Debug)]
enum Act {
    Submit(Request),
    /// A simple reply to the request sent so long ago, with so many bytes behind it.
    Simple(usize, u32, usize),
    Chunk(usize, u16, u16, Vec<u8>),
    /// A chunk of data or a hole, mostly inside the request.
    Content(usize, bool, u64, u32),
    Option(u32, u32, Vec<u8>),
    Garbage(Vec<u8>),
    Flip(usize),
    Sent,
    Disconnect,
    Time(u16),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        4 => Just(Kind::Read),
        2 => Just(Kind::Write),
        1 => Just(Kind::Flush),
        1 => Just(Kind::Trim),
        1 => Just(Kind::WriteZeroes),
        2 => any::<bool>().prop_map(|one| Kind::BlockStatus { one }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    let at = || 0usize..5;
    let kinds = prop_oneof![0u16..7, (1u16 << 15)..(1 << 15) + 4, any::<u16>()];
    let request = (kind(), 0u64..100, 1u32..100).prop_map(|(kind, offset, length)| match kind {
        Kind::Flush => Request::flush(0),
        kind => Request::new(0, kind, offset * 512, length * 512),
    });
    prop_oneof![
        6 => request.prop_map(Act::Submit),
        3 => (at(), 0u32..3, 0usize..60_000).prop_map(|(at, e, len)| Act::Simple(at, e, len)),
        4 => (at(), 0u16..3, kinds, bytes(60)).prop_map(|(at, f, k, b)| Act::Chunk(at, f, k, b)),
        6 => (at(), any::<bool>(), 0u64..60_000, 0u32..60_000)
            .prop_map(|(at, done, offset, len)| Act::Content(at, done, offset, len)),
        1 => (0u32..12, 0u32..5, bytes(60)).prop_map(|(o, k, b)| Act::Option(o, k, b)),
        1 => bytes(60).prop_map(Act::Garbage),
        1 => any::<usize>().prop_map(Act::Flip),
        4 => Just(Act::Sent),
        1 => Just(Act::Disconnect),
        1 => any::<u16>().prop_map(Act::Time),
    ]
}

struct Play {
    bench: Bench,
    /// Cookies and offsets of requests sent, the latest first.
    sent: Vec<(u64, u64)>,
    next: u32,
    flip: Option<usize>,
    submitted: usize,
}

impl Play {
    fn new(bench: Bench) -> Self {
        Self {
            bench,
            sent: Vec::new(),
            next: 0,
            flip: None,
            submitted: 0,
        }
    }

    fn act(&mut self, act: &Act, piece: usize) {
        let mut bytes = Vec::new();
        let named = |at: &usize| self.sent.get(*at).copied().unwrap_or((0, 0));
        match act {
            Act::Submit(request) => self.submit(*request),
            Act::Simple(at, error, len) => {
                let cookie = named(at).0;
                let error = *error;
                SimpleReply { error, cookie }.emit(&mut bytes);
                bytes.resize(16 + len, 3);
            }
            Act::Chunk(at, flags, kind, body) => {
                bytes = chunk_bytes(named(at).0, flags & 1 != 0, *kind, &[body]);
            }
            Act::Content(at, done, offset, len) => {
                let (cookie, start) = named(at);
                let place = start.wrapping_add(*offset).to_be_bytes();
                bytes = if len % 3 == 0 {
                    let parts: [&[u8]; 2] = [&place, &len.to_be_bytes()];
                    chunk_bytes(cookie, *done, chunk::OFFSET_HOLE, &parts)
                } else {
                    let data = vec![9; *len as usize];
                    chunk_bytes(cookie, *done, chunk::OFFSET_DATA, &[&place, &data])
                };
            }
            Act::Option(option, kind, data) => {
                let (option, kind, len) = (*option, *kind, data.len() as u32);
                OptionReply { option, kind, len }.emit(&mut bytes);
                bytes.extend_from_slice(data);
            }
            Act::Garbage(garbage) => bytes = garbage.clone(),
            Act::Flip(at) => self.flip = Some(*at),
            Act::Sent => {
                for token in core::mem::take(&mut self.bench.unsent) {
                    self.bench.session.handle_sent(token);
                }
            }
            Act::Disconnect => self.bench.session.disconnect(),
            Act::Time(ms) => self.bench.session.handle_timeout(u64::from(*ms) * MS),
        }
        if let Some(at) = self.flip.take_if(|_| !bytes.is_empty()) {
            let at = at % (bytes.len() * 8);
            bytes[at / 8] ^= 1 << (at % 8);
        }
        for piece in bytes.chunks(piece) {
            assert_eq!(self.bench.feed(piece), piece.len(), "a stall");
        }
        self.bench.pump();
        assert!(self.bench.session.in_flight() <= 4);
    }

    fn submit(&mut self, request: Request) {
        let token = self.next;
        self.next += 1;
        let request = Request { token, ..request };
        self.bench.buffers.insert(token, pattern(request.length));
        if self.bench.session.submit(&request).is_ok() {
            self.submitted += 1;
            let before = self.bench.sent.len();
            self.bench.pump();
            if let Some(header) = RequestHeader::parse(&self.bench.sent[before..]) {
                self.sent.insert(0, (header.cookie, header.offset));
            }
        }
    }

    /// The connection ends: every request ended once, and the session too.
    fn finish(mut self) {
        self.bench.hold_sends = false;
        self.bench.gone();
        self.bench.gone();
        assert_eq!(self.bench.session.in_flight(), 0);
        let mut tokens: Vec<u32> = self.bench.completed.iter().map(|end| end.token).collect();
        assert_eq!(tokens.len(), self.submitted);
        tokens.sort();
        tokens.dedup();
        assert_eq!(tokens.len(), self.submitted, "a request ended twice");
        let is_failed = |event: &&Event| matches!(event, Event::Failed(_) | Event::Close);
        let ends = self.bench.events.iter().filter(is_failed).count();
        assert_eq!(ends, 1, "{:?}", self.bench.events);
        assert_eq!(self.bench.session.placement(), None);
        assert!(self.bench.session.negotiation_room() <= REPLY_DATA_MAX as usize);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn bytes_of_no_sense(
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        start in 0u8..4,
        piece in 1usize..200,
    ) {
        let mut bench = match start {
            0 => Bench::new(config()),
            1 => {
                let mut bench = Bench::new(config());
                bench.greet(3);
                bench
            }
            2 => Bench::ready(false),
            _ => Bench::ready(true),
        };
        for piece in bytes.chunks(piece) {
            prop_assert_eq!(bench.feed(piece), piece.len());
        }
        Play::new(bench).finish();
    }

    #[test]
    fn acts_of_a_hostile_server_from_the_first_byte(
        flags in 0u16..4,
        acts in prop::collection::vec(act(), 1..40),
        piece in 1usize..5000,
    ) {
        let mut bench = Bench::new(config());
        bench.greet(flags);
        let mut play = Play::new(bench);
        acts.iter().for_each(|act| play.act(act, piece));
        play.finish();
    }

    #[test]
    fn acts_of_a_hostile_server_in_transmission(
        structured: bool,
        hold_sends: bool,
        acts in prop::collection::vec(act(), 1..60),
        piece in 1usize..50_000,
    ) {
        let mut bench = Bench::ready(structured);
        bench.hold_sends = hold_sends;
        let mut play = Play::new(bench);
        acts.iter().for_each(|act| play.act(act, piece));
        play.finish();
    }
}
