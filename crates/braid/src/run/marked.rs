//! Records that are written before a volume is used: the mark for the engine after this one, and
//! which namespace the volume has ([`marks`](super::marks), [`known`](super::known)); and what is
//! recorded of a mirror ([`MirrorRecords`](super::mirrors::MirrorRecords)).
//!
//! # Contract
//! A volume whose namespace is another one than it had, or belongs to another engine, is not
//! opened. Nor is one with `write_failover = "fenced"` whose mark can't be written durably, unless
//! its configuration has `unsafe_without_mark = true`: then `check` says degraded, and what it
//! risks. An answer names the namespace, and counts for the paths that show it. A volume is open
//! when the engine says so ([`HostEvent::Opened`]): its first path can take I/O. From then on paths
//! that lead to another namespace are refused, and not before. A step that keeps a volume from
//! being opened is tried again every second, for as long as the path that asks waits
//! ([`HostEvent::MarkEnded`]). All of this happens on a thread of its own (`keeper`): no other
//! event of the cores waits for the state directory.
//!
//! [`HostEvent::Opened`]: engine::host::HostEvent::Opened
//! [`HostEvent::MarkEnded`]: engine::host::HostEvent::MarkEnded
use super::config::Volume;
use super::known::check_open;
use super::registry::{Place, Refused};
use super::service::Service;
use crate::control::rpc::ControlError;
use crate::log;
use anyhow::Context;
use cores::RunEvent;
use engine::host::{Bar, Mark, WriteFailover};
use engine::mirror::MIRRORS_FROM;
use mirror::Id;
use multipath::Namespace;
use policy::PathIndex;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How soon what keeps a volume from being opened is looked at again.
const AGAIN: Duration = Duration::from_secs(1);

/// A mark that the engine waits for, so that a path of a volume can be used.
#[derive(Clone)]
pub struct Unanswered {
    mark: Mark,
    /// Why it is not used yet.
    why: String,
}

/// Why a volume is not opened with a namespace.
enum NotOpened {
    /// It is not the volume's, or isn't known to be.
    Foreign(String),
    /// Another engine has it, until that one ends.
    Rival(String),
    /// Its mark can't be written.
    Unwritten(String),
}

impl NotOpened {
    fn why(&self) -> &str {
        match self {
            Self::Foreign(why) | Self::Rival(why) | Self::Unwritten(why) => why,
        }
    }

    /// For the engine; `None`: the other engine may end at any time, so clients wait.
    fn bar(self) -> Option<Bar> {
        match self {
            Self::Foreign(why) => Some(Bar::Foreign(why)),
            Self::Unwritten(why) => Some(Bar::Unmarked(why)),
            Self::Rival(_) => None,
        }
    }
}

/// The thread that writes marks.
pub struct Keeper {
    to: mpsc::Sender<RunEvent>,
    thread: JoinHandle<()>,
}

impl Keeper {
    /// Starts it.
    ///
    /// # Errors
    /// No thread is left.
    pub fn start(service: &Arc<Service>) -> anyhow::Result<Self> {
        let (to, events) = mpsc::channel();
        let service = Arc::clone(service);
        let keep = move || {
            let mut again_at = None;
            loop {
                let waits =
                    !service.unanswered().is_empty() || service.known().mirror_records.waits();
                let now = Instant::now();
                // Also where events come more often than that.
                again_at = waits.then(|| again_at.unwrap_or(now + AGAIN));
                let wait = again_at.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
                match events.recv_timeout(wait) {
                    Ok(event) => service.keep(event),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
                if again_at.is_some_and(|at| at <= Instant::now()) {
                    again_at = None;
                    service.mark_again();
                    service.record_again();
                }
            }
        };
        let builder = std::thread::Builder::new().name("keeper".into());
        let thread = builder.spawn(keep).context("cannot start a thread")?;
        Ok(Self { to, thread })
    }

    /// Hands over what is to be written down, in order.
    pub fn keep(&self, event: RunEvent) {
        let _ = self.to.send(event);
    }

    /// Waits until all that was handed over is done.
    pub fn end(self) {
        drop(self.to);
        let _ = self.thread.join();
    }
}

impl Service {
    /// Marks that were asked for and not answered.
    pub fn unanswered(&self) -> MutexGuard<'_, BTreeMap<(u16, PathIndex), Unanswered>> {
        let unanswered = self.unanswered.lock();
        unanswered.unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles an event for the keeper.
    fn keep(&self, event: RunEvent) {
        if let RunEvent::Record(volume, request) = event {
            // Its file does not depend on any name, and a disk that hangs would hold all up.
            return self.handle_record(volume, request);
        }
        let _names = self.changes.names();
        match event {
            RunEvent::Mark(mark) => self.mark(mark),
            RunEvent::MarkEnded(volume, serial, path) => {
                self.end_mark(volume, serial, path, true);
            }
            // Of one that comes with a reload it is kept once that is done: it may be undone.
            RunEvent::Mirror(volume, id) if self.state().volumes.is_configured(volume) => {
                self.keep_mirror(&self.name(volume), id);
            }
            RunEvent::Opened(volume, serial, namespace) => self.opened(volume, serial, namespace),
            RunEvent::Unflushed(volume, line) => {
                log::say(line);
                self.note_unflushed(volume);
            }
            RunEvent::Loss(core, volume, untold) => self.note_loss(core, volume, untold),
            RunEvent::FewQueues(volume) => self.keep_clients_home(volume),
            RunEvent::Unfinished(volume, ..) => self.marks().note_unfinished(&self.name(volume)),
            RunEvent::Changed(ticket, answer) => self.change_answered(ticket, answer),
            _ => {}
        }
    }

