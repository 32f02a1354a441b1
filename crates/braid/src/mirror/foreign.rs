//! Finds data on a device that must not be written over: asked of `blkid`.
//!
//! # Contract
//! `blkid` knows the signatures of file systems, partition tables, other RAIDs, volume managers.
//! Its output is read as text of another program: words and lengths are bounded, control
//! characters are dropped. If it isn't there, that is said, and nothing is known. Of a namespace it
//! is shown a file in memory, as long, with its beginning and its end, where signatures lie.
use super::leg::Leg;
use anyhow::{Context, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Where it lies if the user's PATH does not have it.
const PLACES: [&str; 3] = ["blkid", "/usr/sbin/blkid", "/sbin/blkid"];
/// Longest word of it that is shown, characters.
const WORD_MAX: usize = 64;
/// So much of the beginning and of the end of a namespace is looked at, bytes.
const EDGE_BYTES: u64 = 4 << 20;
/// First bytes of a partition table by GUIDs, in the second block.
const GPT: &[u8] = b"EFI PART";

/// Signature that `blkid` finds at the path, in words; `None`: none that it knows.
///
/// # Errors
/// It isn't installed, or failed: then there is no telling.
pub fn found(path: &Path) -> anyhow::Result<Option<String>> {
    found_by(&PLACES, path)
}

/// The same of a namespace.
///
/// # Errors
/// As [`found`]; it can't be read.
pub fn found_far(leg: &Leg) -> anyhow::Result<Option<String>> {
    let size = leg.size();
    let image = memfd_create("braid-leg", MemfdFlags::CLOEXEC).context("cannot get memory")?;
    let image = File::from(image);
    image.set_len(size.bytes)?;
    let edge = EDGE_BYTES.min(size.bytes);
    for at in [0, size.bytes - edge] {
        image.write_all_at(&leg.read(at, edge as usize)?, at)?;
    }
    // In a file blkid takes all blocks for such of 512 bytes.
    if leg.read(1 << size.block_shift, GPT.len())? == GPT {
        return Ok(Some("a partition table (gpt)".into()));
    }
    // The child's own descriptors are others.
    let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
    found(Path::new(&path))
}

fn found_by(programs: &[&str], path: &Path) -> anyhow::Result<Option<String>> {
    for program in programs {
        let mut command = Command::new(program);
        let asked = command
            .args(["-p", "-o", "export"])
            .arg(path)
            .stdin(Stdio::null());
        match asked.output() {
            Ok(output) => return read(path, &output),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot start {program}")),
        }
    }
    bail!(
        "whether {} holds a file system can't be told: blkid is not installed (it is part of \
         util-linux); --force does without",
        path.display()
    )
}

/// Meaning of its exit code: 0 one kind of signature, 2 none, 8 several that contradict each other.
fn read(path: &Path, output: &Output) -> anyhow::Result<Option<String>> {
    let text = String::from_utf8_lossy(&output.stdout);
    match output.status.code() {
        Some(0) => Ok(Some(words(&text))),
        Some(2) => Ok(None),
        Some(8) => Ok(Some("signatures of several kinds".into())),
        _ => bail!(
            "whether {} holds a file system can't be told: blkid failed ({}): {}",
            path.display(),
            output.status,
            short(String::from_utf8_lossy(&output.stderr).trim())
        ),
    }
}

/// Its lines `KEY=value`, as words.
fn words(text: &str) -> String {
    let value = |key: &str| {
        let lines = text.lines().filter_map(|line| line.split_once('='));
        let found = lines.filter(|it| it.0 == key).map(|it| short(it.1)).next();
        found.filter(|it| !it.is_empty())
    };
    let label = value("LABEL").map_or(String::new(), |label| format!(" \"{label}\""));
    match (value("TYPE"), value("PTTYPE")) {
        (Some(kind), _) => format!("{kind}{label}"),
        (None, Some(table)) => format!("a partition table ({table})"),
        (None, None) => "something that blkid knows".into(),
    }
}

fn short(text: &str) -> String {
    let shown = text.chars().filter(|c| !c.is_control());
    shown.take(WORD_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::{found_by, words};
    use std::path::Path;

    #[test]
    fn without_blkid_nothing_is_known_and_that_is_said() {
        let error = found_by(&["/no/such/blkid"], Path::new("/srv/a")).unwrap_err();
        let text = error.to_string();
        for part in ["/srv/a", "blkid is not installed", "util-linux", "--force"] {
            assert!(text.contains(part), "no {part:?} in: {text}");
        }
        // A failure is no answer either.
        let error = found_by(&["/bin/false"], Path::new("/srv/a")).unwrap_err();
        assert!(error.to_string().contains("blkid failed"), "{error}");
    }

    #[test]
    fn what_blkid_says_becomes_words_that_can_be_shown() {
        for (text, said) in [
            (
                "DEVNAME=/a\nLABEL=home\nTYPE=ext4\nUSAGE=filesystem\n",
                "ext4 \"home\"",
            ),
            ("DEVNAME=/a\nPTTYPE=gpt\n", "a partition table (gpt)"),
            ("TYPE=\u{1b}[31mext4\u{7}\nLABEL=\n", "[31mext4"),
            ("", "something that blkid knows"),
            ("TYPE", "something that blkid knows"),
        ] {
            assert_eq!(words(text), said, "{text:?}");
        }
        assert!(words(&format!("TYPE={}", "x".repeat(9999))).len() < 100);
    }
}
