//! Figures of the product's crates, counted on tokens without those of tests.
//!
//! Lines are those with a token: no comments, no blank ones. A silent return is an `else` or a
//! match arm whose block is `return` alone. Methods of a type are all functions of its `impl`s, in
//! all files of its crate.
use super::lexed::{Kind, Lexed, Token};
use super::rust::{is_test, test_files};
use super::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Fields of type `bool` that a struct may have.
const BOOLS_MAX: usize = 3;
/// Crates that are instruments, no part of the product.
const INSTRUMENTS: [&str; 5] = ["canary", "hostile", "load", "sim", "sim-program"];

/// Of one crate, or of all.
#[derive(Default)]
struct Figures {
    lines: usize,
    flagged: usize,
    silent: usize,
    assertions: usize,
    /// By type.
    methods: BTreeMap<String, usize>,
}

/// A table in Markdown, a row per crate.
pub fn table(tree: &Tree) -> String {
    let tests = test_files(tree);
    let mut crates: BTreeMap<&str, Figures> = BTreeMap::new();
    for file in tree.rust().filter(|it| !is_test(&it.path, &tests)) {
        let Some((name, "src")) = file.path.strip_prefix("crates/").and_then(|path| {
            let (name, rest) = path.split_once('/')?;
            Some((name, rest.split('/').next()?))
        }) else {
            continue;
        };
        if !INSTRUMENTS.contains(&name)
            && let Ok(lexed) = Lexed::new(file, false)
        {
            crates.entry(name).or_default().count(&lexed.tokens);
        }
    }
    let mut text = "| crate | lines | structs of more than 3 bools | silent returns | assertions \
                    | methods of the largest type |\n|---|---|---|---|---|---|\n"
        .to_owned();
    let mut all = Figures::default();
    for (name, it) in crates {
        text.push_str(&it.row(name));
        all.lines += it.lines;
        all.flagged += it.flagged;
        all.silent += it.silent;
        all.assertions += it.assertions;
        all.methods.extend(it.methods);
    }
    text + &all.row("all")
}

impl Figures {
    fn count(&mut self, all: &[Token]) {
        let tokens: Vec<&Token> = all.iter().filter(|it| !it.test).collect();
        let of_code = tokens.iter().filter(|it| !it.kind.is("#"));
        let lines: BTreeSet<usize> = of_code.map(|it| it.line).collect();
        // A comment of documentation is an attribute, on a line of its own.
        let docs = tokens.windows(3).filter(|it| {
            let words = it.iter().zip(["[", "doc", "="]);
            words.into_iter().all(|(token, word)| token.kind.is(word))
        });
        let docs: BTreeSet<usize> = docs.map(|it| it[1].line).collect();
        self.lines += lines.difference(&docs).count();
        for at in 0..tokens.len() {
            let rest = &tokens[at..];
            let is = |at: usize, word: &str| rest.get(at).is_some_and(|it| it.kind.is(word));
            let ends_alone = is(3, "}") || is(3, ";") && is(4, "}");
            let is_other = is(0, "else") || is(0, ">");
            self.silent += usize::from(is_other && is(1, "{") && is(2, "return") && ends_alone);
            let asserts = ["assert", "assert_eq", "assert_ne", "unreachable"];
            self.assertions += usize::from(is(1, "!") && asserts.iter().any(|it| is(0, it)));
            if is(0, "struct") {
                let fields = level(rest);
                let flags = fields.windows(2).filter(|it| it[0].kind.is(":"));
                let flags = flags.filter(|it| it[1].kind.is("bool")).count();
                self.flagged += usize::from(flags > BOOLS_MAX);
            }
            let begins = at == 0 || ["}", ";", "]"].iter().any(|it| tokens[at - 1].kind.is(it));
            if begins && (is(0, "impl") || is(0, "unsafe") && is(1, "impl")) {
                let methods = level(rest).iter().filter(|it| it.kind.is("fn")).count();
                *self.methods.entry(type_of(rest)).or_default() += methods;
            }
        }
    }

    fn row(&self, name: &str) -> String {
        let largest = self.methods.iter().max_by_key(|it| it.1);
        let (largest, methods) = largest.map_or(("", 0), |it| (it.0, *it.1));
        let (lines, flagged) = (self.lines, self.flagged);
        let (silent, assertions) = (self.silent, self.assertions);
        format!(
            "| {name} | {lines} | {flagged} | {silent} | {assertions} | `{largest}`: {methods} |\n"
        )
    }
}

/// Tokens directly in the first braces of an item; none if it has none.
fn level<'a>(item: &[&'a Token]) -> Vec<&'a Token> {
    let (mut found, mut depth) = (Vec::new(), 0);
    for token in item {
        match token.kind {
            Kind::Punct(';') if depth == 0 => break,
            Kind::Open('{') if depth == 0 => depth = 1,
            Kind::Open(_) if depth > 0 => depth += 1,
            Kind::Close(_) if depth == 1 => break,
            Kind::Close(_) if depth > 1 => depth -= 1,
            _ if depth == 1 => found.push(*token),
            _ => {}
        }
    }
    found
}

/// The type of an `impl`: the last name before its parameters, behind `for` if there is one.
fn type_of(item: &[&Token]) -> String {
    let (mut name, mut angles) = (String::new(), 0);
    for token in item {
        match &token.kind {
            Kind::Open('{') => break,
            Kind::Punct('<') => angles += 1,
            Kind::Punct('>') => angles -= 1,
            Kind::Ident(word) if angles == 0 && word == "where" => break,
            Kind::Ident(word) if angles == 0 => word.clone_into(&mut name),
            _ => {}
        }
    }
    name
}
