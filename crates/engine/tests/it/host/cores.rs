//! Several cores over one volume; the end of an engine; local devices.

use crate::common::*;
use engine::host::{
    HoldReason, HostControl, HostEvent, Io, IoDone, IoOp, PathEvent, PathKind, PathNews, PathState,
    Peers, Recovery,
};
use engine::machine::DeviceError;
use engine::target::TargetControl;
use engine::{LocalDevice, Machine};
use multipath::Outcome;
use nvme::host::AnaState;
use policy::{Aggregate, Means, NodeMeans, PathIndex, Policy};
use std::cell::RefCell;
use std::rc::Rc;

/// A rig whose host is core 0 of two, and the other core.
struct Cores {
    rig: Rig,
    other: Rc<RefCell<HostCore>>,
    other_node: usize,
    /// Events of core 1.
    events: Vec<HostEvent>,
    done: Vec<IoDone>,
    passed_on: usize,
}

impl Cores {
    fn new() -> Self {
        Self::with(Recovery::NONE)
    }

    fn with(recovery: Recovery) -> Self {
        let mut config = host_config(2);
        config.volumes[0].recovery = recovery;
        config.cores = 2;
        config.volumes[0].policy = Policy::QueueDepth;
        let mut target = target_config(2);
        target.subsystem.cqt_ms = (recovery.quiesce_ns / MS) as u16;
        let mut rig = Rig::new(config.clone(), target);
        config.core = 1;
        let other = Rc::new(RefCell::new(HostCore::new(config)));
        let other_node = rig.world.add(other.clone(), 8 << 20);
        rig.world.nodes[other_node].addresses = rig.world.nodes[HOST].addresses.clone();
        Self {
            rig,
            other,
            other_node,
            events: Vec::new(),
            done: Vec::new(),
            passed_on: 0,
        }
    }

    /// Passes on what core 0 publishes, as the program does.
    fn run(&mut self, limit_ns: u64, mut over: impl FnMut(&Self) -> bool) -> bool {
        let step_ns = MS / 10;
        for _ in 0..limit_ns.div_ceil(step_ns) {
            self.rig.world.pass(step_ns);
            self.rig.poll();
            let news = published(&self.rig.events);
            for news in &news[self.passed_on..] {
                let message = HostControl::Path(news.clone());
                self.other
                    .borrow_mut()
                    .handle_control(message, self.rig.world.now_ns);
            }
            self.passed_on = news.len();
            let mut reports = Vec::new();
            while let Some(event) = self.other.borrow_mut().poll_event() {
                match event {
                    HostEvent::Done(done) => self.done.push(done),
                    HostEvent::Report(news) => reports.push(news),
                    event => self.events.push(event),
                }
            }
            for news in reports {
                self.rig.control(HostControl::Path(news));
            }
            if over(self) {
                return true;
            }
        }
        false
    }

    fn ready(&mut self) {
        let both =
            |it: &Self| ready_of(&it.rig.events, 0).is_some() && ready_of(&it.events, 0).is_some();
        assert!(self.run(SECOND, both));
    }

    fn submit_other(&mut self, io: &Io) {
        self.other
            .borrow_mut()
            .submit(io, self.rig.world.now_ns)
            .unwrap();
    }
}

#[test]
fn every_core_has_its_own_queue_and_only_core_0_an_admin_connection() {
    let mut cores = Cores::new();
    cores.ready();
    assert_eq!(cores.rig.world.connections(HOST), 4);
    assert_eq!(cores.rig.world.connections(cores.other_node), 2);
    cores.submit_other(&write(3, 3));
    assert!(cores.run(SECOND, |it| it.done.len() == 1));
    assert_eq!(cores.done[0].outcome, Outcome::Done);
    let none = cores
        .events
        .iter()
        .any(|event| matches!(event, HostEvent::Publish(_)));
    assert!(!none, "only core 0 publishes");
}

/// Measurements that two cores show each other, and those of a third of their node of reads by
/// path, ns.
#[derive(Default)]
struct Board {
    counts: [u32; 2],
    means: Vec<(usize, Means)>,
    neighbour: Option<[u32; 2]>,
}

impl Peers for Board {
    fn are_there(&self) -> bool {
        true
    }
    fn in_flight(&self, path: usize) -> u32 {
        self.counts[path]
    }
    fn show_in_flight(&mut self, path: usize, count: u32) {
        self.counts[path] = count;
    }
    fn have_measured(&mut self) -> bool {
        self.neighbour.is_some()
    }
    fn node_means(&self, path: usize) -> NodeMeans {
        let mut means = Means::default();
        means[0] = self.neighbour.map_or(0, |reads_ns| reads_ns[path]);
        let mut node = NodeMeans::default();
        node.add(&means);
        node
    }
    fn show_means(&mut self, means: impl Iterator<Item = (usize, Means)>) {
        self.means.extend(means);
    }
}

