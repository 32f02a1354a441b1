//! `braid discover`: the logs of a discovery controller and of those that it refers to.
//!
//! * [`session`]: the machine on a reactor, and one that reads every log once
//! * [`mod@show`]: entries in the words of nvme-cli, as text and JSON
//!
//! # Contract
//! What a log says is shown as it is, what can't be seen escaped, whether or not it can be used;
//! what can't be says why. A referral that fails is a note; the exit code tells of the controller
//! that was asked for.
pub mod session;
pub mod show;

use crate::cli::Usage;
use crate::identity::{self, IdentityArgs};
use crate::output::{self, Format, Style};
use crate::uri::discovery::{DISCOVERY_PORT, DiscoveryUri};
use anyhow::Context;
use clap::Args;
use nvme::host::Digests;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Longest wait for a connection and for each answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for all logs; those that were not there by then are named.
const ALL_MAX: Duration = Duration::from_secs(300);

/// Show what a discovery controller, and those that it refers to, tell of subsystems
#[derive(Clone, Debug, Args)]
pub struct DiscoverArgs {
    #[command(flatten)]
    from: FromArgs,
    /// Host NQN [default: /etc/nvme/hostnqn, else made once and kept]
    #[arg(short = 'q', long, value_name = "NQN", value_parser = identity::parse_nqn)]
    hostnqn: Option<String>,
    /// Host identifier, a UUID [default: /etc/nvme/hostid, else that of the host NQN]
    #[arg(short = 'I', long, value_name = "UUID", value_parser = identity::parse_uuid)]
    hostid: Option<Uuid>,
    /// Checksums over headers
    #[arg(short = 'g', long)]
    hdr_digest: bool,
    /// Checksums over data
    #[arg(short = 'G', long)]
    data_digest: bool,
    /// How to show it
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t)]
    output: Format,
}

/// Which discovery controller; the letters are nvme-cli's.
#[derive(Clone, Debug, Args)]
pub struct FromArgs {
    /// Discovery controller, instead of the options: `nvme-tcp://HOST[:PORT][/NQN]`
    #[arg(value_name = "URI", conflicts_with_all = ["traddr", "trsvcid", "nqn"])]
    uri: Option<String>,
    /// Transport
    #[arg(short, long, value_name = "TRANSPORT", default_value = "tcp")]
    transport: String,
    /// Address or name
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    traddr: Option<String>,
    /// TCP port
    #[arg(short = 's', long, value_name = "PORT", default_value_t = DISCOVERY_PORT,
        allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
    trsvcid: u16,
    /// The discovery subsystem's own NQN [default: the well-known one of discovery]
    #[arg(short = 'n', long, value_name = "NQN", value_parser = identity::parse_nqn)]
    nqn: Option<String>,
}

impl FromArgs {
    /// The controller that is meant.
    ///
    /// # Errors
    /// Usage: what can't be, and what could.
    pub fn uri(&self) -> anyhow::Result<DiscoveryUri> {
        if self.transport != "tcp" {
            let text = format!("--transport {}: only tcp is supported", self.transport);
            return Err(Usage::error(text));
        }
        let uri = match (&self.uri, &self.traddr) {
            (Some(uri), _) => uri.parse().map_err(|error| (uri.clone(), error)),
            (None, None) => {
                let text = "which discovery controller? Give its URI, nvme-tcp://HOST[:PORT], \
                            or --traddr";
                return Err(Usage::error(text.to_owned()));
            }
            (None, Some(host)) => {
                if let Some(words) = apart(host) {
                    return Err(Usage::error(format!("--traddr {host}: {words}")));
                }
                let uri = DiscoveryUri::new(host, self.trsvcid, self.nqn.as_deref());
                uri.map_err(|error| (format!("--traddr {host}"), error))
            }
        };
        uri.map_err(|(what, error)| Usage::error(format!("{what}: {error}")))
    }
}

/// Address to write instead of one with its port; `None`: it is none.
pub fn apart(text: &str) -> Option<String> {
    if text.parse::<IpAddr>().is_ok() {
        return None; // with colons of its own
    }
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    let is_one = bare.is_some() || !host.is_empty() && !host.contains(':');
    let host = bare.unwrap_or(host);
    is_one.then(|| format!("the port is an option of its own: -a {host} -s {port}"))
}

/// Reads and shows.
///
/// # Errors
/// Usage; the controller can't be read: which, why and what to do.
pub fn run(args: &DiscoverArgs) -> anyhow::Result<()> {
    let uri = args.from.uri()?;
    let identity = identity::identity(&IdentityArgs {
        hostnqn: args.hostnqn.clone(),
        hostid: args.hostid,
    })?;
    let digests = Digests {
        header: args.hdr_digest,
        data: args.data_digest,
    };
    let root = uri.resolve().with_context(|| uri.to_string())?;
    let config = session::once(identity, digests, TIMEOUT);
    let until = Instant::now() + ALL_MAX;
    let found = session::read_once(config, &root, &|| Instant::now() >= until)?;
    for note in show::notes(&root, &found) {
        output::note(&note);
    }
    if let Some(why) = found.why(&root) {
        return Err(anyhow::anyhow!("{uri}: {why}"));
    }
    match args.output {
        Format::Json => output::print_json(&show::json(&root, &found)),
        Format::Text => output::print(&show::text(&found, Style::of_stdout())),
    }
}
