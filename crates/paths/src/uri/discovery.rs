//! Where a discovery controller is: `nvme-tcp://HOST[:PORT][/NQN]`, port 8009 and the well-known
//! discovery NQN unless given.
use super::{NvmeTcp, PathUri, UriError, UriKind, escaped, malformed, without_zone, zone};
use engine::discovery::Endpoint;
use nvme::wire::fabrics::DISCOVERY_NQN;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Where discovery controllers listen (NVMe-TCP 1.0, 3.1.1).
pub const DISCOVERY_PORT: u16 = 8009;

/// A discovery controller as the user wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryUri(NvmeTcp);

impl DiscoveryUri {
    /// Of its parts; `nqn`: the discovery subsystem's own name, where it has one.
    ///
    /// # Errors
    /// One of them can't be.
    pub fn new(host: &str, port: u16, nqn: Option<&str>) -> Result<Self, UriError> {
        let zoned = zone::host(host).map_err(UriError::Malformed);
        let host = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]"),
            _ if host.contains('%') => format!("[{}]", encoded(&zoned?)),
            _ => host.to_owned(),
        };
        let nqn = nqn.map_or(String::new(), |nqn| format!("/{}", escaped(nqn)));
        format!("nvme-tcp://{host}:{port}{nqn}").parse()
    }

    /// The endpoint; this may look up a name, and block.
    ///
    /// # Errors
    /// As [`NvmeTcp::resolve`].
    pub fn resolve(&self) -> anyhow::Result<Endpoint> {
        Ok(Endpoint {
            address: self.0.resolve()?.address,
            nqn: self.0.subsystem.clone(),
        })
    }
}

impl FromStr for DiscoveryUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let wanted = "write nvme-tcp://HOST:PORT, where a discovery controller listens";
        let (bare, _) = without_zone(text)?;
        let Ok(url) = url::Url::parse(&bare) else {
            return malformed(wanted);
        };
        if url.scheme() != "nvme-tcp" {
            return malformed(wanted);
        }
        if url.query().is_some() || url.fragment().is_some() {
            return malformed("a discovery controller has no parameters");
        }
        let path = match url.path() {
            "" | "/" => format!("{}/{DISCOVERY_NQN}", text.trim_end_matches('/')),
            _ => text.to_owned(),
        };
        let UriKind::NvmeTcp(mut tcp) = path.parse::<PathUri>()?.kind else {
            return malformed(wanted);
        };
        if url.port().is_none() {
            tcp.port = DISCOVERY_PORT;
        }
        Ok(Self(tcp))
    }
}

impl fmt::Display for DiscoveryUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NvmeTcp {
            host,
            port,
            subsystem,
            ..
        } = &self.0;
        match host.contains(':') {
            true => write!(f, "nvme-tcp://[{}]:{port}", encoded(host))?,
            false => write!(
                f,
                "nvme-tcp://{}:{port}",
                utf8_percent_encode(host, NO_HOST)
            )?,
        }
        name(f, subsystem)
    }
}

/// An address as a URI has it: `%25` stands before its zone (RFC 6874).
fn encoded(host: &str) -> String {
    host.replace('%', "%25")
}

/// Characters that no host name has.
const NO_HOST: &AsciiSet = &NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'_');

/// A discovery controller in the words of [`DiscoveryUri`].
pub fn in_words(endpoint: &Endpoint) -> String {
    struct Words<'a>(&'a SocketAddr, &'a str);
    impl fmt::Display for Words<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "nvme-tcp://{}", zone::authority(self.0))?;
            name(f, self.1)
        }
    }
    Words(&endpoint.address, &endpoint.nqn).to_string()
}

fn name(f: &mut fmt::Formatter<'_>, nqn: &str) -> fmt::Result {
    match nqn {
        DISCOVERY_NQN => Ok(()),
        own => write!(f, "/{}", escaped(own)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_as_usual() {
        for (text, shown) in [
            ("nvme-tcp://10.0.0.1", "nvme-tcp://10.0.0.1:8009"),
            ("nvme-tcp://10.0.0.1:4420/", "nvme-tcp://10.0.0.1:4420"),
            ("nvme-tcp://[fd00::1]", "nvme-tcp://[fd00::1]:8009"),
            ("nvme-tcp://host/nqn.x:d", "nvme-tcp://host:8009/nqn.x:d"),
        ] {
            let uri: DiscoveryUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), shown);
            assert_eq!(shown.parse(), Ok(uri));
        }
        for uri in [
            DiscoveryUri::new("fe80::1%lo", 8009, None).unwrap(),
            "nvme-tcp://[fe80::1%25lo]".parse().unwrap(),
            "nvme-tcp://[fe80::1%lo]".parse().unwrap(),
        ] {
            assert_eq!(uri.to_string(), "nvme-tcp://[fe80::1%25lo]:8009");
            assert_eq!(uri.to_string().parse(), Ok(uri.clone()));
            assert_eq!(in_words(&uri.resolve().unwrap()), uri.to_string());
        }
        let uri = DiscoveryUri::new("fd00::1", 8009, Some("nqn.a b")).unwrap();
        assert_eq!(uri.to_string(), "nvme-tcp://[fd00::1]:8009/nqn.a%20b");
        let endpoint = uri.resolve().unwrap();
        assert_eq!(in_words(&endpoint), uri.to_string());
    }

    #[test]
    fn what_is_none_says_what_would_be_one() {
        for (text, part) in [
            ("10.0.0.1:8009", "write nvme-tcp://HOST:PORT"),
            ("file:/x", "write nvme-tcp://HOST:PORT"),
            ("nvme-tcp://", "write nvme-tcp://"),
            ("nvme-tcp://h?nsid=1", "no parameters"),
            ("nvme-tcp://h:0", "port 0"),
            ("nvme-tcp://h:99999", "write nvme-tcp://HOST:PORT"),
        ] {
            let error = text.parse::<DiscoveryUri>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(DiscoveryUri::new("a b", 1, None).is_err());
    }

    #[test]
    fn hostile_uris_get_an_error_or_are_read_again_as_the_same() {
        hostile::attack("uri", |text| match text.parse::<DiscoveryUri>() {
            Ok(uri) => assert_eq!(uri.to_string().parse(), Ok(uri)),
            Err(error) => assert!(!error.to_string().is_empty()),
        });
    }
}
