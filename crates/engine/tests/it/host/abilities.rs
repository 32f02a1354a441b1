//! A path that returns and can do less than clients were told.

use crate::common::*;
use engine::host::{HostEvent, Io, IoOp, PathState, Recovery};
use engine::target::TargetEngine;
use multipath::Outcome;
use std::cell::RefCell;
use std::rc::Rc;

/// ONCS in Identify Controller, and its bits for Dataset Management and Write Zeroes.
const ONCS_AT: usize = 520;
const ZEROING: u8 = 1 << 2 | 1 << 3;

fn zeroing(op: IoOp) -> Io {
    let mut io = read(0, 0);
    (io.op, io.span.len) = (op, 0);
    io
}

struct Pair {
    world: World,
    host: Rc<RefCell<HostCore>>,
    target: Rc<RefCell<Patched>>,
}

impl Pair {
    fn new() -> Self {
        let mut host = host_config(1);
        host.kato_ms = 1000;
        host.volumes[0].recovery = Recovery::default();
        let host = Rc::new(RefCell::new(HostCore::new(host)));
        let target = target_config(1);
        let arena = target.arena_bytes as usize;
        let target = Patched::new(TargetEngine::new(target).unwrap());
        let target = Rc::new(RefCell::new(target));
        let mut world = World::new(42);
        world.add(host.clone(), 8 << 20);
        world.add(target.clone(), arena);
        world.nodes[TARGET].disks = vec![Disk::new((BLOCKS * u64::from(BLOCK)) as usize)];
        world.nodes[HOST].addresses = vec![Address::To {
            node: TARGET,
            listener: 0,
            delay_ns: WIRE_NS,
        }];
        let mut pair = Self {
            world,
            host,
            target,
        };
        pair.until_live();
        pair
    }

    fn until_live(&mut self) {
        for _ in 0..200 {
            self.world.pass(100 * MS);
            if self.host.borrow().path_state(0, P0) == PathState::Live {
                return;
            }
        }
        panic!("it is not live");
    }

    fn one(&mut self, io: &Io) -> Outcome {
        let now_ns = self.world.now_ns;
        self.host.borrow_mut().submit(io, now_ns).unwrap();
        for _ in 0..200 {
            self.world.pass(100 * MS);
            while let Some(event) = { self.host.borrow_mut().poll_event() } {
                if let HostEvent::Done(done) = event {
                    return done.outcome;
                }
            }
        }
        panic!("{io:?} never ended");
    }
}

/// A front end writes the zeroes itself then.
#[test]
fn t34_zeroes_that_a_returned_path_cannot_do() {
    let mut pair = Pair::new();
    for op in [IoOp::WriteZeroes { deallocate: false }, IoOp::Deallocate] {
        assert_eq!(pair.one(&zeroing(op)), Outcome::Done, "{op:?}");
    }
    pair.target.borrow_mut().page = Box::new(|page| {
        if page[4..].starts_with(b"BRAID1") {
            page[ONCS_AT] &= !ZEROING;
        }
    });
    pair.world.cut(HOST, 0);
    pair.until_live();
    pair.world.pass(SECOND);
    for op in [IoOp::WriteZeroes { deallocate: false }, IoOp::Deallocate] {
        assert_eq!(pair.one(&zeroing(op)), Outcome::Unsupported, "{op:?}");
    }
    assert_eq!(pair.one(&write(0, 0)), Outcome::Done);
    assert_eq!(pair.one(&read(0, 0)), Outcome::Done);
    // And it can again.
    pair.target.borrow_mut().page = Box::new(|_| ());
    pair.world.cut(HOST, 0);
    pair.until_live();
    pair.world.pass(SECOND);
    assert_eq!(
        pair.one(&zeroing(IoOp::WriteZeroes { deallocate: false })),
        Outcome::Done
    );
}
