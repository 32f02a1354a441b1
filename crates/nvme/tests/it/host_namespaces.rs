//! Namespaces and their ANA states as the admin association learns them.
use crate::host_peer::admin::{AdminPeer, Answer, Disk, Model, SECOND, admin_config, name};
use nvme::host::{
    AdminConfig, AdminEvent, AnaState, HostError, NamespaceError, NamespaceInfo, Step,
};
use nvme::limits::{ANA_LOG_MAX, HOST_NAMESPACES_MAX, LOG_RESTARTS_MAX, NAMESPACES_ASKED_MAX};
use nvme::wire::features::AsyncEvent;
use nvme::wire::identify::{Descriptor, LbaFormat, NSID_LIST_MAX, emit_nsids};
use nvme::wire::log::emit_ana;
use nvme::wire::{Status, WireError};

/// The namespaces reported by `Ready`, or by the last `Changed`.
fn told(peer: &mut AdminPeer) -> Vec<NamespaceInfo> {
    match peer.events().pop() {
        Some(AdminEvent::Ready(facts)) => facts.1,
        Some(AdminEvent::Changed(namespaces)) => namespaces,
        other => panic!("{other:?}"),
    }
}

fn states(peer: &mut AdminPeer) -> Vec<AnaState> {
    told(peer)
        .iter()
        .map(|namespace| namespace.ana_state)
        .collect()
}

fn ready(model: Model) -> AdminPeer {
    let mut peer = AdminPeer::new(admin_config(), model);
    peer.run();
    peer
}

fn format(metadata: u16, block_shift: u8) -> [u8; 4] {
    LbaFormat {
        metadata,
        block_shift,
    }
    .emit()
}

#[test]
fn namespaces_that_cannot_be_used_are_refused_by_name() {
    type Change = fn(&mut Disk);
    let cases: [(Change, NamespaceError); 12] = [
        (
            |disk| disk.descriptors[1] = Descriptor::Csi(2),
            NamespaceError::CommandSet(2),
        ),
        (|disk| disk.id.dps = 1, NamespaceError::Protection(1)),
        (
            |disk| disk.id.lbaf[..4].copy_from_slice(&format(8, 12)),
            NamespaceError::Metadata(8),
        ),
        (
            |disk| disk.id.lbaf[..4].copy_from_slice(&format(0, 8)),
            NamespaceError::BlockSize(8),
        ),
        (
            |disk| disk.id.lbaf[..4].copy_from_slice(&format(0, 17)),
            NamespaceError::BlockSize(17),
        ),
        (
            |disk| {
                disk.id.lbaf[4..8].copy_from_slice(&format(0, 12));
                (disk.id.flbas, disk.nvm.elbaf[4]) = (1, 16);
            },
            NamespaceError::StorageTag(16),
        ),
        (|disk| disk.id.flbas = 0x20, NamespaceError::Format),
        (|disk| disk.id.nsze = 0, NamespaceError::Empty),
        (|disk| disk.id.nmic = 0, NamespaceError::Sharing),
        (|disk| disk.independent.nmic = 0, NamespaceError::Sharing),
        (
            |disk| disk.descriptors.push(Descriptor::Nguid([9; 16])),
            NamespaceError::Identity,
        ),
        (
            |disk| disk.nsid = 3,
            NamespaceError::Refused(Status::INVALID_NAMESPACE.with_dnr()),
        ),
    ];
    for (change, why) in cases {
        let mut disk = Disk::new(2);
        change(&mut disk);
        let listed = disk.nsid == 3;
        let model = Model {
            disks: vec![Disk::new(1), disk],
            ..Model::default()
        };
        // Namespace 2 is listed and gone when it is asked for.
        let mut peer = AdminPeer::new(admin_config(), model).scripted(move |sqe| {
            let list = listed && name(sqe) == "Identify 02 0";
            list.then(|| Answer::data(&emit_nsids([1, 2].into_iter())))
        });
        peer.run();
        let found: Vec<u32> = told(&mut peer)
            .iter()
            .map(|namespace| namespace.nsid)
            .collect();
        assert_eq!(found, [1], "{why:?}");
        assert_eq!(
            peer.admin.refused(2),
            Some(HostError::Namespace { nsid: 2, why })
        );
        assert_eq!((peer.admin.refused(1), peer.admin.refused(4)), (None, None));
    }
}

