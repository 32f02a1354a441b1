//! Configuration of mirrors, orders to them, and their reports.
use crate::host::VolumeInfo;
use crate::machine::Span;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use mirror::assembly::Wishes;
use mirror::assembly::degraded::{Evidence, Permission, Record};
use mirror::machine::{CheckReport, LegFacts, Resync, Speed};
use mirror::superblock::Owner;
use mirror::{Crc32c, Id, Label, Name, Superblock};
use policy::{Knobs, Policy};

/// The number of the first mirror: volumes of the host are below.
pub const MIRRORS_FROM: u16 = crate::limits::VOLUMES_MAX as u16;

/// A leg.
#[derive(Clone, Debug)]
pub struct LegConfig {
    /// The host's volume that leads to it, and to nothing else.
    pub volume: u16,
    /// As the user wrote it, in lines about it.
    pub name: String,
    /// The whole URIs of its paths: by one of them it is identified while it is missing.
    pub uris: Vec<String>,
    /// The smallest of its paths (row A1), and the largest throughput.
    pub distance: u32,
    /// For `service-time`.
    pub throughput: u8,
}

/// A mirror.
#[derive(Clone, Debug)]
pub struct MirrorConfig {
    /// Its name in the configuration.
    pub name: String,
    /// Legs, in any order: the superblock of each has its slot.
    pub legs: Vec<LegConfig>,
    /// The identifier that its legs had when it ran last, if that is known: others are not taken
    /// before they are [accepted](MirrorOrder::AcceptName).
    pub known: Option<Id>,
    /// Knobs of the policy, which is a property of the mirror (row B6).
    pub knobs: Knobs,
    /// Options of the assembly.
    pub wishes: Wishes,
    /// How long legs are waited for that could be missing; and, from when it is asked, one that
    /// doesn't answer.
    pub assemble_wait_ns: u64,
    /// How it starts without legs.
    pub degraded: DegradedStart,
    /// After what it was given has ended, a lost leg may not return for so long where nothing
    /// bounds when that is executed (T9).
    pub leg_quiesce_ns: u64,
    /// Least size and alignment of the holes that a copy leaves, bytes.
    pub hole_bytes: u32,
    /// The owner for the superblocks. Its bound is set when legs are there.
    pub owner: Owner,
    /// Whether other hosts can reach the legs: then another owner's heartbeats are watched for.
    pub shared: bool,
    /// Drawn at random, not 0.
    pub lineage: u64,
    /// How fast is copied in the background, where the mirror was not told.
    pub speed: Speed,
}

/// How a mirror starts of which legs are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DegradedStart {
    /// Whether it does so by itself where a leg is missing that had everything at the last stop.
    pub permission: Permission,
    /// The program keeps a record of the mirror ([`RecordRequest`]).
    pub records: bool,
    /// Instead of [`MirrorConfig::assemble_wait_ns`], where all missing legs had left before that.
    pub gone_wait_ns: Option<u64>,
    /// The same, where all of them lacked data even then.
    pub outdated_wait_ns: Option<u64>,
}

impl Default for DegradedStart {
    fn default() -> Self {
        Self {
            permission: Permission::Off,
            records: false,
            gone_wait_ns: None,
            outdated_wait_ns: None,
        }
    }
}

/// A mirror's request to the program about the record of its last state
/// ([`HostEvent::Record`](crate::host::HostEvent::Record)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordRequest {
    /// Read the record of the mirror with this identifier: answered by [`MirrorOrder::Evidence`].
    Read(Id),
    /// Keep it durably, in place of the one before: answered by [`MirrorOrder::Recorded`],
    /// if it was. Those of one mirror are kept in order.
    Keep(Record),
    /// State that a start by itself shows, with all legs or not: kept if it
    /// [replaces](Record::replaces) what was kept before; nothing waits for it.
    Started(Record, bool),
    /// The mirror has stopped, and the lineage of this record, which was to be kept, never began:
    /// what was kept before it holds.
    NeverBegan(Record),
}

/// The mirrors of a core.
#[derive(Clone, Debug)]
pub struct MirrorsConfig {
    /// Of each; `None`: it is on another core.
    pub mirrors: Vec<Option<MirrorConfig>>,
    /// The host's volumes that are legs of those.
    pub elsewhere: Vec<u16>,
    /// A part of the arena for mirrors alone: [`MIRROR_SCRATCH_BYTES`] for each that is on this
    /// core, and for each that may come ([`MirrorOrder::Begin`]); 4 KiB aligned.
    ///
    /// [`MIRROR_SCRATCH_BYTES`]: crate::limits::MIRROR_SCRATCH_BYTES
    pub scratch: Span,
    /// CRC32C for superblocks and bitmaps.
    pub crc32c: Crc32c,
}

