//! Components of a world with a mirror, and its faults, drawn from a seed.
//!
//! # Contract
//! Besides single faults there are courses: what takes several of them in a row to be dangerous,
//! with times that fit each other.
use super::super::kind::of_kinds;
pub(super) use super::super::plan::fault;
use super::super::plan::{habit, policy};
use super::super::rig::More;
use super::Shape;
use crate::chaos::prelude::*;
use engine::limits::SCRATCH_BYTES;

pub(super) const MS: u64 = 1_000_000;
/// So that three missed beats, and one more, are longer than the bound of writes that a dead host
/// has left (T9).
const BEAT_MS: u32 = 1000;
/// Kinds that may happen once, those that lose data several times.
pub(in crate::chaos) const KINDS: [Kind; 40] = of_kinds![
    Reset Reset Partition Partition OneWay HalfOpen Slow Damage Drop Ana Kill Kill Power Power Power
    Freeze FreezeHost KillHost KillHost KillHost StopHost SlowDisk LateWrites LateWrites Trickle
    Full Unread Media Media NoSpace Transient Hang Mute Status ClientReset ClientHalfOpen FailLeg
    FailLeg CheckMirror CheckMirror
];

/// The plan of a seed.
pub(in crate::chaos) fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed ^ 0x3e66_d000);
    let random = &mut random;
    let layout = layout(random);
    let mut faults = Vec::new();
    for _ in 0..4 + random.up_to(6) {
        let kind = KINDS[random.up_to(KINDS.len() as u64 - 1) as usize];
        if layout.allows(kind) {
            let (at_ns, lasts_ns) = (random.up_to(WINDOW_NS), lasts_ns(random));
            let whom = random.up_to(u64::MAX);
            faults.push(fault(kind, at_ns, lasts_ns, whom));
        }
    }
    for _ in 0..1 + random.up_to(2) {
        course(&mut faults, &layout, random);
    }
    faults.sort_by_key(|fault| fault.at_ns);
    Plan {
        seed,
        layout,
        faults,
    }
}

fn layout(random: &mut Random) -> Layout {
    let legs = [2, 2, 3][random.up_to(2) as usize];
    let habit = habit(random, 2, 64..=64 << 4, 1200);
    Layout {
        hosts: 1,
        cores: 1,
        targets: legs * [1, 1, 1, 2][random.up_to(3) as usize],
        ports: 1 + random.up_to(1) as u16,
        digests: random.up_to(2) == 0,
        caches: random.up_to(3) > 0,
        policy: policy(random),
        habit,
        io_max: [32, 64, 256][random.up_to(2) as usize],
        blocks: 0,
        more: More {
            window: [0, 16 << 10, 64 << 10][random.up_to(2) as usize],
            scratch_bytes: SCRATCH_BYTES,
            ..More::default()
        },
        mirror: Some(Shape {
            legs,
            shared: random.up_to(1) == 0,
            beat_ms: BEAT_MS,
            patience_ns: [300, 1000, 5000][random.up_to(2) as usize] * MS,
            assemble_wait_ns: [1000, 10_000][random.up_to(1) as usize] * MS,
            ceiling: [64 << 10, 1 << 20, 1 << 40][random.up_to(2) as usize],
            unfenced: false,
            core: 0,
            put_back: false,
            exchanged: false,
            local: false,
        }),
    }
}

/// Targets of a world's faults.
pub(super) struct Whom {
    pub legs: u64,
    targets: u64,
    paths: u64,
    caches: bool,
    /// The free part of [`Fault::whom`].
    pub free: u64,
}

impl Whom {
    pub fn new(layout: &Layout, random: &mut Random) -> Self {
        let (targets, ports) = (layout.targets as u64, u64::from(layout.ports));
        Self {
            legs: layout.mirror.map_or(1, |it| it.legs) as u64,
            targets,
            paths: targets * ports,
            caches: layout.caches,
            free: random.up_to(1 << 40),
        }
    }

    fn at(&self, address: u64) -> u64 {
        8 * (address + self.paths * self.free)
    }

    /// All processes of a leg.
    pub fn processes(&self, leg: u64) -> impl Iterator<Item = u64> {
        let all = 0..self.targets;
        all.filter(move |it| it % self.legs == leg % self.legs)
            .map(|it| self.at(it))
    }

    /// All paths to it.
    pub fn paths(&self, leg: u64) -> impl Iterator<Item = u64> {
        let all = 0..self.paths;
        let of_leg = move |it: &u64| it % self.targets % self.legs == leg % self.legs;
        all.filter(of_leg).map(|it| self.at(it))
    }
}

