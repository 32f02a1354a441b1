//! Asynchronous events and Abort (T12, T30).
use super::admin::log;
use super::*;
use crate::wire::features::{AsyncEvent, events};
use crate::wire::log::{AnaLog, Request, lid};
use crate::wire::sqe::admin;

fn aer() -> SqeBuilder {
    SqeBuilder::new(admin::ASYNC_EVENT_REQUEST)
}

fn bench(config_bits: u32) -> Bench {
    let mut bench = Bench::ready(config(), &Options::default());
    enable(&mut bench, 0, config_bits);
    bench
}

fn enable(bench: &mut Bench, conn: u32, bits: u32) {
    let set = SqeBuilder::new(admin::SET_FEATURES)
        .cdw(10, 0x0b)
        .cdw(11, bits);
    assert!(bench.ask(conn, set).status.is_success());
}

fn posted(bench: &mut Bench, conn: u32) -> Vec<AsyncEvent> {
    bench.settle();
    let event = |got| {
        let Got::Response(cqe) = got else {
            panic!("{got:?}")
        };
        assert!(cqe.status.is_success());
        AsyncEvent::parse(cqe.result as u32)
    };
    bench.receive(conn).into_iter().map(event).collect()
}

fn request(lid: u8, retain: bool) -> Request {
    Request {
        lid,
        retain,
        len: 1024,
        ..Request::default()
    }
}

#[test]
fn t26_groups_change_by_themselves() {
    let mut bench = bench(0);
    let now = bench.now;
    assert!(
        bench
            .target
            .set_ana_group(0, 2, AnaState::Inaccessible, now)
    );
    assert!(bench.target.set_ana_group(0, 2, AnaState::Change, now));
    assert!(
        !bench.target.set_ana_group(0, 3, AnaState::Change, now),
        "no such group"
    );
    let page = bench.log_page(request(lid::ANA, false));
    let log = AnaLog::new(&page).unwrap();
    let groups = log.groups().map(Result::unwrap);
    let groups: Vec<_> = groups.map(|g| (g.id, g.change_count, g.state)).collect();
    let want = [(1, 0, AnaState::Optimized), (2, 2, AnaState::Change)];
    assert_eq!((log.change_count(), &groups[..]), (2, &want[..]));
    assert_eq!(bench.target.ana(0, 2), Some(AnaState::Change));
    assert_eq!(
        bench.target.ana(1, 2),
        Some(AnaState::Optimized),
        "another port"
    );
    assert_eq!(bench.target.ana(0, 3), None);
}

#[test]
fn t30_ana_change_is_told_once_until_the_log_was_read() {
    let mut bench = bench(events::ANA_CHANGE);
    for _ in 0..3 {
        assert_eq!(bench.send(0, aer(), &[]), []);
    }
    bench.target.set_ana(0, AnaState::Inaccessible, bench.now);
    assert_eq!(posted(&mut bench, 0), [AsyncEvent::ANA_CHANGE]);
    bench.target.set_ana(0, AnaState::Optimized, bench.now);
    assert_eq!(posted(&mut bench, 0), []);
    // Read but retained: still not armed.
    bench.log_page(request(lid::ANA, true));
    bench.target.set_ana(0, AnaState::Inaccessible, bench.now);
    assert_eq!(posted(&mut bench, 0), []);
    bench.log_page(request(lid::ANA, false));
    assert_eq!(posted(&mut bench, 0), []);
    bench.target.set_ana(0, AnaState::Optimized, bench.now);
    assert_eq!(posted(&mut bench, 0), [AsyncEvent::ANA_CHANGE]);
    // The same state again is no change, and the other port is none of ours.
    bench.log_page(request(lid::ANA, false));
    bench.target.set_ana(0, AnaState::Optimized, bench.now);
    bench.target.set_ana(1, AnaState::Change, bench.now);
    assert_eq!(posted(&mut bench, 0), []);
}

