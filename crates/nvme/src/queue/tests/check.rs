//! Commands: which are accepted, and the status of the others.
use super::super::Entry;
use super::super::check::{CANCEL, Checked, Namespace, Order, Trust, check};
use crate::wire::Status;
use crate::wire::sqe::{NSID_ALL, nvm};
use proptest::prelude::*;

const WHOLE: Namespace = Namespace {
    block_shift: 12,
    blocks: 100,
    first: 0,
    end: 100,
    read_only: false,
};

const PART: Namespace = Namespace {
    first: 10,
    end: 20,
    ..WHOLE
};

const SEALED: Namespace = Namespace {
    read_only: true,
    ..WHOLE
};

/// NSID 1 whole, 2 none, 3 a part, 4 read-only.
const ALL: [Option<Namespace>; 4] = [Some(WHOLE), None, Some(PART), Some(SEALED)];

fn entry(opcode: u8, nsid: u32, slba: u64, cdw12: u32) -> Entry {
    let first = u64::from(opcode) | u64::from(nsid) << 32;
    [first, 0, 0, 0, 0, slba, cdw12.into(), 0]
}

fn mediated(entry: &Entry) -> Result<Checked, Status> {
    check(entry, &ALL, 1 << 20, Trust::Mediated)
}

#[test]
fn good_commands_are_taken() {
    let read = mediated(&entry(nvm::READ, 1, 99, 0)).unwrap();
    let expected = Checked {
        order: Order::Read,
        namespace: 0,
        all: false,
        offset: 99 << 12,
        len: 4096,
        data: 4096,
    };
    assert_eq!(read, expected);
    let write = mediated(&entry(nvm::WRITE, 3, 10, nvm::FUA | 9)).unwrap();
    assert_eq!(
        (write.order, write.data),
        (Order::Write { fua: true }, 40_960)
    );
    let zeroes = mediated(&entry(nvm::WRITE_ZEROES, 1, 0, 99)).unwrap();
    assert_eq!((zeroes.len, zeroes.data), (409_600, 0));
    let flush = mediated(&entry(nvm::FLUSH, NSID_ALL, 7, 7)).unwrap();
    assert!(flush.all && flush.order == Order::Flush);
    let trim = mediated(&entry(nvm::DATASET_MANAGEMENT, 1, 2 | 4 << 32, 0)).unwrap();
    assert_eq!(trim.data, 48);
    let cancel = mediated(&entry(CANCEL, 0, 5 << 16, 0)).unwrap();
    assert_eq!(cancel.order, Order::Cancel { cid: Some(5) });
    let all = mediated(&entry(CANCEL, 0, 0xffff << 16 | 1 << 32, 0)).unwrap();
    assert_eq!(all.order, Order::Cancel { cid: None });
}

#[test]
fn bad_commands_get_their_status() {
    let mut fused = entry(nvm::READ, 1, 0, 0);
    fused[0] |= 1 << 8;
    let mut metadata = entry(nvm::READ, 1, 0, 0);
    metadata[2] = 1;
    for (entry, expected) in [
        (entry(0x99, 1, 0, 0), Status::INVALID_OPCODE),
        (entry(nvm::READ, 0, 0, 0), Status::INVALID_NAMESPACE),
        (entry(nvm::READ, 2, 0, 0), Status::INVALID_NAMESPACE),
        (entry(nvm::READ, 5, 0, 0), Status::INVALID_NAMESPACE),
        (entry(nvm::READ, NSID_ALL, 0, 0), Status::INVALID_NAMESPACE),
        (entry(nvm::READ, 1, 100, 0), Status::LBA_RANGE),
        (entry(nvm::READ, 1, 99, 1), Status::LBA_RANGE),
        (entry(nvm::READ, 1, u64::MAX, 0xffff), Status::LBA_RANGE),
        (entry(nvm::READ, 3, 9, 0), Status::ACCESS_DENIED),
        (entry(nvm::WRITE, 3, 19, 1), Status::ACCESS_DENIED),
        (entry(nvm::WRITE, 4, 0, 0), Status::WRITE_PROTECTED),
        (entry(nvm::WRITE_ZEROES, 4, 0, 0), Status::WRITE_PROTECTED),
        (
            entry(nvm::DATASET_MANAGEMENT, 4, 4 << 32, 0),
            Status::WRITE_PROTECTED,
        ),
        (entry(nvm::READ, 1, 0, 1 << 26), Status::INVALID_FIELD),
        (entry(CANCEL, 0, 2 << 32, 0), Status::INVALID_FIELD),
        (fused, Status::INVALID_FIELD),
        (metadata, Status::INVALID_FIELD),
    ] {
        let status = mediated(&entry).unwrap_err();
        assert!(status.is(expected) && status.dnr(), "{entry:x?}: {status}");
    }
    let large = check(&entry(nvm::READ, 1, 0, 1), &ALL, 4096, Trust::Mediated);
    assert!(large.unwrap_err().is(Status::INVALID_FIELD));
}

/// Bits of an entry by word (Base 2.0, 3.3.3.1; NVM command set 1.0, 3.2).
type Bits = [u64; 8];

