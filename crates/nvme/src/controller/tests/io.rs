//! I/O commands: which are executed, which are refused, and the status.
use super::*;
use crate::limits::RANGES_UNDER_WAY_MAX;
use crate::wire::dsm;
use crate::wire::sqe::{NSID_ALL, nvm};

pub fn rw(opcode: u8, nsid: u32, slba: u64, blocks: u32, sgl: Sgl) -> SqeBuilder {
    SqeBuilder::new(opcode)
        .nsid(nsid)
        .sgl(sgl)
        .put(40, &slba.to_le_bytes())
        .cdw(12, blocks - 1)
}

/// Write to a namespace of 512-byte blocks.
pub fn write(nsid: u32, slba: u64, blocks: u32, sgl: Sgl) -> SqeBuilder {
    rw(nvm::WRITE, nsid, slba, blocks, sgl)
}

pub fn read(nsid: u32, slba: u64, blocks: u32, len: u32) -> SqeBuilder {
    rw(nvm::READ, nsid, slba, blocks, Sgl::Transport { len })
}

fn capsule(len: u32) -> Sgl {
    Sgl::InCapsule { offset: 0, len }
}

fn deallocate(count: u32, len: u32) -> SqeBuilder {
    SqeBuilder::new(nvm::DATASET_MANAGEMENT)
        .nsid(1)
        .sgl(capsule(len))
        .cdw(10, count - 1)
        .cdw(11, nvm::DSM_DEALLOCATE)
}

/// The status of a command that is refused at once, with DNR unless it is the path's.
fn status(bench: &mut Bench, sqe: SqeBuilder, data: &[u8]) -> Status {
    let before = bench.executed.len();
    let got = bench.send(1, sqe, data);
    let [Got::Response(cqe)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(
        bench.executed.len(),
        before,
        "a refused command reached the driver"
    );
    assert_eq!(cqe.status.dnr(), cqe.status.sct() != 3, "{:?}", cqe.status);
    cqe.status.code()
}

#[test]
fn every_command_reaches_the_driver_as_it_was_meant() {
    let mut bench = Bench::ready(config(), &Options::default());
    let token = 0;
    let zeroes = rw(nvm::WRITE_ZEROES, 2, 9, 65, Sgl::None);
    let zeroed = |deallocate, fua| Action::WriteZeroes { deallocate, fua };
    let cases = [
        (
            write(1, 5, 8, capsule(4096)),
            4096,
            (1, 5, 8, Action::Write { fua: false }),
        ),
        (
            write(1, 5, 8, capsule(4096)).cdw(12, 7 | nvm::FUA | nvm::LIMITED_RETRY),
            4096,
            (1, 5, 8, Action::Write { fua: true }),
        ),
        (
            rw(nvm::COMPARE, 1, 5, 8, capsule(4096)),
            4096,
            (1, 5, 8, Action::Compare),
        ),
        (
            SqeBuilder::new(nvm::FLUSH).nsid(2),
            0,
            (2, 0, 0, Action::Flush),
        ),
        (
            SqeBuilder::new(nvm::FLUSH).nsid(NSID_ALL),
            0,
            (NSID_ALL, 0, 0, Action::Flush),
        ),
        (zeroes, 0, (2, 9, 65, zeroed(false, false))),
        (
            zeroes.cdw(12, 64 | nvm::DEALLOCATE),
            0,
            (2, 9, 65, zeroed(true, false)),
        ),
        (
            zeroes.cdw(12, 64 | nvm::FUA),
            0,
            (2, 9, 65, zeroed(false, true)),
        ),
    ];
    for (sqe, len, (nsid, slba, blocks, action)) in cases {
        let got = bench.send(1, sqe, &pattern(3, len));
        assert!(
            matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()),
            "{got:?}"
        );
        let want = IoCommand {
            conn: ConnId(1),
            token,
            port: 0,
            nsid,
            slba,
            blocks,
            action,
        };
        assert_eq!(bench.executed.pop(), Some(want));
    }
    assert!(bench.buffers.is_empty(), "every buffer came back");
    assert_eq!(bench.released.len(), 8);
}

