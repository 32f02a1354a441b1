//! Random faults under load: no error may reach a client while a path lives, and nothing that was
//! acknowledged may be lost.
//!
//! # Contract
//! Three target processes serve one file; an engine has a path to each and exports the volume. On
//! it, in parts of its own each: the [`Probe`], `braid bench --verify`, and a tree of files on an
//! ext4 ([`Load`]). One fault after the other begins, lasts and ends; then all paths must become
//! live and every connection must go on, before the next one.
use super::engine::{DEFAULTS, Keys, SHORT};
use super::loads::{BENCH_BYTES, Load, Tree, Work};
use super::mounted::{Image, Mounted, fuse_hindrance, mount_hindrance};
use super::net::Net;
use super::plan::{Fault, Plan};
use super::probe::{self, Op, Probe, Slow};
use super::stage::{Stage, WHOLE};
use super::table::Table;
use super::watch::Watch;
use super::{Common, stop};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const WAYS: usize = 3;
const BYTES: u64 = 256 << 20;
/// Where the ext4 begins.
const FS_AT: u64 = probe::BYTES + BENCH_BYTES;

/// How many, and with which knobs.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Faults.
    #[arg(long, default_value_t = 200)]
    pub faults: usize,
    /// The engine's own defaults in place of short knobs: each fault takes up to a minute.
    #[arg(long)]
    pub defaults: bool,
    /// Only the probe: neither `braid bench --verify` nor an ext4.
    #[arg(long)]
    pub bare: bool,
}

impl Args {
    /// As they were typed.
    pub fn words(&self) -> String {
        let defaults = if self.defaults { " --defaults" } else { "" };
        let bare = if self.bare { " --bare" } else { "" };
        format!("random --faults {}{defaults}{bare}", self.faults)
    }
}

/// Effect of one fault on the client.
struct Felt {
    /// The longest read, write and flush.
    longest: [Duration; 3],
    /// Of the longest of all.
    cause: String,
}

impl Felt {
    fn pause(&self) -> Duration {
        self.longest.into_iter().max().unwrap_or_default()
    }
}

/// The loads, from the bottom of the stack to its top; dropped from the top.
struct Loads {
    files: Option<(Load, Tree)>,
    bench: Option<Load>,
    mounted: Option<Mounted>,
    image: Option<Image>,
}

/// Runs it and prints.
///
/// # Errors
/// Something was wrong with the volume, or with the machine.
pub fn run(common: &Common, args: &Args) -> Result<()> {
    let keys = if args.defaults { DEFAULTS } else { SHORT };
    let namespaces = common.namespaces();
    let mut stage = Stage::targets(&common.program, "random", WAYS, namespaces, (BYTES, ""))?;
    stage.run(keys, |_| String::new())?;
    let (socket, log) = (stage.engine()?.socket(), stage.path("engine.log"));
    let probe = Probe::start(&stage.engine()?.export(), common.seed)?;
    let watch = Watch::start(socket, log, probe.epoch());
    let mut loads = Loads::start(&stage, common, args)?;
    let felt = faults(common, args, &mut stage, &probe, &watch, &loads);
    let felt = felt.with_context(|| format!("the engine said:\n{}", tail(&stage)))?;
    let (requests, verified) = probe.finish().context("the probe")?;
    let works = loads.finish()?;
    let errors = stage.engine()?.stat()?["exports"][0]["errors"].clone();
    if errors != 0 {
        bail!(
            "the export counted {errors} errors; the engine said:\n{}",
            tail(&stage)
        );
    }
    print(common, args, keys, &felt, &[(requests, verified)], &works);
    Ok(())
}

