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
    let above = fs::read_dir(format!("/sys/block/ublkb{id}/holders"));
    let above = above.into_iter().flatten().flatten();
    all.extend(above.map(|it| format!("/dev/{}", it.file_name().display())));
    all
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
    let Ok(node) = fs::metadata(path) else {
        return Vec::new();
    };
    let own = std::process::id().to_string();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = all.filter(|it| it.file_name() != *own.as_str());
    let has = |process: &Path| {
        let files = fs::read_dir(process.join("fd"));
        let mut files = files.into_iter().flatten().flatten();
        // Only of devices: to ask about others can wait, for a file system that hangs.
        files.any(|it| {
            let is_device = fs::read_link(it.path()).is_ok_and(|to| to.starts_with("/dev"));
            is_device && fs::metadata(it.path()).is_ok_and(|it| it.rdev() == node.rdev())
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