#[test]
fn ranges_of_a_deallocation_arrive_without_the_empty_ones() {
    let mut bench = Bench::ready(config(), &Options::default());
    let range = |slba, blocks| dsm::Range {
        attributes: 0,
        blocks,
        slba,
    };
    let mut data: Vec<u8> = Vec::new();
    for range in [
        range(1, 2),
        range(9, 0),
        range(BLOCKS - 3, 3),
        range(BLOCKS, 100),
    ] {
        data.extend_from_slice(&range.emit());
    }
    // The command does not count the fourth range, so it is not checked.
    let got = bench.send(1, deallocate(3, 64), &data);
    assert!(
        matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()),
        "{got:?}"
    );
    let action = bench.executed.pop().map(|command| command.action);
    assert_eq!(action, Some(Action::Deallocate));
    assert_eq!(bench.ranges[..], [(1, 2), (BLOCKS - 3, 3)]);
    // All four: one lies outside.
    assert_eq!(
        status(&mut bench, deallocate(4, 64), &data),
        Status::LBA_RANGE
    );
    // Fewer bytes than ranges.
    assert_eq!(
        status(&mut bench, deallocate(5, 64), &data),
        Status::SGL_DATA_LENGTH
    );
    // Hints alone are taken and not followed.
    let got = bench.send(1, deallocate(4, 64).cdw(11, 1), &data);
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()));
    assert!(bench.executed.is_empty());
}

/// A host may have a queue full of them, each with more ranges than it needs.
#[test]
fn ranges_under_way_on_a_connection_are_bounded() {
    let mut config = config();
    config.entries_max = 64;
    let options = Options {
        entries: 64,
        ..Options::default()
    };
    let mut bench = Bench::ready(config, &options);
    bench.hold_commands = true;
    let range = dsm::Range {
        attributes: 0,
        blocks: 1,
        slba: 0,
    };
    let data = range.emit().repeat(dsm::RANGES_MAX);
    let most = RANGES_UNDER_WAY_MAX as usize / dsm::RANGES_MAX;
    for _ in 0..most {
        assert_eq!(bench.send(1, deallocate(256, 4096), &data), []);
    }
    assert_eq!(bench.held.len(), most);
    // A hint: it is left, and holds nothing.
    for _ in 0..8 {
        let left = bench.send(1, deallocate(256, 4096), &data);
        assert!(matches!(left[..], [Got::Response(cqe)] if cqe.status.is_success()));
    }
    assert_eq!(bench.held.len(), most);
    bench.execute_one();
    assert!(matches!(bench.receive(1)[..], [Got::Response(_)]));
    assert_eq!(bench.send(1, deallocate(256, 4096), &data), []);
    assert_eq!(bench.held.len(), most);
    // Ranges that are sent and not counted take no memory.
    bench.execute_one();
    bench.receive(1);
    for _ in 0..16 {
        assert_eq!(bench.send(1, deallocate(1, 4096), &data), []);
    }
    assert_eq!(bench.held.len(), most - 1 + 16);
}

#[test]
fn form_of_the_entry() {
    let mut bench = Bench::ready(config(), &Options::default());
    let good = read(1, 0, 8, 4096);
    let mut prp = *good.bytes();
    prp[1] = 0;
    let mut fused = *good.bytes();
    fused[1] |= 1;
    let mut metadata = *good.bytes();
    metadata[16] = 1;
    for entry in [prp, fused, metadata] {
        let mut bytes = bench.capsule(1, &SqeBuilder::new(0), &[]);
        bytes[8..72].copy_from_slice(&entry);
        bench.feed(1, &bytes);
        let got = bench.receive(1);
        let [Got::Response(cqe)] = got[..] else {
            panic!("{got:?}")
        };
        assert_eq!(cqe.status, Status::INVALID_FIELD.with_dnr());
    }
    for opcode in 0..=255 {
        let known = [
            nvm::READ,
            nvm::WRITE,
            nvm::FLUSH,
            nvm::COMPARE,
            nvm::WRITE_ZEROES,
            nvm::DATASET_MANAGEMENT,
        ];
        if opcode != 0x7f && !known.contains(&opcode) {
            assert_eq!(
                status(&mut bench, SqeBuilder::new(opcode), &[]),
                Status::INVALID_OPCODE
            );
        }
    }
    for bit in 26..30 {
        let sqe = good.cdw(12, 7 | 1 << bit);
        assert_eq!(
            status(&mut bench, sqe, &[]),
            Status::INVALID_FIELD,
            "PRINFO bit {bit}"
        );
    }
}

