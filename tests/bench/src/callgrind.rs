//! Instruction counts of a whole program or of one function in it, by valgrind's callgrind. They
//! repeat, whatever else the machine does.
use crate::prelude::*;

/// Counts of a run.
pub struct Counted {
    /// Instructions, of all threads.
    pub instructions: u64,
    /// The first number that the program printed.
    pub printed: Option<u64>,
}

/// Words to valgrind for a run of which only the sum is read.
pub const QUIET: [&str; 2] = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];

/// # Errors
/// valgrind is not installed.
pub fn check() -> Result<()> {
    needs("valgrind", "valgrind")
}

/// Runs `program`; `function`: counts only inside functions of this pattern.
pub fn run(program: &Path, arguments: &[&str], function: Option<&str>) -> Result<Counted> {
    let mut command = Command::new("valgrind");
    command.args(QUIET);
    if let Some(function) = function {
        let toggle = format!("--toggle-collect={function}");
        command.args(["--collect-atstart=no", &toggle]);
    }
    let output = command.arg(program).args(arguments).output();
    let output = output.context("start valgrind")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{} {arguments:?} failed:\n{said}",
        program.display()
    );
    Ok(Counted {
        instructions: collected(&said)?,
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
    let instructions = more.instructions.saturating_sub(less.instructions);
    ensure!(
        instructions > 0,
        "{arguments:?}: {} iterations cost no more than {few}",
        2 * few
    );
    let ios = more
        .printed
        .unwrap_or(0)
        .saturating_sub(less.printed.unwrap_or(0));
    Ok((instructions as f64 / few as f64, ios))
}

/// The total in callgrind's summary.
///
/// # Errors
/// There is none.
pub fn collected(said: &str) -> Result<u64> {
    let sum = said
        .lines()
        .find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok());
    sum.with_context(|| format!("callgrind counted nothing:\n{said}"))
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().find_map(|word| word.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::{collected, first_number};

    #[test]
    fn the_total_is_read_out_of_callgrinds_summary() {
        let said = "==7== Events    : Ir\n==7== Collected : 123456\n==7== \n";
        assert_eq!(collected(said).unwrap(), 123_456);
        assert!(collected("==7== Events    : Ir\n").is_err());
    }

    #[test]
    fn the_programs_count_is_its_first_number() {
        assert_eq!(first_number("32000 reads\n"), Some(32_000));
        assert_eq!(first_number("reads\n"), None);
    }
}
