//! `kill -9` of an engine that runs a mirror, again and again.
//!
//! # Contract
//! A round: the engine is started on the legs as the last kill left them, every block is read and
//! compared with what was acknowledged, writers go on, and the engine is killed at any moment:
//! while it starts, under load, in a rebuild. Then every leg that is in sync by what the legs say
//! is compared with what was acknowledged, by itself; and an engine is started on copies of the
//! legs without one of them, drawn at random, and has to serve all of it (`away`). Now and then a
//! leg is away for some rounds, and the others are started without it by the user's word; then it
//! returns and is rebuilt under load. Now and then a leg is added, removed or replaced, or the
//! mirror is enlarged, shortly before the kill ([`change`]).
//!
//! With `--on-targets` each leg is a namespace of a target of its own with a volatile cache, and
//! these are killed too, in any order with the engine: as if the power of everything had failed.
//! Then only what a flush or FUA was acknowledged for has to be there; what was read once stays.
//!
//! # Limits
//! Without it a killed process loses nothing that the kernel has. Writers don't overlap each other.
//! With it neither legs nor size change.
mod away;
mod change;
mod front;
mod kind;
mod ledger;
mod legs;
mod times;
mod writers;

use super::engine::Engine;
use super::nbd::BLOCK;
use super::net::Net;
use super::plan::Random;
use super::stage::Directory;
use super::target::call;
use super::{Common, stop};
use anyhow::{Context, Result, bail, ensure};
use away::{Found, Stand};
use change::{Asked, Change};
use front::Export;
use kind::{Kind, Sum, table};
use ledger::Ledger;
use legs::{BYTES, Legs, REGION_BYTES, SOON, check_bytes};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use times::{Part, Times};

/// Writers, each on blocks of its own.
const WRITERS: usize = 4;
/// Bytes of a read that compares.
const PIECE: usize = 1 << 20;
/// How it is said that a mirror is about to start.
const WAITS: [&str; 2] = ["it waits ", "its owner's record waits "];
/// Longest time from the start until the export answers.
const READY: Duration = Duration::from_secs(60);
/// Longest time of writers in a round, µs.
const LOAD_US: u64 = 80_000;
/// The same soon after a stop in order: until all regions were entered.
const FRESH_US: u64 = 6_000;
/// Longest time between one end and another, of a leg and of the engine, µs: log2.
const LATER_SHIFT: u64 = 13;
/// The same between a change of legs or size and the kill: a rebuild may be over by then.
const CHANGED_SHIFT: u64 = 18;

/// Options.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Kills
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Legs
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=8))]
    legs: u8,
    /// Legs are targets with a volatile cache, killed with the engine
    #[arg(long)]
    on_targets: bool,
    /// How the load reaches the mirror
    #[arg(long, value_enum, default_value_t = front::Kind::Nbd)]
    export: front::Kind,
    /// Begin no round after so many seconds
    #[arg(long, value_name = "SECONDS")]
    within: Option<u64>,
}

impl Args {
    /// As they are to be repeated.
    pub fn words(&self) -> String {
        let targets = if self.on_targets { " --on-targets" } else { "" };
        let export = match self.export {
            front::Kind::Nbd => "",
            front::Kind::Nvme => " --export nvme",
        };
        format!(
            "kill --rounds {} --legs {}{targets}{export}",
            self.rounds, self.legs
        )
    }
}

/// Everything.
struct Trial<'a> {
    common: &'a Common,
    args: Args,
    directory: Directory,
    net: Net,
    export: Export,
    /// Of engines on copies of the legs.
    export_away: Export,
    legs: Legs,
    /// Of each writer; the last one has what came when the mirror grew.
    ledgers: Vec<Ledger>,
    /// So many bytes it has for certain.
    told_bytes: u64,
    random: Random,
    /// A leg that is not given.
    away: Option<usize>,
    /// Not all legs were in sync when writers began last.
    behind: bool,
    /// They were taken out, which lasts until they are restored, and until that is durable.
    aside: BTreeSet<String>,
    times: Times,
}

