//! Structures of `linux/ublk_cmd.h`, as bytes.

/// Most requests of a queue (`UBLK_MAX_QUEUE_DEPTH`).
pub const DEPTH_MAX: u16 = 4096;

/// Features and modes of a device (`UBLK_F_…`), by bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Feature {
    /// A device outlives its server.
    UserRecovery = 1 << 3,
    /// The next server gets the requests that the last one had.
    RecoveryReissue = 1 << 4,
    /// Owned by a user without rights.
    Unprivileged = 1 << 5,
    /// Commands are numbered as ioctls are.
    IoctlEncode = 1 << 6,
    /// Payload is copied by `pread` and `pwrite`.
    UserCopy = 1 << 7,
}

impl Feature {
    /// Whether it is among `flags`.
    pub fn is_in(self, flags: u64) -> bool {
        flags & self as u64 != 0
    }
}

/// State of a device (`UBLK_S_DEV_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not started, or stopped.
    Dead,
    /// Served, or the driver has not yet noticed that its server died.
    Live,
    /// Its server died; its requests wait for another one.
    Quiesced,
    /// A state of newer drivers.
    Other(u16),
}

/// A device (`struct ublksrv_ctrl_dev_info`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Hardware queues.
    pub queues: u16,
    /// Requests in flight of each queue.
    pub depth: u16,
    /// As the driver has it: see [`Self::phase`].
    pub state: u16,
    /// Most bytes of a request.
    pub request_bytes: u32,
    /// Its number.
    pub id: u32,
    /// Process of its server; −1: none.
    pub pid: i32,
    /// See [`Feature`].
    pub flags: u64,
    /// Kept by the driver for the server, unchanged.
    pub server_flags: u64,
}

impl Info {
    pub(super) const BYTES: usize = 64;

    /// Its state.
    pub fn phase(&self) -> Phase {
        match self.state {
            0 => Phase::Dead,
            1 => Phase::Live,
            2 => Phase::Quiesced,
            other => Phase::Other(other),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..2].copy_from_slice(&self.queues.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.depth.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.state.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.request_bytes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.id.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.pid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.flags.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.server_flags.to_ne_bytes());
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            queues: u16_at(bytes, 0),
            depth: u16_at(bytes, 2),
            state: u16_at(bytes, 4),
            request_bytes: u32_at(bytes, 8),
            id: u32_at(bytes, 12),
            pid: u32_at(bytes, 16).cast_signed(),
            flags: u64_at(bytes, 24),
            server_flags: u64_at(bytes, 32),
        }
    }
}

/// Limits and attributes of a device (`struct ublk_params`: basic and discard).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Params {
    /// Changes are refused.
    pub is_read_only: bool,
    /// A disk that turns.
    pub is_rotational: bool,
    /// Writes are durable only once flushed; FUA is sent too.
    pub has_volatile_cache: bool,
    /// Logical block size, as a power of two: 9 to 12.
    pub block_shift: u8,
    /// Best and least size of a request, as powers of two.
    pub io_shift: u8,
    /// Most sectors of a request.
    pub request_sectors: u32,
    /// Size.
    pub sectors: u64,
    /// Granularity of a discard in bytes, not 0; `None`: there is no discard.
    pub discard_bytes: Option<u32>,
    /// Most sectors of a discard.
    pub discard_sectors: u32,
    /// Most sectors of a write of zeroes; 0: there is none.
    pub zeroes_sectors: u32,
}

const READ_ONLY: u32 = 1 << 0;
const ROTATIONAL: u32 = 1 << 1;
const VOLATILE_CACHE: u32 = 1 << 2;
const FUA: u32 = 1 << 3;
/// Parts that are set: basic, discard.
const BASIC: u32 = 1 << 0;
const DISCARD: u32 = 1 << 1;

impl Params {
    pub(super) const BYTES: usize = 112;

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let has_discard = self.discard_bytes.is_some() || self.zeroes_sectors > 0;
        let types = BASIC | if has_discard { DISCARD } else { 0 };
        let mut attributes = 0;
        for (is_set, bits) in [
            (self.is_read_only, READ_ONLY),
            (self.is_rotational, ROTATIONAL),
            // Without a cache each write is durable: the kernel would send FUA for nothing.
            (self.has_volatile_cache, VOLATILE_CACHE | FUA),
        ] {
            attributes |= if is_set { bits } else { 0 };
        }
        let physical = self.block_shift.max(self.io_shift);
        bytes[0..4].copy_from_slice(&(Self::BYTES as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&types.to_ne_bytes());
        bytes[8..12].copy_from_slice(&attributes.to_ne_bytes());
        bytes[12..16].copy_from_slice(&[self.block_shift, physical, physical, physical]);
        bytes[16..20].copy_from_slice(&self.request_sectors.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.sectors.to_ne_bytes());
        if has_discard {
            let granularity = self.discard_bytes.unwrap_or(1 << self.block_shift);
            let most = self.discard_bytes.map_or(0, |_| self.discard_sectors);
            bytes[44..48].copy_from_slice(&granularity.to_ne_bytes());
            bytes[48..52].copy_from_slice(&most.to_ne_bytes());
            bytes[52..56].copy_from_slice(&self.zeroes_sectors.to_ne_bytes());
            // The driver has room for one range of a discard.
            bytes[56..58].copy_from_slice(&1_u16.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let (types, attributes) = (u32_at(bytes, 4), u32_at(bytes, 8));
        let has_discard = types & DISCARD != 0 && u32_at(bytes, 48) > 0;
        Self {
            is_read_only: attributes & READ_ONLY != 0,
            is_rotational: attributes & ROTATIONAL != 0,
            has_volatile_cache: attributes & VOLATILE_CACHE != 0,
            block_shift: bytes[12],
            io_shift: bytes[14],
            request_sectors: u32_at(bytes, 16),
            sectors: u64_at(bytes, 24),
            discard_bytes: has_discard.then(|| u32_at(bytes, 44)),
            discard_sectors: if has_discard { u32_at(bytes, 48) } else { 0 },
            zeroes_sectors: if types & DISCARD != 0 {
                u32_at(bytes, 52)
            } else {
                0
            },
        }
    }
}

/// Operation of a request (`UBLK_IO_OP_…`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Fill it.
    Read,
    /// Write it; `fua`: durable before it ends.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Make durable what was written.
    Flush,
    /// Its data is not needed any more.
    Discard,
    /// It reads as zeroes from then on; `fua`: durable before it ends.
    WriteZeroes {
        /// Force unit access.
        fua: bool,
    },
    /// One that is not for this server.
    Other(u8),
}

/// A request (`struct ublksrv_io_desc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its operation.
    pub op: Op,
    /// First byte; of a flush 0.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// `UBLK_IO_F_FUA`.
const IO_FUA: u32 = 1 << 13;

impl Descriptor {
    pub(super) const BYTES: usize = 24;

