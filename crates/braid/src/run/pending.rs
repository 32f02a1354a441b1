//! Changes asked of the engine, until they are made or taken back; those that verbs gave up waiting
//! for are shown, and cancelled.
//!
//! `pending {}` · `pending.cancel {"id": 7}`
//!
//! # Contract
//! A verb that gives up takes its change back, or says that it is pending. A change that the engine
//! does not answer is taken back by itself once it is made (T55). A path goes on draining, or being
//! connected after it was restored, until it has done so or another verb ends that: such a change
//! can be cancelled; so can a setting of a mirror, or the admin state of a leg, that holds and is
//! not on the legs yet. Other writes to a mirror's legs can't be taken back, and are shown
//! only. States of a change: awaited, given up, going on.
use super::call::PathParams;
use super::entries::{AdminState, PathEntry};
use super::locks::{Alone, VerbQueues};
use super::plan::Change;
use super::rename::Renames;
use super::service::Service;
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::log;
use engine::host::Change as Asked;
use engine::host::{Changed, PathState};
use engine::mirror::{MirrorOrder, MirrorState, Pending};
use policy::PathIndex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How much longer than the engine its answer is waited for.
pub const GRACE: Duration = Duration::from_secs(5);
/// Longest wait for a change.
pub const WAIT_NS_MAX: u64 = 60_000_000_000;
/// How long a mirror has to take an order back.
const TAKE_BACK: Duration = Duration::from_secs(5);

type Answer = Result<Changed, String>;

/// Changes asked of the engine.
#[derive(Default)]
pub struct Changes {
    /// Which verbs exclude each other.
    pub verbs: VerbQueues,
    /// Held while a volume of a leg is opened: of one volume at most the engine has not said yet
    /// which number it has.
    opening: Mutex<()>,
    /// Held while volumes are renamed, and while something is kept of one by its name.
    names: Mutex<()>,
    outstanding: Mutex<Outstanding>,
}

/// Changes that are not over.
#[derive(Default)]
struct Outstanding {
    /// The last ticket. 0: nobody waits for its answer.
    ticket: u64,
    all: BTreeMap<u64, Phase>,
}

/// How far a change is.
enum Phase {
    /// A verb waits for the answer.
    Awaited(SyncSender<Answer>),
    /// Its verb has given up: it is taken back should the engine make it.
    GivenUp {
        undo: Undo,
        /// The request, in words.
        what: String,
        since: SystemTime,
    },
    /// It goes on in the engine.
    GoesOn {
        change: Box<Change>,
        since: SystemTime,
    },
}

/// How a change is taken back that was made after its verb had given up (T55).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    /// That of a whole volume: see [`Service::volume_changed`].
    Nothing,
    /// A path that has joined leaves again.
    Join,
    /// A path that has left is gone: its volume has one less.
    Leave,
    /// A path is what it was before.
    Admin(AdminState),
}

impl Outstanding {
    fn add(&mut self, phase: Phase) -> u64 {
        self.ticket += 1;
        self.all.insert(self.ticket, phase);
        self.ticket
    }
}

