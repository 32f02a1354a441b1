//! Where the host of a path is.
//!
//! # Contract
//! Looking up a name may block for as long as the system's resolver does, and trying addresses
//! takes [`PROBE`] for each: neither is done on a reactor's thread. [`NvmeTcp::find_within`] bounds
//! how long its caller waits.
use super::{NvmeTcp, zone};
use crate::limits::ADDRESSES_TRIED_MAX;
use anyhow::{Context, anyhow, bail};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::time::Duration;

/// Longest wait for each of several addresses of one name.
const PROBE: Duration = Duration::from_secs(2);

const ADVICE: &str = "check the name, or write the address";

/// Where to begin with the addresses of a name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Start {
    /// The address before, where there was one.
    pub before: Option<SocketAddr>,
    /// It failed again: the one behind it is tried first.
    pub failed: bool,
}

/// Where a host is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The address to connect to.
    pub address: SocketAddr,
    /// All that its name stands for.
    pub all: Vec<SocketAddr>,
    /// Why none of several addresses accepts a connection; then `address` is the first in turn.
    pub refused: Option<String>,
}

impl NvmeTcp {
    /// Where to connect. Where the name stands for several addresses, each is tried in turn and the
    /// first that accepts a connection is taken; this blocks.
    ///
    /// # Errors
    /// The name can't be resolved; none of several addresses accepts.
    pub fn resolve(&self) -> anyhow::Result<Found> {
        let mut found = self.find(Start::default())?;
        match found.refused.take() {
            None => Ok(found),
            Some(why) => {
                Err(anyhow!(why).context(format!("cannot connect to the host \"{}\"", self.host)))
            }
        }
    }

    /// Whether its address has to be looked up: a name, or an interface's.
    pub fn is_named(&self) -> bool {
        self.host.parse::<IpAddr>().is_err()
    }

    /// Looks the name up, and chooses among its addresses.
    ///
    /// # Errors
    /// The name can't be resolved.
    pub fn find(&self, start: Start) -> anyhow::Result<Found> {
        let all = self.look_up()?;
        Ok(choose(all, start))
    }

    /// The same, waiting no longer than `wait`.
    ///
    /// # Errors
    /// The name can't be resolved, or is not by then.
    pub fn find_within(&self, start: Start, wait: Duration) -> anyhow::Result<Found> {
        if !self.is_named() {
            return self.find(start);
        }
        let (to, found) = mpsc::sync_channel(1);
        let it = self.clone();
        let find = move || drop(to.try_send(it.find(start)));
        let builder = std::thread::Builder::new().name("resolve".into());
        builder.spawn(find).context("cannot start a thread")?;
        found.recv_timeout(wait).unwrap_or_else(|_| {
            let host = &self.host;
            Err(anyhow!(
                "the host \"{host}\" is not resolved yet: no answer so far ({ADVICE})"
            ))
        })
    }

    fn look_up(&self) -> anyhow::Result<Vec<SocketAddr>> {
        if let Ok(IpAddr::V6(ip)) = self.host.parse()
            && ip.is_unicast_link_local()
        {
            bail!("{ip} is a link-local address: say which interface, as in [{ip}%25eth0]");
        }
        let mut all: Vec<_> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve the host \"{}\" ({ADVICE})", self.host))?
            .take(ADDRESSES_TRIED_MAX)
            .collect();
        all.dedup();
        if all.is_empty() {
            bail!("the host \"{}\" has no address ({ADVICE})", self.host);
        }
        Ok(all)
    }

    /// Where it is, if that is written in numbers, or with an interface that is there.
    pub fn written(&self) -> Option<SocketAddr> {
        match self.host.parse::<IpAddr>() {
            Ok(ip) => Some(SocketAddr::new(ip, self.port)),
            Err(_) => {
                let mut it = zone::address(&self.host)?;
                it.set_port(self.port);
                Some(it.into())
            }
        }
    }
}

