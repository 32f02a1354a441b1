//! A worker over a device in memory, in virtual time.
use super::*;
use crate::job::Verify;
use crate::pattern::{Region, Shape};
use crate::sizes::Sizes;
use crate::verify::Stamps;
use std::collections::VecDeque;

const STEP_NS: u64 = 1_000;

/// A disk that does one I/O per step, in the order they came.
struct Disk {
    bytes: Vec<u8>,
    queue: VecDeque<Io>,
    room: usize,
    refuse: Option<SubmitError>,
    served: u64,
    /// Writes by number that are acknowledged and not done.
    lose: Vec<u64>,
    /// I/Os by number that fail.
    fail: Vec<u64>,
    /// Largest number of overlapping I/Os seen of which one is a write.
    conflicts: u64,
}

impl Disk {
    fn new(bytes: usize) -> Self {
        Self {
            bytes: vec![0; bytes],
            queue: VecDeque::new(),
            room: usize::MAX,
            refuse: None,
            served: 0,
            lose: vec![],
            fail: vec![],
            conflicts: 0,
        }
    }

    fn serve(&mut self, arena: &mut Vec<u8>) -> Option<IoDone> {
        let io = self.queue.pop_front()?;
        self.served += 1;
        let fails = self.fail.contains(&self.served);
        let disk = &mut self.bytes[io.offset as usize..][..io.length as usize];
        match io.op {
            _ if fails => {}
            IoOp::Read => arena.bytes_mut(io.span).copy_from_slice(disk),
            _ if self.lose.contains(&self.served) => {}
            _ => disk.copy_from_slice(arena.bytes(io.span)),
        }
        let outcome = if fails {
            Outcome::PathError
        } else {
            Outcome::Done
        };
        let path = policy::PathIndex((self.served % 2) as u8);
        Some(IoDone {
            cookie: io.cookie,
            outcome,
            path,
            latency_ns: STEP_NS,
        })
    }
}

impl Device for Disk {
    fn submit(&mut self, io: &Io, _now_ns: u64) -> Result<(), SubmitError> {
        if let Some(error) = self.refuse {
            return Err(error);
        }
        if self.queue.len() >= self.room {
            return Err(SubmitError::Full);
        }
        let end = |io: &Io| io.offset + u64::from(io.length);
        let write = |io: &Io| io.op != IoOp::Read;
        let overlap = |other: &&Io| io.offset < end(other) && other.offset < end(io);
        let conflicts = self
            .queue
            .iter()
            .filter(overlap)
            .filter(|o| write(o) || write(io));
        self.conflicts += conflicts.count() as u64;
        self.queue.push_back(*io);
        Ok(())
    }
    fn waited_full(&self, _volume: u16, path: u8) -> u64 {
        self.served * u64::from(path)
    }
    fn hedges(&self, _volume: u16) -> HedgeStats {
        HedgeStats {
            sent: self.served,
            ..HedgeStats::default()
        }
    }
}

fn task(random: bool, read_percent: u8, bs: &str) -> Task {
    let shape = Shape {
        random,
        read_percent,
        sizes: Sizes::parse_bssplit(bs).unwrap(),
    };
    let rules = JobRules {
        shape,
        iodepth: 4,
        once: true,
        rate_iops: 0,
        rate_bytes: 0,
        verify: Some(Verify {
            stamps: Stamps { run: 9 },
            block: 4096,
        }),
    };
    let region = |n: u64| Region {
        begin: n << 16,
        end: (n + 1) << 16,
    };
    Task {
        volume: 0,
        paths: vec!["mem:a".into(), "mem:b".into()].into(),
        rules,
        jobs: (0..2)
            .map(|n| JobPlan {
                region: region(n),
                seed: n,
            })
            .collect(),
        warmup_ns: 0,
        runtime_ns: None,
    }
}

