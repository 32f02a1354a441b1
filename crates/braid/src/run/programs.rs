//! Programs as policies: `policy load`, `policy unload`, `policy list`.
//!
//! `policy.load {"volume": "v0", "file": "/opt/near.wasm"}` · `policy.unload {"volume": "v0"}` ·
//! `policy.list {}`
//!
//! # Contract
//! A program's file is kept in `programs/` of the state directory before a choice names it, so that
//! the next engine has it. It is translated on the thread of the verb, or of the watcher; each core
//! gets a runner of its own. The watcher compares the policies of volumes with what runs: a volume
//! that comes gets its program, and one that was taken out is logged, once.
use super::call::{PolicyParams, ProgramParams};
use super::service::{Service, State};
use super::state;
use crate::control::rpc::ControlError;
use crate::log;
use anyhow::Context;
use policy::{Knobs, Policy, ProgramId};
use program::{Fault, Options, Program, Workshop};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// How often the watcher compares.
const LOOK: Duration = Duration::from_secs(1);

/// How often a program that was not loaded is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Age from which a kept file that nothing names is nobody's.
const ORPHAN: Duration = Duration::from_secs(60);

/// How often choices are read again of which one had another name before it was read.
const SCANS_MAX: usize = 8;

/// How often a program is given again to cores that have dropped it.
const RETRIES_MAX: u8 = 10;

/// Programs of an engine.
pub struct Programs {
    /// Of their files.
    directory: PathBuf,
    /// Started with the first one.
    workshop: OnceLock<Workshop>,
    watcher: OnceLock<Thread>,
    /// One of them starts or drops programs at a time: a verb, or the watcher.
    changes: Mutex<()>,
    /// By volume. Never locked while the state is waited for.
    loaded: Mutex<BTreeMap<u16, Loaded>>,
}

/// The program of one volume.
struct Loaded {
    id: ProgramId,
    how: Result<Program, String>,
    /// When that was found out.
    since: Instant,
    /// Files of the configuration among which it was looked for.
    files: Vec<PathBuf>,
    is_logged: bool,
    /// How often it was given to the cores again, since one of them did not have the volume yet.
    retries: u8,
}

/// A volume whose policy is a program.
struct Wanted {
    volume: u16,
    name: String,
    id: ProgramId,
    knobs: Knobs,
}

impl Wanted {
    fn is(&self, volume: u16, id: ProgramId) -> bool {
        (self.volume, self.id) == (volume, id)
    }
}

impl Programs {
    /// None yet, of an engine with this state directory.
    pub fn new(state_directory: &Path) -> Self {
        Self {
            directory: state_directory.join("programs"),
            workshop: OnceLock::new(),
            watcher: OnceLock::new(),
            changes: Mutex::default(),
            loaded: Mutex::default(),
        }
    }

