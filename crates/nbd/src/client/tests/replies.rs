//! Replies, rule by rule.
use super::*;
use crate::limits::CHUNK_MAX;
use crate::wire::flag;
use crate::wire::state::{HOLE, ZERO};

impl Bench {
    fn data(&mut self, cookie: u64, done: bool, at: u64, data: &[u8]) -> usize {
        self.chunk(cookie, done, chunk::OFFSET_DATA, &[&at.to_be_bytes(), data])
    }

    fn hole(&mut self, cookie: u64, done: bool, at: u64, len: u32) -> usize {
        let parts: [&[u8]; 2] = [&at.to_be_bytes(), &len.to_be_bytes()];
        self.chunk(cookie, done, chunk::OFFSET_HOLE, &parts)
    }

    fn none(&mut self, cookie: u64) {
        self.chunk(cookie, true, chunk::NONE, &[]);
    }

    fn result(&mut self) -> Result<(), CommandError> {
        assert_eq!(self.completed.len(), 1, "{:?}", self.failure());
        self.completed.remove(0).result
    }

    /// One read of 4 KiB at 8 KiB is out: its cookie.
    fn reading(structured: bool) -> (Self, u64) {
        let mut bench = Self::ready(structured);
        let cookie = bench.submit(read(77, 8192, 4096));
        (bench, cookie)
    }

    fn fault(&self) -> Option<Fault> {
        match self.failure() {
            Some(Error::Protocol(fault)) => Some(fault),
            other => panic!("{other:?}"),
        }
    }
}

const LOST: Result<(), CommandError> = Err(CommandError::Lost);

fn server(errno: Errno) -> Result<(), CommandError> {
    Err(CommandError::Server(errno))
}

#[test]
fn requests_are_laid_out_with_their_flags() {
    let mut bench = Bench::ready(true);
    let zeroes = Request {
        no_hole: true,
        fast_zero: true,
        ..Request::new(1, Kind::WriteZeroes, 512, 1024).with_fua()
    };
    let one = Kind::BlockStatus { one: true };
    let cases = [
        (read(1, 512, 1024), cmd::READ, flag::DF),
        (Request::flush(1), cmd::FLUSH, 0),
        (
            Request::new(1, Kind::Trim, 512, 1024).with_fua(),
            cmd::TRIM,
            flag::FUA,
        ),
        (Request::new(1, Kind::Cache, 512, 1024), cmd::CACHE, 0),
        (
            zeroes,
            cmd::WRITE_ZEROES,
            flag::FUA | flag::NO_HOLE | flag::FAST_ZERO,
        ),
        (
            Request::new(1, one, 512, 1024),
            cmd::BLOCK_STATUS,
            flag::REQ_ONE,
        ),
    ];
    for (request, command, flags) in cases {
        bench.submit(request);
        let header = RequestHeader::parse(&core::mem::take(&mut bench.sent)).unwrap();
        let RequestHeader {
            offset,
            length,
            cookie,
            ..
        } = header;
        assert_eq!((header.command, header.flags), (command, flags));
        assert_eq!((offset, length), (request.offset, request.length));
        let inval = chunk_bytes(cookie, true, chunk::ERROR, &[&[0, 0, 0, 22, 0, 0]]);
        bench.feed(&inval);
        assert_eq!(bench.result(), server(Errno::Inval));
    }
}

#[test]
fn requests_the_server_refuses_are_not_sent() {
    let mut bench = Bench::ready(true);
    let zeroes = |kind| Request {
        no_hole: true,
        ..Request::new(0, kind, 0, 512)
    };
    for request in [
        read(0, MIB, 512),
        read(0, 0, 0),
        read(0, 1, 512),
        read(0, 0, 256 * KIB + 512),
        read(0, u64::MAX - 511, 512),
        read(0, 0, 512).with_fua(),
        Request::flush(0).with_fua(),
        zeroes(Kind::Write),
    ] {
        let refused = bench.session.submit(&request);
        assert!(
            matches!(refused, Err(SubmitError::Invalid(_))),
            "{request:?}"
        );
    }
    assert_eq!(bench.session.submit(&zeroes(Kind::WriteZeroes)), Ok(()));
    for token in 1..4 {
        assert_eq!(bench.session.submit(&read(token, 0, 512)), Ok(()));
    }
    let refused = bench.session.submit(&read(4, 0, 512));
    assert_eq!(refused, Err(SubmitError::Full));
}

