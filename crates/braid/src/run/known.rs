//! Which namespace each volume had when it was opened last: a name is tied to its data.
//!
//! # Contract
//! `volumes-<id>.json` keeps, by the name of a volume, what identified its namespace; what another
//! control socket's file says of that name and subsystem counts where this one says nothing. A
//! volume that shows another one at a later start is not opened until a user accepts it (`braid
//! accept`, `braid run --accept`), or `uuid` or `nguid` of its configuration names the new one.
//! Where these keys stand, they decide. Of a mirror the identifier on its legs is kept: the engine
//! compares it before anything is written ([`MirrorConfig::known`]).
//!
//! [`MirrorConfig::known`]: engine::mirror::MirrorConfig::known
//!
//! # Limits
//! Local files have no identity. What another control socket's file says of a mirror does not
//! count: nothing but the name would tie it to this one.
use super::config::Volume;
use super::registry::{Registry, others, places};
use super::state;
use anyhow::Context;
use mirror::Id;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use uuid::Uuid;
use volume::Namespace;

/// All of them, and their file.
pub struct Known {
    path: PathBuf,
    map: BTreeMap<String, Shown>,
    /// Volumes whose next namespace is taken: the one that a user was shown, or whichever it is.
    accepted: BTreeMap<String, Option<Shown>>,
}

/// What identifies a namespace, as it is kept.
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
    mirror: Option<MirrorId>,
}

/// The identifier on a mirror's legs, kept as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct MirrorId(Uuid);

impl TryFrom<String> for MirrorId {
    type Error = uuid::Error;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse().map(Self)
    }
}

impl From<MirrorId> for String {
    fn from(id: MirrorId) -> Self {
        id.0.to_string()
    }
}

