//! The target's engine: `nvme::controller::Subsystem` behind shaped ports, over devices.
//!
//! `impl Machine for TargetEngine`; listener number = port index; one device per namespace.
//!
//! A command's course: its data arrives in a buffer of the pool (writes, compares) → when it is
//! complete the port's shape says when it may begin → a read finds its buffer, a change waits for
//! those that it overlaps → device → response → the buffer returns.
//! Admin commands don't pass the shape: they are the machine's own.
//!
//! # Contract
//! Nothing is refused for want of memory (T6): a write without a buffer waits, if need be with its
//! connection's stream (`Output::Resume` when it goes on), a read waits at the device's door. The
//! memory that a host can hold is bounded by the pool's shares, so that one that neither sends nor
//! reads starves itself alone, and
//! several that do are given up while others wait (`stall`).
//!
//! A connection that ends, or whose queue a reset or shutdown deletes, takes with it what has not
//! begun (unless [`Faults`] say otherwise); what is at a device ends there, and only then the
//! connection's number is free and the reset acknowledged (T9). All commands of one
//! port that are due at one time begin in the order they came. The figures in
//! [`TargetEngine::board`] are of the last loop turn.
//!
//! # Limits
//! One core. At most `connections_max` connections and a queue's entries on each; all tables are
//! made in `new`, no memory is taken later but for the ranges of a Deallocate.
mod abort;
mod board;
mod commands;
mod connections;
mod execute;
mod faults;
mod front;
mod inject;
mod log;
mod machine;
mod pool;
mod ports;
mod stall;
mod status;

pub use board::{Board, DeviceFailures, FaultStats, PortStats};
pub use faults::{ErrorRule, Faults, Ops, Probability};
pub use log::{Event, Log, Why};

use crate::limits::{BUFFER_MAX, CHANGES_READY, TARGET_COMMANDS_MAX};
use crate::machine::{LocalDevice, Output};
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use block::order::ChangeOrder;
use commands::Commands;
use connections::{Connections, Stop};
use nvme::controller::{ConfigError, Subsystem, SubsystemConfig};
use pool::Pool;
use ports::Port;
use stall::Stalls;

/// Configuration of a target.
#[derive(Clone, Debug)]
pub struct TargetConfig {
    /// The subsystem.
    pub subsystem: SubsystemConfig,
    /// Shape of each port, in the order of the subsystem's ports.
    pub shapes: Vec<shape::Config>,
    /// Device of each namespace, in the order of the subsystem's namespaces.
    pub devices: Vec<LocalDevice>,
    /// Arena bytes for payload.
    pub arena_bytes: u64,
    /// Seed of jitter.
    pub seed: u64,
}

/// Changes while it runs. A change of a port or namespace that is not there does nothing.
#[derive(Clone, Debug)]
pub enum TargetControl {
    /// New shape of a port (index).
    Shape(u16, shape::Config),
    /// ANA state of all groups seen through a port (index).
    Ana(u16, nvme::host::AnaState),
    /// ANA state of one group seen through a port (index).
    AnaGroup(u16, u32, nvme::host::AnaState),
    /// New size of a namespace, blocks.
    Resize(u32, u64),
    /// Drop all connections of a port now (with a reset).
    Drop(u16),
    /// A change of the discovery log; an impossible one does nothing.
    Discovery(nvme::controller::DiscoveryChange),
    /// Disconnect hosts that may not connect any more.
    DisconnectHosts,
    /// New faults of a port (index).
    Faults(u16, Faults),
    /// End.
    Stop,
}

/// The target of one core.
pub struct TargetEngine {
    subsystem: Subsystem,
    /// In order of their NSID.
    namespaces: Vec<Namespace>,
    /// The last one that a namespace was given.
    incarnation: u32,
    ports: Vec<Port>,
    connections: Connections,
    commands: Commands,
    pool: Pool,
    stalls: Stalls,
    /// Of changes that devices have, and that wait for these.
    order: ChangeOrder,
    keeps_order: bool,
    /// Commands that a front end is asked for; `None`: none is.
    recalls: Option<VecDeque<u32>>,
    outputs: VecDeque<Output>,
    stop: Stop,
    board: Arc<Board>,
    log: Arc<Log>,
}

/// Facts of a namespace that the engine needs.
#[derive(Clone, Copy, Debug)]
struct Namespace {
    nsid: u32,
    device: LocalDevice,
    block_shift: u8,
    /// Another one, which no namespace had before, whenever it is added or deactivated: commands
    /// that came before are not for what the NSID has now.
    incarnation: u32,
}