/// Runs all rounds and prints.
///
/// # Errors
/// Something acknowledged is lost, or the engine doesn't start.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let mut trial = Trial::new(common, args)?;
    let mut sums = [Sum::default(); Kind::ALL.len()];
    let begun = Instant::now();
    let mut rounds = 0;
    let is_over = || {
        args.within
            .is_some_and(|limit| begun.elapsed().as_secs() >= limit)
    };
    while rounds < args.rounds && !is_over() {
        let kind = trial.draw();
        common.progress(&progress(rounds, args, begun.elapsed(), kind));
        if let Err(error) = trial.round(kind, &mut sums[kind as usize]) {
            stop::check()?; // nothing is wrong where somebody pressed Ctrl-C
            let kept = trial.directory.keep();
            return Err(error).context(format!(
                "round {rounds} of {}, {}; its files are kept in {}",
                args.rounds,
                kind.name(),
                kept.display()
            ));
        }
        sums[kind as usize].rounds += 1;
        rounds += 1;
    }
    trial.last().context("the last start, which nobody kills")?;
    common.progress("");
    let with = match args.on_targets {
        true => ", targets with caches, killed too",
        false => "",
    };
    let head = format!(
        "{rounds} kills of an engine, a mirror of {} legs{with}, {WRITERS} writers over {}: \
         nothing lost",
        args.legs,
        args.export.name()
    );
    let more = json!({
        "ms_of_a_round": trial.times.show(rounds),
        "seconds": begun.elapsed().as_secs(),
    });
    common.show("kill", &head, &table(&sums), more);
    Ok(())
}

/// How far it is, and for how long it goes on.
fn progress(round: u32, args: &Args, elapsed: Duration, kind: Kind) -> String {
    let rate = f64::from(round) / elapsed.as_secs_f64().max(1e-3);
    let left = f64::from(args.rounds - round) / rate.max(1e-3);
    let left = match args.within {
        Some(limit) => left.min(limit.saturating_sub(elapsed.as_secs()) as f64),
        None => left,
    };
    let all = args.rounds;
    let far = format!("round {round} of {all}: {}", kind.name());
    match round {
        0 => far,
        _ => format!("{far}; {rate:.1} a second, {:.0} min left", left / 60.0),
    }
}

/// Configuration of an engine.
fn configuration(export: &Export, uris: &[String], keys: &str) -> String {
    let mut text = format!(
        "[[volume]]\nname = \"v0\"\nkind = \"mirror\"\nassemble_wait = \"1s\"\n\
         rebuild_floor = \"1MiB/s\"\n{keys}\n[[volume.export]]\n{}",
        export.keys()
    );
    for uri in uris {
        text.push_str(&format!("[[volume.leg]]\nuri = \"{uri}\"\n"));
    }
    text
}

/// Waits until the mirror runs; without a leg it does so by the user's word.
fn wait_running(engine: &Engine, without: bool) -> Result<()> {
    let mut last = Value::Null;
    let waited = stop::wait("the mirror runs", READY, || {
        last = engine.stat()?;
        match last["why"].as_str() {
            None if last["event"].is_u64() => return Ok(Some(())),
            None => {}
            Some(why) if WAITS.iter().any(|it| why.starts_with(it)) => {}
            Some(_) if without => {
                let without = json!({"volume": "v0", "without": true});
                call(&engine.socket(), "mirror.assemble", &without)?;
            }
            Some(why) => bail!("it does not: {why}"),
        }
        Ok(None)
    });
    waited.with_context(|| format!("the volume: {last}"))
}

/// Waits until it is said that the mirror does not start.
fn wait_refused(engine: &Engine, limit: Duration) -> Result<()> {
    stop::wait("the mirror is refused", limit, || {
        let stat = engine.stat()?;
        let why = stat["why"].as_str();
        ensure!(
            !(why.is_none() && stat["event"].is_u64()),
            "it runs on legs that lack what was acknowledged: {stat}"
        );
        Ok(why.filter(|why| why.contains("not started")).map(drop))
    })
}

/// All bytes of an export.
fn read_all(export: &Export, bytes: u64) -> Result<Vec<u8>> {
    let mut client = export.open()?;
    let mut all = vec![0; bytes as usize];
    for (number, piece) in all.chunks_mut(PIECE).enumerate() {
        client.read((number * PIECE) as u64, piece)?;
    }
    Ok(all)
}

