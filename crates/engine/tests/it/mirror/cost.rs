//! Cost of an I/O of a mirror: no allocation.
use super::common::{Arena, Disk};
use super::made::mirrors;
use super::rig::{configured, io, made};
use engine::export::ExportEvent;
use engine::host::{HostEvent, IoOp, Multipath};
use engine::limits::MIRROR_SCRATCH_BYTES;
use engine::mirror::{Devices, MIRRORS_FROM};
use engine::{Core, DeviceRequest, Machine, Output};

/// An engine that is driven by hand, and what was allocated inside it.
struct Counted {
    engine: Core,
    arena: Arena,
    disks: Vec<Disk>,
    now_ns: u64,
    allocations: u64,
    ready: bool,
    ended: u64,
}

impl Counted {
    fn new() -> Self {
        let disks = made(2, true);
        let (host, mirror) = configured(&disks);
        let at = 4 << 20;
        let devices = Devices::new(Multipath::new(host), mirrors(mirror, at));
        Self {
            engine: Core::without_front_ends(devices),
            arena: Arena(vec![0; (at + u64::from(MIRROR_SCRATCH_BYTES)) as usize]),
            disks,
            now_ns: 1,
            allocations: 0,
            ready: false,
            ended: 0,
        }
    }

    fn count<T>(&mut self, call: impl FnOnce(&mut Core, &mut Arena, u64) -> T) -> T {
        let Self {
            engine,
            arena,
            now_ns,
            ..
        } = self;
        let mut result = None;
        let info = allocation_counter::measure(|| result = Some(call(engine, arena, *now_ns)));
        self.allocations += info.count_total;
        result.unwrap()
    }

    /// One turn of the loop: what the devices were asked has ended before the next one.
    fn turn(&mut self) {
        self.now_ns += 100_000;
        self.count(|engine, _, now_ns| {
            if engine.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
                engine.handle_timeout(now_ns);
            }
        });
        self.count(|engine, arena, now_ns| engine.turn(arena, now_ns));
        while let Some(event) = self.count(|engine, _, _| engine.poll_event()) {
            match event {
                ExportEvent::Host(HostEvent::Done(done)) => {
                    assert!(done.outcome.is_done(), "{done:?}");
                    self.ended += 1;
                }
                ExportEvent::Host(HostEvent::Ready(MIRRORS_FROM, _)) => self.ready = true,
                _ => {}
            }
        }
        while let Some(output) = self.count(|engine, _, _| engine.poll_output()) {
            let Output::Device(request) = output else {
                continue;
            };
            let ended = self.serve(&request);
            self.count(|engine, _, now_ns| engine.handle_device(request.id, ended, now_ns));
        }
    }

    fn serve(&mut self, request: &DeviceRequest) -> Result<(), engine::machine::DeviceError> {
        let disk = &self.disks[usize::from(request.device.0)];
        disk.execute(request, &mut self.arena)
    }
}

#[test]
fn no_io_of_a_mirror_allocates() {
    let mut it = Counted::new();
    while !it.ready {
        it.turn();
        assert!(it.now_ns < 60_000_000_000, "it never was ready");
    }
    let mut asked = 0;
    for round in 0..3 {
        it.allocations = 0;
        for n in 0..1500_u64 {
            let op = match n % 8 {
                0..4 => IoOp::Read,
                4 => IoOp::Flush,
                5 => IoOp::Write { fua: true },
                _ => IoOp::Write { fua: false },
            };
            let one = io(op, n % 512);
            it.count(|engine, _, now_ns| engine.submit(&one, now_ns))
                .unwrap();
            asked += 1;
            // Several are under way together.
            if n % 7 == 0 {
                it.turn();
            }
        }
        while it.ended < asked {
            it.turn();
        }
        // The first round meets all that is made once.
        assert!(
            round == 0 || it.allocations == 0,
            "{} in round {round}",
            it.allocations
        );
    }
}
