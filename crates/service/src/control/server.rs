//! Serving control clients: threads with bounds on how many, how long and how much.
use super::call::{Call, parse};
use super::limits::{ACCEPT_PAUSE, CLIENT_SILENCE, CLIENTS_MAX, LONG_MAX};
use super::rpc::{self, ControlError, Lines, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Answers to calls.
pub trait Methods: Send + Sync + 'static {
    /// All that can be asked.
    type Call: Call;

    /// Answers one call, whose caller may go away meanwhile.
    ///
    /// # Errors
    /// As the answer tells them.
    fn call(&self, by: &Caller<'_>, call: Self::Call) -> Result<Value, ControlError>;
}

/// Longest verb as it was typed that is written down, bytes.
const TYPED_MAX: usize = 400;

/// The caller.
#[derive(Clone, Copy, Default)]
pub struct Caller<'a> {
    /// `None`: there is no connection.
    stream: Option<&'a UnixStream>,
    /// It waits for the answer; else it can't be gone.
    is_awaited: bool,
    /// The verb as a user has typed it, by the caller's word.
    typed: Option<&'a str>,
}

impl Caller<'_> {
    /// A call without a connection.
    pub const NONE: Caller<'static> = Caller {
        stream: None,
        is_awaited: false,
        typed: None,
    };

    /// User and process, as the kernel has them.
    pub fn who(&self) -> String {
        let peer = self.stream.map(rustix::net::sockopt::socket_peercred);
        match peer {
            Some(Ok(peer)) => {
                let (uid, pid) = (peer.uid.as_raw(), peer.pid.as_raw_nonzero().get());
                format!("user {uid} (process {pid})")
            }
            Some(Err(_)) => "an unknown user".to_owned(),
            None => "this program".to_owned(),
        }
    }

    /// The verb as it was typed, without what would disturb a line; by another client than a verb,
    /// the call.
    pub fn typed(&self, call: &impl Call) -> String {
        let typed = self.typed.map(String::from).unwrap_or_else(|| {
            let call = serde_json::to_value(call).unwrap_or_default();
            format!(
                "{} {}",
                call["method"].as_str().unwrap_or("-"),
                call["params"]
            )
        });
        let plain = |it: char| if it.is_control() { ' ' } else { it };
        let mut typed: String = typed.chars().map(plain).collect();
        let end = (0..=TYPED_MAX).rev().find(|at| typed.is_char_boundary(*at));
        typed.truncate(end.unwrap_or_default());
        typed
    }

    /// No caller is there to hear an answer. One that only has nothing more to say is there.
    pub fn is_gone(&self) -> bool {
        let Some(stream) = self.stream.filter(|_| self.is_awaited) else {
            return false;
        };
        let mut ends = [PollFd::new(stream, PollFlags::empty())];
        let now = Timespec::default();
        let polled = poll(&mut ends, Some(&now));
        let over = PollFlags::HUP | PollFlags::ERR;
        polled.is_ok() && ends[0].revents().intersects(over)
    }

    /// Refuses what has not been begun for a caller that has given up (T55): it has reported a
    /// failure.
    ///
    /// # Errors
    /// The caller has gone.
    pub fn ensure_there(&self) -> Result<(), ControlError> {
        match self.is_gone() {
            true => Err(ControlError::refused(
                "the caller has gone: nothing was begun",
            )),
            false => Ok(()),
        }
    }
}

/// One of the places for requests that take long; free again when it is dropped.
struct LongPlace<'a>(&'a AtomicUsize);

impl<'a> LongPlace<'a> {
    fn take(taken: &'a AtomicUsize) -> Result<Self, ControlError> {
        let more = |count| (count < LONG_MAX).then_some(count + 1);
        match taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Self(taken)),
            Err(_) => Err(ControlError::refused(format!(
                "{LONG_MAX} requests that take long (paths, connect, reload, mirrors) are under \
                 way, the most there may be: try again when one has ended"
            ))),
        }
    }
}

impl Drop for LongPlace<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Serves control clients for as long as the process lives.
pub fn serve(listener: &UnixListener, control: &Arc<impl Methods>) {
    let clients = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if let Err(error) = &stream
            && error.kind() == std::io::ErrorKind::InvalidInput
        {
            return; // it was shut down: another one is in its place
        }
        let Ok(stream) = stream else {
            // Out of descriptors, most likely: they come back.
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let (control, client) = (control.clone(), clients.clone());
        if Arc::strong_count(&clients) > CLIENTS_MAX + 1 {
            turn_away(stream);
            continue;
        }
        let builder = std::thread::Builder::new().name("control".into());
        // Where there can be no thread, the client is closed too.
        let _ = builder.spawn(move || {
            serve_client(&stream, &*control, &client);
            drop(client);
        });
    }
}

/// Says why, as far as the socket takes it at once, and closes.
fn turn_away(mut stream: UnixStream) {
    let text = format!(
        "there are {CLIENTS_MAX} control clients, the most there may be: close one, or try \
         again when those that say nothing have been closed ({} s)",
        CLIENT_SILENCE.as_secs()
    );
    let _ = stream.set_nonblocking(true);
    let _ = rpc::write_line(&mut stream, &rpc::refusal(&text));
}

