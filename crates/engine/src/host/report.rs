//! One line for people: what, which path, why, what to do.
use super::connections::{Role, SessionState};
use super::damage::Direction;
use super::path::Path;
use super::types::{PathKind, PathState};
use crate::limits::NAMESPACES_LISTED_MAX;
use crate::machine::Closed;
use alloc::format;
use alloc::string::String;
use core::fmt::Write;
use multipath::health::Why;
use multipath::{Conflict, Hindrance, Outcome};
use nvme::host::{HostError, NamespaceInfo};
use policy::Ana;

/// The line of an event, from its reason.
pub(super) fn line(volume: &str, path: &Path, core: u16, why: &str) -> String {
    let uri = &path.uri;
    if core == 0 {
        format!("{volume}: path {uri}: {why}")
    } else {
        format!("{volume}: path {uri}: {why} (core {core})")
    }
}

/// A sample over the policy's limit (row A2).
pub(super) fn stall(latency_ns: u64) -> String {
    let ms = latency_ns / 1_000_000;
    format!("an I/O took {ms} ms, too long to be a sample for the policy; see the target")
}

/// A connection that ended by itself.
pub(super) fn closed(session: &SessionState, role: Role, opened: bool, why: Closed) -> String {
    let what = match (session, role) {
        (SessionState::Identifying | SessionState::CheckingOthers(_), _) => "can't connect",
        (SessionState::Connecting, Role::Io) => "can't open the I/O queue's connection",
        _ => "connection lost",
    };
    ended(what, opened, why)
}

/// Line for the end of a connection, and why; `opened`: it was up.
pub(crate) fn ended(what: &str, opened: bool, why: Closed) -> String {
    match why {
        Closed::ByPeer => format!("{what}: the target closed it; see the target's log"),
        Closed::ByUs => format!("{what}: given up"),
        // Whichever of these the system reports, nobody takes connections there.
        Closed::Error(103 | 104) if !opened => ended(what, opened, Closed::Error(111)),
        Closed::Error(errno) => {
            let (name, advice) = os_error(errno);
            if name.is_empty() {
                format!("{what}: system error {errno}; {advice}")
            } else {
                format!("{what}: {name}; {advice}")
            }
        }
    }
}

/// Meaning of Linux error numbers of connections, and what to do.
fn os_error(errno: i32) -> (&'static str, &'static str) {
    match errno {
        1 | 13 => ("not permitted", "check the firewall"),
        12 | 105 => (
            "no memory for a connection",
            "free some, or raise the limit of this process or container",
        ),
        // The program has raised the soft limit as far as it may.
        24 => (
            "too many open files",
            "raise the hard limit (ulimit -Hn), or use fewer paths, cores and clients",
        ),
        23 => (
            "the whole system has too many open files",
            "raise the sysctl fs.file-max, or end what holds them",
        ),
        89 => (
            "no address yet",
            "its host name is not resolved; the log says why",
        ),
        103 => ("aborted", "check network and target"),
        32 | 104 => ("reset by the target", "see the target's log"),
        97 => (
            "address family not supported",
            "use an address of the other family",
        ),
        99 => (
            "address not available, or no local port is free",
            "check the address; see the sysctl net.ipv4.ip_local_port_range",
        ),
        100..=101 => ("network unreachable", "check address and routing"),
        110 => (
            "no answer from the network",
            "check address, cabling and firewall",
        ),
        111 => (
            "connection refused",
            "start the target there, or correct host and port",
        ),
        112..=113 => ("host unreachable", "check address and routing"),
        _ => ("", "check network and target"),
    }
}

/// A machine that gave up.
pub(super) fn machine(session: &SessionState, role: Role, error: HostError) -> String {
    match role {
        Role::Admin if session.is_identifying() && matches!(error, HostError::Protocol(_)) => {
            format!("{error}; check that an NVMe/TCP target listens there")
        }
        Role::Admin => format!("{error}"),
        Role::Io => format!("I/O queue: {error}"),
    }
}

/// No connection in time.
pub(super) fn connect_timed_out(timeout_ns: u64) -> String {
    let ms = timeout_ns / 1_000_000;
    format!("can't connect: no answer within {ms} ms; check address, cabling and firewall")
}

/// I/Os that were taken back from a path that is otherwise well.
pub(super) fn aborted(count: u32, timeout_ns: u64) -> String {
    let time = time(timeout_ns);
    let what = match count {
        1 => String::from("an I/O"),
        count => format!("{count} I/Os"),
    };
    format!("no answer to {what} within {time}: aborted, and tried elsewhere; see the target")
}

