//! The simulator, which `braid sim` starts: the policies in a world of virtual time, scenario by
//! scenario, against a bound.
//!
//! * [`args`]: its words
//! * [`scenario`]: TOML to plans; [`catalog`]: those that come with braid; [`family`]: random ones
//! * [`measure`]: the runs; [`bounds`]: what could be reached
//! * [`mod@show`], [`report`], [`plot`]: how it is told; [`beside`]: next to a document's figures
//! * [`chaos`]: worlds of another kind, in which the whole engine is looked at under faults
#![forbid(unsafe_code)]

mod args;
mod beside;
mod bounds;
mod catalog;
mod chaos;
mod family;
mod limit;
mod limits;
mod measure;
mod pairs;
mod places;
mod plot;
mod report;
mod scenario;
mod show;

use anyhow::{Context, bail};
use args::{Choosing, HedgeWord, SimArgs};
use bounds::Kept;
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use measure::{Column, Row, Tried};
use policy::{Knobs, Policy};
use program::{Options, Program};
use scenario::Scenario;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use terminal::exit::{self, Exit, USAGE, Usage};
use terminal::limits::THREADS_MAX;
use terminal::output::{self, Format, OutputClosed, Style};
use terminal::text;

const _: () = assert!(
    !canary::CAN,
    "braid-sim is never built with planted bugs: leave out the feature `canaries`"
);

/// The simulator of braid, which `braid sim` starts
#[derive(Debug, Parser)]
#[command(name = "braid-sim", version = args::version(), max_term_width = 100)]
struct Cli {
    #[command(flatten)]
    args: SimArgs,
}

fn main() -> ExitCode {
    exit::run(|| match Cli::try_parse() {
        Ok(cli) => exit::conclude(run(&cli.args)),
        Err(error) => exit::report_clap(&error, USAGE),
    })
}

/// Runs the verb.
///
/// # Errors
/// Usage; a scenario that is none; tables that differ from the snapshots. The last line then is the
/// command that repeats it.
fn run(args: &SimArgs) -> anyhow::Result<()> {
    match args.jobs {
        0 => return Err(Usage::error("--jobs: at least one")),
        1..=THREADS_MAX => (),
        _ => return Err(Usage::error(format!("--jobs: at most {THREADS_MAX}"))),
    }
    if args.chaos.chaos {
        let wish = chaos::Wish {
            seed: args.seed,
            threads: args.jobs,
            format: args.output,
        };
        return chaos::run(&args.chaos, wish);
    }
    if args.names.is_empty() && !args.all && args.check.is_none() && args.snapshot.is_none() {
        return list(args);
    }
    let (scenarios, columns) = (scenarios(args)?, asked(args)?);
    places::ready(args)?;
    perform(args, scenarios, &columns).map_err(|why| {
        if why.is::<OutputClosed>() {
            return why;
        }
        output::note(&format!("{why:#}"));
        let words: Vec<String> = std::env::args().skip(1).collect();
        output::note(&format!("repeat with: braid sim {}", words.join(" ")));
        Exit(1).into()
    })
}

/// Lists the scenarios; nothing runs.
fn list(args: &SimArgs) -> anyhow::Result<()> {
    let given = [
        ("--report", args.report.is_some()),
        ("--plot", args.plot.is_some()),
        ("--policy", !args.policy.is_empty()),
        ("--long", args.long),
        ("--hedge", args.hedge.is_some()),
        ("--keep-bounds", args.keep_bounds.is_some()),
        ("--pairs", args.pairs),
        ("--before", args.before.is_some()),
    ];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        let text = format!("{option}: name a scenario or --all (`braid sim` alone lists them)");
        return Err(Usage::error(text));
    }
    match args.output {
        Format::Json => output::print_json(&catalog::json()?),
        Format::Text => output::print(&catalog::list()?),
    }
}

