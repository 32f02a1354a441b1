//! A write that its host gave up is executed late: what becomes of the write after it (T9).
//!
//! # Contract
//! Two processes serve one file; the near one is sent a write of 1s and fails in one of several
//! ways before it has executed it. The engine repeats it on the other, and its client then writes
//! 2s to the same place. The near target executes its old copy as late as it may: then 1s in the
//! file mean that what was acknowledged is lost. With `immediate` that has to be seen where a kind
//! allows it at all, or the experiment shows nothing.
use super::engine::Keys;
use super::nbd::{BLOCK, Client};
use super::stage::{Stage, WHOLE};
use super::table::Table;
use super::{Common, stop};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::Read;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const BYTES: u64 = 1 << 20;
const TARGET: &str = "cqt = \"2s\"";
const ENGINE: &str = "keep_alive_tmo = \"500ms\"\nio_timeout = \"20s\"\nconnect_timeout = \"1s\"";
/// 2 × keep-alive + CQT, and what a busy machine takes.
const AFTER_BOUND: Duration = Duration::from_millis(3000 + 1500);
/// Where the machine is so busy that the old copy comes first, nothing can be seen.
const TRIES: usize = 3;

/// No options.
#[derive(clap::Args, Clone)]
pub struct Args {}

/// How the near target fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Killed,
    Reset,
    /// Only that of the I/O queue: the target can still be asked.
    ResetIo,
    Cut,
    /// Thawed before the bound.
    FrozenShort,
    /// Thawed after it.
    FrozenLong,
    /// The network resets its connections; thawed soon after, it finds the old copy in its
    /// socket, and the reset behind it.
    FrozenReset,
    /// Not the target: the engine.
    EngineKilled,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Killed => "target killed",
            Self::Reset => "connection reset",
            Self::ResetIo => "I/O connection reset, admin lives",
            Self::Cut => "network cut",
            Self::FrozenShort => "target frozen, thawed before the bound",
            Self::FrozenLong => "target frozen, thawed after the bound",
            Self::FrozenReset => "target frozen, connection reset, thawed soon",
            Self::EngineKilled => "engine killed, started again",
        }
    }

    /// When the old copy is executed, after its connection is gone. A reset is answered then, and
    /// has to be within the connect time-out.
    fn late(self) -> &'static str {
        match self {
            Self::ResetIo => "500ms",
            _ => "1500ms",
        }
    }

    fn freezes(self) -> bool {
        matches!(
            self,
            Self::FrozenShort | Self::FrozenLong | Self::FrozenReset
        )
    }

    /// Why the old copy can't come late, whatever the host does; `None`: it can.
    fn harmless(self) -> Option<&'static str> {
        match self {
            Self::Killed => Some("kept: nobody is left who could be late"),
            // Host and target count the same time from the same keep-alive.
            Self::FrozenShort | Self::FrozenLong => {
                Some("kept: thawed, the target knew that its keep-alive had passed")
            }
            // It may have read the old copy before it stood still, and then executes it.
            Self::FrozenReset => {
                Some("kept: thawed, the target drops what it had not read before the reset")
            }
            _ => None,
        }
    }
}

/// Result of one run.
struct Outcome {
    /// First byte of the file.
    found: u8,
    /// `failover` in `stat`.
    failover: Value,
    /// From the fault until the first write was acknowledged, or the second to the new engine.
    acknowledged: Duration,
}

