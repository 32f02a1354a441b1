//! An NBD client made of bytes.
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Connected to export `v0`, in transmission: it asked for no block sizes, nor structured replies.
/// A read that takes longer than `wait` fails.
pub fn open(socket: &Path, wait: Duration) -> UnixStream {
    open_named(socket, "v0", wait)
}

/// The same of an export of another name.
pub fn open_named(socket: &Path, name: &str, wait: Duration) -> UnixStream {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(wait)).unwrap();
    choose(&mut stream, name);
    stream
}

/// The handshake on a connection, up to transmission. Returns the transmission flags.
pub fn choose(stream: &mut (impl Read + Write), name: &str) -> u16 {
    stream.read_exact(&mut [0; 18]).unwrap();
    let hello = [
        &3_u32.to_be_bytes()[..],
        b"IHAVEOPT",
        &1_u32.to_be_bytes(),
        &(name.len() as u32).to_be_bytes(),
        name.as_bytes(),
    ];
    stream.write_all(&hello.concat()).unwrap();
    let mut offer = [0; 10];
    stream.read_exact(&mut offer).unwrap();
    u16::from_be_bytes([offer[8], offer[9]])
}
