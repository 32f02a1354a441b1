//! Reads with two copies: two paths that are known well, and what may happen to them.
use super::*;
use engine::Span;
use engine::host::{HedgeStats, HostConfig};
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetConfig, TargetControl};
use multipath::Outcome;
use nvme::wire::Status;
use policy::Policy;

/// The engine's own part of the arena: behind the buffers of 32 I/Os.
pub const SCRATCH: Span = Span {
    at: 4 << 20,
    len: 1 << 20,
};
pub const PATH_ERROR: Status = Status::new(3, 0);
pub const STALL_NS: u64 = SECOND;

/// Two paths, the second somewhat longer, known well; the disk holds version 7 of every byte.
pub fn hedging_rig_with(change: impl FnOnce(&mut HostConfig, &mut TargetConfig)) -> Rig {
    let mut rig = rig_of(2, |host, target| {
        host.volumes[0].policy = Policy::Soonest;
        host.scratch = SCRATCH;
        change(host, target);
    });
    fill(&mut rig.disk.bytes.borrow_mut(), 0, 7);
    shape(&mut rig, 1, |it| it.delay_ns = 100_000);
    for n in 0..2000 {
        let done = rig.one(&read(n % BLOCKS, n % 4), SECOND);
        assert!(done.outcome.is_done());
    }
    assert_eq!(
        stats(&rig),
        HedgeStats {
            looked: stats(&rig).looked,
            ..HedgeStats::default()
        }
    );
    rig
}

pub fn hedging_rig() -> Rig {
    hedging_rig_with(|_, _| ())
}

pub fn shape(rig: &mut Rig, port: u16, change: impl FnOnce(&mut shape::Config)) {
    let mut shape = shape::Config::default();
    change(&mut shape);
    rig.target_control(TargetControl::Shape(port, shape));
}

/// I/O that the port has, and gets, stays there for so long.
pub fn stall(rig: &mut Rig, port: u16, ns: u64) {
    let until_ns = rig.world.now_ns + ns;
    shape(rig, port, |it| it.stall_until_ns = until_ns);
}

pub fn stats(rig: &Rig) -> HedgeStats {
    rig.host.borrow().hedge_stats(0)
}

pub fn buffer(rig: &mut Rig, slot: u64, bytes: usize) -> &mut [u8] {
    &mut rig.world.nodes[HOST].arena.0[(slot as usize) << 17..][..bytes]
}

/// The buffer of slot `slot` holds what block `block` on holds.
pub fn holds(rig: &mut Rig, slot: u64, block: u64, bytes: usize) -> bool {
    let mut want = vec![0; bytes];
    fill(&mut want, block * u64::from(BLOCK), 7);
    *buffer(rig, slot, bytes) == want[..]
}

/// Nothing waits, no copy is left, all of the engine's memory is back.
pub fn all_is_back(rig: &Rig) {
    at_rest(rig, 2);
    let scratch = rig.host.borrow().scratch_free();
    assert_eq!(scratch, u64::from(SCRATCH.len));
    let HedgeStats {
        sent,
        won,
        lost,
        failed,
        rescued,
        ..
    } = stats(rig);
    let ended = won + lost + failed + rescued;
    assert_eq!(sent, ended, "{:?}", stats(rig));
}

/// One read is with path 0, which has stalled for [`STALL_NS`]; it has ended by its copy, and its
/// caller has written to the buffer since.
pub fn beaten(rig: &mut Rig) {
    stall(rig, 0, STALL_NS);
    rig.submit(&read(5, 0)).unwrap();
    assert_eq!(rig.host.borrow().in_flight(0, P0), 1, "where it went");
    assert!(rig.run(20 * MS, |_, done| done.len() == 1), "no copy");
    let done = rig.done.remove(0);
    assert_eq!((done.outcome, done.path), (Outcome::Done, P1));
    assert!(holds(rig, 0, 5, 4096));
    buffer(rig, 0, 4096).fill(0xee);
    assert_eq!(rig.host.borrow().in_flight(0, P0), 1, "the loser");
}

/// A read with two copies under way; `over`: one has ended, and the read with it.
pub fn pair(rig: &mut Rig, over: bool) {
    if over {
        return beaten(rig);
    }
    stall(rig, 0, STALL_NS);
    stall(rig, 1, STALL_NS / 2);
    rig.submit(&read(5, 0)).unwrap();
    rig.world.pass(20 * MS);
    assert_eq!(stats(rig).sent, 1);
}

pub fn untouched(rig: &mut Rig) {
    assert!(buffer(rig, 0, 4096).iter().all(|&byte| byte == 0xee));
}

/// Reads through a port fail with this status.
pub fn fail_reads(rig: &mut Rig, port: u16, status: Status) {
    fail(rig, port, Ops::READ, status);
}

/// Those of them that go through a port fail with this status.
pub fn fail(rig: &mut Rig, port: u16, ops: Ops, status: Status) {
    let rule = ErrorRule {
        status,
        ops,
        blocks: None,
        rate: Probability::ALWAYS,
    };
    let faults = Faults {
        errors: vec![rule],
        ..Faults::default()
    };
    rig.target_control(TargetControl::Faults(port, faults));
}
