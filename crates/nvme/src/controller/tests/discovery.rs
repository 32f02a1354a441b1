//! The discovery log: its entries, the hosts that see them, and the notices of changes.
use super::admin::log;
use super::*;
use crate::wire::fabrics::{DISCOVERY_NQN, connect_status};
use crate::wire::features::{AsyncEvent, events};
use crate::wire::identify as id;
use crate::wire::layout::text;
use crate::wire::log::{
    DiscoveryEntry, DiscoveryHeader, Request, discovery_entries, eflags, lid, subtype,
};
use crate::wire::sqe::admin;

const OWN: &str = "nqn.2026-01.org.example:discovery";

/// A persistent discovery controller on connection `conn`, which asked for notices.
fn seek(bench: &mut Bench, conn: u32, subnqn: &str) {
    bench.open(conn, 0, &plain());
    let connect = Connect {
        kato_ms: 5_000,
        ..admin_connect()
    };
    let cqe = bench.connect(conn, connect, &connect_data(subnqn, CNTLID_ANY));
    assert!(cqe.status.is_success(), "{:?}", cqe.status);
    bench.set_cc(conn, Cc::enabled(0, 0));
    let set = SqeBuilder::new(admin::SET_FEATURES)
        .cdw(10, 0x0b)
        .cdw(11, events::DISCOVERY_CHANGE);
    assert!(bench.ask(conn, set).status.is_success());
}

fn arm(bench: &mut Bench, conn: u32) {
    let sqe = SqeBuilder::new(admin::ASYNC_EVENT_REQUEST);
    assert_eq!(bench.send(conn, sqe, &[]), []);
}

/// Generation and entries; reading them re-arms the notice.
fn read(bench: &mut Bench) -> (u64, Vec<DiscoveryEntry>) {
    let page = bench.log_page(Request {
        lid: lid::DISCOVERY,
        len: 8192,
        ..Request::default()
    });
    let header = DiscoveryHeader::parse(&page).unwrap();
    let entries: Vec<_> = discovery_entries(&page).unwrap().collect();
    assert_eq!(header.records, entries.len() as u64);
    (header.generation, entries)
}

/// Events posted on connection 0 since.
fn notices(bench: &mut Bench) -> usize {
    bench.settle();
    let got = bench.receive(0);
    for got in &got {
        let Got::Response(cqe) = got else {
            panic!("{got:?}")
        };
        let event = AsyncEvent::parse(cqe.result as u32);
        assert_eq!(event, AsyncEvent::DISCOVERY_CHANGE);
    }
    got.len()
}

fn change(bench: &mut Bench, change: DiscoveryChange) {
    bench.target.change_discovery(change).unwrap();
}

fn hosts(all: &[&str]) -> DiscoveryChange {
    DiscoveryChange::Hosts(all.iter().map(|&host| host.into()).collect())
}

fn referral(port_id: u16) -> Referral {
    Referral {
        port_id,
        traddr: "fd00::2".into(),
        trsvcid: "8009".into(),
        ipv6: true,
        nqn: DISCOVERY_NQN.into(),
    }
}

#[test]
fn t30_each_change_is_one_generation_and_told_once_until_the_log_was_read() {
    let mut bench = Bench::new(config());
    seek(&mut bench, 0, DISCOVERY_NQN);
    assert_eq!(read(&mut bench).0, 1);
    arm(&mut bench, 0);
    change(&mut bench, DiscoveryChange::Offer(1, PortOffer::Withdrawn));
    assert_eq!(notices(&mut bench), 1);
    arm(&mut bench, 0);
    change(&mut bench, DiscoveryChange::Referrals(vec![referral(7)]));
    assert_eq!(notices(&mut bench), 0, "the log was not read yet");
    let (generation, entries) = read(&mut bench);
    assert_eq!(generation, 3);
    let facts: Vec<_> = entries
        .iter()
        .map(|e| (e.subtype, e.portid, e.adrfam))
        .collect();
    assert_eq!(facts, [(subtype::NVM, 1, 1), (subtype::REFERRAL, 7, 2)]);
    assert_eq!(text(&entries[1].traddr), "fd00::2");
    assert_eq!(notices(&mut bench), 0);
    // The same value again is no change.
    change(&mut bench, DiscoveryChange::Offer(1, PortOffer::Withdrawn));
    change(&mut bench, DiscoveryChange::Referrals(vec![referral(7)]));
    assert_eq!((notices(&mut bench), read(&mut bench).0), (0, 3));
    change(&mut bench, DiscoveryChange::Offer(1, PortOffer::Subsystem));
    assert_eq!((notices(&mut bench), read(&mut bench).0), (1, 4));
}

#[test]
fn a_host_is_told_of_what_concerns_it() {
    let mut bench = Bench::new(config());
    seek(&mut bench, 0, DISCOVERY_NQN);
    arm(&mut bench, 0);
    change(&mut bench, hosts(&[HOST, "nqn.2026-01.org.example:other"]));
    assert_eq!(notices(&mut bench), 0, "it might connect, and may");
    change(&mut bench, hosts(&["nqn.2026-01.org.example:other"]));
    assert_eq!(notices(&mut bench), 1);
    assert_eq!(read(&mut bench).1, []);
    arm(&mut bench, 0);
    change(&mut bench, DiscoveryChange::Offer(0, PortOffer::Withdrawn));
    assert_eq!(notices(&mut bench), 0, "it sees no port");
    change(&mut bench, hosts(&[]));
    assert_eq!(notices(&mut bench), 1);
    let (generation, entries) = read(&mut bench);
    assert_eq!((generation, entries.len()), (5, 1));
}

