//! How a running engine is doing, in JSON.
mod damage;
mod health;
mod holds;
mod mirrors;
mod probation;

use super::config::Volume;
use super::entries::PathEntry;
use super::events::Kind as EventKind;
use super::events::watch::Shown;
use super::latency;
use super::service::{Service, State};
use super::ublk::ShownNode;
use crate::advice;
use crate::control::rpc::ControlError;
use crate::hedges;
use crate::uri::{PathKeys, UriKind};
use cores::CoreReport;
use engine::export::ExportCounters;
use engine::host::{ErrorClass, HedgeStats, PathReport, PathState};
use engine::{ClientPlace, LatencyHistogram, QueueCounters};
use policy::limits::{BUCKETS, FIRST_BUCKET_BYTES};
use policy::{PathStats, Policy};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::MutexGuard;
use target::quantity::Ana;

/// Reports of all cores, beside what the service knows.
pub struct Report<'a> {
    state: MutexGuard<'a, State>,
    cores: Vec<CoreReport>,
    service: &'a Service,
    /// Nodes with their users.
    nodes: Vec<(ShownNode, Vec<String>)>,
}

/// Statistics of one core, path and group, and of each size that had I/O (row A9).
fn of_core(core: usize, report: &PathReport, group: usize) -> Value {
    let values = |of: &PathStats| {
        json!({
            "weight": of.weight,
            "credit": of.credit,
            "score": of.score,
            "smoothed_ns": of.smoothed_ns,
            "selections": of.selections,
            "samples": of.samples,
            "ignored": of.ignored,
        })
    };
    let mut shown = values(&report.groups[group]);
    shown["core"] = core.into();
    let Some(buckets) = report.buckets.get(group) else {
        return shown;
    };
    let used = (0..)
        .zip(buckets)
        .filter(|(_, of)| **of != PathStats::default());
    let used = used.map(|(bucket, of)| {
        let mut shown = values(of);
        let is_last = bucket + 1 == BUCKETS;
        shown["below"] = (!is_last).then_some(FIRST_BUCKET_BYTES << bucket).into();
        shown
    });
    shown["buckets"] = used.collect();
    shown
}

/// How well a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Health {
    Ok = 0,
    Degraded = 1,
    Down = 2,
}

impl Health {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Down => "down",
        }
    }
}

/// Whether maintenance counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum View {
    /// Paths, legs and volumes under maintenance are not missed.
    Expected,
    /// They are: it is as if there were no maintenance.
    Actual,
}

impl View {
    /// Whether an object with this maintenance is missed.
    fn misses(self, maintenance: &Value) -> bool {
        self == Self::Actual || maintenance.is_null()
    }
}

impl<'a> Report<'a> {
    /// Of this moment.
    pub fn new(
        state: MutexGuard<'a, State>,
        cores: Vec<CoreReport>,
        service: &'a Service,
        nodes: Vec<(ShownNode, Vec<String>)>,
    ) -> Self {
        Self {
            state,
            cores,
            service,
            nodes,
        }
    }

    /// Volumes, their size and where they are exported.
    pub fn list(&self) -> Value {
        let volumes = self.state.volumes.iter();
        let volumes = volumes.filter(|(_, running)| running.of.leg_of.is_none());
        let volumes = volumes.map(|(index, running)| {
            let volume = &running.of;
            json!({
                "name": volume.name,
                "kind": kind(volume),
                "state": self.health(index, View::Expected).name(),
                "actual": self.health(index, View::Actual).name(),
                "bytes": running.info.map(|info| info.bytes),
                "block_size": running.info.map(|info| 1u32 << info.block_shift),
                "policy": self.policy(index),
                "paths": volume.paths.len(),
                "legs": volume.legs.len(),
                "exports": self.exports(index),
            })
        });
        json!({"volumes": volumes.collect::<Vec<_>>()})
    }

