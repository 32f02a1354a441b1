//! A connection whose other end, and whose server, is the test.
use super::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;

const BYTES: usize = 1 << 20;

/// Answers of a server, which has a file of `bytes` for each of two regions, and how many pages
/// the last one has then; whether the connection goes on behind each.
fn answers(bytes: [u64; 2]) -> Vec<(Answer, String, i64)> {
    let (mut client, ours) = UnixStream::pair().unwrap();
    let (news_sender, news) = channel();
    let (replies, received) = channel();
    let ear = Ear {
        id: 1,
        uid: 1000,
        socket: Arc::new(ours.into()),
        replies: received,
        news: news_sender,
        event: Arc::new(Event::new().unwrap()),
        patience_ns: u64::MAX / 2,
        bytes_max: u64::MAX,
    };
    let thread = std::thread::spawn(move || ear.run());
    let mut answers = Vec::new();
    for bytes in bytes {
        let request = Request::new(Operation::Register, 0, 0, BYTES as u64, 0);
        client.write_all(&request.emit()).unwrap();
        let News::Heard(1, request, _) = news.recv().unwrap() else {
            break;
        };
        let file = memfd_create("braid-unsealed", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, BYTES as u64).unwrap();
        let memory = Arc::new(Shared::map_unsealed(&file, BYTES).unwrap());
        ftruncate(&file, bytes).unwrap();
        let mut reply = Reply::new(&Answer::to(&request), "", Vec::new(), true);
        let (at, len) = (0, BYTES);
        reply.memory = vec![Region { memory, at, len }];
        replies.send(reply).unwrap();
        let mut answer = [0; MESSAGE];
        client.read_exact(&mut answer).unwrap();
        let answer = Answer::parse(&answer);
        let mut text = vec![0; answer.d as usize];
        client.read_exact(&mut text).unwrap();
        let pages = rustix::fs::fstat(&file).unwrap().st_blocks * 512;
        answers.push((answer, String::from_utf8(text).unwrap(), pages));
    }
    client.shutdown(std::net::Shutdown::Write).unwrap();
    // The connection is closed when the server has let go of it.
    drop(replies);
    // It is reset where a request was not heard.
    assert!(!matches!(client.read(&mut [0]), Ok(1..)));
    thread.join().unwrap();
    answers
}

#[test]
fn memory_is_allocated_before_it_is_answered_for() {
    let answers = answers([BYTES as u64; 2]);
    let seen: Vec<_> = answers.iter().map(|it| (it.0.error, it.2)).collect();
    assert_eq!(seen, [(0, BYTES as i64); 2]);
}

#[test]
fn a_client_whose_memory_cannot_be_had_is_told_and_ended() {
    let answers = answers([4096, BYTES as u64]);
    let [(answer, text, _)] = &answers[..] else {
        panic!("it is not ended");
    };
    assert_eq!(answer.error, Errno::FAULT.raw_os_error().cast_unsigned());
    assert!(
        text.contains("no memory") && text.contains("madvise"),
        "{text}"
    );
}
