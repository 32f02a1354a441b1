//! Exports of a running engine: added and removed by verb, changed by a reload.
//!
//! `export.add {"volume": "v0", "export": "unix:/…", "read_only": false, "owner": …, "group": …,
//! "mode": "0660", "allow": ["uid=1000"], "open": false}`, whose port 0 is a free one ·
//! `export.remove {"volume": "v0", "export": …}`
//!
//! # Contract
//! An export that a reload changes goes on listening, and its clients stay, but those that its
//! rules do not admit any more, or not as they did: they are told that it is over, as at a removal,
//! and may connect again. Where it becomes read-only or no longer is, or its address gets another
//! volume, all are. Exports of a mirror that was stopped come, change and go without listening
//! until it starts.
use super::address::{Accepting, Bound, NbdAddress, Towards};
use super::admission::{Admission, Guard, Rule};
use super::config::{Config, Export};
use super::service::{Exported, Service, State};
use crate::control::access::{Mode, Name};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use anyhow::Context;
use cores::RunControl;
use engine::export::{ExportControl, Offer};
use engine::limits::EXPORTS_MAX;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::Arc;

/// Parameters of `export.…`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExportParams {
    pub volume: String,
    pub export: String,
    #[serde(default)]
    pub read_only: bool,
    pub owner: Option<Name>,
    pub group: Option<Name>,
    pub mode: Option<Mode>,
    #[serde(default)]
    pub allow: Vec<Rule>,
    #[serde(default)]
    pub open: bool,
}

/// An export that listens, and takes no clients yet. Made without the lock of the state: the users
/// of its rules are looked up.
pub struct BoundExport {
    pub export: Export,
    pub bound: Bound,
    pub guard: Guard,
}

/// An export that gets another volume. Made without the lock of the state, as [`BoundExport`].
pub struct ExportMove {
    /// Number that it has.
    pub number: usize,
    /// Its volume to be.
    pub volume: u16,
    pub export: Export,
    pub guard: Guard,
}

impl BoundExport {
    /// Listens.
    ///
    /// # Errors
    /// It can't be, or there is no such user.
    pub fn bind(export: &Export) -> anyhow::Result<Self> {
        Ok(Self {
            guard: export.admission.guard()?,
            bound: export.nbd.bind(&export.access())?,
            export: export.clone(),
        })
    }
}

/// How long clients that go to another core may finish what is in flight, ns: shorter than what
/// waits without a queue waits ([`engine::limits::NO_QUEUE_WAIT_NS`]).
const HOME_DRAIN_NS: u64 = 1_000_000_000;

impl Service {
    /// `export.add`.
    pub fn export_add(
        &self,
        params: &ExportParams,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let mut export = Export {
            nbd: address(&params.export)?,
            read_only: params.read_only,
            owner: params.owner.clone(),
            group: params.group.clone(),
            mode: params.mode,
            admission: Admission {
                allow: params.allow.clone(),
                open: params.open,
            },
        };
        export
            .check()
            .map_err(|(_, why)| ControlError::params(why))?;
        let (_alone, volume) = self.alone_with(&params.volume, by)?;
        // One of a stopped mirror gets a port when it listens; any other is told from others by its
        // port from now on.
        if !self.state().is_stopped(&params.volume) {
            let nbd = export.nbd.with_port();
            export.nbd = nbd.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        }
        let nbd = export.nbd.clone();
        {
            let state = self.state();
            state.may_export(volume)?;
            let free = state.ensure_address(volume, &nbd);
            free.map_err(ControlError::refused)?;
        }
        self.edit(volume, false, |it| it.add_export(export))?;
        let state = self.state();
        let there = state.export_at(volume, &nbd);
        let there = there.and_then(|at| state.exports[at].as_ref());
        let uri = there.map(|it| &it.uri);
        Ok(json!({"volume": params.volume, "export": params.export, "uri": uri}))
    }

    /// `export.remove`.
    pub fn export_remove(
        &self,
        params: &ExportParams,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let (_alone, volume) = self.alone_with(&params.volume, by)?;
        let (nbd, is_stopped) = {
            let state = self.state();
            let nbd = state.shown_export(volume, params)?;
            (nbd, state.is_stopped(&params.volume))
        };
        self.edit(volume, false, |it| {
            let exports = &mut it.of.exports;
            // Of a stopped mirror several with any port have one text: one of them goes.
            let first = exports.iter().position(|it| it.nbd == nbd);
            match first.filter(|_| is_stopped) {
                Some(first) => drop(exports.remove(first)),
                None => exports.retain(|it| it.nbd != nbd),
            }
            Ok(())
        })?;
        Ok(json!({"volume": params.volume, "export": params.export}))
    }

