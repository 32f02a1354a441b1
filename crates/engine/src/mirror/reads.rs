//! Which leg serves a read: health first, then the mirror's policy (rows B1–B7).
//!
//! # Contract
//! Of the legs that have the data, those that have a path which is not on probation come first,
//! then those that have any path, then all: so legs sit out only while a better one is left (T45).
//! Among them the policy chooses, by the legs' slots: `devid:1` is the leg of slot 0, whatever the
//! order in the configuration. Each choice is answered by one [`Reads::ended`], and a failed read
//! teaches nothing (T43).
//!
//! `soonest` selects among all paths of all legs at once ([`LegPaths`]); the leg's head then uses
//! the selected path, if it still would. With one leg of one path nothing is selected or learnt.
//!
//! # Limits
//! For the other policies a leg with several paths is one, and its own head chooses among these.
//! Writes, which all legs get, count as in flight there, and are no samples.
use super::leg_paths::LegPaths;
use crate::devices::BackEnds;
use crate::host::{Io, Multipath, Volume};
use crate::limits::MIRROR_IOS_MAX;
use block::DeviceId;
use mirror::Properties;
use mirror::limits::LEGS_MAX;
use mirror::machine::Legs;
use multipath::limits::PATHS_MAX;
use policy::{
    Ana, Completion, Ended, Group, Knobs, PathIndex, PathView, Policy, Request, Selector, Ticket,
};

/// Bytes per leg and turn of `round-robin` on a mirror (row B2).
const ROUND_ROBIN_BYTES: u64 = 256 << 10;

/// One core's choice among the legs of a mirror.
pub(super) struct Reads {
    selector: Selector,
    views: [PathView; PATHS_MAX],
    leg_paths: LegPaths,
    /// Changes that each leg has in flight.
    changes: [u32; LEGS_MAX],
    /// Legs with a path; of them, those with one that is not on probation.
    usable: Legs,
    sound: Legs,
    weigh: bool,
    gap_ns: u64,
}

/// The leg selected for a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    /// The leg.
    pub slot: u8,
    /// The path to it, if that was chosen too.
    pub path: Option<PathIndex>,
    chosen: PathIndex,
    /// `None`: there was nothing to choose from.
    ticket: Option<Ticket>,
}

/// The policy that a mirror has as its property; `soonest` where it has none, or one that this
/// version doesn't know.
pub(super) fn policy_of(properties: &Properties) -> Policy {
    let word = properties.value("policy");
    let policy = word.and_then(|word| Policy::parse(word).ok());
    for_mirror(policy.unwrap_or(Policy::Soonest))
}

/// `round-robin` and `round-robin-latency` without a value change legs less often than paths.
pub fn for_mirror(policy: Policy) -> Policy {
    match policy {
        Policy::RoundRobin { bytes: 0 } => Policy::RoundRobin {
            bytes: ROUND_ROBIN_BYTES,
        },
        Policy::RoundRobinLatency { bytes: 0 } => Policy::RoundRobinLatency {
            bytes: ROUND_ROBIN_BYTES,
        },
        other => other,
    }
}

impl Reads {
    pub fn new(policy: Policy, knobs: Knobs) -> Self {
        let mut selector = Selector::new(0, policy);
        // They are checked where they come from; what can't be leaves the usual ones.
        let _ = selector.set_knobs(knobs);
        let unknown = PathView {
            enabled: false,
            ana: Ana::Optimized,
            distance: 0,
            in_flight_elsewhere: 0,
            throughput: 1,
        };
        Self {
            selector,
            views: [unknown; PATHS_MAX],
            leg_paths: LegPaths::new(),
            changes: [0; LEGS_MAX],
            usable: Legs::default(),
            sound: Legs::default(),
            weigh: false,
            gap_ns: 0,
        }
    }

    /// Changes policy and knobs.
    pub fn set_policy(&mut self, policy: Policy, knobs: Knobs) -> Result<(), policy::KnobError> {
        self.selector.set_knobs(knobs)?;
        self.selector.set_policy(for_mirror(policy));
        for (view, changes) in self.views.iter_mut().zip(self.changes) {
            view.in_flight_elsewhere = changes;
        }
        Ok(())
    }

    pub fn policy(&self) -> Policy {
        self.selector.policy()
    }

    pub fn knobs(&self) -> Knobs {
        self.selector.knobs()
    }

