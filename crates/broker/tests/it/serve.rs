//! Service of a client that keeps to the rules.
use crate::common::{LONG, Stage, finish, next, pattern, read, until, write};
use broker::{Grant, NamespaceRight, Trust};
use queue::{Coalescing, Error, Form, Kind, Options, Parts, Queue, Range, Status, SubmitError};
use rustix::event::{PollFd, PollFlags, epoll};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use sys::{Arena, Errno, Extent, Ring, RingConfig, Wait};

#[test]
fn what_is_written_is_read_on_memory_and_file_by_every_form_of_pointer() {
    for trust in [Trust::Mediated, Trust::Trusted] {
        let stage = Stage::new(|config| config.trust = trust);
        for form in [Form::Auto, Form::Prp, Form::Sgl] {
            let options = Options {
                form,
                entries: 16,
                data_bytes: 4 << 20,
                ..Options::default()
            };
            let mut queue = Queue::open(&stage.path(), &options).unwrap();
            for nsid in [1, 3] {
                // Lengths from a page to a list, at offsets that no file system likes.
                for (blocks, at) in [(1, 0), (1, 4), (2, 8), (3, 4096), (200, 2052), (256, 0)] {
                    let data = pattern(blocks + at as u64, blocks as usize * 4096);
                    write(&mut queue, nsid, 0, at, &data).unwrap();
                    let read = read(&mut queue, nsid, 0, blocks as u32).unwrap();
                    assert!(read == data, "{form:?} {nsid} {blocks} {at}");
                }
            }
        }
    }
}

#[test]
fn scattered_pieces_are_gathered_and_scattered() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let data = queue.data().unwrap().clone();
    for nsid in [1, 3] {
        let text = pattern(7, 8192);
        for (at, range) in [(100, 0..1000), (50_000, 1000..4096), (20_000, 4096..8192)] {
            data.write(at, &text[range]);
        }
        let pieces = [
            data.piece(100, 1000),
            data.piece(50_000, 3096),
            data.piece(20_000, 4096),
        ];
        queue.write((nsid, true), 5, 2, &pieces, 0).unwrap();
        assert!(finish(&mut queue).status.is_success());
        assert!(read(&mut queue, nsid, 5, 2).unwrap() == text);
        data.write(100_000, &[0; 8192]);
        let back = [data.piece(100_000, 4097), data.piece(150_000, 4095)];
        queue.read(nsid, 5, 2, &back, 0).unwrap();
        assert!(finish(&mut queue).status.is_success());
        let mut read = vec![0; 8192];
        data.read(100_000, &mut read[..4097]);
        data.read(150_000, &mut read[4097..]);
        assert!(read == text, "{nsid}");
    }
}

#[test]
fn zeroes_deallocation_and_flush() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    for nsid in [1, 3] {
        for (zeroes, deallocate) in [(true, false), (true, true), (false, false)] {
            write(&mut queue, nsid, 10, 0, &[7; 8 * 4096]).unwrap();
            if zeroes {
                queue.write_zeroes((nsid, deallocate), 11, 2, 0).unwrap();
            } else {
                let range = |slba, blocks| Range {
                    attributes: 0,
                    blocks,
                    slba,
                };
                let ranges = [range(11, 1), range(12, 1)];
                queue.deallocate(nsid, &ranges, 0).unwrap();
            }
            assert!(finish(&mut queue).status.is_success());
            let data = read(&mut queue, nsid, 10, 8).unwrap();
            assert!(data[..4096].iter().all(|&byte| byte == 7));
            assert!(data[4096..3 * 4096].iter().all(|&byte| byte == 0), "{nsid}");
            assert!(data[3 * 4096..].iter().all(|&byte| byte == 7));
        }
        queue.flush(Some(nsid), 9).unwrap();
        let flushed = finish(&mut queue);
        assert!(flushed.status.is_success() && flushed.token == 9);
    }
    queue.flush(None, 0).unwrap();
    assert!(finish(&mut queue).status.is_success());
}