    /// Everything that is counted.
    pub fn stat(&self) -> Value {
        let volumes = self.state.volumes.iter();
        let volumes = volumes.map(|(index, running)| {
            let volume = &running.of;
            if volume.is_mirror() {
                return self.mirror(index);
            }
            let paths = (0..).zip(&volume.paths);
            let paths = paths.map(|(path, keys)| self.path(index, path, keys));
            json!({
                "name": volume.name,
                "kind": kind(volume),
                "leg_of": volume.leg_of,
                "state": self.health(index, View::Expected).name(),
                "actual": self.health(index, View::Actual).name(),
                "maintenance": self.maintenance(index),
                "policy": running.of.policy.to_string(),
                "program": self.service.programs.show(index, running.of.policy),
                "ewma_shift": running.of.knobs().ewma_shift,
                "weight_timeout_ns": running.of.knobs().weight_timeout_ns,
                "hedge": running.of.knobs().hedging.to_string(),
                "hedging": running.of.knobs().hedging.works(running.of.policy),
                "waiting": self.waiting(index),
                "failover": self.failover(index),
                "hedges": self.hedges(index),
                "paths": paths.collect::<Vec<_>>(),
                "exports": self.exports(index),
            })
        });
        json!({
            "uptime_ns": self.service.started.elapsed().as_nanos() as u64,
            "volumes": volumes.collect::<Vec<_>>(),
        })
    }

    /// One volume, or the worst of all.
    ///
    /// # Errors
    /// There is no such volume.
    pub fn check(&self, name: Option<&str>) -> Result<Value, ControlError> {
        let volumes = self.state.volumes.iter();
        // Legs are their mirror's matter.
        let asked = volumes.filter(|(_, volume)| match name {
            Some(name) => volume.of.name == name,
            None => volume.of.leg_of.is_none(),
        });
        let states: Vec<_> = asked
            .map(|(index, volume)| {
                let of = |view| self.health(index, view);
                (index, &volume.of, of(View::Expected), of(View::Actual))
            })
            .collect();
        if let (Some(name), true) = (name, states.is_empty()) {
            return Err(self.state.volumes.unknown(name));
        }
        let worst = states.iter().map(|(_, _, health, _)| *health).max();
        let worst = worst.unwrap_or(Health::Ok);
        let actual = states.iter().map(|(.., actual)| *actual).max();
        let volumes = states.iter().map(|(index, of, health, actual)| {
            let paths = (0..).zip(&of.paths).map(|(path, keys)| {
                let hindrance = self.hindrance(*index, path);
                let mut shown = json!({
                    "path": self.number(*index, path),
                    "name": self.entry(*index, path).map(PathEntry::name),
                    "uri": keys.uri.to_string(),
                    "usable": hindrance.is_none(),
                    "why": hindrance,
                    "damage": self.damage(*index, path),
                });
                self.add_alarms(*index, path, &mut shown);
                shown
            });
            let why = self.mirror_state(*index);
            let why = why.or_else(|| self.mirror_note(*index));
            let why = why.or_else(|| self.why(*index));
            json!({
                "name": of.name,
                "kind": kind(of),
                "state": health.name(),
                "actual": actual.name(),
                "why": why,
                "risk": self.risk(*index),
                "maintenance": self.maintenance(*index),
                "paths": paths.collect::<Vec<_>>(),
                "legs": self.legs(*index),
            })
        });
        Ok(json!({
            "code": worst as u8,
            "state": worst.name(),
            "actual": actual.unwrap_or(Health::Ok).name(),
            "volumes": volumes.collect::<Vec<_>>(),
        }))
    }

    /// States of volumes, mirrors and their legs, and why they are what they are.
    pub fn states(&self) -> Vec<Shown> {
        let mut all = Vec::new();
        let volumes = self.state.volumes.iter();
        for (index, it) in volumes.filter(|(_, it)| it.of.leg_of.is_none()) {
            let name = &it.of.name;
            let mut paths = (0..it.of.paths.len()).filter_map(|path| {
                let why = self.hindrance(index, path)?;
                Some(format!("path {}: {why}", self.entry(index, path)?.name()))
            });
            // A change of maintenance is no change of a volume.
            let health = self.health(index, View::Actual);
            let is_ok = health == Health::Ok;
            let why = || self.mirror_state(index).or_else(|| self.why(index));
            all.push(Shown {
                kind: EventKind::Volume,
                volume: name.clone(),
                name: None,
                state: health.name(),
                reason: (!is_ok).then(|| why().or_else(|| paths.next())).flatten(),
            });
            all.extend(self.mirror_states(index, name));
        }
        all
    }

