//! Lines on standard error: notes of services, warnings and errors of the layers below.
//!
//! # Contract
//! A speaker never waits, even while nothing reads standard error: a thread of `tracing-appender`,
//! which sleeps between lines, writes them. [`end`] waits until all are written, for
//! [`LOG_END_WAIT`] at most. How records look is the [`Form`]'s: [`LogArgs::apply`] finds out where
//! standard error goes.
//!
//! # Limits
//! [`LINES_MAX`] lines may wait to be written; more are dropped and counted, and the count is a
//! line. Lines that peers can cause have limits of their own: [`seldom()`].
mod format;
mod seldom;

use crate::limits::{LINES_MAX, LOG_END_WAIT};
use crate::output;
use clap::Args;
use format::Content;
pub use format::Form;
use seldom::Seldom;
use serde::Deserialize;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use std::{mem, thread};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Target of the events that are notes.
const NOTE: &str = "note";

/// Of this process.
static LOG: LazyLock<Log> = LazyLock::new(Log::default);
static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::default);

/// Least important records that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Faults of the service itself
    Error,
    /// Also what should not be: lost paths, errors that clients get
    Warn,
    /// Also changes: verbs, clients, starts
    #[default]
    Info,
    /// Also what helps to find faults
    Debug,
}

impl LogLevel {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Look of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    /// Text: with time and level on a terminal or in a file, with a priority for systemd's journal
    #[default]
    Auto,
    /// Text with time and level
    Text,
    /// A JSON object per line: time, level, message
    Json,
}

/// Options of services.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LogArgs {
    /// Least important lines to log [default: info]
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub log_level: Option<LogLevel>,
    /// How lines of the log look
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t)]
    log_format: LogFormat,
}

impl LogArgs {
    /// Records below the level are not written from now on. `default`: the level where the command
    /// line says none.
    pub fn apply_level(&self, default: Option<LogLevel>) {
        let level = self.log_level.or(default).unwrap_or_default();
        LOG.level.store(level as u8, Ordering::Relaxed);
    }

    /// The log is as these say from now on. `default`: the level where they say none.
    pub fn apply(&self, default: Option<LogLevel>) {
        self.apply_level(default);
        let form = match self.log_format {
            LogFormat::Auto => form_of_stderr(),
            LogFormat::Text => Form::Timed,
            LogFormat::Json => Form::Json,
        };
        LOG.form.store(form as u8, Ordering::Relaxed);
    }
}

/// The reader of standard error: the journal names its stream (systemd.exec(5), `JOURNAL_STREAM`).
fn form_of_stderr() -> Form {
    let stderr = io::stderr();
    let Ok(of) = rustix::fs::fstat(&stderr) else {
        return Form::Plain;
    };
    let journal = std::env::var("JOURNAL_STREAM").ok();
    if journal.is_some_and(|it| it == format!("{}:{}", of.st_dev, of.st_ino)) {
        return Form::Journal;
    }
    let is_file = rustix::fs::FileType::from_raw_mode(of.st_mode).is_file();
    match is_file || stderr.is_terminal() {
        true => Form::Timed,
        false => Form::Plain,
    }
}

