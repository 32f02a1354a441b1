//! `braid queue serve`: a software controller whose queues applications map.
use super::{SERVICE, allow, in_engine};
use crate::cli::Usage;
use crate::control::access::{Access, Mode, Name};
use crate::control::socket::{PrivateSocket, listening_path};
use crate::cpus::CpuList;
use crate::output::{self, OutputClosed};
use crate::run::NbdAddress;
use crate::service_manager;
use crate::signals::{Interrupt, stuck_file};
use crate::units::{format_bytes, parse_size};
use crate::uri::{PathUri, UriError, UriKind};
use anyhow::{Context, anyhow};
use broker::local::LocalNamespace;
use broker::{Config, Identity, Trust};
use cores::local::LocalServer;
use runtime::{Device, FileDevice, MemoryDevice};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Offer hardware queues to applications: a software NVMe controller over shared memory
///
/// Applications open queues over the socket and map them; while both sides are awake no I/O costs a
/// system call. crates/queue/src/layout.md has the layout, protocol.rs the requests on the socket.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// Namespaces 1, 2, …: mem:SIZE, file:/PATH, null:SIZE (which moves no data at all). Volumes
    /// are offered by [[queue]] in the configuration of braid run
    #[arg(required = true, value_name = "URI", num_args = 1..=broker::limits::NAMESPACES_MAX)]
    pub(super) namespaces: Vec<Source>,
    #[command(flatten)]
    pub(super) log: crate::log::LogArgs,
    /// NQN of the subsystem that the namespaces belong to. With it they show the same identifiers
    /// as those that `braid target` makes for it, so that a queue is a path beside others
    #[arg(long, value_name = "NQN", value_parser = crate::identity::parse_nqn)]
    pub(super) subsystem: Option<String>,
    /// Identifier of this controller in its subsystem: no other one's
    #[arg(long, value_name = "N", default_value = "65000", requires = "subsystem",
          value_parser = clap::value_parser!(u16).range(1..=0xffef))]
    pub(super) controller: u16,
    /// Block size of all namespaces: 512, 1k, 2k or 4k
    #[arg(long, value_name = "SIZE", default_value = "4k", value_parser = parse_block)]
    block_size: u8,
    /// These namespaces may only be read
    #[arg(long, value_name = "NSID", value_delimiter = ',')]
    pub(super) read_only: Vec<usize>,
    /// Queues whose completions are polled
    #[arg(long, value_name = "N", default_value = "8",
          value_parser = clap::value_parser!(u32).range(0..=i64::from(broker::limits::QUEUES_MAX)))]
    pub(super) user_poll: u32,
    /// Queues whose completions are notified
    #[arg(long, value_name = "N", default_value = "8",
          value_parser = clap::value_parser!(u32).range(0..=i64::from(broker::limits::QUEUES_MAX)))]
    pub(super) user_irq: u32,
    /// How long a core looks for commands before it sleeps, µs
    #[arg(long, value_name = "N", default_value = "50",
          value_parser = clap::value_parser!(u64).range(0..=3_600_000_000))]
    pub(super) spin_us: u64,
    /// Cores that queues are spread over, a thread each
    #[arg(long, value_name = "N", default_value = "1",
          value_parser = clap::value_parser!(u16).range(1..=broker::limits::CORES_MAX as i64))]
    cores: u16,
    /// Pin them to these CPUs, as in 0,2-3 [default: not pinned]
    #[arg(long, value_name = "LIST", value_parser = crate::cpus::parse)]
    cpus: Option<CpuList>,
    /// Take for granted that clients send no fused commands and no metadata, and read their lists
    /// in place; all bounds and rights are checked all the same
    #[arg(long)]
    pub(super) trusted: bool,
    /// A right: uid=1000,nsid=1,first=0,blocks=2048,read-only,depth=64,queues=2,memory=1GiB;
    /// uid=alice is a user by name, uid=any everybody who is not named. Without nsid= all
    /// namespaces, to write too. Repeat it for more namespaces of a user, and for more users
    /// [default: who may connect may do everything]
    #[arg(long, value_name = "RIGHT", value_parser = allow::parse)]
    pub(super) allow: Vec<allow::Allow>,
    /// Most memory of a queue, besides its rings. Of all queues of a user:
    /// --allow uid=N,memory=SIZE
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = parse_size)]
    pub(super) memory_max: u64,
    /// Socket [default: /run/braid/q.sock for root, else $XDG_RUNTIME_DIR/braid/q.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Permissions of the socket [default: 0600]
    #[arg(long, value_name = "OCTAL")]
    mode: Option<Mode>,
    /// Owner of the socket
    #[arg(long, value_name = "USER")]
    owner: Option<Name>,
    /// Group of the socket
    #[arg(long, value_name = "GROUP")]
    group: Option<Name>,
}