    /// Listens again for exports whose socket was removed; clients that are connected stay. Returns
    /// what was made, in words.
    ///
    /// # Errors
    /// The first that can't be.
    pub fn restore_sockets(&self, state: &mut State, new: &Config) -> anyhow::Result<Vec<String>> {
        let mut words = Vec::new();
        for (volume, of) in state.volumes.numbered(new) {
            for export in &of.exports {
                let Some(number) = state.export_at(volume, &export.nbd) else {
                    continue;
                };
                let there = state.exports[number].as_mut();
                let Some(there) = there.filter(|it| it.accepting.is_lost()) else {
                    continue;
                };
                let bound = export.nbd.bind(&there.export.access());
                let bound = bound.with_context(|| format!("volume {}", of.name))?;
                let target = Towards::Export(number as u32, self.senders.seats(volume));
                let clients = Arc::clone(there.accepting.clients());
                let guard = there.accepting.guard();
                there.accepting = Accepting::start(bound, target, guard, clients)?;
                words.push(format!("made {} again", there.uri));
            }
        }
        Ok(words)
    }

    /// Clients of an export that was changed learn whether changes are refused when they connect.
    pub fn renew_export(&self, state: &State, number: usize) {
        let Some(exported) = &state.exports[number] else {
            return; // it was removed meanwhile
        };
        let renew = state.renewal(number, exported);
        self.senders.to_clients(exported.volume, || renew.clone());
    }

    /// Clients of an export that may not connect any more, or not as they did, are disconnected as
    /// at a removal. Returns how many.
    pub fn dismiss_clients(&self, state: &State, number: usize) -> usize {
        let Some(exported) = &state.exports[number] else {
            return 0; // it was removed meanwhile
        };
        let unfit: Arc<[u64]> = exported.accepting.unfit().into();
        if !unfit.is_empty() {
            let drain_ns = state.configured.drain_timeout.0;
            self.senders.to_clients(exported.volume, || {
                ExportControl::Dismiss(number as u32, Arc::clone(&unfit), drain_ns)
            });
        }
        unfit.len()
    }

    /// A path of a volume has fewer I/O queues than there are cores: only the volume's home is sure
    /// to have one. Clients on other cores are disconnected soon, since what they ask for may wait
    /// there, and find it when they connect again.
    pub fn keep_clients_home(&self, volume: u16) {
        let state = self.state();
        let seats = self.senders.seats(volume);
        if !seats.keep_home() {
            return;
        }
        self.warn_of_hosts_elsewhere(&state, volume);
        let home = self.senders.core_of(volume) as u16;
        for (number, exported) in state.exports.iter().enumerate() {
            let Some(exported) = exported.as_ref().filter(|it| it.volume == volume) else {
                continue;
            };
            // After it no client is on its way to another core.
            let target = Towards::Export(number as u32, Arc::clone(&seats));
            exported.accepting.set_target(target);
            for core in self.senders.cores_of_clients(volume) {
                if core != home {
                    let offer = state.offer(exported.volume, &exported.export);
                    let renew = ExportControl::Renew(number as u32, offer, HOME_DRAIN_NS);
                    self.senders.core(core).send(RunControl::Export(renew));
                }
            }
        }
    }

    /// The clients of an address get another volume: those that are there are disconnected as at a
    /// removal, and the address goes on listening. Its number then.
    ///
    /// # Errors
    /// Its socket can't be given to whom it is for; then nothing has changed.
    ///
    /// # Panics
    /// No number is free: see [`State::ensure_exports`].
    fn move_export(&self, state: &mut State, it: ExportMove) -> anyhow::Result<usize> {
        let ExportMove {
            number,
            volume,
            export,
            guard,
        } = it;
        let Some(to) = state.free_export() else {
            unreachable!("room for exports was seen under this lock");
        };
        let there = state.exports[number].as_ref();
        let there = there.context("it was removed meanwhile")?;
        // Before its first client; without one it is nothing.
        self.offer_export(state, to, volume, &export);
        let target = Towards::Export(to as u32, self.senders.seats(volume));
        let access = (there.export.access(), export.access());
        there
            .accepting
            .move_to(target, guard, &access.0, &access.1)?;
        let Some(exported) = self.withdraw_export(state, number) else {
            unreachable!("export {number} was seen under this lock");
        };
        state.exports[to] = Some(Exported {
            volume,
            export,
            ..exported
        });
        Ok(to)
    }

    /// All exports of a volume listen no more; returns where clients could reach them.
    pub fn remove_exports(&self, state: &mut State, volume: u16) -> Vec<String> {
        let numbers = 0..state.exports.len();
        let gone = numbers.filter_map(|at| {
            let it = state.exports[at].as_ref().filter(|it| it.volume == volume);
            let uri = it?.uri.clone();
            self.remove_export(state, at);
            Some(uri)
        });
        gone.collect()
    }

