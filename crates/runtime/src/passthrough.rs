//! A namespace of a controller that the kernel drives, by its character device (`/dev/ngXnY`):
//! opening it, what it is, and what the ends of commands mean.
//!
//! # Contract
//! Identify, when it is opened, says what it is, with the checks of any other path. A controller
//! that the kernel has removed is ENODEV for every later command; the device file that comes back
//! is another one, so it has to be opened anew.
//!
//! A command that the kernel ends because it gives a controller up (EINTR, or status 3h) may have
//! been executed. On PCIe it ends nothing before the controller was stopped, so a write may then be
//! repeated elsewhere. On fabrics it has no such proof (T9): there, changes of data end as if the
//! medium had failed, and are repeated nowhere.
//!
//! # Limits
//! Where native multipath is on, one device file stands for all controllers of a shared namespace,
//! and the kernel chooses among them: with more than one it is refused, because a Flush reaches the
//! cache of one only. Controllers that come later are not noticed.
use crate::RuntimeError;
use engine::machine::{DeviceError, DeviceOp, DeviceRequest};
use nvme::host::{ControllerInfo, NamespaceInfo, learn};
use nvme::wire::Status;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use sys::Reaping;

/// Largest transfer where the kernel doesn't tell its own limit.
const TRANSFER_DEFAULT: u32 = 128 << 10;
/// Transports whose controllers are stopped before the kernel ends their commands.
const STOPPED_FIRST: [&str; 2] = ["pcie", "apple-nvme"];

/// The character device of a namespace, opened.
#[derive(Debug)]
pub struct PassthroughDevice {
    fd: OwnedFd,
    path: PathBuf,
    read_only: bool,
    reaping: Reaping,
    stopped_first: bool,
    /// Of its block device, in sysfs; `None`: it has none.
    disk: Option<PathBuf>,
    controller: ControllerInfo,
    namespace: NamespaceInfo,
}

/// Sysfs attributes of a namespace's device file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    /// Of each of its controllers.
    transports: Vec<String>,
    /// Largest transfer of the kernel, bytes.
    transfer_max: u32,
    /// It has queues that are polled.
    polls: bool,
    /// Its block device's directory.
    disk: Option<PathBuf>,
}

impl PassthroughDevice {
    /// Opens `path` and learns what it is. `poll`: completions are polled.
    ///
    /// # Errors
    /// [`RuntimeError::Open`]: missing, not permitted. [`RuntimeError::Passthrough`]: no
    /// namespace's character device; the kernel lacks what is needed; the namespace can't be used.
    pub fn open(path: PathBuf, read_only: bool, poll: bool) -> Result<Self, RuntimeError> {
        let access = match read_only {
            true => OFlags::RDONLY,
            false => OFlags::RDWR,
        };
        let fd = rustix::fs::open(&path, access | OFlags::CLOEXEC, Mode::empty());
        let fd = fd.map_err(|source| open_error(&path, read_only, source))?;
        let reaping = match poll {
            true => Reaping::Poll,
            false => Reaping::Interrupt,
        };
        match learn_all(&fd, reaping) {
            Ok((known, controller, namespace)) => Ok(Self {
                stopped_first: known.stopped_first(),
                disk: known.disk.clone(),
                controller: ControllerInfo {
                    transfer_max: Some(
                        controller
                            .transfer_max
                            .map_or(known.transfer_max, |most| most.min(known.transfer_max)),
                    ),
                    ..controller
                },
                fd,
                path,
                read_only,
                reaping,
                namespace,
            }),
            Err(reason) => Err(RuntimeError::Passthrough { path, reason }),
        }
    }

    /// Its controller.
    pub fn controller(&self) -> &ControllerInfo {
        &self.controller
    }

    /// Its namespace.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// As it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether writing was not asked for.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// How completions are learnt of.
    pub fn reaping(&self) -> Reaping {
        self.reaping
    }

