//! Instruction counts of a whole program or of one function in it, by valgrind's callgrind. They
//! repeat, whatever else the machine does.
use crate::process::is_installed;
use anyhow::{Context, Result, bail, ensure};
use std::path::Path;
use std::process::Command;

/// What a run came to.
pub struct Counted {
    /// Instructions, of all threads.
    pub instructions: u64,
    /// The first number that the program printed.
    pub printed: Option<u64>,
}

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

/// The total in callgrind's summary.
fn collected(said: &str) -> Option<u64> {
    let (_, total) = said
        .lines()
        .find_map(|line| line.split_once("Collected :"))?;
    total.split_whitespace().next()?.parse().ok()
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
        assert_eq!(collected(said), Some(123_456));
        assert_eq!(collected("==7== Events    : Ir\n"), None);
    }

    #[test]
    fn the_programs_count_is_its_first_number() {
        assert_eq!(first_number("32000 reads\n"), Some(32_000));
        assert_eq!(first_number("reads\n"), None);
    }
}
