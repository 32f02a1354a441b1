//! A volume that is removed while requests wait for memory, for their turn, for slots.
use super::common::{MS, SECOND, TARGET};
use super::rig::{Rig, Setup, config};
use engine::export::ExportControl;
use engine::host::{Change, HostControl, Recovery};
use nbd::client::CommandError::{Lost, Server};
use nbd::{Errno, Kind, Request};

fn rig(io_max: u32, slot_bytes: u32) -> Rig {
    let mut setup = Setup {
        slot_bytes: slot_bytes.into(),
        ..Setup::default()
    }
    .with_volume(256);
    setup.host.volumes[0].recovery = Recovery::default();
    setup.host.io_max = io_max;
    let mut rig = Rig::ready(setup);
    rig.world.piece_max = 1 << 20;
    rig.world.nodes[TARGET].disks[0].delay_ns = 20 * MS;
    rig
}

/// The volume goes; how many requests of these clients ended well, and how many were told that it
/// is over. None ends otherwise, but that the connection of a write that was not all here is closed
/// in order; none does not end, and nothing is left of any.
fn remove(rig: &mut Rig, clients: &[usize]) -> (usize, usize) {
    let in_flight = |rig: &Rig| -> usize {
        let count = |&client: &usize| rig.clients.borrow().in_flight(client);
        clients.iter().map(count).sum()
    };
    let before = in_flight(rig);
    rig.control(ExportControl::Host(HostControl::Change {
        ticket: 1,
        change: Change::RemoveVolume(0),
        wait_ns: 5 * SECOND,
    }));
    rig.until(10 * SECOND, |rig| {
        clients.iter().all(|&client| rig.is_closed(client))
    });
    let ended: Vec<_> = clients.iter().flat_map(|&it| rig.ended(it)).collect();
    let count = |result| ended.iter().filter(|end| end.result == result).count();
    let (well, over) = (count(Ok(())), count(Err(Server(Errno::Shutdown))));
    let sums = (well + over + count(Err(Lost)), in_flight(rig));
    assert_eq!(sums, (before, 0), "{ended:?}");
    assert!(rig.lines().is_empty(), "{:?}", rig.lines());
    rig.pass(SECOND);
    rig.at_rest();
    assert_eq!(rig.engine.borrow().host().hold_stats(0).queued, 0);
    (well, over)
}

#[test]
fn requests_that_wait_for_memory_are_told_when_their_volume_goes() {
    const BYTES: u32 = 8 << 20;
    for kind in [Kind::Read, Kind::Write] {
        let mut rig = rig(64, BYTES);
        let clients: Vec<usize> = (0..6).map(|_| rig.connect(config(4))).collect();
        for (n, &client) in (0u64..).zip(&clients) {
            for token in 0..4 {
                let offset = (n * 4 + u64::from(token)) * u64::from(BYTES);
                let request = Request::new(token, kind, offset, BYTES);
                rig.submit(client, request, &vec![1; BYTES as usize]);
            }
        }
        rig.pass(5 * MS);
        let waited = rig.engine.borrow().counters(0).waited_buffer;
        assert!(waited > 0, "there was enough");
        let (well, over) = remove(&mut rig, &clients);
        assert!(over > 0, "{kind:?}");
        assert!(kind == Kind::Write || well + over == 24, "{well}, {over}");
    }
}

#[test]
fn changes_that_wait_for_their_turn_are_told_when_their_volume_goes() {
    let mut rig = rig(64, 65536);
    let clients: Vec<usize> = (0..3).map(|_| rig.connect(config(8))).collect();
    let mut plain = rig.connect_plain();
    // Part of a block: all that overlap it wait for it, and it for them.
    plain.write(&rig, 1, 100, &[1; 60_000]);
    rig.pass(MS);
    for &client in &clients {
        for token in 0..8 {
            let request = Request::new(token, Kind::Write, 0, 65536);
            rig.submit(client, request, &[2; 65536]);
        }
    }
    plain.write(&rig, 2, 200, &[3; 100]);
    rig.pass(5 * MS);
    let (_, over) = remove(&mut rig, &clients);
    assert_eq!(over, 24, "none had begun");
    let errors: Vec<u32> = plain.replies(&rig).iter().map(|it| it.error).collect();
    assert_eq!(
        errors,
        [Errno::Shutdown.code(); 2],
        "read, but never written"
    );
}

#[test]
fn requests_that_wait_for_slots_are_told_when_their_volume_goes() {
    let mut rig = rig(2, 65536);
    let clients: Vec<usize> = (0..4).map(|_| rig.connect(config(16))).collect();
    for (n, &client) in (0u64..).zip(&clients) {
        for token in 0..16 {
            let kind = [Kind::Write, Kind::Read, Kind::Trim][token as usize % 3];
            let offset = (n * 16 + u64::from(token)) * 65536;
            let request = Request::new(token, kind, offset, 65536);
            rig.submit(client, request, &[1; 65536]);
        }
    }
    rig.pass(5 * MS);
    let (well, over) = remove(&mut rig, &clients);
    assert!(well > 0 && over > 32, "{well} under way, {over} not");
    assert_eq!(well + over, 64, "all were here");
}
