//! Which namespace each volume had when it was opened last: a name is tied to its data.
//!
//! # Contract
//! A record keeps what identified the namespace of a volume, found by where the volume leads. Of a
//! volume that leads elsewhere by its configuration, what the engine of this control socket kept
//! under its name counts. A volume that shows another namespace at a later start is not opened
//! until a user accepts it (`braid accept`, `braid run --accept`), or `uuid` or `nguid` of its
//! configuration names the new one. Where these keys stand, they decide. Of a mirror the identifier
//! on its legs is kept: the engine compares it before anything is written
//! ([`MirrorConfig::known`]).
//!
//! [`MirrorConfig::known`]: engine::mirror::MirrorConfig::known
//!
//! # Limits
//! Local files have no identity.
use super::config::Volume;
use super::mirrors::{IdText, MirrorRecords};
use super::records::{Found, Identity, IdentityKind, Kept, Records};
use super::registry::{Place, Registry};
use super::rename::Renames;
use mirror::Id;
use multipath::Namespace;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// All of them, and their files.
pub struct Known {
    /// Of the mirrors of this host.
    pub mirror_records: MirrorRecords,
    records: Records<Shown>,
    /// By the names of volumes.
    map: BTreeMap<String, Shown>,
    /// Volumes whose next namespace is taken: the one that a user was shown, or whichever it is.
    accepted: BTreeMap<String, Option<Shown>>,
}

/// Identity of a namespace, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    subsystem: String,
    nsid: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    nguid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    eui64: Option<String>,
    /// The identifier of a mirror, which has nothing of the above.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mirror: Option<IdText>,
}

/// As an identifier is kept; `None`: zero, which stands for none.
fn hex(bytes: &[u8]) -> Option<String> {
    let digits = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.iter().any(|byte| *byte != 0).then(digits)
}

impl Kept for Shown {
    const KIND: &'static str = "identity";
    const OLD: &'static str = "volumes";
    const ADVICE: &'static str = "says which namespace a volume had; remove it only if all volumes \
                                  are as they are meant";
    const STRICT: bool = false;

    fn tell(&self, of: &mut Identity) {
        if self.mirror.is_some() {
            of.kind = IdentityKind::Mirror;
        } else {
            of.add_namespace(Place {
                subsystem: self.subsystem.clone(),
                nsid: Some(self.nsid),
            });
        }
    }
}

impl From<&Namespace> for Shown {
    fn from(of: &Namespace) -> Self {
        Self {
            subsystem: of.subsystem.clone(),
            nsid: of.nsid,
            uuid: hex(&of.uuid).map(|_| Uuid::from_bytes(of.uuid).to_string()),
            nguid: hex(&of.nguid),
            eui64: hex(&of.eui64),
            mirror: None,
        }
    }
}

/// Its first identifier.
impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let all = [
            ("UUID", &self.uuid),
            ("NGUID", &self.nguid),
            ("EUI-64", &self.eui64),
        ];
        match all.iter().find_map(|(name, id)| Some((name, id.as_ref()?))) {
            Some((name, id)) => write!(f, "the namespace with {name} {id}"),
            None => write!(f, "namespace {} of {}", self.nsid, self.subsystem),
        }
    }
}

impl Shown {
    fn mirror(id: Id) -> Self {
        Self {
            subsystem: String::new(),
            nsid: 0,
            uuid: None,
            nguid: None,
            eui64: None,
            mirror: Some(IdText(id)),
        }
    }

    /// In what two namespaces differ: as it was, and as it is.
    pub(super) fn difference(&self, now: &Self) -> Option<(String, String)> {
        let all = [
            ("UUID", &self.uuid, &now.uuid),
            ("NGUID", &self.nguid, &now.nguid),
            ("EUI-64", &self.eui64, &now.eui64),
        ];
        let named = |name: &str, id: &Option<String>| match id {
            Some(id) => format!("{name} {id}"),
            None => format!("no {name}"),
        };
        let both = all.iter().filter(|(_, a, b)| a.is_some() && b.is_some());
        let mut same = false;
        for (name, a, b) in both {
            if a != b {
                return Some((named(name, a), named(name, b)));
            }
            same = true;
        }
        // One identifier that agrees is enough: a target may learn to show more of them.
        if same {
            return None;
        }
        if let Some((name, a, b)) = all.iter().find(|(_, a, _)| a.is_some()) {
            return Some((named(name, a), named(name, b)));
        }
        let place = |of: &Self| format!("namespace {} of {}", of.nsid, of.subsystem);
        let moved = place(self) != place(now);
        moved.then(|| (place(self), place(now)))
    }
}

