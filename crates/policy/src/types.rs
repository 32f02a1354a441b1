//! Types shared by callers and policies.
use crate::hedging::Hedging;
use crate::limits::CELLS;
use crate::program::ProgramId;

/// Position of a path in the volume's path table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathIndex(pub u8);

/// I/O group (row A10): one for selection and sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Moves data to the host.
    Read,
    /// Changes data: write, write zeroes, deallocate.
    Write,
    /// Flush and everything else.
    Other,
}

impl Group {
    /// All groups, in the order in which statistics are shown.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Other];
}

/// ANA state of a path's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ana {
    /// Preferred.
    Optimized,
    /// Usable, not preferred.
    NonOptimized,
    /// Not usable now.
    Inaccessible,
    /// Not usable any more.
    PersistentLoss,
    /// Between states.
    Change,
}

/// State of one path at the moment of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathView {
    /// Connected, healthy, not draining.
    pub enabled: bool,
    /// ANA state; `Optimized` where the controller reports none.
    pub ana: Ana,
    /// NUMA distance from this core to the path's device; smaller is nearer.
    pub distance: u32,
    /// I/Os other cores have in flight on this path, as last published.
    pub in_flight_elsewhere: u32,
    /// Relative throughput 0…100, for `service-time`; 0: only where all others are 0 too.
    pub throughput: u8,
}

/// One I/O that needs a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The reader's identity (row B1).
    pub source: u64,
    /// I/O group.
    pub group: Group,
    /// Bytes.
    pub length: u32,
    /// First byte on the volume.
    pub address: u64,
    /// Time of this loop turn.
    pub now_ns: u64,
}

/// End of an I/O, as far as a policy needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Done; its latency is a sample.
    Good,
    /// Failed, or never sent; its latency is no sample (T43).
    Failed,
    /// Taken back because its result was no longer needed: it is no sample, and no penalty for the
    /// path.
    Dropped,
}

/// The end of one I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The path it was placed on.
    pub path: PathIndex,
    /// The group it was selected with.
    pub group: Group,
    /// Completion − start.
    pub latency_ns: u64,
    /// How it ended.
    pub ended: Ended,
    /// Time of this loop turn.
    pub now_ns: u64,
    /// The value of [`Selector::ticket`](crate::Selector::ticket) when it was placed.
    pub ticket: Ticket,
    /// It may have ended this much earlier: the core did not poll in that time.
    pub gap_ns: u64,
}

/// State at the time an I/O was placed, which its policy needs again at its end. The default is
/// empty, and teaches nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// This core's reads and writes in flight, this one included: by number, then by bytes.
    pub(crate) load: [u32; 4],
    /// Its length, in the policy's units.
    pub(crate) units: u32,
    /// Where it begins, in the same.
    pub(crate) first: u32,
    /// I/Os of other cores in flight.
    pub(crate) elsewhere: u32,
    /// Nothing else was in flight.
    pub(crate) alone: bool,
    /// Its size class, as the policy counts them.
    pub(crate) class: u8,
    pub(crate) direction: u8,
    /// Period of the policy in which it was placed; 0: none.
    pub(crate) epoch: u8,
    /// Its latency is a sample.
    pub(crate) learns: bool,
    /// See [`Ticket::as_first`].
    pub(crate) first_io: bool,
}

impl Ticket {
    /// Marks it as the first I/O on a path that was out of use. Policies ignore the mark.
    pub fn as_first(self) -> Self {
        Self {
            first_io: true,
            ..self
        }
    }

    /// Whether [`Self::as_first`] marked it.
    pub fn is_first(&self) -> bool {
        self.first_io
    }
}

/// Whether a read that is late gets a second copy: see
/// [`Selector::hedge`](crate::Selector::hedge).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a copy that was booked has to be sent, and ends like any I/O"]
pub enum Hedge {
    /// Yes, on this path; it is booked there.
    Send(PathIndex),
    /// Not yet: ask again after so many ns.
    Again(u64),
    /// Never.
    No,
}

/// Forecast of one I/O on one path: the parts of the cost that `soonest` compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Time on the empty path.
    pub base_ns: u64,
    /// Mean addition for rare late I/Os.
    pub tail_ns: u64,
    /// Time behind the I/Os in flight.
    pub wait_ns: u64,
    /// Cost to the other I/Os.
    pub price_ns: u64,
    /// No I/O has completed for longer than is usual.
    pub silent: bool,
    /// Cost that is compared.
    pub cost_ns: u64,
}

impl Forecast {
    /// The predicted time.
    pub fn time_ns(&self) -> u64 {
        self.base_ns + self.tail_ns + self.wait_ns
    }

    /// Penalty because it is silent (T37), or has failed an I/O (T43).
    pub fn penalty_ns(&self) -> u64 {
        self.cost_ns.saturating_sub(self.time_ns() + self.price_ns)
    }

    /// Whether it has failed an I/O, and is avoided for a while.
    pub fn has_failed(&self) -> bool {
        self.cost_ns >= SHUNNED_NS
    }
}

/// More than any cost of a path that has not failed.
pub(crate) const SHUNNED_NS: u64 = 1 << 60;

