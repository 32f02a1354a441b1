//! Discovery: reads the logs of discovery controllers, follows their referrals, and says which ways
//! to subsystems appear and go.
//!
//! `impl Machine for DiscoveryEngine`, beside the host's engine on a reactor of its own, so that
//! nothing of it waits for I/O (T28). With a keep-alive time-out its sessions are persistent: each
//! controller's log is read again when that says that it has changed, or now and then where it
//! can't say so, and a lost controller is connected again. Without one every log is read once.
//!
//! * [`offer`]: what of an entry can be used; [`Unusable`]: why it can't
//! * `peer`: one controller; `tree`: which ones there are to be, and what they tell together
//!
//! # Contract
//! A way that any controller in reach tells is there until none does: what a lost controller said
//! last holds until it says something else or nobody refers to it any more. A controller is in
//! reach of a source by at most [`DISCOVERY_DEPTH_MAX`] referrals, and is connected once whoever
//! refers to it, so that loops end by themselves. Where there are more than have places, sources
//! take turns: none pushes out all that another one refers to.
//!
//! Addresses are the driver's: [`DiscoveryEvent::Lead`] names a number, and the connection is asked
//! for after [`DiscoveryControl::Led`].
//!
//! # Limits
//! [`DISCOVERY_CONTROLLERS_MAX`] controllers, each with [`DISCOVERY_ENTRIES_MAX`] entries; what a
//! log has more of, or refers to beyond that, is said and not used.
//!
//! [`DISCOVERY_CONTROLLERS_MAX`]: crate::limits::DISCOVERY_CONTROLLERS_MAX
//! [`DISCOVERY_DEPTH_MAX`]: crate::limits::DISCOVERY_DEPTH_MAX
//! [`DISCOVERY_ENTRIES_MAX`]: nvme::limits::DISCOVERY_ENTRIES_MAX
mod offer;
mod peer;
mod tree;

pub use offer::{Endpoint, Found, Unusable, offer};

use crate::limits::DISCOVERY_CONTROLLERS_MAX;
use crate::machine::{Closed, ConnId, DeviceError, Machine, Memory, Output, Place, Send};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::string::String;
use alloc::vec::Vec;
use core::net::SocketAddr;
use nvme::host::{Digests, DiscoveryLog, HostIdentity};
use peer::Peer;

/// How discovery is done.
#[derive(Clone, Debug)]
pub struct DiscoveryConfig {
    /// Identity of the asking host.
    pub identity: HostIdentity,
    /// Digests wanted.
    pub digests: Digests,
    /// Keep-alive time-out of persistent sessions, ms; 0: every log is read once.
    pub kato_ms: u32,
    /// Longest wait for a connection, and for any one answer, ns.
    pub connect_timeout_ns: u64,
    /// First wait before a lost controller is connected again, ns; doubled with every failure.
    pub reconnect_min_ns: u64,
    /// Longest such wait, ns.
    pub reconnect_max_ns: u64,
    /// How often a log is read whose controller doesn't say that it has changed, ns.
    pub poll_ns: u64,
}

/// Changes that its owner asks of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryControl {
    /// A discovery controller to begin with, under a number of the caller's.
    Add(u32, Endpoint),
    /// It is not to begin with any more.
    Remove(u32),
    /// The address number of a [`DiscoveryEvent::Lead`] stands for its address from now on.
    Led(u32),
    /// Ends all sessions in order, then comes `Output::Stop`.
    Stop,
}

/// A way to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    /// Subsystem NQN.
    pub nqn: String,
    /// Where it is.
    pub address: SocketAddr,
}

/// Events for its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiscoveryEvent {
    /// This address number is to stand for that address; to be answered by
    /// [`DiscoveryControl::Led`].
    Lead(u32, SocketAddr),
    /// These controllers are asked from now on and no others: the sources, and those in reach.
    /// Comes before the [`Self::Read`] that refers to them.
    Asked(BTreeSet<Endpoint>),
    /// A log was read, as far from its source as so many referrals.
    Read(Endpoint, u8, DiscoveryLog),
    /// A controller is lost, or could not be used, for this reason; not said again while the reason
    /// stays the same. It is tried again, unless every log is read once.
    Lost(Endpoint, String),
    /// A controller is left: nobody refers to it any more.
    Left(Endpoint),
    /// Referrals to these are not followed, because there are too many or they are too far.
    TooMany(Vec<Endpoint>),
    /// A way is there, told by that controller.
    Appeared(Offer, Endpoint),
    /// No controller tells of it any more.
    Gone(Offer),
    /// Without keep-alive: every log in reach was read, or can't be.
    Finished,
}

