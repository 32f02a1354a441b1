//! Two engines that offer one volume under one NQN: a host that sees the same controller number
//! twice uses the first path only.
use crate::common::{BLOCK, HOST, SECOND, io, tcp_path};
use crate::nvme_server::rig::{Below, GUEST, Rig, Setup, core, to};
use engine::host::{HostEvent, IoOp};
use engine::limits::EXPORTS_MAX;
use std::cell::RefCell;
use std::rc::Rc;
use volume::Outcome;

/// Each engine counts its controllers from 1.
#[test]
fn second_engine_under_one_nqn_is_refused_as_a_path() {
    let mut setup = Setup::over(Below::Local);
    setup.guest.volumes[0].paths.push(tcp_path(1));
    let other = Setup::over(Below::Local);
    let mut rig = Rig::new(setup);
    let engine = core(
        other.below,
        other.core,
        other.export,
        other.server,
        &rig.disks,
    );
    let arena = rig.world.nodes[HOST].arena.0.len();
    let node = rig.world.add(Rc::new(RefCell::new(engine)), arena);
    rig.world.nodes[node].disks = rig.disks.clone();
    rig.world.nodes[GUEST].addresses[1] = to(node, EXPORTS_MAX);
    let refusals = |rig: &Rig| -> Vec<String> {
        let lines = rig.guest_events.iter().filter_map(|event| match event {
            HostEvent::Failed(0, line) => Some(line.clone()),
            _ => None,
        });
        lines.collect()
    };
    rig.until(60 * SECOND, |rig| {
        rig.info().is_some() && !refusals(rig).is_empty()
    });
    let lines = refusals(&rig);
    assert!(lines[0].contains("controller"), "{lines:?}");
    for slot in 0..8 {
        let it = io(
            IoOp::Write { fua: false },
            slot * u64::from(BLOCK),
            BLOCK,
            slot,
        );
        assert_eq!(rig.one(&it, 7), Outcome::Done);
    }
    assert_eq!(rig.guest.borrow().usable(0), 1, "the first path alone");
}
