//! Reads the superblocks of a leg: to identify it, to acquire the mirror, and for the machine.
//!
//! # Contract
//! A start waits `assemble_wait` for the answer of a leg, from the beginning of the read. A leg
//! that has not answered by then is missing, whatever was read of it before. Its read keeps its
//! memory until it ends, and the late result is discarded: the leg is read again (by `start`, or
//! by `news` while the mirror runs), at a start not before the pause of a refused one is over. A
//! leg whose superblocks both fail to be read is left out of the start and read again afterwards.
use super::device::{Context, MirrorDevice, Phase};
use super::start::TRY_AGAIN_NS;
use super::table::{Entry, Task};
use crate::host::{Hints, HostEvent, IoOp};
use crate::limits::LEG_RETRY_NS;
use crate::machine::Span;
use alloc::format;
use mirror::copies::{Chosen, NoLeg, read_copies};
use mirror::layout::COPIES_AT;
use mirror::machine::Ticket;
use mirror::ownership::{self, Known, LegRead};
use mirror::superblock::SUPERBLOCK_BYTES;
use multipath::Outcome;

/// Bytes of a superblock, as spans count.
pub(super) const BLOCK: u32 = SUPERBLOCK_BYTES as u32;

/// A read of a leg's superblocks.
#[derive(Clone, Copy, Debug)]
struct Probe {
    span: Span,
    waits: u8,
    read: [bool; 2],
    failed: Option<Outcome>,
    purpose: Purpose,
    since_ns: u64,
}

/// Why a leg's superblocks are read.
#[derive(Clone, Copy, Debug)]
pub(super) enum Purpose {
    /// To learn which leg it is.
    Identify,
    /// For the acquisition, by number among the legs acquired.
    Acquire(usize),
    /// For the state machine.
    Machine(Ticket),
}

/// Whether a leg's superblocks are being read.
#[derive(Clone, Copy, Debug, Default)]
enum Reading {
    #[default]
    No,
    Yes(Probe),
    /// The read takes longer than a start waits for legs: its result is discarded.
    Late(Probe),
}

/// Result of the last read of a leg's superblocks.
#[derive(Debug, Default)]
enum Found {
    #[default]
    Unknown,
    Current(Result<Chosen, NoLeg>),
    /// It was read for a start that was refused: it is read again before the next one.
    Outdated(Result<Chosen, NoLeg>),
}

/// A leg's superblocks, as far as they were read and written.
#[derive(Debug, Default)]
pub(super) struct LegSuperblocks {
    reading: Reading,
    found: Found,
    /// When they may be read next, ns.
    pub next_ns: u64,
    /// How the last write of the owner's record failed, for which the leg is left out.
    pub unwritten: Option<Outcome>,
}

impl LegSuperblocks {
    /// The superblock that was read last, or why there is none; `None`: nothing is known.
    pub fn found(&self) -> Option<&Result<Chosen, NoLeg>> {
        match &self.found {
            Found::Unknown => None,
            Found::Current(found) | Found::Outdated(found) => Some(found),
        }
    }

    /// The superblock that was read last, if it is one.
    pub fn chosen(&self) -> Option<&Chosen> {
        self.found()?.as_ref().ok()
    }

    pub fn set_found(&mut self, found: Result<Chosen, NoLeg>) {
        self.found = Found::Current(found);
    }

    pub fn forget(&mut self) {
        self.found = Found::Unknown;
    }

    /// They have to be read again before the next start.
    pub fn outdate(&mut self) {
        self.found = match core::mem::take(&mut self.found) {
            Found::Current(found) => Found::Outdated(found),
            other => other,
        };
    }

    /// Whether they failed to be read: a start goes on without the leg, and a mirror that runs
    /// reads them again.
    pub fn are_unread(&self) -> bool {
        self.found() == Some(&Err(NoLeg::Unreadable))
    }

    /// Whether a read is under way.
    pub fn are_read(&self) -> bool {
        !matches!(self.reading, Reading::No)
    }

