//! Connect and its refusals, properties, Disconnect.
use super::*;
use crate::wire::fabrics::{
    Cap, DISCOVERY_NQN, InvalidParameter, Version, connect_status, disconnect,
};
use crate::wire::sqe::fctype;

fn parameter(offset: u16, in_data: bool) -> (Status, u64) {
    (
        connect_status::INVALID_PARAMETERS,
        InvalidParameter { offset, in_data }.emit(),
    )
}

fn refused(cqe: Cqe) -> (Status, u64) {
    assert!(cqe.status.dnr(), "{:?}", cqe.status);
    (cqe.status.code(), cqe.result)
}

/// A refusal without DNR: with DNR a Linux host would remove the controller for good.
fn passing(cqe: Cqe) -> (Status, u64) {
    assert!(!cqe.status.dnr(), "{:?}", cqe.status);
    (cqe.status.code(), cqe.result)
}

#[test]
fn every_refusal_of_an_admin_connect() {
    type Change = fn(&mut Connect, &mut ConnectData<'_>);
    let cases: &[(Change, (Status, u64))] = &[
        (
            |c, _| c.recfmt = 1,
            (connect_status::INCOMPATIBLE_FORMAT, 0),
        ),
        (|_, d| d.subnqn = b"nqn.none", parameter(256, true)),
        (|_, d| d.hostnqn = b"", parameter(512, true)),
        (|_, d| d.hostnqn = &[0xff], parameter(512, true)),
        (|_, d| d.cntlid = 3, parameter(16, true)),
        (|_, d| d.cntlid = 0xfffe, parameter(16, true)),
        (|c, _| c.sqsize = 0, parameter(44, false)),
        (|c, _| c.sqsize = 128, parameter(44, false)),
    ];
    for (change, want) in cases {
        let mut bench = Bench::new(config());
        bench.open(0, 0, &plain());
        let (mut connect, mut data) = (admin_connect(), connect_data(NQN, CNTLID_ANY));
        change(&mut connect, &mut data);
        let cqe = bench.connect(0, connect, &data);
        assert_eq!(refused(cqe), *want, "{connect:?}");
        assert_eq!(bench.target.controllers().count(), 0);
    }
}

#[test]
fn the_list_of_hosts_is_enforced() {
    for (host, want) in [
        (
            "nqn.2026-01.org.example:other",
            (connect_status::INVALID_HOST, 0),
        ),
        (HOST, (Status::SUCCESS, 3)),
    ] {
        let mut bench = Bench::new(SubsystemConfig {
            hosts: vec![host.into()],
            ..config()
        });
        bench.open(0, 0, &plain());
        let cqe = bench.connect(0, admin_connect(), &connect_data(NQN, CNTLID_ANY));
        assert_eq!(passing(cqe), want);
    }
}

#[test]
fn nqn_without_end_is_an_invalid_parameter() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    let mut data = connect_data(NQN, CNTLID_ANY).emit();
    data[256..512].fill(b'x');
    let sqe = admin_connect().emit().sgl(Sgl::InCapsule {
        offset: 0,
        len: 1024,
    });
    let got = bench.send(0, sqe, &data);
    let [Got::Response(cqe)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(refused(cqe), parameter(256, true));
}

#[test]
fn after_a_refusal_the_host_may_try_again_on_the_same_connection() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    for _ in 0..5 {
        bench.connect(0, admin_connect(), &connect_data("nqn.none", CNTLID_ANY));
    }
    let cqe = bench.connect(0, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    assert!(cqe.status.is_success());
    let again = bench.connect(0, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    assert_eq!(refused(again), (Status::SEQUENCE_ERROR, 0));
}

#[test]
fn connect_data_behind_an_r2t() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    let got = bench.send(
        0,
        admin_connect().emit().sgl(Sgl::Transport { len: 1024 }),
        &[],
    );
    let [Got::R2t(r2t)] = got[..] else {
        panic!("{got:?}")
    };
    assert_eq!((r2t.offset, r2t.length), (0, 1024));
    let data = connect_data(NQN, CNTLID_ANY).emit();
    let bytes = bench.h2c(0, &r2t, true, &data);
    bench.feed(0, &bytes);
    let got = bench.receive(0);
    assert!(
        matches!(got[..], [Got::Response(cqe)] if cqe.status.is_success()),
        "{got:?}"
    );
}

#[test]
fn connect_needs_its_1024_bytes() {
    for (sgl, len) in [
        (
            Sgl::InCapsule {
                offset: 0,
                len: 1020,
            },
            1020,
        ),
        (
            Sgl::InCapsule {
                offset: 0,
                len: 1024,
            },
            0,
        ),
        (Sgl::Transport { len: 1023 }, 0),
        (Sgl::None, 0),
    ] {
        let mut bench = Bench::new(config());
        bench.open(0, 0, &plain());
        let got = bench.send(0, admin_connect().emit().sgl(sgl), &vec![0; len]);
        let [Got::Response(cqe)] = got[..] else {
            panic!("{got:?}")
        };
        assert_eq!(refused(cqe), (Status::SGL_DATA_LENGTH, 0), "{sgl:?}");
    }
}

#[test]
fn every_refusal_of_an_io_connect() {
    let mut bench = Bench::new(config());
    let cntlid = bench.admin(0, 0);
    bench.io(1, 0, cntlid, 1, &Options::default());
    let good = Connect {
        qid: 2,
        sqsize: 7,
        ..admin_connect()
    };
    let data = connect_data(NQN, cntlid);
    let stranger = ConnectData {
        hostnqn: b"nqn.x",
        ..data
    };
    let cases = [
        (good, stranger, parameter(512, true)),
        (
            good,
            ConnectData {
                hostid: [1; 16],
                ..data
            },
            parameter(0, true),
        ),
        (Connect { qid: 5, ..good }, data, parameter(42, false)),
        (
            Connect {
                qid: 0xffff,
                ..good
            },
            data,
            parameter(42, false),
        ),
        (Connect { sqsize: 0, ..good }, data, parameter(44, false)),
        (Connect { sqsize: 16, ..good }, data, parameter(44, false)),
    ];
    bench.open(2, 0, &plain());
    for (connect, data, want) in cases {
        let cqe = bench.connect(2, connect, &data);
        assert_eq!(refused(cqe), want, "{connect:?}");
    }
    // The association may have ended meanwhile, or the queue's old connection is about to.
    for (connect, data, want) in [
        (good, connect_data(NQN, cntlid + 1), parameter(16, true)),
        (good, connect_data(NQN, CNTLID_ANY), parameter(16, true)),
        (Connect { qid: 1, ..good }, data, parameter(42, false)),
    ] {
        let cqe = bench.connect(2, connect, &data);
        assert_eq!(passing(cqe), want, "{connect:?}");
    }
    // Not by another port; not of a discovery controller; not before it is enabled.
    bench.open(3, 1, &plain());
    assert_eq!(passing(bench.connect(3, good, &data)), parameter(16, true));
    assert_eq!(
        passing(bench.connect(2, good, &connect_data(DISCOVERY_NQN, cntlid))),
        parameter(16, true)
    );
    bench.open(4, 0, &plain());
    let idle = bench
        .connect(4, admin_connect(), &connect_data(NQN, CNTLID_ANY))
        .result as u16;
    let cqe = bench.connect(2, good, &connect_data(NQN, idle));
    assert_eq!(passing(cqe), (Status::SEQUENCE_ERROR, 0));
    // The place is still free for one that is right.
    assert!(bench.connect(2, good, &data).status.is_success());
}

#[test]
fn t31_controller_identifiers_are_never_double_and_come_round() {
    let mut bench = Bench::new(config());
    let ids: Vec<u16> = (0..4).map(|conn| bench.admin(conn, 0)).collect();
    assert_eq!(ids, [3, 4, 5, 6]);
    bench.open(4, 0, &plain());
    let cqe = bench.connect(4, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    assert_eq!(passing(cqe), (connect_status::CONTROLLER_BUSY, 0));
    bench.gone(1);
    bench.gone(2);
    let cqe = bench.connect(4, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    assert_eq!((cqe.status, cqe.result), (Status::SUCCESS, 4));
    let status: Vec<_> = bench.target.controllers().map(|c| c.cntlid).collect();
    assert_eq!(status.len(), 3);
}

#[test]
fn properties_there_are_and_those_there_aren_t() {
    let mut bench = Bench::new(config());
    bench.admin(0, 0);
    let get = |offset, wide| {
        Property {
            offset,
            wide,
            value: 0,
        }
        .emit_get()
    };
    let cap = Cap(bench.ask(0, get(property::CAP, true)).result);
    assert_eq!(
        (cap.mqes(), cap.mpsmin(), cap.mpsmax(), cap.to()),
        (15, 0, 0, 30)
    );
    assert!(cap.cqr() && cap.css_nvm() && !cap.css_multiple() && !cap.css_admin_only());
    assert_eq!(
        bench.ask(0, get(property::VS, false)).result,
        Version::V2_0.0.into()
    );
    assert_eq!(
        bench.ask(0, get(property::CC, false)).result,
        Cc::enabled(0, 0).0.into()
    );
    for (offset, wide) in [
        (property::CAP, false),
        (property::VS, true),
        (property::NSSR, false),
        (0x1000, false),
    ] {
        let cqe = bench.ask(0, get(offset, wide));
        assert_eq!(refused(cqe), (Status::INVALID_FIELD, 0));
    }
    for (offset, wide) in [
        (property::CSTS, false),
        (property::CC, true),
        (property::NSSR, false),
    ] {
        let set = Property {
            offset,
            wide,
            value: 0,
        }
        .emit_set();
        assert_eq!(refused(bench.ask(0, set)), (Status::INVALID_FIELD, 0));
    }
    let odd = get(property::VS, false).put(40, &[2]);
    assert_eq!(refused(bench.ask(0, odd)), (Status::INVALID_FIELD, 0));
}

#[test]
fn commands_out_of_place() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    let vs = Property {
        offset: property::VS,
        wide: false,
        value: 0,
    }
    .emit_get();
    // Before Connect: nothing else, and it may still come.
    assert_eq!(refused(bench.ask(0, vs)), (Status::SEQUENCE_ERROR, 0));
    assert_eq!(
        refused(bench.ask(0, SqeBuilder::new(0x18))),
        (Status::SEQUENCE_ERROR, 0)
    );
    let cqe = bench.connect(0, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    assert!(cqe.status.is_success());
    // Before enable: only Fabrics commands.
    assert!(bench.ask(0, vs).status.is_success());
    assert_eq!(
        refused(bench.ask(0, SqeBuilder::new(0x18))),
        (Status::SEQUENCE_ERROR, 0)
    );
    bench.set_cc(0, Cc::enabled(0, 0));
    assert!(bench.ask(0, SqeBuilder::new(0x18)).status.is_success());
    // Commands of the other kind of queue.
    bench.io(1, 0, 3, 1, &Options::default());
    assert_eq!(refused(bench.ask(1, vs)), (Status::INVALID_OPCODE, 0));
    assert_eq!(
        refused(bench.ask(0, disconnect())),
        (connect_status::INVALID_QUEUE_TYPE, 0)
    );
    let auth = SqeBuilder::fabrics(fctype::AUTH_SEND);
    assert_eq!(refused(bench.ask(0, auth)), (Status::INVALID_OPCODE, 0));
    let format = disconnect().put(40, &[1]);
    assert_eq!(
        refused(bench.ask(1, format)),
        (connect_status::INCOMPATIBLE_FORMAT, 0)
    );
}

#[test]
fn enable_with_what_there_isn_t_is_fatal_to_the_controller() {
    for cc in [
        Cc::enabled(1, 0),
        Cc::enabled(0, 6),
        Cc(Cc::enabled(0, 0).0 | 1 << 11),
        Cc(1 | 5 << 16 | 4 << 20),
        Cc(1 | 6 << 16 | 5 << 20),
    ] {
        let mut bench = Bench::new(config());
        bench.open(0, 0, &plain());
        bench.connect(0, admin_connect(), &connect_data(NQN, CNTLID_ANY));
        bench.set_cc(0, cc);
        let csts = bench.csts(0);
        assert!(csts.cfs() && !csts.rdy(), "{cc:?}");
        // A reset heals it.
        bench.set_cc(0, Cc(0));
        bench.set_cc(0, Cc::enabled(0, 0));
        let csts = bench.csts(0);
        assert!(csts.rdy() && !csts.cfs());
        // Nor is it taken later.
        bench.set_cc(0, cc);
        assert!(bench.csts(0).cfs(), "{cc:?}");
        bench.set_cc(0, Cc(0));
        bench.set_cc(0, Cc::enabled(0, 0));
        assert!(!bench.csts(0).cfs());
    }
}
