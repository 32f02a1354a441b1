//! The host's machines and the target's, wired to each other: each must understand the other in
//! every combination of options and for any split of the stream.
#![allow(clippy::unwrap_used)]
mod world;

use nvme::controller::{CloseReason, SubsystemConfig};
use nvme::host::{AnaState, Command, Digests, SubmitError};
use nvme::wire::Status;
use std::collections::BTreeMap;
use world::{MS, NQN, QueueOptions, Rng, World, config};

const PLAIN: Digests = Digests {
    header: false,
    data: false,
};
const BOTH: Digests = Digests {
    header: true,
    data: true,
};

fn options(digests: Digests, flow_control: bool) -> QueueOptions {
    QueueOptions {
        qid: 1,
        entries: 8,
        digests,
        flow_control,
    }
}

/// An association with one I/O queue on connection 1.
fn pair(config: SubsystemConfig, seed: u64, options: &QueueOptions) -> World {
    let mut world = World::new(config, seed);
    let info = world.connect(0, 0, options.digests, 0);
    world.queue(1, 0, &info, options);
    world
}

#[test]
fn host_and_target_agree_field_by_field() {
    for (seed, digests) in [(1, PLAIN), (2, BOTH)] {
        let mut world = World::new(config(), seed);
        let c = world.connect(0, 1, digests, 2000);
        let config = config();
        assert_eq!((c.cntlid, c.subnqn.as_str()), (10, NQN));
        assert_eq!((c.serial.as_str(), c.model.as_str()), ("SERIAL", "MODEL"));
        assert_eq!(c.firmware, env!("CARGO_PKG_VERSION"));
        assert_eq!(c.transfer_max, Some(1 << config.transfer_shift));
        assert_eq!((c.write_zeroes_max, c.deallocate_blocks_max), (None, None));
        assert_eq!((c.entries_max, c.io_queues), (config.entries_max, 2));
        assert_eq!(c.in_capsule_max, config.in_capsule_max);
        assert_eq!(
            (c.kas, c.traffic_keep_alive, c.cqt_ms),
            (1, false, config.cqt_ms)
        );
        assert_eq!((c.crdt, c.volatile_write_cache), ([0; 3], true));
        assert_eq!(
            (c.oncs, c.ana, c.anatt_s, c.multi_controller),
            (0xd, true, 10, true)
        );
        let namespaces = world.info.clone().unwrap().1;
        assert_eq!(namespaces.len(), config.namespaces.len());
        for (n, want) in namespaces.iter().zip(&config.namespaces) {
            assert_eq!(
                (n.nsid, n.blocks, n.block_shift),
                (want.nsid, want.blocks, want.block_shift)
            );
            assert_eq!((n.nguid, n.uuid, n.eui64), (want.nguid, want.uuid, [0; 8]));
            assert_eq!((n.csi, n.shared, n.ana_group), (0, true, want.ana_group));
            assert_eq!(
                (n.ana_state, n.read_only),
                (AnaState::NonOptimized, want.read_only)
            );
            assert_eq!((n.atomic_blocks, n.deallocate_reads_zero), (1, true));
        }
    }
}

/// The contents that the storage must have, and the ranges that commands in flight may be changing.
struct Model {
    blocks: Vec<u8>,
    busy: Vec<(u64, u64)>,
    /// By token: the range, and what it will hold; `None` where only the answer is checked.
    in_flight: BTreeMap<u32, (u64, u64, Option<Vec<u8>>)>,
    next: u32,
}

const BLOCK: usize = 512;

impl Model {
    fn new() -> Self {
        Self {
            blocks: vec![0; 4096 * BLOCK],
            busy: Vec::new(),
            in_flight: BTreeMap::new(),
            next: 0,
        }
    }

    fn bytes(slba: u64, blocks: u64) -> std::ops::Range<usize> {
        slba as usize * BLOCK..(slba + blocks) as usize * BLOCK
    }

    /// A range that no command in flight touches.
    fn range(&mut self, rng: &mut Rng) -> Option<(u64, u64)> {
        // Often one block or 4 KiB, sometimes the largest transfer.
        let blocks = match rng.below(4) {
            0 => 1,
            1 => 8,
            2 => 1 + rng.below(64),
            _ => 1 + rng.below(256),
        };
        let slba = rng.below(4096 - blocks + 1);
        let free = self
            .busy
            .iter()
            .all(|&(s, n)| slba + blocks <= s || s + n <= slba);
        free.then_some((slba, blocks))
    }