/// Where a namespace is from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Uri(PathUri),
    /// An export of an engine, whose volume is served there.
    Export(NbdAddress),
}

/// Sources of a namespace.
const SOURCES: &str = "a namespace is mem:SIZE, file:/PATH or null:SIZE; volumes are offered by \
                       [[queue]] in the configuration of braid run";

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("nbd:") && !text.starts_with("nbd://") {
            return text.parse().map(Self::Export);
        }
        let uri = text.parse::<PathUri>().map_err(|error| match error {
            UriError::Unknown(_) | UriError::NotYet(_) | UriError::NoScheme => {
                format!("\"{text}\": {SOURCES}")
            }
            other => other.to_string(),
        })?;
        Ok(Self::Uri(uri))
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Uri(uri) => uri.fmt(f),
            Self::Export(address) => write!(f, "nbd:{address}"),
        }
    }
}

/// Serves until a signal ends it.
///
/// # Errors
/// Usage; a namespace or the socket can't be had; the system refuses.
pub fn run(args: &ServeArgs) -> anyhow::Result<()> {
    args.log.apply(None);
    if (args.user_poll, args.user_irq) == (0, 0) {
        let what = "--user-poll 0 --user-irq 0: nobody could have a queue";
        return Err(Usage::error(what));
    }
    if args.memory_max == 0 {
        let what = "--memory-max 0: a queue needs memory for its data, so nobody could have one; \
                    leave it out, or give a size, as in 256MiB";
        return Err(Usage::error(what));
    }
    let path = listening_path(args.socket.clone(), SERVICE);
    if args
        .namespaces
        .iter()
        .any(|it| matches!(it, Source::Export(_)))
    {
        return Err(Usage::error(in_engine::text(args, &path)));
    }
    let interrupt = Interrupt::install()?;
    let namespaces: Vec<_> = (1..)
        .zip(&args.namespaces)
        .map(|(nsid, uri)| open(args, nsid, uri).with_context(|| format!("namespace {nsid}")))
        .collect::<anyhow::Result<_>>()?;
    if let Some(nsid) = args
        .read_only
        .iter()
        .find(|&&nsid| nsid == 0 || nsid > namespaces.len())
    {
        return Err(Usage::error(format!(
            "--read-only {nsid}: there is no such namespace"
        )));
    }
    let blocks: Vec<u64> = namespaces.iter().map(|it| it.blocks).collect();
    let rights = rights(args, &blocks)?;
    let access = Access {
        owner: args.owner.clone(),
        group: args.group.clone(),
        mode: args.mode,
    };
    let socket = PrivateSocket::bind(&path, super::SERVICE.noun, &access)?;
    let listener = socket
        .listener
        .try_clone()
        .context("cannot duplicate the socket")?;
    let config = Config {
        listener,
        identity: identity(args),
        namespaces: Vec::new(),
        user_poll: args.user_poll,
        user_irq: args.user_irq,
        memory_max: args.memory_max,
        patience_ns: broker::limits::PATIENCE_NS,
        spin_ns: args.spin_us * 1000,
        trust: if args.trusted {
            Trust::Trusted
        } else {
            Trust::Mediated
        },
        rights,
    };
    let broker = LocalServer::start(config, &namespaces, &cpus(args)?, crate::log::warn);
    let broker = broker.map_err(|why| anyhow!("cannot serve queues: {why}"))?;
    announce(args, &path)?;
    service_manager::ready();
    wait(&interrupt, &broker);
    service_manager::stopping();
    let ended = broker.stop().map_err(|why| match stuck_file() {
        Some(path) => anyhow!("the queue server failed: {path} does not answer: {why}"),
        None => anyhow!("the queue server failed: {why}"),
    });
    drop(socket);
    ended
}

/// Says what is served, and where.
fn announce(args: &ServeArgs, path: &std::path::Path) -> anyhow::Result<()> {
    let line = format!(
        "{} user_poll and {} user_irq queues on {}\n",
        args.user_poll,
        args.user_irq,
        path.display()
    );
    match output::print(&line) {
        // The reader of its output has gone; its users have not.
        Err(why) if why.is::<OutputClosed>() => Ok(()),
        said => said,
    }
}

