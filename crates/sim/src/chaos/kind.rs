//! Kinds of faults, and their scopes.
use super::prelude::*;
use alloc::format;

/// Declares [`Kind`], with the scope of each.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $scope:ident,)*) => {
        /// Kind of a fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            const EACH: &[Self] = &[$(Self::$kind),*];

            /// Returns its scope.
            pub fn scope(self) -> Scope {
                match self {
                    $(Self::$kind => Scope::$scope,)*
                }
            }
        }
    };
}

kinds! {
    /// All connections of a host over one path are reset.
    Reset: Path,
    /// Of one core.
    ResetCore: Path,
    /// Nothing passes between a host and a port, and neither end is notified.
    Partition: Path,
    /// Bytes take a hundred times as long.
    Slow: Path,
    /// Bytes are damaged; only with digests.
    Damage: Path,
    /// A port drops all its connections.
    Drop: Port,
    /// A port's ANA state changes, and changes back.
    Ana: Port,
    /// A process of the target dies, and another begins.
    Kill: Target,
    /// As `Kill`, and its controllers' cache is lost.
    Power: Target,
    /// A process of the target stands still, and goes on.
    Freeze: Target,
    /// A core of a host stands still, and goes on.
    FreezeHost: Host,
    /// A host dies, and begins again.
    KillHost: Host,
    /// A host stops in order, and begins again.
    StopHost: Host,
    /// Another policy.
    Policy: Host,
    /// Devices take long.
    SlowDisk: World,
    /// Writes are executed after their connection is gone, as long as that may be.
    LateWrites: Port,
    /// One end of a path's connections is gone, and the other does not hear of it. In a form of its
    /// own, `forgotten-idle-connection`, those of its I/O queues are forgotten on the way, and
    /// neither end hears of it.
    HalfOpen: Path,
    /// Nothing passes between a host and a port one way. In a form of its own,
    /// `one-way-loss-by-size`, nothing large does.
    OneWay: Path,
    /// One end of a path's connections reads little by little.
    Trickle: Path,
    /// Hardly anything may be under way on a path: what is sent waits until it is read.
    Full: Path,
    /// Applications read nothing of what they are told.
    Unread: Host,
    /// Some blocks can't be read.
    Media: World,
    /// Writes find no space.
    NoSpace: World,
    /// Requests fail in passing, done or not.
    Transient: World,
    /// A path is failed by hand, and restored.
    FailPath: Path,
    /// A path is drained by hand, and restored.
    DrainPath: Path,
    /// A path is removed, and added again.
    RemovePath: Path,
    /// A second path to the same port is added, and removed.
    AddPath: Path,
    /// The namespace has another size at one controller, and then the old one.
    Resize: Target,
    /// A process of the target begins anew with another namespace, and once more with its own.
    Away: Target,
    /// Another policy with unusual knobs.
    Knobs: Host,
    /// Some commands of a port hang.
    Hang: Port,
    /// A port says nothing.
    Mute: Port,
    /// A port answers some commands with what routes and busy controllers say; perhaps some reads
    /// bring less than was asked for.
    Status: Port,
    /// Unrelated clients hold a port's connections.
    Crowd: Port,
    /// Unrelated clients hold an export's connections and its memory.
    Greedy: Host,
    /// All processes of the target die at once.
    KillAll: World,
    /// A host stops in order, and its applications read nothing.
    StopUnread: Host,
    /// A path is not told of by discovery, and told of again.
    Withdraw: Port,
    /// As the one before, and each time its notice is lost with its connection.
    Unheard: Port,
    /// Discovery controllers don't refer to each other, and do again.
    Unreferred: World,
    /// A discovery controller's process dies, and another begins.
    KillTeller: World,
    /// A discovery controller stands still, and goes on.
    FreezeTeller: World,
    /// Nothing passes between a host and the discovery controllers, and neither end is notified.
    PartTeller: Host,
    /// Connections of a host's applications are reset.
    ClientReset: Host,
    /// One end of those is gone, and the other does not hear of it before this is over.
    ClientHalfOpen: Host,
    /// Nothing passes between a host and its applications, and neither end is notified.
    ClientPartition: Host,
    /// Bytes between them take a hundred times as long, or one end reads little by little.
    ClientSlow: Host,
    /// Hardly anything may be under way between them.
    ClientFull: Host,
    /// A reload takes an export over NVMe/TCP away from a host's applications, and returns it: the
    /// namespace, the port, or the subsystem.
    Unexport: Host,
    /// A leg is taken out of its mirror by hand, and returned.
    FailLeg: Target,
    /// A mirror's copies are compared, and perhaps made alike.
    CheckMirror: Host,
    /// One write of a leg's device fails, once: of data, or of what the mirror says there.
    OneWrite: Target,
    /// A leg's namespace becomes smaller, at all its controllers, and what lay behind its new end
    /// is gone; it becomes as large again once the mirror has written down what it noticed.
    Shrink: Target,
    /// A host dies, and what its configuration names as legs is exchanged when it begins again:
    /// the mirror's own, one after the other, or those of another mirror.
    Exchange: Host,
    /// Devices of all legs do one request after the other, more and more slowly.
    DeepQueue: World,
    /// A leg's device takes requests and executes none for a while, at one process or at all. Those
    /// requests start late, each at its own time, if the clock still allows that (T49).
    HungSubmit: Target,
    /// A host stands still with what its turn gave out, or a thread of its own, in its hands: what
    /// it sends, or a change of a leg that is its own device. It goes on later, or another host
    /// has taken the mirror over by then (T49).
    HaltHost: Host,
}

/// Lists kinds in an array.
macro_rules! of_kinds {
    ($($kind:ident)*) => {
        [$(Kind::$kind),*]
    };
}
pub(super) use of_kinds;

/// The first `N` of these.
const fn first<const N: usize>(kinds: &[Kind]) -> [Kind; N] {
    match kinds.first_chunk() {
        Some(first) => *first,
        None => panic!("fewer kinds"),
    }
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
    /// Returns its name in reports: `KillHost` is `kill-host`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.push(letter.to_ascii_lowercase());
        }
        name
    }

    /// All that happen where there is no mirror.
    pub const ALL: [Self; 50] = first(Self::EACH);

    /// Those of mirrors.
    pub const OF_MIRRORS: [Self; 8] = first(Self::EACH.split_at(Self::ALL.len()).1);

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
    pub(super) const OF_CLIENTS: &[Self] = Self::LATER.split_at(6).1.split_at(5).0;
    const LATER: &[Self] = Self::ALL.split_at(Self::EVERYWHERE).1;

    /// Of those, the first worlds knew so many.
    pub(super) const FIRST: usize = 16;
}