    pub(super) fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let (word, sectors, start) = (u32_at(bytes, 0), u32_at(bytes, 4), u64_at(bytes, 8));
        let fua = word & IO_FUA != 0;
        let op = match word as u8 {
            0 => Op::Read,
            1 => Op::Write { fua },
            // Its start is 2⁶⁴ − 1.
            2 => {
                return Self {
                    op: Op::Flush,
                    offset: 0,
                    bytes: 0,
                };
            }
            3 => Op::Discard,
            5 => Op::WriteZeroes { fua },
            other => Op::Other(other),
        };
        Self {
            op,
            // No disk has sectors beyond that; an offset that can't be is refused as past the end.
            offset: start.saturating_mul(512),
            bytes: u64::from(sectors) * 512,
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_has_the_drivers_layout() {
        let info = Info {
            queues: 2,
            depth: 0x0403,
            state: 2,
            request_bytes: 0x0008_0000,
            id: 7,
            pid: -1,
            flags: Feature::UserCopy as u64 | Feature::UserRecovery as u64,
            server_flags: 0x1122_3344_5566_7788,
        };
        let bytes = info.to_bytes();
        assert_eq!(bytes[..8], [2, 0, 3, 4, 2, 0, 0, 0]);
        assert_eq!(bytes[8..16], [0, 0, 8, 0, 7, 0, 0, 0]);
        assert_eq!(bytes[16..24], [255, 255, 255, 255, 0, 0, 0, 0]);
        assert_eq!(bytes[24..32], [0x88, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32], 0x88);
        assert_eq!(Info::from_bytes(&bytes), info);
        assert_eq!(info.phase(), Phase::Quiesced);
    }

    #[test]
    fn params_have_the_drivers_layout() {
        let params = Params {
            is_read_only: false,
            is_rotational: true,
            has_volatile_cache: true,
            block_shift: 9,
            io_shift: 12,
            request_sectors: 1024,
            sectors: 1 << 40,
            discard_bytes: Some(4096),
            discard_sectors: 77,
            zeroes_sectors: 78,
        };
        let bytes = params.to_bytes();
        assert_eq!(bytes[..12], [112, 0, 0, 0, 3, 0, 0, 0, 0b1110, 0, 0, 0]);
        assert_eq!(bytes[12..20], [9, 12, 12, 12, 0, 4, 0, 0]);
        assert_eq!(bytes[24..32], [0, 0, 0, 0, 0, 1, 0, 0], "sectors");
        assert_eq!(bytes[44..58], [0, 16, 0, 0, 77, 0, 0, 0, 78, 0, 0, 0, 1, 0]);
        assert_eq!(Params::from_bytes(&bytes), params);
        // Its granularity must not be 0, nor FUA set without a cache.
        let plain = Params {
            has_volatile_cache: false,
            discard_bytes: None,
            discard_sectors: 0,
            ..params
        };
        let bytes = plain.to_bytes();
        assert_eq!((bytes[8], &bytes[44..48]), (2, &[0, 2, 0, 0][..]));
        assert_eq!(Params::from_bytes(&bytes), plain);
    }

    #[test]
    fn descriptors_are_read_as_the_driver_writes_them() {
        let descriptor = |word: u32, sectors: u32, start: u64| {
            let mut bytes = [0; Descriptor::BYTES];
            bytes[..4].copy_from_slice(&word.to_ne_bytes());
            bytes[4..8].copy_from_slice(&sectors.to_ne_bytes());
            bytes[8..16].copy_from_slice(&start.to_ne_bytes());
            Descriptor::from_bytes(&bytes)
        };
        let it = |op, offset, bytes| Descriptor { op, offset, bytes };
        assert_eq!(descriptor(0, 8, 2), it(Op::Read, 1024, 4096));
        let write = Op::Write { fua: true };
        assert_eq!(descriptor(1 | 1 << 13 | 1 << 8, 1, 0), it(write, 0, 512));
        assert_eq!(descriptor(2, 0, u64::MAX), it(Op::Flush, 0, 0));
        assert_eq!(descriptor(3, 1, 1), it(Op::Discard, 512, 512));
        let zeroes = Op::WriteZeroes { fua: false };
        assert_eq!(descriptor(5, 1, 1), it(zeroes, 512, 512));
        assert_eq!(descriptor(9, 1, 1 << 60).op, Op::Other(9));
        assert_eq!(descriptor(0, 1, 1 << 60).offset, u64::MAX);
    }
}