/// A path-choosing policy, by name and value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// `numa`
    Numa,
    /// `round-robin[:bytes]`
    RoundRobin {
        /// Bytes handed to one path, one I/O after the other, before the next path's turn; 0 =
        /// every I/O moves on.
        bytes: u64,
    },
    /// `round-robin-latency[:bytes]`
    RoundRobinLatency {
        /// As of `round-robin`.
        bytes: u64,
    },
    /// `queue-depth`
    QueueDepth,
    /// `weighted-latency[:mode]` (aliases `adaptive`, `weighted-lat`)
    WeightedLatency(Aggregate),
    /// `soonest`
    Soonest,
    /// `pid`
    Pid,
    /// `latency`
    Latency,
    /// `devid:<id>`
    Devid(
        /// The path; the word counts from 1.
        PathIndex,
    ),
    /// `service-time`
    ServiceTime,
    /// `historical-service-time`
    HistoricalServiceTime,
    /// `program:<name>@<hash>`; it takes part in no list of policies, since it has to be loaded.
    Program(ProgramId),
}

/// Averaging of weighted-latency (rows A12, A13). By default each core has its own, by size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aggregate {
    /// Weights from the mean of the smoothed latencies of all cores of a NUMA node, else from this
    /// core's own.
    pub per_numa: bool,
    /// Samples, weights and credits by size of I/O.
    pub buckets: bool,
}

impl Aggregate {
    /// All four modes.
    pub const ALL: [Self; 4] = [
        Self::new(false, false),
        Self::new(false, true),
        Self::new(true, false),
        Self::new(true, true),
    ];

    /// Each core has its own, over all sizes.
    pub const PER_CPU: Self = Self::new(false, false);

    const fn new(per_numa: bool, buckets: bool) -> Self {
        Self { per_numa, buckets }
    }
}

impl Default for Aggregate {
    fn default() -> Self {
        Self::new(false, true)
    }
}

impl Policy {
    /// `weighted-latency` as it is by default: `per-cpu+buckets`.
    pub const WEIGHTED_LATENCY: Self = Self::WeightedLatency(Aggregate::new(false, true));

    /// Whether the cores of a node share their measurements: see [`Means`].
    pub const fn is_per_numa(&self) -> bool {
        matches!(
            self,
            Self::WeightedLatency(Aggregate { per_numa: true, .. })
        )
    }
}

/// One core's measurements of one path, for the other cores of its node: smoothed latencies in ns
/// by size bucket and group (bucket · 3 + group; without buckets the first three), 0 where none.
pub type Means = [u32; CELLS];

/// The means of a path over the cores of a node, as [`Means`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeMeans {
    sum_ns: [u64; CELLS],
    cores: [u32; CELLS],
}

impl NodeMeans {
    /// Adds the measurements of one core.
    pub fn add(&mut self, means: &Means) {
        for ((sum_ns, cores), &mean_ns) in self.sum_ns.iter_mut().zip(&mut self.cores).zip(means) {
            *sum_ns += u64::from(mean_ns);
            *cores += u32::from(mean_ns > 0);
        }
    }

    /// The mean over the cores that have one; 0: none has.
    pub(crate) fn mean_ns(&self, cell: usize) -> u32 {
        let mean_ns = self.sum_ns[cell].checked_div(self.cores[cell].into());
        mean_ns.unwrap_or(0) as u32
    }
}

/// Knobs of the policies: of weighted-latency (row A8), and whether those that predict hedge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// 0…8; 3 by default.
    pub ewma_shift: u8,
    /// Window between weight calculations; 15 s by default, 0 = at every completion.
    pub weight_timeout_ns: u64,
    /// Whether late reads get a second copy; automatic by default.
    pub hedging: Hedging,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            ewma_shift: 3,
            weight_timeout_ns: 15_000_000_000,
            hedging: Hedging::Auto,
        }
    }
}

/// Actions that [`Selector::complete`](crate::Selector::complete) asks of its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "weights are calculated only by `Selector::weigh`, once per loop turn"]
pub struct Noted {
    /// A window has closed: [`Selector::weigh`](crate::Selector::weigh) has work at the end of this
    /// turn.
    pub weigh: bool,
    /// Log that a sample over 1 s was ignored: the path stalls. Already rate limited; the count of
    /// all of them is [`PathStats::ignored`].
    pub warn_ignored: bool,
}

impl PathStats {
    /// Adds all values of another cell.
    pub(crate) fn add(&mut self, of: &Self) {
        self.weight += of.weight;
        self.credit += of.credit;
        self.score += of.score;
        self.smoothed_ns += of.smoothed_ns;
        self.selections += of.selections;
        self.samples += of.samples;
        self.ignored += of.ignored;
    }
}

/// Statistics of one path and group on this core (row A9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// 1…64; 0 = not measured.
    pub weight: u32,
    /// Credit left in this cycle.
    pub credit: u32,
    /// 10^9 / smoothed_ns, at the last calculation of weights.
    pub score: u64,
    /// EWMA of window means; 0 = not measured.
    pub smoothed_ns: u64,
    /// Times chosen.
    pub selections: u64,
    /// Latencies taken.
    pub samples: u64,
    /// Latencies ignored (over 1 s).
    pub ignored: u64,
}
