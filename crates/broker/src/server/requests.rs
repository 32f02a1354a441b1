//! Requests of clients: queues, memory, namespaces.
use super::places::Place;
use super::{Server, Session};
use crate::config::Grant;
use crate::lane::{Lane, Parts, Tally};
use crate::limits::STUCK_PART;
use crate::messages::Message;
use crate::session::Brought;
use crate::transfer::Region;
use nvme::queue::check;
use queue::Coalescing;
use queue::layout::{Header, Kind, Layout, SHAPES, region_address, region_of};
use queue::limits::{REGIONS_MAX, TRANSFER_MAX};
use queue::protocol::{Answer, Request};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use sys::os::Event;
use sys::{Errno, Error, Interrupt, Shared, memory_file};

/// Why a request is refused.
pub struct Refusal {
    pub errno: Errno,
    pub why: String,
    /// For a moment only: its client's ear asks again.
    pub passes: bool,
}

impl Refusal {
    pub fn new(errno: Errno, why: impl Into<String>) -> Self {
        Self {
            errno,
            why: why.into(),
            passes: false,
        }
    }
}

pub fn refuse<T>(errno: Errno, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::new(errno, why))
}

/// Outcome of a request.
pub enum Outcome {
    /// It is answered, with descriptors, when this memory is allocated.
    Passed(Vec<OwnedFd>, Vec<Region>),
    /// It is answered with a text.
    Text(String),
    /// It is answered when the core says that it knows, and this memory is allocated.
    WhenKnown(Option<Region>),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::new(error.source, error.to_string())
    }
}

impl Server {
    pub(super) fn open(
        &mut self,
        id: u64,
        session: &mut Session,
        request: &Request,
        answer: &mut Answer,
    ) -> Result<Outcome, Refusal> {
        let (header, grant) = self.admit(session, request)?;
        let made = make(&header, request.c, Coalescing::parse(request.d))?;
        let memory = made.data.iter().cloned().collect();
        (answer.a, answer.b) = (header.number, header.namespaces);
        answer.c = header.layout.bytes() as u64;
        answer.d = if request.c > 0 { region_address(1) } else { 0 };
        let core = (0..self.cores.len()).min_by_key(|&at| self.cores[at].queues);
        let core = core.unwrap_or(0);
        let tally = Arc::new(Tally {
            uid: session.uid,
            pid: session.pid,
            since: Some(Instant::now()),
            ..Tally::default()
        });
        let mapped = made.data.iter().map(|it| Arc::downgrade(&it.memory));
        let mapped = mapped.collect();
        let lane = Lane::new(Parts {
            id,
            header,
            memory: made.memory,
            kick: made.kick,
            interrupt: made.interrupt,
            data: made.data,
            namespaces: Arc::clone(&self.namespaces),
            grant,
            trust: self.config.trust,
            tally: Arc::clone(&tally),
        });
        let place = Place {
            number: header.number,
            kind: header.kind,
            entries: header.layout.entries(),
            uid: session.uid,
            core,
            regions: if request.c > 0 { 0b11 } else { 0b1 },
            mapped,
            leaving: None,
            is_shown: false,
            tally,
            shut: lane.door().flag(),
        };
        self.places.take(id, place);
        session.queue = Some(id);
        self.cores[core].queues += 1;
        self.cores[core].send(Message::Add(Box::new(lane)));
        Ok(Outcome::Passed(made.passed, memory))
    }

    /// Queue that a client gets, and its rights on it.
    fn admit(&self, session: &Session, request: &Request) -> Result<(Header, Grant), Refusal> {
        let uid = session.uid;
        if session.queue.is_some() {
            return refuse(Errno::ALREADY, "this connection has its queue");
        }
        if self.cores.len() > 1 && self.places.has_unshown() {
            // It may be the next one of a client that is gone, and come to another core (T9).
            let why = "the server has not heard yet what a client that is gone left under way";
            return Err(Refusal {
                passes: true,
                ..Refusal::new(Errno::AGAIN, why)
            });
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
            let why = format!(
                "user {uid} may have {} in flight at most (its right: --allow \
                               depth=)",
                grant.depth_max
            );
            return refuse(Errno::ACCESS, why);
        }
        self.allow_memory(0, uid, request.c)?;
        if self.places.of_user(uid) >= grant.queues_max {
            let most = grant.queues_max;
            let why = format!(
                "user {uid} has all {most} queues that it may have (its right: \
                               --allow queues=)"
            );
            return refuse(Errno::BUSY, why);
        }
        let number = self.room(kind, uid)?;
        let header = Header {
            layout,
            kind,
            number,
            transfer_max: TRANSFER_MAX,
            namespaces: self.config.namespaces.len() as u32,
            block_shifts: shifts(&grant.views(&self.config.namespaces)),
        };
        Ok((header, grant.clone()))
    }

