//! Path URIs: how a path of a volume is written.
//!
//! `nvme-tcp://host:port/NQN?nsid=1` (port 4420 unless given; IPv6 in brackets; the NQN may be
//! percent-encoded), `file:/path`, `mem:1GiB`, `null:1GiB` (reads zeroes, forgets writes: for
//! measuring), `queue:/run/braid/q.sock?nsid=1` (a namespace of `braid queue serve`; NSID 1 unless
//! given), `nvme-ng:/dev/ngXnY` (one that the kernel drives; `?poll=true`: completions are polled).
//! Each may end in `?distance=N` (`&distance=N` after another): how far it is away, for
//! the policy `numa`; and `?throughput=N`: its relative throughput, for `service-time`.
//!
//! # Contract
//! Parsing knows nothing of the machine; resolving a name and opening a file come later and fail in
//! their own words. A text that is no path URI is a usage error that says what would be one.
pub mod discovery;
mod keys;
pub mod names;
mod resolve;
pub mod zone;

pub use keys::{PathKeys, name};
pub use resolve::{Found, Start};

use crate::units::parse_size;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use policy::limits::THROUGHPUT_MAX;
use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// A path as the user wrote it, and what that means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathUri {
    text: String,
    kind: UriKind,
    distance: Option<u32>,
    throughput: Option<u8>,
}

/// Destination of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UriKind {
    /// A namespace of an NVMe/TCP subsystem.
    NvmeTcp(NvmeTcp),
    /// A file or block device.
    File(PathBuf),
    /// A namespace's character device.
    NvmeNg(NvmeNg),
    /// That many bytes of memory.
    Memory(u64),
    /// That many bytes of nothing.
    Null(u64),
    /// A namespace of a queue server.
    Queue {
        /// Its socket.
        socket: PathBuf,
        /// NSID.
        nsid: u32,
    },
}

/// The parts of an `nvme-tcp` URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeTcp {
    /// Name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Subsystem NQN, decoded.
    pub subsystem: String,
    /// NSID, where given.
    pub nsid: Option<u32>,
}

/// The parts of an `nvme-ng` URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeNg {
    /// `/dev/ngXnY`.
    pub device: PathBuf,
    /// Completions are polled.
    pub poll: bool,
}

impl UriKind {
    /// Whether it is a namespace of a subsystem, so that several lead to the same data.
    pub fn is_namespace(&self) -> bool {
        matches!(
            self,
            Self::NvmeTcp(_) | Self::NvmeNg(_) | Self::Queue { .. }
        )
    }
}

impl PathUri {
    /// Its destination.
    pub fn kind(&self) -> &UriKind {
        &self.kind
    }

    /// NUMA distance, where given (smaller is nearer).
    pub fn distance(&self) -> Option<u32> {
        self.distance
    }

    /// Relative throughput, where given: 0 to 100.
    pub fn throughput(&self) -> Option<u8> {
        self.throughput
    }
}

impl fmt::Display for PathUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Why a text is no path URI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// There is no scheme at all.
    #[error(
        "not a path URI; write nvme-tcp://host:port/NQN, nvme-ng:/dev/ngXnY, file:/path, \
         queue:/path?nsid=N, mem:SIZE or null:SIZE"
    )]
    NoScheme,
    /// A plain path of the file system.
    #[error("not a path URI; for a file or block device write file:{0}")]
    PlainPath(String),
    /// A scheme that braid is to have.
    #[error(
        "{0}: paths are not supported yet; nvme-tcp:, nvme-ng:, file:, queue:, mem: and null: are"
    )]
    NotYet(String),
    /// A scheme nobody knows.
    #[error(
        "unknown scheme \"{0}\"; nvme-tcp:, nvme-ng:, file:, queue:, mem: and null: are supported"
    )]
    Unknown(String),
    /// The scheme is right, the rest is not.
    #[error("{0}")]
    Malformed(String),
}

const NOT_YET: [&str; 5] = ["nvme-pcie", "nbd", "nbd+unix", "nvme-rdma", "nvme-fc"];
/// Longest NQN (Base 2.0, 4.5).
const NQN_BYTES_MAX: usize = 223;

