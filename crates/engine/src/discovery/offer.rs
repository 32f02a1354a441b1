//! Checks which entries of a discovery log can be used: an address to connect to, of a subsystem or
//! of another discovery controller.
//!
//! # Contract
//! An entry is whatever somebody on the network wrote. Only addresses in numbers are used: no name
//! is looked up because a log says so.
use alloc::string::String;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use nvme::host::DiscoveryEntry;
use nvme::limits::NQN_MAX;
use nvme::wire::log::{ADRFAM_IPV4, ADRFAM_IPV6, TRTYPE_TCP, subtype, treq};

/// Where a discovery controller is, and what it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Where it listens.
    pub address: SocketAddr,
    /// NQN of its subsystem: the well-known one of discovery, or its own.
    pub nqn: String,
}

/// Destination of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A subsystem is there.
    Subsystem(SocketAddr),
    /// Another discovery controller is there.
    Referral(Endpoint),
    /// The controller that tells it.
    Itself,
}

/// Why an entry can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Its transport isn't TCP: TRTYPE.
    Transport(u8),
    /// Its address is no unicast IP address of the family it names.
    Address,
    /// Its service is no TCP port.
    Service,
    /// Its NQN can't be one.
    Name,
    /// It requires a secure channel.
    SecureChannel,
    /// It is of a kind that we don't know: SUBTYPE.
    Kind(u8),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Transport(_) => f.write_str("only TCP is supported"),
            Self::Address => f.write_str("its address is none to connect to"),
            Self::Service => f.write_str("its service is no TCP port"),
            Self::Name => f.write_str("its NQN can't be one"),
            Self::SecureChannel => f.write_str("it requires TLS, which isn't supported"),
            Self::Kind(kind) => write!(f, "entries of kind {kind} aren't known"),
        }
    }
}

/// Converts an entry into something to connect to.
///
/// # Errors
/// Why it can't.
pub fn offer(entry: &DiscoveryEntry) -> Result<Found, Unusable> {
    match entry.subtype {
        subtype::CURRENT => return Ok(Found::Itself),
        subtype::NVM | subtype::REFERRAL => {}
        kind => return Err(Unusable::Kind(kind)),
    }
    if entry.trtype != TRTYPE_TCP {
        return Err(Unusable::Transport(entry.trtype));
    }
    // An entry that says nothing of a secure channel, and names one, means it.
    let wish = entry.treq & treq::SECURE_CHANNEL;
    if wish == treq::REQUIRED || (wish != treq::NOT_REQUIRED && entry.sectype != 0) {
        return Err(Unusable::SecureChannel);
    }
    let nqn = &entry.subnqn;
    if !nqn.starts_with("nqn.") || nqn.len() > NQN_MAX || nqn.contains(char::is_control) {
        return Err(Unusable::Name);
    }
    let ip: IpAddr = entry.traddr.parse().map_err(|_| Unusable::Address)?;
    let family = if ip.is_ipv6() {
        ADRFAM_IPV6
    } else {
        ADRFAM_IPV4
    };
    if ip.is_unspecified() || ip.is_multicast() || entry.adrfam != family {
        return Err(Unusable::Address);
    }
    let digits = entry.trsvcid.bytes().all(|b| b.is_ascii_digit());
    let port = entry
        .trsvcid
        .parse()
        .ok()
        .filter(|port| digits && *port > 0);
    let address = SocketAddr::new(ip, port.ok_or(Unusable::Service)?);
    Ok(match entry.subtype {
        subtype::REFERRAL => Found::Referral(Endpoint {
            address,
            nqn: nqn.clone(),
        }),
        _ => Found::Subsystem(address),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> DiscoveryEntry {
        DiscoveryEntry {
            trtype: 3,
            adrfam: 1,
            subtype: 2,
            treq: 4,
            sectype: 0,
            port_id: 1,
            cntlid: 0xffff,
            admin_entries_max: 32,
            eflags: 0,
            traddr: "10.0.0.1".into(),
            trsvcid: "4420".into(),
            subnqn: "nqn.2026-01.org.example:v0".into(),
        }
    }

    #[test]
    fn entries_that_lead_somewhere() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(offer(&entry()), Ok(Found::Subsystem(at("10.0.0.1:4420"))));
        let six = DiscoveryEntry {
            adrfam: 2,
            traddr: "fd00::1".into(),
            treq: 2,
            sectype: 2,
            ..entry()
        };
        assert_eq!(offer(&six), Ok(Found::Subsystem(at("[fd00::1]:4420"))));
        let referral = DiscoveryEntry {
            subtype: 1,
            trsvcid: "8009".into(),
            ..entry()
        };
        let endpoint = Endpoint {
            address: at("10.0.0.1:8009"),
            nqn: entry().subnqn,
        };
        assert_eq!(offer(&referral), Ok(Found::Referral(endpoint)));
        let own = DiscoveryEntry {
            subtype: 3,
            traddr: String::new(),
            ..entry()
        };
        assert_eq!(offer(&own), Ok(Found::Itself));
    }

    type Change = fn(&mut DiscoveryEntry);

    #[test]
    fn entries_that_lead_nowhere_say_why() {
        let with = |change: Change| {
            let mut entry = entry();
            change(&mut entry);
            offer(&entry).unwrap_err()
        };
        let cases: [(Change, Unusable); 16] = [
            (|e| e.subtype = 0, Unusable::Kind(0)),
            (|e| e.subtype = 4, Unusable::Kind(4)),
            (|e| e.trtype = 1, Unusable::Transport(1)),
            (|e| e.trtype = 2, Unusable::Transport(2)),
            (|e| e.treq = 1, Unusable::SecureChannel),
            (|e| e.sectype = 2, Unusable::SecureChannel),
            (|e| e.traddr = "host.example".into(), Unusable::Address),
            (|e| e.traddr = "0.0.0.0".into(), Unusable::Address),
            (|e| e.traddr = "224.0.0.1".into(), Unusable::Address),
            (|e| e.traddr = "fd00::1".into(), Unusable::Address),
            (|e| e.traddr = String::new(), Unusable::Address),
            (|e| e.trsvcid = "0".into(), Unusable::Service),
            (|e| e.trsvcid = "+4420".into(), Unusable::Service),
            (|e| e.trsvcid = "65536".into(), Unusable::Service),
            (|e| e.subnqn = String::new(), Unusable::Name),
            (|e| e.subnqn.push('\u{1b}'), Unusable::Name),
        ];
        for (change, why) in cases {
            assert_eq!(with(change), why);
        }
        assert_eq!(with(|e| e.subnqn = "nqn.".repeat(56)), Unusable::Name);
    }
}
