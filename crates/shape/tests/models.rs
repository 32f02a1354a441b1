//! Guarantees of the models, for any figures and any arrivals.
use proptest::prelude::*;
use shape::{Config, PortTime, Shaper};

const MS: u64 = 1_000_000;

fn config() -> impl Strategy<Value = Config> {
    let rate = prop_oneof![Just(0), 1u64..10_000_000_000];
    (
        0..50 * MS,
        0..5 * MS,
        rate,
        0u16..5,
        0..MS,
        0..10 * MS,
        0u32..200_000,
    )
        .prop_map(
            |(
                delay_ns,
                jitter_ns,
                bytes_per_s,
                servers,
                service_ns,
                large_delay_ns,
                large_from,
            )| {
                Config {
                    delay_ns,
                    jitter_ns,
                    bytes_per_s,
                    servers,
                    service_ns,
                    large_delay_ns,
                    large_from,
                    stall_until_ns: 0,
                    tail_per_million: 0,
                    tail_ns: 0,
                }
            },
        )
}

/// (bytes, ns since the one before) of each command.
fn arrivals() -> impl Strategy<Value = Vec<(u32, u64)>> {
    prop::collection::vec((0u32..=1 << 20, 0..2 * MS), 1..100)
}

fn run(shaper: &mut Shaper, arrivals: &[(u32, u64)]) -> Vec<(u64, PortTime)> {
    let mut now = 0;
    let mut admitted = Vec::new();
    for (bytes, gap) in arrivals {
        now += gap;
        admitted.push((now, shaper.admit(*bytes, now)));
    }
    admitted
}

proptest! {
    /// A command that an open port does not admit would have been let go of at once.
    #[test]
    fn open_port_lets_go_of_commands_at_once(
        config in config(), plain: bool, until in 0..5 * MS, stall in 0..5 * MS, now in 0..9 * MS,
        bytes in 0u32..=1 << 20,
    ) {
        let config = if plain { Config::default() } else { config };
        let mut shaper = Shaper::new(Config { stall_until_ns: until, ..config }, 1);
        shaper.configure(Config { stall_until_ns: stall, ..config }, now / 2);
        let is_open = shaper.is_open(now);
        let admitted = shaper.admit(bytes, now);
        prop_assert_eq!(is_open && plain, is_open && shaper.due_ns(admitted) <= now);
        prop_assert_eq!(shaper.is_open(now.max(until).max(stall)), shaper.config() == Config {
            stall_until_ns: stall, ..Config::default()
        });
    }
}

