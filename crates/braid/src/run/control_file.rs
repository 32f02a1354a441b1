//! The control socket of a running engine: made again where its file was removed.
//!
//! # Contract
//! Once a second it is looked whether the file is there and still this engine's. If not, as after a
//! cleaner of temporary files, another socket is made in its place and served; clients that are
//! connected stay. Each is logged. While another program listens there, nothing is made.
use crate::control::access::Access;
use crate::control::server::{self, Methods};
use crate::control::socket::PrivateSocket;
use crate::log;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The socket, while this is there.
pub struct ControlFile {
    socket: Option<PrivateSocket>,
    path: PathBuf,
    access: Access,
    watch: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl ControlFile {
    /// Makes the socket. Nothing is served yet.
    ///
    /// # Errors
    /// As of [`PrivateSocket::bind`].
    pub fn bind(path: &Path, access: Access) -> anyhow::Result<Self> {
        Ok(Self {
            socket: Some(PrivateSocket::bind(path, "engine", &access)?),
            path: path.to_owned(),
            access,
            watch: None,
        })
    }

    /// Serves it, once.
    ///
    /// # Errors
    /// No thread or descriptor is left.
    pub fn serve(&mut self, methods: &Arc<impl Methods>) -> anyhow::Result<()> {
        let Some(socket) = self.socket.take() else {
            return Ok(());
        };
        accept(&socket, methods)?;
        let (stop, stopped) = mpsc::channel();
        let (path, access) = (self.path.clone(), self.access.clone());
        let methods = Arc::clone(methods);
        let watch = move || watch(socket, (&path, &access), &methods, &stopped);
        let thread = Builder::new().name("control file".into()).spawn(watch);
        self.watch = Some((stop, thread.context("cannot start a thread")?));
        Ok(())
    }
}

impl Drop for ControlFile {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.watch.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn watch(
    mut socket: PrivateSocket,
    (path, access): (&Path, &Access),
    methods: &Arc<impl Methods>,
    stopped: &mpsc::Receiver<()>,
) {
    let mut told = None;
    while stopped.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if socket.is_there() {
            told = None;
            continue;
        }
        let made = PrivateSocket::bind(path, "engine", access).and_then(|new| {
            accept(&new, methods)?;
            Ok(new)
        });
        match made {
            Ok(new) => {
                // Its thread ends; clients have threads of their own.
                let old = std::mem::replace(&mut socket, new);
                let _ = rustix::net::shutdown(&old.listener, rustix::net::Shutdown::Both);
                told = None;
                log::say(format!(
                    "the control socket {} was removed, and is made again",
                    path.display()
                ));
            }
            Err(error) => {
                let line = format!(
                    "the control socket {} was removed, and can't be made again: {error:#}",
                    path.display()
                );
                if told.as_ref() != Some(&line) {
                    log::say(line.clone());
                    told = Some(line);
                }
            }
        }
    }
}

fn accept(socket: &PrivateSocket, methods: &Arc<impl Methods>) -> anyhow::Result<()> {
    let listener = socket.listener.try_clone();
    let listener = listener.context("cannot share the control socket")?;
    let methods = Arc::clone(methods);
    let serve = move || server::serve(&listener, &methods);
    let builder = Builder::new().name("control".into());
    builder.spawn(serve).context("cannot start a thread")?;
    Ok(())
}
