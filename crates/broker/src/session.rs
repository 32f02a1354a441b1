//! A connection on the socket: what came of a request, and what goes out.
use crate::limits::DESCRIPTORS_WAITING_MAX;
use queue::protocol::{Answer, MESSAGE, Request};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use sys::{Errno, passing};

/// See the module.
pub struct Session {
    pub socket: OwnedFd,
    pub uid: u32,
    /// The queue that it opened.
    pub queue: Option<u64>,
    request: [u8; MESSAGE],
    have: usize,
    pub descriptors: Vec<OwnedFd>,
    out: Vec<u8>,
    sent: usize,
}

/// The connection is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over;

impl Session {
    pub fn new(socket: OwnedFd, uid: u32) -> Self {
        Self {
            socket,
            uid,
            queue: None,
            request: [0; MESSAGE],
            have: 0,
            descriptors: Vec::new(),
            out: Vec::new(),
            sent: 0,
        }
    }

    /// The next whole request; none while an answer waits to be taken.
    pub fn receive(&mut self) -> Result<Option<Request>, Over> {
        if !self.out.is_empty() {
            return Ok(None);
        }
        let rest = &mut self.request[self.have..];
        match passing::receive(&self.socket, rest, &mut self.descriptors, false) {
            Ok(0) => Err(Over),
            Ok(count) => {
                self.have += count;
                if self.descriptors.len() > DESCRIPTORS_WAITING_MAX {
                    return Err(Over);
                }
                if self.have < MESSAGE {
                    return Ok(None);
                }
                self.have = 0;
                Ok(Some(Request::parse(&self.request)))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(Over),
        }
    }

    /// Answers, with descriptors; the text is behind the answer.
    pub fn answer(
        &mut self,
        answer: &Answer,
        text: &str,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), Over> {
        self.out.clear();
        self.out.extend_from_slice(&answer.emit());
        self.out.extend_from_slice(text.as_bytes());
        // Descriptors go with the first byte, for which there is room: the last answer was taken.
        match passing::send(&self.socket, &self.out, descriptors, false) {
            Ok(count) => self.sent = count,
            Err(_) => return Err(Over),
        }
        self.settle();
        Ok(())
    }

    /// Sends what is left.
    pub fn flush(&mut self) -> Result<(), Over> {
        while self.is_sending() {
            match passing::send(&self.socket, &self.out[self.sent..], &[], false) {
                Ok(count) => self.sent += count,
                Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                Err(_) => return Err(Over),
            }
        }
        self.settle();
        Ok(())
    }

    /// Whether an answer waits to be taken.
    pub fn is_sending(&self) -> bool {
        self.sent < self.out.len()
    }

    fn settle(&mut self) {
        if !self.is_sending() {
            (self.out, self.sent) = (Vec::new(), 0);
        }
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
