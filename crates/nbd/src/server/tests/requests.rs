//! Transmission, rule by rule.
use super::*;
use crate::wire::{cmd, flag, state};
use crate::{Errno, Extent};

const EIO: u32 = 5;
const EINVAL: u32 = 22;
const EOVERFLOW: u32 = 75;

fn simple(cookie: u64, error: u32, data: &[u8]) -> Reply {
    let data = data.to_vec();
    Reply::Simple {
        error,
        cookie,
        data,
    }
}

/// A chunk of data at byte `at`.
fn data_chunk(cookie: u64, done: bool, at: u64, data: &[u8]) -> Reply {
    Reply::Chunk {
        done,
        kind: chunk::OFFSET_DATA,
        cookie,
        body: [&at.to_be_bytes(), data].concat(),
    }
}

#[test]
fn a_simple_read_is_one_header_and_its_data() {
    let mut bench = Bench::open(false, true);
    for length in [512, 16 * KIB, 64 * KIB] {
        let header = request(cmd::READ, 0, 1024, length);
        let want = bench.disk[1024..1024 + length as usize].to_vec();
        assert_eq!(bench.ask(header, &[]), [simple(header.cookie, 0, &want)]);
    }
}

#[test]
fn chunks_of_a_long_read_alternate_with_replies() {
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    let long = request(cmd::READ, 0, 0, 40 * KIB);
    bench.ask(long, &[]);
    let mut short = request(cmd::READ, 0, 512, 512);
    short.cookie += 1;
    bench.ask(short, &[]);
    bench.hold.transmit = true;
    bench.complete(0, Ok(()));
    bench.complete(0, Ok(()));
    let before = bench.sent.len();
    bench.transmit();
    let disk = |at: usize, len: u32| &bench.disk[at..at + len as usize];
    let k16 = 16 * KIB as usize;
    let want = [
        data_chunk(long.cookie, false, 0, disk(0, 16 * KIB)),
        data_chunk(short.cookie, true, 512, disk(512, 512)),
        data_chunk(long.cookie, false, 16 << 10, disk(k16, 16 * KIB)),
        data_chunk(long.cookie, true, 32 << 10, disk(2 * k16, 8 * KIB)),
    ];
    assert_eq!(bench.replies(before), want);
}

#[test]
fn df_is_one_chunk_and_too_long_a_read_overflows() {
    let mut bench = Bench::open(true, true);
    let header = request(cmd::READ, flag::DF, 512, 64 * KIB);
    let want = bench.disk[512..512 + 65536].to_vec();
    let want = [data_chunk(header.cookie, true, 512, &want)];
    assert_eq!(bench.ask(header, &[]), want);
    let longer = request(cmd::READ, flag::DF, 0, 64 * KIB + 512);
    assert_eq!(bench.error_of(longer, &[]), EOVERFLOW);
    let longer = request(cmd::READ, 0, 0, 64 * KIB + 512);
    assert_eq!(bench.error_of(longer, &[]), EINVAL);
}

#[test]
fn a_write_asks_for_a_buffer_and_is_executed_when_all_is_here() {
    for structured in [false, true] {
        let mut bench = Bench::open(structured, true);
        bench.hold.buffers = true;
        let data: Vec<u8> = (0..40 * KIB).map(|i| (i * 3) as u8).collect();
        let header = request(cmd::WRITE, flag::FUA, 4096, 40 * KIB);
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        bytes.extend_from_slice(&data);
        assert_eq!(bench.feed(&bytes), 28, "no buffer, no data");
        assert_eq!(bench.wanted, [0]);
        bench.session.buffer_ready(0);
        assert_eq!(bench.feed(&bytes[28..1000]), 972);
        assert!(bench.executed.is_empty());
        let before = bench.sent.len();
        bench.feed(&bytes[1000..]);
        assert_eq!(bench.replies(before), [simple(header.cookie, 0, &[])]);
        let want = Request::new(0, Kind::Write, 4096, 40 * KIB).with_fua();
        assert_eq!(bench.executed, [want]);
        assert!(bench.disk[4096..].starts_with(&data));
        assert!(bench.buffers.is_empty());
    }
}