impl Changes {
    /// For a verb of some volumes: see [`VerbQueues::alone`].
    ///
    /// # Errors
    /// The caller has gone, and does not wait any more.
    pub fn alone_with_all(
        &self,
        volumes: &[String],
        by: &Caller<'_>,
    ) -> Result<Alone<'_>, ControlError> {
        loop {
            let alone = self.verbs.alone(volumes, &|| by.is_gone());
            by.ensure_there()?;
            if let Some(alone) = alone {
                return Ok(alone);
            }
        }
    }

    /// Until the result is dropped, what was found by a number has the same name. Comes before all
    /// locks of records and of the state.
    pub fn names(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other verb opens a leg; until the result is dropped, none does.
    pub fn opening(&self) -> MutexGuard<'_, ()> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outstanding(&self) -> MutexGuard<'_, Outstanding> {
        let all = self.outstanding.lock();
        all.unwrap_or_else(PoisonError::into_inner)
    }

    /// A change goes on; others of the same thing are over.
    pub fn note_going(&self, change: Change) {
        self.end_going(&change);
        let (change, since) = (Box::new(change), SystemTime::now());
        self.outstanding().add(Phase::GoesOn { change, since });
    }

    /// No change of the same thing goes on any more.
    pub fn end_going(&self, of: &Change) {
        let is_it =
            |it: &Phase| matches!(it, Phase::GoesOn { change, .. } if change.is_of_same(of));
        self.outstanding().all.retain(|_, it| !is_it(it));
    }

    /// A change of this number is over, if it is still one of the same: its volume may have been
    /// renamed since it was looked at.
    fn end(&self, id: u64, of: &Change) {
        let mut all = self.outstanding();
        if let Some(Phase::GoesOn { change, .. }) = all.all.get(&id)
            && change.is_of_same(of)
        {
            all.all.remove(&id);
        }
    }

    /// Changes of volumes that have other names go on under these.
    pub fn rename(&self, names: &Renames) {
        for it in self.outstanding().all.values_mut() {
            if let Phase::GoesOn { change, .. } = it
                && let Change::SetAdmin(volume, ..)
                | Change::SetMirror(volume, ..)
                | Change::Leg(volume, ..) = &mut **change
            {
                names.apply(volume);
            }
        }
    }

    /// Whether something goes on to what a change makes it.
    pub fn goes_on(&self, of: &Change) -> bool {
        let all = self.outstanding();
        let mut all = all.all.values();
        all.any(|it| match it {
            Phase::GoesOn { change, .. } => match of.admin() {
                Some(_) => change.admin() == of.admin() && change.is_of_same(of),
                None => **change == *of,
            },
            _ => false,
        })
    }

    /// Whether the verb of this ticket waits no more, as of now: its change is taken back as `undo`
    /// says, should it be made. If not, the answer is on its way.
    fn give_up(&self, ticket: u64, undo: Undo, what: String) -> bool {
        let mut all = self.outstanding();
        let it = all.all.get_mut(&ticket);
        let given_up = it.map(|it| {
            let since = SystemTime::now();
            *it = Phase::GivenUp { undo, what, since };
        });
        given_up.is_some()
    }

    /// The engine has answered: returns the answer, unless a verb waits for it, and how the change
    /// is taken back whose verb has given up.
    fn answered(&self, ticket: u64, answer: Answer) -> Option<(Answer, Undo)> {
        let phase = self.outstanding().all.remove(&ticket);
        match phase {
            Some(Phase::Awaited(to)) => {
                // The caller takes a last look at its channel after it has given up.
                let _ = to.try_send(answer);
                None
            }
            Some(Phase::GivenUp { undo, .. }) => Some((answer, undo)),
            Some(Phase::GoesOn { change, .. }) => {
                unreachable!("{change}: it goes on under a ticket that was not asked with")
            }
            None => Some((answer, Undo::Nothing)),
        }
    }
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs())
}

impl Service {
    /// Asks core 0 for a change and waits for its answer, which may come `later` than the time that
    /// the change may take. Where no answer comes, the change is taken back, should it be made
    /// after all.
    pub fn ask_for(&self, change: Asked, wait_ns: u64, later: Duration) -> Answer {
        let (undo, what) = self.undo_of(&change);
        let wait_ns = wait_ns.min(WAIT_NS_MAX);
        let (to, from) = sync_channel(1);
        let ticket = self.changes.outstanding().add(Phase::Awaited(to));
        self.senders.change(ticket, change, wait_ns);
        let limit = Duration::from_nanos(wait_ns) + later + GRACE;
        from.recv_timeout(limit).unwrap_or_else(|_| {
            let last = match self.changes.give_up(ticket, undo, what) {
                true => Duration::ZERO,
                false => GRACE,
            };
            from.recv_timeout(last).unwrap_or_else(|_| {
                let why = "the engine does not answer; if it does this after all, that is taken \
                           back and said in its log";
                Err(why.into())
            })
        })
    }

