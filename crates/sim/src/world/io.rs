//! The course of one I/O.
use super::{Device, NONE, Slot, World};
use crate::draw::service_ns;
use crate::needs::{ANSWER_BYTES, COMMAND_BYTES};
use crate::queue::{Event, Ticket};
use crate::rule::Wanted;
use policy::{Completion, Ended, Group, NodeMeans, PathIndex, PathView, Request, Selector};
use shape::PortTime;

/// Data of one packet.
const PACKET_BYTES: u32 = 1448;
/// With more I/Os in flight than these on each connection a lost packet is found out in a round
/// trip;
const TELLING: u32 = 3;
/// else by a timer, in two of them and at least this.
const PROBE_NS: u64 = 10_000_000;

impl World<'_> {
    /// Chooses a path for an I/O and sends it there; a mirrored write goes to all.
    pub(super) fn place(&mut self, index: u32) {
        if self.plan.mirror && self.slots[index as usize].write {
            return self.copy_to_all(index);
        }
        match self.choose(index) {
            Some(path) => {
                self.send(index, path);
                self.look_later(index);
            }
            None => self.parked.push(index),
        }
    }

    fn choose(&mut self, index: u32) -> Option<usize> {
        let slot = &self.slots[index as usize];
        if let Some(replay) = &mut self.replay {
            let wanted = wanted(slot, self.now_ns);
            return replay.choose(self.plan, &self.truth, &self.paths, wanted);
        }
        if let Some(rules) = &mut self.rules {
            return rules.choose(self.plan, &self.truth, wanted(slot, self.now_ns));
        }
        let slot = *slot;
        let request = slot.request(self.now_ns);
        let (selector, views) = self.selector(&slot)?;
        let chosen = selector.select(&request, views)?;
        self.slots[index as usize].ticket = selector.ticket();
        Some(usize::from(chosen.0))
    }

    /// The selector of an I/O's CPU, and what it knows of the paths now.
    #[inline]
    pub(super) fn selector(&mut self, slot: &Slot) -> Option<(&mut Selector, &[PathView])> {
        let host = &mut self.hosts[usize::from(slot.host)];
        let cpu = usize::from(slot.cpu);
        if self.plan.stale_ns > 0 {
            host.publish(self.now_ns, self.plan.stale_ns);
        }
        host.hear(cpu);
        let core = &mut host.cores[cpu];
        let selector = core.selector.as_mut()?;
        let views = &mut host.views[core.node];
        for (path, view) in (0..).zip(views.iter_mut()) {
            let own = selector.in_flight(PathIndex(path));
            let path = usize::from(path);
            view.in_flight_elsewhere = match self.plan.stale_ns {
                0 => host.in_flight[path] - own,
                _ => host.published[cpu][path],
            };
        }
        Some((selector, views))
    }

    /// A write to every leg that is there; done when the slowest is.
    fn copy_to_all(&mut self, index: u32) {
        let of = self.slots[index as usize];
        let legs = (0..self.paths.len()).filter(|&path| self.paths[path].enabled);
        let mut copies = 0;
        for path in legs.collect::<alloc::vec::Vec<_>>() {
            let copy = Slot {
                parent: index,
                placed: false,
                ..of
            };
            if let Some(copy) = self.take(copy) {
                copies += 1;
                self.send(copy, path);
            }
        }
        self.slots[index as usize].copies = copies;
        if copies == 0 {
            self.parked.push(index);
        }
    }

    pub(super) fn send(&mut self, index: u32, path: usize) {
        let slot = &mut self.slots[index as usize];
        let core = &self.hosts[usize::from(slot.host)].cores[usize::from(slot.cpu)];
        slot.late_ns = core.cpu.behind_ns(self.now_ns);
        slot.path = path as u8;
        slot.placed = true;
        slot.placed_ns = self.now_ns;
        slot.back_ns = None;
        let slot = *slot;
        self.hosts[usize::from(slot.host)].in_flight[path] += 1;
        if let Some(rules) = &mut self.rules {
            rules.count(self.plan, path, wanted(&slot, self.now_ns), true);
        }
        let plan = &self.plan.paths[path];
        if self.paths[path].dead {
            return;
        }
        let data = if slot.write { slot.bytes } else { 0 };
        let line = &mut self.paths[self.plan.line(path)];
        let passed_ns = line.out.admit(COMMAND_BYTES + data, self.now_ns);
        let link = &mut self.paths[path];
        let mut late_ns = link.delay_ns + slot.late_ns;
        if plan.jitter_ns > 0 {
            late_ns += link.random.up_to(plan.jitter_ns);
        }
        if plan.large_from > 0 {
            let large = slot.bytes >= plan.large_from;
            late_ns += if large { plan.large_ns } else { plan.small_ns };
        }
        if plan.tail_per_million > 0
            && link.random.up_to(999_999) < u64::from(plan.tail_per_million)
        {
            late_ns += shape::pareto_ns(&mut link.random, plan.tail_ns);
        }
        let mut at_ns = passed_ns + late_ns;
        if plan.loss_per_million > 0 {
            at_ns = self.delivered_ns(&slot, 0, COMMAND_BYTES + data, at_ns);
        }
        if let Some(replay) = &mut self.replay {
            replay.sent(self.plan, index, path, wanted(&slot, self.now_ns), at_ns);
        }
        self.queue.push(at_ns, Event::Arrive(self.ticket(index)));
    }

    /// When a message arrives that would at `at_ns`, were no packet lost on its connection: later
    /// if one of its own is lost, and never before those sent ahead of it.
    fn delivered_ns(&mut self, slot: &Slot, back: usize, bytes: u32, at_ns: u64) -> u64 {
        let path = usize::from(slot.path);
        let (plan, link) = (&self.plan.paths[path], &mut self.paths[path]);
        let packets = u64::from(bytes.div_ceil(PACKET_BYTES));
        let part = (packets * u64::from(plan.loss_per_million)).min(1_000_000);
        let is_lost = link.loss.up_to(999_999) < part;
        let turn_ns = 2 * link.delay_ns;
        let host = &mut self.hosts[usize::from(slot.host)];
        let is_told = host.in_flight[path] > TELLING * host.cores.len() as u32;
        let late_ns = match (is_lost, is_told) {
            (false, _) => 0,
            // Packets behind it tell at once; else a timer does.
            (true, true) => turn_ns,
            (true, false) => (2 * turn_ns).max(PROBE_NS),
        };
        let core = &mut host.cores[usize::from(slot.cpu)];
        let last_ns = &mut core.delivered_ns[path][back];
        *last_ns = (at_ns + late_ns).max(*last_ns);
        *last_ns
    }

    /// An I/O reaches its device.
    pub(super) fn arrive(&mut self, io: Ticket) {
        if !self.is_now(io) {
            return;
        }
        let slot = &mut self.slots[io.slot as usize];
        let number = self.plan.paths[usize::from(slot.path)].device;
        let station = &mut self.stations[number];
        let free_ns = station.cpu.free_ns(self.now_ns);
        if free_ns > self.now_ns {
            return self.queue.push(free_ns, Event::Arrive(io));
        }
        let port_ns = station.stall.port_time(self.now_ns).0;
        match &mut station.device {
            Device::Flash(flash, servers) => {
                let (fixed, per_byte) = if slot.write {
                    (flash.write_ns, flash.write_byte_ps)
                } else {
                    (flash.read_ns, flash.read_byte_ps)
                };
                let mean = service_ns(&mut station.random, fixed, flash.noise);
                let service = mean + u64::from(slot.bytes) * per_byte / 1000;
                slot.port_ns = servers.serve(service, port_ns);
                let due_ns = station.stall.due_ns(PortTime(slot.port_ns));
                if let Some(replay) = &mut self.replay {
                    replay.arrived(number, io.slot, due_ns);
                }
                self.queue.push(due_ns, Event::Served(io));
            }
            Device::Disk(disk) => {
                let hit = disk.arrive(io, slot.address, slot.bytes, slot.write, port_ns);
                if let Some(done_ns) = hit {
                    slot.port_ns = done_ns;
                    let due_ns = station.stall.due_ns(PortTime(done_ns));
                    self.queue.push(due_ns, Event::Served(io));
                }
                self.disk_next(number);
            }
        }
    }

    /// A disk's arm has done what it did.
    pub(super) fn disk_free(&mut self, device: usize) {
        if let Device::Disk(disk) = &mut self.stations[device].device {
            disk.done();
        }
        self.disk_next(device);
    }

    fn disk_next(&mut self, device: usize) {
        let station = &mut self.stations[device];
        let Device::Disk(disk) = &mut station.device else {
            unreachable!("device {device} has no arm");
        };
        let port_ns = station.stall.port_time(self.now_ns).0;
        if let Some((io, done_ns)) = disk.start(port_ns) {
            self.slots[io.slot as usize].port_ns = done_ns;
            let due_ns = station.stall.due_ns(PortTime(done_ns));
            self.queue.push(due_ns, Event::Disk(device as u32));
            self.queue.push(due_ns, Event::Served(io));
        }
    }

    /// Its service is over, unless the device stood still meanwhile.
    pub(super) fn served(&mut self, io: Ticket) {
        if !self.is_now(io) {
            return;
        }
        let slot = &self.slots[io.slot as usize];
        let number = usize::from(slot.path);
        let plan = &self.plan.paths[number];
        let station = &mut self.stations[plan.device];
        let due_ns = station.stall.due_ns(PortTime(slot.port_ns));
        let due_ns = due_ns.max(station.cpu.free_ns(self.now_ns));
        if due_ns > self.now_ns {
            return self.queue.push(due_ns, Event::Served(io));
        }
        if let Some(replay) = &mut self.replay {
            replay.gone(plan.device, io.slot);
        }
        let data = if slot.write { 0 } else { slot.bytes };
        let line = &mut self.paths[self.plan.line(number)];
        let passed_ns = line.back.admit(ANSWER_BYTES + data, self.now_ns);
        let link = &mut self.paths[number];
        let mut at_ns = passed_ns + link.delay_ns;
        if plan.jitter_ns > 0 {
            at_ns += link.random.up_to(plan.jitter_ns);
        }
        if plan.loss_per_million > 0 {
            let slot = *slot;
            at_ns = self.delivered_ns(&slot, 1, ANSWER_BYTES + data, at_ns);
        }
        self.queue.push(at_ns, Event::End(io));
    }

    /// The host notices the end, if its CPU is there.
    pub(super) fn noticed(&mut self, io: Ticket) {
        if !self.is_now(io) {
            return;
        }
        let slot = self.slots[io.slot as usize];
        let host = &mut self.hosts[usize::from(slot.host)];
        let free_ns = host.cores[usize::from(slot.cpu)].cpu.free_ns(self.now_ns);
        if free_ns > self.now_ns {
            let away_ns = host.cores[usize::from(slot.cpu)].cpu.away_ns();
            let slot = &mut self.slots[io.slot as usize];
            slot.back_ns = slot.back_ns.or(Some(away_ns));
            return self.queue.push(free_ns, Event::End(io));
        }
        host.cores[usize::from(slot.cpu)].cpu.work(self.now_ns);
        self.leave(io.slot, Ended::Good);
        let path = usize::from(slot.path);
        if slot.parent == NONE {
            if !self.is_first(io.slot) {
                return self.give_back(io.slot);
            }
            self.count(path, &slot);
            self.give_back(io.slot);
            return self.done(slot.job, slot.cpu);
        }
        self.give_back(io.slot);
        let parent = &mut self.slots[slot.parent as usize];
        parent.copies -= 1;
        if parent.copies == 0 {
            let whole = *parent;
            self.count(path, &whole);
            self.give_back(slot.parent);
            self.done(whole.job, whole.cpu);
        }
    }

    /// An I/O leaves its path.
    pub(super) fn leave(&mut self, index: u32, ended: Ended) {
        let slot = &mut self.slots[index as usize];
        slot.placed = false;
        let (slot, path) = (*slot, usize::from(slot.path));
        let host = &mut self.hosts[usize::from(slot.host)];
        host.in_flight[path] -= 1;
        if let Some(replay) = &mut self.replay
            && ended == Ended::Failed
        {
            replay.gone(self.plan.paths[path].device, index);
        }
        if let Some(rules) = &mut self.rules {
            rules.count(self.plan, path, wanted(&slot, self.now_ns), false);
            return;
        }
        // A copy was never selected; what it took says nothing about reads.
        let super::Core {
            selector,
            cpu,
            means,
            node,
            ..
        } = &mut host.cores[usize::from(slot.cpu)];
        let Some(selector) = selector.as_mut().filter(|_| slot.parent == NONE) else {
            return;
        };
        let done = Completion {
            path: PathIndex(slot.path),
            group: group(&slot),
            latency_ns: self.now_ns - slot.placed_ns,
            ended,
            now_ns: self.now_ns,
            ticket: slot.ticket,
            gap_ns: slot
                .back_ns
                .map_or(0, |since| cpu.gap_ns(since, self.now_ns)),
        };
        if selector.complete(&done).weigh {
            selector.weigh();
        }
        if selector.take_news() {
            for (path, means) in (0..).zip(means) {
                *means = selector.means(PathIndex(path));
            }
            host.told[*node] += 1;
        }
    }

    /// A good end, as far as it is measured.
    fn count(&mut self, path: usize, slot: &Slot) {
        let bytes = u64::from(slot.bytes);
        let tally = &mut self.tally;
        tally.ios += 1;
        let step = (self.now_ns / crate::limits::SERIES_NS) as usize;
        if let Some(point) = tally.series.get_mut(step) {
            *point += bytes;
        }
        if self.now_ns < self.plan.warm_ns {
            return;
        }
        let kind = usize::from(slot.write);
        tally.bytes[kind] += bytes;
        tally.latencies[kind].add(self.now_ns - slot.begun_ns);
        // A mirror's write goes to every leg.
        if !(self.plan.mirror && slot.write) {
            tally.path_ios[path] += 1;
        }
        tally.host_bytes[usize::from(slot.host)] += bytes;
    }
}

