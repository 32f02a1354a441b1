use super::*;
use crate::transfer::Region;
use sys::{Arena, RingConfig};

/// One file, 1 MiB.
fn files() -> Files {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let device = runtime::FileDevice::open(path, false, Some(1 << 20)).unwrap();
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
    let post = Post {
        mailbox: std::sync::mpsc::channel().0,
        has_mail: Arc::default(),
        event: Arc::new(sys::os::Event::new().unwrap()),
    };
    Files::new(ring, &namespaces, &post).unwrap()
}

fn memories() -> Memories {
    Memories::new(Region {
        memory: own_memory(4096).unwrap(),
        at: 0,
        len: 4096,
    })
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
    let pipe = Way::File(Fd::new(std::io::pipe().unwrap().1.into()));
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
    files.backings[0].as_mut().unwrap().failures += 1;
    files.forget(0);
    assert!(done(&mut files, 0, FLUSH));
}

#[test]
fn t13_zeroes_with_fua_are_durable_by_themselves() {
    let mut files = files();
    for fua in [false, true] {
        files.begin(job(0, 0), zeroes(fua), &memories());
        let mut flushes = 0;
        while files.next_ended(&mut false).is_none() {
            flushes += u32::from(!files.backings[0].as_ref().unwrap().flushing.is_empty());
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
fn what_waits_is_taken_back_and_what_the_kernel_has_is_not() {
    let mut files = files();
    let memory = own_memory(4096).unwrap();
    let memories = Memories::new(Region {
        memory,
        at: 0,
        len: 4096,
    });
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
        while let Some(Ended { job, status }) = files.next_ended(&mut false) {
            ended[usize::from(job.cid)] += 1;
            aborted += u32::from(status.is(Status::ABORT_REQUESTED));
        }
        files.ring().enter(sys::Wait::No).unwrap();
    }
    assert_eq!((aborted, files.in_flight), (6, 0));
    assert!(ended.iter().all(|&times| times == 1));
}
