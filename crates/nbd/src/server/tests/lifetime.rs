//! How sessions end.
use super::*;
use crate::limits::LINGER_NS;
use crate::wire::{cmd, rep};

const ESHUTDOWN: u32 = 108;

fn tick(bench: &mut Bench) {
    bench.now = bench.session.poll_timeout().unwrap();
    let now = bench.now;
    bench.session.handle_timeout(now);
    bench.pump();
}

#[test]
fn the_handshake_has_a_deadline_as_a_whole() {
    let mut bench = Bench::greeted();
    assert_eq!(bench.session.poll_timeout(), Some(1 + 1000 * MS));
    bench.now = 900 * MS;
    bench.option(99, &[]);
    assert_eq!(bench.session.poll_timeout(), Some(1 + 1000 * MS));
    let now = bench.now;
    bench.session.handle_timeout(now);
    assert!(bench.closed.is_empty(), "too early");
    tick(&mut bench);
    assert_eq!(bench.closed, [CloseReason::Handshake]);
    assert!(bench.closed[0].is_abortive());
    bench.gone();
    assert!(bench.session.is_over());
    assert_eq!(bench.session.poll_timeout(), None);
}

#[test]
fn disc_waits_for_what_is_in_flight_and_nothing_behind_it_is_read() {
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    bench.ask(request(cmd::READ, 0, 0, 512), &[]);
    bench.ask(request(cmd::FLUSH, 0, 0, 0), &[]);
    let mut bytes = Vec::new();
    request(cmd::DISC, 0, 0, 0).emit(&mut bytes);
    request(cmd::READ, 0, 0, 512).emit(&mut bytes);
    assert_eq!(bench.feed(&bytes), bytes.len());
    assert_eq!(bench.requests.len(), 2);
    bench.complete(1, Ok(()));
    assert!(bench.closed.is_empty());
    bench.complete(0, Ok(()));
    assert_eq!(bench.closed, [CloseReason::Finished]);
    assert_eq!(bench.replies(0).len(), 2, "all answers, and none to DISC");
    bench.gone();
    assert!(bench.session.is_over());
}

#[test]
fn disc_without_anything_in_flight_ends_at_once_and_answers_still_go_out() {
    let mut bench = Bench::open(true, true);
    bench.hold.transmit = true;
    let mut bytes = Vec::new();
    request(cmd::READ, 0, 0, 512).emit(&mut bytes);
    request(cmd::DISC, 0, 0, 0).emit(&mut bytes);
    bench.feed(&bytes);
    assert_eq!(bench.closed, [CloseReason::Finished]);
    bench.transmit();
    assert_eq!(bench.replies(0).len(), 1);
}

#[test]
fn a_client_that_does_not_take_its_answers_is_cut_off() {
    let mut bench = Bench::open(true, true);
    bench.hold.transmit = true;
    let mut bytes = Vec::new();
    request(cmd::READ, 0, 0, 512).emit(&mut bytes);
    request(cmd::DISC, 0, 0, 0).emit(&mut bytes);
    bench.feed(&bytes);
    assert_eq!(bench.session.poll_timeout(), Some(bench.now + LINGER_NS));
    tick(&mut bench);
    let want = [CloseReason::Finished, CloseReason::Linger];
    assert_eq!(bench.closed, want);
    assert!(bench.closed[1].is_abortive());
    assert_eq!(bench.session.poll_timeout(), None, "once");
    bench.transmit();
    assert!(bench.sent.is_empty());
    bench.gone();
    assert!(bench.buffers.is_empty() && bench.session.is_over());
}

#[test]
fn a_wrong_magic_ends_the_session_and_nothing_more_is_said() {
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    bench.hold.transmit = true;
    bench.ask(request(cmd::READ, 0, 0, 512), &[]);
    bench.ask(request(99, 0, 0, 0), &[]);
    bench.feed(&[0x25; 28]);
    let reason = CloseReason::Protocol(Fault::RequestMagic);
    assert_eq!(bench.closed, [reason]);
    assert!(reason.is_abortive());
    bench.transmit();
    bench.complete(0, Ok(()));
    bench.transmit();
    assert!(bench.sent.is_empty());
    assert!(bench.buffers.is_empty(), "released without a reply");
    bench.gone();
    assert!(bench.session.is_over());
}

#[test]
fn a_client_that_vanishes_leaves_no_buffer_behind() {
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    bench.hold.sends = true;
    // One answered and being sent, one at the driver, one refused and skipped, one half received.
    bench.ask(request(cmd::READ, 0, 0, 512), &[]);
    bench.complete(0, Ok(()));
    bench.ask(request(cmd::READ, 0, 0, 1024), &[]);
    bench.hold.transmit = true;
    bench.ask(request(99, 0, 0, 0), &[]);
    let mut bytes = Vec::new();
    request(cmd::WRITE, 0, 0, 4096).emit(&mut bytes);
    bytes.extend([1; 100]);
    bench.feed(&bytes);
    assert_eq!(bench.session.in_flight(), 4);
    let place = bench.session.placement().unwrap();
    assert_eq!((place.token, place.offset, place.len), (3, 100, 3996));
    bench.gone();
    assert_eq!(bench.session.placement(), None);
    let held: Vec<u32> = bench.buffers.keys().copied().collect();
    assert_eq!(held, [0, 1], "one is read by a socket, one by the storage");
    assert!(!bench.session.is_over());
    bench.unsent.clear();
    bench.session.handle_sent(0);
    bench.pump();
    bench.complete(0, Err(Errno::Io));
    assert!(bench.buffers.is_empty());
    assert!(bench.session.is_over());
}

