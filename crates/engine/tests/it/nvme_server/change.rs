//! Servers, their namespaces and their ports come and go while hosts are connected.
use super::by_hand::{hand, hand_over};
use super::rig::local;
use crate::target_hand::*;
use engine::export::{ExportControl, ExportEvent};
use engine::host::PathKind;
use engine::{Core, DeviceOp, NvmeConfig, NvmeControl};
use nvme::controller::{NamespaceConfig, PortConfig};
use nvme::wire::features::{AsyncEvent, events};
use nvme::wire::identify::{cns, nsids};
use nvme::wire::sqe::{Sgl, admin, nvm};
use nvme::wire::{SqeBuilder, Status};

fn change(hand: &mut Hand<Core>, change: NvmeControl) {
    hand.control(ExportControl::Nvme(0, change));
}

fn add(hand: &mut Hand<Core>, nsid: u32, volume: u16) {
    let config: Box<NamespaceConfig> = Box::new(namespace(nsid));
    change(hand, NvmeControl::AddNamespace(config, volume));
}

/// Sends a Deallocate of two ranges, each a request of the device.
fn deallocate(hand: &mut Hand<Core>, conn: u32) -> u16 {
    let range = |slba: u64| [&[0; 4][..], &1u32.to_le_bytes(), &slba.to_le_bytes()].concat();
    let sqe = SqeBuilder::new(nvm::DATASET_MANAGEMENT).nsid(1).cdw(10, 1);
    let sqe = sqe.cdw(11, nvm::DSM_DEALLOCATE);
    let sqe = sqe.sgl(Sgl::InCapsule { offset: 0, len: 32 });
    hand.send(conn, sqe, &[range(8), range(16)].concat())
}

fn status(hand: &mut Hand<Core>, conn: u32) -> Status {
    let [(_, _, status)] = hand.done(conn)[..] else {
        panic!("not one completion")
    };
    status
}

/// NSIDs that a host is told of.
fn active(hand: &mut Hand<Core>, conn: u32) -> Vec<u32> {
    nsids(&identify(hand, conn, cns::ACTIVE_NAMESPACES, 0)).collect()
}

fn identify(hand: &mut Hand<Core>, conn: u32, cns: u8, nsid: u32) -> Vec<u8> {
    let sqe = SqeBuilder::new(admin::IDENTIFY).nsid(nsid);
    let sqe = sqe.cdw(10, cns.into()).sgl(Sgl::Transport { len: 4096 });
    hand.send(conn, sqe, &[]);
    let got = hand.take(conn);
    let Some((_, Got::Data { bytes, .. })) = got.first() else {
        panic!("{got:?}")
    };
    bytes.clone()
}

/// Hosts that use volume 0.
fn hosts(hand: &Hand<Core>) -> Option<u32> {
    let mut all = hand.target.hosts();
    all.find(|it| it.0 == 0).map(|it| it.1)
}

fn has_ended(hand: &mut Hand<Core>) -> bool {
    let events = std::iter::from_fn(|| hand.target.poll_event());
    events
        .filter(|it| matches!(it, ExportEvent::Ended(0)))
        .count()
        == 1
}

#[test]
fn removed_namespace_ends_what_came_before_and_nothing_else() {
    let mut hand = hand();
    let conn = hand.queue(0, 64);
    hand.hold_device = true;
    let (first, second) = (pattern(1, 4096), pattern(2, 4096));
    // The second one waits for the first, which it overlaps.
    let ids = [hand.write(conn, 0, &first), hand.write(conn, 0, &second)];
    assert_eq!(hand.at_device.len(), 1);
    change(&mut hand, NvmeControl::RemoveNamespace(1));
    assert_eq!(hosts(&hand), Some(1), "its device has commands of it");
    hand.read(conn, 0, 1);
    let gone = status(&mut hand, conn);
    assert_eq!(gone, Status::INVALID_NAMESPACE.with_dnr());
    for id in ids {
        hand.answer_device();
        let [(_, done, status)] = hand.done(conn)[..] else {
            panic!("not one completion")
        };
        assert_eq!((done, status.is_success()), (id, true));
    }
    assert_eq!((hand.requests.len(), &hand.disk[..4096]), (2, &second[..]));
    // The same volume under another NSID, beside a command of the old one.
    add(&mut hand, 7, 0);
    assert_eq!(hosts(&hand), Some(0), "of the new one");
    let write = io(nvm::WRITE, 0, 1).nsid(7);
    let sqe = write.sgl(Sgl::InCapsule {
        offset: 0,
        len: 4096,
    });
    hand.send(conn, sqe, &first);
    hand.answer_device();
    assert!(status(&mut hand, conn).is_success());
    assert_eq!(hand.disk[..4096], first);
    assert_eq!(hand.target.buffers(), hand.target.buffers_free());
}

