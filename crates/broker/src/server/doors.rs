//! Admission of clients, and the end of those that may not come in.
//!
//! # Contract
//! Whoever is turned away is told at once. The connection itself is closed by another thread, for
//! that may wait for what a client has sent. If it does, those behind wait too: they hold a
//! descriptor each, nothing else.
use super::requests::{Refusal, refuse};
use crate::limits::{LOOKERS_MAX, LOOKERS_OF_USER_MAX};
use queue::protocol::Answer;
use rustix::net::Shutdown;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Sender};
use sys::{Errno, passing};

/// See the module.
#[derive(Debug)]
pub struct Doors {
    /// Connections whose threads have not ended, by uid.
    inside: BTreeMap<u32, usize>,
    all: usize,
    away: Sender<OwnedFd>,
}

impl Doors {
    /// # Errors
    /// No thread can be started.
    pub fn new() -> Result<Self, String> {
        let (away, received) = mpsc::channel::<OwnedFd>();
        let builder = std::thread::Builder::new().name("farewells".into());
        // No thread waits for it: it ends with `away`, or with the process.
        let started = builder.spawn(move || received.into_iter().for_each(drop));
        started.map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            inside: BTreeMap::new(),
            all: 0,
            away,
        })
    }

    /// Whether another connection of a user comes in: who may have `queues` of the `capacity` that
    /// there are. Counted if so, until [`Self::left`].
    ///
    /// # Errors
    /// EUSERS: as many are there as may be.
    pub fn admit(&mut self, uid: u32, queues: usize, capacity: usize) -> Result<(), Refusal> {
        let own = self.inside.get(&uid).copied().unwrap_or(0);
        let most = queues.min(capacity) + LOOKERS_OF_USER_MAX;
        if own >= most {
            let why = format!("user {uid} has {own} connections, as many as it may have");
            return refuse(Errno::USERS, why);
        }
        if self.all >= capacity + LOOKERS_MAX {
            let why = format!("all {} connections are taken, of all users", self.all);
            return refuse(Errno::USERS, why);
        }
        self.all += 1;
        self.inside.insert(uid, own + 1);
        Ok(())
    }

    /// A connection of a user is closed.
    pub fn left(&mut self, uid: u32) {
        if let Some(count) = self.inside.get_mut(&uid) {
            *count -= 1;
            self.all -= 1;
            if *count == 0 {
                self.inside.remove(&uid);
            }
        }
    }

    /// Closes a connection that was not admitted, and says why.
    pub fn turn_away(&self, socket: OwnedFd, why: Option<Refusal>) {
        if let Some(refusal) = why {
            let answer = Answer {
                error: refusal.errno.raw_os_error().cast_unsigned(),
                d: refusal.why.len() as u64,
                ..Answer::default()
            };
            let mut bytes = answer.emit().to_vec();
            bytes.extend_from_slice(refusal.why.as_bytes());
            // There is room: nothing was ever sent to it.
            let _ = passing::send(&socket, &bytes, &[], false);
        }
        let _ = rustix::net::shutdown(&socket, Shutdown::Both);
        let _ = self.away.send(socket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_has_all_places() {
        let mut doors = Doors::new().unwrap();
        let most = 8 + LOOKERS_OF_USER_MAX;
        assert!((0..most).all(|_| doors.admit(1, usize::MAX, 8).is_ok()));
        assert!(doors.admit(1, usize::MAX, 8).is_err());
        assert!((0..LOOKERS_OF_USER_MAX).all(|_| doors.admit(2, 0, 8).is_ok()));
        assert!(doors.admit(2, 0, 8).is_err());
        doors.left(2);
        assert!(doors.admit(2, 0, 8).is_ok());
        let others = (3..)
            .take_while(|&uid| doors.admit(uid, 0, 8).is_ok())
            .count();
        assert_eq!(others, LOOKERS_MAX + 8 - most - LOOKERS_OF_USER_MAX);
        doors.left(1);
        assert!(doors.admit(3, 0, 8).is_ok());
    }
}
