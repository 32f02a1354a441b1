//! Rules on Rust sources: length of functions, `unsafe` in one room, no `unwrap` outside tests.
use super::Finding;
use super::lexed::{Kind, Lexed, TestModule};
use super::tree::{File, Tree};
use std::collections::BTreeSet;

/// Most lines of a function, from `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 120;
/// The only places that may contain `unsafe`: in the last, what modules for wasm32 export.
const UNSAFE_ROOMS: [&str; 3] = ["crates/sys/", "crates/queue-c/", "sdk/rust/"];
/// Macros that mean "not finished" or "left from a search".
const LEFT_OVERS: [&str; 3] = ["todo", "unimplemented", "dbg"];

/// Checks every Rust file.
pub fn check(tree: &Tree, findings: &mut Vec<Finding>) {
    let tests = test_files(tree);
    for file in tree.rust() {
        match Lexed::new(file, is_test(&file.path, &tests)) {
            Ok(lexed) => check_file(&file.path, &lexed, findings),
            Err(finding) => findings.push(finding),
        }
    }
}

fn check_file(path: &str, lexed: &Lexed, findings: &mut Vec<Finding>) {
    for function in lexed
        .functions
        .iter()
        .filter(|f| f.lines > FUNCTION_LINES_MAX)
    {
        let (name, lines) = (&function.name, function.lines);
        let what = format!("fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}");
        findings.push(Finding::new(path, function.line, what));
    }
    let may_be_unsafe = UNSAFE_ROOMS.iter().any(|room| path.starts_with(room));
    for (at, token) in lexed.tokens.iter().enumerate() {
        if !may_be_unsafe && lexed.matches(at, &["unsafe"]) {
            findings.push(Finding::new(path, token.line, "unsafe outside crates/sys"));
        }
        if !token.test
            && let Some(call) = unwraps(lexed, at)
        {
            let what = format!("{call} outside a test; return an error or assert the invariant");
            findings.push(Finding::new(path, token.line, what));
        }
        if let Some(name) = LEFT_OVERS
            .iter()
            .find(|name| lexed.matches(at, &[name, "!"]))
        {
            findings.push(Finding::new(path, token.line, format!("{name}! left over")));
        }
    }
}

/// `unwrap()` or `expect("…")` at `at`, as a method or by path.
fn unwraps(lexed: &Lexed, at: usize) -> Option<&'static str> {
    let reached = lexed.matches(at, &["."]) || lexed.matches(at, &[":"]);
    if reached && lexed.matches(at + 1, &["unwrap"]) {
        return Some("unwrap");
    }
    let literal = lexed.tokens.get(at + 3).map(|token| &token.kind);
    let message = matches!(literal, Some(Kind::Literal(text)) if text.contains('"'));
    (reached && lexed.matches(at + 1, &["expect", "("]) && message).then_some("expect")
}

/// Files (and directories of modules) that are compiled for tests only.
pub fn test_files(tree: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in tree.rust() {
        let Ok(lexed) = Lexed::new(file, false) else {
            continue;
        };
        for module in &lexed.test_modules {
            found.extend(files_of(file, module));
        }
    }
    found
}

/// Whether all of `path` is a test: by its place or because a `#[cfg(test)] mod` names it.
pub fn is_test(path: &str, tests: &BTreeSet<String>) -> bool {
    let by_place = path.starts_with("tests/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.contains("/benches/")
        || path.starts_with("fuzz/");
    let named = |test: &String| {
        path == test
            || test
                .strip_suffix(".rs")
                .is_some_and(|d| path.starts_with(&format!("{d}/")))
    };
    by_place || tests.iter().any(named)
}

fn files_of(file: &File, module: &TestModule) -> Vec<String> {
    let (directory, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    if let Some(path) = &module.path {
        return vec![format!("{directory}/{path}")];
    }
    let below = match name {
        "lib.rs" | "main.rs" | "mod.rs" => directory.to_owned(),
        _ => format!("{directory}/{}", name.trim_end_matches(".rs")),
    };
    vec![format!("{below}/{}.rs", module.name)]
}
