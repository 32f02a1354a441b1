//! Volumes of an engine as namespaces, before engines that end, hang, refuse and lie.
use crate::common::{finish, next, pattern, read, until, write};
use crate::engine::*;
use broker::{Volume, VolumeAddress};
use queue::{Queue, Range, Status};

#[test]
fn what_is_longer_than_the_engine_takes_goes_in_pieces() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |state| {
        state.longest = 20 << 10;
        // A rest that is no block belongs to nobody.
        state.size = BYTES as u64 - 512;
        state.flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA;
    });
    let stage = stage(&engine);
    let mut queue = stage.poll();
    let blocks = queue.namespace(NSID).unwrap().blocks;
    assert_eq!(blocks, BYTES as u64 / 4096 - 1);
    let data = pattern(1, 64 << 10);
    queue.data().unwrap().write(0, &data);
    // In two parts, of which no piece keeps the bound.
    let data_memory = queue.data().unwrap();
    let pieces = [
        data_memory.piece(0, 28 << 10),
        data_memory.piece(28 << 10, 36 << 10),
    ];
    queue.write((NSID, true), 3, 16, &pieces, 0).unwrap();
    assert!(finish(&mut queue).status.is_success());
    let writes = engine.came(WRITE);
    assert_eq!(writes.len(), 4);
    assert!(
        writes.iter().all(|it| it.1 == 1 && it.3 <= 20 << 10),
        "{writes:?}"
    );
    assert_eq!(
        engine.state(|state| state.data[3 << 12..19 << 12].to_vec()),
        data
    );
    assert_eq!(read(&mut queue, NSID, 3, 16), Ok(data));
    // Zeroes that the engine doesn't offer are written, no longer than it takes.
    queue.write_zeroes((NSID, false), 3, 16, 0).unwrap();
    assert!(finish(&mut queue).status.is_success());
    assert_eq!(read(&mut queue, NSID, 3, 16), Ok(vec![0; 64 << 10]));
    let all = Range {
        slba: 0,
        blocks: 1,
        attributes: 0,
    };
    queue.deallocate(NSID, &[all], 0).unwrap();
    assert!(finish(&mut queue).status.is_success(), "it is a hint");
    assert_eq!((engine.came(TRIM), engine.came(ZEROES)), (vec![], vec![]));
}

#[test]
fn an_export_that_is_read_only_or_cannot_be_flushed_is_one_here() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |state| state.flags = HAS_FLAGS | READ_ONLY);
    let stage = stage(&engine);
    let mut queue = stage.poll();
    assert!(queue.namespace(NSID).unwrap().read_only);
    let refused = write(&mut queue, NSID, 0, 0, &[1; 4096]).unwrap_err();
    assert!(refused.is(Status::WRITE_PROTECTED), "{refused}");
    assert!(read(&mut queue, NSID, 0, 1).is_ok());
    assert!(flush(&mut queue).is_success());
    assert_eq!((engine.came(WRITE), engine.came(FLUSH)), (vec![], vec![]));
}

#[test]
fn an_engine_that_says_nonsense_is_left_and_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.poll();
    let reply = |cookie: u64| {
        let mut bytes = 0x6744_6698_u32.to_be_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(cookie.to_be_bytes());
        bytes
    };
    let lies = [
        vec![0xa5; 4096],
        reply(u64::MAX),
        reply(12345),
        vec![0; 1 << 20],
    ];
    for (round, lie) in lies.into_iter().enumerate() {
        engine.expect(&[(READ, Deed::Say(lie))]);
        let status = read(&mut queue, NSID, 0, 1).unwrap_err();
        assert!(status.is(Status::INTERNAL_PATH), "{status}");
        assert!(write(&mut queue, 1, 0, 0, &[7; 4096]).is_ok());
        until_back(&mut queue);
        assert_eq!(engine.state(|state| state.connections), round + 2);
    }
    // An export that is another one now is not used.
    engine.state(|state| {
        state.plan.push((READ, Deed::Close));
        state.size -= 4096;
    });
    assert!(read(&mut queue, NSID, 0, 1).is_err());
    until("it was tried again", || {
        assert!(read(&mut queue, NSID, 0, 1).is_err());
        engine.state(|state| state.connections) > 6
    });
    engine.state(|state| state.size += 4096);
    until_back(&mut queue);
}

