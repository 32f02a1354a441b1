//! The controller's checks of an I/O command of a queue in shared memory.
//!
//! The order of checks is nearly that of the target over fabrics: the entry's form, namespace,
//! opcode, rights, protection, range, size. The form of a trusted client's entries is not checked;
//! ranges always are, because devices and rights end there.
use super::Entry;
use crate::wire::sqe::{NSID_ALL, nvm};
use crate::wire::{Status, dsm};

/// Opcode of Cancel, an I/O command (Base 2.1, 7.1).
pub const CANCEL: u8 = 0x18;

/// A namespace as one queue may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// log2 of the block size, 9 to 12.
    pub block_shift: u8,
    /// Blocks.
    pub blocks: u64,
    /// First block that this client may touch.
    pub first: u64,
    /// Behind the last block that this client may touch; at most `blocks`.
    pub end: u64,
    /// Changes are refused.
    pub read_only: bool,
}

/// A command, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Read into the host's memory.
    Read,
    /// Write from the host's memory.
    Write {
        /// It is durable when it has ended.
        fua: bool,
    },
    /// Earlier writes are durable when this has ended.
    Flush,
    /// The blocks read as zeroes.
    WriteZeroes {
        /// They may be deallocated.
        deallocate: bool,
        /// It is durable when it has ended.
        fua: bool,
    },
    /// The data is `ranges` ranges of 16 bytes; `apply`: they are deallocated, else they are hints,
    /// which are ignored.
    Deallocate {
        /// Ranges.
        ranges: u32,
        /// Not only hints.
        apply: bool,
    },
    /// Skips an earlier command of this queue if its execution has not begun.
    Cancel {
        /// Its identifier; `None`: all.
        cid: Option<u16>,
    },
}

impl Order {
    /// Whether it changes data.
    #[inline]
    pub fn is_change(self) -> bool {
        match self {
            Self::Write { .. } | Self::WriteZeroes { .. } => true,
            Self::Deallocate { apply, .. } => apply,
            Self::Read | Self::Flush | Self::Cancel { .. } => false,
        }
    }
}

/// A command that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The command.
    pub order: Order,
    /// Index of the namespace: NSID − 1. 0 where it is all of them (`Flush`, `Cancel`).
    pub namespace: u32,
    /// All namespaces: of `Flush` only.
    pub all: bool,
    /// First byte.
    pub offset: u64,
    /// Bytes of the namespace.
    pub len: u64,
    /// Bytes in the host's memory.
    pub data: u32,
}

/// Trust in a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Everything is checked.
    Mediated,
    /// Checks are skipped whose violation harms only the client.
    Trusted,
}

/// Checks a command on `namespaces`, by NSID − 1; `None`: this client has no such namespace.
///
/// # Errors
/// The status to answer with.
#[inline]
pub fn check(
    entry: &Entry,
    namespaces: &[Option<Namespace>],
    transfer_max: u32,
    trust: Trust,
) -> Result<Checked, Status> {
    let opcode = entry[0] as u8;
    let nsid = (entry[0] >> 32) as u32;
    let fused_or_reserved = entry[0] >> 8 & 0x3f;
    let (metadata, cdw12) = (entry[2], entry[6] as u32);
    if trust == Trust::Mediated && (fused_or_reserved != 0 || metadata != 0) {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let index = nsid.wrapping_sub(1);
    if opcode == nvm::FLUSH && nsid == NSID_ALL {
        return Ok(whole(Order::Flush, None));
    }
    if opcode == CANCEL {
        return cancel(entry).map(|order| whole(order, None));
    }
    let namespace = namespaces.get(index as usize).and_then(Option::as_ref);
    let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.with_dnr())?;
    let order = match opcode {
        nvm::READ => Order::Read,
        nvm::WRITE => Order::Write {
            fua: cdw12 & nvm::FUA != 0,
        },
        nvm::FLUSH => return Ok(whole(Order::Flush, Some(index))),
        nvm::WRITE_ZEROES => Order::WriteZeroes {
            deallocate: cdw12 & nvm::DEALLOCATE != 0,
            fua: cdw12 & nvm::FUA != 0,
        },
        nvm::DATASET_MANAGEMENT => {
            let (order, data) = ranges(entry, namespace.read_only)?;
            return Ok(Checked {
                data,
                ..whole(order, Some(index))
            });
        }
        _ => return Err(Status::INVALID_OPCODE.with_dnr()),
    };
    if namespace.read_only && order != Order::Read {
        return Err(Status::WRITE_PROTECTED.with_dnr());
    }
    if cdw12 & nvm::PROTECTION != 0 {
        return Err(Status::INVALID_FIELD.with_dnr());
    }
    let (slba, blocks) = (entry[5], u64::from(cdw12 as u16) + 1);
    within(namespace, slba, blocks)?;
    let len = blocks << namespace.block_shift;
    let data = match order {
        Order::WriteZeroes { .. } => 0,
        _ if len > transfer_max.into() => return Err(Status::INVALID_FIELD.with_dnr()),
        _ => len as u32,
    };
    Ok(Checked {
        order,
        namespace: index,
        all: false,
        offset: slba << namespace.block_shift,
        len,
        data,
    })
}

/// A command without blocks, for one namespace or for all.
fn whole(order: Order, namespace: Option<u32>) -> Checked {
    Checked {
        order,
        namespace: namespace.unwrap_or(0),
        all: namespace.is_none(),
        offset: 0,
        len: 0,
        data: 0,
    }
}

/// Whether a client may touch these blocks, and there are any.
///
/// # Errors
/// LBA Out of Range; Access Denied where there are, but not for this client.
#[inline]
pub fn within(namespace: &Namespace, slba: u64, blocks: u64) -> Result<(), Status> {
    // 64 bits and 32: the sum may wrap, so it is never formed.
    if slba > namespace.blocks || blocks > namespace.blocks - slba {
        return Err(Status::LBA_RANGE.with_dnr());
    }
    let theirs = slba >= namespace.first && slba + blocks <= namespace.end;
    if !theirs {
        return Err(Status::ACCESS_DENIED.with_dnr());
    }
    Ok(())
}

/// Dataset Management (NVM command set 1.0, 3.2.3): the command, and the bytes of its ranges.
fn ranges(entry: &Entry, read_only: bool) -> Result<(Order, u32), Status> {
    let (cdw10, cdw11) = (entry[5] as u32, (entry[5] >> 32) as u32);
    let (ranges, apply) = ((cdw10 & 0xff) + 1, cdw11 & nvm::DSM_DEALLOCATE != 0);
    if read_only && apply {
        return Err(Status::WRITE_PROTECTED.with_dnr());
    }
    let order = Order::Deallocate { ranges, apply };
    Ok((order, ranges * dsm::Range::LEN as u32))
}

/// Cancel (Base 2.1, 7.1): of this queue only.
fn cancel(entry: &Entry) -> Result<Order, Status> {
    let (cdw10, cdw11) = (entry[5] as u32, (entry[5] >> 32) as u32);
    match (cdw11 & 3, (cdw10 >> 16) as u16) {
        (0, cid) => Ok(Order::Cancel { cid: Some(cid) }),
        (1, u16::MAX) => Ok(Order::Cancel { cid: None }),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}
