//! The admin association against a modelled controller: from Connect to facts and their checks.
use crate::host_peer::CNTLID;
use crate::host_peer::admin::{AdminPeer, Answer, Model, SECOND, SUBSYSTEM, admin_config, name};
use nvme::host::{AdminConfig, AdminEvent, AnaState, Digests, HostError, NamespaceInfo, Step};
use nvme::wire::Status;
use nvme::wire::fabrics::{Cap, Csts, DISCOVERY_NQN, Version, connect_status};
use nvme::wire::identify::{Controller, IDENTIFY_LEN, NvmController};
use nvme::wire::layout::terminated;

#[test]
fn from_connect_to_ready_in_order() {
    for piece in [1, 1000, usize::MAX] {
        let mut peer = AdminPeer::new(admin_config(), Model::default());
        peer.piece = piece;
        peer.run();
        let seen = [
            "Connect",
            "Get 0x0",
            "Get 0x8",
            "Set 0x14 0x460001",
            "Get 0x1c",
            "Identify 01 0",
            "Feature 07 0x10001",
            "Feature 0b 0xb00",
            "Feature 16 0x0",
            "Identify 06 0",
            "Identify 02 0",
            "Identify 03 1",
            "Identify 00 1",
            "Identify 05 1",
            "Identify 08 1",
            "Log 0c 0+4096",
            "Event request",
        ];
        assert_eq!(peer.take_seen(), seen);
        let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
            panic!()
        };
        let (info, namespaces) = *facts;
        assert_eq!((info.cntlid, info.subnqn.as_str()), (CNTLID, SUBSYSTEM));
        assert_eq!(
            (info.serial.as_str(), info.model.as_str()),
            ("SN1", "Model X")
        );
        assert_eq!((info.transfer_max, info.entries_max), (Some(131_072), 128));
        assert_eq!((info.in_capsule_max, info.io_queues), (8192, 2));
        assert_eq!((info.kas, info.cqt_ms, info.crdt), (1, 30, [2, 5, 7]));
        assert!(info.ana && info.multi_controller && info.volatile_write_cache);
        let namespace = NamespaceInfo {
            nsid: 1,
            blocks: 1000,
            block_shift: 12,
            nguid: [1; 16],
            eui64: [0; 8],
            uuid: [0x41; 16],
            csi: 0,
            shared: true,
            ana_group: 1,
            ana_state: AnaState::Optimized,
            read_only: false,
            atomic_blocks: 8,
            boundary_blocks: 0,
            optimal_write_blocks: 0,
            deallocate_reads_zero: false,
            hole_blocks: 0,
        };
        assert_eq!(namespaces, [namespace]);
        assert!(peer.events().is_empty());
    }
}

#[test]
fn with_digests_too() {
    let digests = Digests {
        header: true,
        data: true,
    };
    AdminPeer::ready(
        AdminConfig {
            digests,
            ..admin_config()
        },
        Model::default(),
    );
}

fn failure(model: Model) -> HostError {
    let mut peer = AdminPeer::new(admin_config(), model);
    peer.run();
    peer.error()
}

fn with_id(change: impl FnOnce(&mut Controller)) -> Model {
    let mut model = Model::default();
    change(&mut model.id);
    model
}

