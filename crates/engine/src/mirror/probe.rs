//! The superblocks of a leg are read: before the mirror runs, for its claim, and for its machine.
//!
//! # Contract
//! At a start a leg that has paths is waited for as one that could be missing is: for
//! `assemble_wait`, from when it is read. One that has not answered by then is not there, whatever
//! it said before; its answer is awaited all the same, since it lands in our memory, and is not
//! taken, since it is old: the leg is read anew (`start`, or `returns` where the mirror runs), at
//! a start not before the pause of one that was refused is over.
use super::device::{Kit, Mirrored, Phase, Purpose};
use super::start::TRY_AGAIN_NS;
use super::table::{Entry, Task};
use crate::host::{Hints, HostEvent, IoOp};
use crate::limits::LEG_RETRY_NS;
use crate::machine::Span;
use alloc::format;
use mirror::copies::{Chosen, NoLeg, read_copies};
use mirror::layout::COPIES_AT;
use mirror::superblock::SUPERBLOCK_BYTES;
use volume::Outcome;

/// Bytes of a superblock, as spans count.
pub(super) const BLOCK: u32 = SUPERBLOCK_BYTES as u32;

/// A leg's superblocks are being read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    span: Span,
    waits: u8,
    read: [bool; 2],
    failed: Option<Outcome>,
    purpose: Purpose,
    since_ns: u64,
    /// Nobody waits for it any more.
    late: bool,
}

impl Look {
    /// When it began, ns.
    pub fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// Whether it takes longer than legs are waited for.
    pub fn is_late(&self) -> bool {
        self.late
    }
}

impl Mirrored {
    /// Legs that don't answer are not waited for any more; whether there are such.
    pub(super) fn give_up_looks(&mut self, kit: &mut Kit<'_>) -> bool {
        let mut any = false;
        for at in 0..self.legs.len() {
            let due_ns = self.look_until(at);
            let leg = &mut self.legs[at];
            let Some(look) = leg.look.as_mut().filter(|_| due_ns <= kit.now_ns) else {
                continue;
            };
            look.late = true;
            (leg.found, leg.dated) = (None, false);
            let line = format!(
                "{}: {}: it doesn't answer, and is not waited for any more",
                self.config.name, leg.config.name
            );
            kit.events.push_back(HostEvent::Warning(kit.number, line));
            any = true;
        }
        any
    }

    /// Begins to read the superblocks of a leg; false: there is no memory now.
    pub(super) fn look(&mut self, at: usize, purpose: Purpose, kit: &mut Kit<'_>) -> bool {
        let Some(span) = self.scratch.take(2 * BLOCK) else {
            return false;
        };
        self.legs[at].look = Some(Look {
            span,
            waits: 2,
            read: [false; 2],
            failed: None,
            purpose,
            since_ns: kit.now_ns,
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
                ..Entry::new(kit.index, at as u8, Task::Look(copy), Span::default())
            };
            let io = self.io(at, IoOp::Read, COPIES_AT[usize::from(copy)], part);
            self.give_first(entry, io, kit);
        }
        true
    }

    /// One of the two was read, or could not be.
    pub(super) fn looked(&mut self, at: usize, copy: u8, outcome: Outcome, kit: &mut Kit<'_>) {
        let Some(look) = &mut self.legs[at].look else {
            return; // it was read anew since, or another leg has its place
        };
        look.waits -= 1;
        look.read[usize::from(copy)] = outcome.is_done();
        // What only this copy can't give is no failure of the leg.
        if !outcome.is_done() && outcome != Outcome::MediaError {
            look.failed = Some(outcome);
        }
        if look.waits > 0 {
            return;
        }
        let look = *look;
        self.legs[at].look = None;
        if look.late {
            self.scratch.give_back(look.span);
            let due_ns = match &self.phase {
                Phase::Running(_) => 0,
                // A start was refused for it: one that is slow each time is not asked all the time.
                _ => look.since_ns.saturating_add(TRY_AGAIN_NS),
            };
            let pause_ns = if look.failed.is_some() {
                LEG_RETRY_NS
            } else {
                0
            };
            let again_ns = kit.now_ns.saturating_add(pause_ns);
            self.legs[at].look_at_ns = due_ns.max(again_ns);
            self.again = true;
            return;
        }
        let part = |copy: u64| Span {
            at: look.span.at + copy * u64::from(BLOCK),
            len: BLOCK,
        };
        let bytes = |copy: u64| {
            let read = look.read[copy as usize];
            read.then(|| kit.memory.bytes(part(copy)))
        };
        let leg_bytes = self.legs[at].info.map_or(0, |info| info.bytes);
        let chosen = read_copies([bytes(0), bytes(1)], kit.crc32c);
        // A beat asks whose it is: of the last leg the rest is there, wherever it was cut (T45).
        let chosen = match look.purpose {
            Purpose::Machine(ticket) if ticket.is_heartbeat() => chosen,
            _ => chosen.and_then(|it| it.on_leg_of(leg_bytes)),
        };
        self.scratch.give_back(look.span);
        let tries_again = match look.purpose {
            Purpose::Machine(ticket) => !ticket.is_heartbeat(),
            Purpose::Found | Purpose::Claim(_) => false,
        };
        let found = match look.failed {
            Some(outcome) => Err(outcome),
            // Nothing is known of what they say: the leg is tried again.
            None if tries_again && chosen == Err(NoLeg::Unreadable) => Err(Outcome::MediaError),
            None => Ok(chosen),
        };
        self.looked_at(at, look.purpose, found, kit);
    }

    /// What was looked for is here.
    fn looked_at(
        &mut self,
        at: usize,
        purpose: Purpose,
        found: Result<Result<Chosen, NoLeg>, Outcome>,
        kit: &mut Kit<'_>,
    ) {
        let leg = &mut self.legs[at];
        match purpose {
            Purpose::Found => match found {
                Ok(found) => {
                    (leg.found, leg.dated) = (Some(found), false);
                    if leg.is_unread() {
                        leg.look_at_ns = kit.now_ns.saturating_add(LEG_RETRY_NS);
                    }
                }
                Err(_) => {
                    (leg.found, leg.dated) = (None, false);
                    leg.look_at_ns = kit.now_ns.saturating_add(LEG_RETRY_NS);
                    self.again = true;
                }
            },
            Purpose::Claim(index) => {
                // Another leg may have shown that the owner lives, which has ended it.
                let acquire = self.ownership_mut().and_then(|it| it.acquiring_mut());
                if let Some(acquire) = acquire {
                    let found = found.unwrap_or(Err(NoLeg::Missing));
                    acquire.handle_superblocks(index, found);
                }
            }
            // A beat may be all that goes to its legs.
            Purpose::Machine(_)
                if found == Err(Outcome::Stopped) && kit.below.host.is_stopping() =>
            {
                self.freeze(kit);
            }
            Purpose::Machine(ticket) => {
                if found == Err(Outcome::CutShort) {
                    leg.extent.note_cut();
                }
                if let Phase::Running(it) = &mut self.phase {
                    match found {
                        Ok(found) => it.machine.handle_superblocks(ticket, &found, kit.now_ns),
                        Err(outcome) => it.machine.handle_done(ticket, outcome, kit.now_ns),
                    }
                }
            }
        }
    }
}
