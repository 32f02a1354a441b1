//! An admin association that is ready: keep-alive, events, the discovery log, the orderly end.
use crate::host_peer::admin::{AdminPeer, Answer, Model, SECOND, admin_config, name};
use nvme::host::{AdminConfig, AdminEvent, DiscoveryLog, HostError, Step};
use nvme::limits::{DISCOVERY_ENTRIES_MAX, DISCOVERY_REREAD_NS, LOG_RESTARTS_MAX};
use nvme::wire::fabrics::{Csts, DISCOVERY_NQN};
use nvme::wire::features::AsyncEvent;
use nvme::wire::layout::terminated;
use nvme::wire::log::{DiscoveryEntry, DiscoveryHeader};
use nvme::wire::pdu::PduError;
use nvme::wire::{Sqe, Status};

/// Times at which a Keep Alive was sent, from one time to another, in steps of a tenth of a second.
fn keep_alives(peer: &mut AdminPeer, to_ns: u64, traffic: bool) -> Vec<u64> {
    let mut sent = Vec::new();
    while peer.now_ns < to_ns {
        if traffic {
            peer.admin.note_traffic(peer.now_ns);
        }
        peer.run_until(peer.now_ns + SECOND / 10);
        for seen in peer.take_seen() {
            assert_eq!(seen, "Keep alive");
            sent.push(peer.now_ns);
        }
    }
    sent
}

#[test]
fn t29_keep_alive_at_half_of_kato() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    let sent = keep_alives(&mut peer, 60 * SECOND, true);
    assert!(sent[0] <= 10 * SECOND);
    for pair in sent.windows(2) {
        assert_eq!(pair[1] - pair[0], 10 * SECOND);
    }
    assert!(sent.len() >= 5);
}

#[test]
fn t29_traffic_based_keep_alive_at_a_quarter_and_only_without_traffic() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default().traffic_based());
    let sent = keep_alives(&mut peer, 60 * SECOND, false);
    for pair in sent.windows(2) {
        assert_eq!(pair[1] - pair[0], 5 * SECOND);
    }
    assert!(sent.len() >= 10);
    assert_eq!(keep_alives(&mut peer, 120 * SECOND, true), []);
}

#[test]
fn t29_a_missed_keep_alive_is_a_dead_path() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default())
        .scripted(|sqe| (name(sqe) == "Keep alive").then(Answer::silent));
    let first = peer.admin.poll_timeout().unwrap();
    peer.run_until(first);
    assert_eq!(peer.take_seen(), ["Keep alive"]);
    peer.run_until(first + 10 * SECOND - 1);
    assert!(peer.take_seen().is_empty(), "one at a time");
    assert!(peer.events().is_empty());
    peer.run_until(first + 10 * SECOND);
    assert_eq!(peer.error(), HostError::TimedOut(Step::KeepAlive));
}

#[test]
fn t29_a_refused_keep_alive_is_an_error() {
    let status = Status::INVALID_OPCODE.with_dnr();
    let mut peer = AdminPeer::ready(admin_config(), Model::default())
        .scripted(move |sqe| (name(sqe) == "Keep alive").then(|| Answer::error(status)));
    peer.run_until(10 * SECOND);
    assert_eq!(
        peer.error(),
        HostError::Command {
            step: Step::KeepAlive,
            status
        }
    );
}

#[test]
fn t29_keep_alive_goes_out_while_another_command_is_outstanding() {
    let config = AdminConfig {
        timeout_ns: 100 * SECOND,
        ..admin_config()
    };
    // From CSTS.RDY on, before the association is ready.
    let mut peer = AdminPeer::new(config, Model::default())
        .scripted(|sqe| (name(sqe) == "Identify 02 0").then(Answer::silent));
    peer.run();
    peer.take_seen();
    assert!(!keep_alives(&mut peer, 30 * SECOND, false).is_empty());
    assert!(peer.events().is_empty());
}