/// Runs a task to its end, at most `steps` steps of time.
fn run(task: Task, disk: &mut Disk, steps: u64) -> Finished {
    let largest = buffer_bytes(task.rules.shape.sizes.largest()) as usize;
    let mut arena = vec![0; task.jobs.len() * task.rules.iodepth as usize * largest];
    let mut worker = Worker::new(task, &mut arena, 0);
    for step in 0..steps {
        if let Some(done) = disk.serve(&mut arena) {
            worker.handle_done(&done, &mut arena);
        }
        worker.turn(disk, &mut arena, step * STEP_NS);
        if worker.is_over() {
            assert!(disk.queue.is_empty(), "over means nothing is outstanding");
            return worker.finish();
        }
        assert!(
            worker.outstanding > 0 || worker.poll_timeout().is_some(),
            "nothing will call again in {:?}",
            worker.phase
        );
    }
    panic!("not over after {steps} steps: {:?}", worker.phase);
}

#[test]
fn a_sequential_write_is_read_back_whole() {
    let mut disk = Disk::new(1 << 17);
    let finished = run(task(false, 0, "12k"), &mut disk, 1000);
    assert_eq!(finished.stats.errors, 0, "{:?}", finished.stats.failures);
    assert_eq!(finished.stats.verified_bytes, 1 << 17);
    assert_eq!(finished.stats.ops[1].bytes, 1 << 17);
    assert_eq!(finished.stats.ops[0].ios, 0, "reading back is not measured");
    // 64 KiB in 12 KiB steps are 6 writes per job; one is served per step.
    assert_eq!(finished.stats.elapsed_ns, 12 * STEP_NS);
    assert_eq!(disk.conflicts, 0);
}

#[test]
fn random_mixes_never_race_and_find_the_last_write() {
    let mut disk = Disk::new(1 << 17);
    let mut mixed = task(true, 50, "4k/60:8k/40");
    mixed.rules.once = false;
    mixed.runtime_ns = Some(5_000 * STEP_NS);
    let finished = run(mixed, &mut disk, 10_000);
    assert_eq!(finished.stats.errors, 0, "{:?}", finished.stats.failures);
    assert!(finished.stats.verified_bytes > 5_000 * 1024);
    assert_eq!(disk.conflicts, 0);
    assert_eq!(finished.stats.elapsed_ns, 5_000 * STEP_NS);
    assert_eq!(finished.stats.shares(), [0.5, 0.5]);
}

#[test]
fn a_lost_write_is_found() {
    let mut disk = Disk::new(1 << 17);
    disk.lose = vec![3];
    let finished = run(task(false, 0, "4k"), &mut disk, 1000);
    assert_eq!(finished.stats.errors, 1);
    assert_eq!(finished.stats.verified_bytes, (1 << 17) - 4096);
    assert!(
        finished.stats.failures[0].contains("no stamp"),
        "{:?}",
        finished.stats.failures
    );
}

#[test]
fn a_write_lost_over_an_older_one_is_found() {
    let mut disk = Disk::new(1 << 17);
    run(task(false, 0, "4k"), &mut disk, 1000);
    disk.lose = vec![disk.served + 3];
    let mut second = task(false, 0, "4k");
    second.rules.verify = Some(Verify {
        stamps: Stamps { run: 10 },
        block: 4096,
    });
    let finished = run(second, &mut disk, 1000);
    assert_eq!(finished.stats.errors, 1);
    assert!(
        finished.stats.failures[0].contains("earlier run"),
        "{:?}",
        finished.stats.failures
    );
}

#[test]
fn what_an_earlier_run_wrote_can_be_checked() {
    let mut disk = Disk::new(1 << 17);
    run(task(false, 0, "4k"), &mut disk, 1000);
    disk.bytes[5 * 4096 + 100] ^= 1;
    let finished = run(task(false, 100, "16k"), &mut disk, 1000);
    assert_eq!(finished.stats.errors, 1);
    assert_eq!(finished.stats.verified_bytes, (1 << 17) - 4096);
    let text = &finished.stats.failures[0];
    assert!(
        text.starts_with("wrong data at byte 20480 over mem:"),
        "{text}"
    );
}

