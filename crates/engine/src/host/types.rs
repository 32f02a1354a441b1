//! Configuration of a host engine, its requests, and its events.
use super::change::{Change, Changed, Order};
pub use super::kind::{Attached, PathKind};
use super::recovery::Recovery;
use crate::limits::{IO_MAX, VOLUMES_MAX};
use crate::machine::Span;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use block::Key;
use core::fmt;
use policy::PathIndex;
use policy::limits::PATHS_MAX;

/// A path with its attributes.
#[derive(Clone, Debug)]
pub struct PathConfig {
    /// As the user wrote it; used in errors and statistics.
    pub uri: String,
    /// Its kind.
    pub kind: PathKind,
    /// NUMA distance from this core (smaller is nearer).
    pub distance: u32,
    /// Relative throughput, 0…100, for `service-time`.
    pub throughput: u8,
    /// Numbers that it may have, one bit each; it gets the lowest that is free, and keeps it.
    pub numbers: u64,
}

impl PathConfig {
    /// [`PathConfig::numbers`] of a path that may have any.
    pub const ANY_NUMBER: u64 = u64::MAX;

    /// The lowest number that it may have and that is free.
    pub(super) fn number(&self, is_free: impl Fn(PathIndex) -> bool) -> Option<PathIndex> {
        let all = (0..PATHS_MAX as u8).filter(|number| self.numbers >> number & 1 == 1);
        all.map(PathIndex).find(|number| is_free(*number))
    }
}

/// A volume over its paths.
#[derive(Clone, Debug)]
pub struct VolumeConfig {
    /// Name.
    pub name: String,
    /// Policy.
    pub policy: policy::Policy,
    /// Knobs.
    pub knobs: policy::Knobs,
    /// Paths, 1…64.
    pub paths: Vec<PathConfig>,
    /// Rules for paths that fail.
    pub recovery: Recovery,
}

/// Configuration of a host engine.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// This core, 0…; core 0 owns the admin connections.
    pub core: u16,
    /// Cores in all (queues asked of every controller).
    pub cores: u16,
    /// Our identity; one on all paths (T35).
    pub identity: nvme::host::HostIdentity,
    /// Digests.
    pub digests: nvme::host::Digests,
    /// Keep-alive time-out, ms; 0 = none. Shorter than `io_timeout_ns` (T12).
    pub kato_ms: u32,
    /// Longest wait for connecting and for admin commands.
    pub connect_timeout_ns: u64,
    /// Longest wait for one command, from when it is given to its queue.
    pub io_timeout_ns: u64,
    /// Most I/Os in flight on this core, 1…[`IO_MAX`].
    pub io_max: u32,
    /// Memory of the engine's own, for payload that must not land in a caller's buffer: a part of
    /// the arena that no caller uses, 4 KiB aligned. Its `len` 0: none, and what needs it isn't
    /// done. [`SCRATCH_BYTES`](crate::limits::SCRATCH_BYTES) is plenty.
    pub scratch: Span,
    /// Volumes.
    pub volumes: Vec<VolumeConfig>,
}

/// A field of the configuration that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Field.
    pub field: &'static str,
    /// Correction of the mistake.
    pub why: &'static str,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.field, self.why)
    }
}

impl core::error::Error for ConfigError {}

impl HostConfig {
    /// Whether an engine can be made of this.
    ///
    /// # Errors
    /// The first field that can't be, and what it should be.
    pub fn check(&self) -> Result<(), ConfigError> {
        let kato_ns = u64::from(self.kato_ms) * 1_000_000;
        let volumes = &self.volumes;
        let rules = [
            (
                self.core < self.cores,
                "core",
                "must be below the number of cores",
            ),
            (
                self.connect_timeout_ns > 0,
                "connect_timeout",
                "must not be 0",
            ),
            (self.io_timeout_ns > 0, "io_timeout", "must not be 0"),
            (
                kato_ns == 0 || kato_ns < self.io_timeout_ns,
                "kato",
                "must be shorter than io_timeout, or 0",
            ),
            (
                (1..=IO_MAX).contains(&self.io_max),
                "io_max",
                "must be 1…65535",
            ),
            (
                self.scratch.at.is_multiple_of(4096),
                "scratch",
                "must begin at a multiple of 4 KiB",
            ),
            (
                volumes.len() <= VOLUMES_MAX,
                "volumes",
                "must be at most 256",
            ),
        ];
        hold(&rules)?;
        volumes.iter().try_for_each(VolumeConfig::check)
    }
}