#[test]
fn t30_the_next_event_is_asked_for_after_the_log_was_read() {
    let health = AsyncEvent {
        kind: 1,
        info: 0,
        log_page: 2,
    };
    let error = AsyncEvent {
        kind: 0,
        info: 4,
        log_page: 1,
    };
    let vendor = AsyncEvent {
        kind: 7,
        info: 9,
        log_page: 0xc0,
    };
    let strange = AsyncEvent {
        kind: 2,
        info: 0x77,
        log_page: 0,
    };
    for (event, seen) in [
        (health, vec!["Log 02 0+512", "Event request"]),
        (error, vec!["Log 01 0+512", "Event request"]),
        (vendor, vec!["Log c0 0+512", "Event request"]),
        (strange, vec!["Event request"]),
    ] {
        for refuse_log in [false, true] {
            let mut peer =
                AdminPeer::ready(admin_config(), Model::default()).scripted(move |sqe| {
                    let log = refuse_log && name(sqe).starts_with("Log");
                    log.then(|| Answer::error(Status::INVALID_LOG_PAGE.with_dnr()))
                });
            peer.event(event);
            assert_eq!(peer.take_seen(), seen);
            assert!(peer.events().is_empty());
        }
    }
}

#[test]
fn t30_a_changed_namespace_is_read_again() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    peer.model.disks[0].id.nsze = 5000;
    peer.event(AsyncEvent::NAMESPACE_ATTRIBUTE);
    let Some(AdminEvent::Changed(namespaces)) = peer.admin.poll_event() else {
        panic!()
    };
    assert_eq!(namespaces[0].blocks, 5000);
    let seen = peer.take_seen();
    assert_eq!(
        (seen[0].as_str(), seen[1].as_str()),
        ("Log 04 0+4096", "Identify 02 0")
    );
    assert_eq!(seen.last().unwrap(), "Event request");
    peer.model.disks.clear();
    peer.event(AsyncEvent::NAMESPACE_ATTRIBUTE);
    let Some(AdminEvent::Changed(namespaces)) = peer.admin.poll_event() else {
        panic!()
    };
    assert!(namespaces.is_empty());
}

#[test]
fn t30_a_persistent_internal_error_ends_the_association() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    peer.event(AsyncEvent::PERSISTENT_INTERNAL_ERROR);
    assert_eq!(peer.error(), HostError::PersistentInternalError);
}

#[test]
fn t30_firmware_activation_is_a_pause_not_a_failure() {
    // MTFA is 0: as long as any answer may take. Answers stop for 4 of 5 seconds.
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    let keep_alive = peer.admin.poll_timeout().unwrap();
    peer.script = Box::new(|sqe| (name(sqe) == "Keep alive").then(Answer::silent));
    peer.run_until(keep_alive + 9 * SECOND);
    peer.take_seen();
    peer.event(AsyncEvent::FIRMWARE_ACTIVATION);
    assert_eq!(peer.take_seen(), ["Log 03 0+512", "Event request"]);
    let until_ns = keep_alive + 14 * SECOND;
    assert!(matches!(peer.events()[..], [AdminEvent::Paused(at)] if at == until_ns));
    peer.run_until(keep_alive + 14 * SECOND - 1);
    assert!(peer.events().is_empty(), "past the usual deadline");
    peer.run_until(keep_alive + 14 * SECOND);
    assert_eq!(peer.error(), HostError::TimedOut(Step::KeepAlive));
}

#[test]
fn t30_repeated_firmware_notices_pause_once() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    let begin = peer.admin.poll_timeout().unwrap();
    let mut pauses = Vec::new();
    for second in 1..=700 {
        peer.run_until(begin + second * SECOND);
        peer.event(AsyncEvent::FIRMWARE_ACTIVATION);
        let paused = peer.events().into_iter().filter_map(|event| match event {
            AdminEvent::Paused(until_ns) => Some(until_ns),
            _ => None,
        });
        pauses.extend(paused.map(|until_ns| (second, until_ns - begin)));
    }
    // 5 s each (`timeout_ns`), and ten minutes between.
    let until = [1, 606].map(|second| (second, (second + 5) * SECOND));
    assert_eq!(pauses, until);
}

