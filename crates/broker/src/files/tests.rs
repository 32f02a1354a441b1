use super::*;
use crate::transfer::Region;
use crate::worker::Message;
use std::sync::mpsc::{Receiver, channel};
use sys::{Arena, RingConfig};

/// One file, 1 MiB.
fn files() -> Files {
    files_of(&Orders::new(1)).0
}

/// The same as one of several threads has it, and where the others tell it something.
fn files_of(orders: &Orders) -> (Files, Receiver<Message>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    // With its space and without cached pages: else writes are not the ring's.
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    let made = std::fs::File::open(&path).unwrap();
    made.sync_all().unwrap();
    rustix::fs::fadvise(&made, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let device = runtime::FileDevice::open(path, false, None).unwrap();
    let namespaces = [Namespace {
        device: Device::File(Arc::new(device)).into(),
        block_shift: 12,
        blocks: 256,
        read_only: false,
    }];
    let config = RingConfig {
        operations_max: FILE_OPERATIONS_MAX as u32 + 1,
        buffers: 1,
        buffers_lent: 1,
        buffer_bytes: 4096,
    };
    let ring = Ring::new(&config, Arena::new(4096).unwrap()).unwrap();
    let (mailbox, told) = channel();
    let post = Post {
        mailbox,
        has_mail: Arc::default(),
        event: Arc::new(sys::os::Event::new().unwrap()),
    };
    (Files::new(ring, &namespaces, orders, &post).unwrap(), told)
}

/// The memory of a queue, with the tail doorbell at its begin.
fn ring_memory() -> Arc<Shared> {
    own_memory(3 * 4096).unwrap()
}

fn memories_in(memory: &Arc<Shared>) -> Memories {
    let region = Region {
        memory: Arc::clone(memory),
        at: 0,
        len: 3 * 4096,
    };
    Memories::new(region, Door::new(Arc::clone(memory), 0))
}

fn memories() -> Memories {
    memories_in(&ring_memory())
}

fn job(lane: usize, cid: u16) -> Job {
    Job {
        lane,
        cid,
        namespace: 0,
    }
}

const FLUSH: Work = Work::Flush { rest: Vec::new() };

/// The next one that ends.
fn next(files: &mut Files) -> Ended {
    loop {
        if let Some(ended) = files.next_ended(&mut false) {
            return ended;
        }
        files.ask();
        files.ring().enter(sys::Wait::No).unwrap();
    }
}

/// Does one thing for a lane; whether it succeeded.
fn done(files: &mut Files, lane: usize, work: Work) -> bool {
    files.begin(job(lane, 0), work, &memories());
    next(files).status.is_success()
}

fn zeroes(fua: bool) -> Work {
    Work::Zeroes {
        offset: 0,
        len: 4096,
        deallocate: false,
        fua,
    }
}

#[test]
fn t13_a_flush_that_fails_is_told_to_every_queue_that_wrote() {
    let mut files = files();
    for lane in [0, 1] {
        assert!(done(&mut files, lane, zeroes(false)));
    }
    // As the kernel does it: an error behind an acknowledgement is told once.
    let pipe = Way::File(Some(Fd::new(std::io::pipe().unwrap().1.into())));
    let file = |files: &mut Files, file| {
        std::mem::replace(&mut files.backings[0].as_mut().unwrap().way, file)
    };
    let real = file(&mut files, pipe);
    assert!(!done(&mut files, 2, FLUSH));
    file(&mut files, real);
    assert!(!done(&mut files, 0, FLUSH));
    assert!(done(&mut files, 0, FLUSH), "once each");
    assert!(done(&mut files, 2, FLUSH), "it was told");
    assert!(done(&mut files, 3, FLUSH), "it wrote nothing");
    assert!(
        !done(&mut files, 1, zeroes(true)),
        "what is durable flushes"
    );
    assert!(done(&mut files, 1, FLUSH));
    // A place that another queue has now.
    assert!(done(&mut files, 0, zeroes(false)));
    files.forget(0);
    files.backings[0].as_mut().unwrap().failures += 1;
    assert!(done(&mut files, 0, FLUSH));
}

#[test]
fn t13_what_a_queue_that_has_gone_was_not_told_the_next_that_flushes_is() {
    let mut files = files();
    let fail = |files: &mut Files| files.backings[0].as_mut().unwrap().failures += 1;
    assert!(done(&mut files, 0, zeroes(false)));
    fail(&mut files);
    files.forget(0);
    assert!(!done(&mut files, 1, FLUSH), "nobody knew of it");
    assert!(done(&mut files, 1, FLUSH), "it was told");
    // A flush that fails after its client has let go, and the next client's.
    assert!(done(&mut files, 0, zeroes(false)));
    fail(&mut files);
    files.begin(job(0, 0), FLUSH, &memories());
    let ended = next(&mut files);
    assert!(!ended.status.is_success());
    files.unheard(&ended);
    assert!(!done(&mut files, 1, FLUSH), "it had ended before");
    files.forget(0);
    assert!(done(&mut files, 2, FLUSH), "it was told");
}

#[test]
fn t13_what_was_flushed_well_is_not_taken_for_lost_and_what_may_not_have_been_is() {
    let mut files = files();
    let fail = |files: &mut Files| files.backings[0].as_mut().unwrap().failures += 1;
    let flushed = |files: &mut Files, lane| {
        assert!(done(files, lane, zeroes(false)));
        assert!(done(files, lane, FLUSH));
        fail(files);
    };
    flushed(&mut files, 0);
    assert!(done(&mut files, 0, FLUSH), "it was flushed before");
    flushed(&mut files, 0);
    assert!(done(&mut files, 0, zeroes(false)));
    assert!(done(&mut files, 0, FLUSH), "it was written behind that");
    flushed(&mut files, 0);
    files.forget(0);
    assert!(done(&mut files, 1, FLUSH), "nothing of it was lost");
    // One more write behind the flush, that has ended or not.
    assert!(done(&mut files, 0, zeroes(false)));
    flushed(&mut files, 1);
    assert!(!done(&mut files, 0, FLUSH));
    files.begin(job(0, 0), zeroes(false), &memories());
    fail(&mut files);
    files.begin(job(0, 1), FLUSH, &memories());
    for ended in [next(&mut files), next(&mut files)] {
        assert_eq!(ended.status.is_success(), ended.job.cid == 0);
    }
}

#[test]
fn t13_what_is_no_flush_or_was_taken_back_is_no_flush_that_failed() {
    let mut files = files();
    let memory = ring_memory();
    files.begin(job(0, 0), zeroes(true), &memories_in(&memory));
    memory.store_word(0, nvme::queue::LET_GO);
    let forsaken = next(&mut files);
    assert!(forsaken.status.is(Status::SQ_DELETION));
    for cid in 0..=FILE_OPERATIONS_MAX as u16 {
        files.begin(job(0, cid), FLUSH, &memories());
    }
    assert_eq!(files.cancel(0, None), 1);
    let cancelled = next(&mut files);
    assert!(cancelled.status.is(Status::ABORT_REQUESTED) && cancelled.flush);
    for ended in [forsaken, cancelled] {
        files.unheard(&ended);
        assert!(!files.backings[0].as_ref().unwrap().untold);
    }
}

#[test]
fn t13_zeroes_with_fua_are_durable_by_themselves() {
    let mut files = files();
    for fua in [false, true] {
        files.begin(job(0, 0), zeroes(fua), &memories());
        let mut flushes = 0;
        while files.next_ended(&mut false).is_none() {
            flushes += u32::from(!files.backings[0].as_ref().unwrap().flushing.is_empty());
            files.ask();
            files.ring().enter(sys::Wait::No).unwrap();
        }
        assert_eq!(flushes > 0, fua);
    }
}

#[test]
fn t13_who_asks_during_a_flush_is_flushed_for_once_more() {
    let mut files = files();
    for cid in 0..10 {
        files.begin(job(0, cid), FLUSH, &memories());
    }
    let backing = files.backings[0].as_ref().unwrap();
    assert_eq!((backing.flushing.len(), backing.next_flush.len()), (1, 9));
    assert_eq!(next(&mut files).job.cid, 0);
    assert_eq!(files.backings[0].as_ref().unwrap().flushing.len(), 9);
    for _ in 0..9 {
        assert!(next(&mut files).status.is_success());
    }
    assert_eq!(files.in_flight, 0);
}

#[test]
fn t13_of_flushes_that_end_together_the_one_that_covers_most_counts() {
    let mut files = files();
    assert!(done(&mut files, 0, zeroes(false)));
    files.begin(job(1, 0), FLUSH, &memories());
    files.begin(job(0, 1), FLUSH, &memories());
    // As if one more write had ended between these two, which wait for the same flush.
    files.told(job(0, 0)).unwrap().writes.acknowledge();
    files.begin(job(0, 2), FLUSH, &memories());
    assert_eq!(files.backings[0].as_ref().unwrap().next_flush.len(), 2);
    for _ in 0..3 {
        assert!(next(&mut files).status.is_success());
    }
    assert!(files.told(job(0, 0)).unwrap().is_flushed());
}

#[test]
fn queues_are_served_in_turn_whoever_came_first() {
    let mut files = files();
    let (hangs, mut returns) = std::io::pipe().unwrap();
    files.replace(0, hangs.into());
    let mut memories = memories();
    let entry = [0, 0, 0, queue::layout::region_address(0), 0, 0, 0, 0];
    let trust = nvme::queue::check::Trust::Mediated;
    memories.look_up(&entry, 4096, trust).unwrap();
    let read = |files: &mut Files, lane, cid| {
        files.begin(job(lane, cid), Work::Read { offset: 0 }, &memories);
    };
    for cid in 0..FILE_OPERATIONS_MAX as u16 + 100 {
        read(&mut files, 0, cid);
    }
    for cid in [0, 1] {
        read(&mut files, 1, cid);
    }
    // Of the next four that begin, each queue has two.
    for _ in 0..4 {
        std::io::Write::write_all(&mut returns, &[7; 4096]).unwrap();
        assert!(next(&mut files).status.is_success());
    }
    let waiting = [0, 1].map(|lane: usize| files.lanes[lane].waiting.len());
    assert_eq!(waiting, [98, 0]);
}

#[test]
fn t52_zeroes_that_workers_make_keep_no_room_of_the_ring() {
    let mut files = files();
    for cid in 0..FILE_OPERATIONS_MAX as u16 + 10 {
        files.begin(job(0, cid), zeroes(false), &memories());
    }
    assert_eq!((files.in_flight, files.waiting), (0, 0));
    files.begin(job(1, 0), FLUSH, &memories());
    assert_eq!(
        (files.in_flight, files.waiting),
        (1, 0),
        "it has room at once"
    );
    for _ in 0..FILE_OPERATIONS_MAX + 11 {
        assert!(next(&mut files).status.is_success());
    }
    // A write that waits turns out to be one that workers make.
    let mut memories = memories();
    let entry = [0, 0, 0, queue::layout::region_address(0), 0, 0, 0, 0];
    let trust = nvme::queue::check::Trust::Mediated;
    memories.look_up(&entry, 4096, trust).unwrap();
    for cid in 0..=FILE_OPERATIONS_MAX as u16 {
        files.begin(job(0, cid), FLUSH, &memories);
    }
    files.begin(
        job(1, 0),
        Work::Write {
            offset: 0,
            fua: false,
        },
        &memories,
    );
    let backing = files.backings[0].as_mut().unwrap();
    backing.slow.as_mut().unwrap().writes = true;
    for _ in 0..FILE_OPERATIONS_MAX + 2 {
        next(&mut files);
    }
    assert_eq!((files.in_flight, files.waiting), (0, 0));
}

#[test]
fn what_waits_is_taken_back_and_what_the_kernel_has_is_not() {
    let mut files = files();
    let memories = memories();
    let in_flight = FILE_OPERATIONS_MAX as u16;
    for cid in 0..in_flight + 10 {
        let job = Job {
            lane: usize::from(cid % 2),
            cid,
            namespace: 0,
        };
        files.begin(job, Work::Flush { rest: Vec::new() }, &memories);
    }
    assert_eq!(files.cancel(0, Some(0)), 0, "the kernel has it");
    assert_eq!(files.cancel(1, Some(in_flight)), 0, "another's");
    assert_eq!(files.cancel(0, Some(in_flight)), 1);
    assert_eq!(files.cancel(0, Some(in_flight)), 0, "once");
    assert_eq!(files.cancel(1, None), 5);
    let mut ended = vec![0; usize::from(in_flight) + 10];
    let mut aborted = 0;
    while ended.iter().sum::<u32>() < ended.len() as u32 {
        while let Some(Ended { job, status, .. }) = files.next_ended(&mut false) {
            ended[usize::from(job.cid)] += 1;
            aborted += u32::from(status.is(Status::ABORT_REQUESTED));
        }
        files.ring().enter(sys::Wait::No).unwrap();
    }
    assert_eq!((aborted, files.in_flight), (6, 0));
    assert!(ended.iter().all(|&times| times == 1));
}

/// Memory of a command: its second page, or as a PRP pair its third and then its second.
fn with_data(memory: &Arc<Shared>, pages: u32) -> Memories {
    let mut memories = memories_in(memory);
    let page = |n: u64| queue::layout::region_address(0) + n * 4096;
    let entry = match pages {
        1 => [0, 0, 0, page(1), 0, 0, 0, 0],
        _ => [0, 0, 0, page(2), page(1), 0, 0, 0],
    };
    let trust = nvme::queue::check::Trust::Mediated;
    memories.look_up(&entry, pages * 4096, trust).unwrap();
    memories
}

const WRITE: Work = Work::Write {
    offset: 0,
    fua: false,
};

/// The first block of the file.
fn first_block(files: &mut Files) -> Vec<u8> {
    let memory = ring_memory();
    files.begin(job(1, 0), Work::Read { offset: 0 }, &with_data(&memory, 1));
    assert!(next(files).status.is_success());
    let mut bytes = vec![0; 4096];
    memory.read(4096, &mut bytes);
    bytes
}

#[test]
fn t09_a_change_whose_client_lets_go_before_the_kernel_is_asked_is_not_made() {
    let mut files = files();
    let memory = ring_memory();
    let memories = with_data(&memory, 1);
    memory.write(4096, &[7; 4096]);
    assert!(!files.wants_enter());
    files.begin(job(0, 0), WRITE, &memories);
    files.begin(job(0, 1), zeroes(false), &memories);
    assert!(files.wants_enter());
    memory.store_word(0, nvme::queue::LET_GO);
    for _ in 0..2 {
        assert!(next(&mut files).status.is(Status::SQ_DELETION));
    }
    assert_eq!((files.in_flight, files.ring().in_flight()), (0, 0));
    assert_eq!(first_block(&mut files), [0; 4096]);
    // A request that changes nothing goes on.
    files.begin(job(0, 2), Work::Read { offset: 0 }, &memories);
    assert!(next(&mut files).status.is_success());
}

#[test]
fn t09_the_rest_of_a_change_is_not_made_when_its_client_has_let_go() {
    let mut files = files();
    let memory = ring_memory();
    let memories = with_data(&memory, 2);
    assert_eq!(memories.parts().len(), 2);
    memory.write(4096, &[2; 4096]);
    memory.write(8192, &[1; 4096]);
    files.begin(job(0, 0), WRITE, &memories);
    assert!(files.ask());
    // The kernel has the first part.
    files.ring().enter(sys::Wait::No).unwrap();
    memory.store_word(0, nvme::queue::LET_GO);
    assert!(next(&mut files).status.is(Status::SQ_DELETION));
    assert_eq!(first_block(&mut files), [1; 4096]);
    let other = ring_memory();
    let second = Work::Read { offset: 4096 };
    files.begin(job(1, 0), second, &with_data(&other, 1));
    assert!(next(&mut files).status.is_success());
    let mut bytes = [9; 4096];
    other.read(4096, &mut bytes);
    assert_eq!(bytes, [0; 4096]);
}

/// 4096 bytes that begin behind the begin of a page.
fn unaligned(memory: &Arc<Shared>) -> Memories {
    let mut odd = memories_in(memory);
    let page = queue::layout::region_address(0) + 4096;
    let entry = [0, 0, 0, page + 8, page + 4096, 0, 0, 0];
    let trust = nvme::queue::check::Trust::Mediated;
    odd.look_up(&entry, 4096, trust).unwrap();
    odd
}

/// The client can do nothing about it: it is not told that its command is wrong.
#[test]
fn t06_request_without_memory_to_copy_through_fails() {
    let mut files = files();
    files.backings[0].as_mut().unwrap().align = 4096;
    let odd = unaligned(&ring_memory());
    // Memory of no bytes can't be had.
    for (bytes, want) in [
        (0, Status::INTERNAL_ERROR),
        (TRANSFER_MAX as usize, Status::SUCCESS),
    ] {
        files.bounce_bytes = bytes;
        for work in [WRITE, Work::Read { offset: 0 }] {
            files.begin(job(2, 5), work, &odd);
            let ended = next(&mut files);
            assert!(ended.status.is(want), "{}", ended.status);
            assert_eq!((ended.job.lane, ended.job.cid), (2, 5));
        }
    }
    assert_eq!(files.in_flight, 0);
}

#[test]
fn what_is_copied_for_a_file_that_wants_aligned_memory_is_counted() {
    let mut files = files();
    files.backings[0].as_mut().unwrap().align = 4096;
    let memory = ring_memory();
    assert!(done(&mut files, 0, FLUSH));
    let odd = unaligned(&memory);
    for (work, memories, lane, want) in [
        (WRITE, &odd, 2, 4096),
        (Work::Read { offset: 0 }, &odd, 2, 4096),
        (Work::Read { offset: 0 }, &odd, 3, 4096),
        (WRITE, &with_data(&memory, 1), 2, 0),
        (Work::Read { offset: 0 }, &with_data(&memory, 1), 2, 0),
    ] {
        let before = files.copied();
        files.begin(job(lane, 0), work, memories);
        assert!(next(&mut files).status.is_success());
        assert_eq!(files.copied() - before, want);
        assert_eq!(files.take_copied(lane), want);
        assert_eq!(files.take_copied(lane), 0, "once");
    }
    assert_eq!(files.take_copied(1), 0);
}

/// Whether a write of block 0 is made by workers, and ends well.
fn writes_by_workers(files: &mut Files) -> bool {
    let memory = ring_memory();
    memory.write(4096, &[5; 4096]);
    files.begin(job(0, 0), WRITE, &with_data(&memory, 1));
    let mut by_workers = false;
    let ended = loop {
        if let Some(ended) = files.next_ended(&mut false) {
            break ended;
        }
        files.ask();
        files.ring().enter(sys::Wait::No).unwrap();
        let request = files.requests.iter().map(|(_, it)| it).next();
        by_workers |= request.is_some_and(|it| it.by_workers);
    };
    assert!(ended.status.is_success() && files.in_flight == 0);
    assert_eq!(first_block(files), [5; 4096]);
    by_workers
}

#[test]
fn t49_what_the_kernel_would_do_later_workers_do() {
    let mut files = files();
    files.backings[0].as_mut().unwrap().way = Way::File(None);
    assert!(writes_by_workers(&mut files));
    assert!(done(&mut files, 0, FLUSH) && done(&mut files, 0, zeroes(true)));
}

#[test]
fn t49_workers_ask_the_door_of_a_client() {
    let mut files = files();
    files.backings[0].as_mut().unwrap().way = Way::File(None);
    let memory = ring_memory();
    memory.write(4096, &[7; 4096]);
    files.begin(job(0, 0), WRITE, &with_data(&memory, 1));
    let slot = files.due.pop_front().unwrap();
    // It lets go between the look at its door and the system call.
    memory.store_word(0, nvme::queue::LET_GO);
    files.order(slot);
    assert!(next(&mut files).status.is(Status::SQ_DELETION));
    assert_eq!(first_block(&mut files), [0; 4096]);
}

/// Writes to the file hang until the pipe is read.
fn hang(files: &mut Files) -> std::io::PipeReader {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let full = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    std::io::Write::write_all(&mut writer, &vec![0; full]).unwrap();
    files.replace(0, writer.into());
    reader
}

fn submit(files: &mut Files) {
    files.ask();
    files.ring().enter(sys::Wait::No).unwrap();
}

fn drain(reader: &mut std::io::PipeReader) {
    std::io::Read::read(reader, &mut [0; 1 << 16]).unwrap();
}

/// A client dies while the kernel has its write. The next one's queue is another thread's.
#[test]
fn t09_what_the_kernel_has_of_a_dead_client_comes_first() {
    let orders = Orders::new(1);
    let ((mut first, _told), (mut second, told)) = (files_of(&orders), files_of(&orders));
    let mut reader = hang(&mut first);
    let memory = ring_memory();
    first.begin(job(0, 0), WRITE, &with_data(&memory, 1));
    submit(&mut first);
    assert_eq!(first.cancel(0, None), 0);
    second.begin(job(0, 1), WRITE, &with_data(&memory, 1));
    second.begin(
        job(1, 2),
        Work::Write {
            offset: 4096,
            fua: false,
        },
        &with_data(&memory, 1),
    );
    assert_eq!(
        next(&mut second).job.cid,
        2,
        "the one beside it does not wait"
    );
    submit(&mut second);
    assert_eq!(second.in_flight, 0, "one that waits keeps no operation");
    assert!(told.try_recv().is_err());
    // A late message about another namespace, whose order has given the same ticket.
    let (key, request) = second.requests.iter().next().unwrap();
    let (slot, ticket) = (key.index(), request.order.unwrap());
    let namespace = request.job.namespace + 1;
    second.begun(Begun {
        namespace,
        slot,
        ticket,
    });
    submit(&mut second);
    assert_eq!(second.in_flight, 0, "it goes on waiting");
    drain(&mut reader);
    assert!(next(&mut first).status.is_success());
    let Ok(Message::Begun(begun)) = told.try_recv() else {
        panic!("not told");
    };
    second.begun(begun);
    assert_eq!(next(&mut second).job.cid, 1);
    assert!(orders.is_empty());
}

/// One that waits is taken back, whether or not it was told that it may begin.
#[test]
fn t12_a_change_that_waits_for_another_is_taken_back() {
    for late in [false, true] {
        let orders = Orders::new(1);
        let ((mut first, _told), (mut second, told)) = (files_of(&orders), files_of(&orders));
        let mut reader = hang(&mut first);
        let memory = ring_memory();
        first.begin(job(0, 0), WRITE, &with_data(&memory, 1));
        submit(&mut first);
        // Also of a lane that never wrote.
        let deallocate = Work::Deallocate {
            ranges: vec![(0, 4096)],
        };
        second.begin(job(0, 1), deallocate, &memories());
        second.begin(job(0, 2), WRITE, &with_data(&memory, 1));
        if late {
            drain(&mut reader);
            assert!(next(&mut first).status.is_success());
        }
        assert_eq!(second.cancel(0, Some(1)), 1);
        assert!(next(&mut second).status.is(Status::ABORT_REQUESTED));
        if !late {
            drain(&mut reader);
            assert!(next(&mut first).status.is_success());
        }
        while let Ok(Message::Begun(begun)) = told.try_recv() {
            second.begun(begun);
        }
        let ended = next(&mut second);
        assert!(ended.job.cid == 2 && ended.status.is_success());
        assert!(orders.is_empty() && second.in_flight == 0);
    }
}

/// A change that fails, and one whose client lets go, keep nobody waiting.
#[test]
fn changes_that_fail_let_others_go_on() {
    let orders = Orders::new(1);
    let (mut files, _told) = files_of(&orders);
    let memory = ring_memory();
    // Neither the ring nor workers can change what is open to be read only.
    let null = std::fs::File::open("/dev/null").unwrap();
    let backing = files.backings[0].as_mut().unwrap();
    let handle = runtime::workers::FileHandle::new(null.try_clone().unwrap().into(), false);
    backing.slow.as_mut().unwrap().handle = Arc::new(handle);
    backing.way = Way::File(Some(Fd::new(null.into())));
    let ranges = vec![(0, 4096), (8192, 4096)];
    files.begin(job(0, 0), Work::Deallocate { ranges }, &memories());
    files.begin(job(0, 1), zeroes(false), &memories());
    files.begin(job(0, 2), WRITE, &with_data(&memory, 1));
    let gone = ring_memory();
    files.begin(job(1, 3), WRITE, &with_data(&gone, 1));
    gone.store_word(0, nvme::queue::LET_GO);
    files.begin(job(0, 4), WRITE, &with_data(&memory, 1));
    for cid in 0..5 {
        assert_eq!(next(&mut files).job.cid, cid);
    }
    assert!(orders.is_empty() && files.in_flight == 0);
}

/// The ranges of a deallocation have their places one after the other.
#[test]
fn ranges_of_a_deallocation_are_ordered_one_by_one() {
    let orders = Orders::new(1);
    let (mut files, _told) = files_of(&orders);
    let memory = ring_memory();
    let ranges = vec![(0, 4096), (4096, 4096), (8192, 4096)];
    files.begin(job(0, 0), Work::Deallocate { ranges }, &memories());
    files.begin(job(0, 1), WRITE, &with_data(&memory, 1));
    let mut cids = [next(&mut files).job.cid, next(&mut files).job.cid];
    cids.sort_unstable();
    assert_eq!(cids, [0, 1]);
    assert!(orders.is_empty() && files.in_flight == 0);
}