#[test]
fn a_simple_read_and_its_error() {
    let (mut bench, cookie) = Bench::reading(false);
    bench.simple(cookie, 0, &[5; 4096]);
    assert_eq!(bench.result(), Ok(()));
    assert_eq!(bench.buffers[&77], [5; 4096]);
    let (mut bench, cookie) = Bench::reading(false);
    bench.simple(cookie, 5, &[]);
    assert_eq!(bench.result(), server(Errno::Io));
    assert_eq!(bench.failure(), None);
}

#[test]
fn chunks_may_come_in_any_order_with_holes_between() {
    let (mut bench, cookie) = Bench::reading(true);
    bench.data(cookie, false, 8192 + 3072, &[3; 1024]);
    bench.hole(cookie, false, 8192 + 1024, 1024);
    bench.data(cookie, false, 8192, &[1; 1024]);
    assert!(bench.completed.is_empty());
    bench.data(cookie, true, 8192 + 2048, &[2; 1024]);
    assert_eq!(bench.result(), Ok(()));
    let want = [[1; 1024], [0; 1024], [2; 1024], [3; 1024]];
    assert_eq!(bench.buffers[&77], want.as_flattened());
}

#[test]
fn a_read_may_end_with_none_or_be_one_hole() {
    let (mut bench, cookie) = Bench::reading(true);
    bench.data(cookie, false, 8192, &[1; 4096]);
    assert!(bench.completed.is_empty());
    bench.none(cookie);
    assert_eq!(bench.result(), Ok(()));
    let (mut bench, cookie) = Bench::reading(true);
    bench.hole(cookie, true, 8192, 4096);
    assert_eq!(bench.result(), Ok(()));
    assert_eq!(bench.buffers[&77], [0; 4096]);
}

#[test]
fn t16_a_read_that_ends_without_all_its_data_is_an_error() {
    let (mut bench, cookie) = Bench::reading(true);
    bench.none(cookie);
    assert_eq!(bench.result(), Err(CommandError::Incomplete));
    let (mut bench, cookie) = Bench::reading(true);
    bench.data(cookie, true, 8192, &[1; 4095]);
    assert_eq!(bench.result(), Err(CommandError::Incomplete));
    let (mut bench, cookie) = Bench::reading(true);
    bench.data(cookie, false, 8192, &[1; 1024]);
    bench.hole(cookie, true, 8192 + 2048, 2048);
    assert_eq!(bench.result(), Err(CommandError::Incomplete));
    assert_eq!(bench.failure(), None);
}

#[test]
fn errors_win_whatever_else_the_reply_brings() {
    let eio = [0, 0, 0, 5, 0, 3, b'b', b'a', b'd'];
    let (mut bench, cookie) = Bench::reading(true);
    bench.data(cookie, false, 8192, &[1; 4096]);
    bench.chunk(cookie, false, chunk::ERROR, &[&eio]);
    bench.chunk(cookie, false, chunk::ERROR, &[&[0, 0, 0, 28, 0, 0]]);
    bench.none(cookie);
    assert_eq!(bench.result(), server(Errno::Io), "the first one counts");
    let (mut bench, cookie) = Bench::reading(true);
    bench.chunk(
        cookie,
        false,
        chunk::ERROR_OFFSET,
        &[&eio, &8192u64.to_be_bytes()],
    );
    bench.data(cookie, true, 8192, &[1; 4096]);
    assert_eq!(bench.result(), server(Errno::Io));
    // An unknown error is an error nevertheless, whatever follows its message.
    let (mut bench, cookie) = Bench::reading(true);
    bench.chunk(cookie, true, chunk::IS_ERROR + 99, &[&eio, &[7; 300]]);
    assert_eq!(bench.result(), server(Errno::Io));
    let (mut bench, cookie) = Bench::reading(true);
    bench.chunk(cookie, true, chunk::ERROR, &[&[0; 6]]);
    assert_eq!(
        bench.result(),
        server(Errno::Inval),
        "an error without a number"
    );
}

