//! Seeds of the corpora: whole sessions, honest to the end but for one departure.
use super::{discovery, export, host, initiator, liar, target};
use nbd::wire::opt;

/// Every seed: target, name, input.
///
/// # Panics
/// A session does not go as it should.
pub fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    for choice in 0..32 {
        let name = || format!("session-{choice:02}");
        let tape = of_target(choice);
        let done = target::play(&tape);
        assert!(done >= 4, "session {choice}: {done} good responses");
        all.push(("engine_target", name(), tape));
        let tape = of_host(choice);
        let played = host::play(&tape);
        // Lies at set-up may excuse every read after it.
        let checked = played.verified > 0 || choice >= 20;
        assert!(
            checked && played.ended > 0,
            "session {choice}: nothing was checked"
        );
        all.push(("engine_host", name(), tape));
        let tape = of_discovery(choice);
        let logs = discovery::play(&tape);
        assert!(logs >= 1, "session {choice}: {logs} logs were read");
        all.push(("engine_discovery", name(), tape));
        let tape = of_export(choice);
        let heard = export::play(&tape);
        assert!(heard > 100, "session {choice}: {heard} bytes were said");
        all.push(("engine_export", name(), tape));
    }
    let tape = hoarders();
    assert!(target::play(&tape) >= 5, "not all were connected");
    all.push(("engine_target", "hoarders".into(), tape));
    all
}

/// Three queues that between them have all memory, and send nothing of what they were asked for.
fn hoarders() -> Vec<u8> {
    use target::of;
    let mut tape = vec![0, of(0, target::ASSOCIATE), 0, 0];
    for queue in 1..4 {
        tape.extend([of(queue, target::QUEUE), 0, 0]);
        for _ in 0..4 {
            tape.extend([of(queue, initiator::IO), 0, 1, 0, 0, 0, 7]);
        }
    }
    tape.extend([target::PASS, 0x30, 0x75]);
    tape
}

/// Both are read; referrals in a loop, ways that go; a lie; and again.
fn of_discovery(choice: u8) -> Vec<u8> {
    use discovery::{LIE, OFFER, PASS, REFER};
    let mut tape = vec![choice & 7];
    let lie = [
        (choice % 4) << 1,
        choice % 20,
        choice,
        0,
        choice << 3,
        1,
        0,
        0,
    ];
    if choice & 8 == 0 {
        tape.extend([LIE]);
        tape.extend(lie);
    }
    tape.extend([PASS, 100, 0]);
    // To itself, to the honest one, to its name, to nobody.
    tape.extend([REFER | 0x20, 2, 1, 0x82, choice & 31]);
    tape.extend([PASS, 0xb8, 0x0b, OFFER, PASS, 10, 0, OFFER | 16]);
    tape.extend([LIE]);
    tape.extend(lie);
    tape.extend([REFER, PASS, 0xd0, 0x07]);
    if choice & 16 != 0 {
        tape.extend([6 | 16, PASS, 0x88, 0x13, 6, 7, 13, 13 | 16]);
    }
    tape
}

