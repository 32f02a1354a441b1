//! The verbs that ask a running engine.
use crate::cli::{Exit, Usage};
use crate::control::limits::ANSWER_WAIT;
use crate::control::{rpc, socket};
use crate::output::{self, Format, Style};
use crate::table::Table;
use crate::units::{format_bytes, format_ns};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// Exit code of `check` where nobody can say.
const UNKNOWN: u8 = 3;

/// Verbs that speak to a running engine.
#[derive(Clone, Debug, Subcommand)]
pub enum EngineVerb {
    /// List the volumes of the running engine
    List(Common),
    /// List subsystems and their NVMe/TCP paths, with the keys of nvme-cli; `stat` has all paths
    #[command(name = "list-subsys")]
    ListSubsys(Common),
    /// Show what volumes, paths and exports do
    Stat(StatArgs),
    /// Show or set the policy of a volume
    Policy {
        #[command(subcommand)]
        verb: PolicyVerb,
    },
    /// Show or set the knobs of a volume
    Knob {
        #[command(subcommand)]
        verb: KnobVerb,
    },
    /// Add, remove, fail or restore a path (not yet: restart the engine)
    Path(PathArgs),
    /// Add or remove an export of a volume
    Export {
        #[command(subcommand)]
        verb: ExportVerb,
    },
    /// Say how well a volume is: exit code 0 ok, 1 degraded, 2 down, 3 unknown
    Check(CheckArgs),
}

/// Options of every verb here.
#[derive(Clone, Debug, Args)]
pub struct Common {
    /// Control socket of the engine [default: /run/braid/braid.sock for root, else
    /// $XDG_RUNTIME_DIR/braid/braid.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How to show the result
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

/// Options of `stat`.
#[derive(Clone, Debug, Args)]
pub struct StatArgs {
    /// Again every so many seconds
    #[arg(short, long, value_name = "SEC",
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    interval: Option<u64>,
    #[command(flatten)]
    common: Common,
}

/// `policy show|set`.
#[derive(Clone, Debug, Subcommand)]
pub enum PolicyVerb {
    /// Show it
    Show {
        /// Volume
        volume: String,
        #[command(flatten)]
        common: Common,
    },
    /// Set it; it survives a restart
    Set {
        /// Volume
        volume: String,
        /// numa, round-robin, round-robin:BYTES, queue-depth or weighted-latency
        policy: String,
        #[command(flatten)]
        common: Common,
    },
}

/// `knob show|set`.
#[derive(Clone, Debug, Subcommand)]
pub enum KnobVerb {
    /// Show all
    Show {
        /// Volume
        volume: String,
        #[command(flatten)]
        common: Common,
    },
    /// Set one; it survives a restart
    Set {
        /// Volume
        volume: String,
        /// ewma_shift or weight_timeout
        name: String,
        /// Value
        value: String,
        #[command(flatten)]
        common: Common,
    },
}

/// Options of `path`.
#[derive(Clone, Debug, Args)]
pub struct PathArgs {
    /// add, remove, fail or restore
    verb: String,
    /// Volume
    volume: String,
    /// Path URI
    uri: String,
    #[command(flatten)]
    common: Common,
}

/// `export add|remove`.
#[derive(Clone, Debug, Subcommand)]
pub enum ExportVerb {
    /// Begin to listen
    Add {
        /// Volume
        volume: String,
        /// nbd:unix:/path or nbd:tcp:host:port
        export: String,
        /// Refuse changes
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Listen no more; clients finish what is in flight and are disconnected
    Remove {
        /// Volume
        volume: String,
        /// As it was added
        export: String,
        #[command(flatten)]
        common: Common,
    },
}

/// Options of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Volume [default: the worst of all]
    volume: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Asks, and shows the answer.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn ask(verb: &EngineVerb) -> anyhow::Result<()> {
    match verb {
        EngineVerb::List(common) => common.show("list", json!({}), list),
        EngineVerb::ListSubsys(common) => common.show("list-subsys", json!({}), list_subsys),
        EngineVerb::Stat(args) => stat(args),
        EngineVerb::Policy { verb } => policy(verb),
        EngineVerb::Knob { verb } => knob(verb),
        EngineVerb::Path(args) => {
            let verbs = ["add", "remove", "fail", "restore"];
            if !verbs.contains(&args.verb.as_str()) {
                let text = format!("\"{}\" is none of {}", args.verb, verbs.join(", "));
                return Err(Usage::error(text));
            }
            let params = json!({"verb": args.verb, "volume": args.volume, "uri": args.uri});
            args.common.show("path", params, |_, _| Ok(()))
        }
        EngineVerb::Export { verb } => export(verb),
        EngineVerb::Check(args) => check(args),
    }
}

impl Common {
    fn call(&self, method: &str, params: Value) -> anyhow::Result<Value> {
        let mut stream = socket::connect(socket::RUN, self.socket.as_deref())?;
        rpc::call(&mut stream, method, params, ANSWER_WAIT)
    }

    fn show(
        &self,
        method: &str,
        params: Value,
        show: impl FnOnce(&mut String, &Value) -> std::fmt::Result,
    ) -> anyhow::Result<()> {
        let value = self.call(method, params)?;
        self.print(&value, show)
    }