#[test]
fn t47_queue_depth_sees_what_the_other_core_has_in_flight() {
    let mut cores = Cores::new();
    cores.ready();
    let stall = shape::Config {
        delay_ns: 10 * MS,
        ..Default::default()
    };
    cores.rig.target_control(TargetControl::Shape(0, stall));
    // Eight I/Os of core 0 on path 0 alone.
    for slot in 0..16 {
        cores.rig.submit(&read(slot, slot)).unwrap();
    }
    let in_flight = |it: &Cores, path| it.rig.host.borrow().in_flight(0, PathIndex(path));
    assert!(cores.run(5 * MS, |it| in_flight(it, 1) == 0));
    assert_eq!(in_flight(&cores, 0), 8);
    let mut board = Board::default();
    for core in [&cores.rig.host, &cores.other] {
        core.borrow_mut().0.exchange(&mut board, |_| ());
    }
    for slot in 0..8 {
        cores.submit_other(&read(slot, slot));
    }
    assert_eq!(cores.other.borrow().in_flight(0, PathIndex(1)), 8);
    assert!(cores.run(SECOND, |it| it.done.len() == 8));
}

#[test]
fn a_path_lost_on_core_0_is_lost_everywhere_and_reported_once() {
    let mut cores = Cores::new();
    cores.ready();
    cores.rig.world.cut(HOST, 0);
    let lost = |it: &Cores| it.other.borrow().path_state(0, PathIndex(0)) == PathState::Failed;
    assert!(cores.run(SECOND, lost));
    let news = published(&cores.rig.events);
    let said = news
        .iter()
        .filter(|news| matches!(news, PathNews::Of(_, PathIndex(0), PathEvent::Lost { .. })));
    assert_eq!(said.count(), 1);
    assert_eq!(cores.rig.failures().len(), 1);
    cores.submit_other(&read(0, 0));
    assert!(cores.run(SECOND, |it| it.done.len() == 1));
    assert_eq!(cores.done[0].path, PathIndex(1));
}

/// How a path is doing on both cores.
fn states(it: &Cores, path: u8) -> [PathState; 2] {
    [&it.rig.host, &it.other].map(|host| host.borrow().path_state(0, PathIndex(path)))
}

#[test]
fn a_path_that_any_core_loses_comes_back_on_all() {
    for core in [0, 1] {
        let mut cores = Cores::with(Recovery::default());
        cores.ready();
        let node = [HOST, cores.other_node][core];
        cores.rig.world.cut(node, 0);
        let lost = |it: &Cores| states(it, 0) == [PathState::Reconnecting; 2];
        assert!(cores.run(10 * MS, lost), "core {core}");
        assert!(cores.run(SECOND, |it| states(it, 0) == [PathState::Live; 2]));
        assert_eq!(states(&cores, 1), [PathState::Live; 2]);
        assert_eq!(cores.rig.world.connections(cores.other_node), 2);
        for slot in 0..8 {
            cores.submit_other(&read(slot, slot));
        }
        assert!(cores.run(SECOND, |it| it.done.len() == 8));
        assert!(cores.done.iter().any(|done| done.path == PathIndex(0)));
        let lines = cores.rig.failures().len() + failures(&cores.events).len();
        // The target ends the whole association: the other core may see it by itself.
        assert!((1..=2).contains(&lines), "core {core}: {lines}");
    }
}

#[test]
fn t09_a_hold_counts_from_the_end_of_the_last_connection_on_any_core() {
    let recovery = Recovery {
        quiesce_ns: SECOND,
        ..Recovery::default()
    };
    let mut cores = Cores::with(recovery);
    cores.ready();
    cores.rig.world.nodes[TARGET].disks[0].delay_ns = 5 * SECOND;
    for slot in 0..2 {
        cores.submit_other(&write(slot, slot));
    }
    cores.run(MS, |_| false);
    cores.rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    cores.rig.world.cut(cores.other_node, 0);
    let held = |it: &Cores| it.other.borrow().hold_stats(0);
    assert!(cores.run(MS, |it| held(it).held == 1));
    // Core 0 asks for proof first, for as long as the disk keeps the controller busy, and all say
    // so.
    let resetting = |it: &Cores| matches!(held(it).reason, Some(HoldReason::Resetting(_)));
    assert!(cores.run(MS, resetting), "{:?}", held(&cores).reason);
    assert!(cores.run(4 * SECOND, |it| !resetting(it)));
    assert!(cores.run(10 * MS, |it| matches!(
        held(it).reason,
        Some(HoldReason::Until(_))
    )));
    let cut_ns = cores.rig.world.now_ns;
    assert!(cores.run(20 * SECOND, |it| it.done.len() == 2));
    assert!(cores.done.iter().all(|done| done.outcome == Outcome::Done));
    let waited_ns = cores.rig.world.now_ns - cut_ns;
    assert!(
        waited_ns > 11 * SECOND - 10 * MS,
        "2 × 5 s and 1 s: {waited_ns}"
    );
}

