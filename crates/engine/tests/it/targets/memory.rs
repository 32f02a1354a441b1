//! Memory that a target's connections take beside payload: no more than docs/security.md says.

use crate::target_hand::*;
use engine::target::{TargetConfig, TargetEngine};
use shape::Config;

/// C there: the tables of a place and, once it is logged in, its session and controller.
const CONNECTION: u64 = 4 << 10;
/// Q: room for one command.
const COMMAND: u64 = 512;
/// Entries of an admin queue of [`Hand`]; hosts that come; places.
const ADMIN: u64 = 32;
const HOSTS: u64 = 7;
const PLACES: u32 = 900;

fn sized(connections: u32, entries: u16) -> TargetConfig {
    let mut config = config(&[Config::default()]);
    config.subsystem.connections_max = connections;
    config.subsystem.entries_max = entries;
    config
}

fn held(act: impl FnOnce()) -> u64 {
    u64::try_from(allocation_counter::measure(act).bytes_current).unwrap()
}

/// Bytes of a target nobody has connected to.
fn empty(connections: u32, entries: u16) -> u64 {
    let mut target = None;
    let config = sized(connections, entries);
    held(|| target = Some(TargetEngine::new(config).unwrap()))
}

/// Bytes that hosts add, each with an I/O queue of so many entries.
fn hosts(entries: u16) -> u64 {
    let mut hand = Hand::new(sized(16, 2048));
    held(|| {
        for _ in 0..HOSTS {
            hand.queue(0, entries);
        }
    })
}

#[test]
fn connections_and_commands_are_as_small_as_is_said() {
    // Of a command: in a queue, and in the tables of every place.
    let [few, many] = [32, 1056].map(hosts);
    let queued = (many - few) / (1024 * HOSTS);
    let [small, large] = [32, 1056].map(|entries| empty(PLACES, entries));
    let tabled = (large - small) / (1024 * u64::from(PLACES));
    // The rest of a place, and of a session; each host has two.
    let place = (small - empty(1, 32)) / u64::from(PLACES - 1) - 32 * tabled;
    let session = (few - HOSTS * (ADMIN + 32) * queued) / (2 * HOSTS);
    println!("{queued} + {tabled} bytes of a command, {place} + {session} of a connection");
    assert!(queued + tabled <= COMMAND);
    assert!(place + session <= CONNECTION);
}
