//! Decides which client gets memory, and when: no client can keep another from going on.
//!
//! Decides, from what is free and what each client has, which requests get their memory now. Every
//! client has a piece of the arena of its own, for one request that fits; all else is shared.
//!
//! # Contract
//! A request has all of its memory or none. Where it doesn't fit its client's own piece, or that is
//! in use, it comes from what is shared: a client gets the first such request's memory when it is
//! there, and more only while as much is free as it would then hold. Clients that wait for shared
//! memory stand in one line, each with its first request, and go to its end when that was served;
//! whoever is at the front is waited for, so that large requests come to their turn. A client whose
//! own piece will do, or that has moved as much of late as it would hold, doesn't wait there (see
//! `motion`): a part of what is shared is kept for such clients. So those who were busy before many
//! came who ask for much and move nothing go on, and so does who comes then, once it has shown with
//! its own piece that it moves.
//!
//! A leg that a mirror goes on without may read a write's memory after that was answered (T10): it
//! is the request's until it has been given back, and so is the client's place.
//!
//! # Limits
//! Zeroes take [`ZEROES_BYTES`] of what is shared for good. The own pieces are at most a quarter of
//! the arena, or half of it where each is one block of memory, so that the largest request fits the
//! rest; see [`OWN_MAX`]. A waiting line has one place per client, and one per request.
use super::clients::Client;
use super::debts::{Debts, Kept, Paid};
use super::table::Work;
use super::{Devices, NbdServer};
use crate::buddy::Buddy;
use crate::limits::{EXPORT_ARENA_MIN, KEPT_SHARE, OWN_MAX, ZEROES_BYTES};
use crate::machine::Span;
use crate::pipeline::{Stage, ZeroBuffer};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use block::Key;
use canary::Bug;

/// The arena of a core.
pub(super) struct Pool {
    /// The shared part: the arena from its beginning.
    shared: Buddy,
    /// Where the clients' own pieces begin, and the bytes of each.
    own_at: u64,
    own_bytes: u64,
    /// Of them, those that aren't in use.
    own_free: u64,
    /// Of what is shared, the part for those who move.
    kept: u64,
    /// Clients that wait for shared memory.
    line: VecDeque<u16>,
    /// Somebody joined or left the line.
    changed: bool,
    /// While less than this is free of what is shared nobody in the line can be served in turn, but
    /// for those in `again`: so who comes and goes needn't look at thousands who wait.
    served_from: u64,
    /// Clients that wait and that got something back.
    again: Vec<u16>,
    /// Memory that legs of mirrors have.
    debts: Debts,
    /// In no request.
    pub zeroes: ZeroBuffer,
}

impl Pool {
    pub fn new(arena_bytes: u64, clients: u16) -> Self {
        let own_bytes = own_bytes(arena_bytes, clients);
        let own_free = own_bytes * u64::from(clients);
        let mut shared = Buddy::new(arena_bytes - own_free);
        let own_at = shared.free_bytes();
        // None of what two of the largest requests need.
        let spare = own_at.saturating_sub(EXPORT_ARENA_MIN);
        let zeroes = match shared.allocate(ZEROES_BYTES) {
            Some(span) => span,
            None if arena_bytes == 0 => Span::default(), // there are no clients
            None => unreachable!("the largest request fits"),
        };
        Self {
            own_at,
            own_bytes,
            own_free,
            kept: spare / KEPT_SHARE,
            shared,
            line: VecDeque::with_capacity(clients.into()),
            changed: false,
            served_from: u64::MAX,
            again: Vec::with_capacity(clients.into()),
            debts: Debts::default(),
            zeroes: ZeroBuffer::new(zeroes),
        }
    }

    /// Memory of its client's own for a request, or none where it needs none.
    #[inline]
    fn take_own(&mut self, work: &mut Work, client: &mut Client) -> bool {
        if work.need() == 0 {
            return true;
        }
        if client.own_used || work.need() > self.own_bytes {
            return false;
        }
        client.own_used = true;
        self.own_free -= self.own_bytes;
        work.allocate_own(self.own_at + u64::from(work.client) * self.own_bytes);
        true
    }

    /// All memory of a request of what is shared, if its client may have that, and it is there.
    #[inline]
    fn take_shared(&mut self, work: &mut Work, client: &mut Client, now_ns: u64) -> bool {
        let (holding, free) = (client.held + work.need(), self.shared.free_bytes());
        // Whether clients move data is asked for only where that counts.
        let may = holding + self.kept <= free
            || (holding <= free && client.turns_over(work.need(), now_ns));
        let taken = may && work.allocate(&mut self.shared);
        if taken {
            client.held = holding;
        }
        taken
    }

