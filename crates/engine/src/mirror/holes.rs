//! Copies to a leg that can keep holes: zeroes are written so that they take no space there.
//!
//! # Contract
//! Zeroes are found in the bytes that were read for the copy, under its lock; holes that a device
//! reports are not used. They are written by a command after which the leg reads zeroes
//! ([`hole_bytes`](block::IoLimits::hole_bytes)). The piece is written in runs of data and of
//! zeroes, one after the other, and its ticket ends with the last one. So a hole has the lock, the
//! window, the lease and the fences of a copy's write (T46, T54, T48, T9, T49), and no byte of the
//! leg is zeroed that is not zero in the source: a leg in sync loses nothing where a resync ends
//! half done.
//!
//! A leg that fails to make a hole is given the zeroes as data, and the outcome of that counts.
//! One that refuses or denies the command as such is not asked again before it returns. A hole is a
//! try: an error of the device is not counted as one of the leg's path.
//!
//! # Limits
//! One command more than the piece has runs of data. Holes are multiples of `hole_bytes` and of
//! [`MIRROR_HOLE_BYTES`](crate::limits::MIRROR_HOLE_BYTES); a piece has four of these.
use super::device::{Context, MirrorDevice, Phase};
use super::table::{Entry, Task};
use crate::host::{Hints, Io, IoOp};
use crate::limits::MIRROR_COPY_BYTES;
use crate::machine::Span;
use block::Range;
use canary::Bug;
use mirror::machine::Ticket;
use multipath::Outcome;

/// Part of a copied piece that one command writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub ticket: Ticket,
    /// Number of the copy buffer.
    copy: u8,
    piece: Range,
    /// Range of the mirror.
    part: Range,
    /// It is all zeroes, and a hole is made of it.
    is_hole: bool,
}

impl MirrorDevice {
    /// Whether the copy in this buffer leaves holes on the leg of the ticket.
    pub(super) fn leaves_holes(&mut self, ticket: Ticket, copy: u8, cx: &Context<'_>) -> bool {
        let may = |it: &mut super::dispatch::Running| it.machine.may_leave_holes(copy);
        self.running().is_some_and(may) && self.hole_bytes(ticket, cx) > 0
    }

    /// Size and alignment of holes on the leg of a ticket; 0: it gets none.
    fn hole_bytes(&mut self, ticket: Ticket, cx: &Context<'_>) -> u32 {
        let at = self.at(ticket.leg).map(|it| it.0);
        let leg = at.map(|at| &self.legs[at]);
        let leg = leg.filter(|leg| !leg.refuses_holes);
        let limits = leg.and_then(|leg| cx.below.ask().limits(leg.device()));
        let least = self.config.hole_bytes;
        match limits.map_or(0, |limits| limits.hole_bytes) {
            0 => 0,
            // Larger than a piece that is copied: the unit is a preference.
            unit if unit > MIRROR_COPY_BYTES => least,
            unit => least.next_multiple_of(unit),
        }
    }

    /// Writes a piece from its buffer to a leg, zeroes as holes.
    pub(super) fn write_runs(
        &mut self,
        ticket: Ticket,
        copy: u8,
        piece: Range,
        cx: &mut Context<'_>,
    ) {
        let Some((entry, io)) = self.run_from(ticket, copy, piece, piece.start, cx) else {
            return self.refuse_task(ticket, cx);
        };
        self.submit_data(entry, io, cx);
        if canary::has(Bug::RunsUnlocked)
            && let Some(it) = self.running()
        {
            it.machine.handle_done(ticket, Outcome::Done, cx.now_ns);
        }
    }

    /// The run that begins at this byte of the mirror; `None`: the leg is not there.
    fn run_from(
        &mut self,
        ticket: Ticket,
        copy: u8,
        piece: Range,
        from: u64,
        cx: &Context<'_>,
    ) -> Option<(Entry, Io)> {
        let (_, data_offset, _) = self.at(ticket.leg)?;
        let left = self.left_of(copy, piece, from);
        let hole_bytes = self.hole_bytes(ticket, cx);
        let bytes = cx.memory.bytes(left);
        let (length, is_hole) = first_run(bytes, data_offset + from, hole_bytes);
        let run = Run {
            ticket,
            copy,
            piece,
            part: Range::new(from, length.into()),
            is_hole,
        };
        self.command(run, cx)
    }

    /// Memory of a piece from this byte of the mirror on.
    fn left_of(&mut self, copy: u8, piece: Range, from: u64) -> Span {
        let span = self.buffer(copy, piece);
        let done = from - piece.start;
        Span {
            at: span.at + done,
            len: span.len - done as u32,
        }
    }

    /// A run as I/O of its leg; `None`: the leg is not there.
    fn command(&mut self, run: Run, cx: &Context<'_>) -> Option<(Entry, Io)> {
        let (at, data_offset, _) = self.at(run.ticket.leg)?;
        let left = self.left_of(run.copy, run.piece, run.part.start);
        let length = (run.part.end - run.part.start) as u32;
        let (op, span) = match run.is_hole {
            true => (IoOp::WriteZeroes { deallocate: true }, Span::default()),
            false => (
                IoOp::Write { fua: false },
                Span {
                    len: length,
                    ..left
                },
            ),
        };
        let io = Io {
            length,
            ..self.io(at, op, data_offset + run.part.start, span)
        };
        let hints = Hints {
            replaceable: run.is_hole,
            ..Hints::default()
        };
        let entry = Entry {
            hints,
            ..Entry::new(cx.index, at as u8, Task::Run(run), Span::default())
        };
        Some((entry, io))
    }

