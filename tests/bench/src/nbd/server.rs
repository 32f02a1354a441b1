//! An NBD server as a measured process; ended when dropped.
use anyhow::{Result, bail};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use system::process::Group;

/// Longest wait for a server to listen.
const READY: Duration = Duration::from_secs(20);

/// A server on a Unix socket, in a directory of its own.
pub struct Server {
    group: Group,
    directory: PathBuf,
}

impl Server {
    /// nbdkit with 256 MiB of memory.
    pub fn nbdkit() -> Result<Self> {
        let directory = directory()?;
        let mut command = Command::new("nbdkit");
        command
            .args(["--foreground", "--unix"])
            .arg(directory.join("nbd"));
        command.args(["memory", "256M"]);
        Self::start(directory, &mut command)
    }

    /// `braid run` over one path.
    pub fn braid(braid: &Path, uri: &str) -> Result<Self> {
        let directory = directory()?;
        let socket = directory.join("nbd");
        let config = format!(
            "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{uri}\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            socket.display()
        );
        std::fs::write(directory.join("braid.toml"), config)?;
        let mut command = Command::new(braid);
        command
            .args(["run", "-c"])
            .arg(directory.join("braid.toml"));
        command.arg("--socket").arg(directory.join("control"));
        command.env("XDG_STATE_HOME", &directory);
        Self::start(directory, &mut command)
    }

    fn start(directory: PathBuf, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let group = Group::spawn(command)?;
        let mut server = Self { group, directory };
        let begun = Instant::now();
        while UnixStream::connect(server.file("nbd")).is_err() {
            if let Some(status) = server.group.child().try_wait()? {
                bail!("{command:?} ended: {status}");
            }
            if begun.elapsed() > READY {
                bail!("{command:?} does not listen");
            }
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Where clients find it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.file("nbd").display())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.group.id()
    }

    /// A file in its directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A directory of this process, private.
pub fn directory() -> Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("braid-bench-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory)?;
    Ok(directory)
}
