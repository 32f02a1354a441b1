//! After a kill, the same once more with one leg taken away: on copies, so that the legs
//! themselves stay as the kill left them.
//!
//! # Contract
//! Where an assembly of all legs calls one of those left in sync, and that one knows, an engine
//! that is told to go on without the missing one serves everything that was acknowledged. Where
//! there is none such left, the mirror does not start.
use super::super::engine::Engine;
use super::front::Export;
use super::legs::Legs;
use super::{READY, read_all, stop, wait_refused, wait_running};
use crate::faults::net::Net;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Where copies lie, and what starts engines.
pub struct Stand<'a> {
    /// `braid`.
    pub program: &'a Path,
    /// Of the copies and their engine.
    pub directory: &'a Path,
    /// Loopback.
    pub net: &'a Net,
    /// Of that engine.
    pub export: &'a Export,
    /// So many bytes the mirror has at least.
    pub bytes: u64,
}

/// Result of the round.
pub enum Found {
    /// All bytes of the mirror, as its users read them.
    Served(Vec<u8>),
    /// It did not start, as it had to.
    Refused,
}

impl Stand<'_> {
    /// Starts an engine on copies of all legs but `taken`. `in_sync`: legs that an assembly of all
    /// of them calls so, and whether they do themselves.
    ///
    /// # Errors
    /// It serves and must not, or the other way round.
    pub fn start(&self, legs: &Legs, taken: usize, in_sync: &[(usize, bool)]) -> Result<Found> {
        std::fs::create_dir_all(self.directory)?;
        let mut uris = Vec::new();
        let left = legs.files().iter().enumerate();
        for (number, file) in left.filter(|(number, _)| *number != taken) {
            let copy: PathBuf = self.directory.join(format!("leg{number}.img"));
            std::fs::copy(file, &copy).with_context(|| format!("copy {}", file.display()))?;
            uris.push(format!("file:{}", copy.display()));
        }
        let text = super::configuration(self.export, &uris, "");
        let engine = Engine::start_as(self.program, self.directory, self.net, &text)?;
        let serves = in_sync.iter().any(|&(leg, knows)| leg != taken && knows);
        let found = match serves {
            true => {
                wait_running(&engine, true)?;
                Found::Served(read_all(self.export, self.bytes)?)
            }
            false => {
                wait_refused(&engine, READY)?;
                Found::Refused
            }
        };
        stop::check()?;
        engine.kill();
        Ok(found)
    }
}