/// No answer to an I/O in time.
pub(super) fn io_timed_out(timeout_ns: u64) -> String {
    let ms = timeout_ns / 1_000_000;
    format!(
        "no answer to an I/O within {ms} ms: path given up; see the target, or raise io_timeout"
    )
}

/// No answer to a probe, nor to the Abort for it.
pub(super) const PROBE_UNANSWERED: &str = "its I/O queue answers nothing, not even a probe: path \
    given up; see network and target";

/// As people write it: `600 s`, `1500 ms`.
fn time(ns: u64) -> String {
    match ns / 1_000_000 {
        ms if ms % 1000 == 0 => format!("{} s", ms / 1000),
        ms => format!("{ms} ms"),
    }
}

/// A device that is no more.
pub(super) const VANISHED: &str = "its controller is gone: given up; once it is back, remove this \
                                   path and add it again (`braid path remove`, `braid path add`)";

/// A path that was lost for too long.
pub(super) fn given_up(volume: &str, uri: &str, tried_ns: u64) -> String {
    let time = time(tried_ns);
    format!(
        "not back within {time} (ctrl_loss_tmo): given up, and not tried any more; \
         `braid path restore {volume} {uri}` tries it again"
    )
}

/// Why a path that was lost for too long takes no I/O.
pub(super) fn stays_lost(volume: &str, path: &Path, tried_ns: u64) -> String {
    let why = given_up(volume, &path.uri, tried_ns);
    match last_reported(path) {
        "" => why,
        last => format!("{why}; last: {last}"),
    }
}

/// Text of the last line about a lost path behind its name; empty: there was none.
pub(super) fn last_reported(path: &Path) -> &str {
    let last = path.session.comeback.line.split_once(path.uri.as_str());
    last.map_or("", |(_, why)| why.trim_start_matches(": "))
}

/// A path that was restored, and isn't back yet; `tried_ns`: how long it is tried.
pub(super) fn not_yet(line: &str, tried_ns: u64) -> String {
    match tried_ns {
        u64::MAX => format!("not live yet, it is tried again and again: {line}"),
        ns => {
            let time = time(ns);
            format!("not live yet, it is tried for {time} (ctrl_loss_tmo), then given up: {line}")
        }
    }
}

/// No path of a volume will come back by itself.
pub(super) fn none_returns(volume: &str) -> String {
    format!(
        "{volume}: all its paths are given up: its I/O fails; `braid path restore {volume} PATH` \
         tries one again"
    )
}

/// A volume has been without a usable path for too long.
pub(super) fn fails_fast(volume: &str, waited_ns: u64) -> String {
    let time = time(waited_ns);
    format!(
        "{volume}: no usable path for {time} (fast_io_fail_tmo): its I/O fails until one is back"
    )
}

/// Two paths that are not one namespace.
pub(super) fn refused(other: &str, why: Conflict) -> String {
    format!("refused beside {other}: {why}")
}

/// A flush that failed (T13).
pub(super) fn unflushed(path: &Path) -> &'static str {
    match path.was_seen() {
        true => {
            "lost with acknowledged writes that were never flushed: a flush has failed; \
             check the data if the target lost power"
        }
        false => {
            "not there since the engine before, and may have acknowledged writes that were never \
             flushed: a flush has failed; check the data if the target lost power"
        }
    }
}

/// A flush has failed whose asker is not the only one who has to know (T13).
pub(super) const FLUSH_FAILED: &str = "a flush of it has failed, and what was acknowledged before \
     may be lost, so a flush has failed; check the data";

/// A path left an engine that was gone before a flush had failed for that (T13).
pub(super) const LOST_BEFORE: &str = "a path left the engine before this one with acknowledged \
     writes that were never flushed: a flush has failed; check the data if that target lost power";

/// A leg's path left before its mirror knew what the owner before it had left (T13).
pub(super) const LEFT_EARLY: &str = "removed before it was flushed, and may have acknowledged \
     writes of the owner before: a flush has failed; check the data if the target lost power";

/// A path that was not flushed when the engine ended, or its volume (T13).
pub(super) fn left_unflushed(path: &Path) -> &'static str {
    match path.was_seen() {
        true => {
            "ended with acknowledged writes that were not flushed: the first flush after this \
             will cover them; until then they are lost if the target loses power"
        }
        false => {
            "not there since the engine before, and may have acknowledged writes that were not \
             flushed: the first flush after this will cover them"
        }
    }
}

