//! Kinds of rounds, and their results.
use super::super::table::Table;
use super::writers::Count;

/// Kind of a round.
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
    /// Another leg is added,
    Adding,
    /// one is removed,
    Removing,
    /// or replaced, just before.
    Replacing,
    /// It becomes larger just before.
    Growing,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Whole,
        Self::Fresh,
        Self::Starting,
        Self::Leaving,
        Self::Short,
        Self::Returning,
        Self::Adding,
        Self::Removing,
        Self::Replacing,
        Self::Growing,
    ];

    /// Whether other legs may be its legs afterwards.
    pub fn changes_legs(self) -> bool {
        matches!(self, Self::Adding | Self::Removing | Self::Replacing)
    }

    /// In the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Whole => "writes",
            Self::Fresh => "first writes",
            Self::Starting => "start",
            Self::Leaving => "a leg leaves",
            Self::Short => "one leg away",
            Self::Returning => "rebuild",
            Self::Adding => "a leg is added",
            Self::Removing => "one is removed",
            Self::Replacing => "one is replaced",
            Self::Growing => "it grows",
        }
    }
}

/// Results of rounds of one kind.
#[derive(Clone, Copy, Default)]
pub struct Sum {
    /// How many.
    pub rounds: u32,
    /// Results of requests.
    pub count: Count,
    /// Legs that were compared by themselves.
    pub legs: usize,
    /// Kills while a leg was being rebuilt.
    pub in_rebuild: u32,
    /// Starts without one leg that served everything,
    pub served: u32,
    /// and that were refused.
    pub refused: u32,
    /// Verbs that were answered before the kill,
    pub answered: u32,
    /// and changes of legs or size that were found afterwards, answered or not.
    pub changed: u32,
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
        "verbs_answered",
        "changes_found",
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
            sum.answered.into(),
            sum.changed.into(),
        ]);
    }
    table
}