    /// Bytes in no request.
    pub fn free_bytes(&self) -> u64 {
        self.shared.free_bytes() + self.own_free + u64::from(self.zeroes.bytes())
    }
}

/// Bytes of each client's own piece.
fn own_bytes(arena_bytes: u64, clients: u16) -> u64 {
    if clients == 0 {
        return 0;
    }
    let least = Buddy::block_bytes(1);
    let quarter = (arena_bytes / 4 / u64::from(clients)).min(OWN_MAX.into());
    if quarter < least && least * u64::from(clients) <= arena_bytes / 2 {
        return least;
    }
    1 << quarter.ilog2()
}

/// Takes out what is mostly the first one: only else are all looked at.
fn leave<T: Copy + PartialEq>(line: &mut VecDeque<T>, it: T) {
    if line.front() == Some(&it) {
        line.pop_front();
    } else {
        line.retain(|other| *other != it);
    }
}

impl NbdServer {
    /// All memory of a request, if its client may have it, it is there and nobody waits for it.
    #[inline]
    pub(super) fn take_memory(&mut self, ticket: u32) -> bool {
        let work = &mut self.table[ticket];
        let client = &mut self.clients[usize::from(work.client)];
        let now_ns = self.course.now_ns;
        self.pool.take_own(work, client)
            || (self.pool.line.is_empty() || client.turns_over(work.need(), now_ns))
                && self.pool.take_shared(work, client, now_ns)
    }

    /// As [`Pool::take_own`].
    fn take_own(&mut self, ticket: u32) -> bool {
        let work = &mut self.table[ticket];
        let client = &mut self.clients[usize::from(work.client)];
        self.pool.take_own(work, client)
    }

    /// As [`Pool::take_shared`].
    fn take_shared(&mut self, ticket: u32) -> bool {
        let work = &mut self.table[ticket];
        let client = &mut self.clients[usize::from(work.client)];
        self.pool.take_shared(work, client, self.course.now_ns)
    }

    /// Bytes of the arena that a request takes.
    fn need(&self, ticket: u32) -> u64 {
        self.table[ticket].need()
    }

    /// Shared memory that must be free: one request each is allowed when it is there; then, as
    /// much as the client would hold.
    fn free_for(&self, ticket: u32) -> u64 {
        let held = self.clients[usize::from(self.table[ticket].client)].held;
        let kept = if self.turns_over(ticket) {
            0
        } else {
            self.pool.kept
        };
        held + self.need(ticket) + kept
    }

    /// Whether what its client would hold comes back soon.
    fn turns_over(&self, ticket: u32) -> bool {
        let work = &self.table[ticket];
        self.clients[usize::from(work.client)].turns_over(work.need(), self.course.now_ns)
    }

    /// Payload of a client has moved.
    #[inline]
    pub(super) fn moved(&mut self, client: u16, bytes: u32) {
        let now_ns = self.course.now_ns;
        let motion = &mut self.clients[usize::from(client)].motion;
        motion.moved(bytes.into(), now_ns);
    }

    pub(super) fn wait_for_memory(&mut self, ticket: u32) {
        self.table[ticket].pipeline.enter(Stage::Memory);
        self.stalls.watch(self.course.now_ns);
        let client = self.table[ticket].client;
        let it = &mut self.clients[usize::from(client)];
        it.waiting.push_back(ticket);
        if !core::mem::replace(&mut it.in_line, true) {
            self.pool.line.push_back(client);
        }
        self.note_need(client);
    }

    /// Bytes that a client in the line needs, which may be less than before.
    fn note_need(&mut self, client: u16) {
        if let Some(&first) = self.clients[usize::from(client)].waiting.front() {
            self.pool.served_from = self.pool.served_from.min(self.free_for(first));
        }
    }

    /// A client got something back.
    fn look_again(&mut self, client: u16) {
        let it = &mut self.clients[usize::from(client)];
        if !it.waiting.is_empty() && !core::mem::replace(&mut it.looked_again, true) {
            self.pool.again.push(client);
        }
    }

    /// Those who waited for memory that is there now; whether there were any.
    pub(super) fn serve_waiting(&mut self, devices: &mut Devices) -> bool {
        let mut any = false;
        while let Some(client) = self.pool.again.pop() {
            self.clients[usize::from(client)].looked_again = false;
            any |= self.serve_own(devices, client);
            while self.serve_ahead(devices, client) {
                any = true;
            }
            self.note_need(client);
        }
        let enough = self.pool.shared.free_bytes() >= self.pool.served_from;
        if core::mem::take(&mut self.pool.changed) || enough {
            any |= self.serve_line(devices);
        }
        any
    }

