//! The verb `maintenance`.
use super::maintenance::{NOTE_MAX, Target, line};
use crate::control::call::Nothing;
use crate::control::rpc::ControlError;
use crate::run::call::EngineCall;
use crate::run::client::Common;
use crate::run::mirrors::orders;
use crate::run::service::Service;
use crate::units::parse_duration;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;
use terminal::answer::{items, word};

/// `maintenance on|off|list`.
#[derive(Clone, Debug, Subcommand)]
pub enum MaintenanceVerb {
    /// Begin it, or give it another end and note; it survives a restart
    On {
        #[command(flatten)]
        of: TargetArgs,
        /// End it by itself after this time, as 2h [default: until it is switched off]
        #[arg(long = "for", value_name = "TIME", value_parser = time)]
        time: Option<u64>,
        /// Why, for others: shown by `check` and `stat`
        #[arg(long, value_name = "TEXT", value_parser = note)]
        note: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// End it
    Off {
        #[command(flatten)]
        of: TargetArgs,
        #[command(flatten)]
        common: Common,
    },
    /// List all that is under maintenance
    List {
        #[command(flatten)]
        common: Common,
    },
}

/// The volume, path or leg that is meant.
#[derive(Clone, Debug, Args)]
pub struct TargetArgs {
    /// Volume
    volume: String,
    /// Path, or leg of a mirror, as `braid stat` shows it [default: the whole volume, also where it
    /// is down]
    path: Option<String>,
}

/// Parameters of `maintenance.on` and `maintenance.off`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MaintenanceParams {
    pub volume: String,
    /// A path or leg, by name, number or URI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// After so long it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

fn time(text: &str) -> Result<u64, String> {
    match parse_duration(text).map_err(|error| error.to_string())? {
        0 => Err("must be above 0".into()),
        ns => Ok(ns),
    }
}

fn note(text: &str) -> Result<String, String> {
    let is_plain = !text.chars().any(char::is_control);
    match is_plain && !text.trim().is_empty() && text.len() <= NOTE_MAX {
        true => Ok(text.to_owned()),
        false => Err(format!("write one line of 1 to {NOTE_MAX} bytes")),
    }
}

/// Asks, and shows the answer.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn ask(verb: &MaintenanceVerb) -> anyhow::Result<()> {
    let params = |of: &TargetArgs| MaintenanceParams {
        volume: of.volume.clone(),
        path: of.path.clone(),
        for_ns: None,
        note: None,
    };
    match verb {
        MaintenanceVerb::On {
            of,
            time,
            note,
            common,
        } => {
            let call = EngineCall::MaintenanceOn(MaintenanceParams {
                for_ns: *time,
                note: note.clone(),
                ..params(of)
            });
            common.show(&call, |text, it| {
                writeln!(text, "{}: maintenance {}", word(&it["of"]), line(it))
            })
        }
        MaintenanceVerb::Off { of, common } => {
            let call = EngineCall::MaintenanceOff(params(of));
            common.show(&call, |text, it| {
                writeln!(text, "{}: maintenance is over", word(&it["of"]))
            })
        }
        MaintenanceVerb::List { common } => {
            common.show(&EngineCall::MaintenanceList(Nothing), |text, it| {
                if items(&it["maintenance"]).next().is_none() {
                    return writeln!(text, "nothing is under maintenance");
                }
                items(&it["maintenance"]).try_for_each(|it| {
                    let path = it["path"].as_str();
                    let path = path.map_or(String::new(), |path| format!(" {path}"));
                    writeln!(text, "{}{path}: {}", word(&it["volume"]), line(it))
                })
            })
        }
    }
}

impl Service {
    /// The volume, path or leg that is meant.
    ///
    /// # Errors
    /// There is none.
    fn maintained(&self, params: &MaintenanceParams) -> Result<Target, ControlError> {
        let of = |volume: &str, path: Option<String>| Target {
            volume: volume.to_owned(),
            path,
        };
        let state = self.state();
        let number = state.volumes.number(&params.volume)?;
        let it = &state.volumes[number];
        let Some(wanted) = &params.path else {
            return Ok(of(&it.of.name, None));
        };
        if !it.of.is_mirror() {
            let found = it.entries().called(wanted).ok_or_else(|| {
                let names = it.entries().iter().map(|it| it.name().to_owned());
                let names = names.collect::<Vec<_>>().join(", ");
                ControlError::params(format!("there is no path \"{wanted}\", only {names}"))
            })?;
            return Ok(of(&it.of.name, Some(found.config().uri.to_string())));
        }
        let mirror = it.of.name.clone();
        drop(state);
        let report = self.report()?;
        let lacks =
            || ControlError::refused(format!("{mirror} does not run: name a leg as MIRROR/LEG"));
        let legs = &report.of_mirror(number).ok_or_else(lacks)?.legs;
        let leg = &legs[orders::meant(legs, wanted)?];
        let name = leg.volume.map(|volume| report.name_of(volume));
        let name = name.ok_or_else(|| {
            ControlError::refused(format!("leg {wanted} of {mirror} is not configured"))
        })?;
        Ok(of(&name, None))
    }

    /// Answers `maintenance.on`.
    pub fn maintenance_on(&self, params: MaintenanceParams) -> Result<Value, ControlError> {
        let note = params.note.as_deref().map(note).transpose();
        let note = note.map_err(|why| ControlError::params(format!("note: {why}")))?;
        let of = self.maintained(&params)?;
        let time = params.for_ns.map(Duration::from_nanos);
        let words = of.words();
        let begun = self.health.maintenance.begin(of, time, note);
        let mut shown = begun.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        self.health.wake();
        shown["of"] = words.into();
        Ok(shown)
    }

    /// Answers `maintenance.off`.
    pub fn maintenance_off(&self, params: &MaintenanceParams) -> Result<Value, ControlError> {
        let listed = Target {
            volume: params.volume.clone(),
            path: params.path.clone(),
        };
        // Also of a path that has left: the list has its URI.
        let of = match self.health.maintenance.has(&listed) {
            true => listed,
            false => self.maintained(params)?,
        };
        self.health.maintenance.end(&of)?;
        Ok(json!({"of": of.words()}))
    }

    /// Answers `maintenance.list`.
    pub fn maintenance_list(&self) -> Value {
        json!({"maintenance": self.health.maintenance.list()})
    }
}
