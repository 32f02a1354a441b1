//! Clients of hardware queues that are killed, beside NBD clients and an honest queue client.
//!
//! # Contract
//! An engine has a volume over two targets and one over a file, each as an NBD export and as a
//! namespace of one queue server, and one in memory. Clients are started four at a time; each opens
//! a queue, reads and writes, and is killed (SIGKILL) at a random time from its start on. Beside
//! them both exports are written and read by NBD, and verified loads run over a queue one after the
//! other. No connection of these ends, no I/O of theirs fails or is lost, and each of them goes on
//! while [`WINDOW`] clients die. In the end the engine has as many descriptors, mappings of queues
//! and threads as when [`FIRST`] clients had died.
//!
//! # Limits
//! The heap of the server: `cargo test -p braid-broker --test deaths`.
use super::Common;
use super::change::writers::{Ledger, Writer};
use super::engine::{Engine, SHORT};
use super::plan::Random;
use super::stage::Stage;
use super::stop;
use super::table::Table;
use super::target::call;
use crate::process::Group;
use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// Clients that die before anything is counted.
const FIRST: u64 = 100;
/// Clients that live at once.
const AT_ONCE: u64 = 4;
/// While so many die, each honest client goes on.
const WINDOW: u64 = 100;
/// Longest life of one, ms.
const LIFE_MS: u64 = 150;
/// Bytes of each volume.
const VOLUME_BYTES: u64 = 16 << 20;
/// Longest wait until the engine holds nothing of the dead.
const SETTLED: Duration = Duration::from_secs(60);
/// Volumes by their NSID.
const VOLUMES: [&str; 3] = ["v1", "f2", "memory"];

/// Options.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Clients that die
    #[arg(long, default_value_t = 1000)]
    clients: u64,
}

impl Args {
    /// As they are to be repeated.
    pub fn words(&self) -> String {
        format!("clients --clients {}", self.clients)
    }
}

/// Those who die and those who see it.
struct Deaths<'a> {
    stage: &'a Stage,
    seed: u64,
    /// Clients that were started.
    begun: AtomicU64,
    dead: AtomicU64,
    /// As many are started.
    end: AtomicU64,
    /// No verified load is begun any more.
    over: AtomicBool,
    /// Of these, those that were refused a queue: those of the dead come back in their own time.
    refused: AtomicU64,
    /// Verified loads that were done.
    loads: AtomicU64,
}

/// Runs and prints.
///
/// # Errors
/// An honest client was disturbed, or something is held for the dead.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let bytes = (VOLUME_BYTES, "");
    let mut stage = Stage::targets(&common.program, "clients", 2, false, bytes)?;
    File::create(stage.path("f2"))?.set_len(VOLUME_BYTES)?;
    let text = text(&stage);
    let engine = Engine::start_as(&common.program, &stage.directory.0, &stage.net, &text)?;
    stage.engine = Some(engine);
    let deaths = Deaths {
        stage: &stage,
        seed: common.seed,
        begun: AtomicU64::new(0),
        dead: AtomicU64::new(0),
        end: AtomicU64::new(0),
        over: AtomicBool::new(false),
        refused: AtomicU64::new(0),
        loads: AtomicU64::new(0),
    };
    stop::wait("volumes are ready", SETTLED, || {
        let check = call(&stage.engine()?.socket(), "check", &json!({"volume": null}))?;
        Ok((check["state"] == "ok").then_some(()))
    })?;
    let log = || stage.engine.as_ref().map_or_else(String::new, Engine::log);
    let (table, writes, commands) = deaths.all(common, args.clients).with_context(log)?;
    common.progress("");
    let head = format!(
        "{} clients of queues died: nothing of them is left, and no other client noticed",
        args.clients
    );
    let loads = deaths.loads.load(Ordering::Relaxed);
    let refused = deaths.refused.load(Ordering::Relaxed);
    let more = json!({"writes_over_NBD": writes, "verified_loads_over_a_queue": loads,
                      "commands_of_the_dead_for_memory": commands, "refused_a_queue": refused});
    common.show("clients", &head, &table, more);
    Ok(())
}

