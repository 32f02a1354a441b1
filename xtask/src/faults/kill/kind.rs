//! What rounds are about, and what came of them.
use super::super::table::Table;
use super::writers::Count;

/// What a round is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// All legs are there.
    Whole,
    /// The same, soon after a stop in order: intents are clear, and are being set.
    Fresh,
    /// Killed before it serves, or hardly later.
    Starting,
    /// While it is being written down that a leg has left, or just before or after.
    Leaving,
    /// A leg is away.
    Short,
    /// It is back, and lacks what was written meanwhile.
    Returning,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Whole,
        Self::Fresh,
        Self::Starting,
        Self::Leaving,
        Self::Short,
        Self::Returning,
    ];

    /// In the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "writes",
            Self::Fresh => "first writes",
            Self::Starting => "start",
            Self::Leaving => "a leg leaves",
            Self::Short => "one leg away",
            Self::Returning => "rebuild",
        }
    }
}

/// What came of rounds of one kind.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    /// How many.
    pub rounds: u32,
    /// What became of requests.
    pub count: Count,
    /// Legs that were compared by themselves.
    pub legs: usize,
    /// Kills while a leg was being rebuilt.
    pub in_rebuild: u32,
    /// Starts without one leg that served everything,
    pub served: u32,
    /// and that were refused.
    pub refused: u32,
}

/// Of all kinds, in their order.
pub fn table(sums: &[Sum]) -> Table {
    let columns = [
        "killed_in",
        "rounds",
        "writes",
        "flushes",
        "reads",
        "legs_compared",
        "rebuild_under_way",
        "one_leg_away_served",
        "and_refused",
    ];
    let mut table = Table::new(&columns);
    for (kind, sum) in Kind::ALL.iter().zip(sums) {
        table.row(vec![
            kind.name().into(),
            sum.rounds.into(),
            sum.count.writes.into(),
            sum.count.flushes.into(),
            sum.count.reads.into(),
            sum.legs.into(),
            sum.in_rebuild.into(),
            sum.served.into(),
            sum.refused.into(),
        ]);
    }
    table
}