    fn loaded(&self) -> MutexGuard<'_, BTreeMap<u16, Loaded>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changes(&self) -> MutexGuard<'_, ()> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, id: ProgramId, options: Options) -> PathBuf {
        let kind = if options.wasi { "wasi.wasm" } else { "wasm" };
        let (name, hash) = (id.name(), id.hash());
        self.directory.join(format!("{name}@{hash:016x}.{kind}"))
    }

    /// The program that was kept, or is a file of the configuration.
    fn find(&self, id: ProgramId, configured: &[PathBuf]) -> Result<Program, String> {
        let kept = [false, true].map(|wasi| {
            let options = Options { wasi };
            (self.path(id, options), options)
        });
        let kept = kept.into_iter().filter(|(path, _)| path.exists());
        let configured = configured.iter().map(|it| (it.clone(), Options::default()));
        let mut whys = Vec::new();
        for (path, options) in kept.chain(configured) {
            // Another one is not translated to find out that it is another.
            let bytes = program::read(&path);
            let program = bytes.and_then(|bytes| match program::id(id.name(), &bytes) == id {
                true => Program::new(id.name(), &bytes, options).map(Some),
                false => Ok(None),
            });
            match program {
                Ok(Some(program)) => return Ok(program),
                Ok(None) => whys.push(format!(
                    "{} has another content; braid reload, or braid policy load",
                    path.display()
                )),
                Err(error) => whys.push(format!("{}: {error}", path.display())),
            }
        }
        Err(match whys.is_empty() {
            true => format!(
                "its file is not in {}; braid policy load brings it again",
                self.place()
            ),
            false => whys.join("; "),
        })
    }

    fn place(&self) -> String {
        self.directory.display().to_string()
    }

    /// Starts what makes new instances.
    fn workshop(&self) -> Result<&Workshop, String> {
        if let Some(workshop) = self.workshop.get() {
            return Ok(workshop);
        }
        let workshop = Workshop::start();
        let workshop = workshop.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(self.workshop.get_or_init(|| workshop))
    }

    /// Volumes or policies have changed.
    pub fn wake(&self) {
        if let Some(watcher) = self.watcher.get() {
            watcher.unpark();
        }
    }

    /// Why the program of a volume does not choose; `None`: it does, or the volume has none.
    pub fn trouble(&self, volume: u16, policy: Policy) -> Option<String> {
        let Policy::Program(id) = policy else {
            return None;
        };
        let loaded = self.loaded();
        let it = loaded.get(&volume).filter(|it| it.id == id)?;
        match &it.how {
            Err(why) => Some(format!(
                "{id} was not loaded, and queue-depth chooses: {why}"
            )),
            Ok(program) if program.state().is_out => Some(format!(
                "{id} was taken out, and soonest chooses: too many of its choices failed ({}); \
                 braid policy load begins anew",
                program.state().counts.faults_in_words()
            )),
            Ok(_) => None,
        }
    }

    /// State and counts of the program of a volume.
    pub fn show(&self, volume: u16, policy: Policy) -> Option<Value> {
        let Policy::Program(id) = policy else {
            return None;
        };
        let loaded = self.loaded();
        let it = loaded.get(&volume).filter(|it| it.id == id)?;
        let mut shown = json!({"name": id.name(), "program": id.to_string()});
        match &it.how {
            Err(why) => {
                shown["state"] = "failed".into();
                shown["why"] = why.clone().into();
            }
            Ok(program) => {
                let state = program.state();
                let counts = state.counts;
                let all = Fault::ALL.iter().zip(counts.faults);
                let all = all.map(|(it, count)| (it.name().to_owned(), count.into()));
                shown["state"] = if state.is_out { "taken-out" } else { "running" }.into();
                shown["sha256"] = program.sha256().into();
                shown["bytes"] = program.bytes().len().into();
                shown["wasi"] = program.options().wasi.into();
                shown["choices"] = counts.choices.into();
                shown["faults"] = all.collect::<Map<String, Value>>().into();
                shown["fuel_mean"] = counts.fuel.checked_div(counts.calls).unwrap_or(0).into();
                shown["fuel_max"] = counts.fuel_max.into();
            }
        }
        Some(shown)
    }
}

/// Volumes whose policy is a program.
fn wanted(state: &State) -> Vec<Wanted> {
    let of = state.volumes.iter().filter(|(_, it)| !it.of.is_mirror());
    let of = of.filter_map(|(volume, it)| match it.of.policy {
        Policy::Program(id) => Some(Wanted {
            volume,
            name: it.of.name.clone(),
            id,
            knobs: it.of.knobs(),
        }),
        _ => None,
    });
    of.collect()
}

impl Service {
    /// Compares the policies of volumes with the programs that run, once; whether there are any.
    pub fn look_at_programs(&self) -> bool {
        let _changes = self.programs.changes();
        let (wanted, files) = {
            let state = self.state();
            (wanted(&state), state.configured.program_files.clone())
        };
        let gone: Vec<Loaded> = {
            let mut loaded = self.programs.loaded();
            let is_wanted =
                |number: u16, it: &Loaded| wanted.iter().any(|wanted| wanted.is(number, it.id));
            let (stay, gone) = std::mem::take(&mut *loaded)
                .into_iter()
                .partition::<BTreeMap<_, _>, _>(|(number, it)| is_wanted(*number, it));
            *loaded = stay;
            gone.into_values().collect()
        };
        for it in gone {
            self.forget_program(it.id);
        }
        for it in &wanted {
            // The entry stays while its successor is made: it is shown meanwhile.
            let again = match self.programs.loaded().get_mut(&it.volume) {
                None => None,
                Some(loaded) => match &loaded.how {
                    // The volume came before the configuration that it is of, or what was wrong
                    // may have been mended.
                    Err(_) if loaded.files != files || loaded.since.elapsed() >= AGAIN => None,
                    Err(_) => continue,
                    Ok(program) => {
                        let program = program.clone();
                        if !self.is_to_be_given_again(it, loaded) {
                            continue;
                        }
                        Some((program, loaded.retries + 1))
                    }
                },
            };
            let (found, retries) = match again {
                Some((program, retries)) => (Ok(program), retries),
                None => (self.programs.find(it.id, &files), 0),
            };
            // One that is not loaded is shown as that, and tried again.
            let _ = self.start_program((it.volume, it.id), found, files.clone(), retries);
        }
        !wanted.is_empty()
    }

