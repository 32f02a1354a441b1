//! What a mirror is asked, what it says, and what it begins from.
use super::super::assembly::Assembly;
use super::super::copies::{Chosen, NoLeg};
use super::super::ownership::Terms;
use super::{Legs, Speed, Ticket, Unfit};
use block::Outcome;
use block::Range;

/// What a mirror is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// From any leg that has it.
    Read(Range),
    /// With FUA or without.
    Write(Range, bool),
    /// Zeroes.
    Zero(Range),
    /// What is there is not needed any more.
    Deallocate(Range),
    /// All that was acknowledged.
    Flush,
}

impl Request {
    /// What it changes.
    pub(super) fn changes(self) -> Option<Range> {
        match self {
            Self::Write(range, _) | Self::Zero(range) | Self::Deallocate(range) => Some(range),
            Self::Read(_) | Self::Flush => None,
        }
    }

    /// What it reads.
    pub(super) fn reads(self) -> Option<Range> {
        match self {
            Self::Read(range) => Some(range),
            _ => None,
        }
    }
}

/// Pages of the bitmap, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The first one.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// A user's change or flush, on one leg.
    Leg(Ticket, Request),
    /// A user's read, which any of these legs may serve: [`Mirror::take`](super::Mirror::take).
    Read(u32, Range, Legs),
    /// A flush of the mirror's own.
    Flush(Ticket),
    /// Into the copy buffer of this number, from its beginning.
    CopyRead(Ticket, u8, Range),
    /// From there; durably where a check asks for it
    /// ([`Mirror::is_checked_by`](super::Mirror::is_checked_by)).
    CopyWrite(Ticket, u8, Range),
    /// Read, and compared with it: [`Mirror::handle_compared`](super::Mirror::handle_compared).
    Compare(Ticket, u8, Range),
    /// [`Mirror::encode_pages`](super::Mirror::encode_pages), durably.
    Pages(Ticket, Pages),
    /// [`Mirror::encode_superblock`](super::Mirror::encode_superblock) to this copy, durably.
    Superblock(Ticket, u8),
    /// [`Mirror::handle_pages`](super::Mirror::handle_pages).
    ReadPages(Ticket, Pages),
    /// Both: [`Mirror::handle_superblocks`](super::Mirror::handle_superblocks).
    ReadSuperblocks(Ticket),
    /// The I/O has ended.
    Done(u32, Outcome),
    /// For people, and for who looks after the legs.
    News(News),
}

impl Output {
    /// Of what is to be done on one leg.
    pub(super) fn ticket(&self) -> Option<Ticket> {
        match *self {
            Self::Leg(ticket, _)
            | Self::Flush(ticket)
            | Self::CopyRead(ticket, ..)
            | Self::CopyWrite(ticket, ..)
            | Self::Compare(ticket, ..)
            | Self::Pages(ticket, _)
            | Self::Superblock(ticket, _)
            | Self::ReadPages(ticket, _)
            | Self::ReadSuperblocks(ticket) => Some(ticket),
            Self::Read(..) | Self::Done(..) | Self::News(_) => None,
        }
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The leg gets nothing any more; what it missed is acknowledged when that is durable.
    Left(u8, Outcome),
    /// It is there again, and is being rebuilt.
    Rebuilding(u8),
    /// It is in sync.
    InSync(u8),
    /// It is one of the mirror's, and is going to be rebuilt.
    Added(u8),
    /// It is none any more; its superblocks are to be overwritten.
    Removed(u8),
    /// It is reachable, and can't return.
    Unfit(u8, Unfit),
    /// What an unclean stop left different is alike.
    Resynced,
    /// It has so many bytes.
    Grown(u64),
    /// It stays as large as it is: a leg has left, or it stops.
    NotGrown,
    /// Rewritten on this leg, which could not read it.
    Repaired(u8, Range),
    /// No leg in sync could read it; this leg, which is being rebuilt, did not lack it and was
    /// read. Said once a second at most.
    Rescued(u8, Range),
    /// The leg could not write it, which another one in sync has: that is recorded, and it stays.
    Unwritable(u8, Range),
    /// All that the leg could not write was written again.
    Rewritten(u8),
    /// The leg has left, and none in sync has this: the first such range.
    NoCopy(u8, Range),
    /// No leg in sync can read it; said of the first such range of a region.
    Lost(Range),
    /// The check has ended: [`Mirror::check_report`](super::Mirror::check_report).
    Checked,
    /// Somebody else has the mirror ([`Mirror::foreign_owner`](super::Mirror::foreign_owner)): all
    /// I/O fails from now on.
    LostOwnership,
    /// The last leg can't be told what is said: all changes fail until it can.
    Broken,
    /// It can again.
    Restored,
    /// What this leg has failed it may yet execute, and it is the last one in sync: changes wait
    /// for that.
    Unverified(u8),
    /// The last leg in sync is, or was, smaller than the mirror needs: from this byte of the mirror
    /// on it has lost all.
    Cut(u8, u64),
    /// Its heartbeats have not ended for so long that another host may take the leg over: nothing
    /// is given to it, and what it was given is to be taken back (T48).
    Lapsed(u8),
    /// They end again, and the leg is still ours.
    Renewed(u8),
    /// Something is to be changed for the first time: the lineage is to be recorded durably
    /// ([`Mirror::handle_recorded`](super::Mirror::handle_recorded)), and nothing is written to a
    /// leg before.
    Begins,
    /// All is on the legs, and nothing more comes; whether the stop is a clean one.
    Stopped(bool),
}

/// What the mirror is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// I/Os of users at a time.
    pub ios: usize,
    /// Copy jobs at a time, 1 to 16; each has a buffer of this number, and one to compare with.
    pub copies: u8,
    /// Bytes of a copy buffer: a multiple of 4096, 64 KiB at least.
    pub copy_bytes: u32,
    /// How fast is copied in the background.
    pub speed: Speed,
    /// Reads that a leg may fail before it leaves; halved every hour.
    pub errors_max: u32,
    /// All legs read zeroes where something was deallocated: only then it is passed on.
    pub deallocate: bool,
    /// All legs can write zeroes; else such requests are refused, and no leg leaves for it.
    pub write_zeroes: bool,
    /// A rebuild's position is saved after so many bytes,
    pub position_bytes: u64,
    /// or after such a time.
    pub position_ns: u64,
    /// Ranges of one leg that may be recorded as bad, and bytes of them; with more it leaves.
    pub bad_ranges: usize,
    /// See there.
    pub bad_bytes: u64,
    /// How long a region is left alone before its intent is forgotten.
    pub clear_after_ns: u64,
    /// The host keeps a record of the last lineage: see [`News::Begins`].
    pub records: bool,
}