/// Of a mirror in which nothing was written yet.
fn ledgers(volatile: bool) -> Vec<Ledger> {
    let blocks = BYTES as usize / BLOCK / WRITERS;
    let ledger = |it: usize| Ledger::new((it * blocks) as u64, blocks, volatile);
    let more = Ledger::new(BYTES / BLOCK as u64, 0, volatile);
    (0..WRITERS).map(ledger).chain([more]).collect()
}

impl<'a> Trial<'a> {
    fn new(common: &'a Common, args: &Args) -> Result<Self> {
        let directory = Directory::make("kill")?;
        let count = usize::from(args.legs);
        let net = Net::make(if args.on_targets { count } else { 0 }, false)?;
        let mut legs = Legs::create(&common.program, &directory.0, count, args.on_targets)?;
        if args.on_targets {
            legs.put_on_targets(&directory.0, &net)?;
        }
        Ok(Self {
            common,
            args: args.clone(),
            net,
            export: Export::new(args.export, &directory.0)?,
            export_away: Export::new(args.export, &directory.0.join("away"))?,
            legs,
            ledgers: ledgers(args.on_targets),
            told_bytes: BYTES,
            directory,
            random: Random(common.seed),
            away: None,
            behind: false,
            aside: BTreeSet::new(),
            times: Times::default(),
        })
    }
}

