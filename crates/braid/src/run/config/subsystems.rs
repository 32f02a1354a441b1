//! NVMe/TCP exports: which subsystems they make.
//!
//! # Contract
//! Exports with one NQN are one subsystem. Each volume in it is one namespace, which is seen at all
//! addresses of the subsystem. An address belongs to one subsystem. A subsystem that other machines
//! reach names its hosts, or says that any may connect.
//!
//! The identity of a namespace doesn't depend on the order of the volumes: a connected host would
//! go on with another volume's data. UUID and NGUID derive from the NQN and the volume's name; the
//! NSID is written, unless the subsystem has one namespace.
use super::check::Step::{At, Key};
use super::check::Wrong;
use super::{Config, ExportKeys, Volume};
use crate::run::mirrors;
use engine::mirror::MIRRORS_FROM;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use target::{check_nqn, volume_identifiers};

/// A subsystem that volumes are exported as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// NQN.
    pub nqn: String,
    /// Serial number, where one is given.
    pub serial: Option<String>,
    /// Hosts that may connect; none: any.
    pub hosts: Vec<String>,
    /// Where it listens.
    pub addresses: Vec<SocketAddr>,
    /// In the order of the volumes.
    pub namespaces: Vec<Namespace>,
}

/// A volume as a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Name of the volume.
    pub volume: String,
    /// NSID.
    pub nsid: u32,
    /// UUID and NGUID.
    pub uuid: [u8; 16],
    pub nguid: [u8; 16],
    /// Write protected.
    pub read_only: bool,
}

impl Namespace {
    /// Whether both are one namespace for hosts.
    pub fn is_same(&self, other: &Self) -> bool {
        let what = |it: &Self| (it.nsid, it.uuid, it.nguid);
        self.volume == other.volume && what(self) == what(other)
    }
}

/// A subsystem while exports are read.
struct Draft {
    it: Subsystem,
    is_open: bool,
    /// Places of the exports: volume, export.
    exports: Vec<(usize, usize)>,
    /// Of each namespace what its exports say.
    keys: Vec<ExportKeys>,
    /// Of each namespace the place of its first export.
    first: Vec<(usize, usize)>,
}

/// Returns the subsystems that the exports of these volumes make.
///
/// # Errors
/// The first export that can't be, and why.
pub(super) fn of(volumes: &[Volume]) -> Result<Vec<Subsystem>, Wrong> {
    let mut all: Vec<Draft> = Vec::new();
    for (at, volume) in volumes.iter().enumerate() {
        for (number, keys) in volume.export_keys.iter().enumerate() {
            let Some(address) = keys.nvme else { continue };
            let wrong = |(key, text): (&'static str, String)| {
                let steps = [Key("volume"), At(at), Key("export"), At(number), Key(key)];
                (steps.to_vec(), text)
            };
            add(&mut all, volume, (at, number), (address, keys)).map_err(wrong)?;
        }
    }
    all.into_iter().map(finish).collect()
}

