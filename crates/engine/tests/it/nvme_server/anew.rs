//! A mirror that is stopped and begins anew, while hosts have commands for what it was.
use super::common::{MS, SECOND, io};
use super::rig::{Below, GUEST, Rig, Setup};
use engine::export::ExportControl;
use engine::host::IoOp;
use engine::mirror::{MIRRORS_FROM, MirrorOrder, MirrorState};

fn is(rig: &Rig, state: MirrorState) -> bool {
    let mirror = rig.core.borrow().mirror(MIRRORS_FROM);
    mirror.is_some_and(|it| it.state == state)
}

/// The legs may be given other contents between the two.
#[test]
fn t09_write_under_way_does_not_reach_the_next_mirror() {
    const BYTES: u32 = 64 << 10;
    let mut setup = Setup::over(Below::Mirror);
    setup.guest.kato_ms = 50_000;
    setup.guest.io_timeout_ns = 100 * SECOND;
    let mut rig = Rig::ready(setup);
    // The host does not read: the R2T stays with the engine.
    for conn in 0..2 {
        rig.world.stuff(GUEST, conn, true);
    }
    rig.submit(&io(IoOp::Write { fua: false }, 0, BYTES, 0), 0x77);
    rig.pass(10 * MS);
    rig.control(ExportControl::Mirror(MIRRORS_FROM, MirrorOrder::Stop));
    rig.until(10 * SECOND, |rig| is(rig, MirrorState::Stopped));
    rig.begin_mirror();
    rig.until(60 * SECOND, |rig| is(rig, MirrorState::Running));
    rig.pass(100 * MS);
    // The R2T alone: what else the host hears lets it send the write again, which is right.
    rig.world.stuff(GUEST, 1, false);
    rig.pass(SECOND);
    let first = super::data::at(&rig, Below::Mirror, 0);
    for disk in &rig.disks {
        let written = disk.bytes.borrow()[first..][..BYTES as usize].contains(&0x77);
        assert!(!written);
    }
    assert_eq!(rig.used(), 0);
}
