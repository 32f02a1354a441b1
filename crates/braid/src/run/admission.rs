//! Which clients may connect to a listening socket, and which of them may write.
//!
//! `allow = ["address=192.0.2.0/24", "address=192.0.2.7,read-only"]` on TCP, `["uid=1000",
//! "uid=any,read-only"]` on a Unix socket.
//!
//! # Contract
//! Without rules every client is admitted; a socket that other machines reach then needs `open`.
//! With rules the most specific one counts: the longest prefix, or the user before `any`. A client
//! without one is refused before anything is sent to it.
use crate::control::access::Name;
use ipnet::{IpNet, Ipv4Net};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Shortest time between two lines about clients that are refused.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// How a rule is written.
const SYNTAX: &str = "write address=ADDRESS, address=ADDRESS/PREFIX or address=any for TCP, \
                      uid=USER or uid=any for a Unix socket, and ,read-only behind it for clients \
                      that may not write";

/// Clients that a rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Clients {
    /// All that connect by TCP.
    AnyAddress,
    /// Those of a network.
    Network(IpNet),
    /// All users of this machine.
    AnyUser,
    /// One of them.
    User(Name),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    clients: Clients,
    read_only: bool,
}

/// Rules of a socket as they are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// None: every client may connect.
    pub allow: Vec<Rule>,
    /// Clients of other machines may connect without a rule.
    pub open: bool,
}

/// From where a socket can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By a file.
    Unix,
    /// From this machine.
    Loopback,
    /// From other machines, too.
    Network,
}

/// Rules with the numbers of their users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    is_open: bool,
    /// `None`: any other user.
    users: Vec<(Option<u32>, bool)>,
    /// `None`: any other address.
    networks: Vec<(Option<IpNet>, bool)>,
}

/// A client that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this user.
    User(u32),
    /// From this address.
    Address(IpAddr),
    /// It was gone before it could be asked for.
    Unknown,
}

/// Rights of a client that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Its writes are refused.
    pub read_only: bool,
}

impl FromStr for Rule {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: String| format!("{why}; {SYNTAX}");
        let (of, more) = match text.split_once(',') {
            Some((of, more)) => (of, Some(more)),
            None => (text, None),
        };
        if let Some(more) = more.filter(|it| *it != "read-only") {
            return Err(wrong(format!("\"{more}\" is none of its words")));
        }
        let clients = match of.split_once('=') {
            Some(("address", "any")) => Clients::AnyAddress,
            Some(("address", value)) => {
                let network = value.parse::<IpNet>().or_else(|_| {
                    let host: IpAddr = value.parse().map_err(|_| ())?;
                    Ok(host.into())
                });
                let network = network.map_err(|()| {
                    wrong(format!(
                        "\"{value}\" is no address in numbers, and no network"
                    ))
                })?;
                // Clients would be looked for in vain where a digit of the host part is a slip.
                if network.trunc() != network {
                    return Err(wrong(format!(
                        "{network} has bits behind its prefix: the network is {}",
                        network.trunc()
                    )));
                }
                Clients::Network(canonical(network))
            }
            Some(("uid", "any")) => Clients::AnyUser,
            Some(("uid", value)) => {
                let name = value.parse();
                Clients::User(name.map_err(|why| wrong(format!("uid={value} {why}")))?)
            }
            _ => return Err(wrong(format!("\"{of}\" names no clients"))),
        };
        let read_only = more.is_some();
        Ok(Self { clients, read_only })
    }
}