impl VolumeConfig {
    /// Whether a volume can be made of this.
    ///
    /// # Errors
    /// The first field that can't be, and what it should be.
    pub fn check(&self) -> Result<(), ConfigError> {
        hold(&[
            (
                // Paths may come later, where lost ones come back.
                (usize::from(!self.recovery.enabled)..=policy::limits::PATHS_MAX)
                    .contains(&self.paths.len()),
                "paths",
                "must be 1…64 for every volume",
            ),
            (
                self.numbers().is_some(),
                "numbers",
                "must leave every path a number of its own",
            ),
            (
                self.paths.iter().all(has_blocks),
                "block_shift",
                "must be 9…16 for every device",
            ),
            (
                self.knobs.check().is_ok(),
                "knobs",
                "must be in range: ewma_shift 0…8, weight_timeout up to 2^32-1 s",
            ),
            (
                self.recovery.is_possible(),
                "reconnect",
                "must be above 0, and its limit not below it",
            ),
        ])
    }

    /// The numbers of its paths, in order; `None`: one gets none.
    pub(super) fn numbers(&self) -> Option<Vec<PathIndex>> {
        let mut taken = 0_u64;
        let number = |path: &PathConfig| {
            let number = path.number(|it| taken >> it.0 & 1 == 0)?;
            taken |= 1 << number.0;
            Some(number)
        };
        self.paths.iter().map(number).collect()
    }
}

/// The first rule that doesn't hold.
fn hold(rules: &[(bool, &'static str, &'static str)]) -> Result<(), ConfigError> {
    match rules.iter().find(|(holds, ..)| !holds) {
        Some(&(_, field, why)) => Err(ConfigError { field, why }),
        None => Ok(()),
    }
}

/// Whether a local device has blocks of a size we know.
pub(super) fn has_blocks(path: &PathConfig) -> bool {
    match path.kind {
        // Checked when they were learnt.
        PathKind::NvmeTcp { .. } | PathKind::Passthrough { .. } => true,
        PathKind::Device { block_shift, .. } => (9..=16).contains(&block_shift),
    }
}

/// Operation on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoOp {
    /// Read into the span.
    Read,
    /// Write the span.
    Write {
        /// Force unit access.
        fua: bool,
    },
    /// Flush.
    Flush,
    /// Zero the range.
    WriteZeroes {
        /// Its space may be given up: only where [`hole_bytes`](block::IoLimits::hole_bytes) is
        /// not 0.
        deallocate: bool,
    },
    /// Deallocate the range.
    Deallocate,
}

/// One I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Volume index.
    pub volume: u16,
    /// Operation to do.
    pub op: IoOp,
    /// First byte; a multiple of the block size.
    pub offset: u64,
    /// Bytes; a multiple of the block size.
    pub length: u32,
    /// Memory (`len == length` where the op has data).
    pub span: Span,
    /// Reader's identity (B1).
    pub source: u64,
    /// Comes back.
    pub cookie: u64,
}

/// Hints about an I/O beside its range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// By this path, if the volume's head would use it now and nothing keeps it from going at once.
    pub on: Option<PathIndex>,
    /// A read whose bytes will be written back around what is new: it waits where that write would
    /// for an engine before this one, which may yet write these bytes (T9). No other change of them
    /// may be under way.
    pub for_change: bool,
    /// A read whose bytes another volume has as well: no path is asked twice that let it time out.
    pub elsewhere: bool,
    /// How long it takes says nothing of its path.
    pub untimed: bool,
    /// The caller does it otherwise where the device refuses or fails it: that is no error to count
    /// or to report.
    pub replaceable: bool,
    /// A read that [`Multipath::cut`](super::Multipath::cut) doesn't end: it waits for a path as
    /// ever.
    pub past_cut: bool,
    /// A change that does not wait for what an engine before this one had sent (T9): whoever asks
    /// knows what comes of it if something of that is executed after it, over it.
    pub past_gate: bool,
}