/// Writes notes, warnings and errors from now on.
pub fn install() {
    let subscriber = LOG.start(LINES_MAX, |line| {
        // A reader that is gone is none of the program's matters.
        let _ = io::stderr().write_all(line.as_bytes());
    });
    // Only this program's main function installs one.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Writes one line.
pub fn say(text: String) {
    tracing::info!(target: NOTE, "{text}");
}

/// Writes one line about what should not be.
pub fn warn(text: String) {
    tracing::warn!(target: NOTE, "{text}");
}

/// Writes one line of this level.
pub fn at(level: Level, text: String) {
    match level {
        Level::ERROR => tracing::error!(target: NOTE, "{text}"),
        Level::WARN => warn(text),
        Level::INFO => say(text),
        _ => tracing::debug!(target: NOTE, "{text}"),
    }
}

/// Writes one line of a kind that a peer can cause as often as it likes, about this object, unless
/// there were too many of late.
pub fn seldom(kind: &'static str, object: &str, level: Level, text: String) {
    if LIMITS.admit(kind, object, level) {
        at(level, text);
    }
}

/// Writes why the program ends, behind all that was said before.
pub fn last(text: &str) {
    match LOG.form() {
        Form::Plain => output::note(text),
        form => {
            let record = form.record(Level::ERROR, true, &Content::new(text), SystemTime::now());
            let _ = writeln!(io::stderr(), "{record}");
        }
    }
}

/// Waits until all lines are written, or nothing takes them.
pub fn end() {
    LOG.end(LOG_END_WAIT);
}

/// The limits of this process, and the thread that says what was dropped.
#[derive(Default)]
struct Limits {
    seldom: Mutex<Seldom>,
    dropped: Condvar,
    thread: OnceLock<()>,
}

impl Limits {
    fn seldom(&self) -> MutexGuard<'_, Seldom> {
        self.seldom.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&'static self, kind: &'static str, object: &str, level: Level) -> bool {
        let passes = self.seldom().admit(kind, object, level, Instant::now());
        if !passes {
            self.thread.get_or_init(|| {
                let builder = thread::Builder::new().name("log-limits".into());
                // Without a thread what was dropped is not said.
                let _ = builder.spawn(|| self.run());
            });
            self.dropped.notify_one();
        }
        passes
    }

    fn run(&self) {
        loop {
            let mut seldom = self.seldom();
            let lines = seldom.over(Instant::now());
            if lines.is_empty() {
                let next = seldom.next();
                let left = next.map(|it| it.saturating_duration_since(Instant::now()));
                match left {
                    Some(left) => drop(self.dropped.wait_timeout(seldom, left)),
                    None => drop(self.dropped.wait(seldom)),
                }
                continue;
            }
            drop(seldom);
            lines.into_iter().for_each(|(level, line)| at(level, line));
        }
    }
}

struct Log {
    /// A [`LogLevel`].
    level: AtomicU8,
    /// A [`Form`].
    form: AtomicU8,
    /// Lines that are waiting, and all that were lost.
    unwritten: AtomicUsize,
    lost: OnceLock<ErrorCounter>,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: AtomicU8::new(LogLevel::Info as u8),
            form: AtomicU8::new(Form::Plain as u8),
            unwritten: AtomicUsize::new(0),
            lost: OnceLock::new(),
        }
    }
}

impl Log {
    fn start(&'static self, room: usize, write: impl Fn(&str) + Send + 'static) -> impl Subscriber {
        let (queue, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(room)
            .thread_name("log")
            .finish(Writer {
                log: self,
                reported: 0,
                write,
            });
        // Where the queue stays full the guard's drop prints to standard output, which may be the
        // same pipe that nothing reads: `end` waits in its place.
        mem::forget(guard);
        let _ = self.lost.set(queue.error_counter());
        tracing_subscriber::registry().with(Records { log: self, queue })
    }

    fn form(&self) -> Form {
        let all = [Form::Plain, Form::Timed, Form::Journal, Form::Json];
        all[usize::from(self.form.load(Ordering::Relaxed))]
    }

    fn filter(&self) -> LevelFilter {
        let all = [
            LogLevel::Error,
            LogLevel::Warn,
            LogLevel::Info,
            LogLevel::Debug,
        ];
        all[usize::from(self.level.load(Ordering::Relaxed))].filter()
    }

    fn lost(&self) -> usize {
        self.lost.get().map_or(0, ErrorCounter::dropped_lines)
    }

    fn end(&self, wait: Duration) {
        let until = Instant::now() + wait;
        while self.lost() < self.unwritten.load(Ordering::Acquire) && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Makes events records, and puts them into the line of those to be written.
struct Records {
    log: &'static Log,
    queue: NonBlocking,
}

impl<S: Subscriber> Layer<S> for Records {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes() // the level may change
    }

    fn enabled(&self, of: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *of.level() <= self.log.filter()
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut content = Content::default();
        event.record(&mut content);
        let of = event.metadata();
        let is_note = of.target() == NOTE;
        let form = self.log.form();
        let mut record = form.record(*of.level(), is_note, &content, SystemTime::now());
        record.push('\n');
        self.log.unwritten.fetch_add(1, Ordering::Relaxed);
        // It never fails: what finds no room is counted.
        let _ = self.queue.clone().write(record.as_bytes());
    }
}

/// Writes each line, then how many were lost meanwhile: `tracing-appender` only counts them.
struct Writer<W> {
    log: &'static Log,
    reported: usize,
    write: W,
}

impl<W: Fn(&str)> io::Write for Writer<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        (self.write)(&String::from_utf8_lossy(line));
        // Not too early: the queue was full when a line was lost, so another one follows.
        let new = self.log.lost() - self.reported;
        if new > 0 {
            let lost = format!("{new} lines are lost: standard error took none meanwhile");
            let lost = Content::new(&lost);
            let form = self.log.form();
            let lost = form.record(Level::WARN, true, &lost, SystemTime::now());
            (self.write)(&format!("{lost}\n"));
        }
        self.reported += new;
        self.log.unwritten.fetch_sub(1, Ordering::Release);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, sync_channel};
    use tracing::subscriber::with_default;

