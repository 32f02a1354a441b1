//! Nothing is allocated on the host's I/O path: every call into the engine is counted.
use crate::common::*;
use engine::host::{HedgeStats, HostConfig, HostEvent, Io, IoOp, PathKind, SubmitError, Wanted};
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::target::TargetConfig;
use engine::{ConnId, LocalDevice, Machine, Output};
use policy::Policy;
use std::cell::RefCell;
use std::rc::Rc;

/// The engine, and how often anything was allocated inside it.
struct Counted {
    engine: HostCore,
    allocations: u64,
    /// Headers are written here first: the reactor's buffer is not the engine's.
    headers: Vec<u8>,
}

impl Counted {
    fn new(config: HostConfig) -> Self {
        let mut engine = None;
        let info = allocation_counter::measure(|| engine = Some(HostCore::new(config)));
        Self {
            engine: engine.unwrap(),
            allocations: info.count_total,
            headers: Vec::with_capacity(1 << 16),
        }
    }

    fn count<T>(&mut self, call: impl FnOnce(&mut HostCore, &mut Vec<u8>) -> T) -> T {
        let mut result = None;
        let Self {
            engine, headers, ..
        } = self;
        let info = allocation_counter::measure(|| result = Some(call(engine, headers)));
        self.allocations += info.count_total;
        result.unwrap()
    }

    /// False: full.
    fn submit(&mut self, io: &Io, now_ns: u64) -> bool {
        let taken = self.count(|engine, _| engine.submit(io, now_ns));
        assert!(
            matches!(taken, Ok(()) | Err(SubmitError::Full)),
            "{taken:?}"
        );
        taken.is_ok()
    }

    fn poll_event(&mut self) -> Option<HostEvent> {
        self.count(|engine, _| engine.poll_event())
    }
}

impl Machine for Counted {
    type Control = ();

    fn connections_max(&self) -> u32 {
        self.engine.connections_max()
    }
    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        self.engine.handle_accepted(listener, now_ns)
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.count(|engine, _| engine.handle_connected(conn, now_ns));
    }
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        self.count(|engine, _| engine.handle_bytes(conn, bytes, now_ns))
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        self.count(|engine, _| engine.placement(conn))
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.count(|engine, _| engine.handle_payload(conn, len, crc, now_ns));
    }
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        let send = self.count(|engine, headers| {
            headers.clear();
            engine.poll_transmit(conn, headers, now_ns)
        });
        out.extend_from_slice(&self.headers);
        send
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.count(|engine, _| engine.handle_sent(conn, cookie, now_ns));
    }
    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.count(|engine, _| engine.handle_closed(conn, why, now_ns));
    }
    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.count(|engine, _| engine.handle_device(id, result, now_ns));
    }
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.count(|engine, _| {
            engine.turn(memory, now_ns);
            if let Some(sample) = engine.explained(0) {
                assert!(sample.came.is_some());
            }
        });
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.count(|engine, _| engine.poll_output())
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.engine.poll_timeout()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        self.count(|engine, _| engine.handle_timeout(now_ns));
    }
}

/// Allocations inside the engine from its first I/O to the last of `total`, 48 at a time.
fn allocations(config: HostConfig, entries_max: u16, total: u64) -> u64 {
    allocations_with(config, total, BLOCK, None, |target| {
        target.subsystem.entries_max = entries_max;
    })
}

fn allocations_with(
    config: HostConfig,
    total: u64,
    bytes: u32,
    explain: Option<Wanted>,
    change: impl FnOnce(&mut TargetConfig),
) -> u64 {
    hedged(config, total, bytes, explain, change).0
}

