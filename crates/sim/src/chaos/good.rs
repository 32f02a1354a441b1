//! Which paths a core could use, and when; and when it lost them.
//!
//! # Contract
//! A path is good while it is live and nothing hinders it. It is looked at after every turn of its
//! core, so what lasts no longer than a turn is not seen. Second paths to an address are left out.
//! Of a mirror the same, of legs instead of addresses: good is one in sync that can be reached.
use super::prelude::*;

/// Of one core, all processes of its host one after the other.
#[derive(Debug, Default)]
pub struct Good {
    /// By address: since when it is good, and whether it is being connected again.
    now: Vec<(Option<u64>, bool)>,
    /// When this process began.
    began_ns: u64,
    /// Address, and from when to when it was good.
    was: Vec<(usize, u64, u64)>,
    /// Address, and when the path to it was lost.
    pub lost: Vec<(usize, u64)>,
    /// Of a mirror: which legs are in sync, and which has left when.
    in_sync: Vec<bool>,
    pub left: Vec<(usize, u64)>,
    /// Whether it runs, and when it has ceased to: nothing could be said on its last leg.
    runs: bool,
    ceased: Vec<u64>,
    /// Since when a leg in sync has had no lease, and from when to when one had none.
    lapsed: Option<u64>,
    were_lapsed: Vec<(u64, u64)>,
}

impl Good {
    fn note(&mut self, address: usize, good: bool, lost: bool, now_ns: u64) {
        if self.now.len() <= address {
            self.now.resize(address + 1, (None, false));
        }
        let it = &mut self.now[address];
        if lost && !it.1 {
            self.lost.push((address, now_ns));
        }
        it.1 = lost;
        if good {
            it.0.get_or_insert(now_ns);
        } else if let Some(from_ns) = it.0.take() {
            self.was.push((address, from_ns, now_ns));
        }
    }

    fn note_leg(&mut self, leg: usize, in_sync: bool, now_ns: u64) {
        if self.in_sync.len() <= leg {
            self.in_sync.resize(leg + 1, false);
        }
        let was = core::mem::replace(&mut self.in_sync[leg], in_sync);
        if was && !in_sync {
            self.left.push((leg, now_ns));
        }
    }

    fn note_running(&mut self, runs: bool, now_ns: u64) {
        if core::mem::replace(&mut self.runs, runs) && !runs {
            self.ceased.push(now_ns);
        }
    }

    fn note_lapsed(&mut self, lapsed: bool, now_ns: u64) {
        if lapsed {
            self.lapsed.get_or_insert(now_ns);
        } else if let Some(from_ns) = self.lapsed.take() {
            self.were_lapsed.push((from_ns, now_ns));
        }
    }

    /// Whether a leg of a mirror had no lease for some of this time.
    pub fn was_lapsed(&self, from_ns: u64, to_ns: u64) -> bool {
        let now = self.lapsed.map(|it| (it, u64::MAX));
        let mut all = self.were_lapsed.iter().copied().chain(now);
        all.any(|it| it.0 <= to_ns && from_ns <= it.1)
    }

    /// The process begins anew.
    fn begin(&mut self, now_ns: u64) {
        self.began_ns = now_ns;
        self.note_lapsed(false, now_ns);
        for address in 0..self.now.len() {
            self.note(address, false, false, now_ns);
        }
    }

    /// Address, and from when to when it was good, or is now.
    fn intervals(&self) -> impl Iterator<Item = (usize, u64, u64)> {
        let now = (0..).zip(&self.now);
        let now = now.filter_map(|(address, it)| Some((address, it.0?, u64::MAX)));
        self.was.iter().copied().chain(now)
    }

    /// Addresses to which there was a good path all the time.
    pub fn throughout(&self, from_ns: u64, to_ns: u64) -> impl Iterator<Item = usize> {
        self.intervals()
            .filter(move |it| it.1 < from_ns && to_ns < it.2)
            .map(|it| it.0)
    }

    /// Addresses that had, in this process, a good path again and again: while it was missing, that
    /// was never for as long as `patience_ns` on end, nor because the leg had left or nothing could
    /// be said on the last one.
    pub fn within(
        &self,
        patience_ns: u64,
        (from_ns, to_ns): (u64, u64),
    ) -> impl Iterator<Item = usize> {
        let short =
            move |&address: &usize| self.longest_away_ns(address, from_ns, to_ns) < patience_ns;
        (0..self.now.len()).filter(short)
    }

