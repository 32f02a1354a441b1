//! Facts that `--help` must state because users can't know them otherwise.
use crate::cli::common::{Place, code};

fn help(place: &Place, verb: &[&str]) -> String {
    let output = place.braid(&[verb, &["--help"]].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // However lines are broken.
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A Linux host has one size, protection and block size for all paths of a disk: those of the port
/// that it scanned last.
#[test]
fn target_verbs_say_what_a_change_does_to_a_linux_host() {
    let place = Place::new();
    let set = help(&place, &["target", "set"]);
    for words in [
        "Size, write protection and block size are the namespace's, on all ports",
        "A Linux host gives the disk of all its paths those of the port that it scanned last",
        "a change shrinks or write-protects that disk at once",
        "also where other ports show the old ones",
        "`braid target resize --help`",
    ] {
        assert!(set.contains(words), "{words}: {set}");
    }
    let resize = help(&place, &["target", "resize"]);
    for words in [
        "Hosts see the new size at once",
        "a smaller size shrinks the disk under its users",
    ] {
        assert!(resize.contains(words), "{words}: {resize}");
    }
}
