//! Legs whose size changes: a namespace or device that was resized.
//!
//! # Contract
//! A leg that is smaller than its mirror needs, if only for a moment, has lost data (T50). The
//! machine is told so at once, and the leg leaves. It is not asked while it is too small; as soon
//! as it is large enough it returns by itself, and is copied whole: its data don't count. The last
//! leg in sync stays, and serves I/O below the smallest size that was seen.
//!
//! # Limits
//! A size that was not reported is not seen: of a namespace that shrinks and grows between two
//! inspections, or while no engine runs. The runtime notices a file that is cut short at the next
//! request or within a second; such a leg returns only when told to, since its file is used as it
//! is from then on. Where it ended below its superblocks, or that is not known, the loss can't be
//! recorded on the last leg in sync: its errors last until the mirror is stopped.
use super::device::{MirrorDevice, Phase};
use super::leg::{LegDevice, Retry};
use super::messages;
use alloc::string::String;
use mirror::layout::COPIES_AT;
use mirror::limits::LEGS_MAX;
use mirror::superblock::SUPERBLOCK_BYTES;

/// A leg that ends below this lacks a superblock.
const SUPERBLOCKS_END: u64 = COPIES_AT[1] + SUPERBLOCK_BYTES as u64;

/// Whether a leg was as large as its mirror needs since it was in sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LegSize {
    /// Always.
    #[default]
    Enough,
    /// It is too small now.
    Small,
    /// It was too small, and is large enough again: it has nothing that counts.
    Regrown,
}

/// The file behind a leg, since the leg was last told to return.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LegFile {
    /// The runtime has noticed nothing.
    #[default]
    Whole,
    /// It was cut short. `end`: where it ended then, until a user accepts that.
    Cut { end: Option<u64> },
    /// It was cut short, and the leg has left for that: it returns only when told to.
    LeftForCut { end: Option<u64> },
}

/// Sizes that a leg has and had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// As of the last size that was shown.
    pub size: LegSize,
    /// Bytes: the smallest size that was shown since the machine was told of one.
    pub smallest: u64,
    pub file: LegFile,
}

impl Default for Extent {
    fn default() -> Self {
        Self::of(u64::MAX)
    }
}

impl Extent {
    /// Of a leg that has shown no size below this one.
    pub fn of(smallest: u64) -> Self {
        Self {
            size: LegSize::Enough,
            smallest,
            file: LegFile::Whole,
        }
    }

    /// Where the file ended when it was shorter.
    fn file_end(&self) -> Option<u64> {
        match self.file {
            LegFile::Whole => None,
            LegFile::Cut { end } | LegFile::LeftForCut { end } => end,
        }
    }

    fn set_file_end(&mut self, to: Option<u64>) {
        self.file = match self.file {
            LegFile::LeftForCut { .. } => LegFile::LeftForCut { end: to },
            LegFile::Whole | LegFile::Cut { .. } => LegFile::Cut { end: to },
        };
    }

    /// Notes that the runtime has failed a request because the file was cut short.
    pub fn note_cut(&mut self) {
        self.set_file_end(self.file_end());
    }

    /// Whether the runtime has reported that the file was cut short.
    pub fn is_cut_file(&self) -> bool {
        self.file != LegFile::Whole
    }

    /// Notes that the leg has left because its file was cut short, if it is one.
    pub fn leave_for_cut(&mut self) {
        if let LegFile::Cut { end } = self.file {
            self.file = LegFile::LeftForCut { end };
        }
    }

    /// Whether the leg has left because its file was cut short.
    pub fn left_for_cut(&self) -> bool {
        matches!(self.file, LegFile::LeftForCut { .. })
    }

    /// A user accepts where the leg was cut.
    pub fn accept(&mut self) {
        self.size = LegSize::Enough;
        if self.is_cut_file() {
            self.set_file_end(None);
        }
    }

    /// Whether the leg returns only when told to, or not before it is large enough.
    pub fn keeps_away(&self) -> bool {
        self.left_for_cut() || self.size == LegSize::Small
    }

    /// Whether nothing that the leg has counts.
    pub fn has_nothing(&self) -> bool {
        self.left_for_cut() || self.size != LegSize::Enough || self.is_too_small()
    }

    /// Whether the leg has to become larger before a user can accept that it was cut.
    pub fn is_too_small(&self) -> bool {
        self.size == LegSize::Small || self.file_end().is_some()
    }
}

impl MirrorDevice {
    /// The file of a leg became shorter: `end` is the first byte that was not there; 0: that is not
    /// known.
    pub(super) fn file_cut(&mut self, at: usize, end: u64, now_ns: u64) {
        self.legs[at].returns.extent.set_file_end(Some(end));
        self.tell_file_cut(at, now_ns);
        self.needs_turn = true;
    }