/// Runs every kind in both ways and prints.
///
/// # Errors
/// A write was lost with `fenced`, or with `immediate` none was lost where it has to be.
pub fn run(common: &Common) -> Result<()> {
    let namespaces = common.namespaces();
    let mut kinds = vec![
        Kind::Killed,
        Kind::Reset,
        Kind::FrozenShort,
        Kind::FrozenLong,
    ];
    if namespaces {
        kinds.extend([Kind::ResetIo, Kind::Cut, Kind::FrozenReset]);
    }
    kinds.push(Kind::EngineKilled);
    let columns = [
        "kind",
        "write_failover",
        "acknowledged_after_s",
        "held_s",
        "released_by",
        "found",
        "verdict",
    ];
    let mut table = Table::new(&columns);
    let mut wrong = Vec::new();
    for kind in kinds {
        for mode in ["fenced", "immediate"] {
            common.progress(&format!("{}, {mode}", kind.name()));
            let outcome = tried(common, namespaces, kind, mode)?;
            let verdict = verdict(kind, mode, outcome.found);
            let released = released(&outcome.failover);
            let held = outcome.failover["held_ns_max"].as_f64().unwrap_or(0.0) / 1e9;
            table.row(vec![
                kind.name().into(),
                mode.into(),
                json!(outcome.acknowledged.as_secs_f64()),
                if held > 0.0 { json!(held) } else { Value::Null },
                released.into(),
                outcome.found.into(),
                verdict.into(),
            ]);
            if verdict.starts_with("WRONG") {
                wrong.push(format!("{}, {mode}", kind.name()));
            }
        }
    }
    common.progress("");
    let head = format!(
        "a write of 1s that may come late, then one of 2s; targets: {TARGET}, engine: {}",
        ENGINE.replace('\n', ", ")
    );
    common.show("late", &head, &table, json!({}));
    ensure!(
        wrong.is_empty(),
        "not as it has to be: {}",
        wrong.join("; ")
    );
    Ok(())
}

fn verdict(kind: Kind, mode: &str, found: u8) -> &'static str {
    match (mode, found) {
        (_, 2) if mode == "fenced" => "kept",
        (_, 2) if kind.harmless().is_some() => kind.harmless().unwrap_or_default(),
        ("immediate", 1) => "LOST, as it may be: this is what fencing is for",
        ("immediate", 2) => "WRONG: the old copy was not late, so nothing is shown",
        (_, 1) => "WRONG: an acknowledged write is lost",
        _ => "WRONG: neither write is there",
    }
}

fn released(failover: &Value) -> &'static str {
    let count = |key: &str| failover[key].as_u64().unwrap_or(0) > 0;
    match (count("held_proved_total"), count("held_bounded_total")) {
        (true, _) => "proof",
        (_, true) if count("held_unclean_stop_total") => "the bound of an unclean stop",
        (_, true) => "the bound",
        _ => "-",
    }
}

/// Until it shows something.
fn tried(common: &Common, namespaces: bool, kind: Kind, mode: &str) -> Result<Outcome> {
    let mut outcome = experiment(common, namespaces, kind, mode)?;
    for _ in 1..TRIES {
        if !verdict(kind, mode, outcome.found).ends_with("nothing is shown") {
            break;
        }
        outcome = experiment(common, namespaces, kind, mode)?;
    }
    Ok(outcome)
}

fn experiment(common: &Common, namespaces: bool, kind: Kind, mode: &str) -> Result<Outcome> {
    let mut stage = Stage::targets(&common.program, "late", 2, namespaces, (BYTES, TARGET))?;
    let volume = format!("policy = \"numa\"\nwrite_failover = \"{mode}\"");
    let keys = Keys {
        engine: ENGINE,
        volume: &volume,
    };
    let distance = |way: usize| format!("?distance={}", way + 1);
    stage.run(keys, distance)?;
    let frozen = kind.freezes();
    if frozen {
        let target = &stage.targets[0];
        target.freeze()?;
        stop::wait("the target stands still", WHOLE, || {
            Ok(target.is_stopped()?.then_some(()))
        })?;
    } else {
        if kind == Kind::ResetIo {
            used(&stage)?;
        }
        let late = format!("late_writes={}", kind.late());
        stage.targets[0].set(&["hold_writes=1h", &late])?;
    }
    let writes = client(&stage, &[1, 2])?;
    stop::wait("the first write is under way", WHOLE, || match frozen {
        true => {
            let stat = stage.engine()?.stat()?;
            Ok(stat["paths"][0]["inflight"].as_u64().filter(|it| *it > 0))
        }
        false => Ok(Some(stage.targets[0].injected("held_writes")?).filter(|it| *it > 0)),
    })?;
    let failed = Instant::now();
    fail(&mut stage, kind, (mode, keys, &distance))?;
    let writes = match kind {
        Kind::EngineKilled => client(&stage, &[2])?,
        _ => writes,
    };
    let mut acknowledged = Duration::ZERO;
    if matches!(kind, Kind::FrozenShort | Kind::FrozenReset) {
        if kind == Kind::FrozenShort {
            stop::pause(Duration::from_millis(2000))?;
        }
        if mode == "immediate" {
            acknowledged = done(&writes, failed)?;
        }
        stage.targets[0].thaw()?;
    }
    if acknowledged.is_zero() {
        acknowledged = done(&writes, failed)?;
    }
    if kind == Kind::FrozenLong {
        let rest = AFTER_BOUND.saturating_sub(failed.elapsed());
        stop::pause(rest)?;
        stage.targets[0].thaw()?;
    }
    late(&stage, kind, frozen)?;
    let mut byte = [0];
    std::fs::File::open(stage.path("data"))?.read_exact(&mut byte)?;
    let failover = stage.engine()?.stat()?["failover"].take();
    Ok(Outcome {
        found: byte[0],
        failover,
        acknowledged,
    })
}

