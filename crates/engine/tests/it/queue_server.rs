//! The queue server by itself: order and withdrawal of commands, memory, losses.
use crate::common::{Address, BLOCK, HOST, MS, SECOND};
use crate::matrix::queue::QueueClient;
use crate::matrix::stage::{Op, at, pattern};
use crate::nvme_server::rig::{Below, CLIENT, QUEUE, QUEUE_NAMESPACE, Rig, Setup, volume};
use engine::export::ExportEvent;
use engine::limits::CLIENT_ERRORS_MAX;
use engine::machine::DeviceError;
use nvme::wire::Status;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Another queue, whose client has not let go of it.
const OTHER: u32 = 1;

/// A queue beside [`QUEUE`], and whether its client has let go of it.
fn rig(below: Below) -> (Rig, QueueClient, Arc<AtomicBool>) {
    let rig = Rig::ready(Setup::over(below));
    let has_let_go = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&has_let_go);
    let mut core = rig.core.borrow_mut();
    let door = Box::new(move || flag.load(Ordering::Relaxed));
    core.open_queue(OTHER, "another".into(), door);
    drop(core);
    (rig, QueueClient::default(), has_let_go)
}

/// Two writes of one block: the second one waits for the first.
fn overlapping(rig: &mut Rig, client: &mut QueueClient) {
    rig.slow(50 * MS);
    for (number, queue) in [(0, QUEUE), (1, OTHER)] {
        let data = pattern(3, 1, number.into());
        client.start_on(rig, queue, number, (Op::Write, (at(3), BLOCK), &data));
    }
    rig.pass(10 * MS);
    client.exchange(rig);
    assert!(!client.has_ended(0) && !client.has_ended(1));
}

/// Both have ended, and the block is that of the first.
fn assert_first_alone(rig: &mut Rig, client: &mut QueueClient, second: Status) {
    rig.pass(SECOND);
    client.exchange(rig);
    assert_eq!(client.end(0), Ok(Vec::new()));
    let status = client.end(1).unwrap_err();
    assert!(status.is(second), "{status}");
    let bytes = rig.disks[0].bytes.borrow();
    let range = at(3) as usize..at(4) as usize;
    assert!(bytes[range] == pattern(3, 1, 0), "the second was executed");
}

#[test]
fn t09_queue_that_was_let_go_begins_no_change() {
    let (mut rig, mut client, has_let_go) = rig(Below::Local);
    overlapping(&mut rig, &mut client);
    has_let_go.store(true, Ordering::Relaxed);
    assert_first_alone(&mut rig, &mut client, Status::SQ_DELETION);
    client.start_on(&mut rig, OTHER, 2, (Op::Read, (at(3), BLOCK), &[]));
    rig.pass(SECOND);
    client.exchange(&mut rig);
    assert!(client.end(2).is_ok(), "a read changes nothing");
}

#[test]
fn cancel_takes_back_commands_that_no_device_has() {
    let (mut rig, mut client, _) = rig(Below::Local);
    overlapping(&mut rig, &mut client);
    let cancel = |queue, cid| rig.core.borrow_mut().cancel_queue_commands(queue, cid);
    assert_eq!(cancel(QUEUE, None), 0, "the device has it");
    assert_eq!(cancel(OTHER, Some(7)), 0, "there is no such command");
    assert_eq!(cancel(OTHER, Some(1)), 1);
    assert_eq!(cancel(OTHER, None), 0, "once");
    assert_first_alone(&mut rig, &mut client, Status::ABORT_REQUESTED);
}

#[test]
fn removed_namespace_ends_commands_that_wait() {
    let (mut rig, mut client, _) = rig(Below::Local);
    overlapping(&mut rig, &mut client);
    rig.core
        .borrow_mut()
        .queues()
        .remove_namespace(QUEUE_NAMESPACE);
    assert_first_alone(&mut rig, &mut client, Status::INVALID_NAMESPACE);
}

