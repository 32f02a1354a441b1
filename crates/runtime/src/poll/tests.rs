//! Reactors in virtual time.
use super::learnt::{Allowance, Gaps, WakeupCost};
use super::*;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;
/// Wake-up, work on a message, and its way to the other end.
const LATENCY_NS: u64 = 20 * US;
const WORK_NS: u64 = 4 * US;
const WIRE_NS: u64 = 3 * US;

/// One end of a connection.
struct End {
    poller: Poller,
    tally: Arc<PollTally>,
    /// When it began to wait.
    waits_ns: u64,
}

impl End {
    fn new(permille: u16) -> Self {
        let tally = Arc::new(PollTally::default());
        let poller = Poller::new(permille, 0, Arc::clone(&tally));
        Self {
            poller,
            tally,
            waits_ns: 0,
        }
    }

    /// It waits, and something happens at `at_ns`; when it sees that.
    fn sees(&mut self, at_ns: u64, is_timer: bool) -> u64 {
        let (from_ns, timer_ns) = (self.waits_ns, is_timer.then_some(at_ns));
        let poll_ns = self.poller.poll_ns(from_ns, timer_ns);
        self.poller.begin_wait(from_ns);
        let end_ns = from_ns + poll_ns;
        let is_found = at_ns <= end_ns;
        if poll_ns > 0 {
            let until_ns = end_ns.min(at_ns.max(from_ns));
            self.poller.handle_polled(from_ns, until_ns, is_found);
        }
        let mut seen_ns = at_ns.max(from_ns);
        if !is_found {
            seen_ns = at_ns + LATENCY_NS;
            self.poller.handle_slept(end_ns, timer_ns, seen_ns);
        }
        self.poller.handle_arrival(seen_ns);
        self.waits_ns = seen_ns;
        seen_ns
    }

    /// It works, and sends; when that arrives.
    fn sends(&mut self, seen_ns: u64) -> u64 {
        self.poller.handle_sent();
        self.waits_ns = seen_ns + WORK_NS;
        self.waits_ns + WIRE_NS
    }

    fn stats(&self) -> PollStats {
        self.tally.read()
    }
}

/// A host and a target exchange requests until `end_ns`, one at a time, each begun at a multiple of
/// `period_ns`; how many.
fn exchange([host, target]: &mut [End; 2], period_ns: u64, end_ns: u64) -> u64 {
    let mut count = 0;
    let mut at_ns = host.waits_ns;
    while at_ns < end_ns {
        count += 1;
        let asked_ns = host.sends(at_ns);
        let seen_ns = target.sees(asked_ns, false);
        let answered_ns = target.sends(seen_ns);
        at_ns = host.sees(answered_ns, false);
        if period_ns > 0 {
            at_ns = host.sees(at_ns.next_multiple_of(period_ns), true);
        }
    }
    count
}

fn ends() -> [End; 2] {
    [End::new(1000), End::new(1000)]
}

#[test]
fn one_request_after_the_other_is_polled_by_both() {
    let mut both = ends();
    let begun = exchange(&mut both, 0, 100 * MS);
    let slept = both.each_ref().map(|end| end.stats().slept);
    let more = exchange(&mut both, 0, S);
    // 14 µs each where nobody sleeps, 54 where both do.
    assert!(begun > 5_000 && more > 60_000, "{begun} {more}");
    assert_eq!(slept, both.each_ref().map(|end| end.stats().slept));
}

#[test]
fn paced_requests_find_both_asleep() {
    for period_ns in [MS, 100 * US] {
        let mut both = ends();
        exchange(&mut both, period_ns, 10 * S);
        for end in &both {
            let stats = end.stats();
            let share = stats.polled_ns as f64 / 10e9;
            assert!(share < 0.01, "{period_ns}: {stats:?}");
        }
    }
}

#[test]
fn load_after_a_pause_is_polled_again() {
    let mut both = ends();
    exchange(&mut both, 0, 100 * MS);
    exchange(&mut both, 10 * MS, 5 * S);
    let [host, _] = &both;
    let before = host.stats();
    exchange(&mut both, 0, 7 * S);
    let more = exchange(&mut both, 0, 8 * S);
    assert!(more > 60_000, "{more}");
    assert!(both[0].stats().found > before.found + 60_000);
}

#[test]
fn an_idle_reactor_does_not_poll() {
    let mut end = End::new(1000);
    // Keep-alives: a timer, a command, its answer.
    for turn in 1..=100 {
        let seen_ns = end.sees(turn * 2 * S, true);
        let at_ns = end.sends(seen_ns);
        end.sees(at_ns + 30 * US, false);
    }
    let stats = end.stats();
    assert_eq!((stats.slept, stats.polled), (200, 0));
}

#[test]
fn polling_keeps_within_its_share() {
    let mut both = [End::new(100), End::new(100)];
    exchange(&mut both, 0, 10 * S);
    for end in both {
        let polled_ns = end.stats().polled_ns;
        assert!((900 * MS..=1010 * MS).contains(&polled_ns), "{polled_ns}");
    }
}

#[test]
fn a_near_timer_is_polled_for_and_a_far_one_is_not() {
    let mut end = End::new(1000);
    assert_eq!(end.poller.poll_ns(S, Some(S + 24 * US)), 24 * US);
    assert_eq!(end.poller.poll_ns(S, Some(S + 25 * US)), 0);
    assert_eq!(end.poller.poll_ns(S, Some(S - 1)), 0);
    assert_eq!(end.poller.poll_ns(S, None), 0);
}

