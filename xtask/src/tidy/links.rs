//! Links in Markdown: files and headings exist, and a link named after an item leads to a file that
//! has it.
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
    if link.target.contains("://") || link.target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = match link.target.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (link.target, None),
    };
    let path = if path.is_empty() {
        file.path.clone()
    } else {
        resolve(&file.path, path)
    };
    if !tree.paths.contains(&path) {
        return Some(format!("link to {path}, which does not exist"));
    }
    let target = tree.file(&path)?;
    if let Some(anchor) = anchor
        && path.ends_with(".md")
        && !target
            .text
            .lines()
            .any(|line| slug(line).as_deref() == Some(anchor))
    {
        return Some(format!("link to #{anchor}, which {path} lacks"));
    }
    let item = item(link.text)?;
    let missing = path.ends_with(".rs") && !has_word(&target.text, item);
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

/// The anchor of a heading, as forges make it.
fn slug(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let kept = heading
        .chars()
        .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(
        kept.map(|c| {
            if c == ' ' {
                '-'
            } else {
                c.to_ascii_lowercase()
            }
        })
        .collect(),
    )
}

/// The name that a link in code font points at: the last word of `Type::method()`; not a path.
fn item(text: &str) -> Option<&str> {
    let code = text.strip_prefix('`')?.strip_suffix('`')?;
    let name = code.trim_end_matches("()").rsplit("::").next()?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then_some(name)
}
