//! A lane turn by turn, under a clock of the test's: what one turn does, what it leaves, when it
//! interrupts, and what it does not do any more when its client has let go.
use super::*;
use crate::{EngineNamespace, Shape};
use nvme::queue::{CqConsumer, SqProducer};
use nvme::wire::sqe::nvm;
use queue::layout::{SHAPES, region_address};
use sys::memory_file;
use sys::os::Event;

const BYTES: usize = 16 << 20;
/// As much as a turn moves, in two commands.
const HALF: u32 = (TURN_BYTES / 2) as u32;

struct Stage {
    lane: Lane,
    engine: Copied,
    namespaces: Vec<Namespace>,
    device: Arc<MemoryDevice>,
    memory: Memory,
    data: Arc<Shared>,
    sq: SqProducer,
    cq: CqConsumer,
    tally: Arc<Tally>,
}

fn shared(bytes: usize) -> Arc<Shared> {
    let file = memory_file("braid-test", bytes as u64).unwrap();
    Arc::new(Shared::map(&file, bytes).unwrap())
}

/// An engine of which only this is known: how much it has copied for the lane.
#[derive(Default)]
struct Copied(u64);

impl Executor for Copied {
    fn begin(&mut self, job: Job, work: Work, _: &Memories) {
        unreachable!("{job:?} {work:?}: there is memory only");
    }
    fn cancel(&mut self, _: usize, _: Option<u16>) -> u32 {
        0
    }
    fn take_copied(&mut self, _: usize) -> u64 {
        std::mem::take(&mut self.0)
    }
}

impl Stage {
    /// A queue of 64 entries over 16 MiB of memory.
    fn new(coalescing: Option<Coalescing>) -> Self {
        let ring = shared(Layout::new(64).unwrap().bytes());
        Self::over(coalescing, ring, shared(1 << 20))
    }

    fn over(coalescing: Option<Coalescing>, ring: Arc<Shared>, data: Arc<Shared>) -> Self {
        let device = Arc::new(MemoryDevice::new(BYTES as u64).unwrap());
        let namespaces = vec![Namespace {
            store: Store::Memory(Arc::clone(&device)),
            block_shift: 12,
            blocks: BYTES as u64 / 4096,
            read_only: false,
        }];
        let layout = Layout::new(64).unwrap();
        let tally = Arc::new(Tally::default());
        let kind = match coalescing {
            Some(_) => Kind::UserIrq,
            None => Kind::UserPoll,
        };
        let lane = Lane::new(Parts {
            id: 7,
            header: Header {
                layout,
                kind,
                number: 1,
                transfer_max: 1 << 20,
                namespaces: 1,
                block_shifts: [12; SHAPES],
            },
            memory: Arc::clone(&ring),
            kick: Event::new().unwrap().try_clone().unwrap(),
            interrupt: coalescing.map(|it| (Interrupt::new().unwrap(), it)),
            data: Some(Region {
                memory: Arc::clone(&data),
                at: 0,
                len: 1 << 20,
            }),
            namespaces: Arc::from(&namespaces[..]),
            grant: Grant::whole(),
            trust: Trust::Mediated,
            tally: Arc::clone(&tally),
        });
        let memory = Memory(ring);
        Self {
            engine: Copied::default(),
            lane,
            namespaces,
            device,
            sq: SqProducer::new(layout.sq(), 0),
            cq: CqConsumer::resume(layout.cq(), 0, &memory),
            memory,
            data,
            tally,
        }
    }

    /// A command of so many bytes of the namespace, from and to the begin of the data memory.
    fn push(&mut self, opcode: u8, offset: u64, bytes: u32) {
        let blocks = u64::from(bytes / 4096) - 1;
        let first = u64::from(opcode) | 1 << 14 | 1 << 32;
        let address = region_address(1);
        let entry = [first, 0, 0, address, bytes.into(), offset / 4096, blocks, 0];
        self.sq.push(&self.memory, &entry).unwrap();
        self.sq.ring(&self.memory);
    }

    fn turn(&mut self) -> u16 {
        self.lane.turn(0, &self.namespaces, &mut self.engine)
    }

    /// Commands that have ended.
    fn reap(&mut self) -> usize {
        let mut count = 0;
        while let Some(cqe) = self.cq.take(&self.memory) {
            assert!(cqe.status.is_success(), "{}", cqe.status);
            self.sq.fetched(cqe.sqhd).unwrap();
            count += 1;
        }
        self.cq.ring(&self.memory);
        count
    }

    /// A byte of the namespace.
    fn byte(&self, offset: u64) -> u8 {
        let mut byte = 0;
        self.device
            .each(offset, 1, |stripe, range, _| byte = stripe[range][0]);
        byte
    }

