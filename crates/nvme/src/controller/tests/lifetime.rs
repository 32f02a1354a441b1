//! Orderly and forced ends, and their timers.
use super::io::{read, write};
use super::*;
use crate::limits::{HANDSHAKE_NS, IDLE_NS, IDLE_WANTED_NS, LINGER_NS};
use crate::wire::fabrics::{DISCOVERY_NQN, disconnect};

#[test]
fn a_peer_that_says_nothing_or_one_byte_a_second_is_cut() {
    for trickle in [false, true] {
        let mut bench = Bench::new(config());
        bench.target.open(ConnId(0), 0, bench.now).unwrap();
        bench.wires.insert(0, Wire::default());
        let mut bytes = Vec::new();
        plain().emit(&mut bytes);
        assert_eq!(bench.target.poll_timeout(), Some(bench.now + HANDSHAKE_NS));
        for byte in bytes.iter().take(9) {
            bench.advance(1000 * MS);
            if trickle {
                bench.feed(0, &[*byte]);
            }
            assert_eq!(bench.closed, []);
        }
        bench.advance(1000 * MS);
        assert_eq!(bench.closed, [(0, CloseReason::Handshake)]);
        assert!(CloseReason::Handshake.is_abortive());
        bench.gone(0);
        assert_eq!(bench.target.poll_timeout(), None);
        assert_eq!(bench.target.connections().count(), 0);
    }
}

#[test]
fn icreq_alone_does_not_stop_the_clock_and_connect_does() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    bench.advance(HANDSHAKE_NS - 1);
    assert_eq!(bench.closed, []);
    bench.connect(0, admin_connect(), &connect_data(NQN, CNTLID_ANY));
    bench.advance(2);
    assert_eq!(bench.closed, []);
    // It must be enabled some day.
    bench.advance(IDLE_NS);
    assert_eq!(bench.closed, [(0, CloseReason::Handshake)]);
    assert_eq!(bench.target.controllers().count(), 0);
}

fn with_kato(kato_ms: u32) -> Bench {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    let connect = Connect {
        kato_ms,
        ..admin_connect()
    };
    bench.connect(0, connect, &connect_data(NQN, CNTLID_ANY));
    bench.set_cc(0, Cc::enabled(0, 0));
    bench.io(1, 0, 3, 1, &Options::default());
    bench
}

#[test]
fn t29_missed_keep_alive_closes_every_connection_of_the_controller() {
    let mut bench = with_kato(1950);
    bench.admin(2, 0);
    // Rounded up to the granularity of 100 ms.
    assert_eq!(bench.target.poll_timeout(), Some(bench.now + 2000 * MS));
    for _ in 0..5 {
        bench.advance(1999 * MS);
        assert_eq!(bench.closed, []);
        assert!(bench.ask(0, SqeBuilder::new(0x18)).status.is_success());
    }
    // I/O does not count as traffic where traffic-based keep-alive isn't offered.
    bench.advance(1999 * MS);
    bench.send(1, SqeBuilder::new(0).nsid(1), &[]);
    bench.advance(MS);
    let mut closed = core::mem::take(&mut bench.closed);
    closed.sort_by_key(|&(conn, _)| conn);
    assert_eq!(
        closed,
        [(0, CloseReason::KeepAlive), (1, CloseReason::KeepAlive)]
    );
    let left: Vec<_> = bench.target.controllers().map(|c| c.cntlid).collect();
    assert_eq!(left, [4], "the other host's controller lives");
}

#[test]
fn kato_zero_never_expires_and_can_be_changed() {
    let mut bench = with_kato(0);
    assert_eq!(bench.target.poll_timeout(), None);
    let set = SqeBuilder::new(0x09).cdw(10, 0x0f);
    bench.ask(0, set.cdw(11, 500));
    assert_eq!(bench.target.poll_timeout(), Some(bench.now + 500 * MS));
    bench.ask(0, set.cdw(11, 0));
    assert_eq!(bench.target.poll_timeout(), None);
    bench.ask(0, set.cdw(11, u32::MAX));
    assert_eq!(
        bench.target.poll_timeout(),
        Some(bench.now + u64::from(u32::MAX) * MS)
    );
}

