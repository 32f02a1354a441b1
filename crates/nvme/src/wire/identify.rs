//! Identify data (Base 2.0, 5.17; NVM command set 1.0, 4.1.5): properties of controllers and
//! namespaces.
//!
//! Only fields that braid writes or reads have names; the others are zero and ignored.
use super::layout::structure;
use super::{WireError, le32, put};

/// Bytes of every Identify data structure.
pub const IDENTIFY_LEN: usize = 4096;
/// One page of Identify data.
pub type Page = [u8; IDENTIFY_LEN];

/// Controller or Namespace Structure selectors (CDW10 bits 7:0).
#[allow(missing_docs)]
pub mod cns {
    pub const NAMESPACE: u8 = 0x00;
    pub const CONTROLLER: u8 = 0x01;
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    pub const DESCRIPTORS: u8 = 0x03;
    pub const COMMAND_SET_NAMESPACE: u8 = 0x05;
    pub const COMMAND_SET_CONTROLLER: u8 = 0x06;
    pub const INDEPENDENT_NAMESPACE: u8 = 0x08;
}

/// Command Set Identifier of the NVM command set.
pub const CSI_NVM: u8 = 0;

structure! {
    /// Identify Controller, CNS 01h.
    pub struct Controller[IDENTIFY_LEN] {
        /// PCI vendor.
        vid: u16 = 0,
        /// PCI subsystem vendor.
        ssvid: u16 = 2,
        /// Serial number, padded with spaces.
        sn: [u8; 20] = 4,
        /// Model number, padded with spaces.
        mn: [u8; 40] = 24,
        /// Firmware revision, padded with spaces.
        fr: [u8; 8] = 64,
        /// Recommended arbitration burst.
        rab: u8 = 72,
        /// Multi-path capabilities: see [`cmic`].
        cmic: u8 = 76,
        /// Largest transfer: log2 of 4 KiB pages; 0 = no limit.
        mdts: u8 = 77,
        /// Controller identifier.
        cntlid: u16 = 78,
        /// Version, as the VS property.
        ver: u32 = 80,
        /// Asynchronous events supported; bits as in [`features`](super::features).
        oaes: u32 = 92,
        /// Controller attributes: see [`ctratt`].
        ctratt: u32 = 96,
        /// Controller type: see [`cntrltype`].
        cntrltype: u8 = 111,
        /// Command Retry Delay Time 1, 100 ms.
        crdt1: u16 = 128,
        /// Command Retry Delay Time 2, 100 ms.
        crdt2: u16 = 130,
        /// Command Retry Delay Time 3, 100 ms.
        crdt3: u16 = 132,
        /// Optional admin commands: see [`oacs`].
        oacs: u16 = 256,
        /// Abort Command Limit, 0's based.
        acl: u8 = 258,
        /// Asynchronous Event Request Limit, 0's based.
        aerl: u8 = 259,
        /// Firmware updates.
        frmw: u8 = 260,
        /// Log page attributes: see [`lpa`].
        lpa: u8 = 261,
        /// Error log entries, 0's based.
        elpe: u8 = 262,
        /// Keep-alive granularity, 100 ms; 0 = no keep-alive.
        kas: u16 = 320,
        /// ANA transition time, s.
        anatt: u8 = 342,
        /// ANA capabilities.
        anacap: u8 = 343,
        /// Largest ANA group identifier.
        anagrpmax: u32 = 344,
        /// Number of ANA group identifiers.
        nanagrpid: u32 = 348,
        /// Command Quiesce Time, ms; 0 = not reported.
        cqt: u16 = 386,
        /// Submission queue entry sizes: log2, required in 3:0, largest in 7:4.
        sqes: u8 = 512,
        /// Completion queue entry sizes, as `sqes`.
        cqes: u8 = 513,
        /// Most commands outstanding on one queue; 0 = not reported.
        maxcmd: u16 = 514,
        /// Largest NSID that can be valid.
        nn: u32 = 516,
        /// Optional NVM commands: see [`oncs`].
        oncs: u16 = 520,
        /// Fused operations.
        fuses: u16 = 522,
        /// Volatile write cache: bit 0 present, bits 2:1 = 11b: Flush takes the broadcast NSID.
        vwc: u8 = 525,
        /// Atomic write unit, blocks, 0's based.
        awun: u16 = 526,
        /// Atomic write unit after power fail, blocks, 0's based.
        awupf: u16 = 528,
        /// Namespace write protection capabilities.
        nwpc: u8 = 531,
        /// Atomic compare and write unit, blocks, 0's based.
        acwu: u16 = 532,
        /// SGL support: see [`sgls`].
        sgls: u32 = 536,
        /// Most namespaces allowed (required where ANA is reported).
        mnan: u32 = 540,
        /// Subsystem NQN, NUL terminated.
        subnqn: [u8; 256] = 768,
        /// I/O command capsule size, 16 bytes.
        ioccsz: u32 = 1792,
        /// I/O response capsule size, 16 bytes.
        iorcsz: u32 = 1796,
        /// In-capsule data offset, 16 bytes.
        icdoff: u16 = 1800,
        /// Fabrics controller attributes: bit 0 clear = dynamic controllers.
        fcatt: u8 = 1802,
        /// Most SGL data block descriptors of one command.
        msdbd: u8 = 1803,
        /// Optional fabrics commands: bit 0 = Disconnect.
        ofcs: u16 = 1804,
    }
}

