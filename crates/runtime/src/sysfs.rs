//! What the kernel tells of block devices in sysfs.
use std::ops::Range;
use std::path::Path;

/// Where the kernel tells of devices.
pub const SYS: &str = "/sys";
/// What positions in sysfs count, bytes.
pub const SECTOR: u64 = 512;

/// Where the bytes of `range` are in what is behind: from `start` on, `bytes` of them at most.
pub fn part_of(range: &Range<u64>, start: u64, bytes: Option<u64>) -> Range<u64> {
    let end = bytes.map_or(u64::MAX, |bytes| start.saturating_add(bytes));
    let at = |offset: u64| start.saturating_add(offset).min(end);
    at(range.start)..at(range.end)
}

/// The number of the device of which a folder of sysfs tells.
pub fn number_of(at: &Path) -> Option<u64> {
    let said = word(&at.join("dev"))?;
    let (major, minor) = said.split_once(':')?;
    Some(rustix::fs::makedev(
        major.parse().ok()?,
        minor.parse().ok()?,
    ))
}

/// What a file of sysfs says, if anything.
pub fn word(at: &Path) -> Option<String> {
    let said = std::fs::read_to_string(at).ok()?;
    Some(said.trim().to_owned()).filter(|it| !it.is_empty())
}
