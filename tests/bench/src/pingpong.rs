//! The bare exchange that a wire I/O is measured against: the same message sizes over loopback TCP,
//! with nothing done in between.
//!
//! # Contract
//! Two threads, each pinned to its CPU. The client keeps `depth` requests outstanding; each side
//! takes whatever is readable in one read and answers all of it in one write, which is the best
//! that a protocol on a byte stream can do. Sleeping ends block in read; spinning ends never sleep.
use crate::prelude::*;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

/// Bytes of one read at most.
const READ_BYTES: usize = 1 << 20;

/// Messages to exchange.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// Bytes of a request.
    pub request: usize,
    /// Bytes of its answer.
    pub response: usize,
    /// Requests outstanding.
    pub depth: usize,
    /// Never sleep.
    pub spin: bool,
    /// CPU of the client and of the server.
    pub cpus: [usize; 2],
    /// For how long.
    pub duration: Duration,
}

/// Measurements.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Answers per second.
    pub per_s: f64,
    /// System calls of the client per answer.
    pub calls: f64,
}

/// Runs one exchange on a fresh connection.
pub fn run(exchange: &Exchange) -> Result<Measured> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).context("listen on loopback")?;
    let address = listener.local_addr()?;
    let &Exchange {
        request,
        response,
        depth,
        spin,
        cpus,
        duration,
    } = exchange;
    thread::scope(|scope| {
        let server = scope.spawn(move || -> Result<()> {
            pin(cpus[1])?;
            let (stream, _) = listener.accept()?;
            Ok(End::new(stream, request, response, spin)?.answer()?)
        });
        let client = scope.spawn(move || -> Result<Measured> {
            pin(cpus[0])?;
            let stream = TcpStream::connect(address)?;
            End::new(stream, response, request, spin)?.ask(depth, duration)
        });
        let measured = client.join();
        let served = server.join();
        let (Ok(measured), Ok(served)) = (measured, served) else {
            anyhow::bail!("a thread of the ping-pong panicked");
        };
        served.context("ping-pong server")?;
        measured.context("ping-pong client")
    })
}

/// Pins this thread.
pub fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    ensure!(
        cpu < CpuSet::MAX_CPU,
        "CPU {cpu}: the kernel counts to {}",
        CpuSet::MAX_CPU
    );
    set.set(cpu);
    sched_setaffinity(None, &set).with_context(|| format!("pin to CPU {cpu}"))
}

/// One end of the connection.
struct End {
    stream: TcpStream,
    /// Bytes of a message that arrives, and of one that is sent.
    arriving: usize,
    sent: usize,
    spin: bool,
    buffer: Vec<u8>,
    /// Bytes of a message that has not arrived whole.
    partial: usize,
    /// Bytes to send.
    pending: usize,
    calls: u64,
}

impl End {
    fn new(stream: TcpStream, arriving: usize, sent: usize, spin: bool) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(spin)?;
        let buffer = vec![0; READ_BYTES];
        Ok(Self {
            stream,
            arriving,
            sent,
            spin,
            buffer,
            partial: 0,
            pending: 0,
            calls: 0,
        })
    }

    /// Answers until the peer has gone.
    fn answer(mut self) -> io::Result<()> {
        loop {
            match self.turn() {
                Ok(Some(messages)) => self.pending += messages * self.sent,
                Ok(None) => return Ok(()),
                Err(error) => match error.kind() {
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
    }

    /// Keeps `depth` requests outstanding for `duration`, and until one was answered.
    fn ask(mut self, depth: usize, duration: Duration) -> Result<Measured> {
        self.pending = depth * self.sent;
        let begun = Instant::now();
        let mut answers = 0u64;
        let elapsed = loop {
            let messages = self.turn()?.context("the server closed")?;
            answers += messages as u64;
            let elapsed = begun.elapsed();
            if elapsed >= duration && answers > 0 {
                break elapsed;
            }
            self.pending += messages * self.sent;
        };
        self.stream.shutdown(Shutdown::Both)?;
        let calls = self.calls as f64 / answers as f64;
        Ok(Measured {
            per_s: answers as f64 / elapsed.as_secs_f64(),
            calls,
        })
    }

    /// Sends what is pending, then reads once. Whole messages that arrived; `None` at the end.
    fn turn(&mut self) -> io::Result<Option<usize>> {
        while self.pending > 0 {
            let bytes = self.pending.min(self.buffer.len());
            self.calls += 1;
            match self.stream.write(&self.buffer[..bytes]) {
                Ok(written) => self.pending -= written,
                Err(error) if self.spin && error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.calls += 1;
        match self.stream.read(&mut self.buffer) {
            Ok(0) => Ok(None),
            Ok(bytes) => {
                let bytes = self.partial + bytes;
                self.partial = bytes % self.arriving;
                Ok(Some(bytes / self.arriving))
            }
            Err(error) if self.spin && error.kind() == ErrorKind::WouldBlock => Ok(Some(0)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{End, Exchange, run};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    #[test]
    fn every_request_is_answered_once_in_both_modes() {
        for spin in [false, true] {
            let duration = Duration::from_millis(20);
            let cpus = [0, 0];
            let exchange = Exchange {
                request: 72,
                response: 4120,
                depth: 8,
                spin,
                cpus,
                duration,
            };
            let measured = run(&exchange).unwrap();
            assert!(measured.per_s > 0.0 && measured.calls > 0.0);
        }
    }

    #[test]
    fn messages_in_pieces_are_counted_when_whole() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut end = End::new(listener.accept().unwrap().0, 10, 4, false).unwrap();
        let mut whole = 0;
        for (bytes, expected) in [(7, 0), (7, 1), (16, 3)] {
            peer.write_all(&vec![0; bytes]).unwrap();
            whole += end.turn().unwrap().unwrap();
            assert_eq!(whole, expected);
        }
        end.pending = 12;
        peer.write_all(&[0; 10]).unwrap();
        assert_eq!(end.turn().unwrap(), Some(1));
        peer.read_exact(&mut [0; 12]).unwrap();
    }
}
