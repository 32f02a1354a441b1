//! Sending, and how requests and sessions end.
use super::*;

const GOODBYE: u16 = cmd::DISC;

fn write(token: u32, length: u32) -> Request {
    Request::new(token, Kind::Write, 0, length)
}

fn commands(mut bytes: &[u8]) -> Vec<u16> {
    let mut found = Vec::new();
    while let Some(header) = RequestHeader::parse(bytes) {
        found.push(header.command);
        let data = if header.command == cmd::WRITE {
            header.length as usize
        } else {
            0
        };
        bytes = &bytes[28 + data..];
    }
    assert!(bytes.is_empty());
    found
}

#[test]
fn a_write_goes_out_in_pieces_behind_one_header() {
    let mut bench = Bench::ready(false);
    bench.hold_sends = true;
    let cookie = bench.submit(write(3, 40 * KIB));
    assert_eq!(bench.unsent, [3, 3, 3]);
    assert_eq!(bench.sent[28..], pattern(40 * KIB));
    bench.simple(cookie, 0, &[]);
    for _ in 0..3 {
        assert!(bench.completed.is_empty(), "the buffer is still read");
        bench.unsent.pop();
        bench.session.handle_sent(3);
        bench.pump();
    }
    let end = Completed {
        token: 3,
        result: Ok(()),
    };
    assert_eq!(bench.completed, [end]);
}

#[test]
fn a_write_that_is_answered_early_is_sent_to_its_end() {
    let mut bench = Bench::ready(false);
    let request = write(3, 40 * KIB);
    bench.buffers.insert(3, pattern(request.length));
    bench.session.submit(&request).unwrap();
    let mut out = Vec::new();
    let first = bench.session.poll_transmit(&mut out).unwrap();
    assert_eq!(first.payload.unwrap().len, 16 * KIB);
    bench.session.handle_sent(3);
    let cookie = RequestHeader::parse(&out).unwrap().cookie;
    let mut reply = Vec::new();
    SimpleReply { error: 28, cookie }.emit(&mut reply);
    assert_eq!(bench.session.handle_bytes(&reply, 1), 16);
    let mut rest = 0;
    let mut ended = false;
    out.clear();
    while let Some(transmit) = bench.session.poll_transmit(&mut out) {
        assert!(!ended && out.is_empty(), "the stream needs the rest");
        rest += transmit.payload.unwrap().len;
        bench.session.handle_sent(3);
        ended = rest == 24 * KIB;
    }
    assert_eq!(rest, 24 * KIB);
    bench.pump();
    let result = Err(CommandError::Server(Errno::NoSpc));
    assert_eq!(bench.completed, [Completed { token: 3, result }]);
    // A second answer would be one too many.
    bench.simple(cookie, 0, &[]);
    let fault = Fault::Cookie(cookie);
    assert_eq!(bench.failure(), Some(Error::Protocol(fault)));
}

#[test]
fn a_second_answer_is_one_too_many_even_while_the_buffer_is_read() {
    let mut bench = Bench::ready(false);
    bench.hold_sends = true;
    let cookie = bench.submit(write(3, 1024));
    bench.simple(cookie, 5, &[]);
    bench.simple(cookie, 0, &[]);
    bench.unsent.clear();
    bench.session.handle_sent(3);
    bench.pump();
    let result = Err(CommandError::Server(Errno::Io));
    assert_eq!(bench.completed, [Completed { token: 3, result }]);
    let fault = Fault::Cookie(cookie);
    assert_eq!(bench.failure(), Some(Error::Protocol(fault)));
}

#[test]
fn goodbye_waits_for_the_answers() {
    let mut bench = Bench::ready(true);
    let cookie = bench.submit(Request::flush(1));
    bench.session.disconnect();
    bench.pump();
    let refused = bench.session.submit(&Request::flush(2));
    assert_eq!(refused, Err(SubmitError::NotReady));
    assert_eq!(commands(&bench.sent), [cmd::FLUSH]);
    bench.simple(cookie, 0, &[]);
    assert_eq!(commands(&bench.sent), [cmd::FLUSH, GOODBYE]);
    assert_eq!(bench.events, [Event::Close]);
    bench.gone();
    assert_eq!(
        bench.events,
        [Event::Close],
        "no failure: it is as we asked"
    );
    assert_eq!(bench.completed.len(), 1);
}

#[test]
fn goodbye_at_once_when_nothing_is_in_flight_and_in_the_handshake_an_abort() {
    let mut bench = Bench::ready(true);
    bench.session.disconnect();
    bench.session.disconnect();
    bench.pump();
    assert_eq!(commands(&bench.sent), [GOODBYE]);
    assert_eq!(bench.events, [Event::Close]);
    let mut bench = Bench::new(config());
    bench.greet(3);
    bench.sent.clear();
    bench.session.disconnect();
    bench.pump();
    assert_eq!(bench.sent[8..12], opt::ABORT.to_be_bytes());
    assert_eq!(bench.failure(), Some(Error::Closed));
}

