//! Lines about volumes for their user.
use super::config::{Config, PathKeys, Volume};
use crate::units::format_ns;
use crate::uri::UriKind;
use engine::host::WriteFailover;
use std::path::Path;

/// Types of file systems, as `statfs` has them (linux/magic.h).
const TMPFS: u64 = 0x0102_1994;
const RAMFS: u64 = 0x8584_58f6;
const OVERLAY: u64 = 0x794c_7630;

/// Risk of `write_failover = "immediate"` (T9).
const IMMEDIATE: &str = "write_failover is immediate: a lost controller may execute an old write \
                         over newer data that were acknowledged, and nobody notices";
/// Risk of a hold without a bound (T9).
const UNBOUNDED: &str = "keep_alive_tmo is 0: a write under way on a path that is lost, and all \
                         that overlap it, wait until its controller proves that it is not \
                         executed any more, and for ever where it never does";

/// Risk of a volume that is used without a mark (T9).
pub const UNMARKED: &str = "unsafe_without_mark: no mark is written; if this engine is killed, the \
                            next one does not wait for writes under way, and acknowledged data \
                            may be lost";

/// Risk of a volume by its configuration.
pub fn risk(config: &Config, volume: &Volume) -> Option<&'static str> {
    if volume.recovery().write_failover == WriteFailover::Immediate {
        return Some(IMMEDIATE);
    }
    let mut paths = volume.paths.iter();
    let remote = paths.any(|keys| matches!(keys.uri.kind(), UriKind::NvmeTcp(_)));
    let remote = remote || volume.subsystem.is_some();
    (remote && config.kato_ms() == 0).then_some(UNBOUNDED)
}

/// Lines at the start about risks of the configuration; a choice for one volume
/// by name stands in `stat`.
pub fn warning(config: &Config) -> Option<String> {
    let all = config.volumes.iter();
    let held = all.filter(|volume| risk(config, volume) == Some(UNBOUNDED));
    let names: Vec<_> = held.map(|volume| volume.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{}: {UNBOUNDED}; give it a time, or set write_failover = \"immediate\" where that is \
             safe",
            names.join(", ")
        )
    })
}

/// That the state directory does not survive a restart of the machine, where a volume needs that.
pub fn volatile(config: &Config, directory: &Path) -> Option<String> {
    let needs = |volume: &Volume| {
        let remote = |keys: &PathKeys| matches!(keys.uri.kind(), UriKind::NvmeTcp(_));
        let fenced = volume.recovery().write_failover == WriteFailover::Fenced;
        fenced && (volume.subsystem.is_some() || volume.paths.iter().any(remote))
    };
    if !config.volumes.iter().any(needs) {
        return None;
    }
    // Not made yet: where it is to be.
    let there = directory.ancestors().find(|it| it.exists())?;
    let kind = match rustix::fs::statfs(there).ok()?.f_type as u64 & 0xffff_ffff {
        TMPFS | RAMFS => "in memory (tmpfs): after a restart of this machine",
        OVERLAY => "in a container's own layer (overlay): when the container is made anew",
        _ => return None,
    };
    Some(format!(
        "the state directory {} is {kind} no mark of a killed engine, no path that was failed by \
         hand and no volume's identity is known any more; set XDG_STATE_HOME to a directory that \
         stays",
        directory.display()
    ))
}

/// The start of an engine: how much it has by the file, and what was kept of engines before.
pub fn started(config: &Config, restored: usize, unclean: usize, directory: &Path) -> String {
    let volumes = config.volumes.iter();
    let count = |is_leg| {
        volumes
            .clone()
            .filter(|it| it.leg_of.is_some() == is_leg)
            .count()
    };
    let paths: usize = volumes.clone().map(|it| it.paths.len()).sum();
    let exports: usize = volumes.clone().map(|it| it.exports.len()).sum();
    format!(
        "starts with {} volumes, {} legs of mirrors, {paths} paths and {exports} exports over NBD; \
         kept in {}: settings by verb of {restored} volumes, marks of unclean stops of {unclean}",
        count(false),
        count(true),
        directory.display()
    )
}

/// A volume has lost its last usable path, or, not `ready`, has none yet.
pub fn no_path(volume: &Volume, ready: bool) -> String {
    let name = &volume.name;
    let until = match volume.recovery().fast_io_fail_ns {
        _ if !ready => "it is not ready until one is".to_owned(),
        u64::MAX => "its I/O waits until one is".to_owned(),
        0 => "its I/O fails until one is (fast_io_fail_tmo)".to_owned(),
        ns => {
            let patience = format_ns(ns as f64);
            format!(
                "its I/O waits until one is, for {patience} at most (fast_io_fail_tmo), and then \
                 fails"
            )
        }
    };
    format!("{name}: no path is usable; {until}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;

    fn config(before: &str, keys: &str, uri: &str) -> Config {
        parsed(&format!(
            "{before}[[volume]]\nname = \"v0\"\n{keys}[[volume.path]]\nuri = \"{uri}\"\n"
        ))
    }
    const REMOTE: &str = "nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:v0";

    #[test]
    fn how_long_io_waits_without_a_path_is_said() {
        let line = |keys, ready| no_path(&config("", keys, REMOTE).volumes[0], ready);
        for (keys, part) in [
            ("", "its I/O waits until one is"),
            (
                "fast_io_fail_tmo = \"5s\"\n",
                "its I/O waits until one is, for 5.00 s at most (fast_io_fail_tmo), and then fails",
            ),
            (
                "fast_io_fail_tmo = \"0s\"\n",
                "its I/O fails until one is (fast_io_fail_tmo)",
            ),
        ] {
            let want = format!("v0: no path is usable; {part}");
            assert_eq!(line(keys, true), want);
            assert!(line(keys, false).ends_with("it is not ready until one is"));
        }
    }

    #[test]
    fn t09_a_hold_without_a_bound_is_a_risk_and_is_said_at_the_start() {
        let off = "keep_alive_tmo = \"0\"\n";
        let immediate = "write_failover = \"immediate\"\n";
        for (before, keys, uri, want) in [
            (off, "", REMOTE, Some(UNBOUNDED)),
            ("", "", REMOTE, None),
            (off, "", "mem:64MiB", None),
            (off, immediate, REMOTE, Some(IMMEDIATE)),
        ] {
            let config = config(before, keys, uri);
            assert_eq!(
                risk(&config, &config.volumes[0]),
                want,
                "{before}{keys}{uri}"
            );
            let said = warning(&config).is_some_and(|line| line.starts_with("v0: keep_alive_tmo"));
            assert_eq!(said, want == Some(UNBOUNDED));
        }
    }
}
