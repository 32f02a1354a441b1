//! Explains a selection: the values that the policy in force saw of each path, and the rule that
//! decided.
//!
//! [`Selector::select_explained`](crate::Selector::select_explained) chooses as `select` does and
//! records the reasons. Meant for a small part of the I/Os: it examines every path twice.
//!
//! # Contract
//! It changes nothing that `select` would not. The recorded values are those before the I/O was
//! counted. The caller owns the memory, so that nothing is allocated.

use crate::Selector;
use crate::limits::PATHS_MAX;
use crate::round_robin_latency::{self, Among};
use crate::types::{Forecast, PathIndex, PathView, Policy, Request};
use crate::weighted_latency::cell;

/// The selection of a path for one I/O.
#[derive(Clone, Copy, Debug)]
pub struct Explained {
    /// Policy in force at the selection.
    pub policy: Policy,
    /// The chosen path; `None`: none was usable.
    pub chosen: Option<PathIndex>,
    /// Reason for the choice.
    pub why: Why,
    count: usize,
    looks: [Look; PATHS_MAX],
}

/// One path, as the policy saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// It may be chosen.
    pub usable: bool,
    /// Usable, but this policy chooses it only where no optimized path is usable.
    pub stands_by: bool,
    /// This core's I/Os in flight on it.
    pub in_flight: u32,
    /// Other cores' I/Os in flight on it, as the policy estimates them.
    pub elsewhere: u32,
    /// Values that the policy compares.
    pub basis: Basis,
}

/// Values that a policy compares, for one path and I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Nothing: `soonest` has no measurement of it yet.
    Unknown,
    /// `numa`: its distance.
    Distance(u32),
    /// `round-robin`.
    Turn {
        /// Number of usable paths before it in the circle; `None`: it may not be chosen itself.
        before: Option<u32>,
        /// Bytes left of its turn; 0: one I/O.
        left: u64,
    },
    /// `round-robin-latency`.
    TurnWithin {
        /// As of [`Basis::Turn`]; `None` also: it is slower than the policy tolerates, or its
        /// first I/O is still in flight.
        before: Option<u32>,
        /// Bytes left of its turn; 0: one I/O.
        left: u64,
        /// Smoothed latency; `None`: not measured recently.
        recent_ns: Option<u64>,
    },
    /// `queue-depth` and programs: I/Os in flight, and nothing else.
    Depth,
    /// `weighted-latency`, for I/Os of this group and size.
    Credit {
        /// 1…64; 0 = not measured.
        weight: u32,
        /// I/Os left in this cycle.
        credit: u32,
        /// Smoothed latency that this core measured; 0 = none.
        smoothed_ns: u64,
    },
    /// `soonest`: the predicted time of the I/O on it.
    Forecast(Forecast),
    /// `soonest`, while every path is full.
    Crowd {
        /// The predicted time of the I/O on it.
        forecast: Forecast,
        /// Predicted time of an I/O of the usual size, ns: this is compared.
        usual_ns: u64,
    },
    /// `pid`: its number among the paths that may be chosen, their count, and the reader's number;
    /// all from 0.
    Reader {
        /// This path; `None`: it is not among them.
        number: Option<u32>,
        /// How many.
        of: u32,
        /// The reader's.
        wanted: u32,
    },
    /// `devid`: whether it is the named path.
    Named(bool),
    /// `latency`: the smoothed latency of I/Os of this group; `None`: not measured recently.
    Recent(Option<u64>),
    /// `service-time`.
    Bytes {
        /// In flight there, with this I/O.
        bytes: u64,
        /// Relative throughput.
        throughput: u8,
    },
    /// `historical-service-time`.
    Served {
        /// Service time of one I/O; `None`: not measured.
        service_ns: Option<u64>,
        /// Predicted end of this I/O; `None`: the path has to be tried, or is being tried.
        estimate_ns: Option<u64>,
    },
}

/// Reason why the chosen path was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// No path was usable.
    NoneUsable,
    /// It was the only one that the policy might choose.
    Only,
    /// It had the least of the value that the policy compares.
    Least,
    /// Others had as little; it came first, or it was its turn.
    Tie,
    /// Its cost was about the least, and of those it had the fewest I/Os in flight.
    Fewest,
    /// All paths are full, and there an I/O of the usual size would wait least.
    Even,
    /// Another costs less with its price, but is slower and carries next to nothing.
    OthersSmall,
    /// Its stream is there; moving it would cost more than this I/O would gain.
    GoesOn,
    /// It has no measurement yet, or none any more.
    Untried,
    /// Another was cheaper; but this one was due for a new measurement, at an acceptable cost.
    Explored,
    /// It was its turn.
    Turn,
    /// It was next in the circle and could pay.
    Credit,
    /// It is the reader's own path.
    Reader,
    /// The user named it.
    Named,
    /// The path that the user named was not usable.
    Instead,
    /// A program chose it, or `queue-depth` in its place.
    Program,
}

