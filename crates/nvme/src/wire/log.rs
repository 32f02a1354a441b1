//! Log pages (Base 2.0, 5.16): builders for the target, bounds-checked parsers for the host.
use super::layout::structure;
use super::{WireError, exact, le16, le32, le64, put};
use crate::host::AnaState;
use alloc::vec::Vec;

/// Log page identifiers (CDW10 bits 7:0 of Get Log Page).
#[allow(missing_docs)]
pub mod lid {
    pub const SUPPORTED: u8 = 0x00;
    pub const ERROR: u8 = 0x01;
    pub const SMART: u8 = 0x02;
    pub const FIRMWARE_SLOT: u8 = 0x03;
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    pub const EFFECTS: u8 = 0x05;
    pub const ANA: u8 = 0x0c;
    pub const DISCOVERY: u8 = 0x70;
}

/// Get Log Page CDW10: Retain Asynchronous Event.
pub const RAE: u32 = 1 << 15;
/// Log Specific Parameter of the ANA page: groups without their namespaces.
pub const ANA_GROUPS_ONLY: u8 = 1;

/// Parameters of a Get Log Page command (CDW10…CDW14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Request {
    /// Page.
    pub lid: u8,
    /// Log Specific Parameter, 7 bits.
    pub lsp: u8,
    /// Keep the asynchronous event that caused this command.
    pub retain: bool,
    /// Bytes wanted: a multiple of 4, 4…2^34.
    pub len: u64,
    /// First byte wanted (or an index, with `by_index`).
    pub offset: u64,
    /// Offset Type: an index, not bytes.
    pub by_index: bool,
    /// Command set.
    pub csi: u8,
}

impl Request {
    /// From CDW10…CDW14.
    pub fn parse(cdw: &[u32; 5]) -> Self {
        let dwords = u64::from(cdw[0] >> 16) | u64::from(cdw[1] & 0xffff) << 16;
        Self {
            lid: cdw[0] as u8,
            lsp: (cdw[0] >> 8) as u8 & 0x7f,
            retain: cdw[0] & RAE != 0,
            len: (dwords + 1) * 4,
            offset: u64::from(cdw[2]) | u64::from(cdw[3]) << 32,
            by_index: cdw[4] & 1 << 23 != 0,
            csi: (cdw[4] >> 24) as u8,
        }
    }

    /// CDW10…CDW14.
    pub fn emit(&self) -> [u32; 5] {
        let dwords = (self.len / 4).max(1) - 1;
        let retain = if self.retain { RAE } else { 0 };
        let low = u32::from(self.lid) | u32::from(self.lsp & 0x7f) << 8 | retain;
        [
            low | (dwords as u32 & 0xffff) << 16,
            (dwords >> 16) as u32 & 0xffff,
            self.offset as u32,
            (self.offset >> 32) as u32,
            u32::from(self.csi) << 24 | u32::from(self.by_index) << 23,
        ]
    }
}

structure! {
    /// One entry of the Error Information log, 01h; newest first.
    pub struct ErrorEntry[64] {
        /// Number of this error, from 1; 0 = no entry.
        error_count: u64 = 0,
        /// Submission queue.
        sqid: u16 = 8,
        /// Command.
        cid: u16 = 10,
        /// Status in bits 15:1.
        status_phase: u16 = 12,
        /// Byte and bit of the command's wrong parameter; FFFFh = not reported.
        parameter: u16 = 14,
        /// First logical block concerned.
        lba: u64 = 16,
        /// Namespace.
        nsid: u32 = 24,
        /// Transport type.
        trtype: u8 = 29,
    }
}

structure! {
    /// SMART / Health Information, 02h.
    pub struct Smart[512] {
        /// Critical warnings; 0 = none.
        critical_warning: u8 = 0,
        /// Temperature, kelvin.
        temperature: u16 = 1,
        /// Spare left, %.
        spare: u8 = 3,
        /// Spare threshold, %.
        spare_threshold: u8 = 4,
        /// Endurance used, %.
        used: u8 = 5,
        /// Data read, 1000 units of 512 bytes, rounded up.
        units_read: u128 = 32,
        /// Data written, as `units_read`.
        units_written: u128 = 48,
        /// Read and Compare commands completed.
        reads: u128 = 64,
        /// Write commands completed.
        writes: u128 = 80,
        /// Error log entries ever made.
        errors: u128 = 176,
    }
}

structure! {
    /// Firmware Slot Information, 03h.
    pub struct FirmwareSlot[512] {
        /// Active slot, bits 2:0.
        afi: u8 = 0,
        /// Revision in slot 1.
        frs1: [u8; 8] = 8,
    }
}

