//! From a configuration to a running target: backends opened, ports bound, the engine made, its
//! reactor started.
use super::backend::Backend;
use super::config::{Config, Port};
use super::discovery::referrals;
use super::faults::FaultSettings;
use super::limits::{BIND_PAUSE, BIND_TRIES, CQT_MS_MAX};
use super::log::Waker;
use anyhow::{Context, anyhow, bail};
use engine::LocalDevice;
use engine::machine::{Around, Machine, Memory};
use engine::target::{Board, Faults, Log, TargetConfig, TargetControl, TargetEngine};
use nvme::controller::{DiscoveryChange, NamespaceConfig, PortConfig, SubsystemConfig};
use paths::uri::zone;
use runtime::{Handle, PeerLimit, ReactorConfig, ReactorStats, Sender};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use terminal::output;

/// A target that runs.
pub struct Launched {
    /// Addresses that hosts connect to, by port: as bound, or as configured to be advertised.
    pub addresses: Vec<SocketAddr>,
    /// Backends, by namespace in the configuration's order.
    pub backends: Vec<Backend>,
    /// Counters of the ports.
    pub board: Arc<Board>,
    /// Log of connections.
    pub log: Arc<Log>,
    handle: Handle<Watched>,
}

impl Launched {
    /// For changes while it runs.
    pub fn sender(&self) -> Sender<TargetControl> {
        self.handle.sender()
    }

    /// Waits until it has ended, by [`TargetControl::Stop`] or an error.
    ///
    /// # Errors
    /// The reactor couldn't go on.
    pub fn join(self) -> anyhow::Result<ReactorStats> {
        let (_, stats) = self.handle.join()?;
        Ok(stats)
    }
}

/// The engine, and whom it wakes when there is something for the log.
pub struct Watched {
    engine: TargetEngine,
    log: Arc<Log>,
    waker: Option<Waker>,
    /// Events of the log that were told of.
    told: u64,
    /// Requests failed by devices that were told of.
    failures: u64,
    /// Faults are or were injected: their counters may change in any turn.
    faulty: bool,
}

impl Around for Watched {
    type Inner = TargetEngine;
    type Control = TargetControl;

    fn inner(&self) -> &TargetEngine {
        &self.engine
    }
    fn inner_mut(&mut self) -> &mut TargetEngine {
        &mut self.engine
    }

    fn handle_control(&mut self, message: TargetControl, now_ns: u64) {
        self.faulty |= matches!(message, TargetControl::Faults(..));
        self.engine.handle_control(message, now_ns);
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.engine.turn(memory, now_ns);
        let (written, failures) = (self.log.written(), self.engine.device_failures());
        if self.faulty || written != self.told || failures != self.failures {
            (self.told, self.failures) = (written, failures);
            if let Some(waker) = &self.waker {
                waker.wake();
            }
        }
    }
}

/// Starts a target; `waker` is woken when there is something for its log.
///
/// # Errors
/// Whatever of it can't be had; each names the key or object.
pub fn launch(config: &Config, waker: Option<Waker>) -> anyhow::Result<Launched> {
    let backends = open_backends(config)?;
    let listeners = config.ports.iter().map(|port| bind(&port.listen));
    let listeners = listeners.collect::<anyhow::Result<Vec<_>>>()?;
    let addresses = listeners.iter().zip(&config.ports);
    let addresses = addresses.map(|(listener, port)| advertised(port, listener.local_addr()?));
    let addresses = addresses.collect::<anyhow::Result<Vec<_>>>()?;
    let engine = TargetEngine::new(TargetConfig {
        subsystem: subsystem(config, &backends, &addresses)?,
        shapes: config.ports.iter().map(|port| port.shape).collect(),
        devices: (0..backends.len() as u16).map(LocalDevice).collect(),
        arena_bytes: config.buffers.0,
        seed: 1,
    });
    let mut engine = engine.map_err(|error| match error.field {
        "nqn" => anyhow!("nqn \"{}\" {}", config.nqn, error.why),
        "cntlid_min" | "cntlid_max" => {
            anyhow!(
                "cntlid {:?} must be [first, last], 1 to 65519",
                config.cntlid
            )
        }
        field => anyhow!("{} {}", key(field), error.why),
    })?;
    for (port, index) in config.ports.iter().zip(0..) {
        let mut faults = Faults::default();
        port.faults.apply(&mut faults, runtime::now_ns());
        engine.set_faults(index, faults);
        for group in config.groups() {
            let ana = TargetControl::AnaGroup(index, group, port.ana.of(group));
            engine.handle_control(ana, runtime::now_ns());
        }
    }
    engine.keep_order();
    tell_discovery(config, &mut engine);
    let (board, log) = (engine.board(), engine.log());
    let reactor = ReactorConfig {
        name: "braid-target".into(),
        cpu: config.cpu,
        polling: config.poll.polling(config.spin, config.poll_cpu_max),
        arena_bytes: config.buffers.0,
        per_peer_max: config
            .connections_per_host
            .map(|most| PeerLimit::new(most.get())),
        addresses: Vec::new(),
        listeners,
        devices: backends
            .iter()
            .map(|backend| backend.device.clone())
            .collect(),
    };
    let watched = Watched {
        engine,
        log: Arc::clone(&log),
        waker,
        told: 0,
        failures: 0,
        faulty: config
            .ports
            .iter()
            .any(|port| port.faults != FaultSettings::default()),
    };
    let handle = runtime::spawn(reactor, watched)?;
    Ok(Launched {
        addresses,
        backends,
        board,
        log,
        handle,
    })
}

