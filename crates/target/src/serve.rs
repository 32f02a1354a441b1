//! `braid target` in the foreground: options or file to a running target, until a signal ends it.
use super::backend::Backend;
use super::config::{Config, Port};
use super::control::{self, Control};
use super::launch::{Launched, launch};
use super::log::{self, Logger};
use super::quantity::{Duration, FromText, Poll, Size};
use super::settings::Settings;
use anyhow::Context;
use clap::Args;
use engine::target::TargetControl;
use paths::uri::PathUri;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use runtime::watchdog::STUCK_GRACE;
use service::advice;
use service::control::server;
use service::control::socket::{PrivateSocket, TARGET};
use service::service_manager;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use terminal::exit::Usage;
use terminal::output;
use terminal::units::format_bytes;

const QUICK_NQN: &str = "nqn.2026-01.org.braid:target";

/// Options of serving.
#[derive(Clone, Debug, Args)]
pub struct ServeArgs {
    /// Configuration file in TOML (docs/configuration.md has every key); or, without one:
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["mem", "null", "file", "size",
        "listen", "open", "delay", "nqn", "cqt"])]
    config: Option<PathBuf>,
    /// One namespace in memory of this size
    #[arg(long, value_name = "SIZE")]
    mem: Option<String>,
    /// One namespace that reads zeroes and forgets writes
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "1TiB",
        conflicts_with = "mem")]
    null: Option<String>,
    /// One namespace in this file or block device
    #[arg(long, value_name = "PATH", conflicts_with_all = ["mem", "null"])]
    file: Option<PathBuf>,
    /// Size of the namespace [default: the backend's]; a file that isn't there is made
    #[arg(long, value_name = "SIZE")]
    size: Option<String>,
    /// A port, and what slows it: 127.0.0.1:4420,delay=30ms (the keys of `braid target set`); port
    /// 0 is any free one; 0.0.0.0:4420,advertise=192.0.2.1 listens on all addresses and tells hosts
    /// one
    #[arg(long, value_name = "ADDRESS:PORT[,KEY=VALUE…]")]
    listen: Vec<String>,
    /// Any host of another machine may connect; without it only loopback is listened on
    #[arg(long)]
    open: bool,
    /// Delay of every port that names none
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// Command quiesce time that the target reports; 0 = none [default: what the backend can
    /// promise]
    #[arg(long, value_name = "DURATION")]
    cqt: Option<String>,
    /// Subsystem NQN
    #[arg(long, value_name = "NQN")]
    nqn: Option<String>,
    /// Control socket [default: /run/braid/target.sock for root, else
    /// $XDG_RUNTIME_DIR/braid/target.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Pin the target to this CPU
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Never sleep
    #[arg(long)]
    spin: bool,
    /// Polling while there is nothing to do: adaptive, while that costs less than a wake-up, or
    /// never [default: adaptive]
    #[arg(long, value_enum, value_name = "WHEN", conflicts_with = "spin")]
    poll: Option<Poll>,
    /// No log of connections and injected faults on standard error
    #[arg(short, long)]
    quiet: bool,
}

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// As [`launch`], and of the control socket.
pub fn run(args: ServeArgs) -> anyhow::Result<()> {
    let mut config = match &args.config {
        Some(path) => Config::read(path)?,
        None => quick(&args)?,
    };
    config.cpu = args.cpu.or(config.cpu);
    config.spin |= args.spin;
    config.poll = args.poll.unwrap_or(config.poll);
    config.socket = args.socket.or(config.socket);
    let access = config.access();
    let socket = match config.socket.take() {
        Some(path) => Some(PrivateSocket::bind(&path, TARGET.noun, &access)?),
        None => PrivateSocket::bind_derived(TARGET, &access)?,
    };
    let (waker, wakes) = log::wakes();
    let mut launched =
        launch(&config, Some(waker.clone())).map_err(|error| too_large(error, &config))?;
    launched.backends.iter_mut().for_each(Backend::keep);
    stop_on_signals(&launched)?;
    if let Some(socket) = &socket {
        serve_control(socket, &config, &mut launched)?;
    }
    let ports = config.ports.len();
    let (log, board) = (launched.log.clone(), launched.board.clone());
    let logger = match args.quiet {
        true => None,
        false => {
            let logger = Logger::start((waker, wakes), log, board, ports);
            Some(logger.context("cannot start a thread")?)
        }
    };
    if let Some(line) = advice::of_few_files("connections", config.connections.into()) {
        output::note(&line);
    }
    announce(&config, &launched);
    service_manager::ready();
    let ended = launched.join();
    if let Some(logger) = logger {
        logger.end();
    }
    ended?;
    drop(socket);
    Ok(())
}

/// Values that can be made smaller where memory for payload can't be had.
fn too_large(error: anyhow::Error, config: &Config) -> anyhow::Error {
    match error.downcast_ref::<runtime::RuntimeError>() {
        Some(runtime::RuntimeError::Memory {
            object: "an arena", ..
        }) => {
            let bytes = format_bytes(config.buffers.0);
            error.context(format!("buffers = \"{bytes}\" in the configuration"))
        }
        _ => error,
    }
}

