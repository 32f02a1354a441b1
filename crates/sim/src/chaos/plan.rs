//! What a world of chaos is made of and what goes wrong in it, drawn from a seed.
use super::client::Habit;
use super::rig::Layout;
use alloc::vec::Vec;
use policy::{Aggregate, Policy};
use shape::Random;

const MS: u64 = 1_000_000;
/// Faults begin in this time from the first on.
const WINDOW_NS: u64 = 12_000 * MS;
/// The shortest and the longest time that one lasts.
const LASTS_NS: (u64, u64) = (5 * MS, 4_000 * MS);

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// All connections of a host over one path are reset.
    Reset,
    /// Of one core.
    ResetCore,
    /// Nothing passes between a host and a port, and nobody is told.
    Partition,
    /// Bytes take a hundred times as long.
    Slow,
    /// Bytes are damaged; only with digests.
    Damage,
    /// A port drops all its connections.
    Drop,
    /// A port's ANA state changes, and changes back.
    Ana,
    /// A process of the target dies, and another begins.
    Kill,
    /// The same, and its controllers' cache is lost.
    Power,
    /// A process of the target stands still, and goes on.
    Freeze,
    /// A core of a host stands still, and goes on.
    FreezeHost,
    /// A host dies, and begins again.
    KillHost,
    /// A host stops in order, and begins again.
    StopHost,
    /// Another policy.
    Policy,
    /// Devices take long.
    SlowDisk,
    /// Writes are executed after their connection is gone, as long as that may be.
    LateWrites,
}

impl Kind {
    /// All.
    pub const ALL: [Self; 16] = [
        Self::Reset,
        Self::ResetCore,
        Self::Partition,
        Self::Slow,
        Self::Damage,
        Self::Drop,
        Self::Ana,
        Self::Kill,
        Self::Power,
        Self::Freeze,
        Self::FreezeHost,
        Self::KillHost,
        Self::StopHost,
        Self::Policy,
        Self::SlowDisk,
        Self::LateWrites,
    ];
}

/// One fault.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// What.
    pub kind: Kind,
    /// From the beginning of the faults on, ns.
    pub at_ns: u64,
    /// From then on, ns; of what has no duration, nothing.
    pub lasts_ns: u64,
    /// To whom: any number.
    pub whom: u64,
}

/// A bug that is planted, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A write is repeated without a fence.
    Unfenced,
    /// A flush goes to one controller for all.
    FlushOnOne,
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
    /// A bug that is planted.
    pub canary: Option<Canary>,
}

impl Plan {
    /// That of a seed.
    pub fn draw(seed: u64) -> Self {
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
            canary: None,
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
        let kind = Kind::ALL[random.up_to(Kind::ALL.len() as u64 - 1) as usize];
        let possible = match kind {
            Kind::Damage => layout.digests,
            Kind::Power => layout.caches,
            _ => true,
        };
        if possible {
            break kind;
        }
    };
    // Of the durations each order of magnitude is as likely as the others.
    let (least, most) = LASTS_NS;
    let octaves = (most / least).ilog2();
    let lasts_ns = (least << random.up_to(octaves.into())) + random.up_to(least);
    Fault {
        kind,
        at_ns: random.up_to(WINDOW_NS),
        lasts_ns,
        whom: random.up_to(u64::MAX),
    }
}
