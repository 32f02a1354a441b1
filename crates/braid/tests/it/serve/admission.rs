//! Clients of NBD exports that may connect, and may not.
use crate::serve::nbd;
use crate::serve::process::{Process, SOON, begun_with_v0, wait_until};
use rustix::net::{AddressFamily, SocketType};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

/// Transmission flag of an export that refuses writes.
const READ_ONLY: u16 = 2;

fn configure(directory: &Path, export: &str) {
    let text = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:64MiB\"\n[[volume.export]]\n\
         {export}\n"
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
}

/// An engine with this export. `None`: this machine has no io_uring.
fn engine(directory: &Path, export: &str) -> Option<Process> {
    configure(directory, export);
    begun_with_v0(directory)
}

fn reload(directory: &Path, export: &str) -> String {
    configure(directory, export);
    let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
    command
        .args(["reload", "--socket"])
        .arg(directory.join("c.sock"));
    let output = command.output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// Connects from an address of loopback.
fn connect(from: &str, to: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    let from: SocketAddr = format!("{from}:0").parse().unwrap();
    rustix::net::bind(&socket, &from).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Whether the connection ends, without a byte.
fn is_refused(stream: &mut impl Read) -> bool {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes.is_empty()
}

/// Whether the engine has ended a connection.
fn is_cut(stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let mut byte = [0];
    let read = (&*stream).read(&mut byte);
    !matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn tcp_clients_are_admitted_by_address() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let with = |allow: &str| format!("nbd = \"tcp:{address}\"\nallow = [{allow}]");
    let rules = "\"address=127.0.0.0/30,read-only\", \"address=127.0.0.2\"";
    let Some(mut engine) = engine(directory, &with(rules)) else {
        return;
    };
    let [mut reader, mut writer] = ["127.0.0.1", "127.0.0.2"].map(|it| connect(it, address));
    assert_ne!(nbd::choose(&mut reader, "v0") & READ_ONLY, 0);
    assert_eq!(nbd::choose(&mut writer, "v0") & READ_ONLY, 0);
    assert!(is_refused(&mut connect("127.0.0.9", address)));
    engine.notes("a connection is refused: allow does not name 127.0.0.9");
    // The rule of one is gone, those of others are not.
    let said = reload(
        directory,
        &with("\"address=127.0.0.2\", \"address=127.0.0.9\""),
    );
    assert!(said.contains("disconnect 1 of its clients"), "{said}");
    wait_until(|| is_cut(&reader).then_some(()));
    assert!(is_refused(&mut connect("127.0.0.1", address)));
    let mut third = connect("127.0.0.9", address);
    assert_eq!(nbd::choose(&mut third, "v0") & READ_ONLY, 0);
    assert!(!is_cut(&writer));
    // Other rights are other terms: these clients learn of them when they connect again.
    let said = reload(
        directory,
        &with("\"address=127.0.0.2\", \"address=any,read-only\""),
    );
    assert!(said.contains("disconnect 1 of its clients"), "{said}");
    wait_until(|| is_cut(&third).then_some(()));
    assert!(!is_cut(&writer));
}

#[test]
fn unix_clients_are_admitted_by_user() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let socket = directory.join("v0.sock");
    let with = |allow: &str| format!("nbd = \"unix:{}\"\nallow = [{allow}]", socket.display());
    let uid = rustix::process::getuid().as_raw();
    let Some(mut engine) = engine(directory, &with(&format!("\"uid={}\"", uid + 1))) else {
        return;
    };
    let connect = || {
        let stream = UnixStream::connect(&socket).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    };
    assert!(is_refused(&mut connect()));
    engine.notes(&format!("allow does not name uid {uid}"));
    reload(
        directory,
        &with(&format!("\"uid={uid}\", \"uid=any,read-only\"")),
    );
    assert_eq!(nbd::choose(&mut connect(), "v0") & READ_ONLY, 0);
    reload(directory, &with("\"uid=any,read-only\""));
    assert_ne!(nbd::choose(&mut connect(), "v0") & READ_ONLY, 0);
}

/// A verb is refused as the file is, before it listens.
#[test]
fn export_beyond_loopback_needs_rules_or_open() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let socket = directory.join("v0.sock");
    let Some(_engine) = engine(directory, &format!("nbd = \"unix:{}\"", socket.display())) else {
        return;
    };
    let add = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_braid"));
        command
            .args(["export", "add", "v0", "tcp:0.0.0.0:0"])
            .args(words);
        command.arg("--socket").arg(directory.join("c.sock"));
        let output = command.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code(), said)
    };
    let (code, said) = add(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(
        said.contains("other machines reach tcp:0.0.0.0:0"),
        "{said}"
    );
    let (code, said) = add(&["--allow", "address=127.0.0.1"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = add(&["--open"]);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = add(&["--allow", "uid=1"]);
    assert!(
        code == Some(2) && said.contains("by TCP write address="),
        "{said}"
    );
}
