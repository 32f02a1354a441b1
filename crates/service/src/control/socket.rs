//! A private socket's file, for control or for blocks: where it is, who may use it, and whose it
//! was before.
//!
//! # Contract
//! Mode 0600 from its first moment; more only if [`Access`] says so. A file that is there is taken
//! over only if it is a socket and nobody answers on it. It is removed at the end if it still is
//! ours. Of several programs that begin or end at once one at a time looks and acts: the directory
//! is locked meanwhile (`flock`, which leaves nothing behind), so one of them has the socket, and
//! the others are told which process that is.
use super::access::Access;
use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, Mode};
use rustix::io::Errno;
use rustix::net;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terminal::output::note;

const BACKLOG: i32 = 64;
/// How long another program may keep the directory locked, which takes it a few system calls.
const LOCK_MAX: Duration = Duration::from_secs(5);
/// Pause before the lock is tried again.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// The program that listens on a control socket, in file names and messages.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// The socket's name in the usual directory.
    pub file: &'static str,
    /// "target".
    pub noun: &'static str,
    /// Command that starts one.
    pub command: &'static str,
}

/// `braid target`.
pub const TARGET: Service = Service {
    file: "target.sock",
    noun: "target",
    command: "braid target",
};

/// `braid run`.
pub const RUN: Service = Service {
    file: "braid.sock",
    noun: "engine",
    command: "braid run",
};

/// Directory of control sockets, and whose it has to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Of root, or of a user's session: its parent is private to the user.
    Usual(PathBuf),
    /// Without `XDG_RUNTIME_DIR`: the session's all the same.
    Session(PathBuf),
    /// In the directory for temporary files, where every user may make directories: it has to be
    /// ours alone.
    Temporary(PathBuf),
}

impl Place {
    /// Of the user `uid`. `runtime`: what `XDG_RUNTIME_DIR` says; `session`: where it usually is.
    fn of(uid: u32, runtime: Option<PathBuf>, session: &Path, temporary: &Path) -> Self {
        if uid == 0 {
            return Self::Usual("/run/braid".into());
        }
        if let Some(runtime) = runtime.filter(|it| it.is_absolute()) {
            return Self::Usual(runtime.join("braid"));
        }
        let is_ours = |it: fs::Metadata| it.is_dir() && it.uid() == uid;
        match fs::symlink_metadata(session).is_ok_and(is_ours) {
            true => Self::Session(session.join("braid")),
            false => Self::Temporary(temporary.join(format!("braid-{uid}"))),
        }
    }

    /// Of the user who runs this process.
    fn ours() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let session = format!("/run/user/{uid}");
        Self::of(uid, runtime, Path::new(&session), &std::env::temp_dir())
    }

    fn directory(&self) -> &Path {
        match self {
            Self::Usual(it) | Self::Session(it) | Self::Temporary(it) => it,
        }
    }

    /// Makes the directory where it is missing.
    fn make(&self) -> anyhow::Result<()> {
        let mode = match self {
            Self::Temporary(_) => 0o700,
            _ => 0o755,
        };
        let directory = self.directory();
        let mut builder = fs::DirBuilder::new();
        let made = builder.recursive(true).mode(mode).create(directory);
        made.with_context(|| format!("cannot make {}", directory.display()))?;
        self.ensure_private()
    }

    /// Refuses a temporary directory of another user, who could take our place there.
    fn ensure_private(&self) -> anyhow::Result<()> {
        let Self::Temporary(directory) = self else {
            return Ok(());
        };
        let shown = directory.display();
        let of = match fs::symlink_metadata(directory) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            of => of.with_context(|| format!("cannot examine {shown}"))?,
        };
        let uid = rustix::process::geteuid().as_raw();
        if !of.is_dir() || of.uid() != uid || of.mode() & 0o077 != 0 {
            bail!(
                "{shown} is not a directory for this user alone (0700): set XDG_RUNTIME_DIR, or \
                 give --socket PATH"
            );
        }
        Ok(())
    }
}

/// Returns where the socket of a service is unless it is said: in /run/braid for root, else in
/// `$XDG_RUNTIME_DIR/braid`. Without that variable in /run/user/UID/braid, and where there is no
/// session in braid-UID (0700) of the directory for temporary files.
fn default_path(service: Service) -> PathBuf {
    Place::ours().directory().join(service.file)
}

/// The same for a program that listens there; where the place is not the usual one, that is said.
pub fn listening_path(given: Option<PathBuf>, service: Service) -> PathBuf {
    given.unwrap_or_else(|| {
        let path = default_path(service);
        if !matches!(Place::ours(), Place::Usual(_)) {
            let shown = path.display();
            note(&format!(
                "XDG_RUNTIME_DIR is not set: the control socket is {shown}"
            ));
        }
        path
    })
}

/// The same for a client.
///
/// # Errors
/// Another user may have made the socket there.
pub fn client_path(given: Option<&Path>, service: Service) -> anyhow::Result<PathBuf> {
    match given {
        Some(path) => Ok(path.to_owned()),
        None => {
            Place::ours().ensure_private()?;
            Ok(default_path(service))
        }
    }
}

