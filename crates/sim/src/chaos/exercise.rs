//! Requests with nothing wrong: they take as long as they should, and no path is forgotten.
//!
//! # Contract
//! First by the policy of the world, with what it has learnt meanwhile, after all paths were idle.
//! Of `weighted-latency` each path has its turn in [`ROUNDS`] of credit; `soonest` tries each path
//! again, however slow it once was, at the latest when a core's I/Os have taken [`owed_ns`]
//! together (T38). A live path that is left alone for longer is a finding; other policies may leave
//! one alone for ever. Then in turn, where each path has its share.
//!
//! # Limits
//! So many I/Os are there only where a path was left alone at first, and so long a time of I/Os
//! only where devices are made slow, all alike: not with mirrors, and not where a target has the
//! least memory.
use super::calm::CALM_NS;
use super::disk::USUAL_NS;
use super::prelude::*;
use engine::host::Multipath;
use policy::Group;
use policy::limits::{BUCKETS, WEIGHT_WHOLE};

/// Requests of each host, each time.
const EXERCISES: u64 = 200;
/// Bound of each of those, ns.
const EXERCISE_NS: u64 = SECOND / 10;
/// `soonest` looks at a path that has been idle for 30 s before any other. It may spend 1 in 128 of
/// the time of I/Os on looks, and saves up to 0.2 s for one: that pays for any.
const OVERDUE_NS: u64 = 30 * SECOND;
const SAVING_NS: u64 = 128 * SECOND / 5;
/// Least duration of each I/O while that is waited for, ns.
const SLOW_NS: u64 = SECOND / 25;
/// A cycle of `weighted-latency` is over when all credit is spent. Reads and writes go round
/// together, so a path may be passed by while it is the others' turn, and has credit in the next.
const ROUNDS: u64 = 3;
/// Credit is given apart to reads and writes of each size.
const CELLS: u64 = 2 * BUCKETS as u64;
/// Of so many I/Os of one core `soonest` gives a path one that costs little.
const LOOKS: u64 = 64;
/// A leg that serves no reads has some 20 of the requests, and flushes of each of its paths between
/// them: which path has the next turn is luck then, so that more requests have to come where one
/// was left out (seed 3001489 of those with mirrors).
const ROUNDS_OF_LEGS: usize = 8;
/// I/Os of a core that have not ended, or did before the path was looked at.
const BESIDE: u64 = 16;

/// I/Os of a core on one path: reads, and writes.
struct Used {
    host: usize,
    core: usize,
    volume: u16,
    path: PathIndex,
    ios: [u64; 2],
}

/// I/Os of all cores of a host on one path.
struct Share {
    host: usize,
    path: PathIndex,
    ios: u64,
}

