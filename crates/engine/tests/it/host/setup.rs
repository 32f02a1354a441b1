//! Paths that can't be: each a clear line, in bounded time, and the other paths go on.

use crate::common::*;
use engine::host::{HostControl, HostEvent, PathKind, PathState, SubmitError};
use engine::target::{TargetConfig, TargetEngine};
use engine::{LocalDevice, Machine};
use multipath::Outcome;
use policy::{Knobs, PathIndex, Policy};
use std::cell::RefCell;
use std::rc::Rc;

/// The rig, with the host's address 1 leading to a second target.
fn two_targets(change: impl FnOnce(&mut TargetConfig)) -> Rig {
    let mut rig = Rig::new(host_config(2), target_config(1));
    let mut other = target_config(1);
    other.subsystem.cntlid_min = 200;
    other.subsystem.cntlid_max = 300;
    change(&mut other);
    let arena = other.arena_bytes as usize;
    let other = Rc::new(RefCell::new(TargetEngine::new(other).unwrap()));
    let node = rig.world.add(other, arena);
    rig.world.nodes[node].disks = vec![rig.disk.clone(); 4];
    let to = Address::To {
        node,
        listener: 0,
        delay_ns: 5 * WIRE_NS,
    };
    rig.world.nodes[HOST].addresses.push(to);
    rig
}

/// The rig, with a peer of another kind behind the host's address 1.
fn strange_peer(peer: Player) -> Rig {
    let mut rig = Rig::new(host_config(2), target_config(1));
    let node = rig.world.add(Rc::new(RefCell::new(peer)), 0);
    let to = Address::To {
        node,
        listener: 0,
        delay_ns: WIRE_NS,
    };
    rig.world.nodes[HOST].addresses.push(to);
    rig
}

/// One line about path 1, within ten times the time-out for connecting; path 0 carries the volume.
fn only_path_0(rig: &mut Rig) -> String {
    let line = rig.failure(30 * SECOND);
    assert!(
        line.starts_with("v0: path nvme-tcp://p1/") && !line.contains('\n'),
        "{line}"
    );
    assert!(rig.run(SECOND, |events, _| ready_of(events, 0).is_some()));
    let mut load = Load::new(100, 8, BLOCK);
    rig.load(&mut load, SECOND);
    assert_eq!(load.errors(), 0);
    assert_eq!(
        rig.host.borrow().path_state(0, PathIndex(0)),
        PathState::Live
    );
    assert_eq!(
        rig.host.borrow().path_state(0, PathIndex(1)),
        PathState::Failed
    );
    rig.world.pass(10 * SECOND);
    assert!(!rig.world.nodes[HOST].stopped);
    assert_eq!(
        rig.world.connections(HOST),
        2,
        "path 1's connections are gone"
    );
    line
}

#[test]
fn two_processes_of_one_subsystem_are_one_volume() {
    let mut rig = two_targets(|_| ());
    rig.ready();
    let mut load = Load::new(1000, 8, BLOCK);
    rig.load(&mut load, SECOND);
    assert_eq!((load.errors(), load.verified), (0, 500));
    assert_eq!(rig.shares(2), [500, 500]);
}

#[test]
fn t31_another_namespace_is_refused() {
    let line = only_path_0(&mut two_targets(|it| {
        it.subsystem.namespaces[0].uuid = [9; 16]
    }));
    assert!(
        line.contains("refused beside nvme-tcp://p0/") && line.contains("UUID"),
        "{line}"
    );
    let line = only_path_0(&mut two_targets(|it| {
        it.subsystem.namespaces[0].nguid = [9; 16]
    }));
    assert!(line.contains("NGUID"), "{line}");
}

/// The path that connects first decides.
#[test]
fn t31_of_unequal_namespaces_at_the_start_that_of_the_first_path_is_the_volumes() {
    for slow in 0..2 {
        let mut rig = two_targets(|it| it.subsystem.namespaces[0].uuid = [9; 16]);
        let Address::To { delay_ns, .. } = &mut rig.world.nodes[HOST].addresses[slow] else {
            panic!("no way to a node");
        };
        *delay_ns = 20 * MS;
        let line = only_path_0(&mut rig);
        assert!(line.contains("refused beside nvme-tcp://p0/"), "{line}");
    }
    // One that can't be had has no say.
    let mut rig = two_targets(|it| it.subsystem.namespaces[0].uuid = [9; 16]);
    rig.world.nodes[HOST].addresses[0] = Address::Silence;
    rig.ready();
    assert_eq!(
        rig.host.borrow().path_state(0, PathIndex(1)),
        PathState::Live
    );
}

