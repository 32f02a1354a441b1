use super::*;
use crate::ring::ops::Allocate;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

const HOW_DURABLE: WriteHow = WriteHow {
    durable: true,
    ..WriteHow::AT_ANY_TIME
};

fn ring() -> Ring {
    ring_in(&MODES)
}

pub(super) fn ring_in(modes: &[Mode]) -> Ring {
    let config = RingConfig {
        operations_max: 64,
        buffers: 8,
        buffers_lent: 4,
        buffer_bytes: 16384,
    };
    Ring::with_modes(&config, Arena::new(1 << 20).unwrap(), modes).unwrap()
}

/// A connection: our end for the ring, the peer's for blocking calls.
pub(super) fn pair() -> (Fd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (Fd::new(listener.accept().unwrap().0.into()), peer)
}

fn next(ring: &mut Ring) -> Completion {
    loop {
        if let Some(completion) = ring.next_completion() {
            return completion;
        }
        ring.enter(Wait::Forever).unwrap();
    }
}

fn buffer(completion: Completion) -> Buffer {
    match completion.returned {
        Returned::Buffer(buffer) => buffer,
        other => panic!("{other:?} with {:?}", completion.result),
    }
}

pub(super) fn message(completion: Completion) -> Message {
    match completion.returned {
        Returned::Message(message) => message,
        other => panic!("{other:?} with {:?}", completion.result),
    }
}

#[test]
fn bytes_arrive_in_buffers_that_come_back() {
    let mut ring = ring();
    let (socket, mut peer) = pair();
    for round in 0..50_u8 {
        ring.receive(&socket, u32::MAX, round % 2 == 0, 7);
        ring.enter(Wait::No).unwrap();
        peer.write_all(&[round; 1000]).unwrap();
        let completion = next(&mut ring);
        assert_eq!((completion.tag, completion.result), (7, Ok(1000)));
        assert_eq!(*buffer(completion), [round; 1000]);
    }
    ring.receive(&socket, 4, false, 8);
    peer.write_all(b"123456").unwrap();
    let completion = next(&mut ring);
    assert!(completion.nonempty);
    assert_eq!(*buffer(completion), *b"1234");
}

#[test]
fn without_a_buffer_the_receive_says_so_and_works_later() {
    let mut ring = ring();
    let (socket, mut peer) = pair();
    let mut kept = Vec::new();
    for _ in 0..8 {
        ring.receive(&socket, 1, false, 0);
        peer.write_all(b"x").unwrap();
        kept.push(buffer(next(&mut ring)));
    }
    peer.write_all(b"y").unwrap();
    ring.receive(&socket, 1, false, 0);
    assert_eq!(next(&mut ring).result, Err(Errno::NOBUFS));
    kept.pop();
    ring.receive(&socket, 1, false, 0);
    assert_eq!(*buffer(next(&mut ring)), *b"y");
    assert!(kept.iter().all(|buffer| **buffer == *b"x"));
}

#[test]
fn a_direct_receive_fills_the_extent_and_locks_it_meanwhile() {
    let mut ring = ring();
    let (socket, mut peer) = pair();
    let extent = Extent::new(4096, 10000);
    ring.receive_into(&socket, extent, 1);
    ring.enter(Wait::No).unwrap();
    assert!(ring.arena().is_busy(extent));
    peer.write_all(&[1; 6000]).unwrap();
    peer.write_all(&[2; 4000]).unwrap();
    assert_eq!(next(&mut ring).result, Ok(10000));
    assert!(!ring.arena().is_busy(extent));
    assert_eq!(ring.arena().bytes(extent)[..6000], [1; 6000]);
    assert_eq!(ring.arena().bytes(extent)[6000..], [2; 4000]);
}

#[test]
fn a_message_arrives_in_order_however_long_the_peer_waits() {
    let mut ring = ring();
    let (socket, mut peer) = pair();
    for (at, byte) in [(0, 3_u8), (512 << 10, 4)] {
        ring.bytes_mut(Extent::new(at, 512 << 10)).fill(byte);
    }
    let mut sending = Message::new(1024, 8);
    let mut expected = Vec::new();
    for _ in 0..8 {
        sending.staging().extend_from_slice(b"head");
        sending.push(Extent::new(256 << 10, 512 << 10));
        expected.extend_from_slice(b"head");
        expected.extend_from_slice(&[3; 256 << 10]);
        expected.extend_from_slice(&[4; 256 << 10]);
    }
    sending.staging().extend_from_slice(b"tail");
    expected.extend_from_slice(b"tail");
    ring.send(&socket, sending, 2);
    ring.enter(Wait::No).unwrap();
    let reader = std::thread::spawn(move || {
        let mut read = vec![0; 8 * (4 + (512 << 10)) + 4];
        peer.read_exact(&mut read).unwrap();
        (peer, read)
    });
    let completion = next(&mut ring);
    assert_eq!(completion.result, Ok(expected.len() as u32));
    let mut sent = message(completion);
    assert_eq!(sent.sent(), sent.len());
    let (mut peer, read) = reader.join().unwrap();
    assert!(read == expected);
    sent.clear();
    sent.staging().extend_from_slice(b"again");
    ring.send(&socket, sent, 3);
    assert_eq!(next(&mut ring).result, Ok(5));
    let mut read = [0; 5];
    peer.read_exact(&mut read).unwrap();
    assert_eq!(read, *b"again");
}