    /// Keeps the bound of a path's controller; then the path may be used, unless something keeps
    /// the volume from being opened, or it is open with another namespace.
    fn mark(&self, mark: Mark) {
        let asking = {
            let mut state = self.state();
            let it = state.volumes.asking(mark.volume, mark.serial);
            it.map(|it| (it.to_mark(), it.shown.clone()))
        };
        let Some((of, open)) = asking else {
            // It leaves, or was not opened after all: nothing of it is connected.
            self.unanswered()
                .retain(|_, it| (it.mark.volume, it.mark.serial) != (mark.volume, mark.serial));
            return;
        };
        // The content of a leg is described by its superblock.
        let fits = match &open {
            _ if of.leg_of.is_some() => Ok(()),
            Some(open) => check_open(&of, open, &mark.namespace),
            None => self.known().check(&of, &mark.namespace),
        };
        if open.is_some()
            && let Err(why) = fits
        {
            self.end_mark(mark.volume, mark.serial, mark.path, false);
            return self.senders.barred(mark, Bar::Refused(why));
        }
        let may = fits.map_err(NotOpened::Foreign);
        match may.and_then(|()| self.may_open(&of, mark.bound_ns, &mark.namespace)) {
            Err(why) => self.wait_for_mark(mark, why),
            Ok(unmarked) => {
                let news = {
                    let mut state = self.state();
                    let Some(it) = state.volumes.asking(mark.volume, mark.serial) else {
                        let is_named = state.volumes.is_named(&of.name);
                        drop(state);
                        return self.take_mark_back(&of.name, is_named);
                    };
                    let news = unmarked.clone().filter(|_| it.unmarked != unmarked);
                    it.unmarked = unmarked;
                    it.marked = Some(mark.namespace.clone());
                    news
                };
                self.end_mark(mark.volume, mark.serial, mark.path, false);
                if let Some(why) = news {
                    log::say(format!("{}: {why}", of.name));
                }
                self.senders.marked(mark);
            }
        }
    }

    /// A mark was written for a volume that was given up meanwhile; `is_named`: another one of its
    /// name is there, whose mark it is now.
    fn take_mark_back(&self, name: &str, is_named: bool) {
        if is_named {
            return;
        }
        let cleared = self.marks().put_back(name);
        if let Err(error) = cleared.and_then(|()| self.registry().leave(name)) {
            log::say(format!(
                "{name}: was not opened, and its mark or its entry in this engine's record stays \
                 until this one ends: {error:#}"
            ));
        }
    }

    /// A path waits for no mark any more: it was lost, or else has its answer. A volume that is
    /// being opened keeps the reason of a lost one: its user is told when it is not opened.
    fn end_mark(&self, volume: u16, serial: u64, path: PathIndex, lost: bool) {
        let mut state = self.state();
        let mut waiting = self.unanswered();
        let waits = waiting.get(&(volume, path));
        if waits.is_some_and(|it| it.mark.serial == serial) {
            waiting.remove(&(volume, path));
        }
        let is_there = state.volumes.has(volume);
        if (is_there || !lost)
            && let Some(it) = state.volumes.asking(volume, serial)
        {
            it.barred = first_reason(&waiting, volume);
        }
    }

