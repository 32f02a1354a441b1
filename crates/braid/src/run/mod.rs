//! `braid run`: volumes attached and exported; and the verbs that speak to it.
//!
//! * [`config`]: what it is to be; [`address`]: where clients connect; [`admission`]: which may;
//!   [`seats`]: which core they go to; [`metrics`]: for Prometheus
//! * [`cores`]: its cores; the crate `cores` has the machine of each
//! * [`live`]: keys that change while it runs; [`notes`]: lines about volumes
//! * [`choices`]: what survives a restart; [`marks`]: what survives a death; [`known`]: which
//!   namespace each volume had; [`registry`]: which engines run; [`marked`]: the thread that writes
//!   them; [`records`] and [`state`]: their files; [`older`]: those of older versions
//! * [`call`]: what can be asked of it; [`service`]: who answers; [`report`]: the answers;
//!   [`reload`]: another configuration; [`desired`]: what it is to be; [`plan`]: which changes that
//!   takes; [`reconcile`]: carries them out; [`pending`]: asks the engine, and takes back;
//!   [`rename`]: volumes that have other names in it
//! * [`client`]: the verbs that ask; [`check`] and [`stat`]: what these show; [`explain`]: why a
//!   path; [`ready`]: what is told of volumes that are not up yet; [`mod@events`]: changes of state
//!
//! * [`health`]: alarms about paths that work, and maintenance
//! * [`mod@mirrors`]: volumes over legs
//! * [`names`]: hosts that are looked up; [`late`]: files that were not there at the start
//! * [`volumes`]: which volumes there are; [`turnover`]: they come and go while it runs, as do
//!   [`paths`] ([`entries`]), [`exports`], [`nvme_exports`], [`queues`], and what paths
//!   lead to: [`ends`]
//! * [`mod@discovery`]: paths that come and go by themselves; [`connect`]: by a verb
mod address;
mod admission;
pub mod call;
mod check;
mod choices;
pub mod client;
mod config;
mod connect;
mod control_file;
mod cores;
mod desired;
mod discovery;
mod ends;
mod entries;
mod events;
mod explain;
mod exports;
mod forget;
mod health;
mod known;
mod late;
mod latency;
mod limited;
mod live;
mod locks;
mod marked;
mod marks;
mod metrics;
mod mirrors;
mod names;
mod notes;
mod nvme_exports;
mod older;
mod paths;
mod pending;
mod placement;
mod plan;
mod programs;
mod queues;
mod reach;
mod ready;
mod reconcile;
mod records;
mod registry;
mod reload;
mod rename;
mod report;
mod seats;
mod service;
mod stat;
mod state;
mod top;
mod turnover;
mod ublk;
mod volumes;

pub use address::NbdAddress;
pub use client::{EngineVerb, UNKNOWN, ask};
pub use config::is_name;
pub use stat::{held, last_check};
pub use ublk::helper::{HelperArgs, run as help};

use crate::advice;
use crate::cli::Usage;
use crate::control::server::Caller;
use crate::control::socket;
use crate::identity::{self, IdentityArgs};
use crate::log;
use crate::output;
use crate::service_manager;
use crate::units::format_bytes;
use ::cores::RunEvent;
use anyhow::Context;
use choices::Choices;
use clap::Args;
use config::Config;
use control_file::ControlFile;
use cores::Cores;
use desired::Desired;
use events::hook::Hook;
use events::watch::Watch;
use events::{Event, Kind};
use health::maintenance::Maintenance;
use known::Known;
use marked::Keeper;
use marks::Marks;
use registry::{Refused, Registry};
use service::{Kept, Service, Start, say_ready};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc;
use tracing::Level;

