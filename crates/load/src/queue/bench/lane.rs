//! One core's queue, and its part of the load.
use super::{BenchArgs, CLOCK_POLLS, LOOK_NS, Part, drive};
use crate::worker::Task;
use ::queue::{Kind, Queue};
use engine::Span;
use engine::host::{Io, IoOp, SubmitError};
use engine::machine::Memory;
use multipath::Outcome;
use runtime::now_ns;
use std::time::Duration;

/// The queue as what takes I/Os.
struct Port {
    queue: Queue,
    nsid: u32,
    block_shift: u8,
    /// Data is looked at, so it is copied between here and the queue's memory.
    copies: bool,
    /// Bytes of each buffer, by its number.
    spans: Vec<Span>,
    pending: Vec<Span>,
    batch: usize,
    /// When it was last known that the server lives, ns.
    alive_ns: u64,
}

impl super::Port for Port {
    type Memory = Vec<u8>;

    fn prepare(&mut self, io: &Io) -> Result<(), SubmitError> {
        let data = self.queue.data().ok_or(SubmitError::NotReady)?;
        let piece = [data.piece(io.span.at as usize, io.span.len)];
        let slba = io.offset >> self.block_shift;
        let blocks = io.length >> self.block_shift;
        let is_read = matches!(io.op, IoOp::Read);
        let taken = if is_read {
            self.queue.read(self.nsid, slba, blocks, &piece, io.cookie)
        } else {
            let to = (self.nsid, false);
            self.queue.write(to, slba, blocks, &piece, io.cookie)
        };
        taken.map_err(|error| match error {
            ::queue::SubmitError::Full => SubmitError::Full,
            _ => SubmitError::Range,
        })?;
        self.spans[io.cookie as u32 as usize] = io.span;
        if self.copies && !is_read {
            self.pending.push(io.span);
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        staging: &mut Vec<u8>,
        ended: &mut Vec<(u64, Outcome)>,
        due_ns: u64,
        now_ns: u64,
    ) -> Result<(), String> {
        let went = self.flush(staging).and_then(|()| self.reap(ended, due_ns));
        if self.copies
            && let Some(data) = self.queue.data()
        {
            for (cookie, _) in &*ended {
                let span = self.spans[*cookie as u32 as usize];
                data.read(span.at as usize, staging.bytes_mut(span));
            }
        }
        let went = went.and_then(|()| {
            if !ended.is_empty() || now_ns - self.alive_ns < LOOK_NS {
                return Ok(());
            }
            self.alive_ns = now_ns;
            self.queue.is_alive()
        });
        went.map_err(|error| {
            format!("{error} (what it said when it ended tells why; start it again)")
        })
    }
}

impl Port {
    /// Submits what was prepared, with its data.
    fn flush(&mut self, staging: &Vec<u8>) -> Result<(), ::queue::Error> {
        if let Some(data) = self.queue.data() {
            for span in self.pending.drain(..) {
                data.write(span.at as usize, staging.bytes(span));
            }
        }
        self.queue.submit()
    }

    /// Takes completions until there was one, or it is time to do something else.
    fn reap(&mut self, ended: &mut Vec<(u64, Outcome)>, due_ns: u64) -> Result<(), ::queue::Error> {
        let queue = &mut self.queue;
        loop {
            for _ in 0..CLOCK_POLLS {
                let came = queue.reap(self.batch, |done| {
                    let outcome = engine::host::outcome(done.status, &[0; 3], 0);
                    ended.push((done.token, outcome));
                })?;
                if came > 0 {
                    return Ok(());
                }
                if queue.kind() == Kind::UserIrq {
                    break;
                }
                std::hint::spin_loop();
            }
            let now_ns = now_ns();
            if now_ns >= due_ns {
                return Ok(());
            }
            let is_over = match queue.kind() {
                Kind::UserIrq => !queue.wait(Duration::from_nanos(due_ns - now_ns))?,
                // A rate is kept: nothing is to be had before.
                Kind::UserPoll => queue.in_flight() == 0,
            };
            if is_over {
                return Ok(());
            }
        }
    }
}

/// A core's part of the load, on its queue; so many bytes of data.
pub fn part(args: &BenchArgs, queue: Queue, block_shift: u8, task: Task, bytes: u64) -> Part {
    let depth = usize::from(queue.depth()) + 1;
    let port = Port {
        nsid: args.nsid,
        block_shift,
        copies: args.common.words.verify,
        spans: vec![Span::default(); depth],
        pending: Vec::with_capacity(depth),
        batch: args.batch as usize,
        alive_ns: now_ns(),
        queue,
    };
    // The load's data, in memory that it may look at.
    let mut staging = vec![0; bytes as usize];
    Box::new(move |watch| {
        let (finished, port) = drive(port, &mut staging, task, watch);
        Ok((finished, port.queue.counts()))
    })
}
