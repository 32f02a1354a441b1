//! The thread that speaks to an engine: one connection, tried again when it is lost.
use super::{Order, VolumeAddress};
use crate::limits::{VOLUME_DISCONNECT_NS, VOLUME_OUT_BYTES, VOLUME_REQUESTS_MAX, VOLUME_RETRY_NS};
use crate::transfer::Door;
use nbd::client::{CommandError, Completed, Config, Event, Info, Session, SubmitError};
use nbd::{Kind, Request};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::Duration;
use sys::os::{Event as Bell, now_ns};
use sys::{Errno, Shared};

/// Parts of it.
pub struct Plan {
    pub address: VolumeAddress,
    /// Of the export.
    pub name: String,
    pub inbox: Receiver<Order>,
    /// Raised behind each order.
    pub event: Arc<Bell>,
    pub losses: Arc<AtomicU64>,
    /// Result of the first connection.
    pub told: Sender<Result<Info, String>>,
}

/// See the module.
pub struct Link {
    plan: Plan,
    line: Option<Line>,
    waiting: VecDeque<Order>,
    /// By token.
    under_way: Vec<Option<Order>>,
    /// Properties of the export at first.
    info: Option<Info>,
    /// Not to be tried before.
    retry_ns: u64,
    /// No lane sends orders any more.
    over: bool,
    received: Vec<u8>,
}

/// A connection.
struct Line {
    socket: OwnedFd,
    session: Session,
    /// The handshake is over.
    ready: bool,
    /// The engine takes nothing more.
    ending: bool,
    /// Our goodbye is in `out`, or has gone.
    goodbye: bool,
    out: Vec<u8>,
    sent: usize,
}

impl Line {
    /// For more that is to go out.
    fn has_room(&self) -> bool {
        self.out.len() - self.sent < VOLUME_OUT_BYTES
    }

    /// Sends as much as the socket takes now.
    fn send_out(&mut self) -> Result<(), Lost> {
        while self.sent < self.out.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match send(&self.socket, &self.out[self.sent..], flags) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(Lost(format!("send: {error}"))),
            }
        }
        // A connection that is always busy may never have sent all.
        if self.sent == self.out.len() || self.sent >= VOLUME_OUT_BYTES {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        Ok(())
    }
}

/// The connection is over.
struct Lost(String);

impl Link {
    pub fn new(plan: Plan) -> Self {
        Self {
            plan,
            line: None,
            waiting: VecDeque::new(),
            under_way: std::iter::repeat_with(|| None)
                .take(VOLUME_REQUESTS_MAX.into())
                .collect(),
            info: None,
            retry_ns: 0,
            over: false,
            received: vec![0; 128 << 10],
        }
    }

    /// Serves orders until the last owner of the volume is gone. `_alive` ends with the thread.
    pub fn run(mut self, _alive: Sender<Infallible>) {
        loop {
            self.read_orders();
            let is_idle = self.waiting.is_empty() && self.under_way.iter().all(Option::is_none);
            if self.over && is_idle {
                return self.disconnect();
            }
            if self.line.is_none() && (self.info.is_none() || !self.waiting.is_empty()) {
                self.connect();
            }
            let stepped = match self.line.take() {
                Some(mut line) => {
                    let stepped = self.step(&mut line);
                    self.line = Some(line);
                    stepped
                }
                None if self.info.is_none() => return,
                None => self.rest(None),
            };
            if let Err(lost) = stepped {
                self.lose(&lost);
            }
        }
    }

