//! Requests that hang, are cut or fail: pipes stand in for files, for they do as they are told.
use super::*;
use crate::Trust;
use crate::lane::{Parts, Tally};
use nvme::queue::{CqConsumer, Entry, Misbehaved, SqProducer, check};
use nvme::wire::sqe::{NSID_ALL, nvm};
use nvme::wire::{Cqe, Status};
use queue::Memory;
use queue::layout::{Header, Kind, Layout, SHAPES, region_address};
use runtime::{Device, FileDevice, MemoryDevice};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use sys::{CountingAllocator, Shared, memory_file};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

mod lanes;

const LONG: Duration = Duration::from_secs(60);
const DATA_BYTES: usize = 1 << 20;

/// A worker with one queue, and the client's end of that.
struct Stage {
    memory: Memory,
    sq: SqProducer,
    cq: CqConsumer,
    data: Weak<Shared>,
    tally: Arc<Tally>,
    mailbox: Sender<Message>,
    event: Arc<Event>,
    news: Receiver<News>,
    /// Its allocations.
    thread: JoinHandle<u64>,
}

/// Real files as namespaces 1, 2, …, and behind them memory.
fn files(count: usize) -> Arc<[Namespace]> {
    let directory = tempfile::tempdir().unwrap();
    let namespace = |n: usize| {
        let path = directory.path().join(n.to_string());
        let device = FileDevice::open(path, false, Some(1 << 20)).unwrap();
        Namespace {
            device: Device::File(Arc::new(device)).into(),
            block_shift: 12,
            blocks: 256,
            read_only: false,
        }
    };
    let memory = Namespace {
        device: Device::Memory(Arc::new(MemoryDevice::new(1 << 20).unwrap())).into(),
        ..namespace(count)
    };
    (0..count).map(namespace).chain([memory]).collect()
}

fn memory(bytes: usize) -> Arc<Shared> {
    let file = memory_file("braid-test", bytes as u64).unwrap();
    Arc::new(Shared::map(&file, bytes).unwrap())
}

fn region(memory: Arc<Shared>) -> Region {
    let len = memory.len();
    Region { memory, at: 0, len }
}

/// All of a namespace.
const WHOLE: check::Namespace = check::Namespace {
    block_shift: 12,
    blocks: 256,
    first: 0,
    end: 256,
    read_only: false,
};

impl Stage {
    /// Where there is a descriptor, requests go to that instead of the file.
    fn new(instead: Vec<Option<OwnedFd>>) -> Self {
        Self::with_entries(64, instead)
    }

    fn with_entries(entries: u32, instead: Vec<Option<OwnedFd>>) -> Self {
        let namespaces = files(instead.len());
        let (mailbox, received) = channel();
        let (news_sender, news) = channel();
        let event = Arc::new(Event::new().unwrap());
        let plan = Plan {
            cpu: None,
            spin_ns: 0,
            namespaces: Arc::clone(&namespaces),
            orders: Orders::new(namespaces.len()),
            mailbox: received,
            post: Post {
                mailbox: mailbox.clone(),
                has_mail: Arc::default(),
                event: Arc::clone(&event),
            },
            news: news_sender,
            news_event: Arc::new(Event::new().unwrap()),
            tally: Arc::default(),
        };
        let layout = Layout::new(entries).unwrap();
        let ring = memory(layout.bytes());
        let data = memory(DATA_BYTES);
        let tally = Arc::new(Tally::default());
        let stage = Self {
            memory: Memory(Arc::clone(&ring)),
            sq: SqProducer::new(layout.sq(), 0),
            cq: CqConsumer::resume(layout.cq(), 0, &Memory(Arc::clone(&ring))),
            data: Arc::downgrade(&data),
            tally: Arc::clone(&tally),
            mailbox,
            event,
            news,
            thread: std::thread::spawn(move || {
                let news = plan.news.clone();
                let mut worker = Worker::new(plan).unwrap();
                for (at, fd) in instead.into_iter().enumerate() {
                    if let Some(fd) = fd {
                        worker.files.replace(at, fd);
                    }
                }
                let ended = worker.serve();
                let allocations = CountingAllocator::of_this_thread();
                news.send(News::Ended(ended)).unwrap();
                allocations
            }),
        };
        let lane = Lane::new(Parts {
            id: 7,
            header: Header {
                layout,
                kind: Kind::UserPoll,
                number: 1,
                transfer_max: 1 << 20,
                namespaces: namespaces.len() as u32,
                block_shifts: [12; SHAPES],
            },
            memory: ring,
            kick: Event::new().unwrap().try_clone().unwrap(),
            interrupt: None,
            data: Some(region(data)),
            namespaces: Arc::from([]),
            views: vec![Some(WHOLE); namespaces.len()],
            trust: Trust::Mediated,
            tally,
        });
        stage.tell(Message::Add(Box::new(lane)));
        stage
    }

    fn tell(&self, message: Message) {
        self.mailbox.send(message).unwrap();
        self.event.raise();
    }

