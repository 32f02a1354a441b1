//! How long a lost controller may still execute what it had (T9).
use canary::Bug;

/// How long a controller whose connections were all closed may still execute what it had: until its
/// keep-alive time-out has passed twice (three times where traffic counts as keep-alive), and then
/// the time it takes to quiesce. `quiesce_ns` stands in for a time that it doesn't report. `None`:
/// without a keep-alive time-out nothing bounds it (T9).
pub fn bound_ns(kato_ns: u64, traffic_based: bool, cqt_ns: u64, quiesce_ns: u64) -> Option<u64> {
    let times = if traffic_based { 3 } else { 2 };
    let times = times - u64::from(canary::has(Bug::ShortBound));
    let reported = cqt_ns > 0 && !canary::has(Bug::ForgottenCqt);
    let cqt_ns = if reported { cqt_ns } else { quiesce_ns };
    (kato_ns > 0).then(|| kato_ns.saturating_mul(times).saturating_add(cqt_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t09_the_bound_counts_the_keep_alive_and_the_time_to_quiesce() {
        assert_eq!(bound_ns(5, false, 3, 100), Some(13));
        assert_eq!(bound_ns(5, true, 3, 100), Some(18));
        assert_eq!(bound_ns(5, false, 0, 100), Some(110), "not reported");
        assert_eq!(bound_ns(0, false, 3, 100), None, "only proof releases");
        assert_eq!(bound_ns(u64::MAX, true, 1, 1), Some(u64::MAX));
    }
}
