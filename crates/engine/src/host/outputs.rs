//! What the engine wants done, in order, and which connections have something to send.
//!
//! # Limits
//! Sized at construction: a connection is named once for sending however often it asks, is opened
//! and closed once, and an I/O has one device request at most.
use crate::machine::{ConnId, Output};
use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

pub(super) struct Outputs {
    queue: VecDeque<Output>,
    /// Connections named in a `Transmit` that was not taken yet.
    named: Vec<bool>,
}

impl Outputs {
    pub(super) fn new(connections: usize, device_requests: usize) -> Self {
        // Transmit, Open, Close and its repetition as an abort, each once per connection; and Stop.
        let capacity = connections * 4 + device_requests + 1;
        Self {
            queue: VecDeque::with_capacity(capacity),
            named: vec![false; connections],
        }
    }

    pub(super) fn push(&mut self, output: Output) {
        self.queue.push_back(output);
    }

    /// There may be so many device requests at a time.
    pub(super) fn expect_requests(&mut self, device_requests: usize) {
        self.queue
            .reserve(self.named.len() * 4 + device_requests + 1);
    }

    /// `conn` may have something to send.
    #[inline]
    pub(super) fn transmit(&mut self, conn: ConnId) {
        let named = &mut self.named[conn.0 as usize];
        if !*named {
            *named = true;
            self.queue.push_back(Output::Transmit(conn));
        }
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<Output> {
        let output = self.queue.pop_front()?;
        if let Output::Transmit(conn) = output {
            self.named[conn.0 as usize] = false;
        }
        Some(output)
    }
}
