//! Reports I/O that waits in a volume and why, and what a failing path has led to, over all cores.
use super::Report;
use crate::run::notes;
use crate::run::volumes::Running;
use cores::CoreReport;
use engine::host::{HoldReason, HoldStats, PathReport, WriteFailover};
use serde_json::{Value, json};

impl Report<'_> {
    fn holds(&self, volume: u16) -> impl Iterator<Item = (&CoreReport, &HoldStats)> {
        let cores = self.cores.iter();
        cores.filter_map(move |core| Some((core, core.holds.get(usize::from(volume))?)))
    }

    fn sum(&self, volume: u16, of: impl Fn(&HoldStats) -> u64) -> u64 {
        self.holds(volume).map(|(_, stats)| of(stats)).sum()
    }

    /// Of the core where it is oldest: how long, and what is known there.
    fn oldest(
        &self,
        volume: u16,
        since: impl Fn(&HoldStats) -> Option<u64>,
    ) -> Option<(u64, &CoreReport, &HoldStats)> {
        let ages = self.holds(volume).filter_map(|(core, stats)| {
            Some((core.now_ns.saturating_sub(since(stats)?), core, stats))
        });
        ages.max_by_key(|(age_ns, ..)| *age_ns)
    }

    /// I/Os that wait now.
    pub(super) fn waiting(&self, volume: u16) -> Value {
        let held = self.oldest(volume, |stats| stats.held_since_ns);
        let reason = held.and_then(|(_, core, stats)| Some(words(stats.reason?, core.now_ns)));
        let (reason, until) = reason.unzip();
        let at_paths = self.at_queue_servers(volume);
        // Whatever is older is shown with its reason.
        let shown = match (held, &at_paths) {
            (held, Some(at)) if held.is_none_or(|(age_ns, ..)| age_ns < at.age_ns) => {
                (Some(at.age_ns), Some("queue-server"), Some(at.until_in_ns))
            }
            (held, _) => (held.map(|(age_ns, ..)| age_ns), reason, until.flatten()),
        };
        let at_paths = at_paths.map_or(0, |it| it.changes);
        let queued = self.oldest(volume, |stats| stats.queued_since_ns);
        let unclean_stop = self.unclean_stop(volume);
        json!({
            "held": at_paths + self.sum(volume, |stats| stats.held.into()),
            "held_age_ns": shown.0,
            "held_reason": shown.1,
            "held_until_in_ns": shown.2,
            "unclean_stop": unclean_stop,
            "behind": self.sum(volume, |stats| stats.behind.into()),
            "queued": self.sum(volume, |stats| stats.queued.into()),
            "queued_age_ns": queued.map(|(age_ns, ..)| age_ns),
            "delayed": self.sum(volume, |stats| stats.delayed.into()),
            "flushes": self.sum(volume, |stats| stats.flushes.into()),
        })
    }

    /// Writes that wait because a queue server which was given up may yet execute them. The engine
    /// sees only that they are in flight.
    fn at_queue_servers(&self, volume: u16) -> Option<AtServers> {
        let paths = (0..).zip(&self.state.volumes[volume].of.paths);
        let each = paths.filter_map(|(path, keys)| {
            let doubt = self.service.ends.queue(&keys.uri)?.doubt()?;
            Some(AtServers {
                changes: doubt.changes.into(),
                until_in_ns: doubt.until_ns.saturating_sub(runtime::now_ns()),
                age_ns: self.age_ns(volume, path, |it| it.oldest_ns[1]).unwrap_or(0),
            })
        });
        each.reduce(|sum, it| AtServers {
            changes: sum.changes + it.changes,
            until_in_ns: sum.until_in_ns.max(it.until_in_ns),
            age_ns: sum.age_ns.max(it.age_ns),
        })
    }

    /// How old something of a path is, on the core where it is oldest.
    pub(super) fn age_ns(
        &self,
        volume: u16,
        path: usize,
        since: impl Fn(&PathReport) -> Option<u64>,
    ) -> Option<u64> {
        let place = self.place(volume, path)?;
        let ages = self.cores.iter().filter_map(|core| {
            let report = core.volumes.get(usize::from(volume))?.get(place)?;
            Some(core.now_ns.saturating_sub(since(report)?))
        });
        ages.max()
    }

    /// Writes that wait because the engine before this one did not stop cleanly; none while that is
    /// over. They are among the held ones.
    fn unclean_stop(&self, volume: u16) -> Option<Value> {
        let gates = self.holds(volume);
        let gates = gates.filter_map(|(core, stats)| Some((core.now_ns, stats.gate_until_ns?)));
        let (now_ns, until_ns) = gates.max_by_key(|(_, until_ns)| *until_ns)?;
        let oldest = self.oldest(volume, |stats| stats.gated_since_ns);
        Some(json!({
            "held": self.sum(volume, |stats| stats.gated.into()),
            "held_age_ns": oldest.map(|(age_ns, ..)| age_ns),
            "until_in_ns": left(now_ns, until_ns),
        }))
    }

    /// Whether it, or a leg of it, is used without a mark for the next engine.
    pub(super) fn is_unmarked(&self, volume: u16) -> bool {
        let of = &self.state.volumes[volume];
        let mut all = self.state.volumes.iter();
        let legs = |it: &Running| it.of.leg_of.as_ref() == Some(&of.of.name);
        of.unmarked.is_some() || all.any(|(_, it)| legs(it) && it.unmarked.is_some())
    }

    /// Risk of its configuration.
    pub(super) fn risk(&self, volume: u16) -> Option<&'static str> {
        if self.is_unmarked(volume) {
            return Some(notes::UNMARKED);
        }
        notes::risk(&self.state.configured, &self.state.volumes[volume].of)
    }

    /// Counters of failover so far.
    pub(super) fn failover(&self, volume: u16) -> Value {
        let of = &self.state.volumes[volume].of;
        let longest = self.holds(volume).map(|(_, stats)| stats.held_ns_max).max();
        let failed = self.holds(volume).filter_map(|(core, stats)| {
            let (at_ns, path) = stats.flush_failed?;
            Some((core.now_ns.saturating_sub(at_ns), path))
        });
        let failed = failed.min_by_key(|(ago_ns, _)| *ago_ns);
        let failed = failed.map(|(ago_ns, path)| {
            // Numbers of paths are not places in the list, once some have left.
            let path = self.state.volumes[volume].entries().get(path);
            json!({
                "ago_ns": ago_ns,
                "path": path.map(|path| path.config().uri.to_string()),
                "why": "lost with acknowledged writes that were never flushed",
            })
        });
        let immediate = of.recovery().write_failover == WriteFailover::Immediate;
        json!({
            "write_failover": if immediate { "immediate" } else { "fenced" },
            "risk": self.risk(volume),
            "moved_total": self.sum(volume, |stats| stats.moved_total),
            "held_total": self.sum(volume, |stats| stats.held_total),
            "held_proved_total": self.sum(volume, |stats| stats.proved_total),
            "held_bounded_total": self.sum(volume, |stats| stats.bounded_total),
            "held_unclean_stop_total": self.sum(volume, |stats| stats.gated_total),
            "held_ns_max": longest,
            "flushes_failed": self.sum(volume, |stats| stats.flushes_failed),
            "flush_failed": failed,
        })
    }
}

/// Writes that queue servers may yet execute.
struct AtServers {
    changes: u64,
    /// The last one is free then at the latest.
    until_in_ns: u64,
    age_ns: u64,
}

/// The word of a reason, and in how many ns it ends at the latest, if that is known.
fn words(reason: HoldReason, now_ns: u64) -> (&'static str, Option<u64>) {
    let left = |until_ns| left(now_ns, until_ns);
    match reason {
        HoldReason::Resetting(until_ns) => ("resetting", left(until_ns)),
        HoldReason::Closing => ("closing", None),
        HoldReason::Until(until_ns) => ("bound", left(until_ns)),
        HoldReason::Quiescing(until_ns) => ("quiescing", left(until_ns)),
        HoldReason::Unbounded => ("unbounded", None),
        HoldReason::UncleanStop(until_ns) => ("unclean-stop", left(until_ns)),
    }
}

/// How long it is until then; `None`: for ever.
fn left(now_ns: u64, until_ns: u64) -> Option<u64> {
    (until_ns < u64::MAX).then(|| until_ns.saturating_sub(now_ns))
}