/// Bytes of the Commands Supported and Effects log, 05h.
pub const EFFECTS_LEN: usize = 4096;
/// The command is supported.
pub const CSUPP: u32 = 1 << 0;
/// It may change the content of logical blocks.
pub const LBCC: u32 = 1 << 1;

/// Writes the page: `admin` and `io` are (opcode, effects).
pub fn emit_effects(admin: &[(u8, u32)], io: &[(u8, u32)]) -> [u8; EFFECTS_LEN] {
    let mut page = [0; EFFECTS_LEN];
    for (base, table) in [(0, admin), (1024, io)] {
        for &(opcode, effects) in table {
            put(
                &mut page,
                base + usize::from(opcode) * 4,
                &effects.to_le_bytes(),
            );
        }
    }
    page
}

/// Effects of an I/O command, 0 = not supported.
///
/// # Errors
/// [`WireError::Truncated`] if the page is.
pub fn io_effects(page: &[u8], opcode: u8) -> Result<u32, WireError> {
    Ok(le32(
        exact::<EFFECTS_LEN>(page)?,
        1024 + usize::from(opcode) * 4,
    ))
}

/// State from the code in an ANA descriptor.
pub fn ana_state(code: u8) -> Option<AnaState> {
    Some(match code & 0xf {
        0x1 => AnaState::Optimized,
        0x2 => AnaState::NonOptimized,
        0x3 => AnaState::Inaccessible,
        0x4 => AnaState::PersistentLoss,
        0xf => AnaState::Change,
        _ => return None,
    })
}

/// Bytes of the ANA log's header, and of a descriptor without its NSIDs.
const ANA_HEADER: usize = 16;
const ANA_DESCRIPTOR: usize = 32;

/// Appends an ANA page (0Ch): `groups` are (id, change count, state, NSIDs).
pub fn emit_ana<N: Iterator<Item = u32>>(
    change_count: u64,
    groups: impl Iterator<Item = (u32, u64, AnaState, N)>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.resize(start + ANA_HEADER, 0);
    put(out, start, &change_count.to_le_bytes());
    let mut count = 0u16;
    for (id, change_count, state, nsids) in groups {
        let at = out.len();
        out.resize(at + ANA_DESCRIPTOR, 0);
        let mut namespaces = 0u32;
        for nsid in nsids {
            out.extend_from_slice(&nsid.to_le_bytes());
            namespaces += 1;
        }
        put(out, at, &id.to_le_bytes());
        put(out, at + 4, &namespaces.to_le_bytes());
        put(out, at + 8, &change_count.to_le_bytes());
        out[at + 16] = state as u8;
        count += 1;
    }
    put(out, start + 8, &count.to_le_bytes());
}

/// An ANA page to read.
#[derive(Clone, Copy, Debug)]
pub struct AnaLog<'a> {
    bytes: &'a [u8],
}

/// One group of an ANA page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnaGroup<'a> {
    /// Group identifier.
    pub id: u32,
    /// Change count.
    pub change_count: u64,
    /// State.
    pub state: AnaState,
    nsids: &'a [u8],
}

impl<'a> AnaLog<'a> {
    /// # Errors
    /// [`WireError::Truncated`] if the header isn't whole.
    pub fn new(bytes: &'a [u8]) -> Result<Self, WireError> {
        exact::<ANA_HEADER>(bytes)?;
        Ok(Self { bytes })
    }

    /// Change count of the page; the same in the first and the last piece read = one state.
    pub fn change_count(&self) -> u64 {
        le64(self.bytes, 0)
    }

    /// The groups. After an error there is nothing more.
    pub fn groups(&self) -> AnaGroups<'a> {
        let left = le16(self.bytes, 8);
        AnaGroups {
            bytes: self.bytes,
            at: ANA_HEADER,
            left,
        }
    }
}

impl<'a> AnaGroup<'a> {
    /// Namespaces of the group (none if only groups were asked for).
    pub fn nsids(&self) -> impl Iterator<Item = u32> + 'a {
        self.nsids.chunks_exact(4).map(|b| le32(b, 0))
    }
}

/// See [`AnaLog::groups`].
#[derive(Clone, Debug)]
pub struct AnaGroups<'a> {
    bytes: &'a [u8],
    at: usize,
    left: u16,
}

impl<'a> Iterator for AnaGroups<'a> {
    type Item = Result<AnaGroup<'a>, WireError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.left = self.left.checked_sub(1)?;
        let group = self.read();
        if group.is_err() {
            self.left = 0;
        }
        Some(group)
    }
}

