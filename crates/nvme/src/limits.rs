//! All limits of this crate.

/// Longest TermReq, bytes: 24 of header and 128 of the header that was refused (NVMe-TCP 1.0, 3.6.2.3).
pub const TERM_REQ_MAX: u32 = 152;
/// Longest NQN, bytes (Base 2.0, 4.5).
pub const NQN_MAX: usize = 223;
