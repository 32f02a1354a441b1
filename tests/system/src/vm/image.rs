//! The guest's file system: what every run has in common.
use super::archive::Archive;
use super::libraries;
use super::packages::{self, Kernel};
use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Raise it when what goes into the image changes: older ones are then made anew.
const LAYOUT: &str = "5";
/// Programs that scripts may use, besides busybox's.
const PROGRAMS: [&str; 20] = [
    "dash",
    "kmod",
    "ip",
    "tc",
    "nvme",
    "fio",
    "mke2fs",
    "e2fsck",
    "blkdiscard",
    "fallocate",
    "cmp",
    "nsenter",
    "blockdev",
    "jq",
    "timeout",
    "unshare",
    "nbd-client",
    "nbdfuse",
    "mkfs.xfs",
    "xfs_repair",
];
/// Other names of these.
const LINKS: [(&str, &str); 7] = [
    ("sh", "dash"),
    ("modprobe", "kmod"),
    ("insmod", "kmod"),
    ("lsmod", "kmod"),
    ("rmmod", "kmod"),
    ("mkfs.ext4", "mke2fs"),
    ("fsck.ext4", "e2fsck"),
];
/// Modules that scripts may load; what they depend on comes with them.
const MODULES: [&str; 26] = [
    "nvme-tcp",
    "nvmet-tcp",
    "nvme",
    "brd",
    "null_blk",
    "loop",
    "nbd",
    "ublk_drv",
    "ext4",
    "xfs",
    "crc32c_generic",
    "crc32c-intel",
    "veth",
    "sch_netem",
    "sch_tbf",
    "sch_fq",
    "sch_ingress",
    "cls_u32",
    "act_pedit",
    "virtio_net",
    "virtio_blk",
    "9pnet_virtio",
    "9p",
    "dm-mod",
    "dm-flakey",
    "dm-delay",
];
const DIRECTORIES: [&str; 14] = [
    "dev",
    "proc",
    "sys",
    "tmp",
    "run",
    "mnt",
    "etc",
    "etc/nvme",
    "var",
    "usr",
    "usr/bin",
    "usr/lib",
    "usr/lib64",
    "guest",
];
/// Names under which older paths lead to the new ones.
const MERGED: [(&str, &str); 5] = [
    ("bin", "usr/bin"),
    ("sbin", "usr/bin"),
    ("lib", "usr/lib"),
    ("lib64", "usr/lib64"),
    ("usr/sbin", "bin"),
];

/// A guest that can be started.
pub struct Image {
    /// The kernel.
    pub kernel: PathBuf,
    /// Its version.
    pub kernel_version: String,
    /// The file system, an archive.
    pub base: PathBuf,
    /// Unpacked packages.
    pub unpacked: PathBuf,
    /// Where everything is kept.
    pub directory: PathBuf,
}

/// The image with this kernel, made if it isn't there (or `fresh`).
///
/// # Errors
/// What is missing on this machine, with its name.
pub fn build(root: &Path, kernel: Kernel, fresh: bool) -> Result<Image> {
    ensure!(
        cfg!(all(target_arch = "x86_64", target_os = "linux")),
        "this needs Linux on x86-64"
    );
    let directory = super::directory(root);
    let unpacked = directory.join("root");
    let stamp = directory.join("layout");
    let current = fs::read_to_string(&stamp).is_ok_and(|found| found == LAYOUT);
    if fresh || !current {
        let _ = fs::remove_file(&stamp);
        fs::create_dir_all(&directory)
            .with_context(|| format!("create {}", directory.display()))?;
        packages::unpack(&directory, &unpacked, fresh)?;
        let version = kernel_version(&unpacked)?;
        index_modules(&unpacked, &unpacked, &directory, &version)?;
        write(&unpacked, &unpacked, &version, &directory.join("base.cpio"))?;
        fs::write(&stamp, LAYOUT)?;
    }
    let mut of_kernel = unpacked.clone();
    let mut base = directory.join("base.cpio");
    if kernel == Kernel::V6_1 {
        of_kernel = directory.join("kernel-6.1");
        base = directory.join("base-6.1.cpio");
        packages::unpack_kernel(&directory, &of_kernel, kernel, fresh)?;
        // Its own archive, older than the one of all programs or missing: written (again).
        let written = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
        if fresh || written(&base) < written(&stamp) {
            let version = kernel_version(&of_kernel)?;
            index_modules(&unpacked, &of_kernel, &directory, &version)?;
            write(&unpacked, &of_kernel, &version, &base)?;
        }
    }
    let kernel_version = kernel_version(&of_kernel)?;
    Ok(Image {
        kernel: of_kernel.join(format!("boot/vmlinuz-{kernel_version}")),
        base,
        kernel_version,
        unpacked,
        directory,
    })
}

fn kernel_version(unpacked: &Path) -> Result<String> {
    let modules = unpacked.join("lib/modules");
    let mut found =
        fs::read_dir(&modules).with_context(|| format!("read {}", modules.display()))?;
    let first = found
        .next()
        .context("the kernel's package has no modules")??;
    Ok(first.file_name().to_string_lossy().into_owned())
}

/// Makes modules.dep and its kin.
fn index_modules(unpacked: &Path, of_kernel: &Path, directory: &Path, version: &str) -> Result<()> {
    // One program under several names: it looks at the name it is called by.
    let depmod = directory.join("depmod");
    let _ = fs::remove_file(&depmod);
    symlink(libraries::program(unpacked, "kmod")?, &depmod)?;
    let done = Command::new(&depmod)
        .arg("-b")
        .arg(of_kernel)
        .arg(version)
        .env("LD_LIBRARY_PATH", libraries::search_path(unpacked))
        .output()
        .context("start depmod")?;
    let said = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "depmod: {}", said.trim());
    Ok(())
}

