//! What this host records of the last state of each mirror ([`Record`]).
//!
//! # Contract
//! `mirror-UUID.json` in the state directory, one for each mirror, whatever it and the engine's
//! control socket are called. A record is replaced whole, and durable before it is answered. It
//! names the file that it was written to, by inode and time of birth: one that was put back from a
//! copy may be older than the last one, and is not trusted. Nor is any where the file system keeps
//! no times of birth.
//!
//! While the record of another lineage can't be replaced, or it can't be read whether there is one,
//! changes of the mirror wait, and it is tried again every second: a later start would take that
//! one for the last. With
//! `unsafe_without_mark = true` they don't. Where there is no record, none is needed: the mirror
//! does not start by itself then.
//!
//! # Limits
//! A record that was moved away and back, and a file system that was put back as a whole, are not
//! noticed.
use crate::log;
use crate::run::service::Service;
use crate::run::state;
use engine::mirror::{MirrorOrder, RecordRequest};
use mirror::Id;
use mirror::assembly::degraded::{Evidence, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use uuid::Uuid;

/// The records of this host.
pub struct MirrorRecords {
    directory: PathBuf,
    /// The lineage of each mirror that was kept durably by this engine.
    kept: BTreeMap<[u8; 16], u64>,
    /// Those that can't be written, and that a mirror waits for; by its volume.
    unwritten: BTreeMap<u16, Record>,
}

/// As it stands in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    mirror: String,
    lineage: u64,
    event: u64,
    in_sync: Vec<u8>,
    clean: bool,
    file: Inode,
}

/// Which file it is: no other one ever had both.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Inode {
    number: u64,
    /// Unix time; `None`: its file system does not keep it.
    born_ns: Option<u64>,
}

impl Inode {
    fn of(file: &File) -> std::io::Result<Self> {
        let found = file.metadata()?;
        let born = found.created().ok();
        let born = born.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            number: found.ino(),
            born_ns: born.and_then(|at| u64::try_from(at.as_nanos()).ok()),
        })
    }
}

impl MirrorRecords {
    /// Those in a directory.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            kept: BTreeMap::new(),
            unwritten: BTreeMap::new(),
        }
    }

    /// Whether a mirror waits for a record that can't be written.
    pub fn waits(&self) -> bool {
        !self.unwritten.is_empty()
    }

    /// A mirror has stopped: nothing of a lineage that waits was written, nor is it to be recorded.
    pub fn forget_unwritten(&mut self, volume: u16) {
        self.unwritten.remove(&volume);
    }

    fn path(&self, mirror: Id) -> PathBuf {
        let id = Uuid::from_bytes(mirror.0);
        self.directory.join(format!("mirror-{id}.json"))
    }

    /// What there is of a mirror; one that is not trusted is logged.
    fn read(&self, mirror: Id) -> Evidence {
        let path = self.path(mirror);
        match read(&path) {
            Ok(None) => Evidence::None,
            Ok(Some(record)) if record.mirror == mirror => Evidence::Record(record),
            Ok(Some(_)) => Evidence::Untrusted,
            Err(why) => {
                log::say(format!(
                    "{}: this record of a mirror does not count: {why}",
                    path.display()
                ));
                Evidence::Untrusted
            }
        }
    }

    /// Keeps a record.
    ///
    /// # Errors
    /// It can't be written.
    fn keep(&mut self, record: &Record) -> anyhow::Result<()> {
        let of = record.mirror.0;
        self.kept
            .retain(|mirror, it| *mirror != of || *it == record.lineage);
        let kept = |file: &File| {
            Ok(Kept {
                mirror: Uuid::from_bytes(record.mirror.0).to_string(),
                lineage: record.lineage,
                event: record.event,
                in_sync: (0..16)
                    .filter(|slot| record.in_sync >> slot & 1 == 1)
                    .collect(),
                clean: record.clean,
                file: Inode::of(file)?,
            })
        };
        state::write_by(&self.path(record.mirror), kept)?;
        self.kept.insert(of, record.lineage);
        Ok(())
    }

    /// What there is where a record can't be written.
    fn left(&self, record: &Record) -> Left {
        if self.kept.get(&record.mirror.0) == Some(&record.lineage) {
            return Left::Enough;
        }
        // It may be there by its name, and be gone with the next loss of power.
        let is_durable = match File::open(&self.directory) {
            Ok(directory) => directory.sync_all().is_ok(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        match is_durable {
            true => left(&self.path(record.mirror), record),
            false => Left::Misleading,
        }
    }
}

/// What the next start finds in a file instead of a record. One that can't be read now may be read
/// then.
fn left(path: &Path, record: &Record) -> Left {
    match read(path) {
        Ok(Some(old)) if old.mirror != record.mirror => Left::None,
        Ok(Some(old)) if old.lineage == record.lineage => Left::Enough,
        Ok(Some(_)) | Err(Unread::Failed(_)) => Left::Misleading,
        Ok(None) | Err(Unread::Untrusted(_)) => Left::None,
    }
}

/// What there is instead of a record that can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// None that counts.
    None,
    /// One of the same lineage.
    Enough,
    /// One of another lineage, which the next start would take for the last.
    Misleading,
}