    fn read_orders(&mut self) {
        self.plan.event.lower();
        loop {
            match self.plan.inbox.try_recv() {
                Ok(order) => self.waiting.push_back(order),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.over = true;
                    return;
                }
            }
        }
    }

    /// Tries to; what waits ends where it can't be.
    fn connect(&mut self) {
        let now_ns = now_ns();
        if now_ns >= self.retry_ns {
            match dial(&self.plan.address) {
                Ok(socket) => {
                    let mut session = Session::new(Config {
                        export: self.plan.name.clone(),
                        requests_max: VOLUME_REQUESTS_MAX,
                        ..Config::default()
                    });
                    session.handle_connected(now_ns);
                    self.line = Some(Line {
                        socket,
                        session,
                        ready: false,
                        ending: false,
                        goodbye: false,
                        out: Vec::new(),
                        sent: 0,
                    });
                    return;
                }
                Err(error) => {
                    self.retry_ns = now_ns + VOLUME_RETRY_NS;
                    let hint = "start the engine first: braid run";
                    self.report(&format!("cannot connect: {error} ({hint})"));
                }
            }
        }
        self.fail_waiting();
    }

    fn fail_waiting(&mut self) {
        for order in self.waiting.drain(..) {
            order.end(Err(Errno::NOTCONN));
        }
    }

    /// To whoever waits for the first connection, else to the log.
    fn report(&self, why: &str) {
        if self.info.is_some() || self.plan.told.send(Err(why.into())).is_err() {
            tracing::warn!("volume nbd:{}: {why}", self.plan.address);
        }
    }

    /// The connection is over. A request under way may have been done, or may be done later.
    fn lose(&mut self, lost: &Lost) {
        self.report(&lost.0);
        // First: a flush that ends later is to know of it.
        if self.line.take().is_some_and(|line| line.ready) {
            self.plan.losses.fetch_add(1, Ordering::AcqRel);
        }
        for order in self.under_way.iter_mut().filter_map(Option::take) {
            let is_change = order.kind.is_change();
            order.end(Err(if is_change { Errno::IO } else { Errno::NOTCONN }));
        }
        self.retry_ns = now_ns() + VOLUME_RETRY_NS;
        self.fail_waiting();
    }

    /// Ends the connection in order, with DISC. Nothing is under way: servers differ in what they
    /// do with requests that DISC overtakes.
    fn disconnect(&mut self) {
        let Some(mut line) = self.line.take().filter(|line| line.ready) else {
            return;
        };
        let until_ns = now_ns() + VOLUME_DISCONNECT_NS;
        line.session.disconnect();
        while self.listen(&mut line).is_ok() {
            self.gather(&mut line);
            // A session that is over already has no goodbye to say.
            if line.out.is_empty() || line.send_out().is_err() {
                return;
            }
            if line.out.is_empty() {
                continue;
            }
            let left_ns = until_ns.saturating_sub(now_ns());
            if left_ns == 0 {
                return;
            }
            let limit = Timespec {
                tv_sec: 0,
                tv_nsec: left_ns.min(999_999_999) as i64,
            };
            let mut fds = [PollFd::new(&line.socket, PollFlags::OUT)];
            if poll(&mut fds, Some(&limit)).is_err_and(|error| error != Errno::INTR) {
                return;
            }
        }
    }

    /// One round of everything, then rest until there is more.
    fn step(&mut self, line: &mut Line) -> Result<(), Lost> {
        self.submit(line);
        self.listen(line)?;
        self.gather(line);
        self.listen(line)?;
        line.send_out()?;
        if line.goodbye && line.out.is_empty() {
            return Err(Lost("the engine ends".into()));
        }
        self.rest(Some(&*line))?;
        if line.session.poll_timeout().is_some_and(|at| at <= now_ns()) {
            line.session.handle_timeout(now_ns());
        }
        self.receive(line)
    }

    /// Until there is an order, or the socket is ready.
    fn rest(&self, line: Option<&Line>) -> Result<(), Lost> {
        let mut limit = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let mut fds = vec![PollFd::new(&*self.plan.event, PollFlags::IN)];
        if let Some(line) = line {
            let mut what = PollFlags::IN;
            if line.sent < line.out.len() {
                what |= PollFlags::OUT;
            }
            // The rest of the orders has room now.
            let has_room = self.under_way.iter().any(Option::is_none);
            let may_go = line.ready && !line.ending && line.has_room();
            if !self.waiting.is_empty() && may_go && has_room {
                limit.tv_sec = 0;
            }
            fds.push(PollFd::new(&line.socket, what));
        }
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Lost(format!("poll: {error}"))),
        }
    }

    /// Gives orders to the engine, as far as it takes what they say: what the session or `out` has
    /// can't be taken back when its client lets go (T9).
    fn submit(&mut self, line: &mut Line) {
        while line.ready && !line.ending && line.has_room() {
            let Some(token) = self.under_way.iter().position(Option::is_none) else {
                return;
            };
            let Some(order) = self.waiting.pop_front() else {
                return;
            };
            if order.door.as_ref().is_some_and(Door::is_shut) {
                order.end(Err(Errno::CANCELED));
                continue;
            }
            let mut request = Request::new(token as u32, order.kind, order.offset, order.length);
            (request.fua, request.no_hole) = (order.fua, order.no_hole);
            match line.session.submit(&request) {
                Ok(()) => {
                    self.under_way[token] = Some(order);
                    self.gather(line);
                }
                Err(SubmitError::Invalid(_)) => order.end(Err(Errno::OPNOTSUPP)),
                // Its connection will be over when what is under way has ended.
                Err(SubmitError::NotReady) => {
                    line.ending = true;
                    self.waiting.push_front(order);
                }
                Err(SubmitError::Full) => {
                    self.waiting.push_front(order);
                    return;
                }
            }
        }
    }

    /// Headers and payload that are to go out, up to a bound.
    fn gather(&mut self, line: &mut Line) {
        while line.has_room() {
            let Some(transmit) = line.session.poll_transmit(&mut line.out) else {
                return;
            };
            if let Some(payload) = transmit.payload {
                let at = line.out.len();
                line.out.resize(at + payload.len as usize, 0);
                if let Some(Some(order)) = self.under_way.get(payload.token as usize) {
                    let (from, bytes) = (payload.offset as usize, &mut line.out[at..]);
                    order.each(from, bytes.len(), |memory, place, range| {
                        memory.read(place, &mut bytes[range]);
                    });
                }
                line.session.handle_sent(payload.token);
            }
        }
    }

    fn receive(&mut self, line: &mut Line) -> Result<(), Lost> {
        let mut received = std::mem::take(&mut self.received);
        let heard = match recv(&line.socket, &mut received[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Lost("the engine has closed the connection".into())),
            Ok((count, _)) => self.hear(line, &received[..count]),
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(Lost(format!("receive: {error}"))),
        };
        self.received = received;
        heard.and_then(|()| self.listen(line)).map(drop)
    }

    fn hear(&mut self, line: &mut Line, bytes: &[u8]) -> Result<(), Lost> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = match line.session.placement() {
                Some(placed) => {
                    let count = (placed.len as usize).min(rest.len());
                    if let Some(Some(order)) = self.under_way.get(placed.token as usize) {
                        order.each(placed.offset as usize, count, |memory, place, range| {
                            memory.write(place, &rest[range]);
                        });
                    }
                    line.session.handle_payload(count as u32, 0);
                    count
                }
                None => line.session.handle_bytes(rest, now_ns()),
            };
            rest = &rest[count..];
            if count == 0 && line.session.placement().is_none() && !self.listen(line)? {
                return Err(Lost("the engine says what nobody understands".into()));
            }
        }
        Ok(())
    }

    /// Handles events of the session; whether there was anything.
    fn listen(&mut self, line: &mut Line) -> Result<bool, Lost> {
        let mut any = false;
        while let Some(event) = line.session.poll_event() {
            any = true;
            match event {
                Event::Ready(info) => self.greet(line, info)?,
                Event::Zero { token, offset, len } => {
                    if let Some(Some(order)) = self.under_way.get(token as usize) {
                        order.each(offset as usize, len as usize, |memory, place, range| {
                            memory.write(place, &vec![0; range.len()]);
                        });
                    }
                }
                // The connection's end, which follows, decides what it means.
                Event::Completed(Completed {
                    result: Err(CommandError::Lost),
                    ..
                }) => {}
                Event::Completed(Completed { token, result }) => {
                    if let Some(order) = self.under_way.get_mut(token as usize)
                        && let Some(order) = order.take()
                    {
                        if order.kind == Kind::Flush && result.is_err() {
                            // Told here once: the queues of every thread are to know of it.
                            self.plan.losses.fetch_add(1, Ordering::AcqRel);
                        }
                        order.end(result.map_err(errno));
                    }
                }
                Event::Failed(error) => return Err(Lost(error.to_string())),
                Event::Close => line.goodbye = true,
                Event::Transmit | Event::Resume => {}
            }
        }
        Ok(any)
    }

    /// It must be the same as before, or have grown: its namespace stays as large as it was.
    fn greet(&mut self, line: &mut Line, info: Info) -> Result<(), Lost> {
        let serves = |first: &Info| {
            let size = first.size;
            info.size >= size && *first == Info { size, ..info }
        };
        match &self.info {
            Some(first) if !serves(first) => {
                return Err(Lost(
                    "the export is smaller than it was, or another: start the queue server anew"
                        .into(),
                ));
            }
            Some(_) => tracing::info!("volume nbd:{} is back", self.plan.address),
            None => {
                self.info = Some(info);
                let _ = self.plan.told.send(Ok(info));
            }
        }
        line.ready = true;
        Ok(())
    }
}

