//! Parts of a node: a machine, memory, devices, addresses.
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::{ConnId, DeviceOp, DeviceRequest, Machine, Output, Span};
use std::cell::RefCell;
use std::rc::Rc;

/// For machines whose payload nobody touches.
pub struct NoMemory;

impl Memory for NoMemory {
    fn bytes(&self, _: Span) -> &[u8] {
        &[]
    }
    fn bytes_mut(&mut self, _: Span) -> &mut [u8] {
        &mut []
    }
}

/// A machine whatever its messages are.
pub trait Body {
    fn accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId>;
    fn connected(&mut self, conn: ConnId, now_ns: u64);
    fn bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize;
    fn place(&mut self, conn: ConnId) -> Option<Place>;
    fn payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64);
    fn transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, now_ns: u64) -> Option<Option<Send>>;
    fn sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64);
    fn closed(&mut self, conn: ConnId, why: Closed, now_ns: u64);
    fn end_check(&mut self, conn: ConnId, has_ended: bool, now_ns: u64);
    fn device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64);
    fn start_before(&self, id: u32) -> u64;
    fn turn_once(&mut self, memory: &mut dyn Memory, now_ns: u64);
    fn output(&mut self) -> Option<Output>;
    fn timeout(&self) -> Option<u64>;
    fn timed_out(&mut self, now_ns: u64);
}

impl<M: Machine> Body for M {
    fn accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        self.handle_accepted(listener, now_ns)
    }
    fn connected(&mut self, conn: ConnId, now_ns: u64) {
        self.handle_connected(conn, now_ns);
    }
    fn bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        self.handle_bytes(conn, bytes, now_ns)
    }
    fn place(&mut self, conn: ConnId) -> Option<Place> {
        self.placement(conn)
    }
    fn payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.handle_payload(conn, len, crc, now_ns);
    }
    fn transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, now_ns: u64) -> Option<Option<Send>> {
        self.poll_transmit(conn, out, now_ns)
    }
    fn sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.handle_sent(conn, cookie, now_ns);
    }
    fn closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.handle_closed(conn, why, now_ns);
    }
    fn end_check(&mut self, conn: ConnId, has_ended: bool, now_ns: u64) {
        self.handle_end_check(conn, has_ended, now_ns);
    }
    fn device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.handle_device(id, result, now_ns);
    }
    fn start_before(&self, id: u32) -> u64 {
        self.start_before_ns(id)
    }
    fn turn_once(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.turn(memory, now_ns);
    }
    fn output(&mut self) -> Option<Output> {
        self.poll_output()
    }
    fn timeout(&self) -> Option<u64> {
        self.poll_timeout()
    }
    fn timed_out(&mut self, now_ns: u64) {
        self.handle_timeout(now_ns);
    }
}

/// Memory of one node.
pub struct Arena(pub Vec<u8>);

impl Memory for Arena {
    fn bytes(&self, span: Span) -> &[u8] {
        &self.0[span.at as usize..span.at as usize + span.len as usize]
    }
    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        &mut self.0[span.at as usize..span.at as usize + span.len as usize]
    }
}

/// Destination of an address.
#[derive(Clone, Copy, Debug)]
pub enum Address {
    /// A listener of a node, `delay_ns` one way.
    To {
        node: usize,
        listener: u32,
        delay_ns: u64,
    },
    /// No listener: ECONNREFUSED.
    Refused,
    /// Nothing answers.
    Silence,
}

/// A request that a device executed, and the bytes it wrote.
pub type Executed = (DeviceRequest, Vec<u8>);

