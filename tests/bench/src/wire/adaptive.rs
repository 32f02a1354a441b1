//! Adaptive polling beside ends that never sleep, and ends that always do.
//!
//! # Contract
//! Both ends wait in one of three [`Waits`]; each round runs all three of a row in turn, each with
//! a target of its own, and ratios are those of a round. *Steady*: as much as goes at a depth.
//! *Processor time*: of both processes, idle and at a pace, from the scheduler's nanoseconds.
//! *Neighbour*: latency where a thread that never waits has the host's CPU as well.
use super::super::pingpong;
use crate::prelude::*;
use system::process::Group;
use system::program::Waits;

const MODES: [Waits; 3] = [Waits::Adaptive, Waits::Spinning, Waits::Sleeping];
/// Before a pace is measured, connections are made.
const SETTLE: Duration = Duration::from_millis(500);

const STEADY: [Column; 10] = [
    ("op", "op", 0),
    ("bs", "bs", 0),
    ("depth", "depth", 0),
    ("sleeping", "sleeping/s", 0),
    ("spinning", "spinning/s", 0),
    ("adaptive", "adaptive/s", 0),
    ("of_spinning", "of spinning", 3),
    ("of_spinning_range", "range", 2),
    ("of_sleeping", "of sleeping", 3),
    ("system_calls_per_io", "calls", 3),
];
const PROCESSOR: [Column; 6] = [
    ("load", "load", 0),
    ("sleeping", "sleeping ms/s", 2),
    ("spinning", "spinning ms/s", 2),
    ("adaptive", "adaptive ms/s", 2),
    ("of_sleeping", "of sleeping", 3),
    ("of_sleeping_range", "range", 2),
];
const NEIGHBOUR: [Column; 6] = [
    ("op", "op", 0),
    ("depth", "depth", 0),
    ("sleeping", "sleeping p99 µs", 1),
    ("adaptive", "adaptive p99 µs", 1),
    ("of_sleeping", "of sleeping", 3),
    ("of_sleeping_range", "range", 2),
];

/// Program and CPUs of one measurement.
struct Ends<'a> {
    braid: &'a Path,
    sides: &'a Sides,
}

/// Measures all tables.
pub fn run(setup: &Setup, sides: &Sides, depths: &[usize]) -> Result<()> {
    let braid = setup.braid()?;
    let ends = Ends {
        braid: &braid,
        sides,
    };
    let rounds = sides.timing.rounds;
    let rows = product(&product(&["read", "write"], &["4k", "128k"]), depths);
    let steady = interleaved(rounds, &rows, &STEADY, |&((op, bs), depth)| {
        let row = json!({"op": op, "bs": bs, "depth": depth});
        let load = format!("--rw=rand{op} --bs={bs} --iodepth={depth}");
        compared(&MODES, row, |waits| {
            let facts = ends.steady(waits, &load)?;
            Ok((number(&facts, "iops")?, facts))
        })
    })?;
    let rows = [0, 1_000, 10_000];
    let processor = interleaved(rounds, &rows, &PROCESSOR, |&pace| {
        let load = match pace {
            0 => "idle".to_owned(),
            _ => format!("{pace} IOPS"),
        };
        let row = json!({"load": load});
        compared(&MODES, row, |waits| {
            Ok((ends.processor_ms(waits, pace)?, Value::Null))
        })
    })?;
    let modes = [Waits::Adaptive, Waits::Sleeping];
    let rows = product(&["read", "write"], &[1]);
    let neighbour = interleaved(rounds, &rows, &NEIGHBOUR, |&(op, depth)| {
        let row = json!({"op": op, "depth": depth});
        let load = format!("--rw=rand{op} --bs=4k --iodepth={depth}");
        compared(&modes, row, |waits| {
            let facts = beside_busy_thread(sides.cpus[0], || ends.steady(waits, &load))?;
            Ok((number(&facts, "p99_us")?, facts))
        })
    })?;
    let title = format!("over loopback TCP, a core each side; medians of {rounds} rounds; I/Os");
    let parts = [
        ("steady", title, &STEADY[..], steady),
        (
            "processor",
            "processor time of host and target, at depth 1".into(),
            &PROCESSOR[..],
            processor,
        ),
        (
            "neighbour",
            "beside a busy thread on the host's CPU".into(),
            &NEIGHBOUR[..],
            neighbour,
        ),
    ];
    table::print(setup.output, &parts);
    Ok(())
}

/// A figure of each mode, and those of adaptive ends as a part of the others; with the facts of
/// the adaptive ones.
fn compared(
    modes: &[Waits],
    row: Value,
    mut measure: impl FnMut(Waits) -> Result<(f64, Value)>,
) -> Result<Value> {
    let (mut figures, mut facts) = (json!({}), json!({}));
    for &waits in modes {
        let (figure, more) = measure(waits)?;
        figures[name(waits)] = json!(figure);
        if waits == Waits::Adaptive && more.is_object() {
            facts = more;
        }
    }
    for other in ["spinning", "sleeping"] {
        if let Some(figure) = figures[other].as_f64() {
            let adaptive = number(&figures, "adaptive")?;
            figures[format!("of_{other}")] = json!(adaptive / figure);
        }
    }
    Ok(with(with(facts, figures), row))
}