/// Bits of `Controller::cmic`.
#[allow(missing_docs)]
pub mod cmic {
    pub const MULTI_PORT: u8 = 1 << 0;
    pub const MULTI_CONTROLLER: u8 = 1 << 1;
    pub const ANA: u8 = 1 << 3;
}

/// Bits of `Controller::ctratt`.
#[allow(missing_docs)]
pub mod ctratt {
    pub const HOST_ID_128: u32 = 1 << 0;
    pub const TRAFFIC_KEEP_ALIVE: u32 = 1 << 6;
}

/// Values of `Controller::cntrltype`.
#[allow(missing_docs)]
pub mod cntrltype {
    pub const IO: u8 = 1;
    pub const DISCOVERY: u8 = 2;
}

/// Bits of `Controller::lpa`.
#[allow(missing_docs)]
pub mod lpa {
    pub const EFFECTS: u8 = 1 << 1;
    pub const EXTENDED: u8 = 1 << 2;
}

/// Bits of `Controller::oacs`.
#[allow(missing_docs)]
pub mod oacs {
    pub const GET_LBA_STATUS: u16 = 1 << 9;
}

/// Bits of `Controller::oncs`.
#[allow(missing_docs)]
pub mod oncs {
    pub const COMPARE: u16 = 1 << 0;
    pub const DSM: u16 = 1 << 2;
    pub const WRITE_ZEROES: u16 = 1 << 3;
}

/// Bits of `Controller::sgls`.
#[allow(missing_docs)]
pub mod sgls {
    pub const SUPPORTED: u32 = 1 << 0;
    pub const OFFSET: u32 = 1 << 20;
    pub const TRANSPORT: u32 = 1 << 21;
}

structure! {
    /// Identify Namespace of the NVM command set, CNS 00h.
    pub struct Namespace[IDENTIFY_LEN] {
        /// Size, blocks.
        nsze: u64 = 0,
        /// Capacity, blocks.
        ncap: u64 = 8,
        /// Utilisation, blocks.
        nuse: u64 = 16,
        /// Features.
        nsfeat: u8 = 24,
        /// Number of LBA formats, 0's based.
        nlbaf: u8 = 25,
        /// Format in use: index in 6:5 and 3:0, bit 4: metadata at the end of each block.
        flbas: u8 = 26,
        /// Metadata capabilities.
        mc: u8 = 27,
        /// Protection capabilities.
        dpc: u8 = 28,
        /// Protection in use: type in 2:0.
        dps: u8 = 29,
        /// Bit 0: may be attached to several controllers.
        nmic: u8 = 30,
        /// Reservation capabilities.
        rescap: u8 = 31,
        /// Deallocate: 2:0 = 001b deallocated blocks read as zeroes; bit 3: Write Zeroes may
        /// deallocate.
        dlfeat: u8 = 33,
        /// Atomic write unit, blocks, 0's based (if NSFEAT bit 1).
        nawun: u16 = 34,
        /// Atomic write unit after power fail.
        nawupf: u16 = 36,
        /// Optimal I/O boundary, blocks; 0 = none.
        noiob: u16 = 46,
        /// Preferred deallocate granularity, blocks, 0's based (if NSFEAT bit 4).
        npdg: u16 = 68,
        /// Optimal write size, blocks, 0's based (if NSFEAT bit 4).
        nows: u16 = 72,
        /// ANA group; 0 = none.
        anagrpid: u32 = 92,
        /// Attributes: bit 0 = write protected now.
        nsattr: u8 = 99,
        /// NGUID; zero = none.
        nguid: [u8; 16] = 104,
        /// EUI-64; zero = none.
        eui64: [u8; 8] = 120,
        /// LBA formats 0…15, see [`LbaFormat`].
        lbaf: [u8; 64] = 128,
    }
}

