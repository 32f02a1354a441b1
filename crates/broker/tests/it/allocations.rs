//! Allocations of a client per I/O: none.
use crate::common::{LONG, Stage, finish};
use queue::{Form, Kind, Options, Queue};
use sys::CountingAllocator;

#[test]
fn no_io_of_a_client_allocates() {
    let stage = Stage::plain();
    for (kind, form) in [
        (Kind::UserPoll, Form::Prp),
        (Kind::UserPoll, Form::Sgl),
        (Kind::UserIrq, Form::Auto),
    ] {
        let options = Options {
            kind,
            form,
            entries: 16,
            ..Options::default()
        };
        let mut queue = Queue::open(&stage.path(), &options).unwrap();
        let before = CountingAllocator::of_this_thread();
        assert!(before > 0, "the counter doesn't count");
        for round in 0..1000 {
            let data = queue.data().unwrap();
            let pieces = [data.piece(0, 4096), data.piece(16_384, 12_288)];
            let nsid = [1, 3][round as usize % 2];
            queue
                .write((nsid, false), round % 200, 4, &pieces, round)
                .unwrap();
            assert!(finish(&mut queue).status.is_success());
            queue.read(nsid, round % 200, 4, &pieces, round).unwrap();
            queue.submit().unwrap();
            if kind == Kind::UserIrq {
                assert_eq!(queue.wait(LONG), Ok(true));
            }
            assert!(finish(&mut queue).status.is_success());
        }
        queue.flush(None, 0).unwrap();
        assert!(finish(&mut queue).status.is_success());
        let after = CountingAllocator::of_this_thread();
        assert_eq!(after, before, "{kind:?} {form:?}");
    }
}