#[test]
fn t30_a_controller_that_takes_no_event_requests_is_left_alone() {
    let status = Status::AER_LIMIT.with_dnr();
    let mut peer = AdminPeer::new(admin_config(), Model::default())
        .scripted(move |sqe| (name(sqe) == "Event request").then(|| Answer::error(status)));
    peer.run();
    assert!(matches!(peer.events()[..], [AdminEvent::Ready(_)]));
    let asked = peer
        .take_seen()
        .iter()
        .filter(|seen| *seen == "Event request")
        .count();
    assert_eq!(asked, 1);
}

fn entry(i: u32) -> DiscoveryEntry {
    DiscoveryEntry {
        trtype: 3,
        adrfam: 1,
        subtype: 2,
        treq: 4,
        portid: i as u16,
        cntlid: 0xffff,
        asqsz: 32,
        trsvcid: terminated("4420"),
        subnqn: terminated("nqn.2026-01.org.example:v0"),
        traddr: terminated("10.0.0.1"),
        ..DiscoveryEntry::default()
    }
}

fn discovery(count: u32) -> (AdminConfig, Model) {
    let mut model = Model::default();
    model.id.cntrltype = 2;
    model.id.oaes = 1 << 31;
    model.id.subnqn = terminated(DISCOVERY_NQN);
    model.discovery = (0..count).map(entry).collect();
    (
        AdminConfig {
            subsystem: DISCOVERY_NQN.into(),
            ..admin_config()
        },
        model,
    )
}

#[test]
fn the_discovery_log_is_told_and_told_again_when_it_changes() {
    for count in [0, 1, 4, 5, 40] {
        let (config, model) = discovery(count);
        let mut peer = AdminPeer::ready(config, model);
        let Some(AdminEvent::Discovery(DiscoveryLog { entries, .. })) = peer.admin.poll_event()
        else {
            panic!()
        };
        assert_eq!(entries.len(), count as usize);
        for (i, entry) in entries.iter().enumerate() {
            assert_eq!((usize::from(entry.port_id), entry.cntlid), (i, 0xffff));
            assert_eq!(
                (entry.traddr.as_str(), entry.trsvcid.as_str()),
                ("10.0.0.1", "4420")
            );
            assert_eq!(entry.subnqn, "nqn.2026-01.org.example:v0");
        }
        peer.model.generation += 1;
        peer.model.discovery.push(entry(99));
        peer.event(AsyncEvent::DISCOVERY_CHANGE);
        let Some(AdminEvent::Discovery(DiscoveryLog { entries, .. })) = peer.admin.poll_event()
        else {
            panic!()
        };
        assert_eq!(entries.len(), count as usize + 1);
        assert_eq!(peer.take_seen().last().unwrap(), "Event request");
    }
}

/// A controller that always reports a changed log costs a log a second, and the log is still read;
/// the host's own request is no notice.
#[test]
fn a_discovery_log_that_changes_without_end_is_read_once_a_second() {
    let (config, model) = discovery(3);
    let mut peer = AdminPeer::ready(config, model);
    peer.events();
    let begun_ns = peer.now_ns;
    let mut logs = 0;
    while peer.now_ns < begun_ns + 10 * DISCOVERY_REREAD_NS {
        if peer.event_cid.is_some() {
            peer.event(AsyncEvent::DISCOVERY_CHANGE);
        }
        logs += peer.events().len();
        peer.run_until(peer.now_ns + DISCOVERY_REREAD_NS / 100);
    }
    assert_eq!(logs, 10);
    peer.events();
    peer.event(AsyncEvent::DISCOVERY_CHANGE);
    assert!(peer.events().is_empty(), "not yet");
    assert!(peer.event_cid.is_none(), "asked for when the log was read");
    peer.admin.request_discovery(peer.now_ns);
    peer.run();
    assert_eq!(peer.events().len(), 1);
    assert!(peer.event_cid.is_some());
}

