//! A CPU that has other work too: while it is stalled it notices nothing and issues nothing.
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
            random,
        }
    }

    /// Since when it is away, while it is.
    pub fn away_ns(&self) -> u64 {
        self.begins_ns
    }

    /// When it can do something: now, or when the stall ends. Times must not decrease.
    #[inline]
    pub fn free_ns(&mut self, now_ns: u64) -> u64 {
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
        };
        assert_eq!(Cpu::new(&plan, sequence(5, 0, 0)).free_ns(77), 77);
    }
}