#[test]
fn controllers_that_cannot_be_used_are_refused_by_name() {
    let plain = Model::default;
    let cases = [
        (
            Model {
                version: Version(0),
                ..plain()
            },
            HostError::Version(Version(0)),
        ),
        (
            Model {
                version: Version(0x1_0100),
                ..plain()
            },
            HostError::Version(Version(0x1_0100)),
        ),
        (
            Model {
                version: Version(!0),
                ..plain()
            },
            HostError::Version(Version(!0)),
        ),
        (
            Model {
                cap: Cap(127 | 1 << 44),
                ..plain()
            },
            HostError::NoNvmCommandSet,
        ),
        (
            Model {
                cap: Cap::fabrics(0, 1),
                ..plain()
            },
            HostError::QueueSize(0),
        ),
        (
            Model {
                csts: Csts::new(false, true, 0),
                ..plain()
            },
            HostError::Fatal,
        ),
        (
            with_id(|id| id.cntlid = 9),
            HostError::ControllerId {
                want: CNTLID,
                got: 9,
            },
        ),
        (
            with_id(|id| id.subnqn = terminated("nqn.other")),
            HostError::Subsystem,
        ),
        (with_id(|id| id.cntrltype = 3), HostError::ControllerType(3)),
        (with_id(|id| id.ioccsz = 3), HostError::Capsule),
        (with_id(|id| id.icdoff = 1), HostError::Capsule),
        (with_id(|id| id.kas = 0), HostError::NoKeepAlive),
    ];
    for (model, error) in cases {
        assert_eq!(failure(model), error);
    }
}

#[test]
fn without_keep_alive_it_needs_none() {
    let config = AdminConfig {
        kato_ms: 0,
        ..admin_config()
    };
    let peer = AdminPeer::ready(config, with_id(|id| id.kas = 0));
    assert_eq!(peer.admin.poll_timeout(), None);
}

#[test]
fn odd_but_legal_values() {
    let mut model = with_id(|id| {
        id.mdts = 0;
        id.maxcmd = 33;
        id.subnqn = [0; 256];
        id.ioccsz = u32::MAX;
    });
    model.queues = 0;
    let mut peer = AdminPeer::new(admin_config(), model);
    peer.run();
    let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
        panic!()
    };
    assert_eq!(
        (facts.0.transfer_max, facts.0.entries_max, facts.0.io_queues),
        (None, 33, 1)
    );
    // MDTS beyond 32 bits means no limit.
    let mut peer = AdminPeer::new(admin_config(), with_id(|id| id.mdts = 255));
    peer.run();
    let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
        panic!()
    };
    assert_eq!(facts.0.transfer_max, None);
}

#[test]
fn limits_of_the_command_set_are_told() {
    let limits = NvmController {
        wzsl: 3,
        dmrsl: 77,
        ..NvmController::default()
    };
    let mut peer = AdminPeer::new(admin_config(), Model::default())
        .scripted(move |sqe| (name(sqe) == "Identify 06 0").then(|| Answer::data(&limits.emit())));
    peer.run();
    let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
        panic!()
    };
    assert_eq!(facts.0.write_zeroes_max, Some(32_768));
    assert_eq!(facts.0.deallocate_blocks_max, Some(77));
}

#[test]
fn all_command_sets_are_enabled_where_there_are_several() {
    let cap = Cap(Cap::fabrics(127, 1).0 | 1 << 43);
    let peer = AdminPeer::ready(
        admin_config(),
        Model {
            cap,
            ..Model::default()
        },
    );
    assert_eq!(peer.model.cc.css(), 6);
}

#[test]
fn ready_is_waited_for_as_long_as_the_controller_says() {
    let mut peer = AdminPeer::new(
        admin_config(),
        Model {
            not_ready: 3,
            ..Model::default()
        },
    );
    peer.run();
    assert!(peer.events().is_empty());
    peer.run_until(SECOND);
    assert!(matches!(
        peer.admin.poll_event(),
        Some(AdminEvent::Ready(_))
    ));
    // CAP.TO 1: up to two units of 500 ms.
    let mut peer = AdminPeer::new(
        admin_config(),
        Model {
            not_ready: 1000,
            ..Model::default()
        },
    );
    peer.run();
    peer.run_until(SECOND - 1);
    assert!(peer.events().is_empty());
    peer.run_until(SECOND);
    assert_eq!(peer.error(), HostError::NotReady(1000));
}

