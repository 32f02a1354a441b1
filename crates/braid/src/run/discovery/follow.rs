//! Changes paths as discovery tells.
//!
//! # Contract
//! One change at a time, and only while no user waits for one of theirs. A refused change is tried
//! again with growing pauses; a line says why, once for each reason, and few of many are said.
//!
//! # Limits
//! In each round a volume has [`ROUND_MAX`] attempts; then all is looked at anew, and other volumes
//! have their turn.
use super::plan::{BEFORE, Offers, Plan, adopt, plan};
use super::turns::{Places, Queue};
use super::{LINES_MAX, say_seldom};
use crate::log;
use crate::run::config::Gone;
use crate::run::desired::DesiredVolume;
use crate::run::entries::{AdminState, PathEntry};
use crate::run::locks::Alone;
use crate::run::paths::unnamed;
use crate::run::service::Service;
use crate::uri::PathUri;
use crate::uri::discovery::in_words;
use engine::discovery::Endpoint;
use engine::seldom::Seldom;
use policy::PathIndex;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Longest pause before what was refused is tried again: for paths that are to join, and for those
/// that are to leave, which costs nobody anything.
const PAUSE_JOIN_MAX: Duration = Duration::from_secs(60);
const PAUSE_LEAVE_MAX: Duration = Duration::from_secs(4);
/// Attempts to take a path in for one volume before others have their turn.
const ROUND_MAX: usize = 16;

/// State of the thread.
struct Memory {
    /// By volume.
    queues: BTreeMap<String, Queue>,
    lines: Seldom,
    begun: Instant,
}

impl Memory {
    fn say(&mut self, line: &str) {
        say_seldom(&mut self.lines, self.begun, line);
    }
}

impl Service {
    /// Changes paths as discovery tells, until the engine ends.
    pub(super) fn follow_discovery(&self) {
        let mut memory = Memory {
            queues: BTreeMap::new(),
            lines: Seldom::new(LINES_MAX),
            begun: Instant::now(),
        };
        let mut until = None;
        while self.discovery.wait(until) {
            let again = self.resolve_again();
            let told = self.discovery.told();
            let names: Vec<(u16, String)> = {
                let state = self.state();
                let all = state.volumes.iter();
                all.map(|(number, it)| (number, it.of.name.clone()))
                    .collect()
            };
            memory
                .queues
                .retain(|name, _| names.iter().any(|(_, it)| it == name));
            for (number, name) in &names {
                let mut queue = memory.queues.remove(name).unwrap_or_default();
                self.follow_volume(*number, name, &told, &mut queue, &mut memory);
                memory.queues.insert(name.clone(), queue);
            }
            let queues = memory.queues.values().filter_map(Queue::next_at);
            until = queues.chain(again).min();
        }
    }

    fn follow_volume(
        &self,
        number: u16,
        name: &str,
        told: &(Offers, bool),
        queue: &mut Queue,
        memory: &mut Memory,
    ) {
        let unheard = self.discovery.unheard();
        let Some((plan, gone)) = self.plan_of(number, name, told) else {
            return;
        };
        queue.keep(plan.named(), Instant::now());
        let places = || {
            let state = self.state();
            let known = state.volumes.number(name).ok() == Some(number);
            let it = known.then(|| DesiredVolume::new(&state, number))?;
            Some(Places::new(it.paths.len(), &it.found(), &plan, &unheard))
        };
        let mut noted = |queue: &mut Queue, uri: &str, made, most| match made {
            Ok(line) => {
                queue.done(uri);
                log::say(format!("{name}: path {uri}: {line}"));
            }
            Err(why) => {
                if let Some(why) = queue.refused(uri, why, most, Instant::now()) {
                    memory.say(&format!("{name}: path {uri}: {why}"));
                }
            }
        };
        for _ in 0..ROUND_MAX {
            let Some(places) = places().filter(|_| !self.discovery.is_closed()) else {
                return;
            };
            let Some((uri, by)) = queue.next(&plan, &places, Instant::now()) else {
                break;
            };
            let made = self.take_in(number, name, &uri, &by);
            noted(queue, &uri.to_string(), made, PAUSE_JOIN_MAX);
        }
        for uri in plan.surplus.iter().filter(|_| !self.discovery.is_closed()) {
            if queue.is_due(uri, Instant::now()) {
                let made = self.let_go(number, name, uri, gone);
                noted(queue, uri, made, PAUSE_LEAVE_MAX);
            }
        }
        if let Some(places) = places()
            && let Some(line) = queue.crowded(&plan, &places, Instant::now())
        {
            memory.say(&format!("{name}: {line}"));
        }
    }

