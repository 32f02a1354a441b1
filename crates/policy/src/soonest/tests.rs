//! `soonest` over paths whose behaviour is known: what it learns, and what it does with it.
use super::model::Kind;
use super::others::Others;
use super::*;
use crate::tests::{UP, request};
use crate::types::{Forecast, SHUNNED_NS};
use crate::{PathIndex, Policy, Selector};
use std::collections::VecDeque;
use std::vec::Vec;

const US: u64 = 1000;
const MS: u64 = 1_000_000;

/// A path with one queue and some servers, and a way to it.
#[derive(Clone)]
struct Way {
    far_ns: u64,
    service_ns: u64,
    free_ns: Vec<u64>,
}

impl Way {
    fn new(far_ns: u64, servers: usize, service_ns: u64) -> Self {
        let free_ns = std::vec![0; servers];
        Self {
            far_ns,
            service_ns,
            free_ns,
        }
    }

    fn end_ns(&mut self, now_ns: u64) -> u64 {
        let first = self.free_ns.iter_mut().min().unwrap();
        *first = (*first).max(now_ns + self.far_ns / 2) + self.service_ns;
        *first + self.far_ns / 2
    }
}

struct Io {
    end_ns: u64,
    begun_ns: u64,
    path: PathIndex,
    ticket: Ticket,
}

/// Keeps `depth` reads in flight over the ways until `until_ns`; I/Os per path.
struct Load {
    selector: Selector,
    ways: Vec<Way>,
    now_ns: u64,
    flying: VecDeque<Io>,
    taken: Vec<u64>,
    /// Of those that ended.
    latencies_ns: Vec<u64>,
    views: Vec<PathView>,
}

impl Load {
    fn new(ways: Vec<Way>) -> Self {
        Self {
            selector: Selector::new(ways.len(), Policy::Soonest),
            now_ns: 0,
            flying: VecDeque::new(),
            taken: std::vec![0; ways.len()],
            latencies_ns: Vec::new(),
            views: std::vec![UP; ways.len()],
            ways,
        }
    }

    fn issue(&mut self) {
        let wanted = Request {
            now_ns: self.now_ns,
            ..request(Group::Read, 4096)
        };
        let path = self.selector.select(&wanted, &self.views).unwrap();
        let index = usize::from(path.0);
        self.taken[index] += 1;
        let io = Io {
            end_ns: self.ways[index].end_ns(self.now_ns),
            begun_ns: self.now_ns,
            path,
            ticket: self.selector.ticket(),
        };
        let at = self
            .flying
            .partition_point(|other| other.end_ns <= io.end_ns);
        self.flying.insert(at, io);
    }

    fn run(&mut self, depth: usize, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        self.taken.fill(0);
        self.latencies_ns.clear();
        while self.now_ns < until_ns {
            while self.flying.len() < depth {
                self.issue();
            }
            let io = self.flying.pop_front().unwrap();
            self.now_ns = self.now_ns.max(io.end_ns);
            self.latencies_ns.push(self.now_ns - io.begun_ns);
            let _ = self.selector.complete(&Completion {
                path: io.path,
                group: Group::Read,
                latency_ns: self.now_ns - io.begun_ns,
                ended: Ended::Good,
                now_ns: self.now_ns,
                ticket: io.ticket,
                gap_ns: 0,
            });
        }
    }

    fn share(&self, path: usize) -> f64 {
        self.taken[path] as f64 / self.taken.iter().sum::<u64>() as f64
    }

    /// 99 of a hundred took no longer.
    fn p99_ns(&mut self) -> u64 {
        self.latencies_ns.sort_unstable();
        self.latencies_ns[self.latencies_ns.len() / 100 * 99]
    }

    fn forecast(&self, path: u8) -> Forecast {
        let wanted = Request {
            now_ns: self.now_ns,
            ..request(Group::Read, 4096)
        };
        let path = PathIndex(path);
        self.selector.forecast(&wanted, path, &UP).unwrap()
    }
}

#[test]
fn lightly_loaded_the_near_path_takes_nearly_all() {
    let mut load = Load::new([200, 100].map(|us| Way::new(us * US, 8, 80 * US)).to_vec());
    load.run(4, 500 * MS);
    load.run(4, 500 * MS);
    assert!(load.share(1) > 0.99, "{:?}", load.taken);
    assert!(
        load.forecast(1).base_ns.abs_diff(180 * US) < 4 * US,
        "{:?}",
        load.forecast(1)
    );
}

