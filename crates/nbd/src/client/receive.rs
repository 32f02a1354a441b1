//! Parses replies out of an arbitrarily cut stream, and places their data (Simple reply message,
//! Structured reply chunk message, Structured reply types).
use super::slots::Slot;
use super::{CommandError, Error, Event, Fault, Phase, Queued, Session, events_max};
use crate::limits::{CHUNK_MAX, STRING_MAX};
use crate::wire::{
    ChunkHeader, Fields, Gather, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, chunk,
};
use crate::{Errno, Extent, Kind, Placement, transfer};

/// A chunk being received; a simple reply is treated as one.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    index: u16,
    kind: u16,
    /// It is the last of its reply.
    done: bool,
    /// Bytes still to come.
    left: u32,
}

/// The next part of the stream.
#[derive(Clone, Copy, Debug)]
enum Body {
    /// A header.
    None,
    /// The fields at the beginning of a chunk.
    Fields(Chunk),
    /// Data; `at` is its place in the buffer.
    Data { chunk: Chunk, at: u32 },
    /// Extents; the sum of their lengths so far.
    Extents { chunk: Chunk, covered: u64 },
    /// Data that is discarded.
    Skip(Chunk),
}

/// Receiving side of a session.
#[derive(Debug)]
pub(super) struct Receiver {
    header: Gather,
    body: Body,
}

impl Receiver {
    pub fn new() -> Self {
        Self {
            header: Gather::new(),
            body: Body::None,
        }
    }

    /// Stops placing data.
    pub fn stop(&mut self) {
        self.body = Body::None;
    }
}

impl Session {
    /// Takes bytes from the server; returns how many. See the module's contract.
    pub fn handle_bytes(&mut self, bytes: &[u8], _now_ns: u64) -> usize {
        let mut used = 0;
        while used < bytes.len() {
            let rest = &bytes[used..];
            let taken = match self.phase {
                Phase::Handshake => self.receive_handshake(rest),
                Phase::Ready | Phase::Ending(false) => self.receive_reply(rest),
                Phase::Idle | Phase::Ending(true) | Phase::Over(_) => rest.len(),
            };
            if taken == 0 {
                break;
            }
            used += taken;
        }
        used
    }

    /// Returns where the next bytes belong, if they are payload.
    #[inline]
    pub fn placement(&self) -> Option<Placement> {
        let Body::Data { chunk, at } = self.rx.body else {
            return None;
        };
        Some(Placement {
            token: self.slots[chunk.index].request.token,
            offset: at,
            len: transfer::piece(at, chunk.left, self.config.piece),
        })
    }

    /// `len` bytes of payload are in place. Ignored after the session's end.
    ///
    /// # Panics
    /// If more is reported than was placed.
    #[inline]
    pub fn handle_payload(&mut self, len: u32, _now_ns: u64) {
        let Body::Data { mut chunk, at } = self.rx.body else {
            assert!(self.is_over(), "payload that was not placed");
            return;
        };
        let piece = transfer::piece(at, chunk.left, self.config.piece);
        assert!(len <= piece, "more payload than was placed");
        chunk.left -= len;
        let at = at + len;
        self.rx.body = Body::Data { chunk, at };
        if chunk.left == 0 {
            self.end_chunk(chunk);
        }
    }

    #[inline]
    fn receive_reply(&mut self, bytes: &[u8]) -> usize {
        let (taken, result) = match self.rx.body {
            Body::None => {
                if self.rx.header.is_empty() && self.events.len() >= self.events_limit() {
                    self.starved = true;
                    return 0;
                }
                self.receive_header(bytes)
            }
            Body::Data { .. } => return 0,
            Body::Fields(chunk) => self.receive_fields(chunk, bytes),
            Body::Extents { chunk, covered } => self.receive_extent(chunk, covered, bytes),
            Body::Skip(chunk) => {
                let n = bytes.len().min(chunk.left as usize);
                self.skip(chunk, n as u32);
                (n, Ok(()))
            }
        };
        if let Err(fault) = result {
            self.fail(Error::Protocol(fault));
        }
        taken
    }

    /// One header causes a few events at most.
    fn events_limit(&self) -> usize {
        events_max(self.slots.count()) - 4
    }

