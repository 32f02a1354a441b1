//! Mirrors in the configuration: `kind = "mirror"` with `[[volume.leg]]`.
//!
//! # Contract
//! A leg becomes a volume of its own behind its mirror, named `MIRROR/LEG`, with the mirror's keys
//! about failing paths. How reads choose among legs is a property of the mirror itself (row B6), so
//! `policy` and `hedge` don't stand here.
use super::{PathKeys, Volume, keys};
use crate::units::format_ns;
use crate::uri::{PathUri, UriKind, names};
use mirror::limits::LEGS_MAX;
use policy::Policy;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::de::{DeTable, DeValue};

/// How long legs that could be missing are waited for: as long as connecting has.
pub const ASSEMBLE_WAIT_NS: u64 = 10_000_000_000;
/// No leg answers in no time: with less, one that is well counts as one that doesn't answer.
const ASSEMBLE_WAIT_MIN_NS: u64 = 100_000_000;
/// Time of a leg before its I/O fails and the mirror goes on without it: longer than a path
/// takes to be connected again, and not yet much of a pause.
const LEG_PATIENCE_NS: u64 = 5_000_000_000;
/// Longer than any disk goes on with what it was given.
pub const LEG_QUIESCE_NS: u64 = 30_000_000_000;

/// Kind of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One namespace over its paths.
    #[default]
    Paths,
    /// The same data on several legs.
    Mirror,
}

/// One leg.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RawLeg")]
pub struct LegKeys {
    /// Its name, if one is given.
    pub name: Option<String>,
    /// Its paths.
    pub paths: Vec<PathKeys>,
    /// How its paths are chosen among.
    pub policy: Policy,
}

/// As it stands in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLeg {
    #[serde(default, deserialize_with = "crate::uri::name")]
    name: Option<String>,
    #[serde(default, deserialize_with = "keys::path_uri")]
    uri: Option<PathUri>,
    #[serde(rename = "path", default)]
    paths: Vec<PathKeys>,
    #[serde(default = "keys::default_policy", deserialize_with = "keys::policy")]
    policy: Policy,
}

impl TryFrom<RawLeg> for LegKeys {
    type Error = &'static str;

    fn try_from(raw: RawLeg) -> Result<Self, Self::Error> {
        let paths = match (raw.uri, raw.paths) {
            (Some(uri), paths) if paths.is_empty() => vec![PathKeys::from(uri)],
            (Some(_), _) => return Err("a leg has a uri, or [[volume.leg.path]], and not both"),
            (None, paths) if paths.is_empty() => {
                return Err("a leg has a uri, or several [[volume.leg.path]]");
            }
            (None, paths) => paths,
        };
        Ok(Self {
            name: raw.name,
            paths,
            policy: raw.policy,
        })
    }
}

impl Volume {
    /// Whether it is a mirror.
    pub fn is_mirror(&self) -> bool {
        self.kind == Kind::Mirror
    }

    /// The volumes that its legs are.
    pub(super) fn leg_volumes(&self) -> impl Iterator<Item = Self> + '_ {
        let legs = self.legs.iter().zip(self.leg_names());
        legs.map(|(leg, name)| Self {
            policy: leg.policy,
            ..self.leg_volume(name, leg.paths.clone())
        })
    }

    /// Their names.
    pub(super) fn leg_names(&self) -> Vec<String> {
        let legs = self.legs.iter();
        let legs = legs.filter_map(|leg| Some((leg.name.as_deref(), &leg.paths.first()?.uri)));
        let names = names::names(legs).into_iter();
        names.map(|leg| leg_name(&self.name, &leg)).collect()
    }

    /// The volume that a leg of it is.
    pub fn leg_volume(&self, name: String, paths: Vec<PathKeys>) -> Self {
        Self {
            name,
            kind: Kind::Paths,
            legs: Vec::new(),
            leg_of: Some(self.name.clone()),
            home: None,
            policy: keys::default_policy(),
            hedge: None,
            paths,
            export_keys: Vec::new(),
            exports: Vec::new(),
            fast_io_fail_tmo: self.fast_io_fail_tmo.or(Some(LEG_PATIENCE_NS)),
            ..self.clone()
        }
    }

    /// Name of a leg among those of its mirror; `None`: it is none.
    pub fn leg(&self) -> Option<&str> {
        let mirror = self.leg_of.as_ref()?;
        self.name.strip_prefix(mirror)?.strip_prefix('/')
    }

    /// Whether other hosts can reach its legs.
    pub fn is_shared(&self) -> bool {
        let mut paths = self.legs.iter().flat_map(|leg| &leg.paths);
        let said = self.shared == Some(true);
        said || paths.any(|keys| matches!(keys.uri.kind(), UriKind::NvmeTcp(_)))
    }
}

/// Name of a leg's volume.
pub fn leg_name(mirror: &str, leg: &str) -> String {
    format!("{mirror}/{leg}")
}

