//! Tests that did not run and tests that failed, as their output says.

/// One test that did not run.
#[derive(Debug, PartialEq, Eq)]
pub struct Skip {
    /// Its name.
    pub test: String,
    /// Why.
    pub reason: String,
}

/// Lines of a panic that are shown: snapshots and long values are in the log.
const PANIC_LINES: usize = 20;

/// Every `SKIP <test>: <reason>` and every ignored test in `output`.
pub fn found(output: &str) -> Vec<Skip> {
    output
        .lines()
        .filter_map(|line| said(line).or_else(|| ignored(line)))
        .collect()
}

/// Names that may be skipped: one per line, `#` begins a comment.
pub fn allowed(list: &str) -> Vec<String> {
    let names = list
        .lines()
        .map(|line| line.split('#').next().unwrap_or("").trim());
    names
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Names in the lists of failed tests in `output`: `--no-fail-fast` runs the other programs too, so
/// that its end shows the last ones only.
pub fn failed(output: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut is_listed = false;
    for line in output.lines() {
        match line.strip_prefix("    ") {
            Some(name) if is_listed => names.push(name),
            _ => is_listed = line == "failures:",
        }
    }
    names
}

/// Why a test failed: its panic with what it said, at most [`PANIC_LINES`]. Threads that it started
/// have no name.
pub fn panic_of<'a>(output: &'a str, test: &str) -> Vec<&'a str> {
    let thread = format!("thread '{test}'");
    let is_panic = |line: &&str| line.contains(&thread) && line.contains(" panicked at ");
    let lines = output.lines().skip_while(|line| !is_panic(line));
    lines
        .take_while(|line| !line.starts_with("note: run with `RUST_BACKTRACE="))
        .take(PANIC_LINES)
        .collect()
}

/// The harness may have written `test name ... ` on the same line before.
fn said(line: &str) -> Option<Skip> {
    let from_start = line.strip_prefix("SKIP ");
    let rest = from_start.or_else(|| line.split_once(" ... SKIP ").map(|(_, rest)| rest))?;
    let (test, reason) = rest.split_once(": ").unwrap_or((rest, "no reason given"));
    Some(Skip {
        test: test.to_owned(),
        reason: reason.to_owned(),
    })
}

fn ignored(line: &str) -> Option<Skip> {
    let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    let reason = rest
        .strip_prefix(", ")
        .unwrap_or("ignored, no reason given");
    Some(Skip {
        test: test.to_owned(),
        reason: reason.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::{PANIC_LINES, allowed, failed, found, panic_of};

    #[test]
    fn skips_and_ignored_tests_are_found_wherever_the_harness_puts_them() {
        let output = "running 3 tests\nSKIP a: no IPv6\ntest b ... SKIP b: no root\n\
                      test c ... ignored, slow\ntest d ... ignored\ntest e ... ok\n";
        let found: Vec<String> = found(output)
            .iter()
            .map(|s| format!("{}|{}", s.test, s.reason))
            .collect();
        let expected = [
            "a|no IPv6",
            "b|no root",
            "c|slow",
            "d|ignored, no reason given",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn failed_tests_of_several_programs_are_named() {
        let output = "test a ... FAILED\n\nfailures:\n\n---- a stdout ----\n    no name\n\n\
                      failures:\n    a\n    m::b\n\ntest result: FAILED.\n    no name\n\
                      failures:\n    c\n\ntest result: FAILED.\n";
        assert_eq!(failed(output), ["a", "m::b", "c"]);
        assert!(failed("test a ... ok\n").is_empty());
    }

    #[test]
    fn panic_of_a_test_is_found_among_the_output_of_others() {
        let note = "note: run with `RUST_BACKTRACE=1` environment variable";
        let output = format!(
            "thread 'a' (7) panicked at x.rs:1:2:\nno\n{note}\ntest b ... thread 'b' (8) panicked \
             at y.rs:3:4:\nnever came\n{note}\ntest c ... ok\n"
        );
        let found = panic_of(&output, "b");
        let first = "test b ... thread 'b' (8) panicked at y.rs:3:4:";
        assert_eq!(found, [first, "never came"]);
        assert!(panic_of(&output, "c").is_empty());
        let long = format!("thread 'a' panicked at x.rs:1:2:\n{}", "x\n".repeat(100));
        assert_eq!(panic_of(&long, "a").len(), PANIC_LINES);
    }

    #[test]
    fn the_allowed_list_has_comments() {
        assert_eq!(
            allowed("# why\n\na::b # no IPv6 in containers\nc\n"),
            ["a::b", "c"]
        );
    }
}
