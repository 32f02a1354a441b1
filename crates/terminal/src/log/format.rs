//! One record of the log as text, for the journal, or as JSON.
use crate::advice;
use crate::units::format_rfc3339;
use serde_json::{Map, Value};
use std::fmt::{Debug, Write};
use std::time::SystemTime;
use tracing::Level;
use tracing::field::{Field, Visit};

/// Look of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As other messages of the program, without a time: who reads the pipe adds that.
    #[default]
    Plain,
    /// With time and level.
    Timed,
    /// With the priority of the journal (sd-daemon(3)), which adds time and program.
    Journal,
    /// An object per line.
    Json,
}

/// Message and fields of a record.
#[derive(Debug, Default)]
pub struct Content {
    message: String,
    fields: Vec<(&'static str, Value)>,
}

impl Content {
    /// Without fields.
    pub fn new(message: &str) -> Self {
        Self {
            message: message.to_owned(),
            fields: Vec::new(),
        }
    }
}

impl Visit for Content {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push((name, format!("{value:?}").into())),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push((field.name(), value.into()));
    }
}

impl Form {
    /// A record without its last newline. `is_note`: a message of the program itself, whose words
    /// say how grave it is.
    pub fn record(self, level: Level, is_note: bool, of: &Content, time: SystemTime) -> String {
        if self == Self::Json {
            let mut all = Map::new();
            all.insert("time".into(), format_rfc3339(time).into());
            all.insert("level".into(), word(level).into());
            all.insert("message".into(), advice::in_our_words(&of.message).into());
            for (name, value) in &of.fields {
                all.insert((*name).to_owned(), value.clone());
            }
            return Value::Object(all).to_string();
        }
        let mut text = of.message.clone();
        for (name, value) in &of.fields {
            let _ = write!(text, " {name}={value}");
        }
        let text = plain(&advice::in_our_words(&text));
        match self {
            Self::Plain => match level {
                Level::ERROR if !is_note => format!("braid: error: {text}"),
                Level::WARN if !is_note => format!("braid: warning: {text}"),
                _ => format!("braid: {text}"),
            },
            Self::Timed => {
                let level = word(level).to_uppercase();
                format!("{} {level:<5} braid: {text}", format_rfc3339(time))
            }
            Self::Journal => {
                let lead = format!("<{}>", priority(level));
                format!("{lead}{}", text.replace('\n', &format!("\n{lead}")))
            }
            Self::Json => unreachable!("it was made above"),
        }
    }
}

/// The word of a level.
fn word(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        _ => "debug",
    }
}

/// Of syslog(3).
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// A text of which no part can be taken for another record: its other lines are indented, and
/// control characters are shown. Peers choose some of it.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for it in text.chars() {
        match it {
            '\n' => plain.push_str("\n    "),
            '\t' => plain.push(it),
            _ if it.is_control() => plain.extend(it.escape_default()),
            _ => plain.push(it),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn record(form: Form, level: Level, is_note: bool) -> String {
        let mut of = Content::new("v0: one\n<3>two\x1b[31m");
        of.fields.push(("listener", 3.into()));
        let time = UNIX_EPOCH + Duration::from_millis(1_790_000_000_007);
        form.record(level, is_note, &of, time)
    }

    #[test]
    fn records_have_the_look_of_their_reader_and_cannot_be_forged() {
        let text = "v0: one\n    <3>two\\u{1b}[31m listener=3";
        let plain = |level, is_note| record(Form::Plain, level, is_note);
        assert_eq!(plain(Level::WARN, true), format!("braid: {text}"));
        assert_eq!(plain(Level::WARN, false), format!("braid: warning: {text}"));
        assert_eq!(plain(Level::ERROR, false), format!("braid: error: {text}"));
        assert_eq!(
            record(Form::Timed, Level::WARN, true),
            format!("2026-09-21T14:13:20.007Z WARN  braid: {text}")
        );
        assert_eq!(
            record(Form::Journal, Level::ERROR, true),
            "<3>v0: one\n<3>    <3>two\\u{1b}[31m listener=3"
        );
        let json: Value = serde_json::from_str(&record(Form::Json, Level::DEBUG, true)).unwrap();
        assert_eq!(json["message"], "v0: one\n<3>two\x1b[31m");
        assert_eq!(
            (&json["level"], &json["listener"]),
            (&"debug".into(), &3.into())
        );
        assert_eq!(json["time"], "2026-09-21T14:13:20.007Z");
    }
}