#[test]
fn every_command_reaches_the_driver_with_its_flags() {
    let mut bench = Bench::open(true, true);
    let asked = [
        (cmd::READ, flag::FUA, Kind::Read),
        (cmd::TRIM, flag::FUA, Kind::Trim),
        (cmd::CACHE, 0, Kind::Cache),
        (cmd::WRITE_ZEROES, 0, Kind::WriteZeroes),
        (cmd::BLOCK_STATUS, 0, Kind::BlockStatus { one: false }),
        (
            cmd::BLOCK_STATUS,
            flag::REQ_ONE | flag::FUA,
            Kind::BlockStatus { one: true },
        ),
    ];
    for (command, flags, kind) in asked {
        assert_eq!(bench.error_of(request(command, flags, 512, 1024), &[]), 0);
        let mut want = Request::new(0, kind, 512, 1024);
        // FUA has no effect on commands that do not write.
        want.fua = kind == Kind::Trim;
        assert_eq!(bench.executed.pop(), Some(want));
    }
    assert_eq!(bench.error_of(request(cmd::FLUSH, 0, 0, 0), &[]), 0);
    assert_eq!(bench.executed.pop(), Some(Request::flush(0)));
    let all = flag::FUA | flag::NO_HOLE | flag::FAST_ZERO;
    assert_eq!(
        bench.error_of(request(cmd::WRITE_ZEROES, all, 0, 512), &[]),
        0
    );
    let zeroes = bench.executed.pop().unwrap();
    assert!(zeroes.fua && zeroes.no_hole && zeroes.fast_zero);
}

#[test]
fn zeroes_trims_and_hints_may_be_longer_than_the_maximum() {
    let mut bench = Bench::open(true, true);
    for command in [cmd::TRIM, cmd::CACHE, cmd::WRITE_ZEROES, cmd::BLOCK_STATUS] {
        assert_eq!(bench.error_of(request(command, 0, 0, MIB as u32), &[]), 0);
    }
}

#[test]
fn errors_are_chunks_with_a_message_where_they_can_be() {
    let mut bench = Bench::open(true, true);
    let header = request(cmd::READ, 0, MIB, 512);
    let replies = bench.ask(header, &[]);
    let [
        Reply::Chunk {
            done: true,
            kind: chunk::ERROR,
            body,
            ..
        },
    ] = &replies[..]
    else {
        panic!("{replies:?}");
    };
    let mut fields = Fields(body);
    assert_eq!(fields.u32(), Some(EINVAL));
    assert_eq!(fields.u16(), Some(fields.0.len() as u16));
    assert_eq!(fields.0, b"the range is beyond the end of the export");
    let mut bench = Bench::open(false, true);
    let header = request(cmd::READ, 0, MIB, 512);
    let want = simple(header.cookie, EINVAL, &[]);
    assert_eq!(bench.ask(header, &[]), [want]);
}

#[test]
fn the_drivers_errors_reach_the_client() {
    let all = [
        (Errno::Perm, 1),
        (Errno::Io, 5),
        (Errno::NoMem, 12),
        (Errno::Inval, 22),
        (Errno::NoSpc, 28),
        // EOVERFLOW has one use, and this is another (Error values).
        (Errno::Overflow, 22),
        (Errno::Shutdown, 108),
    ];
    for structured in [false, true] {
        let mut bench = Bench::open(structured, true);
        bench.hold.requests = true;
        for (errno, code) in all {
            for command in [cmd::READ, cmd::WRITE_ZEROES] {
                bench.ask(request(command, 0, 0, 1024), &[]);
                let before = bench.sent.len();
                bench.complete(0, Err(errno));
                let replies = bench.replies(before);
                assert_eq!(replies.len(), 1);
                assert_eq!(error(&replies[0]), code);
            }
        }
        // Zeroing may become unsupported after a client was told that it is supported.
        for (command, flags, code) in [
            (cmd::WRITE_ZEROES, flag::FAST_ZERO, 95),
            (cmd::WRITE_ZEROES, 0, 95),
            (cmd::READ, 0, 22),
        ] {
            bench.ask(request(command, flags, 0, 1024), &[]);
            let before = bench.sent.len();
            bench.complete(0, Err(Errno::NotSup));
            assert_eq!(error(&bench.replies(before)[0]), code, "{command}");
        }
    }
}

#[test]
fn a_read_that_fails_midway_says_where_and_brings_what_lies_before() {
    let at = 20 * u64::from(KIB);
    for df in [0, flag::DF] {
        let mut bench = Bench::open(true, true);
        bench.hold.requests = true;
        let header = request(cmd::READ, df, 512, 64 * KIB);
        bench.ask(header, &[]);
        let asked = bench.requests.remove(0);
        bench.execute(asked);
        let (session, now) = (&mut bench.session, bench.now);
        session.complete_failed_at(asked.token, Errno::Io, 512 + at, now);
        let before = bench.sent.len();
        bench.pump();
        let replies = bench.replies(before);
        let (end, chunks) = replies.split_last().unwrap();
        let body = [&EIO.to_be_bytes()[..], &[0, 0], &(512 + at).to_be_bytes()].concat();
        let want = Reply::Chunk {
            done: true,
            kind: chunk::ERROR_OFFSET,
            cookie: header.cookie,
            body,
        };
        assert_eq!(*end, want);
        assert_eq!(chunks.len(), if df == 0 { 2 } else { 1 });
        let mut data = Vec::new();
        for chunk in chunks {
            let Reply::Chunk {
                done: false, body, ..
            } = chunk
            else {
                panic!("{chunk:?}");
            };
            assert_eq!(Fields(body).u64(), Some(512 + data.len() as u64));
            data.extend_from_slice(&body[8..]);
        }
        assert_eq!(data, bench.disk[512..512 + at as usize]);
    }
}