#[test]
fn t06_a_full_queue_refuses_and_goes_on_when_completions_were_reaped() {
    let stage = Stage::plain();
    let mut queue = stage.open(Kind::UserPoll, 4).unwrap();
    assert_eq!(queue.depth(), 3);
    for round in 0..1000 {
        let piece = queue.data().unwrap().piece(0, 4096);
        for n in 0..3 {
            queue.read(2, n, 1, &[piece], round * 3 + n).unwrap();
        }
        let full = queue.read(2, 0, 1, &[piece], 9);
        assert_eq!(full, Err(SubmitError::Full));
        queue.submit().unwrap();
        for n in 0..3 {
            let done = next(&mut queue);
            assert!(done.status.is_success());
            assert_eq!(done.token, round * 3 + n);
        }
        assert_eq!(queue.in_flight(), 0);
    }
}

#[test]
fn a_user_irq_queue_sleeps_until_there_are_completions() {
    let stage = Stage::plain();
    for coalescing in [(0, 0), (4, 1000)] {
        let options = Options {
            kind: Kind::UserIrq,
            entries: 16,
            coalescing: Coalescing {
                completions: coalescing.0,
                time_us: coalescing.1,
            },
            ..Options::default()
        };
        let mut queue = Queue::open(&stage.path(), &options).unwrap();
        assert_eq!(queue.wait(Duration::from_millis(1)), Ok(false));
        for round in 0..200_u64 {
            let nsid = if round % 2 == 0 { 2 } else { 3 };
            let piece = queue.data().unwrap().piece(0, 4096);
            for n in 0..5 {
                queue.read(nsid, n, 1, &[piece], n).unwrap();
            }
            queue.submit().unwrap();
            let mut ended = 0;
            while ended < 5 {
                assert_eq!(queue.wait(LONG), Ok(true), "{round}: {ended}");
                ended += queue
                    .reap(5, |done| assert!(done.status.is_success()))
                    .unwrap();
            }
        }
    }
}

#[test]
fn t10_an_interrupt_of_what_was_reaped_already_ends_no_wait() {
    let stage = Stage::plain();
    let mut queue = stage.open(Kind::UserIrq, 8).unwrap();
    assert!(queue.arm());
    queue.flush(None, 0).unwrap();
    queue.submit().unwrap();
    let interrupt = queue.interrupt().unwrap();
    let up = rustix::event::poll(&mut [PollFd::new(&interrupt, PollFlags::IN)], None);
    assert_eq!(up, Ok(1));
    assert!(queue.poll().unwrap().unwrap().status.is_success());
    let before = queue.counts().calls;
    assert_eq!(queue.wait(Duration::from_millis(1)), Ok(false));
    // Woken by the interrupt, it was lowered, and then the wait went on.
    assert_eq!(queue.counts().calls - before, 3);
}

#[test]
fn looks_of_wait_and_arm_that_find_nothing_are_counted_and_no_completion_twice() {
    let stage = Stage::plain();
    let mut queue = stage.open(Kind::UserIrq, 8).unwrap();
    let polls = |queue: &Queue| (queue.counts().polls, queue.counts().empty_polls);
    assert!(queue.arm());
    assert_eq!(polls(&queue), (1, 1));
    // Before it says that it sleeps, behind that, and when the time is over.
    assert_eq!(queue.wait(Duration::from_millis(1)), Ok(false));
    assert_eq!(polls(&queue), (4, 4));
    queue.flush(None, 0).unwrap();
    queue.submit().unwrap();
    until("the flush has ended", || queue.is_ready());
    assert_eq!((queue.wait(LONG), queue.arm()), (Ok(true), false));
    assert!(queue.poll().unwrap().is_some());
    assert_eq!(polls(&queue), (5, 4));
    let mut queue = stage.poll();
    assert_eq!(queue.wait(LONG), Ok(false));
    assert_eq!(polls(&queue), (2, 2));
}

/// Reads of the namespace that is nothing: `wait` calls what submits one when it is ready to wait,
/// and takes the interrupt's counter.
fn awaited(queue: &mut Queue, mut wait: impl FnMut(&mut dyn FnMut()) -> u64) {
    for round in 0..200 {
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(2, 0, 1, &[piece], round).unwrap();
        assert!(queue.arm());
        assert_eq!(wait(&mut || queue.submit().unwrap()), 1, "round {round}");
        let done = queue.poll().unwrap().unwrap();
        assert!(done.status.is_success() && done.token == round);
    }
}

