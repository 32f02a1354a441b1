//! Status field of a completion queue entry (Base 2.0, 3.3.3.2.1).
//!
//! Maps type and code of a status to a [`Class`], on which retry and failover depend. Names and
//! classes stand in one table (`table`), so that a code can also be explained; the engine decides
//! the consequence of a class.
use core::fmt;

mod table;

/// The 15 status bits (without phase tag) of a completion: SC, SCT, CRD, M, DNR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u16);

/// Class of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Done.
    Success,
    /// The route failed, not the data; another path to the namespace may succeed (T2).
    Path,
    /// As `Path`, and the ANA log must be read before this path is used again (T26).
    Ana,
    /// As `Path`: this controller has no such namespace (any more), or not in this format; its
    /// namespaces must be read before this path is used again.
    Namespace,
    /// The transfer between host and controller failed once. The same path is likely to succeed;
    /// when it keeps failing, the route has failed (Base 2.0, 22h of the generic codes).
    Transport,
    /// The same path may succeed later.
    Retry,
    /// The controller failed without giving a cause, or with a code that the specifications don't
    /// have.
    Internal,
    /// The data can't be read or written, or its protection information is wrong.
    Media,
    /// A sanitize operation destroys all data, or has failed.
    Erased,
    /// Compare found a difference.
    Compare,
    /// No capacity left.
    Capacity,
    /// Write protected.
    ReadOnly,
    /// The host lacks the right.
    Denied,
    /// A reservation of another host; never moves to another path (T35).
    Reservation,
    /// The controller doesn't have the command.
    Unsupported,
    /// It lies beyond the end of the namespace.
    Range,
    /// The request itself was wrong.
    Invalid,
}

impl Status {
    const DNR: u16 = 1 << 14;
    const MORE: u16 = 1 << 13;
    const CODE: u16 = 0x07ff;

    /// From type and code, without retry bits.
    pub const fn new(sct: u8, sc: u8) -> Self {
        Self((sct as u16 & 7) << 8 | sc as u16)
    }

    /// The same, with Do Not Retry.
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// The same, without Do Not Retry.
    pub const fn without_dnr(self) -> Self {
        Self(self.0 & !Self::DNR)
    }

    /// The same, with a Command Retry Delay selector (0…3).
    pub const fn with_crd(self, crd: u8) -> Self {
        Self(self.0 & !(3 << 11) | (crd as u16 & 3) << 11)
    }

    /// The same, with More (the error log says more).
    pub const fn with_more(self) -> Self {
        Self(self.0 | Self::MORE)
    }

    /// Status code.
    pub const fn sc(self) -> u8 {
        self.0 as u8
    }

    /// Status code type.
    pub const fn sct(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Do Not Retry: ends retries on this path (T3).
    pub const fn dnr(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// The error log says more.
    pub const fn more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// Index into CRDT1…3 of the delay to wait before a retry; `None`: no delay (T1).
    pub const fn crd(self) -> Option<usize> {
        match self.0 >> 11 & 3 {
            0 => None,
            selector => Some(selector as usize - 1),
        }
    }

    /// Type and code alone: what the named constants compare to.
    pub const fn code(self) -> Self {
        Self(self.0 & Self::CODE)
    }

    /// Whether `other` has the same type and code, whatever the retry bits.
    pub const fn is(self, other: Self) -> bool {
        self.0 & Self::CODE == other.0 & Self::CODE
    }

    /// Type 0h, code 0h.
    pub const fn is_success(self) -> bool {
        self.0 & Self::CODE == 0
    }

    /// Returns the class; for a code that isn't in the table, the class of its range.
    pub fn class(self) -> Class {
        if let Some((_, class)) = self.entry() {
            return class;
        }
        match self.sct() {
            // Codes of later versions and of vendors: Do Not Retry decides whether to repeat it.
            1 if self.sc() < 0xc0 => Class::Invalid,
            2 => Class::Media,
            3 => Class::Path,
            _ => Class::Internal,
        }
    }

    /// Name in the specifications; `None` for codes that aren't in the table.
    pub fn name(self) -> Option<&'static str> {
        Some(self.entry()?.0)
    }

    /// Name of the code's range in the specifications.
    pub const fn range(self) -> &'static str {
        match (self.sct(), self.sc()) {
            (4..=6, _) => "reserved status code type",
            (7, _) | (_, 0xc0..) => "vendor specific",
            (1, 0x70..=0x7f) => "directive specific",
            (3, 0x60..=0x6f) => "pathing error detected by the controller",
            (3, 0x70..=0x7f) => "pathing error detected by the host",
            (_, 0x80..) => "specific to an I/O command set, or reserved",
            (3, _) => "path related, reserved",
            _ => "reserved",
        }
    }

