//! All scripts of tests/guest, and the table of what they showed.
//!
//! # Contract
//! A script prints one line per check: `ok NAME`, `FAIL NAME: why` or `SKIP NAME: why`; it fails by
//! its exit status. The first lines of a script may hold options of its guest:
//! `# vm: --cpus 4`; and devices of it: `# vm-qemu: -device nvme-subsys,id=s0`.
use super::image::Image;
use super::machine::{self, Ended, Options, Run};
use super::packages::Kernel;
use anyhow::{Context, Result, bail};
use clap::Parser;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Where scripts are, from the root.
const SCRIPTS: &str = "tests/guest";
/// Begins a line with options.
const OPTIONS: &str = "# vm: ";
/// Begins a line with words for QEMU.
const QEMU_WORDS: &str = "# vm-qemu: ";

/// Options.
#[derive(clap::Args)]
pub struct Args {
    /// Run only these (repeatable).
    #[arg(long, value_name = "SCRIPT")]
    only: Vec<String>,
    /// Print what the guests print.
    #[arg(long)]
    verbose: bool,
    /// Where no guest can be made, say so in a line `SKIP vm: …` and succeed.
    #[arg(long)]
    may_skip: bool,
    /// The guests' kernel.
    #[arg(long, value_enum, default_value_t)]
    kernel: Kernel,
    /// Try this program; none is built.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// Options of a script, as clap reads them.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Words {
    #[command(flatten)]
    options: Options,
}

/// Runs them one after the other.
pub fn run(root: &Path, args: &Args, build: &dyn Fn(Kernel) -> Result<Image>) -> Result<ExitCode> {
    let mut scripts = scripts(root)?;
    if let Some(unknown) = args
        .only
        .iter()
        .find(|o| !scripts.iter().any(|s| is_named(s, o)))
    {
        let names: Vec<String> = scripts.iter().map(|script| name(script)).collect();
        bail!(
            "no script {unknown:?} in {SCRIPTS}; there are: {}",
            names.join(", ")
        );
    }
    scripts.retain(|script| args.only.is_empty() || args.only.iter().any(|o| is_named(script, o)));
    let image = match build(args.kernel) {
        Ok(image) => image,
        Err(error) if args.may_skip => {
            println!("SKIP vm: {error:#}");
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error),
    };
    let braid = super::braid(root, args.program.as_deref())?;
    println!("kernel {}", image.kernel_version);
    let mut rows = Vec::new();
    for script in &scripts {
        let ended = options(script).and_then(|options| {
            let echo = args.verbose;
            machine::run(
                &image,
                &Run {
                    script,
                    braid: &braid,
                    options: &options,
                    echo,
                    files: &[],
                },
            )
        });
        rows.push(row(&name(script), ended, args.verbose));
    }
    println!(
        "\n{:20} {:>5} {:>6} {:>7} {:>7}  verdict",
        "script", "ok", "failed", "skipped", "s"
    );
    for row in &rows {
        println!("{}", row.text);
    }
    if rows.iter().all(|row| row.well) {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::FAILURE)
}

/// A line of the table.
struct Row {
    text: String,
    well: bool,
}

/// Prints what matters of a run, and sums it up.
fn row(name: &str, ended: Result<Ended>, printed: bool) -> Row {
    let ended = match ended {
        Ok(ended) => ended,
        Err(error) => {
            println!("FAIL {name}: {error:#}");
            return Row {
                text: format!("{name:20} {:>36}", "no status"),
                well: false,
            };
        }
    };
    let count = |word: &str| {
        ended
            .lines
            .iter()
            .filter(|line| line.starts_with(word))
            .count()
    };
    let (ok, failed, skipped) = (count("ok "), count("FAIL "), count("SKIP "));
    let well = ended.status == 0 && failed == 0 && ok > 0;
    for line in &ended.lines {
        let matters = line.starts_with("FAIL ") || line.starts_with("SKIP ") || !well;
        if matters && !printed {
            println!("{line}");
        }
    }
    let seconds = ended.took.as_secs_f64();
    let verdict = if well {
        "ok".to_owned()
    } else {
        format!("FAILED, {ended}")
    };
    let text = format!("{name:20} {ok:>5} {failed:>6} {skipped:>7} {seconds:>7.0}  {verdict}");
    println!("{text}");
    Row { text, well }
}

/// A script by path or by name.
pub fn find(root: &Path, script: &Path) -> Result<PathBuf> {
    if script.is_file() {
        return Ok(script.to_path_buf());
    }
    let named = root.join(SCRIPTS).join(script).with_extension("sh");
    if named.is_file() {
        return Ok(named);
    }
    bail!("no file {} and no {}", script.display(), named.display())
}

fn scripts(root: &Path) -> Result<Vec<PathBuf>> {
    let directory = root.join(SCRIPTS);
    let mut found = Vec::new();
    let entries =
        fs::read_dir(&directory).with_context(|| format!("read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "sh") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn name(script: &Path) -> String {
    script
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn is_named(script: &Path, wanted: &str) -> bool {
    name(script) == wanted.trim_end_matches(".sh")
}

/// The options that a script asks for.
pub fn options(script: &Path) -> Result<Options> {
    let text = fs::read_to_string(script).with_context(|| format!("read {}", script.display()))?;
    let words = text.lines().filter_map(|line| line.strip_prefix(OPTIONS));
    let words = words.flat_map(str::split_whitespace);
    let parsed = Words::try_parse_from(words).with_context(|| name(script))?;
    let qemu: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix(QEMU_WORDS))
        .collect();
    let qemu = (!qemu.is_empty()).then(|| qemu.join(" "));
    Ok(Options {
        qemu,
        ..parsed.options
    })
}

#[cfg(test)]
mod tests {
    use super::{Words, is_named};
    use clap::Parser;
    use std::path::Path;

    #[test]
    fn a_script_has_a_name_and_may_ask_for_its_guest() {
        assert!(is_named(Path::new("tests/guest/host.sh"), "host"));
        assert!(!is_named(Path::new("tests/guest/host.sh"), "hos"));
        let words = Words::try_parse_from(["--cpus", "4"]).unwrap();
        assert_eq!((words.options.cpus, words.options.icount), (Some(4), false));
        assert!(Words::try_parse_from(["--what"]).is_err());
    }
}