    #[inline]
    fn receive_header(&mut self, bytes: &[u8]) -> (usize, Result<(), Fault>) {
        if self.rx.header.is_empty() {
            // Usually the whole header is here: nothing is copied.
            if let Some(reply) = SimpleReply::parse(bytes) {
                return (SimpleReply::LEN, self.simple(&reply));
            }
            if let Some(header) = ChunkHeader::parse(bytes) {
                return (ChunkHeader::LEN, self.chunk(&header));
            }
        }
        let mut n = self.rx.header.fill(4, bytes);
        let Some(magic) = Fields(self.rx.header.bytes()).u32() else {
            return (n, Ok(()));
        };
        let need = match magic {
            SIMPLE_REPLY_MAGIC => SimpleReply::LEN,
            STRUCTURED_REPLY_MAGIC => ChunkHeader::LEN,
            _ => return (n, Err(Fault::ReplyMagic(magic))),
        };
        n += self.rx.header.fill(need, &bytes[n..]);
        if self.rx.header.bytes().len() < need {
            return (n, Ok(()));
        }
        let simple = SimpleReply::parse(self.rx.header.bytes());
        let structured = ChunkHeader::parse(self.rx.header.bytes());
        self.rx.header.clear();
        let result = match (simple, structured) {
            (Some(reply), _) => self.simple(&reply),
            (_, Some(header)) => self.chunk(&header),
            _ => unreachable!("a whole header of magic {magic:#x}"),
        };
        (n, result)
    }

    #[inline]
    fn simple(&mut self, reply: &SimpleReply) -> Result<(), Fault> {
        let index = self.find(reply.cookie)?;
        let Slot { request, error, .. } = &mut self.slots[index];
        let has_data = matches!(request.kind, Kind::Read | Kind::BlockStatus { .. });
        if self.structured && has_data {
            return Err(Fault::ReplyForm);
        }
        if reply.error != 0 {
            *error = Some(Errno::from_code(reply.error));
        }
        let kind = if error.is_none() && request.kind == Kind::Read {
            chunk::OFFSET_DATA
        } else {
            chunk::NONE
        };
        let left = request.length;
        let chunk = Chunk {
            index,
            kind,
            done: true,
            left,
        };
        if kind == chunk::OFFSET_DATA {
            return self.begin_content(chunk, 0, left);
        }
        self.end_chunk(chunk);
        Ok(())
    }

    #[inline]
    fn chunk(&mut self, header: &ChunkHeader) -> Result<(), Fault> {
        if !self.structured {
            return Err(Fault::ReplyForm);
        }
        let index = self.find(header.cookie)?;
        let &ChunkHeader {
            flags, kind, len, ..
        } = header;
        let asked = self.slots[index].request.kind;
        let done = flags & chunk::DONE != 0;
        let fits = match kind {
            chunk::NONE => len == 0 && done,
            chunk::OFFSET_DATA => asked == Kind::Read && len > 8,
            chunk::OFFSET_HOLE => asked == Kind::Read && len == 12,
            chunk::BLOCK_STATUS => {
                let is_asked = matches!(asked, Kind::BlockStatus { .. });
                // No extent is empty and none begins behind the request, so there are at most as
                // many as it has bytes. Only the first ones are kept: the server may send any
                // number.
                let most = 4 + 8 * u64::from(self.slots[index].request.length);
                is_asked && len >= 12 && u64::from(len) <= most && len % 8 == 4
            }
            chunk::ERROR_OFFSET => (14..=CHUNK_MAX).contains(&len),
            // Unknown errors begin like ERROR.
            _ => kind & chunk::IS_ERROR != 0 && (6..=CHUNK_MAX).contains(&len),
        };
        if !fits {
            return Err(Fault::Chunk { kind, len });
        }
        let chunk = Chunk {
            index,
            kind,
            done,
            left: len,
        };
        if kind == chunk::NONE {
            self.end_chunk(chunk);
        } else {
            self.rx.body = Body::Fields(chunk);
        }
        Ok(())
    }

    fn find(&self, cookie: u64) -> Result<u16, Fault> {
        self.slots.find(cookie).ok_or(Fault::Cookie(cookie))
    }

    /// Reads the fields at the beginning of a chunk, whose length was checked.
    #[inline]
    fn receive_fields(&mut self, mut chunk: Chunk, bytes: &[u8]) -> (usize, Result<(), Fault>) {
        let need = match chunk.kind {
            chunk::OFFSET_DATA => 8,
            chunk::OFFSET_HOLE => 12,
            chunk::BLOCK_STATUS => 4,
            _ => 6,
        };
        let n = self.rx.header.fill(need, bytes);
        if self.rx.header.bytes().len() < need {
            return (n, Ok(()));
        }
        chunk.left -= need as u32;
        let mut fields = Fields(self.rx.header.bytes());
        let result = match chunk.kind {
            chunk::OFFSET_DATA => {
                let at = whole(fields.u64());
                self.content(chunk, at, chunk.left)
            }
            chunk::OFFSET_HOLE => {
                let (at, len) = (whole(fields.u64()), whole(fields.u32()));
                self.content(chunk, at, len)
            }
            chunk::BLOCK_STATUS => {
                let context = fields.u32();
                self.begin_extents(chunk, context)
            }
            _ => {
                let (code, len) = (whole(fields.u32()), whole(fields.u16()));
                self.error_chunk(chunk, code, len)
            }
        };
        self.rx.header.clear();
        (n, result)
    }

