//! Debian's packages, downloaded and unpacked without being installed.
//!
//! # Contract
//! Uses the machine's lists of packages if they know what is wanted and its mirrors still have it,
//! else fetches lists of its own into the cache: neither needs root. Packages that this machine has
//! installed are not downloaded: their files are taken from where they are.
use crate::process;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packages of the guest, besides the kernel.
const GUEST: [&str; 16] = [
    "busybox-static",
    "dash",
    "kmod",
    "iproute2",
    "nvme-cli",
    "fio",
    "e2fsprogs",
    "util-linux",
    "jq",
    "coreutils",
    "diffutils",
    "nbd-client",
    "libnbd-bin",
    "xfsprogs",
    "python3-minimal",
    "libpython3-stdlib",
];
/// Packages of QEMU here.
const QEMU: [&str; 2] = ["qemu-system-x86", "seabios"];
/// Dependencies of scripts that never run here.
const UNNEEDED: [&str; 8] = [
    "debconf",
    "dpkg",
    "install-info",
    "init-system-helpers",
    "mailcap",
    "mime-support",
    "perl",
    "systemd",
];
/// A kernel of Debian 12.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Kernel {
    /// Its newer one.
    #[default]
    #[value(name = "6.12")]
    V6_12,
    /// The one it was released with.
    #[value(name = "6.1")]
    V6_1,
}

impl Kernel {
    /// The names of its packages, as apt-cache searches for them.
    const fn names(self) -> &'static str {
        match self {
            Self::V6_12 => "^linux-image-6[.]12[.][0-9]+[+]deb12-amd64$",
            Self::V6_1 => "^linux-image-6[.]1[.]0-[0-9]+-amd64$",
        }
    }

    /// Text before the number by which its packages are told apart.
    const fn prefix(self) -> &'static str {
        match self {
            Self::V6_12 => "linux-image-6.12.",
            Self::V6_1 => "linux-image-6.1.0-",
        }
    }
}

/// The command lines of apt, with the lists to use.
struct Apt {
    options: Vec<String>,
}

/// Downloads what is missing and unpacks it into `unpacked`, if it isn't there (or `fresh`).
///
/// # Errors
/// No Debian, no such package, or no way to a mirror: says which.
pub fn unpack(cache: &Path, unpacked: &Path, fresh: bool) -> Result<()> {
    let stamp = unpacked.join("complete");
    let of = format!("{GUEST:?} {QEMU:?} {}", Kernel::V6_12.names());
    unpack_if_new(&stamp, &of, cache, unpacked, fresh, &Apt::download)
}

/// Downloads another kernel than 6.12 and unpacks it alone, if it isn't there (or `fresh`).
///
/// # Errors
/// As [`unpack`].
pub fn unpack_kernel(cache: &Path, unpacked: &Path, kernel: Kernel, fresh: bool) -> Result<()> {
    let stamp = unpacked.join("complete");
    let download = |apt: &Apt, to: &Path| apt.fetch(&BTreeSet::from([apt.newest(kernel)?]), to);
    unpack_if_new(&stamp, kernel.names(), cache, unpacked, fresh, &download)
}

/// Unpacks what `download` fetches, unless `stamp` says that this was done.
fn unpack_if_new(
    stamp: &Path,
    of: &str,
    cache: &Path,
    unpacked: &Path,
    fresh: bool,
    download: &dyn Fn(&Apt, &Path) -> Result<Vec<PathBuf>>,
) -> Result<()> {
    if !fresh && fs::read_to_string(stamp).is_ok_and(|found| found == of) {
        return Ok(());
    }
    for program in ["apt-get", "apt-cache", "dpkg-deb", "dpkg-query"] {
        ensure!(
            process::is_installed(program),
            "{program} is missing: the guest is made of Debian's packages"
        );
    }
    let system = Apt { options: vec![] };
    let downloads = cache.join("packages");
    let fetched = download(&system, &downloads).or_else(|error| {
        eprintln!("vm: {error:#}; trying with fresh lists of packages");
        download(&Apt::private(&cache.join("apt"), None)?, &downloads)
    });
    let packages = fetched?;
    let _ = fs::remove_dir_all(unpacked);
    fs::create_dir_all(unpacked)?;
    for package in packages {
        let mut command = Command::new("dpkg-deb");
        command.arg("-x").arg(&package).arg(unpacked);
        output(&mut command)?;
    }
    fs::write(stamp, of).context("write the stamp of unpacked packages")
}

