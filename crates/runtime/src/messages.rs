//! Messages not in use: what is composed for sending, and held while the kernel sends it.
//!
//! # Contract
//! The first [`MESSAGES_LARGE_MAX`] in flight are large, so that a busy connection sends much in
//! one
//! operation; when so many are held, by peers that don't read, further ones are small. Both kinds
//! are kept, the one used last on top.
//!
//! # Limits
//! Large ones as many as that; small ones as many as there are connections, of [`STAGED_SMALL_MAX`]
//! and the bytes that the last answer appends. Larger ones are not kept.
use crate::limits::{
    EXTENTS_MAX, EXTENTS_SMALL_MAX, MESSAGES_LARGE_MAX, STAGED_MAX, STAGED_SLACK, STAGED_SMALL_MAX,
};
use sys::Message;

/// Room for staged bytes in each kind.
const LARGE_BYTES: usize = STAGED_MAX + STAGED_SLACK;
const SMALL_BYTES: usize = 2 * STAGED_SMALL_MAX;

pub(crate) struct Messages {
    large: Vec<Message>,
    small: Vec<Message>,
    /// Large ones that there are, in flight or not.
    made: u32,
}

impl Messages {
    /// With so many large ones, for so many connections.
    pub(crate) fn new(ready: u32, connections: u32) -> Self {
        let mut messages = Self {
            large: Vec::with_capacity(MESSAGES_LARGE_MAX as usize),
            small: Vec::with_capacity(connections as usize),
            made: 0,
        };
        for _ in 0..ready.min(MESSAGES_LARGE_MAX) {
            let message = messages.make();
            messages.large.push(message);
        }
        messages
    }

    /// An empty one.
    pub(crate) fn take(&mut self) -> Message {
        if let Some(message) = self.large.pop() {
            return message;
        }
        if self.made < MESSAGES_LARGE_MAX {
            return self.make();
        }
        let message = self.small.pop();
        message.unwrap_or_else(|| Message::new(SMALL_BYTES, EXTENTS_SMALL_MAX))
    }

    /// It is in use no more.
    pub(crate) fn put(&mut self, mut message: Message) {
        message.clear();
        if message.room() == LARGE_BYTES {
            self.large.push(message);
        } else if message.capacity() <= 2 * SMALL_BYTES {
            self.small.push(message);
        }
    }

    fn make(&mut self) -> Message {
        self.made += 1;
        Message::new(LARGE_BYTES, EXTENTS_MAX)
    }
}

/// Whether more may be asked of the machine.
pub(crate) fn has_room(message: &Message) -> bool {
    let (staged, extents) = match message.room() {
        LARGE_BYTES => (STAGED_MAX, EXTENTS_MAX),
        _ => (STAGED_SMALL_MAX, EXTENTS_SMALL_MAX),
    };
    message.staged().len() < staged
        && message.len() < crate::limits::MESSAGE_MAX
        && message.extents() < extents
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_many_are_held_further_ones_are_small_and_none_is_lost() {
        let mut messages = Messages::new(16, 200);
        let held: Vec<Message> = (0..200).map(|_| messages.take()).collect();
        let large = held.iter().filter(|it| it.room() == LARGE_BYTES).count();
        assert_eq!(large, MESSAGES_LARGE_MAX as usize);
        held.into_iter().for_each(|message| messages.put(message));
        let kept = (messages.large.len(), messages.small.len());
        assert_eq!(kept, (large, 200 - large));
        assert_eq!(messages.take().room(), LARGE_BYTES);
    }

    #[test]
    fn a_small_one_that_grew_is_not_kept_and_takes_no_more_when_it_is_full() {
        let mut messages = Messages::new(0, 1);
        let mut message = Message::new(SMALL_BYTES, EXTENTS_SMALL_MAX);
        assert!(has_room(&message));
        message.staging().resize(STAGED_SMALL_MAX, 0);
        assert!(!has_room(&message));
        message.staging().resize(8 * SMALL_BYTES, 0);
        messages.put(message);
        assert!(messages.small.is_empty());
    }
}
