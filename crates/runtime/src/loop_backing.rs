//! Backing file of a loop device: its byte range, which is locked with the device.
//!
//! # Contract
//! An open of the file itself, or of another loop device over the same bytes, then fails as in use
//! (T48). Devices over parts of a file that have no byte in common don't conflict. Partitions of a
//! loop device lead to their part.
//!
//! # Limits
//! Files are found by the names that the kernel shows: nothing is locked where such a one can't be
//! opened (it was removed) or locked, and another one where another mount namespace has it. Nothing
//! is locked behind other devices on devices (dm, md).
use crate::RuntimeError;
use crate::lock::lock_part;
use crate::sysfs::{self, Below, SYS};
use rustix::fs::{FileType, Mode, OFlags, major, minor};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Loop devices over loop devices are followed so deep.
const DEPTH_MAX: u8 = 8;

/// Locks the files that are behind a block device of this number, as the device itself is locked;
/// they are, for as long as what is given back is open.
///
/// # Errors
/// [`RuntimeError::InUse`], with the file's path.
pub(crate) fn lock_below(number: u64, alone: bool) -> Result<Vec<OwnedFd>, RuntimeError> {
    let mut locked = Vec::new();
    for (path, part) in below(number, Path::new(SYS)) {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else {
            continue;
        };
        match lock_part(&file, &path, &part, alone) {
            Ok(()) => locked.push(file),
            Err(error @ RuntimeError::InUse { .. }) => return Err(error),
            // Its file system knows no locks: the device's own is all there is.
            Err(_) => {}
        }
    }
    Ok(locked)
}

/// Files, or devices, that have what a block device shows, and which of their bytes.
fn below(number: u64, sys: &Path) -> Vec<(PathBuf, Range<u64>)> {
    let (mut found, mut number, mut part) = (Vec::new(), number, 0..u64::MAX);
    for _ in 0..DEPTH_MAX {
        let name = format!("dev/block/{}:{}", major(number), minor(number));
        let Ok(at) = sys.join(name).canonicalize() else {
            break;
        };
        match sysfs::below(&at, &part) {
            Some(Below::Disk(disk, range)) => (number, part) = (disk, range),
            Some(Below::File(file, range)) => {
                let stat = rustix::fs::stat(&file);
                found.push((file, range.clone()));
                match stat.map(|it| (FileType::from_raw_mode(it.st_mode), it.st_rdev)) {
                    Ok((FileType::BlockDevice, device)) => (number, part) = (device, range),
                    _ => break,
                }
            }
            None => break,
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FileDevice;
    use std::fs::{create_dir_all, write};
    use std::io::Write;
    use std::process::Command;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let name = format!("braid-below-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A loop device over these bytes of a file, if one can be had here.
    struct Loop(PathBuf);

    impl Loop {
        fn over(path: &Path, from: u64, bytes: u64) -> Option<Self> {
            let mut command = Command::new("losetup");
            command.args(["-f", "--show", "-o", &from.to_string()]);
            command.args(["--sizelimit", &bytes.to_string()]).arg(path);
            let said = command.output().ok()?;
            let name = String::from_utf8_lossy(&said.stdout).trim().to_owned();
            said.status.success().then(|| Self(name.into()))
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
        }
    }

    #[test]
    fn t48_a_loop_device_is_what_its_file_is() {
        let directory = Directory::new("loop");
        let path = directory.0.join("a");
        std::fs::write(&path, vec![0; 2 << 20]).unwrap();
        let half = |from| Loop::over(&path, from, 1 << 20);
        let (Some(first), Some(second)) = (half(0), half(1 << 20)) else {
            // Past the capture of the test harness.
            let name = "t48_a_loop_device_is_what_its_file_is";
            let _ = writeln!(std::io::stderr(), "SKIP {name}: no loop device can be made");
            return;
        };
        let alone = |path: &Path| FileDevice::open_alone(path.to_owned());
        let writer = |path: &Path| FileDevice::open(path.to_owned(), false, None);
        let is_in_use = |tried: Result<FileDevice, RuntimeError>| match tried {
            Err(RuntimeError::InUse { path: it, .. }) => it == path,
            _ => false,
        };
        let leg = alone(&path).unwrap();
        for device in [&first.0, &second.0] {
            assert!(is_in_use(alone(device)) && is_in_use(writer(device)));
            FileDevice::open(device.clone(), true, None).unwrap();
        }
        drop(leg);
        // Two halves are two legs, and the whole is neither's.
        let legs = [&first.0, &second.0].map(|device| alone(device).unwrap());
        assert!(is_in_use(alone(&path)) && is_in_use(writer(&path)));
        drop(legs);
        let _writer = writer(&first.0).unwrap();
        assert!(is_in_use(alone(&path)));
        writer(&path).unwrap();
    }

    #[test]
    fn a_partition_of_a_loop_device_is_its_part_of_the_file() {
        let sys = Directory::new("sys");
        let disk = sys.0.join("devices/loop0");
        for (name, says) in [
            ("dev", "7:0"),
            ("loop/backing_file", "/no/such/image"),
            ("loop/offset", "4096"),
            ("loop/sizelimit", "0"),
            ("loop0p1/dev", "259:1"),
            ("loop0p1/partition", "1"),
            ("loop0p1/start", "2048"),
            ("loop0p1/size", "16"),
        ] {
            let file = disk.join(name);
            create_dir_all(file.parent().unwrap()).unwrap();
            write(file, format!("{says}\n")).unwrap();
        }
        let block = sys.0.join("dev/block");
        create_dir_all(&block).unwrap();
        for (number, at) in [("7:0", disk.clone()), ("259:1", disk.join("loop0p1"))] {
            std::os::unix::fs::symlink(at, block.join(number)).unwrap();
        }
        let image = PathBuf::from("/no/such/image");
        let start = 4096 + 2048 * 512;
        let part = below(rustix::fs::makedev(259, 1), &sys.0);
        assert_eq!(part, [(image.clone(), start..start + 16 * 512)]);
        let whole = below(rustix::fs::makedev(7, 0), &sys.0);
        assert_eq!(whole, [(image, 4096..u64::MAX)]);
        assert!(below(rustix::fs::makedev(8, 0), &sys.0).is_empty());
        assert!(
            lock_below(rustix::fs::makedev(8, 0), true)
                .unwrap()
                .is_empty()
        );
    }
}
