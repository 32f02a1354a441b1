//! How requests end: what is written down of it.
//!
//! # Contract
//! Each request ends once: a second end is a panic, which is a finding.
use super::session::{Event, RequestError, Session};
use super::{Begun, Done, Record};
use crate::chaos::disk::tag;
use crate::chaos::orphan::{Order, Orphan};
use crate::chaos::prelude::*;
use nbd::Kind;

impl Client {
    /// Takes what a session has to say.
    pub(super) fn poll(&mut self, conn: usize, memory: &mut dyn Memory, now_ns: u64) {
        let id = ConnId(conn as u32);
        while let Some(event) = self.conns[conn]
            .session
            .as_mut()
            .and_then(Session::poll_event)
        {
            match event {
                Event::Ready => self.conns[conn].ready = true,
                Event::Zero { token, offset, len } => {
                    memory
                        .bytes_mut(self.span(conn, token, offset, len))
                        .fill(0);
                }
                Event::Completed(token, result) => {
                    self.complete(conn, (token, result), memory, now_ns);
                }
                Event::Transmit => self.outputs.push_back(Output::Transmit(id)),
                Event::Resume => self.outputs.push_back(Output::Resume(id)),
                Event::Over => match self.association_of(conn) {
                    Some(at) => self.end_association(at),
                    None => self.outputs.push_back(Output::Close {
                        conn: id,
                        abort: false,
                    }),
                },
            }
        }
    }

    /// A queue does not say when it has something to send.
    pub(super) fn transmit_queue(&mut self, conn: usize) {
        let is_queue = self.association_of(conn).is_some();
        let it = &mut self.conns[conn];
        if is_queue && it.up && core::mem::take(&mut it.stirred) {
            self.outputs
                .push_back(Output::Transmit(ConnId(conn as u32)));
        }
    }

    fn complete(
        &mut self,
        conn: usize,
        (token, result): (u32, Result<(), RequestError>),
        memory: &dyn Memory,
        now_ns: u64,
    ) {
        let begun = self.conns[conn].requests[token as usize].take();
        assert!(
            begun.is_some(),
            "request {token} of connection {conn} ended twice"
        );
        let Some(begun) = begun else { return };
        self.ended += 1;
        let tally = &mut self.conns[conn].tally;
        tally.count(&begun.request, result);
        let since_ns = tally.since_ns;
        self.note(conn, &begun, result, (since_ns, now_ns));
        // An error says that the request is over; a cut connection does not.
        let failed = match result {
            Ok(()) => false,
            Err(RequestError::Server(errno)) => errno != Errno::Shutdown,
            Err(RequestError::Path(_)) => true,
            Err(RequestError::Incomplete | RequestError::Lost) => false,
        };
        let done = result.is_ok();
        let end_ns = if done || failed { now_ns } else { NEVER };
        let request = &begun.request;
        let op = |deed| Op {
            deed,
            start_ns: begun.start_ns,
            end_ns,
        };
        let unit = self.habit.unit;
        if self.zeroes.as_ref().is_some_and(|it| it.has(request, unit)) {
            if request.kind.is_change() && result == Err(RequestError::Lost) {
                self.bereave(conn, &begun);
            }
            return self.zeroes_ended(conn, &begun, result, memory);
        }
        let first = request.offset / unit;
        match request.kind {
            Kind::Write if result == Err(RequestError::Lost) => self.bereave(conn, &begun),
            Kind::Write => {
                let blocks = u64::from(request.length) / unit;
                if done {
                    self.end_orphans(conn, &(first..first + blocks), now_ns);
                }
                for (block, tag) in (first..first + blocks).zip(begun.tag..) {
                    let tag = Tag(tag);
                    let deed = match failed {
                        true => Deed::Failed(tag),
                        false => Deed::Write {
                            tag,
                            durable: request.fua,
                        },
                    };
                    self.records.push(Record::Block(block, op(deed)));
                }
            }
            Kind::Read if done => {
                let span = self.span(conn, token, 0, request.length);
                for (block, bytes) in (first..).zip(memory.bytes(span).chunks(unit as usize)) {
                    let deed = Deed::Read(tag(bytes));
                    self.records.push(Record::Block(block, op(deed)));
                }
            }
            Kind::Flush if done => {
                self.records.push(Record::Flush(begun.start_ns, end_ns));
            }
            _ => {}
        }
    }

    /// Keeps a request that failed, or took longest.
    fn note(
        &mut self,
        conn: usize,
        begun: &Begun,
        result: Result<(), RequestError>,
        (since_ns, end_ns): (u64, u64),
    ) {
        let (request, start_ns) = (begun.request, begun.start_ns);
        let home = conn as u32 % self.habit.homes;
        if result.is_ok() && self.association_of(conn).is_some() {
            self.done_over_export(start_ns);
        }
        match result {
            Ok(()) => {
                let done = Done {
                    request,
                    home,
                    start_ns,
                    end_ns,
                };
                self.slowest = Some(done.or_slower(self.slowest));
            }
            Err(error) => self.failed.push(Failed {
                request,
                error,
                start_ns,
                end_ns,
                since_ns,
                conn,
                home,
                has_identity: self.association_of(conn).is_some(),
            }),
        }
    }

    /// A change was cut off with its connection.
    fn bereave(&mut self, conn: usize, begun: &Begun) {
        let (request, unit) = (&begun.request, self.habit.unit);
        let first = request.offset / unit;
        self.orphans.push(Orphan {
            blocks: first..first + u64::from(request.length) / unit,
            tag: begun.tag,
            durable: request.fua,
            start_ns: begun.start_ns,
            since_ns: self.conns[conn].tally.since_ns,
            home: conn as u32 % self.habit.homes,
            order: match self.association_of(conn) {
                Some(_) => Order::None,
                None => Order::AfterEnd,
            },
        });
    }

    /// A write was done: orphans that were to be executed before it are over.
    fn end_orphans(&mut self, conn: usize, blocks: &Range<u64>, now_ns: u64) {
        let it = &self.conns[conn];
        let (since_ns, is_nbd) = (it.tally.since_ns, self.association_of(conn).is_none());
        let over = |it: &Orphan| is_nbd && it.meets(blocks) && it.is_before(since_ns);
        let all = self.orphans.extract_if(.., |it| over(it));
        let records = all.flat_map(|it| it.records(Some(now_ns)).collect::<Vec<_>>());
        self.records.extend(records);
    }
}
