//! A machine that answers every frame with itself: length (4 bytes), flags (4 bytes), payload, and
//! its CRC32C where flag 1 is set. It has few buffers, so that it blocks; it allocates nothing.
use engine::machine::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use sys::CountingAllocator;

pub const HEADER: usize = 8;
/// Flag: a digest follows.
pub const DIGEST: u32 = 1;

#[derive(Clone, Copy)]
enum State {
    Header,
    /// No buffer was free.
    Waiting,
    Payload,
    Digest,
    /// Being closed: bytes mean nothing any more.
    Over,
}

struct Conn {
    open: bool,
    state: State,
    collected: [u8; HEADER],
    have: usize,
    buffer: u32,
    placed: u32,
    crc: u32,
    replies: VecDeque<(u32, [u8; HEADER])>,
}

pub struct Echo {
    conns: Vec<Conn>,
    free: Vec<u32>,
    waiting: VecDeque<ConnId>,
    outputs: VecDeque<Output>,
    pub frame_max: u32,
    pub frames: u64,
    /// Allocations of the reactor's thread, as of its last turn.
    pub allocations: Arc<AtomicU64>,
}

impl Echo {
    pub fn new(connections: usize, buffers: u32, frame_max: u32) -> Self {
        let conn = || Conn {
            open: false,
            state: State::Header,
            collected: [0; HEADER],
            have: 0,
            buffer: 0,
            placed: 0,
            crc: 0,
            replies: VecDeque::with_capacity(buffers as usize),
        };
        Self {
            conns: (0..connections).map(|_| conn()).collect(),
            free: (0..buffers).collect(),
            waiting: VecDeque::with_capacity(connections),
            outputs: VecDeque::with_capacity(4 * connections + buffers as usize),
            frame_max,
            frames: 0,
            allocations: Arc::default(),
        }
    }

    fn conn(&mut self, conn: ConnId) -> &mut Conn {
        &mut self.conns[conn.0 as usize]
    }

    /// Collects `want` bytes; how many were taken, and whether they are complete.
    fn collect(&mut self, conn: ConnId, bytes: &[u8], want: usize) -> (usize, bool) {
        let conn = self.conn(conn);
        let taken = bytes.len().min(want - conn.have);
        conn.collected[conn.have..][..taken].copy_from_slice(&bytes[..taken]);
        conn.have += taken;
        (taken, conn.have == want)
    }

    /// A header is complete, or a buffer may have become free.
    fn begin(&mut self, conn: ConnId) {
        let len = len(&self.conn(conn).collected);
        if len > self.frame_max {
            self.conn(conn).state = State::Over;
            return self.outputs.push_back(Output::Close { conn, abort: true });
        }
        let Some(buffer) = self.free.pop() else {
            self.conn(conn).state = State::Waiting;
            return self.waiting.push_back(conn);
        };
        let state = self.conn(conn);
        (state.buffer, state.placed, state.crc) = (buffer, 0, 0);
        state.state = State::Payload;
        if len == 0 {
            self.placed(conn);
        }
    }

    /// A buffer is free: the longest waiting connection gets it.
    fn release(&mut self, buffer: u32) {
        self.free.push(buffer);
        if let Some(conn) = self.waiting.pop_front() {
            self.begin(conn);
            self.outputs.push_back(Output::Resume(conn));
        }
    }

    fn placed(&mut self, conn: ConnId) {
        let state = self.conn(conn);
        if flags(&state.collected) & DIGEST != 0 {
            state.replies.push_back((state.buffer, state.collected));
            state.have = 0;
            state.state = State::Digest;
        } else {
            state.replies.push_back((state.buffer, state.collected));
            self.complete(conn);
        }
    }

    fn complete(&mut self, conn: ConnId) {
        let state = self.conn(conn);
        state.state = State::Header;
        state.have = 0;
        self.frames += 1;
        self.outputs.push_back(Output::Transmit(conn));
    }
}

