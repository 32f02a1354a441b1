//! How mirrors and their legs are doing (rows B2, B5).
use super::{Health, Report, View};
use crate::control::rpc::ControlError;
use crate::run::events::Kind;
use crate::run::events::watch::Shown;
use crate::run::latency;
use crate::run::mirrors::PAUSED;
use engine::LatencyHistogram;
use engine::mirror::{LegReport, LegStatus, MirrorReport, MirrorState};
use mirror::machine::Speed;
use serde_json::{Value, json};

/// Why a leg of a mirror that can only be read serves nothing: its leaving is never written down.
const NOT_READ: &str = "not read: a newer braid wrote the mirror, and one leg serves all reads";

impl Report<'_> {
    /// As its core has it.
    pub(in crate::run) fn of_mirror(&self, volume: u16) -> Option<&MirrorReport> {
        let mut cores = self.cores.iter();
        cores.find_map(|core| core.mirrors.get(&volume))
    }

    /// Number of a mirror at the moment of this report.
    ///
    /// # Errors
    /// There is no such volume, or it is none.
    pub(in crate::run) fn mirror_named(&self, name: &str) -> Result<u16, ControlError> {
        self.state.mirror(name)
    }

    /// The policy in force; `None`: of a mirror that does not run, whose legs say it.
    pub(super) fn policy(&self, volume: u16) -> Option<String> {
        let of = &self.state.volumes[volume];
        if !of.of.is_mirror() {
            return Some(of.of.policy.to_string());
        }
        let mirror = self.of_mirror(volume);
        let known = mirror.filter(|it| it.superblock.is_some());
        known.map(|it| it.policy.to_string())
    }

    pub(super) fn mirror_health(&self, volume: u16, view: View) -> Health {
        let Some(it) = self.of_mirror(volume) else {
            return Health::Down;
        };
        let in_sync = it.legs.iter().filter(|leg| leg.serves()).count();
        // Legs under maintenance are not missed, unless none serves.
        let watched = |leg: &&LegReport| view.misses(&self.leg_maintenance(leg));
        let legs = || it.legs.iter().filter(watched);
        let bad = legs().any(LegReport::has_bad_blocks);
        let lacks = legs().any(|leg| !leg.serves());
        // Of the last one what is left can be used.
        match &it.state {
            MirrorState::Running if it.legs.iter().any(LegReport::is_cut_and_last) => {
                Health::Degraded
            }
            MirrorState::Running if in_sync == 0 => Health::Down,
            MirrorState::Running if lacks || bad => Health::Degraded,
            MirrorState::Running if it.waits_for_record => Health::Degraded,
            MirrorState::Running if legs().any(|leg| self.leg_damage(leg).is_some()) => {
                Health::Degraded
            }
            MirrorState::Running if legs().any(|leg| !self.leg_alarms(leg, view).is_empty()) => {
                Health::Degraded
            }
            MirrorState::Running => Health::Ok,
            _ => Health::Down,
        }
    }

    /// Describes recent damage in transit on the paths of a leg.
    fn leg_damage(&self, leg: &LegReport) -> Option<String> {
        let volume = leg
            .volume
            .filter(|volume| self.state.volumes.has(*volume))?;
        self.damages(volume).next()
    }

    /// States of a mirror and its legs.
    pub(super) fn mirror_states(&self, volume: u16, name: &str) -> Vec<Shown> {
        let Some(it) = self.of_mirror(volume) else {
            return Vec::new();
        };
        let shown = |kind, leg, state, reason| Shown {
            kind,
            volume: name.to_owned(),
            name: leg,
            state,
            reason,
        };
        let why = self.mirror_state(volume);
        let mirror = shown(Kind::Mirror, None, phase(&it.state), why);
        let legs = it.legs.iter().map(|leg| {
            let of = leg.volume.filter(|volume| self.state.volumes.has(*volume));
            let of = of.and_then(|volume| self.state.volumes[volume].of.leg());
            let of = of.map_or_else(|| leg.name.to_string(), |it| it.to_string());
            let why = leg.why.as_deref().map(String::from);
            let why = why.filter(|_| !leg.serves());
            shown(Kind::Leg, Some(of), leg.status.name(), why)
        });
        [mirror].into_iter().chain(legs).collect()
    }

    /// Why a mirror does not serve; none where it does, or is none.
    pub(super) fn mirror_state(&self, volume: u16) -> Option<String> {
        let it = self.of_mirror(volume)?;
        let gate_ns = it.gate_until_ns.map(left_ns).filter(|left| *left > 0);
        match &it.state {
            MirrorState::Running => None,
            MirrorState::Assembling if let Some(left_ns) = gate_ns => Some(format!(
                "its owner's record waits {} s more: the engine before this one did not stop in \
                 order, and what it had sent to the legs may be executed as late as that",
                left_ns.div_ceil(1_000_000_000)
            )),
            MirrorState::Assembling if let Some((owner, whole_ns)) = &it.watched => Some(format!(
                "it waits to see whether {owner}, who has it by what its legs say, still beats: \
                 {:.1} s in all",
                *whole_ns as f64 / 1e9
            )),
            MirrorState::Assembling => Some("it waits for its legs".into()),
            MirrorState::Stopped => Some("it was stopped".into()),
            MirrorState::Refused(why) | MirrorState::Failed(why) => Some(why.clone()),
        }
    }

    /// Note for users about a mirror that serves.
    pub(super) fn mirror_note(&self, volume: u16) -> Option<String> {
        let it = self.of_mirror(volume)?;
        if it.waits_for_record {
            let why = "changes wait until its state is recorded in the state directory (the log \
                       says if that fails)";
            return Some(why.into());
        }
        let lacks = it.started_without.iter().filter(|slot| {
            let mut legs = it.legs.iter();
            let leg = legs.find(|leg| leg.slot == Some(**slot));
            leg.is_some_and(|leg| leg.status != LegStatus::InSync)
        });
        let lacks: Vec<String> = lacks.map(|slot| format!("leg {slot}")).collect();
        (!lacks.is_empty()).then(|| {
            format!(
                "it started degraded, by itself, without {}, which had all data at the last stop, \
                 and is rebuilt when it returns",
                lacks.join(", ")
            )
        })
    }

    /// The legs of a mirror; none of another volume.
    pub(super) fn legs(&self, volume: u16) -> Vec<Value> {
        let mirror = self.of_mirror(volume);
        let legs = mirror.map(|it| it.legs.iter().map(|leg| self.leg(it, leg)).collect());
        legs.unwrap_or_default()
    }

    /// All that is counted of a mirror.
    pub(in crate::run) fn mirror(&self, volume: u16) -> Value {
        let of = &self.state.volumes[volume].of;
        let it = self.of_mirror(volume);
        let superblock = it.and_then(|it| it.superblock);
        let knobs = it.map_or(self.state.volumes[volume].of.knobs(), |it| it.knobs);
        let values = self.state.volumes[volume].values.iter();
        let policies: Vec<_> = values.map(|it| it.to_string()).collect();
        json!({
            "name": of.name,
            "kind": "mirror",
            "mirror": superblock.map(|it| it.mirror.to_string()),
            "state": self.health(volume, View::Expected).name(),
            "actual": self.health(volume, View::Actual).name(),
            "maintenance": self.maintenance(volume),
            "phase": it.map(|it| phase(&it.state)),
            "why": self.mirror_state(volume),
            "note": self.mirror_note(volume),
            "started_without": it.map(|it| &it.started_without),
            "policy": self.policy(volume),
            "policies": policies,
            "ewma_shift": knobs.ewma_shift,
            "weight_timeout_ns": knobs.weight_timeout_ns,
            "event": superblock.map(|it| it.event),
            "clean": superblock.map(|it| it.clean),
            "regions": it.map(|it| it.regions),
            "region_bytes": it.map(|it| it.region_bytes),
            "unalike": it.map(|it| it.resync.map_or(0, |it| it.left)),
            "resync": it.and_then(resync),
            "checked": it.and_then(|it| it.checked).map(|it| json!({
                "bytes": it.bytes,
                "differences": it.differences,
                "unreadable": it.unreadable,
                "repaired": it.repaired,
                "skipped": it.skipped,
                "complete": it.complete,
                "alone": it.alone,
                "changed": it.changed,
                "from": it.from,
                "first": it.first.iter().flatten().map(|(leg, start, end)| json!({
                    "leg": leg, "start": start, "end": end,
                })).collect::<Vec<_>>(),
            })),
            "check": it.and_then(check),
            "speed": it.filter(|_| superblock.is_some()).map(|it| json!({
                "floor": it.speed.floor,
                "ceiling": Some(it.speed.ceiling).filter(|it| *it < Speed::default().ceiling),
                "paused": it.speed == PAUSED,
                "now": it.rate,
            })),
            "held_ns": it.and_then(|it| it.held_until_ns).map(left_ns),
            "legs": self.legs(volume),
            "exports": self.exports(volume),
        })
    }

    /// Latencies of a leg: on all paths of its volume, by group.
    fn latency_of_paths(&self, volume: u16) -> [LatencyHistogram; 3] {
        let mut all: [LatencyHistogram; 3] = Default::default();
        for path in 0..self.state.volumes[volume].of.paths.len() {
            let groups = all.iter_mut().zip(self.latency(volume, path));
            groups.for_each(|(sum, more)| sum.add(&more));
        }
        all
    }

    fn leg(&self, mirror: &MirrorReport, leg: &LegReport) -> Value {
        let volume = leg.volume.filter(|volume| self.state.volumes.has(*volume));
        let name = volume.map(|volume| self.state.volumes[volume].of.name.clone());
        let lacks = lacks(leg);
        let rebuilding = leg.status == LegStatus::Rebuilding && mirror.regions > 0;
        let rebuilt = lacks.filter(|_| rebuilding);
        let rebuilt = rebuilt.map(|lacks| 1.0 - lacks as f64 / mirror.regions as f64);
        let read_only = mirror
            .superblock
            .is_some_and(|it| it.features.read_only != 0);
        let unused = read_only && leg.facts.is_some_and(|it| it.leaving);
        let why = leg
            .why
            .as_deref()
            .map(|why| if unused { NOT_READ } else { why });
        let late = volume.filter(|_| leg.status == LegStatus::Missing);
        let late = late.and_then(|it| {
            let it = &self.state.volumes[it];
            it.entries().absent().next()?.absence()
        });
        let why = late.as_deref().or(why);
        let it = &leg.counters;
        json!({
            "slot": leg.slot,
            "name": volume.and_then(|volume| self.state.volumes[volume].of.leg()),
            "uri": leg.name,
            "volume": name,
            "state": leg.status.name(),
            "why": why,
            "damage": self.leg_damage(leg),
            "alarms": self.leg_alarms(leg, View::Expected),
            "maintenance": self.leg_maintenance(leg),
            "returning": returns(leg),
            "rebuilt": rebuilt,
            "progress": progress(mirror, leg),
            "cut_at": leg.facts.and_then(|facts| facts.cut_end),
            "lacks_bytes": lacks.map(|lacks| lacks * mirror.region_bytes),
            "reads": it.reads,
            "writes": it.writes,
            "flushes": it.flushes,
            "bytes_read": it.bytes_read,
            "bytes_written": it.bytes_written,
            "inflight": it.in_flight,
            "latency": volume.map(|volume| latency::json(&self.latency_of_paths(volume))),
            "errors": it.errors,
            "read_errors": leg.facts.map(|facts| facts.errors),
            "repaired": leg.facts.map(|facts| facts.repaired),
            "rescued": leg.facts.map(|facts| facts.rescued),
            "bad": leg.facts.filter(|facts| facts.bad.0 > 0).map(|facts| json!({
                "ranges": facts.bad.0,
                "bytes": facts.bad.1,
                "first": facts.bad.2.map(|it| json!({"start": it.start, "end": it.end})),
            })),
            "stuck": leg.stuck,
        })
    }
}