    /// Sets distance and throughput of a leg.
    pub fn set_leg(&mut self, slot: u8, distance: u32, throughput: u8) {
        if let Some(view) = self.views.get_mut(usize::from(slot)) {
            (view.distance, view.throughput) = (distance, throughput);
            // As many as there are: each choice goes through all.
            let count = self.selector.paths().max(usize::from(slot) + 1);
            let _ = self.selector.set_paths(count);
        }
    }

    /// Forgets the measurements of a leg that was missing: they are outdated (T38).
    pub fn reset_leg(&mut self, slot: u8) {
        self.selector.reset_path(PathIndex(slot));
        let of = self.leg_paths.split().filter(|it| it.1 == slot);
        of.for_each(|it| self.selector.reset_path(PathIndex(it.0)));
    }

    /// Whether paths are chosen along with legs.
    fn pairs(&self) -> bool {
        self.selector.policy() == Policy::Soonest
    }

    /// Once a turn: which legs can be reached, and by which paths.
    pub fn inspect(&mut self, below: BackEnds<'_>, legs: impl Iterator<Item = (u8, DeviceId)>) {
        let (mut usable, mut sound) = (Legs::default(), Legs::default());
        let pairs = self.pairs();
        for (slot, device) in legs {
            let (any, well) = below.usability(device);
            if any {
                usable.add(slot);
            }
            if well {
                sound.add(slot);
            }
            if pairs {
                self.inspect_paths(below.host, slot, device.0);
            }
        }
        (self.usable, self.sound) = (usable, sound);
        if core::mem::take(&mut self.weigh) {
            self.selector.weigh();
        }
    }

    fn inspect_paths(&mut self, host: &Multipath, slot: u8, volume: u16) {
        let selector = &mut self.selector;
        self.leg_paths.set_usable(
            slot,
            host.volume(volume).map_or(0, Volume::usable),
            |number| {
                // Its measurements are outdated (T38).
                selector.reset_path(PathIndex(number));
            },
        );
        if !self.leg_paths.is_split(slot) {
            return; // the leg is one way
        }
        if let Some(count) = self.leg_paths.count() {
            let _ = self.selector.set_paths(count.max(self.selector.paths()));
        }
        let leg = self.views[usize::from(slot)];
        for (number, _, path) in self.leg_paths.split().filter(|it| it.1 == slot) {
            let own = self.selector.in_flight(PathIndex(number));
            let elsewhere = host.in_flight(volume, path).saturating_sub(own);
            self.views[usize::from(number)] = PathView {
                in_flight_elsewhere: elsewhere,
                ..leg
            };
        }
    }

    /// I/O that ends from now on may have been quicker by so much than measured.
    pub fn set_gap(&mut self, gap_ns: u64) {
        self.gap_ns = gap_ns;
    }

    /// Whether one of these legs is usable, as last inspected.
    pub fn reaches_any(&self, legs: Legs) -> bool {
        !legs.both(self.usable).is_empty()
    }

    /// A leg was given a change, or has ended it.
    pub fn count_change(&mut self, slot: u8, by: i32) {
        let split = self.pairs() && self.leg_paths.is_split(slot);
        let changes = &mut self.changes[usize::from(slot)];
        *changes = changes.saturating_add_signed(by);
        debug_assert!(*changes as usize <= MIRROR_IOS_MAX);
        // Else the host counts them by path.
        if !split {
            self.views[usize::from(slot)].in_flight_elsewhere = *changes;
        }
    }

    /// One of `legs` for a read; `None` where there is none.
    pub fn choose(&mut self, io: &Io, legs: Legs, now_ns: u64) -> Option<Choice> {
        let healthy = [legs.both(self.sound), legs.both(self.usable), legs];
        let among = healthy.into_iter().find(|set| !set.is_empty())?;
        if self.selector.paths() == 1 {
            // One leg, with one path: there is nothing to learn.
            return Some(Choice {
                slot: 0,
                path: None,
                chosen: PathIndex(0),
                ticket: None,
            });
        }
        let pairs = self.pairs();
        let views = &mut self.views[..self.selector.paths()];
        for (number, view) in (0..).zip(&mut *views) {
            view.enabled = self.leg_paths.allows(number, among, pairs);
        }
        let request = Request {
            source: io.source,
            group: Group::Read,
            length: io.length,
            address: io.offset,
            now_ns,
        };
        let chosen = self.selector.select(&request, views)?;
        let (slot, path) = self.leg_paths.of(chosen.0, pairs);
        Some(Choice {
            slot,
            path,
            chosen,
            ticket: Some(self.selector.ticket()),
        })
    }

