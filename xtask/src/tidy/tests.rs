//! One canary per rule: a tree that must be found fault with, beside one that must not.
use super::check;
use super::tree::Tree;

const MANIFEST: &str = "[lints]\nworkspace = true\n";
const ROOT: &str = "#![no_std]\n#![forbid(unsafe_code)]\n";

/// Findings of a tree, as printed.
fn found(files: &[(&str, &str)]) -> Vec<String> {
    let findings = check(&Tree::of(files));
    findings
        .iter()
        .map(|f| format!("{}:{}: {}", f.file, f.line, f.what))
        .collect()
}

/// Exactly one finding, at `place`, that speaks of `what`.
fn canary(files: &[(&str, &str)], place: &str, what: &str) {
    let found = found(files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with(place) && found[0].contains(what),
        "{found:?}"
    );
}

fn clean(files: &[(&str, &str)]) {
    assert_eq!(found(files), Vec::<String>::new());
}

/// A function of `lines` lines.
fn function(lines: usize) -> String {
    format!("fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
}

/// A pure crate `policy` with `source` behind its attributes (line 3 on).
fn policy(source: &str) -> Vec<String> {
    let root = format!("{ROOT}{source}");
    found(&[
        ("crates/policy/Cargo.toml", MANIFEST),
        ("crates/policy/src/lib.rs", &root),
    ])
}

#[test]
fn columns_are_characters_and_at_most_100() {
    let wide = format!("// {}\n", "ä".repeat(97));
    clean(&[("a.rs", &wide)]);
    canary(&[("a.rs", &format!("// {wide}"))], "a.rs:1:", "103 columns");
    clean(&[("a.md", &format!("{}\n", "prose ".repeat(30)))]);
}

#[test]
fn files_have_at_most_900_lines() {
    clean(&[("a.rs", &"// x\n".repeat(900))]);
    canary(&[("a.rs", &"// x\n".repeat(901))], "a.rs:901:", "901 lines");
    clean(&[("a.md", &"x\n".repeat(901))]);
}

#[test]
fn files_end_with_a_newline() {
    canary(&[("a.toml", "x = 1")], "a.toml:1:", "newline");
}

#[test]
fn tabs_are_found_everywhere() {
    canary(&[("a.md", "x\n\ty\n")], "a.md:2:", "tab");
}

#[test]
fn marks_of_a_merge_are_found_everywhere() {
    let mark = concat!("<<<<", "<<< HEAD");
    canary(&[("a.md", &format!("x\n{mark}\n"))], "a.md:2:", "merge");
    clean(&[("a.md", "x << 7\n")]);
}

#[test]
fn left_overs_are_found_in_comments_and_code() {
    let word = concat!("TO", "DO");
    canary(&[("a.rs", &format!("// {word}: later\n"))], "a.rs:1:", word);
    canary(&[("a.md", &format!("{word}\n"))], "a.md:1:", word);
    clean(&[("a.rs", &format!("// {word}S\n"))]);
    canary(
        &[("a.rs", "fn f() {\n    todo!()\n}\n")],
        "a.rs:2:",
        "todo!",
    );
    canary(
        &[("a.rs", "fn f() {\n    unimplemented!()\n}\n")],
        "a.rs:2:",
        "unimplemented!",
    );
    canary(
        &[("a.rs", "fn f() {\n    dbg!(1);\n}\n")],
        "a.rs:2:",
        "dbg!",
    );
    clean(&[("a.rs", "// a todo!() in prose\n")]);
}

#[test]
fn paths_of_one_machine_are_found() {
    let path = concat!("/ho", "me/someone/braid");
    canary(
        &[("a.rs", &format!("const P: &str = \"{path}\";\n"))],
        "a.rs:1:",
        "one machine",
    );
    clean(&[("a.md", concat!("https://example.org/ho", "me/page\n"))]);
}

#[test]
fn functions_have_at_most_120_lines() {
    clean(&[("a.rs", &function(120))]);
    canary(
        &[("a.rs", &function(121))],
        "a.rs:1:",
        "fn long has 121 lines",
    );
}

#[test]
fn functions_are_measured_inside_impls_macros_and_tests() {
    for around in [
        "impl X {",
        "macro_rules! m { () => {",
        "#[cfg(test)] mod tests {",
    ] {
        let closing = "}".repeat(around.matches('{').count());
        let text = format!("{around}\n{}{closing}\n", function(121));
        canary(&[("a.rs", &text)], "a.rs:2:", "fn long has 121 lines");
    }
    clean(&[(
        "a.rs",
        "type F = fn(u32) -> u32;\ntrait T {\n    fn f();\n}\n",
    )]);
}

#[test]
fn unsafe_lives_in_sys_alone() {
    let text = "fn f() {\n    unsafe { g() }\n}\n";
    canary(
        &[("crates/runtime/src/a.rs", text)],
        "crates/runtime/src/a.rs:2:",
        "unsafe outside",
    );
    canary(
        &[("fuzz/src/a.rs", text)],
        "fuzz/src/a.rs:2:",
        "unsafe outside",
    );
    clean(&[("crates/sys/src/a.rs", text)]);
    clean(&[("a.rs", "// unsafe in prose\nconst S: &str = \"unsafe\";\n")]);
}

#[test]
fn unwrap_and_expect_are_for_tests() {
    canary(
        &[("a.rs", "fn f() {\n    x.unwrap();\n}\n")],
        "a.rs:2:",
        "unwrap",
    );
    canary(
        &[("a.rs", "fn f() {\n    x.map(Option::unwrap);\n}\n")],
        "a.rs:2:",
        "unwrap",
    );
    canary(
        &[("a.rs", "fn f() {\n    x.expect(\"why\");\n}\n")],
        "a.rs:2:",
        "expect",
    );
    clean(&[(
        "a.rs",
        "fn f() {\n    parser.expect(Token::Comma);\n    x.unwrap_or(1);\n}\n",
    )]);
    clean(&[("a.rs", "#[test]\nfn f() {\n    x.unwrap();\n}\n")]);
    clean(&[(
        "a.rs",
        "#[cfg(test)]\nmod t {\n    fn f() {\n        x.unwrap();\n    }\n}\n",
    )]);
    clean(&[(
        "crates/nvme/tests/wired.rs",
        "fn f() {\n    x.unwrap();\n}\n",
    )]);
    let not = "#[cfg(not(test))]\nfn f() {\n    x.unwrap();\n}\n";
    canary(&[("a.rs", not)], "a.rs:3:", "unwrap");
    let after = "#[cfg(test)]\nuse a::B;\nfn f() {\n    x.unwrap();\n}\n";
    canary(&[("a.rs", after)], "a.rs:4:", "unwrap");
}

#[test]
fn a_module_declared_for_tests_is_a_test_with_all_below_it() {
    let body = "fn f() {\n    x.unwrap();\n}\n";
    let root = ("src/lib.rs", "#[cfg(test)]\nmod wired;\n");
    clean(&[root, ("src/wired.rs", body), ("src/wired/part.rs", body)]);
    canary(
        &[("src/lib.rs", "mod wired;\n"), ("src/wired.rs", body)],
        "src/wired.rs:2:",
        "unwrap",
    );
    let by_path = (
        "src/lib.rs",
        "#[cfg(test)]\n#[path = \"odd.rs\"]\nmod wired;\n",
    );
    clean(&[by_path, ("src/odd.rs", body)]);
}

#[test]
fn text_that_is_not_rust_is_said_so() {
    canary(&[("a.rs", "fn f() {\n")], "a.rs:", "not Rust");
}

#[test]
fn layers_hold() {
    let root = ("crates/policy/src/lib.rs", ROOT);
    for dependency in [
        "nvme.workspace = true",
        "braid-nvme = { path = \"../nvme\" }",
    ] {
        let manifest = format!("{MANIFEST}[dependencies]\n{dependency}\n");
        let what = "policy may not import nvme";
        canary(
            &[("crates/policy/Cargo.toml", &manifest), root],
            "crates/policy/Cargo.toml:4:",
            what,
        );
    }
    let renamed = format!("{MANIFEST}[dependencies]\nx = {{ package = \"braid-nvme\" }}\n");
    canary(
        &[("crates/policy/Cargo.toml", &renamed), root],
        "crates/policy",
        "import nvme",
    );
    let dev = format!("{MANIFEST}[dev-dependencies]\nnvme.workspace = true\n");
    clean(&[("crates/policy/Cargo.toml", &dev), root]);
    let engine = format!("{MANIFEST}[dependencies]\npolicy.workspace = true\n");
    clean(&[
        ("crates/engine/Cargo.toml", &engine),
        ("crates/engine/src/lib.rs", ROOT),
    ]);
    let sim = format!("{MANIFEST}[dependencies]\nsim.workspace = true\n");
    canary(
        &[("crates/engine/Cargo.toml", &sim)],
        "crates/engine",
        "engine may not import sim",
    );
}

#[test]
fn pure_crates_import_no_foreign_crate_that_was_not_admitted() {
    for section in ["[dependencies]", "[target.'cfg(unix)'.dependencies]"] {
        let manifest = format!("{MANIFEST}{section}\nlibc = \"0.2\"\n");
        let what = "policy is pure: may not import libc";
        canary(
            &[("crates/policy/Cargo.toml", &manifest)],
            "crates/policy/Cargo.toml:4:",
            what,
        );
    }
    let digest = format!("{MANIFEST}[dependencies]\ncrc-fast.workspace = true\n");
    clean(&[("crates/nvme/Cargo.toml", &digest)]);
}

#[test]
fn a_crate_without_a_layer_or_lints_is_found() {
    canary(
        &[("crates/new/Cargo.toml", MANIFEST)],
        "crates/new/Cargo.toml:1:",
        "no layer",
    );
    canary(
        &[("crates/sys/Cargo.toml", "")],
        "crates/sys/Cargo.toml:1:",
        "[lints]",
    );
    canary(
        &[("crates/sys/Cargo.toml", "[lints\n")],
        "crates/sys/Cargo.toml:1:",
        "not TOML",
    );
}

#[test]
fn roots_forbid_unsafe_and_pure_ones_std() {
    let pure = ("crates/policy/Cargo.toml", MANIFEST);
    let std = ("crates/policy/src/lib.rs", "#![forbid(unsafe_code)]\n");
    canary(&[pure, std], "crates/policy/src/lib.rs:1:", "no_std");
    let loose = ("crates/policy/src/lib.rs", "#![no_std]\n");
    canary(&[pure, loose], "crates/policy/src/lib.rs:1:", "unsafe_code");
    let program = [
        ("crates/braid/Cargo.toml", MANIFEST),
        ("crates/braid/src/main.rs", "\n"),
    ];
    canary(&program, "crates/braid/src/main.rs:1:", "unsafe_code");
    clean(&[
        ("crates/sys/Cargo.toml", MANIFEST),
        ("crates/sys/src/lib.rs", "\n"),
    ]);
}

#[test]
fn pure_crates_have_no_clock_socket_thread_or_hash_order() {
    let impure = [
        "extern crate std;",
        "use std::time::Duration;",
        "fn f() { std::net::lookup() }",
        "type M = HashMap<u8, u8>;",
        "type S = HashSet<u8>;",
        "fn f(now: Instant) {}",
        "static mut COUNT: u8 = 0;",
    ];
    for line in impure {
        let found = policy(&format!("{line}\n"));
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(
            found[0].starts_with("crates/policy/src/lib.rs:3:"),
            "{found:?}"
        );
        assert_eq!(
            policy(&format!("#[cfg(test)]\nmod t {{ {line} }}\n")),
            [""; 0],
            "{line}"
        );
    }
    assert_eq!(
        policy("// std::time and a HashMap in prose\nuse core::fmt;\n"),
        [""; 0]
    );
}

#[test]
fn links_to_items_lead_to_them() {
    let source = ("docs/c.rs", "fn select() {}\n");
    clean(&[
        (
            "a.md",
            "[`Selector::select()`](docs/c.rs) [`c.rs`](docs/c.rs#L1)\n",
        ),
        (
            "docs/b.md",
            "```\n[`choose`](c.rs)\n```\n[`x`](https://x.org/y.rs)\n",
        ),
        source,
    ]);
    for (path, link) in [
        ("a.md", "[`Selector::choose`](docs/c.rs)"),
        ("docs/b.md", "[`choose`](c.rs)"),
        ("docs/b.md", "[`choose`]: ../docs/c.rs"),
    ] {
        let text = format!("x\n{link}\n");
        canary(&[(path, &text), source], &format!("{path}:2:"), "choose");
    }
}

#[test]
fn words_at_the_beginning_of_a_sentence_are_found() {
    let what = "begins with What";
    for text in [
        "What it does.\n",
        "It does this. What it\nsays.\n",
        "It does this:\nWhat it says.\n",
        "- What it says\n",
        "| it | What it says |\n",
        "## What it says\n",
        "**What** it says\n",
        "```sh\nls\n```\nWhat it says\n",
    ] {
        let found = found(&[("docs/a.md", text)]);
        assert!(
            found.len() == 1 && found[0].contains(what),
            "{text}{found:?}"
        );
    }
    let source =
        "//! It does this.\n//! What it says.\nfn f() {} /*/ What it is\n".replace("/*/", "//");
    let places = ["2: a", "3: a"].map(|line| format!("crates/nvme/a.rs:{line} sentence {what}"));
    let found = found(&[("crates/nvme/a.rs", &source)]);
    assert!(found.len() == 2 && found.iter().zip(&places).all(|(it, at)| it.starts_with(at)));
}

#[test]
fn words_inside_a_sentence_and_elsewhere_are_not() {
    clean(&[
        (
            "docs/a.md",
            "It says\nWhat, e.g., and `What`.\n```\nWhat\n```\n",
        ),
        ("docs/results/a.md", "What it says\n"),
        (
            "crates/nvme/a.rs",
            "/// It says what.\nfn what() { f(\"What\") }\n",
        ),
    ]);
}

#[test]
fn sentences_are_counted_without_headings_and_tables() {
    let text = "# A heading of six words here\n\nOne two three. One\ntwo. One.\n\n| a | b |\n";
    assert_eq!(super::words::median(&Tree::of(&[("docs/a.md", text)])), 2);
    assert_eq!(super::words::median(&Tree::of(&[])), 0);
}

#[test]
fn figures_are_of_code_without_tests_and_comments() {
    let source = r"
//! Head.
/// Doc.
struct Flags { a: bool, b: bool, c: bool, d: bool }
struct Three { a: bool, b: bool, c: bool }
impl From<u8> for Flags {
    fn from(it: u8) -> Self { let Some(a) = f(it) else { return }; assert!(a); }
}
impl Flags {
    fn g() {} // Comment.
    fn h() { if x {} else { return 1; } }
}
#[cfg(test)]
mod tests { impl Flags { fn t() {} } }
";
    let tree = Tree::of(&[
        ("crates/nvme/src/lib.rs", source),
        ("crates/nvme/examples/a.rs", "fn a() {}\n"),
        ("crates/sim/src/lib.rs", "fn a() {}\n"),
    ]);
    let table = super::figures::table(&tree);
    let rows: Vec<&str> = table.lines().skip(2).collect();
    assert_eq!(rows.len(), 2, "{table}");
    assert_eq!(rows[0], "| nvme | 9 | 1 | 1 | 1 | `Flags`: 3 |");
    assert_eq!(rows[1], rows[0].replace("nvme", "all"));
}