#[test]
fn t43_a_failed_write_is_counted_and_not_read_back() {
    let mut disk = Disk::new(1 << 17);
    disk.fail = vec![2];
    let finished = run(task(false, 0, "4k"), &mut disk, 1000);
    assert_eq!(
        (finished.stats.errors, finished.stats.paths[0].errors),
        (1, 1)
    );
    assert_eq!(finished.stats.verified_bytes, (1 << 17) - 4096);
    assert_eq!(
        finished.stats.ops[1].latency.len(),
        31,
        "a failed I/O has no latency"
    );
    assert!(finished.stats.failures[0].contains("the path failed"));
}

#[test]
fn t6_a_full_engine_is_no_failure() {
    let mut disk = Disk::new(1 << 17);
    disk.room = 3;
    let finished = run(task(false, 0, "4k"), &mut disk, 1000);
    assert_eq!(
        (finished.stats.errors, finished.stats.verified_bytes),
        (0, 1 << 17)
    );
}

#[test]
fn a_lost_volume_ends_the_task() {
    let mut disk = Disk::new(1 << 17);
    disk.refuse = Some(SubmitError::NotReady);
    let finished = run(task(false, 0, "4k"), &mut disk, 10);
    assert_eq!(finished.failed.as_deref(), Some("the volume is not ready"));
}

#[test]
fn warming_up_is_not_measured_and_the_rate_holds() {
    let mut disk = Disk::new(1 << 17);
    let mut paced = task(true, 100, "4k");
    paced.rules.once = false;
    paced.rules.verify = None;
    paced.rules.rate_iops = 100_000; // one in 10 steps for each of two jobs
    paced.warmup_ns = 1_000 * STEP_NS;
    paced.runtime_ns = Some(2_000 * STEP_NS);
    let finished = run(paced, &mut disk, 10_000);
    assert_eq!(finished.stats.elapsed_ns, 2_000 * STEP_NS);
    assert!(
        (398..=402).contains(&finished.stats.ops[0].ios),
        "{}",
        finished.stats.ops[0].ios
    );
    assert_eq!(
        finished.stats.paths[1].waited_full,
        finished.stats.ops[0].ios
    );
    assert_eq!(finished.stats.hedges.sent, finished.stats.ops[0].ios);
}

#[test]
fn the_next_due_time_is_told() {
    let mut disk = Disk::new(1 << 17);
    let mut paced = task(true, 100, "4k");
    (paced.rules.once, paced.rules.verify) = (false, None);
    paced.rules.rate_iops = 1_000;
    paced.runtime_ns = Some(1_500_000);
    let mut arena = vec![0; 8 * 4096];
    let mut worker = Worker::new(paced, &mut arena, 0);
    worker.turn(&mut disk, &mut arena, 0);
    assert_eq!(disk.queue.len(), 2, "one of each job");
    assert_eq!(worker.poll_timeout(), Some(1_000_000));
    worker.turn(&mut disk, &mut arena, 1_000_000);
    assert_eq!(
        worker.poll_timeout(),
        Some(1_500_000),
        "the end comes before the next one"
    );
}

#[test]
fn an_interrupted_task_reads_nothing_back() {
    let mut disk = Disk::new(1 << 17);
    let mut arena = vec![0; 8 * 4096];
    let mut worker = Worker::new(task(false, 0, "4k"), &mut arena, 0);
    worker.turn(&mut disk, &mut arena, 0);
    worker.interrupt(&disk, 5_000);
    while let Some(done) = disk.serve(&mut arena) {
        worker.handle_done(&done, &mut arena);
    }
    worker.turn(&mut disk, &mut arena, 6_000);
    assert!(worker.is_over());
    let finished = worker.finish();
    assert!(finished.interrupted);
    assert_eq!((disk.served, finished.stats.elapsed_ns), (8, 5_000));
}

