//! The record of each node in the state directory: which data its users have.
//!
//! # Contract
//! A node is bound to data, not to a name: its users would read and write other data if another
//! volume took it over. So each device that is made gets a mark, a random number that the driver
//! keeps, and a record by its number and mark, written before the device is started. A device
//! without a record is another server's. Records are dropped with their devices, and those of an
//! earlier boot at the start.
use crate::run::config::{NodeKeys, Volume};
use crate::run::known::Shown;
use crate::run::mirrors::IdText;
use crate::run::registry::Registry;
use crate::run::state;
use crate::run::volumes::Running;
use crate::uri::UriKind;
use ::mirror::Id;
use anyhow::ensure;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Identity of the data of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataId {
    /// A namespace, by what identifies it.
    Namespace(Shown),
    /// A mirror, by the identifier on its legs.
    Mirror(IdText),
    /// Memory of an engine, named by a number of its own: it ends with the engine.
    Memory(u64),
}

impl DataId {
    /// Of a volume over paths that is open and [can be told](untold) from others; `None`: it is not
    /// known yet. `engine`: the number of this one.
    pub fn of_paths(of: &Running, engine: u64) -> Option<Self> {
        if let Some(shown) = &of.shown {
            return Some(Self::Namespace(Shown::from(&**shown)));
        }
        let there = of.entries().iter().filter(|it| it.is_there());
        let is_memory = there.map(|it| it.config().uri.kind()).all(is_memory);
        is_memory.then_some(Self::Memory(engine))
    }

    /// Of a mirror.
    pub fn of_mirror(id: Id) -> Self {
        Self::Mirror(IdText(id))
    }

    /// Whether both are the same data.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Namespace(a), Self::Namespace(b)) => a.difference(b).is_none(),
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for DataId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(shown) => shown.fmt(f),
            Self::Mirror(id) => write!(f, "the mirror {}", String::from(id.clone())),
            Self::Memory(_) => f.write_str("memory of an engine"),
        }
    }
}

fn is_memory(kind: &UriKind) -> bool {
    matches!(kind, UriKind::Memory(_) | UriKind::Null(_))
}

/// Why a volume can have no node: the next engine could not tell its data from other data that has
/// the same name by then, as a file that was made anew, or a controller with another number.
pub fn untold(of: &Volume) -> Option<String> {
    let is_told = |kind: &UriKind| matches!(kind, UriKind::NvmeTcp(_)) || is_memory(kind);
    let mut paths = of.paths.iter();
    if of.is_mirror() || of.subsystem.is_some() || paths.any(|it| is_told(it.uri.kind())) {
        return None;
    }
    let uri = &of.paths.first()?.uri;
    Some(format!(
        "a node outlives its engine, and the next one could not tell {uri} from other data in its \
         place: only mirrors (also of one leg) and volumes over nvme-tcp:// have one; export it by \
         nbd"
    ))
}

/// How far a take-over may have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recovery {
    /// None is under way.
    None,
    /// The driver may have been told that it begins; no queue is mapped.
    Begun,
    /// Some queues may be mapped, and have fetched. The process that took it over, where the driver
    /// tells it from the one before: it has that one's number once the take-over has ended.
    Mapping(Option<i32>),
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeRecord {
    /// That of `/dev/ublkbN`.
    pub number: u32,
    /// Kept by the driver too.
    pub mark: u64,
    /// Boot of the kernel that has it.
    pub boot: String,
    /// State id of the engine that serves it, or did.
    pub engine: String,
    /// Name of its volume there, for messages.
    pub volume: String,
    /// The data that its users have.
    pub data: DataId,
    /// Logical block size.
    pub block_bytes: u32,
    /// Size.
    pub bytes: u64,
    /// How far an engine may have come that took it over, and did not end that.
    pub recovery: Recovery,
    /// As it was attached by verb, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached: Option<NodeKeys>,
}

/// Records of this boot.
pub struct NodeRecords {
    directory: PathBuf,
    boot: String,
    all: Vec<NodeRecord>,
}

impl NodeRecords {
    /// Reads those of this boot. Those of earlier ones are removed.
    pub fn read(registry: &Registry) -> Self {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default();
        Self::read_of(registry.directory(), boot.trim())
    }

    fn read_of(state: &Path, boot: &str) -> Self {
        let mut it = Self {
            directory: state.join("nodes"),
            boot: boot.to_owned(),
            all: Vec::new(),
        };
        it.refresh();
        it
    }

    /// Reads them again: another engine may have ended, and left some.
    pub fn refresh(&mut self) {
        let files = fs::read_dir(&self.directory).into_iter().flatten();
        let paths = files.filter_map(|it| Some(it.ok()?.path()));
        self.all.clear();
        for path in paths.filter(|it| it.extension().is_some_and(|it| it == "json")) {
            // The device of one that can't be read has no record: it is left alone.
            let Ok(Some(it)) = state::read::<NodeRecord>(&path) else {
                continue;
            };
            if it.boot == self.boot {
                self.all.push(it);
            } else if !self.boot.is_empty() {
                let _ = state::remove(&path);
            }
        }
        self.all.sort_by_key(|it| (it.number, it.mark));
    }

