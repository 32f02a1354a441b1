//! Which changes make an engine what it is to be, and in which order: a pure function of both.
//!
//! # Contract
//! [`plan`] has first what can fail: volumes open, paths join, exports listen or change, paths are
//! set aside, mirrors that were stopped start, settings of mirrors change, legs join, paths leave,
//! of which those that are in use leave first, since others may not connect again, legs leave, and
//! mirrors stop. Each of these steps can be taken back ([`Change::undo`]), so
//! a plan that is carried out in order, and taken back in reverse where a step fails, ends with the
//! engine as desired or as it was. The last steps can't fail.
//!
//! Orders to a mirror are no changes. A check or a repair has an end of its own; growth follows the
//! sizes of the legs, and an accepted loss or name is a word about what is on them: none of the
//! three can be taken back.
use super::address::NbdAddress;
use super::config::{Export, PathKeys, Volume};
use super::desired::{Desired, DesiredVolume, MirrorSetting, MirrorStart, PathSpec, RunState};
use super::entries::{AdminState, PathEntry};
use super::live;
use super::nvme_exports::NvmeChange;
use super::paths::uris;
use super::service::State;
use crate::units::format_bytes;
use engine::mirror::LegReport;
use mirror::machine::Speed;
use policy::{Knobs, Policy};
use std::fmt;
use std::mem::discriminant;

/// How an engine has a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is in use.
    Live,
    /// It is not in use.
    Down,
    /// It was not there since the start.
    Absent,
}

/// One volume that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct ActualVolume {
    /// As one would desire it, with its present exports.
    pub now: DesiredVolume,
    /// How the engine has each of its paths, in their order.
    pub presence: Vec<Presence>,
    /// It is a leg that its mirror does without until that is started again.
    pub is_idle: bool,
}

/// Operation of a verb on a leg of a mirror.
#[derive(Clone, Debug, PartialEq)]
pub enum LegVerb {
    /// It is taken out until it is restored.
    Fail,
    /// It returns.
    Restore,
    /// Another one gets its place, and is rebuilt.
    Replace(Box<DesiredVolume>),
    /// It is none any more; no volume leads to it.
    Forget,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// A volume opens with its paths, a mirror with its legs.
    OpenVolume(String),
    /// A path joins a volume.
    AddPath(String, PathSpec),
    /// A path that was not there since the start joins.
    JoinPath(String, PathKeys),
    /// It is absent again.
    PartPath(String, PathKeys),
    /// An export of a volume listens.
    AddExport(String, Export),
    /// Access to an export, or whether it is read-only: before and after.
    SetExport(String, Export, Export),
    /// A path gets this admin state, and had that one.
    SetAdmin(String, PathSpec, AdminState),
    /// A leg joins a mirror, and is rebuilt.
    AddLeg(String, DesiredVolume),
    /// A leg that a verb means.
    Leg(String, Box<LegReport>, LegVerb),
    /// Another setting of a mirror, of the same kind: before and after.
    SetMirror(String, MirrorSetting, MirrorSetting),
    /// A mirror that was stopped starts: exports that it had, and those that it has then, which
    /// listen.
    StartMirror(String, MirrorStart, Vec<Export>, Vec<Export>),
    /// A mirror ends in order: exports that it had, and those that it has when it starts again.
    /// None of them listens.
    StopMirror(String, Vec<Export>, Vec<Export>),
    /// A path that the engine has leaves a volume.
    RemovePath(String, PathSpec),
    /// A leg of a mirror is none any more.
    RemoveLeg(String, DesiredVolume),
    /// A path that was not there since the start is not looked for any more.
    ForgetPath(String, PathKeys),
    /// The clients of an address get another volume, from the first to the second one, and others
    /// may connect.
    MoveExport(String, String, Export),
    /// An export listens no more.
    RemoveExport(String, Export),
    /// Of an export over NVMe/TCP; the volume is one that is or was exported by it.
    Nvme(String, NvmeChange),
    /// Another policy, or other knobs of it.
    SetPolicy(String, Policy, Knobs),
    /// Other attributes of a path, in words too.
    SetPath(String, PathKeys, Vec<String>),
    /// Other values of keys, in words.
    SetKeys(String, Vec<String>),
    /// A volume has another name: before and after. Steps before this one call it as before.
    Rename(String, String),
    /// A volume leaves, a mirror with its legs.
    CloseVolume(String),
}

