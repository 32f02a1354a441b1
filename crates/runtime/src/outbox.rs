//! Messages from one reactor to another: sent without waiting.
//!
//! # Contract
//! Messages arrive in the order in which they were given. Those that find the mailbox of the other
//! reactor full are kept here, and offered again by [`Outbox::drain`]: a reactor that waited for a
//! stalled one would stall with it.
//!
//! # Limits
//! The queue is not bounded: its user sends news of paths, which are few, and none may be lost.
use crate::mailbox::{SendError, Sender};
use std::collections::VecDeque;

/// Messages to be sent to one reactor.
#[derive(Debug)]
pub struct Outbox<C> {
    to: Sender<C>,
    kept: VecDeque<C>,
}

impl<C: Send> Outbox<C> {
    /// An empty one.
    pub fn new(to: Sender<C>) -> Self {
        Self {
            to,
            kept: VecDeque::new(),
        }
    }

    /// Sends a message, or keeps it behind those that are kept already.
    pub fn send(&mut self, message: C) {
        self.kept.push_back(message);
        self.drain();
    }

    /// Sends what is kept, as far as the mailbox has room. Messages to a reactor that is gone are
    /// dropped.
    pub fn drain(&mut self) {
        while let Some(message) = self.kept.pop_front() {
            match self.to.try_send(message) {
                Ok(()) => {}
                Err(SendError::Full(message)) => return self.kept.push_front(message),
                Err(SendError::Gone(_)) => self.kept.clear(),
            }
        }
    }

    /// Whether nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAILBOX_MAX;
    use crate::mailbox::{Mail, Mailbox};

    fn taken(mailbox: &Mailbox<usize>) -> Vec<usize> {
        let mails = std::iter::from_fn(|| mailbox.take());
        let numbers = mails.map(|mail| match mail {
            Mail::Control(number) => number,
            _ => unreachable!(),
        });
        numbers.collect()
    }

    #[test]
    fn full_mailbox_keeps_the_rest_in_order() {
        let (sender, mailbox) = Mailbox::new("test").unwrap();
        let mut outbox = Outbox::new(sender);
        let all = 2 * MAILBOX_MAX + 3;
        (0..all).for_each(|number| outbox.send(number)); // does not wait
        assert!(!outbox.is_empty());
        let mut seen = Vec::new();
        while seen.len() < all {
            seen.extend(taken(&mailbox));
            outbox.drain();
        }
        assert!(outbox.is_empty());
        assert_eq!(seen, (0..all).collect::<Vec<_>>());
    }

    #[test]
    fn gone_reactor_ends_what_is_kept() {
        let (sender, mailbox) = Mailbox::new("test").unwrap();
        let mut outbox = Outbox::new(sender);
        (0..=MAILBOX_MAX).for_each(|number| outbox.send(number));
        drop(mailbox);
        outbox.drain();
        assert!(outbox.is_empty());
    }
}
