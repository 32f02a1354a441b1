//! Sums over the requests of one connection.
use super::client::RequestError;
use super::prelude::*;
use nbd::Kind;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// When it was made.
    pub since_ns: u64,
    /// Requests with an answer, and of these with an error.
    pub answered: u64,
    pub errors: u64,
    /// Requests without one, or that came too late.
    pub lost: u64,
    /// Bytes read and written well, in whole blocks.
    pub bytes: [u64; 2],
    /// Of requests that failed or have no answer.
    pub unknown: [u64; 2],
}

/// A request that was done.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub request: Request,
    pub home: u32,
    pub start_ns: u64,
    pub end_ns: u64,
}

impl Done {
    /// It, or another one that took longer.
    pub fn or_slower(self, other: Option<Self>) -> Self {
        let took_ns = |it: &Self| it.end_ns - it.start_ns;
        other
            .filter(|it| took_ns(it) >= took_ns(&self))
            .unwrap_or(self)
    }
}

impl Tally {
    /// A request has ended.
    pub fn count(&mut self, request: &Request, result: Result<(), RequestError>) {
        match result {
            Ok(()) => self.answered += 1,
            // A refusal by a session that ends counts as no request.
            Err(RequestError::Server(errno)) if errno != Errno::Shutdown => {
                self.answered += 1;
                self.errors += 1;
            }
            Err(_) => self.lost += 1,
        }
        let way = match request.kind {
            Kind::Read => 0,
            Kind::Write => 1,
            _ => return,
        };
        let block = BLOCK as u64;
        let end = (request.offset + u64::from(request.length)).next_multiple_of(block);
        let bytes = match result {
            Ok(()) => &mut self.bytes,
            Err(_) => &mut self.unknown,
        };
        bytes[way] += end - request.offset / block * block;
    }

    /// Both together.
    pub fn with(mut self, other: &Self) -> Self {
        self.answered += other.answered;
        self.errors += other.errors;
        self.lost += other.lost;
        for way in 0..2 {
            self.bytes[way] += other.bytes[way];
            self.unknown[way] += other.unknown[way];
        }
        self
    }
}
