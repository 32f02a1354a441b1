//! Volumes come and go while the engine runs.
//!
//! # Contract
//! A volume is opened as at the start, but at least one of its paths must be live on every core, or
//! it isn't opened. One that leaves takes no more clients; those that it has are told, and have
//! `drain_timeout` for what is in flight, as at the end of the engine. Then its paths leave by
//! force, and its mark is taken away when the engine says that nothing of it is left, but for what
//! did not end, or was not flushed ([`Marks`](super::marks::Marks)).
use super::config::Volume;
use super::cores::recovery;
use super::discovery::remember;
use super::late;
use super::mirrors;
use super::pending::{GRACE, WAIT_NS_MAX};
use super::registry::{Entry, Refused};
use super::service::{Service, State};
use super::volumes::Running;
use crate::log;
use cores::CoreReport;
use engine::host::{Change, Changed, Recovery, VolumeConfig};
use engine::mirror::{MIRRORS_FROM, MirrorOrder};
use std::sync::{MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longest wait for what the engine does by itself, however long that takes.
const WAIT_MAX: Duration = Duration::from_nanos(WAIT_NS_MAX);

/// How often cores are asked for the last commands of a namespace.
const POLL: Duration = Duration::from_millis(10);

/// A volume stands in this engine's record until this is dropped, or for good if it is kept.
struct Recorded<'a> {
    service: &'a Service,
    name: String,
    before: Option<Entry>,
    kept: bool,
}

impl Recorded<'_> {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let before = self.before.take();
        if let Err(error) = self.service.registry().restore(&self.name, before) {
            log::say(format!(
                "{}: was not opened, and other engines are refused its namespace until this one \
                 ends: {error:#}",
                self.name
            ));
        }
    }
}

impl Service {
    /// Opens a volume; it isn't there yet, but has this number.
    ///
    /// # Errors
    /// Why it can't be; then nothing of it is left.
    pub fn open_volume(&self, of: &Volume) -> Result<u16, String> {
        let mut desired = self.choices().desired(of);
        self.discover_paths_of(&mut desired);
        let recorded = self.record(&desired.of)?;
        self.inherit(&desired.of)?;
        remember(&self.marks(), &mut desired);
        let of = &desired.of.clone();
        if of.paths.is_empty() {
            return Err("no path to its subsystem is discovered yet; try again later".into());
        }
        // Before the locks: a file system that hangs here holds up nothing else.
        let paths = of.paths.iter().map(|keys| &keys.uri);
        let storages: Vec<_> = paths
            .filter_map(|uri| Some((uri.clone(), mirrors::storage_of(uri)?)))
            .collect();
        let (connect_ns, serial) = {
            let mut state = self.state();
            for (uri, storage) in &storages {
                state.volumes.ensure_apart(of, uri, storage)?;
            }
            let mut new = Running::new(desired);
            new.note_storages(&storages);
            let serial = state.volumes.open(new)?;
            (state.configured.connect_timeout.0, serial)
        };
        let before = self.marks().before(of);
        // A leg's I/O comes to the core of its mirror.
        let home = of.leg_of.as_deref();
        let home = home.and_then(|mirror| self.state().volumes.opened_as(mirror));
        let home = home.or(of.home);
        let made = self
            .lead_all(&of.paths, late::access(of), of.queue_quiesce_ns())
            .and_then(|paths| {
                let config = VolumeConfig {
                    name: of.name.clone(),
                    policy: of.policy,
                    knobs: of.knobs(),
                    paths,
                    recovery: Recovery {
                        home,
                        ..recovery(of, before, serial)
                    },
                };
                // As long as a new path has, and once more for leaving if none is live.
                let wait_ns = connect_ns.saturating_mul(3);
                let more = Duration::from_nanos(connect_ns.saturating_mul(2)).min(WAIT_MAX);
                let change = Change::AddVolume(Box::new(config));
                self.ask_for(change, wait_ns, more)
            });
        let number = {
            let mut state = self.state();
            let barred = state.volumes.barred();
            let number = made.map(|changed| changed.volume);
            let number = number.map_err(|why| barred.unwrap_or(why));
            if let Ok(number) = number {
                self.senders.set_home(number, of.home);
            }
            state.volumes.opened(number.as_ref().ok().copied());
            number
        };
        self.programs.wake();
        if number.is_err() {
            // The next owner of its number has not asked yet.
            let state = self.state();
            self.unanswered()
                .retain(|(number, _), _| state.volumes.has(*number));
        }
        let line = match number {
            Ok(_) => self.marks().in_words(of),
            Err(_) => self
                .marks()
                .put_back(&of.name)
                .err()
                .map(|it| format!("{it:#}")),
        };
        line.into_iter().for_each(log::say);
        if number.is_ok() {
            recorded.keep();
        }
        number
    }

