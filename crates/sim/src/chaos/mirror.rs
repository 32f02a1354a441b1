//! Worlds whose volume is a mirror: hosts run the engine with mirrors over NVMe/TCP, and each leg
//! is a subsystem of its own, with processes, paths, a disk and caches.
//!
//! * `plan`: what such a world is made of, and what goes wrong in it; `sharp`: rare things
//!   together; [`ample`]: more of all, aimed at states of paths; `dense`: more of that; `apart`: on
//!   which core it is; `quick`: with beats shorter than the bound of late writes
//! * `make`: legs as they are at first, and the host's engine; `cache_loss_checker`: takeover of a
//!   mirror
//! * `put_back`: legs that show an older state of themselves; `blink`: legs that are away for a
//!   moment while another one is rebuilt; `shrunk`: legs that lose what lay behind their new end;
//!   `exchanged`: legs that a configuration gives in another order, or that are another mirror's;
//!   `deep`: many requests before slow legs; `hung`: devices of legs that hang;
//!   `local`: legs that are devices of their host, and hosts that stand still in a turn or a thread
//! * `crash_checker`: at any moment, what an assembly of the legs would have
//! * `excuse`: for what requests may fail
//! * `check`: what must be true once nothing is wrong any more
//!
//! # Contract
//! A family of its own, drawn apart: the other worlds are as they would be without it. Processes of
//! the target are of the leg of their number, modulo legs. A leg may lose contents that the mirror
//! has elsewhere, without any visible effect; see `Course::is_covered`.
//!
//! # Limits
//! One host at a time has the mirror, all of it on one core. Legs are alike in size and blocks.
pub mod ample;
pub(super) mod apart;
pub(super) mod blink;
mod cache_loss_checker;
mod check;
pub(super) mod crash_checker;
pub(super) mod deep;
pub(super) mod dense;
pub(super) mod exchanged;
mod excuse;
pub(super) mod hung;
pub(super) mod local;
mod make;
pub(super) mod plan;
pub(super) mod put_back;
pub(super) mod quick;
pub(super) mod sharp;
pub(super) mod shrunk;

use super::prelude::*;
use engine::mirror::{LegOrder, MirrorOrder};

/// Size of each leg: a mirror of the smallest size there can be.
pub(super) const LEG_BYTES: u64 = 2 << 20;
/// How much longer than others such a world may take to come to rest, ns: a leg that goes on
/// leaving is tried again after up to 5 minutes, and what can't be copied after ten.
pub(super) const MIRROR_REST_NS: u64 = 1_200_000_000_000;
/// How often all legs are looked at while there are faults, ns.
const EXAMINE_NS: u64 = 250_000_000;
/// How often.
const EXAMINATIONS: u64 = 64;

/// Properties of a mirror, and its use by its host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// At least 2.
    pub legs: usize,
    /// Another host may take the mirror over.
    pub shared: bool,
    /// How often its owner says that it lives, ms.
    pub beat_ms: u32,
    /// From the loss of its last path on, what a leg has fails after so long, ns.
    pub patience_ns: u64,
    /// How long legs that could be missing are waited for, ns.
    pub assemble_wait_ns: u64,
    /// Fastest rebuild, bytes/s.
    pub ceiling: u64,
    /// Volumes of legs don't fence writes: the mirror waits for as long as late ones may come (T9).
    pub unfenced: bool,
    /// Which core of its host it is on.
    pub core: u16,
    /// Legs that were away for long may show an older state of themselves.
    pub put_back: bool,
    /// There is another mirror, whose legs may be in the place of these.
    pub exchanged: bool,
    /// All legs but the first are devices of its host.
    pub local: bool,
}

impl Shape {
    /// Whether a leg is a device of the mirror's host.
    pub(super) fn is_local(&self, leg: usize) -> bool {
        self.local && leg > 0
    }
}

/// All legs are looked at again and again while there are faults.
pub(super) fn plan_examinations(rig: &mut Rig, plan: &Plan, begin_ns: u64) {
    if plan.layout.mirror.is_none() {
        return;
    }
    for number in 0..EXAMINATIONS {
        let number_of_none = 2 * plan.faults.len() + number as usize;
        let at_ns = begin_ns + number * EXAMINE_NS;
        rig.world.at(at_ns, Event::Planned(number_of_none));
    }
}

impl Rig {
    /// The host's volumes.
    pub(super) fn volumes(&self) -> Range<u16> {
        0..self.layout.mirror.map_or(1, |it| it.legs as u16)
    }

    /// The disks of the mirror's legs.
    pub(super) fn leg_disks(&self) -> &[Disk] {
        let legs = self.layout.mirror.map_or(0, |it| it.legs);
        &self.world.disks[..legs]
    }

    /// Node of the core that a host's mirror is on.
    pub(super) fn mirror_node(&self, host: usize) -> usize {
        self.hosts[host].cores[self.layout.first_home()]
    }

    /// Asks a host's mirror for something.
    fn order(&mut self, host: usize, order: MirrorOrder) {
        let node = self.mirror_node(host);
        self.tell(node, ExportControl::Mirror(MIRRORS_FROM, order));
    }

    /// Asks a host's mirror for something about a leg.
    fn order_leg(&mut self, host: usize, slot: u8, order: LegOrder) {
        self.order(host, MirrorOrder::Leg(make::leg_id(slot), order));
    }

    /// Addresses of a leg's paths, in their order.
    fn addresses_of(&self, leg: usize) -> impl Iterator<Item = usize> {
        let (targets, legs) = (
            self.layout.targets,
            self.layout.mirror.map_or(1, |it| it.legs),
        );
        let all = 0..targets * usize::from(self.layout.ports);
        all.filter(move |address| address % targets % legs == leg)
    }

    /// The volume of which a path leads to an address, and which path that is when a process
    /// begins.
    pub(super) fn first_path(&self, address: usize) -> (u16, PathIndex) {
        let leg = self.disk_of(address % self.layout.targets);
        let before = self.addresses_of(leg).take_while(|it| *it != address);
        (leg as u16, PathIndex(before.count() as u8))
    }
}

impl Course<'_> {
    /// A mirror is asked for what such a fault is, or for what ends it.
    pub(super) fn order_mirror(&mut self, fault: &Fault, whom: Whom, begins: bool) {
        let leg = self.rig.disk_of(whom.target) as u8;
        match (fault.kind, begins) {
            (Kind::FailLeg, true) => {
                self.takes_out(usize::from(leg), whom.host);
                self.rig.order_leg(whom.host, leg, LegOrder::Fail);
            }
            (Kind::FailLeg, false) => self.rig.order_leg(whom.host, leg, LegOrder::Return),
            (Kind::CheckMirror, true) => {
                let order = MirrorOrder::Check(bit(fault));
                self.rig.order(whom.host, order);
            }
            _ => {}
        }
    }
}
