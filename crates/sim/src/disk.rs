//! A rotating disk: one arm, a queue of commands, read-ahead.
//!
//! The nearest command is next among those the drive can see, unless one has waited too long. A
//! seek takes a shortest time and grows with the square root of the way; then the platter has to
//! come round, at random where the place isn't the one just passed. After a read an idle drive goes
//! on reading, and answers from that.
//!
//! # Limits
//! No write cache: a write is done when it is on the platter.
use crate::limits::{DISK_AGE_NS, DISK_AHEAD, DISK_QUEUE, DISK_SEGMENTS};
use crate::plan::Disk as DiskPlan;
use crate::queue::Ticket;
use alloc::collections::VecDeque;
use shape::Random;

/// Latency of an answer from the buffer, beside [`HIT_BYTES_PER_S`].
const HIT_NS: u64 = 60_000;
const HIT_BYTES_PER_S: u64 = 500_000_000;
const NS_PER_S: u128 = 1_000_000_000;

/// A command that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    io: Ticket,
    address: u64,
    bytes: u32,
    write: bool,
    since_ns: u64,
}

/// The drive.
#[derive(Clone, Debug)]
pub struct Disk {
    plan: DiskPlan,
    waiting: VecDeque<Waiting>,
    busy: bool,
    /// Where the arm stopped, and when.
    at: u64,
    since_ns: u64,
    /// Whether the last command was a read, so that the drive reads on.
    reading: bool,
    /// Ranges in the buffer, from…to, newest last.
    segments: VecDeque<(u64, u64)>,
    random: Random,
}

impl Disk {
    /// A drive at rest.
    pub fn new(plan: DiskPlan, random: Random) -> Self {
        Self {
            plan,
            waiting: VecDeque::new(),
            busy: false,
            at: 0,
            since_ns: 0,
            reading: false,
            segments: VecDeque::new(),
            random,
        }
    }

    /// A command arrives. The answer, if the buffer has it: when.
    pub fn arrive(
        &mut self,
        io: Ticket,
        address: u64,
        bytes: u32,
        write: bool,
        now_ns: u64,
    ) -> Option<u64> {
        self.read_on(now_ns);
        let end = address + u64::from(bytes);
        let held = |&(from, to): &(u64, u64)| from <= address && end <= to;
        if !write && self.segments.iter().any(held) {
            let transfer = u128::from(bytes) * NS_PER_S / u128::from(HIT_BYTES_PER_S);
            return Some(now_ns + HIT_NS + transfer as u64);
        }
        let since_ns = now_ns;
        self.waiting.push_back(Waiting {
            io,
            address,
            bytes,
            write,
            since_ns,
        });
        None
    }

    /// The next command, if the arm is free: which one, and when it is done. [`Disk::done`] then
    /// frees the arm.
    pub fn start(&mut self, now_ns: u64) -> Option<(Ticket, u64)> {
        if self.busy {
            return None;
        }
        let next = self.nearest(now_ns)?;
        let Waiting {
            io,
            address,
            bytes,
            write,
            ..
        } = self.waiting.remove(next)?;
        self.read_on(now_ns);
        let done_ns = now_ns + self.position_ns(address, write) + self.transfer_ns(address, bytes);
        self.busy = true;
        self.at = address + u64::from(bytes);
        self.since_ns = done_ns;
        self.reading = !write;
        self.remember(address, self.at, write);
        Some((io, done_ns))
    }

    /// The arm is free again.
    pub fn done(&mut self) {
        self.busy = false;
    }

    fn nearest(&self, now_ns: u64) -> Option<usize> {
        let oldest = self.waiting.front()?;
        if now_ns.saturating_sub(oldest.since_ns) > DISK_AGE_NS {
            return Some(0);
        }
        let seen = self.waiting.iter().take(DISK_QUEUE).enumerate();
        seen.min_by_key(|(index, it)| (it.address.abs_diff(self.at), *index))
            .map(|(index, _)| index)
    }

    /// Seek and rotation; nothing where the arm is just there.
    fn position_ns(&mut self, address: u64, write: bool) -> u64 {
        let way = address.abs_diff(self.at);
        if way == 0 && (!write || !self.reading) {
            return 0;
        }
        let turn = self.random.up_to(self.plan.turn_ns);
        if address >= self.at && way <= DISK_AHEAD {
            // On the same track: what lies between passes by.
            return self.transfer_ns(address, way as u32).min(self.plan.turn_ns);
        }
        // √(way / size), Q16.
        let part = (u128::from(way) << 32) / u128::from(self.plan.bytes.max(1));
        let root = (part as u64).isqrt();
        self.plan.seek_ns + ((self.plan.stroke_ns * root) >> 16) + turn
    }

