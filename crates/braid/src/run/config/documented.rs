//! docs/configuration.md has the keys of the engine, with their defaults.
use super::Volume;
use super::{
    ASSEMBLE_WAIT_NS, AlarmKeys, Config, DiscoveryKeys, ExportKeys, LEG_QUIESCE_NS, LegKeys,
    PathKeys, QueueKeys, QueueNamespace,
};
use crate::control::access::PRIVATE;
use crate::reference::{compare, table};
use crate::run::live;
use mirror::machine::Speed;
use target::quantity::Rate;

/// The keys that `braid knob set` takes beside those of [`live::KEYS`].
const POLICY_KNOBS: [&str; 3] = ["ewma_shift", "weight_timeout", "hedge"];

/// Writes out the values that are used where a volume says nothing.
fn resolve(volume: &mut Volume) {
    let (recovery, knobs, speed) = (volume.recovery(), volume.knobs(), Speed::default());
    volume.assemble_wait.get_or_insert(ASSEMBLE_WAIT_NS);
    volume.leg_quiesce.get_or_insert(LEG_QUIESCE_NS);
    volume.rebuild_floor.get_or_insert(Rate(speed.floor));
    volume.gone.get_or_insert_default();
    volume.before_up.get_or_insert_default();
    volume.ewma_shift = Some(knobs.ewma_shift);
    volume.weight_timeout = Some(knobs.weight_timeout_ns);
    volume.hedge = Some(knobs.hedging);
    volume.write_failover = Some(recovery.write_failover);
    volume.quiesce_time = Some(recovery.quiesce_ns);
    volume.ctrl_loss_tmo = Some(recovery.ctrl_loss_ns);
    volume.fast_io_fail_tmo = Some(recovery.fast_io_fail_ns);
    volume.flush_timeout = Some(recovery.flush_timeout_ns);
    volume.reconnect_delay = Some(recovery.reconnect_max_ns);
    volume.reconnect_delay_min = Some(recovery.reconnect_min_ns);
    volume.retries = Some(recovery.retries_max);
    volume.attempts_timeout = Some(recovery.attempts_ns);
    volume.probation_errors = Some(recovery.health.errors_permille);
    volume.probation_silence = Some(recovery.health.silence_ns);
    volume.probation_slow = Some(recovery.health.slow_ns);
    volume.probe_interval = Some(recovery.health.probe_ns);
    volume.probe_interval_max = Some(recovery.health.probe_max_ns);
    volume.probe_idle = Some(recovery.health.idle_ns);
}

#[test]
fn the_document_has_the_keys_of_the_engine() {
    compare::<Config>("engine", "", |config| {
        config.keep_alive_tmo = Some(u64::from(config.kato_ms()) * 1_000_000);
        config.socket_mode.get_or_insert(PRIVATE);
    });
    compare::<DiscoveryKeys>("discovery", "uri = \"nvme-tcp://127.0.0.1\"\n", |_| ());
    compare::<AlarmKeys>("alarms", "", |_| ());
    compare::<QueueKeys>("queue", "socket = \"/q\"\n", |queue| {
        queue.mode.get_or_insert(PRIVATE);
    });
    let least = "volume = \"v0\"\nnsid = 1\n";
    compare::<QueueNamespace>("queue namespace", least, |_| ());
}

#[test]
fn the_document_has_the_keys_of_a_volume() {
    compare("volume", "name = \"v0\"\n", resolve);
    compare::<LegKeys>("leg", "uri = \"mem:1MiB\"\n", |_| ());
    compare::<PathKeys>("path", "uri = \"mem:1MiB\"\n", |_| ());
    compare::<ExportKeys>("export", "", |export| {
        export.mode.get_or_insert(PRIVATE);
    });
}

/// `live` in the document means `braid knob set`, and `restart` a key that a reload refuses.
#[test]
fn the_document_says_which_keys_are_live() {
    for row in table("volume") {
        let key = row.key.as_str();
        let found = live::find(key);
        let is_knob = POLICY_KNOBS.contains(&key) || found.is_ok();
        assert_eq!(is_knob, row.change == "live", "{key}");
        let refused = found
            .err()
            .is_some_and(|why| why.contains("is fixed while"));
        assert!(!refused || row.change == "restart", "{key}");
    }
}

/// The guide's table of differences from nvme-cli and the kernel: each subject has a row, and a
/// value beside a key is its default.
#[test]
fn the_guide_says_where_braid_differs_from_nvme_cli() {
    let guide = include_str!("../../../../../docs/guide.md");
    let (_, part) = guide
        .split_once("## Beside nvme-cli and the kernel")
        .unwrap();
    let part = part.split("\n## ").next().unwrap();
    for subject in [
        "first reconnect",
        "`ctrl_loss_tmo`",
        "`io_timeout`",
        "`fast_io_fail_tmo`",
        "ANA state",
        "`numa`",
        "`list-subsys -o json`",
        "`connect-all`",
    ] {
        let rows = part.lines().filter(|line| line.starts_with("| "));
        let row = rows
            .filter_map(|line| line.split(" | ").next())
            .find(|cell| cell.contains(subject));
        assert!(row.is_some(), "{subject} has no row");
    }
    let volume = table("volume");
    for (key, value) in [
        ("reconnect_delay", "10 s"),
        ("reconnect_delay_min", "100 ms"),
    ] {
        assert!(part.contains(&format!("`{key}`, {value}")), "{key}");
        let row = volume.iter().find(|row| row.key == key).unwrap();
        let default = format!("`\"{}\"`", value.replace(' ', ""));
        assert_eq!(row.default, default, "{key}");
    }
}
