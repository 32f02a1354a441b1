//! The payload buffers of all connections, and who waits for one.
//!
//! Three rules keep one connection from stopping another, or itself, for ever:
//! * *Shares*: a connection gets a buffer if it then holds no more than was free. One alone may
//!   hold half of the arena, n at once 1/(n + 1) each, and something is left for a newcomer.
//! * *Kept*: of what is shared, a part is left to connections that have moved as much of late as
//!   they would hold (see `motion`). Thousands that each take one large transfer and move nothing
//!   leave no crumbs of the rest, and those who were busy go on.
//! * *Reserve*: each connection has one buffer of in-capsule size to itself. In-capsule data blocks
//!   the connection's stream, and behind it may lie the very data that would free other buffers;
//!   with the reserve the stream moves on as soon as the capsule before has been executed. A read
//!   that fits may have it too: only its host's reading keeps it. So one who comes while all else
//!   is taken is served, one command at a time, and by that shows that it moves.
//!
//! A request that can't be served waits in the order of asking on its connection; the connections
//! take turns.
//!
//! # Origin
//! The shares are the dynamic thresholds of shared-memory switches (Choudhury and Hahne, 1998),
//! with a factor of one.
use super::commands::{Commands, Queue};
use crate::buddy::Buddy;
use crate::limits::{BUFFER_MAX, KEPT_SHARE};
use crate::machine::Span;
use crate::motion::Motion;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Purpose of a buffer; in the order in which a connection's own requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Data inside a capsule: until it has a buffer the connection's stream stands still.
    InCapsule,
    /// Data that is asked for: only the command waits.
    Asked,
    /// Data that is read: as before.
    Read,
}

impl Purpose {
    /// Which of its connection's lines.
    fn line(self) -> usize {
        usize::from(self != Purpose::InCapsule)
    }
}

/// Buffers, and the commands that wait for one.
pub(super) struct Pool {
    /// First byte of the buffers in the arena.
    at: u64,
    buddy: Buddy,
    /// All of it.
    bytes: u64,
    /// Of what is shared, the part for those who move.
    kept: u64,
    accounts: Vec<Account>,
    /// Connections with something waiting, each once; and some that had.
    turns: VecDeque<u32>,
    /// Connections with something waiting.
    waiting: u32,
    /// While less than this is free nobody in `turns` can be served from it, but for those in
    /// `again`: so who comes and goes needn't look at thousands who wait.
    served_from: u64,
    /// Connections with something waiting that got something back, each once.
    again: Vec<u32>,
}

/// One connection.
struct Account {
    held_bytes: u64,
    motion: Motion,
    reserve: Option<Span>,
    reserve_lent: bool,
    /// It is in `turns`, and in `again`.
    has_turn: bool,
    has_again: bool,
    /// By [`Purpose::line`].
    waiting: [Queue; 2],
}

impl Pool {
    /// All buffers free.
    pub(super) fn new(arena_bytes: u64, connections: u32, in_capsule_max: u32) -> Self {
        let mut buddy = Buddy::new(arena_bytes);
        let bytes = buddy.free_bytes();
        let mut reserve = || (in_capsule_max > 0).then(|| buddy.allocate(in_capsule_max))?;
        let account = |_| Account {
            held_bytes: 0,
            motion: Motion::default(),
            reserve: reserve(),
            reserve_lent: false,
            has_turn: false,
            has_again: false,
            waiting: [Queue::EMPTY; 2],
        };
        Pool {
            at: 0,
            accounts: (0..connections).map(account).collect(),
            turns: VecDeque::with_capacity(connections as usize),
            waiting: 0,
            served_from: u64::MAX,
            again: Vec::with_capacity(connections as usize),
            kept: kept(buddy.free_bytes()),
            buddy,
            bytes,
        }
    }

    /// Lays the buffers from byte `at` of the arena on. Before the first is taken.
    pub(super) fn place(&mut self, at: u64) {
        self.at = at;
    }

    /// Somebody new has this connection.
    pub(super) fn begin(&mut self, connection: u32) {
        self.accounts[connection as usize].motion = Motion::default();
    }

