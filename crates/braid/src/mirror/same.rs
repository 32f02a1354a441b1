//! Whether two legs are the same storage by two names.
//!
//! # Contract
//! A leg's [`Storage`] is the parts of files, devices and namespaces that its name leads to, as the
//! kernel and the controller tell: links and hard links lead to one file, a loop device to the file
//! behind it, a partition into its disk, the device of a multipath driver to those below. A world
//! wide name that no two can have (`naa`, `eui`, `uuid`) counts as what it names. Two storages that
//! meet in one part are the same. Nothing is written to find out.
//!
//! # Limits
//! Names that vendors give twice (`t10`), and devices that are cut and put together in other ways
//! (dm-linear and others), say nothing here: what is written to one is looked for on the other.
use engine::host::PathFacts;
use runtime::sysfs::{Below, below, number_of, word};
use rustix::fs::{major, minor};
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use uuid::Uuid;

/// Devices on devices are followed so deep: there are no circles, but files are read as found.
const DEPTH_MAX: u8 = 8;
/// Names that only one thing in the world has.
const UNIQUE: [&str; 3] = ["naa.", "eui.", "uuid."];

/// Storage behind a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storage(Vec<(Base, Range<u64>)>);

/// The file or device that bytes are of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Base {
    /// A regular file: device and inode.
    File(u64, u64),
    /// A block device, by its number.
    Device(u64),
    /// A name in the world.
    Name(String),
}

impl Storage {
    /// A file or block device; `sys`: where the kernel tells of devices.
    pub fn of_file(found: &Metadata, sys: &Path) -> Self {
        let mut it = Self::default();
        it.follow(found, 0..u64::MAX, sys, 0);
        it
    }

    /// A namespace, as its controller shows it.
    pub fn of_namespace(facts: &PathFacts) -> Self {
        let (controller, it) = (&facts.controller, &facts.namespace);
        let mut names = vec![format!("{} namespace {}", controller.subnqn, it.nsid)];
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut add = |kind: &str, bytes: &[u8], shown: String| {
            if bytes.iter().any(|byte| *byte != 0) {
                names.push(format!("{kind}{shown}"));
            }
        };
        add("eui.", &it.nguid, hex(&it.nguid));
        add("eui.", &it.eui64, hex(&it.eui64));
        add("uuid.", &it.uuid, Uuid::from_bytes(it.uuid).to_string());
        let all = names.into_iter();
        Self(all.map(|name| (Base::Name(name), 0..u64::MAX)).collect())
    }

    /// Whether both have bytes in common.
    pub fn meets(&self, other: &Self) -> bool {
        let meets = |(base, range): &(Base, Range<u64>)| {
            let mut same = other.0.iter().filter(|it| it.0 == *base);
            same.any(|(_, it)| it.start < range.end && range.start < it.end)
        };
        self.0.iter().any(meets)
    }

    fn follow(&mut self, found: &Metadata, range: Range<u64>, sys: &Path, depth: u8) {
        if found.file_type().is_block_device() {
            self.device(found.rdev(), range, sys, depth);
        } else {
            self.0.push((Base::File(found.dev(), found.ino()), range));
        }
    }

