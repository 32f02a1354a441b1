//! Exports of a running engine: added and removed by verb, changed by a reload.
//!
//! `export.add {"volume": "v0", "export": "unix:/…", "read_only": false, "owner": …, "group": …,
//! "mode": "0660"}` · `export.remove {"volume": "v0", "export": …}`
//!
//! # Contract
//! An export that a reload changes goes on listening, and its clients stay, whoever may connect
//! from then on; where it becomes read-only or no longer is, they are told that it is over, as at
//! a removal, and may connect again. All exports change, or none.
use super::address::{Accepting, Bound, NbdAddress};
use super::config::{Config, Export};
use super::service::{Exported, Service, State};
use crate::control::access::{Mode, Name};
use crate::control::rpc::ControlError;
use anyhow::Context;
use cores::RunControl;
use engine::export::{ExportControl, Offer};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What `export.…` takes.
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
}

/// What was done, and by which number the export goes.
enum Step {
    Added(usize),
    /// What it was before.
    Changed(usize, Export),
}

/// New exports that listen, and whose clients nobody answers yet.
pub type Listening = Vec<(NbdAddress, Bound)>;

impl Service {
    /// `export.add`.
    pub fn export_add(&self, params: ExportParams) -> Result<Value, ControlError> {
        let export = Export {
            nbd: address(&params.export)?,
            read_only: params.read_only,
            owner: params.owner,
            group: params.group,
            mode: params.mode,
        };
        export
            .check()
            .map_err(|(_, why)| ControlError::params(why))?;
        let mut state = self.state();
        let volume = state.volumes.number(&params.volume)?;
        state.may_export(volume)?;
        let added = self.add_export(&mut state, volume, export, None);
        let uri = added.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        Ok(json!({"volume": params.volume, "export": params.export, "uri": uri}))
    }

    /// `export.remove`.
    pub fn export_remove(&self, params: ExportParams) -> Result<Value, ControlError> {
        let mut state = self.state();
        let volume = state.volumes.number(&params.volume)?;
        let mut namespaces = state.namespaces.iter().filter(|it| it.volume == volume);
        if namespaces.any(|it| it.uris.iter().any(|(uri, _)| *uri == params.export)) {
            return Err(ControlError::refused(format!(
                "{}: an export over NVMe/TCP ends with its engine: take it out of the \
                 configuration, and restart the engine",
                params.export
            )));
        }
        let shown = |export: &Exported| export.volume == volume && export.uri == params.export;
        let shown = |export: &Option<Exported>| export.as_ref().is_some_and(shown);
        let found = match state.exports.iter().position(shown) {
            Some(number) => Some(number),
            None => place(&state, volume, &address(&params.export)?),
        };
        let Some(number) = found else {
            let text = format!("{} is not exported as {}", params.volume, params.export);
            return Err(ControlError::params(text));
        };
        self.remove_export(&mut state, number);
        Ok(json!({"volume": params.volume, "export": params.export}))
    }

    /// Listens again for exports whose socket was removed; clients that are connected stay. What
    /// was made, in words.
    ///
    /// # Errors
    /// The first that can't be.
    pub fn restore_sockets(&self, state: &mut State, new: &Config) -> anyhow::Result<Vec<String>> {
        let mut words = Vec::new();
        for (volume, of) in state.volumes.numbered(new) {
            for export in &of.exports {
                let Some(number) = place(state, volume, &export.nbd) else {
                    continue;
                };
                let core = self.senders.of(volume);
                let there = state.exports[number].as_mut();
                let Some(there) = there.filter(|it| it.accepting.is_lost()) else {
                    continue;
                };
                let bound = export.nbd.bind(&there.export.access());
                let bound = bound.with_context(|| format!("volume {}", of.name))?;
                there.accepting = Accepting::start(bound, number as u32, core.clone())?;
                words.push(format!("made {} again", there.uri));
            }
        }
        Ok(words)
    }

    /// Listens for those that `new` has more.
    ///
    /// # Errors
    /// The first that can't be; then none does.
    pub fn listen(&self, new: &Config) -> anyhow::Result<Listening> {
        let state = self.state();
        let mut all = Listening::new();
        for (volume, of) in state.volumes.numbered(new) {
            for export in &of.exports {
                if place(&state, volume, &export.nbd).is_none() {
                    let bound = export.nbd.bind(&export.access());
                    let bound = bound.with_context(|| format!("volume {}", of.name))?;
                    all.push((export.nbd.clone(), bound));
                }
            }
        }
        Ok(all)
    }

