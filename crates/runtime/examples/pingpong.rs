//! Two reactors exchange messages of an I/O's sizes over loopback TCP: what the runtime itself
//! costs, without a protocol.
//!
//! `cargo run --release -p braid-runtime --example pingpong -- [--spin|--sleep] [--depth N]
//! [--payload BYTES] [--seconds S]`
#![forbid(unsafe_code)]
use engine::machine::*;
use runtime::{Handle, Polling, ReactorConfig, ReactorStats, RuntimeError, now_ns, spawn};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use sys::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Bytes of a request: a command capsule.
const REQUEST: usize = 72;
/// Bytes before the payload of an answer.
const HEADER: usize = 24;
const CONN: ConnId = ConnId(0);

/// Either end.
struct End {
    /// Requests to keep outstanding; 0 in the server.
    depth: u32,
    payload: u32,
    /// Bytes of the current message's header that arrived.
    have: usize,
    /// Payload bytes still to come.
    left: u32,
    /// Messages to send.
    owed: u32,
    end_ns: u64,
    seconds: u64,
    exchanged: u64,
    outputs: VecDeque<Output>,
    allocations: (u64, u64),
}

impl End {
    fn new(depth: u32, payload: u32, seconds: u64) -> Self {
        let mut outputs = VecDeque::with_capacity(16);
        if depth > 0 {
            outputs.push_back(Output::Open {
                conn: CONN,
                address: 0,
            });
        }
        Self {
            depth,
            payload,
            have: 0,
            left: 0,
            owed: 0,
            end_ns: u64::MAX,
            seconds,
            exchanged: 0,
            outputs,
            allocations: (0, 0),
        }
    }

    fn header_bytes(&self) -> usize {
        if self.depth > 0 { HEADER } else { REQUEST }
    }

    /// A whole message arrived: it is answered, or its answer is.
    fn exchange(&mut self) {
        self.have = 0;
        self.exchanged += 1;
        self.owed += 1;
        if self.owed == 1 {
            self.outputs.push_back(Output::Transmit(CONN));
        }
    }
}

impl Machine for End {
    type Control = ();

    fn connections_max(&self) -> u32 {
        1
    }
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        Some(CONN)
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.owed = self.depth;
        self.end_ns = now_ns + self.seconds * 1_000_000_000;
        self.outputs.push_back(Output::Transmit(conn));
    }
    fn handle_bytes(&mut self, _: ConnId, bytes: &[u8], _: u64) -> usize {
        let want = self.header_bytes();
        let mut at = 0;
        while at < bytes.len() && self.left == 0 {
            let taken = (bytes.len() - at).min(want - self.have);
            (at, self.have) = (at + taken, self.have + taken);
            if self.have < want {
                break;
            }
            if self.depth > 0 && self.payload > 0 {
                self.left = self.payload;
            } else {
                self.exchange();
            }
        }
        at
    }
    fn placement(&mut self, _: ConnId) -> Option<Place> {
        let at = u64::from(self.payload - self.left);
        (self.left > 0).then_some(Place {
            span: Span { at, len: self.left },
            crc: None,
        })
    }
    fn handle_payload(&mut self, _: ConnId, len: u32, _: u32, _: u64) {
        self.left -= len;
        if self.left == 0 {
            self.exchange();
        }
    }
    fn poll_transmit(&mut self, _: ConnId, out: &mut Vec<u8>, now_ns: u64) -> Option<Option<Send>> {
        if self.owed == 0 || now_ns >= self.end_ns {
            return None;
        }
        self.owed -= 1;
        if self.depth > 0 {
            out.extend_from_slice(&[1; REQUEST]);
            return Some(None);
        }
        out.extend_from_slice(&[2; HEADER]);
        let span = Span {
            at: 0,
            len: self.payload,
        };
        Some((self.payload > 0).then_some(Send {
            span,
            digest: false,
            cookie: 0,
            read: None,
        }))
    }
    fn handle_sent(&mut self, _: ConnId, _: u32, _: u64) {}
    fn handle_closed(&mut self, _: ConnId, why: Closed, _: u64) {
        if why != Closed::ByUs {
            self.outputs.push_back(Output::Stop);
        }
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, _: &mut dyn Memory, now_ns: u64) {
        let now = CountingAllocator::of_this_thread();
        // The first thousand exchanges warm up.
        if self.exchanged < 1000 {
            self.allocations.0 = now;
        }
        self.allocations.1 = now;
        if now_ns >= self.end_ns {
            self.end_ns = u64::MAX;
            self.outputs.push_back(Output::Stop);
        }
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        None
    }
    fn handle_timeout(&mut self, _: u64) {}
}

fn start(
    name: &str,
    machine: End,
    polling: Polling,
    listener: Option<TcpListener>,
    address: Option<SocketAddr>,
) -> Result<Handle<End>, RuntimeError> {
    let cpus = sys::os::cpus().unwrap_or_default();
    let config = ReactorConfig {
        name: name.into(),
        cpu: cpus
            .get(usize::from(address.is_some()) % cpus.len().max(1))
            .copied(),
        polling,
        arena_bytes: 1 << 20,
        per_peer_max: None,
        addresses: address.into_iter().collect(),
        listeners: listener.into_iter().collect(),
        devices: Vec::new(),
    };
    spawn(config, machine)
}

fn report(name: &str, end: &End, stats: &ReactorStats) {
    let per = |count: u64| count as f64 / end.exchanged.max(1) as f64;
    println!(
        "{name}: per exchange {:.3} enters, {:.3} receives, {:.3} sends, {:.3} turns, \
         {:.3} sleeps, {:.4} allocations; bytes copied in {:.0}, direct in {:.0}, \
         copied out {:.0}, direct out {:.0}",
        per(stats.enters),
        per(stats.receives),
        per(stats.sends),
        per(stats.turns),
        per(stats.wakeups),
        per(end.allocations.1 - end.allocations.0),
        per(stats.bytes_copied_in),
        per(stats.bytes_direct_in),
        per(stats.bytes_copied_out),
        per(stats.bytes_direct_out),
    );
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut polling, mut depth, mut payload, mut seconds) = (Polling::default(), 1, 4096, 2);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a number"));
        match argument.as_str() {
            "--spin" => polling = Polling::Always,
            "--sleep" => polling = Polling::Never,
            "--depth" => depth = value()?.parse()?,
            "--payload" => payload = value()?.parse()?,
            "--seconds" => seconds = value()?.parse()?,
            _ => {
                return Err(
                    format!("{argument}: unknown; see the first lines of the source").into(),
                );
            }
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = start(
        "server",
        End::new(0, payload, 0),
        polling,
        Some(listener),
        None,
    )?;
    let before = now_ns();
    let client = start(
        "client",
        End::new(depth, payload, seconds),
        polling,
        None,
        Some(address),
    )?;
    let (client, client_stats) = client.join()?;
    let elapsed = (now_ns() - before) as f64 / 1e9;
    let (server, server_stats) = server.join()?;
    let rate = client.exchanged as f64 / elapsed;
    println!(
        "depth {depth}: {rate:.0} per second, {:.1} µs each",
        1e6 * f64::from(depth) / rate
    );
    report("client", &client, &client_stats);
    report("server", &server, &server_stats);
    Ok(())
}