    /// Whether a core does not have it yet. One that was taken out is logged.
    fn is_to_be_given_again(&self, of: &Wanted, it: &mut Loaded) -> bool {
        let Ok(program) = &it.how else {
            return false;
        };
        let state = program.state();
        if !state.is_out {
            // A core that did not have the volume yet has dropped its runner.
            return it.retries < RETRIES_MAX && program.runners() < self.senders.count();
        }
        if !it.is_logged {
            it.is_logged = true;
            log::say(format!(
                "{}: {} is taken out, too many of its choices failed ({}); soonest chooses from \
                 now on",
                of.name,
                it.id,
                state.counts.faults_in_words()
            ));
        }
        false
    }

    /// Gives a program to all cores.
    ///
    /// # Errors
    /// It can't be had, or the volume has another policy by now.
    fn start_program(
        &self,
        (volume, id): (u16, ProgramId),
        found: Result<Program, String>,
        files: Vec<PathBuf>,
        retries: u8,
    ) -> Result<(), String> {
        let cores = self.senders.count();
        let started = found.and_then(|program| {
            let workshop = self.programs.workshop()?;
            let runners = (0..cores).map(|_| program.runner(Some(workshop)));
            let runners: Result<Vec<_>, _> = runners.collect();
            Ok((runners.map_err(|error| error.to_string())?, program))
        });
        let (runners, how) = match started {
            Ok((runners, program)) => (runners, Ok(program)),
            Err(why) => (Vec::new(), Err(why)),
        };
        let of = {
            // A policy is set while the state is held: a later one comes after this one, and so do
            // knobs.
            let state = self.state();
            let of = wanted(&state).into_iter().find(|it| it.is(volume, id));
            let of = of.ok_or("another policy was set meanwhile")?;
            self.senders.set_program(volume, id, runners, of.knobs);
            of
        };
        let why = how.as_ref().err().cloned();
        let loaded = Loaded {
            id,
            how,
            since: Instant::now(),
            files,
            is_logged: false,
            retries,
        };
        let before = self.programs.loaded().insert(volume, loaded);
        let Some(why) = why else {
            return Ok(());
        };
        let before = before.filter(|it| it.id == id).and_then(|it| it.how.err());
        if before.as_ref() != Some(&why) {
            let name = of.name;
            log::say(format!(
                "{name}: {id} is not loaded, queue-depth chooses: {why}"
            ));
        }
        Err(why)
    }

    pub(super) fn policy_load(&self, params: &ProgramParams) -> Result<Value, ControlError> {
        let (name, file) = (&params.volume, Path::new(&params.file));
        let refused = |why| ControlError::refused(format!("{name}: not loaded: {why}"));
        {
            let state = self.state();
            state.has_paths(state.volumes.number(name)?)?;
        }
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let options = Options { wasi: params.wasi };
        let program = program::read(file).and_then(|it| Program::new(&stem, &it, options));
        let program = program.map_err(|error| refused(format!("{}: {error}", params.file)))?;
        let id = program.id();
        let _changes = self.programs.changes();
        let kept = state::write_bytes(&self.programs.path(id, options), program.bytes());
        kept.map_err(|error| refused(format!("{error:#}")))?;
        let chosen = self.choose(name, |it| {
            it.of.policy = Policy::Program(id);
            Ok(())
        });
        if let Err(why) = chosen {
            self.forget_program(id);
            return Err(why);
        }
        let volume = self.state().volumes.number(name)?;
        let before = self.programs.loaded().get(&volume).map(|it| it.id);
        let started = self.start_program((volume, id), Ok(program), Vec::new(), 0);
        if let Some(before) = before.filter(|it| *it != id) {
            self.forget_program(before);
        }
        if let Err(why) = started {
            self.forget_program(id);
            return Err(refused(why));
        }
        self.forget_other_kind(id, options);
        let shown = self.programs.show(volume, Policy::Program(id));
        Ok(json!({"volume": name, "program": shown}))
    }

    pub(super) fn policy_unload(&self, params: &PolicyParams) -> Result<Value, ControlError> {
        let name = &params.volume;
        let usual = {
            let state = self.state();
            let volume = state.volumes.number(name)?;
            let policy = state.volumes[volume].of.policy;
            let configured = state.configured.volume(name);
            let usual = configured.map_or(Policy::QueueDepth, |it| it.policy);
            let why = match policy {
                Policy::Program(_) if policy != usual => None,
                Policy::Program(_) => Some("is that of its configuration: braid policy set"),
                _ => Some("is no program"),
            };
            if let Some(why) = why {
                let why = format!("{name}: its policy, {policy}, {why}");
                return Err(ControlError::refused(why));
            }
            usual
        };
        self.choose(name, |it| {
            it.of.policy = usual;
            Ok(())
        })?;
        self.look_at_programs();
        Ok(json!({"volume": name, "policy": usual.to_string()}))
    }

