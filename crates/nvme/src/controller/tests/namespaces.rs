//! Namespaces that come and go, and commands that a configuration leaves out.
use super::admin::{bench, identify};
use super::io::read;
use super::*;
use crate::wire::dsm;
use crate::wire::features::AsyncEvent;
use crate::wire::identify::{self as id, cns, oncs};
use crate::wire::log::{AnaLog, Request, io_effects, lid};
use crate::wire::sqe::{admin, nvm};

fn active(bench: &mut Bench) -> Vec<u32> {
    id::nsids(&bench.page(cns::ACTIVE_NAMESPACES, 0)).collect()
}

fn ana_groups(bench: &mut Bench) -> Vec<(u32, Vec<u32>)> {
    let page = bench.log_page(Request {
        lid: lid::ANA,
        len: 1024,
        ..Request::default()
    });
    let log = AnaLog::new(&page).unwrap();
    let groups = log.groups().map(Result::unwrap);
    groups.map(|of| (of.id, of.nsids().collect())).collect()
}

#[test]
fn inactive_namespace_keeps_its_number_and_its_group() {
    let mut bench = bench();
    bench.target.deactivate(2);
    assert_eq!(active(&mut bench), [1, 5]);
    assert!(bench.page(cns::NAMESPACE, 2).iter().all(|it| *it == 0));
    let refused = bench.refusal(identify(cns::DESCRIPTORS, 2), 4096);
    assert_eq!(refused, Status::INVALID_NAMESPACE);
    assert_eq!(
        bench.ask(1, read(2, 0, 1, 4096)).status.code(),
        Status::INVALID_NAMESPACE
    );
    bench.target.deactivate(5);
    // A host sizes its tables by these: they stay.
    let c = id::Controller::parse(&bench.page(cns::CONTROLLER, 0)).unwrap();
    assert_eq!((c.nn, c.mnan, c.anagrpmax, c.nanagrpid), (5, 3, 2, 2));
    assert_eq!(ana_groups(&mut bench), [(1, vec![1]), (2, vec![])]);
    bench.target.deactivate(5);
    assert_eq!(active(&mut bench), [1]);
}

#[test]
fn namespace_is_activated_with_another_size_and_hosts_hear_of_it() {
    let mut bench = bench();
    let set = SqeBuilder::new(admin::SET_FEATURES)
        .cdw(10, 0x0b)
        .cdw(11, crate::wire::features::events::NAMESPACE_ATTRIBUTE);
    assert!(bench.ask(0, set).status.is_success());
    bench.send(0, SqeBuilder::new(admin::ASYNC_EVENT_REQUEST), &[]);
    bench.target.deactivate(2);
    bench.settle();
    let [Got::Response(cqe)] = bench.receive(0)[..] else {
        panic!("no event")
    };
    let event = AsyncEvent::parse(cqe.result as u32);
    assert_eq!(event, AsyncEvent::NAMESPACE_ATTRIBUTE);
    assert!(
        bench.target.activate(1, 9, 9, false).is_err(),
        "it is active"
    );
    assert!(bench.target.activate(2, 9, 13, false).is_err());
    assert!(bench.target.activate(2, 0, 12, false).is_err());
    assert_eq!(active(&mut bench), [1, 5]);
    bench.target.activate(2, 77, 9, true).unwrap();
    assert_eq!(active(&mut bench), [1, 2, 5]);
    let n = id::Namespace::parse(&bench.page(cns::NAMESPACE, 2)).unwrap();
    assert_eq!((n.nsze, n.format().unwrap().block_shift), (77, 9));
    assert_eq!((n.nsattr, n.anagrpid, n.nguid), (1, 2, [102; 16]));
    assert_eq!(ana_groups(&mut bench), [(1, vec![1]), (2, vec![2, 5])]);
    // Write protected as configured, whatever is said at its activation.
    bench.target.deactivate(5);
    bench.target.activate(5, 9, 9, false).unwrap();
    let n = id::Namespace::parse(&bench.page(cns::NAMESPACE, 5)).unwrap();
    assert_eq!(n.nsattr, 1);
}

