//! Seeds of the corpus: lives of mirrors, and pages of their bitmaps, with one thing written over
//! at last.
use super::life::{AWAY, COPY, CUT, EVENT, OVER};

/// Every seed: target, name, input.
pub fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let lives = (0..24).map(|choice| ("mirror", format!("life-{choice:02}"), life(choice)));
    let pages = (0..8).map(|choice| ("mirror", format!("page-{choice:02}"), page(choice)));
    lives.chain(pages).collect()
}

/// Begun; a leg leaves, is away while something happens, comes back, is rebuilt; then a departure.
fn life(choice: u8) -> Vec<u8> {
    let leg = (choice % 3) << 4;
    let mut tape = vec![choice, EVENT, 0];
    match choice / 3 % 4 {
        // A crash after some of the writings.
        0 => tape.extend([EVENT, 0x08, choice]),
        1 => tape.extend([EVENT | leg, 2, AWAY | leg, EVENT, 0, AWAY | leg]),
        2 => {
            tape.extend([EVENT | leg, 2, EVENT | leg, 3, EVENT | leg, 0x24]);
            tape.extend([EVENT | leg, 4 | 8, 1]);
        }
        _ => tape.extend([AWAY | leg, EVENT | leg, 6, EVENT, 0, AWAY | leg]),
    }
    match choice / 4 {
        // In order.
        0 => tape.extend([EVENT, 1]),
        // A field that says something else, its checksum right: event, a leg's state, version.
        1 => tape.extend([OVER | leg, 88, 0, 1, 9]),
        2 => tape.extend([OVER | leg, 0x10, 5, 1, choice % 4]),
        3 => tape.extend([OVER | leg, 12, 0, 1, 1 + choice % 2]),
        // Torn: a part of both copies; or one of another leg, or the end is missing.
        4 => tape.extend([
            (OVER | 1) | leg,
            0,
            1,
            4,
            1,
            2,
            3,
            4,
            OVER | 9 | leg,
            0,
            2,
            1,
            7,
        ]),
        _ => tape.extend([COPY | leg, 2 + choice % 4, CUT | leg, 0, choice % 32]),
    }
    tape
}

fn page(choice: u8) -> Vec<u8> {
    let mut tape = vec![0x80 | (choice % 2), 0x20, 0x1c];
    for index in 0..3 {
        tape.extend([0x40 | index, 5, index * 15, 0x77, index * 16, 0, 0, 0]);
    }
    // Bits behind the last region; an index that is not its own; a bad checksum.
    tape.extend([0x20 | 1, 9, 9, 32 + choice, 0, 2, 0xff, 0xff]);
    tape.extend([4 | choice & 11, 32 + choice, 0, 2, 0xff, 0xff]);
    tape.extend([4, 8, 0, 1, 2, 8 | 1, 40, 0, 1, 0xaa]);
    tape
}