/// One LBA format (NVM command set 1.0, 4.1.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LbaFormat {
    /// Metadata bytes per block.
    pub metadata: u16,
    /// log2 of the block's bytes; below 9 = the format isn't there.
    pub block_shift: u8,
}

impl LbaFormat {
    /// The four bytes.
    pub fn emit(self) -> [u8; 4] {
        let m = self.metadata.to_le_bytes();
        [m[0], m[1], self.block_shift, 0]
    }
}

impl Namespace {
    /// NSFEAT bit 1: the namespace's own atomic write units count.
    pub const NSFEAT_ATOMICS: u8 = 1 << 1;
    /// NSFEAT bit 4: the namespace reports its preferred sizes (NVM command set 1.0, 4.1.5.1).
    pub const NSFEAT_OPTIMAL: u8 = 1 << 4;
    /// NSFEAT bit 5: [`NvmNamespace::npdgl`] counts (NVM command set 1.1; reserved before).
    pub const NSFEAT_LARGE_DEALLOCATE: u8 = 1 << 5;

    /// Number of the format in use, 0…63.
    pub fn format_index(&self) -> usize {
        usize::from(self.flbas & 0xf) | usize::from(self.flbas >> 5 & 3) << 4
    }

    /// The format in use; `None` if it is not among the first sixteen.
    pub fn format(&self) -> Option<LbaFormat> {
        let index = self.format_index();
        let b = self.lbaf.get(index * 4..index * 4 + 4)?;
        Some(LbaFormat {
            metadata: u16::from_le_bytes([b[0], b[1]]),
            block_shift: b[2],
        })
    }
}

structure! {
    /// Identify Namespace of the NVM command set, CNS 05h: protection information formats, and
    /// sizes that do not fit CNS 00h.
    pub struct NvmNamespace[IDENTIFY_LEN] {
        /// Logical block storage tag mask.
        lbstm: u64 = 0,
        /// Protection information capabilities.
        pic: u8 = 8,
        /// Extensions of LBA formats 0…63, four bytes each.
        elbaf: [u8; 256] = 12,
        /// Preferred deallocate granularity, blocks, not 0's based; 0 = not reported (if NSFEAT
        /// bit 5; NVM command set 1.1, NPDGL).
        npdgl: u32 = 268,
    }
}

impl NvmNamespace {
    /// Bits of the storage tag in a format (NVM command set 1.0, 4.1.5.3: STS).
    pub fn storage_tag_bits(&self, format: usize) -> u8 {
        self.elbaf.get(format * 4).map_or(0, |byte| byte & 0x7f)
    }
}

structure! {
    /// I/O Command Set Independent Identify Namespace, CNS 08h.
    pub struct IndependentNamespace[IDENTIFY_LEN] {
        /// Features.
        nsfeat: u8 = 0,
        /// As in [`Namespace`].
        nmic: u8 = 1,
        /// Reservation capabilities.
        rescap: u8 = 2,
        /// ANA group; 0 = none.
        anagrpid: u32 = 4,
        /// Attributes: bit 0 = write protected now.
        nsattr: u8 = 8,
        /// Status: bit 0 = ready.
        nstat: u8 = 14,
    }
}

