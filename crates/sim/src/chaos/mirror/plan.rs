//! Components of a world with a mirror, and its faults, drawn from a seed.
//!
//! # Contract
//! Besides single faults there are courses: what takes several of them in a row to be dangerous,
//! with times that fit each other.
use super::super::kind::of_kinds;
use super::super::plan::{habit, policy};
use super::super::rig::More;
use super::Shape;
use crate::chaos::prelude::*;
use engine::limits::SCRATCH_BYTES;

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
    let random = &mut Random::new(seed ^ 0x3e66_d000);
    let mut plan = Plan {
        seed,
        layout: layout(random),
        faults: Vec::new(),
    };
    for _ in 0..4 + random.up_to(6) {
        let kind = one_of(&KINDS, random);
        if plan.layout.allows(kind) {
            let (at_ns, lasts_ns) = (random.up_to(WINDOW_NS), lasts_ns(random));
            plan.add(kind, at_ns, lasts_ns, random.up_to(u64::MAX));
        }
    }
    for _ in 0..1 + random.up_to(2) {
        course(&mut plan, random);
    }
    plan.faults.sort_by_key(|fault| fault.at_ns);
    plan
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
            ..Shape::default()
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

    /// The first process of a leg, and the first path to it: their addresses are equal.
    pub fn first(&self, leg: u64) -> u64 {
        self.at(leg % self.legs)
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
fn course(plan: &mut Plan, random: &mut Random) {
    let whom = &Whom::new(&plan.layout, random);
    let (first, host) = (random.up_to(whom.legs - 1), whom.at(0));
    let at_ns = random.up_to(WINDOW_NS / 2);
    let dies = match whom.caches && random.up_to(1) == 0 {
        true => Kind::Power,
        false => Kind::Kill,
    };
    match random.up_to(6) {
        // A leg is away for longer than it is waited for, and its host dies while it comes back.
        0 => {
            let away_ns = (1500 + random.up_to(5000)) * MS;
            plan.add_each(dies, at_ns, away_ns, whom.processes(first));
            let back_ns = at_ns + away_ns + random.up_to(3500) * MS;
            let lasts_ns = (5 + random.up_to(400)) * MS;
            plan.add(Kind::KillHost, back_ns, lasts_ns, host);
        }
        // One leg after the other.
        1 => {
            for leg in 0..whom.legs {
                let then_ns = at_ns + leg * (300 + random.up_to(3000)) * MS;
                let away_ns = (400 + random.up_to(2500)) * MS;
                plan.add_each(dies, then_ns, away_ns, whom.processes(first + leg));
            }
        }
        // A leg is taken out and returned, and its power or its host's fails soon after.
        2 => {
            let away_ns = (200 + random.up_to(3000)) * MS;
            plan.add(Kind::FailLeg, at_ns, away_ns, whom.first(first));
            let back_ns = at_ns + away_ns + random.up_to(3000) * MS;
            if whom.caches && random.up_to(1) == 0 {
                plan.add_each(Kind::Power, back_ns, 100 * MS, whom.processes(first));
            } else {
                let lasts_ns = (5 + random.up_to(400)) * MS;
                plan.add(Kind::KillHost, back_ns, lasts_ns, host);
            }
        }
        // A leg's requests are executed late, after it was lost.
        3 => {
            let lost_ns = at_ns + random.up_to(600) * MS;
            let away_ns = (400 + random.up_to(3000)) * MS;
            plan.add_each(Kind::LateWrites, at_ns, 2500 * MS, whom.paths(first));
            plan.add_each(Kind::Partition, lost_ns, away_ns, whom.paths(first));
        }
        // Its host dies while writes are under way on some legs.
        4 => {
            plan.add_each(Kind::LateWrites, at_ns, 1500 * MS, whom.paths(first));
            let dies_ns = at_ns + (50 + random.up_to(800)) * MS;
            let lasts_ns = (5 + random.up_to(1500)) * MS;
            plan.add(Kind::KillHost, dies_ns, lasts_ns, host);
        }
        // Blocks that can't be read on one leg are read while they are written.
        5 => {
            for _ in 0..3 {
                let free = random.up_to(1 << 40);
                let there = Whom { free, ..*whom }.at(first);
                let at_ns = at_ns + random.up_to(3000) * MS;
                plan.add(Kind::Media, at_ns, (50 + random.up_to(1500)) * MS, there);
            }
            plan.add_each(Kind::SlowDisk, at_ns, 3000 * MS, whom.paths(first));
        }
        // A leg is slow while what it lacks is copied to it.
        _ => {
            let away_ns = (1200 + random.up_to(2000)) * MS;
            plan.add_each(dies, at_ns, away_ns, whom.processes(first));
            plan.add(
                Kind::SlowDisk,
                at_ns + away_ns,
                4000 * MS,
                whom.first(first),
            );
        }
    }
}