impl Known {
    /// Nothing yet; the next namespaces of `accepted` volumes are taken, whichever they are.
    pub fn new(registry: &Registry, accepted: &[String]) -> Self {
        Self {
            mirror_records: MirrorRecords::new(registry.directory()),
            records: Records::new(registry),
            map: BTreeMap::new(),
            accepted: accepted.iter().map(|name| (name.clone(), None)).collect(),
        }
    }

    /// Reads what is known of volumes.
    ///
    /// # Errors
    /// A file of one of them can't be read; others are logged.
    pub fn adopt(&mut self, registry: &Registry, volumes: &[Volume]) -> anyhow::Result<()> {
        // The identity of a leg is in its superblock.
        let volumes = volumes.iter().filter(|it| it.leg_of.is_none());
        let (identities, found) = self.records.read(registry, volumes)?;
        let mut all = Vec::new();
        for now in &identities {
            let rank = |it: &&Found<Shown>| {
                let of = &it.record.of;
                let named = of.has_name_of(now);
                match of.is(now) {
                    true => Some((true, named, of.volume == now.volume)),
                    // A name stays tied to its data where the configuration leads elsewhere.
                    false => named.then_some((false, true, true)),
                }
            };
            let best = found.iter().filter(|it| rank(it).is_some());
            if let Some(best) = best.max_by_key(rank) {
                all.push((now, best));
            }
        }
        // A file is one volume's: first of all of the one that leads there.
        all.sort_by_key(|(now, best)| !best.record.of.is(now));
        for (now, best) in all {
            let name = &now.volume;
            self.map.insert(name.clone(), best.record.holds.clone());
            let is_free = registry.names_of(&best.record.of.engine).is_none();
            let path = best.path.as_ref().filter(|_| is_free);
            if let Some(path) = path.filter(|it| !self.records.is_claimed(it)) {
                self.records.claim(name, path.clone(), best.record.clone());
            }
        }
        Ok(())
    }

    /// Whether a namespace may be used as this volume's, which is not open yet.
    ///
    /// # Errors
    /// It is another one than the volume is known to have: in what it differs, and what to do.
    pub fn check(&self, of: &Volume, namespace: &Namespace) -> Result<(), String> {
        let name = &of.name;
        let pinned = pinned(of, namespace)?;
        let now = Shown::from(namespace);
        let is_meant = |it: &Option<Shown>| it.as_ref().is_none_or(|it| *it == now);
        let accepted = self.accepted.get(name).is_some_and(is_meant);
        let before = self.map.get(name).filter(|_| !pinned && !accepted);
        // Of one that was a mirror nothing can be compared.
        let before = before.filter(|before| before.mirror.is_none());
        match before.and_then(|before| before.difference(&now)) {
            None => Ok(()),
            Some((before, now)) => Err(format!(
                "its paths lead to another namespace than when it was opened last: {now}, before \
                 {before}; nothing of it is used; correct its paths, or accept that namespace: \
                 braid accept {name} (braid run --accept {name})"
            )),
        }
    }

    /// The identifier that a mirror had when it ran last; `None`: it isn't known, or whichever it
    /// has now is accepted.
    pub fn mirror(&self, name: &str) -> Option<Id> {
        let known = self.map.get(name)?.mirror.as_ref()?;
        (!self.accepted.contains_key(name)).then_some(known.0)
    }

