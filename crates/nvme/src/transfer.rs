//! The driver moves payload; the machines only name its place.
//!
//! # Contract
//! Receiving: the driver offers received bytes with `handle_bytes`, which takes headers and the
//! machine's own data and *stops* (returns fewer bytes than offered) where payload begins. Then
//! `placement()` is `Some`: the next `len` bytes of the stream belong into the buffer of command
//! `token` at `offset`. The driver moves any `n ≤ len` of them (copy, or receive directly into
//! place), and reports `handle_payload(n, crc)`; `crc` is the running CRC32C, started from
//! `Placement::crc`, and is ignored where that is `None`.
//!
//! Sending: `poll_transmit(&mut out)` appends the header of one PDU (with padding and header
//! digest, and whole PDUs of the machine's own data) to `out`. If it returns a payload, the driver
//! puts that range behind the header, followed, where `digest` is set, by the CRC32C of the range
//! in little-endian. When the range is no longer read (copied, or the send completed) the driver
//! calls `handle_sent(token)`, once for every [`TxPayload`].

/// Where the next bytes of the stream belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The command, as its submitter named it.
    pub token: u32,
    /// First byte in the command's buffer.
    pub offset: u32,
    /// Bytes of payload that follow in the stream now; never 0.
    pub len: u32,
    /// Running CRC32C to continue, where the data digest is on.
    pub crc: Option<u32>,
}

/// One PDU (or a run of small ones) was appended; payload may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The payload to put behind the header.
    pub payload: Option<TxPayload>,
}

/// A range of a command's buffer to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxPayload {
    /// The command, as its submitter named it.
    pub token: u32,
    /// First byte in the command's buffer.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
    /// Whether the CRC32C of the range follows it.
    pub digest: bool,
}
