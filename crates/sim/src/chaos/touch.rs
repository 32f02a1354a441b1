//! Which faults touched something: one that damages bytes that are never sent has begun, and is
//! none.
//!
//! # Contract
//! The effect of a fault is counted where it happens ([`Mark`], and the counts of nodes, disks,
//! ports, unrelated clients and users); here it is checked whether the count rose while the fault
//! went on. These counts are used for nothing else: the course of a world does not depend on them.
//!
//! A fault that ends a process, or something that is there, has touched it. A change of an
//! announcement (ANA states, sizes, logs) touches hosts that have a connection then, or make one
//! meanwhile; a change of a policy, a host whose requests begin meanwhile; and a user's request, if
//! it is done.
//!
//! # Limits
//! Of several faults of one kind at one place at a time each has touched what any of them has.
use super::mirror::exchanged::leg_of;
use super::prelude::*;

/// Fate of bytes on their way over a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// A connection was made.
    Made,
    /// It has to wait until something passes again: at all, or in this direction.
    Parted,
    PartedOneWay(usize),
    /// It takes longer.
    Slowed,
    Damaged,
    /// It has arrived and is not read, or not all of it, in this direction.
    Unread(usize),
    Sipped(usize),
    /// There is no room for it.
    Full,
}

/// A fault that has begun.
#[derive(Debug)]
pub struct Begun {
    kind: Kind,
    /// In which states the paths were that it concerns.
    cells: Vec<(Kind, PathState)>,
    /// The count at its beginning, and in which life of the counting process.
    before: Count,
    /// The request of a user of this host because of it.
    ticket: Option<(usize, u64)>,
    touched: bool,
}

/// How often something happened that a fault does, and in which life of who counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    life: u64,
    times: u64,
}

impl World {
    /// A fault of a wire has taken effect.
    pub(super) fn mark(&mut self, wire: Wire, mark: Mark) {
        *self.marks.entry((wire, mark)).or_default() += 1;
    }

    fn marks(&self, wires: &[Wire], mark: Mark) -> u64 {
        let of = |wire: &Wire| self.marks.get(&(*wire, mark)).copied();
        wires.iter().filter_map(of).sum()
    }

    /// Whether a connection is up over one of some wires.
    fn is_up(&self, wires: &[Wire]) -> bool {
        wires.iter().any(|wire| {
            let mut conns = self.nodes[wire.from].open_conns();
            conns.any(|(_, conn)| conn.wire == *wire && !conn.closing && conn.peer.is_some())
        })
    }
}

