//! Lines on standard error: notes of services, warnings and errors of the layers below.
//!
//! # Contract
//! A speaker never waits, even while nothing reads standard error: a thread of `tracing-appender`,
//! which sleeps between lines, writes them. [`end`] waits until all are written, for
//! [`LOG_END_WAIT`] at most.
//!
//! # Limits
//! The layers below: warnings and errors only. [`LINES_MAX`] lines may wait to be written; more are
//! dropped and counted, and the count is a line.
use crate::limits::{LINES_MAX, LOG_END_WAIT};
use crate::output;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};
use std::{fmt, io, mem, thread};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, format};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// Target of the events that are notes.
const NOTE: &str = "note";

/// Of this process.
static LOG: LazyLock<Log> = LazyLock::new(Log::default);

/// Writes notes, warnings and errors from now on.
pub fn install() {
    let subscriber = LOG.start(LINES_MAX, output::note);
    // Only this program's main function installs one.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Writes one line.
pub fn say(text: String) {
    tracing::info!(target: NOTE, "{text}");
}

/// Waits until all lines are written, or nothing takes them.
pub fn end() {
    LOG.end(LOG_END_WAIT);
}

#[derive(Default)]
struct Log {
    /// Lines that are waiting, and all that were lost.
    unwritten: AtomicUsize,
    lost: OnceLock<ErrorCounter>,
}

impl Log {
    fn start(&'static self, room: usize, note: impl Fn(&str) + Send + 'static) -> impl Subscriber {
        let (queue, guard) = NonBlockingBuilder::default()
            .buffered_lines_limit(room)
            .thread_name("log")
            .finish(Writer {
                log: self,
                reported: 0,
                note,
            });
        // Where the queue stays full the guard's drop prints to standard output, which may be the
        // same pipe that nothing reads: `end` waits in its place.
        mem::forget(guard);
        let _ = self.lost.set(queue.error_counter());
        let levels = Targets::new().with_default(LevelFilter::WARN);
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .event_format(Line)
            .with_writer(move || {
                self.unwritten.fetch_add(1, Ordering::Relaxed);
                queue.clone()
            });
        tracing_subscriber::registry()
            .with(levels.with_target(NOTE, LevelFilter::INFO))
            .with(lines)
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

/// Writes each line, then how many were lost meanwhile: `tracing-appender` only counts them.
struct Writer<N> {
    log: &'static Log,
    reported: usize,
    note: N,
}

impl<N: Fn(&str)> io::Write for Writer<N> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        (self.note)(&String::from_utf8_lossy(line));
        // Not too early: the queue was full when a line was lost, so another one follows.
        let new = self.log.lost() - self.reported;
        if new > 0 {
            let lost = format!("{new} lines are lost: standard error took none meanwhile");
            (self.note)(&lost);
        }
        self.reported += new;
        self.log.unwritten.fetch_sub(1, Ordering::Release);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// An event in words: how grave it is, the message, its fields.
struct Line;

impl<S, N> FormatEvent<S, N> for Line
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: format::Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        line.write_str(match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        })?;
        context.format_fields(line, event)
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
    fn notes_and_warnings_are_lines_and_the_rest_is_nothing() {
        let (_, subscriber, lines) = log();
        with_default(subscriber, || {
            tracing::info!("for nobody");
            tracing::error!("/srv/v0 was cut short");
            assert_eq!(lines.recv().unwrap(), "error: /srv/v0 was cut short");
            tracing::warn!(listener = 3, "not accepting");
            assert_eq!(lines.recv().unwrap(), "warning: not accepting listener=3");
            say("v0: started".into());
            assert_eq!(lines.recv().unwrap(), "v0: started");
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
        assert_eq!(lines.recv().unwrap(), "0");
        let lost = lines.recv().unwrap();
        let seen =
            ["6", "7"].map(|n| format!("{n} lines are lost: standard error took none meanwhile"));
        assert!(seen.contains(&lost), "{lost}");
        assert_eq!(lines.recv().unwrap(), "1");
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
        assert_eq!(reader.join().unwrap(), "last");
    }
}