/// A device that nodes may share.
#[derive(Clone)]
pub struct Disk {
    pub bytes: Rc<RefCell<Vec<u8>>>,
    pub delay_ns: u64,
    /// It takes one request after the other: until then it is busy.
    pub busy_until_ns: Option<u64>,
    /// Every request fails so.
    pub error: Option<DeviceError>,
    /// It has no Write Zeroes.
    pub lacks_zeroes: bool,
    /// Zeroing that may deallocate fails so.
    pub hole_error: Option<DeviceError>,
    /// Such zeroing succeeds, and what was there stays, as with qemu's FUSE export.
    pub keeps_holes: bool,
    /// It was cut short here: what reaches farther fails, whatever is there by now.
    pub cut_at: Option<u64>,
    /// Behind its first MiB blocks of 4 KiB with an odd number can't be written.
    pub refuses_odd: bool,
    /// Its changes are system calls of the node's own threads, made at their end: each is asked
    /// then whether it may still start.
    pub by_workers: bool,
    /// A device that breaks the rules: it answers 2 ms after it was asked, and executes later.
    pub answers_early: bool,
    /// Blocks that would be left after a loss of power: flushed, or written with FUA.
    pub durable: Option<Rc<RefCell<Vec<u8>>>>,
    /// Executed requests, with the bytes that were written; kept once a test asks for it.
    pub log: Rc<RefCell<Option<Vec<Executed>>>>,
}

impl Disk {
    pub fn new(bytes: usize) -> Self {
        Self {
            bytes: Rc::new(RefCell::new(vec![0; bytes])),
            delay_ns: 0,
            busy_until_ns: None,
            error: None,
            lacks_zeroes: false,
            hole_error: None,
            keeps_holes: false,
            cut_at: None,
            refuses_odd: false,
            by_workers: false,
            answers_early: false,
            durable: None,
            log: Rc::new(RefCell::new(None)),
        }
    }

    /// The same with a volatile cache, whose loss a test can look at.
    pub fn with_cache(mut self) -> Self {
        let bytes = self.bytes.borrow().clone();
        self.durable = Some(Rc::new(RefCell::new(bytes)));
        self
    }

    /// Executes a request; memory is read or written now.
    pub fn execute(&self, request: &DeviceRequest, arena: &mut Arena) -> Result<(), DeviceError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if self
            .cut_at
            .is_some_and(|at| request.offset + request.length > at)
        {
            return Err(DeviceError::CutShort);
        }
        let mut blocks = request.offset >> 12..(request.offset + request.length) >> 12;
        let is_odd = |block: u64| block >= 256 && block % 2 == 1;
        if self.refuses_odd && request.op.is_change() && blocks.any(is_odd) {
            return Err(DeviceError::Os(5));
        }
        if let Some(log) = &mut *self.log.borrow_mut() {
            let data = match request.op {
                DeviceOp::Write { .. } => arena.bytes(request.span).to_vec(),
                _ => Vec::new(),
            };
            log.push((*request, data));
        }
        if self.lacks_zeroes && matches!(request.op, DeviceOp::WriteZeroes { .. }) {
            return Err(DeviceError::Unsupported);
        }
        if let Some(error) = self.hole_error
            && request.op == (DeviceOp::WriteZeroes { deallocate: true })
        {
            return Err(error);
        }
        let mut bytes = self.bytes.borrow_mut();
        let from = request.offset as usize;
        let range = from..from + request.length as usize;
        match request.op {
            DeviceOp::Read => arena.bytes_mut(request.span).copy_from_slice(&bytes[range]),
            DeviceOp::Write { fua } => {
                bytes[range.clone()].copy_from_slice(arena.bytes(request.span));
                if let Some(durable) = self.durable.as_ref().filter(|_| fua) {
                    durable.borrow_mut()[range.clone()].copy_from_slice(&bytes[range]);
                }
            }
            DeviceOp::Flush => {
                if let Some(durable) = &self.durable {
                    durable.borrow_mut().copy_from_slice(&bytes);
                }
            }
            DeviceOp::WriteZeroes { deallocate: true } if self.keeps_holes => {}
            DeviceOp::WriteZeroes { .. } | DeviceOp::Deallocate => bytes[range].fill(0),
            DeviceOp::Compare if bytes[range] == *arena.bytes(request.span) => {}
            DeviceOp::Compare => return Err(DeviceError::Mismatch),
        }
        Ok(())
    }
}