    /// Another descriptor of the same device.
    ///
    /// # Errors
    /// [`RuntimeError::File`]: EMFILE, ENFILE.
    pub fn try_clone(&self) -> Result<OwnedFd, RuntimeError> {
        let cloned = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0);
        cloned.map_err(|source| RuntimeError::File {
            path: self.path.clone(),
            operation: "duplicate the descriptor of",
            source: source.into(),
        })
    }

    /// Interprets the end of a request's command.
    pub(crate) fn ended(
        &self,
        result: Result<u32, Errno>,
        request: &DeviceRequest,
    ) -> Result<(), DeviceError> {
        let lingers = request.op.is_change() && !self.stopped_first;
        let end = ended(result, lingers);
        let end = if self.stopped_first {
            end
        } else {
            on_fabrics(end, request.op)
        };
        match end {
            Err(DeviceError::Nvme(status)) if may_mean_range(status) && !self.covers(request) => {
                Err(DeviceError::Nvme(Status::LBA_RANGE.with_dnr()))
            }
            end => end,
        }
    }

    /// Whether a request lies within the namespace as the kernel knows it now.
    fn covers(&self, request: &DeviceRequest) -> bool {
        let namespace = &self.namespace;
        let opened = namespace.blocks << namespace.block_shift.min(63);
        let bytes = self.disk.as_deref().and_then(bytes_of);
        lies_within(request, bytes.unwrap_or(opened))
    }
}

/// Whether nvmet says this, among other things, of a range behind the end: Internal Error where it
/// serves a block device, Capacity Exceeded (of reads too) where it serves a file.
fn may_mean_range(status: Status) -> bool {
    let of_range = [Status::INTERNAL_ERROR, Status::CAPACITY_EXCEEDED];
    status.dnr() && of_range.iter().any(|&it| status.is(it))
}

fn lies_within(request: &DeviceRequest, bytes: u64) -> bool {
    let end = request.offset.checked_add(request.length);
    request.op == DeviceOp::Flush || end.is_some_and(|end| end <= bytes)
}

/// Size of a block device by its directory in sysfs, bytes.
fn bytes_of(disk: &Path) -> Option<u64> {
    let text = fs::read_to_string(disk.join("size")).ok()?;
    let sectors: u64 = text.trim().parse().ok()?;
    sectors.checked_mul(512)
}

/// Interprets the end of a command whose data passed a network. The kernel's host ends a
/// command whose data arrived damaged (data digest) with Invalid Field. Our fields are valid, and a
/// controller that says otherwise forbids to repeat it: so the transfer has failed.
fn on_fabrics(end: Result<(), DeviceError>, op: DeviceOp) -> Result<(), DeviceError> {
    let arrives = matches!(op, DeviceOp::Read | DeviceOp::Compare);
    match end {
        Err(DeviceError::Nvme(status))
            if arrives && status.is(Status::INVALID_FIELD) && !status.dnr() =>
        {
            Err(DeviceError::Nvme(Status::TRANSIENT_TRANSPORT))
        }
        end => end,
    }
}

impl Known {
    fn stopped_first(&self) -> bool {
        let mut transports = self.transports.iter();
        transports.all(|it| STOPPED_FIRST.contains(&it.as_str()))
    }
}

/// As [`PassthroughDevice::ended`]; `lingers`: it may yet be executed, and must not be repeated.
fn ended(result: Result<u32, Errno>, lingers: bool) -> Result<(), DeviceError> {
    let given_up = |status: Status| match lingers {
        true => DeviceError::Os(Errno::IO.raw_os_error()),
        false => DeviceError::Nvme(status),
    };
    Err(match result {
        Ok(0) => return Ok(()),
        Ok(status) => {
            let status = Status(status as u16 & 0x7fff);
            let by_host = status.is(Status::HOST_ABORTED) || status.is(Status::HOST_PATH);
            match by_host {
                true => given_up(status),
                false => DeviceError::Nvme(status),
            }
        }
        Err(Errno::INTR | Errno::IO) => given_up(Status::HOST_ABORTED),
        Err(Errno::PERM | Errno::ACCESS) => DeviceError::Nvme(Status::ACCESS_DENIED),
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => DeviceError::Unsupported,
        Err(error) => DeviceError::Os(error.raw_os_error()),
    })
}

