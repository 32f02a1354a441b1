//! This host's record of the last state of each mirror ([`Record`]).
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
//! one for the last. With `unsafe_without_mark = true` they don't. Where there is no record, none
//! is needed: the mirror does not start by itself then.
//!
//! # Limits
//! A record that was moved away and back, and a file system that was put back as a whole, are not
//! noticed.
//!
//! An engine that is killed after it has kept the record of a lineage, and before that begins,
//! leaves the record: if a leg is missing at the next start, the mirror does not start by itself.
use crate::log;
use crate::run::service::Service;
use crate::run::state;
use anyhow::bail;
use engine::mirror::{MirrorOrder, RecordRequest};
use mirror::Id;
use mirror::assembly::degraded::{Evidence, Record};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use uuid::Uuid;

/// The records of this host.
pub struct MirrorRecords {
    files: RecordFiles,
    /// Those that can't be written, and that a mirror waits for; by its volume.
    unwritten: BTreeMap<u16, Record>,
    /// The last record of the lineage before; by its mirror's volume.
    before: BTreeMap<u16, Record>,
}

/// Their files, which are read and written while nothing is locked: a disk may hang.
#[derive(Clone)]
struct RecordFiles {
    directory: PathBuf,
}

/// An identifier, kept as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct IdText(pub Id);

impl TryFrom<String> for IdText {
    type Error = uuid::Error;
    fn try_from(text: String) -> Result<Self, Self::Error> {
        Ok(Self(Id(Uuid::parse_str(&text)?.into_bytes())))
    }
}

impl From<IdText> for String {
    fn from(id: IdText) -> Self {
        Uuid::from_bytes(id.0.0).to_string()
    }
}

/// As it stands in a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    mirror: IdText,
    lineage: u64,
    event: u64,
    in_sync: Vec<u8>,
    clean: bool,
    /// Not in files of version 1, of a braid that left no run on the legs.
    run: Option<IdText>,
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
    fn of(file: &Metadata) -> Self {
        let born = file.created().ok();
        let born = born.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Self {
            number: file.ino(),
            born_ns: born.and_then(|at| u64::try_from(at.as_nanos()).ok()),
        }
    }
}

