//! Where the paths of a running engine lead: the numbers under which its reactors know addresses
//! and devices.
//!
//! # Contract
//! A number is given to one end at a time: it is free again when the engine says that no path on
//! any core leads there (`HostEvent::Released`), whether the path left or was refused. All cores
//! know an end before the engine hears of its path.
//!
//! A name counts for all addresses that it stood for when it was resolved last: at the start, and
//! whenever its path is to be connected again ([`names`](super::names)). A path that is connected,
//! or being connected, keeps its address.
use super::config::{PathKeys, Volume};
use super::late;
use super::service::Service;
use crate::ends::{End, FileAccess, Known, Place, What};
use crate::uri::PathUri;
use engine::host::{PathConfig, PathKind};
use runtime::{FileDevice, QueueDevice};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Message of the engine for a path whose I/O fails, however that comes.
const ERRORS: &str = "on probation: too many of its I/Os fail; see the system's log";
/// How that begins.
const PROBATION: &str = "on probation: ";

/// All numbers in use.
pub struct Ends(Mutex<Both>);

struct Both {
    addresses: Numbers,
    devices: Numbers,
    known: Vec<Known>,
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
    pub fn new(known: Vec<Known>) -> Self {
        let numbers = |of_devices: bool| {
            let used = known.iter().filter(|it| it.is_device() == of_devices);
            Numbers {
                next: u16::try_from(used.count()).unwrap_or(u16::MAX),
                free: Vec::new(),
            }
        };
        Self(Mutex::new(Both {
            addresses: numbers(false),
            devices: numbers(true),
            known,
        }))
    }

    /// All addresses that the host of a path stood for when it was connected; none: it is not.
    pub fn addresses(&self, uri: &PathUri) -> Vec<SocketAddr> {
        let found = self.find(uri, |what| match what {
            What::Port(place) => Some(place.all.clone()),
            _ => None,
        });
        found.unwrap_or_default()
    }

    /// Why the name in a path can't be resolved now, or is not followed; and whether the path has
    /// no address at all.
    pub fn unresolved(&self, uri: &PathUri) -> Option<(String, bool)> {
        self.find(uri, |what| match what {
            What::Port(place) => Some((place.why.clone()?, place.address.is_none())),
            _ => None,
        })
    }

    /// Known facts of the path under an address number, to be changed; `None`: nothing leads
    /// there.
    pub fn with_port<T>(
        &self,
        number: u32,
        change: impl FnOnce(&str, &mut Place) -> T,
    ) -> Option<T> {
        let mut both = self.both();
        let mut known = both.known.iter_mut();
        known
            .find_map(|it| match &mut it.what {
                What::Port(place) if u32::from(it.number) == number => {
                    Some((it.uri.as_str(), place))
                }
                _ => None,
            })
            .map(|(uri, place)| change(uri, place))
    }

    /// The queue server's namespace that a path leads to.
    pub fn queue(&self, uri: &PathUri) -> Option<Arc<QueueDevice>> {
        self.find(uri, |what| match what {
            What::Queue(queue) => Some(Arc::clone(queue)),
            _ => None,
        })
    }

    /// The file that a path leads to, as it is open.
    pub fn file(&self, uri: &PathUri) -> Option<Arc<FileDevice>> {
        self.find(uri, |what| match what {
            What::File(file) => Some(Arc::clone(file)),
            _ => None,
        })
    }

    fn find<T>(&self, uri: &PathUri, of: impl Fn(&What) -> Option<T>) -> Option<T> {
        let (both, uri) = (self.both(), uri.to_string());
        // One of the same URI may be leaving.
        let mut known = both.known.iter().rev().filter(|it| it.uri == uri);
        known.find_map(|it| of(&it.what))
    }

    fn both(&self) -> MutexGuard<'_, Both> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_end(keys: &PathKeys, access: FileAccess, quiesce_ns: u64) -> Result<End, String> {
    let opened = End::of(&keys.uri, access, quiesce_ns);
    opened.map_err(|error| format!("{}: {error:#}", keys.uri))
}

/// Resolves or opens where a path of a volume leads, and tells no core; this may block.
///
/// # Errors
/// Why it can't be, with its URI.
pub fn open_end_of(of: &Volume, keys: &PathKeys) -> Result<End, String> {
    open_end(keys, late::access(of), of.queue_quiesce_ns())
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
        let end = open_end(keys, access, quiesce_ns)?;
        self.register_end(keys, &end)
    }

    /// Makes known to all cores where a path leads, that is resolved or open.
    ///
    /// # Errors
    /// Why it can't be, with its URI.
    pub fn register_end(&self, keys: &PathKeys, end: &End) -> Result<PathConfig, String> {
        let uri = keys.uri.to_string();
        let number = match end {
            End::Port(_) => self.ends.both().addresses.take()?,
            End::Passthrough(_) | End::Device { .. } => self.ends.both().devices.take()?,
        };
        let kind = end.kind(number);
        self.ends.both().known.push(Known {
            uri: uri.clone(),
            number,
            what: end.what(),
        });
        if let End::Port(place) = end {
            let address = place.address.unwrap_or(runtime::NOWHERE);
            self.senders.set_address(number.into(), address);
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
            numbers: PathConfig::ANY_NUMBER,
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

    /// A line of the engine about a path: where it says only that I/O fails, and the path's queue
    /// is gone, it says that.
    pub fn of_queue(&self, line: String) -> String {
        let Some(of_path) = line.strip_suffix(ERRORS) else {
            return line;
        };
        let queues: Vec<_> = {
            let both = self.ends.both();
            let known = both.known.iter().map(|it| (it.uri.clone(), &it.what));
            let queue = |(uri, what): (String, &What)| match what {
                What::Queue(queue) => Some((uri, Arc::clone(queue))),
                _ => None,
            };
            known.filter_map(queue).collect()
        };
        let is_its = |uri: &str| of_path.ends_with(&format!(": path {uri}: "));
        let queue = queues.iter().find(|(uri, _)| is_its(uri));
        match queue.and_then(|(_, queue)| queue.hindrance()) {
            Some(why) => format!("{of_path}{PROBATION}{why}"),
            None => line,
        }
    }

    /// Nothing leads there any more.
    pub fn released(&self, kind: &PathKind) {
        let (is_device, number) = match kind {
            PathKind::NvmeTcp { address, .. } => (false, *address),
            PathKind::Device { device, .. } | PathKind::Passthrough { device, .. } => {
                (true, device.0.into())
            }
        };
        let it = |it: &Known| (it.is_device(), u32::from(it.number)) == (is_device, number);
        self.ends.both().known.retain(|known| !it(known));
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
