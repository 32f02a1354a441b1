//! Users of a mirror whose writes overlap.
use super::common::{MS, SECOND};
use super::rig::{BLOCK, Rig, data, io, made};
use engine::host::IoOp;
use engine::limits::MIRROR_IOS_MAX;
use engine::machine::DeviceError;
use engine::mirror::LegStatus;
use std::thread;

/// Blocks that all of them write.
const SHARED: u64 = 4;
const WRITERS: u64 = 4;
const ROUNDS: u64 = 200;

/// A number below `most`, another one each time.
fn below(state: &mut u64, most: u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (*state >> 33) % most
}

#[test]
fn t46_writes_that_overlap_reach_all_legs_in_one_order_whoever_sends_them() {
    let disks = made(3, true);
    let mut rig = Rig::ready(&disks);
    let mut random = 4711;
    for round in 0..ROUNDS {
        for who in 0..WRITERS {
            // On each leg another one is the slowest.
            for leg in 0..disks.len() {
                rig.disk(leg).delay_ns = below(&mut random, 4 * MS);
            }
            let mut it = io(IoOp::Write { fua: false }, below(&mut random, SHARED));
            it.length *= 1 + below(&mut random, 2) as u32;
            (it.span.len, it.span.at) = (it.length, who * 2 * u64::from(BLOCK));
            (it.source, it.cookie) = (who, round * WRITERS + who);
            let byte = (it.cookie % 251) as u8 + 1;
            let at = it.span.at as usize;
            let memory = &mut rig.world.nodes[super::common::HOST].arena.0;
            memory[at..][..it.length as usize].fill(byte);
            rig.submit(&it);
            rig.run(MS / 10, |_| false);
        }
        let all = (round + 1) * WRITERS;
        rig.until(60 * SECOND, |rig| rig.done.len() as u64 == all);
        for block in 0..SHARED {
            let from = (block * u64::from(BLOCK)) as usize;
            let on = |leg: usize| data(&disks[leg])[from..][..BLOCK as usize].to_vec();
            assert!(
                on(0) == on(1) && on(0) == on(2),
                "round {round}, block {block}"
            );
        }
    }
    assert!(rig.done.iter().all(|done| done.outcome.is_done()));
    assert_eq!(rig.statuses(), [LegStatus::InSync; 3]);
    rig.stop();
    assert!(data(&disks[0]) == data(&disks[1]) && data(&disks[0]) == data(&disks[2]));
}

/// The end of each write begins the next one, by a loop and not inside of the call that has ended
/// it: a small stack is enough for as many as a mirror has, also if all fail at once (T53).
#[test]
fn overlapping_writes_end_on_a_small_stack() {
    let all = || {
        let disks = made(2, true);
        let mut rig = Rig::ready(&disks);
        for error in [None, Some(DeviceError::Os(5))] {
            (0..2).for_each(|leg| rig.disk(leg).error = error);
            rig.done.clear();
            for cookie in 0..MIRROR_IOS_MAX as u64 {
                let mut it = io(IoOp::Write { fua: false }, 0);
                it.cookie = cookie;
                rig.submit(&it);
            }
            rig.until(60 * SECOND, |rig| rig.done.len() == MIRROR_IOS_MAX);
            let well = rig.done.iter().filter(|done| done.outcome.is_done());
            assert_eq!(well.count() == MIRROR_IOS_MAX, error.is_none());
            let cookies = rig.done.iter().map(|done| done.cookie);
            assert!(cookies.eq(0..MIRROR_IOS_MAX as u64), "in order (T46)");
        }
    };
    let small = thread::Builder::new().stack_size(1 << 20);
    small.spawn(all).unwrap().join().unwrap();
}