impl MirrorRecords {
    /// Those in a directory.
    pub fn new(directory: &Path) -> Self {
        let directory = directory.to_owned();
        Self {
            files: RecordFiles { directory },
            unwritten: BTreeMap::new(),
            before: BTreeMap::new(),
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
}

impl RecordFiles {
    fn path(&self, mirror: Id) -> PathBuf {
        let id = String::from(IdText(mirror));
        self.directory.join(format!("mirror-{id}.json"))
    }

    /// Evidence of a mirror; one that is not trusted is logged.
    fn evidence(&self, mirror: Id) -> Evidence {
        let path = self.path(mirror);
        match read(&path, mirror) {
            Ok(None) => Evidence::None,
            Ok(Some(record)) => Evidence::Record(record),
            Err(why) => {
                log::say(format!(
                    "{}: this record of a mirror does not count: {why:#}",
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
        state::write_by(&self.path(record.mirror), |file| {
            let slots = 0..16;
            Ok(Kept {
                mirror: IdText(record.mirror),
                lineage: record.lineage,
                event: record.event,
                in_sync: slots
                    .filter(|slot| record.in_sync >> slot & 1 == 1)
                    .collect(),
                clean: record.clean,
                run: Some(IdText(record.run)),
                file: Inode::of(&file.metadata()?),
            })
        })
    }

    /// Keeps the record before one whose lineage never began, where that one was kept.
    ///
    /// # Errors
    /// It can't be read or written.
    fn put_back(&self, before: &Record, unbegun: &Record) -> anyhow::Result<()> {
        let kept = read(&self.path(unbegun.mirror), unbegun.mirror)?;
        let is_its = kept.is_some_and(|it| it.lineage == unbegun.lineage);
        match is_its && before.mirror == unbegun.mirror {
            true => self.keep(before),
            false => Ok(()),
        }
    }

    /// Evidence for the next start instead of a record that can't be written. One that can't be
    /// read now may be read then, and one that is there by its name may be gone with the next loss
    /// of power.
    fn left(&self, record: &Record) -> Left {
        let path = self.path(record.mirror);
        let lost = state::sync_directory(&path).err();
        match read(&path, record.mirror) {
            _ if lost.is_some_and(|it| it.kind() != io::ErrorKind::NotFound) => Left::Misleading,
            Ok(Some(old)) if old.lineage != record.lineage => Left::Misleading,
            Ok(Some(old)) if old.run == record.run => Left::Enough,
            Err(error) if error.is::<io::Error>() => Left::Misleading,
            Ok(_) | Err(_) => Left::None,
        }
    }
}

/// Evidence instead of a record that can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// None that counts.
    None,
    /// One of the same lineage and run.
    Enough,
    /// One of another lineage, which the next start would take for the last.
    Misleading,
}

/// Content of a file of a mirror; `None`: there is none.
///
/// # Errors
/// It can't be read now ([`io::Error`]); it is damaged, a copy, or of another mirror.
fn read(path: &Path, mirror: Id) -> anyhow::Result<Option<Record>> {
    let Some(kept) = state::read::<Kept>(path)? else {
        return Ok(None);
    };
    if kept.mirror.0 != mirror {
        bail!("it is of another mirror");
    }
    record(kept, &Inode::of(&path.metadata()?)).map(Some)
}

/// The record that such a file holds.
fn record(kept: Kept, file: &Inode) -> anyhow::Result<Record> {
    if kept.file != *file {
        bail!("it was put there from a copy, and may not be the last one");
    }
    if file.born_ns.is_none() {
        bail!("its file system keeps no times of birth: it may be a copy");
    }
    let bits = kept.in_sync.iter().filter(|slot| **slot < 16);
    Ok(Record {
        mirror: kept.mirror.0,
        lineage: kept.lineage,
        event: kept.event,
        in_sync: bits.fold(0, |bits, slot| bits | 1 << slot),
        clean: kept.clean,
        run: kept.run.map_or(Id::default(), |it| it.0),
    })
}

impl Service {
    /// Answers a mirror's question about its record.
    pub(in crate::run) fn handle_record(&self, volume: u16, request: RecordRequest) {
        match request {
            RecordRequest::Read(mirror) => {
                let evidence = self.record_files().evidence(mirror);
                self.senders.order(volume, MirrorOrder::Evidence(evidence));
            }
            RecordRequest::Keep(record) => {
                self.note_before(volume, &record);
                self.keep_new_record(volume, record);
            }
            RecordRequest::NeverBegan(record) => self.put_record_back(volume, &record),
            RecordRequest::Started(record, has_all) => {
                let before = self.record_files().evidence(record.mirror);
                if record.replaces(before, has_all) {
                    self.keep_new_record(volume, record);
                }
            }
        }
    }

    /// Notes the record that one of another lineage replaces.
    fn note_before(&self, volume: u16, record: &Record) {
        let files = self.record_files();
        let kept = read(&files.path(record.mirror), record.mirror);
        let mut known = self.known();
        let before = &mut known.mirror_records.before;
        match kept {
            Ok(Some(kept)) if kept.lineage == record.lineage => None,
            Ok(Some(kept)) => before.insert(volume, kept),
            Ok(None) | Err(_) => before.remove(&volume),
        };
    }

    /// A mirror has stopped before its lineage began, whose record may have been kept since.
    fn put_record_back(&self, volume: u16, unbegun: &Record) {
        let (files, before) = {
            let records = &mut self.known().mirror_records;
            records.unwritten.remove(&volume);
            (records.files.clone(), records.before.remove(&volume))
        };
        if let Some(before) = before
            && let Err(error) = files.put_back(&before, unbegun)
        {
            log::say(format!(
                "{}: nothing was changed since the record before, which can't be put back: \
                 {error:#}; if a leg is missing at the next start, the mirror does not start by \
                 itself",
                files.path(unbegun.mirror).display()
            ));
        }
    }

    fn record_files(&self) -> RecordFiles {
        self.known().mirror_records.files.clone()
    }

    /// Tries again to write what could not be written.
    pub(in crate::run) fn record_again(&self) {
        let unwritten = self.known().mirror_records.unwritten.clone();
        for (volume, record) in unwritten {
            self.keep_record(volume, record, false);
        }
    }

    fn keep_new_record(&self, volume: u16, record: Record) {
        self.known().mirror_records.unwritten.remove(&volume);
        self.keep_record(volume, record, true);
    }

    /// Keeps a record, and says so to its mirror; `is_first`: the log says if it can't be.
    fn keep_record(&self, volume: u16, record: Record, is_first: bool) {
        let (name, is_unsafe, is_known) = {
            let mut state = self.state();
            let volumes = &mut state.volumes;
            let name = volumes.name(volume);
            let is_leaving = volumes.is_leaving(volume);
            // One that a reload opens is recorded, too, and the clean stop of one that leaves.
            let it = volumes.meant(volume).filter(|it| it.of.name == name);
            let is_unsafe = it.as_ref().is_some_and(|it| it.of.unsafe_without_mark);
            (name, is_unsafe, is_leaving || it.is_some())
        };
        let files = self.record_files();
        if let Err(error) = files.keep(&record) {
            let left = files.left(&record);
            let waits = left == Left::Misleading && !is_unsafe && is_known;
            if is_first {
                let path = files.path(record.mirror);
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
                self.known().mirror_records.unwritten.insert(volume, record);
                return;
            }
        }
        self.known().mirror_records.unwritten.remove(&volume);
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
        run: Id([9; 16]),
    };

    fn files_in(directory: &Path) -> RecordFiles {
        MirrorRecords::new(directory).files
    }

    #[test]
    fn a_record_is_read_as_it_was_kept() {
        let directory = tempfile::tempdir().unwrap();
        let records = files_in(directory.path());
        assert_eq!(records.evidence(RECORD.mirror), Evidence::None);
        records.keep(&RECORD).unwrap();
        assert_eq!(records.evidence(RECORD.mirror), Evidence::Record(RECORD));
        assert_eq!(records.evidence(Id([8; 16])), Evidence::None);
        let later = Record {
            event: 13,
            ..RECORD
        };
        records.keep(&later).unwrap();
        assert_eq!(records.evidence(RECORD.mirror), Evidence::Record(later));
    }

    /// By whatever way a backup is restored: over the file, or in its place.
    #[test]
    fn a_record_that_was_put_back_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let records = files_in(directory.path());
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
            assert_eq!(records.evidence(RECORD.mirror), Evidence::Untrusted);
            assert_eq!(records.left(&later), Left::None);
        }
        records.keep(&later).unwrap();
        assert_eq!(records.evidence(RECORD.mirror), Evidence::Record(later));
    }

    #[test]
    fn a_damaged_record_is_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let records = files_in(directory.path());
        records.keep(&RECORD).unwrap();
        std::fs::write(records.path(RECORD.mirror), "{").unwrap();
        assert_eq!(records.evidence(RECORD.mirror), Evidence::Untrusted);
    }

    #[test]
    fn record_before_a_lineage_that_never_began_is_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let files = files_in(directory.path());
        let next = |lineage| Record { lineage, ..RECORD };
        files.keep(&next(5)).unwrap();
        files.put_back(&RECORD, &next(6)).unwrap();
        let kept = files.evidence(RECORD.mirror);
        assert_eq!(kept, Evidence::Record(next(5)), "it was never kept");
        files.put_back(&RECORD, &next(5)).unwrap();
        assert_eq!(files.evidence(RECORD.mirror), Evidence::Record(RECORD));
    }

    /// Only an older record that is trusted keeps changes from beginning.
    #[test]
    fn an_older_record_is_misleading() {
        let directory = tempfile::tempdir().unwrap();
        let records = files_in(directory.path());
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
        let records = files_in(directory.path());
        let path = records.path(RECORD.mirror);
        std::fs::create_dir(&path).unwrap(); // its read fails
        assert!(read(&path, RECORD.mirror).unwrap_err().is::<io::Error>());
        assert_eq!(records.left(&RECORD), Left::Misleading);
        assert_eq!(records.evidence(RECORD.mirror), Evidence::Untrusted);
        std::fs::remove_dir(&path).unwrap();
        records.keep(&RECORD).unwrap();
    }

    /// It was renamed, and its directory could not be written.
    #[test]
    fn t14_a_record_that_may_be_gone_with_the_power_is_not_enough() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = files_in(directory.path());
        records.keep(&RECORD).unwrap();
        let path = records.path(RECORD.mirror);
        let file = directory.path().join("file");
        assert_eq!(
            records.left(&RECORD),
            Left::Enough,
            "its directory is written now"
        );
        std::fs::write(&file, "").unwrap();
        records.directory = file.join("state"); // one that can't be written: below a file
        assert_eq!(records.left(&RECORD), Left::Misleading);
        assert_eq!(
            read(&path, RECORD.mirror).unwrap(),
            Some(RECORD),
            "it is there"
        );
    }