/// Why an I/O was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// `io_max` in flight: try again after a completion.
    Full,
    /// The volume isn't ready, or the engine is stopping.
    NotReady,
    /// Not block aligned, empty, larger than [`VolumeInfo::transfer_max`], or the span doesn't fit.
    Range,
    /// Beyond the end of the volume, which may have been larger before.
    PastEnd {
        /// First byte asked for.
        offset: u64,
        /// Bytes.
        length: u32,
        /// The volume's, now.
        bytes: u64,
    },
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("as many I/Os as io_max are in flight"),
            Self::NotReady => f.write_str("the volume isn't ready"),
            Self::Range => f.write_str("not block aligned, empty, or too large"),
            Self::PastEnd {
                offset,
                length,
                bytes,
            } => write!(
                f,
                "{length} bytes at {offset} are beyond the end of the volume, which has {bytes}"
            ),
        }
    }
}

impl core::error::Error for SubmitError {}

/// The path of an I/O that reached none.
pub const NO_PATH: PathIndex = PathIndex(u8::MAX);

/// The end of one I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoDone {
    /// As submitted.
    pub cookie: u64,
    /// Its outcome.
    pub outcome: multipath::Outcome,
    /// The path that served it; [`NO_PATH`] if it reached none. Of an I/O that was cut: that of the
    /// first piece that failed, else of the last one.
    pub path: PathIndex,
    /// Completion − submission, including the wait for a full path (row A2: from the start of the
    /// request). The policy's sample is the same, but per piece where the I/O was cut.
    pub latency_ns: u64,
}

/// Size and limits of a volume that is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Bytes.
    pub bytes: u64,
    /// log2 of the logical block size.
    pub block_shift: u8,
    /// Largest single I/O that reads or writes, bytes. A single command carries less, and
    /// changes with the paths: `Volume::limits`.
    pub transfer_max: u32,
    /// It takes no changes.
    pub read_only: bool,
}

/// A path between two attempts to connect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected {
    /// Volume index.
    pub volume: u16,
    /// Path.
    pub path: PathIndex,
    /// The number of its address.
    pub address: u32,
    /// Attempts that have failed since it lived as long as the longest wait.
    pub failures: u32,
    /// Its controller has acknowledged writes that were not flushed, and nothing else flushes
    /// them: a flush elsewhere is none for these (T13).
    pub in_doubt: bool,
}

/// A lost path between two attempts to connect it, as core 0 sees it: no core has a connection of
/// it, and none is made before `left_ns` have passed, unless a verb asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconnectWait {
    /// Time until the next attempt, ns.
    pub left_ns: u64,
    /// As of [`Disconnected::failures`].
    pub failures: u32,
    /// As of [`Disconnected::in_doubt`].
    pub in_doubt: bool,
}