#[test]
fn facts_of_a_namespace() {
    let mut disk = Disk::new(7);
    disk.id.lbaf[4..8].copy_from_slice(&format(0, 9));
    disk.id.flbas = 1;
    disk.id.nsfeat = 1 << 1 | 1 << 4;
    disk.id.nawun = 15;
    disk.id.noiob = 64;
    disk.id.nows = 31;
    disk.id.npdg = 7;
    disk.id.dlfeat = 0b1001;
    disk.id.nmic = 0;
    disk.independent.nmic = 0;
    disk.independent.nsattr = 1;
    disk.id.nguid = [0; 16];
    disk.descriptors = vec![
        Descriptor::Nguid([3; 16]),
        Descriptor::Eui64([4; 8]),
        Descriptor::Uuid([5; 16]),
    ];
    let found = told(&mut ready(Model {
        disks: vec![disk],
        ..Model::default()
    }))
    .remove(0);
    assert_eq!((found.block_shift, found.atomic_blocks), (9, 16));
    assert_eq!(
        (found.boundary_blocks, found.optimal_write_blocks),
        (64, 32)
    );
    assert_eq!(
        (found.nguid, found.eui64, found.uuid),
        ([3; 16], [4; 8], [5; 16])
    );
    assert!(found.deallocate_reads_zero && found.read_only && !found.shared);
    assert_eq!(found.hole_blocks, 8);
}

/// Zeroes that Write Zeroes deallocates must be promised by both halves of DLFEAT.
#[test]
fn holes_need_zeroes_and_write_zeroes_that_deallocates() {
    for (dlfeat, want) in [(0b1001, 1), (0b0001, 0), (0b1000, 0), (0b1010, 0), (0, 0)] {
        let mut disk = Disk::new(7);
        disk.id.dlfeat = dlfeat;
        // Not valid without the bit of NSFEAT.
        disk.id.npdg = 7;
        let model = Model {
            disks: vec![disk],
            ..Model::default()
        };
        let found = told(&mut ready(model)).remove(0);
        assert_eq!(found.hole_blocks, want, "DLFEAT {dlfeat:04b}");
    }
}

/// NPDGL is in another page, counts with NSFEAT bit 5 only, and is not 0's based. NPDG has 16 bits.
#[test]
fn large_deallocate_granularity_counts_before_the_small_one() {
    const SMALL: u8 = 1 << 4;
    const LARGE: u8 = 1 << 5;
    for (nsfeat, npdgl, dlfeat, want) in [
        (SMALL | LARGE, 1 << 20, 0b1001, 1 << 20),
        (LARGE, 1 << 20, 0b1001, 1 << 20),
        (SMALL, 1 << 20, 0b1001, 8),
        (SMALL | LARGE, 0, 0b1001, 8),
        (LARGE, 0, 0b1001, 1),
        (SMALL | LARGE, 1 << 20, 0b1000, 0),
    ] {
        let mut disk = Disk::new(7);
        (disk.id.nsfeat, disk.id.npdg) = (nsfeat, 7);
        disk.id.dlfeat = dlfeat;
        disk.nvm.npdgl = npdgl;
        let model = Model {
            disks: vec![disk],
            ..Model::default()
        };
        let found = told(&mut ready(model)).remove(0);
        assert_eq!(found.hole_blocks, want, "NSFEAT {nsfeat:x} NPDGL {npdgl}");
    }
}

#[test]
fn a_list_longer_than_a_page_is_read_on() {
    let count = NSID_LIST_MAX as u32 + 5;
    let disks = (1..=count).map(|nsid| Disk::new(nsid * 2)).collect();
    let mut peer = ready(Model {
        disks,
        ..Model::default()
    });
    let found = told(&mut peer);
    assert_eq!(found.len(), NAMESPACES_ASKED_MAX);
    assert_eq!(found.len() + peer.admin.unasked(), count as usize);
    assert!(
        found
            .iter()
            .zip(1..)
            .all(|(namespace, i)| namespace.nsid == i * 2)
    );
    let lists: Vec<_> = peer
        .take_seen()
        .into_iter()
        .filter(|seen| seen.starts_with("Identify 02"))
        .collect();
    assert_eq!(lists, ["Identify 02 0", "Identify 02 2048"]);
}

