//! Write Zeroes over devices without such a command.
use super::common::{BLOCK, HOST, SECOND, TARGET, io};
use super::data::{at, durable};
use super::rig::{Below, Rig, Setup};
use engine::DeviceOp;
use engine::host::IoOp;
use multipath::Outcome;
use nbd::{Kind, Request};

/// More than a request has under way at a time.
const BLOCKS_ZEROED: u32 = 6 << 8;
const FIRST: u64 = 3;

fn rig(below: Below) -> Rig {
    let mut rig = Rig::ready(Setup::over(below));
    for node in [HOST, TARGET] {
        let disks = rig.world.nodes[node].disks.iter_mut();
        disks.for_each(|disk| disk.lacks_zeroes = true);
    }
    let first = at(&rig, below, FIRST - 1);
    for disk in legs(&rig, below) {
        let len = (BLOCKS_ZEROED as usize + 2) * BLOCK as usize;
        disk.bytes.borrow_mut()[first..][..len].fill(0x77);
        *disk.log.borrow_mut() = Some(Vec::new());
    }
    rig
}

fn legs(rig: &Rig, below: Below) -> &[super::common::Disk] {
    &rig.disks[..if below == Below::Mirror { 2 } else { 1 }]
}

/// The blocks are zero, and those beside them are as before; what was written was small.
fn check(rig: &Rig, below: Below) {
    let first = at(rig, below, FIRST);
    for disk in legs(rig, below) {
        let bytes = disk.bytes.borrow();
        let end = first + BLOCKS_ZEROED as usize * BLOCK as usize;
        assert!(bytes[first..end].iter().all(|it| *it == 0), "{below:?}");
        assert_eq!((bytes[first - 1], bytes[end]), (0x77, 0x77), "{below:?}");
        if below == Below::Mirror {
            continue; // its copies are larger
        }
        let log = disk.log.borrow();
        let largest = log.iter().flatten().map(|(request, _)| match request.op {
            DeviceOp::Write { .. } => request.length,
            _ => 0,
        });
        assert_eq!(largest.max(), Some(engine::limits::ZEROES_BYTES.into()));
    }
    assert_eq!(rig.used(), 0);
}

#[test]
fn hosts_zeroes_are_written_where_there_is_no_command() {
    for below in [Below::Paths, Below::Local, Below::Mirror] {
        let mut rig = rig(below);
        let zeroes = IoOp::WriteZeroes { deallocate: false };
        let offset = FIRST * u64::from(BLOCK);
        let mut it = io(zeroes, offset, BLOCKS_ZEROED * BLOCK, 0);
        it.span.len = 0;
        rig.submit(&it, 0);
        assert_eq!(rig.end(0, 60 * SECOND), Outcome::Done, "{below:?}");
        check(&rig, below);
    }
}

#[test]
fn t13_nbd_zeroes_are_written_where_there_is_no_command() {
    for below in [Below::Paths, Below::Local, Below::Mirror] {
        for fua in [false, true] {
            let mut rig = rig(below);
            let client = rig.connect();
            let features = rig.clients.borrow().all[client].ready.unwrap().features;
            assert!(features.write_zeroes);
            let offset = FIRST * u64::from(BLOCK);
            let mut zeroes = Request::new(0, Kind::WriteZeroes, offset, BLOCKS_ZEROED * BLOCK);
            zeroes.fua = fua;
            rig.ask(client, zeroes, &[]);
            let ended = |rig: &Rig| !rig.clients.borrow().all[client].ended.is_empty();
            rig.until(60 * SECOND, ended);
            let ended = rig.clients.borrow_mut().all[client].ended.remove(0);
            assert_eq!(ended.result, Ok(()), "{below:?}");
            check(&rig, below);
            let last = FIRST + u64::from(BLOCKS_ZEROED) - 1;
            let is_durable = durable(&rig, below, last).iter().all(|it| *it == 0);
            assert!(is_durable || !fua, "{below:?}");
            // A fast zero is one that does not do so.
            let fast = Request {
                fast_zero: true,
                ..zeroes
            };
            if features.fast_zero {
                rig.ask(client, fast, &[]);
                rig.until(60 * SECOND, |rig| {
                    !rig.clients.borrow().all[client].ended.is_empty()
                });
                let ended = rig.clients.borrow_mut().all[client].ended.remove(0);
                assert!(ended.result.is_err());
            }
        }
    }
}