#[test]
fn a_server_that_goes_down_gets_a_goodbye() {
    let mut bench = Bench::ready(true);
    let first = bench.submit(Request::flush(1));
    let second = bench.submit(Request::flush(2));
    bench.simple(first, 108, &[]);
    let refused = bench.session.submit(&Request::flush(3));
    assert_eq!(refused, Err(SubmitError::NotReady));
    assert_eq!(commands(&bench.sent), [cmd::FLUSH; 2]);
    bench.simple(second, 0, &[]);
    assert_eq!(commands(&bench.sent)[2..], [GOODBYE]);
    let results: Vec<_> = bench.completed.iter().map(|end| end.result).collect();
    let shutdown = Err(CommandError::Server(Errno::Shutdown));
    assert_eq!(results, [shutdown, Ok(())]);
}

#[test]
fn a_connection_that_ends_loses_every_request_once() {
    let mut bench = Bench::ready(true);
    bench.hold_sends = true;
    bench.submit(write(1, 1024));
    let cookie = bench.submit(read(2, 0, 1024));
    let half = chunk_bytes(cookie, true, chunk::OFFSET_DATA, &[&[0; 8], &[1; 1024]]);
    bench.feed(&half[..600]);
    bench.hold_transmit = true;
    bench.submit(write(3, 512));
    assert_eq!(bench.session.in_flight(), 3);
    bench.gone();
    assert_eq!(bench.session.placement(), None);
    bench.session.handle_payload(9, 1);
    let mut tokens: Vec<u32> = bench.completed.iter().map(|end| end.token).collect();
    tokens.sort();
    assert_eq!(tokens, [1, 2, 3]);
    let lost = |end: &Completed| end.result == Err(CommandError::Lost);
    assert!(bench.completed.iter().all(lost));
    assert_eq!(bench.events, [Event::Failed(Error::Closed)]);
    let before = bench.sent.len();
    bench.transmit();
    assert_eq!(bench.sent.len(), before, "what waited is not sent");
    assert_eq!(bench.session.in_flight(), 0);
}

#[test]
fn a_failed_session_keeps_lent_buffers_until_they_are_returned() {
    let mut bench = Bench::ready(true);
    bench.hold_sends = true;
    let cookie = bench.submit(write(1, 1024));
    bench.simple(cookie, 0, &[]);
    bench.submit(write(2, 1024));
    bench.submit(Request::flush(3));
    bench.feed(&[0; 4]);
    let tokens: Vec<u32> = bench.completed.iter().map(|end| end.token).collect();
    assert_eq!(tokens, [3]);
    assert!(bench.events.is_empty(), "Failed comes last");
    bench.unsent.clear();
    bench.session.handle_sent(1);
    bench.session.handle_sent(2);
    bench.pump();
    let ends: Vec<_> = bench.completed[1..]
        .iter()
        .map(|e| (e.token, e.result))
        .collect();
    let want = [(1, Ok(())), (2, Err(CommandError::Lost))];
    assert_eq!(ends, want, "what was answered stays so");
    assert!(matches!(bench.failure(), Some(Error::Protocol(_))));
}

#[test]
fn requests_take_no_memory() {
    let capacities = |session: &Session| {
        let own = (session.own.capacity(), session.queue.capacity());
        (own, session.slots.capacity(), session.events.capacity())
    };
    let mut bench = Bench::ready(true);
    bench.session.own = Vec::new();
    let before = capacities(&bench.session);
    for round in 0..50u32 {
        let requests = [
            write(4 * round, 40 * KIB),
            read(4 * round + 1, 0, 4096),
            Request::flush(4 * round + 2),
            write(4 * round + 3, 512),
        ];
        let cookies = requests.map(|request| bench.submit(request));
        for (request, cookie) in requests.iter().zip(cookies) {
            if request.kind == Kind::Read {
                bench.chunk(cookie, true, chunk::OFFSET_DATA, &[&[0; 8], &[1; 4096]]);
            } else {
                bench.simple(cookie, 0, &[]);
            }
        }
        assert_eq!(bench.completed.len(), 4 * round as usize + 4);
        assert!(bench.completed.iter().all(|end| end.result.is_ok()));
    }
    assert_eq!(capacities(&bench.session), before);
}

#[test]
#[should_panic(expected = "payload that was not placed")]
fn payload_without_placement_panics() {
    let mut bench = Bench::ready(true);
    bench.session.handle_payload(0, 1);
}

#[test]
#[should_panic(expected = "handle_sent without a payload")]
fn handle_sent_without_payload_panics() {
    let mut bench = Bench::ready(true);
    bench.session.handle_sent(3);
}

#[test]
fn late_driver_calls_after_the_end_are_ignored() {
    let mut bench = Bench::ready(true);
    bench.session.handle_closed();
    bench.session.handle_payload(1, 1);
    bench.session.handle_sent(3);
}
