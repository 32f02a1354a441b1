//! No path at all: I/O waits and goes on, or fails at the stated time; SIGTERM ends the engine.
//!
//! # Contract
//! Every case is an installation of its own with two targets. A case that is not as it has to be is
//! a row that says so, and fails the part.
use super::engine::{Engine, Keys, SHORT};
use super::nbd::{BLOCK, Client};
use super::plan::Kind;
use super::probe::{Probe, Slow};
use super::stage::{Stage, WHOLE};
use super::table::Table;
use super::{Common, stop};
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const WAYS: usize = 2;
const BYTES: u64 = 16 << 20;
/// The `drain_timeout` of [`SHORT`].
const DRAIN: Duration = Duration::from_secs(5);
/// Of the engine's work beside any time-out, on a busy machine.
const BUSY: Duration = Duration::from_secs(5);
/// Key and value with which I/O fails when the last path was lost so long ago.
const FAIL_FAST: (&str, Duration) = ("fast_io_fail_tmo = \"5s\"", Duration::from_secs(5));

/// How long.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Time without any path.
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
}

impl Args {
    /// As they were typed.
    pub fn words(&self) -> String {
        format!("down --seconds {}", self.seconds)
    }
}

/// Result of a case.
struct Outcome {
    case: String,
    expected: String,
    seen: String,
    well: bool,
}

/// Runs all cases and prints.
///
/// # Errors
/// A case is not as it has to be, or the machine refuses something.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let namespaces = common.namespaces();
    let mut kinds = vec![Kind::Kill, Kind::Freeze];
    if namespaces {
        kinds.push(Kind::Cut);
    }
    let mut outcomes = Vec::new();
    for kind in &kinds {
        common.progress(&format!("all down: {}", kind.name()));
        outcomes.push(resumes(common, namespaces, *kind, args.seconds)?);
    }
    for kind in &kinds {
        common.progress(&format!("fail fast: {}", kind.name()));
        outcomes.push(fails(common, namespaces, *kind)?);
    }
    for state in STATES {
        common.progress(&format!("SIGTERM: {}", state.name()));
        outcomes.push(terminated(common, namespaces, state)?);
    }
    common.progress("");
    let mut table = Table::new(&["case", "expected", "seen", "verdict"]);
    for outcome in &outcomes {
        let verdict = if outcome.well { "ok" } else { "WRONG" };
        table.row(vec![
            outcome.case.as_str().into(),
            outcome.expected.as_str().into(),
            outcome.seen.as_str().into(),
            verdict.into(),
        ]);
    }
    let head = format!("{WAYS} paths, knobs: {}", SHORT.words());
    common.show("down", &head, &table, json!({}));
    let wrong = outcomes.iter().filter(|it| !it.well).count();
    ensure!(wrong == 0, "{wrong} cases are not as they have to be");
    Ok(())
}

fn stage(common: &Common, namespaces: bool, volume: &str) -> Result<Stage> {
    let mut stage = Stage::targets(&common.program, "down", WAYS, namespaces, (BYTES, ""))?;
    let keys = Keys { volume, ..SHORT };
    stage.run(keys, |_| String::new())?;
    Ok(stage)
}

fn all(stage: &mut Stage, act: impl Fn(&mut Stage, usize) -> Result<()>) -> Result<()> {
    (0..WAYS).try_for_each(|way| act(stage, way))
}