/// The I/O queue's connection becomes the busiest of the near way.
fn used(stage: &Stage) -> Result<()> {
    let mut client = Client::open(&stage.engine()?.export())?;
    let mut block = [0; BLOCK];
    (1..128).try_for_each(|at| client.read(at * BLOCK as u64, &mut block))
}

/// Waits until the old copy has been executed, or could have been.
fn late(stage: &Stage, kind: Kind, frozen: bool) -> Result<()> {
    match kind {
        Kind::Killed => Ok(()),
        // The target is the same as ever: when it has answered, it has read what there was.
        _ if frozen => {
            stage.targets[0].injected("held_writes")?;
            stop::pause(Duration::from_millis(1500))
        }
        _ => stop::wait("the old copy is executed", WHOLE, || {
            let late = stage.targets[0].injected("late_writes")?;
            Ok((late > 0).then_some(()))
        }),
    }
}

fn fail(
    stage: &mut Stage,
    kind: Kind,
    (mode, keys, distance): (&str, Keys, &dyn Fn(usize) -> String),
) -> Result<()> {
    match kind {
        Kind::Killed => stage.targets[0].kill(),
        Kind::Reset => {
            stage.targets[0].set(&["refuse=1h"])?;
            stage.targets[0].drop_connections()?;
        }
        Kind::ResetIo => {
            stage.targets[0].set(&["refuse=1h"])?;
            stage.net.reset_busiest(0)?;
        }
        Kind::Cut => stage.net.cut(0)?,
        Kind::FrozenShort | Kind::FrozenLong => {}
        Kind::FrozenReset => stage.net.reset(0)?,
        Kind::EngineKilled => {
            stage.engine = None;
            // The old copy is to come late, and the new write to go where it overtakes it.
            stage.targets[0].set(&["refuse=1h"])?;
            let uris = stage.targets.iter().enumerate();
            let uris: Vec<String> = uris
                .map(|(way, it)| format!("{}{}", it.uri, distance(way)))
                .collect();
            let (program, directory) = (&stage.program, &stage.directory.0);
            let engine = super::engine::Engine::start(program, directory, &stage.net, keys, &uris);
            let engine = engine.with_context(|| format!("{mode}: start again"))?;
            engine.wait_live(1, WHOLE)?;
            stage.engine = Some(engine);
        }
    }
    Ok(())
}

/// Writes one block after the other to the same place; when each was acknowledged.
fn client(stage: &Stage, values: &'static [u8]) -> Result<Receiver<Result<Instant>>> {
    let mut client = Client::open(&stage.engine()?.export())?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for value in values {
            let done = client.write(0, &[*value; BLOCK]);
            let _ = sender.send(done.map(|()| Instant::now()));
        }
    });
    Ok(receiver)
}

/// All writes are acknowledged; the first of them how long after the fault.
fn done(writes: &Receiver<Result<Instant>>, failed: Instant) -> Result<Duration> {
    let mut first = None;
    loop {
        stop::check()?;
        match writes.recv_timeout(Duration::from_millis(50)) {
            Ok(acknowledged) => {
                let at = acknowledged.context("a write failed")?;
                first.get_or_insert(at.saturating_duration_since(failed));
            }
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                return first.context("no write was acknowledged");
            }
            Err(_) if failed.elapsed() > WHOLE => bail!("the writes hang"),
            Err(_) => {}
        }
    }
}
