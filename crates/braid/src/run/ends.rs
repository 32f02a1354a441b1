//! Where the paths of a running engine lead: the numbers under which its reactors know addresses
//! and devices.
//!
//! # Contract
//! A number is given to one end at a time: it is free again when the engine says that no path on
//! any core leads there (`HostEvent::Released`), whether the path left or was refused. All cores
//! know an end before the engine hears of its path.
use super::config::PathKeys;
use super::service::Service;
use crate::load::host::{End, FileAccess};
use engine::host::{PathConfig, PathKind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All numbers in use.
pub struct Ends(Mutex<Both>);

struct Both {
    addresses: Numbers,
    devices: Numbers,
}

/// Of one kind.
struct Numbers {
    /// From here on they were never used.
    next: u16,
    free: Vec<u16>,
}

impl Numbers {
    fn take(&mut self) -> Result<u16, String> {
        if let Some(number) = self.free.pop() {
            return Ok(number);
        }
        let number = self.next;
        let next = number.checked_add(1);
        self.next = next.ok_or("there are too many paths; remove some")?;
        Ok(number)
    }
}

impl Ends {
    /// Beside those of the start.
    pub fn new(addresses: usize, devices: usize) -> Self {
        let numbers = |used: usize| Numbers {
            next: u16::try_from(used).unwrap_or(u16::MAX),
            free: Vec::new(),
        };
        Self(Mutex::new(Both {
            addresses: numbers(addresses),
            devices: numbers(devices),
        }))
    }

    fn both(&self) -> MutexGuard<'_, Both> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service {
    /// Resolves or opens where a path leads, and makes it known to all cores; `quiesce_ns`: as of
    /// [`Volume::queue_quiesce_ns`](super::config::Volume::queue_quiesce_ns).
    ///
    /// # Errors
    /// Why it can't be, with its URI.
    pub fn lead(
        &self,
        keys: &PathKeys,
        access: FileAccess,
        quiesce_ns: u64,
    ) -> Result<PathConfig, String> {
        let uri = keys.uri.to_string();
        let end =
            End::of(&keys.uri, access, quiesce_ns).map_err(|error| format!("{uri}: {error:#}"))?;
        let number = match &end {
            End::Address { .. } => self.ends.both().addresses.take()?,
            End::Passthrough(_) | End::Device { .. } => self.ends.both().devices.take()?,
        };
        let kind = end.kind(number);
        if let End::Address { address, .. } = &end {
            self.senders.set_address(number.into(), *address);
        }
        if let Some(device) = end.device()
            && let Err(error) = self.senders.set_device(number, Some(&device))
        {
            self.released(&kind);
            return Err(format!("{uri}: {error:#}"));
        }
        Ok(PathConfig {
            uri,
            kind,
            distance: keys.distance,
            throughput: keys.throughput,
        })
    }

    /// The same for all paths of a volume, or none.
    ///
    /// # Errors
    /// Of the first that can't be.
    pub fn lead_all(
        &self,
        paths: &[PathKeys],
        access: FileAccess,
        quiesce_ns: u64,
    ) -> Result<Vec<PathConfig>, String> {
        let mut all = Vec::new();
        for keys in paths {
            match self.lead(keys, access, quiesce_ns) {
                Ok(path) => all.push(path),
                Err(why) => {
                    all.iter().for_each(|path| self.released(&path.kind));
                    return Err(why);
                }
            }
        }
        Ok(all)
    }

    /// Nothing leads there any more.
    pub fn released(&self, kind: &PathKind) {
        match kind {
            PathKind::NvmeTcp { address, .. } => {
                self.ends
                    .both()
                    .addresses
                    .free
                    .extend(u16::try_from(*address));
            }
            PathKind::Device { device, .. } | PathKind::Passthrough { device, .. } => {
                // Nothing needs a descriptor that it could want.
                let _ = self.senders.set_device(device.0, None);
                self.ends.both().devices.free.push(device.0);
            }
        }
    }
}
