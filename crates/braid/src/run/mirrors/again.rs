//! Start of a mirror that was stopped, and of one that is new in the configuration.
//!
//! # Contract
//! A mirror that was stopped has the legs that it had then, as volumes opened anew, and is another
//! run of another lineage; so all that holds at an engine's start holds here. A leg that can't be
//! opened is left out, and the engine decides whether the mirror may go on without it. Once it has
//! begun it is not stopped any more, whatever comes of it.
//!
//! # Limits
//! A leg that was left out is not reached before the mirror is stopped and started once more.
use super::legs::file_of;
use super::orders::{NotStarted, meant};
use super::{mirror_config, owner, storage_of, terms};
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::log;
use crate::run::call::{EngineCall as Call, MirrorParams};
use crate::run::config::Volume;
use crate::run::desired::MirrorStart;
use crate::run::paths::HAS_LEFT;
use crate::run::service::Service;
use crate::run::volumes::Running;
use engine::mirror::{Anew, LegConfig, MirrorOrder, MirrorState};
use mirror::assembly::Wishes;
use serde_json::Value;
use std::time::Duration;

/// How long it has to start while somebody waits for it: it may have to watch another owner for
/// four beats. It starts later, too.
pub(super) const WAIT: Duration = Duration::from_secs(45);

impl Service {
    /// `mirror.assemble` of a mirror that was stopped.
    ///
    /// # Errors
    /// It has no leg that can be opened, or lacks the one that is given up; an export can't listen;
    /// what became of it.
    pub(super) fn start_stopped(
        &self,
        call: &Call,
        params: &MirrorParams,
        by: &Caller<'_>,
    ) -> Result<Value, ControlError> {
        let (alone, volume) = self.alone_with_mirror(&params.volume, by)?;
        if self.mirror_report(volume)?.state != MirrorState::Stopped {
            // Another verb has started it meanwhile, and its legs are in use.
            drop(alone);
            return self.order_mirror(call, params, by);
        }
        let discard = params.discard.as_deref();
        let discard = discard.map(|leg| self.given_up(volume, leg)).transpose()?;
        let how = MirrorStart {
            without: params.without,
            discard,
            accept: params.accept,
        };
        self.edit(volume, false, |it| it.start(how))?;
        Ok(terms::answer(call, params))
    }

    /// Name of a leg of a mirror that was stopped, by its URI or number.
    fn given_up(&self, volume: u16, wanted: &str) -> Result<String, ControlError> {
        let state = self.state();
        let it = state.volumes.get(volume);
        let it = it.ok_or_else(|| ControlError::refused(HAS_LEFT))?;
        let name = &it.of.name;
        let files: Vec<&Volume> = state.configured.legs(name).collect();
        let called = |it: &&&Volume| it.paths.iter().any(|keys| keys.uri.to_string() == wanted);
        if let Some(file) = files.iter().find(called) {
            return Ok(file.name.clone());
        }
        let legs = it.stopped.as_deref().unwrap_or_default();
        let leg = &legs[meant(legs, wanted)?];
        let file = file_of(files.into_iter(), leg).map(|it| it.name.clone());
        file.ok_or_else(|| {
            let why = "which one can't be told, name its URI";
            ControlError::params(format!("{name}: leg {wanted}: {why}"))
        })
    }

    /// A mirror starts that was stopped; no other verb has it.
    ///
    /// # Errors
    /// It has no leg that can be opened, or lacks the one that is given up, and is stopped; or what
    /// became of it.
    pub fn start_mirror(&self, volume: u16, how: &MirrorStart) -> Result<(), ControlError> {
        let (name, of) = {
            let state = self.state();
            let it = state.volumes.get(volume);
            let of = it.map(|it| it.of.clone());
            let of = of.ok_or_else(|| ControlError::refused(HAS_LEFT))?;
            (of.name.clone(), of)
        };
        let refused = |why: String| ControlError::refused(format!("{name}: {why}"));
        // It may have ended only after that was waited for: they are open still.
        self.close_legs(&name);
        let files: Vec<Volume> = self.state().idle_legs(&name).cloned().collect();
        self.ensure_free(&files).map_err(refused)?;
        let wishes = |legs: &[LegConfig]| {
            if legs.is_empty() {
                return Err("none of its legs can be opened: see the engine's log".into());
            }
            let place = |leg: &String| {
                let place = legs.iter().position(|it| self.name(it.volume) == *leg);
                let why = "is to be given up, and can't be opened: leave it out";
                place.ok_or_else(|| format!("{leg} {why}"))
            };
            let discard = how.discard.as_ref().map(place).transpose()?;
            let without = how.without;
            Ok(Wishes { without, discard })
        };
        self.with_name_accepted(volume, how.accept, || {
            let became = self.begin(volume, &of, &files, wishes).map_err(refused)?;
            if let Some(it) = self.state().volumes.get_mut(volume) {
                it.stopped = None;
            }
            match became {
                MirrorState::Running => Ok(()),
                MirrorState::Refused(why) | MirrorState::Failed(why) => {
                    let why = format!("{name} does not start: {why}");
                    Err(ControlError::refused(why).into())
                }
                MirrorState::Assembling | MirrorState::Stopped => {
                    let why = ControlError::refused(format!(
                        "{name} has not started yet, and starts when its legs answer (braid stat \
                         shows why it waits); braid mirror stop ends that"
                    ));
                    Err(NotStarted { why, pending: true })
                }
            }
        })
    }