#[test]
fn late_calls_after_the_end_change_nothing() {
    let mut bench = Bench::open(true, true);
    bench.hold.buffers = true;
    let mut bytes = Vec::new();
    request(cmd::WRITE, 0, 0, 4096).emit(&mut bytes);
    bench.feed(&bytes);
    bench.gone();
    bench.session.buffer_ready(0);
    bench.session.buffer_ready(9);
    bench.session.handle_payload(10, 2);
    assert_eq!(bench.session.placement(), None);
    assert_eq!(bench.session.handle_bytes(&[1, 2, 3], 2), 3);
    bench.session.shutdown(0, 2);
    bench.session.handle_timeout(u64::MAX - 1);
    bench.pump();
    assert!(bench.closed.is_empty());
    assert!(bench.session.is_over());
}

#[test]
fn shutdown_answers_new_requests_and_waits_for_old_ones() {
    for structured in [false, true] {
        let mut bench = Bench::open(structured, true);
        bench.hold.requests = true;
        bench.ask(request(cmd::READ, 0, 0, 512), &[]);
        let now = bench.now;
        bench.session.shutdown(50 * MS, now);
        assert_eq!(bench.session.poll_timeout(), Some(now + 50 * MS));
        let write = request(cmd::WRITE, 0, 0, 512);
        assert_eq!(bench.error_of(write, &[1; 512]), ESHUTDOWN);
        let flush = request(cmd::FLUSH, 0, 0, 0);
        assert_eq!(bench.error_of(flush, &[]), ESHUTDOWN);
        assert!(bench.closed.is_empty());
        let before = bench.sent.len();
        bench.complete(0, Ok(()));
        assert_eq!(error(&bench.replies(before)[0]), 0);
        assert_eq!(bench.closed, [CloseReason::Shutdown]);
        assert!(!bench.closed[0].is_abortive());
        bench.gone();
        assert!(bench.session.is_over());
    }
}

#[test]
fn shutdown_lets_a_write_finish_that_had_begun() {
    let mut bench = Bench::open(false, true);
    let mut bytes = Vec::new();
    request(cmd::WRITE, 0, 0, 512).emit(&mut bytes);
    bytes.extend([9; 512]);
    bench.feed(&bytes[..100]);
    let now = bench.now;
    bench.session.shutdown(50 * MS, now);
    bench.pump();
    assert!(bench.closed.is_empty());
    bench.feed(&bytes[100..]);
    assert_eq!(bench.disk[..512], [9; 512]);
    assert_eq!(bench.closed, [CloseReason::Shutdown]);
    assert_eq!(error(&bench.replies(0)[0]), 0);
}

#[test]
fn shutdown_ends_at_once_when_idle_and_at_its_deadline_when_not() {
    let mut bench = Bench::open(true, true);
    bench.session.shutdown(50 * MS, 1);
    bench.pump();
    assert_eq!(bench.closed, [CloseReason::Shutdown]);
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    bench.ask(request(cmd::READ, 0, 0, 512), &[]);
    let now = bench.now;
    bench.session.shutdown(50 * MS, now);
    tick(&mut bench);
    assert_eq!(bench.closed, [CloseReason::Linger]);
    bench.gone();
    bench.complete(0, Ok(()));
    assert!(bench.session.is_over());
}

#[test]
fn shutdown_never_moves_a_deadline_back() {
    let mut bench = Bench::greeted();
    let handshake = bench.session.poll_timeout().unwrap();
    bench.session.shutdown(5000 * MS, 1);
    assert_eq!(bench.session.poll_timeout(), Some(handshake));
    bench.session.shutdown(50 * MS, 1);
    bench.session.shutdown(500 * MS, 1);
    assert_eq!(bench.session.poll_timeout(), Some(1 + 50 * MS));
}

#[test]
fn shutdown_during_the_handshake_answers_options_and_lets_abort_through() {
    let mut bench = Bench::greeted();
    bench.session.shutdown(50 * MS, 1);
    let shutdown = [(rep::ERR_SHUTDOWN, Vec::new())];
    for option in [opt::LIST, opt::STARTTLS, 99] {
        assert_eq!(bench.option(option, &[]), shutdown);
    }
    assert_eq!(bench.option(opt::GO, &choice("disk", &[])), shutdown);
    assert_eq!(bench.opened, None);
    assert_eq!(bench.option(opt::ABORT, &[]), [(rep::ACK, Vec::new())]);
    assert_eq!(bench.closed, [CloseReason::Finished]);
    let mut bench = Bench::greeted();
    bench.session.shutdown(50 * MS, 1);
    bench.feed(&option_bytes(opt::EXPORT_NAME, b"disk"));
    assert_eq!(bench.closed, [CloseReason::Shutdown]);
    let mut bench = Bench::greeted();
    bench.session.shutdown(50 * MS, 1);
    tick(&mut bench);
    assert_eq!(bench.closed, [CloseReason::Shutdown]);
}

#[test]
#[should_panic(expected = "isn't the driver's")]
fn completing_what_is_not_the_drivers_is_our_own_error() {
    let mut bench = Bench::open(true, true);
    bench.ask(request(cmd::FLUSH, 0, 0, 0), &[]);
    bench.session.complete(0, Ok(()), 1);
}

#[test]
#[should_panic(expected = "payload that was not placed")]
fn payload_without_placement_panics() {
    let mut bench = Bench::open(true, true);
    bench.session.handle_payload(0, 1);
}

#[test]
#[should_panic(expected = "extents in answer to Read")]
fn complete_status_of_a_read_panics() {
    let mut bench = Bench::open(true, true);
    bench.hold.requests = true;
    bench.ask(request(cmd::READ, 0, 0, 512), &[]);
    let token = bench.requests[0].token;
    bench.session.complete_status(token, &[], 1);
}