    /// Its inode's number may be another file's by now.
    #[test]
    fn t14_a_record_on_a_file_system_without_times_of_birth_is_not_trusted() {
        let file = |born_ns| Inode { number: 3, born_ns };
        let kept = |file| Kept {
            mirror: IdText(RECORD.mirror),
            lineage: RECORD.lineage,
            event: RECORD.event,
            in_sync: vec![0, 2],
            clean: true,
            run: Some(IdText(RECORD.run)),
            file,
        };
        let read = |born_ns| record(kept(file(born_ns)), &file(born_ns));
        assert_eq!(read(Some(9)).unwrap(), RECORD);
        assert!(read(None).is_err());
    }

    /// Version 1 had no run: its legs have none either.
    #[test]
    fn a_record_of_version_1_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let records = files_in(directory.path());
        let path = records.path(RECORD.mirror);
        std::fs::write(&path, "").unwrap();
        let Inode { number, born_ns } = Inode::of(&path.metadata().unwrap());
        let Some(born_ns) = born_ns else {
            eprintln!(
                "SKIP record-version-1: no times of birth in {}",
                path.display()
            );
            return;
        };
        let text = format!(
            "{{\"mirror\": \"{}\", \"lineage\": {}, \"event\": 12, \"in_sync\": [0, 2], \
             \"clean\": true, \"file\": {{\"number\": {number}, \"born_ns\": {born_ns}}}}}",
            String::from(IdText(RECORD.mirror)),
            RECORD.lineage
        );
        std::fs::write(&path, text).unwrap();
        let run = Id::default();
        let old = Record { run, ..RECORD };
        assert_eq!(records.evidence(RECORD.mirror), Evidence::Record(old));
    }

    /// A program that is killed while it writes leaves the old record or the new one.
    #[test]
    fn a_kill_while_a_record_is_written_leaves_one() {
        const CHILD: &str = "BRAID_TEST_WRITES_RECORDS";
        let numbered = |event| Record { event, ..RECORD };
        if let Some(place) = std::env::var_os(CHILD) {
            let records = files_in(Path::new(&place));
            let first = read(&records.path(RECORD.mirror), RECORD.mirror).unwrap();
            let first = first.map_or(0, |it| it.event);
            for event in first + 1.. {
                records.keep(&numbered(event)).unwrap();
            }
        }
        let directory = tempfile::tempdir().unwrap();
        let records = files_in(directory.path());
        let event = || match records.evidence(RECORD.mirror) {
            Evidence::Record(it) => it.event,
            other => panic!("{other:?}"),
        };
        records.keep(&numbered(0)).unwrap();
        let name = "run::mirrors::records::tests::a_kill_while_a_record_is_written_leaves_one";
        for _ in 0..20 {
            let before = event();
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args([name, "--exact"])
                .env(CHILD, directory.path())
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            // A reader sees whole records only, meanwhile too.
            while read(&records.path(RECORD.mirror), RECORD.mirror)
                .is_ok_and(|it| it.unwrap().event < before + 3)
            {
                std::thread::yield_now();
            }
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(event() >= before);
        }
        // An unfinished file is in nothing's way.
        std::fs::write(records.path(RECORD.mirror).with_extension("new"), "{\"mi").unwrap();
        records.keep(&RECORD).unwrap();
        assert_eq!(event(), RECORD.event);
    }
}