/// Downloads a package's source and unpacks what its authors wrote; the directory of that.
///
/// # Errors
/// No Debian, no such package, or no way to a mirror: says which.
pub fn source(cache: &Path, package: &str) -> Result<PathBuf> {
    let to = cache.join("source").join(package);
    if let Some(unpacked) = only_directory(&to)? {
        return Ok(unpacked);
    }
    let lists = cache.join("source/lists");
    let parts = cache.join("source/parts");
    fs::create_dir_all(&parts)?;
    for (name, text) in sources_of_packages(Path::new("/etc/apt"))? {
        fs::write(parts.join(name), sources_of_sources(&text))?;
    }
    let apt = Apt::private(&lists, Some(&parts))?;
    fs::create_dir_all(&to)?;
    output(
        apt.command("apt-get", &["source", "--download-only", "-q", package])
            .current_dir(&to),
    )?;
    let archive = fs::read_dir(&to)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar."))
        .with_context(|| format!("the source of {package} has no .orig.tar"))?;
    output(
        Command::new("tar")
            .arg("-xf")
            .arg(archive)
            .arg("-C")
            .arg(&to),
    )?;
    only_directory(&to)?.with_context(|| format!("the source of {package} is no directory"))
}

fn only_directory(of: &Path) -> Result<Option<PathBuf>> {
    if !of.is_dir() {
        return Ok(None);
    }
    let mut entries = fs::read_dir(of)?.filter_map(|entry| Some(entry.ok()?.path()));
    Ok(entries.find(|path| path.is_dir()))
}

/// Names and texts of the files that say where packages come from.
fn sources_of_packages(etc: &Path) -> Result<Vec<(String, String)>> {
    let mut paths = vec![etc.join("sources.list")];
    if let Ok(entries) = fs::read_dir(etc.join("sources.list.d")) {
        paths.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    let mut found = Vec::new();
    for path in paths {
        let known = path
            .extension()
            .is_some_and(|of| of == "list" || of == "sources");
        if known && path.is_file() {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            found.push((name.into_owned(), fs::read_to_string(&path)?));
        }
    }
    Ok(found)
}

/// The same places for sources, in either form that apt reads.
fn sources_of_sources(text: &str) -> String {
    let mut lines = String::new();
    for line in text.lines() {
        if line.starts_with("Types:") {
            lines.push_str("Types: deb-src");
        } else if let Some(rest) = line.strip_prefix("deb ") {
            lines.push_str(&format!("deb-src {rest}"));
        } else {
            lines.push_str(line);
        }
        lines.push('\n');
    }
    lines
}

impl Apt {
    /// Lists of our own, from the machine's places or those that files in `parts` name.
    fn private(state: &Path, parts: Option<&Path>) -> Result<Self> {
        fs::create_dir_all(state.join("lists/partial"))?;
        fs::create_dir_all(state.join("cache/archives/partial"))?;
        let mut settings = vec![
            format!("Dir::State={}", state.display()),
            "Dir::State::status=/var/lib/dpkg/status".to_owned(),
            format!("Dir::Cache={}", state.join("cache").display()),
        ];
        if let Some(parts) = parts {
            settings.push("Dir::Etc::sourcelist=/dev/null".to_owned());
            settings.push(format!("Dir::Etc::sourceparts={}", parts.display()));
        }
        let options = settings
            .into_iter()
            .flat_map(|setting| ["-o".to_owned(), setting])
            .collect();
        let apt = Self { options };
        output(&mut apt.command("apt-get", &["update", "-q"]))?;
        Ok(apt)
    }

    fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(&self.options).args(args).env("LC_ALL", "C");
        command
    }

    /// Downloads what isn't in `to` yet; the files of all packages.
    fn download(&self, to: &Path) -> Result<Vec<PathBuf>> {
        let kernel = self.newest(Kernel::V6_12)?;
        let mut wanted = self.with_dependencies(&GUEST)?;
        if !process::is_installed(super::machine::QEMU) {
            wanted.append(&mut self.with_dependencies(&QEMU)?);
        }
        let installed = installed()?;
        wanted.retain(|package| !installed.contains(package));
        wanted.insert(kernel);
        self.fetch(&wanted, to)
    }

    /// Downloads those of these packages that aren't in `to` yet; the files of all.
    fn fetch(&self, wanted: &BTreeSet<String>, to: &Path) -> Result<Vec<PathBuf>> {
        fs::create_dir_all(to)?;
        let names: Vec<&str> = wanted.iter().map(String::as_str).collect();
        let uris = output(
            self.command("apt-get", &["download", "--print-uris"])
                .args(&names),
        )?;
        let files = file_names(&uris);
        ensure!(
            files.len() == names.len(),
            "apt-get has no address for some of: {}",
            names.join(" ")
        );
        eprintln!("vm: {} packages, {} of them", files.len(), names.join(" "));
        output(
            self.command("apt-get", &["download", "-q"])
                .args(&names)
                .current_dir(to),
        )?;
        Ok(files.iter().map(|file| to.join(file)).collect())
    }

    fn newest(&self, kernel: Kernel) -> Result<String> {
        let args = ["search", "--names-only", kernel.names()];
        let names = output(&mut self.command("apt-cache", &args))?;
        let none = || format!("the lists of packages have no {}", kernel.names());
        newest(&names, kernel).with_context(none)
    }

    /// These packages and all they depend on.
    fn with_dependencies(&self, packages: &[&str]) -> Result<BTreeSet<String>> {
        let mut all: BTreeSet<String> = packages.iter().map(|&name| name.to_owned()).collect();
        let mut new: Vec<String> = all.iter().cloned().collect();
        while !new.is_empty() {
            let args = [
                "depends",
                "--no-recommends",
                "--no-suggests",
                "--no-conflicts",
            ];
            let more = ["--no-breaks", "--no-replaces", "--no-enhances"];
            let mut command = self.command("apt-cache", &args);
            let said = output(command.args(more).args(&new))?;
            new = dependencies(&said);
            new.retain(|name| !UNNEEDED.contains(&name.as_str()) && all.insert(name.clone()));
        }
        Ok(all)
    }
}

