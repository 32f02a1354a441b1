//! Changes that start late: those of a process that stood still with them in its hands, and those
//! that a device took while it hung (T49).
//!
//! # Contract
//! Directly before such a change is made the clock is compared with the time before which it had to
//! start. A change without such a time is made however late it is; late reads are executed.
use super::disk::USUAL_NS;
use super::node::{Hung, Process};
use super::prelude::*;
use canary::Bug;

/// For how much longer than the rest a request may hang, ns.
pub(super) const LONGER_NS: u64 = 8_000_000_000;

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

/// Whether a change is made without a look at the clock, which is forbidden.
fn is_heedless(body: &Body, why: Late) -> bool {
    match (why, body) {
        (Late::Hung, _) => canary::has(Bug::LateHung),
        (_, Body::Core(_)) => canary::has(Bug::LateLegs),
        (Late::Turn, _) => canary::has(Bug::StaleClock),
        (Late::Worker, _) => canary::has(Bug::LateWorkers),
    }
}

/// A process that stands still with changes of its devices in its hands, while another one is in
/// its place.
pub struct Overtaken {
    process: Process,
    body: Body,
    arena: Vec<u8>,
}

impl World {
    /// The device of a node takes requests and starts none until then.
    pub(super) fn hang(&mut self, number: usize, device: LocalDevice, until_ns: u64) {
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
    pub(super) fn hangs_until(&mut self, number: usize, device: LocalDevice) -> Option<u64> {
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
        // Of one that has no devices, what it sends.
        let sends = matches!(body, Body::Core(_)) && node.disks.is_empty();
        let bounded = |output: &Output| match output {
            Output::Device(it) => it.op.is_change() && body.start_before(it.id) != u64::MAX,
            Output::Transmit(_) => sends,
            _ => false,
        };
        if !outputs.iter().any(bounded) {
            return None;
        }
        (node.halt, node.frozen_ns, node.in_hand) = (None, halt.until_ns, true);
        self.tell(|| format!("node {number} stands still: {halt:?}"));
        Some(halt)
    }

    /// Starts requests that could not start when they were submitted: the clock is read first.
    pub(super) fn start_late(
        &mut self,
        of: Process,
        request: DeviceRequest,
        (before_ns, why): (u64, Late),
    ) {
        let (now_ns, number) = (self.now_ns, of.node);
        let mut overtaken = self.overtaken.iter();
        let overtaken = overtaken.position(|it| it.process == of);
        let node = &self.nodes[number];
        let body = match overtaken {
            Some(at) => &self.overtaken[at].body,
            None if node.life == of.life && !node.is_dead() => &node.body,
            None => return,
        };
        let is_late = before_ns <= now_ns && body.start_before(request.id) <= now_ns;
        let is_made = !is_late || is_heedless(body, why);
        if let Some(at) = overtaken {
            return self.go_on_overtaken(at, &request, is_made);
        }
        if !is_made {
            self.dropped[why as usize] += 1;
            self.tell(|| format!("node {number} drops {:?} ({})", request.op, request.id));
            let lost = Err(DeviceError::Lost);
            return self.at(now_ns, Event::Answer(of, request.id, lost));
        }
        self.at(now_ns + USUAL_NS.0, Event::Device(of, request));
    }

    /// For how long what a turn of a host gives out to be sent is not submitted: it stands still.
    pub(super) fn stands_ns(&self, number: usize) -> u64 {
        let node = &self.nodes[number];
        match node.body {
            Body::Core(_) => node.frozen_ns.saturating_sub(self.now_ns),
            _ => 0,
        }
    }

    /// A process dies for all others, and goes on for a moment with what is in its hands.
    pub(super) fn keep_overtaken(&mut self, number: usize, body: Body) {
        let process = self.process(number);
        let node = &mut self.nodes[number];
        let anew = vec![0; node.arena.len()];
        self.overtaken.push(Overtaken {
            process,
            body,
            arena: core::mem::replace(&mut node.arena, anew),
        });
    }

    /// A process that was overtaken goes on: a change that it had begun is made, or is not.
    fn go_on_overtaken(&mut self, at: usize, request: &DeviceRequest, is_made: bool) {
        let number = self.overtaken[at].process.node;
        let does = if is_made { "makes" } else { "drops" };
        let (op, id) = (request.op, request.id);
        self.tell(|| format!("node {number} goes on, was overtaken, and {does} {op:?} ({id})"));
        if !is_made {
            self.refused += 1;
            return;
        }
        let it = &mut self.overtaken[at];
        let disk = self.nodes[number].disks[usize::from(request.device.0)];
        let disk = &mut self.disks[disk];
        // Its end is not reported.
        let (by, memory) = (number as u8 + 1, &mut it.arena);
        let _ = disk.execute(by, request, memory, &mut self.random, self.now_ns);
    }

    /// A device is asked to let go of what it has: that ends as it would, and the device may be
    /// asked again.
    pub(super) fn let_go(&mut self, number: usize, id: u32) {
        let answer = Event::Answer(self.process(number), id, Ok(()));
        self.at(self.now_ns + USUAL_NS.0, answer);
    }
}