impl Trial<'_> {
    /// Draws the kind of the next round, and which leg is away.
    fn draw(&mut self) -> Kind {
        let was_away = self.away.is_some();
        match (was_away, self.random.below(8)) {
            (true, 0..5) => self.away = None,
            (false, 0..2) if !self.behind => {
                self.away = Some(self.leg());
            }
            _ => {}
        }
        match self.away {
            Some(_) => Kind::Short,
            None if was_away || self.behind => Kind::Returning,
            None => match self.random.below(12) {
                0 => Kind::Starting,
                1 | 2 => Kind::Leaving,
                3 | 4 => Kind::Fresh,
                5 | 6 if !self.args.on_targets => self.change(),
                7 if !self.args.on_targets => Kind::Growing,
                _ => Kind::Whole,
            },
        }
    }

    /// Legs come and go: there are as many again in the end.
    fn change(&mut self) -> Kind {
        match self.random.below(2) {
            _ if self.legs.count() > self.args.legs.into() => Kind::Removing,
            0 => Kind::Adding,
            _ => Kind::Replacing,
        }
    }

    /// A new mirror, small again.
    fn renew(&mut self) -> Result<()> {
        while self.legs.count() > 0 {
            self.legs.dismiss(0)?;
        }
        // An engine refuses legs of another mirror than those it has records of.
        for host in [&self.directory.0, &self.directory.0.join("away")] {
            let _ = std::fs::remove_dir_all(host.join("state"));
        }
        let count = self.args.legs.into();
        self.legs = Legs::create(&self.common.program, &self.directory.0, count, false)?;
        self.ledgers = ledgers(false);
        self.told_bytes = BYTES;
        self.aside.clear();
        Ok(())
    }

    /// Starts an engine; in every other round its rebuild takes a while.
    fn start(&mut self) -> Result<Engine> {
        if self.legs.on_targets() && self.random.below(2) == 0 {
            // Nothing that the last one sent can come late: those targets are dead. In the other
            // rounds the next engine finds its mark, and goes by it.
            let _ = std::fs::remove_dir_all(self.directory.0.join("state"));
        }
        self.legs.start(&self.net, self.away)?;
        let mut keys = match self.random.below(2) {
            0 => "rebuild_ceiling = \"8MiB/s\"".to_owned(),
            _ => String::new(),
        };
        let [engine, legs] = if self.legs.on_targets() {
            SOON
        } else {
            [""; 2]
        };
        keys.push('\n');
        keys.push_str(legs);
        let text = configuration(&self.export, &self.legs.uris(self.away), &keys);
        let text = format!("{engine}\n{text}");
        Engine::start_as(&self.common.program, &self.directory.0, &self.net, &text)
    }

    /// Waits until the mirror runs; legs that were taken out may return.
    fn wait_running(&mut self, engine: &Engine) -> Result<()> {
        wait_running(engine, self.away.is_some())?;
        if self.away.is_some() {
            return Ok(());
        }
        let there = self.legs.uris(None);
        self.aside.retain(|leg| there.contains(leg));
        for leg in &self.aside {
            let which = json!({"volume": "v0", "leg": leg});
            call(&engine.socket(), "mirror.restore", &which)?;
        }
        // It was added, and killed before the new leg said so: nobody has it.
        let stat = engine.stat()?;
        let legs = stat["legs"].as_array().into_iter().flatten();
        let unknown = legs.filter(|leg| leg["state"] == "missing" && leg["volume"].is_null());
        for slot in unknown.filter_map(|leg| leg["slot"].as_u64()) {
            let which = json!({"volume": "v0", "leg": slot.to_string()});
            call(&engine.socket(), "mirror.remove", &which)?;
        }
        Ok(())
    }

    /// Waits until what a leg lacked was copied.
    fn wait_in_sync(&mut self, engine: &Engine) -> Result<()> {
        let mut last = Value::Null;
        let waited = stop::wait("all legs are in sync", READY, || {
            last = engine.stat()?;
            Ok((legs_in(&last, "in-sync") == self.legs.count()).then_some(()))
        });
        self.aside.clear();
        waited.with_context(|| format!("the volume: {last}"))
    }

    fn round(&mut self, kind: Kind, sum: &mut Sum) -> Result<()> {
        if kind == Kind::Fresh {
            self.stop_in_order()?;
        }
        if kind == Kind::Growing && !self.legs.may_grow() {
            self.renew()?;
        }
        let begun = Instant::now();
        let engine = self.start()?;
        if kind == Kind::Starting {
            let longest_us = if self.legs.on_targets() {
                400_000
            } else {
                30_000
            };
            stop::pause(Duration::from_micros(self.random.below(longest_us)))?;
            engine.kill();
            self.legs.kill_all();
        } else {
            self.wait_running(&engine)?;
            self.times.add(Part::Start, begun);
            self.compare(&engine)?;
            if self.away.is_none() && self.behind && self.random.below(3) == 0 {
                let begun = Instant::now();
                self.wait_in_sync(&engine)?;
                self.times.add(Part::Rebuild, begun);
            }
            self.load(engine, kind, sum)?;
        }
        let begun = Instant::now();
        let in_sync = self.legs.check(&self.ledgers)?;
        self.times.add(Part::Legs, begun);
        sum.legs += in_sync.len();
        self.take_one_away(&in_sync, sum)
    }

    /// All legs become alike, and it is stopped: no intent is left.
    fn stop_in_order(&mut self) -> Result<()> {
        let engine = self.start()?;
        self.wait_running(&engine)?;
        self.compare(&engine)?;
        self.wait_in_sync(&engine)?;
        engine.end(READY)?.context("SIGTERM did not end it")?;
        Ok(())
    }

    /// Some time, mostly a short one.
    fn soon(&mut self, shift: u64) -> Duration {
        let shift = self.random.below(shift + 1);
        Duration::from_micros(self.random.below(1 << shift))
    }

    /// Writers, until the engine is killed.
    fn load(&mut self, engine: Engine, kind: Kind, sum: &mut Sum) -> Result<()> {
        let seed = self.random.next();
        let longest_us = match kind {
            Kind::Fresh => FRESH_US,
            _ => LOAD_US,
        };
        let longest = Duration::from_micros(1000 + self.random.below(longest_us));
        let leg = self.leg();
        let change = Change::draw(kind, leg, &mut self.legs)?;
        if kind == Kind::Leaving {
            self.aside.insert(self.legs.uris(None)[leg].clone());
        }
        let (first, order) = (self.leg(), self.random.below(4));
        let changes = kind.changes_legs() || kind == Kind::Growing;
        let awaited = changes && self.random.below(2) == 0;
        let later = match changes {
            true => self.soon(CHANGED_SHIFT),
            false => self.soon(LATER_SHIFT),
        };
        let between = self.soon(LATER_SHIFT);
        let mut asked = None;
        let mut state = Value::Null;
        let mut begun = Instant::now();
        let (socket, legs) = (engine.socket(), &mut self.legs);
        let count = writers::run(&self.export, &mut self.ledgers, seed, |load| {
            if kind != Kind::Fresh {
                state = engine.stat()?;
                load.wait(READY);
                begun = Instant::now();
            }
            stop::pause(longest.saturating_sub(begun.elapsed()))?;
            asked = change.as_ref().map(|change| change.ask(&socket));
            if let Some(asked) = &asked {
                // In most rounds it is not awaited that the engine has answered.
                if awaited {
                    let over = || Ok(asked.is_over().then_some(()));
                    stop::wait("a verb is answered", READY, over)?;
                }
                stop::pause(later)?;
            }
            if order == 0 {
                legs.kill(first); // the engine has time to find that out
                stop::pause(between)?;
            }
            load.killed.store(true, Ordering::SeqCst);
            if order == 1 {
                legs.kill_all();
            }
            engine.kill();
            legs.kill_all();
            Ok(())
        })?;
        self.times.add(Part::Load, begun);
        sum.count.add(count);
        sum.in_rebuild += u32::from(legs_in(&state, "rebuilding") > 0);
        let whole = kind == Kind::Fresh || legs_in(&state, "in-sync") == self.legs.count();
        // Where targets went before the engine, that may have said that the first one has left.
        let engine_last = self.legs.on_targets() && order <= 1;
        let fewer = kind == Kind::Leaving || kind.changes_legs();
        self.behind = !whole || fewer || engine_last;
        let answer = asked.map(Asked::answer).transpose()?.flatten();
        sum.answered += u32::from(answer.is_some());
        if let Some(change) = change {
            let told = change.told_bytes(answer.as_ref())?;
            self.told_bytes = self.told_bytes.max(told);
            let bytes = ledger::bytes(&self.ledgers);
            sum.changed += change.settle(&mut self.legs, bytes, answer.as_ref())?;
        }
        Ok(())
    }

    /// Any of them.
    fn leg(&mut self) -> usize {
        self.random.below(self.legs.count() as u64) as usize
    }

    /// The same once more, on copies, without a leg.
    fn take_one_away(&mut self, in_sync: &[(usize, bool)], sum: &mut Sum) -> Result<()> {
        let taken = self.leg();
        let stand = Stand {
            program: &self.common.program,
            directory: &self.directory.0.join("away"),
            net: &self.net,
            export: &self.export_away,
            bytes: ledger::bytes(&self.ledgers),
        };
        let (legs, ledgers) = (&self.legs, &self.ledgers);
        let checked = self
            .times
            .spend(Part::Away, || match stand.start(legs, taken, in_sync)? {
                Found::Served(bytes) => check_bytes(&bytes, ledgers).map(|()| true),
                Found::Refused => Ok(false),
            });
        match checked.with_context(|| format!("without leg {taken}"))? {
            true => sum.served += 1,
            false => sum.refused += 1,
        }
        Ok(())
    }

    /// Everything is what was acknowledged or was under way; from now on it stays so. As large as
    /// it is found it stays, too.
    fn compare(&mut self, engine: &Engine) -> Result<()> {
        let begun = Instant::now();
        let stat = engine.stat()?;
        let regions = stat["regions"].as_u64();
        let size = regions.with_context(|| format!("no regions: {stat}"))? * REGION_BYTES;
        ensure!(
            size >= self.told_bytes,
            "it has {size} bytes, and it was answered that it has {}",
            self.told_bytes
        );
        let more = size.saturating_sub(ledger::bytes(&self.ledgers));
        if let Some(last) = self.ledgers.last_mut() {
            last.extend(more as usize / BLOCK);
        }
        self.told_bytes = size;
        let bytes = read_all(&self.export, size)?;
        for ledger in &mut self.ledgers {
            for at in 0..ledger.count() {
                let from = ledger.offset(at) as usize;
                let version = ledger.check(at, &bytes[from..from + BLOCK])?;
                ledger.settle(at, version);
            }
        }
        self.times.add(Part::Read, begun);
        Ok(())
    }

    /// All legs are there and become alike; a check of the mirror itself finds nothing.
    fn last(&mut self) -> Result<()> {
        self.away = None;
        let engine = self.start()?;
        self.wait_running(&engine)?;
        self.wait_in_sync(&engine)?;
        self.compare(&engine)?;
        engine.end(READY)?.context("SIGTERM did not end it")?;
        let compared = self.legs.check(&self.ledgers)?.len();
        ensure!(
            compared == self.legs.count(),
            "{compared} legs are in sync after a stop in order"
        );
        Ok(())
    }
}

/// How many legs are in this state.
fn legs_in(stat: &Value, state: &str) -> usize {
    let legs = stat["legs"].as_array().into_iter().flatten();
    legs.filter(|leg| leg["state"] == state).count()
}
