//! Several queues of one worker, turn by turn: what one of them does to the others.
use super::*;
use crate::limits::BATCH;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// A worker on the thread of the test.
struct Turns {
    worker: Worker,
    mailbox: Sender<Message>,
    news: Receiver<News>,
    namespaces: Arc<[Namespace]>,
}

/// A queue's client.
struct Client {
    memory: Memory,
    sq: SqProducer,
    cq: CqConsumer,
    data: Arc<Shared>,
    tally: Arc<Tally>,
}

impl Turns {
    /// Namespace 1 is a file, 2 memory.
    fn new() -> Self {
        let namespaces = files(1);
        let (mailbox, received) = channel();
        let (news_sender, news) = channel();
        let plan = Plan {
            cpu: None,
            spin_ns: 0,
            namespaces: Arc::clone(&namespaces),
            orders: Orders::new(namespaces.len()),
            mailbox: received,
            post: Post {
                mailbox: mailbox.clone(),
                has_mail: Arc::default(),
                event: Arc::new(Event::new().unwrap()),
            },
            news: news_sender,
            news_event: Arc::new(Event::new().unwrap()),
            tally: Arc::default(),
        };
        Self {
            worker: Worker::new(plan).unwrap(),
            mailbox,
            news,
            namespaces,
        }
    }

    fn client(&mut self, id: u64, entries: u32, data: Arc<Shared>) -> Client {
        let layout = Layout::new(entries).unwrap();
        let ring = memory(layout.bytes());
        let tally = Arc::new(Tally::default());
        let lane = Lane::new(Parts {
            id,
            header: Header {
                layout,
                kind: Kind::UserPoll,
                number: id as u32,
                transfer_max: 1 << 20,
                namespaces: self.namespaces.len() as u32,
                block_shifts: [12; SHAPES],
            },
            memory: Arc::clone(&ring),
            kick: Event::new().unwrap().try_clone().unwrap(),
            interrupt: None,
            data: Some(region(Arc::clone(&data))),
            namespaces: Arc::from([]),
            views: vec![Some(WHOLE); self.namespaces.len()],
            trust: Trust::Mediated,
            tally: Arc::clone(&tally),
        });
        self.mailbox.send(Message::Add(Box::new(lane))).unwrap();
        self.worker.read_mailbox();
        let memory = Memory(ring);
        Client {
            sq: SqProducer::new(layout.sq(), 0),
            cq: CqConsumer::resume(layout.cq(), 0, &memory),
            memory,
            data,
            tally,
        }
    }
}

impl Client {
    /// One block, from or to a byte of the data memory.
    fn push(&mut self, opcode: u8, nsid: u32, slba: u64, at: u64) {
        let first = u64::from(opcode) | u64::from(nsid) << 32;
        let entry = [first, 0, 0, region_address(1) + at, 0, slba, 0, 0];
        self.sq.push(&self.memory, &entry).unwrap();
        self.sq.ring(&self.memory);
    }

    /// Commands that have ended well.
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
}

/// 65,520 commands of sixteen queues, and one of another queue behind them.
#[test]
fn full_queues_let_another_one_in_each_turn() {
    let mut turns = Turns::new();
    let data = memory(DATA_BYTES);
    let mut full: Vec<_> = (0..16)
        .map(|id| turns.client(id, 4096, Arc::clone(&data)))
        .collect();
    let mut other = turns.client(16, 4, memory(DATA_BYTES));
    for client in &mut full {
        (0..4095).for_each(|_| client.push(nvm::READ, 2, 0, 0));
    }
    for turn in 1..=20 {
        other.push(nvm::READ, 2, 0, 0);
        assert!(turns.worker.turn());
        assert_eq!(other.reap(), 1);
        for client in &full {
            let ended = client.tally.commands.load(Ordering::Relaxed);
            assert_eq!(ended, turn * u64::from(BATCH));
        }
    }
}

#[test]
fn lost_memory_ends_its_client_and_no_other() {
    for nsid in [1, 2] {
        let mut turns = Turns::new();
        let file = memfd_create("braid-unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, DATA_BYTES as u64).unwrap();
        let data = Arc::new(Shared::map_unsealed(&file, DATA_BYTES).unwrap());
        let mut one = turns.client(1, 64, data);
        let mut other = turns.client(2, 64, memory(8192));
        other.data.write(0, &[7; 4096]);
        other.push(nvm::WRITE, nsid, 5, 0);
        let until_reaped = |turns: &mut Turns, client: &mut Client| {
            until("its command has ended", || {
                turns.worker.turn();
                client.reap() == 1
            });
        };
        until_reaped(&mut turns, &mut other);
        ftruncate(&file, 0).unwrap();
        for round in 0..20 {
            // Requests to a file fail in the kernel, until an access of our own faults.
            if nsid == 1 && round == 10 {
                one.data.write(0, &[1; 4096]);
            }
            one.push(nvm::READ, nsid, 0, 0);
            other.data.write(4096, &[0; 4096]);
            other.push(nvm::READ, nsid, 5, 4096);
            until_reaped(&mut turns, &mut other);
            let mut bytes = [0; 4096];
            other.data.read(4096, &mut bytes);
            assert!(bytes == [7; 4096]);
        }
        let told = std::iter::from_fn(|| one.cq.take(&one.memory));
        let told: Vec<_> = told.map(|cqe| cqe.status).collect();
        let is_fault = |status: &Status| status.is(Status::DATA_TRANSFER_ERROR);
        assert!(
            told.is_empty() == (nsid == 2) && told.iter().all(is_fault),
            "{told:?}"
        );
        turns.worker.read_mailbox();
        let mut news: Vec<_> = turns.news.try_iter().collect();
        news.retain(|news| !matches!(news, News::Let(_)));
        let [News::Broken(1, GivenUp::MemoryLost), News::Removed(1, _)] = &news[..] else {
            panic!("{} pieces of news", news.len());
        };
    }
}