    /// Submits one command with what it needs, if there is room for its range.
    fn submit(&mut self, world: &mut World) -> Result<(), SubmitError> {
        let Some((slba, blocks)) = self.range(&mut world.rng) else {
            return Ok(());
        };
        let token = self.next;
        let now = self.blocks[Self::bytes(slba, blocks)].to_vec();
        let stamp: Vec<u8> = (0..now.len())
            .map(|i| (i as u32 ^ token ^ (i as u32 >> 8)) as u8)
            .collect();
        let n = blocks as u32;
        let (command, buffer, then) = match world.rng.below(10) {
            0..=3 => (
                Command::write(1, slba, n, 9, token.is_multiple_of(2), token),
                stamp.clone(),
                Some(stamp),
            ),
            4..=6 => (
                Command::read(1, slba, n, 9, false, token),
                vec![0xdd; now.len()],
                None,
            ),
            7 => (Command::compare(1, slba, n, 9, token), now.clone(), None),
            8 => (
                Command::write_zeroes(1, slba, n, true, token),
                vec![],
                Some(vec![0; now.len()]),
            ),
            _ => (
                Command::deallocate(1, slba, n, token),
                vec![],
                Some(vec![0; now.len()]),
            ),
        };
        let at = world.now;
        world.io(1).submit(&command, at)?;
        world.host_buffers.insert((1, token), buffer);
        self.busy.push((slba, blocks));
        self.in_flight.insert(token, (slba, blocks, then));
        self.next += 1;
        Ok(())
    }

    /// Compares the commands that have ended with the model.
    fn collect(&mut self, world: &mut World) {
        let ended = std::mem::take(&mut world.links.get_mut(&1).unwrap().completed);
        for end in ended {
            assert_eq!(end.status, Status::SUCCESS);
            let (slba, blocks, then) = self.in_flight.remove(&end.token).unwrap();
            let buffer = world.host_buffers.remove(&(1, end.token)).unwrap();
            self.busy.retain(|&range| range != (slba, blocks));
            let held = &mut self.blocks[Self::bytes(slba, blocks)];
            match then {
                Some(then) => held.copy_from_slice(&then),
                None => assert_eq!(buffer, held, "command {}", end.token),
            }
        }
    }
}

/// `count` random commands, as many at once as the queue takes; content checked by a model.
fn storm(world: &mut World, count: u32) {
    let mut model = Model::new();
    let mut full = 0;
    while model.next < count {
        // Now and then below the queue's size, mostly above it.
        for _ in 0..world.rng.below(12) {
            full += u32::from(model.submit(world) == Err(SubmitError::Full));
        }
        let before = model.in_flight.len();
        world.run_until("a command has ended", |world| {
            before == 0 || !world.links[&1].completed.is_empty()
        });
        model.collect(world);
    }
    while !model.in_flight.is_empty() {
        world.run_until("the rest has ended", |world| {
            !world.links[&1].completed.is_empty()
        });
        model.collect(world);
    }
    assert!(full > 0, "the queue was never full");
    assert_eq!(world.disks[&1].1, model.blocks);
    assert_eq!(world.executed, u64::from(model.next));
}

#[test]
fn data_in_every_combination_of_what_can_be_negotiated() {
    let mut seed = 100;
    for digests in [
        PLAIN,
        Digests {
            header: true,
            data: false,
        },
        Digests {
            header: false,
            data: true,
        },
        BOTH,
    ] {
        for in_capsule_max in [0, 4096, 8192] {
            for (c2h_success, flow_control) in
                [(false, false), (false, true), (true, false), (true, true)]
            {
                seed += 1;
                let config = SubsystemConfig {
                    in_capsule_max,
                    c2h_success,
                    ..config()
                };
                let mut world = pair(config, seed, &options(digests, flow_control));
                storm(&mut world, 60);
            }
        }
    }
}

#[test]
fn t20_data_alignment_and_piece_size_of_the_target_are_honoured() {
    for (seed, (alignment, maxh2cdata, digests)) in [
        (4, 4096, PLAIN),
        (8, 65536, BOTH),
        (64, 4100, BOTH),
        (128, 1 << 20, PLAIN),
    ]
    .into_iter()
    .enumerate()
    {
        let config = SubsystemConfig {
            maxh2cdata,
            ..config()
        };
        let mut world = World::new(config, seed as u64);
        world.target.set_data_alignment(alignment).unwrap();
        let info = world.connect(0, 0, digests, 0);
        world.queue(1, 0, &info, &options(digests, false));
        storm(&mut world, 120);
    }
}

