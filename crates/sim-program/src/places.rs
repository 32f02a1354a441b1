//! Files that a run ends with: whether they can be written or read, before the work is done.
use super::{SUMMARY, SimArgs, catalog};
use anyhow::Context;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Looks at all places that were named. Nothing is changed there.
///
/// # Errors
/// Which of them can't be used, and why.
pub fn ready(args: &SimArgs) -> anyhow::Result<()> {
    let files = [&args.report, &args.plot, &args.keep_bounds];
    for path in files.into_iter().flatten() {
        writable(path)?;
    }
    if let Some(directory) = &args.snapshot {
        for path in beside(directory) {
            writable(&path)?;
        }
    }
    if let Some(directory) = &args.check {
        for path in beside(directory) {
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        }
    }
    Ok(())
}

/// The snapshots in a directory.
fn beside(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let stories = catalog::STORIES.iter();
    let names = stories.map(|story| format!("{}.txt", story.name));
    let names = names.chain([SUMMARY.to_owned()]);
    names.map(|name| directory.join(name))
}

fn writable(path: &Path) -> anyhow::Result<()> {
    let there = match fs::metadata(path) {
        // To open a pipe and to close it again would tell its reader that this was all.
        Ok(metadata) if !metadata.is_file() && !metadata.is_dir() => return Ok(()),
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error).with_context(|| failed(path)),
    };
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| failed(path))?;
    if !there {
        fs::remove_file(path).with_context(|| failed(path))?;
    }
    Ok(())
}

fn failed(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_cannot_be_written_is_found_and_one_that_can_is_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        assert!(writable(directory.path()).is_err());
        assert!(writable(&directory.path().join("none/out.html")).is_err());
        let new = directory.path().join("out.html");
        writable(&new).unwrap();
        assert!(!new.exists());
        fs::write(&new, "old").unwrap();
        writable(&new).unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), "old");
    }
}
