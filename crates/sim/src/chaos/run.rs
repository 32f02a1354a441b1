//! One world from its beginning to its end: faults happen and pass (`fault`), then everything must
//! come to rest, and what the applications saw must have been a disk (`check`).
use super::START_NS;
use super::fault::wait_ns;
use super::history::Wrong;
use super::mirror::crash_checker::Compared;
use super::mirror::put_back::Image;
use super::mirror::shrunk::{Restart, Shrunk};
use super::mirror::{MIRROR_REST_NS, plan_examinations};
use super::pardon::Pardon;
use super::prelude::*;
use super::programs::Programs;
use super::story::Lines;
use super::touch::Begun;
use core::cell::RefCell;
use engine::host::Recovery;
use nvme::limits::IDLE_WANTED_NS;

/// Time of a stop for I/O under way.
pub const DRAIN_NS: u64 = 5 * SECOND;
/// How long the world has to come to rest once the last fault is over. A target whose places are
/// all taken may have one less for as long as an association may be idle: its host is gone without
/// a word. Attempts to connect fail meanwhile, after longer and longer pauses. Where the path
/// `flapped`, it is on probation for as long as that may take. Before, between and after are holds,
/// time-outs and what is copied, several in a row: that is the minute, of which 1,000 worlds have
/// needed a third.
fn rest_ns(flapped: bool) -> u64 {
    let recovery = Recovery::default();
    let probation_ns = match flapped {
        true => recovery.health.probation_ns_max(),
        false => 0,
    };
    IDLE_WANTED_NS + recovery.reconnect_max_ns + probation_ns + 60 * SECOND
}
/// For hosts to connect, before anything goes wrong.
pub const BEGIN_NS: u64 = SECOND / 5;

/// A violation.
#[derive(Clone, Debug)]
pub enum Finding {
    /// No disk does that: a block, and what was wrong with it.
    Disk(u64, Wrong),
    /// A request failed, and nothing that was done to the world excuses it.
    Failed(String),
    /// Something had not come to its end when all was well for long.
    Stuck(String),
    /// Counts that should be zero are not.
    Unbalanced(String),
    /// A machine broke a rule, however it looks to others.
    Wrong(String),
}

impl Finding {
    /// Returns the kind of the violation.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Disk(..) => "disk",
            Self::Failed(_) => "failed",
            Self::Stuck(_) => "stuck",
            Self::Unbalanced(_) => "unbalanced",
            Self::Wrong(_) => "wrong",
        }
    }

    /// Returns the part that findings of the same violation share, whatever numbers they name: so a
    /// search for a smaller world does not slip to another one.
    pub fn thing(&self) -> String {
        let (what, parts) = match self {
            Self::Disk(_, wrong) => return format!("disk: {}", wrong.name()),
            // With what was said of it.
            Self::Failed(what) => (what, 3),
            Self::Stuck(what) | Self::Unbalanced(what) | Self::Wrong(what) => (what, 2),
        };
        let first = what.split(';').next().unwrap_or_default();
        let parts: Vec<&str> = first.split(": ").take(parts).collect();
        let word = |word: &str| match word.chars().any(|it| it.is_ascii_digit()) && word != "0" {
            true => String::from("#"),
            false => String::from(word),
        };
        let words: Vec<String> = parts.join(": ").split(' ').map(word).collect();
        format!("{}: {}", self.kind(), words.join(" "))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disk(block, wrong) => write!(f, "block {block}: {wrong}"),
            Self::Failed(what) => write!(f, "a request failed: {what}"),
            Self::Stuck(what) => write!(f, "still waiting: {what}"),
            Self::Unbalanced(what) => write!(f, "out of balance: {what}"),
            Self::Wrong(what) => f.write_str(what),
        }
    }
}

/// Result of one world.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Requests of applications that ended.
    pub requests: u64,
    /// Faults that happened.
    pub faults: u64,
    /// Events of the world.
    pub events: u64,
    /// Virtual time, ns.
    pub time_ns: u64,
    /// Of that, the longest that it took to come to rest, ns.
    pub rest_ns: u64,
    /// Kind of fault × state of a path when it began, of all of them.
    pub begun: Vec<(Kind, PathState)>,
    /// Of the faults, the ones that touched nothing.
    pub missed: Vec<Kind>,
    /// Kind of fault × state of a path when it began, of those that touched something.
    pub coverage: Vec<(Kind, PathState)>,
    /// Names of those that touched something.
    pub names: Vec<String>,
    /// The checks that had something to judge at the end.
    pub judged: BTreeSet<Check>,
    /// The first thing that should not have happened.
    pub finding: Option<Finding>,
    /// The block that it is about, and when it could be seen, ns.
    pub block: Option<u64>,
    /// See there.
    pub seen_ns: Option<u64>,
    /// Words of the lines of its [story](super::story) that it rests on.
    pub keys: Vec<String>,
}

impl Report {
    /// How many faults touched something.
    pub fn touched(&self) -> u64 {
        self.faults - self.missed.len() as u64
    }
}