/// How far a mirror is, in a word.
fn phase(state: &MirrorState) -> &'static str {
    match state {
        MirrorState::Assembling => "gathering",
        MirrorState::Refused(_) => "refused",
        MirrorState::Running => "running",
        MirrorState::Stopped => "stopped",
        MirrorState::Failed(_) => "failed",
    }
}

/// How many regions a leg lacks; `None`: of one that is away that is counted when it returns.
fn lacks(leg: &LegReport) -> Option<u64> {
    let counted = matches!(leg.status, LegStatus::InSync | LegStatus::Rebuilding);
    leg.facts.filter(|_| counted).map(|facts| facts.lacks)
}

/// Whether it is on its way back into the mirror, or was just told to return.
fn returns(leg: &LegReport) -> bool {
    leg.due || leg.facts.is_some_and(|facts| facts.returning)
}

/// From now until then; `u64::MAX`: nothing bounds it.
fn left_ns(until_ns: u64) -> u64 {
    match until_ns {
        u64::MAX => u64::MAX,
        until_ns => until_ns.saturating_sub(runtime::now_ns()),
    }
}

/// How far a rebuild is, and how fast since it began, unless it is paused.
fn progress(mirror: &MirrorReport, leg: &LegReport) -> Option<Value> {
    let (since_ns, lacked) = leg.rebuild?;
    let facts = leg.facts?;
    let done = lacked.saturating_sub(facts.lacks) * mirror.region_bytes;
    let mut far = far(since_ns, done, lacked * mirror.region_bytes);
    pause(&mut far, mirror.speed == PAUSED);
    // No leg can read what it still lacks: it does not go on by itself.
    far["stuck"] = facts.is_stuck().into();
    if facts.is_stuck() {
        (far["bytes_per_s"], far["left_ns"]) = (Value::Null, Value::Null);
    }
    Some(far)
}

