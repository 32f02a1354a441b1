//! Files of text that are read whole.
//!
//! # Limits
//! [`TEXT_BYTES_MAX`]: what is longer is none of ours, and may have no end (a device, a pipe).
use crate::limits::TEXT_BYTES_MAX;
use crate::units::format_bytes;
use anyhow::Context;
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::{Error, ErrorKind, Read};
use std::path::Path;

/// Returns the content of the file.
///
/// # Errors
/// It can't be read, is too long or no UTF-8: its name, and what to do.
pub fn read(path: &Path) -> anyhow::Result<String> {
    if_there(path)?.with_context(|| {
        let path = path.display();
        format!("cannot read {path} (check the name): No such file or directory")
    })
}

/// Returns the content of the file; `None` if there is none.
///
/// # Errors
/// As [`read`].
pub fn if_there(path: &Path) -> anyhow::Result<Option<String>> {
    match bounded(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) => {
            let advice = match error.kind() {
                ErrorKind::NotFound => return Ok(None),
                ErrorKind::IsADirectory => " (give the file in it)",
                ErrorKind::PermissionDenied => " (check its permissions)",
                ErrorKind::InvalidData => " (save it as UTF-8 text)",
                _ => "",
            };
            Err(error).with_context(|| format!("cannot read {}{advice}", path.display()))
        }
    }
}

fn bounded(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    let mut file = File::open(path)?.take(TEXT_BYTES_MAX + 1);
    if file.read_to_string(&mut text)? as u64 > TEXT_BYTES_MAX {
        let why = format!("it has more than {}", format_bytes(TEXT_BYTES_MAX));
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(text)
}

/// Words in lines of so many columns, indented behind `lead`, which begins the first of them.
/// Colours of [`Style::paint`](crate::output::Style::paint) take no columns.
pub fn paragraph(lead: &str, words: &str, columns: usize) -> String {
    let indent = lead.chars().count();
    let (mut text, mut used) = (lead.to_owned(), indent);
    for word in words.split_whitespace() {
        let width = columns_of(word);
        if used > indent && used + 1 + width > columns {
            text.push('\n');
            text.push_str(&" ".repeat(indent));
            used = indent;
        } else if used > indent {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += width;
    }
    text + "\n"
}

/// Columns of a text: characters but for those of colours.
fn columns_of(text: &str) -> usize {
    let mut parts = text.split("\x1b[");
    let first = parts.next().map_or(0, |it| it.chars().count());
    // Behind the beginning of a colour: its code, and the text in it.
    let shown = parts.map(|it| it.split_once('m').map_or(it, |(_, text)| text));
    first + shown.map(|it| it.chars().count()).sum::<usize>()
}

/// TOML, as what it says.
///
/// # Errors
/// Line and column, and what could stand there; or that it is nested too deeply.
pub fn toml<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    toml::from_str(text).map_err(|error| match error.message() {
        // The one error that has no place.
        "recursion limit" => "tables or arrays lie too deep in each other".to_owned(),
        message => {
            let whole = error.to_string().trim_end().to_owned();
            match whole.strip_suffix(message.trim_end()) {
                Some(place) => format!("{place}{}", plain(message.trim_end())),
                None => whole,
            }
        }
    })
}

/// JSON, as what it says.
///
/// # Errors
/// The key, and what could stand there.
pub fn json<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (key, what) = (error.path().to_string(), plain(&error.inner().to_string()));
        if key == "." || what.starts_with("unknown key") {
            what
        } else {
            format!("{key}: {what}")
        }
    })
}

/// Returns a message of the readers of TOML and JSON in words of users: keys instead of fields,
/// and values as they are written. Others stay as they are.
pub fn plain(message: &str) -> String {
    let named = |prefix: &str| message.strip_prefix(prefix)?.split_once('`');
    if let Some((key, known)) = named("unknown field `") {
        return format!("unknown key `{key}`{}", listed(known));
    }
    if let Some((word, known)) = named("unknown variant `") {
        return format!("unknown word `{word}`{}", listed(known));
    }
    if let Some((key, "")) = named("missing field `") {
        return format!("the key `{key}` is missing");
    }
    if let Some((key, "")) = named("duplicate field `") {
        return format!("the key `{key}` is there twice");
    }
    if let Some(rest) = message.strip_prefix("invalid length ") {
        let length = rest.split(',').next().unwrap_or_default();
        return format!("the list has too few items: {length}");
    }
    let wrong = message.strip_prefix("invalid type: ");
    let wrong = wrong.or_else(|| message.strip_prefix("invalid value: "));
    match wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((found, wanted)) => {
            let (wanted, found) = (wanted_value(wanted), found_value(found));
            format!("must be {wanted}, not {found}")
        }
        None => message.to_owned(),
    }
}

