//! A volume of a running engine as a namespace of a queue server.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "shared/nbd.rs"]
mod nbd;
#[path = "shared/no_io_uring.rs"]
mod no_io_uring;
#[path = "shared/process.rs"]
mod process;

use ::queue::{Options, Queue, Range, Status};
use process::{Client, Process, engine, wait_until};
use rustix::process::Signal;
use std::path::Path;

/// A target whose cache is lost with it, and the engine's configuration over it; `None`: this
/// machine has no io_uring.
fn target(root: &Path) -> Option<Process> {
    let [config, socket, data] = ["t.toml", "t.sock", "data"].map(|name| root.join(name));
    let text = format!(
        "nqn = \"nqn.2026-01.org.braid:volume\"\n[[namespace]]\nbackend = \"file:{}\"\n\
         size = \"1MiB\"\nvolatile_cache = \"64KiB\"\n[[port]]\nlisten = \"127.0.0.1:0\"\n",
        data.display()
    );
    std::fs::write(&config, text).unwrap();
    let words = ["target", "-c", config.to_str().unwrap(), "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut target = Process::start(root, &words);
    let Some(line) = target.says("port 1: ") else {
        target.notes("io_uring");
        no_io_uring::skip(&target.seen);
        return None;
    };
    let uri = line.split_whitespace().nth(2).unwrap();
    let text = format!(
        "keep_alive_tmo = \"1s\"\n[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"{uri}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        root.join("v0.sock").display()
    );
    std::fs::write(root.join("b.toml"), text).unwrap();
    Some(target)
}

fn serve(root: &Path) -> Process {
    let volume = format!("nbd:unix:{}", root.join("v0.sock").display());
    let socket = root.join("q.sock");
    let words = ["queue", "serve", &volume, "--cores", "2", "--socket"];
    let words = [&words[..], &[socket.to_str().unwrap()]].concat();
    let mut server = Process::start(root, &words);
    server.says("q.sock").unwrap();
    server
}

fn finish(queue: &mut Queue) -> Status {
    queue.submit().unwrap();
    wait_until(|| queue.poll().unwrap()).status
}

fn write(queue: &mut Queue, block: u64, fill: u8, fua: bool) -> Status {
    let data = queue.data().unwrap().clone();
    data.write(0, &[fill; 4096]);
    // In two pieces that don't meet.
    data.write(8192, &[fill; 96]);
    let pieces = [data.piece(0, 4000), data.piece(8192, 96)];
    queue.write((1, fua), block, 1, &pieces, 0).unwrap();
    finish(queue)
}

fn read(queue: &mut Queue, block: u64) -> Result<u8, Status> {
    let data = queue.data().unwrap().clone();
    queue
        .read(1, block, 1, &[data.piece(4096, 4096)], 0)
        .unwrap();
    let status = finish(queue);
    let mut bytes = [0; 4096];
    data.read(4096, &mut bytes);
    assert!(!status.is_success() || bytes == [bytes[0]; 4096]);
    status.is_success().then_some(bytes[0]).ok_or(status)
}

fn flush(queue: &mut Queue) -> Status {
    queue.flush(Some(1), 0).unwrap();
    finish(queue)
}

#[test]
fn t13_a_volume_is_a_namespace_flushes_reach_it_and_its_engine_may_die() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let Some(_target) = target(root) else {
        return;
    };
    let mut first = engine(root);
    let mut server = serve(root);
    let open = || Queue::open(&root.join("q.sock"), &Options::default()).unwrap();
    // On two threads.
    let (mut queue, mut other) = (open(), open());
    assert_eq!(queue.namespace(1).unwrap().blocks, 256);
    let durable = |block: usize| std::fs::read(root.join("data")).unwrap()[block << 12];

    assert!(write(&mut queue, 0, 1, false).is_success());
    assert_eq!((read(&mut other, 0), durable(0)), (Ok(1), 0));
    assert!(flush(&mut other).is_success());
    assert_eq!(durable(0), 1, "a flush is for what all wrote");
    assert!(write(&mut queue, 1, 2, true).is_success());
    assert_eq!(durable(1), 2);
    let mut client = Client::open(&root.join("v0.sock"));
    assert_eq!(client.read(4096), [2; 4096]);
    assert_eq!(client.write(2 << 12, 3), 0);
    assert_eq!(read(&mut queue, 2), Ok(3));
    queue.write_zeroes((1, false), 0, 2, 0).unwrap();
    assert!(finish(&mut queue).is_success());
    assert_eq!((read(&mut queue, 0), read(&mut queue, 1)), (Ok(0), Ok(0)));
    let all = Range {
        slba: 0,
        blocks: 256,
        attributes: 0,
    };
    queue.deallocate(1, &[all; 3], 0).unwrap();
    assert!(finish(&mut queue).is_success());

    // Acknowledged and not flushed: nobody knows whether the engine had passed it on.
    for queue in [&mut queue, &mut other] {
        assert!(write(queue, 3, 4, false).is_success());
    }
    first.signal(Signal::KILL);
    first.ended();
    for _ in 0..3 {
        assert!(read(&mut queue, 3).unwrap_err().is(Status::INTERNAL_PATH));
        assert!(write(&mut other, 4, 5, false).is(Status::INTERNAL_PATH));
    }
    let _second = engine(root);
    wait_until(|| read(&mut queue, 3).ok());
    assert!(flush(&mut queue).is(Status::WRITE_FAULT));
    assert!(flush(&mut queue).is_success(), "once");
    assert!(
        flush(&mut other).is(Status::WRITE_FAULT),
        "to each that wrote"
    );
    assert_eq!(durable(3), 4);
    assert!(write(&mut other, 4, 6, true).is_success());
    server.signal(Signal::TERM);
    assert!(server.ended().success());
}

#[test]
fn a_volume_that_nobody_exports_is_an_error_that_says_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let volume = format!("nbd:unix:{}", root.join("v0.sock").display());
    let socket = root.join("q.sock");
    let words = [
        "queue",
        "serve",
        &volume,
        "--socket",
        socket.to_str().unwrap(),
    ];
    let mut server = Process::start(root, &words);
    server.notes("start the engine first");
    assert!(!server.ended().success());
    assert!(!socket.exists());
}