/// Packages that `apt-cache depends` names; of alternatives the first.
fn dependencies(said: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut alternative = false;
    for line in said.lines() {
        let line = line.trim_start();
        let first_of_several = line.starts_with('|');
        let Some((kind, name)) = line.trim_start_matches('|').split_once("epends: ") else {
            continue;
        };
        let counts = matches!(kind, "D" | "PreD") && !alternative && !name.starts_with('<');
        if counts {
            found.push(name.trim_end_matches(":any").to_owned());
        }
        alternative = first_of_several;
    }
    found
}

/// The highest version among names of kernels, one per line.
fn newest(names: &str, kernel: Kernel) -> Option<String> {
    let name = names.lines().filter_map(|line| line.split(' ').next());
    let version = |name: &str| -> Option<u32> {
        let rest = name.strip_prefix(kernel.prefix())?;
        rest.split(['+', '-']).next()?.parse().ok()
    };
    name.max_by_key(|name| version(name)).map(str::to_owned)
}

/// File names in the output of `apt-get download --print-uris`: `'URI' FILE SIZE HASH` each.
fn file_names(uris: &str) -> Vec<String> {
    let lines = uris.lines().filter(|line| line.starts_with('\''));
    lines
        .filter_map(|line| line.split(' ').nth(1))
        .map(str::to_owned)
        .collect()
}

fn installed() -> Result<BTreeSet<String>> {
    let mut command = Command::new("dpkg-query");
    let all = output(command.args(["-W", "-f", "${Package} ${db:Status-Status}\\n"]))?;
    let names = all
        .lines()
        .filter_map(|line| line.strip_suffix(" installed"));
    Ok(names.map(str::to_owned).collect())
}

/// Runs `command`; what it printed.
fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let done = command.output().with_context(|| format!("start {name}"))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let last: Vec<&str> = said.lines().rev().take(3).collect();
        bail!("{name}: {}: {}", done.status, last.join(" / "));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::{Kernel, dependencies, file_names, newest, sources_of_sources};

    #[test]
    fn places_of_packages_become_places_of_sources_in_both_forms() {
        let old = "# deb x\ndeb http://m bookworm main\n";
        assert_eq!(
            sources_of_sources(old),
            "# deb x\ndeb-src http://m bookworm main\n"
        );
        let new = "Types: deb\nURIs: http://m\n";
        assert_eq!(sources_of_sources(new), "Types: deb-src\nURIs: http://m\n");
    }

    #[test]
    fn of_alternatives_the_first_is_taken_and_virtual_packages_are_left_out() {
        let said = "fio\n  PreDepends: a\n |Depends: b\n |Depends: c\n  Depends: d\n  Depends: e\n\
                    \x20 Depends: <python3:any>\n    python3\n  Recommends: f\n";
        assert_eq!(dependencies(said), ["a", "b", "e"]);
    }

    #[test]
    fn versions_are_compared_as_numbers() {
        let names = "linux-image-6.12.9+deb12-amd64 - Linux\nlinux-image-6.12.101+deb12-amd64 - L\n\
                     linux-image-6.12.38+deb12-amd64 - Linux\n";
        assert_eq!(
            newest(names, Kernel::V6_12).as_deref(),
            Some("linux-image-6.12.101+deb12-amd64")
        );
        assert_eq!(newest("", Kernel::V6_12), None);
        let names = "linux-image-6.1.0-9-amd64 - Linux\nlinux-image-6.1.0-53-amd64 - Linux\n";
        assert_eq!(
            newest(names, Kernel::V6_1).as_deref(),
            Some("linux-image-6.1.0-53-amd64")
        );
    }

    #[test]
    fn names_of_files_are_read_as_apt_prints_them() {
        let uris = "'http://m/kmod_30.deb' kmod_30.deb 95180 SHA256:ab\nW: sandbox\n";
        assert_eq!(file_names(uris), ["kmod_30.deb"]);
    }
}
