//! The NVM commands as their submitters write them (NVM command set 1.0, 3).
use super::{Command, Data};
use crate::wire::sqe::{FABRICS, NSID_ALL, fctype, nvm};

impl Command {
    /// Reads `blocks` (1…65536) from `slba`; blocks of 2^`block_shift` bytes.
    pub fn read(nsid: u32, slba: u64, blocks: u32, block_shift: u8, fua: bool, token: u32) -> Self {
        let data = Data::In(blocks << block_shift);
        Self::blocks(
            nvm::READ,
            nsid,
            slba,
            blocks,
            data,
            if fua { nvm::FUA } else { 0 },
            token,
        )
    }

    /// Writes `blocks` (1…65536) at `slba`; `fua`: durable before it completes.
    pub fn write(
        nsid: u32,
        slba: u64,
        blocks: u32,
        block_shift: u8,
        fua: bool,
        token: u32,
    ) -> Self {
        let data = Data::Out(blocks << block_shift);
        Self::blocks(
            nvm::WRITE,
            nsid,
            slba,
            blocks,
            data,
            if fua { nvm::FUA } else { 0 },
            token,
        )
    }

    /// Compares `blocks` at `slba` with the buffer; a difference is Compare Failure (2h/85h).
    pub fn compare(nsid: u32, slba: u64, blocks: u32, block_shift: u8, token: u32) -> Self {
        let data = Data::Out(blocks << block_shift);
        Self::blocks(nvm::COMPARE, nsid, slba, blocks, data, 0, token)
    }

    /// Zeroes `blocks` (1…65536) at `slba`; with `deallocate` they may be deallocated.
    pub fn write_zeroes(nsid: u32, slba: u64, blocks: u32, deallocate: bool, token: u32) -> Self {
        let flags = if deallocate { nvm::DEALLOCATE } else { 0 };
        Self::blocks(
            nvm::WRITE_ZEROES,
            nsid,
            slba,
            blocks,
            Data::None,
            flags,
            token,
        )
    }

    /// Makes all acknowledged writes durable.
    pub fn flush(nsid: u32, token: u32) -> Self {
        Self {
            opcode: nvm::FLUSH,
            nsid,
            cdw: [0; 6],
            data: Data::None,
            token,
        }
    }

    /// As [`Self::flush`], for all namespaces (only where VWC allows it).
    pub fn flush_all(token: u32) -> Self {
        Self::flush(NSID_ALL, token)
    }

    /// Deallocates one range of `blocks` (1…2^32 − 1). The machine sends the range itself.
    pub fn deallocate(nsid: u32, slba: u64, blocks: u32, token: u32) -> Self {
        // NR = 0 (one range); the range itself as `Command` says.
        let cdw = [
            0,
            nvm::DSM_DEALLOCATE,
            slba as u32,
            (slba >> 32) as u32,
            blocks,
            0,
        ];
        Self {
            opcode: nvm::DATASET_MANAGEMENT,
            nsid,
            cdw,
            data: Data::None,
            token,
        }
    }

    /// Sends [`HINT_LEN`](Self::HINT_LEN) bytes of zeroes that change nothing: Dataset Management
    /// with as many ranges as it may have, all empty, and no attribute.
    pub fn empty_hint(nsid: u32, token: u32) -> Self {
        Self {
            opcode: nvm::DATASET_MANAGEMENT,
            nsid,
            cdw: [0xff, 0, 0, 0, 0, 0], // NR: 256 ranges, 0's based
            data: Data::Out(Self::HINT_LEN),
            token,
        }
    }

    /// Bytes of 256 ranges.
    pub const HINT_LEN: u32 = 4096;

    /// Whether this is the Connect command of Fabrics.
    pub(super) fn is_connect(&self) -> bool {
        self.opcode == FABRICS && self.nsid as u8 == fctype::CONNECT
    }

    fn blocks(
        opcode: u8,
        nsid: u32,
        slba: u64,
        blocks: u32,
        data: Data,
        flags: u32,
        token: u32,
    ) -> Self {
        // NLB is 16 bits, 0's based.
        let nlb = blocks.wrapping_sub(1) & 0xffff;
        let cdw = [slba as u32, (slba >> 32) as u32, nlb | flags, 0, 0, 0];
        Self {
            opcode,
            nsid,
            cdw,
            data,
            token,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_each_command() {
        let read = Command::read(1, 0x1_0000_0002, 8, 9, false, 5);
        assert_eq!((read.opcode, read.cdw), (2, [2, 1, 7, 0, 0, 0]));
        assert_eq!((read.data, read.token), (Data::In(4096), 5));
        let write = Command::write(1, 0, 65536, 12, true, 0);
        assert_eq!((write.opcode, write.cdw[2]), (1, 1 << 30 | 0xffff));
        assert_eq!(write.data, Data::Out(1 << 28));
        assert_eq!(Command::compare(1, 0, 1, 12, 0).data, Data::Out(4096));
        let zeroes = Command::write_zeroes(1, 9, 4, true, 0);
        assert_eq!(
            (zeroes.opcode, zeroes.cdw[0], zeroes.cdw[2]),
            (8, 9, 1 << 25 | 3)
        );
        assert_eq!(Command::flush_all(0).nsid, 0xffff_ffff);
        let trim = Command::deallocate(3, 7, 100, 0);
        assert_eq!((trim.opcode, trim.cdw), (9, [0, 4, 7, 0, 100, 0]));
        let hint = Command::empty_hint(3, 0);
        assert_eq!((hint.opcode, hint.cdw), (9, [255, 0, 0, 0, 0, 0]));
        assert_eq!(hint.data, Data::Out(4096));
    }
}
