//! Errors that a client gets when something can't be.
use super::common::{BLOCKS, MS, SECOND};
use super::rig::{Rig, Setup, VOLUME, config};
use engine::export::{ExportControl, ExportEvent};
use engine::limits::CLIENT_ERRORS_MAX;
use engine::machine::DeviceError;
use engine::target::TargetControl;
use nbd::{Errno, Kind, Request};
use nvme::wire::Status;

/// A device's failure, through the target and the path, as the client hears it.
#[test]
fn what_a_device_says_reaches_the_client_in_its_words() {
    for (error, write, read) in [
        (DeviceError::Full, Errno::NoSpc, Errno::NoSpc),
        (DeviceError::ReadOnly, Errno::Perm, Errno::Perm),
        (DeviceError::Os(5), Errno::Io, Errno::Io),
        // ENOTSUP is for zeroes alone.
        (DeviceError::Unsupported, Errno::Inval, Errno::Inval),
    ] {
        let mut rig = Rig::ready(Setup::default());
        let client = rig.connect(config(2));
        rig.world.nodes[super::common::TARGET].disks[0].error = Some(error);
        let request = Request::new(0, Kind::Write, 0, 4096);
        assert_eq!(rig.refused(client, request, &[1; 4096]), write, "{error:?}");
        let request = Request::new(0, Kind::Read, 0, 4096);
        assert_eq!(rig.refused(client, request, &[]), read, "{error:?}");
        // Nothing else is wrong with the session.
        rig.world.nodes[super::common::TARGET].disks[0].error = None;
        rig.write(client, 0, &[1; 4096]);
        assert_eq!(rig.engine.borrow().counters(0).errors, 2);
    }
}

/// A storm of errors has few lines, and the count of the rest comes by itself.
#[test]
fn errors_of_clients_are_described_and_a_storm_is_counted() {
    let mut rig = Rig::ready(Setup::default());
    let client = rig.connect(config(2));
    rig.world.nodes[super::common::TARGET].disks[0].error = Some(DeviceError::Os(5));
    let request = Request::new(0, Kind::Write, 8192, 4096);
    let storm = CLIENT_ERRORS_MAX + 6;
    (0..storm).for_each(|_| assert_eq!(rig.refused(client, request, &[1; 4096]), Errno::Io));
    let described = rig.events.iter().filter_map(|event| match event {
        ExportEvent::Error(error) => Some((**error).clone()),
        _ => None,
    });
    let described: Vec<_> = described.collect();
    assert_eq!(described.len() as u32, CLIENT_ERRORS_MAX);
    let first = &described[0];
    assert_eq!(
        (first.op, first.offset, first.length),
        ("write", 8192, 4096)
    );
    assert_eq!(&*first.error, "input/output error (EIO)");
    let (uri, status) = first.path.clone().unwrap();
    assert!(!uri.is_empty());
    assert!(
        matches!(status, DeviceError::Nvme(it) if it.is(Status::WRITE_FAULT)),
        "{status:?}"
    );
    let rest = |rig: &Rig| {
        let mut events = rig.events.iter();
        events.any(|event| matches!(event, ExportEvent::MoreErrors(_, 6)))
    };
    assert!(!rest(&rig), "the period is not over");
    assert!(rig.run(11 * SECOND, rest));
}

/// Clients fall back to writes at ENOTSUP, and to nothing at EINVAL.
#[test]
fn zeroes_that_are_not_supported_any_more_say_so() {
    let mut rig = Rig::ready(Setup::default());
    let client = rig.connect(config(2));
    rig.world.nodes[super::common::TARGET].disks[0].error = Some(DeviceError::Unsupported);
    let zeroes = Request::new(0, Kind::WriteZeroes, 0, 4096);
    assert_eq!(rig.refused(client, zeroes, &[]), Errno::NotSup);
    let trim = Request::new(0, Kind::Trim, 0, 4096);
    assert_eq!(rig.one(client, trim, &[]).result, Ok(()));
}

#[test]
fn zeroes_of_any_bytes_are_written_where_there_is_no_command() {
    let mut rig = Rig::ready(Setup {
        slot_bytes: 1 << 20,
        ..Setup::default()
    });
    let client = rig.connect(config(2));
    rig.world.nodes[super::common::TARGET].disks[0].lacks_zeroes = true;
    let (from, len) = (100, 300_000);
    rig.write(client, 0, &[7; 320 << 10]);
    let mut plain = rig.connect_plain();
    let bytes = plain.request(
        nbd::wire::cmd::WRITE_ZEROES,
        0,
        1,
        (from as u64, len as u32),
    );
    rig.clients.borrow_mut().say(plain.conn, &bytes);
    assert_eq!(plain.reply(&mut rig).error, 0);
    let now = rig.read(client, 0, 320 << 10);
    assert!(now[from..from + len].iter().all(|it| *it == 0));
    assert!(
        now[..from]
            .iter()
            .chain(&now[from + len..])
            .all(|it| *it == 7)
    );
}

#[test]
fn a_fast_zero_that_is_not_supported_says_so() {
    let mut rig = Rig::ready(Setup::default());
    let client = rig.connect(config(2));
    rig.world.nodes[super::common::TARGET].disks[0].error = Some(DeviceError::Unsupported);
    let fast = Request {
        fast_zero: true,
        ..Request::new(0, Kind::WriteZeroes, 0, 4096)
    };
    assert_eq!(rig.refused(client, fast, &[]), Errno::NotSup);
}