impl Course<'_> {
    /// With nothing wrong, requests take as long as they should, and every path has its share.
    pub(super) fn exercise(&mut self) -> Result<(), Finding> {
        let policy = self.plan.layout.policy;
        self.go_by(policy);
        // A process that began lately may yet have writes wait for what the one before had sent.
        self.pass(self.rig.world.now_ns + CALM_NS)?;
        let before = self.used();
        self.do_some()?;
        let left_alone = left_alone(policy, &before, &self.used());
        let left_alone = match (policy, left_alone) {
            (_, false) => None,
            (Policy::Soonest, true) => self.do_slowly()?,
            (_, true) => self.do_more()?,
        };
        if let Some(what) = left_alone {
            return Err(Finding::Stuck(format!("{what} under {policy}")));
        }
        self.go_by(Policy::RoundRobin { bytes: 0 });
        if let Some((host, path)) = self.unused()? {
            let what = format!("host {host}: {path:?} is live and not used");
            return Err(Finding::Stuck(what));
        }
        self.report.judged.insert(Check::Exercise);
        Ok(())
    }

    /// A path that has no share of requests in turn.
    fn unused(&mut self) -> Result<Option<(usize, PathIndex)>, Finding> {
        let (before, mut unused) = (self.all_shares(), None);
        let mut cores = self.rig.hosts.iter().flat_map(|host| &host.cores);
        let stale = cores.any(|&node| self.rig.world.has_stale(node));
        let rounds = match self.plan.layout.mirror {
            Some(_) => ROUNDS_OF_LEGS,
            // The I/O that finds a connection forgotten is another path's in the end.
            None if stale => 2,
            None => 1,
        };
        for _ in 0..rounds {
            self.do_some()?;
            let after = self.all_shares();
            let idle = |(before, after): &(&Share, &Share)| before.ios == after.ios;
            match before.iter().zip(&after).find(idle) {
                None => return Ok(None),
                Some((it, _)) => unused = Some((it.host, it.path)),
            }
        }
        Ok(unused)
    }

    /// From now on; where it is so already nothing changes.
    fn go_by(&mut self, policy: Policy) {
        for host in 0..self.rig.hosts.len() {
            for node in self.rig.hosts[host].cores.clone() {
                for volume in self.rig.volumes() {
                    let message = HostControl::Policy(volume, policy, Knobs::default());
                    self.rig.tell(node, ExportControl::Host(message));
                }
            }
        }
    }

    /// Some requests of each host, none of which takes too long.
    fn do_some(&mut self) -> Result<(), Finding> {
        // Without memory for probes an I/O is the first to find what was forgotten on the way.
        let mut cores = self.rig.hosts.iter().flat_map(|host| &host.cores);
        let finds = cores.any(|&node| self.rig.world.has_stale(node));
        self.rig.clients(|it| it.exercise(EXERCISES, false));
        self.rest()?;
        for host in 0..self.rig.hosts.len() {
            let Some(it) = self.rig.client(host).slowest else {
                continue;
            };
            let took_ns = it.end_ns - it.start_ns;
            if took_ns > EXERCISE_NS && !finds {
                let asked = format!("{}", self.asked(host, it.home, it.start_ns, &it.request));
                let ms = took_ns / 1_000_000;
                let what = format!("with nothing wrong, {asked} took {ms} ms");
                let is_flush = it.request.kind == nbd::Kind::Flush;
                let first = it.request.offset / self.plan.layout.habit.unit;
                self.report.block = (!is_flush).then_some(first);
                self.report.seen_ns = Some(it.end_ns);
                return Err(Finding::Stuck(what));
            }
        }
        Ok(())
    }

    /// So many requests on slow devices that `soonest` can pay for a look at any path; one that it
    /// has left alone all the same.
    fn do_slowly(&mut self) -> Result<Option<String>, Finding> {
        let layout = &self.plan.layout;
        if layout.mirror.is_some() || layout.more.tight {
            return Ok(None);
        }
        self.set_delays((SLOW_NS, 0));
        let before = self.used();
        let owed_ns = owed_ns(paths_of(&before));
        // Some of them are flushes, which are none of the policy's.
        let count = owed_ns / SLOW_NS * 3 / 2;
        // A change of a part of a block reads it before it writes.
        self.do_singly(count, 4 * count * SLOW_NS)?;
        self.set_delays(USUAL_NS);
        Ok(first_of(&before, &self.used(), |own, all| {
            own == [0, 0] && (all[0] + all[1]).saturating_sub(BESIDE) * SLOW_NS > owed_ns
        }))
    }

    /// So many requests that `weighted-latency` has gone round more than [`ROUNDS`] times; a path
    /// that has had none all the same.
    fn do_more(&mut self) -> Result<Option<String>, Finding> {
        let before = self.used();
        let most = ROUNDS * CELLS * (WEIGHT_WHOLE + paths_of(&before));
        // About half of them are of either kind, and some are flushes.
        self.do_singly(3 * most, 3 * most * EXERCISE_NS)?;
        Ok(first_of(&before, &self.used(), |own, all| {
            (0..2).any(|group| own[group] == 0 && all[group] > most)
        }))
    }

    /// So many requests of each core, one at a time; those that `most_ns` is not enough for are
    /// left out.
    fn do_singly(&mut self, count: u64, most_ns: u64) -> Result<(), Finding> {
        let count = count * u64::from(self.plan.layout.habit.homes);
        self.rig.clients(|it| it.exercise(count, true));
        let end_ns = self.rig.world.now_ns + most_ns;
        while !self.are_over() && self.rig.world.now_ns < end_ns {
            self.pass(self.rig.world.now_ns + SECOND)?;
        }
        self.rest()
    }

    fn set_delays(&mut self, delay_ns: (u64, u64)) {
        for disk in &mut self.rig.world.disks {
            disk.delay_ns = delay_ns;
        }
    }

    /// I/Os of all cores on all paths so far; begins anew with each change of the policy.
    fn used(&self) -> Vec<Used> {
        let mut all = Vec::new();
        for (host, core, _, engine) in self.rig.cores() {
            let engine = engine.host();
            let paths = |volume| engine.paths(volume).map(move |path| (volume, path));
            for (volume, path) in self.rig.volumes().flat_map(paths) {
                let groups = engine.path_report(volume, path, 0).groups;
                all.push(Used {
                    host,
                    core,
                    volume,
                    path,
                    ios: [Group::Read, Group::Write].map(|it| groups[it as usize].selections),
                });
            }
        }
        all
    }

    /// Of each host and path: reads and writes, of all cores that have applications.
    fn all_shares(&self) -> Vec<Share> {
        let mut shares = Vec::new();
        for (number, host) in self.rig.hosts.iter().enumerate() {
            let engine = |&node: &usize| Some(self.rig.core(node)?.host());
            let Some(first) = engine(&host.cores[0]) else {
                continue;
            };
            let paths = |volume| first.paths(volume).map(move |path| (volume, path));
            for (volume, path) in self.rig.volumes().flat_map(paths) {
                let ios = |it: &Multipath| it.counters(volume, path).ios[..2].iter().sum::<u64>();
                shares.push(Share {
                    host: number,
                    path,
                    ios: host.cores.iter().filter_map(engine).map(ios).sum(),
                });
            }
        }
        shares
    }
}

