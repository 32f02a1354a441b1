//! fio over NBD, and what it measured.
use super::super::nbd::fio_facts;
use super::super::program::number;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// What fio is to do, in its own words.
#[derive(Clone, Copy)]
pub struct Load {
    /// What the table calls it.
    pub name: &'static str,
    /// Its `--rw`, `--bs` and whatever else.
    pub words: &'static [&'static str],
}

/// What one run did.
#[derive(Clone, Copy, Default)]
pub struct Run {
    pub read_mib_s: f64,
    pub write_mib_s: f64,
    /// Of reads and writes per second together.
    pub iops: f64,
    /// Of reads, or of writes where there were no reads.
    pub p99_us: f64,
    pub ios: f64,
}

/// Runs it against the socket of an export, for so long, or until all is done once.
pub fn run(load: Load, socket: &Path, seconds: Option<f64>) -> Result<Run> {
    let mut command = Command::new("fio");
    command.args(["--name=mirror", "--ioengine=nbd", "--output-format=json"]);
    command.args(["--group_reporting", "--randrepeat=0"]);
    command.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    command.args(load.words);
    if let Some(seconds) = seconds {
        command.arg("--time_based");
        command.arg(format!("--runtime={}ms", (seconds * 1e3) as u64));
    }
    let facts = fio_facts(&mut command)?;
    let job = &facts["jobs"][0];
    let [read, write] = [&job["read"], &job["write"]];
    let both = |key| Ok::<f64, anyhow::Error>(number(read, key)? + number(write, key)?);
    let timed = if number(read, "total_ios")? > 0.0 {
        read
    } else {
        write
    };
    const MIB: f64 = (1 << 20) as f64;
    Ok(Run {
        read_mib_s: number(read, "bw_bytes")? / MIB,
        write_mib_s: number(write, "bw_bytes")? / MIB,
        iops: both("iops")?,
        p99_us: number(&timed["clat_ns"]["percentile"], "99.000000")? / 1e3,
        ios: both("total_ios")?,
    })
}