#[test]
fn data_outside_the_request_or_twice_is_never_placed() {
    for (at, len) in [
        (8191, 1),
        (8191, 4097),
        (8192 + 4096, 1),
        (8192, 4097),
        (0, 1),
        (u64::MAX, 1),
        (u64::MAX - 1, 4096),
    ] {
        let (mut bench, cookie) = Bench::reading(true);
        let before = bench.buffers[&77].clone();
        bench.data(cookie, true, at, &vec![1; len]);
        assert_eq!(bench.fault(), Some(Fault::Outside));
        assert_eq!(bench.result(), LOST);
        assert_eq!(bench.buffers[&77], before);
        let (mut bench, cookie) = Bench::reading(true);
        bench.hole(cookie, true, at, len as u32);
        assert_eq!(bench.fault(), Some(Fault::Outside));
    }
    let (mut bench, cookie) = Bench::reading(true);
    bench.hole(cookie, true, 8192, 0);
    assert_eq!(bench.fault(), Some(Fault::Outside));
    let (mut bench, cookie) = Bench::reading(true);
    bench.data(cookie, false, 8192, &[1; 1024]);
    bench.data(cookie, false, 8192 + 1023, &[2; 2]);
    assert_eq!(bench.fault(), Some(Fault::Overlap));
    assert_eq!(bench.buffers[&77][1023], 1);
}

#[test]
fn a_read_in_too_many_fragments_ends_the_session() {
    let (mut bench, cookie) = Bench::reading(true);
    for i in 0..9 {
        bench.data(cookie, false, 8192 + 2 * i, &[1]);
    }
    assert_eq!(bench.fault(), Some(Fault::Fragments));
}

#[test]
fn t11_a_reply_to_no_request_in_flight_ends_the_session() {
    let (mut bench, cookie) = Bench::reading(true);
    bench.data(cookie, true, 8192, &[1; 4096]);
    bench.submit(read(78, 0, 512));
    bench.none(cookie);
    assert_eq!(
        bench.fault(),
        Some(Fault::Cookie(cookie)),
        "the slot's last one"
    );
    for structured in [false, true] {
        for change in [1 << 16, 1, 1 << 63] {
            let (mut bench, cookie) = Bench::reading(structured);
            let cookie = cookie ^ change;
            if structured {
                bench.none(cookie);
            } else {
                bench.simple(cookie, 0, &[]);
            }
            assert_eq!(bench.fault(), Some(Fault::Cookie(cookie)));
            assert_eq!(bench.result(), LOST);
        }
    }
}

#[test]
fn t11_an_answer_to_an_unsent_request_is_refused() {
    let mut bench = Bench::ready(true);
    bench.hold_transmit = true;
    bench.submit(read(1, 0, 512));
    bench.none(0);
    assert_eq!(bench.fault(), Some(Fault::Cookie(0)));
    assert_eq!(bench.result(), LOST);
}

#[test]
fn replies_keep_the_form_that_was_agreed() {
    let (mut bench, cookie) = Bench::reading(false);
    bench.none(cookie);
    assert_eq!(bench.fault(), Some(Fault::ReplyForm));
    for error in [0, 5] {
        let (mut bench, cookie) = Bench::reading(true);
        bench.simple(cookie, error, &[]);
        assert_eq!(bench.fault(), Some(Fault::ReplyForm), "not even an error");
    }
    let mut bench = Bench::ready(true);
    let cookie = bench.submit(Request::flush(1));
    bench.simple(cookie, 0, &[]);
    assert_eq!(bench.result(), Ok(()), "without data both are legal");
    let cookie = bench.submit(Request::flush(1));
    bench.none(cookie);
    assert_eq!(bench.result(), Ok(()));
    let (mut bench, _) = Bench::reading(true);
    bench.feed(&[1, 2, 3, 4]);
    assert_eq!(bench.fault(), Some(Fault::ReplyMagic(0x0102_0304)));
}

