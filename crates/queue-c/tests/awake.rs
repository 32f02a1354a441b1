//! While client and broker are awake, neither makes a system call: the kernel ends the process that
//! makes one. This program is the test and, started again by itself, that process, in which both
//! sides are threads; so it has a `main` of its own.
//!
//! The whole process is sealed (seccomp, for all of its threads): the client's thread, the one that
//! serves its queue, and those of the socket, which wait in the kernel meanwhile. Answers of the
//! vDSO (the clock) are no system calls.
//!
//! In this crate because sealing takes `unsafe`.
#![allow(clippy::unwrap_used, reason = "tests")]

use broker::local::LocalNamespace;
use broker::{Config, Grant, Rights, Trust};
use cores::local::LocalServer;
use queue::{Kind, Options, Queue};
use runtime::{Device, MemoryDevice};
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAME: &str = "while_both_sides_are_awake_the_kernel_sees_no_system_call";
/// Writes and reads that are done, and compared, without a system call.
const IOS: u64 = 10_000;
/// Outstanding at once.
const BATCH: u64 = 16;
const BLOCK: usize = 4096;
const BLOCKS: u64 = 256;
/// How the process ends where there is no seccomp, and where data differs or nothing comes.
const CANNOT: i32 = 77;
const WRONG: i32 = 3;
const SIGSYS: i32 = 31;
const LONG: Duration = Duration::from_secs(60);
/// Clocks that are read without a system call.
const CLOCKS: [&str; 4] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
];

/// From now on any thread of this process that makes a system call ends it by SIGSYS, but for the
/// one that ends it anyway.
fn seal() -> Result<(), std::io::Error> {
    let op = |code: u32, k: u32, jt, jf| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let number_at = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    let mut program = [
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number_at, 0, 0),
        op(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            libc::SYS_exit_group as u32,
            0,
            1,
        ),
        op(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        op(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_KILL_PROCESS,
            0,
            0,
        ),
    ];
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: numbers only. The first leaves no core file behind.
    let allowed = unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    };
    if allowed != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the program lives until the call is over; the kernel copies it.
    let sealed = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    match sealed {
        0 => Ok(()),
        -1 => Err(std::io::Error::last_os_error()),
        thread => Err(std::io::Error::other(format!("thread {thread} can't be"))),
    }
}

/// Ends without a further system call.
fn end(code: i32) -> ! {
    // SAFETY: nothing of the process is used any more.
    unsafe { libc::_exit(code) }
}

/// A broker that never sleeps, over 1 MiB of memory.
fn broker(socket: &Path) -> LocalServer {
    let memory = Arc::new(MemoryDevice::new(BLOCKS * BLOCK as u64).unwrap());
    let everything = Grant {
        namespaces: None,
        depth_max: 4095,
        queues_max: 1,
        memory_max: u64::MAX,
    };
    let config = Config {
        listener: UnixListener::bind(socket).unwrap(),
        namespaces: Vec::new(),
        user_poll: 1,
        user_irq: 1,
        memory_max: 1 << 30,
        patience_ns: broker::limits::PATIENCE_NS,
        spin_ns: u64::MAX / 2,
        trust: Trust::Mediated,
        identity: None,
        rights: Rights {
            users: Vec::new(),
            others: Some(everything),
        },
    };
    let namespace = LocalNamespace {
        device: Device::Memory(memory),
        block_shift: 12,
        blocks: BLOCKS,
        read_only: false,
    };
    LocalServer::start(config, &[namespace], &[None], drop).unwrap()
}

/// Waits until all threads but this one and the one that spins have waited in the kernel for a
/// while: what led there is over. The watchdog has just looked, and does so again after a longer
/// while than all that follows takes.
fn until_quiet() {
    let own = std::process::id().to_string();
    let waits = || {
        let (mut waits, mut looked) = (Vec::new(), None);
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap().path();
            let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
            if task.ends_with(&own) || name.trim() == "queues-0" {
                continue;
            }
            let status = std::fs::read_to_string(task.join("status")).unwrap_or_default();
            let is_asleep = status.contains("State:\tS");
            let switches = status.lines().find(|it| it.starts_with("voluntary"));
            let switches = switches.map(str::to_owned);
            match name.trim() {
                "braid-watchdog" => looked = switches,
                _ => waits.push((task, is_asleep, switches)),
            }
        }
        (waits, looked)
    };
    let begun = Instant::now();
    let (mut last, mut same) = (waits(), 0);
    while same < 5 {
        assert!(begun.elapsed() < LONG, "threads of the broker go on and on");
        std::thread::sleep(Duration::from_millis(20));
        let now = waits();
        let is_quiet = now == last && now.0.iter().all(|(_, is_asleep, _)| *is_asleep);
        same = if is_quiet { same + 1 } else { 0 };
        last = now;
    }
    while waits().1 == last.1 {
        assert!(begun.elapsed() < LONG, "there is no watchdog");
        std::thread::yield_now();
    }
}