    /// Handles the end of a run. The next one waits in the leg's queue, so that it is not submitted
    /// before leases and time were checked (T48).
    pub(super) fn run_ended(
        &mut self,
        entry: &Entry,
        run: Run,
        outcome: Outcome,
        cx: &Context<'_>,
    ) {
        let next = if run.is_hole && may_be_written(outcome) {
            self.legs[usize::from(entry.leg)].refuses_holes |= is_refusal(outcome);
            let is_hole = false;
            self.command(Run { is_hole, ..run }, cx)
        } else if !outcome.is_done() {
            None
        } else if run.part.end < run.piece.end {
            self.run_from(run.ticket, run.copy, run.piece, run.part.end, cx)
        } else {
            None
        };
        if let Some((entry, io)) = next {
            return self.legs[usize::from(entry.leg)].depth.wait(entry, io);
        }
        if let Phase::Running(it) = &mut self.phase
            && !canary::has(Bug::RunsUnlocked)
        {
            // Without the leg the rest was not written.
            let outcome = match outcome.is_done() && run.part.end < run.piece.end {
                true => Outcome::PathError,
                false => outcome,
            };
            it.machine.handle_done(run.ticket, outcome, cx.now_ns);
        }
    }
}

/// Whether the leg does not have the command, or not for this host.
fn is_refusal(outcome: Outcome) -> bool {
    use Outcome::{Denied, Invalid, Unsupported};
    matches!(outcome, Unsupported | Invalid | Denied)
}

/// Whether a leg that ended a hole so is asked to write zeroes instead: not where it, or the way to
/// it, is gone or is another one's.
fn may_be_written(outcome: Outcome) -> bool {
    use Outcome::{Busy, MediaError, NoSpace};
    is_refusal(outcome) || matches!(outcome, Busy { .. } | MediaError | NoSpace)
}

/// How far the first run of `bytes` reaches, and whether it is zeroes that a hole can be made of:
/// whole multiples of `hole_bytes` on the leg, where the bytes begin at `at`.
fn first_run(bytes: &[u8], at: u64, hole_bytes: u32) -> (u32, bool) {
    let all = bytes.len();
    if hole_bytes == 0 {
        return (all as u32, false);
    }
    let hole = u64::from(hole_bytes);
    let edge = (at.next_multiple_of(hole) - at).min(all as u64) as usize;
    let holes = bytes[edge..].chunks_exact(hole_bytes as usize);
    let zeroes = holes.clone().take_while(|it| is_zero(it)).count();
    let (units, is_hole) = match edge == 0 && zeroes > 0 {
        true => (Some(zeroes), true),
        false => (holes.clone().position(is_zero), false),
    };
    let length = units.map_or(all, |units| edge + units * hole_bytes as usize);
    (length as u32, is_hole)
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROES: [u8; 4096] = [0; 4096];
    let mut chunks = bytes.chunks(ZEROES.len());
    chunks.all(|chunk| *chunk == ZEROES[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const K: u32 = 1 << 10;

    /// Runs of 256 KiB with one byte that is not zero in each of these KiB, on the leg from `at`
    /// on.
    fn runs(data: &[usize], at: u64, hole_bytes: u32) -> Vec<(u32, bool)> {
        let mut bytes = alloc::vec![0; 256 << 10];
        data.iter().for_each(|&kib| bytes[(kib << 10) + 1023] = 1);
        let (mut runs, mut done) = (Vec::new(), 0);
        while done < bytes.len() {
            let run = first_run(&bytes[done..], at + done as u64, hole_bytes);
            runs.push((run.0 / K, run.1));
            done += run.0 as usize;
        }
        runs
    }

    #[test]
    fn run_is_all_zeroes_or_ends_before_them() {
        for (data, want) in [
            (&[][..], &[(256, true)][..]),
            (&[0], &[(64, false), (192, true)]),
            (&[255], &[(192, true), (64, false)]),
            (&[100], &[(64, true), (64, false), (128, true)]),
            (&[10, 70, 130, 200], &[(256, false)]),
            (
                &[0, 128],
                &[(64, false), (64, true), (64, false), (64, true)],
            ),
        ] {
            assert_eq!(runs(data, 1 << 20, 64 * K), want, "{data:?}");
        }
    }

    #[test]
    fn holes_are_aligned_on_the_leg_and_whole() {
        let at = (1 << 20) + 4096;
        let want = [(60, false), (192, true), (4, false)];
        assert_eq!(runs(&[], at, 64 * K), want);
        assert_eq!(runs(&[], 0, 1024 * K), [(256, false)], "none fits");
        assert_eq!(runs(&[], 0, 0), [(256, false)]);
        assert_eq!(first_run(&[0; 4096], 0, 64 * K), (4096, false));
    }
}
