//! Recent transfers of a connection, and so whether memory that it gets comes back soon.
//!
//! Decides, from the payload that a connection has moved in the last second or two, whether it may
//! have of the part of an arena that is kept for those whose memory turns over. Peers that take
//! memory and move nothing then find that part closed, however many they are, and those who were
//! busy before they came go on.
//!
//! # Contract
//! What is moved is told as it moves ([`Motion::moved`]); a new connection begins anew. A socket
//! takes some from us though its peer reads nothing, so that less than [`MOVED_MIN`] shows nothing.
//!
//! # Limits
//! A peer that moves that much and then stops keeps what it has until it is given up.
use crate::limits::{MOVED_MIN, MOVED_SHIFT};

/// Bytes that one connection moved, by windows of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Motion {
    /// The last window in which something moved.
    window: u64,
    /// Bytes in that one, and in the one before.
    now: u64,
    before: u64,
}

impl Motion {
    /// Payload has moved.
    #[inline]
    pub(crate) fn moved(&mut self, bytes: u64, now_ns: u64) {
        let window = now_ns >> MOVED_SHIFT;
        if window != self.window {
            let follows = window == self.window.wrapping_add(1);
            self.before = if follows { self.now } else { 0 };
            (self.window, self.now) = (window, 0);
        }
        self.now += bytes;
    }

    /// Whether so much, held, comes back soon.
    pub(crate) fn turns_over(&self, held_bytes: u64, now_ns: u64) -> bool {
        self.recent(now_ns) >= held_bytes.max(MOVED_MIN)
    }

    /// Bytes of the present window and the one before.
    fn recent(&self, now_ns: u64) -> u64 {
        match (now_ns >> MOVED_SHIFT).wrapping_sub(self.window) {
            0 => self.now + self.before,
            1 => self.now,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 1 << MOVED_SHIFT;

    #[test]
    fn what_moved_counts_for_one_to_two_windows() {
        let mut motion = Motion::default();
        assert!(!motion.turns_over(0, 0));
        motion.moved(MOVED_MIN, 9 * WINDOW + 5);
        for (now_ns, counts) in [(9, true), (10, true), (11, false)] {
            assert_eq!(motion.turns_over(MOVED_MIN, now_ns * WINDOW + 5), counts);
        }
        assert!(!motion.turns_over(MOVED_MIN + 1, 10 * WINDOW));
        motion.moved(1, 10 * WINDOW);
        assert!(motion.turns_over(MOVED_MIN + 1, 10 * WINDOW));
        motion.moved(1, 12 * WINDOW);
        assert_eq!(motion.recent(12 * WINDOW), 1);
    }
}
