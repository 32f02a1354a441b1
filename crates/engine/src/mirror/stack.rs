//! Limits of a mirror: those that hold on every leg that is there. Its growth, when all legs have
//! become larger.
//!
//! # Contract
//! Taken anew before a leg returns or is added, and when one has left or was removed: so no leg is
//! given requests that it can't do, and none leaves for that. Requests that users know of and that
//! not all legs can do any more end without any leg: a deallocation well, which promises nothing,
//! and zeroes as not supported, whereupon a client writes them itself.
use super::device::{Context, MirrorDevice, Phase};
use super::leg::LegDevice;
use crate::devices::BackEnds;
use crate::host::HostEvent;
use alloc::string::ToString;
use block::{DeviceId, IoLimits};
use mirror::limits::LEGS_MAX;

/// The limits that hold on all of these legs; `None`: none of them is ready.
pub(super) fn stacked(
    below: BackEnds<'_>,
    legs: impl Iterator<Item = DeviceId>,
) -> Option<IoLimits> {
    let limits = legs.filter_map(|leg| below.limits(leg));
    let mut all = limits.reduce(IoLimits::stack)?;
    // Reads after a deallocation may differ between legs, unless all of them promise zeroes.
    all.deallocate &= all.deallocate_reads_zero;
    Some(all)
}

impl LegDevice {
    /// Whether it gets users' requests, or may as soon as the machine issues them.
    fn counts(&self) -> bool {
        !self.is_gone() && self.returns.waiting().is_none() && self.slot.is_some()
    }
}

impl MirrorDevice {
    /// Legs have come or gone, or one is about to come.
    pub(super) fn restack(&mut self, below: BackEnds<'_>) {
        let legs = self.legs.iter().filter(|leg| leg.counts());
        let Some(limits) = stacked(below, legs.map(LegDevice::device)) else {
            return; // none is ready: the limits hold when one is again
        };
        let it = self.expect_running();
        it.limits = IoLimits {
            // Whether anything may be written was decided when it began.
            read_only: it.limits.read_only,
            ..limits
        };
        let (deallocate, write_zeroes) = (it.limits.deallocate, it.limits.write_zeroes);
        it.machine.set_abilities(deallocate, write_zeroes);
    }

    /// Becomes as large as its legs allow, if it was told to.
    pub(super) fn grow(&mut self, now_ns: u64) -> bool {
        if !core::mem::take(&mut self.orders.grow_requested) {
            return false;
        }
        let mut sizes = [0; LEGS_MAX];
        for leg in self.legs.iter().filter(|leg| !leg.is_gone()) {
            if let (Some(slot), Some(info)) = (leg.slot, leg.info) {
                sizes[usize::from(slot)] = info.bytes;
            }
        }
        let Phase::Running(it) = &mut self.phase else {
            self.orders.grown = Some(Err("it does not run".into()));
            return true;
        };
        if let Err(why) = it.machine.grow(&sizes, now_ns) {
            self.orders.grown = Some(Err(why.to_string()));
        }
        true
    }

    /// It has so many bytes now.
    pub(super) fn has_grown(&mut self, bytes: u64, cx: &mut Context<'_>) {
        self.orders.grown = Some(Ok(bytes));
        if let Phase::Running(it) = &mut self.phase {
            it.info.bytes = bytes;
            let resized = HostEvent::Resized(cx.number, it.info);
            cx.events.push_back(resized);
        }
    }
}