/// Events of a host engine for its owner.
#[derive(Clone, Debug)]
pub enum HostEvent {
    /// An I/O ended.
    Done(IoDone),
    /// A mirror's I/O of this cookie ends next, and a leg still has its memory (T10): this loan.
    Lent(u64, Key),
    /// All memory of that loan is the owner's again, which was lent with this cookie.
    Back(u64, Key),
    /// All paths of a volume were checked and are connected on this core, but those that
    /// [`HostEvent::Failed`] was said of.
    Ready(u16, VolumeInfo),
    /// The size of a volume is another one now (T33): a path showed a smaller one, or all that are
    /// live agree on a larger one. I/O beyond it is refused from now on. Or it is read-only now, or
    /// no longer.
    Resized(u16, VolumeInfo),
    /// A volume has lost a path, or never got it: one line with what, which, why, what to do. Said
    /// again only when an attempt to connect it fails for another reason. Without recovery, a
    /// volume that has no path left is never [`HostEvent::Ready`], or fails all I/O from now on.
    Failed(u16, String),
    /// A mirror was refused, or a volume is not opened, and a user has to do something about it:
    /// why; or, with nothing, it may start by itself from now on. Of volumes core 0 says it.
    Refused(u16, Option<String>),
    /// A mirror runs, and has this identifier on its legs ([`MirrorConfig::known`]).
    ///
    /// [`MirrorConfig::known`]: crate::mirror::MirrorConfig::known
    Mirror(u16, mirror::Id),
    /// A mirror asks for its record, or has something to be kept in it.
    Record(u16, crate::mirror::RecordRequest),
    /// With recovery: no path of the volume is live now, though all were tried; all are tried again
    /// and again. I/O waits, or the volume is not yet ready.
    NoPath(u16),
    /// With recovery: a path that was lost is live again; or something of a mirror is well again,
    /// or was done; one line.
    Returned(u16, String),
    /// Core 0, where [`Recovery::marks`]: a controller is to be used whose bound must be kept
    /// durably before. Answered by [`HostControl::Marked`] or [`HostControl::Barred`]; until then
    /// the path waits.
    Mark(Mark),
    /// Core 0: a path that asked for a mark waits for none any more: it is used, was lost, or shows
    /// another namespace, for which it asks anew. Volume, [`Recovery::marks`] of it, path.
    MarkEnded(u16, u64, PathIndex),
    /// Core 0, where [`Recovery::marks`]: the first path of a volume can take I/O. From now on the
    /// volume is this namespace, and no path to another one is used. Volume, [`Recovery::marks`] of
    /// it.
    Opened(u16, u64, Box<multipath::Namespace>),
    /// The time to drain is over: so many changes of data and other I/Os of a volume had not ended
    /// and fail. The result of the changes is not known.
    Unfinished {
        /// Volume index.
        volume: u16,
        /// Writes, zeroes, trims.
        changes: u32,
        /// Reads and flushes.
        others: u32,
    },
    /// The engine ends, or the volume leaves, and a path of it may have acknowledged writes that
    /// were not flushed: one line for each. The flush of whoever uses the volume next must cover
    /// them ([`Recovery::unclean_stop_ns`]). Before `Output::Stop`, or [`HostEvent::Removed`].
    Unflushed(u16, String),
    /// Value of [`Recovery::unreported_loss`] for the engine after this one, from now on.
    Loss(u16, bool),
    /// Something about a volume that its user should know; rate limited.
    Warning(u16, String),
    /// As `Warning`, of this core's own I/O: no other core reports it.
    Trouble(u16, String),
    /// Core 0: the answer to the [`HostControl::Change`] of that ticket: what was made, or why not.
    Changed(u64, Result<Changed, String>),
    /// Core 0: nothing on any core refers to a path, or volume, that left; its number may be
    /// another's from now on.
    Freed(u16, Option<PathIndex>),
    /// Core 0: no path on any core leads there, because one left or was refused; the address or
    /// device number may stand for something else from now on.
    Released(PathKind),
    /// Core 0: no connection of a path is left, and it is connected again after its wait: its
    /// address may stand for another one by then.
    Disconnected(Disconnected),
    /// A volume is gone from this core.
    Removed(u16),
    /// The answer to a question about holes, by its name: of [`Devices`](crate::mirror::Devices).
    Extent(u32, crate::machine::DeviceExtent),
    /// For the other cores (core 0 only): pass on as `HostControl::Path`, to all in one order.
    Publish(PathNews),
    /// For core 0 (other cores only): pass on as `HostControl::Path`, in order.
    Report(PathNews),
}

/// Facts that core 0 learnt of one path and the others need to open their queues.
#[derive(Clone, Debug)]
pub struct PathFacts {
    /// Volume index.
    pub volume: u16,
    /// Path.
    pub path: PathIndex,
    /// The controller.
    pub controller: nvme::host::ControllerInfo,
    /// The namespace.
    pub namespace: nvme::host::NamespaceInfo,
}

