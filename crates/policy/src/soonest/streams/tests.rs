//! Streams over legs whose jumps are known.
use super::*;
use crate::tests::{UP, request};
use crate::{Group, PathIndex, Policy, Selector, Ticket};
use std::vec::Vec;

const US: u64 = 1000;
const MS: u64 = 1_000_000;
const IO: u32 = 128 << 10;

fn read(address: u64, now_ns: u64) -> Request {
    Request {
        address,
        now_ns,
        ..request(Group::Read, IO)
    }
}

/// One I/O after the other, in the order in which they came: a way there, what an I/O takes, and
/// what it takes longer where it does not go on after the last one.
struct Leg {
    way_ns: u64,
    jump_ns: u64,
    free_ns: u64,
    end: u64,
    jumps: u64,
}

impl Leg {
    fn new(way_ns: u64, jump_ns: u64) -> Self {
        Self {
            way_ns,
            jump_ns,
            free_ns: 0,
            end: 0,
            jumps: 0,
        }
    }

    fn end_ns(&mut self, address: u64, now_ns: u64) -> u64 {
        let far = address != self.end;
        self.jumps += u64::from(far);
        self.end = address + u64::from(IO);
        let begin_ns = self.free_ns.max(now_ns + self.way_ns / 2);
        self.free_ns = begin_ns + 650 * US + if far { self.jump_ns } else { 0 };
        self.free_ns + self.way_ns / 2
    }
}

/// Streams of which each keeps `depth` I/Os in flight.
struct Readers {
    selector: Selector,
    legs: Vec<Leg>,
    flying: Vec<(u64, u64, usize, PathIndex, Ticket)>,
    next: Vec<u64>,
    now_ns: u64,
    done: u64,
}

impl Readers {
    fn new(legs: Vec<Leg>, streams: u64) -> Self {
        Self {
            selector: Selector::new(legs.len(), Policy::Soonest),
            legs,
            flying: Vec::new(),
            next: (0..streams).map(|stream| stream << 36).collect(),
            now_ns: 0,
            done: 0,
        }
    }

    fn issue(&mut self, stream: usize) {
        let wanted = read(self.next[stream], self.now_ns);
        self.next[stream] += u64::from(IO);
        let views = std::vec![UP; self.legs.len()];
        let path = self.selector.select(&wanted, &views).unwrap();
        let end_ns = self.legs[usize::from(path.0)].end_ns(wanted.address, self.now_ns);
        let ticket = self.selector.ticket();
        self.flying
            .push((end_ns, self.now_ns, stream, path, ticket));
    }

    /// I/Os in `for_ns`.
    fn run(&mut self, depth: usize, for_ns: u64) -> u64 {
        let until_ns = self.now_ns + for_ns;
        let before = self.done;
        for stream in 0..self.next.len() {
            let has = self.flying.iter().filter(|io| io.2 == stream).count();
            (has..depth).for_each(|_| self.issue(stream));
        }
        while self.now_ns < until_ns {
            let first = self.flying.iter().enumerate().min_by_key(|(_, io)| io.0);
            let (end_ns, begun_ns, stream, path, ticket) = self.flying.remove(first.unwrap().0);
            self.now_ns = end_ns;
            self.done += 1;
            let _ = self.selector.complete(&Completion {
                path,
                group: Group::Read,
                latency_ns: end_ns - begun_ns,
                ended: Ended::Good,
                now_ns: end_ns,
                ticket,
                gap_ns: 0,
            });
            self.issue(stream);
        }
        self.done - before
    }

    fn jumps_ns(&self) -> Vec<u32> {
        let legs = &self.selector.soonest.streams.legs[..self.legs.len()];
        legs.iter().map(|leg| leg.jump_ns).collect()
    }
}

#[test]
fn a_stream_is_told_from_the_rest() {
    let mut streams = Streams::new();
    streams.jumpy = true;
    let at = |index: u64| read((7 << 30) + index * u64::from(IO), 0);
    let mut go_on = |request: &Request, home: usize| {
        let place = streams.find(request);
        streams.note(&place, home);
        place.home
    };
    let mut random = 12_345_u64;
    for index in 0..1000 {
        let found = go_on(&at(index), 3);
        assert_eq!(found, (index >= u64::from(HITS)).then_some(3));
        // As many random ones meanwhile.
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        assert_eq!(go_on(&read((random >> 20) & !4095, 0), 1), None);
    }
    // In another order, and with a gap.
    for index in [1001, 1000, 1003, 1002, 1005] {
        assert_eq!(go_on(&at(index), 3), Some(3), "{index}");
    }
    assert_eq!(go_on(&at(1020), 3), None, "elsewhere");
    // The same place again and again is no stream.
    for _ in 0..10 {
        assert_eq!(go_on(&at(5000), 1), None);
    }
}

/// The larger part of both disks is used, though every turn costs a jump.
#[test]
fn t39_one_deep_stream_uses_two_disks_in_long_turns() {
    let mut readers = Readers::new([5, 5].map(|ms| Leg::new(0, ms * MS)).into(), 1);
    readers.run(64, 2000 * MS);
    for jump_ns in readers.jumps_ns() {
        assert!((4_000_000..6_000_000).contains(&jump_ns), "{jump_ns}");
    }
    let before = readers.legs[0].jumps;
    let ios = readers.run(64, 2000 * MS);
    // One disk does 3076; each turn of some 100 I/Os costs 5 ms.
    assert!(ios > 5500, "{ios}");
    let turns = readers.legs[0].jumps - before;
    assert!(turns < 35, "{turns} turns");
}

#[test]
fn t39_a_shallow_stream_stays_and_two_share() {
    let mut readers = Readers::new([5, 5].map(|ms| Leg::new(0, ms * MS)).into(), 1);
    readers.run(4, 1000 * MS);
    assert!(readers.run(4, 1000 * MS) > 1450);
    let mut readers = Readers::new([5, 5].map(|ms| Leg::new(0, ms * MS)).into(), 2);
    readers.run(8, 2000 * MS);
    let ios = readers.run(8, 1000 * MS);
    assert!(ios > 2900, "each to itself: {ios}");
}

/// Neither what the way takes nor a queue is a jump.
#[test]
fn where_jumps_cost_nothing_streams_are_nothing_special() {
    for way_ns in [0, 20 * MS] {
        let mut readers = Readers::new([way_ns; 2].map(|way_ns| Leg::new(way_ns, 0)).into(), 1);
        readers.run(64, 1000 * MS);
        assert_eq!(readers.jumps_ns(), [0, 0], "{way_ns}");
        let ios = readers.run(64, 1000 * MS);
        assert!(ios > 3000, "{way_ns}: {ios}");
    }
}

/// A disk that was replaced by flash.
#[test]
fn the_cost_of_a_jump_is_forgotten() {
    let mut readers = Readers::new([5, 5].map(|ms| Leg::new(0, ms * MS)).into(), 1);
    readers.run(64, 1000 * MS);
    assert!(readers.jumps_ns().iter().all(|&jump_ns| jump_ns > 0));
    readers.selector.reset_path(PathIndex(1));
    assert_eq!(readers.jumps_ns()[1], 0);
    readers.legs.iter_mut().for_each(|leg| leg.jump_ns = 0);
    readers.run(64, 3000 * MS);
    assert_eq!(readers.jumps_ns(), [0, 0]);
}
