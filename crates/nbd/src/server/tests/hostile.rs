//! Arbitrary input from a client: no panic, the session ends, and memory stays within its bounds.
//! Acts that are nearly right: `tests/it/hostile`.
use super::*;
use crate::limits::OPTION_DATA_MAX;
use proptest::prelude::*;

/// Offers bytes in pieces, as far as the session takes them.
fn offer(bench: &mut Bench, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        if bench.feed(piece) < piece.len() {
            return;
        }
    }
}

/// Ends the connection and finishes the driver's work: nothing may be left.
fn finish(mut bench: Bench) {
    bench.gone();
    bench.hold = Hold::default();
    for request in core::mem::take(&mut bench.requests) {
        let now = bench.now;
        bench.session.complete(request.token, Ok(()), now);
    }
    for token in core::mem::take(&mut bench.unsent) {
        bench.session.handle_sent(token);
    }
    bench.pump();
    assert!(bench.session.is_over());
    assert!(bench.session.rx.capacity() <= OPTION_DATA_MAX as usize);
    assert!(bench.buffers.is_empty(), "buffers were not released");
    assert_eq!(bench.session.poll_timeout(), None);
    assert!(bench.closed.len() <= 2);
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
            0 => Bench::with(config(), exports()),
            1 => Bench::greeted(),
            2 => Bench::open(false, false),
            _ => Bench::open(true, true),
        };
        offer(&mut bench, &bytes, piece);
        finish(bench);
    }
}