impl Why {
    /// The word used in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoneUsable => "none-usable",
            Self::Only => "only",
            Self::Least => "least",
            Self::Tie => "tie",
            Self::Fewest => "fewest-in-flight",
            Self::Even => "even",
            Self::OthersSmall => "others-small",
            Self::GoesOn => "goes-on",
            Self::Untried => "untried",
            Self::Explored => "explored",
            Self::Turn => "turn",
            Self::Credit => "credit",
            Self::Reader => "reader",
            Self::Named => "named",
            Self::Instead => "instead",
            Self::Program => "program",
        }
    }
}

impl Look {
    const NEW: Self = Self {
        usable: false,
        stands_by: false,
        in_flight: 0,
        elsewhere: 0,
        basis: Basis::Unknown,
    };

    /// Predicted time of the I/O, where the policy predicts; ns.
    pub fn expected_ns(&self) -> Option<u64> {
        match self.basis {
            Basis::Forecast(forecast) | Basis::Crowd { forecast, .. } => Some(forecast.time_ns()),
            Basis::Credit { smoothed_ns, .. } => Some(smoothed_ns).filter(|&ns| ns > 0),
            Basis::Recent(mean_ns) => mean_ns,
            Basis::TurnWithin { recent_ns, .. } => recent_ns,
            Basis::Served { estimate_ns, .. } => estimate_ns,
            _ => None,
        }
    }

    /// Whether the policy prefers this path to another, or takes both as equal; `None`: it compares
    /// nothing.
    fn is_as_good_as(&self, other: &Self) -> Option<bool> {
        let count = |it: &Self| u64::from(it.in_flight) + u64::from(it.elsewhere);
        // An unknown path is tried first, by one I/O.
        let known = |it: &Self, ns: Option<u64>| match (ns, it.in_flight) {
            (Some(ns), _) => ns.saturating_add(1),
            (None, 0) => 0,
            (None, _) => u64::MAX,
        };
        Some(match (self.basis, other.basis) {
            (Basis::Distance(mine), Basis::Distance(its)) => mine <= its,
            (Basis::Depth, Basis::Depth) => count(self) <= count(other),
            (Basis::Recent(mine), Basis::Recent(its)) => known(self, mine) <= known(other, its),
            (
                Basis::Served { estimate_ns, .. },
                Basis::Served {
                    estimate_ns: its, ..
                },
            ) => known(self, estimate_ns) <= known(other, its),
            (
                Basis::Bytes { bytes, throughput },
                Basis::Bytes {
                    bytes: its_bytes,
                    throughput: its,
                },
            ) => match (throughput, its) {
                (0, 0) => bytes <= its_bytes,
                _ => {
                    u128::from(bytes) * u128::from(its)
                        <= u128::from(its_bytes) * u128::from(throughput)
                }
            },
            _ => return None,
        })
    }
}

impl Default for Explained {
    fn default() -> Self {
        Self::new()
    }
}

impl Explained {
    /// Memory for an explanation.
    pub const fn new() -> Self {
        Self {
            policy: Policy::Numa,
            chosen: None,
            why: Why::NoneUsable,
            count: 0,
            looks: [Look::NEW; PATHS_MAX],
        }
    }

    /// The paths, by index.
    pub fn looks(&self) -> &[Look] {
        &self.looks[..self.count]
    }

    /// The path that was chosen.
    pub fn look(&self) -> Option<&Look> {
        self.looks().get(usize::from(self.chosen?.0))
    }

    /// Records the state of all paths before the selection. The values of `soonest` follow later.
    pub(crate) fn begin(&mut self, selector: &Selector, request: &Request, paths: &[PathView]) {
        self.policy = selector.policy();
        self.count = paths.len();
        let ranks = !matches!(self.policy, Policy::WeightedLatency(_) | Policy::Soonest);
        let optimized = ranks && paths.iter().any(PathView::optimized);
        for (path, view) in paths.iter().enumerate() {
            self.looks[path] = Look {
                usable: view.usable(),
                stands_by: optimized && view.usable() && !view.optimized(),
                in_flight: selector.in_flight[path],
                elsewhere: view.in_flight_elsewhere,
                basis: Basis::Unknown,
            };
        }
        for (path, view) in paths.iter().enumerate() {
            self.looks[path].basis = self.basis(selector, request, path, view);
        }
        if let Policy::RoundRobinLatency { bytes } = self.policy {
            let (latency, in_flight) = (&selector.latency, &selector.in_flight);
            let among = round_robin_latency::among(latency, request, paths, in_flight);
            let (start, left) = selector.round_robin.stand(bytes, self.count);
            let steps = |path: usize| (path + self.count - start) % self.count;
            for path in 0..self.count {
                let in_turn = |it: usize| match among {
                    Among::Tested(tested) => it == tested,
                    Among::Circle(all) => all >> it & 1 == 1,
                };
                let those = (0..self.count).filter(|&it| in_turn(it));
                let before = those.filter(|&it| steps(it) < steps(path)).count();
                self.looks[path].basis = Basis::TurnWithin {
                    before: in_turn(path).then_some(before as u32),
                    left: if path == start { left } else { bytes },
                    recent_ns: selector.latency.recent_ns(request, path),
                };
            }
        }
    }

