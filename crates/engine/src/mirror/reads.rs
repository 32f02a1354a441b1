//! Which leg serves a read: health first, then the mirror's policy (rows B1–B7).
//!
//! # Contract
//! Of the legs that have the data, those that have a path which is not on probation come first,
//! then those that have any path, then all: so legs sit out only while a better one is left (T45).
//! Among them the policy chooses, by the legs' slots: `devid:1` is the leg of slot 0, whatever the
//! order in the configuration. Each choice is answered by one [`Reads::ended`], and a failed read
//! teaches nothing (T43).
//!
//! # Limits
//! A leg with several paths is one for the policy, and its own head chooses among these. Writes,
//! which all legs get, count as what is in flight there, and teach nothing.
use crate::host::{HostEngine, Io};
use crate::limits::MIRROR_IOS_MAX;
use policy::{
    Ana, Completion, Ended, Group, Knobs, PathIndex, PathView, Policy, Request, Selector, Ticket,
};
use volume::limits::LEGS_MAX;
use volume::mirror::Properties;
use volume::mirror::machine::Legs;

/// What `round-robin` means on a mirror (row B2).
const ROUND_ROBIN_BYTES: u64 = 256 << 10;

/// One core's choice among the legs of a mirror.
pub(super) struct Reads {
    selector: Selector,
    views: [PathView; LEGS_MAX],
    /// Legs with a path; of them, those with one that is not on probation.
    usable: Legs,
    sound: Legs,
    weigh: bool,
    gap_ns: u64,
}

/// The policy that a mirror has as its property; `soonest` where it has none, or one that this
/// version doesn't know.
pub(super) fn policy_of(properties: &Properties) -> Policy {
    let word = properties.value("policy");
    let policy = word.and_then(|word| Policy::parse(word).ok());
    for_mirror(policy.unwrap_or(Policy::Soonest))
}

/// `round-robin` without a value changes legs less often than paths.
pub fn for_mirror(policy: Policy) -> Policy {
    match policy {
        Policy::RoundRobin { bytes: 0 } => Policy::RoundRobin {
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
            views: [unknown; LEGS_MAX],
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
        Ok(())
    }

    pub fn policy(&self) -> Policy {
        self.selector.policy()
    }

    pub fn knobs(&self) -> Knobs {
        self.selector.knobs()
    }

    /// What is known of a leg.
    pub fn set_leg(&mut self, slot: u8, distance: u32, throughput: u8) {
        if let Some(view) = self.views.get_mut(usize::from(slot)) {
            (view.distance, view.throughput) = (distance, throughput);
            // As many as there are: each choice goes through all.
            let count = self.selector.paths().max(usize::from(slot) + 1);
            let _ = self.selector.set_paths(count);
        }
    }

    /// A leg was away: what was measured of it is of another time (T38).
    pub fn reset_leg(&mut self, slot: u8) {
        self.selector.reset_path(PathIndex(slot));
    }

    /// Once a turn: which legs can be reached, by the host's volumes that lead to them.
    pub fn look(&mut self, host: &HostEngine, legs: impl Iterator<Item = (u8, u16)>) {
        let (mut usable, mut sound) = (Legs::default(), Legs::default());
        for (slot, volume) in legs {
            let (any, well) = host.usability(volume);
            if any {
                usable.add(slot);
            }
            if well {
                sound.add(slot);
            }
        }
        (self.usable, self.sound) = (usable, sound);
        if core::mem::take(&mut self.weigh) {
            self.selector.weigh();
        }
    }

    /// What ends from now on may have been so much quicker than it looks.
    pub fn set_gap(&mut self, gap_ns: u64) {
        self.gap_ns = gap_ns;
    }

    /// A leg was given a change, or has ended it.
    pub fn count_change(&mut self, slot: u8, by: i32) {
        if let Some(view) = self.views.get_mut(usize::from(slot)) {
            view.in_flight_elsewhere = view.in_flight_elsewhere.saturating_add_signed(by);
            debug_assert!(view.in_flight_elsewhere as usize <= MIRROR_IOS_MAX);
        }
    }

    /// One of `legs` for a read; `None` where there is none.
    pub fn choose(&mut self, io: &Io, legs: Legs, now_ns: u64) -> Option<(u8, Ticket)> {
        let healthy = [legs.both(self.sound), legs.both(self.usable), legs];
        let among = healthy.into_iter().find(|set| !set.is_empty())?;
        let views = &mut self.views[..self.selector.paths()];
        for (slot, view) in (0..).zip(&mut *views) {
            view.enabled = among.has(slot);
        }
        let request = Request {
            source: io.source,
            group: Group::Read,
            length: io.length,
            address: io.offset,
            now_ns,
        };
        let chosen = self.selector.select(&request, views)?;
        Some((chosen.0, self.selector.ticket()))
    }

    /// A read on a leg has ended, or could not be given to it.
    pub fn ended(&mut self, slot: u8, ticket: Ticket, done: bool, latency_ns: u64, now_ns: u64) {
        let ended = match done {
            true => Ended::Good,
            false => Ended::Failed,
        };
        let noted = self.selector.complete(&Completion {
            path: PathIndex(slot),
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
    use crate::host::IoOp;
    use crate::machine::Span;

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
            let (chosen, ticket) = reads.choose(&read(0, 4096), all, 1).unwrap();
            assert_eq!(chosen, want, "{usable:?} {sound:?}");
            reads.ended(chosen, ticket, true, 1000, 2);
        }
        let mut none = reads(Policy::Soonest, &[0], &[0]);
        assert!(none.choose(&read(0, 4096), legs(&[]), 1).is_none());
    }

    #[test]
    fn b2_round_robin_moves_on_after_256_kib() {
        let mut reads = reads(Policy::RoundRobin { bytes: 0 }, &[0, 1], &[0, 1]);
        let slots: [u8; 12] = core::array::from_fn(|at| {
            let io = read(at as u64 * 65536, 65536);
            let (slot, ticket) = reads.choose(&io, legs(&[0, 1]), 1).unwrap();
            reads.ended(slot, ticket, true, 1000, 2);
            slot
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
}