    /// Receives content of a read from byte `at` of the export on.
    #[inline]
    fn content(&mut self, chunk: Chunk, at: u64, len: u32) -> Result<(), Fault> {
        let request = &self.slots[chunk.index].request;
        let start = at.checked_sub(request.offset).ok_or(Fault::Outside)?;
        let end = start.checked_add(len.into()).ok_or(Fault::Outside)?;
        if len == 0 || end > request.length.into() {
            return Err(Fault::Outside);
        }
        self.begin_content(chunk, start as u32, len)
    }

    /// Receives `len` bytes of data, or of a hole, from `at` in the buffer on.
    #[inline]
    fn begin_content(&mut self, chunk: Chunk, at: u32, len: u32) -> Result<(), Fault> {
        let slot = &mut self.slots[chunk.index];
        slot.arrived.add(at, at + len)?;
        if chunk.kind == chunk::OFFSET_DATA {
            self.rx.body = Body::Data { chunk, at };
        } else {
            let zero = Event::Zero {
                token: slot.request.token,
                offset: at,
                len,
            };
            self.events.push_back(Queued::Event(zero));
            self.end_chunk(chunk);
        }
        Ok(())
    }

    /// Receives an error chunk. Only its number matters, and its message must fit; the first error
    /// counts.
    fn error_chunk(&mut self, chunk: Chunk, code: u32, message: u16) -> Result<(), Fault> {
        let more = if chunk.kind == chunk::ERROR_OFFSET {
            8
        } else {
            0
        };
        let message = u32::from(message);
        if message > STRING_MAX as u32 || message + more > chunk.left {
            let (kind, len) = (chunk.kind, chunk.left + 6);
            return Err(Fault::Chunk { kind, len });
        }
        let error = &mut self.slots[chunk.index].error;
        *error = error.or(Some(Errno::from_code(code)));
        self.skip(chunk, 0);
        Ok(())
    }

    fn begin_extents(&mut self, chunk: Chunk, context: Option<u32>) -> Result<(), Fault> {
        // One chunk per context, and there is one context.
        if context != self.context || self.slots[chunk.index].has_status {
            let (kind, len) = (chunk.kind, chunk.left + 4);
            return Err(Fault::Chunk { kind, len });
        }
        self.rx.body = Body::Extents { chunk, covered: 0 };
        Ok(())
    }

    /// Receives one extent. None is empty, and none begins behind the end of the request.
    fn receive_extent(
        &mut self,
        mut chunk: Chunk,
        covered: u64,
        bytes: &[u8],
    ) -> (usize, Result<(), Fault>) {
        let n = self.rx.header.fill(8, bytes);
        let mut fields = Fields(self.rx.header.bytes());
        let (Some(length), Some(flags)) = (fields.u32(), fields.u32()) else {
            return (n, Ok(()));
        };
        self.rx.header.clear();
        let request = self.slots[chunk.index].request;
        let one = request.kind == Kind::BlockStatus { one: true };
        let beyond = one && (chunk.left > 8 || length > request.length);
        if length == 0 || covered >= request.length.into() || beyond {
            return (n, Err(Fault::Outside));
        }
        self.slots.add_extent(chunk.index, Extent { length, flags });
        chunk.left -= 8;
        let covered = covered + u64::from(length);
        self.rx.body = Body::Extents { chunk, covered };
        if chunk.left == 0 {
            self.end_chunk(chunk);
        }
        (n, Ok(()))
    }

    /// Skips `n` bytes.
    fn skip(&mut self, mut chunk: Chunk, n: u32) {
        chunk.left -= n;
        self.rx.body = Body::Skip(chunk);
        if chunk.left == 0 {
            self.end_chunk(chunk);
        }
    }

    /// Ends a chunk, and with the last one its request.
    #[inline]
    fn end_chunk(&mut self, chunk: Chunk) {
        self.rx.body = Body::None;
        if !chunk.done {
            return;
        }
        let slot = &self.slots[chunk.index];
        let whole = match slot.request.kind {
            Kind::Read => slot.arrived.is_whole(slot.request.length),
            Kind::BlockStatus { .. } => slot.has_status,
            _ => true,
        };
        let result = match slot.error {
            Some(errno) => Err(CommandError::Server(errno)),
            None if whole => Ok(()),
            None => Err(CommandError::Incomplete),
        };
        self.answered(chunk.index, result);
    }
}

/// A field of a chunk, all of whose fields have arrived.
#[inline]
fn whole<T>(field: Option<T>) -> T {
    let Some(value) = field else {
        unreachable!("a field beyond those of its chunk");
    };
    value
}
