//! Lines on standard error of what goes on for long: what services note, and what the layers below
//! log.
//!
//! # Contract
//! Who says something never waits, though nobody may take what is written there: a thread writes
//! the lines, made with the first of them. It costs nothing until then, and sleeps afterwards.
//! [`end`] waits for what was said before, for [`LOG_END_WAIT`] at most.
//!
//! # Limits
//! Of the layers below warnings and errors only; [`LINES_MAX`] lines that are not written yet, more
//! are counted, and the count is a line.
use crate::limits::{LINES_MAX, LOG_END_WAIT};
use crate::output;
use std::fmt::{Debug, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Of this process.
static LINES: Lines = Lines::new();

/// Passes on events of the layers below from now on.
pub fn install() {
    // Only this program's main function installs one.
    let _ = tracing::subscriber::set_global_default(Notes(&LINES));
}

/// One line.
pub fn say(text: String) {
    LINES.say(text);
}

/// Until what was said before is written, or nobody takes it.
pub fn end() {
    LINES.end(LOG_END_WAIT);
}

/// Lines on their way.
struct Lines {
    to: OnceLock<SyncSender<Said>>,
    /// For which there was no room since it was said last.
    lost: AtomicU64,
}

enum Said {
    Line(String),
    /// All before it is written.
    End(SyncSender<()>),
}

impl Lines {
    const fn new() -> Self {
        Self {
            to: OnceLock::new(),
            lost: AtomicU64::new(0),
        }
    }

    fn say(&'static self, text: String) {
        let to = self.to.get_or_init(|| self.start());
        match to.try_send(Said::Line(text)) {
            Ok(()) => {}
            // Without a thread who speaks waits.
            Err(TrySendError::Disconnected(Said::Line(text))) => output::note(&text),
            Err(_) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn start(&'static self) -> SyncSender<Said> {
        let (to, lines) = sync_channel(LINES_MAX);
        let write = move || self.write(&lines, output::note);
        // If there can be none the receiver is gone with it.
        let _ = std::thread::Builder::new().name("log".into()).spawn(write);
        to
    }

    fn write(&self, lines: &Receiver<Said>, note: impl Fn(&str)) {
        for said in lines {
            match said {
                Said::Line(line) => note(&line),
                Said::End(ended) => drop(ended.try_send(())),
            }
            match self.lost.swap(0, Ordering::Relaxed) {
                0 => {}
                lost => note(&format!(
                    "{lost} lines are lost: standard error took none meanwhile"
                )),
            }
        }
    }

    fn end(&self, wait: Duration) {
        let Some(to) = self.to.get() else {
            return;
        };
        let until = Instant::now() + wait;
        let (ended, is_written) = sync_channel(1);
        let mut said = Said::End(ended);
        while let Err(TrySendError::Full(back)) = to.try_send(said) {
            if Instant::now() >= until {
                return;
            }
            said = back;
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = is_written.recv_timeout(until.saturating_duration_since(Instant::now()));
    }
}

/// Events of the layers below.
struct Notes(&'static Lines);

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
        self.0.say(format!("{level}: {}", line.0));
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
    use std::sync::Mutex;

    /// Lines that nobody writes yet, and who would.
    fn lines(room: usize) -> (&'static Lines, Receiver<Said>) {
        let (to, from) = sync_channel(room);
        let lines = Box::leak(Box::new(Lines::new()));
        assert!(lines.to.set(to).is_ok());
        (lines, from)
    }

    /// The lines that are written of them.
    fn written(lines: &Lines, from: &Receiver<Said>) -> Vec<String> {
        let all = Mutex::new(Vec::new());
        lines.write(from, |line| all.lock().unwrap().push(line.to_owned()));
        all.into_inner().unwrap()
    }

    /// The same lines, and no sender, so that writing ends.
    fn closed(from: &Receiver<Said>) -> Receiver<Said> {
        let (to, closed) = sync_channel(16);
        from.try_iter().for_each(|said| to.send(said).unwrap());
        closed
    }

    #[test]
    fn warnings_are_lines_and_the_rest_is_nothing() {
        let (lines, from) = lines(8);
        tracing::subscriber::with_default(Notes(lines), || {
            tracing::error!("/srv/v0 was cut short");
            tracing::warn!(listener = 3, "not accepting");
            tracing::info!("nobody asked");
        });
        assert_eq!(
            written(lines, &closed(&from)),
            [
                "error: /srv/v0 was cut short",
                "warning: not accepting listener=3"
            ]
        );
    }

    #[test]
    fn who_says_something_never_waits_and_what_is_lost_is_counted() {
        let (lines, from) = lines(2);
        (0..5).for_each(|line| lines.say(line.to_string()));
        lines.end(Duration::ZERO);
        let lost = "3 lines are lost: standard error took none meanwhile";
        assert_eq!(written(lines, &closed(&from)), ["0", lost, "1"]);
    }

    #[test]
    fn the_end_waits_for_what_was_said_before() {
        let (lines, from) = lines(4);
        lines.say("last".into());
        let all = &Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for said in from.iter().take(2) {
                    let one = closed_of(said);
                    all.lock().unwrap().extend(written(lines, &one));
                }
            });
            lines.end(Duration::from_secs(60));
            assert_eq!(*all.lock().unwrap(), ["last"]);
        });
    }

    fn closed_of(said: Said) -> Receiver<Said> {
        let (to, one) = sync_channel(1);
        to.send(said).unwrap();
        one
    }
}