#[test]
fn a_wait_goes_on_where_only_a_send_ended() {
    let mut both = ends();
    exchange(&mut both, 0, 100 * MS);
    let [host, _] = &mut both;
    host.poller.handle_sent();
    let now_ns = host.waits_ns;
    let whole_ns = host.poller.poll_ns(now_ns, None);
    host.poller.begin_wait(now_ns);
    let later_ns = now_ns + 5 * US;
    assert_eq!(host.poller.poll_ns(later_ns, None), whole_ns - 5 * US);
    host.poller.begin_wait(later_ns);
    assert_eq!(host.poller.poll_ns(now_ns + whole_ns, None), 0);
}

/// Beside a neighbour that takes half of the CPU.
#[test]
fn a_neighbour_ends_polling_for_ever_longer() {
    let mut both = ends();
    exchange(&mut both, 0, 100 * MS);
    let [host, _] = &mut both;
    let (mut now_ns, mut waited_ns) = (host.waits_ns, 7 * S);
    let mut pauses = Vec::new();
    for _ in 0..12 {
        assert!(host.poller.is_check_due(now_ns));
        // Asleep it had to wait for nobody.
        assert!(!host.poller.handle_run_wait(waited_ns, now_ns));
        (now_ns, waited_ns) = (now_ns + CHECK_NS, waited_ns + CHECK_NS / 2);
        assert!(host.poller.handle_run_wait(waited_ns, now_ns));
        let begun_ns = now_ns;
        while host.poller.poll_ns(now_ns, Some(now_ns + US)) == 0 {
            now_ns += 10 * MS;
        }
        pauses.push((now_ns - begun_ns) / MS);
    }
    let expected = [100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000];
    assert_eq!(pauses[..9], expected);
    assert_eq!(host.stats().yields, 12);
    // Long after the last one it is another one.
    now_ns += 100 * S;
    host.poller.handle_run_wait(waited_ns, now_ns);
    now_ns += CHECK_NS;
    let waited_ns = waited_ns + CHECK_NS / CONTENDED;
    assert!(host.poller.handle_run_wait(waited_ns, now_ns));
    now_ns += 100 * MS;
    assert_eq!(host.poller.poll_ns(now_ns, Some(now_ns + US)), US);
}

#[test]
fn a_kernel_thread_is_no_neighbour() {
    let mut end = End::new(1000);
    let (mut now_ns, mut waited_ns) = (S, 5 * S);
    for _ in 0..1000 {
        assert!(end.poller.is_check_due(now_ns));
        assert!(!end.poller.handle_run_wait(waited_ns, now_ns));
        assert!(!end.poller.is_check_due(now_ns + CHECK_NS - 1));
        now_ns += CHECK_NS;
        waited_ns += CHECK_NS / CONTENDED - 1;
    }
}

#[test]
fn the_cost_of_a_wake_up_is_learnt_within_bounds() {
    let mut cost = WakeupCost::default();
    for (late_ns, learnt_us) in [(9 * US, 9), (S, 100), (0, 2), (50 * US, 50)] {
        (0..100).for_each(|_| cost.handle_late(MS, late_ns));
        assert!(cost.latency_ns().abs_diff(learnt_us * US) < US / 10);
    }
    let before = cost.ns();
    cost.handle_late(S, 90 * US);
    assert_eq!(cost.ns(), before, "the CPU was in a deeper state");
    let mut end = End::new(1000);
    end.poller.handle_measured(&mut [S, 7 * US, 3 * US]);
    assert_eq!(end.stats().cost_ns, 12 * US);
    end.poller.handle_measured(&mut []);
    assert_eq!(end.stats().cost_ns, 12 * US);
}

/// The limit is the best of all, by trying each.
#[test]
fn the_limit_would_have_cost_the_least() {
    let ends_us = [1.0, 1.4, 2.0, 2.8, 4.0, 5.7, 8.0, 11.3, 16.0, 22.6];
    let mut random = 1_u64;
    let mut next = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        random >> 33
    };
    for _ in 0..2000 {
        let (mut gaps, mut noted) = (Gaps::default(), Vec::new());
        // Fewer than at which the past is halved.
        for _ in 0..next() % 32 {
            let gap = match next() % 3 {
                0 => 1e3,
                _ => ends_us[(next() % 10) as usize],
            };
            noted.push(gap);
            gaps.add((gap * 1e3) as u64, 25 * US);
        }
        let cost = |limit: f64| {
            let of = |gap: &f64| if *gap <= limit { *gap } else { limit + 25.0 };
            noted.iter().map(of).sum::<f64>()
        };
        let chosen = cost(gaps.limit_ns() as f64 / 1e3);
        let best = ends_us
            .iter()
            .map(|end| cost(*end))
            .fold(cost(0.0), f64::min);
        assert!(
            (chosen - best).abs() < 1e-6,
            "{noted:?}: {chosen} for {best}"
        );
    }
}

#[test]
fn the_past_is_forgotten() {
    let mut gaps = Gaps::default();
    (0..1000).for_each(|_| gaps.add(S, 25 * US));
    assert!(gaps.limit_ns() == 0 && !gaps.are_mostly_below(100 * US));
    (0..24).for_each(|_| gaps.add(5 * US, 25 * US));
    assert!(gaps.limit_ns() == 5_700 && gaps.are_mostly_below(100 * US));
}

#[test]
fn an_allowance_fills_up_to_its_window() {
    let mut allowance = Allowance::new(500, 0);
    assert_eq!(allowance.left_ns(0), 50 * MS);
    allowance.spend(40 * MS);
    assert_eq!(allowance.left_ns(10 * MS), 15 * MS);
    assert_eq!(allowance.left_ns(10 * S), 50 * MS);
    allowance.spend(S);
    assert_eq!(allowance.left_ns(10 * S), 0);
}
