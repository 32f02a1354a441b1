//! A mirror and its legs, as text and JSON: the same facts.
use super::examine::{Examined, Seen};
use crate::output::Style;
use crate::table::Table;
use crate::units::{format_bytes, format_utc};
use engine::mirror::admin_offline;
use mirror::assembly::{Assembly, Refusal, Role};
use mirror::bad::BadKind;
use mirror::copies::{Chosen, NoLeg};
use mirror::history::Lineage;
use mirror::superblock::{EntryState, LegEntry, Superblock};
use policy::Policy;
use serde_json::{Value, json};

/// Keys and values below each other.
fn lines(facts: &[(&str, String)]) -> String {
    let shown = facts.iter().filter(|it| !it.1.is_empty());
    shown
        .map(|(key, value)| format!("  {key:<12}{value}\n"))
        .collect()
}

/// A new mirror.
pub fn mirror(it: &Superblock) -> String {
    let of_all = lines(&mirror_facts(it));
    format!("mirror \"{}\"\n{of_all}{}", it.name, legs(it))
}

fn mirror_facts(it: &Superblock) -> Vec<(&'static str, String)> {
    let geometry = it.geometry;
    let region = format_bytes(1 << geometry.region_shift);
    let policy = it.properties.value("policy").unwrap_or_default();
    let known = Policy::parse(policy).is_ok() || policy.is_empty();
    let others = it.properties.iter();
    let others = others.filter(|it| !["policy", "aside"].contains(&it.0));
    let others: Vec<String> = others
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    vec![
        ("identifier", it.mirror.to_string()),
        (
            "size",
            format!(
                "{} ({} bytes)",
                format_bytes(geometry.bytes),
                geometry.bytes
            ),
        ),
        ("blocks", format_bytes(1 << geometry.block_shift)),
        ("regions", format!("{} of {region}", geometry.regions())),
        (
            "policy",
            match known {
                true => policy.into(),
                false => format!("{policy} (this braid doesn't know it)"),
            },
        ),
        ("properties", others.join(", ")),
    ]
}

/// All legs that a superblock tells of.
fn legs(it: &Superblock) -> String {
    let mut table = Table::new(4, &["  leg", "state", "last seen as", "identifier"]);
    for (slot, entry) in it.entries() {
        let label = entry.label.to_string();
        let out = match admin_offline(&it.properties).has(slot) {
            true => ", taken out",
            false => "",
        };
        let state = state(entry, it.geometry.bytes) + out;
        table.row(vec![
            format!("  {slot}"),
            state,
            label,
            entry.id.to_string(),
        ]);
    }
    table.render(Style::PLAIN, |_| String::new())
}

fn state(entry: &LegEntry, bytes: u64) -> String {
    match entry.state {
        EntryState::InSync => "in sync".into(),
        EntryState::Stale(lack) => format!("stale, lacks {}", lack_words(lack.position, bytes)),
        EntryState::Rebuilding(lack) => {
            format!("being rebuilt, lacks {}", lack_words(lack.position, bytes))
        }
    }
}

fn lack_words(position: u64, bytes: u64) -> String {
    match position {
        0 => "everything".into(),
        _ if position >= bytes => "what the bitmap says".into(),
        _ => format!(
            "what is behind {}, and what the bitmap says",
            format_bytes(position)
        ),
    }
}

/// Content of each leg, and their state together.
pub fn examined(seen: &Seen) -> String {
    let all = &seen.legs;
    let mut each: Vec<String> = all.iter().map(one).collect();
    for it in &seen.unread {
        let said = format!("{}\n  it can't be read: {}\n", it.uri, it.why);
        each.insert(it.at, said); // in the order in which they were given
    }
    let mut text = each.concat();
    if let Some(verdict) = &seen.together {
        text += "together\n";
        for it in &seen.unread {
            text += &format!("  {}: could not be read, as if it were not there\n", it.uri);
        }
        text += &match verdict {
            Ok(assembly) => assembled(all, assembly),
            Err(refusal) => format!("  no mirror: {}\n", refusal_words(all, refusal)),
        };
    }
    text
}

fn one(it: &Examined) -> String {
    let chosen = match &it.found {
        Ok(chosen) => chosen,
        Err(error) => return format!("{}\n  {error}\n", it.uri),
    };
    let superblock = &chosen.superblock;
    let place = superblock.place;
    let words = |it: &Lineage| format!("{:016x} since event {}", it.id, it.first_event);
    let lineages = superblock.history.as_slice().iter().map(words);
    let lineages: Vec<String> = lineages.collect();
    let mut facts = vec![("mirror", format!("\"{}\"", superblock.name))];
    facts.extend(mirror_facts(superblock));
    let own = superblock.leg().map(|entry| entry.id.to_string());
    facts.extend([
        (
            "this leg",
            format!("{}, {}", superblock.slot, own.unwrap_or_default()),
        ),
        ("event", superblock.event.to_string()),
        ("lineages", lineages.join(", ")),
        (
            "stopped",
            if superblock.clean {
                "in order"
            } else {
                "not in order, or in use"
            }
            .into(),
        ),
        ("owner", owner(superblock)),
        ("superblocks", copies(chosen)),
        ("confirmed", confirmed(superblock)),
        ("cut at", cut_at(superblock)),
        ("bitmap", bitmap(it)),
        ("bitmap at", format_bytes(place.bitmap_offset)),
        (
            "data at",
            format!(
                "{}, of {}",
                format_bytes(place.data_offset),
                format_bytes(it.bytes)
            ),
        ),
        ("features", features(superblock)),
        ("bad blocks", bad_blocks(superblock)),
        ("made", format_utc(superblock.created_s)),
    ]);
    format!("{}\n{}{}", it.uri, lines(&facts), legs(superblock))
}