    /// For how long an address had no good path, some of that in this time; `u64::MAX` where it had
    /// none before, or for another reason than a path's.
    fn longest_away_ns(&self, address: usize, from_ns: u64, to_ns: u64) -> u64 {
        let good = self.intervals().filter(|it| it.0 == address);
        let good = good.filter(|it| it.2 > self.began_ns);
        let good = good.map(|it| (it.1, it.2)).chain([(u64::MAX, u64::MAX)]);
        let mut since_ns = None;
        let mut longest_ns = 0;
        for (good_ns, gone_ns) in good {
            if from_ns <= good_ns && since_ns.is_none_or(|it| it < to_ns) {
                let since_ns = since_ns.filter(|&it| !self.has_left(address, it, good_ns));
                let away_ns = since_ns.map_or(u64::MAX, |it| good_ns.min(to_ns) - it);
                longest_ns = longest_ns.max(away_ns);
            }
            since_ns = Some(gone_ns);
        }
        longest_ns
    }

    /// Whether a leg of a mirror has left in this time, or nothing could be said on the last one.
    fn has_left(&self, leg: usize, from_ns: u64, to_ns: u64) -> bool {
        let left = self.left.iter().filter(|it| it.0 == leg).map(|it| it.1);
        let mut all = left.chain(self.ceased.iter().copied());
        all.any(|it| from_ns <= it && it <= to_ns)
    }
}

impl Host {
    /// Looks at the paths of a core.
    pub(super) fn look_at_paths(&mut self, world: &World, core: usize) {
        let Body::Core(engine) = &world.nodes[self.cores[core]].body else {
            return;
        };
        let legs = engine.mirror_legs(MIRRORS_FROM);
        if let Some((legs, (_, runs))) = legs.zip(engine.mirror_memory(MIRRORS_FROM)) {
            // While nothing can be said on its last leg, changes fail; that is tried every second.
            let facts = || legs.iter().filter_map(|it| it.facts);
            let lapsed = facts().any(|it| it.in_sync && it.lapsed);
            self.good[core].note_lapsed(lapsed, world.now_ns);
            self.good[core].note_running(runs, world.now_ns);
            for it in &legs {
                let Some(volume) = it.volume else { continue };
                let leg = usize::from(volume);
                let usable = engine
                    .host()
                    .volume(volume)
                    .is_some_and(|it| it.usability().0);
                let in_sync = it.status == LegStatus::InSync;
                let good = runs && usable && in_sync;
                self.good[core].note(leg, good, !usable, world.now_ns);
                self.good[core].note_leg(leg, in_sync, world.now_ns);
            }
            return;
        }
        let engine = engine.host();
        let mut paths = engine.paths(0);
        self.flapped |= paths.any(|it| engine.path_state(0, it) == PathState::Probation);
        for address in 0..self.user.addresses() {
            let path = self.user.path(address);
            let state = path.map(|path| engine.path_state(0, path));
            let is_live = state == Some(PathState::Live);
            let hinders = |path| engine.path_hindrance(0, path).is_some();
            let good = is_live && !path.is_some_and(hinders);
            let lost = state == Some(PathState::Reconnecting);
            self.good[core].note(address, good, lost, world.now_ns);
        }
    }
}

impl Rig {
    /// A process of a host begins.
    pub(super) fn no_path_is_good(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        host.good.resize_with(host.cores.len(), Good::default);
        host.good
            .iter_mut()
            .for_each(|it| it.begin(self.world.now_ns));
    }

    /// Addresses to which a host had a good path for as long as a request of it lasted.
    pub(super) fn good_for(&self, host: usize, failed: &Failed) -> impl Iterator<Item = usize> {
        let core = self.good_at(host, failed);
        core.throughout(failed.start_ns, failed.end_ns)
    }

    /// The paths that a core could use, of the core to which a request of a host went.
    pub(super) fn good_at(&self, host: usize, failed: &Failed) -> &Good {
        &self.hosts[host].good[self.layout.first_home() + failed.home as usize]
    }
}
