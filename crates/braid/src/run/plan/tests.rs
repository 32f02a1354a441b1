mod random;

use super::*;
use crate::run::admission::Admission;
use crate::run::choices::Choices;
use crate::run::config::tests::parsed;
use crate::run::config::{Config, Kind, Volume};
use crate::run::desired::MirrorSettings;
use crate::run::entries::Origin;
use crate::run::paths::uris;
use crate::run::registry::Registry;
use engine::mirror::LegStatus;
use std::sync::LazyLock;

fn path(number: u8) -> PathKeys {
    let uri = format!("nvme-tcp://127.0.0.{number}:4420/nqn.2026-01.org.example:v");
    PathKeys::from(uri.parse::<crate::uri::PathUri>().unwrap())
}

fn base() -> Config {
    /// Parsed once: a random world has many volumes.
    static BASE: LazyLock<Config> = LazyLock::new(|| {
        let uri = path(1).uri;
        parsed(&format!(
            "[[volume]]\nname = \"v\"\n[[volume.path]]\nuri = \"{uri}\"\n"
        ))
    });
    BASE.clone()
}

/// `m` is a mirror, and what begins with `m/` one of its legs.
fn volume(name: &str, paths: &[u8]) -> Volume {
    let paths = if name == "m" { &[][..] } else { paths };
    Volume {
        name: name.to_owned(),
        paths: paths.iter().map(|it| path(*it)).collect(),
        kind: if name == "m" {
            Kind::Mirror
        } else {
            Kind::Paths
        },
        leg_of: name.starts_with("m/").then(|| "m".into()),
        ..base().volumes.remove(0)
    }
}

fn export(number: u8, read_only: bool) -> Export {
    Export {
        nbd: format!("unix:/{number}").parse().unwrap(),
        read_only,
        owner: None,
        group: None,
        mode: None,
        admission: Admission::default(),
    }
}

fn config(volumes: &[Volume]) -> Config {
    Config {
        volumes: volumes.to_vec(),
        ..base()
    }
}

/// An engine: what its file said, and what runs.
#[derive(Clone, Debug)]
struct Engine {
    file: Vec<Volume>,
    actual: Vec<ActualVolume>,
}

/// One volume with these paths, all live and as in the file.
fn runs(name: &str, paths: &[u8]) -> Engine {
    let of = volume(name, paths);
    let actual = ActualVolume {
        now: DesiredVolume::of_file(of.clone(), None),
        presence: vec![Presence::Live; of.paths.len()],
        is_idle: false,
    };
    Engine {
        file: vec![of],
        actual: vec![actual],
    }
}

impl Engine {
    fn and(mut self, other: Self) -> Self {
        self.file.extend(other.file);
        self.actual.extend(other.actual);
        self
    }

    /// Its present state, as a desired one.
    fn now(&self) -> Desired {
        Desired {
            volumes: self.actual.iter().map(|it| it.now.clone()).collect(),
        }
    }

    fn reloaded(&self, wanted: &[Volume]) -> Desired {
        let nowhere = std::path::Path::new("/nowhere");
        let registry = Registry::new(nowhere.to_owned(), "a".to_owned(), nowhere);
        let choices = Choices::new(&registry);
        let (old, new) = (config(&self.file), config(wanted));
        self.now().reloaded(&old, &new, &choices)
    }
}

fn words(wanted: &[Volume], engine: &Engine) -> Vec<String> {
    let host = "nvme-tcp://127.0.0.";
    let rest = ":4420/nqn.2026-01.org.example:v";
    let plan = plan(&engine.reloaded(wanted), &engine.actual);
    let words = plan.into_iter().map(|it| it.to_string());
    words
        .map(|it| it.replace(host, "").replace(rest, ""))
        .collect()
}

#[test]
fn plan_of_the_same_file_is_empty() {
    let engine = runs("a", &[1, 2]).and(runs("b", &[3]));
    let wanted = [volume("b", &[3]), volume("a", &[1, 2])];
    assert_eq!(words(&wanted, &engine), [""; 0]);
    assert_eq!(plan(&engine.now(), &engine.actual), []);
    assert_eq!(plan(&Desired::default(), &[]), []);
}