fn len(header: &[u8; HEADER]) -> u32 {
    u32::from_le_bytes([header[0], header[1], header[2], header[3]])
}

fn flags(header: &[u8; HEADER]) -> u32 {
    u32::from_le_bytes([header[4], header[5], header[6], header[7]])
}

impl Machine for Echo {
    type Control = ();

    fn connections_max(&self) -> u32 {
        self.conns.len() as u32
    }
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        let free = self.conns.iter().position(|conn| !conn.open)?;
        self.conns[free].open = true;
        Some(ConnId(free as u32))
    }
    fn handle_connected(&mut self, _: ConnId, _: u64) {}
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], _: u64) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            match self.conn(conn).state {
                State::Header => {
                    let (taken, complete) = self.collect(conn, &bytes[at..], HEADER);
                    at += taken;
                    if complete {
                        self.begin(conn);
                    }
                }
                State::Digest => {
                    let (taken, complete) = self.collect(conn, &bytes[at..], 4);
                    at += taken;
                    if complete {
                        let state = self.conn(conn);
                        let wanted = u32::from_le_bytes(state.collected[..4].try_into().unwrap());
                        assert_eq!(state.crc, wanted, "digest of {conn:?}");
                        self.complete(conn);
                    }
                }
                State::Over => at = bytes.len(),
                State::Waiting | State::Payload => break,
            }
        }
        at
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        let frame_max = self.frame_max;
        let state = self.conn(conn);
        let State::Payload = state.state else {
            return None;
        };
        let at = u64::from(state.buffer) * u64::from(frame_max) + u64::from(state.placed);
        let span = Span {
            at,
            len: len(&state.collected) - state.placed,
        };
        let digest = flags(&state.collected) & DIGEST != 0;
        Some(Place {
            span,
            crc: digest.then_some(state.crc),
        })
    }
    fn handle_payload(&mut self, conn: ConnId, count: u32, crc: u32, _: u64) {
        let state = self.conn(conn);
        state.placed += count;
        state.crc = crc;
        if state.placed == len(&state.collected) {
            self.placed(conn);
        }
    }
    fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
        let frame_max = self.frame_max;
        let state = self.conn(conn);
        // The last frame's digest may be still to come.
        let pending = usize::from(matches!(state.state, State::Digest));
        if state.replies.len() <= pending {
            return None;
        }
        let (buffer, header) = state.replies.pop_front()?;
        out.extend_from_slice(&header);
        if len(&header) == 0 {
            out.extend_from_slice(if flags(&header) & DIGEST != 0 {
                &[0; 4]
            } else {
                &[]
            });
            self.release(buffer);
            return Some(None);
        }
        let span = Span {
            at: u64::from(buffer) * u64::from(frame_max),
            len: len(&header),
        };
        Some(Some(Send {
            span,
            digest: flags(&header) & DIGEST != 0,
            cookie: buffer,
            read: None,
        }))
    }
    fn handle_sent(&mut self, _: ConnId, cookie: u32, _: u64) {
        self.release(cookie);
    }
    fn handle_closed(&mut self, conn: ConnId, _: Closed, _: u64) {
        self.waiting.retain(|&other| other != conn);
        let state = &mut self.conns[conn.0 as usize];
        let buffer = matches!(state.state, State::Payload).then_some(state.buffer);
        let mut replies = std::mem::take(&mut state.replies);
        (state.open, state.state, state.have) = (false, State::Header, 0);
        for buffer in replies.drain(..).map(|(buffer, _)| buffer).chain(buffer) {
            self.release(buffer);
        }
        self.conn(conn).replies = replies;
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {
        self.outputs.push_back(Output::Stop);
    }
    fn turn(&mut self, _: &mut dyn Memory, _: u64) {
        self.allocations
            .store(CountingAllocator::of_this_thread(), Ordering::Release);
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        None
    }
    fn handle_timeout(&mut self, _: u64) {}
}
