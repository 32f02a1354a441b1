//! Storage that hangs under queues: what goes on, and what is not executed late.
use crate::room::{Client, FILE, MEMORY, OTHER, USER, room};
use engine::DeviceOp;
use nvme::wire::Status;
use nvme::wire::sqe::nvm;

/// Half of the queues of a kind may wait for storage, without their clients.
#[test]
fn queues_that_storage_holds_are_bounded_and_the_refusal_names_it() {
    let (mut room, _) = room(|_| {});
    room.core.hang(true);
    for _ in 0..2 {
        let mut client = Client::open(&mut room);
        client.push(nvm::READ, 1, FILE, 0, 1);
        room.turn().unwrap();
        client.leave(&mut room);
    }
    let refused = Client::try_open(&mut room).err().unwrap();
    for part in ["2 wait for requests", "to namespace 1 (file:/"] {
        assert!(refused.contains(part), "{refused}");
    }
    room.core.hang(false);
    room.turn().unwrap();
    assert_eq!(room.queues(), 0);
    assert_eq!(room.memory_of(USER), 0);
    Client::open(&mut room);
}

#[test]
fn t10_device_that_hangs_keeps_its_own_commands_only() {
    let (mut room, disks) = room(|_| {});
    let mut client = Client::open(&mut room);
    client.data.write(0, &[7; 4096]);
    client.write(&mut room);
    room.core.hang(true);
    client.push(nvm::READ, 1, FILE, 3, 1);
    room.turn().unwrap();
    for _ in 0..20 {
        assert!(client.does(&mut room, nvm::READ, MEMORY).is_success());
    }
    // Its memory is not the device's: what that reads now goes nowhere.
    client.leave(&mut room);
    assert_eq!(room.queues(), 1);
    disks[0].discard(0, 1 << 20);
    room.core.hang(false);
    room.turn().unwrap();
    assert_eq!((room.queues(), room.memory_of(USER)), (0, 0));
}

#[test]
fn command_that_waits_is_taken_back_and_one_that_the_device_has_is_not() {
    let (mut room, _) = room(|_| {});
    let mut client = Client::open(&mut room);
    room.core.hang(true);
    for cid in [1, 2] {
        client.push(nvm::WRITE, cid, FILE, 5, 1);
    }
    room.turn().unwrap();
    client.cancel(3, 1);
    client.cancel(4, 2);
    room.turn().unwrap();
    let ended = client.reap();
    let aborted: Vec<_> = ended.iter().filter(|it| !it.1.is_success()).collect();
    assert!(
        matches!(aborted[..], [(2, status)] if status.is(Status::ABORT_REQUESTED)),
        "{ended:?}"
    );
    room.core.hang(false);
    room.turn().unwrap();
    assert!(matches!(client.reap()[..], [(1, status)] if status.is_success()));
}

/// Many wait for one another; the device has the first one.
#[test]
fn t09_writes_that_wait_are_not_executed_when_their_client_lets_go() {
    for goes in [false, true] {
        let (mut room, disks) = room(|_| {});
        let mut client = Client::open(&mut room);
        client.data.write(0, &[7; 4096]);
        room.core.hang(true);
        for cid in 0..48 {
            client.push(nvm::WRITE, cid, FILE, 5, 1);
        }
        client.push(nvm::WRITE, 50, OTHER, 5, 1);
        room.turn().unwrap();
        room.core.asked.clear();
        match goes {
            true => client.leave(&mut room),
            false => client.let_go(),
        }
        room.core.hang(false);
        for _ in 0..200 {
            room.turn().unwrap();
        }
        let writes = room.core.asked.iter();
        let writes = writes.filter(|it| matches!(it.op, DeviceOp::Write { .. }));
        assert_eq!(writes.count(), 0, "asked after it let go");
        assert_eq!(room.queues(), 0);
        // The device had the two, and had not begun them: it was asked whether it may.
        let mut byte = 1;
        disks[1].each(5 << 12, 1, |stripe, range, _| byte = stripe[range][0]);
        assert_eq!(byte, 0);
    }
}

/// Writes that the device still has of a client that died come first.
#[test]
fn t09_write_of_the_next_client_waits_for_what_is_under_way() {
    let (mut room, disks) = room(|_| {});
    let mut first = Client::open(&mut room);
    let mut second = Client::open(&mut room);
    first.data.write(0, &[1; 4096]);
    second.data.write(0, &[2; 4096]);
    room.core.hang(true);
    first.push(nvm::WRITE, 1, FILE, 5, 1);
    room.turn().unwrap();
    let asked = room.core.asked.len();
    first.leave(&mut room);
    second.push(nvm::WRITE, 1, FILE, 5, 1);
    room.turn().unwrap();
    assert_eq!(room.core.asked.len(), asked, "the device has both");
    room.core.hang(false);
    room.turn().unwrap();
    room.turn().unwrap();
    assert!(matches!(second.reap()[..], [(1, status)] if status.is_success()));
    let mut byte = 0;
    disks[0].each(5 << 12, 1, |stripe, range, _| byte = stripe[range][0]);
    assert_eq!(byte, 2);
}

#[test]
fn unreadable_block_fails_its_read_alone() {
    let (mut room, _) = room(|_| {});
    let mut client = Client::open(&mut room);
    room.core.fail(DeviceOp::Read, 1);
    let status = client.does(&mut room, nvm::READ, FILE);
    assert!(status.is(Status::UNRECOVERED_READ), "{status}");
    assert!(client.does(&mut room, nvm::READ, FILE).is_success());
}

/// 63 commands of each of three queues, and one of another queue.
#[test]
fn full_queues_let_one_another_in_each_turn() {
    let (mut room, _) = room(|_| {});
    let mut full: Vec<_> = (0..3).map(|_| Client::open(&mut room)).collect();
    let mut other = Client::open(&mut room);
    for client in &mut full {
        (0..63).for_each(|cid| client.push(nvm::READ, cid, MEMORY, 0, 1));
    }
    other.push(nvm::READ, 1, MEMORY, 0, 1);
    room.turn().unwrap();
    assert_eq!(other.reap().len(), 1);
    let each = full.iter_mut().map(|it| it.reap().len());
    assert_eq!(each.collect::<Vec<_>>(), [32; 3]);
}

#[test]
fn fua_is_the_devices_own() {
    let (mut room, _) = room(|_| {});
    let mut client = Client::open(&mut room);
    client.push_fua(1, FILE, 5);
    client.push(nvm::WRITE, 2, FILE, 6, 1);
    room.turn().unwrap();
    assert_eq!(client.reap().len(), 2);
    let all: Vec<_> = room
        .core
        .asked
        .iter()
        .map(|it| (it.op, it.offset))
        .collect();
    let want = [true, false].map(|fua| DeviceOp::Write { fua });
    assert_eq!(all, [(want[0], 5 << 12), (want[1], 6 << 12)]);
}
