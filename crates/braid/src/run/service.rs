//! What can be asked of a running engine: the methods behind its control socket.
//!
//! `list {}` · `list-subsys {}` · `stat {}` · `check {"volume": "v0"}` ·
//! `policy {"volume": "v0", "policy": "numa"}` · `knob {"volume": "v0", "name": …, "value": …}` ·
//! `export.… {…}`, see `exports` · `path.… {…}`, see `paths` · `reload {}`
//!
//! # Contract
//! One call at a time changes anything. A change has been handed to all cores when it is answered;
//! it is in force within a loop turn of each.
use super::address::Accepting;
use super::choices::Choices;
use super::config::{Config, Export, Volume};
use super::cores::Senders;
use super::machine::RunControl;
use super::marks::Marks;
use super::paths::Changes;
use super::reload;
use super::report::Report;
use crate::control::rpc::Failure;
use crate::control::server::Methods;
use crate::output;
use crate::uri::UriKind;
use engine::export::ExportControl;
use engine::host::{PathNews, VolumeInfo};
use engine::limits::EXPORTS_MAX;
use nvme::host::HostIdentity;
use policy::{Knobs, Policy};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
pub struct Service {
    identity: HostIdentity,
    pub senders: Senders,
    /// Of paths.
    pub changes: Changes,
    /// Where the configuration comes from.
    pub file: PathBuf,
    state: Mutex<State>,
}

/// What an engine starts with.
pub struct Start {
    /// As the file says.
    pub configured: Config,
    /// The same with the paths that were chosen.
    pub config: Config,
    /// The file.
    pub file: PathBuf,
}

/// What may change.
pub struct State {
    /// As the file said when it was read last.
    pub configured: Config,
    /// The same, with the paths as they are now.
    pub config: Config,
    /// By volume.
    pub volumes: Vec<Running>,
    /// By export number.
    pub exports: Vec<Option<Exported>>,
    pub choices: Choices,
    closed: bool,
}

/// One volume.
pub struct Running {
    /// In force.
    pub policy: Policy,
    /// In force.
    pub knobs: Knobs,
    /// Once it is ready.
    pub info: Option<VolumeInfo>,
    /// Number of each path of the configuration, in order.
    pub places: Vec<u8>,
    /// What was done by hand with paths that don't serve I/O, by URI.
    pub aside: BTreeMap<String, String>,
}

