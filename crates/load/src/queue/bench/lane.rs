//! One core's queue, and its part of the load.
use super::{Begun, BenchArgs, CLOCK_POLLS, LOOK_NS, Run, Watch, drive};
use crate::worker::{Device, Finished, Task, Worker};
use ::queue::{Counts, Done, Kind, Queue};
use engine::Span;
use engine::host::{HedgeStats, Io, IoDone, IoOp, SubmitError};
use engine::machine::Memory;
use policy::PathIndex;
use runtime::now_ns;
use std::time::Duration;

/// One core's queue, and its part of the load.
pub struct Lane {
    port: Port,
    task: Task,
    /// The load's data, in memory that it may look at.
    staging: Vec<u8>,
}

/// The queue as what takes I/Os.
struct Port {
    queue: Queue,
    nsid: u32,
    block_shift: u8,
    begun: Begun,
    /// Data is looked at, so it is copied between here and the queue's memory.
    copies: bool,
    /// Bytes of each buffer, by its number.
    spans: Vec<Span>,
    pending: Vec<(u32, Span)>,
    /// Completions that were taken, `batch` at most.
    ended: Vec<Done>,
    batch: usize,
    /// When it was last known that the server lives, ns.
    alive_ns: u64,
}

impl Device for Port {
    fn submit(&mut self, io: &Io, now_ns: u64) -> Result<(), SubmitError> {
        let data = self.queue.data().ok_or(SubmitError::NotReady)?;
        let piece = data.piece(io.span.at as usize, io.span.len);
        let slba = io.offset >> self.block_shift;
        let blocks = io.length >> self.block_shift;
        let slot = io.cookie as u32 as usize;
        let taken = match io.op {
            IoOp::Read => self
                .queue
                .read(self.nsid, slba, blocks, &[piece], io.cookie),
            _ => {
                let to = (self.nsid, false);
                self.queue.write(to, slba, blocks, &[piece], io.cookie)
            }
        };
        match taken {
            Ok(_) => {}
            Err(::queue::SubmitError::Full) => return Err(SubmitError::Full),
            Err(_) => return Err(SubmitError::Range),
        }
        self.begun.submitted(io.cookie, now_ns);
        self.spans[slot] = io.span;
        if self.copies && !matches!(io.op, IoOp::Read) {
            self.pending.push((slot as u32, io.span));
        }
        Ok(())
    }

    fn waited_full(&self, _: u16, _: u8) -> u64 {
        0
    }

    fn hedges(&self, _: u16) -> HedgeStats {
        HedgeStats::default()
    }
}

impl Port {
    /// Submits what was prepared, with its data.
    fn flush(&mut self, staging: &Vec<u8>) -> Result<(), ::queue::Error> {
        if let Some(data) = self.queue.data() {
            for (_, span) in self.pending.drain(..) {
                data.write(span.at as usize, staging.bytes(span));
            }
        }
        self.queue.submit()
    }

    /// A completion as the load knows it; its data is where the load looks.
    fn done(&mut self, done: &Done, now_ns: u64, staging: &mut Vec<u8>) -> IoDone {
        let slot = done.token as u32 as usize;
        let span = self.spans[slot];
        if self.copies
            && let Some(data) = self.queue.data()
        {
            data.read(span.at as usize, staging.bytes_mut(span));
        }
        IoDone {
            cookie: done.token,
            outcome: engine::host::outcome(done.status, &[0; 3], 0),
            path: PathIndex(0),
            latency_ns: self.begun.ended(done.token, now_ns),
        }
    }
}

impl super::Port for Port {
    type Memory = Vec<u8>;

    fn hand_in(&mut self, staging: &mut Vec<u8>, worker: &mut Worker, now_ns: u64) {
        let mut ended = std::mem::take(&mut self.ended);
        for done in ended.drain(..) {
            let done = self.done(&done, now_ns, staging);
            worker.handle_done(&done, staging);
        }
        self.ended = ended;
    }

    fn exchange(&mut self, staging: &mut Vec<u8>, due_ns: u64, now_ns: u64) -> Result<(), String> {
        let went = self.flush(staging);
        let went = went.and_then(|()| reap(&mut self.queue, &mut self.ended, self.batch, due_ns));
        let went = went.and_then(|came| {
            if came || now_ns - self.alive_ns < LOOK_NS {
                return Ok(());
            }
            self.alive_ns = now_ns;
            self.queue.is_alive()
        });
        went.map_err(|error| {
            format!("{error} (what it said when it ended tells why; start it again)")
        })
    }

    fn oldest_ns(&self) -> Option<u64> {
        self.begun.oldest_ns()
    }
}

impl Lane {
    pub fn new(args: &BenchArgs, queue: Queue, block_shift: u8, task: Task, bytes: u64) -> Self {
        let depth = usize::from(queue.depth()) + 1;
        let none = Span { at: 0, len: 0 };
        Self {
            port: Port {
                nsid: args.nsid,
                block_shift,
                begun: Begun::new(depth),
                copies: args.words.verify,
                spans: vec![none; depth],
                pending: Vec::with_capacity(depth),
                ended: Vec::with_capacity(args.batch as usize),
                batch: args.batch as usize,
                alive_ns: now_ns(),
                queue,
            },
            task,
            staging: vec![0; bytes as usize],
        }
    }
}

impl Run for Lane {
    fn run(mut self, watch: &Watch) -> anyhow::Result<(Finished, Counts)> {
        let finished = drive(&mut self.port, &mut self.staging, self.task, watch);
        Ok((finished, self.port.queue.counts()))
    }
}

/// Takes completions until there was one, or it is time to do something else; whether there was.
fn reap(
    queue: &mut Queue,
    ended: &mut Vec<Done>,
    batch: usize,
    due_ns: u64,
) -> Result<bool, ::queue::Error> {
    // Before it is asked whether the server lives.
    let mut until_ns = None;
    loop {
        for _ in 0..CLOCK_POLLS {
            if queue.reap(batch, |done| ended.push(done))? > 0 {
                return Ok(true);
            }
            if queue.kind() == Kind::UserIrq {
                break;
            }
            std::hint::spin_loop();
        }
        let now_ns = now_ns();
        let until_ns = *until_ns.get_or_insert(due_ns.min(now_ns + LOOK_NS));
        if now_ns >= until_ns {
            return Ok(false);
        }
        if queue.kind() == Kind::UserIrq {
            let wait = Duration::from_nanos(until_ns - now_ns);
            if !queue.wait(wait)? {
                return Ok(false);
            }
        } else if queue.in_flight() == 0 {
            // A rate is kept: nothing is to be had before.
            return Ok(false);
        }
    }
}
