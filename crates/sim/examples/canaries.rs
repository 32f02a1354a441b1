//! Plants one bug after the other into the engine and its peers, and lets worlds of chaos happen
//! until their checkers find it. `cargo xtask canaries` makes a table of what this prints: one JSON
//! object on a line for each bug, as soon as it was found or was not.
//!
//! # Contract
//! The worlds of a bug are those of the seeds from 1 on. A finding counts if it is of the kind that
//! the bug is expected to show itself by, and the world of the same seed without the bug finds
//! nothing. Arguments: names of bugs, else all; `NAME@SEED`: this seed is tried first for that bug;
//! `none`: worlds without any; `--within N`: so many seeds for each, whatever is stated. Bugs are
//! hunted on all processors, each on one.
use canary::Bug;
use programs::Modules;
use serde_json::json;
use sim::chaos::judged::Check;
use sim::chaos::plan::Plan;
use sim::chaos::run;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

#[path = "../../sim-program/src/chaos/programs.rs"]
mod programs;

/// A bug, seeds within which it must be found, by what kinds of findings or by which panic (see
/// [`shows`]), and what was planted.
type Canary = (Bug, u64, &'static str, &'static str);

/// Rows of a table, a line each.
macro_rules! canaries {
    ($($bug:ident, $within:literal, $found:expr, $shows:literal;)*) => {
        [$((Bug::$bug, $within, $found, $shows)),*]
    };
}

