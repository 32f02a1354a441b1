//! Allocations of a reactor per frame once it is warm: none.
use crate::echo_machine::Echo;
use runtime::{Polling, ReactorConfig, spawn};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;

#[test]
fn a_warm_reactor_allocates_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = ReactorConfig {
        name: "echo".into(),
        cpu: None,
        polling: Polling::default(),
        arena_bytes: 64 << 16,
        per_peer_max: None,
        addresses: Vec::new(),
        listeners: vec![listener],
        devices: Vec::new(),
    };
    let echo = Echo::new(4, 64, 1 << 16);
    let allocations = std::sync::Arc::clone(&echo.allocations);
    let handle = spawn(config, echo).unwrap();
    let mut streams: Vec<TcpStream> = (0..4)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    let mut round = |len: u32| {
        let mut frame = vec![1; 8 + len as usize];
        frame[..8].copy_from_slice(&u64::from(len).to_le_bytes());
        for stream in &mut streams {
            for _ in 0..8 {
                stream.write_all(&frame).unwrap();
            }
        }
        for stream in &mut streams {
            let mut read = vec![0; 8 * frame.len()];
            stream.read_exact(&mut read).unwrap();
        }
    };
    let sizes = [1, 512, 4096, 16384, 65536];
    sizes.iter().for_each(|&len| round(len));
    let warm = allocations.load(Ordering::Acquire);
    assert!(warm > 0, "the counter doesn't count");
    (0..20).for_each(|_| sizes.iter().for_each(|&len| round(len)));
    assert_eq!(allocations.load(Ordering::Acquire), warm);
    drop(streams);
    handle.sender().send(());
    assert_eq!(handle.join().unwrap().0.frames, 21 * 5 * 32);
}