#[test]
fn namespaces_and_ranges_in_wide_arithmetic() {
    let mut bench = Bench::ready(config(), &Options::default());
    for nsid in [0, 3, 4, 6, NSID_ALL, NSID_ALL - 1] {
        assert_eq!(
            status(&mut bench, read(nsid, 0, 1, 512), &[]),
            Status::INVALID_NAMESPACE
        );
    }
    for (slba, blocks) in [
        (BLOCKS, 1),
        (BLOCKS - 1, 2),
        (BLOCKS - 7, 8),
        (u64::MAX, 1),
        (u64::MAX - 7, 8),
        (1 << 63, 256),
        (0, 65536),
    ] {
        let sqe = read(1, slba, blocks, blocks * 512);
        assert_eq!(
            status(&mut bench, sqe, &[]),
            Status::LBA_RANGE,
            "{slba} + {blocks}"
        );
        let zeroes = rw(nvm::WRITE_ZEROES, 1, slba, blocks, Sgl::None);
        assert_eq!(status(&mut bench, zeroes, &[]), Status::LBA_RANGE);
    }
    let got = bench.send(1, read(1, BLOCKS - 8, 8, 4096), &[]);
    assert!(matches!(&got[..], [Got::Data { bytes, .. }, Got::Response(_)] if bytes.len() == 4096));
}

#[test]
fn t34_no_transfer_above_mdts() {
    let mut bench = Bench::ready(config(), &Options::default());
    // 128 KiB: the largest; one block more is refused, and so is 2^16 blocks of 4 KiB.
    let got = bench.send(1, read(1, 0, 256, 128 << 10), &[]);
    assert!(matches!(&got[..], [Got::Data { .. }, Got::Response(_)]));
    let sqe = read(1, 0, 257, 257 * 512);
    assert_eq!(status(&mut bench, sqe, &[]), Status::INVALID_FIELD);
    let sqe = write(2, 0, 33, Sgl::Transport { len: 33 * 4096 });
    assert_eq!(status(&mut bench, sqe, &[]), Status::INVALID_FIELD);
    // Write Zeroes moves no data: its limit is the field's.
    let got = bench.send(1, rw(nvm::WRITE_ZEROES, 2, 0, 4096, Sgl::None), &[]);
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()));
}

#[test]
fn data_pointers() {
    let mut bench = Bench::ready(config(), &Options::default());
    let cases: &[(SqeBuilder, usize, Status)] = &[
        (read(1, 0, 8, 4095), 0, Status::SGL_DATA_LENGTH),
        (read(1, 0, 8, 8192), 0, Status::SGL_DATA_LENGTH),
        (
            rw(nvm::READ, 1, 0, 8, Sgl::None),
            0,
            Status::SGL_DATA_LENGTH,
        ),
        (rw(nvm::READ, 1, 0, 8, capsule(4096)), 0, Status::SGL_TYPE),
        (
            rw(nvm::READ, 1, 0, 8, Sgl::Other { identifier: 0x40 }),
            0,
            Status::SGL_TYPE,
        ),
        (write(1, 0, 8, capsule(4096)), 0, Status::SGL_DATA_LENGTH),
        (write(1, 0, 8, capsule(4096)), 512, Status::SGL_DATA_LENGTH),
        (write(1, 0, 8, capsule(512)), 512, Status::SGL_DATA_LENGTH),
        (
            write(
                1,
                0,
                8,
                Sgl::InCapsule {
                    offset: 4,
                    len: 4096,
                },
            ),
            4096,
            Status::SGL_OFFSET,
        ),
        (
            write(1, 0, 8, Sgl::Transport { len: 4096 }),
            4096,
            Status::SGL_DATA_LENGTH,
        ),
        (
            write(1, 0, 8, Sgl::Transport { len: 512 }),
            0,
            Status::SGL_DATA_LENGTH,
        ),
        (write(1, 0, 8, Sgl::None), 0, Status::SGL_DATA_LENGTH),
        (
            write(1, 0, 8, Sgl::Other { identifier: 0x0f }),
            0,
            Status::SGL_TYPE,
        ),
    ];
    for (sqe, len, want) in cases {
        assert_eq!(
            status(&mut bench, *sqe, &pattern(0, *len)),
            *want,
            "{:?}",
            sqe.view().sgl()
        );
    }
    // In-capsule data of refused commands was dropped: the stream is in step.
    let got = bench.send(1, write(1, 0, 8, capsule(4096)), &pattern(0, 4096));
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()));
}

