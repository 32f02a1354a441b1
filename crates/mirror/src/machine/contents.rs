//! Whether what a leg has counts: a leg that lost data is never taken for one that only missed
//! writes (T50).
use super::accept::Acceptance;

/// What the data of a leg are worth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Contents {
    /// What its superblock says.
    #[default]
    Kept,
    /// It lost data as the last one in sync, which stays.
    Cut(Cut),
    /// Nothing of it counts: it lost data while another leg was in sync, or was put back to an
    /// older state. It leaves, and is copied whole when it returns. With where it was cut before,
    /// if no user accepted that.
    Void(Option<u64>),
}

/// What the last leg in sync lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// It was smaller than the mirror needs, or was sanitized (0): what lies behind this byte of
    /// the mirror is lost, however large it is by now. `None`: its file was cut short, and where
    /// is not known.
    pub end: Option<u64>,
    /// Whether a user takes what it shows there by now for what is there; said on it, the cut is
    /// forgotten.
    pub acceptance: Acceptance,
}

impl Contents {
    /// Of the last leg in sync.
    pub fn cut(self) -> Option<Cut> {
        match self {
            Self::Cut(cut) => Some(cut),
            Self::Kept | Self::Void(_) => None,
        }
    }

    /// Whether nothing of it counts.
    pub fn is_void(self) -> bool {
        matches!(self, Self::Void(_))
    }

    /// The byte of the mirror behind which it lost all, whether or not it is in sync.
    pub fn end(self) -> Option<u64> {
        match self {
            Self::Kept => None,
            Self::Cut(cut) => cut.end,
            Self::Void(end) => end,
        }
    }

    /// The same, where no user has accepted it.
    pub fn unaccepted_end(self) -> Option<u64> {
        match self {
            Self::Cut(cut) if cut.acceptance != Acceptance::None => None,
            it => it.end(),
        }
    }

    /// The last leg in sync lost data.
    ///
    /// # Panics
    /// If nothing of it counts: then it is not in sync.
    pub fn cut_as_last(&mut self) {
        match self {
            Self::Kept => {
                *self = Self::Cut(Cut {
                    end: None,
                    acceptance: Acceptance::None,
                });
            }
            Self::Cut(_) => {}
            Self::Void(_) => unreachable!("a leg in sync is worth something"),
        }
    }

    /// The last leg in sync lost all from byte `end` of the mirror on; whether that is more than
    /// before. A user who accepted what it lost has not accepted this.
    pub fn cut_at(&mut self, end: u64) -> bool {
        let before = self.end();
        let is_news = before.is_none_or(|before| end < before);
        let end = if is_news { Some(end) } else { before };
        *self = Self::Cut(Cut {
            end,
            acceptance: Acceptance::None,
        });
        is_news
    }

    /// Another leg is in sync, and this one lost data.
    pub fn lose_all(&mut self) {
        *self = Self::Void(self.unaccepted_end());
    }

    /// It gets everything anew. Until it is in sync again, nothing that it had before counts.
    pub fn begin_anew(&mut self) {
        if self.is_void() {
            *self = Self::Void(None);
        }
    }
}