    /// Exports that listen take clients, and others move, each to a volume by its number: all, or
    /// none. Returns where the new ones can be reached.
    ///
    /// # Errors
    /// The first that can't be. Clients of those that moved before it were disconnected.
    pub fn begin_exports(
        &self,
        state: &mut State,
        bound: Vec<(u16, BoundExport)>,
        moves: Vec<ExportMove>,
    ) -> anyhow::Result<Vec<String>> {
        let (mut added, mut moved, mut uris) = (Vec::new(), Vec::new(), Vec::new());
        let begun = 'begun: {
            for (volume, bound) in bound {
                let nbd = bound.export.nbd.clone();
                match self.add_export(state, volume, bound) {
                    Ok(uri) => uris.push(uri),
                    Err(error) => break 'begun Err(error),
                }
                added.push((volume, nbd));
            }
            for it in moves {
                let Some(there) = state.exports[it.number].as_ref() else {
                    unreachable!("export {} was seen under this lock", it.number);
                };
                let before = ExportMove {
                    number: it.number,
                    volume: there.volume,
                    export: there.export.clone(),
                    guard: there.accepting.guard(),
                };
                match self.move_export(state, it) {
                    Ok(number) => moved.push(ExportMove { number, ..before }),
                    Err(error) => break 'begun Err(error),
                }
            }
            Ok(uris)
        };
        begun.map_err(|mut error: anyhow::Error| {
            for it in moved.into_iter().rev() {
                if let Err(why) = self.move_export(state, it) {
                    error = error.context(format!("and not all could be taken back: {why:#}"));
                }
            }
            for (volume, nbd) in added {
                if let Some(number) = state.export_at(volume, &nbd) {
                    self.remove_export(state, number);
                }
            }
            error
        })
    }
}

impl State {
    /// Whether a new export can have this address, where no listening shows it: it is for a mirror
    /// that is stopped, or such a one has it.
    ///
    /// # Errors
    /// Another volume has it.
    pub fn ensure_address(&self, volume: u16, nbd: &NbdAddress) -> Result<(), String> {
        let is_stopped = |number: u16| {
            let it = self.volumes.get(number);
            it.is_some_and(|it| it.stopped.is_some())
        };
        let others = self
            .volumes
            .iter()
            .filter(|(other, _)| *other != volume && (is_stopped(volume) || is_stopped(*other)));
        let has = |number: u16| self.exports_of(number).iter().any(|it| it.nbd == *nbd);
        let mut others = others.filter(|(other, _)| !nbd.is_any() && has(*other));
        others.next().map_or(Ok(()), |(_, other)| {
            Err(format!("{nbd} is an export of {}", other.of.name))
        })
    }

    /// Keeps the exports that a verb has given a volume: of a mirror that is stopped there is
    /// nothing else that has them. Verbs of two volumes do not exclude each other.
    ///
    /// # Errors
    /// Another volume got one of the addresses meanwhile; nothing has changed.
    pub fn keep_exports(&mut self, volume: u16, exports: Vec<Export>) -> Result<(), String> {
        let before = self.exports_of(volume);
        let is_new = |it: &&Export| !before.iter().any(|before| before.nbd == it.nbd);
        let mut new = exports.iter().filter(is_new);
        new.try_for_each(|it| self.ensure_address(volume, &it.nbd))?;
        if let Some(it) = self.volumes.get_mut(volume) {
            it.of.exports = exports;
        }
        Ok(())
    }

    /// The address of an export that is meant by that, or as it is shown.
    ///
    /// # Errors
    /// There is none over NBD.
    fn shown_export(&self, volume: u16, params: &ExportParams) -> Result<NbdAddress, ControlError> {
        let mut namespaces = self.namespaces().into_iter();
        let is_one = |uris: &[(String, u32)]| uris.iter().any(|(uri, _)| *uri == params.export);
        if namespaces.any(|it| it.volume == volume && is_one(&it.uris)) {
            return Err(ControlError::refused(format!(
                "{}: an export over NVMe/TCP is the configuration's: take it out of the \
                 configuration, and say braid reload",
                params.export
            )));
        }
        let mut all = self.exports.iter().flatten();
        let shown = all.find(|it| it.volume == volume && it.uri == params.export);
        if let Some(it) = shown {
            return Ok(it.export.nbd.clone());
        }
        let nbd = address(&params.export)?;
        let mut all = self.exports_of(volume).into_iter();
        let there = all.find(|it| it.nbd == nbd).map(|it| it.nbd);
        there.ok_or_else(|| {
            let text = format!("{} is not exported as {}", params.volume, params.export);
            ControlError::params(text)
        })
    }