#[test]
fn write_protected_namespaces_are_read_only() {
    let mut bench = Bench::ready(config(), &Options::default());
    let changing = [
        (write(5, 0, 1, capsule(512)), 512),
        (rw(nvm::WRITE_ZEROES, 5, 0, 1, Sgl::None), 0),
        (deallocate(1, 16).nsid(5), 16),
    ];
    for (sqe, len) in changing {
        assert_eq!(
            status(&mut bench, sqe, &vec![0; len]),
            Status::WRITE_PROTECTED
        );
    }
    let got = bench.send(1, read(5, 0, 1, 512), &[]);
    assert!(matches!(&got[..], [Got::Data { .. }, Got::Response(_)]));
    let got = bench.send(1, rw(nvm::COMPARE, 5, 0, 1, capsule(512)), &[0; 512]);
    assert!(matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()));
}

#[test]
fn t26_ana_states_answer_with_path_statuses_and_without_dnr() {
    let mut bench = Bench::new(config());
    let first = bench.admin(0, 0);
    bench.io(1, 0, first, 1, &Options::default());
    let other = bench.admin(2, 1);
    bench.io(3, 1, other, 1, &Options::default());
    for (state, want) in [
        (AnaState::Inaccessible, Status::ANA_INACCESSIBLE),
        (AnaState::PersistentLoss, Status::ANA_PERSISTENT_LOSS),
        (AnaState::Change, Status::ANA_TRANSITION),
    ] {
        bench.target.set_ana(0, state, bench.now);
        for (sqe, len) in [
            (read(1, 0, 8, 4096), 0),
            (write(1, 0, 8, capsule(4096)), 4096),
            (SqeBuilder::new(nvm::FLUSH).nsid(1), 0),
            (SqeBuilder::new(nvm::FLUSH).nsid(NSID_ALL), 0),
        ] {
            assert_eq!(status(&mut bench, sqe, &pattern(0, len)), want);
        }
        // The other port has its own ANA state.
        let got = bench.send(3, read(1, 0, 8, 4096), &[]);
        assert!(matches!(&got[..], [Got::Data { .. }, Got::Response(_)]));
    }
    bench.target.set_ana(0, AnaState::NonOptimized, bench.now);
    let got = bench.send(1, read(1, 0, 8, 4096), &[]);
    assert!(matches!(&got[..], [Got::Data { .. }, Got::Response(_)]));
}

#[test]
fn a_group_that_may_not_serve_leaves_the_others_alone() {
    let mut bench = Bench::ready(config(), &Options::default());
    let now = bench.now;
    bench
        .target
        .set_ana_group(0, 2, AnaState::Inaccessible, now);
    let want = Status::ANA_INACCESSIBLE;
    assert_eq!(status(&mut bench, read(2, 0, 1, 4096), &[]), want);
    let flush = |nsid| SqeBuilder::new(nvm::FLUSH).nsid(nsid);
    assert_eq!(status(&mut bench, flush(NSID_ALL), &[]), want, "not of all");
    let got = bench.send(1, read(1, 0, 8, 4096), &[]);
    assert!(matches!(&got[..], [Got::Data { .. }, Got::Response(_)]));
}

#[test]
fn compare_and_driver_errors_pass_through() {
    let mut bench = Bench::ready(config(), &Options::default());
    let got = bench.send(1, rw(nvm::COMPARE, 1, 0, 1, capsule(512)), &[7; 512]);
    let [Got::Response(cqe)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(cqe.status, Status::COMPARE_FAILURE);
    // A read that failed sends no data at all (T16).
    bench.hold_commands = true;
    assert_eq!(bench.send(1, read(1, 0, 8, 4096), &[]), []);
    let token = bench.held[0].token;
    bench
        .target
        .complete(ConnId(1), token, Status::UNRECOVERED_READ, bench.now);
    bench.settle();
    let got = bench.receive(1);
    let [Got::Response(cqe)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(cqe.status, Status::UNRECOVERED_READ);
}

#[test]
fn t33_a_resize_counts_for_the_next_command() {
    let mut bench = Bench::ready(config(), &Options::default());
    bench.target.resize(1, 10, bench.now).unwrap();
    assert_eq!(
        status(&mut bench, read(1, 10, 1, 512), &[]),
        Status::LBA_RANGE
    );
    let got = bench.send(1, read(1, 9, 1, 512), &[]);
    assert!(matches!(&got[..], [Got::Data { .. }, Got::Response(_)]));
    assert_eq!(bench.target.resize(9, 10, 0).unwrap_err().field, "nsid");
    assert_eq!(bench.target.resize(1, 0, 0).unwrap_err().field, "blocks");
}
