//! The payload buffers of all connections, and who waits for one.
//!
//! Two rules keep one connection from stopping another, or itself, for ever:
//! * *Shares*: a connection gets a buffer if it then holds no more than was free. One alone may hold
//!   half of the arena, n at once 1/(n + 1) each, and something is left for a newcomer.
//! * *Reserve*: each connection has one buffer of in-capsule size to itself. In-capsule data blocks the
//!   connection's stream, and behind it may lie the very data that would free other buffers; with
//!   the reserve the stream moves on as soon as the capsule before has been executed.
//!
//! Who can't be served waits in the order of asking on its connection; the connections take turns.
//!
//! # Origin
//! The shares are the dynamic thresholds of shared-memory switches (Choudhury and Hahne, 1998), with
//! a factor of one.
use super::commands::{Commands, Queue};
use crate::buddy::Buddy;
use crate::machine::Span;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// What a buffer is for; in the order in which a connection's own requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Data inside a capsule: until it has a buffer the connection's stream stands still.
    InCapsule,
    /// Data that is asked for, or read: only the command waits.
    Other,
}

/// Buffers, and the commands that wait for one.
pub(super) struct Pool {
    buddy: Buddy,
    /// All of it.
    bytes: u64,
    accounts: Vec<Account>,
    /// Connections with something waiting, each once.
    turns: VecDeque<u32>,
}

/// One connection.
struct Account {
    held_bytes: u64,
    reserve: Option<Span>,
    reserve_lent: bool,
    /// By [`Purpose`].
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
            reserve: reserve(),
            reserve_lent: false,
            waiting: [Queue::EMPTY; 2],
        };
        Pool {
            accounts: (0..connections).map(account).collect(),
            turns: VecDeque::with_capacity(connections as usize),
            buddy,
            bytes,
        }
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
    pub(super) fn take(&mut self, connection: u32, len: u32, purpose: Purpose) -> Option<Span> {
        let account = &self.accounts[connection as usize];
        if account.waiting[purpose as usize].first().is_some() {
            return None;
        }
        self.try_take(connection, len, purpose)
    }

    /// Whether anybody waits.
    pub(super) fn is_waited_for(&self) -> bool {
        !self.turns.is_empty()
    }

    /// Whether a connection's stream stands still because of us.
    pub(super) fn blocks(&self, connection: u32) -> bool {
        let waiting = &self.accounts[connection as usize].waiting;
        waiting[Purpose::InCapsule as usize].first().is_some()
    }

    /// Puts a command in line.
    pub(super) fn wait(&mut self, slot: u32, purpose: Purpose, commands: &mut Commands) {
        let connection = commands[slot].connection;
        let account = &mut self.accounts[connection as usize];
        if !account.is_waiting() {
            self.turns.push_back(connection);
        }
        account.waiting[purpose as usize].push(slot, commands);
    }

    /// The next waiting command that can be served, with its buffer.
    pub(super) fn serve(&mut self, commands: &Commands) -> Option<(u32, Span)> {
        for _ in 0..self.turns.len() {
            let connection = self.turns.pop_front()?;
            let served = self.serve_connection(connection, commands);
            if self.accounts[connection as usize].is_waiting() {
                self.turns.push_back(connection);
            }
            if served.is_some() {
                return served;
            }
        }
        None
    }

    /// The connection's next waiting command, which leaves the line without a buffer.
    pub(super) fn withdraw(&mut self, connection: u32, commands: &Commands) -> Option<u32> {
        let account = &mut self.accounts[connection as usize];
        let slot = account
            .waiting
            .iter_mut()
            .find_map(|queue| queue.pop(commands))?;
        if !account.is_waiting() {
            self.turns.retain(|waiting| *waiting != connection);
        }
        Some(slot)
    }

    /// A buffer comes back.
    pub(super) fn free(&mut self, connection: u32, span: Span) {
        let account = &mut self.accounts[connection as usize];
        if account.reserve.is_some_and(|reserve| reserve.at == span.at) {
            account.reserve_lent = false;
            return;
        }
        account.held_bytes -= Buddy::block_bytes(span.len);
        self.buddy.free(span);
    }

    fn serve_connection(&mut self, connection: u32, commands: &Commands) -> Option<(u32, Span)> {
        [Purpose::InCapsule, Purpose::Other]
            .into_iter()
            .find_map(|purpose| {
                let queue = self.accounts[connection as usize].waiting[purpose as usize];
                let slot = queue.first()?;
                let span = self.try_take(connection, commands[slot].len, purpose)?;
                self.accounts[connection as usize].waiting[purpose as usize].pop(commands);
                Some((slot, span))
            })
    }

    fn try_take(&mut self, connection: u32, len: u32, purpose: Purpose) -> Option<Span> {
        let account = &mut self.accounts[connection as usize];
        let holding = account.held_bytes + Buddy::block_bytes(len);
        if holding <= self.buddy.free_bytes()
            && let Some(span) = self.buddy.allocate(len)
        {
            account.held_bytes = holding;
            return Some(span);
        }
        let reserve = account.reserve.filter(|_| !account.reserve_lent)?;
        if purpose == Purpose::Other || len > reserve.len {
            return None;
        }
        account.reserve_lent = true;
        Some(Span {
            at: reserve.at,
            len,
        })
    }
}

impl Account {
    fn is_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| queue.first().is_some())
    }
}

#[cfg(test)]
mod tests;