#[test]
fn equal_paths_share_equally() {
    let mut load = Load::new([100, 100].map(|us| Way::new(us * US, 8, 80 * US)).to_vec());
    load.run(64, 500 * MS);
    assert!((0.48..0.52).contains(&load.share(0)), "{:?}", load.taken);
}

/// Equal latencies would keep nearly everything on the near path, to the good of nobody.
#[test]
fn a_full_near_path_spills_to_a_far_one_before_it_is_as_slow() {
    let mut load = Load::new(
        [100, 30_000]
            .map(|us| Way::new(us * US, 8, 200 * US))
            .to_vec(),
    );
    load.run(1024, 2000 * MS);
    load.run(1024, 2000 * MS);
    let (near, far) = (load.taken[0] as f64 / 2.0, load.taken[1] as f64 / 2.0);
    // The near one can do 40 000 a second; the far one with what is left in flight as much again
    // at most, with 1000 in flight 33 000.
    assert!(near > 39_000.0 && far > 28_000.0, "{near} {far}");
}

#[test]
fn the_wait_is_learnt() {
    let mut load = Load::new(std::vec![Way::new(100 * US, 1, 100 * US); 2]);
    load.run(16, 500 * MS);
    // 8 on each: the next one waits for 8 of 100 µs, less what the way takes.
    let forecast = load.forecast(0);
    let time = forecast.time_ns() - forecast.tail_ns;
    assert!((700 * US..1_200 * US).contains(&time), "{forecast:?}");
}

/// T37: the age of what is in flight bounds the latency from below.
#[test]
fn t37_a_silent_path_sits_out_and_comes_back() {
    let mut load = Load::new(std::vec![Way::new(100 * US, 8, 100 * US); 2]);
    load.run(64, 200 * MS);
    load.ways[0].free_ns.fill(load.now_ns + 300 * MS);
    load.run(64, 10 * MS);
    load.run(64, 250 * MS);
    assert!(
        load.taken[0] == 0 && load.taken[1] > 19_000,
        "{:?}",
        load.taken
    );
    assert!(load.forecast(0).silent);
    load.run(64, 200 * MS);
    load.run(64, 200 * MS);
    assert!(load.share(0) > 0.4, "{:?}", load.taken);
}

/// T38, T36: a path nobody uses is looked at again, and that costs less than 1 %.
#[test]
fn t38_a_path_that_got_better_is_found() {
    let mut load = Load::new(
        [10_000, 100]
            .map(|us| Way::new(us * US, 8, 100 * US))
            .to_vec(),
    );
    load.run(1, 2000 * MS);
    load.run(1, 2000 * MS);
    let lost_ns = load.taken[0] * 10_000 * US;
    assert!(load.taken[0] > 0 && lost_ns < 32 * MS, "{:?}", load.taken);
    load.ways[0].far_ns = 20 * US;
    // 10 ms of budget for each look: a second and more of reads of 200 µs.
    load.run(1, 8000 * MS);
    load.run(1, 500 * MS);
    assert!(load.share(0) > 0.95, "{:?}", load.taken);
}

/// Where everything is full a price moves only who waits.
#[test]
fn full_paths_keep_their_waits_even_and_room_is_seen_again() {
    let ways = [50, 200].map(|us| Way::new(100 * US, 1, us * US));
    let mut load = Load::new(ways.to_vec());
    load.run(128, 500 * MS);
    load.run(128, 500 * MS);
    let waits = [0, 1].map(|path| load.forecast(path).wait_ns / US);
    assert!(
        waits[0].abs_diff(waits[1]) < 600 && waits[0] > 4_000,
        "{waits:?}"
    );
    assert!(load.selector.soonest.crowd.is_dense);
    load.run(1, 50 * MS);
    load.run(1, 200 * MS);
    assert!(load.share(0) > 0.95, "{:?}", load.taken);
    assert!(!load.selector.soonest.crowd.is_dense);
}

/// A disk beside flash: what it would carry is a sixty-fourth, and each read there takes twice as
/// long as the others.
#[test]
fn t36_a_slow_path_that_adds_next_to_nothing_adds_no_tail() {
    let ways = [Way::new(20 * US, 1, 4 * MS), Way::new(20 * US, 4, 250 * US)];
    let mut alone = Load::new(ways[1..].to_vec());
    alone.run(32, 4_000 * MS);
    let mut load = Load::new(ways.to_vec());
    load.run(32, 500 * MS);
    load.run(32, 4_000 * MS);
    let (alone_ns, both_ns) = (alone.p99_ns(), load.p99_ns());
    assert!(
        both_ns <= alone_ns / 10 * 11,
        "{both_ns} {alone_ns} {:?}",
        load.taken
    );
    assert!(
        load.taken[1] * 100 >= alone.taken[0] * 99,
        "{:?}",
        load.taken
    );
    // Where everybody waits longer than a read takes there, it has its share.
    load.run(128, 500 * MS);
    load.run(128, 4_000 * MS);
    assert!(load.share(0) > 0.013, "{:?}", load.taken);
    alone.run(128, 4_000 * MS);
    let (alone_ns, both_ns) = (alone.p99_ns(), load.p99_ns());
    assert!(both_ns <= alone_ns / 10 * 11, "{both_ns} {alone_ns}");
}

