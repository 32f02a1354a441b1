//! The target's engine in virtual time: what a port's shape does to commands, to the nanosecond,
//! and what can be changed while it runs.

use crate::target_hand::*;
use engine::machine::ConnId;
use engine::target::{TargetControl, TargetEngine};
use engine::{DeviceOp, Machine};
use nvme::host::AnaState;
use nvme::wire::Status;
use nvme::wire::sqe::Sgl;
use shape::Config;

const DELAY: Config = Config {
    delay_ns: 30 * MS,
    ..NONE
};
const NONE: Config = Config {
    delay_ns: 0,
    jitter_ns: 0,
    bytes_per_s: 0,
    servers: 0,
    service_ns: 0,
    large_delay_ns: 0,
    large_from: 0,
    stall_until_ns: 0,
    tail_per_million: 0,
    tail_ns: 0,
};

/// When each completion came, after the hand's start of the load.
fn times(done: &[(u64, u16, Status)], start: u64) -> Vec<u64> {
    assert!(
        done.iter().all(|(_, _, status)| status.is_success()),
        "{done:?}"
    );
    done.iter().map(|(at, _, _)| at - start).collect()
}

#[test]
fn an_unshaped_port_answers_at_once_with_what_was_written() {
    let (mut hand, queues) = Hand::ready(&[NONE]);
    let data = pattern(1, 8192);
    hand.write(queues[0], 3, &data);
    assert_eq!(times(&hand.done(queues[0]), hand.now), [0]);
    let cid = hand.read(queues[0], 3, 2);
    let got = hand.take(queues[0]);
    let [
        (
            _,
            Got::Data {
                cid: of,
                offset: 0,
                bytes,
            },
        ),
        (_, Got::Done(_)),
    ] = &got[..]
    else {
        panic!("{got:?}");
    };
    assert_eq!((*of, bytes), (cid, &data));
}

/// A host by hand that takes one C2HData PDU for a read, as SPDK's does. A host that doesn't
/// read, and asks for more, still takes no more than half of all buffers.
#[test]
fn each_read_is_one_data_pdu_within_the_buffers() {
    const LARGEST: u32 = 256;
    let (mut hand, queues) = Hand::ready(&[NONE]);
    let data = |hand: &mut Hand| -> Vec<usize> {
        let got = hand.take(queues[0]).into_iter();
        let data = got.filter_map(|(_, got)| match got {
            Got::Data { bytes, .. } => Some(bytes.len()),
            _ => None,
        });
        data.collect()
    };
    for blocks in [1, 2, 63, 64, 65, 128, 129, LARGEST] {
        hand.read(queues[0], 7, blocks);
        assert_eq!(data(&mut hand), [(blocks << SHIFT) as usize]);
    }
    let free = hand.target.buffers_free();
    hand.hold_sends.push(queues[0]);
    for _ in 0..100 {
        hand.read(queues[0], 0, LARGEST);
    }
    let held = free - hand.target.buffers_free();
    assert!((1..=hand.target.buffers() / 2 + (1 << 20)).contains(&held));
    hand.hold_sends.clear();
    hand.report_sends(queues[0]);
    assert_eq!(data(&mut hand), [(LARGEST << SHIFT) as usize; 100]);
    assert_eq!(hand.target.buffers_free(), free);
}

#[test]
fn the_delay_is_added_once_to_every_command_and_to_no_other_port() {
    let (mut hand, queues) = Hand::ready(&[NONE, DELAY]);
    let start = hand.now;
    for slba in 0..100 {
        hand.read(queues[1], slba, 1);
    }
    hand.read(queues[0], 0, 1);
    assert_eq!(times(&hand.done(queues[0]), start), [0]);
    hand.pass(30 * MS - 1);
    assert_eq!(hand.done(queues[1]), []);
    hand.pass(1);
    assert_eq!(times(&hand.done(queues[1]), start), [30 * MS; 100]);
}

#[test]
fn commands_due_at_one_time_begin_in_the_order_they_came() {
    let (mut hand, queues) = Hand::ready(&[DELAY]);
    let cids: Vec<u16> = (0..500).map(|slba| hand.read(queues[0], slba, 1)).collect();
    hand.pass(SECOND);
    let order: Vec<u16> = hand
        .done(queues[0])
        .iter()
        .map(|(_, cid, _)| *cid)
        .collect();
    assert_eq!(order, cids);
    assert!(hand.requests.is_sorted_by_key(|request| request.offset));
}