#[test]
fn t30_changed_namespaces_are_listed_until_the_list_was_read() {
    let mut bench = bench(events::ANA_CHANGE | events::NAMESPACE_ATTRIBUTE);
    bench.target.set_ana(0, AnaState::Change, bench.now);
    bench.target.resize(2, 9, bench.now).unwrap();
    bench.target.resize(1, 9, bench.now).unwrap();
    assert_eq!(posted(&mut bench, 0), []);
    bench.send(0, aer(), &[]);
    bench.send(0, aer(), &[]);
    // Both came with the requests; now there is one event per log page at most.
    bench.send(0, aer(), &[]);
    assert_eq!(posted(&mut bench, 0), []);
    let page = bench.log_page(request(lid::CHANGED_NAMESPACES, true));
    let nsids: Vec<_> = crate::wire::identify::nsids(&page).collect();
    assert_eq!(nsids, [1, 2]);
    assert_eq!(
        bench.log_page(request(lid::CHANGED_NAMESPACES, false)),
        page
    );
    let page = bench.log_page(request(lid::CHANGED_NAMESPACES, false));
    assert_eq!(crate::wire::identify::nsids(&page).count(), 0);
}

#[test]
fn t30_pending_events_come_with_the_requests_in_turn() {
    let mut bench = bench(events::ANA_CHANGE | events::NAMESPACE_ATTRIBUTE);
    bench.target.set_ana(0, AnaState::Change, bench.now);
    bench.target.resize(2, 9, bench.now).unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        for got in bench.send(0, aer(), &[]) {
            let Got::Response(cqe) = got else { panic!() };
            seen.push(AsyncEvent::parse(cqe.result as u32));
        }
    }
    assert_eq!(
        seen,
        [AsyncEvent::NAMESPACE_ATTRIBUTE, AsyncEvent::ANA_CHANGE]
    );
}

#[test]
fn events_not_asked_for_are_not_told_and_not_kept() {
    let mut bench = bench(0);
    bench.send(0, aer(), &[]);
    bench.target.set_ana(0, AnaState::Change, bench.now);
    bench.target.resize(2, 9, bench.now).unwrap();
    assert_eq!(posted(&mut bench, 0), []);
    enable(
        &mut bench,
        0,
        events::ANA_CHANGE | events::NAMESPACE_ATTRIBUTE,
    );
    assert_eq!(posted(&mut bench, 0), []);
    // The list of changed namespaces is kept all the same.
    let page = bench.log_page(request(lid::CHANGED_NAMESPACES, false));
    assert_eq!(crate::wire::identify::nsids(&page).collect::<Vec<_>>(), [2]);
}

#[test]
fn every_controller_hears_of_it_for_itself() {
    let mut bench = bench(events::NAMESPACE_ATTRIBUTE);
    bench.admin(2, 1);
    enable(
        &mut bench,
        2,
        events::NAMESPACE_ATTRIBUTE | events::ANA_CHANGE,
    );
    bench.send(0, aer(), &[]);
    bench.send(2, aer(), &[]);
    bench.target.resize(1, 77, bench.now).unwrap();
    assert_eq!(posted(&mut bench, 0), [AsyncEvent::NAMESPACE_ATTRIBUTE]);
    assert_eq!(posted(&mut bench, 2), [AsyncEvent::NAMESPACE_ATTRIBUTE]);
    bench.send(2, aer(), &[]);
    bench.target.set_ana(1, AnaState::NonOptimized, bench.now);
    assert_eq!(posted(&mut bench, 2), [AsyncEvent::ANA_CHANGE]);
}

#[test]
fn requests_have_a_limit() {
    let mut bench = bench(0);
    for _ in 0..4 {
        assert_eq!(bench.send(0, aer(), &[]), []);
    }
    assert_eq!(bench.ask(0, aer()).status, Status::AER_LIMIT.with_dnr());
    // The other commands have their slots.
    assert!(
        bench
            .ask(0, SqeBuilder::new(admin::KEEP_ALIVE))
            .status
            .is_success()
    );
}

