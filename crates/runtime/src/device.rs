//! Requests to devices: memory and volatile caches at once, files through the ring or by workers.
//!
//! # Contract
//! Results of memory and null devices wait in a list until the machine's next round. A file request
//! is one operation at a time: short ones continue. A range that the file system can't zero by
//! itself is written, also where it is to be deallocated and is known to read as zeroes then.
//! Ranges outside a memory device, and writes to a file opened read-only, end with an error. A
//! request to a namespace that the kernel drives is one command (`command`). The machine knows and
//! checks how much of a file is in use: it may be made longer at any time. Data behind the end of a
//! file was cut off by another process: reading or comparing it is an error, and the first time it
//! is logged with the file's name. A later write makes the file long again, and then the range
//! between reads as zeroes, which look like data. Of a file that is locked exclusively, nothing is
//! read or written there any more (`truncation_guard`).
//!
//! Changes of files start only before the time that the machine gives (T49). The ring reads the
//! clock directly before it submits a write, which is done without the kernel's workers or refused.
//! Refused writes, and all requests on file systems that block their submitter (T52), are executed
//! by the file's own threads (`blocking`), which read the clock as well. A late request is asked
//! about anew: the machine may have got more time meanwhile.
//!
//! # Limits
//! `FILE_OPERATIONS_MAX` on the ring and `COMPARES_MAX` comparing; more wait here. A device with as
//! many compares as are left for all gets no more, so one that hangs leaves some to the others.
//! How many there are in all is bounded by the machine, which has one buffer for each.
use crate::command::Commands;
use crate::lent::LentReads;
use crate::limits::{COMPARE_BYTES, COMPARES_MAX, DIRECT_MIN, FILE_OPERATIONS_MAX, ZEROES_BYTES};
use crate::mailbox::Wake;
use crate::memory::MemoryDevice;
use crate::queues::QueueBackend;
use crate::reactor::{Reactor, Tag};
use crate::truncation_guard::Looked;
use crate::workers::NO_THREAD;
use crate::{Device, FileDevice, PassthroughDevice, QueueDevice, RuntimeError, volatile};
use block::SlotMap;
use blocking::Inbox;
use engine::Machine;
use engine::machine::{DeviceError, DeviceExtent, DeviceOp, DeviceRequest, LocalDevice};
use nvme::wire::Status;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use sys::{Allocate, Errno, Extent, Fd, LATE, Ring, WriteHow, os};

mod blocking;
mod cut;
mod extents;
mod queues;

/// Arena behind the machine's part: zeroes to write, and room to compare in.
pub(crate) const SCRATCH_BYTES: u64 =
    ZEROES_BYTES as u64 + COMPARE_BYTES as u64 * COMPARES_MAX as u64 + 4096;

pub(crate) type Done = (u32, Result<(), DeviceError>);

/// No device has that number (ENXIO).
const GONE: DeviceError = DeviceError::Os(6);
/// Nothing is there to be read.
const CUT_SHORT: DeviceError = DeviceError::CutShort;

/// The kernel's NVMe host ends a read whose data arrived damaged with Invalid Field, and its block
/// layer makes "not supported" of that. No disk refuses to be read or written as such.
const IN_TRANSIT: DeviceError = DeviceError::Nvme(Status::TRANSIENT_TRANSPORT);

/// A device on its way to a reactor; a file with a descriptor for that one alone.
#[derive(Debug)]
pub(crate) enum Opened {
    Memory(Arc<MemoryDevice>),
    Null,
    File(Arc<FileDevice>, Option<OwnedFd>),
    Passthrough(Arc<PassthroughDevice>, OwnedFd),
    Queue(Arc<QueueDevice>, Box<queue::Queue>),
}

impl Opened {
    /// Of a file.
    pub(crate) fn path(&self) -> Option<String> {
        match self {
            Self::File(file, _) => Some(file.path().display().to_string()),
            _ => None,
        }
    }

