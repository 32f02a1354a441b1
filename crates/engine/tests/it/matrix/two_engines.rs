//! Two engines that offer one volume under one NQN, as they should not: a host refuses the second
//! path if it sees one controller number twice, and notices nothing else.
use crate::common::{BLOCK, HOST, SECOND, io, tcp_path};
use crate::nvme_server::rig::{Below, GUEST, Rig, Setup, core, local, to};
use engine::host::{HostEvent, IoOp};
use engine::limits::EXPORTS_MAX;
use multipath::Outcome;
use std::cell::RefCell;
use std::rc::Rc;

/// A host with a path to each engine; the second engine counts its controllers from this number,
/// and its device has blocks of this size (log2).
fn rig(cntlid_min: u16, block_shift: u8) -> Rig {
    let mut setup = Setup::over(Below::Local);
    setup.guest.volumes[0].paths.push(tcp_path(1));
    let mut other = Setup::over(Below::Local);
    other.server.subsystem.cntlid_min = cntlid_min;
    other.core.volumes[0].paths = vec![local(0, block_shift)];
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
    rig
}

fn write_and_read(rig: &mut Rig) {
    for slot in 0..8 {
        let op = IoOp::Write { fua: false };
        let it = io(op, slot * u64::from(BLOCK), BLOCK, slot);
        assert_eq!(rig.one(&it, 1 + slot as u8), Outcome::Done);
    }
    for slot in 0..8 {
        let it = io(IoOp::Read, slot * u64::from(BLOCK), BLOCK, slot);
        assert_eq!(rig.one(&it, 0), Outcome::Done);
        assert_eq!(rig.byte(&it), 1 + slot as u8);
    }
}

/// The second path is refused with these words, and the first one is used.
fn assert_refused(mut rig: Rig, why: &str) {
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
    assert!(lines[0].contains(why), "{lines:?}");
    write_and_read(&mut rig);
    assert_eq!(
        rig.guest.borrow().volume(0).unwrap().usable(),
        1,
        "the first path alone"
    );
}

#[test]
fn second_engine_of_one_controller_number_is_refused() {
    assert_refused(rig(1, 12), "controller");
}

#[test]
fn second_engine_of_other_blocks_is_refused() {
    assert_refused(rig(2, 9), "blocks of 512 bytes here, 4096 there");
}

#[test]
fn second_engine_of_another_controller_number_is_used() {
    let mut rig = rig(2, 12);
    rig.until(60 * SECOND, |rig| {
        rig.guest.borrow().volume(0).unwrap().usable() == 3
    });
    write_and_read(&mut rig);
}
