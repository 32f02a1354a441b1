//! Damage in transit, by path.
use super::{PathReport, Report};

/// Damage is part of `check` for so long after it was last noticed, ns.
const SHOWN_NS: u64 = 300_000_000_000;

impl Report<'_> {
    /// Describes the damage on a path in the last five minutes; `None`: there was none.
    pub(super) fn damage(&self, volume: u16, path: usize) -> Option<String> {
        let place = self.place(volume, path)?;
        let ages = self.cores.iter().filter_map(|core| {
            let report = core.volumes.get(usize::from(volume))?.get(place)?;
            let at_ns = report.counters.damaged_ns;
            (at_ns > 0).then(|| core.now_ns.saturating_sub(at_ns))
        });
        let age_ns = ages.min().filter(|&age_ns| age_ns < SHOWN_NS)?;
        let sum = |of: fn(&PathReport) -> u64| -> u64 { self.reports(volume, path).map(of).sum() };
        let counts = [
            sum(|report| report.counters.damaged[0]),
            sum(|report| report.counters.damaged[1]),
        ];
        Some(words(counts, age_ns))
    }

    /// As [`Self::damage`], of all paths of a volume.
    pub(super) fn damages(&self, volume: u16) -> impl Iterator<Item = String> {
        let count = self.state.volumes[volume].of.paths.len();
        (0..count).filter_map(move |path| self.damage(volume, path))
    }
}

/// `counts`: transfers from the target or device, and to it.
fn words(counts: [u64; 2], age_ns: u64) -> String {
    let some = |count: u64, way: &str| (count > 0).then(|| format!("{count} {way}"));
    let ways: Vec<String> = some(counts[0], "received")
        .into_iter()
        .chain(some(counts[1], "sent"))
        .collect();
    format!(
        "transfers were damaged or failed on the way: {}, the last {} s ago; check network, cables \
         and network cards",
        ways.join(", "),
        age_ns / 1_000_000_000
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_named_by_direction() {
        for (counts, part) in [
            ([7, 0], "on the way: 7 received, the last 3 s ago"),
            ([0, 2], "on the way: 2 sent, the last"),
            ([7, 2], "on the way: 7 received, 2 sent, the"),
        ] {
            let text = words(counts, 3_500_000_000);
            assert!(text.contains(part), "{text}");
        }
    }
}
