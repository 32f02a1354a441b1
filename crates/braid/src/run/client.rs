//! The verbs that ask a running engine.
use super::address::NbdAddress;
use super::admission::Rule;
use super::call::{
    AcceptParams, CancelParams, DiffParams, EngineCall, ForgetParams, KnobParams, PathParams,
    PolicyParams, ProgramParams, ReloadParams,
};
use super::explain::ExplainArgs;
use super::exports::ExportParams;
use super::health::maintenance;
use super::health::verb::{self, MaintenanceVerb};
use super::ublk::attached::{AttachParams, DetachParams};
use super::{live, stat};
use crate::cli::Usage;
use crate::control::access::{Mode, Name};
use crate::control::call::{Call, Nothing};
use crate::control::limits::ANSWER_WAIT;
use crate::control::{rpc, socket};
use crate::output::{self, Format, Style};
use crate::table::Table;
use crate::units::{format_bytes, format_ns, format_utc, parse_seconds};
use crate::uri::names;
use anyhow::Context;
use clap::{Args, Subcommand};
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use terminal::answer::{self, items, number, word};

/// How long a change of paths is waited for: each of those that a reload makes may take a minute.
const CHANGE_WAIT: Duration = Duration::from_secs(600);
/// Exit code of `check` where nobody can say.
pub const UNKNOWN: u8 = 3;

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
    /// Show changes of state of volumes, paths, legs and clients, and the verbs that changed
    /// something: the last thousand, a JSON line each with -o json
    Events(super::events::show::EventsArgs),
    /// Show what volumes, paths or legs, and clients do, again and again, on a whole terminal
    Top(super::top::TopArgs),
    /// Show why the next I/Os of a volume go where they go: what its policy sees of each path, what
    /// it takes and why, and what comes true
    Explain(ExplainArgs),
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
    /// Add, remove, fail, drain or restore a path of a volume; it survives a restart
    Path {
        #[command(subcommand)]
        verb: PathVerb,
    },
    /// Add a way to a subsystem to the volumes that have it; it survives a restart
    Connect(super::connect::ConnectArgs),
    /// Add all ways that a discovery controller tells of to the volumes that have their subsystems;
    /// they survive a restart
    #[command(name = "connect-all")]
    ConnectAll(super::connect::ConnectAllArgs),
    /// Keep `check` at ok, with a note, for a path, leg or volume that is worked on; it changes
    /// nothing about how it serves
    Maintenance {
        #[command(subcommand)]
        verb: MaintenanceVerb,
    },
    /// Read the configuration again: all of the difference, or nothing
    Reload {
        /// Also remove volumes that have clients: these are told, and disconnected
        #[arg(long)]
        force: bool,
        /// Change nothing, and show what would change, in its order
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Show what differs from the configuration file by verb, and since when
    Diff {
        /// Volume [default: all]
        volume: Option<String>,
        #[command(flatten)]
        common: Common,
    },
    /// Make a volume what its configuration says again, in all that was set by verb or in one thing
    Forget {
        /// Volume
        volume: String,
        /// policy, paths, or a knob or key as `braid diff` shows it; of a mirror policy, speed or
        /// legs [default: all]
        what: Option<String>,
        /// Also remove the last usable path, and one with unflushed writes
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Show changes that go on after their verbs gave up waiting
    Pending {
        /// Cancel one, by its number: the path, leg or setting is what it was before
        #[arg(long, value_name = "NUMBER")]
        cancel: Option<u64>,
        #[command(flatten)]
        common: Common,
    },
    /// Add or remove an export of a volume
    Export {
        #[command(subcommand)]
        verb: ExportVerb,
    },
    /// Make a volume a block device of this machine's kernel, and print it: until it is detached,
    /// or the engine stops while nothing uses it
    Attach {
        /// Volume
        volume: String,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Remove the block device of a volume that was attached, or one that waits for data that no
    /// volume has any more
    Detach {
        /// Volume, or /dev/ublkbN
        volume: String,
        /// Also while it is used: what is not written yet is lost
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Take the namespace that a volume's paths lead to now as its own: it is another one than
    /// before, and was not opened
    Accept {
        /// Volume
        volume: String,
        #[command(flatten)]
        common: Common,
    },
    /// Say how well a volume is, and why; exit codes as of a Nagios plugin: 0 ok (all paths are
    /// usable and as usual), 1 degraded (warning), 2 down (critical: no path is usable), 3 unknown
    Check(super::check::CheckArgs),
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
    pub(super) output: Format,
}

/// Options of `stat`.
#[derive(Clone, Debug, Args)]
pub struct StatArgs {
    /// Volumes, each with the legs of a mirror [default: all]
    #[arg(value_name = "VOLUME")]
    volumes: Vec<String>,
    /// Again and again: what happened in each interval, as 1s or 500ms, and per second. Without,
    /// what happened since the engine started
    #[arg(short, long, value_name = "TIME", value_parser = interval)]
    interval: Option<u64>,
    /// So many intervals, of 1s unless --interval says otherwise [default: without end]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: Option<u32>,
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
        #[arg(help = policy::Policy::NAMES)]
        policy: String,
        #[command(flatten)]
        common: Common,
    },
    /// Load a program, a WebAssembly module that chooses; it survives a restart
    Load {
        /// Volume, over paths
        volume: String,
        /// Its file, which is copied
        file: PathBuf,
        /// It may import the calls of WASI that Go needs; they do nothing
        #[arg(long)]
        wasi: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Take the program away; the policy is again that of the file
    Unload {
        /// Volume
        volume: String,
        #[command(flatten)]
        common: Common,
    },
    /// List the programs of all volumes
    List {
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
        /// ewma_shift, weight_timeout, hedge, ctrl_loss_tmo, fast_io_fail_tmo or another of `show`
        name: String,
        /// Value
        value: String,
        #[command(flatten)]
        common: Common,
    },
}

/// `path add|remove|fail|restore|drain`.
#[derive(Clone, Debug, Subcommand)]
pub enum PathVerb {
    /// Connect it; it is used once every core has it, or refused
    Add(PathArgs),
    /// Let its I/O end, flush and disconnect it; if its I/O doesn't end, it is used again
    Remove {
        /// Also the last usable path, and one with unflushed writes; fail it if its I/O doesn't end
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        path: PathArgs,
    },
    /// Give it up at once, as if its connection was lost, until it is restored
    Fail {
        /// Also the last usable path
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        path: PathArgs,
    },
    /// Use one again that was failed or drained
    Restore(PathArgs),
    /// Give it nothing new until it is restored; it stays connected
    Drain {
        /// Also the last usable path
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        path: PathArgs,
    },
}

/// A path.
#[derive(Clone, Debug, Args)]
pub struct PathArgs {
    /// Volume
    volume: String,
    /// Path URI; of one that is there, also its name or number as `braid stat` shows them
    path: String,
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
        /// unix:/path or tcp:host:port, as in the configuration; with or without nbd: in front
        #[arg(value_parser = checked::<NbdAddress>)]
        export: String,
        /// Refuse changes
        #[arg(long)]
        read_only: bool,
        /// User whose Unix socket it is [default: who started the engine]
        #[arg(long, value_name = "USER")]
        owner: Option<Name>,
        /// Group whose Unix socket it is [default: that of who started the engine]
        #[arg(long, value_name = "GROUP")]
        group: Option<Name>,
        /// Access to the Unix socket, octal: 0660 lets the group connect [default: 0600]
        #[arg(long, value_name = "MODE")]
        mode: Option<Mode>,
        /// Clients that may connect: address=ADDRESS[/PREFIX], address=any, uid=USER or uid=any,
        /// with ,read-only behind for those that may not write; several times [default: all]
        #[arg(long, value_name = "RULE")]
        allow: Vec<Rule>,
        /// Any client of another machine may connect
        #[arg(long)]
        open: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Listen no more; clients finish what is in flight and are disconnected
    Remove {
        /// Volume
        volume: String,
        /// As it was added, or as `braid list` shows it
        export: String,
        #[command(flatten)]
        common: Common,
    },
}

/// Asks, and shows the answer.
///
/// # Errors
/// No engine that answers, or what it says.
pub fn ask(verb: &EngineVerb) -> anyhow::Result<()> {
    match verb {
        EngineVerb::List(common) => common.show(&EngineCall::List(Nothing), |text, value| {
            list(text, value, Style::of_stdout())
        }),
        EngineVerb::ListSubsys(common) => {
            common.show(&EngineCall::ListSubsys(Nothing), list_subsys)
        }
        EngineVerb::Stat(args) => stat(args),
        EngineVerb::Events(args) => super::events::show::show(args),
        EngineVerb::Top(args) => super::top::run(args),
        EngineVerb::Explain(args) => super::explain::ask(args),
        EngineVerb::Policy { verb } => policy(verb),
        EngineVerb::Knob { verb } => knob(verb),
        EngineVerb::Path { verb } => path(verb),
        EngineVerb::Maintenance { verb } => verb::ask(verb),
        EngineVerb::Connect(args) => super::connect::ask(args),
        EngineVerb::ConnectAll(args) => super::connect::ask_all(args),
        EngineVerb::Reload {
            force,
            dry_run,
            common,
        } => {
            let value = common.call(&EngineCall::Reload(ReloadParams {
                force: *force,
                dry_run: *dry_run,
            }))?;
            common.print(&value, |text, value| match dry_run {
                false => writeln!(text, "{}", word(&value["changed"])),
                true if items(&value["plan"]).next().is_none() => writeln!(text, "no difference"),
                true => items(&value["plan"]).try_for_each(|it| writeln!(text, "{}", word(it))),
            })
        }
        EngineVerb::Diff { volume, common } => {
            let volume = volume.clone();
            common.show(&EngineCall::Diff(DiffParams { volume }), diff)
        }
        EngineVerb::Forget {
            volume,
            what,
            force,
            common,
        } => {
            let value = common.call(&EngineCall::Forget(ForgetParams {
                volume: volume.clone(),
                what: what.clone(),
                force: *force,
            }))?;
            common.print(&value, |text, value| {
                if items(&value["changed"]).next().is_none() {
                    writeln!(text, "{}: no difference", word(&value["volume"]))?;
                }
                items(&value["changed"]).try_for_each(|it| writeln!(text, "{}", word(it)))
            })
        }
        EngineVerb::Pending {
            cancel: None,
            common,
        } => common.show(&EngineCall::Pending(Nothing), pending),
        EngineVerb::Pending {
            cancel: Some(id),
            common,
        } => {
            let call = EngineCall::PendingCancel(CancelParams { id: *id });
            let value = common.call(&call)?;
            common.print(&value, |text, value| {
                writeln!(text, "cancelled: {}", word(&value["cancelled"]))
            })
        }
        EngineVerb::Export { verb } => export(verb),
        EngineVerb::Attach {
            volume,
            read_only,
            common,
        } => {
            let call = EngineCall::Attach(AttachParams {
                volume: volume.clone(),
                read_only: *read_only,
            });
            common.show(&call, |text, value| {
                writeln!(text, "{}", word(&value["node"]))
            })
        }
        EngineVerb::Detach {
            volume,
            force,
            common,
        } => {
            let call = EngineCall::Detach(DetachParams {
                volume: volume.clone(),
                force: *force,
            });
            common.show(&call, |text, value| {
                writeln!(text, "{} removed", word(&value["node"]))
            })
        }
        EngineVerb::Accept { volume, common } => {
            let volume = volume.clone();
            // A mirror starts meanwhile.
            let value = common.call(&EngineCall::Accept(AcceptParams { volume }))?;
            common.print(&value, |text, value| {
                writeln!(text, "{}: accepted", word(&value["volume"]))
            })
        }
        EngineVerb::Check(args) => super::check::check(args),
    }
}

impl Common {
    /// Asks the engine, as long as such a call may take.
    pub fn call(&self, call: &EngineCall) -> anyhow::Result<Value> {
        let wait = if call.is_long() {
            CHANGE_WAIT
        } else {
            ANSWER_WAIT
        };
        self.call_within(call, wait)
    }

    pub(super) fn call_within(&self, call: &EngineCall, wait: Duration) -> anyhow::Result<Value> {
        let mut stream = socket::connect(socket::RUN, self.socket.as_deref())?;
        rpc::call(&mut stream, call, wait)
    }

    pub fn show(
        &self,
        call: &EngineCall,
        show: impl FnOnce(&mut String, &Value) -> std::fmt::Result,
    ) -> anyhow::Result<()> {
        let value = self.call(call)?;
        self.print(&value, show)
    }

    pub fn print(
        &self,
        value: &Value,
        show: impl FnOnce(&mut String, &Value) -> std::fmt::Result,
    ) -> anyhow::Result<()> {
        answer::print(self.output, value, show)
    }
}

/// An interval: shorter ones would measure little but the asking.
pub(super) fn interval(text: &str) -> Result<u64, String> {
    let ns = parse_seconds(text).map_err(|error| error.to_string())?;
    match (100_000_000..=86_400_000_000_000).contains(&ns) {
        true => Ok(ns),
        false => Err("it must be 100ms to 24h".into()),
    }
}

fn stat(args: &StatArgs) -> anyhow::Result<()> {
    let ask = || -> anyhow::Result<Value> {
        let mut value = args.common.call(&EngineCall::Stat(Nothing))?;
        if !args.volumes.is_empty() {
            super::stat::keep_only(&mut value, &args.volumes).map_err(Usage::error)?;
        }
        Ok(value)
    };
    let show = |value: &Value| {
        let style = Style::of_stdout();
        let show = |text: &mut String, value: &Value| super::stat::show(text, value, style);
        args.common.print(value, show)
    };
    let mut before = ask()?;
    let interval_ns = match (args.interval, args.count) {
        (None, None) => return show(&before),
        (interval_ns, _) => interval_ns.unwrap_or(1_000_000_000),
    };
    for number in 0_u32.. {
        if args.count.is_some_and(|count| number >= count) {
            break;
        }
        std::thread::sleep(Duration::from_nanos(interval_ns));
        let now = ask()?;
        let mut shown = now.clone();
        super::stat::rates::subtract(&mut shown, &before);
        show(&shown)?;
        before = now;
    }
    Ok(())
}

fn policy(verb: &PolicyVerb) -> anyhow::Result<()> {
    let (volume, policy, common) = match verb {
        PolicyVerb::Show { volume, common } => (volume, None, common),
        PolicyVerb::Set {
            volume,
            policy,
            common,
        } => {
            if let Some(file) = policy.strip_prefix("program:") {
                return load_program(volume, Path::new(file), false, common);
            }
            // Checked here, so that a wrong word is a usage error whether or not an engine runs.
            let names_path = policy.strip_prefix("devid:").is_some_and(names::is_name);
            let parsed = match names_path {
                true => Ok(policy::Policy::QueueDepth), // the engine knows whether there is one
                false => policy::Policy::parse(policy),
            };
            parsed.map_err(|error| Usage::error(format!("\"{policy}\": {error}")))?;
            (volume, Some(policy.clone()), common)
        }
        PolicyVerb::Load {
            volume,
            file,
            wasi,
            common,
        } => return load_program(volume, file, *wasi, common),
        PolicyVerb::Unload { volume, common } => {
            let (volume, policy) = (volume.clone(), None);
            let call = EngineCall::PolicyUnload(PolicyParams { volume, policy });
            return common.show(&call, |text, value| {
                let (volume, policy) = (word(&value["volume"]), word(&value["policy"]));
                writeln!(text, "{volume}: {policy}")
            });
        }
        PolicyVerb::List { common } => {
            return common.show(&EngineCall::PolicyList(Nothing), |text, value| {
                if items(&value["programs"]).next().is_none() {
                    return writeln!(text, "no volume has a program");
                }
                items(&value["programs"]).try_for_each(|it| {
                    let (volume, program) = (word(&it["volume"]), word(&it["program"]));
                    let how = stat::program(it).unwrap_or_default();
                    writeln!(text, "{volume}: {program}, {how}")
                })
            });
        }
    };
    let volume = volume.clone();
    let call = EngineCall::Policy(PolicyParams { volume, policy });
    common.show(&call, |text, value| {
        if let Some(why) = value["why"].as_str() {
            return writeln!(text, "{}: {why}", word(&value["volume"]));
        }
        let shown = word(&value["policy"]);
        let values = values_of(value);
        let program = policy::ProgramId::parse(shown).map(policy::Policy::Program);
        let all = match (policy::Policy::parse(shown), program) {
            (Ok(active), _) => all_policies(&values, active),
            (_, Ok(program)) => format!("{} [{program}]", all_policies(&values, program)),
            _ => shown.to_owned(),
        };
        writeln!(text, "{}: {all}", word(&value["volume"]))
    })
}

fn load_program(volume: &str, file: &Path, wasi: bool, common: &Common) -> anyhow::Result<()> {
    if file.as_os_str().is_empty() {
        return Err(Usage::error("a program needs the name of its file"));
    }
    // The engine has another working directory.
    let absolute = std::path::absolute(file);
    let absolute = absolute.with_context(|| file.display().to_string())?;
    let Some(file) = absolute.to_str() else {
        return Err(Usage::error(format!("{}: not UTF-8", absolute.display())));
    };
    let call = EngineCall::PolicyLoad(ProgramParams {
        volume: volume.to_owned(),
        file: file.to_owned(),
        wasi,
    });
    common.show(&call, |text, value| {
        let (volume, program) = (word(&value["volume"]), &value["program"]);
        let how = stat::program(program).unwrap_or_default();
        writeln!(text, "{volume}: {}, {how}", word(&program["program"]))
    })
}

/// The values of all policies, as an answer has them.
pub(super) fn values_of(answer: &Value) -> policy::Values {
    let mut values = policy::Values::default();
    // An older engine has only the policy in force.
    let kept = items(&answer["policies"]).chain(Some(&answer["policy"]));
    let kept = kept.filter_map(|it| policy::Policy::parse(word(it)).ok());
    kept.for_each(|it| values.note(it));
    values
}

/// All policies with their values on one line, the active one in brackets (row B5).
pub(super) fn all_policies(values: &policy::Values, active: policy::Policy) -> String {
    let bracketed = |one: policy::Policy| match one == active {
        true => format!("[{one}]"),
        false => one.to_string(),
    };
    values.iter().map(bracketed).collect::<Vec<_>>().join(" ")
}

fn knob(verb: &KnobVerb) -> anyhow::Result<()> {
    let (volume, name, value, common) = match verb {
        KnobVerb::Show { volume, common } => (volume, None, None, common),
        KnobVerb::Set {
            volume,
            name,
            value,
            common,
        } => {
            // Checked here, so that a wrong word is a usage error whether or not an engine runs.
            let checked = live::check(name, value);
            checked.map_err(Usage::error)?;
            (volume, Some(name.clone()), Some(value.clone()), common)
        }
    };
    let volume = volume.clone();
    let call = EngineCall::Knob(KnobParams {
        volume,
        name,
        value,
    });
    common.show(&call, |text, value| {
        let timeout = format_ns(number(&value["weight_timeout_ns"]) as f64);
        let shift = &value["ewma_shift"];
        writeln!(
            text,
            "{}: ewma_shift {shift}, weight_timeout {timeout}, hedge {}",
            word(&value["volume"]),
            hedge(value)
        )?;
        super::stat::paragraph_at(text, "    ", &live::words(value).join(", "))
    })
}

/// The wish, and whether it has an effect.
pub(super) fn hedge(value: &Value) -> String {
    let wish = word(&value["hedge"]);
    match (wish, value["hedging"].as_bool()) {
        ("auto", Some(true)) => "auto (on)".to_owned(),
        ("auto", _) => "auto (off: the policy does not predict)".to_owned(),
        ("on", Some(false)) => "on (without effect: the policy does not predict)".to_owned(),
        _ => wish.to_owned(),
    }
}

fn path(verb: &PathVerb) -> anyhow::Result<()> {
    type Ask = fn(PathParams) -> EngineCall;
    let (ask, args, force): (Ask, _, _) = match verb {
        PathVerb::Add(args) => {
            // Checked here, so that a wrong word is a usage error whether or not an engine runs.
            let parsed = args.path.parse::<crate::uri::PathUri>();
            parsed.map_err(|error| Usage::error(format!("\"{}\": {error}", args.path)))?;
            (EngineCall::PathAdd, args, false)
        }
        PathVerb::Remove { force, path } => (EngineCall::PathRemove, path, *force),
        PathVerb::Fail { force, path } => (EngineCall::PathFail, path, *force),
        PathVerb::Restore(args) => (EngineCall::PathRestore, args, false),
        PathVerb::Drain { force, path } => (EngineCall::PathDrain, path, *force),
    };
    let value = args.common.call(&ask(PathParams {
        volume: args.volume.clone(),
        path: args.path.clone(),
        force,
    }))?;
    args.common.print(&value, |text, value| {
        let (volume, uri) = (word(&value["volume"]), word(&value["uri"]));
        writeln!(text, "{volume}: path {uri} {}", word(&value["state"]))?;
        match value["warning"].as_str() {
            Some(warning) => writeln!(text, "{warning}"),
            None => Ok(()),
        }
    })
}

/// Since when, for people.
fn since(value: &Value) -> String {
    let since = value["since_s"].as_u64();
    since.map_or(String::new(), |it| format!(", since {}", format_utc(it)))
}

fn diff(text: &mut String, value: &Value) -> std::fmt::Result {
    if items(&value["differences"]).next().is_none() {
        return writeln!(text, "no difference");
    }
    items(&value["differences"]).try_for_each(|it| {
        let (volume, what, now) = (word(&it["volume"]), word(&it["what"]), word(&it["now"]));
        let (file, since) = (word(&it["file"]), since(it));
        writeln!(text, "{volume}: {what} {now} (file: {file}){since}")
    })
}

fn pending(text: &mut String, value: &Value) -> std::fmt::Result {
    if items(&value["pending"]).next().is_none() {
        return writeln!(text, "nothing is pending");
    }
    items(&value["pending"]).try_for_each(|it| {
        let id = it["id"]
            .as_u64()
            .map_or("-".to_owned(), |id| id.to_string());
        let (change, state) = (word(&it["change"]), word(&it["state"]));
        writeln!(text, "{id}  {change}: {state}{}", since(it))
    })
}

fn export(verb: &ExportVerb) -> anyhow::Result<()> {
    match verb {
        ExportVerb::Add {
            volume,
            export,
            read_only,
            owner,
            group,
            mode,
            allow,
            open,
            common,
        } => {
            let call = EngineCall::ExportAdd(ExportParams {
                volume: volume.clone(),
                export: export.clone(),
                read_only: *read_only,
                owner: owner.clone(),
                group: group.clone(),
                mode: *mode,
                allow: allow.clone(),
                open: *open,
            });
            common.show(&call, |text, value| {
                let volume = word(&value["volume"]);
                match value["uri"].as_str() {
                    Some(uri) => writeln!(text, "{volume}: {uri}"),
                    None => writeln!(text, "{volume}: {export}, when it is started again"),
                }
            })
        }
        ExportVerb::Remove {
            volume,
            export,
            common,
        } => {
            let call = EngineCall::ExportRemove(ExportParams {
                volume: volume.clone(),
                export: export.clone(),
                ..ExportParams::default()
            });
            common.show(&call, |text, value| {
                let (volume, export) = (word(&value["volume"]), word(&value["export"]));
                writeln!(text, "{volume}: {export} removed")
            })
        }
    }
}

/// A text that the engine would take: a wrong one is a usage error whether or not an engine runs.
pub fn checked<T: FromStr>(text: &str) -> Result<String, T::Err> {
    text.parse::<T>().map(|_| text.to_owned())
}

fn list(text: &mut String, value: &Value, style: Style) -> std::fmt::Result {
    let headings = ["volume", "state", "policy", "export", "size", "paths"];
    let mut table = Table::new(4, &headings);
    let mut states = vec![String::new()];
    for volume in items(&value["volumes"]) {
        states.push(word(&volume["state"]).to_owned());
        let size = match volume["bytes"].as_u64() {
            Some(bytes) => format_bytes(bytes),
            None => "-".into(),
        };
        let mut exports = items(&volume["exports"]).map(|export| word(&export["uri"]).to_owned());
        let first = exports.next().unwrap_or_else(|| "-".into());
        let words = [&volume["name"], &volume["state"], &volume["policy"]];
        let shown = |value: &Value| value.as_str().unwrap_or("-").to_owned();
        let mut row: Vec<String> = words.map(shown).into();
        row[1].extend(maintenance::but_for(volume).map(|it| format!(" ({it})")));
        let ways = match number(&volume["legs"]) {
            0 => volume["paths"].to_string(),
            legs => format!("{legs} legs"),
        };
        row.extend([first, size, ways]);
        table.row(row);
        for more in exports {
            table.row(vec![String::new(), String::new(), String::new(), more]);
            states.push(String::new());
        }
    }
    // Behind the name, which has no spaces.
    let lines = table.render(style, |_| String::new());
    for (line, state) in lines.lines().zip(&states) {
        let painted = format!("  {}", super::stat::painted(style, state));
        writeln!(
            text,
            "{}",
            line.replacen(&format!("  {state}"), &painted, 1)
        )?;
    }
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
            let words = words.iter().map(|key| word(&path[*key]).to_owned());
            let throughput = super::stat::throughput(&path["Throughput"]);
            let words = words.filter(|word| !word.is_empty()).chain(throughput);
            writeln!(text, "  +- {}", words.collect::<Vec<_>>().join(" "))?;
        }
    }
    Ok(())
}
