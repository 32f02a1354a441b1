//! Shares, reserves, turns; and whatever is asked, in the end everybody is served.
use super::*;
use crate::limits::{MOVED_MIN, MOVED_SHIFT};
use crate::target::commands::Stage;
use proptest::prelude::*;

const MIB: u64 = 1 << 20;
const IN_CAPSULE: u32 = 8192;

fn command(
    commands: &mut Commands,
    connection: u32,
    token: u32,
    len: u32,
    purpose: Purpose,
) -> u32 {
    let slot = commands.insert(connection, token);
    let in_capsule = purpose == Purpose::InCapsule;
    (commands[slot].len, commands[slot].in_capsule) = (len, in_capsule);
    commands[slot].stage = match purpose {
        Purpose::Read => Stage::WaitsToRead,
        _ => Stage::WaitsToReceive,
    };
    slot
}

/// Whether anything that waits could be served, whatever the pool remembers.
fn is_servable(pool: &mut Pool, commands: &Commands, now_ns: u64) -> bool {
    (0..pool.accounts.len() as u32).any(|connection| {
        (0..2).any(|line| {
            let queue = pool.accounts[connection as usize].waiting[line];
            queue.first().is_some_and(|slot| {
                let (len, purpose) = (commands[slot].len, commands[slot].purpose());
                let span = pool.try_take(connection, len, purpose, now_ns);
                span.inspect(|span| pool.free(connection, *span)).is_some()
            })
        })
    })
}

/// As the engine does: take, or wait.
fn want(pool: &mut Pool, commands: &mut Commands, slot: u32, now_ns: u64) -> Option<Span> {
    let (connection, len) = (commands[slot].connection, commands[slot].len);
    let purpose = commands[slot].purpose();
    let span = pool.take(connection, len, purpose, now_ns);
    if span.is_none() {
        pool.wait(slot, purpose, commands, now_ns);
    }
    span
}

/// Connections 2 and 3 take the whole of 2 MiB.
fn fill(pool: &mut Pool) -> [Span; 2] {
    [2, 3].map(|connection| pool.take(connection, 1 << 20, Purpose::Asked, 0).unwrap())
}

#[test]
fn t06_a_hoarder_leaves_room_for_a_newcomer() {
    let mut pool = Pool::new(8 * MIB, 3, 0);
    for hoarder in [0, 1] {
        while pool.take(hoarder, 1 << 20, Purpose::Asked, 0).is_some() {}
    }
    assert_eq!(
        [pool.accounts[0].held_bytes, pool.accounts[1].held_bytes],
        [4 * MIB, 2 * MIB]
    );
    assert!(pool.take(2, 1 << 20, Purpose::Asked, 0).is_some());
}

#[test]
fn a_stream_that_stands_still_has_a_buffer_of_its_own() {
    let mut pool = Pool::new(2 * MIB + 2 * u64::from(IN_CAPSULE), 2, IN_CAPSULE);
    while pool.take(0, 4096, Purpose::Asked, 0).is_some() {}
    while pool.take(1, 4096, Purpose::Asked, 0).is_some() {}
    let spans = [0, 1].map(|connection| pool.take(connection, IN_CAPSULE, Purpose::InCapsule, 0));
    assert!(spans.iter().all(Option::is_some));
    assert_eq!(
        pool.take(0, 4096, Purpose::InCapsule, 0),
        None,
        "lent already"
    );
    pool.free(0, spans[0].unwrap());
    let asked = pool.take(0, 4096, Purpose::Asked, 0);
    assert_eq!(asked, None, "not for what is behind it in the stream");
    let read = pool.take(0, 4096, Purpose::Read, 0).unwrap();
    assert_eq!(read.at, spans[0].unwrap().at, "its host's reading frees it");
    assert_eq!(pool.take(0, 4096, Purpose::Read, 0), None);
    pool.free(0, read);
    assert_eq!(pool.take(0, 2 * IN_CAPSULE, Purpose::Read, 0), None);
    assert!(pool.take(0, 4096, Purpose::InCapsule, 0).is_some());
}

#[test]
fn of_thousands_that_move_nothing_none_has_what_is_kept_for_those_who_move() {
    const LATER: u64 = 1 << MOVED_SHIFT;
    let mut pool = Pool::new(18 * MIB, 1001, 0);
    for hoarder in 1..1001 {
        while pool.take(hoarder, 128 << 10, Purpose::Asked, 0).is_some() {}
    }
    let free = pool.buddy.free_bytes();
    assert!((2 * MIB..2 * MIB + (256 << 10)).contains(&free), "{free}");
    let read = |pool: &mut Pool, now_ns| pool.take(0, 4096, Purpose::Read, now_ns);
    pool.moved(0, MOVED_MIN as u32 - 1, 0);
    assert_eq!(read(&mut pool, 0), None, "that may be in its socket");
    pool.moved(0, 1, 0);
    let mine: Vec<_> = core::iter::from_fn(|| read(&mut pool, 0)).collect();
    assert_eq!(pool.accounts[0].held_bytes, free / 2 / 4096 * 4096);
    pool.free(0, mine[0]);
    assert!(read(&mut pool, LATER).is_some());
    pool.free(0, mine[1]);
    assert_eq!(read(&mut pool, 2 * LATER), None, "that was long ago");
    pool.moved(0, MOVED_MIN as u32, 2 * LATER);
    pool.begin(0);
    assert_eq!(read(&mut pool, 2 * LATER), None, "it is somebody else");
}