/// A subsystem of 1,024 namespaces: the one that is wanted costs five commands, not five thousand.
#[test]
fn a_wanted_namespace_is_the_only_one_asked_for() {
    let disks: Vec<_> = (1..=1024).map(Disk::new).collect();
    for nsid in [1, 700, 1024] {
        let config = AdminConfig {
            nsid: Some(nsid),
            ..admin_config()
        };
        let model = Model {
            disks: disks.clone(),
            ..Model::default()
        };
        let mut peer = AdminPeer::new(config, model);
        peer.run();
        let found = told(&mut peer);
        assert_eq!((found.len(), found[0].nsid), (1, nsid));
        assert_eq!(peer.admin.unasked(), 1023);
        let asked = peer.take_seen();
        assert!(asked.len() < 25, "{} commands", asked.len());
        // Neither does a change of the namespaces cost more.
        peer.event(AsyncEvent::NAMESPACE_ATTRIBUTE);
        assert_eq!(told(&mut peer)[0].nsid, nsid);
        assert!(peer.take_seen().len() < 12);
    }
}

/// Without a wanted one a few are read too: enough to report that there are several.
#[test]
fn many_unwanted_namespaces_cost_a_few_commands() {
    let mut peer = ready(Model {
        disks: (1..=1024).map(Disk::new).collect(),
        ..Model::default()
    });
    assert_eq!(told(&mut peer).len(), NAMESPACES_ASKED_MAX);
    assert_eq!(peer.admin.unasked(), 1024 - NAMESPACES_ASKED_MAX);
    assert!(peer.take_seen().len() < 100);
}

/// Namespaces that can't be used, for whichever reason: many are looked at together.
#[test]
fn many_unusable_namespaces_cost_few_round_trips() {
    type Change = fn(&mut Disk);
    let changes: [Change; 4] = [
        |disk| disk.id.dps = 1,
        |disk| disk.id.nsze = 0,
        |disk| disk.descriptors[1] = Descriptor::Csi(2),
        // Listed, and gone when it is asked for.
        |disk| disk.nsid += 2000,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut disks: Vec<_> = (1..=1024).map(Disk::new).collect();
        disks.iter_mut().for_each(change);
        // Some that can be used are among them, one of these behind all others.
        for nsid in [500, 501, 1024] {
            disks[nsid as usize - 1] = Disk::new(nsid);
        }
        let model = Model {
            disks,
            ..Model::default()
        };
        let mut peer = AdminPeer::new(admin_config(), model).scripted(|sqe| {
            let list = name(sqe).starts_with("Identify 02");
            list.then(|| Answer::data(&emit_nsids(sqe.nsid() + 1..=1024)))
        });
        peer.run();
        let usable: Vec<_> = told(&mut peer).iter().map(|it| it.nsid).collect();
        assert_eq!(usable, [500, 501, 1024], "{number}");
        assert!(peer.admin.refused(1).is_some() && peer.admin.refused(1023).is_some());
        let commands = peer.take_seen().len();
        assert!(commands < 1024 + 80, "{number}: {commands} commands");
        assert!(peer.rounds < 120, "{number}: {} round trips", peer.rounds);
    }
}

/// A namespace whose page is refused for a moment is asked for again.
#[test]
fn passing_refusal_among_pages_read_ahead_refuses_nothing() {
    let mut disks: Vec<_> = (1..=40).map(Disk::new).collect();
    disks.iter_mut().for_each(|disk| disk.id.dps = 1);
    disks[29] = Disk::new(30);
    let model = Model {
        disks,
        ..Model::default()
    };
    let mut once = true;
    let mut peer = AdminPeer::new(admin_config(), model).scripted(move |sqe| {
        let hit = name(sqe) == "Identify 00 30" && std::mem::take(&mut once);
        hit.then(|| Answer::error(Status::NAMESPACE_NOT_READY))
    });
    peer.run();
    let usable: Vec<_> = told(&mut peer).iter().map(|it| it.nsid).collect();
    assert_eq!(usable, [30]);
}

