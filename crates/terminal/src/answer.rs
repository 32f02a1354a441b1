//! Shows the JSON answer of a running engine or target: as it is, or as text.
//!
//! A field that is missing, or of another type than asked for, reads as empty text, 0 or no items:
//! an older or a newer server may leave it out.
use crate::output::{self, Format};
use serde_json::Value;
use std::fmt;

/// Prints an answer: JSON on one line, or the text that `show` writes.
///
/// # Errors
/// Those of [`output::print`].
pub fn print(
    format: Format,
    value: &Value,
    show: impl FnOnce(&mut String, &Value) -> fmt::Result,
) -> anyhow::Result<()> {
    if format == Format::Json {
        return output::print_json(value);
    }
    let mut text = String::new();
    show(&mut text, value)?;
    output::print(&text)
}

/// Returns the items of an array.
pub fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Returns a text.
pub fn word(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns a number that is not negative.
pub fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}