/// Facts of a path that are in doubt, and must be read again before it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The state of its ANA group.
    Ana,
    /// Its namespace: its controller said that it has none.
    Namespace,
}

/// Messages between cores.
#[derive(Clone, Debug)]
pub enum PathNews {
    /// A path is there, or its facts have changed.
    Found(Box<PathFacts>),
    /// Something else happened to a path of a volume.
    Of(u16, PathIndex, PathEvent),
    /// A flush of a volume has failed on a core, for what the engine before has lost, and its
    /// caller has heard of it.
    LossReported {
        /// Of the volume.
        volume: u16,
        /// Where it failed.
        core: u16,
    },
    /// From core 0: a change of paths or volumes.
    Order(Box<Order>),
    /// To core 0: the sender has done what it was ordered.
    Done {
        /// The order's.
        serial: u32,
        /// Whether the path has acknowledged writes that were not flushed (T13).
        unflushed: bool,
    },
}

/// Messages between cores about a path.
#[derive(Clone, Debug)]
pub enum PathEvent {
    /// Its association is over.
    Lost {
        /// It was at rest, and is only connected anew: it is not to blame.
        renewal: bool,
    },
    /// To core 0: the queue of one core has failed.
    Broken {
        /// As of `Lost`.
        renewal: bool,
    },
    /// To core 0: this of what is known of the path is in doubt (T26).
    Doubt(Doubt),
    /// To core 0: the sender has put it on probation. From core 0: some core has.
    Sick(multipath::health::Why),
    /// From core 0, after `Lost`: its controller was reset, and executes nothing of what it had. So
    /// what is held because of it is released at once (T9).
    Reset,
    /// To core 0: a command of the sender's queue is to be aborted (T12).
    Abort {
        /// Queue.
        sqid: u16,
        /// The command's identifier there.
        cid: u16,
        /// It is a probe.
        probe: bool,
    },
    /// From core 0: what became of that, for the core of the queue.
    Aborted {
        /// Queue.
        sqid: u16,
        /// The command's identifier there.
        cid: u16,
        /// The controller has taken it back.
        aborted: bool,
    },
    /// To core 0: its controller is to be asked how far the blocks from `slba` on are of one kind,
    /// allocated or not.
    AskExtent {
        /// Names the core and its question.
        token: u64,
        /// First block.
        slba: u64,
        /// Blocks; never 0.
        blocks: u64,
    },
    /// From core 0: the answer, for the core that the token names.
    Extent {
        /// As asked.
        token: u64,
        /// Blocks, and whether they are allocated; `None`: it did not say.
        found: Option<(u32, bool)>,
    },
    /// From core 0, after `Closed`: it was lost for too long, and is not tried any more.
    GivenUp,
    /// From core 0, after `Lost`: its controller is being reset, until core 0 gives that up, ns; or
    /// no longer.
    Resetting(Option<u64>),
    /// From core 0: its controller answers nothing until then, ns, and that is no failure (T30).
    Paused(u64),
    /// To core 0, and from it: a core has flushed what an engine before this one may have left in
    /// its controller's cache (T13).
    Flushed,
    /// To core 0, and from it: a flush of its device has failed on this core (T13).
    FlushFailed(u16, Heard),
    /// To core 0, and from it: this core has given up what a lost controller had not flushed, and
    /// its flushes have failed for that (T13).
    WritesGivenUp(u16),
    /// After `Lost`. To core 0: the sender's connections of it are over. From core 0: all are,
    /// since `since_ns`; from then on the bound of held writes counts (T9).
    Closed {
        /// When.
        since_ns: u64,
        /// Whether it had acknowledged writes that were not flushed (T13).
        unflushed: bool,
    },
}

/// Whether somebody has heard that a flush has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The client that asked for it: each other one that is there hears of it too.
    ByClient,
    /// No client waited for it: the next flush fails for it.
    ByNobody,
}

