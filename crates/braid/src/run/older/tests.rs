use super::*;
use crate::run::config::Config;
use crate::run::config::tests::parsed;
use crate::run::known::Known;
use crate::run::marks::Marks;
use crate::run::registry;
use crate::run::{choices::Choices, records::directory};
use multipath::Namespace;
use policy::Policy;
use std::fs;
use std::path::Path;

/// As the version before has written them: v0 over two paths, of which the second was failed by
/// hand, and f0 over a file.
const FILES: [(&str, &str); 3] = [
    ("marks", include_str!("../../../corpus/older/marks.json")),
    (
        "choices",
        include_str!("../../../corpus/older/choices.json"),
    ),
    (
        "volumes",
        include_str!("../../../corpus/older/volumes.json"),
    ),
];

fn place(ids: &[&str]) -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    for (kind, text) in FILES {
        for id in ids {
            fs::write(place.path().join(format!("{kind}-{id}.json")), text).unwrap();
        }
    }
    place
}

fn registry(place: &Path, id: &str, config: &Config) -> Registry {
    let mut registry = Registry::new(place.to_owned(), id.to_owned(), &place.join(id));
    assert!(registry.enter(config.volumes.iter()).is_ok());
    registry
}

/// The volumes of the files, under these names, with v0 in this namespace.
fn config(names: [&str; 2], nsid: u32) -> Config {
    let uri = |port: u32| {
        let at = format!("nvme-tcp://127.0.0.1:{port}/nqn.2026-01.org.example:s");
        format!("[[volume.path]]\nuri = \"{at}?nsid={nsid}\"\n")
    };
    parsed(&format!(
        "[[volume]]\nname = \"{}\"\n{}{}[[volume]]\nname = \"{}\"\n[[volume.path]]\n\
         uri = \"file:/srv/a.img\"\n",
        names[0],
        uri(45331),
        uri(45332),
        names[1]
    ))
}

/// Another namespace than v0 had.
fn another(nsid: u32) -> Namespace {
    Namespace {
        subsystem: "nqn.2026-01.org.example:s".into(),
        controller: 1,
        nsid,
        nguid: [9; 16],
        eui64: [0; 8],
        uuid: [9; 16],
        command_set: 0,
        shared: true,
    }
}

/// Records of the volumes: that v0 waits, is known, has its policy and its failed path; that f0 has
/// its policy and key.
fn found(place: &Path, id: &str, config: &Config) -> [bool; 6] {
    let registry = registry(place, id, config);
    convert(&registry, &config.volumes).unwrap();
    let [v0, f0] = [0, 1].map(|at| &config.volumes[at]);
    let mut known = Known::new(&registry, &[]);
    known.adopt(&registry, &config.volumes).unwrap();
    let mut choices = Choices::new(&registry);
    choices.adopt(&registry, config).unwrap();
    let mut marks = Marks::new(&registry);
    marks.adopt(&registry, &[v0, f0]).unwrap();
    let nsid = registry::places(v0)[0].nsid.unwrap();
    let policy = |of: &Volume| choices.desired(of).of.policy;
    [
        marks.wait_ns(v0).is_some_and(|ns| ns > 0),
        known.check(v0, &another(nsid)).is_err(),
        policy(v0) == Policy::parse("round-robin").unwrap(),
        choices.desired(v0).aside().len() == 1,
        policy(f0) == Policy::parse("round-robin").unwrap(),
        choices.desired(f0).of.recovery().retries_max == 9,
    ]
}

fn old_files(place: &Path) -> usize {
    let kinds = FILES.iter();
    kinds.map(|(kind, _)| others(place, kind).len()).sum()
}

/// Names and texts of all files.
fn records(place: &Path) -> BTreeMap<PathBuf, String> {
    let all = fs::read_dir(directory(place)).into_iter().flatten();
    let all = all.map(|it| it.unwrap().path());
    all.map(|it| (it.clone(), fs::read_to_string(it).unwrap()))
        .map(|(path, text)| (path.file_name().unwrap().into(), text))
        .collect()
}

#[test]
fn files_of_before_are_converted_once() {
    let place = place(&["a"]);
    let config = config(["v0", "f0"], 1);
    assert_eq!(found(place.path(), "a", &config), [true; 6]);
    assert_eq!(old_files(place.path()), 0);
    let all = records(place.path());
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!(found(place.path(), "a", &config), [true; 6]);
    assert_eq!(records(place.path()), all);
}

/// Whatever the volumes are called, and wherever the control socket of their engine was: f0's file
/// stands nowhere in the files of before.
#[test]
fn converted_records_follow_their_volumes() {
    let of_other = place(&["b"]);
    let moved = config(["x", "y"], 1);
    let with = [true, true, true, true, false, false];
    assert_eq!(found(of_other.path(), "a", &moved), with);
    assert_eq!(found(of_other.path(), "a", &moved), with);
    assert_eq!(old_files(of_other.path()), 0);
}

#[test]
fn unrelated_volume_of_the_same_name_inherits_nothing() {
    let other = config(["v0", "f0"], 2);
    let of_other = place(&["b"]);
    assert_eq!(found(of_other.path(), "a", &other), [false; 6]);
    // It is still there for the volume that it is of.
    let own = config(["v0", "g0"], 1);
    let has = found(of_other.path(), "c", &own);
    assert_eq!(has, [true, true, true, true, false, false]);
    // By its own control socket the name stays tied to its data, and nothing else is inherited.
    let own = place(&["a"]);
    let has = found(own.path(), "a", &other);
    assert_eq!(has, [false, true, false, false, true, true]);
}