#[test]
fn hosts_taken_out_are_disconnected_on_request() {
    let mut bench = Bench::new(config());
    let subsystem = config().nqn;
    bench.open(0, 0, &plain());
    let data = connect_data(&subsystem, CNTLID_ANY);
    let cqe = bench.connect(0, admin_connect(), &data);
    assert!(cqe.status.is_success(), "{:?}", cqe.status);
    // Discovery is open to all.
    seek(&mut bench, 1, DISCOVERY_NQN);
    let closed = |bench: &mut Bench| {
        bench.target.disconnect_hosts(0);
        let mut closed = Vec::new();
        while let Some(event) = bench.target.poll_event() {
            if let ControllerEvent::Close { conn, reason } = event {
                closed.push((conn.0, reason));
            }
        }
        closed
    };
    change(&mut bench, hosts(&[HOST]));
    assert_eq!(closed(&mut bench), []);
    change(&mut bench, hosts(&["nqn.2026-01.org.example:other"]));
    assert_eq!(closed(&mut bench), [(0, CloseReason::NotAdmitted)]);
    assert_eq!(closed(&mut bench), [], "once");
}

#[test]
fn a_host_without_notices_gets_none() {
    let mut bench = Bench::new(config());
    bench.admin(0, 0);
    arm(&mut bench, 0);
    change(&mut bench, DiscoveryChange::Offer(1, PortOffer::Withdrawn));
    assert_eq!(bench.receive(0), []);
    // An I/O controller can't ask for it.
    let set = SqeBuilder::new(admin::SET_FEATURES)
        .cdw(10, 0x0b)
        .cdw(11, u32::MAX);
    assert!(bench.ask(0, set).status.is_success());
    change(&mut bench, DiscoveryChange::Offer(1, PortOffer::Subsystem));
    assert_eq!(bench.receive(0), []);
    let refused = bench.refusal(
        log(Request {
            lid: lid::DISCOVERY,
            len: 1024,
            ..Request::default()
        }),
        1024,
    );
    assert_eq!(refused, Status::INVALID_LOG_PAGE);
}

#[test]
fn a_withdrawn_port_takes_no_host_and_keeps_those_it_has() {
    let mut bench = Bench::ready(config(), &Options::default());
    change(&mut bench, DiscoveryChange::Offer(0, PortOffer::Withdrawn));
    assert!(
        bench
            .ask(0, SqeBuilder::new(admin::KEEP_ALIVE))
            .status
            .is_success()
    );
    bench.open(5, 0, &plain());
    let cqe = bench.connect(5, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    // Without DNR: the port may be offered again.
    assert_eq!(cqe.status, connect_status::INVALID_PARAMETERS);
    bench.open(6, 1, &plain());
    let cqe = bench.connect(6, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    assert!(cqe.status.is_success(), "another port");
    // Discovery is there all the same.
    seek(&mut bench, 7, DISCOVERY_NQN);
}

#[test]
fn a_discovery_subsystem_of_its_own_name_on_a_port_of_its_own() {
    let mut bench = Bench::new(config());
    bench.open(9, 0, &plain());
    let cqe = bench.connect(9, admin_connect(), &connect_data(OWN, CNTLID_ANY));
    assert!(!cqe.status.is_success(), "not yet");
    change(&mut bench, DiscoveryChange::Name(Some(OWN.into())));
    change(&mut bench, DiscoveryChange::Offer(0, PortOffer::Discovery));
    seek(&mut bench, 0, OWN);
    let c = id::Controller::parse(&bench.page(id::cns::CONTROLLER, 0)).unwrap();
    assert_eq!(text(&c.subnqn), OWN);
    assert_eq!(c.oaes, events::DISCOVERY_CHANGE);
    // Hosts read page 05h where LPA has its bit.
    assert_eq!(c.lpa, id::lpa::EXTENDED);
    let pages = bench.log_page(Request {
        lid: lid::SUPPORTED,
        len: 1024,
        ..Request::default()
    });
    assert_eq!(pages[usize::from(lid::EFFECTS) * 4], 0);
    let entries = read(&mut bench).1;
    let facts: Vec<_> = entries
        .iter()
        .map(|e| (e.subtype, text(&e.subnqn), e.eflags))
        .collect();
    assert_eq!(
        facts,
        [
            (subtype::CURRENT, OWN, eflags::EPCSD),
            (subtype::NVM, NQN, 0)
        ]
    );
    seek(&mut bench, 1, DISCOVERY_NQN);
}

#[test]
fn changes_that_cannot_be_change_nothing() {
    let mut bench = Bench::new(config());
    let long = Referral {
        traddr: "a".repeat(256),
        ..referral(1)
    };
    for (change, field) in [
        (DiscoveryChange::Offer(2, PortOffer::Withdrawn), "port"),
        (hosts(&["host"]), "hosts"),
        (DiscoveryChange::Name(Some(NQN.into())), "discovery_nqn"),
        (DiscoveryChange::Name(Some("x".into())), "discovery_nqn"),
        (DiscoveryChange::Referrals(vec![long]), "referrals"),
        (
            DiscoveryChange::Referrals(vec![referral(1); 65]),
            "referrals",
        ),
    ] {
        let error = bench.target.change_discovery(change).unwrap_err();
        assert_eq!(error.field, field);
    }
    seek(&mut bench, 0, DISCOVERY_NQN);
    let (generation, entries) = read(&mut bench);
    assert_eq!((generation, entries.len()), (1, 2));
}
