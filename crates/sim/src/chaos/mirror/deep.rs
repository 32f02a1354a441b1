//! Worlds with a mirror whose legs are slow and have much to do: their devices do one request after
//! the other, and heartbeats must not wait behind all that applications ask for (T54).
//!
//! # Contract
//! One world in 24, drawn apart from the rest, has this instead of all that could take a leg away:
//! applications with as many requests as an export takes, and devices that become slower for some
//! seconds, until the queue would take longer than a lease. No leg leaves, and no lease ends.
//!
//! # Limits
//! Devices are not slow at once, and only once the mirror runs and its legs have their lease: what
//! is outstanding when they become so was given to legs that were fast.
use crate::chaos::prelude::*;
use engine::mirror::LegReport;

/// One world of so many.
const OF: u64 = 24;
/// For how long.
const LASTS_NS: u64 = 60_000 * MS;
/// So that a queue of all requests takes longer than a lease, and a short one much less.
const BEAT_MS: u32 = 1_000;
const CONNECTIONS: u32 = 6;
const DEPTH: u16 = 32;
/// Further faults, and how often.
const CLIENTS: [Kind; 4] = [
    Kind::ClientReset,
    Kind::ClientHalfOpen,
    Kind::ClientSlow,
    Kind::ClientFull,
];
const FAULTS: u64 = 14;

/// A plan, perhaps with slow legs and nothing else.
pub(in crate::chaos) fn plan(plan: &mut Plan, random: &mut Random) {
    let Some(shape) = plan.layout.mirror.as_mut() else {
        return;
    };
    if random.up_to(OF - 1) > 0 {
        return;
    }
    (shape.beat_ms, shape.unfenced) = (BEAT_MS, false);
    (shape.put_back, shape.exchanged) = (false, false);
    let habit = &mut plan.layout.habit;
    (habit.connections, habit.depth, habit.pause_ns) = (CONNECTIONS, DEPTH, 0);
    habit.total = habit.total.max(3_000);
    plan.layout.io_max = 256;
    plan.faults.clear();
    let whom = random.up_to(u64::MAX);
    plan.faults.push(Fault {
        when: Some(PathState::Live),
        ..fault(Kind::DeepQueue, 0, LASTS_NS, whom)
    });
    plan.add_some((&CLIENTS, FAULTS), (2_000 * MS, 2 * WINDOW_NS), random);
}

/// How long a request takes at last, ns. A heartbeat, which is a read and a write, has to take less
/// than its interval behind as many requests as a leg has outstanding at least.
pub(in crate::chaos) fn most_ns(fault: &Fault) -> u64 {
    (12 + fault.whom / 64 % 7) * MS
}

impl Course<'_> {
    /// Whether the mirror runs, and all its legs have their lease: when it starts they have none.
    pub(in crate::chaos) fn may_be_deep(&self, host: usize) -> bool {
        let Some(engine) = self.rig.mirror_core(host) else {
            return false;
        };
        let report = engine.mirror(MIRRORS_FROM);
        let is_running = report.is_some_and(|it| it.state == MirrorState::Running);
        let legs = engine.mirror_legs(MIRRORS_FROM);
        let has_lease = |it: &LegReport| it.facts.is_some_and(|it| it.in_sync && !it.lapsed);
        is_running && legs.is_some_and(|legs| legs.iter().all(has_lease))
    }

    /// No leg left because it was slow.
    pub(in crate::chaos) fn none_starved(&mut self, fault: &Fault, host: usize) {
        self.report.judged.insert(Check::Deep);
        let now_ns = self.rig.world.now_ns;
        let since_ns = now_ns - fault.lasts_ns;
        let home = self.rig.layout.first_home();
        let good = &self.rig.hosts[host].good[home];
        let left = good.left.iter().find(|it| it.1 > since_ns);
        let what = match left {
            Some((leg, _)) => format!("leg {leg} left, though its device was only slow"),
            None if good.was_lapsed(since_ns, now_ns) => {
                "the lease of a leg ended, though its device was only slow".into()
            }
            None => return,
        };
        let node = self.rig.mirror_node(host);
        self.rig.world.blame(node, Some(what));
    }
}
