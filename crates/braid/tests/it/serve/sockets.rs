//! Memory of the kernel per connection, as the kernel reports it (`/proc/net/tcp`): of peers
//! that read nothing and of peers that are gone without a word.
use crate::serve::nbd;
use crate::serve::no_io_uring;
use crate::serve::process::{Process, wait_until};
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

/// `SO_RCVBUF` of a deaf client: little is received for it.
const NARROW: usize = 4096;
/// Limit that docs/security.md states: bytes that wait to be sent, and one piece on top.
const UNSENT_MAX: u64 = (256 << 10) + (64 << 10);
/// Looks in a row that show the same.
const STILL: usize = 20;

/// One socket of this network namespace.
#[derive(Debug)]
struct Row {
    /// Bytes that the peer has not acknowledged, sent or not.
    unsent: u64,
    /// Which timer runs, and when it ends: hundredths of a second.
    timer: u8,
    ends: u64,
}

/// The socket at `local` whose peer is `remote`.
fn row(local: SocketAddr, remote: SocketAddr) -> Row {
    let name = |address: SocketAddr| match address {
        SocketAddr::V4(v4) => format!("{:08X}:{:04X}", v4.ip().to_bits().swap_bytes(), v4.port()),
        SocketAddr::V6(_) => panic!("{address}"),
    };
    let names = format!(" {} {} ", name(local), name(remote));
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let line = table.lines().find(|line| line.contains(&names));
    let line = line.unwrap_or_else(|| panic!("{names} is not in {table}"));
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |text| u64::from_str_radix(text, 16).unwrap();
    let of = |word: usize, part| number(words[word].split(':').nth(part).unwrap());
    Row {
        unsent: of(4, 0),
        timer: of(5, 0) as u8,
        ends: of(5, 1),
    }
}

/// An export on loopback TCP, and where it is. `None`: this machine has no io_uring.
fn export(directory: &Path) -> Option<(Process, SocketAddr)> {
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let text = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"null:1GiB\"\n[[volume.export]]\n\
         nbd = \"tcp:{address}\"\n"
    );
    let [config, socket] = ["b.toml", "c.sock"].map(|name| directory.join(name));
    std::fs::write(&config, text).unwrap();
    let [config, socket] = [&config, &socket].map(|path| path.to_str().unwrap());
    let mut engine = Process::start(directory, &["run", "-c", config, "--socket", socket]);
    if engine.says("v0: ready").is_none() {
        engine.notes("io_uring");
        no_io_uring::skip(&engine.seen);
        return None;
    }
    Some((engine, address))
}

/// A client that asked for 8 MiB, and reads nothing.
fn deaf(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&stream, NARROW).unwrap();
    nbd::choose(&mut stream, "v0");
    for number in 0..64_u64 {
        let head = [0x25, 0x60, 0x95, 0x13, 0, 0, 0, 0];
        let [cookie, offset] = [number, number << 17].map(u64::to_be_bytes);
        let length = (128_u32 << 10).to_be_bytes();
        let request = [&head[..], &cookie, &offset, &length].concat();
        stream.write_all(&request).unwrap();
    }
    stream
}

#[test]
fn a_peer_that_reads_nothing_holds_as_little_of_the_kernel_as_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let Some((_engine, address)) = export(directory.path()) else {
        return;
    };
    let deaf: Vec<TcpStream> = (0..8).map(|_| deaf(address)).collect();
    for stream in &deaf {
        let mine = stream.local_addr().unwrap();
        let mut seen = Vec::new();
        let held = wait_until(|| {
            seen.push(row(address, mine).unsent);
            let last = &seen[seen.len().saturating_sub(STILL)..];
            let still = last.len() == STILL && last.iter().all(|held| *held == last[0]);
            (still && last[0] > 0).then_some(last[0])
        });
        assert!(held <= UNSENT_MAX, "{held} bytes");
    }
}

#[test]
fn a_peer_that_is_silent_is_asked_after_a_minute_whether_it_is_there() {
    /// The timer of keep-alive, and a minute.
    const KEEP_ALIVE: u8 = 2;
    const MINUTE: u64 = 60 * 100;
    let directory = tempfile::tempdir().unwrap();
    let Some((_engine, address)) = export(directory.path()) else {
        return;
    };
    let mut stream = TcpStream::connect(address).unwrap();
    nbd::choose(&mut stream, "v0");
    let mine = stream.local_addr().unwrap();
    // Its last bytes are acknowledged soon; then only that timer is left.
    let row = wait_until(|| Some(row(address, mine)).filter(|row| row.timer == KEEP_ALIVE));
    assert!(row.ends <= MINUTE, "{row:?}");
    assert_eq!(row.unsent, 0);
}
