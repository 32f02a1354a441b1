use super::*;
use crate::run::config::tests::parsed;
use policy::Policy;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn path(number: u8) -> PathKeys {
    let uri = format!("nvme-tcp://127.0.0.{number}:4420/nqn.2026-01.org.example:v");
    PathKeys::from(uri.parse::<crate::uri::PathUri>().unwrap())
}

fn base() -> Volume {
    let uri = path(1).uri;
    parsed(&format!(
        "[[volume]]\nname = \"v\"\n[[volume.path]]\nuri = \"{uri}\"\n"
    ))
    .volumes
    .remove(0)
}

fn volume(name: &str, paths: &[u8]) -> Volume {
    Volume {
        name: name.to_owned(),
        paths: paths.iter().map(|it| path(*it)).collect(),
        ..base()
    }
}

/// With these paths, all live and as in the file.
fn runs(name: &str, paths: &[u8]) -> ActualVolume {
    let of = volume(name, paths);
    let there = |config: &PathKeys| ActualPath {
        config: config.clone(),
        is_found: false,
        presence: Presence::Live,
    };
    ActualVolume {
        configured: uris(&of.paths),
        paths: of.paths.iter().map(there).collect(),
        of,
    }
}

fn words(wanted: &[Volume], actual: &[ActualVolume]) -> Vec<String> {
    let host = "nvme-tcp://127.0.0.";
    let rest = ":4420/nqn.2026-01.org.example:v";
    let words = plan(wanted, actual).into_iter().map(|it| it.to_string());
    words
        .map(|it| it.replace(host, "").replace(rest, ""))
        .collect()
}

#[test]
fn plan_of_the_same_file_is_empty() {
    let actual = [runs("a", &[1, 2]), runs("b", &[3])];
    assert_eq!(
        words(&[volume("b", &[3]), volume("a", &[1, 2])], &actual),
        [""; 0]
    );
    assert_eq!(words(&[], &[]), [""; 0]);
}

#[test]
fn plan_has_what_can_fail_first() {
    let mut a = runs("a", &[1, 2, 3, 4]);
    a.paths[1].presence = Presence::Down;
    a.paths[3].presence = Presence::Absent;
    let mut wanted = volume("a", &[3, 5]);
    wanted.policy = Policy::Numa;
    wanted.retries = Some(7);
    wanted.paths[0].throughput = 9;
    assert_eq!(
        words(&[wanted, volume("c", &[8])], &[a, runs("b", &[6])]),
        [
            "add volume c",
            "a: add path 5",
            "a: remove path 1", // in use: it can be connected again
            "a: remove path 2",
            "a: remove path 4",
            "a: set policy numa",
            "a: set throughput 9 of 3",
            "a: set retries 7",
            "remove volume b",
        ]
    );
}

#[test]
fn paths_changed_by_verb_hold_until_the_file_says_something_else() {
    let mut a = runs("a", &[1, 2]);
    a.configured = uris(&volume("a", &[1, 3]).paths);
    assert_eq!(words(&[volume("a", &[1, 3])], &[a.clone()]), [""; 0]);
    let both = ["a: add path 4", "a: remove path 2"];
    assert_eq!(words(&[volume("a", &[1, 4])], &[a.clone()]), both);
    // What discovery told of stays.
    a.paths[1].is_found = true;
    assert_eq!(words(&[volume("a", &[1, 4])], &[a]), both[..1]);
}

/// Volumes with their paths, and whether discovery told of each.
type World = BTreeMap<String, BTreeMap<String, bool>>;

fn world(actual: &[ActualVolume]) -> World {
    let paths = |it: &ActualVolume| {
        let paths = it.paths.iter();
        paths
            .map(|it| (it.config.uri.to_string(), it.is_found))
            .collect()
    };
    actual
        .iter()
        .map(|it| (it.of.name.clone(), paths(it)))
        .collect()
}

