//! A path with a heavy tail: what a second copy of late reads wins and costs.
//!
//! # Contract
//! `braid bench` over two targets that serve one file, random 4 KiB reads, without hedging and with
//! it. Extra commands are counted by bench, and once more by the targets: commands for
//! each I/O, with and without, to within what bench leaves in flight at its end.
//! The set-up of the demo, whose second path is 30 ms away; the same with both paths near; and both
//! near and saturated, where nothing may be sent.
use super::stage::Stage;
use super::table::Table;
use super::target::own_state;
use super::{Common, stop};
use crate::program::{facts, number};
use anyhow::Result;
use serde_json::{Value, json};
use std::process::Command;

const BYTES: u64 = 256 << 20;
/// One I/O in a hundred of the first path.
const TAIL: &str = "tail=0.01:5ms";

/// How long, under which policy.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Seconds of each run.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Policy.
    #[arg(long, default_value = "soonest")]
    policy: String,
}

impl Args {
    /// As they were typed.
    pub fn words(&self) -> String {
        let Self { seconds, policy } = self;
        format!("tail --seconds {seconds} --policy {policy}")
    }
}

/// Two ports and a load.
struct Setup {
    name: &'static str,
    ports: [&'static [&'static str]; 2],
    load: &'static [&'static str],
}

const SETUPS: [Setup; 4] = [
    Setup {
        name: "the demo's: 300 MiB/s, and 30 ms",
        ports: [&["bandwidth=300MiB/s", TAIL], &["delay=30ms"]],
        load: &["--iodepth=16", "--rate-iops=2000"],
    },
    Setup {
        name: "both near: 0.2 ms",
        ports: [&["delay=200us", TAIL], &["delay=200us"]],
        load: &["--iodepth=16", "--rate-iops=2000"],
    },
    Setup {
        name: "both near, both with a tail",
        ports: [&["delay=200us", TAIL], &["delay=200us", TAIL]],
        load: &["--iodepth=16", "--rate-iops=2000"],
    },
    Setup {
        name: "both near, saturated: 10 MiB/s each",
        ports: [
            &["delay=200us", "bandwidth=10MiB/s", TAIL],
            &["delay=200us", "bandwidth=10MiB/s"],
        ],
        load: &["--iodepth=128"],
    },
];

/// Measures every set-up and prints.
///
/// # Errors
/// A bench or a target fails.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let columns = [
        "setup",
        "hedge",
        "iops",
        "p50_us",
        "p99_us",
        "p999_us",
        "copies",
        "came_first",
        "extra_percent",
        "at_targets_percent",
    ];
    let mut table = Table::new(&columns);
    for setup in &SETUPS {
        let mut plain = 1.0;
        for hedge in ["off", "on"] {
            common.progress(&format!("{}, {hedge}", setup.name));
            let mut row: Vec<Value> = vec![setup.name.into(), hedge.into()];
            let (cells, sent) = measure(common, args, setup, hedge)?;
            row.extend(cells);
            let extra = (sent / plain - 1.0) * 100.0;
            row.push(if hedge == "on" {
                json!(extra)
            } else {
                Value::Null
            });
            plain = sent;
            table.row(row);
        }
    }
    common.progress("");
    let head = format!(
        "random 4 KiB reads, {}; {TAIL}: 1 % of a path's I/Os are late by 5 ms or more; {} s each, \
         load average {}",
        args.policy,
        args.seconds,
        crate::figures::load_average()
    );
    common.show("tail", &head, &table, json!({}));
    Ok(())
}

/// Facts of a run to its end.
///
/// # Errors
/// It failed; or somebody asked to stop, which ends a bench too: its facts are of a shorter time.
fn whole(command: &mut Command) -> Result<Value> {
    let facts = facts(command)?;
    stop::check()?;
    Ok(facts)
}

/// One cell: figures, and commands for each I/O.
fn measure(common: &Common, args: &Args, setup: &Setup, hedge: &str) -> Result<(Vec<Value>, f64)> {
    let stage = Stage::targets(&common.program, "tail", 2, false, (BYTES, ""))?;
    for (target, port) in stage.targets.iter().zip(setup.ports) {
        target.set(port)?;
    }
    let mut command = Command::new(&stage.program);
    own_state(&mut command, &stage.directory.0);
    command.arg("bench");
    command.args(stage.targets.iter().map(|target| &target.uri));
    command.args(["--rw=randread", "--bs=4k", "-o", "json"]);
    command.arg(format!("--policy={}", args.policy));
    command.arg(format!("--hedge={hedge}"));
    command.arg(format!("--runtime={}", args.seconds));
    command.arg(format!("--seed={}", common.seed));
    command.args(setup.load);
    let facts = whole(&mut command)?;
    let asked = number(&facts, "iops")? * args.seconds as f64;
    let mut sent = 0;
    for target in &stage.targets {
        sent += target.commands()?;
    }
    let mut cells: Vec<Value> = Vec::new();
    for key in ["iops", "p50_us", "p99_us", "p999_us"] {
        cells.push(json!(number(&facts, key)?.round() as u64));
    }
    let copies = &facts["hedges"];
    cells.extend(["sent", "won", "extra_percent"].map(|key| copies[key].clone()));
    Ok((cells, sent as f64 / asked.max(1.0)))
}

#[cfg(test)]
mod tests {
    use super::{stop, whole};
    use signal_hook::{consts::SIGINT, low_level::raise};
    use std::process::Command;

    #[test]
    fn interrupted_bench_makes_no_row() {
        let bench = || whole(Command::new("echo").arg("{\"iops\": 3}"));
        stop::watch().unwrap();
        assert_eq!(bench().unwrap()["iops"], 3);
        raise(SIGINT).unwrap();
        assert_eq!(bench().unwrap_err().to_string(), "interrupted");
        stop::forget();
    }
}