/// A leg that is to become one of a mirror's.
#[derive(Clone, Debug)]
pub struct NewLeg {
    /// A volume of the host that is ready.
    pub config: LegConfig,
    /// Of that volume.
    pub info: VolumeInfo,
    /// Drawn at random.
    pub id: Id,
    /// The leg that is removed when this one is in sync.
    pub replaces: Option<Id>,
}

/// Input for a mirror that begins: it was stopped, or is new.
#[derive(Clone, Debug)]
pub struct Anew {
    /// As at the engine's start, with another lineage and run; its legs are volumes of the host
    /// that are ready.
    pub config: MirrorConfig,
    /// Of these volumes, in the order of the legs.
    pub infos: Vec<VolumeInfo>,
}

/// An order to a mirror.
#[derive(Clone, Debug)]
pub enum MirrorOrder {
    /// Start it with the legs that are there, as these wishes allow.
    Assemble(Wishes),
    /// Take the mirror that the legs are of, although it has another name, and rename it, or
    /// another identifier than is known; or do so no more. One that runs takes none.
    AcceptName(bool),
    /// Read all copies and compare them; `true`: and make them alike.
    Check(bool),
    /// The check pauses, or goes on.
    PauseCheck(bool),
    /// The check ends.
    EndCheck,
    /// How fast is copied in the background from now on.
    Speed(Speed),
    /// The mirror keeps this speed for its next starts (row B6); `None`: none.
    KeepSpeed(Option<Speed>),
    /// For the leg with this identifier, whatever its slot: another leg may have taken that since
    /// the caller has seen it.
    Leg(Id, LegOrder),
    /// Another leg.
    Add(Box<NewLeg>),
    /// This volume of the host was given as a leg, and is none: it is not probed any more.
    Forget(u16),
    /// It becomes as large as its legs allow; the devices of these volumes have so many bytes now.
    Grow(Vec<(u16, u64)>),
    /// An order is taken back, where nothing of it can be on a leg:
    /// [`MirrorReport::taken_back`] says whether it was.
    TakeBack(Pending),
    /// The answer to [`RecordRequest::Read`].
    Evidence(Evidence),
    /// The record of this lineage is durable.
    Recorded(u64),
    /// The mirror is stopped in order; nothing starts it again but [`MirrorOrder::Begin`], or
    /// another engine.
    Stop,
    /// One that was stopped begins anew, or there is none of this number yet and one begins, in
    /// memory that [`MirrorsConfig::scratch`] has left.
    Begin(Box<Anew>),
    /// The mirror is stopped in order, and its number and memory are free then: that is said by
    /// [`HostEvent::Changed`](crate::host::HostEvent::Changed) with ticket 0.
    Leave,
}

/// An order about one leg ([`MirrorOrder::Leg`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegOrder {
    /// It leaves, and returns only when told to, also after another start.
    Fail,
    /// It returns, if it is there.
    Return,
    /// It is no leg any more.
    Remove,
    /// All copies become the same as its own.
    RepairFrom,
    /// Its data behind the cut that it got as the last one in sync are used as they are.
    AcceptCut,
}

/// An order whose caller has timed out (T55).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// [`LegOrder::Remove`] of the leg of this slot.
    Remove(u8),
    /// [`MirrorOrder::Add`] of the leg with this volume.
    Add(u16),
    /// [`MirrorOrder::Grow`].
    Grow,
    /// [`MirrorOrder::Assemble`].
    Assemble,
}

/// How far a mirror is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorState {
    /// It waits for its legs, or their owner record is being written.
    Assembling,
    /// It does not start: why, in a line.
    Refused(String),
    /// It serves.
    Running,
    /// It is being stopped, or has been.
    Stopped,
    /// Another owner has it, or nothing can be written to its last leg: changes fail.
    Failed(String),
}

/// How a leg is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LegStatus {
    /// Nothing is known of it: it isn't there.
    #[default]
    Missing,
    /// It is there, and is none of this mirror's.
    Unusable,
    /// It has every acknowledged write.
    InSync,
    /// It gets every write, and the data that it lacks are copied to it.
    Rebuilding,
    /// It missed writes, and gets none.
    Stale,
}

impl LegStatus {
    /// The word in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Unusable => "unusable",
            Self::InSync => "in-sync",
            Self::Rebuilding => "rebuilding",
            Self::Stale => "stale",
        }
    }
}

/// Counters of a leg's I/O for users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegCounters {
    /// Reads that it served.
    pub reads: u64,
    /// Bytes of them.
    pub bytes_read: u64,
    /// Writes, zeroes and trims that it did.
    pub writes: u64,
    /// Bytes of writes.
    pub bytes_written: u64,
    /// Flushes.
    pub flushes: u64,
    /// Failed requests.
    pub errors: u64,
    /// Under way.
    pub in_flight: u32,
}

