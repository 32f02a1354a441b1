//! A volume that changes its size under its clients (T33).
use super::common::{BLOCK, BLOCKS, SECOND};
use super::rig::{Rig, Setup, VOLUME, config};
use engine::export::ExportEvent;
use engine::host::HostEvent;
use engine::target::TargetControl;
use nbd::{Errno, Kind, Request};

/// The namespace gets another size, and the engine knows.
fn resize(rig: &mut Rig, blocks: u64) {
    let bytes = blocks * u64::from(BLOCK);
    rig.disk.bytes.borrow_mut().resize(bytes as usize, 0);
    rig.target_control(TargetControl::Resize(1, blocks));
    let known = |event: &ExportEvent| match event {
        ExportEvent::Host(HostEvent::Resized(0, info)) => info.bytes == bytes,
        _ => false,
    };
    rig.until(SECOND, |rig| rig.events.iter().any(known));
}

fn size(rig: &Rig, client: usize) -> u64 {
    rig.clients.borrow().all[client].ready.unwrap().size
}

#[test]
fn t33_a_client_keeps_the_size_it_was_told_and_the_next_one_is_told_the_new_one() {
    let mut rig = Rig::ready(Setup::default());
    let first = rig.connect(config(4));
    assert_eq!(size(&rig, first), VOLUME);
    let mut plain = rig.connect_plain();
    resize(&mut rig, 2 * BLOCKS);
    let second = rig.connect(config(4));
    assert_eq!(size(&rig, second), 2 * VOLUME);
    let data = super::pattern(VOLUME, 8192, 1);
    rig.write(second, VOLUME, &data);
    assert!(rig.read(second, VOLUME, 8192) == data);
    // For the first ones it ends where it ended.
    plain.write(&rig, 1, VOLUME - 1, &[7; 2]);
    assert_eq!(plain.reply(&mut rig).error, Errno::NoSpc.code());
    plain.write(&rig, 2, VOLUME - 1, &[7]);
    assert_eq!(plain.reply(&mut rig).error, 0);
    rig.write(first, VOLUME - 8192, &data);
    assert!(rig.read(second, VOLUME, 8192) == data, "untouched");
}

#[test]
fn t33_what_was_cut_off_is_refused_by_its_word_and_the_rest_goes_on() {
    let mut rig = Rig::ready(Setup::default());
    let first = rig.connect(config(4));
    resize(&mut rig, BLOCKS / 2);
    let second = rig.connect(config(4));
    assert_eq!(
        [size(&rig, first), size(&rig, second)],
        [VOLUME, VOLUME / 2]
    );
    for (kind, errno) in [
        (Kind::Read, Errno::Inval),
        (Kind::Write, Errno::NoSpc),
        (Kind::WriteZeroes, Errno::NoSpc),
        (Kind::Trim, Errno::NoSpc),
    ] {
        let request = Request::new(0, kind, VOLUME / 2 - 4096, 8192);
        assert_eq!(rig.refused(first, request, &[1; 8192]), errno, "{kind:?}");
    }
    let data = super::pattern(0, 8192, 1);
    rig.write(first, VOLUME / 2 - 8192, &data);
    assert!(rig.read(second, VOLUME / 2 - 8192, 8192) == data);
}
