//! Every admin command: data, results, refusals.
use super::*;
use crate::wire::fabrics::{DISCOVERY_NQN, Version};
use crate::wire::features::{QueueCount, fid};
use crate::wire::identify::{
    self as id, Descriptor, IndependentNamespace, LbaFormat, cmic, cns, cntrltype, ctratt, oncs,
};
use crate::wire::layout::{padded, text};
use crate::wire::log::{
    self, ANA_GROUPS_ONLY, AnaLog, CSUPP, ErrorEntry, FirmwareSlot, LBCC, Request, Smart, lid,
};
use crate::wire::sqe::{NSID_ALL, admin, nvm};

pub fn identify(cns: u8, nsid: u32) -> SqeBuilder {
    SqeBuilder::new(admin::IDENTIFY)
        .nsid(nsid)
        .cdw(10, cns.into())
}

pub fn log(request: Request) -> SqeBuilder {
    let mut sqe = SqeBuilder::new(admin::GET_LOG_PAGE);
    for (i, value) in request.emit().into_iter().enumerate() {
        sqe = sqe.cdw(10 + i, value);
    }
    sqe
}

impl Bench {
    pub fn page(&mut self, cns: u8, nsid: u32) -> Vec<u8> {
        self.fetch(0, identify(cns, nsid), 4096).unwrap()
    }

    pub fn log_page(&mut self, request: Request) -> Vec<u8> {
        self.fetch(0, log(request), request.len as u32).unwrap()
    }

    /// The code of a refusal, which must forbid a retry.
    pub fn refusal(&mut self, sqe: SqeBuilder, len: u32) -> Status {
        let status = self.fetch(0, sqe, len).unwrap_err();
        assert!(status.dnr(), "{status:?}");
        status.code()
    }
}

pub fn bench() -> Bench {
    Bench::ready(config(), &Options::default())
}

fn whole(lid: u8, len: u64) -> Request {
    Request {
        lid,
        len,
        ..Request::default()
    }
}