    /// One command, of `blocks` blocks of memory from `block` on.
    fn push(&mut self, cid: u16, opcode: u8, nsid: u32, block: u64, blocks: u64) {
        let mut entry: Entry = [0; 8];
        entry[0] = u64::from(opcode) | u64::from(cid) << 16 | u64::from(nsid) << 32;
        if blocks > 0 {
            assert!(blocks <= 2, "no list is built here");
            entry[3] = region_address(1) + block * 4096;
            entry[4] = (blocks - 1) * (region_address(1) + (block + 1) * 4096);
            (entry[5], entry[6]) = (block, blocks - 1);
        }
        self.sq.push(&self.memory, &entry).unwrap();
        self.sq.ring(&self.memory);
        // It sleeps at once when there is nothing to do; a message wakes it as a kick does.
        self.event.raise();
    }

    /// Takes a command back.
    fn cancel(&mut self, cid: u16, of: u16) {
        let mut entry: Entry = [0; 8];
        entry[0] = u64::from(check::CANCEL) | u64::from(cid) << 16;
        entry[5] = 1 | u64::from(of) << 16;
        self.sq.push(&self.memory, &entry).unwrap();
        self.sq.ring(&self.memory);
        self.event.raise();
    }

    fn next(&mut self) -> Cqe {
        let mut next = None;
        until("a completion", || {
            next = self.cq.take(&self.memory);
            next.is_some()
        });
        self.cq.ring(&self.memory);
        next.unwrap()
    }

    fn until_in_flight(&self, count: u64) {
        until("commands are in flight", || {
            self.tally.in_flight.load(Ordering::Relaxed) == count
        });
    }

    /// Stops it: how it ended.
    fn stop(self) -> Result<(), String> {
        self.allocations_at_stop().1
    }

    /// The same, and what its thread has allocated.
    fn allocations_at_stop(self) -> (u64, Result<(), String>) {
        self.tell(Message::Stop);
        let ended = loop {
            if let News::Ended(result) = self.news.recv_timeout(LONG).unwrap() {
                break result;
            }
        };
        (self.thread.join().unwrap(), ended)
    }
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < LONG, "not within {LONG:?}: {what}");
        std::thread::yield_now();
    }
}

#[test]
fn t10_memory_outlives_its_client_while_a_file_may_write_to_it_and_no_longer() {
    let (hangs, mut returns) = std::io::pipe().unwrap();
    let mut stage = Stage::new(vec![Some(hangs.into())]);
    let unused = memory(4096);
    let idle = Arc::downgrade(&unused);
    stage.tell(Message::Region(7, 2, Some(region(unused))));
    stage.push(1, nvm::READ, 1, 0, 1);
    stage.until_in_flight(1);
    stage.tell(Message::Remove(7));
    // It is given back to be let go.
    let mut told = Vec::new();
    until("memory that no request uses goes at once", || {
        told.extend(stage.news.try_recv());
        told.retain(|news| !matches!(news, News::Let(_) | News::Region(..)));
        idle.strong_count() == 0
    });
    assert!(told.is_empty());
    // It waits for as long as it takes; so does a worker that is told to stop.
    stage.tell(Message::Stop);
    assert!(stage.data.strong_count() > 0);
    assert_eq!(stage.news.try_recv().err(), Some(TryRecvError::Empty));
    returns.write_all(&[7; 4096]).unwrap();
    let next = || stage.news.recv_timeout(LONG).unwrap();
    assert!(matches!(next(), News::Removed(7, _)));
    assert_eq!(stage.data.strong_count(), 0);
    assert!(matches!(next(), News::Ended(_)));
    stage.thread.join().unwrap();
}

#[test]
fn t10_the_last_of_many_requests_lets_the_memory_go() {
    let (hangs, mut returns) = std::io::pipe().unwrap();
    let mut stage = Stage::new(vec![Some(hangs.into())]);
    for cid in 0..63 {
        stage.push(cid, nvm::READ, 1, 0, 1);
    }
    stage.until_in_flight(63);
    stage.tell(Message::Remove(7));
    for _ in 0..62 {
        returns.write_all(&[7; 4096]).unwrap();
    }
    stage.until_in_flight(1);
    assert!(stage.data.strong_count() > 0);
    returns.write_all(&[7; 4096]).unwrap();
    while !matches!(stage.news.recv_timeout(LONG).unwrap(), News::Removed(7, _)) {}
    assert_eq!(stage.data.strong_count(), 0);
    stage.stop().unwrap_err();
}

#[test]
fn a_request_that_waits_is_taken_back_and_one_that_the_kernel_has_is_not() {
    let (hangs, mut returns) = std::io::pipe().unwrap();
    let mut stage = Stage::with_entries(512, vec![Some(hangs.into())]);
    let all = FILE_OPERATIONS_MAX as u16 + 44;
    for cid in 0..all {
        stage.push(cid, nvm::READ, 1, 0, 1);
    }
    stage.until_in_flight(all.into());
    for (cancelled, count) in [(all - 1, 1), (0, 0), (all - 1, 0)] {
        stage.cancel(1000, cancelled);
        let mut aborted = 0;
        let answer = loop {
            let cqe = stage.next();
            if cqe.cid == 1000 {
                break cqe;
            }
            assert_eq!((cqe.cid, cqe.status), (all - 1, Status::ABORT_REQUESTED));
            aborted += 1;
        };
        assert!(answer.status.is_success());
        assert_eq!(answer.result, count, "command {cancelled}");
        // Its own end comes before the next turn's, or with it.
        if aborted < count {
            let cqe = stage.next();
            assert_eq!((cqe.cid, cqe.status), (all - 1, Status::ABORT_REQUESTED));
        }
    }
    for _ in 0..all - 1 {
        returns.write_all(&[7; 4096]).unwrap();
    }
    for _ in 0..all - 1 {
        assert!(stage.next().status.is_success());
    }
    drop(stage.stop());
}

