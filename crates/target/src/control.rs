//! Changing and showing a target while it runs: the methods behind its control socket.
//!
//! `target.show {}` · `target.set {"port": 1, "settings": {"delay": "30ms"}}` ·
//! `target.drop {"port": 1}` · `target.resize {"nsid": 1, "size": "2GiB"}` · `target.hosts {…}`,
//! `target.referrals {…}`, see `discovery`
//!
//! # Contract
//! One client's call at a time changes anything. A call has been handed to the reactor when it is
//! answered; what it changes is in force within a loop turn.
mod discovery;

pub use discovery::{HostsParams, ReferralsParams, check_referrals};

use super::backend::{Backend, Room};
use super::config::{Config, closed_port};
use super::discovery::{Offer, ReferralKeys};
use super::faults::{show_chance, show_rule};
use super::launch::cqt_ns;
use super::quantity::{Ana, AnaStates, FromText, Size};
use super::settings::Settings;
use super::waits;
use engine::target::{Board, FaultStats, Faults, TargetControl};
use nvme::controller::{DiscoveryChange, PortOffer};
use nvme::host::AnaState;
use paths::uri::{UriKind, escaped, zone};
use runtime::PollStats;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use service::control::call::Nothing;
use service::control::rpc::ControlError;
use service::control::server::{Caller, Methods};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Hands a change to the reactor; false if that is gone.
pub type Send = Box<dyn Fn(TargetControl) -> bool + std::marker::Send + Sync>;
/// Tells how the target has waited so far.
pub type Waits = Box<dyn Fn() -> PollStats + std::marker::Send + Sync>;

/// State of the running target, beside its reactor.
pub struct Control {
    nqn: String,
    serial: String,
    model: String,
    cntlid: [u16; 2],
    cqt_ns: u64,
    discovery_nqn: Option<String>,
    /// Where a port listens that must not be without `hosts`.
    closed_port: Option<String>,
    board: Arc<Board>,
    send: Send,
    waits: Waits,
    state: Mutex<State>,
}

struct State {
    ports: Vec<Port>,
    namespaces: Vec<Namespace>,
    hosts: Vec<String>,
    referrals: Vec<ReferralKeys>,
}

struct Port {
    address: SocketAddr,
    shape: shape::Config,
    faults: Faults,
    /// By group.
    ana: BTreeMap<u32, AnaState>,
    offer: Offer,
}

struct Namespace {
    nsid: u32,
    block_shift: u8,
    uuid: [u8; 16],
    nguid: [u8; 16],
    ana_group: u32,
    read_only: bool,
    /// A file that has a size in the configuration.
    is_sized: bool,
    uri: String,
    backend: Backend,
}

service::calls! {
    /// Requests to a target.
    pub enum TargetCall {
        /// Everything.
        "target.show" => Show(Nothing),
        /// Settings of a port.
        "target.set" => Set(SetParams),
        /// The connections of a port are dropped.
        "target.drop" => Drop(DropParams),
        /// Another size of a namespace.
        "target.resize" => Resize(ResizeParams),
        /// Hosts that may connect.
        "target.hosts" => Hosts(HostsParams),
        /// Discovery controllers to which hosts are referred.
        "target.referrals" => Referrals(ReferralsParams),
    }
}

/// Of `target.set`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetParams {
    /// As `show` numbers it, from 1.
    pub port: u16,
    /// See [`Settings::from_map`].
    pub settings: Map<String, Value>,
}

/// Of `target.drop`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DropParams {
    /// As `show` numbers it, from 1.
    pub port: u16,
}

/// Of `target.resize`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeParams {
    /// Namespace.
    pub nsid: u32,
    /// Its new size, as [`Size::from_text`] reads it.
    pub size: String,
}

impl Control {
    /// Of a target that was started from this configuration.
    pub fn new(
        config: &Config,
        addresses: &[SocketAddr],
        backends: Vec<Backend>,
        board: Arc<Board>,
        send: Send,
        waits: Waits,
    ) -> Self {
        let groups = config.groups();
        let cqt_ns = cqt_ns(config, &backends);
        let ports = config.ports.iter().zip(addresses).map(|(port, address)| {
            let mut faults = Faults::default();
            port.faults.apply(&mut faults, runtime::now_ns());
            Port {
                address: *address,
                shape: port.shape,
                faults,
                ana: groups.iter().map(|&of| (of, port.ana.of(of))).collect(),
                offer: port.offer,
            }
        });
        let namespaces = config
            .namespaces
            .iter()
            .zip(backends)
            .map(|(of, backend)| Namespace {
                nsid: of.nsid,
                block_shift: of.block_size.ilog2() as u8,
                uuid: of.uuid(&config.nqn),
                nguid: of.nguid(&config.nqn),
                ana_group: of.ana_group,
                read_only: of.read_only,
                is_sized: of.size.is_some() && matches!(of.backend.kind(), UriKind::File(_)),
                uri: of.backend.to_string(),
                backend,
            });
        Control {
            nqn: config.nqn.clone(),
            serial: config.serial(),
            model: config.model.clone(),
            cntlid: config.cntlid,
            cqt_ns,
            discovery_nqn: config.discovery_nqn.clone(),
            closed_port: closed_port(config).map(str::to_owned),
            board,
            send,
            waits,
            state: Mutex::new(State {
                ports: ports.collect(),
                namespaces: namespaces.collect(),
                hosts: config.hosts.clone(),
                referrals: config.referrals.clone(),
            }),
        }
    }