fn perform(args: &SimArgs, scenarios: Vec<Scenario>, columns: &[Column]) -> anyhow::Result<()> {
    if args.output == Format::Text {
        match output::print(&format!("seed {}\n", args.seed)) {
            Err(why) if why.is::<OutputClosed>() && args.is_for_more() => {}
            printed => printed?,
        }
    }
    let mut kept = Kept::of_tree();
    if let Some(path) = &args.bounds {
        kept.add(Kept::of_text(&text::read(path)?));
    }
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar:.cyan} {pos}/{len} runs") {
        bar.set_style(style);
    }
    let rows = measure::measure(
        scenarios,
        |scenario| args.columns_of(scenario, columns),
        args.seed,
        args.jobs,
        &kept,
        |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        },
    );
    bar.finish_and_clear();
    let rows = rows?;
    note_faults(columns);
    let shown = match show(args, &rows, columns) {
        Err(why) if !why.is::<OutputClosed>() => return Err(why),
        shown => shown,
    };
    if args.pairs || args.before.is_some() {
        let before = args
            .before
            .as_deref()
            .map(pairs::Before::read)
            .transpose()?;
        output::print(&pairs::text(&rows, columns, before.as_ref()))?;
    }
    if let Some(path) = &args.keep_bounds {
        for row in &rows {
            kept.keep(&row.scenario, args.seed, row.bound.clone());
        }
        write(path, &kept.text())?;
    }
    if let Some(path) = &args.report {
        write(path, &report::page(&rows, columns, args.seed)?)?;
    }
    let summary = plot::profile_file(&rows, columns)?;
    if let Some(path) = &args.plot {
        write(path, &summary)?;
    }
    if let Some(directory) = &args.snapshot {
        for (story, text) in tables(&rows) {
            write(&directory.join(format!("{story}.txt")), &text)?;
        }
        write(&directory.join(SUMMARY), &summary)?;
    }
    if let Some(directory) = &args.check {
        check(directory, &rows, &summary)?;
    }
    // The reader of the tables has gone; files were written all the same.
    shown
}

fn show(args: &SimArgs, rows: &[Row], columns: &[Column]) -> anyhow::Result<()> {
    match args.output {
        Format::Json => output::print_json(&show::json(rows, args.seed)),
        Format::Text => {
            let style = Style::of_stdout();
            let mut text = String::new();
            let detailed = !args.names.is_empty() && rows.len() <= 12;
            if detailed {
                for row in rows {
                    text.push_str(&show::details(row, style));
                    text.push('\n');
                }
            }
            if rows.len() > 1 {
                text.push_str(&show::summary(rows, columns).render(style, |_| String::new()));
            }
            if !detailed {
                text.extend(rows.iter().map(show::above));
            }
            output::print(&text)
        }
    }
}

/// The table of each story, as it is kept beside it.
fn tables(rows: &[Row]) -> Vec<(&'static str, String)> {
    let of_story = |story: &catalog::Story| {
        let inside: Vec<Row> = rows
            .iter()
            .filter(|row| story.holds(&row.scenario.name))
            .cloned()
            .collect();
        let mut text = String::new();
        for row in &inside {
            text.push_str(&show::details(row, Style::PLAIN));
            text.push('\n');
        }
        (story.name, text)
    };
    catalog::STORIES.iter().map(of_story).collect()
}

/// The plot beside the tables, which README shows.
const SUMMARY: &str = "summary.svg";