/// Without any time-out: everything waits, and goes on.
fn resumes(common: &Common, namespaces: bool, kind: Kind, seconds: u64) -> Result<Outcome> {
    let mut stage = stage(common, namespaces, SHORT.volume)?;
    let probe = Probe::start(&stage.engine()?.export(), common.seed)?;
    stop::pause(Duration::from_millis(300))?;
    all(&mut stage, |stage, way| stage.hit(way, kind))?;
    let down = Duration::from_secs(seconds);
    stop::pause(down)?;
    probe.check()?;
    probe.take_slow();
    all(&mut stage, |stage, way| stage.heal(way, kind))?;
    let back = probe.now();
    stage.engine()?.wait_whole(WHOLE)?;
    stop::wait("the client goes on", WHOLE, || {
        Ok(probe.has_gone_on_since(back)?.then_some(()))
    })?;
    let longest = probe.take_slow().iter().map(Slow::took).max();
    let longest = longest.context("nothing waited")?;
    let (_, verified) = probe.finish()?;
    Ok(Outcome {
        case: format!("all paths: {} for {seconds} s", kind.name()),
        expected: "I/O waits, then goes on".into(),
        seen: format!(
            "longest wait {:.1} s, 0 errors, {verified} blocks verified",
            longest.as_secs_f64()
        ),
        well: longest + Duration::from_secs(1) >= down,
    })
}

/// One request on a connection of its own: what became of it, and after how long.
fn request(stage: &Stage, write: bool) -> Result<Receiver<(Result<()>, Duration)>> {
    let mut client = Client::open(&stage.engine()?.export())?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let begun = Instant::now();
        let mut block = [7; BLOCK];
        let done = match write {
            true => client.write(0, &block),
            false => client.read(BLOCK as u64, &mut block),
        };
        let _ = sender.send((done, begun.elapsed()));
    });
    Ok(receiver)
}

/// With a time-out: errors come at the stated time, and afterwards it works again.
fn fails(common: &Common, namespaces: bool, kind: Kind) -> Result<Outcome> {
    let (key, stated) = FAIL_FAST;
    let volume = format!("{}\n{key}", SHORT.volume);
    let mut stage = stage(common, namespaces, &volume)?;
    all(&mut stage, |stage, way| stage.hit(way, kind))?;
    let engine = stage.engine()?;
    engine.wait_live(0, WHOLE)?;
    let waiting = [false, true].map(|write| request(&stage, write));
    let mut seen = Vec::new();
    let mut well = true;
    for (receiver, what) in waiting.into_iter().zip(["read", "write"]) {
        let (done, took) = receive(&receiver?)?;
        let error = done
            .err()
            .map_or("no error".to_owned(), |it| format!("{it:#}"));
        well &= error != "no error" && took + BUSY / 10 >= stated && took <= stated + BUSY;
        seen.push(format!("{what}: {error} after {:.2} s", took.as_secs_f64()));
    }
    let (later, took) = receive(&request(&stage, true)?)?;
    well &= later.is_err() && took < BUSY;
    seen.push(format!("the next: after {:.2} s", took.as_secs_f64()));
    all(&mut stage, |stage, way| stage.heal(way, kind))?;
    stage.engine()?.wait_whole(WHOLE)?;
    let (done, _) = receive(&request(&stage, true)?)?;
    done.context("a write after all paths came back")?;
    Ok(Outcome {
        case: format!("all paths: {}, {key}", kind.name()),
        expected: format!(
            "errors {} s after the loss, then at once; works again",
            stated.as_secs()
        ),
        seen: seen.join(", "),
        well,
    })
}

fn receive(receiver: &Receiver<(Result<()>, Duration)>) -> Result<(Result<()>, Duration)> {
    stop::wait("a request ends", WHOLE, || Ok(receiver.try_recv().ok()))
}

/// In which state the engine is when SIGTERM comes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Loaded,
    Queued,
    Held,
    Frozen,
    NeverReady,
    Twice,
}

const STATES: [State; 7] = [
    State::Idle,
    State::Loaded,
    State::Queued,
    State::Held,
    State::Frozen,
    State::NeverReady,
    State::Twice,
];

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Loaded => "under load",
            Self::Queued => "no path, I/O waits",
            Self::Held => "a write is held, the other path lives",
            Self::Frozen => "all targets frozen, I/O under way",
            Self::NeverReady => "no target was ever there",
            Self::Twice => "no path, I/O waits; a second SIGTERM",
        }
    }

    /// Exit code, and longest time.
    fn expected(self) -> (i32, Duration) {
        match self {
            Self::Idle | Self::Loaded | Self::Held | Self::NeverReady => (0, DRAIN + BUSY),
            Self::Queued | Self::Frozen => (1, DRAIN + BUSY),
            Self::Twice => (143, BUSY),
        }
    }
}