impl FromStr for PathUri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        if text.starts_with(['/', '.', '~']) {
            return Err(UriError::PlainPath(text.to_owned()));
        }
        let (scheme, rest) = text.split_once(':').ok_or(UriError::NoScheme)?;
        let (kind, parameters) = match scheme.to_ascii_lowercase().as_str() {
            "nvme-tcp" => {
                let (tcp, parameters) = nvme_tcp(text)?;
                (UriKind::NvmeTcp(tcp), parameters)
            }
            "file" => {
                let (rest, parameters) = local(rest, &LOCAL_KEYS)?;
                (UriKind::File(file("file", rest)?), parameters)
            }
            "nvme-ng" => {
                let (rest, parameters) = local(rest, &["distance", "throughput", "poll"])?;
                let device = file("nvme-ng", rest)?;
                let poll = parameters.poll.unwrap_or(false);
                (UriKind::NvmeNg(NvmeNg { device, poll }), parameters)
            }
            "mem" => {
                let (rest, parameters) = local(rest, &LOCAL_KEYS)?;
                (UriKind::Memory(memory("mem", rest)?), parameters)
            }
            "null" => {
                let (rest, parameters) = local(rest, &LOCAL_KEYS)?;
                (UriKind::Null(memory("null", rest)?), parameters)
            }
            "queue" => {
                let (path, parameters) = local(rest, &["nsid", "distance", "throughput"])?;
                let socket = file("queue", path)?;
                let nsid = parameters.nsid.unwrap_or(1);
                (UriKind::Queue { socket, nsid }, parameters)
            }
            known if NOT_YET.contains(&known) => return Err(UriError::NotYet(known.to_owned())),
            "" => return Err(UriError::NoScheme),
            _ if rest.starts_with(|c: char| c.is_ascii_digit()) => return Err(UriError::NoScheme),
            other => return Err(UriError::Unknown(other.to_owned())),
        };
        Ok(Self {
            text: text.to_owned(),
            kind,
            distance: parameters.distance,
            throughput: parameters.throughput.map(|number| number as u8),
        })
    }
}

/// An NQN as it stands in a URI.
pub fn escaped(nqn: &str) -> String {
    const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'?');
    utf8_percent_encode(nqn, RESERVED).to_string()
}

fn malformed<T>(why: impl Into<String>) -> Result<T, UriError> {
    Err(UriError::Malformed(why.into()))
}

fn nvme_tcp(text: &str) -> Result<(NvmeTcp, Parameters), UriError> {
    let (text, zoned) = without_zone(text)?;
    let url = match url::Url::parse(&text) {
        Ok(url) => url,
        Err(url::ParseError::InvalidIpv6Address) => {
            return malformed(
                "invalid IPv6 address (write [ADDRESS]:PORT, or [ADDRESS%25INTERFACE]:PORT)",
            );
        }
        Err(url::ParseError::InvalidPort) => {
            return malformed("invalid port number (an IPv6 address stands in brackets)");
        }
        Err(error) => return malformed(error.to_string()),
    };
    let host = match (url.host(), zoned) {
        (Some(url::Host::Ipv6(it)), Some(zoned)) if zoned.starts_with(&format!("{it}%")) => zoned,
        (_, Some(_)) => return malformed("only an IPv6 address has a zone"),
        (Some(url::Host::Ipv6(address)), None) => IpAddr::V6(address).to_string(),
        (Some(url::Host::Ipv4(address)), None) => IpAddr::V4(address).to_string(),
        (Some(url::Host::Domain(name)), None) if !name.is_empty() => host_name(name)?,
        _ => return malformed("no host; write nvme-tcp://host:port/NQN"),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return malformed("user names and passwords have no meaning in a path");
    }
    if url.fragment().is_some() {
        return malformed("\"#\" has no meaning in a path; inside an NQN write %23");
    }
    if url.port() == Some(0) {
        return malformed("port 0 can't be connected to");
    }
    let subsystem = nqn(&url)?;
    let known = ["nsid", "distance", "throughput"];
    let parameters = Parameters::parse(url.query().unwrap_or_default(), &known)?;
    let tcp = NvmeTcp {
        host,
        port: url.port().unwrap_or(4420),
        subsystem,
        nsid: parameters.nsid,
    };
    Ok((tcp, parameters))
}

/// A URI without the zone of its host, which its grammar does not know; and the host with it.
fn without_zone(text: &str) -> Result<(Cow<'_, str>, Option<String>), UriError> {
    let none = Ok((Cow::Borrowed(text), None));
    let Some((scheme, rest)) = text.split_once("://[") else {
        return none;
    };
    let Some((host, behind)) = rest.split_once(']') else {
        return none;
    };
    let Some((address, _)) = host.split_once('%').filter(|_| !scheme.contains('/')) else {
        return none;
    };
    let zoned = zone::host_in_uri(host).map_err(UriError::Malformed)?;
    Ok((
        Cow::Owned(format!("{scheme}://[{address}]{behind}")),
        Some(zoned),
    ))
}

