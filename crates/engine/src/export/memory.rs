//! Who gets memory, and when: no client can keep another from going on.
//!
//! Decides, from what is free and what each client has, which requests get their memory now. Every
//! client has a piece of the arena of its own, for one request that fits; all else is shared.
//!
//! # Contract
//! A request has all of its memory or none. Where it doesn't fit its client's own piece, or that is
//! in use, it comes from what is shared: a client gets the first such request's memory when it is
//! there, and more only while as much is free as it would then hold. Clients that wait for shared
//! memory stand in one line, each with its first request, and go to its end when that was served;
//! whoever is at the front is waited for, so that large requests come to their turn. Nobody waits
//! for that line whose own piece will do.
//!
//! # Limits
//! The own pieces are at most a quarter of the arena, so that the largest request fits the rest;
//! see [`OWN_MAX`]. A waiting line has one place per client, and one per request.
use super::ExportEngine;
use super::table::Stage;
use crate::buddy::Buddy;
use crate::limits::OWN_MAX;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The arena of a core.
pub(super) struct Pool {
    /// What is shared: the arena from its beginning.
    shared: Buddy,
    /// Where the clients' own pieces begin, and the bytes of each.
    own_at: u64,
    own_bytes: u64,
    /// Of them, those that aren't in use.
    own_free: u64,
    /// Clients that wait for shared memory.
    line: VecDeque<u16>,
    /// Shared memory came back, or somebody joined or left the line.
    changed: bool,
    /// Clients that wait and whose own piece came back.
    own_freed: Vec<u16>,
}

impl Pool {
    pub fn new(arena_bytes: u64, clients: u16) -> Self {
        let most = (arena_bytes / 4 / u64::from(clients)).min(OWN_MAX.into());
        let own_bytes = 1 << most.ilog2();
        let own_free = own_bytes * u64::from(clients);
        let shared = Buddy::new(arena_bytes - own_free);
        Self {
            own_at: shared.free_bytes(),
            own_bytes,
            own_free,
            shared,
            line: VecDeque::with_capacity(clients.into()),
            changed: false,
            own_freed: Vec::with_capacity(clients.into()),
        }
    }

    /// Bytes in no request.
    pub fn free_bytes(&self) -> u64 {
        self.shared.free_bytes() + self.own_free
    }
}

impl ExportEngine {
    /// All memory of a request, if its client may have it, it is there and nobody waits for it.
    pub(super) fn take_memory(&mut self, ticket: u32) -> bool {
        self.take_own(ticket) || (self.pool.line.is_empty() && self.take_shared(ticket))
    }

    /// Memory of its client's own, or none where it needs none.
    fn take_own(&mut self, ticket: u32) -> bool {
        let (need, block) = (self.need(ticket), self.table[ticket].block);
        let work = &mut self.table[ticket];
        let it = &mut self.clients[usize::from(work.client)];
        if need > 0 && !it.own_used && need <= self.pool.own_bytes {
            it.own_used = true;
            self.pool.own_free -= self.pool.own_bytes;
            let at = self.pool.own_at + u64::from(work.client) * self.pool.own_bytes;
            work.allocate_own(block, at);
            return true;
        }
        need == 0
    }

    fn take_shared(&mut self, ticket: u32) -> bool {
        let (need, block) = (self.need(ticket), self.table[ticket].block);
        let may_hold = self.may_hold(ticket);
        let work = &mut self.table[ticket];
        let taken = may_hold && work.allocate(block, &mut self.pool.shared);
        if taken {
            self.clients[usize::from(work.client)].held += need;
        }
        taken
    }

    /// Bytes of the arena that a request takes.
    fn need(&self, ticket: u32) -> u64 {
        let work = &self.table[ticket];
        work.memory(work.block)
    }

    /// Whether the client's share allows it. One request each is always allowed; of what is free
    /// then, half.
    fn may_hold(&self, ticket: u32) -> bool {
        let held = self.clients[usize::from(self.table[ticket].client)].held;
        held == 0 || held + self.need(ticket) <= self.pool.shared.free_bytes()
    }

    pub(super) fn wait_for_memory(&mut self, ticket: u32) {
        self.table[ticket].stage = Stage::Memory;
        let client = self.table[ticket].client;
        let it = &mut self.clients[usize::from(client)];
        it.waiting.push_back(ticket);
        if !core::mem::replace(&mut it.in_line, true) {
            self.pool.line.push_back(client);
        }
        self.pool.changed = true;
    }

    /// Those who waited for memory that is there now; whether there were any.
    pub(super) fn serve_waiting(&mut self) -> bool {
        let mut any = false;
        while let Some(client) = self.pool.own_freed.pop() {
            any |= self.serve_own(client);
        }
        if core::mem::take(&mut self.pool.changed) {
            any |= self.serve_line();
        }
        any
    }

    /// The first request of a client that its own piece will do for.
    fn serve_own(&mut self, client: u16) -> bool {
        let waiting = &self.clients[usize::from(client)].waiting;
        let fits = |ticket: &&u32| self.need(**ticket) <= self.pool.own_bytes;
        let Some(&ticket) = waiting.iter().find(fits) else {
            return false;
        };
        if !self.take_own(ticket) {
            return false;
        }
        self.waits_no_more(client, ticket);
        self.equipped(ticket);
        true
    }

    fn serve_line(&mut self) -> bool {
        let (mut at, mut any) = (0, false);
        while let Some(&client) = self.pool.line.get(at) {
            let Some(&ticket) = self.clients[usize::from(client)].waiting.front() else {
                unreachable!("who is in the line waits for something");
            };
            if !self.may_hold(ticket) {
                at += 1; // it has to finish something
            } else if self.take_shared(ticket) {
                self.waits_no_more(client, ticket);
                if self.pool.line.get(at) == Some(&client) {
                    self.pool.line.remove(at);
                    self.pool.line.push_back(client);
                }
                self.equipped(ticket);
                any = true;
            } else {
                break; // nobody overtakes it
            }
        }
        any
    }

    fn waits_no_more(&mut self, client: u16, ticket: u32) {
        let it = &mut self.clients[usize::from(client)];
        it.waiting.retain(|waiting| *waiting != ticket);
        if it.waiting.is_empty() && core::mem::take(&mut it.in_line) {
            self.pool.line.retain(|waiting| *waiting != client);
            // Whoever stood behind it may be the one who fits.
            self.pool.changed = true;
        }
    }

    /// Nothing refers to a request's memory any more.
    pub(super) fn release(&mut self, ticket: u32) {
        let need = self.need(ticket);
        let work = &mut self.table[ticket];
        let (client, stage) = (work.client, core::mem::take(&mut work.stage));
        if stage == Stage::Memory {
            // A write whose client went away.
            return self.waits_no_more(client, ticket);
        }
        let it = &mut self.clients[usize::from(client)];
        if core::mem::take(&mut work.own) {
            it.own_used = false;
            self.pool.own_free += self.pool.own_bytes;
            if !it.waiting.is_empty() {
                self.pool.own_freed.push(client);
            }
        } else if need > 0 {
            it.held -= need;
            work.free(&mut self.pool.shared);
            self.pool.changed = true;
        }
    }
}
