//! Wrong input by hand on an NVMe/TCP export: it is refused with the status that names it, reaches
//! no device, and other hosts go on.
use super::Front;
use super::hand::{HOST_NQN, Wire};
use super::stage::{Stage, at, pattern};
use crate::common::{NQN, SECOND, host_config, namespace};
use crate::nvme_server::rig::{Below, Rig, Setup, add_namespace};
use engine::LocalDevice;
use nvme::wire::Status;
use nvme::wire::fabrics::{
    CNTLID_ANY, Cc, ConnectData, InvalidParameter, connect_status, property,
};
use nvme::wire::sqe::nvm;

const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";

fn stage() -> Stage {
    Stage::new(Front::Nvme, Below::File)
}

/// Nothing but this write has reached the device, and it is served.
fn assert_goes_on(stage: &mut Stage) {
    assert!(stage.reached(0).is_empty(), "{:?}", stage.reached(0));
    let bytes = pattern(3, 1, 1);
    stage.write(at(3), &bytes);
    stage.assert_everywhere(at(3), &bytes);
    stage.assert_at_rest();
}

#[test]
fn other_nqns_are_refused_by_their_place() {
    let mut stage = stage();
    for nqn in [
        "nqn.2026-01.org.example:other",
        "NQN.2026-01.org.example:v0",
        "x",
    ] {
        let mut wire = Wire::open(&mut stage.rig);
        let cqe = wire.connect(&mut stage.rig, nqn, CNTLID_ANY, 0);
        assert_eq!(
            cqe.status.code(),
            connect_status::INVALID_PARAMETERS,
            "{nqn}"
        );
        let place = InvalidParameter {
            offset: ConnectData::SUBNQN_AT,
            in_data: true,
        };
        assert_eq!(InvalidParameter::parse(cqe.result), place, "{nqn}");
    }
    assert_goes_on(&mut stage);
}

/// The others of the list are served.
#[test]
fn hosts_that_are_not_allowed_are_refused() {
    let mut setup = Setup::over(Below::File);
    setup.server.subsystem.hosts = vec![host_config(0).identity.nqn];
    let mut rig = Rig::ready(setup);
    let mut wire = Wire::open(&mut rig);
    let cqe = wire.connect(&mut rig, NQN, CNTLID_ANY, 0);
    assert_eq!(cqe.status.code(), connect_status::INVALID_HOST);
    let mut setup = Setup::over(Below::File);
    setup.server.subsystem.hosts = vec![HOST_NQN.into()];
    let mut rig = Rig::new(setup);
    rig.pass(SECOND);
    assert!(rig.info().is_none(), "the other host is not allowed");
    let mut queue = Wire::queue(&mut rig);
    let cqe = queue.io(&mut rig, nvm::READ, (0, 1), &[]);
    assert!(cqe.status.is_success(), "{}", cqe.status);
}

/// It leads to a discovery controller, which has no I/O queue and no namespace.
#[test]
fn discovery_nqn_leads_to_no_namespace() {
    let mut stage = stage();
    let (mut admin, cntlid) = Wire::login(&mut stage.rig, DISCOVERY);
    let enabled = admin.set(&mut stage.rig, property::CC, Cc::enabled(0, 0).0);
    assert!(enabled.is_success(), "{enabled}");
    let mut wire = Wire::open(&mut stage.rig);
    let cqe = wire.connect(&mut stage.rig, DISCOVERY, cntlid, 1);
    assert_eq!(cqe.status.code(), connect_status::INVALID_PARAMETERS);
    let (cqe, _) = admin.identify(&mut stage.rig, 0, 1);
    assert!(!cqe.status.is_success(), "Identify Namespace");
    assert_goes_on(&mut stage);
}

/// A controller that is not enabled has no I/O queue; properties other than CC cannot be set.
#[test]
fn wrong_cc_enables_nothing() {
    let mut stage = stage();
    let enabled = Cc::enabled(0, 0).0;
    // Memory pages of 128 MiB; command set 3; entries of 2 bytes.
    for wrong in [
        enabled | 15 << 7,
        enabled | 3 << 4,
        enabled & !(15 << 16) | 1 << 16,
    ] {
        let (mut admin, cntlid) = Wire::login(&mut stage.rig, NQN);
        let status = admin.set(&mut stage.rig, property::CC, wrong);
        let csts = admin.get(&mut stage.rig, property::CSTS);
        assert!(
            !status.is_success() || csts & 1 == 0,
            "CC {wrong:#x}: CSTS {csts:#x}"
        );
        let mut wire = Wire::open(&mut stage.rig);
        let cqe = wire.connect(&mut stage.rig, NQN, cntlid, 1);
        assert!(!cqe.status.is_success(), "CC {wrong:#x}");
        for offset in [property::CAP, property::CSTS, property::NSSR, 0x1000] {
            let status = admin.set(&mut stage.rig, offset, 1);
            assert_eq!(status.code(), Status::INVALID_FIELD, "{offset:#x}");
        }
    }
    assert_goes_on(&mut stage);
}

/// Also where the subsystem has the namespace, and its device is not ready or there is none.
#[test]
fn commands_to_absent_namespaces_are_refused_for_good() {
    let mut setup = Setup::over(Below::File);
    add_namespace(&mut setup.server, 5, 7);
    assert_eq!(setup.server.devices[1], LocalDevice(7), "no such volume");
    assert_eq!(namespace(5).nsid, 5);
    if let engine::host::PathKind::NvmeTcp { nsid, .. } = &mut setup.guest.volumes[0].paths[0].kind
    {
        *nsid = Some(1);
    }
    let mut rig = Rig::ready(setup);
    *rig.disks[0].log.borrow_mut() = Some(Vec::new());
    let mut queue = Wire::queue(&mut rig);
    let data = pattern(0, 1, 1);
    for nsid in [0, 2, 5, 0xffff_fffe, 0xffff_ffff] {
        let ios = [
            (nvm::READ, &[][..]),
            (nvm::WRITE, &data[..]),
            (nvm::WRITE_ZEROES, &[][..]),
        ];
        for (opcode, data) in ios {
            let status = queue.io_on(&mut rig, nsid, opcode, (0, 1), data).status;
            assert_eq!(
                status.code(),
                Status::INVALID_NAMESPACE,
                "{opcode} {nsid:#x}"
            );
            assert!(status.dnr(), "{opcode} {nsid:#x}");
        }
    }
    let past = queue.io(&mut rig, nvm::READ, (1 << 40, 1), &[]).status;
    assert_eq!(past.code(), Status::LBA_RANGE);
    let requests = rig.disks[0].log.borrow();
    assert_eq!(requests.as_deref(), Some(&[][..]));
}
