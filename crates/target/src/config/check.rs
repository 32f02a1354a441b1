//! Checks of a configuration before anything is opened, made or listened on.
//!
//! # Contract
//! An error begins with the key that is wrong. A fact of the machine (is there such a file,
//! is the port free) is not looked at.
use super::{Config, Namespace};
use crate::control::check_referrals;
use crate::limits::{CQT_MS_MAX, VOLATILE_CACHE_MAX, VOLATILE_CACHE_MIN};
use crate::quantity::Size;
use engine::limits::TARGET_COMMANDS_MAX;
use nvme::limits::{NAMESPACES_MAX, PORTS_MAX};
use paths::limits::ARENA_BYTES_MAX;
use paths::uri::UriKind;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use terminal::units::format_bytes;

/// Longest NQN, bytes (NVMe Base 2.0, 4.7).
const NQN_MAX: usize = 223;
/// Largest controller identifier that can be handed out (NVMe Base 2.0, 5.17.2.1: FFF0h and above
/// are reserved).
const CNTLID_MAX: u16 = 0xffef;

/// Gives each namespace without an NSID the next free one.
pub(super) fn number(namespaces: &mut [Namespace]) {
    let taken: BTreeSet<u32> = namespaces.iter().map(|namespace| namespace.nsid).collect();
    let mut free = (1..u32::MAX).filter(|nsid| !taken.contains(nsid));
    for namespace in namespaces.iter_mut().filter(|of| of.nsid == 0) {
        // There are fewer namespaces than numbers: each takes memory.
        namespace.nsid = free.next().unwrap_or(u32::MAX);
    }
}

/// The whole configuration.
pub(super) fn check(config: &Config) -> Result<(), String> {
    check_nqn("nqn", &config.nqn)?;
    for host in &config.hosts {
        check_nqn("hosts", host)?;
    }
    if let Some(nqn) = &config.discovery_nqn {
        check_nqn("discovery_nqn", nqn)?;
        if *nqn == config.nqn {
            return Err("discovery_nqn is the subsystem's: give discovery another one".into());
        }
    }
    check_referrals(&config.referrals)?;
    check_names(config)?;
    let [first, last] = config.cntlid;
    if first == 0 || first > last || last > CNTLID_MAX {
        return Err(format!(
            "cntlid [{first}, {last}] is not [first, last] within 1 to {CNTLID_MAX}"
        ));
    }
    check_memory(config)?;
    let cqt_ms = config.cqt.unwrap_or_default().0.div_ceil(1_000_000);
    if cqt_ms > CQT_MS_MAX {
        return Err(format!(
            "cqt {cqt_ms} ms is more than the {CQT_MS_MAX} ms that can be reported"
        ));
    }
    for (what, there, most) in [
        ("port", config.ports.len(), PORTS_MAX),
        ("namespace", config.namespaces.len(), NAMESPACES_MAX),
    ] {
        if there > most {
            return Err(format!("there are {there} [[{what}]]; {most} at most"));
        }
    }
    for (number, namespace) in (1..).zip(&config.namespaces) {
        check_namespace(namespace).map_err(|error| format!("namespace {number}: {error}"))?;
    }
    let groups = config.groups();
    for port in &config.ports {
        check_listen(&port.listen)?;
    }
    if let (true, Some(listen)) = (config.hosts.is_empty(), closed_port(config)) {
        return Err(format!(
            "listen \"{listen}\": other machines reach it: name the hosts that may connect (hosts \
             = [\"NQN\"]), or write open = true (without a file --open)"
        ));
    }
    for port in &config.ports {
        let error = |error| format!("listen \"{}\": {error}", port.listen);
        port.ana.check(&groups).map_err(error)?;
    }
    Ok(())
}

/// Returns where a port listens that other machines reach, and for which `open` is not said: it
/// needs hosts that may connect.
pub fn closed_port(config: &Config) -> Option<&str> {
    let mut reached = config.ports.iter().filter(|_| !config.open);
    let port = reached.find(|it| !is_loopback(&it.listen));
    port.map(|it| it.listen.as_str())
}

/// Bytes of a text in Identify, of printable ASCII.
fn check_names(config: &Config) -> Result<(), String> {
    let serial = config.serial.as_deref().unwrap_or_default();
    for (key, text, most) in [("serial", serial, 20), ("model", &config.model, 40)] {
        if text.len() > most || !text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
            return Err(format!(
                "{key} is not at most {most} printable characters of ASCII"
            ));
        }
    }
    Ok(())
}