    /// A volume is open: its name stands for this namespace from now on. Paths that wait to be it
    /// are compared with that.
    fn opened(&self, volume: u16, serial: u64, namespace: Box<Namespace>) {
        let (of, is_configured, moved) = {
            let mut state = self.state();
            let is_configured = state.volumes.is_configured(volume);
            let Some(it) = state.volumes.asking(volume, serial) else {
                return;
            };
            it.shown = Some(namespace.clone());
            it.told = None;
            let marked = it.marked.as_ref();
            let moved = marked.is_some_and(|marked| !marked.is_same(&namespace));
            (it.to_mark(), is_configured, moved)
        };
        if is_configured {
            self.keep_shown(&of.name, &namespace);
        }
        // The mark of a path that was lost before it could be used named another one.
        if moved && let Err(error) = self.name_mark(&of, 0, &namespace) {
            log::say(format!(
                "{}: the mark for the engine after this one names another namespace: {error:#}",
                of.name
            ));
        }
        self.mark_again_of(|number| number == volume);
    }

    /// A path can't be used yet, and why.
    fn wait_for_mark(&self, mark: Mark, not: NotOpened) {
        let mut state = self.state();
        let Some(it) = state.volumes.asking(mark.volume, mark.serial) else {
            return;
        };
        let why = not.why().to_owned();
        let mut waiting = self.unanswered();
        // A path that is lost and back says nothing new.
        let mut others = waiting.iter().filter(|((of, _), _)| *of == mark.volume);
        let is_news = others.all(|(_, it)| it.why != why) && it.told.as_ref() != Some(&why);
        it.told = Some(why.clone());
        let waits = Unanswered {
            mark: mark.clone(),
            why: why.clone(),
        };
        waiting.insert((mark.volume, mark.path), waits);
        it.barred = first_reason(&waiting, mark.volume);
        let name = it.of.name.clone();
        drop((waiting, state));
        if is_news {
            log::say(format!("{name}: {why}"));
        }
        if let Some(bar) = not.bar() {
            self.senders.barred(mark, bar);
        }
    }

    fn mark_again(&self) {
        self.mark_again_of(|_| true);
    }

    /// Tries those of some volumes again, in the order of paths.
    fn mark_again_of(&self, is_of: impl Fn(u16) -> bool) {
        let all = self.unanswered().clone();
        for (_, it) in all.into_iter().filter(|((volume, _), _)| is_of(*volume)) {
            self.mark(it.mark);
        }
    }

    /// Whether a volume may be used with this namespace; then why it has no mark, if it needs one
    /// and does without by its configuration.
    fn may_open(
        &self,
        of: &Volume,
        bound_ns: u64,
        namespace: &Namespace,
    ) -> Result<Option<String>, NotOpened> {
        let error = match self.keep_mark(of, bound_ns, namespace) {
            Ok(()) => None,
            Err(Refused::Rival(why)) => return Err(NotOpened::Rival(why)),
            Err(Refused::Failed(error)) => Some(error),
        };
        let directory = self.registry().directory().display().to_string();
        let fenced = of.recovery().write_failover == WriteFailover::Fenced;
        let without = match error {
            Some(error) if fenced && !of.unsafe_without_mark => {
                return Err(NotOpened::Unwritten(format!(
                    "it is not opened: if this engine is killed, the next one must know that it \
                     has to wait for writes under way, and that can't be written down: \
                     {error:#}; make room in {directory} or make it writable (it is tried again \
                     every second), or set unsafe_without_mark = true if acknowledged writes may \
                     be lost"
                )));
            }
            Some(error) if fenced => Some(format!(
                "unsafe_without_mark: it is used without a mark, because none can be written: \
                 {error:#}"
            )),
            _ => None,
        };
        Ok(without)
    }

    /// Volumes that came with a reload are there: what they were opened with is kept.
    pub fn keep_opened(&self, opened: &[u16]) {
        for number in opened {
            if *number >= MIRRORS_FROM {
                let report = self.mirror_report(*number).ok();
                // One that failed meanwhile says so again when it begins anew.
                if let Some(said) = report.and_then(|it| it.superblock) {
                    self.keep_mirror(&self.name(*number), said.mirror);
                }
                continue;
            }
            let shown = {
                let state = self.state();
                let it = state.volumes.get(*number);
                it.and_then(|it| Some((it.of.name.clone(), it.shown.clone()?)))
            };
            if let Some((name, shown)) = shown {
                self.keep_shown(&name, &shown);
            }
        }
    }

    fn keep_mirror(&self, name: &str, id: Id) {
        if let Err(error) = self.known().keep_mirror(name, id) {
            log::say(format!(
                "{name}: the next engine will not notice if its legs are of another mirror: \
                 {error:#}"
            ));
        }
    }

