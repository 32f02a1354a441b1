//! Opening a queue: what is asked of the broker on its socket.
use crate::error::CONNECT;
use crate::layout::{Header, Kind};
use crate::limits::{ANSWER_MS, CONNECT_PAUSE_MS, ERRNO_MAX, TEXT_MAX};
use crate::protocol::{Answer, Coalescing, MESSAGE, Operation, Request};
use crate::queue::Queue;
use crate::region::Region;
use crate::{Error, Form};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use sys::{Errno, Shared, passing};

/// Parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Kind of queue.
    pub kind: Kind,
    /// Entries of either queue; one less can be in flight.
    pub entries: u16,
    /// Data memory that the broker makes, bytes; 0: none.
    pub data_bytes: u64,
    /// When a `user_irq` queue is interrupted.
    pub coalescing: Coalescing,
    /// How data pointers are built.
    pub form: Form,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kind: Kind::UserPoll,
            entries: 128,
            data_bytes: 1 << 20,
            coalescing: Coalescing::default(),
            form: Form::Auto,
        }
    }
}

/// Properties of a namespace, for this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// log2 of the block size.
    pub block_shift: u8,
    /// Blocks.
    pub blocks: u64,
    /// Changes are refused.
    pub read_only: bool,
}

/// Identity that a namespace shows: where all of it agrees, other paths lead to the same data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NQN of the subsystem.
    pub subsystem: String,
    /// Identifier of the controller in that.
    pub controller: u16,
    /// NGUID; zeroes: it has none.
    pub nguid: [u8; 16],
    /// UUID; zeroes: it has none.
    pub uuid: [u8; 16],
}

impl Identity {
    /// As the socket has it: NGUID and UUID in hexadecimal digits, and the NQN.
    pub fn emit(&self) -> String {
        let [nguid, uuid] = [self.nguid, self.uuid].map(u128::from_be_bytes);
        format!("{nguid:032x} {uuid:032x} {}", self.subsystem)
    }

    /// From a text, which may be anything.
    pub fn parse(controller: u16, text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let mut number = || u128::from_str_radix(words.next()?, 16).ok();
        let (nguid, uuid) = (number()?.to_be_bytes(), number()?.to_be_bytes());
        let subsystem = words.next()?.to_owned();
        let is_name = !subsystem.is_empty() && !subsystem.contains(char::is_control);
        is_name.then_some(Self {
            subsystem,
            controller,
            nguid,
            uuid,
        })
    }
}

/// A connection to the broker: one queue.
///
/// Answers come in the order of requests, and nothing else says which is whose. So one request at a
/// time, and none behind one whose answer was not heard to its end: that one may come yet.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    /// How long for an answer with all that belongs to it.
    patience: Duration,
    in_step: bool,
}

