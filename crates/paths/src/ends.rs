//! The ends of paths: resolves the names of path URIs, and opens their files and devices for the
//! reactors.
use crate::holder;
use crate::uri::{Found, NvmeNg, NvmeTcp, PathKeys, PathUri, Start, UriKind};
use anyhow::{Context, bail};
use engine::LocalDevice;
use engine::host::{Attached, PathConfig, PathKind, Recovery, VolumeConfig};
use runtime::{Device, FileDevice, MemoryDevice, NOWHERE, PassthroughDevice, QueueDevice};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::Instant;
use terminal::log;

/// One volume.
#[derive(Clone, Debug)]
pub struct VolumePlan {
    /// Name, in messages.
    pub name: String,
    /// Policy.
    pub policy: policy::Policy,
    /// Its knobs.
    pub knobs: policy::Knobs,
    /// Paths.
    pub paths: Vec<PathKeys>,
    /// How files and block devices are opened.
    pub access: FileAccess,
    /// As of [`QueueDevice::with_quiesce`].
    pub quiesce_ns: u64,
}

/// How a file or block device is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAccess {
    /// To be read.
    ReadOnly,
    /// Others may write it too.
    Shared,
    /// No other process writes it (T48), or it is only read where the kernel protects it.
    Sole,
    /// The same of a leg: it has to be written, and is never shorter than it was.
    Alone,
}

/// Description of the paths for the reactors.
#[derive(Default)]
pub struct Resources {
    /// Addresses that `PathKind::NvmeTcp` refers to.
    pub addresses: Vec<SocketAddr>,
    /// Devices that `PathKind::Device` refers to.
    pub devices: Vec<Device>,
    /// Known facts of each path's destination.
    pub known: Vec<Known>,
    /// Names that are not resolved by then leave their paths without an address; `None`: they are
    /// an error, as where a measurement is made.
    pub patience: Option<Instant>,
}

/// Known facts of a path's destination.
pub struct Known {
    /// The path's.
    pub uri: String,
    /// Under which number the reactors know it.
    pub number: u16,
    /// Its kind.
    pub what: What,
}

impl Known {
    /// Whether its number is a device's, not an address's.
    pub fn is_device(&self) -> bool {
        !matches!(self.what, What::Port(_))
    }
}

/// Where a path over TCP leads.
#[derive(Clone, Debug)]
pub struct Place {
    /// As it is written.
    pub tcp: NvmeTcp,
    /// The address in use; `None`: its name was not resolved yet.
    pub address: Option<SocketAddr>,
    /// All that its name stands for.
    pub all: Vec<SocketAddr>,
    /// Why its name can't be resolved now, or is not followed.
    pub why: Option<String>,
    /// While it is being looked up.
    pub look_up: Option<LookUp>,
    /// Addresses that the log named since the path was lost, or its name changed.
    pub logged: Vec<SocketAddr>,
    /// No other place has it, also not of the same URI: numbers of addresses are used again.
    pub generation: u64,
}

/// A look-up of a path's name that is under way.
#[derive(Clone, Debug)]
pub struct LookUp {
    /// The path was lost again since it began.
    pub lost_again: bool,
    /// Told whenever the path begins to wait for another attempt.
    pub waits: SyncSender<()>,
}

impl Place {
    /// A new path's.
    pub fn new(tcp: &NvmeTcp, found: anyhow::Result<Found>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (address, all, why) = match found {
            Ok(found) => (Some(found.address), found.all, None),
            Err(why) => (None, Vec::new(), Some(format!("{why:#}"))),
        };
        Self {
            tcp: tcp.clone(),
            address,
            all,
            why,
            look_up: None,
            logged: Vec::new(),
            generation: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }
}

/// See [`Known`].
pub enum What {
    /// A port of a subsystem.
    Port(Place),
    /// A queue server's namespace.
    Queue(Arc<QueueDevice>),
    /// A file.
    File(Arc<FileDevice>),
    /// Another device.
    Device,
}

impl Resources {
    /// Opens or resolves what the paths of a volume lead to.
    ///
    /// # Errors
    /// A name or file that can't be; with its URI.
    pub fn volume(&mut self, plan: &VolumePlan) -> anyhow::Result<VolumeConfig> {
        let path = |keys| self.path_of(keys, plan);
        Ok(VolumeConfig {
            name: plan.name.clone(),
            policy: plan.policy,
            knobs: plan.knobs,
            paths: plan.paths.iter().map(path).collect::<anyhow::Result<_>>()?,
            recovery: Recovery::NONE, // a measurement shows every error
        })
    }

