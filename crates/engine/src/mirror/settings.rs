//! Settings of users that outlast this engine: properties on the legs (row B6).
//!
//! # Contract
//! `aside`: numbers of legs that return only when told to, with commas between them.
//! `rebuild-floor`, `rebuild-ceiling`: speed of copies in the background, bytes per second. A value
//! that means nothing is as none; so is an empty one. Each is set by an event.
use super::device::{MirrorDevice, Phase};
use alloc::format;
use alloc::string::{String, ToString};
use mirror::limits::LEGS_MAX;
use mirror::machine::{Legs, Speed};
use mirror::{BadText, Properties};

const OFFLINE: &str = "aside";
const FLOOR: &str = "rebuild-floor";
const CEILING: &str = "rebuild-ceiling";

/// Legs that were failed, and not restored since.
pub fn admin_offline(properties: &Properties) -> Legs {
    let words = properties.value(OFFLINE).unwrap_or_default().split(',');
    let slots = words.filter_map(|word| word.parse().ok());
    slots.filter(|slot| usize::from(*slot) < LEGS_MAX).collect()
}

/// How fast is copied in the background: as was set last, else as in `usual`.
pub fn speed_of(properties: &Properties, usual: Speed) -> Speed {
    kept_speed(properties, usual).unwrap_or(usual)
}

/// Speed of copies that was set last; `usual` has the bound that was not. `None`: none was.
pub fn kept_speed(properties: &Properties, usual: Speed) -> Option<Speed> {
    let rate = |key: &str| {
        let rate = properties.value(key)?.parse::<u64>().ok();
        rate.filter(|&rate| rate > 0)
    };
    let (floor, ceiling) = (rate(FLOOR), rate(CEILING));
    floor.or(ceiling)?;
    let floor = floor.unwrap_or(usual.floor);
    Some(Speed {
        floor,
        // One of the two may be usual, and the other one's bound.
        ceiling: ceiling.unwrap_or(usual.ceiling).max(floor),
    })
}

/// Sets whether the leg of a slot returns only when told to.
///
/// # Errors
/// There is no room for it; nothing is set then.
pub fn set_admin_offline(properties: &mut Properties, slot: u8, is: bool) -> Result<(), BadText> {
    let mut legs = admin_offline(properties);
    match is {
        true => legs.add(slot),
        false => legs.remove(slot),
    }
    properties.set(OFFLINE, &words(legs))
}

/// Sets how fast is copied in the background; `None`: as usual.
///
/// # Errors
/// There is no room for it; nothing is set then.
pub fn set_speed(properties: &mut Properties, speed: Option<Speed>) -> Result<(), BadText> {
    let word = |rate: Option<u64>| rate.map_or_else(String::new, |it| it.to_string());
    let mut next = *properties;
    next.set(FLOOR, &word(speed.map(|it| it.floor)))?;
    next.set(CEILING, &word(speed.map(|it| it.ceiling)))?;
    *properties = next;
    Ok(())
}

fn words(legs: Legs) -> String {
    let mut words = String::new();
    for slot in legs.iter() {
        let comma = if words.is_empty() { "" } else { "," };
        words.push_str(&format!("{comma}{slot}"));
    }
    words
}

impl MirrorDevice {
    /// At the start: legs that the user had taken out stay so, but for legs in sync, which are
    /// needed.
    pub(super) fn apply_admin_offline(&mut self, now_ns: u64) {
        let Phase::Running(it) = &mut self.phase else {
            unreachable!("it has just begun to run");
        };
        let offline = admin_offline(&it.machine.properties());
        for leg in &mut self.legs {
            let slot = leg.slot.filter(|&slot| offline.has(slot));
            if let Some(slot) = slot.filter(|&slot| !it.machine.may_read(slot)) {
                it.machine.leg_lost(slot, now_ns);
                leg.returns.admin_offline = true;
                leg.returns.wait_since_start(now_ns);
            }
        }
    }

    /// Makes it last that a leg returns only when told to, or that it may.
    pub(super) fn keep_admin_offline(&mut self, slot: u8, is: bool, now_ns: u64) {
        self.set_lasting(now_ns, |properties| set_admin_offline(properties, slot, is));
    }

    /// Makes it last how fast is copied in the background.
    pub(super) fn keep_speed(&mut self, speed: Option<Speed>, now_ns: u64) {
        self.set_lasting(now_ns, |properties| set_speed(properties, speed));
    }

    /// Changes properties of the mirror, which runs. Without room nothing changes: the caller has
    /// looked for it.
    fn set_lasting(
        &mut self,
        now_ns: u64,
        change: impl FnOnce(&mut Properties) -> Result<(), BadText>,
    ) {
        let machine = &mut self.expect_running().machine;
        let mut properties = machine.properties();
        if change(&mut properties).is_ok() && properties != machine.properties() {
            machine.set_properties(properties, now_ns);
        }
    }
}
