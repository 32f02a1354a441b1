//! Reports to a volume's users of writes that may be lost with their engine (T13).
use crate::common::{Stage, finish, next, read, until, write};
use crate::engine::*;
use queue::{Queue, Range, Status};

#[test]
fn t13_a_flush_that_fails_is_told_to_every_queue_that_wrote_once() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    // On two threads; the third wrote nothing.
    let (mut first, mut second, mut third) = (stage.poll(), stage.poll(), stage.poll());
    for queue in [&mut first, &mut second] {
        write(queue, NSID, 1, 0, &[1; 4096]).unwrap();
    }
    engine.expect(&[(FLUSH, Deed::Fail(EIO))]);
    assert!(flush(&mut first).is(Status::WRITE_FAULT));
    assert!(flush(&mut third).is_success());
    assert!(
        flush(&mut second).is(Status::WRITE_FAULT),
        "it was told the first only"
    );
    for queue in [&mut first, &mut second, &mut third] {
        assert!(flush(queue).is_success());
    }
    // An engine that offers flushes and then has none does not make anything durable.
    engine.expect(&[(FLUSH, Deed::Fail(ENOTSUP))]);
    assert!(!flush(&mut first).is_success());
}

#[test]
fn t09_t13_a_connection_that_ends_leaves_writes_in_doubt_and_tells_the_next_flush() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let (mut first, mut second) = (stage.poll(), stage.poll());
    for command in [READ, WRITE, ZEROES, TRIM, FLUSH] {
        for queue in [&mut first, &mut second] {
            write(queue, NSID, 1, 0, &[1; 4096]).unwrap();
        }
        engine.expect(&[(command, Deed::Close)]);
        let all = Range {
            slba: 0,
            blocks: 1,
            attributes: 0,
        };
        let piece = first.data().unwrap().piece(0, 4096);
        let _ = match command {
            READ => first.read(NSID, 0, 1, &[piece], 0).unwrap(),
            WRITE => first.write((NSID, false), 0, 1, &[piece], 0).unwrap(),
            ZEROES => first.write_zeroes((NSID, false), 0, 1, 0).unwrap(),
            TRIM => first.deallocate(NSID, &[all], 0).unwrap(),
            _ => first.flush(Some(NSID), 0).unwrap(),
        };
        let status = finish(&mut first).status;
        let wanted = match command {
            READ | FLUSH => Status::INTERNAL_PATH,
            // No client may take it for undone and send it another way.
            _ => Status::WRITE_FAULT,
        };
        assert!(status.is(wanted), "{command}: {status}");
        until_back(&mut first);
        for queue in [&mut first, &mut second] {
            assert!(flush(queue).is(Status::WRITE_FAULT), "{command}");
            assert!(flush(queue).is_success(), "{command}: once");
        }
    }
    // Others never noticed, and the same bytes went out once each.
    assert!(read(&mut first, 1, 0, 1).is_ok());
    assert_eq!(engine.came(WRITE).len(), 2 * 5 + 1);
    // All is durable by now.
    lose(&engine, &mut first);
    for queue in [&mut first, &mut second] {
        assert!(flush(queue).is_success());
    }
}

/// Waits until so many queues are there.
fn until_left(stage: &Stage, count: usize) {
    until("a queue is gone", || {
        stage.queues().matches("\"number\":").count() == count
    });
}

/// The engine ends, and is there again.
fn lose(engine: &Engine, queue: &mut Queue) {
    engine.expect(&[(READ, Deed::Close)]);
    assert!(read(queue, NSID, 0, 1).is_err());
    until_back(queue);
}