#[test]
fn chunks_that_can_not_be_end_the_session() {
    let status = Kind::BlockStatus { one: false };
    let at = 8192u64.to_be_bytes();
    let long = vec![0; CHUNK_MAX as usize + 4];
    let cases: [(Kind, bool, u16, &[u8]); 16] = [
        (Kind::Read, true, chunk::ERROR, &long),
        (Kind::Read, true, chunk::ERROR_OFFSET, &long),
        (Kind::Read, false, chunk::NONE, &[]),
        (Kind::Read, true, chunk::NONE, &[0]),
        (Kind::Read, true, chunk::OFFSET_DATA, &at),
        (Kind::Read, true, chunk::OFFSET_HOLE, &at),
        (Kind::Read, true, 3, &[0; 16]),
        (Kind::Read, true, chunk::BLOCK_STATUS, &[0; 12]),
        (Kind::Read, true, chunk::ERROR, &[0; 5]),
        (Kind::Read, true, chunk::ERROR_OFFSET, &[0; 13]),
        (Kind::Read, true, chunk::ERROR, &[0, 0, 0, 5, 0, 1]),
        (Kind::Cache, true, chunk::OFFSET_DATA, &[0; 9]),
        (Kind::Cache, true, chunk::OFFSET_HOLE, &[0; 12]),
        (status, true, chunk::BLOCK_STATUS, &[0; 4]),
        (status, true, chunk::BLOCK_STATUS, &[0; 16]),
        (status, true, chunk::OFFSET_DATA, &[0; 9]),
    ];
    for (asked, done, kind, body) in cases {
        let mut bench = Bench::ready(true);
        let cookie = bench.submit(Request::new(1, asked, 8192, 4096));
        bench.chunk(cookie, done, kind, &[body]);
        let len = body.len() as u32;
        assert_eq!(bench.fault(), Some(Fault::Chunk { kind, len }));
        assert_eq!(bench.result(), LOST);
    }
}

fn extents(context: u32, list: &[(u32, u32)]) -> Vec<u8> {
    let mut body = context.to_be_bytes().to_vec();
    for (length, flags) in list {
        body.extend(length.to_be_bytes());
        body.extend(flags.to_be_bytes());
    }
    body
}

#[test]
fn block_status_brings_extents_of_our_context() {
    let mut bench = Bench::ready(true);
    let status = |one| Request::new(5, Kind::BlockStatus { one }, 0, 8192);
    let cookie = bench.submit(status(false));
    // The last one may reach beyond the request.
    let list = [(512, 0), (1024, HOLE | ZERO), (1 << 30, ZERO)];
    bench.chunk(cookie, true, chunk::BLOCK_STATUS, &[&extents(9, &list)]);
    assert_eq!(bench.result(), Ok(()));
    let said: Vec<_> = bench.extents.iter().map(|e| (e.length, e.flags)).collect();
    assert_eq!(said, list);
    let cookie = bench.submit(status(false));
    assert!(bench.session.extents().is_empty(), "of another request");
    bench.chunk(
        cookie,
        true,
        chunk::BLOCK_STATUS,
        &[&extents(9, &[(256, 0), (256, HOLE)].repeat(8))],
    );
    assert_eq!(bench.result(), Ok(()));
    assert_eq!(bench.extents.len(), 16);
    let cookie = bench.submit(status(false));
    bench.none(cookie);
    assert_eq!(bench.result(), Err(CommandError::Incomplete));
    assert!(bench.extents.is_empty());
}