/// A wanted one that is not listed: some of the existing ones are named.
#[test]
fn an_absent_wanted_namespace_asks_for_a_few() {
    let config = AdminConfig {
        nsid: Some(2000),
        ..admin_config()
    };
    let model = Model {
        disks: (1..=1024).map(Disk::new).collect(),
        ..Model::default()
    };
    let mut peer = AdminPeer::new(config, model);
    peer.run();
    assert_eq!(told(&mut peer).len(), NAMESPACES_ASKED_MAX);
    assert!(peer.take_seen().len() < 100);
}

#[test]
fn a_block_larger_than_a_transfer_is_refused_by_name() {
    let mut model = Model::default();
    model.id.mdts = 1;
    model.disks[0].id.lbaf[..4].copy_from_slice(&format(0, 14));
    let mut peer = ready(model);
    assert_eq!(told(&mut peer), []);
    let why = peer.admin.refused(1).unwrap().to_string();
    assert!(why.contains("16384 bytes") && why.contains("MDTS"), "{why}");
    let mut model = Model::default();
    model.id.mdts = 2;
    model.disks[0].id.lbaf[..4].copy_from_slice(&format(0, 14));
    assert_eq!(told(&mut ready(model)).len(), 1);
}

#[test]
fn an_unsorted_or_endless_list_is_refused() {
    let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(|sqe| {
        let list = name(sqe).starts_with("Identify 02");
        list.then(|| Answer::data(&emit_nsids([4, 5, 3].into_iter())))
    });
    peer.run();
    let error = WireError::Field { offset: 8 };
    assert_eq!(
        peer.error(),
        HostError::Malformed {
            step: Step::NamespaceList,
            error
        }
    );

    let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(|sqe| {
        let list = name(sqe).starts_with("Identify 02");
        list.then(|| Answer::data(&emit_nsids(sqe.nsid() + 1..)))
    });
    peer.run();
    let max = HOST_NAMESPACES_MAX as u32;
    assert_eq!(
        peer.error(),
        HostError::Limit {
            step: Step::NamespaceList,
            max
        }
    );
}

#[test]
fn t26_an_ana_event_or_status_reads_the_log_again() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    peer.model.ana[0].1 = AnaState::Inaccessible;
    peer.event(AsyncEvent::ANA_CHANGE);
    assert_eq!(states(&mut peer), [AnaState::Inaccessible]);
    assert_eq!(peer.take_seen(), ["Log 0c 0+4096", "Event request"]);
    // An I/O queue saw an ANA status.
    peer.model.ana[0].1 = AnaState::NonOptimized;
    peer.admin.request_ana(0);
    peer.run();
    assert_eq!(states(&mut peer), [AnaState::NonOptimized]);
    assert_eq!(peer.take_seen(), ["Log 0c 0+4096"]);
}

#[test]
fn t26_a_log_larger_than_a_piece_is_read_in_pieces_and_confirmed() {
    let groups: Vec<_> = (1..=300).map(|id| (id, AnaState::Inaccessible)).collect();
    let mut model = Model {
        ana: groups,
        ..Model::default()
    };
    model.ana[0].1 = AnaState::Optimized;
    let mut far = Disk::new(2);
    far.id.anagrpid = 300;
    model.disks.push(far);
    let mut peer = ready(model);
    assert_eq!(
        states(&mut peer),
        [AnaState::Optimized, AnaState::Inaccessible]
    );
    let logs: Vec<_> = peer
        .take_seen()
        .into_iter()
        .filter(|seen| seen.contains("Log"))
        .collect();
    assert_eq!(
        logs,
        [
            "Log 0c 0+4096",
            "Log 0c 4096+4096",
            "Log 0c 8192+4096",
            "Log 0c 0+16"
        ]
    );
}

