//! Conditions of a path that a person would call wrong although the path still works: it turned
//! slow, it is lost again and again, it answers I/O with errors, its keep-alives come late.
//!
//! One [`Alarms`] for all paths of an engine. The cores report what they measured of each path
//! ([`PathWindow`]); rounds of [`ROUND_NS`] judge it. A condition has a beginning and an end, each
//! a [`Change`], and figures ([`Why`]). The end has stricter thresholds than the beginning
//! (hysteresis), so that a condition at its threshold does not begin and end all the time.
//!
//! * [`Kind::Slow`]: against its own past and against its peers (`slow`)
//! * [`Kind::Errors`]: more than [`Limits::errors_permille`] of its I/O in [`ERRORS_NS`], and at
//!   least [`ERRORS_MIN`]; it ends after [`ERRORS_WELL_NS`] with less than half that share
//! * [`Kind::Flapping`]: [`Limits::flaps`] losses within [`Limits::flap_window_ns`]; it ends once
//!   no loss is so recent
//! * [`Kind::LateKeepAlive`]: [`LATE_TO_BEGIN`] answers in a row later than
//!   [`Limits::keep_alive_ns`]; it ends after [`TIMELY_TO_END`] timely ones,
//!   or [`ANSWERS_OLD_NS`] without one
//!
//! # Contract
//! Times are of one monotonic clock, ns (T42): a wall clock that jumps changes nothing. After each
//! call of [`Alarms::observe`] and at [`Alarms::poll_timeout`] the caller calls
//! [`Alarms::handle_timeout`], then takes the changes.
//!
//! # Limits
//! [`ENDED_MAX`] ended conditions are kept. A path that was slow from the start is not noticed: it
//! has no better past.
use crate::latency::LatencyHistogram;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use policy::PathIndex;
use slow::{Level, Series};

mod slow;
#[cfg(test)]
mod tests;

/// Time between two windows of a core, and so of two rounds. 500 ms: a condition that lasts is
/// certain after a few rounds, within 5 s.
pub const ROUND_NS: u64 = 500_000_000;
/// A round is judged so long after its first window, when the other cores' are there too.
pub const COLLECT_NS: u64 = ROUND_NS / 2;
/// Errors are counted over so long. 4 s: eight rounds.
pub const ERRORS_NS: u64 = 4_000_000_000;
/// Fewer errors in that time are chance.
pub const ERRORS_MIN: u32 = 4;
/// For so long it has to be well again: errors come in bursts.
pub const ERRORS_WELL_NS: u64 = 60_000_000_000;
/// Late answers in a row: one is a lost packet.
pub const LATE_TO_BEGIN: u8 = 2;
/// Timely answers in a row.
pub const TIMELY_TO_END: u8 = 3;
/// After so long without an answer the last ones say nothing any more.
pub const ANSWERS_OLD_NS: u64 = 60_000_000_000;
/// Ended conditions that are kept.
pub const ENDED_MAX: usize = 64;
/// Most losses of a path that are counted.
pub const FLAPS_MAX: usize = 16;

/// A path of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Its volume, by index; of a leg of a mirror, the leg's.
    pub volume: u16,
    /// Its index there.
    pub path: PathIndex,
}

/// Thresholds; 0: never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Latency above what is usual from which a path is slow, ns. 10 ms: less is felt by few, and a
    /// busy disk, network or CPU adds as much at times.
    pub slow_ns: u64,
    /// Share of I/O that ends with errors, 1 / 1000. 1 %: a healthy path has none.
    pub errors_permille: u16,
    /// Losses that are too many, at most [`FLAPS_MAX`]. 3: a target that is restarted is lost once,
    /// and once more where that goes wrong.
    pub flaps: u8,
    /// Within so long, ns. 10 minutes: longer than any series of attempts to connect.
    pub flap_window_ns: u64,
    /// Time for the answer to a Keep Alive, ns. 500 ms, a tenth of the usual timeout: the
    /// controller is lost at half of it.
    pub keep_alive_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            slow_ns: 10_000_000,
            errors_permille: 10,
            flaps: 3,
            flap_window_ns: 600_000_000_000,
            keep_alive_ns: 500_000_000,
        }
    }
}