#[test]
fn unstamped_writes_are_not_zeroes() {
    let mut disk = Disk::new(1 << 17);
    let mut plain = task(false, 0, "4k");
    plain.rules.verify = None;
    run(plain, &mut disk, 1000);
    assert!(
        disk.bytes
            .chunks(512)
            .all(|sector| sector.iter().any(|&byte| byte != 0))
    );
}

#[test]
fn reading_back_begins_in_the_turn_in_which_writing_ends() {
    let mut disk = Disk::new(1 << 17);
    let mut arena = vec![0; 8 << 16];
    let mut worker = Worker::new(task(false, 0, "64k"), &mut arena, 0);
    worker.turn(&mut disk, &mut arena, 0);
    while let Some(done) = disk.serve(&mut arena) {
        worker.handle_done(&done, &mut arena);
    }
    // All was issued, which only asking for more shows.
    worker.turn(&mut disk, &mut arena, 1_000);
    assert_eq!(worker.phase, Phase::ReadBack);
    assert_eq!(disk.queue.len(), 2, "the block of each job");
}

#[test]
fn every_phase_without_outstanding_io_says_when_to_call() {
    // The last write ends while the rest of the jobs' work is nothing: measuring, draining and
    // reading back follow each other in one turn.
    for text in ["4k", "12k", "64k"] {
        for warmup_ns in [0, 3 * STEP_NS] {
            let mut disk = Disk::new(1 << 17);
            let mut once = task(false, 0, text);
            once.warmup_ns = warmup_ns;
            let finished = run(once, &mut disk, 1000);
            assert_eq!(finished.stats.verified_bytes, 1 << 17);
        }
    }
}

#[test]
fn where_nothing_can_serve_the_load_pauses_and_gives_up() {
    let mut disk = Disk::new(1 << 17);
    disk.fail = (1..100_000).collect();
    let mut arena = vec![0; 8 * 4096];
    let mut endless = task(true, 100, "4k");
    (endless.rules.once, endless.rules.verify) = (false, None);
    endless.runtime_ns = Some(60_000_000_000);
    let mut worker = Worker::new(endless, &mut arena, 0);
    let (mut now_ns, mut turns) = (0, 0);
    while !worker.is_over() {
        worker.turn(&mut disk, &mut arena, now_ns);
        while let Some(done) = disk.serve(&mut arena) {
            worker.handle_done(&done, &mut arena);
        }
        worker.turn(&mut disk, &mut arena, now_ns);
        now_ns = worker.poll_timeout().unwrap_or(now_ns);
        turns += 1;
        assert!(turns < 1000, "spins");
    }
    assert!((1_000_000_000..1_200_000_000).contains(&now_ns), "{now_ns}");
    let finished = worker.finish();
    // 8 buffers: 7 pauses up to 64 ms, then 100 ms each.
    assert!(
        (100..=200).contains(&finished.stats.errors),
        "{}",
        finished.stats.errors
    );
    assert_eq!(finished.stats.errors, disk.served);
    let why = finished.failed.unwrap();
    assert!(
        why.starts_with("no path may serve: every I/O has failed for 1"),
        "{why}"
    );
    assert!(why.contains("mem:a, mem:b"), "{why}");
}

#[test]
fn a_success_in_between_is_no_reason_to_give_up() {
    let mut disk = Disk::new(1 << 17);
    disk.fail = (1..100_000).filter(|n| n % 20 != 0).collect();
    let mut mixed = task(true, 100, "4k");
    (mixed.rules.once, mixed.rules.verify) = (false, None);
    mixed.runtime_ns = Some(3_000_000_000);
    let finished = run(mixed, &mut disk, 4_000_000);
    assert_eq!(finished.failed, None);
    assert_eq!(finished.stats.elapsed_ns, 3_000_000_000);
}
