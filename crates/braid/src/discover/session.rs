//! The discovery machine on a reactor of its own, and a session that reads every log once.
//!
//! # Contract
//! The reactor's thread hands every event to a channel; who takes them answers those that lead
//! somewhere ([`lead`]), so that a connection is never waited for there.
//!
//! # Limits
//! [`EVENTS_MAX`] events wait; while there is no room the reactor waits too, and so do the
//! controllers that tell more. It has nothing else to do.
use anyhow::{Context, bail};
use engine::discovery::{
    DiscoveryConfig, DiscoveryControl, DiscoveryEngine, DiscoveryEvent, Endpoint, Offer,
};
use engine::machine::Memory;
use engine::{Around, Machine};
use nvme::host::{Digests, DiscoveryLog, HostIdentity};
use runtime::{Handle, ReactorConfig, Sender};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

/// Arena of the reactor, bytes: nothing of discovery is payload.
const ARENA_BYTES: u64 = 64 << 10;
/// Most events that wait to be taken: each may be a log of 1024 entries, some MiB.
const EVENTS_MAX: usize = 8;
/// How often somebody looks whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// Longest wait for controllers that don't say that they are shut down.
const LEAVE: Duration = Duration::from_secs(1);

/// The machine, and whom it tells.
pub struct Seeker {
    engine: DiscoveryEngine,
    events: SyncSender<DiscoveryEvent>,
}

impl Around for Seeker {
    type Inner = DiscoveryEngine;
    type Control = DiscoveryControl;

    fn inner(&self) -> &DiscoveryEngine {
        &self.engine
    }
    fn inner_mut(&mut self) -> &mut DiscoveryEngine {
        &mut self.engine
    }

    fn handle_control(&mut self, message: DiscoveryControl, now_ns: u64) {
        self.engine.handle_control(message, now_ns);
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.engine.turn(memory, now_ns);
        while let Some(event) = self.engine.poll_event() {
            // A receiver that has gone needs no event.
            let _ = self.events.send(event);
        }
    }
}

/// Starts a reactor with the machine.
///
/// # Errors
/// Memory, a thread or io_uring can't be had.
pub fn start(
    config: DiscoveryConfig,
) -> anyhow::Result<(Handle<Seeker>, Receiver<DiscoveryEvent>)> {
    let (events, told) = channel();
    let engine = DiscoveryEngine::new(config);
    let reactor = ReactorConfig {
        name: "braid-discovery".into(),
        cpu: None,
        polling: runtime::Polling::Never,
        arena_bytes: ARENA_BYTES,
        per_peer_max: None,
        addresses: Vec::new(),
        listeners: Vec::new(),
        devices: Vec::new(),
    };
    let handle = runtime::spawn(reactor, Seeker { engine, events })?;
    Ok((handle, told))
}

fn channel() -> (SyncSender<DiscoveryEvent>, Receiver<DiscoveryEvent>) {
    sync_channel(EVENTS_MAX)
}

/// Makes an address known that the machine wants to connect to; any other event comes back.
pub fn lead(to: &Sender<DiscoveryControl>, event: DiscoveryEvent) -> Option<DiscoveryEvent> {
    let DiscoveryEvent::Lead(place, address) = event else {
        return Some(event);
    };
    to.set_address(place, address);
    to.send(DiscoveryControl::Led(place));
    None
}

/// A session that reads every log once.
pub fn once(identity: HostIdentity, digests: Digests, timeout: Duration) -> DiscoveryConfig {
    DiscoveryConfig {
        identity,
        digests,
        kato_ms: 0,
        connect_timeout_ns: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
        // Nothing is tried again.
        reconnect_min_ns: 1,
        reconnect_max_ns: 1,
        poll_ns: u64::MAX,
    }
}

/// Findings of a session.
#[derive(Debug, Default)]
pub struct Discovered {
    /// Each log with its controller and the referrals to it, in the order they were read. Where a
    /// nearer one refers to others later, the last ones give them their places, and are dropped.
    pub logs: Vec<(Endpoint, u8, DiscoveryLog)>,
    /// Controllers that could not be read.
    pub lost: Vec<(Endpoint, String)>,
    /// Controllers that were not asked.
    pub too_many: Vec<Endpoint>,
    /// Ways to subsystems, and who told of each.
    pub offers: Vec<(Offer, Endpoint)>,
}