/// All but those of mirrors.
const CANARIES: [Canary; 57] = canaries! {
    LostPathShown, 200, "wrong", "a program is told that each path may be chosen";
    Unfenced, 100, "disk", "T9: an unanswered write is repeated at once";
    ShortBound, 200, "disk", "T9: the bound of held writes lacks one KATO";
    IgnoredMark, 200, "disk", "T9: after an unclean stop no I/O waits";
    EarlyReset, 200, "disk", "T9: a controller reports a reset and goes on writing";
    UnwatchedKeepAlive, 400, "stuck", "T9: a controller does not watch its keep-alive timer";
    ForgottenKeepAlive, 100, "stuck", "T29: a host sends no keep-alive";
    LentFree, 100,
        "panic: memory was changed while it was being sent (crates/sim/src/chaos/world.rs",
        "T23: a write ends at its answer, sent or not";
    CidReuse, 200, "wrong", "T11: a CID is given out while it is in use";
    DoubleEnd, 200, "stuck", "both copies of a hedged read end it";
    LeakedCount, 100, "unbalanced", "T41: an I/O that failed on a path stays in its count";
    CountedTwice, 200, "unbalanced", "T41: after an unclean stop I/Os count twice";
    LeakedBuffer, 200, "unbalanced", "T41: a target keeps a buffer of a connection that is gone";
    SentFree, 200, "panic: # + # of # (crates/engine/src/target/machine.rs",
        "T23: a target's buffer is free at the response, sent or not";
    LostWakeUp, 100, "stuck", "waiters for a free slot are never woken";
    ShortRead, 200, "disk", "T16: a short read is a good one";
    ForgottenDigest, 100, "disk", "T17: a wrong data digest is forgotten";
    EndlessMoves, 200, "unbalanced", "T4: moves of an I/O have no bound";
    StaleAna, 100, "failed", "T26: changes of ANA states are ignored";
    FlushOnOne, 200, "disk", "T13: one controller flushes for all";
    ForgottenCache, 600, "disk", "T13: a flush is good after a lost cache";
    FlushOfOneLife, 400, "disk", "T13: writes acknowledged by the previous engine are not flushed";
    ToldTwice, 400, "failed", "T13: two flushes fail for one loss";
    Overtaking, 400, "disk", "changes of parts of one block overtake each other";
    EdgeBeforeGate, 400, "disk",
        "T9: the read of a read-modify-write does not wait after an unclean stop";
    ForgottenNotice, 100, "stuck", "notices of a changed discovery log are ignored";
    StaleLog, 200, "stuck", "a discovery log is ignored after its connection was lost";
    EdgesOnTwoCores, 400, "disk", "T46: a change of a part of a block is not alone on all cores";
    FlushOfOneCore, 400, "disk", "T13: a flush covers what its own core has written";
    LossOfOneCore, 1000, "disk", "T13: what other cores had on a lost path does not count";
    GreetedAtOnce, 400, "disk",
        "T9: a client is greeted before all cores have read the ends of its earlier connections";
    NoBehind, 600, "wrong", "T9: overlapping writes do not wait for a held write";
    ForgottenCqt, 400, "disk", "T9: a reported CQT is ignored";
    BusyStays, 400, "failed", "T4: a path that stays busy is not left";
    EndedTwice, 100,
        "panic: request # of connection # ended twice (crates/sim/src/chaos/client/ends.rs",
        "a client that is cut off gets ends of requests twice";
    FreedAtDevice, 100, "wrong", "T23: a target's buffer is free while its device reads from it";
    AnsweredTwice, 100, "wrong", "an export answers a flush twice";
    StaysAside, 100, "stuck", "a path that was restored takes no I/O again";
    UnaskedFlush, 100, "unbalanced", "a target answers flushes that its device was not asked for";
    CountedGone, 100, "unbalanced",
        "T41: a connection that the target has ended stays in its port's count";
    FreedTwice, 100, "wrong", "an export gives a client's own memory back twice";
    IdleStays, 600, "unbalanced",
        "a controller keeps connections on which nothing was enabled for ever";
    NeverAgain, 5000, "stuck", "T38: soonest never tries a path again that was slow and is idle";
    RefilledAtOnce, 400, "stuck", "weighted-latency goes on with a path whose credit is spent";
    StaleClock, 600, "disk", "T49: requests of a turn are submitted by the clock of its begin";
    LateWorkers, 600, "disk", "T49: workers do not ask whether a change may still start";
    UnprobedIdle, 100, "stuck", "T12, forgotten-idle-connection: idle connections are not probed";
    SmallProbes, 600, "stuck", "one-way-loss-by-size: probes of such a path are small";
    ReadingProbes, 600, "stuck", "one-way-loss-by-size: probes are reads where writes get lost";
    FlushOfIdleHost, 400, "disk",
        "T13: an NVMe/TCP export flushes only for a connection that has commands under way";
    ForgottenFua, 400, "disk", "an NVMe/TCP export drops FUA";
    LostHostWakeUp, 200, "stuck", "commands over NVMe/TCP that wait for a free slot are not woken";
    StaysInaccessible, 400, "stuck", "T26: a namespace that was inaccessible stays so for hosts";
    PlaceOfGone, 400, "disk unbalanced wrong",
        "T9: the place of a host's connection is free before its commands are over";
    IgnoredZeroes, 100, "wrong", "an NVMe/TCP export does not execute Write Zeroes";
    ServesRemoved, 400, "wrong", "a namespace that a reload removed is served further";
    ServesWithdrawn, 600, "wrong", "connections to a port that a reload withdrew stay open";
};

/// Those of mirrors that one world of thousands shows where applications are NVMe/TCP hosts too:
/// all of theirs are clients over NBD.
const RARE: [Bug; 1] = [Bug::TakenBackFails];