/// A host sizes its buffers when it connects: what comes later fits.
#[test]
fn added_namespace_is_told_and_one_removed_is_not_there() {
    let mut bench = Bench::new(config());
    bench.target.reserve_namespaces(64);
    bench.admin(0, 0);
    let c = id::Controller::parse(&bench.page(cns::CONTROLLER, 0)).unwrap();
    assert_eq!((c.nn, c.mnan, c.anagrpmax, c.nanagrpid), (64, 64, 64, 64));
    let nine = NamespaceConfig {
        nsid: 9,
        ana_group: 9,
        ..config().namespaces[0].clone()
    };
    bench.target.add_namespace(nine.clone()).unwrap();
    assert!(bench.target.add_namespace(nine.clone()).is_err());
    assert_eq!(active(&mut bench), [1, 2, 5]);
    bench.target.activate(9, 8, 9, false).unwrap();
    assert_eq!(active(&mut bench), [1, 2, 5, 9]);
    let groups = [(1, vec![1]), (2, vec![2, 5]), (9, vec![9])];
    assert_eq!(ana_groups(&mut bench), groups);
    assert_eq!(bench.target.hosts_of(9).len(), 0);
    let n = id::Namespace::parse(&bench.page(cns::NAMESPACE, 9)).unwrap();
    assert_eq!((n.nsze, n.nsattr), (8, 1));
    assert_eq!(
        (
            bench.target.hosts_of(9).len(),
            bench.target.hosts_of(1).len()
        ),
        (1, 0)
    );
    bench.target.protect(9, false);
    let n = id::Namespace::parse(&bench.page(cns::NAMESPACE, 9)).unwrap();
    assert_eq!(n.nsattr, 0);
    bench.target.remove_namespace(9);
    assert_eq!(
        (active(&mut bench), bench.target.hosts_of(9).len()),
        (vec![1, 2, 5], 0)
    );
    assert_eq!(ana_groups(&mut bench), groups[..2]);
    let changed = bench.log_page(Request {
        lid: lid::CHANGED_NAMESPACES,
        len: 4096,
        ..Request::default()
    });
    assert_eq!(id::nsids(&changed).collect::<Vec<_>>(), [9]);
    bench.target.add_namespace(nine).unwrap();
}

/// Its data may be for contents that are no longer those of the NSID.
#[test]
fn data_asked_for_before_a_deactivation_is_refused() {
    let range = dsm::Range {
        attributes: 0,
        blocks: 8,
        slba: 0,
    };
    let trim = SqeBuilder::new(nvm::DATASET_MANAGEMENT)
        .nsid(1)
        .cdw(11, nvm::DSM_DEALLOCATE);
    let all = [
        (
            super::io::write(1, 0, 8, Sgl::Transport { len: 4096 }),
            vec![7; 4096],
        ),
        (
            super::io::rw(nvm::COMPARE, 1, 0, 8, Sgl::Transport { len: 4096 }),
            vec![0; 4096],
        ),
        (trim.sgl(Sgl::Transport { len: 16 }), range.emit().to_vec()),
    ];
    for (sqe, data) in all {
        let mut bench = Bench::ready(config(), &Options::default());
        let [Got::R2t(r2t)] = bench.send(1, sqe, &[])[..] else {
            panic!("no R2T")
        };
        bench.target.deactivate(1);
        bench.target.activate(1, BLOCKS, 9, false).unwrap();
        bench.settle();
        let bytes = bench.h2c(1, &r2t, true, &data);
        assert_eq!(bench.feed(1, &bytes), bytes.len());
        let [Got::Response(cqe)] = bench.receive(1)[..] else {
            panic!("no response")
        };
        assert_eq!(cqe.status.code(), Status::INVALID_NAMESPACE);
        assert!(cqe.status.dnr() && bench.executed.is_empty());
        assert!(bench.buffers.is_empty());
        // The next command is for the namespace that is active now.
        let now = super::io::write(1, 0, 1, Sgl::Transport { len: 512 });
        assert!(matches!(bench.send(1, now, &[])[..], [Got::R2t(_)]));
    }
}