    pub(crate) fn new(device: &Device) -> Result<Self, RuntimeError> {
        Ok(match device {
            Device::Memory(memory) => Self::Memory(Arc::clone(memory)),
            Device::Null => Self::Null,
            Device::File(file) => {
                let own = Some(file).filter(|file| !file.blocks());
                Self::File(Arc::clone(file), own.map(|it| it.try_clone()).transpose()?)
            }
            Device::Passthrough(it) => Self::Passthrough(Arc::clone(it), it.try_clone()?),
            Device::Queue(queue) => Self::Queue(Arc::clone(queue), Box::new(queue.queue()?)),
        })
    }
}

pub(crate) enum Backend {
    /// No device has this number.
    Nothing,
    Memory(Arc<MemoryDevice>),
    Null,
    /// It has a volatile cache.
    Volatile(Arc<FileDevice>),
    File {
        /// `None`: its file system may block, so workers make all its system calls.
        file: Option<Fd>,
        /// The file can't write without waiting: its workers write.
        waits: bool,
        read_only: bool,
        block_bytes: u32,
        /// It keeps the claim to a block device.
        device: Arc<FileDevice>,
        /// It was logged that the file is too short.
        told: bool,
        looked: Looked,
    },
    Passthrough(Fd, Arc<PassthroughDevice>),
    Queue(Box<QueueBackend>),
}

/// The current operation of a file request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Read,
    Write {
        durable: bool,
    },
    Sync,
    Allocate(Allocate),
    /// Writing zeroes, because nothing else worked.
    Zeroes,
    /// Reading into a piece of scratch memory, once there is one.
    Compare(Option<Extent>),
}

/// A request to a file.
#[derive(Clone, Copy)]
struct FileRequest {
    request: DeviceRequest,
    extent: Extent,
    step: Step,
    /// Bytes done.
    done: u64,
    block_bytes: u32,
    /// The requester relies on zeroes.
    zeroes: bool,
    /// Of a change: it starts before this time, or not at all.
    before_ns: u64,
    /// Workers do it; it has no place on the ring.
    by_workers: bool,
}

/// Compares of one device.
#[derive(Default)]
struct Compares {
    /// Those that have scratch memory.
    out: usize,
    /// Those that wait for some.
    waiting: VecDeque<u32>,
}

/// Next step after an operation.
enum Progress {
    Next,
    Done(Result<(), DeviceError>),
}

/// A core's devices and their requests in flight.
pub(crate) struct Devices {
    pub(crate) backends: Vec<Backend>,
    /// Which of them are queues.
    queues: Vec<usize>,
    /// Number of the next queue.
    serial: u32,
    pub(crate) results: Vec<Done>,
    /// Answers about holes, by the identifier of the question.
    pub(crate) extents: Vec<(u32, DeviceExtent)>,
    /// Files that we have alone and that became shorter, and where they ended.
    pub(crate) cuts: Vec<(LocalDevice, u64)>,
    /// When the sizes of such files are looked at next; `u64::MAX`: there are none.
    pub(crate) sizes_at_ns: u64,
    pub(crate) commands: Commands,
    pub(crate) lent: LentReads,
    requests: SlotMap<FileRequest>,
    waiting: VecDeque<u32>,
    /// By device.
    compares: BTreeMap<LocalDevice, Compares>,
    /// The device whose compare was started last.
    turn: LocalDevice,
    /// Requests on the ring.
    in_flight: usize,
    zeroes: Extent,
    scratch: Vec<Extent>,
    pub(crate) inbox: Arc<Inbox>,
}

/// Of a file.
pub(crate) fn path_of(device: &Device) -> Option<String> {
    match device {
        Device::File(file) => Some(file.path().display().to_string()),
        _ => None,
    }
}

pub(crate) fn device_number(device: LocalDevice) -> usize {
    usize::from(device.0)
}

impl Backend {
    /// Whether it is a file that we have alone, whose size is looked at.
    fn is_watched(&self) -> bool {
        matches!(self, Self::File { device, .. } if cut::is_looked_at(device))
    }