/// Attach volumes and export them, in the foreground, until SIGTERM
///
/// Uses one thread for each CPU that it may run on, 4 at most; `cores` in the file says otherwise.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// Configuration file; read again at SIGHUP
    #[arg(short, long, value_name = "FILE")]
    config: PathBuf,
    /// Control socket [default: /run/braid/braid.sock for root, else
    /// $XDG_RUNTIME_DIR/braid/braid.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// This volume's paths lead to another namespace than before, or this mirror's legs are of one
    /// with another name, as they should
    #[arg(long, value_name = "NAME")]
    accept: Vec<String>,
    #[command(flatten)]
    log: log::LogArgs,
    /// Check the file, show which volumes and exports it has, and open nothing
    #[arg(long)]
    check: bool,
}

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// Whatever of the configuration can't be had.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut config = Config::read(&args.config)?;
    if args.check {
        let mut lines = reload::start_in_words(&config);
        lines.extend(renamed_in_words(args, &config)?);
        return output::print(&lines.iter().map(|it| format!("{it}\n")).collect::<String>());
    }
    args.log.apply(config.log_level);
    sys::os::set_keep_alive_of_opened(config.tcp_keep_alive());
    let path = args.socket.clone().or(config.socket.clone());
    let path = socket::listening_path(path, socket::RUN);
    let mut socket = ControlFile::bind(&path, config.access())?;
    let identity = identity::identity(&IdentityArgs {
        hostnqn: config.hostnqn.clone(),
        hostid: config.hostid.map(|id| uuid::Uuid::from_bytes(id.0)),
    })?;
    for name in &args.accept {
        if config.volume(name).is_none() {
            return Err(Usage::error(format!(
                "--accept {name}: the configuration has no such volume"
            )));
        }
    }
    let directory = identity::state_directory()?;
    let mut registry = Registry::new(directory, state_id(&path)?, &path);
    // Before what it left is read: it may be running.
    let recorded = registry.enter(config.volumes.iter());
    if let Err(Refused::Rival(why)) = recorded {
        anyhow::bail!(why);
    }
    older::convert(&registry, &config.volumes)?;
    let mut known = Known::new(&registry, &args.accept);
    known.adopt(&registry, &config.volumes)?;
    let mut choices = Choices::new(&registry);
    choices.adopt(&registry, &config)?;
    let configured = config.clone();
    let mut desired = Desired::at_start(&configured, &choices);
    desired.give_to(&mut config);
    choices.forget_others(&configured);
    let restored = forget::restored(&choices, &configured);
    let mut marks = Marks::new(&registry);
    marks.adopt(&registry, &config.volumes.iter().collect::<Vec<_>>())?;
    say_start(&config, &marks, restored, registry.directory());
    for volume in &mut desired.volumes {
        discovery::remember(&marks, volume);
    }
    desired.give_to(&mut config);
    let (told, events) = mpsc::channel();
    // Signals first: one that comes while paths are opened must not be lost.
    listen_for_signals(told.clone())?;
    let before = |volume: &config::Volume| marks.before(volume);
    nvme_exports::check(&config)?;
    let host_ports = nvme_exports::bind_all(&config)?;
    let queue_sockets = queues::bind(&config, &[])?;
    ublk::prepare(&config)?;
    let mut cores = Cores::start(&config, &identity, before, &known, &told)?;
    let start = Start {
        configured,
        desired,
        known: std::mem::take(&mut cores.known),
        absent: std::mem::take(&mut cores.absent),
        storages: std::mem::take(&mut cores.storages),
        file: args.config.clone(),
        log: args.log,
    };
    let kept = Kept {
        maintenance: Maintenance::read(&registry)?,
        choices,
        marks,
        known,
        registry,
    };
    let service = Arc::new(Service::new(start, identity, kept, cores.senders()));
    let keeper = Keeper::start(&service)?;
    service.watch_programs()?;
    watch(&service, &config)?;
    service.put_aside();
    service.refuse_early_clients();
    service.accept_names(&args.accept);
    service.look_for_late();
    let exported = service.export_configured();
    let exported = exported.and_then(|()| service.serve_configured(host_ports, queue_sockets));
    let exported = exported.and_then(|()| service.serve_nodes());
    let exported = exported.and_then(|()| service.discover_configured());
    let exported = exported.and_then(|()| service.serve_metrics());
    let ended = exported.and_then(|()| {
        socket.serve(&service)?;
        for line in service.exports_in_words() {
            output::print(&line).ok();
        }
        ready::announce(&service)?;
        attend(&events, &service, &keeper)
    });
    service_manager::stopping();
    service.close();
    // A reload may have changed it.
    let drain_ns = service.drain_ns();
    let stop = move || {
        let _ = told.send(RunEvent::Stopped(cores.stop(drain_ns)));
    };
    let builder = std::thread::Builder::new().name("stop".into());
    builder.spawn(stop).context("cannot start a thread")?;
    let (stopped, lost) = attend_drain(&events, &service, &keeper);
    service.hook.join();
    service.await_queues();
    keeper.end();
    ended.and(stopped)?;
    let ended = finished(&lost, &service, drain_ns);
    let cleared = service.close_marks();
    // Not before: the next engine may begin, and keep marks, as soon as the record and the socket
    // are free.
    service.registry().end();
    drop(socket);
    ended.and(cleared)
}

/// Starts the threads that see changes and tell of them.
///
/// # Errors
/// No thread is left.
fn watch(service: &Arc<Service>, config: &Config) -> anyhow::Result<()> {
    let running = Event::new(Kind::Engine, "running").from("starting");
    service.events.emit(running);
    service.hook.set(&config.on_event);
    Hook::start(service).context("cannot start a thread")?;
    Watch::start(service).context("cannot start a thread")?;
    service.watch_health()?;
    service.watch_space()
}