/// One export that listens.
pub struct Exported {
    /// Volume index.
    pub volume: u16,
    /// As configured.
    pub export: Export,
    /// What a client connects to.
    pub uri: String,
    /// Dropped, it listens no more.
    pub accepting: Accepting,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeParams {
    volume: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyParams {
    volume: String,
    policy: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KnobParams {
    volume: String,
    name: Option<String>,
    value: Option<String>,
}

impl Service {
    /// Of cores that run with this configuration.
    pub fn new(start: Start, identity: HostIdentity, choices: Choices, senders: Senders) -> Self {
        let Start {
            configured,
            config,
            file,
        } = start;
        let running = |volume: &Volume| {
            let (policy, knobs) = choices.of(&volume.name, volume.policy, volume.knobs());
            Running {
                policy,
                knobs,
                info: None,
                places: (0..volume.paths.len() as u8).collect(),
                aside: choices.aside(volume, &configured),
            }
        };
        let paths = config.volumes.iter().flat_map(|volume| &volume.paths);
        let remote = paths.filter(|keys| matches!(keys.uri.kind(), UriKind::NvmeTcp(_)));
        let changes = Changes::new(remote.count() as u32);
        let state = State {
            volumes: config.volumes.iter().map(running).collect(),
            exports: Vec::new(),
            configured,
            config,
            choices,
            closed: false,
        };
        Self {
            identity,
            senders,
            changes,
            file,
            state: Mutex::new(state),
        }
    }

    /// Listens for all exports of the configuration.
    ///
    /// # Errors
    /// The first that can't be.
    pub fn export_configured(&self) -> anyhow::Result<()> {
        let mut state = self.state();
        let volumes = (0..).zip(state.config.volumes.clone());
        for (volume, of) in volumes {
            for export in of.exports {
                self.add_export(&mut state, volume, export)?;
            }
        }
        Ok(())
    }

    /// Listens.
    ///
    /// # Errors
    /// It can't be, or there are too many.
    pub fn add_export(
        &self,
        state: &mut State,
        volume: u16,
        export: Export,
    ) -> anyhow::Result<String> {
        anyhow::ensure!(!state.closed, "the engine is ending");
        let number = match state.exports.iter().position(Option::is_none) {
            Some(number) => number,
            None => {
                let most = EXPORTS_MAX as usize;
                anyhow::ensure!(state.exports.len() < most, "{most} exports are the most");
                state.exports.push(None);
                state.exports.len() - 1
            }
        };
        let bound = export.nbd.bind(&export.access())?;
        let uri = bound.uri(&export.nbd);
        let core = self.senders.of(volume);
        let offer = state.offer(volume, &export);
        core.send(RunControl::Export(ExportControl::Offer(
            number as u32,
            offer,
        )));
        let accepting = Accepting::start(bound, number as u32, core.clone())?;
        state.exports[number] = Some(Exported {
            volume,
            export,
            uri: uri.clone(),
            accepting,
        });
        Ok(uri)
    }

    /// Listens no more; clients finish what is in flight and are disconnected.
    pub fn remove_export(&self, state: &mut State, number: usize) {
        let drain_ns = state.config.drain_timeout.0;
        if let Some(export) = state.exports[number].take() {
            let withdraw = ExportControl::Withdraw(number as u32, drain_ns);
            self.senders
                .of(export.volume)
                .send(RunControl::Export(withdraw));
        }
    }

    /// Another policy and knobs for a volume.
    pub fn set_policy(&self, state: &mut State, volume: u16, policy: Policy, knobs: Knobs) {
        self.senders.set_policy(volume, policy, knobs);
        let running = &mut state.volumes[usize::from(volume)];
        (running.policy, running.knobs) = (policy, knobs);
    }

    /// No export listens any more.
    pub fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.exports.clear();
    }

    /// One line for each export.
    pub fn exports_in_words(&self) -> Vec<String> {
        let state = self.state();
        let exports = state.exports.iter().flatten();
        let line = |export: &Exported| {
            let name = &state.config.volumes[usize::from(export.volume)].name;
            format!("{name}: {}\n", export.uri)
        };
        exports.map(line).collect()
    }

    /// Passes on to core 0 what another core learnt of a path.
    pub fn tell_core_zero(&self, news: PathNews) {
        self.senders.tell_core_zero(news);
    }

    /// Keeps the bound of a volume's controllers; then they may be used, also if it can't be kept.
    pub fn mark(&self, marks: &mut Marks, volume: u16, bound_ns: u64) {
        let of = self.state().config.volumes[usize::from(volume)].clone();
        if let Err(error) = marks.keep(&of, bound_ns) {
            output::note(&format!(
                "{}: if this engine is killed, the next one will not know that it must wait for \
                 writes under way, and may lose data: {error:#}",
                of.name
            ));
        }
        self.senders.marked(volume, bound_ns);
    }

    /// Whether the clients of a volume are on this core.
    pub fn is_core_of(&self, core: u16, volume: u16) -> bool {
        volume % self.state().config.cores == core
    }

    /// A volume is ready.
    pub fn ready(&self, volume: u16, info: VolumeInfo) {
        self.state().volumes[usize::from(volume)].info = Some(info);
    }

    /// Name of a volume.
    pub fn name(&self, volume: u16) -> String {
        self.state().config.volumes[usize::from(volume)]
            .name
            .clone()
    }

    /// What may change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn policy(&self, params: PolicyParams) -> Result<Value, Failure> {
        let mut state = self.state();
        let volume = index(&state, &params.volume)?;
        let knobs = state.volumes[usize::from(volume)].knobs;
        if let Some(text) = params.policy {
            let policy = Policy::parse(&text)
                .map_err(|error| Failure::params(format!("\"{text}\": {error}")))?;
            self.choose(&mut state, volume, policy, knobs)?;
        }
        let policy = state.volumes[usize::from(volume)].policy;
        Ok(json!({"volume": params.volume, "policy": policy.to_string()}))
    }

    fn knob(&self, params: KnobParams) -> Result<Value, Failure> {
        let mut state = self.state();
        let volume = index(&state, &params.volume)?;
        let running = &state.volumes[usize::from(volume)];
        let (policy, mut knobs) = (running.policy, running.knobs);
        if let (Some(name), Some(value)) = (params.name, params.value) {
            let wrong = |error| Failure::params(format!("{name} \"{value}\": {error}"));
            match name.as_str() {
                "ewma_shift" => {
                    knobs.ewma_shift = Knobs::parse_ewma_shift(&value).map_err(wrong)?
                }
                "weight_timeout" => {
                    let parsed = Knobs::parse_weight_timeout(&value);
                    knobs.weight_timeout_ns = parsed.map_err(wrong)?;
                }
                _ => {
                    let text = format!(
                        "there is no knob \"{name}\"; there are ewma_shift and weight_timeout"
                    );
                    return Err(Failure::params(text));
                }
            }
            self.choose(&mut state, volume, policy, knobs)?;
        }
        Ok(json!({
            "volume": params.volume,
            "ewma_shift": knobs.ewma_shift,
            "weight_timeout_ns": knobs.weight_timeout_ns,
        }))
    }

    /// Keeps a choice, then makes it.
    fn choose(
        &self,
        state: &mut State,
        volume: u16,
        policy: Policy,
        knobs: Knobs,
    ) -> Result<(), Failure> {
        let of = &state.config.volumes[usize::from(volume)];
        let (name, configured) = (of.name.clone(), (of.policy, of.knobs()));
        let kept = state.choices.keep(&name, configured, (policy, knobs));
        kept.map_err(|error| Failure::refused(format!("not changed: {error:#}")))?;
        self.set_policy(state, volume, policy, knobs);
        Ok(())
    }

    fn report(&self) -> Result<Report<'_>, Failure> {
        let cores = self.senders.report();
        let cores = cores.map_err(|error| Failure::refused(format!("{error:#}")))?;
        Ok(Report::new(self.state(), cores, &self.identity))
    }
}

