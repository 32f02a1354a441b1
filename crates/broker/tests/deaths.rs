//! A thousand processes that are killed at random points while others work: nothing leaks, nobody
//! notices. This program is the broker, the honest clients and, started again by itself, each of
//! those that die; so it has a `main` of its own.
//!
//! Alone in its process: it counts descriptors, mappings, threads and the heap.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Stage, finish, pattern, read, until, write};
use queue::protocol::{Operation, Request};
use queue::{Kind, Options, Queue};
use rustix::fs::FallocateFlags;
use std::fs::DirEntry;
use std::io::Write;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sys::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const CLIENTS: u64 = 1000;
/// An honest client, one I/O at a time, never waits for as long as it takes so many to die.
const WINDOW: u64 = 100;
const SIGKILL: i32 = 9;

/// Bytes that the heap may hold more when all have died: 32 of each. Some 16 KiB more are held
/// however many died: what grows to its size once.
const HEAP: i64 = 32 << 10;
/// Clients that die before anything is counted.
const FIRST: u64 = 200;

/// Descriptors of this process, its mappings of queues' memory, and its threads: those that the
/// kernel makes for io_uring (and ends when they were idle for some seconds) are not ours.
fn held() -> [usize; 3] {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let is_own = |task: std::io::Result<DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.is_ok_and(|name| !name.starts_with("iou-"))
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let threads = tasks.filter_map(|task| is_own(task).then_some(())).count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    [descriptors, maps.matches("memfd:braid-").count(), threads]
}

/// Waits until those that have died hold nothing, and the same is held twice in a row; so much,
/// and so many bytes of the heap.
fn settled(stage: &Stage) -> ([usize; 3], i64) {
    until("only the two honest queues are left", || {
        stage.queues().matches("\"number\"").count() == 2
    });
    until("the workers of files have ended", || {
        let mut threads = std::fs::read_dir("/proc/self/task").unwrap();
        !threads.any(|thread| {
            let name = std::fs::read_to_string(thread.unwrap().path().join("comm"));
            name.is_ok_and(|name| name.trim() == "braid-file")
        })
    });
    let (mut last, mut same) = (([0; 3], 0), 0);
    until("nothing comes and goes", || {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let now = (held(), CountingAllocator::live_bytes());
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same == 10
    });
    last
}

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) % below
    }
}

fn die() -> ! {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
    unreachable!("killed")
}

/// Dies within some instruction: every third client, of its own hand.
fn die_anywhere(turns: u64) {
    std::thread::spawn(move || {
        for _ in 0..turns {
            std::hint::spin_loop();
        }
        die();
    });
}

/// A client's life: it ends by SIGKILL in any case, at a step that the seed decides, or anywhere
/// before.
fn live(path: &Path, seed: u64) -> ! {
    let mut random = random(seed);
    if seed.is_multiple_of(3) {
        die_anywhere(random(200_000));
    }
    let mut fate = random(9);
    if fate == 0 {
        let _connected = UnixStream::connect(path).unwrap();
        die();
    }
    let kind = [Kind::UserPoll, Kind::UserIrq][random(2) as usize];
    if fate == 1 {
        // Within a request, or before its answer: descriptors are on their way.
        let connected = UnixStream::connect(path).unwrap();
        let request = Request::new(Operation::Open, kind.number(), 64, 1 << 20, 0).emit();
        let bytes = 1 + random(32) as usize;
        (&connected).write_all(&request[..bytes]).unwrap();
        die();
    }
    let options = Options {
        kind,
        entries: 64,
        ..Options::default()
    };
    // Those of the dead come back in their own time.
    let mut opened = None;
    until("a queue is free", || {
        opened = Queue::open(path, &options).ok();
        opened.is_some()
    });
    let mut queue = opened.unwrap();
    let own = fate
        .is_multiple_of(2)
        .then(|| queue.register(1 << 16).unwrap());
    while fate > 3 {
        fate -= 1;
        prepare(&mut queue, &mut random);
        queue.submit().unwrap();
        let _ = queue.reap(random(40) as usize, drop);
    }
    if let Some(own) = own {
        // Of memory that is being let go.
        let _ = queue.read(3, 0, 4, &[own.piece(0, 16_384)], 0);
        let _ = queue.submit();
        let _ = queue.unregister(&own);
    }
    // With commands in flight, and with commands in the ring that nobody was told of.
    prepare(&mut queue, &mut random);
    if fate == 2 {
        queue.submit().unwrap();
    }
    // With pages taken away that were allocated for it.
    if random(2) == 0 {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let data = queue.data().unwrap();
        let len = data.len() as u64;
        rustix::fs::fallocate(data.file(), flags, 0, len).unwrap();
    }
    die();
}

