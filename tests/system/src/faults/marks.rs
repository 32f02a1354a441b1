//! `kill -9` of an engine with a write under way, and the next one started in some other way.
//!
//! # Contract
//! A round: two targets over one file; the first holds a write of the engine, which is killed then.
//! The next engine is started through a link, under another control socket, with the state
//! directory given to another user, after the socket was removed and a second engine tried to
//! start, or with a state directory that is full or read-only. Its write to the same block must be
//! acknowledged after the old one can't be executed any more, or the engine or its volume must be
//! refused: the old write is executed before that, and never shows afterwards.
//!
//! # Limits
//! A full or read-only state directory needs root (a tmpfs is mounted for it); without, these
//! rounds are left out, and so is another user's directory.
use super::engine::{Engine, Keys, SHORT};
use super::nbd::{BLOCK, Client};
use super::plan::Random;
use super::stage::{Stage, WHOLE};
use super::table::Table;
use super::{Common, stop};
use crate::process::is_installed;
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How long after the kill the old write is executed. The bound, twice the keep-alive time and the
/// quiesce time of [`SHORT`], is 1.5 s.
const LATE_MS: u64 = 700;
const VOLUME_BYTES: u64 = 16 << 20;

/// Options.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Kills
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
}

impl Args {
    /// As they are to be repeated.
    pub fn words(&self) -> String {
        format!("marks --rounds {}", self.rounds)
    }
}

/// How the next engine is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Same,
    Link,
    OtherSocket,
    OtherOwner,
    RemovedSocket,
    Full,
    ReadOnly,
}

impl Way {
    const ALL: [Self; 7] = [
        Self::Same,
        Self::Link,
        Self::OtherSocket,
        Self::OtherOwner,
        Self::RemovedSocket,
        Self::Full,
        Self::ReadOnly,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Same => "as before",
            Self::Link => "through a link",
            Self::OtherSocket => "another control socket",
            Self::OtherOwner => "state directory of another user",
            Self::RemovedSocket => "socket removed, a second engine tried",
            Self::Full => "state directory full",
            Self::ReadOnly => "state directory read-only",
        }
    }

    fn needs_root(self) -> bool {
        matches!(self, Self::OtherOwner | Self::Full | Self::ReadOnly)
    }
}

/// Result of a round.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    rounds: u32,
    fenced: u32,
    refused: u32,
}

/// A file system of its own for the state directory, while it is there.
struct Mounted(PathBuf);

