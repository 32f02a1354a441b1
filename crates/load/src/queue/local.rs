//! The load of `braid queue bench` on a namespace that the kernel drives, and on its block device:
//! what hardware queues are to be compared with (TU1).
//!
//! # Contract
//! As of [`super::bench`]: one thread per core, with an io_uring of its own, and no engine between
//! it and the kernel. A poll is a look for completions: with `user_poll` each is a system call in
//! which the kernel looks at the device's queue once (`IORING_SETUP_IOPOLL`); with `user_irq` it is
//! a look at the completion ring, and a system call sleeps where it finds nothing.
//!
//! # Limits
//! Reads only: block devices are read through the same ring that polls, and what writes would show
//! is no different.
use super::bench::{self, BenchArgs, CLOCK_POLLS, Part};
use crate::worker::Task;
use ::queue::{Counts, Kind};
use anyhow::bail;
use engine::Span;
use engine::host::{Io, IoOp, SubmitError, VolumeInfo};
use engine::machine::Memory;
use multipath::Outcome;
use nvme::host::Command;
use paths::uri::{NvmeNg, PathUri, UriKind};
use runtime::{FileDevice, PassthroughDevice, now_ns};
use std::sync::Arc;
use std::time::Duration;
use sys::{
    Arena, COMMANDS_MAX, CommandData, Errno, Extent, Fd, NvmeCommand, Reaping, Ring, RingConfig,
    Wait,
};
use terminal::exit::Usage;

/// The target of the reads.
#[derive(Clone)]
pub enum Target {
    /// By commands of its own.
    Passthrough(Arc<PassthroughDevice>),
    /// Through the block layer.
    File(Arc<FileDevice>),
}

impl Target {
    /// Opens it to be read.
    ///
    /// # Errors
    /// [`Usage`]: no such kind of path, or a load that can't be. Errors of opening it.
    pub fn open(uri: &PathUri, args: &BenchArgs) -> anyhow::Result<Self> {
        if args.common.words.read_percent() != 100 {
            return Err(Usage::error(format!(
                "{uri} is read only here: --rw read or randread (`braid bench` writes)"
            )));
        }
        let polls = args.kind == Kind::UserPoll;
        Ok(match uri.kind() {
            UriKind::NvmeNg(NvmeNg { device, .. }) => {
                let opened = PassthroughDevice::open(device.clone(), true, polls)?;
                Self::Passthrough(Arc::new(opened))
            }
            UriKind::File(path) => {
                let opened = FileDevice::open(path.clone(), true, None)?;
                if !opened.direct() {
                    bail!("{uri} can't be read past the page cache: name a block device");
                }
                Self::File(Arc::new(opened))
            }
            _ => {
                return Err(Usage::error(format!(
                    "{uri}: only nvme-ng: and file: are measured beside a queue server"
                )));
            }
        })
    }

    /// A core's part of the load.
    ///
    /// # Errors
    /// More I/Os outstanding than there may be here.
    pub fn part(self, args: &BenchArgs, task: Task) -> anyhow::Result<Part> {
        let (outstanding, bytes) = args.common.words.buffers(args.common.cores.into())?;
        if outstanding as usize > COMMANDS_MAX {
            return Err(Usage::error(format!(
                "{outstanding} outstanding I/Os on one core: {COMMANDS_MAX} at most here"
            )));
        }
        let batch = args.batch as usize;
        let reaping = match args.kind {
            Kind::UserPoll => Reaping::Poll,
            Kind::UserIrq => Reaping::Interrupt,
        };
        Ok(Box::new(move |watch| {
            let config = RingConfig {
                operations_max: outstanding.max(1),
                buffers: 1,
                buffers_lent: 1,
                buffer_bytes: 4096,
            };
            let port = Port {
                file: Fd::new(match &self {
                    Self::Passthrough(device) => device.try_clone()?,
                    Self::File(file) => file.try_clone()?,
                }),
                target: self,
                reaping,
                pending: Vec::with_capacity(outstanding as usize),
                counts: Counts::default(),
                batch,
            };
            let arena = Arena::new(bytes.next_multiple_of(4096))?;
            let mut data = Data(Ring::new(&config, arena)?);
            let (finished, mut port) = bench::drive(port, &mut data, task, watch);
            port.counts.calls = data.0.enters();
            Ok((finished, port.counts))
        }))
    }

    /// Its size and limits.
    pub fn info(&self) -> VolumeInfo {
        match self {
            Self::Passthrough(device) => VolumeInfo {
                bytes: device.namespace().blocks << device.namespace().block_shift,
                block_shift: device.namespace().block_shift,
                transfer_max: device.controller().transfer_max.unwrap_or(u32::MAX),
                read_only: device.namespace().read_only,
            },
            Self::File(file) => VolumeInfo {
                bytes: file.bytes(),
                block_shift: file.block_shift(),
                transfer_max: u32::MAX,
                read_only: false,
            },
        }
    }
}

/// The kernel as what takes I/Os; they are given to it all at once.
struct Port {
    target: Target,
    file: Fd,
    reaping: Reaping,
    pending: Vec<Io>,
    counts: Counts,
    batch: usize,
}

