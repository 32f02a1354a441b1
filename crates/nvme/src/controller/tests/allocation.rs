//! Get LBA Status: the lists of allocated blocks, and commands that end early.
use super::admin::bench;
use super::*;
use crate::limits::ALLOCATION_COMMANDS_MAX;
use crate::wire::lba_status::{ALLOCATED, List, Request};
use crate::wire::sqe::admin;

pub fn ask(nsid: u32, slba: u64, blocks: u16, len: u64) -> SqeBuilder {
    let request = Request {
        slba,
        len,
        action: ALLOCATED,
        blocks,
    };
    let sqe = SqeBuilder::new(admin::GET_LBA_STATUS).nsid(nsid);
    let cdw = request.emit();
    (10..)
        .zip(cdw)
        .fold(sqe, |sqe, (n, value)| sqe.cdw(n, value))
}

/// The entries of a list, and whether there are no more.
fn list(bytes: &[u8]) -> (Vec<(u64, u32)>, bool) {
    let list = List::parse(bytes).unwrap();
    assert!(list.is_complete() != list.is_incomplete());
    let entries = list.entries().map(|it| (it.slba, it.blocks));
    (entries.collect(), list.is_complete())
}

fn fill(bench: &mut Bench, nsid: u32, range: core::ops::Range<usize>) {
    bench.disks.get_mut(&nsid).unwrap()[range].fill(7);
}

#[test]
fn list_has_the_allocated_blocks_of_the_range() {
    let mut bench = bench();
    fill(&mut bench, 1, 10 * 512..20 * 512);
    fill(&mut bench, 1, 30 * 512..30 * 512 + 1);
    fill(&mut bench, 1, 4095 * 512..4096 * 512);
    let all = [(10, 10), (30, 1), (4095, 1)];
    let fetch = |bench: &mut Bench, slba, blocks, len: u32| {
        list(
            &bench
                .fetch(0, ask(1, slba, blocks, len.into()), len)
                .unwrap(),
        )
    };
    assert_eq!(fetch(&mut bench, 0, 0, 4096), (all.to_vec(), true));
    assert_eq!(
        fetch(&mut bench, 15, 16, 4096),
        (vec![(15, 5), (30, 1)], true)
    );
    assert_eq!(fetch(&mut bench, 20, 10, 4096), (vec![], true));
    assert_eq!(fetch(&mut bench, 31, 0, 4096), (vec![(4095, 1)], true));
    // Room for two, and part of one.
    assert_eq!(fetch(&mut bench, 0, 0, 52), (all[..2].to_vec(), false));
    assert_eq!(fetch(&mut bench, 0, 31, 40), (all[..2].to_vec(), true));
    // Blocks of 4 KiB, of which one byte is data.
    fill(&mut bench, 2, 4096 * 3 + 17..4096 * 3 + 18);
    let page = bench.fetch(0, ask(2, 0, 0, 256), 256).unwrap();
    assert_eq!(list(&page), (vec![(3, 1)], true));
}

#[test]
fn what_cannot_be_listed_is_refused() {
    let mut bench = bench();
    for (sqe, len, want) in [
        (ask(3, 0, 1, 4096), 4096, Status::INVALID_NAMESPACE),
        (ask(1, BLOCKS, 0, 4096), 4096, Status::LBA_RANGE),
        (ask(1, BLOCKS - 1, 2, 4096), 4096, Status::LBA_RANGE),
        (ask(1, u64::MAX, 2, 4096), 4096, Status::LBA_RANGE),
        (ask(1, 0, 1, 20), 20, Status::INVALID_FIELD),
        (ask(1, 0, 1, 4096), 4092, Status::SGL_DATA_LENGTH),
        (ask(1, 0, 1, 1 << 18), 1 << 18, Status::INVALID_FIELD),
        // Blocks that may be unreadable: there are none, and it is not known which.
        (
            ask(1, 0, 1, 4096).cdw(13, 0x1000_0001),
            4096,
            Status::INVALID_FIELD,
        ),
        (
            ask(1, 0, 1, 4096).cdw(13, 0x1100_0001),
            4096,
            Status::INVALID_FIELD,
        ),
    ] {
        assert_eq!(bench.refusal(sqe, len), want);
    }
    bench.target.set_ana(0, AnaState::Inaccessible, bench.now);
    let refused = bench.fetch(0, ask(1, 0, 1, 4096), 4096);
    assert_eq!(refused, Err(Status::ANA_INACCESSIBLE), "another path may");
}