/// What the world is to be: see the contract.
fn desired(wanted: &[Volume], actual: &[ActualVolume]) -> World {
    let paths = |volume: &Volume| {
        let uris = uris(&volume.paths).into_iter().map(|it| (it, false));
        let there = actual.iter().find(|it| it.of.name == volume.name);
        let Some(there) = there else {
            return uris.collect();
        };
        let paths = world(std::slice::from_ref(there)).remove(&volume.name);
        let mut paths = paths.unwrap_or_default();
        if there.configured == self::uris(&volume.paths) {
            return paths;
        }
        let named: BTreeSet<String> = self::uris(&volume.paths).into_iter().collect();
        paths.retain(|uri, is_found| *is_found || named.contains(uri));
        for (uri, _) in uris {
            paths.entry(uri).or_insert(false);
        }
        paths
    };
    wanted
        .iter()
        .map(|it| (it.name.clone(), paths(it)))
        .collect()
}

fn step(world: &mut World, change: &Change, wanted: &[Volume]) {
    let uri = |path: &PathKeys| path.uri.to_string();
    match change {
        Change::OpenVolume(name) => {
            let of = wanted.iter().find(|it| it.name == *name).unwrap();
            let paths = uris(&of.paths).into_iter().map(|it| (it, false)).collect();
            assert!(world.insert(name.clone(), paths).is_none(), "{change}");
        }
        Change::AddPath(name, path) => {
            let paths = world.get_mut(name).unwrap();
            assert!(paths.insert(uri(path), false).is_none(), "{change}");
        }
        Change::RemovePath(name, path) | Change::ForgetPath(name, path) => {
            let was_found = world.get_mut(name).unwrap().remove(&uri(path));
            assert_eq!(was_found, Some(false), "{change}");
        }
        Change::CloseVolume(name) => assert!(world.remove(name).is_some(), "{change}"),
        Change::SetPolicy(..) | Change::SetThroughput(..) | Change::SetKeys(..) => {}
    }
}

fn paths() -> impl Strategy<Value = Vec<u8>> {
    let numbers = proptest::collection::btree_set(1_u8..9, 1..5);
    numbers
        .prop_map(|it| it.into_iter().collect::<Vec<u8>>())
        .prop_shuffle()
}

fn names() -> impl Strategy<Value = Vec<&'static str>> {
    proptest::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4).prop_shuffle()
}

fn wanted() -> impl Strategy<Value = Vec<Volume>> {
    (names(), proptest::collection::vec(paths(), 4)).prop_map(|(names, paths)| {
        let all = names.into_iter().zip(paths);
        all.map(|(name, paths)| volume(name, &paths)).collect()
    })
}

fn actual() -> impl Strategy<Value = Vec<ActualVolume>> {
    let facts = proptest::collection::vec((any::<bool>(), 0_u8..3), 5);
    let one = (paths(), paths(), facts);
    (names(), proptest::collection::vec(one, 4)).prop_map(|(names, all)| {
        let all = names.into_iter().zip(all);
        let volumes = all.map(|(name, (there, before, facts))| {
            let mut it = runs(name, &there);
            it.configured = uris(&volume(name, &before).paths);
            for (path, (is_found, presence)) in it.paths.iter_mut().zip(facts) {
                path.is_found = is_found;
                let all = [Presence::Live, Presence::Down, Presence::Absent];
                path.presence = all[usize::from(presence)];
            }
            it
        });
        volumes.collect()
    })
}

proptest! {
    // Nightly runs have PROPTEST_CASES=100000.
    #[test]
    fn plan_ends_in_the_desired_state_or_the_old_one(
        wanted in wanted(),
        actual in actual(),
        fails_at in proptest::option::of(0_usize..12),
    ) {
        let plan = plan(&wanted, &actual);
        let first_sure = plan.iter().take_while(|it| it.can_fail()).count();
        prop_assert!(!plan[first_sure..].iter().any(Change::can_fail));
        let before = world(&actual);
        let mut now = before.clone();
        let mut done = Vec::new();
        for (at, change) in plan.iter().enumerate() {
            if fails_at == Some(at) && change.can_fail() {
                for change in done.iter().rev() {
                    step(&mut now, &Change::undo(change).unwrap(), &wanted);
                }
                prop_assert_eq!(now, before);
                return Ok(());
            }
            step(&mut now, change, &wanted);
            done.push(change.clone());
        }
        prop_assert_eq!(now, desired(&wanted, &actual));
    }
}