impl TargetEngine {
    /// A target without connections.
    ///
    /// # Errors
    /// Of the subsystem's configuration; or a count that doesn't fit it; or an arena in which two
    /// transfers of the largest size and, for every connection, one of in-capsule size have no
    /// room.
    pub fn new(config: TargetConfig) -> Result<Self, ConfigError> {
        let of = &config.subsystem;
        check(&config)?;
        let (connections, tokens) = (of.connections_max, u32::from(of.entries_max));
        let commands_max = connections as usize * tokens as usize;
        let mut namespaces: Vec<_> = (of.namespaces.iter().zip(&config.devices))
            .map(|(ns, device)| Namespace {
                nsid: ns.nsid,
                device: *device,
                block_shift: ns.block_shift,
                incarnation: 0,
            })
            .collect();
        namespaces.sort_by_key(|ns| ns.nsid);
        let seeds = (0..).map(|port: u64| config.seed.wrapping_add(port << 32));
        let shapes = config.shapes.iter().zip(seeds);
        Ok(TargetEngine {
            namespaces,
            incarnation: 0,
            ports: shapes
                .map(|(shape, seed)| Port::new(*shape, seed, commands_max))
                .collect(),
            connections: Connections::new(connections),
            commands: Commands::new(connections, tokens),
            pool: Pool::new(config.arena_bytes, connections, of.in_capsule_max),
            stalls: Stalls::new(connections),
            order: ChangeOrder::new(0),
            keeps_order: false,
            recalls: None,
            outputs: VecDeque::with_capacity(commands_max + 4 * connections as usize + 1),
            stop: Stop::No,
            board: Arc::new(Board::new(config.shapes.len())),
            log: Arc::new(Log::new()),
            subsystem: Subsystem::new(config.subsystem)?,
        })
    }

    /// Faults of a port (index) from the beginning. Where there is no such port nothing changes.
    pub fn set_faults(&mut self, port: u16, faults: Faults) {
        if let Some(port) = self.ports.get_mut(usize::from(port)) {
            port.faults.configure(faults);
        }
    }

    /// From now on changes that overlap are given to devices one after the other, whichever
    /// connections they came over: one that a device still has of an association that is gone
    /// undoes nothing that comes later (T9). To be called before the first connection; without it
    /// the target is one of those that execute commands in any order.
    pub fn keep_order(&mut self) {
        self.order = ChangeOrder::new(CHANGES_READY);
        self.keeps_order = true;
    }

    /// Log of connections, for other threads.
    pub fn log(&self) -> Arc<Log> {
        self.log.clone()
    }

    /// Counters of one port (index).
    pub fn port_stats(&self, port: u16) -> PortStats {
        self.ports[usize::from(port)].stats
    }

    /// Places of connections that are taken: each until its connection is over, and every command
    /// of it.
    pub fn places_taken(&self) -> usize {
        self.connections.taken()
    }

    /// Bytes of the arena.
    pub fn buffers(&self) -> u64 {
        self.pool.bytes().0
    }

    /// Of these, in no command; perhaps not in one piece.
    pub fn buffers_free(&self) -> u64 {
        self.pool.bytes().1
    }

    /// Requests that devices have failed, of all ports.
    pub fn device_failures(&self) -> u64 {
        let ports = self.ports.iter();
        ports.map(|it| it.stats.device.count_all()).sum()
    }

    /// The ports' counters for other threads, as of the last loop turn.
    pub fn board(&self) -> Arc<Board> {
        self.board.clone()
    }
}

fn check(config: &TargetConfig) -> Result<(), ConfigError> {
    let of = &config.subsystem;
    let error = |field, why| Err(ConfigError { field, why });
    if config.shapes.len() != of.ports.len() {
        return error("shapes", "must be one for each port");
    }
    if config.devices.len() != of.namespaces.len() {
        return error("devices", "must be one for each namespace");
    }
    if u64::from(of.connections_max) * u64::from(of.entries_max) > TARGET_COMMANDS_MAX {
        return error(
            "connections_max",
            "times entries_max must be at most 1048576",
        );
    }
    let transfer = 1u64 << of.transfer_shift.min(63);
    if transfer > u64::from(BUFFER_MAX) || u64::from(of.in_capsule_max) > transfer {
        return error(
            "transfer_shift",
            "is at most 20 (1 MiB), and holds in_capsule_max",
        );
    }
    let reserved = Pool::reserved_bytes(of.connections_max, of.in_capsule_max);
    if config.arena_bytes < 2 * transfer + reserved {
        return error(
            "arena_bytes",
            "must hold two transfers and a capsule of every connection",
        );
    }
    Ok(())
}
