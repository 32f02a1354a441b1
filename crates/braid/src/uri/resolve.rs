//! Where the host of a path is.
use super::NvmeTcp;
use crate::limits::ADDRESSES_TRIED_MAX;
use anyhow::{Context, bail};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Longest wait for each of several addresses of one name.
const PROBE: Duration = Duration::from_secs(2);

impl NvmeTcp {
    /// The address to connect to. Where the name stands for several, each is tried in turn and the
    /// first that accepts a connection is taken; this blocks.
    ///
    /// # Errors
    /// The name can't be resolved; none of several addresses accepts.
    pub fn resolve(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.resolve_all()?.0)
    }

    /// The same, and all addresses that the name stands for.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn resolve_all(&self) -> anyhow::Result<(SocketAddr, Vec<SocketAddr>)> {
        let advice = "check the name, or write the address";
        let mut addresses: Vec<_> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .with_context(|| format!("cannot resolve the host \"{}\" ({advice})", self.host))?
            .take(ADDRESSES_TRIED_MAX)
            .collect();
        addresses.dedup();
        match addresses[..] {
            [] => bail!("the host \"{}\" has no address ({advice})", self.host),
            [only] => Ok((only, addresses)),
            _ => first_to_accept(&addresses)
                .map(|first| (first, addresses))
                .with_context(|| format!("cannot connect to the host \"{}\"", self.host)),
        }
    }
}

fn first_to_accept(addresses: &[SocketAddr]) -> anyhow::Result<SocketAddr> {
    let mut refusals = Vec::new();
    for address in addresses {
        match TcpStream::connect_timeout(address, PROBE) {
            Ok(_) => return Ok(*address),
            Err(error) => refusals.push(format!("{address}: {error}")),
        }
    }
    bail!(
        "none of its addresses accepts (check the port, and that the target runs): {}",
        refusals.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn of_several_addresses_the_first_that_accepts_is_taken() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let accepts = listener.local_addr().unwrap();
        // Loopback has the whole of 127.0.0.0/8; on this port only the first listens.
        let deaf = [2, 3].map(|last| SocketAddr::from(([127, 0, 0, last], accepts.port())));
        let found = first_to_accept(&[deaf[0], accepts, deaf[1]]);
        assert_eq!(found.unwrap(), accepts);
        let error = format!("{:#}", first_to_accept(&deaf).unwrap_err());
        for address in deaf {
            assert!(error.contains(&address.to_string()), "{error}");
        }
    }
}
