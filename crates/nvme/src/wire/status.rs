//! Status field of a completion queue entry (Base 2.0, 3.3.3.2.1).
//!
//! Decides what kind of answer a status is ([`Class`]), from its type and code, for those who retry
//! or fail over. Values and names stand in one table, so that a code can also be explained.
use core::fmt;

/// The 15 status bits (without phase tag) of a completion: SC, SCT, CRD, M, DNR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Status(pub u16);

/// What kind of answer a status is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Done.
    Success,
    /// The route failed, not the data; another path to the namespace may do it (T2).
    Path,
    /// As `Path`, and the ANA log must be read before this path is used again (T26).
    Ana,
    /// The same path may do it later.
    Retry,
    /// The data can't be read or written, or its protection information is wrong.
    Media,
    /// Compare found a difference.
    Compare,
    /// No capacity left.
    Capacity,
    /// Write protected.
    ReadOnly,
    /// A reservation of another host; never moves to another path (T35).
    Reservation,
    /// The controller doesn't have the command.
    Unsupported,
    /// The request itself was wrong.
    Invalid,
    /// The controller failed, or said something vendor specific.
    Internal,
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

    /// What kind of answer this is.
    pub fn class(self) -> Class {
        match (self.sct(), self.sc()) {
            (0, 0x00) => Class::Success,
            // Aborted due to SQ Deletion: the queue went, not the data (T2).
            (0, 0x08) => Class::Path,
            // Power loss, sanitize and format in progress, interrupted, transient transport error,
            // media or namespace not ready, abort requested, data transfer error.
            (0, 0x04 | 0x05 | 0x07 | 0x1d | 0x21 | 0x22 | 0x24 | 0x82 | 0x84) => Class::Retry,
            (0, 0x01 | 0x23) => Class::Unsupported,
            (0, 0x06 | 0x1c) => Class::Internal,
            (0, 0x20) => Class::ReadOnly,
            (0, 0x81) => Class::Capacity,
            (0, 0x83) | (0, 0x1b) => Class::Reservation,
            (0, _) => Class::Invalid,
            (1, 0x82) => Class::ReadOnly,
            (1, 0x15 | 0x26) => Class::Capacity,
            (1, 0xc0..) => Class::Internal,
            (1, _) => Class::Invalid,
            (2, 0x85) => Class::Compare,
            (2, 0x86) => Class::Invalid,
            (2, _) => Class::Media,
            (3, 0x01..=0x03) => Class::Ana,
            (3, _) => Class::Path,
            _ => Class::Internal,
        }
    }

    /// Whether another path to the same namespace may do what this one couldn't (T2).
    pub fn is_path_error(self) -> bool {
        matches!(self.class(), Class::Path | Class::Ana)
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

/// Names every status once: constant, type, code and the words for people.
macro_rules! statuses {
    ($($name:ident $sct:literal $sc:literal $text:literal)*) => {
        #[allow(missing_docs)] // the third column says it
        impl Status {
            $(pub const $name: Self = Self::new($sct, $sc);)*

            /// What the specifications call it; `None` for codes that aren't in the table.
            pub fn name(self) -> Option<&'static str> {
                match (self.sct(), self.sc()) {
                    $(($sct, $sc) => Some($text),)*
                    _ => None,
                }
            }

            /// All statuses known by name, in order of type and code.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];
        }
    };
}