#[test]
fn connections_take_turns_and_each_keeps_its_order() {
    let (mut pool, mut commands) = (Pool::new(2 * MIB, 4, 0), Commands::new(4, 8));
    let held = fill(&mut pool);
    let waiting: Vec<_> = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
        .map(|(connection, token)| command(&mut commands, connection, token, 4096, Purpose::Asked))
        .into();
    for slot in &waiting {
        assert_eq!(want(&mut pool, &mut commands, *slot, 0), None);
    }
    assert_eq!(pool.serve(&commands, 0), None);
    pool.free(2, held[0]);
    let served: Vec<_> = core::iter::from_fn(|| pool.serve(&commands, 0))
        .map(|(slot, _)| slot)
        .collect();
    assert_eq!(served, [0, 3, 1, 4, 2].map(|i: usize| waiting[i]));
}

#[derive(Clone, Debug)]
enum Step {
    Want {
        connection: u32,
        len: u32,
        purpose: Purpose,
    },
    Return(prop::sample::Index),
    Move(u32, u64),
    Withdraw(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let purpose = prop_oneof![
        Just(Purpose::InCapsule),
        Just(Purpose::Asked),
        Just(Purpose::Read)
    ];
    let len = prop_oneof![1u32..1 << 20, 1..2 * IN_CAPSULE];
    let want = (0u32..4, len, purpose).prop_map(|(connection, len, purpose)| Step::Want {
        connection,
        len: match purpose {
            Purpose::InCapsule => len.min(IN_CAPSULE),
            Purpose::Asked | Purpose::Read => len,
        },
        purpose,
    });
    prop_oneof![
        8 => want,
        5 => any::<prop::sample::Index>().prop_map(Step::Return),
        2 => (0u32..4, 0u64..1 << MOVED_SHIFT).prop_map(|(of, ns)| Step::Move(of, ns)),
        1 => (0u32..4).prop_map(Step::Withdraw),
    ]
}

proptest! {
    /// Buffers never overlap, and when all have come back every one that waits is served.
    #[test]
    fn nobody_waits_for_ever(mib in 2u64..7, steps in prop::collection::vec(step(), 1..300)) {
        let arena = mib * MIB + 4 * u64::from(IN_CAPSULE);
        let (mut pool, mut commands) = (Pool::new(arena, 4, IN_CAPSULE), Commands::new(4, 300));
        let (mut held, mut waiting, mut now_ns) = (Vec::<(u32, Span)>::new(), 0, 0);
        for (token, step) in (0..).zip(steps) {
            match step {
                Step::Want { connection, len, purpose } => {
                    let slot = command(&mut commands, connection, token, len, purpose);
                    match want(&mut pool, &mut commands, slot, now_ns) {
                        Some(span) => held.push((connection, span)),
                        None => waiting += 1,
                    }
                }
                Step::Return(_) if held.is_empty() => {}
                Step::Return(index) => {
                    let (connection, span) = held.swap_remove(index.index(held.len()));
                    pool.free(connection, span);
                }
                Step::Move(connection, after_ns) => {
                    now_ns += after_ns;
                    pool.moved(connection, MOVED_MIN as u32, now_ns);
                    // As with all that moves, something comes back.
                    if let Some(at) = held.iter().position(|(of, _)| *of == connection) {
                        let (_, span) = held.swap_remove(at);
                        pool.free(connection, span);
                    } else {
                        pool.look_again(connection);
                    }
                }
                Step::Withdraw(connection) => {
                    waiting -= i32::from(pool.withdraw(connection, &commands).is_some());
                }
            }
            while let Some((slot, span)) = pool.serve(&commands, now_ns) {
                prop_assert_eq!(span.len, commands[slot].len);
                held.push((commands[slot].connection, span));
                waiting -= 1;
            }
            prop_assert!(!is_servable(&mut pool, &commands, now_ns), "nobody is overlooked");
            prop_assert_eq!(pool.is_waited_for(), waiting > 0);
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
            while let Some((slot, span)) = pool.serve(&commands, now_ns) {
                held.push((commands[slot].connection, span));
                waiting -= 1;
            }
        }
        prop_assert!(!pool.is_waited_for());
    }
}