    fn keep_shown(&self, name: &str, namespace: &Namespace) {
        // The identity of a leg, whose name has a slash, is in its superblock.
        if name.contains('/') {
            return;
        }
        if let Err(error) = self.known().keep(name, namespace) {
            log::say(format!(
                "{name}: the next engine will not notice if its paths lead to another namespace: \
                 {error:#}"
            ));
        }
    }

    fn keep_mark(&self, of: &Volume, bound_ns: u64, at: &Namespace) -> Result<(), Refused> {
        self.registry().enter(std::iter::once(of))?;
        self.marks().set_owned(true);
        self.name_mark(of, bound_ns, at).map_err(Refused::Failed)
    }

    /// Keeps a mark that names this namespace, with this bound, or with the mark's own if that is
    /// longer.
    fn name_mark(&self, of: &Volume, bound_ns: u64, at: &Namespace) -> anyhow::Result<()> {
        let mut marks = self.marks();
        let place = Place {
            subsystem: at.subsystem.clone(),
            nsid: Some(at.nsid),
        };
        marks.name_namespace(&of.name, place);
        marks.keep(of, bound_ns)
    }

    /// `accept {"volume": "v0"}`: the namespace that a volume shows now is its own from now on.
    pub fn accept(&self, name: &str) -> Result<Value, ControlError> {
        let answer = json!({"volume": name, "accepted": true});
        let number = self.state().volumes.number(name);
        let mut known = self.known();
        let number = match number {
            Ok(number) => number,
            // It may come with the next reload.
            Err(_) if known.has(name) => {
                known.accept(name);
                return Ok(answer);
            }
            Err(unknown) => return Err(unknown),
        };
        let of = {
            let state = self.state();
            // It may have left while this waited.
            let it = state.volumes.get(number);
            it.ok_or_else(|| state.volumes.unknown(name))?.of.clone()
        };
        if of.is_mirror() {
            drop(known);
            return self.accept_name(number).map(|()| answer);
        }
        let waiting = self.unanswered().clone();
        let mut waiting = waiting.range((number, PathIndex(0))..=(number, PathIndex(u8::MAX)));
        let differs = waiting.find(|(_, it)| known.check(&of, &it.mark.namespace).is_err());
        let Some((_, waits)) = differs else {
            return Err(ControlError::refused(format!(
                "{name} shows no other namespace than it had: there is nothing to accept"
            )));
        };
        let accepted = known.accept_shown(&of, &waits.mark.namespace);
        accepted.map_err(|why| ControlError::refused(format!("{name}: {why}")))?;
        Ok(answer)
    }

    /// The paths of a volume have changed: its mark says so too, as far as that can be written.
    pub fn mark_paths(&self, volume: u16) {
        let of = self.state().volumes.meant(volume).map(|it| it.to_mark());
        if let Some(of) = of
            && let Err(error) = self.marks().keep_paths(&of)
        {
            log::say(format!(
                "{}: the mark for the engine after this one names other paths: {error:#}",
                of.name
            ));
        }
    }

    /// A volume ends with writes that were not flushed.
    fn note_unflushed(&self, volume: u16) {
        let known = self.state().volumes.paths(volume);
        if let Some((name, paths)) = known {
            self.marks().note_unflushed(&name, paths);
        }
    }

    /// Writes that a path that has left had acknowledged and not flushed: no flush of the volume
    /// of that core has failed for that yet, or one has.
    fn note_loss(&self, core: u16, volume: u16, untold: bool) {
        let of = self.state().volumes.meant(volume).map(|it| it.to_mark());
        if let Some(of) = of
            && let Err(error) = self.marks().note_loss(&of, core, untold)
        {
            log::say(format!(
                "{}: if this engine is killed, the next one will not say that writes may be lost \
                 with a path that has left: {error:#}",
                of.name
            ));
        }
    }

    /// The engine has ended.
    ///
    /// # Errors
    /// The marks can't be written.
    pub fn close_marks(&self) -> anyhow::Result<()> {
        let volumes: Vec<_> = {
            let state = self.state();
            state.volumes.iter().map(|(_, it)| it.of.clone()).collect()
        };
        self.marks().close(&volumes)
    }
}

/// Why the first path of a volume that waits is not used.
fn first_reason(waiting: &BTreeMap<(u16, PathIndex), Unanswered>, volume: u16) -> Option<String> {
    let mut those = waiting.iter().filter(|((of, _), _)| *of == volume);
    those.next().map(|(_, it)| it.why.clone())
}
