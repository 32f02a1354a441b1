//! One loop per core: turns a machine's outputs into system calls and their results into its events.
//! Safe code; everything unsafe is behind `sys`.
#![forbid(unsafe_code)]

use engine::Machine;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

/// A block device in this process or below it.
#[derive(Clone, Debug)]
pub enum Device {
    /// Bytes in memory (shared between cores).
    Memory(Arc<MemoryDevice>),
    /// Swallows writes, reads zeroes. For measuring.
    Null,
    /// A file or block device.
    File(Arc<FileDevice>),
}

/// Memory as a device.
#[derive(Debug)]
pub struct MemoryDevice {
    _todo: (),
}

impl MemoryDevice {
    /// `bytes` of zeroes, committed as they are written.
    pub fn new(bytes: u64) -> Result<Self, RuntimeError> {
        let _ = bytes;
        todo!()
    }
}

/// A file or block device, opened.
#[derive(Debug)]
pub struct FileDevice {
    _todo: (),
}

impl FileDevice {
    /// Opens `path` with O_DIRECT where the file system can. `create`: make a sparse file of that many bytes if there is none.
    pub fn open(
        path: PathBuf,
        read_only: bool,
        create: Option<u64>,
    ) -> Result<Self, RuntimeError> {
        let _ = (path, read_only, create);
        todo!()
    }
    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        todo!()
    }
    /// log2 of the logical block size (9 for files that need no more).
    pub fn block_shift(&self) -> u8 {
        todo!()
    }
    /// Whether O_DIRECT is in force.
    pub fn direct(&self) -> bool {
        todo!()
    }
}

/// What went wrong at the kernel's edge: an operation, its object, the source, what to do.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// To be completed by the owner of this crate.
    #[error("{0}")]
    Todo(String),
}

/// How to run one reactor.
pub struct ReactorConfig {
    /// Thread name.
    pub name: String,
    /// Pin to this CPU.
    pub cpu: Option<usize>,
    /// Never sleep.
    pub spin: bool,
    /// Arena bytes (address space; memory is used as it is touched).
    pub arena_bytes: u64,
    /// What `Output::Open` refers to.
    pub addresses: Vec<SocketAddr>,
    /// Listeners, already bound.
    pub listeners: Vec<TcpListener>,
    /// Devices by number.
    pub devices: Vec<Device>,
}

/// What a reactor counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReactorStats {
    /// Loop turns.
    pub turns: u64,
    /// io_uring_enter calls.
    pub enters: u64,
    /// Times it slept and was woken.
    pub wakeups: u64,
    /// Receive operations that ended.
    pub receives: u64,
    /// Send operations that ended.
    pub sends: u64,
    /// Payload bytes copied from the receive buffers.
    pub bytes_copied_in: u64,
    /// Payload bytes received directly into place.
    pub bytes_direct_in: u64,
    /// Payload bytes copied into the send buffers.
    pub bytes_copied_out: u64,
    /// Payload bytes sent from where they lie.
    pub bytes_direct_out: u64,
}

/// A running reactor.
pub struct Handle<M: Machine> {
    _todo: std::marker::PhantomData<M>,
}

/// Sends messages to a reactor from any thread; wakes it. Cloneable.
pub struct Sender<C> {
    _todo: std::marker::PhantomData<C>,
}

#[allow(missing_docs, unused_variables)]
impl<C: Send> Sender<C> {
    /// False if the reactor is gone.
    pub fn send(&self, message: C) -> bool {
        todo!()
    }
}

/// Starts a reactor thread. Errors of the set-up (io_uring disabled, limits too low) come back from here.
pub fn spawn<M>(config: ReactorConfig, machine: M) -> Result<Handle<M>, RuntimeError>
where
    M: Machine + Send + 'static,
    M::Control: Send + 'static,
{
    let _ = (config, machine);
    todo!()
}

#[allow(missing_docs)]
impl<M: Machine> Handle<M> {
    pub fn sender(&self) -> Sender<M::Control> {
        todo!()
    }
    /// Waits for `Output::Stop` (or a fatal error); returns the machine for its final figures.
    pub fn join(self) -> Result<(M, ReactorStats), RuntimeError> {
        todo!()
    }
}

/// Nanoseconds of the one monotonic clock (T42).
pub fn now_ns() -> u64 {
    todo!()
}
