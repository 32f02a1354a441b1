//! Which faults, drawn from a seed.
//!
//! # Contract
//! A function of the seed, the number of ways and the kinds that are possible. At least one way is
//! left alone, but for faults that are named after hitting all.

/// Fault of one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `kill -9`, and a new process.
    Kill,
    /// SIGSTOP, then SIGCONT.
    Freeze,
    /// The kernel resets its connections.
    Reset,
    /// The kernel resets the connection of its I/O queue; the admin one lives.
    ResetIo,
    /// The target resets its connections.
    Drop,
    /// The cable is pulled.
    Cut,
    /// An ANA state, then optimized.
    Ana(&'static str),
    /// The network has 1 Mbit/s.
    Narrow,
    /// A part of its commands fails as the path, or the target's port, would let them.
    Faulty(&'static str, &'static str),
    /// The target resets its connections and takes no new ones.
    Refuse,
}

impl Kind {
    /// Of the table.
    pub fn name(self) -> String {
        match self {
            Self::Kill => "kill -9".into(),
            Self::Freeze => "SIGSTOP, SIGCONT".into(),
            Self::Reset => "reset by the kernel".into(),
            Self::ResetIo => "I/O connection reset".into(),
            Self::Drop => "reset by the target".into(),
            Self::Cut => "network cut".into(),
            Self::Ana(state) => format!("ANA {state}"),
            Self::Narrow => "1 Mbit/s".into(),
            Self::Faulty(name, _) => name.into(),
            Self::Refuse => "reset, then refused".into(),
        }
    }

    /// Whether it ends connections in a moment.
    pub fn is_sudden(self) -> bool {
        matches!(
            self,
            Self::Kill | Self::Reset | Self::ResetIo | Self::Drop | Self::Refuse
        )
    }

    /// Whether it needs a network of our own.
    pub fn needs_network(self) -> bool {
        matches!(self, Self::Reset | Self::ResetIo | Self::Cut | Self::Narrow)
    }
}

/// All of them.
pub const KINDS: [Kind; 18] = [
    Kind::Kill,
    Kind::Freeze,
    Kind::Reset,
    Kind::ResetIo,
    Kind::Drop,
    Kind::Cut,
    Kind::Ana("inaccessible"),
    Kind::Ana("non-optimized"),
    Kind::Ana("change"),
    Kind::Ana("persistent-loss"),
    Kind::Narrow,
    Kind::Faulty("5 % path errors", "error=0x300:0.05"),
    Kind::Faulty("20 % busy", "error=namespace-not-ready:crd=1:0.2"),
    Kind::Faulty("1 % resets", "drop_rate=0.01"),
    Kind::Faulty("target mute", "mute=1h"),
    Kind::Faulty("target stalls", "stall=1h"),
    Kind::Faulty("writes don't begin", "hold_writes=1h"),
    Kind::Refuse,
];

/// How many ways a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The others live.
    One,
    /// Different things happen to two ways at once.
    Two,
    /// No way is left: for at most [`ALL_MS_MAX`].
    All,
}

/// Longest time without any way.
pub const ALL_MS_MAX: u64 = 1500;

/// The next fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// To how many ways.
    pub reach: Reach,
    /// Way, and what happens to it.
    pub hits: Vec<(usize, Kind)>,
    /// For how long.
    pub for_ms: u64,
}

impl Fault {
    /// Of the table.
    pub fn name(&self) -> String {
        match self.reach {
            Reach::One => self.hits[0].1.name(),
            Reach::Two => "two ways at once".into(),
            Reach::All => format!("all ways: {}", self.hits[0].1.name()),
        }
    }
}

/// Draws faults.
pub struct Plan {
    random: Random,
    ways: usize,
    longest_ms: u64,
    kinds: Vec<Kind>,
    /// Kinds that have still to come before any comes again.
    left: Vec<Kind>,
}

impl Plan {
    /// Over so many ways, at least 3; no fault lasts longer than `longest_ms`.
    pub fn new(seed: u64, ways: usize, longest_ms: u64, has_network: bool) -> Self {
        let possible = |kind: &Kind| has_network || !kind.needs_network();
        Self {
            random: Random(seed),
            ways,
            longest_ms,
            kinds: KINDS.into_iter().filter(possible).collect(),
            left: Vec::new(),
        }
    }

    fn kind(&mut self) -> Kind {
        if self.left.is_empty() {
            self.left.clone_from(&self.kinds);
        }
        let at = self.random.below(self.left.len() as u64);
        self.left.swap_remove(at as usize)
    }

    /// The next fault.
    pub fn next(&mut self) -> Fault {
        let first = self.random.below(self.ways as u64) as usize;
        let short = self.longest_ms / 25;
        let for_ms = short + self.random.below(self.longest_ms - short);
        match self.random.below(20) {
            0 => {
                let whole = [
                    Kind::Kill,
                    Kind::Freeze,
                    Kind::Drop,
                    Kind::Ana("inaccessible"),
                ];
                let kind = whole[self.random.below(whole.len() as u64) as usize];
                Fault {
                    reach: Reach::All,
                    hits: (0..self.ways).map(|way| (way, kind)).collect(),
                    for_ms: for_ms.min(ALL_MS_MAX),
                }
            }
            1..=3 => {
                let hits = vec![(first, self.kind()), ((first + 1) % self.ways, self.kind())];
                let reach = Reach::Two;
                Fault {
                    reach,
                    hits,
                    for_ms,
                }
            }
            _ => Fault {
                reach: Reach::One,
                hits: vec![(first, self.kind())],
                for_ms,
            },
        }
    }
}

/// Numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Any number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// One below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_way_is_left_alone_or_the_fault_says_that_none_is() {
        for has_network in [false, true] {
            let mut plan = Plan::new(1, 3, 2500, has_network);
            for _ in 0..2000 {
                let fault = plan.next();
                let mut hit: Vec<usize> = fault.hits.iter().map(|(way, _)| *way).collect();
                hit.sort_unstable();
                hit.dedup();
                assert_eq!(hit.len(), fault.hits.len(), "no way is hit twice");
                match fault.reach {
                    Reach::All => assert!(hit.len() == 3 && fault.for_ms <= ALL_MS_MAX),
                    _ => assert!(hit.len() < 3),
                }
                let kinds = fault.hits.iter().map(|(_, kind)| kind);
                assert!(has_network || kinds.clone().all(|kind| !kind.needs_network()));
            }
        }
    }

    #[test]
    fn a_seed_gives_the_same_faults_and_every_kind_comes() {
        let draw = |seed| {
            let mut plan = Plan::new(seed, 3, 2500, true);
            (0..40).map(|_| plan.next()).collect::<Vec<_>>()
        };
        assert_eq!(draw(5), draw(5));
        assert_ne!(draw(5), draw(6));
        let hits: Vec<Kind> = draw(5)
            .iter()
            .flat_map(|it| it.hits.clone())
            .map(|it| it.1)
            .collect();
        assert!(KINDS.iter().all(|kind| hits.contains(kind)));
    }
}
