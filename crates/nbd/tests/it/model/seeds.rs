//! Sessions that end well: seeds of the corpora, and beginnings of attacks.
use super::client::{CHUNK, REPORT_SENT, SIMPLE, SUBMIT};
use super::server::{COMPLETE, WELL};
use super::{FEED, ZEROES, client, server, tape};
use nbd::wire::{
    Greeting, OptionHeader, OptionReply, RequestHeader, chunk, cmd, handshake, info, opt, rep,
    transmission,
};

/// Every seed: target, name, input.
///
/// # Panics
/// A session does not go as it should.
#[allow(dead_code, reason = "for the test that compares them")]
pub fn all() -> Vec<(&'static str, String, Vec<u8>)> {
    let mut all = Vec::new();
    for choice in 0..16 {
        let name = format!("session-{choice:02}");
        let tape = server_session(choice);
        let played = server::play(&tape);
        assert!(played.opened && played.done >= 6, "server session {choice}");
        all.push(("nbd_server", name.clone(), tape));
        let tape = client_session(choice);
        let played = client::play(&tape);
        let least = if choice & 7 == 3 { 6 } else { 4 };
        assert!(
            played.ready && played.done >= least,
            "client session {choice}"
        );
        all.push(("nbd_client", name, tape));
    }
    all
}

fn say(tape: &mut Vec<u8>, bytes: &[u8]) {
    tape::put(tape, FEED, ZEROES, bytes);
}

fn option(tape: &mut Vec<u8>, option: u32, data: &[u8]) {
    let mut bytes = Vec::new();
    let len = data.len() as u32;
    OptionHeader { option, len }.emit(&mut bytes);
    bytes.extend_from_slice(data);
    say(tape, &bytes);
    tape.push(WELL);
}

/// A client that haggles, asks for one of each kind, and says goodbye.
pub fn server_session(choice: u8) -> Vec<u8> {
    let mut tape = vec![choice << 4 | choice];
    tape.push(WELL);
    let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    say(&mut tape, &flags.to_be_bytes());
    if choice & 1 != 0 {
        option(&mut tape, opt::STRUCTURED_REPLY, &[]);
        let parts = [
            &[0, 0, 0, 4][..],
            b"disk",
            &[0, 0, 0, 1, 0, 0, 0, 15],
            b"base:allocation",
        ];
        option(&mut tape, opt::LIST_META_CONTEXT, &parts.concat());
        option(&mut tape, opt::SET_META_CONTEXT, &parts.concat());
    }
    if choice & 2 != 0 {
        option(&mut tape, opt::LIST, &[]);
        option(&mut tape, opt::STARTTLS, &[]);
        option(&mut tape, 99, b"what?");
    }
    if choice & 4 != 0 {
        option(&mut tape, opt::EXPORT_NAME, b"disk");
    } else {
        let wanted = [
            &[0, 0, 0, 4][..],
            b"disk",
            &[0, 2, 0, info::NAME as u8, 0, 3],
        ];
        option(&mut tape, opt::INFO, &wanted.concat());
        option(&mut tape, opt::GO, &wanted.concat());
    }
    one_of_each(&mut tape, choice);
    tape.extend([WELL, 2, 0, 2, 5, 1, 2, 3, 4]);
    let mut bytes = Vec::new();
    RequestHeader {
        flags: 0,
        command: cmd::DISC,
        cookie: 0,
        offset: 0,
        length: 0,
    }
    .emit(&mut bytes);
    say(&mut tape, &bytes);
    tape
}

/// A request of each kind, and one of none.
fn one_of_each(tape: &mut Vec<u8>, choice: u8) {
    for (cookie, command) in (1..).zip([
        cmd::READ,
        cmd::WRITE,
        cmd::FLUSH,
        cmd::TRIM,
        cmd::WRITE_ZEROES,
        cmd::BLOCK_STATUS,
        cmd::READ,
        77,
    ]) {
        let flush = command == cmd::FLUSH;
        let mut bytes = Vec::new();
        RequestHeader {
            flags: 0,
            command,
            cookie,
            offset: if flush { 0 } else { 512 * cookie },
            length: if flush { 0 } else { 12 << 10 },
        }
        .emit(&mut bytes);
        say(tape, &bytes);
        if command == cmd::WRITE {
            tape.push(server::GIVE_BUFFER);
            tape.extend([ZEROES, 0, 12 << 2]);
        }
        match choice & 8 {
            0 => tape.push(WELL),
            _ => tape.extend([COMPLETE, 15, REPORT_SENT]),
        }
    }
}

