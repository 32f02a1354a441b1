//! A Rust file as a flat list of tokens that know whether they belong to a test.
//!
//! Tokens instead of a syntax tree: functions inside `macro_rules!` and `proptest!` are then
//! measured like all others, and comments and strings can't be mistaken for code.
use super::Finding;
use super::tree::File;
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// Kind of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name or keyword.
    Ident(String),
    /// One punctuation character.
    Punct(char),
    /// A literal, as written.
    Literal(String),
    /// An opening bracket.
    Open(char),
    /// A closing bracket.
    Close(char),
}

/// One token.
#[derive(Clone, Debug)]
pub struct Token {
    /// Its kind.
    pub kind: Kind,
    /// Line, from 1.
    pub line: usize,
    /// Compiled for tests only.
    pub test: bool,
}

/// One function with a body.
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of `fn`.
    pub line: usize,
    /// Lines from `fn` to the closing brace, both counted.
    pub lines: usize,
}

/// A `mod name;` that is compiled for tests only.
pub struct TestModule {
    /// Its name.
    pub name: String,
    /// The value of its `#[path]`.
    pub path: Option<String>,
}

/// A Rust file in pieces.
#[derive(Default)]
pub struct Lexed {
    /// All tokens in order.
    pub tokens: Vec<Token>,
    /// All functions with a body.
    pub functions: Vec<Function>,
    /// Modules in other files that are tests.
    pub test_modules: Vec<TestModule>,
}

impl Lexed {
    /// Takes `file` apart; `test`: all of it is a test.
    ///
    /// # Errors
    /// Text that is not Rust.
    pub fn new(file: &File, test: bool) -> Result<Self, Finding> {
        let stream: TokenStream = file.text.parse().map_err(|error: proc_macro2::LexError| {
            let line = error.span().start().line;
            Finding::new(&file.path, line, format!("not Rust: {error}"))
        })?;
        let mut lexed = Self::default();
        lexed.flatten(stream, test);
        Ok(lexed)
    }

    /// Whether the tokens from `at` on are `pattern`, word by word.
    pub fn matches(&self, at: usize, pattern: &[&str]) -> bool {
        let tokens = self.tokens.get(at..at + pattern.len());
        tokens.is_some_and(|tokens| {
            tokens
                .iter()
                .zip(pattern)
                .all(|(token, text)| token.kind.is(text))
        })
    }

    fn flatten(&mut self, stream: TokenStream, mut test: bool) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        // Set from a test attribute to the end of the item that it marks.
        let mut item_test = false;
        for (index, tree) in trees.iter().enumerate() {
            if is_inner_test_attribute(&trees, index) {
                test = true;
            }
            if is_test_attribute(tree, index.checked_sub(1).map(|before| &trees[before])) {
                item_test = true;
            }
            if item_test && let Some(module) = module_elsewhere(&trees[index..], &trees[..index]) {
                self.test_modules.push(module);
            }
            if let Some(function) = function(&trees[index..]) {
                self.functions.push(function);
            }
            self.push(tree, test || item_test);
            if ends_item(tree) {
                item_test = false;
            }
        }
    }

    fn push(&mut self, tree: &TokenTree, test: bool) {
        let line = tree.span().start().line;
        let kind = match tree {
            TokenTree::Ident(ident) => Kind::Ident(ident.to_string()),
            TokenTree::Punct(punct) => Kind::Punct(punct.as_char()),
            TokenTree::Literal(literal) => Kind::Literal(literal.to_string()),
            TokenTree::Group(group) => return self.push_group(group, test),
        };
        self.tokens.push(Token { kind, line, test });
    }

    fn push_group(&mut self, group: &Group, test: bool) {
        let (open, close) = match group.delimiter() {
            Delimiter::Parenthesis => ('(', ')'),
            Delimiter::Brace => ('{', '}'),
            Delimiter::Bracket => ('[', ']'),
            Delimiter::None => return self.flatten(group.stream(), test),
        };
        let line = group.span_open().start().line;
        self.tokens.push(Token {
            kind: Kind::Open(open),
            line,
            test,
        });
        self.flatten(group.stream(), test);
        let line = group.span_close().start().line;
        self.tokens.push(Token {
            kind: Kind::Close(close),
            line,
            test,
        });
    }
}

