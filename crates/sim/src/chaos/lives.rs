//! Processes of a host, one after the other: what each had counted when it ended, and what its
//! applications were told meanwhile.
//!
//! # Contract
//! A life ends when its process is killed, or at the last when the next one begins. Connections
//! belong to the life in which they were made, by time.
use super::client::Tally;
use super::count::Sum;
use super::prelude::*;
use engine::export::ExportCounters;

/// One process of a host.
#[derive(Clone, Debug, Default)]
pub struct Life {
    pub begun_ns: u64,
    /// Counts of its cores at its end; of the running one, nothing yet.
    pub sum: Sum,
    pub export: ExportCounters,
    /// Paths that left it, or were to leave, and took their counts with them.
    pub removed: u32,
    /// A subsystem of its exports ended, and took its counts with it.
    pub recounted: bool,
    /// It has ended.
    pub over: bool,
}

/// All processes of a host, and when there was none.
#[derive(Debug, Default)]
pub struct Lives {
    pub all: Vec<Life>,
    /// From a stop or a death to the beginning of the next, ns.
    outages: Vec<(u64, u64)>,
    /// When its applications were cut off, ns, and on how many cores, from the first.
    cuts: Vec<(u64, usize)>,
    /// From when to when associations of its applications may have ended, ns.
    silences: Vec<(u64, u64)>,
}

impl Lives {
    /// A process begins.
    pub fn begin(&mut self, now_ns: u64) {
        if let Some(outage) = self.outages.last_mut() {
            outage.1 = outage.1.min(now_ns);
        }
        self.all.push(Life {
            begun_ns: now_ns,
            ..Life::default()
        });
    }

    /// It is told to stop, or dies.
    pub fn leave(&mut self, now_ns: u64) {
        if self.outages.last().is_none_or(|it| it.1 != u64::MAX) {
            self.outages.push((now_ns, u64::MAX));
        }
    }

    /// A subsystem ends: what its process counts is not all that its applications are told.
    pub fn recount(&mut self) {
        if let Some(life) = self.all.last_mut() {
            life.recounted = true;
        }
    }

    /// Its applications are cut off from so many cores, the first ones.
    pub fn cut(&mut self, now_ns: u64, homes: usize) {
        self.cuts.push((now_ns, homes));
    }

    /// Keep-alive of its applications' associations may fail in this time.
    pub fn silence(&mut self, from_ns: u64, to_ns: u64) {
        self.silences.push((from_ns, to_ns));
    }

    /// Whether a request may have ended without an answer because its connection was cut.
    pub fn was_cut(&self, failed: &Failed) -> bool {
        let during = failed.since_ns..=failed.end_ns;
        let of = |&(at_ns, homes): &(u64, usize)| {
            during.contains(&at_ns) && (failed.home as usize) < homes
        };
        self.cuts.iter().any(of)
    }

    /// Whether a request may have ended without an answer because its host's process stopped or
    /// died, its connection being to such a one, or because its association was over.
    pub fn excuses(&self, failed: &Failed) -> bool {
        let of =
            |&(from_ns, to_ns): &(u64, u64)| failed.since_ns <= to_ns && failed.end_ns >= from_ns;
        self.outages.iter().chain(&self.silences).any(of)
    }

    /// The number of the life at that time.
    pub fn at(&self, at_ns: u64) -> usize {
        self.all.partition_point(|it| it.begun_ns <= at_ns)
    }

    /// Returns the results that applications received for the requests of a life.
    pub fn told(&self, life: usize, tallies: &[Tally]) -> Tally {
        let from_ns = self.all[life].begun_ns;
        let to_ns = self.all.get(life + 1).map_or(u64::MAX, |it| it.begun_ns);
        let of = |tally: &&Tally| (from_ns..to_ns).contains(&tally.since_ns);
        let those = tallies.iter().filter(of);
        those.fold(Tally::default(), |sum, tally| sum.with(tally))
    }
}

impl Rig {
    /// Keeps what the process of a host has counted: it is about to end, or has.
    pub fn keep_counts(&mut self, number: usize) {
        let (sum, export) = self.counted(number);
        let host = &mut self.hosts[number];
        if let Some(life) = host.lives.all.last_mut().filter(|it| !it.over) {
            (life.sum, life.export, life.over) = (sum, export, true);
            life.removed = host.user.removed + host.user.leaving();
        }
    }

    /// Returns the counts of a host's running process, all cores together.
    pub fn counted(&self, number: usize) -> (Sum, ExportCounters) {
        let (mut sum, mut export) = (Sum::default(), ExportCounters::default());
        for (.., engine) in self.cores().filter(|it| it.0 == number) {
            let (requests, errors) = front::answered(engine, &self.layout);
            export.requests += requests;
            export.errors += errors;
            let it = engine.host();
            for path in it.paths(0) {
                sum.add(&it.counters(0, path));
            }
            sum.add_again(&it.hold_stats(0));
        }
        (sum, export)
    }
}
