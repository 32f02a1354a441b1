//! Features (Base 2.0, 5.27) and the meaning of their dwords.

/// Feature identifiers (CDW10 bits 7:0).
#[allow(missing_docs)]
pub mod fid {
    pub const ARBITRATION: u8 = 0x01;
    pub const POWER_MANAGEMENT: u8 = 0x02;
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    pub const ERROR_RECOVERY: u8 = 0x05;
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    pub const ASYNC_EVENTS: u8 = 0x0b;
    pub const KEEP_ALIVE: u8 = 0x0f;
    pub const HOST_BEHAVIOR: u8 = 0x16;
    pub const HOST_IDENTIFIER: u8 = 0x81;
}

/// Bytes of Host Behavior Support (Base 2.0, 5.27.1.18).
pub const HOST_BEHAVIOR_LEN: usize = 512;
/// Its first byte: advanced command retry. Without it a controller sets no CRD.
pub const ACRE: u8 = 1;

/// Set Features CDW10: save.
pub const SAVE: u32 = 1 << 31;
/// Get and Set Host Identifier, CDW11: 128 bits.
pub const HOST_ID_EXTENDED: u32 = 1 << 0;

/// I/O queues asked for or granted: the one dword of Number of Queues, both halves 0's based.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCount {
    /// Submission queues, 1…65535.
    pub submission: u16,
    /// Completion queues, 1…65535.
    pub completion: u16,
}

impl QueueCount {
    /// `None`: a half is FFFFh, which is no number of queues.
    pub fn parse(dword: u32) -> Option<Self> {
        let submission = (dword as u16).checked_add(1)?;
        let completion = ((dword >> 16) as u16).checked_add(1)?;
        Some(Self {
            submission,
            completion,
        })
    }

    /// The dword; a count of 0 can't be said and becomes 1.
    pub fn emit(self) -> u32 {
        let zero_based = |count: u16| u32::from(count.max(1) - 1);
        zero_based(self.submission) | zero_based(self.completion) << 16
    }
}

/// Bits of Asynchronous Event Configuration and of OAES.
#[allow(missing_docs)]
pub mod events {
    pub const NAMESPACE_ATTRIBUTE: u32 = 1 << 8;
    pub const FIRMWARE_ACTIVATION: u32 = 1 << 9;
    pub const ANA_CHANGE: u32 = 1 << 11;
    pub const DISCOVERY_CHANGE: u32 = 1 << 31;
}

/// Dword 0 of a completed Asynchronous Event Request (Base 2.0, 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// Type: see [`event_type`].
    pub kind: u8,
    /// Information about the event; depends on the type.
    pub info: u8,
    /// The log page with details, whose reading re-arms the event.
    pub log_page: u8,
}

/// Values of [`AsyncEvent::kind`].
#[allow(missing_docs)]
pub mod event_type {
    pub const ERROR: u8 = 0;
    pub const HEALTH: u8 = 1;
    pub const NOTICE: u8 = 2;
}

impl AsyncEvent {
    /// Notice: attributes of a namespace, or the list of namespaces, changed.
    pub const NAMESPACE_ATTRIBUTE: Self = Self::notice(0x00, super::log::lid::CHANGED_NAMESPACES);
    /// Notice: the firmware is being activated.
    pub const FIRMWARE_ACTIVATION: Self = Self::notice(0x01, super::log::lid::FIRMWARE_SLOT);
    /// Notice: an ANA state changed.
    pub const ANA_CHANGE: Self = Self::notice(0x03, super::log::lid::ANA);
    /// Notice: the discovery log changed.
    pub const DISCOVERY_CHANGE: Self = Self::notice(0xf0, super::log::lid::DISCOVERY);
    /// Error: persistent internal error.
    pub const PERSISTENT_INTERNAL_ERROR: Self = Self {
        kind: event_type::ERROR,
        info: 0x03,
        log_page: super::log::lid::ERROR,
    };

    const fn notice(info: u8, log_page: u8) -> Self {
        Self {
            kind: event_type::NOTICE,
            info,
            log_page,
        }
    }

    /// From dword 0.
    pub fn parse(dword: u32) -> Self {
        Self {
            kind: dword as u8 & 7,
            info: (dword >> 8) as u8,
            log_page: (dword >> 16) as u8,
        }
    }

    /// Dword 0.
    pub fn emit(self) -> u32 {
        u32::from(self.kind) | u32::from(self.info) << 8 | u32::from(self.log_page) << 16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_counts_are_zero_based() {
        let count = QueueCount {
            submission: 1,
            completion: 65535,
        };
        assert_eq!(count.emit(), 0xfffe_0000);
        assert_eq!(QueueCount::parse(0xfffe_0000), Some(count));
        assert_eq!(QueueCount::parse(0x0000_ffff), None);
        assert_eq!(QueueCount::parse(0xffff_0000), None);
    }

    #[test]
    fn events_round_trip() {
        assert_eq!(AsyncEvent::ANA_CHANGE.emit(), 0x000c_0302);
        assert_eq!(AsyncEvent::NAMESPACE_ATTRIBUTE.emit(), 0x0004_0002);
        for event in [
            AsyncEvent::DISCOVERY_CHANGE,
            AsyncEvent::PERSISTENT_INTERNAL_ERROR,
        ] {
            assert_eq!(AsyncEvent::parse(event.emit()), event);
        }
    }
}
