//! Cost of an engine that is connected and has nothing to do.
//!
//! # Contract
//! `braid run` with one volume over several ports of one target, and no client: its keep-alives and
//! the probes of its idle queues are all that happens. Once it is connected, resident memory and
//! the voluntary switches of each of its threads are read from `/proc`, twice: the difference is
//! how often it woke.
use super::server::{directory, listens, volume};
use crate::prelude::*;
use std::collections::BTreeMap;
use system::program::Waits;

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
    let volume = volume("nbd", "path", uris, &directory);
    let config = format!("cores = {cores}\n{volume}");
    Server::braid(braid, "run", directory, &config, listens)
}

/// Voluntary switches of threads, by name and number.
type Switches = BTreeMap<(String, u32), u64>;

/// Measures and prints.
pub fn run(setup: &Setup, args: &Args) -> Result<()> {
    let braid = setup.braid()?;
    let target = Target::start(&braid, args.paths, None, Waits::Adaptive)?;
    let host = idle_engine(&braid, &target.uris, args.cores)?;
    sleep(SETTLE);
    let begun = Instant::now();
    let (host, target) = (host.id(), target.id());
    let before = [switches(host)?, switches(target)?];
    sleep(Duration::from_secs(args.seconds));
    let minutes = begun.elapsed().as_secs_f64() / 60.0;
    let mut cells = process("host", host, &before[0], minutes)?;
    let (sockets, wanted) = (&cells[0]["sockets"], args.paths * (args.cores + 1));
    ensure!(
        sockets.as_u64() >= Some(wanted as u64),
        "{sockets} of {wanted} connections (an admin one and one per core for each path)"
    );
    cells.extend(process("target", target, &before[1], minutes)?);
    let (paths, cores) = (args.paths, args.cores);
    let title = format!("{paths} paths x {cores} cores, connected and idle");
    setup.show(&title, &COLUMNS, cells);
    Ok(())
}

/// A process, then its threads; so many minutes after its threads had switched so often.
fn process(name: &str, id: u32, before: &Switches, minutes: f64) -> Result<Vec<Value>> {
    let status = read(&format!("/proc/{id}/status"))?;
    let links = fs::read_dir(format!("/proc/{id}/fd"))?;
    let links = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let sockets = links.filter(|link| link.to_string_lossy().starts_with("socket:"));
    let mib = |name| Ok::<f64, anyhow::Error>(count(&status, name)? as f64 / 1024.0);
    let threads = wakeups(before, &switches(id)?, minutes);
    let mut cells = vec![json!({
        "process": name, "thread": "all", "resident_mib": mib("VmRSS")?,
        "anonymous_mib": mib("RssAnon")?, "sockets": sockets.count(),
        "wakeups_per_min": threads.iter().map(|it| it.1).sum::<f64>(),
    })];
    cells.extend(
        threads.into_iter().map(
            |(thread, rate)| json!({"process": name, "thread": thread, "wakeups_per_min": rate}),
        ),
    );
    Ok(cells)
}

/// Switches of each thread between two looks, per minute.
fn wakeups(before: &Switches, after: &Switches, minutes: f64) -> Vec<(String, f64)> {
    let rate = |(thread, count): (&(String, u32), &u64)| {
        let since = count - before.get(thread).unwrap_or(&0);
        (thread.0.clone(), since as f64 / minutes)
    };
    after.iter().map(rate).collect()
}

/// Voluntary switches of the threads of a process, by name and number.
pub fn switches(id: u32) -> Result<Switches> {
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
    use super::{Switches, count, field, process, wakeups};

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
    fn a_thread_that_came_meanwhile_has_woken() {
        let thread = |name: &str, count| ((name.to_owned(), 1), count);
        let before = Switches::from([thread("a", 5)]);
        let after = Switches::from([thread("a", 8), thread("b", 10)]);
        let rates = [("a".to_owned(), 1.5), ("b".to_owned(), 5.0)];
        assert_eq!(wakeups(&before, &after, 2.0), rates);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let id = std::process::id();
        let cells = process("bench", id, &Switches::new(), 1.0).unwrap();
        let figures = ["resident_mib", "anonymous_mib"].map(|key| cells[0][key].as_f64().unwrap());
        assert!(figures[0] >= figures[1] && figures[1] > 0.0);
        assert!(cells.len() > 1, "a thread at least");
    }
}