/// Connects to a running service.
///
/// # Errors
/// Nobody listens there, or as [`client_path`].
pub fn connect(service: Service, path: Option<&Path>) -> anyhow::Result<UnixStream> {
    let path = client_path(path, service)?;
    let Service { noun, command, .. } = service;
    let advice = match &fs::symlink_metadata(&path) {
        Ok(_) => format!("the {noun} that made it has ended, or is another user's"),
        Err(_) => format!("start one with {command}, or give its --socket"),
    };
    UnixStream::connect(&path)
        .with_context(|| format!("no {noun} answers on {} ({advice})", path.display()))
}

/// A listening socket.
pub struct PrivateSocket {
    /// To accept on.
    pub listener: UnixListener,
    path: PathBuf,
    inode: (u64, u64),
}

impl PrivateSocket {
    /// Makes the socket of a service that can do without: `None` where it cannot be made, nobody
    /// said where, and the place is not the usual one, which is said.
    ///
    /// # Errors
    /// As [`Self::bind`], at the usual place.
    pub fn bind_derived(service: Service, access: &Access) -> anyhow::Result<Option<Self>> {
        let bound = Self::bind(&listening_path(None, service), service.noun, access);
        Self::unless_derived(bound, &Place::ours())
    }

    fn unless_derived(bound: anyhow::Result<Self>, place: &Place) -> anyhow::Result<Option<Self>> {
        match (bound, place) {
            (Err(error), Place::Session(_) | Place::Temporary(_)) => {
                note(&format!(
                    "no control socket: {error:#} (give --socket PATH)"
                ));
                Ok(None)
            }
            (bound, _) => bound.map(Some),
        }
    }

