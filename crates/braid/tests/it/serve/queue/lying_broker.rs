//! A queue server whose first queue lies: behind an answer, in the same moment, it ends a command
//! that nobody gave. Its other queues do nothing well.
use nvme::queue::{CqProducer, SharedMemory, SqConsumer};
use nvme::wire::{Cqe, Status};
use queue::layout::{Header, Kind, Layout, region_address};
use queue::protocol::{Answer, MESSAGE, Operation, Request};
use queue::{Error, Memory};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use sys::{Errno, Shared, memory_file, passing};

/// Its threads end with the process.
pub fn start(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for (number, stream) in (1..).zip(listener.incoming().map_while(Result::ok)) {
            std::thread::spawn(move || hear(stream, number));
        }
    });
}

/// One client, until it goes.
fn hear(mut stream: UnixStream, number: u32) {
    let over = Arc::new(AtomicBool::new(false));
    let mut bytes = [0; MESSAGE];
    while stream.read_exact(&mut bytes).is_ok() {
        let request = Request::parse(&bytes);
        let mut answer = Answer::to(&request);
        let mut passed = Vec::new();
        match request.operation {
            Some(Operation::Open) => {
                let (queue, theirs) = open(&request, number).unwrap();
                (answer.a, answer.b) = (number, 1);
                (answer.c, answer.d) = (queue.header.layout.bytes() as u64, region_address(1));
                passed = theirs;
                let over = Arc::clone(&over);
                std::thread::spawn(move || queue.serve(&over));
            }
            Some(Operation::Namespace) => (answer.a, answer.c) = (12, 256),
            _ => answer.error = Errno::NODATA.raw_os_error().cast_unsigned(),
        }
        let passed: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
        passing::send(&stream, &answer.emit(), &passed, true).unwrap();
    }
    over.store(true, Ordering::Release);
}

struct Queue {
    header: Header,
    memory: Memory,
}

/// Its descriptors, of kind `user_poll`.
fn open(request: &Request, number: u32) -> Result<(Queue, Vec<OwnedFd>), Error> {
    let header = Header {
        layout: Layout::new(request.b).unwrap(),
        kind: Kind::UserPoll,
        number,
        transfer_max: 1 << 20,
        namespaces: 1,
        block_shifts: std::array::from_fn(|n| if n == 0 { 12 } else { 0 }),
    };
    let ring = memory_file("braid-test", header.layout.bytes() as u64)?;
    let memory = Arc::new(Shared::map(&ring, header.layout.bytes())?);
    header.store(&memory);
    let kick = sys::os::Event::new().unwrap().try_clone().unwrap();
    let data = memory_file("braid-test", request.c)?;
    let memory = Memory(memory);
    Ok((Queue { header, memory }, vec![ring, kick, data]))
}

impl Queue {
    fn serve(self, over: &AtomicBool) {
        let layout = self.header.layout;
        let mut sq = SqConsumer::new(layout.sq());
        let mut cq = CqProducer::new(layout.cq());
        while !over.load(Ordering::Acquire) {
            if !matches!(sq.available(&self.memory), Ok(1..)) {
                std::thread::yield_now();
                continue;
            }
            let entry = sq.fetch(&self.memory).unwrap();
            let cqe = Cqe {
                result: 0,
                sqhd: sq.head(),
                sqid: self.header.number as u16,
                cid: (entry[0] >> 16) as u16,
                status: Status::SUCCESS,
            };
            if self.header.number == 1 {
                return self.lie(&cqe);
            }
            assert!(cq.room(&self.memory, 1).unwrap() > 0);
            cq.post(&self.memory, &cqe);
        }
    }

    /// The answer, and behind it one to no command: that first, so that both are seen at once.
    fn lie(&self, cqe: &Cqe) {
        let layout = self.header.layout;
        let file = memory_file("braid-test", layout.bytes() as u64).unwrap();
        let made = Memory(Arc::new(Shared::map(&file, layout.bytes()).unwrap()));
        let mut cq = CqProducer::new(layout.cq());
        cq.post(&made, cqe);
        let cid = !cqe.cid;
        cq.post(&made, &Cqe { cid, ..*cqe });
        let at = layout.cq().entries_at;
        for at in [at + 16, at] {
            self.memory.store(at, made.load(at));
            self.memory.store_release(at + 8, made.load(at + 8));
        }
    }
}
