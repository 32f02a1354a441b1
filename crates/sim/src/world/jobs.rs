//! The load of the applications.
use super::{NONE, Slot, World};
use crate::draw::exponential_ns;
use crate::plan::JobPlan;
use crate::queue::Event;
use shape::Random;

/// Jobs begin within this time, not all at once.
const BEGIN_NS: u64 = 200_000;

impl World<'_> {
    /// Every job plans its first I/Os.
    pub(super) fn start_jobs(&mut self) {
        for number in 0..self.jobs.len() {
            let job = &mut self.jobs[number];
            let plan = &self.plan.jobs[job.kind];
            let first = if plan.iops > 0 { 1 } else { plan.depth };
            for _ in 0..first {
                let at_ns = job.random.up_to(BEGIN_NS);
                self.queue.push(at_ns, Event::Issue(number as u32));
            }
        }
    }

    /// A job issues an I/O: its time has come, or one of its own has ended.
    pub(super) fn issue(&mut self, number: u32) {
        let job = &mut self.jobs[number as usize];
        let plan = &self.plan.jobs[job.kind];
        let cpu = cpu(
            plan,
            job.number,
            self.plan.hosts[plan.host].cpus,
            self.now_ns,
        );
        if let Some(mean_ns) = 1_000_000_000_u64.checked_div(plan.iops) {
            let gap_ns = exponential_ns(&mut job.random, mean_ns);
            self.queue.push(self.now_ns + gap_ns, Event::Issue(number));
            if job.in_flight >= plan.depth {
                self.turn_away();
                return;
            }
        } else {
            let core = &mut self.hosts[plan.host].cores[cpu];
            let free_ns = core.cpu.free_ns(self.now_ns);
            if free_ns > self.now_ns {
                return self.queue.push(free_ns, Event::Issue(number));
            }
        }
        let bytes = size(plan, &mut job.random);
        let slot = Slot {
            address: address(plan, &mut job.next, &mut job.random, bytes),
            begun_ns: self.now_ns,
            job: number,
            bytes,
            parent: NONE,
            host: plan.host as u8,
            cpu: cpu as u8,
            write: writes(plan, &mut job.random),
            ..Slot::default()
        };
        job.in_flight += 1;
        match self.take(slot) {
            Some(index) => self.place(index),
            None => {
                self.jobs[number as usize].in_flight -= 1;
                self.turn_away();
            }
        }
    }

    /// Work that can't begin: it counts where everything does, after the start.
    fn turn_away(&mut self) {
        self.tally.turned_away += u64::from(self.now_ns >= self.plan.warm_ns);
    }

    /// An I/O of a job has ended, noticed by a CPU that is there.
    pub(super) fn done(&mut self, number: u32, _noticed_by: u8) {
        let job = &mut self.jobs[number as usize];
        job.in_flight -= 1;
        if self.plan.jobs[job.kind].iops == 0 {
            self.issue(number);
        }
    }
}

/// The CPU on which a job is now.
fn cpu(plan: &JobPlan, number: usize, cpus: usize, now_ns: u64) -> usize {
    let moves = now_ns.checked_div(plan.move_ns).unwrap_or(0);
    (number + moves as usize) % cpus
}

#[inline]
fn size(plan: &JobPlan, random: &mut Random) -> u32 {
    if let [(size, _)] = plan.sizes[..] {
        return size;
    }
    let whole: u64 = plan
        .sizes
        .iter()
        .map(|&(_, weight)| u64::from(weight))
        .sum();
    let mut drawn = random.up_to(whole - 1);
    for &(size, weight) in &plan.sizes {
        match drawn.checked_sub(u64::from(weight)) {
            Some(rest) => drawn = rest,
            None => return size,
        }
    }
    plan.sizes[0].0
}

#[inline]
fn writes(plan: &JobPlan, random: &mut Random) -> bool {
    match plan.write_percent {
        0 => false,
        100 => true,
        percent => random.up_to(99) < u64::from(percent),
    }
}

#[inline]
fn address(plan: &JobPlan, next: &mut u64, random: &mut Random, bytes: u32) -> u64 {
    let bytes = u64::from(bytes);
    if plan.sequential {
        let here = *next;
        *next = here + bytes;
        if *next + bytes > plan.span {
            *next = 0;
        }
        return here;
    }
    let places = (plan.span / bytes).max(1);
    random.up_to(places - 1) * bytes
}
