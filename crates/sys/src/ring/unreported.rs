//! Sends whose success the kernel does not report (`IOSQE_CQE_SKIP_SUCCESS`), so that one
//! `io_uring_enter` sends and sleeps until something arrives.
//!
//! # Contract
//! Such a send has `MSG_DONTWAIT`: `io_uring_enter` executes it while it submits, and never parks
//! it. A failure, or a count that is short, has been posted when the call returns; all else that
//! the kernel took has been sent whole. Its completion is made here, once the completion ring was
//! seen empty.
use super::{Completion, Held, OpId, Returned, Ring, split};
use std::collections::VecDeque;

/// Sends of one ring that may end without a word from the kernel.
pub(super) struct Unreported {
    /// In the order of their submission.
    sends: VecDeque<OpId>,
    /// The first so many were executed.
    executed: usize,
}

impl Unreported {
    /// Room for so many without allocating again.
    pub(super) fn new(sends: usize) -> Self {
        Self {
            sends: VecDeque::with_capacity(sends),
            executed: 0,
        }
    }

    pub(super) fn add(&mut self, id: OpId) {
        self.sends.push_back(id);
    }
}

impl Ring {
    /// Whether a send of [`Ring::send_unreported`] has no completion yet.
    pub fn has_unreported(&self) -> bool {
        !self.unreported.sends.is_empty()
    }

    /// The kernel was entered.
    pub(super) fn settle_unreported(&mut self) {
        let queue = self.uring.submission();
        // Failures that found no room in the completion ring are posted by the next enter.
        if self.backlog.is_empty() && queue.is_empty() && !queue.cq_overflow() {
            self.unreported.executed = self.unreported.sends.len();
        }
    }

    /// The next send that was executed and not reported. The completion ring is empty.
    pub(super) fn next_unreported(&mut self) -> Option<Completion> {
        while self.unreported.executed > 0 {
            self.unreported.executed -= 1;
            let (index, generation) = split(self.unreported.sends.pop_front()?.0);
            // Its failure was reported meanwhile.
            if self.slots[index as usize].generation != generation {
                continue;
            }
            let tag = self.slots[index as usize].tag;
            let Held::Message(mut message) = self.release(index) else {
                unreachable!("a send holds its message");
            };
            message.unlock(&mut self.arena);
            let count = message.len() - message.sent();
            message.advance(count);
            return Some(Completion {
                tag,
                result: Ok(count as u32),
                more: false,
                nonempty: false,
                returned: Returned::Message(message),
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{message, pair, ring_in};
    use super::super::{MODES, Mode};
    use crate::{Errno, Message, Ring, Wait};
    use std::io::{Read, Write};
    use std::time::Duration;

    fn composed(bytes: &[u8]) -> Message {
        let mut message = Message::new(bytes.len(), 0);
        message.staging().extend_from_slice(bytes);
        message
    }

    fn in_each_mode(test: impl Fn(Ring, Mode)) {
        for mode in MODES {
            test(ring_in(&[mode]), mode);
        }
    }

    #[test]
    fn a_send_that_succeeds_does_not_end_a_sleep() {
        in_each_mode(|mut ring, mode| {
            let (socket, mut peer) = pair();
            ring.receive(&socket, u32::MAX, true, 1);
            ring.enter(Wait::No).unwrap();
            let echo = std::thread::spawn(move || {
                let mut bytes = [0; 5];
                peer.read_exact(&mut bytes).unwrap();
                peer.write_all(&bytes).unwrap();
                peer
            });
            ring.send_unreported(&socket, composed(b"hello"), 2);
            assert!(ring.has_unreported());
            let before = ring.enters();
            ring.enter(Wait::Forever).unwrap();
            assert_eq!(ring.enters(), before + 1, "{mode:?}: it sends and sleeps");
            let arrived = ring.next_completion().unwrap();
            assert_eq!((arrived.tag, arrived.result), (1, Ok(5)), "{mode:?}");
            let sent = ring.next_completion().unwrap();
            assert_eq!((sent.tag, sent.result), (2, Ok(5)), "{mode:?}");
            let sent = message(sent);
            assert_eq!(sent.sent(), sent.len());
            assert!(!ring.has_unreported() && ring.in_flight() == 0);
            drop(echo.join().unwrap());
        });
    }

    #[test]
    fn a_send_without_room_is_short_and_ends_a_sleep() {
        in_each_mode(|mut ring, mode| {
            let (socket, peer) = pair();
            let mut message = composed(&vec![7; 64 << 20]);
            let mut results = Vec::new();
            while results.last().is_none_or(|last| *last != Err(Errno::AGAIN)) {
                ring.send_unreported(&socket, message, 3);
                ring.enter(Wait::AtMost(Duration::from_secs(60))).unwrap();
                let ended = ring.next_completion().unwrap();
                assert_eq!(ended.tag, 3);
                results.push(ended.result);
                message = super::super::tests::message(ended);
                assert!(results.len() < 1000 && message.sent() < message.len());
            }
            let counts = results.iter().flatten().map(|count| *count as usize);
            assert_eq!(counts.sum::<usize>(), message.sent(), "{mode:?}");
            assert!(message.sent() > 0 && ring.in_flight() == 0, "{mode:?}");
            drop(peer);
        });
    }

    #[test]
    fn sends_beyond_the_submission_ring_are_all_reported() {
        let mut ring = ring_in(&MODES);
        let pairs: Vec<_> = (0..60).map(|_| pair()).collect();
        for (tag, (socket, _)) in (0..).zip(&pairs) {
            ring.send_unreported(socket, composed(b"x"), tag);
        }
        assert!(ring.next_completion().is_none(), "none was submitted");
        ring.enter(Wait::No).unwrap();
        for tag in 0..60 {
            let sent = ring.next_completion().unwrap();
            assert_eq!((sent.tag, sent.result), (tag, Ok(1)));
        }
        assert!(ring.next_completion().is_none());
    }

    #[test]
    fn a_failed_send_is_reported_once() {
        let mut ring = ring_in(&MODES);
        let (socket, peer) = pair();
        drop(peer);
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
        ring.send_unreported(&socket, composed(b"x"), 4);
        ring.enter(Wait::AtMost(Duration::from_secs(60))).unwrap();
        let ended = ring.next_completion().unwrap();
        assert_eq!((ended.tag, ended.result), (4, Err(Errno::PIPE)));
        assert!(ring.next_completion().is_none() && !ring.has_unreported());
    }
}
