//! CRC32C (Castagnoli), the digest of NVMe/TCP headers and data (NVMe-TCP 1.0, 3.3.1.1).
use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// Continues `running` over `bytes`. Start with 0; after the last piece the value *is* the CRC32C.
#[inline]
pub fn crc32c(running: u32, bytes: &[u8]) -> u32 {
    if running == 0 {
        return crc32_iscsi(bytes);
    }
    // The public running value has the final inversion applied; the register hasn't.
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!running));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::crc32c;

    #[test]
    fn known_values() {
        // RFC 3720, B.4.
        assert_eq!(crc32c(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(0, &[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(0, b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(0, b""), 0);
    }

    #[test]
    fn any_split_gives_the_same_value() {
        let bytes: [u8; 300] = core::array::from_fn(|i| (i * 7) as u8);
        let whole = crc32c(0, &bytes);
        for cut in 0..=bytes.len() {
            assert_eq!(
                crc32c(crc32c(0, &bytes[..cut]), &bytes[cut..]),
                whole,
                "cut at {cut}"
            );
        }
    }
}
