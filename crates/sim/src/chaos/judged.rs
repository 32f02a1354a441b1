//! Which checkers had something to judge in a world: one that is excused everywhere finds nothing.
use super::prelude::*;
use Family::{Mirrors, Plain};

/// Families of worlds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Those without a mirror.
    Plain,
    /// Those with one: counts of legs are not compared with those of applications.
    Mirrors,
}

/// Declares [`Check`]: each with its name for people, and the families in which it has something to
/// judge.
macro_rules! checks {
    ($($(#[$doc:meta])* $check:ident: $name:literal, $families:expr;)*) => {
        /// Checks at the end of a world.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Check {
            $($(#[$doc])* $check,)*
        }

        impl Check {
            /// For people.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$check => $name,)*
                }
            }

            /// Those of a family, in their order.
            pub fn of(family: Family) -> Vec<Self> {
                let all = [$((Self::$check, &$families[..])),*];
                let those = all.into_iter().filter(|it| it.1.contains(&family));
                those.map(|it| it.0).collect()
            }
        }
    };
}

checks! {
    /// Requests of a host that failed, each with its own excuse or none.
    Failures: "failures", [Plain, Mirrors];
    /// Blocks of which a read saw a written value.
    Blocks: "blocks", [Plain, Mirrors];
    /// As `Blocks`, after a loss of caches.
    Durable: "durable", [Plain, Mirrors];
    /// An export counts exactly what its clients were told, in one life of its host at least.
    Export: "export", [Plain];
    /// Paths count exactly the bytes of what clients were told, in one life of their host at least.
    Paths: "paths", [Plain];
    /// Counts of a life that ended, or in which requests were cut off, are within their bounds.
    Bounds: "bounds", [Plain];
    /// Devices did what all paths of all lives count.
    Devices: "devices", [Plain];
    /// Ports have the connections that are there.
    Ports: "ports", [Plain];
    /// Hosts whose process at the end had requests have no memory in use.
    HostMemory: "host-memory", [Plain, Mirrors];
    /// Targets whose process at the end has connections have none.
    TargetMemory: "target-memory", [Plain, Mirrors];
    /// A host had applications on several cores.
    Cores: "several-cores", [Plain];
    /// Reads saw what several had written at a time.
    Crowds: "crowds", [Plain];
    /// So they did in blocks of which each write was executed once at most.
    Once: "once", [Plain];
    /// Writes of those were executed twice.
    Behind: "behind", [Plain];
    /// Writes that were cut off, and were over at a known time.
    Orphans: "orphans", [Plain, Mirrors];
    /// Applications were NVMe/TCP hosts, and their requests ended.
    Hosts: "nvme-hosts", [Plain, Mirrors];
    /// Those found that their export was away, and nothing was done over it then.
    Unexported: "unexported", [Plain];
    /// Reads of blocks that are zeroed and deallocated too.
    Zeroes: "zeroes", [Plain];
    /// A host with discovery uses the paths of its log.
    Discovery: "discovery", [Plain];
    /// With nothing wrong, requests were fast and on all paths.
    Exercise: "exercise", [Plain, Mirrors];
    /// While the world went on, targets had memory at their devices, and cores much under way.
    Peaks: "peaks", [Plain, Mirrors];
    /// Some legs of a mirror without the others would have come up, while another was not in sync.
    Plug: "plug", [Mirrors];
    /// A leg lost with its cache what was in it, and what another one had.
    Heir: "heir", [Mirrors];
    /// A request of a mirror failed with an error.
    Excuse: "excuse", [Mirrors];
    /// Legs of a mirror that had been out of sync were compared at rest.
    Alike: "alike", [Mirrors];
    /// A mirror was taken over while changes waited for what the host's process before had sent.
    Gate: "gate", [Mirrors];
    /// A leg was put back to an older state of itself.
    PutBack: "put-back", [Mirrors];
    /// A leg lost what lay behind its new end.
    Shrunk: "shrunk", [Mirrors];
    /// A host began with exchanged legs, or those of another mirror.
    Exchanged: "exchanged", [Mirrors];
    /// Legs were slow, and had much to do.
    Deep: "deep", [Mirrors];
    /// A request that a device took while it hung was late, and was not executed.
    Hung: "hung", [Mirrors];
    /// A host was taken over while it stood still with changes of its own devices in its hands,
    /// and did not make them when it went on.
    Overtaken: "overtaken", [Mirrors];
}
