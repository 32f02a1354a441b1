//! For what requests of a mirror may fail, and what its people do about a start that was refused.
//!
//! # Contract
//! A request fails only where none of the legs in sync could have done it: no more of them were
//! good as long as it lasted than there were faults that let commands fail, those of a medium only
//! where they meet in one block of a read. A leg whose disk failed to write a block can't serve
//! reads near it, until that was written. A flush may fail once for each path of a leg that left
//! with what its controller had cached (T13), where no other leg was in sync. A flush that fails
//! says that what was acknowledged before it may be lost; later ones do not cover that.
use super::super::client::{BLOCKS_MAX, RequestError};
use super::super::pardon::{echoes, key};
use crate::chaos::prelude::*;
use engine::mirror::{LegOrder, LegReport, MirrorOrder};
use mirror::assembly::Wishes;

/// Report about a leg that does not return because it is too short.
const SHORT: &str = "it was cut off";

impl Course<'_> {
    /// The first request of a host that failed and may not have.
    pub(in crate::chaos) fn unforgiven_of_mirror(
        &mut self,
        host: usize,
        failed: &[Failed],
    ) -> Option<Failed> {
        let lives = &self.rig.hosts[host].lives;
        let is_error =
            |it: &Failed| it.is_io_error() || it.error == RequestError::Server(Errno::NoSpc);
        let excuse = failed.iter().any(is_error).then_some(Check::Excuse);
        self.report.judged.extend(excuse);
        let is_wrong = |it: &&Failed| match it.error {
            // A namespace without a usable leg is inaccessible at once: nothing waits for one.
            RequestError::Path(_) => {
                let good = self.rig.good_for(host, it).count();
                let cut = lives.was_cut(it) || lives.excuses(it);
                !cut && good > self.pardons_at(host, it)
            }
            RequestError::Server(Errno::Io | Errno::NoSpc) => {
                let has = |leg: &usize| !self.lacks_block_of(*leg, it);
                let good = self.rig.good_for(host, it).filter(has).count();
                let soon = self.soon_there(host, it).into_iter().filter(has).count();
                good.max(soon) > self.pardons_at(host, it)
            }
            RequestError::Lost if lives.was_cut(it) => false,
            _ => !lives.excuses(it),
        };
        let is_flush = |it: &&Failed| it.request.kind == nbd::Kind::Flush && it.is_io_error();
        let echoes = echoes(failed, lives);
        let is_echo = |it: &&Failed| echoes.contains(&key(it));
        let wrong = || failed.iter().filter(is_wrong).filter(|it| !is_echo(it));
        let other = wrong().find(|it| !is_flush(it)).copied();
        other.or_else(|| self.without_departure(host, wrong().filter(is_flush).copied().collect()))
    }

    /// Legs that were never away for as long as a request waits for one. Flushes that are lost with
    /// a path fail for that all the same (T13).
    fn soon_there(&self, host: usize, failed: &Failed) -> Vec<usize> {
        let times = (failed.start_ns, failed.end_ns);
        match &self.plan.layout.mirror {
            Some(shape) if failed.request.kind != nbd::Kind::Flush => {
                let good = self.rig.good_at(host, failed);
                good.within(shape.patience_ns, times).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Whether a leg lacks a block of a read, because its disk failed to write that one or another
    /// block of the same change: the legs that have it may have left.
    fn lacks_block_of(&self, leg: usize, failed: &Failed) -> bool {
        let disk = &self.rig.world.disks[leg];
        let lacks = |block| disk.is_unwritten(block, failed.start_ns, failed.end_ns);
        let blocks = failed.blocks();
        let mut near = blocks.start.saturating_sub(BLOCKS_MAX)..blocks.end + BLOCKS_MAX;
        failed.request.kind == nbd::Kind::Read && near.any(lacks)
    }

    /// Flushes that failed since this was asked last are history.
    pub(in crate::chaos) fn remember_failed_flushes(&mut self) {
        if self.plan.layout.mirror.is_none() {
            return;
        }
        let node = self.rig.hosts[0].clients;
        if let Some(client) = self.rig.world.nodes[node].client() {
            let news = &client.failed[self.told_failed.min(client.failed.len())..];
            let flushes = news.iter().filter(|it| it.tells_a_loss());
            for it in flushes {
                self.history.given_up(1, it.start_ns, it.end_ns);
            }
            self.told_failed = client.failed.len();
        }
    }

    /// A mirror whose start was refused is started by its users (`braid mirror assemble`); legs
    /// that were taken out stay so, whichever host was killed meanwhile, until they are restored.
    pub(in crate::chaos) fn mend_mirrors(&mut self) {
        for host in 0..self.rig.hosts.len() {
            self.repair_accepted(host);
            let Some(engine) = self.rig.mirror_core(host) else {
                continue;
            };
            let report = engine.mirror(MIRRORS_FROM);
            let legs = report.iter().flat_map(|it| &it.legs);
            let is_lost = |it: &&LegReport| it.is_cut_and_last() && !it.small;
            let lost: Vec<u8> = legs
                .clone()
                .filter(is_lost)
                .filter_map(|it| it.slot)
                .collect();
            // For a leg that was too short for a while, the mirror asks for an inspection.
            let short = |it: &LegReport| it.why.as_ref().is_some_and(|why| why.contains(SHORT));
            let aside: Vec<u8> = legs
                .filter(|it| it.admin_offline || it.status == LegStatus::Stale && short(it))
                .filter_map(|it| it.slot)
                .collect();
            let state = report.map(|it| it.state);
            let refused = matches!(
                state,
                Some(MirrorState::Refused(_) | MirrorState::Failed(_))
            );
            if refused && self.rig.hosts[host].stopping.is_none() {
                let order = MirrorOrder::Assemble(Wishes::default());
                self.rig.order(host, order);
                continue;
            }
            // Users accept the loss of the last leg in sync once it is large enough.
            for slot in lost {
                self.accept_loss(usize::from(slot));
                self.rig.order_leg(host, slot, LegOrder::AcceptCut);
            }
            for slot in aside {
                self.rig.order_leg(host, slot, LegOrder::Return);
            }
        }
    }
}
