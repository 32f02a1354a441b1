//! Checks that one value can't make by itself, with the place in the file.
use super::{Config, Export, ExportKeys, PathKeys, QueueKeys, UblkNumber, Volume, mirror, twice};
use crate::identity;
use crate::run::address::NbdAddress;
use crate::run::admission::Keys;
use crate::run::nvme_exports;
use crate::run::ublk::untold;
use crate::units::format_bytes;
use engine::limits::DISCOVERY_CONTROLLERS_MAX;
use std::collections::BTreeSet;
use std::ops::Range;
use toml::de::{DeTable, DeValue};

/// A step into the file.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    Key(&'static str),
    At(usize),
}
use Step::{At, Key};

/// A mistake: its place, and what it is.
pub(super) type Wrong = (Vec<Step>, String);

/// # Errors
/// The first thing that can't be.
pub(super) fn check(config: &Config, text: &str) -> Result<(), Wrong> {
    check_engine(config)?;
    let legs = config.volumes.iter().map(|volume| volume.legs.len());
    let (there, most) = (config.volumes.len(), engine::limits::VOLUMES_MAX);
    let with_legs = there + legs.sum::<usize>();
    if there <= most && with_legs > most {
        let text = format!("{with_legs} volumes and legs of mirrors are more than {most}");
        return Err((vec![Key("volume")], text));
    }
    check_mirrors(config, text)?;
    if there == 0 {
        let wanted = "write one with a name and a [[volume.path]]; one can't be added later";
        return Err((vec![], format!("there is no [[volume]]: {wanted}")));
    }
    if there > most {
        let text = format!("{there} volumes are more than {most}");
        return Err((vec![Key("volume"), At(most)], text));
    }
    for (number, keys) in config.discoveries.iter().enumerate() {
        if number == DISCOVERY_CONTROLLERS_MAX {
            let text = format!(
                "{} discovery controllers are more than {number}, which have places",
                config.discoveries.len()
            );
            return Err((vec![Key("discovery"), At(number)], text));
        }
        let mut before = config.discoveries[..number].iter();
        if before.any(|it| it.uri == keys.uri) {
            let at = vec![Key("discovery"), At(number), Key("uri")];
            return Err((at, format!("{} is asked twice", keys.uri)));
        }
    }
    let (mut names, mut places, mut nodes) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for (number, volume) in config.volumes.iter().enumerate() {
        let here = [Key("volume"), At(number)];
        let at = |key| Err([&here[..], &[Key(key)]].concat());
        let wrong = |key, text| at(key).map_err(|steps| (steps, text));
        check_volume(volume).or_else(|(key, text)| wrong(key, text))?;
        check_discovered(volume, config).or_else(|(key, text)| wrong(key, text))?;
        if !names.insert(&volume.name) {
            wrong("name", format!("there are two volumes \"{}\"", volume.name))?;
        }
        for (number, keys) in volume.export_keys.iter().enumerate() {
            let at = |key| [&here[..], &[Key("export"), At(number), Key(key)]].concat();
            check_export_keys(keys).map_err(|(key, text)| (at(key), text))?;
            if let Some(node) = keys.ublk {
                let before = &volume.export_keys[..number];
                if before.iter().any(|it| it.ublk.is_some()) {
                    let text = format!("volume \"{}\" has a ublk export already", volume.name);
                    return Err((at("ublk"), text));
                }
                if let Some(why) = untold(volume) {
                    let text = format!("volume \"{}\": {why}", volume.name);
                    return Err((at("ublk"), text));
                }
                if let UblkNumber::Of(number) = node
                    && !nodes.insert(number)
                {
                    return Err((at("ublk"), format!("/dev/ublkb{number} is exported twice")));
                }
            }
            if let Some(nbd) = &keys.nbd
                && !places.insert(nbd.to_string())
            {
                return Err((at("nbd"), format!("{nbd} is exported twice")));
            }
        }
    }
    for (number, volume) in config.volumes.iter().enumerate() {
        for (export, keys) in volume.export_keys.iter().enumerate() {
            let Some(address) = keys.nvme else { continue };
            if places.contains(&format!("tcp:{address}")) {
                let steps = [
                    Key("volume"),
                    At(number),
                    Key("export"),
                    At(export),
                    Key("nvme"),
                ];
                let text = format!("{address} is the address of an export over NBD");
                return Err((steps.to_vec(), text));
            }
        }
    }
    check_queues(config, &places)?;
    twice::check(&config.volumes)
}

