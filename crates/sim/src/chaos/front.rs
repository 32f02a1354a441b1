//! Front ends by which applications reach the engine: NBD, or an NVMe/TCP export of the volume.
//!
//! Decides, from a plan and its seed, in which worlds applications are NVMe/TCP hosts, with how
//! many associations, whether beside connections of NBD, and whether they zero and deallocate
//! blocks; and makes the engine's server for them.
//!
//! # Contract
//! Drawn apart from everything else, and after it: worlds whose applications use NBD are as they
//! would be if there were nothing else. The NBD export is there in all worlds, for the unrelated
//! clients.
//!
//! # Limits
//! Applications that change parts of blocks use NBD: NVMe has whole blocks only. Connections
//! between hosts and applications carry no damaged bytes.
use super::client::{NQN, Nvme, ZEROED};
use super::prelude::*;
use alloc::vec;
use core::net::SocketAddr;
use engine::limits::{COMPARE_BYTES, EXPORTS_MAX, ZEROES_BYTES};
use engine::mirror::MIRRORS_FROM;
use engine::{Core, NvmeConfig, NvmePlace};

use nvme::controller::SubsystemConfig;

/// Of worlds in which that can be, so many in so many have NVMe/TCP hosts: a third of all.
const SHARE: (u64, u64) = (2, 5);
/// Most associations to each core.
const ASSOCIATIONS_MAX: u64 = 2;
const TRANSFER_SHIFT: u8 = 14;
/// Bytes of the server's arena, where there is plenty.
const ARENA_BYTES: u64 = 1 << 20;
/// The smallest buffer there.
const BUFFER_MIN: u64 = 4096;
/// Lives of an association whose connections the engine may have at a time.
const LIVES: u32 = 3;
/// How long after a fault an association may end that began in it, ns.
const SILENCE_NS: u64 = 3 * KATO_MS as u64 * 1_000_000;

/// A plan, perhaps with NVMe/TCP hosts.
pub(super) fn plan(plan: &mut Plan, random: &mut Random) {
    let layout = &mut plan.layout;
    if layout.habit.unit != BLOCK as u64 || random.up_to(SHARE.1 - 1) >= SHARE.0 {
        return;
    }
    let associations = 1 + random.up_to(ASSOCIATIONS_MAX - 1) as u32;
    let beside_nbd = random.up_to(2) == 0;
    let least = associations * layout.habit.homes * (1 + u32::from(beside_nbd));
    // The legs of a mirror are compared by other rules.
    let zeroed = layout.mirror.is_none() && random.up_to(1) == 0;
    let first = layout.habit.blocks + layout.habit.crowded;
    layout.habit.connections = layout.habit.connections.max(least);
    layout.habit.front_end = FrontEnd::Nvme(Nvme {
        associations,
        digests: layout.digests(),
        tight: random.up_to(2) == 0,
        beside_nbd,
        zeroes: zeroed.then_some((first, layout.caches)),
    });
}

/// The front end of one of a world's hosts: each has its own blocks that are zeroed.
pub(super) fn of_host(layout: &Layout, number: u64) -> FrontEnd {
    match layout.habit.front_end {
        FrontEnd::Nbd => FrontEnd::Nbd,
        FrontEnd::Nvme(it) => FrontEnd::Nvme(Nvme {
            zeroes: it
                .zeroes
                .map(|(first, caches)| (first + number * ZEROED, caches)),
            ..it
        }),
    }
}

/// Connections that a core takes from NVMe/TCP hosts.
fn connections_max(layout: &Layout, of: Nvme) -> u32 {
    LIVES * (layout.habit.connections + of.associations)
}

/// Bytes of a core's arena that are the NVMe/TCP server's; they come after all others.
pub(super) fn arena_bytes(layout: &Layout) -> u64 {
    match layout.habit.front_end {
        FrontEnd::Nbd => 0,
        FrontEnd::Nvme(it) if it.tight => {
            let connections = u64::from(connections_max(layout, it));
            let own = u64::from(ZEROES_BYTES + COMPARE_BYTES);
            (2 << TRANSFER_SHIFT) + connections * BUFFER_MIN + own
        }
        FrontEnd::Nvme(_) => ARENA_BYTES,
    }
}

/// Listeners of each core that applications connect to, in the order of their addresses.
pub(super) fn listeners(layout: &Layout) -> Vec<u32> {
    match layout.habit.front_end {
        FrontEnd::Nbd => vec![0],
        FrontEnd::Nvme(it) if it.beside_nbd => vec![EXPORTS_MAX, 0],
        FrontEnd::Nvme(_) => vec![EXPORTS_MAX],
    }
}

/// The subsystem that applications reach on a core. How many connections it takes says its place.
pub(super) fn config(layout: &Layout, core: u16) -> NvmeConfig {
    let volume = layout.mirror.map_or(0, |_| MIRRORS_FROM);
    NvmeConfig {
        subsystem: SubsystemConfig {
            nqn: NQN.into(),
            serial: "EXPORT".into(),
            namespaces: vec![make::namespace(1, [0xe1, 0xe2], false)],
            ports: vec![make::port(1, SocketAddr::from(([192, 0, 2, 2], 4420)))],
            transfer_shift: TRANSFER_SHIFT,
            ..make::subsystem(1 + 1000 * core)
        },
        volumes: vec![volume],
    }
}

/// Adds the server to a core that has the volume, if applications need it; its buffers begin there.
pub(super) fn add_server(core: &mut Core, layout: &Layout, number: u16, arena_at: u64) {
    let FrontEnd::Nvme(of) = layout.habit.front_end else {
        return;
    };
    let place = core.reserve_nvme_server(NvmePlace {
        connections: connections_max(layout, of),
        arena_at,
        arena_bytes: arena_bytes(layout),
    });
    let served = core.serve_nvme(place, config(layout, number), 0);
    assert!(served.is_ok(), "an export that can't be: {served:?}");
}

/// Requests of applications that a core has answered, and of these with an error.
pub(super) fn answered(core: &Core, layout: &Layout) -> (u64, u64) {
    let (nbd, nvme) = match layout.habit.front_end {
        FrontEnd::Nbd => (true, false),
        FrontEnd::Nvme(it) => (it.beside_nbd, true),
    };
    let (mut requests, mut errors) = (0, 0);
    if nbd {
        let counters = core.counters(0);
        (requests, errors) = (counters.requests, counters.errors);
    }
    if nvme {
        let stats = core.port_stats(EXPORTS_MAX).unwrap_or_default();
        (requests, errors) = (requests + stats.commands, errors + stats.errors);
    }
    (requests, errors)
}

/// Places of clients and hosts of a core that are taken: each until nothing is left of its
/// connection.
pub(super) fn places(core: &Core) -> usize {
    let hosts = core.targets().map(|it| it.places_taken());
    core.counters(0).clients as usize + hosts.sum::<usize>()
}

impl Course<'_> {
    /// Associations of a host's applications may end because of a fault that begins.
    pub(super) fn silence(&mut self, fault: &Fault, host: usize) {
        let is_nvme = self.plan.layout.habit.front_end != FrontEnd::Nbd;
        let silences = matches!(
            fault.kind,
            Kind::Unread
                | Kind::FreezeHost
                | Kind::HaltHost
                | Kind::ClientHalfOpen
                | Kind::ClientPartition
                | Kind::ClientSlow
                | Kind::ClientFull
        );
        if is_nvme && silences {
            let now_ns = self.rig.world.now_ns;
            let to_ns = now_ns + fault.lasts_ns + SILENCE_NS;
            self.rig.hosts[host].lives.silence(now_ns, to_ns);
        }
    }
}
