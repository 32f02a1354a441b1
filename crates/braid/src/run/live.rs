//! Keys of a volume that can change while it runs: what it does about failing paths, as far as no
//! promise was given by it.
//!
//! # Contract
//! A value is read as the configuration file reads it, and refused in the same words. One that was
//! set by verb holds until the file says something else of that key.
//!
//! # Limits
//! What bounds how long writes are held can't change: the mark for the engine after this one says
//! it, and was durable before the first write.
use super::config::Volume;
use crate::text::plain;
use crate::units::{format_bytes, format_ns};
use engine::host::Recovery;
use policy::{Hedging, Knobs};
use serde_json::{Map, Value};
use std::fmt::Display;
use target::quantity::Rate;

/// A key of a volume that can change while it runs.
pub struct Key {
    /// As in the file.
    pub name: &'static str,
    kind: Kind,
    /// Its value in force; `None`: off.
    get: fn(&Recovery) -> Option<u64>,
    /// Gives the first volume what the second one has.
    pub take: fn(&mut Volume, &Volume),
}

/// Unit of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// ns.
    Time,
    /// 1 / 1000.
    Share,
    Count,
}

macro_rules! key {
    ($name:ident, $kind:ident, $get:expr) => {
        Key {
            name: stringify!($name),
            kind: Kind::$kind,
            get: $get,
            take: |to, from| to.$name = from.$name,
        }
    };
}

/// All of them.
pub static KEYS: [Key; 13] = [
    key!(ctrl_loss_tmo, Time, |it| bounded(it.ctrl_loss_ns)),
    key!(reconnect_delay, Time, |it| Some(it.reconnect_max_ns)),
    key!(reconnect_delay_min, Time, |it| Some(it.reconnect_min_ns)),
    key!(fast_io_fail_tmo, Time, |it| bounded(it.fast_io_fail_ns)),
    key!(flush_timeout, Time, |it| Some(it.flush_timeout_ns)),
    key!(attempts_timeout, Time, |it| Some(it.attempts_ns)),
    key!(retries, Count, |it| Some(it.retries_max.into())),
    key!(probation_errors, Share, |it| above_0(
        it.health.errors_permille.into()
    )),
    key!(probation_silence, Time, |it| above_0(it.health.silence_ns)),
    key!(probation_slow, Time, |it| above_0(it.health.slow_ns)),
    key!(probe_interval, Time, |it| Some(it.health.probe_ns)),
    key!(probe_interval_max, Time, |it| Some(it.health.probe_max_ns)),
    key!(probe_idle, Time, |it| above_0(it.health.idle_ns)),
];

/// Knobs of policies, which `knob set` takes as well.
const OF_POLICIES: &str = "ewma_shift, weight_timeout, hedge";
/// Keys of a volume that are fixed while it runs.
const FIXED: [&str; 10] = [
    "quiesce_time",
    "write_failover",
    "shared_write_cache",
    "ana",
    "unsafe_without_mark",
    "uuid",
    "nguid",
    "before_up",
    "leg_quiesce",
    "shared",
];
/// Keys of the whole engine that are, and look like those of a volume.
const OF_ENGINE: [&str; 4] = [
    "keep_alive_tmo",
    "tcp_keep_alive",
    "io_timeout",
    "connect_timeout",
];

fn bounded(ns: u64) -> Option<u64> {
    (ns < u64::MAX).then_some(ns)
}

fn above_0(value: u64) -> Option<u64> {
    (value > 0).then_some(value)
}

/// The key of that name.
///
/// # Errors
/// There is none: where it can be changed, or which there are.
pub fn find(name: &str) -> Result<&'static Key, String> {
    let found = KEYS.iter().find(|key| key.name == name);
    found.ok_or_else(|| match name {
        _ if FIXED.contains(&name) => format!(
            "{name} is fixed while the engine runs: set it in the [[volume]] of its configuration \
             and restart the engine"
        ),
        _ if OF_ENGINE.contains(&name) => format!(
            "{name} is the whole engine's, and fixed while it runs: set it before the volumes of \
             its configuration and restart the engine"
        ),
        "drain_timeout" => "drain_timeout is the whole engine's: set it before the volumes of its \
                            configuration, then braid reload"
            .to_owned(),
        "policy" => "the policy is set by braid policy set".to_owned(),
        _ => {
            let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
            let names = names.join(", ");
            format!("there is no knob \"{name}\"; there are {OF_POLICIES}, {names}")
        }
    })
}