    fn interrupts(&self) -> u64 {
        self.tally.interrupts.load(Ordering::Relaxed)
    }
}

/// Counts requests to an engine.
#[derive(Default)]
struct Counted(u32);

impl Executor for Counted {
    fn begin(&mut self, _: Job, _: Work, _: &Memories) {
        self.0 += 1;
    }
    fn cancel(&mut self, _: usize, _: Option<u16>) -> u32 {
        0
    }
    fn take_copied(&mut self, _: usize) -> u64 {
        0
    }
}

/// An application may open a queue while the engine starts.
#[test]
fn volume_that_is_ready_later_is_used_by_a_queue_that_was_there_before() {
    let mut stage = Stage::new(None);
    let volume = Arc::new(EngineNamespace::new(0, "v0".into()));
    let namespace = Namespace {
        store: Store::Engine(Arc::clone(&volume)),
        ..stage.namespaces[0].clone()
    };
    stage.namespaces = vec![namespace.clone()];
    stage.lane.namespaces = Arc::from([namespace]);
    stage.lane.views = vec![None];
    let mut engine = Counted::default();
    for (is_ready, begun) in [(false, 0), (true, 1)] {
        volume.set_shape(is_ready.then_some(Shape {
            block_shift: 12,
            blocks: 16,
            read_only: false,
        }));
        stage.push(nvm::READ, 0, 4096);
        stage.lane.turn(0, &stage.namespaces, &mut engine);
        let refused = stage.cq.take(&stage.memory);
        let refused = refused.is_some_and(|it| it.status.is(Status::INVALID_NAMESPACE));
        assert_eq!((refused, engine.0), (!is_ready, begun));
    }
}

#[test]
fn t09_what_was_fetched_when_the_client_lets_go_changes_nothing_any_more() {
    let mut stage = Stage::new(None);
    stage.data.write(0, &vec![7; HALF as usize]);
    for n in 0..3 {
        stage.push(nvm::WRITE, n * u64::from(HALF), HALF);
    }
    assert_eq!(stage.turn(), 2, "the third is the next turn's");
    let half = u64::from(HALF);
    assert_eq!([0, half, 2 * half].map(|at| stage.byte(at)), [7, 7, 0]);
    stage.sq.let_go(&stage.memory);
    assert_eq!(stage.turn(), 0);
    assert_eq!(stage.byte(2 * half), 0);
    assert_eq!(
        stage.lane.broken,
        Some(GivenUp::Misbehaved(Misbehaved::LetGo))
    );
    assert!(stage.lane.is_idle() && !stage.lane.is_waiting());
}

/// The ring's entries are the client's: a fetched one is the broker's own.
#[test]
fn a_command_that_changes_behind_its_fetch_is_executed_as_it_was() {
    let mut stage = Stage::new(None);
    stage.data.write(0, &vec![7; HALF as usize]);
    let half = u64::from(HALF);
    for n in 0..3 {
        stage.push(nvm::WRITE, n * half, HALF);
    }
    assert_eq!(stage.turn(), 2, "the third is fetched, and the next turn's");
    // In the ring it is now one to another place, of memory that nobody has registered.
    let at = stage.lane.layout.sq().entries_at + 2 * 64;
    let hostile = [
        u64::from(nvm::WRITE) | 1 << 14 | 9 << 32,
        u64::MAX,
        u64::MAX,
        region_address(5),
        u64::MAX,
        8 * half / 4096,
        u64::MAX,
        u64::MAX,
    ];
    nvme::queue::SharedMemory::store_entry(&stage.memory, at, &hostile);
    assert_eq!((stage.turn(), stage.reap()), (1, 3), "all of them well");
    let bytes = [2 * half, 3 * half - 1, 3 * half, 8 * half];
    assert_eq!(bytes.map(|at| stage.byte(at)), [7, 7, 0, 0]);
}

/// An entry that was not fetched is all zeroes: a flush of CID 0, which nobody has sent.
#[test]
fn fetch_beyond_the_tail_executes_nothing() {
    let mut stage = Stage::new(None);
    stage.lane.fetch(3);
    assert_eq!((stage.turn(), stage.reap()), (0, 0));
    stage.push(nvm::WRITE, 0, HALF);
    assert_eq!(stage.lane.sq.available(&stage.memory).unwrap(), 1);
    stage.lane.fetch(3);
    assert_eq!((stage.turn(), stage.reap()), (1, 1));
    assert_eq!(stage.turn(), 0);
    assert!(stage.lane.is_idle() && stage.lane.broken.is_none());
}