impl Change {
    /// Whether it may fail, and has to be taken back where a later step does.
    pub fn can_fail(&self) -> bool {
        matches!(self, Self::Leg(..)) || self.undo().is_some()
    }

    /// Name of its volume; of an export that moves, of the one that had it.
    pub fn volume(&self) -> &str {
        match self {
            Self::OpenVolume(volume)
            | Self::AddPath(volume, _)
            | Self::JoinPath(volume, _)
            | Self::PartPath(volume, _)
            | Self::AddExport(volume, _)
            | Self::SetExport(volume, ..)
            | Self::SetAdmin(volume, ..)
            | Self::AddLeg(volume, _)
            | Self::Leg(volume, ..)
            | Self::SetMirror(volume, ..)
            | Self::StartMirror(volume, ..)
            | Self::StopMirror(volume, ..)
            | Self::RemovePath(volume, _)
            | Self::RemoveLeg(volume, _)
            | Self::ForgetPath(volume, _)
            | Self::MoveExport(volume, ..)
            | Self::RemoveExport(volume, _)
            | Self::Nvme(volume, _)
            | Self::SetPolicy(volume, ..)
            | Self::SetPath(volume, ..)
            | Self::SetKeys(volume, _)
            | Self::Rename(volume, _)
            | Self::CloseVolume(volume) => volume,
        }
    }

    /// Setting that it gives a path that is there.
    pub fn admin(&self) -> Option<AdminState> {
        match self {
            Self::SetAdmin(_, path, _) => Some(path.admin),
            _ => None,
        }
    }

    /// Whether it changes exports of this volume.
    fn is_of_exports_of(&self, name: &str) -> bool {
        match self {
            Self::AddExport(of, _) | Self::SetExport(of, ..) | Self::RemoveExport(of, _) => {
                of == name
            }
            Self::MoveExport(from, to, _) => from == name || to == name,
            _ => false,
        }
    }

    /// Whether it changes the same thing as another one, of those that go on after their verb.
    pub fn is_of_same(&self, other: &Self) -> bool {
        let is_admin = |it: &LegVerb| matches!(it, LegVerb::Fail | LegVerb::Restore);
        match (self, other) {
            (Self::SetMirror(mirror, it, _), Self::SetMirror(theirs, other, _)) => {
                mirror == theirs && discriminant(it) == discriminant(other)
            }
            (Self::Leg(mirror, leg, verb), Self::Leg(theirs, other, their_verb)) => {
                let is_it = mirror == theirs && leg.slot == other.slot;
                is_it && is_admin(verb) && is_admin(their_verb)
            }
            (Self::SetAdmin(volume, path, _), Self::SetAdmin(theirs, other, _)) => {
                volume == theirs && path.config.uri == other.config.uri
            }
            _ => false,
        }
    }

