//! More clients than places or descriptors, and more lines than are read, as processes: the limit
//! is kept and spoken of, those who are there are served, and later ones when there is room again.
use crate::serve::no_io_uring;
use crate::serve::process::{Client, Process, SOON};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// `braid run` with one volume in memory, and more of what stands before it. `None`: this machine
/// has no io_uring.
fn export(directory: &Path, more: &str) -> Option<Process> {
    export_by(directory, more, Process::start)
}

fn export_by(
    directory: &Path,
    more: &str,
    start: impl Fn(&Path, &[&str]) -> Process,
) -> Option<Process> {
    let text = format!(
        "{more}[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:64MiB\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        directory.join("v0.sock").display()
    );
    let [config, socket] = ["b.toml", "c.sock"].map(|name| directory.join(name));
    std::fs::write(&config, text).unwrap();
    let words = [
        "-c",
        config.to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ];
    let mut engine = start(directory, &[&["run"], &words[..]].concat());
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        no_io_uring::skip(&engine.seen);
        return None;
    }
    Some(engine)
}

/// A target with this configuration before its namespace and port: it, and the port's address.
fn target(directory: &Path, more: &str) -> Option<(Process, String)> {
    let config = directory.join("t.toml");
    let text = format!(
        "nqn = \"nqn.2026-01.org.braid:places\"\n{more}[[namespace]]\nbackend = \"mem:64MiB\"\n\
         [[port]]\nlisten = \"127.0.0.1:0\"\n"
    );
    std::fs::write(&config, text).unwrap();
    let socket = directory.join("t.sock");
    let words = [
        "-c",
        config.to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ];
    let mut target = Process::start(directory, &[&["target"], &words[..]].concat());
    let Some(line) = target.says("port 1: ") else {
        target.notes("io_uring");
        no_io_uring::skip(&target.seen);
        return None;
    };
    let address = line.split('/').nth(2).unwrap().to_owned();
    Some((target, address))
}

/// Whether the peer ends the connection without a word.
fn is_refused(mut stream: impl Read) -> bool {
    !matches!(stream.read(&mut [0; 16]), Ok(1..))
}

#[test]
fn an_export_turns_away_who_comes_when_all_places_are_taken() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut engine) = export(directory.path(), "cores = 1\nclients = 2\n") else {
        return;
    };
    let socket = directory.path().join("v0.sock");
    let mut clients = [Client::open(&socket), Client::open(&socket)];
    for _ in 0..20 {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        assert!(is_refused(stream));
    }
    let line = engine.notes("turned away");
    assert!(
        line.contains("1 clients") && line.contains("(clients in"),
        "{line}"
    );
    for client in &mut clients {
        assert_eq!(client.write(4096, 7), 0);
        assert_eq!(client.read(4096), [7; 4096]);
    }
}

#[test]
fn a_target_turns_away_who_comes_when_all_places_are_taken_and_each_host_has_its_share() {
    let directory = tempfile::tempdir().unwrap();
    for (more, words) in [
        ("connections = 2\n", "all places are taken"),
        (
            "connections_per_host = 2\n",
            "as many as one address may have",
        ),
    ] {
        let Some((mut target, address)) = target(directory.path(), more) else {
            return;
        };
        let connect = || TcpStream::connect(&address).unwrap();
        let _here = [connect(), connect()];
        for _ in 0..20 {
            let stream = connect();
            stream.set_read_timeout(Some(SOON)).unwrap();
            assert!(is_refused(stream), "{more}");
        }
        let line = target.notes("turned away");
        assert!(
            line.contains("1 connections") && line.contains(words),
            "{line}"
        );
    }
}

/// Leaves a process `spare` descriptors more than it has.
pub fn leave(process: &Process, spare: usize) {
    let id = process.child.id();
    let open = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let used: Vec<usize> = open
        .map(|it| name(it).to_string_lossy().parse().unwrap())
        .collect();
    // A new one is the lowest that is free, and there may be gaps.
    let mut free = (0..).filter(|number| !used.contains(number));
    let most = free.nth(spare).unwrap();
    let limit = rustix::process::Rlimit {
        current: Some(most as u64),
        maximum: Some(most as u64),
    };
    let pid = rustix::process::Pid::from_child(&process.child);
    let resource = rustix::process::Resource::Nofile;
    rustix::process::prlimit(Some(pid), resource, limit).unwrap();
}

