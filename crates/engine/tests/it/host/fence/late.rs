//! Histories in which a target executes late what it was sent over connections that are gone, while
//! the same blocks are written again at once (T9).
//!
//! In every round one port keeps writes back, is lost in one of three ways, and executes them as
//! late as the rules of its association let it. In the end a block must hold
//! what it held when its last write was acknowledged. A host that does not wait, or not long
//! enough, must be caught: else these histories prove nothing.

use crate::common::*;
use engine::host::{Io, IoOp, Recovery, WriteFailover};
use engine::target::{Faults, TargetControl};
use multipath::Outcome;

const PORTS: u32 = 3;
const KATO_NS: u64 = SECOND;
/// The time that the target needs to quiesce, and a host must be told.
const QUIESCE_NS: u64 = 1_500 * MS;
/// 2 × KATO and that.
const BOUND_NS: u64 = 2 * KATO_NS + QUIESCE_NS;
const ROUNDS: u64 = 6;

/// One range of the volume, written again as soon as its write was acknowledged, at times read.
#[derive(Clone, Copy, Default)]
struct Hot {
    version: u64,
    /// The I/O under way is a read.
    reads: bool,
    busy: bool,
}

/// Counters of one history.
#[derive(Default)]
struct Seen {
    /// Reads and last looks that did not find the acknowledged version.
    lost: u64,
    looks: u64,
    proved: u64,
    bounded: u64,
}

struct History {
    rig: Rig,
    random: Random,
    bytes: u32,
    hot: Vec<Hot>,
    seen: Seen,
}

impl History {
    fn new(seed: u64, change: impl FnOnce(&mut Recovery)) -> Self {
        let mut random = Random::new(seed);
        let mut host = host_config(PORTS);
        host.kato_ms = (KATO_NS / MS) as u32;
        host.volumes[0].recovery = Recovery {
            quiesce_ns: QUIESCE_NS,
            reconnect_max_ns: SECOND,
            ..Recovery::default()
        };
        change(&mut host.volumes[0].recovery);
        let mut target = target_config(PORTS as u16);
        target.subsystem.connections_max = 64;
        if seed % 2 == 1 {
            target.subsystem.cqt_ms = (QUIESCE_NS / MS) as u16; // so its resets are believed
        }
        let mut rig = Rig::new(host, target);
        rig.world.piece_max = [100, 3000, 20_000][random.below(3) as usize];
        rig.world.sent_delay_ns = [0, 100_000, MS][random.below(3) as usize];
        rig.ready();
        Self {
            rig,
            bytes: [4 << 10, 16 << 10, 64 << 10][random.below(3) as usize],
            hot: vec![Hot::default(); 2 + random.below(6) as usize],
            random,
            seen: Seen::default(),
        }
    }

    fn io(&self, op: IoOp, slot: usize) -> Io {
        let slot = slot as u64;
        io(op, slot * u64::from(self.bytes), self.bytes, slot)
    }

