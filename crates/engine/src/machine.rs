//! The face a reactor drives: one trait for a core, a target, discovery, and programs around them.
//!
//! # Contract
//! One core, one reactor, one machine. A turn of the loop: the reactor reads the clock once, hands
//! in everything that happened (`handle_*`), calls `turn`, then `poll_output` until `None`, then
//! `poll_transmit` for every connection named in an `Output::Transmit` until `None`, then submits
//! all system calls at once and sleeps until the next event or `poll_timeout`.
//!
//! Connections: ids are chosen by the machine (dense, below [`Machine::connections_max`]). An id
//! that the machine opened or accepted lives until the reactor calls `handle_closed` for it, which
//! happens exactly once: because the peer or network ended it, or in answer to `Output::Close`.
//! Only then may it be reused.
//!
//! Payload bytes: see `nvme::Placement`; here tokens are already mapped to [`Span`]s of the arena.
use alloc::vec::Vec;

/// A connection of this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// Device on which the reactor itself executes requests (null, memory, a file, a namespace of the
/// kernel's driver, a hardware queue), as its owner numbered it. Devices of the block layer are
/// `block::DeviceId`s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalDevice(pub u16);

/// A range of the core's arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Span {
    /// First byte; 4 KiB aligned where a whole buffer is meant.
    pub at: u64,
    /// Bytes.
    pub len: u32,
}

/// Where the next bytes of a connection's stream belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Destination of the next bytes; never empty.
    pub span: Span,
    /// Running CRC32C to continue, where the data digest is on.
    pub crc: Option<u32>,
}

/// Payload to send behind a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Send {
    /// Source.
    pub span: Span,
    /// Whether the CRC32C of the span follows it, little-endian.
    pub digest: bool,
    /// Comes back in `handle_sent`.
    pub cookie: u32,
    /// The request that read the payload, where its device [may have
    /// lent](Machine::may_lend) it: then it is not in the span.
    pub read: Option<LentRead>,
}

/// Part of the payload of a request that [may be lent](Machine::may_lend).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentRead {
    /// Its [`DeviceRequest::id`].
    pub id: u32,
    /// First byte of the part in its payload.
    pub at: u32,
}

/// Operation on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceOp {
    /// Device to span.
    Read,
    /// Span to device; `fua`: durable before it is done.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Everything acknowledged becomes durable.
    Flush,
    /// Zero `length` bytes; may deallocate.
    WriteZeroes {
        /// Deallocate allowed.
        deallocate: bool,
    },
    /// Deallocate `length` bytes.
    Deallocate,
    /// Compare the device with the span; a difference is [`DeviceError::Mismatch`].
    Compare,
}

impl DeviceOp {
    /// Whether it changes what the device holds.
    pub fn is_change(self) -> bool {
        !matches!(self, Self::Read | Self::Compare | Self::Flush)
    }
}

/// One request to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRequest {
    /// Comes back in `handle_device`.
    pub id: u32,
    /// Which device.
    pub device: LocalDevice,
    /// Operation to do.
    pub op: DeviceOp,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes on the device.
    pub length: u64,
    /// Memory, for the ops that have data (`span.len == length`).
    pub span: Span,
}

/// A question to a device: how far from `offset` on are its bytes of one kind?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentRequest {
    /// Comes back in `handle_extent`.
    pub id: u32,
    /// Which device.
    pub device: LocalDevice,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes that are asked about; never 0.
    pub length: u32,
}

/// The kind of the bytes from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceExtent {
    /// Bytes; they may reach beyond what was asked about.
    pub length: u32,
    /// They were a hole at some moment after the question came, so they read as zeroes then. Else
    /// nothing is known of them.
    pub is_zero: bool,
}

impl DeviceExtent {
    /// Nothing is known of any byte.
    pub const UNKNOWN: Self = Self {
        length: u32::MAX,
        is_zero: false,
    };
}

/// Why a device request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// Compare found a difference.
    Mismatch,
    /// The device is full (ENOSPC).
    Full,
    /// Read-only (EROFS, EPERM).
    ReadOnly,
    /// Not possible on this device (EOPNOTSUPP).
    Unsupported,
    /// The file behind it became shorter than it was: what lay there is lost, and nothing is
    /// written there, so that it does not read as zeroes.
    CutShort,
    /// The way to the device is gone, and nobody knows what became of the request; it is no failure
    /// of the device.
    Lost,
    /// Our own system had nothing to execute the request with: nothing of it was done.
    NotBegun,
    /// The operating system's error number.
    Os(i32),
    /// Status from its controller.
    Nvme(nvme::wire::Status),
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The peer closed in order.
    ByPeer,
    /// We asked.
    ByUs,
    /// Refused, reset, unreachable…: the operating system's error number.
    Error(i32),
}