/// Configuration of the engine.
fn text(stage: &Stage) -> String {
    let export = |name: &str| {
        let socket = stage.path(&format!("{name}.sock"));
        format!("[[volume.export]]\nnbd = \"unix:{}\"\n", socket.display())
    };
    let path = |uri: &str| format!("[[volume.path]]\nuri = \"{uri}\"\n");
    let of_targets: String = stage.targets.iter().map(|it| path(&it.uri)).collect();
    let of_file = path(&format!("file:{}", stage.path("f2").display()));
    let (v1, f2) = (export("v1"), export("f2"));
    let mut text = format!(
        "{}\ncores = 2\n[[volume]]\nname = \"v1\"\n{}\n{v1}{of_targets}\
         [[volume]]\nname = \"f2\"\n{f2}{of_file}\
         [[volume]]\nname = \"memory\"\n{}[[queue]]\nsocket = \"{}\"\nuser_poll = 16\n",
        SHORT.engine,
        SHORT.volume,
        path(&format!("mem:{VOLUME_BYTES}")),
        stage.path("q.sock").display()
    );
    for (nsid, volume) in (1..).zip(VOLUMES) {
        text += &format!("[[queue.namespace]]\nvolume = \"{volume}\"\nnsid = {nsid}\n");
    }
    text
}