#[test]
fn extents_that_can_not_be_end_the_session() {
    let many = [(512, 0); 17];
    let cases = [
        (false, 8, &[(512, 0)][..]),
        (false, 9, &[(0, 0)]),
        (false, 9, &[(8192, 0), (1, 0)]),
        (true, 9, &[(512, 0), (512, 0)]),
        (true, 9, &[(8193, 0)]),
        (false, 9, &many),
    ];
    for (one, context, list) in cases {
        let mut bench = Bench::ready(true);
        let request = Request::new(5, Kind::BlockStatus { one }, 0, 8192);
        let cookie = bench.submit(request);
        bench.chunk(
            cookie,
            true,
            chunk::BLOCK_STATUS,
            &[&extents(context, list)],
        );
        assert!(bench.fault().is_some(), "{list:?}");
        assert_eq!(bench.result(), LOST);
    }
    let mut bench = Bench::ready(true);
    let request = Request::new(5, Kind::BlockStatus { one: false }, 0, 8192);
    let cookie = bench.submit(request);
    let body = extents(9, &[(512, 0)]);
    bench.chunk(cookie, false, chunk::BLOCK_STATUS, &[&body]);
    bench.chunk(cookie, true, chunk::BLOCK_STATUS, &[&body]);
    assert!(bench.fault().is_some(), "one chunk for a context");
}

#[test]
fn endless_holes_wait_until_their_events_are_polled() {
    let mut bench = Bench::ready(true);
    let cookie = bench.submit(read(1, 0, 64 * KIB));
    let mut bytes = Vec::new();
    for at in 0..64u64 * 1024 {
        let parts: [&[u8]; 2] = [&at.to_be_bytes(), &[0, 0, 0, 1]];
        bytes.extend(chunk_bytes(cookie, at == 65535, chunk::OFFSET_HOLE, &parts));
    }
    let capacity = bench.session.events.capacity();
    let taken = bench.session.handle_bytes(&bytes, 1);
    assert!(taken <= 32 * capacity, "{taken} bytes");
    assert_eq!(bench.session.handle_bytes(&bytes[taken..], 1), 0);
    bench.pump();
    assert_eq!(bench.resumed, 1);
    assert_eq!(bench.feed(&bytes[taken..]), bytes.len() - taken);
    assert_eq!(bench.result(), Ok(()));
    assert_eq!(bench.session.events.capacity(), capacity);
}

/// The server may answer in as many extents as it likes; the owner asks for the rest again.
#[test]
fn block_status_of_any_length_keeps_the_first_runs() {
    const LENGTH: u32 = 1 << 20;
    let mut bench = Bench::ready(true);
    let status = Request::new(5, Kind::BlockStatus { one: false }, 0, LENGTH);
    let cookie = bench.submit(status);
    // 2 MiB of answer, of 2 bytes each: runs of 64 KiB, in turn.
    let list: Vec<_> = (0..LENGTH / 4)
        .map(|i| {
            (
                4,
                if (i / (16 * KIB)).is_multiple_of(2) {
                    0
                } else {
                    HOLE | ZERO
                },
            )
        })
        .collect();
    let body = extents(9, &list);
    assert!(body.len() > CHUNK_MAX as usize);
    bench.chunk(cookie, true, chunk::BLOCK_STATUS, &[&body]);
    assert_eq!(bench.result(), Ok(()));
    assert_eq!(bench.failure(), None);
    let said: Vec<_> = bench.extents.iter().map(|e| (e.length, e.flags)).collect();
    let runs: Vec<_> = (0..16)
        .map(|i| (64 * KIB, if i % 2 == 0 { 0 } else { HOLE | ZERO }))
        .collect();
    assert_eq!(said, runs);
    // More extents than there are bytes cannot be.
    let cookie = bench.submit(Request {
        length: 512,
        ..status
    });
    let body = extents(9, &[(1, 0); 513]);
    bench.chunk(cookie, true, chunk::BLOCK_STATUS, &[&body]);
    let fault = Fault::Chunk {
        kind: chunk::BLOCK_STATUS,
        len: body.len() as u32,
    };
    assert_eq!(bench.fault(), Some(fault));
}