/// A lost path that can't leave without losing what it had cached (T13).
pub(super) fn in_doubt(path: &Path) -> String {
    let uri = &path.uri;
    let what = match path.was_seen() {
        true => "was lost with",
        false => "was not there since the engine before, and may have",
    };
    format!(
        "{uri} {what} acknowledged writes that were never flushed: wait until it is back, or \
         use --force; the next flush of its volume will fail then"
    )
}

/// A lost path of a leg that can't leave before the mirror is ours (T13).
pub(super) fn too_early(path: &Path) -> String {
    format!(
        "{} may have acknowledged writes of the mirror's owner before that were never flushed: \
         wait until it is back, or until the mirror runs, or use --force; a flush will fail then",
        path.uri
    )
}

/// Why a path that is not live takes no I/O, as far as its state says it.
pub(super) fn out_of_use(state: PathState) -> &'static str {
    match state {
        PathState::Connecting => "it is being connected",
        PathState::Failed => "it was given up; restore it",
        PathState::Reconnecting => "it is lost, and being connected again",
        PathState::Draining => hindered(Hindrance::Draining),
        PathState::Removed => "it is being removed",
        PathState::Live => "it is being opened",
        PathState::Probation => "on probation: it gets probes, and no I/O",
    }
}

/// A path was put on probation.
pub(super) fn on_probation(path: &Path, why: Why) -> &'static str {
    let kind = &path.kind;
    if path.errors.has_damaged && why == Why::Errors {
        return match kind {
            PathKind::NvmeTcp { .. } => {
                "on probation: too much of what it carries is damaged or fails on the way; check \
                 network, cables and network cards"
            }
            _ => {
                "on probation: too much of what it carries is damaged or fails on the way; see \
                 the system's log"
            }
        };
    }
    if !matches!(kind, PathKind::NvmeTcp { .. }) {
        return match why {
            Why::Errors => "on probation: too many of its I/Os fail; see the system's log",
            Why::Silence => "on probation: it answers nothing; see the device",
            Why::Stalls => "on probation: it stalls again and again; see the device",
            Why::Flaps => "on probation: it was lost again soon; see the device",
        };
    }
    match why {
        Why::Errors => "on probation: too many of its I/Os fail; see the target's log",
        Why::Silence => "on probation: it answers nothing; see network and target",
        Why::Stalls => "on probation: it stalls again and again; see network and target",
        Why::Flaps => "on probation: it was lost again soon; see network and target",
    }
}

/// I/Os of a path, `count` since the last such line, were answered with an error of what is behind
/// it; `failed`: and have failed, else they are repeated.
pub(super) fn device_error(kind: &PathKind, outcome: Outcome, count: u32, failed: bool) -> String {
    let then = if failed { "failed" } else { "repeated" };
    let see = match kind {
        PathKind::NvmeTcp { .. } => "see the target's log",
        PathKind::Device { .. } | PathKind::Passthrough { .. } => "see the system's log",
    };
    let io = if count == 1 { "I/O was" } else { "I/Os were" };
    format!("{count} {io} answered with an error and {then}: {outcome}; {see}")
}

/// Transfers of a path, `count` since the last such line, were damaged or failed on the way.
pub(super) fn damaged(kind: &PathKind, direction: Direction, count: u32) -> String {
    let way = match direction {
        Direction::In => "from",
        Direction::Out => "to",
    };
    let (place, what, see) = match kind {
        PathKind::NvmeTcp { .. } => (
            "target",
            "digest or transport error",
            "check network, cables and network cards",
        ),
        _ => ("device", "transport error", "see the system's log"),
    };
    let transfers = if count == 1 { "transfer" } else { "transfers" };
    let was = if count == 1 { "was" } else { "were" };
    format!(
        "{count} {transfers} {way} the {place} {was} damaged or failed on the way ({what}), and \
         repeated; {see}"
    )
}

/// A path is no longer on probation.
pub(super) fn well_again(took_ns: u64) -> String {
    let seconds = took_ns / 1_000_000_000;
    let tenths = took_ns / 100_000_000 % 10;
    format!("in use again, after {seconds}.{tenths} s on probation")
}

/// Why a live path takes no I/O.
pub(super) fn hindered(why: Hindrance) -> &'static str {
    match why {
        Hindrance::Disabled => "its queue has failed",
        Hindrance::Draining => "it gets nothing new; restore it",
        Hindrance::Pending => "its ANA state is in doubt and is being read again",
        Hindrance::Stale => "it shows another size than other paths and is being read again",
        Hindrance::Ana(Ana::Inaccessible) => "its ANA state is inaccessible; see the target",
        Hindrance::Ana(Ana::PersistentLoss) => "its ANA state is persistent-loss; see the target",
        Hindrance::Ana(_) => "its ANA state is changing",
    }
}

