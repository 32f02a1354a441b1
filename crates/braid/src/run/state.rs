//! The store of small files that must survive an engine: read whole, replaced whole or not at all,
//! durably, by way of a file beside it. [`records`](super::records) names those of volumes,
//! [`mirrors`](super::mirrors) those of mirrors.
use crate::limits::TEXT_BYTES_MAX;
use crate::text;
use crate::units::format_bytes;
use anyhow::{Context, bail};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use sys::freeze;

/// Content of a file; `None`: there is none.
///
/// # Errors
/// It can't be read, or holds something else.
pub fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    match text::if_there(path)? {
        Some(text) => Ok(Some(serde_json::from_str(&text)?)),
        None => Ok(None),
    }
}

/// Replaces a file.
///
/// # Errors
/// It can't be written; then it is as before, or is the new one and may not outlast the power.
pub fn write<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    write_by(path, |_| Ok(value))
}

/// Replaces a file whose content means nothing after the machine has restarted: without a wait for
/// the disk.
///
/// # Errors
/// It can't be written; then it is as before.
pub fn write_until_restart<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    let replaced = replace_by(path, false, |_| text_of(value));
    replaced.with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces a file by one with a value that depends on what the new file is.
///
/// # Errors
/// It can't be written; then it is as before, or is the new one and may not outlast the power.
pub fn write_by<T: Serialize>(
    path: &Path,
    value: impl FnOnce(&fs::File) -> std::io::Result<T>,
) -> anyhow::Result<()> {
    replace(path, value).with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces a file by one with these bytes.
///
/// # Errors
/// It can't be written; then it is as before, or is the new one and may not outlast the power.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let replaced = replace_by(path, true, |_| Ok(bytes.to_vec()));
    replaced.with_context(|| format!("cannot write {}", path.display()))
}

/// Removes a file for good, if it is there: it does not come back after a loss of power.
///
/// # Errors
/// It can't be removed, or may come back.
pub fn remove(path: &Path) -> anyhow::Result<()> {
    freeze::step("to be removed:", &path.display());
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => {
            freeze::step("removed:", &path.display());
            removed.and_then(|()| sync_directory(path))
        }
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

/// Makes what was renamed or removed in the directory of a file durable.
///
/// # Errors
/// It can't be.
pub fn sync_directory(of: &Path) -> std::io::Result<()> {
    let directory = match of.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    };
    fs::File::open(directory)?.sync_all()
}

fn replace<T: Serialize>(
    path: &Path,
    value: impl FnOnce(&fs::File) -> std::io::Result<T>,
) -> anyhow::Result<()> {
    replace_by(path, true, |file| text_of(&value(file)?))
}

fn text_of<T: Serialize>(value: &T) -> anyhow::Result<Vec<u8>> {
    let text = serde_json::to_string_pretty(value)?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        // The next engine would refuse to start with it.
        bail!("it would have more than {}", format_bytes(TEXT_BYTES_MAX));
    }
    Ok(text.into_bytes())
}

fn replace_by(
    path: &Path,
    durably: bool,
    bytes: impl FnOnce(&fs::File) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<()> {
    create(path.parent().context("no directory")?)?;
    let temporary = path.with_extension("new");
    let mut file = fs::File::create(&temporary)?;
    freeze::step("empty yet:", &path.display());
    let replaced = || {
        file.write_all(&bytes(&file)?)?;
        if durably {
            file.sync_all()?;
        }
        freeze::step("not in its place yet:", &path.display());
        anyhow::Ok(fs::rename(&temporary, path)?)
    };
    if let Err(error) = replaced() {
        // Without it the next write finds the room that this one lacked.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    freeze::step("in its place:", &path.display());
    if durably {
        sync_directory(path)?;
    }
    Ok(())
}

/// A directory, durably: each new one is named in another that must be written too.
fn create(directory: &Path) -> std::io::Result<()> {
    let missing = directory.ancestors().take_while(|it| !it.exists());
    let missing: Vec<_> = missing.filter(|it| !it.as_os_str().is_empty()).collect();
    fs::create_dir_all(directory)?;
    missing.into_iter().try_for_each(sync_directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_again_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("choices.json");
        write(&path, &"a".to_owned()).unwrap();
        let long = "b".repeat(TEXT_BYTES_MAX as usize);
        let error = write(&path, &long).unwrap_err();
        assert!(
            format!("{error:#}").contains("more than 1 MiB"),
            "{error:#}"
        );
        assert_eq!(read::<String>(&path).unwrap().unwrap(), "a");
        let count = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(count, 1, "the temporary file is left");
        let longest = "c".repeat(TEXT_BYTES_MAX as usize - 2); // and its quotes
        write(&path, &longest).unwrap();
        assert_eq!(read::<String>(&path).unwrap().unwrap(), longest);
    }
}
