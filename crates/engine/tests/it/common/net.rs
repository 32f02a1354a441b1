//! The network: connections are made, carry bytes, and end.
use super::world::{Event, World};
use super::{Address, Node};
use engine::machine::{Closed, Memory};
use engine::{ConnId, Span};
use std::collections::VecDeque;

/// One end of a connection.
pub struct Conn {
    /// Distinguishes uses of one number.
    pub life: u64,
    /// Node, connection number and life of the other end; `None` while it is being opened.
    pub peer: Option<(usize, u32, u64)>,
    pub address: Option<u32>,
    pub delay_ns: u64,
    /// Received and not yet taken.
    pub inbox: VecDeque<u8>,
    pub blocked: bool,
    /// Arriving bytes are lost.
    pub mute: bool,
    /// When the last send is reported; a close waits for it.
    pub sent_ns: u64,
    /// When the last bytes reach the peer; a polite close comes after them.
    pub arrive_ns: u64,
    pub closing: bool,
    /// The peer takes nothing more: sends aren't over, and no more are made.
    pub stuffed: bool,
    /// A polite close waits for that.
    pub leaving: bool,
}

impl Conn {
    pub fn new(
        life: u64,
        peer: Option<(usize, u32, u64)>,
        address: Option<u32>,
        delay_ns: u64,
    ) -> Self {
        Self {
            life,
            peer,
            address,
            delay_ns,
            inbox: VecDeque::new(),
            blocked: false,
            mute: false,
            sent_ns: 0,
            arrive_ns: 0,
            closing: false,
            stuffed: false,
            leaving: false,
        }
    }
}

impl World {
    /// Whether the other end of a connection of `node` finds that nothing more is taken from it.
    pub fn stuff(&mut self, node: usize, number: u32, stuffed: bool) {
        let peer = self.nodes[node].conns.get(&number).and_then(|it| it.peer);
        let (far, number, life) = peer.expect("a connection that is up");
        let Some(conn) = self.conn(far, number, life) else {
            return;
        };
        conn.stuffed = stuffed;
        let leaving = conn.leaving;
        if !stuffed {
            self.transmit(far, number);
            if leaving {
                self.end(far, number, None, Closed::ByPeer);
            }
        }
    }

    /// All connections that `node` opened to its address number `address`: both ends get a reset.
    pub fn cut(&mut self, node: usize, address: u32) {
        let conns = &self.nodes[node].conns;
        let those = conns
            .iter()
            .filter(|(_, conn)| conn.address == Some(address));
        let cut: Vec<_> = those.map(|(&number, _)| number).collect();
        for conn in cut {
            self.end(node, conn, Some(Closed::Error(104)), Closed::Error(104));
        }
    }

    /// As [`Self::cut`], but only the I/O queue's connection of that path.
    pub fn cut_queue(&mut self, node: usize, path: u32) {
        let why = Closed::Error(104);
        self.end(node, path * 2 + 1, Some(why), why);
    }

    /// From now on nothing passes on the connections that `node` opened to its address number
    /// `address`, and nobody is told.
    pub fn mute(&mut self, node: usize, address: u32) {
        self.mute_those(node, |_, to| to == Some(address));
    }

    /// As [`Self::mute`], but only the I/O queue's connection of that path.
    pub fn mute_queue(&mut self, node: usize, path: u32) {
        self.mute_those(node, |number, _| number == path * 2 + 1);
    }

    fn mute_those(&mut self, node: usize, those: impl Fn(u32, Option<u32>) -> bool) {
        let mut ends = Vec::new();
        for (&number, conn) in &mut self.nodes[node].conns {
            if those(number, conn.address) {
                conn.mute = true;
                ends.extend(conn.peer);
            }
        }
        for (node, conn, life) in ends {
            if let Some(conn) = self.conn(node, conn, life) {
                conn.mute = true;
            }
        }
    }

    /// As if the peer had sent `bytes` on all connections that `node` opened to its address
    /// `address`.
    pub fn inject(&mut self, node: usize, address: u32, bytes: &[u8]) {
        self.inject_those(node, bytes, |_, to| to == Some(address));
    }

