//! Zones of IPv6 link-local addresses: `[fe80::1%25eth0]` in a URI (RFC 6874), where
//! `[fe80::1%eth0]` is read too; `fe80::1%eth0` elsewhere.
//!
//! # Contract
//! The zone is part of the host's text. Its interface is looked up when the host is resolved: an
//! interface that comes later is found then.
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

/// Longest name of an interface (IFNAMSIZ without its NUL).
const NAME_MAX: usize = 15;

/// Checks a URI's host without brackets, and returns it as it is resolved: the `%25` before a zone
/// becomes `%`.
///
/// # Errors
/// As [`host`].
pub fn host_in_uri(text: &str) -> Result<String, String> {
    match text.split_once("%25") {
        // A bare %25 is the zone with the number 25.
        Some((address, zone)) if !zone.is_empty() => host(&format!("{address}%{zone}")),
        _ => host(text),
    }
}

/// Checks a host without brackets, and returns it as it is resolved.
///
/// # Errors
/// The zone can't be one, or its address has none.
pub fn host(text: &str) -> Result<String, String> {
    let Some((address, zone)) = text.split_once('%') else {
        return Ok(text.to_owned());
    };
    let parsed = address.parse::<Ipv6Addr>();
    let parsed =
        parsed.map_err(|_| format!("\"{address}\" is no IPv6 address, so it has no zone"))?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '@');
    if zone.is_empty() || zone.len() > NAME_MAX || !zone.chars().all(fits) {
        return Err(format!(
            "the zone \"{zone}\" can't be the name of an interface"
        ));
    }
    if !parsed.is_unicast_link_local() {
        return Err(format!(
            "{address} is no link-local address (fe80::/10), so it has no zone"
        ));
    }
    Ok(format!("{parsed}%{zone}"))
}

/// Host and port of `host:port`, with an IPv6 address in brackets.
///
/// # Errors
/// As [`host`].
pub fn host_and_port(text: &str) -> Result<Option<(String, u16)>, String> {
    let Some((before, port)) = text.rsplit_once(':') else {
        return Ok(None);
    };
    let bare = before.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    match (bare, port.parse()) {
        (Some(bare), Ok(port)) => Ok(Some((host(bare)?, port))),
        _ => Ok(None),
    }
}

/// The address and its zone in a text without a port; `None`: it is no link-local address with one,
/// or its interface is not there. This asks the system for the interface and looks up no name.
pub fn address(text: &str) -> Option<SocketAddrV6> {
    let text = host(text).ok().filter(|it| it.contains('%'))?;
    let mut all = (text.as_str(), 0).to_socket_addrs().ok()?;
    all.find_map(|it| match it {
        SocketAddr::V6(it) if it.scope_id() != 0 => Some(it),
        _ => None,
    })
}

/// An address as a URI has it.
pub fn authority(address: &SocketAddr) -> String {
    match address {
        SocketAddr::V6(it) if it.scope_id() != 0 => {
            format!("[{}%25{}]:{}", it.ip(), name(it.scope_id()), it.port())
        }
        _ => address.to_string(),
    }
}

/// The interface with this index; one that has gone is its number.
fn name(index: u32) -> String {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let (family, kind) = (AddressFamily::INET6, SocketType::DGRAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let found = socket.and_then(|it| netdevice::index_to_name(it, index));
    found.unwrap_or_else(|_| index.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_is_read_as_its_place_has_it() {
        for (text, in_uri, elsewhere) in [
            ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
            ("fd00::1", "fd00::1", "fd00::1"),
            ("storage-1", "storage-1", "storage-1"),
            ("fe80::1%eth0", "fe80::1%eth0", "fe80::1%eth0"),
            ("fe80::1%25eth0", "fe80::1%eth0", "fe80::1%25eth0"),
            ("fe80:0::1%2", "fe80::1%2", "fe80::1%2"),
            ("fe80::1%25", "fe80::1%25", "fe80::1%25"),
            ("fe80::1%253", "fe80::1%3", "fe80::1%253"),
            ("fe80::1%25253", "fe80::1%253", "fe80::1%25253"),
            (
                "fe80::1%25br-lan.7",
                "fe80::1%br-lan.7",
                "fe80::1%25br-lan.7",
            ),
        ] {
            assert_eq!(host_in_uri(text).as_deref(), Ok(in_uri), "{text}");
            assert_eq!(host(text).as_deref(), Ok(elsewhere), "{text}");
        }
        for (text, part) in [
            ("fe80::1%", "can't be the name"),
            ("fe80::1%25a/b", "can't be the name"),
            ("fe80::1%a%b", "can't be the name"),
            ("fe80::1%0123456789abcdef", "can't be the name"),
            ("fd00::1%eth0", "no link-local address"),
            ("host%eth0", "no IPv6 address"),
            ("10.0.0.1%eth0", "no IPv6 address"),
        ] {
            for error in [host(text).unwrap_err(), host_in_uri(text).unwrap_err()] {
                assert!(error.contains(part), "{text}: {error}");
            }
        }
    }

    #[test]
    fn zone_of_an_address_round_trips() {
        // The index of the loopback interface is 1 on every Linux.
        let at = SocketAddrV6::new("fe80::7".parse().unwrap(), 4420, 0, 1);
        let text = authority(&at.into());
        assert!(text.starts_with("[fe80::7%25"), "{text}");
        let (bare, port) = host_and_port(&text.replace("%25", "%")).unwrap().unwrap();
        assert_eq!(port, 4420);
        let found = address(&bare).unwrap();
        let in_uri = text.trim_start_matches('[').split_once(']').unwrap().0;
        assert_eq!(host_in_uri(in_uri), Ok(bare));
        assert_eq!((found.ip(), found.scope_id()), (at.ip(), 1));
        assert_eq!(address("fe80::7"), None);
        assert_eq!(address("fe80::7%no-such-one"), None);
        for (text, read) in [("10.0.0.1:1", None), ("host:1", None), ("[::1]:x", None)] {
            assert_eq!(host_and_port(text), Ok(read), "{text}");
        }
        let without: SocketAddr = "[fd00::1]:4420".parse().unwrap();
        assert_eq!(authority(&without), "[fd00::1]:4420");
    }
}