/// The load's data is in the arena of the ring.
struct Data(Ring);

impl Memory for Data {
    fn bytes(&self, span: Span) -> &[u8] {
        self.0.arena().bytes(Extent::new(span.at, span.len))
    }

    fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        self.0.bytes_mut(Extent::new(span.at, span.len))
    }
}

impl bench::Port for Port {
    type Memory = Data;

    fn prepare(&mut self, io: &Io) -> Result<(), SubmitError> {
        self.pending.push(*io);
        Ok(())
    }

    fn exchange(
        &mut self,
        memory: &mut Data,
        ended: &mut Vec<(u64, Outcome)>,
        due_ns: u64,
        _: u64,
    ) -> Result<(), String> {
        let went = self.flush(&mut memory.0).map_err(refused);
        went.and_then(|()| self.reap(&mut memory.0, ended, due_ns))
    }
}

impl Port {
    /// Gives the kernel what was submitted.
    fn flush(&mut self, ring: &mut Ring) -> Result<(), Errno> {
        for io in self.pending.drain(..) {
            if io.op != IoOp::Read {
                return Err(Errno::INVAL);
            }
            let extent = Extent::new(io.span.at, io.span.len);
            match (&self.target, self.reaping) {
                (Target::Passthrough(device), reaping) => {
                    let namespace = device.namespace();
                    let shift = namespace.block_shift;
                    let (slba, blocks) = (io.offset >> shift, io.length >> shift);
                    let made = Command::read(namespace.nsid, slba, blocks, shift, false, 0);
                    let command = NvmeCommand {
                        opcode: made.opcode,
                        nsid: made.nsid,
                        cdw: made.cdw,
                    };
                    let data = CommandData::Extent(extent);
                    ring.command(&self.file, reaping, &command, data, (io.cookie, u64::MAX))?;
                }
                (Target::File(_), Reaping::Poll) => {
                    ring.read_polled(&self.file, extent, io.offset, io.cookie)?;
                }
                (Target::File(_), Reaping::Interrupt) => {
                    ring.read(&self.file, extent, io.offset, io.cookie);
                }
            }
        }
        Ok(())
    }

    /// Takes completions until there was one, or it is time to do something else.
    fn reap(
        &mut self,
        ring: &mut Ring,
        ended: &mut Vec<(u64, Outcome)>,
        due_ns: u64,
    ) -> Result<(), String> {
        let polls = self.reaping == Reaping::Poll;
        for poll in 1_u32.. {
            if polls || ring.wants_enter() {
                ring.enter(Wait::No).map_err(refused)?;
            }
            self.counts.polls += 1;
            while ended.len() < self.batch
                && let Some(completion) = ring.next_completion()
            {
                let is_file = matches!(self.target, Target::File(_));
                let outcome = outcome(completion.result, is_file, polls)?;
                ended.push((completion.tag, outcome));
            }
            if !ended.is_empty() {
                return Ok(());
            }
            self.counts.empty_polls += 1;
            if polls && !poll.is_multiple_of(CLOCK_POLLS) && ring.in_flight() > 0 {
                continue;
            }
            let left_ns = due_ns.saturating_sub(now_ns());
            if left_ns == 0 || ring.in_flight() == 0 {
                return Ok(());
            }
            if !polls {
                let wait = Wait::AtMost(Duration::from_nanos(left_ns));
                ring.enter(wait).map_err(refused)?;
            }
        }
        Ok(())
    }
}

/// Completions of this device can't be polled.
const NO_POLLING: &str = "the completions of this device can't be polled (EOPNOTSUPP): give --kind \
    user_irq; an NVMe device can where its driver has poll queues (nvme.poll_queues)";

/// The kernel refuses what the ring was given.
fn refused(error: Errno) -> String {
    format!("io_uring: {error}")
}

/// How a read has ended: of a file with the bytes that were read, of a command with 0.
///
/// # Errors
/// No read can end well.
fn outcome(
    result: Result<u32, Errno>,
    is_file: bool,
    polls: bool,
) -> Result<Outcome, &'static str> {
    match result {
        Ok(bytes) if (bytes > 0) == is_file => Ok(Outcome::Done),
        Err(Errno::OPNOTSUPP) if polls => Err(NO_POLLING),
        _ => Ok(Outcome::MediaError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_can_not_be_polled_is_no_failure_of_its_medium() {
        for (result, is_file, polls, want) in [
            (Ok(4096), true, true, Ok(Outcome::Done)),
            (Ok(0), true, true, Ok(Outcome::MediaError)),
            (Ok(0), false, true, Ok(Outcome::Done)),
            (Err(Errno::IO), true, true, Ok(Outcome::MediaError)),
            (Err(Errno::OPNOTSUPP), true, true, Err(NO_POLLING)),
            (Err(Errno::OPNOTSUPP), false, true, Err(NO_POLLING)),
            (Err(Errno::OPNOTSUPP), true, false, Ok(Outcome::MediaError)),
        ] {
            assert_eq!(outcome(result, is_file, polls), want, "{result:?}");
        }
        assert!(NO_POLLING.contains("--kind user_irq"));
    }
}