#[test]
fn an_error_at_an_offset_is_a_plain_one_where_that_can_not_be_said() {
    for (structured, at, kind) in [
        (false, 1024, None),
        (true, 511, Some(chunk::ERROR)),
        (true, 2048, Some(chunk::ERROR)),
        (true, u64::MAX, Some(chunk::ERROR)),
        (true, 512, Some(chunk::ERROR_OFFSET)),
    ] {
        let mut bench = Bench::open(structured, true);
        bench.hold.requests = true;
        bench.ask(request(cmd::READ, 0, 512, 1536), &[]);
        let asked = bench.requests.remove(0);
        let (session, now) = (&mut bench.session, bench.now);
        session.complete_failed_at(asked.token, Errno::Io, at, now);
        let before = bench.sent.len();
        bench.pump();
        let replies = bench.replies(before);
        assert_eq!(replies.len(), 1, "no data: {replies:?}");
        assert_eq!(error(&replies[0]), EIO);
        let said = match replies[0] {
            Reply::Simple { .. } => None,
            Reply::Chunk { kind, .. } => Some(kind),
        };
        assert_eq!(said, kind);
    }
}

#[test]
fn block_status_says_what_the_driver_knows_within_the_request() {
    let extent = |length, flags| Extent { length, flags };
    let given = [
        extent(512, 0),
        extent(0, state::ZERO),
        extent(1024, state::HOLE | state::ZERO),
        extent(u32::MAX, 0),
        extent(512, state::ZERO),
    ];
    let many = [extent(512, 0); 40];
    let cases = [
        (
            0,
            &given[..],
            &[(512u32, 0u32), (1024, 3), (64 * KIB - 1536, 0)][..],
        ),
        (flag::REQ_ONE, &given[2..], &[(1024, 3)]),
        (0, &[], &[(64 * KIB, 0)]),
        (0, &many, &[(512, 0); 16]),
    ];
    for (flags, given, want) in cases {
        let mut bench = Bench::open(true, true);
        bench.hold.requests = true;
        let header = request(cmd::BLOCK_STATUS, flags, 512, 64 * KIB);
        bench.ask(header, &[]);
        let token = bench.requests.remove(0).token;
        let (session, now) = (&mut bench.session, bench.now);
        session.complete_status(token, given, now);
        let before = bench.sent.len();
        bench.pump();
        let mut body = super::options::CONTEXT_ID.to_be_bytes().to_vec();
        for (length, flags) in want {
            body.extend(length.to_be_bytes());
            body.extend(flags.to_be_bytes());
        }
        let want = Reply::Chunk {
            done: true,
            kind: chunk::BLOCK_STATUS,
            cookie: header.cookie,
            body,
        };
        assert_eq!(bench.replies(before), [want]);
    }
}

#[test]
fn a_plain_success_of_block_status_is_all_allocated_even_after_other_answers() {
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    let header = request(cmd::BLOCK_STATUS, 0, 0, 4096);
    bench.ask(header, &[]);
    let token = bench.requests.remove(0).token;
    let hole = Extent {
        length: 512,
        flags: state::HOLE,
    };
    let now = bench.now;
    bench.session.complete_status(token, &[hole; 3], now);
    bench.pump();
    bench.hold.requests = false;
    let replies = bench.ask(header, &[]);
    let Reply::Chunk { body, .. } = &replies[0] else {
        panic!("{replies:?}");
    };
    assert_eq!(body[4..], [0, 0, 16, 0, 0, 0, 0, 0]);
}

#[test]
fn requests_in_flight_are_bounded_and_the_stream_waits() {
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    let mut bytes = Vec::new();
    for _ in 0..6 {
        request(cmd::READ, 0, 0, 512).emit(&mut bytes);
    }
    assert_eq!(bench.feed(&bytes), 4 * 28);
    assert_eq!((bench.requests.len(), bench.session.in_flight()), (4, 4));
    bench.hold.sends = true;
    bench.complete(2, Ok(()));
    assert_eq!(
        bench.resumed, 0,
        "the client's answer isn't out of the buffer"
    );
    let token = bench.unsent.remove(0);
    bench.session.handle_sent(token);
    bench.pump();
    assert_eq!(bench.resumed, 1);
    assert_eq!(bench.feed(&bytes[4 * 28..]), 28);
    // Refused requests occupy a slot as well, until they are answered.
    bench.hold.sends = false;
    bench.hold.transmit = true;
    bench.complete(0, Ok(()));
    bench.feed(&bytes[28..]);
    bench.transmit();
    bench.pump();
    assert_eq!(bench.resumed, 2);
}