/// Many slow paths that carry a quarter together are worth their time.
#[test]
fn many_slow_paths_are_used_though_each_is_small() {
    let mut ways = std::vec![Way::new(20 * US, 1, 4 * MS); 16];
    ways.push(Way::new(20 * US, 4, 250 * US));
    let mut load = Load::new(ways);
    load.run(64, 500 * MS);
    load.run(64, 4_000 * MS);
    assert!(load.share(16) < 0.85, "{:?}", load.taken);
}

/// A path that is always found as it was believed to be is looked at less and less.
#[test]
fn looks_at_a_path_that_stays_as_it_is_become_rare() {
    let ways = [1_000, 100].map(|us| Way::new(us * US, 64, 100 * US));
    let mut load = Load::new(ways.to_vec());
    load.run(8, 2_000 * MS);
    load.run(8, 2_000 * MS);
    assert!((2..=6).contains(&load.taken[0]), "{:?}", load.taken);
}

/// Now and then an I/O is late with nothing before it.
#[test]
fn late_ios_that_come_alone_are_not_taken_for_a_queue() {
    let mut model = Model::NEW;
    let kind = Kind::of(&request(Group::Read, 4096));
    let mut begun = VecDeque::new();
    for number in 0..4_000_u64 {
        let now_ns = number * 20 * US;
        begun.push_back(model.begin(kind, begun.len() as u32, 0, now_ns));
        if begun.len() > 5 {
            let ticket = begun.pop_front().unwrap();
            model.end(&ticket, begun.len() as u32, now_ns);
            let late = number % 25 == 0;
            model.learn(&ticket, if late { 600 } else { 250 } * US, 0);
        }
    }
    let wait = model.forecast(kind, 8, 3, 0).wait_ns;
    assert!(wait < 100 * US, "{wait}");
}

/// Never empty, it would be thought slow instead of far, and be left with next to nothing.
#[test]
fn a_loaded_path_that_moves_away_is_kept_full_and_is_known_when_it_is_back() {
    let mut load = Load::new(std::vec![Way::new(100 * US, 8, 200 * US); 2]);
    load.run(128, 500 * MS);
    let before = load.forecast(0).base_ns;
    load.ways[0].far_ns += 10_000 * US;
    load.run(128, 100 * MS);
    load.run(128, 100 * MS);
    // 110 of 128 can be on the way there: 10 700 a second beside 40 000.
    assert!(load.taken[0] > 800, "{:?}", load.taken);
    assert!(load.taken[1] > 3_900, "{:?}", load.taken);
    load.ways[0].far_ns -= 10_000 * US;
    load.run(128, 50 * MS);
    load.run(128, 50 * MS);
    assert!((0.45..0.55).contains(&load.share(0)), "{:?}", load.taken);
    let after = load.forecast(0).base_ns;
    assert!(after < 2 * before, "{before} {after}");
}

#[test]
fn a_loaded_path_that_serves_less_is_not_taken_to_be_farther() {
    let mut load = Load::new(std::vec![Way::new(100 * US, 8, 200 * US); 2]);
    load.run(128, 500 * MS);
    load.ways[0].service_ns *= 6;
    load.run(128, 200 * MS);
    let forecast = load.forecast(0);
    assert!(forecast.base_ns < 2 * MS, "{forecast:?}");
    assert!((0.10..0.20).contains(&load.share(0)), "{:?}", load.taken);
}