/// The keys or words that are known, behind one that is not.
fn listed(known: &str) -> String {
    let known = known.strip_prefix(", expected ");
    match known.map(|it| it.strip_prefix("one of ").unwrap_or(it)) {
        Some(known) => format!("; known here: {known}"),
        None => "; none is known here".to_owned(),
    }
}

fn wanted_value(wanted: &str) -> &str {
    match wanted {
        "a string" => "text in quotes",
        "a boolean" => "true or false",
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number from 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a sequence" => "a list",
        "a map" => "a table",
        _ if wanted.starts_with("struct ") => "a table",
        _ if wanted.starts_with("a nonzero u") => "a whole number above 0",
        _ => wanted,
    }
}

fn found_value(found: &str) -> String {
    let number = ["integer `", "floating point `", "boolean `"];
    let number = number.iter().find_map(|it| found.strip_prefix(it));
    if let Some(number) = number.and_then(|it| it.strip_suffix('`')) {
        return number.to_owned();
    }
    match found {
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        "null" | "unit value" => "nothing".to_owned(),
        _ => match found.strip_prefix("string ") {
            Some(text) => format!("the text {text}"),
            None => found.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Keys {
        #[serde(rename = "name")]
        _name: String,
        #[serde(rename = "port", default)]
        _port: u16,
        #[serde(rename = "kind", default)]
        _kind: Option<Kind>,
        #[serde(rename = "all", default)]
        _all: Vec<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum Kind {
        Paths,
        Mirror,
    }

    #[test]
    fn colours_take_no_columns() {
        let plain = paragraph("  ", "a path is late, and another one is not", 20);
        let with = "a path is \x1b[1;33mlate\x1b[0m, and another \x1b[32mone\x1b[0m is not";
        let coloured = paragraph("  ", with, 20);
        assert_eq!(plain, "  a path is late,\n  and another one is\n  not\n");
        let colours = ["\x1b[1;33m", "\x1b[32m", "\x1b[0m"];
        let bare = colours
            .iter()
            .fold(coloured, |text, it| text.replace(it, ""));
        assert_eq!(bare, plain);
    }

    #[test]
    fn errors_have_no_word_of_the_reader() {
        for (text, words) in [
            ("name = 5", "must be text in quotes, not 5"),
            ("name = [1]", "must be text in quotes, not a list"),
            ("port = 1", "the key `name` is missing"),
            (
                "name = \"a\"\nport = 70000",
                "must be a whole number from 0 to 65535, not 70000",
            ),
            (
                "name = \"a\"\nport = \"x\"",
                "a whole number from 0 to 65535, not the text \"x\"",
            ),
            (
                "name = \"a\"\nport = -1.5",
                "must be a whole number from 0 to 65535, not -1.5",
            ),
            (
                "nmae = \"a\"",
                "unknown key `nmae`; known here: `name`, `port`, `kind`, `all`",
            ),
            (
                "name = \"a\"\nkind = \"x\"",
                "unknown word `x`; known here: `paths`",
            ),
            ("name = \"a\"\nall = true", "must be a list, not true"),
            ("name = \"a\"\nall = [3]", "must be true or false, not 3"),
        ] {
            let error = toml::<Keys>(text).unwrap_err();
            let last = error.lines().last().unwrap_or_default();
            assert!(last.contains(words), "{text}: {error}");
            assert!(error.contains("at line "), "{text}: {error}");
            for word in ["field", "variant", "expected", "invalid", "integer", "u16"] {
                assert!(!last.contains(word), "{text}: {error}");
            }
        }
    }

    #[test]
    fn what_has_no_end_or_is_no_file_is_said() {
        let error = |path: &str| format!("{:#}", read(Path::new(path)).unwrap_err());
        let endless = error("/dev/zero");
        assert_eq!(endless, "cannot read /dev/zero: it has more than 1 MiB");
        assert!(error("/").starts_with("cannot read / (give the file in it)"));
        assert!(error("/no/such").starts_with("cannot read /no/such (check the name)"));
    }
}
