//! Users of a node: what a stop of its device would take the data of.
use rustix::fs::{Mode, OFlags, major, minor};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use sys::ublk::node_path;

/// Opens a node so that nothing else can have it for its own: no mount, no swap, no other driver.
///
/// # Errors
/// Why it can't be; then it counts as used.
pub fn claim(id: u32) -> Result<fs::File, String> {
    let path = node_path(id);
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::empty());
    let file = fs::File::from(file.map_err(|error| match error {
        // A mount of another namespace is seen by this alone.
        Errno::BUSY => "a mount, swap, or another driver".to_owned(),
        error => format!("it cannot be opened: {error}"),
    })?);
    let found = file.metadata().map_err(|error| error.to_string())?.rdev();
    let number = fs::read_to_string(format!("/sys/block/ublkb{id}/dev")).unwrap_or_default();
    match number.trim() == format!("{}:{}", major(found), minor(found)) {
        true => Ok(file),
        false => Err(format!("{path} leads to another device")),
    }
}

/// Users of a node, in words: those that are known without a look at processes or at the node.
pub fn at_once(id: u32) -> Vec<String> {
    let path = node_path(id);
    let number = fs::read_to_string(format!("/sys/block/ublkb{id}/dev"));
    let number = number.unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut all = mounted(&mounts, number.trim());
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().any(|it| it.split(' ').next() == Some(&path)) {
        all.push("swap".into());
    }
    let above = entries(format!("/sys/block/ublkb{id}/holders"));
    all.extend(above.map(|it| format!("/dev/{}", it.file_name().display())));
    // These have it open, but not for their own.
    for it in entries("/sys/block") {
        if leads_to(&it.path().join("loop/backing_file"), &path) {
            all.push(format!("/dev/{}", it.file_name().display()));
        }
    }
    for subsystem in entries("/sys/kernel/config/nvmet/subsystems") {
        for it in fs::read_dir(subsystem.path().join("namespaces"))
            .into_iter()
            .flatten()
            .flatten()
        {
            if leads_to(&it.path().join("device_path"), &path) {
                let name = subsystem.file_name();
                all.push(format!("a namespace of {} (nvmet)", name.display()));
            }
        }
    }
    all
}

fn entries(directory: impl AsRef<Path>) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(directory).into_iter().flatten().flatten()
}

/// Whether the file holds the path of a node, or of a part of it.
fn leads_to(file: &Path, node: &str) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    let rest = text.trim().strip_prefix(node);
    rest.is_some_and(|it| it.is_empty() || it.starts_with('p'))
}

/// Device numbers of a node and of its parts.
fn numbers(path: &str) -> Vec<u64> {
    let name = path.trim_start_matches("/dev/");
    let parts = entries(format!("/sys/block/{name}")).map(|it| it.file_name());
    let parts = parts.filter_map(|it| Some(it.to_str()?.to_owned()));
    let parts = parts
        .filter(|it| it.starts_with(name))
        .map(|it| format!("/dev/{it}"));
    let all = parts.chain([path.to_owned()]);
    all.filter_map(|it| Some(fs::metadata(it).ok()?.rdev()))
        .collect()
}

/// Mounts of a device, by its numbers, from a mountinfo.
fn mounted(mountinfo: &str, number: &str) -> Vec<String> {
    let of = mountinfo.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let at = (words.nth(2)? == number).then(|| words.nth(1))?;
        at.map(|at| format!("mounted on {at}"))
    });
    of.collect()
}

/// Processes, but this one, that have it open.
pub fn processes(path: &str) -> Vec<String> {
    let numbers = numbers(path);
    let own = std::process::id().to_string();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter(|it| it.file_name() != *own.as_str());
    let has = |process: &Path| {
        let files = fs::read_dir(process.join("fd"));
        let mut files = files.into_iter().flatten().flatten();
        // Only of devices: to ask about others can wait, for a file system that hangs.
        files.any(|it| {
            let is_device = fs::read_link(it.path()).is_ok_and(|to| to.starts_with("/dev"));
            is_device && fs::metadata(it.path()).is_ok_and(|it| numbers.contains(&it.rdev()))
        })
    };
    let of = all.filter_map(|it| {
        let pid: u32 = it.file_name().to_str()?.parse().ok()?;
        let process = it.path();
        let name = has(&process).then(|| fs::read_to_string(process.join("comm")))?;
        let name = name.unwrap_or_default();
        Some(format!("process {pid} ({})", name.trim()))
    });
    of.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_device_number() {
        let text = "36 35 98:0 /a /mnt1 rw,noatime master:1 - ext3 /dev/root rw\n\
                    37 35 259:3 / /mnt\\0402 rw - ext4 /dev/ublkb0 rw\n\
                    bad line\n";
        assert_eq!(mounted(text, "259:3"), ["mounted on /mnt\\0402"]);
        assert!(mounted(text, "98:1").is_empty());
    }

    #[test]
    fn path_of_a_part_leads_to_its_node() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("device_path");
        for (text, leads) in [
            ("/dev/ublkb1\n", true),
            ("/dev/ublkb1p2\n", true),
            ("/dev/ublkb12\n", false),
            ("(null)\n", false),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(leads_to(&file, "/dev/ublkb1"), leads, "{text}");
        }
        assert!(!leads_to(&directory.path().join("none"), "/dev/ublkb1"));
    }

    #[test]
    fn processes_that_have_a_device_open_are_named() {
        let mut child = std::process::Command::new("sleep");
        let null = fs::File::open("/dev/zero").unwrap();
        let mut child = child.arg("100").stdin(null).spawn().unwrap();
        let all = processes("/dev/zero");
        let name = format!("process {} (sleep)", child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(all.contains(&name), "{all:?}");
    }
}