    /// Changes of a volume's paths, and how they leave; `None`: another one has the
    /// number by now.
    fn plan_of(&self, number: u16, name: &str, told: &(Offers, bool)) -> Option<(Plan, Gone)> {
        let (offers, heard_all) = told;
        let mut state = self.state();
        if state.volumes.number(name).ok() != Some(number) {
            return None;
        }
        let mut found = DesiredVolume::new(&state, number).found();
        let it = &mut state.volumes[number];
        adopt(&it.of, &mut found, offers);
        it.tell_by(&found);
        let it = &state.volumes[number];
        let fixed = state.configured.paths_of(name);
        let named = |uri: &PathUri| self.ends.addresses(uri);
        let mut plan = plan(&it.of, &found, fixed, offers, named);
        // A controller that has not answered yet may announce it.
        let stays = |uri: &String| !heard_all && found[uri] == BEFORE;
        plan.surplus.retain(|uri| !stays(uri));
        Some((plan, it.of.gone.unwrap_or_default()))
    }

    /// A path that discovery tells of joins a volume; in words.
    ///
    /// # Errors
    /// Why it doesn't.
    fn take_in(
        &self,
        volume: u16,
        name: &str,
        uri: &PathUri,
        by: &Endpoint,
    ) -> Result<String, String> {
        let alone = self.alone_for_discovery(name);
        let _alone = alone.ok_or_else(String::new)?;
        if self.state().volumes.number(name).ok() != Some(volume) {
            return Err(String::new());
        }
        let (text, by) = (uri.to_string(), in_words(by));
        let made = self.edit(volume, false, |it| {
            it.add_found(uri.clone(), by.clone());
            Ok(())
        });
        made.map_err(|why| {
            let why = why.to_string();
            let why = unnamed(name, &text, &why);
            format!("discovered by {by}, and not used: {why}")
        })?;
        let state = self.state();
        let it = state.volumes.get(volume);
        let it = it.and_then(|it| it.entries().of_uri(uri));
        let is_aside = it.is_some_and(|it| it.admin() != AdminState::Enabled);
        Ok(match is_aside {
            false => format!("discovered by {by}, in use"),
            true => format!("discovered by {by}; it was set aside by hand, and stays so"),
        })
    }

    /// A path that nobody tells of any more leaves, if it may; in words.
    ///
    /// # Errors
    /// Why it stays; empty: that is as it should be.
    fn let_go(&self, volume: u16, name: &str, uri: &str, gone: Gone) -> Result<String, String> {
        let alone = self.alone_for_discovery(name);
        let _alone = alone.ok_or_else(String::new)?;
        let uri: PathUri = uri.parse().map_err(|_| String::new())?;
        let path = {
            let state = self.state();
            if state.volumes.number(name).ok() != Some(volume) {
                return Err(String::new());
            }
            let it = state.volumes[volume].entries().of_uri(&uri);
            it.map(PathEntry::index).ok_or_else(String::new)?
        };
        let live = self.is_live(volume, path);
        if live && gone == Gone::KeepWhileLive {
            return Err("not told any more; it stays while it works (gone)".into());
        }
        if !self.has_other(volume, path) {
            return Err("not told any more; it stays, because no other path is usable".into());
        }
        let removed = self.edit(volume, false, |it| it.remove(&uri));
        removed.map_err(|why| {
            let (uri, why) = (uri.to_string(), why.to_string());
            let why = unnamed(name, &uri, &why);
            let of_it = why.strip_prefix(&uri).map(|rest| format!("it{rest}"));
            let why = of_it.as_deref().unwrap_or(why);
            format!("not told any more, and stays: {why}")
        })?;
        Ok("not told any more; removed".into())
    }

    /// A volume for a change of discovery; `None`: the engine is ending.
    fn alone_for_discovery(&self, name: &str) -> Option<Alone<'_>> {
        let is_closed = || self.discovery.is_closed();
        (self.changes.verbs).alone_last(&[name.to_owned()], &is_closed)
    }

    /// Whether a volume has another path in use.
    fn has_other(&self, volume: u16, path: PathIndex) -> bool {
        let others: Vec<PathIndex> = {
            let state = self.state();
            let paths = state.volumes.get(volume).into_iter();
            let paths = paths.flat_map(|it| it.entries().iter().map(PathEntry::index));
            paths.filter(|it| *it != path).collect()
        };
        others.into_iter().any(|it| self.is_live(volume, it))
    }
}
