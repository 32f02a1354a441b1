//! Reads the superblocks of a leg: to identify it, to acquire the mirror, and for the machine.
//!
//! # Contract
//! A start waits `assemble_wait` for the answer of a leg, from the beginning of the read. A leg
//! that has not answered by then is missing, whatever was read of it before. Its read keeps its
//! memory until it ends, and the late result is discarded: the leg is read again (by `start`, or
//! by `news` while the mirror runs), at a start not before the pause of a refused one is over. A
//! leg whose superblocks both fail to be read is left out of the start and read again afterwards.
use super::device::{Context, MirrorDevice, Phase, Purpose};
use super::start::TRY_AGAIN_NS;
use super::table::{Entry, Task};
use crate::host::{Hints, HostEvent, IoOp};
use crate::limits::LEG_RETRY_NS;
use crate::machine::Span;
use alloc::format;
use mirror::copies::{Chosen, NoLeg, read_copies};
use mirror::layout::COPIES_AT;
use mirror::superblock::SUPERBLOCK_BYTES;
use multipath::Outcome;

/// Bytes of a superblock, as spans count.
pub(super) const BLOCK: u32 = SUPERBLOCK_BYTES as u32;

/// A read of a leg's superblocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    span: Span,
    waits: u8,
    read: [bool; 2],
    failed: Option<Outcome>,
    purpose: Purpose,
    since_ns: u64,
    /// The start does not wait for it any more.
    late: bool,
}

impl Probe {
    /// When it began, ns.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Whether it takes longer than legs are waited for.
    pub fn is_late(&self) -> bool {
        self.late
    }
}

impl MirrorDevice {
    /// Gives up reads that take too long. Returns whether there are any.
    pub(super) fn give_up_late_probes(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        for at in 0..self.legs.len() {
            let due_ns = self.probe_until(at);
            let leg = &mut self.legs[at];
            let Some(probe) = leg.probe.as_mut().filter(|_| due_ns <= cx.now_ns) else {
                continue;
            };
            probe.late = true;
            (leg.found, leg.is_outdated) = (None, false);
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
        self.legs[at].probe = Some(Probe {
            span,
            waits: 2,
            read: [false; 2],
            failed: None,
            purpose,
            since_ns: cx.now_ns,
            late: false,
        });
        for copy in 0..2_u8 {
            let part = Span {
                at: span.at + u64::from(copy) * u64::from(BLOCK),
                len: BLOCK,
            };
            // A beat that is read again is what lets the leg go on when it can be reached.
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
        let Some(probe) = &mut self.legs[at].probe else {
            unreachable!("a leg keeps its place until its read has ended");
        };
        probe.waits -= 1;
        probe.read[usize::from(copy)] = outcome.is_done();
        // An error of one copy's medium is no failure of the leg.
        if !outcome.is_done() && outcome != Outcome::MediaError {
            probe.failed = Some(outcome);
        }
        if probe.waits > 0 {
            return;
        }
        let probe = *probe;
        self.legs[at].probe = None;
        if probe.late {
            self.scratch.give_back(probe.span);
            let due_ns = match &self.phase {
                Phase::Running(_) => 0,
                // A start was refused for it: one that is slow each time is not asked all the time.
                _ => probe.since_ns.saturating_add(TRY_AGAIN_NS),
            };
            let pause_ns = if probe.failed.is_some() {
                LEG_RETRY_NS
            } else {
                0
            };
            let again_ns = cx.now_ns.saturating_add(pause_ns);
            self.legs[at].probe_at_ns = due_ns.max(again_ns);
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
        // A beat asks whose it is: of the last leg the rest is there, wherever it was cut (T45).
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
            // Nothing is known of what they say: the leg is tried again.
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
                match found {
                    Ok(found) => {
                        (leg.found, leg.is_outdated) = (Some(found), false);
                        if leg.is_unread() {
                            leg.probe_at_ns = cx.now_ns.saturating_add(LEG_RETRY_NS);
                        }
                    }
                    Err(_) => {
                        (leg.found, leg.is_outdated) = (None, false);
                        leg.probe_at_ns = cx.now_ns.saturating_add(LEG_RETRY_NS);
                        self.needs_turn = true;
                    }
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
            // A beat may be all that goes to its legs.
            Purpose::Machine(_)
                if found == Err(Outcome::Stopped) && cx.below.host.is_stopping() =>
            {
                self.freeze(cx);
            }
            Purpose::Machine(ticket) => {
                if found == Err(Outcome::CutShort) {
                    leg.extent.note_cut();
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
