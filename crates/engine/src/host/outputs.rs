//! Work that the engine wants done, in order, and which connections have something to send.
//!
//! # Limits
//! Sized at construction: a connection is named once for sending however often it asks, is opened
//! and closed once, and an I/O has one device request at most.
use crate::machine::{ConnId, Output};
use alloc::vec;
use alloc::vec::Vec;

pub(super) struct Outputs {
    /// A reactor takes all of them before it sleeps, so a list that begins again when it is empty
    /// will do.
    list: Vec<Output>,
    /// How many of them were taken.
    taken: usize,
    /// Connections named in a `Transmit` that was not taken yet.
    named: Vec<bool>,
}

impl Outputs {
    pub(super) fn new(connections: usize, device_requests: usize) -> Self {
        // Transmit, Open, Close and its repetition as an abort, each once per connection; and Stop.
        let capacity = connections * 4 + device_requests + 1;
        Self {
            list: Vec::with_capacity(capacity),
            taken: 0,
            named: vec![false; connections],
        }
    }

    #[inline]
    pub(super) fn push(&mut self, output: Output) {
        self.list.push(output);
    }

    /// There may be so many device requests at a time.
    pub(super) fn expect_requests(&mut self, device_requests: usize) {
        self.list
            .reserve(self.named.len() * 4 + device_requests + 1);
    }

    /// `conn` may have something to send.
    #[inline]
    pub(super) fn transmit(&mut self, conn: ConnId) {
        let named = &mut self.named[conn.0 as usize];
        if !*named {
            *named = true;
            self.list.push(Output::Transmit(conn));
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Output> {
        let output = *self.list.get(self.taken)?;
        self.taken += 1;
        if self.taken == self.list.len() {
            self.list.clear();
            self.taken = 0;
        }
        if let Output::Transmit(conn) = output {
            self.named[conn.0 as usize] = false;
        }
        Some(output)
    }
}
