//! Accepting connections.
//!
//! # Contract
//! One operation per listener accepts for as long as it can. Out of descriptors or memory, it
//! pauses for `ACCEPT_PAUSE_NS`; those who connect meanwhile wait in the listener's queue.
use crate::RuntimeError;
use crate::limits::ACCEPT_PAUSE_NS;
use crate::reactor::{Reactor, Tag};
use engine::Machine;
use std::net::TcpListener;
use sys::{Completion, Errno, Fd, OpId, Returned};

/// A listener of this core.
pub(crate) struct Listener {
    /// `None` once it is closed.
    socket: Option<Fd>,
    accepting: Option<OpId>,
    /// When to accept again.
    pub(crate) resume_ns: Option<u64>,
    /// It was logged that accepting fails, and it has not worked since.
    told: bool,
}

impl Listener {
    pub(crate) fn new(listener: TcpListener, reactor: &str) -> Result<Self, RuntimeError> {
        // An operation waits by itself; a non-blocking listener would make it fail instead.
        listener
            .set_nonblocking(false)
            .map_err(|source| RuntimeError::Listener {
                name: reactor.to_owned(),
                address: listener.local_addr().ok(),
                source,
            })?;
        Ok(Self {
            socket: Some(Fd::new(listener.into())),
            accepting: None,
            resume_ns: None,
            told: false,
        })
    }
}

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    /// Starts accepting.
    pub(crate) fn accept(&mut self, index: u32) {
        let listener = &mut self.listeners[index as usize];
        listener.resume_ns = None;
        if let Some(socket) = &listener.socket {
            listener.accepting = Some(self.ring.accept(socket, Tag::Accept(index).bits()));
        }
    }

    pub(crate) fn handle_accept(&mut self, index: u32, completion: Completion) {
        if let Returned::Accepted(socket) = completion.returned {
            self.adopt(index, socket, None);
            self.listeners[index as usize].told = false;
        }
        if completion.more {
            return;
        }
        let listener = &mut self.listeners[index as usize];
        listener.accepting = None;
        match completion.result {
            Err(Errno::CANCELED) => {}
            // The peer went away while it was accepted, or nothing of note: go on.
            Ok(_) | Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) => self.accept(index),
            Err(error) => {
                listener.resume_ns = Some(self.now_ns + ACCEPT_PAUSE_NS);
                if !std::mem::replace(&mut listener.told, true) {
                    tracing::warn!(
                        "listener {index} accepts no connections for now, and tries again: {error}"
                    );
                }
            }
        }
    }

    /// Listeners whose pause is over.
    pub(crate) fn expire_pauses(&mut self) {
        for index in 0..self.listeners.len() {
            if self.listeners[index]
                .resume_ns
                .is_some_and(|at| at <= self.now_ns)
            {
                self.accept(index as u32);
            }
        }
    }

    pub(crate) fn close_listeners(&mut self) {
        for listener in &mut self.listeners {
            listener.socket = None;
            listener.resume_ns = None;
            if let Some(accepting) = listener.accepting {
                self.ring.cancel(accepting);
            }
        }
    }
}