/// `long`: requests under way, of all clients, that may take long.
fn serve_client<M: Methods>(stream: &UnixStream, control: &M, long: &AtomicUsize) {
    let Ok(mut writer) = stream.try_clone() else {
        return;
    };
    let _ = writer.set_write_timeout(Some(CLIENT_SILENCE));
    let mut lines = Lines::new(stream, CLIENT_SILENCE);
    // An error ends the client: it was too slow, too long, or is gone.
    while let Ok(Some(line)) = lines.next_line() {
        let answer = rpc::answer(&line, |request| {
            let Request { method, params, .. } = request;
            let caller = Caller {
                stream: Some(stream),
                is_awaited: request.is_awaited,
                typed: request.typed,
            };
            caller.ensure_there()?;
            let call: M::Call = parse(method, params)?;
            let is_long = call.is_long();
            let _place = is_long.then(|| LongPlace::take(long)).transpose()?;
            control.call(&caller, call)
        });
        if answer.is_some_and(|answer| rpc::write_line(&mut writer, &answer).is_err()) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::call::Nothing;
    use serde_json::json;
    use std::time::{Duration, Instant};

    crate::calls! {
        /// Of a test.
        enum Asked {
            "short" => Short(Nothing),
            "long" => Long(Nothing) long,
            "given up" => GivenUp(Nothing),
            "note" => Note(Nothing),
            "awaited" => Awaited(Nothing),
        }
    }

    /// Waits until its caller has gone.
    struct Patient;

    impl Methods for Patient {
        type Call = Asked;

        fn call(&self, caller: &Caller<'_>, call: Asked) -> Result<Value, ControlError> {
            let end = Instant::now() + Duration::from_secs(60);
            while call.is_long() && !caller.is_gone() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(call.method().into())
        }
    }

    fn ask(stream: &mut UnixStream) -> anyhow::Result<Value> {
        rpc::call(stream, &Asked::Short(Nothing), Duration::from_secs(60))
    }

    /// Answer that comes soon, if any does.
    fn refusal(client: &UnixStream) -> Option<String> {
        let mut lines = rpc::Lines::new(client, Duration::from_millis(20));
        let line = lines.next_line().ok()??;
        Some(String::from_utf8(line).unwrap())
    }

    fn long(path: &std::path::Path) -> UnixStream {
        let mut stream = UnixStream::connect(path).unwrap();
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "long"});
        rpc::write_line(&mut stream, &call).unwrap();
        stream
    }

    #[test]
    fn what_takes_long_leaves_places_and_ends_when_its_client_has_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        // Ends with the test's process.
        std::thread::spawn(move || serve(&listener, &Arc::new(Patient)));
        let mut other = UnixStream::connect(&path).unwrap();
        assert_eq!(ask(&mut other).unwrap(), "short");
        // One of them is refused, whichever is last.
        let clients: Vec<UnixStream> = (0..=LONG_MAX).map(|_| long(&path)).collect();
        let end = Instant::now() + Duration::from_secs(60);
        let refused = clients.iter().cycle().find_map(|client| {
            assert!(Instant::now() < end, "one more is under way");
            refusal(client)
        });
        assert!(refused.is_some_and(|text| text.contains("8 requests that take long")));
        assert_eq!(ask(&mut other).unwrap(), "short");
        drop(clients);
        while refusal(&long(&path)).is_some() {
            assert!(Instant::now() < end, "those who have gone have places");
        }
    }

    #[test]
    fn who_says_no_more_is_there_until_it_closes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let of = |stream, is_awaited| Caller {
            stream,
            is_awaited,
            typed: Some("path fail v0 1\n<3>"),
        };
        let caller = of(Some(&ours), true);
        assert!(!caller.is_gone());
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(!caller.is_gone());
        drop(theirs);
        assert!(caller.is_gone() && caller.ensure_there().is_err());
        assert!(!Caller::NONE.is_gone() && !of(Some(&ours), false).is_gone());
        let us = format!(
            "user {} (process {})",
            rustix::process::getuid().as_raw(),
            std::process::id()
        );
        assert_eq!(caller.who(), us);
        let call = Asked::Short(Nothing);
        assert_eq!(caller.typed(&call), "path fail v0 1 <3>");
        assert_eq!(Caller::NONE.typed(&call), "short {}");
    }

    /// Writes down what it is asked.
    #[derive(Default)]
    struct Log(std::sync::Mutex<Vec<String>>);

    impl Methods for Log {
        type Call = Asked;

        fn call(&self, _: &Caller<'_>, call: Asked) -> Result<Value, ControlError> {
            self.0.lock().unwrap().push(call.method().into());
            Ok(Value::Null)
        }
    }

    #[test]
    fn t55_call_of_a_caller_that_has_gone_is_not_begun() {
        let log = Log::default();
        let send = |calls: &[Value], leave: bool| {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            for call in calls {
                rpc::write_line(&mut theirs, call).unwrap();
            }
            match leave {
                true => drop(theirs),
                false => theirs.shutdown(std::net::Shutdown::Write).unwrap(),
            }
            serve_client(&ours, &log, &AtomicUsize::new(0));
        };
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "given up"});
        // A client that sends a notification waits for nothing.
        let note = json!({"jsonrpc": "2.0", "method": "note"});
        send(&[note, call], true);
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "awaited"});
        send(&[call], false);
        assert_eq!(*log.0.lock().unwrap(), ["note", "awaited"]);
    }
}
