//! Arbitrary input from a server: no panic, the session ends, and nothing is placed outside a
//! buffer. Acts that are nearly right: `tests/it/hostile`.
use super::*;
use crate::limits::REPLY_DATA_MAX;
use proptest::prelude::*;

/// The connection ends, and the session with it.
fn finish(mut bench: Bench) {
    bench.gone();
    bench.gone();
    assert_eq!(bench.session.in_flight(), 0);
    let is_end = |event: &&Event| matches!(event, Event::Failed(_) | Event::Close);
    let ends = bench.events.iter().filter(is_end).count();
    assert_eq!(ends, 1, "{:?}", bench.events);
    assert_eq!(bench.session.placement(), None);
    assert!(bench.session.negotiation_room() <= REPLY_DATA_MAX as usize);
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
        finish(bench);
    }
}