/// No extent behind a run that found no room is kept: the list has no gap.
#[test]
fn extents_that_are_kept_have_no_gap() {
    let mut bench = Bench::ready(true);
    let status = Request::new(5, Kind::BlockStatus { one: false }, 0, 64 * KIB);
    let cookie = bench.submit(status);
    let mut list = [(512, 0), (512, HOLE)].repeat(8);
    // The seventeenth has no room, the eighteenth has the status of the last one kept.
    list.extend([(512, ZERO), (512, HOLE)]);
    bench.chunk(cookie, true, chunk::BLOCK_STATUS, &[&extents(9, &list)]);
    assert_eq!(bench.result(), Ok(()));
    let said: Vec<_> = bench.extents.iter().map(|e| (e.length, e.flags)).collect();
    assert_eq!(said, list[..16]);
}

#[test]
fn read_has_df_only_where_the_server_offers_it() {
    for (structured, offered, flags) in [(true, true, flag::DF), (true, false, 0), (false, true, 0)]
    {
        let mut bench = Bench::new(Config {
            structured,
            block_status: false,
            ..config()
        });
        bench.greet(bits::FIXED_NEWSTYLE | bits::NO_ZEROES);
        if structured {
            bench.reply(opt::STRUCTURED_REPLY, rep::ACK, &[]);
        }
        let all = if offered {
            ALL_FLAGS
        } else {
            ALL_FLAGS & !transmission::SEND_DF
        };
        bench.reply(opt::GO, rep::INFO, &export_info(MIB, all));
        bench.reply(opt::GO, rep::ACK, &[]);
        bench.sent.clear();
        bench.submit(read(1, 0, 4096));
        let header = RequestHeader::parse(&bench.sent).unwrap();
        assert_eq!(header.flags, flags, "{structured} {offered}");
    }
}

/// "NBD_EOVERFLOW SHOULD NOT be sent but to a read with DF": the read is asked for in any pieces.
#[test]
fn read_too_large_for_one_piece_is_asked_without_df() {
    let (mut bench, cookie) = Bench::reading(true);
    bench.sent.clear();
    let overflow = [0, 0, 0, 75, 0, 0];
    bench.chunk(cookie, true, chunk::ERROR, &[&overflow]);
    assert!(bench.completed.is_empty());
    let again = RequestHeader::parse(&bench.sent).unwrap();
    assert_eq!((again.command, again.flags), (cmd::READ, 0));
    assert_eq!((again.offset, again.length), (8192, 4096));
    assert_ne!(again.cookie, cookie, "T11");
    bench.data(again.cookie, false, 8192, &[1; 2048]);
    bench.data(again.cookie, true, 8192 + 2048, &[2; 2048]);
    assert_eq!(bench.result(), Ok(()));
    let want = [[1; 2048], [2; 2048]];
    assert_eq!(bench.buffers[&77], want.as_flattened());
    // Only once: EOVERFLOW of a read without DF is a failure.
    let (mut bench, cookie) = Bench::reading(true);
    bench.sent.clear();
    bench.chunk(cookie, true, chunk::ERROR, &[&overflow]);
    let again = RequestHeader::parse(&bench.sent).unwrap().cookie;
    bench.chunk(again, true, chunk::ERROR, &[&overflow]);
    assert_eq!(bench.result(), server(Errno::Overflow));
    assert_eq!(bench.failure(), None);
    // The first cookie is no longer valid.
    let (mut bench, cookie) = Bench::reading(true);
    bench.chunk(cookie, true, chunk::ERROR, &[&overflow]);
    bench.none(cookie);
    assert_eq!(bench.fault(), Some(Fault::Cookie(cookie)));
    assert_eq!(bench.result(), LOST);
}