impl Methods for Service {
    fn call(&self, method: &str, params: Value) -> Result<Value, Failure> {
        match method {
            "list" => Ok(self.report()?.list()),
            "list-subsys" => Ok(self.report()?.list_subsys()),
            "stat" => Ok(self.report()?.stat()),
            "check" => {
                let params: VolumeParams = parse(params)?;
                self.report()?.check(params.volume.as_deref())
            }
            "policy" => self.policy(parse(params)?),
            "knob" => self.knob(parse(params)?),
            "export.add" => self.export_add(parse(params)?),
            "export.remove" => self.export_remove(parse(params)?),
            "reload" => match reload::reload(self) {
                Ok(changed) => Ok(json!({"changed": changed})),
                Err(error) => Err(Failure::refused(format!("nothing was changed: {error:#}"))),
            },
            other => match other.strip_prefix("path.") {
                Some(verb) => self.change_path(verb, parse(params)?),
                None => Err(Failure::method(other)),
            },
        }
    }
}

/// Number of the volume of that name.
pub fn index(state: &State, name: &str) -> Result<u16, Failure> {
    let volumes = &state.config.volumes;
    let found = (0..).zip(volumes).find(|(_, volume)| volume.name == name);
    found
        .map(|(index, _)| index)
        .ok_or_else(|| unknown(state, name))
}

/// There is no such volume.
pub fn unknown(state: &State, name: &str) -> Failure {
    let names: Vec<_> = state
        .config
        .volumes
        .iter()
        .map(|v| v.name.as_str())
        .collect();
    let names = names.join(", ");
    Failure::params(format!("there is no volume \"{name}\", only {names}"))
}

fn parse<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, Failure> {
    serde_json::from_value(params).map_err(|error| Failure::params(error.to_string()))
}