/// The IPv4 network that an IPv6 network maps: peers are compared by their IPv4 addresses.
fn canonical(network: IpNet) -> IpNet {
    /// Bits before the IPv4 address.
    const MAPPED_BITS: u8 = 96;
    match (network.addr().to_canonical(), network.prefix_len()) {
        (IpAddr::V4(ip), MAPPED_BITS..) if network.addr().is_ipv6() => {
            match Ipv4Net::new(ip, network.prefix_len() - MAPPED_BITS) {
                Ok(mapped) => mapped.into(),
                Err(_) => unreachable!("{network}: its prefix has at most 128 bits"),
            }
        }
        _ => network,
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.clients {
            Clients::AnyAddress => f.write_str("address=any")?,
            Clients::Network(it) if it.prefix_len() == it.max_prefix_len() => {
                write!(f, "address={}", it.addr())?;
            }
            Clients::Network(it) => write!(f, "address={it}")?,
            Clients::AnyUser => f.write_str("uid=any")?,
            Clients::User(Name::Word(word)) => write!(f, "uid={word}")?,
            Clients::User(Name::Id(id)) => write!(f, "uid={id}")?,
        }
        f.write_str(if self.read_only { ",read-only" } else { "" })
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let wrong = |why| D::Error::custom(format!("\"{text}\": {why}"));
        text.parse().map_err(wrong)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl Reach {
    /// Of a TCP socket.
    pub fn of(ip: IpAddr) -> Self {
        match ip.to_canonical().is_loopback() {
            true => Self::Loopback,
            false => Self::Network,
        }
    }
}

/// Names of `open` and `allow` where a socket is configured.
pub struct Keys {
    pub allow: &'static str,
    pub open: &'static str,
}

impl Admission {
    /// Whether these rules can be those of a socket, which messages call `address`.
    ///
    /// # Errors
    /// The key that can't be, `None` for that of the address, and why.
    pub fn check(
        &self,
        reach: Reach,
        address: &dyn fmt::Display,
        keys: &Keys,
    ) -> Result<(), (Option<&'static str>, String)> {
        let Keys { allow, open } = keys;
        if reach == Reach::Network && self.allow.is_empty() && !self.open {
            let text = format!(
                "other machines reach {address}: name the clients that may connect ({allow} = \
                 [\"address=192.0.2.0/24\"]), or write {open} = true"
            );
            return Err((None, text));
        }
        if self.open && !self.allow.is_empty() {
            let text = format!("{open} is for a socket without {allow}, which names the clients");
            return Err((Some(open), text));
        }
        if self.open && reach == Reach::Unix {
            let text = format!("{open} is for TCP; users of a Unix socket are given by its mode");
            return Err((Some(open), text));
        }
        for (at, rule) in self.allow.iter().enumerate() {
            let is_user = matches!(rule.clients, Clients::AnyUser | Clients::User(_));
            let wrong = |why: &str| Err((Some(*allow), format!("{allow}: {rule}: {why}")));
            match (is_user, reach) {
                (true, Reach::Loopback | Reach::Network) => {
                    return wrong("users are known of Unix sockets; by TCP write address=");
                }
                (false, Reach::Unix) => return wrong("a Unix socket has users: write uid="),
                _ => {}
            }
            if self.allow[..at].iter().any(|it| it.clients == rule.clients) {
                return wrong("these clients have a rule before it");
            }
        }
        Ok(())
    }

    /// The same rules, with the numbers of their users.
    ///
    /// # Errors
    /// There is no such user.
    pub fn guard(&self) -> anyhow::Result<Guard> {
        let mut guard = Guard {
            is_open: self.allow.is_empty(),
            ..Guard::default()
        };
        for Rule { clients, read_only } in &self.allow {
            match clients {
                Clients::AnyAddress => guard.networks.push((None, *read_only)),
                Clients::Network(it) => guard.networks.push((Some(*it), *read_only)),
                Clients::AnyUser => guard.users.push((None, *read_only)),
                Clients::User(name) => guard.users.push((Some(name.uid()?), *read_only)),
            }
        }
        Ok(guard)
    }
}

impl Guard {
    /// Every client is admitted.
    pub fn open() -> Self {
        Self {
            is_open: true,
            ..Self::default()
        }
    }

    /// Rights of a client; `None`: it is refused.
    pub fn admits(&self, peer: Peer) -> Option<Admitted> {
        if self.is_open {
            return Some(Admitted { read_only: false });
        }
        let rule = match peer {
            Peer::User(uid) => {
                let of = self
                    .users
                    .iter()
                    .filter(|(user, _)| user.is_none_or(|it| it == uid));
                of.max_by_key(|(user, _)| user.is_some()).map(|it| it.1)
            }
            Peer::Address(ip) => {
                let ip = ip.to_canonical();
                let of = self.networks.iter();
                let of = of.filter(|(net, _)| net.is_none_or(|it| it.contains(&ip)));
                of.max_by_key(|(net, _)| net.map(|it| it.prefix_len()))
                    .map(|it| it.1)
            }
            Peer::Unknown => None,
        };
        rule.map(|read_only| Admitted { read_only })
    }
}

impl Peer {
    /// Of a connection.
    pub fn of(socket: &impl AsFd, unix: bool) -> Self {
        if unix {
            let peer = rustix::net::sockopt::socket_peercred(socket);
            return peer.map_or(Self::Unknown, |peer| Self::User(peer.uid.as_raw()));
        }
        let peer = rustix::net::getpeername(socket).ok().flatten();
        match peer.map(std::net::SocketAddr::try_from) {
            Some(Ok(peer)) => Self::Address(peer.ip()),
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Address(ip) => write!(f, "{}", ip.to_canonical()),
            Self::Unknown => f.write_str("a client that is gone"),
        }
    }
}

/// Rate limit of lines about clients that are refused: a line in 10 s, which counts the others.
#[derive(Default)]
pub struct Refusals {
    last: Option<Instant>,
    unsaid: u64,
}

impl Refusals {
    /// One more was refused. Returns the words for a line, if one is due.
    pub fn more(&mut self, why: &str) -> Option<String> {
        if self.last.is_some_and(|it| it.elapsed() < REFUSED_PAUSE) {
            self.unsaid += 1;
            return None;
        }
        self.last = Some(Instant::now());
        let unsaid = std::mem::take(&mut self.unsaid);
        let others = match unsaid {
            0 => String::new(),
            unsaid => format!(" ({unsaid} more since the last such line)"),
        };
        Some(format!("a connection is refused: {why}{others}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: Keys = Keys {
        allow: "allow",
        open: "open",
    };

    fn admission(rules: &[&str]) -> Admission {
        Admission {
            allow: rules.iter().map(|it| it.parse().unwrap()).collect(),
            open: false,
        }
    }

    #[test]
    fn rules_are_read_and_shown() {
        for (text, shown) in [
            ("address=192.0.2.0/24", "address=192.0.2.0/24"),
            ("address=192.0.2.7,read-only", "address=192.0.2.7,read-only"),
            ("address=192.0.2.7/32", "address=192.0.2.7"),
            ("address=2001:db8::/32", "address=2001:db8::/32"),
            ("address=::ffff:192.0.2.7", "address=192.0.2.7"),
            ("address=::ffff:192.0.2.0/120", "address=192.0.2.0/24"),
            ("address=::/0", "address=::/0"),
            ("address=any", "address=any"),
            ("uid=1000", "uid=1000"),
            ("uid=alice,read-only", "uid=alice,read-only"),
            ("uid=any", "uid=any"),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap().to_string(), shown);
        }
        for (text, why) in [
            ("", "names no clients"),
            ("192.0.2.1", "names no clients"),
            ("address=", "is no address"),
            ("address=host", "is no address"),
            ("address=192.0.2.0/33", "is no address"),
            ("address=192.0.2.1/24", "the network is 192.0.2.0/24"),
            ("uid=", "uid= "),
            ("uid=4294967295", "is no number of a user"),
            ("uid=1,read-write", "is none of its words"),
            ("uid=1,read-only,read-only", "is none of its words"),
            ("nqn=x", "names no clients"),
        ] {
            let error = text.parse::<Rule>().unwrap_err();
            assert!(
                error.contains(why) && error.contains("address=any"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn most_specific_rule_counts() {
        let rules = [
            "address=192.0.2.0/24,read-only",
            "address=192.0.2.7",
            "address=2001:db8::/32",
        ];
        let guard = admission(&rules).guard().unwrap();
        let admits = |ip: &str| {
            let admitted = guard.admits(Peer::Address(ip.parse().unwrap()));
            admitted.map(|it| it.read_only)
        };
        assert_eq!(admits("192.0.2.7"), Some(false));
        assert_eq!(admits("192.0.2.8"), Some(true));
        assert_eq!(admits("::ffff:192.0.2.7"), Some(false), "mapped");
        assert_eq!(admits("192.0.3.1"), None);
        assert_eq!(admits("2001:db8::1"), Some(false));
        assert_eq!(admits("2001:db9::1"), None);
        assert_eq!(guard.admits(Peer::User(0)), None);
        assert_eq!(guard.admits(Peer::Unknown), None);
        let guard = admission(&["address=::ffff:192.0.2.7"]).guard().unwrap();
        for ip in ["192.0.2.7", "::ffff:192.0.2.7"] {
            let admitted = guard.admits(Peer::Address(ip.parse().unwrap()));
            assert!(admitted.is_some(), "{ip}: the rule is of mapped addresses");
        }
        let guard = admission(&["uid=any,read-only", "uid=0"]).guard().unwrap();
        let admits = |uid| guard.admits(Peer::User(uid)).map(|it| it.read_only);
        assert_eq!([admits(0), admits(1)], [Some(false), Some(true)]);
        assert_eq!(guard.admits(Peer::Unknown), None);
        let guard = admission(&[]).guard().unwrap();
        assert!(guard.admits(Peer::Unknown).is_some_and(|it| !it.read_only));
    }

    #[test]
    fn rules_fit_their_socket() {
        let wrong = |it: &Admission, reach| {
            let checked = it.check(reach, &"tcp:192.0.2.1:10809", &KEYS);
            checked.unwrap_err()
        };
        let (key, why) = wrong(&admission(&[]), Reach::Network);
        assert_eq!(key, None);
        assert!(why.contains("allow = [\"address=") && why.contains("or write open = true"));
        for (rules, reach, part) in [
            (&["uid=0"][..], Reach::Network, "by TCP write address="),
            (&["address=any"], Reach::Unix, "write uid="),
            (&["uid=0", "uid=0,read-only"], Reach::Unix, "before it"),
        ] {
            let (key, why) = wrong(&admission(rules), reach);
            assert!(key == Some("allow") && why.contains(part), "{why}");
        }
        let open = Admission {
            open: true,
            ..admission(&[])
        };
        assert_eq!(open.check(Reach::Network, &"", &KEYS), Ok(()));
        assert_eq!(wrong(&open, Reach::Unix).0, Some("open"));
        let both = Admission {
            open: true,
            ..admission(&["address=any"])
        };
        assert_eq!(wrong(&both, Reach::Network).0, Some("open"));
        assert_eq!(admission(&[]).check(Reach::Loopback, &"", &KEYS), Ok(()));
    }

    #[test]
    fn refusals_between_lines_are_counted() {
        let mut refusals = Refusals::default();
        assert_eq!(refusals.more("x").unwrap(), "a connection is refused: x");
        assert_eq!([refusals.more("y"), refusals.more("z")], [None, None]);
        refusals.last = Instant::now().checked_sub(REFUSED_PAUSE);
        assert!(refusals.more("x").unwrap().contains("(2 more since"));
    }
}
