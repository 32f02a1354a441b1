//! The configuration of a subsystem, checked, and the state that all its controllers share.
use super::discovery::Discovery;
use super::{NamespaceConfig, SubsystemConfig};
use crate::host::AnaState;
use crate::limits::{
    CONNECTIONS_MAX, IO_ENTRIES_MAX, IO_QUEUES_MAX, NAMESPACES_MAX, NQN_MAX, PORTS_MAX,
    TRANSFER_SHIFT_MAX,
};
use alloc::vec;
use alloc::vec::Vec;

/// An invalid field of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Field.
    pub field: &'static str,
    /// The fault and the valid values.
    pub why: &'static str,
}

impl core::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.field, self.why)
    }
}

impl core::error::Error for ConfigError {}

/// States of the groups through one port.
#[derive(Clone, Debug)]
pub(super) struct PortAna {
    /// In the order of [`Shared::groups`].
    pub groups: Vec<GroupAna>,
    /// Change count of the log.
    pub changes: u64,
}

/// State of one group through one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupAna {
    pub state: AnaState,
    /// Change count of its descriptor.
    pub changes: u64,
}

/// State shared by every controller of the subsystem.
pub(super) struct Shared {
    pub config: SubsystemConfig,
    /// Namespaces whose NSID is inactive.
    pub inactive: Vec<NamespaceConfig>,
    /// Namespaces, those that are inactive included (MNAN).
    pub namespaces_max: u32,
    /// Largest NSID that can be valid (NN).
    pub nsid_max: u32,
    /// Namespaces and groups that hosts are told to make room for, at least.
    pub room: u32,
    /// ANA groups in ascending order, each once: those that have a namespace,
    /// perhaps an inactive one.
    pub groups: Vec<u32>,
    /// By port index.
    pub ana: Vec<PortAna>,
    /// State of discovery.
    pub discovery: Discovery,
    /// In-capsule alignment asked of hosts (CPDA), bytes: 4…128.
    pub alignment: u32,
}

impl Shared {
    pub fn new(mut config: SubsystemConfig) -> Result<Self, ConfigError> {
        check_names(&config)?;
        check_sizes(&config)?;
        config
            .namespaces
            .sort_unstable_by_key(|namespace| namespace.nsid);
        check_namespaces(&config)?;
        let mut groups: Vec<u32> = config.namespaces.iter().map(|n| n.ana_group).collect();
        groups.sort_unstable();
        groups.dedup();
        let ana = config.ports.iter().map(|port| {
            let (state, changes) = (port.ana, 0);
            PortAna {
                groups: vec![GroupAna { state, changes }; groups.len()],
                changes,
            }
        });
        Ok(Self {
            ana: ana.collect(),
            discovery: Discovery::new(config.ports.len()),
            groups,
            alignment: 4,
            inactive: Vec::with_capacity(config.namespaces.len()),
            namespaces_max: config.namespaces.len() as u32,
            nsid_max: config.namespaces.last().map_or(0, |it| it.nsid),
            room: 0,
            config,
        })
    }

    /// An active namespace.
    #[inline]
    pub fn namespace(&self, nsid: u32) -> Option<&NamespaceConfig> {
        let all = &self.config.namespaces;
        // NSIDs are mostly 1, 2, 3, …
        match all.get((nsid as usize).wrapping_sub(1)) {
            Some(namespace) if namespace.nsid == nsid => Some(namespace),
            _ => Some(
                &all[all
                    .binary_search_by_key(&nsid, |namespace| namespace.nsid)
                    .ok()?],
            ),
        }
    }

    /// Its group is there from now on, in the state that the others of each port began with.
    pub fn add_group(&mut self, id: u32) {
        if let Err(at) = self.groups.binary_search(&id) {
            self.groups.insert(at, id);
            for (port, ana) in self.config.ports.iter().zip(&mut self.ana) {
                ana.changes += 1;
                let (state, changes) = (port.ana, ana.changes);
                ana.groups.insert(at, GroupAna { state, changes });
            }
        }
    }

    /// Forgets a group that has no namespace any more.
    pub fn leave_group(&mut self, id: u32) {
        let mut all = self.config.namespaces.iter().chain(&self.inactive);
        if all.any(|it| it.ana_group == id) {
            return;
        }
        if let Ok(at) = self.groups.binary_search(&id) {
            self.groups.remove(at);
            for ana in &mut self.ana {
                ana.groups.remove(at);
                ana.changes += 1;
            }
        }
    }

    /// Largest transfer, bytes.
    #[inline]
    pub fn transfer_max(&self) -> u32 {
        1 << self.config.transfer_shift
    }

    pub fn namespace_mut(&mut self, nsid: u32) -> Option<&mut NamespaceConfig> {
        self.config
            .namespaces
            .iter_mut()
            .find(|namespace| namespace.nsid == nsid)
    }

    /// Index of a group; `None`: no namespace is in it.
    #[inline]
    pub fn group(&self, id: u32) -> Option<usize> {
        // Mostly 1, 2, 3, …
        let guess = (id as usize).wrapping_sub(1);
        match self.groups.get(guess) {
            Some(&there) if there == id => Some(guess),
            _ => self.groups.binary_search(&id).ok(),
        }
    }

