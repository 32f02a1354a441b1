//! Small services of the system: clock, pinning, limits, sockets, wake-ups.
use crate::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};
use rustix::process::{Resource, Rlimit, configure_io_flusher_behavior, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Pins the calling thread to one CPU.
///
/// # Errors
/// EINVAL: there is no such CPU, or this process may not use it.
pub fn pin(cpu: usize) -> Result<(), Errno> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// The CPUs that this process may use.
///
/// # Errors
/// As `sched_getaffinity`.
pub fn cpus() -> Result<Vec<usize>, Errno> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect())
}

/// Returns the same file by a descriptor that isn't one of the standard streams': a program that
/// was started without one of them would print into the file that has taken its number.
///
/// # Errors
/// EMFILE.
pub fn aside(file: OwnedFd) -> Result<OwnedFd, Errno> {
    const FIRST: i32 = 3;
    match file.as_raw_fd() {
        ..FIRST => rustix::io::fcntl_dupfd_cloexec(&file, FIRST),
        _ => Ok(file),
    }
}

/// The calling thread, and those that it starts, serve a block device: the kernel gives them memory
/// without a wait for what they have to write first.
///
/// # Errors
/// EPERM: `CAP_SYS_RESOURCE` is missing. EINVAL: a kernel before Linux 5.6.
pub fn set_io_flusher() -> Result<(), Errno> {
    configure_io_flusher_behavior(true)
}

/// How often the calling thread has lost its CPU to another one while it could run.
pub fn involuntary_switches() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills the whole structure, which is `usage`'s.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    assert!(result == 0, "getrusage knows its own thread");
    // SAFETY: all zeroes are a value of it, and the kernel has filled it.
    let usage = unsafe { usage.assume_init() };
    usage.ru_nivcsw as u64
}

/// Raises the soft limit of open files to the hard one; returns what is in force (`None`: no
/// limit).
pub fn raise_open_files() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    }
}

/// A TCP socket of the address's family to connect with, without Nagle's delay, that asks a silent
/// peer whether it is still there.
///
/// # Errors
/// EMFILE, ENFILE, ENOBUFS…, as `socket`.
pub fn tcp_socket(address: &SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    set_no_delay(&socket)?;
    set_short_keep_alive(&socket)?;
    Ok(socket)
}

/// Switches Nagle's delay off: every message leaves when it is sent.
///
/// # Errors
/// As `setsockopt`.
pub fn set_no_delay(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::set_tcp_nodelay(socket, true)
}

/// Asks a silent TCP peer from time to time whether it is still there; who doesn't answer is gone
/// after two minutes (60 s, and 4 questions 15 s apart).
///
/// # Errors
/// As `setsockopt`; on sockets that aren't TCP.
pub fn set_keep_alive(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::set_tcp_keepidle(&socket, Duration::from_secs(60))?;
    sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(15))?;
    sockopt::set_tcp_keepcnt(&socket, 4)?;
    sockopt::set_socket_keepalive(&socket, true)
}

/// Seconds without traffic after which [`set_short_keep_alive`] lets TCP ask; 0: never.
static KEEP_ALIVE_S: AtomicU32 = AtomicU32::new(10);

/// Sets after how long without traffic, in whole seconds, TCP asks the peers of connections that
/// this process opens from now on; `None`: never. 10 s before the first call.
pub fn set_keep_alive_of_opened(idle: Option<Duration>) {
    let seconds = idle.map_or(0, |idle| idle.as_secs().clamp(1, KEEP_ALIVE_S_MAX));
    KEEP_ALIVE_S.store(seconds as u32, Ordering::Relaxed);
}

/// Linux takes no more.
const KEEP_ALIVE_S_MAX: u64 = 32_767;

/// As [`set_keep_alive_of_opened`], for a connection that we opened: firewalls on the way forget
/// idle connections, so the first probe is sent before that. Two more follow, each a third of that
/// later; then the connection ends (after 19 s, with 10 s and 3 s). Sent data without an
/// acknowledgement is not probed: it has time-outs of its own, which are shorter.
///
/// # Errors
/// As `setsockopt`; on sockets that aren't TCP.
pub fn set_short_keep_alive(socket: impl AsFd) -> Result<(), Errno> {
    let seconds = u64::from(KEEP_ALIVE_S.load(Ordering::Relaxed));
    if seconds == 0 {
        return Ok(());
    }
    sockopt::set_tcp_keepidle(&socket, Duration::from_secs(seconds))?;
    sockopt::set_tcp_keepintvl(&socket, Duration::from_secs((seconds / 3).max(1)))?;
    sockopt::set_tcp_keepcnt(&socket, 3)?;
    sockopt::set_socket_keepalive(&socket, true)
}

