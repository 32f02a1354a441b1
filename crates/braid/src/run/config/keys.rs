//! How the values of the configuration are read: each error shows the place of its value.
use super::UblkNumber;
use crate::run::address::NbdAddress;
use crate::units::format_ns;
use crate::uri::PathUri;
use crate::uri::discovery::DiscoveryUri;
use engine::host::WriteFailover;
use multipath::AnaUse;
use policy::{Hedging, Knobs, Policy};
use program::{Options, Program};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use target::quantity::{Duration, FromText, Rate, Size, from_text};

pub(super) fn cores<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let most = crate::limits::CORES_MAX;
    let cores = u16::try_from(i64::deserialize(from)?).ok();
    let cores = cores.filter(|cores| (1..=most).contains(&usize::from(*cores)));
    cores.ok_or_else(|| Error::custom(format!("cores must be 1…{most}")))
}
/// Holds 2048 writes of 128 KiB; memory is touched only as it is needed.
pub(super) fn buffers() -> Size {
    Size(256 << 20)
}
/// As of `braid queue serve`.
pub(super) fn queues() -> u32 {
    8
}
/// As of `braid queue serve`.
pub(super) fn controller() -> u16 {
    65_000
}
/// More than any one client opens; each costs a few KiB.
pub(super) fn clients() -> u16 {
    64
}
/// As the kernel's host.
pub(super) fn io_timeout() -> Duration {
    Duration(30_000_000_000)
}
/// Some retries of a lost SYN, and a target that has just begun.
pub(super) fn connect_timeout() -> Duration {
    Duration(10_000_000_000)
}
/// Below what service managers wait before they kill (90 s).
pub(super) fn drain_timeout() -> Duration {
    Duration(30_000_000_000)
}
/// Well below what service managers wait for a start (90 s).
pub(super) fn ready_wait() -> Duration {
    Duration(30_000_000_000)
}
pub(super) fn default_policy() -> Policy {
    Policy::QueueDepth
}

fn text<'de, D: Deserializer<'de>, T, E: Display>(
    from: D,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, D::Error> {
    let text = String::deserialize(from)?;
    parse(&text).map_err(|e| Error::custom(format!("\"{text}\": {e}")))
}

/// Begins the policy of a program; its file follows.
const PROGRAM: &str = "program:";

pub(super) fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Policy, D::Error> {
    text(from, |text| match text.strip_prefix(PROGRAM) {
        Some(file) => program(Path::new(file)),
        None => Policy::parse(text).map_err(|error| error.to_string()),
    })
}

/// A program that runs: its content is part of the configuration.
fn program(file: &Path) -> Result<Policy, String> {
    if !file.is_absolute() {
        return Err(format!("write the whole path of its file: {PROGRAM}/..."));
    }
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let bytes = program::read(file);
    let program = bytes.and_then(|bytes| Program::new(&name, &bytes, Options::default()));
    match program {
        Ok(program) => Ok(Policy::Program(program.id())),
        Err(error) => Err(error.to_string()),
    }
}

/// The files of all programs in a configuration.
pub(super) fn program_files(text: &str) -> Vec<PathBuf> {
    fn add(value: &toml::Value, files: &mut Vec<PathBuf>) {
        match value {
            toml::Value::Table(table) => {
                let policy = table.get("policy").and_then(toml::Value::as_str);
                files.extend(
                    policy
                        .and_then(|it| it.strip_prefix(PROGRAM))
                        .map(PathBuf::from),
                );
                table.values().for_each(|it| add(it, files));
            }
            toml::Value::Array(all) => all.iter().for_each(|it| add(it, files)),
            _ => {}
        }
    }
    let mut files = Vec::new();
    if let Ok(table) = toml::from_str(text) {
        add(&toml::Value::Table(table), &mut files);
    }
    files
}
pub(super) fn nbd<'de, D: Deserializer<'de>>(from: D) -> Result<Option<NbdAddress>, D::Error> {
    text(from, str::parse).map(Some)
}
pub(super) fn nvme<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SocketAddr>, D::Error> {
    let wanted = "write IP:PORT, an IPv6 address in brackets: 127.0.0.1:4420 is loopback";
    text(from, |text| text.parse().map_err(|_| wanted)).map(Some)
}
pub(super) fn ublk<'de, D: Deserializer<'de>>(from: D) -> Result<Option<UblkNumber>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Value {
        Number(u32),
        Text(String),
    }
    let wanted = "write the number of /dev/ublkbN, or \"auto\"";
    match Value::deserialize(from) {
        // The driver's numbers end there.
        Ok(Value::Number(number)) if number < 1 << 20 => Ok(Some(UblkNumber::Of(number))),
        Ok(Value::Text(text)) if text == "auto" => Ok(Some(UblkNumber::Auto)),
        _ => Err(Error::custom(wanted)),
    }
}
/// A program by its whole path, for the engine has a working directory of its own; and arguments.
pub(super) fn on_event<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let command = Vec::<String>::deserialize(from)?;
    let is_whole = |it: &String| it.starts_with('/') && !it.contains('\0');
    match command.first().is_none_or(is_whole) {
        true => Ok(command),
        false => Err(Error::custom(
            "on_event begins with the whole path of a program: [\"/usr/bin/program\"]",
        )),
    }
}
pub(super) fn discovery<'de, D: Deserializer<'de>>(from: D) -> Result<DiscoveryUri, D::Error> {
    text(from, str::parse)
}
pub(super) fn path_uri<'de, D: Deserializer<'de>>(from: D) -> Result<Option<PathUri>, D::Error> {
    text(from, str::parse).map(Some)
}
pub(super) fn rate<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Rate>, D::Error> {
    from_text(from).map(Some)
}
/// As nvme-cli: nothing of a volume waits for it.
pub(super) fn discovery_keep_alive_tmo() -> Duration {
    Duration(30_000_000_000)
}
/// Without keep-alive a discovery session isn't persistent.
pub(super) fn some_keep_alive<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    at_least::<D, 100>(from)
}
/// 0 is no namespace and FFFFFFFFh all of them (Base 2.0, 3.2.1.2).
pub(super) fn nsid<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let nsid = u32::try_from(i64::deserialize(from)?).ok();
    let nsid = nsid.filter(|nsid| (1..u32::MAX).contains(nsid));
    nsid.map(Some)
        .ok_or_else(|| Error::custom("an nsid is 1 to 4294967294"))
}
pub(super) fn ewma_shift<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    let number = u64::deserialize(from)?.to_string();
    let shift = Knobs::parse_ewma_shift(&number);
    shift.map(Some).map_err(Error::custom)
}
pub(super) fn weight_timeout<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    text(from, Knobs::parse_weight_timeout).map(Some)
}
pub(super) fn hedge<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Hedging>, D::Error> {
    text(from, Hedging::parse).map(Some)
}