#[test]
fn t09_a_client_that_lets_go_of_what_hangs_is_no_misbehaviour_and_leaves_with_its_end() {
    let (hangs, mut returns) = std::io::pipe().unwrap();
    let mut stage = Stage::new(vec![Some(hangs.into())]);
    stage.push(1, nvm::READ, 1, 0, 1);
    stage.until_in_flight(1);
    stage.sq.let_go(&stage.memory);
    stage.event.raise();
    let next = || loop {
        match stage.news.recv_timeout(LONG).unwrap() {
            News::Let(_) => {}
            news => break news,
        }
    };
    assert!(matches!(
        next(),
        News::Broken(7, GivenUp::Misbehaved(Misbehaved::LetGo))
    ));
    returns.write_all(&[7; 4096]).unwrap();
    assert!(matches!(next(), News::Removed(7, _)));
    drop(stage.stop());
}

#[test]
fn t08_every_write_goes_out_once_however_it_is_cut() {
    let (mut out, full) = std::io::pipe().unwrap();
    let mut stage = Stage::new(vec![Some(full.into())]);
    const WRITES: u8 = 60;
    let data = stage.data.upgrade().unwrap();
    for n in 0..WRITES {
        // A pipe takes 64 KiB before somebody reads, and of what doesn't fit a part.
        data.write(usize::from(n) * 8192, &[n; 8192]);
        stage.push(n.into(), nvm::WRITE, 1, u64::from(n) * 2, 2);
    }
    drop(data);
    let reader = std::thread::spawn(move || {
        let mut seen = [0_usize; 256];
        let mut bytes = [0; 1000];
        loop {
            let count = out.read(&mut bytes).unwrap();
            if count == 0 {
                return seen;
            }
            for byte in &bytes[..count] {
                seen[usize::from(*byte)] += 1;
            }
        }
    });
    for _ in 0..WRITES {
        assert!(stage.next().status.is_success());
    }
    stage.stop().unwrap_err();
    let seen = reader.join().unwrap();
    assert_eq!(seen[..usize::from(WRITES)], [8192; WRITES as usize]);
}

#[test]
fn t13_a_flush_of_all_fails_if_one_file_cannot_be_flushed() {
    for bad in 0..4 {
        let instead = |at| (at == bad).then(|| std::io::pipe().unwrap().0.into());
        let mut stage = Stage::new((0..3).map(instead).collect());
        stage.push(1, nvm::FLUSH, NSID_ALL, 0, 0);
        assert_eq!(stage.next().status.is_success(), bad == 3, "{bad}");
        for nsid in 1..4 {
            stage.push(2, nvm::FLUSH, nsid, 0, 0);
            let well = stage.next().status.is_success();
            assert_eq!(well, bad as u32 + 1 != nsid, "{bad} {nsid}");
        }
        drop(stage.stop());
    }
}

#[test]
fn t13_who_stops_flushes_every_file_and_says_which_could_not_be() {
    // No client asked for it, none is even there.
    let fine = Stage::new(vec![None, None]);
    assert_eq!(fine.stop(), Ok(()));
    let pipe = std::io::pipe().unwrap().1.into();
    let stage = Stage::new(vec![None, Some(pipe), None]);
    let error = stage.stop().unwrap_err();
    assert!(
        error.contains("written to namespace 2 (file:") && error.contains("may be lost"),
        "{error}"
    );
}

/// Allocations of a worker in a life of so many rounds of reads, writes and flushes.
fn allocations(rounds: usize) -> u64 {
    let mut stage = Stage::new(vec![None]);
    for _ in 0..rounds {
        for nsid in [1, 2] {
            for cid in 0..10 {
                let opcode = [nvm::READ, nvm::WRITE][usize::from(cid % 2)];
                stage.push(cid, opcode, nsid, u64::from(cid) * 2, 2);
            }
            stage.push(10, nvm::FLUSH, nsid, 0, 0);
            for _ in 0..11 {
                let cqe = stage.next();
                assert!(cqe.status.is_success());
                stage.sq.fetched(cqe.sqhd).unwrap();
            }
        }
    }
    let (allocations, ended) = stage.allocations_at_stop();
    ended.unwrap();
    allocations
}

#[test]
fn no_io_allocates() {
    let (short, long) = (allocations(20), allocations(1020));
    assert!(short > 0, "the counter doesn't count");
    // Lists grow with what was in flight at once, which differs from run to run; 22,000 I/Os don't.
    assert!(long < short + 50, "{short} and {long}");
}
