//! Serves the page of metrics over HTTP/1.1: one request per connection.
//!
//! # Contract
//! No scraper costs the cores anything, nor memory without bound: [`CONNECTIONS_MAX`] are served at
//! once, each for [`TIME_MAX`] at most, further ones are closed. [`PER_SECOND`] connections of
//! clients that the [`Guard`] admits are accepted in a second; others wait in the kernel, which
//! refuses what exceeds [`BACKLOG`]. Clients that it does not admit get nothing, and spend nothing
//! of that: the next connection is accepted [`REFUSED_PAUSE`] later.
use super::super::address::Bound;
use super::super::admission::{Guard, Peer, Refusals};
use super::{MetricsAddress, Service};
use crate::log;
use anyhow::Context;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Connections that are served at once.
const CONNECTIONS_MAX: usize = 8;
/// Connections of admitted clients that are accepted in a second.
const PER_SECOND: u32 = 50;
/// Pause after a client that is not admitted: so many of them cost little of a core.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;
/// Time of a request: as long as its place is taken by a client that asks for nothing.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(2);
/// Time of a connection, with its request.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Longest request.
const REQUEST_MAX: usize = 8 << 10;
/// Header fields of a request.
const FIELDS_MAX: usize = 64;
/// Type of the page.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Pause when a client can't be accepted: out of descriptors, most likely, which come back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until it is dropped.
pub struct Server {
    address: MetricsAddress,
    bound: Bound,
    guard: Arc<Mutex<Guard>>,
    thread: Option<JoinHandle<()>>,
}

/// Connections of admitted clients in the second that began then.
struct Budget {
    began: Instant,
    accepted: u32,
}

impl Server {
    /// Begins.
    ///
    /// # Errors
    /// No descriptor or thread is left.
    pub fn start(
        address: MetricsAddress,
        bound: Bound,
        guard: Guard,
        service: Weak<Service>,
    ) -> anyhow::Result<Self> {
        let listener = bound.listener().context("cannot share a listener")?;
        rustix::io::ioctl_fionbio(&listener, true).context("cannot share a listener")?;
        rustix::net::listen(&listener, BACKLOG).context("cannot bound a listener")?;
        let guard = Arc::new(Mutex::new(guard));
        let admits = Arc::clone(&guard);
        let unix = matches!(bound, Bound::Unix(_));
        let accept = move || accept(&listener, unix, &admits, &service);
        let builder = Builder::new().name("metrics".into());
        let thread = builder.spawn(accept).context("cannot start a thread")?;
        Ok(Self {
            address,
            bound,
            guard,
            thread: Some(thread),
        })
    }

    /// Whether it listens there, and scrapers can find it.
    pub fn is_at(&self, address: &MetricsAddress) -> bool {
        self.address == *address && !self.bound.is_lost()
    }

    /// Where it listens, as configured.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }

    /// Clients that are admitted.
    pub fn guard(&self) -> Guard {
        lock(&self.guard).clone()
    }

    /// For people.
    pub fn uri(&self) -> String {
        match &self.bound {
            Bound::Tcp(listener) => match listener.local_addr() {
                Ok(address) => format!("http://{address}/metrics"),
                Err(_) => self.address.to_string(),
            },
            Bound::Unix(_) => self.address.to_string(),
        }
    }