#[test]
fn t09_command_does_not_reach_what_has_its_nsid_afterwards() {
    let mut hand = hand_over(vec![local(0, SHIFT), local(1, SHIFT)]);
    let conn = hand.queue(0, 64);
    hand.hold_device = true;
    deallocate(&mut hand, conn);
    change(&mut hand, NvmeControl::RemoveNamespace(1));
    add(&mut hand, 1, 1);
    // The other volume has something of its own when it is no namespace any more.
    hand.write(conn, 100, &pattern(1, 4096));
    change(&mut hand, NvmeControl::RemoveNamespace(1));
    assert_eq!(hand.at_device.len(), 2);
    while !hand.at_device.is_empty() {
        hand.answer_device();
    }
    let other = hand.requests.iter().filter(|it| it.device.0 == 1);
    let other: Vec<_> = other.map(|it| (it.op, it.offset)).collect();
    assert_eq!(other, [(DeviceOp::Write { fua: false }, 100 << SHIFT)]);
    assert_eq!(hand.done(conn).len(), 2);
}

#[test]
fn removed_namespace_ends_all_steps_of_a_command() {
    let mut hand = hand();
    let conn = hand.queue(0, 64);
    hand.hold_device = true;
    deallocate(&mut hand, conn);
    change(&mut hand, NvmeControl::RemoveNamespace(1));
    hand.answer_device();
    hand.answer_device();
    assert!(status(&mut hand, conn).is_success());
    let offsets: Vec<u64> = hand.requests.iter().map(|it| it.offset).collect();
    assert_eq!(offsets, [8 << SHIFT, 16 << SHIFT]);
}

#[test]
fn device_that_can_only_be_read_stays_protected() {
    let mut paths = vec![local(0, SHIFT), local(1, SHIFT)];
    let PathKind::Device { read_only, .. } = &mut paths[1].kind else {
        panic!("no local device")
    };
    *read_only = true;
    let mut hand = hand_over(paths);
    let conn = hand.queue(0, 64);
    let (admin, _) = hand.admin(0);
    hand.hold_device = true;
    // The one before, which can be written, has a command yet.
    hand.write(conn, 0, &pattern(1, 4096));
    change(&mut hand, NvmeControl::RemoveNamespace(1));
    add(&mut hand, 1, 1);
    for read_only in [true, false] {
        change(&mut hand, NvmeControl::Protect(1, read_only));
        assert_eq!(identify(&mut hand, admin, cns::NAMESPACE, 1)[99], 1);
    }
}

#[test]
fn hosts_are_told_of_namespaces_that_come_and_go() {
    let mut hand = hand();
    let (conn, _) = hand.admin(0);
    let set = SqeBuilder::new(admin::SET_FEATURES)
        .cdw(10, 0x0b)
        .cdw(11, events::NAMESPACE_ATTRIBUTE);
    assert!(hand.ask(conn, set, &[]).status.is_success());
    let told = |hand: &mut Hand<Core>, change: &dyn Fn(&mut Hand<Core>)| {
        hand.send(conn, SqeBuilder::new(admin::ASYNC_EVENT_REQUEST), &[]);
        change(hand);
        let [(_, Got::Done(cqe))] = hand.take(conn)[..] else {
            panic!("no event")
        };
        let event = AsyncEvent::parse(cqe.result as u32);
        assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE);
        // Changed Namespace List, which arms the event again.
        let log = SqeBuilder::new(admin::GET_LOG_PAGE).nsid(u32::MAX);
        let log = log.cdw(10, 4 | 1023 << 16);
        hand.send(conn, log.sgl(Sgl::Transport { len: 4096 }), &[]);
        hand.take(conn);
    };
    assert_eq!(hosts(&hand), Some(0));
    identify(&mut hand, conn, cns::NAMESPACE, 1);
    assert_eq!(hosts(&hand), Some(1));
    told(&mut hand, &|hand| add(hand, 0x300, 0));
    assert_eq!(active(&mut hand, conn), [1, 0x300]);
    told(&mut hand, &|hand| {
        change(hand, NvmeControl::RemoveNamespace(0x300))
    });
    told(&mut hand, &|hand| {
        change(hand, NvmeControl::Protect(1, true))
    });
    assert_eq!(identify(&mut hand, conn, cns::NAMESPACE, 1)[99], 1);
    told(&mut hand, &|hand| {
        change(hand, NvmeControl::RemoveNamespace(1))
    });
    assert_eq!((active(&mut hand, conn), hosts(&hand)), (vec![], None));
}

