//! `braid connect` and `braid connect-all`: paths to what is named, or to all that discovery tells,
//! join the volumes of their subsystems.
//!
//! `connect {"address": "10.0.0.1:4420", "nqn": NQN}` ·
//! `connect-all {"uri": "nvme-tcp://10.0.0.1"}`
//!
//! # Contract
//! The engine itself asks, under its own identity (T35). A subsystem is a volume's if the volume
//! names it, or has a path to it; to each of them every way is added that isn't there, as by
//! `path add`, and kept so. Announced namespaces that no volume has are listed, each with a volume
//! that would have it:
//! a volume has a name and exports, which nobody but the user knows.
//!
//! # Limits
//! `connect-all` takes [`ALL_MAX`] and what the way under way then takes. The controllers are
//! asked first, of many at a time ([`reach`]); those that answer are tried one after
//! the other, and other users' changes of paths come first. It ends when whoever asked has gone.
use super::call::{ConnectAllParams, ConnectParams, EngineCall};
use super::client::Common;
use super::config::{PathKeys, Volume};
use super::discovery::plan;
use super::locks::Alone;
use super::paths::unnamed;
use super::reach::{self, Manner};
use super::service::Service;
use crate::advice;
use crate::cli::Usage;
use crate::control::rpc::ControlError;
use crate::control::server::Caller;
use crate::discover::{FromArgs, apart, session, show};
use crate::output;
use crate::uri::discovery::{DiscoveryUri, in_words};
use crate::uri::{NvmeTcp, PathUri, UriKind, escaped, zone};
use anyhow::bail;
use clap::Args;
use engine::discovery::Offer;
use nvme::host::Digests;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use terminal::answer::{items, word};

/// How long discovery, and asking and trying what it tells, may take.
const ALL_MAX: Duration = Duration::from_secs(300);
/// Of that, what reading logs may take, in `connect_timeout`s: one slow controller must leave time
/// for what others tell.
const FOUND_MAX: u32 = 6;
/// Where subsystems listen unless it is said.
const PORT: u16 = 4420;

/// Options of `connect`; the letters are nvme-cli's.
#[derive(Clone, Debug, Args)]
pub struct ConnectArgs {
    /// Transport
    #[arg(short, long, value_name = "TRANSPORT", default_value = "tcp")]
    transport: String,
    /// Address, in numbers; a link-local one with its interface, fe80::1%eth0
    #[arg(short = 'a', long, value_name = "ADDRESS", value_parser = parse_address)]
    traddr: SocketAddr,
    /// TCP port
    #[arg(short = 's', long, value_name = "PORT", default_value_t = PORT,
        allow_negative_numbers = true, value_parser = clap::value_parser!(u16).range(1..))]
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

/// The address, without a port.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let wrong = |error: std::net::AddrParseError| error.to_string();
    if text.contains('%') {
        zone::host(text)?;
        let found = zone::address(text).map(SocketAddr::V6);
        return found.ok_or_else(|| format!("{text}: there is no such interface"));
    }
    let ip = text.parse::<IpAddr>();
    ip.map(|ip| SocketAddr::new(ip, 0))
        .map_err(|error| apart(text).unwrap_or_else(|| wrong(error)))
}

/// Path to try: the volume, the way, and what it would be for the volume.
struct Way<'a> {
    number: u16,
    of: &'a Volume,
    offer: &'a Offer,
    uri: PathUri,
}

