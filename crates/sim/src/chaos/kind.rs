//! Kinds of faults, and their scopes.

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// All connections of a host over one path are reset.
    Reset,
    /// Of one core.
    ResetCore,
    /// Nothing passes between a host and a port, and neither end is notified.
    Partition,
    /// Bytes take a hundred times as long.
    Slow,
    /// Bytes are damaged; only with digests.
    Damage,
    /// A port drops all its connections.
    Drop,
    /// A port's ANA state changes, and changes back.
    Ana,
    /// A process of the target dies, and another begins.
    Kill,
    /// As `Kill`, and its controllers' cache is lost.
    Power,
    /// A process of the target stands still, and goes on.
    Freeze,
    /// A core of a host stands still, and goes on.
    FreezeHost,
    /// A host dies, and begins again.
    KillHost,
    /// A host stops in order, and begins again.
    StopHost,
    /// Another policy.
    Policy,
    /// Devices take long.
    SlowDisk,
    /// Writes are executed after their connection is gone, as long as that may be.
    LateWrites,
    /// One end of a path's connections is gone, and the other does not hear of it; or those of its
    /// I/O queues are forgotten on the way, and neither end hears of it.
    HalfOpen,
    /// Nothing passes between a host and a port one way, or nothing large.
    OneWay,
    /// One end of a path's connections reads little by little.
    Trickle,
    /// Hardly anything may be under way on a path: what is sent waits until it is read.
    Full,
    /// Applications read nothing of what they are told.
    Unread,
    /// Some blocks can't be read.
    Media,
    /// Writes find no space.
    NoSpace,
    /// Requests fail in passing, done or not.
    Transient,
    /// A path is failed by hand, and restored.
    FailPath,
    /// A path is drained by hand, and restored.
    DrainPath,
    /// A path is removed, and added again.
    RemovePath,
    /// A second path to the same port is added, and removed.
    AddPath,
    /// The namespace has another size at one controller, and then the old one.
    Resize,
    /// A process of the target begins anew with another namespace, and once more with its own.
    Away,
    /// Another policy with unusual knobs.
    Knobs,
    /// Some commands of a port hang.
    Hang,
    /// A port says nothing.
    Mute,
    /// A port answers some commands with what routes and busy controllers say; perhaps some reads
    /// bring less than was asked for.
    Status,
    /// Unrelated clients hold a port's connections.
    Crowd,
    /// Unrelated clients hold an export's connections and its memory.
    Greedy,
    /// All processes of the target die at once.
    KillAll,
    /// A host stops in order, and its applications read nothing.
    StopUnread,
    /// A path is not told of by discovery, and told of again.
    Withdraw,
    /// As the one before, and each time its notice is lost with its connection.
    Unheard,
    /// Discovery controllers don't refer to each other, and do again.
    Unreferred,
    /// A discovery controller's process dies, and another begins.
    KillTeller,
    /// A discovery controller stands still, and goes on.
    FreezeTeller,
    /// Nothing passes between a host and the discovery controllers, and neither end is notified.
    PartTeller,
    /// Connections of a host's applications are reset.
    ClientReset,
    /// One end of those is gone, and the other does not hear of it before this is over.
    ClientHalfOpen,
    /// Nothing passes between a host and its applications, and neither end is notified.
    ClientPartition,
    /// Bytes between them take a hundred times as long, or one end reads little by little.
    ClientSlow,
    /// Hardly anything may be under way between them.
    ClientFull,
    /// A leg is taken out of its mirror by hand, and returned.
    FailLeg,
    /// A mirror's copies are compared, and perhaps made alike.
    CheckMirror,
    /// One write of a leg's device fails, once: of data, or of what the mirror says there.
    OneWrite,
    /// A leg's namespace becomes smaller, at all its controllers, and what lay behind its new end
    /// is gone; it becomes as large again once the mirror has written down what it noticed.
    Shrink,
    /// A host dies, and what its configuration names as legs is exchanged when it begins again:
    /// the mirror's own, one after the other, or those of another mirror.
    Exchange,
    /// Devices of all legs do one request after the other, more and more slowly.
    DeepQueue,
    /// A leg's device takes requests and executes none for a while, at one process or at all. Those
    /// requests start late, each at its own time, if the clock still allows that (T49).
    HungSubmit,
    /// A host stands still with what its turn gave out, or a thread of its own, in its hands: what
    /// it sends, or a change of a leg that is its own device. It goes on later, or another host
    /// has taken the mirror over by then (T49).
    HaltHost,
}