/// The bytes of a block in a round.
fn fill(block: &mut [u8], n: u64) {
    for (at, word) in (0..).zip(block.chunks_exact_mut(8)) {
        word.copy_from_slice(&(n << 16 | at).to_le_bytes());
    }
}

/// Submits and polls until all have ended; whether they ended well.
fn finish(queue: &mut Queue, begun: Instant) -> bool {
    let mut well = queue.submit().is_ok();
    for spin in 0_u64.. {
        match queue.poll() {
            Ok(Some(done)) => well &= done.status.is_success(),
            Ok(None) if queue.in_flight() == 0 => break,
            Ok(None) if spin % 4096 == 4095 && begun.elapsed() > LONG => return false,
            Ok(None) => std::hint::spin_loop(),
            Err(_) => return false,
        }
    }
    well
}

/// So many writes and reads, compared; `half_way`: once, in the middle. Allocates nothing.
fn work(queue: &mut Queue, ios: u64, half_way: impl Fn()) -> bool {
    let (mut block, mut back) = ([0; BLOCK], [0; BLOCK]);
    let begun = Instant::now();
    let (mut done, mut round) = (0, 0_u64);
    while done < ios {
        round += 1;
        let first = round * BATCH % BLOCKS;
        for is_write in [true, false] {
            for n in 0..BATCH {
                let at = (n + if is_write { 0 } else { BATCH }) as usize * BLOCK;
                let Some(data) = queue.data() else {
                    return false;
                };
                fill(&mut block, round * BATCH + n);
                let piece = data.piece(at, BLOCK as u32);
                let prepared = match is_write {
                    true => {
                        data.write(at, &block);
                        queue.write((1, false), first + n, 1, &[piece], n)
                    }
                    false => queue.read(1, first + n, 1, &[piece], n),
                };
                if prepared.is_err() {
                    return false;
                }
            }
            if !finish(queue, begun) {
                return false;
            }
            done += BATCH;
        }
        for n in 0..BATCH {
            fill(&mut block, round * BATCH + n);
            let Some(data) = queue.data() else {
                return false;
            };
            data.read((n + BATCH) as usize * BLOCK, &mut back);
            if block != back {
                return false;
            }
        }
        if done >= ios / 2 && done - 2 * BATCH < ios / 2 {
            half_way();
        }
    }
    true
}

/// Runs the sealed part of the process.
fn sealed(socket: &Path, case: &str) -> ! {
    let kind = match case {
        "user_poll" | "a call" => Kind::UserPoll,
        _ => Kind::UserIrq,
    };
    let _broker = broker(socket);
    let options = Options {
        kind,
        entries: 64,
        ..Options::default()
    };
    let mut queue = Queue::open(socket, &options).unwrap();
    // Work that is done at the first time only.
    assert!(work(&mut queue, 64, || {}));
    until_quiet();
    if case == "an interrupt" {
        assert!(queue.arm());
    }
    if let Err(error) = seal() {
        println!("seccomp: {error}");
        end(CANNOT);
    }
    let well = work(&mut queue, IOS, || {
        if case == "a call" {
            std::thread::yield_now();
        }
    });
    end(if well { 0 } else { WRONG });
}

fn start(case: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args(["sealed", case]);
    command
        .arg(directory.path().join("q.sock"))
        .output()
        .unwrap()
}

fn while_both_sides_are_awake_the_kernel_sees_no_system_call() -> Result<(), String> {
    let clock = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let clock = std::fs::read_to_string(clock).unwrap_or_default();
    if !CLOCKS.contains(&clock.trim()) {
        return Err(format!("the clock {:?} takes a system call", clock.trim()));
    }
    for (case, is_ended) in [
        ("user_poll", false),
        ("user_irq", false),
        // Violations that would be found: one call of the client's, and one of the thread that
        // serves it.
        ("a call", true),
        ("an interrupt", true),
    ] {
        let output = start(case);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.code() == Some(CANNOT) {
            return Err(said.trim().to_owned());
        }
        let (code, signal) = match is_ended {
            true => (None, Some(SIGSYS)),
            false => (Some(0), None),
        };
        let ended = (output.status.code(), output.status.signal());
        assert_eq!(
            ended,
            (code, signal),
            "{case}: exit code and signal (31: a system call was made; `strace -f` shows which): \
             {said}{errors}"
        );
    }
    Ok(())
}

fn main() {
    let words: Vec<_> = std::env::args().collect();
    if let [_, verb, case, socket] = &words[..]
        && verb == "sealed"
    {
        sealed(Path::new(socket), case);
    }
    if words.iter().any(|word| word == "--list") {
        println!("{NAME}: test");
        return;
    }
    match while_both_sides_are_awake_the_kernel_sees_no_system_call() {
        Ok(()) => println!("test {NAME} ... ok ({IOS} writes and reads each)"),
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "SKIP {NAME}: {why}");
        }
    }
}
