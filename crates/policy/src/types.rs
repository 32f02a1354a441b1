//! The words callers and policies share.

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

/// What is true of one path at the moment of a selection.
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

/// How an I/O ended, as far as a policy cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Done; its latency is a sample.
    Good,
    /// Failed, or never sent; its latency says nothing (T43).
    Failed,
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
    /// What [`Selector::ticket`](crate::Selector::ticket) gave when it was placed.
    pub ticket: Ticket,
    /// It may have ended so much earlier than it was noticed: this core was elsewhere meanwhile.
    pub gap_ns: u64,
}

/// What a policy wants to have back with the end of an I/O: what was true when it was placed. The
/// default says nothing, and teaches nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ticket {
    /// This core's reads and writes in flight, this one included: by number, then by bytes.
    pub(crate) load: [u32; 4],
    /// Its length, in units.
    pub(crate) units: u32,
    /// I/Os of other cores in flight.
    pub(crate) elsewhere: u16,
    /// Nothing else was in flight.
    pub(crate) alone: bool,
    pub(crate) class: u8,
    pub(crate) direction: u8,
    /// In which time of the policy it was placed; 0: none.
    pub(crate) epoch: u8,
    /// Its latency means something.
    pub(crate) learns: bool,
}

/// Why a path was chosen, or was not: what an I/O would take there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// On the empty path.
    pub base_ns: u64,
    /// What rare late I/Os add in the mean.
    pub tail_ns: u64,
    /// Behind what is in flight.
    pub wait_ns: u64,
    /// What it costs the others that it is there.
    pub price_ns: u64,
    /// Nothing has come back for longer than is usual.
    pub silent: bool,
    /// What is compared.
    pub cost_ns: u64,
}

impl Forecast {
    /// The time that is predicted.
    pub fn time_ns(&self) -> u64 {
        self.base_ns + self.tail_ns + self.wait_ns
    }
}

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
    /// `queue-depth`
    QueueDepth,
    /// `weighted-latency` (aliases `adaptive`, `weighted-lat`)
    WeightedLatency,
    /// `soonest`
    Soonest,
}

/// Knobs of weighted-latency (row A8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// 0…8; 3 by default.
    pub ewma_shift: u8,
    /// Window between weight calculations; 15 s by default, 0 = at every completion.
    pub weight_timeout_ns: u64,
}

impl Default for Knobs {
    fn default() -> Self {
        Self {
            ewma_shift: 3,
            weight_timeout_ns: 15_000_000_000,
        }
    }
}

/// What [`Selector::complete`](crate::Selector::complete) asks of its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "weights are calculated only by `Selector::weigh`, once per loop turn"]
pub struct Noted {
    /// A window has closed: [`Selector::weigh`](crate::Selector::weigh) has work at the end of this
    /// turn.
    pub weigh: bool,
    /// Say (log) that a sample over 1 s was ignored: the path stalls. Already rate limited; the
    /// count of all of them is [`PathStats::ignored`].
    pub warn_ignored: bool,
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