structure! {
    /// Identify Controller of the NVM command set, CNS 06h: limits of commands without data, 0 =
    /// none reported; and what came with 1.1.
    pub struct NvmController[IDENTIFY_LEN] {
        /// Verify size limit.
        vsl: u8 = 0,
        /// Write Zeroes size limit.
        wzsl: u8 = 1,
        /// Write Uncorrectable size limit.
        wusl: u8 = 2,
        /// Dataset Management ranges limit.
        dmrl: u8 = 3,
        /// Blocks of one range.
        dmrsl: u32 = 4,
        /// Blocks of all ranges.
        dmsl: u64 = 8,
        /// Optional admin commands (NVM command set 1.1): see [`NvmController::ALLOCATED_LBAS`].
        aocs: u16 = 18,
    }
}

impl NvmController {
    /// AOCS bit 0: Get LBA Status lists allocated blocks.
    pub const ALLOCATED_LBAS: u16 = 1 << 0;
}

/// Most NSIDs in one list.
pub const NSID_LIST_MAX: usize = IDENTIFY_LEN / 4;

/// Writes a list of NSIDs (CNS 02h, changed namespaces); NSIDs that do not fit are left out.
pub fn emit_nsids(nsids: impl Iterator<Item = u32>) -> Page {
    let mut page = [0; IDENTIFY_LEN];
    for (i, nsid) in nsids.take(NSID_LIST_MAX).enumerate() {
        put(&mut page, i * 4, &nsid.to_le_bytes());
    }
    page
}

/// The NSIDs of a list, up to its first 0 or the end of `bytes`.
pub fn nsids(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes
        .chunks_exact(4)
        .map(|b| le32(b, 0))
        .take_while(|&nsid| nsid != 0)
        .take(NSID_LIST_MAX)
}

/// One Namespace Identification Descriptor (CNS 03h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptor {
    /// NIDT 1h.
    Eui64([u8; 8]),
    /// NIDT 2h.
    Nguid([u8; 16]),
    /// NIDT 3h.
    Uuid([u8; 16]),
    /// NIDT 4h: command set.
    Csi(u8),
    /// A type not known here.
    Other(u8),
}

/// Writes a descriptor list. `Other`, and descriptors that do not fit, are left out.
pub fn emit_descriptors(list: &[Descriptor]) -> Page {
    let mut page = [0; IDENTIFY_LEN];
    let mut at = 0;
    for descriptor in list {
        let (kind, id): (u8, &[u8]) = match descriptor {
            Descriptor::Eui64(id) => (1, id),
            Descriptor::Nguid(id) => (2, id),
            Descriptor::Uuid(id) => (3, id),
            Descriptor::Csi(csi) => (4, core::slice::from_ref(csi)),
            Descriptor::Other(_) => continue,
        };
        if at + 4 + id.len() > IDENTIFY_LEN {
            break;
        }
        page[at..at + 2].copy_from_slice(&[kind, id.len() as u8]);
        put(&mut page, at + 4, id);
        at += 4 + id.len();
    }
    page
}

/// The descriptors of a list.
pub fn descriptors(page: &[u8]) -> Descriptors<'_> {
    Descriptors { rest: page, at: 0 }
}

/// See [`descriptors`]. After an error there is nothing more.
#[derive(Clone, Debug)]
pub struct Descriptors<'a> {
    rest: &'a [u8],
    at: usize,
}

impl Iterator for Descriptors<'_> {
    type Item = Result<Descriptor, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&kind, &len) = (self.rest.first()?, self.rest.get(1)?);
        if kind == 0 || len == 0 {
            return None;
        }
        let (at, end) = (self.at, 4 + usize::from(len));
        let Some(id) = self.rest.get(4..end) else {
            self.rest = &[];
            return Some(Err(WireError::Field {
                offset: at as u16 + 1,
            }));
        };
        self.rest = &self.rest[end..];
        self.at += end;
        Some(descriptor(kind, id).ok_or_else(|| {
            self.rest = &[];
            WireError::Field {
                offset: at as u16 + 1,
            }
        }))
    }
}

