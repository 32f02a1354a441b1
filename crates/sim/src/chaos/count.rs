//! Counts that must agree when a world has come to rest: of applications, volumes, paths, ports and
//! devices.
use super::disk::BLOCK;
use super::kind::Kind;
use super::node::Body;
use super::run::{Course, Finding};
use alloc::format;
use alloc::string::String;
use nbd::client::CommandError;

/// What a host's paths counted, all cores together.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// Reads, writes, flushes.
    ios: [u64; 3],
    bytes: [u64; 2],
    /// Second copies.
    copies: u64,
}

impl Course<'_> {
    /// All of them.
    pub(super) fn counts(&self) -> Result<(), Finding> {
        if self.plan.layout.habit.unit != BLOCK as u64 {
            return Ok(()); // what is changed in parts is read and written whole
        }
        let mut all = Sum::default();
        for host in 0..self.rig.hosts.len() {
            let sum = self.sum(host);
            self.of_host(host, &sum).map_err(Finding::Unbalanced)?;
            (0..3).for_each(|group| all.ios[group] += sum.ios[group]);
            (0..2).for_each(|way| all.bytes[way] += sum.bytes[way]);
        }
        self.of_devices(&all).map_err(Finding::Unbalanced)?;
        self.of_ports().map_err(Finding::Unbalanced)
    }

    fn sum(&self, host: usize) -> Sum {
        let mut sum = Sum::default();
        for &node in &self.rig.hosts[host].cores {
            let Body::Core(engine) = &self.rig.world.nodes[node].body else {
                continue;
            };
            let it = engine.host();
            for path in it.paths(0) {
                let counters = it.counters(0, path);
                (0..3).for_each(|group| sum.ios[group] += counters.ios[group]);
                (0..2).for_each(|way| sum.bytes[way] += counters.bytes[way]);
                sum.copies += counters.copies;
            }
        }
        sum
    }

    /// What applications were told is what the paths did, and what the export counted; as far as a
    /// host's process and its paths were there all the time and nothing failed.
    fn of_host(&self, number: usize, sum: &Sum) -> Result<(), String> {
        let host = &self.rig.hosts[number];
        let (Body::Core(engine), Body::Client(client)) = (
            &self.rig.world.nodes[host.cores[0]].body,
            &self.rig.world.nodes[host.clients].body,
        ) else {
            return Ok(());
        };
        let strangers = self.pardons.iter().any(|(kind, ..)| *kind == Kind::Greedy);
        let lost = client
            .failed
            .iter()
            .any(|it| it.error == CommandError::Lost);
        if host.lives > 1 || lost {
            return Ok(());
        }
        let counters = engine.counters(0);
        let failed = client.failed.len() as u64;
        if !strangers && (counters.requests, counters.errors) != (client.ended, failed) {
            return Err(format!(
                "host {number}: the export counts {} requests and {} errors, its clients {} and \
                 {failed}",
                counters.requests, counters.errors, client.ended
            ));
        }
        let [read, written] = client.bytes;
        let agree = sum.bytes[1] == written
            && sum.bytes[0] >= read
            && (sum.copies > 0 || sum.bytes[0] == read);
        if failed == 0 && host.user.removed == 0 && !agree {
            return Err(format!(
                "host {number}: clients read {read} and wrote {written} bytes, its paths {sum:?}"
            ));
        }
        Ok(())
    }

    /// Whatever a path counts as done, a device did.
    fn of_devices(&self, all: &Sum) -> Result<(), String> {
        let mut done = super::node::Executed::default();
        for &node in &self.rig.targets {
            let it = &self.rig.world.nodes[node].executed;
            (0..3).for_each(|group| done.requests[group] += it.requests[group]);
            (0..2).for_each(|way| done.bytes[way] += it.bytes[way]);
        }
        let all_done = (0..3).all(|group| all.ios[group] <= done.requests[group])
            && (0..2).all(|way| all.bytes[way] <= done.bytes[way]);
        match all_done {
            true => Ok(()),
            false => Err(format!("the paths did {all:?}, the devices {done:?}")),
        }
    }

    /// Ports have the connections that are there, and nothing in flight.
    fn of_ports(&self) -> Result<(), String> {
        for (target, &node) in self.rig.targets.iter().enumerate() {
            let it = &self.rig.world.nodes[node];
            let Body::Target(engine) = &it.body else {
                continue;
            };
            for port in 0..self.plan.layout.ports {
                let stats = engine.port_stats(port);
                let here = |wire: super::node::Wire| wire.listener == u32::from(port);
                let open = it.open_conns().filter(|(_, conn)| here(conn.wire)).count();
                if (stats.in_flight, stats.connections as usize) != (0, open) {
                    return Err(format!(
                        "target {target} port {port}: {stats:?}, {open} connections are there"
                    ));
                }
            }
        }
        Ok(())
    }
}