impl Discovered {
    /// These controllers are asked and no others: what others told holds no more.
    fn keep_only(&mut self, asked: &BTreeSet<Endpoint>) {
        self.logs.retain(|(from, ..)| asked.contains(from));
        self.lost.retain(|(endpoint, _)| asked.contains(endpoint));
    }

    /// Why a controller could not be read; `None`: it was.
    pub fn why(&self, endpoint: &Endpoint) -> Option<&str> {
        if self.logs.iter().any(|(from, ..)| from == endpoint) {
            return None;
        }
        let mut lost = self.lost.iter();
        let found = lost.find(|(it, _)| it == endpoint);
        let why = found.map(|(_, why)| why.as_str());
        Some(why.unwrap_or("its log was not there in time"))
    }
}

/// Reads the logs of a controller and of those that it refers to, those that are there until
/// somebody wants to `stop`, which is asked ten times a second.
///
/// # Errors
/// No reactor can be had. A controller that can't be read is a result.
pub fn read_once(
    config: DiscoveryConfig,
    root: &Endpoint,
    stop: &dyn Fn() -> bool,
) -> anyhow::Result<Discovered> {
    let (handle, events) = start(config)?;
    let to = handle.sender();
    to.send(DiscoveryControl::Add(0, root.clone()));
    let mut found = Discovered::default();
    loop {
        if stop() {
            break;
        }
        let event = match events.recv_timeout(TICK) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => {
                handle.join()?;
                bail!("discovery has ended unexpectedly");
            }
        };
        match lead(&to, event) {
            None | Some(DiscoveryEvent::Lead(..) | DiscoveryEvent::Left(_)) => {}
            Some(DiscoveryEvent::Asked(all)) => found.keep_only(&all),
            Some(DiscoveryEvent::Read(from, depth, log)) => found.logs.push((from, depth, log)),
            Some(DiscoveryEvent::Lost(endpoint, why)) => found.lost.push((endpoint, why)),
            Some(DiscoveryEvent::TooMany(endpoints)) => found.too_many = endpoints,
            Some(DiscoveryEvent::Appeared(offer, by)) => found.offers.push((offer, by)),
            Some(DiscoveryEvent::Gone(gone)) => found.offers.retain(|(offer, _)| *offer != gone),
            Some(DiscoveryEvent::Finished) => break,
        }
    }
    to.send(DiscoveryControl::Stop);
    // The reactor must not wait for room.
    drop(events);
    leave(handle)?;
    found.logs.sort_by_key(|(_, depth, _)| *depth);
    Ok(found)
}

/// The controllers are left in order, those that let us go within [`LEAVE`].
fn leave(handle: Handle<Seeker>) -> anyhow::Result<()> {
    let (over, is_over) = sync_channel(1);
    let joins = std::thread::Builder::new().spawn(move || {
        // The waiter may have gone on.
        let _ = over.send(handle.join().map(drop));
    });
    joins.context("discovery")?;
    match is_over.recv_timeout(LEAVE) {
        Ok(joined) => joined.context("discovery"),
        Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 16 places each may be another one's once a nearer controller answers.
    #[test]
    fn logs_of_controllers_left_again_are_dropped() {
        let at = |port: u16| Endpoint {
            address: ([127, 0, 0, 1], port).into(),
            nqn: nvme::wire::fabrics::DISCOVERY_NQN.into(),
        };
        let log = || DiscoveryLog {
            generation: 1,
            entries: Vec::new(),
        };
        let mut found = Discovered {
            logs: (1..=3).map(|port| (at(port), 1, log())).collect(),
            lost: vec![(at(4), "refused".into()), (at(5), "refused".into())],
            ..Discovered::default()
        };
        found.keep_only(&[at(1), at(3), at(5), at(6)].into());
        let ports: Vec<_> = found.logs.iter().map(|it| it.0.address.port()).collect();
        assert_eq!(ports, [1, 3]);
        assert_eq!(found.why(&at(5)), Some("refused"));
        assert_eq!(found.lost.len(), 1);
    }

    #[test]
    fn events_that_nobody_takes_are_few() {
        let (events, told) = channel();
        for _ in 0..EVENTS_MAX {
            events.try_send(DiscoveryEvent::Finished).unwrap();
        }
        assert!(events.try_send(DiscoveryEvent::Finished).is_err());
        drop(told);
        // The reactor goes on when nobody listens any more.
        assert!(events.send(DiscoveryEvent::Finished).is_err());
    }
}
