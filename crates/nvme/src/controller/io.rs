//! I/O commands of the NVM command set: the checks before the driver gets one.
//!
//! The order of checks: opcode, the entry's form, namespace, access through this port, protection,
//! range, size, data pointer. Statuses of permanent faults carry Do Not Retry (T3); those of the
//! path are of type 3h (T2, T26) and don't: the host shall use another path.
use super::NamespaceConfig;
use super::config::Shared;
use super::connection::{Purpose, Slot};
use crate::host::AnaState;
use crate::wire::sqe::{NSID_ALL, Sgl, nvm};
use crate::wire::{Sqe, Status, dsm};

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// No data, or data that is not read.
    None,
    /// To the host.
    ToHost,
    /// From the host, behind an R2T.
    FromHost,
    /// From the host, in the capsule.
    InCapsule,
    /// The command is done as soon as it is read: hints, which are ignored.
    Hint,
}

/// Checks an I/O command that came with `capsule` bytes of in-capsule data, and decodes it into its
/// slot. Of a refused one, the slot only has the fields of the error log.
///
/// # Errors
/// The status to answer with.
#[inline]
pub(super) fn check(
    shared: &Shared,
    port: u16,
    sqe: &Sqe<'_>,
    capsule: u32,
    command: &mut Slot,
) -> Result<Way, Status> {
    (command.nsid, command.slba) = (sqe.nsid(), sqe.slba());
    let opcode = sqe.opcode();
    if !shared.config.has_command(opcode) {
        return Err(Status::INVALID_OPCODE.with_dnr());
    }
    // SGLs alone over fabrics (Base 2.0, 4.3.2); fused pairs and separate metadata aren't offered.
    if sqe.psdt() != 1 || sqe.fuse() != 0 || sqe.mptr() != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let nsid = sqe.nsid();
    if opcode == nvm::FLUSH && nsid == NSID_ALL {
        let groups = &shared.ana[usize::from(port)].groups;
        groups.iter().try_for_each(|group| access(group.state))?;
        return Ok(without_data(command, Purpose::Flush));
    }
    let Some(namespace) = shared.namespace(nsid) else {
        return Err(Status::INVALID_NAMESPACE.with_dnr());
    };
    if let Some(group) = shared.group(namespace.ana_group) {
        access(shared.ana[usize::from(port)].groups[group].state)?;
    }
    if namespace.read_only && is_change(opcode, sqe) {
        return Err(Status::WRITE_PROTECTED.with_dnr());
    }
    match opcode {
        nvm::FLUSH => Ok(without_data(command, Purpose::Flush)),
        nvm::DATASET_MANAGEMENT => ranges(sqe, capsule, command),
        _ => blocks(shared, namespace, sqe, capsule, command),
    }
}

fn without_data(command: &mut Slot, purpose: Purpose) -> Way {
    command.purpose = purpose;
    (command.slba, command.blocks, command.len) = (0, 0, 0);
    Way::None
}

/// Whether the command changes what the namespace holds.
fn is_change(opcode: u8, sqe: &Sqe<'_>) -> bool {
    match opcode {
        nvm::WRITE | nvm::WRITE_ZEROES => true,
        nvm::DATASET_MANAGEMENT => sqe.cdw(11) & nvm::DSM_DEALLOCATE != 0,
        _ => false,
    }
}

/// Checks the ANA state (Base 2.0, 8.1.3): refused without DNR, because another path may accept.
#[inline]
pub(super) fn access(state: AnaState) -> Result<(), Status> {
    match state {
        AnaState::Optimized | AnaState::NonOptimized => Ok(()),
        AnaState::Inaccessible => Err(Status::ANA_INACCESSIBLE),
        AnaState::PersistentLoss => Err(Status::ANA_PERSISTENT_LOSS),
        AnaState::Change => Err(Status::ANA_TRANSITION),
    }
}

