//! Log of connections, in words for people: a ring that one core fills and one thread
//! reads.
//!
//! # Contract
//! Writing never waits and never fails: who doesn't read in time loses the oldest, and learns how
//! many. One reader. Nothing on the I/O path writes here; injected faults that come with single
//! commands are in the [`Board`](super::Board).
use crate::limits::LOG_EVENTS_MAX;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use nvme::controller::CloseReason;

use crate::machine::Closed;

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A host connected.
    Connected {
        /// Port (index).
        port: u16,
        /// Number of the connection; free again when it is closed.
        connection: u32,
    },
    /// A connection is over.
    Closed {
        /// Port (index).
        port: u16,
        /// Number of the connection.
        connection: u32,
        /// Why.
        why: Why,
    },
    /// Hosts connected while all places were taken, and were turned away.
    TurnedAway {
        /// Port (index) of the last one.
        port: u16,
        /// How many since this was said last.
        count: u32,
    },
}

/// Why a connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The subsystem ended it.
    Target(CloseReason),
    /// It was dropped on request, or by an injected fault.
    Dropped,
    /// It held memory that others waited for, and moved next to nothing.
    Stalled,
    /// The target ends.
    Stopping,
    /// The host or the network ended it.
    Network(Closed),
}

impl Why {
    /// Whether a fault of the host, or of what is between, ended it: not an end in order, and not
    /// the network's alone.
    pub fn is_fault(self) -> bool {
        match self {
            Self::Stalled => true,
            Self::Target(reason) => {
                !matches!(reason, CloseReason::Finished | CloseReason::AssociationLost)
            }
            Self::Dropped | Self::Stopping | Self::Network(_) => false,
        }
    }
}

/// Events until they are read.
#[derive(Debug)]
pub struct Log {
    /// Each event packed into one word, so that none is ever half of two.
    ring: Box<[AtomicU64]>,
    written: AtomicU64,
    read: AtomicU64,
}

impl Log {
    pub(super) fn new() -> Self {
        Log {
            ring: (0..LOG_EVENTS_MAX).map(|_| AtomicU64::new(0)).collect(),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
        }
    }

    /// The core's: one more event.
    pub(super) fn push(&self, event: Event) {
        let number = self.written.load(Ordering::Relaxed);
        self.place(number).store(pack(event), Ordering::Release);
        self.written.store(number + 1, Ordering::Release);
    }

    /// Events so far, read or not: whether there is anything new.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// The reader's: the oldest event not yet read, and how many before it were lost.
    pub fn pop(&self) -> Option<(u64, Event)> {
        let mut number = self.read.load(Ordering::Relaxed);
        let mut lost = 0;
        loop {
            let written = self.written.load(Ordering::Acquire);
            if number == written {
                return None;
            }
            // One place less than there are: the next event may be on its way into the last.
            let oldest = written.saturating_sub(LOG_EVENTS_MAX as u64 - 1);
            lost += oldest.saturating_sub(number);
            number = number.max(oldest);
            let word = self.place(number).load(Ordering::Acquire);
            // If the writer has come round meanwhile, the word may be another event's.
            if self.written.load(Ordering::Acquire) - number < LOG_EVENTS_MAX as u64 {
                self.read.store(number + 1, Ordering::Relaxed);
                return Some((lost, unpack(word)));
            }
        }
    }

    fn place(&self, number: u64) -> &AtomicU64 {
        &self.ring[(number % LOG_EVENTS_MAX as u64) as usize]
    }
}

/// Reasons of the subsystem, in the order of their numbers.
const REASONS: [CloseReason; 9] = [
    CloseReason::Finished,
    CloseReason::KeepAlive,
    CloseReason::Protocol,
    CloseReason::Handshake,
    CloseReason::Terminated,
    CloseReason::AssociationLost,
    CloseReason::Linger,
    CloseReason::Damaged,
    CloseReason::NotAdmitted,
];

/// Connection in bits 0…23, port 24…31, kind 32…39 (0 = connected), detail 40…63.
fn pack(event: Event) -> u64 {
    let (port, connection, kind, detail) = match event {
        Event::Connected { port, connection } => (port, connection, 0, 0),
        Event::TurnedAway { port, count } => (port, count.min(0xff_ffff), 8, 0),
        Event::Closed {
            port,
            connection,
            why,
        } => {
            let (kind, detail) = match why {
                Why::Target(reason) => {
                    let number = REASONS.iter().position(|of| *of == reason);
                    (1, number.unwrap_or_default() as u64)
                }
                Why::Dropped => (2, 0),
                Why::Stopping => (3, 0),
                Why::Stalled => (7, 0),
                Why::Network(Closed::ByPeer) => (4, 0),
                Why::Network(Closed::ByUs) => (5, 0),
                Why::Network(Closed::Error(errno)) => (6, u64::from(errno.unsigned_abs())),
            };
            (port, connection, kind, detail)
        }
    };
    let low = u64::from(connection & 0xff_ffff) | u64::from(port & 0xff) << 24;
    low | kind << 32 | (detail & 0xff_ffff) << 40
}

fn unpack(word: u64) -> Event {
    let (connection, port) = ((word & 0xff_ffff) as u32, (word >> 24 & 0xff) as u16);
    let detail = word >> 40;
    let why = match word >> 32 & 0xff {
        0 => return Event::Connected { port, connection },
        8 => {
            let count = connection;
            return Event::TurnedAway { port, count };
        }
        1 => Why::Target(REASONS[detail as usize % REASONS.len()]),
        2 => Why::Dropped,
        3 => Why::Stopping,
        4 => Why::Network(Closed::ByPeer),
        5 => Why::Network(Closed::ByUs),
        7 => Why::Stalled,
        _ => Why::Network(Closed::Error(detail as i32)),
    };
    Event::Closed {
        port,
        connection,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_comes_back_as_it_was() {
        let log = Log::new();
        let reasons = REASONS.map(Why::Target).into_iter();
        let network = [Closed::ByPeer, Closed::ByUs, Closed::Error(104)].map(Why::Network);
        for why in reasons
            .chain([Why::Dropped, Why::Stalled, Why::Stopping])
            .chain(network)
        {
            let event = Event::Closed {
                port: 63,
                connection: 65_535,
                why,
            };
            log.push(event);
            assert_eq!(log.pop(), Some((0, event)));
        }
        let event = Event::TurnedAway {
            port: 9,
            count: 70_000,
        };
        log.push(event);
        assert_eq!(log.pop(), Some((0, event)));
        assert_eq!(log.pop(), None);
    }

    #[test]
    fn who_reads_late_learns_how_many_were_lost() {
        let log = Log::new();
        let event = |connection| Event::Connected {
            port: 0,
            connection,
        };
        let count = LOG_EVENTS_MAX as u32 + 9;
        (0..count).for_each(|number| log.push(event(number)));
        assert_eq!(log.pop(), Some((10, event(10))));
        let rest = core::iter::from_fn(|| log.pop()).count();
        assert_eq!(rest, LOG_EVENTS_MAX - 2);
    }
}
