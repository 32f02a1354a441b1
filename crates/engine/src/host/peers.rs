//! Exchange between the cores of a program about the paths that all of them use: I/Os in flight
//! (T47), and, for volumes that weigh their paths per NUMA node, measured latencies (A13).
use super::Multipath;
use policy::{Means, NodeMeans};

/// The other cores of a program, as one core sees them. Paths are named by their places, which are
/// the same on every core and below [`Multipath::with_room`]'s.
pub trait Peers {
    /// Whether there are any: else counts are neither read nor shown.
    fn are_there(&self) -> bool;
    /// Returns how many I/Os the other cores have in flight on a path, as they showed it last.
    fn in_flight(&self, path: usize) -> u32;
    /// Shows the other cores how many this one has.
    fn show_in_flight(&mut self, path: usize, count: u32);
    /// Returns whether a core of this one's node, itself included, has shown what it measured since
    /// this was asked last.
    fn have_measured(&mut self) -> bool {
        false
    }
    /// Returns what the cores of the node, this one included, measured of a path.
    fn node_means(&self, _path: usize) -> NodeMeans {
        NodeMeans::default()
    }
    /// Shows what this core measured of its paths. It is called where that is new.
    fn show_means(&mut self, _means: impl Iterator<Item = (usize, Means)>) {}
}

impl Multipath {
    /// Takes over what the other cores have in flight, and weighs paths by what the node measured.
    pub(crate) fn learn_from(&mut self, peers: &mut impl Peers) {
        if peers.are_there() {
            for it in &mut self.volumes {
                for path in it.paths.iter() {
                    it.head
                        .set_elsewhere(path.index, peers.in_flight(path.place));
                }
            }
        }
        if !peers.have_measured() {
            return;
        }
        for volume in &mut self.volumes {
            let paths = &volume.paths;
            volume.head.weigh_node(|at| match paths.get(at) {
                Some(path) => peers.node_means(path.place),
                None => NodeMeans::default(),
            });
        }
    }

    /// Shows the other cores what this one has in flight, and what it measured if that is new.
    pub(crate) fn show_to(&mut self, peers: &mut impl Peers) {
        if peers.are_there() {
            for (it, at) in self.paths_there() {
                peers.show_in_flight(it.paths[at].place, it.head.in_flight(at));
            }
        }
        let volumes = self.volumes.iter_mut();
        if volumes.fold(false, |is_new, it| it.head.take_news() | is_new) {
            let measured = self.paths_there().filter_map(|(it, at)| {
                let is_per_numa = it.head.policy().is_per_numa();
                is_per_numa.then(|| (it.paths[at].place, it.head.means(at)))
            });
            peers.show_means(measured);
        }
    }
}
