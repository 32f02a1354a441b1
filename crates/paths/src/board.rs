//! Board between the cores of one program: the I/Os they have in flight (trap T47), and,
//! for volumes that weigh their paths per NUMA node, what they measured (row A13).
//!
//! # Contract
//! Each core writes its own row and only reads the others'. It writes at the end of a loop turn,
//! when what has ended is replaced already: while a core sleeps, its row says what it waits for. A
//! count that is read may be one loop turn old; a policy that looks at it chooses by a slightly
//! older truth, and nothing else depends on it. The same holds of what was measured: a core looks
//! whether any of its node has news, and only then reads and calculates.
use engine::host::Peers;
use policy::{Means, NodeMeans};
use std::sync::atomic::{AtomicU32, Ordering};

/// I/Os in flight, and latencies, by core and path.
pub struct Board {
    rows: Vec<Row>,
}

/// One core's counts, by the engine's number of the path, on cache lines of their own.
#[repr(align(128))]
struct Row {
    counts: Box<[Line]>,
    /// By path; filled in only while a volume weighs per node.
    means: Box<[MeansLine]>,
    node: u32,
    news: News,
}

/// As many counts as one pair of cache lines holds.
#[repr(align(128))]
#[derive(Default)]
struct Line([AtomicU32; 32]);

/// Means that one core measured of one path.
#[repr(align(128))]
#[derive(Default)]
struct MeansLine([AtomicU32; policy::limits::CELLS]);

/// Written by the row's core alone.
#[repr(align(128))]
#[derive(Default)]
struct News {
    /// How often it published what it measured.
    told: AtomicU32,
    /// The sum of `told` over its node when it last calculated.
    heard: AtomicU32,
}

/// A board, from the place of one core.
pub struct PeersOf<'a> {
    board: &'a Board,
    core: usize,
}

impl Peers for PeersOf<'_> {
    fn are_there(&self) -> bool {
        self.board.rows.len() > 1
    }
    fn in_flight(&self, path: usize) -> u32 {
        self.board.elsewhere(self.core, path)
    }
    fn show_in_flight(&mut self, path: usize, count: u32) {
        self.board.set(self.core, path, count);
    }
    fn have_measured(&mut self) -> bool {
        self.board.has_news(self.core)
    }
    fn node_means(&self, path: usize) -> NodeMeans {
        self.board.node_means(self.core, path)
    }
    fn show_means(&mut self, means: impl Iterator<Item = (usize, Means)>) {
        for (path, means) in means {
            self.board.publish(self.core, path, &means);
        }
        // A core that sees the new number sees what was published before it.
        let told = &self.board.rows[self.core].news.told;
        told.fetch_add(1, Ordering::Release);
    }
}

impl Board {
    /// A board for cores on these NUMA nodes and so many paths in all.
    pub fn new(nodes: &[u32], paths: usize) -> Self {
        let row = |&node: &u32| Row {
            counts: (0..paths.div_ceil(32)).map(|_| Line::default()).collect(),
            means: (0..paths).map(|_| MeansLine::default()).collect(),
            node,
            news: News::default(),
        };
        Self {
            rows: nodes.iter().map(row).collect(),
        }
    }

