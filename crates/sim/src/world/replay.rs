//! A clairvoyant: for each path it goes through everything that is under way, from the true state
//! of links and servers on, and so knows when one more I/O would end, but for chance to come.
//!
//! # Contract
//! Only for devices of servers. I/O under way is replayed anew when a quarter of it has moved on;
//! in between the last result grows with each I/O, so that the price per I/O stays the same however
//! much is under way.
use super::Path;
use crate::needs::needs;
use crate::plan::{DevicePlan, Plan};
use crate::rule::{Truth, Wanted};
use alloc::vec::Vec;
use shape::{Bandwidth, Servers};

/// An I/O between its host and its device.
#[derive(Clone, Copy, Debug)]
struct Coming {
    slot: u32,
    path: usize,
    arrives_ns: u64,
    service_ns: u64,
    back_bytes: u32,
}

/// An I/O at its device.
#[derive(Clone, Copy, Debug)]
struct Served {
    slot: u32,
    path: usize,
    done_ns: u64,
    back_bytes: u32,
}

/// A device, as it will be when all that is under way to it has been served.
#[derive(Clone, Debug)]
struct Ahead {
    servers: Servers,
    coming: Vec<Coming>,
    served: Vec<Served>,
    /// So many have arrived or left since it was gone through.
    moved: usize,
}

/// The rule and what it foresees.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Eighths of a waiting time by which it costs more.
    weight: u32,
    devices: Vec<Ahead>,
    /// The way back of each path after all answers to come.
    back: Vec<Bandwidth>,
}

impl Replay {
    /// Nothing is under way.
    pub fn new(weight: u32, plan: &Plan) -> Self {
        let ahead = Ahead {
            servers: Servers::new(0, 0),
            coming: Vec::new(),
            served: Vec::new(),
            moved: usize::MAX,
        };
        Self {
            weight,
            devices: vec![ahead; plan.devices.len()],
            back: vec![Bandwidth::new(0); plan.paths.len()],
        }
    }

    /// The path for an I/O; `None`: none is usable.
    pub fn choose(
        &mut self,
        plan: &Plan,
        truth: &[Truth],
        paths: &[Path],
        wanted: Wanted,
    ) -> Option<usize> {
        for device in 0..self.devices.len() {
            let ahead = &self.devices[device];
            if ahead.moved > (ahead.coming.len() + ahead.served.len()) / 4 {
                self.go_through(plan, device, paths);
            }
        }
        let usable = (0..truth.len()).filter(|&path| truth[path].usable);
        usable.min_by_key(|&path| self.cost(plan, path, &truth[path], paths, wanted))
    }

    /// When it would be back, with its waiting weighed.
    fn cost(&self, plan: &Plan, path: usize, truth: &Truth, paths: &[Path], wanted: Wanted) -> u64 {
        let (it, link) = (&plan.paths[path], &paths[path]);
        let needs = needs(plan, path, wanted.bytes, wanted.write);
        let delays_ns = needs.alone_ns - needs.service_ns - 2 * it.delay_ns;
        let line = plan.line(path);
        let (mut out, mut back) = (paths[line].out.clone(), self.back[line].clone());
        let [out_bytes, back_bytes] = needs.link_bytes.map(|bytes| bytes as u32);
        let alone_ns = |mut link: Bandwidth, bytes| link.admit(bytes, u64::MAX / 2) - u64::MAX / 2;
        let transfer_ns = alone_ns(out.clone(), out_bytes) + alone_ns(back.clone(), back_bytes);
        // Jitter, extra and tail: what is left of the time alone.
        let late_ns = delays_ns.saturating_sub(transfer_ns);
        let arrives_ns = out.admit(out_bytes, wanted.now_ns) + link.delay_ns + late_ns;
        let servers = &self.devices[it.device].servers;
        let begins_ns = arrives_ns
            .max(servers.free_ns())
            .max(truth.stalled_until_ns);
        let done_ns = begins_ns + needs.service_ns;
        let ends_ns = back.admit(back_bytes, done_ns) + link.delay_ns;
        let takes_ns = ends_ns - wanted.now_ns;
        let least_ns = 2 * link.delay_ns + late_ns + transfer_ns + needs.service_ns;
        let wait_ns = takes_ns.saturating_sub(least_ns);
        takes_ns + wait_ns * u64::from(self.weight) / 8
    }

    /// An I/O is on its way.
    pub fn sent(&mut self, plan: &Plan, slot: u32, path: usize, wanted: Wanted, arrives_ns: u64) {
        let needs = needs(plan, path, wanted.bytes, wanted.write);
        let (service_ns, back_bytes) = (needs.service_ns, needs.link_bytes[1] as u32);
        let ahead = &mut self.devices[plan.paths[path].device];
        let done_ns = ahead.servers.serve(service_ns, arrives_ns);
        self.back[plan.line(path)].admit(back_bytes, done_ns);
        ahead.coming.push(Coming {
            slot,
            path,
            arrives_ns,
            service_ns,
            back_bytes,
        });
    }

    /// It has reached its device, which will be done with it then.
    pub fn arrived(&mut self, device: usize, slot: u32, done_ns: u64) {
        let ahead = &mut self.devices[device];
        let Some(at) = ahead.coming.iter().position(|it| it.slot == slot) else {
            return;
        };
        let Coming {
            path, back_bytes, ..
        } = ahead.coming.remove(at);
        ahead.moved = ahead.moved.saturating_add(1);
        ahead.served.push(Served {
            slot,
            path,
            done_ns,
            back_bytes,
        });
    }

    /// It has left its device, or failed on the way.
    pub fn gone(&mut self, device: usize, slot: u32) {
        let ahead = &mut self.devices[device];
        if let Some(at) = ahead.served.iter().position(|it| it.slot == slot) {
            ahead.served.remove(at);
        } else if let Some(at) = ahead.coming.iter().position(|it| it.slot == slot) {
            ahead.coming.remove(at);
        }
        ahead.moved = ahead.moved.saturating_add(1);
    }

    fn go_through(&mut self, plan: &Plan, device: usize, paths: &[Path]) {
        for (path, back) in self.back.iter_mut().enumerate() {
            if plan.paths[path].device == device {
                *back = paths[path].back.clone();
            }
        }
        let ahead = &mut self.devices[device];
        ahead.moved = 0;
        if let DevicePlan::Flash(flash) = plan.devices[device] {
            ahead.servers = Servers::new(flash.servers, flash.read_ns);
        }
        ahead.served.sort_by_key(|it| it.done_ns);
        for it in &ahead.served {
            ahead.servers.serve(0, it.done_ns);
            self.back[plan.line(it.path)].admit(it.back_bytes, it.done_ns);
        }
        ahead.coming.sort_by_key(|it| it.arrives_ns);
        for it in &ahead.coming {
            let done_ns = ahead.servers.serve(it.service_ns, it.arrives_ns);
            self.back[plan.line(it.path)].admit(it.back_bytes, done_ns);
        }
    }
}