/// Logs what is known at a start.
fn say_start(config: &Config, marks: &Marks, restored: Vec<String>, state: &Path) {
    let volumes = config.volumes.iter();
    let unclean: Vec<String> = volumes.filter_map(|it| marks.in_words(it)).collect();
    let summary = notes::started(config, restored.len(), unclean.len(), state);
    let volatile = notes::volatile(config, state);
    let clients = u64::from(config.clients) * u64::from(config.cores);
    let few = advice::of_few_files("clients", clients);
    for line in [summary]
        .into_iter()
        .chain(unclean)
        .chain(restored)
        .chain(notes::warning(config))
        .chain(volatile)
        .chain(few)
    {
        log::say(line);
    }
}

/// Volumes that have another name than when an engine of this control socket kept their records.
fn renamed_in_words(args: &RunArgs, config: &Config) -> anyhow::Result<Vec<String>> {
    let path = args.socket.clone().or(config.socket.clone());
    let path = socket::listening_path(path, socket::RUN);
    let Ok(directory) = identity::state_directory() else {
        return Ok(Vec::new()); // no engine of this user has kept anything
    };
    let registry = Registry::new(directory, state_id(&path)?, &path);
    let mut known = Known::new(&registry, &[]);
    known.adopt(&registry, &config.volumes)?;
    let renamed = known.renamed().into_iter();
    let words = renamed.map(|(from, to)| format!("volume {to} was {from}"));
    Ok(words.collect())
}

/// Changes of data and other I/Os that failed because the time to drain was over, by volume.
type Unfinished = BTreeMap<u16, (u32, u32)>;

/// Until all cores have stopped: what they ask for meanwhile is done as ever, or the I/O of a path
/// lost now would wait until its time is over.
fn attend_drain(
    events: &mpsc::Receiver<RunEvent>,
    service: &Arc<Service>,
    keeper: &Keeper,
) -> (anyhow::Result<()>, Unfinished) {
    let mut lost = Unfinished::new();
    loop {
        match events.recv().context("nobody stops the cores") {
            Ok(RunEvent::Stopped(how)) => return (how, lost),
            Ok(RunEvent::Unfinished(volume, changes, others)) => {
                let sum = lost.entry(volume).or_default();
                *sum = (sum.0 + changes, sum.1 + others);
                // Only changes of data can come late.
                if changes > 0 {
                    keeper.keep(RunEvent::Unfinished(volume, changes, others));
                }
            }
            Ok(event) => attend_to(event, service, keeper),
            Err(error) => return (Err(error), lost),
        }
    }
}

/// Whether all I/O ended well in the time that it had.
///
/// # Errors
/// What did not, in a line.
fn finished(lost: &Unfinished, service: &Service, drain_ns: u64) -> anyhow::Result<()> {
    let line = |(volume, (changes, others)): (&u16, &(u32, u32))| {
        let name = service.name(*volume);
        format!("{name}: {changes} writes and {others} other I/Os")
    };
    let lines: Vec<_> = lost.iter().map(line).collect();
    let late = match lost.values().any(|(changes, _)| *changes > 0) {
        true => "; a write among them may have been executed, or may yet be",
        false => "",
    };
    anyhow::ensure!(
        lines.is_empty(),
        "not ended within drain_timeout ({} ms), and failed: {}{late}",
        drain_ns / 1_000_000,
        lines.join("; ")
    );
    Ok(())
}

/// Identity by which the engine of a control socket is told from others in the state directory, by
/// whatever links the socket's directory is reached.
fn state_id(socket: &Path) -> anyhow::Result<String> {
    let socket = std::path::absolute(socket)?;
    let directory = socket.parent().and_then(|it| it.canonicalize().ok());
    let real = directory.zip(socket.file_name());
    let real = real.map_or(socket.clone(), |(directory, name)| directory.join(name));
    let name = uuid::Uuid::new_v5(
        &uuid::Uuid::NAMESPACE_URL,
        real.as_os_str().as_encoded_bytes(),
    );
    Ok(name.simple().to_string())
}