#[test]
fn t12_abort_is_advice_and_the_driver_says_what_it_can_take_back() {
    let mut bench = bench(0);
    bench.send(0, aer(), &[]);
    let waiting = bench.wires[&0].cid;
    let abort = |sqid: u16, cid: u16| {
        SqeBuilder::new(admin::ABORT).cdw(10, u32::from(sqid) | u32::from(cid) << 16)
    };
    bench.hold_commands = true;
    bench.send(1, super::io::read(1, 0, 1, 512), &[]);
    let running = bench.wires[&1].cid;
    for (sqid, cid) in [(1, running), (1, 999), (0, 999), (9, 1), (0xffff, 0xffff)] {
        let cqe = bench.ask(0, abort(sqid, cid));
        assert_eq!(
            (cqe.status, cqe.result),
            (Status::SUCCESS, 1),
            "not aborted"
        );
    }
    let got = bench.send(0, abort(0, waiting), &[]);
    let [Got::Response(aborted), Got::Response(done)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(
        (aborted.cid, aborted.status),
        (waiting, Status::ABORT_REQUESTED)
    );
    assert_eq!((done.status, done.result), (Status::SUCCESS, 0));
    // The driver aborts it: the command ends, then the Abort; a queue of another controller cannot
    // be named.
    bench.take_back = true;
    let cqe = bench.ask(0, abort(1, running));
    assert_eq!((cqe.status, cqe.result), (Status::SUCCESS, 0));
    let got = bench.receive(1);
    let [Got::Response(cqe)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!((cqe.cid, cqe.status), (running, Status::ABORT_REQUESTED));
    assert_eq!(bench.released, [(1, 0)]);
    let cqe = bench.ask(0, abort(1, running));
    assert_eq!(
        (cqe.status, cqe.result),
        (Status::SUCCESS, 1),
        "it has ended"
    );
}

#[test]
fn t12_a_late_abort_answer_is_ignored() {
    let mut bench = bench(0);
    bench.target.abort_answered(ConnId(0), 1, true);
    bench.target.abort_answered(ConnId(7), 1, true);
    bench.target.abort_answered(ConnId(1000), u32::MAX, true);
    bench.settle();
    assert_eq!(bench.receive(0), []);
}

#[test]
fn a_reset_ends_the_requests_and_forgets_the_configuration() {
    let mut bench = bench(events::ANA_CHANGE);
    bench.send(0, aer(), &[]);
    let waiting = bench.wires[&0].cid;
    let set = Property {
        offset: property::CC,
        wide: false,
        value: 0,
    }
    .emit_set();
    let got = bench.send(0, set, &[]);
    let [Got::Response(aborted), Got::Response(_)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(
        (aborted.cid, aborted.status),
        (waiting, Status::ABORT_REQUESTED)
    );
    bench.set_cc(0, Cc::enabled(0, 0));
    bench.send(0, aer(), &[]);
    bench.target.set_ana(0, AnaState::Change, bench.now);
    assert_eq!(posted(&mut bench, 0), []);
}

#[test]
fn an_unread_log_page_is_made_when_it_is_sent() {
    let mut bench = bench(events::ANA_CHANGE);
    let mut bytes = Vec::new();
    for cid in 100..130 {
        let sqe = log(request(lid::ANA, true))
            .cid(cid)
            .sgl(Sgl::Transport { len: 1024 });
        bytes.extend(bench.capsule(0, &sqe, &[]));
    }
    // Thirty pages asked for, none polled.
    let id = ConnId(0);
    assert_eq!(
        bench.target.handle_bytes(id, &bytes, bench.now),
        bytes.len()
    );
    bench.target.set_ana(0, AnaState::Inaccessible, bench.now);
    let mut out = Vec::new();
    let mut sizes = Vec::new();
    while bench
        .target
        .poll_transmit(id, &mut out, bench.now)
        .is_some()
    {
        sizes.push(out.len());
        if let Some(from) = out.len().checked_sub(1024) {
            assert_eq!(out[from + 16 + 16], AnaState::Inaccessible as u8);
        }
        out.clear();
    }
    // One page per call, each with the response of the one before.
    assert_eq!(sizes[..3], [24 + 1024, 24 + 24 + 1024, 24 + 24 + 1024]);
    assert_eq!(sizes.len(), 31);
}