    /// The other cores, as this one sees them.
    pub fn peers_of(&self, core: u16) -> PeersOf<'_> {
        PeersOf {
            board: self,
            core: core.into(),
        }
    }

    fn set(&self, core: usize, at: usize, count: u32) {
        self.rows[core].counts[at / 32].0[at % 32].store(count, Ordering::Relaxed);
    }

    fn publish(&self, core: usize, place: usize, means: &Means) {
        for (cell, &mean_ns) in self.rows[core].means[place].0.iter().zip(means) {
            cell.store(mean_ns, Ordering::Relaxed);
        }
    }

    /// Whether a core of this one's node has published since this was last asked.
    fn has_news(&self, core: usize) -> bool {
        let told = self.node(core).fold(0, |sum: u32, row| {
            sum.wrapping_add(row.news.told.load(Ordering::Acquire))
        });
        let heard = &self.rows[core].news.heard;
        let is_new = heard.load(Ordering::Relaxed) != told;
        if is_new {
            heard.store(told, Ordering::Relaxed);
        }
        is_new
    }

    /// Means that the cores of this one's node measured of a path.
    fn node_means(&self, core: usize, place: usize) -> NodeMeans {
        let mut node = NodeMeans::default();
        for row in self.node(core) {
            let cells = row.means[place].0.each_ref();
            node.add(&cells.map(|cell| cell.load(Ordering::Relaxed)));
        }
        node
    }

    /// The rows of all cores on one core's node, its own among them.
    fn node(&self, core: usize) -> impl Iterator<Item = &Row> {
        let node = self.rows[core].node;
        self.rows.iter().filter(move |row| row.node == node)
    }

    /// Sum over all cores but this one.
    pub fn elsewhere(&self, core: usize, at: usize) -> u32 {
        let others = (0..).zip(&self.rows).filter(|(number, _)| *number != core);
        others.fold(0, |sum: u32, (_, row)| {
            sum.saturating_add(row.counts[at / 32].0[at % 32].load(Ordering::Relaxed))
        })
    }
}

/// The NUMA node of the CPU that a core is pinned to. Cores that are not pinned, or of whose CPU
/// the system does not say it, are on node 0.
pub fn node_of(cpu: Option<usize>) -> u32 {
    let entries = cpu.and_then(|cpu| {
        let folder = format!("/sys/devices/system/cpu/cpu{cpu}");
        std::fs::read_dir(folder).ok()
    });
    let names = entries.into_iter().flatten().flatten();
    let node = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()?.strip_prefix("node")?.parse().ok()
    };
    names.filter_map(node).next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t47_each_core_sees_what_the_others_have() {
        let board = Board::new(&[0; 3], 66);
        for (core, count) in [(0, 5), (1, 7), (2, 1), (0, 2)] {
            board.set(core, 65, count);
        }
        assert_eq!([0, 1, 2].map(|core| board.elsewhere(core, 65)), [8, 3, 9]);
        assert_eq!(board.elsewhere(1, 64), 0, "another path");
    }

    #[test]
    fn t47_no_two_cores_write_one_cache_line() {
        let board = Board::new(&[0; 2], 1);
        let addresses = |core: usize| {
            let row = &board.rows[core];
            let counts = (&raw const row.counts[0]) as usize;
            let means = (&raw const row.means[0]) as usize;
            [counts, means, (&raw const row.news) as usize]
        };
        for mine in addresses(0) {
            assert_eq!(mine % 128, 0);
            assert!(addresses(1).iter().all(|its| mine.abs_diff(*its) >= 128));
        }
        // Beside the news in its row stands only what nobody writes.
        assert!(size_of::<News>() == 128 && size_of::<MeansLine>() == 128);
    }

    #[test]
    fn a13_a_node_hears_of_its_own_cores_only() {
        let board = Board::new(&[0, 1, 0], 2);
        let tell = |core: usize, mean_ns| {
            let mut means = Means::default();
            means[4] = mean_ns;
            board.publish(core, 1, &means);
            board.rows[core].news.told.fetch_add(1, Ordering::Release);
        };
        let mut node = NodeMeans::default();
        for (core, mean_ns) in [(0, 3000), (2, 5000)] {
            tell(core, mean_ns);
            let mut means = Means::default();
            means[4] = mean_ns;
            node.add(&means);
        }
        assert_eq!(
            [0, 1, 2].map(|core| board.has_news(core)),
            [true, false, true]
        );
        assert_eq!([0, 1, 2].map(|core| board.has_news(core)), [false; 3]);
        assert_eq!(board.node_means(0, 1), node);
        assert_eq!(board.node_means(2, 1), node);
        assert_eq!(board.node_means(2, 0), NodeMeans::default());
        assert_eq!(board.node_means(1, 1), NodeMeans::default());
        tell(1, 9);
        assert_eq!(
            [0, 1, 2].map(|core| board.has_news(core)),
            [false, true, false]
        );
    }

    #[test]
    fn a_core_that_is_not_pinned_is_on_node_0() {
        assert_eq!(node_of(None), 0);
        assert_eq!(node_of(Some(usize::MAX)), 0);
    }
}
