//! Faults of one kind at one place at the same time: what holds there is made of all that go on, so
//! that the end of one does not undo another.
use super::disk::USUAL_NS;
use super::mirror::deep;
use super::prelude::*;
use super::world::State;
use engine::target::Faults;

/// Bytes that who reads little by little reads at a time.
const SIPS: [u64; 3] = [300, 1500, 6000];
/// Bytes that may be under way where that is hardly anything.
const SMALL_WINDOW: u64 = 1000;

impl Course<'_> {
    /// Faults of some kinds that go on, with when they end, and about whom.
    pub(super) fn ongoing(&self, kinds: &[Kind]) -> Vec<(Fault, u64, Whom)> {
        let all = self
            .plan
            .faults
            .iter()
            .zip(&self.until_ns)
            .zip(&self.going_on);
        let those = all.filter(|((fault, _), _)| kinds.contains(&fault.kind));
        let those = those.filter_map(|((fault, &end_ns), whom)| Some((*fault, end_ns, (*whom)?)));
        those.collect()
    }

    /// Whether such a fault of a process of the target goes on.
    pub(super) fn goes_on(&self, kind: Kind, target: usize) -> bool {
        let mut those = self.ongoing(&[kind]).into_iter();
        those.any(|(_, _, whom)| whom.target == target)
    }

    /// How wires are doing.
    pub(super) fn set_wires(&mut self) {
        let of_paths = [Kind::Slow, Kind::Damage, Kind::Trickle, Kind::Full];
        let of_clients = [Kind::ClientSlow, Kind::ClientFull];
        for state in self.rig.world.wires.values_mut() {
            (state.slow_ns, state.damages) = (0, 0);
            for way in &mut state.ways {
                (way.sip, way.window) = (0, 0);
            }
        }
        for (fault, _, whom) in self.ongoing(&of_paths) {
            for wire in self.rig.wires(whom.host, whom.address) {
                spoil(self.rig.world.wires.entry(wire).or_default(), &fault);
            }
        }
        for (fault, _, whom) in self.ongoing(&of_clients) {
            for wire in self.rig.client_wires(whom.host) {
                spoil(self.rig.world.wires.entry(wire).or_default(), &fault);
            }
        }
    }

    /// How long devices take.
    pub(super) fn set_disks(&mut self) {
        let deep = self.ongoing(&[Kind::DeepQueue]).first().map(|it| {
            let since_ns = it.1 - it.0.lasts_ns;
            (since_ns, deep::most_ns(&it.0))
        });
        let slow = self.ongoing(&[Kind::SlowDisk]);
        let slow = |disk| slow.iter().any(|it| self.rig.disk_of(it.2.target) == disk);
        let delays: Vec<bool> = (0..self.rig.world.disks.len()).map(slow).collect();
        for (disk, slow) in self.rig.world.disks.iter_mut().zip(delays) {
            disk.delay_ns = match slow {
                true => (1_000_000, 50_000_000),
                false => USUAL_NS,
            };
            disk.in_turn = deep;
        }
    }

    /// How large the namespace is at a target.
    pub(super) fn set_size(&mut self, target: usize) {
        let blocks = make::blocks(&self.plan.layout);
        let those = self.ongoing(&[Kind::Resize]);
        let last = those.iter().rfind(|(_, _, whom)| whom.target == target);
        let size = match last {
            Some((fault, ..)) if bit(fault) => blocks * 2,
            Some(_) => blocks - blocks / 4,
            None => blocks,
        };
        let size = self.shrunk_to(target).map_or(size, |it| it.min(size));
        self.rig.sizes[target] = size;
        self.target(target, TargetControl::Resize(1, size));
    }

    /// Which ANA state a port has.
    pub(super) fn set_ana(&mut self, target: usize, port: u16) {
        let those = self.ongoing(&[Kind::Ana]);
        let mut here = those
            .iter()
            .filter(|it| (it.2.target, it.2.port) == (target, port));
        let last = here.next_back();
        let state = last.map_or(AnaState::Optimized, |(fault, ..)| ana(fault));
        self.target(target, TargetControl::Ana(port, state));
    }

    /// Sets the faults of a port's commands.
    pub(super) fn set_faults(&mut self, target: usize, port: u16) {
        let kinds = [Kind::LateWrites, Kind::Hang, Kind::Mute, Kind::Status];
        let mut all = Faults::default();
        for (fault, end_ns, whom) in self.ongoing(&kinds) {
            if (whom.target, whom.port) != (target, port) {
                continue;
            }
            let it = super::harm::faults(&self.plan.layout, &fault, end_ns);
            all.errors.extend(it.errors);
            match fault.kind {
                Kind::LateWrites => {
                    all.hold_writes_until_ns = all.hold_writes_until_ns.max(end_ns);
                    all.late_writes_ns = it.late_writes_ns;
                }
                Kind::Hang => all.hang_rate = it.hang_rate,
                Kind::Mute => all.mute_until_ns = all.mute_until_ns.max(end_ns),
                _ if it.short_rate != Faults::default().short_rate => {
                    all.short_rate = it.short_rate;
                }
                _ => {}
            }
        }
        self.target(target, TargetControl::Faults(port, all));
    }
}

/// The state that such a fault brings.
pub(super) fn ana(fault: &Fault) -> AnaState {
    let states = [
        AnaState::NonOptimized,
        AnaState::Inaccessible,
        AnaState::PersistentLoss,
        AnaState::Change,
    ];
    states[fault.whom as usize / 64 % states.len()]
}

/// Applies a fault to a wire.
fn spoil(state: &mut State, fault: &Fault) {
    let way = usize::from(bit(fault));
    match fault.kind {
        Kind::Slow => state.slow_ns = 1_000_000,
        Kind::Damage => state.damages = 20,
        Kind::ClientSlow if fault.whom & 128 != 0 => state.slow_ns = 1_000_000,
        Kind::Trickle | Kind::ClientSlow => {
            state.ways[way].sip = SIPS[fault.whom as usize / 128 % SIPS.len()];
        }
        _ => state
            .ways
            .iter_mut()
            .for_each(|way| way.window = SMALL_WINDOW),
    }
}
