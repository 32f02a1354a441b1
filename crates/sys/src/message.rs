//! The parts of one send operation: staged bytes, ranges of the arena and of stripes, in order.
//!
//! # Contract
//! The owner appends to [`Message::staging`] and calls [`Message::push`] where a range of the arena
//! comes between the bytes staged before and after it, or [`Message::push_stripe`]. A message given
//! to `Ring::send` comes back with the completion; what the kernel left is sent by giving it back
//! once more.
use crate::Stripe;
use crate::arena::{Access, Arena, Extent};
use io_uring::{opcode, squeue, types};
use std::ops::Range;
use std::ptr;
use std::sync::Arc;

/// Bytes that are sent from where they lie.
#[derive(Debug)]
enum Payload {
    Arena(Extent),
    /// It is not changed while the message has it.
    Stripe(Arc<Stripe>, Range<usize>),
}

/// Staged bytes up to `staged_to`, then the payload.
#[derive(Debug)]
struct Piece {
    staged_to: usize,
    payload: Payload,
}

impl Piece {
    fn extent(&self) -> Option<Extent> {
        match self.payload {
            Payload::Arena(extent) => Some(extent),
            Payload::Stripe(..) => None,
        }
    }
}

/// A message being composed or sent.
pub struct Message {
    room: usize,
    staging: Vec<u8>,
    pieces: Vec<Piece>,
    payload_bytes: usize,
    sent: usize,
    vectors: Vec<libc::iovec>,
    /// One header, in a vector of its own so that it stays where it is when the message moves.
    header: Vec<libc::msghdr>,
}

impl Message {
    /// Room for `staging_bytes` staged and `extents` ranges without allocating again.
    pub fn new(staging_bytes: usize, extents: usize) -> Self {
        Self {
            room: staging_bytes,
            staging: Vec::with_capacity(staging_bytes),
            pieces: Vec::with_capacity(extents),
            payload_bytes: 0,
            sent: 0,
            vectors: Vec::with_capacity(2 * extents + 1),
            header: Vec::with_capacity(1),
        }
    }

    /// Bytes to send from the message itself; append only.
    pub fn staging(&mut self) -> &mut Vec<u8> {
        &mut self.staging
    }

    /// Bytes staged.
    pub fn staged(&self) -> &[u8] {
        &self.staging
    }

    /// Staged bytes that it was made for.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Staged bytes that it has memory for.
    pub fn capacity(&self) -> usize {
        self.staging.capacity()
    }

    /// A range of the arena follows what is staged so far.
    pub fn push(&mut self, extent: Extent) {
        self.push_payload(Payload::Arena(extent), extent.len as usize);
    }

    /// A range of a stripe follows what is staged so far.
    ///
    /// # Panics
    /// The range is not inside the stripe.
    pub fn push_stripe(&mut self, stripe: Arc<Stripe>, range: Range<usize>) {
        assert!(range.start <= range.end && range.end <= stripe.len());
        let len = range.len();
        self.push_payload(Payload::Stripe(stripe, range), len);
    }

    fn push_payload(&mut self, payload: Payload, bytes: usize) {
        self.pieces.push(Piece {
            staged_to: self.staging.len(),
            payload,
        });
        self.payload_bytes += bytes;
    }

    /// Ranges of the arena and of stripes in it.
    pub fn extents(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.staging.len() + self.payload_bytes
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes the kernel has taken.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Makes it empty; keeps its memory.
    pub fn clear(&mut self) {
        self.staging.clear();
        self.pieces.clear();
        self.payload_bytes = 0;
        self.sent = 0;
    }

    pub(crate) fn advance(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.len());
    }

    pub(crate) fn lock(&self, arena: &mut Arena) {
        let extents = self.pieces.iter().filter_map(Piece::extent);
        extents.for_each(|extent| arena.lock(extent, Access::Read));
    }

    pub(crate) fn unlock(&self, arena: &mut Arena) {
        let extents = self.pieces.iter().filter_map(Piece::extent);
        extents.for_each(|extent| arena.unlock(extent, Access::Read));
    }