/// Work that a machine wants done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Connect to address number `address` of the reactor's address table.
    Open {
        /// The new connection's id.
        conn: ConnId,
        /// Index into the address table.
        address: u32,
    },
    /// The connection has something to send.
    Transmit(ConnId),
    /// Close: after what is queued was sent, or at once (`abort`, with a TCP reset).
    Close {
        /// Which.
        conn: ConnId,
        /// Do not send what is queued.
        abort: bool,
    },
    /// A blocked connection may be read again (`handle_bytes` makes progress).
    Resume(ConnId),
    /// Asks whether the peer has closed a connection, also where it is blocked: answered at once by
    /// `handle_end_check`.
    CheckEnd(ConnId),
    /// Device I/O.
    Device(DeviceRequest),
    /// A question to a device, answered by `handle_extent`. It may wait for the device's file
    /// system, so it is asked on a thread that may wait. One that is never answered holds nothing.
    Extent(ExtentRequest),
    /// No client waits any more for what the device has and can still be kept from doing. Each
    /// request ends in `handle_device`: as of a lost path, as soon as it can't be executed any
    /// more, or as the device answers it meanwhile; where nothing can be taken back, as before.
    /// `id` ends there when the device may be asked again: after what was under way, or before.
    LetGo {
        /// Which.
        device: LocalDevice,
        /// Of no request.
        id: u32,
    },
    /// The machine is finished; the reactor returns.
    Stop,
}

/// Access to the arena for machines that make or check payload (load generators), or hand it from
/// a buffer of their own to a caller's (hedged reads). Only spans that
/// no request or connection is using may be touched; the implementation panics otherwise.
pub trait Memory {
    /// Bytes of a span.
    fn bytes(&self, span: Span) -> &[u8];
    /// Bytes of a span, to change.
    fn bytes_mut(&mut self, span: Span) -> &mut [u8];
    /// Copies the bytes of one span into another of the same length; they don't overlap.
    fn copy(&mut self, from: Span, to: Span) {
        assert!(from.len == to.len, "{from:?} is not as long as {to:?}");
        let mut piece = [0; 4096];
        for done in (0..from.len).step_by(piece.len()) {
            let part = |span: Span| Span {
                at: span.at + u64::from(done),
                len: (span.len - done).min(4096),
            };
            let bytes = &mut piece[..part(from).len as usize];
            bytes.copy_from_slice(self.bytes(part(from)));
            self.bytes_mut(part(to)).copy_from_slice(bytes);
        }
    }
}

/// An arena that is nothing but bytes: of tests, simulators, and measurements.
impl Memory for Vec<u8> {
    fn bytes(&self, span: Span) -> &[u8] {
        &self[span.at as usize..][..span.len as usize]
    }
    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self[span.at as usize..][..span.len as usize]
    }
}

/// A machine that a reactor drives. See the module's contract.
pub trait Machine {
    /// Messages from other threads.
    type Control;

    /// Connection ids are below this.
    fn connections_max(&self) -> u32;
    /// A connection was accepted on listener number `listener`; `None` refuses it.
    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId>;
    /// An `Output::Open` succeeded.
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64);
    /// The loop looks at what has ended. It was busy since its last look: an end may have waited,
    /// and a request may have left, so much later than the clock says; 0 after a sleep.
    fn handle_look(&mut self, _busy_ns: u64, _now_ns: u64) {}
    /// Bytes arrived; returns how many were taken. Fewer than offered: payload begins
    /// (`placement`), or the connection is blocked until `Output::Resume`.
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize;
    /// Where the next bytes belong, if they are payload.
    fn placement(&mut self, conn: ConnId) -> Option<Place>;
    /// `len` bytes of payload are in place; `crc` continues `Place::crc`.
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64);
    /// Appends one PDU's header to `out`; payload to follow, if any, is the inner value. `None`:
    /// nothing to send.
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>>;
    /// The payload of one [`Send`] is no longer referenced.
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64);
    /// The connection is over. All its `Send`s were reported before.
    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64);
    /// The answer to [`Output::CheckEnd`]: whether the peer's end has arrived, or the connection is
    /// over. Bytes before the end may be unread.
    fn handle_end_check(&mut self, _conn: ConnId, _has_ended: bool, _now_ns: u64) {}
    /// A device request ended.
    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64);
    /// The time before which change `id` of a device has to start, ns; `u64::MAX`: at any time. It
    /// is asked when the request is output, and again when it could not start in time: then it may
    /// have moved. The clock is compared with it directly before the change is started, so that a
    /// machine that stood still executes nothing that its peers take for impossible by then (T49).
    /// A change that is late ends with [`DeviceError::Lost`].
    fn start_before_ns(&self, _id: u32) -> u64 {
        u64::MAX
    }
    /// Whether the payload of request `id`, a read, goes nowhere but into [`Send`]s that name it,
    /// in order and each byte once: then a device that lies in memory may send its own bytes, and
    /// leave the span as it was. It is asked when the request is output.
    fn may_lend(&self, _id: u32) -> bool {
        false
    }
    /// A file that no other process uses became shorter than it was: `end` is the first byte that
    /// was not there; 0: that is not known. It may be as long again by now.
    fn handle_cut(&mut self, _device: LocalDevice, _end: u64, _now_ns: u64) {}
    /// The answer to [`Output::Extent`].
    fn handle_extent(&mut self, _id: u32, _extent: DeviceExtent, _now_ns: u64) {}
    /// A message from another thread.
    fn handle_control(&mut self, message: Self::Control, now_ns: u64);
    /// Once per loop turn, after all events: make load, check data, publish counters.
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64);
    /// The next thing to do.
    fn poll_output(&mut self) -> Option<Output>;
    /// When to be called at the latest.
    fn poll_timeout(&self) -> Option<u64>;
    /// That time has come.
    fn handle_timeout(&mut self, now_ns: u64);
    /// The loop has nothing to do and is about to sleep: whether it may. Then peers that share
    /// memory with the machine wake it, until the next turn.
    fn may_sleep(&mut self, _now_ns: u64) -> bool {
        true
    }
}

