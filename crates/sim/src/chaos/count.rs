//! Counts that must agree when a world has come to rest: of applications, exports, paths, ports and
//! devices.
//!
//! # Contract
//! Each life of a host is judged by itself. Its counts must equal the results that its applications
//! received, exactly, as far as they received them: requests that were cut off or failed may have
//! been executed in part, so counts lie between the good ones and all.
use super::client::Tally;
use super::lives::Life;
use super::node::Executed;
use super::prelude::*;
use engine::host::{HoldStats, PathCounters};

/// Counts of a host's paths, all cores together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    done: Executed,
    /// Second copies.
    copies: u64,
    /// Bytes of changes that were done again.
    again: u64,
}

impl Sum {
    /// With what one more path counts.
    pub fn add(&mut self, path: &PathCounters) {
        self.done.join(&Executed {
            requests: path.ios,
            bytes: path.bytes,
        });
        self.copies += path.copies;
    }

    /// With what a volume did again.
    pub fn add_again(&mut self, stats: &HoldStats) {
        self.again += stats.again_bytes_total;
    }

    fn join(&mut self, other: &Self) {
        self.done.join(&other.done);
        self.copies += other.copies;
        self.again += other.again;
    }
}

impl Course<'_> {
    /// All of them.
    pub(super) fn counts(&mut self) -> Result<(), Finding> {
        let mut all = Sum::default();
        for number in 0..self.rig.hosts.len() {
            let (sum, export) = self.rig.counted(number);
            let tallies = self.rig.client(number).tallies();
            let host = &self.rig.hosts[number];
            let removed = host.user.removed + host.user.leaving();
            let mut exact = [false; 3];
            for (at, life) in host.lives.all.iter().enumerate() {
                let here = Life {
                    sum,
                    export,
                    removed,
                    ..life.clone()
                };
                let life = if life.over { life } else { &here };
                all.join(&life.sum);
                let told = host.lives.told(at, &tallies);
                let what = format!("host {number} life {at}");
                let strangers = self.had_strangers(number);
                let judged = self.of_life(&what, life, &told, strangers);
                let judged = judged.map_err(Finding::Unbalanced)?;
                (0..3).for_each(|at| exact[at] |= judged[at]);
            }
            let checks = [Check::Export, Check::Paths, Check::Bounds];
            for (check, exact) in checks.into_iter().zip(exact) {
                self.judges(check, exact);
            }
        }
        self.of_devices(&all).map_err(Finding::Unbalanced)?;
        self.of_ports().map_err(Finding::Unbalanced)
    }

    /// The results that applications received equal the counts of the export and of the paths of
    /// one life. Returns what could be compared: exactly at the export, exactly at the paths,
    /// within bounds.
    fn of_life(
        &self,
        who: &str,
        life: &Life,
        told: &Tally,
        strangers: bool,
    ) -> Result<[bool; 3], String> {
        let is_in = |least: u64, count: u64, more: u64| (least..=least + more).contains(&count);
        // Requests of unrelated clients are counted as well.
        let unknown = told.lost + if strangers { u64::MAX / 2 } else { 0 };
        let export = &life.export;
        let agree = is_in(told.answered, export.requests, unknown)
            && is_in(told.errors, export.errors, unknown);
        if !agree && !life.recounted {
            return Err(format!(
                "{who}: the export counts {export:?}, its clients {told:?}"
            ));
        }
        let sum = &life.sum;
        let (bytes, again) = (sum.done.bytes, sum.again);
        // A change of a part of a block reads the block first.
        let parts = self.plan.layout.habit.unit != BLOCK as u64;
        for (way, more) in [(0, sum.copies > 0 || parts), (1, false)] {
            let least = if life.removed > 0 { 0 } else { told.bytes[way] };
            let most = if more {
                u64::MAX
            } else {
                told.bytes[way] + told.unknown[way] + way as u64 * again
            };
            if !(least..=most).contains(&bytes[way]) {
                return Err(format!(
                    "{who}: its paths count {sum:?}, its clients {told:?}"
                ));
            }
        }
        let exact = told.unknown == [0; 2] && life.removed == 0 && again == 0;
        Ok([
            unknown == 0 && told.answered > 0 && !life.recounted,
            exact && told.bytes != [0; 2],
            life.over || !exact || unknown > 0,
        ])
    }

    /// Every I/O that a path counts as done was done by a device.
    fn of_devices(&mut self, all: &Sum) -> Result<(), String> {
        let (mut done, counted) = (Executed::default(), &all.done);
        let targets = self.rig.targets.iter();
        targets.for_each(|&node| done.join(&self.rig.world.nodes[node].executed));
        let all_done = (0..3).all(|group| counted.requests[group] <= done.requests[group])
            && (0..2).all(|way| counted.bytes[way] <= done.bytes[way]);
        self.judges(Check::Devices, all.done.requests != [0; 3]);
        match all_done {
            true => Ok(()),
            false => Err(format!("the paths did {all:?}, the devices {done:?}")),
        }
    }

    /// Ports have the connections that are there, and nothing in flight.
    fn of_ports(&mut self) -> Result<(), String> {
        for (target, &node) in self.rig.targets.iter().enumerate() {
            let it = &self.rig.world.nodes[node];
            let Some(engine) = it.target() else {
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
                if open > 0 {
                    self.report.judged.insert(Check::Ports);
                }
            }
        }
        Ok(())
    }
}
