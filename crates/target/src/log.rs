//! The target's log: events of connections, and faults that were injected.
//!
//! # Contract
//! A thread of its own sleeps until the reactor says that there is something, then reads the
//! engine's events and counters and says a bounded number of lines, at most once per
//! [`LOG_PERIOD`]. They are written as others are ([`terminal::log`]): neither this thread nor the
//! reactor ever waits for that.
use super::limits::{LOG_LINES_MAX, LOG_PERIOD};
use engine::machine::Closed;
use engine::target::{Board, DeviceFailures, Event, FaultStats, Log, Why};
use nvme::controller::CloseReason;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use terminal::log;

/// The reactor's end: there is something to tell.
#[derive(Clone, Debug)]
pub struct Waker(SyncSender<()>);

/// The thread's end.
pub struct Wakes(Receiver<()>);

/// Both ends.
pub fn wakes() -> (Waker, Wakes) {
    let (to, from) = sync_channel(1);
    (Waker(to), Wakes(from))
}

impl Waker {
    /// Never waits: one that was not yet taken stands for all.
    pub fn wake(&self) {
        let _ = self.0.try_send(());
    }
}

/// The running thread.
pub struct Logger {
    waker: Waker,
    stop: SyncSender<()>,
    thread: JoinHandle<()>,
}

/// The log that it reads, and its place there.
struct Reader {
    log: Arc<Log>,
    board: Arc<Board>,
    told: Vec<FaultStats>,
    failures: Vec<DeviceFailures>,
}

impl Logger {
    /// Starts it.
    ///
    /// # Errors
    /// There can be no thread.
    pub fn start(
        (waker, wakes): (Waker, Wakes),
        log: Arc<Log>,
        board: Arc<Board>,
        ports: usize,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = sync_channel::<()>(1);
        let mut reader = Reader {
            log,
            board,
            told: vec![FaultStats::default(); ports],
            failures: vec![DeviceFailures::default(); ports],
        };
        let run = move || {
            loop {
                let _ = wakes.0.recv();
                reader.say();
                let pause = stopped.recv_timeout(LOG_PERIOD);
                if !matches!(pause, Err(RecvTimeoutError::Timeout)) {
                    reader.say();
                    return;
                }
            }
        };
        let builder = std::thread::Builder::new().name("events".into());
        let thread = builder.spawn(run)?;
        Ok(Logger {
            waker,
            stop,
            thread,
        })
    }

    /// Says the rest.
    pub fn end(self) {
        let _ = self.stop.send(());
        self.waker.wake();
        let _ = self.thread.join(); // a panic was reported by the thread
    }
}

impl Reader {
    fn say(&mut self) {
        self.lines().into_iter().for_each(log::say);
        self.failures().into_iter().for_each(log::warn);
    }

    /// A line for each port whose devices have failed requests since this was asked last.
    fn failures(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        for (told, port) in self.failures.iter_mut().zip(0..) {
            let now = self.board.port(port).device;
            let line = of_failures(*told, now);
            lines.extend(line.map(|text| format!("port {}: {text}", port + 1)));
            *told = now;
        }
        lines
    }

    /// New lines.
    fn lines(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut unsaid = 0;
        while let Some((lost, event)) = self.log.pop() {
            unsaid += lost;
            match lines.len() < LOG_LINES_MAX {
                true => lines.push(of_event(event)),
                false => unsaid += 1,
            }
        }
        if unsaid > 0 {
            lines.push(format!("{unsaid} more connects and closes"));
        }
        for (told, port) in self.told.iter_mut().zip(0..) {
            let now = self.board.port(port).faults;
            lines.extend(of_faults(*told, now).map(|text| format!("port {}: {text}", port + 1)));
            *told = now;
        }
        lines
    }
}

fn of_event(event: Event) -> String {
    match event {
        Event::Connected { port, connection } => {
            format!("port {}: connection {connection} accepted", port + 1)
        }
        Event::TurnedAway { port, count } => format!(
            "port {}: {count} connections turned away: all places are taken (connections in the \
             configuration)",
            port + 1
        ),
        Event::Closed {
            port,
            connection,
            why,
        } => format!(
            "port {}: connection {connection} closed: {}",
            port + 1,
            reason(why)
        ),
    }
}

