//! Queue servers, as their clients find them.
use crate::control::socket::Service;
use anyhow::anyhow;
use std::path::Path;

/// `braid queue serve`.
pub const QUEUE: Service = Service {
    file: "q.sock",
    noun: "queue server",
    command: "braid queue serve",
};

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
