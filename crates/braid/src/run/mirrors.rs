//! Mirrors of a running engine: which volumes are their legs, and on which core each is.
//!
//! # Contract
//! A leg is a volume of the engine that no user sees by itself; a mirror has a number from
//! [`MIRRORS_FROM`] on, and is on the core of its clients. Legs are files and block devices that
//! nobody else writes meanwhile (T48), or namespaces. One that isn't there at the start is left
//! out and looked for again ([`late`](super::late)), and the engine decides whether the mirror may
//! go on without; one that somebody else has ends the start.
mod again;
mod configured;
mod dropped;
mod kept;
mod legs;
pub(super) mod orders;
mod records;
mod terms;

pub use configured::{name_legs, refuse_legs};
pub use dropped::Dropped;
pub(in crate::run) use kept::{PAUSED, set_by_verb};
pub use records::{IdText, MirrorRecords};

use super::config::{ASSEMBLE_WAIT_NS, Config, LEG_QUIESCE_NS, Volume};
use super::known::Known;
use crate::mirror::leg::{crc32c, draw_id, draw_lineage};
use crate::mirror::same::Storage;
use crate::uri::{PathUri, UriKind};
use engine::Span;
use engine::limits::MIRROR_SCRATCH_BYTES;
use engine::mirror::{DegradedStart, LegConfig, MIRRORS_FROM, MirrorConfig, MirrorsConfig};
use mirror::assembly::degraded::Permission;
use mirror::machine::Speed;
use mirror::superblock::Owner;
use mirror::{Id, Label};
use nvme::host::HostIdentity;
use runtime::sysfs::SYS;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Mirrors that may come on each core while the engine runs, beside those of the start; each takes
/// [`MIRROR_SCRATCH_BYTES`] of memory that is not touched before.
const MIRRORS_MORE: usize = 4;

/// All mirrors of a configuration.
pub struct Mirrors {
    all: Vec<MirrorConfig>,
    /// The core of each.
    homes: Vec<u16>,
}

/// The engine's numbers of volumes, in their order: those of mirrors are apart.
pub fn numbers<'a>(volumes: impl Iterator<Item = &'a Volume>) -> Vec<u16> {
    let (mut plain, mut mirrors) = (0.., MIRRORS_FROM..);
    let number = |volume: &Volume| match volume.is_mirror() {
        true => mirrors.next(),
        false => plain.next(),
    };
    volumes.filter_map(number).collect()
}

/// Destination of a path of a volume: its number among these volumes, its URI, and its storage.
pub type Found = (usize, PathUri, Storage);

/// Storage of a file or device; `None`: it is not there, or the path is over a network. May block.
pub fn storage_of(uri: &PathUri) -> Option<Storage> {
    let UriKind::File(path) = uri.kind() else {
        return None;
    };
    let found = std::fs::metadata(path).ok()?;
    Some(Storage::of_file(&found, Path::new(SYS)))
}

/// Storage of volumes. Writes to one of these volumes show on no
/// other one, where either is a leg and its mirror's alone: they lead to different files or
/// devices, whatever their names (T48).
///
/// # Errors
/// Which are the same.
pub fn apart(volumes: &[Volume]) -> Result<Vec<Found>, String> {
    let mut seen: Vec<Found> = Vec::new();
    for (number, volume) in volumes.iter().enumerate() {
        for keys in &volume.paths {
            let Some(storage) = storage_of(&keys.uri) else {
                continue;
            };
            let others = seen.iter();
            let others = others.map(|(other, uri, theirs)| (&volumes[*other], uri, theirs));
            ensure_apart((volume, &keys.uri, &storage), others)?;
            seen.push((number, keys.uri.clone(), storage));
        }
    }
    Ok(seen)
}

/// The same of one path of a volume beside others.
///
/// # Errors
/// As of [`apart`].
pub fn ensure_apart<'a>(
    (volume, uri, storage): (&Volume, &PathUri, &Storage),
    mut others: impl Iterator<Item = (&'a Volume, &'a PathUri, &'a Storage)>,
) -> Result<(), String> {
    let other = others.find(|(other, _, theirs)| {
        let alone = other.leg_of.is_some() || volume.leg_of.is_some();
        alone && other.name != volume.name && theirs.meets(storage)
    });
    let Some((other, theirs, _)) = other else {
        return Ok(());
    };
    Err(format!(
        "{theirs} of {} and {uri} of {} are the same storage: a leg is its mirror's alone; leave \
         one of them out",
        other.name, volume.name
    ))
}