/// A verb adds an export to a mirror that is stopped, while a reload changes other volumes.
#[test]
fn exports_of_a_stopped_mirror_outlive_a_reload() {
    let mut engine = runs("m", &[]);
    let mut file = volume("m", &[]);
    file.exports = vec![export(1, false)];
    let exports = |engine: &Engine, plan: &[Change]| {
        let mut desired = engine.reloaded(std::slice::from_ref(&file));
        keep_exports(&mut desired, &engine.now(), plan);
        desired.volumes[0].of.exports.clone()
    };
    let by_verb = vec![export(1, false), export(2, false)];
    engine.actual[0].now.of.exports.clone_from(&by_verb);
    for run in [RunState::Off, RunState::Ending] {
        engine.actual[0].now.run = run;
        assert_eq!(exports(&engine, &[]), by_verb);
        let other = Change::RemoveExport("a".to_owned(), export(2, false));
        assert_eq!(exports(&engine, &[other]), by_verb);
        // The reload has the mirror to itself then.
        let of_it = Change::RemoveExport("m".to_owned(), export(2, false));
        assert_eq!(exports(&engine, &[of_it]), file.exports);
    }
    engine.actual[0].now.run = RunState::default();
    assert_eq!(exports(&engine, &[]), file.exports, "they listen");
}

#[test]
fn plan_has_what_can_fail_first() {
    let mut engine = runs("a", &[1, 2, 3, 4]);
    engine.actual[0].presence[1] = Presence::Down;
    engine.actual[0].presence[3] = Presence::Absent;
    engine.actual[0].now.of.exports = vec![export(1, false), export(2, false)];
    let mut wanted = volume("a", &[3, 5]);
    wanted.policy = Policy::Numa;
    wanted.retries = Some(7);
    wanted.paths[0].throughput = 9;
    wanted.paths[0].distance = 3;
    wanted.exports = vec![export(1, true)];
    let mut other = volume("c", &[8]);
    other.exports = vec![export(2, false), export(3, false)];
    assert_eq!(
        words(&[wanted, other], &engine.and(runs("b", &[6]))),
        [
            "add volume c",
            "a: add path 5",
            "a: change export unix:/1",
            "c: add export unix:/3",
            "a: remove path 1", // in use: it can be connected again
            "a: remove path 2",
            "a: set throughput 9, distance 3 of 3",
            "a: remove path 4",
            "a: set policy numa",
            "a: set retries 7",
            "c: take export unix:/2 from a",
            "remove volume b",
        ]
    );
}

#[test]
fn paths_changed_by_verb_hold_until_the_file_says_something_else() {
    let mut engine = runs("a", &[1, 2]);
    engine.file = vec![volume("a", &[1, 3])];
    assert_eq!(words(&[volume("a", &[1, 3])], &engine), [""; 0]);
    let both = ["a: add path 4", "a: remove path 2"];
    assert_eq!(words(&[volume("a", &[1, 4])], &engine), both);
    // A path that discovery announced stays.
    engine.actual[0].now.paths[1].origin = Origin::Discovery("d".into());
    assert_eq!(words(&[volume("a", &[1, 4])], &engine), both[..1]);
}

#[test]
fn removal_of_a_failed_path_is_undone_as_failed() {
    let mut engine = runs("a", &[1, 2]);
    engine.actual[0].now.paths[1].admin = AdminState::Failed;
    let plan = plan(&engine.reloaded(&[volume("a", &[1])]), &engine.actual);
    let [Change::RemovePath(_, gone)] = &plan[..] else {
        panic!("{plan:?}");
    };
    let undo = plan[0].undo().unwrap();
    assert_eq!(undo, Change::AddPath("a".into(), gone.clone()));
    assert_eq!(gone.admin, AdminState::Failed);
}

#[test]
fn legs_come_before_others_go() {
    let engine = runs("m", &[]).and(runs("m/0", &[1])).and(runs("m/1", &[2]));
    let wanted = [volume("m", &[]), volume("m/1", &[2]), volume("m/2", &[3])];
    let both = ["m: add leg 3", "m: remove leg 1"];
    assert_eq!(words(&wanted, &engine), both);
    // A mirror comes and goes with its legs.
    let all = words(&wanted, &runs("a", &[1]));
    assert_eq!(all, ["add volume m", "remove volume a"]);
    assert_eq!(words(&[], &engine), ["remove volume m"]);
}

#[test]
fn admin_state_is_set_and_undone() {
    let engine = runs("a", &[1]);
    let mut desired = engine.now();
    desired.volumes[0].paths[0].admin = AdminState::Drained;
    let plan = plan(&desired, &engine.actual);
    let said: Vec<String> = plan.iter().map(Change::to_string).collect();
    assert!(plan[0].can_fail() && said.len() == 1, "{said:?}");
    assert!(said[0].starts_with("a: drain path "), "{said:?}");
    let undo = plan[0].undo().unwrap();
    assert!(undo.to_string().starts_with("a: restore path "), "{undo}");
    assert_eq!(undo.undo(), Some(plan[0].clone()));
}

/// One leg that is idle.
fn idle(name: &str, paths: &[u8]) -> Engine {
    let file = vec![volume(name, paths)];
    let actual = vec![ActualVolume::idle(&file[0])];
    Engine { file, actual }
}

