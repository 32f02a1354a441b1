//! A volume of a running engine as a namespace of a queue server.
use crate::serve::no_io_uring;
use crate::serve::process;
use crate::serve::process::{Client, Process, SOON, engine, wait_until};
use ::queue::{Options, Queue, Range, Status};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

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

/// Leads every connection that is opened to the returned address on to a socket.
fn relay(to: &Path) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let to = to.to_path_buf();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = UnixStream::connect(&to).unwrap();
            let (mut from, mut back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (mut near, mut far) = (near, far);
            std::thread::spawn(move || std::io::copy(&mut from, &mut far));
            std::thread::spawn(move || std::io::copy(&mut back, &mut near));
        }
    });
    address
}

/// On every connection to the engine.
#[test]
fn tcp_keep_alive_is_that_of_an_nbd_client() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let Some(_target) = target(root) else {
        return;
    };
    let _engine = engine(root);
    for (seconds, ticks) in [("3000", 250_000..300_001), ("0", 0..1)] {
        let address = relay(&root.join("v0.sock"));
        let volume = format!("nbd:tcp:{address}");
        let socket = root.join(format!("q{seconds}.sock"));
        let words = ["queue", "serve", &volume, "--tcp-keep-alive", seconds];
        let words = [&words[..], &["--socket", socket.to_str().unwrap()]].concat();
        let mut server = Process::start(root, &words);
        server.says("sock").unwrap();
        let mut queue = Queue::open(&socket, &Options::default()).unwrap();
        assert!(write(&mut queue, 0, 1, false).is_success());
        wait_until(|| {
            let found = process::ask_in_ticks(&address);
            let right = !found.is_empty() && found.iter().all(|it| ticks.contains(it));
            right.then_some(())
        });
        drop(queue);
        server.signal(Signal::TERM);
        assert!(server.ended().success(), "{}", server.seen);
    }
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
fn t13_who_stops_a_server_is_told_what_nobody_flushed_and_is_lost_with_its_engine() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let Some(_target) = target(root) else {
        return;
    };
    let mut first = engine(root);
    let mut server = serve(root);
    let mut queue = Queue::open(&root.join("q.sock"), &Options::default()).unwrap();
    assert!(write(&mut queue, 5, 7, false).is_success());
    first.signal(Signal::KILL);
    first.ended();
    let _second = engine(root);
    wait_until(|| read(&mut queue, 5).ok());
    server.signal(Signal::TERM);
    let told = server.notes("may be lost");
    assert!(told.contains("written to namespace 1 (nbd:unix:"), "{told}");
    assert_eq!(server.ended().code(), Some(1));
}

/// An export that answers in whatever order it is told to.
struct Export {
    /// Writes and flushes are not answered at once any more.
    holds: AtomicBool,
    /// Those that wait: command and cookie.
    held: Mutex<mpsc::Receiver<(u8, [u8; 8])>>,
    stream: UnixStream,
}

const WRITE: u8 = 1;
const FLUSH: u8 = 3;

impl Export {
    /// For whoever connects first.
    fn start(socket: &Path) -> JoinHandle<Arc<Self>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            Self::shake_hands(&mut stream);
            let (hold, held) = mpsc::channel();
            let export = Arc::new(Self {
                holds: AtomicBool::new(false),
                held: Mutex::new(held),
                stream: stream.try_clone().unwrap(),
            });
            let this = Arc::clone(&export);
            // Until the connection ends.
            std::thread::spawn(move || this.serve(stream, &hold));
            export
        })
    }

    fn shake_hands(stream: &mut UnixStream) {
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        loop {
            let mut header = [0; 16];
            stream.read_exact(&mut header).unwrap();
            let length = u32::from_be_bytes(header[12..].try_into().unwrap());
            stream.read_exact(&mut vec![0; length as usize]).unwrap();
            let mut reply = |kind: u32, data: &[u8]| {
                let lengths = [kind, data.len() as u32].map(u32::to_be_bytes).concat();
                let magic = 0x0003_e889_0455_65a9_u64.to_be_bytes();
                let all = [&magic, &header[8..12], &lengths, data].concat();
                stream.write_all(&all).unwrap();
            };
            // It knows of one option: to go. The export has 1 MiB and can be flushed.
            if header[11] != 7 {
                reply(0x8000_0001, &[]);
                continue;
            }
            reply(
                3,
                &[&[0, 0][..], &(1_u64 << 20).to_be_bytes(), &[0, 5]].concat(),
            );
            return reply(1, &[]);
        }
    }

    fn serve(&self, mut stream: UnixStream, hold: &mpsc::Sender<(u8, [u8; 8])>) -> Option<()> {
        loop {
            let mut header = [0; 28];
            stream.read_exact(&mut header).ok()?;
            let (command, cookie) = (header[7], header[8..16].try_into().unwrap());
            let length = u32::from_be_bytes(header[24..].try_into().unwrap()) as usize;
            if command == WRITE {
                stream.read_exact(&mut vec![0; length]).ok()?;
            }
            match command {
                WRITE | FLUSH if self.holds.load(Ordering::Acquire) => {
                    hold.send((command, cookie)).ok()?;
                }
                WRITE | FLUSH => self.answer(cookie, 0, &[]),
                _ => self.answer(cookie, 0, &vec![0; length]),
            }
        }
    }

    /// The cookie of the next command that waits, which is this one.
    fn next(&self, command: u8) -> [u8; 8] {
        let next = self.held.lock().unwrap().recv_timeout(SOON).unwrap();
        assert_eq!(next.0, command);
        next.1
    }

    fn answer(&self, cookie: [u8; 8], error: u32, data: &[u8]) {
        let head = [0x6744_6698_u32, error].map(u32::to_be_bytes).concat();
        let bytes = [&head[..], &cookie, data].concat();
        (&self.stream).write_all(&bytes).unwrap();
    }
}