/// With a colon it would read like an address, and isn't one.
fn host_name(text: &str) -> Result<String, UriError> {
    let name = decode("host name", text)?;
    if name.contains([':', '/']) || name.chars().any(char::is_control) {
        return malformed(format!("the host name {name:?} can't be one"));
    }
    Ok(name)
}

fn nqn(url: &url::Url) -> Result<String, UriError> {
    let nqn = decode("NQN", url.path().strip_prefix('/').unwrap_or_default())?;
    if nqn.is_empty() {
        return malformed("no subsystem NQN; write nvme-tcp://host:port/NQN");
    }
    if nqn.len() > NQN_BYTES_MAX {
        return malformed(format!(
            "the NQN has {} bytes; {NQN_BYTES_MAX} at most",
            nqn.len()
        ));
    }
    if nqn.chars().any(char::is_control) {
        return malformed("the NQN contains a control character");
    }
    Ok(nqn)
}

/// The part behind the `?`.
#[derive(Default)]
struct Parameters {
    nsid: Option<u32>,
    distance: Option<u32>,
    throughput: Option<u32>,
    poll: Option<bool>,
}

/// Keys of a local path.
const LOCAL_KEYS: [&str; 2] = ["distance", "throughput"];

impl Parameters {
    fn parse(query: &str, known: &[&str]) -> Result<Self, UriError> {
        let mut found = Self::default();
        for (key, value) in url::form_urlencoded::parse(query.as_bytes()) {
            if !known.contains(&&*key) {
                return malformed(format!(
                    "unknown parameter \"{key}\"; there is {} (inside a name write ? as %3F)",
                    known.join(" and ")
                ));
            }
            if key == "poll" {
                let word = value.parse().ok();
                if word.is_none() {
                    return malformed(format!("poll \"{value}\" is neither true nor false"));
                }
                if std::mem::replace(&mut found.poll, word).is_some() {
                    return malformed("poll is given twice");
                }
                continue;
            }
            // 0 is no namespace and FFFFFFFFh all of them (Base 2.0, 3.2.1.2).
            let (place, numbers) = match &*key {
                "nsid" => (&mut found.nsid, 1..=u32::MAX - 1),
                "throughput" => (&mut found.throughput, 0..=u32::from(THROUGHPUT_MAX)),
                _ => (&mut found.distance, 0..=u32::MAX),
            };
            let number = value.parse().ok().filter(|number| numbers.contains(number));
            if number.is_none() {
                return malformed(format!(
                    "{key} \"{value}\" is not a number from {} to {}",
                    numbers.start(),
                    numbers.end()
                ));
            }
            if std::mem::replace(place, number).is_some() {
                return malformed(format!("{key} is given twice"));
            }
        }
        Ok(found)
    }
}

/// The part of a local path before its parameters, and these.
fn local<'a>(rest: &'a str, known: &[&str]) -> Result<(&'a str, Parameters), UriError> {
    match rest.split_once('?') {
        None => Ok((rest, Parameters::default())),
        Some((_, "")) => malformed("nothing stands behind the ?; inside a name write it as %3F"),
        Some((rest, query)) => Ok((rest, Parameters::parse(query, known)?)),
    }
}

fn file(scheme: &str, rest: &str) -> Result<PathBuf, UriError> {
    let path = match rest.strip_prefix("//") {
        Some(authority) => match authority.strip_prefix("localhost").unwrap_or(authority) {
            path if path.starts_with('/') => path,
            _ => return malformed(format!("{scheme}: paths are local; write {scheme}:/path")),
        },
        None => rest,
    };
    if !path.starts_with('/') {
        return malformed(format!(
            "{scheme}: needs an absolute path, as in {scheme}:/path"
        ));
    }
    if path.contains('#') {
        return malformed("\"#\" has no meaning in a path; inside a name write %23");
    }
    let path = decode("file name", path)?;
    if path.contains('\0') {
        return malformed("the file name contains a NUL");
    }
    Ok(PathBuf::from(path))
}

fn memory(scheme: &str, rest: &str) -> Result<u64, UriError> {
    let bytes = parse_size(rest)
        .map_err(|error| UriError::Malformed(format!("{error}, as in {scheme}:1GiB")))?;
    if bytes == 0 || !bytes.is_multiple_of(4096) {
        return malformed(format!("{bytes} bytes are not a multiple of 4 KiB above 0"));
    }
    Ok(bytes)
}