impl Kind {
    /// Whether it is this word or this character.
    pub fn is(&self, text: &str) -> bool {
        match self {
            Self::Ident(name) => name == text,
            Self::Punct(c) | Self::Open(c) | Self::Close(c) => {
                let mut chars = text.chars();
                chars.next() == Some(*c) && chars.next().is_none()
            }
            Self::Literal(_) => false,
        }
    }
}

/// `[test]`, or a `[cfg(…)]` that only a test build satisfies, behind `#`.
fn is_test_attribute(tree: &TokenTree, before: Option<&TokenTree>) -> bool {
    let hash = matches!(before, Some(TokenTree::Punct(punct)) if punct.as_char() == '#');
    hash && matches!(tree, TokenTree::Group(group) if names_test(group))
}

/// The same behind `#!`: it marks the rest of its block.
fn is_inner_test_attribute(trees: &[TokenTree], index: usize) -> bool {
    let punct = |at: Option<usize>, c: char| {
        let tree = at.and_then(|at| trees.get(at));
        matches!(tree, Some(TokenTree::Punct(punct)) if punct.as_char() == c)
    };
    punct(index.checked_sub(2), '#')
        && punct(index.checked_sub(1), '!')
        && matches!(&trees[index], TokenTree::Group(group) if names_test(group))
}

fn names_test(attribute: &Group) -> bool {
    let words: Vec<String> = words(attribute.stream());
    let has = |word: &str| words.iter().any(|w| w == word);
    match words.first().map(String::as_str) {
        Some("test") => words.len() == 1,
        Some("cfg") => has("test") && !has("not") && !has("any"),
        _ => false,
    }
}

/// The names in a stream, groups included.
fn words(stream: TokenStream) -> Vec<String> {
    let mut found = Vec::new();
    for tree in stream {
        match tree {
            TokenTree::Ident(ident) => found.push(ident.to_string()),
            TokenTree::Group(group) => found.extend(words(group.stream())),
            _ => {}
        }
    }
    found
}

fn ends_item(tree: &TokenTree) -> bool {
    match tree {
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        TokenTree::Punct(punct) => punct.as_char() == ';',
        _ => false,
    }
}

/// `mod name ;` at the beginning of `rest`.
fn module_elsewhere(rest: &[TokenTree], before: &[TokenTree]) -> Option<TestModule> {
    let [
        TokenTree::Ident(word),
        TokenTree::Ident(name),
        TokenTree::Punct(end),
        ..,
    ] = rest
    else {
        return None;
    };
    if word != "mod" || end.as_char() != ';' {
        return None;
    }
    let start = before.iter().rposition(ends_item).map_or(0, |at| at + 1);
    let path = before[start..].iter().find_map(path_attribute);
    Some(TestModule {
        name: name.to_string(),
        path,
    })
}

/// The value of `[path = "…"]`.
fn path_attribute(tree: &TokenTree) -> Option<String> {
    let TokenTree::Group(group) = tree else {
        return None;
    };
    let trees: Vec<TokenTree> = group.stream().into_iter().collect();
    match trees.as_slice() {
        [
            TokenTree::Ident(name),
            TokenTree::Punct(_),
            TokenTree::Literal(value),
        ] if name == "path" => Some(value.to_string().trim_matches('"').to_owned()),
        _ => None,
    }
}

/// The function that begins with the first of `rest`, if one does and it has a body.
fn function(rest: &[TokenTree]) -> Option<Function> {
    let name = match rest {
        [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "fn" => name.to_string(),
        [
            TokenTree::Ident(word),
            TokenTree::Punct(punct),
            TokenTree::Ident(name),
            ..,
        ] if word == "fn" && punct.as_char() == '$' => {
            format!("${name}")
        }
        _ => return None,
    };
    let TokenTree::Group(body) = rest.iter().find(|tree| ends_item(tree))? else {
        return None;
    };
    let line = rest[0].span().start().line;
    let last = body.span_close().end().line;
    Some(Function {
        name,
        line,
        lines: last + 1 - line,
    })
}