/// The same of making alike what an unclean stop left different.
fn resync(mirror: &MirrorReport) -> Option<Value> {
    let it = mirror.resync?;
    let done = it.regions.saturating_sub(it.left) * mirror.region_bytes;
    let mut far = far(it.since_ns, done, it.regions * mirror.region_bytes);
    pause(&mut far, mirror.speed == PAUSED);
    Some(far)
}

/// The same of a check.
fn check(mirror: &MirrorReport) -> Option<Value> {
    let (since_ns, report) = mirror.checking?;
    let all = mirror.superblock?.geometry.bytes;
    let mut far = far(since_ns, report.bytes, all);
    pause(&mut far, mirror.speed == PAUSED || report.paused);
    Some(far)
}

/// A paused copy has no rate.
fn pause(far: &mut Value, paused: bool) {
    far["paused"] = paused.into();
    if paused {
        (far["bytes_per_s"], far["left_ns"]) = (Value::Null, Value::Null);
    }
}

/// `done` bytes of `all` since then.
fn far(since_ns: u64, done: u64, all: u64) -> Value {
    let elapsed_ns = runtime::now_ns().saturating_sub(since_ns).max(1);
    let rate = u128::from(done) * 1_000_000_000 / u128::from(elapsed_ns);
    let left = u128::from(all.saturating_sub(done)) * 1_000_000_000;
    json!({
        "bytes": done,
        "of_bytes": all,
        "done": done as f64 / all.max(1) as f64,
        "bytes_per_s": u64::try_from(rate).ok(),
        "left_ns": left.checked_div(rate).and_then(|left| u64::try_from(left).ok()),
    })
}
