//! Clients that hold memory, or wait for it, and move nothing while others wait, are given up.
//!
//! Decides, for the export as a whole, which clients keep others from memory. A session looks after
//! its own request ([`nbd::server`]), which begins only when that has its memory; so of many
//! clients that stop in the middle of a request each lot would be waited for anew. Here the time
//! that a client waited for memory counts as well: once it has memory it has to move.
//!
//! # Contract
//! A look every [`EXPORT_STALL_NS`] while any client waits for memory, or has a request that did. A
//! client is given up that came with no new request for [`STALL_NS`], its wait for memory included,
//! and moved nothing between [`EXPORT_STALL_LOOKS`] looks although it was its turn: while others
//! wait for memory, or if it waited itself. So the last of many have no longer than those before.
//! Bytes that lay in its socket when it stopped are no sign of life by themselves. A request that
//! waits for a device or for other changes is not the client's turn.
use super::NbdServer;
use super::clients::Client;
use crate::limits::{EXPORT_STALL_LOOKS, EXPORT_STALL_NS};
use alloc::vec::Vec;
use nbd::limits::STALL_NS;

/// Stall state of all clients.
pub(super) struct Stalls {
    /// The next look; `u64::MAX`: no client waits for memory.
    look_ns: u64,
    /// By client.
    all: Vec<Flow>,
}

/// Transfers between one client and its requests' memory.
#[derive(Clone, Copy, Default)]
struct Flow {
    /// Bytes that the session had moved at the last look, and the number of its last request.
    moved: u64,
    request: u64,
    /// Looks since that request was there and not over.
    age: u32,
    /// Looks in a row before which it had moved nothing though it was its turn.
    still: u32,
    /// It was its turn at the last look.
    due: bool,
    /// That request waited for memory.
    waited: bool,
}

impl Stalls {
    pub fn new(clients: u16) -> Self {
        Self {
            look_ns: u64::MAX,
            all: alloc::vec![Flow::default(); clients.into()],
        }
    }

    /// A client waits for memory from now on.
    #[inline]
    pub fn watch(&mut self, now_ns: u64) {
        if self.look_ns == u64::MAX {
            self.look_ns = now_ns.saturating_add(EXPORT_STALL_NS);
            self.all.fill(Flow::default());
        }
    }

    /// Another client has that place.
    pub fn forget(&mut self, client: u16) {
        self.all[usize::from(client)] = Flow::default();
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        Some(self.look_ns).filter(|at_ns| *at_ns != u64::MAX)
    }
}

impl Flow {
    /// One look; whether the client stalls, if others wait or it waited itself.
    fn look(&mut self, (request, moved): (u64, u64), due: bool, waits: bool) -> bool {
        let is_same = self.request == request && (due || waits);
        let is_still = is_same && due && self.due && self.moved == moved;
        *self = Self {
            moved,
            request,
            age: if is_same { self.age + 1 } else { 0 },
            still: if is_still { self.still + 1 } else { 0 },
            due,
            waited: waits || (is_same && self.waited),
        };
        u64::from(self.age) * EXPORT_STALL_NS >= STALL_NS && self.still >= EXPORT_STALL_LOOKS
    }
}

impl NbdServer {
    /// Looks, if it is time.
    pub(super) fn look_for_stalls(&mut self, now_ns: u64) {
        if now_ns < self.stalls.look_ns {
            return;
        }
        let others_wait = self.clients.iter().any(Client::is_waiting);
        let mut goes_on = others_wait;
        for client in 0..self.config.clients_max {
            let it = &mut self.clients[usize::from(client)];
            let waits = it.is_waiting();
            let Some(session) = it.session() else {
                continue;
            };
            let (turn, moved) = (session.turn(), (session.requests(), session.moved()));
            let flow = &mut self.stalls.all[usize::from(client)];
            let stalls = flow.look(moved, turn.is_some(), waits);
            goes_on |= flow.waited;
            if stalls
                && (others_wait || flow.waited)
                && let Some(why) = turn
            {
                session.give_up(why, now_ns);
                self.touch(client);
            }
        }
        self.stalls.look_ns = if goes_on {
            now_ns.saturating_add(EXPORT_STALL_NS)
        } else {
            u64::MAX
        };
    }
}
