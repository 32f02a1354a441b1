//! The page of metrics: families over what `braid stat` shows.
//!
//! # Contract
//! Names and units are those of Prometheus: base units, `_total` for counters. A figure that a
//! report lacks (a state that is not known, one of another policy) is no sample. No two samples
//! have the same labels.
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde_json::Value;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Labels of a sample.
type Labels = Vec<(&'static str, String)>;

/// Objects that have a sample each; their labels.
#[derive(Clone, Copy, Debug)]
enum Each {
    /// None.
    Engine,
    /// volume.
    Volume,
    /// volume, path.
    Path,
    /// volume, leg.
    Leg,
    /// volume, export.
    Export,
    /// core.
    Core,
}

/// Values of an object, by JSON pointers.
#[derive(Clone, Copy, Debug)]
enum Of {
    /// A number, or whether something is so.
    Value(&'static str),
    /// Numbers, told apart by a label.
    Values(&'static str, &'static [(&'static str, &'static str)]),
    /// Counts by a label, of these values; those that are not there are 0.
    Counts(&'static str, &'static str, &'static [&'static str]),
    /// Which of these alarms hold, in a list: 1, the others 0.
    Alarms(&'static str, &'static [&'static str]),
    /// Histograms, told apart by a label.
    Histograms(&'static str, &'static [(&'static str, &'static str)]),
    /// Which of these states it has: 1, the others 0.
    State(&'static str, &'static [&'static str]),
    /// Texts as labels.
    Texts(&'static [(&'static str, &'static str)]),
}

/// One family.
struct Family {
    name: &'static str,
    help: &'static str,
    unit: Option<fn() -> Unit>,
    kind: MetricType,
    each: Each,
    of: Of,
}

/// Words of `braid stat` for the states of a volume, a path, ANA, a leg, and a mirror.
const HEALTH: [&str; 3] = ["ok", "degraded", "down"];
const PATH: [&str; 8] = [
    "connecting",
    "live",
    "probation",
    "reconnecting",
    "draining",
    "failed",
    "removed",
    "absent",
];
const ANA: [&str; 5] = [
    "optimized",
    "non-optimized",
    "inaccessible",
    "persistent-loss",
    "change",
];
const LEG: [&str; 5] = ["missing", "unusable", "in-sync", "rebuilding", "stale"];
/// Alarms about paths, the last one about the file system of a file.
const ALARMS: [&str; 5] = ["slow", "errors", "flapping", "late-keep-alive", "full"];
/// Classes of errors.
const CLASSES: [&str; 9] = [
    "path", "timeout", "busy", "transfer", "media", "space", "access", "request", "stopped",
];
const PHASE: [&str; 5] = ["gathering", "refused", "running", "stopped", "failed"];

const BYTES: Option<fn() -> Unit> = Some(|| Unit::Bytes);
const SECONDS: Option<fn() -> Unit> = Some(|| Unit::Seconds);
const RATIO: Option<fn() -> Unit> = Some(|| Unit::Other("ratio".into()));

macro_rules! family {
    ($kind:ident $name:literal, $help:literal, $unit:expr, $each:ident, $of:expr) => {
        Family {
            name: $name,
            help: $help,
            unit: $unit,
            kind: MetricType::$kind,
            each: Each::$each,
            of: $of,
        }
    };
}

use Of::{Alarms, Counts, Histograms, State, Texts, Value as Number, Values};

/// All of them, without `braid_` in front and without unit and `_total` behind.
#[rustfmt::skip]
static FAMILIES: &[Family] = &[
    family!(Info "build", "Version of braid", None, Engine, Texts(&[("version", "/version")])),
    family!(Gauge "uptime", "Time since the engine began", SECONDS, Engine, Number("/uptime_ns")),

    family!(Info "volume", "Kind and policy of a volume", None, Volume,
        Texts(&[("kind", "/kind"), ("policy", "/policy")])),
    family!(Gauge "volume_state", "State of a volume, as braid check has it: 1, the others 0",
        None, Volume, State("/state", &HEALTH)),
    family!(Gauge "volume_actual_state", "The same without regard to maintenance", None, Volume,
        State("/actual", &HEALTH)),
    family!(Gauge "volume_size", "Size of a volume", BYTES, Volume, Number("/bytes")),
    family!(Gauge "volume_held_writes",
        "Writes held until a lost controller can no longer execute theirs", None, Volume,
        Number("/waiting/held")),
    family!(Gauge "volume_held_oldest", "Age of the oldest held write", SECONDS, Volume,
        Number("/waiting/held_age_ns")),
    family!(Gauge "volume_waiting_ios",
        "I/Os that wait: queued (no usable path), delayed (busy path), flush (lost controller), \
         behind (an overlapping held write)",
        None, Volume,
        Values("reason", &[("queued", "/waiting/queued"), ("delayed", "/waiting/delayed"),
            ("flush", "/waiting/flushes"), ("behind", "/waiting/behind")])),
    family!(Gauge "volume_queued_oldest", "Age of the oldest I/O without a usable path", SECONDS,
        Volume, Number("/waiting/queued_age_ns")),
    family!(Counter "volume_moved_ios", "I/Os that moved to another path", None, Volume,
        Number("/failover/moved_total")),
    family!(Counter "volume_writes_held", "Writes that were held", None, Volume,
        Number("/failover/held_total")),
    family!(Counter "volume_fence_releases",
        "Held writes that were released: proof (reset or reply), bound (time), unclean-stop",
        None, Volume,
        Values("by", &[("proof", "/failover/held_proved_total"),
            ("bound", "/failover/held_bounded_total"),
            ("unclean-stop", "/failover/held_unclean_stop_total")])),
    family!(Gauge "volume_fence_wait_longest", "Longest time for which a write was held", SECONDS,
        Volume, Number("/failover/held_ns_max")),
    family!(Counter "volume_flushes_failed",
        "Flushes that failed because a path was lost with unflushed writes", None, Volume,
        Number("/failover/flushes_failed")),
    family!(Counter "volume_hedges_sent", "Second copies of late reads", None, Volume,
        Number("/hedges/sent")),
    family!(Counter "volume_hedges",
        "Second copies by result: won, lost, failed, rescued (a failed read), no-room (not sent)",
        None, Volume,
        Values("result", &[("won", "/hedges/won"), ("lost", "/hedges/lost"),
            ("failed", "/hedges/failed"), ("rescued", "/hedges/rescued"),
            ("no-room", "/hedges/no_room")])),

    family!(Info "path", "URI and origin of a path", None, Path,
        Texts(&[("uri", "/uri"), ("origin", "/origin")])),
    family!(Gauge "path_state", "State of a path: 1, the others 0", None, Path,
        State("/state", &PATH)),
    family!(Gauge "path_alarm", "Whether an alarm about a path holds, as in braid check", None,
        Path, Alarms("/alarms", &ALARMS)),
    family!(Gauge "path_ana_state", "ANA state of a path, if its controller reports it: 1, the \
         others 0", None, Path, State("/ana_state", &ANA)),
    family!(Counter "path_operations", "I/Os given to a path", None, Path,
        Values("op", &[("read", "/reads"), ("write", "/writes"), ("other", "/others")])),
    family!(Counter "path_transferred", "Payload of these", BYTES, Path,
        Values("op", &[("read", "/bytes_read"), ("write", "/bytes_written")])),
    family!(Gauge "path_in_flight", "I/Os in flight", None, Path, Number("/inflight")),
    family!(Gauge "path_in_flight_oldest", "Age of the oldest I/O in flight", SECONDS, Path,
        Number("/inflight_age_ns")),
    family!(Histogram "path_latency", "Latency of I/Os that were done, from when they got the path",
        SECONDS, Path,
        Histograms("op", &[("read", "/latency/read"), ("write", "/latency/write"),
            ("other", "/latency/other")])),
    family!(Gauge "path_expected", "Time that soonest predicts for 4 KiB", SECONDS, Path,
        Values("op", &[("read", "/expected_ns/read"), ("write", "/expected_ns/write")])),
    family!(Counter "path_losses", "Times that a live path was lost", None, Path,
        Number("/losses")),
    family!(Counter "path_connects", "Times that a path became live", None, Path,
        Number("/connects")),
    family!(Gauge "path_live", "Time for which a path has been live", SECONDS, Path,
        Number("/live_ns")),
    family!(Counter "path_errors", "I/Os that a path failed, by class", None, Path,
        Counts("class", "/errors_by_class", &CLASSES)),
    family!(Counter "path_faults",
        "Of errors those of storage (device), time-outs, aborted commands, and data damaged on its \
         way (damaged-in, damaged-out)",
        None, Path,
        Values("what", &[("device", "/device_errors"), ("timeout", "/timed_out"),
            ("aborted", "/aborted"), ("damaged-in", "/damaged_in"),
            ("damaged-out", "/damaged_out")])),
    family!(Counter "path_queue_full", "I/Os that waited for room in a path's queue", None, Path,
        Number("/waited_full")),
    family!(Counter "path_hedges_sent", "Second copies of late reads among a path's reads", None,
        Path, Number("/copies")),
    family!(Counter "path_selections", "Times that the policy selected a path", None, Path,
        Values("op", &[("read", "/groups/read/selections"), ("write", "/groups/write/selections"),
            ("other", "/groups/other/selections")])),
    family!(Gauge "path_weight", "Weight under weighted-latency, 1 to 64; 0: not measured",
        None, Path,
        Values("op", &[("read", "/groups/read/weight"), ("write", "/groups/write/weight"),
            ("other", "/groups/other/weight")])),
    family!(Gauge "path_smoothed_latency", "Latency as weighted-latency smooths it; 0: not known",
        SECONDS, Path,
        Values("op", &[("read", "/groups/read/smoothed_ns"),
            ("write", "/groups/write/smoothed_ns"), ("other", "/groups/other/smoothed_ns")])),

    family!(Gauge "mirror_state", "Phase of a mirror: 1, the others 0", None, Volume,
        State("/phase", &PHASE)),
    family!(Gauge "mirror_unalike_regions", "Regions still to be resynchronized", None, Volume,
        Number("/unalike")),
    family!(Gauge "mirror_resync_done", "Part of a resync that is done", RATIO, Volume,
        Number("/resync/done")),
    family!(Gauge "mirror_check_done", "Part of a check that is done", RATIO, Volume,
        Number("/check/done")),
    family!(Gauge "leg_state", "State of a leg: 1, the others 0", None, Leg, State("/state", &LEG)),
    family!(Counter "leg_operations", "Requests to a leg", None, Leg,
        Values("op", &[("read", "/reads"), ("write", "/writes"), ("other", "/flushes")])),
    family!(Counter "leg_transferred", "Payload of these", BYTES, Leg,
        Values("op", &[("read", "/bytes_read"), ("write", "/bytes_written")])),
    family!(Histogram "leg_latency", "Latency on all paths of a leg", SECONDS, Leg,
        Histograms("op", &[("read", "/latency/read"), ("write", "/latency/write"),
            ("other", "/latency/other")])),
    family!(Gauge "leg_in_flight", "Requests in flight", None, Leg, Number("/inflight")),
    family!(Counter "leg_errors", "Requests that a leg failed", None, Leg, Number("/errors")),
    family!(Counter "leg_repaired_ranges", "Ranges rewritten from another leg", None, Leg,
        Number("/repaired")),
    family!(Counter "leg_rescued_reads", "Reads of last resort from a leg", None, Leg,
        Number("/rescued")),
    family!(Gauge "leg_lacks", "Data that a leg lacks", BYTES, Leg, Number("/lacks_bytes")),
    family!(Gauge "leg_bad", "Bad blocks of a leg", BYTES, Leg, Number("/bad/bytes")),
    family!(Gauge "leg_rebuild_done", "Part of a leg that is rebuilt, while it is", RATIO, Leg,
        Number("/rebuilt")),
    family!(Gauge "leg_rebuild_left", "Time left of a rebuild at its speed so far", SECONDS, Leg,
        Number("/progress/left_ns")),
    family!(Gauge "leg_rebuild_stuck", "Whether no leg can read what is still to be rebuilt", None,
        Leg, Number("/progress/stuck")),

    family!(Gauge "export_clients", "Clients that are connected", None, Export, Number("/clients")),
    family!(Counter "export_requests", "Requests of clients that were answered", None, Export,
        Number("/requests")),
    family!(Counter "export_errors", "Requests of clients that were answered with an error", None,
        Export, Number("/errors")),
    family!(Counter "export_buffer_waits", "Requests that waited for memory", None, Export,
        Number("/waited_buffer")),
    family!(Counter "export_merges", "Writes of parts of blocks", None, Export, Number("/merged")),
    family!(Gauge "export_failed", "Whether a server of hardware queues has ended by itself", None,
        Export, Number("/failed")),

    family!(Counter "core_sleeps", "Times that a core slept", None, Core, Number("/slept")),
    family!(Counter "core_polls", "Times that a core polled", None, Core, Number("/polled")),
    family!(Counter "core_polled", "Time for which a core polled", SECONDS, Core,
        Number("/polled_ns")),
];

/// log2 of the first and the last bound of a histogram, ns: 16 µs and 8.6 s.
const FIRST_BOUND_LOG2: u32 = 14;
const LAST_BOUND_LOG2: u32 = 33;

/// One sample.
enum Sample {
    Number(f64),
    Histogram(Histogram),
}

/// A histogram in seconds.
#[derive(Debug, PartialEq)]
struct Histogram {
    sum: f64,
    count: u64,
    /// Upper bounds, and what is between each and the one before.
    buckets: Vec<(f64, u64)>,
}

/// A report as one value: `volumes` and `cores` of `braid stat`, `engine` with its version.
#[derive(Debug)]
struct Report(Value);

/// The page of this report.
///
/// # Errors
/// It can't be written.
pub fn render(report: Value) -> Result<Arc<str>, String> {
    let mut registry = Registry::with_prefix("braid");
    registry.register_collector(Box::new(Report(report)));
    let mut page = String::new();
    encode(&mut page, &registry).map_err(|error| error.to_string())?;
    Ok(page.into())
}

impl Collector for Report {
    fn encode(&self, mut to: DescriptorEncoder) -> fmt::Result {
        for family in FAMILIES {
            let samples = self.samples(family);
            if samples.is_empty() {
                continue;
            }
            let unit = family.unit.map(|unit| unit());
            let (name, help) = (family.name, family.help);
            let mut to = to.encode_descriptor(name, help, unit.as_ref(), family.kind)?;
            for (labels, sample) in &samples {
                if let (Sample::Number(_), MetricType::Info) = (sample, family.kind) {
                    to.encode_info(labels)?;
                    continue;
                }
                let mut to = to.encode_family(labels)?;
                match sample {
                    Sample::Number(value) if family.kind == MetricType::Counter => {
                        to.encode_counter::<NoLabelSet, _, f64>(value, None)?;
                    }
                    Sample::Number(value) => to.encode_gauge(value)?,
                    Sample::Histogram(of) => {
                        to.encode_histogram::<NoLabelSet>(of.sum, of.count, &of.buckets, None)?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl Report {
    /// Its samples of a family.
    fn samples(&self, family: &Family) -> Vec<(Labels, Sample)> {
        let mut samples: Vec<(Labels, Sample)> = Vec::new();
        for (labels, object) in self.objects(family.each) {
            let mut add = |label: Option<(&'static str, &str)>, value: f64| {
                let more = label.map(|(name, value)| (name, value.to_owned()));
                let labels = labels.iter().cloned().chain(more).collect();
                samples.push((labels, Sample::Number(value)));
            };
            match family.of {
                Of::Value(at) => {
                    number(object, at).into_iter().for_each(|it| add(None, it));
                }
                Of::Values(label, all) => {
                    for (value, at) in all {
                        let found = number(object, at);
                        found
                            .into_iter()
                            .for_each(|it| add(Some((label, value)), it));
                    }
                }
                Of::Counts(label, at, all) => {
                    if let Some(counts) = object.pointer(at).filter(|it| it.is_object()) {
                        for it in all {
                            let count = counts[*it].as_f64();
                            add(Some((label, it)), count.unwrap_or(0.0));
                        }
                    }
                }
                Of::Alarms(at, all) => {
                    if let Some(holding) = object.pointer(at).filter(|it| it.is_array()) {
                        for kind in all {
                            let holds = items(holding).any(|it| it["alarm"] == **kind);
                            add(Some(("alarm", kind)), f64::from(holds));
                        }
                    }
                }
                Of::Histograms(label, all) => {
                    let found = all.iter().filter_map(|(value, at)| {
                        let more = [(label, (*value).to_owned())];
                        let labels = labels.iter().cloned().chain(more).collect();
                        Some((labels, Sample::Histogram(histogram(object.pointer(at)?)?)))
                    });
                    samples.extend(found);
                }
                Of::State(at, all) => {
                    if let Some(state) = text(object, at) {
                        for it in all {
                            add(Some(("state", it)), f64::from(*it == state));
                        }
                    }
                }
                Of::Texts(all) => {
                    let texts = all
                        .iter()
                        .filter_map(|(label, at)| Some((*label, text(object, at)?.to_owned())));
                    let labels = labels.iter().cloned().chain(texts).collect();
                    samples.push((labels, Sample::Number(1.0)));
                }
            }
        }
        // A page with two of the same labels is refused as a whole.
        let mut seen = HashSet::new();
        samples.retain(|(labels, _)| seen.insert(labels.clone()));
        samples
    }

    fn objects(&self, each: Each) -> Vec<(Labels, &Value)> {
        let Self(report) = self;
        let volumes = || items(&report["volumes"]).map(|it| (named(it), it));
        let of = |parts: &'static str, label: &'static str| {
            let parts = volumes().flat_map(move |(volume, it)| {
                items(&it[parts]).map(move |part| {
                    let name = match label {
                        "export" => text(part, "/uri").map(str::to_owned),
                        _ => Some(named(part)).filter(|it| !it.is_empty()),
                    };
                    // A leg that is not there may have no name.
                    let name = name.or_else(|| text(part, "/uri").map(str::to_owned));
                    let name = name.unwrap_or_else(|| part["slot"].to_string());
                    (vec![("volume", volume.clone()), (label, name)], part)
                })
            });
            parts.collect::<Vec<_>>()
        };
        match each {
            Each::Engine => vec![(Vec::new(), &report["engine"])],
            Each::Volume => volumes()
                .map(|(name, it)| (vec![("volume", name)], it))
                .collect(),
            Each::Path => of("paths", "path"),
            Each::Leg => of("legs", "leg"),
            Each::Export => of("exports", "export"),
            Each::Core => {
                let cores = items(&report["cores"]);
                let cores = cores.map(|it| (vec![("core", it["core"].to_string())], it));
                cores.collect()
            }
        }
    }
}

/// A histogram of a report over the bounds of the page; `None`: it is not known.
fn histogram(of: &Value) -> Option<Histogram> {
    let mut buckets: Vec<(f64, u64)> = (FIRST_BOUND_LOG2..=LAST_BOUND_LOG2)
        .map(|log2| ((1_u64 << log2) as f64 / 1e9, 0))
        .chain([(f64::INFINITY, 0)])
        .collect();
    let last = buckets.len() - 1;
    for pair in items(&of["buckets"]) {
        let count = pair[1].as_u64()?;
        // Each power of two ends one of the report's.
        let at = match pair[0].as_u64() {
            Some(below_ns) => {
                let log2 = below_ns.next_power_of_two().ilog2().max(FIRST_BOUND_LOG2);
                ((log2 - FIRST_BOUND_LOG2) as usize).min(last)
            }
            None => last,
        };
        buckets[at].1 += count;
    }
    Some(Histogram {
        sum: number(of, "/sum_ns")?,
        count: buckets.iter().map(|(_, count)| count).sum(),
        buckets,
    })
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn named(object: &Value) -> String {
    text(object, "/name").unwrap_or_default().to_owned()
}

fn text<'a>(object: &'a Value, at: &str) -> Option<&'a str> {
    object.pointer(at)?.as_str()
}

/// A number in base units; 1, where something is so.
fn number(object: &Value, at: &str) -> Option<f64> {
    let value = object.pointer(at)?;
    let number = value.as_f64().or_else(|| value.as_bool().map(f64::from))?;
    Some(match at.ends_with("_ns") || at.ends_with("_ns_max") {
        true => number / 1e9,
        false => number,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::host::{ErrorClass, PathState};
    use engine::mirror::LegStatus;
    use serde_json::json;

    #[test]
    fn page_has_base_units_and_one_sample_per_labels() {
        let path = |name: &str| {
            json!({"name": name, "state": "live", "reads": 3, "bytes_read": 12288,
                "inflight_age_ns": 1_500_000, "ana_state": null,
                "alarms": [{"alarm": "slow", "why": "x"}]})
        };
        let report = json!({
            "engine": {"version": "1", "uptime_ns": 2_000_000_000_u64},
            "volumes": [{"name": "v\"0", "kind": "paths", "state": "ok",
                "paths": [path("a"), path("a"), path("b")],
                "exports": [{"uri": "nbd://x", "clients": 2, "failed": false}]}],
            "cores": [{"core": 0, "slept": 1, "polled_ns": 500_000_000}],
        });
        let page = render(report).unwrap();
        for line in [
            "# UNIT braid_uptime_seconds seconds",
            "braid_uptime_seconds 2.0",
            "braid_build_info{version=\"1\"} 1",
            "braid_volume_state{volume=\"v\\\"0\",state=\"ok\"} 1.0",
            "braid_volume_state{volume=\"v\\\"0\",state=\"down\"} 0.0",
            "braid_path_alarm{volume=\"v\\\"0\",path=\"b\",alarm=\"slow\"} 1.0",
            "braid_path_alarm{volume=\"v\\\"0\",path=\"b\",alarm=\"errors\"} 0.0",
            "braid_path_operations_total{volume=\"v\\\"0\",path=\"b\",op=\"read\"} 3.0",
            "braid_path_transferred_bytes_total{volume=\"v\\\"0\",path=\"a\",op=\"read\"} 12288.0",
            "braid_path_in_flight_oldest_seconds{volume=\"v\\\"0\",path=\"a\"} 0.0015",
            "braid_path_alarm{volume=\"v\\\"0\",path=\"b\",alarm=\"slow\"} 1.0",
            "braid_path_alarm{volume=\"v\\\"0\",path=\"b\",alarm=\"flapping\"} 0.0",
            "braid_export_clients{volume=\"v\\\"0\",export=\"nbd://x\"} 2.0",
            "braid_export_failed{volume=\"v\\\"0\",export=\"nbd://x\"} 0.0",
            "braid_core_polled_seconds_total{core=\"0\"} 0.5",
            "# EOF",
        ] {
            let found = page.lines().filter(|it| *it == line).count();
            assert_eq!(found, 1, "{line}\n{page}");
        }
        for none in ["ana_state", "leg_", "mirror_"] {
            assert!(!page.contains(none), "{none}\n{page}");
        }
    }

    #[test]
    fn families_are_named_as_prometheus_asks() {
        let mut names = HashSet::new();
        for Family { name, help, .. } in FAMILIES {
            assert!(names.insert(name), "{name}");
            let is_word = |it: char| it.is_ascii_lowercase() || it == '_';
            assert!(
                name.chars().all(is_word) && !name.ends_with("_total"),
                "{name}"
            );
            assert!(help.len() > 3 && !help.ends_with('.'), "{name}: {help}");
        }
    }

    #[test]
    fn histograms_of_a_report_have_the_bounds_of_the_page() {
        let ns = |log2: u32| 1_u64 << log2;
        let of = json!({"count": 10, "sum_ns": 1_500_000_000, "buckets": [
            [512, 1], [ns(14), 1], [ns(14) + ns(12), 2], [ns(15), 1], [ns(34), 2], [null, 3],
        ]});
        let it = histogram(&of).unwrap();
        assert_eq!((it.sum, it.count), (1.5, 10));
        assert_eq!(it.buckets[0], (16384e-9, 2), "as those below");
        assert_eq!(it.buckets[1], (32768e-9, 3));
        assert_eq!(*it.buckets.last().unwrap(), (f64::INFINITY, 5));
        assert_eq!(histogram(&Value::Null), None);
        // A bucket of the engine is in none but one of these.
        for log2 in FIRST_BOUND_LOG2..=LAST_BOUND_LOG2 {
            let mut bounds = (0..).map_while(engine::latency_below_ns);
            assert!(bounds.any(|it| it == ns(log2)), "{log2}");
        }
    }

    /// Each figure of the dashboard and the alerts is one of the page.
    #[test]
    fn dashboard_and_alerts_know_their_metrics() {
        let dashboard = include_str!("../../../../../contrib/grafana.json");
        let alerts = include_str!("../../../../../contrib/prometheus-alerts.yml");
        let names: HashSet<String> = FAMILIES
            .iter()
            .flat_map(|it| {
                let unit = it
                    .unit
                    .map_or(String::new(), |unit| format!("_{}", unit().as_str()));
                let endings: &[&str] = match it.kind {
                    MetricType::Counter => &["_total"],
                    MetricType::Info => &["_info"],
                    MetricType::Histogram => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                let name = it.name;
                let names = endings
                    .iter()
                    .map(move |it| format!("braid_{name}{unit}{it}"));
                names.collect::<Vec<_>>()
            })
            .collect();
        let mut known = 0;
        for text in [dashboard, alerts] {
            let is_of_word = |it: char| it.is_ascii_lowercase() || it == '_' || it.is_ascii_digit();
            for word in text.split(|it| !is_of_word(it)) {
                if word.starts_with("braid_") {
                    assert!(names.contains(word), "{word}");
                    known += 1;
                }
            }
        }
        assert!(known > 30, "{known}");
    }

    /// States that the engine has are those of the page.
    #[test]
    fn states_are_those_of_reports() {
        use PathState::{Connecting, Draining, Failed, Live, Probation, Reconnecting, Removed};
        let all = [
            Connecting,
            Live,
            Probation,
            Reconnecting,
            Draining,
            Failed,
            Removed,
        ];
        assert!(all.iter().all(|it| PATH.contains(&it.name())));
        use LegStatus::{InSync, Missing, Rebuilding, Stale, Unusable};
        let all = [Missing, Unusable, InSync, Rebuilding, Stale];
        assert_eq!(all.map(LegStatus::name), LEG);
        assert_eq!(ErrorClass::ALL.map(ErrorClass::name), CLASSES);
        use engine::alarms::Kind::{Errors, Flapping, LateKeepAlive, Slow};
        let kinds = [Slow, Errors, Flapping, LateKeepAlive].map(|it| it.name());
        assert_eq!(kinds, ALARMS[..4]);
    }
}
