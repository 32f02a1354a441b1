//! Sums over many worlds.
use sim::chaos::judged::Check;
use sim::chaos::plan::Kind;
use sim::chaos::run::Report;
use std::collections::BTreeMap;

/// Totals and medians.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    pub worlds: u64,
    /// Requests of applications that ended.
    pub requests: Counts,
    /// Faults that happened.
    pub faults: Counts,
    /// Of these, the ones that touched something.
    pub touched: Counts,
    /// Virtual time, ms.
    pub time_ms: Counts,
    /// Events of all worlds.
    pub events: u64,
    /// Of the faults, by kind, the ones that touched nothing.
    missed: BTreeMap<Kind, u64>,
    /// The last seed.
    pub last: u64,
    /// How often a fault that touched something began at a path in this state.
    coverage: BTreeMap<(Kind, &'static str), u64>,
    /// How often a fault of this name touched something.
    named: BTreeMap<String, u64>,
    /// Worlds in which a checker had something to judge.
    judged: BTreeMap<Check, u64>,
}

/// Forms of kinds of faults that have names of their own.
const FORMS: [(&str, Kind); 2] = [
    ("forgotten-idle-connection", Kind::HalfOpen),
    ("one-way-loss-by-size", Kind::OneWay),
];

/// Numbers, one of each world; those that are the same take no room.
#[derive(Clone, Debug, Default)]
pub struct Counts(BTreeMap<u64, u64>);

impl Counts {
    fn add(&mut self, number: u64) {
        *self.0.entry(number).or_default() += 1;
    }

    pub fn total(&self) -> u64 {
        self.0.iter().map(|(number, count)| number * count).sum()
    }

    /// The smallest; 0 of none.
    pub fn least(&self) -> u64 {
        self.0.keys().next().copied().unwrap_or(0)
    }

    /// The upper one of two; 0 of none.
    pub fn median(&self) -> u64 {
        let half = self.0.values().sum::<u64>() / 2;
        let mut before = 0;
        let mut numbers = self.0.iter();
        let median = numbers.find(|(_, count)| {
            before += **count;
            before > half
        });
        median.map_or(0, |(number, _)| *number)
    }
}

impl Sums {
    /// One more world.
    pub fn add(&mut self, seed: u64, report: &Report) {
        self.worlds += 1;
        self.last = seed;
        self.requests.add(report.requests);
        self.faults.add(report.faults);
        self.touched.add(report.touched());
        self.time_ms.add(report.time_ns / 1_000_000);
        self.events += report.events;
        for kind in &report.missed {
            *self.missed.entry(*kind).or_default() += 1;
        }
        for (kind, state) in &report.coverage {
            *self.coverage.entry((*kind, state.name())).or_default() += 1;
        }
        for name in &report.names {
            *self.named.entry(name.clone()).or_default() += 1;
        }
        for check in &report.judged {
            *self.judged.entry(*check).or_default() += 1;
        }
    }

    /// In how many worlds a checker had something to judge.
    pub fn judged(&self, check: Check) -> u64 {
        self.judged.get(&check).copied().unwrap_or(0)
    }

    /// Forms of kinds of faults, and how often they touched something.
    pub fn forms(&self) -> impl Iterator<Item = (&'static str, Kind, u64)> + '_ {
        let count = |name| self.named.get(name).copied().unwrap_or(0);
        FORMS
            .iter()
            .map(move |&(name, kind)| (name, kind, count(name)))
    }

    /// How many faults of a kind touched nothing.
    pub fn missed(&self, kind: Kind) -> u64 {
        self.missed.get(&kind).copied().unwrap_or(0)
    }

    /// How often this fault met this state, and touched something.
    pub fn met(&self, kind: Kind, state: &'static str) -> u64 {
        self.coverage.get(&(kind, state)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_totals() {
        let mut counts = Counts::default();
        assert_eq!((counts.median(), counts.total()), (0, 0));
        for number in [9, 1, 5, 5, 2] {
            counts.add(number);
        }
        assert_eq!((counts.median(), counts.total()), (5, 22));
        assert_eq!(counts.least(), 1);
        counts.add(100);
        assert_eq!(counts.median(), 5);
    }
}
