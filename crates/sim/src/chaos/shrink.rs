//! The part of a plan that is enough for a finding: fewer faults, shorter ones, fewer requests.
//!
//! # Contract
//! The caller runs the worlds and says whether the finding remains. Equal answers give equal cuts.
//! Every cut that is returned has been tried, or is the one that it began with.
//!
//! # Limits
//! At most as many runs as were allowed. The result is small, not the smallest: no single fault of
//! it can be left out, if the runs were enough.
//!
//! # Origin
//! Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, IEEE Trans. Softw.
//! Eng. 28 (2002), complements only: a list is short here, and a part of it alone is the complement
//! of the others.
use super::prelude::*;

/// Durations become whole numbers of these, ns.
const STEP_NS: u64 = 1_000_000;

/// A fault that stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// Its place in the plan's list, from 0.
    pub number: usize,
    /// How long it lasts now, ns.
    pub lasts_ns: u64,
}

/// A part of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// In the order of the plan's list.
    pub faults: Vec<Kept>,
    /// Requests of each host.
    pub requests: u64,
}

impl Cut {
    /// All of it.
    pub fn whole(plan: &Plan) -> Self {
        let kept = |(number, lasts_ns)| Kept { number, lasts_ns };
        let durations = plan.faults.iter().map(|fault| fault.lasts_ns);
        Self {
            faults: (0..).zip(durations).map(kept).collect(),
            requests: plan.layout.habit.total,
        }
    }

    /// The plan with nothing else. Numbers that it does not have are nothing.
    pub fn of(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        plan.layout.habit.total = self.requests;
        let of_plan = |kept: &Kept| {
            let mut fault = *plan.faults.get(kept.number)?;
            fault.lasts_ns = kept.lasts_ns;
            Some(fault)
        };
        plan.faults = self.faults.iter().filter_map(of_plan).collect();
        plan
    }
}

/// Makes `cut` smaller as long as what was found `remains`, with at most `runs_max` questions; the
/// smaller one, and how many they were.
pub fn shrink(cut: Cut, runs_max: u32, remains: impl FnMut(&Cut) -> bool) -> (Cut, u32) {
    let mut search = Search {
        cut,
        runs: 0,
        runs_max,
        remains,
    };
    search.faults();
    search.requests();
    search.durations();
    (search.cut, search.runs)
}

struct Search<F> {
    /// The smallest so far.
    cut: Cut,
    runs: u32,
    runs_max: u32,
    remains: F,
}

impl<F: FnMut(&Cut) -> bool> Search<F> {
    /// Takes this one if what was found remains.
    fn takes(&mut self, smaller: Cut) -> bool {
        if self.runs == self.runs_max {
            return false;
        }
        self.runs += 1;
        let remains = (self.remains)(&smaller);
        if remains {
            self.cut = smaller;
        }
        remains
    }

    /// Leaves out halves of the list, then quarters, … then single ones.
    fn faults(&mut self) {
        let mut size = self.cut.faults.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            let mut any = false;
            while at < self.cut.faults.len() {
                let mut smaller = self.cut.clone();
                let end = (at + size).min(smaller.faults.len());
                smaller.faults.drain(at..end);
                match self.takes(smaller) {
                    true => any = true, // what came behind is here now
                    false => at = end,
                }
            }
            // Single ones until none is too many: one may have needed another that is gone.
            if size > 1 || !any {
                size /= 2;
            }
        }
    }

    /// Events before the last request do not depend on how many would follow.
    fn requests(&mut self) {
        let mut few = 0;
        while few + 1 < self.cut.requests {
            let requests = few + (self.cut.requests - few) / 2;
            let smaller = Cut {
                requests,
                ..self.cut.clone()
            };
            if !self.takes(smaller) {
                few = requests;
            }
        }
    }

    fn durations(&mut self) {
        for at in 0..self.cut.faults.len() {
            loop {
                let lasts_ns = self.cut.faults[at].lasts_ns / 2 / STEP_NS * STEP_NS;
                if lasts_ns == 0 {
                    break;
                }
                let mut smaller = self.cut.clone();
                smaller.faults[at].lasts_ns = lasts_ns;
                if !self.takes(smaller) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(seed: u64) -> (Plan, Cut) {
        let plan = Plan::draw(seed);
        let cut = Cut::whole(&plan);
        (plan, cut)
    }

    fn has(cut: &Cut, numbers: &[usize]) -> bool {
        let has = |&number: &usize| cut.faults.iter().any(|it| it.number == number);
        numbers.iter().all(has)
    }

    #[test]
    fn what_is_needed_stays_and_nothing_else() {
        for needed in [&[][..], &[0], &[9], &[2, 7], &[0, 1, 8, 9]] {
            let (plan, cut) = whole(1);
            let (small, runs) = shrink(cut, 500, |cut| {
                let lasts = cut.faults.iter().all(|it| it.lasts_ns >= 2 * STEP_NS);
                has(cut, needed) && lasts && cut.requests >= 700
            });
            let numbers: Vec<usize> = small.faults.iter().map(|it| it.number).collect();
            assert_eq!((numbers.as_slice(), small.requests), (needed, 700));
            let short = |it: &Kept| (2 * STEP_NS..4 * STEP_NS).contains(&it.lasts_ns);
            assert!(small.faults.iter().all(short), "{small:?}");
            assert!(runs < 200, "{runs}");
            let plan = small.of(&plan);
            assert_eq!(plan.faults.len(), needed.len());
            assert_eq!(plan.layout.habit.total, 700);
        }
    }

    /// Where nothing follows from anything, the runs end, and the cut is one that was tried.
    #[test]
    fn runs_are_bounded_and_a_cut_was_tried() {
        let (_, cut) = whole(2);
        let mut tried = vec![cut.clone()];
        let mut answer = 0_u64;
        let (small, _) = shrink(cut, 30, |cut| {
            answer = answer.wrapping_mul(25_214_903_917).wrapping_add(11);
            let remains = answer >> 40 & 1 == 1;
            if remains {
                tried.push(cut.clone());
            }
            remains
        });
        assert!(tried.len() > 1 && tried.last() == Some(&small), "{small:?}");
        for runs_max in [0, 1, 7] {
            let (_, cut) = whole(2);
            assert_eq!(shrink(cut.clone(), runs_max, |_| false), (cut, runs_max));
        }
    }

    /// One of two is enough, and one alone needs a third: what is left can't be made smaller.
    #[test]
    fn no_fault_that_is_left_can_be_left_out() {
        let remains = |cut: &Cut| has(cut, &[4]) || has(cut, &[1, 6]) && !has(cut, &[3]);
        let (_, cut) = whole(3);
        let (small, _) = shrink(cut, 500, remains);
        for at in 0..small.faults.len() {
            let mut less = small.clone();
            less.faults.remove(at);
            assert!(!remains(&less), "{small:?}");
        }
    }

    #[test]
    fn all_of_a_plan_is_the_plan() {
        let (plan, cut) = whole(4);
        let same = cut.of(&plan);
        assert_eq!(Cut::whole(&same), cut);
        assert_eq!(same.faults.len(), plan.faults.len());
    }
}
