//! Do two paths lead to one namespace? Decided from what each shows, for the [`Head`](crate::Head)
//! before it merges them, and again after a reconnect (T32).
//!
//! # Contract
//! Two paths are one namespace only if everything agrees (T31): subsystem NQN, NSID, command set,
//! and *every* unique identifier that either shows, of which there must be at least one; both call
//! the namespace shared; and they are different controllers. Size and block size must agree too
//! (T33). Devices without such facts are one only with themselves.
use alloc::string::String;
use core::fmt;
use policy::PathIndex;

/// Destination of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A namespace of a subsystem.
    Namespace(Namespace),
    /// A local device, by its number.
    Device(u16),
}

/// A namespace as one controller shows it. Identifiers are zero where it shows none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// Identifier of the controller within the subsystem.
    pub controller: u16,
    /// NSID.
    pub nsid: u32,
    /// NGUID.
    pub nguid: [u8; 16],
    /// EUI-64.
    pub eui64: [u8; 8],
    /// UUID.
    pub uuid: [u8; 16],
    /// Command set.
    pub command_set: u8,
    /// May be attached to several controllers.
    pub shared: bool,
}

/// Size of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Logical blocks.
    pub blocks: u64,
    /// log2 of the logical block size in bytes.
    pub block_shift: u8,
}

impl Size {
    /// In bytes; saturates.
    pub fn bytes(self) -> u64 {
        self.blocks
            .checked_shl(self.block_shift.into())
            .map_or(u64::MAX, |bytes| {
                if bytes >> self.block_shift == self.blocks {
                    bytes
                } else {
                    u64::MAX
                }
            })
    }
}

/// A path that does not belong beside another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The path that was to be added (or checked again).
    pub path: PathIndex,
    /// The path it disagrees with.
    pub other: PathIndex,
    /// In what.
    pub why: Conflict,
}

/// The difference: first here (the refused path), then there (the path it was compared with).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// One is a namespace, the other a local device.
    Kind,
    /// Two devices.
    Device(u16, u16),
    /// Two subsystem NQNs.
    Subsystem,
    /// Two NSIDs.
    Nsid(u32, u32),
    /// Two NGUIDs.
    Nguid([u8; 16], [u8; 16]),
    /// Two EUI-64s.
    Eui64([u8; 8], [u8; 8]),
    /// Two UUIDs.
    Uuid([u8; 16], [u8; 16]),
    /// No identifier at all, so nothing proves that it is one namespace.
    Unidentified,
    /// Two command sets.
    CommandSet(u8, u8),
    /// The namespace may not be attached to several controllers.
    Private,
    /// Two paths claim to be the same controller.
    Controller(u16),
    /// Two block sizes (log2 of the bytes).
    BlockSize(u8, u8),
    /// Two capacities, blocks.
    Capacity(u64, u64),
    /// One identifier in two subsystems.
    TwoSubsystems,
}

impl Identity {
    /// Whether `self`, on a further path, is the same namespace as `there`.
    ///
    /// # Errors
    /// The first [`Conflict`] found, in the order of the enum.
    pub fn joins(&self, there: &Self) -> Result<(), Conflict> {
        self.same_as(there)?;
        let (Self::Namespace(a), Self::Namespace(b)) = (self, there) else {
            return Ok(());
        };
        if a.unidentified() {
            return Err(Conflict::Unidentified);
        }
        if !(a.shared && b.shared) {
            return Err(Conflict::Private);
        }
        if a.controller == b.controller {
            return Err(Conflict::Controller(a.controller));
        }
        Ok(())
    }

    /// Whether `self` is still what the same path showed `before` (T32). The controller may be new.
    ///
    /// # Errors
    /// The first [`Conflict`] found.
    pub fn same_as(&self, before: &Self) -> Result<(), Conflict> {
        match (self, before) {
            (Self::Namespace(a), Self::Namespace(b)) => a.same_as(b),
            (Self::Device(a), Self::Device(b)) if a == b => Ok(()),
            (Self::Device(a), Self::Device(b)) => Err(Conflict::Device(*a, *b)),
            _ => Err(Conflict::Kind),
        }
    }

    /// Whether `self` may exist beside `there`, a path of *another* volume (T31).
    /// `can_share_controller`: other software drives the controllers of both paths, so two
    /// namespaces may have one; false: a path opens its own association, with a controller of its
    /// own.
    ///
    /// # Errors
    /// [`Conflict::TwoSubsystems`] if two subsystems show one identifier, [`Conflict::Controller`]
    /// if two paths into one subsystem show the same controller and may not.
    pub fn coexists(&self, there: &Self, can_share_controller: bool) -> Result<(), Conflict> {
        let (Self::Namespace(a), Self::Namespace(b)) = (self, there) else {
            return Ok(());
        };
        if a.subsystem == b.subsystem {
            // One namespace through one controller is one path, whichever software drives it.
            let is_shared = can_share_controller && a.nsid != b.nsid;
            if a.controller == b.controller && !is_shared {
                return Err(Conflict::Controller(a.controller));
            }
        } else if shown_twice(&a.nguid, &b.nguid)
            || shown_twice(&a.eui64, &b.eui64)
            || shown_twice(&a.uuid, &b.uuid)
        {
            return Err(Conflict::TwoSubsystems);
        }
        Ok(())
    }
}