#[test]
fn t31_another_nsid_is_refused() {
    let mut rig = two_targets(|it| it.subsystem.namespaces[0].nsid = 2);
    let line = only_path_0(&mut rig);
    assert!(line.contains("NSID 2 here, 1 there"), "{line}");
}

#[test]
fn t31_a_duplicate_controller_id_is_refused() {
    let mut rig = two_targets(|it| it.subsystem.cntlid_min = 1);
    let line = only_path_0(&mut rig);
    assert!(line.contains("both claim to be controller 1"), "{line}");
}

#[test]
fn t31_one_identifier_in_two_subsystems_is_refused_across_volumes() {
    let mut rig = {
        let mut host = host_config(1);
        let mut other = volume(vec![tcp_path(1)]);
        other.name = "v1".into();
        let PathKind::NvmeTcp { subsystem, .. } = &mut other.paths[0].kind else {
            panic!()
        };
        subsystem.push('x');
        host.volumes.push(other);
        let rig = two_targets(|it| it.subsystem.nqn.push('x'));
        let engine = HostCore::new(host);
        *rig.host.borrow_mut() = engine;
        rig
    };
    let line = rig.failure(SECOND);
    assert!(
        line.starts_with("v1: ") && line.contains("two subsystems"),
        "{line}"
    );
}

#[test]
fn t33_another_size_or_block_size_is_refused() {
    let mut rig = two_targets(|it| it.subsystem.namespaces[0].blocks = BLOCKS / 2);
    let line = only_path_0(&mut rig);
    assert!(line.contains("2048 blocks here, 4096 there"), "{line}");
    let mut rig = two_targets(|it| {
        it.subsystem.namespaces[0].block_shift = 9;
        it.subsystem.namespaces[0].blocks = BLOCKS * 8;
    });
    let line = only_path_0(&mut rig);
    assert!(
        line.contains("blocks of 512 bytes here, 4096 there"),
        "{line}"
    );
}

#[test]
fn t34_the_volume_is_as_strict_as_its_strictest_path() {
    let mut rig = two_targets(|it| {
        it.subsystem.transfer_shift = 14;
        it.subsystem.volatile_write_cache = true;
    });
    rig.ready();
    let limits = rig.host.borrow().volume(0).unwrap().limits().unwrap();
    assert!(limits.volatile_cache);
    assert_eq!(limits.transfer_max, 16 << 10);
}

#[test]
fn several_namespaces_and_no_nsid_are_listed_and_one_can_be_named() {
    let mut target = target_config(1);
    target.subsystem.namespaces.push(namespace(7));
    target.devices.push(LocalDevice(0));
    let mut rig = Rig::new(host_config(1), target.clone());
    let line = rig.failure(SECOND);
    assert!(
        line.contains("2 namespaces; add ?nsid=N") && line.contains("7 (16777216"),
        "{line}"
    );
    assert_eq!(rig.submit(&read(0, 0)), Err(SubmitError::NotReady));

    let mut host = host_config(1);
    let PathKind::NvmeTcp { nsid, .. } = &mut host.volumes[0].paths[0].kind else {
        panic!()
    };
    *nsid = Some(7);
    Rig::new(host.clone(), target.clone()).ready();
    let PathKind::NvmeTcp { nsid, .. } = &mut host.volumes[0].paths[0].kind else {
        panic!()
    };
    *nsid = Some(3);
    let line = Rig::new(host, target).failure(SECOND);
    assert!(
        line.contains("namespace 3 isn't there; use one of: 1"),
        "{line}"
    );
}

#[test]
fn a_subsystem_that_is_not_there_says_so() {
    let mut rig = two_targets(|it| it.subsystem.nqn.push('x'));
    let line = only_path_0(&mut rig);
    assert!(line.contains("NQN unknown at this address"), "{line}");
}