    /// Whether another path to the same namespace may succeed where this one failed (T2).
    pub fn is_path_error(self) -> bool {
        matches!(self.class(), Class::Path | Class::Ana | Class::Namespace)
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:x}h/{:02x}h", self.sct(), self.sc())?;
        if let Some(index) = self.crd() {
            write!(f, " CRD {}", index + 1)?;
        }
        write!(f, "{})", if self.dnr() { " DNR" } else { "" })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name().unwrap_or("unknown status");
        write!(f, "{name} ({:x}h/{:02x}h", self.sct(), self.sc())?;
        f.write_str(if self.dnr() { ", do not retry)" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::{Class, Status};

    #[test]
    fn fields_lie_where_the_entry_has_them() {
        let status = Status::new(2, 0x81).with_crd(3).with_more().with_dnr();
        assert_eq!(status.0, 0b0111_1010_1000_0001);
        assert_eq!((status.sct(), status.sc()), (2, 0x81));
        assert!(status.dnr() && status.more());
        assert!(status.is(Status::UNRECOVERED_READ));
        assert_eq!(status.code(), Status::UNRECOVERED_READ);
    }

    #[test]
    fn t01_retry_delay_is_one_less_than_the_selector() {
        assert_eq!(Status::SUCCESS.crd(), None);
        for selector in 1..=3 {
            let status = Status::NAMESPACE_NOT_READY.with_crd(selector);
            assert_eq!(status.crd(), Some(usize::from(selector) - 1));
        }
    }

    #[test]
    fn t02_only_path_errors_may_move_to_another_path() {
        let path = [
            Status::INTERNAL_PATH,
            Status::ANA_PERSISTENT_LOSS,
            Status::ANA_INACCESSIBLE,
            Status::ANA_TRANSITION,
            Status::CONTROLLER_PATH,
            Status::HOST_PATH,
            Status::HOST_ABORTED,
            Status::SQ_DELETION,
            // Not of type 3h, but of this association and of this controller's namespaces.
            Status::KEEP_ALIVE_EXPIRED,
            Status::INVALID_NAMESPACE,
        ];
        for &status in Status::ALL {
            assert_eq!(
                status.with_dnr().is_path_error(),
                path.contains(&status),
                "{status}"
            );
        }
        for status in [
            Status::GUARD_CHECK,
            Status::UNRECOVERED_READ,
            Status::STORAGE_TAG_CHECK,
        ] {
            assert_eq!(status.class(), Class::Media);
        }
        assert_eq!(Status::RESERVATION_CONFLICT.class(), Class::Reservation);
        assert_eq!(Status::COMPARE_FAILURE.class(), Class::Compare);
        assert_eq!(Status::LBA_RANGE.class(), Class::Range);
        assert_eq!(Status::ANA_TRANSITION.class(), Class::Ana);
    }

    #[test]
    fn every_code_has_one_name_and_order() {
        for pair in Status::ALL.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{} before {}", pair[0], pair[1]);
        }
        for value in 0..=u16::MAX >> 1 {
            let _ = Status(value).class(); // total
        }
    }

    #[test]
    fn an_unnamed_code_has_the_class_of_its_range() {
        for (sct, sc, class, range) in [
            (0, 0x7f, Class::Internal, "reserved"),
            (0, 0xc0, Class::Internal, "vendor specific"),
            (1, 0x70, Class::Invalid, "directive specific"),
            (1, 0xc0, Class::Internal, "vendor specific"),
            (
                2,
                0xbf,
                Class::Media,
                "specific to an I/O command set, or reserved",
            ),
            (2, 0xc0, Class::Media, "vendor specific"),
            (3, 0x5f, Class::Path, "path related, reserved"),
            (
                3,
                0x61,
                Class::Path,
                "pathing error detected by the controller",
            ),
            (3, 0xff, Class::Path, "vendor specific"),
            (5, 0x00, Class::Internal, "reserved status code type"),
            (7, 0x00, Class::Internal, "vendor specific"),
        ] {
            let status = Status::new(sct, sc);
            assert_eq!((status.class(), status.range()), (class, range), "{status}");
            assert_eq!(status.name(), None);
        }
    }
}