    fn set(&self, params: SetParams) -> Result<Value, ControlError> {
        let settings = Settings::from_map(params.settings).map_err(ControlError::params)?;
        let mut state = self.state();
        let index = port_index(&state, params.port)?;
        let port = &mut state.ports[usize::from(index)];
        if let Some(ana) = &settings.ana {
            let groups = port.ana.keys().copied().collect();
            ana.check(&groups).map_err(ControlError::params)?;
        }
        if settings.changes_shape() {
            let mut shape = port.shape;
            settings.apply(&mut shape, runtime::now_ns());
            self.send(TargetControl::Shape(index, shape))?;
            port.shape = shape;
        }
        if settings.changes_faults() {
            let mut faults = port.faults.clone();
            settings.faults.apply(&mut faults, runtime::now_ns());
            self.send(TargetControl::Faults(index, faults.clone()))?;
            port.faults = faults;
        }
        if let Some(offer) = settings.offer {
            let change = DiscoveryChange::Offer(index, offer.0);
            self.send(TargetControl::Discovery(change))?;
            port.offer = offer;
        }
        for (group, ana) in settings.ana.unwrap_or_default().0 {
            self.send(match group {
                None => TargetControl::Ana(index, ana),
                Some(group) => TargetControl::AnaGroup(index, group, ana),
            })?;
            let named = port.ana.iter_mut();
            let named = named.filter(|(of, _)| group.is_none_or(|group| group == **of));
            named.for_each(|(_, state)| *state = ana);
        }
        Ok(self.show_port(index, port))
    }

    fn drop_connections(&self, params: DropParams) -> Result<Value, ControlError> {
        let index = port_index(&self.state(), params.port)?;
        let connections = self.board.port(index).connections;
        self.send(TargetControl::Drop(index))?;
        Ok(json!({"port": params.port, "connections": connections}))
    }

    fn resize(&self, params: &ResizeParams, by: &Caller<'_>) -> Result<Value, ControlError> {
        let Size(bytes) = Size::from_text(&params.size).map_err(ControlError::params)?;
        let (room, block_shift) = self.may_resize(params.nsid, bytes)?;
        // The file may hang: nobody else waits for it.
        let made = room.make(bytes);
        made.map_err(|error| ControlError::refused(format!("{error:#}")))?;
        by.ensure_there()?;
        let mut state = self.state();
        self.send(TargetControl::Resize(params.nsid, bytes >> block_shift))?;
        let namespace = namespace_of(&mut state, params.nsid)?;
        namespace.backend.bytes = bytes;
        Ok(namespace.show())
    }

    /// How a namespace gets so many bytes, and the shift of its blocks.
    ///
    /// # Errors
    /// There is none, or it can't have that size.
    fn may_resize(&self, nsid: u32, bytes: u64) -> Result<(Room, u8), ControlError> {
        let mut state = self.state();
        let namespace = namespace_of(&mut state, nsid)?;
        if bytes == 0 || !bytes.is_multiple_of(1 << namespace.block_shift) {
            let block = 1u32 << namespace.block_shift;
            return Err(ControlError::params(format!(
                "{bytes} bytes are no multiple of {block} above 0"
            )));
        }
        if namespace.is_sized {
            // The next start would go back to it, and hosts would lose the end.
            return Err(ControlError::refused(format!(
                "namespace {nsid} has a size in its configuration, which a restart would go back \
                 to: change its size key (or --size) and restart, after its backend is as large \
                 (truncate -s of a file), or leave the key out and have the namespace as long as \
                 its backend"
            )));
        }
        Ok((namespace.backend.room.clone(), namespace.block_shift))
    }

    /// Everything, as `braid target show -o json` prints it.
    pub fn show(&self) -> Value {
        let state = self.state();
        let ports = state
            .ports
            .iter()
            .zip(0..)
            .map(|(port, index)| self.show_port(index, port));
        json!({
            "subsystem": {
                "nqn": self.nqn, "serial": self.serial, "model": self.model, "cntlid": self.cntlid,
                "cqt_ns": self.cqt_ns, "discovery_nqn": self.discovery_nqn,
                "hosts": state.hosts, "referrals": discovery::show_referrals(&state.referrals),
            },
            "ports": ports.collect::<Vec<_>>(),
            "cores": [waits::json(0, &(self.waits)())],
            "namespaces": state.namespaces.iter().map(Namespace::show).collect::<Vec<_>>(),
        })
    }