    /// Half as fast at the inner edge as at the outer.
    fn transfer_ns(&self, address: u64, bytes: u32) -> u64 {
        let size = u128::from(self.plan.bytes.max(1));
        let outer = u128::from(self.plan.bytes_per_s.max(1));
        let rate = outer - (outer / 2) * u128::from(address).min(size) / size;
        (u128::from(bytes) * NS_PER_S / rate) as u64
    }

    /// Adds the read-ahead of the idle time.
    fn read_on(&mut self, now_ns: u64) {
        if self.busy || !self.reading || now_ns <= self.since_ns {
            return;
        }
        let idle = u128::from(now_ns - self.since_ns);
        let passed = idle * u128::from(self.plan.bytes_per_s) / NS_PER_S;
        let room = self
            .segments
            .back()
            .map_or(0, |&(_, to)| (self.ahead_end()).saturating_sub(to));
        let more = (passed as u64).min(room);
        if let Some((_, to)) = self.segments.back_mut() {
            *to += more;
            self.at = *to;
        }
        self.since_ns = now_ns;
    }

    /// Where reading ahead ends: so far behind what was last asked for.
    fn ahead_end(&self) -> u64 {
        self.segments
            .back()
            .map_or(0, |&(from, _)| from + DISK_AHEAD)
    }

    fn remember(&mut self, from: u64, to: u64, write: bool) {
        if write {
            self.segments.retain(|&(a, b)| b <= from || to <= a);
            return;
        }
        if self.segments.len() == DISK_SEGMENTS {
            self.segments.pop_front();
        }
        self.segments.push_back((from, to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::sequence;

    const PLAN: DiskPlan = DiskPlan {
        bytes: 1_000_000_000_000,
        bytes_per_s: 200_000_000,
        seek_ns: 800_000,
        stroke_ns: 13_200_000,
        turn_ns: 8_333_333,
    };

    fn io(slot: u32) -> Ticket {
        Ticket { slot, used: 0 }
    }

    #[test]
    fn a_stream_reads_at_the_platters_speed_and_a_seek_takes_time() {
        let mut disk = Disk::new(PLAN, sequence(1, 1, 1));
        let mut now_ns = 0;
        for n in 0..8 {
            assert_eq!(
                disk.arrive(io(n), u64::from(n) << 20, 1 << 20, false, now_ns),
                None
            );
            let (_, done_ns) = disk.start(now_ns).unwrap();
            assert!(
                (5_242_880..5_243_100).contains(&(done_ns - now_ns)),
                "1 MiB at 200 MB/s"
            );
            disk.done();
            now_ns = done_ns;
        }
        disk.arrive(io(9), 250_000_000_000, 4096, false, now_ns);
        let (_, done_ns) = disk.start(now_ns).unwrap();
        // Half of the stroke's root, and at most a turn.
        assert!(
            (7_400_000..15_800_000).contains(&(done_ns - now_ns)),
            "{}",
            done_ns - now_ns
        );
    }

    #[test]
    fn the_nearest_is_next_but_nobody_waits_for_ever() {
        let mut disk = Disk::new(PLAN, sequence(1, 1, 1));
        for (n, address) in [(0, 900_000_000_000), (1, 5_000_000), (2, 3_000_000_000)] {
            disk.arrive(io(n), address, 4096, false, 0);
        }
        assert_eq!(disk.start(1).unwrap().0, io(1));
        assert_eq!(disk.start(1), None, "one arm");
        disk.done();
        assert_eq!(disk.start(DISK_AGE_NS + 1).unwrap().0, io(0));
    }

    #[test]
    fn an_idle_disk_reads_ahead() {
        let mut disk = Disk::new(PLAN, sequence(1, 1, 1));
        disk.arrive(io(0), 1 << 30, 65_536, false, 0);
        let (_, done_ns) = disk.start(0).unwrap();
        disk.done();
        let later = done_ns + 1_000_000;
        let hit = disk.arrive(io(1), (1 << 30) + 65_536, 65_536, false, later);
        assert_eq!(hit, Some(later + 60_000 + 131_072));
        assert_eq!(
            disk.arrive(io(2), (1 << 30) + (3 << 20), 65_536, false, later),
            None
        );
    }
}
