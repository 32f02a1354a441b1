//! Damage in transit: counts what was damaged or failed on the way, and logs it now and then.
//!
//! A data digest that is wrong, here or at the target, ends one command with a transport error; a
//! header digest ends the connection. Neither says anything of what is behind the path: the command
//! is repeated, and each failure counts against the path (`io`, [`multipath::health`]).
use super::io_table::AttemptEnd;
use super::path::Path;
use super::report;
use super::types::IoOp;
use super::volumes::PathContext;
use nvme::host::HostError;
use nvme::wire::pdu::Fes;

/// The direction of a transfer; the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    /// From the target, and so found by us.
    In = 0,
    /// To the target, which says so.
    Out = 1,
}

/// So recent damage is named as the reason of a probation, ns.
const RECENT_NS: u64 = 60_000_000_000;

impl Path {
    fn count_damage(&mut self, direction: Direction, now_ns: u64) {
        self.counters.damaged[direction as usize] += 1;
        self.counters.damaged_ns = now_ns.max(1);
    }

    /// The attempt of an I/O or a probe was damaged or failed on the way.
    #[cold]
    pub(super) fn note_damage(&mut self, index: u32, on: &mut PathContext<'_>, now_ns: u64) {
        let slot = on.ios.get_mut(index);
        slot.history.attempt = AttemptEnd::InTransit;
        let direction = match slot.io.op {
            IoOp::Write { .. } | IoOp::Deallocate => Direction::Out,
            IoOp::Read | IoOp::WriteZeroes { .. } | IoOp::Flush => Direction::In,
        };
        self.count_damage(direction, now_ns);
        let count = self.errors.damage_lines[direction as usize].one_more(now_ns);
        // Else a line was written lately.
        if let Some(count) = count {
            let why = report::damaged(&self.kind, direction, count);
            on.report_trouble(self, &why);
        }
    }

    /// Counts a connection that ended because of a damaged header. The path is lost for it, which
    /// is reported.
    pub(super) fn count_damage_of(&mut self, error: HostError, now_ns: u64) {
        if let Some(direction) = direction(error) {
            self.count_damage(direction, now_ns);
        }
    }

    /// Whether something was damaged on the way lately.
    pub(super) fn is_damaging(&self, now_ns: u64) -> bool {
        let at_ns = self.counters.damaged_ns;
        at_ns > 0 && now_ns.saturating_sub(at_ns) < RECENT_NS
    }
}

/// Which way a header went whose damage ended a connection; `None`: it ended for something else.
fn direction(error: HostError) -> Option<Direction> {
    match error {
        HostError::Protocol(error) if error.fes == Fes::HeaderDigest => Some(Direction::In),
        HostError::Terminated { fes, .. } if Fes::from_value(fes) == Some(Fes::HeaderDigest) => {
            Some(Direction::Out)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::wire::pdu::PduError;

    #[test]
    fn t17_damaged_headers_are_counted_by_direction() {
        let damaged = PduError {
            fes: Fes::HeaderDigest,
            fei: 0,
        };
        let ended = |fes| HostError::Terminated { fes, fei: 0 };
        for (error, want) in [
            (HostError::Protocol(damaged), Some(Direction::In)),
            (ended(Fes::HeaderDigest as u16), Some(Direction::Out)),
            (HostError::Protocol(PduError::field(2)), None),
            (ended(Fes::Sequence as u16), None),
            (ended(99), None),
            (HostError::Closed, None),
        ] {
            assert_eq!(direction(error), want, "{error}");
        }
    }
}
