//! Memory of the engine's own, for payload that must not land in a caller's buffer.
//!
//! A part of the arena that the program keeps for it behind its callers' buffers
//! ([`HostConfig::scratch`](crate::host::HostConfig), and one for each mirror). Where there is
//! none, nothing is ever given out.
//!
//! # Contract
//! What [`Scratch::take`] gave is given back once, whole, when nobody writes to it any more: the
//! command that it is for has ended, and so has its path's connection if the command had not (T10).
//! No room is no failure of any path (T6).
use crate::buddy::Buddy;
use crate::limits::BUFFER_MAX;
use crate::machine::Span;

pub(crate) struct Scratch {
    /// Where it begins in the arena.
    at: u64,
    buddy: Buddy,
}

impl Scratch {
    pub(crate) fn new(span: Span) -> Self {
        Self {
            at: span.at,
            buddy: Buddy::new(span.len.into()),
        }
    }

    /// A buffer of `len` bytes; `None`: there is no room now, or never for so many.
    pub(crate) fn take(&mut self, len: u32) -> Option<Span> {
        if len > BUFFER_MAX {
            return None;
        }
        let span = self.buddy.allocate(len)?;
        Some(Span {
            at: self.at + span.at,
            ..span
        })
    }

    /// Whether [`Scratch::take`] would give a buffer of `len` bytes now.
    pub(crate) fn has_room(&mut self, len: u32) -> bool {
        len <= BUFFER_MAX && self.buddy.has_room(len)
    }

    /// Takes back what [`Scratch::take`] gave.
    pub(crate) fn give_back(&mut self, span: Span) {
        self.buddy.free(Span {
            at: span.at - self.at,
            ..span
        });
    }

    /// Bytes that nobody has.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.buddy.free_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_lies_in_its_part_of_the_arena_and_comes_back() {
        let part = Span {
            at: 1 << 20,
            len: 1 << 14,
        };
        let mut scratch = Scratch::new(part);
        let spans: alloc::vec::Vec<_> = core::iter::from_fn(|| scratch.take(4096)).collect();
        assert_eq!(spans.len(), 4);
        for span in &spans {
            let end = span.at + u64::from(span.len);
            assert!(span.at >= part.at && end <= part.at + u64::from(part.len));
        }
        assert_eq!((scratch.free_bytes(), scratch.take(512)), (0, None));
        spans.into_iter().for_each(|span| scratch.give_back(span));
        assert_eq!(scratch.free_bytes(), u64::from(part.len));
    }

    #[test]
    fn t06_where_there_is_none_nothing_is_given_and_nothing_fails() {
        let mut scratch = Scratch::new(Span::default());
        assert_eq!((scratch.take(512), scratch.take(u32::MAX)), (None, None));
    }
}