    fn new(opened: Opened, serial: &mut u32) -> Self {
        match opened {
            Opened::Queue(device, queue) => {
                *serial += 1;
                match QueueBackend::new(device, *queue, *serial) {
                    Ok(backend) => Self::Queue(Box::new(backend)),
                    Err(error) => {
                        tracing::error!("no descriptor for a queue: {error}");
                        Self::Nothing
                    }
                }
            }
            Opened::Memory(memory) => Self::Memory(memory),
            Opened::Null => Self::Null,
            Opened::File(device, _) if device.cache().is_some() => Self::Volatile(device),
            Opened::File(device, own) => Self::File {
                file: own.map(Fd::new),
                waits: false,
                read_only: device.read_only(),
                block_bytes: 1 << device.block_shift(),
                device,
                told: false,
                looked: Looked::default(),
            },
            Opened::Passthrough(device, own) => Self::Passthrough(Fd::new(own), device),
        }
    }
}

impl Devices {
    /// `arena_bytes`: where the scratch memory begins; `wake` is raised with ends of what workers
    /// do.
    pub(crate) fn new(
        devices: &[Device],
        arena_bytes: u64,
        wake: Arc<Wake>,
    ) -> Result<Self, RuntimeError> {
        let mut serial = 0;
        let mut backend =
            |device: &Device| Opened::new(device).map(|it| Backend::new(it, &mut serial));
        let zeroes = Extent::new(arena_bytes.next_multiple_of(4096), ZEROES_BYTES);
        let first = zeroes.at + u64::from(ZEROES_BYTES);
        let piece = |number| first + number as u64 * u64::from(COMPARE_BYTES);
        let backends = devices.iter().map(&mut backend);
        let backends: Vec<_> = backends.collect::<Result<_, _>>()?;
        let mut files = backends.iter();
        let sizes_at_ns = match files.any(Backend::is_watched) {
            true => 0,
            false => u64::MAX,
        };
        Ok(Self {
            queues: queues::of(&backends),
            backends,
            serial,
            results: Vec::with_capacity(FILE_OPERATIONS_MAX),
            extents: Vec::new(),
            cuts: Vec::new(),
            sizes_at_ns,
            commands: Commands::default(),
            lent: LentReads::default(),
            requests: SlotMap::new(FILE_OPERATIONS_MAX as u32),
            waiting: VecDeque::with_capacity(FILE_OPERATIONS_MAX),
            compares: BTreeMap::new(),
            turn: LocalDevice(0),
            in_flight: 0,
            inbox: Arc::new(Inbox::new(wake)),
            zeroes,
            scratch: (0..COMPARES_MAX)
                .map(|number| Extent::new(piece(number), COMPARE_BYTES))
                .collect(),
        })
    }

    /// Another device under a number that no request has.
    pub(crate) fn set(&mut self, ring: &mut Ring, device: LocalDevice, opened: Option<Opened>) {
        let at = device_number(device);
        // The numbers between are set before they are used.
        while self.backends.len() <= at {
            self.backends.push(Backend::Nothing);
        }
        debug_assert!(
            self.requests
                .iter()
                .all(|(_, it)| it.request.device != device),
            "device {at} is replaced while it has requests"
        );
        if let Backend::Queue(queue) = &mut self.backends[at] {
            queue.unwatch(ring, 3);
        }
        let serial = &mut self.serial;
        let backend = opened.map(|opened| Backend::new(opened, serial));
        self.backends[at] = backend.unwrap_or(Backend::Nothing);
        if self.backends[at].is_watched() {
            self.sizes_at_ns = 0;
        }
        self.queues = queues::of(&self.backends);
    }

    /// Requests to files that have not ended.
    pub(crate) fn under_way(&self) -> usize {
        self.requests.len() as usize
    }

