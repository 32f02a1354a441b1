//! Fields of the blocks of a mirror: where each lies, and its numbers in little endian.
use super::Crc32c;

/// Bytes of a block that mean one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub at: usize,
    pub bytes: usize,
}

/// `bytes` bytes from `at` on.
pub(super) const fn field(at: usize, bytes: usize) -> Field {
    Field { at, bytes }
}

impl Field {
    /// Its bytes in `block`.
    ///
    /// # Panics
    /// The block is shorter than that: blocks are arrays of their size.
    pub fn of(self, block: &[u8]) -> &[u8] {
        &block[self.at..self.at + self.bytes]
    }

    /// Its bytes in `block`, to be written.
    ///
    /// # Panics
    /// As [`Self::of`].
    pub fn of_mut(self, block: &mut [u8]) -> &mut [u8] {
        &mut block[self.at..self.at + self.bytes]
    }

    /// Its number, of at most 8 bytes.
    pub fn number(self, block: &[u8]) -> u64 {
        let bytes = self.of(block).iter().rev();
        bytes.fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// Sets its number, which fits.
    pub fn set(self, block: &mut [u8], number: u64) {
        let bytes = number.to_le_bytes();
        self.of_mut(block).copy_from_slice(&bytes[..self.bytes]);
    }

    /// Its 16 bytes.
    pub fn id(self, block: &[u8]) -> super::Id {
        let mut id = [0; 16];
        id.copy_from_slice(self.of(block));
        super::Id(id)
    }
}

/// The CRC32C (Castagnoli) of `block`, with zeroes where `checksum` lies.
pub(super) fn checksum<const N: usize>(block: &[u8; N], checksum: Field, crc32c: Crc32c) -> u32 {
    let mut block = *block;
    checksum.set(&mut block, 0);
    crc32c(&block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crc_fast::crc32_iscsi;

    #[test]
    fn numbers_are_little_endian_and_a_checksum_leaves_itself_out() {
        let mut block = [0; 8];
        field(1, 3).set(&mut block, 0x01_02_03);
        assert_eq!(block, [0, 3, 2, 1, 0, 0, 0, 0]);
        assert_eq!(field(1, 3).number(&block), 0x01_02_03);
        let sum = checksum(&block, field(4, 4), crc32_iscsi);
        field(4, 4).set(&mut block, sum.into());
        assert_eq!(checksum(&block, field(4, 4), crc32_iscsi), sum);
        assert_eq!(
            checksum(b"123456789\0\0\0\0", field(9, 4), crc32_iscsi),
            crc32_iscsi(b"123456789\0\0\0\0")
        );
        assert_eq!(crc32_iscsi(b"123456789"), 0xe306_9283, "RFC 3720, B.4");
    }
}