#[test]
fn t09_the_proof_of_core_0_releases_what_every_core_holds() {
    let mut cores = Cores::with(Recovery::default());
    cores.ready();
    cores.rig.world.nodes[TARGET].disks[0].delay_ns = 300 * MS;
    for slot in 0..4 {
        cores.submit_other(&write(slot, slot));
        cores.rig.submit(&write(8 + slot, slot)).unwrap();
    }
    cores.run(MS, |_| false);
    cores.rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    let start_ns = cores.rig.world.now_ns;
    cores.rig.world.cut_queue(cores.other_node, 0);
    assert!(cores.run(SECOND, |it| it.done.len() + it.rig.done.len() == 8));
    let waited_ns = cores.rig.world.now_ns - start_ns;
    assert!((298 * MS..330 * MS).contains(&waited_ns), "{waited_ns}");
    let done = cores.done.iter().chain(&cores.rig.done);
    assert!(done.into_iter().all(|done| done.outcome == Outcome::Done));
    for host in [&cores.rig.host, &cores.other] {
        let stats = host.borrow().hold_stats(0);
        assert_eq!((stats.proved_total, stats.bounded_total), (2, 0));
    }
    assert!(cores.run(SECOND, |it| states(it, 0) == [PathState::Live; 2]));
}

#[test]
fn t26_a_status_on_another_core_has_the_log_read_for_all() {
    let mut cores = Cores::with(Recovery::default());
    cores.ready();
    for (slot, state) in [
        (0, AnaState::Inaccessible),
        (1, AnaState::Optimized),
        (2, AnaState::Inaccessible),
    ] {
        cores.rig.target_control(TargetControl::Ana(0, state));
        for n in 0..8 {
            cores.submit_other(&read(n, slot * 8 + n));
        }
        assert!(cores.run(SECOND, |it| it.done.len() as u64 == 8 * (slot + 1)));
        assert!(cores.done.iter().all(|done| done.outcome == Outcome::Done));
    }
    assert_ne!(cores.other.borrow().hold_stats(0).moved_total, 0);
}

#[test]
fn a_path_that_core_0_refuses_does_not_keep_the_others_waiting() {
    let mut cores = Cores::new();
    cores.rig.world.nodes[HOST].addresses[1] = Address::Refused;
    cores.ready();
    assert_eq!(
        cores.other.borrow().path_state(0, PathIndex(1)),
        PathState::Failed
    );
    assert!(failures(&cores.events).is_empty(), "core 0 said it already");
}

#[test]
fn t30_a_change_of_ana_state_reaches_every_core() {
    let mut cores = Cores::new();
    cores.ready();
    cores
        .rig
        .target_control(TargetControl::Ana(0, AnaState::Inaccessible));
    cores.run(100 * MS, |_| false);
    for slot in 0..8 {
        cores.submit_other(&read(slot, slot));
        cores.rig.submit(&read(slot, slot)).unwrap();
    }
    assert!(cores.run(SECOND, |it| it.done.len() == 8 && it.rig.done.len() == 8));
    for done in cores.done.iter().chain(&cores.rig.done) {
        assert_eq!((done.outcome, done.path), (Outcome::Done, PathIndex(1)));
    }
    cores
        .rig
        .target_control(TargetControl::Ana(0, AnaState::Optimized));
    cores.run(100 * MS, |_| false);
    for slot in 0..8 {
        cores.submit_other(&read(slot, slot));
    }
    assert!(cores.run(SECOND, |it| it.done.len() == 16));
    assert!(cores.done[8..].iter().any(|done| done.path == PathIndex(0)));
}