#[test]
fn list_of_blocks_ends_with_its_namespace() {
    let mut bench = bench();
    bench.hold_extents = true;
    let sqe = super::allocation::ask(1, 0, 0, 4096).sgl(Sgl::Transport { len: 4096 });
    assert_eq!(bench.send(0, sqe, &[]), []);
    bench.target.deactivate(1);
    bench.target.activate(1, 8, 9, false).unwrap();
    bench.settle();
    let [Got::Response(cqe)] = bench.receive(0)[..] else {
        panic!("no response")
    };
    assert_eq!(cqe.status.code(), Status::INVALID_NAMESPACE);
    let late = bench.extents[0];
    bench.target.extent_found(late, 512, true);
    bench.settle();
    assert_eq!(bench.receive(0), []);
}

#[test]
fn compare_that_is_not_offered_is_an_invalid_opcode() {
    let mut config = config();
    config.compare = false;
    let mut bench = Bench::ready(config, &Options::default());
    let c = id::Controller::parse(&bench.page(cns::CONTROLLER, 0)).unwrap();
    assert_eq!(c.oncs, oncs::DSM | oncs::WRITE_ZEROES);
    let effects = bench.log_page(Request {
        lid: lid::EFFECTS,
        len: 4096,
        ..Request::default()
    });
    assert_eq!(io_effects(&effects, nvm::COMPARE), Ok(0));
    assert_ne!(io_effects(&effects, nvm::READ), Ok(0));
    let compare = super::io::rw(nvm::COMPARE, 1, 0, 1, Sgl::Transport { len: 512 });
    let status = bench.ask(1, compare).status;
    assert!(status.code() == Status::INVALID_OPCODE && status.dnr());
}

#[test]
fn lba_status_that_is_not_offered_is_an_invalid_opcode() {
    let mut config = config();
    config.lba_status = false;
    let mut bench = Bench::ready(config, &Options::default());
    let c = id::Controller::parse(&bench.page(cns::CONTROLLER, 0)).unwrap();
    assert_eq!(c.oacs, 0);
    let asked = bench.fetch(0, super::allocation::ask(1, 0, 0, 256), 256);
    let status = asked.unwrap_err();
    assert!(status.code() == Status::INVALID_OPCODE && status.dnr());
}

/// Of more than there is room for, the log names none.
#[test]
fn too_many_changed_namespaces_are_all_of_them() {
    let mut bench = bench();
    let page = |bench: &mut Bench| -> Vec<u32> {
        let log = bench.log_page(Request {
            lid: lid::CHANGED_NAMESPACES,
            len: 4096,
            ..Request::default()
        });
        id::nsids(&log).collect()
    };
    for count in [id::NSID_LIST_MAX, id::NSID_LIST_MAX + 1] {
        for nsid in 10..10 + count as u32 {
            let new = NamespaceConfig {
                nsid,
                ..config().namespaces[0].clone()
            };
            bench.target.add_namespace(new).unwrap();
            bench.target.activate(nsid, 8, 9, false).unwrap();
            bench.target.remove_namespace(nsid);
        }
        let changed = page(&mut bench);
        match count {
            id::NSID_LIST_MAX => assert!(changed.into_iter().eq(10..10 + count as u32)),
            _ => assert_eq!(changed, [u32::MAX]),
        }
        assert_eq!(page(&mut bench), []);
    }
}

#[test]
fn host_that_only_does_io_is_counted_once() {
    let mut bench = Bench::ready(config(), &Options::default());
    let cntlid = bench.admin(2, 0);
    bench.io(3, 0, cntlid, 1, &Options::default());
    // Neither says that it looks at one namespace.
    bench.page(cns::CONTROLLER, 1);
    let flush = |nsid| SqeBuilder::new(nvm::FLUSH).nsid(nsid);
    assert!(bench.ask(1, flush(u32::MAX)).status.is_success());
    assert_eq!(bench.target.hosts_of(1).len(), 0);
    for conn in [1, 3] {
        bench.send(conn, read(1, 0, 8, 4096), &[]);
        assert_eq!(bench.target.hosts_of(1).len(), 1);
    }
}