#[test]
fn a_discovery_log_that_changes_while_it_is_read_is_read_anew() {
    let header = |generation, records| {
        Answer::data(
            &DiscoveryHeader {
                generation,
                records,
                format: 0,
            }
            .emit(),
        )
    };
    for times in [
        1,
        u64::from(LOG_RESTARTS_MAX),
        u64::from(LOG_RESTARTS_MAX) + 1,
    ] {
        let (config, model) = discovery(3);
        let (mut reads, mut generation) = (0, 0);
        let mut peer = AdminPeer::new(config, model).scripted(move |sqe| {
            if name(sqe) != "Log 70 0+1024" {
                return None;
            }
            reads += 1;
            generation += u64::from(reads > 1 && generation < times);
            Some(header(generation, 3))
        });
        peer.run();
        if times > LOG_RESTARTS_MAX.into() {
            assert_eq!(peer.error(), HostError::Unstable(Step::DiscoveryLog));
            continue;
        }
        let Some(AdminEvent::Discovery(DiscoveryLog { entries, .. })) = peer.events().pop() else {
            panic!()
        };
        assert_eq!(entries.len(), 3);
    }
    let (config, model) = discovery(0);
    let mut peer = AdminPeer::new(config, model).scripted(move |sqe| {
        (name(sqe) == "Log 70 0+1024").then(|| header(0, DISCOVERY_ENTRIES_MAX + 1))
    });
    peer.run();
    let max = DISCOVERY_ENTRIES_MAX as u32;
    assert_eq!(
        peer.error(),
        HostError::Limit {
            step: Step::DiscoveryLog,
            max
        }
    );
}

#[test]
fn a_discovery_log_is_read_on_request() {
    for refused in [false, true] {
        let (config, mut model) = discovery(1);
        if !refused {
            model.id.oaes = 0;
        }
        let mut peer = AdminPeer::new(config, model).scripted(move |sqe| {
            let asked = refused && sqe.opcode() == 0x09;
            asked.then(|| Answer::error(Status::INVALID_FIELD.with_dnr()))
        });
        peer.run();
        let events = peer.events();
        let Some(AdminEvent::Discovery(first)) = events.last() else {
            panic!("{events:?}")
        };
        assert!(peer.admin.is_discovery() && !peer.admin.tells_discovery());
        assert!(!peer.take_seen().contains(&"Event request".to_owned()));
        peer.model.generation += 1;
        peer.model.discovery.push(entry(99));
        peer.admin.request_discovery(peer.now_ns);
        peer.run();
        let events = peer.events();
        let Some(AdminEvent::Discovery(log)) = events.last() else {
            panic!("{events:?}")
        };
        let wanted = (first.generation + 1, 2);
        assert_eq!((log.generation, log.entries.len()), wanted);
    }
}

#[test]
fn shutdown_is_announced_and_waited_for() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    peer.admin.shutdown(0);
    peer.admin.shutdown(0);
    peer.run();
    assert_eq!(peer.take_seen(), ["Set 0x14 0x464001", "Get 0x1c"]);
    assert_eq!(peer.error(), HostError::Closed);
    // A controller that never is done.
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    peer.model.csts = Csts::new(true, false, 1);
    peer.admin.shutdown(0);
    peer.run();
    peer.run_until(5 * SECOND - 1);
    assert!(peer.events().is_empty());
    peer.run_until(5 * SECOND);
    assert_eq!(peer.error(), HostError::TimedOut(Step::Shutdown));
}

#[test]
fn shutdown_before_ready_ends_at_once() {
    let mut peer = AdminPeer::new(admin_config(), Model::default());
    peer.admin.shutdown(0);
    assert_eq!(peer.error(), HostError::Closed);
    peer.run();
    assert!(peer.take_seen().is_empty());
}

