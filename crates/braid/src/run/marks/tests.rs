use super::*;
use std::path::Path;

#[test]
fn the_order_of_paths_says_nothing() {
    let of = |uris: &[&str]| -> Vec<String> { uris.iter().map(|uri| uri.to_string()).collect() };
    assert!(same(&of(&["a", "b"]), &of(&["b", "a"])));
    assert!(!same(&of(&["a", "b"]), &of(&["a"])));
}

fn registry(directory: &Path, id: &str) -> Registry {
    Registry::new(directory.to_owned(), id.to_owned(), &directory.join(id))
}

/// The marks of an engine that starts with these volumes.
fn started(directory: &Path, volumes: &[&Volume]) -> Marks {
    started_as("a", directory, volumes)
}

fn started_as(id: &str, directory: &Path, volumes: &[&Volume]) -> Marks {
    let registry = registry(directory, id);
    let mut marks = Marks::new(&registry);
    marks.set_owned(true);
    marks.adopt(&registry, volumes).unwrap();
    marks
}

/// Files of marks.
fn files(directory: &Path) -> usize {
    let all = std::fs::read_dir(directory.join("volumes"));
    all.map_or(0, Iterator::count)
}

fn volume(name: &str, uri: &str) -> Volume {
    let text = format!("[[volume]]\nname = \"{name}\"\n[[volume.path]]\nuri = \"{uri}\"\n");
    crate::run::config::tests::parsed(&text).volumes.remove(0)
}

fn nvme(address: &str, more: &str) -> String {
    format!("nvme-tcp://{address}:4420/nqn.2026-01.org.example:{more}")
}

const MINUTE: Option<u64> = Some(60_000_000_000);

#[test]
fn a_mark_names_the_paths_as_they_are_when_the_engine_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let text = "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n";
    let volume = |more: &str| {
        let config = crate::run::config::tests::parsed(&format!("{text}{more}"));
        config.volumes[0].clone()
    };
    let (before, now) = (volume(""), volume("[[volume.path]]\nuri = \"mem:2MiB\"\n"));
    let said = || {
        let line = started(place, &[&now]).in_words(&now);
        line.map(|line| line.contains("its paths were others then"))
    };
    let mut marks = started(place, &[&before]);
    marks.keep_paths(&now).unwrap();
    assert_eq!(said(), None, "none is made");
    marks.keep(&before, 60_000_000_000).unwrap();
    assert_eq!(said(), Some(true));
    marks.keep_paths(&now).unwrap();
    assert_eq!(said(), Some(false));
    let wait_ns = started(place, &[&now]).wait_ns(&now);
    assert_eq!(wait_ns, MINUTE, "as long as before");
}

#[test]
fn where_nothing_is_marked_there_is_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let of = volume("v0", "mem:1MiB");
    let mut marks = started(place, &[&of]);
    marks.clear("v0").unwrap();
    marks.keep(&of, 1_000_000).unwrap();
    assert_eq!(files(place), 1);
    marks.close(std::slice::from_ref(&of)).unwrap();
    assert_eq!(files(place), 0);
    assert_eq!(started(place, &[&of]).wait_ns(&of), None);
}

#[test]
fn t13_what_was_not_flushed_is_the_next_engines_to_flush_and_nothing_waits() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let (a, b) = (volume("a", "mem:1MiB"), volume("b", "mem:2MiB"));
    let mut marks = started(place, &[&a, &b]);
    marks.keep(&a, 60_000_000_000).unwrap();
    marks.keep(&b, 60_000_000_000).unwrap();
    marks.note_unflushed("a", uris(&a));
    marks.close(&[a.clone(), b.clone()]).unwrap();
    let of = |volume: &Volume| {
        let marks = started(place, &[volume]);
        (marks.wait_ns(volume), marks.in_words(volume))
    };
    assert_eq!(of(&a), (Some(0), None));
    assert_eq!(of(&b), (None, None));
    // One that doesn't have the volume leaves it to the one after it.
    let mut marks = started(place, &[&b]);
    marks.close(std::slice::from_ref(&b)).unwrap();
    assert_eq!(of(&a), (Some(0), None));
    let renamed = volume("c", "mem:1MiB");
    let mut marks = started(place, &[&b, &renamed]);
    marks.close(&[b, renamed]).unwrap();
    assert_eq!(files(place), 0);
}

