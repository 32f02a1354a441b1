//! Metrics of a running engine.
use crate::serve::no_io_uring;
use crate::serve::process::{Client, Process, SOON, begun, begun_with_v0, wait_until};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

/// Places for scrapers.
const PLACES: usize = 8;

fn configure(directory: &Path, keys: &str) {
    let socket = directory.join("v0.sock");
    let text = format!(
        "{keys}[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:64MiB\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        socket.display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
}

/// An engine with these keys. `None`: this machine has no io_uring.
fn engine(directory: &Path, keys: &str) -> Option<Process> {
    configure(directory, keys);
    begun_with_v0(directory)
}

/// Where the engine says that it serves metrics.
pub fn address(engine: &mut Process) -> SocketAddr {
    // It may have said so before the volume was ready.
    let begins = "metrics: http://";
    if !engine.seen.contains(begins) {
        engine.says(begins).unwrap();
    }
    let (_, line) = engine.seen.split_once(begins).unwrap();
    let (address, _) = line.split_once("/metrics").unwrap();
    address.parse().unwrap()
}

/// A whole answer.
fn ask(mut stream: impl Read + Write, request: &str) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

pub fn scrape(address: SocketAddr) -> String {
    let answer = ask(connect(address), "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(
        head.contains("Content-Type: application/openmetrics-text; version=1.0.0"),
        "{head}"
    );
    assert!(page.ends_with("# EOF\n"), "{page}");
    page.to_owned()
}

/// The value of the only sample that begins so.
pub fn value(page: &str, sample: &str) -> f64 {
    let mut lines = page.lines().filter(|it| it.starts_with(sample));
    let line = lines.next().unwrap_or_else(|| panic!("{sample}: {page}"));
    assert!(lines.next().is_none(), "{sample}: {page}");
    line.rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Standard output and error of a verb, and whether it succeeded.
fn verb(directory: &Path, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command
        .args(words)
        .arg("--socket")
        .arg(directory.join("c.sock"));
    let output = command.output().unwrap();
    let all = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(all).unwrap())
}

#[test]
fn metrics_count_io_and_follow_a_reload() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some(mut engine) = engine(directory, "metrics = \"127.0.0.1:0\"\n") else {
        return;
    };
    let first = address(&mut engine);
    let page = scrape(first);
    assert_eq!(
        value(&page, "braid_volume_state{volume=\"v0\",state=\"ok\"}"),
        1.0
    );
    assert_eq!(value(&page, "braid_volume_size_bytes"), f64::from(64 << 20));
    let mut client = Client::open(&directory.join("v0.sock"));
    (0..3).for_each(|at| assert_eq!(client.write(at << 12, 1), 0));
    let written = "braid_path_transferred_bytes_total{volume=\"v0\",path=\"memory\",op=\"write\"}";
    wait_until(|| (value(&scrape(first), written) == 12288.0).then_some(()));
    let page = scrape(first);
    let clients = format!(
        "braid_export_clients{{volume=\"v0\",export=\"nbd+unix:///?socket={}\"}}",
        directory.join("v0.sock").display()
    );
    assert_eq!(value(&page, &clients), 1.0);
    for (request, status) in [
        ("GET /x HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("\0\r\n\r\n", "400"),
    ] {
        let answer = ask(connect(first), request);
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{answer}"
        );
    }
    // One that is taken is refused, and all is as before.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken_at = taken.local_addr().unwrap();
    configure(directory, &format!("metrics = \"{taken_at}\"\n"));
    let (well, said) = verb(directory, &["reload"]);
    assert!(
        !well && said.contains(&format!("cannot listen on {taken_at}")),
        "{said}"
    );
    scrape(first);
    drop(taken);
    let (well, said) = verb(directory, &["reload"]);
    let line = format!("metrics are served at http://{taken_at}/metrics");
    assert!(well && said.contains(&line), "{said}");
    scrape(taken_at);
    assert!(
        TcpStream::connect(first).is_err(),
        "it listens there no more"
    );
    // Only these clients.
    let keys = format!("metrics = \"{taken_at}\"\nmetrics_allow = [\"address=127.0.0.2\"]\n");
    configure(directory, &keys);
    let (well, said) = verb(directory, &["reload"]);
    assert!(
        well && said.contains("changed who may read metrics"),
        "{said}"
    );
    let mut rest = Vec::new();
    let _ = connect(taken_at).read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    engine.notes("metrics_allow does not name 127.0.0.1");
    configure(directory, "");
    let (well, said) = verb(directory, &["reload"]);
    assert!(
        well && said.contains("metrics are served no more"),
        "{said}"
    );
    assert!(TcpStream::connect(taken_at).is_err());
}