#[test]
fn shutdown_waits_for_the_command_that_is_outstanding() {
    let mut held = None;
    let (tell, told) = std::sync::mpsc::channel();
    let mut peer = AdminPeer::ready(admin_config(), Model::default()).scripted(move |sqe| {
        let hold = name(sqe).starts_with("Log 0c") && held.replace(()).is_none();
        hold.then(|| {
            tell.send(sqe.cid()).unwrap();
            Answer::silent()
        })
    });
    peer.event(AsyncEvent::ANA_CHANGE);
    peer.admin.shutdown(0);
    peer.run();
    assert_eq!(peer.take_seen(), ["Log 0c 0+4096"]);
    peer.reply(told.recv().unwrap(), &Answer::data(&[0; 4096]));
    peer.run();
    assert_eq!(peer.take_seen(), ["Set 0x14 0x464001", "Get 0x1c"]);
}

#[test]
fn a_closed_connection_ends_the_association_once() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    peer.admin.handle_closed(0);
    assert_eq!(peer.error(), HostError::Closed);
    peer.admin.handle_closed(0);
    peer.admin.handle_timeout(100 * SECOND);
    peer.run();
    assert!(peer.events().is_empty() && peer.take_seen().is_empty());
    assert_eq!(peer.admin.poll_timeout(), None);
}

#[test]
fn t24_garbage_ends_the_association_with_a_termreq() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    peer.give(&[0x47; 300]);
    peer.run();
    assert_eq!(peer.take_seen(), ["TermReq"]);
    assert_eq!(peer.error(), HostError::Protocol(PduError::field(0)));
}

#[test]
fn t09_a_reset_is_proof_only_once_rdy_reads_0() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default());
    assert_eq!(peer.admin.reset(0), Some(SECOND));
    assert_eq!(peer.admin.reset(0), Some(SECOND), "asked once");
    peer.model.csts = Csts::new(true, false, 0);
    peer.run();
    peer.run_until(100_000_000);
    assert!(peer.events().is_empty());
    let seen = peer.take_seen();
    assert_eq!(seen[..2], ["Set 0x14 0x460000", "Get 0x1c"]);
    assert_eq!(seen.len(), 1 + 11, "every 10 ms: {seen:?}");
    peer.model.csts = Csts::new(false, false, 0);
    peer.run_until(110_000_000);
    assert!(matches!(peer.events()[..], [AdminEvent::Reset]));
    // Nothing more is asked, not even for keep-alive.
    peer.take_seen();
    peer.run_until(100 * SECOND);
    assert!(peer.events().is_empty() && peer.take_seen().is_empty());
}

#[test]
fn t12_a_reset_overtakes_the_command_that_is_outstanding_and_has_its_own_time() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default())
        .scripted(move |sqe| name(sqe).starts_with("Log 0c").then(Answer::silent));
    peer.event(AsyncEvent::ANA_CHANGE);
    peer.run();
    peer.model.csts = Csts::new(true, false, 0);
    peer.take_seen();
    peer.admin.reset(0);
    peer.run();
    assert_eq!(peer.take_seen(), ["Set 0x14 0x460000", "Get 0x1c"]);
    peer.run_until(SECOND - 1);
    assert!(peer.events().is_empty());
    peer.run_until(SECOND);
    assert_eq!(peer.error(), HostError::TimedOut(Step::Reset));
}

/// A controller that is silent altogether has as long as without a reset: until the keep-alive in
/// flight is missed. One that answers Property Set has the time of a reset.
#[test]
fn t09_reset_of_a_silent_controller_ends_with_keep_alive() {
    for silent in [true, false] {
        let mut peer = AdminPeer::ready(admin_config(), Model::default()).scripted(move |sqe| {
            let name = name(sqe);
            (name == "Keep alive" || silent && name.starts_with("Set")).then(Answer::silent)
        });
        peer.model.csts = Csts::new(true, false, 0);
        let sent_ns = peer.admin.poll_timeout().unwrap();
        peer.run_until(sent_ns);
        assert_eq!(peer.take_seen(), ["Keep alive"]);
        let due_ns = sent_ns + 10 * SECOND;
        peer.run_until(due_ns - SECOND / 2);
        let until_ns = due_ns + SECOND / 2;
        assert_eq!(peer.admin.reset(peer.now_ns), Some(until_ns));
        peer.run();
        peer.run_until(due_ns - 1);
        assert!(peer.events().is_empty());
        peer.run_until(due_ns);
        if silent {
            assert_eq!(peer.error(), HostError::TimedOut(Step::KeepAlive));
            continue;
        }
        assert!(peer.events().is_empty());
        peer.run_until(until_ns);
        assert_eq!(peer.error(), HostError::TimedOut(Step::Reset));
    }
}