#[test]
fn an_interrupt_is_waited_for_with_io_uring_and_with_epoll() {
    let stage = Stage::plain();
    let mut queue = stage.open(Kind::UserIrq, 8).unwrap();
    let interrupt = sys::Fd::new(queue.interrupt().unwrap().try_clone_to_owned().unwrap());
    let config = RingConfig {
        operations_max: 8,
        buffers: 1,
        buffers_lent: 1,
        buffer_bytes: 4096,
    };
    let mut ring = Ring::new(&config, Arena::new(4096).unwrap()).unwrap();
    let counter = Extent::new(0, 8);
    let ended = |ring: &mut Ring| loop {
        if let Some(ended) = ring.next_completion() {
            break ended.result;
        }
        ring.enter(Wait::AtMost(LONG)).unwrap();
    };
    let mut alone = 0;
    for is_read_alone in [false, true] {
        awaited(&mut queue, |submit| {
            match is_read_alone {
                true => ring.read(&interrupt, counter, 0, 1),
                false => ring.poll_readable(&interrupt, 1),
            };
            ring.enter(Wait::No).unwrap();
            submit();
            match ended(&mut ring) {
                Ok(8) if is_read_alone => alone += 1,
                // It doesn't block, so there are kernels on which a read doesn't wait for it.
                Err(Errno::AGAIN) if is_read_alone => {
                    ring.poll_readable(&interrupt, 1);
                    assert!(ended(&mut ring).is_ok());
                    ring.read(&interrupt, counter, 0, 2);
                    assert_eq!(ended(&mut ring), Ok(8));
                }
                polled => {
                    assert!(polled.is_ok() && !is_read_alone, "{polled:?}");
                    ring.read(&interrupt, counter, 0, 2);
                    assert_eq!(ended(&mut ring), Ok(8));
                }
            }
            u64::from_ne_bytes(ring.arena().bytes(counter).try_into().unwrap())
        });
    }
    println!("a read alone waited {alone} times of 200");
    let waits = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let (data, flags) = (epoll::EventData::new_u64(7), epoll::EventFlags::IN);
    epoll::add(&waits, &interrupt, data, flags).unwrap();
    awaited(&mut queue, |submit| {
        submit();
        let mut events = [epoll::Event { flags, data }; 2];
        assert_eq!(epoll::wait(&waits, &mut events, None), Ok(1));
        assert_eq!(events[0].data.u64(), 7);
        let mut counter = [0; 8];
        rustix::io::read(&interrupt, &mut counter).unwrap();
        u64::from_ne_bytes(counter)
    });
}

/// A count of the one core.
fn of_thread(stage: &Stage, name: &str) -> u64 {
    let shown = stage.queues();
    let threads = shown.split("\"threads\":[").nth(1).unwrap();
    let count = threads.split(&format!("\"{name}\":")).nth(1).unwrap();
    count.split([',', '}']).next().unwrap().parse().unwrap()
}

#[test]
fn what_interrupts_and_sleeping_cost_the_broker_is_counted() {
    // With a queue it never sleeps within this test: each interrupt is a call, and nothing else is.
    let stage = Stage::new(|config| config.spin_ns = u64::MAX / 2);
    let mut polled = stage.poll();
    assert!(read(&mut polled, 1, 0, 1).is_ok());
    let before = ["enters", "sleeps"].map(|name| of_thread(&stage, name));
    let mut queue = stage.open(Kind::UserIrq, 8).unwrap();
    for round in 1..=20 {
        assert!(queue.arm());
        queue.flush(Some(2), 0).unwrap();
        assert!(finish(&mut queue).status.is_success());
        // It is counted behind the call.
        until("the interrupt is counted", || {
            of_thread(&stage, "enters") == before[0] + round
        });
    }
    assert!(stage.queues().contains("\"interrupts\":20"));
    assert_eq!(of_thread(&stage, "sleeps"), before[1]);
    drop((polled, queue));
    let stage = Stage::new(|config| config.spin_ns = 0);
    let mut queue = stage.poll();
    assert!(read(&mut queue, 1, 0, 1).is_ok());
    until("it sleeps", || of_thread(&stage, "sleeps") > 0);
    // The call that it sleeps in is counted behind it.
    assert!(read(&mut queue, 1, 0, 1).is_ok());
    until("the call is counted", || of_thread(&stage, "enters") > 0);
}