impl Key {
    /// A volume that has nothing but this key, with that value.
    ///
    /// # Errors
    /// It can't be, in one line.
    pub fn parse(&self, value: &str) -> Result<Volume, String> {
        let number = self.kind == Kind::Count && value.parse::<i64>().is_ok();
        let value = match number {
            true => value.to_owned(),
            false => toml::Value::from(value).to_string(),
        };
        let text = format!("name = \"\"\n{} = {value}\n", self.name);
        toml::from_str(&text).map_err(|error| plain(error.message()).replace('\n', " "))
    }

    /// A volume with another value of this key.
    ///
    /// # Errors
    /// It can't be, or not beside the others.
    pub fn set(&self, of: &Volume, value: &str) -> Result<Volume, String> {
        let mut changed = of.clone();
        (self.take)(&mut changed, &self.parse(value)?);
        changed.check_times().map(|()| changed)
    }

    /// Its value as [`Key::parse`] reads it.
    pub fn text(&self, recovery: &Recovery) -> String {
        match ((self.get)(recovery), self.kind) {
            (None, _) => "off".to_owned(),
            (Some(ns), Kind::Time) => format!("{ns}ns"),
            (Some(permille), Kind::Share) => format!("{}.{}%", permille / 10, permille % 10),
            (Some(count), Kind::Count) => count.to_string(),
        }
    }

    /// Such a text for people.
    pub fn shown(&self, text: &str) -> Option<String> {
        let value = self.parse(text).ok()?;
        let words = self.words((self.get)(&value.recovery()));
        words
            .strip_prefix(&format!("{} ", self.name))
            .map(str::to_owned)
    }

    /// The name of its value in JSON.
    fn json_name(&self) -> String {
        match self.kind {
            Kind::Time => format!("{}_ns", self.name),
            _ => self.name.to_owned(),
        }
    }

    /// For people.
    fn words(&self, value: Option<u64>) -> String {
        let value = match (value, self.kind) {
            (None, _) => "off".to_owned(),
            (Some(ns), Kind::Time) => format_ns(ns as f64),
            (Some(permille), Kind::Share) => format!("{} %", permille as f64 / 10.0),
            (Some(count), Kind::Count) => count.to_string(),
        };
        format!("{} {value}", self.name)
    }
}

/// Whether a knob of a policy, or a key, can have that value at all.
///
/// # Errors
/// Why not.
pub fn check(name: &str, value: &str) -> Result<(), String> {
    let checked = match name {
        "ewma_shift" => Knobs::parse_ewma_shift(value).map(drop),
        "weight_timeout" => Knobs::parse_weight_timeout(value).map(drop),
        "hedge" => Hedging::parse(value).map(drop),
        _ => {
            return find(name)?
                .parse(value)
                .map(drop)
                .map_err(|why| wrong(name, value, &why));
        }
    };
    checked.map_err(|why| wrong(name, value, &why))
}

/// A value that can't be.
pub fn wrong(name: &str, value: &str, why: &dyn Display) -> String {
    format!("{name} \"{value}\": {why}")
}

/// Of what [`json`] says, for people.
pub fn words(json: &Value) -> Vec<String> {
    let those = KEYS
        .iter()
        .filter(|key| json.get(key.json_name()).is_some());
    let words = |key: &Key| {
        let value = &json[key.json_name()];
        let share = value.as_f64().map(|share| (share * 1000.0).round() as u64);
        key.words(match key.kind {
            Kind::Share => share,
            _ => value.as_u64(),
        })
    };
    those.map(words).collect()
}

/// All values, `null`: off; times in ns, shares as parts of 1.
pub fn json(recovery: &Recovery) -> Map<String, Value> {
    let value = |key: &Key| {
        let value = (key.get)(recovery);
        let value = match key.kind {
            Kind::Share => value.map(|permille| permille as f64 / 1000.0).into(),
            _ => value.into(),
        };
        (key.json_name(), value)
    };
    KEYS.iter().map(value).collect()
}