    /// Opens or resolves what one path of a volume leads to.
    ///
    /// # Errors
    /// A name or file that can't be, with its URI; then nothing is known of it.
    pub fn path_of(&mut self, keys: &PathKeys, plan: &VolumePlan) -> anyhow::Result<PathConfig> {
        let uri = &keys.uri;
        let kind = self.path(uri, plan).with_context(|| uri.to_string())?;
        Ok(PathConfig {
            uri: uri.to_string(),
            kind,
            distance: keys.distance,
            throughput: keys.throughput,
            numbers: PathConfig::ANY_NUMBER,
        })
    }

    fn path(&mut self, uri: &PathUri, plan: &VolumePlan) -> anyhow::Result<PathKind> {
        let end = match (uri.kind(), self.patience) {
            // Without a name there is nothing to wait for: an address that can't be is an error.
            (UriKind::NvmeTcp(tcp), Some(until)) if tcp.is_named() => {
                let wait = until.saturating_duration_since(Instant::now());
                let place = Place::new(tcp, tcp.find_within(Start::default(), wait));
                if let Some(why) = &place.why {
                    log::say(format!(
                        "{}: path {uri}: waits for its name: {why}; it is tried again",
                        plan.name
                    ));
                }
                End::Port(place)
            }
            _ => End::of(uri, plan.access, plan.quiesce_ns)?,
        };
        let number = match &end {
            End::Port(_) => self.addresses.len(),
            End::Passthrough(_) | End::Device { .. } => self.devices.len(),
        };
        let number = u16::try_from(number).context("too many paths")?;
        let kind = end.kind(number);
        self.known.push(Known {
            uri: uri.to_string(),
            number,
            what: end.what(),
        });
        if let End::Port(place) = &end {
            self.addresses.push(place.address.unwrap_or(NOWHERE));
        }
        self.devices.extend(end.device());
        Ok(kind)
    }
}

/// Where a path leads: resolved, or opened.
pub enum End {
    /// A port of a subsystem.
    Port(Place),
    /// A namespace that the kernel drives.
    Passthrough(Arc<PassthroughDevice>),
    /// A local device.
    Device {
        /// It.
        device: Device,
        /// Its size.
        bytes: u64,
        /// log2 of its block size.
        block_shift: u8,
        /// Identity that it shows.
        identity: Option<Box<multipath::Namespace>>,
    },
}

impl End {
    /// Resolves or opens it; `quiesce_ns`: as of [`QueueDevice::with_quiesce`].
    ///
    /// # Errors
    /// A name or file that can't be.
    pub fn of(uri: &PathUri, access: FileAccess, quiesce_ns: u64) -> anyhow::Result<Self> {
        let (device, bytes, block_shift) = match uri.kind() {
            UriKind::NvmeTcp(tcp) => {
                return Ok(Self::Port(Place::new(tcp, Ok(tcp.resolve()?))));
            }
            UriKind::NvmeNg(NvmeNg { device, poll }) => {
                let read_only = match access {
                    FileAccess::Alone => bail!("nobody can have a kernel's namespace alone"),
                    access => access == FileAccess::ReadOnly,
                };
                let opened = PassthroughDevice::open(device.clone(), read_only, *poll)?;
                return Ok(Self::Passthrough(Arc::new(opened)));
            }
            UriKind::File(path) => {
                file(path, access).map_err(|error| holder::named(error, path, access))?
            }
            UriKind::Memory(bytes) => (
                Device::Memory(Arc::new(MemoryDevice::new(*bytes)?)),
                *bytes,
                9,
            ),
            UriKind::Null(bytes) => (Device::Null, *bytes, 9),
            UriKind::Queue { socket, nsid } => return Self::queue(socket, *nsid, quiesce_ns),
        };
        Ok(Self::Device {
            device,
            bytes,
            block_shift,
            identity: None,
        })
    }

