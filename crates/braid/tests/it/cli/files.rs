//! Backing files that change behind the target's back.
use crate::cli::common::{Place, code, stderr, stdout};
use std::fs::OpenOptions;

/// A range behind the new end is a media error at the host, one before it is served, and
/// the target stays; a file that is whole again is served whole again.
#[test]
fn what_was_cut_off_a_backing_file_is_an_error_and_the_rest_is_served() {
    let place = Place::new();
    let path = place.path().join("disk.img");
    let file = path.to_str().unwrap();
    let target = place.target(&["--file", file, "--size", "4MiB", "--quiet"]);
    let bench = |rw: &str, offset: &str| {
        let words = [
            "bench",
            &target.uri,
            "--rw",
            rw,
            "--bs",
            "64k",
            "--offset",
            offset,
        ];
        place.braid(&[&words[..], &["--size", "1m"]].concat())
    };
    for offset in ["0", "3m"] {
        let output = bench("write", offset);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    let cut = OpenOptions::new().write(true).open(&path).unwrap();
    cut.set_len(2 << 20).unwrap();
    for _ in 0..2 {
        let output = bench("read", "3m");
        let said = stderr(&output) + &stdout(&output);
        assert_eq!(code(&output), 1, "{said}");
        assert!(said.contains("the data can't be read or written"), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        let output = bench("read", "0");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
    cut.set_len(4 << 20).unwrap();
    let output = bench("read", "3m");
    assert_eq!(code(&output), 0, "{}", stderr(&output));
}
