//! Components of a world of faults and its faults, drawn from a seed.
use super::client::Habit;
use super::cut_off;
use super::discovery;
use super::enough;
use super::exports;
use super::guests;
use super::hole;
pub use super::kind::Kind;
use super::lasting;
use super::mirror;
use super::pair;
use super::prelude::*;
use super::programs;
use super::return_elsewhere;
use super::rig::More;
use super::settings;
use super::spread;
use core::ops::RangeInclusive;
use engine::limits::SCRATCH_BYTES;
use policy::Aggregate;

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

/// A layer, which was added to worlds: the name of its module, where its random numbers begin, and
/// how it changes a plan. Worlds without a layer are as they were before there was one: seeds
/// that found something once are kept so.
type Layer = (&'static str, u64, fn(&mut Plan, &mut Random));

const LAYERS: [Layer; 14] = [
    ("aim", 0x0a1e_d000, aim::plan),
    ("pair", 0x9a12_d000, pair::plan),
    ("cut_off", 0xcac4_e000, cut_off::plan),
    ("discovery", 0xd15c_00bd, discovery::plan::plan),
    ("spread", 0x5b4e_d000, spread::plan),
    ("guests", 0x9e57_d000, guests::plan),
    ("lasting", 0x1a57_1000, lasting::plan),
    ("settings", 0x5e77_1000, settings::plan),
    ("enough", 0xe009_4000, enough::plan),
    ("hole", 0x401e_1000, hole::plan),
    ("front", 0xf407_e4d0, front::plan),
    ("exports", 0x1_e470_4feb, exports::plan),
    ("return_elsewhere", 0x4e70_4e15, return_elsewhere::plan),
    ("programs", 0x9409_4a35, programs::plan),
];

/// Those of worlds with a mirror, which are a family of their own.
const LAYERS_OF_MIRRORS: [Layer; 14] = [
    ("sharp", 0x54a2_9000, mirror::sharp::plan),
    ("ample", 0xa3b1_e000, mirror::ample::plan),
    ("dense", 0x0de4_5e00, mirror::dense::plan),
    ("apart", 0x0a9a_4700, mirror::apart::plan),
    ("quick", 0x91c8_b000, mirror::quick::plan),
    ("enough", 0xe009_4000, enough::plan),
    ("put_back", 0x9b7b_ac00, mirror::put_back::plan),
    ("blink", 0x6b11_4c00, mirror::blink::plan),
    ("shrunk", 0x5c41_7a00, mirror::shrunk::plan),
    ("exchanged", 0x3c8a_9100, mirror::exchanged::plan),
    ("deep", 0xdee9_0100, mirror::deep::plan),
    ("hung", 0x4a9d_5b00, mirror::hung::plan),
    ("local", 0x10ca_1e00, mirror::local::plan),
    ("front", 0xf407_e4d0, front::plan),
];

impl Plan {
    /// That of a seed.
    pub fn draw(seed: u64) -> Self {
        Self::first(seed).with(&LAYERS)
    }

    /// That of a seed among the worlds with mirrors.
    pub fn draw_mirror(seed: u64) -> Self {
        mirror::plan::plan(seed).with(&LAYERS_OF_MIRRORS)
    }

    /// That of a seed as worlds were before this layer.
    pub fn draw_before(layer: &str, seed: u64) -> Self {
        Self::first(seed).with(before(&LAYERS, layer))
    }

    /// That of a seed as worlds with mirrors were before this layer.
    pub fn draw_mirror_before(layer: &str, seed: u64) -> Self {
        mirror::plan::plan(seed).with(before(&LAYERS_OF_MIRRORS, layer))
    }

    /// Adds a fault that waits for nothing.
    pub(super) fn add(&mut self, kind: Kind, at_ns: u64, lasts_ns: u64, whom: u64) {
        self.faults.push(fault(kind, at_ns, lasts_ns, whom));
    }

    /// Adds the same fault for each of those.
    pub(super) fn add_each(
        &mut self,
        kind: Kind,
        at_ns: u64,
        lasts_ns: u64,
        those: impl Iterator<Item = u64>,
    ) {
        let faults = those.map(|whom| fault(kind, at_ns, lasts_ns, whom));
        self.faults.extend(faults);
    }

    /// Adds a fault whose target and duration are drawn.
    pub(super) fn add_drawn(&mut self, kind: Kind, at_ns: u64, random: &mut Random) {
        let whom = random.up_to(u64::MAX);
        self.faults.push(aim::fault(kind, at_ns, whom, random));
    }

    /// Adds so many of these kinds, which begin then and in the time that follows, ns.
    pub(super) fn add_some(
        &mut self,
        (kinds, count): (&[Kind], u64),
        (from_ns, within_ns): (u64, u64),
        random: &mut Random,
    ) {
        for _ in 0..count {
            let kind = one_of(kinds, random);
            let at_ns = from_ns + random.up_to(within_ns);
            self.add_drawn(kind, at_ns, random);
        }
    }

    fn with(mut self, layers: &[Layer]) -> Self {
        for (_, salt, add) in layers {
            let random = &mut Random::new(self.seed ^ salt);
            add(&mut self, random);
            self.faults.sort_by_key(|fault| fault.at_ns);
        }
        self
    }

    /// That of a seed as the first worlds were.
    fn first(seed: u64) -> Self {
        let random = &mut Random::new(seed ^ 0xb4a1_d000);
        let layout = layout(random);
        let count = 10 + random.up_to(8);
        let mut faults: Vec<Fault> = (0..count).map(|_| drawn(&layout, random)).collect();
        faults.sort_by_key(|fault| fault.at_ns);
        Self {
            seed,
            layout,
            faults,
        }
    }
}

fn before<'a>(layers: &'a [Layer], layer: &str) -> &'a [Layer] {
    match layers.iter().position(|it| it.0 == layer) {
        Some(at) => &layers[..at],
        None => panic!("no layer {layer}"),
    }
}