/// Takes no more for sending while so many bytes wait to be sent: what is on its way to the peer is
/// on top, and one piece of a message. Without it a peer that reads nothing holds as much of the
/// kernel's memory as `tcp_wmem` allows.
///
/// # Errors
/// As `setsockopt`; on sockets that aren't TCP.
pub fn set_unsent_max(socket: impl AsFd, bytes: u32) -> Result<(), Errno> {
    let (socket, len) = (socket.as_fd().as_raw_fd(), size_of_val(&bytes) as u32);
    let (level, option) = (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT);
    // SAFETY: the option is four bytes, which the kernel reads from `bytes` during the call; the
    // descriptor is open while `socket` is borrowed.
    let result = unsafe { libc::setsockopt(socket, level, option, (&raw const bytes).cast(), len) };
    if result == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::INVAL))
}

/// From now on closing the socket sends a reset and drops what wasn't sent.
///
/// # Errors
/// As `setsockopt`.
pub fn set_abortive_close(socket: impl AsFd) -> Result<(), Errno> {
    sockopt::set_socket_linger(socket, Some(Duration::ZERO))
}

/// Sends FIN after what is queued; receiving goes on.
///
/// # Errors
/// ENOTCONN: the peer is gone already.
pub fn finish_sending(socket: impl AsFd) -> Result<(), Errno> {
    rustix::net::shutdown(socket, Shutdown::Write)
}

/// Whether the peer has closed its side, or the connection is reset; what arrived before may be
/// unread.
pub fn has_hung_up(socket: impl AsFd) -> bool {
    let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    let socket = socket.as_fd();
    let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
    // It does not wait, so no signal interrupts it.
    let polled = poll(&mut asked, Some(&Timespec::default()));
    polled.is_err() || asked[0].revents().intersects(ends)
}

/// Wakes a thread that waits for it to become readable.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// A new one, not raised.
    ///
    /// # Errors
    /// EMFILE, ENFILE.
    pub fn new() -> Result<Self, Errno> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self)
    }

    /// Raises it.
    pub fn raise(&self) {
        // Fails only where the counter is full, and then it is raised.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Lowers it; whether it was raised.
    pub fn lower(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }

    /// Another handle of the same event.
    ///
    /// # Errors
    /// EMFILE.
    pub fn try_clone(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0)
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_clock_does_not_go_back() {
        let before = now_ns();
        assert!(now_ns() >= before && before > 0);
    }

    #[test]
    fn involuntary_switches_only_grow() {
        let before = involuntary_switches();
        assert!(involuntary_switches() >= before);
    }

    #[test]
    fn the_limit_of_open_files_is_raised_to_the_hard_one() {
        let raised = raise_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!((raised, limit.current), (limit.maximum, limit.maximum));
    }

    #[test]
    fn opened_connections_ask_silent_peers_soon() {
        let asks = || {
            let socket = tcp_socket(&"127.0.0.1:9".parse().unwrap()).unwrap();
            let times = [
                sockopt::tcp_keepidle(&socket).unwrap().as_secs(),
                sockopt::tcp_keepintvl(&socket).unwrap().as_secs(),
            ];
            sockopt::socket_keepalive(&socket).unwrap().then_some(times)
        };
        assert_eq!(asks(), Some([10, 3]));
        for (idle, times) in [(60, [60, 20]), (1, [1, 1]), (90_000, [32_767, 10_922])] {
            set_keep_alive_of_opened(Some(Duration::from_secs(idle)));
            assert_eq!(asks(), Some(times));
        }
        set_keep_alive_of_opened(None);
        assert_eq!(asks(), None);
        set_keep_alive_of_opened(Some(Duration::from_secs(10)));
    }

    #[test]
    fn of_what_a_peer_does_not_take_little_is_taken_from_us() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let _deaf = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        set_unsent_max(&socket, 64 << 10).unwrap();
        let mut taken = 0;
        while let Ok(count) = (&socket).write(&[0; 64 << 10]) {
            taken += count;
        }
        // With what is in the peer's buffer; by itself the kernel takes megabytes.
        assert!((64 << 10..1 << 20).contains(&taken), "{taken}");
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(set_unsent_max(&unix, 1).is_err(), "not TCP");
    }

    #[test]
    fn end_of_peer_is_seen_behind_unread_bytes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (tcp, _) = listener.accept().unwrap();
        let (unix, mut other) = std::os::unix::net::UnixStream::pair().unwrap();
        peer.write_all(&[1; 100]).unwrap();
        other.write_all(&[1; 100]).unwrap();
        assert!(!has_hung_up(&tcp) && !has_hung_up(&unix));
        drop((peer, other));
        assert!(has_hung_up(&tcp) && has_hung_up(&unix));
    }

    #[test]
    fn an_event_is_lowered_once() {
        let event = Event::new().unwrap();
        assert!(!event.lower());
        event.raise();
        event.raise();
        assert!(event.lower());
        assert!(!event.lower());
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        assert_eq!(pin(CpuSet::MAX_CPU), Err(Errno::INVAL));
        assert!(pin(CpuSet::MAX_CPU - 1).is_err());
        let mine = cpus().unwrap();
        assert!(mine.iter().all(|&cpu| cpu < CpuSet::MAX_CPU) && !mine.is_empty());
    }
}