impl Namespace {
    /// Whether both are one namespace, whichever controllers show it.
    pub fn is_same(&self, there: &Self) -> bool {
        self.same_as(there).is_ok()
    }

    fn unidentified(&self) -> bool {
        self.nguid == [0; 16] && self.eui64 == [0; 8] && self.uuid == [0; 16]
    }

    fn same_as(&self, there: &Self) -> Result<(), Conflict> {
        if self.subsystem != there.subsystem {
            Err(Conflict::Subsystem)
        } else if self.nsid != there.nsid {
            Err(Conflict::Nsid(self.nsid, there.nsid))
        } else if self.nguid != there.nguid {
            Err(Conflict::Nguid(self.nguid, there.nguid))
        } else if self.eui64 != there.eui64 {
            Err(Conflict::Eui64(self.eui64, there.eui64))
        } else if self.uuid != there.uuid {
            Err(Conflict::Uuid(self.uuid, there.uuid))
        } else if self.command_set != there.command_set {
            Err(Conflict::CommandSet(self.command_set, there.command_set))
        } else {
            Ok(())
        }
    }
}

/// Whether both show this identifier, and the same.
fn shown_twice<const N: usize>(a: &[u8; N], b: &[u8; N]) -> bool {
    a == b && *a != [0; N]
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.iter().all(|&byte| byte == 0) {
            return f.write_str("none");
        }
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A [`Conflict`] of a path with what it showed itself before (T32).
#[derive(Clone, Copy, Debug)]
pub struct Changed(pub Conflict);

/// How the two sides of a conflict are called, and what to do about two namespaces.
struct Sides {
    here: &'static str,
    there: &'static str,
    other: &'static str,
}

const TWO_PATHS: Sides = Sides {
    here: "here",
    there: "there",
    other: "not one namespace; give each its own volume",
};

const ONE_PATH: Sides = Sides {
    here: "now",
    there: "before",
    other: "not the same namespace; bring back what was there, or give this one its own volume",
};

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.say(f, &TWO_PATHS)
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.say(f, &ONE_PATH)
    }
}

impl Conflict {
    fn say(&self, f: &mut fmt::Formatter<'_>, sides: &Sides) -> fmt::Result {
        let Sides { here, there, other } = sides;
        let ids = |f: &mut fmt::Formatter<'_>, what: &str, a: &[u8], b: &[u8]| {
            write!(f, "{what} {} {here}, {} {there}: {other}", Hex(a), Hex(b))
        };
        match self {
            Self::Kind => write!(f, "a local device and an NVMe namespace: {other}"),
            Self::Device(a, b) => write!(f, "device {a} {here}, {b} {there}: {other}"),
            Self::Subsystem => write!(f, "the subsystem NQNs differ: {other}"),
            Self::Nsid(a, b) => write!(f, "NSID {a} {here}, {b} {there}: {other}"),
            Self::Nguid(a, b) => ids(f, "NGUID", a, b),
            Self::Eui64(a, b) => ids(f, "EUI-64", a, b),
            Self::Uuid(a, b) => ids(f, "UUID", a, b),
            Self::Unidentified => f.write_str(
                "the namespace shows no NGUID, EUI-64 or UUID, so nothing proves that both paths \
                 lead to it: give it an identifier on the target, or use one path",
            ),
            Self::CommandSet(a, b) => {
                write!(f, "command set {a} {here}, {b} {there}: {other}")
            }
            Self::Private => f.write_str(
                "the namespace is private to one controller: make it shared on the target, or \
                 use one path",
            ),
            Self::Controller(id) => write!(
                f,
                "both claim to be controller {id} of the subsystem: give the target's processes \
                 disjoint ranges of controller ids (braid target: cntlid = [1, 999] in one \
                 configuration, cntlid = [1000, 1999] in the other)"
            ),
            Self::BlockSize(a, b) => write!(
                f,
                "blocks of {} bytes {here}, {} {there}: format them alike",
                1u64.checked_shl((*a).into()).unwrap_or(0),
                1u64.checked_shl((*b).into()).unwrap_or(0)
            ),
            Self::Capacity(a, b) => {
                write!(f, "{a} blocks {here}, {b} {there}: give them one size")
            }
            Self::TwoSubsystems => f.write_str(
                "one namespace identifier in two subsystems: give each namespace its own",
            ),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "path {} refused beside path {}: {}",
            self.path.0, self.other.0, self.why
        )
    }
}

impl core::error::Error for Refused {}

#[cfg(test)]
mod tests;