/// A flush that fails is told once: to a client that has gone, or to who flushes next.
#[test]
fn t13_what_fails_when_the_client_has_let_go_is_not_taken_for_heard() {
    let mut stage = Stage::new(None);
    stage.lane.in_flight = 3;
    assert!(stage.lane.ended(1, Status::WRITE_FAULT, [0; 2]));
    // Its thread has not looked at the queue since.
    stage.sq.let_go(&stage.memory);
    assert!(!stage.lane.ended(2, Status::WRITE_FAULT, [0; 2]));
    assert!(
        stage.lane.ended(3, Status::SUCCESS, [0; 2]),
        "that is no news"
    );
    let told = std::iter::from_fn(|| stage.cq.take(&stage.memory));
    assert!(told.map(|cqe| cqe.cid).eq([1, 2, 3]));
}

#[test]
fn t09_zeroing_that_has_begun_stops_when_the_client_lets_go() {
    let mut stage = Stage::new(None);
    for at in [0, BYTES as u64 - 4096] {
        stage
            .device
            .each(at, 4096, |stripe, range, _| stripe[range].fill(7));
    }
    stage.push(nvm::WRITE_ZEROES, 0, BYTES as u32);
    assert_eq!([stage.turn(), stage.turn()], [1, 1], "begun, and a piece");
    assert_eq!(stage.byte(0), 0);
    stage.sq.let_go(&stage.memory);
    for _ in 0..64 {
        stage.turn();
    }
    assert_eq!(stage.byte(BYTES as u64 - 4096), 7);
    stage.lane.close();
    assert!(stage.lane.is_idle());
}

/// The one that a broker closes by itself, while its client's commands lie there.
#[test]
fn t09_requests_of_a_queue_that_is_closed_see_it() {
    let mut stage = Stage::new(None);
    assert!(!stage.lane.memories.door().is_shut());
    let door = stage.lane.memories.door().clone();
    stage.lane.close();
    assert!(door.is_shut());
    // A client that has not noticed goes on ringing.
    stage.push(nvm::READ, 0, 4096);
    assert!(door.is_shut());
}

#[test]
fn who_has_turns_to_pay_zeroes_nothing_meanwhile() {
    let mut stage = Stage::new(None);
    stage.data.write(0, &vec![7; HALF as usize]);
    stage.push(nvm::WRITE, 0, HALF);
    assert_eq!((stage.turn(), stage.byte(0)), (1, 7));
    stage.push(nvm::WRITE_ZEROES, 0, BYTES as u32);
    assert_eq!((stage.turn(), stage.byte(0)), (1, 7), "begun");
    stage.engine.0 += TURN_BYTES;
    assert_eq!((stage.turn(), stage.byte(0)), (1, 7), "paid");
    assert_eq!((stage.turn(), stage.byte(0)), (1, 0));
}

#[test]
fn what_the_engine_copied_counts_in_the_turns_that_follow() {
    let mut stage = Stage::new(None);
    stage.engine.0 += 3 * TURN_BYTES + 1;
    for _ in 0..4 {
        stage.push(nvm::READ, 0, 4096);
    }
    for turn in 0..3 {
        assert_eq!((stage.turn(), stage.reap()), (1, 0), "turn {turn}");
    }
    assert_eq!((stage.turn(), stage.reap()), (4, 4));
    stage.push(nvm::READ, 0, 4096);
    assert_eq!((stage.turn(), stage.reap()), (1, 1));
}

/// Twelve reads, one after the other, while something else is under way: the interrupts for them.
fn interrupts_for_twelve(coalescing: Coalescing) -> u64 {
    let mut stage = Stage::new(Some(coalescing));
    stage.push(nvm::WRITE_ZEROES, 0, BYTES as u32);
    stage.turn();
    for n in 0..12 {
        stage.push(nvm::READ, 0, 4096);
        // The client sleeps whenever it was woken.
        stage.lane.layout.armed().begin(&stage.memory);
        stage.turn();
        assert_eq!(stage.reap(), 1);
        stage.lane.interrupt(|| Some(1000 + n));
    }
    assert_eq!(stage.lane.in_flight, 1);
    stage.interrupts()
}

#[test]
fn so_many_completions_are_one_interrupt_while_more_is_under_way() {
    let time_us = 1_000_000;
    let count = |completions| {
        interrupts_for_twelve(Coalescing {
            completions,
            time_us,
        })
    };
    assert_eq!([0, 1, 2, 4, 5, 12, 13].map(count), [12, 12, 6, 3, 2, 1, 0]);
}

