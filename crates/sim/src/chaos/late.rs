//! Changes that start late: those of a process that stood still with them in its hands (T49).
use super::disk::USUAL_NS;
use super::node::Halt;
use super::world::{Event, World};
use alloc::format;
use canary::Bug;
use engine::machine::DeviceError;
use engine::{DeviceRequest, Output};

impl World {
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

    /// What a process that stood still had in its hands: the clock is looked at before it starts.
    pub(super) fn start_late(
        &mut self,
        number: usize,
        life: u64,
        request: DeviceRequest,
        (before_ns, in_worker): (u64, bool),
    ) {
        let now_ns = self.now_ns;
        let node = &self.nodes[number];
        if node.life != life || node.is_dead() {
            return;
        }
        let heedless = match in_worker {
            true => canary::has(Bug::LateWorkers),
            false => canary::has(Bug::StaleClock),
        };
        let is_late = before_ns <= now_ns && node.body.start_before(request.id) <= now_ns;
        if is_late && !heedless {
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
