//! Long faults: until time-outs expire.
//!
//! Decides, from a plan and its seed, whether one of its faults lasts longer than others: long
//! enough for keep-alive and every time-out of I/O; or for all the time that an engine gives
//! unknown clients to identify themselves, and an application to read its answers.
//!
//! # Contract
//! One world in [`ONE_OF`], if it has such a fault, and each target that stands still with a change
//! in its hands. All others are as they would be without.
//!
//! # Limits
//! Shorter than a flush waits for a path that is lost, back-off and hold included: what fails by
//! that is not known here.
use super::kind::of_kinds;
use super::prelude::*;
use super::strike::is_halt;
use nbd::limits::{HANDSHAKE_NS, STALL_NS};

/// Which share of seeds.
const ONE_OF: u64 = 8;
/// Its least duration, ns: longer than the detection of a lost peer, than the time for a handshake,
/// and, of applications, than the detection of a stall.
const NOTICED_NS: u64 = 4_000 * MS;
const UNKNOWN_NS: u64 = 3 * HANDSHAKE_NS;
const STALLED_NS: u64 = 2 * STALL_NS;
/// And at most so much longer.
const MORE_NS: u64 = 4_000 * MS;

/// Faults of which more than the beginning matters.
const KINDS: [Kind; 18] = of_kinds![
    Partition OneWay HalfOpen Slow Trickle Full Freeze FreezeHost Hang Mute Crowd Unread
    FreezeTeller PartTeller ClientHalfOpen ClientPartition ClientSlow ClientFull
];

/// A plan with a long fault, or the same.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    // Commands that a target has begun are late only after the bound.
    for fault in plan.faults.iter_mut().filter(|it| is_halt(it)) {
        fault.lasts_ns += NOTICED_NS;
    }
    if random.up_to(ONE_OF - 1) > 0 {
        return;
    }
    let long = |fault: &&mut Fault| KINDS.contains(&fault.kind);
    let count = plan.faults.iter_mut().filter(long).count() as u64;
    if count == 0 {
        return;
    }
    let which = random.up_to(count - 1) as usize;
    if let Some(fault) = plan.faults.iter_mut().filter(long).nth(which) {
        let least_ns = match random.up_to(1) {
            0 => NOTICED_NS,
            _ if is_deaf(fault.kind) => STALLED_NS,
            _ => UNKNOWN_NS,
        };
        fault.lasts_ns = least_ns + random.up_to(MORE_NS);
        if least_ns == STALLED_NS {
            // More is to be told than may be under way.
            plan.layout.more.window = 16 << 10;
            plan.layout.habit.depth = 16;
        }
    }
}

/// Whether applications read nothing, or little, meanwhile.
fn is_deaf(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::Unread | Kind::ClientPartition | Kind::ClientSlow | Kind::ClientFull
    )
}

impl Course<'_> {
    /// Applications that read nothing for too long are cut off by their host.
    pub(super) fn bore(&mut self, fault: &Fault, host: usize) {
        if is_deaf(fault.kind) && fault.lasts_ns >= STALLED_NS {
            let now_ns = self.rig.world.now_ns;
            self.rig.hosts[host].lives.cut(now_ns, usize::MAX);
        }
    }
}