    /// The change that takes it back; `None`: it can't fail, or is the only one of its verb.
    pub fn undo(&self) -> Option<Self> {
        Some(match self.clone() {
            Self::OpenVolume(volume) => Self::CloseVolume(volume),
            Self::AddPath(volume, path) => Self::RemovePath(volume, path),
            Self::JoinPath(volume, path) => Self::PartPath(volume, path),
            Self::AddExport(volume, export) => Self::RemoveExport(volume, export),
            Self::SetExport(volume, before, after) => Self::SetExport(volume, after, before),
            Self::SetAdmin(volume, path, before) => {
                let after = path.admin;
                let path = PathSpec {
                    admin: before,
                    ..path
                };
                Self::SetAdmin(volume, path, after)
            }
            Self::AddLeg(mirror, leg) => Self::RemoveLeg(mirror, leg),
            Self::Leg(mirror, leg, LegVerb::Fail) => Self::Leg(mirror, leg, LegVerb::Restore),
            Self::Leg(mirror, leg, LegVerb::Restore) => Self::Leg(mirror, leg, LegVerb::Fail),
            Self::SetMirror(mirror, before, after) => Self::SetMirror(mirror, after, before),
            Self::StartMirror(mirror, _, before, after) => Self::StopMirror(mirror, after, before),
            Self::StopMirror(mirror, before, after) => {
                Self::StartMirror(mirror, MirrorStart::default(), after, before)
            }
            Self::RemovePath(volume, path) => Self::AddPath(volume, path),
            Self::RemoveLeg(mirror, leg) => Self::AddLeg(mirror, leg),
            Self::Nvme(volume, NvmeChange::Listen(address, nqn)) => {
                Self::Nvme(volume, NvmeChange::Unlisten(address, nqn))
            }
            _ => return None,
        })
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenVolume(volume) => write!(f, "add volume {volume}"),
            Self::AddPath(volume, path) => write!(f, "{volume}: add path {}", path.config.uri),
            Self::JoinPath(volume, path) => write!(f, "{volume}: join path {}", path.uri),
            Self::PartPath(volume, path) => write!(f, "{volume}: part with path {}", path.uri),
            Self::AddExport(volume, export) => write!(f, "{volume}: add export {}", export.nbd),
            Self::SetExport(volume, _, export) => {
                write!(f, "{volume}: change export {}", export.nbd)
            }
            Self::SetAdmin(volume, path, _) => {
                let (verb, uri) = (path.admin.verb(), &path.config.uri);
                write!(f, "{volume}: {verb} path {uri}")
            }
            Self::RemovePath(volume, PathSpec { config, .. })
            | Self::ForgetPath(volume, config) => {
                write!(f, "{volume}: remove path {}", config.uri)
            }
            Self::AddLeg(mirror, leg) => write!(f, "{mirror}: add leg {}", leg_words(leg)),
            Self::RemoveLeg(mirror, leg) => write!(f, "{mirror}: remove leg {}", leg_words(leg)),
            Self::Leg(mirror, leg, verb) => {
                let verb = match verb {
                    LegVerb::Fail => "fail",
                    LegVerb::Restore => "restore",
                    LegVerb::Replace(_) => "replace",
                    LegVerb::Forget => "remove",
                };
                write!(f, "{mirror}: {verb} leg {}", leg.name)
            }
            Self::SetMirror(mirror, _, setting) => match setting {
                MirrorSetting::Policy(policy) => write!(f, "{mirror}: set policy {policy}"),
                MirrorSetting::Pause(true) => write!(f, "{mirror}: pause copies"),
                MirrorSetting::Pause(false) => write!(f, "{mirror}: resume copies"),
                MirrorSetting::Speed(None) => write!(f, "{mirror}: set copies to the file's speed"),
                MirrorSetting::Speed(Some(speed)) => {
                    write!(f, "{mirror}: set copies to {}", speed_words(*speed))
                }
            },
            Self::StartMirror(mirror, ..) => write!(f, "start mirror {mirror}"),
            Self::StopMirror(mirror, ..) => write!(f, "stop mirror {mirror}"),
            Self::MoveExport(from, to, export) => {
                write!(f, "{to}: take export {} from {from}", export.nbd)
            }
            Self::RemoveExport(volume, export) => {
                write!(f, "{volume}: remove export {}", export.nbd)
            }
            Self::Nvme(volume, change) => write!(f, "{volume}: {change}"),
            Self::SetPolicy(volume, policy, _) => write!(f, "{volume}: set policy {policy}"),
            Self::SetPath(volume, path, words) => {
                write!(f, "{volume}: set {} of {}", words.join(", "), path.uri)
            }
            Self::SetKeys(volume, keys) => write!(f, "{volume}: set {}", keys.join(", ")),
            Self::Rename(from, to) => write!(f, "rename volume {from} to {to}"),
            Self::CloseVolume(volume) => write!(f, "remove volume {volume}"),
        }
    }
}

/// Path of a leg, for people.
pub fn leg_words(leg: &DesiredVolume) -> String {
    uris(&leg.of.paths).join(" and ")
}