    /// Payload has moved.
    #[inline]
    pub(super) fn moved(&mut self, connection: u32, bytes: u32, now_ns: u64) {
        let account = &mut self.accounts[connection as usize];
        account.motion.moved(bytes.into(), now_ns);
    }

    /// Bytes of the arena that are the connections' reserves.
    pub(super) fn reserved_bytes(connections: u32, in_capsule_max: u32) -> u64 {
        u64::from(connections) * Buddy::block_bytes(in_capsule_max)
    }

    /// Bytes of the arena, and those in no command; what is set aside for connections counts as
    /// free while no command has it.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let idle = self.accounts.iter().filter(|account| !account.reserve_lent);
        let reserves = idle.filter_map(|account| account.reserve);
        let reserved: u64 = reserves.map(|span| Buddy::block_bytes(span.len)).sum();
        (self.bytes, self.buddy.free_bytes() + reserved)
    }

    /// A buffer, unless others on the connection wait already or its share or the room is used up.
    #[inline]
    pub(super) fn take(
        &mut self,
        connection: u32,
        len: u32,
        purpose: Purpose,
        now_ns: u64,
    ) -> Option<Span> {
        let account = &self.accounts[connection as usize];
        if account.waiting[purpose.line()].first().is_some() {
            return None;
        }
        self.try_take(connection, len, purpose, now_ns)
    }

    /// Whether anybody waits.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// Whether a connection's stream stands still because of us.
    pub(super) fn blocks(&self, connection: u32) -> bool {
        let waiting = &self.accounts[connection as usize].waiting;
        waiting[Purpose::InCapsule.line()].first().is_some()
    }

    /// Puts a command in line.
    pub(super) fn wait(
        &mut self,
        slot: u32,
        purpose: Purpose,
        commands: &mut Commands,
        now_ns: u64,
    ) {
        let connection = commands[slot].connection;
        let account = &mut self.accounts[connection as usize];
        self.waiting += u32::from(!account.is_waiting());
        if !core::mem::replace(&mut account.has_turn, true) {
            self.turns.push_back(connection);
        }
        account.waiting[purpose.line()].push(slot, commands);
        self.note_need(connection, commands, now_ns);
    }

    /// The next waiting command that can be served, with its buffer.
    #[inline]
    pub(super) fn serve(&mut self, commands: &Commands, now_ns: u64) -> Option<(u32, Span)> {
        if self.waiting == 0 {
            return None;
        }
        self.serve_waiting(commands, now_ns)
    }

    fn serve_waiting(&mut self, commands: &Commands, now_ns: u64) -> Option<(u32, Span)> {
        if self.buddy.free_bytes() < self.served_from {
            return self.serve_again(commands, now_ns);
        }
        self.served_from = u64::MAX;
        for _ in 0..self.turns.len() {
            let connection = self.turns.pop_front()?;
            let served = self.serve_connection(connection, commands, now_ns);
            let account = &mut self.accounts[connection as usize];
            account.has_turn = account.is_waiting();
            if account.has_turn {
                self.turns.push_back(connection);
            }
            if served.is_some() {
                // Not all were looked at.
                self.served_from = 0;
                return served;
            }
            self.note_need(connection, commands, now_ns);
        }
        while let Some(connection) = self.again.pop() {
            self.accounts[connection as usize].has_again = false;
        }
        None
    }

    /// The same of those who got something back themselves. They keep their turn.
    fn serve_again(&mut self, commands: &Commands, now_ns: u64) -> Option<(u32, Span)> {
        while let Some(&connection) = self.again.last() {
            let served = self.serve_connection(connection, commands, now_ns);
            if served.is_some() {
                return served;
            }
            self.note_need(connection, commands, now_ns);
            self.again.pop();
            self.accounts[connection as usize].has_again = false;
        }
        None
    }

    /// The connection's next waiting command, which leaves the line without a buffer.
    pub(super) fn withdraw(&mut self, connection: u32, commands: &Commands) -> Option<u32> {
        let account = &mut self.accounts[connection as usize];
        let mut lines = account.waiting.iter_mut();
        let slot = lines.find_map(|queue| queue.pop(commands))?;
        self.waiting -= u32::from(!account.is_waiting());
        self.look_again(connection);
        Some(slot)
    }

    /// A buffer comes back.
    #[inline]
    pub(super) fn free(&mut self, connection: u32, span: Span) {
        let at = span.at - self.at;
        let span = Span { at, ..span };
        let account = &mut self.accounts[connection as usize];
        if account.reserve.is_some_and(|reserve| reserve.at == span.at) {
            account.reserve_lent = false;
        } else {
            account.held_bytes -= Buddy::block_bytes(span.len);
            self.buddy.free(span);
        }
        self.look_again(connection);
    }

    /// Less may do for what waits on a connection than when it was looked at.
    fn look_again(&mut self, connection: u32) {
        let account = &mut self.accounts[connection as usize];
        if account.is_waiting() && !core::mem::replace(&mut account.has_again, true) {
            self.again.push(connection);
        }
    }

    fn serve_connection(
        &mut self,
        connection: u32,
        commands: &Commands,
        now_ns: u64,
    ) -> Option<(u32, Span)> {
        for line in 0..2 {
            let queue = self.accounts[connection as usize].waiting[line];
            let Some(slot) = queue.first() else { continue };
            let (len, purpose) = (commands[slot].len, commands[slot].purpose());
            if let Some(span) = self.try_take(connection, len, purpose, now_ns) {
                let account = &mut self.accounts[connection as usize];
                account.waiting[line].pop(commands);
                self.waiting -= u32::from(!account.is_waiting());
                return Some((slot, span));
            }
        }
        None
    }

    /// Memory that must be free before one of a connection's waiting commands can be served from
    /// what is shared, as things are with it.
    fn note_need(&mut self, connection: u32, commands: &Commands, now_ns: u64) {
        let account = &self.accounts[connection as usize];
        let firsts = account.waiting.iter().filter_map(Queue::first);
        let needs = firsts.map(|slot| self.free_for(account, commands[slot].len, now_ns));
        self.served_from = needs.fold(self.served_from, u64::min);
    }

    /// Whether enough is free for a connection to hold so many bytes of what is shared.
    #[inline]
    fn may_hold(&self, account: &Account, holding: u64, now_ns: u64) -> bool {
        let free = self.buddy.free_bytes();
        // Whether connections move data is asked for only where that counts.
        holding + self.kept <= free
            || (holding <= free && account.motion.turns_over(holding, now_ns))
    }

    /// Memory that must be free for that.
    fn free_for(&self, account: &Account, len: u32, now_ns: u64) -> u64 {
        let holding = account.held_bytes + Buddy::block_bytes(len);
        if account.motion.turns_over(holding, now_ns) {
            holding
        } else {
            holding + self.kept
        }
    }

    #[inline]
    fn try_take(
        &mut self,
        connection: u32,
        len: u32,
        purpose: Purpose,
        now_ns: u64,
    ) -> Option<Span> {
        let account = &self.accounts[connection as usize];
        let holding = account.held_bytes + Buddy::block_bytes(len);
        let may_hold = self.may_hold(account, holding, now_ns);
        let account = &mut self.accounts[connection as usize];
        if may_hold && let Some(span) = self.buddy.allocate(len) {
            account.held_bytes = holding;
            let at = self.at + span.at;
            return Some(Span { at, len });
        }
        let reserve = account.reserve.filter(|_| !account.reserve_lent)?;
        if purpose == Purpose::Asked || len > reserve.len {
            return None;
        }
        account.reserve_lent = true;
        Some(Span {
            at: self.at + reserve.at,
            len,
        })
    }
}

/// Of so much shared memory, what is kept: none of what two of the largest transfers need.
fn kept(shared_bytes: u64) -> u64 {
    shared_bytes.saturating_sub(2 * u64::from(BUFFER_MAX)) / KEPT_SHARE
}

impl Account {
    fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| queue.first().is_some())
    }
}

#[cfg(test)]
mod tests;
