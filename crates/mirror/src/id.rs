//! Identifiers of mirrors, legs, hosts and runs: 16 random bytes, written as UUIDs are.
use core::fmt;

/// 16 bytes that nothing else has; all zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(pub [u8; 16]);

impl Id {
    /// Whether it is none.
    pub fn is_none(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Id;
    use alloc::string::ToString;

    #[test]
    fn it_is_written_as_a_uuid() {
        let id = Id(core::array::from_fn(|at| at as u8 * 17));
        assert_eq!(id.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert!(!id.is_none() && Id::default().is_none());
    }
}
