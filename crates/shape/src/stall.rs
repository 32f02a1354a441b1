//! A port that hangs: its clock stands still until a given time.
//!
//! All other models use the port's clock ([`PortTime`]), so a stall changes nothing in them: a
//! command under way keeps its remaining time, and goes on afterwards.

/// A time on a port's own clock, which stands still while the port is stalled. Its order is the
/// order of release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortTime(pub u64);

/// The last stall, and how far the port's clock lags because of earlier ones.
#[derive(Clone, Debug)]
pub struct Stall {
    since_ns: u64,
    until_ns: u64,
    behind_ns: u64,
}

impl Stall {
    /// A port that is stalled from its beginning until `until_ns`; 0 = not at all.
    pub fn new(until_ns: u64) -> Self {
        Stall {
            since_ns: 0,
            until_ns,
            behind_ns: 0,
        }
    }

    /// Stalls the port from now until `until_ns`; a time in the past ends a stall.
    pub fn set(&mut self, until_ns: u64, now_ns: u64) {
        self.behind_ns += self.until_ns.min(now_ns).saturating_sub(self.since_ns);
        self.since_ns = now_ns;
        self.until_ns = until_ns.max(now_ns);
    }

    /// Returns the port's clock at `now_ns`.
    pub fn port_time(&self, now_ns: u64) -> PortTime {
        let stood = now_ns.clamp(self.since_ns, self.until_ns) - self.since_ns;
        PortTime(now_ns.saturating_sub(self.behind_ns + stood))
    }

    /// Whether the port's clock goes on: what is due at its present time is due now.
    #[inline]
    pub fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.until_ns
    }

    /// Returns when the port's clock will show `at`, if the stall does not change again.
    pub fn due_ns(&self, at: PortTime) -> u64 {
        let due = at.0.saturating_add(self.behind_ns);
        if due < self.since_ns {
            return due;
        }
        due.saturating_add(self.until_ns - self.since_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_and_goes_on() {
        let mut stall = Stall::new(0);
        stall.set(150, 100);
        let times: [u64; 5] = [99, 100, 149, 150, 160].map(|now| {
            if now < 100 {
                now
            } else {
                stall.port_time(now).0
            }
        });
        assert_eq!(times, [99, 100, 100, 100, 110]);
    }

    #[test]
    fn commands_due_in_a_stall_wait_for_its_end() {
        let mut stall = Stall::new(0);
        stall.set(150, 100);
        assert_eq!(stall.due_ns(PortTime(99)), 99, "was due before it began");
        assert_eq!(stall.due_ns(PortTime(100)), 150);
        assert_eq!(stall.due_ns(PortTime(130)), 180, "30 ns were left");
    }

    #[test]
    fn a_stall_can_be_lifted_and_prolonged() {
        let mut stall = Stall::new(0);
        stall.set(1_000, 100);
        stall.set(0, 160);
        assert_eq!(stall.port_time(160), PortTime(100));
        assert_eq!(
            stall.due_ns(PortTime(130)),
            190,
            "30 left when it was lifted at 160"
        );
        stall.set(300, 200);
        stall.set(400, 250);
        assert_eq!(
            stall.due_ns(PortTime(150)),
            410,
            "clock at 140 when stalled again at 200, 10 left"
        );
        assert_eq!(stall.port_time(410), PortTime(150));
    }

    #[test]
    fn a_port_may_begin_stalled() {
        let stall = Stall::new(500);
        assert_eq!(stall.port_time(20), PortTime(0));
        assert_eq!(stall.due_ns(stall.port_time(20)), 500);
        assert_eq!(stall.port_time(510), PortTime(10));
    }
}
