//! For what requests may fail.
//!
//! # Contract
//! A fault that lets requests fail says of which host, of which blocks, and from when to when. A
//! path that left by force, or that could not be added in the end, takes its controller's cache
//! with it (also of the process before, after an unclean stop), which can't be flushed: the flushes
//! that learn of it fail, once on each core for each such path, and those that are under way with
//! them (T13). The first flush of each other connection that was there then fails for it too.
use super::client::RequestError;
use super::harm;
use super::lives::Lives;
use super::mirror::{hung, shrunk};
use super::prelude::*;
use nvme::wire::Status;

/// A reason for requests to fail.
#[derive(Clone, Copy, Debug)]
pub struct Pardon {
    pub kind: Kind,
    /// Of this host only.
    host: Option<usize>,
    /// Only on the port at this address.
    address: Option<usize>,
    /// Only what touches these of the disk's blocks: the first, and that behind the last.
    blocks: Option<(u64, u64)>,
    from_ns: u64,
    to_ns: u64,
}

impl Failed {
    /// Whether it failed with an I/O error, or with the status of a path: NVMe/TCP exports tell a
    /// failure of all paths so.
    pub(super) fn is_io_error(&self) -> bool {
        matches!(
            self.error,
            RequestError::Server(Errno::Io) | RequestError::Path(_)
        )
    }

    /// Whether it is a flush whose failure an application hears: one that ends with the status of a
    /// path hosts repeat.
    pub(super) fn tells_a_loss(&self) -> bool {
        self.request.kind == nbd::Kind::Flush && self.error == RequestError::Server(Errno::Io)
    }

    /// The disk's blocks that it touched.
    pub(super) fn blocks(&self) -> Range<u64> {
        let (request, block) = (&self.request, BLOCK as u64);
        let end = request.offset + u64::from(request.length);
        request.offset / block..end.div_ceil(block)
    }
}

impl Pardon {
    /// Whether it is of this block.
    fn has(&self, block: u64) -> bool {
        self.blocks
            .is_none_or(|(from, to)| (from..to).contains(&block))
    }

    /// Whether it is of the time of a request.
    fn is_then(&self, failed: &Failed) -> bool {
        self.from_ns <= failed.end_ns && failed.start_ns <= self.to_ns
    }

    /// Whether a request of a host that failed with `errno` may have.
    fn excuses(&self, host: usize, failed: &Failed, errno: Errno) -> bool {
        let request = &failed.request;
        let Range { start: first, end } = failed.blocks();
        let flush = request.kind == nbd::Kind::Flush;
        let whose = self.host.is_none_or(|it| it == host);
        let here = |(from, to): (u64, u64)| first < to && from < end;
        if !self.is_then(failed) || !whose || !flush && !self.blocks.is_none_or(here) {
            return false;
        }
        match self.kind {
            Kind::Media => request.kind == nbd::Kind::Read && errno == Errno::Io,
            Kind::NoSpace => request.kind.is_change() && matches!(errno, Errno::Io | Errno::NoSpc),
            Kind::Transient | Kind::Status => errno == Errno::Io,
            Kind::Unexport => errno == Errno::Inval,
            Kind::FailPath | Kind::DrainPath | Kind::RemovePath => errno == Errno::Io,
            _ => false,
        }
    }
}