#[test]
fn a_reset_that_is_refused_or_comes_before_ready_proves_nothing() {
    let mut peer = AdminPeer::new(admin_config(), Model::default());
    assert_eq!(peer.admin.reset(0), None);
    let mut peer = AdminPeer::ready(admin_config(), Model::default()).scripted(|sqe| {
        name(sqe)
            .starts_with("Set")
            .then(|| Answer::error(Status::INVALID_FIELD))
    });
    peer.admin.reset(0);
    peer.run();
    let (step, status) = (Step::Reset, Status::INVALID_FIELD);
    assert_eq!(peer.error(), HostError::Command { step, status });
}

/// Answers to Aborts that a peer's host has received.
fn aborted(peer: &mut AdminPeer) -> Vec<(u16, u16, bool)> {
    let events = peer.events();
    let those = events.iter().map(|event| match event {
        AdminEvent::Aborted { sqid, cid, aborted } => (*sqid, *cid, *aborted),
        other => panic!("{other:?}"),
    });
    those.collect()
}

#[test]
fn t12_aborts_go_out_within_the_controllers_limit_and_each_is_answered() {
    let mut peer = AdminPeer::ready(admin_config(), Model::default()).scripted(|sqe| {
        let cid = sqe.cdw(10) >> 16;
        name(sqe).starts_with("Abort").then(|| match cid {
            1 => Answer::result(0),
            2 => Answer::result(1),
            _ => Answer::error(Status::INVALID_OPCODE),
        })
    });
    // The model's ACL is 3, 0's based.
    let taken: Vec<_> = (1..=6).map(|cid| peer.admin.abort(2, cid, 0)).collect();
    assert_eq!(taken, [true, true, true, true, false, false]);
    peer.take_seen();
    peer.run();
    let seen = peer.take_seen();
    assert_eq!(seen[..2], ["Abort 0x10002", "Abort 0x20002"]);
    let want = [(2, 1, true), (2, 2, false), (2, 3, false), (2, 4, false)];
    assert_eq!(aborted(&mut peer), want);
    assert!(peer.admin.abort(2, 2, 0), "there is room again");
    peer.run();
    assert_eq!(aborted(&mut peer), [(2, 2, false)]);
}

#[test]
fn t12_an_abort_that_is_not_answered_ends_the_association_and_a_reset_goes_before() {
    let silent = |sqe: &Sqe<'_>| name(sqe).starts_with("Abort").then(Answer::silent);
    let mut peer = AdminPeer::ready(admin_config(), Model::default()).scripted(silent);
    assert!(peer.admin.abort(1, 9, 0));
    peer.run_until(5 * SECOND);
    assert_eq!(peer.error(), HostError::TimedOut(Step::Abort));
    assert!(!peer.admin.abort(1, 9, 0));
    let mut peer = AdminPeer::ready(admin_config(), Model::default()).scripted(silent);
    assert!(peer.admin.abort(1, 9, 0));
    peer.model.csts = Csts::new(false, false, 0);
    peer.admin.reset(0);
    assert!(!peer.admin.abort(1, 9, 0));
    peer.run();
    assert!(matches!(peer.events()[..], [AdminEvent::Reset]));
    let mut peer = AdminPeer::new(admin_config(), Model::default());
    assert!(!peer.admin.abort(1, 9, 0), "not before it is ready");
}