#[test]
fn server_that_ends_answers_first_and_leaves_its_place() {
    let mut hand = hand();
    let conn = hand.queue(0, 64);
    hand.hold_device = true;
    let data = pattern(3, 4096);
    hand.write(conn, 0, &data);
    change(&mut hand, NvmeControl::End(10 * SECOND));
    hand.read(conn, 0, 1);
    assert_eq!(status(&mut hand, conn).code(), Status::INVALID_NAMESPACE);
    assert_eq!(hand.wire(conn).closed, None);
    hand.answer_device();
    assert!(status(&mut hand, conn).is_success());
    assert!(hand.accept(0).is_none());
    let conns: Vec<u32> = hand.wires.keys().copied().collect();
    for conn in conns {
        assert_eq!(hand.wire(conn).closed, Some(false));
        assert!(!has_ended(&mut hand));
        hand.finish_close(conn);
    }
    assert!(has_ended(&mut hand));
    // Another one in its place, whose volume has been ready for long.
    let config = NvmeConfig {
        subsystem: config(&[shape::Config::default()]).subsystem,
        volumes: vec![0],
    };
    change(&mut hand, NvmeControl::Serve(Box::new(config)));
    let conn = hand.queue(0, 64);
    hand.read(conn, 0, 1);
    hand.answer_device();
    let got = hand.take(conn);
    assert!(
        matches!(&got[0].1, Got::Data { bytes, .. } if *bytes == data),
        "{got:?}"
    );
}

/// Its place stays, as the device has the buffer.
#[test]
fn server_that_ends_waits_for_its_devices_but_not_its_hosts() {
    let mut hand = hand();
    let conn = hand.queue(0, 64);
    hand.hold_device = true;
    hand.write(conn, 0, &pattern(4, 4096));
    change(&mut hand, NvmeControl::End(100 * MS));
    hand.pass(99 * MS);
    assert_eq!(hand.wire(conn).closed, None);
    hand.pass(10 * MS);
    let conns: Vec<u32> = hand.wires.keys().copied().collect();
    conns.into_iter().for_each(|conn| hand.finish_close(conn));
    hand.pass(100 * MS);
    assert!(!has_ended(&mut hand));
    hand.answer_device();
    assert!(has_ended(&mut hand));
    assert_eq!(hand.disk[..4096], pattern(4, 4096));
}

#[test]
fn port_that_goes_closes_its_connections_and_no_others() {
    let mut hand = hand();
    let first = hand.queue(0, 64);
    let port = |id: u16| PortConfig {
        id,
        ..config(&[shape::Config::default()]).subsystem.ports[0].clone()
    };
    change(&mut hand, NvmeControl::SetPort(1, port(2)));
    let second = hand.queue(1, 64);
    change(&mut hand, NvmeControl::WithdrawPort(0));
    let gone = (hand.wire(first).closed, hand.wire(second).closed);
    assert_eq!(gone, (Some(false), None));
    hand.write(second, 0, &pattern(5, 4096));
    assert!(status(&mut hand, second).is_success());
    change(&mut hand, NvmeControl::SetPort(0, port(1)));
    let again = hand.queue(0, 64);
    hand.read(again, 0, 1);
    let got = hand.take(again);
    assert!(matches!(&got[0].1, Got::Data { bytes, .. } if *bytes == pattern(5, 4096)));
}