impl Course<'_> {
    /// Allows the failures that a beginning fault causes.
    pub(super) fn pardon(&mut self, number: usize, fault: &Fault, whom: Whom) {
        let from_ns = self.rig.world.now_ns;
        let kind = fault.kind;
        let (host, blocks) = match kind {
            Kind::FailPath | Kind::DrainPath | Kind::RemovePath if fault.whom & aim::FORCE == 0 => {
                return;
            }
            Kind::FailPath | Kind::DrainPath | Kind::RemovePath | Kind::Greedy => {
                (Some(whom.host), None)
            }
            Kind::Media | Kind::NoSpace | Kind::Transient | Kind::OneWrite => {
                let flaw = harm::flaw(number as u64, fault, self.plan.layout.habit.blocks);
                (None, Some(flaw.blocks))
            }
            Kind::Status | Kind::HungSubmit => (None, None),
            // Until a user accepts that it is gone.
            Kind::Shrink => {
                let first = shrunk::first_lost(fault, self.plan.layout.habit.blocks);
                (None, Some((first, u64::MAX)))
            }
            _ => return,
        };
        self.pardons.push(Pardon {
            kind,
            host,
            address: (kind == Kind::Status).then_some(whom.address),
            blocks,
            from_ns,
            to_ns: match kind {
                Kind::Shrink => u64::MAX,
                Kind::HungSubmit => from_ns + fault.lasts_ns + hung::OVER_NS,
                _ => from_ns + fault.lasts_ns,
            },
        });
    }

    /// The namespace of a host's applications was away from then until now.
    pub(super) fn pardon_unexported(&mut self, host: usize, from_ns: u64) {
        self.pardons.push(Pardon {
            kind: Kind::Unexport,
            host: Some(host),
            address: None,
            blocks: None,
            from_ns,
            to_ns: self.rig.world.now_ns,
        });
    }

    /// Whether unrelated clients took resources that the applications of a host asked for.
    pub(super) fn had_strangers(&self, host: usize) -> bool {
        let greedy = |it: &Pardon| it.kind == Kind::Greedy && it.host == Some(host);
        self.pardons.iter().any(greedy)
    }

    /// The first request of a host that failed and may not have.
    pub(super) fn unforgiven(&mut self, host: usize, failed: &[Failed]) -> Option<Failed> {
        if self.plan.layout.mirror.is_some() {
            return self.unforgiven_of_mirror(host, failed);
        }
        let lives = &self.rig.hosts[host].lives;
        let mut flushes = Vec::new();
        let echoes = echoes(failed, lives);
        for it in failed.iter().filter(|it| !echoes.contains(&key(it))) {
            let errno = match it.error {
                RequestError::Server(errno) if errno != Errno::Shutdown => errno,
                // Commands of an association that is over, and those for which there was no path.
                RequestError::Path(_) if lives.was_cut(it) || lives.excuses(it) => continue,
                RequestError::Path(_) if self.rig.good_for(host, it).next().is_none() => continue,
                RequestError::Path(it) if it.is(Status::INVALID_NAMESPACE) => Errno::Inval,
                RequestError::Path(_) => Errno::Io,
                RequestError::Lost if lives.was_cut(it) => continue,
                _ if lives.excuses(it) => continue,
                _ => return Some(*it),
            };
            if self
                .pardons
                .iter()
                .any(|pardon| pardon.excuses(host, it, errno) && self.had_to(host, it, pardon))
            {
                continue;
            }
            if it.request.kind != nbd::Kind::Flush || errno != Errno::Io {
                return Some(*it);
            }
            flushes.push(*it);
        }
        let homes = 0..self.plan.layout.habit.homes;
        let each = |home| {
            flushes
                .iter()
                .filter(|it| it.home == home)
                .copied()
                .collect()
        };
        let mut homes = homes.map(|home| self.without_departure(host, each(home)));
        homes.find_map(|it| it)
    }

    /// Returns how many such faults there were in the time of a request of a mirror; of those that
    /// keep a read from blocks, as many as meet in one of them: blocks that a leg lacks elsewhere
    /// are on others. A request that waits for a leg's lease fails with a heartbeat, wherever that
    /// goes.
    pub(super) fn pardons_at(&self, host: usize, failed: &Failed) -> usize {
        let (kind, blocks) = (failed.request.kind, failed.blocks());
        let mut good = self.rig.hosts[host].good.iter();
        let waited = good.any(|it| it.was_lapsed(failed.start_ns, failed.end_ns));
        let touched = |it: &&Pardon| {
            let here = |(from, to): (u64, u64)| blocks.start < to && from < blocks.end;
            let anywhere = waited || kind == nbd::Kind::Flush;
            it.is_then(failed) && (anywhere || it.blocks.is_none_or(here))
        };
        let writes_only = |it: &&Pardon| matches!(it.kind, Kind::NoSpace | Kind::OneWrite);
        if kind != nbd::Kind::Read || waited {
            // A change that covers a block partly reads the rest of it.
            return self.pardons.iter().filter(touched).count();
        }
        let then = || {
            self.pardons
                .iter()
                .filter(touched)
                .filter(|it| !writes_only(it))
        };
        let media = || then().filter(|it| it.kind == Kind::Media);
        let here = |block: u64| move |it: &&Pardon| it.has(block);
        let meet = failed
            .blocks()
            .map(|block| media().filter(here(block)).count());
        then().count() - media().count() + meet.max().unwrap_or(0)
    }

    /// Whether a request had to fail for that reason: what is wrong with some paths is no reason
    /// where another one was good all the time, unless it is a flush, which must go to each.
    fn had_to(&self, host: usize, failed: &Failed, pardon: &Pardon) -> bool {
        let of_paths = matches!(
            pardon.kind,
            Kind::FailPath | Kind::DrainPath | Kind::RemovePath | Kind::Status
        );
        let spoilt = |address: usize| {
            let mut those = self.pardons.iter();
            those.any(|it| it.address == Some(address) && it.is_then(failed))
        };
        let mut good = self.rig.good_for(host, failed);
        let flush = failed.request.kind == nbd::Kind::Flush;
        !of_paths || flush || good.all(spoilt)
    }

    /// The flushes of a host that perhaps failed because a path had left: begin and end.
    pub(super) fn given_up(&self, host: usize, failed: &[Failed]) -> Vec<(u64, u64)> {
        let host = &self.rig.hosts[host];
        let left = host.user.left();
        let flush = |it: &&Failed| {
            let life = host.lives.at(it.since_ns);
            let may = |&from_ns: &u64| from_ns <= it.end_ns && host.lives.at(from_ns) == life;
            it.tells_a_loss() && left.iter().any(may)
        };
        let those = failed.iter().filter(flush);
        those.map(|it| (it.start_ns, it.end_ns)).collect()
    }

    /// Of flushes on one core, the first that no path that left excuses.
    pub(super) fn without_departure(
        &self,
        host: usize,
        mut flushes: Vec<Failed>,
    ) -> Option<Failed> {
        let host = &self.rig.hosts[host];
        let mut left = host.user.left();
        flushes.sort_by_key(|it| it.end_ns);
        let mut at = 0;
        while let Some(first) = flushes.get(at) {
            let life = host.lives.at(first.since_ns);
            let may = |&from_ns: &u64| from_ns <= first.end_ns && host.lives.at(from_ns) == life;
            let Some(of) = left.iter().position(may) else {
                return Some(*first);
            };
            left.remove(of);
            let with = |it: &Failed| it.start_ns <= first.end_ns;
            at += flushes[at..].iter().take_while(|it| with(it)).count();
        }
        None
    }
}