/// The configuration that the options come to.
fn quick(args: &ServeArgs) -> anyhow::Result<Config> {
    let backend = match (&args.mem, &args.null, &args.file) {
        (Some(size), ..) => format!("mem:{size}"),
        (_, Some(size), _) => format!("null:{size}"),
        (.., Some(path)) => file_uri(path)?,
        _ => {
            return Err(Usage::error(
                "nothing to serve: give -c FILE, or --mem SIZE (or --null, --file PATH) with \
                 --listen ADDRESS:PORT",
            ));
        }
    };
    let backend = PathUri::from_text(&backend).map_err(Usage::error)?;
    if args.listen.is_empty() {
        return Err(Usage::error(
            "no port: give --listen ADDRESS:PORT, as in 127.0.0.1:4420",
        ));
    }
    twice(&args.listen)?;
    let delay = args.delay.as_deref().map(Duration::from_text).transpose();
    let delay = delay.map_err(|error| Usage::error(format!("--delay: {error}")))?;
    let ports = args.listen.iter().map(|listen| quick_port(listen, delay));
    let ports = ports.collect::<anyhow::Result<Vec<_>>>()?;
    let nqn = args.nqn.clone().unwrap_or_else(|| QUICK_NQN.into());
    let size = args.size.as_deref().map(Size::from_text).transpose();
    let mut config = Config::quick(nqn, backend, ports);
    config.open = args.open;
    let cqt = args.cqt.as_deref().map(Duration::from_text).transpose();
    let cqt = cqt.map_err(|error| Usage::error(format!("--cqt: {error}")))?;
    config.cqt = cqt;
    config.namespaces[0].size = size.map_err(|error| Usage::error(format!("--size: {error}")))?;
    config.check().map_err(|error| {
        // The keys that can be wrong here are options too; there is only one namespace.
        let error = error.strip_prefix("namespace 1: ").unwrap_or(&error);
        Usage::error(format!("--{error}"))
    })?;
    Ok(config)
}

/// Two ports at one address can't be; port 0 is another one each time.
fn twice(listen: &[String]) -> anyhow::Result<()> {
    let address = |listen: &String| listen.split(',').next().unwrap_or_default().to_owned();
    let all: Vec<_> = listen.iter().map(address).collect();
    let again = (1..all.len()).find(|&at| !all[at].ends_with(":0") && all[..at].contains(&all[at]));
    match again {
        None => Ok(()),
        Some(at) => Err(Usage::error(format!(
            "--listen {} is there twice: give each port once",
            all[at]
        ))),
    }
}

fn quick_port(listen: &str, delay: Option<Duration>) -> anyhow::Result<Port> {
    let mut words = listen.split(',');
    let address = words.next().unwrap_or_default().to_owned();
    let wrong = |error| Usage::error(format!("--listen {listen}: {error}"));
    let (advertised, words): (Vec<&str>, Vec<&str>) =
        words.partition(|word| word.trim().starts_with("advertise="));
    let mut settings = Settings::from_words(words).map_err(wrong)?;
    let advertise = match advertised[..] {
        [] => None,
        [word] => {
            let text = word.trim().trim_start_matches("advertise=").trim();
            let address = text.parse();
            Some(address.map_err(|_| wrong(format!("advertise: \"{text}\" is no IP address")))?)
        }
        _ => return Err(wrong("advertise is given twice".into())),
    };
    if settings.stall.is_some() {
        let text = "stall is for a target that runs (braid target set)";
        return Err(Usage::error(format!("--listen {listen}: {text}")));
    }
    settings.delay = settings.delay.or(delay);
    Ok(Port {
        advertise,
        ..Port::new(address, &settings)
    })
}

/// A `file:` URI; a relative path counts from here.
fn file_uri(path: &std::path::Path) -> anyhow::Result<String> {
    let path = std::path::absolute(path).context("--file")?;
    let Some(path) = path.to_str() else {
        return Err(Usage::error(format!(
            "--file {}: the name is not UTF-8",
            path.display()
        )));
    };
    const RESERVED: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#');
    Ok(format!("file:{}", utf8_percent_encode(path, RESERVED)))
}

/// The first SIGTERM or SIGINT ends the target in order, a second one at once.
fn stop_on_signals(launched: &Launched) -> anyhow::Result<()> {
    let mut signals = service::signals::catch(&[SIGINT, SIGTERM])?;
    let sender = launched.sender();
    let wait = move || {
        for (count, signal) in signals.forever().enumerate() {
            if count > 0 {
                std::process::exit(128 + signal);
            }
            service_manager::stopping();
            service::signals::end_when_stuck(STUCK_GRACE);
            sender.send(TargetControl::Stop);
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .context("cannot start a thread")?;
    Ok(())
}

fn serve_control(
    socket: &PrivateSocket,
    config: &Config,
    launched: &mut Launched,
) -> anyhow::Result<()> {
    let sender = launched.sender();
    let waits = sender.clone();
    let control = Arc::new(Control::new(
        config,
        &launched.addresses,
        std::mem::take(&mut launched.backends),
        launched.board.clone(),
        Box::new(move |change| sender.send(change)),
        Box::new(move || waits.poll_stats()),
    ));
    let listener = socket
        .listener
        .try_clone()
        .context("cannot share the control socket")?;
    let serve = move || server::serve(&listener, &control);
    std::thread::Builder::new()
        .name("control".into())
        .spawn(serve)
        .context("cannot start a thread")?;
    Ok(())
}

/// One line per port, with the address that a host connects to.
fn announce(config: &Config, launched: &Launched) {
    let mut text = String::new();
    for (address, port) in launched.addresses.iter().zip(1..) {
        let offer = config.ports[port - 1].offer;
        let uri = control::uri(*address, &config.nqn, offer);
        let _ = writeln!(text, "port {port}: {uri}");
    }
    // A target serves whether or not somebody reads this.
    let _ = output::print(&text);
}
