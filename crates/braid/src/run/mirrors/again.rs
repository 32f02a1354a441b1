//! A mirror that was stopped is started again, by `mirror.assemble`, in the same engine.
//!
//! # Contract
//! With the legs that it had when it was stopped, as volumes opened anew, and as another run of
//! another lineage; so all that holds at an engine's start holds here. A leg that can't be opened
//! is left out, and the engine decides whether the mirror may go on without it. Its exports listen
//! again.
//!
//! # Limits
//! A leg that was left out is not reached before the mirror is stopped and started once more.
use super::{leg_config, mirror_config, owner};
use crate::control::rpc::Failure;
use crate::log;
use crate::run::config::{Export, Volume};
use crate::run::service::Service;
use engine::host::VolumeInfo;
use engine::mirror::{Anew, LegConfig, MirrorOrder, MirrorState};
use std::time::Duration;
use volume::mirror::Label;
use volume::mirror::assembly::Wishes;

/// How long it has to start while somebody waits for it: it may have to watch another owner for
/// four beats. It starts later, too.
pub(super) const WAIT: Duration = Duration::from_secs(45);

/// What a mirror had that was stopped.
#[derive(Clone)]
pub struct Stopped {
    /// Its legs.
    pub legs: Vec<Volume>,
    /// Which one each was, by its URI.
    pub slots: Vec<(u8, String)>,
    /// Where it was exported.
    pub exports: Vec<Export>,
}

/// Legs that were to be opened.
#[derive(Default)]
struct Opened {
    there: Vec<(LegConfig, VolumeInfo)>,
    left_out: Vec<Volume>,
}

impl Service {
    /// Starts a mirror that was stopped; `discard`: the leg that is given up, by its number or URI.
    ///
    /// # Errors
    /// It was not stopped, has no leg that can be opened, or lacks the one that is given up; an
    /// export can't listen; what became of it.
    pub(super) fn start_again(
        &self,
        volume: u16,
        without: bool,
        discard: Option<&str>,
    ) -> Result<(), Failure> {
        let _alone = self.changes.alone();
        let name = self.name(volume);
        let (stopped, of) = {
            let state = self.state();
            let stopped = state.stopped.get(&volume).cloned();
            (stopped, state.volumes[volume].of.clone())
        };
        let not = || Failure::refused(format!("{name} was not stopped by verb"));
        let stopped = stopped.ok_or_else(not)?;
        let names = stopped.legs.iter().map(|leg| leg_config(leg, 0).name);
        let names: Vec<String> = names.collect();
        let number = discard.and_then(|leg| leg.parse().ok());
        let mut slots = stopped.slots.iter();
        let by_number = slots.find(|(slot, _)| Some(*slot) == number);
        // One that was not there is known by how it was last reached.
        let is_it = |it: &&String| by_number.is_some_and(|by| Label::cut(it) == Label::cut(&by.1));
        let by_number = names.iter().find(is_it).map(String::as_str);
        let discard = by_number.or(discard);
        if let Some(leg) = discard.filter(|leg| !names.iter().any(|it| it == leg)) {
            let names = names.join(", ");
            let why = format!("{name} had no leg \"{leg}\", only {names}");
            return Err(Failure::params(why));
        }
        let opened = self.open_all(&stopped.legs);
        let (legs, infos): (Vec<_>, Vec<_>) = opened.there.into_iter().unzip();
        let numbers: Vec<u16> = legs.iter().map(|leg| leg.volume).collect();
        let close = || numbers.iter().for_each(|number| self.close_leg(*number));
        if legs.is_empty() {
            let why = "none of its legs can be opened: see the engine's log";
            return Err(Failure::refused(format!("{name}: {why}")));
        }
        let place = |leg: &str| legs.iter().position(|it| it.name == leg);
        let wishes = Wishes {
            without,
            discard: discard.and_then(place),
        };
        if let Some(leg) = discard.filter(|_| wishes.discard.is_none()) {
            close();
            let why = format!("{leg} is to be given up, and can't be opened: leave it out");
            return Err(Failure::refused(format!("{name}: {why}")));
        }
        let mut config = mirror_config(&of, legs, owner(&self.identity));
        config.wishes = wishes;
        let became = self.begin(volume, Anew { config, infos }).map_err(|why| {
            close();
            Failure::refused(format!("{name} was not begun: {why}"))
        })?;
        self.state().left_out.insert(volume, opened.left_out);
        self.listen_again(volume, &stopped.exports)?;
        match became {
            MirrorState::Running => Ok(()),
            MirrorState::Refused(why) | MirrorState::Failed(why) => {
                Err(Failure::refused(format!("{name} does not start: {why}")))
            }
            MirrorState::Gathering | MirrorState::Stopped => Err(Failure::refused(format!(
                "{name} has not started yet: braid stat shows it"
            ))),
        }
    }

    /// What becomes of a mirror that begins.
    ///
    /// # Errors
    /// Why it does not begin.
    fn begin(&self, volume: u16, anew: Anew) -> Result<MirrorState, String> {
        self.senders
            .order(volume, MirrorOrder::Begin(Box::new(anew)));
        let (mut became, mut why) = (MirrorState::Stopped, None);
        // Its core hears the order before it is asked: one that is stopped then was not begun.
        self.wait_for(volume, WAIT, |it| {
            (became, why) = (it.state.clone(), it.not_begun.clone());
            became != MirrorState::Gathering
        });
        match became {
            MirrorState::Stopped => Err(why.unwrap_or_else(|| "it was stopped meanwhile".into())),
            became => Ok(became),
        }
    }

    /// Volumes for all of these legs.
    fn open_all(&self, legs: &[Volume]) -> Opened {
        let mut opened = Opened::default();
        for leg in legs {
            match self.open_leg_of(leg) {
                Ok((number, info)) => opened.there.push((leg_config(leg, number), info)),
                Err(why) => {
                    log::say(format!("{}: this leg is left out: {why}", leg.name));
                    opened.left_out.push(leg.clone());
                }
            }
        }
        opened
    }

    /// It was begun: its exports listen, unless they do by now.
    fn listen_again(&self, volume: u16, exports: &[Export]) -> Result<(), Failure> {
        let mut state = self.state();
        state.stopped.remove(&volume);
        for export in exports {
            let mut there = state.exports.iter().flatten();
            if there.any(|it| it.volume == volume && it.export == *export) {
                continue;
            }
            let made = self.add_export(&mut state, volume, export.clone(), None);
            made.map_err(|error| Failure::refused(format!("{error:#}")))?;
        }
        Ok(())
    }
}