    /// Whether the machine has results to hear of.
    pub(crate) fn has_results(&self) -> bool {
        !(self.results.is_empty() && self.cuts.is_empty() && self.extents.is_empty())
    }

    /// Whether nothing is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        let queues = self.queues.iter().all(|&at| match &self.backends[at] {
            Backend::Queue(queue) => queue.is_idle(),
            _ => true,
        });
        let files = self.under_way() == 0;
        files && queues && self.commands.is_idle() && self.results.is_empty()
    }

    /// Starts, or does, a request of the device numbered `device`; a change only before
    /// `before_ns`. `may_lend`: as `Machine::may_lend`.
    ///
    /// # Panics
    /// There is no such device, or the memory doesn't have the request's length.
    pub(crate) fn begin(
        &mut self,
        ring: &mut Ring,
        device: usize,
        request: &DeviceRequest,
        extent: Extent,
        (now_ns, before_ns): (u64, u64),
        may_lend: bool,
    ) {
        self.lent.forget(request.id);
        let has_data = matches!(
            request.op,
            DeviceOp::Read | DeviceOp::Write { .. } | DeviceOp::Compare
        );
        let fits = u64::from(extent.len) == request.length;
        assert!(
            !has_data || fits,
            "{request:?} has memory of another length"
        );
        let data = if has_data { extent } else { Extent::default() };
        if request.length == 0 && request.op != DeviceOp::Flush {
            return self.results.push((request.id, Ok(())));
        }
        let result = match &mut self.backends[device] {
            Backend::Nothing => Err(GONE),
            Backend::Null => null(ring, request.op, data),
            Backend::Passthrough(..) => {
                return self.begin_command(ring, request, data, before_ns);
            }
            Backend::Volatile(file) => volatile::execute(ring, file, request, data),
            Backend::Memory(memory) => within(request, memory.bytes()).and_then(|()| {
                if may_lend && data.len >= DIRECT_MIN {
                    assert_eq!(
                        request.op,
                        DeviceOp::Read,
                        "only data of a read may be lent"
                    );
                    let (id, offset, length) = (request.id, request.offset, request.length);
                    if self.lent.lend(id, memory, offset, length) {
                        return Ok(());
                    }
                }
                memorize(ring, memory, request, data)
            }),
            // The clock is read again: the process may have stood still (T49).
            Backend::Queue(_) if before_ns != u64::MAX && before_ns <= os::now_ns() => {
                Err(DeviceError::Lost)
            }
            Backend::Queue(queue) => {
                return queue.begin(ring, request, data, &mut self.results);
            }
            Backend::File {
                file,
                waits,
                read_only,
                block_bytes,
                device,
                looked,
                ..
            } => {
                let (read_only, block_bytes) = (*read_only, *block_bytes);
                let zeroes = match request.op {
                    DeviceOp::WriteZeroes { .. } => true,
                    // A mirror counts on it, and so do hosts of a target: it may not be refused.
                    DeviceOp::Deallocate => device.deallocated_reads_zero(),
                    _ => false,
                };
                let op = match request.op {
                    DeviceOp::WriteZeroes { deallocate } => DeviceOp::WriteZeroes {
                        deallocate: deallocate && device.may_lose_space(),
                    },
                    op => op,
                };
                let step = within(request, i64::MAX as u64).and_then(|()| step(op, read_only));
                let step = step.and_then(|it| cut::look(device, request, it, looked, now_ns));
                let news = cut::news(device, looked).map(|end| (request.device, end));
                self.cuts.extend(news);
                match step {
                    Ok(step) => {
                        let begun = FileRequest {
                            request: *request,
                            extent: data,
                            step,
                            done: 0,
                            block_bytes,
                            zeroes,
                            before_ns,
                            by_workers: file.is_none() || step.always_waits(*waits),
                        };
                        return self.enqueue(ring, begun);
                    }
                    Err(error) => Err(error),
                }
            }
        };
        self.results.push((request.id, result));
    }

    fn enqueue(&mut self, ring: &mut Ring, request: FileRequest) {
        let slot = self.requests.insert(request).index();
        if request.by_workers || self.in_flight < FILE_OPERATIONS_MAX {
            self.start(ring, slot);
        } else {
            self.waiting.push_back(slot);
        }
    }

    /// Starts a request for whose operation there is room. `false`: there is no scratch memory for
    /// it, and it waits for that.
    fn start(&mut self, ring: &mut Ring, slot: u32) -> bool {
        let request = &mut self.requests[slot];
        if let Step::Compare(scratch) = &mut request.step {
            let compares = self.compares.entry(request.request.device).or_default();
            if compares.out >= self.scratch.len() {
                compares.waiting.push_back(slot);
                return false;
            }
            *scratch = self.scratch.pop();
            compares.out += 1;
        }
        self.in_flight += usize::from(!request.by_workers);
        self.issue(ring, slot);
        true
    }

    /// Starts what waits, now that there is room for one operation more.
    fn start_next(&mut self, ring: &mut Ring) {
        while let Some(slot) = self.next_compare() {
            self.start(ring, slot);
        }
        while self.in_flight < FILE_OPERATIONS_MAX
            && let Some(slot) = self.waiting.pop_front()
        {
            if self.start(ring, slot) {
                return;
            }
        }
    }

    /// The next compare for which there is scratch memory, and room; devices in turn.
    fn next_compare(&mut self) -> Option<u32> {
        if self.scratch.is_empty() || self.in_flight >= FILE_OPERATIONS_MAX {
            return None;
        }
        let left = self.scratch.len();
        let may = |it: &(&LocalDevice, &Compares)| !it.1.waiting.is_empty() && it.1.out < left;
        let behind = (Bound::Excluded(self.turn), Bound::Unbounded);
        let next = self.compares.range(behind).find(may);
        let (&device, _) = next.or_else(|| self.compares.iter().find(may))?;
        self.turn = device;
        self.compares.get_mut(&device)?.waiting.pop_front()
    }

    /// The next operation of a request.
    fn issue(&mut self, ring: &mut Ring, slot: u32) {
        let FileRequest {
            request,
            extent,
            step,
            done,
            before_ns,
            by_workers,
            ..
        } = self.requests[slot];
        let Backend::File {
            file: Some(file), ..
        } = &self.backends[device_number(request.device)]
        else {
            return self.employ(ring, slot);
        };
        if by_workers {
            return self.employ(ring, slot);
        }
        let tag = Tag::File(slot).bits();
        let offset = request.offset + done;
        let left = request.length - done;
        let up_to = |most: u32| left.min(u64::from(most)) as u32;
        match step {
            Step::Read => {
                ring.read(file, extent.skip(done as u32), offset, tag);
            }
            Step::Write { durable } => {
                let how = WriteHow {
                    durable,
                    nowait: true,
                    before_ns,
                };
                ring.write(file, extent.skip(done as u32), offset, how, tag);
            }
            Step::Sync => {
                ring.sync_data(file, tag);
            }
            Step::Compare(scratch) => {
                // Extent 0 would be memory of another request.
                let Some(scratch) = scratch else {
                    unreachable!("a compare has been started without scratch memory");
                };
                let piece = Extent::new(scratch.at, up_to(scratch.len));
                ring.read(file, piece, offset, tag);
            }
            Step::Allocate(_) | Step::Zeroes => self.employ(ring, slot),
        }
    }

    /// An operation ended; the request's result if it was the last. `before_ns` says of a request
    /// before when it may start, as of now.
    pub(crate) fn handle(
        &mut self,
        ring: &mut Ring,
        slot: u32,
        result: Result<u32, Errno>,
        (now_ns, before_ns): (u64, impl Fn(u32) -> u64),
    ) -> Option<Done> {
        if self.is_refused(slot, result) {
            self.in_flight -= 1;
            self.employ(ring, slot);
            self.start_next(ring);
            return None;
        }
        let request = &mut self.requests[slot];
        let progress = match result {
            Err(LATE) if before_ns(request.request.id) <= now_ns => {
                Progress::Done(Err(DeviceError::Lost))
            }
            Err(LATE) => Progress::Next,
            result => request.progress(ring, result),
        };
        let result = match progress {
            Progress::Next => {
                if request.step.changes() {
                    request.before_ns = before_ns(request.request.id);
                }
                self.issue(ring, slot);
                return None;
            }
            Progress::Done(result) => result,
        };
        let request = self.requests.remove(self.requests.key(slot));
        let result = self.seen_at_end(&request, result);
        if let Step::Compare(Some(scratch)) = request.step {
            self.scratch.push(scratch);
            let compares = self.compares.get_mut(&request.request.device);
            assert!(
                compares.as_ref().is_some_and(|it| it.out > 0),
                "a compare ends that has not been started"
            );
            compares.into_iter().for_each(|it| it.out -= 1);
        }
        self.in_flight -= usize::from(!request.by_workers);
        self.start_next(ring);
        Some((request.request.id, result))
    }
}