#[test]
fn an_export_without_descriptors_says_so_and_accepts_again_when_there_are_some() {
    let directory = tempfile::tempdir().unwrap();
    let Some(mut engine) = export(directory.path(), "") else {
        return;
    };
    let socket = directory.path().join("v0.sock");
    let mut client = Client::open(&socket);
    leave(&engine, 4);
    let waiting: Vec<UnixStream> = (0..20)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    engine.notes("accepts no clients for now");
    assert_eq!(client.write(4096, 7), 0);
    drop(waiting);
    let mut later = Client::open(&socket);
    assert_eq!(later.read(4096), [7; 4096]);
}

/// Whether the engine has closed a client.
fn is_closed(client: &mut UnixStream) -> bool {
    client.set_nonblocking(true).unwrap();
    match client.read(&mut [0; 64]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

/// Each lot of clients that has the memory and stops in the middle of a write is given up within
/// three seconds after the 30 s that all of them have; those who wait for memory are counted from
/// when they began to wait, the last ones too. `STALLED_CLIENTS=2000 cargo test …` has more of
/// them.
#[test]
fn t54_clients_stopped_in_a_write_are_given_up_in_lots() {
    let asked = std::env::var("STALLED_CLIENTS").ok();
    let count: usize = asked.map_or(200, |it| it.parse().unwrap());
    let directory = tempfile::tempdir().unwrap();
    // So many have their memory together, at least.
    let lot = 60;
    let more = format!("cores = 1\nbuffers = \"128MiB\"\nclients = {}\n", count + 2);
    let Some(_engine) = export(directory.path(), &more) else {
        return;
    };
    let socket = directory.path().join("v0.sock");
    let stopped = |_| {
        let mut client = crate::serve::nbd::open(&socket, SOON);
        let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 1];
        let rest = [0_u64.to_be_bytes(), 0_u64.to_be_bytes()].concat();
        let bytes = [&head[..], &rest, &(1_u32 << 20).to_be_bytes(), &[7; 4096]];
        client.write_all(&bytes.concat()).unwrap();
        client
    };
    let mut clients: Vec<UnixStream> = (0..count).map(stopped).collect();
    let begun = Instant::now();
    let lots = u32::try_from(count / lot).unwrap();
    let limit = Duration::from_secs(45) + Duration::from_secs(3) * lots;
    let mut honest = Client::open(&socket);
    while !clients.is_empty() {
        assert!(begun.elapsed() < limit, "{} are there", clients.len());
        assert_eq!(honest.write(4096, 7), 0);
        std::thread::sleep(Duration::from_millis(250));
        clients.retain_mut(|client| !is_closed(client));
        let early = begun.elapsed() < Duration::from_secs(25);
        assert!(!early || clients.len() == count, "too soon");
    }
}

/// A pipe that takes nothing more, and its reader.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    let (from, mut to) = std::io::pipe().unwrap();
    let blocks = rustix::fs::fcntl_getfl(&to).unwrap();
    rustix::fs::fcntl_setfl(&to, blocks | rustix::fs::OFlags::NONBLOCK).unwrap();
    while to.write(&[b'.'; 4096]).is_ok() {}
    while to.write(b".").is_ok() {}
    rustix::fs::fcntl_setfl(&to, blocks).unwrap();
    (from, to)
}

#[test]
fn an_export_whose_notes_nobody_reads_goes_on_and_ends() {
    let directory = tempfile::tempdir().unwrap();
    let (mut unread, to) = full_pipe();
    let start = |directory: &Path, words: &[&str]| {
        Process::start_with(directory, words, to.try_clone().unwrap().into())
    };
    let Some(mut engine) = export_by(directory.path(), "", start) else {
        return;
    };
    drop(to);
    let socket = directory.path().join("v0.sock");
    let mut client = Client::open(&socket);
    for _ in 0..100 {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream.write_all(&[0xff; 4]).unwrap();
        // Greeted, then left.
        let _ = stream.read_to_end(&mut Vec::new());
        engine.signal(rustix::process::Signal::HUP);
    }
    assert_eq!(client.write(4096, 7), 0);
    drop(client);
    engine.signal(rustix::process::Signal::TERM);
    assert!(engine.ended().success());
    let mut text = Vec::new();
    unread.read_to_end(&mut text).unwrap();
    assert!(
        text.iter().all(|byte| *byte == b'.'),
        "it was full all the time"
    );
}