    /// Returns the values that the policy compares, for one path.
    fn basis(&self, it: &Selector, request: &Request, path: usize, view: &PathView) -> Basis {
        let own = it.in_flight[path];
        match self.policy {
            Policy::Numa => Basis::Distance(view.distance),
            Policy::RoundRobin { bytes } => {
                let (start, left) = it.round_robin.stand(bytes, self.count);
                let steps = |path: usize| (path + self.count - start) % self.count;
                let may = self.candidates().any(|it| it == path);
                let before = self.candidates().filter(|&it| steps(it) < steps(path));
                Basis::Turn {
                    before: may.then(|| before.count() as u32),
                    left: if path == start { left } else { bytes },
                }
            }
            Policy::QueueDepth | Policy::Program(_) => Basis::Depth,
            Policy::WeightedLatency(over) => {
                let cell = cell(over.buckets, request.group, request.length);
                let measure = &it.weighted.measures[cell][path];
                Basis::Credit {
                    weight: measure.weight.into(),
                    credit: measure.credit.into(),
                    smoothed_ns: measure.smoothed_ns.into(),
                }
            }
            // That of all paths follows.
            Policy::Soonest | Policy::RoundRobinLatency { .. } => Basis::Unknown,
            Policy::Pid => self.reader(request.source, path),
            Policy::Devid(named) => Basis::Named(usize::from(named.0) == path),
            Policy::Latency => Basis::Recent(it.latency.recent_ns(request, path)),
            Policy::ServiceTime => Basis::Bytes {
                bytes: it.service_time.bytes(path, view, request.length),
                throughput: view.throughput,
            },
            Policy::HistoricalServiceTime => {
                let count = self.candidates().count() as u64;
                it.historical.basis(request.now_ns, path, own, count)
            }
        }
    }

    fn reader(&self, source: u64, path: usize) -> Basis {
        let of = self.candidates().count() as u32;
        let number = self.candidates().position(|it| it == path);
        Basis::Reader {
            number: number.map(|number| number as u32),
            of,
            wanted: source.checked_rem(of.into()).unwrap_or(0) as u32,
        }
    }

    /// The paths that may be chosen.
    fn candidates(&self) -> impl Iterator<Item = usize> {
        let all = self.looks().iter().enumerate();
        let those = all.filter(|(_, look)| look.usable && !look.stands_by);
        those.map(|(path, _)| path)
    }

    /// Records the values of `soonest` for one path.
    pub(crate) fn expect(&mut self, path: usize, elsewhere: u32, basis: Basis) {
        let look = &mut self.looks[path];
        (look.elsewhere, look.basis) = (elsewhere, basis);
    }

    /// Records the chosen path; `by`: the reason, where the policy gives one itself.
    pub(crate) fn end(&mut self, chosen: Option<PathIndex>, by: Option<Why>) {
        self.chosen = chosen;
        self.why = match chosen {
            None => Why::NoneUsable,
            Some(path) => self.reason(usize::from(path.0), by),
        };
    }

    fn reason(&self, chosen: usize, by: Option<Why>) -> Why {
        let look = &self.looks[chosen];
        match look.basis {
            Basis::Named(true) => return Why::Named,
            Basis::Named(false) => return Why::Instead,
            _ if self.candidates().count() == 1 => return Why::Only,
            _ => {}
        }
        match (by, look.basis) {
            (Some(why), _) => why,
            _ if matches!(self.policy, Policy::Program(_)) => Why::Program,
            (
                _,
                Basis::TurnWithin {
                    recent_ns: None, ..
                },
            ) if look.in_flight == 0 => Why::Untried,
            (_, Basis::TurnWithin { .. }) => Why::Turn,
            (_, Basis::Turn { .. }) => Why::Turn,
            (_, Basis::Reader { .. }) => Why::Reader,
            (_, Basis::Credit { weight: 0, .. } | Basis::Recent(None)) => Why::Untried,
            (_, Basis::Credit { .. }) => Why::Credit,
            (
                _,
                Basis::Served {
                    service_ns,
                    estimate_ns: None,
                },
            ) => match service_ns {
                Some(_) => Why::Explored,
                None => Why::Untried,
            },
            _ => self.least(chosen),
        }
    }

    /// Whether others had as little as the chosen path.
    fn least(&self, chosen: usize) -> Why {
        let look = &self.looks[chosen];
        let mut others = self.candidates().filter(|&path| path != chosen);
        let ties = |path: usize| self.looks[path].is_as_good_as(look) == Some(true);
        match others.any(ties) {
            true => Why::Tie,
            false => Why::Least,
        }
    }
}
