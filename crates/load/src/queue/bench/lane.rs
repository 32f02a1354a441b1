//! One core's queue, and its part of the load.
use super::{Begun, BenchArgs, CLOCK_POLLS, LOOK_NS, Ran, Run, Watch};
use crate::worker::{Device, Task, Worker};
use ::queue::{Done, Kind, Queue};
use anyhow::Context;
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
    batch: usize,
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

    /// Tells the load what has ended.
    fn hand_in(
        &mut self,
        ended: &mut Vec<Done>,
        worker: &mut Worker,
        staging: &mut Vec<u8>,
        now_ns: u64,
    ) {
        for done in ended.drain(..) {
            let done = self.done(&done, now_ns, staging);
            worker.handle_done(&done, staging);
        }
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
                queue,
            },
            task,
            staging: vec![0; bytes as usize],
            batch: args.batch as usize,
        }
    }
}

impl Run for Lane {
    fn run(self, cpu: Option<usize>, watch: &Watch) -> anyhow::Result<Ran> {
        if let Some(cpu) = cpu {
            sys::os::pin(cpu).with_context(|| format!("cannot pin a thread to CPU {cpu}"))?;
        }
        let Self {
            mut port,
            task,
            mut staging,
            batch,
        } = self;
        let mut worker = Worker::new(task, &mut staging, now_ns());
        let mut ended = Vec::with_capacity(batch);
        let (mut alive_ns, mut looked_ns) = (now_ns(), now_ns());
        loop {
            let now_ns = now_ns();
            port.hand_in(&mut ended, &mut worker, &mut staging, now_ns);
            watch.heed(&mut worker, &port, now_ns);
            if now_ns - looked_ns >= LOOK_NS {
                looked_ns = now_ns;
                watch.look(&mut worker, &port, port.begun.oldest_ns(), now_ns);
            }
            worker.turn(&mut port, &mut staging, now_ns);
            if worker.is_over() {
                return Ok(Ran {
                    finished: worker.finish(),
                    counts: port.queue.counts(),
                    cpu_ns: super::thread_cpu_ns(),
                });
            }
            let went = port.flush(&staging).and_then(|()| {
                let due_ns = worker.poll_timeout().unwrap_or(now_ns + LOOK_NS);
                reap(&mut port.queue, &mut ended, batch, due_ns)
            });
            let went = went.and_then(|came| {
                if came || now_ns - alive_ns < LOOK_NS {
                    return Ok(());
                }
                alive_ns = now_ns;
                port.queue.is_alive()
            });
            if let Err(error) = went {
                let why = format!(
                    "{}: {error} (what it said when it ended tells why; start it again)",
                    watch.name()
                );
                // These it answered, before it said what can't be.
                port.hand_in(&mut ended, &mut worker, &mut staging, now_ns);
                watch.end(&mut worker, &port, why, now_ns);
            }
        }
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
