//! The network: connections are made, carry bytes, and end.
use super::node::{Conn, End, find};
use super::prelude::*;
use super::touch::Mark;
use super::wire_recorder::Tap;
use super::world::{SIP_NS, SMALL, State};
use engine::machine::Send;

const REFUSED: Closed = Closed::Error(111);
const RESET: Closed = Closed::Error(104);
const TIMED_OUT: Closed = Closed::Error(110);
/// Most bytes that a machine may add to what is being sent at a time: the room that a reactor keeps
/// for it.
const HEADERS_MAX: usize = 64 << 10;
/// The greater type of the two PDUs by which the ends of a connection agree, and their length.
const IC_RESP: u8 = 1;
const IC_BYTES: usize = 128;

/// Whether a host's connection of this number is one of an I/O queue.
fn is_io(conn: u32) -> bool {
    conn % 2 == 1
}

impl World {
    fn state(&self, wire: Wire) -> State {
        self.wires.get(&wire).copied().unwrap_or_default()
    }

    /// When something passes to `node` again, if nothing does.
    fn heals_ns(&self, wire: Wire, node: usize) -> u64 {
        let state = self.state(wire);
        state.heals_ns.max(state.ways[wire.toward(node)].heals_ns)
    }

    /// When something that leaves now arrives at `node`.
    fn arrival_ns(&mut self, wire: Wire, node: usize) -> u64 {
        let (state, way) = (self.state(wire), wire.toward(node));
        let marks = [
            (state.slow_ns > 0, Mark::Slowed),
            (state.heals_ns > self.now_ns, Mark::Parted),
            (
                state.ways[way].heals_ns > self.now_ns,
                Mark::PartedOneWay(way),
            ),
        ];
        for (_, mark) in marks.into_iter().filter(|it| it.0) {
            self.mark(wire, mark);
        }
        (self.now_ns + self.way_ns + state.slow_ns).max(self.heals_ns(wire, node))
    }

    /// When something of this length arrives at `node` at the earliest, where large packets get
    /// lost; `conn`: the host's number of its connection.
    fn large_ns(&mut self, wire: Wire, node: usize, conn: u32, len: usize) -> u64 {
        let way = wire.toward(node);
        let mut large_ns = self.state(wire).ways[way].large_ns;
        if is_io(conn) {
            large_ns = large_ns.max(self.state(wire).ways[way].large_io_ns);
        }
        if len <= SMALL || large_ns <= self.now_ns {
            return 0;
        }
        self.mark(wire, Mark::PartedOneWay(way));
        large_ns
    }

    /// Something on the way forgets the connections of I/O queues over a wire: nothing passes on
    /// them any more, and neither end is told.
    pub fn forget_on_the_way(&mut self, wire: Wire) {
        let conns = self.nodes[wire.from].open_conns();
        let those = conns.filter(|(number, conn)| {
            conn.wire == wire && !conn.closing && conn.peer.is_some() && is_io(*number)
        });
        let near = |(number, conn): (u32, &Conn)| End::new(wire.from, number, conn.life);
        let ends: Vec<(End, Option<End>)> = those.map(|it| (near(it), it.1.peer)).collect();
        for (near, far) in ends {
            for end in [Some(near), far].into_iter().flatten() {
                if let Some(conn) = self.conn(end) {
                    (conn.cut_off, conn.stale) = (true, true);
                }
            }
        }
    }

    /// Whether a node uses a connection that was forgotten on the way.
    pub fn has_stale(&self, node: usize) -> bool {
        let mut conns = self.nodes[node].open_conns();
        conns.any(|(_, conn)| conn.stale && !conn.closing)
    }

    pub(super) fn open(&mut self, node: usize, conn: u32, address: u32) {
        let life = self.name();
        let (to, listener) = self.nodes[node].addresses[address as usize];
        let wire = Wire {
            from: node,
            to,
            listener,
        };
        let mut it = Conn::new(life, wire, None);
        it.tap = match &self.nodes[node].body {
            Body::Core(_) | Body::Seeker(_) => Some(Box::new(Tap::nvme())),
            Body::Client(client) => Some(Box::new(client.tap(conn))),
            _ => None,
        };
        self.nodes[node].put(conn, it);
        let back_ns = self.arrival_ns(wire, node);
        let at_ns = self.arrival_ns(wire, to).max(back_ns) + self.way_ns;
        self.at(at_ns, Event::Connect(End { node, conn, life }));
    }

