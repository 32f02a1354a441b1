//! A client that takes resources that others need: connections, and memory for requests that never
//! come.
//!
//! # Contract
//! It reads nothing and ends nothing by itself. A connection that is refused or ended is made
//! again, a little later, until it [leaves](Stranger::leave).
use super::prelude::*;
use alloc::collections::VecDeque;
use engine::machine::{Place, Send};
use nbd::wire::{OptionHeader, RequestHeader, cmd, handshake, opt};

/// How long until a connection that ended is made again, ns.
const AGAIN_NS: u64 = 20_000_000;
/// Most connections of all unrelated clients.
const CONNECTIONS_MAX: usize = 128;

/// See the module.
#[derive(Default)]
pub struct Stranger {
    conns: Vec<Held>,
    outputs: VecDeque<Output>,
    /// Faults for which a connection was made.
    pub came: Vec<u64>,
}

/// One connection, or the place of one.
#[derive(Clone, Copy, Default)]
struct Held {
    /// Destination, and its fault; `None`: not wanted.
    wanted: Option<(u32, u64)>,
    /// It asks for memory.
    greedy: bool,
    /// It is there, or being made.
    open: bool,
    /// It is up.
    up: bool,
    /// It has said what it has to say.
    said: bool,
    /// When to make it.
    at_ns: u64,
}

impl Stranger {
    /// Takes so many connections to an address, for the fault of that name.
    pub fn come(&mut self, address: u32, count: usize, name: u64, greedy: bool) {
        for _ in 0..count {
            let mut conns = self.conns.iter();
            let free = conns.position(|it| it.wanted.is_none() && !it.open);
            let at = free.unwrap_or(self.conns.len());
            if at == CONNECTIONS_MAX {
                return;
            }
            if at == self.conns.len() {
                self.conns.push(Held::default());
            }
            self.conns[at] = Held {
                wanted: Some((address, name)),
                greedy,
                ..Held::default()
            };
        }
    }

    /// Ends those of that fault.
    pub fn leave(&mut self, name: u64) {
        for (number, it) in (0..).zip(&mut self.conns) {
            if it.wanted.is_some_and(|(_, of)| of == name) {
                it.wanted = None;
                if it.open {
                    let (conn, abort) = (ConnId(number), true);
                    self.outputs.push_back(Output::Close { conn, abort });
                }
            }
        }
    }
}

/// A client that knows what it wants, and then sends no data for it.
fn greed(out: &mut Vec<u8>) {
    let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    out.extend(flags.to_be_bytes());
    let (option, len) = (opt::EXPORT_NAME, 2);
    OptionHeader { option, len }.emit(out);
    out.extend(b"v0");
    let write = RequestHeader {
        flags: 0,
        command: cmd::WRITE,
        cookie: 0,
        offset: 0,
        length: nbd::limits::BLOCK_MAX,
    };
    write.emit(out);
}

impl Machine for Stranger {
    type Control = ();

    fn connections_max(&self) -> u32 {
        CONNECTIONS_MAX as u32
    }
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        None
    }
    fn handle_connected(&mut self, conn: ConnId, _: u64) {
        let it = &mut self.conns[conn.0 as usize];
        it.up = true;
        if let Some((_, name)) = it.wanted
            && !self.came.contains(&name)
        {
            self.came.push(name);
        }
        if it.greedy && it.wanted.is_some() {
            self.outputs.push_back(Output::Transmit(conn));
        }
    }
    fn handle_bytes(&mut self, _: ConnId, _: &[u8], _: u64) -> usize {
        0
    }
    fn placement(&mut self, _: ConnId) -> Option<Place> {
        None
    }
    fn handle_payload(&mut self, _: ConnId, _: u32, _: u32, _: u64) {}
    fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
        let it = &mut self.conns[conn.0 as usize];
        if it.said || !it.greedy || !it.up {
            return None;
        }
        it.said = true;
        greed(out);
        Some(None)
    }
    fn handle_sent(&mut self, _: ConnId, _: u32, _: u64) {}
    fn handle_closed(&mut self, conn: ConnId, _: Closed, now_ns: u64) {
        let it = &mut self.conns[conn.0 as usize];
        (it.open, it.up, it.said) = (false, false, false);
        it.at_ns = now_ns + AGAIN_NS;
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, _: &mut dyn Memory, now_ns: u64) {
        for (number, it) in (0..).zip(&mut self.conns) {
            if let Some((address, _)) = it.wanted
                && !it.open
                && it.at_ns <= now_ns
            {
                it.open = true;
                let conn = ConnId(number);
                self.outputs.push_back(Output::Open { conn, address });
            }
        }
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        let conns = self.conns.iter();
        let waits = conns.filter(|it| it.wanted.is_some() && !it.open);
        waits.map(|it| it.at_ns).min()
    }
    fn handle_timeout(&mut self, _: u64) {}
}