    /// As [`Self::inject`], but only on the I/O queue's connection of that path.
    pub fn inject_queue(&mut self, node: usize, path: u32, bytes: &[u8]) {
        self.inject_those(node, bytes, |number, _| number == path * 2 + 1);
    }

    fn inject_those(
        &mut self,
        node: usize,
        bytes: &[u8],
        those: impl Fn(u32, Option<u32>) -> bool,
    ) {
        let conns = self.nodes[node].conns.iter();
        let those =
            conns.filter(|(number, conn)| those(**number, conn.address) && conn.peer.is_some());
        let those: Vec<_> = those.map(|(&number, conn)| (number, conn.life)).collect();
        for (conn, life) in those {
            let bytes = bytes.to_vec();
            let at_ns = self.now_ns;
            self.at(
                at_ns,
                Event::Bytes {
                    node,
                    conn,
                    life,
                    bytes,
                },
            );
        }
    }

    /// A connection attempt reaches its listener, and the answer comes back.
    pub fn connect(&mut self, node: usize, conn: u32, life: u64) {
        let Some(it) = self.conn(node, conn, life).filter(|it| !it.closing) else {
            return;
        };
        let address = it.address.expect("opened by address") as usize;
        let Address::To {
            node: far,
            listener,
            delay_ns,
        } = self.nodes[node].addresses[address]
        else {
            let why = Closed::Error(111);
            self.at(
                self.now_ns,
                Event::Closed {
                    node,
                    conn,
                    life,
                    why,
                },
            );
            return;
        };
        let body = self.wake(far);
        let accepted = body.borrow_mut().accepted(listener, self.now_ns);
        let Some(ConnId(peer)) = accepted else {
            let why = Closed::Error(104);
            self.at(
                self.now_ns,
                Event::Closed {
                    node,
                    conn,
                    life,
                    why,
                },
            );
            return;
        };
        self.sequence += 1;
        let peer_life = self.sequence;
        let far_end = Conn::new(peer_life, Some((node, conn, life)), None, delay_ns);
        let taken = self.nodes[far].conns.insert(peer, far_end);
        assert!(taken.is_none(), "a connection number was used twice");
        let it = self.conn(node, conn, life).expect("still there");
        it.peer = Some((far, peer, peer_life));
        let body = self.wake(node);
        body.borrow_mut().connected(ConnId(conn), self.now_ns);
    }

    /// Hands in what has arrived, in pieces, as far as the machine takes it.
    pub fn deliver(&mut self, node: usize, number: u32, life: u64) {
        loop {
            let now_ns = self.now_ns;
            let piece = 1 + self.next(self.piece_max as u64) as usize;
            let Node {
                body,
                arena,
                conns,
                wakeups,
                ..
            } = &mut self.nodes[node];
            let Some(conn) = conns.get_mut(&number).filter(|conn| conn.life == life) else {
                return;
            };
            if conn.inbox.is_empty() || conn.blocked || conn.closing {
                return;
            }
            *wakeups += 1;
            let mut body = body.borrow_mut();
            let id = ConnId(number);
            let take = piece.min(conn.inbox.len());
            let bytes = conn.inbox.make_contiguous()[..take].to_vec();
            let taken = body.bytes(id, &bytes, now_ns);
            assert!(taken <= take, "took more than was offered");
            conn.inbox.drain(..taken);
            if taken == take {
                continue;
            }
            let Some(place) = body.place(id) else {
                conn.blocked = true;
                return;
            };
            assert!(place.span.len > 0, "empty placement");
            let n = (take - taken).min(place.span.len as usize);
            let into = Span {
                len: n as u32,
                ..place.span
            };
            let data = &bytes[taken..taken + n];
            conn.inbox.drain(..n);
            arena.bytes_mut(into).copy_from_slice(data);
            let crc = place
                .crc
                .map_or(0, |crc| nvme::wire::crc::crc32c(crc, data));
            body.payload(id, n as u32, crc, now_ns);
        }
    }

    pub fn open(&mut self, node: usize, conn: u32, address: u32) {
        self.sequence += 1;
        let life = self.sequence;
        let route = self.nodes[node].addresses[address as usize];
        let delay_ns = if let Address::To { delay_ns, .. } = route {
            delay_ns
        } else {
            1000
        };
        let it = Conn::new(life, None, Some(address), delay_ns);
        let taken = self.nodes[node].conns.insert(conn, it);
        assert!(taken.is_none(), "a connection was opened twice");
        if !matches!(route, Address::Silence) {
            self.at(
                self.now_ns + 2 * delay_ns,
                Event::Connect { node, conn, life },
            );
        }
    }

