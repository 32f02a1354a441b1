//! Legs that are the same storage by two names.
use crate::cli::common::{Place, code, stderr};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const LEG_BYTES: u64 = 16 << 20;
/// With and without leave to write over what is there.
const WAYS: &[&[&str]] = &[&[], &["--force"]];

/// Loop devices, as long as the test takes.
struct Loops(Vec<String>);

impl Loops {
    /// So many of the same file; `None`: this machine gives none.
    fn new(test: &str, file: &Path, count: usize) -> Option<Self> {
        let mut all = Self(Vec::new());
        for _ in 0..count {
            let mut command = Command::new("losetup");
            let output = command.args(["-f", "--show"]).arg(file).output();
            let output = output.ok().filter(|it| it.status.success());
            let Some(output) = output else {
                let _ = writeln!(std::io::stderr(), "SKIP {test}: losetup gives no device");
                return None;
            };
            let name = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            all.0.push(name);
        }
        Some(all)
    }

    fn uri(&self, at: usize) -> String {
        format!("file:{}", self.0[at])
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = Command::new("losetup").args(["-d", name]).status();
        }
    }
}

fn file(place: &Place, name: &str) -> PathBuf {
    let path = place.path().join(name);
    File::create(&path).unwrap().set_len(LEG_BYTES).unwrap();
    path
}

fn uri(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// A mirror of these is refused.
fn refused(place: &Place, one: &str, other: &str, ways: &[&[&str]]) {
    for force in ways {
        let words = [&["mirror", "create", "v0", one, other][..], *force].concat();
        let output = place.braid(&words);
        let said = stderr(&output);
        assert_eq!(code(&output), 2, "{words:?}: {said}");
        let line = format!("{other}: the same as {one}");
        assert!(said.contains(&line), "{words:?}: no {line:?} in: {said}");
    }
}

#[test]
fn t48_links_and_loop_devices_are_what_they_lead_to() {
    let place = Place::new();
    let first = file(&place, "first");
    let before = fs::read(&first).unwrap();
    let (link, hard) = (place.path().join("link"), place.path().join("hard"));
    std::os::unix::fs::symlink(&first, &link).unwrap();
    fs::hard_link(&first, &hard).unwrap();
    refused(&place, &uri(&first), &uri(&link), WAYS);
    refused(&place, &uri(&hard), &uri(&first), WAYS);
    let test = "t48_links_and_loop_devices_are_what_they_lead_to";
    let Some(loops) = Loops::new(test, &first, 2) else {
        return;
    };
    let to_loop = place.path().join("to-loop");
    std::os::unix::fs::symlink(&loops.0[0], &to_loop).unwrap();
    refused(&place, &loops.uri(0), &uri(&to_loop), WAYS);
    refused(&place, &loops.uri(0), &loops.uri(1), WAYS);
    refused(&place, &uri(&hard), &loops.uri(1), WAYS);
    refused(&place, &loops.uri(1), &uri(&link), WAYS);
    assert!(fs::read(&first).unwrap() == before, "nothing was written");
}

#[test]
fn t48_what_nobody_knows_to_be_the_same_shows_it_when_it_is_written() {
    let test = "t48_what_nobody_knows_to_be_the_same_shows_it_when_it_is_written";
    let place = Place::new();
    let first = file(&place, "first");
    let behind = File::options().read(true).write(true).open(&first).unwrap();
    behind.write_all_at(&[7; 4096], 4096).unwrap();
    behind.sync_all().unwrap();
    let Some(loops) = Loops::new(test, &first, 2) else {
        return;
    };
    // Its name is gone, and with it what the kernel says of what is behind.
    fs::remove_file(&first).unwrap();
    refused(&place, &loops.uri(0), &loops.uri(1), &WAYS[1..]);
    let mut found = [0; 4096];
    behind.read_exact_at(&mut found, 4096).unwrap();
    assert_eq!(found, [7; 4096], "what was there was put back");
    // Two that are two make a mirror.
    let second = file(&place, "second");
    let Some(other) = Loops::new(test, &second, 1) else {
        return;
    };
    let (a, b) = (loops.uri(0), other.uri(0));
    let made = place.braid(&["mirror", "create", "v0", &a, &b, "--force"]);
    assert_eq!(code(&made), 0, "{}", stderr(&made));
}
