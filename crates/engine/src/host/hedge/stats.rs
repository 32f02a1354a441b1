//! Counters of second copies: what they cost and what they bring.

/// Counters of second copies of reads, in one volume on one core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HedgeStats {
    /// Reads that were late enough for a question.
    pub looked: u64,
    /// Copies sent.
    pub sent: u64,
    /// Done before the first.
    pub won: u64,
    /// The first was done before.
    pub lost: u64,
    /// Failed, and the first went on, or had failed before.
    pub failed: u64,
    /// Done after the first had failed.
    pub rescued: u64,
    /// Reads whose copy was not sent, or not at once, for want of memory or slots.
    pub no_room: u64,
    /// Sum over the won ones: from the copy's end to the first one's. The time that the first one
    /// would have taken at least; those that have not ended are not in it. ns.
    pub gained_ns: u64,
}

impl HedgeStats {
    /// With what another core counted.
    #[must_use]
    pub fn with(&self, more: &Self) -> Self {
        self.each(more, |it, more| it + more)
    }

    /// Since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    fn each(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            looked: of(self.looked, other.looked),
            sent: of(self.sent, other.sent),
            won: of(self.won, other.won),
            lost: of(self.lost, other.lost),
            failed: of(self.failed, other.failed),
            rescued: of(self.rescued, other.rescued),
            no_room: of(self.no_room, other.no_room),
            gained_ns: of(self.gained_ns, other.gained_ns),
        }
    }
}
