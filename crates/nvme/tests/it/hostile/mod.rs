//! Arbitrary input from a peer, by tapes of the models: a session that goes well up to some place,
//! then acts that are nearly right.
use crate::model::{io_queue, rings, seeds, wire, wired};
use proptest::collection::vec;
use proptest::prelude::*;

/// An act: a part of a tape.
type Act = BoxedStrategy<Vec<u8>>;

fn words(operation: u8, words: u8) -> Act {
    vec(any::<u8>(), 2 * usize::from(words))
        .prop_map(move |rest| [vec![operation], rest].concat())
        .boxed()
}

/// One act of an I/O queue's controller, or of the queue's owner.
fn at_io_queue() -> Act {
    let near = || prop_oneof![4 => Just(0u8), 4 => 0..20u8, 1 => 255..=255u8];
    let flags = || prop_oneof![Just(0u8), Just(4), Just(12), any::<u8>()];
    let ago = || prop_oneof![4 => Just(0u8), 4 => 0..5u8, 1 => any::<u8>()];
    let submit = (0..4u8, 0..40u8).prop_map(|(kind, blocks)| vec![3, kind, blocks, 0]);
    // Answers with the identifier of one of the last commands: a response that is good, any, data
    // with its place and length, a request for data with its place, length and tag.
    let response = ago().prop_map(|ago| vec![1, 1, 0, ago]);
    let any_response = (any::<u8>(), ago(), vec(any::<u8>(), 0..8))
        .prop_map(|(flags, ago, rest)| [vec![1, 1, flags, ago], rest].concat());
    let data =
        (flags(), ago(), near(), 0..16u8, 0..17u8).prop_map(|(flags, ago, at, low, high)| {
            let low = if low < 12 { 0 } else { low };
            vec![1, 2, flags, ago, at, low, high]
        });
    let r2t = (ago(), near(), near(), any::<u16>()).prop_map(|(ago, at, len, tag)| {
        [&[1, 3, 0, ago, at, len][..], &tag.to_le_bytes()].concat()
    });
    let raw = vec(any::<u8>(), 0..200)
        .prop_map(|bytes| [&[0, bytes.len() as u8, 0][..], &bytes].concat());
    prop_oneof![
        6 => submit,
        6 => response,
        1 => any_response,
        4 => data,
        4 => r2t,
        1 => raw,
        4 => (0..4u8).prop_map(|count| vec![6, count]),
        1 => words(5, 1),
    ]
    .boxed()
}

/// One act of the proxy between host and subsystem.
fn between() -> Act {
    let wire = |operation: u8| (0..2u8).prop_map(move |wire| operation | wire << 4);
    let with_word = |operation: u8, most: u16| {
        (wire(operation), 0..most)
            .prop_map(|(operation, word)| [&[operation][..], &word.to_le_bytes()].concat())
    };
    let damage = |operation: u8| {
        (wire(operation), 0..600u16, any::<u8>())
            .prop_map(|(operation, at, bit)| [&[operation][..], &at.to_le_bytes(), &[bit]].concat())
    };
    prop_oneof![
        6 => (0..4u8).prop_map(|turns| vec![turns]),
        6 => (0..6u8, any::<u16>()).prop_map(|(kind, place)| {
            [&[4, kind][..], &place.to_le_bytes()].concat()
        }),
        3 => with_word(6, 9000),
        3 => with_word(7, 9000),
        1 => damage(8),
        1 => damage(9),
        1 => words(10, 2).prop_map(|mut tape| { tape.truncate(4); tape }),
        1 => words(11, 1),
        1 => any::<u8>().prop_map(|choice| vec![12, choice]),
        1 => (wire(13), any::<u8>()).prop_map(|(operation, choice)| vec![operation, choice]),
        2 => Just(vec![14]),
        2 => Just(vec![15]),
    ]
    .boxed()
}

/// One of the `sessions` up to some place with other `options`, and acts behind that.
fn attacks(
    sessions: fn(u8) -> Vec<u8>,
    options: u8,
    act: fn() -> Act,
) -> impl Strategy<Value = Vec<u8>> {
    let begun = (any::<u8>(), 0..32u8, any::<prop::sample::Index>());
    (begun, vec(act(), 1..120)).prop_map(move |((choice, number, end), acts)| {
        let mut tape = sessions(number);
        tape[0] ^= choice & options;
        tape.truncate(2 + end.index(tape.len()));
        tape.extend(acts.concat());
        tape
    })
}

proptest! {
    #![proptest_config(hostile::model_config())]

    #[test]
    fn io_queues_withstand_their_controller(tape in attacks(seeds::queue, 0xfc, at_io_queue)) {
        io_queue::run(&tape);
    }

    #[test]
    fn io_queues_withstand_garbage(
        choice: u8,
        bytes in vec(prop_oneof![Just(0u8), Just(1), Just(128), any::<u8>()], 0..600),
    ) {
        let len = (bytes.len() as u16).to_le_bytes();
        io_queue::run(&[&[choice, 0][..], &len, &bytes].concat());
    }

    #[test]
    fn parsers_withstand_any_bytes(
        bytes in vec(prop_oneof![Just(0u8), Just(24), Just(72), Just(128), any::<u8>()], 0..160),
    ) {
        wire::run(&bytes);
    }

    #[test]
    fn host_and_subsystem_withstand_a_proxy(tape in attacks(seeds::session, 0xff, between)) {
        wired::run(&tape);
    }

    #[test]
    fn both_ends_of_rings_withstand_the_other(
        tape in attacks(seeds::rings, 3, || vec(any::<u8>(), 1..40).boxed()),
    ) {
        rings::run(&tape);
    }
}