/// Why a file gives no record.
#[derive(Debug)]
enum Unread {
    /// It can't be read now.
    Failed(std::io::Error),
    /// It was read, and is damaged or a copy.
    Untrusted(String),
}

impl From<std::io::Error> for Unread {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error)
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "it can't be read: {error}"),
            Self::Untrusted(why) => f.write_str(why),
        }
    }
}

/// What a file holds; `None`: there is none.
fn read(path: &Path) -> Result<Option<Record>, Unread> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    record(&text, &Inode::of(&file)?)
        .map(Some)
        .map_err(Unread::Untrusted)
}

/// The record that such a file holds.
fn record(text: &[u8], file: &Inode) -> Result<Record, String> {
    let kept: Kept = serde_json::from_slice(text).map_err(|it| format!("it is damaged: {it}"))?;
    if kept.file != *file {
        return Err("it was put there from a copy, and may not be the last one".into());
    }
    if file.born_ns.is_none() {
        return Err("its file system keeps no times of birth: it may be a copy".into());
    }
    let mirror = Uuid::parse_str(&kept.mirror).map_err(|it| format!("it names no mirror: {it}"))?;
    let bits = kept.in_sync.iter().filter(|slot| **slot < 16);
    Ok(Record {
        mirror: Id(mirror.into_bytes()),
        lineage: kept.lineage,
        event: kept.event,
        in_sync: bits.fold(0, |bits, slot| bits | 1 << slot),
        clean: kept.clean,
    })
}

impl Service {
    /// What a mirror asks about its record.
    pub(in crate::run) fn handle_record(&self, volume: u16, request: RecordRequest) {
        match request {
            RecordRequest::Read(mirror) => {
                let evidence = self.known().mirror_records.read(mirror);
                self.senders.order(volume, MirrorOrder::Evidence(evidence));
            }
            RecordRequest::Keep(record) => {
                self.known().mirror_records.unwritten.remove(&volume);
                self.keep_record(volume, record, true);
            }
        }
    }

    /// Tries again to write what could not be written.
    pub(in crate::run) fn record_again(&self) {
        let unwritten = self.known().mirror_records.unwritten.clone();
        for (volume, record) in unwritten {
            self.keep_record(volume, record, false);
        }
    }

    /// Keeps a record, and says so to its mirror; `is_first`: the log says if it can't be.
    fn keep_record(&self, volume: u16, record: Record, is_first: bool) {
        let of = {
            let state = self.state();
            let it = state.volumes.get(volume);
            it.map(|it| (it.of.name.clone(), it.of.unsafe_without_mark))
        };
        let mut known = self.known();
        let records = &mut known.mirror_records;
        let Some((name, is_unsafe)) = of else {
            // It has left: nothing waits for it.
            records.unwritten.remove(&volume);
            return;
        };
        if let Err(error) = records.keep(&record) {
            let left = records.left(&record);
            let waits = left == Left::Misleading && !is_unsafe;
            if is_first {
                let path = records.path(record.mirror);
                let what = match left {
                    _ if waits => {
                        "changes wait until it can be: make room there or make it writable, or \
                         remove the old one"
                    }
                    Left::Misleading => {
                        "unsafe_without_mark: a later start may take the old one for the last, \
                         and start with old data: remove it"
                    }
                    Left::Enough => "the one before says enough",
                    Left::None => {
                        "if a leg is missing at the next start, the mirror does not start by itself"
                    }
                };
                log::say(format!(
                    "{name}: the record of its state can't be written: {error:#}; {what} ({})",
                    path.display()
                ));
            }
            if waits {
                records.unwritten.insert(volume, record);
                return;
            }
        }
        records.unwritten.remove(&volume);
        drop(known);
        let lineage = record.lineage;
        self.senders.order(volume, MirrorOrder::Recorded(lineage));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: Record = Record {
        mirror: Id([7; 16]),
        lineage: u64::MAX,
        event: 12,
        in_sync: 0b101,
        clean: true,
    };

    #[test]
    fn a_record_is_read_as_it_was_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = MirrorRecords::new(directory.path());
        assert_eq!(records.read(RECORD.mirror), Evidence::None);
        records.keep(&RECORD).unwrap();
        assert_eq!(records.read(RECORD.mirror), Evidence::Record(RECORD));
        assert_eq!(records.read(Id([8; 16])), Evidence::None);
        let later = Record {
            event: 13,
            ..RECORD
        };
        records.keep(&later).unwrap();
        assert_eq!(records.read(RECORD.mirror), Evidence::Record(later));
    }