/// Bounds of copies, for people.
pub fn speed_words(speed: Speed) -> String {
    let least = format!("{}/s at least", format_bytes(speed.floor));
    match speed.ceiling < Speed::default().ceiling {
        true => format!("{least}, {}/s at most", format_bytes(speed.ceiling)),
        false => format!("{least}, no ceiling"),
    }
}

/// Changes by the place that they have in a plan.
#[derive(Default)]
struct Sorted {
    open: Vec<Change>,
    add: Vec<Change>,
    exports: Vec<Change>,
    admin: Vec<Change>,
    start: Vec<Change>,
    settings: Vec<Change>,
    legs: Vec<Change>,
    remove: Vec<Change>,
    stop: Vec<Change>,
    /// Steps that can't fail.
    rest: Vec<Change>,
}

impl ActualVolume {
    /// All, idle legs last. `presence`: how the engine has each of those paths of a volume that are
    /// there.
    pub fn all(state: &State, presence: impl Fn(u16, &PathEntry) -> Presence) -> Vec<Self> {
        let of_path = |number: u16, it: &PathEntry| match it.is_there() {
            true => presence(number, it),
            false => Presence::Absent,
        };
        let volumes = state.volumes.iter();
        let there = volumes.map(|(number, running)| Self {
            now: DesiredVolume::new(state, number),
            presence: running
                .entries()
                .iter()
                .map(|it| of_path(number, it))
                .collect(),
            is_idle: false,
        });
        let mirrors = state.volumes.iter().filter(|(_, it)| it.of.is_mirror());
        let idle = mirrors.flat_map(|(_, it)| state.idle_legs(&it.of.name));
        there.chain(idle.map(Self::idle)).collect()
    }

    /// An idle leg.
    pub fn idle(of: &Volume) -> Self {
        Self {
            now: DesiredVolume::of_file(of.clone(), None),
            presence: vec![Presence::Absent; of.paths.len()],
            is_idle: true,
        }
    }

    fn paths(&self) -> impl Iterator<Item = (&PathSpec, Presence)> {
        self.now.paths.iter().zip(self.presence.iter().copied())
    }

    fn path(&self, path: &PathKeys) -> Option<(&PathSpec, Presence)> {
        self.paths().find(|(it, _)| it.config.uri == path.uri)
    }

    fn export(&self, nbd: &NbdAddress) -> Option<&Export> {
        self.now.of.exports.iter().find(|it| it.nbd == *nbd)
    }

    /// Whether its exports listen.
    fn is_on(&self) -> bool {
        matches!(self.now.run, RunState::On(_))
    }

    /// Its state to be, where it is a mirror that starts or stops, with its exports.
    fn starts_or_stops<'a>(&self, wanted: &'a DesiredVolume) -> Option<&'a RunState> {
        match (&self.now.run, &wanted.run) {
            (RunState::Ending | RunState::Off, RunState::On(_))
            | (RunState::On(_) | RunState::Ending, RunState::Off) => Some(&wanted.run),
            _ => None,
        }
    }

    /// Steps until it is as desired, but for its exports.
    fn plan(&self, wanted: &DesiredVolume, changes: &mut Sorted) {
        let name = || wanted.of.name.clone();
        let exports = || (self.now.of.exports.clone(), wanted.of.exports.clone());
        match self.starts_or_stops(wanted) {
            Some(RunState::On(how)) => {
                let (before, after) = exports();
                let start = Change::StartMirror(name(), how.clone(), before, after);
                changes.start.push(start);
            }
            Some(_) => {
                let (before, after) = exports();
                changes.stop.push(Change::StopMirror(name(), before, after));
            }
            None => {}
        }
        if let (Some(now), Some(settings)) = (&self.now.settings, &wanted.settings) {
            let all = now.each().into_iter().zip(settings.each());
            let set = all.filter(|(now, it)| now != it);
            let set = set.map(|(now, it)| Change::SetMirror(name(), now, it));
            changes.settings.extend(set);
        }
        for spec in &wanted.paths {
            let Some((there, _)) = self.path(&spec.config) else {
                changes.add.push(Change::AddPath(name(), spec.clone()));
                continue;
            };
            if there.admin != spec.admin {
                let admin = Change::SetAdmin(name(), spec.clone(), there.admin);
                changes.admin.push(admin);
            }
            let (now, keys) = (&there.config, &spec.config);
            let throughput = (now.throughput != keys.throughput)
                .then(|| format!("throughput {}", keys.throughput));
            let distance =
                (now.distance != keys.distance).then(|| format!("distance {}", keys.distance));
            let words: Vec<String> = throughput.into_iter().chain(distance).collect();
            if !words.is_empty() {
                changes
                    .rest
                    .push(Change::SetPath(name(), keys.clone(), words));
            }
        }
        for (spec, presence) in self.paths() {
            let mut paths = wanted.paths.iter();
            if paths.any(|it| it.config.uri == spec.config.uri) {
                continue;
            }
            match presence {
                Presence::Absent => {
                    let forget = Change::ForgetPath(name(), spec.config.clone());
                    changes.rest.push(forget);
                }
                _ => changes
                    .remove
                    .push(Change::RemovePath(name(), spec.clone())),
            }
        }
        let (policy, knobs) = (wanted.of.policy, wanted.of.knobs());
        if (self.now.of.policy, self.now.of.knobs()) != (policy, knobs) {
            let set = Change::SetPolicy(name(), policy, knobs);
            changes.rest.push(set);
        }
        let keys = live::changed(&self.now.of, &wanted.of);
        if !keys.is_empty() {
            changes.rest.push(Change::SetKeys(name(), keys));
        }
    }
}