fn owner(it: &Superblock) -> String {
    it.owner.map_or("nobody".into(), |owner| {
        format!(
            "{} (run {}, host {}) since {}, alive at {}, says so every {} ms",
            owner.label,
            owner.run,
            owner.host,
            format_utc(owner.since_s),
            format_utc(owner.heartbeat_s),
            it.heartbeat_interval_ms
        )
    })
}

/// Blocks that legs could not write, and those of a leg that is not in sync only; in bytes of the
/// mirror.
fn bad_blocks(it: &Superblock) -> String {
    let shift = it.geometry.block_shift;
    let words = it.bad.iter().map(|range| {
        let (at, bytes) = (range.first << shift, u64::from(range.blocks) << shift);
        match range.kind {
            BadKind::Unwritten => format!("leg {}: {bytes} bytes at {at}", range.slot),
            BadKind::LastCopy => format!(
                "leg {} has the last copy of {bytes} bytes at {at}",
                range.slot
            ),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Those that it has; nothing where it has none.
fn features(it: &Superblock) -> String {
    let features = [
        ("compatible", it.features.compatible),
        ("read-only", it.features.read_only),
        ("incompatible", it.features.incompatible),
    ];
    let there = features.iter().filter(|it| it.1 != 0);
    let words = there.map(|(kind, bits)| format!("{kind} {bits:#x}"));
    words.collect::<Vec<_>>().join(", ")
}

fn copies(chosen: &Chosen) -> String {
    let sequence = chosen.superblock.sequence;
    let holds = format!("copy {} holds, sequence {sequence}", chosen.copy);
    match chosen.other {
        Ok(other) if other == sequence => format!("both the same, sequence {sequence}"),
        Ok(other) => format!("{holds}; the other has {other}"),
        Err(error) => format!("{holds}; the other is bad: {error}"),
    }
}

/// Superblocks that it has read of the others; nothing where it has not.
fn cut_at(it: &Superblock) -> String {
    match it.cut_at {
        0 => String::new(),
        at => format!(
            "byte {at} of the mirror: what lay behind it was lost while no other leg was in sync"
        ),
    }
}

fn confirmed(it: &Superblock) -> String {
    match it.confirmed {
        0 => String::new(),
        mark => format!(
            "mark {mark} or more on all other legs in sync; its own is {}",
            it.mark
        ),
    }
}

fn bitmap(it: &Examined) -> String {
    let (set, bad) = it.bitmap.unwrap_or_default();
    let bad = match bad {
        0 => String::new(),
        _ => format!("; bad pages: {bad}, all regions of which count as set"),
    };
    format!("{set} regions may differ{bad}")
}

fn assembled(all: &[Examined], assembly: &Assembly) -> String {
    let mut text = String::new();
    for (leg, role) in all.iter().zip(&assembly.roles) {
        let bytes = assembly.next.geometry.bytes;
        let role = match role {
            Role::InSync => "in sync".into(),
            Role::Behind { position, why } => {
                format!("behind ({why}): lacks {}", lack_words(*position, bytes))
            }
            Role::Unusable(error) => format!("not used: {error}"),
        };
        text += &format!("  {}: {role}\n", leg.uri);
    }
    for &slot in &assembly.absent {
        text += &format!("  leg {slot}{} is not there\n", label(&assembly.next, slot));
    }
    if assembly.unclean {
        text += "  not stopped in order: legs are made alike where the bitmap says so\n";
    }
    if assembly.read_only {
        text += "  a newer braid wrote it: this one may only read\n";
    }
    text
}

/// How a leg was last reached.
fn label(it: &Superblock, slot: u8) -> String {
    let entry = it.legs.get(usize::from(slot)).copied().flatten();
    entry.map_or(String::new(), |entry| format!(" ({})", entry.label))
}

/// Why legs are no mirror, and what to do.
pub fn refusal_words(all: &[Examined], refusal: &Refusal) -> String {
    let name = |at: usize| all.get(at).map_or(String::new(), |leg| leg.uri.clone());
    let known = all
        .iter()
        .filter_map(|leg| Some(leg.found.ok()?.superblock));
    let known: Vec<Superblock> = known.collect();
    let mirror = known.first().map_or("", |it| it.name.as_str());
    engine::mirror::messages::refusal(mirror, refusal, name, &known)
}

/// A mirror as JSON.
pub fn mirror_json(it: &Superblock) -> Value {
    let legs = it.entries().map(|(slot, entry)| {
        let (state, position) = match entry.state {
            EntryState::InSync => ("in-sync", None),
            EntryState::Stale(lack) => ("stale", Some(lack.position)),
            EntryState::Rebuilding(lack) => ("rebuilding", Some(lack.position)),
        };
        json!({
            "slot": slot,
            "leg": entry.id.to_string(),
            "state": state,
            "position_bytes": position,
            "label": entry.label.as_str(),
        })
    });
    let properties = it
        .properties
        .iter()
        .map(|(key, value)| (key.to_owned(), value.into()));
    json!({
        "name": it.name.as_str(),
        "mirror": it.mirror.to_string(),
        "bytes": it.geometry.bytes,
        "block_bytes": 1_u64 << it.geometry.block_shift,
        "region_bytes": 1_u64 << it.geometry.region_shift,
        "regions": it.geometry.regions(),
        "properties": properties.collect::<serde_json::Map<_, _>>(),
        "created_s": it.created_s,
        "event": it.event,
        "clean": it.clean,
        "lineages": it.history.as_slice().iter().map(|lineage| json!({
            "lineage": format!("{:016x}", lineage.id),
            "first_event": lineage.first_event,
        })).collect::<Vec<_>>(),
        "features": {
            "compatible": it.features.compatible,
            "read_only": it.features.read_only,
            "incompatible": it.features.incompatible,
        },
        "bad_blocks": it.bad.iter().map(|range| json!({
            "leg": range.slot,
            "last_copy": range.kind == BadKind::LastCopy,
            "start": range.first << it.geometry.block_shift,
            "end": range.end() << it.geometry.block_shift,
        })).collect::<Vec<_>>(),
        "legs": legs.collect::<Vec<_>>(),
    })
}

/// As [`examined`], as JSON.
pub fn examined_json(seen: &Seen) -> Value {
    let all = &seen.legs;
    let mut each: Vec<Value> = all.iter().map(one_json).collect();
    for it in &seen.unread {
        let said = json!({"uri": it.uri, "leg_bytes": null, "error": it.why, "newer": false});
        each.insert(it.at, said);
    }
    let together = seen.together.as_ref().map(|verdict| match verdict {
        Ok(assembly) => json!({
            "mirror": true,
            "newest": all.get(assembly.newest).map(|leg| &leg.uri),
            "roles": all.iter().zip(&assembly.roles).map(role_json).collect::<Vec<_>>(),
            "absent": assembly.absent,
            "unclean": assembly.unclean,
            "read_only": assembly.read_only,
        }),
        Err(refusal) => json!({"mirror": false, "why": refusal_words(all, refusal)}),
    });
    json!({
        "legs": each,
        "together": together,
    })
}

fn role_json((leg, given): (&Examined, &Role)) -> Value {
    let (role, position, why) = match given {
        Role::InSync => ("in-sync", None, None),
        Role::Behind { position, why } => ("behind", Some(*position), Some(why.to_string())),
        Role::Unusable(error) => ("unusable", None, Some(error.to_string())),
    };
    json!({
        "uri": leg.uri,
        "role": role,
        "position_bytes": position,
        "why": why,
        "removed": *given == Role::Unusable(NoLeg::Removed),
    })
}

fn one_json(it: &Examined) -> Value {
    let chosen = match &it.found {
        Ok(chosen) => chosen,
        Err(error) => {
            let newer = matches!(error, NoLeg::Newer(_));
            let why = error.to_string();
            return json!({"uri": it.uri, "leg_bytes": it.bytes, "error": why, "newer": newer});
        }
    };
    let superblock = &chosen.superblock;
    let (set, bad) = it.bitmap.unwrap_or_default();
    let owner = superblock.owner.map(|owner| {
        json!({
            "run": owner.run.to_string(),
            "host": owner.host.to_string(),
            "label": owner.label.as_str(),
            "since_s": owner.since_s,
            "beat_s": owner.heartbeat_s,
        })
    });
    let (other, other_error) = match chosen.other {
        Ok(sequence) => (Some(sequence), None),
        Err(error) => (None, Some(error.to_string())),
    };
    json!({
        "uri": it.uri,
        "mirror": mirror_json(superblock),
        "slot": superblock.slot,
        "leg": superblock.leg().map(|entry| entry.id.to_string()),
        "leg_bytes": superblock.place.leg_bytes,
        "data_offset": superblock.place.data_offset,
        "bitmap_offset": superblock.place.bitmap_offset,
        "bitmap": {"set": set, "bad_pages": bad},
        "sequence": superblock.sequence,
        "copy": chosen.copy,
        "other_sequence": other,
        "other_error": other_error,
        "owner": owner,
        "beat_interval_ms": superblock.heartbeat_interval_ms,
        "confirmed": superblock.confirmed,
        "mark": superblock.mark,
        "cut_at": superblock.cut_at,
    })
}