#[test]
fn a_buffer_is_released_when_all_its_pieces_were_sent() {
    let mut bench = Bench::open(false, true);
    bench.hold.sends = true;
    bench.ask(request(cmd::READ, 0, 0, 40 * KIB), &[]);
    assert_eq!(bench.unsent, [0, 0, 0]);
    for left in (0..3).rev() {
        assert_eq!(bench.buffers.len(), 1);
        bench.unsent.pop();
        bench.session.handle_sent(0);
        bench.pump();
        assert_eq!(bench.unsent.len(), left);
    }
    assert!(bench.buffers.is_empty());
}

#[test]
fn requests_take_no_memory() {
    let capacities = |session: &Session| {
        let tx = (session.tx.queue.capacity(), session.tx.own.capacity());
        (tx, session.slots.capacity(), session.events.capacity())
    };
    for structured in [false, true] {
        let mut bench = Bench::open(structured, true);
        assert_eq!(
            bench.session.slots.capacity().0,
            0,
            "an idle client has none"
        );
        bench.ask(request(cmd::FLUSH, 0, 9, 0), &[]);
        let before = capacities(&bench.session);
        assert_eq!(bench.session.rx.capacity(), 0);
        bench.hold.requests = true;
        for round in 0..50 {
            let mut bytes = Vec::new();
            for i in 0..4u16 {
                let command = [cmd::READ, cmd::WRITE, cmd::FLUSH, 9][usize::from(i)];
                let length = if command == cmd::FLUSH { 0 } else { 20 * KIB };
                request(command, 0, 0, length).emit(&mut bytes);
                if command == cmd::WRITE {
                    bytes.resize(bytes.len() + length as usize, round);
                }
            }
            assert_eq!(bench.feed(&bytes), bytes.len());
            while !bench.requests.is_empty() {
                bench.complete(0, Ok(()));
            }
        }
        assert_eq!(capacities(&bench.session), before);
    }
}

/// A driver with a buffer at hand receives the data before it has taken earlier events.
#[test]
fn buffer_request_is_answered_before_earlier_events() {
    let mut bench = Bench::open(false, true);
    let mut bytes = Vec::new();
    request(cmd::READ, 0, 0, 512).emit(&mut bytes);
    request(cmd::WRITE, 0, 1024, 512).emit(&mut bytes);
    let session = &mut bench.session;
    assert_eq!(session.buffer_request(), None);
    assert_eq!(session.handle_bytes(&bytes, 1), bytes.len());
    assert_eq!(session.take_release(), None);
    let wanted = session.buffer_request().unwrap();
    let Request {
        kind,
        offset,
        length,
        ..
    } = wanted;
    assert_eq!((kind, offset, length), (Kind::Write, 1024, 512));
    session.withdraw_buffer_request();
    session.buffer_ready(wanted.token);
    assert_eq!(session.placement().map(|it| it.len), Some(512));
    session.handle_payload(512, 1);
    let events = core::iter::from_fn(|| session.poll_event());
    let kinds = events.map(|it| match it {
        Event::Request(request) => request.kind,
        other => panic!("{other:?}"),
    });
    assert!(kinds.eq([Kind::Read, Kind::Write]));
}

/// Requests that are over are released before a buffer is given to another of their tokens.
#[test]
fn releases_in_front_are_taken_alone() {
    let mut bench = Bench::open(false, true);
    let mut bytes = Vec::new();
    request(cmd::FLUSH, 0, 0, 0).emit(&mut bytes);
    let session = &mut bench.session;
    session.handle_bytes(&bytes, 1);
    let Some(Event::Request(flush)) = session.poll_event() else {
        panic!("no request");
    };
    session.complete(flush.token, Ok(()), 1);
    assert_eq!(session.poll_event(), Some(Event::Transmit));
    session.poll_transmit(&mut Vec::new());
    request(cmd::WRITE, 0, 0, 512).emit(&mut bytes);
    session.handle_bytes(&bytes[28..], 1);
    assert_eq!(session.take_release(), Some(flush.token));
    assert_eq!(session.take_release(), None);
    assert_eq!(
        session.buffer_request().map(|it| it.token),
        Some(flush.token)
    );
}