/// Sets the discovery log; all of it was checked.
fn tell_discovery(config: &Config, engine: &mut TargetEngine) {
    let offers = config.ports.iter().zip(0..);
    let offers = offers.map(|(port, index)| DiscoveryChange::Offer(index, port.offer.0));
    let rest = [
        DiscoveryChange::Name(config.discovery_nqn.clone()),
        DiscoveryChange::Referrals(referrals(&config.referrals)),
    ];
    for change in offers.chain(rest) {
        engine.handle_control(TargetControl::Discovery(change), runtime::now_ns());
    }
}

/// Name in the configuration of a field of the engine's.
fn key(field: &str) -> &str {
    match field {
        "entries_max" => "queue_entries",
        "io_queues_max" => "io_queues",
        "transfer_shift" => "transfer_size",
        "in_capsule_max" => "in_capsule",
        "connections_max" => "connections",
        "arena_bytes" => "buffers",
        "blocks" => "size",
        other => other,
    }
}

/// The command quiesce time that is reported, ns: as configured, else the longest that a backend
/// needs. 0: not reported, also where one backend can't promise any.
pub fn cqt_ns(config: &Config, backends: &[Backend]) -> u64 {
    let promised = || {
        let each = backends.iter().map(Backend::quiesce_ns);
        each.collect::<Option<Vec<u64>>>()?.into_iter().max()
    };
    match config.cqt {
        Some(configured) => configured.0,
        None => promised().unwrap_or(0),
    }
}

fn open_backends(config: &Config) -> anyhow::Result<Vec<Backend>> {
    if config.namespaces.len() > usize::from(u16::MAX) {
        bail!("{} namespaces are too many", config.namespaces.len());
    }
    let open = config.namespaces.iter().map(|namespace| {
        Backend::open(namespace).with_context(|| format!("namespace {}", namespace.nsid))
    });
    open.collect()
}

/// A listening socket.
fn bind(listen: &str) -> anyhow::Result<TcpListener> {
    let wanted = "write ADDRESS:PORT, an IPv6 address in brackets, port 0 for any free one";
    let context = || format!("cannot listen on \"{listen}\" ({wanted})");
    let in_brackets = zone::host_and_port(listen).map_err(anyhow::Error::msg);
    let mut addresses = match in_brackets.with_context(context)? {
        Some(parts) => parts.to_socket_addrs(),
        None => listen.to_socket_addrs(),
    }
    .with_context(context)?;
    let Some(address) = addresses.next() else {
        bail!("cannot listen on \"{listen}\": it stands for no address");
    };
    patiently(address, || std::thread::sleep(BIND_PAUSE)).map_err(|error| {
        let advice = match error.kind() {
            std::io::ErrorKind::AddrInUse => format!(
                "choose another port, or 0 for any free one; who has it: ss -ltnp 'sport = :{}'",
                address.port()
            ),
            std::io::ErrorKind::AddrNotAvailable => "it is no address of this machine".into(),
            std::io::ErrorKind::PermissionDenied => "ports below 1024 need privileges".into(),
            _ => String::new(),
        };
        let advice = match advice.as_str() {
            "" => output::advice(&error).to_owned(),
            advice => format!(" ({advice})"),
        };
        anyhow::Error::new(error).context(format!("cannot listen on {address}{advice}"))
    })
}