/// Stopped, with these exports.
fn stopped(exports: &[Export]) -> Engine {
    let mut engine = runs("m", &[]);
    let it = &mut engine.actual[0];
    it.now.run = RunState::Off;
    it.now.of.exports = exports.to_vec();
    engine.and(idle("m/0", &[3])).and(idle("m/1", &[4]))
}

/// R2: the file drops a leg that could not be opened. One that it keeps, or whose mirror leaves, is
/// no step.
#[test]
fn idle_leg_is_removed_when_the_file_drops_it() {
    let engine = runs("m", &[]).and(runs("m/0", &[1])).and(idle("m/1", &[2]));
    let all = [volume("m", &[]), volume("m/0", &[1]), volume("m/1", &[2])];
    assert_eq!(words(&all, &engine), [""; 0]);
    assert_eq!(words(&all[..2], &engine), ["m: remove leg 2"]);
    assert_eq!(words(&[], &engine), ["remove volume m"]);
    // A verb of the mirror says nothing of its legs.
    let mirror = Desired {
        volumes: engine.now().volumes[..1].to_vec(),
    };
    assert_eq!(plan(&mirror, &engine.actual[..1]), []);
}

#[test]
fn mirror_that_is_to_stop_or_start_is_one_change() {
    let with_legs = |it: Engine| it.and(runs("m/0", &[1])).and(runs("m/1", &[2]));
    let mut on = with_legs(runs("m", &[]));
    let exports = vec![export(1, false)];
    on.actual[0].now.of.exports = exports.clone();
    let off = stopped(&exports);
    let to = |engine: &Engine, run| {
        let mut desired = engine.now();
        desired.volumes[0].run = run;
        plan(&desired, &engine.actual)
    };
    let how = MirrorStart {
        without: true,
        ..MirrorStart::default()
    };
    let (m, both) = ("m".to_owned(), || (exports.clone(), exports.clone()));
    let stop = Change::StopMirror(m.clone(), both().0, both().1);
    let start = Change::StartMirror(m.clone(), how.clone(), both().0, both().1);
    assert_eq!(to(&on, RunState::Off), std::slice::from_ref(&stop));
    assert_eq!(
        to(&off, RunState::On(how.clone())),
        std::slice::from_ref(&start)
    );
    assert_eq!(to(&off, RunState::Off), []);
    assert_eq!(to(&on, RunState::On(how.clone())), []);
    // One that does not end is waited for once more, and a reload leaves it alone.
    on.actual[0].now.run = RunState::Ending;
    assert_eq!(to(&on, RunState::Off), std::slice::from_ref(&stop));
    assert_eq!(to(&on, RunState::On(how)), std::slice::from_ref(&start));
    assert_eq!(to(&on, RunState::Ending), []);
    let again = Change::StartMirror(m, MirrorStart::default(), both().0, both().1);
    assert_eq!(
        (start.undo(), stop.undo()),
        (Some(stop.clone()), Some(again))
    );
    assert_eq!(start.to_string(), "start mirror m");
    assert_eq!(stop.to_string(), "stop mirror m");
}

/// An address moves between volumes that listen there only.
#[test]
fn exports_of_a_stopped_mirror_come_and_go_with_it() {
    let with = |name: &str, numbers: &[u8]| Volume {
        exports: numbers.iter().map(|it| export(*it, false)).collect(),
        ..volume(name, &[1])
    };
    let mut engine = runs("a", &[1]).and(stopped(&[export(1, false)]));
    engine.actual[0].now.of.exports = vec![export(2, false)];
    let legs = [volume("m/0", &[3]), volume("m/1", &[4])];
    let wanted = |m: &[u8], a: &[u8]| [&[with("m", m), with("a", a)][..], &legs].concat();
    assert_eq!(words(&wanted(&[1], &[2]), &engine), [""; 0]);
    assert_eq!(
        words(&wanted(&[2], &[1]), &engine),
        [
            "m: add export unix:/2",
            "a: add export unix:/1",
            "a: remove export unix:/2",
            "m: remove export unix:/1",
        ]
    );
}

/// A verb gives a mirror that is stopped an address, after the plan of a reload that gives it to
/// another volume.
#[test]
fn address_that_a_reload_gives_is_no_other_ones() {
    let mut engine = runs("a", &[1]).and(stopped(&[export(1, false)]));
    let gives = |number| Change::AddExport("a".to_owned(), export(number, false));
    assert_eq!(ensure_alone(&engine.now(), &[gives(2)]), Ok(()));
    let why = ensure_alone(&engine.now(), &[gives(1)]).unwrap_err();
    assert!(
        why.starts_with("volume a: unix:/1 is an export of m"),
        "{why}"
    );
    let moves = Change::MoveExport("b".to_owned(), "a".to_owned(), export(1, false));
    assert!(ensure_alone(&engine.now(), &[moves]).is_err());
    let leaves = Change::RemoveExport("m".to_owned(), export(1, false));
    assert_eq!(ensure_alone(&engine.now(), &[gives(1), leaves]), Ok(()));
    let own = Change::AddExport("m".to_owned(), export(1, false));
    assert_eq!(ensure_alone(&engine.now(), &[own]), Ok(()));
    // Another one that listens is seen when it is bound.
    engine.actual[1].now.run = RunState::default();
    assert_eq!(ensure_alone(&engine.now(), &[gives(1)]), Ok(()));
}

