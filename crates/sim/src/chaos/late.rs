//! Changes that start late: those of a process that stood still with them in its hands, and those
//! that a device took while it hung (T49).
//!
//! # Contract
//! Directly before such a change is made the clock is compared with the time before which it had to
//! start. What has no such time is made however late it is; what reads is done late.
use super::disk::USUAL_NS;
use super::node::{Body, Halt, Hung};
use super::world::{Event, World};
use alloc::format;
use canary::Bug;
use engine::machine::DeviceError;
use engine::{DeviceId, DeviceRequest, Output};

/// For how much longer than the rest a request may hang, ns.
pub(super) const LONGER_NS: u64 = 3_000_000_000;

/// Why a change starts late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// A turn had given it out, and not submitted it.
    Turn,
    /// A thread of its process was about to make it.
    Worker,
    /// The device had taken it, and hung.
    Hung,
}

/// Whether a change is made without a look at the clock, as nobody may.
fn is_heedless(_body: &Body, why: Late) -> bool {
    match why {
        Late::Hung => canary::has(Bug::LateHung),
        Late::Turn => canary::has(Bug::StaleClock),
        Late::Worker => canary::has(Bug::LateWorkers),
    }
}

impl World {
    /// The device of a node takes requests and starts none until then.
    pub(super) fn hang(&mut self, number: usize, device: DeviceId, until_ns: u64) {
        let hung = &mut self.nodes[number].hung;
        if hung.is_none_or(|it| it.until_ns < until_ns) {
            *hung = Some(Hung { device, until_ns });
        }
    }

    /// Whether what the device of a node was asked for may start late.
    pub(super) fn is_hung(&self, number: usize) -> bool {
        let hung = self.nodes[number].hung;
        hung.is_some_and(|it| it.until_ns + LONGER_NS > self.now_ns)
    }

    /// When a request starts that a device is asked for while it hangs.
    pub(super) fn hangs_until(&mut self, number: usize, device: DeviceId) -> Option<u64> {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[number];
        let is_here = |it: &Hung| it.device == device && it.until_ns > now_ns;
        let hung = node.hung.filter(is_here)?;
        node.were_hung += 1;
        let more_ns = match self.random.up_to(1) {
            0 => 0,
            _ => self.random.up_to(LONGER_NS),
        };
        Some(hung.until_ns + more_ns)
    }

    /// Whether a node stands still from now on, with the changes of these outputs in its hands.
    pub(super) fn halts(&mut self, number: usize, outputs: &[Output]) -> Option<Halt> {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[number];
        let halt = node.halt.filter(|it| it.until_ns > now_ns)?;
        let body = &node.body;
        let bounded = |output: &Output| match output {
            Output::Device(it) => it.op.is_change() && body.start_before(it.id) != u64::MAX,
            _ => false,
        };
        if !outputs.iter().any(bounded) {
            return None;
        }
        (node.halt, node.frozen_ns) = (None, halt.until_ns);
        self.tell(|| format!("node {number} stands still: {halt:?}"));
        Some(halt)
    }

    /// What could not start when it was asked for: the clock is looked at before it does.
    pub(super) fn start_late(
        &mut self,
        number: usize,
        life: u64,
        request: DeviceRequest,
        (before_ns, why): (u64, Late),
    ) {
        let now_ns = self.now_ns;
        let node = &self.nodes[number];
        if node.life != life || node.is_dead() {
            return;
        }
        let is_late = before_ns <= now_ns && node.body.start_before(request.id) <= now_ns;
        if is_late && !is_heedless(&node.body, why) {
            self.dropped[why as usize] += 1;
            self.tell(|| format!("node {number} drops {:?} ({})", request.op, request.id));
            let (node, id) = (number, request.id);
            let result = Err(DeviceError::Lost);
            let answer = Event::Answer {
                node,
                life,
                id,
                result,
            };
            return self.at(now_ns, answer);
        }
        let event = Event::Device {
            node: number,
            life,
            request,
        };
        self.at(now_ns + USUAL_NS.0, event);
    }
}