impl Order {
    /// Calls `visit` with each piece of memory of a range of its data: the memory, the place there,
    /// and the piece of the range.
    fn each(
        &self,
        offset: usize,
        len: usize,
        mut visit: impl FnMut(&Shared, usize, std::ops::Range<usize>),
    ) {
        let offset = self.skip + offset;
        let (mut begin, end) = (0, offset + len);
        for (memory, part) in &self.parts {
            let here = part.len as usize;
            let (first, last) = (offset.max(begin), end.min(begin + here));
            if first < last {
                visit(
                    memory,
                    part.at + first - begin,
                    first - offset..last - offset,
                );
            }
            begin += here;
        }
    }
}

fn errno(error: CommandError) -> Errno {
    match error {
        // Refused: not done.
        CommandError::Server(nbd::Errno::Shutdown) => Errno::NOTCONN,
        CommandError::Server(nbd::Errno::Perm) => Errno::PERM,
        CommandError::Server(nbd::Errno::NoSpc) => Errno::NOSPC,
        CommandError::Server(nbd::Errno::NotSup) => Errno::OPNOTSUPP,
        _ => Errno::IO,
    }
}

fn dial(address: &VolumeAddress) -> std::io::Result<OwnedFd> {
    match address {
        VolumeAddress::Unix(path) => {
            // One that waits for a place in the queue of an engine that hangs would wait for ever.
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            Ok(socket)
        }
        VolumeAddress::Tcp(host, port) => {
            let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, Duration::from_nanos(VOLUME_RETRY_NS)) {
                    Ok(stream) => {
                        stream.set_nodelay(true)?;
                        // A host that is gone says nothing; its commands would wait for ever.
                        sys::os::set_short_keep_alive(&stream)?;
                        return Ok(stream.into());
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}