/// A server tells one flush that what was acknowledged is lost. Where that flush's path has just
/// been given up, the volume's next one has to say so.
#[test]
fn t13_a_flush_that_fails_after_its_queue_was_given_up_fails_the_volumes_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let export = Export::start(&root.join("v0.sock"));
    let _server = serve(root);
    let export = export.join().unwrap();
    let text = format!(
        "cores = 1\nio_timeout = \"2s\"\n[[volume]]\nname = \"v0\"\n[[volume.path]]\n\
         uri = \"queue:{}?nsid=1\"\n[[volume.export]]\nnbd = \"unix:{}\"\n",
        root.join("q.sock").display(),
        root.join("e.sock").display()
    );
    std::fs::write(root.join("b.toml"), text).unwrap();
    let mut engine = process::begun(root);
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        return no_io_uring::skip(&engine.seen);
    }
    let [mut writer, mut flusher] = [(); 2].map(|()| Client::open(&root.join("e.sock")));
    assert_eq!(writer.write(0, 1), 0);
    export.holds.store(true, Ordering::Release);
    writer.send_write(4096, 2);
    let write = export.next(WRITE);
    let flushing = std::thread::spawn(move || (flusher.flush(), flusher));
    let flush = export.next(FLUSH);
    // The queue is let go of, and given back when the write is answered too; or when the server
    // has had its time, which changes nothing of what is told.
    engine.notes("io_timeout");
    export.answer(flush, 5, &[]);
    export.answer(write, 0, &[]);
    export.holds.store(false, Ordering::Release);
    assert_eq!(writer.answer(), 0);
    let (error, mut flusher) = flushing.join().unwrap();
    assert_ne!(error, 0, "the first write is lost, and nobody was told");
    assert_eq!(flusher.flush(), 0, "once");
}

/// The server lives, and its queue is good: a load fails what the engine does not do, and goes on.
#[test]
fn a_load_does_not_take_a_queue_server_for_lost_whose_engine_is_away() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let export = Export::start(&root.join("v0.sock"));
    let volume = format!("nbd:unix:{}", root.join("v0.sock").display());
    // Another way to what is said to be the same.
    let servers = [(&*volume, "1"), ("null:1MiB", "2")].map(|(namespace, controller)| {
        let socket = root.join(controller).display().to_string();
        let nqn = "nqn.2026-01.org.braid:volume";
        let words = ["queue", "serve", namespace, "--subsystem", nqn];
        let more = ["--controller", controller, "--socket", &socket];
        let mut server = Process::start(root, &[&words[..], &more].concat());
        server.says(&socket).unwrap();
        (server, format!("queue:{socket}?nsid=1"))
    });
    // No server listens there any more.
    let export = export.join().unwrap();
    export.stream.shutdown(std::net::Shutdown::Both).unwrap();
    let paths = servers.each_ref().map(|(_, uri)| uri);
    let mut bench = Command::new(env!("CARGO_BIN_EXE_braid"));
    bench.arg("bench").args(paths).args(["-o", "json"]);
    bench.args(["--rw", "read", "--bs", "4k", "--size", "1m"]);
    let output = bench.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if errors.contains("io_uring") {
        return no_io_uring::skip(&errors);
    }
    let facts: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let error = facts["error"].as_str().unwrap();
    assert!(error.ends_with("/1?nsid=1: the path failed"), "{error}");
    assert_eq!(facts["paths"][0]["errors"], facts["errors"], "{facts}");
    assert!(facts["paths"][1]["iops"].as_f64() > Some(0.0), "{facts}");
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