#[test]
fn queues_of_every_size_under_pressure() {
    for entries in [2, 3, 5, 32] {
        for flow_control in [false, true] {
            let options = QueueOptions {
                entries,
                ..options(BOTH, flow_control)
            };
            let mut world = pair(config(), entries.into(), &options);
            storm(&mut world, 150);
        }
    }
}

#[test]
fn statuses_pass_through_both_machines() {
    let mut world = pair(config(), 5, &options(PLAIN, false));
    let (end, _) = world.one(1, Command::read(1, 4096, 1, 9, false, 1), vec![0; 512]);
    assert_eq!(end.status, Status::LBA_RANGE.with_dnr());
    let (end, _) = world.one(1, Command::read(9, 0, 1, 9, false, 2), vec![0; 512]);
    assert_eq!(end.status, Status::INVALID_NAMESPACE.with_dnr());
    let (end, _) = world.one(1, Command::write(3, 0, 1, 12, false, 3), vec![0; 4096]);
    assert_eq!(end.status, Status::WRITE_PROTECTED.with_dnr());
    let (end, _) = world.one(1, Command::write(3, 0, 4, 12, false, 4), vec![0; 16384]);
    assert_eq!(end.status, Status::WRITE_PROTECTED.with_dnr());
    let (end, _) = world.one(1, Command::compare(1, 0, 1, 9, 5), vec![1; 512]);
    assert_eq!(end.status, Status::COMPARE_FAILURE);
    let (end, _) = world.one(1, Command::flush(1, 6), vec![]);
    assert_eq!(end.status, Status::SUCCESS);
    let (end, _) = world.one(1, Command::flush_all(7), vec![]);
    assert_eq!(end.status, Status::SUCCESS);
}

#[test]
fn t26_ana_changes_and_resizes_reach_the_host() {
    let mut world = pair(config(), 6, &options(PLAIN, false));
    let now = world.now;
    world.target.set_ana(0, AnaState::Inaccessible, now);
    world.run_until("the host has read the ANA log", |world| {
        !world.changed.is_empty()
    });
    let states: Vec<_> = world
        .changed
        .pop()
        .unwrap()
        .iter()
        .map(|n| n.ana_state)
        .collect();
    assert_eq!(states, [AnaState::Inaccessible; 3]);
    let (end, _) = world.one(1, Command::read(1, 0, 1, 9, false, 1), vec![0; 512]);
    assert_eq!(end.status, Status::ANA_INACCESSIBLE);

    // Several in a row: the host must end with the last state.
    for state in [
        AnaState::Change,
        AnaState::NonOptimized,
        AnaState::Optimized,
    ] {
        let now = world.now;
        world.target.set_ana(0, state, now);
        world.step();
    }
    world.run_until("the host knows the last state", |world| {
        let last = world.changed.last();
        last.is_some_and(|all| all.iter().all(|n| n.ana_state == AnaState::Optimized))
    });
    let (end, _) = world.one(1, Command::read(1, 0, 1, 9, false, 2), vec![0; 512]);
    assert_eq!(end.status, Status::SUCCESS);

    world.changed.clear();
    let now = world.now;
    world.target.resize(1, 100, now).unwrap();
    world.run_until("the host knows the size", |world| !world.changed.is_empty());
    assert_eq!(world.changed[0][0].blocks, 100);
}

#[test]
fn t26_one_group_of_a_port_changes_and_the_host_knows_which() {
    let mut world = pair(config(), 6, &options(PLAIN, false));
    let now = world.now;
    world
        .target
        .set_ana_group(0, 2, AnaState::Inaccessible, now);
    world.run_until("the host has read the ANA log", |world| {
        !world.changed.is_empty()
    });
    let all = world.changed.pop().unwrap();
    let states: Vec<_> = all.iter().map(|n| (n.ana_group, n.ana_state)).collect();
    let mut want = [1, 2, 3].map(|group| (group, AnaState::Optimized));
    want[1].1 = AnaState::Inaccessible;
    assert_eq!(states, want);
    let (end, _) = world.one(1, Command::read(2, 0, 1, 12, false, 1), vec![0; 4096]);
    assert_eq!(end.status, Status::ANA_INACCESSIBLE);
    let (end, _) = world.one(1, Command::read(1, 0, 1, 9, false, 1), vec![0; 512]);
    assert_eq!(end.status, Status::SUCCESS);
}

