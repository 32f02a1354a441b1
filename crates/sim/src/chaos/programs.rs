//! Programs as policies, in some worlds.
//!
//! # Contract
//! Drawn apart from everything else, and after it. In such a world another policy may be a program,
//! which comes with a [`Kind::Policy`] and goes with the next one. The caller of a world has the
//! programs: each ranks usable paths only, whatever it is told, so that one fault of a choice is a
//! finding.
use super::prelude::*;
use alloc::boxed::Box;
use policy::{Program, ProgramId};

/// Of worlds, one in so many has programs.
const ONE_OF: u64 = 8;
/// Changes of the policy there, beside those that are drawn anyway.
const CHANGES: u64 = 3;
/// Bits of a fault that say which program; one in four is no program.
const WHICH_AT: u64 = 1 << 24;

/// The programs of one world.
pub trait Programs {
    /// Makes one for a core. Numbers that differ may be different programs.
    fn make(&self, number: u64) -> (ProgramId, Box<dyn Program>);

    /// Choices that were no usable path, in words.
    fn faults(&self) -> Option<String>;
}

/// A plan with programs, perhaps.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    plan.layout.more.programs = random.up_to(ONE_OF - 1) == 0;
    if plan.layout.more.programs {
        let within = (0, WINDOW_NS);
        plan.add_some((&[Kind::Policy], CHANGES), within, random);
    }
}

impl Course<'_> {
    /// The program that a fault brings to a core, if it does.
    pub(super) fn program(&self, fault: &Fault) -> Option<(ProgramId, Box<dyn Program>)> {
        let number = fault.whom / WHICH_AT;
        let brings = self.plan.layout.more.programs && fault.kind == Kind::Policy;
        (brings && !number.is_multiple_of(4)).then(|| self.programs.make(number / 4))
    }
}
