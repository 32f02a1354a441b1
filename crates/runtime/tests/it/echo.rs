//! Frames of all sizes, split in all ways, on many connections, with few buffers: every byte comes
//! back.
use crate::echo_machine::{DIGEST, Echo, HEADER};
use nvme::crc32c;
use runtime::{Handle, Polling, ReactorConfig, spawn};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

const FRAME_MAX: u32 = 256 << 10;

fn start(connections: usize, buffers: u32, polling: Polling) -> (Handle<Echo>, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = ReactorConfig {
        name: "echo".into(),
        cpu: None,
        polling,
        arena_bytes: u64::from(buffers) * u64::from(FRAME_MAX),
        per_peer_max: None,
        addresses: Vec::new(),
        listeners: vec![listener],
        devices: Vec::new(),
    };
    (
        spawn(config, Echo::new(connections, buffers, FRAME_MAX)).unwrap(),
        address,
    )
}

/// Numbers that look random and are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }
}

fn frame(numbers: &mut Numbers) -> Vec<u8> {
    let len = match numbers.next(8) {
        0 => 0,
        1..5 => numbers.next(5000),
        5 => 16383 + numbers.next(3),
        _ => numbers.next(u64::from(FRAME_MAX) + 1),
    } as usize;
    let flags = if numbers.next(2) == 0 { DIGEST } else { 0 };
    let mut frame = Vec::with_capacity(HEADER + len + 4);
    frame.extend_from_slice(&(len as u32).to_le_bytes());
    frame.extend_from_slice(&flags.to_le_bytes());
    let seed = numbers.next(256) as usize;
    frame.extend((0..len).map(|at| (at * 7 + seed + at / 509) as u8));
    if flags & DIGEST != 0 {
        let crc = crc32c(0, &frame[HEADER..]);
        frame.extend_from_slice(&crc.to_le_bytes());
    }
    frame
}

/// Sends frames in random pieces from one thread, reads them back in another.
fn converse(address: SocketAddr, seed: u64, frames: usize) {
    let mut numbers = Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let all: Vec<u8> = (0..frames).flat_map(|_| frame(&mut numbers)).collect();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rest = &all[..];
            while !rest.is_empty() {
                let most = if numbers.next(3) == 0 { 10 } else { 100_000 };
                let (piece, after) =
                    rest.split_at((1 + numbers.next(most) as usize).min(rest.len()));
                (&stream).write_all(piece).unwrap();
                rest = after;
            }
        });
        let mut read = vec![0; all.len()];
        (&stream).read_exact(&mut read).unwrap();
        let wrong = read.iter().zip(&all).position(|(one, other)| one != other);
        assert_eq!(wrong, None, "seed {seed}");
    });
}

#[test]
fn frames_come_back_however_they_are_split() {
    for polling in [Polling::default(), Polling::Always, Polling::Never] {
        let (handle, address) = start(2, 8, polling);
        for seed in 0..4 {
            converse(address, seed, 60);
        }
        handle.sender().send(());
        let (echo, stats) = handle.join().unwrap();
        assert_eq!(echo.frames, 240);
        assert!(
            stats.bytes_direct_in > 0 && stats.bytes_copied_in > 0,
            "{stats:?}"
        );
        assert_eq!(
            stats.bytes_direct_in + stats.bytes_copied_in,
            stats.bytes_direct_out + stats.bytes_copied_out
        );
    }
}

#[test]
fn of_large_payloads_in_a_row_little_is_copied() {
    const LEN: u32 = 128 << 10;
    let (handle, address) = start(1, 8, Polling::default());
    let mut stream = TcpStream::connect(address).unwrap();
    let mut frame = vec![5; HEADER + LEN as usize];
    frame[..HEADER].copy_from_slice(&u64::from(LEN).to_le_bytes());
    let mut read = vec![0; frame.len()];
    for _ in 0..20 {
        stream.write_all(&frame).unwrap();
        stream.read_exact(&mut read).unwrap();
        assert!(read == frame);
    }
    drop(stream);
    handle.sender().send(());
    let (_, stats) = handle.join().unwrap();
    assert!(
        stats.bytes_copied_in <= u64::from(LEN) + 19 * 4096,
        "{stats:?}"
    );
    assert_eq!(stats.bytes_direct_out, 20 * u64::from(LEN));
}

#[test]
fn connections_share_too_few_buffers_and_all_finish() {
    let (handle, address) = start(16, 3, Polling::default());
    std::thread::scope(|scope| {
        for seed in 0..12 {
            scope.spawn(move || converse(address, 100 + seed, 30));
        }
    });
    handle.sender().send(());
    assert_eq!(handle.join().unwrap().0.frames, 360);
}

#[test]
fn garbage_closes_only_its_own_connection() {
    let (handle, address) = start(4, 4, Polling::default());
    let mut bad = TcpStream::connect(address).unwrap();
    bad.write_all(&[0xff; 64]).unwrap();
    let closed = bad.read(&mut [0; 1]);
    assert!(closed.is_err() || matches!(closed, Ok(0)));
    converse(address, 7, 10);
    handle.sender().send(());
    handle.join().unwrap();
}
