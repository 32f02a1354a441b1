//! Whether a path is on probation, and what its probes said.
use super::{PathReport, Report};
use engine::host::PathState;
use serde_json::{Value, json};

impl Report<'_> {
    /// Of one path: `why` (null: it isn't on probation), for how long, on how many cores, of the
    /// core that put it there first; for how long at least a relapse keeps it there on some core
    /// yet (null: no longer); and totals of all cores. `error_share`: of all I/O that it was given
    /// so far.
    pub(super) fn probation(&self, volume: u16, path: usize) -> Value {
        let place = self.place(volume, path);
        let cores = self.cores.iter().filter_map(|core| {
            let paths = core.volumes.get(usize::from(volume))?;
            Some((core.now_ns, paths.get(place?)?))
        });
        let on = cores.filter_map(|(now_ns, report)| {
            let probation = report.health.probation?;
            let for_ns = now_ns.saturating_sub(probation.since_ns);
            let left_ns = probation.least_until_ns.saturating_sub(now_ns);
            Some((for_ns, probation.why, left_ns))
        });
        let on: Vec<_> = on.collect();
        let first = on.iter().max_by_key(|(for_ns, ..)| *for_ns);
        let left_ns = on.iter().map(|(.., left_ns)| *left_ns).max();
        let sum = |of: fn(&PathReport) -> u64| -> u64 { self.reports(volume, path).map(of).sum() };
        let errors = sum(|report| report.counters.errors);
        let ended = errors + sum(|report| report.counters.ios.iter().sum());
        json!({
            "why": first.map(|(_, why, _)| why.name()),
            "for_ns": first.map(|(for_ns, ..)| for_ns),
            "relapse_left_ns": left_ns.filter(|&left_ns| left_ns > 0),
            "cores": on.len(),
            "times": sum(|report| report.health.tally.times.into()),
            "probes_good": sum(|report| report.health.tally.probes_good),
            "probes_bad": sum(|report| report.health.tally.probes_bad),
            "error_share": errors as f64 / ended.max(1) as f64,
        })
    }

    /// Whether a path is on probation on some core, used or not.
    pub(super) fn is_on_probation(&self, volume: u16, path: usize) -> bool {
        let mut reports = self.reports(volume, path);
        reports.any(|report| report.state == PathState::Probation)
    }
}