fn layout(random: &mut Random) -> Layout {
    let hosts = 1 + random.up_to(3) as usize / 3;
    let habit = habit(random, 3, 16..=16 << 3, 2000);
    Layout {
        hosts,
        cores: 1 + random.up_to(2) as u16,
        targets: 1 + random.up_to(2).min(1) as usize,
        ports: 1 + random.up_to(1) as u16,
        digests: random.up_to(2) == 0,
        caches: random.up_to(1) == 0,
        policy: policy(random),
        habit,
        io_max: [4, 16, 64][random.up_to(2) as usize],
        blocks: 256,
        more: More {
            scratch_bytes: SCRATCH_BYTES,
            ..More::default()
        },
        mirror: None,
    }
}

/// A client pauses after one request in so many, and so much longer.
pub(super) const PAUSES: u64 = 8;

/// Applications of up to so many connections more than one, with at least so many requests;
/// `blocks`: the least number of those and the greatest, a power of two of the least.
pub(super) fn habit(
    random: &mut Random,
    connections: u64,
    blocks: RangeInclusive<u64>,
    total: u64,
) -> Habit {
    let (least, most) = blocks.into_inner();
    let mut habit = Habit {
        connections: 1 + random.up_to(connections) as u32,
        depth: 1 + random.up_to(15) as u16,
        blocks: least << random.up_to((most / least).ilog2().into()),
        total: total + random.up_to(1000),
        writes: 64 + random.up_to(128),
        flushes: random.up_to(24),
        share: (0, 1),
        unit: BLOCK as u64,
        homes: 1,
        ..Habit::default()
    };
    habit.pause_ns = 2 * WINDOW_NS * u64::from(habit.connections) / habit.total * PAUSES;
    habit
}

pub(super) fn policy(random: &mut Random) -> Policy {
    let all = [
        Policy::Numa,
        Policy::RoundRobin { bytes: 0 },
        Policy::QueueDepth,
        Policy::WeightedLatency(Aggregate::PER_CPU),
        Policy::Soonest,
        Policy::Soonest,
    ];
    one_of(&all, random)
}

/// Draws one of these, each as likely as the others.
pub(super) fn one_of<T: Copy>(those: &[T], random: &mut Random) -> T {
    those[random.up_to(those.len() as u64 - 1) as usize]
}

fn drawn(layout: &Layout, random: &mut Random) -> Fault {
    let kind = loop {
        let kind = Kind::ALL[random.up_to(Kind::FIRST as u64 - 1) as usize];
        if layout.allows(kind) {
            break kind;
        }
    };
    let lasts_ns = lasts_ns(random);
    let at_ns = random.up_to(WINDOW_NS);
    fault(kind, at_ns, lasts_ns, random.up_to(u64::MAX))
}

/// A fault that waits for nothing.
pub(super) fn fault(kind: Kind, at_ns: u64, lasts_ns: u64, whom: u64) -> Fault {
    Fault {
        kind,
        at_ns,
        lasts_ns,
        whom,
        when: None,
    }
}

/// How long a fault lasts: each order of magnitude is as likely as the others.
pub(super) fn lasts_ns(random: &mut Random) -> u64 {
    let (least, most) = LASTS_NS;
    let octaves = (most / least).ilog2();
    (least << random.up_to(octaves.into())) + random.up_to(least)
}