/// The same, and what became of second copies of reads.
fn hedged(
    config: HostConfig,
    total: u64,
    bytes: u32,
    explain: Option<Wanted>,
    change: impl FnOnce(&mut TargetConfig),
) -> (u64, HedgeStats) {
    let mut target = target_config(2);
    change(&mut target);
    // Ports and network are the rig's; its host stays unused.
    let mut rig = Rig::new(host_config(2), target);
    let counted = Rc::new(RefCell::new(Counted::new(config)));
    let node = rig.world.add(counted.clone(), 9 << 20);
    rig.world.nodes[node].addresses = rig.world.nodes[HOST].addresses.clone();
    rig.world.nodes[node].disks = vec![Disk::new(16 << 20)];
    let is_ready = |event: HostEvent| matches!(event, HostEvent::Ready(..));
    assert!(rig.world.run(SECOND, |_| {
        core::iter::from_fn(|| counted.borrow_mut().poll_event()).any(is_ready)
    }));
    let (mut started, mut ended) = (0, 0);
    assert_ne!(counted.borrow().allocations, 0, "the counter counts");
    if let Some(wanted) = explain {
        let mut it = counted.borrow_mut();
        assert!(it.engine.explain(0, wanted, rig.world.now_ns));
    }
    counted.borrow_mut().allocations = 0;
    let over = rig.world.run(10 * SECOND, |world| {
        let mut it = counted.borrow_mut();
        while let Some(event) = it.poll_event() {
            if let HostEvent::Done(done) = event {
                assert!(done.outcome.is_done());
                ended += 1;
            }
        }
        while started < total && started - ended < 48 {
            let (block, slot) = (started % 1000, started % 64);
            let op = match started % 3 {
                0 => IoOp::Write { fua: false },
                _ => IoOp::Read,
            };
            let io = io(op, block * u64::from(BLOCK), bytes, slot);
            if !it.submit(&io, world.now_ns) {
                break; // pieces have the slots
            }
            started += 1;
        }
        ended == total
    });
    assert!(over);
    let counted = counted.borrow();
    (counted.allocations, counted.engine.hedge_stats(0))
}

#[test]
fn no_io_allocates_under_any_policy_even_on_a_full_path() {
    for policy in [
        Policy::Numa,
        Policy::RoundRobin { bytes: 0 },
        Policy::QueueDepth,
        Policy::WEIGHTED_LATENCY,
        Policy::Soonest,
    ] {
        for entries_max in [4, 128] {
            let mut config = host_config(2);
            config.volumes[0].policy = policy;
            let count = allocations(config, entries_max, 3000);
            assert_eq!(count, 0, "{policy:?}, {entries_max} entries");
        }
    }
}

#[test]
fn no_io_allocates_while_somebody_asks_why() {
    let wanted = Wanted {
        count: u32::MAX,
        reads: true,
        writes: true,
        length_min: 0,
    };
    for policy in Policy::EACH {
        let mut config = host_config(2);
        config.volumes[0].policy = policy;
        let count = allocations_with(config, 3000, BLOCK, Some(wanted), |_| ());
        assert_eq!(count, 0, "{policy:?}");
    }
}

#[test]
fn no_io_that_is_cut_allocates() {
    let cut = |target: &mut TargetConfig| carry(target, 13);
    for io_max in [48, 256] {
        let mut config = host_config(2);
        config.io_max = io_max;
        assert_eq!(allocations_with(config, 1000, 64 << 10, None, cut), 0);
    }
}

#[test]
fn no_io_allocates_with_digests() {
    let mut config = host_config(2);
    config.digests = nvme::host::Digests {
        header: true,
        data: true,
    };
    assert_eq!(allocations(config, 128, 1000), 0);
}

#[test]
fn no_io_to_a_local_device_allocates() {
    let mut config = host_config(2);
    for path in &mut config.volumes[0].paths {
        path.kind = PathKind::Device {
            device: LocalDevice(0),
            bytes: 16 << 20,
            block_shift: 12,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        };
    }
    assert_eq!(allocations(config, 128, 3000), 0);
}

#[test]
fn no_read_with_a_second_copy_allocates() {
    let mut config = host_config(2);
    config.volumes[0].policy = Policy::Soonest;
    config.scratch = engine::Span {
        at: 8 << 20,
        len: 1 << 20,
    };
    let tail = |target: &mut TargetConfig| {
        target.shapes[0].tail_per_million = 10_000;
        target.shapes[0].tail_ns = 5 * MS;
    };
    let (count, stats) = hedged(config, 12_000, BLOCK, None, tail);
    assert_eq!(count, 0);
    assert!(stats.sent > 5 && stats.won > 0, "{stats:?}");
}