fn prepare(queue: &mut Queue, random: &mut impl FnMut(u64) -> u64) {
    for _ in 0..random(40) {
        let nsid = 1 + random(3) as u32;
        let blocks = 1 + random(4) as u32;
        let piece = queue.data().unwrap().piece(4096, blocks * 4096);
        let slba = random(100);
        let _ = match random(3) {
            0 => queue.write((nsid, false), slba, blocks, &[piece], 0),
            1 => queue.flush(Some(nsid), 0),
            _ => queue.read(nsid, slba, blocks, &[piece], 0),
        };
    }
}

/// Starts clients, one after the other, until there were enough.
fn kill_clients(path: &Path, next_seed: &AtomicU64, end: u64, dead: &AtomicU64) {
    let program = std::env::current_exe().unwrap();
    loop {
        let seed = next_seed.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        let mut client = Command::new(&program);
        client.arg("client").arg(path).arg(seed.to_string());
        let output = client.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let signal = output.status.signal();
        assert_eq!(signal, Some(SIGKILL), "client {seed}: {said}");
        dead.fetch_add(1, Ordering::Release);
    }
}

/// Writes, and reads what it wrote, while others die; how often, and how many have died within one
/// write and read at most.
fn work(n: u64, queue: &mut Queue, dead: &AtomicU64, over: &AtomicBool) -> (u64, u64) {
    let (mut round, mut seen, mut most) = (0_u64, dead.load(Ordering::Acquire), 0);
    while !over.load(Ordering::Acquire) {
        let nsid = [1, 3][round as usize % 2];
        let slba = 200 + n * 20 + round % 20;
        let data = pattern(round, 4096);
        write(queue, nsid, slba, 0, &data).unwrap();
        assert!(read(queue, nsid, slba, 1).unwrap() == data);
        round += 1;
        let dead = dead.load(Ordering::Acquire);
        assert!(dead - seen <= WINDOW, "{} died in one round", dead - seen);
        most = most.max(dead - seen);
        seen = dead;
    }
    (round, most)
}

/// Clients die, four at a time, while the honest ones work.
fn die_beside(stage: &Stage, honest: &mut [Queue; 2], seeds: Range<u64>) {
    let (path, end) = (stage.path(), seeds.end);
    let (next_seed, dead) = (AtomicU64::new(seeds.start), AtomicU64::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let starting = || scope.spawn(|| kill_clients(&path, &next_seed, end, &dead));
        let starting: Vec<_> = std::iter::repeat_with(starting).take(4).collect();
        for (n, queue) in (0..).zip(honest) {
            let (dead, over) = (&dead, &over);
            scope.spawn(move || {
                let (rounds, most) = work(n, queue, dead, over);
                println!(
                    "honest client {n}: {rounds} verified writes and reads; at most {most} died \
                     within one"
                );
            });
        }
        let ended: Vec<_> = starting.into_iter().map(|it| it.join()).collect();
        over.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok));
    });
}

fn a_thousand_clients_die_and_nothing_leaks() {
    let stage = Stage::new(|config| (config.user_poll, config.user_irq) = (6, 6));
    let mut honest = [stage.poll(), stage.open(Kind::UserIrq, 16).unwrap()];
    // Files have memory for copies from their first odd I/O on: it stays.
    for at in [0, 4] {
        write(&mut honest[0], 3, 200, at, &[1; 4096]).unwrap();
    }
    let begun = settled(&stage);
    die_beside(&stage, &mut honest, CLIENTS..CLIENTS + FIRST);
    let (before, heap_before) = settled(&stage);
    assert_eq!(before, begun.0, "descriptors, mappings, threads");
    die_beside(&stage, &mut honest, 0..CLIENTS);
    let (after, heap) = settled(&stage);
    assert_eq!(after, before, "descriptors, mappings, threads");
    println!(
        "the heap, bytes: {} at first, {heap_before} when {FIRST} had died, {heap} in the end",
        begun.1
    );
    assert!(
        heap <= heap_before + HEAP,
        "not freed: {}",
        heap - heap_before
    );
    for queue in &mut honest {
        queue.flush(None, 0).unwrap();
        assert!(finish(queue).status.is_success());
    }
    let all: Vec<_> = (0..10)
        .map(|n| stage.open([Kind::UserPoll, Kind::UserIrq][n / 5], 64))
        .collect();
    assert!(all.iter().all(Result::is_ok), "every place is free again");
}

fn main() {
    let words: Vec<_> = std::env::args().collect();
    if let [_, verb, path, seed] = &words[..]
        && verb == "client"
    {
        live(Path::new(path), seed.parse().unwrap());
    }
    if words.iter().any(|word| word == "--list") {
        println!("a_thousand_clients_die_and_nothing_leaks: test");
        return;
    }
    let begun = std::time::Instant::now();
    a_thousand_clients_die_and_nothing_leaks();
    println!(
        "test a_thousand_clients_die_and_nothing_leaks ... ok ({} processes in {:.1} s)",
        CLIENTS,
        begun.elapsed().as_secs_f64()
    );
}