/// Those in which two volumes differ, as the second one has them; of mirrors those of their own,
/// of which the others are their legs'.
pub fn changed(from: &Volume, to: &Volume) -> Vec<String> {
    if to.is_mirror() {
        return changed_of_mirror(from, to);
    }
    let (from, to) = (&from.recovery(), &to.recovery());
    let other = |key: &&Key| (key.get)(from) != (key.get)(to);
    let those = KEYS.iter().filter(other);
    those.map(|key| key.words((key.get)(to))).collect()
}

/// How a mirror starts is asked at its next start, how fast it is rebuilt at once.
fn changed_of_mirror(from: &Volume, to: &Volume) -> Vec<String> {
    let usual = || "as usual".to_owned();
    let time = |ns: Option<u64>| ns.map_or_else(usual, |ns| format_ns(ns as f64));
    let rate = |rate: &Option<Rate>| {
        let bytes = rate.as_ref().map(|it| format_bytes(it.0));
        bytes.map_or_else(usual, |it| format!("{it}/s"))
    };
    let values = |of: &Volume| {
        let start = of.start_degraded.map(|it| it.to_string());
        [
            ("assemble_wait", time(of.assemble_wait)),
            ("assemble_wait_degraded", time(of.assemble_wait_degraded)),
            ("assemble_wait_outdated", time(of.assemble_wait_outdated)),
            ("start_degraded", start.unwrap_or_else(usual)),
            ("rebuild_floor", rate(&of.rebuild_floor)),
            ("rebuild_ceiling", rate(&of.rebuild_ceiling)),
        ]
    };
    let differ = values(from)
        .into_iter()
        .zip(values(to))
        .filter(|(a, b)| a != b);
    differ
        .map(|(_, (key, now))| format!("{key} {now}"))
        .collect()
}

