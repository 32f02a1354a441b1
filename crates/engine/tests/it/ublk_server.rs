//! The ublk server by itself: requests that it refuses, losses, and its end.
use crate::common::{Address, BLOCK, HOST, MS, SECOND};
use crate::matrix::stage::{Op, at, pattern};
use crate::matrix::ublk::UblkClient;
use crate::nvme_server::rig::{Below, NODE, Rig, Setup, UBLK_QUEUE, volume};
use engine::export::ExportControl;
use engine::limits::BUFFER_MAX;
use engine::machine::DeviceError;
use engine::{UblkOp, UblkRequest};

const EIO: i32 = -5;
/// A queue beside [`UBLK_QUEUE`].
const OTHER: u32 = UBLK_QUEUE + 1;

#[test]
fn requests_that_no_node_has_are_not_begun() {
    let rig = Rig::ready(Setup::over(Below::File));
    let request = |op, bytes| UblkRequest {
        queue: UBLK_QUEUE,
        tag: 0,
        op,
        offset: 0,
        bytes,
    };
    let most = u64::from(BUFFER_MAX);
    for (op, bytes) in [
        (UblkOp::Read, most + 1),
        (UblkOp::Write { fua: false }, most + 4096),
        (UblkOp::Read, 0),
        (UblkOp::Discard, 0),
    ] {
        let mut core = rig.core.borrow_mut();
        assert!(!core.begin_ublk_request(request(op, bytes), 0), "{op:?}");
    }
    assert_eq!(rig.used(), 0);
}

/// A request past the end of the device, which has shrunk, is an error that passes the driver.
#[test]
fn request_past_the_end_is_an_error() {
    let mut rig = Rig::ready(Setup::over(Below::File));
    let mut client = UblkClient::default();
    for (tag, op) in (0..).zip([Op::Read, Op::Write, Op::Zeroes]) {
        let data = pattern(0, 1, 1);
        client.start(&mut rig, tag, op, (1 << 50, BLOCK), &data);
        rig.pass(SECOND);
        client.exchange(&mut rig);
        assert_eq!(client.end(tag), Err(EIO), "{op:?}");
    }
    assert_eq!(rig.used(), 0);
}

#[test]
fn errors_of_nodes_are_described() {
    let mut rig = Rig::ready(Setup::over(Below::Paths));
    rig.fail(DeviceError::Full);
    let mut client = UblkClient::default();
    let write = (Op::Write, (at(2), BLOCK));
    client.start(&mut rig, 0, write.0, write.1, &pattern(2, 1, 1));
    rig.pass(SECOND);
    client.exchange(&mut rig);
    assert!(client.end(0).is_err());
    let described = rig.described();
    let [error] = &described[..] else {
        panic!("one write has failed: {described:?}");
    };
    assert_eq!((&*error.client, error.op), (NODE, "write"));
    assert_eq!((error.offset, error.length), (at(2), BLOCK.into()));
    assert_eq!(&*error.error, "no space left (ENOSPC)");
    assert!(error.path.is_some());
}

/// Of a node with several queues each one hears of a loss, also where it wrote nothing itself: the
/// writes of the others are flushed there too.
#[test]
fn t13_each_queue_of_a_node_hears_of_a_loss_once() {
    let mut setup = Setup::over(Below::Paths);
    setup.core.volumes[0].recovery.flush_timeout_ns = 500 * MS;
    let mut rig = Rig::ready(setup);
    let of = volume(Below::Paths);
    rig.core.borrow_mut().open_ublk_queue(OTHER, of, NODE);
    let mut client = UblkClient::default();
    for tag in [0, 1] {
        let block = tag.into();
        let data = pattern(block, 1, 1);
        client.start(&mut rig, tag, Op::Write, (at(block), BLOCK), &data);
        rig.pass(100 * MS);
        client.exchange(&mut rig);
        assert_eq!(client.end(tag), Ok(Vec::new()));
    }
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.pass(10 * MS);
    let mut flush = |queue| {
        client.start_on(&mut rig, queue, 9, (Op::Flush, (0, 0), &[]));
        rig.pass(5 * SECOND);
        client.exchange(&mut rig);
        client.end(9)
    };
    for queue in [UBLK_QUEUE, OTHER] {
        assert_eq!(flush(queue), Err(EIO));
        assert_eq!(flush(queue), Ok(Vec::new()), "once");
    }
}

/// The next engine gets them again: an error would reach the file system.
#[test]
fn requests_that_a_stop_ends_are_left() {
    let mut setup = Setup::over(Below::Paths);
    setup.core.io_timeout_ns = 300 * SECOND;
    let mut rig = Rig::ready(setup);
    let mut client = UblkClient::default();
    let write = (at(1), BLOCK);
    client.start(&mut rig, 0, Op::Write, write, &pattern(1, 1, 1));
    rig.pass(SECOND);
    client.exchange(&mut rig);
    assert_eq!(client.end(0), Ok(Vec::new()));
    for path in [0, 1] {
        rig.world.nodes[HOST].addresses[path] = Address::Refused;
        rig.world.cut(HOST, path as u32);
    }
    client.start(&mut rig, 1, Op::Write, write, &pattern(1, 1, 2));
    rig.control(ExportControl::Stop(SECOND));
    rig.until(60 * SECOND, |rig| rig.world.nodes[HOST].stopped);
    client.exchange(&mut rig);
    assert_eq!(client.take(1).0, None);
    assert_eq!(rig.described(), [], "the driver hears of nothing");
    assert_eq!(rig.used(), 0);
}
