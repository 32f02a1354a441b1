//! How long everything is measured.
use super::cells::Op;
use policy::Policy;
use std::time::Duration;

pub const MS: u64 = 1_000_000;
/// The window of weighted-latency. Its default of 15 s would make one cell a matter of minutes.
pub const WINDOW_NS: u64 = 50 * MS;
/// Longest time of one cell in one round: much shorter than other work on a machine lasts.
const ROUND_NS: u64 = 250 * MS;
/// A cell that is measured briefly has this many rounds, if each is as long as a window.
const ROUNDS: u64 = 3;
/// Warming up in the first round: some round trips of the slow path; for weighted-latency until its
/// mean over many windows (7/8 old, 1/8 new) has settled to 3 %.
const SETTLE_NS: u64 = 500 * MS;
const SETTLE_WEIGHTS_NS: u64 = 28 * WINDOW_NS;
/// Warming up in later rounds, in which the policy goes on with what it knows: until the I/Os in
/// flight are where it puts them, two round trips of the slow path.
const AGAIN_NS: u64 = 75 * MS;

/// Warming up and measuring.
pub type Span = (u64, u64);

/// Times of one demo.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// Rounds in which every cell is measured once.
    pub rounds: u64,
    /// Of a cell in one round.
    pub round_ns: u64,
    /// No round begins that would end later, at the speed of the one before.
    pub limit: Option<Duration>,
    /// A path that is off its model is measured so often: a disturbance may have passed.
    pub attempts: usize,
}

impl Times {
    /// Those of `--quick`.
    pub const QUICK: Self = Self {
        rounds: 2,
        round_ns: 100 * MS,
        limit: Some(Duration::from_secs(18)),
        attempts: 1,
    };

    /// `seconds_ns` for each cell, in rounds.
    pub fn of(seconds_ns: u64) -> Self {
        let rounds = (seconds_ns / ROUND_NS).max(ROUNDS.min(seconds_ns / WINDOW_NS));
        let rounds = rounds.max(1);
        Self {
            rounds,
            round_ns: seconds_ns / rounds,
            limit: None,
            attempts: 2,
        }
    }

    /// Measured of a cell in all rounds.
    pub fn cell_ns(&self) -> u64 {
        self.rounds * self.round_ns
    }

    /// Of a cell in a round.
    pub fn cell(&self, policy: Policy, round: u64) -> Span {
        let warm_up_ns = match (round, policy) {
            (0, Policy::WeightedLatency(_)) => SETTLE_WEIGHTS_NS.min(2 * self.cell_ns()),
            (0, _) => SETTLE_NS.min(self.cell_ns()),
            _ => AGAIN_NS.min(2 * self.round_ns),
        };
        (warm_up_ns, self.round_ns)
    }

    /// Of one I/O at a time over the fast path, measured four times.
    pub fn alone_fast(&self) -> Span {
        self.no_longer((50 * MS, 350 * MS))
    }

    /// The same over the slow path, which does some 30 of them per second.
    pub fn alone_slow(&self) -> Span {
        self.no_longer((100 * MS, 700 * MS))
    }

    /// Of all I/Os at once.
    pub fn alone_all(&self) -> Span {
        self.no_longer((300 * MS, 700 * MS))
    }

    /// Shorter where the cells are short.
    fn no_longer(&self, (warm_up_ns, measure_ns): Span) -> Span {
        let cell_ns = self.cell_ns();
        (warm_up_ns.min(cell_ns / 2), measure_ns.min(cell_ns))
    }

    /// All cells in one round.
    pub fn round(&self, policies: &[Policy], round: u64) -> Duration {
        let ops = Op::ALL.len() as u64;
        let cells = policies.iter().map(|&policy| {
            let (warm_up_ns, measure_ns) = self.cell(policy, round);
            ops * (warm_up_ns + measure_ns)
        });
        Duration::from_nanos(cells.sum())
    }

    /// How long it all takes if nothing has to be repeated.
    pub fn total(&self, policies: &[Policy]) -> Duration {
        let sum = |(warm_up, measure): Span| warm_up + measure;
        let alone =
            2 * (4 * sum(self.alone_fast()) + sum(self.alone_slow()) + 2 * sum(self.alone_all()));
        let rounds = (0..self.rounds).map(|round| self.round(policies, round));
        Duration::from_nanos(alone) + rounds.sum::<Duration>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policies() -> Vec<Policy> {
        let names = "numa,round-robin,queue-depth,weighted-latency,soonest";
        let names = names.split(',');
        names.map(|name| Policy::parse(name).unwrap()).collect()
    }

    /// Beside these times there are the ends of 90 to 105 windows, some 35 ms each.
    #[test]
    fn the_whole_takes_a_minute_and_quick_a_third() {
        let usual = Times::of(1_500 * MS);
        assert_eq!((usual.rounds, usual.round_ns), (6, 250 * MS));
        let repeated = usual.total(&policies()) + usual.total(&[]);
        assert!(repeated < Duration::from_secs(65), "{repeated:?}");
        let quick = Times::QUICK.total(&policies());
        assert!(quick < Duration::from_secs(13), "{quick:?}");
    }

    #[test]
    fn short_cells_have_rounds_too() {
        let rounds = |ms: u64| Times::of(ms * MS).rounds;
        assert_eq!(
            [50, 99, 100, 300, 750, 1_000].map(rounds),
            [1, 1, 2, 3, 3, 4]
        );
        assert_eq!(Times::of(300 * MS).cell_ns(), 300 * MS);
    }
}