#[test]
fn while_the_broker_is_awake_no_system_call_is_made() {
    // It never sleeps within this test.
    let stage = Stage::new(|config| config.spin_ns = u64::MAX / 2);
    let mut queue = stage.poll();
    for round in 0..1000 {
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(1, round % 256, 1, &[piece], round).unwrap();
        assert!(finish(&mut queue).status.is_success());
    }
    let counts = queue.counts();
    assert_eq!(counts.calls, 0, "{counts:?}");
    assert!(counts.polls >= 1000 && counts.empty_polls < counts.polls);
}

#[test]
fn a_broker_that_always_sleeps_is_kicked() {
    let stage = Stage::new(|config| config.spin_ns = 0);
    let mut queue = stage.poll();
    for round in 0..300 {
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(2, 0, 1, &[piece], round).unwrap();
        assert_eq!(finish(&mut queue).token, round);
    }
    assert!(queue.counts().calls > 0);
}

#[test]
fn clients_may_do_what_they_are_granted() {
    let uid = rustix::process::geteuid().as_raw();
    let right = |nsid, first, end, read_only| NamespaceRight {
        nsid,
        first,
        end,
        read_only,
    };
    let grant = Grant {
        namespaces: Some(vec![right(1, 10, 20, false), right(3, 0, u64::MAX, true)]),
        depth_max: 7,
        queues_max: 1,
        memory_max: u64::MAX,
    };
    let stage = Stage::new(|config| {
        config.rights.users = vec![(uid, grant)];
        config.rights.others = None;
    });
    let refused = stage.open(Kind::UserPoll, 9).unwrap_err().to_string();
    assert!(refused.contains("7 in flight at most"), "{refused}");
    let mut queue = stage.open(Kind::UserPoll, 8).unwrap();
    let second = stage.open(Kind::UserIrq, 8).unwrap_err().to_string();
    assert!(second.contains("all 1 queues that it may have"), "{second}");
    assert!(queue.namespace(2).is_err() && queue.namespace(5).is_err());
    let third = queue.namespace(3).unwrap();
    assert!(third.read_only && third.blocks == 256 && third.block_shift == 12);
    write(&mut queue, 1, 10, 0, &[1; 10 * 4096]).unwrap();
    for (nsid, slba, expected) in [
        (1, 9, Status::ACCESS_DENIED),
        (1, 19, Status::ACCESS_DENIED),
        (1, 256, Status::LBA_RANGE),
        (2, 0, Status::INVALID_NAMESPACE),
        (3, 0, Status::WRITE_PROTECTED),
        (4, 0, Status::INVALID_NAMESPACE),
    ] {
        let status = write(&mut queue, nsid, slba, 0, &[1; 2 * 4096]).unwrap_err();
        assert!(status.is(expected), "{nsid} {slba}: {status}");
    }
    assert!(read(&mut queue, 3, 0, 1).is_ok());
}

#[test]
fn users_are_shown_their_own_queues_and_the_owner_all() {
    if !rustix::process::geteuid().is_root() {
        let name = "users_are_shown_their_own_queues_and_the_owner_all";
        let _ = writeln!(std::io::stderr(), "SKIP {name}: needs root");
        return;
    }
    let stage = Stage::plain();
    for (path, mode) in [(stage.directory.path(), 0o755), (&stage.path(), 0o666)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).unwrap();
    }
    let _ours = stage.poll();
    // Whom the kernel vouches for is the thread that connects.
    let as_user = |uid: u32| {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        (stage.poll(), stage.queues())
    };
    std::thread::scope(|scope| {
        let (_first, shown) = scope.spawn(|| as_user(4711)).join().unwrap();
        assert!(shown.contains("\"uid\":4711"), "{shown}");
        assert!(
            !shown.contains("\"uid\":0") && shown.contains("\"others\":1"),
            "{shown}"
        );
        let (_second, shown) = scope.spawn(|| as_user(4712)).join().unwrap();
        assert!(
            !shown.contains("\"uid\":4711") && shown.contains("\"others\":2"),
            "{shown}"
        );
        let all = stage.queues();
        for uid in [0, 4711, 4712] {
            assert!(all.contains(&format!("\"uid\":{uid},")), "{all}");
        }
        assert!(all.contains("\"others\":0"), "{all}");
    });
}