/// T43: an error that comes fast must not look like a fast path.
#[test]
fn t43_a_failed_io_teaches_nothing_and_its_path_stands_back() {
    let mut load = Load::new(std::vec![Way::new(100 * US, 8, 100 * US); 2]);
    load.run(8, 100 * MS);
    let before = load.forecast(0);
    let wanted = Request {
        now_ns: load.now_ns,
        ..request(Group::Read, 4096)
    };
    let mut placed = Vec::new();
    while !placed.contains(&PathIndex(0)) {
        let path = load.selector.select(&wanted, &load.views).unwrap();
        placed.push(path);
        let _ = load.selector.complete(&Completion {
            path,
            group: Group::Read,
            latency_ns: US,
            ended: if path.0 == 0 {
                Ended::Failed
            } else {
                Ended::Good
            },
            now_ns: load.now_ns,
            ticket: Ticket::default(),
            gap_ns: 0,
        });
        if path.0 == 1 {
            load.flying.clear();
            break;
        }
    }
    let mut again = load.selector.clone();
    let path = again.select(&wanted, &load.views).unwrap();
    let failed = Completion {
        path,
        group: Group::Read,
        latency_ns: US,
        ended: Ended::Failed,
        now_ns: load.now_ns,
        ticket: again.ticket(),
        gap_ns: 0,
    };
    let _ = again.complete(&failed);
    let after = again.forecast(&wanted, path, &UP).unwrap();
    assert!(after.cost_ns > SHUNNED_NS && after.base_ns == load.forecast(path.0).base_ns);
    assert_ne!(
        again.select(&wanted, &load.views),
        Some(path),
        "the other one"
    );
    assert!(before.cost_ns < SHUNNED_NS);
}

/// T43: what ends well afterwards does not bring a path back that has failed an I/O.
#[test]
fn t43_a_path_that_failed_stands_back_whatever_else_ends_there() {
    for others in 1..3 {
        let mut selector = Selector::new(2, Policy::Soonest);
        let wanted = request(Group::Read, 4096);
        let place = |selector: &mut Selector| {
            let path = selector.select(&wanted, &[UP; 2]).unwrap();
            (path, selector.ticket())
        };
        let end = |selector: &mut Selector, (path, ticket), ended| {
            let _ = selector.complete(&Completion {
                path,
                group: Group::Read,
                latency_ns: 100 * US,
                ended,
                now_ns: 0,
                ticket,
                gap_ns: 0,
            });
        };
        let first = [place(&mut selector), place(&mut selector)];
        for it in first {
            end(&mut selector, it, Ended::Good);
        }
        let mut placed: Vec<_> = (0..8).map(|_| place(&mut selector)).collect();
        placed.retain(|(path, _)| path.0 == 0);
        placed.truncate(others + 1);
        assert_eq!(placed.len(), others + 1);
        end(&mut selector, placed.remove(0), Ended::Failed);
        for it in placed {
            end(&mut selector, it, Ended::Good);
            assert_eq!(place(&mut selector).0, PathIndex(1));
        }
    }
}

/// An I/O that was taken back, as nobody waited for it, is as if it had never been placed.
#[test]
fn t41_t43_what_is_dropped_teaches_nothing_and_no_path_stands_back() {
    let wanted = request(Group::Read, 4096);
    for latency_ns in [1, 10 * US, 3_000 * MS] {
        let mut load = Load::new([200, 100].map(|us| Way::new(us * US, 8, 80 * US)).to_vec());
        load.run(1, 500 * MS);
        let mut selector = load.selector.clone();
        let wanted = Request {
            now_ns: load.now_ns,
            ..wanted
        };
        let forecasts = |selector: &Selector| {
            let of = |path| selector.forecast(&wanted, PathIndex(path), &UP).unwrap();
            [0, 1].map(of)
        };
        let before = forecasts(&selector);
        let path = selector.select(&wanted, &load.views).unwrap();
        let _ = selector.complete(&Completion {
            path,
            group: Group::Read,
            latency_ns,
            ended: Ended::Dropped,
            now_ns: load.now_ns,
            ticket: selector.ticket(),
            gap_ns: 0,
        });
        assert_eq!(forecasts(&selector), before);
        assert_eq!(selector.in_flight(path), 0);
    }
}

/// T43: one I/O at a time; path 0 takes 100 µs, path 1 fails in 10, after so many good ones.
/// How many of 1000 go to path 1.
fn placed_where_all_fail(good: usize) -> usize {
    let mut selector = Selector::new(2, Policy::Soonest);
    let (mut now_ns, mut left, mut placed) = (0, good, 0);
    for number in 0..1000 + good {
        let wanted = Request {
            now_ns,
            ..request(Group::Read, 4096)
        };
        let path = selector.select(&wanted, &[UP; 2]).unwrap();
        let fails = path.0 == 1 && left == 0;
        let latency_ns = if path.0 == 1 { 10 * US } else { 100 * US };
        left -= usize::from(path.0 == 1 && left > 0);
        placed += usize::from(path.0 == 1 && number >= good);
        now_ns += latency_ns;
        let _ = selector.complete(&Completion {
            path,
            group: Group::Read,
            latency_ns,
            ended: if fails { Ended::Failed } else { Ended::Good },
            now_ns,
            ticket: selector.ticket(),
            gap_ns: 0,
        });
    }
    placed
}

