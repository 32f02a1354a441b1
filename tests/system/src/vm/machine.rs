//! QEMU around an image: how a guest is started, watched and ended.
use super::archive::Archive;
use super::image::{self, Image};
use super::libraries;
use super::packages::Kernel;
use crate::process::Group;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";
/// The first process of every guest.
const INIT: &str = include_str!("init.sh");
/// Begins the last line of a guest.
const EXIT: &str = "vm-exit: ";
/// Time that the guest's own limit leaves for booting and ending, s.
const MARGIN_S: u64 = 60;
/// Lines of the kernel's console that are shown when a guest ends without a status.
const TAIL_LINES: usize = 40;
/// Longest line taken from a guest, bytes; the rest of it is a new line.
const LINE_MAX: u64 = 1 << 16;

/// How the guest is made.
#[derive(Clone, Default, clap::Args)]
pub struct Options {
    /// Count instructions instead of time: figures repeat on a busy machine.
    #[arg(long)]
    pub icount: bool,
    /// Give the guest a network: it is 10.0.2.15, the host is 10.0.2.2.
    #[arg(long)]
    pub net: bool,
    /// Lead a port of the host's loopback to one of the guest (repeatable; implies --net).
    #[arg(long, value_name = "HOST:GUEST")]
    pub forward: Vec<String>,
    /// More words for QEMU, such as devices.
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub qemu: Option<String>,
    /// Processors of the guest (default 2).
    #[arg(long)]
    pub cpus: Option<u32>,
    /// Memory of the guest, MiB (default 1024).
    #[arg(long)]
    pub memory: Option<u32>,
    /// Seconds after which the guest is ended (default 600).
    #[arg(long)]
    pub limit: Option<u64>,
    /// The guest's kernel (default 6.12).
    #[arg(long, value_enum)]
    pub kernel: Option<Kernel>,
    /// Try this program; none is built.
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,
}

impl Options {
    /// These options; where one isn't given, that of `script`.
    pub fn over(&self, script: &Self) -> Self {
        Self {
            icount: self.icount || script.icount,
            net: self.net || script.net,
            forward: [&script.forward[..], &self.forward].concat(),
            qemu: self.qemu.clone().or_else(|| script.qemu.clone()),
            cpus: self.cpus.or(script.cpus),
            memory: self.memory.or(script.memory),
            limit: self.limit.or(script.limit),
            kernel: self.kernel.or(script.kernel),
            program: self.program.clone().or_else(|| script.program.clone()),
        }
    }

    fn limit_s(&self) -> u64 {
        self.limit.unwrap_or(600)
    }
}

/// One script in one guest.
pub struct Run<'a> {
    /// The script.
    pub script: &'a Path,
    /// The program that is tried.
    pub braid: &'a Path,
    /// The guest.
    pub options: &'a Options,
    /// Whether what the guest prints is printed.
    pub echo: bool,
    /// More files: the path in the guest, and the file here.
    pub files: &'a [(String, PathBuf)],
}

/// How a guest ended.
pub struct Ended {
    /// The script's exit status.
    pub status: u8,
    /// Its output, line by line.
    pub lines: Vec<String>,
    /// How long it took from start to end, boot included.
    pub took: Duration,
    /// The kernel's console.
    pub console: PathBuf,
}

impl Ended {
    /// The exit code to end with.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.status)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.took.as_secs_f64();
        let console = self.console.display();
        write!(
            f,
            "status {} in {seconds:.0} s; kernel's console: {console}",
            self.status
        )
    }
}

/// Runs a script and waits for its end.
///
/// # Errors
/// The guest did not come up, hung or died; the end of the kernel's console is printed.
pub fn run(image: &Image, run: &Run<'_>) -> Result<Ended> {
    let name = run
        .script
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let runs = image.directory.join("runs");
    fs::create_dir_all(&runs)?;
    let console = runs.join(format!("{name}.console"));
    let extra = runs.join(format!("{name}.cpio"));
    write_file_system(image, &extra, run.braid, Some(run))?;
    let begun = Instant::now();
    let mut booted = boot(image, run, &extra, &console)?;
    if booted.died_early() {
        // Under emulation the kernel now and then dies while it patches itself at boot; what is
        // tried has not begun yet.
        print_tail(&console);
        eprintln!("vm: the guest of {name} died before its first line; once more");
        booted = boot(image, run, &extra, &console)?;
    }
    let Booted {
        lines,
        status,
        said,
    } = booted;
    let _ = fs::remove_file(&extra);
    fs::write(runs.join(format!("{name}.log")), lines.join("\n") + "\n")?;
    let took = begun.elapsed();
    let Some(status) = status else {
        print_tail(&console);
        bail!("the guest of {name} ended without a status {}", said.trim());
    };
    Ok(Ended {
        status,
        lines,
        took,
        console,
    })
}