fn check(directory: &Path, rows: &[Row], summary: &str) -> anyhow::Result<()> {
    let mut differ = Vec::new();
    let path = directory.join(SUMMARY);
    let kept = std::fs::read_to_string(&path);
    if kept.with_context(|| format!("cannot read {}", path.display()))? != summary {
        differ.push(format!("{SUMMARY} is another plot"));
    }
    for (story, text) in tables(rows) {
        let path = directory.join(format!("{story}.txt"));
        let kept = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        for (was, is) in kept.lines().zip(text.lines()).filter(|(was, is)| was != is) {
            differ.push(format!("{story}\n- {was}\n+ {is}"));
        }
        if kept.lines().count() != text.lines().count() {
            differ.push(format!("{story}: another number of lines"));
        }
    }
    if differ.is_empty() {
        return Ok(());
    }
    bail!(
        "{} lines differ from the snapshots in {}:\n{}",
        differ.len(),
        directory.display(),
        differ.join("\n")
    )
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn scenarios(args: &SimArgs) -> anyhow::Result<Vec<Scenario>> {
    if args.names.is_empty() {
        return catalog::all();
    }
    let mut scenarios = Vec::new();
    for name in &args.names {
        scenarios.extend(named(name)?);
    }
    Ok(scenarios)
}

fn named(name: &str) -> anyhow::Result<Vec<Scenario>> {
    if let Some((set, count)) = name.split_once(':') {
        return family::draw(set, count);
    }
    if name.ends_with(".toml") {
        let text = text::read(Path::new(name))?;
        let stem = Path::new(name).file_stem().unwrap_or_default();
        let parsed = scenario::parse(&stem.to_string_lossy(), &text);
        return parsed.with_context(|| name.to_owned());
    }
    if let Some(world) = family::one(name) {
        return world;
    }
    catalog::find(name)
}

/// The default policies of a comparison.
const USUAL: [Policy; 5] = [
    Policy::Numa,
    Policy::RoundRobin { bytes: 0 },
    Policy::QueueDepth,
    Policy::WEIGHTED_LATENCY,
    Policy::Soonest,
];

impl SimArgs {
    /// Whether it is run for more than what standard output shows: files, or a comparison.
    fn is_for_more(&self) -> bool {
        let files = [&self.report, &self.plot, &self.snapshot, &self.keep_bounds];
        self.check.is_some() || files.iter().any(|it| it.is_some())
    }

    /// The columns of one scenario: of all, and where none were asked for, what it adds itself.
    fn columns_of(&self, scenario: &Scenario, of_all: &[Column]) -> Vec<Column> {
        let mut columns_here = of_all.to_vec();
        if self.policy.is_empty() {
            columns_here.extend(columns(self, &scenario.also));
            columns_here.extend(long_columns(scenario));
        }
        if self.hedge.is_none() && scenario.hedge {
            columns_here.extend(columns_here.iter().filter_map(hedged).next());
        }
        columns_here
    }
}

/// The columns of all scenarios.
///
/// # Errors
/// Usage: a program that can't be loaded.
fn asked(args: &SimArgs) -> anyhow::Result<Vec<Column>> {
    if args.policy.is_empty() {
        return Ok(columns(args, &USUAL));
    }
    let mut asked = Vec::new();
    for it in &args.policy {
        match it {
            Choosing::Policy(policy) => asked.extend(plain_columns(args, &[*policy])),
            Choosing::Program(file) => asked.push(program_column(args, file)?),
        }
    }
    Ok(with_hedged(args, asked))
}

fn program_column(args: &SimArgs, file: &Path) -> anyhow::Result<Column> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let options = Options { wasi: args.wasi };
    let program = program::read(file).and_then(|bytes| Program::new(&name, &bytes, options));
    let program =
        program.map_err(|error| Usage::error(format!("program:{}: {error}", file.display())))?;
    Ok(Column {
        name: format!("program:{}", program.id().name()),
        policy: Policy::Program(program.id()),
        program: Some(Arc::new(Tried::new(program))),
        hedged: false,
        long: None,
        knobs: Knobs::default(),
    })
}

/// Says how often programs had no answer.
fn note_faults(columns: &[Column]) {
    for column in columns {
        let Some(program) = &column.program else {
            continue;
        };
        let state = program.state();
        let faults = state.counts.faults_in_words();
        let out = match state.is_out {
            true => "; it was taken out",
            false => "",
        };
        if !faults.is_empty() {
            output::note(&format!(
                "{}: {} choices, faults: {faults}{out}",
                column.name, state.counts.choices
            ));
        }
    }
}

fn columns(args: &SimArgs, policies: &[Policy]) -> Vec<Column> {
    with_hedged(args, plain_columns(args, policies))
}

fn with_hedged(args: &SimArgs, mut columns: Vec<Column>) -> Vec<Column> {
    if args.hedge == Some(HedgeWord::On) {
        columns.extend(columns.iter().filter_map(hedged).collect::<Vec<_>>());
    }
    columns
}

fn plain_columns(args: &SimArgs, policies: &[Policy]) -> Vec<Column> {
    let column = |name: String, policy, weight_timeout_ns| Column {
        name,
        policy,
        program: None,
        hedged: false,
        long: None,
        knobs: Knobs {
            weight_timeout_ns,
            ..Knobs::default()
        },
    };
    let mut columns = Vec::new();
    for &policy in policies {
        if matches!(policy, Policy::WeightedLatency(_)) {
            columns.push(column(format!("{policy} 50ms"), policy, 50_000_000));
            if args.long {
                columns.push(column(format!("{policy} 15s"), policy, 15_000_000_000));
            }
        } else {
            columns.push(column(policy.to_string(), policy, 0));
        }
    }
    columns
}