/// Also where the one that came first has not been called up yet.
#[test]
fn what_is_due_at_once_does_not_overtake_what_is_due() {
    let (mut hand, queues) = Hand::ready(&[DELAY]);
    let first = hand.read(queues[0], 0, 1);
    hand.now += 30 * MS;
    hand.target
        .handle_control(TargetControl::Shape(0, NONE), hand.now);
    let second = hand.read(queues[0], 1, 1);
    hand.pass(0);
    let order: Vec<u16> = hand
        .done(queues[0])
        .iter()
        .map(|(_, cid, _)| *cid)
        .collect();
    assert_eq!(order, [first, second]);
}

#[test]
fn a_write_is_delayed_from_the_arrival_of_its_last_byte() {
    let (mut hand, queues) = Hand::ready(&[DELAY]);
    let start = hand.now;
    let data = pattern(2, 64 << 10);
    hand.write_later(queues[0], 0, 16);
    let got = hand.take(queues[0]);
    let [(_, Got::R2t(r2t))] = got[..] else {
        panic!("{got:?}")
    };
    hand.pass(7 * MS);
    hand.answer(queues[0], &r2t, &data);
    hand.pass(30 * MS);
    assert_eq!(times(&hand.done(queues[0]), start), [37 * MS]);
    assert_eq!(hand.disk[..data.len()], data);
}

/// The demo's fast path: 300 MiB/s, both directions together, 1024 commands always outstanding.
#[test]
fn t09_data_received_while_its_connection_is_being_closed_begins_nothing() {
    let (mut hand, queues) = Hand::ready(&[NONE]);
    let conn = queues[0];
    let data = pattern(2, 4 << 10);
    hand.write_later(conn, 0, 1);
    let got = hand.take(conn);
    let [(_, Got::R2t(r2t))] = got[..] else {
        panic!("{got:?}")
    };
    // All but the last byte: the rest is being received into place.
    hand.answer_but_one(conn, &r2t, &data);
    assert!(hand.target.placement(ConnId(conn)).is_some());
    hand.control(TargetControl::Drop(0));
    let now = hand.now;
    hand.target.handle_payload(ConnId(conn), 1, 0, now);
    hand.settle();
    assert!(hand.requests.is_empty(), "{:?}", hand.requests);
}

#[test]
fn the_bandwidth_is_exact_over_a_long_closed_loop() {
    let bytes_per_s = 300 << 20;
    let (mut hand, queues) = Hand::ready(&[Config {
        bytes_per_s,
        ..NONE
    }]);
    let (start, queue) = (hand.now, queues[0]);
    let data = pattern(3, 4096);
    let mut sent = 0;
    let mut submit = |hand: &mut Hand| {
        sent += 1;
        match sent % 2 {
            0 => hand.read(queue, sent % BLOCKS, 1),
            _ => hand.write(queue, sent % BLOCKS, &data),
        }
    };
    for _ in 0..1024 {
        submit(&mut hand);
    }
    let mut ended = 0u64;
    while ended < 20_000 {
        hand.pass(50_000);
        for at in times(&hand.done(queue), start) {
            ended += 1;
            let exact = (u128::from(ended) * 4096 * 1_000_000_000).div_ceil(bytes_per_s.into());
            assert_eq!(u128::from(at), exact, "command {ended}");
            submit(&mut hand);
        }
    }
}

#[test]
fn large_commands_and_servers_count_as_the_model_says() {
    let large = Config {
        large_from: 64 << 10,
        large_delay_ns: 5 * MS,
        ..DELAY
    };
    let served = Config {
        servers: 2,
        service_ns: MS,
        ..NONE
    };
    let (mut hand, queues) = Hand::ready(&[large, served]);
    let start = hand.now;
    hand.read(queues[0], 0, 15);
    hand.read(queues[0], 0, 16);
    for slba in 0..5 {
        hand.read(queues[1], slba, 1);
    }
    hand.pass(SECOND);
    assert_eq!(times(&hand.done(queues[0]), start), [30 * MS, 35 * MS]);
    assert_eq!(
        times(&hand.done(queues[1]), start),
        [MS, MS, 2 * MS, 2 * MS, 3 * MS]
    );
}