/// Result of one start.
struct Booted {
    lines: Vec<String>,
    /// None: it died.
    status: Option<u8>,
    /// Output of QEMU.
    said: String,
}

impl Booted {
    /// Not even the first process said a word.
    fn died_early(&self) -> bool {
        self.status.is_none() && self.lines.is_empty() && self.said.trim().is_empty()
    }
}

/// Starts a guest and waits for its end.
fn boot(image: &Image, run: &Run<'_>, extra: &Path, console: &Path) -> Result<Booted> {
    let mut command = watched(run.options.limit_s() + MARGIN_S);
    let qemu = qemu(image, run.options, extra)?;
    command.arg(qemu.get_program()).args(qemu.get_args());
    for (name, value) in qemu.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .args(["-serial", "stdio"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut guest = Group::spawn(&mut command)?;
    let output = guest.child().stdout.take().context("QEMU without output")?;
    let (lines, status) = follow(BufReader::new(output), run.echo)?;
    let mut said = String::new();
    if let Some(mut errors) = guest.child().stderr.take() {
        errors.read_to_string(&mut said)?;
    }
    let ended = guest.wait(Duration::from_secs(MARGIN_S))?;
    if !ended.success() {
        said = format!("({ended}) {said}");
    }
    Ok(Booted {
        lines,
        status,
        said,
    })
}

/// A shell in the guest, on this terminal.
pub fn shell(image: &Image, braid: &Path, options: &Options) -> Result<ExitCode> {
    let extra = image.directory.join("shell.cpio");
    write_file_system(image, &extra, braid, None)?;
    let mut command = qemu(image, options, &extra)?;
    let console = image.directory.join("shell.console");
    command
        .arg("-serial")
        .arg(format!("file:{}", console.display()));
    let status = command
        .args(["-serial", "mon:stdio"])
        .status()
        .context("start QEMU")?;
    ensure!(status.success(), "QEMU: {status}");
    Ok(ExitCode::SUCCESS)
}

/// `timeout`, so that a guest ends even if we are killed.
fn watched(limit_s: u64) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &limit_s.to_string()]);
    command
}

/// Prints and keeps lines until the guest ends; the status that it said.
fn follow(mut output: impl BufRead, echo: bool) -> Result<(Vec<String>, Option<u8>)> {
    let mut lines = Vec::new();
    let mut status = None;
    loop {
        let mut line = Vec::new();
        if output
            .by_ref()
            .take(LINE_MAX)
            .read_until(b'\n', &mut line)?
            == 0
        {
            return Ok((lines, status));
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if let Some(said) = line.strip_prefix(EXIT) {
            status = said.parse().ok();
            continue;
        }
        if echo {
            println!("{line}");
        }
        lines.push(line);
    }
}

fn print_tail(console: &Path) {
    let text = String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
        eprintln!("  | {}", line.trim_end());
    }
}

/// The image's file system and behind it what belongs to one run.
fn write_file_system(image: &Image, to: &Path, braid: &Path, run: Option<&Run<'_>>) -> Result<()> {
    fs::copy(&image.base, to).with_context(|| format!("copy {}", image.base.display()))?;
    let file = File::options().append(true).open(to)?;
    let mut archive = Archive::new(std::io::BufWriter::new(file));
    archive.bytes("init", true, INIT.as_bytes())?;
    archive.file("usr/bin/braid", true, braid)?;
    let needed: BTreeMap<String, PathBuf> =
        libraries::of(&image.unpacked, braid)?.into_iter().collect();
    image::add_libraries(&mut archive, &needed)?;
    match run {
        Some(run) => {
            archive.file("guest/script", false, run.script)?;
            archive.files(run.files)?;
            let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guest/lib");
            for entry in fs::read_dir(&beside).into_iter().flatten() {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                archive.file(&format!("guest/{name}"), false, &path)?;
            }
        }
        None => archive.bytes("guest/shell", false, &[])?,
    }
    archive.finish()?;
    Ok(())
}

