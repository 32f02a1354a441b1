//! A private socket's file, for control or for blocks: where it is, who may use it, and whose it
//! was before.
//!
//! # Contract
//! Mode 0600 from its first moment; more only if [`Access`] says so. A file that is there is taken
//! over only if it is a socket and nobody answers on it. It is removed at the end if it still is
//! ours.
use super::access::Access;
use crate::cli::Usage;
use anyhow::{Context, bail};
use rustix::fs::Mode;
use rustix::net;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const BACKLOG: i32 = 64;

/// Who listens on a control socket, in file names and messages.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// The socket's name in the usual directory.
    pub file: &'static str,
    /// "target".
    pub noun: &'static str,
    /// What starts one.
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

/// Where a control socket is if nobody says otherwise: in /run/braid for root, else in
/// `$XDG_RUNTIME_DIR/braid`. `None`: there is no such place.
pub fn default_path(service: Service) -> Option<PathBuf> {
    let name = service.file;
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/run/braid").join(name));
    }
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    runtime
        .is_absolute()
        .then(|| runtime.join("braid").join(name))
}

/// Whether this is the directory of [`default_path`].
fn is_usual(directory: &Path) -> bool {
    default_path(RUN).is_some_and(|path| path.parent() == Some(directory))
}

/// Connects to a running service.
///
/// # Errors
/// Nobody listens there.
pub fn connect(service: Service, path: Option<&Path>) -> anyhow::Result<UnixStream> {
    let path = path.map(Path::to_owned);
    let Some(path) = path.or_else(|| default_path(service)) else {
        return Err(Usage::error(
            "XDG_RUNTIME_DIR is not set: give --socket PATH",
        ));
    };
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
    /// Makes the socket, for whom `access` says. `noun`: what listens there, in messages.
    ///
    /// # Errors
    /// Another one listens there, the file can't be made, or what [`Access::apply`] says; then
    /// there is none. Only the usual directory is made where there is none: elsewhere it is more
    /// likely misspelt.
    pub fn bind(path: &Path, noun: &str, access: &Access) -> anyhow::Result<Self> {
        if let Some(directory) = path.parent().filter(|parent| is_usual(parent)) {
            let mut builder = fs::DirBuilder::new();
            let made = builder.recursive(true).mode(0o755).create(directory);
            made.with_context(|| format!("cannot make {}", directory.display()))?;
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
        let listener = match bind_private(path) {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                take_over(path, noun)?;
                bind_private(path).with_context(context)?
            }
            bound => bound.with_context(context)?,
        };
        let inode = inode(path).with_context(context)?;
        let socket = PrivateSocket {
            listener,
            path: path.to_owned(),
            inode,
        };
        access.apply(path)?;
        Ok(socket)
    }

    /// Another access; who is connected stays so.
    ///
    /// # Errors
    /// The file is another's now, or what [`Access::change`] says.
    pub fn set_access(&self, access: &Access) -> anyhow::Result<()> {
        let path = &self.path;
        if !inode(path).is_ok_and(|now| now == self.inode) {
            bail!("{} is no longer the socket of this program", path.display());
        }
        access.change(path)
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|now| now == self.inode) {
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

/// Removes a socket on which nobody answers.
fn take_over(path: &Path, noun: &str) -> anyhow::Result<()> {
    let shown = path.display();
    let metadata = fs::symlink_metadata(path).with_context(|| format!("cannot examine {shown}"))?;
    if !metadata.file_type().is_socket() {
        bail!("{shown} is there and is no socket: remove it, or name another");
    }
    match UnixStream::connect(path) {
        Ok(_) => bail!(
            "another {noun} listens on {shown}: stop it, or give this one a socket of its own"
        ),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
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
    fn only_a_stale_socket_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "stale: its owner is gone");
        let first = bind(&path).unwrap();
        let error = bind(&path).err().unwrap().to_string();
        assert!(error.starts_with("another target listens on"), "{error}");
        assert!(path.exists());
        drop(first);
        fs::write(&path, "precious").unwrap();
        let error = bind(&path).err().unwrap().to_string();
        assert!(error.contains("is no socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }
}