impl Deaths<'_> {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed) || stop::check().is_err()
    }

    /// Returns how much the engine holds before and after, writes by NBD, and commands of the dead.
    fn all(&self, common: &Common, clients: u64) -> Result<(Table, u64, u64)> {
        let start = |name: &str| {
            let socket = self.stage.path(&format!("{name}.sock"));
            Writer::start(socket, name, Ledger::default(), self.seed)
        };
        let writers = [start("v1")?, start("f2")?];
        self.die_beside(common, FIRST, &writers)?;
        let before = self.settled()?;
        self.die_beside(common, FIRST + clients, &writers)?;
        let after = self.settled()?;
        let mut table = Table::new(&["held by the engine", "before", "after"]);
        for (what, count) in &before {
            table.row(vec![(*what).into(), (*count).into(), after[what].into()]);
        }
        ensure!(before == after, "held: {before:?} before, {after:?} after");
        let mut writes = 0;
        for writer in writers {
            ensure!(!writer.is_over(), "a connection of an NBD client has ended");
            writes += writer.count();
            writer.end()?;
        }
        let commands = self.ensure_no_errors()?;
        Ok((table, writes, commands))
    }

    /// Clients die until so many have; each of the others goes on.
    fn die_beside(&self, common: &Common, end: u64, writers: &[Writer; 2]) -> Result<()> {
        self.end.store(end, Ordering::Relaxed);
        let counts = || {
            let of_nbd = writers.each_ref().map(Writer::count);
            [of_nbd[0], of_nbd[1], self.loads.load(Ordering::Relaxed)]
        };
        std::thread::scope(|scope| {
            self.over.store(false, Ordering::Relaxed);
            let honest = scope.spawn(|| self.verified_loads());
            let dying: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(|| self.die())).collect();
            let (mut seen, mut before) = (self.dead.load(Ordering::Relaxed), counts());
            let mut done = Ok(());
            while !dying.iter().all(ScopedJoinHandle::is_finished) {
                std::thread::sleep(Duration::from_millis(5));
                let dead = self.dead.load(Ordering::Relaxed);
                common.progress(&format!("{dead} of {end} have died"));
                if dead - seen < WINDOW || done.is_err() {
                    continue;
                }
                let now = counts();
                let goes_on = before.iter().zip(now).all(|(before, now)| *before < now);
                if !goes_on {
                    done = Err(anyhow!(
                        "{WINDOW} clients died, and an honest one did nothing: {before:?}, {now:?}"
                    ));
                    self.end.store(0, Ordering::Relaxed);
                }
                (seen, before) = (dead, now);
            }
            let mut threads = dying;
            self.over.store(true, Ordering::Relaxed);
            threads.push(honest);
            for it in threads {
                done = done.and(it.join().unwrap_or_else(|_| bail!("a thread panicked")));
            }
            done
        })
    }

    /// Starts clients and kills them, one after the other.
    fn die(&self) -> Result<()> {
        loop {
            stop::check()?;
            let number = self.begun.fetch_add(1, Ordering::Relaxed);
            if number >= self.end.load(Ordering::Relaxed) {
                self.begun.fetch_sub(1, Ordering::Relaxed);
                return Ok(());
            }
            let mut random = Random(self.seed.wrapping_add(number));
            let mut one_of = |words: [&'static str; 3]| words[random.below(3) as usize];
            let (nsid, rw) = (
                one_of(["1", "2", "3"]),
                one_of(["randread", "randwrite", "randrw"]),
            );
            let (bs, depth) = (one_of(["4k", "16k", "256k"]), one_of(["1", "8", "32"]));
            let kind = one_of(["user_poll", "user_poll", "user_irq"]);
            let words = [
                "--nsid",
                nsid,
                "--rw",
                rw,
                "--bs",
                bs,
                "--iodepth",
                depth,
                "--kind",
                kind,
                "--offset",
                "8m",
                "--size",
                "8m",
                "--runtime",
                "600",
            ];
            let mut client = Group::spawn(&mut self.bench(&words))?;
            std::thread::sleep(Duration::from_millis(random.below(LIFE_MS)));
            if let Some(status) = client.child().try_wait()? {
                ensure!(status.code() == Some(1), "client {number}: {status}");
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            drop(client);
            self.dead.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A load over a queue.
    fn bench(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.stage.program);
        command.args(["queue", "bench", "--socket"]);
        command.arg(self.stage.path("q.sock")).args(words);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(Stdio::null());
        command
    }

    /// Verified loads over a queue, one after the other.
    fn verified_loads(&self) -> Result<()> {
        while !self.is_over() {
            for nsid in ["1", "2"] {
                let words = [
                    "--nsid",
                    nsid,
                    "--rw",
                    "randrw",
                    "--bs",
                    "4k",
                    "--iodepth",
                    "4",
                    "--offset",
                    "1m",
                    "--size",
                    "512k",
                    "--verify",
                    "-o",
                    "json",
                ];
                let mut load = self.bench(&words);
                load.stdout(Stdio::piped()).stderr(Stdio::piped());
                let output = load.output()?;
                let said = String::from_utf8_lossy(&output.stderr);
                if said.contains("serve more: --user-poll") {
                    continue; // those of the dead come back in their own time
                }
                ensure!(output.status.success(), "a verified load: {said}");
                let facts: Value = serde_json::from_slice(&output.stdout)?;
                ensure!(facts["errors"] == 0, "a verified load: {facts}");
                self.loads.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Waits until no queue is open, and the engine holds the same for a while; how much.
    fn settled(&self) -> Result<BTreeMap<&'static str, u64>> {
        let pid = self.stage.engine()?.id();
        let (mut last, mut same) = (BTreeMap::new(), 0);
        stop::wait("nothing is held for the dead", SETTLED, || {
            std::thread::sleep(Duration::from_millis(10));
            let now = held(pid)?;
            same = if now == last { same + 1 } else { 0 };
            last = now;
            Ok((same == 20).then(|| last.clone()))
        })
    }

    /// No I/O of an NBD client has failed. Commands for the volume in memory, which only clients
    /// that die use.
    fn ensure_no_errors(&self) -> Result<u64> {
        let stat = call(&self.stage.engine()?.socket(), "stat", &json!({}))?;
        let volumes = stat["volumes"].as_array().context("volumes")?;
        for of in volumes {
            for export in of["exports"].as_array().context("exports")? {
                let is_nbd = export["uri"]
                    .as_str()
                    .is_some_and(|it| it.starts_with("nbd"));
                ensure!(!is_nbd || export["errors"] == 0, "errors: {export}");
            }
        }
        let memory = volumes.iter().find(|it| it["name"] == "memory");
        let commands = memory.and_then(|it| it["exports"][0]["requests"].as_u64());
        let commands = commands.context("no commands")?;
        ensure!(commands > 0, "no client had a queue before it died");
        Ok(commands)
    }
}

/// Descriptors of a process, its mappings of queues, and its threads but those that come and go
/// with I/O: of io_uring and of files.
fn held(pid: u32) -> Result<BTreeMap<&'static str, u64>> {
    let of = Path::new("/proc").join(pid.to_string());
    let descriptors = fs::read_dir(of.join("fd"))?.count();
    let maps = fs::read_to_string(of.join("maps"))?;
    let mut threads = 0;
    for task in fs::read_dir(of.join("task"))? {
        // One may end meanwhile.
        let name = fs::read_to_string(task?.path().join("comm")).unwrap_or_default();
        let comes_and_goes = ["iou-", "braid-file"].iter().any(|it| name.starts_with(it));
        threads += u64::from(!comes_and_goes && !name.is_empty());
    }
    Ok(BTreeMap::from([
        ("descriptors", descriptors as u64),
        ("mappings", maps.matches("memfd:braid-").count() as u64),
        ("threads", threads),
    ]))
}