    pub(super) fn policy_list(&self) -> Value {
        let wanted = wanted(&self.state());
        let shown = wanted.iter().filter_map(|it| {
            let mut shown = self.programs.show(it.volume, Policy::Program(it.id))?;
            shown["volume"] = it.name.clone().into();
            Some(shown)
        });
        json!({"programs": shown.collect::<Vec<_>>()})
    }

    /// Removes the kept file of a program that a volume has no more, unless it is that of another
    /// volume, or a choice names it: of an engine with this state directory, whether or not it
    /// runs.
    fn forget_program(&self, id: ProgramId) {
        let removed = match self.is_named(id) {
            Ok(true) => return,
            Ok(false) => [false, true]
                .into_iter()
                .try_for_each(|wasi| state::remove(&self.programs.path(id, Options { wasi }))),
            Err(error) => Err(error.into()),
        };
        if let Err(error) = removed {
            log::say(format!("the file of {id} is not removed: {error:#}"));
        }
    }

    /// Removes kept files that no volume has and no choice names: of an engine that was killed
    /// before it made the choice, or of a choice that has gone with the engine down.
    fn forget_orphans(&self) {
        let _changes = self.programs.changes();
        // One that is new may be that of another engine with this state directory, which makes the
        // choice next.
        let is_old = |path: &Path| -> std::io::Result<bool> {
            let age = fs::metadata(path)?.modified()?.elapsed();
            Ok(age.is_ok_and(|it| it >= ORPHAN))
        };
        let Ok(entries) = fs::read_dir(&self.programs.directory) else {
            return; // none was ever loaded
        };
        for path in entries.flatten().map(|it| it.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let stem = name.strip_suffix(".wasm");
            let stem = stem.map(|it| it.strip_suffix(".wasi").unwrap_or(it));
            let id = stem.and_then(|it| ProgramId::parse(&format!("program:{it}")).ok());
            let is_orphan = match id {
                Some(id) => self.is_named(id).map(|it| !it),
                None => Ok(name.ends_with(".new")),
            };
            let is_orphan = is_orphan.and_then(|it| Ok(it && is_old(&path)?));
            if let Ok(true) = is_orphan
                && let Err(error) = state::remove(&path)
            {
                log::say(format!("the file of no program is not removed: {error:#}"));
            }
        }
    }

    /// Whether a program is that of a volume, or a choice names it.
    fn is_named(&self, id: ProgramId) -> std::io::Result<bool> {
        if wanted(&self.state()).iter().any(|it| it.id == id) {
            return Ok(true);
        }
        // Held, so that no choice of this engine changes while they are read.
        let choices = self.choices();
        let id = id.to_string();
        let is_named = || -> std::io::Result<bool> {
            for entry in fs::read_dir(choices.directory())? {
                let choice = fs::read(entry?.path())?;
                if choice.windows(id.len()).any(|it| it == id.as_bytes()) {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        // A choice of another engine gets its name while they are read: it may name the program.
        let is_gone = |it: &std::io::Result<bool>| {
            let error = it.as_ref().err();
            error.is_some_and(|error| error.kind() == ErrorKind::NotFound)
        };
        let mut all = (0..SCANS_MAX).map(|_| is_named());
        all.find(|it| !is_gone(it)).unwrap_or(Ok(true))
    }

    /// Removes the kept file of a program with the other options: `find` would take either.
    fn forget_other_kind(&self, id: ProgramId, options: Options) {
        let other = Options {
            wasi: !options.wasi,
        };
        let is_used = self.programs.loaded().values().any(|it| {
            let how = it.how.as_ref();
            it.id == id && how.is_ok_and(|it| it.options() == other)
        });
        if !is_used && let Err(error) = state::remove(&self.programs.path(id, other)) {
            log::say(format!("another file of {id} is not removed: {error:#}"));
        }
    }

    /// Starts the thread that compares.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn watch_programs(self: &Arc<Self>) -> anyhow::Result<()> {
        let service = self.clone();
        let builder = thread::Builder::new().name("policies".into());
        let watch = move || {
            service.forget_orphans();
            while !service.state().is_closed() {
                match service.look_at_programs() {
                    true => thread::park_timeout(LOOK),
                    false => thread::park(),
                }
            }
        };
        let thread = builder.spawn(watch).context("cannot start a thread")?;
        let _ = self.programs.watcher.set(thread.thread().clone());
        Ok(())
    }
}