    fn print(
        &self,
        value: &Value,
        show: impl FnOnce(&mut String, &Value) -> std::fmt::Result,
    ) -> anyhow::Result<()> {
        if self.output == Format::Json {
            return output::print_json(value);
        }
        let mut text = String::new();
        show(&mut text, value)?;
        output::print(&text)
    }
}

fn stat(args: &StatArgs) -> anyhow::Result<()> {
    loop {
        args.common.show("stat", json!({}), super::stat::show)?;
        match args.interval {
            Some(seconds) => std::thread::sleep(Duration::from_secs(seconds)),
            None => return Ok(()),
        }
    }
}

fn policy(verb: &PolicyVerb) -> anyhow::Result<()> {
    let (params, common) = match verb {
        PolicyVerb::Show { volume, common } => (json!({"volume": volume}), common),
        PolicyVerb::Set {
            volume,
            policy,
            common,
        } => {
            // Checked here, so that a wrong word is a usage error whether or not an engine runs.
            let parsed = policy::Policy::parse(policy);
            parsed.map_err(|error| Usage::error(format!("\"{policy}\": {error}")))?;
            (json!({"volume": volume, "policy": policy}), common)
        }
    };
    common.show("policy", params, |text, value| {
        writeln!(
            text,
            "{}: {}",
            word(&value["volume"]),
            word(&value["policy"])
        )
    })
}

fn knob(verb: &KnobVerb) -> anyhow::Result<()> {
    let (params, common) = match verb {
        KnobVerb::Show { volume, common } => (json!({"volume": volume}), common),
        KnobVerb::Set {
            volume,
            name,
            value,
            common,
        } => (
            json!({"volume": volume, "name": name, "value": value}),
            common,
        ),
    };
    common.show("knob", params, |text, value| {
        let timeout = format_ns(number(&value["weight_timeout_ns"]) as f64);
        let shift = &value["ewma_shift"];
        writeln!(
            text,
            "{}: ewma_shift {shift}, weight_timeout {timeout}",
            word(&value["volume"])
        )
    })
}

fn export(verb: &ExportVerb) -> anyhow::Result<()> {
    match verb {
        ExportVerb::Add {
            volume,
            export,
            read_only,
            common,
        } => {
            let params = json!({"volume": volume, "export": export, "read_only": read_only});
            common.show("export.add", params, |text, value| {
                writeln!(text, "{}: {}", word(&value["volume"]), word(&value["uri"]))
            })
        }
        ExportVerb::Remove {
            volume,
            export,
            common,
        } => {
            let params = json!({"volume": volume, "export": export});
            common.show("export.remove", params, |text, value| {
                let (volume, export) = (word(&value["volume"]), word(&value["export"]));
                writeln!(text, "{volume}: {export} removed")
            })
        }
    }
}

fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let value = match args.common.call("check", json!({"volume": args.volume})) {
        Ok(value) => value,
        Err(error) => {
            output::note(&format!("{error:#}"));
            return Err(Exit(UNKNOWN).into());
        }
    };
    args.common.print(&value, |text, value| {
        for volume in items(&value["volumes"]) {
            writeln!(
                text,
                "{}: {}",
                word(&volume["name"]),
                word(&volume["state"])
            )?;
        }
        Ok(())
    })?;
    match number(&value["code"]) as u8 {
        0 => Ok(()),
        code => Err(Exit(code).into()),
    }
}

fn list(text: &mut String, value: &Value) -> std::fmt::Result {
    let headings = ["volume", "state", "policy", "export", "size", "paths"];
    let mut table = Table::new(4, &headings);
    for volume in items(&value["volumes"]) {
        let size = match volume["bytes"].as_u64() {
            Some(bytes) => format_bytes(bytes),
            None => "-".into(),
        };
        let mut exports = items(&volume["exports"]).map(|export| word(&export["uri"]).to_owned());
        let first = exports.next().unwrap_or_else(|| "-".into());
        let words = [&volume["name"], &volume["state"], &volume["policy"]];
        let mut row: Vec<String> = words.map(|value| word(value).to_owned()).into();
        row.extend([first, size, volume["paths"].to_string()]);
        table.row(row);
        for more in exports {
            table.row(vec![String::new(), String::new(), String::new(), more]);
        }
    }
    text.push_str(&table.render(Style::of_stdout(), |_| String::new()));
    Ok(())
}

fn list_subsys(text: &mut String, value: &Value) -> std::fmt::Result {
    if items(value).all(|host| items(&host["Subsystems"]).next().is_none()) {
        output::note("no path is NVMe/TCP; `braid stat` shows all paths");
    }
    for subsystem in items(value).flat_map(|host| items(&host["Subsystems"])) {
        let policy = word(&subsystem["IOPolicy"]);
        let (name, nqn) = (word(&subsystem["Name"]), word(&subsystem["NQN"]));
        writeln!(text, "{name} - NQN={nqn}\n  iopolicy={policy}")?;
        for path in items(&subsystem["Paths"]) {
            let words = ["Name", "Transport", "Address", "State", "ANAState"];
            let words: Vec<&str> = words.iter().map(|key| word(&path[*key])).collect();
            writeln!(text, "  +- {}", words.join(" ").trim_end())?;
        }
    }
    Ok(())
}

pub(super) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(super) fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(super) fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