    /// Other clients are admitted from now on; whether they are others.
    pub fn set_guard(&self, to: Guard) -> bool {
        let mut guard = lock(&self.guard);
        let differs = *guard != to;
        *guard = to;
        differs
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let shut = match &self.bound {
            Bound::Unix(socket) => rustix::net::shutdown(&socket.listener, Shutdown::Both),
            Bound::Tcp(listener) => rustix::net::shutdown(listener, Shutdown::Both),
        };
        if let (Ok(()), Some(thread)) = (shut, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

fn lock(guard: &Mutex<Guard>) -> MutexGuard<'_, Guard> {
    guard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Budget {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            accepted: 0,
        }
    }

    /// Counts one more connection, if its client is admitted. Returns how long no other is
    /// accepted.
    fn pause_after(&mut self, is_admitted: bool) -> Duration {
        if is_admitted {
            self.spend()
        } else {
            REFUSED_PAUSE
        }
    }

    /// Counts one more connection. Returns how long no other is accepted.
    fn spend(&mut self) -> Duration {
        let second = Duration::from_secs(1);
        if self.began.elapsed() >= second {
            *self = Self::new();
        }
        self.accepted += 1;
        match self.accepted < PER_SECOND {
            true => Duration::ZERO,
            false => second.saturating_sub(self.began.elapsed()),
        }
    }
}

fn accept(listener: &OwnedFd, unix: bool, guard: &Mutex<Guard>, service: &Weak<Service>) {
    let mut refusals = Refusals::default();
    let mut budget = Budget::new();
    let serving = Arc::new(AtomicUsize::new(0));
    let is_shut = |flags, wait: Option<Duration>| {
        let mut ready = [PollFd::new(listener, flags)];
        let wait = wait.and_then(|it| it.try_into().ok());
        poll(&mut ready, wait.as_ref()).is_ok() && ready[0].revents().contains(PollFlags::HUP)
    };
    loop {
        if is_shut(PollFlags::IN, None) {
            return;
        }
        use rustix::io::Errno;
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let socket = match rustix::net::accept_with(listener, flags) {
            Ok(socket) => socket,
            Err(Errno::INVAL) => return,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => continue,
            Err(_) => {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let peer = Peer::of(&socket, unix);
        let is_admitted = lock(guard).admits(peer).is_some();
        let pause = budget.pause_after(is_admitted);
        if is_admitted {
            serve(socket, &serving, service);
        } else if let Some(line) = refusals.more(&format!("metrics_allow does not name {peer}")) {
            log::say(format!("metrics: {line}"));
        }
        if !pause.is_zero() && is_shut(PollFlags::empty(), Some(pause)) {
            return;
        }
    }
}

/// Serves a connection on a thread of its own, if a place is free.
fn serve(socket: OwnedFd, serving: &Arc<AtomicUsize>, service: &Weak<Service>) {
    // Only this thread adds to it.
    if serving.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
        return;
    }
    serving.fetch_add(1, Ordering::Relaxed);
    let (left, service) = (Arc::clone(serving), Weak::clone(service));
    let answer = move || {
        // A scraper that goes away, or is too slow, gets no more.
        let _ = answer(&socket, &service);
        left.fetch_sub(1, Ordering::Relaxed);
    };
    if Builder::new().name("scraper".into()).spawn(answer).is_err() {
        serving.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(socket: &OwnedFd, service: &Weak<Service>) -> io::Result<()> {
    let begun = Instant::now();
    let request = read_request(socket, begun + REQUEST_TIME_MAX)?;
    let until = begun + TIME_MAX;
    let (status, kind, body): (_, _, Arc<str>) = match request {
        Request::Page => match service.upgrade().map(|it| it.metrics.page(&it)) {
            Some(Ok(page)) => ("200 OK", OPEN_METRICS, page),
            Some(Err(why)) => ("503 Service Unavailable", TEXT, why),
            None => (
                "503 Service Unavailable",
                TEXT,
                "the engine is ending\n".into(),
            ),
        },
        Request::Root => ("200 OK", TEXT, "braid: metrics are at /metrics\n".into()),
        Request::Unknown => ("404 Not Found", TEXT, "there is only /metrics\n".into()),
        Request::Method => ("405 Method Not Allowed", TEXT, "only GET\n".into()),
        Request::TooLarge => ("431 Request Header Fields Too Large", TEXT, "".into()),
        Request::Bad => ("400 Bad Request", TEXT, "".into()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    send(socket, head.as_bytes(), until)?;
    send(socket, body.as_bytes(), until)?;
    Ok(rustix::net::shutdown(socket, Shutdown::Write)?)
}

const TEXT: &str = "text/plain; charset=utf-8";

/// A request, as far as it matters.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Page,
    Root,
    Unknown,
    Method,
    TooLarge,
    Bad,
}

/// `None`: more of it is to come.
fn parse(bytes: &[u8]) -> Option<Request> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => return Some(Request::TooLarge),
        Err(_) => return Some(Request::Bad),
    }
    if request.method != Some("GET") {
        return Some(Request::Method);
    }
    let path = request.path.unwrap_or_default();
    Some(match path.split('?').next() {
        Some("/metrics") => Request::Page,
        Some("/") => Request::Root,
        _ => Request::Unknown,
    })
}

fn read_request(socket: &OwnedFd, until: Instant) -> io::Result<Request> {
    let mut bytes = [0; REQUEST_MAX];
    let mut length = 0;
    loop {
        set_socket_timeout(socket, Timeout::Recv, Some(left(until)?))?;
        let read = rustix::net::recv(socket, &mut bytes[length..], RecvFlags::empty())?.0;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        length += read;
        if let Some(request) = parse(&bytes[..length]) {
            return Ok(request);
        }
        if length == bytes.len() {
            return Ok(Request::TooLarge);
        }
    }
}

fn send(socket: &OwnedFd, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        set_socket_timeout(socket, Timeout::Send, Some(left(until)?))?;
        let sent = rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

/// # Errors
/// Its time is over.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    // Less would be rounded to none, which means without end.
    match left < Duration::from_millis(1) {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_told_apart() {
        let many = "a: b\r\n".repeat(FIELDS_MAX + 1);
        for (text, request) in [
            (
                "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
                Some(Request::Page),
            ),
            ("GET /metrics?a=b HTTP/1.0\r\n\r\n", Some(Request::Page)),
            ("GET / HTTP/1.1\r\n\r\n", Some(Request::Root)),
            ("GET /x HTTP/1.1\r\n\r\n", Some(Request::Unknown)),
            ("POST /metrics HTTP/1.1\r\n\r\n", Some(Request::Method)),
            ("GET /metrics HTTP/1.1\r\nHost", None),
            ("", None),
            ("\0\r\n\r\n", Some(Request::Bad)),
            (
                &format!("GET / HTTP/1.1\r\n{many}\r\n"),
                Some(Request::TooLarge),
            ),
        ] {
            assert_eq!(parse(text.as_bytes()), request, "{text}");
        }
    }

    #[test]
    fn refused_clients_spend_no_budget() {
        let mut budget = Budget::new();
        for _ in 0..2 * PER_SECOND {
            assert_eq!(budget.pause_after(false), REFUSED_PAUSE);
        }
        assert_eq!(budget.accepted, 0);
        assert!(budget.pause_after(true).is_zero());
    }

    #[test]
    fn budget_of_a_second_ends() {
        let mut budget = Budget::new();
        let spent: Vec<_> = (0..PER_SECOND).map(|_| budget.spend().is_zero()).collect();
        // The machine may stand still for a second.
        if budget.began.elapsed() < Duration::from_secs(1) {
            let last = spent.iter().position(|is_free| !is_free);
            assert_eq!(last, Some(PER_SECOND as usize - 1));
        }
        budget.began -= Duration::from_secs(1);
        assert!(budget.spend().is_zero());
    }
}
