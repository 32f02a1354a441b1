//! Changes of parts of blocks while what was sent before may yet be executed: by an engine before
//! this one (T9), or by this one over a path that was lost (T46).
use super::common::{HOST, MS, P0, P1, SECOND, TARGET, host_config, target_config};
use super::rig::{Plain, Rig, Setup, config};
use engine::host::Recovery;
use nbd::wire::cmd;
use nbd::{Kind, Request};

/// Content of a block where only its first 100 bytes are 1.
fn around(rest: u8) -> Vec<u8> {
    let mut block = vec![rest; 4096];
    block[..100].fill(1);
    block
}

fn says(rig: &Rig, plain: &mut Plain, command: u16, cookie: u64, range: (u64, u32)) {
    let bytes = plain.request(command, 0, cookie, range);
    rig.clients.borrow_mut().say(plain.conn, &bytes);
}

#[test]
fn t09_what_is_read_around_a_change_waits_for_what_an_engine_before_had_sent() {
    let mut setup = Setup::default();
    setup.host.volumes[0].recovery = Recovery {
        unclean_stop_ns: Some(3 * SECOND),
        ..Recovery::default()
    };
    let mut rig = Rig::ready(setup);
    let mut plain = rig.connect_plain();
    plain.write(&rig, 1, 0, &[1; 100]);
    // Two blocks, both covered partly; neither has an I/O of its own.
    says(&rig, &mut plain, cmd::WRITE_ZEROES, 2, (8192 + 100, 4096));
    rig.pass(SECOND);
    let stats = rig.engine.borrow().host().hold_stats(0);
    assert_eq!((stats.held, stats.gated), (3, 3));
    assert!(plain.replies(&rig).is_empty());
    // Now it is executed, and somebody sees it.
    rig.disk.bytes.borrow_mut()[..16384].fill(7);
    says(&rig, &mut plain, cmd::READ, 3, (100, 50));
    assert_eq!(plain.reply(&mut rig).data, [7; 50], "reads don't wait");
    rig.pass(SECOND);
    assert!(plain.replies(&rig).is_empty());
    rig.pass(2 * SECOND);
    assert_eq!(plain.replies(&rig).len(), 2);
    let bytes = rig.disk.bytes.borrow();
    assert!(bytes[..4096] == around(7), "what nobody wrote stays");
    assert!(bytes[8192..8292] == [7; 100] && bytes[8292..12388] == [0; 4096]);
    assert!(bytes[12388..16384].iter().all(|&byte| byte == 7));
}

#[test]
fn t46_what_is_read_around_a_change_waits_for_the_end_of_a_held_write_of_its_block() {
    let mut setup = Setup {
        host: host_config(2),
        target: target_config(2),
        ..Setup::default()
    };
    setup.host.kato_ms = 1000;
    setup.host.volumes[0].recovery.enabled = true;
    setup.target.subsystem.connections_max = 64;
    let mut rig = Rig::ready(setup);
    let client = rig.connect(config(4));
    let mut plain = rig.connect_plain();
    rig.world.nodes[TARGET].disks[0].delay_ns = SECOND;
    rig.submit(client, Request::new(0, Kind::Write, 0, 4096), &[9; 4096]);
    rig.pass(10 * MS);
    rig.world.nodes[TARGET].disks[0].delay_ns = 0;
    let in_flight = |path| rig.engine.borrow().host().counters(0, path).in_flight;
    let path = u32::from(in_flight(P1) > 0);
    rig.world.cut(HOST, path);
    rig.pass(10 * MS);
    assert_eq!(rig.engine.borrow().host().hold_stats(0).held, 1);
    plain.write(&rig, 1, 0, &[1; 100]);
    says(&rig, &mut plain, cmd::READ, 2, (4096, 4096));
    assert_eq!(plain.reply(&mut rig).cookie, 2, "others go on");
    // The late write is executed, and then repeated.
    let reads = |rig: &Rig| {
        let reads = [P0, P1].map(|path| rig.engine.borrow().host().counters(0, path).ios[0]);
        reads.iter().sum::<u64>()
    };
    let before = reads(&rig);
    while rig.clients.borrow().in_flight(client) > 0 {
        assert_eq!(reads(&rig), before, "nothing is read of that block");
        assert!(plain.replies(&rig).is_empty());
        rig.pass(10 * MS);
    }
    assert_eq!(plain.reply(&mut rig).cookie, 1);
    assert!(rig.disk.bytes.borrow()[..4096] == around(9));
}