    /// A read on a leg has ended, or could not be given to it; `served`: the path that served it.
    pub fn ended(
        &mut self,
        choice: &Choice,
        done: bool,
        served: PathIndex,
        latency_ns: u64,
        now_ns: u64,
    ) {
        let Some(ticket) = choice.ticket else {
            return; // nothing was selected
        };
        // A read that used another path is no sample of the selected one.
        let there = choice.path.is_none_or(|path| path == served);
        let ended = match done {
            true if there => Ended::Good,
            true => Ended::Dropped,
            false => Ended::Failed,
        };
        let noted = self.selector.complete(&Completion {
            path: choice.chosen,
            group: Group::Read,
            latency_ns,
            ended,
            now_ns,
            ticket,
            gap_ns: self.gap_ns,
        });
        self.weigh |= noted.weigh;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{IoOp, NO_PATH};
    use crate::machine::Span;
    use alloc::vec::Vec;

    pub(super) fn read(offset: u64, length: u32) -> Io {
        Io {
            volume: 0,
            op: IoOp::Read,
            offset,
            length,
            span: Span::default(),
            source: 1,
            cookie: 0,
        }
    }

    fn legs(slots: &[u8]) -> Legs {
        slots.iter().copied().collect()
    }

    fn reads(policy: Policy, usable: &[u8], sound: &[u8]) -> Reads {
        let mut reads = Reads::new(for_mirror(policy), Knobs::default());
        (reads.usable, reads.sound) = (legs(usable), legs(sound));
        (0..3).for_each(|slot| reads.set_leg(slot, 0, 1));
        reads
    }

    #[test]
    fn b7_t45_health_comes_before_the_policy_and_somebody_always_serves() {
        let all = legs(&[0, 1, 2]);
        for (usable, sound, want) in [
            (&[0, 1, 2][..], &[0, 1, 2][..], 0),
            (&[0, 1, 2], &[1], 1),
            (&[2], &[], 2),
            (&[], &[], 0),
        ] {
            let mut reads = reads(Policy::Devid(PathIndex(0)), usable, sound);
            let chosen = reads.choose(&read(0, 4096), all, 1).unwrap();
            assert_eq!(chosen.slot, want, "{usable:?} {sound:?}");
            reads.ended(&chosen, true, NO_PATH, 1000, 2);
        }
        let mut none = reads(Policy::Soonest, &[0], &[0]);
        assert!(none.choose(&read(0, 4096), legs(&[]), 1).is_none());
    }

    #[test]
    fn a_leg_that_comes_to_a_single_one_is_chosen_and_what_was_under_way_teaches_nothing() {
        let mut reads = Reads::new(Policy::RoundRobin { bytes: 1 }, Knobs::default());
        (reads.usable, reads.sound) = (legs(&[0, 1]), legs(&[0, 1]));
        reads.set_leg(0, 0, 1);
        let choose =
            |reads: &mut Reads, among| reads.choose(&read(0, 4096), legs(among), 1).unwrap();
        let early = choose(&mut reads, &[0]);
        assert_eq!((early.slot, early.path), (0, None));
        reads.set_leg(1, 0, 1);
        let slots = [(); 4].map(|()| choose(&mut reads, &[0, 1]).slot);
        assert!(slots.contains(&0) && slots.contains(&1), "{slots:?}");
        reads.ended(&early, true, NO_PATH, 1000, 2);
        let stats = reads.selector.stats(PathIndex(0), Group::Read);
        assert_eq!(stats.samples, 0, "{stats:?}");
    }

    #[test]
    fn b2_round_robin_moves_on_after_256_kib() {
        let mut reads = reads(Policy::RoundRobin { bytes: 0 }, &[0, 1], &[0, 1]);
        let slots: [u8; 12] = core::array::from_fn(|at| {
            let io = read(at as u64 * 65536, 65536);
            let chosen = reads.choose(&io, legs(&[0, 1]), 1).unwrap();
            reads.ended(&chosen, true, NO_PATH, 1000, 2);
            chosen.slot
        });
        assert_eq!(slots[..4], [slots[0]; 4]);
        assert_eq!(slots[4..8], [1 - slots[0]; 4]);
        assert_eq!(slots[8..], [slots[0]; 4]);
    }

    #[test]
    fn b6_the_policy_is_what_the_mirror_says() {
        let mut properties = Properties::default();
        assert_eq!(policy_of(&properties), Policy::Soonest);
        properties.set("policy", "round-robin").unwrap();
        assert_eq!(
            policy_of(&properties),
            Policy::RoundRobin { bytes: 256 << 10 }
        );
        properties.set("policy", "of tomorrow").unwrap();
        assert_eq!(policy_of(&properties), Policy::Soonest);
    }

    /// Reads one after the other; how many of them each way took.
    fn shares(reads: &mut Reads, latency_us: impl Fn(u8, Option<PathIndex>) -> u64) -> Vec<u32> {
        let mut taken = alloc::vec![0; PATHS_MAX];
        let mut now_ns = 0;
        for at in 0..4000 {
            let chosen = reads
                .choose(&read(at * 4096, 4096), legs(&[0, 1]), now_ns)
                .unwrap();
            let latency_ns = latency_us(chosen.slot, chosen.path) * 1000;
            now_ns += latency_ns;
            let path = chosen.path.unwrap_or(NO_PATH);
            reads.ended(&chosen, true, path, latency_ns, now_ns);
            taken[usize::from(chosen.chosen.0)] += 1;
        }
        taken
    }

    #[test]
    fn soonest_learns_each_path_of_each_leg() {
        let mut reads = reads(Policy::Soonest, &[0, 1], &[0, 1]);
        reads.leg_paths.set_usable(0, 0b11, |_| {});
        reads.leg_paths.set_usable(1, 1, |_| {});
        reads
            .selector
            .set_paths(reads.leg_paths.count().unwrap())
            .unwrap();
        let latency_us = |slot, path| match (slot, path) {
            (0, Some(PathIndex(0))) => 3000,
            (0, Some(PathIndex(1))) => 100,
            (1, None) => 300,
            other => panic!("{other:?}"),
        };
        let taken = shares(&mut reads, latency_us);
        assert!(taken[LEGS_MAX] > 3600, "{taken:?}");
        // The near path goes: the other leg is better than the far one.
        reads
            .leg_paths
            .set_usable(0, 1, |_| panic!("it was there before"));
        let taken = shares(&mut reads, latency_us);
        assert!(taken[1] > 3600 && taken[LEGS_MAX] == 0, "{taken:?}");
    }

    #[test]
    fn t38_what_was_measured_of_a_leg_before_it_was_away_keeps_no_reads_from_it() {
        let soon = |returned: bool| {
            let mut reads = reads(Policy::Soonest, &[0, 1], &[0, 1]);
            let slow = |slot, _| if slot == 0 { 20_000 } else { 300 };
            let taken = shares(&mut reads, slow);
            assert!(taken[1] > 3900, "{taken:?}");
            if returned {
                reads.reset_leg(0);
            }
            let slots = [(); 20].map(|()| {
                let chosen = reads.choose(&read(0, 4096), legs(&[0, 1]), u64::MAX >> 1);
                let chosen = chosen.unwrap();
                reads.ended(&chosen, true, NO_PATH, 100_000, u64::MAX >> 1);
                chosen.slot
            });
            slots.iter().filter(|slot| **slot == 0).count()
        };
        assert!(soon(true) > 10, "it is the faster one by now");
        assert!(
            soon(false) < 3,
            "what is known of it is not forgotten without a reason"
        );
    }

    #[test]
    fn t43_what_another_path_has_served_teaches_nothing_of_the_one_that_was_chosen() {
        let mut reads = reads(Policy::Soonest, &[0], &[0]);
        reads.leg_paths.set_usable(0, 0b11, |_| {});
        let count = reads.leg_paths.count().unwrap();
        reads.selector.set_paths(count).unwrap();
        let mut chosen = || reads.choose(&read(0, 4096), legs(&[0]), 1).unwrap();
        let first = chosen();
        let other = PathIndex(1 - first.path.unwrap().0);
        reads.ended(&first, true, other, 5_000_000, 5_000_001);
        let stats = reads.selector.stats(first.chosen, Group::Read);
        assert_eq!((stats.selections, stats.samples), (1, 0), "{stats:?}");
    }
}