/// Steps until exports are as desired. An address that another volume gets goes on listening,
/// unless one of the two is a mirror that was stopped, whose exports don't listen. Those of a
/// mirror that starts or stops change with that; no verb moves one of them.
fn plan_exports(desired: &Desired, actual: &[ActualVolume], changes: &mut Sorted) {
    let is_wanted = |name: &str, nbd: &NbdAddress| {
        let of = desired.volume(name);
        of.is_some_and(|it| it.of.exports.iter().any(|it| it.nbd == *nbd))
    };
    let mut moved: Vec<(&str, &NbdAddress)> = Vec::new();
    for volume in &desired.volumes {
        let name = &volume.of.name;
        let there = actual.iter().find(|it| it.now.of.name == *name);
        if there.is_some_and(|it| it.starts_or_stops(volume).is_some()) {
            continue;
        }
        for export in &volume.of.exports {
            if let Some(now) = there.and_then(|it| it.export(&export.nbd)) {
                if now != export {
                    let change = Change::SetExport(name.clone(), now.clone(), export.clone());
                    changes.exports.push(change);
                }
                continue;
            }
            let is_free = |it: &&ActualVolume| {
                let of = (it.now.of.name.as_str(), &export.nbd);
                it.export(&export.nbd).is_some()
                    && it.is_on()
                    && !is_wanted(of.0, of.1)
                    && !moved.contains(&of)
            };
            let listens = there.is_none_or(ActualVolume::is_on);
            let from = actual.iter().find(is_free).filter(|_| listens);
            let Some(from) = from else {
                let add = Change::AddExport(name.clone(), export.clone());
                changes.exports.push(add);
                continue;
            };
            moved.push((&from.now.of.name, &export.nbd));
            let from = from.now.of.name.clone();
            let moves = Change::MoveExport(from, name.clone(), export.clone());
            changes.rest.push(moves);
        }
    }
    for it in actual {
        let name = it.now.of.name.as_str();
        let wanted = desired.volume(name);
        if wanted.is_some_and(|wanted| it.starts_or_stops(wanted).is_some()) {
            continue;
        }
        let gone = it.now.of.exports.iter().filter(|export| {
            !is_wanted(name, &export.nbd) && !moved.contains(&(name, &export.nbd))
        });
        let gone = gone.map(|export| Change::RemoveExport(name.to_owned(), export.clone()));
        changes.rest.extend(gone);
    }
}