/// Scope of a kind of fault: all paths whose state matters to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One path of one host.
    Path,
    /// All paths of one host.
    Host,
    /// One port, so one path of every host.
    Port,
    /// One process of the target.
    Target,
    /// Everybody.
    World,
}

impl Kind {
    /// All that happen where there is no mirror.
    pub const ALL: [Self; 49] = [
        Self::Reset,
        Self::ResetCore,
        Self::Partition,
        Self::Slow,
        Self::Damage,
        Self::Drop,
        Self::Ana,
        Self::Kill,
        Self::Power,
        Self::Freeze,
        Self::FreezeHost,
        Self::KillHost,
        Self::StopHost,
        Self::Policy,
        Self::SlowDisk,
        Self::LateWrites,
        Self::HalfOpen,
        Self::OneWay,
        Self::Trickle,
        Self::Full,
        Self::Unread,
        Self::Media,
        Self::NoSpace,
        Self::Transient,
        Self::FailPath,
        Self::DrainPath,
        Self::RemovePath,
        Self::AddPath,
        Self::Resize,
        Self::Away,
        Self::Knobs,
        Self::Hang,
        Self::Mute,
        Self::Status,
        Self::Crowd,
        Self::Greedy,
        Self::KillAll,
        Self::StopUnread,
        Self::Withdraw,
        Self::Unheard,
        Self::Unreferred,
        Self::KillTeller,
        Self::FreezeTeller,
        Self::PartTeller,
        Self::ClientReset,
        Self::ClientHalfOpen,
        Self::ClientPartition,
        Self::ClientSlow,
        Self::ClientFull,
    ];

    /// Those of mirrors.
    pub const OF_MIRRORS: [Self; 8] = [
        Self::FailLeg,
        Self::CheckMirror,
        Self::OneWrite,
        Self::Shrink,
        Self::Exchange,
        Self::DeepQueue,
        Self::HungSubmit,
        Self::HaltHost,
    ];

    /// All that happen in worlds with a mirror.
    pub fn of_mirror_worlds() -> impl Iterator<Item = Self> {
        let all = Self::ALL.into_iter().chain(Self::OF_MIRRORS);
        all.filter(|kind| super::mirror::ample::is_known(*kind))
    }

    /// Of those, so many can happen in every world; the others need discovery.
    pub(super) const EVERYWHERE: usize = 38;
    /// See there.
    pub(super) const OF_DISCOVERY: &[Self] = Self::LATER.split_at(6).0;
    /// Those of connections of applications.
    pub(super) const OF_CLIENTS: &[Self] = Self::LATER.split_at(6).1;
    const LATER: &[Self] = Self::ALL.split_at(Self::EVERYWHERE).1;

    /// Of those, the first worlds knew so many.
    pub(super) const FIRST: usize = 16;

    /// Returns its scope.
    pub fn scope(self) -> Scope {
        match self {
            Self::Reset
            | Self::ResetCore
            | Self::Partition
            | Self::Slow
            | Self::Damage
            | Self::HalfOpen
            | Self::OneWay
            | Self::Trickle
            | Self::Full
            | Self::FailPath
            | Self::DrainPath
            | Self::RemovePath
            | Self::AddPath => Scope::Path,
            Self::FreezeHost
            | Self::KillHost
            | Self::StopHost
            | Self::Policy
            | Self::Unread
            | Self::Knobs
            | Self::Greedy
            | Self::StopUnread
            | Self::PartTeller
            | Self::ClientReset
            | Self::ClientHalfOpen
            | Self::ClientPartition
            | Self::ClientSlow
            | Self::ClientFull
            | Self::CheckMirror
            | Self::HaltHost
            | Self::Exchange => Scope::Host,
            Self::Drop
            | Self::Ana
            | Self::LateWrites
            | Self::Hang
            | Self::Mute
            | Self::Status
            | Self::Crowd
            | Self::Withdraw
            | Self::Unheard => Scope::Port,
            Self::Kill
            | Self::Power
            | Self::Freeze
            | Self::Resize
            | Self::Away
            | Self::FailLeg
            | Self::OneWrite
            | Self::HungSubmit
            | Self::Shrink => Scope::Target,
            Self::DeepQueue
            | Self::SlowDisk
            | Self::Media
            | Self::NoSpace
            | Self::Transient
            | Self::KillAll => Scope::World,
            Self::Unreferred | Self::KillTeller | Self::FreezeTeller => Scope::World,
        }
    }
}