/// `None`: the length isn't the type's.
fn descriptor(kind: u8, id: &[u8]) -> Option<Descriptor> {
    Some(match kind {
        1 => Descriptor::Eui64(id.try_into().ok()?),
        2 => Descriptor::Nguid(id.try_into().ok()?),
        3 => Descriptor::Uuid(id.try_into().ok()?),
        4 => Descriptor::Csi(<[u8; 1]>::try_from(id).ok()?[0]),
        other => Descriptor::Other(other),
    })
}

#[cfg(test)]
mod tests {
    use super::super::layout::{padded, terminated, text};
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn controller_fields_lie_where_the_figure_has_them() {
        let id = Controller {
            sn: padded("S1"),
            cntlid: 0x0201,
            ver: 0x0002_0000,
            kas: 1,
            anagrpmax: 9,
            cqt: 0x1234,
            nn: 5,
            subnqn: terminated("nqn.x"),
            ioccsz: 260,
            ofcs: 1,
            ..Controller::default()
        };
        let b = id.emit();
        assert_eq!(text(&b[4..24]), "S1");
        assert_eq!(b[6..24], [b' '; 18]);
        assert_eq!(b[78..84], [1, 2, 0, 0, 2, 0]);
        assert_eq!(
            (b[320], b[344], b[386], b[387], b[516]),
            (1, 9, 0x34, 0x12, 5)
        );
        assert_eq!(&b[768..774], b"nqn.x\0");
        assert_eq!((b[1792], b[1793], b[1804]), (4, 1, 1));
        assert_eq!(Controller::parse(&b), Ok(id));
        assert!(Controller::parse(&b[..4095]).is_err());
    }

    #[test]
    fn namespace_format_in_use() {
        let mut id = Namespace {
            nsze: 7,
            anagrpid: 3,
            nlbaf: 1,
            ..Namespace::default()
        };
        id.lbaf[4..8].copy_from_slice(
            &LbaFormat {
                metadata: 8,
                block_shift: 12,
            }
            .emit(),
        );
        id.flbas = 1;
        let b = id.emit();
        assert_eq!((b[0], b[92], b[134]), (7, 3, 12));
        let parsed = Namespace::parse(&b).unwrap();
        assert_eq!(
            parsed.format(),
            Some(LbaFormat {
                metadata: 8,
                block_shift: 12
            })
        );
        assert_eq!(
            Namespace { flbas: 0x20, ..id }.format(),
            None,
            "index 16 isn't in this table"
        );
    }

    #[test]
    fn lists_round_trip_and_end_at_zero() {
        let page = emit_nsids([1, 4, 9].into_iter());
        assert_eq!(nsids(&page).collect::<Vec<_>>(), [1, 4, 9]);
        assert_eq!(nsids(&page[..10]).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(nsids(&emit_nsids(1..)).count(), NSID_LIST_MAX);
    }

    #[test]
    fn descriptors_round_trip_and_bounds() {
        let list = [
            Descriptor::Eui64([7; 8]),
            Descriptor::Nguid([1; 16]),
            Descriptor::Uuid([2; 16]),
            Descriptor::Csi(0),
        ];
        let page = emit_descriptors(&list);
        assert_eq!(page[..4], [1, 8, 0, 0]);
        let parsed: Vec<_> = descriptors(&page).map(Result::unwrap).collect();
        assert_eq!(parsed, list);

        let mut cut = descriptors(&[3, 16, 0, 0, 1, 2]);
        assert_eq!(cut.next(), Some(Err(WireError::Field { offset: 1 })));
        assert_eq!(cut.next(), None);
        let mut wrong = descriptors(&[2, 3, 0, 0, 1, 2, 3, 4, 1, 0, 0, 0]);
        assert_eq!(wrong.next(), Some(Err(WireError::Field { offset: 1 })));
        assert_eq!(wrong.next(), None);
        let unknown = descriptors(&[9, 1, 0, 0, 5]).next();
        assert_eq!(unknown, Some(Ok(Descriptor::Other(9))));
    }
}