    /// Whether the list of hosts admits this one.
    pub fn admits(&self, hostnqn: &str) -> bool {
        self.config.hosts.is_empty() || self.config.hosts.iter().any(|host| host == hostnqn)
    }
}

fn wrong<T>(field: &'static str, why: &'static str) -> Result<T, ConfigError> {
    Err(ConfigError { field, why })
}

/// Whether it is a valid name of a subsystem or host.
pub(super) fn is_nqn(nqn: &str) -> bool {
    nqn.starts_with("nqn.") && nqn.len() <= NQN_MAX
}

fn check_names(config: &SubsystemConfig) -> Result<(), ConfigError> {
    if !is_nqn(&config.nqn) {
        return wrong("nqn", "must begin with \"nqn.\" and have at most 223 bytes");
    }
    if config.nqn == crate::wire::fabrics::DISCOVERY_NQN {
        return wrong(
            "nqn",
            "is the discovery subsystem's, which every target serves beside its own",
        );
    }
    if !config.hosts.iter().all(|host| is_nqn(host)) {
        return wrong(
            "hosts",
            "each must begin with \"nqn.\" and have at most 223 bytes",
        );
    }
    let printable = |text: &str| text.bytes().all(|b| (0x20..0x7f).contains(&b));
    if config.serial.len() > 20 || !printable(&config.serial) {
        return wrong("serial", "must be at most 20 printable ASCII bytes");
    }
    if config.model.len() > 40 || !printable(&config.model) {
        return wrong("model", "must be at most 40 printable ASCII bytes");
    }
    if !config
        .ports
        .iter()
        .all(|p| p.traddr.len() < 256 && p.trsvcid.len() < 32)
    {
        return wrong(
            "ports",
            "an address has at most 255 bytes, a service at most 31",
        );
    }
    Ok(())
}

fn check_sizes(config: &SubsystemConfig) -> Result<(), ConfigError> {
    if config.ports.is_empty() || config.ports.len() > PORTS_MAX {
        return wrong("ports", "there must be 1 to 64");
    }
    if config.cntlid_min == 0 || config.cntlid_min > config.cntlid_max {
        return wrong("cntlid_min", "must be at least 1 and at most cntlid_max");
    }
    if config.cntlid_max > 0xffef {
        return wrong("cntlid_max", "must be at most 65519 (FFEFh)");
    }
    if !(2..=IO_ENTRIES_MAX).contains(&config.entries_max) {
        return wrong("entries_max", "must be 2 to 4096");
    }
    if !(1..=IO_QUEUES_MAX).contains(&config.io_queues_max) {
        return wrong("io_queues_max", "must be 1 to 1024");
    }
    // MDTS 0, one page, would mean no limit.
    if !(13..=TRANSFER_SHIFT_MAX).contains(&config.transfer_shift) {
        return wrong("transfer_shift", "must be 13 to 24 (8 KiB to 16 MiB)");
    }
    let in_capsule = config.in_capsule_max;
    if !in_capsule.is_multiple_of(16) || in_capsule > 1 << config.transfer_shift {
        return wrong(
            "in_capsule_max",
            "must be a multiple of 16 and no larger than a transfer",
        );
    }
    if config.maxh2cdata < 4096 || !config.maxh2cdata.is_multiple_of(4) {
        return wrong("maxh2cdata", "must be a multiple of 4 and at least 4096");
    }
    if !(1..=CONNECTIONS_MAX).contains(&config.connections_max) {
        return wrong("connections_max", "must be 1 to 65536");
    }
    Ok(())
}

/// Expects them sorted.
fn check_namespaces(config: &SubsystemConfig) -> Result<(), ConfigError> {
    let all = &config.namespaces;
    if all.len() > NAMESPACES_MAX {
        return wrong("namespaces", "there may be at most 1024");
    }
    if all.windows(2).any(|pair| pair[0].nsid == pair[1].nsid) {
        return wrong("nsid", "is there twice");
    }
    all.iter().try_for_each(check_namespace)
}

pub(super) fn check_namespace(namespace: &NamespaceConfig) -> Result<(), ConfigError> {
    if namespace.nsid == 0 || namespace.nsid >= 0xffff_fffe {
        return wrong("nsid", "must be 1 to FFFFFFFDh");
    }
    if namespace.ana_group == 0 {
        return wrong("ana_group", "must be at least 1");
    }
    check_blocks(namespace.block_shift, namespace.blocks)
}

/// Whether a namespace can have this many blocks of this size: at least one, and each at an offset
/// in bytes.
pub(super) fn check_blocks(block_shift: u8, blocks: u64) -> Result<(), ConfigError> {
    // Also what makes the bytes of 2^16 blocks fit 32 bits (io.rs, `blocks`).
    if !matches!(block_shift, 9 | 12) {
        return wrong("block_shift", "must be 9 (512 bytes) or 12 (4096 bytes)");
    }
    if blocks == 0 || blocks > (i64::MAX as u64) >> block_shift {
        return wrong("blocks", "must be at least 1 and below 2^63 bytes in all");
    }
    Ok(())
}