#[test]
fn who_has_no_rights_gets_no_queue_and_all_queues_taken_is_busy() {
    let stage = Stage::new(|config| config.rights.others = None);
    let refused = stage.open(Kind::UserPoll, 8).unwrap_err();
    assert!(
        matches!(refused, Error::Refused { errno, .. } if errno == sys::Errno::ACCESS),
        "{refused}"
    );
    let stage = Stage::new(|config| (config.user_poll, config.user_irq) = (2, 0));
    let held = [stage.poll(), stage.poll()];
    for (kind, why) in [
        (Kind::UserPoll, "all 2 queues of kind user_poll are in use"),
        (Kind::UserIrq, "all 0 queues of kind user_irq are in use"),
    ] {
        let refused = stage.open(kind, 8).unwrap_err();
        assert!(refused.to_string().contains(why), "{refused}");
        assert!(matches!(refused, Error::Refused { errno, .. } if errno == sys::Errno::BUSY));
    }
    let shown = stage.queues();
    assert_eq!(
        shown.matches("\"kind\":\"user_poll\"").count(),
        2,
        "{shown}"
    );
    drop(held);
    stage.until_free();
    stage.poll();
}

#[test]
fn a_queue_is_passed_on_and_goes_on_where_it_was() {
    let stage = Stage::plain();
    for kind in [Kind::UserPoll, Kind::UserIrq] {
        let mut queue = stage.open(kind, 8).unwrap();
        // To every position of the rings, in every round.
        for round in 0..20 {
            write(&mut queue, 1, round, 0, &pattern(round, 4096)).unwrap();
            let (one, other) = UnixStream::pair().unwrap();
            let number = queue.number();
            queue.into_parts().unwrap().send(&one).unwrap();
            queue = Queue::from_parts(Parts::receive(&other).unwrap()).unwrap();
            assert_eq!((queue.number(), queue.kind()), (number, kind));
            assert!(read(&mut queue, 1, round, 1).unwrap() == pattern(round, 4096));
        }
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(1, 0, 1, &[piece], 0).unwrap();
        let (error, mut queue) = *queue.into_parts().unwrap_err();
        assert_eq!(error, Error::Busy);
        assert!(finish(&mut queue).status.is_success());
    }
}

#[test]
fn memory_of_the_clients_own_is_registered_and_let_go() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let regions: Vec<_> = (0..14).map(|_| queue.register(1 << 16).unwrap()).collect();
    let more = queue.register(4096).unwrap_err().to_string();
    assert!(more.contains("15 regions"), "{more}");
    for (n, region) in (0..).zip(&regions) {
        region.write(8192, &pattern(n, 4096));
        let piece = region.piece(8192, 4096);
        queue.write((1, false), n, 1, &[piece], 0).unwrap();
        assert!(finish(&mut queue).status.is_success());
    }
    for n in 0..14 {
        assert!(read(&mut queue, 1, n, 1).unwrap() == pattern(n, 4096));
    }
    queue.unregister(&regions[3]).unwrap();
    assert!(queue.unregister(&regions[3]).is_err());
    let piece = regions[3].piece(0, 4096);
    until("the memory is let go", || {
        queue.write((1, false), 0, 1, &[piece], 0).unwrap();
        finish(&mut queue).status.is(Status::DATA_TRANSFER_ERROR)
    });
    queue.register(4096).unwrap();
}

#[test]
fn many_commands_on_a_file_all_end_and_what_is_taken_back_is_counted() {
    let stage = Stage::plain();
    let mut queue = stage.open(Kind::UserPoll, 2048).unwrap();
    let piece = queue.data().unwrap().piece(0, 4096);
    let mut last = 0;
    for token in 0..2000 {
        last = queue.read(3, token % 256, 1, &[piece], token).unwrap();
    }
    queue.cancel(last, 9999).unwrap();
    queue.submit().unwrap();
    let (mut ended, mut aborted, mut taken_back) = (0, 0, 0);
    while queue.in_flight() > 0 {
        let done = next(&mut queue);
        match done.token {
            9999 => taken_back = done.result,
            1999 if done.status.is(Status::ABORT_REQUESTED) => aborted = 1,
            _ => assert!(done.status.is_success(), "{}", done.status),
        }
        ended += 1;
    }
    assert_eq!((ended, aborted), (2001, taken_back));
}

