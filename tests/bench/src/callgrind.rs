//! Instruction counts of a whole program or of one function in it, by valgrind's callgrind. They
//! repeat, whatever else the machine does.
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;
use system::process::is_installed;

/// What a run came to.
pub struct Counted {
    /// Instructions, of all threads.
    pub instructions: u64,
    /// The first number that the program printed.
    pub printed: Option<u64>,
}

/// What callgrind counts with [`SIMULATED`], in the order of its sums: instructions, reads, writes,
/// and misses of instructions, reads and writes, in the first level and in the last.
pub const EVENTS: [&str; 9] = [
    "Ir", "Dr", "Dw", "I1mr", "D1mr", "D1mw", "ILmr", "DLmr", "DLmw",
];
/// Words to valgrind for a run whose cache misses are simulated.
pub const SIMULATED: [&str; 3] = [
    "--tool=callgrind",
    "--callgrind-out-file=/dev/null",
    "--cache-sim=yes",
];

/// # Errors
/// valgrind is not installed: what to install.
pub fn check() -> Result<()> {
    if is_installed("valgrind") {
        return Ok(());
    }
    bail!("valgrind is not installed; it counts the instructions: apt-get install valgrind");
}

/// Runs `program`; `function`: counts only inside functions of this pattern.
pub fn run(program: &Path, arguments: &[&str], function: Option<&str>) -> Result<Counted> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    if let Some(function) = function {
        command.args([
            "--collect-atstart=no",
            &format!("--toggle-collect={function}"),
        ]);
    }
    let output = command
        .arg(program)
        .args(arguments)
        .output()
        .context("start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let name = program.display();
    ensure!(
        output.status.success(),
        "{name} {} failed:\n{said}",
        arguments.join(" ")
    );
    let instructions = collected(&said);
    Ok(Counted {
        instructions: instructions
            .with_context(|| format!("callgrind counted nothing:\n{said}"))?,
        printed: first_number(&String::from_utf8_lossy(&output.stdout)),
    })
}

/// Instructions of one more iteration, whose number is the last argument, and of the I/Os that the
/// program prints: the difference between a run of `few` iterations and one of twice as many, so
/// that the start does not count.
///
/// # Errors
/// A run fails, or the longer one costs no more.
pub fn per_iteration(program: &Path, arguments: &[&str], few: u64) -> Result<(f64, u64)> {
    let counted = |iterations: u64| {
        let iterations = iterations.to_string();
        let arguments: Vec<&str> = arguments.iter().copied().chain([&*iterations]).collect();
        run(program, &arguments, None)
    };
    let (less, more) = (counted(few)?, counted(2 * few)?);
    ensure!(
        more.instructions > less.instructions,
        "{arguments:?}: {} iterations cost no more than {few}",
        2 * few
    );
    let instructions = (more.instructions - less.instructions) as f64;
    let ios = more
        .printed
        .unwrap_or(0)
        .saturating_sub(less.printed.unwrap_or(0));
    Ok((instructions / few as f64, ios))
}

/// The total in callgrind's summary.
fn collected(said: &str) -> Option<u64> {
    sums(said)?.next()?.parse().ok()
}

/// One sum for each of [`EVENTS`].
pub fn totals(said: &str) -> Option<Vec<f64>> {
    let totals: Option<Vec<f64>> = sums(said)?.map(|word| word.parse().ok()).collect();
    totals.filter(|totals| totals.len() == EVENTS.len())
}

fn sums(said: &str) -> Option<impl Iterator<Item = &str>> {
    let line = said
        .lines()
        .find_map(|line| line.split_once("Collected :"))?;
    Some(line.1.split_whitespace())
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{collected, first_number, totals};

    #[test]
    fn the_total_is_read_out_of_callgrinds_summary() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
        assert_eq!(totals(said), None);
        let said = "==7== Collected : 9 8 7 6 5 4 3 2 1\n";
        let expected = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0];
        assert_eq!(totals(said), Some(expected.to_vec()));
    }

    #[test]
    fn the_programs_count_is_its_first_number() {
        assert_eq!(first_number("32000 reads\n"), Some(32_000));
        assert_eq!(first_number("reads\n"), None);
    }
}
