//! fio over NBD, and what it measured.
use crate::prelude::*;

/// Measurements of one run.
#[derive(Clone, Copy, Default)]
pub struct Run {
    pub read_mib_s: f64,
    pub write_mib_s: f64,
    /// Of reads and writes per second together.
    pub iops: f64,
    /// Of reads, or of writes where there were no reads.
    pub p50_us: f64,
    pub p99_us: f64,
    pub ios: f64,
}

/// Adds the words of a load on the export behind `uri`, for so long, or until all is done once.
pub fn words(command: &mut Command, uri: &str, seconds: Option<f64>) {
    command.args(["--name=bench", "--ioengine=nbd", "--output-format=json"]);
    command.args(["--group_reporting", "--randrepeat=0"]);
    command.arg(format!("--uri={uri}"));
    if let Some(seconds) = seconds {
        command.arg("--time_based");
        command.arg(format!("--runtime={}ms", (seconds * 1e3) as u64));
    }
}

/// Runs fio.
///
/// # Errors
/// It fails, or prints no report.
pub fn run(command: &mut Command) -> Result<Run> {
    let text = printed(command)?;
    // Behind whatever it notes before.
    let object = text.find('{').and_then(|begin| text.get(begin..));
    let object = object.with_context(|| format!("{command:?} printed no JSON object:\n{text}"))?;
    let facts: Value = serde_json::from_str(object)
        .with_context(|| format!("{command:?} printed no JSON:\n{text}"))?;
    let job = &facts["jobs"][0];
    let [read, write] = [&job["read"], &job["write"]];
    let both = |key| Ok::<f64, anyhow::Error>(number(read, key)? + number(write, key)?);
    let timed = if number(read, "total_ios")? > 0.0 {
        read
    } else {
        write
    };
    let percentiles = &timed["clat_ns"]["percentile"];
    const MIB: f64 = (1 << 20) as f64;
    Ok(Run {
        read_mib_s: number(read, "bw_bytes")? / MIB,
        write_mib_s: number(write, "bw_bytes")? / MIB,
        iops: both("iops")?,
        p50_us: number(percentiles, "50.000000")? / 1e3,
        p99_us: number(percentiles, "99.000000")? / 1e3,
        ios: both("total_ios")?,
    })
}
