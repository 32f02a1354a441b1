//! Legs that hang: who waits for them, and whose memory they keep.
use super::clients::Clients;
use super::common::{Address, Disk, HOST, MS, SECOND, WIRE_NS, World};
use super::made::leg_id;
use super::rig::{Rig, configured, crc32c, data, io, made};
use engine::Core;
use engine::Span;
use engine::export::{ExportConfig, ExportControl, ExportEvent, Offer};
use engine::host::{HostEvent, IoOp, Multipath};
use engine::limits::MIRROR_SCRATCH_BYTES;
use engine::machine::{DeviceOp, Machine};
use engine::mirror::{Devices, LegOrder, LegStatus, MIRRORS_FROM, MirrorOrder, MirrorsConfig};
use multipath::Outcome;
use nbd::client::Config;
use nbd::{Kind, Request};
use std::cell::RefCell;
use std::rc::Rc;

const WRITE: IoOp = IoOp::Write { fua: false };

fn ended(rig: &Rig, block: u64) -> bool {
    rig.done.iter().any(|done| done.cookie == block)
}

#[test]
fn t09_t10_t14_a_leg_that_hangs_and_is_taken_out_holds_up_nobody_and_returns_when_it_is_done() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    // Longer than the time between beats, and less than that of an I/O.
    rig.disk(0).delay_ns = 9 * SECOND;
    let (first, other) = (io(WRITE, 0), io(WRITE, 300));
    rig.submit(&first);
    assert!(!rig.run(5500 * MS, |rig| ended(rig, 0)));
    let lends = |rig: &Rig, it: &engine::host::Io| rig.engine.borrow().devices().is_lent(it.span);
    assert!(!lends(&rig, &first), "it is the engine's anyhow");
    rig.order_leg(0, LegOrder::Fail);
    rig.until(SECOND, |rig| ended(rig, 0));
    assert!(lends(&rig, &first), "leg 0 has it");
    let loans = |rig: &Rig| -> Vec<(bool, u32)> {
        let events = rig.events.iter();
        let loans = events.filter_map(|event| match *event {
            HostEvent::Lent(0, loan) => Some((true, loan.index())),
            HostEvent::Lent(cookie, _) => panic!("leg 0 has never had {cookie}"),
            HostEvent::Back(0, loan) => Some((false, loan.index())),
            _ => None,
        });
        loans.collect()
    };
    assert_eq!(loans(&rig).len(), 1);
    rig.submit(&other);
    rig.until(SECOND, |rig| ended(rig, 300));
    assert!(!lends(&rig, &other), "leg 0 has never had it");
    assert!(rig.done.iter().all(|done| done.outcome == Outcome::Done));
    // It returns when it has ended what it had.
    rig.disk(0).delay_ns = 0;
    rig.order_leg(0, LegOrder::Return);
    assert!(!rig.run(SECOND, |rig| rig.statuses()[0] != LegStatus::Stale));
    assert!(lends(&rig, &first));
    rig.until(60 * SECOND, |rig| rig.statuses() == [LegStatus::InSync; 2]);
    assert!(!rig.engine.borrow().devices().lends());
    let loans = loans(&rig);
    assert_eq!(loans, [(true, loans[0].1), (false, loans[0].1)]);
    assert_eq!(data(&disks[0]), data(&disks[1]));
    rig.stop();
}

#[test]
fn a_local_leg_that_hangs_leaves_by_itself_when_the_time_of_an_io_is_over() {
    let disks = made(2, true);
    let mut rig = Rig::ready(&disks);
    assert_eq!(rig.write(0, 1), Outcome::Done);
    rig.disk(0).delay_ns = 1000 * SECOND;
    let late = io(WRITE, 0);
    rig.submit(&late);
    assert!(!rig.run(9 * SECOND, |rig| ended(rig, 0)));
    rig.until(3 * SECOND, |rig| ended(rig, 0));
    assert_eq!(rig.done[0].outcome, Outcome::Done);
    assert_eq!(rig.statuses(), [LegStatus::Stale, LegStatus::InSync]);
}

/// A mirror of these disks that is offered to clients.
struct Offered {
    world: World,
    engine: Rc<RefCell<Core>>,
    clients: Rc<RefCell<Clients>>,
    ready: bool,
}

impl Offered {
    fn new(disks: &[Disk]) -> Self {
        let arena_bytes = 68 << 20;
        let (host, mirror) = configured(disks);
        let mirrors = MirrorsConfig {
            mirrors: vec![Some(mirror)],
            elsewhere: Vec::new(),
            scratch: Span {
                at: arena_bytes,
                len: MIRROR_SCRATCH_BYTES,
            },
            crc32c,
        };
        let export = ExportConfig {
            clients_max: 2,
            requests_max: 4,
            arena_bytes,
        };
        let engine = Devices::new(Multipath::new(host), mirrors);
        let engine = Rc::new(RefCell::new(Core::new(engine, 2, export)));
        let clients = Rc::new(RefCell::new(Clients::new(1 << 20)));
        let mut world = World::new(5);
        let bytes = arena_bytes as usize + MIRROR_SCRATCH_BYTES as usize;
        assert_eq!(world.add(engine.clone(), bytes), HOST);
        let node = world.add(clients.clone(), 64 << 20);
        world.nodes[HOST].disks = disks.to_vec();
        world.nodes[node].addresses = vec![Address::To {
            node: HOST,
            listener: 0,
            delay_ns: WIRE_NS,
        }];
        let offer = Offer {
            volume: MIRRORS_FROM,
            name: "m0".into(),
            read_only: false,
        };
        let now_ns = world.now_ns;
        let control = ExportControl::Offer(0, offer);
        engine.borrow_mut().handle_control(control, now_ns);
        let mut it = Self {
            world,
            engine,
            clients,
            ready: false,
        };
        assert!(it.run(30 * SECOND, |it| it.ready));
        it
    }

