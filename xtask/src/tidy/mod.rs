//! Lints the whole tree for what the compiler, rustfmt and clippy do not hold.
//!
//! # Contract
//! Every rule is a function from a [`Tree`] to findings and touches no file itself, so that its
//! test can hand it a tree that must fail. All findings are printed as `file:line: what`; any
//! finding fails.
//!
//! # Limits
//! Rules work on tokens, not on types: a rule that needs types belongs to clippy.
mod figures;
mod layers;
mod lexed;
mod links;
mod purity;
mod rust;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod words;

use anyhow::Result;
use std::path::Path;
use std::process::ExitCode;
use tree::Tree;

/// One thing that is not as the customs say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the root.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The mistake, and what would be right.
    pub what: String,
}

impl Finding {
    fn new(file: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line,
            what: what.into(),
        }
    }
}

/// Prints all findings; success only without any.
pub fn run(root: &Path) -> Result<ExitCode> {
    let tree = Tree::read(root)?;
    let findings = check(&tree);
    for finding in &findings {
        println!("{}:{}: {}", finding.file, finding.line, finding.what);
    }
    if findings.is_empty() {
        let (files, median) = (tree.files.len(), words::median(&tree));
        println!("tidy: {files} files, nothing found; sentences of documents: {median} words");
        return Ok(ExitCode::SUCCESS);
    }
    println!(
        "tidy: {} findings in {} files",
        findings.len(),
        tree.files.len()
    );
    Ok(ExitCode::FAILURE)
}

/// Prints the figures of the crates below `root`.
pub fn figures(root: &Path) -> Result<ExitCode> {
    print!("{}", figures::table(&Tree::read(root)?));
    Ok(ExitCode::SUCCESS)
}

/// All findings of all rules, by file and line.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    text::check(tree, &mut findings);
    rust::check(tree, &mut findings);
    purity::check(tree, &mut findings);
    layers::check(tree, &mut findings);
    links::check(tree, &mut findings);
    words::check(tree, &mut findings);
    findings.sort();
    findings.dedup();
    findings
}