/// A controller that is not used before its bound is kept durably.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Volume index.
    pub volume: u16,
    /// [`Recovery::marks`] of the volume that asks: another one may have its index by the time of
    /// the answer.
    pub serial: u64,
    /// The path that asks.
    pub path: PathIndex,
    /// For so many ns after the end of this engine the controller may execute what it had;
    /// `u64::MAX`: nothing bounds it.
    pub bound_ns: u64,
    /// The namespace that the path shows.
    pub namespace: Box<multipath::Namespace>,
}

/// Why a controller is not used, for users.
#[derive(Clone, Debug)]
pub enum Bar {
    /// Its bound can't be kept now. It waits, and so do the paths behind it.
    Unmarked(String),
    /// Its namespace is not the volume's as things stand. It waits, and the paths behind it have
    /// their turn.
    Foreign(String),
    /// Its namespace is not the volume's: the path is lost for this reason.
    Refused(String),
}

/// Messages to a host engine. Volume indexes are those of the configuration; others are ignored.
#[derive(Clone, Debug)]
pub enum HostControl {
    /// From core 0, or to it.
    Path(PathNews),
    /// Change the policy of a volume. Knobs out of range change nothing and are answered by a
    /// [`HostEvent::Warning`].
    Policy(u16, policy::Policy, policy::Knobs),
    /// Change the policy of a volume to a program, at once with what runs it on this core; without
    /// one `queue-depth` chooses. Knobs as of [`Self::Policy`].
    Program(u16, policy::ProgramId, policy::ProgramSlot, policy::Knobs),
    /// Change what a volume does about paths that fail: its times, repetitions and what puts a path
    /// on probation. All else is as when the volume was made. An impossible change does nothing and
    /// is answered by a [`HostEvent::Warning`].
    Recovery(u16, Recovery),
    /// Relative throughput of a path, 0…100, for `service-time`.
    Throughput(u16, PathIndex, u8),
    /// NUMA distance of a path, for `numa`; smaller is nearer.
    Distance(u16, PathIndex, u32),
    /// The name of a volume in lines about it.
    Rename(u16, String),
    /// I/O that has not ended so many ns from now fails with [`multipath::Outcome::Stopped`]; until
    /// then I/O is taken as before. Said again, the earlier time counts.
    Drain(u64),
    /// To core 0: a change of paths or volumes, that may take `wait_ns`; answered once, by
    /// [`HostEvent::Changed`] with the ticket.
    Change {
        /// Comes back.
        ticket: u64,
        /// The change.
        change: Change,
        /// How long it may take, ns.
        wait_ns: u64,
    },
    /// To core 0: this mark is durable; or can't be, and its user was told. Paths of the volume
    /// that show its namespace are used, and no others.
    Marked(Mark),
    /// To core 0: paths of the volume that show this mark's namespace, and asked, are not used, and
    /// why.
    Barred(Mark, Bar),
    /// No more I/O is taken; what is under way has the time that [`HostControl::Drain`] gave it,
    /// or `connect_timeout_ns` if that never came. Then controllers are shut down in order, then
    /// comes `Output::Stop`. Core 0 shuts the controllers down, so it comes last.
    Stop,
}

/// How a path is doing on this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathState {
    /// Being connected or checked.
    Connecting,
    /// In use.
    Live,
    /// Connected, and not trusted with I/O while there is a better path: it gets probes.
    Probation,
    /// Lost or refused, and tried again.
    Reconnecting,
    /// Connected, and given nothing new, because somebody said so.
    Draining,
    /// Given up until it is restored: somebody said so, or it was lost for too long; or lost
    /// without recovery.
    Failed,
    /// It leaves its volume, or has left.
    Removed,
}

impl PathState {
    /// The word in statistics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Live => "live",
            Self::Probation => "probation",
            Self::Reconnecting => "reconnecting",
            Self::Draining => "draining",
            Self::Failed => "failed",
            Self::Removed => "removed",
        }
    }
}
