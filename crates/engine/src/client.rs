//! Clients of exports, for statistics: names and counts of those that are connected.
use alloc::string::String;

/// Counts of one client's connection, or of all connections of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientCounters {
    /// When it connected, ns of the core's clock.
    pub since_ns: u64,
    /// Requests answered.
    pub requests: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Bytes: read, written.
    pub bytes: [u64; 2],
}

/// Where a client is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPlace {
    /// To the NBD export of this number.
    Export(u32),
    /// To the NVMe/TCP port of this listener.
    Listener(u32),
    /// It has a queue of the namespace of this number.
    Queue(u32),
}

/// A client that is connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientReport {
    /// Where.
    pub place: ClientPlace,
    /// Its volume. A host over NVMe/TCP is reported once for each volume that it has identified.
    pub volume: u16,
    /// Its process, address or NQN.
    pub name: String,
    /// Its connections.
    pub connections: u32,
    /// Requests that it waits for.
    pub in_flight: u32,
    /// Of a host over NVMe/TCP, over all namespaces of its subsystem.
    pub counters: ClientCounters,
}

impl ClientCounters {
    /// Counts the end of a request; `bytes`: read, written, if it was done.
    #[inline(always)]
    pub(crate) fn ended(&mut self, is_done: bool, bytes: [u64; 2]) {
        self.requests += 1;
        if is_done {
            self.bytes[0] += bytes[0];
            self.bytes[1] += bytes[1];
        } else {
            self.errors += 1;
        }
    }

    /// Adds those of another connection of the host.
    pub fn add(&mut self, other: &Self) {
        self.since_ns = self.since_ns.min(other.since_ns);
        self.requests += other.requests;
        self.errors += other.errors;
        self.bytes[0] += other.bytes[0];
        self.bytes[1] += other.bytes[1];
    }
}