/// Its device hangs: the command waits alone, and ends with its controller or connection.
#[test]
fn question_that_is_not_answered_holds_up_nothing() {
    let mut bench = bench();
    bench.hold_extents = true;
    let sqe = ask(1, 0, 0, 4096).sgl(Sgl::Transport { len: 4096 });
    assert_eq!(bench.send(0, sqe, &[]), []);
    bench.page(0x01, 0);
    let reset = Property {
        offset: property::CC,
        wide: false,
        value: 0,
    };
    let got = bench.send(0, reset.emit_set(), &[]);
    let statuses = got.iter().map(|got| match got {
        Got::Response(cqe) => cqe.status,
        other => panic!("{other:?}"),
    });
    let want = [Status::ABORT_REQUESTED, Status::SUCCESS];
    assert_eq!(statuses.collect::<Vec<_>>(), want);
    let held = bench.extents.remove(0);
    bench.target.extent_found(held, u32::MAX, true);
    bench.settle();
    assert_eq!(bench.receive(0), [], "it was aborted with the reset");
}

#[test]
fn answer_reaches_no_later_connection() {
    let mut bench = bench();
    bench.hold_extents = true;
    let sqe = ask(1, 0, 0, 4096).sgl(Sgl::Transport { len: 4096 });
    assert_eq!(bench.send(0, sqe, &[]), []);
    bench.target.handle_closed(ConnId(0), bench.now);
    bench.wires.remove(&0);
    bench.settle();
    bench.admin(0, 0);
    let held = bench.extents.remove(0);
    bench.target.extent_found(held, 512, true);
    bench.settle();
    assert!(bench.extents.is_empty(), "the next extent is not asked for");
}

#[test]
fn beyond_the_limit_all_is_allocated() {
    let mut bench = Bench::new(SubsystemConfig {
        cntlid_max: 30,
        ..config()
    });
    bench.hold_extents = true;
    let mut asked = 0;
    // Several associations share the limit; each has few admin commands at a time.
    for conn in 0.. {
        bench.admin(conn, 0);
        for _ in 0..12 {
            let sqe = ask(1, 5, 10, 4096).sgl(Sgl::Transport { len: 4096 });
            let got = bench.send(conn, sqe, &[]);
            if asked < ALLOCATION_COMMANDS_MAX {
                assert_eq!(got, []);
                asked += 1;
                continue;
            }
            let [Got::Data { bytes, .. }, ..] = &got[..] else {
                panic!("{got:?}")
            };
            assert_eq!(list(bytes), (vec![(5, 10)], true));
            return;
        }
    }
}

/// An entry has room for 2^32 - 1 blocks, so the rest needs further ones, or another list.
#[test]
fn beyond_the_limit_no_block_is_left_out() {
    const LONG: u64 = 1 << 33;
    const MOST: u64 = u32::MAX as u64;
    let whole = vec![(0, u32::MAX), (MOST, u32::MAX), (2 * MOST, 2)];
    let cases = [
        (8 + 16, false, whole[..1].to_vec()),
        (8 + 2 * 16, false, whole[..2].to_vec()),
        (4096, true, whole),
    ];
    for (len, complete, entries) in cases {
        let mut bench = Bench::new(SubsystemConfig {
            cntlid_max: 30,
            ..config()
        });
        bench.target.resize(1, LONG, bench.now).unwrap();
        bench.hold_extents = true;
        let got = (0..).find_map(|n| {
            let conn = n / 12;
            if n % 12 == 0 {
                bench.admin(conn, 0);
            }
            let sqe = ask(1, 0, 0, len).sgl(Sgl::Transport { len: len as u32 });
            match &bench.send(conn, sqe, &[])[..] {
                [Got::Data { bytes, .. }, ..] => Some(bytes.clone()),
                _ => None,
            }
        });
        assert_eq!(
            bench.extents.len(),
            ALLOCATION_COMMANDS_MAX,
            "in {len} bytes"
        );
        assert_eq!(list(&got.unwrap()), (entries, complete), "in {len} bytes");
    }
}
