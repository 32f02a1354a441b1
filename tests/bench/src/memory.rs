//! Cost of an engine that is connected and has nothing to do.
//!
//! # Contract
//! `braid run` with one volume over several ports of one target, and no client: its keep-alives and
//! the probes of its idle queues are all that happens. Once it is connected, resident memory and
//! the voluntary switches of each of its threads are read from `/proc`, twice: the difference is
//! how often it woke.
use super::server::{directory, listens};
use crate::prelude::*;
use std::collections::BTreeMap;

/// Connected and settled after so long.
const SETTLE: Duration = Duration::from_secs(2);

const COLUMNS: [Column; 6] = [
    ("process", "process", 0),
    ("thread", "thread", 0),
    ("resident_mib", "MiB resident", 1),
    ("anonymous_mib", "anonymous", 1),
    ("sockets", "sockets", 0),
    ("wakeups_per_min", "wake-ups/min", 1),
];

/// How large, how long.
#[derive(clap::Args)]
pub struct Args {
    /// Paths, each to a port of its own.
    #[arg(long, default_value_t = 8)]
    paths: usize,
    /// Cores of the host.
    #[arg(long, default_value_t = 2)]
    cores: usize,
    /// Seconds of watching.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

/// An engine with one volume over these paths, and no client.
fn idle_engine(braid: &Path, uris: &[String], cores: usize) -> Result<Server> {
    let directory = directory()?;
    let socket = directory.join("nbd");
    let paths = uris.iter();
    let paths = paths.map(|uri| format!("[[volume.path]]\nuri = \"{uri}\"\n"));
    let config = format!(
        "cores = {cores}\n[[volume]]\nname = \"v0\"\n{}[[volume.export]]\nnbd = \"unix:{}\"\n",
        paths.collect::<String>(),
        socket.display()
    );
    Server::braid(braid, "run", directory, &config, listens)
}

/// One look at a process.
struct Look {
    /// Resident, KiB; and of that anonymous.
    resident: u64,
    anonymous: u64,
    /// Voluntary switches by thread: name and number.
    switches: BTreeMap<(String, u32), u64>,
    connections: usize,
}

/// Measures and prints.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let braid = setup.braid()?;
    let target = Target::start(&braid, args.paths, None, false)?;
    let host = idle_engine(&braid, &target.uris, args.cores)?;
    sleep(SETTLE);
    let begun = Instant::now();
    let before = Look::at(host.id())?;
    let target_before = Look::at(target.id())?;
    sleep(Duration::from_secs(args.seconds));
    let after = Look::at(host.id())?;
    let target_after = Look::at(target.id())?;
    let seconds = begun.elapsed().as_secs_f64();
    let wanted = args.paths * (args.cores + 1);
    ensure!(
        after.connections >= wanted,
        "{} of {wanted} connections (an admin one and one per core for each path)",
        after.connections
    );
    let mut cells = after.cells("host", &before, seconds);
    cells.extend(target_after.cells("target", &target_before, seconds));
    let (paths, cores) = (args.paths, args.cores);
    let title = format!("{paths} paths x {cores} cores, connected and idle");
    table::print(setup.output, &title, &COLUMNS, &cells);
    Ok(())
}

impl Look {
    fn at(id: u32) -> Result<Self> {
        let process = format!("/proc/{id}");
        let status = read(&format!("{process}/status"))?;
        let links = fs::read_dir(format!("{process}/fd"))?
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:"));
        Ok(Self {
            resident: count(&status, "VmRSS")?,
            anonymous: count(&status, "RssAnon")?,
            switches: switches(id)?,
            connections: sockets.count(),
        })
    }

    /// Switches of all threads since `before`, per minute.
    fn wakeups_per_minute(&self, before: &Self, seconds: f64) -> f64 {
        let all = self.wakeups(before, seconds);
        all.iter().map(|(_, rate)| rate).sum::<f64>() * 60.0
    }

    /// Switches of each thread since `before`, per second.
    fn wakeups(&self, before: &Self, seconds: f64) -> Vec<(&str, f64)> {
        let rate = |(thread, count): (&'_ (String, u32), &u64)| {
            let since = count - before.switches.get(thread).copied().unwrap_or(0);
            since as f64 / seconds
        };
        let names = self.switches.keys().map(|(name, _)| name.as_str());
        names.zip(self.switches.iter().map(rate)).collect()
    }

    /// The process, then its threads.
    fn cells(&self, process: &str, before: &Self, seconds: f64) -> Vec<Value> {
        let mib = |kib: u64| kib as f64 / 1024.0;
        let mut cells = vec![json!({
            "process": process, "thread": "all",
            "resident_mib": mib(self.resident), "anonymous_mib": mib(self.anonymous),
            "sockets": self.connections,
            "wakeups_per_min": self.wakeups_per_minute(before, seconds),
        })];
        let threads = self.wakeups(before, seconds).into_iter();
        cells.extend(threads.map(|(thread, rate)| {
            json!({"process": process, "thread": thread, "wakeups_per_min": rate * 60.0})
        }));
        cells
    }
}

/// Voluntary switches of the threads of a process, by name and number.
pub fn switches(id: u32) -> Result<BTreeMap<(String, u32), u64>> {
    let mut switches = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{id}/task"))? {
        let task = task?;
        let number: u32 = task.file_name().to_string_lossy().parse()?;
        // A thread may end between being listed and being read.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let name = field(&status, "Name").context("a thread without a name")?;
        let count = count(&status, "voluntary_ctxt_switches")?;
        switches.insert((name.to_owned(), number), count);
    }
    Ok(switches)
}

/// The value of a line `name: value`.
fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.map(str::trim)
}

/// A number in it.
pub fn count(status: &str, name: &str) -> Result<u64> {
    let value = field(status, name).and_then(|value| value.split_whitespace().next());
    value
        .with_context(|| format!("no {name}"))?
        .parse()
        .with_context(|| name.to_owned())
}

/// A file of `/proc`.
pub fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {path}"))
}

#[cfg(test)]
mod tests {
    use super::{Look, count, field};

    #[test]
    fn fields_are_whole_names() {
        let status = "Name:\tbraid core 0\nVmRSS:\t    1234 kB\nnonvoluntary_ctxt_switches:\t9\n\
                      voluntary_ctxt_switches:\t7\n";
        assert_eq!(field(status, "Name"), Some("braid core 0"));
        assert_eq!(count(status, "VmRSS").unwrap(), 1234);
        assert_eq!(count(status, "voluntary_ctxt_switches").unwrap(), 7);
        assert!(count(status, "RssAnon").is_err());
    }

    #[test]
    fn wakeups_of_all_threads_are_those_of_each() {
        let look = |switches: [u64; 2]| Look {
            resident: 0,
            anonymous: 0,
            switches: [("a".to_owned(), 1), ("b".to_owned(), 2)]
                .into_iter()
                .zip(switches)
                .collect(),
            connections: 0,
        };
        let (before, after) = (look([5, 7]), look([8, 17]));
        let each = after.wakeups(&before, 2.0);
        assert_eq!(each, [("a", 1.5), ("b", 5.0)]);
        assert_eq!(after.wakeups_per_minute(&before, 2.0), 390.0);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let before = Look::at(std::process::id()).unwrap();
        let after = Look::at(std::process::id()).unwrap();
        assert!(after.resident >= after.anonymous && after.anonymous > 0);
        assert_eq!(after.wakeups(&before, 1.0).len(), after.switches.len());
    }
}