/// An export becomes a part of its subsystem.
fn add(
    all: &mut Vec<Draft>,
    volume: &Volume,
    place: (usize, usize),
    (address, keys): (SocketAddr, &ExportKeys),
) -> Result<(), (&'static str, String)> {
    let nqn = keys.nqn.clone().unwrap_or_default();
    let mut others = all.iter().filter(|it| it.it.nqn != nqn);
    if let Some(other) = others.find(|it| it.it.addresses.contains(&address)) {
        let text = format!(
            "{address} is the address of {}: listen on another",
            other.it.nqn
        );
        return Err(("nvme", text));
    }
    let at = all.iter().position(|it| it.it.nqn == nqn);
    let at = at.unwrap_or_else(|| {
        all.push(Draft::new(nqn));
        all.len() - 1
    });
    let of = &mut all[at];
    of.is_open |= keys.open;
    of.exports.push(place);
    let differs = |what| format!("the exports of {} name different {what}", of.it.nqn);
    if let Some(serial) = &keys.serial
        && of.it.serial.get_or_insert_with(|| serial.clone()) != serial
    {
        return Err(("serial", differs("serial numbers")));
    }
    if !keys.hosts.is_empty() && !of.it.hosts.is_empty() && of.it.hosts != keys.hosts {
        return Err(("hosts", differs("hosts")));
    }
    if of.it.hosts.is_empty() {
        of.it.hosts.clone_from(&keys.hosts);
    }
    let is_new = !of.it.addresses.contains(&address);
    if is_new {
        of.it.addresses.push(address);
    }
    let mut namespaces = of.it.namespaces.iter().zip(&of.keys);
    let Some((_, before)) = namespaces.find(|(it, _)| it.volume == volume.name) else {
        if let Some(nsid) = keys.nsid
            && let Some(other) = of.keys.iter().position(|it| it.nsid == Some(nsid))
        {
            let other = &of.it.namespaces[other].volume;
            return Err((
                "nsid",
                format!("namespace {nsid} of {} is {other}", of.it.nqn),
            ));
        }
        of.it.namespaces.push(Namespace {
            volume: volume.name.clone(),
            nsid: keys.nsid.unwrap_or(1),
            uuid: [0; 16],
            nguid: [0; 16],
            read_only: keys.read_only,
        });
        of.keys.push(keys.clone());
        of.first.push(place);
        return Ok(());
    };
    if !is_new {
        return Err((
            "nvme",
            format!("{} is exported twice at {address}", volume.name),
        ));
    }
    let terms = |it: &ExportKeys| (it.nsid, it.uuid, it.nguid, it.read_only);
    if terms(before) != terms(keys) {
        let text = format!(
            "{} is one namespace of {} at all its addresses: nsid, uuid, nguid and read_only must \
             be alike",
            volume.name, of.it.nqn
        );
        return Err(("nvme", text));
    }
    Ok(())
}

impl Draft {
    fn new(nqn: String) -> Self {
        let it = Subsystem {
            nqn,
            serial: None,
            hosts: Vec::new(),
            addresses: Vec::new(),
            namespaces: Vec::new(),
        };
        Self {
            it,
            is_open: false,
            exports: Vec::new(),
            keys: Vec::new(),
            first: Vec::new(),
        }
    }
}

/// Gives the namespaces their identifiers, and checks their NSIDs and who reaches the subsystem.
fn finish(draft: Draft) -> Result<Subsystem, Wrong> {
    let Draft {
        mut it,
        is_open,
        exports,
        keys,
        first,
    } = draft;
    if keys.len() > 1
        && let Some(at) = keys.iter().position(|it| it.nsid.is_none())
    {
        let (volume, export) = first[at];
        let steps = [Key("volume"), At(volume), Key("export"), At(export)];
        let text = format!(
            "{} is one of several namespaces of {}: write its nsid, by which hosts know it; one \
             that was alone without is nsid = 1",
            it.namespaces[at].volume, it.nqn
        );
        return Err((steps.to_vec(), text));
    }
    for (namespace, keys) in it.namespaces.iter_mut().zip(&keys) {
        let (nguid, uuid) = volume_identifiers(&it.nqn, &namespace.volume);
        namespace.uuid = keys.uuid.map_or(uuid, |id| id.0);
        namespace.nguid = keys.nguid.map_or(nguid, |id| id.0);
    }
    let reached = it.addresses.iter().find(|it| !it.ip().is_loopback());
    if let Some(address) = reached.filter(|_| it.hosts.is_empty() && !is_open) {
        let (volume, export) = exports[0];
        let steps = [
            Key("volume"),
            At(volume),
            Key("export"),
            At(export),
            Key("nvme"),
        ];
        let text = format!(
            "other machines reach {address}: name the hosts that may connect (hosts = [\"NQN\"]), \
             or write open = true"
        );
        return Err((steps.to_vec(), text));
    }
    Ok(it)
}