#[test]
fn a_host_that_is_not_allowed_is_told_so() {
    let allowed = vec!["nqn.2026-01.org.example:other".to_string()];
    let mut rig = two_targets(|it| it.subsystem.hosts = allowed);
    let line = only_path_0(&mut rig);
    assert!(line.contains("isn't allowed"), "{line}");
}

#[test]
fn nobody_who_listens_is_named() {
    let mut rig = Rig::new(host_config(2), target_config(1));
    rig.world.nodes[HOST].addresses.push(Address::Refused);
    let line = only_path_0(&mut rig);
    assert!(line.contains("can't connect: connection refused"), "{line}");
}

#[test]
fn a_network_that_swallows_everything_is_given_up_in_time() {
    let mut rig = Rig::new(host_config(2), target_config(1));
    rig.world.nodes[HOST].addresses.push(Address::Silence);
    let start_ns = rig.world.now_ns;
    let line = rig.failure(10 * SECOND);
    assert!(line.contains("no answer within 3000 ms"), "{line}");
    assert!(rig.world.now_ns - start_ns < 4 * SECOND);
    only_path_0(&mut rig);
}

#[test]
fn a_peer_that_says_nothing_is_given_up_in_time() {
    let line = only_path_0(&mut strange_peer(Player::silent()));
    assert!(line.contains("no answer to NVMe/TCP handshake"), "{line}");
}

#[test]
fn a_peer_that_says_one_byte_a_second_is_given_up_in_time() {
    let mut icresp = [0_u8; 128];
    icresp[..8].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0]);
    let line = only_path_0(&mut strange_peer(Player::trickle(&icresp, SECOND)));
    assert!(line.contains("no answer"), "{line}");
}

#[test]
fn a_peer_that_speaks_something_else_is_refused() {
    let http = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_vec();
    let line = only_path_0(&mut strange_peer(Player::new(vec![(MS, http)])));
    assert!(line.contains("broke the protocol"), "{line}");
    let noise: Vec<u8> = (0..10_000_u32).map(|i| ((i * 167) >> 3) as u8).collect();
    only_path_0(&mut strange_peer(Player::new(vec![(0, noise)])));
}

#[test]
fn a_controller_with_fewer_queues_than_cores_is_refused() {
    let mut host = host_config(1);
    host.cores = 4;
    let mut target = target_config(1);
    target.subsystem.io_queues_max = 2;
    let line = Rig::new(host, target).failure(SECOND);
    assert!(line.contains("grants 2 I/O queues, 4 cores"), "{line}");
}

#[test]
fn paths_to_devices_and_to_namespaces_do_not_mix() {
    let mut host = host_config(2);
    let device = PathKind::Device {
        device: LocalDevice(0),
        bytes: 16 << 20,
        block_shift: 12,
        identity: None,
        read_only: false,
        deallocate_zeroes: false,
        hole_bytes: 0,
    };
    host.volumes[0].paths[0].kind = device;
    host.volumes[0].paths[0].uri = "mem:16MiB".into();
    let mut rig = Rig::new(host, target_config(2));
    rig.world.nodes[HOST].disks = vec![Disk::new(16 << 20)];
    let line = rig.failure(SECOND);
    assert!(
        line.contains("refused beside mem:16MiB: a local device and an NVMe"),
        "{line}"
    );
    assert!(ready_of(&rig.events, 0).is_some());
}

#[test]
fn a_namespace_of_a_read_only_target_takes_reads_only() {
    let mut target = target_config(1);
    target.subsystem.namespaces[0].read_only = true;
    let mut rig = Rig::new(host_config(1), target);
    rig.ready();
    assert_eq!(rig.one(&read(0, 0), SECOND).outcome, Outcome::Done);
    let done = rig.one(&write(0, 0), SECOND);
    assert_eq!(
        (done.outcome, done.path),
        (Outcome::ReadOnly, engine::host::NO_PATH)
    );
}

#[test]
fn t12_a_keep_alive_longer_than_the_io_time_out_is_refused() {
    let mut config = host_config(1);
    config.kato_ms = 10_000;
    let error = config.check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "kato must be shorter than io_timeout, or 0"
    );
    config.kato_ms = 9_999;
    assert_eq!(config.check(), Ok(()));
}