#[test]
fn ready_is_waited_for_as_long_as_crto_says_where_there_is_one() {
    for (crms, crto, wait_ms) in [
        (1 << 59, 7, 3500),
        (3 << 59, 1 << 16 | 7, 3500),
        (1 << 59, 1, 1000),
        (0, 7, 1000),
        // Nine hours.
        (1 << 59, 0xFFFF, 128_000),
    ] {
        let model = Model {
            cap: Cap(Cap::fabrics(127, 1).0 | crms),
            crto,
            not_ready: u32::MAX,
            ..Model::default()
        };
        let mut peer = AdminPeer::new(admin_config(), model);
        peer.run();
        let wait_ns = u64::from(wait_ms) * SECOND / 1000;
        peer.run_until(wait_ns - 1);
        assert!(peer.events().is_empty());
        peer.run_until(wait_ns);
        assert_eq!(peer.error(), HostError::NotReady(wait_ms));
    }
}

#[test]
fn each_step_has_its_deadline() {
    let steps = [
        ("Connect", Step::Connect),
        ("Get 0x0", Step::Capabilities),
        ("Get 0x8", Step::Version),
        ("Set 0x14 0x460001", Step::Configure),
        ("Get 0x1c", Step::Ready),
        ("Identify 01 0", Step::IdentifyController),
        ("Feature 07 0x10001", Step::QueueCount),
        ("Feature 0b 0xb00", Step::EventConfig),
        ("Identify 06 0", Step::NvmController),
        ("Identify 02 0", Step::NamespaceList),
        ("Identify 03 1", Step::Descriptors),
        ("Identify 00 1", Step::Namespace),
        ("Identify 05 1", Step::NvmNamespace),
        ("Identify 08 1", Step::IndependentNamespace),
        ("Log 0c 0+4096", Step::AnaLog),
    ];
    for (silent, step) in steps {
        let mut peer = AdminPeer::new(admin_config(), Model::default())
            .scripted(move |sqe| (name(sqe) == silent).then(Answer::silent));
        peer.run();
        peer.run_until(5 * SECOND - 1);
        assert!(peer.events().is_empty(), "{step}");
        peer.run_until(5 * SECOND);
        assert_eq!(peer.error(), HostError::TimedOut(step));
        assert_eq!((peer.admin.poll_timeout(), peer.events().len()), (None, 0));
    }
    let mut peer = AdminPeer::new(admin_config(), Model::default());
    peer.now_ns = 5 * SECOND;
    peer.admin.handle_timeout(5 * SECOND);
    assert_eq!(peer.error(), HostError::TimedOut(Step::Handshake));
}

#[test]
fn each_step_that_fails_is_named() {
    let status = Status::INTERNAL_ERROR.with_dnr();
    let command = |step| HostError::Command { step, status };
    let steps = [
        ("Connect", HostError::Connect { status, result: 0 }),
        ("Get 0x0", command(Step::Capabilities)),
        ("Set 0x14 0x460001", command(Step::Configure)),
        ("Identify 01 0", command(Step::IdentifyController)),
        ("Feature 07 0x10001", command(Step::QueueCount)),
        ("Identify 02 0", command(Step::NamespaceList)),
        ("Log 0c 0+4096", command(Step::AnaLog)),
    ];
    for (failing, error) in steps {
        let mut peer = AdminPeer::new(admin_config(), Model::default())
            .scripted(move |sqe| (name(sqe) == failing).then(|| Answer::error(status)));
        peer.run();
        assert_eq!(peer.error(), error);
    }
}

#[test]
fn optional_steps_may_fail() {
    for failing in [
        "Feature 0b 0xb00",
        "Identify 06 0",
        "Identify 03 1",
        "Identify 05 1",
        "Identify 08 1",
    ] {
        let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(move |sqe| {
            (name(sqe) == failing).then(|| Answer::error(Status::INVALID_FIELD.with_dnr()))
        });
        peer.run();
        let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
            panic!("{failing}")
        };
        assert_eq!(facts.1.len(), 1);
    }
}