/// Until a signal ends it.
fn attend(
    events: &mpsc::Receiver<RunEvent>,
    service: &Arc<Service>,
    keeper: &Keeper,
) -> anyhow::Result<()> {
    loop {
        match events.recv().context("all cores have ended")? {
            RunEvent::Ready(core, volume, info) => {
                service.watch.look();
                // The last core counts: a client may come to any. Legs have none.
                let there = service.ready_on(core, volume) && service.ready(volume, info);
                if there && !service.is_leg(volume) {
                    say_ready(&service.name(volume), &info);
                }
            }
            RunEvent::Gone => anyhow::bail!("a core has ended unexpectedly"),
            RunEvent::Signal(SIGHUP) => {
                // Not here: what it waits for comes through this loop.
                let service = Arc::clone(service);
                let reload = move || {
                    let event = match reload::reload(&service, false, &Caller::NONE) {
                        Ok(changed) => {
                            log::say(format!("reloaded: {changed}"));
                            Event::new(Kind::Verb, "done").reason("reload by SIGHUP")
                        }
                        Err(error) => {
                            let why = format!("nothing was changed: {error:#}");
                            log::warn(why.clone());
                            Event::new(Kind::Verb, "refused").reason(why)
                        }
                    };
                    service.events.emit(event.client("SIGHUP"));
                };
                let builder = std::thread::Builder::new().name("reload".into());
                builder.spawn(reload).context("cannot start a thread")?;
            }
            RunEvent::Signal(_) => return Ok(()),
            event => attend_to(event, service, keeper),
        }
    }
}

/// Handling of an event whether or not the engine drains. Nothing here waits for a file: what the
/// cores have to tell comes through this thread.
fn attend_to(event: RunEvent, service: &Arc<Service>, keeper: &Keeper) {
    if may_change_states(&event) {
        service.watch.look();
    }
    match event {
        RunEvent::Path(change) => service.path_changed(change),
        RunEvent::Client(change) => service.client_changed(&change),
        RunEvent::Error(error) => {
            let volume = service.name(error.volume);
            let line = ::cores::notes::client_error(&volume, &error);
            log::seldom("errors of clients", &volume, Level::WARN, line);
        }
        RunEvent::MoreErrors(volume, count) => {
            log::warn(::cores::notes::more_errors(&service.name(volume), count));
        }
        RunEvent::Resized(volume, info) => {
            service.ready(volume, info);
            let read_only = if info.read_only { ", read-only" } else { "" };
            log::say(format!(
                "{}: its size is {} now{read_only}; clients connected before keep what they know",
                service.name(volume),
                format_bytes(info.bytes)
            ));
        }
        RunEvent::Measured(window) => service.health.measured(window),
        RunEvent::Note(what) => log::say(service.of_queue(what)),
        RunEvent::Warning(what) => log::warn(service.of_queue(what)),
        RunEvent::Host(event, count) => log::warn(nvme_exports::in_words(event, count)),
        RunEvent::Unfit(volume, nsid, why) => {
            let name = service.name(volume);
            log::say(format!(
                "{name}: it is not offered as namespace {nsid}: {why}"
            ));
        }
        RunEvent::NoPath(volume) => {
            let state = service.state();
            if let Some(it) = state.volumes.get(volume) {
                log::warn(notes::no_path(&it.of, it.info.is_some()));
            }
        }
        // In order: a number of a volume may be another one's once a change was answered.
        event @ (RunEvent::Mark(..)
        | RunEvent::MarkEnded(..)
        | RunEvent::Opened(..)
        | RunEvent::Mirror(..)
        | RunEvent::Record(..)
        | RunEvent::Unflushed(..)
        | RunEvent::Loss(..)
        | RunEvent::FewQueues(..)
        | RunEvent::Changed(..)) => keeper.keep(event),
        RunEvent::Refused(volume, why) => service.refuse_clients(volume, why),
        RunEvent::Released(kind) => service.released(&kind),
        RunEvent::Disconnected(of) => service.look_up_host(of),
        RunEvent::Vacated(core, export) => service.vacated(core, export),
        RunEvent::Ended(core, place) => service.subsystem_ended(core, place),
        // Nothing begins any more, and the cores end because they are told to; an I/O fails for
        // the end of the time to drain only once it drains. A volume that is being opened is
        // refused.
        RunEvent::Ready(..)
        | RunEvent::Gone
        | RunEvent::Stopped(_)
        | RunEvent::Signal(_)
        | RunEvent::Unfinished(..) => {}
    }
}

/// Whether a volume or a leg may have another state after this. Each core measures twice a second,
/// and clients come and go as often as they like.
fn may_change_states(event: &RunEvent) -> bool {
    !matches!(event, RunEvent::Measured(_) | RunEvent::Client(_))
}

/// A second SIGTERM or SIGINT ends the process at once.
fn listen_for_signals(to: mpsc::Sender<RunEvent>) -> anyhow::Result<()> {
    let mut signals = crate::signals::catch(&[SIGINT, SIGTERM, SIGHUP])?;
    let wait = move || {
        let mut ending = false;
        for signal in signals.forever() {
            if ending && signal != SIGHUP {
                std::process::exit(128 + signal);
            }
            ending |= signal != SIGHUP;
            let _ = to.send(RunEvent::Signal(signal));
        }
    };
    let builder = std::thread::Builder::new().name("signals".into());
    builder.spawn(wait).context("cannot start a thread")?;
    Ok(())
}