#[test]
fn t09_reset_is_acknowledged_only_when_nothing_is_with_the_driver() {
    let mut bench = with_kato(0);
    bench.hold_commands = true;
    bench.send(1, read(1, 0, 1, 512), &[]);
    bench.set_cc(0, Cc(0));
    assert!(bench.csts(0).rdy(), "a command is still executing");
    assert_eq!(bench.closed, [(1, CloseReason::Finished)]);
    bench.gone(1);
    assert!(
        bench.csts(0).rdy(),
        "and still is, though its connection is gone"
    );
    bench.execute_one();
    assert!(!bench.csts(0).rdy());
    assert!(bench.buffers.is_empty() || bench.released.contains(&(1, 0)));
    // Enabled again, with a queue again.
    bench.hold_commands = false;
    bench.set_cc(0, Cc::enabled(0, 0));
    bench.io(1, 0, 3, 1, &Options::default());
}

#[test]
fn t09_t22_data_received_across_an_acknowledged_reset_is_never_written() {
    let mut bench = with_kato(0);
    let got = bench.send(1, write(1, 0, 8, Sgl::Transport { len: 4096 }), &[]);
    let [Got::R2t(r2t)] = got[..] else {
        panic!("{got:?}")
    };
    let pdu = bench.h2c(1, &r2t, true, &[0x77; 4096]);
    let header = pdu.len() - 4096;
    assert_eq!(bench.feed(1, &pdu[..header]), header);
    let place = bench.target.placement(ConnId(1)).unwrap();
    assert_eq!(place.len, 4096);
    // The driver receives straight into the buffer. In the meantime:
    bench.set_cc(0, Cc(0));
    assert!(!bench.csts(0).rdy(), "nothing is with the driver");
    let executed = bench.executed.len();
    bench.target.handle_payload(ConnId(1), 4096, 0, bench.now);
    bench.settle();
    assert_eq!(bench.executed.len(), executed);
    bench.gone(1);
    assert!(bench.released.contains(&(1, place.token)));
    assert_eq!(bench.executed.len(), executed);
}

#[test]
fn enable_during_a_reset_takes_effect_behind_it() {
    let mut bench = with_kato(0);
    bench.hold_commands = true;
    bench.send(1, SqeBuilder::new(0).nsid(1), &[]);
    bench.set_cc(0, Cc(0));
    bench.set_cc(0, Cc::enabled(0, 0));
    assert!(!bench.ask(0, SqeBuilder::new(0x18)).status.is_success());
    bench.execute_one();
    assert!(bench.csts(0).rdy());
    assert!(bench.ask(0, SqeBuilder::new(0x18)).status.is_success());
}

#[test]
fn t09_shutdown_completes_when_the_driver_is_done() {
    let mut bench = with_kato(1000);
    bench.hold_commands = true;
    bench.send(1, SqeBuilder::new(0).nsid(1), &[]);
    bench.set_cc(0, Cc::enabled(0, 0).with_shn(1));
    assert_eq!(bench.csts(0).shst(), 1);
    bench.execute_one();
    assert_eq!(bench.csts(0).shst(), 2);
    bench.gone(1);
    // Keep-alive is off now; the association may be asked for two minutes more.
    bench.advance(IDLE_NS - MS);
    assert_eq!(bench.closed, [(1, CloseReason::Finished)]);
    bench.advance(2 * MS);
    assert!(bench.closed.contains(&(0, CloseReason::Finished)));
}