#[test]
fn t13_a_loss_that_nobody_was_told_is_the_next_engines_to_tell() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let a = volume("a", "mem:1MiB");
    let untold = || started(place, &[&a]).before(&a).unreported_loss;
    let mut marks = started(place, &[&a]);
    marks.keep(&a, 60_000_000_000).unwrap();
    marks.note_loss(&a, 0, true).unwrap();
    marks.keep(&a, 70_000_000_000).unwrap();
    assert!(untold(), "killed");
    marks.close(std::slice::from_ref(&a)).unwrap();
    assert!(untold(), "stopped");
    let mut marks = started(place, &[&a]);
    marks.note_loss(&a, 0, true).unwrap();
    marks.note_loss(&a, 1, true).unwrap();
    marks.note_loss(&a, 0, false).unwrap();
    assert!(untold(), "clients of core 1 were not");
    marks.note_loss(&a, 1, false).unwrap();
    assert!(!untold(), "told");
    marks.close(std::slice::from_ref(&a)).unwrap();
    assert_eq!(files(place), 0);
}

#[test]
fn t13_a_volume_that_left_unflushed_is_heeded_by_the_next_with_its_path() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let a = volume("a", "mem:1MiB");
    let mut marks = started(place, &[&a]);
    marks.keep(&a, 60_000_000_000).unwrap();
    marks.note_unflushed("a", uris(&a));
    marks.clear("a").unwrap();
    assert_eq!(marks.wait_ns(&volume("b", "mem:1MiB")), Some(0));
    assert_eq!(started(place, &[&a]).wait_ns(&a), Some(0));
}

#[test]
fn t09_the_mark_of_a_volume_that_leaves_with_unfinished_changes_stays() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let a = volume("a", "mem:1MiB");
    let mut marks = started(place, &[&a]);
    marks.keep(&a, 60_000_000_000).unwrap();
    marks.note_unfinished("a");
    marks.note_unflushed("a", uris(&a));
    marks.clear("a").unwrap();
    marks.close(&[]).unwrap();
    assert_eq!(started(place, &[&a]).wait_ns(&a), MINUTE);
}

#[test]
fn t09_marks_of_volumes_that_swap_their_names_both_hold() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let of = |name, nsid| volume(name, &nvme("10.0.0.1", &format!("s?nsid={nsid}")));
    let (a, b) = (of("a", 1), of("b", 2));
    let mut marks = started(place, &[&a, &b]);
    marks.keep(&a, 60_000_000_000).unwrap();
    marks.keep(&b, 60_000_000_000).unwrap();
    for [one, two] in [["b", "a"], ["b", "c"], ["a", "b"]] {
        let now = [of(one, 1), of(two, 2)];
        let mut marks = started(place, &[&now[0], &now[1]]);
        assert_eq!([0, 1].map(|at| marks.wait_ns(&now[at])), [MINUTE; 2]);
        now.iter().for_each(|it| marks.keep(it, 1).unwrap());
        assert_eq!(files(place), 2);
    }
}

#[test]
fn t09_mark_of_a_volume_that_is_not_there_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let [before, now] = ["mem:1MiB", "mem:2MiB"].map(|uri| volume("v0", uri));
    let mut marks = started(place, &[&before]);
    marks.keep(&before, 60_000_000_000).unwrap();
    let mut marks = started(place, &[&now]);
    marks.keep(&now, 1_000_000).unwrap();
    assert_eq!(started(place, &[&before]).wait_ns(&before), MINUTE);
}

#[test]
fn t09_mark_stays_where_another_volume_comes_by_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let of = |name, nsid| volume(name, &nvme("10.0.0.1", &format!("s?nsid={nsid}")));
    let (before, now) = (of("x", 1), of("x", 2));
    let mut marks = started(place, &[&before]);
    marks.keep(&before, 60_000_000_000).unwrap();
    for again in 0..2 {
        let mut marks = started(place, &[&before]);
        marks.clear("x").unwrap();
        marks.adopt(&registry(place, "a"), &[&now]).unwrap();
        assert_eq!(marks.wait_ns(&now), None, "{again}");
        marks.keep(&now, 30_000_000_000).unwrap();
        assert_eq!(started(place, &[&now]).wait_ns(&now), Some(30_000_000_000));
        assert_eq!(marks.wait_ns(&of("y", 1)), MINUTE, "{again}");
        marks.put_back("x").unwrap();
        assert_eq!(files(place), 1, "{again}");
    }
    for name in ["x", "y"] {
        let now = of(name, 1);
        assert_eq!(started(place, &[&now]).wait_ns(&now), MINUTE, "{name}");
    }
}

