//! `braid connect` and `braid connect-all`: paths to what is named, or to all that discovery tells,
//! join the volumes of their subsystems.
//!
//! `connect {"address": "10.0.0.1:4420", "nqn": NQN}` ·
//! `connect-all {"uri": "nvme-tcp://10.0.0.1"}`
//!
//! # Contract
//! The engine itself asks, under its own identity (T35). A subsystem is a volume's if the volume
//! names it, or has a path to it; to each of them every way is added that isn't there, as by
//! `path add`, and kept so. What no volume has is listed, with what would make a volume of it:
//! a volume has a name and exports, which nobody but the user knows.
use super::client::{Common, items, word};
use super::config::{PathKeys, Volume};
use super::discovery::plan;
use super::paths::unnamed;
use super::service::Service;
use crate::cli::Usage;
use crate::control::rpc::Failure;
use crate::discover::{FromArgs, session, show};
use crate::output;
use crate::uri::discovery::{DiscoveryUri, in_words};
use crate::uri::{NvmeTcp, PathUri, UriKind, escaped};
use clap::Args;
use engine::discovery::Offer;
use nvme::host::Digests;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// How long the engine may take: each path has its time.
const WAIT: Duration = Duration::from_secs(600);
/// Where subsystems listen unless it is said.
const PORT: u16 = 4420;

/// Options of `connect`; the letters are nvme-cli's.
#[derive(Clone, Debug, Args)]
pub struct ConnectArgs {
    /// Transport
    #[arg(short, long, value_name = "TRANSPORT", default_value = "tcp")]
    transport: String,
    /// Address, in numbers
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    traddr: IpAddr,
    /// TCP port
    #[arg(short = 's', long, value_name = "PORT", default_value_t = PORT)]
    trsvcid: u16,
    /// Subsystem NQN
    #[arg(short = 'n', long, value_name = "NQN", value_parser = crate::identity::parse_nqn)]
    nqn: String,
    #[command(flatten)]
    common: Common,
}

/// Options of `connect-all`; the letters are nvme-cli's.
#[derive(Clone, Debug, Args)]
pub struct ConnectAllArgs {
    #[command(flatten)]
    from: FromArgs,
    #[command(flatten)]
    common: Common,
}

/// What `connect` takes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectParams {
    address: SocketAddr,
    nqn: String,
}

/// What `connect-all` takes.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectAllParams {
    uri: String,
}

impl Service {
    /// One way to a subsystem.
    pub fn connect(&self, params: ConnectParams) -> Result<Value, Failure> {
        let ConnectParams { address, nqn } = params;
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(Failure::params(format!("{address} can't be connected to")));
        }
        crate::identity::parse_nqn(&nqn).map_err(Failure::params)?;
        let mut value = self.connect_offers(&[Offer { nqn, address }]);
        value["controllers"] = json!([]);
        Ok(value)
    }

    /// All ways that a discovery controller, and those that it refers to, tell.
    pub fn connect_all(&self, params: &ConnectAllParams) -> Result<Value, Failure> {
        let wrong = |error| Failure::params(format!("\"{}\": {error}", params.uri));
        let uri: DiscoveryUri = params.uri.parse().map_err(wrong)?;
        let refused = |error: anyhow::Error| Failure::refused(format!("{uri}: {error:#}"));
        let root = uri.resolve().map_err(refused)?;
        let (digests, timeout_ns) = {
            let keys = &self.state().configured;
            let digests = Digests {
                header: keys.header_digest,
                data: keys.data_digest,
            };
            (digests, keys.connect_timeout.0)
        };
        let timeout = Duration::from_nanos(timeout_ns);
        let config = session::once(self.identity.clone(), digests, timeout);
        let found = session::read_once(config, &root).map_err(refused)?;
        if let Some(why) = found.why(&root) {
            return Err(Failure::refused(format!("{uri}: {why}")));
        }
        let offers: Vec<_> = found
            .offers
            .iter()
            .map(|(offer, _)| offer.clone())
            .collect();
        let mut value = self.connect_offers(&offers);
        let asked = found.logs.iter().map(|(from, ..)| in_words(from));
        value["controllers"] = asked.collect::<Vec<_>>().into();
        value["notes"] = show::notes(&root, &found).into();
        Ok(value)
    }

    /// Ways join the volumes that have their subsystems.
    fn connect_offers(&self, offers: &[Offer]) -> Value {
        let volumes: Vec<(u16, Volume)> = {
            let state = self.state();
            let all = state.volumes.iter();
            all.map(|(number, it)| (number, it.of.clone())).collect()
        };
        let mut paths = Vec::new();
        let mut others: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for offer in offers {
            let mut any = false;
            for (number, of) in &volumes {
                let Some(nsid) = namespace(of, &offer.nqn) else {
                    continue;
                };
                any = true;
                paths.extend(self.connect_one(*number, of, offer, nsid));
            }
            if !any {
                let uri = format!("nvme-tcp://{}/{}", offer.address, escaped(&offer.nqn));
                others.entry(&offer.nqn).or_default().push(uri);
            }
        }
        let others = others.iter();
        let others = others.map(|(nqn, uris)| json!({"nqn": nqn, "uris": uris}));
        json!({"paths": paths, "others": others.collect::<Vec<_>>()})
    }

    fn connect_one(
        &self,
        number: u16,
        of: &Volume,
        offer: &Offer,
        nsid: Option<u32>,
    ) -> Option<Value> {
        let uri = plan::uri(offer, nsid)?;
        let leads = |keys: &PathKeys| plan::address(&keys.uri, &offer.nqn) == Some(offer.address);
        let told = |state: &str, why: Option<String>| {
            let uri = uri.to_string();
            Some(json!({"volume": of.name, "uri": uri, "state": state, "why": why}))
        };
        if of.paths.iter().any(leads) {
            return told("there", None);
        }
        // One by one: each takes its time, and others change paths too.
        let _alone = self.changes.alone();
        if self.state().volumes.number(&of.name).ok() != Some(number) {
            return told("refused", Some("the volume has left".into()));
        }
        if let Err(why) = self.add_path(number, PathKeys::from(uri.clone())) {
            let why = unnamed(&of.name, &uri.to_string(), &why);
            return told("refused", Some(why.into()));
        }
        let kept = self.keep_paths(number);
        let warning = kept
            .err()
            .map(|error| format!("it won't survive a restart: {error:#}"));
        told("added", warning)
    }
}