    /// Records that this engine has a volume, unless it is not opened after all.
    ///
    /// # Errors
    /// A running engine has its namespace.
    fn record(&self, of: &Volume) -> Result<Recorded<'_>, String> {
        let mut registry = self.registry();
        let before = registry.entry(&of.name);
        match registry.enter(std::iter::once(of)) {
            Err(Refused::Rival(why)) => Err(why),
            Ok(()) | Err(Refused::Failed(_)) => Ok(Recorded {
                service: self,
                name: of.name.clone(),
                before,
                kept: false,
            }),
        }
    }

    /// Takes over what engines that have ended left of a new volume, and knew of it.
    pub fn inherit(&self, of: &Volume) -> Result<(), String> {
        let registry = self.registry();
        let adopted = self.marks().adopt(&registry, &[of]);
        let known = || self.known().adopt(&registry, std::slice::from_ref(of));
        adopted
            .and_then(|()| known())
            .map_err(|error| format!("{error:#}"))
    }

    /// One that was opened leaves before anybody had it.
    pub fn take_back_volume(&self, mut state: MutexGuard<'_, State>, number: u16) {
        let name = Some(state.volumes.name(number));
        state.configured.volumes.retain(|it| it.leg_of != name);
        state.volumes.leave(number);
        let connect_ns = state.configured.connect_timeout.0;
        drop(state);
        self.see_off(&[number], Duration::from_nanos(connect_ns));
    }

    /// Volumes whose exports listen no more leave; in words.
    pub fn remove_volumes(&self, gone: &[u16]) -> Vec<String> {
        let (drain, connect) = {
            let state = self.state();
            let keys = &state.configured;
            let of = [keys.drain_timeout.0, keys.connect_timeout.0];
            (Duration::from_nanos(of[0]), Duration::from_nanos(of[1]))
        };
        let begun = Instant::now();
        // The core ends clients that take longer.
        self.wait(drain + GRACE, |state| {
            let ending = state.ending_subsystems.values().flatten();
            let mut ending = ending.chain(state.ending.values().map(|it| &it.volume));
            !ending.any(|volume| gone.contains(volume))
        });
        // A namespace of a subsystem that stays: no event says that its last command has ended.
        let is_used = || {
            let clients = self.clients_of(gone).unwrap_or_default();
            clients.iter().any(|it| it.1 > 0)
        };
        while begun.elapsed() < drain && is_used() {
            sleep(POLL);
        }
        let left = drain.saturating_sub(begun.elapsed());
        let names: Vec<String> = gone.iter().map(|number| self.name(*number)).collect();
        self.see_off(gone, left.max(connect));
        for name in names {
            // Whatever is configured under that name next is another volume.
            if let Err(error) = self.known().forget(&name) {
                log::say(format!(
                    "{name}: has left, and its namespace is known yet: {error:#}"
                ));
            }
            if let Err(error) = self.health.maintenance.forget(&name) {
                log::say(format!(
                    "{name}: has left, and its maintenance is kept yet: {error:#}"
                ));
            }
        }
        let state = self.state();
        let words = |number: &u16| match state.volumes.is_leaving(*number) {
            false => None,
            true => Some(format!(
                "{} waits for the end of its I/O",
                state.volumes.name(*number)
            )),
        };
        gone.iter().filter_map(words).collect()
    }

    /// The last clients of a volume's exports, which listen no more, go.
    pub fn wait_vacated(&self, volume: u16, drain: Duration) {
        self.wait(drain + GRACE, |state| {
            !state.ending.values().any(|it| it.volume == volume)
        });
    }

    /// Those that are leaving do, and are waited for in bounded time; mirrors with their legs.
    fn see_off(&self, gone: &[u16], wait: Duration) {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let mut all = gone.to_vec();
        for number in gone {
            if *number < MIRRORS_FROM {
                self.senders
                    .change(0, Change::RemoveVolume(*number), wait_ns);
                continue;
            }
            let state = self.state();
            all.extend(state.volumes.leaving_legs(&state.volumes.name(*number)));
            drop(state);
            self.senders.order(*number, MirrorOrder::Leave);
        }
        self.wait(wait.saturating_mul(2).min(WAIT_MAX) + GRACE, |state| {
            !all.iter().any(|number| state.volumes.is_leaving(*number))
        });
    }

    /// A mirror has stopped: its legs leave.
    fn mirror_left(&self, volume: u16, name: &str) {
        self.known().mirror_records.forget_unwritten(volume);
        let state = self.state();
        let connect_ns = state.configured.connect_timeout.0;
        for leg in state.volumes.leaving_legs(name) {
            self.senders
                .change(0, Change::RemoveVolume(leg), connect_ns);
        }
    }

    /// Waits until it is so, but not longer than `limit`.
    fn wait(&self, limit: Duration, is_so: impl Fn(&State) -> bool) {
        let state = self.state();
        let waited = self
            .news
            .wait_timeout_while(state, limit, |state| !state.is_closed() && !is_so(state));
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Clients of volumes, by number: those of NBD exports, and hosts over NVMe/TCP that have
    /// identified a volume as a namespace.
    ///
    /// # Errors
    /// A core doesn't answer.
    pub fn clients_of(&self, volumes: &[u16]) -> anyhow::Result<Vec<(u16, u32)>> {
        let cores = self.senders.report()?;
        let state = self.state();
        let clients = |volume: u16| -> u32 {
            let exports = (0..).zip(&state.exports);
            let of = exports.filter(|(_, it)| it.as_ref().is_some_and(|it| it.volume == volume));
            let of: Vec<usize> = of.map(|it| it.0).collect();
            let of_queues = state.queue_namespaces().filter(|it| it.volume == volume);
            let of_queues: Vec<u32> = of_queues.map(|it| it.number).collect();
            let on = |core: &CoreReport| -> u32 {
                let queues = of_queues
                    .iter()
                    .filter_map(|it| Some(core.queues.get(it)?.1));
                let clients = of.iter().map(|number| core.exports[*number].clients);
                clients
                    .chain(core.hosts.get(&volume).copied())
                    .chain(queues)
                    .sum()
            };
            cores.iter().map(on).sum()
        };
        Ok(volumes.iter().map(|it| (*it, clients(*it))).collect())
    }

    /// The answer to a change came, and nobody waits for it: a volume is gone; or one is there that
    /// nobody wants any more.
    pub fn volume_changed(&self, Changed { volume, path }: Changed) {
        if path.is_some() {
            return;
        }
        let expected = {
            let mut state = self.state();
            let expected = state.volumes.is_leaving(volume);
            if !expected && state.volumes.meant(volume).is_none() {
                state.volumes.leave(volume);
                let remove = Change::RemoveVolume(volume);
                self.senders.change(0, remove, 0);
            }
            expected.then(|| state.volumes.name(volume))
        };
        let Some(name) = expected else {
            return;
        };
        if volume >= MIRRORS_FROM {
            self.mirror_left(volume, &name);
        }
        // Before another of that name may come.
        if let Err(error) = self.marks().clear(&name) {
            log::say(format!(
                "{name}: has left, but its mark stays: {error:#}; one of that name will wait at \
                 the next start for what is over"
            ));
        }
        if let Err(error) = self.registry().leave(&name) {
            log::say(format!(
                "{name}: has left, and other engines are refused its namespace until this one \
                 ends: {error:#}"
            ));
        }
        self.unanswered().retain(|(number, _), _| *number != volume);
        self.state().volumes.left(volume);
        self.senders.forget_seats(volume);
        self.news.notify_all();
    }

    /// The last client of a withdrawn export is gone from a core.
    pub fn vacated(&self, core: u16, export: u32) {
        let (mut state, number) = (self.state(), export as usize);
        let Some(ending) = state.ending.get_mut(&number) else {
            return; // its volume had left
        };
        ending.cores.remove(&core);
        if ending.cores.is_empty() {
            state.ending.remove(&number);
            self.news.notify_all();
        }
    }
}
