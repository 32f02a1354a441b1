//! NVMe commands through a kernel's driver: a second io_uring beside the first, with entries large
//! enough for them (128 and 32 bytes), and a third one for completions that are polled.
//!
//! # Contract
//! That of [`Ring`], whose completions these are: [`Completion::result`] of a command is its NVMe
//! status (0: well done), or the kernel's error where no controller answered. Rings are made with
//! the first command that needs them. While commands whose completion is polled are in flight,
//! [`Ring::enter`] doesn't sleep: each enter looks once. Data of a command is read or written as
//! bits 1:0 of its opcode say (Base 2.0, 3.3.3.1), by the kernel as by us.
//!
//! # Limits
//! [`COMMANDS_MAX`] of either way of completion at once; one more is its owner's error and panics.
//! A driver's commands can't be cancelled: their ends are waited for.
use super::{Completion, Fd, Held, Returned, Ring, Slot, Wait, guard, missing, patiently};
use crate::arena::{Access, Extent};
use crate::{Errno, Error};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::collections::VecDeque;
use std::mem;
use std::os::fd::AsRawFd;

/// Commands in flight, at most.
pub const COMMANDS_MAX: usize = 512;
/// `user_data` of the first ring's look at the second.
pub(super) const WATCH: u64 = u64::MAX - 1;
/// `NVME_URING_CMD_IO`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`.
const URING_CMD_IO: u32 = 0xc048_4e80;
/// Bits 1:0 of an opcode: data goes to the controller; it comes from there.
const TO_CONTROLLER: u8 = 1;
const FROM_CONTROLLER: u8 = 2;

/// A command of the NVM command set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeCommand {
    /// Opcode.
    pub opcode: u8,
    /// Namespace.
    pub nsid: u32,
    /// Dwords 10 to 15.
    pub cdw: [u32; 6],
}

/// Data of a command, and its direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandData {
    /// Nothing.
    None,
    /// A part of the arena.
    Extent(Extent),
    /// One range to deallocate (NVM command set 1.0, 3.2.3), to the controller.
    Range([u8; 16]),
}

/// How the kernel learns of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaping {
    /// By an interrupt.
    Interrupt,
    /// It looks when we enter (`IORING_SETUP_IOPOLL`).
    Poll,
}

/// A range, where the kernel finds it.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Range([u8; 16]);

/// `struct nvme_uring_cmd`.
#[repr(C)]
struct UringCmd {
    opcode: u8,
    flags: u8,
    rsvd1: u16,
    nsid: u32,
    cdw2: u32,
    cdw3: u32,
    metadata: u64,
    addr: u64,
    metadata_len: u32,
    data_len: u32,
    cdw10: [u32; 6],
    timeout_ms: u32,
    rsvd2: u32,
}

const _: () = assert!(size_of::<UringCmd>() == 72);

