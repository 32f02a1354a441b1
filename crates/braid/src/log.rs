//! What the layers below log, as notes on standard error.
//!
//! # Contract
//! Who logs never waits: a thread writes the lines, made with the first of them. It costs nothing
//! until then, and sleeps afterwards.
//!
//! # Limits
//! Warnings and errors only; [`LINES_MAX`] lines that are not written yet, more are dropped.
use crate::limits::LINES_MAX;
use crate::output;
use std::fmt::{Debug, Write};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// From now on.
pub fn install() {
    // Only this program's main function installs one.
    let _ = tracing::subscriber::set_global_default(Notes::default());
}

#[derive(Default)]
struct Notes {
    lines: OnceLock<SyncSender<String>>,
}

/// An event in words: the message, then its fields.
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => {
                let fields = std::mem::take(&mut self.0);
                write!(self.0, "{value:?}{fields}")
            }
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

impl Notes {
    fn start() -> SyncSender<String> {
        let (to, lines) = sync_channel::<String>(LINES_MAX);
        let write = move || lines.iter().for_each(|line| output::note(&line));
        // Without a thread the receiver is gone, and lines with it.
        let _ = std::thread::Builder::new().name("log".into()).spawn(write);
        to
    }
}

impl Subscriber for Notes {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            _ => "warning",
        };
        let text = format!("{level}: {}", line.0);
        let _ = self.lines.get_or_init(Self::start).try_send(text);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_lines_and_the_rest_is_nothing() {
        let (to, lines) = sync_channel(8);
        let notes = Notes {
            lines: OnceLock::from(to),
        };
        tracing::subscriber::with_default(notes, || {
            tracing::error!("/srv/v0 was cut short");
            tracing::warn!(listener = 3, "not accepting");
            tracing::info!("nobody asked");
        });
        let lines: Vec<String> = lines.iter().collect();
        assert_eq!(
            lines,
            [
                "error: /srv/v0 was cut short",
                "warning: not accepting listener=3"
            ]
        );
    }
}