/// As an identifier is kept; `None`: zero, which stands for none.
fn hex(bytes: &[u8]) -> Option<String> {
    let digits = || bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.iter().any(|byte| *byte != 0).then(digits)
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

impl Shown {
    fn mirror(id: Id) -> Self {
        Self {
            subsystem: String::new(),
            nsid: 0,
            uuid: None,
            nguid: None,
            eui64: None,
            mirror: Some(MirrorId(Uuid::from_bytes(id.0))),
        }
    }

    /// In what two namespaces differ: as it was, and as it is.
    fn difference(&self, now: &Self) -> Option<(String, String)> {
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
    /// Reads the file, if there is one; the namespaces of `accepted` volumes are forgotten.
    ///
    /// # Errors
    /// It can't be read, or isn't ours.
    pub fn read(path: PathBuf, accepted: &[String]) -> anyhow::Result<Self> {
        let map: BTreeMap<String, Shown> = state::read(&path).with_context(|| {
            format!(
                "{} says which namespace each volume had; remove it only if all of them are as \
                 they are meant",
                path.display()
            )
        })?;
        Ok(Self {
            path,
            map,
            accepted: accepted.iter().map(|name| (name.clone(), None)).collect(),
        })
    }

    /// Takes what engines with other control sockets know of volumes that are not known here: of
    /// those with the same name and subsystem. A file that can't be read is logged.
    pub fn adopt(&mut self, registry: &Registry, volumes: &[Volume]) {
        let files = others(registry.directory(), "volumes").into_iter();
        for file in files.filter(|it| *it != self.path) {
            let what = "namespaces that volumes of another control socket had";
            let Some(theirs) = state::read_other::<BTreeMap<String, Shown>>(&file, what) else {
                continue;
            };
            for of in volumes.iter().filter(|of| of.leg_of.is_none()) {
                let known = theirs.get(&of.name).filter(|known| {
                    let mut places = places(of).into_iter();
                    places.any(|it| it.subsystem == known.subsystem)
                });
                if let Some(known) = known {
                    let own = self.map.entry(of.name.clone());
                    own.or_insert_with(|| known.clone());
                }
            }
        }
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
        (!self.accepted.contains_key(name)).then(|| Id(known.0.into_bytes()))
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
        if self.map.get(name) == Some(&now) {
            return Ok(());
        }
        self.map.insert(name.to_owned(), now);
        state::write(&self.path, &self.map)
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

    /// A volume was taken out of the configuration of a running engine: its name is free.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn forget(&mut self, name: &str) -> anyhow::Result<()> {
        match self.map.remove(name) {
            Some(_) => state::write(&self.path, &self.map),
            None => Ok(()),
        }
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

    #[test]
    fn another_namespace_is_refused_until_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volumes-a.json");
        let of = volume("");
        let mut known = Known::read(path.clone(), &[]).unwrap();
        assert_eq!(known.check(&of, &namespace(1, 0)), Ok(()));
        known.keep("v0", &namespace(1, 0)).unwrap();
        let mut known = Known::read(path.clone(), &[]).unwrap();
        assert_eq!(known.check(&of, &namespace(1, 0)), Ok(()));
        assert_eq!(known.check(&of, &namespace(1, 5)), Ok(()), "shows more");
        for other in [namespace(2, 0), namespace(0, 0), namespace(0, 1)] {
            let why = known.check(&of, &other).unwrap_err();
            assert!(why.contains("braid accept v0"), "{why}");
        }
        known.accept("v0");
        assert_eq!(known.check(&of, &namespace(2, 0)), Ok(()));
        known.keep("v0", &namespace(2, 0)).unwrap();
        assert!(known.check(&of, &namespace(1, 0)).is_err(), "once");
        let known = Known::read(path, &["v0".to_owned()]).unwrap();
        assert_eq!(known.check(&of, &namespace(1, 0)), Ok(()));
    }

    #[test]
    fn mirror_is_known_by_its_identifier() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volumes-a.json");
        let mut known = Known::read(path.clone(), &[]).unwrap();
        assert_eq!(known.mirror("v0"), None);
        known.keep_mirror("v0", Id([5; 16])).unwrap();
        let accepted = Known::read(path.clone(), &["v0".to_owned()]).unwrap();
        assert_eq!(accepted.mirror("v0"), None);
        let mut known = Known::read(path, &[]).unwrap();
        assert_eq!(known.mirror("v0"), Some(Id([5; 16])));
        // The name is a volume's now.
        assert_eq!(known.check(&volume(""), &namespace(1, 0)), Ok(()));
        known.keep("v0", &namespace(1, 0)).unwrap();
        assert_eq!(known.mirror("v0"), None);
    }

    #[test]
    fn one_that_was_shown_is_accepted_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volumes-a.json");
        let of = volume("");
        let mut known = Known::read(path, &[]).unwrap();
        known.keep("v0", &namespace(1, 0)).unwrap();
        known.accept_shown(&of, &namespace(2, 0)).unwrap();
        assert_eq!(known.check(&of, &namespace(2, 0)), Ok(()));
        assert!(known.check(&of, &namespace(3, 0)).is_err());
        assert_eq!(known.check(&of, &namespace(1, 0)), Ok(()), "its own");
    }

    #[test]
    fn identity_is_known_under_another_socket() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_owned();
        let registry = |id: &str| Registry::new(place.clone(), id.to_owned(), &place);
        let mut known = Known::read(registry("a").state_path("volumes"), &[]).unwrap();
        known.keep("v0", &namespace(1, 0)).unwrap();
        let of = |nqn: &str| {
            let uri = format!("nvme-tcp://127.0.0.1:4420/{nqn}");
            let text = format!("[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{uri}\"\n");
            parsed(&text).volumes.remove(0)
        };
        for (nqn, refused) in [
            ("nqn.2026-01.org.example:s", true),
            ("nqn.2026-01.org.example:other", false),
        ] {
            let mut other = Known::read(registry("b").state_path("volumes"), &[]).unwrap();
            // What can't be read of others keeps no engine from starting.
            std::fs::write(registry("0").state_path("volumes"), "{").unwrap();
            other.adopt(&registry("b"), &[of(nqn)]);
            assert_eq!(other.check(&of(nqn), &namespace(2, 0)).is_err(), refused);
        }
    }

    #[test]
    fn pinned_identity_decides() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("volumes-a.json");
        let mut known = Known::read(path, &[]).unwrap();
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
        let path = directory.path().join("volumes-a.json");
        let mut known = Known::read(path, &[]).unwrap();
        known.keep("v0", &namespace(0, 0)).unwrap();
        let mut other = namespace(0, 0);
        assert_eq!(known.check(&volume(""), &other), Ok(()));
        other.nsid = 2;
        assert!(known.check(&volume(""), &other).is_err());
    }
}