/// Several faults in a row, most of them about one leg.
fn course(faults: &mut Vec<Fault>, layout: &Layout, random: &mut Random) {
    let whom = &Whom::new(layout, random);
    let first = random.up_to(whom.legs - 1);
    let at_ns = random.up_to(WINDOW_NS / 2);
    let dies = match layout.caches && random.up_to(1) == 0 {
        true => Kind::Power,
        false => Kind::Kill,
    };
    match random.up_to(6) {
        which @ 0..=2 => leaving(faults, (which, dies, first, at_ns), whom, random),
        which => late(faults, (which, dies, first, at_ns), whom, random),
    }
}

/// Legs that leave and return: which of these courses, how a process dies, the leg, and when.
fn leaving(
    faults: &mut Vec<Fault>,
    (which, dies, first, at_ns): (u64, Kind, u64, u64),
    whom: &Whom,
    random: &mut Random,
) {
    let host = whom.at(0);
    let mut add = |kind, at_ns, ms: u64, whom| faults.push(fault(kind, at_ns, ms * MS, whom));
    match which {
        // A leg is away for longer than it is waited for, and its host dies while it comes back.
        0 => {
            let away_ms = 1500 + random.up_to(5000);
            whom.processes(first)
                .for_each(|it| add(dies, at_ns, away_ms, it));
            let back_ns = at_ns + (away_ms + random.up_to(3500)) * MS;
            add(Kind::KillHost, back_ns, 5 + random.up_to(400), host);
        }
        // One leg after the other.
        1 => {
            for leg in 0..whom.legs {
                let then_ns = at_ns + leg * (300 + random.up_to(3000)) * MS;
                let away_ms = 400 + random.up_to(2500);
                whom.processes(first + leg)
                    .for_each(|it| add(dies, then_ns, away_ms, it));
            }
        }
        // A leg is taken out and returned, and its power or its host's fails soon after.
        _ => {
            let away_ms = 200 + random.up_to(3000);
            let one = whom.processes(first).take(1);
            one.for_each(|it| add(Kind::FailLeg, at_ns, away_ms, it));
            let back_ns = at_ns + (away_ms + random.up_to(3000)) * MS;
            match whom.caches && random.up_to(1) == 0 {
                true => whom
                    .processes(first)
                    .for_each(|it| add(Kind::Power, back_ns, 100, it)),
                false => add(Kind::KillHost, back_ns, 5 + random.up_to(400), host),
            }
        }
    }
}

/// Draws late execution on a leg; arguments as above.
fn late(
    faults: &mut Vec<Fault>,
    (which, dies, first, at_ns): (u64, Kind, u64, u64),
    whom: &Whom,
    random: &mut Random,
) {
    let host = whom.at(0);
    let mut add = |kind, at_ns, ms: u64, whom| faults.push(fault(kind, at_ns, ms * MS, whom));
    match which {
        // A leg's requests are executed late, after it was lost.
        3 => {
            let lost_ns = at_ns + random.up_to(600) * MS;
            let away_ms = 400 + random.up_to(3000);
            whom.paths(first)
                .for_each(|it| add(Kind::LateWrites, at_ns, 2500, it));
            whom.paths(first)
                .for_each(|it| add(Kind::Partition, lost_ns, away_ms, it));
        }
        // Its host dies while writes are under way on some legs.
        4 => {
            whom.paths(first)
                .for_each(|it| add(Kind::LateWrites, at_ns, 1500, it));
            let dies_ns = at_ns + (50 + random.up_to(800)) * MS;
            add(Kind::KillHost, dies_ns, 5 + random.up_to(1500), host);
        }
        // Blocks that can't be read on one leg are read while they are written.
        5 => {
            for _ in 0..3 {
                let free = random.up_to(1 << 40);
                let there = Whom { free, ..*whom }.at(first);
                let at_ns = at_ns + random.up_to(3000) * MS;
                add(Kind::Media, at_ns, 50 + random.up_to(1500), there);
            }
            whom.paths(first)
                .for_each(|it| add(Kind::SlowDisk, at_ns, 3000, it));
        }
        // A leg is slow while what it lacks is copied to it.
        _ => {
            let away_ms = 1200 + random.up_to(2000);
            whom.processes(first)
                .for_each(|it| add(dies, at_ns, away_ms, it));
            let back_ns = at_ns + away_ms * MS;
            whom.paths(first)
                .take(1)
                .for_each(|it| add(Kind::SlowDisk, back_ns, 4000, it));
        }
    }
}
