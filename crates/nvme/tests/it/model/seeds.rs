//! Whole sessions of our own host and subsystem: seeds of the corpora, and beginnings of attacks.
use super::{admin, wired};

/// Operations of `wired`: everything goes well for a while; the queue is opened; a submission.
const WELL: u8 = 3;
const OPEN: u8 = 14;
const SUBMIT: u8 = 4;

/// Every seed: target, name, input.
///
/// # Panics
/// A session does not go as it should.
#[allow(dead_code, reason = "for the test that compares them")]
pub fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    for choice in 0..36 {
        let name = || format!("session-{choice:02}");
        let tape = match choice {
            0..32 => session(choice),
            _ => discovery(choice - 32),
        };
        let recorded = wired::record(&tape);
        all.push(("wired", name(), tape));
        all.push(("admin", name(), recorded.admin));
        all.push(("subsystem", name(), recorded.subsystem));
        if choice < 32 {
            assert!(recorded.done >= 1, "session {choice}: no I/O ended well");
            all.push(("io_queue", name(), queue(choice)));
            all.push(("rings", name(), rings(choice)));
        }
    }
    all
}

/// Commands of every kind with pointers of every form, and turns, with changes in the middle of
/// some of them; or a host whose completions come in order, then in none.
pub fn rings(choice: u8) -> Vec<u8> {
    let mut tape = vec![choice & 3];
    for round in 0..6 {
        let slot = (round % 5) << 4;
        if choice & 1 == 0 {
            let (opcode, flags) = (choice / 4 + round, ((choice / 2) & 1) | 0x80);
            let blocks = [7, 31, 255][usize::from(round % 3)];
            tape.extend([
                slot | 1,
                opcode,
                flags,
                round,
                0,
                blocks,
                choice / 4 + round,
                3,
            ]);
            tape.extend([((slot + 0x10) % 0x50) | 2, (slot % 0x50) | 3, 5]);
            // Nothing changes, or the tail, a word that was just read, or one of the list.
            let strike = [0, 0x81, 0x90, 0xa2][usize::from(choice / 8)];
            tape.extend([0, 0, 0, 0, 0, 0, strike, round, 0, 0, 0, 0, 0]);
            tape.extend([0; 24]);
        } else {
            tape.extend([slot, 2, 0, 0, slot | 3, round % 5, (round + 1) % 5]);
            let phase = u8::from(round < 5) ^ u8::from(round == choice / 4);
            tape.extend([phase, 5, 0, 0, 0, 0, 7]);
        }
    }
    tape
}

/// The discovery service: its log, a change of it, the end.
fn discovery(choice: u8) -> Vec<u8> {
    let mut tape = vec![choice | admin::DISCOVERY, 0];
    tape.extend([WELL, WELL, WELL, 12, 0, WELL, WELL, 13, 1, WELL]);
    tape
}

/// Connect, one command of each kind, a namespace event, and the end.
pub fn session(choice: u8) -> Vec<u8> {
    let mut tape = vec![choice | 0x20, choice & 2];
    tape.extend([WELL, WELL, OPEN, WELL]);
    for kind in 0..6 {
        tape.extend([SUBMIT, kind, kind * 7, 0]);
    }
    tape.extend([WELL, WELL, 12, choice % 4, WELL]);
    // Sixty-four blocks, more than fits a capsule: R2T and several data PDUs.
    tape.extend([SUBMIT, 4, 63, 0, SUBMIT, 5, 63, 0, WELL, WELL, WELL]);
    // Outside the namespace: a read, a write, a range to deallocate.
    tape.extend([
        SUBMIT, 5, 255, 255, SUBMIT, 4, 255, 255, SUBMIT, 3, 1, 0, WELL,
    ]);
    tape.extend([13, 1, WELL]);
    tape
}

/// A controller that answers: ICResp, Connect, a read with data, a write with R2T, responses; and
/// at last breaks a rule.
pub fn queue(choice: u8) -> Vec<u8> {
    let mut tape = vec![choice];
    tape.extend([1, 0, 0, 0]);
    tape.extend([1, 1, 0, 0]);
    // A read of 1024 bytes; C2HData, LAST, offset 0, 1024 bytes; then its response.
    tape.extend([3, 1, 1, 0]);
    tape.extend([1, 2, 4, 0, 0, 0, 4]);
    tape.extend([1, 1, 0, 0]);
    // A write of 20992 bytes; R2T for all of it; sends reported; the response.
    tape.extend([3, 3, 40, 0]);
    tape.extend([1, 3, 0, 0, 0, 41, 1, 0]);
    tape.extend([6, 255, 1, 1, 0, 0]);
    for _ in 0..4 {
        tape.extend([3, 0, 0, 0, 1, 1, 0, 0]);
    }
    match choice % 4 {
        // Data from the middle of a read.
        0 => tape.extend([3, 1, 1, 0, 1, 2, 4, 0, 1, 0, 2]),
        // More data asked for than a write has.
        1 => tape.extend([3, 3, 1, 0, 1, 3, 0, 0, 0, 9, 1, 0]),
        // More data than a read has.
        2 => tape.extend([3, 1, 1, 0, 1, 2, 4, 0, 0, 0, 8]),
        // An answer to the command before.
        _ => tape.extend([3, 1, 1, 0, 1, 1, 0, 1]),
    }
    tape
}