#[test]
fn commands_without_payload_pass_a_slow_line_and_wait_the_delay() {
    let slow = Config {
        bytes_per_s: 1,
        delay_ns: MS,
        ..NONE
    };
    let (mut hand, queues) = Hand::ready(&[slow]);
    let start = hand.now;
    hand.send(queues[0], io(0x00, 0, 0), &[]);
    hand.send(queues[0], io(0x08, 0, 16), &[]);
    hand.pass(SECOND);
    assert_eq!(times(&hand.done(queues[0]), start), [MS, MS]);
}

#[test]
fn jitter_depends_on_the_seed_alone() {
    let run = |seed| {
        let shape = Config {
            jitter_ns: MS,
            ..DELAY
        };
        let mut config = config(&[shape, shape]);
        config.seed = seed;
        let mut hand = Hand::new(config);
        let queues = [0, 1].map(|port| hand.queue(port, 256));
        let start = hand.now;
        for slba in 0..100 {
            for queue in queues {
                hand.read(queue, slba, 1);
            }
        }
        hand.pass(SECOND);
        queues.map(|queue| times(&hand.done(queue), start))
    };
    let [one, other] = run(1);
    assert_eq!([one.clone(), other.clone()], run(1));
    assert_ne!(one, other, "ports draw their own");
    assert_ne!(one, run(2)[0]);
    assert!(one.iter().all(|at| (30 * MS..=31 * MS).contains(at)));
    assert_eq!(one.len(), 100);
}

#[test]
fn a_stall_holds_what_is_under_way_and_lets_it_go_on_where_it_was() {
    let (mut hand, queues) = Hand::ready(&[DELAY]);
    let start = hand.now;
    hand.read(queues[0], 0, 1);
    hand.pass(10 * MS);
    let stall = Config {
        stall_until_ns: hand.now + SECOND,
        ..DELAY
    };
    hand.control(TargetControl::Shape(0, stall));
    hand.read(queues[0], 1, 1);
    hand.pass(SECOND - 1);
    assert_eq!(hand.done(queues[0]), []);
    hand.pass(SECOND);
    let expected = [SECOND + 30 * MS, SECOND + 40 * MS];
    assert_eq!(times(&hand.done(queues[0]), start), expected);
}

#[test]
fn a_stall_can_be_lifted() {
    let (mut hand, queues) = Hand::ready(&[NONE]);
    let start = hand.now;
    hand.control(TargetControl::Shape(
        0,
        Config {
            stall_until_ns: u64::MAX,
            ..NONE
        },
    ));
    hand.read(queues[0], 0, 1);
    hand.pass(SECOND);
    assert_eq!(hand.done(queues[0]), []);
    hand.control(TargetControl::Shape(0, NONE));
    hand.pass(0);
    assert_eq!(times(&hand.done(queues[0]), start), [SECOND]);
}

#[test]
fn a_new_shape_is_for_what_comes_after_it() {
    let (mut hand, queues) = Hand::ready(&[DELAY]);
    let start = hand.now;
    let first = hand.read(queues[0], 0, 1);
    hand.control(TargetControl::Shape(
        0,
        Config {
            delay_ns: MS,
            ..NONE
        },
    ));
    let second = hand.read(queues[0], 0, 1);
    hand.control(TargetControl::Shape(7, NONE)); // there is no such port
    hand.pass(SECOND);
    let done = hand.done(queues[0]);
    assert_eq!(times(&done, start), [MS, 30 * MS]);
    assert_eq!([done[0].1, done[1].1], [second, first]);
}

#[test]
fn an_ana_state_is_of_one_port() {
    let (mut hand, queues) = Hand::ready(&[NONE, NONE]);
    hand.control(TargetControl::Ana(0, AnaState::Inaccessible));
    hand.control(TargetControl::Ana(9, AnaState::Inaccessible));
    queues.iter().for_each(|queue| {
        hand.read(*queue, 0, 1);
    });
    let status = hand.done(queues[0])[0].2;
    assert!(status.is(Status::ANA_INACCESSIBLE), "{status}");
    assert!(hand.done(queues[1])[0].2.is_success());
    hand.control(TargetControl::Ana(0, AnaState::Optimized));
    hand.read(queues[0], 0, 1);
    assert!(hand.done(queues[0])[0].2.is_success());
}