/// Lets the world of a plan happen.
///
/// # Panics
/// If a machine breaks its contract, or an invariant of its own.
pub fn run(plan: &Plan, programs: &dyn Programs) -> Report {
    play(plan, programs, None).report
}

/// As [`run`]; a listener watches a block, if there is one.
pub(super) fn play<'a>(
    plan: &'a Plan,
    programs: &'a dyn Programs,
    watched: Option<(Option<u64>, Lines)>,
) -> Course<'a> {
    let mut course = Course::new(plan, programs);
    course.rig.world.watched = watched;
    let finding = course.all().err();
    let finding = finding.or_else(|| programs.faults().map(Finding::Wrong));
    course.remember();
    course.note_touched();
    let world = &course.rig.world;
    course.report.events = world.count;
    course.report.time_ns = world.now_ns - START_NS;
    course.report.finding = finding;
    course
}

/// A world on its way.
pub(super) struct Course<'a> {
    pub plan: &'a Plan,
    pub programs: &'a dyn Programs,
    pub rig: Rig,
    pub history: History,
    pub report: Report,
    /// When the time of faults begins.
    pub begin_ns: u64,
    /// Faults that are going on, and about whom.
    pub going_on: Vec<Option<Whom>>,
    /// When those end, ns.
    pub until_ns: Vec<u64>,
    /// Those that have begun, and what they touched.
    pub begun: Vec<Option<Begun>>,
    /// Why and when requests may fail.
    pub pardons: Vec<Pardon>,
    /// By target: until when it may have late writes, ns.
    pub late_ns: Vec<u64>,
    /// By leg of a mirror: it lost what the mirror may not know of.
    pub bare: Vec<bool>,
    /// Since when one of them is.
    pub bare_ns: Option<u64>,
    /// The user took a leg out, and the mirror could not know yet that others had lost something.
    pub taken_blindly: bool,
    /// By leg of a mirror: what it had once.
    pub images: Vec<Option<Image>>,
    /// By leg of a mirror: what it lost when it shrank.
    pub cuts: Vec<Option<Shrunk>>,
    /// A leg whose loss was accepted, and whether the others were asked to become the same.
    pub accepted: Option<(usize, bool)>,
    /// By leg of a mirror: how far the death of a host is that comes before it grows.
    pub restarts: Vec<Restart>,
    /// So many failures of requests of a mirror are history.
    pub told_failed: usize,
    /// Results of comparisons of a mirror's legs.
    pub compared: RefCell<Compared>,
}

impl<'a> Course<'a> {
    fn new(plan: &'a Plan, programs: &'a dyn Programs) -> Self {
        let mut rig = Rig::new(plan.layout.clone(), plan.seed);
        let begin_ns = rig.world.now_ns + BEGIN_NS;
        for (number, fault) in plan.faults.iter().enumerate() {
            let at_ns = begin_ns + fault.at_ns;
            rig.world.at(at_ns, Event::Planned(number * 2));
            if fault.when.is_none() {
                let end_ns = at_ns + fault.lasts_ns;
                rig.world.at(end_ns, Event::Planned(number * 2 + 1));
            }
        }
        plan_examinations(&mut rig, plan, begin_ns);
        let mut history = History::default();
        if plan.layout.habit.crowded > 0 {
            history.crowded(plan.layout.habit.blocks);
        }
        history.copies = plan.layout.mirror.is_some();
        history.unfenced = plan.layout.mirror.is_some_and(|it| it.unfenced);
        Self {
            plan,
            programs,
            rig,
            history,
            report: Report::default(),
            begin_ns,
            going_on: vec![None; plan.faults.len()],
            until_ns: vec![0; plan.faults.len()],
            begun: plan.faults.iter().map(|_| None).collect(),
            pardons: Vec::new(),
            late_ns: vec![0; plan.layout.targets],
            bare: vec![false; plan.layout.targets],
            bare_ns: None,
            taken_blindly: false,
            images: vec![None; plan.layout.targets],
            accepted: None,
            restarts: vec![Restart::Not; plan.layout.targets],
            cuts: vec![None; plan.layout.targets],
            told_failed: 0,
            compared: RefCell::default(),
        }
    }

    fn all(&mut self) -> Result<(), Finding> {
        let last = self.plan.faults.iter().map(|it| {
            let wait_ns = it.when.map_or(0, |_| 2 * wait_ns(it.kind));
            it.at_ns + wait_ns + it.lasts_ns
        });
        let end_ns = self.begin_ns + last.max().unwrap_or(0) + 1;
        self.pass(end_ns)?;
        self.rest()?;
        // Only now: till then faults may have left other connections that break.
        self.rig.world.cut_unsound();
        self.recover()?;
        self.forget_idle();
        self.recover()?;
        self.are_alike()?;
        self.read_all()?;
        self.recover()?;
        self.lose_caches()?;
        self.follow_the_log()?;
        self.exercise()?;
        self.recover()?;
        self.judge()?;
        self.calm()?;
        self.lose_large()?;
        self.stop()
    }