    /// A connection attempt reaches its listener, and the answer comes back.
    pub(super) fn connect(&mut self, end: End) {
        let now_ns = self.now_ns;
        let Some(conn) = self.conn(end) else { return };
        if conn.closing {
            return;
        }
        let wire = conn.wire;
        let near_ns = self.nodes[end.node].frozen_ns;
        let far = &mut self.nodes[wire.to];
        if far.is_dead() || far.stopped {
            return self.at(now_ns, Event::Closed(end, REFUSED));
        }
        if far.frozen_ns.max(near_ns) > now_ns {
            // The kernel accepts it and no process answers: to both the same as a late connection.
            let at_ns = far.frozen_ns.max(near_ns);
            far.missed += u64::from(far.frozen_ns > now_ns);
            self.nodes[end.node].missed += u64::from(near_ns > now_ns);
            return self.at(at_ns, Event::Connect(end));
        }
        far.stirred = true;
        let Some(ConnId(number)) = far.body.accepted(wire.listener, now_ns) else {
            return self.at(now_ns, Event::Closed(end, RESET));
        };
        let life = self.name();
        let peer = End::new(wire.to, number, life);
        let conn = Conn::new(life, wire, Some(end));
        self.nodes[wire.to].put(number, conn);
        let near = &mut self.nodes[end.node];
        if let Some(conn) = near.conn(end) {
            conn.peer = Some(peer);
        }
        near.body.connected(ConnId(end.conn), now_ns);
        near.stirred = true;
        self.mark(wire, Mark::Made);
    }

    /// Hands in what has arrived, in pieces, as far as the machine takes it.
    pub(super) fn deliver(&mut self, end: End) {
        let Some(mut most) = self.appetite(end) else {
            return;
        };
        while most > 0 {
            let piece = 1 + self.random.up_to(self.piece_max - 1) as usize;
            let now_ns = self.now_ns;
            let node = &mut self.nodes[end.node];
            let Some(conn) = find(&mut node.conns, end) else {
                return;
            };
            if conn.inbox.is_empty() || conn.blocked || conn.closing {
                return;
            }
            let bytes = conn.inbox.bytes();
            let bytes = &bytes[..piece.min(bytes.len()).min(most)];
            let id = ConnId(end.conn);
            let taken = node.body.bytes(id, bytes, now_ns);
            assert!(taken <= bytes.len(), "took more than was offered");
            node.stirred = true;
            let peer = conn.peer;
            let data = &bytes[taken..];
            if data.is_empty() {
                conn.inbox.take(taken);
                most -= taken;
                self.was_read(peer, taken);
                continue;
            }
            let Some(place) = node.body.placement(id) else {
                conn.inbox.take(taken);
                conn.blocked = true;
                self.was_read(peer, taken);
                return;
            };
            let data = &data[..data.len().min(place.span.len as usize)];
            let len = data.len() as u32;
            let into = Span { len, ..place.span };
            node.arena.bytes_mut(into).copy_from_slice(data);
            let crc = place
                .crc
                .map_or(0, |crc| nvme::wire::crc::crc32c(crc, data));
            let read = taken + len as usize;
            conn.inbox.take(read);
            node.body.payload(id, len, crc, now_ns);
            most -= read;
            self.was_read(peer, read);
        }
    }

    /// How many bytes of what has arrived are read now; `None`: nothing, until later.
    fn appetite(&mut self, end: End) -> Option<usize> {
        let now_ns = self.now_ns;
        let wire = self.conn(end)?.wire;
        let toward = wire.toward(end.node);
        let way = self.state(wire).ways[toward];
        let conn = self.conn(end)?;
        let (there, again_ns) = (conn.inbox.bytes().len() as u64, conn.again_ns);
        let sipped = there > 0 && again_ns > now_ns || there > way.sip;
        let mark = match () {
            () if way.deaf_ns > now_ns => (there > 0).then_some(Mark::Unread(toward)),
            () if way.sip == 0 => None,
            () => sipped.then_some(Mark::Sipped(toward)),
        };
        if let Some(mark) = mark {
            self.mark(wire, mark);
        }
        let conn = self.conn(end)?;
        let next_ns = match () {
            () if way.deaf_ns > now_ns => way.deaf_ns,
            () if way.sip == 0 => return Some(usize::MAX),
            () if conn.again_ns > now_ns => return None,
            () => now_ns + SIP_NS,
        };
        if conn.inbox.is_empty() || conn.again_ns == next_ns {
            return None;
        }
        conn.again_ns = next_ns;
        self.at(next_ns, Event::Bytes(end, Vec::new()));
        (way.deaf_ns <= now_ns).then_some(way.sip as usize)
    }

