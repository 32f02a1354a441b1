//! The own tests of nvme-cli, from its Debian source package, for a guest whose kernel is the host
//! of our target.
//!
//! # Contract
//! Nothing of them is kept in this repository. They run unchanged but for their check that the
//! device is on PCI, which the script takes out; which of them cannot pass, and why, stands there.
use super::image::Image;
use super::{libraries, packages};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The script that runs them.
pub const SCRIPT: &str = "tests/guest/peer/nvme-cli.sh";
/// Parts of Python's library that nothing here imports.
const UNNEEDED: [&str; 8] = [
    "__pycache__",
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tkinter",
];

/// Files for the guest beside its usual file system: the path there and the file here.
///
/// # Errors
/// The source package cannot be had, or there is no Python.
pub fn files(image: &Image) -> Result<Vec<(String, PathBuf)>> {
    let source = packages::source(&image.directory, "nvme-cli")?;
    let mut files = Vec::new();
    add_tree(&source.join("tests"), "guest/tests", &mut files)?;

    let python = libraries::program(&image.unpacked, "python3")?;
    let python = fs::canonicalize(&python)?;
    let name = python.file_name().context("Python without a name")?;
    let name = name.to_string_lossy().into_owned();
    let standard = [image.unpacked.as_path(), Path::new("/")]
        .map(|root| root.join("usr/lib").join(&name))
        .into_iter()
        .find(|path| path.join("unittest").is_dir())
        .with_context(|| format!("{name} has no standard library (libpython3-stdlib)"))?;
    add_tree(&standard, &format!("usr/lib/{name}"), &mut files)?;
    let loaded = files.iter().filter(|(to, _)| to.ends_with(".so"));
    let mut needed: BTreeMap<String, PathBuf> = BTreeMap::new();
    for program in loaded.map(|(_, from)| from).chain([&python]) {
        needed.extend(libraries::of(&image.unpacked, program)?);
    }
    files.extend(
        needed
            .into_iter()
            .map(|(name, from)| (format!("usr/lib/x86_64-linux-gnu/{name}"), from)),
    );
    files.push(("usr/bin/python3".to_owned(), python));
    Ok(files)
}

fn add_tree(from: &Path, to: &str, files: &mut Vec<(String, PathBuf)>) -> Result<()> {
    let entries = fs::read_dir(from).with_context(|| format!("read {}", from.display()))?;
    for entry in entries {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if UNNEEDED.contains(&name.as_ref()) {
            continue;
        }
        let to = format!("{to}/{name}");
        if path.is_dir() {
            add_tree(&path, &to, files)?;
        } else if path.is_file() {
            files.push((to, path));
        }
    }
    files.sort();
    Ok(())
}