/// Block Status of four blocks, answered with two extents, the last one larger than was asked.
fn block_status(tape: &mut Vec<u8>, choice: u8) {
    let extents: &[u32] = match choice & 4 {
        0 => &[9, 2048, 0, 4096, 3],
        // Of another context: a rule is broken.
        _ => &[8, 4096, 0],
    };
    let len = 4 * extents.len() as u8;
    let kind = chunk::BLOCK_STATUS as u8;
    tape.extend([SUBMIT, 6, 1, 0, 8]);
    tape.extend([CHUNK, 0, chunk::DONE as u8, 0, kind, 0, len, 0, 0, 0]);
    let words: Vec<u8> = extents.iter().flat_map(|word| word.to_be_bytes()).collect();
    say(tape, &words);
}

fn reply(tape: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    let mut bytes = Vec::new();
    let len = data.len() as u32;
    OptionReply { option, kind, len }.emit(&mut bytes);
    bytes.extend_from_slice(data);
    say(tape, &bytes);
}

/// A server that offers everything, answers, and at last breaks a rule.
pub fn client_session(choice: u8) -> Vec<u8> {
    let structured = choice & 1 != 0;
    let mut tape = vec![choice & 3];
    let mut bytes = Vec::new();
    let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
    Greeting { flags }.emit(&mut bytes);
    say(&mut tape, &bytes);
    if structured {
        reply(&mut tape, opt::STRUCTURED_REPLY, rep::ACK, &[]);
        if choice & 2 != 0 {
            let context = [&[0, 0, 0, 9][..], b"base:allocation"].concat();
            reply(
                &mut tape,
                opt::SET_META_CONTEXT,
                rep::META_CONTEXT,
                &context,
            );
            reply(&mut tape, opt::SET_META_CONTEXT, rep::ACK, &[]);
        }
    }
    let flags = transmission::HAS_FLAGS
        | transmission::SEND_FLUSH
        | transmission::SEND_TRIM
        | transmission::SEND_WRITE_ZEROES;
    let export = [
        &[0, 0][..],
        &(1u64 << 20).to_be_bytes(),
        &flags.to_be_bytes(),
    ]
    .concat();
    let sizes = [512u32, 4096, 1 << 20].map(u32::to_be_bytes);
    let sizes = [&[0, 3][..], sizes.as_flattened()].concat();
    if choice & 4 != 0 {
        // A server of old: it knows no GO.
        reply(&mut tape, opt::GO, rep::ERR_UNSUP, &[]);
        say(&mut tape, &export[2..]);
    } else {
        reply(&mut tape, opt::GO, rep::INFO, &export);
        reply(&mut tape, opt::GO, rep::INFO, &sizes);
        reply(&mut tape, opt::GO, rep::ACK, &[]);
    }
    for kind in [2, 3, 4, 5] {
        tape.extend([SUBMIT, kind, kind, 0, 8, REPORT_SENT, SIMPLE, 0, 0]);
    }
    tape.extend([SUBMIT, 0, 1, 0, 2]);
    if structured {
        read_in_chunks(&mut tape, choice);
    } else {
        tape.extend([SIMPLE, 0, 0, ZEROES, 0, 4]);
    }
    if choice & 3 == 3 {
        block_status(&mut tape, choice);
    }
    // Two in flight, answered the other way round; the second with an error; then one too many.
    tape.extend([SUBMIT, 2, 0, 0, 1, SUBMIT, 3, 0, 0, 0, REPORT_SENT]);
    tape.extend([SIMPLE, 0, 5, SIMPLE, 1, 0, SIMPLE, 0, 0]);
    tape
}

/// A read of 1024 bytes at 512: data and a hole in either order, and the end.
fn read_in_chunks(tape: &mut Vec<u8>, choice: u8) {
    let mut data = |at: u64| {
        tape.extend([CHUNK, 0, 0, 0, chunk::OFFSET_DATA as u8, 0]);
        tape.extend((8u32 + 512).to_le_bytes());
        say(tape, &at.to_be_bytes());
        say(tape, &[7; 512]);
    };
    data(if choice & 8 != 0 { 1024 } else { 512 });
    tape.extend([CHUNK, 0, 1, 0, chunk::OFFSET_HOLE as u8, 0]);
    tape.extend(12u32.to_le_bytes());
    let at = if choice & 8 != 0 { 512u64 } else { 1024 };
    say(
        tape,
        &[&at.to_be_bytes()[..], &512u32.to_be_bytes()].concat(),
    );
}