    /// The peer's sent bytes were read.
    fn was_read(&mut self, peer: Option<End>, bytes: usize) {
        let Some(peer) = peer else { return };
        let Some(conn) = self.conn(peer) else { return };
        assert!(bytes as u64 <= conn.unread, "more is read than was sent");
        conn.unread -= bytes as u64;
        let (wire, unread, wants) = (conn.wire, conn.unread, conn.wants);
        let waits = !conn.untaken.is_empty();
        let window = self.window_of(peer.node, wire);
        if waits && (window == 0 || unread <= window) {
            let conn = self.conn(peer);
            let taken = conn.map(|conn| core::mem::take(&mut conn.untaken));
            self.report(peer, self.now_ns, taken.unwrap_or_default());
        }
        if wants {
            let at_ns = self.arrival_ns(wire, peer.node);
            self.at(at_ns, Event::Room(peer));
        }
    }

    /// Bytes that may be under way or unread of what a node sends; 0: any number.
    fn window_of(&self, number: usize, wire: Wire) -> u64 {
        let far = [wire.from, wire.to][usize::from(wire.from == number)];
        match self.state(wire).ways[wire.toward(far)].window {
            0 => self.window,
            window => window,
        }
    }

    /// There is no room for what a node has to send; less than usual, if a fault has it.
    fn mark_full(&mut self, number: usize, wire: Wire) {
        if self.window_of(number, wire) != self.window {
            self.mark(wire, Mark::Full);
        }
    }

    /// Whether nothing more may be sent for now; who asks gets word when it may.
    fn is_full(&mut self, number: usize, conn: u32) -> bool {
        let Some(it) = self.nodes[number].any_conn(conn) else {
            return false;
        };
        let (wire, unread) = (it.wire, it.unread);
        let window = self.window_of(number, wire);
        let full = window > 0 && unread >= window;
        if full {
            self.mark_full(number, wire);
        }
        if let Some(it) = self.nodes[number].any_conn(conn) {
            it.wants = full;
        }
        full
    }

    /// There may be room again for what a connection has to send.
    pub(super) fn room(&mut self, end: End) {
        let Some(conn) = self.conn(end) else { return };
        if !conn.wants || conn.closing {
            return;
        }
        let leaving = conn.leaving;
        self.transmit(end.node, end.conn);
        let node = &mut self.nodes[end.node];
        node.stirred = true;
        let over = node.conn(end).is_some_and(|it| !it.wants);
        if leaving && over {
            self.end(end.node, end.conn, None, Closed::ByPeer);
        }
    }

    pub(super) fn resume(&mut self, node: usize, number: u32) {
        if let Some(conn) = self.nodes[node].any_conn(number) {
            conn.blocked = false;
            let end = End::new(node, number, conn.life);
            let unseen = conn.unseen_end.take();
            self.at(self.now_ns, Event::Bytes(end, Vec::new()));
            if let Some(why) = unseen {
                self.at(self.now_ns, Event::Closed(end, why));
            }
        }
    }

