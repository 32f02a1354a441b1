//! A server as a measured process; ended when dropped.
use crate::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::AtomicU32;
use system::process::Group;

/// Longest wait for a server to be ready, and to end; some run under valgrind.
const READY: Duration = Duration::from_secs(60);

/// A server in a directory of its own.
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
        Self::start(directory, &mut command, listens)
    }

    /// `braid run` on one core, with an NBD export of one path.
    pub fn over(braid: &Path, uri: &str) -> Result<Self> {
        let directory = directory()?;
        let volume = volume("nbd", "path", &[uri.into()], &directory);
        let config = format!("cores = 1\n{volume}");
        Self::braid(braid, "run", directory, &config, listens)
    }

    /// `braid VERB` with this configuration; its control socket is `control`.
    pub fn braid(
        braid: &Path,
        verb: &str,
        directory: PathBuf,
        config: &str,
        is_ready: impl Fn(&Self) -> bool,
    ) -> Result<Self> {
        let file = directory.join("braid.toml");
        fs::write(&file, config)?;
        let mut command = Command::new(braid);
        command.args([verb, "-c"]).arg(file);
        command.arg("--socket").arg(directory.join("control"));
        command.env("XDG_STATE_HOME", &directory);
        Self::start(directory, &mut command, is_ready)
    }

    /// Starts `command`, whose files are in `directory`.
    ///
    /// # Errors
    /// It ends, or is not ready in time: with what it said.
    pub fn start(
        directory: PathBuf,
        command: &mut Command,
        is_ready: impl Fn(&Self) -> bool,
    ) -> Result<Self> {
        let log = fs::File::create(directory.join("log"))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?);
        let group = Group::spawn(command.stderr(log))?;
        let mut server = Self { group, directory };
        let begun = Instant::now();
        while !is_ready(&server) {
            if let Some(status) = server.group.child().try_wait()? {
                bail!("{command:?} ended: {status}: {}", server.said());
            }
            if begun.elapsed() > READY {
                bail!("{command:?} does not become ready: {}", server.said());
            }
            sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Its messages so far.
    pub fn said(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// Where clients find it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.file("nbd").display())
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.group.id()
    }

    /// Ends it by SIGTERM.
    ///
    /// # Errors
    /// It takes too long, or says that something was wrong.
    pub fn end(&mut self) -> Result<()> {
        kill_process(Pid::from_child(self.group.child()), Signal::TERM)?;
        let status = self.group.wait(READY)?;
        ensure!(status.success(), "{status}: {}", self.said());
        Ok(())
    }

    /// A file in its directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A volume over these `path`s or `leg`s, exported on a socket of its own name in `directory`.
pub fn volume(name: &str, of: &str, uris: &[String], directory: &Path) -> String {
    let kind = if of == "leg" { "mirror" } else { "paths" };
    let uris = uris
        .iter()
        .map(|uri| format!("[[volume.{of}]]\nuri = \"{uri}\"\n"));
    format!(
        "[[volume]]\nname = \"{name}\"\nkind = \"{kind}\"\n{}[[volume.export]]\n\
         nbd = \"unix:{}\"\n",
        uris.collect::<String>(),
        directory.join(name).display()
    )
}

/// Whether clients are taken.
pub fn listens(server: &Server) -> bool {
    UnixStream::connect(server.file("nbd")).is_ok()
}

/// A directory of this process, private.
pub fn directory() -> Result<PathBuf> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("braid-bench-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(name);
    fs::create_dir(&directory)?;
    Ok(directory)
}