    /// Those that there are.
    pub fn all(&self) -> &[NodeRecord] {
        &self.all
    }

    /// That of a device.
    pub fn find(&self, number: u32, mark: u64) -> Option<&NodeRecord> {
        let mut all = self.all.iter();
        all.find(|it| (it.number, it.mark) == (number, mark))
    }

    /// This boot.
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Keeps one for this boot: that needs no wait for a disk, in which a kill would leave a node
    /// beyond repair that is being taken over.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn keep(&mut self, record: NodeRecord) -> anyhow::Result<()> {
        let is_it = |it: &NodeRecord| (it.number, it.mark) == (record.number, record.mark);
        if self.all.contains(&record) {
            return Ok(());
        }
        ensure!(!self.boot.is_empty(), "{BOOT_ID} can't be read");
        state::write_until_restart(&self.path(record.number, record.mark), &record)?;
        self.all.retain(|it| !is_it(it));
        self.all.push(record);
        Ok(())
    }

    /// The device is gone.
    ///
    /// # Errors
    /// The file can't be removed.
    pub fn remove(&mut self, number: u32, mark: u64) -> anyhow::Result<()> {
        self.all.retain(|it| (it.number, it.mark) != (number, mark));
        state::remove(&self.path(number, mark))
    }

    fn path(&self, number: u32, mark: u64) -> PathBuf {
        self.directory.join(format!("{number}-{mark:016x}.json"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::run::config::tests::parsed;
    use crate::run::desired::DesiredVolume;
    use multipath::Namespace;

    pub fn namespace(uuid: u8) -> DataId {
        let namespace = Namespace {
            subsystem: "nqn.2026-01.org.example:s".into(),
            controller: 1,
            nsid: 1,
            nguid: [0; 16],
            eui64: [0; 8],
            uuid: [uuid; 16],
            command_set: 0,
            shared: true,
        };
        DataId::Namespace(Shown::from(&namespace))
    }

    pub fn record(number: u32, mark: u64, data: DataId) -> NodeRecord {
        NodeRecord {
            number,
            mark,
            boot: "this".into(),
            engine: "e".into(),
            volume: "v0".into(),
            data,
            block_bytes: 4096,
            bytes: 1 << 30,
            recovery: Recovery::None,
            attached: None,
        }
    }

    fn running(uri: &str) -> Running {
        let text = format!("[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{uri}\"\n");
        let of = parsed(&text).volumes.remove(0);
        Running::new(DesiredVolume::of_file(of, None))
    }

    #[test]
    fn data_is_known_by_its_identity() {
        assert!(namespace(1).is(&namespace(1)));
        assert!(!namespace(1).is(&namespace(2)));
        let mirror = |id| DataId::of_mirror(Id([id; 16]));
        assert!(mirror(1).is(&mirror(1)) && !mirror(1).is(&mirror(2)));
        assert!(!mirror(1).is(&namespace(1)));
        // Memory ends with its engine.
        let memory = |engine| DataId::of_paths(&running("mem:1MiB"), engine).unwrap();
        assert!(memory(1).is(&memory(1)) && !memory(1).is(&memory(2)));
    }

    #[test]
    fn data_that_cannot_be_told_from_other_data_has_no_node() {
        let told = |uri| untold(&running(uri).of);
        for uri in ["file:/a", "nvme-ng:/dev/ng0n1", "queue:/run/q"] {
            let why = told(uri).unwrap();
            assert!(why.contains(uri) && why.contains("nbd"), "{why}");
        }
        for uri in ["mem:1MiB", "nvme-tcp://h/nqn.x"] {
            assert_eq!(told(uri), None, "{uri}");
        }
    }

    #[test]
    fn records_of_another_boot_are_dropped() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path();
        let mut it = NodeRecords::read_of(state, "this");
        it.keep(record(3, u64::MAX, namespace(1))).unwrap();
        let attached = NodeKeys {
            number: None,
            read_only: true,
        };
        let of_verb = NodeRecord {
            attached: Some(attached),
            ..record(3, 7, namespace(2))
        };
        it.keep(of_verb.clone()).unwrap();
        let again = NodeRecords::read_of(state, "this");
        assert_eq!(again.all().len(), 2, "one number, two devices");
        assert_eq!(*again.find(3, 7).unwrap(), of_verb);
        assert_eq!(again.find(3, u64::MAX).unwrap().data, namespace(1));
        it.remove(3, 7).unwrap();
        fs::write(state.join("nodes/9-0.json"), "{").unwrap();
        assert_eq!(NodeRecords::read_of(state, "this").all().len(), 1);
        assert_eq!(NodeRecords::read_of(state, "next").all().len(), 0);
        assert_eq!(NodeRecords::read_of(state, "this").all().len(), 0);
    }
}