/// Keys in which two volumes differ that are fixed while they run.
pub fn fixed(from: &Volume, to: &Volume) -> Vec<&'static str> {
    let others = [
        from.unsafe_without_mark != to.unsafe_without_mark,
        from.uuid != to.uuid,
        from.nguid != to.nguid,
        from.before_up != to.before_up,
        from.leg_quiesce != to.leg_quiesce,
        from.shared != to.shared,
    ];
    let of_policy = from.is_mirror() && from.knobs() != to.knobs();
    let (from, to) = (from.recovery(), to.recovery());
    let differ = [
        from.quiesce_ns != to.quiesce_ns,
        from.write_failover != to.write_failover,
        from.shared_write_cache != to.shared_write_cache,
        from.ana != to.ana,
    ];
    let names = FIXED.iter().zip(differ.into_iter().chain(others));
    let of_policy = of_policy.then_some("ewma_shift or weight_timeout");
    names
        .filter_map(|(name, differs)| differs.then_some(*name))
        .chain(of_policy)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;

    fn volume(keys: &str) -> Volume {
        let text =
            format!("[[volume]]\nname = \"v0\"\n{keys}[[volume.path]]\nuri = \"mem:1MiB\"\n");
        parsed(&text).volumes.remove(0)
    }

    /// A printed value can be read again, and is what the file would give.
    #[test]
    fn every_key_is_read_as_in_the_file() {
        for (name, value) in [
            ("ctrl_loss_tmo", "5m"),
            ("ctrl_loss_tmo", "off"),
            ("reconnect_delay", "2s"),
            ("reconnect_delay_min", "1ms"),
            ("fast_io_fail_tmo", "0s"),
            ("fast_io_fail_tmo", "off"),
            ("flush_timeout", "90s"),
            ("attempts_timeout", "1h"),
            ("probation_errors", "0.1%"),
            ("probation_errors", "off"),
            ("probation_silence", "2s"),
            ("probation_slow", "off"),
            ("probe_interval", "50ms"),
            ("probe_interval_max", "1m"),
            ("probe_idle", "1m"),
            ("probe_idle", "off"),
        ] {
            let key = find(name).unwrap();
            let set = key.set(&volume(""), value).unwrap();
            assert_eq!(set, volume(&format!("{name} = \"{value}\"\n")), "{name}");
            let again = key.set(&volume(""), &key.text(&set.recovery())).unwrap();
            assert_eq!(again.recovery(), set.recovery(), "{name}");
        }
        let retries = find("retries").unwrap().set(&volume(""), "0").unwrap();
        assert_eq!(retries, volume("retries = 0\n"));
    }

    #[test]
    fn every_key_is_at_its_default_what_it_says() {
        let usual = volume("").recovery();
        for key in &KEYS {
            let again = key.set(&volume(""), &key.text(&usual)).unwrap();
            assert_eq!(again.recovery(), usual, "{}", key.name);
        }
    }

    #[test]
    fn what_can_not_be_is_refused_in_one_line() {
        for (name, value, part) in [
            ("ctrl_loss_tmo", "0s", "at least 1 ms"),
            ("ctrl_loss_tmo", "soon", "\"off\""),
            ("reconnect_delay", "5", "is not a duration"),
            (
                "reconnect_delay",
                "50ms",
                "must not be longer than reconnect_delay",
            ),
            (
                "probe_interval",
                "1h",
                "must not be longer than probe_interval_max",
            ),
            ("retries", "256", "0…255"),
            ("retries", "many", "must be a whole number, not the text"),
            ("probation_errors", "60%", "0.1% to 50%"),
            ("flush_timeout", "1s\"\nname = \"x", ""),
        ] {
            let why = find(name).unwrap().set(&volume(""), value).unwrap_err();
            assert!(why.contains(part), "{name} {value}: {why}");
            assert!(!why.contains('\n'), "{why}");
        }
    }

    #[test]
    fn what_is_fixed_is_refused_with_the_way_to_change_it() {
        for (name, part) in [
            (
                "quiesce_time",
                "in the [[volume]] of its configuration and restart",
            ),
            ("ana", "restart the engine"),
            ("io_timeout", "before the volumes"),
            ("keep_alive_tmo", "before the volumes"),
            ("tcp_keep_alive", "before the volumes"),
            ("drain_timeout", "braid reload"),
            ("policy", "braid policy set"),
            (
                "ctrl_loss",
                "there is no knob \"ctrl_loss\"; there are ewma_shift",
            ),
        ] {
            let why = find(name).err().unwrap();
            assert!(why.contains(part), "{name}: {why}");
        }
    }

    #[test]
    fn what_programs_are_told_people_are() {
        let keys =
            "fast_io_fail_tmo = \"5s\"\nprobation_errors = \"0.3%\"\nprobation_slow = \"off\"\n";
        let json = json(&volume(keys).recovery());
        assert_eq!(json["fast_io_fail_tmo_ns"], 5_000_000_000_u64);
        assert_eq!(json["probation_errors"], 0.003);
        assert!(json["probation_slow_ns"].is_null());
        let words = words(&json.into());
        assert_eq!(words.len(), KEYS.len());
        for part in [
            "fast_io_fail_tmo 5.00 s",
            "probation_errors 0.3 %",
            "probation_slow off",
        ] {
            assert!(words.iter().any(|word| word == part), "{words:?}");
        }
    }

    #[test]
    fn a_value_that_no_engine_takes_is_known_without_one() {
        for (name, value) in [
            ("ewma_shift", "9"),
            ("hedge", "maybe"),
            ("retries", "-1"),
            ("ana", "merge"),
        ] {
            let why = check(name, value).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
        for (name, value) in [
            ("ewma_shift", "8"),
            ("weight_timeout", "1m"),
            ("ctrl_loss_tmo", "off"),
        ] {
            assert_eq!(check(name, value), Ok(()));
        }
    }

    #[test]
    fn differences_are_named() {
        let (from, to) = (
            volume(""),
            volume("ctrl_loss_tmo = \"60s\"\nana = \"merge\"\n"),
        );
        let words = changed(&from, &to);
        assert_eq!(words, ["ctrl_loss_tmo 60.0 s"]);
        assert_eq!(fixed(&from, &to), ["ana"]);
    }
}