/// Whether a core has left a path alone in so few I/Os, where more would tell if that is odd.
fn left_alone(policy: Policy, before: &[Used], after: &[Used]) -> bool {
    let paths = paths_of(after);
    let odd = match policy {
        // A turn of all paths is no longer than that, and who had no credit has some in the next.
        Policy::WeightedLatency(_) => first_of(before, after, |own, all| {
            (0..2).any(|group| own[group] == 0 && all[group] > 2 * (WEIGHT_WHOLE + paths))
        }),
        Policy::Soonest => first_of(before, after, |own, all| {
            own == [0, 0] && all[0] + all[1] > LOOKS
        }),
        _ => None,
    };
    odd.is_some()
}

/// Most that a core's I/Os take together before `soonest` has tried a path again: all others may
/// be as dear, and overdue as well.
const fn owed_ns(paths: u64) -> u64 {
    OVERDUE_NS + paths * SAVING_NS
}

/// Most paths that one core has to one volume.
fn paths_of(all: &[Used]) -> u64 {
    let most = all.iter().map(|it| u64::from(it.path.0) + 1).max();
    most.unwrap_or(0)
}

/// The first path of which that `is` said: by what its core has given it, and all its paths.
fn first_of(
    before: &[Used],
    after: &[Used],
    is: impl Fn([u64; 2], [u64; 2]) -> bool,
) -> Option<String> {
    // Equal paths in equal order: no path is added, and no process ends.
    let pairs = before.iter().zip(after);
    let done: Vec<[u64; 2]> = pairs
        .map(|(before, after)| core::array::from_fn(|at| after.ios[at] - before.ios[at]))
        .collect();
    let of = |it: &Used| (it.host, it.core, it.volume);
    after.iter().zip(&done).find_map(|(it, &own)| {
        let those = || {
            after
                .iter()
                .zip(&done)
                .filter(|other| of(other.0) == of(it))
        };
        let all = core::array::from_fn(|group| those().map(|(_, done)| done[group]).sum());
        is(own, all).then(|| {
            let (host, core, path) = (it.host, it.core, it.path);
            format!(
                "host {host} core {core}: {path:?} is live and not tried again: {own:?} of {all:?}"
            )
        })
    })
}