#[test]
fn an_ana_state_of_one_group_is_of_its_namespaces() {
    let (mut hand, queues) = Hand::ready(&[NONE]);
    let lost = AnaState::Inaccessible;
    // No port 9, and no namespace in group 2.
    for (port, group) in [(9, 1), (0, 2)] {
        hand.control(TargetControl::AnaGroup(port, group, lost));
        hand.read(queues[0], 0, 1);
        assert!(hand.done(queues[0])[0].2.is_success());
    }
    hand.control(TargetControl::AnaGroup(0, 1, lost));
    hand.read(queues[0], 0, 1);
    let status = hand.done(queues[0])[0].2;
    assert!(status.is(Status::ANA_INACCESSIBLE), "{status}");
}

#[test]
fn a_resized_namespace_ends_where_it_now_ends() {
    let (mut hand, queues) = Hand::ready(&[NONE]);
    let last = |hand: &mut Hand, slba| {
        hand.read(queues[0], slba, 1);
        hand.done(queues[0])[0].2
    };
    assert!(last(&mut hand, BLOCKS).is(Status::LBA_RANGE));
    hand.disk.resize(((2 * BLOCKS) << SHIFT) as usize, 0);
    hand.control(TargetControl::Resize(1, 2 * BLOCKS));
    assert!(last(&mut hand, BLOCKS).is_success());
    hand.control(TargetControl::Resize(1, 10));
    assert!(last(&mut hand, 10).is(Status::LBA_RANGE));
    hand.control(TargetControl::Resize(1, 0));
    hand.control(TargetControl::Resize(5, 10));
    assert!(
        last(&mut hand, 9).is_success(),
        "what can't be changes nothing"
    );
}

#[test]
fn every_command_becomes_the_device_operations_it_needs() {
    let mut config = config(&[NONE]);
    config.subsystem.namespaces.push(namespace(2));
    config.devices.push(engine::LocalDevice(5));
    let mut hand = Hand::new(config);
    let queue = hand.queue(0, 64);
    hand.hold_device = true;
    // Deallocate of three ranges, one of them empty: one after the other.
    let range =
        |slba: u64, blocks: u32| [&[0; 4][..], &blocks.to_le_bytes(), &slba.to_le_bytes()].concat();
    let ranges = [range(8, 2), range(0, 0), range(100, 1)].concat();
    let sgl = Sgl::InCapsule { offset: 0, len: 48 };
    hand.send(
        queue,
        io(0x09, 0, 0).cdw(10, 2).cdw(11, 4).cdw(12, 0).sgl(sgl),
        &ranges,
    );
    let seen = |hand: &Hand| -> Vec<(u64, u64)> {
        hand.requests
            .iter()
            .map(|r| (r.offset >> SHIFT, r.length >> SHIFT))
            .collect()
    };
    assert_eq!(seen(&hand), [(8, 2)]);
    hand.answer_device();
    assert_eq!(seen(&hand), [(8, 2), (100, 1)]);
    assert_eq!(hand.done(queue), []);
    hand.answer_device();
    assert!(hand.done(queue)[0].2.is_success());
    // A flush of everything goes to every device.
    hand.requests.clear();
    hand.send(queue, io(0x00, 0, 0).nsid(u32::MAX), &[]);
    hand.answer_device();
    hand.answer_device();
    assert_eq!(
        hand.requests.iter().map(|r| r.device.0).collect::<Vec<_>>(),
        [0, 5]
    );
    assert!(hand.done(queue)[0].2.is_success());
    // A compare has its data, and tells a difference.
    hand.hold_device = false;
    let sgl = Sgl::InCapsule {
        offset: 0,
        len: 4096,
    };
    hand.send(queue, io(0x05, 0, 1).sgl(sgl), &[0; 4096]);
    assert!(hand.done(queue)[0].2.is_success());
    hand.send(queue, io(0x05, 0, 1).sgl(sgl), &[1; 4096]);
    assert!(hand.done(queue)[0].2.is(Status::COMPARE_FAILURE));
}