    /// A log with room for two lines, and those that it writes: each waits until it is taken.
    fn log() -> (&'static Log, impl Subscriber, Receiver<String>) {
        let log: &Log = Box::leak(Box::default());
        let (to, lines) = sync_channel(0);
        let subscriber = log.start(2, move |line| drop(to.send(line.into())));
        (log, subscriber, lines)
    }

    #[test]
    fn lines_below_the_level_are_not_written_and_it_may_change() {
        let (log, subscriber, lines) = log();
        with_default(subscriber, || {
            tracing::debug!("for nobody");
            tracing::error!("/srv/v0 was cut short");
            let next = || lines.recv().unwrap();
            assert_eq!(next(), "braid: error: /srv/v0 was cut short\n");
            tracing::warn!(listener = 3, "not accepting");
            assert_eq!(next(), "braid: warning: not accepting listener=3\n");
            say("v0: started".into());
            assert_eq!(next(), "braid: v0: started\n");
            log.level.store(LogLevel::Warn as u8, Ordering::Relaxed);
            say("v0: for nobody".into());
            warn("v0: degraded".into());
            assert_eq!(next(), "braid: v0: degraded\n");
            log.level.store(LogLevel::Debug as u8, Ordering::Relaxed);
            log.form.store(Form::Journal as u8, Ordering::Relaxed);
            at(Level::DEBUG, "v0: seen".into());
            assert_eq!(next(), "<7>v0: seen\n");
        });
    }

    #[test]
    fn a_speaker_never_waits_and_lost_lines_are_counted() {
        let (log, subscriber, lines) = log();
        with_default(subscriber, || {
            // The thread has one of them, or none yet.
            (0..9).for_each(|line| say(line.to_string()));
        });
        log.end(Duration::ZERO);
        assert_eq!(lines.recv().unwrap(), "braid: 0\n");
        let lost = lines.recv().unwrap();
        let seen = ["6", "7"]
            .map(|n| format!("braid: {n} lines are lost: standard error took none meanwhile\n"));
        assert!(seen.contains(&lost), "{lost}");
        assert_eq!(lines.recv().unwrap(), "braid: 1\n");
    }

    #[test]
    fn the_end_waits_for_all_lines() {
        const LATE: Duration = Duration::from_millis(20);
        let (log, subscriber, lines) = log();
        with_default(subscriber, || say("last".into()));
        let begun = Instant::now();
        let reader = thread::spawn(move || {
            thread::sleep(LATE);
            lines.recv().unwrap()
        });
        log.end(Duration::from_secs(60));
        assert!(begun.elapsed() >= LATE);
        assert_eq!(reader.join().unwrap(), "braid: last\n");
    }
}