/// Those of mirrors, in worlds of mirrors.
const OF_MIRRORS: [Canary; 23] = canaries! {
    AckBeforeStale, 600, DATA,
        "T14: a write is acknowledged before it is durable that a leg missed it";
    MendWithoutLock, 600, DATA, "T5: a range that a leg could not read is rewritten without a lock";
    IntentsForgotten, 100, DATA,
        "bits of the bitmap are cleared while a leg is away that lacks the data";
    FlushOnOneLeg, 100, DATA, "T13: one leg is flushed for all";
    SameEvent, 100, DATA, "the superblock generation is not raised";
    RebuildUnlocked, 200, DATA, "T46: a range that a rebuild copies is not locked";
    BackBeforeFence, 100, DATA, "T9: a leg returns before its fence";
    OvertakingLegs, 100, DATA, "T46: overlapping writes reach legs in different orders";
    DataBeforeIntent, 400, DATA, "data are written before their bit of the dirty log";
    UnalikeRead, 200, DATA, "ranges that an unclean stop left diverged are read as they are";
    LackingRead, 100, DATA, "a rebuilding leg serves ranges that it lacks";
    JoinedUnflushed, 100, DATA,
        "T13: a rebuilt leg is in sync before its copied ranges are flushed";
    SpareLacks, 200, DATA, "the last resort of a read is a leg that lacks all writes since it left";
    TrustedPutBack, 200, DATA,
        "a leg that was put back to an older state is treated as in the state in which it left";
    TakenBackFails, 1000, "failed",
        "T48: I/O taken back from the last leg fails although its lease is renewed";
    ShrunkUnlike, 400, DATA,
        "T50: a leg that was smaller for a moment lacks no more than the bitmap says";
    CutForgotten, 400, DATA,
        "T50: the next start ignores the position at which the last leg in sync was truncated";
    NameUnasked, 200, DATA,
        "a mirror is started although its legs are those of a mirror with another name";
    LegByPlace, 400, "disk wrong stuck", "a leg is identified by its place in the configuration";
    EndlessQueue, 200, "wrong", "T54: outstanding I/O of a leg has no bound";
    LateHung, 400, DATA,
        "T49: requests that a device took while it hung are executed whatever the clock says";
    LateLegs, 400, "disk wrong stuck",
        "T49: an engine that stood still changes its legs whatever the clock says";
    RunsUnlocked, 100, "disk wrong",
        "T46: what is copied in runs of data and of holes is not locked meanwhile";
};

/// The kind of a finding that is a panic.
const PANIC: &str = "panic";
/// Kinds of findings about data: what applications read, and what an assembly of legs would have.
const DATA: &str = "disk wrong";
/// Worlds without a bug, where only these are asked for.
const CONTROLS: u64 = 100;

