//! What clients ask for: queues, memory, what namespaces are like.
use super::Server;
use super::places::Place;
use crate::config::Grant;
use crate::lane::{Lane, Parts, Tally};
use crate::session::Session;
use crate::transfer::Region;
use crate::worker::Message;
use nvme::queue::check;
use queue::Coalescing;
use queue::layout::{Header, Kind, Layout, region_address, region_of};
use queue::limits::{REGIONS_MAX, TRANSFER_MAX};
use queue::protocol::{Answer, Request};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use sys::os::Event;
use sys::{Errno, Error, Interrupt, Shared, memory_file};

/// Why a request is refused.
pub struct Refusal(pub Errno, pub String);

pub fn refuse<T>(errno: Errno, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(errno, why.into()))
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error.source, error.to_string())
    }
}

impl Server {
    pub(super) fn open(
        &mut self,
        id: u64,
        session: &mut Session,
        request: &Request,
        answer: &mut Answer,
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let (header, grant) = self.admit(session, request)?;
        let made = make(&header, request.c, Coalescing::parse(request.d))?;
        (answer.a, answer.b) = (header.number, header.namespaces);
        answer.c = header.layout.bytes() as u64;
        answer.d = if request.c > 0 { region_address(1) } else { 0 };
        let worker = (0..self.crews.len()).min_by_key(|&at| self.crews[at].queues);
        let worker = worker.unwrap_or(0);
        let tally = Arc::new(Tally::default());
        let lane = Lane::new(Parts {
            id,
            header,
            memory: made.memory,
            kick: made.kick,
            interrupt: made.interrupt,
            data: made.data,
            views: grant.views(&self.config.namespaces),
            trust: self.config.trust,
            tally: Arc::clone(&tally),
        });
        let place = Place {
            number: header.number,
            kind: header.kind,
            entries: header.layout.entries(),
            uid: session.uid,
            worker,
            regions: if request.c > 0 { 0b11 } else { 0b1 },
            leaving: false,
            tally,
        };
        self.places.take(id, place);
        session.queue = Some(id);
        self.crews[worker].queues += 1;
        self.crews[worker].send(Message::Add(Box::new(lane)));
        Ok(made.passed)
    }

    /// What queue a client gets, and its rights on it.
    fn admit(&self, session: &Session, request: &Request) -> Result<(Header, Grant), Refusal> {
        let (uid, most) = (session.uid, self.config.region_bytes_max);
        if session.queue.is_some() {
            return refuse(Errno::ALREADY, "this connection has its queue");
        }
        let Some(grant) = self.config.rights.of(uid) else {
            let why = format!("user {uid} may not have queues here");
            return refuse(Errno::ACCESS, why);
        };
        let Some(kind) = Kind::from_number(request.a) else {
            let why = format!("there is no kind {} of queue", request.a);
            return refuse(Errno::INVAL, why);
        };
        let Some(layout) = Layout::new(request.b) else {
            let why = format!("{} entries: a queue has 2 to 4096", request.b);
            return refuse(Errno::INVAL, why);
        };
        if layout.entries() - 1 > grant.depth_max {
            let why = format!("user {uid} may have {} in flight at most", grant.depth_max);
            return refuse(Errno::ACCESS, why);
        }
        if request.c > most {
            let why = format!("memory has {most} bytes at most here");
            return refuse(Errno::INVAL, why);
        }
        if self.places.of_user(uid) >= grant.queues_max {
            let why = format!("user {uid} has all queues that it may have");
            return refuse(Errno::BUSY, why);
        }
        let Some(number) = self.places.room(kind) else {
            let (all, name) = (self.config.queues(kind), kind.name());
            let mut why = format!("all {all} queues of kind {name} are in use");
            let leaving = self.places.leaving(kind);
            if leaving > 0 {
                why += &format!(", {leaving} by commands on files that outlive their clients");
            }
            return refuse(Errno::BUSY, why);
        };
        let header = Header {
            layout,
            kind,
            number,
            transfer_max: TRANSFER_MAX,
            namespaces: self.config.namespaces.len() as u32,
        };
        Ok((header, grant.clone()))
    }

    pub(super) fn register(
        &mut self,
        session: &Session,
        request: &Request,
        descriptors: Vec<OwnedFd>,
        answer: &mut Answer,
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let Some((id, place)) = self.place(session) else {
            return refuse(Errno::INVAL, "open a queue first");
        };
        let Some(number) = (1..REGIONS_MAX).find(|at| place.regions & 1 << at == 0) else {
            return refuse(Errno::NOSPC, "a queue has 15 regions of memory at most");
        };
        let Some(file) = descriptors.first() else {
            return refuse(Errno::BADF, "a memory file has to come with it");
        };
        let bytes = usize::try_from(request.c).unwrap_or(usize::MAX);
        if request.c > self.config.region_bytes_max {
            return refuse(
                Errno::INVAL,
                format!(
                    "memory has {} bytes at most here",
                    self.config.region_bytes_max
                ),
            );
        }
        let memory = match Shared::map(file, bytes) {
            Err(error) if error.operation == "seals" => {
                return refuse(error.source, "seal the memory file against shrinking first");
            }
            mapped => mapped?,
        };
        let region = Region {
            memory: Arc::new(memory),
            at: 0,
            len: bytes,
        };
        answer.c = region_address(number);
        self.set_region(id, number, Some(region));
        Ok(Vec::new())
    }