    /// Everything a connection has to send is under way.
    pub(super) fn transmit(&mut self, number: usize, conn: u32) {
        let now_ns = self.now_ns;
        while !self.is_full(number, conn) {
            let node = &mut self.nodes[number];
            let headers = &mut self.headers;
            headers.clear();
            let Some(payload) = node.body.transmit(ConnId(conn), headers, now_ns) else {
                assert!(
                    headers.is_empty(),
                    "wrote a header and said that it had nothing to send"
                );
                return;
            };
            let len = headers.len();
            assert!(len <= HEADERS_MAX, "{len} bytes at a time");
            let data = payload
                .as_ref()
                .map_or(0, |send| send.span.len as usize + 4);
            let mut out = Vec::with_capacity(len + data);
            out.extend_from_slice(headers);
            let it = node.any_conn(conn);
            let Some((life, wire, Some(peer))) = it.map(|it| (it.life, it.wire, it.peer)) else {
                panic!("node {number} sends on connection {conn}, which is not up");
            };
            let own = End::new(number, conn, life);
            if let Some(send) = payload {
                let bytes = node.arena.bytes(send.span).to_vec();
                out.extend_from_slice(&bytes);
                if send.digest {
                    out.extend(nvme::wire::crc::crc32c(0, &bytes).to_le_bytes());
                }
                self.take(own, (send, bytes), out.len() as u64);
            }
            self.listen(own, peer, &out);
            let damages = self.state(wire).damages;
            if damages > 0 && self.random.up_to(damages - 1) == 0 {
                self.mark(wire, Mark::Damaged);
                let at = self.random.up_to(out.len() as u64 - 1) as usize;
                let agreeing = out[0] <= IC_RESP && at < IC_BYTES;
                out[at] ^= 1 << self.random.up_to(7);
                self.damage([own, peer], agreeing);
            }
            let at_ns = self.arrival_ns(wire, peer.node) + self.stands_ns(number);
            let of_host = if number == wire.from { conn } else { peer.conn };
            let at_ns = at_ns.max(self.large_ns(wire, peer.node, of_host, out.len()));
            let mut arrive_ns = at_ns;
            if let Some(it) = self.conn(own) {
                arrive_ns = at_ns.max(it.arrive_ns);
                it.arrive_ns = arrive_ns;
                it.unread += out.len() as u64;
            }
            self.at(arrive_ns, Event::Bytes(peer, out));
        }
    }

    /// A send is reported a little later if there is room for all of it, else once there is.
    fn take(&mut self, own: End, sent: (Send, Vec<u8>), len: u64) {
        let sent_ns = self.now_ns + self.random.up_to(self.sent_ns);
        let Some(it) = self.conn(own) else { return };
        let (wire, unread) = (it.wire, it.unread);
        let window = self.window_of(own.node, wire);
        let Some(it) = self.conn(own) else { return };
        if !it.untaken.is_empty() || window > 0 && unread + len > window {
            it.untaken.push(sent);
            return self.mark_full(own.node, wire);
        }
        it.sent_ns = it.sent_ns.max(sent_ns);
        self.report(own, sent_ns, Vec::from([sent]));
    }

    /// Sends of one end are reported then, before its end.
    pub(super) fn report(&mut self, end: End, at_ns: u64, sends: Vec<(Send, Vec<u8>)>) {
        let Some(conn) = self.conn(end) else { return };
        conn.sends += sends.len();
        for (send, bytes) in sends {
            self.at(at_ns, Event::Sent(end, send, bytes));
        }
    }

    /// Passes sent bytes to a listener; bytes in the other direction are passed on when they
    /// arrive.
    fn listen(&mut self, own: End, peer: End, bytes: &[u8]) {
        let Some(conn) = self.conn(own) else { return };
        if conn.wire.from == own.node {
            let said = conn.tap.as_mut().and_then(|tap| tap.said(bytes).err());
            let wrong = said.map(|it| format!("{it} (to node {})", peer.node));
            self.blame(own.node, wrong);
        }
    }

    /// A damaged stream can't be followed; `agreeing`: damaged in the handshake of its ends.
    fn damage(&mut self, ends: [End; 2], agreeing: bool) {
        for end in ends {
            if let Some(conn) = self.conn(end) {
                conn.tap = None;
                conn.unsound |= agreeing;
            }
        }
    }

    pub(super) fn close(&mut self, number: usize, conn: u32, abort: bool) {
        if !abort {
            self.transmit(number, conn);
            let it = self.nodes[number].any_conn(conn);
            if let Some(it) = it.filter(|it| it.wants) {
                it.leaving = true;
                return;
            }
        }
        let far = if abort { RESET } else { Closed::ByPeer };
        self.end(number, conn, None, far);
    }