impl Service {
    /// One way to a subsystem.
    pub fn connect(&self, params: ConnectParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let ConnectParams { address, nqn } = params;
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(ControlError::params(format!(
                "{address} can't be connected to"
            )));
        }
        crate::identity::parse_nqn(&nqn).map_err(ControlError::params)?;
        let alone = |name: &str| {
            let names = [name.to_owned()];
            self.changes.alone_with_all(&names, by).ok()
        };
        let mut value = self.connect_offers(&[Offer { nqn, address }], |ways| {
            let one = |way: &Way<'_>| self.connect_one(way, alone);
            ways.iter().map(one).collect()
        });
        value["controllers"] = json!([]);
        Ok(value)
    }

    /// All ways that a discovery controller, and those that it refers to, tell. It ends early when
    /// whoever asked has gone.
    pub fn connect_all(
        &self,
        params: &ConnectAllParams,
        gone: &(dyn Fn() -> bool + Sync),
    ) -> Result<Value, ControlError> {
        let until = Instant::now() + ALL_MAX;
        let stop = || gone() || Instant::now() >= until;
        let wrong = |error| ControlError::params(format!("\"{}\": {error}", params.uri));
        let uri: DiscoveryUri = params.uri.parse().map_err(wrong)?;
        let refused = |error: anyhow::Error| ControlError::refused(format!("{uri}: {error:#}"));
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
        let found_until = Instant::now() + (timeout * FOUND_MAX).min(ALL_MAX / 2);
        let enough = || stop() || Instant::now() >= found_until;
        let found = session::read_once(config, &root, &enough).map_err(refused)?;
        if let Some(why) = found.why(&root) {
            return Err(ControlError::refused(format!("{uri}: {why}")));
        }
        let offers: Vec<_> = found
            .offers
            .iter()
            .map(|(offer, _)| offer.clone())
            .collect();
        let manner = Manner {
            digests,
            timeout,
            stop: &stop,
        };
        let mut value = self.connect_offers(&offers, |ways| self.connect_ways(ways, manner));
        let asked = found.logs.iter().map(|(from, ..)| in_words(from));
        value["controllers"] = asked.collect::<Vec<_>>().into();
        value["notes"] = show::notes(&root, &found).into();
        Ok(value)
    }

    /// Ways join the volumes that have their subsystems, as `connect` does it; it tells of each.
    fn connect_offers(
        &self,
        offers: &[Offer],
        connect: impl FnOnce(&[Way<'_>]) -> Vec<Value>,
    ) -> Value {
        let volumes: Vec<(u16, Volume)> = {
            let state = self.state();
            let all = state.volumes.iter();
            all.map(|(number, it)| (number, it.of.clone())).collect()
        };
        let mut ways = Vec::new();
        let mut others: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for offer in offers {
            let mut any = false;
            for (number, of) in &volumes {
                let Some(nsid) = namespace(of, &offer.nqn) else {
                    continue;
                };
                any = true;
                ways.extend(plan::uri(offer, nsid).map(|uri| Way {
                    number: *number,
                    of,
                    offer,
                    uri,
                }));
            }
            if !any {
                let at = zone::authority(&offer.address);
                let uri = format!("nvme-tcp://{at}/{}", escaped(&offer.nqn));
                others.entry(&offer.nqn).or_default().push(uri);
            }
        }
        let others = others.iter();
        let others = others.map(|(nqn, uris)| json!({"nqn": nqn, "uris": uris}));
        json!({"paths": connect(&ways), "others": others.collect::<Vec<_>>()})
    }

    /// Those where somebody is, as soon as that is known.
    fn connect_ways(&self, ways: &[Way<'_>], manner: Manner<'_>) -> Vec<Value> {
        let late = format!(
            "not tried within the {} s that all may take; ask again",
            ALL_MAX.as_secs()
        );
        let of_way = |way: &Way<'_>| match self.has(way, &way.of.paths) {
            true => way.told("there", None),
            false => way.told("refused", Some(late.clone())),
        };
        let mut told: Vec<Value> = ways.iter().map(of_way).collect();
        let mut missing: Vec<SocketAddr> = ways
            .iter()
            .filter(|way| !self.has(way, &way.of.paths))
            .map(|way| way.offer.address)
            .collect();
        missing.sort_unstable();
        missing.dedup();
        let alone = |name: &str| {
            self.changes
                .verbs
                .alone_last(&[name.to_owned()], manner.stop)
        };
        reach::ask_all(&missing, manner, |at, answer| {
            let here = ways.iter().zip(&mut told);
            let here = here.filter(|(way, _)| way.offer.address == missing[at]);
            for (way, told) in here {
                match &answer {
                    Ok(()) if (manner.stop)() => {}
                    Ok(()) => *told = self.connect_one(way, alone),
                    Err(why) if !self.has(way, &way.of.paths) => {
                        *told = way.told("refused", Some(why.clone()));
                    }
                    Err(_) => {}
                }
            }
        });
        told
    }

    /// Whether one of these paths is a way.
    fn has(&self, way: &Way<'_>, paths: &[PathKeys]) -> bool {
        let named = |uri: &PathUri| self.ends.addresses(uri);
        let of = |keys: &PathKeys| plan::addresses(&keys.uri, &way.offer.nqn, named);
        paths.iter().any(|it| of(it).contains(&way.offer.address))
    }

    fn connect_one<'a>(
        &'a self,
        way: &Way<'_>,
        alone: impl FnOnce(&str) -> Option<Alone<'a>>,
    ) -> Value {
        let Way { number, of, .. } = *way;
        // One by one: each takes its time, and others change paths too.
        let Some(_alone) = alone(&of.name) else {
            return way.told("refused", Some("others were changing paths".into()));
        };
        let there = {
            let state = self.state();
            if state.volumes.number(&of.name).ok() != Some(number) {
                return way.told("refused", Some("the volume has left".into()));
            }
            self.has(way, &state.volumes[number].of.paths)
        };
        if there {
            return way.told("there", None);
        }
        let path = PathKeys::from(way.uri.clone()).into();
        if let Err(why) = self.edit(number, false, |it| it.add(path)) {
            let (uri, why) = (way.uri.to_string(), why.to_string());
            let why = advice::of_target(unnamed(&of.name, &uri, &why), &uri);
            return way.told("refused", Some(why));
        }
        let kept = self.keep_choices(number);
        let warning = kept
            .err()
            .map(|error| format!("it won't survive a restart: {error:#}"));
        way.told("added", warning)
    }
}