impl FileRequest {
    fn progress(&mut self, ring: &Ring, result: Result<u32, Errno>) -> Progress {
        let count = match result {
            Ok(count) => count,
            Err(Errno::INTR) => return Progress::Next,
            Err(error) => return self.fall_back(error),
        };
        let left = self.request.length - self.done;
        match self.step {
            Step::Sync | Step::Allocate(_) => return Progress::Done(Ok(())),
            Step::Write { .. } | Step::Zeroes if count == 0 => {
                return Progress::Done(Err(DeviceError::Os(Errno::IO.raw_os_error())));
            }
            Step::Read if u64::from(count) < left && self.is_at_end(count) => {
                self.done += u64::from(count);
                return Progress::Done(Err(CUT_SHORT));
            }
            Step::Compare(scratch) => {
                // Extent 0 would be memory of another request.
                let Some(scratch) = scratch else {
                    unreachable!("a compare has been started without scratch memory");
                };
                let piece = Extent::new(scratch.at, left.min(u64::from(scratch.len)) as u32);
                return self.compare(ring, piece, count);
            }
            Step::Read | Step::Write { .. } | Step::Zeroes => {}
        }
        self.advance(count)
    }

    /// Whether a short read of `count` bytes ended with the file: it was cut, or its last block is
    /// short. Others just go on.
    fn is_at_end(&self, count: u32) -> bool {
        count == 0 || !count.is_multiple_of(self.block_bytes)
    }