/// Rights of users; prints those that may connect and can't.
fn rights(args: &ServeArgs, blocks: &[u64]) -> anyhow::Result<broker::Rights> {
    let rights = allow::rights(&args.allow).map_err(Usage::error)?;
    allow::check(&rights, blocks).map_err(Usage::error)?;
    let private = args.mode.is_none_or(|mode| mode.0 & 0o066 == 0) && args.owner.is_none();
    let shut_out = allow::shut_out(&rights, rustix::process::geteuid().as_raw());
    if let (true, Some(uid)) = (private, shut_out.first()) {
        output::note(&format!(
            "--allow uid={uid}: the socket is for this user only (mode 0600), so that user {uid} \
             can't connect; give --mode 0666, --owner, or --group with --mode 0660"
        ));
    }
    Ok(rights)
}

/// Identity that the namespaces show.
fn identity(args: &ServeArgs) -> Option<Identity> {
    let subsystem = args.subsystem.clone()?;
    let nsids = (1..).take(args.namespaces.len());
    let made = |nsid| target::identifiers(&subsystem, nsid);
    Some(Identity {
        namespaces: nsids.map(made).collect(),
        controller: args.controller,
        subsystem,
    })
}

/// Until a signal has come, or the broker has ended by itself.
fn wait(interrupt: &Interrupt, broker: &LocalServer) {
    let bell = Arc::new((Mutex::new(false), Condvar::new()));
    let rung = Arc::clone(&bell);
    interrupt.on_signal(move || {
        *rung.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        rung.1.notify_all();
    });
    let mut over = bell.0.lock().unwrap_or_else(PoisonError::into_inner);
    while !*over && !interrupt.is_set() && !broker.has_ended() {
        let waited = bell.1.wait_timeout(over, Duration::from_secs(1));
        over = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    if interrupt.is_set() {
        output::note("told to end by a signal: queues are taken back and files flushed");
    }
}

fn open(args: &ServeArgs, nsid: usize, source: &Source) -> anyhow::Result<LocalNamespace> {
    let shift = args.block_size;
    let read_only = args.read_only.contains(&nsid);
    let Source::Uri(uri) = source else {
        unreachable!("{source}: it was refused");
    };
    let (device, bytes) = device(shift, read_only, uri)?;
    // A block device may be read-only by itself.
    let read_only = match &device {
        Device::File(file) => file.read_only(),
        _ => read_only,
    };
    if bytes >> shift == 0 {
        return Err(Usage::error(format!(
            "{source} has {}: less than a block",
            format_bytes(bytes)
        )));
    }
    Ok(LocalNamespace {
        device,
        block_shift: shift,
        blocks: bytes >> shift,
        read_only,
    })
}

fn device(shift: u8, read_only: bool, uri: &PathUri) -> anyhow::Result<(Device, u64)> {
    Ok(match uri.kind() {
        UriKind::Memory(bytes) => (Device::Memory(Arc::new(MemoryDevice::new(*bytes)?)), *bytes),
        UriKind::Null(bytes) => (Device::Null, *bytes),
        UriKind::File(path) => {
            let file = FileDevice::open(path.clone(), read_only, None)?;
            if file.block_shift() > shift {
                let needed = 1_u64 << file.block_shift();
                return Err(Usage::error(format!(
                    "{uri} has blocks of {needed} bytes: give --block-size {needed}"
                )));
            }
            let bytes = file.bytes();
            (Device::File(Arc::new(file)), bytes)
        }
        UriKind::NvmeTcp(_) | UriKind::NvmeNg(_) | UriKind::Queue { .. } => {
            return Err(Usage::error(format!(
                "{uri}: queues are served from mem:, file: and null: only; make it a path of a \
                 volume (braid run), and that a namespace of a [[queue]]"
            )));
        }
    })
}

/// The CPU of each core.
fn cpus(args: &ServeArgs) -> anyhow::Result<Vec<Option<usize>>> {
    let cores = usize::from(args.cores);
    match &args.cpus {
        None => Ok(vec![None; cores]),
        Some(list) if list.0.len() < cores => Err(Usage::error(format!(
            "--cpus names {} CPUs for {cores} cores",
            list.0.len()
        ))),
        Some(list) => Ok(list.0.iter().take(cores).map(|&cpu| Some(cpu)).collect()),
    }
}

fn parse_block(text: &str) -> Result<u8, String> {
    let bytes = parse_size(text).map_err(|error| error.to_string())?;
    match bytes {
        512 | 1024 | 2048 | 4096 => Ok(bytes.ilog2() as u8),
        _ => Err(format!(
            "{bytes} bytes: a block has 512, 1024, 2048 or 4096"
        )),
    }
}