/// The `weighted-latency` policies of the scenario's document with the default window.
fn long_columns(scenario: &Scenario) -> Vec<Column> {
    let (Some(long), Some(document)) = (scenario.long, &scenario.document) else {
        return Vec::new();
    };
    let weighted = |it: &Policy| matches!(it, Policy::WeightedLatency(_));
    let policies = document.policies().filter(weighted);
    let column = |policy| Column {
        name: format!("{policy} 15s"),
        policy,
        program: None,
        hedged: false,
        knobs: Knobs::default(),
        long: Some(long),
    };
    policies.map(column).collect()
}

/// As `column`, with hedged reads, if this policy knows when a read is late.
fn hedged(column: &Column) -> Option<Column> {
    (column.policy == Policy::Soonest).then(|| Column {
        name: format!("{} hedged", column.name),
        hedged: true,
        ..column.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(names: &[&str]) -> (Vec<Row>, Vec<Column>) {
        rows_on(names, 2)
    }

    fn rows_on(names: &[&str], threads: usize) -> (Vec<Row>, Vec<Column>) {
        let words = ["sim"].iter().chain(names);
        let args = Cli::parse_from(words).args;
        let columns = asked(&args).unwrap();
        let kept = Kept::of_tree();
        let scenarios = scenarios(&args).unwrap();
        for scenario in &scenarios {
            let kept = kept.find(scenario, args.seed);
            assert!(kept.is_some(), "{}: search its bound again", scenario.name);
        }
        let rows = measure::measure(
            scenarios,
            |scenario| args.columns_of(scenario, &columns),
            args.seed,
            threads,
            &kept,
            |_, _| (),
        );
        (rows.unwrap(), columns)
    }

    /// A change of any policy or model shows here as a difference of two tables; all stories are
    /// compared by `braid sim --check scenarios`.
    #[test]
    fn the_tables_beside_the_scenarios_are_what_comes_out() {
        let stories = ["twice", "sizedep", "shared", "ana"];
        let (rows, columns) = rows(&stories);
        for (story, text) in tables(&rows) {
            if stories.contains(&story) {
                let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
                let kept = std::fs::read_to_string(format!("{folder}/{story}.txt")).unwrap();
                assert!(text == kept, "{story} was\n{kept}\nand is\n{text}");
            }
        }
        let page = report::page(&rows, &columns, 1).unwrap();
        assert!(page.contains("sizedep2") && !page.contains("NaN") && !page.contains("http"));
    }

    /// Programs that imitate a policy give its table, to the byte.
    #[test]
    fn programs_print_the_tables_of_what_they_imitate() {
        let modules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../sdk/modules");
        let printed = |policy: &str| {
            let (mut rows, _) = rows(&["het4-bss", "d30-rd", "step-delay", "--policy", policy]);
            for row in &mut rows {
                "policy".clone_into(&mut row.columns[0].name);
            }
            tables(&rows)
        };
        for (policy, module) in [
            ("round-robin", "round_robin"),
            ("queue-depth", "queue_depth"),
            ("weighted-latency:per-cpu", "weighted_latency"),
        ] {
            let program = printed(&format!("program:{modules}/{module}.wasm"));
            assert_eq!(program, printed(policy), "{policy}");
        }
    }

    #[test]
    fn program_that_is_none_is_a_usage_error() {
        let args = Cli::parse_from(["sim", "d30-qd1", "--policy", "program:Cargo.toml"]).args;
        let why = run(&args).unwrap_err();
        assert!(why.is::<Usage>(), "{why:#}");
    }

    #[test]
    fn without_names_there_is_nothing_to_report() {
        for words in [
            "--report x",
            "--plot x",
            "--policy numa",
            "--long",
            "--hedge on",
        ] {
            let args = Cli::parse_from(["sim"].into_iter().chain(words.split(' '))).args;
            assert!(run(&args).unwrap_err().is::<Usage>(), "{words}");
        }
        assert_eq!(catalog::json().unwrap()["stories"][0]["name"], "sym");
    }

    #[test]
    fn more_threads_than_runs_are_not_made() {
        let (alone, _) = rows(&["d30-qd1"]);
        let (many, _) = rows_on(&["d30-qd1"], usize::MAX);
        assert_eq!(alone[0].cells[0].tally, many[0].cells[0].tally);
    }
}