/// Checks the servers of queues; `places`: addresses of exports over NBD.
fn check_queues(config: &Config, places: &BTreeSet<String>) -> Result<(), Wrong> {
    for (number, keys) in config.queues.iter().enumerate() {
        let here = [Key("queue"), At(number)];
        let wrong = |key, text: String| Err(([&here[..], &[Key(key)]].concat(), text));
        let shown = keys.socket.display();
        let mut before = config.queues[..number].iter();
        if before.any(|it| it.socket == keys.socket) {
            return wrong("socket", format!("two [[queue]] have the socket {shown}"));
        }
        if config.socket.as_ref() == Some(&keys.socket) {
            return wrong("socket", format!("{shown} is the control socket"));
        }
        if places.contains(&format!("unix:{shown}")) {
            return wrong(
                "socket",
                format!("{shown} is the socket of an export over NBD"),
            );
        }
        let most = broker::limits::QUEUES_MAX;
        for (key, count) in [("user_poll", keys.user_poll), ("user_irq", keys.user_irq)] {
            if count > most {
                return wrong(key, format!("{key} must be 0…{most}"));
            }
        }
        if (keys.user_poll, keys.user_irq) == (0, 0) {
            return wrong(
                "user_irq",
                "without user_poll and user_irq there is no queue".into(),
            );
        }
        if keys.spin_us > 3_600_000_000 {
            return wrong("spin_us", "spin_us must be an hour at most".into());
        }
        if keys.memory_max.0 == 0 {
            return wrong("memory_max", "a queue needs memory for its data".into());
        }
        if !(1..=0xffef).contains(&keys.controller) {
            return wrong("controller", "controller must be 1…65519".into());
        }
        if let Some(nqn) = &keys.subsystem {
            target::check_nqn("subsystem", nqn).or_else(|text| wrong("subsystem", text))?;
        }
        check_queue_namespaces(config, keys).map_err(|(at, key, text)| {
            let steps = [Key("queue"), At(number), Key("namespace"), At(at), Key(key)];
            (steps.to_vec(), text)
        })?;
        if keys.namespaces.is_empty() {
            return wrong(
                "socket",
                "write a [[queue.namespace]] with a volume and an nsid".into(),
            );
        }
    }
    Ok(())
}

/// # Errors
/// The first namespace that can't be, its key, and why.
fn check_queue_namespaces(
    config: &Config,
    keys: &QueueKeys,
) -> Result<(), (usize, &'static str, String)> {
    let most = broker::limits::NAMESPACES_MAX as u32;
    for (at, it) in keys.namespaces.iter().enumerate() {
        if config.volume(&it.volume).is_none() {
            return Err((
                at,
                "volume",
                format!("there is no volume \"{}\"", it.volume),
            ));
        }
        if !(1..=most).contains(&it.nsid) {
            return Err((at, "nsid", format!("nsid must be 1…{most}")));
        }
        let mut before = keys.namespaces[..at].iter();
        if let Some(other) = before.find(|of| of.nsid == it.nsid) {
            let text = format!("namespace {} is {}", it.nsid, other.volume);
            return Err((at, "nsid", text));
        }
    }
    Ok(())
}

/// Checks the mirrors of a configuration.
fn check_mirrors(config: &Config, text: &str) -> Result<(), Wrong> {
    let at = |number| vec![Key("volume"), At(number)];
    if let Some((number, key)) = mirror::kept_by_the_mirror(text) {
        let name = config.volumes.get(number).map_or("", |it| it.name.as_str());
        let verb = match key {
            "policy" => "how it reads is its own property, and moves with it: braid policy set",
            _ => {
                "its reads get no second copy on another leg; on another path of a leg they do \
                 without a word"
            }
        };
        let text = format!("volume \"{name}\" is a mirror: {verb}");
        return Err(([at(number), vec![Key(key)]].concat(), text));
    }
    mirror::check_alone(&config.volumes).map_err(|(number, text)| (at(number), text))
}

/// Whether the connections of each core have places: clients, hosts of subsystems on that core, and
/// two for each path.
///
/// # Errors
/// The core with the most of them has too many.
pub(super) fn check_connections(config: &Config) -> Result<(), Wrong> {
    let most = runtime::limits::CONNECTIONS_MAX as usize;
    let (core, subsystems) = config.busiest_core();
    let (of_each, paths) = (nvme_exports::CONNECTIONS_MAX as usize, config.paths());
    let others = subsystems * of_each + 2 * paths;
    if usize::from(config.clients) + others <= most {
        return Ok(());
    }
    let advice = match most.saturating_sub(others) {
        0 => "write fewer paths or subsystems, or more cores".to_owned(),
        left => format!("write clients = {left} or fewer"),
    };
    let text = format!(
        "core {core} has at most {most} connections, but {subsystems} subsystems of NVMe/TCP \
         exports take {of_each} each, {paths} paths 2 each, and clients {}: {advice}",
        config.clients
    );
    Err((vec![Key("clients")], text))
}