/// A duration of `LEAST_MS` at least; all are an hour at most.
fn at_least<'de, D: Deserializer<'de>, const LEAST_MS: u64>(from: D) -> Result<Duration, D::Error> {
    let duration: Duration = from_text(from)?;
    let least_ns = LEAST_MS * 1_000_000;
    if duration.0 < least_ns {
        let least = format_ns(least_ns as f64);
        return Err(Error::custom(format!("must be at least {least}")));
    }
    Ok(duration)
}
pub(super) fn some_time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    at_least::<D, 1>(from)
}
pub(super) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    at_least::<D, 1>(from).map(|it| Some(it.0))
}
pub(super) fn time_or_none<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    at_least::<D, 0>(from).map(|it| Some(it.0))
}
/// Controllers count it in units of 100 ms at best.
pub(super) fn keep_alive_tmo<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    let duration: Duration = from_text(from)?;
    match duration.0 {
        1..100_000_000 => Err(Error::custom("must be 0 (none), or at least 100 ms")),
        ns => Ok(Some(ns)),
    }
}
/// The kernel counts it in seconds. 0: "off".
pub(super) fn tcp_keep_alive<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    match or_off(from)? {
        Some(0..1_000_000_000) => Err(Error::custom("must be at least 1 s, or \"off\"")),
        time => Ok(time.unwrap_or(0)),
    }
}
/// Before firewalls forget a connection that rests: the shortest usual time is 30 s.
pub(super) fn usual_tcp_keep_alive() -> u64 {
    10_000_000_000
}
/// A time; `None`: "off".
struct OrOff(Option<u64>);

impl FromText for OrOff {
    const WANTED: &'static str = "a duration in quotes, as in \"600s\", or \"off\"";
    fn from_text(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(OrOff(None)),
            text => Duration::from_text(text)
                .map(|it| OrOff(Some(it.0)))
                .map_err(|error| format!("{error}; or write \"off\"")),
        }
    }
}

fn or_off<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    from_text(from).map(|OrOff(time)| time)
}
pub(super) fn time_or_off<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    or_off(from).map(|time| Some(time.unwrap_or(u64::MAX)))
}
/// How long a lost path is tried. Not at all would mean that it couldn't be restored either.
pub(super) fn tries<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match time_or_off(from)? {
        Some(0..1_000_000) => Err(Error::custom(
            "must be at least 1 ms (a path once lost could not be restored), \
             or \"off\" to try for ever",
        )),
        time => Ok(time),
    }
}
/// A time, or 0 for "off".
pub(super) fn some_time_or_off<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<u64>, D::Error> {
    match or_off(from)? {
        Some(0..1_000_000) => Err(Error::custom("must be at least 1 ms, or \"off\"")),
        time => Ok(Some(time.unwrap_or(0))),
    }
}
/// A share in thousandths, 0 for "off".
pub(super) fn share_or_off<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    text(from, |text| {
        let wanted = "write a share of 0.1% to 50%, or \"off\"";
        let (whole, tenths) = match (text, text.strip_suffix('%')) {
            ("off", _) => return Ok(Some(0)),
            (_, Some(number)) => number.split_once('.').unwrap_or((number, "0")),
            _ => return Err(wanted),
        };
        let digits = |part: &str, most| {
            let right =
                (1..=most).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_digit());
            right.then(|| part.parse::<u16>().ok()).flatten()
        };
        let (whole, tenths) = (digits(whole, 2), digits(tenths, 1));
        let permille = whole.zip(tenths).map(|(whole, tenths)| whole * 10 + tenths);
        match permille {
            Some(permille @ 1..=500) => Ok(Some(permille)),
            _ => Err(wanted),
        }
    })
}
pub(super) fn retries<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u8>, D::Error> {
    let retries = u8::try_from(i64::deserialize(from)?);
    let retries = retries.map_err(|_| Error::custom("must be 0…255"));
    retries.map(Some)
}
pub(super) fn ana<'de, D: Deserializer<'de>>(from: D) -> Result<Option<AnaUse>, D::Error> {
    text(from, |text| match text {
        "strict" => Ok(Some(AnaUse::Strict)),
        "merge" => Ok(Some(AnaUse::Merge)),
        _ => Err("write \"strict\" or \"merge\""),
    })
}
pub(super) fn write_failover<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<WriteFailover>, D::Error> {
    text(from, |text| match text {
        "fenced" => Ok(Some(WriteFailover::Fenced)),
        "immediate" => Ok(Some(WriteFailover::Immediate)),
        _ => Err("write \"fenced\" or \"immediate\""),
    })
}