    /// The keys of `nvme list-subsys -o json` (nvme-cli 2), also of its verbose form: of hosts
    /// `HostNQN`, `HostID`, `Subsystems`; of those `Name`, `NQN`, `Model`, `Serial`, `Firmware`,
    /// `IOPolicy`, `Type`, `Paths`; of those `Name`, `Transport`, `Address`, `State`; `Cntlid`, and
    /// `ANAState`, where they are known. Paths of other kinds have no subsystem; `stat` has them.
    pub fn list_subsys(&self) -> Value {
        let mut subsystems: BTreeMap<(usize, u16, String), Vec<Value>> = BTreeMap::new();
        let mut controllers = 0;
        for (at, (volume, running)) in self.state.volumes.iter().enumerate() {
            for (path, keys) in (0..).zip(&running.of.paths) {
                let UriKind::NvmeTcp(tcp) = keys.uri.kind() else {
                    continue;
                };
                let key = (at, volume, tcp.subsystem.clone());
                let report = self.core0(volume, path);
                let state = self.path_state(volume, path);
                let mut value = json!({
                    "Name": format!("nvme{controllers}"),
                    "Transport": "tcp",
                    "Address": format!("traddr={},trsvcid={}", tcp.host, tcp.port),
                    "State": state,
                    "Throughput": keys.throughput,
                });
                if let Some(ana) = report.and_then(ana_state) {
                    value["ANAState"] = ana.into();
                }
                if let Some(facts) = report.and_then(|it| it.facts.as_ref()) {
                    value["Cntlid"] = facts.controller.cntlid.into();
                }
                subsystems.entry(key).or_default().push(value);
                controllers += 1;
            }
        }
        let subsystems = subsystems.into_iter().zip(0..);
        let subsystems = subsystems.map(|(((_, volume, nqn), paths), number)| {
            let mut all = 0..self.state.volumes[volume].of.paths.len();
            let facts = all.find_map(|path| self.core0(volume, path)?.facts.as_ref());
            let controller = facts.map(|it| &it.controller);
            json!({
                "Name": format!("nvme-subsys{number}"),
                "NQN": nqn,
                "Model": controller.map(|it| &it.model),
                "Serial": controller.map(|it| &it.serial),
                "Firmware": controller.map(|it| &it.firmware),
                "IOPolicy": self.state.volumes[volume].of.policy.to_string(),
                "Type": "nvm",
                "Paths": paths,
            })
        });
        json!([{
            "HostNQN": self.service.identity.nqn,
            "HostID": uuid::Uuid::from_bytes(self.service.identity.id).to_string(),
            "Subsystems": subsystems.collect::<Vec<_>>(),
        }])
    }

    fn core0(&self, volume: u16, path: usize) -> Option<&PathReport> {
        let place = self.place(volume, path)?;
        let volumes = &self.cores.first()?.volumes;
        volumes.get(usize::from(volume))?.get(place)
    }

    /// The path that is shown at this place.
    fn entry(&self, volume: u16, path: usize) -> Option<&PathEntry> {
        self.state.volumes[volume].entries().at(path)
    }

    /// Its number.
    fn number(&self, volume: u16, path: usize) -> Option<usize> {
        Some(self.entry(volume, path)?.index().0.into())
    }

    /// Its place in the reports of cores, if the engine has it.
    fn place(&self, volume: u16, path: usize) -> Option<usize> {
        let it = self.entry(volume, path).filter(|it| it.is_there())?;
        Some(it.index().0.into())
    }

    /// One path on all cores.
    fn reports(&self, volume: u16, path: usize) -> impl Iterator<Item = &PathReport> {
        let cores = self.cores.iter();
        let place = self.place(volume, path);
        cores.filter_map(move |core| core.volumes.get(usize::from(volume))?.get(place?))
    }