/// Whether a mirror, or another volume beside them, can be so.
///
/// # Errors
/// The key that can't be, and why.
pub(super) fn check(volume: &Volume) -> Result<(), (&'static str, String)> {
    let name = &volume.name;
    let wrong = |key: &'static str, text: &str| Err((key, format!("volume \"{name}\": {text}")));
    if !volume.is_mirror() {
        let only = [
            ("leg", !volume.legs.is_empty()),
            ("assemble_wait", volume.assemble_wait.is_some()),
            (
                "assemble_wait_degraded",
                volume.assemble_wait_degraded.is_some(),
            ),
            (
                "assemble_wait_outdated",
                volume.assemble_wait_outdated.is_some(),
            ),
            ("start_degraded", volume.start_degraded.is_some()),
            ("leg_quiesce", volume.leg_quiesce.is_some()),
            ("rebuild_floor", volume.rebuild_floor.is_some()),
            ("rebuild_ceiling", volume.rebuild_ceiling.is_some()),
        ];
        return match only.iter().find(|(_, there)| *there) {
            Some((key, _)) => wrong(key, "that is for a mirror: write kind = \"mirror\" too"),
            None => Ok(()),
        };
    }
    if !volume.paths.is_empty() {
        return wrong("path", "a mirror has [[volume.leg]], and paths are theirs");
    }
    if volume.subsystem.is_some() {
        return wrong("subsystem", "paths of a mirror's legs are not discovered");
    }
    let pins = [("uuid", volume.uuid), ("nguid", volume.nguid)];
    if let Some((key, _)) = pins.iter().find(|(_, pin)| pin.is_some()) {
        return wrong(
            key,
            "that is of a namespace; a mirror is known by its superblocks",
        );
    }
    if volume.legs.is_empty() {
        return wrong("name", "a mirror has at least one [[volume.leg]]");
    }
    if volume.legs.len() > LEGS_MAX {
        return wrong("leg", &format!("a mirror has at most {LEGS_MAX} legs"));
    }
    if volume.shared == Some(false) && volume.is_shared() {
        return wrong("shared", "other hosts can reach legs of nvme-tcp://");
    }
    if volume
        .assemble_wait
        .is_some_and(|ns| ns < ASSEMBLE_WAIT_MIN_NS)
    {
        let least = format_ns(ASSEMBLE_WAIT_MIN_NS as f64);
        let text = format!("assemble_wait must be at least {least}: so long a leg has to answer");
        return wrong("assemble_wait", &text);
    }
    if let (Some(floor), Some(ceiling)) = (&volume.rebuild_floor, &volume.rebuild_ceiling)
        && floor.0 > ceiling.0
    {
        return wrong("rebuild_floor", "it must not be above rebuild_ceiling");
    }
    let most = policy::limits::PATHS_MAX;
    for leg in &volume.legs {
        if leg.paths.len() > most {
            return wrong("leg", &format!("a leg has at most {most} paths"));
        }
        if let Err(why) = leg.policy.check(leg.paths.len()) {
            return wrong("leg", &why.to_string());
        }
    }
    Ok(())
}

/// Whether what one mirror writes to is nobody else's: the volume, and why not.
pub(super) fn check_alone(volumes: &[Volume]) -> Result<(), (usize, String)> {
    let mut legs: BTreeMap<String, &str> = BTreeMap::new();
    for (number, volume) in volumes.iter().enumerate() {
        for keys in volume.legs.iter().flat_map(|leg| &leg.paths) {
            if legs.insert(end(&keys.uri), &volume.name).is_some() {
                return Err((number, format!("{} is a leg twice", keys.uri)));
            }
        }
    }
    for (number, volume) in volumes.iter().enumerate() {
        for keys in &volume.paths {
            if let Some(mirror) = legs.get(&end(&keys.uri)) {
                let why = "nobody else may write to it";
                let text = format!("{} is a leg of \"{mirror}\": {why}", keys.uri);
                return Err((number, text));
            }
        }
    }
    Ok(())
}

/// Storage behind a URI, whatever is given beside it. Memory is another one each time.
pub fn end(uri: &PathUri) -> String {
    match uri.kind() {
        UriKind::File(path) => format!("file:{}", path.display()),
        UriKind::NvmeNg(ng) => format!("nvme-ng:{}", ng.device.display()),
        UriKind::Queue { socket, nsid } => format!("queue:{}/{nsid}", socket.display()),
        UriKind::Memory(_) | UriKind::Null(_) => format!("{:p}", uri),
        UriKind::NvmeTcp(it) => format!("{}:{}/{}/{:?}", it.host, it.port, it.subsystem, it.nsid),
    }
}

/// Keys that stand in the file for a mirror, and are its own property: the volume, and which.
pub(super) fn kept_by_the_mirror(text: &str) -> Option<(usize, &'static str)> {
    let table = DeTable::parse(text).ok()?.into_inner();
    let DeValue::Array(volumes) = table.get("volume")?.as_ref() else {
        return None;
    };
    volumes.iter().enumerate().find_map(|(number, volume)| {
        let DeValue::Table(volume) = volume.as_ref() else {
            return None;
        };
        let kind = volume.get("kind").map(|kind| kind.as_ref());
        let is_mirror = matches!(kind, Some(DeValue::String(kind)) if kind == "mirror");
        let there = |key: &&str| is_mirror && volume.contains_key(*key);
        let found = ["policy", "hedge"].into_iter().find(there)?;
        Some((number, found))
    })
}
