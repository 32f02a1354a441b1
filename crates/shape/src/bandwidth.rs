//! A line of fixed rate: one FIFO through which every payload byte passes.
use crate::limits::BYTES_PER_S_MAX;

const NS_PER_S: u64 = 1_000_000_000;

/// The line, in virtual time.
///
/// The end of what was admitted is kept as whole nanoseconds and a remainder in units of
/// 1 / `bytes_per_s` ns, so that no rounding adds up: after any number of commands the line is busy
/// for exactly their bytes divided by the rate.
#[derive(Clone, Debug)]
pub struct Bandwidth {
    bytes_per_s: u64,
    free_ns: u64,
    remainder: u64,
}

impl Bandwidth {
    /// An idle line; 0 = unlimited.
    pub fn new(bytes_per_s: u64) -> Self {
        Bandwidth {
            bytes_per_s: bytes_per_s.min(BYTES_PER_S_MAX),
            free_ns: 0,
            remainder: 0,
        }
    }

    /// Changes the rate from now on; commands already admitted keep their times.
    pub fn set_rate(&mut self, bytes_per_s: u64) {
        self.bytes_per_s = bytes_per_s.min(BYTES_PER_S_MAX);
        self.remainder = 0;
    }

    /// Admits `bytes`. Returns when the last of them has passed, rounded up to a nanosecond.
    pub fn admit(&mut self, bytes: u32, now_ns: u64) -> u64 {
        if self.bytes_per_s == 0 {
            return now_ns;
        }
        if now_ns > self.free_ns {
            self.free_ns = now_ns;
            self.remainder = 0;
        }
        let work = u64::from(bytes) * NS_PER_S + self.remainder;
        self.free_ns = self.free_ns.saturating_add(work / self.bytes_per_s);
        self.remainder = work % self.bytes_per_s;
        self.free_ns.saturating_add(u64::from(self.remainder > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_takes_its_bytes_over_the_rate() {
        let mut line = Bandwidth::new(300 << 20);
        // 4096 B / (300 · 2²⁰ B/s) = 13 020.83… ns
        assert_eq!(line.admit(4096, 0), 13_021);
        assert_eq!(line.admit(4096, 0), 26_042);
        assert_eq!(
            line.admit(4096, 0),
            39_063,
            "3 × 13 020.83… is 39 062.5, not 39 060"
        );
    }

    #[test]
    fn an_idle_line_keeps_no_credit() {
        let mut line = Bandwidth::new(1000);
        assert_eq!(line.admit(1, 0), 1_000_000);
        assert_eq!(line.admit(1, 5_000_000), 6_000_000);
    }

    #[test]
    fn the_largest_figures_do_not_overflow() {
        let mut line = Bandwidth::new(u64::MAX);
        assert_eq!(
            line.admit(u32::MAX, 0),
            1,
            "4 GiB at 4 EiB/s: just under a nanosecond"
        );
        let mut slow = Bandwidth::new(1);
        for _ in 0..8 {
            slow.admit(u32::MAX, 0);
        }
        assert_eq!(slow.admit(u32::MAX, 0), u64::MAX);
    }
}
