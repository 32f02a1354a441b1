//! The hook: a program that is run for each event.
//!
//! # Contract
//! A thread of its own runs one program at a time, with the event as JSON on its standard input, a
//! line, and the most important of it in the environment. One that takes longer than
//! [`RUN_MAX`] is killed, with all of its process group. Events that come meanwhile wait where all
//! are kept: what is dropped there is counted, logged, and told to the next program. From
//! [`Hook::end`] on programs have [`END_MAX`] in all, while the engine drains; [`Hook::join`],
//! after that, is the only wait for this thread.
use super::super::service::Service;
use super::Numbered;
use crate::log;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, configure_io_flusher_behavior, is_io_flusher, kill_process_group,
    pidfd_open,
};
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::Level;

/// Longest run of the program.
const RUN_MAX: Duration = Duration::from_secs(10);
/// How long programs may run once the engine ends.
const END_MAX: Duration = Duration::from_secs(2);
/// So much is kept of the last that a program has written.
const SAID_MAX: usize = 512;
/// How long the end of a killed program is waited for.
const KILLED_WAIT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// So many killed programs may be held up in the system; with more, the next one waits.
const HELD_UP_MAX: usize = 2;
/// Killed programs that are held up.
static HELD_UP: AtomicUsize = AtomicUsize::new(0);
/// Kind of lines about it.
const LINES: &str = "the hook";

/// See the module.
#[derive(Default)]
pub struct Hook {
    /// Program and arguments; none: there is no hook.
    command: Mutex<Vec<String>>,
    /// Says that the thread has ended.
    ended: Mutex<Option<mpsc::Receiver<()>>>,
    /// Programs end by then.
    end: Mutex<Option<Instant>>,
}

/// How a run ended.
#[derive(Debug)]
enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// Killed after so long: at [`RUN_MAX`], or because the engine ends.
    Killed(Duration),
}

impl Hook {
    /// The program that is run from the next event on.
    pub fn set(&self, command: &[String]) {
        let mut it = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        it.clear();
        it.extend_from_slice(command);
    }

    fn command(&self) -> Vec<String> {
        let it = self.command.lock().unwrap_or_else(PoisonError::into_inner);
        it.clone()
    }

    /// Starts the thread, with the first event that is not seen yet.
    ///
    /// # Errors
    /// There can be none.
    pub fn start(service: &Arc<Service>) -> io::Result<()> {
        let (to, ended) = mpsc::channel::<()>();
        let other = Arc::clone(service);
        let run = move || {
            run(&other);
            drop(to);
        };
        *service
            .hook
            .ended
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(ended);
        let builder = std::thread::Builder::new().name("hook".into());
        builder.spawn(run).map(drop)
    }

    /// Programs end soon from now on. Returns at once: cores may wait for the caller.
    pub fn end(&self) {
        let end = Instant::now() + END_MAX;
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }

    /// Waits for the thread, after [`Hook::end`] and the end of the events.
    pub fn join(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // The thread kills its program at the end, so that it has as long again for itself.
        let waited = ended.take().map(|it| it.recv_timeout(END_MAX + END_MAX));
        if let Some(Err(RecvTimeoutError::Timeout)) = waited {
            log::warn("the hook's thread does not end".into());
        }
    }

    /// How long a program may run yet.
    fn left(&self, begun: Instant) -> Duration {
        let by = begun + RUN_MAX;
        let end = *self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let by = end.map_or(by, |end| end.min(by));
        by.saturating_duration_since(Instant::now())
    }
}

fn run(service: &Service) {
    let (hook, events) = (&service.hook, &service.events);
    let mut seen = events.first();
    let mut lost = 0;
    loop {
        let unseen = events.wait(seen, 1, || false);
        let Some(event) = unseen.events.first() else {
            return; // the engine ends
        };
        seen = unseen.last;
        let command = hook.command();
        let Some(program) = command.first() else {
            lost = 0;
            continue;
        };
        if unseen.lost > 0 {
            lost += unseen.lost;
            let line = format!(
                "{program}: {} events were dropped: it is too slow",
                unseen.lost
            );
            log::seldom(LINES, program, Level::WARN, line);
        }
        if events.is_closed() && hook.left(Instant::now()).is_zero() {
            return;
        }
        match run_one(hook, &command, event, lost) {
            Ok((Ended::Exited(status), _)) if status.success() => lost = 0,
            Ok((ended, said)) => {
                let said = last_line(&said);
                let line = format!("{program}: {ended}{said} (event {})", event.number);
                log::seldom(LINES, program, Level::WARN, line);
            }
            Err(error) => {
                let line = format!("{program} cannot be run (on_event): {error}");
                log::seldom(LINES, program, Level::WARN, line);
            }
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => status.fmt(f),
            Self::Killed(after) if *after < RUN_MAX => {
                let after = after.as_secs_f64();
                write!(f, "killed after {after:.1} s, because the engine ends")
            }
            Self::Killed(_) => write!(f, "killed after {} s", RUN_MAX.as_secs()),
        }
    }
}