fn check_engine(config: &Config) -> Result<(), Wrong> {
    let wrong = |key, text| Err((vec![Key(key)], text));
    let most = engine::limits::CLIENTS_MAX;
    if !(1..=most).contains(&config.clients) {
        return wrong("clients", format!("clients must be 1…{most}"));
    }
    let least = engine::limits::EXPORT_ARENA_MIN;
    let most = crate::limits::ARENA_BYTES_MAX;
    if !(least..=most).contains(&config.buffers.0) {
        let range = [least, most].map(format_bytes).join(" to ");
        let text = format!("buffers must be {range}: it holds what is in flight on a core");
        return wrong("buffers", text);
    }
    let (cores, most) = (usize::from(config.cores), crate::limits::CORES_MAX);
    if !(1..=most).contains(&cores) {
        return wrong("cores", format!("cores must be 1…{most}"));
    }
    match &config.metrics {
        Some(address) => address
            .check(&config.metrics_allow, config.metrics_open)
            .or_else(|(key, text)| wrong(key, text))?,
        None if config.metrics_allow.is_empty() && !config.metrics_open => {}
        None => {
            let key = ["metrics_allow", "metrics_open"][usize::from(config.metrics_open)];
            return wrong(key, format!("{key} is of metrics, which has no address"));
        }
    }
    if !config.cpus.is_empty() && config.cpus.len() != cores {
        let text = "cpus must name one CPU for each of the cores";
        return wrong("cpus", text.to_owned());
    }
    if config
        .keep_alive_tmo
        .is_some_and(|ns| ns >= config.io_timeout.0)
    {
        let text = "keep_alive_tmo must be shorter than io_timeout, or 0: a dead target must be \
                    found out before its I/O is given up";
        return wrong("keep_alive_tmo", text.to_owned());
    }
    Ok(())
}

fn check_volume(volume: &Volume) -> Result<(), (&'static str, String)> {
    let name = &volume.name;
    if !is_name(name) {
        let wanted = "a name has 1 to 64 letters, digits, \".\", \"_\" or \"-\"";
        return Err(("name", format!("volume \"{name}\": {wanted}")));
    }
    mirror::check(volume)?;
    if volume.is_mirror() {
        return check_times(volume);
    }
    if volume.paths.is_empty() && volume.subsystem.is_none() {
        let text = format!(
            "volume \"{name}\" has no [[volume.path]], and no subsystem whose paths are discovered"
        );
        return Err(("name", text));
    }
    let most = policy::limits::PATHS_MAX;
    if volume.paths.len() > most {
        let text = format!("volume \"{name}\" has more than {most} [[volume.path]]");
        return Err(("name", text));
    }
    let paths = match &volume.subsystem {
        Some(_) => most, // there may be as many
        None => volume.paths.len(),
    };
    if let Err(why) = volume.policy.check(paths) {
        return Err(("policy", format!("volume \"{name}\": {why}")));
    }
    if let Err(why) = volume.knobs().hedging.check(volume.policy) {
        return Err(("hedge", format!("volume \"{name}\": {why}")));
    }
    check_times(volume)
}

/// Those of which one must not be longer than another.
pub(super) fn check_times(volume: &Volume) -> Result<(), (&'static str, String)> {
    let recovery = volume.recovery();
    if recovery.reconnect_min_ns > recovery.reconnect_max_ns {
        let text = "reconnect_delay_min must not be longer than reconnect_delay";
        let key = match volume.reconnect_delay {
            Some(_) => "reconnect_delay",
            None => "reconnect_delay_min",
        };
        return Err((key, text.to_owned()));
    }
    if recovery.health.probe_ns > recovery.health.probe_max_ns {
        let text = "probe_interval must not be longer than probe_interval_max";
        let key = match volume.probe_interval {
            Some(_) => "probe_interval",
            None => "probe_interval_max",
        };
        return Err((key, text.to_owned()));
    }
    Ok(())
}

/// Whether its paths can come from discovery, where they are to.
fn check_discovered(volume: &Volume, config: &Config) -> Result<(), (&'static str, String)> {
    let name = &volume.name;
    let Some(nqn) = &volume.subsystem else {
        let of_discovery = "is for a subsystem that is discovered";
        return match (volume.nsid, volume.gone) {
            (Some(_), _) => Err((
                "nsid",
                format!("volume \"{name}\": nsid {of_discovery}; of a path it stands in the URI"),
            )),
            (None, Some(_)) => Err((
                "gone",
                format!(
                    "volume \"{name}\": gone {of_discovery}: write subsystem = \"NQN\" too, or \
                     leave it out"
                ),
            )),
            (None, None) => Ok(()),
        };
    };
    let wrong = |text: String| Err(("subsystem", format!("volume \"{name}\": {text}")));
    if let Err(why) = identity::parse_nqn(nqn) {
        return wrong(why);
    }
    let local = |keys: &PathKeys| !keys.uri.kind().is_namespace();
    if volume.paths.iter().any(local) {
        return wrong("a local device is no subsystem's data; give it a volume of its own".into());
    }
    match config.discoveries.is_empty() {
        true => wrong("there is no [[discovery]] to ask: write one with a uri".into()),
        false => Ok(()),
    }
}