/// One namespace has half of the memory; its commands wait for one another.
#[test]
fn commands_wait_for_memory_and_all_end() {
    let (mut rig, mut client, _) = rig(Below::Local);
    rig.slow(50 * MS);
    let (bytes, data) = (256 * BLOCK, pattern(0, 256, 1));
    for number in 0..5 {
        client.start(&mut rig, number, Op::Write, (0, bytes), &data);
    }
    let is_short = |rig: &Rig, queue| rig.core.borrow_mut().queues().is_short_of_memory(queue);
    assert!(is_short(&rig, QUEUE) && !is_short(&rig, OTHER));
    assert!(rig.used() <= 2 << 20, "{}", rig.used());
    for _ in 0..100 {
        rig.pass(10 * MS);
        client.exchange(&mut rig);
    }
    for number in 0..5 {
        assert_eq!(client.end(number), Ok(Vec::new()), "{number}");
    }
    assert!(!is_short(&rig, QUEUE));
    assert_eq!(rig.used(), 0);
}

/// The other one has room, though commands of the first wait.
#[test]
fn namespace_that_has_its_half_is_not_in_the_way_of_another() {
    let (mut rig, mut client, _) = rig(Below::Local);
    let other = QUEUE_NAMESPACE + 1;
    let mut core = rig.core.borrow_mut();
    core.queues().add_namespace(other, volume(Below::Local));
    drop(core);
    rig.slow(50 * MS);
    let (bytes, data) = (256 * BLOCK, pattern(0, 256, 1));
    for number in 0..2 {
        client.start(&mut rig, number, Op::Write, (0, bytes), &data);
    }
    client.namespace = other;
    client.start_on(&mut rig, OTHER, 2, (Op::Read, (0, BLOCK), &[]));
    for _ in 0..60 {
        rig.pass(MS);
        client.exchange(&mut rig);
    }
    assert!(client.has_ended(0) && !client.has_ended(1));
    assert!(client.has_ended(2), "it waited for the other namespace");
}

/// Its payload was not copied yet.
#[test]
fn cancel_takes_back_commands_that_wait_for_memory() {
    let (mut rig, mut client, _) = rig(Below::Local);
    rig.slow(50 * MS);
    let (bytes, data) = (256 * BLOCK, pattern(0, 256, 1));
    for number in 0..5 {
        client.start(&mut rig, number, Op::Write, (0, bytes), &data);
    }
    let taken = rig.core.borrow_mut().cancel_queue_commands(QUEUE, None);
    assert!((3..5).contains(&taken), "{taken}");
    rig.pass(SECOND);
    client.exchange(&mut rig);
    let ended = (0..5).filter(|number| client.end(*number).is_ok());
    assert_eq!(ended.count() as u32, 5 - taken);
    assert_eq!(rig.used(), 0);
}

#[test]
fn write_whose_payload_is_lost_writes_nothing() {
    let (mut rig, mut client, _) = rig(Below::Local);
    rig.slow(50 * MS);
    let (bytes, data) = (256 * BLOCK, pattern(0, 256, 1));
    for number in 0..5 {
        let range = (u64::from(number) * u64::from(bytes), bytes);
        client.start(&mut rig, number, Op::Write, range, &data);
    }
    client.lose(4);
    for _ in 0..100 {
        rig.pass(10 * MS);
        client.exchange(&mut rig);
    }
    for number in 0..4 {
        assert_eq!(client.end(number), Ok(Vec::new()), "{number}");
    }
    let status = client.end(4).unwrap_err();
    assert!(status.is(Status::DATA_TRANSFER_ERROR), "{status}");
    let written = rig.disks[0].bytes.borrow();
    let range = 4 * bytes as usize..5 * bytes as usize;
    assert!(written[range].iter().all(|&byte| byte == 0));
    assert_eq!(rig.used(), 0);
}