    /// The operation that sends what is left, with more flags of `send` than usual. Its pointers
    /// stay good while the message is neither changed nor dropped, and the arena's extents stay
    /// locked.
    pub(crate) fn entry(
        &mut self,
        socket: types::Fd,
        more_flags: i32,
        arena: &Arena,
    ) -> squeue::Entry {
        // All or an error: a short count would only mean one more round.
        let flags = libc::MSG_WAITALL | libc::MSG_NOSIGNAL | more_flags;
        if self.pieces.is_empty() {
            let rest = &self.staging[self.sent.min(self.staging.len())..];
            let send = opcode::Send::new(socket, rest.as_ptr(), rest.len() as u32);
            return send.flags(flags).build();
        }
        self.gather(arena);
        self.header.clear();
        self.header.push(libc::msghdr {
            msg_name: ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: self.vectors.as_mut_ptr(),
            msg_iovlen: self.vectors.len(),
            msg_control: ptr::null_mut(),
            msg_controllen: 0,
            msg_flags: 0,
        });
        opcode::SendMsg::new(socket, self.header.as_ptr())
            .flags(flags as u32)
            .build()
    }

    /// Builds the vectors of what is left.
    fn gather(&mut self, arena: &Arena) {
        self.vectors.clear();
        let mut skip = self.sent;
        let mut staged = 0;
        for piece in &self.pieces {
            let run = &self.staging[staged..piece.staged_to];
            push_vector(&mut self.vectors, &mut skip, run.as_ptr(), run.len());
            let (at, len) = match &piece.payload {
                Payload::Arena(extent) => {
                    (arena.pointer(*extent).cast_const(), extent.len as usize)
                }
                Payload::Stripe(stripe, range) => (stripe[range.clone()].as_ptr(), range.len()),
            };
            push_vector(&mut self.vectors, &mut skip, at, len);
            staged = piece.staged_to;
        }
        let run = &self.staging[staged..];
        push_vector(&mut self.vectors, &mut skip, run.as_ptr(), run.len());
    }
}

/// Appends the run without the first `skip` bytes of the message that fall into it.
fn push_vector(vectors: &mut Vec<libc::iovec>, skip: &mut usize, at: *const u8, len: usize) {
    let skipped = len.min(*skip);
    *skip -= skipped;
    if len > skipped {
        let at = at.wrapping_add(skipped).cast_mut().cast();
        vectors.push(libc::iovec {
            iov_base: at,
            iov_len: len - skipped,
        });
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Message")
            .field("staged", &self.staging.len())
            .field("pieces", &self.pieces)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(message: &Message) -> Vec<usize> {
        message
            .vectors
            .iter()
            .map(|vector| vector.iov_len)
            .collect()
    }

    #[test]
    fn pieces_are_gathered_in_order_from_where_the_kernel_stopped() {
        let arena = Arena::new(1 << 20).unwrap();
        let stripe = Arc::new(crate::stripes(8192, 8192).unwrap().remove(0));
        let mut message = Message::new(64, 4);
        for (sent, expected) in [
            (0, vec![10, 4096, 100, 4]),
            (9, vec![1, 4096, 100, 4]),
            (10, vec![4096, 100, 4]),
            (4106, vec![100, 4]),
            (4200, vec![6, 4]),
            (4210, vec![]),
        ] {
            message.clear();
            message.staging().extend_from_slice(&[0; 10]);
            message.push(Extent::new(0, 4096));
            message.push_stripe(Arc::clone(&stripe), 50..150);
            message.staging().extend_from_slice(&[0; 4]);
            assert_eq!((message.len(), message.extents()), (4210, 2));
            message.advance(sent);
            message.gather(&arena);
            assert_eq!(lengths(&message), expected, "after {sent}");
        }
        assert_eq!(Arc::strong_count(&stripe), 2);
        message.clear();
        assert_eq!(
            Arc::strong_count(&stripe),
            1,
            "a message that is done has it no more"
        );
    }

    #[test]
    fn a_cleared_message_keeps_its_memory() {
        let mut message = Message::new(100, 2);
        message.staging().extend_from_slice(&[1; 100]);
        let at = message.staged().as_ptr();
        message.push(Extent::new(0, 1));
        message.clear();
        assert!(message.is_empty());
        message.staging().push(2);
        assert_eq!(message.staged().as_ptr(), at);
    }
}