/// Runs the program for one event. Returns what it wrote last.
fn run_one(
    hook: &Hook,
    command: &[String],
    event: &Numbered,
    lost: u64,
) -> io::Result<(Ended, Vec<u8>)> {
    let begun = Instant::now();
    let json = event.json();
    let (ours, theirs) = io::pipe()?;
    let mut it = Command::new(&command[0]);
    it.args(&command[1..]).stdin(Stdio::piped());
    it.stdout(theirs.try_clone()?).stderr(theirs);
    it.process_group(0).env("BRAID_LOST", lost.to_string());
    for (name, key) in [
        ("BRAID_SEQ", "seq"),
        ("BRAID_TIME", "time"),
        ("BRAID_KIND", "kind"),
        ("BRAID_VOLUME", "volume"),
        ("BRAID_PATH", "path"),
        ("BRAID_FROM", "from"),
        ("BRAID_TO", "to"),
    ] {
        let value = &json[key];
        let text = value.as_str().map(String::from);
        it.env(
            name,
            text.unwrap_or_else(|| match value.is_null() {
                true => String::new(),
                false => value.to_string(),
            }),
        );
    }
    let mut child = spawn(&mut it)?;
    // Else our end of what it writes would never be over.
    drop(it);
    if let Some(mut stdin) = child.stdin.take() {
        // An event is smaller than a pipe, so this does not wait; a program need not read it.
        let _ = stdin.write_all(format!("{json}\n").as_bytes());
    }
    let ended = wait(hook, &mut child, ours, begun);
    if !matches!(ended, Ok((Ended::Exited(_), _))) {
        // Its group has its number, and exists until it has been waited for.
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        reap(child)?;
    }
    ended
}

/// Waits for a program that was killed. One that is held up in the system, as by a file system that
/// hangs, holds no other hook up.
fn reap(mut child: Child) -> io::Result<()> {
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let mut ready = [PollFd::new(&process, PollFlags::IN)];
    let is_over = poll(&mut ready, Some(&KILLED_WAIT))? > 0;
    if is_over || HELD_UP.fetch_add(1, Ordering::Relaxed) >= HELD_UP_MAX {
        if !is_over {
            HELD_UP.fetch_sub(1, Ordering::Relaxed);
        }
        return child.wait().map(drop);
    }
    let waits = move || {
        let _ = child.wait();
        HELD_UP.fetch_sub(1, Ordering::Relaxed);
    };
    thread::Builder::new().name("hook".into()).spawn(waits)?;
    Ok(())
}

/// Starts a program that is no I/O flusher, as the threads of the engine are: it would take memory
/// that is kept for those.
fn spawn(command: &mut Command) -> io::Result<Child> {
    // Only for this moment: other threads wait for locks that this one takes.
    let is_flusher = is_io_flusher().unwrap_or(false);
    if is_flusher {
        configure_io_flusher_behavior(false)?;
    }
    let child = command.spawn();
    if is_flusher {
        configure_io_flusher_behavior(true)?;
    }
    child
}

/// Reads what it writes until it ends, or its time is over.
fn wait(
    hook: &Hook,
    child: &mut Child,
    mut output: io::PipeReader,
    begun: Instant,
) -> io::Result<(Ended, Vec<u8>)> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    let (mut said, mut is_open) = (Vec::new(), true);
    loop {
        let left = hook.left(begun);
        if left.is_zero() {
            return Ok((Ended::Killed(begun.elapsed()), said));
        }
        // A short one: the engine may be told to end meanwhile.
        let left = left.min(Duration::from_millis(500));
        let left = Timespec::try_from(left).unwrap_or_default();
        let of_output = PollFd::new(&output, PollFlags::IN);
        let mut all = vec![PollFd::new(&process, PollFlags::IN)];
        all.extend(is_open.then_some(of_output));
        match poll(&mut all, Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_ended = !all[0].revents().is_empty();
        let has_output = all.get(1).is_some_and(|it| !it.revents().is_empty());
        if has_output {
            let mut chunk = [0; 4096];
            let count = output.read(&mut chunk)?;
            is_open = count > 0;
            said.extend_from_slice(&chunk[..count]);
            let more = said.len().saturating_sub(SAID_MAX);
            said.drain(..more);
        } else if has_ended {
            // Processes that it has started may live on, and write.
            return Ok((Ended::Exited(child.wait()?), said));
        }
    }
}

