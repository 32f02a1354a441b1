//! How sentences begin: with a thing of the system, not with a clause that has no subject. Checked
//! in the documents and in all comments.
use super::Finding;
use super::tree::{File, Tree};

/// Documents that are checked, besides those in `docs/` itself.
const DOCUMENTS: [&str; 3] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];
/// Words with which no sentence begins.
const BEGINNINGS: [&str; 5] = ["What", "Who", "Whose", "Nobody", "Whoever"];

/// Checks every document and every comment.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in &tree.files {
        if is_document(&file.path) {
            check_lines(file, document, findings);
        } else if file.path.ends_with(".rs") {
            check_lines(file, comment, findings);
        }
    }
}

fn is_document(path: &str) -> bool {
    let in_docs = |path: &str| path.ends_with(".md") && !path.contains('/');
    DOCUMENTS.contains(&path) || path.strip_prefix("docs/").is_some_and(in_docs)
}

/// The text of a comment on this line, and whether it stands behind code, where it begins anew.
fn comment(line: &str) -> (bool, &str) {
    match line.trim_start().strip_prefix("//") {
        Some(text) => (false, text.trim_start_matches(['/', '!'])),
        None => (true, line.split_once(" // ").map_or("", |(_, text)| text)),
    }
}

fn document(line: &str) -> (bool, &str) {
    (false, line)
}

/// Words of a sentence in the documents, the median; without headings and tables.
pub fn median(tree: &Tree) -> usize {
    let mut lengths = Vec::new();
    for file in tree.files.iter().filter(|it| is_document(&it.path)) {
        each_word(file, document, |_, line, _, begins| {
            if !line.starts_with(['#', '|']) {
                match lengths.last_mut() {
                    Some(words) if !begins => *words += 1,
                    _ => lengths.push(1),
                }
            }
        });
    }
    lengths.sort_unstable();
    lengths.get(lengths.len() / 2).copied().unwrap_or(0)
}

fn check_lines(file: &File, prose: fn(&str) -> (bool, &str), findings: &mut Vec<Finding>) {
    each_word(file, prose, |number, _, plain, begins| {
        let letters = plain.split(|c: char| !c.is_alphabetic()).next();
        if begins && let Some(begin) = BEGINNINGS.iter().find(|it| letters == Some(**it)) {
            let what = format!("a sentence begins with {begin}; name its subject");
            findings.push(Finding::new(&file.path, number, what));
        }
    });
}

/// Tells of each word: the number of its line and its text, the word, whether it begins a sentence.
fn each_word(
    file: &File,
    prose: fn(&str) -> (bool, &str),
    mut each: impl FnMut(usize, &str, &str, bool),
) {
    let (mut begins, mut is_code) = (true, false);
    for (index, line) in file.text.lines().enumerate() {
        let (anew, text) = prose(line);
        let text = text.trim_start();
        if text.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || text.is_empty() || text.starts_with("```") {
            begins = true;
            continue;
        }
        // Items of lists, headings and rows of tables begin anew.
        begins |= anew || text.starts_with(['-', '*', '#', '|', '>']);
        for word in text.split_whitespace() {
            let plain = word.trim_matches(['"', '*', '_', '(', ')', '[', ']']);
            // A mark (of an item, a heading, a cell) leaves the beginning where it was.
            let is_mark = !plain.contains(char::is_alphanumeric);
            if !is_mark {
                each(index + 1, text, plain, begins);
            }
            begins = plain.ends_with(['.', ':', '!', '?', '|']) || (begins && is_mark);
        }
    }
}
