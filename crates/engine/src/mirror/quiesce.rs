//! How long legs may execute late writes of this owner (T9), which the owner's record states; and
//! how long changes wait for those of the owner before.
//!
//! # Contract
//! The bound is the longest of all legs that are there. A leg that is added or returns gets no
//! request before its bound is on the legs. The largest bound written is [`BOUND_MAX_MS`], the most
//! that other hosts wait: a leg with a longer one is refused in a mirror that others reach.
//!
//! # Limits
//! A path that is found while its leg takes part gets I/O at once; a longer bound of its controller
//! is on the legs after a heartbeat, which begins then.
use super::device::{Context, MirrorDevice, Phase};
use super::leg::LegDevice;
use crate::host::{HostEvent, Multipath};
use alloc::format;
use alloc::string::String;
use mirror::ownership::BOUND_MAX_MS;

/// In whole milliseconds, at least 1: 0 means unknown.
pub(super) fn whole_ms(ns: u64) -> u32 {
    u32::try_from(ns.div_ceil(1_000_000).max(1)).unwrap_or(u32::MAX)
}

impl MirrorDevice {
    /// For how long a leg of this volume may execute writes that can't be withdrawn any more, ms.
    fn bound_of(&self, volume: u16, host: &Multipath) -> u32 {
        let bound_ns = host.leaves_behind_ns(volume);
        whole_ms(bound_ns.unwrap_or(self.config.leg_quiesce_ns))
    }

    /// As [`Self::bound_of`], of a leg that is to take part.
    ///
    /// # Errors
    /// No other host would wait so long.
    pub(super) fn bound_with(
        &self,
        volume: u16,
        name: &str,
        host: &Multipath,
    ) -> Result<u32, String> {
        let bound_ms = self.bound_of(volume, host);
        match self.config.shared && bound_ms > BOUND_MAX_MS {
            true => Err(format!(
                "{name} may execute what it was given for {} s after we are gone, and other hosts \
                 wait for {} s at most: set a shorter keep_alive_tmo, or leg_quiesce",
                bound_ms.div_ceil(1000),
                BOUND_MAX_MS / 1000
            )),
            false => Ok(bound_ms),
        }
    }

    /// The longest of those that are there.
    ///
    /// # Errors
    /// As [`Self::bound_with`].
    pub(super) fn bound(&self, host: &Multipath) -> Result<u32, String> {
        let there = |leg: &&LegDevice| leg.info.is_some() && !leg.is_gone();
        let mut longest_ms = None;
        for leg in self.legs.iter().filter(there) {
            let bound_ms = self.bound_with(leg.config.volume, &leg.config.name, host)?;
            longest_ms = longest_ms.max(Some(bound_ms));
        }
        Ok(longest_ms.unwrap_or_else(|| whole_ms(self.config.leg_quiesce_ns)))
    }

    /// Until when a leg may execute writes that its volume has failed without waiting for them, ns.
    pub(super) fn late_until_ns(&self, at: usize, host: &Multipath) -> Option<u64> {
        let left_ns = host.volume(self.legs[at].config.volume)?.left_ns()?;
        Some(left_ns.saturating_add(self.config.leg_quiesce_ns))
    }

    /// Raises the bound in the owner's record. Returns whether it is on all legs.
    pub(super) fn record_bound(&mut self, bound_ms: u32, now_ns: u64) -> bool {
        if !self.config.shared {
            return true; // no other host reads it
        }
        let it = self.expect_running();
        it.machine.raise_bound(bound_ms, now_ns);
        it.machine.committed_bound_ms() >= bound_ms
    }

    /// Once a turn: whether some path was found since.
    pub(super) fn inspect_bounds(&mut self, host: &Multipath, now_ns: u64) {
        let found = host.paths_found();
        let it = self.expect_running();
        if core::mem::replace(&mut it.paths_found, found) == found {
            return; // the bounds are as before
        }
        let slots = self
            .legs
            .iter()
            .filter(|leg| leg.slot.is_some() && !leg.is_gone());
        let bounds = slots.map(|leg| self.bound_of(leg.config.volume, host));
        if let Some(bound_ms) = bounds.max() {
            self.record_bound(bound_ms, now_ns);
        }
    }

    /// Whether the bound of a leg that returns is on all legs. A leg with too long a bound does not
    /// return, which is reported.
    pub(super) fn may_be_announced(&mut self, at: usize, cx: &mut Context<'_>) -> bool {
        let leg = &self.legs[at].config;
        match self.bound_with(leg.volume, &leg.name, cx.below.host) {
            Ok(bound_ms) => self.record_bound(bound_ms, cx.now_ns),
            Err(why) => {
                let line = format!("{}: {why}", self.config.name);
                let leg = &mut self.legs[at];
                leg.returns.refuse(why);
                cx.events.push_back(HostEvent::Warning(cx.number, line));
                false
            }
        }
    }

    /// Until when changes wait for late writes of the owner before or of the last leg, ns; `None`:
    /// they don't wait.
    pub(super) fn held_until_ns(&self) -> Option<u64> {
        match &self.phase {
            Phase::Running(it) => it.machine.held_until_ns(),
            _ => None,
        }
    }

    /// Reports at the start that changes wait.
    pub(super) fn report_held_changes(&self, cx: &mut Context<'_>) {
        if let Some(until_ns) = self.held_until_ns() {
            let until = match until_ns {
                u64::MAX => "and nothing bounds for how long".into(),
                _ => {
                    let left_ns = until_ns.saturating_sub(cx.now_ns);
                    format!("for {} s", left_ns.div_ceil(1_000_000_000))
                }
            };
            let line = format!(
                "{}: who had it before is gone, and its legs may yet execute what it gave them: \
                 changes wait {until}",
                self.config.name
            );
            cx.events.push_back(HostEvent::Warning(cx.number, line));
        }
    }
}