    fn advance(&mut self, count: u32) -> Progress {
        self.done += u64::from(count);
        if self.done >= self.request.length {
            Progress::Done(Ok(()))
        } else {
            Progress::Next
        }
    }

    /// Compares a piece, of which `count` bytes were read.
    fn compare(&mut self, ring: &Ring, mut piece: Extent, count: u32) -> Progress {
        if count < piece.len && self.is_at_end(count) {
            self.done += u64::from(count);
            return Progress::Done(Err(CUT_SHORT));
        }
        piece.len = count;
        let mut mine = self.extent.skip(self.done as u32);
        mine.len = piece.len;
        if ring.arena().bytes(mine) == ring.arena().bytes(piece) {
            return self.advance(piece.len);
        }
        Progress::Done(Err(DeviceError::Mismatch))
    }

    /// Another way to do what the file system can't, or the error.
    fn fall_back(&mut self, error: Errno) -> Progress {
        let unsupported = matches!(error, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY);
        // A full file system may have no room to describe a hole, but has that of the data.
        let punches = self.request.op != DeviceOp::WriteZeroes { deallocate: false };
        let no_room = punches && matches!(error, Errno::NOSPC | Errno::DQUOT);
        let refused = unsupported || no_room;
        self.step = match self.step {
            Step::Allocate(Allocate::PunchHole) if refused && self.zeroes => {
                Step::Allocate(Allocate::ZeroRange)
            }
            Step::Allocate(Allocate::ZeroRange) if refused => Step::Zeroes,
            Step::Read | Step::Compare(_) if error == Errno::OPNOTSUPP => {
                return Progress::Done(Err(IN_TRANSIT));
            }
            _ => return Progress::Done(Err(device_error(error))),
        };
        Progress::Next
    }
}

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    pub(crate) fn handle_file(&mut self, slot: u32, result: Result<u32, Errno>) {
        let machine = &self.machine;
        let now = (self.now_ns, |id| machine.start_before_ns(id));
        if let Some((id, result)) = self.devices.handle(&mut self.ring, slot, result, now) {
            self.machine.handle_device(id, result, self.now_ns);
        }
    }

    /// Results of requests that needed no operation.
    pub(crate) fn deliver_device_results(&mut self) {
        for (device, end) in self.devices.cuts.drain(..) {
            self.machine.handle_cut(device, end, self.now_ns);
        }
        for (id, extent) in self.devices.extents.drain(..) {
            self.machine.handle_extent(id, extent, self.now_ns);
        }
        for (id, result) in self.devices.results.drain(..) {
            self.machine.handle_device(id, result, self.now_ns);
        }
    }
}