/// The last line that a program has written, for a line about it.
fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let last = said.trim_end().lines().last().unwrap_or_default();
    match last.is_empty() {
        true => String::new(),
        false => format!(": {last}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Event, Events, Kind};
    use super::*;

    fn one() -> Numbered {
        let events = Events::default();
        events.emit(Event::new(Kind::Path, "failed").volume("v0").from("live"));
        events.since(None, 1).events.remove(0)
    }

    fn sh(script: &str) -> Vec<String> {
        ["/bin/sh", "-c", script].map(String::from).into()
    }

    #[test]
    fn program_gets_the_event_and_its_last_words_are_known() {
        let script = "read -r line; echo \"$BRAID_KIND $BRAID_TO $BRAID_PATH-$BRAID_LOST $line\"; \
                      echo gone wrong >&2; exit 3";
        let (ended, said) = run_one(&Hook::default(), &sh(script), &one(), 5).unwrap();
        let Ended::Exited(status) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!(status.code(), Some(3));
        let text = String::from_utf8(said.clone()).unwrap();
        assert!(text.starts_with("path failed -5 {"), "{text}");
        assert!(text.contains("\"from\":\"live\""), "{text}");
        assert_eq!(last_line(&said), ": gone wrong");
        assert_eq!(last_line(b"\n"), "");
    }

    #[test]
    fn program_that_hangs_is_killed_with_its_children() {
        let hook = Hook::default();
        *hook.end.lock().unwrap() = Some(Instant::now() + Duration::from_millis(300));
        let script = "sleep 1000 & echo $!; wait";
        let (ended, said) = run_one(&hook, &sh(script), &one(), 0).unwrap();
        let text = ended.to_string();
        assert!(text.starts_with("killed after ") && text.ends_with("the engine ends"));
        assert_eq!(Ended::Killed(RUN_MAX).to_string(), "killed after 10 s");
        let child = String::from_utf8(said).unwrap();
        let stat = format!("/proc/{}/stat", child.trim());
        let end = Instant::now() + Duration::from_secs(60);
        let lives = || std::fs::read_to_string(&stat).is_ok_and(|it| !it.contains(") Z "));
        while lives() {
            assert!(Instant::now() < end, "its child lives on");
            std::thread::yield_now();
        }
    }

    /// The caller attends to the cores, which wait for it.
    #[test]
    fn end_does_not_wait_for_the_thread_and_join_does() {
        let hook = Hook::default();
        let (thread, ended) = mpsc::channel::<()>();
        *hook.ended.lock().unwrap() = Some(ended);
        hook.end();
        assert!(hook.left(Instant::now()) <= END_MAX);
        assert!(hook.ended.lock().unwrap().is_some(), "nothing has waited");
        drop(thread);
        hook.join();
        assert!(hook.ended.lock().unwrap().is_none());
    }

    #[test]
    fn program_that_writes_much_or_is_not_there_is_no_trouble() {
        let much = sh("head -c 1000000 /dev/zero | tr '\\0' x; echo; echo done");
        let (ended, said) = run_one(&Hook::default(), &much, &one(), 0).unwrap();
        assert!(
            matches!(ended, Ended::Exited(it) if it.success()),
            "{ended:?}"
        );
        assert!(said.len() <= SAID_MAX && last_line(&said) == ": done");
        // It leaves a child behind that keeps what it writes to open.
        let (ended, _) = run_one(&Hook::default(), &sh("sleep 2 & exit 0"), &one(), 0).unwrap();
        assert!(
            matches!(ended, Ended::Exited(it) if it.success()),
            "{ended:?}"
        );
        let none = ["/nope/program".to_owned()];
        assert!(run_one(&Hook::default(), &none, &one(), 0).is_err());
    }
}
