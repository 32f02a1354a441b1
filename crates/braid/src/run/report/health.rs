//! Alarms and maintenance, by path and leg.
use super::{Health, Report, View};
use crate::uri::UriKind;
use engine::mirror::LegReport;
use serde_json::Value;

impl Report<'_> {
    /// Name of a volume at the moment of this report.
    pub(in crate::run) fn name_of(&self, volume: u16) -> String {
        self.state.volumes[volume].of.name.clone()
    }

    /// Alarms of a path that hold, and those that have ended lately.
    pub(super) fn alarms(&self, volume: u16, path: usize) -> (Vec<Value>, Vec<Value>) {
        let entry = self.entry(volume, path);
        let of = entry.map(|it| self.service.health.of(volume, it.index()));
        let (mut holds, ended) = of.unwrap_or_default();
        let keys = self.state.volumes[volume].of.paths.get(path);
        if let Some(UriKind::File(file)) = keys.map(|keys| keys.uri.kind()) {
            holds.extend(self.service.health.space.of(file));
        }
        (holds, ended)
    }

    /// The last states of a path.
    pub(super) fn history(&self, volume: u16, path: usize) -> Vec<Value> {
        let entry = self.entry(volume, path);
        let history = entry.map(|it| self.service.health.history(volume, it.index()));
        history.unwrap_or_default()
    }

    /// Why the file system of the state directory is worth an alarm.
    pub(super) fn full_state_directory(&self) -> Option<String> {
        let why = self.service.health.space.of_state()?;
        Some(format!(
            "{why}: marks and changes that a restart is to keep may not be written"
        ))
    }

    /// Maintenance of a volume; null: it has none.
    pub(super) fn maintenance(&self, volume: u16) -> Value {
        let name = &self.state.volumes[volume].of.name;
        self.service.health.maintenance.of(name, None)
    }

    /// The same of a path.
    pub(super) fn path_maintenance(&self, volume: u16, path: usize) -> Value {
        let of = &self.state.volumes[volume].of;
        let uri = of.paths.get(path).map(|keys| keys.uri.to_string());
        let maintenance = &self.service.health.maintenance;
        maintenance.of(&of.name, Some(uri.as_deref().unwrap_or_default()))
    }

    /// The same of a leg.
    pub(super) fn leg_maintenance(&self, leg: &LegReport) -> Value {
        let volume = leg.volume.filter(|volume| self.state.volumes.has(*volume));
        volume.map_or(Value::Null, |volume| self.maintenance(volume))
    }

    /// Whether a path does something that its user is to be alarmed about, though it is usable.
    fn is_alarming(&self, volume: u16, path: usize) -> bool {
        self.is_on_probation(volume, path)
            || self.damage(volume, path).is_some()
            || !self.alarms(volume, path).0.is_empty()
            || self.path_errors(volume, path).is_some()
    }

    /// How well the paths of a volume are. Those under maintenance are not missed, unless none is
    /// usable.
    pub(super) fn health_of_paths(&self, volume: u16, view: View) -> Health {
        if self.state.volumes[volume].of.is_mirror() {
            return self.mirror_health(volume, view);
        }
        let count = self.state.volumes[volume].of.paths.len();
        let is_usable = |path: &usize| self.hindrance(volume, *path).is_none();
        if !(0..count).any(|path| is_usable(&path)) || self.state.volumes[volume].info.is_none() {
            return Health::Down;
        }
        let is_watched = |path: &usize| view.misses(&self.path_maintenance(volume, *path));
        let watched = (0..count).filter(is_watched);
        let mut bad = watched.filter(|path| !is_usable(path) || self.is_alarming(volume, *path));
        match bad.next() {
            Some(_) => Health::Degraded,
            None => Health::Ok,
        }
    }

    /// Alarms of the paths of a leg, each with its path's name; none of one that is not missed.
    pub(super) fn leg_alarms(&self, leg: &LegReport, view: View) -> Vec<Value> {
        let volume = leg.volume.filter(|volume| self.state.volumes.has(*volume));
        let volume = volume.filter(|volume| view.misses(&self.maintenance(*volume)));
        let Some(volume) = volume else {
            return Vec::new();
        };
        let paths = &self.state.volumes[volume].of.paths;
        let is_watched = |path: &usize| view.misses(&self.path_maintenance(volume, *path));
        let all = (0..paths.len()).filter(is_watched).flat_map(|path| {
            let (holds, _) = self.alarms(volume, path);
            let name = self.entry(volume, path).map(|it| it.name().to_owned());
            holds.into_iter().map(move |mut alarm| {
                alarm["path"] = name.clone().into();
                alarm
            })
        });
        all.collect()
    }

    /// Adds to a path of `check` or `stat` its alarms and maintenance.
    pub(super) fn add_alarms(&self, volume: u16, path: usize, shown: &mut Value) {
        let (holds, ended) = self.alarms(volume, path);
        shown["alarms"] = holds.into();
        shown["ended"] = ended.into();
        shown["maintenance"] = self.path_maintenance(volume, path);
    }
}
