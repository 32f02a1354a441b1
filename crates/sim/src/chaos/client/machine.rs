//! Applications as a machine among the others.
use super::association::Association;
use super::session::Session;
use crate::chaos::prelude::*;
use engine::machine::{Place, Send};

impl Machine for Client {
    type Control = ();

    fn connections_max(&self) -> u32 {
        (self.conns.len() + self.associations.len()) as u32
    }
    fn handle_accepted(&mut self, _: u32, _: u64) -> Option<ConnId> {
        None
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        if let Some(admin) = self.admin(conn) {
            return admin.handle_connected(now_ns);
        }
        let it = &mut self.conns[conn.0 as usize];
        it.tally.since_ns = now_ns;
        (it.up, it.stirred) = (true, true);
        if let Some(session) = &mut it.session {
            session.handle_connected(now_ns);
        }
    }
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        if let Some(admin) = self.admin(conn) {
            return admin.handle_bytes(bytes, now_ns);
        }
        let it = &mut self.conns[conn.0 as usize];
        it.stirred = true;
        let session = &mut it.session;
        let taken = session.as_mut().map(|it| it.handle_bytes(bytes, now_ns));
        taken.unwrap_or(bytes.len())
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        let session = self.conns.get(conn.0 as usize)?.session.as_ref()?;
        let place = session.placement()?;
        let span = self.span(conn.0 as usize, place.token, place.offset, place.len);
        let crc = place.crc;
        Some(Place { span, crc })
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        let it = &mut self.conns[conn.0 as usize];
        it.stirred = true;
        if let Some(session) = &mut it.session {
            session.handle_payload(len, crc, now_ns);
        }
    }
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        if let Some(admin) = self.admin(conn) {
            return admin.transmit(out, now_ns).then_some(None);
        }
        let session = self.conns[conn.0 as usize].session.as_mut()?;
        let payload = session.poll_transmit(out, now_ns)?;
        Some(payload.map(|payload| Send {
            span: self.span(conn.0 as usize, payload.token, payload.offset, payload.len),
            digest: payload.digest,
            cookie: payload.token,
            read: None,
        }))
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, _: u64) {
        let it = &mut self.conns[conn.0 as usize];
        it.stirred = true;
        if let Some(session) = &mut it.session {
            session.handle_sent(cookie);
        }
    }
    fn handle_closed(&mut self, conn: ConnId, _: Closed, now_ns: u64) {
        if let Some(admin) = self.admin(conn) {
            return admin.handle_closed(now_ns);
        }
        let it = &mut self.conns[conn.0 as usize];
        if let Some(session) = &mut it.session {
            session.handle_closed(now_ns);
        }
        (it.over, it.up) = (true, false);
    }
    fn handle_device(&mut self, _: u32, _: Result<(), DeviceError>, _: u64) {}
    fn handle_control(&mut self, (): (), _: u64) {}
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.advance_associations(now_ns);
        for conn in 0..self.conns.len() {
            self.poll(conn, memory, now_ns);
            if self.conns[conn].over {
                self.over(conn, now_ns);
            }
            let it = &mut self.conns[conn];
            if it.session.is_none() && it.again_ns <= now_ns {
                it.again_ns = 0;
                if self.may_connect(conn) {
                    self.connect(conn);
                }
            } else if it.ready {
                if self.may_begin(conn) {
                    self.begin(conn, memory, now_ns);
                }
                self.poll(conn, memory, now_ns);
            }
            self.transmit_queue(conn);
        }
        // Those whose connections have ended in this turn.
        self.advance_associations(now_ns);
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
    fn poll_timeout(&self) -> Option<u64> {
        let more = !self.resting && self.begun < self.habit.total;
        let times = self.conns.iter().enumerate().flat_map(|(conn, it)| {
            let session = it.session.as_ref().and_then(Session::poll_timeout);
            let again = (it.session.is_none() && self.may_connect(conn)).then_some(it.again_ns);
            let begins = it.ready && more && self.may_begin(conn) && self.has_room(conn);
            let next = (begins && it.next_ns > 0).then_some(it.next_ns);
            [session, again, next]
        });
        let hosts = self.associations.iter().map(Association::poll_timeout);
        times.chain(hosts).flatten().min()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        for it in &mut self.associations {
            it.handle_timeout(now_ns);
        }
        for it in &mut self.conns {
            it.stirred = true;
            if let Some(session) = &mut it.session {
                session.handle_timeout(now_ns);
            }
        }
    }
}
