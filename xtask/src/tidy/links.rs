//! Links in Markdown: one named after an item leads to a Rust file that has it. Files and headings
//! are checked by lychee.
use super::Finding;
use super::text::has_word;
use super::tree::{File, Tree};

/// Checks every Markdown file.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        let mut fenced = false;
        for (index, line) in file.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                fenced = !fenced;
            } else if !fenced {
                for link in links(line) {
                    let problem = check_link(tree, file, &link);
                    findings.extend(problem.map(|w| Finding::new(&file.path, index + 1, w)));
                }
            }
        }
    }
}

/// `[text](target)` or `[text]: target`.
struct Link<'a> {
    text: &'a str,
    target: &'a str,
}

fn links(line: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        let (before, after) = (&rest[..at], &rest[at + 2..]);
        let text = before.rfind('[').map_or("", |open| &before[open + 1..]);
        let Some(end) = after.find(')') else { break };
        found.push(Link {
            text,
            target: after[..end].trim(),
        });
        rest = &after[end + 1..];
    }
    if line.starts_with('[')
        && let Some((text, target)) = line[1..].split_once("]: ")
    {
        found.push(Link {
            text,
            target: target.trim(),
        });
    }
    found
}

fn check_link(tree: &Tree, file: &File, link: &Link<'_>) -> Option<String> {
    let item = item(link.text)?;
    let path = resolve(&file.path, link.target.split('#').next()?);
    let target = tree.file(&path).filter(|_| path.ends_with(".rs"))?;
    let missing = !has_word(&target.text, item);
    missing.then(|| format!("link to {item}, which {path} lacks"))
}

/// `path` as seen from the directory of `from`.
fn resolve(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The name that a link in code font points at: the last word of `Type::method()`; not a path.
fn item(text: &str) -> Option<&str> {
    let code = text.strip_prefix('`')?.strip_suffix('`')?;
    let name = code.trim_end_matches("()").rsplit("::").next()?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then_some(name)
}