    /// The first request of a client that its own piece will do for.
    fn serve_own(&mut self, devices: &mut Devices, client: u16) -> bool {
        let waiting = &self.clients[usize::from(client)].waiting;
        let fits = |ticket: &&u32| self.need(**ticket) <= self.pool.own_bytes;
        let Some(&ticket) = waiting.iter().find(fits) else {
            return false;
        };
        if !self.take_own(ticket) {
            return false;
        }
        self.waits_no_more(client, ticket);
        self.equipped(devices, ticket);
        true
    }

    /// The first request of a client that moves, before its turn.
    fn serve_ahead(&mut self, devices: &mut Devices, client: u16) -> bool {
        let Some(&ticket) = self.clients[usize::from(client)].waiting.front() else {
            return false;
        };
        if !self.turns_over(ticket) || !self.take_shared(ticket) {
            return false;
        }
        self.waits_no_more(client, ticket);
        self.equipped(devices, ticket);
        true
    }

    fn serve_line(&mut self, devices: &mut Devices) -> bool {
        let (mut at, mut any) = (0, false);
        self.pool.served_from = u64::MAX;
        while let Some(&client) = self.pool.line.get(at) {
            let it = &self.clients[usize::from(client)];
            let Some(&ticket) = it.waiting.front() else {
                unreachable!("who is in the line waits for something");
            };
            let (from, holds) = (self.free_for(ticket), it.held > 0);
            let is_free = from <= self.pool.shared.free_bytes();
            if !is_free && holds {
                // It has to finish something, or others have.
                self.pool.served_from = self.pool.served_from.min(from);
                at += 1;
            } else if self.take_shared(ticket) {
                self.waits_no_more(client, ticket);
                if self.pool.line.get(at) == Some(&client) {
                    self.pool.line.remove(at);
                    self.pool.line.push_back(client);
                }
                self.equipped(devices, ticket);
                any = true;
            } else {
                // No client overtakes it. It may be there, and in pieces.
                let from = if is_free { 0 } else { from };
                self.pool.served_from = self.pool.served_from.min(from);
                break;
            }
        }
        any
    }

    fn waits_no_more(&mut self, client: u16, ticket: u32) {
        let it = &mut self.clients[usize::from(client)];
        leave(&mut it.waiting, ticket);
        if it.waiting.is_empty() && core::mem::take(&mut it.in_line) {
            leave(&mut self.pool.line, client);
            // The client behind it may be the one that fits.
            self.pool.changed = true;
        }
    }

    /// Nothing refers to a request's memory any more.
    pub(super) fn release(&mut self, ticket: u32) {
        let work = &mut self.table[ticket];
        let (client, stage, need) = (work.client, work.pipeline.stage(), work.need());
        work.pipeline.enter(Stage::Free);
        if stage == Stage::Memory {
            // A write whose client went away.
            return self.waits_no_more(client, ticket);
        }
        let own = core::mem::take(&mut work.own);
        if let Some(debt) = work.debt.take() {
            let spans = self.pool.debts.keep(debt, Kept { client, own, need });
            work.move_memory(spans);
            self.clients[usize::from(client)].lent += 1;
            return;
        }
        let it = &mut self.clients[usize::from(client)];
        if own {
            it.own_used = false;
            let times = 1 + u64::from(canary::has(Bug::FreedTwice));
            self.pool.own_free += times * self.pool.own_bytes;
        } else if need > 0 {
            it.held -= need;
            work.free(&mut self.pool.shared);
        }
        self.look_again(client);
    }

    /// A leg has memory of a request beyond the end of an I/O of it.
    pub fn lent(&mut self, ticket: u32, loan: Key) {
        let debt = self.table[ticket].debt;
        self.table[ticket].debt = Some(self.pool.debts.lend(ticket, debt, loan));
    }

    /// No leg has the memory of that loan any more.
    pub fn came_back(&mut self, loan: Key) {
        let (table, clients, shared) = (&mut self.table, &mut self.clients, &mut self.pool.shared);
        let kept = match self.pool.debts.pay(loan) {
            Paid::Some => return,
            Paid::Request(ticket) => {
                table[ticket].debt = None;
                return;
            }
            Paid::Kept(kept, spans) => {
                let it = &mut clients[usize::from(kept.client)];
                it.lent -= 1;
                if kept.own {
                    it.own_used = false;
                    self.pool.own_free += self.pool.own_bytes;
                } else {
                    it.held -= kept.need;
                    spans.iter().for_each(|span| shared.free(*span));
                }
                kept
            }
        };
        self.look_again(kept.client);
        // It may be all that was left of it.
        self.touch(kept.client);
    }
}
