//! A CPU that has other work too: while it is stalled it notices nothing and issues nothing. And
//! one that spends time on I/Os, turn by turn: it looks, handles what it found, and looks again.
//! Processes that share a CPU run one after the other.
use crate::draw::{exponential_ns, service_ns};
use crate::plan::{Flash, HostPlan, MachinePlan, Noise};
use shape::Random;

/// How long a CPU runs between two stalls, and how long these are.
#[derive(Clone, Debug)]
enum Turns {
    /// It never stalls.
    Never,
    /// Exponential times of these means.
    Drawn { run_ns: u64, stall_ns: u64 },
    /// Host, targets and loops run in this order. Both draw the same sequence.
    Shared {
        plan: MachinePlan,
        /// Loops on its CPU.
        loops: usize,
        /// The other process on its CPU runs before it.
        second: bool,
        /// Of the round that was drawn last: when the second process stops, and loops run.
        rest: [u64; 2],
    },
}

/// Processes that can share a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// A host.
    Host,
    /// All targets.
    Targets,
}

/// One CPU's stalls, one after the other.
#[derive(Clone, Debug)]
pub struct Cpu {
    turns: Turns,
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
        Self::of_turns(
            Turns::drawn(plan.busy_run_ns, plan.busy_stall_ns),
            plan.io_ns,
            random,
        )
    }

    /// The CPU of the process that serves a device.
    pub fn of_device(plan: &Flash, random: Random) -> Self {
        Self::of_turns(
            Turns::drawn(plan.busy_run_ns, plan.busy_stall_ns),
            0,
            random,
        )
    }

    /// The CPU of a process on a machine that others use too. Those of one machine get the same
    /// sequence.
    pub fn shared(plan: &MachinePlan, process: Process, io_ns: u64, random: Random) -> Self {
        let (one, second) = (plan.cpus == 1, process == Process::Targets);
        let loops = match (one, process) {
            (true, _) => plan.loops,
            (_, Process::Host) => plan.loops / 2,
            (_, Process::Targets) => plan.loops.div_ceil(2),
        };
        let turns = match loops {
            0 => Turns::Never,
            _ => Turns::Shared {
                plan: *plan,
                loops,
                second: one && second,
                rest: [0; 2],
            },
        };
        Self::of_turns(turns, io_ns, random)
    }

    /// A CPU that is always there.
    pub fn idle() -> Self {
        let random = Random::new(0);
        Self::of_turns(Turns::Never, 0, random)
    }

    fn of_turns(turns: Turns, io_ns: u64, random: Random) -> Self {
        Self {
            turns,
            begins_ns: 0,
            ends_ns: 0,
            io_ns,
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
        if matches!(self.turns, Turns::Never) {
            return now_ns;
        }
        while now_ns >= self.ends_ns {
            let [run_ns, stall_ns] = self.turns.next(&mut self.random);
            self.begins_ns = self.ends_ns + run_ns;
            self.ends_ns = self.begins_ns + stall_ns.max(1);
        }
        if now_ns >= self.begins_ns {
            self.ends_ns
        } else {
            now_ns
        }
    }
}

impl Turns {
    fn drawn(run_ns: u64, stall_ns: u64) -> Self {
        match run_ns {
            0 => Self::Never,
            _ => Self::Drawn { run_ns, stall_ns },
        }
    }

    /// Time to run from now on, and the stall after that.
    fn next(&mut self, random: &mut Random) -> [u64; 2] {
        match self {
            Self::Never => [u64::MAX / 4, 0],
            Self::Drawn { run_ns, stall_ns } => [
                exponential_ns(random, *run_ns),
                exponential_ns(random, *stall_ns),
            ],
            Self::Shared {
                plan,
                loops,
                second,
                rest,
            } => {
                let [first, other] = [(); 2].map(|()| exponential_ns(random, plan.own_ns).max(1));
                let looped = (0..*loops).map(|_| service_ns(random, plan.loop_ns, Noise::Usual));
                let looped = looped.sum();
                if !*second {
                    // Alone with loops on its CPU it waits for these alone.
                    let between = if plan.cpus == 1 { other } else { 0 };
                    return [first, between + looped];
                }
                // It runs what is left of the round before, then others do until its turn.
                let [run_ns, looped_ns] = core::mem::replace(rest, [other, looped]);
                [run_ns, looped_ns + first]
            }
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
    fn processes_on_one_cpu_never_run_at_once() {
        let plan = MachinePlan {
            cpus: 1,
            loops: 2,
            own_ns: 1_000_000,
            loop_ns: 3_000_000,
        };
        let mut cpus = [Process::Host, Process::Targets]
            .map(|process| Cpu::shared(&plan, process, 0, sequence(5, 0, 0)));
        let mut ran = [0_u32; 3];
        for now_ns in (0..200_000_u64).map(|n| n * 20_000) {
            let run = cpus.each_mut().map(|cpu| cpu.free_ns(now_ns) == now_ns);
            assert!(run != [true; 2], "both at {now_ns}");
            ran[run.iter().position(|it| *it).unwrap_or(2)] += 1;
        }
        // 1, 1 and 6 of 8
        let eighth = |count: u32| count.abs_diff(25_000) < 3_000;
        assert!(eighth(ran[0]) && eighth(ran[1]), "{ran:?}");
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