/// Returns the steps in their order.
pub fn plan(desired: &Desired, actual: &[ActualVolume]) -> Vec<Change> {
    let mut changes = Sorted::default();
    let named = |name: &str| actual.iter().find(|it| it.now.of.name == name);
    for volume in &desired.volumes {
        let of = &volume.of;
        match (named(&of.name), &of.leg_of) {
            (Some(there), _) if there.is_idle => {} // it comes when its mirror starts again
            (Some(there), _) => there.plan(volume, &mut changes),
            (None, Some(mirror)) if named(mirror).is_some() => {
                let add = Change::AddLeg(mirror.clone(), volume.clone());
                changes.legs.push(add);
            }
            (None, Some(_)) => {} // it comes when its mirror starts
            (None, None) => changes.open.push(Change::OpenVolume(of.name.clone())),
        }
    }
    plan_exports(desired, actual, &mut changes);
    let is_live = |volume: &str, path: &PathSpec| {
        let there = named(volume).and_then(|it| it.path(&path.config));
        there.is_some_and(|it| it.1 == Presence::Live)
    };
    changes.remove.sort_by_key(|change| match change {
        Change::RemovePath(volume, path) => !is_live(volume, path),
        _ => unreachable!("{change}: it is no removal"),
    });
    let (mut legs_gone, mut volumes_gone) = (Vec::new(), Vec::new());
    for it in actual
        .iter()
        .map(|it| &it.now)
        .filter(|it| desired.volume(&it.of.name).is_none())
    {
        match it.of.leg_of.clone() {
            Some(mirror) if desired.volume(&mirror).is_some() => {
                legs_gone.push(Change::RemoveLeg(mirror, it.clone()));
            }
            Some(_) => {} // it goes with its mirror
            None => volumes_gone.push(Change::CloseVolume(it.of.name.clone())),
        }
    }
    let Sorted {
        open,
        add,
        exports,
        admin,
        start,
        settings,
        legs,
        remove,
        stop,
        rest,
    } = changes;
    // Legs go late: one that comes back is rebuilt.
    let fallible = [
        open, add, exports, admin, start, settings, legs, remove, legs_gone, stop,
    ];
    let fallible = fallible.into_iter().flatten();
    fallible.chain(rest).chain(volumes_gone).collect()
}

/// Leaves the exports of mirrors that are stopped as they are `now`, where the plan of a reload
/// changes none of them. They do not listen, so the desired state has the only copy; and a verb may
/// have changed them since the plan was made, which did not close the mirror to it.
pub fn keep_exports(desired: &mut Desired, now: &Desired, plan: &[Change]) {
    for it in &mut desired.volumes {
        let is_changed = plan
            .iter()
            .any(|change| change.is_of_exports_of(&it.of.name));
        if let Some(now) = now.volume(&it.of.name)
            && !matches!(now.run, RunState::On(_))
            && !is_changed
        {
            it.of.exports.clone_from(&now.of.exports);
        }
    }
}

/// Whether each address that a reload gives to a volume is that one's alone. A verb may have given
/// one to a mirror that is stopped, where nothing listens, since the plan was made.
///
/// # Errors
/// Which is not.
pub fn ensure_alone(now: &Desired, plan: &[Change]) -> Result<(), String> {
    let is_stopped = |it: &&DesiredVolume| !matches!(it.run, RunState::On(_));
    for it in now.volumes.iter().filter(is_stopped) {
        let name = &it.of.name;
        let leaves = |nbd: &NbdAddress| {
            let mut plan = plan.iter();
            plan.any(
                |it| matches!(it, Change::RemoveExport(of, it) if of == name && it.nbd == *nbd),
            )
        };
        let stays = |nbd: &NbdAddress| !nbd.is_any() && it.export(nbd) && !leaves(nbd);
        let to_another = plan.iter().find_map(|change| match change {
            Change::AddExport(to, it) | Change::MoveExport(_, to, it) => {
                (to != name && stays(&it.nbd)).then_some((to, &it.nbd))
            }
            _ => None,
        });
        if let Some((to, nbd)) = to_another {
            return Err(format!(
                "volume {to}: {nbd} is an export of {name}, which is stopped: remove it there \
                 first (braid export remove {name} {nbd})"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
pub mod tests;