fn decode(what: &str, text: &str) -> Result<String, UriError> {
    match percent_decode_str(text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => malformed(format!("the {what} is not UTF-8 after percent-decoding")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(text: &str) -> NvmeTcp {
        match text.parse::<PathUri>().expect(text).kind {
            UriKind::NvmeTcp(tcp) => tcp,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nvme_tcp_paths() {
        let path = tcp("nvme-tcp://10.0.0.1:4421/nqn.2026-01.org.example:v0?nsid=7");
        assert_eq!(path.host, "10.0.0.1");
        assert_eq!(path.port, 4421);
        assert_eq!(path.subsystem, "nqn.2026-01.org.example:v0");
        assert_eq!(path.nsid, Some(7));
        let path = tcp("nvme-tcp://storage-1.example/nqn.2026-01.org.example:v0");
        assert_eq!(
            (path.host.as_str(), path.port, path.nsid),
            ("storage-1.example", 4420, None)
        );
    }

    #[test]
    fn ipv6_addresses_stand_in_brackets() {
        let path = tcp("nvme-tcp://[fd00::1]:4420/nqn.2026-01.org.example:v0");
        assert_eq!(path.host, "fd00::1");
        let found = path.resolve().unwrap();
        assert_eq!(found.address, "[fd00::1]:4420".parse().unwrap());
    }

    #[test]
    fn zone_of_a_link_local_address_is_its_interface() {
        let encoded = "nvme-tcp://[fe80::1%25eth0]:4420/nqn.2026-01.org.example:v0?nsid=1";
        let plain = encoded.replace("%25", "%");
        let path = tcp(encoded);
        assert_eq!((path.host.as_str(), path.port), ("fe80::1%eth0", 4420));
        assert_eq!(tcp(&plain), path);
        for text in [encoded, &plain] {
            let uri: PathUri = text.parse().unwrap();
            assert_eq!(uri.to_string(), text);
        }
        let long = tcp("nvme-tcp://[fe80:0:0::1%25br-lan.7]/nqn.x");
        assert_eq!(long.host, "fe80::1%br-lan.7");
        // Text behind the host is no zone.
        assert_eq!(tcp("nvme-tcp://[fd00::1]/nqn.a%5D").host, "fd00::1");
    }

    #[test]
    fn nqns_are_percent_decoded() {
        let path = tcp("nvme-tcp://h/nqn.2026-01.org.example%3Aa%2Fb%20c%3F?nsid=1");
        assert_eq!(path.subsystem, "nqn.2026-01.org.example:a/b c?");
        assert_eq!(tcp("nvme-tcp://h/nqn.x:%C3%A9").subsystem, "nqn.x:é");
    }

    #[test]
    fn each_path_may_say_how_far_it_is_away() {
        for (text, distance) in [
            ("nvme-tcp://h/nqn.x", None),
            ("nvme-tcp://h/nqn.x?distance=20", Some(20)),
            ("nvme-tcp://h/nqn.x?nsid=2&distance=0", Some(0)),
            ("file:/x?distance=4294967295", Some(u32::MAX)),
            ("mem:1m?distance=7", Some(7)),
            ("null:1m?distance=8", Some(8)),
        ] {
            let uri: PathUri = text.parse().expect(text);
            assert_eq!((uri.distance(), uri.to_string().as_str()), (distance, text));
        }
        assert_eq!(tcp("nvme-tcp://h/nqn.x?distance=1&nsid=2").nsid, Some(2));
        let uri: PathUri = "nvme-tcp://h/nqn.x?throughput=100&distance=3"
            .parse()
            .unwrap();
        assert_eq!((uri.throughput(), uri.distance()), (Some(100), Some(3)));
    }

    #[test]
    fn local_paths() {
        let ng = |poll| {
            let device = "/dev/ng0n1".into();
            UriKind::NvmeNg(NvmeNg { device, poll })
        };
        let queue = |nsid| UriKind::Queue {
            socket: "/run/q.sock".into(),
            nsid,
        };
        for (text, kind) in [
            ("file:/dev/sdb", UriKind::File("/dev/sdb".into())),
            ("file:///a%20b", UriKind::File("/a b".into())),
            ("file://localhost/x", UriKind::File("/x".into())),
            ("mem:1GiB", UriKind::Memory(1 << 30)),
            ("null:64m", UriKind::Null(64 << 20)),
            ("nvme-ng:/dev/ng0n1", ng(false)),
            ("nvme-ng:/dev/ng0n1?poll=false&distance=2", ng(false)),
            ("nvme-ng:/dev/ng0n1?poll=true", ng(true)),
            ("queue:/run/q.sock", queue(1)),
            ("queue:///run/q.sock?nsid=3&distance=2", queue(3)),
        ] {
            assert_eq!(text.parse::<PathUri>().expect(text).kind, kind, "{text}");
        }
    }

    #[test]
    fn what_is_no_path_uri_says_so() {
        let long = format!("nvme-tcp://h/{}", "n".repeat(224));
        for (text, part) in [
            ("", "not a path URI"),
            ("disk.img", "not a path URI"),
            ("/dev/sdb", "write file:/dev/sdb"),
            ("10.0.0.1:4420", "not a path URI"),
            ("localhost:4420/nqn", "not a path URI"),
            ("http://h/x", "unknown scheme \"http\""),
            ("nbd://h:1/x", "not supported yet"),
            ("nvme-pcie:0000:01:00.0", "not supported yet"),
            ("nvme-tcp://h:4420", "no subsystem NQN"),
            ("nvme-tcp://h:4420/", "no subsystem NQN"),
            ("nvme-tcp:///nqn.x", "no host"),
            ("nvme-tcp://h:99999/nqn.x", "invalid port"),
            ("nvme-tcp://h:0/nqn.x", "port 0"),
            ("nvme-tcp://10.0.0%3A.1/nqn.x", "host name"),
            ("nvme-tcp://fd00::1:4420/nqn.x", "in brackets"),
            ("nvme-tcp://[fd00::zz]:4420/nqn.x", "invalid IPv6"),
            ("nvme-tcp://[fd00::1%25eth0]/nqn.x", "no link-local address"),
            ("nvme-tcp://[fe80::1%25]x/nqn.x", "invalid IPv6"),
            ("nvme-tcp://[fe80::1%25a%20b]/nqn.x", "can't be the name"),
            ("nvme-tcp://h/nqn.x?nsid=0", "nsid \"0\""),
            ("nvme-tcp://h/nqn.x?nsid=one", "nsid \"one\""),
            ("nvme-tcp://h/nqn.x?nsid=1&nsid=2", "given twice"),
            ("nvme-tcp://h/nqn.x?ns=1", "unknown parameter \"ns\""),
            ("nvme-tcp://h/nqn.x#1", "%23"),
            ("nvme-tcp://u@h/nqn.x", "user names"),
            ("nvme-tcp://h/%ff%fe", "not UTF-8"),
            ("nvme-tcp://h/nqn%00", "control character"),
            (long.as_str(), "224 bytes"),
            ("file:disk.img", "absolute path"),
            ("file://other/x", "local"),
            ("queue:q.sock", "queue: needs an absolute path"),
            ("queue:/q.sock?nsid=0", "nsid \"0\""),
            ("file:/x?create=1", "unknown parameter \"create\""),
            ("file:/x?create=1", "%3F"),
            ("file:/what?", "%3F"),
            ("file:/x#1", "%23"),
            ("file:/x?poll=true", "unknown parameter \"poll\""),
            ("nvme-ng:ng0n1", "nvme-ng: needs an absolute path"),
            ("nvme-ng:/dev/ng0n1?poll=1", "neither true nor false"),
            ("nvme-ng:/dev/ng0n1?poll=true&poll=true", "given twice"),
            ("mem:1m?nsid=1", "unknown parameter \"nsid\""),
            ("mem:1m?distance=near", "distance \"near\" is not a number"),
            ("null:1m?distance=-1", "distance \"-1\" is not a number"),
            (
                "mem:1m?throughput=101",
                "throughput \"101\" is not a number from 0 to 100",
            ),
            (
                "mem:1m?throughput=-1&distance=1",
                "throughput \"-1\" is not a number from 0 to 100",
            ),
            ("file:/x?distance=1&distance=2", "given twice"),
            (
                "nvme-tcp://h/nqn.x?distance=",
                "distance \"\" is not a number",
            ),
            ("mem:lots", "\"lots\" is not a size"),
            ("mem:0", "multiple of 4 KiB"),
            ("mem:1000", "multiple of 4 KiB"),
        ] {
            let error = text.parse::<PathUri>().expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn hostile_uris_get_an_error_or_are_read_again_as_the_same() {
        hostile::attack("uri", |text| match text.parse::<PathUri>() {
            Ok(uri) => {
                assert_eq!(uri.to_string().parse().as_ref(), Ok(&uri));
                match uri.kind() {
                    UriKind::NvmeTcp(tcp) => {
                        assert!(!tcp.host.is_empty() && tcp.port != 0);
                        assert!((1..=NQN_BYTES_MAX).contains(&tcp.subsystem.len()));
                    }
                    UriKind::File(path) | UriKind::Queue { socket: path, .. } => {
                        assert!(path.is_absolute());
                    }
                    UriKind::NvmeNg(ng) => assert!(ng.device.is_absolute()),
                    UriKind::Memory(bytes) | UriKind::Null(bytes) => assert_ne!(*bytes, 0),
                }
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        });
    }
}