#[test]
fn identify_controller_says_what_the_configuration_says() {
    let mut bench = bench();
    let c = id::Controller::parse(&bench.page(cns::CONTROLLER, 0)).unwrap();
    assert_eq!(
        (text(&c.sn), text(&c.mn), text(&c.subnqn)),
        ("S1", "braid", NQN)
    );
    assert_eq!(
        (c.sn, text(&c.fr)),
        (padded("S1"), env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(
        (c.cntlid, c.ver, c.cntrltype),
        (3, Version::V2_0.0, cntrltype::IO)
    );
    assert_eq!((c.mdts, c.maxcmd, c.kas, c.cqt), (5, 16, 1, 250));
    assert_eq!((c.sqes, c.cqes, c.nn, c.mnan), (0x66, 0x44, 5, 3));
    assert_eq!(
        c.cmic,
        cmic::MULTI_PORT | cmic::MULTI_CONTROLLER | cmic::ANA
    );
    assert_eq!(
        (c.anagrpmax, c.nanagrpid, c.anatt, c.anacap),
        (2, 2, 10, 0x5f)
    );
    assert_eq!(c.ctratt & ctratt::TRAFFIC_KEEP_ALIVE, 0);
    assert_eq!(c.oncs, oncs::COMPARE | oncs::DSM | oncs::WRITE_ZEROES);
    assert_eq!((c.vwc, c.fuses, c.awun), (7, 0, 0));
    assert_eq!(c.oacs, id::oacs::GET_LBA_STATUS);
    assert_eq!((c.ioccsz, c.iorcsz, c.icdoff, c.msdbd), (4 + 256, 1, 0, 1));
    assert_eq!((c.ofcs, c.fcatt, c.sgls & 1), (1, 0, 1));
    assert_eq!((c.acl, c.aerl, c.elpe), (3, 3, 63));
    assert_eq!(c.lpa, id::lpa::EFFECTS | id::lpa::EXTENDED);
}

#[test]
fn identify_namespace_and_its_refusals() {
    let mut bench = bench();
    let n = id::Namespace::parse(&bench.page(cns::NAMESPACE, 2)).unwrap();
    assert_eq!((n.nsze, n.ncap, n.nuse), (BLOCKS, BLOCKS, BLOCKS));
    assert_eq!(
        n.format(),
        Some(LbaFormat {
            metadata: 0,
            block_shift: 12
        })
    );
    assert_eq!(
        (n.nmic, n.anagrpid, n.nsattr, n.nguid),
        (1, 2, 0, [102; 16])
    );
    assert_eq!(
        (n.mc, n.dpc, n.dps, n.flbas, n.nlbaf, n.dlfeat),
        (0, 0, 0, 0, 0, 9)
    );
    let protected = id::Namespace::parse(&bench.page(cns::NAMESPACE, 5)).unwrap();
    assert_eq!(protected.nsattr, 1);
    assert_eq!(protected.dlfeat, 0, "its backend promises no zeroes");
    // Valid but not there: zeroes. Not valid: refused.
    for kind in [
        cns::NAMESPACE,
        cns::COMMAND_SET_NAMESPACE,
        cns::INDEPENDENT_NAMESPACE,
    ] {
        assert_eq!(bench.page(kind, 3), [0; 4096]);
        for nsid in [0, 6, NSID_ALL - 1, NSID_ALL] {
            assert_eq!(
                bench.refusal(identify(kind, nsid), 4096),
                Status::INVALID_NAMESPACE
            );
        }
    }
    let i = IndependentNamespace::parse(&bench.page(cns::INDEPENDENT_NAMESPACE, 5)).unwrap();
    assert_eq!((i.nmic, i.anagrpid, i.nsattr, i.nstat), (1, 2, 1, 1));
}

#[test]
fn identify_lists_and_descriptors() {
    let mut bench = bench();
    for (after, want) in [
        (0, &[1, 2, 5][..]),
        (1, &[2, 5]),
        (2, &[5]),
        (4, &[5]),
        (5, &[]),
    ] {
        let page = bench.page(cns::ACTIVE_NAMESPACES, after);
        assert_eq!(id::nsids(&page).collect::<Vec<_>>(), want, "after {after}");
    }
    for nsid in [NSID_ALL - 1, NSID_ALL] {
        let sqe = identify(cns::ACTIVE_NAMESPACES, nsid);
        assert_eq!(bench.refusal(sqe, 4096), Status::INVALID_NAMESPACE);
    }
    let page = bench.page(cns::DESCRIPTORS, 1);
    let list: Vec<_> = id::descriptors(&page).map(Result::unwrap).collect();
    let want = [
        Descriptor::Nguid([101; 16]),
        Descriptor::Uuid([1; 16]),
        Descriptor::Csi(0),
    ];
    assert_eq!(list, want);
    for nsid in [0, 3, 6, NSID_ALL] {
        let sqe = identify(cns::DESCRIPTORS, nsid);
        assert_eq!(bench.refusal(sqe, 4096), Status::INVALID_NAMESPACE);
    }
}

#[test]
fn identify_by_command_set_and_what_there_isn_t() {
    let mut bench = bench();
    assert_eq!(bench.page(cns::COMMAND_SET_NAMESPACE, 1), [0; 4096]);
    let nvm = id::NvmController::parse(&bench.page(cns::COMMAND_SET_CONTROLLER, 0)).unwrap();
    assert_eq!((nvm.wzsl, nvm.dmrsl, nvm.aocs), (0, 0, 1));
    for kind in [cns::COMMAND_SET_NAMESPACE, cns::COMMAND_SET_CONTROLLER] {
        // Zoned namespaces.
        let sqe = identify(kind, 1).cdw(11, 2 << 24);
        assert_eq!(bench.refusal(sqe, 4096), Status::INVALID_FIELD);
    }
    for kind in [0x04, 0x07, 0x09, 0x10, 0x12, 0x13, 0x15, 0x1c, 0xff] {
        assert_eq!(
            bench.refusal(identify(kind, 1), 4096),
            Status::INVALID_FIELD
        );
    }
    for len in [0, 4095, 4097, 8192] {
        assert_eq!(
            bench.refusal(identify(cns::CONTROLLER, 0), len),
            Status::SGL_DATA_LENGTH
        );
    }
}

#[test]
fn error_log_newest_first_in_pieces() {
    let mut bench = bench();
    bench.send(1, super::io::read(1, BLOCKS, 1, 512), &[]);
    bench.ask(0, SqeBuilder::new(0x81));
    let page = bench.log_page(whole(lid::ERROR, 4096));
    let entry = |i: usize| ErrorEntry::parse(&page[i * 64..]).unwrap();
    let (newest, oldest) = (entry(0), entry(1));
    assert_eq!((newest.error_count, newest.sqid), (2, 0));
    assert_eq!(
        newest.status_phase,
        Status::INVALID_OPCODE.with_dnr().0 << 1
    );
    assert_eq!((oldest.error_count, oldest.sqid, oldest.cid), (1, 1, 2));
    assert_eq!((oldest.lba, oldest.nsid, oldest.trtype), (BLOCKS, 1, 3));
    assert_eq!(entry(2), ErrorEntry::default());
    let second = Request {
        offset: 64,
        ..whole(lid::ERROR, 64)
    };
    assert_eq!(bench.log_page(second), page[64..128]);
}

#[test]
fn smart_counts_what_was_done() {
    let mut bench = bench();
    for _ in 0..3 {
        bench.send(1, super::io::read(1, 0, 8, 4096), &[]);
    }
    bench.send(
        1,
        super::io::write(
            1,
            0,
            8,
            Sgl::InCapsule {
                offset: 0,
                len: 4096,
            },
        ),
        &[0; 4096],
    );
    bench.send(1, SqeBuilder::new(0x7e), &[]);
    let smart = Smart::parse(&bench.log_page(whole(lid::SMART, 512))).unwrap();
    assert_eq!((smart.reads, smart.writes, smart.errors), (3, 1, 1));
    // 24 and 8 units of 512 bytes, in thousands, rounded up.
    assert_eq!((smart.units_read, smart.units_written), (1, 1));
    assert_eq!((smart.critical_warning, smart.used), (0, 0));
    assert!(
        bench
            .fetch(0, log(whole(lid::SMART, 512)).nsid(NSID_ALL), 512)
            .is_ok()
    );
    assert_eq!(
        bench.refusal(log(whole(lid::SMART, 512)).nsid(1), 512),
        Status::INVALID_FIELD
    );
}

#[test]
fn supported_pages_effects_and_firmware() {
    let mut bench = bench();
    let page = bench.log_page(whole(lid::SUPPORTED, 1024));
    let supported: Vec<_> = (0..=255u8)
        .filter(|&lid| page[usize::from(lid) * 4] & 1 == 1)
        .collect();
    assert_eq!(supported, [0, 1, 2, 3, 4, 5, 0x0c]);
    for lid in 0..=255 {
        let len = if lid == lid::SUPPORTED { 1024 } else { 512 };
        let known = bench.fetch(0, log(whole(lid, len)), len as u32);
        match supported.contains(&lid) {
            true => assert!(known.is_ok(), "page {lid:#x}"),
            false => assert_eq!(known, Err(Status::INVALID_LOG_PAGE.with_dnr())),
        }
    }
    let effects = bench.log_page(whole(lid::EFFECTS, 4096));
    for (opcode, want) in [
        (nvm::READ, CSUPP),
        (nvm::WRITE, CSUPP | LBCC),
        (nvm::WRITE_ZEROES, CSUPP | LBCC),
        (nvm::DATASET_MANAGEMENT, CSUPP | LBCC),
        (nvm::COMPARE, CSUPP),
        (nvm::FLUSH, CSUPP),
        (nvm::COPY, 0),
    ] {
        assert_eq!(log::io_effects(&effects, opcode), Ok(want));
    }
    // The page and the commands themselves agree.
    for opcode in 0..=255 {
        let io = log::io_effects(&effects, opcode) != Ok(0);
        assert_eq!(config().has_command(opcode), io, "opcode {opcode:#x}");
    }
    let zoned = Request {
        csi: 2,
        ..whole(lid::EFFECTS, 4096)
    };
    assert_eq!(bench.refusal(log(zoned), 4096), Status::INVALID_FIELD);
    let firmware = FirmwareSlot::parse(&bench.log_page(whole(lid::FIRMWARE_SLOT, 512))).unwrap();
    assert_eq!(
        (firmware.afi, text(&firmware.frs1)),
        (1, env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn t26_ana_log_whole_in_pieces_and_groups_only() {
    let mut bench = bench();
    bench.target.set_ana(0, AnaState::NonOptimized, bench.now);
    bench.target.set_ana(1, AnaState::Inaccessible, bench.now);
    let len = 16 + 2 * 32 + 3 * 4;
    let page = bench.log_page(whole(lid::ANA, len));
    let groups = |page: &[u8]| -> Vec<(u32, u64, AnaState, Vec<u32>)> {
        let groups = AnaLog::new(page).unwrap().groups().map(Result::unwrap);
        groups
            .map(|g| (g.id, g.change_count, g.state, g.nsids().collect()))
            .collect()
    };
    let state = AnaState::NonOptimized;
    assert_eq!(
        groups(&page),
        [(1, 1, state, vec![1]), (2, 1, state, vec![2, 5])]
    );
    assert_eq!(AnaLog::new(&page).unwrap().change_count(), 1);
    let mut pieces = Vec::new();
    for offset in (0..len).step_by(8) {
        let size = (len - offset).min(8);
        pieces.extend(bench.log_page(Request {
            offset,
            ..whole(lid::ANA, size)
        }));
    }
    assert_eq!(pieces, page);
    // More than there is: zeroes behind it.
    let more = bench.log_page(whole(lid::ANA, 4096));
    assert_eq!(more[..len as usize], page);
    assert!(more[len as usize..].iter().all(|&byte| byte == 0));
    let only = Request {
        lsp: ANA_GROUPS_ONLY,
        ..whole(lid::ANA, 80)
    };
    let page = bench.log_page(only);
    assert_eq!(
        groups(&page),
        [(1, 1, state, vec![]), (2, 1, state, vec![])]
    );
}

#[test]
fn log_page_offsets_and_lengths() {
    let mut bench = bench();
    for offset in [1, 2, 3, 66, 516, 1 << 40, u64::MAX - 3] {
        let request = Request {
            offset,
            ..whole(lid::SMART, 4)
        };
        assert_eq!(
            bench.refusal(log(request), 4),
            Status::INVALID_FIELD,
            "offset {offset}"
        );
    }
    // At its very end there is nothing, which is no error.
    assert_eq!(
        bench.log_page(Request {
            offset: 512,
            ..whole(lid::SMART, 8)
        }),
        [0; 8]
    );
    let by_index = Request {
        by_index: true,
        ..whole(lid::SMART, 4)
    };
    assert_eq!(bench.refusal(log(by_index), 4), Status::INVALID_FIELD);
    // MDTS holds here too, and the data pointer must agree.
    let len = (128 << 10) + 4;
    assert_eq!(
        bench.refusal(log(whole(lid::ERROR, len)), len as u32),
        Status::INVALID_FIELD
    );
    let len = 128 << 10;
    assert_eq!(bench.log_page(whole(lid::ERROR, len)).len(), 128 << 10);
    assert_eq!(
        bench.refusal(log(whole(lid::ERROR, 64)), 68),
        Status::SGL_DATA_LENGTH
    );
    let greatest = log(Request {
        len: 1 << 34,
        ..whole(lid::ERROR, 0)
    });
    assert_eq!(bench.refusal(greatest, u32::MAX), Status::INVALID_FIELD);
}

#[test]
fn discovery_log_by_the_well_known_name() {
    let mut bench = Bench::new(config());
    bench.open(0, 1, &plain());
    bench.connect(0, admin_connect(), &connect_data(DISCOVERY_NQN, CNTLID_ANY));
    bench.set_cc(0, Cc::enabled(0, 0));
    let c = id::Controller::parse(&bench.page(cns::CONTROLLER, 0)).unwrap();
    assert_eq!(
        (c.cntrltype, text(&c.subnqn)),
        (cntrltype::DISCOVERY, DISCOVERY_NQN)
    );
    assert_eq!((c.nn, c.ioccsz, c.cmic), (0, 0, 0));
    let page = bench.log_page(whole(lid::DISCOVERY, 3072));
    let entries: Vec<_> = log::discovery_entries(&page).unwrap().collect();
    assert_eq!(entries.len(), 2);
    for (entry, (port, traddr)) in entries.iter().zip([(1, "10.0.0.1"), (2, "10.0.0.2")]) {
        assert_eq!((entry.trtype, entry.adrfam, entry.subtype), (3, 1, 2));
        assert_eq!(
            (entry.portid, entry.cntlid, entry.asqsz),
            (port, 0xffff, 128)
        );
        assert_eq!(
            (text(&entry.traddr), text(&entry.trsvcid)),
            (traddr, "4420")
        );
        assert_eq!(text(&entry.subnqn), NQN);
        // A secure channel "not specified" (00b): with "not required" libnvme connects by TLS.
        assert_eq!((entry.treq, entry.sectype), (0b100, 0));
    }
    // As nvme-cli does: the header first, then records by offset.
    let second = Request {
        offset: 2048,
        ..whole(lid::DISCOVERY, 1024)
    };
    assert_eq!(bench.log_page(second), page[2048..]);
    // No I/O pages, commands or features.
    assert_eq!(
        bench.refusal(log(whole(lid::SMART, 512)), 512),
        Status::INVALID_LOG_PAGE
    );
    assert_eq!(
        bench.refusal(identify(cns::NAMESPACE, 1), 4096),
        Status::INVALID_FIELD
    );
    let queues = SqeBuilder::new(admin::SET_FEATURES).cdw(10, fid::NUMBER_OF_QUEUES.into());
    assert_eq!(
        bench.ask(0, queues).status,
        Status::INVALID_FIELD.with_dnr()
    );
}

#[test]
fn discovery_shows_nothing_to_hosts_that_may_not_connect() {
    let hosts = vec!["nqn.2026-01.org.example:other".into()];
    let mut bench = Bench::new(SubsystemConfig { hosts, ..config() });
    bench.open(0, 0, &plain());
    bench.connect(0, admin_connect(), &connect_data(DISCOVERY_NQN, CNTLID_ANY));
    bench.set_cc(0, Cc::enabled(0, 0));
    let page = bench.log_page(whole(lid::DISCOVERY, 1024));
    assert_eq!(log::discovery_entries(&page).unwrap().count(), 0);
}

#[test]
fn number_of_queues_is_granted_up_to_what_there_is() {
    let mut bench = Bench::new(config());
    bench.admin(0, 0);
    let set = |value| {
        SqeBuilder::new(admin::SET_FEATURES)
            .cdw(10, fid::NUMBER_OF_QUEUES.into())
            .cdw(11, value)
    };
    let get = SqeBuilder::new(admin::GET_FEATURES).cdw(10, fid::NUMBER_OF_QUEUES.into());
    for (submission, completion, granted) in [(1, 1, 1), (3, 2, 2), (4, 9, 4), (64, 64, 4)] {
        let cqe = bench.ask(
            0,
            set(QueueCount {
                submission,
                completion,
            }
            .emit()),
        );
        let want = u64::from(
            QueueCount {
                submission: granted,
                completion: granted,
            }
            .emit(),
        );
        assert_eq!((cqe.status, cqe.result), (Status::SUCCESS, want));
        assert_eq!(bench.ask(0, get).result, want);
    }
    for value in [0xffff, 0xffff_0000] {
        assert_eq!(
            bench.ask(0, set(value)).status,
            Status::INVALID_FIELD.with_dnr()
        );
    }
    bench.ask(0, set(0));
    bench.io(1, 0, 3, 1, &Options::default());
    assert_eq!(
        bench.ask(0, set(1)).status,
        Status::SEQUENCE_ERROR.with_dnr()
    );
}

#[test]
fn opcodes_there_aren_t() {
    let mut bench = bench();
    let known = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT_REQUEST,
        admin::KEEP_ALIVE,
        admin::GET_LBA_STATUS,
        0x7f,
    ];
    for opcode in (0..=255).filter(|opcode| !known.contains(opcode)) {
        let cqe = bench.ask(0, SqeBuilder::new(opcode));
        assert_eq!(
            cqe.status,
            Status::INVALID_OPCODE.with_dnr(),
            "opcode {opcode:#x}"
        );
    }
}

#[test]
fn admin_data_without_response_where_flow_control_is_off() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    let connect = Connect {
        cattr: CATTR_DISABLE_SQ_FLOW,
        ..admin_connect()
    };
    bench.connect(0, connect, &connect_data(NQN, CNTLID_ANY));
    bench.set_cc(0, Cc::enabled(0, 0));
    let sqe = identify(cns::CONTROLLER, 0).sgl(Sgl::Transport { len: 4096 });
    let got = bench.send(0, sqe, &[]);
    assert!(matches!(got[..], [Got::Data { flags: f, .. }] if f == flags::LAST | flags::SUCCESS));
    assert!(
        bench
            .ask(0, SqeBuilder::new(admin::KEEP_ALIVE))
            .status
            .is_success()
    );
}
