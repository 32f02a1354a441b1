//! fio over NBD, and what it measured.
use crate::prelude::*;

/// A load on the export behind `uri`, for so long, or until all is done once; its own `words`.
pub fn words(command: &mut Command, uri: &str, seconds: Option<f64>, words: &str) {
    command.args("--name=bench --ioengine=nbd --output-format=json".split(' '));
    // Behind the engine whose option it is.
    command.arg(format!("--uri={uri}"));
    command
        .args("--group_reporting --randrepeat=0".split(' '))
        .args(words.split(' '));
    if let Some(seconds) = seconds {
        command.args([
            "--time_based",
            &format!("--runtime={}ms", (seconds * 1e3) as u64),
        ]);
    }
}

/// Runs fio. `iops` and `ios` are those of reads and writes together, latencies those of reads, or
/// of writes where there were no reads.
///
/// # Errors
/// It fails, or prints no report.
pub fn run(command: &mut Command) -> Result<Value> {
    let text = printed(command)?;
    // Behind whatever it notes before.
    let object = &text[text.find('{').unwrap_or(0)..];
    let facts: Value = serde_json::from_str(object)
        .with_context(|| format!("{command:?} printed no JSON:\n{text}"))?;
    let job = &facts["jobs"][0];
    let [read, write] = [&job["read"], &job["write"]];
    let both = |key| Ok::<f64, anyhow::Error>(number(read, key)? + number(write, key)?);
    let is_read = number(read, "total_ios")? > 0.0;
    let percentiles = &(if is_read { read } else { write })["clat_ns"]["percentile"];
    const MIB: f64 = (1 << 20) as f64;
    Ok(json!({
        "read_mib_s": number(read, "bw_bytes")? / MIB,
        "write_mib_s": number(write, "bw_bytes")? / MIB,
        "iops": both("iops")?, "ios": both("total_ios")?,
        "p50_us": number(percentiles, "50.000000")? / 1e3,
        "p99_us": number(percentiles, "99.000000")? / 1e3,
    }))
}