fn terminated(common: &Common, namespaces: bool, state: State) -> Result<Outcome> {
    let mut stage = Stage::targets(&common.program, "down", WAYS, namespaces, (BYTES, ""))?;
    if state == State::NeverReady {
        all(&mut stage, |stage, way| stage.hit(way, Kind::Freeze))?;
        let uris: Vec<String> = stage.targets.iter().map(|it| it.uri.clone()).collect();
        let (program, directory) = (&stage.program, &stage.directory.0);
        let engine = Engine::start(program, directory, &stage.net, SHORT, &uris)?;
        stage.engine = Some(engine);
    } else {
        stage.run(SHORT, |_| String::new())?;
    }
    let (probe, request) = prepare(common, &mut stage, state)?;
    let engine = stage.engine.take().context("the engine isn't there")?;
    if state == State::Twice {
        engine.signal(rustix::process::Signal::TERM)?;
        stop::pause(Duration::from_millis(300))?;
    }
    let (code, limit) = state.expected();
    let ended = engine.end(limit + BUSY)?;
    drop((probe, request));
    let (seen, well) = match ended {
        None => ("it hangs".to_owned(), false),
        Some((found, took)) => (
            format!("exit code {found} after {:.2} s", took.as_secs_f64()),
            found == code && took <= limit,
        ),
    };
    Ok(Outcome {
        case: format!("SIGTERM: {}", state.name()),
        expected: format!("exit code {code} within {} s", limit.as_secs()),
        seen,
        well,
    })
}

/// Requests under way in the meantime, kept until the end.
type Pending = (Option<Probe>, Option<Receiver<(Result<()>, Duration)>>);

fn prepare(common: &Common, stage: &mut Stage, state: State) -> Result<Pending> {
    let waits = |stage: &Stage, key: &'static str| {
        stop::wait("I/O waits", WHOLE, || {
            let stat: Value = stage.engine()?.stat()?;
            let count = stat["waiting"][key].as_u64();
            Ok(count.filter(|it| *it > 0))
        })
    };
    match state {
        State::Idle | State::NeverReady => Ok((None, None)),
        State::Loaded => {
            let probe = Probe::start(&stage.engine()?.export(), common.seed)?;
            stop::pause(Duration::from_millis(500))?;
            Ok((Some(probe), None))
        }
        State::Queued | State::Twice => {
            all(stage, |stage, way| stage.hit(way, Kind::Kill))?;
            stage.engine()?.wait_live(0, WHOLE)?;
            let request = request(stage, true)?;
            waits(stage, "queued")?;
            Ok((None, Some(request)))
        }
        State::Held => {
            all(stage, |stage, way| {
                stage.targets[way].set(&["hold_writes=1h"])
            })?;
            let request = request(stage, true)?;
            let at = under_way(stage)?;
            stage.targets[1 - at].set(&["hold_writes=0"])?;
            stage.targets[at].kill();
            waits(stage, "held")?;
            Ok((None, Some(request)))
        }
        State::Frozen => {
            all(stage, |stage, way| stage.hit(way, Kind::Freeze))?;
            let request = request(stage, true)?;
            under_way(stage)?;
            Ok((None, Some(request)))
        }
    }
}

/// The way that has the only I/O.
fn under_way(stage: &Stage) -> Result<usize> {
    stop::wait("I/O is under way", WHOLE, || {
        let stat = stage.engine()?.stat()?;
        let busy = |way: &usize| stat["paths"][*way]["inflight"].as_u64() > Some(0);
        Ok((0..WAYS).find(busy))
    })
}