    /// Whether a read is under way for longer than legs are waited for.
    pub fn are_late(&self) -> bool {
        matches!(self.reading, Reading::Late(_))
    }

    /// The read, for the decision of a start; `is_here`: the leg has a device.
    pub fn read_state(&self, is_here: bool) -> LegRead {
        let known = match self.found {
            Found::Unknown => Known::No,
            Found::Outdated(_) => Known::Outdated,
            Found::Current(_) => Known::Yes,
        };
        let reading = match self.reading {
            Reading::Late(_) => ownership::Reading::Late,
            Reading::Yes(probe) => ownership::Reading::Since(probe.since_ns),
            Reading::No if !is_here => ownership::Reading::Unreachable,
            Reading::No => ownership::Reading::Due(self.next_ns),
        };
        LegRead { known, reading }
    }

    fn begin(&mut self, probe: Probe) {
        assert!(!self.are_read(), "superblocks are read twice: {probe:?}");
        self.reading = Reading::Yes(probe);
    }

    /// A read takes too long: it is not waited for any more.
    fn give_up(&mut self) {
        let Reading::Yes(probe) = self.reading else {
            unreachable!("given up: {:?}", self.reading);
        };
        self.reading = Reading::Late(probe);
        self.forget();
    }

    /// Notes that one superblock was read. Returns the read and whether it is late, once both
    /// were.
    fn copy_read(&mut self, copy: u8, outcome: Outcome) -> Option<(Probe, bool)> {
        let is_late = self.are_late();
        let (Reading::Yes(probe) | Reading::Late(probe)) = &mut self.reading else {
            unreachable!("a leg keeps its place until its read has ended");
        };
        probe.waits -= 1;
        probe.read[usize::from(copy)] = outcome.is_done();
        // An error of one copy's medium is no failure of the leg.
        if !outcome.is_done() && outcome != Outcome::MediaError {
            probe.failed = Some(outcome);
        }
        let probe = *probe;
        if probe.waits > 0 {
            return None;
        }
        self.reading = Reading::No;
        Some((probe, is_late))
    }
}

impl MirrorDevice {
    /// Gives up reads that take too long. Returns whether there are any.
    pub(super) fn give_up_late_probes(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        for at in 0..self.legs.len() {
            if self.probe_until(at) > cx.now_ns {
                continue;
            }
            let leg = &mut self.legs[at];
            leg.superblocks.give_up();
            let line = format!(
                "{}: {}: it doesn't answer, and is not waited for any more",
                self.config.name, leg.config.name
            );
            cx.events.push_back(HostEvent::Warning(cx.number, line));
            any = true;
        }
        any
    }

    /// Begins to read the superblocks of a leg. Returns false if there is no memory now.
    pub(super) fn probe(&mut self, at: usize, purpose: Purpose, cx: &mut Context<'_>) -> bool {
        let Some(span) = self.scratch.take(2 * BLOCK) else {
            return false;
        };
        self.legs[at].superblocks.begin(Probe {
            span,
            waits: 2,
            read: [false; 2],
            failed: None,
            purpose,
            since_ns: cx.now_ns,
        });
        for copy in 0..2_u8 {
            let part = Span {
                at: span.at + u64::from(copy) * u64::from(BLOCK),
                len: BLOCK,
            };
            // The read of a heartbeat unfences the leg as soon as it can be reached.
            let past_cut = matches!(purpose, Purpose::Machine(ticket) if ticket.is_heartbeat());
            // A spare is not needed for sure: it is not tried for long.
            let elsewhere = matches!(purpose, Purpose::Machine(ticket) if ticket.is_of_spare());
            let hints = Hints {
                past_cut,
                elsewhere,
                ..Hints::default()
            };
            let entry = Entry {
                hints,
                ..Entry::new(cx.index, at as u8, Task::Probe(copy), Span::default())
            };
            let io = self.io(at, IoOp::Read, COPIES_AT[usize::from(copy)], part);
            self.submit_urgent(entry, io, cx);
        }
        true
    }