/// An I/O that a controller calls out of range.
pub(super) fn past_end(offset: u64, length: u32, bytes: u64) -> String {
    format!(
        "{length} bytes at {offset} are beyond the end of the namespace (the volume has {bytes} \
         bytes): it has shrunk; data there are gone, see the target"
    )
}

/// A path that came back, or was read again, as something else (T32).
pub(super) fn not_the_same(why: Conflict) -> String {
    format!("no longer what it was: {}", multipath::Changed(why))
}

/// Fewer queues than cores.
pub(super) fn few_queues(granted: u16, cores: u16) -> String {
    format!(
        "the controller grants {granted} I/O queues, {cores} cores need one each: a measurement \
         puts the same load on each core, and one without a queue could do none (braid run shares \
         queues); use {granted} cores, or raise the target's limit"
    )
}

/// Fewer queues than cores, which share them.
pub(super) fn shared_queues(granted: u16, cores: u16) -> String {
    let queues = if granted == 1 { "queue" } else { "queues" };
    format!(
        "the controller grants {granted} I/O {queues} for {cores} cores: the core of the volume's \
         clients has one, and {} of the others do without this path; raise the target's limit to \
         give one to each",
        cores.saturating_sub(granted)
    )
}

/// Why a core can't use a path: the queues that there are, are other cores'.
pub(super) fn no_queue(granted: u16, cores: u16) -> String {
    format!(
        "its controller grants {granted} I/O queues for {cores} cores, and the mirror's core has \
         none; raise the target's limit, or use {granted} cores"
    )
}

/// A namespace that the controller no longer shows.
pub(super) fn namespace_gone(nsid: u32) -> String {
    format!("namespace {nsid} was removed or detached; attach it again on the target")
}

/// A controller that rounds the keep-alive time-out up to a granularity (KAS) of minutes or hours.
pub(super) fn long_keep_alive(wanted_ms: u32, granted_ms: u32, bound_ns: u64) -> String {
    let (wanted, granted) = (wanted_ms.div_ceil(1000), granted_ms / 1000);
    let held = bound_ns / 1_000_000_000;
    format!(
        "its controller rounds the keep-alive time-out of {wanted} s up to {granted} s (KAS): when \
         this path is lost, writes under way on it are held for up to {held} s unless the \
         controller confirms its reset before; lower KAS at the target"
    )
}

/// The namespace that `nsid` asks for; the controller lists `unasked` ones beside those told.
///
/// # Errors
/// What is there instead.
pub(super) fn pick(
    nsid: Option<u32>,
    namespaces: &[NamespaceInfo],
    unasked: usize,
) -> Result<&NamespaceInfo, String> {
    match (nsid, namespaces) {
        (None, [only]) => Ok(only),
        (None, []) => Err(String::from(
            "the subsystem has no namespace; attach one on the target",
        )),
        (None, several) => Err(format!(
            "the subsystem has {} namespaces; add ?nsid=N to the path: {}",
            several.len() + unasked,
            list(several, unasked)
        )),
        (Some(nsid), all) => all
            .iter()
            .find(|namespace| namespace.nsid == nsid)
            .ok_or_else(|| {
                if all.is_empty() {
                    format!("namespace {nsid} isn't there, nor any other; attach it on the target")
                } else {
                    format!(
                        "namespace {nsid} isn't there; use one of: {}",
                        list(all, unasked)
                    )
                }
            }),
    }
}

/// `1 (4194304 bytes), 2 (…), …`
fn list(namespaces: &[NamespaceInfo], unasked: usize) -> String {
    let mut text = String::new();
    for (i, namespace) in namespaces.iter().take(NAMESPACES_LISTED_MAX).enumerate() {
        let size = multipath::Size {
            blocks: namespace.blocks,
            block_shift: namespace.block_shift,
        };
        let comma = if i == 0 { "" } else { ", " };
        // Writing to a String can't fail.
        let _ = write!(text, "{comma}{} ({} bytes)", namespace.nsid, size.bytes());
    }
    let more = namespaces.len().saturating_sub(NAMESPACES_LISTED_MAX) + unasked;
    if more > 0 {
        let _ = write!(text, ", and {more} more");
    }
    text
}

#[cfg(test)]
pub(super) mod tests;