/// Measures of one path by one core, since its last report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathWindow {
    /// Time that it spans, ns; at most [`ROUND_NS`]: a path that rested has no report before.
    pub span_ns: u64,
    /// Of reads and writes that ended well, probes among them.
    pub latencies: Box<[LatencyHistogram; 2]>,
    /// Read and written.
    pub bytes: [u64; 2],
    /// I/Os that the path answered with errors.
    pub errors: u32,
    /// Times that it was lost, each its own fault.
    pub losses: u32,
    /// Longest time until a Keep Alive was answered, ns; `None`: none was.
    pub keep_alive_ns: Option<u64>,
}

impl PathWindow {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        let has_samples = self.latencies.iter().any(|it| it.count() > 0);
        !has_samples && self.errors == 0 && self.losses == 0 && self.keep_alive_ns.is_none()
    }
}

/// A condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// It turned slow.
    Slow,
    /// It answers I/O with errors.
    Errors,
    /// It is lost again and again.
    Flapping,
    /// It answers Keep Alives late.
    LateKeepAlive,
}

impl Kind {
    /// The word in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slow => "slow",
            Self::Errors => "errors",
            Self::Flapping => "flapping",
            Self::LateKeepAlive => "late-keep-alive",
        }
    }
}

/// Figures of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// p90 of reads or writes, ns.
    Slow {
        /// Of writes.
        writes: bool,
        /// Now.
        now_ns: u64,
        /// Before.
        was_ns: u64,
        /// Of the other paths now; `None`: they have no such I/O.
        peers_ns: Option<u64>,
    },
    /// In [`ERRORS_NS`].
    Errors {
        /// I/Os answered with errors.
        errors: u32,
        /// All that were answered.
        ios: u32,
    },
    /// The connection is lost too often.
    Flapping {
        /// Losses in the window.
        losses: u8,
        /// The window, ns.
        window_ns: u64,
    },
    /// The longest of late answers.
    LateKeepAlive {
        /// Time it took, ns.
        took_ns: u64,
        /// Time it may take, ns.
        limit_ns: u64,
    },
}

impl Why {
    /// The condition.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Slow { .. } => Kind::Slow,
            Self::Errors { .. } => Kind::Errors,
            Self::Flapping { .. } => Kind::Flapping,
            Self::LateKeepAlive { .. } => Kind::LateKeepAlive,
        }
    }
}

/// A condition that holds, or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// Its path.
    pub subject: Subject,
    /// Its worst figures so far, but of [`Kind::Slow`] the last.
    pub why: Why,
    /// When it began, ns.
    pub since_ns: u64,
    /// When it ended, ns; `None`: it holds.
    pub ended_ns: Option<u64>,
}

/// A condition has begun, or ended.
pub type Change = Alarm;

/// See the module.
#[derive(Debug, Default)]
pub struct Alarms {
    limits: Limits,
    paths: BTreeMap<Subject, Watched>,
    /// When the round is judged, ns; `None`: there is nothing to be judged.
    due_ns: Option<u64>,
    /// The longest time in the round for which a core noticed nothing, ns.
    late_ns: u64,
    changes: VecDeque<Change>,
    ended: VecDeque<Alarm>,
}

/// All that is known of a path.
#[derive(Debug, Default)]
struct Watched {
    /// Paths of one group are peers.
    group: u16,
    series: [Series; 2],
    errors: ErrorCount,
    flaps: Flaps,
    keep_alive: Answers,
    /// Conditions that hold.
    alarms: BTreeMap<Kind, Alarm>,
}

/// Ends of I/O in the last [`ERRORS_NS`].
#[derive(Debug, Default)]
struct ErrorCount {
    /// By round: its number since the clock began, errors, all.
    rounds: VecDeque<(u64, u32, u32)>,
    /// When the share was at least half of the limit, last, ns.
    bad_ns: u64,
}