    pub fn resume(&mut self, node: usize, conn: u32) {
        if let Some(it) = self.nodes[node].conns.get_mut(&conn) {
            it.blocked = false;
            let life = it.life;
            let bytes = Vec::new();
            self.at(
                self.now_ns,
                Event::Bytes {
                    node,
                    conn,
                    life,
                    bytes,
                },
            );
        }
    }

    /// Everything a connection has to send is under way.
    pub fn transmit(&mut self, node: usize, number: u32) {
        let now_ns = self.now_ns;
        let conn = self.nodes[node].conns.get(&number);
        if conn.is_some_and(|conn| conn.stuffed) {
            return;
        }
        loop {
            let body = self.nodes[node].body.clone();
            let mut out = Vec::new();
            let Some(payload) = body.borrow_mut().transmit(ConnId(number), &mut out, now_ns) else {
                assert!(
                    out.is_empty(),
                    "wrote a header and said that it had nothing to send"
                );
                return;
            };
            let Some(conn) = self.nodes[node].conns.get_mut(&number) else {
                panic!("sends on a connection that is not there");
            };
            let (life, peer, delay_ns) = (conn.life, conn.peer, conn.delay_ns);
            if let Some(send) = payload {
                let bytes = self.nodes[node].arena.bytes(send.span).to_vec();
                out.extend_from_slice(&bytes);
                if send.digest {
                    out.extend(nvme::wire::crc::crc32c(0, &bytes).to_le_bytes());
                }
                let sent_ns = now_ns + self.next(self.sent_delay_ns + 1);
                let conn = self.nodes[node].conns.get_mut(&number).expect("checked");
                conn.sent_ns = conn.sent_ns.max(sent_ns);
                let event = Event::Sent {
                    node,
                    conn: number,
                    life,
                    send,
                    bytes,
                };
                self.at(sent_ns, event);
            }
            let Some((far, peer, peer_life)) = peer else {
                panic!("sends on a connection that is not up");
            };
            let address = self.nodes[node].conns[&number].address;
            let falls = |(at, to, most)| (at, Some(to)) == (node, address) && out.len() > most;
            if self.hole.is_some_and(falls)
                && let Some(conn) = self.conn(far, peer, peer_life)
            {
                conn.mute = true;
            }
            let conn = self.nodes[node].conns.get_mut(&number).expect("checked");
            conn.arrive_ns = now_ns + delay_ns;
            let event = Event::Bytes {
                node: far,
                conn: peer,
                life: peer_life,
                bytes: out,
            };
            self.at(now_ns + delay_ns, event);
        }
    }

    /// Ends a connection: `near` for this end (`None`: as it asked), `far` for the other one.
    pub fn end(&mut self, node: usize, number: u32, near: Option<Closed>, far: Closed) {
        let now_ns = self.now_ns;
        let Some(conn) = self.nodes[node].conns.get_mut(&number) else {
            return;
        };
        let polite = far == Closed::ByPeer;
        if conn.closing && polite {
            return;
        }
        conn.closing = true;
        let (life, peer, delay_ns) = (conn.life, conn.peer, conn.delay_ns);
        let (sent_ns, arrive_ns) = (conn.sent_ns.max(now_ns), conn.arrive_ns);
        let why = near.unwrap_or(Closed::ByUs);
        self.at(
            sent_ns,
            Event::Closed {
                node,
                conn: number,
                life,
                why,
            },
        );
        let Some((far_node, far_number, far_life)) = peer else {
            return;
        };
        let Some(far_conn) = self.conn(far_node, far_number, far_life) else {
            return;
        };
        // Bytes sent before a reset are lost with it.
        far_conn.closing |= !polite;
        let at_ns = (now_ns + delay_ns).max(far_conn.sent_ns).max(arrive_ns);
        let event = Event::Closed {
            node: far_node,
            conn: far_number,
            life: far_life,
            why: far,
        };
        self.at(at_ns, event);
    }
}