#[test]
fn t26_a_log_that_changes_while_it_is_read_is_read_anew() {
    let page = |changes| {
        let mut page = Vec::new();
        let groups = (1..=200).map(|id| (id, 0, AnaState::Optimized, 0..0));
        emit_ana(changes, groups, &mut page);
        page.resize(8192, 0);
        page
    };
    for times in [
        1u64,
        LOG_RESTARTS_MAX.into(),
        u64::from(LOG_RESTARTS_MAX) + 1,
    ] {
        let mut changes = 0;
        let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(move |sqe| {
            Some(match name(sqe).as_str() {
                "Log 0c 0+4096" => Answer::data(&page(changes)[..4096]),
                "Log 0c 4096+4096" => Answer::data(&page(changes)[4096..]),
                "Log 0c 0+16" => {
                    changes += u64::from(changes < times);
                    Answer::data(&page(changes)[..16])
                }
                _ => return None,
            })
        });
        peer.run();
        if times > LOG_RESTARTS_MAX.into() {
            assert_eq!(peer.error(), HostError::Unstable(Step::AnaLog));
        } else {
            assert_eq!(states(&mut peer), [AnaState::Optimized]);
        }
    }
}

#[test]
fn t26_hostile_ana_logs_end_in_an_error() {
    let step = Step::AnaLog;
    // Namespaces without end; a group count without groups; a reserved state.
    let endless = [
        [0; 8],
        [1, 0, 0, 0, 0, 0, 0, 0],
        [1, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    let many = [[0; 8], [255, 255, 0, 0, 0, 0, 0, 0]].concat();
    let mut reserved = [[0; 8], [1, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]].concat();
    reserved.extend([0, 0, 0, 0, 0, 0, 0, 0, 9]);
    let max = ANA_LOG_MAX as u32;
    for (start, error) in [
        (endless, HostError::Limit { step, max }),
        (
            reserved,
            HostError::Malformed {
                step,
                error: WireError::Field { offset: 16 },
            },
        ),
    ] {
        let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(move |sqe| {
            let mut page = start.clone();
            page.resize(4096, 0);
            name(sqe).starts_with("Log 0c").then(|| Answer::data(&page))
        });
        peer.run();
        assert_eq!(peer.error(), error);
    }
    // 65535 groups of state 0 that go on for ever.
    let mut peer = AdminPeer::new(admin_config(), Model::default()).scripted(move |sqe| {
        let mut page = many.clone();
        page.resize(4096, 1);
        name(sqe).starts_with("Log 0c").then(|| Answer::data(&page))
    });
    peer.run();
    assert!(matches!(
        peer.error(),
        HostError::Limit { .. } | HostError::Malformed { .. }
    ));
}

#[test]
fn t26_change_is_waited_for_but_not_longer_than_anatt() {
    let changing = || Model {
        ana: vec![(1, AnaState::Change)],
        ..Model::default()
    };
    let mut peer = ready(changing());
    assert_eq!(states(&mut peer), [AnaState::Change]);
    peer.take_seen();
    peer.run_until(3 * SECOND);
    assert_eq!(states(&mut peer), [AnaState::Change]);
    let seen = peer.take_seen();
    let read = seen
        .iter()
        .filter(|seen| seen.starts_with("Log 0c"))
        .count();
    assert_eq!(read, 3, "once a second: {seen:?}");
    peer.model.ana[0].1 = AnaState::Optimized;
    peer.run_until(4 * SECOND);
    assert_eq!(states(&mut peer), [AnaState::Optimized]);
    peer.take_seen();
    peer.run_until(9 * SECOND);
    assert!(
        !peer.take_seen().iter().any(|seen| seen.starts_with("Log")),
        "nothing is pending"
    );

    let mut peer = ready(changing());
    peer.run_until(10 * SECOND - 1);
    assert_eq!(states(&mut peer), [AnaState::Change]);
    peer.run_until(10 * SECOND);
    assert_eq!(peer.error(), HostError::AnaTransition { group: 1 });
}

/// Two namespaces in groups of their own.
fn two(first: AnaState, second: AnaState) -> Model {
    let mut other = Disk::new(2);
    other.id.anagrpid = 2;
    let mut model = Model {
        ana: vec![(1, first), (2, second)],
        ..Model::default()
    };
    model.disks.push(other);
    model
}

#[test]
fn t26_each_group_has_anatt_of_its_own() {
    let mut peer = ready(two(AnaState::Change, AnaState::Optimized));
    peer.run_until(9 * SECOND);
    // One transition ends as another begins: neither took longer than ANATT.
    peer.model.ana = vec![(1, AnaState::Optimized), (2, AnaState::Change)];
    peer.event(AsyncEvent::ANA_CHANGE);
    assert_eq!(states(&mut peer), [AnaState::Optimized, AnaState::Change]);
    peer.run_until(19 * SECOND - 1);
    assert_eq!(states(&mut peer), [AnaState::Optimized, AnaState::Change]);
    peer.run_until(20 * SECOND);
    assert_eq!(peer.error(), HostError::AnaTransition { group: 2 });
}

#[test]
fn t26_a_group_of_unwanted_namespaces_may_stay_in_change() {
    let config = AdminConfig {
        nsid: Some(1),
        ..admin_config()
    };
    let mut peer = AdminPeer::new(config, two(AnaState::Optimized, AnaState::Change));
    peer.run();
    peer.run_until(30 * SECOND);
    assert_eq!(states(&mut peer), [AnaState::Optimized]);
    peer.model.ana[0].1 = AnaState::Change;
    peer.event(AsyncEvent::ANA_CHANGE);
    peer.run_until(41 * SECOND);
    assert_eq!(peer.error(), HostError::AnaTransition { group: 1 });
}

#[test]
fn t26_a_doubt_that_comes_while_the_log_is_read_has_it_read_once_more_before_it_is_told() {
    let mut peer = ready(Model::default());
    states(&mut peer);
    peer.take_seen();
    peer.admin.request_ana(peer.now_ns);
    peer.admin.request_ana(peer.now_ns);
    peer.run();
    let told = peer.events().len();
    let read = peer.take_seen();
    let read = read.iter().filter(|seen| seen.starts_with("Log")).count();
    assert_eq!((read, told), (2, 1));
}

#[test]
fn t27_a_group_that_comes_after_anatt_is_found_without_an_event() {
    let mut peer = ready(Model {
        ana: vec![],
        ..Model::default()
    });
    peer.run_until(11 * SECOND);
    assert_eq!(states(&mut peer), [AnaState::Inaccessible]);
    peer.model.ana.push((1, AnaState::Optimized));
    peer.run_until(21 * SECOND);
    assert_eq!(states(&mut peer), [AnaState::Optimized]);
    peer.take_seen();
    peer.run_until(60 * SECOND);
    assert!(
        !peer.take_seen().iter().any(|seen| seen.starts_with("Log")),
        "nothing is pending"
    );
}

#[test]
fn t27_a_missing_group_is_pending_and_read_again() {
    let mut peer = ready(Model {
        ana: vec![(2, AnaState::Optimized)],
        ..Model::default()
    });
    assert_eq!(states(&mut peer), [AnaState::Change], "not to be used");
    peer.model.ana.push((1, AnaState::NonOptimized));
    peer.run_until(SECOND);
    assert_eq!(states(&mut peer), [AnaState::NonOptimized]);
    // One that never comes ends the waiting, not the association.
    let mut peer = ready(Model {
        ana: vec![],
        ..Model::default()
    });
    peer.run_until(11 * SECOND);
    assert_eq!(states(&mut peer), [AnaState::Inaccessible]);
    peer.run_until(14 * SECOND);
    assert!(peer.events().is_empty());
}

#[test]
fn t27_a_group_may_come_before_its_namespace() {
    let ana = vec![(1, AnaState::Optimized), (2, AnaState::NonOptimized)];
    let mut peer = ready(Model {
        ana,
        ..Model::default()
    });
    assert_eq!(states(&mut peer), [AnaState::Optimized]);
    let mut late = Disk::new(2);
    late.id.anagrpid = 2;
    peer.model.disks.push(late);
    peer.event(AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert_eq!(
        states(&mut peer),
        [AnaState::Optimized, AnaState::NonOptimized]
    );
}
