//! Errors of the kernel's set-up calls.
use rustix::io::Errno;

/// An operation of the set-up failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// The system call, or the feature that is missing.
    pub operation: &'static str,
    /// The kernel's answer.
    pub source: Errno,
}

impl Error {
    pub(crate) fn new(operation: &'static str, source: Errno) -> Self {
        Self { operation, source }
    }

    pub(crate) fn io(operation: &'static str, source: &std::io::Error) -> Self {
        Self {
            operation,
            source: Errno::from_io_error(source).unwrap_or(Errno::IO),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.operation, self.source)
    }
}

impl std::error::Error for Error {}