    /// A block device, and what is behind it.
    fn device(&mut self, number: u64, range: Range<u64>, sys: &Path, depth: u8) {
        self.0.push((Base::Device(number), range.clone()));
        let name = format!("dev/block/{}:{}", major(number), minor(number));
        let Ok(at) = sys.join(name).canonicalize() else {
            return;
        };
        if depth == DEPTH_MAX {
            return;
        }
        let said = |name: &str| word(&at.join(name));
        let names = ["wwid", "device/wwid"].into_iter().filter_map(said);
        let unique = |name: &String| UNIQUE.iter().any(|kind| name.starts_with(kind));
        for name in names.filter(unique) {
            self.0.push((Base::Name(name), range.clone()));
        }
        match below(&at, &range) {
            Some(Below::Disk(disk, part)) => self.device(disk, part, sys, depth + 1),
            Some(Below::File(file, part)) => {
                if let Ok(found) = std::fs::metadata(file) {
                    self.follow(&found, part, sys, depth + 1);
                }
            }
            None => {}
        }
        if said("dm/uuid").is_some_and(|it| it.starts_with("mpath-"))
            && let Ok(below) = at.join("slaves").read_dir()
        {
            let below = below.filter_map(|it| number_of(&it.ok()?.path()));
            for path in below.collect::<Vec<_>>() {
                self.device(path, range.clone(), sys, depth + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    /// A sysfs with disks, by the numbers of their devices.
    struct Sys(tempfile::TempDir);

    impl Sys {
        fn new() -> Self {
            let it = Self(tempfile::tempdir().unwrap());
            create_dir_all(it.0.path().join("dev/block")).unwrap();
            it
        }

        fn device(&self, at: &str, number: &str, says: &[(&str, &str)]) {
            let folder = self.0.path().join("devices").join(at);
            for (name, what) in [("dev", number)].iter().chain(says) {
                let file = folder.join(name);
                create_dir_all(file.parent().unwrap()).unwrap();
                write(file, format!("{what}\n")).unwrap();
            }
            symlink(folder, self.0.path().join("dev/block").join(number)).unwrap();
        }

        fn storage(&self, major: u32, minor: u32) -> Storage {
            let mut it = Storage::default();
            let number = rustix::fs::makedev(major, minor);
            it.device(number, 0..u64::MAX, self.0.path(), 0);
            it
        }
    }

    #[test]
    fn t31_paths_to_one_unit_are_one_and_names_that_prove_nothing_are_not() {
        let sys = Sys::new();
        let naa = ("device/wwid", "naa.600140512345678");
        sys.device("sda", "8:0", &[naa]);
        sys.device("sdb", "8:16", &[naa]);
        sys.device("sdc", "8:32", &[("device/wwid", "naa.600140599999999")]);
        sys.device("nvme0n1", "259:0", &[("wwid", "uuid.1b4e28ba-2fa1")]);
        sys.device("nvme1n1", "259:1", &[("wwid", "uuid.1b4e28ba-2fa1")]);
        let same = ("device/wwid", "t10.USB     0000000000");
        sys.device("sdd", "8:48", &[same]);
        sys.device("sde", "8:64", &[same]);
        let meets = |a: (u32, u32), b: (u32, u32)| {
            let (a, b) = (sys.storage(a.0, a.1), sys.storage(b.0, b.1));
            assert_eq!(a.meets(&b), b.meets(&a));
            a.meets(&b)
        };
        assert!(meets((8, 0), (8, 16)) && meets((259, 0), (259, 1)));
        assert!(!meets((8, 0), (8, 32)) && !meets((8, 0), (259, 0)));
        assert!(!meets((8, 48), (8, 64)), "what is written shows it");
        assert!(meets((8, 48), (8, 48)));
        // None of which anything is known.
        assert!(!meets((7, 1), (7, 2)) && meets((7, 1), (7, 1)));
    }

    #[test]
    fn parts_of_a_disk_are_the_disk_and_not_each_other() {
        let sys = Sys::new();
        sys.device("sda", "8:0", &[("device/wwid", "naa.6001405")]);
        let first = [("partition", "1"), ("start", "2048"), ("size", "4096")];
        let second = [("partition", "2"), ("start", "6144"), ("size", "4096")];
        sys.device("sda/sda1", "8:1", &first);
        sys.device("sda/sda2", "8:2", &second);
        // The same disk by another way, and its own first partition.
        sys.device("sdb", "8:16", &[("device/wwid", "naa.6001405")]);
        sys.device("sdb/sdb1", "8:17", &first);
        sys.device("dm-0", "253:0", &[("dm/uuid", "mpath-36001405")]);
        let below = sys.0.path().join("devices/dm-0/slaves");
        create_dir_all(&below).unwrap();
        symlink(sys.0.path().join("devices/sda"), below.join("sda")).unwrap();
        let meets = |a, b| sys.storage(8, a).meets(&sys.storage(8, b));
        assert!(meets(0, 1) && meets(1, 0) && meets(2, 0) && meets(1, 16));
        assert!(!meets(1, 2) && !meets(2, 17));
        assert!(meets(1, 17) && meets(16, 17));
        let multipath = sys.storage(253, 0);
        assert!(multipath.meets(&sys.storage(8, 16)) && multipath.meets(&sys.storage(8, 2)));
    }

    #[test]
    fn what_a_loop_device_has_is_the_part_of_its_file() {
        let sys = Sys::new();
        let file = sys.0.path().join("file");
        write(&file, "x").unwrap();
        let name = file.to_str().unwrap();
        let behind = ("loop/backing_file", name);
        sys.device("loop0", "7:0", &[behind, ("loop/offset", "0")]);
        let first = [behind, ("loop/offset", "0"), ("loop/sizelimit", "1048576")];
        sys.device("loop1", "7:1", &first);
        sys.device("loop2", "7:2", &[behind, ("loop/offset", "1048576")]);
        let gone = [("loop/backing_file", "/no/such (deleted)")];
        sys.device("loop3", "7:3", &gone);
        let found = std::fs::metadata(&file).unwrap();
        let file = Storage::of_file(&found, sys.0.path());
        let all: Vec<Storage> = (0..4).map(|minor| sys.storage(7, minor)).collect();
        assert!(all[..3].iter().all(|it| it.meets(&file)));
        assert!(all[0].meets(&all[1]) && all[0].meets(&all[2]));
        assert!(!all[1].meets(&all[2]) && !all[3].meets(&file));
    }
}
