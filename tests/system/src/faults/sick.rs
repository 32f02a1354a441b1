//! A path that is half sick beside a healthy one: the share that each policy gives it over time.
//!
//! # Contract
//! Two targets that are alike, on loopback; so many clients of one request each, half reads and
//! half writes. The first path is well, then sick, then well again. Each second's share is of I/Os
//! that ended on it, as `stat` counts them.
use super::engine::Keys;
use super::nbd::{BLOCK, Client};
use super::plan::Random;
use super::stage::Stage;
use super::table::Table;
use super::{Common, stop};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 20;
/// Clients of one request each.
const CLIENTS: u64 = 16;
/// So that the machine is not what limits.
const PORT: &str = "delay=5ms";
const ENGINE: &str = "keep_alive_tmo = \"5s\"\nio_timeout = \"30s\"";

/// Policies and times.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Policies.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "numa,round-robin,queue-depth,weighted-latency,soonest,pid,latency,devid:1,\
                         service-time,historical-service-time"
    )]
    policies: Vec<String>,
    /// Seconds of each run; the path is sick from a fifth of it to four fifths.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
}

impl Args {
    /// As they were typed.
    pub fn words(&self) -> String {
        let Self { policies, seconds } = self;
        format!("sick --policies {} --seconds {seconds}", policies.join(","))
    }
}

/// Sickness of the path.
#[derive(Clone, Copy)]
enum Sickness {
    /// `error` of its port.
    Errors(&'static str),
    /// So long in each second.
    Stalls(&'static str),
}

const SICKNESSES: [(&str, Sickness); 3] = [
    ("1 % errors", Sickness::Errors("error=0x300:0.01")),
    ("5 % errors", Sickness::Errors("error=0x300:0.05")),
    ("100 ms stall each second", Sickness::Stalls("stall=100ms")),
];

/// Runs every policy with every sickness and prints.
///
/// # Errors
/// An error reached a client, or the machine refuses something.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let columns = [
        "policy",
        "path 1 has",
        "sick_share",
        "p99_ms",
        "errors_of_path",
        "share_by_second",
    ];
    let mut table = Table::new(&columns);
    for policy in &args.policies {
        for (name, sickness) in SICKNESSES {
            common.progress(&format!("{policy}, {name}"));
            let mut row: Vec<Value> = vec![policy.as_str().into(), name.into()];
            row.extend(course(common, args, policy, sickness)?);
            table.row(row);
        }
    }
    common.progress("");
    let head = format!(
        "share of the first of two equal paths in percent, each second; sick from {} s to {} s; \
         {CLIENTS} clients, {PORT}; no error reached them",
        args.seconds / 5,
        args.seconds * 4 / 5
    );
    common.show("sick", &head, &table, json!({}));
    Ok(())
}

/// One run: the cells behind policy and sickness.
fn course(common: &Common, args: &Args, policy: &str, sickness: Sickness) -> Result<Vec<Value>> {
    let mut stage = Stage::targets(&common.program, "sick", 2, false, (BYTES, ""))?;
    for target in &stage.targets {
        target.set(&[PORT])?;
    }
    let volume = format!("policy = \"{policy}\"");
    let keys = Keys {
        engine: ENGINE,
        volume: &volume,
    };
    stage.run(keys, |_| String::new())?;
    let crowd = Crowd::start(&stage, common.seed)?;
    let sick = args.seconds / 5..args.seconds * 4 / 5;
    let mut shares = Vec::new();
    let mut before = counts(&stage)?;
    let begun = Instant::now();
    for second in 0..args.seconds {
        let target = &stage.targets[0];
        match sickness {
            Sickness::Errors(rule) if second == sick.start => target.set(&[rule])?,
            Sickness::Errors(_) if second == sick.end => target.set(&["error=0"])?,
            Sickness::Stalls(stall) if sick.contains(&second) => target.set(&[stall])?,
            _ => {}
        }
        let next = Duration::from_secs(second + 1);
        stop::pause(next.saturating_sub(begun.elapsed()))?;
        let now = counts(&stage)?;
        let done = [now[0] - before[0], now[1] - before[1]];
        shares.push(done[0] as f64 * 100.0 / (done[0] + done[1]).max(1) as f64);
        before = now;
        crowd.check()?;
    }
    let errors = stage.engine()?.stat()?["paths"][0]["errors"].clone();
    let p99 = crowd.finish()?;
    let of_sick = &shares[sick.start as usize..sick.end as usize];
    let mean = of_sick.iter().sum::<f64>() / of_sick.len().max(1) as f64;
    let by_second = shares.iter().map(|it| format!("{it:2.0}"));
    let by_second = by_second.collect::<Vec<_>>().join(" ");
    Ok(vec![
        json!((mean * 10.0).round() / 10.0),
        json!(p99.as_secs_f64() * 1e3),
        errors,
        by_second.into(),
    ])
}

/// I/Os that have ended on each path.
fn counts(stage: &Stage) -> Result<[u64; 2]> {
    let stat = stage.engine()?.stat()?;
    let count = |path: usize| {
        let number = |key: &str| stat["paths"][path][key].as_u64();
        Some(number("reads")? + number("writes")?)
    };
    let counts = count(0).zip(count(1));
    let (one, two) = counts.with_context(|| format!("no counts in {stat}"))?;
    Ok([one, two])
}

/// Clients.
struct Crowd {
    stop: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Result<Vec<Duration>>>>,
}

impl Crowd {
    fn start(stage: &Stage, seed: u64) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let failed = Arc::new(AtomicU64::new(0));
        let export = stage.engine()?.export();
        let mut threads = Vec::new();
        for number in 0..CLIENTS {
            let mut client = Client::open(&export)?;
            let (stop, failed) = (Arc::clone(&stop), Arc::clone(&failed));
            let mut random = Random(seed ^ number << 32);
            threads.push(std::thread::spawn(move || {
                let mut latencies = Vec::new();
                let mut block = [number as u8; BLOCK];
                while !stop.load(Ordering::Relaxed) {
                    let blocks = BYTES / BLOCK as u64;
                    let offset = random.below(blocks) * BLOCK as u64;
                    let begun = Instant::now();
                    let done = match random.below(2) {
                        0 => client.read(offset, &mut block),
                        _ => client.write(offset, &block),
                    };
                    if done.is_err() {
                        failed.fetch_add(1, Ordering::Relaxed);
                    }
                    done?;
                    latencies.push(begun.elapsed());
                }
                Ok(latencies)
            }));
        }
        Ok(Self {
            stop,
            failed,
            threads,
        })
    }

    fn check(&self) -> Result<()> {
        let failed = self.failed.load(Ordering::Relaxed);
        anyhow::ensure!(failed == 0, "{failed} clients got an error");
        Ok(())
    }

    /// Ends it; the 99 % latency of all.
    fn finish(mut self) -> Result<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Vec::new();
        for thread in self.threads.drain(..) {
            let latencies = thread.join();
            all.extend(latencies.ok().context("a client has panicked")??);
        }
        all.sort_unstable();
        all.get(all.len() * 99 / 100)
            .copied()
            .context("nothing was done")
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