/// Read, Write, Compare, Write Zeroes (NVM command set 1.0, 3.2).
#[inline]
fn blocks(
    shared: &Shared,
    namespace: &NamespaceConfig,
    sqe: &Sqe<'_>,
    capsule: u32,
    command: &mut Slot,
) -> Result<Way, Status> {
    let (slba, blocks, cdw12) = (sqe.slba(), sqe.blocks(), sqe.cdw(12));
    if cdw12 & nvm::PROTECTION != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    // 64 bits and 17: the sum may wrap, so it is never formed.
    if slba > namespace.blocks || u64::from(blocks) > namespace.blocks - slba {
        return Err(Status::LBA_RANGE.with_dnr());
    }
    let purpose = match sqe.opcode() {
        nvm::READ => Purpose::Read,
        nvm::WRITE => Purpose::Write {
            fua: cdw12 & nvm::FUA != 0,
        },
        nvm::COMPARE => Purpose::Compare,
        _ => Purpose::WriteZeroes {
            deallocate: cdw12 & nvm::DEALLOCATE != 0,
            fua: cdw12 & nvm::FUA != 0,
        },
    };
    command.purpose = purpose;
    command.blocks = blocks;
    if matches!(purpose, Purpose::WriteZeroes { .. }) {
        command.len = 0;
        return Ok(Way::None);
    }
    // At most 2^16 blocks of 2^12 bytes: check_namespaces (config.rs) lets shifts 9 and 12 pass.
    let len = blocks << namespace.block_shift;
    command.len = len;
    if len > shared.transfer_max() {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    if purpose == Purpose::Read {
        to_host(sqe, len)?;
        return Ok(Way::ToHost);
    }
    from_host(sqe, capsule, len..=len).map(|(_, way)| way)
}

/// Dataset Management: its ranges are the machine's own data. Hosts may send more than they count.
fn ranges(sqe: &Sqe<'_>, capsule: u32, command: &mut Slot) -> Result<Way, Status> {
    let count = (sqe.cdw(10) & 0xff) + 1;
    let least = count * dsm::Range::LEN as u32;
    let most = (dsm::RANGES_MAX * dsm::Range::LEN) as u32;
    let (len, way) = from_host(sqe, capsule, least..=most)?;
    command.purpose = Purpose::Deallocate;
    (command.slba, command.blocks, command.len) = (0, count, len);
    match sqe.cdw(11) & nvm::DSM_DEALLOCATE {
        0 => Ok(Way::Hint),
        _ => Ok(way),
    }
}

/// The non-empty ranges of a Dataset Management that counts `count` of them.
pub(super) fn ranges_of(count: u32, data: &[u8]) -> impl Iterator<Item = dsm::Range> + '_ {
    let ranges = dsm::ranges(data).take(count as usize);
    ranges.filter(|range| range.blocks > 0)
}

/// Checks the ranges of a Dataset Management once they have arrived.
///
/// # Errors
/// LBA Out of Range if one is.
pub(super) fn check_ranges(
    namespace: &NamespaceConfig,
    count: u32,
    data: &[u8],
) -> Result<(), Status> {
    let outside = |range: dsm::Range| {
        range.slba > namespace.blocks || u64::from(range.blocks) > namespace.blocks - range.slba
    };
    match ranges_of(count, data).any(outside) {
        true => Err(Status::LBA_RANGE.with_dnr()),
        false => Ok(()),
    }
}

/// The data pointer of a command whose data goes to the host: exactly as long as the data.
#[inline]
pub(super) fn to_host(sqe: &Sqe<'_>, len: u32) -> Result<(), Status> {
    match sqe.sgl() {
        Sgl::Transport { len: said } if said == len => Ok(()),
        Sgl::Transport { .. } | Sgl::None => Err(Status::SGL_DATA_LENGTH.with_dnr()),
        Sgl::InCapsule { .. } | Sgl::Other { .. } => Err(Status::SGL_TYPE.with_dnr()),
    }
}

/// The data pointer of a command whose data comes from the host: its length, and how it comes.
#[inline]
pub(super) fn from_host(
    sqe: &Sqe<'_>,
    capsule: u32,
    allowed: core::ops::RangeInclusive<u32>,
) -> Result<(u32, Way), Status> {
    let (len, way) = match sqe.sgl() {
        Sgl::Transport { len } if capsule == 0 => (len, Way::FromHost),
        Sgl::InCapsule { offset: 0, len } if capsule == len => (len, Way::InCapsule),
        // ICDOFF is 0, and so is every offset (NVMe-TCP 1.0, 3.3.2.1).
        Sgl::InCapsule { offset, .. } if offset != 0 => return Err(Status::SGL_OFFSET.with_dnr()),
        Sgl::Other { .. } => return Err(Status::SGL_TYPE.with_dnr()),
        _ => return Err(Status::SGL_DATA_LENGTH.with_dnr()),
    };
    if len == 0 || !allowed.contains(&len) {
        return Err(Status::SGL_DATA_LENGTH.with_dnr());
    }
    Ok((len, way))
}