/// Each queue has a thread of its own.
#[test]
fn t13_what_a_queue_that_has_gone_was_not_told_is_told_on_whichever_thread() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut second = {
        let mut first = stage.poll();
        let mut second = stage.poll();
        write(&mut first, NSID, 1, 0, &[1; 4096]).unwrap();
        lose(&engine, &mut second);
        second
    };
    until_left(&stage, 1);
    assert!(flush(&mut second).is(Status::WRITE_FAULT));
    assert!(flush(&mut second).is_success(), "once");

    // A flush that fails behind the end of its queue.
    let mut first = stage.poll();
    engine.expect(&[(READ, Deed::Hang), (FLUSH, Deed::Fail(EIO))]);
    let piece = second.data().unwrap().piece(0, 4096);
    second.read(NSID, 0, 1, &[piece], 0).unwrap();
    second.submit().unwrap();
    until("the engine hangs", || engine.state(|state| state.hangs));
    first.flush(Some(NSID), 0).unwrap();
    first.submit().unwrap();
    until("both are with the broker", || {
        stage.queues().matches("\"in_flight\":1").count() == 2
    });
    drop(first);
    until("it leaves", || stage.queues().contains("\"leaving\":true"));
    engine.go_on();
    assert!(next(&mut second).status.is_success());
    until_left(&stage, 1);
    assert!(flush(&mut second).is(Status::WRITE_FAULT));
    assert!(flush(&mut second).is_success(), "once");
}

#[test]
fn t13_what_a_queue_that_has_gone_never_flushed_and_is_lost_then_the_next_flush_tells() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut second = stage.poll();
    for (flushes, fua) in [(true, false), (false, true), (false, false)] {
        let mut first = stage.poll();
        let piece = first.data().unwrap().piece(0, 4096);
        first.write((NSID, fua), 1, 1, &[piece], 0).unwrap();
        assert!(finish(&mut first).status.is_success());
        if flushes {
            assert!(flush(&mut first).is_success());
        }
        drop(first);
        until_left(&stage, 1);
        lose(&engine, &mut second);
        let told = flush(&mut second);
        if flushes || fua {
            assert!(told.is_success(), "all is durable: {told}");
        } else {
            assert!(told.is(Status::WRITE_FAULT), "{told}");
        }
        assert!(flush(&mut second).is_success(), "once");
    }
}

#[test]
fn t13_what_a_queue_that_has_gone_never_flushed_another_ones_flush_makes_durable() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(&directory, |_| {});
    let stage = stage(&engine);
    let mut second = stage.poll();
    write(&mut stage.poll(), NSID, 1, 0, &[1; 4096]).unwrap();
    until_left(&stage, 1);
    assert!(flush(&mut second).is_success());
    lose(&engine, &mut second);
    let told = flush(&mut second);
    assert!(told.is_success(), "all was durable: {told}");

    // One that had begun before it went may not be for all that it wrote.
    let mut first = stage.poll();
    write(&mut first, NSID, 1, 0, &[1; 4096]).unwrap();
    engine.expect(&[(FLUSH, Deed::Hang)]);
    second.flush(Some(NSID), 0).unwrap();
    second.submit().unwrap();
    until("the engine hangs", || engine.state(|state| state.hangs));
    drop(first);
    until_left(&stage, 1);
    engine.go_on();
    assert!(next(&mut second).status.is_success());
    lose(&engine, &mut second);
    assert!(flush(&mut second).is(Status::WRITE_FAULT));
    assert!(flush(&mut second).is_success(), "once");
}

/// The user that stops the server is the last that can be told.
#[test]
fn t13_what_no_queue_was_told_who_stops_the_server_is_and_nothing_else() {
    for (flushes, goes, told) in [
        (false, true, true),
        (false, false, true),
        (true, true, false),
        (true, false, false),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::start(&directory, |_| {});
        let mut stage = stage(&engine);
        let (mut first, mut second) = (stage.poll(), stage.poll());
        write(&mut first, NSID, 1, 0, &[1; 4096]).unwrap();
        if flushes {
            assert!(flush(&mut first).is_success());
        }
        if goes {
            drop(first);
            until_left(&stage, 1);
            lose(&engine, &mut second);
        } else {
            // It is still there when the server stops.
            lose(&engine, &mut first);
        }
        let ended = stage.broker.take().unwrap().stop();
        let words = ended.as_ref().err().map_or("", String::as_str);
        assert_eq!(ended.is_err(), told, "{flushes} {goes}: {words}");
        assert_eq!(
            words.contains("written to namespace 6 (nbd:unix:"),
            told,
            "{words}"
        );
    }
}
