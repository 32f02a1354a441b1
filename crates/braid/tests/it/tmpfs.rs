//! A small file system, for what must find its disk full.
use std::path::{Path, PathBuf};
use std::process::Command;

/// Mounted until it is dropped.
pub struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Makes the directory and mounts on it; `size` as in `256k`. The error is why it can't be.
    pub fn mount(on: &Path, size: &str) -> Result<Self, String> {
        std::fs::create_dir(on).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]);
        match mount.arg(on).output() {
            Ok(output) if output.status.success() => Ok(Self(on.into())),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().into()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