/// A namespace has the number of one that was removed, and serves another device's commands.
#[test]
fn number_of_removed_namespace_serves_again() {
    let (mut rig, mut client, _) = rig(Below::Local);
    overlapping(&mut rig, &mut client);
    let mut core = rig.core.borrow_mut();
    core.queues().remove_namespace(QUEUE_NAMESPACE);
    core.queues()
        .add_namespace(QUEUE_NAMESPACE, volume(Below::Local));
    drop(core);
    rig.slow(0);
    let data = pattern(7, 1, 1);
    client.start_on(&mut rig, OTHER, 2, (Op::Write, (at(7), BLOCK), &data));
    rig.pass(SECOND);
    client.exchange(&mut rig);
    assert_eq!(client.end(2), Ok(Vec::new()));
    assert_eq!(rig.used(), 0);
    let mut counters = rig.core.borrow().queue_counters().collect::<Vec<_>>();
    counters.retain(|it| it.0 == QUEUE_NAMESPACE);
    assert_eq!(counters.len(), 1);
}

/// Two queues, of which the first one writes, and what flushes of these queues and of one that is
/// opened later tell when a path with unflushed writes is given up.
#[test]
fn t13_each_queue_that_was_open_hears_of_a_loss_once() {
    let mut setup = Setup::over(Below::Paths);
    setup.core.volumes[0].recovery.flush_timeout_ns = 500 * MS;
    let mut rig = Rig::ready(setup);
    let open = |rig: &Rig, queue| {
        let mut core = rig.core.borrow_mut();
        core.open_queue(queue, "another".into(), Box::new(|| false));
    };
    open(&rig, OTHER);
    let mut client = QueueClient::default();
    // Each path's controller gets an unflushed write.
    for number in 0..2 {
        let block = number.into();
        let write = (Op::Write, (at(block), BLOCK), &pattern(block, 1, 1)[..]);
        client.start_on(&mut rig, QUEUE, number, write);
        rig.pass(100 * MS);
        client.exchange(&mut rig);
        assert_eq!(client.end(number), Ok(Vec::new()));
    }
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.pass(10 * MS);
    let mut flush = |rig: &mut Rig, queue| {
        client.start_on(rig, queue, 9, (Op::Flush, (0, 0), &[]));
        rig.pass(5 * SECOND);
        client.exchange(rig);
        client.end(9)
    };
    for queue in [OTHER, QUEUE] {
        let status = flush(&mut rig, queue).unwrap_err();
        assert!(status.is(Status::WRITE_FAULT), "{queue}: {status}");
        assert!(flush(&mut rig, queue).is_ok(), "once");
    }
    open(&rig, OTHER + 1);
    assert!(flush(&mut rig, OTHER + 1).is_ok(), "it came later");
}

/// A storm of errors has few lines, and the count of the rest comes by itself.
#[test]
fn errors_of_queues_are_described_and_a_storm_is_counted() {
    let mut rig = Rig::ready(Setup::over(Below::Paths));
    rig.fail(DeviceError::Os(5));
    let mut client = QueueClient::default();
    for number in 0..CLIENT_ERRORS_MAX as u16 + 6 {
        let write = (Op::Write, (at(2), BLOCK), &pattern(2, 1, 1)[..]);
        client.start_on(&mut rig, QUEUE, number, write);
        rig.pass(100 * MS);
        client.exchange(&mut rig);
        assert!(client.end(number).is_err());
    }
    let described = rig.described();
    assert_eq!(described.len() as u32, CLIENT_ERRORS_MAX);
    let first = &described[0];
    assert_eq!((&*first.client, first.op), (CLIENT, "write"));
    assert_eq!((first.offset, first.length), (at(2), BLOCK.into()));
    assert_eq!(*first.error, *Status::WRITE_FAULT.to_string());
    assert!(first.path.is_some());
    let rest = |rig: &Rig| {
        let mut events = rig.events.iter();
        events.any(|event| matches!(event, ExportEvent::MoreErrors(_, 6)))
    };
    assert!(!rest(&rig), "the period is not over");
    rig.until(11 * SECOND, rest);
    // One whose client is gone has nobody to be told of it.
    client.start_on(&mut rig, QUEUE, 99, (Op::Read, (at(2), BLOCK), &[]));
    rig.core.borrow_mut().shut_queue(QUEUE);
    rig.pass(SECOND);
    client.exchange(&mut rig);
    assert!(client.end(99).is_err());
    assert_eq!(rig.described().len(), described.len());
}