/// FUSE and what is reserved behind it; the metadata pointer. Of every command, if it is mediated.
const FORM: Bits = [0x3f00, 0, u64::MAX, 0, 0, 0, 0, 0];
/// Protection information (CDW12, 29:26).
const PRINFO: Bits = [0, 0, 0, 0, 0, 0, 0xf << 26, 0];
const NSID: u64 = 0xffff_ffff << 32;
const SLBA: u64 = u64::MAX;
const NLB: u64 = 0xffff;

/// Executed commands by opcode, with a good entry: bits that have a meaning, and bits that are
/// refused. All others change nothing.
fn done() -> [(Entry, Bits, Bits); 6] {
    let none = [0; 8];
    let blocks = |cdw12: u64| [NSID, 0, 0, 0, 0, SLBA, NLB | cdw12, 0];
    let (fua, deallocate) = (1 << 30, 1 << 25);
    [
        (entry(nvm::READ, 1, 5, 3), blocks(0), PRINFO),
        (entry(nvm::WRITE, 1, 5, 3), blocks(fua), PRINFO),
        (
            entry(nvm::WRITE_ZEROES, 1, 5, 3),
            blocks(fua | deallocate),
            PRINFO,
        ),
        (
            entry(nvm::FLUSH, 1, 0, 0),
            [NSID, 0, 0, 0, 0, 0, 0, 0],
            none,
        ),
        // Number of ranges (CDW10, 7:0) and AD (CDW11, 2).
        (
            entry(nvm::DATASET_MANAGEMENT, 1, 2, 0),
            [NSID, 0, 0, 0, 0, 0xff | 4 << 32, 0, 0],
            none,
        ),
        // CID (CDW10, 31:16) and action (CDW11, 1:0).
        (
            entry(CANCEL, 0, 5 << 16, 0),
            [0, 0, 0, 0, 0, 0xffff << 16 | 3 << 32, 0, 0],
            none,
        ),
    ]
}

/// Every bit but those of the opcode, in every executed command.
#[test]
fn every_bit_of_a_command_means_something_is_refused_or_changes_nothing() {
    for (good, means, refused) in done() {
        for trust in [Trust::Mediated, Trust::Trusted] {
            let checked = |entry: &Entry| check(entry, &ALL, 1 << 20, trust);
            let base = checked(&good).unwrap();
            for bit in 8..512 {
                let (word, mask) = (bit / 64, 1_u64 << (bit % 64));
                let mut entry = good;
                entry[word] ^= mask;
                let is_form = FORM[word] & mask != 0 && trust == Trust::Mediated;
                let found = checked(&entry);
                if is_form || refused[word] & mask != 0 {
                    let expected = Err(Status::INVALID_FIELD.with_dnr());
                    assert_eq!(found, expected, "{:#x}: bit {bit}, {trust:?}", good[0]);
                } else if means[word] & mask != 0 {
                    assert_ne!(found, Ok(base), "{:#x}: bit {bit}, {trust:?}", good[0]);
                } else {
                    assert_eq!(found, Ok(base), "{:#x}: bit {bit}, {trust:?}", good[0]);
                }
            }
        }
    }
}

#[test]
fn every_opcode_is_done_or_refused() {
    let done = done().map(|(good, ..)| good[0] as u8);
    for opcode in (0..=u8::MAX).filter(|opcode| !done.contains(opcode)) {
        for trust in [Trust::Mediated, Trust::Trusted] {
            for nsid in [1, 3, 4] {
                let found = check(&entry(opcode, nsid, 12, 0), &ALL, 1 << 20, trust);
                let expected = Err(Status::INVALID_OPCODE.with_dnr());
                assert_eq!(found, expected, "{opcode:#x} of {nsid}");
            }
            for nsid in [0, 2, 5, NSID_ALL] {
                let found = check(&entry(opcode, nsid, 12, 0), &ALL, 1 << 20, trust);
                let expected = Err(Status::INVALID_NAMESPACE.with_dnr());
                assert_eq!(found, expected, "{opcode:#x} of {nsid:#x}");
            }
        }
    }
}

#[test]
fn a_trusted_client_keeps_to_its_blocks() {
    let trusted = |entry: &Entry| check(entry, &ALL, 1 << 20, Trust::Trusted);
    let denied = trusted(&entry(nvm::READ, 3, 9, 0)).unwrap_err();
    assert!(denied.is(Status::ACCESS_DENIED));
    let outside = trusted(&entry(nvm::READ, 3, 100, 0)).unwrap_err();
    assert!(outside.is(Status::LBA_RANGE));
    let sealed = trusted(&entry(nvm::WRITE, 4, 0, 0)).unwrap_err();
    assert!(sealed.is(Status::WRITE_PROTECTED));
}

proptest! {
    #[test]
    fn accepted_commands_lie_inside(entry in any::<[u64; 8]>(), nsid in 0..6_u32) {
        let mut entry = entry;
        entry[0] = entry[0] & 0xffff_0006 | u64::from(nsid) << 32;
        for trust in [Trust::Mediated, Trust::Trusted] {
            entry[5] %= 128;
            if let Ok(checked) = check(&entry, &ALL, 1 << 20, trust) {
                prop_assert!(checked.offset + checked.len <= 100 << 12);
                prop_assert!(checked.data <= 1 << 20);
                prop_assert!(checked.all || ALL[checked.namespace as usize].is_some());
            }
        }
    }
}
