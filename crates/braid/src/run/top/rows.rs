//! Rows of `top`, from the difference of two answers of `stat`: volumes, paths or legs, and
//! clients.
use crate::hedges;
use crate::run::health::maintenance;
use crate::run::latency;
use crate::run::stat::{self, lasting};
use crate::units::{format_count, format_ns, short_bytes, short_count, significant};
use engine::LatencyHistogram;
use serde_json::Value;
use terminal::answer::{items, number, word};

/// Unit of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Per second.
    Rate,
    /// Bytes per second.
    Bytes,
    /// ns.
    Time,
    Count,
    /// Of 1.
    Share,
    /// ns, for which something is there.
    Lasting,
}

/// A column of figures.
#[derive(Debug)]
pub struct Column {
    pub heading: &'static str,
    pub width: u16,
    pub unit: Unit,
}

const fn column(heading: &'static str, width: u16, unit: Unit) -> Column {
    Column {
        heading,
        width,
        unit,
    }
}

const RATE: Column = column("I/Os/s", 7, Unit::Rate);
const BYTES: Column = column("bytes/s", 9, Unit::Bytes);
const MEAN: Column = column("mean", 8, Unit::Time);
const P99: Column = column("p99", 8, Unit::Time);
const IN_FLIGHT: Column = column("inflt", 6, Unit::Count);
const ERRORS: Column = column("errs", 5, Unit::Count);

/// Columns of volumes behind name and state.
pub const OF_VOLUMES: [Column; 6] = [
    RATE,
    BYTES,
    MEAN,
    P99,
    IN_FLIGHT,
    column("held", 5, Unit::Count),
];
/// Columns of paths and legs behind name and state.
pub const OF_PATHS: [Column; 7] = [
    RATE,
    BYTES,
    MEAN,
    P99,
    IN_FLIGHT,
    column("share", 6, Unit::Share),
    ERRORS,
];
/// Columns of clients behind their names.
pub const OF_CLIENTS: [Column; 5] = [
    RATE,
    BYTES,
    IN_FLIGHT,
    ERRORS,
    column("for", 8, Unit::Lasting),
];

impl Unit {
    /// A figure as text; nothing where there is none.
    pub fn show(self, value: Option<f64>) -> String {
        let Some(value) = value else {
            return "-".into();
        };
        match self {
            Self::Rate if value < 9.95 => match value > 0.0 {
                true => significant(value),
                false => "0".into(),
            },
            Self::Rate | Self::Count => short_count(value.round() as u64),
            Self::Bytes => short_bytes(value.round() as u64).trim_end().to_owned(),
            Self::Time => format_ns(value),
            Self::Share => format!("{:.0}%", value * 100.0),
            Self::Lasting => lasting(value as u64),
        }
    }
}

/// A volume, path, leg or client.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// By this it is known again; unlike its name it is unique.
    pub key: String,
    pub name: String,
    /// Empty of a client.
    pub state: String,
    /// By column.
    pub figures: Vec<Option<f64>>,
    /// All else that is worth saying.
    pub detail: String,
}

/// Sums of a path, a leg, or all of a volume.
#[derive(Clone, Copy, Default)]
struct Sums {
    ios: f64,
    bytes: f64,
    latency: LatencyHistogram,
    in_flight: f64,
}

impl Sums {
    /// Of a path or leg.
    fn of(it: &Value) -> Self {
        let count = |keys: &[&str]| keys.iter().map(|key| number(&it[*key]) as f64).sum();
        let mut latency = LatencyHistogram::default();
        // Flushes take far longer, and are few.
        for group in ["read", "write"] {
            latency.add(&latency::of_json(&it["latency"][group]));
        }
        Self {
            ios: count(&["reads", "writes", "others", "flushes"]),
            bytes: count(&["bytes_read", "bytes_written"]),
            latency,
            in_flight: count(&["inflight"]),
        }
    }

    fn figures(&self, elapsed_s: Option<f64>) -> Vec<Option<f64>> {
        let per_s = |count: f64| elapsed_s.map(|s| count / s);
        let ns = |it: Option<u64>| elapsed_s.and(it).map(|ns| ns as f64);
        vec![
            per_s(self.ios),
            per_s(self.bytes),
            ns(self.latency.mean_ns()),
            ns(self.latency.quantile_ns(990)),
            Some(self.in_flight),
        ]
    }
}

/// Seconds between the two answers; `None`: there was one only.
fn elapsed_s(stat: &Value) -> Option<f64> {
    Some(stat["elapsed_ns"].as_u64()? as f64 / 1e9)
}

/// Volumes and mirrors; legs are their mirror's.
pub fn volumes(stat: &Value) -> Vec<Row> {
    let all = items(&stat["volumes"]).filter(|it| it["leg_of"].is_null());
    all.map(|it| volume(it, elapsed_s(stat))).collect()
}

fn is_mirror(volume: &Value) -> bool {
    volume["kind"] == "mirror"
}