#[test]
fn t13_mark_that_is_over_stays_of_a_volume_that_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let a = volume("a", &nvme("10.0.0.1", "s?nsid=1"));
    let mut marks = started(place, &[&a]);
    marks.keep(&a, 0).unwrap();
    for keeps in [false, true] {
        let mut marks = started(place, &[]);
        marks.adopt(&registry(place, "a"), &[&a]).unwrap();
        if keeps {
            marks.keep(&a, 60_000_000_000).unwrap();
        }
        marks.put_back("a").unwrap();
        assert_eq!(started(place, &[&a]).wait_ns(&a), Some(0), "{keeps}");
    }
    let mut marks = started(place, &[]);
    marks.put_back("a").unwrap();
    let b = volume("b", &nvme("10.0.0.1", "s?nsid=2"));
    marks.keep(&b, 60_000_000_000).unwrap();
    marks.put_back("b").unwrap();
    assert_eq!(files(place), 1, "its own goes");
}

#[test]
fn t09_mark_is_found_by_path_and_not_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let [a, b] = [volume("a", "mem:1MiB"), volume("b", "mem:2MiB")];
    let mut marks = started(place, &[&a, &b]);
    marks.keep(&a, 60_000_000_000).unwrap();
    marks.keep(&b, 30_000_000_000).unwrap();
    let of = |name, uri| volume(name, uri);
    let wait_ns = |of: &Volume| started_as("b", place, &[of]).wait_ns(of);
    assert_eq!(wait_ns(&of("c", "mem:3MiB")), None, "neither");
    assert_eq!(wait_ns(&of("a", "mem:3MiB")), None, "another volume");
    let renamed = of("c", "mem:1MiB");
    assert_eq!(wait_ns(&renamed), MINUTE, "renamed");
    assert_eq!(wait_ns(&of("b", "mem:1MiB")), MINUTE, "renamed again");
    let line = started(place, &[&renamed]).in_words(&renamed).unwrap();
    assert!(
        line.starts_with("c: an earlier engine left changes under way"),
        "{line}"
    );
    assert_eq!(wait_ns(&of("a", "mem:2MiB")), Some(30_000_000_000));
}

/// The kernel's devices have other numbers now.
#[test]
fn t09_name_counts_where_nothing_says_which_namespace() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let before = volume("v0", "nvme-ng:/dev/ng0n1");
    let mut marks = started(place, &[&before]);
    marks.keep(&before, 60_000_000_000).unwrap();
    let wait_ns = |id, of: &Volume| started_as(id, place, &[of]).wait_ns(of);
    let [other, far] = [
        volume("w0", "nvme-ng:/dev/ng1n1"),
        volume("v0", &nvme("10.0.0.1", "s?nsid=1")),
    ];
    assert_eq!([wait_ns("a", &other), wait_ns("a", &far)], [None; 2]);
    let now = volume("v0", "nvme-ng:/dev/ng1n1");
    assert_eq!(wait_ns("b", &now), None, "another engine's name");
    assert_eq!(wait_ns("a", &now), MINUTE);
}

/// Two volumes of before are one now: it waits for the longer one, and one file is left.
#[test]
fn t09_marks_of_one_volume_are_merged() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let uris = [nvme("10.0.0.1", "s?nsid=1"), nvme("10.0.0.1", "s?nsid=2")];
    let [a, b] = [volume("a", &uris[0]), volume("b", &uris[1])];
    let mut marks = started(place, &[&a, &b]);
    marks.keep(&a, 30_000_000_000).unwrap();
    marks.keep(&b, 60_000_000_000).unwrap();
    let any = volume("c", &nvme("10.0.0.2", "s"));
    for _ in 0..2 {
        assert_eq!(started(place, &[&any]).wait_ns(&any), MINUTE);
        assert_eq!(files(place), 1);
    }
}