/// A machine that adds something of its own around another one: controls, what happens in a turn,
/// times. All else is the inner machine's.
pub trait Around {
    /// The machine inside.
    type Inner: Machine;
    /// As [`Machine::Control`].
    type Control;

    /// The machine inside.
    fn inner(&self) -> &Self::Inner;
    /// The same, to be driven.
    fn inner_mut(&mut self) -> &mut Self::Inner;
    /// As [`Machine::handle_control`].
    fn handle_control(&mut self, message: Self::Control, now_ns: u64);
    /// As [`Machine::turn`].
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64);

    /// As [`Machine::poll_output`].
    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        self.inner_mut().poll_output()
    }
    /// As [`Machine::poll_timeout`].
    fn poll_timeout(&self) -> Option<u64> {
        self.inner().poll_timeout()
    }
    /// As [`Machine::handle_timeout`].
    fn handle_timeout(&mut self, now_ns: u64) {
        self.inner_mut().handle_timeout(now_ns);
    }
    /// As [`Machine::may_sleep`].
    fn may_sleep(&mut self, now_ns: u64) -> bool {
        self.inner_mut().may_sleep(now_ns)
    }
}

impl<M: Around> Machine for M {
    type Control = M::Control;

    fn connections_max(&self) -> u32 {
        self.inner().connections_max()
    }
    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        self.inner_mut().handle_accepted(listener, now_ns)
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.inner_mut().handle_connected(conn, now_ns);
    }
    fn handle_look(&mut self, busy_ns: u64, now_ns: u64) {
        self.inner_mut().handle_look(busy_ns, now_ns);
    }
    #[inline]
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        self.inner_mut().handle_bytes(conn, bytes, now_ns)
    }
    #[inline]
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        self.inner_mut().placement(conn)
    }
    #[inline]
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.inner_mut().handle_payload(conn, len, crc, now_ns);
    }
    #[inline]
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        self.inner_mut().poll_transmit(conn, out, now_ns)
    }
    #[inline]
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.inner_mut().handle_sent(conn, cookie, now_ns);
    }
    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.inner_mut().handle_closed(conn, why, now_ns);
    }
    fn handle_end_check(&mut self, conn: ConnId, has_ended: bool, now_ns: u64) {
        self.inner_mut().handle_end_check(conn, has_ended, now_ns);
    }
    #[inline]
    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.inner_mut().handle_device(id, result, now_ns);
    }
    #[inline]
    fn start_before_ns(&self, id: u32) -> u64 {
        self.inner().start_before_ns(id)
    }
    #[inline]
    fn may_lend(&self, id: u32) -> bool {
        self.inner().may_lend(id)
    }
    fn handle_cut(&mut self, device: LocalDevice, end: u64, now_ns: u64) {
        self.inner_mut().handle_cut(device, end, now_ns);
    }
    fn handle_extent(&mut self, id: u32, extent: DeviceExtent, now_ns: u64) {
        self.inner_mut().handle_extent(id, extent, now_ns);
    }
    fn handle_control(&mut self, message: Self::Control, now_ns: u64) {
        Around::handle_control(self, message, now_ns);
    }
    #[inline]
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        Around::turn(self, memory, now_ns);
    }
    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        Around::poll_output(self)
    }
    #[inline]
    fn poll_timeout(&self) -> Option<u64> {
        Around::poll_timeout(self)
    }
    #[inline]
    fn handle_timeout(&mut self, now_ns: u64) {
        Around::handle_timeout(self, now_ns);
    }
    #[inline]
    fn may_sleep(&mut self, now_ns: u64) -> bool {
        Around::may_sleep(self, now_ns)
    }
}