/// The one of several addresses that is tried next; not empty.
fn choose(mut all: Vec<SocketAddr>, start: Start) -> Found {
    let at = |address, all| Found {
        address,
        all,
        refused: None,
    };
    let before = start
        .before
        .and_then(|it| all.iter().position(|at| *at == it));
    if let Some(place) = before {
        all.rotate_left(place);
    }
    if start.failed && before.is_some() {
        all.rotate_left(1);
    }
    let first = all[0];
    if all.len() == 1 {
        return at(first, all);
    }
    match first_to_accept(&all) {
        Ok(address) => at(address, all),
        Err(why) => Found {
            refused: Some(why),
            ..at(first, all)
        },
    }
}

fn first_to_accept(addresses: &[SocketAddr]) -> Result<SocketAddr, String> {
    let mut refusals = Vec::new();
    for address in addresses {
        match TcpStream::connect_timeout(address, PROBE) {
            Ok(_) => return Ok(*address),
            Err(error) => refusals.push(format!("{address}: {error}")),
        }
    }
    Err(format!(
        "none of its addresses accepts (check the port, and that the target runs): {}",
        refusals.join("; ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn of_several_addresses_the_first_that_accepts_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepts = listener.local_addr().unwrap();
        // Loopback has the whole of 127.0.0.0/8; on this port only the first listens.
        let deaf = [2, 3].map(|last| SocketAddr::from(([127, 0, 0, last], accepts.port())));
        let found = first_to_accept(&[deaf[0], accepts, deaf[1]]);
        assert_eq!(found, Ok(accepts));
        let error = first_to_accept(&deaf).unwrap_err();
        for address in deaf {
            assert!(error.contains(&address.to_string()), "{error}");
        }
    }

    #[test]
    fn all_addresses_are_tried_in_turn() {
        // Another process may have the port of the first at the second address.
        let both = (0..16).find_map(|_| {
            let first = TcpListener::bind("127.0.0.1:0").ok()?;
            let port = first.local_addr().ok()?.port();
            let second = TcpListener::bind(("127.0.0.2", port)).ok()?;
            Some((first, second, port))
        });
        let Some((first, second, port)) = both else {
            let line = "SKIP all_addresses_are_tried_in_turn: no port is free at 127.0.0.2\n";
            let _ = std::io::stderr().write_all(line.as_bytes());
            return;
        };
        let of = |last| SocketAddr::from(([127, 0, 0, last], port));
        let all = vec![of(1), of(2), of(3)];
        let next = |before, failed| {
            let start = Start {
                before: Some(before),
                failed,
            };
            choose(all.clone(), start)
        };
        assert_eq!(choose(all.clone(), Start::default()).address, of(1));
        assert_eq!(next(of(2), false).address, of(2), "the one before accepts");
        let other = next(of(1), true).address;
        assert_eq!(other, of(2), "another attempt there failed");
        let deaf = next(of(2), true).address;
        assert_eq!(deaf, of(1), "the third one does not accept");
        let gone = next(of(9), true).address;
        assert_eq!(gone, of(1), "no longer an address of the name");
        drop(second);
        assert_eq!(next(of(2), false).address, of(1));
        drop(first);
        let found = next(of(1), true);
        assert_eq!(found.address, of(2), "none accepts: the next in turn");
        assert!(found.refused.is_some_and(|why| why.contains("127.0.0.3")));
    }

    #[test]
    fn link_local_address_without_an_interface_is_refused() {
        let host = |host: &str| NvmeTcp {
            host: host.into(),
            port: 4420,
            subsystem: "nqn.x".into(),
            nsid: None,
        };
        let error = host("fe80::1").resolve().unwrap_err().to_string();
        assert!(error.contains("[fe80::1%25eth0]"), "{error}");
        let found = host("fe80::1%lo").resolve().unwrap().address;
        assert_eq!(Some(found), host("fe80::1%lo").written());
        assert!(matches!(found, SocketAddr::V6(it) if it.scope_id() == 1 && it.port() == 4420));
    }
}
