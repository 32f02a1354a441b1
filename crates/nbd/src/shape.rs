//! The requests that an export accepts: one set of rules for the server, which refuses, and the
//! client, which does not send.
use crate::{BlockSizes, Errno, Features, Kind, Request};

/// A refusal of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub errno: Errno,
    /// Text for people.
    pub why: &'static str,
}

pub(crate) const fn refuse<T>(errno: Errno, why: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, why })
}

/// An export as one session may use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Bytes.
    pub size: u64,
    /// The minimum is 1 where none was agreed.
    pub block_sizes: BlockSizes,
    /// Features in effect; Block Status only if the context was selected.
    pub features: Features,
}

impl Shape {
    /// Before an export is chosen.
    pub const NONE: Self = Self {
        size: 0,
        block_sizes: BlockSizes::DEFAULT,
        features: Features::NONE,
    };

    /// Checks whether the export accepts this command at all.
    pub fn offers(&self, kind: Kind) -> Result<(), Refusal> {
        let features = &self.features;
        if kind.is_change() && features.read_only {
            return refuse(Errno::Perm, "the export is read-only");
        }
        let offered = match kind {
            Kind::Read | Kind::Write => true,
            Kind::Flush => features.flush,
            Kind::Trim => features.trim,
            Kind::Cache => features.cache,
            Kind::WriteZeroes => features.write_zeroes,
            Kind::BlockStatus { .. } => features.block_status,
        };
        if offered {
            Ok(())
        } else {
            refuse(Errno::Inval, "the command was not offered")
        }
    }

    /// Checks range and length (Request types, Block size constraints). `df`: the answer must come
    /// in one piece.
    #[inline]
    pub fn check_range(&self, request: &Request, df: bool) -> Result<(), Refusal> {
        let Request {
            kind,
            offset,
            length,
            ..
        } = *request;
        if kind == Kind::Flush {
            return match (offset, length) {
                (0, 0) => Ok(()),
                _ => refuse(Errno::Inval, "a flush has no range"),
            };
        }
        if length == 0 {
            return refuse(Errno::Inval, "the length is zero");
        }
        // 64 bits and 32: the sum may wrap, so it is never formed.
        if offset > self.size || u64::from(length) > self.size - offset {
            let errno = match kind {
                Kind::Write | Kind::WriteZeroes => Errno::NoSpc,
                _ => Errno::Inval,
            };
            return refuse(errno, "the range is beyond the end of the export");
        }
        let mask = u64::from(self.block_sizes.minimum) - 1;
        if (offset | u64::from(length)) & mask != 0 {
            return refuse(Errno::Inval, "the range is not aligned to the block size");
        }
        // Other commands move no data: only their range counts.
        if matches!(kind, Kind::Read | Kind::Write) && length > self.block_sizes.maximum {
            let errno = if df { Errno::Overflow } else { Errno::Inval };
            return refuse(errno, "longer than the maximum block size");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        size: 1 << 20,
        block_sizes: BlockSizes {
            minimum: 512,
            preferred: 4096,
            maximum: 65536,
        },
        features: Features {
            read_only: false,
            flush: true,
            fua: true,
            rotational: false,
            trim: true,
            write_zeroes: true,
            fast_zero: true,
            cache: true,
            multi_conn: true,
            block_status: true,
        },
    };

    fn checked(kind: Kind, offset: u64, length: u32) -> Option<Errno> {
        let request = Request::new(0, kind, offset, length);
        SHAPE.check_range(&request, false).err().map(|r| r.errno)
    }

    #[test]
    fn ranges_end_with_the_export_in_wide_arithmetic() {
        let end = SHAPE.size;
        assert_eq!(checked(Kind::Read, end - 512, 512), None);
        for (offset, length) in [
            (end - 512, 1024),
            (end, 512),
            (end + 512, 512),
            (u64::MAX, u32::MAX),
            (u64::MAX - 511, 512),
            (0, u32::MAX),
        ] {
            assert_eq!(checked(Kind::Read, offset, length), Some(Errno::Inval));
            assert_eq!(checked(Kind::Trim, offset, length), Some(Errno::Inval));
            assert_eq!(checked(Kind::Write, offset, length), Some(Errno::NoSpc));
            assert_eq!(
                checked(Kind::WriteZeroes, offset, length),
                Some(Errno::NoSpc)
            );
        }
    }

    #[test]
    fn alignment_length_and_maximum() {
        let inval = Some(Errno::Inval);
        assert_eq!(checked(Kind::Write, 512, 513), inval);
        assert_eq!(checked(Kind::Write, 513, 512), inval);
        assert_eq!(checked(Kind::Read, 0, 0), inval);
        assert_eq!(checked(Kind::Read, 0, 65536), None);
        assert_eq!(checked(Kind::Read, 0, 65536 + 512), inval);
        assert_eq!(checked(Kind::Trim, 0, 1 << 20), None, "nothing is moved");
        assert_eq!(checked(Kind::WriteZeroes, 0, 1 << 20), None);
        assert_eq!(checked(Kind::Flush, 0, 0), None);
        assert_eq!(checked(Kind::Flush, 512, 0), inval);
        assert_eq!(checked(Kind::Flush, 0, 512), inval);
        let long = Request::new(0, Kind::Read, 0, 65536 + 512);
        let refusal = SHAPE.check_range(&long, true).unwrap_err();
        assert_eq!(refusal.errno, Errno::Overflow, "DF alone says so");
    }

    #[test]
    fn unoffered_and_read_only_have_their_errors() {
        let mut shape = SHAPE;
        shape.features = Features::default();
        let kinds = [
            Kind::Flush,
            Kind::Trim,
            Kind::Cache,
            Kind::WriteZeroes,
            Kind::BlockStatus { one: false },
        ];
        for kind in kinds {
            assert_eq!(shape.offers(kind).unwrap_err().errno, Errno::Inval);
            assert!(SHAPE.offers(kind).is_ok());
        }
        assert!(shape.offers(Kind::Write).is_ok());
        shape.features.read_only = true;
        for kind in [Kind::Write, Kind::Trim, Kind::WriteZeroes] {
            assert_eq!(shape.offers(kind).unwrap_err().errno, Errno::Perm);
        }
        assert!(shape.offers(Kind::Read).is_ok());
    }
}
