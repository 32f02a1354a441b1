//! Rules that choose paths knowing more than a policy can: each is a bound for what a policy could
//! reach, and the best of many is the bound of a scenario.
//!
//! # Contract
//! All hosts and CPUs share one [`Rules`]: it sees every I/O at once.
use crate::plan::{DevicePlan, Plan, Rule};
use alloc::vec::Vec;

/// One I/O that needs a path.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its bytes.
    pub bytes: u32,
    /// Whether it writes.
    pub write: bool,
    /// Where.
    pub address: u64,
    /// The job.
    pub job: u32,
    /// When.
    pub now_ns: u64,
}

/// The true figures of one path, as they are now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Truth {
    /// Alive and allowed.
    pub usable: bool,
    /// One way.
    pub delay_ns: u64,
    /// Each way, less others' traffic; 0 = unlimited.
    pub bytes_per_s: u64,
    /// Its device stands still until then.
    pub stalled_until_ns: u64,
}

/// A rule and what it counts.
#[derive(Clone, Debug)]
pub struct Rules {
    rule: Rule,
    /// How far each path is behind its share; of each kind, where they differ.
    due: Vec<i64>,
    ios: Vec<u64>,
    bytes: Vec<u64>,
    /// Bytes under way on each path's link, outwards and back.
    link_bytes: Vec<[u64; 2]>,
    /// Service under way at each device.
    device_ns: Vec<u64>,
    /// Address space.
    span: u64,
}

impl Rules {
    /// A rule over the paths of a plan, with nothing under way.
    pub fn new(rule: &Rule, plan: &Plan) -> Self {
        let paths = plan.paths.len();
        let kinds = match rule {
            Rule::Kinds(kinds) => kinds.len(),
            _ => 1,
        };
        Self {
            rule: rule.clone(),
            due: vec![0; paths * kinds],
            ios: vec![0; paths],
            bytes: vec![0; paths],
            link_bytes: vec![[0; 2]; paths],
            device_ns: vec![0; plan.devices.len()],
            span: plan.jobs.iter().fold(1, |most, job| most.max(job.span)),
        }
    }

    /// The path for an I/O; `None`: none is usable.
    pub fn choose(&mut self, plan: &Plan, truth: &[Truth], wanted: Wanted) -> Option<usize> {
        let usable = (0..truth.len()).filter(|&path| truth[path].usable);
        let chosen = match &self.rule {
            Rule::Split(share) => most_due(&mut self.due[..truth.len()], share, usable)?,
            Rule::Kinds(kinds) => {
                let kind =
                    |it: &&(u32, bool, Vec<u32>)| (it.0, it.1) == (wanted.bytes, wanted.write);
                let number = kinds.iter().position(|it| kind(&it));
                let Some(number) = number else {
                    return usable.min();
                };
                let due = &mut self.due[number * truth.len()..][..truth.len()];
                most_due(due, &kinds[number].2, usable)?
            }
            Rule::Window { share, bytes } => {
                let load = if *bytes { &self.bytes } else { &self.ios };
                let more = if *bytes { u64::from(wanted.bytes) } else { 1 };
                usable.min_by_key(|&path| match share[path] {
                    0 => u64::MAX,
                    part => (load[path] + more) * 65_536 / u64::from(part),
                })?
            }
            Rule::Fill { order, caps } => {
                let mut usable = order.iter().copied().filter(|&path| truth[path].usable);
                let room = usable
                    .clone()
                    .find(|&path| self.ios[path] < u64::from(caps[path]));
                room.or_else(|| usable.next_back())?
            }
            // Of replaying, what is left where a device can't be foreseen.
            Rule::Clairvoyant(weight) | Rule::Replay(weight) => {
                usable.min_by_key(|&path| self.cost(plan, path, truth, wanted, *weight))?
            }
            Rule::Stripe(stripe) => nth(usable, wanted.address / stripe.max(&1))?,
            Rule::Region => nth(usable, wanted.address * truth.len() as u64 / self.span)?,
            Rule::Job => nth(usable, u64::from(wanted.job))?,
        };
        Some(chosen)
    }

    /// An I/O is placed on a path, or has left it.
    pub fn count(&mut self, plan: &Plan, path: usize, wanted: Wanted, begins: bool) {
        let (device, bytes) = (plan.paths[path].device, u64::from(wanted.bytes));
        for (sum, by) in [
            (&mut self.ios[path], 1),
            (&mut self.bytes[path], bytes),
            (
                &mut self.link_bytes[plan.line(path)][usize::from(!wanted.write)],
                bytes,
            ),
            (
                &mut self.device_ns[device],
                service_ns(&plan.devices[device], wanted),
            ),
        ] {
            *sum = if begins { *sum + by } else { *sum - by };
        }
    }

    /// Completion time by the true figures, waiting weighed by 1 + `weight` / 8.
    fn cost(&self, plan: &Plan, path: usize, truth: &[Truth], wanted: Wanted, weight: u32) -> u64 {
        let (it, now) = (&plan.paths[path], &truth[path]);
        let device = &plan.devices[it.device];
        let (bytes, service) = (u64::from(wanted.bytes), service_ns(device, wanted));
        let over_link = |bytes: u64| match now.bytes_per_s {
            0 => 0,
            rate => bytes * 1_000 / (rate / 1_000_000).max(1),
        };
        let extra = match it.large_from {
            0 => 0,
            from if wanted.bytes >= from => it.large_ns,
            _ => it.small_ns,
        };
        let base = 2 * now.delay_ns + it.jitter_ns + service + over_link(bytes) + extra;
        let queued = self.device_ns[it.device] + service;
        let device_ns = queued / u64::from(servers(device));
        let link_ns =
            over_link(self.link_bytes[plan.line(path)][usize::from(!wanted.write)] + bytes);
        let wait = device_ns.max(link_ns).saturating_sub(base);
        base + wait
            + wait * u64::from(weight) / 8
            + now.stalled_until_ns.saturating_sub(wanted.now_ns)
    }
}

/// The path that is farthest behind its share.
fn most_due(due: &mut [i64], share: &[u32], usable: impl Iterator<Item = usize>) -> Option<usize> {
    let whole: i64 = share.iter().map(|&part| i64::from(part)).sum();
    for (due, &part) in due.iter_mut().zip(share) {
        *due += i64::from(part);
    }
    let chosen = usable.max_by_key(|&path| (due[path], usize::MAX - path))?;
    due[chosen] -= whole;
    Some(chosen)
}

/// The usable path of this number, counted round and round.
fn nth(usable: impl Iterator<Item = usize> + Clone, number: u64) -> Option<usize> {
    let count = usable.clone().count() as u64;
    usable.clone().nth(number.checked_rem(count)? as usize)
}

/// How many I/Os a device serves at once.
pub fn servers(device: &DevicePlan) -> u16 {
    match device {
        DevicePlan::Flash(flash) => flash.servers.max(1),
        DevicePlan::Disk(_) => 1,
    }
}

/// Mean service of an I/O; of a random one on a disk.
pub fn service_ns(device: &DevicePlan, wanted: Wanted) -> u64 {
    let bytes = u64::from(wanted.bytes);
    match device {
        DevicePlan::Flash(it) if wanted.write => it.write_ns + bytes * it.write_byte_ps / 1000,
        DevicePlan::Flash(it) => it.read_ns + bytes * it.read_byte_ps / 1000,
        DevicePlan::Disk(it) => {
            let transfer = bytes * 1_000 / (it.bytes_per_s / 1_000_000).max(1);
            it.seek_ns + it.stroke_ns / 2 + it.turn_ns / 2 + transfer
        }
    }
}