    fn show_port(&self, index: u16, port: &Port) -> Value {
        let (shape, stats) = (port.shape, self.board.port(index));
        let ana_groups = port.ana.iter();
        let ana_groups = ana_groups
            .map(|(group, state)| json!({"group": group, "state": Ana(*state).to_string()}));
        json!({
            "port": index + 1,
            "address": port.address.to_string(),
            "uri": uri(port.address, &self.nqn, port.offer),
            "ana_state": in_short(&port.ana).to_string(),
            "ana_groups": ana_groups.collect::<Vec<_>>(),
            "offer": port.offer.to_string(),
            "shape": {
                "delay_ns": shape.delay_ns,
                "jitter_ns": shape.jitter_ns,
                "bandwidth_bytes_per_s": shape.bytes_per_s,
                "servers": shape.servers,
                "service_time_ns": shape.service_ns,
                "large_from_bytes": shape.large_from,
                "large_delay_ns": shape.large_delay_ns,
                "tail_per_million": shape.tail_per_million,
                "tail_ns": shape.tail_ns,
                "stalled_ns": shape.stall_until_ns.saturating_sub(runtime::now_ns()),
            },
            "faults": show_faults(&port.faults, &stats.faults),
            "connections": stats.connections,
            "inflight": stats.in_flight,
            "commands": stats.commands,
            "errors": stats.errors,
            "bytes": stats.bytes,
            "waited_buffer": stats.waited_buffer,
            "protocol_errors": stats.protocol_errors,
            "damaged_headers": stats.damaged_headers,
            "keep_alive_expired": stats.keep_alive_expired,
        })
    }

    fn send(&self, change: TargetControl) -> Result<(), ControlError> {
        match (self.send)(change) {
            true => Ok(()),
            false => Err(ControlError::refused("the target is ending")),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change to it is one assignment, so a panic leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Methods for Control {
    type Call = TargetCall;

    fn call(&self, by: &Caller<'_>, call: TargetCall) -> Result<Value, ControlError> {
        match call {
            TargetCall::Show(Nothing) => Ok(self.show()),
            TargetCall::Set(params) => self.set(params),
            TargetCall::Drop(params) => self.drop_connections(params),
            TargetCall::Resize(params) => self.resize(&params, by),
            TargetCall::Hosts(params) => self.set_hosts(params),
            TargetCall::Referrals(params) => self.set_referrals(params),
        }
    }
}

impl Namespace {
    fn show(&self) -> Value {
        json!({
            "nsid": self.nsid,
            "backend": self.uri,
            "bytes": self.backend.bytes,
            "block_size": 1u32 << self.block_shift,
            "uuid": uuid::Uuid::from_bytes(self.uuid).to_string(),
            "nguid": uuid::Uuid::from_bytes(self.nguid).simple().to_string(),
            "ana_group": self.ana_group,
            "read_only": self.read_only,
        })
    }
}

/// The states of all groups as `target set` takes them.
fn in_short(groups: &BTreeMap<u32, AnaState>) -> AnaStates {
    let first = groups.values().next();
    match first.filter(|first| groups.values().all(|state| state == *first)) {
        Some(all) => AnaStates(vec![(None, *all)]),
        None => AnaStates(groups.iter().map(|(of, ana)| (Some(*of), *ana)).collect()),
    }
}

fn show_faults(faults: &Faults, injected: &FaultStats) -> Value {
    let left = |until_ns: u64| until_ns.saturating_sub(runtime::now_ns());
    json!({
        "errors": faults.errors.iter().map(show_rule).collect::<Vec<_>>(),
        "drop_rate": show_chance(faults.drop_rate),
        "hang": show_chance(faults.hang_rate),
        "hold_writes_ns": left(faults.hold_writes_until_ns),
        "late_writes_ns": faults.late_writes_ns,
        "until_kato": faults.until_keep_alive,
        "mute_ns": left(faults.mute_until_ns),
        "refuse_ns": left(faults.refuse_until_ns),
        "injected": {
            "errors": injected.errors,
            "drops": injected.drops,
            "held_writes": injected.held_writes,
            "late_writes": injected.late_writes,
            "outlived_writes": injected.outlived_writes,
            "refused": injected.refused,
            "muted": injected.muted,
            "hung": injected.hung,
        },
    })
}

/// The URI by which a host reaches the subsystem through this address, or discovery where the port
/// is for that alone.
pub fn uri(address: SocketAddr, nqn: &str, offer: Offer) -> String {
    match offer.0 {
        PortOffer::Discovery => format!("nvme-tcp://{}", zone::authority(&address)),
        _ => format!("nvme-tcp://{}/{}", zone::authority(&address), escaped(nqn)),
    }
}

fn namespace_of(state: &mut State, nsid: u32) -> Result<&mut Namespace, ControlError> {
    let all = state.namespaces.iter().map(|it| it.nsid.to_string());
    let all = all.collect::<Vec<_>>().join(", ");
    let found = state.namespaces.iter_mut().find(|it| it.nsid == nsid);
    found.ok_or_else(|| ControlError::params(format!("there is no namespace {nsid}, only {all}")))
}

fn port_index(state: &State, port: u16) -> Result<u16, ControlError> {
    match port.checked_sub(1) {
        Some(index) if usize::from(index) < state.ports.len() => Ok(index),
        _ => {
            let ports = state.ports.len();
            Err(ControlError::params(format!(
                "there is no port {port}; ports are 1…{ports}"
            )))
        }
    }
}

#[cfg(test)]
mod tests;