/// A leg that serves; with URIs, one that is configured.
pub fn leg(slot: u8, name: &str, uris: &[&str]) -> LegReport {
    LegReport {
        name: name.into(),
        uris: uris.iter().map(|it| (*it).to_owned()).collect(),
        volume: (!uris.is_empty()).then_some(3),
        slot: Some(slot),
        id: None,
        status: LegStatus::InSync,
        reachable: true,
        admin_offline: false,
        cut_short: false,
        small: false,
        stuck: false,
        due: false,
        why: None,
        facts: None,
        counters: Default::default(),
        rebuild: None,
    }
}

#[test]
fn verbs_of_legs_are_undone_where_that_can_be() {
    let leg = leg(1, "file:/a", &["file:/a"]);
    let of = |verb| Change::Leg("m".into(), Box::new(leg.clone()), verb);
    let (fail, restore) = (of(LegVerb::Fail), of(LegVerb::Restore));
    assert_eq!(fail.undo().as_ref(), Some(&restore));
    assert_eq!(restore.undo().as_ref(), Some(&fail));
    let by = DesiredVolume::of_file(volume("m/1", &[2]), None);
    for (change, said) in [
        (fail, "m: fail leg file:/a"),
        (restore, "m: restore leg file:/a"),
        (of(LegVerb::Replace(Box::new(by))), "m: replace leg file:/a"),
        (of(LegVerb::Forget), "m: remove leg file:/a"),
    ] {
        assert_eq!(change.to_string(), said);
        assert!(change.can_fail() && change.volume() == "m");
    }
}

#[test]
fn settings_of_a_mirror_are_set_and_undone() {
    let mut engine = runs("m", &[]);
    let usual = MirrorSettings::usual();
    let all = MirrorSettings {
        policy: Policy::Numa,
        speed: Some(Speed {
            floor: 1 << 10,
            ceiling: 4 << 20,
        }),
        is_paused: true,
    };
    let mut to = |before: &MirrorSettings, after: &MirrorSettings| {
        engine.actual[0].now.settings = Some(before.clone());
        let mut desired = engine.now();
        desired.volumes[0].settings = Some(after.clone());
        plan(&desired, &engine.actual)
    };
    let words = |plan: &[Change]| plan.iter().map(Change::to_string).collect::<Vec<_>>();
    let set = to(&usual, &all);
    let said = [
        "m: set policy numa",
        "m: pause copies",
        "m: set copies to 1 KiB/s at least, 4 MiB/s at most",
    ];
    assert_eq!(words(&set), said);
    assert!(set.iter().all(|it| it.can_fail() && it.volume() == "m"));
    let undo: Vec<Change> = set.iter().filter_map(Change::undo).collect();
    assert_eq!(undo, to(&all, &usual));
    let said = [
        "m: set policy soonest",
        "m: resume copies",
        "m: set copies to the file's speed",
    ];
    assert_eq!(words(&undo), said);
    assert_eq!(to(&all, &all), []);
    let same = |at: usize, other: usize| set[at].is_of_same(&undo[other]);
    assert!(same(0, 0) && same(2, 2) && !same(0, 2));
    // A reload says nothing of them.
    engine.actual[0].now.settings = None;
    assert_eq!(plan(&engine.now(), &engine.actual), []);
}

#[test]
fn export_that_moves_is_one_change_whoever_may_connect() {
    let with = |name: &str, mode: Option<&str>| Volume {
        exports: vec![Export {
            mode: mode.map(|it| it.parse().unwrap()),
            ..export(1, mode.is_some())
        }],
        ..volume(name, &[1])
    };
    let mut engine = runs("a", &[1]).and(runs("b", &[2]));
    engine.actual[0].now.of.exports = with("a", None).exports;
    let to_b = |mode| {
        [
            volume("a", &[1]),
            Volume {
                paths: vec![path(2)],
                ..with("b", mode)
            },
        ]
    };
    for mode in [None, Some("0666")] {
        let words = words(&to_b(mode), &engine);
        assert_eq!(words, ["b: take export unix:/1 from a"]);
    }
}