/// Found by a fault scenario: the host of a controller that was reset had vanished, and another
/// connection lacked its place.
#[test]
fn where_all_places_are_taken_idle_associations_that_are_not_enabled_leave() {
    let mut bench = with_kato(1000);
    let room = |bench: &mut Bench| {
        bench.target.make_room(bench.now);
        bench.settle();
    };
    bench.set_cc(0, Cc::enabled(0, 0).with_shn(1));
    bench.gone(1);
    bench.advance(IDLE_WANTED_NS - MS);
    room(&mut bench);
    assert_eq!(bench.closed, [(1, CloseReason::Finished)], "it may go on");
    bench.advance(MS);
    assert_eq!(bench.closed.len(), 1, "its place is not needed");
    room(&mut bench);
    assert_eq!(bench.closed[1], (0, CloseReason::Finished));
    // One that is enabled stays, whatever its keep-alive time-out.
    for kato_ms in [0, 60_000] {
        let mut bench = with_kato(kato_ms);
        bench.advance(IDLE_WANTED_NS * 2);
        room(&mut bench);
        assert_eq!(bench.closed, [], "{kato_ms}");
    }
}

#[test]
fn t09_disconnect_is_answered_when_the_queue_is_drained() {
    let mut bench = with_kato(0);
    bench.hold_commands = true;
    for _ in 0..2 {
        bench.send(1, read(1, 0, 1, 512), &[]);
    }
    assert_eq!(bench.send(1, disconnect(), &[]), []);
    bench.execute_one();
    assert_eq!(bench.receive(1).len(), 2);
    assert_eq!(bench.closed, []);
    bench.execute_one();
    let got = bench.receive(1);
    let [Got::Data { .. }, Got::Response(_), Got::Response(last)] = &got[..] else {
        panic!("{got:?}")
    };
    assert_eq!(last.cid, bench.wires[&1].cid);
    assert_eq!(bench.closed, [(1, CloseReason::Finished)]);
    // The number is free again, though the connection lingers.
    bench.io(2, 0, 3, 1, &Options::default());
}

#[test]
fn an_admin_connection_takes_its_queues_with_it() {
    let mut bench = with_kato(0);
    bench.hold_commands = true;
    bench.send(1, read(1, 0, 1, 512), &[]);
    bench.gone(0);
    assert_eq!(bench.closed, [(1, CloseReason::AssociationLost)]);
    assert_eq!(bench.target.controllers().count(), 0);
    bench.gone(1);
    // The command is still executed; its connection's number is taken until it has ended.
    assert!(bench.target.open(ConnId(1), 0, bench.now).is_err());
    bench.execute_one();
    assert_eq!(bench.released.last(), Some(&(1, 0)));
    assert!(bench.target.open(ConnId(1), 0, bench.now).is_ok());
}

#[test]
fn an_old_command_ends_without_touching_the_controller_that_came_after() {
    let mut bench = with_kato(0);
    bench.hold_commands = true;
    bench.send(1, read(1, 0, 1, 512), &[]);
    bench.gone(0);
    bench.gone(1);
    let cntlid = bench.admin(2, 0);
    assert_ne!(cntlid, 3);
    bench.execute_one();
    // Nothing of the new one was counted as done: its reset is acknowledged at once.
    bench.set_cc(2, Cc(0));
    assert!(!bench.csts(2).rdy());
}

#[test]
fn a_connection_that_is_gone_has_nothing_to_send() {
    let mut bench = with_kato(0);
    bench.hold_commands = true;
    bench.send(1, read(1, 0, 1, 512), &[]);
    bench.target.handle_bytes(ConnId(1), &[0xff; 8], bench.now);
    bench.target.handle_closed(ConnId(1), bench.now);
    let mut out = Vec::new();
    assert_eq!(
        bench.target.poll_transmit(ConnId(1), &mut out, bench.now),
        None
    );
    assert!(out.is_empty());
}