/// The first step of a request to a file.
fn step(op: DeviceOp, read_only: bool) -> Result<Step, DeviceError> {
    Ok(match op {
        DeviceOp::Read => Step::Read,
        DeviceOp::Compare => Step::Compare(None),
        DeviceOp::Flush => Step::Sync,
        _ if read_only => return Err(DeviceError::ReadOnly),
        DeviceOp::Write { fua } => Step::Write { durable: fua },
        DeviceOp::WriteZeroes { deallocate: false } => Step::Allocate(Allocate::ZeroRange),
        DeviceOp::WriteZeroes { deallocate: true } | DeviceOp::Deallocate => {
            Step::Allocate(Allocate::PunchHole)
        }
    })
}

pub(crate) fn within(request: &DeviceRequest, bytes: u64) -> Result<(), DeviceError> {
    if request.op == DeviceOp::Flush {
        return Ok(());
    }
    let end = request.offset.checked_add(request.length);
    let inside = end.is_some_and(|end| end <= bytes);
    if inside {
        Ok(())
    } else {
        Err(DeviceError::Os(Errno::INVAL.raw_os_error()))
    }
}

fn memorize(
    ring: &mut Ring,
    memory: &MemoryDevice,
    request: &DeviceRequest,
    data: Extent,
) -> Result<(), DeviceError> {
    match request.op {
        DeviceOp::Read => memory.read(request.offset, ring.bytes_mut(data)),
        DeviceOp::Write { .. } => memory.write(request.offset, ring.arena().bytes(data)),
        DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => {
            memory.discard(request.offset, request.length);
        }
        DeviceOp::Compare if !memory.is_equal(request.offset, ring.arena().bytes(data)) => {
            return Err(DeviceError::Mismatch);
        }
        DeviceOp::Compare | DeviceOp::Flush => {}
    }
    Ok(())
}

fn null(ring: &mut Ring, op: DeviceOp, data: Extent) -> Result<(), DeviceError> {
    match op {
        DeviceOp::Read => ring.bytes_mut(data).fill(0),
        DeviceOp::Compare if ring.arena().bytes(data).iter().any(|&byte| byte != 0) => {
            return Err(DeviceError::Mismatch);
        }
        _ => {}
    }
    Ok(())
}

/// Maps the system's error numbers.
pub(crate) fn device_error(error: Errno) -> DeviceError {
    match error {
        Errno::NOSPC | Errno::DQUOT => DeviceError::Full,
        Errno::ROFS | Errno::PERM | Errno::BADF => DeviceError::ReadOnly,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => DeviceError::Unsupported,
        NO_THREAD => DeviceError::NotBegun,
        error => DeviceError::Os(error.raw_os_error()),
    }
}

#[cfg(test)]
mod tests;
