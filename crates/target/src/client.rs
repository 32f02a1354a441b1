//! The verbs that speak to a running target.
use super::config::check_nqn;
use super::control::{
    DropParams, HostsParams, ReferralsParams, ResizeParams, SetParams, TargetCall, check_referrals,
};
use super::discovery::{ReferralAddress, ReferralKeys};
use super::quantity::{FromText, Size};
use super::settings::Settings;
use super::waits;
use clap::Args;
use serde_json::Value;
use service::control::call::Nothing;
use service::control::limits::ANSWER_WAIT;
use service::control::{rpc, socket};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use terminal::answer::{self, items, number, word};
use terminal::exit::Usage;
use terminal::output::Format;
use terminal::units::{format_bytes, format_count, format_ns};

/// Effect of another size on hosts.
const RESIZE_HELP: &str = "\
Hosts see the new size at once. A Linux host gives the disk of all its paths the size, write
protection and block size of the port that it scanned last: a smaller size shrinks the disk under
its users, also where another target process still shows the old one on its ports.";

/// Options of every verb here.
#[derive(Clone, Debug, Args)]
struct Common {
    /// Control socket of the target [default: /run/braid/target.sock for root, else
    /// $XDG_RUNTIME_DIR/braid/target.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How to show the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Options of `set`.
#[derive(Clone, Debug, Args)]
#[command(after_help = super::faults::HELP)]
pub struct SetArgs {
    /// Port, as `show` numbers it
    #[arg(long, value_name = "N")]
    port: u16,
    /// delay=30ms jitter=1ms bandwidth=300MiB/s servers=4 service_time=50us large_from=64KiB
    /// large_delay=5ms tail=0.01:5ms stall=5s ana=inaccessible (all groups)
    /// ana=2:change+3:optimized offer=withdrawn (or subsystem, discovery), or a fault (see below);
    /// 0 switches one off
    #[arg(required = true, value_name = "KEY=VALUE")]
    settings: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Options of `drop`.
#[derive(Clone, Debug, Args)]
pub struct DropArgs {
    /// Port, as `show` numbers it
    #[arg(long, value_name = "N")]
    port: u16,
    #[command(flatten)]
    common: Common,
}

/// Options of `resize`.
#[derive(Clone, Debug, Args)]
#[command(after_help = RESIZE_HELP)]
pub struct ResizeArgs {
    /// Namespace
    nsid: u32,
    /// New size, as in 2GiB
    size: String,
    #[command(flatten)]
    common: Common,
}

/// Options of `hosts`.
#[derive(Clone, Debug, Args)]
pub struct HostsArgs {
    /// Host NQNs that may connect from now on; "any": all
    #[arg(required = true, value_name = "NQN")]
    hosts: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Options of `referrals`.
#[derive(Clone, Debug, Args)]
pub struct ReferralsArgs {
    /// Addresses of other discovery controllers, as in 10.0.0.2:8009; none: no referrals any more
    #[arg(value_name = "ADDRESS[:PORT]")]
    referrals: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Options of `show`.
#[derive(Clone, Debug, Args)]
pub struct ShowArgs {
    #[command(flatten)]
    common: Common,
}

/// Changes a port.
///
/// # Errors
/// A setting that can't be, or no target that answers.
pub fn set(args: &SetArgs) -> anyhow::Result<()> {
    // Checked here, so that a wrong word is a usage error whether or not a target runs.
    let words = args.settings.iter().map(String::as_str);
    Settings::from_words(words.clone()).map_err(Usage::error)?;
    let pairs = words.filter_map(|word| word.split_once('='));
    let settings = pairs.map(|(key, value)| (key.trim().to_owned(), value_of(key, value)));
    let asked = TargetCall::Set(SetParams {
        port: args.port,
        settings: settings.collect(),
    });
    let port = call(&args.common, &asked)?;
    args.common.print(&port, show_port)
}

/// Drops a port's connections.
///
/// # Errors
/// No such port, or no target that answers.
pub fn drop_connections(args: &DropArgs) -> anyhow::Result<()> {
    let asked = TargetCall::Drop(DropParams { port: args.port });
    let result = call(&args.common, &asked)?;
    args.common.print(&result, |text, result| {
        writeln!(
            text,
            "port {}: {} connections dropped",
            result["port"], result["connections"]
        )
    })
}

/// Changes a namespace's size.
///
/// # Errors
/// No such namespace, no room, or no target that answers.
pub fn resize(args: &ResizeArgs) -> anyhow::Result<()> {
    Size::from_text(&args.size).map_err(Usage::error)?;
    let asked = TargetCall::Resize(ResizeParams {
        nsid: args.nsid,
        size: args.size.clone(),
    });
    let namespace = call(&args.common, &asked)?;
    args.common.print(&namespace, show_namespace)
}

/// Says which hosts may connect.
///
/// # Errors
/// A name that can't be, or no target that answers.
pub fn set_hosts(args: &HostsArgs) -> anyhow::Result<()> {
    let any = args.hosts.iter().any(|it| it == "any");
    if any && args.hosts.len() > 1 {
        let text = "hosts: \"any\" stands alone: it is every host";
        return Err(Usage::error(text));
    }
    let hosts = if any { &[][..] } else { &args.hosts };
    let checked = hosts.iter().try_for_each(|host| check_nqn("host", host));
    checked.map_err(Usage::error)?;
    let hosts = hosts.to_vec();
    let result = call(&args.common, &TargetCall::Hosts(HostsParams { hosts }))?;
    args.common.print(&result, |text, result| {
        let hosts: Vec<_> = items(&result["hosts"]).map(word).collect();
        match hosts.is_empty() {
            true => writeln!(text, "any host may connect"),
            false => writeln!(text, "may connect: {}", hosts.join(", ")),
        }
    })
}

/// Says to which discovery controllers hosts are referred.
///
/// # Errors
/// An address that can't be, or no target that answers.
pub fn set_referrals(args: &ReferralsArgs) -> anyhow::Result<()> {
    let checked = args
        .referrals
        .iter()
        .map(|it| ReferralAddress::from_text(it));
    let checked = checked
        .collect::<Result<Vec<_>, _>>()
        .map_err(Usage::error)?;
    let keys = |it: &ReferralAddress| ReferralKeys {
        address: *it,
        nqn: None,
    };
    let referrals: Vec<_> = checked.iter().map(keys).collect();
    check_referrals(&referrals).map_err(Usage::error)?;
    let asked = TargetCall::Referrals(ReferralsParams { referrals });
    let result = call(&args.common, &asked)?;
    args.common.print(&result, show_referrals)
}

fn show_referrals(text: &mut String, result: &Value) -> std::fmt::Result {
    let all: Vec<_> = items(&result["referrals"])
        .map(|it| word(&it["address"]))
        .collect();
    match all.is_empty() {
        true => writeln!(text, "no referrals"),
        false => writeln!(text, "hosts are referred to {}", all.join(", ")),
    }
}

/// Shows everything.
///
/// # Errors
/// No target that answers.
pub fn show(args: &ShowArgs) -> anyhow::Result<()> {
    let result = call(&args.common, &TargetCall::Show(Nothing))?;
    args.common.print(&result, |text, result| {
        let subsystem = &result["subsystem"];
        writeln!(
            text,
            "{}  serial {}",
            word(&subsystem["nqn"]),
            word(&subsystem["serial"])
        )?;
        if items(&subsystem["referrals"]).next().is_some() {
            show_referrals(text, subsystem)?;
        }
        for namespace in items(&result["namespaces"]) {
            show_namespace(text, namespace)?;
        }
        for port in items(&result["ports"]) {
            show_port(text, port)?;
        }
        items(&result["cores"]).try_for_each(|core| writeln!(text, "{}", waits::words(core)))
    })
}

impl Common {
    fn print(
        &self,
        value: &Value,
        show: impl FnOnce(&mut String, &Value) -> std::fmt::Result,
    ) -> anyhow::Result<()> {
        answer::print(self.output, value, show)
    }
}

fn call(common: &Common, call: &TargetCall) -> anyhow::Result<Value> {
    let mut stream = socket::connect(socket::TARGET, common.socket.as_deref().map(Path::new))?;
    rpc::call(&mut stream, call, ANSWER_WAIT)
}

/// `servers` is a number; everything else is text with a unit.
fn value_of(key: &str, value: &str) -> Value {
    let number = value
        .trim()
        .parse::<u64>()
        .ok()
        .filter(|_| key.trim() == "servers");
    number.map_or(value.trim().into(), Value::from)
}

fn show_namespace(text: &mut String, namespace: &Value) -> std::fmt::Result {
    writeln!(
        text,
        "namespace {}: {} of {}, {} B blocks, uuid {}{}{}",
        namespace["nsid"],
        format_bytes(number(&namespace["bytes"])),
        word(&namespace["backend"]),
        namespace["block_size"],
        word(&namespace["uuid"]),
        match number(&namespace["ana_group"]) {
            1 => String::new(),
            group => format!(", ANA group {group}"),
        },
        if namespace["read_only"] == true {
            ", read-only"
        } else {
            ""
        },
    )
}

fn show_port(text: &mut String, port: &Value) -> std::fmt::Result {
    writeln!(
        text,
        "port {}: {}, {}{}{}",
        port["port"],
        word(&port["uri"]),
        word(&port["ana_state"]),
        match word(&port["offer"]) {
            "withdrawn" => ", withdrawn",
            "discovery" => ", discovery alone",
            _ => "",
        },
        shape_words(&port["shape"])
    )?;
    writeln!(
        text,
        "  {} connections, {} in flight, {} commands, {} errors, {}",
        port["connections"],
        port["inflight"],
        format_count(number(&port["commands"])),
        format_count(number(&port["errors"])),
        format_bytes(number(&port["bytes"])),
    )?;
    show_faults(text, &port["faults"])
}

/// Faults of a port, and how often each happened; nothing where there is neither.
fn show_faults(text: &mut String, faults: &Value) -> std::fmt::Result {
    let mut words = Vec::new();
    for rule in items(&faults["errors"]) {
        words.push(format!("error={}", word(rule)));
    }
    if let Some(rate) = faults["drop_rate"].as_f64().filter(|rate| *rate > 0.0) {
        words.push(format!("drop_rate={rate}"));
    }
    if let Some(rate) = faults["hang"].as_f64().filter(|rate| *rate > 0.0) {
        words.push(format!("hang={rate}"));
    }
    for (name, key) in [
        ("late_writes", "late_writes_ns"),
        ("hold_writes", "hold_writes_ns"),
        ("mute", "mute_ns"),
        ("refuse", "refuse_ns"),
    ] {
        let ns = number(&faults[key]);
        if ns > 0 {
            words.push(format!("{name}={}", format_ns(ns as f64).replace(' ', "")));
        }
    }
    if faults["until_kato"] == true {
        words.push("until_kato=on".into());
    }
    if !words.is_empty() {
        writeln!(text, "  faults: {}", words.join(" "))?;
    }
    let injected = faults["injected"].as_object().into_iter().flatten();
    let counts: Vec<_> = injected
        .filter(|(_, count)| number(count) > 0)
        .map(|(kind, count)| format!("{count} {}", kind.replace('_', " ")))
        .collect();
    if !counts.is_empty() {
        writeln!(text, "  injected: {}", counts.join(", "))?;
    }
    Ok(())
}

/// Settings that slow a port, each with a comma before it.
fn shape_words(shape: &Value) -> String {
    let of = |key: &str| number(&shape[key]);
    let mut words = String::new();
    let mut duration = |name: &str, key: &str| {
        if of(key) > 0 {
            let _ = write!(words, ", {name} {}", format_ns(of(key) as f64));
        }
    };
    duration("delay", "delay_ns");
    duration("jitter", "jitter_ns");
    duration("service time", "service_time_ns");
    duration("stalled for", "stalled_ns");
    if of("bandwidth_bytes_per_s") > 0 {
        let _ = write!(words, ", {}/s", format_bytes(of("bandwidth_bytes_per_s")));
    }
    if of("servers") > 0 {
        let _ = write!(words, ", {} servers", of("servers"));
    }
    if of("large_delay_ns") > 0 {
        let late = format_ns(of("large_delay_ns") as f64);
        let from = format_bytes(of("large_from_bytes"));
        let _ = write!(words, ", {late} more from {from} on");
    }
    if of("tail_per_million") > 0 {
        let percent = of("tail_per_million") as f64 / 1e4;
        let least = format_ns(of("tail_ns") as f64);
        let _ = write!(words, ", {percent} % late by {least} and more");
    }
    words
}
