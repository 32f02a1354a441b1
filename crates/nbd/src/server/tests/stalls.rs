//! Clients that stop in the middle of something.
use super::*;
use crate::limits::STALL_BYTES;
use crate::wire::cmd;

const STALL: u64 = 30_000 * MS;

/// Lets `ns` pass, with all time-outs in it.
fn pass(bench: &mut Bench, ns: u64) {
    let end = bench.now + ns;
    while let Some(at) = bench.session.poll_timeout().filter(|at| *at <= end) {
        bench.now = at.max(bench.now);
        let now = bench.now;
        bench.session.handle_timeout(now);
        bench.pump();
    }
    bench.now = end;
}

fn bytes_of(header: RequestHeader, data: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    header.emit(&mut bytes);
    bytes.resize(bytes.len() + data, 7);
    bytes
}

/// The session ends between one and two intervals after the client stopped.
fn is_given_up(bench: &mut Bench, reason: CloseReason) {
    let before = bench.closed.len();
    pass(bench, STALL - 1);
    assert_eq!(bench.closed.len(), before, "too early");
    pass(bench, STALL + 2);
    assert_eq!(bench.closed[before..], [reason]);
    assert!(reason.is_abortive());
    bench.unsent.clear();
    let slots = u32::from(bench.session.slots.count()).min(4);
    let sends: Vec<(u32, u32)> = (0..slots)
        .map(|token| (token, bench.session.slots[token as u16].sends))
        .collect();
    for (token, sends) in sends {
        (0..sends).for_each(|_| bench.session.handle_sent(token));
    }
    bench.gone();
    assert!(bench.buffers.is_empty() && bench.session.is_over());
    assert_eq!(bench.session.poll_timeout(), None);
}

#[test]
fn a_client_that_stops_in_the_middle_of_a_request_is_given_up() {
    let write = bytes_of(request(cmd::WRITE, 0, 0, 4096), 4096);
    let refused = bytes_of(request(cmd::WRITE, 0, MIB, 4096), 4096);
    for (bytes, cuts) in [
        (&write, [1, 27, 28, 29, 4000]),
        (&refused, [1, 27, 28, 29, 4000]),
    ] {
        for cut in cuts {
            let mut bench = Bench::open(true, true);
            bench.feed(&bytes[..cut]);
            is_given_up(&mut bench, CloseReason::StalledRequest);
        }
    }
}

#[test]
fn a_client_that_trickles_is_given_up_and_a_slow_one_is_not() {
    let mut all = exports();
    let mut big = all.list()[0].clone();
    big.size = 64 * MIB;
    big.block_sizes.maximum = 32 << 20;
    all = Exports::new(vec![big], None).unwrap();
    for (bytes, survives) in [
        (STALL_BYTES as usize, true),
        (STALL_BYTES as usize - 1, false),
    ] {
        let mut bench = Bench::with(config(), all.clone());
        bench.sent.clear();
        bench.feed(&[0, 0, 0, 3]);
        bench.option(opt::GO, &choice("disk", &[]));
        bench.hold.requests = true;
        bench.feed(&bytes_of(request(cmd::WRITE, 0, 0, 8 << 20), 0));
        let piece = vec![1; bytes];
        for _ in 0..7 {
            bench.feed(&piece);
            pass(&mut bench, STALL);
        }
        assert_eq!(bench.closed.is_empty(), survives, "{bytes} at a time");
    }
}

#[test]
fn a_client_that_takes_no_answers_is_given_up() {
    // Before the answer's first byte, and in the middle of its data.
    for sends in [false, true] {
        let mut bench = Bench::open(true, true);
        bench.hold.transmit = !sends;
        bench.hold.sends = sends;
        bench.ask(request(cmd::READ, 0, 0, 64 * KIB), &[]);
        is_given_up(&mut bench, CloseReason::StalledAnswers);
    }
}

#[test]
fn a_client_that_takes_its_answers_slowly_is_not_given_up() {
    let mut bench = Bench::open(true, true);
    bench.hold.sends = true;
    bench.ask(request(cmd::READ, 0, 0, 64 * KIB), &[]);
    assert_eq!(bench.unsent.len(), 4);
    while let Some(token) = bench.unsent.pop() {
        pass(&mut bench, STALL);
        bench.session.handle_sent(token);
        bench.pump();
    }
    pass(&mut bench, 10 * STALL);
    assert!(bench.closed.is_empty() && bench.buffers.is_empty());
}

/// The driver may take its time for a buffer or for executing, and a client for its next request.
#[test]
fn waiting_for_the_driver_is_no_stall() {
    let mut bench = Bench::open(true, true);
    bench.hold.buffers = true;
    bench.hold.requests = true;
    bench.ask(request(cmd::READ, 0, 0, 512), &[]);
    let write = bytes_of(request(cmd::WRITE, 0, 0, 512), 512);
    assert_eq!(bench.feed(&write), 28);
    pass(&mut bench, 10 * STALL);
    assert!(bench.closed.is_empty());
    bench.session.buffer_ready(bench.wanted[0]);
    assert_eq!(bench.feed(&write[28..]), 512);
    pass(&mut bench, 10 * STALL);
    bench.complete(0, Ok(()));
    bench.complete(0, Ok(()));
    assert!(bench.closed.is_empty() && bench.buffers.is_empty());
    pass(&mut bench, STALL);
    assert_eq!(
        bench.session.poll_timeout(),
        None,
        "an idle client sets no timer"
    );
}