    /// Tells the machine where the file of a leg ended when it was shorter.
    fn tell_file_cut(&mut self, at: usize, now_ns: u64) {
        let needs = self.leg_needs(&self.legs[at]);
        let leg = &mut self.legs[at];
        let end = leg.returns.extent.file_end();
        if needs.is_some_and(|needs| end.is_some_and(|end| end >= needs)) {
            leg.returns.extent.set_file_end(None); // nothing of the mirror lay behind that
            return;
        }
        let (Some(end), Some(slot), Phase::Running(it)) = (end, leg.slot, &mut self.phase) else {
            return; // it is told when the mirror runs, and the leg is known
        };
        let in_sync = |slot: u8| it.machine.facts(slot).is_some_and(|it| it.in_sync);
        let is_last = (0..LEGS_MAX as u8).filter(|slot| in_sync(*slot)).eq([slot]);
        // Nothing can be written to the last one any more where its superblocks are.
        let is_known = end >= SUPERBLOCKS_END || !is_last;
        if needs.is_none_or(|needs| end >= needs) || !is_known {
            return; // nothing is lost, or it can't be recorded
        }
        it.machine.leg_resized(slot, end, now_ns);
        if !it.machine.may_read(slot) {
            leg.returns.extent.leave_for_cut();
        }
    }

    /// Bytes that a leg must have; `None`: the mirror does not run, or the leg is not known yet.
    fn leg_needs(&self, leg: &LegDevice) -> Option<u64> {
        let Phase::Running(it) = &self.phase else {
            return None;
        };
        it.machine.leg_needs(leg.slot?)
    }

    /// Tells the machine of a leg that is, or was, too small; one that is large enough again may
    /// return.
    pub(super) fn check_size(&mut self, at: usize, now_ns: u64) {
        if self.legs[at].returns.extent.file_end().is_some() {
            return self.tell_file_cut(at, now_ns);
        }
        let Phase::Running(it) = &mut self.phase else {
            return; // sizes are checked when it runs
        };
        let leg = &mut self.legs[at];
        let (Some(slot), Some(info)) = (leg.slot, leg.info) else {
            return; // it is checked when it is known
        };
        let Some(needs) = it.machine.leg_needs(slot) else {
            return; // it is no leg any more
        };
        let extent = &mut leg.returns.extent;
        let smallest = core::mem::replace(&mut extent.smallest, info.bytes);
        let before = extent.size;
        // An earlier engine may have seen it: then its superblock has it.
        let was_cut = it.machine.was_cut(slot);
        let was_small = smallest < needs || before == LegSize::Small || was_cut;
        match info.bytes < needs {
            true => extent.size = LegSize::Small,
            false if was_small => extent.size = LegSize::Regrown,
            false => return, // it is as large as ever
        }
        let is_regrown = extent.size == LegSize::Regrown;
        if smallest < needs && (before == LegSize::Enough || !is_regrown) {
            it.machine.leg_resized(slot, smallest, now_ns);
        }
        let facts = it.machine.facts(slot);
        let waits = is_regrown && !facts.is_some_and(|it| it.returning);
        let hasten = |it: &mut Retry| it.at_ns = it.at_ns.min(now_ns);
        if waits && leg.returns.change_retry(hasten) {
            leg.returns.unfit = None;
        }
        self.needs_turn = true;
    }

    /// Checks all legs: their sizes may have changed before the mirror ran.
    pub(super) fn check_sizes(&mut self, now_ns: u64) {
        for at in 0..self.legs.len() {
            self.check_size(at, now_ns);
        }
    }

    /// Why a leg that was too small has left, in words.
    pub(super) fn why_small(&self, leg: &LegDevice) -> Option<String> {
        match leg.returns.extent.size {
            LegSize::Enough => None,
            LegSize::Small => {
                let bytes = leg.info.map_or(0, |info| info.bytes);
                Some(messages::too_small(bytes, self.leg_needs(leg)?))
            }
            LegSize::Regrown => Some(messages::WAS_TOO_SMALL.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t50_leg_that_left_for_a_cut_file_stays_away() {
        let mut extent = Extent::of(1 << 20);
        extent.leave_for_cut();
        assert!(!extent.keeps_away(), "nothing was cut");
        extent.note_cut();
        assert!(extent.is_cut_file() && !extent.has_nothing());
        extent.set_file_end(Some(4096));
        assert!(extent.is_too_small() && !extent.keeps_away());
        extent.leave_for_cut();
        extent.note_cut();
        assert_eq!(extent.file, LegFile::LeftForCut { end: Some(4096) });
        // It is taken as it is, and waits for its user all the same.
        extent.accept();
        assert!(!extent.is_too_small() && extent.keeps_away() && extent.has_nothing());
        extent.file = LegFile::Whole;
        assert!(!extent.keeps_away() && !extent.has_nothing());
    }

    #[test]
    fn accepting_a_namespace_leaves_its_file_whole() {
        let mut extent = Extent {
            size: LegSize::Regrown,
            ..Extent::of(1 << 20)
        };
        extent.accept();
        assert_eq!(
            (extent.size, extent.file),
            (LegSize::Enough, LegFile::Whole)
        );
    }
}