    /// Makes the socket, for whom `access` says. `noun`: what listens there, in messages.
    ///
    /// # Errors
    /// Another one listens there, the file can't be made, or what [`Access::apply`] says; then
    /// there is none. Only the usual directory is made where there is none: elsewhere it is more
    /// likely misspelt.
    pub fn bind(path: &Path, noun: &str, access: &Access) -> anyhow::Result<Self> {
        let usual = Place::ours();
        if path.parent() == Some(usual.directory()) {
            usual.make()?;
        }
        let context = || {
            let advice = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() && !parent.exists() => {
                    " (there is no such directory: make it, or give another path)"
                }
                _ => "",
            };
            format!("cannot make the socket {}{advice}", path.display())
        };
        let locked = lock(path).with_context(context)?;
        let listener = match bind_private(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                take_over(path, noun)?;
                bind_private(path).with_context(context)?
            }
            bound => bound.with_context(context)?,
        };
        let inode = inode(path).with_context(context)?;
        drop(locked);
        let socket = PrivateSocket {
            listener,
            path: path.to_owned(),
            inode,
        };
        access.apply(path)?;
        Ok(socket)
    }

    /// Whether its file is there and still its own.
    pub fn is_there(&self) -> bool {
        inode(&self.path).is_ok_and(|now| now == self.inode)
    }

    /// Another access; who is connected stays so.
    ///
    /// # Errors
    /// The file is another's now, or what [`Access::change`] says.
    pub fn set_access(&self, access: &Access) -> anyhow::Result<()> {
        let path = &self.path;
        if !self.is_there() {
            bail!("{} is no longer the socket of this program", path.display());
        }
        access.change(path)
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        // Without it, it is likely still ours: nobody takes over a socket that is listened on.
        let _locked = lock(&self.path);
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Linux takes the mode of the file from that of the socket (`unix_bind`): it is private before it
/// has a name.
fn bind_private(path: &Path) -> std::io::Result<UnixListener> {
    let socket = net::socket_with(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        net::SocketFlags::CLOEXEC,
        None,
    )?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    net::bind(&socket, &net::SocketAddrUnix::new(path)?)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Locks the directory of a socket, until what comes back is dropped.
fn lock(path: &Path) -> std::io::Result<OwnedFd> {
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let directory = OwnedFd::from(fs::File::open(parent.unwrap_or(Path::new(".")))?);
    let until = Instant::now() + LOCK_MAX;
    loop {
        match rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(directory),
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => {
                let why = "another program keeps its directory locked (lslocks shows which)";
                return Err(std::io::Error::new(ErrorKind::WouldBlock, why));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Process that listens on a socket, if the kernel tells; never waits. An error: none, or it
/// can't be told.
fn listener_of(path: &Path) -> Result<Option<i32>, Errno> {
    let socket = net::socket_with(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK,
        None,
    )?;
    match net::connect(&socket, &net::SocketAddrUnix::new(path)?) {
        Ok(()) => {
            // 0: in another namespace.
            let peer = net::sockopt::socket_peercred(&socket).ok();
            let pid = peer.map(|it| it.pid.as_raw_nonzero().get());
            Ok(pid.filter(|&pid| pid > 0))
        }
        // Its queue is full: somebody listens who is busy.
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes a socket on which nobody answers.
fn take_over(path: &Path, noun: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let metadata = fs::symlink_metadata(path).with_context(|| format!("cannot examine {shown}"))?;
    if !metadata.file_type().is_socket() {
        bail!("{shown} is there and is no socket: remove it, or name another");
    }
    match listener_of(path) {
        Ok(pid) => {
            let who = pid.map_or(String::new(), |pid| format!(" (process {pid})"));
            bail!(
                "another {noun} listens on {shown}{who}: stop it, or give this one a socket of its \
                 own"
            )
        }
        Err(Errno::CONNREFUSED) => {
            fs::remove_file(path).with_context(|| format!("cannot remove the stale {shown}"))
        }
        Err(error) => Err(error).with_context(|| format!("cannot tell who listens on {shown}")),
    }
}

fn inode(path: &Path) -> std::io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn bind(path: &Path) -> anyhow::Result<PrivateSocket> {
        PrivateSocket::bind(path, "target", &Access::default())
    }

    #[test]
    fn a_socket_is_private_and_goes_with_its_owner() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.sock");
        let socket = bind(&path).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(connect(TARGET, Some(&path)).is_ok());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn socket_at_a_derived_place_can_be_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.sock");
        let _first = bind(&path).unwrap();
        let place = |of: fn(PathBuf) -> Place| of(directory.path().to_owned());
        for derived in [place(Place::Session), place(Place::Temporary)] {
            let second = PrivateSocket::unless_derived(bind(&path), &derived);
            assert!(second.unwrap().is_none());
        }
        let usual = place(Place::Usual);
        assert!(PrivateSocket::unless_derived(bind(&path), &usual).is_err());
    }

    #[test]
    fn place_without_runtime_directory_is_private() {
        let temporary = tempfile::tempdir().unwrap();
        let temporary = temporary.path();
        let uid = rustix::process::geteuid().as_raw();
        let session = temporary.join("session");
        let of = |uid, runtime: Option<&str>| {
            Place::of(uid, runtime.map(PathBuf::from), &session, temporary)
        };
        assert_eq!(of(0, Some("/x")), Place::Usual("/run/braid".into()));
        assert_eq!(of(7, Some("/x")), Place::Usual("/x/braid".into()));
        // A relative one is none (XDG Base Directory Specification).
        for runtime in [None, Some("x")] {
            assert_eq!(of(7, runtime), Place::Temporary(temporary.join("braid-7")));
        }
        fs::create_dir(&session).unwrap();
        let place = match uid {
            0 => of(7, None), // another user's
            uid => of(uid, None),
        };
        let ours = Place::Session(session.join("braid"));
        assert_eq!(place == ours, uid != 0, "{place:?}");

        let place = Place::Temporary(temporary.join("braid-n"));
        place.ensure_private().unwrap();
        place.make().unwrap();
        let mode = |it: &Path| fs::metadata(it).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(place.directory()), 0o700);
        place.make().unwrap();
        fs::set_permissions(place.directory(), fs::Permissions::from_mode(0o770)).unwrap();
        let error = place.ensure_private().unwrap_err().to_string();
        assert!(error.contains("this user alone (0700)"), "{error}");
        let link = Place::Temporary(temporary.join("link"));
        std::os::unix::fs::symlink(&session, link.directory()).unwrap();
        assert!(link.make().is_err(), "another user may have made the link");
    }

    #[test]
    fn a_directory_that_is_not_there_is_not_made() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nope/t.sock");
        let error = bind(&path).err().unwrap().to_string();
        assert!(
            error.contains("there is no such directory: make it"),
            "{error}"
        );
        assert!(!path.parent().unwrap().exists());
    }

    #[test]
    fn of_many_that_begin_at_once_one_has_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.sock");
        for round in 0..200 {
            if round % 2 == 0 {
                drop(UnixListener::bind(&path).unwrap());
            }
            let begin = std::sync::Barrier::new(8);
            let try_it = || {
                begin.wait();
                bind(&path).map_err(|error| error.to_string())
            };
            let mut bound = std::thread::scope(|scope| {
                let threads = [(); 8].map(|()| scope.spawn(try_it));
                threads
                    .map(|it| it.join().unwrap())
                    .into_iter()
                    .collect::<Vec<_>>()
            });
            bound.sort_by_key(Result::is_err);
            assert!(bound[0].is_ok() && inode(&path).unwrap() == bound[0].as_ref().unwrap().inode);
            for other in &bound[1..] {
                let error = other.as_ref().err().expect("two have it");
                assert!(error.starts_with("another target listens on"), "{error}");
            }
            assert!(connect(TARGET, Some(&path)).is_ok());
            drop(bound);
            assert!(!path.exists());
        }
    }

    #[test]
    fn only_a_stale_socket_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "stale: its owner is gone");
        let first = bind(&path).unwrap();
        let error = bind(&path).err().unwrap().to_string();
        assert!(error.starts_with("another target listens on"), "{error}");
        let pid = format!("(process {})", std::process::id());
        assert!(error.contains(&pid), "{error}");
        assert!(path.exists());
        drop(first);
        fs::write(&path, "precious").unwrap();
        let error = bind(&path).err().unwrap().to_string();
        assert!(error.contains("is no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
