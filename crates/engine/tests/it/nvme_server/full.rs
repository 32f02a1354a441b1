//! A mirror that takes no more I/O beside a volume that does: requests of the volume go on.
use super::common::{
    Address, BLOCK, BLOCKS, Disk, HOST, MS, SECOND, WIRE_NS, io, tcp_path, volume,
};
use super::rig::{Below, CLIENTS, Rig, Setup, add_namespace, local};
use engine::export::{ExportControl, Offer};
use engine::host::{Io, IoOp, PathKind};
use engine::limits::MIRROR_IOS_MAX;
use multipath::Outcome;
use nbd::client::Config;
use nbd::{Kind, Request};

/// Requests of an NBD client.
const EACH: u16 = 600;
/// Number of the volume, behind those of the legs.
const BESIDE: u16 = 2;

/// A mirror whose legs hang and whose I/Os are all taken by two NBD clients, with requests that
/// wait for one; and a client of the volume beside it with more requests than the engine has slots.
fn busy() -> (Rig, usize) {
    let mut setup = Setup::over(Below::Mirror);
    setup.export.requests_max = EACH;
    let mut beside = setup.core.volumes[0].clone();
    beside.paths = vec![local(BESIDE, 12)];
    setup.core.volumes.push(beside);
    add_namespace(&mut setup.server, 2, BESIDE);
    setup.guest.volumes.push(volume(vec![tcp_path(1)]));
    for (volume, nsid) in setup.guest.volumes.iter_mut().zip(1..) {
        if let PathKind::NvmeTcp { nsid: of, .. } = &mut volume.paths[0].kind {
            *of = Some(nsid);
        }
    }
    let mut rig = Rig::new(setup);
    let disk = Disk::new((BLOCKS * u64::from(BLOCK)) as usize).with_cache();
    rig.world.nodes[HOST].disks.push(disk);
    rig.world.nodes[CLIENTS].addresses.push(Address::To {
        node: HOST,
        listener: 1,
        delay_ns: WIRE_NS,
    });
    let offer = Offer {
        volume: BESIDE,
        name: "v0".into(),
        read_only: false,
    };
    rig.control(ExportControl::Offer(1, offer));
    rig.until(60 * SECOND, |rig| {
        (0..2).all(|volume| super::common::ready_of(&rig.guest_events, volume).is_some())
    });
    let connect = |rig: &mut Rig, export| {
        let config = Config {
            requests_max: EACH,
            ..Config::default()
        };
        let conn = rig.clients.borrow_mut().connect(export, config);
        rig.until(SECOND, |rig| rig.clients.borrow().all[conn].ready.is_some());
        conn
    };
    let clients = [0, 0, 1].map(|export| connect(&mut rig, export));
    rig.slow(1000 * SECOND);
    rig.world.nodes[HOST].disks[usize::from(BESIDE)].delay_ns = 10 * MS;
    const { assert!(2 * EACH as usize > MIRROR_IOS_MAX) };
    for (client, first) in clients.into_iter().zip([0, EACH, 0]) {
        for token in 0..u32::from(EACH) {
            let block = u64::from(first) + u64::from(token);
            let request = Request::new(token, Kind::WriteZeroes, block * u64::from(BLOCK), BLOCK);
            rig.ask(client, request, &[]);
        }
        rig.pass(5 * MS);
    }
    (rig, clients[2])
}

#[test]
fn nbd_requests_pass_a_mirror_without_slots() {
    let (mut rig, client) = busy();
    let ended = |rig: &Rig| rig.clients.borrow().all[client].ended.len();
    assert_eq!(ended(&rig), 0);
    rig.until(SECOND, |rig| ended(rig) == usize::from(EACH));
}

#[test]
fn nvme_commands_pass_a_mirror_without_slots() {
    let (mut rig, _) = busy();
    for volume in [0, 1] {
        let at = 1500 * u64::from(BLOCK);
        let it = Io {
            volume,
            ..io(IoOp::Read, at, BLOCK, volume.into())
        };
        rig.submit(&it, 1);
        rig.pass(MS);
    }
    assert_eq!(rig.end(1, SECOND), Outcome::Done);
    assert!(!rig.has_ended(0));
}