proptest! {
    #[test]
    fn never_earlier_than_the_delay(config in config(), arrivals in arrivals()) {
        let mut shaper = Shaper::new(config, 1);
        for (now, at) in run(&mut shaper, &arrivals) {
            prop_assert!(shaper.due_ns(at) >= now + config.delay_ns + config.service_ns);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_times(config in config(), arrivals in arrivals(), seed: u64) {
        let first = run(&mut Shaper::new(config, seed), &arrivals);
        prop_assert_eq!(first, run(&mut Shaper::new(config, seed), &arrivals));
    }

    #[test]
    fn the_queues_are_first_in_first_out(config in config(), arrivals in arrivals()) {
        let config = Config { jitter_ns: 0, large_delay_ns: 0, ..config };
        let admitted = run(&mut Shaper::new(config, 1), &arrivals);
        prop_assert!(admitted.is_sorted_by_key(|(_, at)| *at));
    }

    /// Over any run without a pause the last byte leaves at exactly bytes ÷ rate, rounded up once.
    #[test]
    fn the_rate_is_exact(
        bytes_per_s in 1u64..10_000_000_000,
        sizes in prop::collection::vec(1u32..=1 << 20, 1..2000),
    ) {
        let mut shaper = Shaper::new(Config { bytes_per_s, ..Config::default() }, 1);
        let mut total = 0u128;
        for bytes in sizes {
            total += u128::from(bytes);
            let at = shaper.admit(bytes, 0);
            let exact = (total * 1_000_000_000).div_ceil(u128::from(bytes_per_s));
            prop_assert_eq!(u128::from(shaper.due_ns(at)), exact);
        }
    }

    /// While the line is busy, the time at which the caller polls does not matter.
    #[test]
    fn lateness_of_the_caller_costs_no_bandwidth(
        bytes_per_s in 1u64..10_000_000_000,
        sizes in prop::collection::vec(1u32..=1 << 20, 1..200),
        late in prop::collection::vec(0u64..=100, 200),
    ) {
        let config = Config { bytes_per_s, ..Config::default() };
        let (mut prompt, mut tardy) = (Shaper::new(config, 1), Shaper::new(config, 1));
        let (mut now, mut free) = (0, 0);
        for (bytes, late) in sizes.iter().zip(late) {
            now += (free - now) * late / 100;
            let (a, b) = (prompt.admit(*bytes, 0), tardy.admit(*bytes, now));
            prop_assert_eq!(prompt.due_ns(a), tardy.due_ns(b));
            free = tardy.due_ns(b) - 1;
            free = free.max(now);
        }
    }

    /// The reference is a plain list of servers.
    #[test]
    fn servers_take_the_earliest_free(
        servers in 1u16..6, service_ns in 0..3 * MS, arrivals in arrivals(),
    ) {
        let config = Config { servers, service_ns, ..Config::default() };
        let mut shaper = Shaper::new(config, 1);
        let mut free = vec![0u64; usize::from(servers)];
        for (now, at) in run(&mut shaper, &arrivals) {
            let earliest = free.iter_mut().min().unwrap();
            *earliest = (*earliest).max(now) + service_ns;
            prop_assert_eq!(shaper.due_ns(at), *earliest);
        }
    }

    /// Nothing is due during a stall, and all commands are later by its length.
    #[test]
    fn a_stall_moves_everything_by_its_length(
        config in config(), arrivals in arrivals(), begins in 0..20 * MS, lasts in 1..50 * MS,
    ) {
        let mut plain = Shaper::new(config, 1);
        let before = run(&mut plain, &arrivals);
        let mut stalled = Shaper::new(config, 1);
        let same = run(&mut stalled, &arrivals);
        let begins = begins + before.last().unwrap().0;
        let until = begins + lasts;
        stalled.configure(Config { stall_until_ns: until, ..config }, begins);
        for ((_, free), (_, held)) in before.iter().zip(&same) {
            let (free, held) = (plain.due_ns(*free), stalled.due_ns(*held));
            prop_assert_eq!(held, if free < begins { free } else { free + lasts });
        }
        let (late, next) = (stalled.admit(4096, begins + lasts / 2), plain.admit(4096, begins));
        prop_assert_eq!(stalled.due_ns(late), plain.due_ns(next) + lasts);
    }

    /// A stall that ends earlier releases at once all commands whose time has come.
    #[test]
    fn a_lifted_stall_holds_nothing(config in config(), wait in 0..MS) {
        let config = Config { stall_until_ns: u64::MAX, ..config };
        let mut shaper = Shaper::new(config, 1);
        let at = shaper.admit(4096, 10);
        prop_assert_eq!(shaper.due_ns(at), u64::MAX);
        shaper.configure(Config { stall_until_ns: 0, ..config }, 10 + wait);
        let mut plain = Shaper::new(Config { stall_until_ns: 0, ..config }, 1);
        let expected = plain.admit(4096, 10);
        prop_assert_eq!(shaper.due_ns(at), plain.due_ns(expected) + wait);
    }
}

#[test]
fn a_day_of_300_mib_per_second_is_exact() {
    let config = Config {
        bytes_per_s: 300 << 20,
        ..Config::default()
    };
    let mut shaper = Shaper::new(config, 1);
    let per_second = (300 << 20) / (1 << 20);
    let mut at = shaper.admit(1 << 20, 0);
    for _ in 1..per_second * 86_400u32 {
        at = shaper.admit(1 << 20, 0);
    }
    assert_eq!(shaper.due_ns(at), 86_400 * 1_000_000_000);
}

#[test]
fn a_mistaken_rate_can_be_put_right() {
    let mut shaper = Shaper::new(
        Config {
            bytes_per_s: 1,
            ..Config::default()
        },
        1,
    );
    let stuck = shaper.admit(4096, 0);
    shaper.configure(
        Config {
            bytes_per_s: 4096,
            ..Config::default()
        },
        1000,
    );
    let next = shaper.admit(4096, 1000);
    assert_eq!(
        shaper.due_ns(stuck),
        4096 * 1_000_000_000,
        "what was admitted keeps its time"
    );
    assert_eq!(shaper.due_ns(next), 1_000_001_000);
}

#[test]
fn a_change_elsewhere_leaves_the_line_as_busy_as_it_was() {
    let config = Config {
        bytes_per_s: 4096,
        ..Config::default()
    };
    let mut shaper = Shaper::new(config, 1);
    shaper.admit(4096, 0);
    shaper.configure(
        Config {
            delay_ns: 5,
            ..config
        },
        1000,
    );
    let next = shaper.admit(4096, 1000);
    assert_eq!(shaper.due_ns(next), 2_000_000_005);
}
