//! Requests, outputs, news, configuration and facts of a mirror.
use super::super::assembly::Assembly;
use super::super::copies::{Chosen, NoLeg};
use super::super::ownership::Terms;
use super::{Legs, Speed, Ticket, Unfit};
use block::Outcome;
use block::Range;

/// A request to a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read from any leg that has the range.
    Read(Range),
    /// Write, with FUA or without.
    Write(Range, bool),
    /// Write zeroes.
    Zero(Range),
    /// Deallocate.
    Deallocate(Range),
    /// Flush all acknowledged changes.
    Flush,
}

impl Request {
    /// Returns the range that it changes.
    pub(super) fn changes(self) -> Option<Range> {
        match self {
            Self::Write(range, _) | Self::Zero(range) | Self::Deallocate(range) => Some(range),
            Self::Read(_) | Self::Flush => None,
        }
    }

    /// Returns the range that it reads.
    pub(super) fn reads(self) -> Option<Range> {
        match self {
            Self::Read(range) => Some(range),
            _ => None,
        }
    }
}

/// Consecutive pages of the bitmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The first one.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// An output: work for the engine.
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
    /// End of an I/O.
    Done(u32, Outcome),
    /// News for the log, and for the engine.
    News(News),
}

impl Output {
    /// Returns the ticket of work on one leg.
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

/// News of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The leg gets nothing any more; writes that it missed are acknowledged when that is durable.
    Left(u8, Outcome),
    /// It has returned, and is being rebuilt.
    Rebuilding(u8),
    /// It is in sync.
    InSync(u8),
    /// It was added, and is going to be rebuilt.
    Added(u8),
    /// It was removed; its superblocks are to be overwritten.
    Removed(u8),
    /// It is reachable, and can't return.
    Unfit(u8, Unfit),
    /// All regions that had diverged were resynced.
    Resynced,
    /// The mirror has so many bytes.
    Grown(u64),
    /// The mirror keeps its size: a leg has left, or it stops.
    NotGrown,
    /// The range was rewritten on this leg, which could not read it.
    Repaired(u8, Range),
    /// No leg in sync could read the range; this leg, which is being rebuilt and did not lack it,
    /// was read. Reported once a second at most.
    Rescued(u8, Range),
    /// The leg could not write the range, which another leg in sync has: the range is recorded as
    /// bad, and the leg stays.
    Unwritable(u8, Range),
    /// All bad blocks of the leg were rewritten.
    Rewritten(u8),
    /// The leg has left, and no leg in sync has this range: the first such one.
    NoCopy(u8, Range),
    /// No leg in sync can read the range: the first such one of a region.
    Lost(Range),
    /// The check has ended: [`Mirror::check_report`](super::Mirror::check_report).
    Checked,
    /// Another owner has the mirror ([`Mirror::foreign_owner`](super::Mirror::foreign_owner)): all
    /// I/O fails from now on.
    LostOwnership,
    /// No superblock can be written to the last leg: all changes fail until one can.
    Broken,
    /// Superblocks can be written again.
    Restored,
    /// This leg, the last one in sync, may still execute requests that it failed: changes wait for
    /// that.
    Unverified(u8),
    /// The last leg in sync is, or was, smaller than the mirror needs: it has lost everything from
    /// this byte of the mirror on.
    Cut(u8, u64),
    /// Its lease has lapsed: another host may take the leg over. It gets nothing but heartbeats,
    /// and its requests are to be withdrawn (T48).
    Lapsed(u8),
    /// Its lease was renewed; the leg is still ours.
    Renewed(u8),
    /// A first change is due: the lineage is to be recorded durably
    /// ([`Mirror::handle_recorded`](super::Mirror::handle_recorded)), and nothing is written to a
    /// leg before.
    Begins,
    /// The mirror has stopped: whether cleanly. It is the last output.
    Stopped(bool),
}

/// Configuration of a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// I/Os of users at a time.
    pub ios: usize,
    /// Copy jobs at a time, 1 to 16; each has a buffer of this number, and one to compare with.
    pub copies: u8,
    /// Bytes of a copy buffer: a multiple of 4096, 64 KiB at least.
    pub copy_bytes: u32,
    /// Speed of background copies.
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
    /// A region's dirty bit is cleared when it was not written for so long.
    pub clear_after_ns: u64,
    /// The host keeps a record of the last lineage: see [`News::Begins`].
    pub records: bool,
}

impl Config {
    /// Returns the defaults, for `ios` I/Os.
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

impl Config {
    /// Returns how a request ends that not all legs can do: none of them gets it.
    pub(super) fn ends_alone(&self, request: Request) -> Option<Outcome> {
        match request {
            // Deallocation promises nothing.
            Request::Deallocate(_) if !self.deallocate => Some(Outcome::Done),
            Request::Zero(_) if !self.write_zeroes => Some(Outcome::Unsupported),
            _ => None,
        }
    }
}

/// Input for the start of a mirror.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// Its assembly.
    pub assembly: &'a Assembly,
    /// The legs of the assembly, in its order.
    pub given: &'a [Result<Chosen, NoLeg>],
    /// For each of them: until when it may execute earlier requests, ns. A stale leg does not
    /// return sooner (T9). Legs that are not there may not.
    pub late_until_ns: &'a [u64],
    /// Drawn at random, not 0.
    pub lineage: u64,
    /// Terms of its acquisition.
    pub terms: Terms,
}

/// Progress of a resync of diverged legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resync {
    /// When it began, ns.
    pub since_ns: u64,
    /// Regions that may have differed since then, at most.
    pub regions: u64,
    /// Regions that are left.
    pub left: u64,
}

impl LegFacts {
    /// Whether it is being rebuilt, and no leg can read what it still lacks.
    pub fn is_stuck(&self) -> bool {
        self.rebuilding && self.stuck > 0 && self.stuck == self.lacks
    }
}

/// Facts about a leg.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LegFacts {
    /// It is in sync.
    pub in_sync: bool,
    /// It is being rebuilt, and gets every write.
    pub rebuilding: bool,
    /// It returns or is being added, and gets no writes yet.
    pub returning: bool,
    /// It has left, and that is not durable yet on those that stay.
    pub leaving: bool,
    /// Its lease is over: it gets nothing but heartbeats, until two have ended well.
    pub lapsed: bool,
    /// Its file was cut short while it was the last one in sync: it stays, with what is left.
    pub cut_short: bool,
    /// First lost byte of the mirror, where it is known, until a user
    /// [accepts](super::Mirror::accept_cut) that.
    pub cut_end: Option<u64>,
    /// A user has accepted that, and it is not on the leg yet.
    pub accepting: bool,
    /// Event of its superblock.
    pub event: u64,
    /// Event by which it was in sync, as far as this run knows.
    pub since_event: u64,
    /// Regions that it lacks.
    pub lacks: u64,
    /// Regions that it lacks and no leg could read: they are tried again after a while.
    pub stuck: u64,
    /// Reads that it failed lately.
    pub errors: u32,
    /// Ranges that it could not write, by the record: count, bytes, and the first one.
    pub bad: (u32, u64, Option<Range>),
    /// It could not write more ranges than the record has room for, and was not in sync since.
    pub bad_full: bool,
    /// The range that had no room.
    pub bad_more: Option<Range>,
    /// The first range that only this leg has
    /// ([`Mirror::last_copy_on`](super::Mirror::last_copy_on)).
    pub last_copy: Option<Range>,
    /// Ranges that were rewritten on it.
    pub repaired: u64,
    /// Times that it was read while it was being rebuilt, since no leg in sync could be.
    pub rescued: u64,
    /// Requests in flight.
    pub in_flight: u32,
}