    /// By whatever way a backup is restored: over the file, or in its place.
    #[test]
    fn a_record_that_was_put_back_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = MirrorRecords::new(directory.path());
        let (path, backup) = (records.path(RECORD.mirror), directory.path().join("backup"));
        records.keep(&RECORD).unwrap();
        std::fs::copy(&path, &backup).unwrap();
        let later = Record {
            lineage: 5,
            ..RECORD
        };
        for in_place in [true, false] {
            records.keep(&later).unwrap();
            match in_place {
                true => drop(std::fs::copy(&backup, &path).unwrap()),
                false => std::fs::rename(&backup, &path).unwrap(),
            }
            assert_eq!(records.read(RECORD.mirror), Evidence::Untrusted);
            assert_eq!(left(&path, &later), Left::None);
        }
        records.keep(&later).unwrap();
        assert_eq!(records.read(RECORD.mirror), Evidence::Record(later));
    }

    #[test]
    fn a_damaged_record_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = MirrorRecords::new(directory.path());
        records.keep(&RECORD).unwrap();
        std::fs::write(records.path(RECORD.mirror), "{").unwrap();
        assert_eq!(records.read(RECORD.mirror), Evidence::Untrusted);
    }

    /// Only an older record that is trusted keeps changes from beginning.
    #[test]
    fn an_older_record_is_misleading() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = MirrorRecords::new(directory.path());
        let next = Record {
            lineage: 5,
            ..RECORD
        };
        assert_eq!(records.left(&next), Left::None);
        records.keep(&RECORD).unwrap();
        assert_eq!(records.left(&next), Left::Misleading);
        assert_eq!(records.left(&RECORD), Left::Enough);
    }

    /// The next start may be able to read it.
    #[test]
    fn t14_a_record_that_can_not_be_read_now_is_misleading() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = MirrorRecords::new(directory.path());
        let path = records.path(RECORD.mirror);
        std::fs::create_dir(&path).unwrap(); // its read fails
        assert!(matches!(read(&path), Err(Unread::Failed(_))));
        assert_eq!(records.left(&RECORD), Left::Misleading);
        assert_eq!(records.read(RECORD.mirror), Evidence::Untrusted);
        std::fs::remove_dir(&path).unwrap();
        records.keep(&RECORD).unwrap();
    }

    /// It was renamed, and its directory could not be written.
    #[test]
    fn t14_a_record_that_may_be_gone_with_the_power_is_not_enough() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = MirrorRecords::new(directory.path());
        records.keep(&RECORD).unwrap();
        let path = records.path(RECORD.mirror);
        let file = directory.path().join("file");
        records.kept.clear();
        assert_eq!(
            records.left(&RECORD),
            Left::Enough,
            "its directory is written now"
        );
        std::fs::write(&file, "").unwrap();
        records.directory = file.join("state"); // one that can't be written: below a file
        assert_eq!(records.left(&RECORD), Left::Misleading);
        assert_eq!(
            left(&path, &RECORD),
            Left::Enough,
            "by its name it is there"
        );
    }

    /// Its inode's number may be another file's by now.
    #[test]
    fn t14_a_record_on_a_file_system_without_times_of_birth_is_not_trusted() {
        let file = |born_ns| Inode { number: 3, born_ns };
        let kept = |file| Kept {
            mirror: Uuid::from_bytes(RECORD.mirror.0).to_string(),
            lineage: RECORD.lineage,
            event: RECORD.event,
            in_sync: vec![0, 2],
            clean: true,
            file,
        };
        let text = |born_ns| serde_json::to_vec(&kept(file(born_ns))).unwrap();
        assert_eq!(record(&text(Some(9)), &file(Some(9))), Ok(RECORD));
        assert!(record(&text(None), &file(None)).is_err());
    }
}