    /// How a change is taken back that is about to be asked for, and the change in words.
    fn undo_of(&self, change: &Asked) -> (Undo, String) {
        let state = self.state();
        let of_path = |volume: u16, path: PathIndex, verb: &str| {
            let name = state.volumes.name(volume);
            let of = state.volumes.get(volume);
            let entry = of.and_then(|it| it.entries().get(path));
            let uri = entry.map(|it| it.config().uri.to_string());
            let uri = uri.unwrap_or_else(|| path.0.to_string());
            let admin = entry.map(PathEntry::admin).unwrap_or_default();
            (Undo::Admin(admin), format!("{name}: {verb} path {uri}"))
        };
        match change {
            Asked::AddVolume(config) => (Undo::Nothing, format!("add volume {}", config.name)),
            Asked::RemoveVolume(volume) => {
                let name = state.volumes.name(*volume);
                (Undo::Nothing, format!("remove volume {name}"))
            }
            Asked::AddPath(volume, _) => {
                let it = state.volumes.get(*volume);
                let keys = it.and_then(|it| it.joining.as_ref());
                let uri = keys.map_or_else(|| "that waits".into(), |it| it.config.uri.to_string());
                let name = state.volumes.name(*volume);
                (Undo::Join, format!("{name}: add path {uri}"))
            }
            Asked::RemovePath { volume, path, .. } => {
                (Undo::Leave, of_path(*volume, *path, "remove").1)
            }
            Asked::FailPath(volume, path, _) => of_path(*volume, *path, "fail"),
            Asked::DrainPath(volume, path, _) => of_path(*volume, *path, "drain"),
            Asked::RestorePath(volume, path) => of_path(*volume, *path, "restore"),
        }
    }

    /// The engine has answered a change.
    pub fn change_answered(&self, ticket: u64, answer: Answer) {
        match self.changes.answered(ticket, answer) {
            Some((Ok(changed), undo)) => match changed.path {
                Some(path) => self.take_back_late(undo, changed.volume, path),
                None => self.volume_changed(changed),
            },
            Some((Err(_), _)) | None => {}
        }
    }

    /// A change was made whose verb had given up: it is taken back.
    fn take_back_late(&self, undo: Undo, volume: u16, path: PathIndex) {
        let (what, change) = match undo {
            Undo::Nothing => return,
            Undo::Join => {
                let leave = Asked::RemovePath {
                    volume,
                    path,
                    force: true,
                };
                ("it leaves again", Some(leave))
            }
            Undo::Leave => {
                self.path_left(volume, path);
                ("it has left", None)
            }
            Undo::Admin(admin) => {
                self.note_admin(volume, path, admin);
                let change = admin.change(volume, path, true);
                ("it is what it was before", Some(change))
            }
        };
        log::say(format!(
            "{}: path {}: the engine did what was asked after its verb had given up; {what}",
            self.name(volume),
            path.0
        ));
        let change = change.into_iter();
        change.for_each(|it| self.senders.change(0, it, WAIT_NS_MAX));
    }

    /// Takes an order to a mirror back whose answer is not waited for any more (T55); returns its
    /// fate for people: nothing is pending, or how that is undone which is.
    pub fn take_back(&self, volume: u16, pending: Pending, undo: &str) -> String {
        self.senders.order(volume, MirrorOrder::TakeBack(pending));
        let mut taken = None;
        self.wait_for(volume, TAKE_BACK, |it| {
            let answer = it.taken_back.filter(|it| it.0 == pending);
            taken = answer.map(|it| it.1);
            taken.is_some()
        });
        let failed = || match self.mirror_report(volume).ok()?.state {
            MirrorState::Failed(why) => Some(why),
            _ => None,
        };
        match taken {
            Some(true) => "nothing has changed, and nothing is pending".into(),
            Some(false) => match failed() {
                Some(why) => format!(
                    "{why}; whether it stands on a leg shows when the mirror is started again"
                ),
                None => format!(
                    "it is being written to the legs, and takes effect when they answer (braid \
                     mirror status shows it); {undo}"
                ),
            },
            None => format!("the mirror's core does not answer: it may take effect yet; {undo}"),
        }
    }