    /// Ends a connection: `near` for this end (`None`: as it asked), `far` for the other one.
    pub fn end(&mut self, number: usize, conn: u32, near: Option<Closed>, far: Closed) {
        let now_ns = self.now_ns;
        let Some(it) = self.nodes[number].any_conn(conn) else {
            return;
        };
        let polite = far == Closed::ByPeer;
        if it.closing && polite {
            return;
        }
        it.closing = true;
        let (life, peer, wire) = (it.life, it.peer, it.wire);
        let (sent_ns, last_ns) = (it.sent_ns.max(now_ns), it.arrive_ns);
        let end = End::new(number, conn, life);
        self.at(sent_ns, Event::Closed(end, near.unwrap_or(Closed::ByUs)));
        let Some(peer) = peer else { return };
        let at_ns = self.arrival_ns(wire, peer.node).max(last_ns);
        if let Some(conn) = self.conn(peer) {
            conn.ends_ns = Some(conn.ends_ns.map_or(at_ns, |it| it.min(at_ns)));
        }
        self.at(at_ns, Event::Closed(peer, far));
    }

    /// `Output::CheckEnd`.
    pub(super) fn check_end(&mut self, number: usize, id: ConnId) {
        let now_ns = self.now_ns;
        let node = &mut self.nodes[number];
        let conn = node.any_conn(id.0);
        let has_ended = conn.is_none_or(|it| it.closing || it.has_ended(now_ns));
        node.body.end_check(id, has_ended, now_ns);
        node.stirred = true;
    }

    /// All connections over a wire end with a reset, at both ends at once.
    pub fn cut(&mut self, wire: Wire) {
        self.reset(wire.from, |conn| conn.wire == wire);
    }

    /// Some connections that a node has opened end so.
    fn reset(&mut self, node: usize, which: impl Fn(&Conn) -> bool) {
        let conns = self.nodes[node].open_conns();
        let those = conns.filter(|(_, conn)| conn.wire.from == node && which(conn));
        let cut: Vec<u32> = those.map(|(number, _)| number).collect();
        for conn in cut {
            self.end(node, conn, Some(RESET), RESET);
        }
    }

    /// Connections whose ends may have understood each other wrongly end: else some of them would
    /// when they are first used in a certain way, long after.
    pub(super) fn cut_unsound(&mut self) {
        for node in 0..self.nodes.len() {
            self.reset(node, |conn| conn.unsound);
        }
    }

    /// Reports the loss to ends that have had no peer over a wire for long.
    pub fn give_up(&mut self, wire: Wire) {
        let mut ends = Vec::new();
        for node in [wire.from, wire.to] {
            for (conn, it) in self.nodes[node].open_conns() {
                let life = it.life;
                let alone = it.wire == wire && !it.closing && it.peer.is_some();
                ends.extend(alone.then_some((End { node, conn, life }, it.peer)));
            }
        }
        for (end, peer) in ends {
            let far = peer.and_then(|it| self.conn(it));
            if far.is_some_and(|it| !it.forgotten) {
                continue;
            }
            if let Some(conn) = self.conn(end) {
                conn.closing = true;
                let at_ns = conn.sent_ns.max(self.now_ns);
                self.at(at_ns, Event::Closed(end, TIMED_OUT));
            }
        }
    }

    /// One end of all connections over a wire is gone, that of the listener or the other, and the
    /// other end gets no notice. Bytes of that end that a partition keeps are lost with it: there
    /// is no end to send them again.
    pub fn forget(&mut self, wire: Wire, listener: bool) {
        let conns = self.nodes[wire.from].open_conns();
        let those = conns.filter(|(_, conn)| conn.wire == wire && !conn.closing);
        let ends = those.map(|(number, conn)| match listener {
            true => conn.peer,
            false => Some(End::new(wire.from, number, conn.life)),
        });
        let ends: Vec<End> = ends.flatten().collect();
        for end in ends {
            let Some(conn) = self.conn(end) else { continue };
            (conn.closing, conn.forgotten) = (true, true);
            let (peer, sent_ns) = (conn.peer, conn.sent_ns);
            self.at(sent_ns.max(self.now_ns), Event::Closed(end, TIMED_OUT));
            let Some(peer) = peer.filter(|it| self.heals_ns(wire, it.node) > self.now_ns) else {
                continue;
            };
            if let Some(conn) = self.conn(peer) {
                conn.cut_off = true;
            }
        }
    }
}