fn check_export_keys(keys: &ExportKeys) -> Result<(), (&'static str, String)> {
    let of_nvme = [
        ("nqn", keys.nqn.is_some()),
        ("nsid", keys.nsid.is_some()),
        ("serial", keys.serial.is_some()),
        ("uuid", keys.uuid.is_some()),
        ("nguid", keys.nguid.is_some()),
        ("hosts", !keys.hosts.is_empty()),
    ];
    let of_nbd = [
        ("owner", keys.owner.is_some()),
        ("group", keys.group.is_some()),
        ("mode", keys.mode.is_some()),
        ("allow", !keys.allow.is_empty()),
    ];
    let set = |all: &[(&'static str, bool)]| all.iter().find(|(_, set)| *set).map(|(key, _)| *key);
    if keys.ublk.is_some() {
        if keys.nbd.is_some() || keys.nvme.is_some() {
            let text = "an export has nbd, nvme or ublk: write a [[volume.export]] for each";
            return Err(("ublk", text.into()));
        }
        return match set(&of_nvme)
            .or(set(&of_nbd))
            .or(set(&[("open", keys.open)]))
        {
            Some(key) => Err((
                key,
                format!("{key} is not of ublk: rules of udev have its node"),
            )),
            None => Ok(()),
        };
    }
    match (keys.nbd(), keys.nvme) {
        (Some(export), None) => match set(&of_nvme) {
            Some(key) => Err((key, format!("{key} is of an export over NVMe/TCP (nvme)"))),
            None => check_export(&export),
        },
        (None, Some(address)) => match set(&of_nbd) {
            Some("allow") => {
                let text = "allow is of an export over NBD (nbd); hosts of NVMe/TCP are named by \
                            hosts = [\"NQN\"]";
                Err(("allow", text.into()))
            }
            Some(key) => Err((key, format!("{key} is for nbd = \"unix:/path\""))),
            None => super::subsystems::check(keys, address),
        },
        (Some(_), Some(_)) => {
            let text = "an export has nbd or nvme: write a [[volume.export]] for each";
            Err(("nvme", text.into()))
        }
        (None, None) => {
            let text = "an export has an address: write nbd = \"unix:/path\", \
                        nvme = \"127.0.0.1:4420\" and an nqn, or ublk = \"auto\"";
            Err(("read_only", text.into()))
        }
    }
}

/// Names of the keys about NBD clients.
const NBD_KEYS: Keys = Keys {
    allow: "allow",
    open: "open",
};

pub(super) fn check_export(export: &Export) -> Result<(), (&'static str, String)> {
    let set = [
        ("owner", export.owner.is_some()),
        ("group", export.group.is_some()),
        ("mode", export.mode.is_some()),
    ];
    if let (NbdAddress::Tcp(..), Some((key, _))) = (&export.nbd, set.iter().find(|(_, set)| *set)) {
        return Err((key, format!("{key} is for unix:/path; a TCP port has none")));
    }
    let checked = (export.admission).check(export.nbd.reach(), &export.nbd, &NBD_KEYS);
    checked.map_err(|(key, text)| (key.unwrap_or("nbd"), text))
}

/// Whether a volume may be called so.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(allowed)
}

/// The line with line and column of what the steps lead to, or as far as they lead.
pub(super) fn place((steps, what): Wrong, text: &str) -> String {
    let Ok(table) = DeTable::parse(text) else {
        return what;
    };
    let mut span = table.span();
    let mut here = DeValue::Table(table.into_inner());
    for step in steps {
        let Some((at, next)) = enter(here, step) else {
            break;
        };
        (span, here) = (at, next);
    }
    let before = text.get(..span.start).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
    format!("line {line}, column {column}: {what}")
}

fn enter<'a>(from: DeValue<'a>, step: Step) -> Option<(Range<usize>, DeValue<'a>)> {
    let found = match (from, step) {
        (DeValue::Table(mut table), Key(key)) => table.remove(key)?,
        (DeValue::Array(array), At(number)) => array.into_iter().nth(number)?,
        _ => return None,
    };
    Some((found.span(), found.into_inner()))
}