/// Checks the kinds of memory.
fn check_memory(config: &Config) -> Result<(), String> {
    let transfer = config.transfer_size.0;
    if !transfer.is_power_of_two() || !(8192..=1 << 20).contains(&transfer) {
        return Err(format!(
            "transfer_size {} is not a power of two from 8 KiB to 1 MiB",
            format_bytes(transfer)
        ));
    }
    let in_capsule = config.in_capsule.0;
    if in_capsule > transfer {
        return Err(format!(
            "in_capsule {} is more than transfer_size, {}",
            format_bytes(in_capsule),
            format_bytes(transfer)
        ));
    }
    if config.buffers.0 > ARENA_BYTES_MAX {
        return Err(format!(
            "buffers {} is more than {}: it holds what is in flight, not the namespaces",
            format_bytes(config.buffers.0),
            format_bytes(ARENA_BYTES_MAX)
        ));
    }
    let (connections, entries) = (config.connections, config.queue_entries);
    if u64::from(connections) * u64::from(entries) > TARGET_COMMANDS_MAX {
        return Err(format!(
            "connections {connections} times queue_entries {entries} is more than \
             {TARGET_COMMANDS_MAX}: make either smaller"
        ));
    }
    Ok(())
}

/// Place (from 0) and NSID of the first namespace that has the number of one before it.
pub(super) fn duplicate(namespaces: &[Namespace]) -> Option<(usize, u32)> {
    let mut seen = BTreeSet::new();
    let at = namespaces.iter().position(|of| !seen.insert(of.nsid))?;
    Some((at, namespaces[at].nsid))
}

/// Whether it can be the name of a subsystem or host.
///
/// # Errors
/// One line that begins with `key`.
pub fn check_nqn(key: &str, nqn: &str) -> Result<(), String> {
    if nqn.starts_with("nqn.") && nqn.len() <= NQN_MAX {
        return Ok(());
    }
    Err(format!(
        "{key} \"{nqn}\" must begin with \"nqn.\" and have at most {NQN_MAX} bytes, as in \
         nqn.2026-01.org.example:v0"
    ))
}

fn check_namespace(namespace: &Namespace) -> Result<(), String> {
    if namespace.ana_group == 0 {
        return Err("ana_group 0 is none: write a number from 1 on".into());
    }
    let shift = namespace.block_shift().map_err(|error| error.to_string())?;
    check_cache(namespace)?;
    let Some(size) = namespace.size else {
        return Ok(());
    };
    if size.0 == 0 || !size.0.is_multiple_of(1 << shift) {
        return Err(format!(
            "size {} is not a multiple of the block size {} above 0",
            size.0, namespace.block_size
        ));
    }
    match namespace.backend.kind() {
        UriKind::Memory(room) | UriKind::Null(room) if size.0 > *room => Err(format!(
            "size {} is more than the {} of {}: make it smaller, or the backend larger",
            format_bytes(size.0),
            format_bytes(*room),
            namespace.backend
        )),
        _ => Ok(()),
    }
}

/// Writes that are lost with the process.
fn check_cache(namespace: &Namespace) -> Result<(), String> {
    if namespace.sparse {
        let is_file = matches!(namespace.backend.kind(), UriKind::File(_));
        if !is_file || namespace.size.is_none() || namespace.read_only {
            return Err("sparse is for a file that is made with a size".into());
        }
    }
    let Some(Size(bytes)) = namespace.volatile_cache else {
        return Ok(());
    };
    if !matches!(namespace.backend.kind(), UriKind::File(_)) || namespace.read_only {
        return Err("volatile_cache is for a file that is written".into());
    }
    match (VOLATILE_CACHE_MIN..=VOLATILE_CACHE_MAX).contains(&bytes) {
        true => Ok(()),
        false => Err(format!(
            "volatile_cache {} is not {} to {}",
            format_bytes(bytes),
            format_bytes(VOLATILE_CACHE_MIN),
            format_bytes(VOLATILE_CACHE_MAX)
        )),
    }
}

/// Whether only this machine reaches it. A name is not looked up: its address may change.
fn is_loopback(listen: &str) -> bool {
    let host = listen.rsplit_once(':').map_or("", |(host, _)| host);
    let address = listen.parse::<SocketAddr>();
    host == "localhost" || address.is_ok_and(|it| it.ip().to_canonical().is_loopback())
}

fn check_listen(listen: &str) -> Result<(), String> {
    let wanted = "write ADDRESS:PORT, an IPv6 address in brackets, port 0 for any free one";
    match listen.rsplit_once(':') {
        Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => Ok(()),
        Some((host, port)) if !host.is_empty() => Err(format!(
            "listen \"{listen}\": \"{port}\" is no port from 0 to 65535 ({wanted})"
        )),
        _ => Err(format!("listen \"{listen}\": {wanted}")),
    }
}