#[test]
fn t43_a_path_that_fails_all_draws_nothing_known_or_not() {
    for good in [0, 1, 3] {
        let placed = placed_where_all_fail(good);
        assert!(placed < 30, "{placed} of 1000 after {good} good ones");
    }
}

/// A doubt that nobody decides ends.
#[test]
fn a_doubt_ends_when_the_load_is_gone() {
    let mut soonest = Soonest::new(1);
    soonest.doubts[0].raise_for_test(MS);
    let wanted = |now_ns| Request {
        now_ns,
        ..request(Group::Read, 4096)
    };
    let none = [0; PATHS_MAX];
    for now_ns in [2 * MS, 1000 * MS] {
        soonest.look_ns = 0;
        let _ = soonest.place(&wanted(now_ns), &[UP; 2], &none);
        assert_eq!(soonest.doubts[0].is_raised(), now_ns < 10 * MS);
    }
}

/// T41: I/Os of another policy, or of an earlier time of this one, are not in the books.
#[test]
fn t41_books_balance_across_switches() {
    let mut load = Load::new(std::vec![Way::new(100 * US, 1, 100 * US); 2]);
    load.run(32, 50 * MS);
    load.selector.set_policy(Policy::QueueDepth);
    load.run(32, US);
    load.selector.set_policy(Policy::Soonest);
    load.run(32, 50 * MS);
    while let Some(io) = load.flying.pop_front() {
        let _ = load.selector.complete(&Completion {
            path: io.path,
            group: Group::Read,
            latency_ns: US,
            ended: Ended::Good,
            now_ns: load.now_ns,
            ticket: io.ticket,
            gap_ns: 0,
        });
    }
    for path in 0..2 {
        assert_eq!(load.selector.in_flight(PathIndex(path)), 0);
        assert_eq!(load.selector.soonest.models[usize::from(path)].load, [0; 4]);
    }
}

/// T40: cores that see each other's counts do not all take the idle path.
#[test]
fn t40_cores_that_see_each_other_do_not_herd() {
    let mut load = Load::new(std::vec![Way::new(100 * US, 1, 100 * US); 3]);
    load.run(24, 100 * MS);
    for path in 0..3 {
        // Nothing of its own in flight, but others have.
        load.views[path].in_flight_elsewhere = [20, 1, 20][path];
    }
    load.run(1, 20 * MS);
    assert!(load.share(1) > 0.95, "{:?}", load.taken);
}

#[test]
fn t39_nearest_known_size_stands_in_for_an_unknown_one() {
    let mut model = Model::NEW;
    let kind = |length| Kind::of(&request(Group::Read, length));
    let ticket = |length| model_ticket(kind(length));
    model.learn(&ticket(65_536), 500 * US, 0);
    model.learn(&ticket(4_096), 100 * US, 0);
    let base = |length| model.base_ns(kind(length)) / US;
    assert_eq!(
        [512, 4_096, 8_192, 65_536, 1 << 20].map(base),
        [100, 100, 100, 500, 500]
    );
    let write = Kind::of(&request(Group::Write, 4_096));
    assert_eq!(model.base_ns(write) / US, 100);
}

fn model_ticket(kind: Kind) -> Ticket {
    let mut model = Model::NEW;
    model.begin(kind, 0, 0, 0)
}

/// T40: counts that are old are no reason to run where everybody runs.
#[test]
fn t40_between_two_counts_the_others_do_as_this_core_does() {
    let mut others = Others::new();
    let mut views = [UP; 2];
    let mut own = [0; crate::limits::PATHS_MAX];
    own[..2].copy_from_slice(&[2, 2]);
    for count in 0..200 {
        views[0].in_flight_elsewhere = 30 + count % 2;
        views[1].in_flight_elsewhere = 30;
        others.see(u64::from(count) * 200 * US, &views, &own);
    }
    // Fresh counts are believed.
    assert_eq!(others.now(0, &views[0], 4), 31);
    own[..2].copy_from_slice(&[4, 0]);
    (200..220).for_each(|count| others.see(count * 200 * US, &views, &own));
    let now = [0, 1].map(|path| others.now(path, &views[path], own[path]));
    assert!((55..67).contains(&now[0]) && now[1] < 6, "{now:?}");
}