    /// Lets at most so much time pass until it is so.
    fn run(&mut self, limit_ns: u64, is: impl Fn(&Self) -> bool) -> bool {
        let end_ns = self.world.now_ns + limit_ns;
        while self.world.now_ns < end_ns && !is(self) {
            self.world.pass(MS);
            while let Some(event) = self.engine.borrow_mut().poll_event() {
                self.ready |= matches!(event, ExportEvent::Host(HostEvent::Ready(MIRRORS_FROM, _)));
            }
        }
        is(self)
    }

    fn order(&mut self, order: MirrorOrder) {
        let control = ExportControl::Mirror(MIRRORS_FROM, order);
        let now_ns = self.world.now_ns;
        self.engine.borrow_mut().handle_control(control, now_ns);
    }

    /// A client that is ready.
    fn connect(&mut self) -> usize {
        let config = Config {
            requests_max: 4,
            ..Config::default()
        };
        let conn = self.clients.borrow_mut().connect(0, config);
        let ready = |it: &Self| it.clients.borrow().all[conn].ready.is_some();
        assert!(self.run(SECOND, ready));
        conn
    }

    /// Writes so many bytes of one value, within a second.
    fn write(&mut self, conn: usize, value: u8, bytes: u32) -> bool {
        let request = Request::new(0, Kind::Write, 0, bytes);
        let data = vec![value; bytes as usize];
        self.clients.borrow_mut().submit(conn, request, &data);
        self.ends(conn)
    }

    fn ends(&mut self, conn: usize) -> bool {
        let ended = self.run(SECOND, |it| !it.clients.borrow().all[conn].ended.is_empty());
        let all = core::mem::take(&mut self.clients.borrow_mut().all[conn].ended);
        assert!(all.iter().all(|it| it.result.is_ok()), "{all:?}");
        ended
    }

    fn used(&self) -> u64 {
        let engine = self.engine.borrow();
        engine.buffers() - engine.buffers_free()
    }
}

#[test]
fn t10_memory_of_an_answered_write_is_nobodys_while_a_leg_that_left_still_has_it() {
    // In a client's own piece of the arena, and in what all share.
    for bytes in [4096_u32, 1 << 20] {
        let disks = made(2, true);
        let mut offered = Offered::new(&disks);
        let conn = offered.connect();
        assert!(offered.write(conn, 0x11, bytes));
        offered.world.nodes[HOST].disks[0].delay_ns = 9 * SECOND;
        *disks[0].log.borrow_mut() = Some(Vec::new());
        assert!(!offered.write(conn, 0x22, bytes), "leg 0 hangs");
        offered.order(MirrorOrder::Leg(leg_id(0), LegOrder::Fail));
        assert!(offered.ends(conn), "{bytes}");
        assert!(offered.used() >= bytes.into());
        for _ in 0..20 {
            assert!(offered.write(conn, 0x33, bytes));
        }
        // It is executed at last, with what was to be written.
        offered.world.pass(10 * SECOND);
        let log = disks[0].log.borrow_mut().take().unwrap();
        let written = log.iter().filter(|(request, data)| {
            let write = matches!(request.op, DeviceOp::Write { .. });
            write && data.len() == bytes as usize
        });
        let values: Vec<u8> = written.map(|(_, data)| data[0]).collect();
        let whole = |data: &[u8]| data.iter().all(|it| *it == 0x22);
        assert_eq!(values, [0x22], "{bytes}");
        assert!(
            log.iter()
                .any(|(_, data)| data.len() == bytes as usize && whole(data))
        );
        assert_eq!(offered.used(), 0, "{bytes}");
    }
}

#[test]
fn t10_of_several_writes_that_a_leg_still_has_each_gives_its_memory_back_when_it_ends_there() {
    const BYTES: u32 = 256 << 10;
    let disks = made(2, true);
    let mut offered = Offered::new(&disks);
    let conn = offered.connect();
    assert!(offered.write(conn, 0x11, BYTES));
    let begun_ns = offered.world.now_ns;
    // In one region, so that none waits for intents; the later ones end sooner.
    for number in 0..4_u64 {
        offered.world.nodes[HOST].disks[0].delay_ns = (9 - number) * SECOND;
        let request = Request::new(number as u32, Kind::Write, number * u64::from(BYTES), BYTES);
        let data = vec![0x22; BYTES as usize];
        offered.clients.borrow_mut().submit(conn, request, &data);
        offered.world.pass(10 * MS);
    }
    offered.order(MirrorOrder::Leg(leg_id(0), LegOrder::Fail));
    let all = |it: &Offered| it.clients.borrow().all[conn].ended.len() == 4;
    assert!(offered.run(SECOND, all));
    offered.clients.borrow_mut().all[conn].ended.clear();
    for left in (0..4_u64).rev() {
        let whole = (left + 1) * u64::from(BYTES);
        assert_eq!(offered.used(), whole, "{left}");
        // A client that comes meanwhile has other memory, and gives it back at once.
        assert!(offered.write(conn, 0x33, BYTES));
        assert_eq!(offered.used(), whole, "{left}");
        let until_ns = begun_ns + (9 - left) * SECOND + 100 * MS;
        offered.world.pass(until_ns - offered.world.now_ns);
    }
    assert_eq!(offered.used(), 0);
}