impl UringCmd {
    fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.rsvd1.to_ne_bytes());
        for (at, word) in [(4, self.nsid), (8, self.cdw2), (12, self.cdw3)] {
            bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[16..24].copy_from_slice(&self.metadata.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.addr.to_ne_bytes());
        let words = [self.metadata_len, self.data_len].into_iter();
        let words = words.chain(self.cdw10).chain([self.timeout_ms, self.rsvd2]);
        for (word, to) in words.zip(bytes[32..72].chunks_exact_mut(4)) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

/// One ring of commands.
pub(super) struct Commands {
    uring: IoUring<squeue::Entry128, cqueue::Entry32>,
    slots: Box<[Slot]>,
    /// By slot.
    ranges: Box<[Range]>,
    free: Vec<u32>,
    backlog: VecDeque<squeue::Entry128>,
    guarded: guard::Guarded<squeue::Entry128>,
    polls: bool,
    /// The first ring will tell when there is something here.
    watched: bool,
}

impl Commands {
    fn new(reaping: Reaping, entries: u32) -> Result<Self, Error> {
        let polls = reaping == Reaping::Poll;
        let mut builder = IoUring::<squeue::Entry128, cqueue::Entry32>::builder();
        builder.setup_clamp();
        match polls {
            true => builder.setup_iopoll(),
            false => builder.setup_coop_taskrun().setup_taskrun_flag(),
        };
        let uring = patiently(|| builder.build(entries)).map_err(|source| {
            match Error::io("io_uring_setup for NVMe commands", &source) {
                error if error.source == Errno::INVAL => missing(error.operation),
                error => error,
            }
        })?;
        let mut probe = io_uring::Probe::new();
        let probed = uring.submitter().register_probe(&mut probe);
        probed.map_err(|source| Error::io("io_uring_register", &source))?;
        if !probe.is_supported(opcode::UringCmd80::CODE) {
            return Err(missing("io_uring commands of drivers"));
        }
        let slot = |_| Slot {
            generation: 0,
            tag: 0,
            fd: None,
            held: Held::Nothing,
        };
        Ok(Self {
            uring,
            slots: (0..entries).map(slot).collect(),
            ranges: (0..entries).map(|_| Range([0; 16])).collect(),
            free: (0..entries).rev().collect(),
            backlog: VecDeque::with_capacity(entries as usize),
            guarded: guard::Guarded::default(),
            polls,
            watched: false,
        })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether an `io_uring_enter` is needed for progress here.
    fn wants_enter(&mut self) -> bool {
        let polls = self.polls && self.in_flight() > 0;
        let guarded = !self.guarded.is_empty();
        let queue = self.uring.submission();
        guarded || polls || !queue.is_empty() || queue.taskrun() || queue.cq_overflow()
    }

    /// The kernel may go on for an unknown time: what it may write to, or read, stays.
    pub(super) fn leak(&mut self) {
        mem::forget(mem::take(&mut self.slots));
        mem::forget(mem::take(&mut self.ranges));
    }

    /// Starts a command, if it may start only before a time then not later; `u64::MAX`: at any
    /// time.
    fn start(
        &mut self,
        before_ns: u64,
        (tag, fd): (u64, &Fd),
        held: Held,
        entry: squeue::Entry128,
    ) {
        let index = self.free.pop().unwrap_or(u32::MAX);
        assert!(index != u32::MAX, "more than {COMMANDS_MAX} commands");
        let slot = &mut self.slots[index as usize];
        (slot.tag, slot.fd, slot.held) = (tag, Some(fd.clone()), held);
        let entry = entry.user_data(index.into());
        if before_ns != u64::MAX {
            return self.guarded.add(before_ns, index.into(), entry);
        }
        self.backlog.push_back(entry);
        self.flush_backlog();
    }

    /// The kernel is entered next: what may start only before a time is looked at now.
    fn submit_guarded(&mut self) {
        if self.guarded.is_empty() || !self.backlog.is_empty() {
            return;
        }
        let mut queue = self.uring.submission();
        // SAFETY: as in `flush_backlog`.
        self.guarded
            .submit(|entry| unsafe { queue.push(entry) }.is_ok());
    }

    fn flush_backlog(&mut self) {
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the pointers in the entry are to memory that the arena has locked, or to a
            // range that belongs to its slot; both stay valid until its completion was taken.
            if unsafe { queue.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }
}

/// Of the ring that completions are learnt of by interrupt, and of the one that is polled.
pub(super) type Pair = [Option<Box<Commands>>; 2];

/// Whether this kernel has what [`Ring::command`] needs.
///
/// # Errors
/// As `io_uring_setup`; EOPNOTSUPP: a kernel before 5.19.
pub fn probe_commands(reaping: Reaping) -> Result<(), Error> {
    Commands::new(reaping, 1).map(drop)
}

impl Ring {
    /// Gives a command to the driver of `file`, the character device of a namespace. Its completion
    /// comes as of any other operation. It is started only before `before_ns` (`u64::MAX`: at any
    /// time); its completion is late otherwise.
    ///
    /// # Errors
    /// The ring for it can't be made.
    ///
    /// # Panics
    /// The extent is outside of the arena; more than [`COMMANDS_MAX`] are in flight; or a range is
    /// given to a command that doesn't send.
    pub fn command(
        &mut self,
        file: &Fd,
        reaping: Reaping,
        command: &NvmeCommand,
        data: CommandData,
        (tag, before_ns): (u64, u64),
    ) -> Result<(), Errno> {
        let moves = command.opcode & (TO_CONTROLLER | FROM_CONTROLLER);
        let access = match moves {
            TO_CONTROLLER => Access::Read,
            _ => Access::Write,
        };
        assert!(
            moves == TO_CONTROLLER || !matches!(data, CommandData::Range(_)),
            "a range is sent"
        );
        self.prepare(reaping)?;
        let Some(commands) = &mut self.commands[reaping as usize] else {
            return Err(Errno::NOSYS);
        };
        // Before anything is locked, and before a range is written that the kernel may be reading.
        let left = commands.free.len();
        assert!(left > 0, "more than {COMMANDS_MAX} commands");
        let next = commands.free[left - 1];
        let (addr, data_len, held) = match data {
            CommandData::None => (0, 0, Held::Nothing),
            CommandData::Extent(extent) => {
                let at = self.arena.pointer(extent) as u64;
                self.arena.lock(extent, access);
                (at, extent.len, Held::Extent(extent, access))
            }
            CommandData::Range(bytes) => {
                let range = &mut commands.ranges[next as usize];
                range.0 = bytes;
                ((&raw const range.0) as u64, 16, Held::Nothing)
            }
        };
        let wire = UringCmd {
            opcode: command.opcode,
            flags: 0,
            rsvd1: 0,
            nsid: command.nsid,
            cdw2: 0,
            cdw3: 0,
            metadata: 0,
            addr,
            metadata_len: 0,
            data_len,
            cdw10: command.cdw,
            timeout_ms: 0, // the driver's own
            rsvd2: 0,
        };
        let entry = opcode::UringCmd80::new(file.raw(), URING_CMD_IO)
            .cmd(wire.bytes())
            .build();
        commands.start(before_ns, (tag, file), held, entry);
        Ok(())
    }

    /// Reads a block device into an extent, and its completion is polled: as [`Ring::read`]
    /// otherwise, but only with `O_DIRECT`.
    ///
    /// # Errors
    /// The ring for it can't be made.
    ///
    /// # Panics
    /// As [`Ring::command`].
    pub fn read_polled(
        &mut self,
        file: &Fd,
        extent: Extent,
        offset: u64,
        tag: u64,
    ) -> Result<(), Errno> {
        self.prepare(Reaping::Poll)?;
        let at = self.arena.pointer(extent);
        let Some(commands) = &mut self.commands[Reaping::Poll as usize] else {
            return Err(Errno::NOSYS);
        };
        let entry = opcode::Read::new(file.raw(), at, extent.len)
            .offset(offset)
            .build();
        self.arena.lock(extent, Access::Write);
        let held = Held::Extent(extent, Access::Write);
        commands.start(u64::MAX, (tag, file), held, entry.into());
        Ok(())
    }

    /// The ring for commands of one kind, made if it isn't there.
    fn prepare(&mut self, reaping: Reaping) -> Result<(), Errno> {
        let place = &mut self.commands[reaping as usize];
        if place.is_none() {
            let made = Commands::new(reaping, COMMANDS_MAX as u32);
            *place = Some(Box::new(made.map_err(|error| error.source)?));
        }
        Ok(())
    }

    /// Whether rings of commands have anything to submit or collect.
    pub(super) fn commands_want_enter(&mut self) -> bool {
        self.commands
            .iter_mut()
            .flatten()
            .any(|it| it.wants_enter())
    }

    /// Whether a command has ended.
    pub(super) fn has_command_completion(&mut self) -> bool {
        let mut rings = self.commands.iter_mut().flatten();
        rings.any(|it| it.guarded.has_late() || !it.uring.completion().is_empty())
    }

    /// Submits commands and looks for those that are polled; how long may then be slept, which the
    /// first ring does. `None`: all has been done, sleep included.
    pub(super) fn enter_commands(&mut self, wait: Wait) -> Result<Option<Wait>, Errno> {
        let (mut wait, mut entered) = (wait, false);
        // With nothing in the first ring there is nothing to be watched from there.
        let alone = self.slots.len() == self.free.len() && self.backlog.is_empty();
        for commands in self.commands.iter_mut().flatten() {
            loop {
                commands.flush_backlog();
                if !commands.wants_enter() {
                    break;
                }
                commands.submit_guarded();
                let more = !commands.backlog.is_empty() || !commands.guarded.is_empty();
                (entered, self.enters) = (true, self.enters + 1);
                match commands.uring.submit() {
                    Ok(_) if more => {}
                    Ok(_) => break,
                    Err(error) => match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                        Errno::INTR | Errno::BUSY | Errno::AGAIN => break,
                        error => return Err(error),
                    },
                }
            }
            let polls = commands.polls && commands.in_flight() > 0;
            let late = commands.guarded.has_late();
            if polls || late || !commands.uring.completion().is_empty() {
                wait = Wait::No;
            }
        }
        if wait != Wait::No {
            return self.sleep_for_commands(wait, alone);
        }
        let idle = self.backlog.is_empty() && !self.first_wants_enter();
        Ok(Some(Wait::No).filter(|_| !(entered && idle)))
    }

    /// Nothing has ended: sleeps for commands alone, or has the first ring look at their ring.
    fn sleep_for_commands(&mut self, wait: Wait, alone: bool) -> Result<Option<Wait>, Errno> {
        let Some(commands) = &mut self.commands[Reaping::Interrupt as usize] else {
            return Ok(Some(wait));
        };
        if commands.in_flight() == 0 {
            return Ok(Some(wait));
        }
        if !alone || commands.watched {
            if !mem::replace(&mut commands.watched, true) {
                let ring = types::Fd(commands.uring.as_raw_fd());
                let entry = opcode::PollAdd::new(ring, libc::POLLIN as u32).build();
                self.push(entry.user_data(WATCH));
            }
            return Ok(Some(wait));
        }
        self.enters += 1;
        let entered = match wait {
            Wait::AtMost(duration) => {
                let time = types::Timespec::from(duration);
                let arguments = types::SubmitArgs::new().timespec(&time);
                commands.uring.submitter().submit_with_args(1, &arguments)
            }
            _ => commands.uring.submit_and_wait(1),
        };
        match entered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
            Ok(_) | Err(Errno::INTR | Errno::TIME | Errno::BUSY | Errno::AGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The first ring's look at the second is over.
    pub(super) fn unwatch_commands(&mut self) {
        if let Some(commands) = &mut self.commands[Reaping::Interrupt as usize] {
            commands.watched = false;
        }
    }

    /// The next command that has ended.
    pub(super) fn next_command(&mut self) -> Option<Completion> {
        for commands in self.commands.iter_mut().flatten() {
            let late = commands.guarded.next_late();
            let ended = match late {
                Some(index) => Some((index, 0)),
                None => {
                    let entry = commands.uring.completion().next();
                    entry.map(|entry| (entry.user_data(), entry.result()))
                }
            };
            let Some((index, result)) = ended else {
                continue;
            };
            let index = index as u32;
            let slot = &mut commands.slots[index as usize];
            assert!(slot.fd.take().is_some(), "a command ended twice");
            let (tag, held) = (slot.tag, mem::replace(&mut slot.held, Held::Nothing));
            commands.free.push(index);
            if let Held::Extent(extent, access) = held {
                self.arena.unlock(extent, access);
            }
            if late.is_some() {
                return Some(guard::late(tag));
            }
            return Some(Completion {
                tag,
                result: match result {
                    status @ 0.. => Ok(status.cast_unsigned()),
                    error => Err(Errno::from_raw_os_error(-error)),
                },
                more: false,
                nonempty: false,
                returned: Returned::Nothing,
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, RingConfig};
    use std::os::fd::OwnedFd;

    fn ring() -> Ring {
        let config = RingConfig {
            operations_max: 8,
            buffers: 1,
            buffers_lent: 1,
            buffer_bytes: 4096,
        };
        Ring::new(&config, Arena::new(1 << 20).unwrap()).unwrap()
    }

    /// Whether this kernel has the rings at all; else the reason is printed.
    fn has_commands(test: &str, reaping: Reaping) -> bool {
        let probed = probe_commands(reaping);
        if let Err(error) = &probed {
            let _ = std::io::Write::write_fmt(
                &mut std::io::stderr(),
                format_args!("SKIP {test}: {error}\n"),
            );
        }
        probed.is_ok()
    }

    #[test]
    fn fields_lie_where_the_kernel_has_them() {
        let wire = UringCmd {
            opcode: 2,
            flags: 0,
            rsvd1: 0,
            nsid: 0x0403_0201,
            cdw2: 0,
            cdw3: 0,
            metadata: 0,
            addr: 0x1122,
            metadata_len: 0,
            data_len: 4096,
            cdw10: [10, 11, 12, 13, 14, 15],
            timeout_ms: 0,
            rsvd2: 0,
        };
        let bytes = wire.bytes();
        assert_eq!((bytes[0], &bytes[4..8]), (2, &[1, 2, 3, 4][..]));
        assert_eq!(&bytes[24..28], &[0x22, 0x11, 0, 0]);
        assert_eq!(&bytes[36..40], &4096_u32.to_le_bytes());
        for (at, dword) in (40..64).step_by(4).zip(10..) {
            assert_eq!(bytes[at], dword, "dword {dword}");
        }
        assert_eq!(std::mem::offset_of!(UringCmd, addr), 24);
        assert_eq!(std::mem::offset_of!(UringCmd, cdw10), 40);
    }

    #[test]
    fn a_command_to_what_has_none_fails_and_frees_its_memory() {
        let test = "a_command_to_what_has_none_fails_and_frees_its_memory";
        if !has_commands(test, Reaping::Interrupt) {
            return;
        }
        let mut ring = ring();
        let file = std::fs::File::open("/dev/zero").unwrap();
        let file = Fd::new(OwnedFd::from(file));
        let (extent, read) = (Extent::new(4096, 4096), 2);
        let command = |opcode| NvmeCommand {
            opcode,
            nsid: 1,
            cdw: [0; 6],
        };
        let parts = [
            (command(read), CommandData::Extent(extent)),
            (command(1), CommandData::Extent(extent.skip(2048))),
            (command(9), CommandData::Range([1; 16])),
            (command(0), CommandData::None),
        ];
        for (tag, (command, data)) in (0..).zip(parts) {
            let reaping = Reaping::Interrupt;
            let at_any_time = (tag, u64::MAX);
            ring.command(&file, reaping, &command, data, at_any_time)
                .unwrap();
        }
        assert!(ring.arena().is_busy(extent) && ring.in_flight() == 4);
        let mut ended = 0;
        while ended < 4 {
            ring.enter(Wait::Forever).unwrap();
            while let Some(completion) = ring.next_completion() {
                assert!(completion.result.is_err(), "{completion:?}");
                ended += 1;
            }
        }
        assert!(!ring.arena().is_busy(extent) && ring.in_flight() == 0);
    }

    #[test]
    fn a_sleep_for_both_rings_ends_with_either() {
        let test = "a_sleep_for_both_rings_ends_with_either";
        if !has_commands(test, Reaping::Interrupt) {
            return;
        }
        let mut ring = ring();
        let event = crate::os::Event::new().unwrap();
        let watched = Fd::new(event.try_clone().unwrap());
        ring.poll_readable(&watched, 77);
        let zero = Fd::new(std::fs::File::open("/dev/zero").unwrap().into());
        let command = NvmeCommand {
            opcode: 0,
            nsid: 1,
            cdw: [0; 6],
        };
        for round in 0..3 {
            let none = CommandData::None;
            let reaping = Reaping::Interrupt;
            ring.command(&zero, reaping, &command, none, (round, u64::MAX))
                .unwrap();
            let tag = loop {
                ring.enter(Wait::Forever).unwrap();
                if let Some(completion) = ring.next_completion() {
                    break completion.tag;
                }
            };
            assert_eq!(tag, round);
        }
        event.raise();
        ring.enter(Wait::Forever).unwrap();
        assert_eq!(ring.next_completion().map(|it| it.tag), Some(77));
    }
}