/// The namespace stays as large as it was; the server goes on.
#[test]
fn an_export_that_has_grown_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.poll();
    engine.state(|state| {
        state.plan.push((READ, Deed::Close));
        state.size += 4096;
        state.data.extend([0; 4096]);
    });
    assert!(read(&mut queue, NSID, 0, 1).is_err());
    until_back(&mut queue);
    let last = BYTES as u64 / 4096 - 1;
    assert!(write(&mut queue, NSID, last, 0, &[7; 4096]).is_ok());
    assert!(read(&mut queue, NSID, last + 1, 1).is_err());
}

#[test]
fn an_engine_that_takes_nothing_more_is_left_when_it_has_answered() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.poll();
    engine.expect(&[(WRITE, Deed::Fail(ESHUTDOWN))]);
    let refused = write(&mut queue, NSID, 0, 0, &[1; 4096]).unwrap_err();
    assert!(
        refused.is(Status::INTERNAL_PATH),
        "it was not done: {refused}"
    );
    until_back(&mut queue);
    assert_eq!(engine.state(|state| state.connections), 2);
}

#[test]
fn t10_an_engine_that_hangs_keeps_its_own_commands_only() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let (mut first, mut second) = (stage.poll(), stage.poll());
    let data = pattern(2, 4096);
    engine.state(|state| state.data[..4096].copy_from_slice(&data));
    engine.expect(&[(READ, Deed::Hang)]);
    for queue in [&mut first, &mut second] {
        let piece = queue.data().unwrap().piece(4096, 4096);
        queue.read(NSID, 0, 1, &[piece], 9).unwrap();
        queue.submit().unwrap();
    }
    until("the engine hangs", || engine.state(|state| state.hangs));
    for queue in [&mut first, &mut second] {
        queue
            .read(1, 0, 1, &[queue.data().unwrap().piece(0, 4096)], 8)
            .unwrap();
        let done = finish(queue);
        assert!(done.token == 8 && done.status.is_success(), "{done:?}");
    }
    // The memory stays while the engine may write to it, and so does the place.
    drop(first);
    until("it leaves", || stage.queues().contains("leaving"));
    engine.go_on();
    let done = next(&mut second);
    assert!(done.token == 9 && done.status.is_success(), "{done:?}");
    let mut got = vec![0; 4096];
    second.data().unwrap().read(4096, &mut got);
    assert_eq!(got, data);
    drop(second);
    stage.until_free();
}

/// A client that comes back again and again to storage that hangs leaves queues for the others'
/// namespaces.
#[test]
fn queues_that_storage_holds_are_bounded_and_who_is_refused_is_told_what_hangs() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    engine.expect(&[(READ, Deed::Hang)]);
    let refused = (0..4).find_map(|_| {
        let mut queue = match stage.open(queue::Kind::UserPoll, 16) {
            Ok(queue) => queue,
            Err(error) => return Some(error.to_string()),
        };
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(NSID, 0, 1, &[piece], 9).unwrap();
        queue.submit().unwrap();
        let held = stage.queues().matches("\"leaving\":true").count();
        until("the engine is asked", || {
            engine.state(|state| state.hangs) && !stage.queues().contains("\"in_flight\":0")
        });
        drop(queue);
        until("it is held, and has had its time", || {
            let list = stage.queues();
            let old = list.matches("\"leaving_s\":").count();
            old > held && !list.contains("\"leaving_s\":0,")
        });
        None
    });
    let refused = refused.expect("half of them, and no more");
    for part in ["2 wait for requests", "namespace 6 (nbd:unix:", "v0.sock)"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(
        stage.queues().contains("\"awaits\":[6]"),
        "{}",
        stage.queues()
    );
    // Of the other kind there are all, and they do what does not hang.
    let mut other = stage.open(queue::Kind::UserIrq, 16).unwrap();
    assert!(read(&mut other, 1, 0, 1).is_ok());
    drop(other);
    engine.go_on();
    stage.until_free();
    drop(stage.poll());
    stage.until_free();
}