    /// New exports begin, and those that are there become what `new` says of them; what was
    /// changed, in words.
    ///
    /// # Errors
    /// The first that can't be; then none has changed.
    pub fn apply_exports(
        &self,
        state: &mut State,
        new: &Config,
        listening: Listening,
    ) -> anyhow::Result<Vec<String>> {
        let mut done = Vec::new();
        if let Err(error) = self.try_exports(state, new, listening, &mut done) {
            let undone = done.into_iter().rev().try_for_each(|step| match step {
                Step::Added(number) => {
                    self.remove_export(state, number);
                    Ok(())
                }
                Step::Changed(number, before) => change(state, number, before).map(drop),
            });
            return Err(match undone {
                Ok(()) => error,
                Err(why) => error.context(format!("and not all could be taken back: {why:#}")),
            });
        }
        let mut words = Vec::new();
        for step in done {
            let (number, word) = match step {
                Step::Added(number) => (number, "added"),
                Step::Changed(number, before) => {
                    self.offer_again(state, number, &before);
                    (number, "changed")
                }
            };
            let exported = state.exports[number].as_ref();
            words.extend(exported.map(|exported| format!("{word} {}", exported.uri)));
        }
        Ok(words)
    }

    fn try_exports(
        &self,
        state: &mut State,
        new: &Config,
        mut listening: Listening,
        done: &mut Vec<Step>,
    ) -> anyhow::Result<()> {
        for (volume, of) in state.volumes.numbered(new) {
            let wrong = |error: anyhow::Error| error.context(format!("volume {}", of.name));
            for export in &of.exports {
                if let Some(number) = place(state, volume, &export.nbd) {
                    let before = change(state, number, export.clone()).map_err(wrong)?;
                    done.extend(before.map(|before| Step::Changed(number, before)));
                    continue;
                }
                let at = listening.iter().position(|(nbd, _)| *nbd == export.nbd);
                let bound = at.map(|at| listening.swap_remove(at).1);
                self.add_export(state, volume, export.clone(), bound)
                    .map_err(wrong)?;
                done.extend(place(state, volume, &export.nbd).map(Step::Added));
            }
        }
        Ok(())
    }

    /// Whether changes are refused is told to clients when they connect.
    fn offer_again(&self, state: &State, number: usize, before: &Export) {
        let Some(exported) = &state.exports[number] else {
            return;
        };
        if exported.export.read_only == before.read_only {
            return;
        }
        let core = self.senders.of(exported.volume);
        let drain_ns = state.configured.drain_timeout.0;
        let offer = state.offer(exported.volume, &exported.export);
        // In one: the number would be free in between, and who removes the export then would be
        // told so while clients of it are there.
        let renew = ExportControl::Renew(number as u32, offer, drain_ns);
        core.send(RunControl::Export(renew));
    }
}

impl State {
    /// What clients of an export are told.
    pub fn offer(&self, volume: u16, export: &Export) -> Offer {
        Offer {
            volume,
            name: self.volumes.name(volume),
            read_only: export.read_only,
        }
    }
}

/// Makes an export what it is to be now; what it was, if that differs.
///
/// # Errors
/// Its socket can't be given to whom it is for; then nothing has changed.
fn change(state: &mut State, number: usize, to: Export) -> anyhow::Result<Option<Export>> {
    let there = state.exports[number].as_mut();
    let Some(there) = there.filter(|there| there.export != to) else {
        return Ok(None);
    };
    let before = there.export.access();
    if to.access() != before
        && let Err(error) = there.accepting.set_access(&to.access())
    {
        return Err(match there.accepting.set_access(&before) {
            Ok(()) => error,
            Err(_) => error.context("and it is its owner's alone (0600) now"),
        });
    }
    Ok(Some(std::mem::replace(&mut there.export, to)))
}

/// Number of the export of a volume at an address.
fn place(state: &State, volume: u16, nbd: &NbdAddress) -> Option<usize> {
    let of = |export: &Exported| export.volume == volume && export.export.nbd == *nbd;
    let mut exports = state.exports.iter();
    exports.position(|export| export.as_ref().is_some_and(of))
}

fn address(text: &str) -> Result<NbdAddress, ControlError> {
    text.parse()
        .map_err(|error| ControlError::params(format!("\"{text}\": {error}")))
}