    /// Exports of a volume: those that listen; of a mirror that was stopped, those that listen
    /// again when it starts.
    pub fn exports_of(&self, volume: u16) -> Vec<Export> {
        let stopped = self.volumes.get(volume);
        if let Some(it) = stopped.filter(|it| it.stopped.is_some()) {
            return it.of.exports.clone();
        }
        let all = self.exports.iter().flatten();
        let of = all.filter(|it| it.volume == volume);
        of.map(|it| it.export.clone()).collect()
    }

    /// Number of the export of a volume at an address.
    pub fn export_at(&self, volume: u16, nbd: &NbdAddress) -> Option<usize> {
        let of = |export: &Exported| export.volume == volume && export.export.nbd == *nbd;
        let mut exports = self.exports.iter();
        exports.position(|export| export.as_ref().is_some_and(of))
    }

    /// A number that no export has, nor clients of one that was removed.
    pub fn free_export(&mut self) -> Option<usize> {
        let is_free =
            |number: &usize| self.exports[*number].is_none() && !self.ending.contains_key(number);
        let found = (0..self.exports.len()).find(is_free);
        if found.is_none() && self.exports.len() < EXPORTS_MAX as usize {
            self.exports.push(None);
            return Some(self.exports.len() - 1);
        }
        found
    }

    /// # Errors
    /// There is no room for so many more.
    pub fn ensure_exports(&self, more: usize) -> anyhow::Result<()> {
        let most = EXPORTS_MAX as usize;
        let taken = (0..self.exports.len())
            .filter(|it| self.exports[*it].is_some() || self.ending.contains_key(it));
        let taken = taken.count();
        anyhow::ensure!(taken + more <= most, "{most} exports are the most");
        Ok(())
    }

    /// Clients of an export are to connect again. In one: the number would be free in between, and
    /// a removal of the export then would seem to be over while clients of it are there.
    fn renewal(&self, number: usize, exported: &Exported) -> ExportControl {
        let offer = self.offer(exported.volume, &exported.export);
        ExportControl::Renew(number as u32, offer, self.configured.drain_timeout.0)
    }

    /// Changes the offer to clients of an export.
    pub fn offer(&self, volume: u16, export: &Export) -> Offer {
        Offer {
            volume,
            name: self.volumes.name(volume),
            read_only: export.read_only,
        }
    }
}

/// Makes an export what it is to be now, with the guard of its rules.
///
/// # Errors
/// Its socket can't be given to whom it is for; then nothing has changed.
pub fn change(state: &mut State, number: usize, to: Export, guard: Guard) -> anyhow::Result<()> {
    let there = state.exports[number].as_mut();
    let there = there.context("it was removed meanwhile")?;
    let before = there.export.access();
    there.accepting.set_terms(guard, &before, &to.access())?;
    there.export = to;
    Ok(())
}

fn address(text: &str) -> Result<NbdAddress, ControlError> {
    text.parse()
        .map_err(|error| ControlError::params(format!("\"{text}\": {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;
    use crate::run::desired::DesiredVolume;
    use crate::run::volumes::Running;

    /// Both verbs saw that the address was free before either kept it.
    #[test]
    fn address_is_kept_for_one_of_two_stopped_mirrors() {
        let leg = |leg: &str| format!("[[volume.leg]]\nuri = \"file:/{leg}\"\n");
        let mirror = |name: &str| {
            let legs = leg(&format!("{name}/a")) + &leg(&format!("{name}/b"));
            format!("[[volume]]\nname = \"{name}\"\nkind = \"mirror\"\n{legs}")
        };
        let config = parsed(&(mirror("v0") + &mirror("v1")));
        let stopped = |of: &crate::run::config::Volume| {
            let mut it = Running::new(DesiredVolume::of_file(of.clone(), None));
            it.stopped = it.of.is_mirror().then(Vec::new);
            it
        };
        let volumes = config.volumes.iter().map(stopped).collect();
        let mut state = State::new(config, volumes);
        let [v0, v1] = ["v0", "v1"].map(|name| state.volumes.number(name).unwrap());
        let export = |nbd: &str| Export {
            nbd: nbd.parse().unwrap(),
            read_only: false,
            owner: None,
            group: None,
            mode: None,
            admission: Admission::default(),
        };
        let one = vec![export("unix:/a")];
        assert_eq!(state.keep_exports(v0, one.clone()), Ok(()));
        let both = vec![export("unix:/b"), export("unix:/a")];
        let why = "unix:/a is an export of v0".to_owned();
        assert_eq!(state.keep_exports(v1, both), Err(why));
        assert_eq!(state.exports_of(v1), []);
        assert_eq!(state.keep_exports(v0, one), Ok(()), "it has it already");
    }
}
