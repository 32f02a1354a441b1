//! Runs all cells, and compares their table with docs/results/matrix.md.
use super::{Cell, DEVICES, Front, OPERATIONS};
use std::fmt::Write as _;
use std::fs::read_to_string;
use std::path::Path;

const DOCUMENT: &str = "../../docs/results/matrix.md";

/// Heading of what is generated.
const BEGIN: &str =
    "<!-- generated: BRAID_WRITE_DOCS=1 cargo test -p braid-engine --test it matrix -->\n";

fn header(columns: impl Iterator<Item = &'static str>) -> String {
    let columns: Vec<&str> = columns.collect();
    let rule = "|---".repeat(columns.len());
    format!("| {} |\n{rule}|\n", columns.join(" | "))
}

/// Rows for operation and front end; a number leads to the reason why there is no such cell.
fn cells() -> String {
    let names = DEVICES.iter().map(|(_, name)| *name);
    let mut text = header(["operation", "front end"].into_iter().chain(names));
    let mut reasons: Vec<&str> = Vec::new();
    let mut count = 0;
    for it in &OPERATIONS {
        for front in Front::ALL {
            let _ = write!(text, "| {} | {} |", it.name, front.name());
            for (below, _) in DEVICES {
                match (it.cell)(front, below) {
                    Cell::Checked(_) => {
                        count += 1;
                        text.push_str(" checked |");
                    }
                    Cell::None(why) => {
                        let known = reasons.iter().position(|reason| *reason == why);
                        let at = known.unwrap_or_else(|| {
                            reasons.push(why);
                            reasons.len() - 1
                        });
                        let _ = write!(text, " none ({}) |", at + 1);
                    }
                }
            }
            text.push('\n');
        }
    }
    let _ = writeln!(text, "\n{count} cells are checked. There are no others:\n");
    for (number, why) in (1..).zip(reasons) {
        let _ = writeln!(text, "{number}. {why}");
    }
    text
}

fn generated() -> String {
    let mut text = format!("{BEGIN}\n{}\n", cells());
    text.push_str(&header(["operation", "a cell checks"].into_iter()));
    for it in &OPERATIONS {
        let _ = writeln!(text, "| {} | {} |", it.name, it.checks);
    }
    text.push('\n');
    text.push_str(&header(
        ["operation", "tests of hardware queues"].into_iter(),
    ));
    for it in &OPERATIONS {
        let tests = it
            .queue
            .iter()
            .map(|(module, name)| format!("`{module}::{name}`"));
        let tests: Vec<String> = tests.collect();
        let _ = writeln!(text, "| {} | {} |", it.name, tests.join(", "));
    }
    text
}

/// `BRAID_WRITE_DOCS=1` writes the document.
#[test]
fn document_has_the_table_of_all_cells() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    let text = read_to_string(&path).unwrap();
    let (head, _) = text.split_once(BEGIN).unwrap();
    let expected = format!("{head}{}", generated());
    if std::env::var_os("BRAID_WRITE_DOCS").is_some() {
        return std::fs::write(&path, expected).unwrap();
    }
    let help = "matrix.md is not the code's table: run this test with BRAID_WRITE_DOCS=1";
    assert!(text == expected, "{help}\n{expected}");
}

#[test]
fn named_tests_of_queues_exist() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../broker/tests/it");
    for (module, name) in OPERATIONS.iter().flat_map(|it| it.queue) {
        let text = read_to_string(tests.join(format!("{module}.rs"))).unwrap();
        let test = format!("#[test]\nfn {name}()");
        assert!(text.contains(&test), "{module}::{name}");
    }
}

/// Runs the cells of an operation, by its name.
fn run(name: &str) {
    let it = OPERATIONS.iter().find(|it| it.name == name).unwrap();
    for front in Front::ALL {
        for (below, device) in DEVICES {
            match (it.cell)(front, below) {
                Cell::Checked(check) => check(front, below),
                Cell::None(why) => println!("{} {name} {device}: none: {why}", front.name()),
            }
        }
    }
}

/// One test for each operation.
macro_rules! tests {
    ($($test:ident $name:literal)*) => {
        $(#[test]
        fn $test() {
            run($name);
        })*

        #[test]
        fn each_operation_has_its_test() {
            let names = [$($name),*];
            assert!(OPERATIONS.iter().map(|it| it.name).eq(names));
        }
    };
}

tests! {
    read "read"
    write "write"
    fua "FUA"
    flush "flush"
    zeroes "zeroes"
    discard "discard"
    compare "compare"
    partial_blocks "partial blocks"
    resize "resize"
    loss "loss"
    stop "stop"
}