    pub(super) fn unregister(
        &mut self,
        session: &Session,
        request: &Request,
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let Some((id, place)) = self.place(session) else {
            return refuse(Errno::INVAL, "open a queue first");
        };
        let regions = place.regions;
        match region_of(request.c) {
            Some((number @ 1.., 0)) if regions & 1 << number != 0 => {
                self.set_region(id, number, None);
                Ok(Vec::new())
            }
            _ => refuse(Errno::NOENT, "no memory is registered there"),
        }
    }

    fn set_region(&mut self, id: u64, number: usize, region: Option<Region>) {
        let Some(place) = self.places.find_mut(id) else {
            return;
        };
        match region {
            Some(_) => place.regions |= 1 << number,
            None => place.regions &= !(1 << number),
        }
        self.crews[place.worker].send(Message::Region(id, number, region));
    }

    fn place(&self, session: &Session) -> Option<(u64, &Place)> {
        let id = session.queue?;
        Some((id, self.places.find(id)?))
    }

    pub(super) fn namespace(
        &self,
        session: &Session,
        request: &Request,
        answer: &mut Answer,
    ) -> Result<Vec<OwnedFd>, Refusal> {
        let view = self.view(session, request.a)?;
        answer.a = view.block_shift.into();
        answer.b = view.read_only.into();
        answer.c = view.blocks;
        Ok(Vec::new())
    }

    pub(super) fn identity(
        &self,
        session: &Session,
        request: &Request,
    ) -> Result<queue::Identity, Refusal> {
        self.view(session, request.a)?;
        let shown = self.config.identity.as_ref();
        match shown.and_then(|it| it.of(request.a as usize - 1)) {
            Some(identity) => Ok(identity),
            None => refuse(Errno::NODATA, "namespaces show nothing of themselves here"),
        }
    }

    /// A namespace as this client has it.
    fn view(&self, session: &Session, nsid: u32) -> Result<check::Namespace, Refusal> {
        let index = (nsid as usize).wrapping_sub(1);
        let grant = self.config.rights.of(session.uid);
        let views = grant.map(|grant| grant.views(&self.config.namespaces));
        match views.and_then(|views| views.get(index).copied().flatten()) {
            Some(view) => Ok(view),
            None => refuse(
                Errno::NOENT,
                format!("there is no namespace {nsid} for user {}", session.uid),
            ),
        }
    }
}

/// What was made for a queue.
struct Made {
    memory: Arc<Shared>,
    kick: OwnedFd,
    interrupt: Option<(Interrupt, Coalescing)>,
    data: Option<Region>,
    /// What the client gets.
    passed: Vec<OwnedFd>,
}

fn make(header: &Header, data_bytes: u64, coalescing: Coalescing) -> Result<Made, Error> {
    let bytes = header.layout.bytes();
    let ring = memory_file("braid-queue", bytes as u64)?;
    let memory = Arc::new(Shared::map(&ring, bytes)?);
    header.store(&memory);
    let event = |event: Result<Event, Errno>| event.and_then(|event| event.try_clone());
    let system = |source| Error {
        operation: "eventfd",
        source,
    };
    let kick = event(Event::new()).map_err(system)?;
    let theirs = rustix::io::fcntl_dupfd_cloexec(&kick, 0).map_err(system)?;
    let mut passed = vec![ring, theirs];
    let interrupt = match header.kind {
        Kind::UserPoll => None,
        Kind::UserIrq => {
            let interrupt = Interrupt::new()?;
            let theirs = rustix::io::fcntl_dupfd_cloexec(interrupt.event(), 0);
            passed.push(theirs.map_err(system)?);
            Some((interrupt, coalescing))
        }
    };
    let data = match data_bytes {
        0 => None,
        _ => {
            let file = memory_file("braid-queue-data", data_bytes)?;
            let len = usize::try_from(data_bytes).unwrap_or(usize::MAX);
            let memory = Shared::map(&file, len)?;
            memory.prefer_huge();
            passed.push(file);
            let memory = Arc::new(memory);
            Some(Region { memory, at: 0, len })
        }
    };
    Ok(Made {
        memory,
        kick,
        interrupt,
        data,
        passed,
    })
}