/// Writes the whole archive, under another name until it is complete.
fn write(unpacked: &Path, of_kernel: &Path, version: &str, to: &Path) -> Result<()> {
    let unfinished = to.with_extension("new");
    let file =
        File::create(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
    let mut archive = Archive::new(BufWriter::new(file));
    for path in DIRECTORIES {
        archive.directory(path)?;
    }
    for (path, to) in MERGED {
        archive.link(path, to)?;
    }
    add_programs(&mut archive, unpacked)?;
    add_modules(&mut archive, of_kernel, version)?;
    for path in ["/etc/mke2fs.conf"] {
        if Path::new(path).is_file() {
            archive.file(path, false, Path::new(path))?;
        }
    }
    archive.finish()?;
    fs::rename(&unfinished, to)?;
    Ok(())
}

fn add_programs<W: std::io::Write>(archive: &mut Archive<W>, unpacked: &Path) -> Result<()> {
    let busybox = libraries::program(unpacked, "busybox")?;
    archive.file("usr/bin/busybox", true, &busybox)?;
    let mut taken: BTreeSet<String> = BTreeSet::from(["busybox".to_owned()]);
    let mut needed: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in PROGRAMS {
        let program = libraries::program(unpacked, name)?;
        archive.file(&format!("usr/bin/{name}"), true, &program)?;
        needed.extend(libraries::of(unpacked, &program)?);
        taken.insert(name.to_owned());
    }
    for (name, to) in LINKS {
        archive.link(&format!("usr/bin/{name}"), to)?;
        taken.insert(name.to_owned());
    }
    let applets = Command::new(&busybox).arg("--list").output()?;
    let applets = String::from_utf8_lossy(&applets.stdout).into_owned();
    for applet in applets.lines().filter(|&applet| !taken.contains(applet)) {
        archive.link(&format!("usr/bin/{applet}"), "busybox")?;
    }
    archive.file(
        &format!("usr{}", libraries::LOADER),
        true,
        Path::new(libraries::LOADER),
    )?;
    add_libraries(archive, &needed)
}

/// Puts libraries where the loader looks first.
pub fn add_libraries<W: std::io::Write>(
    archive: &mut Archive<W>,
    needed: &BTreeMap<String, PathBuf>,
) -> Result<()> {
    archive.directory("usr/lib/x86_64-linux-gnu")?;
    for (name, place) in needed {
        archive.file(&format!("usr/lib/x86_64-linux-gnu/{name}"), true, place)?;
    }
    Ok(())
}

/// The modules, what they depend on, and the index over all modules.
fn add_modules<W: std::io::Write>(
    archive: &mut Archive<W>,
    unpacked: &Path,
    version: &str,
) -> Result<()> {
    let from = unpacked.join("lib/modules").join(version);
    let dependencies = fs::read_to_string(from.join("modules.dep")).context("read modules.dep")?;
    let mut directories = BTreeSet::new();
    for path in modules(&dependencies, &MODULES)? {
        let below = format!("usr/lib/modules/{version}/{path}");
        add_parents(archive, &below, &mut directories)?;
        archive.file(&below, false, &from.join(&path))?;
    }
    for entry in fs::read_dir(&from)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("modules.") {
            let path = format!("usr/lib/modules/{version}/{name}");
            archive.file(&path, false, &entry.path())?;
        }
    }
    Ok(())
}

fn add_parents<W: std::io::Write>(
    archive: &mut Archive<W>,
    path: &str,
    there: &mut BTreeSet<String>,
) -> Result<()> {
    for (at, _) in path.match_indices('/') {
        if there.insert(path[..at].to_owned()) && at > "usr/lib".len() {
            archive.directory(&path[..at])?;
        }
    }
    Ok(())
}

/// Paths of the modules of these names and of all they depend on, from modules.dep.
fn modules(index: &str, names: &[&str]) -> Result<BTreeSet<String>> {
    let lines = index.lines().filter_map(|line| line.split_once(':'));
    let by_name: BTreeMap<String, (&str, &str)> = lines
        .map(|(path, needs)| (module_name(path), (path, needs)))
        .collect();
    let mut found = BTreeSet::new();
    for name in names {
        let wanted = by_name.get(&name.replace('-', "_"));
        let (path, needs) = wanted.with_context(|| format!("the kernel has no module {name}"))?;
        found.insert((*path).to_owned());
        // modules.dep lists all of them, not only the direct ones.
        found.extend(needs.split_whitespace().map(str::to_owned));
    }
    Ok(found)
}

/// `nvme_tcp` of `kernel/drivers/nvme/host/nvme-tcp.ko.xz`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    file.split('.').next().unwrap_or(file).replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::modules;

    #[test]
    fn modules_come_with_what_they_need_and_a_missing_one_is_named() {
        let index = "kernel/a/nvme-tcp.ko.xz: kernel/a/nvme-core.ko.xz kernel/c.ko\n\
                     kernel/a/nvme-core.ko.xz: kernel/c.ko\nkernel/c.ko:\nkernel/d.ko:\n";
        let found: Vec<String> = modules(index, &["nvme_tcp"]).unwrap().into_iter().collect();
        assert_eq!(
            found,
            [
                "kernel/a/nvme-core.ko.xz",
                "kernel/a/nvme-tcp.ko.xz",
                "kernel/c.ko"
            ]
        );
        let missing = modules(index, &["e"]).unwrap_err().to_string();
        assert!(missing.contains("no module e"), "{missing}");
    }
}
