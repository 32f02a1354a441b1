//! A target that says other things of itself than braid's does, for the sake of real peers.
use engine::machine::{Closed, DeviceError, Memory, Place, Send};
use engine::target::{TargetControl, TargetEngine};
use engine::{ConnId, Machine, Output};
use nvme::wire::Status;
use std::collections::BTreeMap;

/// Bytes of ICReq, and from there to KATO in the first capsule, which is Connect's.
const KATO_AT: usize = 128 + 8 + 48;
const C2H_DATA: u8 = 7;
const CAPSULE_RESP: u8 = 5;
const PAGE: usize = 4096;

/// Changes a page in place.
type Change = dyn FnMut(&mut [u8]);

/// A target, and what it changes in what it sends; without digests only.
pub struct Patched {
    pub target: TargetEngine,
    /// Applied to each page of 4 KiB that goes out.
    pub page: Box<Change>,
    /// Answer to a Connect with this KATO, ms, in place of the target's.
    pub refuse: Box<dyn FnMut(u32) -> Option<Status>>,
    /// KATO of each Connect that was answered.
    pub katos: Vec<u32>,
    /// The first bytes of each connection; empty once its Connect was answered.
    heads: BTreeMap<ConnId, Vec<u8>>,
}

impl Patched {
    pub fn new(target: TargetEngine) -> Self {
        Self {
            target,
            page: Box::new(|_| ()),
            refuse: Box::new(|_| None),
            katos: Vec::new(),
            heads: BTreeMap::new(),
        }
    }

    /// Changes one PDU of the target's own.
    fn change(&mut self, conn: ConnId, pdu: &mut [u8]) {
        if pdu[0] == C2H_DATA && pdu.len() == 24 + PAGE {
            (self.page)(&mut pdu[24..]);
        }
        let head = self.heads.get(&conn);
        if pdu[0] != CAPSULE_RESP || head.is_none_or(|head| head.len() < KATO_AT + 4) {
            return;
        }
        let kato = self.heads.remove(&conn).unwrap()[KATO_AT..][..4].to_vec();
        let kato_ms = u32::from_le_bytes(kato.try_into().unwrap());
        self.katos.push(kato_ms);
        if let Some(status) = (self.refuse)(kato_ms) {
            pdu[8..16].fill(0);
            pdu[22..24].copy_from_slice(&(status.0 << 1).to_le_bytes());
        }
    }
}

impl Machine for Patched {
    type Control = TargetControl;

    fn connections_max(&self) -> u32 {
        self.target.connections_max()
    }
    fn handle_accepted(&mut self, listener: u32, now_ns: u64) -> Option<ConnId> {
        let conn = self.target.handle_accepted(listener, now_ns)?;
        self.heads.insert(conn, Vec::new());
        Some(conn)
    }
    fn handle_connected(&mut self, conn: ConnId, now_ns: u64) {
        self.target.handle_connected(conn, now_ns);
    }
    fn handle_bytes(&mut self, conn: ConnId, bytes: &[u8], now_ns: u64) -> usize {
        let used = self.target.handle_bytes(conn, bytes, now_ns);
        if let Some(head) = self.heads.get_mut(&conn) {
            head.extend(&bytes[..used]);
            head.truncate(KATO_AT + 4);
        }
        used
    }
    fn placement(&mut self, conn: ConnId) -> Option<Place> {
        self.target.placement(conn)
    }
    fn handle_payload(&mut self, conn: ConnId, len: u32, crc: u32, now_ns: u64) {
        self.target.handle_payload(conn, len, crc, now_ns);
    }
    fn poll_transmit(
        &mut self,
        conn: ConnId,
        out: &mut Vec<u8>,
        now_ns: u64,
    ) -> Option<Option<Send>> {
        let mut at = out.len();
        let sent = self.target.poll_transmit(conn, out, now_ns);
        while let Some(head) = out.get(at..at + 8) {
            let plen = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
            // The last one may be a header whose payload follows elsewhere.
            let end = (at + plen).min(out.len());
            self.change(conn, &mut out[at..end]);
            at = end;
        }
        sent
    }
    fn handle_sent(&mut self, conn: ConnId, cookie: u32, now_ns: u64) {
        self.target.handle_sent(conn, cookie, now_ns);
    }
    fn handle_closed(&mut self, conn: ConnId, why: Closed, now_ns: u64) {
        self.heads.remove(&conn);
        self.target.handle_closed(conn, why, now_ns);
    }
    fn handle_device(&mut self, id: u32, result: Result<(), DeviceError>, now_ns: u64) {
        self.target.handle_device(id, result, now_ns);
    }
    fn start_before_ns(&self, id: u32) -> u64 {
        self.target.start_before_ns(id)
    }
    fn handle_control(&mut self, message: TargetControl, now_ns: u64) {
        self.target.handle_control(message, now_ns);
    }
    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.target.turn(memory, now_ns);
    }
    fn poll_output(&mut self) -> Option<Output> {
        self.target.poll_output()
    }
    fn poll_timeout(&self) -> Option<u64> {
        self.target.poll_timeout()
    }
    fn handle_timeout(&mut self, now_ns: u64) {
        self.target.handle_timeout(now_ns);
    }
}