impl ErrorCount {
    fn add(&mut self, errors: u32, ios: u32, now_ns: u64) {
        if ios == 0 {
            return;
        }
        let round = now_ns / ROUND_NS;
        match self.rounds.back_mut() {
            Some(last) if last.0 == round => (last.1, last.2) = (last.1 + errors, last.2 + ios),
            _ => self.rounds.push_back((round, errors, ios)),
        }
    }

    /// Errors and all I/Os.
    fn sum(&mut self, now_ns: u64) -> (u32, u32) {
        let from = (now_ns / ROUND_NS).saturating_sub(ERRORS_NS / ROUND_NS);
        while self.rounds.front().is_some_and(|it| it.0 <= from) {
            self.rounds.pop_front();
        }
        let add = |sum: (u32, u32), it: &(u64, u32, u32)| {
            (sum.0.saturating_add(it.1), sum.1.saturating_add(it.2))
        };
        self.rounds.iter().fold((0, 0), add)
    }
}

/// The last losses of a path.
#[derive(Debug, Default)]
struct Flaps {
    at_ns: VecDeque<u64>,
}

impl Flaps {
    fn add(&mut self, losses: u32, now_ns: u64) {
        for _ in 0..losses.min(FLAPS_MAX as u32) {
            if self.at_ns.len() == FLAPS_MAX {
                self.at_ns.pop_front();
            }
            self.at_ns.push_back(now_ns);
        }
    }

    /// How many lie within the window.
    fn within(&mut self, window_ns: u64, now_ns: u64) -> u8 {
        let is_old = |at_ns: &u64| now_ns.saturating_sub(*at_ns) >= window_ns;
        while self.at_ns.front().is_some_and(is_old) {
            self.at_ns.pop_front();
        }
        self.at_ns.len() as u8
    }
}

/// Answers to Keep Alives.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    /// The last late one, ns.
    took_ns: u64,
    late_in_a_row: u8,
    timely_in_a_row: u8,
    /// When the last one was reported, ns.
    at_ns: u64,
}

impl Answers {
    fn add(&mut self, took_ns: u64, limit_ns: u64, now_ns: u64) {
        self.at_ns = now_ns;
        if took_ns > limit_ns {
            self.took_ns = took_ns;
            self.late_in_a_row = self.late_in_a_row.saturating_add(1);
            self.timely_in_a_row = 0;
        } else {
            self.timely_in_a_row = self.timely_in_a_row.saturating_add(1);
            self.late_in_a_row = 0;
        }
    }
}

/// Effect of a round on a condition.
enum Verdict {
    Holds(Why),
    Ends,
    AsBefore,
}

impl Alarms {
    /// Other thresholds. Conditions that hold are judged by them from the next round on.
    pub fn set_limits(&mut self, limits: Limits, now_ns: u64) {
        self.limits = limits;
        self.judge_by(now_ns);
    }

    /// Adds what a core measured of a path. Paths of one `group` are peers: those of a volume, or
    /// of all legs of a mirror. `late_ns`: the longest time for which the core noticed nothing.
    pub fn observe(
        &mut self,
        subject: Subject,
        group: u16,
        window: &PathWindow,
        late_ns: u64,
        now_ns: u64,
    ) {
        self.late_ns = self.late_ns.max(late_ns);
        let it = self.paths.entry(subject).or_default();
        it.group = group;
        let ios: u64 = window.latencies.iter().map(LatencyHistogram::count).sum();
        let ios = u32::try_from(ios).unwrap_or(u32::MAX);
        for (op, series) in it.series.iter_mut().enumerate() {
            let span_ns = window.span_ns.min(ROUND_NS);
            let from_ns = now_ns.saturating_sub(span_ns);
            series.add(&window.latencies[op], window.bytes[op], from_ns, now_ns);
        }
        it.errors
            .add(window.errors, ios.saturating_add(window.errors), now_ns);
        it.flaps.add(window.losses, now_ns);
        if let Some(took_ns) = window.keep_alive_ns
            && self.limits.keep_alive_ns > 0
        {
            let took_ns = took_ns.saturating_sub(late_ns);
            it.keep_alive
                .add(took_ns, self.limits.keep_alive_ns, now_ns);
        }
        self.judge_by(now_ns.saturating_add(COLLECT_NS));
    }

