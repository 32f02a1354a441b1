//! Checks of a mirror that is quiescent.
use super::crash_checker::Legs;
use crate::chaos::prelude::*;
use mirror::assembly::{Wishes, assemble};
use mirror::superblock::EntryState;

impl Course<'_> {
    /// A mirror that does not run, a leg that is not in sync, or a path that is not in use.
    pub(in crate::chaos) fn what_mirrors_lack(&self) -> Option<String> {
        self.rig
            .hosts
            .iter()
            .enumerate()
            .find_map(|(number, host)| {
                let node = self.rig.mirror_node(number);
                if !host.user.is_content(|address| self.rig.is_told(address)) {
                    let lacks = || format!("host {number} lacks a path, or has one too many");
                    return Some(host.user.unanswered().unwrap_or_else(lacks));
                }
                let Some(engine) = self.rig.core(node) else {
                    return Some(format!("host {number} is not there"));
                };
                let it = engine.host();
                let scratch = u64::from(self.plan.layout.more.scratch_bytes);
                if scratch > 0 && self.rig.world.has_stale(node) {
                    return Some(format!("host {number} uses a connection that is gone"));
                }
                if it.scratch_free() != scratch {
                    return Some(format!("host {number}: a probe is under way"));
                }
                for volume in self.rig.volumes() {
                    let mut away = it
                        .paths(volume)
                        .map(|path| (path, it.path_state(volume, path)));
                    if let Some((path, state)) = away.find(|(_, state)| *state != PathState::Live) {
                        let why = it.path_hindrance(volume, path).unwrap_or_default();
                        let what =
                            format!("host {number} leg {volume}: {path:?} is {state:?}: {why}");
                        return Some(what);
                    }
                }
                let report = engine.mirror(MIRRORS_FROM)?;
                if report.state != MirrorState::Running {
                    return Some(format!("host {number}: the mirror is {:?}", report.state));
                }
                let out = |status| status != LegStatus::InSync;
                if let Some(leg) = report.legs.iter().find(|leg| out(leg.status)) {
                    let (status, why) = (leg.status, leg.why.as_deref().unwrap_or_default());
                    return Some(format!("host {number}: {} is {status:?}: {why}", leg.name));
                }
                if let Some((leg, _)) = self.accepted {
                    let what =
                        format!("host {number}: no resync has made the legs equal to leg {leg}");
                    return Some(what);
                }
                let left = report.resync?.left;
                Some(format!("host {number}: {left} regions may differ"))
            })
    }

    /// Nothing is under way: all legs have the same.
    pub(in crate::chaos) fn are_alike(&mut self) -> Result<(), Finding> {
        if self.plan.layout.mirror.is_none() {
            return Ok(());
        }
        self.bare.fill(false);
        self.examine()?;
        self.others_are_untouched()?;
        self.alike_on_disks(false)?;
        // Those that never left were alike all the time.
        self.judges(Check::Alike, self.report.judged.contains(&Check::Plug));
        Ok(())
    }

    fn alike_on_disks(&self, durable: bool) -> Result<(), Finding> {
        let legs = Legs::of(self.rig.leg_disks(), durable);
        let next = assemble(legs.said(), Wishes::default()).map(|it| it.next);
        let bad = |leg: usize| match &next {
            Ok(next) => legs.bad(leg, next),
            Err(_) => Vec::new(),
        };
        for leg in 1..legs.said().len() {
            let (ours, theirs) = (legs.data(0), legs.data(leg));
            let both = ours.len().min(theirs.len());
            let differ = ours[..both] != theirs[..both];
            // A block that one of them could not write is missing there.
            let bad: Vec<_> = bad(0).into_iter().chain(bad(leg)).collect();
            let is_bad = |at: usize| bad.iter().any(|it| it.contains(&(at as u64)));
            let bytes = ours.iter().zip(theirs).enumerate();
            let mut differing = bytes.filter(|(_, (a, b))| a != b).map(|it| it.0);
            let at = || differing.find(|&at| !is_bad(at));
            if let Some(at) = differ.then(at).flatten() {
                let what = format!("with nothing under way, leg {leg} differs from leg 0 at {at}");
                return Err(Finding::Wrong(what));
            }
        }
        Ok(())
    }

    /// All hosts have stopped in order: the legs say so, and are the same whatever becomes of
    /// caches.
    pub(in crate::chaos) fn were_left_alike(&mut self) -> Result<(), Finding> {
        if self.plan.layout.mirror.is_none() {
            return Ok(());
        }
        let caches = self.plan.layout.caches;
        let legs = Legs::of(self.rig.leg_disks(), caches);
        for (leg, said) in legs.said().iter().enumerate() {
            let Ok(it) = said else {
                return Err(Finding::Wrong(format!("leg {leg}: {said:?}")));
            };
            let in_sync = it
                .entries()
                .all(|(_, entry)| entry.state == EntryState::InSync);
            if !it.clean || it.owner.is_some() || !in_sync {
                let what =
                    format!("after a stop, leg {leg} does not say that it was clean: {it:?}");
                return Err(Finding::Wrong(what));
            }
        }
        self.alike_on_disks(caches)
    }
}
