//! Clients of one volume on two cores, beside the same clients on one.
//!
//! # Contract
//! Four NBD connections of fio read and write 4 KiB at random, of an engine with one core and then
//! of one with two, each over two ports of one target. Requests of a core's clients came in there;
//! samples of `weighted-latency`, which each core takes of its own queues, ended there. Processor
//! time is that of each reactor's thread. Instructions are those of the engine in user space, by
//! callgrind, without those of a reactor that has nothing to do: the difference between a run and
//! one of more I/Os. Then a row for each path and core has the core's own figures of the path.
use super::{OWN, callgrind, cpu_seconds, fio};
use crate::prelude::*;
use server::{directory, listens, volume};
use std::collections::BTreeMap;
use system::program::Waits;

/// How long, and whether instructions are counted.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    timing: Timing,
    /// Don't count instructions (which needs valgrind).
    #[arg(long)]
    no_cost: bool,
}

const COLUMNS: [Column; 7] = [
    ("cores", "cores", 0),
    ("iops", "IOPS", 0),
    ("iops_range", "range", 0),
    ("ratio", "ratio", 3),
    ("share_at_home", "ended where they came in", 4),
    ("cpu_s", "CPU s of reactors", 2),
    ("cpu_ratio", "least/most", 3),
];

const COSTS: [Column; 3] = [
    ("cores", "cores", 0),
    ("instructions", "instructions", 0),
    ("ratio", "ratio", 3),
];

const LEARNT: [Column; 6] = [
    ("path", "path", 0),
    ("core", "core", 0),
    ("samples", "samples of reads", 0),
    ("smoothed_us", "smoothed µs", 1),
    ("weight", "weight", 0),
    ("credit", "credit", 0),
];

/// Bytes of each client in the two counted runs.
const COUNTED_BYTES: [u64; 2] = [16 << 20, 64 << 20];
/// Words to callgrind: all counts, but not what waits for work.
const WITHOUT_WAITING: [&str; 2] = ["--toggle-collect=*watch_memory*", "--collect-atstart=yes"];
/// I/Os of a client in flight, and in a counted run.
const DEPTH: u64 = 16;
const COUNTED_DEPTH: u64 = 64;
/// Clients, and bytes of an I/O.
const CLIENTS: u64 = 4;
const IO_BYTES: u64 = 4096;

/// Counts of the volume by core so far: requests that came in, I/Os that ended.
type Counts = BTreeMap<u64, [f64; 2]>;

/// Measures and prints.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    needs("fio", "fio")?;
    let braid = setup.braid()?;
    let target = Target::start(&braid, 2, None, Waits::Adaptive)?;
    let engine =
        |cores| Ok::<_, anyhow::Error>((cores, engine(&braid, Vec::new(), cores, &target)?));
    let engines = [engine(1)?, engine(2)?];
    let mut first = Value::Null;
    let cells = interleaved(args.timing.rounds, &engines, &COLUMNS, |(cores, engine)| {
        let facts = load(&braid, engine, &args.timing)?;
        if *cores == 1 {
            first = facts.clone();
        }
        let ratio = ratio(&facts, &first, "iops");
        Ok(with(facts, json!({"cores": cores, "ratio": ratio})))
    })?;
    let learnt = learnt(&stat(&braid, &engines[1].1)?)?;
    drop(engines);
    let costs = match args.no_cost {
        true => Vec::new(),
        false => costs(&braid, &target)?,
    };
    let title = "four NBD connections, 4 KiB at random, a volume over two paths";
    let counted = "instructions of the engine per I/O, user space (callgrind)";
    let each = "figures of each core of two";
    let parts = [
        ("cells", title.to_owned(), &COLUMNS[..], cells),
        ("costs", counted.to_owned(), &COSTS[..], costs),
        ("learnt", each.to_owned(), &LEARNT[..], learnt),
    ];
    table::print(setup.output, &parts);
    Ok(())
}

/// An engine of so many cores; `watched`: words of a program that runs it.
fn engine(braid: &Path, watched: Vec<String>, cores: u16, target: &Target) -> Result<Server> {
    let directory = directory()?;
    let volume = volume("nbd", "path", &target.uris, &directory);
    let volume = volume.replacen("kind", "policy = \"weighted-latency\"\nkind", 1);
    // Under valgrind a reactor that sleeps in the kernel keeps the other threads from running.
    let spins = !watched.is_empty();
    let config = format!("cores = {cores}\nspin = {spins}\n{volume}");
    let file = directory.join("braid.toml");
    fs::write(&file, config)?;
    let program = braid.display().to_string();
    let mut words = watched.into_iter().chain([program]);
    let mut command = Command::new(words.next().context("no program")?);
    command.args(words).args(["run", "-c"]).arg(file);
    command.arg("--socket").arg(directory.join("control"));
    command.env("XDG_STATE_HOME", &directory);
    Server::start(directory, &mut command, listens)
}

/// The load: each client with so many I/Os in flight, once over so many bytes, or for so long.
fn clients(engine: &Server, depth: u64, bytes: u64, seconds: Option<f64>) -> Result<Value> {
    let mut command = Command::new("fio");
    let words = format!(
        "--thread --numjobs={CLIENTS} --size=256M --io_size={bytes} --rw=randrw --bs={IO_BYTES} \
         --iodepth={depth}"
    );
    fio::words(&mut command, &engine.uri(), seconds, &words);
    fio::run(&mut command)
}