    fn judge_by(&mut self, due_ns: u64) {
        self.due_ns = Some(self.due_ns.map_or(due_ns, |it| it.min(due_ns)));
    }

    /// Forgets a path. Returns its conditions that held: they have ended.
    pub fn remove(&mut self, subject: Subject, now_ns: u64) -> Vec<Change> {
        self.ended.retain(|it| it.subject != subject);
        let it = self.paths.remove(&subject).unwrap_or_default();
        let end = |alarm| Alarm {
            ended_ns: Some(now_ns),
            ..alarm
        };
        it.alarms.into_values().map(end).collect()
    }

    /// When the next round is to be judged, ns.
    pub fn poll_timeout(&self) -> Option<u64> {
        self.due_ns
    }

    /// Judges the round, if it is over.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        if self.due_ns.is_none_or(|due_ns| now_ns < due_ns) {
            return;
        }
        self.due_ns = None;
        let late_ns = core::mem::take(&mut self.late_ns);
        let levels = self.levels(now_ns);
        let limits = self.limits;
        let mut next_ns = None;
        for (&subject, it) in &mut self.paths {
            let peers = slow::Peers {
                all: &levels,
                subject,
                group: it.group,
            };
            let slow = slow::judge(&mut it.series, &peers, &limits, late_ns, now_ns);
            for (kind, verdict) in [
                (Kind::Slow, slow),
                (Kind::Errors, it.judge_errors(&limits, now_ns)),
                (Kind::Flapping, it.judge_flaps(&limits, now_ns)),
                (Kind::LateKeepAlive, it.judge_answers(&limits, now_ns)),
            ] {
                let holds = it.alarms.get_mut(&kind);
                match (verdict, holds) {
                    (Verdict::Holds(why), Some(there)) => there.take(why),
                    (Verdict::Holds(why), None) => {
                        let alarm = Alarm {
                            subject,
                            why,
                            since_ns: now_ns,
                            ended_ns: None,
                        };
                        it.alarms.insert(kind, alarm);
                        self.changes.push_back(alarm);
                    }
                    (Verdict::Ends, Some(there)) => {
                        let alarm = Alarm {
                            ended_ns: Some(now_ns),
                            ..*there
                        };
                        it.alarms.remove(&kind);
                        if self.ended.len() == ENDED_MAX {
                            self.ended.pop_front();
                        }
                        self.ended.push_back(alarm);
                        self.changes.push_back(alarm);
                    }
                    (Verdict::Ends, None) | (Verdict::AsBefore, _) => {}
                }
            }
            next_ns = [next_ns, it.next_ns(&limits, now_ns)]
                .into_iter()
                .flatten()
                .min();
        }
        next_ns.into_iter().for_each(|at_ns| self.judge_by(at_ns));
    }

    /// Levels of all paths that have enough I/O in this round.
    fn levels(&mut self, now_ns: u64) -> Vec<Level> {
        let paths = self.paths.iter_mut();
        let of = paths.flat_map(|(&subject, it)| {
            let (group, is_slow) = (it.group, it.alarms.contains_key(&Kind::Slow));
            let series = it.series.iter_mut().enumerate();
            series.filter_map(move |(op, series)| {
                let growth = series.end_round(is_slow, now_ns)?;
                Some(Level {
                    subject,
                    group,
                    op,
                    growth,
                })
            })
        });
        of.collect()
    }

    /// The next condition that has begun or ended.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Conditions of a path that hold.
    pub fn of(&self, subject: Subject) -> impl Iterator<Item = &Alarm> {
        let it = self.paths.get(&subject);
        it.into_iter().flat_map(|it| it.alarms.values())
    }

    /// Whether any path is slow: its probes are asked for, which show the end where there is no
    /// I/O.
    pub fn is_any_slow(&self) -> bool {
        let mut paths = self.paths.values();
        paths.any(|it| it.alarms.contains_key(&Kind::Slow))
    }

    /// Conditions that have ended, oldest first.
    pub fn ended(&self) -> impl Iterator<Item = &Alarm> {
        self.ended.iter()
    }
}

