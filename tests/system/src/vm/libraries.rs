//! Programs and the shared libraries they need, from the unpacked packages or the host.
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The loader of every x86-64 program.
pub const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";
const PROGRAMS: [&str; 4] = ["usr/bin", "usr/sbin", "bin", "sbin"];
const LIBRARIES: [&str; 3] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/ceph",
];

/// A program of this name: unpacked, else the host's.
pub fn program(unpacked: &Path, name: &str) -> Result<PathBuf> {
    let roots = [unpacked, Path::new("/")];
    let mut places = roots
        .iter()
        .flat_map(|root| PROGRAMS.map(|directory| root.join(directory).join(name)));
    places
        .find(|place| place.is_file())
        .with_context(|| format!("{name} is neither in a package nor on this machine"))
}

/// The value of LD_LIBRARY_PATH under which unpacked programs find their libraries.
pub fn search_path(unpacked: &Path) -> String {
    let places = LIBRARIES.map(|directory| unpacked.join(directory).display().to_string());
    places.join(":")
}

/// Name and place of each library that `program` loads.
pub fn of(unpacked: &Path, program: &Path) -> Result<Vec<(String, PathBuf)>> {
    let output = Command::new(LOADER)
        .args(["--library-path", &search_path(unpacked), "--list"])
        .arg(program)
        .output()
        .with_context(|| format!("start {LOADER}"))?;
    let listed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("not a dynamic executable") || listed.contains("statically linked") {
        return Ok(vec![]);
    }
    ensure!(
        output.status.success(),
        "libraries of {}: {}",
        program.display(),
        said.trim()
    );
    parse(&listed).with_context(|| format!("libraries of {}", program.display()))
}

/// Reads lines such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x7f…)`.
fn parse(listed: &str) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for line in listed.lines() {
        let Some((name, place)) = line.trim().split_once(" => ") else {
            continue;
        };
        let place = place.rsplit_once(" (").map_or(place, |(place, _)| place);
        if place.starts_with("not found") {
            bail!("{name} is missing");
        }
        // The loader itself is listed by its full name.
        if !name.starts_with('/') {
            found.push((name.to_owned(), PathBuf::from(place)));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::path::PathBuf;

    #[test]
    fn a_list_of_libraries_is_read_and_a_missing_one_is_an_error() {
        let listed = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                      \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                      \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let place = PathBuf::from("/lib/x86_64-linux-gnu/libc.so.6");
        assert_eq!(parse(listed).unwrap(), [("libc.so.6".to_owned(), place)]);
        assert!(parse("\tliba.so => not found\n").is_err());
    }
}