#[test]
fn configurations_that_can_not_be_are_named() {
    let field = |change: fn(&mut engine::host::HostConfig)| {
        let mut config = host_config(2);
        change(&mut config);
        config.check().map_err(|error| error.field)
    };
    assert_eq!(field(|_| ()), Ok(()));
    assert_eq!(field(|it| it.core = 1), Err("core"));
    assert_eq!(field(|it| it.io_max = 0), Err("io_max"));
    assert_eq!(field(|it| it.io_max = 65_536), Err("io_max"));
    assert_eq!(field(|it| it.volumes[0].paths.clear()), Err("paths"));
    assert_eq!(field(|it| it.volumes[0].knobs.ewma_shift = 9), Err("knobs"));
    assert_eq!(
        field(|it| it.connect_timeout_ns = 0),
        Err("connect_timeout")
    );
    assert_eq!(field(|it| it.io_timeout_ns = 0), Err("io_timeout"));
    let many = |it: &mut engine::host::HostConfig| {
        let path = tcp_path(0);
        it.volumes[0].paths = vec![path; 65];
    };
    assert_eq!(field(many), Err("paths"));
    let blocks = |it: &mut engine::host::HostConfig| {
        it.volumes[0].paths[0].kind = PathKind::Device {
            device: LocalDevice(0),
            bytes: 1 << 20,
            block_shift: 8,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        };
    };
    assert_eq!(field(blocks), Err("block_shift"));
}

#[test]
fn a08_knobs_out_of_range_change_nothing_and_are_answered() {
    let mut rig = Rig::new(host_config(1), target_config(1));
    rig.ready();
    let wild = Knobs {
        ewma_shift: 9,
        ..Knobs::default()
    };
    rig.control(HostControl::Policy(0, Policy::Numa, wild));
    rig.control(HostControl::Policy(9, Policy::Numa, Knobs::default()));
    rig.poll();
    let warned = rig
        .events
        .iter()
        .filter(|event| matches!(event, HostEvent::Warning(0, _)));
    assert_eq!(warned.count(), 1);
}

#[test]
fn t31_a_private_namespace_or_one_without_identity_has_one_path() {
    let mut rig = two_targets(|it| {
        it.subsystem.namespaces[0].uuid = [0; 16];
        it.subsystem.namespaces[0].nguid = [0; 16];
    });
    let line = only_path_0(&mut rig);
    assert!(line.contains("none here"), "{line}");
}

#[test]
fn the_engine_asks_to_be_started_and_then_opens_all_admin_connections() {
    let host = Rc::new(RefCell::new(HostCore::new(host_config(3))));
    assert_eq!(host.borrow().poll_timeout(), Some(0));
    assert_eq!(host.borrow_mut().poll_output(), None);
    assert_eq!(host.borrow().connections_max(), 6);
    assert_eq!(host.borrow_mut().handle_accepted(0, 0), None);
}

/// A controller whose keep-alive granularity makes a time-out of 5 s one of hours: its user learns
/// at once what that means for writes after a loss, and is told once.
#[test]
fn a_keep_alive_granularity_of_hours_is_warned_of() {
    for (kas, warned) in [(1_u16, false), (50, false), (36_000, true)] {
        let mut rig = Rig::new(host_config(1), target_config(1));
        let mut target = Patched::new(TargetEngine::new(target_config(1)).unwrap());
        target.page = Box::new(move |page| {
            if page[768..].starts_with(b"nqn.") {
                page[320..322].copy_from_slice(&kas.to_le_bytes());
            }
        });
        let node = rig.world.add(Rc::new(RefCell::new(target)), 16 << 20);
        rig.world.nodes[node].disks = vec![rig.disk.clone()];
        rig.world.nodes[HOST].addresses[0] = Address::To {
            node,
            listener: 0,
            delay_ns: WIRE_NS,
        };
        rig.ready();
        let warning = |event: &HostEvent| match event {
            HostEvent::Warning(0, line) => Some(line.clone()),
            _ => None,
        };
        let lines: Vec<_> = rig.events.iter().filter_map(warning).collect();
        assert_eq!(lines.len(), usize::from(warned), "{lines:?}");
        if warned {
            assert!(lines[0].contains("3600 s (KAS)"), "{lines:?}");
            assert!(lines[0].contains("up to 7205 s"), "{lines:?}");
        }
    }
}
