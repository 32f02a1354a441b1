//! What a reactor allocates per frame once it is warm: nothing.
#[path = "it/echo_machine.rs"]
mod machine;

use machine::Echo;
use runtime::{ReactorConfig, spawn};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what is allocated by threads called "counted".
struct Counting;

static COUNT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static COUNTED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

fn counted() -> bool {
    COUNTED.with(|counted| match counted.get() {
        Some(known) => known,
        None => {
            // Asking for the name may allocate: not counted meanwhile.
            counted.set(Some(false));
            let named = std::thread::current().name() == Some("counted");
            counted.set(Some(named));
            named
        }
    })
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if counted() {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_warm_reactor_allocates_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = ReactorConfig {
        name: "counted".into(),
        cpu: None,
        spin: false,
        arena_bytes: 64 << 16,
        addresses: Vec::new(),
        listeners: vec![listener],
        devices: Vec::new(),
    };
    let handle = spawn(config, Echo::new(4, 64, 1 << 16)).unwrap();
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
    let warm = COUNT.load(Ordering::Relaxed);
    assert!(warm > 0, "the counter doesn't count");
    (0..20).for_each(|_| sizes.iter().for_each(|&len| round(len)));
    assert_eq!(COUNT.load(Ordering::Relaxed), warm);
    handle.sender().send(());
    assert_eq!(handle.join().unwrap().0.frames, 21 * 5 * 32);
}
