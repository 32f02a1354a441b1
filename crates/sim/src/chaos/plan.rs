//! Components of a world of faults and its faults, drawn from a seed.
use super::aim;
use super::client::Habit;
use super::cut_off;
use super::discovery;
use super::disk::BLOCK;
use super::enough;
use super::guests;
use super::hole;
pub use super::kind::Kind;
use super::lasting;
use super::pair;
use super::rig::{Layout, More};
use super::settings;
use super::spread;
use alloc::vec::Vec;
use engine::host::PathState;
use policy::{Aggregate, Policy};
use shape::Random;

const MS: u64 = 1_000_000;
/// Faults begin in this time from the first on.
pub(super) const WINDOW_NS: u64 = 12_000 * MS;
/// The shortest and the longest time that one lasts.
const LASTS_NS: (u64, u64) = (5 * MS, 4_000 * MS);

/// One fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The kind.
    pub kind: Kind,
    /// From the beginning of the faults on, ns.
    pub at_ns: u64,
    /// From then on, ns; of what has no duration, nothing.
    pub lasts_ns: u64,
    /// To whom: any number.
    pub whom: u64,
    /// It waits until a path that it may concern is in this state, though not for ever.
    pub when: Option<PathState>,
}

/// A world and its fate.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of everything that is not drawn here.
    pub seed: u64,
    /// Hosts, controllers, applications.
    pub layout: Layout,
    /// In order of their beginning.
    pub faults: Vec<Fault>,
}

impl Plan {
    /// That of a seed.
    pub fn draw(seed: u64) -> Self {
        hole::plan(Self::fourth(seed))
    }

    /// That of a seed as worlds were before writes got lost in a `hole`.
    pub fn fourth(seed: u64) -> Self {
        enough::plan(Self::third(seed))
    }

    /// That of a seed as worlds were before `enough`.
    pub fn third(seed: u64) -> Self {
        settings::plan(Self::second(seed))
    }

    /// That of a seed as worlds were before `settings`.
    pub fn second(seed: u64) -> Self {
        let plan = pair::plan(aim::plan(Self::first(seed)));
        let plan = discovery::plan::plan(cut_off::plan(plan));
        lasting::plan(guests::plan(spread::plan(plan)))
    }

    /// That of a seed among the worlds with mirrors, which are a family of their own.
    pub fn draw_mirror(seed: u64) -> Self {
        super::mirror::local::plan(Self::thirteenth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `local`.
    pub fn thirteenth_mirror(seed: u64) -> Self {
        super::mirror::hung::plan(Self::twelfth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `hung`.
    pub fn twelfth_mirror(seed: u64) -> Self {
        super::mirror::deep::plan(Self::eleventh_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `deep`.
    pub fn eleventh_mirror(seed: u64) -> Self {
        super::mirror::exchanged::plan(Self::tenth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `exchanged`.
    pub fn tenth_mirror(seed: u64) -> Self {
        super::mirror::shrunk::plan(Self::ninth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `shrunk`.
    pub fn ninth_mirror(seed: u64) -> Self {
        super::mirror::blink::plan(Self::eighth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `blink`.
    pub fn eighth_mirror(seed: u64) -> Self {
        super::mirror::put_back::plan(Self::seventh_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `put_back`.
    pub fn seventh_mirror(seed: u64) -> Self {
        enough::plan(Self::sixth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `enough`.
    pub fn sixth_mirror(seed: u64) -> Self {
        super::mirror::quick::plan(Self::fifth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `quick`.
    pub fn fifth_mirror(seed: u64) -> Self {
        super::mirror::apart::plan(Self::fourth_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `apart`.
    pub fn fourth_mirror(seed: u64) -> Self {
        super::mirror::dense::plan(Self::third_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `dense`.
    pub fn third_mirror(seed: u64) -> Self {
        super::mirror::ample::plan(Self::second_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `ample`.
    pub fn second_mirror(seed: u64) -> Self {
        super::mirror::sharp::plan(Self::first_mirror(seed))
    }

    /// That of a seed as worlds with mirrors were before `sharp`.
    pub fn first_mirror(seed: u64) -> Self {
        super::mirror::plan::plan(seed)
    }

    /// That of a seed as the first worlds had it: what they found once is kept by their seeds.
    pub fn first(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0xb4a1_d000);
        let random = &mut random;
        let layout = layout(random);
        let count = 10 + random.up_to(8);
        let mut faults: Vec<Fault> = (0..count).map(|_| fault(&layout, random)).collect();
        faults.sort_by_key(|fault| fault.at_ns);
        Self {
            seed,
            layout,
            faults,
        }
    }
}

fn layout(random: &mut Random) -> Layout {
    let hosts = 1 + random.up_to(3) as usize / 3;
    let habit = Habit {
        connections: 1 + random.up_to(3) as u32,
        depth: 1 + random.up_to(15) as u16,
        blocks: 16 << random.up_to(3),
        total: 2000 + random.up_to(1000),
        writes: 64 + random.up_to(128),
        flushes: random.up_to(24),
        share: (0, 1),
        pause_ns: 0,
        crowded: 0,
        unit: BLOCK as u64,
        homes: 1,
        base: 0,
    };
    let spread_ns = 2 * WINDOW_NS * u64::from(habit.connections) / habit.total;
    Layout {
        hosts,
        cores: 1 + random.up_to(2) as u16,
        targets: 1 + random.up_to(2).min(1) as usize,
        ports: 1 + random.up_to(1) as u16,
        digests: random.up_to(2) == 0,
        caches: random.up_to(1) == 0,
        policy: policy(random),
        habit: Habit {
            pause_ns: spread_ns * PAUSES,
            ..habit
        },
        io_max: [4, 16, 64][random.up_to(2) as usize],
        blocks: 256,
        more: More::default(),
        mirror: None,
    }
}

/// A client pauses after one request in so many, and so much longer.
pub(super) const PAUSES: u64 = 8;

pub(super) fn policy(random: &mut Random) -> Policy {
    let all = [
        Policy::Numa,
        Policy::RoundRobin { bytes: 0 },
        Policy::QueueDepth,
        Policy::WeightedLatency(Aggregate::default()),
        Policy::Soonest,
        Policy::Soonest,
    ];
    all[random.up_to(all.len() as u64 - 1) as usize]
}

fn fault(layout: &Layout, random: &mut Random) -> Fault {
    let kind = loop {
        let kind = Kind::ALL[random.up_to(Kind::FIRST as u64 - 1) as usize];
        let possible = match kind {
            Kind::Damage => layout.digests,
            Kind::Power => layout.caches,
            _ => true,
        };
        if possible {
            break kind;
        }
    };
    let lasts_ns = lasts_ns(random);
    Fault {
        kind,
        at_ns: random.up_to(WINDOW_NS),
        lasts_ns,
        whom: random.up_to(u64::MAX),
        when: None,
    }
}

/// How long a fault lasts: each order of magnitude is as likely as the others.
pub(super) fn lasts_ns(random: &mut Random) -> u64 {
    let (least, most) = LASTS_NS;
    let octaves = (most / least).ilog2();
    (least << random.up_to(octaves.into())) + random.up_to(least)
}
