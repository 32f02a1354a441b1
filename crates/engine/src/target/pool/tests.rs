//! Shares, reserves, turns; and whatever is asked, in the end everybody is served.
use super::*;
use crate::target::commands::Stage;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const IN_CAPSULE: u32 = 8192;

fn command(
    commands: &mut Commands,
    connection: u32,
    token: u32,
    len: u32,
    in_capsule: bool,
) -> u32 {
    let slot = commands.insert(connection, token);
    (commands[slot].len, commands[slot].in_capsule) = (len, in_capsule);
    commands[slot].stage = Stage::WaitsToReceive;
    slot
}

/// As the engine does: take, or wait.
fn want(pool: &mut Pool, commands: &mut Commands, slot: u32) -> Option<Span> {
    let (connection, len) = (commands[slot].connection, commands[slot].len);
    let purpose = commands[slot].purpose();
    let span = pool.take(connection, len, purpose);
    if span.is_none() {
        pool.wait(slot, purpose, commands);
    }
    span
}

/// Connections 2 and 3 take the whole of 2 MiB.
fn fill(pool: &mut Pool) -> [Span; 2] {
    [2, 3].map(|connection| pool.take(connection, 1 << 20, Purpose::Other).unwrap())
}

#[test]
fn t06_a_hoarder_leaves_room_for_a_newcomer() {
    let mut pool = Pool::new(8 * MIB, 3, 0);
    for hoarder in [0, 1] {
        while pool.take(hoarder, 1 << 20, Purpose::Other).is_some() {}
    }
    assert_eq!(
        [pool.accounts[0].held_bytes, pool.accounts[1].held_bytes],
        [4 * MIB, 2 * MIB]
    );
    assert!(pool.take(2, 1 << 20, Purpose::Other).is_some());
}

#[test]
fn a_stream_that_stands_still_has_a_buffer_of_its_own() {
    let mut pool = Pool::new(2 * MIB + 2 * u64::from(IN_CAPSULE), 2, IN_CAPSULE);
    while pool.take(0, 4096, Purpose::Other).is_some() {}
    while pool.take(1, 4096, Purpose::Other).is_some() {}
    let spans = [0, 1].map(|connection| pool.take(connection, IN_CAPSULE, Purpose::InCapsule));
    assert!(spans.iter().all(Option::is_some));
    assert_eq!(pool.take(0, 4096, Purpose::InCapsule), None, "lent already");
    pool.free(0, spans[0].unwrap());
    assert_eq!(pool.take(0, 4096, Purpose::Other), None, "not for others");
    assert!(pool.take(0, 4096, Purpose::InCapsule).is_some());
}

#[test]
fn connections_take_turns_and_each_keeps_its_order() {
    let (mut pool, mut commands) = (Pool::new(2 * MIB, 4, 0), Commands::new(4, 8));
    let held = fill(&mut pool);
    let waiting: Vec<_> = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        .map(|(connection, token)| command(&mut commands, connection, token, 4096, false))
        .into();
    for slot in &waiting {
        assert_eq!(want(&mut pool, &mut commands, *slot), None);
    }
    assert_eq!(pool.serve(&commands), None);
    pool.free(2, held[0]);
    let served: Vec<_> = core::iter::from_fn(|| pool.serve(&commands))
        .map(|(slot, _)| slot)
        .collect();
    assert_eq!(served, [0, 3, 1, 4, 2].map(|i: usize| waiting[i]));
}

#[derive(Clone, Debug)]
enum Step {
    Want {
        connection: u32,
        len: u32,
        in_capsule: bool,
    },
    Return(prop::sample::Index),
    Withdraw(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let want = (0u32..4, 1u32..1 << 20, any::<bool>()).prop_map(|(connection, len, in_capsule)| {
        let len = if in_capsule { len.min(IN_CAPSULE) } else { len };
        Step::Want {
            connection,
            len,
            in_capsule,
        }
    });
    prop_oneof![
        6 => want,
        4 => any::<prop::sample::Index>().prop_map(Step::Return),
        1 => (0u32..4).prop_map(Step::Withdraw),
    ]
}

proptest! {
    /// Buffers never overlap, and when all have come back every one that waits is served.
    #[test]
    fn nobody_waits_for_ever(steps in prop::collection::vec(step(), 1..300)) {
        let arena = 2 * MIB + 4 * u64::from(IN_CAPSULE);
        let (mut pool, mut commands) = (Pool::new(arena, 4, IN_CAPSULE), Commands::new(4, 300));
        let (mut held, mut waiting) = (Vec::<(u32, Span)>::new(), 0);
        for (token, step) in (0..).zip(steps) {
            match step {
                Step::Want { connection, len, in_capsule } => {
                    let slot = command(&mut commands, connection, token, len, in_capsule);
                    match want(&mut pool, &mut commands, slot) {
                        Some(span) => held.push((connection, span)),
                        None => waiting += 1,
                    }
                }
                Step::Return(_) if held.is_empty() => {}
                Step::Return(index) => {
                    let (connection, span) = held.swap_remove(index.index(held.len()));
                    pool.free(connection, span);
                }
                Step::Withdraw(connection) => {
                    waiting -= i32::from(pool.withdraw(connection, &commands).is_some());
                }
            }
            while let Some((slot, span)) = pool.serve(&commands) {
                prop_assert_eq!(span.len, commands[slot].len);
                held.push((commands[slot].connection, span));
                waiting -= 1;
            }
            for (i, (_, a)) in held.iter().enumerate() {
                for (_, b) in &held[..i] {
                    let apart = a.at + u64::from(a.len) <= b.at || b.at + u64::from(b.len) <= a.at;
                    prop_assert!(apart, "{:?} {:?}", a, b);
                }
            }
        }
        while waiting > 0 {
            prop_assert!(!held.is_empty(), "{} wait for nothing", waiting);
            held.drain(..).for_each(|(connection, span)| pool.free(connection, span));
            while let Some((slot, span)) = pool.serve(&commands) {
                held.push((commands[slot].connection, span));
                waiting -= 1;
            }
        }
        prop_assert!(pool.turns.is_empty());
    }
}
