//! State of each request, by ticket: made for a client when its first request comes.
//!
//! # Contract
//! A ticket is a client's number and a token's. Asking for a place of a client that was not opened
//! panics. Opening takes memory once in a client's life; closing gives it back.
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// Places of all clients.
pub(super) struct Places<T> {
    /// By client; empty until it is opened.
    all: Vec<Box<[T]>>,
    shift: u32,
    each: u16,
    make: fn() -> T,
}

impl<T> Places<T> {
    /// Of so many clients, `each` with so many tokens; none is open.
    pub fn new(clients: u16, each: u16, make: fn() -> T) -> Self {
        Self {
            all: (0..clients).map(|_| Box::default()).collect(),
            shift: shift(each),
            each,
            make,
        }
    }

    /// A client's request by its token.
    #[inline]
    pub fn ticket(&self, client: u16, token: u32) -> u32 {
        u32::from(client) << self.shift | token
    }

    /// Makes a client's places, if they aren't there.
    #[inline]
    pub fn open(&mut self, client: u16) {
        if self.all[usize::from(client)].is_empty() {
            self.fill(client);
        }
    }

    #[cold]
    fn fill(&mut self, client: u16) {
        self.all[usize::from(client)] = (0..self.each).map(|_| (self.make)()).collect();
    }

    /// Those of a client; none before it is opened.
    pub fn of(&self, client: u16) -> impl Iterator<Item = &T> {
        self.all[usize::from(client)].iter()
    }

    /// Gives them back.
    pub fn close(&mut self, client: u16) {
        self.all[usize::from(client)] = Box::default();
    }
}

/// Bits of a token.
fn shift(each: u16) -> u32 {
    u32::from(each).next_power_of_two().ilog2()
}

impl<T> Index<u32> for Places<T> {
    type Output = T;
    #[inline]
    fn index(&self, ticket: u32) -> &T {
        let token = ticket & ((1 << self.shift) - 1);
        &self.all[(ticket >> self.shift) as usize][token as usize]
    }
}

impl<T> IndexMut<u32> for Places<T> {
    #[inline]
    fn index_mut(&mut self, ticket: u32) -> &mut T {
        let token = ticket & ((1 << self.shift) - 1);
        &mut self.all[(ticket >> self.shift) as usize][token as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_its_own_places_once_it_is_open() {
        let mut places = Places::new(3, 5, || 0_u32);
        for client in [2, 0] {
            places.open(client);
            for token in 0..5 {
                let ticket = places.ticket(client, token);
                assert_eq!(places[ticket], 0);
                places[ticket] = 100 * u32::from(client) + token;
            }
        }
        places.open(2);
        assert_eq!(places[places.ticket(2, 4)], 204);
        assert!(places.all[1].is_empty());
        places.close(2);
        assert!(places.all[2].is_empty());
    }
}
