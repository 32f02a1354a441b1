//! Attributes of block devices in sysfs.
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where the kernel tells of devices.
pub const SYS: &str = "/sys";
/// Unit of positions in sysfs, bytes.
const SECTOR: u64 = 512;

/// The holder of the bytes that a block device shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    /// The disk of a partition, by its number.
    Disk(u64, Range<u64>),
    /// The file or device of a loop device, by its name in the mount namespace of who made it.
    File(PathBuf, Range<u64>),
}

/// Returns the holder of the bytes of `range` of the block device whose sysfs folder is `at`;
/// `None`: they are its own, as far as is known here.
pub fn below(at: &Path, range: &Range<u64>) -> Option<Below> {
    let count = |name: &str| word(&at.join(name)).and_then(|it| it.parse::<u64>().ok());
    if count("partition").is_some() {
        let start = count("start")?.saturating_mul(SECTOR);
        let bytes = count("size").map(|it| it.saturating_mul(SECTOR));
        return Some(Below::Disk(
            number_of(at.parent()?)?,
            part_of(range, start, bytes),
        ));
    }
    let file = word(&at.join("loop/backing_file"))?;
    let bytes = count("loop/sizelimit").filter(|&bytes| bytes > 0);
    let part = part_of(range, count("loop/offset").unwrap_or(0), bytes);
    Some(Below::File(file.into(), part))
}

/// Where the bytes of `range` are in what is behind: from `start` on, `bytes` of them at most.
fn part_of(range: &Range<u64>, start: u64, bytes: Option<u64>) -> Range<u64> {
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

/// Content of a file of sysfs, if any.
pub fn word(at: &Path) -> Option<String> {
    let said = std::fs::read_to_string(at).ok()?;
    Some(said.trim().to_owned()).filter(|it| !it.is_empty())
}