    /// Time passes, and what was planned happens.
    pub(super) fn pass(&mut self, end_ns: u64) -> Result<(), Finding> {
        while let Some(number) = self.rig.run(end_ns) {
            self.due(number)?;
            self.no_wrong()?;
        }
        self.no_wrong()
    }

    /// All requests end.
    pub(super) fn rest(&mut self) -> Result<(), Finding> {
        let begun_ns = self.rig.world.now_ns;
        while !self.are_over() {
            let end_ns = begun_ns + self.rest_ns();
            if self.rig.world.now_ns >= end_ns {
                return Err(Finding::Stuck(self.what_waits()));
            }
            let next_ns = (self.rig.world.now_ns + SECOND / 10).min(end_ns);
            self.pass(next_ns)?;
            self.restore_all();
        }
        self.note_rest(begun_ns);
        Ok(())
    }

    /// A checker had something to judge here, if it had.
    pub(super) fn judges(&mut self, check: Check, something: bool) {
        self.report.judged.extend(something.then_some(check));
    }

    /// Moves the clients' records so far into the history.
    pub(super) fn remember(&mut self) {
        self.rig.clients(|it| it.tell(&mut self.history));
        self.remember_failed_flushes();
    }

    /// All paths are there again, and in use, and nothing is under way.
    pub(super) fn recover(&mut self) -> Result<(), Finding> {
        let begun_ns = self.rig.world.now_ns;
        let missing = |it: &Self| it.what_is_missing().map(Finding::Stuck);
        let left = |it: &Self| it.what_is_left().map(Finding::Unbalanced);
        while let Some(finding) = missing(self).or_else(|| left(self)) {
            if self.rig.world.now_ns >= begun_ns + self.rest_ns() {
                return Err(finding);
            }
            let next_ns = self.rig.world.now_ns + SECOND / 10;
            self.pass(next_ns)?;
            self.restore_all();
        }
        self.note_rest(begun_ns);
        Ok(())
    }

    /// All has come to rest.
    fn note_rest(&mut self, begun_ns: u64) {
        let took_ns = self.rig.world.now_ns - begun_ns;
        self.report.rest_ns = self.report.rest_ns.max(took_ns);
    }

    fn rest_ns(&self) -> u64 {
        let flapped = self.rig.hosts.iter().any(|it| it.flapped);
        rest_ns(flapped) + self.plan.layout.mirror.map_or(0, |_| MIRROR_REST_NS)
    }

    fn restore_all(&mut self) {
        if self.plan.layout.mirror.is_some() {
            self.mend_mirrors();
        }
        for host in 0..self.rig.hosts.len() {
            for address in 0..self.plan.layout.targets * usize::from(self.plan.layout.ports) {
                self.rig.restore(host, address);
            }
        }
    }

    pub(super) fn are_over(&mut self) -> bool {
        (0..self.rig.hosts.len()).all(|host| self.rig.client(host).is_over())
    }

    /// Reads all blocks at the end, for the history.
    pub(super) fn read_all(&mut self) -> Result<(), Finding> {
        self.rig.clients(Client::read_all);
        self.rest()
    }

    fn what_waits(&mut self) -> String {
        let mut lines = Vec::new();
        for host in 0..self.rig.hosts.len() {
            let client = self.rig.client(host);
            let (begun, ended) = (client.begun, client.ended);
            lines.push(format!("host {host}: {ended} of {begun} requests ended"));
            if let Some((home, start_ns, request)) = client.oldest() {
                let asked = self.asked(host, home, start_ns, &request);
                lines.push(format!("the oldest: {asked}"));
                self.report.keys.push(format!("{asked}"));
                let is_flush = request.kind == nbd::Kind::Flush;
                self.report.block =
                    (!is_flush).then_some(request.offset / self.plan.layout.habit.unit);
            }
            for &node in &self.rig.hosts[host].cores {
                if let Some(engine) = self.rig.core(node) {
                    for volume in self.rig.volumes() {
                        lines.push(format!("{:?}", engine.host().hold_stats(volume)));
                    }
                    lines.extend(engine.mirror(MIRRORS_FROM).map(|it| format!("{it:?}")));
                }
            }
            let said = &self.rig.hosts[host].lines;
            lines.extend(said.iter().rev().take(4).cloned());
        }
        lines.join("; ")
    }

    /// All hosts stop in order.
    fn stop(&mut self) -> Result<(), Finding> {
        for host in 0..self.rig.hosts.len() {
            self.rig.client(host).resting = true;
            self.stop_host(host);
        }
        let end_ns = self.rig.world.now_ns + 4 * DRAIN_NS;
        self.pass(end_ns)?;
        for (number, host) in self.rig.hosts.iter().enumerate() {
            if !host.has_stopped(&self.rig.world) {
                return Err(Finding::Stuck(format!("host {number} does not stop")));
            }
        }
        self.targets_are_left()?;
        self.were_left_alike()?;
        self.discovery_is_over()
    }
}