    /// Content of a range at a version.
    fn want(&self, slot: usize, version: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes as usize];
        if version > 0 {
            let offset = slot as u64 * u64::from(self.bytes);
            fill(&mut bytes, offset, version);
        }
        bytes
    }

    fn begin(&mut self, slot: usize) {
        let hot = self.hot[slot];
        let reads = hot.version > 0 && !hot.reads && self.random.below(3) == 0;
        let version = hot.version + u64::from(!reads);
        self.hot[slot] = Hot {
            version,
            reads,
            busy: true,
        };
        let op = if reads {
            IoOp::Read
        } else {
            IoOp::Write { fua: false }
        };
        let it = self.io(op, slot);
        if !reads {
            let bytes = self.want(slot, version);
            self.rig.world.nodes[HOST].arena.0[it.span.at as usize..][..bytes.len()]
                .copy_from_slice(&bytes);
        }
        self.rig.submit(&it).unwrap();
    }

    fn ended(&mut self) {
        self.rig.poll();
        for done in core::mem::take(&mut self.rig.done) {
            assert_eq!(done.outcome, Outcome::Done);
            let slot = done.cookie as usize;
            let hot = &mut self.hot[slot];
            assert!(core::mem::take(&mut hot.busy), "ended twice");
            if hot.reads {
                let want = self.want(slot, self.hot[slot].version);
                let at = self.io(IoOp::Read, slot).span.at as usize;
                let found = &self.rig.world.nodes[HOST].arena.0[at..][..want.len()];
                self.seen.lost += u64::from(found != want);
                self.seen.looks += 1;
            }
        }
    }

    /// Writes on for `limit_ns`, or until every range has version `last`.
    fn rewrite(&mut self, last: u64, limit_ns: u64) -> bool {
        let end_ns = self.rig.world.now_ns + limit_ns;
        while self.rig.world.now_ns < end_ns {
            self.ended();
            for slot in 0..self.hot.len() {
                if !self.hot[slot].busy && self.hot[slot].version < last {
                    self.begin(slot);
                }
            }
            if self.hot.iter().all(|hot| !hot.busy) {
                return true;
            }
            self.rig.world.pass(MS / 10);
        }
        false
    }

    /// A port that keeps writes back is lost while the ranges are written, and executes them late.
    fn round(&mut self, round: u64) {
        let port = self.random.below(PORTS.into()) as u32;
        let (within_ns, lose): (u64, fn(&mut World, usize, u32)) = match self.random.below(3) {
            // The association ends for both sides at once; or its host notices first, and asks.
            0 => (BOUND_NS, World::cut),
            1 => (BOUND_NS, World::cut_queue),
            // Each side notices by itself, the target within KATO; then it quiesces.
            _ => (QUIESCE_NS, World::mute),
        };
        let most_ns = within_ns - 20 * MS;
        let late_ns = [MS, 1 + self.random.below(most_ns), most_ns, most_ns];
        let faults = Faults {
            hold_writes_until_ns: u64::MAX,
            late_writes_ns: late_ns[self.random.below(4) as usize],
            ..Faults::default()
        };
        let of_port = |faults| TargetControl::Faults(port as u16, faults);
        self.rig.target_control(of_port(faults.clone()));
        let last = (round + 1) * 20;
        let ms = 1 + self.random.below(3);
        self.rewrite(last, ms * MS);
        lose(&mut self.rig.world, HOST, port);
        self.rewrite(last, 2 * KATO_NS);
        // Those that are late stay so; its new connections are healthy.
        self.rig.target_control(of_port(Faults::default()));
        let hot = self.hot.len();
        assert!(self.rewrite(last, 60 * SECOND), "{hot} ranges: not over");
        self.rig.world.pass(BOUND_NS + 10 * SECOND);
        for slot in 0..hot {
            assert_eq!(self.hot[slot].version, last);
            let want = self.want(slot, last);
            let at = slot * want.len();
            let lost = self.rig.disk.bytes.borrow()[at..][..want.len()] != want[..];
            self.seen.lost += u64::from(lost);
            self.seen.looks += 1;
        }
    }
}

fn history(seed: u64, change: impl FnOnce(&mut Recovery)) -> Seen {
    let mut history = History::new(seed, change);
    for round in 0..ROUNDS {
        history.round(round);
    }
    let stats = history.rig.host.borrow().hold_stats(0);
    let waiting = stats.held + stats.behind + stats.queued + stats.delayed;
    assert_eq!(waiting, 0, "seed {seed}: {stats:?}");
    Seen {
        proved: stats.proved_total,
        bounded: stats.bounded_total,
        ..history.seen
    }
}

/// The first of `seeds` histories that loses acknowledged data.
fn caught(seeds: u64, change: fn(&mut Recovery)) -> Option<u64> {
    (1..=seeds).find(|&seed| history(seed, change).lost > 0)
}

#[test]
fn t09_canary_a_host_that_does_not_wait_is_caught_within_3_histories() {
    let seed = caught(3, |it| it.write_failover = WriteFailover::Immediate);
    assert!(seed.is_some());
}

#[test]
fn t09_canary_a_bound_one_keep_alive_too_short_is_caught_within_6_histories() {
    let seed = caught(6, |it| it.quiesce_ns = QUIESCE_NS - KATO_NS);
    assert!(seed.is_some());
}

#[test]
fn t09_whatever_is_executed_late_no_acknowledged_write_is_lost() {
    let mut all = Seen::default();
    for seed in 1..=30 {
        let seen = history(seed, |_| ());
        assert_eq!(seen.lost, 0, "seed {seed}");
        all.looks += seen.looks;
        all.proved += seen.proved;
        all.bounded += seen.bounded;
    }
    let Seen {
        looks,
        proved,
        bounded,
        ..
    } = all;
    assert!(
        looks > 3000 && proved > 20 && bounded > 300,
        "{looks} looks; {proved} holds ended by proof, {bounded} by the bound"
    );
}