    /// Keeps what identifies the namespace of a volume that is opened.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep(&mut self, name: &str, namespace: &Namespace) -> anyhow::Result<()> {
        self.keep_as(name, Shown::from(namespace))
    }

    /// Keeps the identifier of a mirror that runs.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep_mirror(&mut self, name: &str, id: Id) -> anyhow::Result<()> {
        self.keep_as(name, Shown::mirror(id))
    }

    fn keep_as(&mut self, name: &str, now: Shown) -> anyhow::Result<()> {
        self.accepted.remove(name);
        self.records.keep(name, &now)?;
        self.map.insert(name.to_owned(), now);
        Ok(())
    }

    /// Whether a volume of that name is known.
    pub fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// The next namespace of a volume is taken, whichever it is.
    pub fn accept(&mut self, name: &str) {
        self.accepted.insert(name.to_owned(), None);
    }

    /// This namespace is the volume's when a path shows it next.
    ///
    /// # Errors
    /// Its configuration names another one.
    pub fn accept_shown(&mut self, of: &Volume, namespace: &Namespace) -> Result<(), String> {
        pinned(of, namespace)?;
        let shown = Some(Shown::from(namespace));
        self.accepted.insert(of.name.clone(), shown);
        Ok(())
    }

    /// Volumes have other names.
    ///
    /// # Errors
    /// A file can't be written, and has the name of before.
    pub fn rename(&mut self, names: &Renames) -> anyhow::Result<()> {
        names.apply_to_keys(&mut self.map);
        names.apply_to_keys(&mut self.accepted);
        self.records.rename_all(names);
        let now = names.iter().map(|(_, to)| to);
        let mut now = now.filter_map(|name| Some((name, self.map.get(name)?)));
        now.try_for_each(|(name, it)| self.records.keep(name, it))
    }

    /// Volumes that had other names when their records were kept: these, and their own.
    pub fn renamed(&self) -> Vec<(&str, &str)> {
        self.records.renamed()
    }

    /// A volume was taken out of the configuration of a running engine: its name is free.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn forget(&mut self, name: &str) -> anyhow::Result<()> {
        self.map.remove(name);
        self.records.remove(name)
    }
}

/// Whether a namespace may be used by a further path of a volume that is open with one.
///
/// # Errors
/// It is another one: in what it differs, and what to do.
pub fn check_open(of: &Volume, open: &Namespace, namespace: &Namespace) -> Result<(), String> {
    pinned(of, namespace)?;
    match Shown::from(open).difference(&Shown::from(namespace)) {
        None => Ok(()),
        Some((open, now)) => Err(format!(
            "refused beside the namespace that {} is open with: it leads to another namespace, \
             {now}, and not to {open}; correct the path",
            of.name
        )),
    }
}