#[test]
fn a11_a_resize_forgets_what_was_learnt() {
    let mut host = host_config(2);
    host.volumes[0].policy = Policy::WEIGHTED_LATENCY;
    let mut rig = Rig::new(host, target_config(2));
    let info = rig.ready();
    let mut load = Load::new(400, 8, BLOCK);
    rig.load(&mut load, SECOND);
    let samples = |rig: &Rig| {
        let host = rig.host.borrow();
        let of = |path| {
            host.path_report(0, PathIndex(path), 0).groups[policy::Group::Read as usize].samples
        };
        of(0) + of(1)
    };
    assert_ne!(samples(&rig), 0);
    rig.target_control(TargetControl::Resize(1, BLOCKS * 2));
    rig.world.pass(100 * MS);
    rig.poll();
    assert_eq!(samples(&rig), 0);
    assert_eq!(rig.failures().len(), 0);
    let beyond = read(info.bytes >> 12, 0);
    assert_eq!(rig.submit(&beyond), Ok(()), "it has grown");
}

/// Under `per-numa` a core publishes what it measured, and weighs by what its node did: here by
/// its own and by what a neighbour says, who found path 0 three times as slow.
#[test]
fn a13_a_node_weighs_its_paths_together() {
    let mut host = host_config(2);
    let (per_numa, buckets) = (true, false);
    host.volumes[0].policy = Policy::WeightedLatency(Aggregate { per_numa, buckets });
    host.volumes[0].knobs.weight_timeout_ns = 0;
    let mut rig = Rig::new(host, target_config(2));
    rig.ready();
    let mut load = Load::new(50, 8, BLOCK);
    rig.load(&mut load, SECOND);
    let weights = |rig: &Rig| {
        let host = rig.host.borrow();
        [0, 1].map(|path| {
            let stats =
                host.path_report(0, PathIndex(path), 0).groups[policy::Group::Read as usize];
            stats.weight
        })
    };
    assert_eq!(weights(&rig), [0, 0], "it does not weigh by itself");
    let mut board = Board::default();
    let exchange = |board: &mut Board| rig.host.borrow_mut().0.exchange(board, |_| ());
    exchange(&mut board);
    let own = std::mem::take(&mut board.means);
    let places: Vec<_> = own.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, [0, 1]);
    assert!(own[0].1[0] > 0, "reads of the first path");
    board.neighbour = Some([3_000_000, 1_000_000]);
    exchange(&mut board);
    assert!(board.means.is_empty(), "no news");
    // 10^9/3·10^6 = 333, 10^9/10^6 = 1000; 333·64/1333 = 15, 1000·64/1333 = 48.
    assert_eq!(weights(&rig), [15, 48]);
}

#[test]
fn stop_lets_io_drain_and_shuts_down_in_order() {
    let mut target = target_config(2);
    target.shapes[0].delay_ns = 50 * MS;
    let mut rig = Rig::new(host_config(2), target);
    rig.ready();
    for slot in 0..8 {
        rig.submit(&write(slot, slot)).unwrap();
    }
    rig.world.pass(MS);
    rig.control(HostControl::Stop);
    assert_eq!(
        rig.submit(&read(0, 0)),
        Err(engine::host::SubmitError::NotReady)
    );
    let start_ns = rig.world.now_ns;
    rig.world
        .run(10 * SECOND, |world| world.nodes[HOST].stopped);
    assert!(rig.world.nodes[HOST].stopped);
    assert!(
        rig.world.now_ns - start_ns < SECOND,
        "no time-out was needed"
    );
    rig.poll();
    assert_eq!(rig.done.len(), 8);
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
    assert_eq!(rig.failures().len(), 0, "{:?}", rig.failures());
    assert_eq!(rig.world.connections(HOST), 0);
}

#[test]
fn stop_does_not_wait_for_ever() {
    let mut target = target_config(1);
    target.shapes[0].stall_until_ns = u64::MAX / 2;
    let mut rig = Rig::new(host_config(1), target);
    rig.ready();
    rig.submit(&read(0, 0)).unwrap();
    rig.world.pass(MS);
    rig.control(HostControl::Stop);
    let start_ns = rig.world.now_ns;
    assert!(
        rig.world
            .run(60 * SECOND, |world| world.nodes[HOST].stopped)
    );
    assert!(rig.world.now_ns - start_ns <= 4 * SECOND);
    rig.poll();
    assert_eq!(rig.done[0].outcome, Outcome::Stopped);
}