/// Returns the homes of the volumes in subsystems and of queues, by number: all of a subsystem, or
/// of one server of queues, have one, as its connections are on one core, and so do those that
/// share a volume. It is that of the first mirror among them, or else of the first volume.
pub(super) fn homes(config: &Config) -> BTreeMap<u16, u16> {
    let (volumes, cores) = (&config.volumes, config.cores);
    let numbers = mirrors::numbers(volumes.iter());
    let place = |name: &str| volumes.iter().position(|it| it.name == name);
    let mut groups: Vec<Vec<u16>> = Vec::new();
    let exported = config.subsystems.iter().map(|it| {
        let names = it.namespaces.iter().map(|it| it.volume.as_str());
        names.collect::<Vec<_>>()
    });
    let of_queues = config.queues.iter().map(|it| {
        let names = it.namespaces.iter().map(|it| it.volume.as_str());
        names.collect::<Vec<_>>()
    });
    for names in exported.chain(of_queues) {
        let places = names.into_iter().filter_map(place);
        let mut group: Vec<u16> = places.map(|at| numbers[at]).collect();
        let shares = |other: &mut Vec<u16>| other.iter().any(|it| group.contains(it));
        let others: Vec<_> = groups.extract_if(.., shares).collect();
        group = others.into_iter().flatten().chain(group).collect();
        groups.push(group);
    }
    let mut homes = BTreeMap::new();
    for group in groups {
        let first = group.iter().find(|it| **it >= MIRRORS_FROM);
        let home = first.or(group.first()).map_or(0, |it| it % cores.max(1));
        homes.extend(group.iter().map(|it| (*it, home)));
    }
    homes
}

