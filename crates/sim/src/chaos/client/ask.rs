//! Requests of applications: drawn, filled with tags, submitted to the session.
use super::{BLOCKS_MAX, Begun, CROWDED};
use crate::chaos::disk::fill;
use crate::chaos::orphan::Orphan;
use crate::chaos::plan::PAUSES;
use crate::chaos::prelude::*;
use nbd::Kind;

impl Client {
    /// Requests of a connection, as many as there may be now.
    pub(super) fn begin(&mut self, conn: usize, memory: &mut dyn Memory, now_ns: u64) {
        while !self.resting && self.begun < self.habit.total && self.conns[conn].next_ns <= now_ns {
            let requests = &self.conns[conn].requests;
            let token = requests.iter().position(Option::is_none);
            let Some(token) = token.filter(|_| self.has_room(conn)) else {
                return;
            };
            let begun = self.draw(conn, token as u32, now_ns);
            let request = begun.request;
            if request.kind == Kind::Write {
                let unit = self.habit.unit;
                let span = self.span(conn, request.token, 0, request.length);
                for (block, bytes) in
                    (begun.tag..).zip(memory.bytes_mut(span).chunks_mut(unit as usize))
                {
                    fill(bytes, block);
                }
            }
            let Some(session) = &mut self.conns[conn].session else {
                return;
            };
            let base = match request.kind {
                Kind::Flush => 0,
                _ => self.habit.base,
            };
            let offset = request.offset + base;
            if !session.submit(&Request { offset, ..request }, now_ns) {
                self.conns[conn].ready = false; // it is over, and has not said so yet
                return;
            }
            self.begun += 1;
            self.conns[conn].stirred = true;
            self.conns[conn].requests[token] = Some(begun);
            if self.to_read.is_none() && self.random.up_to(PAUSES - 1) == 0 {
                let pause_ns = self.random.up_to(self.habit.pause_ns);
                self.conns[conn].next_ns = now_ns + pause_ns;
            }
        }
    }

    /// Whether a connection may have one request more.
    pub(super) fn has_room(&self, conn: usize) -> bool {
        let mut requests = self.conns[conn].requests.iter();
        let session = &self.conns[conn].session;
        if session.as_ref().is_some_and(|it| !it.has_room()) {
            return false;
        }
        match self.singly {
            true => conn < self.habit.homes as usize && requests.all(Option::is_none),
            false => requests.any(Option::is_none),
        }
    }

    fn draw(&mut self, conn: usize, token: u32, now_ns: u64) -> Begun {
        let unit = self.habit.unit;
        if self.flushing {
            return Begun {
                request: Request::new(token, Kind::Flush, 0, 0),
                start_ns: now_ns,
                tag: 0,
            };
        }
        if let Some(block) = &mut self.to_read {
            let request = Request::new(token, Kind::Read, *block * unit, unit as u32);
            *block += 1;
            return Begun {
                request,
                start_ns: now_ns,
                tag: 0,
            };
        }
        if let Some(begun) = self.draw_zeroes(token, now_ns) {
            return begun;
        }
        let what = self.random.up_to(255);
        let crowded = self.habit.crowded > 0 && self.random.up_to(CROWDED - 1) == 0;
        let (from, all) = match crowded {
            true => (self.habit.blocks, self.habit.crowded),
            false => (0, self.habit.blocks),
        };
        let blocks = 1 + self.random.up_to(BLOCKS_MAX.min(all) - 1);
        let first = from + self.random.up_to(all - blocks);
        let may = || crowded || self.may_write(conn, &(first..first + blocks));
        let kind = match what {
            _ if what < self.habit.writes && may() => Kind::Write,
            _ if what < self.habit.writes + self.habit.flushes => Kind::Flush,
            _ => Kind::Read,
        };
        let fua = kind == Kind::Write && self.random.up_to(15) == 0;
        let tag = self.number << 48 | self.writes << 6;
        self.writes += u64::from(kind == Kind::Write);
        let (offset, length) = match kind {
            Kind::Flush => (0, 0),
            _ => (first * unit, (blocks * unit) as u32),
        };
        let request = Request {
            fua,
            ..Request::new(token, kind, offset, length)
        };
        Begun {
            request,
            start_ns: now_ns,
            tag,
        }
    }

    /// Whether blocks are this client's to write, and no write to them is under way that has no
    /// order with those by this connection.
    fn may_write(&self, conn: usize, blocks: &Range<u64>) -> bool {
        let (share, shares) = self.habit.share;
        let each = self.habit.blocks / shares;
        let own = share * each <= blocks.start && blocks.end <= (share + 1) * each;
        let requests = self
            .conns
            .iter()
            .flat_map(|it| it.requests.iter().flatten());
        let mut writes = requests.filter(|it| it.request.kind == Kind::Write);
        let unit = self.habit.unit;
        let from = |it: &Begun| it.request.offset / unit;
        let to = |it: &Begun| from(it) + u64::from(it.request.length) / unit;
        let since_ns = self.conns[conn].tally.since_ns;
        let is_nbd = self.association_of(conn).is_none();
        let bars = |it: &Orphan| it.meets(blocks) && !(is_nbd && it.is_before(since_ns));
        own && !writes.any(|it| from(it) < blocks.end && blocks.start < to(it))
            && !self.orphans.iter().any(bars)
    }
}