/// An association and its queue; a command of each kind; at last a departure.
fn of_target(choice: u8) -> Vec<u8> {
    use target::of;
    let mut tape = vec![choice.reverse_bits() ^ choice];
    tape.extend([of(0, target::ASSOCIATE), choice & 3, choice & 0x0c]);
    tape.extend([of(1, target::QUEUE), choice & 3, choice & 0x10]);
    for opcode in 0..6 {
        let identify = [opcode, 0, 1, 0, 0, 0, 0, 0];
        tape.extend([of(0, initiator::ADMIN), 0]);
        tape.extend(&identify[..8]);
    }
    for opcode in 0..6 {
        tape.extend([of(1, initiator::IO), 0, opcode, 0, opcode, 0, opcode & 7]);
        tape.extend([of(1, initiator::DATA), 0]);
    }
    // A write of one block in its capsule.
    tape.extend([of(1, initiator::IO), 0, 1, 3 << 3, 9, 0, 0]);
    tape.extend([of(2, target::ASSOCIATE), 0, 1]);
    tape.extend([of(2, initiator::ADMIN), 0, 1, 0, 0x70, 0, 63, 0, 0, 0]);
    match choice % 8 {
        // Data with something wrong in it.
        0..=3 => {
            tape.extend([of(1, initiator::IO), 0, 1, 0, 3, 0, 3]);
            tape.extend([of(1, 9), 0, choice, 1]);
        }
        // Data that never comes; an answer that is never taken.
        4 => tape.extend([of(1, initiator::IO), 0, 1, 0, 3, 0, 7, target::PASS, 0, 16]),
        5 => tape.extend([of(1, 21), 1, of(1, initiator::IO), 0, 0, 0, 3, 0, 7]),
        // Half a capsule; a reset.
        6 => tape.extend([
            of(1, 13),
            0,
            40,
            0,
            of(1, initiator::IO),
            0,
            1,
            3 << 3,
            0,
            0,
            0,
        ]),
        _ => tape.extend([of(0, initiator::CONFIGURE), 0, 3]),
    }
    tape
}

/// Twelve I/Os, a lie of each kind at set-up or later, and more I/O.
fn of_host(choice: u8) -> Vec<u8> {
    let mut tape = vec![choice.wrapping_mul(37), choice & 3];
    let lie = |io: u8, skip: u8| {
        let kind = choice % liar::KINDS;
        [host::LIE, io | skip << 1, kind, choice, 0, choice, 1, 4, 0]
    };
    if choice >= 20 {
        tape.extend(lie(0, choice % 16));
    }
    tape.extend([host::PASS, 200, 0]);
    let some = [0x11, 0x2f, 0x3f, 0x12, 0x0f, 0x1f, 0x20, 0x2f];
    tape.push(host::SUBMIT | 7 << 4);
    tape.extend(some);
    tape.extend([host::PASS, 2, 0]);
    tape.extend(lie(1, 0));
    tape.push(host::SUBMIT | 7 << 4);
    tape.extend(some);
    tape.extend([host::PASS, 0, 4]);
    tape.push(host::SUBMIT | 7 << 4);
    tape.extend(some);
    tape
}

/// A client of each sort; a request of each kind; one that stops in the middle.
fn of_export(choice: u8) -> Vec<u8> {
    use export::of;
    let mut tape = vec![choice << 3 | choice >> 2];
    tape.extend([of(0, export::HELLO)]);
    tape.extend([of(1, 3)]);
    let options = [opt::LIST, opt::STRUCTURED_REPLY, opt::INFO, opt::GO];
    for option in options {
        let named = u8::from(matches!(option, opt::INFO | opt::GO)) * 3;
        tape.extend([of(1, export::OPTION), option as u8, named, 0]);
    }
    for command in 0..8 {
        if command == 2 {
            continue;
        }
        for liar in [0, 1] {
            let at = [command, 0, command, 4 + command, 0, choice & 15, 0, 0, 0];
            tape.push(of(liar, export::REQUEST));
            tape.extend(at);
        }
    }
    match choice % 4 {
        // Half of a write; of several.
        0 => tape.extend([of(0, export::REQUEST), 1, 0, 9, 8, 0, 31, 0, 0, 0xc0]),
        1 => tape.extend([of(1, export::REQUEST), 1, 0, 9, 8, 0, 0x10, 0xc0, 0, 0xc0]),
        // Answers that are not taken.
        2 => tape.extend([
            of(0, 9),
            1,
            of(0, export::REQUEST),
            0,
            0,
            9,
            8,
            0,
            31,
            0,
            0,
            0,
        ]),
        _ => tape.extend([of(0, export::REQUEST), 2, 0, 9, 0, 0, 0, 0, 0, 0]),
    }
    tape.extend([export::PASS, 0, 4 * (choice & 15)]);
    tape
}