#[test]
fn sending_to_nobody_is_an_error_that_returns_the_message() {
    let mut ring = ring();
    let (socket, peer) = pair();
    crate::os::set_abortive_close(&peer).unwrap();
    drop(peer);
    let mut sending = Message::new(16, 1);
    sending.push(Extent::new(0, 4096));
    ring.send(&socket, sending, 2);
    let completion = next(&mut ring);
    assert!(matches!(
        completion.result,
        Err(Errno::PIPE | Errno::CONNRESET)
    ));
    assert_eq!(message(completion).sent(), 0);
    assert!(!ring.arena().is_busy(Extent::new(0, 4096)));
}

#[test]
fn connect_and_accept_find_each_other() {
    let mut ring = ring();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let listener = Fd::new(listener.into());
    let accepting = ring.accept(&listener, 10);
    for _ in 0..3 {
        let socket = Fd::new(crate::os::tcp_socket(&address).unwrap());
        ring.connect(&socket, &address, 11);
        let (first, second) = (next(&mut ring), next(&mut ring));
        let (connected, accepted) = if first.tag == 11 {
            (first, second)
        } else {
            (second, first)
        };
        assert!(connected.result.is_ok() && accepted.more);
        assert!(matches!(accepted.returned, Returned::Accepted(_)));
    }
    ring.cancel(accepting);
    let last = next(&mut ring);
    assert_eq!(
        (last.tag, last.result, last.more),
        (10, Err(Errno::CANCELED), false)
    );
    drop(listener);
    let socket = Fd::new(crate::os::tcp_socket(&address).unwrap());
    ring.connect(&socket, &address, 12);
    assert_eq!(next(&mut ring).result, Err(Errno::CONNREFUSED));
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn files_are_read_written_zeroed_and_synced() {
    let mut ring = ring();
    let file = Fd::new(tempfile().into());
    ring.bytes_mut(Extent::new(0, 8192)).fill(9);
    ring.write(&file, Extent::new(0, 8192), 4096, HOW_DURABLE, 0);
    assert_eq!(next(&mut ring).result, Ok(8192));
    ring.sync_data(&file, 0);
    assert_eq!(next(&mut ring).result, Ok(0));
    ring.allocate(&file, Allocate::PunchHole, 8192, 4096, 0);
    assert_eq!(next(&mut ring).result, Ok(0));
    ring.read(&file, Extent::new(65536, 65536), 0, 0);
    assert_eq!(next(&mut ring).result, Ok(12288));
    let read = ring.arena().bytes(Extent::new(65536, 12288));
    assert_eq!(read[..4096], [0; 4096]);
    assert_eq!(read[4096..8192], [9; 4096]);
    assert_eq!(read[8192..], [0; 4096]);
}

fn tempfile() -> std::fs::File {
    let path = std::env::temp_dir().join(format!("braid-sys-{}", std::process::id()));
    let mut options = std::fs::OpenOptions::new();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

#[test]
fn more_operations_than_the_submission_ring_holds_all_run() {
    let config = RingConfig {
        operations_max: 3 * SUBMIT_MAX,
        buffers: 1,
        buffers_lent: 1,
        buffer_bytes: 4096,
    };
    let mut ring = Ring::new(&config, Arena::new(4096).unwrap()).unwrap();
    let file = Fd::new(tempfile().into());
    for number in 0..3 * SUBMIT_MAX {
        ring.write(
            &file,
            Extent::new(0, 1),
            u64::from(number),
            WriteHow::AT_ANY_TIME,
            u64::from(number),
        );
    }
    let mut seen = vec![false; 3 * SUBMIT_MAX as usize];
    for _ in 0..seen.len() {
        let completion = next(&mut ring);
        assert_eq!(completion.result, Ok(1));
        seen[completion.tag as usize] = true;
    }
    assert!(seen.iter().all(|&seen| seen));
}

#[test]
#[should_panic(expected = "more than 64 operations")]
fn one_operation_too_many_panics() {
    let mut ring = ring();
    let (socket, _peer) = pair();
    for _ in 0..65 {
        ring.receive(&socket, 1, true, 0);
    }
}

#[test]
fn an_event_wakes_a_waiting_ring() {
    let mut ring = ring();
    let event = crate::os::Event::new().unwrap();
    let watched = Fd::new(event.try_clone().unwrap());
    ring.poll_readable(&watched, 5);
    let event = std::thread::spawn(move || {
        event.raise();
        event
    });
    assert_eq!(next(&mut ring).tag, 5);
    assert!(event.join().unwrap().lower());
}

#[test]
fn a_bounded_wait_ends_without_a_completion() {
    let mut ring = ring();
    ring.enter(Wait::AtMost(Duration::from_micros(50))).unwrap();
    assert!(ring.next_completion().is_none());
}

#[test]
fn a_cancelled_operation_gives_everything_back() {
    let mut ring = ring();
    let (socket, _peer) = pair();
    let extent = Extent::new(0, 65536);
    let receiving = ring.receive_into(&socket, extent, 1);
    ring.enter(Wait::No).unwrap();
    ring.cancel(receiving);
    assert_eq!(next(&mut ring).result, Err(Errno::CANCELED));
    assert!(!ring.arena().is_busy(extent));
    // Cancelling what is over does nothing, also when the slot is in use again.
    ring.receive(&socket, 1, true, 2);
    ring.cancel(receiving);
    ring.enter(Wait::No).unwrap();
    assert!(ring.next_completion().is_none());
    assert_eq!(ring.in_flight(), 1);
}

#[test]
fn dropping_a_ring_ends_what_is_in_flight_and_closes_the_sockets() {
    let mut ring = ring();
    let (socket, mut peer) = pair();
    ring.receive_into(&socket, Extent::new(0, 65536), 1);
    ring.receive(&socket, 1, true, 2);
    ring.enter(Wait::No).unwrap();
    drop(socket);
    drop(ring);
    assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn an_arena_too_large_for_the_machine_is_an_error() {
    assert_eq!(Arena::new(u64::MAX).unwrap_err().operation, "mmap");
    assert_eq!(Arena::new(1 << 50).unwrap_err().source, Errno::NOMEM);
}

#[test]
fn every_mode_delivers_sleeping_and_watching() {
    for mode in MODES {
        let mut ring = ring_in(&[mode]);
        let (socket, mut peer) = pair();
        for watching in [false, true] {
            ring.receive(&socket, 16, true, 1);
            ring.enter(Wait::No).unwrap();
            peer.write_all(b"ping").unwrap();
            while watching && !ring.has_completion() {
                if ring.wants_enter() {
                    ring.enter(Wait::No).unwrap();
                }
            }
            assert_eq!(*buffer(next(&mut ring)), *b"ping", "{mode:?}");
            let mut answer = Message::new(8, 1);
            answer.staging().extend_from_slice(b"pong");
            ring.send(&socket, answer, 2);
            assert_eq!(next(&mut ring).result, Ok(4));
            let mut read = [0; 4];
            peer.read_exact(&mut read).unwrap();
            assert_eq!(read, *b"pong");
        }
    }
}

#[test]
fn files_are_read_into_and_written_from_shared_memory_which_lives_as_long() {
    let path = std::env::temp_dir().join(format!("braid-shared-{}", std::process::id()));
    let options = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path);
    std::fs::remove_file(&path).unwrap();
    let file = Fd::new(options.unwrap().into());
    let memory = crate::memory_file("test", 16384).unwrap();
    let shared = Arc::new(Shared::map(&memory, 16384).unwrap());
    let ours = Shared::map(&memory, 16384).unwrap();
    ours.write(4096, &[7; 4096]);
    let mut ring = ring();
    ring.write_shared(&file, (&shared, 4096, 4096), 512, WriteHow::AT_ANY_TIME, 1);
    assert_eq!(next(&mut ring).result, Ok(4096));
    ring.read_shared(&file, (&shared, 8192, 4096), 512, 2);
    drop(shared);
    assert_eq!(next(&mut ring).result, Ok(4096));
    let mut read = [0; 4096];
    ours.read(8192, &mut read);
    assert_eq!(read, [7; 4096]);
}

#[test]
fn a_ring_for_which_there_is_no_memory_is_tried_again_and_other_refusals_are_not() {
    let mut tries = 0;
    let refused = |code| Err::<(), _>(std::io::Error::from_raw_os_error(code));
    let made = patiently(|| {
        tries += 1;
        if tries < 3 {
            refused(libc::ENOMEM)
        } else {
            Ok(())
        }
    });
    assert!(made.is_ok());
    assert_eq!(tries, 3);
    for (code, expected) in [(libc::ENOMEM, 11), (libc::EPERM, 1), (libc::EINVAL, 1)] {
        let mut tries = 0;
        let made = patiently(|| {
            tries += 1;
            refused(code)
        });
        assert_eq!(made.unwrap_err().raw_os_error(), Some(code));
        assert_eq!(tries, expected);
    }
}
