//! Rules on lines of text: columns, length of files, tabs, left-overs, paths of one machine.
use super::Finding;
use super::tree::{File, Tree};

/// Most characters of a line of Rust.
const COLUMNS_MAX: usize = 100;
/// Most lines of a Rust file, with its tests.
const FILE_LINES_MAX: usize = 900;

/// Words that mean "not finished".
const LEFT_OVERS: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
];
/// Beginnings of paths that exist on one machine only.
const HOMES: [&str; 4] = [
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
    concat!("/wo", "rk/"),
];

/// Checks every text file.
/// How lines begin that a merge left, in two parts, so that this file has none.
const CONFLICTS: [&str; 2] = [concat!("<<<<", "<<< "), concat!(">>>>", ">>> ")];

pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        let rust = file.path.ends_with(".rs");
        for (index, line) in file.text.lines().enumerate() {
            if let Some(what) = check_line(line, rust) {
                findings.push(Finding::new(&file.path, index + 1, what));
            }
        }
        check_whole(file, rust, findings);
    }
}

fn check_line(line: &str, rust: bool) -> Option<String> {
    let columns = line.chars().count();
    if rust && columns > COLUMNS_MAX {
        return Some(format!("{columns} columns, at most {COLUMNS_MAX}"));
    }
    if line.contains('\t') {
        return Some("a tab; indent with spaces".to_owned());
    }
    if let Some(word) = LEFT_OVERS.iter().find(|word| has_word(line, word)) {
        return Some(format!("{word} left over; finish it or write an issue"));
    }
    if CONFLICTS.iter().any(|mark| line.starts_with(mark)) {
        return Some("a mark of a merge that was not finished".to_owned());
    }
    if let Some(home) = HOMES.iter().find(|home| has_path(line, home)) {
        return Some(format!("a path of one machine ({home}…)"));
    }
    None
}

fn check_whole(file: &File, rust: bool, findings: &mut Vec<Finding>) {
    let lines = file.text.lines().count();
    if rust && lines > FILE_LINES_MAX {
        let what = format!("{lines} lines, at most {FILE_LINES_MAX}; cut by phase of life");
        findings.push(Finding::new(&file.path, FILE_LINES_MAX + 1, what));
    }
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        findings.push(Finding::new(
            &file.path,
            lines,
            "no newline at the end of the file",
        ));
    }
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
pub fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

/// Whether an absolute path that begins with `home` stands in `line` (not the middle of another
/// path).
fn has_path(line: &str, home: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '/' | '}' | ')');
    line.match_indices(home)
        .any(|(at, _)| !line[..at].ends_with(inside))
}
