//! Completion queue entry (Base 2.0, 3.3.3.2), 16 bytes.
use super::{Status, WireError, exact, le16, le64, put};

/// SQHD of a queue without SQ flow control (Fabrics: Base 2.0, 6.3.2).
pub const SQHD_NONE: u16 = 0xffff;

/// A completion, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cqe {
    /// DW0 and DW1.
    pub result: u64,
    /// Submission queue head: entries before it are free again.
    pub sqhd: u16,
    /// Submission queue; 0 (reserved) over fabrics.
    pub sqid: u16,
    /// Command.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
}

impl Cqe {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// # Errors
    /// [`WireError::Truncated`] below 16 bytes.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let b = exact::<16>(bytes)?;
        Ok(Self {
            result: le64(b, 0),
            sqhd: le16(b, 8),
            sqid: le16(b, 10),
            cid: le16(b, 12),
            status: Status(le16(b, 14) >> 1),
        })
    }

    /// The entry; the phase tag (reserved over fabrics) is 0.
    #[inline]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        put(&mut b, 0, &self.result.to_le_bytes());
        put(&mut b, 8, &self.sqhd.to_le_bytes());
        put(&mut b, 10, &self.sqid.to_le_bytes());
        put(&mut b, 12, &self.cid.to_le_bytes());
        put(&mut b, 14, &(self.status.0 << 1).to_le_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_positions() {
        let cqe = Cqe {
            result: 0x8877_6655_4433_2211,
            sqhd: 0x0102,
            sqid: 0x0304,
            cid: 0x0506,
            status: Status::LBA_RANGE.with_dnr(),
        };
        let bytes = cqe.emit();
        assert_eq!(bytes[..8], [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
        assert_eq!(bytes[8..], [2, 1, 4, 3, 6, 5, 0x00, 0x81]);
        assert_eq!(Cqe::parse(&bytes), Ok(cqe));
        assert_eq!(
            Cqe::parse(&bytes[..15]),
            Err(WireError::Truncated { need: 16, got: 15 })
        );
    }
}
