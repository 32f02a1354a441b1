//! Writes of applications that were cut off: their host may execute them yet.
//!
//! # Contract
//! As long as one may be executed, nothing else is written to its blocks: a write that is repeated
//! on another path may take effect twice, and a write between would be undone. It is over once its
//! host has ended its connection and everything that came with it. After a stop or death of the
//! host's process that is unknown.
//!
//! A connection over NBD that is made after the end of the orphan's has arrived is an exception,
//! whichever core it is to: writes by it are executed after the orphan, which is over when one of
//! them was done.
use super::client::Record;
use super::prelude::*;

/// One of them.
#[derive(Clone, Debug)]
pub struct Orphan {
    pub blocks: Range<u64>,
    /// Of the first block.
    pub tag: u64,
    pub durable: bool,
    pub start_ns: u64,
    /// Its connection: when it was made, and to which core.
    pub since_ns: u64,
    pub home: u32,
    pub order: Order,
}

/// Connections by which writes are executed after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// None: it is a command of NVMe/TCP.
    None,
    /// Those that are made once the end of its own has arrived.
    AfterEnd,
    /// Those that are made after this, ns.
    After(u64),
}

/// Knowledge about its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    UnderWay,
    /// It was done, or never is.
    Over,
    Unknown,
}

impl Orphan {
    /// Whether it changes one of these blocks.
    pub fn meets(&self, blocks: &Range<u64>) -> bool {
        self.blocks.start < blocks.end && blocks.start < self.blocks.end
    }

    /// Whether writes by a connection over NBD that was made then are executed after it.
    pub fn is_before(&self, since_ns: u64) -> bool {
        matches!(self.order, Order::After(ns) if ns < since_ns)
    }

    /// Returns the records for the history, if it ended then or if that is unknown.
    pub fn records(&self, end_ns: Option<u64>) -> impl Iterator<Item = Record> {
        let (start_ns, durable) = (self.start_ns, self.durable);
        let tags = (self.tag..).map(Tag);
        self.blocks.clone().zip(tags).map(move |(block, tag)| {
            let deed = match end_ns {
                Some(_) => Deed::Failed(tag),
                None => Deed::Write { tag, durable },
            };
            let end_ns = end_ns.unwrap_or(NEVER);
            let op = Op {
                deed,
                start_ns,
                end_ns,
            };
            Record::Block(block, op)
        })
    }
}

impl Rig {
    /// Looks for writes that are over.
    pub(super) fn part_with_orphans(&mut self) {
        let now_ns = self.world.now_ns;
        self.order_orphans();
        for host in &self.hosts {
            let Some(client) = self.world.nodes[host.clients].client() else {
                continue;
            };
            if client.orphans.is_empty() {
                continue;
            }
            let begun_ns = host.lives.all.last().map_or(0, |it| it.begun_ns);
            let homes = host.cores.iter().skip(self.layout.first_home());
            let stopping = host.stopping.is_some();
            let fate = |&core: &usize| self.fate(core, host.clients, stopping);
            let fates: Vec<Fate> = homes.map(fate).collect();
            let fate = |it: &Orphan| match fates[it.home as usize] {
                _ if it.since_ns < begun_ns => Fate::Unknown,
                fate => fate,
            };
            let all = client.orphans.iter();
            let those = |wanted| all.clone().filter(move |it| fate(it) == wanted);
            let over = those(Fate::Over).flat_map(|it| it.records(Some(now_ns)));
            let unknown = those(Fate::Unknown).flat_map(|it| it.records(None));
            let records: Vec<Record> = over.chain(unknown).collect();
            let count = those(Fate::Over).count() as u64;
            let left: Vec<Orphan> = those(Fate::UnderWay).cloned().collect();
            let node = host.clients;
            if let Body::Client(client) = &mut self.world.nodes[node].body {
                client.records.extend(records);
                client.orphans = left;
                client.orphans_over += count;
            }
            self.world.nodes[node].stirred = true;
        }
    }

    /// Looks for ends of orphans' connections that have arrived.
    fn order_orphans(&mut self) {
        let now_ns = self.world.now_ns;
        for host in 0..self.hosts.len() {
            let clients = self.hosts[host].clients;
            let open = |it: &Orphan| it.order == Order::AfterEnd;
            let client = self.world.nodes[clients].client();
            if !client.is_some_and(|it| it.orphans.iter().any(open)) {
                continue;
            }
            let homes = self.hosts[host].cores.iter().skip(self.layout.first_home());
            let arrived: Vec<bool> = homes
                .map(|&core| {
                    let mut conns = self.world.nodes[core].open_conns().filter(|(_, conn)| {
                        conn.wire.to == core && conn.wire.from == clients && !self.is_there(conn)
                    });
                    conns.all(|(_, conn)| conn.has_ended(now_ns))
                })
                .collect();
            if let Body::Client(client) = &mut self.world.nodes[clients].body {
                for it in client.orphans.iter_mut().filter(|it| open(it)) {
                    if arrived[it.home as usize] {
                        it.order = Order::After(now_ns);
                    }
                }
            }
        }
    }

    /// Returns the fate of all requests that came to a core on connections that its applications
    /// have no more.
    fn fate(&self, core: usize, clients: usize, stopping: bool) -> Fate {
        let node = &self.world.nodes[core];
        let Some(engine) = node.core().filter(|_| !node.stopped) else {
            return Fate::Unknown;
        };
        let accepted = || node.open_conns().filter(|(_, conn)| conn.wire.to == core);
        let mut own = accepted().filter(|(_, conn)| conn.wire.from == clients);
        let all_known = own.all(|(_, conn)| self.is_there(conn));
        // A place is free once nothing is left of its client.
        let places = front::places(engine);
        // A request that a stop breaks off may be executed after it.
        match all_known && !stopping && places == accepted().count() {
            true => Fate::Over,
            false => Fate::UnderWay,
        }
    }

    /// Whether the other end of a connection is there.
    fn is_there(&self, conn: &super::node::Conn) -> bool {
        let there = |end: super::node::End| {
            let nodes: &Node = &self.world.nodes[end.node];
            let it = nodes.conns.get(end.conn as usize).and_then(Option::as_ref);
            it.is_some_and(|it| it.life == end.life)
        };
        conn.peer.is_some_and(there)
    }
}