/// Older versions numbered the legs of a mirror in the order of the file.
#[test]
fn choices_of_legs_follow_their_files() {
    let place = tempfile::tempdir().unwrap();
    let text = "{\"m0/1\": {\"keys\": {\"retries\": {\"configured\": \"5\", \"chosen\": \"9\"}}}}";
    fs::write(place.path().join("choices-a.json"), text).unwrap();
    let mirror = |legs: [&str; 2]| {
        let legs = legs.map(|leg| format!("[[volume.leg]]\nuri = \"file:/srv/{leg}\"\n"));
        let text = format!(
            "[[volume]]\nname = \"m0\"\nkind = \"mirror\"\n{}",
            legs.concat()
        );
        parsed(&text)
    };
    for (legs, its) in [(["a", "b"], 2), (["b", "c"], 1)] {
        let config = mirror(legs);
        let registry = registry(place.path(), "a", &config);
        convert(&registry, &config.volumes).unwrap();
        let mut choices = Choices::new(&registry);
        choices.adopt(&registry, &config).unwrap();
        let retries = |at: usize| {
            let leg = choices.desired(&config.volumes[at]);
            leg.of.recovery().retries_max
        };
        assert_eq!((retries(its), retries(3 - its)), (9, 5), "{legs:?}");
    }
}

/// A kill before any step, and in the middle of one, leaves what the next start makes the same of.
#[test]
fn conversion_that_is_killed_at_any_step_is_done_again() {
    let config = config(["v0", "f0"], 1);
    let whole = place(&["a", "b"]);
    assert_eq!(found(whole.path(), "a", &config), [true; 6]);
    let whole = records(whole.path());
    let count = {
        let place = place(&["a", "b"]);
        let registry = registry(place.path(), "a", &config);
        steps(&registry, &config.volumes, &ids(&registry))
            .unwrap()
            .len()
    };
    assert!(count > 6, "{count}");
    for killed in 0..=count {
        let place = place(&["a", "b"]);
        let registry = registry(place.path(), "a", &config);
        let steps = steps(&registry, &config.volumes, &ids(&registry)).unwrap();
        let (done, left) = steps.split_at(killed);
        done.iter().for_each(|step| step.take().unwrap());
        if let Some(Step::Write(path, _)) = left.first() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path.with_extension("new"), "{\"of\": ").unwrap();
        }
        drop(registry);
        assert_eq!(found(place.path(), "a", &config), [true; 6], "{killed}");
        assert_eq!(old_files(place.path()), 0, "{killed}");
        let mut all = records(place.path());
        all.retain(|name, _| name.extension().unwrap() == "json");
        assert_eq!(all, whole, "{killed}");
    }
}

/// An engine that can't be recorded writes nothing, and heeds what is there.
#[test]
fn files_that_can_not_be_replaced_are_read_where_they_are() {
    let place = place(&["a"]);
    let config = config(["v0", "f0"], 1);
    let registry = Registry::new(place.path().to_owned(), "a".to_owned(), place.path());
    convert(&registry, &config.volumes).unwrap();
    assert_eq!(old_files(place.path()), 3);
    let v0 = &config.volumes[0];
    let mut marks = Marks::new(&registry);
    marks.adopt(&registry, &[v0]).unwrap();
    assert!(marks.wait_ns(v0).is_some_and(|ns| ns > 0));
    let mut known = Known::new(&registry, &[]);
    known.adopt(&registry, &config.volumes).unwrap();
    assert!(known.check(v0, &another(1)).is_err());
}

#[test]
fn files_of_a_running_engine_stay_its_own() {
    let place = place(&["b"]);
    let config = config(["v0", "f0"], 1);
    let mut old = registry(
        place.path(),
        "b",
        &parsed("[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n"),
    );
    let has = found(place.path(), "a", &config);
    assert!(!has[0], "its engine has a volume of that name");
    assert_eq!(old_files(place.path()), 3);
    old.end();
    assert!(found(place.path(), "a", &config)[0]);
    assert_eq!(old_files(place.path()), 0);
}

/// Its record stays as it is, whatever a file of before says of the same namespace.
#[test]
fn record_of_a_running_engine_is_not_merged_with_files_of_before() {
    let place = place(&["c"]);
    let config = config(["v0", "f0"], 1);
    let other = parsed("[[volume]]\nname = \"w0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n");
    let mut running = registry(place.path(), "b", &other);
    let mut marks = Marks::new(&running);
    marks.set_owned(true);
    // It took that over for a reload that failed.
    marks.keep(&config.volumes[0], 1_000_000).unwrap();
    let before = records(place.path());
    assert!(found(place.path(), "a", &config)[0]);
    let after = records(place.path());
    let (name, text) = before.first_key_value().unwrap();
    assert_eq!(after.get(name), Some(text));
    marks.clear("v0").unwrap();
    running.end();
    assert!(found(place.path(), "a", &config)[0], "its own is gone");
}

#[test]
fn hostile_files_of_before_are_refused_or_converted() {
    let place = tempfile::tempdir().unwrap();
    let config = config(["v0", "f0"], 1);
    let registry = registry(place.path(), "a", &config);
    hostile::attack("state", |text| {
        for kind in ["marks", "choices", "volumes"] {
            for id in ["a", "b"] {
                fs::write(place.path().join(format!("{kind}-{id}.json")), text).unwrap();
            }
            match convert(&registry, &config.volumes) {
                Ok(()) => {
                    let mut marks = Marks::new(&registry);
                    marks.adopt(&registry, &[&config.volumes[0]]).unwrap();
                }
                Err(error) => assert!(format!("{error:#}").contains(kind)),
            }
            let _ = fs::remove_dir_all(directory(place.path()));
            for id in ["a", "b"] {
                let _ = fs::remove_file(place.path().join(format!("{kind}-{id}.json")));
            }
        }
    });
}
