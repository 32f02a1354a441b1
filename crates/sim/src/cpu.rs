//! A CPU that has other work too: while it is stalled it notices nothing and issues nothing. And
//! one that spends time on I/Os, turn by turn: it looks, handles what it found, and looks again.
use crate::draw::exponential_ns;
use crate::plan::HostPlan;
use shape::Random;

/// One CPU's stalls, one after the other.
#[derive(Clone, Debug)]
pub struct Cpu {
    run_ns: u64,
    stall_ns: u64,
    /// The stall that is now, was last or comes next.
    begins_ns: u64,
    ends_ns: u64,
    io_ns: u64,
    /// The turn that is now or was last: when it looked, and when its work is done.
    turn_ns: u64,
    done_ns: u64,
    random: Random,
}

impl Cpu {
    /// A CPU that runs at time 0.
    pub fn new(plan: &HostPlan, random: Random) -> Self {
        Self {
            run_ns: plan.busy_run_ns,
            stall_ns: plan.busy_stall_ns,
            begins_ns: 0,
            ends_ns: 0,
            io_ns: plan.io_ns,
            turn_ns: 0,
            done_ns: 0,
            random,
        }
    }

    /// When it last looked, while it does not look: since then an end may wait.
    pub fn away_ns(&self) -> u64 {
        if self.io_ns > 0 {
            self.turn_ns
        } else {
            self.begins_ns
        }
    }

    /// How late what is noticed now may be that waited since a look at `away_ns`: what a busy CPU
    /// did before had left late as well.
    pub fn gap_ns(&self, away_ns: u64, now_ns: u64) -> u64 {
        let gap_ns = now_ns.saturating_sub(away_ns);
        if self.io_ns > 0 { 2 * gap_ns } else { gap_ns }
    }

    /// It handles one more I/O in the turn of `now_ns`.
    #[inline]
    pub fn work(&mut self, now_ns: u64) {
        if now_ns >= self.done_ns {
            (self.turn_ns, self.done_ns) = (now_ns, now_ns);
        }
        self.done_ns += self.io_ns;
    }

    /// How much later the work of its turn is done.
    #[inline]
    pub fn behind_ns(&self, now_ns: u64) -> u64 {
        self.done_ns.saturating_sub(now_ns)
    }

    /// When it can do something: now, or when the stall ends. Times must not decrease.
    #[inline]
    pub fn free_ns(&mut self, now_ns: u64) -> u64 {
        if self.turn_ns < now_ns && now_ns < self.done_ns {
            return self.done_ns;
        }
        if self.run_ns == 0 {
            return now_ns;
        }
        while now_ns >= self.ends_ns {
            self.begins_ns = self.ends_ns + exponential_ns(&mut self.random, self.run_ns);
            self.ends_ns = self.begins_ns + exponential_ns(&mut self.random, self.stall_ns).max(1);
        }
        if now_ns >= self.begins_ns {
            self.ends_ns
        } else {
            now_ns
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::sequence;

    #[test]
    fn a_busy_cpu_is_there_in_its_share_of_the_time() {
        let plan = HostPlan {
            cpus: 1,
            nodes: 1,
            busy_run_ns: 500_000,
            busy_stall_ns: 3_000_000,
            io_ns: 0,
        };
        let mut cpu = Cpu::new(&plan, sequence(5, 0, 0));
        let there = (0..200_000_u64)
            .map(|n| n * 50_000)
            .filter(|&now_ns| cpu.free_ns(now_ns) == now_ns)
            .count();
        // 1 of 7
        assert!((27_000..30_200).contains(&there), "{there}");
    }

    #[test]
    fn an_idle_cpu_is_always_there() {
        let plan = HostPlan {
            cpus: 1,
            nodes: 1,
            busy_run_ns: 0,
            busy_stall_ns: 0,
            io_ns: 0,
        };
        assert_eq!(Cpu::new(&plan, sequence(5, 0, 0)).free_ns(77), 77);
    }

    #[test]
    fn a_turn_takes_what_is_there_and_the_rest_waits() {
        let plan = HostPlan {
            cpus: 1,
            nodes: 1,
            busy_run_ns: 0,
            busy_stall_ns: 0,
            io_ns: 10,
        };
        let mut cpu = Cpu::new(&plan, sequence(5, 0, 0));
        assert_eq!(cpu.free_ns(100), 100);
        cpu.work(100);
        cpu.work(100);
        assert_eq!(cpu.behind_ns(100), 20);
        assert_eq!(
            (cpu.free_ns(100), cpu.free_ns(101)),
            (100, 120),
            "the same look"
        );
        assert_eq!((cpu.away_ns(), cpu.gap_ns(100, 120)), (100, 40));
        cpu.work(120);
        assert_eq!((cpu.free_ns(120), cpu.behind_ns(120)), (120, 10));
    }
}
