//! Admission of connections: a share for each peer's address, and log lines about refused ones.
//!
//! Decides, from the addresses of those who are connected, whether one more of the same address
//! comes in. How many there may be in all is the machine's to say.
//!
//! # Contract
//! An admitted connection stays. Unix sockets have no address and no share. Reactors that have one
//! [`PeerLimit`] count together, under a lock that is held for one look-up. Log lines about refused
//! connections are limited in rate ([`Seldom`]).
use engine::seldom::Seldom;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections by address; those that have none aren't there.
type Peers = HashMap<IpAddr, u32>;

/// Most connections of one address, over all reactors with a clone of it.
#[derive(Clone, Debug)]
pub struct PeerLimit {
    most: u32,
    peers: Arc<Mutex<Peers>>,
}

impl PeerLimit {
    /// At most so many of each address.
    pub fn new(most: u32) -> Self {
        Self {
            most,
            peers: Arc::default(),
        }
    }

    fn peers(&self) -> MutexGuard<'_, Peers> {
        // Every change to it is one assignment.
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more comes in, which counts from now on.
    fn enter(&self, peer: IpAddr) -> bool {
        let mut peers = self.peers();
        let count = peers.get(&peer).copied().unwrap_or(0);
        if count < self.most {
            peers.insert(peer, count + 1);
        }
        count < self.most
    }

    fn leave(&self, peer: IpAddr) {
        let mut peers = self.peers();
        let Some(count) = peers.get_mut(&peer) else {
            unreachable!("{peer} leaves, and has no connection");
        };
        *count -= 1;
        if *count == 0 {
            peers.remove(&peer);
        }
    }
}

pub(crate) struct Admission {
    /// `None`: no bound.
    limit: Option<PeerLimit>,
    turned_away: Seldom,
}

impl Admission {
    pub(crate) fn new(limit: Option<PeerLimit>) -> Self {
        Self {
            limit,
            turned_away: Seldom::new(1),
        }
    }

    /// Where a connection comes from, if that has a share.
    pub(crate) fn peer(&self, socket: impl AsFd) -> Option<IpAddr> {
        self.limit.as_ref()?;
        let address = rustix::net::getpeername(socket).ok().flatten()?;
        let address = SocketAddr::try_from(address).ok()?;
        Some(address.ip().to_canonical())
    }

    /// Lets one more in. If it can't be, and it is time for a line: how many didn't come in.
    pub(crate) fn enter(&mut self, peer: Option<IpAddr>, now_ns: u64) -> Result<(), Option<u32>> {
        let (Some(peer), Some(limit)) = (peer, &self.limit) else {
            return Ok(());
        };
        if limit.enter(peer) {
            return Ok(());
        }
        Err(self.turned_away.one_more(now_ns))
    }

    /// One that was let in is gone.
    pub(crate) fn leave(&self, peer: Option<IpAddr>) {
        if let (Some(peer), Some(limit)) = (peer, &self.limit) {
            limit.leave(peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::limits::SAID_NS;

    #[test]
    fn each_address_has_its_share_and_gives_it_back() {
        let limit = PeerLimit::new(2);
        // Of two reactors.
        let (mut admission, mut other) = (
            Admission::new(Some(limit.clone())),
            Admission::new(Some(limit)),
        );
        let [a, b] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        assert_eq!(admission.enter(a, 0), Ok(()));
        assert_eq!(other.enter(a, 0), Ok(()));
        assert_eq!(admission.enter(a, 0), Err(Some(1)));
        assert_eq!(other.enter(a, 0), Err(Some(1)), "each has its own lines");
        assert_eq!(admission.enter(a, 5), Err(None));
        assert_eq!(admission.enter(b, 5), Ok(()));
        assert_eq!(admission.enter(None, 5), Ok(()));
        assert_eq!(admission.enter(a, SAID_NS), Err(Some(2)));
        other.leave(a);
        assert_eq!(admission.enter(a, 6), Ok(()));
        for peer in [a, a, b] {
            admission.leave(peer);
        }
        assert!(admission.limit.unwrap().peers().is_empty());
    }
}