/// Whether the keys of an export over NVMe/TCP can be.
///
/// # Errors
/// The key that can't be, and why.
pub(super) fn check(keys: &ExportKeys, address: SocketAddr) -> Result<(), (&'static str, String)> {
    let Some(nqn) = &keys.nqn else {
        let text = "an export over NVMe/TCP has a name: write nqn = \"nqn.2026-01.org.example:v0\"";
        return Err(("nvme", text.into()));
    };
    check_nqn("nqn", nqn).map_err(|text| ("nqn", text))?;
    for host in &keys.hosts {
        check_nqn("hosts", host).map_err(|text| ("hosts", text))?;
    }
    if address.ip().is_unspecified() {
        let text = format!("{address} is every address; discovery tells hosts of one: write that");
        return Err(("nvme", text));
    }
    let serial = keys.serial.as_deref().unwrap_or_default();
    if serial.len() > 20 || !serial.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        let text = "serial is not at most 20 printable characters of ASCII";
        return Err(("serial", text.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::run::config::Config;

    const NQN: &str = "nqn.2026-01.org.example:s";

    /// Volumes v0, v1, … with these exports each.
    fn parse(volumes: &[&[&str]], before: &str) -> Result<Config, String> {
        let mut text = before.to_owned();
        for (number, exports) in volumes.iter().enumerate() {
            text += &format!(
                "[[volume]]\nname = \"v{number}\"\n[[volume.path]]\nuri = \"mem:{}MiB\"\n",
                number + 1
            );
            for export in *exports {
                text += &format!("[[volume.export]]\n{}\n", export.replace("NQN", NQN));
            }
        }
        Config::parse(&text)
    }

    #[test]
    fn exports_of_one_nqn_are_one_subsystem() {
        let config = parse(
            &[
                &[
                    "nvme = \"127.0.0.1:4420\"\nnqn = \"NQN\"\nnsid = 2\nserial = \"S1\"",
                    "nvme = \"127.0.0.1:4421\"\nnqn = \"NQN\"\nnsid = 2",
                    "nbd = \"unix:/v0\"",
                ],
                &["nvme = \"127.0.0.1:4420\"\nnqn = \"NQN\"\nnsid = 1\nread_only = true"],
                &["nvme = \"[::1]:4420\"\nnqn = \"NQN2\""],
            ],
            "",
        );
        let config = config.unwrap();
        let [first, second] = &config.subsystems[..] else {
            panic!("{:?}", config.subsystems)
        };
        assert_eq!(
            (first.nqn.as_str(), first.serial.as_deref()),
            (NQN, Some("S1"))
        );
        assert_eq!(first.addresses.len(), 2);
        let namespaces = first.namespaces.iter();
        let namespaces: Vec<_> = namespaces
            .map(|it| (it.volume.as_str(), it.nsid, it.read_only))
            .collect();
        assert_eq!(namespaces, [("v0", 2, false), ("v1", 1, true)]);
        assert_ne!(first.namespaces[0].uuid, first.namespaces[1].uuid);
        assert_eq!(second.namespaces[0].nsid, 1);
        assert_eq!(config.volumes[0].exports.len(), 1, "over NBD");
    }

    /// A host keeps its disk as long as NSID and identifiers are the same.
    #[test]
    fn identity_of_a_namespace_is_its_volumes() {
        let of = |volumes: &[&[&str]], name: &str| {
            let config = parse(volumes, "").unwrap();
            let mut namespaces = config.subsystems[0].namespaces.iter();
            let found = namespaces.find(|it| it.volume == name).unwrap();
            (found.nsid, found.uuid, found.nguid)
        };
        let [one, two] =
            [1, 2].map(|nsid| format!("nvme = \"127.0.0.1:4420\"\nnqn = \"NQN\"\nnsid = {nsid}"));
        let both: [&[&str]; 2] = [&[&one], &[&two]];
        let before = of(&both, "v1");
        assert_eq!(before.0, 2);
        assert_eq!(of(&[&[], &[&two]], "v1"), before, "the first one has left");
        let alone: &[&str] = &["nvme = \"127.0.0.1:4420\"\nnqn = \"NQN\""];
        let (nsid, uuid, nguid) = of(&[&[], alone], "v1");
        assert_eq!((nsid, uuid, nguid), (1, before.1, before.2));
        let other = of(&[alone], "v0");
        assert_ne!((other.1, other.2), (uuid, nguid), "another volume's");
        let swapped: [&[&str]; 2] = [&[&two], &[&one]];
        assert_eq!(of(&swapped, "v1").1, before.1);
    }

    #[test]
    fn volumes_of_one_subsystem_have_their_nsid() {
        let nvme = "nvme = \"127.0.0.1:4420\"\nnqn = \"NQN\"";
        let with = format!("{nvme}\nnsid = 1");
        let both: [[&[&str]; 2]; 3] =
            [[&[nvme], &[nvme]], [&[nvme], &[&with]], [&[&with], &[nvme]]];
        for (volumes, name) in both.into_iter().zip(["v0", "v0", "v1"]) {
            let error = parse(&volumes, "").unwrap_err();
            let why = format!("{name} is one of several namespaces of {NQN}: write its nsid");
            assert!(error.contains(&why) && error.contains("line "), "{error}");
        }
    }

    /// Places of clients, of hosts and of paths are of one table per core.
    #[test]
    fn more_places_than_a_core_has_are_refused() {
        let exports: Vec<String> = (0..33)
            .map(|n| format!("nvme = \"127.0.0.1:{}\"\nnqn = \"NQN{n}\"", 4420 + n))
            .collect();
        let exports: Vec<[&str; 1]> = exports.iter().map(|it| [it.as_str()]).collect();
        let exports: Vec<&[&str]> = exports.iter().map(|it| &it[..]).collect();
        let error = parse(&exports, "clients = 12288\ncores = 1\n").unwrap_err();
        let place = "line 1, column 11: core 0 has at most 16384 connections";
        assert!(error.starts_with(place), "{error}");
        assert!(error.contains("write clients = 12094 or fewer"), "{error}");
        assert!(parse(&exports, "clients = 12094\ncores = 1\n").is_ok());
        // On two cores they have more places.
        assert!(parse(&exports, "clients = 12288\ncores = 2\n").is_ok());
    }

    #[test]
    fn exports_that_cannot_be_are_refused_by_name() {
        let nvme = "nvme = \"127.0.0.1:4420\"\nnqn = \"NQN\"";
        let with = |more: &str| format!("{nvme}\n{more}");
        let other =
            |address: &str, more: &str| format!("nvme = \"{address}\"\nnqn = \"NQN\"\n{more}");
        let one = |export: &str, why: &str| {
            let error = parse(&[&[export]], "").unwrap_err();
            assert!(
                error.contains(why) && error.contains("line "),
                "{export}: {error}"
            );
        };
        one("nvme = \"127.0.0.1:4420\"", "has a name: write nqn");
        one("nvme = \"localhost:4420\"", "write IP:PORT");
        one("read_only = true", "an export has an address");
        one(
            "nvme = \"127.0.0.1:1\"\nnqn = \"iqn.x\"",
            "must begin with \"nqn.\"",
        );
        one(&with("mode = \"0600\""), "mode is for nbd");
        one(&with("nbd = \"unix:/v0\""), "a [[volume.export]] for each");
        one(&with("nsid = 0"), "an nsid is 1 to");
        one(&with("serial = \"123456789012345678901\""), "at most 20");
        one(&with("hosts = [\"x\"]"), "must begin with \"nqn.\"");
        one("nbd = \"unix:/v0\"\nopen = true", "open is for TCP");
        one(&other("0.0.0.0:4420", "open = true"), "is every address");
        one(
            &other("192.0.2.1:4420", ""),
            "other machines reach 192.0.2.1:4420",
        );
        for more in ["open = true", "hosts = [\"nqn.2026-01.org.example:h\"]"] {
            parse(&[&[&other("192.0.2.1:4420", more)]], "").unwrap();
        }
        let two = |exports: [&[&str]; 2], why: &str| {
            let error = parse(&exports, "").unwrap_err();
            assert!(
                error.contains(why) && error.contains("line "),
                "{why}: {error}"
            );
        };
        two(
            [&[nvme], &["nvme = \"127.0.0.1:4420\"\nnqn = \"NQN2\""]],
            "127.0.0.1:4420 is the address of nqn.2026-01.org.example:s",
        );
        two(
            [&[nvme], &["nbd = \"tcp:127.0.0.1:4420\""]],
            "127.0.0.1:4420 is the address of an export over NBD",
        );
        two(
            [&[nvme, nvme], &[]],
            "v0 is exported twice at 127.0.0.1:4420",
        );
        two(
            [&[&with("nsid = 3")], &[&with("nsid = 3")]],
            "namespace 3 of nqn.2026-01.org.example:s is v0",
        );
        two(
            [&[nvme, &other("127.0.0.1:4421", "read_only = true")], &[]],
            "must be alike",
        );
        two(
            [
                &[&with("nsid = 1\nserial = \"a\"")],
                &[&with("nsid = 2\nserial = \"b\"")],
            ],
            "different serial",
        );
    }

    #[test]
    fn volumes_of_one_subsystem_are_on_one_core() {
        let of = |nsid: u32| format!("nvme = \"127.0.0.1:4420\"\nnqn = \"NQN\"\nnsid = {nsid}");
        let [first, second, third] = [1, 2, 3].map(of);
        let (nvme, other): (&[&str], &[&str]) = (&[&first], &[&second]);
        let config = parse(&[&[], nvme, other, &[]], "cores = 2\n").unwrap();
        let cores = [0, 1, 2, 3].map(|number| config.core_of(number));
        assert_eq!(cores, [0, 1, 1, 1]);
        let mirror = |name: &str, export: &str| {
            format!(
                "[[volume]]\nname = \"{name}\"\nkind = \"mirror\"\n\
                 [[volume.leg]]\nuri = \"file:/{name}a\"\n[[volume.leg]]\nuri = \"file:/{name}b\"\n\
                 [[volume.export]]\n{}\n",
                export.replace("NQN", NQN)
            )
        };
        let one = format!("cores = 2\n{}", mirror("m0", &second));
        let config = parse(&[&[], nvme], &one).unwrap();
        assert_eq!([1, 256].map(|number| config.core_of(number)), [0, 0]);
        let both = format!("{one}{}", mirror("m1", &third));
        let config = parse(&[nvme], &both).unwrap();
        assert_eq!([0, 256, 257].map(|number| config.core_of(number)), [0; 3]);
        let other = |nsid: u32| format!("nvme = \"127.0.0.1:4421\"\nnqn = \"NQN2\"\nnsid = {nsid}");
        let apart = format!("{one}{}", mirror("m1", &other(3)));
        let config = parse(&[nvme], &apart).unwrap();
        assert_eq!(
            [0, 256, 257].map(|number| config.core_of(number)),
            [0, 0, 1]
        );
        // A volume that is in both.
        let config = parse(&[&[&first, &other(1)]], &apart).unwrap();
        assert_eq!([0, 256, 257].map(|number| config.core_of(number)), [0; 3]);
    }
}