fn name(waits: Waits) -> &'static str {
    match waits {
        Waits::Adaptive => "adaptive",
        Waits::Spinning => "spinning",
        Waits::Sleeping => "sleeping",
    }
}

impl Ends<'_> {
    fn target(&self, waits: Waits) -> Result<Target> {
        Target::start(self.braid, 1, Some(self.sides.cpus[1]), waits)
    }

    /// `braid bench` on it, with this load.
    fn host(&self, target: &Target, waits: Waits, load: &str) -> Command {
        let mut command = Command::new(self.braid);
        command.args(["bench", &target.uris[0], "-o", "json"]);
        let cpus = format!("--cpus={}", self.sides.cpus[0]);
        command.arg(cpus).args(waits.flags()).args(load.split(' '));
        command
    }

    /// Facts of a load as fast as it goes. Ends have found each other before it is measured.
    fn steady(&self, waits: Waits, load: &str) -> Result<Value> {
        let target = self.target(waits)?;
        let seconds = self.sides.timing.seconds;
        let load = format!("{load} --runtime={seconds} --ramp-time=200ms");
        facts(&mut self.host(&target, waits, &load))
    }

    /// Processor time of both processes per second, ms, at so many I/Os per second; 0: of an engine
    /// without clients.
    fn processor_ms(&self, waits: Waits, pace: u64) -> Result<f64> {
        let target = self.target(waits)?;
        let seconds = self.sides.timing.seconds;
        let directory = server::directory()?;
        let (engine, load);
        let host = if pace == 0 {
            engine = self.idle_engine(&target, waits, directory)?;
            engine.id()
        } else {
            let words = format!(
                "--rw=randread --bs=4k --iodepth=1 --rate-iops={pace} --runtime={}",
                seconds + 60.0
            );
            let mut command = self.host(&target, waits, &words);
            let log = fs::File::create(directory.join("log"))?;
            load = Group::spawn(command.stdout(log.try_clone()?).stderr(log))?;
            let _ = fs::remove_dir_all(&directory);
            load.id()
        };
        sleep(SETTLE);
        let used = || Ok::<u64, anyhow::Error>(used_ns(host)? + used_ns(target.id())?);
        let (before_ns, begun) = (used()?, Instant::now());
        sleep(Duration::from_secs_f64(seconds));
        let used_ns = used()? - before_ns;
        Ok(used_ns as f64 / 1e6 / begun.elapsed().as_secs_f64())
    }

    fn idle_engine(&self, target: &Target, waits: Waits, directory: PathBuf) -> Result<Server> {
        let volume = server::volume("nbd", "path", &target.uris, &directory);
        let config = format!(
            "cpus = [{}]\n{}\n{volume}",
            self.sides.cpus[0],
            waits.keys()
        );
        Server::braid(self.braid, "run", directory, &config, server::listens)
    }
}

/// Processor time of all threads of a process so far, ns.
fn used_ns(id: u32) -> Result<u64> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{id}/task"))? {
        let text = fs::read_to_string(task?.path().join("schedstat"));
        if Path::new("/proc/self/schedstat").exists() && text.is_err() {
            // The thread has ended since.
            continue;
        }
        let text = text.context("this kernel counts no processor time in schedstat")?;
        let first = text.split_whitespace().next().map(str::parse::<u64>);
        sum += first.with_context(|| format!("no time in {text:?}"))??;
    }
    Ok(sum)
}

/// Runs something while a thread here never gives that CPU away.
fn beside_busy_thread<T>(cpu: usize, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let busy = scope.spawn(|| -> Result<()> {
            pingpong::pin(cpu)?;
            while !over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
            Ok(())
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        let ended = busy
            .join()
            .map_err(|_| anyhow!("the busy thread panicked"))?;
        ended.and(result)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_those_of_the_adaptive_ends() {
        let row = json!({"op": "read"});
        let mut facts = compared(&MODES, row, |waits| {
            let figure = match waits {
                Waits::Adaptive => 90.0,
                Waits::Spinning => 100.0,
                Waits::Sleeping => 30.0,
            };
            Ok((figure, json!({"calls": name(waits)})))
        })
        .unwrap();
        assert_eq!([&facts["of_spinning"], &facts["of_sleeping"]], [0.9, 3.0]);
        assert_eq!([&facts["calls"], &facts["op"]], ["adaptive", "read"]);
        facts = compared(&[Waits::Adaptive], json!({}), |_| Ok((1.0, Value::Null))).unwrap();
        assert_eq!(facts, json!({"adaptive": 1.0}));
    }

    #[test]
    fn processor_time_of_this_process_grows() {
        let id = std::process::id();
        if !Path::new("/proc/self/schedstat").exists() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "SKIP processor_time: no schedstat");
            return;
        }
        let before = used_ns(id).unwrap();
        beside_busy_thread(0, || Ok(())).unwrap();
        assert!(used_ns(id).unwrap() >= before);
    }
}
