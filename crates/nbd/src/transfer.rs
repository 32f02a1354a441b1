//! The driver moves payload; the machines only name its place.
//!
//! # Contract
//! Receiving: the driver offers received bytes with `handle_bytes`, which takes headers and the
//! machine's own data and *stops* (returns fewer bytes than offered) where payload begins. Then
//! `placement()` is `Some`: the next `len` bytes of the stream belong into the buffer of request
//! `token` at `offset`. The driver moves any `n ≤ len` of them (copy, or receive directly into
//! place) and reports `handle_payload(n)`.
//!
//! Sending: `poll_transmit(&mut out)` appends headers and the machine's own data to `out`. If it
//! returns a payload, the driver puts that range behind them. A long payload is named in several
//! pieces by calls that follow each other; those behind the first may append nothing. When the
//! range is no longer read (copied, or the send completed) the driver calls `handle_sent(token)`,
//! once for every [`TxPayload`].
//!
//! Neither a [`Placement`] nor a [`TxPayload`] crosses a multiple of the configured `piece` in its
//! request's buffer: the driver may keep long data in pieces of that size.

/// Where the next bytes of the stream belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The request.
    pub token: u32,
    /// First byte in the request's buffer.
    pub offset: u32,
    /// Bytes of payload that follow in the stream now; never 0.
    pub len: u32,
}

/// Headers were appended, or a payload continues; a payload may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The payload to put behind what was appended.
    pub payload: Option<TxPayload>,
}

/// A range of a request's buffer to send; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxPayload {
    /// The request.
    pub token: u32,
    /// First byte in the request's buffer.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// Bytes from `offset` on that don't cross a multiple of `piece`, at most `left`.
pub(crate) fn piece(offset: u32, left: u32, piece: u32) -> u32 {
    left.min(piece - offset % piece)
}