/// Queues that were let go of in one moment, or again and again within one, count from the first.
#[test]
fn queues_that_were_let_go_of_just_now_count_and_who_leaves_in_order_is_not_refused() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let ask = |queue: &mut Queue, nsid: u32| {
        let piece = queue.data().unwrap().piece(0, 4096);
        queue.read(nsid, 0, 1, &[piece], 9).unwrap();
        queue.submit().unwrap();
    };
    // A file that is well.
    for _ in 0..200 {
        let mut queues = [(); 2].map(|()| stage.open(queue::Kind::UserPoll, 16));
        for queue in &mut queues {
            match queue {
                Ok(queue) => ask(queue, 3),
                // A request that is answered at once waits; one that takes a second is no order.
                Err(error) => assert!(!error.to_string().contains("for 0 s"), "{error}"),
            }
        }
    }
    stage.until_free();
    engine.expect(&[(READ, Deed::Hang)]);
    let mut queues = [(); 2].map(|()| stage.poll());
    queues.iter_mut().for_each(|queue| ask(queue, NSID));
    until("the engine is asked", || {
        engine.state(|state| state.hangs) && !stage.queues().contains("\"in_flight\":0")
    });
    drop(queues);
    let leaving = || stage.queues().matches("\"leaving\":true").count();
    until("both leave", || leaving() == 2);
    let refused = stage.open(queue::Kind::UserPoll, 16).unwrap_err();
    assert!(refused.to_string().contains("2 wait for"), "{refused}");
    engine.go_on();
}

#[test]
fn t09_of_the_writes_that_wait_for_an_engine_few_go_out_when_their_client_has_let_go() {
    const WRITES: usize = 48;
    const LEN: u32 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.open(queue::Kind::UserPoll, 64).unwrap();
    engine.expect(&[(WRITE, Deed::Hang)]);
    let piece = queue.data().unwrap().piece(0, LEN);
    for token in 0..WRITES as u64 {
        let to = (NSID, false);
        queue.write(to, 0, LEN / 4096, &[piece], token).unwrap();
    }
    queue.submit().unwrap();
    until("the engine hangs", || engine.state(|state| state.hangs));
    let all = format!("\"in_flight\":{WRITES}");
    until("all are with the broker", || stage.queues().contains(&all));
    // Time for what would be wrong: that all of them are said to the engine's socket.
    (0..100).for_each(|_| drop(stage.queues()));
    drop(queue);
    engine.go_on();
    stage.until_free();
    // Bytes that the kernel has, those on their way, and the one that made it full.
    let came = engine.came(WRITE).len();
    assert!((1..=8).contains(&came), "{came}");
}

#[test]
fn who_is_no_export_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let old = b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53".to_vec();
    for (greeting, why) in [
        (b"SSH-2.0-OpenSSH_9.2 and more\r\n".to_vec(), "protocol"),
        (old, "oldstyle"),
    ] {
        engine.state(|state| state.greeting = Some(greeting));
        let error = engine.connect().unwrap_err();
        assert!(error.contains(why), "{error}");
    }
    let nowhere = VolumeAddress::Unix(directory.path().join("nowhere"));
    let error = Volume::connect(nowhere, String::new()).unwrap_err();
    assert!(error.contains("start the engine first"), "{error}");
}

/// As qemu-nbd answers: without DF each read of the block would end the connection, and with it all
/// that is under way.
#[test]
fn unreadable_block_fails_its_read_alone() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |state| {
        state.flags |= SEND_DF;
        state.unreadable = Some(5 << 12);
    });
    let stage = stage(&engine);
    let mut queue = stage.poll();
    let data = pattern(3, 16 << 10);
    write(&mut queue, NSID, 0, 0, &data).unwrap();
    for _ in 0..3 {
        let failed = read(&mut queue, NSID, 4, 4).unwrap_err();
        assert!(
            !failed.is(Status::INTERNAL_PATH),
            "no path was lost: {failed}"
        );
        assert_eq!(read(&mut queue, NSID, 0, 4), Ok(data.clone()));
    }
    let reads = engine.came(READ);
    assert!(reads.iter().all(|it| it.1 == DF), "{reads:?}");
    assert_eq!(engine.state(|state| state.connections), 1);
}

/// Servers differ in what they do with requests that are under way when DISC comes: it is sent when
/// none is.
#[test]
fn connection_ends_with_disc_when_nothing_is_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut queue = stage.poll();
    for block in 0..8 {
        write(&mut queue, NSID, block, 0, &[7; 4096]).unwrap();
    }
    drop(queue);
    drop(stage);
    let came = engine.state(|state| state.came.clone());
    let at = came.iter().position(|it| it.0 == DISC);
    assert_eq!(at, Some(came.len() - 1), "{came:?}");
    assert!(engine.came(WRITE).len() == 8 && engine.came(DISC).len() == 1);
    // A client that only looked at the export leaves in order, too.
    drop(engine.connect().unwrap());
    until("the second one said so", || engine.came(DISC).len() == 2);
}