/// Identifies a device file, or says why it can't be a path.
fn learn_all(
    fd: &OwnedFd,
    reaping: Reaping,
) -> Result<(Known, ControllerInfo, NamespaceInfo), String> {
    let failed = |what: &str, source: Errno| format!("{what}: {source}");
    let stat = rustix::fs::fstat(fd).map_err(|source| failed("fstat", source))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => {}
        FileType::BlockDevice => {
            return Err(
                "it is a block device: name the character device of the namespace \
                        (/dev/ngXnY), or write file: for this one"
                    .to_owned(),
            );
        }
        _ => return Err("it is no device: name /dev/ngXnY".to_owned()),
    }
    let nsid = sys::nvme::namespace_id(fd).map_err(|source| match source {
        Errno::NOTTY | Errno::INVAL | Errno::OPNOTSUPP => {
            "it isn't the character device of an NVMe namespace: name /dev/ngXnY (/dev/nvmeX is a \
             controller; `nvme list -v` shows what there is)"
                .to_owned()
        }
        source => failed("ask for its NSID", source),
    })?;
    sys::probe_commands(reaping).map_err(|error| match error.source {
        Errno::OPNOTSUPP | Errno::INVAL => format!(
            "this kernel has no {}: Linux 5.19 has (6.1 with polling); until then write \
             file:/dev/nvmeXnY",
            error.operation
        ),
        source => failed(error.operation, source),
    })?;
    let (major, minor) = (
        rustix::fs::major(stat.st_rdev),
        rustix::fs::minor(stat.st_rdev),
    );
    let known = Known::read(Path::new("/sys"), major, minor)?;
    let mut ask = |cns, nsid| -> Result<_, String> {
        let answer = sys::nvme::identify(fd, cns, nsid).map_err(|source| match source {
            Errno::ACCESS | Errno::PERM => {
                "not permitted to identify it: run as root, or with CAP_SYS_ADMIN".to_owned()
            }
            Errno::NODEV => "its controller is gone".to_owned(),
            source => failed("Identify", source),
        })?;
        Ok(answer.map_err(|status| Status(status & 0x7fff)))
    };
    let (controller, namespace) = learn(nsid, &mut ask).map_err(|error| error.to_string())?;
    if reaping == Reaping::Poll && !known.polls {
        tracing::warn!(
            "namespace {nsid} of {}: the kernel has no queues to poll, so its interrupts are \
             waited for by polling; load the driver with nvme.poll_queues=1 or more",
            controller.subnqn
        );
    }
    Ok((known, controller, namespace))
}

impl Known {
    /// Reads it below `sys`, by the numbers of the character device.
    fn read(sys: &Path, major: u32, minor: u32) -> Result<Self, String> {
        let own = sys.join(format!("dev/char/{major}:{minor}"));
        let parent = own.join("device");
        let mut transports: Vec<String> = transport(&parent).into_iter().collect();
        if transports.is_empty() {
            // Native multipath: the namespace belongs to the subsystem.
            let entries = fs::read_dir(&parent)
                .map_err(|error| format!("{}: {error}; is /sys mounted?", parent.display()))?;
            let found = entries.filter_map(|entry| transport(&entry.ok()?.path()));
            transports.extend(found);
        }
        match transports.len() {
            0 => return Err(format!("{}: it has no controller", parent.display())),
            1 => {}
            n => {
                return Err(format!(
                    "native multipath has {n} controllers behind it, and chooses among them by \
                     itself; for a path each, start the kernel with nvme_core.multipath=N"
                ));
            }
        }
        let name = own.canonicalize().ok();
        let name = name.as_deref().and_then(Path::file_name);
        let name = name.and_then(|name| name.to_str()).unwrap_or_default();
        let disk = name.replacen("ng", "nvme", 1);
        let disk = sys.join("block").join(disk);
        let queue = disk.join("queue");
        let number = |key: &str| -> Option<u32> {
            let text = fs::read_to_string(queue.join(key)).ok()?;
            text.trim().parse().ok()
        };
        let by_bytes = number("max_hw_sectors_kb").map(|kib| kib.saturating_mul(1024));
        // Pages that lie apart are a segment each.
        let by_pages = number("max_segments").map(|segments| segments.saturating_mul(4096));
        let known = by_bytes.into_iter().chain(by_pages).min();
        Ok(Self {
            transports,
            transfer_max: known.unwrap_or(TRANSFER_DEFAULT).max(4096),
            polls: number("io_poll") == Some(1),
            disk: disk.join("size").exists().then_some(disk),
        })
    }
}

/// The transport of a controller, by its directory.
fn transport(controller: &Path) -> Option<String> {
    let text = fs::read_to_string(controller.join("transport")).ok()?;
    Some(text.trim().to_owned())
}

fn open_error(path: &Path, read_only: bool, source: Errno) -> RuntimeError {
    let advice = match source {
        Errno::NOENT => "there is none: `nvme list -v` shows the devices there are",
        Errno::NXIO | Errno::NODEV => "its controller is gone",
        Errno::ACCESS | Errno::PERM => "run as root, or with CAP_SYS_ADMIN and its permissions",
        Errno::ISDIR => "it is a directory; name /dev/ngXnY",
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (ulimit -n)",
        _ => "see the source",
    };
    RuntimeError::Open {
        path: path.to_owned(),
        read_only,
        source: source.into(),
        advice,
    }
}

#[cfg(test)]
mod tests;
