//! Changes that verbs gave up waiting for: shown, and cancelled.
//!
//! `pending {}` · `pending.cancel {"id": 7}`
//!
//! # Contract
//! A path goes on draining, or being connected after it was restored, until it has done so or
//! another verb ends that: such a change can be cancelled. What the engine does not answer is taken
//! back by itself once it is made (T55), and what is being written to a mirror's legs can't be:
//! both are shown only.
use super::call::PathParams;
use super::entries::AdminState;
use super::paths::Going;
use super::plan::Change;
use super::service::Service;
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use engine::host::{self, PathState};
use policy::PathIndex;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

impl Service {
    /// What is asked of the engine, in words.
    pub(super) fn in_words(&self, change: &host::Change) -> String {
        use host::Change::{
            AddPath, AddVolume, DrainPath, FailPath, RemovePath, RemoveVolume, RestorePath,
        };
        let path = |verb: &str, volume: u16, path: PathIndex| {
            let state = self.state();
            let it = state.volumes.get(volume);
            let uri = it.and_then(|it| Some(it.entries().get(path)?.config().uri.to_string()));
            let uri = uri.unwrap_or_else(|| path.0.to_string());
            format!("{}: {verb} path {uri}", state.volumes.name(volume))
        };
        match change {
            AddVolume(config) => format!("add volume {}", config.name),
            RemoveVolume(volume) => format!("remove volume {}", self.name(*volume)),
            AddPath(volume, _) => {
                let state = self.state();
                let it = state
                    .volumes
                    .get(*volume)
                    .and_then(|it| it.joining.as_ref());
                let uri = it.map_or_else(|| "that waits".into(), |keys| keys.uri.to_string());
                format!("{}: add path {uri}", state.volumes.name(*volume))
            }
            RemovePath {
                volume,
                path: index,
                ..
            } => path("remove", *volume, *index),
            FailPath(volume, index, _) => path("fail", *volume, *index),
            DrainPath(volume, index, _) => path("drain", *volume, *index),
            RestorePath(volume, index) => path("restore", *volume, *index),
        }
    }

    /// `pending`.
    ///
    /// # Errors
    /// A core doesn't answer.
    pub fn pending(&self) -> Result<Value, ControlError> {
        let given_up = self.changes.each_given_up(|id, it| {
            json!({
                "id": id,
                "change": it.what,
                "since_s": seconds(it.since),
                "cancel": false,
                "state": "the engine does not answer; it is taken back if it is made",
            })
        });
        let mut all = given_up;
        for (id, it) in self.changes.going() {
            match self.why_going(&it) {
                None => self.changes.forget_going(id),
                Some(state) => all.push(json!({
                    "id": id,
                    "change": it.change.to_string(),
                    "since_s": seconds(it.since),
                    "cancel": true,
                    "state": state,
                })),
            }
        }
        all.extend(self.pending_of_mirrors()?);
        Ok(json!({"pending": all}))
    }

    /// How far a change is; `None`: it is over, or another one came.
    fn why_going(&self, it: &Going) -> Option<String> {
        let (volume, index, admin) = self.meant_by(&it.change)?;
        let state = self.path_state(volume, index)?;
        match admin {
            AdminState::Drained if state == PathState::Draining => {
                let cores = self.senders.report().unwrap_or_default();
                let paths = cores.iter().filter_map(|core| {
                    let paths = core.volumes.get(usize::from(volume))?;
                    paths.get(usize::from(index.0))
                });
                let in_flight: u32 = paths.map(|it| it.counters.in_flight).sum();
                (in_flight > 0).then(|| format!("{in_flight} I/Os are under way"))
            }
            AdminState::Enabled if self.is_tried(volume, index) => Some(state.name().into()),
            _ => None,
        }
    }

    /// The path of a change that is there and is to be so still.
    fn meant_by(&self, change: &Change) -> Option<(u16, PathIndex, AdminState)> {
        let Change::SetAdmin(name, path, _) = change else {
            return None;
        };
        let state = self.state();
        let number = state.volumes.number(name).ok()?;
        let it = state.volumes[number].entries().of_uri(&path.config.uri)?;
        (it.admin() == path.admin).then(|| (number, it.index(), path.admin))
    }

    /// What is being written to legs.
    fn pending_of_mirrors(&self) -> Result<Vec<Value>, ControlError> {
        let cores = self.senders.report();
        let cores = cores.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        let mut all = Vec::new();
        for (number, mirror) in cores.iter().flat_map(|it| &it.mirrors) {
            let name = self.name(*number);
            for (verb, slots) in [("add", mirror.adding), ("remove", mirror.removing)] {
                let slots = (0..16_u8).filter(|slot| slots >> slot & 1 == 1);
                for slot in slots {
                    let leg = mirror.legs.iter().find(|leg| leg.slot == Some(slot));
                    let leg = leg.map_or_else(|| slot.to_string(), |leg| leg.name.clone());
                    all.push(json!({
                        "id": null,
                        "change": format!("{name}: {verb} leg {leg}"),
                        "since_s": null,
                        "cancel": false,
                        "state": "it is being written to the legs",
                    }));
                }
            }
        }
        Ok(all)
    }

    /// `pending.cancel`: what a change had before is so again.
    ///
    /// # Errors
    /// There is none of this number, it can't be cancelled, or what was before can't be had again.
    pub fn cancel_pending(&self, id: u64, by: &Caller<'_>) -> Result<Value, ControlError> {
        if self.changes.each_given_up(|it, _| it).contains(&id) {
            let why = "it is taken back by itself if the engine makes it";
            return Err(ControlError::refused(format!("{id}: {why}")));
        }
        let going = self.changes.going().remove(&id);
        let going = going.filter(|it| self.why_going(it).is_some());
        let Some(Going { change, .. }) = going else {
            let why = "nothing of this number is pending (braid pending lists what is)";
            return Err(ControlError::params(format!("{id}: {why}")));
        };
        let Change::SetAdmin(volume, path, before) = &change else {
            unreachable!("{change}: nothing else goes on");
        };
        let params = PathParams {
            volume: volume.clone(),
            path: path.config.uri.to_string(),
            force: true,
        };
        let made = self.path_admin(&params, *before, by);
        // Where it was restored, it may not be live yet: that is what was asked for.
        made?;
        self.changes.forget_going(id);
        Ok(json!({"id": id, "cancelled": change.to_string()}))
    }
}