impl Config {
    /// What is usual, for `ios` I/Os.
    pub fn new(ios: usize) -> Self {
        Self {
            ios,
            copies: 4,
            copy_bytes: 512 << 10,
            speed: Speed::default(),
            errors_max: 20,
            deallocate: false,
            write_zeroes: true,
            position_bytes: 1 << 30,
            position_ns: 10_000_000_000,
            bad_ranges: 16,
            bad_bytes: 16 << 20,
            clear_after_ns: 5_000_000_000,
            records: false,
        }
    }
}

/// What a mirror begins from.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// What the legs come to.
    pub assembly: &'a Assembly,
    /// As they were given for that, in the same order.
    pub given: &'a [Result<Chosen, NoLeg>],
    /// Of each of them, until when it may execute what it was given before, ns: who is behind does
    /// not return sooner (T9). Those that are not there may not.
    pub late_until_ns: &'a [u64],
    /// Drawn at random, not 0.
    pub lineage: u64,
    /// On which terms it was acquired.
    pub terms: Terms,
}

/// What legs in sync may have differently is being made alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resync {
    /// Since when, ns.
    pub since_ns: u64,
    /// Regions that they may have had differently at one time since then, at most.
    pub regions: u64,
    /// Those that are not known to be alike yet.
    pub left: u64,
}

impl LegFacts {
    /// Whether it is being rebuilt, and no leg can read what it still lacks.
    pub fn is_stuck(&self) -> bool {
        self.rebuilding && self.stuck > 0 && self.stuck == self.lacks
    }
}

/// What is known of a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegFacts {
    /// It is in sync and there.
    pub in_sync: bool,
    /// It is being rebuilt, and gets every write.
    pub rebuilding: bool,
    /// It is on its way in, new or back, and gets no writes yet.
    pub returning: bool,
    /// It has left, and that is not durable yet on those that stay.
    pub leaving: bool,
    /// Its lease is over: it gets nothing but heartbeats, until two have ended well.
    pub lapsed: bool,
    /// Its file was cut short while it was the last one in sync: it stays, with what is left.
    pub cut_short: bool,
    /// The same, where it is known from which byte of the mirror on all is lost, until a user
    /// [accepts](super::Mirror::accept_cut) that.
    pub cut_end: Option<u64>,
    /// A user has accepted that, and it is not on the leg yet.
    pub accepting: bool,
    /// The event that it shows, and by which it was in sync as far as this run knows.
    pub event: u64,
    /// The same.
    pub since_event: u64,
    /// Regions that are still to be copied.
    pub lacks: u64,
    /// Those of them that no leg could read: they are tried again after a while.
    pub stuck: u64,
    /// Reads that it failed lately.
    pub errors: u32,
    /// Ranges that it could not write, by the record: how many, their bytes, and the first.
    pub bad: (u32, u64, Option<Range>),
    /// It could not write more than the record has room for, and was not in sync since.
    pub bad_full: bool,
    /// What it could not write then.
    pub bad_more: Option<Range>,
    /// The first range that only this leg has
    /// ([`Mirror::last_copy_on`](super::Mirror::last_copy_on)).
    pub last_copy: Option<Range>,
    /// Ranges that were rewritten on it.
    pub repaired: u64,
    /// Times that it was read while it was being rebuilt, since no leg in sync could be.
    pub rescued: u64,
    /// What it was given and has not ended.
    pub in_flight: u32,
}
