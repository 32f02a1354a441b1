//! Reports of writes that may be lost, to the queues that were open (T13).
use crate::room::{Client, FILE, OTHER, room};
use engine::DeviceOp;
use nvme::wire::Status;
use nvme::wire::sqe::{NSID_ALL, nvm};

/// Whichever of them wrote: an application may flush by another queue than it writes by.
#[test]
fn t13_flush_that_fails_is_told_to_every_open_queue_once() {
    let (mut room, _) = room(|_| {});
    let [mut first, mut second, mut third] = std::array::from_fn(|_| Client::open(&mut room));
    first.write(&mut room);
    room.core.fail(DeviceOp::Flush, 1);
    assert!(second.flush(&mut room).is(Status::WRITE_FAULT));
    let mut later = Client::open(&mut room);
    assert!(later.flush(&mut room).is_success(), "one has heard before");
    for client in [&mut first, &mut third] {
        assert!(client.flush(&mut room).is(Status::WRITE_FAULT));
    }
    for client in [&mut first, &mut second, &mut third] {
        assert!(client.flush(&mut room).is_success());
    }
}

#[test]
fn t13_flush_of_all_fails_if_one_device_cannot_be_flushed() {
    let (mut room, _) = room(|_| {});
    let mut client = Client::open(&mut room);
    client.write(&mut room);
    assert!(client.does(&mut room, nvm::WRITE, OTHER).is_success());
    room.core.fail(DeviceOp::Flush, 1);
    assert!(
        client
            .does(&mut room, nvm::FLUSH, NSID_ALL)
            .is(Status::WRITE_FAULT)
    );
    assert!(client.does(&mut room, nvm::FLUSH, NSID_ALL).is_success());
}

/// It fails behind the end of its queue.
#[test]
fn t13_flush_that_fails_unheard_fails_the_next() {
    let (mut room, _) = room(|_| {});
    let mut first = Client::open(&mut room);
    let mut second = Client::open(&mut room);
    first.write(&mut room);
    room.core.hang(true);
    first.push(nvm::FLUSH, 1, FILE, 0, 0);
    room.turn().unwrap();
    first.leave(&mut room);
    room.core.fail(DeviceOp::Flush, 1);
    room.core.hang(false);
    room.turn().unwrap();
    assert_eq!(room.queues(), 1);
    assert!(second.flush(&mut room).is(Status::WRITE_FAULT));
    assert!(second.flush(&mut room).is_success(), "once");
}

/// The user that stops the server is the last that can be told.
#[test]
fn t13_who_stops_the_server_is_told_of_a_flush_that_fails_then() {
    for (fails, is_told) in [(0, false), (1, false), (2, true)] {
        let (mut room, _) = room(|_| {});
        let [mut first, mut second] = std::array::from_fn(|_| Client::open(&mut room));
        for client in [&mut first, &mut second] {
            client.write(&mut room);
        }
        room.core.fail(DeviceOp::Flush, fails);
        if fails > 0 {
            assert!(second.flush(&mut room).is(Status::WRITE_FAULT));
        }
        room.core.fail(DeviceOp::Flush, fails.saturating_sub(1));
        let lost = room.stop();
        assert_eq!(lost.len(), usize::from(is_told), "{lost:?}");
        let names = lost.iter().all(|it| it.contains("namespace 1 (file:/"));
        assert!(names, "{lost:?}");
    }
}