#[test]
fn t29_keep_alive_holds_an_idle_association_and_its_absence_ends_it() {
    let mut world = World::new(config(), 7);
    let info = world.connect(0, 0, PLAIN, 1000);
    world.queue(1, 0, &info, &options(PLAIN, false));
    let end = world.now + 60_000 * MS;
    world.run_to(end);
    assert_eq!(world.target.controllers().count(), 1);
    assert_eq!(
        (&world.links[&0].failed, &world.links[&1].failed),
        (&None, &None)
    );
    // The network drops everything.
    world.links.get_mut(&0).unwrap().stalled = true;
    world.links.get_mut(&1).unwrap().stalled = true;
    let end = world.now + 5_000 * MS;
    world.run_to(end);
    assert_eq!(world.links[&0].closed, Some(CloseReason::KeepAlive));
    assert_eq!(world.links[&1].closed, Some(CloseReason::KeepAlive));
    assert!(world.links[&0].failed.is_some(), "the host noticed too");
    world.cut(0);
    world.cut(1);
    world.assert_clean();
}

#[test]
fn t23_connections_lost_at_any_moment_leave_nothing_behind() {
    for seed in 0..60 {
        let mut world = pair(config(), 1000 + seed, &options(BOTH, seed % 2 == 0));
        let mut model = Model::new();
        for _ in 0..40 {
            let _ = model.submit(&mut world);
        }
        let in_flight = model.in_flight.len();
        for _ in 0..seed {
            world.work();
        }
        let first = (seed % 2) as u32;
        world.cut(first);
        for _ in 0..seed / 3 {
            world.work();
        }
        world.cut(1 - first);
        // Every command ended once, with success or with a path error.
        let link = &world.links[&1];
        assert_eq!(link.completed.len(), in_flight);
        for end in &link.completed {
            assert!(
                end.status.is_success() || end.status == Status::HOST_PATH,
                "{end:?}"
            );
        }
        assert!(link.failed.is_some());
        world.assert_clean();
    }
}

#[test]
fn an_orderly_shutdown_ends_both_sides() {
    let mut world = pair(config(), 8, &options(PLAIN, false));
    let (end, _) = world.one(1, Command::write(1, 0, 8, 9, false, 1), vec![5; 4096]);
    assert!(end.status.is_success());
    let now = world.now;
    world.admin(0).shutdown(now);
    world.run_until("the host is done", |world| world.links[&0].failed.is_some());
    assert_eq!(world.links[&1].closed, Some(CloseReason::Finished));
    world.cut(1);
    world.cut(0);
    world.assert_clean();
}

#[test]
fn two_queues_of_one_controller_and_two_controllers_share_the_storage() {
    let mut world = World::new(config(), 9);
    let first = world.connect(0, 0, PLAIN, 0);
    world.queue(1, 0, &first, &options(PLAIN, false));
    world.queue(
        2,
        0,
        &first,
        &QueueOptions {
            qid: 2,
            ..options(BOTH, true)
        },
    );
    let second = world.connect(3, 1, BOTH, 0);
    assert_ne!(first.cntlid, second.cntlid);
    world.queue(4, 1, &second, &options(BOTH, false));
    let data: Vec<u8> = (0..65536u32).map(|i| (i % 251) as u8).collect();
    world.one(1, Command::write(2, 3, 16, 12, true, 1), data.clone());
    for conn in [1, 2, 4] {
        let (end, got) = world.one(conn, Command::read(2, 3, 16, 12, false, 9), vec![0; 65536]);
        assert!(end.status.is_success());
        assert_eq!(got, data);
    }
}

/// The host is told of the extents that the target's storage calls holes, in blocks.
#[test]
fn allocated_blocks_reach_the_host() {
    let mut world = World::new(config(), 11);
    let info = world.connect(0, 0, BOTH, 0);
    assert!(info.lists_allocated);
    for (extents, want) in [
        (
            vec![(8 << 12, true), (100, false), (u32::MAX, true)],
            (8, false),
        ),
        (vec![(100, false), (4096, true)], (2, true)),
        (vec![(8, true)], (2, true)),
        (vec![], (17, true)),
        (vec![(u32::MAX, true)], (16, false)),
    ] {
        (world.extents, world.allocated) = (extents.into(), Vec::new());
        let now = world.now;
        assert!(world.admin(0).ask_allocated(9, (2, 8, 16), now));
        world.run_until("an answer", |world| !world.allocated.is_empty());
        assert_eq!(world.allocated, [(9, Some(want))]);
    }
}