/// How a leg is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LegReport {
    /// As configured; of a leg that is not configured, its label.
    pub name: String,
    /// As configured; none of a leg that is not.
    pub uris: Vec<String>,
    /// The host's volume; `None`: the leg is not configured.
    pub volume: Option<u16>,
    /// Which one it is.
    pub slot: Option<u8>,
    /// Its identifier, by the mirror's superblock; `None`: it is none of the mirror's legs.
    pub id: Option<Id>,
    /// How it is.
    pub status: LegStatus,
    /// It has a path that can be used now.
    pub reachable: bool,
    /// The user took it out: it returns only when told to.
    pub admin_offline: bool,
    /// Its file was cut short: it returns only when told to.
    pub cut_short: bool,
    /// It is smaller now than the mirror needs.
    pub small: bool,
    /// It could not write more blocks than can be recorded, also when it was rebuilt: it returns
    /// only when told to.
    pub stuck: bool,
    /// It is to be tried again now.
    pub due: bool,
    /// Why it is unusable, or left.
    pub why: Option<String>,
    /// As the machine has it.
    pub facts: Option<LegFacts>,
    /// Counters.
    pub counters: LegCounters,
    /// It is being rebuilt: since when, ns, and how many regions it lacked then.
    pub rebuild: Option<(u64, u64)>,
}

impl LegReport {
    /// Whether its file was cut short while it was the last leg in sync, which it still is.
    pub fn is_cut_and_last(&self) -> bool {
        self.facts.is_some_and(|facts| facts.cut_short)
    }

    /// Whether it may be taken out by hand.
    ///
    /// # Errors
    /// Why not: only it has some blocks.
    pub fn may_leave(&self) -> Result<(), String> {
        let only = self.facts.and_then(|facts| facts.last_copy);
        super::messages::may_leave(self.slot.unwrap_or(0), only)
    }

    /// Whether it is in sync, and serves all that it has.
    pub fn serves(&self) -> bool {
        let well = self.why.is_none() || self.has_bad_blocks();
        self.status == LegStatus::InSync && well
    }

    /// Whether it is in sync but for blocks that it could not write, and serves all others.
    pub fn has_bad_blocks(&self) -> bool {
        let facts = self.facts.filter(|facts| facts.in_sync && !facts.lapsed);
        facts.is_some_and(|facts| facts.bad.0 > 0)
    }
}

/// How a mirror is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorReport {
    /// State.
    pub state: MirrorState,
    /// Why it was not begun when it was last told to ([`MirrorOrder::Begin`]).
    pub not_begun: Option<String>,
    /// How often it was not started, for whatever reason.
    pub refusals: u64,
    /// The name of the mirror that its legs are of, where it was not started for that name or its
    /// identifier.
    pub other_name: Option<Name>,
    /// How it starts was decided, and its owner's record is being written.
    pub acquiring: bool,
    /// Slots of the legs in sync without which it started by itself.
    pub started_without: Vec<u8>,
    /// Changes wait until its lineage is recorded ([`RecordRequest::Keep`]).
    pub waits_for_record: bool,
    /// Slots, as bits, whose leg was removed, though its superblocks could not be overwritten.
    pub unwiped: u16,
    /// Slots, as bits, of new legs whose addition does not stand on the legs yet.
    pub adding: u16,
    /// The same of legs that are to be removed.
    pub removing: u16,
    /// The latest superblock, once it runs; its properties are the latest that were set.
    pub superblock: Option<Superblock>,
    /// Its properties are on its legs, durably.
    pub kept: bool,
    /// In force.
    pub policy: Policy,
    /// In force.
    pub knobs: Knobs,
    /// Legs, those that are configured first.
    pub legs: Vec<LegReport>,
    /// How far legs in sync are with being made alike, while they may differ.
    pub resync: Option<Resync>,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// How many there are.
    pub regions: u64,
    /// The volume that was to be a leg last, and why it is none, if it is none.
    pub not_added: Option<(u16, String)>,
    /// The last order that was to be taken back, and whether it was; `None`: another order came
    /// since.
    pub taken_back: Option<(Pending, bool)>,
    /// Result of the last order to grow: its size, or why it stays as it is.
    pub grown: Option<Result<u64, String>>,
    /// Result of the last check.
    pub checked: Option<CheckReport>,
    /// The check under way: since when, ns, and its result so far.
    pub checking: Option<(u64, CheckReport)>,
    /// How fast is copied in the background at least and at most, and now, bytes per second.
    pub speed: Speed,
    /// The same.
    pub rate: Option<u64>,
    /// It is being acquired, and the owner's record waits until then for writes of this host's
    /// previous engine (T9), ns.
    pub gate_until_ns: Option<u64>,
    /// It is being acquired: its owner before, while that one's heartbeats are watched for, and how
    /// long that takes in all, ns.
    pub watched: Option<(Label, u64)>,
    /// Changes wait until then, as the owner before did not release the mirror (T9), ns.
    pub held_until_ns: Option<u64>,
}

impl MirrorReport {
    /// The mirror, where it is known.
    pub fn id(&self) -> Option<Id> {
        self.superblock.map(|it| it.mirror)
    }
}
