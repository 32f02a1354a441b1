//! What this host records of the last state of each mirror ([`Record`]).
//!
//! # Contract
//! `mirror-UUID.json` in the state directory, one for each mirror, whatever it and the engine's
//! control socket are called. A record is replaced whole, and durable before it is answered. It
//! names the file that it was written to, by inode and time of birth: one that was put back from a
//! copy may be older than the last one, and is not trusted.
//!
//! While the record of another lineage can't be replaced, changes of the mirror wait, and it is
//! tried again every second: a later start would take that one for the last. With
//! `unsafe_without_mark = true` they don't. Where there is no record, none is needed: the mirror
//! does not start by itself then.
//!
//! # Limits
//! A record that was moved away and back, and a file system that was put back as a whole, are not
//! noticed.
use crate::log;
use crate::run::service::Service;
use crate::run::state;
use anyhow::Context;
use engine::mirror::{MirrorOrder, RecordRequest};
use mirror::Id;
use mirror::assembly::degraded::{Evidence, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use uuid::Uuid;

/// The records of this host.
pub struct MirrorRecords {
    directory: PathBuf,
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
            unwritten: BTreeMap::new(),
        }
    }

    /// Whether a mirror waits for a record that can't be written.
    pub fn waits(&self) -> bool {
        !self.unwritten.is_empty()
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
            Err(error) => {
                log::say(format!(
                    "{}: this record of a mirror does not count: {error:#}",
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
    fn keep(&self, record: &Record) -> anyhow::Result<()> {
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
        state::write_by(&self.path(record.mirror), kept)
    }

    /// What there is where a record can't be written.
    fn left(&self, record: &Record) -> Left {
        match self.read(record.mirror) {
            Evidence::Record(old) if old.lineage == record.lineage => Left::Enough,
            Evidence::Record(_) => Left::Misleading,
            Evidence::None | Evidence::Untrusted => Left::None,
        }
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

/// What a file holds; `None`: there is none.
fn read(path: &Path) -> anyhow::Result<Option<Record>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let kept: Kept = serde_json::from_reader(&file).context("it is damaged")?;
    anyhow::ensure!(
        kept.file == Inode::of(&file)?,
        "it was put there from a copy, and may not be the last one"
    );
    let mirror: Uuid = kept.mirror.parse().context("it names no mirror")?;
    let bits = kept.in_sync.iter().filter(|slot| **slot < 16);
    Ok(Some(Record {
        mirror: Id(mirror.into_bytes()),
        lineage: kept.lineage,
        event: kept.event,
        in_sync: bits.fold(0, |bits, slot| bits | 1 << slot),
        clean: kept.clean,
    }))
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
        let records = MirrorRecords::new(directory.path());
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
        let records = MirrorRecords::new(directory.path());
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
            assert_eq!(records.left(&later), Left::None);
        }
        records.keep(&later).unwrap();
        assert_eq!(records.read(RECORD.mirror), Evidence::Record(later));
    }

    #[test]
    fn a_damaged_record_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let records = MirrorRecords::new(directory.path());
        records.keep(&RECORD).unwrap();
        std::fs::write(records.path(RECORD.mirror), "{").unwrap();
        assert_eq!(records.read(RECORD.mirror), Evidence::Untrusted);
    }

    /// Only an older record that is trusted keeps changes from beginning.
    #[test]
    fn an_older_record_is_misleading() {
        let directory = tempfile::tempdir().unwrap();
        let records = MirrorRecords::new(directory.path());
        let next = Record {
            lineage: 5,
            ..RECORD
        };
        assert_eq!(records.left(&next), Left::None);
        records.keep(&RECORD).unwrap();
        assert_eq!(records.left(&next), Left::Misleading);
        assert_eq!(records.left(&RECORD), Left::Enough);
    }
}