/// A listener there. A socket that a process that was killed left with io_uring is closed by the
/// kernel some moments after its end, and until then the port is in use; so that is asked several
/// times.
fn patiently(address: SocketAddr, mut pause: impl FnMut()) -> std::io::Result<TcpListener> {
    for _ in 0..BIND_TRIES {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => pause(),
            other => return other,
        }
    }
    TcpListener::bind(address)
}

/// The address in the discovery log and in the URI. A wildcard is none that a host could connect to
/// (Base 2.0, 5.16.1.23: TRADDR is the port's address).
fn advertised(port: &Port, bound: SocketAddr) -> anyhow::Result<SocketAddr> {
    let ip = port.advertise.unwrap_or(bound.ip());
    if ip.is_unspecified() {
        bail!(
            "listen \"{}\" is every address, and hosts must be told one: add advertise=ADDRESS, or \
             listen on that address",
            port.listen
        );
    }
    if ip == bound.ip() {
        return Ok(bound); // with its zone
    }
    Ok(SocketAddr::new(ip, bound.port()))
}

fn subsystem(
    config: &Config,
    backends: &[Backend],
    addresses: &[SocketAddr],
) -> anyhow::Result<SubsystemConfig> {
    let transfer = config.transfer_size.0;
    if !transfer.is_power_of_two() || !(8192..=1 << 20).contains(&transfer) {
        bail!("transfer_size {transfer} is not a power of two from 8 KiB to 1 MiB");
    }
    let cqt_ms = cqt_ns(config, backends).div_ceil(1_000_000);
    if cqt_ms > CQT_MS_MAX {
        bail!("cqt {cqt_ms} ms is more than the {CQT_MS_MAX} ms that can be reported");
    }
    let mut namespaces = Vec::new();
    for (namespace, backend) in config.namespaces.iter().zip(backends) {
        let block_shift = namespace.block_shift()?;
        namespaces.push(NamespaceConfig {
            nsid: namespace.nsid,
            blocks: backend.bytes >> block_shift,
            block_shift,
            uuid: namespace.uuid(&config.nqn),
            nguid: namespace.nguid(&config.nqn),
            ana_group: namespace.ana_group,
            read_only: namespace.read_only,
            deallocate_zeroes: backend.deallocate_zeroes(),
        });
    }
    let ports = config.ports.iter().zip(addresses).zip(1..);
    let ports = ports.map(|((port, address), id)| PortConfig {
        id,
        traddr: address.ip().to_string(),
        trsvcid: address.port().to_string(),
        ipv6: address.is_ipv6(),
        ana: port.ana.of(1),
    });
    Ok(SubsystemConfig {
        nqn: config.nqn.clone(),
        serial: config.serial(),
        model: config.model.clone(),
        cntlid_min: config.cntlid[0],
        cntlid_max: config.cntlid[1],
        namespaces,
        ports: ports.collect(),
        hosts: config.hosts.clone(),
        entries_max: config.queue_entries,
        io_queues_max: config.io_queues,
        transfer_shift: transfer.ilog2() as u8,
        in_capsule_max: u32::try_from(config.in_capsule.0)?,
        maxh2cdata: transfer as u32,
        c2h_success: true,
        cqt_ms: cqt_ms as u16,
        // Data in the cache of a file or disk is durable only after a flush.
        volatile_write_cache: backends
            .iter()
            .any(|backend| matches!(backend.device, runtime::Device::File(_))),
        compare: true,
        lba_status: true,
        connections_max: config.connections,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_let_go_of_is_taken_and_one_in_use_is_not_waited_for_long() {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let mut pauses = 0;
        let error = patiently(address, || pauses += 1).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
        assert_eq!(pauses, BIND_TRIES);
        let (mut other, mut pauses) = (Some(other), 0);
        let pause = || {
            pauses += 1;
            if pauses == BIND_TRIES {
                other = None;
            }
        };
        assert_eq!(
            patiently(address, pause).unwrap().local_addr().unwrap(),
            address
        );
    }
}