#[test]
fn commands_waiting_for_buffers_are_released_when_the_connection_goes() {
    let mut bench = with_kato(0);
    bench.hold_buffers = true;
    bench.send(
        1,
        super::io::write(1, 0, 32, Sgl::Transport { len: 16 << 10 }),
        &[],
    );
    let (_, token, _) = bench.wanted[0];
    bench.gone(1);
    assert_eq!(bench.released, [(1, token)]);
    // A late call is harmless.
    bench.target.buffer_ready(ConnId(1), token, bench.now);
    bench.settle();
}

#[test]
fn sends_not_reported_hold_their_buffer_beyond_the_connection() {
    let mut bench = with_kato(0);
    bench.hold_sends = true;
    bench.send(1, read(1, 0, 1, 512), &[]);
    bench.gone(1);
    assert_eq!(bench.released, []);
    bench.target.handle_sent(ConnId(1), 0);
    bench.settle();
    assert_eq!(bench.released, [(1, 0)]);
    assert!(bench.target.open(ConnId(1), 0, bench.now).is_ok());
}

#[test]
fn unsent_bytes_are_dropped_after_linger() {
    let mut bench = with_kato(0);
    bench.feed(1, &[0xff; 8]);
    assert_eq!(bench.closed, [(1, CloseReason::Protocol)]);
    bench.advance(LINGER_NS);
    assert_eq!(bench.closed[1], (1, CloseReason::Linger));
    assert!(CloseReason::Linger.is_abortive());
    bench.advance(LINGER_NS);
    assert_eq!(bench.closed.len(), 2);
}

#[test]
fn discovery_without_keep_alive_ends_when_nothing_is_asked() {
    let mut bench = Bench::new(config());
    bench.open(0, 0, &plain());
    bench.connect(0, admin_connect(), &connect_data(DISCOVERY_NQN, CNTLID_ANY));
    bench.set_cc(0, Cc::enabled(0, 0));
    bench.advance(IDLE_NS - MS);
    bench.ask(0, SqeBuilder::new(0x18));
    bench.advance(IDLE_NS - MS);
    assert_eq!(bench.closed, []);
    bench.advance(MS);
    assert_eq!(bench.closed, [(0, CloseReason::Finished)]);
}

#[test]
fn full_and_status() {
    let mut bench = with_kato(700);
    for conn in 2..12 {
        bench.target.open(ConnId(conn), 1, bench.now).unwrap();
    }
    assert_eq!(bench.target.open(ConnId(12), 0, bench.now), Err(Full));
    assert_eq!(bench.target.open(ConnId(0), 0, bench.now), Err(Full));
    let status: Vec<_> = bench.target.connections().collect();
    let want = |conn, port, cntlid, qid, entries| ConnectionStatus {
        conn: ConnId(conn),
        port,
        cntlid,
        qid,
        entries,
        outstanding: 0,
    };
    assert_eq!(status.len(), 12);
    assert_eq!(status[0], want(0, 0, Some(3), 0, 32));
    assert_eq!(status[1], want(1, 0, Some(3), 1, 8));
    assert_eq!(status[2], want(2, 1, None, 0, 0));
    let controllers: Vec<_> = bench.target.controllers().collect();
    assert_eq!(controllers.len(), 1);
    let c = controllers[0];
    assert_eq!(
        (c.cntlid, c.hostnqn, c.hostid, c.port),
        (3, HOST, [9; 16], 0)
    );
    assert_eq!(
        (c.discovery, c.ready, c.io_queues, c.kato_ms),
        (false, true, 1, 700)
    );
}

#[test]
#[should_panic(expected = "payload that was not placed")]
fn payload_without_placement_panics() {
    let mut bench = Bench::ready(config(), &Options::default());
    bench.target.handle_payload(ConnId(1), 0, 0, bench.now);
}

#[test]
#[should_panic(expected = "take_ranges: the driver has no such command")]
fn take_ranges_of_a_read_panics() {
    let mut bench = Bench::ready(config(), &Options::default());
    bench.hold_commands = true;
    bench.send(1, read(1, 0, 8, 4096), &[]);
    let token = bench.held[0].token;
    bench.target.take_ranges(ConnId(1), token);
}