impl Way<'_> {
    fn told(&self, state: &str, why: Option<String>) -> Value {
        let uri = self.uri.to_string();
        json!({"volume": self.of.name, "uri": uri, "state": state, "why": why})
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
    let mut address = args.traddr;
    address.set_port(args.trsvcid);
    let nqn = args.nqn.clone();
    let call = EngineCall::Connect(ConnectParams { address, nqn });
    tell(&args.common, &args.common.call(&call)?)
}

/// Asks the engine for all that is discovered.
///
/// # Errors
/// As [`ask`].
pub fn ask_all(args: &ConnectAllArgs) -> anyhow::Result<()> {
    let uri = args.from.uri()?.to_string();
    let call = EngineCall::ConnectAll(ConnectAllParams { uri });
    let value = args.common.call(&call)?;
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
    if states().next().is_some() {
        return Ok(());
    }
    // Of a volume the engine has nothing was added, nor is there.
    let advice = match items(&value["others"]).next() {
        Some(_) => {
            "no volume has such a subsystem: make one as shown and `braid reload`, or correct the \
             NQN"
        }
        None => "nothing that can be used was told: `braid discover` with the same words shows all",
    };
    bail!("no path was added: {advice}")
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
        let found = match items(&value["controllers"]).next() {
            Some(_) => format!("{count} found, and no volume has it"),
            // A connection over one way asks no controller before its purpose is known.
            None => "no volume has it, so it was not asked".to_owned(),
        };
        writeln!(
            text,
            "{nqn}: {found}; for one write in the configuration, with a name and a \
             [[volume.export]], and reload:"
        )?;
        writeln!(text, "  [[volume]]")?;
        for uri in items(&other["uris"]) {
            let uri = show::printable(word(uri));
            writeln!(text, "  [[volume.path]]\n  uri = \"{uri}\"")?;
        }
    }
    Ok(())
}
