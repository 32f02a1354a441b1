//! A peer that plays a record: whatever it is told, it says certain bytes at certain times.
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::{ConnId, Machine, Output};
use std::collections::VecDeque;

/// Sends `lines` (ns after a connection was accepted, bytes) on every connection; `silent` for
/// none.
pub struct Player {
    lines: Vec<(u64, Vec<u8>)>,
    conns: Vec<Option<Playing>>,
    outputs: VecDeque<Output>,
}

struct Playing {
    since_ns: u64,
    next: usize,
}

impl Player {
    pub fn new(lines: Vec<(u64, Vec<u8>)>) -> Self {
        Self {
            lines,
            conns: Vec::new(),
            outputs: VecDeque::new(),
        }
    }

    /// Says nothing at all.
    pub fn silent() -> Self {
        Self::new(Vec::new())
    }

    /// Says `bytes`, one every `gap_ns`.
    pub fn trickle(bytes: &[u8], gap_ns: u64) -> Self {
        Self::new(
            (1..)
                .zip(bytes)
                .map(|(i, &byte)| (i * gap_ns, vec![byte]))
                .collect(),
        )
    }

    fn due(&self, conn: &Playing) -> Option<u64> {
        Some(conn.since_ns + self.lines.get(conn.next)?.0)
    }
}

impl Machine for Player {
    type Control = ();

    fn connections_max(&self) -> u32 {
        64
    }
    fn handle_accepted(&mut self, _: u32, now_ns: u64) -> Option<ConnId> {
        let free = self
            .conns
            .iter()
            .position(Option::is_none)
            .unwrap_or(self.conns.len());
        self.conns
            .resize_with(self.conns.len().max(free + 1), || None);
        self.conns[free] = Some(Playing {
            since_ns: now_ns,
            next: 0,
        });
        Some(ConnId(free as u32))
    }
    fn handle_connected(&mut self, _: ConnId, _: u64) {}
    fn handle_bytes(&mut self, _: ConnId, bytes: &[u8], _: u64) -> usize {
        bytes.len()
    }
    fn placement(&mut self, _: ConnId) -> Option<Place> {
        None
    }
    fn handle_payload(&mut self, _: ConnId, _: u32, _: u32, _: u64) {}
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        let at_ns = self.due(self.conns[conn.0 as usize].as_ref()?)?;
        if at_ns > now_ns {
            return None;
        }
        let playing = self.conns[conn.0 as usize].as_mut()?;
        out.extend_from_slice(&self.lines[playing.next].1);
        playing.next += 1;
        Some(None)
    }
    fn handle_sent(&mut self, _: ConnId, _: u32, _: u64) {}
    fn handle_closed(&mut self, conn: ConnId, _: Closed, _: u64) {
        self.conns[conn.0 as usize] = None;
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, _: &mut dyn Memory, now_ns: u64) {
        for (number, conn) in (0..).zip(&self.conns) {
            let due = conn.as_ref().and_then(|conn| self.due(conn));
            if due.is_some_and(|at_ns| at_ns <= now_ns) {
                self.outputs.push_back(Output::Transmit(ConnId(number)));
            }
        }
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.conns
            .iter()
            .flatten()
            .filter_map(|conn| self.due(conn))
            .min()
    }
    fn handle_timeout(&mut self, _: u64) {}
}