/// QEMU without its serial ports: the first is the kernel's console, the second the script's.
fn qemu(image: &Image, options: &Options, file_system: &Path) -> Result<Command> {
    let mut command = if crate::process::is_installed(QEMU) {
        Command::new(QEMU)
    } else {
        let mut command = Command::new(libraries::program(&image.unpacked, QEMU)?);
        command.env("LD_LIBRARY_PATH", libraries::search_path(&image.unpacked));
        for data in ["usr/share/qemu", "usr/share/seabios"] {
            command.arg("-L").arg(image.unpacked.join(data));
        }
        command
    };
    let net = options.net || !options.forward.is_empty();
    let mut boot = "console=ttyS0 panic=-1 rdinit=/init quiet loglevel=6 mitigations=off \
                    no_timer_check random.trust_cpu=on nvme_core.multipath=Y"
        .to_owned();
    boot += &format!(" braid.limit={}", options.limit_s());
    if net {
        boot += " braid.net";
    }
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
        "-display",
        "none",
    ]);
    command.args(["-cpu", "Westmere"]);
    if options.icount {
        boot += " norandmaps nokaslr tsc=reliable";
        command.args([
            "-accel",
            "tcg,thread=single",
            "-icount",
            "shift=1,sleep=off",
        ]);
        command.args(["-seed", "1", "-rtc", "base=2025-01-01,clock=vm"]);
    } else {
        // On a busy machine the guest measures its TSC wrongly and its clock runs several times too
        // fast; these have a frequency that is written down.
        boot += " clocksource=hpet notsc";
        command.args(["-accel", "tcg,thread=multi"]);
    }
    command
        .arg("-smp")
        .arg(options.cpus.unwrap_or(2).to_string());
    command
        .arg("-m")
        .arg(options.memory.unwrap_or(1024).to_string());
    command.arg("-kernel").arg(&image.kernel);
    command
        .arg("-initrd")
        .arg(file_system)
        .arg("-append")
        .arg(boot);
    if net {
        command.arg("-netdev").arg(network(&options.forward)?);
        command.args(["-device", "virtio-net-pci,netdev=n0,romfile="]);
    }
    command.args(
        options
            .qemu
            .iter()
            .flat_map(|words| words.split_whitespace()),
    );
    Ok(command)
}

/// QEMU's user network with ports of the host's loopback that lead into the guest.
fn network(forward: &[String]) -> Result<String> {
    let mut words = "user,id=n0".to_owned();
    for pair in forward {
        let ports = pair.split_once(':');
        let ports = ports.and_then(|(h, g)| Some((h.parse::<u16>().ok()?, g.parse::<u16>().ok()?)));
        let (host, guest) =
            ports.with_context(|| format!("--forward {pair}: want HOST:GUEST, two ports"))?;
        words += &format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}");
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::{Booted, follow, network};

    #[test]
    fn only_a_guest_that_said_nothing_and_was_not_ended_is_started_again() {
        let booted = |lines: &[&str], status, said: &str| Booted {
            lines: lines.iter().map(|&line| line.to_owned()).collect(),
            status,
            said: said.to_owned(),
        };
        assert!(booted(&[], None, "\n").died_early());
        assert!(!booted(&["ok a"], None, "").died_early());
        assert!(!booted(&[], Some(1), "").died_early());
        assert!(!booted(&[], None, "(exit status: 124) ").died_early());
    }

    #[test]
    fn the_status_is_the_guests_and_none_without_its_line() {
        let (lines, status) = follow(&b"a\r\nb\nvm-exit: 3\n"[..], false).unwrap();
        assert_eq!(
            (lines, status),
            (vec!["a".to_owned(), "b".to_owned()], Some(3))
        );
        let (_, status) = follow(&b"a\nvm-exit: \n"[..], false).unwrap();
        assert_eq!(status, None);
    }

    #[test]
    fn forwarded_ports_are_numbers() {
        let words = network(&["4420:4421".to_owned()]).unwrap();
        assert_eq!(words, "user,id=n0,hostfwd=tcp:127.0.0.1:4420-:4421");
        assert!(network(&["4420".to_owned()]).is_err());
        assert!(network(&["4420:x,guestfwd".to_owned()]).is_err());
    }
}