impl Course<'_> {
    /// A fault is about to begin.
    pub(super) fn expect(&mut self, number: usize, fault: &Fault, whom: Whom) {
        self.report.faults += 1;
        let cells = self.cells(fault.kind, whom);
        self.report.begun.extend(&cells);
        let before = self.count(number, fault, whom).unwrap_or_default();
        let begun = Begun {
            kind: fault.kind,
            cells,
            before,
            ticket: None,
            touched: self.is_there(fault, whom),
        };
        self.begun[number] = Some(begun);
    }

    /// It has begun: a user may have asked for something, with this ticket.
    pub(super) fn asked_for(&mut self, number: usize, host: usize, ticket: u64) {
        if let Some(begun) = &mut self.begun[number] {
            begun.ticket = Some((host, ticket));
        }
    }

    /// Looks whether those that go on have touched something.
    pub(super) fn look(&mut self) {
        for number in 0..self.begun.len() {
            let (Some(begun), Some(whom)) = (&self.begun[number], self.going_on[number]) else {
                continue;
            };
            if begun.touched {
                continue;
            }
            let Some(count) = self.count(number, &self.plan.faults[number], whom) else {
                continue;
            };
            let before = match count.life == begun.before.life {
                true => begun.before.times,
                false => 0, // another process counts from the beginning
            };
            if let Some(begun) = &mut self.begun[number] {
                begun.touched = count.times > before;
            }
        }
    }

    /// The world is over: those that touched something are in the table, and the others are none.
    pub(super) fn note_touched(&mut self) {
        self.look();
        for (begun, fault) in self.begun.iter_mut().zip(&self.plan.faults) {
            let Some(mut begun) = begun.take() else {
                continue;
            };
            let done =
                |(host, ticket): (usize, u64)| self.rig.hosts[host].user.done.contains(&ticket);
            begun.touched |= begun.ticket.is_some_and(done);
            match begun.touched {
                true => {
                    self.report.coverage.append(&mut begun.cells);
                    self.report.names.push(fault.name());
                }
                false => self.report.missed.push(begun.kind),
            }
        }
    }

    /// Whether what it ends is there, or who would hear of it.
    fn is_there(&self, fault: &Fault, whom: Whom) -> bool {
        let world = &self.rig.world;
        match fault.kind {
            // A process there is a condition of their beginning.
            Kind::Reset
            | Kind::ResetCore
            | Kind::Kill
            | Kind::Power
            | Kind::KillAll
            | Kind::Away
            | Kind::KillHost
            | Kind::Exchange
            | Kind::StopHost
            | Kind::StopUnread
            | Kind::KillTeller => true,
            Kind::HalfOpen => world.is_up(&self.rig.wires(whom.host, whom.address)),
            Kind::ClientReset | Kind::ClientHalfOpen | Kind::Unexport => {
                world.is_up(&self.rig.client_wires(whom.host))
            }
            Kind::Ana | Kind::Resize | Kind::Shrink => {
                world.is_up(&self.shown_over(fault.kind, whom))
            }
            Kind::Withdraw | Kind::Unheard | Kind::Unreferred => {
                self.is_news(fault.kind, whom) && world.is_up(&self.rig.discovery_wires(None))
            }
            Kind::FailLeg | Kind::CheckMirror => self.has_mirror(fault.kind, whom),
            _ => false,
        }
    }

    /// Returns how often its effect has happened in its place; `None`: unknown.
    fn count(&self, number: usize, fault: &Fault, whom: Whom) -> Option<Count> {
        let (rig, world) = (&self.rig, &self.rig.world);
        let way = usize::from(bit(fault));
        let path = |mark| world.marks(&rig.wires(whom.host, whom.address), mark);
        let client = |mark| world.marks(&rig.client_wires(whom.host), mark);
        let missed = |node: usize| world.nodes[node].missed;
        let times = match fault.kind {
            Kind::Partition => path(Mark::Parted),
            Kind::OneWay => path(Mark::PartedOneWay(way)),
            Kind::Slow => path(Mark::Slowed),
            Kind::Damage => path(Mark::Damaged),
            Kind::Trickle => path(Mark::Sipped(way)),
            Kind::Full => path(Mark::Full),
            Kind::Unread => client(Mark::Unread(1)),
            Kind::ClientPartition => client(Mark::Parted),
            Kind::ClientSlow if fault.whom & 128 != 0 => client(Mark::Slowed),
            Kind::ClientSlow => client(Mark::Sipped(way)),
            Kind::ClientFull => client(Mark::Full),
            Kind::PartTeller => world.marks(&rig.discovery_wires(Some(whom.host)), Mark::Parted),
            Kind::Freeze => missed(rig.targets[whom.target]),
            Kind::FreezeHost => missed(self.core(fault, whom).from),
            Kind::FreezeTeller => missed(self.teller(fault)),
            Kind::HaltHost => missed(rig.mirror_node(whom.host)),
            Kind::HungSubmit => self.were_hung(fault, whom.target),
            Kind::Ana | Kind::Resize | Kind::Shrink => {
                world.marks(&self.shown_over(fault.kind, whom), Mark::Made)
            }
            Kind::Withdraw | Kind::Unheard | Kind::Unreferred
                if self.begun[number].is_some() || self.is_news(fault.kind, whom) =>
            {
                world.marks(&rig.discovery_wires(None), Mark::Made)
            }
            // It was so already.
            Kind::Withdraw | Kind::Unheard | Kind::Unreferred => u64::MAX,
            Kind::Policy | Kind::Knobs => {
                let client = world.nodes[rig.hosts[whom.host].clients].client();
                client.map_or(0, |client| client.begun)
            }
            Kind::SlowDisk | Kind::DeepQueue => world.disks[rig.disk_of(whom.target)].slowed,
            Kind::Media | Kind::NoSpace | Kind::Transient | Kind::OneWrite => {
                let hit = &world.disks[rig.disk_of(whom.target)].hit;
                u64::from(hit.contains(&(number as u64)))
            }
            Kind::Crowd | Kind::Greedy => match &world.nodes[rig.strangers].body {
                Body::Stranger(stranger) => u64::from(stranger.came.contains(&(number as u64))),
                _ => 0,
            },
            Kind::Drop | Kind::LateWrites | Kind::Hang | Kind::Mute | Kind::Status => {
                return self.injected(fault.kind, whom);
            }
            _ => return None,
        };
        Some(Count { life: 0, times })
    }

    /// Returns a port's count of its faults; `None`: it is not there.
    fn injected(&self, kind: Kind, whom: Whom) -> Option<Count> {
        let node = &self.rig.world.nodes[self.rig.targets[whom.target]];
        let stats = node.target()?.port_stats(whom.port).faults;
        let times = match kind {
            Kind::Drop => stats.drops,
            Kind::LateWrites => stats.held_writes + stats.late_writes,
            Kind::Hang => stats.hung,
            Kind::Mute => stats.muted,
            _ => stats.errors,
        };
        let life = node.life;
        Some(Count { life, times })
    }

    /// The wires over which hosts are shown what such a fault changes: those to a port, or to all
    /// of a process.
    fn shown_over(&self, kind: Kind, whom: Whom) -> Vec<Wire> {
        let concerns = |it: &Whom| match kind {
            Kind::Ana => it.address == whom.address,
            _ => it.target == whom.target,
        };
        let those = self.all_whom().filter(concerns);
        those
            .flat_map(|it| self.rig.wires(it.host, it.address))
            .collect()
    }

    /// Whether a mirror runs that can do what is asked for.
    fn has_mirror(&self, kind: Kind, whom: Whom) -> bool {
        let engine = self.rig.mirror_core(whom.host);
        let Some(report) = engine.and_then(|it| it.mirror(MIRRORS_FROM)) else {
            return false;
        };
        let is_in = |leg: usize| leg_of(&report.legs, leg).map(|it| it.status);
        report.state == MirrorState::Running
            && match kind {
                Kind::FailLeg => is_in(self.rig.disk_of(whom.target)) == Some(LegStatus::InSync),
                _ => report.checking.is_none(),
            }
    }
}