#[test]
fn a_read_only_export_refuses_every_change_and_reads_on() {
    let mut rig = Rig::ready(Setup {
        read_only: true,
        ..Setup::default()
    });
    let client = rig.connect(config(2));
    let features = rig.clients.borrow().all[client].ready.unwrap().features;
    assert!(features.read_only && !features.trim && !features.write_zeroes && !features.fua);
    // Our own client doesn't ask; another one does.
    let mut plain = rig.connect_plain();
    use nbd::wire::cmd;
    for (command, len) in [(cmd::WRITE, 4096), (cmd::TRIM, 0), (cmd::WRITE_ZEROES, 0)] {
        let mut bytes = plain.request(command, 0, 1, (0, 4096));
        bytes.resize(bytes.len() + len, 1);
        rig.clients.borrow_mut().say(plain.conn, &bytes);
        assert_eq!(plain.reply(&mut rig).error, Errno::Perm.code());
    }
    assert_eq!(rig.read(client, 0, 4096), vec![0; 4096]);
    assert_eq!(rig.one(client, Request::flush(0), &[]).result, Ok(()));
    assert!(rig.disk.bytes.borrow().iter().all(|byte| *byte == 0));
}

#[test]
fn ranges_beyond_the_end_are_refused_with_the_right_word() {
    let mut rig = Rig::ready(Setup::default());
    let mut plain = rig.connect_plain();
    use nbd::wire::cmd;
    let end = super::rig::VOLUME;
    for (command, range, errno) in [
        (cmd::READ, (end - 1, 2), Errno::Inval),
        (cmd::READ, (u64::MAX, 2), Errno::Inval),
        (cmd::TRIM, (end, 1), Errno::Inval),
        (cmd::WRITE_ZEROES, (end - 1, u32::MAX), Errno::NoSpc),
        (cmd::READ, (0, 0), Errno::Inval),
        (cmd::BLOCK_STATUS, (0, 4096), Errno::Inval),
        (cmd::CACHE, (end - 1, 2), Errno::Inval),
        (99, (0, 4096), Errno::Inval),
    ] {
        let bytes = plain.request(command, 0, 1, range);
        rig.clients.borrow_mut().say(plain.conn, &bytes);
        let error = plain.reply(&mut rig).error;
        assert_eq!(error, errno.code(), "command {command} {range:?}");
    }
    // The very last byte is there.
    let bytes = plain.request(cmd::READ, 0, 1, (end - 1, 1));
    rig.clients.borrow_mut().say(plain.conn, &bytes);
    assert_eq!(plain.reply(&mut rig).data, [0]);
    // Nothing is kept, and nothing is read for it.
    let bytes = plain.request(cmd::CACHE, 0, 1, (1, end as u32 - 1));
    rig.clients.borrow_mut().say(plain.conn, &bytes);
    let answer = plain.reply(&mut rig);
    assert_eq!((answer.error, answer.data.len()), (0, 0));
}

/// The protocol can't tell a client of another size.
#[test]
fn t33_a_client_of_a_shrunk_volume_keeps_its_size_and_hears_what_is_gone() {
    let mut rig = Rig::ready(Setup::default());
    let client = rig.connect(config(4));
    let gone = VOLUME - 4096;
    rig.write(client, gone, &[1; 4096]);
    rig.target_control(TargetControl::Resize(1, BLOCKS / 2));
    rig.pass(100 * MS);
    for (kind, errno) in [
        (Kind::Read, Errno::Inval),
        (Kind::Write, Errno::NoSpc),
        (Kind::WriteZeroes, Errno::NoSpc),
        (Kind::Trim, Errno::NoSpc),
    ] {
        let data: &[u8] = if kind == Kind::Write { &[2; 4096] } else { &[] };
        let refused = rig.refused(client, Request::new(0, kind, gone, 4096), data);
        assert_eq!(refused, errno, "{kind:?}");
    }
    rig.write(client, 0, &[3; 4096]);
    rig.target_control(TargetControl::Resize(1, BLOCKS));
    rig.pass(100 * MS);
    assert_eq!(rig.read(client, gone, 4096), vec![1; 4096]);
}

/// A request in flight at a stop ends well; one that comes after it is told why not.
#[test]
fn at_a_stop_new_requests_are_refused_and_old_ones_end() {
    let mut rig = Rig::ready(Setup::default());
    rig.world.nodes[super::common::TARGET].disks[0].delay_ns = SECOND;
    let mut plain = rig.connect_plain();
    plain.write(&rig, 1, 0, &[7; 4096]);
    rig.pass(SECOND / 2);
    rig.control(ExportControl::Stop(10 * SECOND));
    plain.write(&rig, 2, 4096, &[8; 4096]);
    let reply = plain.reply(&mut rig);
    assert_eq!((reply.cookie, reply.error), (2, Errno::Shutdown.code()));
    let reply = plain.reply(&mut rig);
    assert_eq!((reply.cookie, reply.error), (1, 0));
    rig.until(5 * SECOND, |rig| rig.is_closed(plain.conn));
    rig.pass(5 * SECOND);
    assert!(rig.world.nodes[super::common::HOST].stopped);
    assert_eq!(
        rig.disk.bytes.borrow()[..8192],
        [[7; 4096], [0; 4096]].concat()
    );
    rig.at_rest();
    assert!(rig.lines().is_empty());
}