statuses! {
    SUCCESS 0 0x00 "successful completion"
    INVALID_OPCODE 0 0x01 "invalid command opcode"
    INVALID_FIELD 0 0x02 "invalid field in command"
    COMMAND_ID_CONFLICT 0 0x03 "command ID conflict"
    DATA_TRANSFER_ERROR 0 0x04 "data transfer error"
    POWER_LOSS 0 0x05 "commands aborted due to power loss notification"
    INTERNAL_ERROR 0 0x06 "internal error"
    ABORT_REQUESTED 0 0x07 "command abort requested"
    SQ_DELETION 0 0x08 "command aborted due to SQ deletion"
    FAILED_FUSED 0 0x09 "command aborted due to failed fused command"
    MISSING_FUSED 0 0x0a "command aborted due to missing fused command"
    INVALID_NAMESPACE 0 0x0b "invalid namespace or format"
    SEQUENCE_ERROR 0 0x0c "command sequence error"
    SGL_SEGMENT 0 0x0d "invalid SGL segment descriptor"
    SGL_COUNT 0 0x0e "invalid number of SGL descriptors"
    SGL_DATA_LENGTH 0 0x0f "data SGL length invalid"
    SGL_METADATA_LENGTH 0 0x10 "metadata SGL length invalid"
    SGL_TYPE 0 0x11 "SGL descriptor type invalid"
    CMB_USE 0 0x12 "invalid use of controller memory buffer"
    PRP_OFFSET 0 0x13 "PRP offset invalid"
    ATOMIC_WRITE_UNIT 0 0x14 "atomic write unit exceeded"
    OPERATION_DENIED 0 0x15 "operation denied"
    SGL_OFFSET 0 0x16 "SGL offset invalid"
    HOST_ID_FORMAT 0 0x18 "host identifier inconsistent format"
    KEEP_ALIVE_EXPIRED 0 0x19 "keep alive timer expired"
    KEEP_ALIVE_INVALID 0 0x1a "keep alive timeout invalid"
    PREEMPT_ABORT 0 0x1b "command aborted due to preempt and abort"
    SANITIZE_FAILED 0 0x1c "sanitize failed"
    SANITIZE_IN_PROGRESS 0 0x1d "sanitize in progress"
    SGL_GRANULARITY 0 0x1e "SGL data block granularity invalid"
    CMB_QUEUE 0 0x1f "command not supported for queue in CMB"
    WRITE_PROTECTED 0 0x20 "namespace is write protected"
    INTERRUPTED 0 0x21 "command interrupted"
    TRANSIENT_TRANSPORT 0 0x22 "transient transport error"
    LOCKDOWN 0 0x23 "command prohibited by command and feature lockdown"
    MEDIA_NOT_READY 0 0x24 "admin command media not ready"
    LBA_RANGE 0 0x80 "LBA out of range"
    CAPACITY_EXCEEDED 0 0x81 "capacity exceeded"
    NAMESPACE_NOT_READY 0 0x82 "namespace not ready"
    RESERVATION_CONFLICT 0 0x83 "reservation conflict"
    FORMAT_IN_PROGRESS 0 0x84 "format in progress"
    INVALID_VALUE_SIZE 0 0x85 "invalid value size"
    INVALID_KEY_SIZE 0 0x86 "invalid key size"
    KEY_MISSING 0 0x87 "KV key does not exist"
    UNRECOVERED_ERROR 0 0x88 "unrecovered error"
    KEY_EXISTS 0 0x89 "key exists"
    CQ_INVALID 1 0x00 "completion queue invalid"
    INVALID_QUEUE_ID 1 0x01 "invalid queue identifier"
    INVALID_QUEUE_SIZE 1 0x02 "invalid queue size"
    ABORT_LIMIT 1 0x03 "abort command limit exceeded"
    AER_LIMIT 1 0x05 "asynchronous event request limit exceeded"
    INVALID_FIRMWARE_SLOT 1 0x06 "invalid firmware slot"
    INVALID_FIRMWARE_IMAGE 1 0x07 "invalid firmware image"
    INVALID_INTERRUPT_VECTOR 1 0x08 "invalid interrupt vector"
    INVALID_LOG_PAGE 1 0x09 "invalid log page"
    INVALID_FORMAT 1 0x0a "invalid format"
    FIRMWARE_CONVENTIONAL_RESET 1 0x0b "firmware activation requires conventional reset"
    INVALID_QUEUE_DELETION 1 0x0c "invalid queue deletion"
    FEATURE_NOT_SAVEABLE 1 0x0d "feature identifier not saveable"
    FEATURE_NOT_CHANGEABLE 1 0x0e "feature not changeable"
    FEATURE_NOT_NAMESPACE 1 0x0f "feature not namespace specific"
    FIRMWARE_SUBSYSTEM_RESET 1 0x10 "firmware activation requires NVM subsystem reset"
    FIRMWARE_CONTROLLER_RESET 1 0x11 "firmware activation requires controller level reset"
    FIRMWARE_TIME 1 0x12 "firmware activation requires maximum time violation"
    FIRMWARE_PROHIBITED 1 0x13 "firmware activation prohibited"
    OVERLAPPING_RANGE 1 0x14 "overlapping range"
    NAMESPACE_CAPACITY 1 0x15 "namespace insufficient capacity"
    NSID_UNAVAILABLE 1 0x16 "namespace identifier unavailable"
    NAMESPACE_ATTACHED 1 0x18 "namespace already attached"
    NAMESPACE_PRIVATE 1 0x19 "namespace is private"
    NAMESPACE_NOT_ATTACHED 1 0x1a "namespace not attached"
    THIN_PROVISIONING 1 0x1b "thin provisioning not supported"
    CONTROLLER_LIST 1 0x1c "controller list invalid"
    SELF_TEST 1 0x1d "device self-test in progress"
    BOOT_PARTITION 1 0x1e "boot partition write prohibited"
    INVALID_CONTROLLER_ID 1 0x1f "invalid controller identifier"
    SECONDARY_CONTROLLER 1 0x20 "invalid secondary controller state"
    CONTROLLER_RESOURCES 1 0x21 "invalid number of controller resources"
    RESOURCE_ID 1 0x22 "invalid resource identifier"
    SANITIZE_PMR 1 0x23 "sanitize prohibited while persistent memory region is enabled"
    ANA_GROUP_ID 1 0x24 "ANA group identifier invalid"
    ANA_ATTACH 1 0x25 "ANA attach failed"
    INSUFFICIENT_CAPACITY 1 0x26 "insufficient capacity"
    ATTACHMENT_LIMIT 1 0x27 "namespace attachment limit exceeded"
    PROHIBITION_UNSUPPORTED 1 0x28 "prohibition of command execution not supported"
    COMMAND_SET_UNSUPPORTED 1 0x29 "I/O command set not supported"
    COMMAND_SET_DISABLED 1 0x2a "I/O command set not enabled"
    COMMAND_SET_COMBINATION 1 0x2b "I/O command set combination rejected"
    COMMAND_SET_INVALID 1 0x2c "invalid I/O command set"
    IDENTIFIER_UNAVAILABLE 1 0x2d "identifier unavailable"
    // 80h…8Fh of this type depend on the queue: Fabrics' own are in `fabrics::connect_status`.
    CONFLICTING_ATTRIBUTES 1 0x80 "conflicting attributes"
    INVALID_PROTECTION 1 0x81 "invalid protection information"
    READ_ONLY_RANGE 1 0x82 "attempted write to read only range"
    COMMAND_SIZE_LIMIT 1 0x83 "command size limit exceeded"
    ZONE_BOUNDARY 1 0xb8 "zoned boundary error"
    ZONE_FULL 1 0xb9 "zone is full"
    ZONE_READ_ONLY 1 0xba "zone is read only"
    ZONE_OFFLINE 1 0xbb "zone is offline"
    ZONE_INVALID_WRITE 1 0xbc "zone invalid write"
    ZONES_ACTIVE 1 0xbd "too many active zones"
    ZONES_OPEN 1 0xbe "too many open zones"
    ZONE_TRANSITION 1 0xbf "invalid zone state transition"
    WRITE_FAULT 2 0x80 "write fault"
    UNRECOVERED_READ 2 0x81 "unrecovered read error"
    GUARD_CHECK 2 0x82 "end-to-end guard check error"
    APP_TAG_CHECK 2 0x83 "end-to-end application tag check error"
    REF_TAG_CHECK 2 0x84 "end-to-end reference tag check error"
    COMPARE_FAILURE 2 0x85 "compare failure"
    ACCESS_DENIED 2 0x86 "access denied"
    DEALLOCATED 2 0x87 "deallocated or unwritten logical block"
    STORAGE_TAG_CHECK 2 0x88 "end-to-end storage tag check error"
    INTERNAL_PATH 3 0x00 "internal path error"
    ANA_PERSISTENT_LOSS 3 0x01 "asymmetric access persistent loss"
    ANA_INACCESSIBLE 3 0x02 "asymmetric access inaccessible"
    ANA_TRANSITION 3 0x03 "asymmetric access transition"
    CONTROLLER_PATH 3 0x60 "controller pathing error"
    HOST_PATH 3 0x70 "host pathing error"
    HOST_ABORTED 3 0x71 "command aborted by host"
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
        assert_eq!(Status::LBA_RANGE.class(), Class::Invalid);
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
}