#[test]
fn counters_tell_what_happened() {
    let (mut hand, queues) = Hand::ready(&[DELAY, NONE]);
    let board = hand.target.board();
    hand.read(queues[0], 0, 2);
    hand.read(queues[0], BLOCKS, 1); // out of range: never at the device
    let stats = board.port(0);
    assert_eq!(
        (stats.connections, stats.in_flight, stats.commands),
        (2, 1, 0)
    );
    hand.pass(SECOND);
    hand.device_error = Some(engine::machine::DeviceError::Os(5));
    hand.read(queues[1], 0, 1);
    let (slow, fast) = (board.port(0), board.port(1));
    assert_eq!(
        (slow.commands, slow.errors, slow.bytes, slow.in_flight),
        (1, 0, 8192, 0)
    );
    assert_eq!((fast.commands, fast.errors, fast.bytes), (1, 1, 0));
    assert_eq!(hand.target.port_stats(0), slow);
}

#[test]
fn a_target_ends_in_order() {
    let (mut hand, queues) = Hand::ready(&[DELAY]);
    hand.read(queues[0], 0, 1);
    hand.control(TargetControl::Stop);
    assert_eq!(hand.accept(0), None, "nobody new");
    let conns: Vec<u32> = hand.wires.keys().copied().collect();
    assert_eq!(conns.len(), 2);
    for conn in conns {
        assert_eq!(hand.wire(conn).closed, Some(false));
        assert!(!hand.stopped);
        hand.finish_close(conn);
    }
    assert!(hand.stopped);
    assert!(hand.requests.is_empty(), "what had not begun never does");
}

#[test]
fn a_target_ends_even_if_a_host_or_a_device_does_not_let_it() {
    let (mut hand, queues) = Hand::ready(&[NONE]);
    hand.hold_device = true;
    hand.read(queues[0], 0, 1);
    hand.control(TargetControl::Stop);
    hand.pass(2 * SECOND);
    let conns: Vec<u32> = hand.wires.keys().copied().collect();
    for conn in conns {
        assert_eq!(hand.wire(conn).closed, Some(true), "cut off");
        hand.finish_close(conn);
    }
    assert!(!hand.stopped, "a device still writes");
    hand.pass(2 * SECOND);
    assert!(hand.stopped);
}

#[test]
fn what_does_not_fit_together_is_refused_by_field() {
    let field = |change: fn(&mut engine::target::TargetConfig)| {
        let mut config = config(&[NONE]);
        change(&mut config);
        TargetEngine::new(config)
            .err()
            .map_or("", |error| error.field)
    };
    assert_eq!(field(|_| {}), "");
    assert_eq!(field(|c| c.shapes.clear()), "shapes");
    assert_eq!(field(|c| c.devices.clear()), "devices");
    assert_eq!(field(|c| c.subsystem.transfer_shift = 21), "transfer_shift");
    assert_eq!(field(|c| c.arena_bytes = 2 << 20), "arena_bytes");
    assert_eq!(
        field(|c| c.subsystem.connections_max = 1 << 16),
        "connections_max"
    );
    assert_eq!(field(|c| c.subsystem.nqn.clear()), "nqn");
}

/// Write Zeroes has the bit too (NVM command set 1.0, 3.2.8).
#[test]
fn t13_zeroes_with_fua_end_when_they_are_flushed() {
    let (mut hand, queues) = Hand::ready(&[shape::Config::default()]);
    hand.hold_device = true;
    let zeroes = io(0x08, 4, 2).cdw(12, 1 | 1 << 30);
    hand.send(queues[0], zeroes, &[]);
    hand.answer_device();
    assert!(hand.done(queues[0]).is_empty(), "they may be in a cache");
    hand.answer_device();
    assert_eq!(hand.done(queues[0]).len(), 1);
    let ops: Vec<_> = hand.requests.iter().map(|it| it.op).collect();
    let zeroes = DeviceOp::WriteZeroes { deallocate: false };
    assert_eq!(ops, [zeroes, DeviceOp::Flush]);
}