    /// A mirror is new in the configuration, with these legs: it is assembled, and runs; it isn't
    /// there yet, but has this number.
    ///
    /// # Errors
    /// Why it does not start; then nothing of it is left.
    pub fn open_mirror(&self, of: &Volume, legs: &[Volume]) -> Result<u16, String> {
        self.ensure_free(legs)?;
        self.inherit(of)?;
        let number = {
            let choices = self.choices();
            let mut state = self.state();
            let number = self.senders.free_mirror(&state.volumes.mirrors());
            let number =
                number.ok_or("no core has memory for another mirror: restart the engine")?;
            let new = Running::new(choices.desired(of));
            state.volumes.open_mirror(new, number)?;
            number
        };
        let became = self.begin(number, of, legs, |_| Ok(Wishes::default()));
        let why = match became {
            Ok(MirrorState::Running) => return Ok(number),
            // The caller names it as well.
            Ok(MirrorState::Refused(why) | MirrorState::Failed(why)) => {
                let named = format!("{}: ", of.name);
                why.strip_prefix(&named).unwrap_or(&why).to_owned()
            }
            Ok(MirrorState::Assembling | MirrorState::Stopped) => format!(
                "it has not started within {} s: the engine's log says which legs it waits for",
                WAIT.as_secs()
            ),
            Err(why) => why,
        };
        self.take_back_volume(self.state(), number);
        Err(why)
    }

    /// Opens legs of a mirror, which begins with those that could be opened; what becomes of it.
    ///
    /// # Errors
    /// Why it does not begin; then its legs are closed.
    fn begin(
        &self,
        volume: u16,
        of: &Volume,
        files: &[Volume],
        wishes: impl FnOnce(&[LegConfig]) -> Result<Wishes, String>,
    ) -> Result<MirrorState, String> {
        let open = |leg: &Volume| {
            let opened = self.open_leg_of(leg);
            let left_out = |why| log::say(format!("{}: this leg is left out: {why}", leg.name));
            opened.map_err(left_out).ok()
        };
        let (legs, infos): (Vec<_>, Vec<_>) = files.iter().filter_map(open).unzip();
        let begun = wishes(&legs).and_then(|wishes| {
            let known = self.known().mirror(&of.name);
            let mut config = mirror_config(of, legs, known, owner(&self.identity));
            config.wishes = wishes;
            let anew = Box::new(Anew { config, infos });
            self.senders.order(volume, MirrorOrder::Begin(anew));
            let (mut became, mut why) = (MirrorState::Stopped, None);
            // Its core hears the order before it is asked: one that is stopped then was not begun.
            self.wait_for(volume, WAIT, |it| {
                (became, why) = (it.state.clone(), it.not_begun.clone());
                became != MirrorState::Assembling
            });
            match became {
                MirrorState::Stopped => {
                    Err(why.unwrap_or_else(|| "it was stopped meanwhile".into()))
                }
                became => Ok(became),
            }
        });
        if begun.is_err() {
            self.close_legs(&of.name);
        }
        begun
    }

    /// A leg that another volume has, which may write to it, is none that is missing (T48).
    ///
    /// # Errors
    /// Which one.
    fn ensure_free(&self, legs: &[Volume]) -> Result<(), String> {
        for leg in legs {
            for keys in &leg.paths {
                if let Some(storage) = storage_of(&keys.uri) {
                    let state = self.state();
                    state.volumes.ensure_apart(leg, &keys.uri, &storage)?;
                }
            }
        }
        Ok(())
    }
}
