//! The errors of replies (Error values).
use core::fmt;

/// An error, as the protocol names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// Operation not permitted: the export is read-only.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// Invalid argument.
    Inval = 22,
    /// No space left.
    NoSpc = 28,
    /// Too large to be sent unfragmented.
    Overflow = 75,
    /// A fast zero would not be fast.
    NotSup = 95,
    /// The server is being shut down.
    Shutdown = 108,
}

/// All of them.
const ALL: [Errno; 8] = [
    Errno::Perm,
    Errno::Io,
    Errno::NoMem,
    Errno::Inval,
    Errno::NoSpc,
    Errno::Overflow,
    Errno::NotSup,
    Errno::Shutdown,
];

impl Errno {
    /// The value on the wire.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// From the wire: a value that the protocol doesn't know counts as [`Errno::Inval`].
    pub fn from_code(code: u32) -> Self {
        ALL.into_iter()
            .find(|errno| errno.code() == code)
            .unwrap_or(Self::Inval)
    }

    /// Converts an error number of Linux; numbers that the protocol does not have become
    /// [`Errno::Io`].
    pub fn from_os(number: i32) -> Self {
        match number {
            // EPERM, EACCES, EROFS
            1 | 13 | 30 => Self::Perm,
            12 => Self::NoMem,
            22 => Self::Inval,
            // ENOSPC, EFBIG, EDQUOT
            28 | 27 | 122 => Self::NoSpc,
            75 => Self::Overflow,
            95 => Self::NotSup,
            108 => Self::Shutdown,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Perm => "operation not permitted (EPERM)",
            Self::Io => "input/output error (EIO)",
            Self::NoMem => "out of memory (ENOMEM)",
            Self::Inval => "invalid argument (EINVAL)",
            Self::NoSpc => "no space left (ENOSPC)",
            Self::Overflow => "value too large (EOVERFLOW)",
            Self::NotSup => "operation not supported (ENOTSUP)",
            Self::Shutdown => "server is being shut down (ESHUTDOWN)",
        })
    }
}

impl core::error::Error for Errno {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_the_protocol_and_numbers_of_the_system() {
        let codes = [1, 5, 12, 22, 28, 75, 95, 108];
        for (errno, code) in ALL.into_iter().zip(codes) {
            assert_eq!((errno.code(), Errno::from_code(code)), (code, errno));
            assert_eq!(Errno::from_os(code as i32), errno);
        }
        assert_eq!(Errno::from_code(2), Errno::Inval, "unknown (Error values)");
        assert_eq!(Errno::from_os(30), Errno::Perm, "EROFS");
        assert_eq!(Errno::from_os(13), Errno::Perm, "EACCES");
        assert_eq!(Errno::from_os(122), Errno::NoSpc, "EDQUOT");
        assert_eq!(Errno::from_os(27), Errno::NoSpc, "EFBIG");
        assert_eq!(Errno::from_os(110), Errno::Io, "ETIMEDOUT has no word");
    }
}
