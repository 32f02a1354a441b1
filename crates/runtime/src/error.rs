//! Errors at the kernel's edge: each names the failed operation, its object and the remedy; its
//! source gives the reason.
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Error at the kernel's edge: an operation, its object, the source, the remedy.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A queue of a queue server can't be had.
    #[error("cannot use the queue server on {}{}", socket.display(), source.advice())]
    Queue {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        source: queue::Error,
    },
    /// io_uring can't be set up.
    #[error("cannot set up io_uring for {name} ({operation}): {advice}")]
    Ring {
        /// The reactor.
        name: String,
        /// The failed operation.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
        /// The remedy.
        advice: &'static str,
    },
    /// Memory can't be had.
    #[error(
        "cannot reserve {bytes} bytes for {object}: make it smaller, or raise the limit of address \
         space (ulimit -v, vm.overcommit_memory)"
    )]
    Memory {
        /// The object it was for.
        object: &'static str,
        /// How much.
        bytes: u64,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread can't be started.
    #[error("cannot start thread {name}: check the limit of processes (ulimit -u, pids.max)")]
    Thread {
        /// Its name.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A thread can't be pinned.
    #[error("cannot pin {name} to CPU {cpu}: use one that this process may run on ({allowed:?})")]
    Pin {
        /// The thread.
        name: String,
        /// The CPU asked for.
        cpu: usize,
        /// CPUs that are allowed.
        allowed: Vec<usize>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A descriptor can't be had.
    #[error("cannot create {object} for {name}: raise the limit of open files (ulimit -n)")]
    Descriptor {
        /// The reactor.
        name: String,
        /// The object.
        object: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A listener isn't usable.
    #[error("cannot listen on {address:?} with {name}: bind it and leave it open")]
    Listener {
        /// The reactor.
        name: String,
        /// Its address, where it is known.
        address: Option<SocketAddr>,
        /// The kernel's answer.
        source: io::Error,
    },
    /// More asked of one reactor than it can.
    #[error("{name}: {value} {object} are too many: at most {limit}")]
    Limit {
        /// The reactor.
        name: String,
        /// Of what.
        object: &'static str,
        /// How many.
        value: u64,
        /// How many can be.
        limit: u64,
    },
    /// A file or device can't be opened.
    #[error("cannot open {} {}: {advice}", path.display(), purpose(*read_only))]
    Open {
        /// Which.
        path: PathBuf,
        /// Whether writing was not asked for.
        read_only: bool,
        /// The kernel's answer.
        source: io::Error,
        /// The remedy.
        advice: &'static str,
    },
    /// A file can't be used as a device.
    #[error("cannot use {} as a device: {reason}", path.display())]
    Device {
        /// Which.
        path: PathBuf,
        /// Why not, and what would be right.
        reason: &'static str,
    },
    /// A namespace's character device can't be a path.
    #[error("cannot use {} as a path: {reason}", path.display())]
    Passthrough {
        /// Which.
        path: PathBuf,
        /// Why not, and what would be right.
        reason: String,
    },
    /// Another opener uses it.
    #[error(
        "{} is in use: another process or volume {holder}; end that (lsof, or braid stat, shows \
         it), or use another file", path.display()
    )]
    InUse {
        /// Which.
        path: PathBuf,
        /// The use that the other process makes of it.
        holder: &'static str,
    },
    /// A file's properties can't be read or set.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The failed operation.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The loop can't go on.
    #[error("{name} stopped: io_uring_enter failed")]
    Loop {
        /// The reactor.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The machine panicked: a defect of this program.
    #[error("{name} panicked: {message}; this is a defect, please report it")]
    Panicked {
        /// The reactor.
        name: String,
        /// The message of the queue server.
        message: String,
    },
}

impl RuntimeError {
    /// Whether a file is in use by one who would share it.
    pub fn is_shared(&self) -> bool {
        matches!(self, Self::InUse { holder, .. } if *holder == crate::lock::SHARED)
    }

    /// The error of setting up the ring of `name`, with what to do about it.
    #[must_use]
    pub fn ring(name: &str, error: sys::Error) -> Self {
        Self::Ring {
            name: name.to_owned(),
            operation: error.operation,
            source: error.source.into(),
            advice: ring_advice(error.source, disabled()),
        }
    }
}

fn purpose(read_only: bool) -> &'static str {
    if read_only {
        "to read"
    } else {
        "to read and write"
    }
}

/// The system-wide switch: 0 allowed, 1 for one group and the administrator, 2 forbidden (Linux
/// 6.6).
fn disabled() -> Option<u8> {
    let text = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").ok()?;
    text.trim().parse().ok()
}

fn ring_advice(error: sys::Errno, disabled: Option<u8>) -> &'static str {
    use sys::Errno;
    match (error, disabled) {
        (Errno::PERM | Errno::ACCESS, Some(2)) => {
            "it is forbidden here: set the sysctl kernel.io_uring_disabled to 0"
        }
        (Errno::PERM | Errno::ACCESS, Some(1)) => {
            "it is restricted here: join the group of the sysctl kernel.io_uring_group, or set \
             kernel.io_uring_disabled to 0"
        }
        (Errno::PERM | Errno::ACCESS, _) => {
            "it is forbidden here: allow the io_uring system calls in the seccomp profile of the \
             container, or its security module"
        }
        (Errno::NOSYS, _) => {
            "this kernel or sandbox has none: use Linux 6.1 or newer, built with CONFIG_IO_URING, \
             and allow its system calls in the container"
        }
        (Errno::OPNOTSUPP | Errno::INVAL, _) => "use Linux 6.1 or newer",
        (Errno::MFILE | Errno::NFILE, _) => "raise the limit of open files (ulimit -n)",
        (Errno::NOMEM, _) => {
            "raise the limits of locked memory (ulimit -l) and of memory (ulimit -v, the cgroup's)"
        }
        _ => "the kernel refused it; see the source",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;
    use sys::Errno;

    #[test]
    fn each_refusal_of_io_uring_says_what_to_do() {
        for (error, disabled, word) in [
            (Errno::PERM, Some(2), "kernel.io_uring_disabled to 0"),
            (Errno::PERM, Some(1), "kernel.io_uring_group"),
            (Errno::PERM, Some(0), "seccomp"),
            (Errno::PERM, None, "seccomp"),
            (Errno::NOSYS, None, "6.1"),
            (Errno::OPNOTSUPP, Some(0), "6.1"),
            (Errno::MFILE, Some(0), "ulimit -n"),
            (Errno::NOMEM, Some(0), "ulimit -l"),
        ] {
            let advice = ring_advice(error, disabled);
            assert!(advice.contains(word), "{error} {disabled:?}: {advice}");
        }
    }

    #[test]
    fn an_error_names_its_object_and_keeps_its_source() {
        let source = sys::Error {
            operation: "io_uring_setup",
            source: Errno::MFILE,
        };
        let error = RuntimeError::ring("core-3", source);
        let text = error.to_string();
        assert!(
            text.contains("core-3") && text.contains("io_uring_setup"),
            "{text}"
        );
        assert!(error.source().is_some());
    }
}