#[test]
fn an_interrupt_waits_no_longer_than_was_asked_and_never_for_nothing() {
    let coalescing = Coalescing {
        completions: 100,
        time_us: 50,
    };
    let mut stage = Stage::new(Some(coalescing));
    let armed = stage.lane.layout.armed();
    let read = |stage: &mut Stage| {
        armed.begin(&stage.memory);
        stage.push(nvm::READ, 0, 4096);
        stage.turn();
        assert_eq!(stage.reap(), 1);
    };
    // Nothing else is under way: nothing is waited for.
    read(&mut stage);
    stage.lane.interrupt(|| Some(1000));
    assert_eq!(stage.interrupts(), 1);
    stage.push(nvm::WRITE_ZEROES, 0, BYTES as u32);
    stage.turn();
    // The time counts from the first completion.
    for at_ns in [2000, 30_000] {
        read(&mut stage);
        stage.lane.interrupt(|| Some(at_ns));
    }
    stage.lane.interrupt(|| Some(51_999));
    assert_eq!(stage.interrupts(), 1);
    stage.lane.interrupt(|| Some(52_000));
    assert_eq!(stage.interrupts(), 2);
    // A thread that goes to sleep would not come back for it.
    read(&mut stage);
    stage.lane.interrupt(|| Some(53_000));
    assert_eq!(stage.interrupts(), 2);
    stage.lane.interrupt(|| None);
    assert_eq!(stage.interrupts(), 3);
    // A client that does not sleep is not interrupted.
    stage.push(nvm::READ, 0, 4096);
    stage.turn();
    stage.lane.interrupt(|| None);
    assert_eq!(stage.interrupts(), 3);
}

/// Memory whose file can be cut off, and the file.
fn unsealed(bytes: usize) -> (Arc<Shared>, OwnedFd) {
    let file = rustix::fs::memfd_create("braid-unsealed", rustix::fs::MemfdFlags::CLOEXEC);
    let file = file.unwrap();
    rustix::fs::ftruncate(&file, bytes as u64).unwrap();
    (Arc::new(Shared::map_unsealed(&file, bytes).unwrap()), file)
}

fn cut_off(file: &OwnedFd) {
    rustix::fs::ftruncate(file, 0).unwrap();
}

#[test]
fn commands_of_lost_memory_are_not_answered() {
    let mut other = Stage::new(None);
    for opcode in [nvm::WRITE, nvm::READ] {
        let (data, file) = unsealed(1 << 20);
        let ring = shared(Layout::new(64).unwrap().bytes());
        let mut stage = Stage::over(None, ring, data);
        stage.push(nvm::READ, 0, 4096);
        assert_eq!((stage.turn(), stage.reap()), (1, 1));
        cut_off(&file);
        for n in 0..3 {
            stage.push(opcode, n * 4096, 4096);
        }
        // The first one ends the lane: the others, fetched with it, are not executed.
        assert_eq!((stage.turn(), stage.reap()), (1, 0));
        assert_eq!(stage.lane.broken, Some(GivenUp::MemoryLost));
        assert_eq!(stage.turn(), 0);
        assert!(stage.lane.is_idle() && !stage.lane.is_waiting());
        other.data.write(0, &[7; 4096]);
        other.push(nvm::WRITE, 0, 4096);
        assert_eq!((other.turn(), other.reap(), other.byte(4095)), (1, 1, 7));
        assert_eq!(other.lane.broken, None);
    }
}

#[test]
fn commands_in_flight_of_lost_memory_are_not_heard() {
    let (data, file) = unsealed(1 << 20);
    let ring = shared(Layout::new(64).unwrap().bytes());
    let mut stage = Stage::over(None, ring, data);
    stage.lane.in_flight = 2;
    assert!(stage.lane.ended(1, Status::SUCCESS, [0; 2]));
    cut_off(&file);
    stage.data.write(0, &[1]);
    assert!(!stage.lane.ended(2, Status::WRITE_FAULT, [0; 2]), "T13");
    let told = std::iter::from_fn(|| stage.cq.take(&stage.memory));
    assert!(told.map(|cqe| cqe.cid).eq([1]));
}

/// Zeroes in place of doorbells are no misbehaviour of the client, and nobody sees it let go.
#[test]
fn lost_rings_end_the_lane_and_its_changes() {
    let (ring, file) = unsealed(Layout::new(64).unwrap().bytes());
    let mut stage = Stage::over(None, ring, shared(1 << 20));
    for _ in 0..2 {
        stage.push(nvm::WRITE, 0, 4096);
        assert_eq!((stage.turn(), stage.reap()), (1, 1));
    }
    cut_off(&file);
    let door = stage.lane.door().clone();
    assert!(door.is_shut(), "T9");
    assert!(stage.lane.is_waiting(), "it has to be given up");
    assert_eq!((stage.turn(), stage.lane.is_waiting()), (0, false));
    assert_eq!(stage.lane.broken, Some(GivenUp::MemoryLost));
}
