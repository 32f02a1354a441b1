//! T54: heartbeats end in time whatever users have the legs do.
use super::common::{MS, SECOND};
use super::rig::{Rig, configured, io, made, shared};
use engine::host::{Io, IoOp};
use engine::mirror::LegStatus;
use multipath::Outcome;

const WRITE: IoOp = IoOp::Write { fua: false };
/// Time of a slow leg for each request, one after the other.
const SERVICE: u64 = 50 * MS;
/// Outstanding: six seconds of work, and the lease is ten.
const USERS: u64 = 120;
/// How long they go on.
const LOAD_NS: u64 = 120 * SECOND;

/// Two legs that do one request at a time have [`USERS`] outstanding for two minutes. Returns how
/// many have ended; no leg left, and no heartbeat was late.
fn ended_on_slow_legs(request: impl Fn(u64) -> Io) -> u64 {
    let disks = made(2, true);
    let mut rig = shared(&disks);
    rig.until(60 * SECOND, Rig::is_ready);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    for leg in 0..2 {
        rig.disk(leg).delay_ns = SERVICE;
        rig.disk(leg).busy_until_ns = Some(0);
    }
    rig.done.clear();
    (0..USERS).for_each(|block| rig.submit(&request(block)));
    let (end_ns, mut ended) = (rig.world.now_ns + LOAD_NS, 0);
    while rig.world.now_ns < end_ns {
        rig.until(10 * SECOND, |rig| !rig.done.is_empty());
        for done in core::mem::take(&mut rig.done) {
            assert_eq!(done.outcome, Outcome::Done);
            ended += 1;
            rig.submit(&request(done.cookie));
        }
    }
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2], "{:?}", rig.lines());
    let lapsed = |line: &String| line.contains("no heartbeat");
    assert!(!rig.lines().iter().any(lapsed), "{:?}", rig.lines());
    ended
}

#[test]
fn t54_deep_queue_on_slow_legs_keeps_leases() {
    let ended = ended_on_slow_legs(|block| io(WRITE, block));
    // Heartbeats take some of the legs' time: three requests in five seconds.
    let possible = LOAD_NS / SERVICE;
    assert!(ended * 100 >= possible * 95, "{ended} of {possible}");
}

/// Flushes fill a slow leg's queue as data does.
#[test]
fn t54_many_flushes_on_slow_legs_keep_leases() {
    let ended = ended_on_slow_legs(|block| match block % 3 {
        0 => io(WRITE, block),
        1 => io(IoOp::Read, block),
        _ => io(IoOp::Flush, block),
    });
    assert!(ended > USERS, "{ended}");
}

#[test]
fn t54_beats_go_before_data_that_has_no_room() {
    let disks = made(2, true);
    let (mut host, mut mirror) = configured(&disks);
    // Half a minute of work for so few slots, and the lease is ten seconds.
    host.io_max = 16;
    mirror.shared = true;
    let mut rig = Rig::with(&disks, host, mirror);
    rig.until(60 * SECOND, Rig::is_ready);
    for leg in 0..2 {
        rig.disk(leg).delay_ns = SECOND;
    }
    rig.done.clear();
    (0..256).for_each(|block| rig.submit(&io(WRITE, block)));
    rig.until(120 * SECOND, |rig| rig.done.len() == 256);
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
    assert_eq!(rig.statuses(), [LegStatus::InSync; 2], "{:?}", rig.lines());
    let lapsed = |line: &String| line.contains("no heartbeat");
    assert!(!rig.lines().iter().any(lapsed), "{:?}", rig.lines());
}

#[test]
fn t54_reads_of_a_hung_leg_all_go_to_it() {
    let disks = made(2, true);
    let mut rig = shared(&disks);
    rig.until(60 * SECOND, Rig::is_ready);
    for leg in 0..2 {
        rig.disk(leg).delay_ns = SERVICE;
        rig.disk(leg).busy_until_ns = Some(0);
    }
    rig.done.clear();
    // The windows are small by then.
    (0..USERS).for_each(|block| rig.submit(&io(IoOp::Read, block)));
    rig.until(20 * SECOND, |rig| rig.done.len() == USERS as usize);
    // Its requests on the device end after 30 s, all at once.
    rig.disk(0).delay_ns = 30 * SECOND;
    rig.disk(0).busy_until_ns = None;
    rig.done.clear();
    (0..USERS).for_each(|block| rig.submit(&io(IoOp::Read, block)));
    // Those that had waited end 2.5 s later, or 3 s after that on the other leg.
    rig.until(38 * SECOND, |rig| rig.done.len() == USERS as usize);
    let well = rig.done.iter().all(|done| done.outcome == Outcome::Done);
    assert!(well, "{:?}", rig.done);
}
