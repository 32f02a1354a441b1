//! Which checkers had something to judge in a world: one that is excused everywhere finds nothing.

/// Checks at the end of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Check {
    /// Requests of a host that failed, each with its own excuse or none.
    Failures,
    /// Blocks of which a read saw a written value.
    Blocks,
    /// As `Blocks`, after a loss of caches.
    Durable,
    /// An export counts exactly what its clients were told, in one life of its host at least.
    Export,
    /// Paths count exactly the bytes of what clients were told, in one life of their host at least.
    Paths,
    /// Counts of a life that ended, or in which requests were cut off, are within their bounds.
    Bounds,
    /// Devices did what all paths of all lives count.
    Devices,
    /// Ports have the connections that are there.
    Ports,
    /// Hosts whose process at the end had requests have no memory in use.
    HostMemory,
    /// Targets whose process at the end has connections have none.
    TargetMemory,
    /// A host had applications on several cores.
    Cores,
    /// Reads saw what several had written at a time.
    Crowds,
    /// So they did in blocks of which each write was executed once at most.
    Once,
    /// Writes of those were executed twice.
    Behind,
    /// Writes that were cut off, and were over at a known time.
    Orphans,
    /// A host with discovery uses the paths of its log.
    Discovery,
    /// With nothing wrong, requests were fast and on all paths.
    Exercise,
    /// While the world went on, targets had memory at their devices, and cores much under way.
    Peaks,
    /// Some legs of a mirror without the others would have come up, while another was not in sync.
    Plug,
    /// A leg lost with its cache what was in it, and what another one had.
    Heir,
    /// A request of a mirror failed with an error.
    Excuse,
    /// Legs of a mirror that had been out of sync were compared at rest.
    Alike,
    /// A mirror was taken over while changes waited for what the host's process before had sent.
    Gate,
    /// A leg was put back to an older state of itself.
    PutBack,
    /// A leg lost what lay behind its new end.
    Shrunk,
    /// A host began with exchanged legs, or those of another mirror.
    Exchanged,
    /// Legs were slow, and had much to do.
    Deep,
    /// A request that a device took while it hung was late, and was not executed.
    Hung,
    /// A host was taken over while it stood still with changes of its own devices in its hands,
    /// and did not make them when it went on.
    Overtaken,
}

impl Check {
    /// Those where there is no mirror.
    pub const ALL: [Self; 18] = [
        Self::Failures,
        Self::Blocks,
        Self::Durable,
        Self::Export,
        Self::Paths,
        Self::Bounds,
        Self::Devices,
        Self::Ports,
        Self::HostMemory,
        Self::TargetMemory,
        Self::Cores,
        Self::Crowds,
        Self::Once,
        Self::Behind,
        Self::Orphans,
        Self::Discovery,
        Self::Exercise,
        Self::Peaks,
    ];

    /// Those where there is one: counts of legs are not compared with those of applications.
    pub const OF_MIRRORS: [Self; 19] = [
        Self::Failures,
        Self::Blocks,
        Self::Durable,
        Self::HostMemory,
        Self::TargetMemory,
        Self::Orphans,
        Self::Exercise,
        Self::Peaks,
        Self::Plug,
        Self::Heir,
        Self::Excuse,
        Self::Alike,
        Self::Gate,
        Self::PutBack,
        Self::Shrunk,
        Self::Exchanged,
        Self::Deep,
        Self::Hung,
        Self::Overtaken,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failures => "failures",
            Self::Blocks => "blocks",
            Self::Durable => "durable",
            Self::Export => "export",
            Self::Paths => "paths",
            Self::Bounds => "bounds",
            Self::Devices => "devices",
            Self::Ports => "ports",
            Self::HostMemory => "host-memory",
            Self::TargetMemory => "target-memory",
            Self::Cores => "several-cores",
            Self::Crowds => "crowds",
            Self::Once => "once",
            Self::Behind => "behind",
            Self::Orphans => "orphans",
            Self::Discovery => "discovery",
            Self::Exercise => "exercise",
            Self::Peaks => "peaks",
            Self::Plug => "plug",
            Self::Heir => "heir",
            Self::Excuse => "excuse",
            Self::Alike => "alike",
            Self::Gate => "gate",
            Self::PutBack => "put-back",
            Self::Shrunk => "shrunk",
            Self::Exchanged => "exchanged",
            Self::Deep => "deep",
            Self::Hung => "hung",
            Self::Overtaken => "overtaken",
        }
    }
}
