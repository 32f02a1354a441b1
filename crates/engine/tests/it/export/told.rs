//! Clients that are told that acknowledged writes may be lost with a controller's cache (T13).
use super::common::*;
use super::rig::{Rig, Setup, config};
use engine::export::ExportControl;
use engine::host::Recovery;
use engine::target::{ErrorRule, Faults, Ops, Probability, TargetControl};
use nbd::{Errno, Kind, Request};
use nvme::wire::Status;

/// Two paths to a target with a cache, each of which carries 1 MiB at once.
fn setup() -> Setup {
    let mut setup = Setup {
        host: host_config(2),
        target: target_config(2),
        slot_bytes: 4 << 20,
        ..Setup::default()
    };
    setup.host.volumes[0].recovery = Recovery::default();
    setup.target.subsystem.volatile_write_cache = true;
    setup.target.subsystem.transfer_shift = 20;
    setup.with_volume(8)
}

/// Path 0 is lost.
fn lose(rig: &mut Rig) {
    rig.world.nodes[HOST].addresses[0] = Address::Refused;
    rig.world.cut(HOST, 0);
    rig.pass(10 * MS);
}

/// And leaves by force.
fn remove(rig: &mut Rig) {
    rig.control(ExportControl::Host(remove_by_force(P0)));
    rig.pass(SECOND);
}

#[test]
fn t13_a_flush_whose_client_has_gone_before_it_failed_fails_the_next_one() {
    let mut rig = Rig::ready(setup());
    let (gone, other) = (rig.connect(config(4)), rig.connect(config(4)));
    for at in 0..2 {
        rig.write(gone, at * 4096, &[1; 4096]);
    }
    lose(&mut rig);
    rig.submit(gone, Request::flush(0), &[]);
    rig.pass(10 * MS);
    rig.clients.borrow_mut().reset(gone);
    rig.pass(10 * MS);
    remove(&mut rig);
    assert_eq!(rig.refused(other, Request::flush(0), &[]), Errno::Io);
    assert_eq!(rig.one(other, Request::flush(0), &[]).result, Ok(()));
}

/// Whichever wrote: an application may flush by another connection than it writes by.
#[test]
fn t13_each_client_that_was_there_hears_of_a_loss_once() {
    let mut rig = Rig::ready(setup());
    let (writer, other) = (rig.connect(config(4)), rig.connect(config(4)));
    for at in 0..2 {
        rig.write(writer, at * 4096, &[1; 4096]);
    }
    lose(&mut rig);
    remove(&mut rig);
    for client in [other, writer] {
        assert_eq!(rig.refused(client, Request::flush(0), &[]), Errno::Io);
        assert_eq!(rig.one(client, Request::flush(0), &[]).result, Ok(()));
    }
    let later = rig.connect(config(4));
    assert_eq!(rig.one(later, Request::flush(0), &[]).result, Ok(()));
}

/// A controller may say it once, as an operating system does that could not write a file back.
#[test]
fn t13_each_client_hears_once_of_a_flush_that_a_controller_failed() {
    let mut rig = Rig::ready(setup());
    let (writer, other) = (rig.connect(config(4)), rig.connect(config(4)));
    rig.write(writer, 0, &[1; 4096]);
    let error = ErrorRule {
        status: Status::WRITE_FAULT,
        ops: Ops::FLUSH,
        blocks: None,
        rate: Probability::ALWAYS,
    };
    let errors = vec![error];
    let faults = |errors| Faults {
        errors,
        ..Faults::default()
    };
    for port in 0..2 {
        rig.target_control(TargetControl::Faults(port, faults(errors.clone())));
    }
    assert_eq!(rig.refused(other, Request::flush(0), &[]), Errno::Io);
    for port in 0..2 {
        rig.target_control(TargetControl::Faults(port, faults(Vec::new())));
    }
    assert_eq!(rig.refused(writer, Request::flush(0), &[]), Errno::Io);
    for client in [other, writer] {
        assert_eq!(rig.one(client, Request::flush(0), &[]).result, Ok(()));
    }
}

/// The I/Os of one request are no pieces of one: the first has ended long before.
#[test]
fn t13_a_write_of_several_ios_that_ends_after_its_cache_was_given_up_is_done_again() {
    let mut rig = Rig::ready(setup());
    let (writer, other) = (rig.connect(config(4)), rig.connect(config(4)));
    let faults = Faults {
        hold_writes_until_ns: rig.world.now_ns + 5 * SECOND,
        ..Faults::default()
    };
    rig.target_control(TargetControl::Faults(1, faults));
    let request = Request::new(0, Kind::Write, 0, 2 << 20);
    rig.submit(writer, request, &vec![7; 2 << 20]);
    rig.pass(100 * MS);
    let written = |rig: &Rig| {
        let engine = rig.engine.borrow();
        [P0, P1].map(|path| engine.host().counters(0, path).bytes[1])
    };
    assert_eq!(written(&rig), [1 << 20, 0]);
    lose(&mut rig);
    remove(&mut rig);
    assert_eq!(rig.refused(other, Request::flush(0), &[]), Errno::Io);
    assert!(rig.clients.borrow().all[writer].ended.is_empty());
    let ended = |rig: &Rig| !rig.clients.borrow().all[writer].ended.is_empty();
    rig.until(20 * SECOND, ended);
    assert_eq!(rig.ended(writer)[0].result, Ok(()));
    assert_eq!(written(&rig)[1], 3 << 20, "the second one, and then both");
    assert_eq!(rig.one(other, Request::flush(0), &[]).result, Ok(()));
}