#[test]
fn t01_t03_a_command_is_repeated_after_the_delay_that_the_controller_reports() {
    let busy = Status::NAMESPACE_NOT_READY;
    // CRD 2 selects CRDT2: 5 × 100 ms. Without CRD there is a default; with DNR no repetition.
    for (status, delay_ns) in [
        (busy.with_crd(2), Some(SECOND / 2)),
        (busy.with_crd(3), Some(SECOND * 7 / 10)),
        (busy, Some(SECOND / 10)),
        (busy.with_dnr(), None),
    ] {
        let mut first = true;
        let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(move |sqe| {
            let hit = name(sqe) == "Identify 02 0" && std::mem::take(&mut first);
            hit.then(|| Answer::error(status))
        });
        peer.run();
        let Some(delay_ns) = delay_ns else {
            assert_eq!(
                peer.error(),
                HostError::Command {
                    step: Step::NamespaceList,
                    status
                }
            );
            continue;
        };
        peer.run_until(delay_ns - 1);
        assert!(peer.events().is_empty(), "{status:?}");
        peer.run_until(delay_ns);
        assert!(
            matches!(peer.admin.poll_event(), Some(AdminEvent::Ready(_))),
            "{status:?}"
        );
    }
}

#[test]
fn t04_repetition_has_an_end() {
    let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(|sqe| {
        (name(sqe) == "Identify 02 0").then(|| Answer::error(Status::NAMESPACE_NOT_READY))
    });
    peer.run();
    peer.run_until(4 * SECOND);
    let times = peer
        .take_seen()
        .iter()
        .filter(|seen| *seen == "Identify 02 0")
        .count();
    assert_eq!(times, 4);
    let status = Status::NAMESPACE_NOT_READY;
    assert_eq!(
        peer.error(),
        HostError::Command {
            step: Step::NamespaceList,
            status
        }
    );
}

#[test]
fn t17_damaged_data_is_asked_for_again() {
    let mut first = true;
    let config = AdminConfig {
        digests: Digests {
            header: true,
            data: true,
        },
        ..admin_config()
    };
    let mut peer = AdminPeer::new(config, Model::default()).scripted(move |sqe| {
        let hit = name(sqe) == "Identify 00 1" && std::mem::take(&mut first);
        hit.then(|| Answer {
            damaged: true,
            ..Answer::data(&[0xff; IDENTIFY_LEN])
        })
    });
    peer.run();
    peer.run_until(SECOND);
    let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
        panic!()
    };
    assert_eq!(facts.1[0].blocks, 1000);
}

#[test]
fn t16_identify_data_that_comes_short_is_an_error() {
    let mut peer = AdminPeer::new(admin_config(), Model::default())
        .scripted(|sqe| (name(sqe) == "Identify 01 0").then(|| Answer::data(&[0; 512])));
    peer.run();
    peer.run_until(4 * SECOND);
    let status = Status::DATA_TRANSFER_ERROR;
    assert_eq!(
        peer.error(),
        HostError::Command {
            step: Step::IdentifyController,
            status
        }
    );
}

#[test]
fn a_rejected_connect_says_so() {
    let status = connect_status::INVALID_PARAMETERS.with_dnr();
    let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(move |_| {
        Some(Answer {
            status,
            result: 0x1_0100,
            ..Answer::default()
        })
    });
    peer.run();
    let error = peer.error();
    assert_eq!(
        error,
        HostError::Connect {
            status,
            result: 0x1_0100
        }
    );
    assert!(error.to_string().contains("subsystem NQN unknown"));
}

#[test]
fn names_of_impossible_length_are_refused_before_anything_is_sent() {
    for subsystem in [String::new(), "n".repeat(224)] {
        let mut peer = AdminPeer::new(
            AdminConfig {
                subsystem,
                ..admin_config()
            },
            Model::default(),
        );
        peer.run();
        assert_eq!(peer.error(), HostError::Nqn);
        assert!(peer.take_seen().is_empty());
    }
}