/// Whether keys of a volume's configuration name its namespace.
///
/// # Errors
/// They name another one.
fn pinned(of: &Volume, namespace: &Namespace) -> Result<bool, String> {
    let pins = [
        ("uuid", of.uuid, namespace.uuid),
        ("nguid", of.nguid, namespace.nguid),
    ];
    let mut pinned = false;
    for (key, wanted, shown) in pins {
        let Some(wanted) = wanted else {
            continue;
        };
        if wanted.0 != shown {
            let text = |id: [u8; 16]| Uuid::from_bytes(id).to_string();
            let shown = match hex(&shown) {
                Some(_) => text(shown),
                None => "none".to_owned(),
            };
            return Err(format!(
                "{key} of its configuration is {}, and its namespace shows {shown}: it is another \
                 one, and nothing of it is used; correct its paths, or {key}, and restart the \
                 engine",
                text(wanted.0)
            ));
        }
        pinned = true;
    }
    Ok(pinned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config::tests::parsed;
    use std::path::Path;

    fn volume(keys: &str) -> Volume {
        let text =
            format!("[[volume]]\nname = \"v0\"\n{keys}[[volume.path]]\nuri = \"mem:1MiB\"\n");
        parsed(&text).volumes.remove(0)
    }

    fn namespace(uuid: u8, nguid: u8) -> Namespace {
        Namespace {
            subsystem: "nqn.2026-01.org.example:s".into(),
            controller: 1,
            nsid: 1,
            nguid: [nguid; 16],
            eui64: [0; 8],
            uuid: [uuid; 16],
            command_set: 0,
            shared: true,
        }
    }

    /// Records of an engine that starts with these volumes.
    fn started(directory: &Path, accepted: &[&str], of: &[Volume]) -> Known {
        started_as("a", directory, accepted, of)
    }

    fn started_as(id: &str, directory: &Path, accepted: &[&str], of: &[Volume]) -> Known {
        let registry = Registry::new(directory.to_owned(), id.to_owned(), &directory.join(id));
        let accepted: Vec<String> = accepted.iter().map(|it| (*it).to_owned()).collect();
        let mut known = Known::new(&registry, &accepted);
        known.adopt(&registry, of).unwrap();
        known
    }

    #[test]
    fn another_namespace_is_refused_until_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let all = [volume("")];
        let of = &all[0];
        let mut known = started(place, &[], &all);
        assert_eq!(known.check(of, &namespace(1, 0)), Ok(()));
        known.keep("v0", &namespace(1, 0)).unwrap();
        let mut known = started(place, &[], &all);
        assert_eq!(known.check(of, &namespace(1, 0)), Ok(()));
        assert_eq!(known.check(of, &namespace(1, 5)), Ok(()), "shows more");
        for other in [namespace(2, 0), namespace(0, 0), namespace(0, 1)] {
            let why = known.check(of, &other).unwrap_err();
            assert!(why.contains("braid accept v0"), "{why}");
        }
        known.accept("v0");
        assert_eq!(known.check(of, &namespace(2, 0)), Ok(()));
        known.keep("v0", &namespace(2, 0)).unwrap();
        assert!(known.check(of, &namespace(1, 0)).is_err(), "once");
        let known = started(place, &["v0"], &all);
        assert_eq!(known.check(of, &namespace(1, 0)), Ok(()));
    }

    #[test]
    fn mirror_is_known_by_its_identifier() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let mirror = |name: &str, legs: [&str; 2]| {
            let legs = legs.map(|leg| format!("[[volume.leg]]\nuri = \"file:{leg}\"\n"));
            let text = format!("[[volume]]\nname = \"{name}\"\nkind = \"mirror\"\n");
            parsed(&(text + &legs.concat())).volumes
        };
        let m0 = mirror("v0", ["/srv/a", "/srv/b"]);
        let mut known = started(place, &[], &m0);
        assert_eq!(known.mirror("v0"), None);
        known.keep_mirror("v0", Id([5; 16])).unwrap();
        assert_eq!(started(place, &["v0"], &m0).mirror("v0"), None, "accepted");
        let is = |name, legs, id| {
            let known = started_as(id, place, &[], &mirror(name, legs));
            known.mirror(name).is_some()
        };
        assert!(is("v0", ["/srv/a", "/srv/b"], "a"));
        assert!(is("m1", ["/srv/b", "/srv/c"], "b"), "by its legs");
        assert!(is("v0", ["/srv/c", "/srv/d"], "a"), "by its name");
        assert!(!is("v0", ["/srv/c", "/srv/d"], "b"));
        // The name is a volume's now.
        let mut known = started(place, &[], &[volume("")]);
        assert_eq!(known.check(&volume(""), &namespace(1, 0)), Ok(()));
        known.keep("v0", &namespace(1, 0)).unwrap();
        assert_eq!(known.mirror("v0"), None);
    }

    #[test]
    fn one_that_was_shown_is_accepted_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let of = volume("");
        let mut known = started(directory.path(), &[], std::slice::from_ref(&of));
        known.keep("v0", &namespace(1, 0)).unwrap();
        known.accept_shown(&of, &namespace(2, 0)).unwrap();
        assert_eq!(known.check(&of, &namespace(2, 0)), Ok(()));
        assert!(known.check(&of, &namespace(3, 0)).is_err());
        assert_eq!(known.check(&of, &namespace(1, 0)), Ok(()), "its own");
    }

    #[test]
    fn identity_is_known_by_where_a_volume_leads() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let of = |name: &str, nqn: &str| {
            let uri = format!("nvme-tcp://127.0.0.1:4420/{nqn}");
            let text = format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n");
            parsed(&text).volumes.remove(0)
        };
        let [own, other] = ["nqn.2026-01.org.example:s", "nqn.2026-01.org.example:other"];
        let mut known = started(place, &[], &[of("v0", own)]);
        known.keep("v0", &namespace(1, 0)).unwrap();
        for (name, nqn, id, refused) in [
            ("v0", own, "a", true),
            ("v0", own, "b", true),
            ("w0", own, "b", true),
            ("v0", other, "b", false), // of another engine
            ("w0", other, "a", false),
            ("v0", other, "a", true), // the name stays tied to its data
        ] {
            let of = of(name, nqn);
            // An unreadable record of others keeps no engine from starting.
            std::fs::write(place.join("volumes/identity-0.json"), "{").unwrap();
            let now = started_as(id, place, &[], std::slice::from_ref(&of));
            let is_refused = now.check(&of, &namespace(2, 0)).is_err();
            assert_eq!(is_refused, refused, "{name} {nqn} {id}");
        }
    }

    #[test]
    fn record_is_of_the_volume_that_leads_there_and_not_of_its_name_too() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let of = |name: &str, nsid: u32| {
            let uri = format!("nvme-tcp://127.0.0.1:4420/nqn.2026-01.org.example:s?nsid={nsid}");
            let text = format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n");
            parsed(&text).volumes.remove(0)
        };
        let mut known = started(place, &[], &[of("v0", 1)]);
        known.keep("v0", &namespace(1, 0)).unwrap();
        let now = [of("v0", 2), of("v1", 1)];
        let mut known = started(place, &["v0"], &now);
        assert!(known.check(&now[1], &namespace(2, 0)).is_err());
        known.keep("v0", &namespace(2, 0)).unwrap();
        known.keep("v1", &namespace(1, 0)).unwrap();
        let known = started(place, &[], &now);
        for (at, own) in [(0, 2), (1, 1)] {
            assert_eq!(known.check(&now[at], &namespace(own, 0)), Ok(()));
            assert!(known.check(&now[at], &namespace(3 - own, 0)).is_err());
        }
    }

    #[test]
    fn damaged_file_of_an_own_volume_ends_the_start() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path();
        let of = [volume("")];
        let mut known = started(place, &[], &of);
        known.keep("v0", &namespace(1, 0)).unwrap();
        let file = std::fs::read_dir(place.join("volumes")).unwrap().next();
        std::fs::write(file.unwrap().unwrap().path(), "{").unwrap();
        let registry = Registry::new(place.to_owned(), "a".to_owned(), place);
        let mut known = Known::new(&registry, &[]);
        assert!(known.adopt(&registry, &of).is_err());
        let other = parsed("[[volume]]\nname = \"w0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n");
        assert!(known.adopt(&registry, &other.volumes).is_ok());
    }

    #[test]
    fn pinned_identity_decides() {
        let directory = tempfile::tempdir().unwrap();
        let mut known = started(directory.path(), &[], &[volume("")]);
        known.keep("v0", &namespace(2, 2)).unwrap();
        let pin = |key: &str, byte: u8| {
            volume(&format!(
                "{key} = \"{}\"\n",
                format!("{byte:02x}").repeat(16)
            ))
        };
        assert_eq!(known.check(&pin("uuid", 1), &namespace(1, 1)), Ok(()));
        assert_eq!(known.check(&pin("nguid", 1), &namespace(1, 1)), Ok(()));
        known.accept("v0");
        let why = known.check(&pin("uuid", 1), &namespace(2, 1)).unwrap_err();
        assert!(why.starts_with("uuid of its configuration"), "{why}");
        assert!(known.check(&pin("nguid", 1), &namespace(1, 0)).is_err());
    }

    #[test]
    fn without_identifiers_subsystem_and_number_are_compared() {
        let directory = tempfile::tempdir().unwrap();
        let mut known = started(directory.path(), &[], &[volume("")]);
        known.keep("v0", &namespace(0, 0)).unwrap();
        let mut other = namespace(0, 0);
        assert_eq!(known.check(&volume(""), &other), Ok(()));
        other.nsid = 2;
        assert!(known.check(&volume(""), &other).is_err());
    }
}
