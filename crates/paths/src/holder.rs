//! Finds the holder of a leg that is locked: the owner's record on it says it (T48).
use crate::ends::FileAccess;
use mirror::Superblock;
use mirror::copies::read_copies;
use mirror::layout::COPIES_AT;
use mirror::superblock::SUPERBLOCK_BYTES;
use runtime::RuntimeError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use terminal::log;
use terminal::units::format_utc;

/// `error`, and if it says that somebody uses this file, who has the mirror that is on it; else
/// what the user of a volume can do.
pub fn named(error: anyhow::Error, path: &Path, access: FileAccess) -> anyhow::Error {
    let Some(in_use @ RuntimeError::InUse { .. }) = error.downcast_ref() else {
        return error;
    };
    let may_share = access == FileAccess::Sole && in_use.is_shared();
    match owner_on(path) {
        Some(words) => error.context(words),
        None if may_share => anyhow::anyhow!(
            "{error:#}; shared = true in [[volume]] lets both write, if they keep apart"
        ),
        None => error,
    }
}

/// Says of a file that is about to be written, and not as a leg, that it is one.
pub fn warn_of_leg(path: &Path) {
    if let Some(superblock) = superblock_on(path) {
        log::say(format!(
            "{}: it is a leg of the mirror \"{}\": what is written here, past the mirror, makes \
             its legs differ, and may destroy this one",
            path.display(),
            superblock.name
        ));
    }
}

/// Superblock of a file as a leg, which is only read.
fn superblock_on(path: &Path) -> Option<Superblock> {
    let file = File::open(path).ok()?;
    let read = |at| {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        file.read_exact_at(&mut bytes, at).ok()?;
        Some(bytes)
    };
    let copies = COPIES_AT.map(read);
    let found = read_copies([copies[0].as_deref(), copies[1].as_deref()], |bytes| {
        nvme::crc32c(0, bytes)
    })
    .ok()?;
    Some(found.superblock)
}

/// The owner by the record on a file.
fn owner_on(path: &Path) -> Option<String> {
    let superblock = superblock_on(path)?;
    let owner = superblock.owner?;
    Some(format!(
        "{} has the mirror \"{}\" on it (host {}, last beat {})",
        owner.label,
        superblock.name,
        owner.host,
        format_utc(owner.heartbeat_s)
    ))
}