/// The namespace of a subsystem that a volume is, where it says so; `None`: the subsystem is none
/// of its.
fn namespace(of: &Volume, nqn: &str) -> Option<Option<u32>> {
    if of.subsystem.as_deref() == Some(nqn) {
        return Some(of.nsid);
    }
    let mut uris = of.paths.iter().map(|keys| &keys.uri);
    uris.find_map(|uri: &PathUri| match uri.kind() {
        UriKind::NvmeTcp(NvmeTcp {
            subsystem, nsid, ..
        }) if subsystem == nqn => Some(*nsid),
        _ => None,
    })
}

/// Asks the engine for one way.
///
/// # Errors
/// Usage, no engine that answers, or what it says; nothing could be used.
pub fn ask(args: &ConnectArgs) -> anyhow::Result<()> {
    if args.transport != "tcp" {
        let text = format!("--transport {}: only tcp is supported", args.transport);
        return Err(Usage::error(text));
    }
    let address = SocketAddr::new(args.traddr, args.trsvcid);
    let params = json!({"address": address, "nqn": args.nqn});
    tell(
        &args.common,
        &args.common.call_within("connect", params, WAIT)?,
    )
}

/// Asks the engine for all that is discovered.
///
/// # Errors
/// As [`ask`].
pub fn ask_all(args: &ConnectAllArgs) -> anyhow::Result<()> {
    let params = json!({"uri": args.from.uri()?.to_string()});
    let value = args.common.call_within("connect-all", params, WAIT)?;
    for note in items(&value["notes"]) {
        output::note(word(note));
    }
    tell(&args.common, &value)
}

fn tell(common: &Common, value: &Value) -> anyhow::Result<()> {
    common.print(value, in_text)?;
    let states = || items(&value["paths"]).map(|path| word(&path["state"]));
    let refused = states().filter(|state| *state == "refused").count();
    anyhow::ensure!(
        refused == 0,
        "not all could be connected: {refused} of {}",
        states().count()
    );
    Ok(())
}

fn in_text(text: &mut String, value: &Value) -> std::fmt::Result {
    for path in items(&value["paths"]) {
        let state = match word(&path["state"]) {
            "there" => "is there already",
            state => state,
        };
        let why = path["why"]
            .as_str()
            .map_or(String::new(), |why| format!(": {why}"));
        let (volume, uri) = (word(&path["volume"]), word(&path["uri"]));
        writeln!(text, "{volume}: path {uri} {state}{why}")?;
    }
    for other in items(&value["others"]) {
        let nqn = show::printable(word(&other["nqn"]));
        let count = items(&other["uris"]).count();
        writeln!(
            text,
            "{nqn}: {count} found, and no volume has it; for one write in the configuration, with \
             a name and a [[volume.export]], and reload:"
        )?;
        writeln!(text, "  [[volume]]")?;
        for uri in items(&other["uris"]) {
            let uri = show::printable(word(uri));
            writeln!(text, "  [[volume.path]]\n  uri = \"{uri}\"")?;
        }
    }
    Ok(())
}