    /// `pending`.
    ///
    /// # Errors
    /// A core doesn't answer.
    pub fn pending(&self) -> Result<Value, ControlError> {
        let mut all = Vec::new();
        let mut going = Vec::new();
        for (id, it) in &self.changes.outstanding().all {
            match it {
                Phase::Awaited(_) => {}
                Phase::GivenUp { what, since, .. } => all.push(json!({
                    "id": id,
                    "change": what,
                    "since_s": seconds(*since),
                    "cancel": false,
                    "state": "the engine does not answer; it is taken back if it is made",
                })),
                Phase::GoesOn { change, since } => going.push((*id, Change::clone(change), *since)),
            }
        }
        for (id, change, since) in going {
            match self.why_going(&change) {
                None => self.changes.end(id, &change),
                Some(state) => all.push(json!({
                    "id": id,
                    "change": change.to_string(),
                    "since_s": seconds(since),
                    "cancel": true,
                    "state": state,
                })),
            }
        }
        all.extend(self.pending_of_mirrors()?);
        Ok(json!({"pending": all}))
    }

    /// How far a change is; `None`: it is over, or another one came.
    fn why_going(&self, change: &Change) -> Option<String> {
        if let Change::SetMirror(..) | Change::Leg(..) = change {
            let is_going = self.is_being_kept(change);
            return is_going.then(|| "it is being written to the legs".into());
        }
        let (volume, index, admin) = self.meant_by(change)?;
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

    /// Writes to legs under way.
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
        let change = match self.changes.outstanding().all.get(&id) {
            Some(Phase::GivenUp { .. }) => {
                let why = "it is taken back by itself if the engine makes it";
                return Err(ControlError::refused(format!("{id}: {why}")));
            }
            Some(Phase::GoesOn { change, .. }) => Some(Change::clone(change)),
            Some(Phase::Awaited(_)) | None => None,
        };
        let change = change.filter(|it| self.why_going(it).is_some());
        let Some(change) = change else {
            let why = "nothing of this number is pending (braid pending lists what is)";
            return Err(ControlError::params(format!("{id}: {why}")));
        };
        match &change {
            // Where it was restored, it may not be live yet: that is what was asked for.
            Change::SetAdmin(volume, path, before) => {
                let params = PathParams {
                    volume: volume.clone(),
                    path: path.config.uri.to_string(),
                    force: true,
                };
                self.path_admin(&params, *before, by)?;
            }
            _ => {
                let Some(undo) = change.undo() else {
                    unreachable!("{change}: it does not go on");
                };
                let _alone = self.alone_with_mirror_now(change.volume());
                self.make(&[undo], false)?;
            }
        }
        self.changes.outstanding().all.remove(&id);
        Ok(json!({"id": id, "cancelled": change.to_string()}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t55_answers_find_their_verbs_and_late_ones_are_taken_back() {
        let changes = Changes::default();
        let made = |path| Changed {
            volume: 0,
            path: Some(PathIndex(path)),
        };
        let wait = || {
            let (to, from) = sync_channel(1);
            let ticket = changes.outstanding().add(Phase::Awaited(to));
            (ticket, from)
        };
        let ((first, to_first), (second, to_second)) = (wait(), wait());
        assert!(changes.answered(second, Ok(made(2))).is_none());
        assert_eq!(to_second.try_recv(), Ok(Ok(made(2))));
        assert!(
            !changes.give_up(second, Undo::Join, String::new()),
            "answered"
        );
        assert!(changes.give_up(first, Undo::Join, String::new()));
        let late = changes.answered(first, Ok(made(1)));
        assert_eq!(late, Some((Ok(made(1)), Undo::Join)));
        assert!(to_first.try_recv().is_err());
        let again = changes.answered(first, Ok(made(1)));
        assert_eq!(again, Some((Ok(made(1)), Undo::Nothing)), "once");
    }
}