thread_local! {
    /// Message of the last panic.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A checker's finding: its kind and its text.
type Said = (&'static str, String);

/// Returns the checkers' finding in a world with a bug, and the checks that had something to judge.
fn judged(plan: &Plan, bug: Option<Bug>) -> (Option<Said>, BTreeSet<Check>) {
    canary::plant(bug);
    let report = panic::catch_unwind(|| run::run(plan, &Modules::new()));
    canary::plant(None);
    match report {
        Ok(report) => {
            let said = report.finding.map(|it| (it.kind(), it.to_string()));
            (said, report.judged)
        }
        Err(_) => {
            let said = SAID.with_borrow(|said| format!("panic: {said}"));
            (Some((PANIC, said)), BTreeSet::new())
        }
    }
}

/// Worlds without a bug, of both families; whether nothing was found.
fn control(within: u64) -> bool {
    let mut well = true;
    let mut worlds: BTreeMap<Check, u64> = BTreeMap::new();
    let plans = |seed| [Plan::draw(seed), Plan::draw_mirror(seed)];
    for plan in (1..=within).flat_map(plans) {
        let (said, checks) = judged(&plan, None);
        if let Some((_, said)) = said {
            eprintln!("seed {} without a bug: {said}", plan.seed);
            well = false;
        }
        checks
            .into_iter()
            .for_each(|it| *worlds.entry(it).or_default() += 1);
    }
    eprintln!("of {within} worlds of each family, judged were: {worlds:?}");
    well
}

/// Whether a finding is one that the bug is to show itself by. Of panics it must be that one: its
/// words, with `#` for each number, and its file.
fn shows(kinds: &str, of: &str, said: &str) -> bool {
    if !kinds.starts_with(PANIC) {
        return kinds.split(' ').any(|it| it == of);
    }
    let mut words = String::new();
    for letter in said.chars() {
        match letter.is_ascii_digit() {
            true if words.ends_with('#') => {}
            true => words.push('#'),
            false => words.push(letter),
        }
    }
    of == PANIC && words.starts_with(kinds)
}

/// Lets the worlds of a bug happen, that of the seed `first` before the others; whether it was
/// found, by what it should be.
fn hunt((bug, within, kind, what): Canary, mirrors: bool, first: Option<u64>) -> bool {
    let draw = |seed| match mirrors {
        true if RARE.contains(&bug) => Plan::draw_mirror_before("front", seed),
        true => Plan::draw_mirror(seed),
        false => Plan::draw(seed),
    };
    let begun = Instant::now();
    let said = |seed, bug| judged(&draw(seed), bug).0;
    let mut found = first.into_iter().chain(1..=within).find_map(|seed| {
        let (of, said) = said(seed, Some(bug))?;
        let counts = shows(kind, of, &said);
        if !counts {
            eprintln!("{bug:?}: seed {seed} does not count: {said}");
        }
        counts.then_some((seed, said))
    });
    let mut false_alarm = None;
    if let Some((seed, _)) = &found
        && let Some((_, also)) = said(*seed, None)
    {
        false_alarm = Some(format!("seed {seed} without the bug: {also}"));
        found = None;
    }
    let row = json!({
        "canary": format!("{bug:?}"),
        "planted": what,
        "within": within,
        "kind": kind,
        "mirrors": mirrors,
        "seed": found.as_ref().map(|(seed, _)| seed),
        "said": found.as_ref().map(|(_, said)| said).or(false_alarm.as_ref()),
        "seconds": begun.elapsed().as_secs_f64(),
    });
    println!("{row}");
    found.is_some()
}

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let place = info.location().map_or(String::new(), ToString::to_string);
        let (text, own) = (
            info.payload().downcast_ref::<&str>(),
            info.payload().downcast_ref(),
        );
        let words = text.copied().or(own.map(String::as_str)).unwrap_or("?");
        SAID.set(format!("{words} ({place})"));
    }));
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    let mut limit = None;
    if let Some(at) = names.iter().position(|word| word == "--within") {
        limit = names.get(at + 1).and_then(|word| word.parse().ok());
        names.drain(at..(at + 2).min(names.len()));
        if limit.is_none() {
            eprintln!("--within needs a number of seeds");
            return ExitCode::FAILURE;
        }
    }
    if names == ["none"] {
        return match control(limit.unwrap_or(CONTROLS)) {
            true => ExitCode::SUCCESS,
            false => ExitCode::FAILURE,
        };
    }
    let all = || {
        let plain = CANARIES.map(|it| (it, false));
        plain.into_iter().chain(OF_MIRRORS.map(|it| (it, true)))
    };
    let mut firsts: BTreeMap<String, u64> = BTreeMap::new();
    for word in &names {
        if let Some((name, seed)) = word.split_once('@') {
            let Ok(seed) = seed.parse() else {
                eprintln!("{word}: no seed behind the @");
                return ExitCode::FAILURE;
            };
            firsts.insert(name.to_owned(), seed);
        }
    }
    names.retain(|word| !word.contains('@'));
    let unknown = |name: &&String| all().all(|(it, _)| format!("{:?}", it.0) != **name);
    if let Some(unknown) = names.iter().chain(firsts.keys()).find(unknown) {
        let known: Vec<Bug> = all().map(|it| it.0.0).collect();
        eprintln!("no canary {unknown:?}; there are: {known:?}");
        return ExitCode::FAILURE;
    }
    let wanted = |bug: Bug| names.is_empty() || names.contains(&format!("{bug:?}"));
    let hunts: Vec<(Canary, bool)> = all().filter(|it| wanted(it.0.0)).collect();
    let (next, well) = (AtomicUsize::new(0), AtomicBool::new(true));
    let work = || {
        while let Some(((bug, within, kind, what), mirrors)) =
            hunts.get(next.fetch_add(1, Ordering::Relaxed))
        {
            let first = firsts.get(&format!("{bug:?}")).copied();
            let canary = (*bug, limit.unwrap_or(*within), *kind, *what);
            if !hunt(canary, *mirrors, first) {
                well.store(false, Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    match well.into_inner() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