impl Alarm {
    fn take(&mut self, why: Why) {
        let worse = match (self.why, why) {
            (Why::Errors { errors: a, .. }, Why::Errors { errors: b, .. }) => b > a,
            (Why::Flapping { losses: a, .. }, Why::Flapping { losses: b, .. }) => b > a,
            (Why::LateKeepAlive { took_ns: a, .. }, Why::LateKeepAlive { took_ns: b, .. }) => b > a,
            _ => true,
        };
        if worse {
            self.why = why;
        }
    }
}

impl Watched {
    fn holds(&self, kind: Kind) -> bool {
        self.alarms.contains_key(&kind)
    }

    fn judge_errors(&mut self, limits: &Limits, now_ns: u64) -> Verdict {
        let (errors, ios) = self.errors.sum(now_ns);
        let permille = u64::from(limits.errors_permille);
        if permille == 0 {
            return Verdict::Ends;
        }
        let exceeds = |share| u64::from(errors) * 1000 >= share * u64::from(ios);
        if errors > 0 && exceeds(permille.div_ceil(2)) {
            self.errors.bad_ns = now_ns;
        }
        if errors >= ERRORS_MIN && exceeds(permille) {
            return Verdict::Holds(Why::Errors { errors, ios });
        }
        match now_ns.saturating_sub(self.errors.bad_ns) >= ERRORS_WELL_NS {
            true => Verdict::Ends,
            false => Verdict::AsBefore,
        }
    }

    fn judge_flaps(&mut self, limits: &Limits, now_ns: u64) -> Verdict {
        let window_ns = limits.flap_window_ns;
        let losses = self.flaps.within(window_ns, now_ns);
        match losses {
            0 => Verdict::Ends,
            _ if limits.flaps == 0 => Verdict::Ends,
            _ if losses >= limits.flaps => Verdict::Holds(Why::Flapping { losses, window_ns }),
            _ => Verdict::AsBefore,
        }
    }

    fn judge_answers(&self, limits: &Limits, now_ns: u64) -> Verdict {
        let it = &self.keep_alive;
        let limit_ns = limits.keep_alive_ns;
        // With traffic-based keep-alive none is sent under load.
        let is_old = now_ns.saturating_sub(it.at_ns) >= ANSWERS_OLD_NS;
        if limit_ns == 0 || it.timely_in_a_row >= TIMELY_TO_END || is_old {
            return Verdict::Ends;
        }
        match it.late_in_a_row >= LATE_TO_BEGIN {
            true => Verdict::Holds(Why::LateKeepAlive {
                took_ns: it.took_ns,
                limit_ns,
            }),
            false => Verdict::AsBefore,
        }
    }

    /// When it has to be judged again although nothing is observed, ns.
    fn next_ns(&self, limits: &Limits, now_ns: u64) -> Option<u64> {
        let errors = self.holds(Kind::Errors).then(|| {
            let has_errors = self.errors.rounds.iter().any(|it| it.1 > 0);
            match has_errors {
                true => now_ns.saturating_add(ROUND_NS),
                false => self.errors.bad_ns.saturating_add(ERRORS_WELL_NS),
            }
        });
        let last_ns = self.flaps.at_ns.back();
        let flaps = last_ns.filter(|_| self.holds(Kind::Flapping));
        let flaps = flaps.map(|at_ns| at_ns.saturating_add(limits.flap_window_ns));
        let slow = self.series.iter().filter_map(Series::idle_end_ns).min();
        let answers = self.holds(Kind::LateKeepAlive);
        let answers = answers.then(|| self.keep_alive.at_ns.saturating_add(ANSWERS_OLD_NS));
        [errors, flaps, slow, answers].into_iter().flatten().min()
    }
}