/// The last that the engine said.
fn tail(stage: &Stage) -> String {
    let log = stage.engine().map(|it| it.log()).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

fn faults(
    common: &Common,
    args: &Args,
    stage: &mut Stage,
    probe: &Probe,
    watch: &Watch,
    loads: &Loads,
) -> Result<BTreeMap<String, Vec<Felt>>> {
    // Beyond every time-out: keep-alive, and with short knobs that of an I/O too.
    let longest_ms = if args.defaults { 12_500 } else { 2500 };
    let mut plan = Plan::new(common.seed, WAYS, longest_ms, stage.net.is_real());
    let mut felt: BTreeMap<String, Vec<Felt>> = BTreeMap::new();
    for number in 1..=args.faults {
        let fault = plan.next();
        let what = format!("fault {number} of {}: {}", args.faults, fault.name());
        common.progress(&what);
        let one = one(stage, &fault, probe, watch, loads);
        let one = one.with_context(|| format!("{what} ({:?}, {} ms)", fault.hits, fault.for_ms))?;
        felt.entry(fault.name()).or_default().push(one);
    }
    common.progress("");
    Ok(felt)
}

/// One fault from its begin until everything goes on.
fn one(
    stage: &mut Stage,
    fault: &Fault,
    probe: &Probe,
    watch: &Watch,
    loads: &Loads,
) -> Result<Felt> {
    let begun = probe.now();
    watch.forget(begun);
    probe.take_slow();
    stage.begin(fault)?;
    stop::pause(Duration::from_millis(fault.for_ms))?;
    stage.end(fault)?;
    let ended = probe.now();
    stage.engine()?.wait_whole(WHOLE)?;
    stop::wait("the client goes on", WHOLE, || {
        Ok(probe.has_gone_on_since(ended)?.then_some(()))
    })?;
    loads.check()?;
    // The watch has to see the end too.
    stop::pause(Duration::from_millis(100))?;
    let slow = probe.take_slow();
    let longest = |op| {
        let of_it = slow.iter().filter(|it| it.op == op);
        of_it.map(Slow::took).max().unwrap_or_default()
    };
    let pause = slow.iter().max_by_key(|it| it.took());
    Ok(Felt {
        longest: [Op::Read, Op::Write, Op::Flush].map(longest),
        cause: pause.map(|it| watch.cause(it)).unwrap_or_default(),
    })
}

impl Loads {
    fn start(stage: &Stage, common: &Common, args: &Args) -> Result<Self> {
        let mut loads = Self {
            files: None,
            bench: None,
            mounted: None,
            image: None,
        };
        if args.bare {
            return Ok(loads);
        }
        if let Some(reason) = fuse_hindrance() {
            common.leave_out("braid bench --verify and ext4", reason);
            return Ok(loads);
        }
        let (directory, export) = (&stage.directory.0, stage.engine()?.export());
        let image = Image::make(directory, &export)?;
        if let Some(reason) = mount_hindrance() {
            common.leave_out("ext4", reason);
        } else {
            let mounted = Mounted::make(&image, FS_AT, directory)?;
            let tree = Tree::new(&mounted.directory, common.seed);
            loads.files = Some((Load::files(tree.clone()), tree));
            loads.mounted = Some(mounted);
        }
        let program = &stage.program;
        let bench = Load::bench(program, directory, &image.path, probe::BYTES, common.seed);
        loads.bench = Some(bench);
        loads.image = Some(image);
        Ok(loads)
    }

    /// Whether one of them has failed.
    fn check(&self) -> Result<()> {
        let files = self.files.as_ref().map(|(load, _)| load);
        let failed = files.into_iter().chain(&self.bench).any(Load::has_failed);
        if failed {
            bail!("a load has failed, see below");
        }
        Ok(())
    }

    /// Ends them; what they did, by name.
    fn finish(&mut self) -> Result<Vec<(&'static str, Work)>> {
        let mut works = Vec::new();
        if let Some(bench) = self.bench.take() {
            works.push(("braid bench --verify", bench.finish()?));
        }
        if let (Some((load, tree)), Some(mounted)) = (self.files.take(), &mut self.mounted) {
            works.push(("files on ext4", load.finish()?));
            mounted.unmount()?;
            mounted.fsck()?;
            mounted.mount()?;
            works.push(("files after fsck", tree.verify_all()?));
            mounted.unmount()?;
        }
        Ok(works)
    }
}

fn print(
    common: &Common,
    args: &Args,
    keys: Keys,
    felt: &BTreeMap<String, Vec<Felt>>,
    probes: &[(u64, u64)],
    works: &[(&str, Work)],
) {
    let mut table = Table::new(&[
        "fault",
        "count",
        "read_ms",
        "write_ms",
        "flush_ms",
        "median_ms",
        "cause",
    ]);
    for (name, felt) in felt {
        let ms = |time: Duration| time.as_millis() as u64;
        let mut all: Vec<u64> = felt.iter().map(|it| ms(it.pause())).collect();
        all.sort_unstable();
        let mut row = vec![name.as_str().into(), felt.len().into()];
        row.extend((0..3).map(|op| felt.iter().map(|it| ms(it.longest[op])).max().into()));
        row.push(all.get(all.len() / 2).copied().into());
        let longest = felt.iter().max_by_key(|it| it.pause());
        row.push(longest.map(|it| it.cause.as_str()).into());
        table.row(row);
    }
    let mut loads: Vec<Value> = Vec::new();
    for (requests, verified) in probes {
        loads.push(json!({"load": "probe", "count": requests,
                          "verified_bytes": verified * super::nbd::BLOCK as u64}));
    }
    for (load, work) in works {
        let Work {
            count,
            verified_bytes,
        } = work;
        loads.push(json!({"load": load, "count": count, "verified_bytes": verified_bytes}));
    }
    common.show(
        "random",
        &format!("{} faults, knobs: {}", args.faults, keys.words()),
        &table,
        json!({"loads": loads, "errors": 0, "mismatches": 0}),
    );
}

/// A reason why this part can't say what it has to on this machine.
pub fn hindrance() -> Option<&'static str> {
    Net::hindrance().or_else(mount_hindrance)
}