fn volume(of: &Value, elapsed_s: Option<f64>) -> Row {
    let mut sums = Sums::default();
    let list = if is_mirror(of) { "legs" } else { "paths" };
    for it in items(&of[list]) {
        let more = Sums::of(it);
        sums.ios += more.ios;
        sums.bytes += more.bytes;
        sums.latency.add(&more.latency);
        sums.in_flight += more.in_flight;
    }
    let mut figures = sums.figures(elapsed_s);
    let held = of["waiting"]["held"].as_u64();
    figures.push(held.map(|it| it as f64));
    let mut facts: Vec<String> = maintenance::but_for(of).into_iter().collect();
    facts.push(format!("policy {}", word(&of["policy"])));
    if is_mirror(of) {
        facts.extend(stat::held(of));
        facts.push("figures are sums over its legs".into());
    } else {
        facts.push(format!("waiting: {}", stat::waiting(&of["waiting"])));
    }
    facts.extend(items(&of["awaits"]).map(|it| format!("awaits {}", word(it))));
    facts.extend(of["why"].as_str().map(str::to_owned));
    facts.extend(of["note"].as_str().map(str::to_owned));
    facts.extend(hedges::words(&of["hedges"]).map(|it| format!("second copies: {it}")));
    facts.extend(
        of["failover"]["risk"]
            .as_str()
            .map(|it| format!("risk: {it}")),
    );
    Row {
        key: word(&of["name"]).to_owned(),
        name: word(&of["name"]).to_owned(),
        state: word(&of["state"]).to_owned(),
        figures,
        detail: facts.join("; "),
    }
}

fn named<'a>(stat: &'a Value, volume: &str) -> &'a Value {
    let found = items(&stat["volumes"]).find(|it| it["name"] == volume);
    found.unwrap_or(&Value::Null)
}

/// Paths of a volume, or legs of a mirror.
pub fn paths(stat: &Value, volume: &str) -> Vec<Row> {
    let (of, elapsed_s) = (named(stat, volume), elapsed_s(stat));
    let list = if is_mirror(of) { "legs" } else { "paths" };
    let all: f64 = items(&of[list]).map(|it| Sums::of(it).ios).sum();
    let row = |it: &Value| {
        let sums = Sums::of(it);
        let mut figures = sums.figures(elapsed_s);
        figures.push(elapsed_s.filter(|_| all > 0.0).map(|_| sums.ios / all));
        figures.push(elapsed_s.map(|_| number(&it["errors"]) as f64));
        let uri = word(&it["uri"]);
        Row {
            key: uri.to_owned(),
            name: name(it),
            state: word(&it["state"]).to_owned(),
            figures,
            detail: detail(it),
        }
    };
    items(&of[list]).map(row).collect()
}

/// Number, or slot, and name of a path or leg; without a name, the address or file of its URI.
fn name(it: &Value) -> String {
    let number = it["path"].as_u64().or(it["slot"].as_u64());
    let number = number.map_or(String::new(), |it| format!("{it} "));
    let uri = word(&it["uri"]);
    let bare = match uri.split_once("://") {
        Some((_, rest)) => rest.split('/').next().unwrap_or(rest),
        None => uri.split_once(':').map_or(uri, |(_, rest)| rest),
    };
    format!("{number}{}", it["name"].as_str().unwrap_or(bare))
}

/// Why a path or leg is as it is.
fn detail(it: &Value) -> String {
    let mut facts = vec![word(&it["uri"]).to_owned()];
    let mut add = |lead: &str, key: &str| {
        facts.extend(it[key].as_str().map(|why| format!("{lead}{why}")));
    };
    add("unused: ", "hindrance");
    add("", "why");
    add("", "damage");
    add("ANA ", "ana_state");
    let probation = stat::probation(&it["probation"]);
    facts.extend((!probation.is_empty()).then(|| format!("probation: {probation}")));
    if let Some(rebuilt) = it["rebuilt"].as_f64() {
        facts.push(format!("{:.1} % rebuilt", rebuilt * 100.0));
    }
    if let Some(live_ns) = it["live_ns"].as_u64() {
        facts.push(format!("live for {}", lasting(live_ns)));
    }
    let classes = it["errors_by_class"].as_object().into_iter().flatten();
    let classes = classes.map(|(class, count)| format!("{class} {}", format_count(number(count))));
    let classes: Vec<_> = classes.collect();
    facts.extend((!classes.is_empty()).then(|| format!("errors: {}", classes.join(", "))));
    facts.join("; ")
}

/// Clients of a volume.
pub fn clients(stat: &Value, volume: &str) -> Vec<Row> {
    let elapsed_s = elapsed_s(stat);
    let row = |export: &Value, it: &Value| {
        let bytes = number(&it["bytes_read"]) + number(&it["bytes_written"]);
        let is_counted = it["bytes_read"].is_u64();
        let per_s = |count: u64| elapsed_s.map(|s| count as f64 / s);
        let (client, uri) = (word(&it["client"]), word(&export["uri"]));
        Row {
            key: format!("{uri} {client} {}", it["core"]),
            name: client.to_owned(),
            state: String::new(),
            figures: vec![
                per_s(number(&it["requests"])),
                per_s(bytes).filter(|_| is_counted),
                Some(number(&it["inflight"]) as f64),
                elapsed_s.map(|_| number(&it["errors"]) as f64),
                Some(number(&it["for_ns"]) as f64),
            ],
            detail: format!(
                "{client} at {uri}; connections {}, core {}",
                it["connections"], it["core"]
            ),
        }
    };
    let exports = items(&named(stat, volume)["exports"]);
    exports
        .flat_map(|export| items(&export["connected"]).map(move |it| row(export, it)))
        .collect()
}