    /// The number of a queue that this user can have. A user that comes back again and again to
    /// storage that hangs takes a part of all only: the others may want other namespaces. Queues
    /// that have just been let go of count too, for they may be held; if they are not, it takes a
    /// moment.
    fn room(&self, kind: Kind, uid: u32) -> Result<u32, Refusal> {
        let (all, name) = (self.config.queues(kind), kind.name());
        let leaving = self.places.leaving_of(kind, uid);
        if leaving.count > 0 && leaving.count >= all.div_ceil(STUCK_PART) {
            let words = leaving.words(&self.config.namespaces);
            let why = format!("of the queues of kind {name} that user {uid} had {words}");
            return Err(Refusal {
                passes: !leaving.is_held(),
                ..Refusal::new(Errno::BUSY, why)
            });
        }
        self.places.room(kind).ok_or_else(|| {
            let mut why = format!("all {all} queues of kind {name} are in use");
            let stuck = self.places.stuck(kind);
            if stuck.count > 0 {
                why += &format!(", of which {}", stuck.words(&self.config.namespaces));
            }
            Refusal::new(Errno::BUSY, why)
        })
    }

    /// Whether a queue that has mapped so much, of this user, may have more.
    fn allow_memory(&self, own: u64, uid: u32, more: u64) -> Result<(), Refusal> {
        let most = self.config.memory_max;
        if more > most.saturating_sub(own) {
            let why = format!(
                "{more} bytes besides {own} that it has: memory of a queue has {most} bytes at \
                 most here (--memory-max)"
            );
            return refuse(Errno::INVAL, why);
        }
        let grant = self.config.rights.of(uid);
        let most = grant.map_or(0, |grant| grant.memory_max);
        let all = self.places.memory_of_user(uid);
        if more > most.saturating_sub(all) {
            let why = format!(
                "{more} bytes besides {all} that user {uid} has: memory of all its queues has \
                 {most} bytes at most here (its right: --allow memory=)"
            );
            return refuse(Errno::NOMEM, why);
        }
        Ok(())
    }

    pub(super) fn register(
        &mut self,
        session: &Session,
        request: &Request,
        brought: Brought,
        answer: &mut Answer,
    ) -> Result<Outcome, Refusal> {
        let Some((id, place)) = self.place(session) else {
            return refuse(Errno::INVAL, "open a queue first");
        };
        let Some(number) = (1..REGIONS_MAX).find(|at| place.regions & 1 << at == 0) else {
            return refuse(Errno::NOSPC, "a queue has 15 regions of memory at most");
        };
        self.allow_memory(place.memory(), session.uid, request.c)?;
        let Some(brought) = brought else {
            return refuse(Errno::BADF, "a memory file has to come with it");
        };
        let memory = match brought {
            Err(error) if error.operation == "seals" => {
                return refuse(error.source, "seal the memory file against shrinking first");
            }
            Err(error) if error.operation == "huge pages" => {
                let why = "the memory file is of huge pages, which whoever has it can take away: \
                           give one of ordinary pages (madvise asks for huge ones)";
                return refuse(error.source, why);
            }
            mapped => Arc::new(mapped?),
        };
        answer.c = region_address(number);
        let mapped = Arc::downgrade(&memory);
        if let Some(place) = self.places.find_mut(id) {
            place.regions |= 1 << number;
            // Memory that is not there any more counts no more.
            place.mapped.retain(|it| it.strong_count() > 0);
            place.mapped.push(mapped);
        }
        let len = memory.len();
        let region = Region { memory, at: 0, len };
        Ok(self.set_region(id, number, Some(region)))
    }

    pub(super) fn unregister(
        &mut self,
        session: &Session,
        request: &Request,
    ) -> Result<Outcome, Refusal> {
        let Some((id, place)) = self.place(session) else {
            return refuse(Errno::INVAL, "open a queue first");
        };
        match region_of(request.c) {
            Some((number @ 1.., 0)) if place.regions & 1 << number != 0 => {
                if let Some(place) = self.places.find_mut(id) {
                    place.regions &= !(1 << number);
                }
                Ok(self.set_region(id, number, None))
            }
            _ => refuse(Errno::NOENT, "no memory is registered there"),
        }
    }

    fn set_region(&self, id: u64, number: usize, region: Option<Region>) -> Outcome {
        if let Some(place) = self.places.find(id) {
            self.cores[place.core].send(Message::Region(id, number, region.clone()));
        }
        Outcome::WhenKnown(region)
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
    ) -> Result<Outcome, Refusal> {
        let view = self.view(session, request.a)?;
        answer.a = view.block_shift.into();
        answer.b = view.read_only.into();
        answer.c = view.blocks;
        Ok(Outcome::Passed(Vec::new(), Vec::new()))
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

/// The block sizes that a client is told.
fn shifts(views: &[Option<check::Namespace>]) -> [u8; SHAPES] {
    let shift = |n: usize| views.get(n)?.as_ref().map(|view| view.block_shift);
    std::array::from_fn(|n| shift(n).unwrap_or(0))
}

/// Parts that were made for a queue.
struct Made {
    memory: Arc<Shared>,
    kick: OwnedFd,
    interrupt: Option<(Interrupt, Coalescing)>,
    data: Option<Region>,
    /// Descriptors for the client.
    passed: Vec<OwnedFd>,
}

fn make(header: &Header, data_bytes: u64, coalescing: Coalescing) -> Result<Made, Error> {
    let bytes = header.layout.bytes();
    let ring = memory_file("braid-queue", bytes as u64)?;
    let memory = Arc::new(Shared::map_guarded(&ring, bytes)?);
    // Pages for lists are few clients' need: they are allocated as they are used.
    memory.populate(0, header.layout.lists_at())?;
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
            let memory = Shared::map_guarded(&file, len)?;
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