#[test]
fn zeroing_that_waits_is_taken_back_and_what_has_begun_is_not() {
    let stage = Stage::plain();
    let mut queue = stage.poll();
    let piece = queue.data().unwrap().piece(0, 4096);
    queue.data().unwrap().write(0, &pattern(7, 4096));
    for block in [0, 200] {
        queue.write((1, false), block, 1, &[piece], 0).unwrap();
        assert!(finish(&mut queue).status.is_success());
    }
    // Each takes two turns, one after the other.
    queue.write_zeroes((1, false), 0, 129, 1).unwrap();
    let second = queue.write_zeroes((1, false), 120, 136, 2).unwrap();
    queue.cancel(second, 3).unwrap();
    queue.submit().unwrap();
    let mut ends = [None; 4];
    while queue.in_flight() > 0 {
        let done = next(&mut queue);
        ends[done.token as usize] = Some(done);
    }
    let of = |token: usize| ends[token].unwrap();
    assert!(of(1).status.is_success(), "{}", of(1).status);
    assert!(of(2).status.is(Status::ABORT_REQUESTED), "{}", of(2).status);
    assert_eq!((of(3).status.is_success(), of(3).result), (true, 1));
    assert!(read(&mut queue, 1, 0, 1).unwrap() == vec![0; 4096]);
    assert!(read(&mut queue, 1, 200, 1).unwrap() == pattern(7, 4096));
}

/// Clients come and go: who comes next is on either core.
#[test]
fn t09_queues_on_two_cores_share_namespaces() {
    let stage = Stage::new(|setup| setup.cpus = vec![None; 2]);
    for round in 0..20 {
        let mut queues = [(); 4].map(|()| stage.poll());
        let data = |n: u64| pattern(4 * round + n, 4096);
        for (n, queue) in (0..).zip(&mut queues) {
            for nsid in [1, 3] {
                write(queue, nsid, n, 0, &data(n)).unwrap();
            }
        }
        let shown = stage.queues();
        for core in ["\"thread\":0,\"leaving\"", "\"thread\":1,\"leaving\""] {
            assert_eq!(shown.matches(core).count(), 2, "{shown}");
        }
        for (n, queue) in (0..).zip(queues.iter_mut().rev()) {
            for nsid in [1, 3] {
                assert!(read(queue, nsid, n, 1).unwrap() == data(n), "{nsid} {n}");
            }
            queue.flush(None, 0).unwrap();
            assert!(finish(queue).status.is_success());
        }
        drop(queues);
        stage.until_free();
    }
}

#[test]
fn a_broker_that_stops_is_noticed() {
    let mut stage = Stage::plain();
    let mut poll = stage.poll();
    let mut irq = stage.open(Kind::UserIrq, 8).unwrap();
    assert_eq!(poll.is_alive(), Ok(()));
    stage.broker.take().unwrap().stop().unwrap();
    assert_eq!(poll.is_alive(), Err(Error::Gone));
    assert_eq!(irq.wait(LONG), Err(Error::Gone));
}

/// Text of an error with all its causes.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

/// A client that asks first and opens then may meet two servers.
#[test]
fn t32_a_queue_to_another_namespace_than_was_shown_is_refused() {
    let named = |subsystem: &str| {
        let subsystem = format!("nqn.2026-01.org.example:{subsystem}");
        let controller = 65_000;
        Some(broker::Identity {
            subsystem,
            controller,
            namespaces: vec![([1; 16], [2; 16]); 5],
        })
    };
    let mut stage = Stage::new(|config| config.identity = named("a"));
    let device = runtime::QueueDevice::open(stage.path(), 1).unwrap();
    // A queue of the device's size must fit.
    device.queue().unwrap();
    stage.replace(|config| config.identity = named("b"));
    let refused = whole(&device.queue().unwrap_err());
    assert!(refused.contains("another namespace"), "{refused}");
    stage.replace(|config| {
        config.identity = named("a");
        config.namespaces[0].blocks = 128;
    });
    let refused = whole(&device.queue().unwrap_err());
    assert!(refused.contains("another namespace"), "{refused}");
    stage.replace(|config| config.identity = named("a"));
    device.queue().unwrap();
}
