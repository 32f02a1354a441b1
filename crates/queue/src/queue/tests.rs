//! A queue whose controller is the test.
use super::*;
use crate::layout::SHAPES;
use nvme::queue::{CqProducer, SharedMemory};
use nvme::wire::Cqe;
use std::os::unix::net::UnixStream;
use sys::memory_file;

/// A queue, its memory as the controller sees it, and the controller's end of completions.
fn queue() -> (Queue, Memory, CqProducer) {
    let layout = Layout::new(16).unwrap();
    let header = Header {
        layout,
        kind: crate::Kind::UserPoll,
        number: 1,
        transfer_max: 1 << 20,
        namespaces: 1,
        block_shifts: [12; SHAPES],
    };
    let ring = memory_file("braid-test", layout.bytes() as u64).unwrap();
    let memory = Arc::new(Shared::map(&ring, layout.bytes()).unwrap());
    let held = Held {
        connection: Connection::new(UnixStream::pair().unwrap().0.into()),
        kick: ring.try_clone().unwrap(),
        ring,
        interrupt: None,
        data: None,
    };
    let queue = Queue::new(held, Arc::clone(&memory), header, Form::Auto);
    (queue, Memory(memory), CqProducer::new(layout.cq()))
}

/// Completions before an impossible one are not lost, and the error is not either.
#[test]
fn a_reap_that_fails_later_returns_what_ended_first() {
    let (mut queue, memory, mut cq) = queue();
    let cids: Vec<_> = (0..3).map(|n| queue.flush(None, n).unwrap()).collect();
    queue.rings.sq.ring(&memory);
    for (cid, sqhd) in [(cids[0], 1), (cids[1], 2), (999, 2), (cids[2], 3)] {
        cq.post(
            &memory,
            &Cqe {
                result: 0,
                sqhd,
                sqid: 1,
                cid,
                status: Status::SUCCESS,
            },
        );
    }
    let mut tokens = Vec::new();
    let reaped = queue.reap(8, |done| tokens.push(done.token));
    assert_eq!((reaped, tokens), (Ok(2), vec![0, 1]));
    let doorbell = memory.load_word(queue.layout.cq().doorbell_at);
    assert_eq!(doorbell, 3, "also what was wrong was taken");
    for _ in 0..2 {
        let error = queue.reap(8, |_| panic!("nothing behind it is believed"));
        assert_eq!(error, Err(Error::UnknownCommand { cid: 999 }));
    }
}
