//! Admission of connections: a share for each peer's address, and log lines about refused ones.
//!
//! Decides, from the addresses of those who are connected, whether one more of the same address
//! comes in. How many there may be in all is the machine's to say.
//!
//! # Contract
//! An admitted connection stays. Unix sockets have no address and no share. Log lines about refused
//! connections are limited in rate ([`Seldom`]).
use engine::seldom::Seldom;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

pub(crate) struct Admission {
    /// Most connections of one address; `None`: no bound.
    per_peer_max: Option<u32>,
    /// Connections by address; those that have none aren't there.
    peers: HashMap<IpAddr, u32>,
    turned_away: Seldom,
}

impl Admission {
    pub(crate) fn new(per_peer_max: Option<u32>) -> Self {
        Self {
            per_peer_max,
            peers: HashMap::new(),
            turned_away: Seldom::new(1),
        }
    }

    /// Where a connection comes from, if that has a share.
    pub(crate) fn peer(&self, socket: impl AsFd) -> Option<IpAddr> {
        self.per_peer_max?;
        let address = rustix::net::getpeername(socket).ok().flatten()?;
        let address = SocketAddr::try_from(address).ok()?;
        Some(address.ip().to_canonical())
    }

    /// Whether one more comes in. If not, and it is time for a line, how many didn't.
    pub(crate) fn admits(&mut self, peer: Option<IpAddr>, now_ns: u64) -> Result<(), Option<u32>> {
        let (Some(peer), Some(most)) = (peer, self.per_peer_max) else {
            return Ok(());
        };
        if self.peers.get(&peer).copied().unwrap_or(0) < most {
            return Ok(());
        }
        Err(self.turned_away.one_more(now_ns))
    }

    pub(crate) fn enter(&mut self, peer: Option<IpAddr>) {
        if let Some(peer) = peer {
            *self.peers.entry(peer).or_default() += 1;
        }
    }

    pub(crate) fn leave(&mut self, peer: Option<IpAddr>) {
        let Some(peer) = peer else { return };
        let Some(count) = self.peers.get_mut(&peer) else {
            unreachable!("{peer} leaves, and has no connection");
        };
        *count -= 1;
        if *count == 0 {
            self.peers.remove(&peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::limits::SAID_NS;

    #[test]
    fn each_address_has_its_share_and_gives_it_back() {
        let mut admission = Admission::new(Some(2));
        let [a, b] = [1, 2].map(|last| Some(IpAddr::from([10, 0, 0, last])));
        for _ in 0..2 {
            assert_eq!(admission.admits(a, 0), Ok(()));
            admission.enter(a);
        }
        assert_eq!(admission.admits(a, 0), Err(Some(1)));
        assert_eq!(admission.admits(a, 5), Err(None));
        assert_eq!(admission.admits(b, 5), Ok(()));
        assert_eq!(admission.admits(None, 5), Ok(()));
        assert_eq!(admission.admits(a, SAID_NS), Err(Some(2)));
        admission.leave(a);
        assert_eq!(admission.admits(a, 6), Ok(()));
        admission.leave(a);
        assert!(admission.peers.is_empty());
    }
}