/// A run of fio, and what the engine counted meanwhile.
fn load(braid: &Path, engine: &Server, timing: &Timing) -> Result<Value> {
    let before = (counts(&stat(braid, engine)?)?, reactors(engine.id())?);
    let facts = clients(engine, DEPTH, 256 << 20, Some(timing.seconds))?;
    let after = (counts(&stat(braid, engine)?)?, reactors(engine.id())?);
    let (mut all, mut at_home) = (0.0, 0.0);
    for (core, now) in &after.0 {
        let was = before.0.get(core).copied().unwrap_or_default();
        let [came, ended] = [0, 1].map(|at| now[at] - was[at]);
        all += came;
        at_home += came.min(ended);
    }
    let times = after.1.iter();
    let times = times.map(|(name, at)| at - before.1.get(name).copied().unwrap_or_default());
    let times: Vec<f64> = times.collect();
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    let own = json!({
        "share_at_home": at_home / all,
        "cpu_s": times.iter().sum::<f64>(),
        "cpu_ratio": least / most,
    });
    Ok(with(facts, own))
}

/// Instructions per I/O of engines with one core and with two. Cells of [`COSTS`].
fn costs(braid: &Path, target: &Target) -> Result<Vec<Value>> {
    callgrind::check()?;
    let mut first = Value::Null;
    interleaved(1, &[1, 2], &COSTS, |cores| {
        let run = |bytes| instructions(braid, *cores, target, bytes);
        let [less, more] = COUNTED_BYTES;
        let (few, many) = (run(less)?, run(more)?);
        let ios = (CLIENTS * (more - less) / IO_BYTES) as f64;
        let facts = json!({"instructions": (many as f64 - few as f64) / ios});
        if *cores == 1 {
            first = facts.clone();
        }
        let ratio = ratio(&facts, &first, "instructions");
        Ok(with(facts, json!({"cores": cores, "ratio": ratio})))
    })
}

/// Instructions of an engine that serves the load once.
fn instructions(braid: &Path, cores: u16, target: &Target, bytes: u64) -> Result<u64> {
    // Where callgrind writes to.
    let log = format!("braid-cores-cost-{}.log", std::process::id());
    let log = std::env::temp_dir().join(log);
    let watched = ["valgrind"].into_iter().chain(callgrind::QUIET);
    let mut watched: Vec<String> = watched.map(str::to_owned).collect();
    watched.push(format!("--log-file={}", log.display()));
    watched.extend(WITHOUT_WAITING.map(str::to_owned));
    let mut engine = engine(braid, watched, cores, target)?;
    // In order: callgrind prints its sum when the program ends.
    let served = clients(&engine, COUNTED_DEPTH, bytes, None).and_then(|_| engine.end());
    let said = fs::read_to_string(&log).with_context(|| log.display().to_string());
    let _ = fs::remove_file(&log);
    let said = said?;
    served.with_context(|| format!("callgrind said:\n{said}"))?;
    callgrind::collected(&said)
}

fn stat(braid: &Path, engine: &Server) -> Result<Value> {
    let mut command = Command::new(braid);
    command.args(["stat", "nbd", "-o", "json", "--socket"]);
    let text = printed(command.arg(engine.file("control")))?;
    let all: Value = serde_json::from_str(&text).context("braid stat printed no JSON")?;
    Ok(all["volumes"][0].clone())
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn counts(volume: &Value) -> Result<Counts> {
    let mut counts = Counts::new();
    let core = |it: &Value| it["core"].as_u64().context("no core");
    for it in items(&volume["exports"][0]["cores"]) {
        counts.entry(core(it)?).or_default()[0] += number(it, "requests")?;
    }
    for path in items(&volume["paths"]) {
        for it in ["read", "write", "other"].map(|it| &path["groups"][it]["cores"]) {
            for it in items(it) {
                let ended = number(it, "samples")? + number(it, "ignored")?;
                counts.entry(core(it)?).or_default()[1] += ended;
            }
        }
    }
    Ok(counts)
}

/// Processor time of the reactors of a process, by name of their threads.
fn reactors(id: u32) -> Result<BTreeMap<String, f64>> {
    let mut times = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{id}/task"))? {
        let stat = fs::read_to_string(task?.path().join("stat"))?;
        let name = stat.split(['(', ')']).nth(1).unwrap_or_default();
        let number = name.strip_prefix("braid-").unwrap_or_default();
        if number.parse::<u16>().is_ok() {
            times.insert(name.to_owned(), cpu_seconds(&stat, OWN)?);
        }
    }
    Ok(times)
}

/// Figures of the reads of each path, by core.
fn learnt(volume: &Value) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for path in items(&volume["paths"]) {
        for it in items(&path["groups"]["read"]["cores"]) {
            rows.push(json!({
                "path": path["path"],
                "core": it["core"],
                "samples": it["samples"],
                "smoothed_us": number(it, "smoothed_ns")? / 1e3,
                "weight": it["weight"],
                "credit": it["credit"],
            }));
        }
    }
    ensure!(!rows.is_empty(), "no core has figures of a path: {volume}");
    Ok(rows)
}