#[test]
fn t13_paths_that_were_discovered_are_there_again_after_an_unclean_stop() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let volume = |name: &str, keys: &str, paths: &[&str]| {
        let nqn = "nqn.2026-01.org.example:v0";
        let paths = paths
            .iter()
            .map(|uri| format!("[[volume.path]]\nuri = \"nvme-tcp://{uri}\"\n"));
        let text = format!(
            "[[discovery]]\nuri = \"nvme-tcp://127.0.0.1\"\n[[volume]]\nname = \"{name}\"\n\
             subsystem = \"{nqn}\"\n{keys}{}",
            paths.collect::<String>()
        );
        crate::run::config::tests::parsed(&text).volumes.remove(0)
    };
    let [two, one, other, first] = [
        "10.0.0.2:4420/nqn.2026-01.org.example:v0",
        "10.0.0.1:4420/nqn.2026-01.org.example:v0",
        "10.0.0.3:4420/nqn.2026-01.org.example:w0",
        "10.0.0.1:4420/nqn.2026-01.org.example:v0?nsid=1",
    ];
    let mut before = volume("a", "", &[two, one, other]);
    let mut marks = started(place, &[&before]);
    // Added by hand: the file can't have both.
    let by_hand: PathUri = format!("nvme-tcp://{first}").parse().unwrap();
    before.paths.push(by_hand.into());
    let place_of = places(&volume("a", "nsid = 1\n", &[])).remove(0);
    marks.name_namespace("a", place_of);
    marks.keep(&before, 60_000_000_000).unwrap();
    let discovered = |name, keys, paths: &[&str]| {
        let of = volume(name, keys, paths);
        let marks = started(place, &[&of]);
        let uris = marks.discovered(&of).into_iter();
        let uris = uris.map(|uri| uri.to_string());
        (uris.collect::<Vec<_>>(), marks.wait_ns(&of))
    };
    let uris = |all: &[&str]| -> Vec<_> {
        let all = all.iter();
        all.map(|it| format!("nvme-tcp://{it}")).collect()
    };
    assert_eq!(discovered("b", "nsid = 2\n", &[]), (Vec::new(), None));
    assert_eq!(discovered("a", "", &[]), (uris(&[two, one]), MINUTE));
    assert_eq!(discovered("b", "", &[]), (uris(&[two, one]), MINUTE));
    assert_eq!(discovered("a", "", &[two]), (uris(&[one]), MINUTE));
    assert_eq!(discovered("a", "nsid = 1\n", &[]), (uris(&[first]), MINUTE));
}

#[test]
fn t09_mark_with_a_running_engine_without_its_volume_holds() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let of = |name: &str| volume(name, &nvme("10.0.0.1", &format!("{name}?nsid=1")));
    let (a, b) = (of("a"), of("b"));
    let mut running = registry(place, "running");
    assert!(running.enter(std::iter::once(&a)).is_ok());
    // It took over the mark of b for a reload that failed, and has one of its own.
    let mut marks = Marks::new(&running);
    for of in [&a, &b] {
        marks.keep(of, 60_000_000_000).unwrap();
    }
    let adopted = || {
        let marks = started_as("new", place, &[&a, &b]);
        [&a, &b].map(|of| marks.wait_ns(of))
    };
    assert_eq!(adopted(), [None, MINUTE]);
    let stays = |name| marks.records.has(name);
    assert!(stays("a") && stays("b"), "they stay there");
    assert_eq!(files(place), 3, "the new engine has one of its own");
    running.end();
    assert_eq!(adopted(), [MINUTE; 2]);
}

#[test]
fn hostile_files_are_refused_or_hold_marks() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let of = volume("v0", "mem:1MiB");
    let path = place.join("volumes/mark-0.json");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let registry = registry(place, "a");
    hostile::attack("records", |text| {
        std::fs::write(&path, text).unwrap();
        let mut marks = Marks::new(&registry);
        marks.set_owned(true);
        match marks.adopt(&registry, &[&of]) {
            Ok(()) => {
                let its: Vec<&Mark> = marks.map.values().collect();
                let wait_ns = marks.wait_ns(&of);
                assert_eq!(wait_ns.is_some(), !its.is_empty());
                let waits = wait_ns.is_some_and(|ns| ns > 0);
                assert_eq!(waits, its.iter().any(|it| it.bound_ms != Some(0)));
                assert_eq!(marks.in_words(&of).is_some(), waits);
                marks.keep(&of, 1).unwrap();
                assert_eq!(started(place, &[&of]).map, marks.map);
                marks.clear("v0").unwrap();
            }
            Err(error) => assert!(format!("{error:#}").contains("mark-0.json")),
        }
        for file in std::fs::read_dir(place.join("volumes")).unwrap() {
            std::fs::remove_file(file.unwrap().path()).unwrap();
        }
    });
}