/// See the module.
pub struct DiscoveryEngine {
    config: DiscoveryConfig,
    /// By connection, which is also the address number.
    peers: Vec<Option<Peer>>,
    /// Controllers to begin with, by the caller's number.
    sources: BTreeMap<u32, Endpoint>,
    /// Subsystems that were announced, and the controller that announced each.
    offers: BTreeMap<Offer, Endpoint>,
    /// Controllers that were said to be asked.
    asked: BTreeSet<Endpoint>,
    /// Controllers that were said to be too many.
    too_many: Vec<Endpoint>,
    events: VecDeque<DiscoveryEvent>,
    outputs: VecDeque<Output>,
    finished: bool,
    stopping: bool,
    stopped: bool,
}

impl DiscoveryEngine {
    /// Knows of no controller.
    pub fn new(config: DiscoveryConfig) -> Self {
        let room = DISCOVERY_CONTROLLERS_MAX;
        Self {
            config,
            peers: core::iter::repeat_with(|| None).take(room).collect(),
            sources: BTreeMap::new(),
            offers: BTreeMap::new(),
            asked: BTreeSet::new(),
            too_many: Vec::new(),
            events: VecDeque::new(),
            outputs: VecDeque::new(),
            finished: false,
            stopping: false,
            stopped: false,
        }
    }

    /// Takes the next event.
    pub fn poll_event(&mut self) -> Option<DiscoveryEvent> {
        self.events.pop_front()
    }

    /// All ways that are there, and who told of each.
    pub fn offers(&self) -> impl Iterator<Item = (&Offer, &Endpoint)> {
        self.offers.iter()
    }

    fn is_persistent(&self) -> bool {
        self.config.kato_ms > 0
    }

    fn peer(&mut self, conn: ConnId) -> Option<&mut Peer> {
        self.peers.get_mut(conn.0 as usize)?.as_mut()
    }

    /// Everything is over.
    fn stop_when_over(&mut self) {
        if self.stopping && !self.stopped && self.peers.iter().all(Option::is_none) {
            self.stopped = true;
            self.outputs.push_back(Output::Stop);
        }
    }
}

impl Machine for DiscoveryEngine {
    type Control = DiscoveryControl;

    fn connections_max(&self) -> u32 {
        self.peers.len() as u32
    }

    /// Never: nobody connects to it.
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        None
    }

    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.connected(conn, now_ns);
    }

    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        self.received(conn, bytes, now_ns);
        bytes.len()
    }

    /// Never: logs are the machine's own.
    fn placement(&mut self, _: ConnId) -> Option<Place> {
        None
    }

    fn handle_payload(&mut self, _: ConnId, _: u32, _: u32, _: u64) {}

    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        let admin = self.peer(conn)?.admin_to_send()?;
        admin.poll_transmit(out, now_ns).map(|_| None)
    }

    fn handle_sent(&mut self, _: ConnId, _: u32, _: u64) {}

    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.closed(conn, why, now_ns);
    }

    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}

    fn handle_control(&mut self, message: DiscoveryControl, now_ns: u64) {
        match message {
            DiscoveryControl::Add(..) if self.stopping => {}
            DiscoveryControl::Add(source, endpoint) => {
                self.sources.insert(source, endpoint);
                self.finished = false;
                self.look_around(now_ns);
            }
            DiscoveryControl::Remove(source) => {
                self.sources.remove(&source);
                self.look_around(now_ns);
            }
            DiscoveryControl::Led(place) => self.led(ConnId(place), now_ns),
            DiscoveryControl::Stop => {
                self.stopping = true;
                self.sources.clear();
                self.look_around(now_ns);
                self.stop_when_over();
            }
        }
    }

    fn turn(&mut self, _: &mut dyn Memory, _: u64) {}

    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn poll_timeout(&self) -> Option<u64> {
        match self.outputs.is_empty() {
            false => Some(0),
            true => self
                .peers
                .iter()
                .flatten()
                .filter_map(Peer::timeout_ns)
                .min(),
        }
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        for place in 0..self.peers.len() {
            self.timed_out(ConnId(place as u32), now_ns);
        }
    }
}
