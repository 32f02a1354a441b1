//! The export as a file (nbdfuse), part of it as a block device (loop), with an ext4 on it.
//!
//! # Contract
//! Undone in that order when dropped, whatever failed before.
use super::net::{output, run};
use super::stop;
use super::target::READY;
use crate::process::{Group, is_installed};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why the export can't be a file here; `None`: it can.
pub fn fuse_hindrance() -> Option<&'static str> {
    let fuse = File::options().read(true).write(true).open("/dev/fuse");
    if fuse.is_err() {
        return Some("/dev/fuse can't be opened");
    }
    let programs = ["nbdfuse", "fusermount3"];
    let missing = programs.into_iter().any(|it| !is_installed(it));
    missing.then_some("nbdfuse or fusermount3 is not installed")
}

/// Why nothing can be mounted here; `None`: it can.
pub fn mount_hindrance() -> Option<&'static str> {
    if let Some(reason) = fuse_hindrance() {
        return Some(reason);
    }
    if !rustix::process::geteuid().is_root() {
        return Some("loop devices and mounts need root");
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there is no /dev/loop-control");
    }
    let programs = ["losetup", "mkfs.ext4", "fsck.ext4"];
    let missing = programs.into_iter().any(|it| !is_installed(it));
    missing.then_some("losetup, mkfs.ext4 or fsck.ext4 is not installed")
}

/// The export as a file.
pub struct Image {
    fuse: Group,
    /// The file.
    pub path: PathBuf,
}

impl Image {
    /// Mounts it.
    ///
    /// # Errors
    /// nbdfuse ends, or serves nothing.
    pub fn make(directory: &Path, export: &Path) -> Result<Self> {
        let path = directory.join("image");
        std::fs::write(&path, "")?;
        let mut command = Command::new("nbdfuse");
        command.arg(&path);
        command.arg(format!("nbd+unix:///v0?socket={}", export.display()));
        let fuse = Group::spawn(command.stdin(Stdio::null()))?;
        let mut image = Self { fuse, path };
        stop::wait("nbdfuse serves", READY, || {
            if let Some(status) = image.fuse.child().try_wait()? {
                bail!("nbdfuse: {status}");
            }
            let metadata = std::fs::metadata(&image.path).ok();
            Ok(metadata.filter(|it| it.len() > 0))
        })?;
        Ok(image)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        quietly("fusermount3", &["-u", "-z", &self.path.to_string_lossy()]);
    }
}

/// An ext4 on the rest of an image.
pub struct Mounted {
    device: String,
    is_mounted: bool,
    /// Where it is mounted.
    pub directory: PathBuf,
}

impl Mounted {
    /// Made anew from `offset` on, and mounted.
    ///
    /// # Errors
    /// A program says why not.
    pub fn make(image: &Image, offset: u64, directory: &Path) -> Result<Self> {
        let mounted = directory.join("fs");
        std::fs::create_dir_all(&mounted)?;
        let offset = offset.to_string();
        let words = ["--find", "--show", "--sector-size", "4096", "--offset"];
        let image = image.path.to_string_lossy();
        let device = output("losetup", &[&words[..], &[&offset, &image]].concat())?;
        let mut this = Self {
            device: device.trim().to_owned(),
            is_mounted: false,
            directory: mounted,
        };
        run("mkfs.ext4", &["-q", "-b", "4096", &this.device])?;
        this.mount()?;
        Ok(this)
    }

    /// Mounts it.
    ///
    /// # Errors
    /// `mount` says why not.
    pub fn mount(&mut self) -> Result<()> {
        run("mount", &[&self.device, &self.directory.to_string_lossy()])?;
        self.is_mounted = true;
        Ok(())
    }

    /// Unmounts it: nothing of it is cached any more.
    ///
    /// # Errors
    /// `umount` says why not.
    pub fn unmount(&mut self) -> Result<()> {
        run("umount", &[&self.directory.to_string_lossy()])?;
        self.is_mounted = false;
        Ok(())
    }

    /// Checks the unmounted file system.
    ///
    /// # Errors
    /// It isn't clean: with what fsck found.
    pub fn fsck(&self) -> Result<()> {
        run("fsck.ext4", &["-fn", &self.device]).context("the file system isn't clean")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted {
            quietly("umount", &["-l", &self.directory.to_string_lossy()]);
        }
        quietly("losetup", &["-d", &self.device]);
    }
}

fn quietly(program: &str, words: &[&str]) {
    let mut command = Command::new(program);
    let _ = command.args(words).stderr(Stdio::null()).status();
}