    /// How it is: as the first core has it that can't use it, else as all have it.
    fn path_state(&self, volume: u16, path: usize) -> &'static str {
        if self.place(volume, path).is_none() {
            return "absent";
        }
        let mut reports = self.reports(volume, path);
        let first = self.core0(volume, path);
        let other = reports.find(|report| report.state != PathState::Live);
        let shown = first.filter(|report| report.state != PathState::Live);
        shown
            .or(other)
            .or(first)
            .map_or("unknown", |report| report.state.name())
    }

    /// Why a path takes no I/O, on some core at least: it isn't whole then.
    fn hindrance(&self, volume: u16, path: usize) -> Option<String> {
        let of = &self.state.volumes[volume].of;
        let uri = &of.paths.get(path)?.uri;
        let entry = self.entry(volume, path)?;
        if let Some(why) = entry.absence() {
            return Some(why);
        }
        let mut reports = self.reports(volume, path).peekable();
        if reports.peek().is_none() {
            return Some("nothing is known of it yet".into());
        }
        let of_engine = reports.find_map(|report| report.hindrance.clone());
        let of_name = of_engine
            .is_some()
            .then(|| self.service.name_hindrance(uri));
        if let Some(why) = of_name.flatten() {
            return Some(why);
        }
        // The engine sees of a queue that is gone only that its I/O fails.
        let queue = match self.path_state(volume, path) {
            "live" | "probation" | "reconnecting" => self.service.ends.queue(uri),
            _ => None,
        };
        let of_queue = queue.and_then(|queue| queue.hindrance());
        let of_engine = of_engine.map(|why| {
            let why = advice::of_target(&why, &uri.to_string());
            match self.service.name_doubt(uri) {
                Some(doubt) => format!("{why}; {doubt}"),
                None => why,
            }
        });
        of_queue.or(of_engine)
    }

    fn health(&self, volume: u16, view: View) -> Health {
        let wrong = self.is_unmarked(volume)
            || self.lost_sockets(volume).next().is_some()
            || !self.failed_queues(volume).is_empty()
            || self.node_trouble(volume).is_some()
            || self.full_state_directory().is_some()
            || self.program_trouble(volume).is_some();
        let least = match wrong {
            true => Health::Degraded,
            false => Health::Ok,
        };
        // Those of the whole volume are expected to be away.
        if view.misses(&self.maintenance(volume)) {
            self.health_of_paths(volume, view).max(least)
        } else {
            Health::Ok
        }
    }

    /// Exports to which no client can connect: their socket was removed.
    fn lost_sockets(&self, volume: u16) -> impl Iterator<Item = &str> {
        let exports = self.state.exports.iter().flatten();
        let of = exports.filter(move |it| it.volume == volume && it.accepting.is_lost());
        of.map(|it| it.uri.as_str())
    }

    /// Sockets of servers of queues of the volume that have failed.
    fn failed_queues(&self, volume: u16) -> BTreeSet<PathBuf> {
        let all = self.state.queue_namespaces();
        let of = all.filter(|it| it.volume == volume);
        of.filter_map(|it| it.failed).collect()
    }

    /// Trouble with the volume's block device of the kernel.
    fn node_trouble(&self, volume: u16) -> Option<String> {
        let name = &self.state.volumes[volume].of.name;
        self.service.nodes.trouble(name)
    }

    /// A line for each path that failed I/O for what is behind it, of late.
    fn device_errors(&self, volume: u16) -> impl Iterator<Item = String> {
        let count = self.state.volumes[volume].of.paths.len();
        (0..count).filter_map(move |path| self.path_errors(volume, path))
    }

    /// The same of one path. The alarm `errors` is about many errors at a time, repeated or not;
    /// one that was not repeated is worth a line by itself: a client or a leg got it.
    fn path_errors(&self, volume: u16, path: usize) -> Option<String> {
        let uri = &self.state.volumes[volume].of.paths.get(path)?.uri;
        let all = self.reports(volume, path).map(|it| it.device_errors);
        let [repeated, failed] = all.fold([0_u32; 2], |sum, more| {
            [0, 1].map(|at| sum[at].saturating_add(more[at]))
        });
        (failed > 0).then(|| {
            format!(
                "path {uri} failed I/O within the last two minutes ({failed} failed, {repeated} \
                 were repeated): see the log, and the target"
            )
        })
    }

    /// Why the program that a volume should have does not choose.
    fn program_trouble(&self, volume: u16) -> Option<String> {
        let policy = self.state.volumes[volume].of.policy;
        self.service.programs.trouble(volume, policy)
    }

    /// Trouble of a volume beside its paths.
    fn why(&self, volume: u16) -> Option<String> {
        let lost: Vec<&str> = self.lost_sockets(volume).collect();
        let lost = (!lost.is_empty()).then(|| {
            format!(
                "no client can connect to {}: its socket was removed; braid reload makes it again",
                lost.join(", ")
            )
        });
        let failed = self.failed_queues(volume).into_iter().map(|socket| {
            format!(
                "the server of queues {} has failed; braid reload begins it anew",
                socket.display()
            )
        });
        let it = &self.state.volumes[volume];
        let node = self.node_trouble(volume);
        let program = self.program_trouble(volume);
        let full = self.full_state_directory();
        let all = [
            it.barred.clone(),
            it.unmarked.clone(),
            lost,
            node,
            program,
            full,
        ];
        let all = all.into_iter().flatten().chain(failed);
        let all: Vec<String> = all.chain(self.device_errors(volume)).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    fn path(&self, volume: u16, path: usize, keys: &PathKeys) -> Value {
        let core0 = self.core0(volume, path);
        let sum = |of: fn(&PathReport) -> u64| -> u64 { self.reports(volume, path).map(of).sum() };
        let groups = ["read", "write", "other"].iter().zip(0..);
        let groups: Map<String, Value> = groups
            .map(|(name, group)| ((*name).to_owned(), self.group(volume, path, group)))
            .collect();
        let mut shown = json!({
            "path": self.number(volume, path),
            "name": self.entry(volume, path).map(PathEntry::name),
            "uri": keys.uri.to_string(),
            "origin": self.state.origin(volume, keys).0,
            "told_by": self.state.origin(volume, keys).1,
            "throughput": keys.throughput,
            "state": self.path_state(volume, path),
            "hindrance": self.hindrance(volume, path),
            "probation": self.probation(volume, path),
            "ana_state": core0.and_then(ana_state),
            "cntlid": core0.and_then(|report| Some(report.facts.as_ref()?.controller.cntlid)),
            "io_queues": core0.and_then(|report| few_queues(report, self.cores.len())),
            "groups": groups,
            "expected_ns": self.expected(volume, path),
            "inflight": sum(|report| report.counters.in_flight.into()),
            "inflight_age_ns": self.age_ns(volume, path, |report| report.oldest_ns[0]),
            "reads": sum(|report| report.counters.ios[0]),
            "writes": sum(|report| report.counters.ios[1]),
            "others": sum(|report| report.counters.ios[2]),
            "bytes_read": sum(|report| report.counters.bytes[0]),
            "bytes_written": sum(|report| report.counters.bytes[1]),
            "latency": latency::json(&self.latency(volume, path)),
            "live_ns": core0.and_then(|report| self.live_ns(report)),
            "connects": core0.map(|report| report.counters.connects),
            "losses": core0.map(|report| report.counters.losses),
            "errors": sum(|report| report.counters.errors),
            "errors_by_class": self.errors_by_class(volume, path),
            "device_errors": sum(|report| report.counters.device_errors),
            "damaged_in": sum(|report| report.counters.damaged[0]),
            "damaged_out": sum(|report| report.counters.damaged[1]),
            "timed_out": sum(|report| report.counters.timed_out),
            "aborted": sum(|report| report.counters.aborted),
            "waited_full": sum(|report| report.counters.waited_full),
            "copies": sum(|report| report.counters.copies),
        });
        self.add_alarms(volume, path, &mut shown);
        shown["history"] = self.history(volume, path).into();
        shown
    }

    /// Predicted times of an I/O of 4 KiB, means over the cores that know them.
    fn expected(&self, volume: u16, path: usize) -> Value {
        let mean = |of: usize| {
            let all: Vec<u64> = (self.reports(volume, path))
                .filter_map(|report| report.expected_ns[of])
                .collect();
            all.iter().sum::<u64>().checked_div(all.len() as u64)
        };
        json!({"read": mean(0), "write": mean(1)})
    }

    /// Latencies on a path over all cores, by group.
    fn latency(&self, volume: u16, path: usize) -> [LatencyHistogram; 3] {
        let mut all: [LatencyHistogram; 3] = Default::default();
        for report in self.reports(volume, path) {
            let groups = all.iter_mut().zip(&report.latency);
            groups.for_each(|(sum, more)| sum.add(more));
        }
        all
    }

    /// For how long a path of core 0 can be used.
    fn live_ns(&self, report: &PathReport) -> Option<u64> {
        let now_ns = self.cores.first()?.now_ns;
        Some(now_ns.saturating_sub(report.live_ns?))
    }

    /// Errors of a path over all cores by class, but of classes without any.
    fn errors_by_class(&self, volume: u16, path: usize) -> Map<String, Value> {
        let of = |class: ErrorClass| {
            let reports = self.reports(volume, path);
            let count = reports.map(|it| it.counters.errors_by_class[class as usize]);
            (class.name().to_owned(), count.sum::<u64>())
        };
        let all = ErrorClass::ALL.into_iter().map(of);
        let any = all.filter(|(_, count)| *count > 0);
        any.map(|(name, count)| (name, count.into())).collect()
    }

    /// Second copies of reads. The copies are among the reads of their paths.
    fn hedges(&self, volume: u16) -> Value {
        let cores = self.cores.iter();
        let hedges = cores.filter_map(|core| core.hedges.get(usize::from(volume)));
        let all = hedges.fold(HedgeStats::default(), |sum, more| sum.with(more));
        let paths = 0..self.state.volumes[volume].of.paths.len();
        let reports = paths.flat_map(|path| self.reports(volume, path));
        let reads: u64 = reports.map(|report| report.counters.ios[0]).sum();
        hedges::json(&all, reads.saturating_sub(all.sent))
    }

    /// Row A9: the weight is the mean over the cores that have one, rounded; counts are sums. Under
    /// `weighted-latency` also what each core has.
    fn group(&self, volume: u16, path: usize, group: usize) -> Value {
        let place = self.place(volume, path);
        let all = self.cores.iter().enumerate().filter_map(|(core, it)| {
            let report = it.volumes.get(usize::from(volume))?.get(place?)?;
            Some((core, report))
        });
        let all: Vec<(usize, &PathReport)> = all.collect();
        let stats = || all.iter().map(|(_, report)| &report.groups[group]);
        let sum = |of: fn(&PathStats) -> u64| -> u64 { stats().map(of).sum() };
        let known = |of: fn(&PathStats) -> u64| {
            let count = stats().map(of).filter(|value| *value > 0).count();
            count.max(1) as u64
        };
        let mean = |of: fn(&PathStats) -> u64| sum(of) / known(of);
        let weight = |stats: &PathStats| u64::from(stats.weight);
        let mut shown = json!({
            "weight": (sum(weight) + known(weight) / 2) / known(weight),
            "smoothed_ns": mean(|stats| stats.smoothed_ns),
            "score": mean(|stats| stats.score),
            "selections": sum(|stats| stats.selections),
            "samples": sum(|stats| stats.samples),
            "ignored": sum(|stats| stats.ignored),
        });
        if let Policy::WeightedLatency(_) = self.state.volumes[volume].of.policy {
            let cores = all.iter().map(|(core, it)| of_core(*core, it, group));
            shown["cores"] = cores.collect();
        }
        shown
    }

    /// Clients of an export.
    fn connected(&self, volume: u16, place: ClientPlace) -> Vec<Value> {
        let cores = self.cores.iter().enumerate();
        let all = cores.flat_map(|(core, of)| of.clients.iter().map(move |it| (core, of, it)));
        let here = all.filter(|(.., it)| it.place == place && it.volume == volume);
        let show = here.map(|(core, of, it)| {
            let counters = &it.counters;
            json!({
                "client": it.name,
                "core": core,
                "connections": it.connections,
                "for_ns": of.now_ns.saturating_sub(counters.since_ns),
                "requests": counters.requests,
                "bytes_read": counters.bytes[0],
                "bytes_written": counters.bytes[1],
                "inflight": it.in_flight,
                "errors": counters.errors,
            })
        });
        show.collect()
    }

    fn exports(&self, volume: u16) -> Vec<Value> {
        let exports = self.state.exports.iter().enumerate();
        let exports = exports.filter_map(|(number, export)| Some((number, export.as_ref()?)));
        let exports = exports.filter(|(_, export)| export.volume == volume);
        let show = exports.map(|(number, export)| {
            let cores = self.service.senders.cores_of_clients(volume).into_iter();
            let cores = cores.map(|core| (core, self.cores[usize::from(core)].exports[number]));
            let cores: Vec<(u16, ExportCounters)> = cores.collect();
            let sum = |of: fn(&ExportCounters) -> u64| -> u64 {
                cores.iter().map(|(_, counters)| of(counters)).sum()
            };
            let on = |(core, counters): &(u16, ExportCounters)| {
                let (clients, requests) = (counters.clients, counters.requests);
                json!({"core": core, "clients": clients, "requests": requests})
            };
            json!({
                "uri": export.uri,
                "read_only": export.export.read_only,
                "failed": false,
                "clients": sum(|it| it.clients.into()),
                "requests": sum(|it| it.requests),
                "errors": sum(|it| it.errors),
                "waited_buffer": sum(|it| it.waited_buffer),
                "merged": sum(|it| it.merged),
                "cores": cores.iter().map(on).collect::<Vec<_>>(),
                "connected": self.connected(volume, ClientPlace::Export(number as u32)),
            })
        });
        let namespaces = self.state.namespaces().into_iter();
        let namespaces = namespaces.filter(|it| it.volume == volume);
        let namespaces = namespaces.flat_map(|it| {
            let core = usize::from(it.core);
            let uris = it.uris.into_iter();
            uris.map(move |(uri, listener)| {
                let stats = self.cores[core].ports.get(&listener);
                let stats = stats.copied().unwrap_or_default();
                json!({
                    "uri": uri,
                    "read_only": it.read_only,
                    "failed": false,
                    "clients": stats.connections,
                    "requests": stats.commands,
                    "errors": stats.errors,
                    "waited_buffer": stats.waited_buffer,
                    "merged": 0,
                    "cores": [{
                        "core": core,
                        "clients": stats.connections,
                        "requests": stats.commands,
                    }],
                    "connected": self.connected(it.volume, ClientPlace::Listener(listener)),
                })
            })
        });
        let queues = self.state.queue_namespaces();
        let queues = queues.filter(|it| it.volume == volume).map(|it| {
            let report = &self.cores[usize::from(it.core)].queues;
            let (counters, open) = report.get(&it.number).copied().unwrap_or_default();
            json!({
                "uri": it.uri,
                "read_only": it.read_only,
                "failed": it.failed.is_some(),
                "clients": open,
                "requests": counters.commands,
                "errors": counters.errors,
                "waited_buffer": counters.waited_buffer,
                "merged": 0,
                "cores": [{"core": it.core, "clients": open, "requests": counters.commands}],
                "connected": self.connected(0, ClientPlace::Queue(it.number)),
            })
        });
        let nodes = self.nodes.iter().filter(|(it, _)| it.volume == volume);
        let nodes = nodes.map(|(it, holders)| {
            let counters = |(core, number): &(u16, u32)| {
                let of = self.cores[usize::from(*core)].ublk.get(number);
                (*core, of.copied().unwrap_or_default())
            };
            let queues: Vec<_> = it.queues.iter().map(counters).collect();
            let sum = |of: fn(&QueueCounters) -> u64| -> u64 {
                queues.iter().map(|(_, counters)| of(counters)).sum()
            };
            let cores = queues.iter();
            let cores = cores.map(|(core, it)| json!({"core": core, "requests": it.commands}));
            json!({
                "uri": it.uri,
                "read_only": it.read_only,
                "failed": false,
                "clients": holders.len(),
                "holders": holders,
                "requests": sum(|it| it.commands),
                "errors": sum(|it| it.errors),
                "waited_buffer": sum(|it| it.waited_buffer),
                "merged": 0,
                "cores": cores.collect::<Vec<_>>(),
            })
        });
        show.chain(namespaces).chain(queues).chain(nodes).collect()
    }
}

/// Kind of a volume.
fn kind(volume: &Volume) -> &'static str {
    match volume.is_mirror() {
        true => "mirror",
        false => "paths",
    }
}

/// I/O queues that a controller grants, where those are fewer than cores.
fn few_queues(report: &PathReport, cores: usize) -> Option<u16> {
    let granted = report.facts.as_ref()?.controller.io_queues;
    (usize::from(granted) < cores).then_some(granted)
}

fn ana_state(report: &PathReport) -> Option<String> {
    let facts = report.facts.as_ref()?;
    (facts.controller.ana).then(|| Ana(facts.namespace.ana_state).to_string())
}
