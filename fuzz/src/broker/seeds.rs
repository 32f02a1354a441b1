//! Seeds of the corpora: commands, kicks, lies and holes, in turn.

/// Every seed: target, name, input.
pub fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let seeds = (0..16).flat_map(|choice| {
        let name = format!("seed-{choice:02}");
        let tape = both(&attack(choice), &scribble(choice));
        let threads = [&[choice], &tape[..]].concat();
        [
            ("broker", name.clone(), room(choice)),
            ("broker_threads", name, threads),
        ]
    });
    seeds.collect()
}

/// Commands with turns between them, every other operation once, and the honest client's.
fn room(choice: u8) -> Vec<u8> {
    let turns = |count: u8| 27 | count << 5;
    let mut tape = vec![choice];
    for round in 0..14 {
        let (opcode, nsid) = (round % 8, 1 + (round + choice) % 5);
        let pointer = (choice & 1) << 6;
        command(
            &mut tape,
            round,
            opcode,
            pointer | nsid,
            choice % 3,
            round % 2,
        );
        tape.push(turns(round % 3));
        if round % 6 == 5 {
            tape.extend([18, 26]);
        }
    }
    for which in 0..8 {
        // Memory of 8 KiB and a few bytes; what is asked for.
        tape.extend([
            20 | which << 5,
            0,
            0x20,
            0,
            0x20,
            21 | which << 5,
            1 + which % 3,
            1,
        ]);
        tape.extend([23 | which << 5, which, turns(1)]);
    }
    tape.extend([22, 5, 0, 0, 0, 1, 0, 0, 0]);
    tape.extend([0; 24]);
    tape.extend([24, 8, 1, 25, turns(3), 26]);
    if choice & 2 > 0 {
        tape.extend([26 | 7 << 5, turns(2), 1]);
        command(&mut tape, 0, 1, 3, 0, 1);
        tape.extend([turns(4), 26]);
    }
    tape
}

/// Both tapes in turn; the shorter one goes on with yielding.
fn both(first: &[u8], second: &[u8]) -> Vec<u8> {
    let at = |tape: &[u8], n| tape.get(n).copied().unwrap_or(25);
    let len = first.len().max(second.len());
    (0..len)
        .flat_map(|n| [at(first, n), at(second, n)])
        .collect()
}

/// A command in the next slot: opcode, namespace and pointer's form, identifier, pointer, second
/// pointer, blocks.
fn command(tape: &mut Vec<u8>, slot: u8, opcode: u8, choice: u8, second: u8, blocks: u8) {
    let operation = ((slot % 8) << 4) | (slot / 8);
    tape.extend([operation & 0x71, opcode, choice, slot, 8, second, blocks, 0]);
}

fn attack(choice: u8) -> Vec<u8> {
    let mut tape = Vec::new();
    for round in 0..12 {
        // NSID 1 to 3, PRPs or an SGL.
        let pointer = (choice & 1) << 6;
        let nsid = 1 + (round + choice) % 3;
        command(
            &mut tape,
            round,
            round,
            pointer | nsid,
            0,
            choice * round % 8,
        );
        tape.push(16);
    }
    match choice % 8 {
        0 => tape.extend([20, 0, 0x20, 0, 0x10, 21 | 1 << 5, 1, 2]),
        1 => tape.extend([23, 0, 23 | 1 << 5, 1, 23 | 3 << 5, 0]),
        2 => tape.extend([24, 8, 1, 16]),
        3 => tape.extend([22 | 4 << 5, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        4 => tape.extend([21 | 3 << 5, 1, 0, 21 | 4 << 5, 0, 0, 27, 27]),
        5 => tape.extend([20 | 3 << 5, 0, 0x40, 0, 0x40, 20 | 6 << 5, 0, 1, 0, 1]),
        6 => tape.extend([21, 0, 0, 21 | 7 << 5, 1, 1, 0, 16, 0, 0]),
        _ => tape.extend([26 | 7 << 5]),
    }
    for round in 0..4 {
        command(&mut tape, 12 + round, 2, 1, 0, 1);
    }
    tape
}

fn scribble(choice: u8) -> Vec<u8> {
    let mut tape = Vec::new();
    for round in 0..20 {
        match (round + choice) % 5 {
            0 => tape.extend([5, round % 16]),
            1 => tape.extend([7, round % 16]),
            2 => tape.extend([11, round, 8 | round << 5]),
            3 => tape.extend([13, round, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8]),
            _ => tape.extend([10, 8 | round << 5]),
        }
    }
    tape
}