impl Mirrors {
    /// Of a configuration that was checked.
    pub fn new(config: &Config, identity: &HostIdentity, known: &Known) -> Self {
        let numbers = numbers(config.volumes.iter());
        let legs_of = |mirror: &Volume| {
            let volumes = config.volumes.iter().zip(&numbers);
            let legs = volumes.filter(|(it, _)| it.leg_of.as_ref() == Some(&mirror.name));
            let legs = legs.map(|(leg, number)| leg_config(leg, *number));
            legs.collect()
        };
        let owner = owner(identity);
        let mirrors = config.volumes.iter().filter(|it| it.is_mirror());
        let mirror = |volume: &Volume| {
            let known = known.mirror(&volume.name);
            mirror_config(volume, legs_of(volume), known, owner)
        };
        Self {
            homes: (MIRRORS_FROM..)
                .zip(mirrors.clone())
                .map(|(number, _)| config.core_of(number))
                .collect(),
            all: mirrors.map(mirror).collect(),
        }
    }

    /// Most on each core.
    pub fn room(&self) -> usize {
        let of_core = |core| self.homes.iter().filter(|it| **it == core).count();
        let most = self.homes.iter().map(|core| of_core(*core)).max();
        most.unwrap_or_default() + MIRRORS_MORE
    }

    /// Those that are on a core, whose memory for them is behind all other.
    pub fn of_core(&self, core: u16, behind: u64) -> MirrorsConfig {
        let here = |number: usize| self.homes[number] == core;
        let all = (0..).zip(&self.all);
        let mirrors: Vec<_> = all
            .map(|(number, mirror)| here(number).then(|| mirror.clone()))
            .collect();
        let elsewhere = (0..).zip(&self.all).filter(|(number, _)| !here(*number));
        let elsewhere = elsewhere.flat_map(|(_, mirror)| &mirror.legs);
        MirrorsConfig {
            mirrors,
            elsewhere: elsewhere.map(|leg| leg.volume).collect(),
            scratch: Span {
                at: behind.next_multiple_of(4096),
                len: self.room() as u32 * MIRROR_SCRATCH_BYTES,
            },
            crc32c,
        }
    }
}

/// A mirror of these legs, as it is configured.
fn mirror_config(
    volume: &Volume,
    legs: Vec<LegConfig>,
    known: Option<Id>,
    owner: Owner,
) -> MirrorConfig {
    MirrorConfig {
        name: volume.name.clone(),
        legs,
        known,
        knobs: volume.knobs(),
        wishes: Default::default(),
        assemble_wait_ns: volume.assemble_wait.unwrap_or(ASSEMBLE_WAIT_NS),
        degraded: degraded(volume),
        leg_quiesce_ns: volume.leg_quiesce.unwrap_or(LEG_QUIESCE_NS),
        hole_bytes: engine::limits::MIRROR_HOLE_BYTES,
        owner,
        shared: volume.is_shared(),
        lineage: draw_lineage(),
        speed: speed(volume),
    }
}

fn degraded(volume: &Volume) -> DegradedStart {
    DegradedStart {
        permission: match volume.start_degraded {
            Some(true) => Permission::On,
            Some(false) => Permission::Off,
            None if volume.is_shared() => Permission::Shared,
            None => Permission::On,
        },
        records: true,
        gone_wait_ns: volume.assemble_wait_degraded,
        outdated_wait_ns: volume.assemble_wait_outdated,
    }
}

fn leg_config(leg: &Volume, volume: u16) -> LegConfig {
    let name = match &leg.paths[..] {
        [only] => only.uri.to_string(),
        [first, more @ ..] => format!("{} and {} more", first.uri, more.len()),
        [] => leg.name.clone(),
    };
    LegConfig {
        volume,
        name,
        uris: leg.paths.iter().map(|it| it.uri.to_string()).collect(),
        distance: leg.paths.iter().map(|it| it.distance).min().unwrap_or(0),
        throughput: leg.paths.iter().map(|it| it.throughput).max().unwrap_or(1),
    }
}

fn speed(volume: &Volume) -> Speed {
    let usual = Speed::default();
    let or = |rate: Option<u64>, usual| rate.filter(|&rate| rate > 0).unwrap_or(usual);
    Speed {
        floor: or(volume.rebuild_floor.map(|it| it.0), usual.floor),
        ceiling: or(volume.rebuild_ceiling.map(|it| it.0), usual.ceiling),
    }
}

/// This host, for those that find it on a leg.
fn owner(identity: &HostIdentity) -> Owner {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now_s = now.map_or(0, |now| now.as_secs());
    Owner {
        run: draw_id(),
        host: Id(identity.id),
        label: Label::cut(&format!(
            "braid run, process {} of {name}",
            std::process::id()
        )),
        since_s: now_s,
        heartbeat_s: now_s,
        bound_ms: 0,
    }
}