    fn queue(socket: &Path, nsid: u32, quiesce_ns: u64) -> anyhow::Result<Self> {
        let queue = QueueDevice::open(socket.to_owned(), nsid)?.with_quiesce(quiesce_ns);
        let identity = queue.identity().map(|shown| {
            Box::new(multipath::Namespace {
                subsystem: shown.subsystem.clone(),
                controller: shown.controller,
                nsid,
                nguid: shown.nguid,
                eui64: [0; 8],
                uuid: shown.uuid,
                command_set: 0,
                shared: true,
            })
        });
        Ok(Self::Device {
            bytes: queue.bytes(),
            block_shift: queue.block_shift(),
            identity,
            device: Device::Queue(Arc::new(queue)),
        })
    }

    /// Its number among the reactors' devices; none is an address.
    pub fn device(&self) -> Option<Device> {
        match self {
            Self::Port(_) => None,
            Self::Passthrough(opened) => Some(Device::Passthrough(Arc::clone(opened))),
            Self::Device { device, .. } => Some(device.clone()),
        }
    }

    /// Kind of the destination.
    pub fn what(&self) -> What {
        match self {
            Self::Port(place) => What::Port(place.clone()),
            Self::Device {
                device: Device::Queue(queue),
                ..
            } => What::Queue(Arc::clone(queue)),
            Self::Device {
                device: Device::File(file),
                ..
            } => What::File(Arc::clone(file)),
            Self::Passthrough(_) | Self::Device { .. } => What::Device,
        }
    }

    /// Its name in the engine, under this number of the reactors' addresses or devices.
    pub fn kind(&self, number: u16) -> PathKind {
        match self {
            Self::Port(place) => PathKind::NvmeTcp {
                address: number.into(),
                subsystem: place.tcp.subsystem.clone(),
                nsid: place.tcp.nsid,
            },
            Self::Passthrough(opened) => PathKind::Passthrough {
                device: LocalDevice(number),
                facts: Box::new(Attached {
                    controller: opened.controller().clone(),
                    namespace: opened.namespace().clone(),
                }),
            },
            Self::Device {
                device,
                bytes,
                block_shift,
                identity,
            } => PathKind::Device {
                device: LocalDevice(number),
                bytes: *bytes,
                block_shift: *block_shift,
                identity: identity.clone(),
                read_only: match device {
                    Device::File(file) => file.read_only(),
                    _ => false,
                },
                deallocate_zeroes: match device {
                    Device::File(file) => file.deallocate_zeroes(),
                    Device::Memory(_) | Device::Null => true,
                    Device::Passthrough(_) | Device::Queue(_) => false,
                },
                hole_bytes: match device {
                    Device::File(file) => file.hole_bytes(),
                    Device::Memory(_) => 4096,
                    Device::Null | Device::Passthrough(_) | Device::Queue(_) => 0,
                },
            },
        }
    }
}

fn file(path: &Path, access: FileAccess) -> anyhow::Result<(Device, u64, u8)> {
    let file = match access {
        FileAccess::Alone => FileDevice::open_alone(path.to_owned())?,
        FileAccess::Sole => FileDevice::open_sole(path.to_owned())?,
        other => FileDevice::open(path.to_owned(), other == FileAccess::ReadOnly, None)?,
    };
    if matches!(access, FileAccess::Shared | FileAccess::Sole) {
        holder::warn_of_leg(path);
    }
    let (bytes, block_shift) = (file.bytes(), file.block_shift());
    Ok((Device::File(Arc::new(file)), bytes, block_shift))
}