/// Why a connection is over, in words.
pub fn reason(why: Why) -> String {
    let text = match why {
        Why::Target(reason) => match reason {
            CloseReason::Finished => "the host disconnected, or its controller was shut down",
            CloseReason::KeepAlive => "keep-alive expired: the host said nothing for too long",
            CloseReason::Protocol => "the host broke the protocol",
            CloseReason::Damaged => {
                "a header arrived with a wrong digest: it was damaged on the way; check the network"
            }
            CloseReason::Handshake => "the host took too long to connect",
            CloseReason::Terminated => "the host ended it for a protocol error of ours",
            CloseReason::AssociationLost => "the admin connection of its controller is gone",
            CloseReason::Linger => "the host did not read what it was sent",
            CloseReason::NotAdmitted => "its host may not connect any more (hosts)",
        },
        Why::Dropped => "dropped on purpose",
        Why::Stalled => "it held memory that others waited for, and moved next to nothing",
        Why::Stopping => "the target ends",
        Why::Network(Closed::ByPeer) => "by the host",
        Why::Network(Closed::ByUs) => "by the target",
        Why::Network(Closed::Error(errno)) => {
            return std::io::Error::from_raw_os_error(errno).to_string();
        }
    };
    text.into()
}

/// Injected faults since then.
fn of_faults(then: FaultStats, now: FaultStats) -> Option<String> {
    let kinds = [
        ("errors", now.errors - then.errors),
        ("drops", now.drops - then.drops),
        ("writes held", now.held_writes - then.held_writes),
        ("late writes", now.late_writes - then.late_writes),
        (
            "writes that outlived their connection",
            now.outlived_writes - then.outlived_writes,
        ),
        ("connections refused", now.refused - then.refused),
        ("transmissions withheld", now.muted - then.muted),
        ("commands that hang", now.hung - then.hung),
    ];
    let new = kinds.iter().filter(|(_, count)| *count > 0);
    let words: Vec<_> = new.map(|(kind, count)| format!("{count} {kind}")).collect();
    (!words.is_empty()).then(|| format!("faults injected: {}", words.join(", ")))
}

/// Requests that devices have failed since then.
fn of_failures(then: DeviceFailures, now: DeviceFailures) -> Option<String> {
    let (full, media) = (now.full - then.full, now.media - then.media);
    let full = (full > 0).then(|| format!("{full} had no space left (ENOSPC)"));
    let media = (media > 0).then(|| {
        let errno = i32::try_from(now.errno).ok().filter(|it| *it != 0);
        let last = errno.map(std::io::Error::from_raw_os_error);
        let last = last.map_or(String::new(), |it| format!(", the last with {it}"));
        format!("{media} were media errors{last}")
    });
    let words: Vec<String> = full.into_iter().chain(media).collect();
    let words = words.join("; ");
    (!words.is_empty()).then(|| format!("devices failed requests: {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_devices_are_told_once_with_the_last_error() {
        let then = DeviceFailures {
            full: 1,
            media: 2,
            errno: 5,
        };
        let now = DeviceFailures {
            full: 4,
            media: 3,
            ..then
        };
        let text = "devices failed requests: 3 had no space left (ENOSPC); 1 were media errors, \
                    the last with Input/output error (os error 5)";
        assert_eq!(of_failures(then, now).as_deref(), Some(text));
        assert_eq!(of_failures(now, now), None);
    }

    #[test]
    fn faults_are_told_once() {
        let then = FaultStats {
            errors: 3,
            ..FaultStats::default()
        };
        let now = FaultStats {
            late_writes: 2,
            errors: 4,
            ..then
        };
        let text = "faults injected: 1 errors, 2 late writes";
        assert_eq!(of_faults(then, now).as_deref(), Some(text));
        assert_eq!(of_faults(now, now), None);
    }
}