impl<'a> AnaGroups<'a> {
    fn read(&mut self) -> Result<AnaGroup<'a>, WireError> {
        let got = self.bytes.len();
        let truncated = |need: u64| WireError::Truncated {
            need: need.min(u32::MAX.into()) as u32,
            got: got as u32,
        };
        let names = self.at + ANA_DESCRIPTOR;
        let b = self
            .bytes
            .get(self.at..names)
            .ok_or(truncated(names as u64))?;
        // 4 × a 32-bit count: in 64 bits it can't wrap.
        let end = names as u64 + 4 * u64::from(le32(b, 4));
        if end > got as u64 {
            return Err(truncated(end));
        }
        let state = ana_state(b[16]).ok_or(WireError::Field { offset: 16 })?;
        let group = AnaGroup {
            id: le32(b, 0),
            change_count: le64(b, 8),
            state,
            nsids: &self.bytes[names..end as usize],
        };
        self.at = end as usize;
        Ok(group)
    }
}

/// Bytes of the discovery log's header and of each of its entries.
pub const DISCOVERY_UNIT: usize = 1024;

structure! {
    /// Header of the discovery log, 70h.
    pub struct DiscoveryHeader[DISCOVERY_UNIT] {
        /// Generation: the same in the first and the last piece read = one state.
        generation: u64 = 0,
        /// Entries that follow.
        records: u64 = 8,
        /// Record format, 0.
        format: u16 = 16,
    }
}

structure! {
    /// One entry of the discovery log.
    pub struct DiscoveryEntry[DISCOVERY_UNIT] {
        /// Transport: 3 = TCP.
        trtype: u8 = 0,
        /// Address family: 1 = IPv4, 2 = IPv6.
        adrfam: u8 = 1,
        /// Type of the subsystem: see [`subtype`].
        subtype: u8 = 2,
        /// Transport requirements: see [`treq`].
        treq: u8 = 3,
        /// Port.
        portid: u16 = 4,
        /// Controller; FFFFh = dynamic.
        cntlid: u16 = 6,
        /// Largest admin queue, entries.
        asqsz: u16 = 8,
        /// See [`eflags`].
        eflags: u16 = 10,
        /// Service (TCP port).
        trsvcid: [u8; 32] = 32,
        /// Subsystem NQN.
        subnqn: [u8; 256] = 256,
        /// Address.
        traddr: [u8; 256] = 512,
        /// Security: 0 = none.
        sectype: u8 = 768,
    }
}

/// [`DiscoveryEntry::trtype`] of NVMe/TCP.
pub const TRTYPE_TCP: u8 = 3;
/// [`DiscoveryEntry::adrfam`] of IPv4.
pub const ADRFAM_IPV4: u8 = 1;
/// [`DiscoveryEntry::adrfam`] of IPv6.
pub const ADRFAM_IPV6: u8 = 2;

/// Values of [`DiscoveryEntry::subtype`].
pub mod subtype {
    /// Another discovery subsystem.
    pub const REFERRAL: u8 = 1;
    /// An NVM subsystem.
    pub const NVM: u8 = 2;
    /// The discovery subsystem that reports this log.
    pub const CURRENT: u8 = 3;
}

/// [`DiscoveryEntry::treq`].
pub mod treq {
    /// Secure channel, bits 1:0.
    pub const SECURE_CHANNEL: u8 = 3;
    /// Value of these: required.
    pub const REQUIRED: u8 = 1;
    /// Value of these: not required.
    pub const NOT_REQUIRED: u8 = 2;
    /// SQ flow control may be disabled.
    pub const NO_SQ_FLOW_CONTROL: u8 = 1 << 2;
}

/// Bits of [`DiscoveryEntry::eflags`].
pub mod eflags {
    /// Its other ports report the same entries.
    pub const DUPRETINFO: u16 = 1 << 0;
    /// It supports explicit persistent connections.
    pub const EPCSD: u16 = 1 << 1;
    /// It is not connected to a centralized discovery controller.
    pub const NCC: u16 = 1 << 2;
}

/// The entries of a discovery page, as many as are whole in `bytes` and as the header counts.
///
/// # Errors
/// [`WireError::Truncated`] if the header isn't whole.
pub fn discovery_entries(
    bytes: &[u8],
) -> Result<impl Iterator<Item = DiscoveryEntry> + '_, WireError> {
    let header = DiscoveryHeader::parse(bytes)?;
    let most = usize::try_from(header.records).unwrap_or(usize::MAX);
    let units = bytes[DISCOVERY_UNIT..].chunks_exact(DISCOVERY_UNIT);
    Ok(units
        .take(most)
        .filter_map(|b| DiscoveryEntry::parse(b).ok()))
}

#[cfg(test)]
mod tests;