impl Mounted {
    fn new(at: &Path) -> Result<Self> {
        std::fs::create_dir_all(at)?;
        mount(&["-t", "tmpfs", "-o", "size=256k,mode=755", "tmpfs"], at)?;
        Ok(Self(at.into()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(words: &[&str], at: &Path) -> Result<()> {
    let status = Command::new("mount").args(words).arg(at).status()?;
    ensure!(status.success(), "mount {words:?}: {status}");
    Ok(())
}

/// Runs all rounds and prints.
///
/// # Errors
/// A write was acknowledged and undone, or an engine did what none of the above is.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let root = rustix::process::geteuid().is_root() && is_installed("mount") && can_mount();
    if !root {
        common.leave_out(
            "full, read-only and other users' state directories",
            "needs root",
        );
    }
    let ways = Way::ALL.into_iter().filter(|way| root || !way.needs_root());
    let ways: Vec<Way> = ways.collect();
    let mut random = Random(common.seed);
    let mut sums: BTreeMap<Way, Sum> = BTreeMap::new();
    for round in 0..args.rounds {
        // Each way comes once before any comes again.
        let way = match (round as usize) < ways.len() {
            true => ways[(round as usize + common.seed as usize) % ways.len()],
            false => ways[random.below(ways.len() as u64) as usize],
        };
        common.progress(&format!("round {round} of {}: {}", args.rounds, way.name()));
        let fenced = one(common, way, &mut random)
            .with_context(|| format!("round {round} of {}, {}", args.rounds, way.name()))?;
        let sum = sums.entry(way).or_default();
        sum.rounds += 1;
        sum.fenced += u32::from(fenced);
        sum.refused += u32::from(!fenced);
    }
    common.progress("");
    let mut table = Table::new(&["next engine", "kills", "fenced", "refused"]);
    for (way, sum) in &sums {
        let counts = [sum.rounds, sum.fenced, sum.refused].map(Value::from);
        table.row([&[way.name().into()][..], &counts].concat());
    }
    let head = format!(
        "{} kills of an engine with a write under way: nothing acknowledged was undone",
        args.rounds
    );
    common.show("marks", &head, &table, json!({}));
    Ok(())
}

fn can_mount() -> bool {
    let at = std::env::temp_dir().join(format!("braid-faults-{}-mount", std::process::id()));
    let mounted = Mounted::new(&at).is_ok();
    let _ = std::fs::remove_dir(&at);
    mounted
}

/// One round: whether the write was fenced; else the volume was refused.
fn one(common: &Common, way: Way, random: &mut Random) -> Result<bool> {
    let bytes = (VOLUME_BYTES, "");
    let mut stage = Stage::targets(&common.program, "marks", 2, false, bytes)?;
    let state = stage.path("state");
    let _mounted = match way {
        Way::Full | Way::ReadOnly => Some(Mounted::new(&state)?),
        _ => None,
    };
    stage.run(keys(1), |_| String::new())?;
    let late = format!("late_writes={LATE_MS}ms");
    stage.targets[0].set(&["hold_writes=1h", &late])?;
    let mut client = Client::open(&stage.engine()?.export())?;
    // On a busy machine the first path may be on probation, and a write goes by the other one.
    let writer = std::thread::spawn(move || while client.write(0, &[1; BLOCK]).is_ok() {});
    let under_way = stop::wait("the write is under way", WHOLE, || {
        let held = stage.targets[0].injected("held_writes")?;
        Ok((held > 0).then_some(()))
    });
    under_way.with_context(|| stage.engine.as_ref().map_or_else(String::new, Engine::log))?;
    stop::pause(Duration::from_micros(random.below(50_000)))?;
    if way == Way::RemovedSocket {
        std::fs::remove_file(stage.engine()?.socket())?;
        second_is_refused(&stage)?;
    }
    stage.engine = None;
    let killed = Instant::now();
    let _ = writer.join();
    prepare(&stage, way, &state)?;
    let socket = match way {
        Way::Link => stage.path("link").join("engine.sock"),
        Way::OtherSocket => stage.path("other.sock"),
        _ => stage.path("engine.sock"),
    };
    // The new write goes by the other path, where it overtakes the old one.
    let fenced = match start(&stage, keys(2), &socket) {
        Ok(engine) => write_again(&engine, killed)?,
        Err(why) => {
            let text = format!("{why:#}");
            ensure!(text.contains("braid run:"), "{text}");
            false
        }
    };
    // Whatever was acknowledged stays.
    if fenced {
        let mut byte = [0];
        std::fs::File::open(stage.path("data"))?.read_exact(&mut byte)?;
        ensure!(byte == [2], "an acknowledged write was undone: {byte:?}");
    }
    Ok(fenced)
}

/// Damage to the state directory before the next engine is started.
fn prepare(stage: &Stage, way: Way, state: &Path) -> Result<()> {
    match way {
        Way::Link => std::os::unix::fs::symlink(&stage.directory.0, stage.path("link"))?,
        Way::OtherOwner => {
            for entry in [state.to_owned(), state.join("braid")] {
                let status = Command::new("chown")
                    .arg("65534:65534")
                    .arg(&entry)
                    .status()?;
                ensure!(status.success(), "chown: {status}");
            }
        }
        Way::Full => {
            let filler = std::fs::File::create(state.join("filler"))?;
            let mut writer = std::io::BufWriter::new(filler);
            let _ = std::io::copy(&mut std::io::repeat(1), &mut writer);
        }
        Way::ReadOnly => mount(&["-o", "remount,ro"], state)?,
        _ => {}
    }
    Ok(())
}

/// Every I/O goes by the path of this number.
fn keys(path: u8) -> Keys<'static> {
    let volume = match path {
        1 => "policy = \"devid:1\"\nquiesce_time = \"500ms\"",
        _ => "policy = \"devid:2\"\nquiesce_time = \"500ms\"",
    };
    Keys { volume, ..SHORT }
}

/// Starts an engine over both targets, with this control socket.
fn start(stage: &Stage, keys: Keys, socket: &Path) -> Result<Engine> {
    let uris: Vec<String> = stage.targets.iter().map(|it| it.uri.clone()).collect();
    let text = Engine::configuration(&stage.directory.0, keys, &uris);
    Engine::start_on(
        &stage.program,
        &stage.directory.0,
        &stage.net,
        &text,
        socket,
    )
}

/// A second engine with the same configuration does not start while the first one runs.
fn second_is_refused(stage: &Stage) -> Result<()> {
    let socket = stage.path("engine.sock");
    match start(stage, keys(2), &socket) {
        Ok(_) => bail!("a second engine has started beside the first one"),
        Err(why) => {
            let text = format!("{why:#}");
            ensure!(text.contains("another engine (process"), "{text}");
            Ok(())
        }
    }
}

/// Writes the block anew: true if it was acknowledged and stays; false if the volume is not opened.
fn write_again(engine: &Engine, killed: Instant) -> Result<bool> {
    let opened = stop::wait("the volume is open, or refused", WHOLE, || {
        let live = super::engine::live(&engine.stat()?) > 0;
        let refused = engine.log().contains("it is not opened");
        Ok((live || refused).then_some(live))
    });
    let opened = opened.with_context(|| engine.log())?;
    if !opened {
        return Ok(false);
    }
    let mut client = Client::open(&engine.export())?;
    client.write(0, &[2; BLOCK])?;
    client.flush()?;
    // The old write has been executed by then, or never will be.
    stop::pause(Duration::from_millis(2 * LATE_MS).saturating_sub(killed.elapsed()))?;
    let mut block = [0; BLOCK];
    client.read(0, &mut block)?;
    ensure!(block == [2; BLOCK], "an acknowledged write was undone");
    Ok(true)
}