#[test]
fn stop_before_and_while_connecting() {
    for after_ns in [0, 1, 15_000, 35_000, 100_000, 200_000, 300_000, 500_000] {
        let mut rig = Rig::new(host_config(2), target_config(1));
        rig.world.nodes[HOST].addresses.push(Address::Silence);
        rig.world.pass(after_ns);
        rig.control(HostControl::Stop);
        let stopped = rig
            .world
            .run(10 * SECOND, |world| world.nodes[HOST].stopped);
        assert!(stopped, "stopped after {after_ns} ns");
        assert_eq!(rig.world.connections(HOST), 0);
        rig.poll();
        assert_eq!(rig.failures().len(), 0);
    }
}

fn device_rig(paths: u8) -> (Rig, Disk) {
    let mut host = host_config(u32::from(paths));
    for path in &mut host.volumes[0].paths {
        let bytes = BLOCKS * u64::from(BLOCK);
        path.kind = PathKind::Device {
            device: LocalDevice(0),
            bytes,
            block_shift: 9,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        };
        path.uri = "mem:16MiB".into();
    }
    let mut rig = Rig::new(host, target_config(1));
    let disk = Disk::new((BLOCKS * u64::from(BLOCK)) as usize);
    rig.world.nodes[HOST].disks = vec![disk.clone()];
    (rig, disk)
}

#[test]
fn local_devices_are_paths_as_well() {
    let (mut rig, _) = device_rig(2);
    rig.world.nodes[HOST].disks[0].delay_ns = 10_000;
    let info = rig.ready();
    assert_eq!((info.block_shift, info.transfer_max), (9, 32 << 20));
    let mut load = Load::new(1000, 16, BLOCK);
    rig.load(&mut load, SECOND);
    assert_eq!((load.errors(), load.verified), (0, 500));
    assert_eq!(rig.shares(2), [500, 500]);
    rig.control(HostControl::Stop);
    assert!(rig.world.run(SECOND, |world| world.nodes[HOST].stopped));
}

#[test]
fn what_a_device_says_reaches_the_submitter() {
    let (mut rig, _) = device_rig(1);
    rig.ready();
    for (error, want) in [
        (DeviceError::Os(5), Outcome::MediaError),
        (DeviceError::Full, Outcome::NoSpace),
        (DeviceError::ReadOnly, Outcome::ReadOnly),
    ] {
        rig.world.nodes[HOST].disks[0].error = Some(error);
        assert_eq!(rig.one(&write(0, 0), SECOND).outcome, want);
    }
    assert_eq!(rig.host.borrow().counters(0, PathIndex(0)).errors, 3);
    assert_eq!(rig.host.borrow().in_flight(0, PathIndex(0)), 0);
}

#[test]
fn a_device_that_does_not_answer_is_given_up_but_keeps_its_memory() {
    let (mut rig, _) = device_rig(1);
    rig.ready();
    rig.world.nodes[HOST].disks[0].delay_ns = 25 * SECOND;
    rig.submit(&read(0, 0)).unwrap();
    let line = rig.failure(11 * SECOND);
    assert!(
        line.contains("mem:16MiB: no answer to an I/O within 10000 ms"),
        "{line}"
    );
    assert_eq!(
        rig.done.len(),
        0,
        "the device may still write to the memory"
    );
    let refused = rig.one(&read(1, 1), 0);
    assert_eq!(refused.outcome, Outcome::PathError);
    assert!(rig.run(20 * SECOND, |_, done| done.len() == 1));
    assert_eq!(rig.done[0].outcome, Outcome::Done);
}

/// A loss of the engine before fails the first flush of one core whose client hears of it, and no
/// core keeps it after.
#[test]
fn t13_loss_of_the_engine_before_is_told_once() {
    let mut it = Fleet::of(3, 1, target(1), |host| {
        host.volumes[0].recovery.unreported_loss = true;
    });
    let flush = io(IoOp::Flush, 0, 0, 9);
    let answer = |it: &mut Fleet, core: usize, heard| {
        assert_eq!(it.one(core, &flush, SECOND), Some(Outcome::PathError));
        it.hosts[core].borrow_mut().flush_failed_for(0, heard);
        it.run(MS, |_| false);
    };
    // The client had gone before the first answer, and comes back on another core.
    answer(&mut it, 1, false);
    answer(&mut it, 2, true);
    for core in [0, 1, 2] {
        assert_eq!(it.one(core, &flush, SECOND), Some(Outcome::Done), "{core}");
    }
    for (core, events) in it.events.iter().enumerate() {
        let losses = events.iter().filter_map(|it| match it {
            HostEvent::Loss(0, unreported) => Some(*unreported),
            _ => None,
        });
        let again = [true, false].repeat(if core == 1 { 2 } else { 1 });
        assert_eq!(losses.collect::<Vec<_>>(), again, "{core}");
    }
}