impl Connection {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            patience: Duration::from_millis(ANSWER_MS as u64),
            in_step: true,
        }
    }

    pub(crate) fn open(path: &Path) -> Result<Self, Error> {
        Self::open_within(path, Duration::from_millis(ANSWER_MS as u64))
    }

    /// A server that hangs takes no connections, and once its backlog is full a further connect
    /// blocks in the kernel: so it is repeated without blocking instead.
    fn open_within(path: &Path, at_most: Duration) -> Result<Self, Error> {
        let failed = |source| Error::system(CONNECT, source);
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.and_then(sys::os::aside).map_err(failed)?;
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        let begun = Instant::now();
        loop {
            match rustix::net::connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::AGAIN | Errno::INTR) if begun.elapsed() < at_most => {
                    std::thread::sleep(Duration::from_millis(CONNECT_PAUSE_MS));
                }
                Err(Errno::AGAIN | Errno::INTR) => return Err(failed(Errno::TIMEDOUT)),
                Err(error) => return Err(failed(error)),
            }
        }
        rustix::io::ioctl_fionbio(&socket, false).map_err(failed)?;
        Ok(Self::new(socket))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether the next answer will be that of the next request.
    ///
    /// # Errors
    /// [`Error::OutOfStep`].
    pub(crate) fn is_in_step(&self) -> Result<(), Error> {
        match self.in_step {
            true => Ok(()),
            false => Err(Error::OutOfStep),
        }
    }

    /// Asks, and waits for the answer and what comes with it.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
        what: &'static str,
    ) -> Result<(Answer, Vec<OwnedFd>, String), Error> {
        self.is_in_step()?;
        let asked = self.exchange(request, passed, what);
        self.in_step = matches!(asked, Ok(_) | Err(Error::Refused { .. }));
        asked
    }

    fn exchange(
        &self,
        request: &Request,
        passed: &[BorrowedFd<'_>],
        what: &'static str,
    ) -> Result<(Answer, Vec<OwnedFd>, String), Error> {
        let sent = passing::send(&self.socket, &request.emit(), passed, true);
        let sent = sent.map_err(|source| Error::system("ask the broker", source));
        match sent {
            Ok(MESSAGE) => {}
            // It may have said why, before it was asked.
            Ok(_) | Err(Error::Gone) => {}
            Err(error) => return Err(error),
        }
        let (mut descriptors, end) = (Vec::new(), Instant::now() + self.patience);
        let mut bytes = [0; MESSAGE];
        self.receive(&mut bytes, &mut descriptors, end)?;
        let answer = Answer::parse(&bytes);
        let asked = request.operation;
        if !asked.is_some_and(|operation| answer.answers(operation)) && !answer.turns_away() {
            return Err(Error::Protocol("it answers something else"));
        }
        let text = usize::try_from(answer.text_bytes()).ok();
        let Some(text) = text.filter(|&bytes| bytes <= TEXT_MAX) else {
            return Err(Error::Protocol("a text without end"));
        };
        let mut bytes = vec![0; text];
        self.receive(&mut bytes, &mut descriptors, end)?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if answer.error == 0 {
            return Ok((answer, descriptors, text));
        }
        let errno = errno(answer.error).ok_or(Error::Protocol("an error that none is"))?;
        Err(Error::Refused {
            operation: what,
            errno,
            text: words(&text),
        })
    }

    fn namespace(&mut self, nsid: u32) -> Result<Namespace, Error> {
        let request = Request::new(Operation::Namespace, nsid, 0, 0, 0);
        let (answer, _, _) = self.ask(&request, &[], "show a namespace")?;
        let block_shift = u8::try_from(answer.a)
            .ok()
            .filter(|it| (9..=16).contains(it));
        Ok(Namespace {
            block_shift: block_shift.ok_or(Error::Protocol("a block size that none has"))?,
            blocks: answer.c,
            read_only: answer.b & 1 != 0,
        })
    }

    /// A namespace, and what it shows of itself.
    fn show(&mut self, nsid: u32) -> Result<(Namespace, Option<Identity>), Error> {
        let namespace = self.namespace(nsid)?;
        let request = Request::new(Operation::Identity, nsid, 0, 0, 0);
        match self.ask(&request, &[], "identify a namespace") {
            Ok((answer, _, text)) => {
                let controller = u16::try_from(answer.a).ok();
                let identity = controller.and_then(|it| Identity::parse(it, &text));
                let identity = identity.ok_or(Error::Protocol("an identity that can't be"))?;
                Ok((namespace, Some(identity)))
            }
            Err(Error::Refused { errno, .. }) if errno == Errno::NODATA => Ok((namespace, None)),
            Err(error) => Err(error),
        }
    }

    /// Receives exactly so many bytes by `end`.
    fn receive(
        &self,
        bytes: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
        end: Instant,
    ) -> Result<(), Error> {
        let failed = |source| Error::system("hear from the broker", source);
        let mut have = 0;
        while have < bytes.len() {
            let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| failed(Errno::INVAL))?;
            match poll(&mut fds, Some(&left)) {
                Ok(0) => return Err(failed(Errno::TIMEDOUT)),
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(failed(error)),
            }
            match passing::receive(&self.socket, &mut bytes[have..], descriptors, false) {
                Ok(0) => return Err(Error::Gone),
                Ok(count) => have += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(())
    }
}

/// An error number, if it is one of Linux.
fn errno(number: u32) -> Option<Errno> {
    let number = i32::try_from(number).ok()?;
    (1..=ERRNO_MAX)
        .contains(&number)
        .then(|| Errno::from_raw_os_error(number))
}

/// A broker's text, without control characters that would affect a terminal.
fn words(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// All queues of a broker, as JSON.
///
/// # Errors
/// No server answers there.
pub fn list(path: &Path) -> Result<String, Error> {
    let request = Request::new(Operation::List, 0, 0, 0, 0);
    let (_, _, text) = Connection::open(path)?.ask(&request, &[], "list its queues")?;
    Ok(text)
}

/// Returns the properties of a namespace, and the identity that it shows, if any; without a queue.
///
/// # Errors
/// No server answers there, or there is no such namespace for this client (ENOENT).
pub fn show(path: &Path, nsid: u32) -> Result<(Namespace, Option<Identity>), Error> {
    Connection::open(path)?.show(nsid)
}

impl Queue {
    /// Opens a queue of the broker whose socket is at `path`.
    ///
    /// # Errors
    /// No server answers there; the broker refuses: EBUSY (all queues of that kind are in use),
    /// EACCES (not for this user), EINVAL (entries or memory that it doesn't have).
    pub fn open(path: &Path, options: &Options) -> Result<Self, Error> {
        let mut connection = Connection::open(path)?;
        let kind = options.kind;
        let request = Request::new(
            Operation::Open,
            kind.number(),
            options.entries.into(),
            options.data_bytes,
            options.coalescing.emit(),
        );
        let (answer, descriptors, _) = connection.ask(&request, &[], "open a queue")?;
        let mut descriptors = descriptors.into_iter();
        let lacks = Error::Protocol("a descriptor is missing");
        let ring = descriptors.next().ok_or(lacks.clone())?;
        let kick = descriptors.next().ok_or(lacks.clone())?;
        let interrupt = match kind {
            Kind::UserPoll => None,
            Kind::UserIrq => Some(descriptors.next().ok_or(lacks.clone())?),
        };
        let bytes = usize::try_from(answer.c).map_err(|_| Error::Protocol("too much memory"))?;
        let memory = Shared::map(&ring, bytes)?;
        let data = match options.data_bytes {
            0 => None,
            bytes => Some(region(descriptors.next().ok_or(lacks)?, bytes, answer.d)?),
        };
        let header = Header::load(&memory).ok_or(Error::Protocol("no queue in the memory"))?;
        if header.kind != kind || header.layout.entries() != options.entries {
            return Err(Error::Protocol("another queue than was asked for"));
        }
        let held = crate::queue::Held {
            connection,
            ring,
            kick,
            interrupt,
            data,
        };
        Ok(Self::new(held, Arc::new(memory), header, options.form))
    }

    /// Returns the properties of a namespace.
    ///
    /// # Errors
    /// There is none for this client (ENOENT). As of all requests on the socket:
    /// [`Error::OutOfStep`] behind one that was not answered.
    pub fn namespace(&mut self, nsid: u32) -> Result<Namespace, Error> {
        self.connection().namespace(nsid)
    }

    /// Returns the properties of a namespace, and the identity that it shows, if any, from the
    /// server that executes this queue's commands.
    ///
    /// # Errors
    /// As [`show`].
    pub fn show(&mut self, nsid: u32) -> Result<(Namespace, Option<Identity>), Error> {
        self.connection().show(nsid)
    }

    /// More memory for commands: a new memory file of so many bytes.
    ///
    /// # Errors
    /// The system has none; the broker refuses: ENOSPC (as many regions as a queue has), EINVAL.
    pub fn register(&mut self, bytes: u64) -> Result<Region, Error> {
        let file = sys::memory_file("braid-queue-data", bytes)?;
        let len = usize::try_from(bytes).map_err(|_| Error::system("mmap", Errno::NOMEM))?;
        // Here, before the broker does: so its pages count as this process's (`memory.max`).
        Shared::map(&file, len)?.populate(0, len)?;
        self.register_file(file, bytes)
    }

    /// More memory for commands: the first bytes of a memory file of the caller's, which can't
    /// shrink (`F_SEAL_SHRINK`).
    ///
    /// # Errors
    /// As [`Self::register`]; EPERM: it is not sealed.
    pub fn register_file(&mut self, file: OwnedFd, bytes: u64) -> Result<Region, Error> {
        let request = Request::new(Operation::Register, 0, 0, bytes, 0);
        let passed = [file.as_fd()];
        let asked = self.connection().ask(&request, &passed, "register memory");
        let address = asked?.0.c;
        region(file, bytes, address)
    }

    /// The broker lets go of memory that was registered, when its last command has ended.
    ///
    /// # Errors
    /// There is no such region (ENOENT).
    pub fn unregister(&mut self, region: &Region) -> Result<(), Error> {
        let request = Request::new(Operation::Unregister, 0, 0, region.address, 0);
        let asked = self.connection().ask(&request, &[], "unregister memory");
        asked.map(drop)
    }
}

pub(crate) fn region(file: OwnedFd, bytes: u64, address: u64) -> Result<Region, Error> {
    let len = usize::try_from(bytes).map_err(|_| Error::system("mmap", Errno::NOMEM))?;
    let shared = Shared::map(&file, len)?;
    shared.prefer_huge();
    Ok(Region {
        shared: Arc::new(shared),
        file: Arc::new(file),
        address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, SHAPES};

    /// A wait inside the call could not be ended.
    #[test]
    fn a_server_whose_backlog_is_full_keeps_nobody_in_a_call() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("q.sock");
        let flags = SocketFlags::CLOEXEC;
        let kind = (AddressFamily::UNIX, SocketType::STREAM);
        let listener = rustix::net::socket_with(kind.0, kind.1, flags, None).unwrap();
        let address = SocketAddrUnix::new(&path).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let soon = Duration::from_millis(30);
        let mut waiting = Vec::new();
        let refused = loop {
            match Connection::open_within(&path, soon) {
                Ok(connection) => waiting.push(connection),
                Err(error) => break error,
            }
            assert!(waiting.len() < 100, "so many wait for it");
        };
        let timed_out = Error::system(CONNECT, Errno::TIMEDOUT);
        assert_eq!(refused, timed_out);
        assert!(refused.advice().contains("it hangs"));
        // One connection is accepted: there is room.
        let heard = rustix::net::accept(&listener).unwrap();
        let opened = Connection::open_within(&path, Duration::from_secs(60)).unwrap();
        drop((heard, opened));
    }

    /// A connection, at whose other end the test is the broker.
    fn connected() -> (Connection, OwnedFd) {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut connection = Connection::new(ours.into());
        connection.patience = Duration::ZERO;
        (connection, theirs.into())
    }

    fn answer(broker: &OwnedFd, request: &Request, address: u64) {
        let answer = Answer {
            c: address,
            ..Answer::to(request)
        };
        assert_eq!(
            rustix::io::write(broker, &answer.emit()),
            Ok(MESSAGE),
            "a socket has room for it"
        );
    }

    /// A late answer of a read by another request's address would be another request's data.
    #[test]
    fn an_answer_that_comes_late_is_never_taken_for_another_requests() {
        let (mut connection, broker) = connected();
        let request = Request::new(Operation::Register, 0, 0, 4096, 0);
        let register = |connection: &mut Connection| connection.ask(&request, &[], "register");
        let hangs = register(&mut connection).unwrap_err();
        let timed_out = Error::system("hear from the broker", Errno::TIMEDOUT);
        assert_eq!(hangs, timed_out);
        // It goes on, and answers the request.
        answer(&broker, &request, 0xa);
        answer(&broker, &request, 0xb);
        for _ in 0..2 {
            assert_eq!(register(&mut connection).unwrap_err(), Error::OutOfStep);
        }
        // As behind an answer that is none; but not behind a refusal.
        let (mut connection, broker) = connected();
        answer(&broker, &Request::new(Operation::List, 0, 0, 0, 0), 0);
        let other = register(&mut connection).unwrap_err();
        assert_eq!(other, Error::Protocol("it answers something else"));
        assert_eq!(register(&mut connection).unwrap_err(), Error::OutOfStep);
        let (mut connection, broker) = connected();
        let refusal = Answer {
            error: 28,
            ..Answer::to(&request)
        };
        rustix::io::write(&broker, &refusal.emit()).unwrap();
        let refused = register(&mut connection).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
        answer(&broker, &request, 0xc);
        assert_eq!(register(&mut connection).unwrap().0.c, 0xc);
    }

    /// A broker can send any number as an error, and one that is no error number ends the process.
    #[test]
    fn a_refusal_is_one_of_the_systems_errors_and_its_words_do_nothing_to_a_terminal() {
        let refused = |error: u32, text: &[u8]| {
            let (mut connection, broker) = connected();
            let request = Request::new(Operation::List, 0, 0, 0, 0);
            let answer = Answer {
                error,
                d: text.len() as u64,
                ..Answer::to(&request)
            };
            let bytes = [&answer.emit()[..], text].concat();
            rustix::io::write(&broker, &bytes).unwrap();
            connection.ask(&request, &[], "list").unwrap_err()
        };
        for number in [4096, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
            let none = Error::Protocol("an error that none is");
            assert_eq!(refused(number, b""), none, "{number}");
        }
        let said = refused(28, b"\x1b[2Jno\0 room\x07").to_string();
        assert!(said.ends_with(": [2Jno  room"), "{said:?}");
        let said = refused(28, b"").to_string();
        assert!(
            said.ends_with(": No space left on device (os error 28)"),
            "{said}"
        );
    }

    #[test]
    fn an_answer_that_drips_is_not_waited_for_longer_than_another() {
        let (mut connection, broker) = connected();
        connection.patience = Duration::from_millis(100);
        let request = Request::new(Operation::List, 0, 0, 0, 0);
        let answer = Answer {
            d: 400,
            ..Answer::to(&request)
        };
        let bytes = [&answer.emit()[..], &[b' '; 400]].concat();
        let drips = std::thread::spawn(move || {
            let sent = |byte: &u8| {
                std::thread::sleep(Duration::from_millis(5));
                rustix::net::send(&broker, &[*byte], rustix::net::SendFlags::NOSIGNAL).is_ok()
            };
            bytes.iter().all(sent)
        });
        let timed_out = Error::system("hear from the broker", Errno::TIMEDOUT);
        let heard = connection.ask(&request, &[], "list");
        assert_eq!(heard.unwrap_err(), timed_out);
        drop(connection);
        assert!(!drips.join().unwrap(), "it was not all sent");
    }

    #[test]
    fn a_queue_whose_broker_owes_an_answer_is_not_passed_on() {
        let (connection, _broker) = connected();
        let layout = Layout::new(2).unwrap();
        let bytes = layout.bytes();
        let ring = sys::memory_file("test", bytes as u64).unwrap();
        let memory = Shared::map(&ring, bytes).unwrap();
        let header = Header {
            layout,
            kind: Kind::UserPoll,
            number: 1,
            transfer_max: 4096,
            namespaces: 1,
            block_shifts: [9; SHAPES],
        };
        header.store(&memory);
        let held = crate::queue::Held {
            connection,
            kick: ring.try_clone().unwrap(),
            ring,
            interrupt: None,
            data: None,
        };
        let queue = Queue::new(held, Arc::new(memory), header, Form::Auto);
        let parts = queue.into_parts().map_err(|refused| refused.0).unwrap();
        let mut queue = Queue::from_parts(parts).unwrap();
        assert!(queue.namespace(1).is_err(), "it hangs");
        let refused = queue.into_parts().map_err(|refused| refused.0).unwrap_err();
        assert_eq!(refused, Error::OutOfStep);
    }

    #[test]
    fn an_identity_survives_the_socket_and_what_is_none_is_refused() {
        let identity = Identity {
            subsystem: "nqn.2026-01.org.example:a b".to_owned(),
            controller: 7,
            nguid: std::array::from_fn(|n| n as u8),
            uuid: [0xab; 16],
        };
        assert_eq!(Identity::parse(7, &identity.emit()), Some(identity));
        for text in ["", "0 0", "0 0 ", "x 0 nqn", "0 -1 nqn"] {
            assert_eq!(Identity::parse(7, text), None, "{text:?}");
        }
    }
}