#[test]
fn a_controller_without_multiple_paths_has_no_ana_log() {
    let mut peer = AdminPeer::new(admin_config(), with_id(|id| id.cmic = 0));
    peer.run();
    let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
        panic!()
    };
    assert_eq!(
        (facts.1[0].ana_group, facts.1[0].ana_state),
        (0, AnaState::Optimized)
    );
    assert!(!peer.take_seen().iter().any(|seen| seen.starts_with("Log")));
}

#[test]
fn an_old_controller_is_asked_only_what_it_can_know() {
    let model = Model {
        version: Version(0x1_0300),
        ..Model::default()
    };
    let mut peer = AdminPeer::new(admin_config(), model);
    peer.run();
    assert!(matches!(
        peer.admin.poll_event(),
        Some(AdminEvent::Ready(_))
    ));
    let seen = peer.take_seen();
    assert!(!seen.iter().any(|seen| {
        ["05", "06", "08"]
            .iter()
            .any(|cns| seen.contains(&format!("Identify {cns}")))
    }));
}

/// A controller that takes one command at a time gets the smallest queue there is, not the largest.
#[test]
fn a_controller_of_one_command_gets_the_smallest_queue() {
    for (maxcmd, entries) in [(1, 2), (2, 2), (64, 64), (0, 128)] {
        let mut peer = AdminPeer::new(admin_config(), with_id(|id| id.maxcmd = maxcmd));
        peer.run();
        let Some(AdminEvent::Ready(facts)) = peer.admin.poll_event() else {
            panic!()
        };
        assert_eq!(facts.0.entries_max, entries, "{maxcmd}");
    }
}

/// SPDK's discovery controller: KAS is 0, and a host that is silent for KATO is disconnected.
#[test]
fn t29_a_discovery_controller_without_kas_gets_keep_alive() {
    let mut peer = discovery_peer();
    peer.run_until(100 * SECOND);
    assert!(peer.admin.poll_event().is_none());
    let seen = peer.take_seen();
    let sent = seen.iter().filter(|seen| *seen == "Keep alive").count();
    assert!((9..=10).contains(&sent), "{seen:?}");
    assert!(peer.admin.keeps_alive());
}

#[test]
fn t29_a_discovery_controller_may_refuse_keep_alive() {
    let mut peer = discovery_peer().scripted(|sqe| {
        let refused = sqe.opcode() == 0x18;
        refused.then(|| Answer::error(Status::INVALID_OPCODE.with_dnr()))
    });
    peer.run_until(100 * SECOND);
    assert!(peer.admin.poll_event().is_none(), "the session goes on");
    let seen = peer.take_seen();
    let sent = seen.iter().filter(|seen| *seen == "Keep alive").count();
    assert_eq!(sent, 1, "{seen:?}");
    assert!(!peer.admin.keeps_alive());
    peer.admin.request_discovery(100 * SECOND);
    peer.run();
    assert!(matches!(
        peer.admin.poll_event(),
        Some(AdminEvent::Discovery(_))
    ));
}

/// A session with a discovery controller that reports KAS 0; its log was read.
fn discovery_peer() -> AdminPeer {
    let model = with_id(|id| {
        id.cntrltype = 2;
        id.subnqn = terminated(DISCOVERY_NQN);
        id.kas = 0;
    });
    let config = AdminConfig {
        subsystem: DISCOVERY_NQN.into(),
        ..admin_config()
    };
    let mut peer = AdminPeer::ready(config, model);
    assert!(matches!(
        peer.admin.poll_event(),
        Some(AdminEvent::Discovery(_))
    ));
    peer
}

#[test]
fn a_discovery_name_needs_no_command_set() {
    let mut model = with_id(|id| {
        id.cntrltype = 2;
        id.subnqn = terminated(DISCOVERY_NQN);
        id.ioccsz = 0;
        id.kas = 0;
    });
    model.cap = Cap(1 << 24);
    let config = AdminConfig {
        subsystem: DISCOVERY_NQN.into(),
        ..admin_config()
    };
    AdminPeer::ready(config, model);
}