/// Of these two addresses only one can be listened on at once.
#[test]
fn metrics_move_to_all_addresses_of_their_port() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = free.local_addr().unwrap();
    drop(free);
    let Some(mut engine) = engine(directory, &format!("metrics = \"{one}\"\n")) else {
        return;
    };
    assert_eq!(address(&mut engine), one);
    let all = format!("0.0.0.0:{}", one.port());
    configure(
        directory,
        &format!("metrics = \"{all}\"\nmetrics_open = true\n"),
    );
    let file = directory.join("b.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let export = "[[volume.export]]\nnbd = \"unix:/proc/no/such.sock\"\n";
    std::fs::write(&file, text.clone() + export).unwrap();
    let (well, said) = verb(directory, &["reload"]);
    assert!(!well && said.contains("such.sock"), "{said}");
    assert!(!said.contains("not all could be taken back"), "{said}");
    scrape(one);
    std::fs::write(&file, text).unwrap();
    let (well, said) = verb(directory, &["reload"]);
    let line = format!("metrics are served at http://{all}/metrics");
    assert!(well && said.contains(&line), "{said}");
    scrape(one);
}

#[test]
fn metrics_port_in_use_ends_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap();
    configure(directory.path(), &format!("metrics = \"{taken}\"\n"));
    let mut engine = begun(directory.path());
    let status = engine.ended();
    engine.read_rest();
    if engine.seen.contains("io_uring") {
        return no_io_uring::skip(&engine.seen);
    }
    assert_eq!(status.code(), Some(1), "{}", engine.seen);
    let line = format!("metrics: cannot listen on {taken}");
    assert!(engine.seen.contains(&line), "{}", engine.seen);
}

#[test]
fn metrics_over_a_unix_socket() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let socket = directory.join("m.sock");
    let keys = format!("metrics = \"unix:{}\"\n", socket.display());
    let Some(_engine) = engine(directory, &keys) else {
        return;
    };
    let stream = wait_until(|| std::os::unix::net::UnixStream::connect(&socket).ok());
    stream.set_read_timeout(Some(SOON)).unwrap();
    let answer = ask(stream, "GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.contains("braid_uptime_seconds"), "{answer}");
}

/// Places are bounded, and I/O goes on; a page is shared by all scrapers of a second, so cores are
/// asked once, however many scrape.
#[test]
fn scrapers_that_stay_or_are_many_cost_cores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let Some(mut engine) = engine(directory, "metrics = \"127.0.0.1:0\"\n") else {
        return;
    };
    let address = address(&mut engine);
    let silent: Vec<TcpStream> = (0..PLACES).map(|_| connect(address)).collect();
    // They are accepted in order: there is no place for this one.
    let mut rest = Vec::new();
    let _ = connect(address).read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    let mut client = Client::open(&directory.join("v0.sock"));
    assert_eq!(client.write(0, 1), 0);
    drop(silent);
    wait_until(|| {
        let mut stream = connect(address);
        let sent = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
        let mut answer = String::new();
        let read = sent.and_then(|()| stream.read_to_string(&mut answer));
        read.ok().filter(|_| answer.contains("# EOF"))
    });
    let mut times: Vec<f64> = (0..120)
        .map(|_| value(&scrape(address), "braid_uptime_seconds "))
        .collect();
    times.dedup();
    let apart = times.windows(2).all(|it| it[1] - it[0] > 0.99);
    assert!(times.len() > 1 && apart, "{times:?}");
}
