//! Cost of an NBD export beside nbdkit's memory disk.
//!
//! # Contract
//! fio (`ioengine=nbd`, one connection) reads and writes 4 KiB at random: nbdkit's memory plugin,
//! braid over memory, and braid over a target of its own on loopback TCP, one after the other in
//! each round, so that what the machine does besides hits all of them. The figure is the median
//! over rounds, the ratio that of each round. System calls are counted in one more round, by perf,
//! in which nothing is timed: those of the server's process, by all requests.
use super::fio;
use crate::prelude::*;
use system::program::Waits;

/// Which cells, how long.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    timing: Timing,
    /// Requests outstanding.
    #[arg(long, value_delimiter = ',', default_value = "1,32")]
    depths: Vec<usize>,
    /// Bytes of a request, in fio's words.
    #[arg(long, default_value = "4k")]
    bs: String,
}

const COLUMNS: [Column; 8] = [
    ("op", "op", 0),
    ("server", "server", 0),
    ("depth", "depth", 0),
    ("iops", "IOPS", 0),
    ("ratio", "ratio", 3),
    ("p50_us", "p50 µs", 1),
    ("p99_us", "p99 µs", 1),
    ("system_calls_per_io", "calls", 3),
];

/// Servers, in the order in which they are measured; the first is what the others are compared to.
const SERVERS: [&str; 3] = ["nbdkit memory", "braid mem", "braid nvme-tcp"];

/// The operation, how many are outstanding, and the number of the server.
type Row = ((&'static str, usize), usize);

/// Measures every cell.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    needs("fio", "fio")?;
    needs("nbdkit", "nbdkit")?;
    let braid = setup.braid()?;
    let target = Target::start(&braid, 1, None, Waits::Adaptive)?;
    let servers = [
        Server::nbdkit()?,
        Server::over(&braid, "mem:256MiB")?,
        Server::over(&braid, &target.uris[0])?,
    ];
    let rows = product(&product(&["read", "write"], &args.depths), &[0, 1, 2]);
    let mut nbdkit = Value::Null;
    let mut cells = interleaved(args.timing.rounds, &rows, &COLUMNS, |row| {
        let ((op, depth), at) = *row;
        let facts = fio::run(load(&mut Command::new("fio"), args, row, &servers))?;
        if at == 0 {
            nbdkit = facts.clone();
        }
        let ratio = ratio(&facts, &nbdkit, "iops");
        let words = json!({"op": op, "server": SERVERS[at], "depth": depth, "ratio": ratio});
        Ok(with(facts, words))
    })?;
    if let Err(error) = count_calls(args, &servers, &rows, &mut cells) {
        eprintln!("system calls were not counted: {error:#}");
    }
    let title = format!(
        "{} over NBD, one connection of fio; calls: the server's system calls per request",
        args.bs
    );
    setup.show(&title, &COLUMNS, cells);
    Ok(())
}

fn load<'a>(
    command: &'a mut Command,
    args: &Args,
    &((op, depth), at): &Row,
    servers: &[Server],
) -> &'a mut Command {
    let words = format!(
        "--thread --size=256M --ramp_time=200ms --rw=rand{op} --bs={} --iodepth={depth}",
        args.bs
    );
    fio::words(
        command,
        &servers[at].uri(),
        Some(args.timing.seconds),
        &words,
    );
    command
}

/// One more round, with perf: system calls of the server's process by request.
fn count_calls(args: &Args, servers: &[Server], rows: &[Row], cells: &mut [Value]) -> Result<()> {
    needs("perf", "linux-perf")?;
    for (row, cell) in rows.iter().zip(cells) {
        let server = &servers[row.1];
        let log = server.file("perf");
        let mut command = Command::new("perf");
        command.args("stat -x , -e raw_syscalls:sys_enter -o".split(' '));
        command
            .arg(&log)
            .args(["-p", &server.id().to_string(), "fio"]);
        let run =
            fio::run(load(&mut command, args, row, servers)).context("perf can't count here")?;
        let text = fs::read_to_string(&log)?;
        let count = counted(&text).with_context(|| format!("perf counted nothing: {text}"))?;
        cell["system_calls_per_io"] = json!(count / number(&run, "ios")?);
    }
    Ok(())
}

/// The count in the output of `perf stat -x ,`.
fn counted(text: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.contains("sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn perfs_count_is_its_first_field() {
        let text = "# started on a day\n\n1234,,raw_syscalls:sys_enter,99,100.00,,\n";
        assert_eq!(counted(text), Some(1234.0));
        assert_eq!(
            counted("<not supported>,,raw_syscalls:sys_enter,0,,,"),
            None
        );
    }
}