/// Which flush it is.
pub(super) fn key(of: &Failed) -> (usize, u64, u64) {
    (of.conn, of.start_ns, of.end_ns)
}

/// Of flushes that failed, those that only tell another connection to the same core of what one
/// had failed for: each the first of its connection since then. A flush that fails again on its
/// own connection is none. A host over NVMe/TCP may have been away meanwhile, and hears of it once
/// it has connected again, until its engine's process ends.
pub(super) fn echoes(failed: &[Failed], lives: &Lives) -> Vec<(usize, u64, u64)> {
    let mut flushes: Vec<&Failed> = failed.iter().filter(|it| it.tells_a_loss()).collect();
    flushes.sort_by_key(|it| it.end_ns);
    let (mut first, mut echoes): (Vec<&Failed>, Vec<&Failed>) = (Vec::new(), Vec::new());
    for it in flushes {
        let is_of = |of: &&&Failed| {
            let other = of.home == it.home && of.conn != it.conn;
            let mut told = first.iter().chain(&echoes);
            let again = |it: &Failed, by: &Failed| by.conn == it.conn && by.end_ns >= of.end_ns;
            let same_life = lives.at(it.since_ns) == lives.at(of.end_ns);
            let was_there = it.since_ns <= of.end_ns || it.has_identity && same_life;
            other && was_there && !told.any(|by| again(it, by))
        };
        match first.iter().any(|of| is_of(&of)) {
            true => echoes.push(it),
            false => first.push(it),
        }
    }
    echoes.into_iter().map(key).collect()
}
