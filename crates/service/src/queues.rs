//! Queue servers, as their clients find them.
use crate::control::socket::{Service, default_path};
use anyhow::anyhow;
use std::path::{Path, PathBuf};
use terminal::exit::Usage;

/// `braid queue serve`.
pub const QUEUE: Service = Service {
    file: "q.sock",
    noun: "queue server",
    command: "braid queue serve",
};

/// Returns the socket's path: as given, else in the usual place.
///
/// # Errors
/// Usage: neither is there.
pub fn socket_path(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    let path = given.cloned().or_else(|| default_path(QUEUE));
    path.ok_or_else(|| Usage::error("XDG_RUNTIME_DIR is not set: give --socket PATH"))
}

/// Adds to a client's error where it met it, and what to do about it.
pub fn client_error(error: ::queue::Error, path: &Path) -> anyhow::Error {
    let (noun, path) = (QUEUE.noun, path.display());
    if let Some(why) = error.nobody_listens() {
        return anyhow!(
            "no {noun} answers on {path}: {why} (start one with {}, or give its --socket)",
            QUEUE.command
        );
    }
    let context = format!("the {noun} on {path}{}", error.advice());
    anyhow::Error::new(error).context(context)
}