    /// Handles the end of the read of one superblock.
    pub(super) fn probe_read(
        &mut self,
        at: usize,
        copy: u8,
        outcome: Outcome,
        cx: &mut Context<'_>,
    ) {
        let superblocks = &mut self.legs[at].superblocks;
        let Some((probe, is_late)) = superblocks.copy_read(copy, outcome) else {
            return; // the other one is still being read
        };
        if is_late {
            self.scratch.give_back(probe.span);
            let due_ns = match &self.phase {
                Phase::Running(_) => 0,
                // A start was refused for it: one that is slow each time is not asked all the time.
                _ => probe.since_ns.saturating_add(TRY_AGAIN_NS),
            };
            let pause_ns = probe.failed.map_or(0, |_| LEG_RETRY_NS);
            superblocks.next_ns = due_ns.max(cx.now_ns.saturating_add(pause_ns));
            self.needs_turn = true;
            return;
        }
        let part = |copy: u64| Span {
            at: probe.span.at + copy * u64::from(BLOCK),
            len: BLOCK,
        };
        let bytes = |copy: u64| {
            let read = probe.read[copy as usize];
            read.then(|| cx.memory.bytes(part(copy)))
        };
        let leg_bytes = self.legs[at].info.map_or(0, |info| info.bytes);
        let chosen = read_copies([bytes(0), bytes(1)], cx.crc32c);
        // A heartbeat reads the owner: the last leg in sync stays, wherever it was cut (T45).
        let chosen = match probe.purpose {
            Purpose::Machine(ticket) if ticket.is_heartbeat() => chosen,
            _ => chosen.and_then(|it| it.on_leg_of(leg_bytes)),
        };
        self.scratch.give_back(probe.span);
        let tries_again = match probe.purpose {
            Purpose::Machine(ticket) => !ticket.is_heartbeat(),
            Purpose::Identify | Purpose::Acquire(_) => false,
        };
        let found = match probe.failed {
            Some(outcome) => Err(outcome),
            // Their contents are not known: the leg is tried again.
            None if tries_again && chosen == Err(NoLeg::Unreadable) => Err(Outcome::MediaError),
            None => Ok(chosen),
        };
        self.probed(at, probe.purpose, found, cx);
    }

    /// Passes the result of a probe on.
    fn probed(
        &mut self,
        at: usize,
        purpose: Purpose,
        found: Result<Result<Chosen, NoLeg>, Outcome>,
        cx: &mut Context<'_>,
    ) {
        let leg = &mut self.legs[at];
        match purpose {
            Purpose::Identify => {
                let it = &mut leg.superblocks;
                match found {
                    Ok(found) => it.set_found(found),
                    Err(_) => {
                        it.forget();
                        self.needs_turn = true;
                    }
                }
                if found.is_err() || it.are_unread() {
                    it.next_ns = cx.now_ns.saturating_add(LEG_RETRY_NS);
                }
                self.settle_leaving(at, cx);
            }
            Purpose::Acquire(index) => {
                // Another leg may have shown that the owner lives, which has ended it.
                let acquire = self.ownership_mut().and_then(|it| it.acquiring_mut());
                if let Some(acquire) = acquire {
                    let found = found.unwrap_or(Err(NoLeg::Missing));
                    acquire.handle_superblocks(index, found);
                }
            }
            // Heartbeats may be all I/O on its legs.
            Purpose::Machine(_)
                if found == Err(Outcome::Stopped) && cx.below.host.is_stopping() =>
            {
                self.freeze(cx);
            }
            Purpose::Machine(ticket) => {
                if found == Err(Outcome::CutShort) {
                    leg.returns.extent.note_cut();
                }
                if let Phase::Running(it) = &mut self.phase {
                    match found {
                        Ok(found) => it.machine.handle_superblocks(ticket, &found, cx.now_ns),
                        Err(outcome) => it.machine.handle_done(ticket, outcome, cx.now_ns),
                    }
                }
            }
        }
    }
}
