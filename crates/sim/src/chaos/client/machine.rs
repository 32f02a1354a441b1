//! Applications as a machine among the others.
use super::Client;
use alloc::vec::Vec;
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::{ConnId, Machine, Output};
use nbd::client::Session;

impl Machine for Client {
    type Control = ();

    fn connections_max(&self) -> u32 {
        self.conns.len() as u32
    }
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        None
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.conns[conn.0 as usize].tally.since_ns = now_ns;
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_connected(now_ns);
        }
    }
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        let session = &mut self.conns[conn.0 as usize].session;
        let taken = session.as_mut().map(|it| it.handle_bytes(bytes, now_ns));
        taken.unwrap_or(bytes.len())
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        let session = self.conns[conn.0 as usize].session.as_ref()?;
        let place = session.placement()?;
        let span = self.span(conn.0 as usize, place.token, place.offset, place.len);
        Some(Place { span, crc: None })
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, _: u32, now_ns: u64) {
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_payload(len, now_ns);
        }
    }
    fn poll_transmit(&mut self, conn: ConnId, out: &mut Vec<u8>, _: u64) -> Option<Option<Send>> {
        let session = self.conns[conn.0 as usize].session.as_mut()?;
        let payload = session.poll_transmit(out)?.payload;
        Some(payload.map(|payload| Send {
            span: self.span(conn.0 as usize, payload.token, payload.offset, payload.len),
            digest: false,
            cookie: payload.token,
        }))
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, _: u64) {
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_sent(cookie);
        }
    }
    fn handle_closed(&mut self, conn: ConnId, _: Closed, _: u64) {
        if let Some(session) = &mut self.conns[conn.0 as usize].session {
            session.handle_closed();
        }
        self.conns[conn.0 as usize].over = true;
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        for conn in 0..self.conns.len() {
            self.poll(conn, memory, now_ns);
            if self.conns[conn].over {
                self.over(conn, now_ns);
            }
            let it = &mut self.conns[conn];
            if it.session.is_none() && it.again_ns <= now_ns {
                it.again_ns = 0;
                self.connect(conn);
            } else if it.ready {
                self.begin(conn, memory, now_ns);
                self.poll(conn, memory, now_ns);
            }
        }
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        let more = !self.resting && self.begun < self.habit.total;
        let times = self.conns.iter().enumerate().flat_map(|(conn, it)| {
            let session = it.session.as_ref().and_then(Session::poll_timeout);
            let again = it.session.is_none().then_some(it.again_ns);
            let next =
                (it.ready && more && self.has_room(conn) && it.next_ns > 0).then_some(it.next_ns);
            [session, again, next]
        });
        times.flatten().min()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        for it in &mut self.conns {
            if let Some(session) = &mut it.session {
                session.handle_timeout(now_ns);
            }
        }
    }
}