impl super::Host {
    /// A CPU calculates its weights from what its node's measured, if that is new.
    #[inline]
    fn hear(&mut self, cpu: usize) {
        let told = self.told[self.cores[cpu].node];
        if self.cores[cpu].heard != told {
            self.cores[cpu].heard = told;
            self.weigh(cpu);
        }
    }

    #[inline(never)]
    fn weigh(&mut self, cpu: usize) {
        let node = |path: PathIndex| {
            let node = self.cores[cpu].node;
            let mut sum = NodeMeans::default();
            for core in self.cores.iter().filter(|core| core.node == node) {
                sum.add(&core.means[usize::from(path.0)]);
            }
            sum
        };
        let nodes: alloc::vec::Vec<NodeMeans> = (0..self.in_flight.len() as u8)
            .map(|path| node(PathIndex(path)))
            .collect();
        if let Some(selector) = &mut self.cores[cpu].selector {
            selector.weigh_node(|path| nodes[usize::from(path.0)]);
        }
    }

    /// Publishes the counts of all CPUs, if it is time.
    fn publish(&mut self, now_ns: u64, every_ns: u64) {
        if now_ns < self.published_ns {
            return;
        }
        self.published_ns = now_ns + every_ns;
        for (core, row) in self.cores.iter().zip(&mut self.published) {
            for (path, count) in (0..).zip(row.iter_mut()) {
                let own = core
                    .selector
                    .as_ref()
                    .map_or(0, |it| it.in_flight(PathIndex(path)));
                *count = self.in_flight[usize::from(path)] - own;
            }
        }
    }
}

impl Slot {
    /// The request as a policy sees it.
    pub(super) fn request(&self, now_ns: u64) -> Request {
        Request {
            source: u64::from(self.job),
            group: group(self),
            length: self.bytes,
            address: self.address,
            now_ns,
        }
    }
}

fn group(slot: &Slot) -> Group {
    if slot.write {
        Group::Write
    } else {
        Group::Read
    }
}

fn wanted(slot: &Slot, now_ns: u64) -> Wanted {
    Wanted {
        bytes: slot.bytes,
        write: slot.write,
        address: slot.address,
        job: slot.job,
        now_ns,
    }
}
