//! The core to which a new NBD client goes.
//!
//! # Contract
//! Clients of a multipath volume are spread over all cores: a new one goes to the core with the
//! fewest clients of that volume, in turn among equals. A core whose places are all taken is passed
//! over while another one has a place. Clients of a mirror go to its home, and so do those of a
//! volume that [keeps to it](Seats::keep_home). A client counts from the moment it is accepted
//! until its reactor has closed the connection, or turned it away.
//!
//! Cores never wait here: they only take a client off, by an atomic counter. Threads that accept
//! clients of one volume choose one after the other.
use super::cores::Homes;
use cores::{ClientChange, ClientOf, RunEvent, Sender};
use engine::mirror::MIRRORS_FROM;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// The cores, and their clients of all volumes.
pub struct CoreSeats {
    senders: Vec<Sender>,
    homes: Homes,
    taken: Vec<AtomicU32>,
    /// Places for clients that each has.
    clients_max: u32,
    /// Told who comes and goes.
    events: mpsc::Sender<RunEvent>,
}

/// The clients of one volume.
pub struct Seats {
    volume: u16,
    cores: Arc<CoreSeats>,
    /// By core.
    taken: Vec<AtomicU32>,
    turn: Mutex<Turn>,
}

/// Choice among the cores.
#[derive(Default)]
struct Turn {
    /// Clients that have been given a core.
    given: usize,
    /// They go to the volume's home only.
    keeps_home: bool,
}

/// One client of a core. Dropped, it is gone.
pub struct Seat {
    seats: Arc<Seats>,
    core: usize,
}

/// A client that is connected. Dropped, which its core does, it is gone, and that is told.
pub struct Client {
    /// `None`: of a host over NVMe/TCP, whose core is that of its subsystem.
    _seat: Option<Seat>,
    of: ClientOf,
    name: Arc<str>,
    since: Instant,
    events: mpsc::Sender<RunEvent>,
}

impl Seat {
    /// A client of an export, which has this name, takes it.
    pub fn taken_by(self, export: u32, name: &str) -> Client {
        let of = ClientOf::Nbd(self.seats.volume, export);
        let events = self.seats.cores.events.clone();
        Client::new(Some(self), of, name, events)
    }
}

impl Client {
    fn new(seat: Option<Seat>, of: ClientOf, name: &str, events: mpsc::Sender<RunEvent>) -> Self {
        let client = Self {
            _seat: seat,
            of,
            name: name.into(),
            since: Instant::now(),
            events,
        };
        client.tell(None);
        client
    }

    /// A connection of a host from the address `name` to the export `to`.
    pub fn host(to: &Arc<str>, name: &str, events: &mpsc::Sender<RunEvent>) -> Self {
        Self::new(None, ClientOf::Nvme(Arc::clone(to)), name, events.clone())
    }

    fn tell(&self, lasted: Option<Duration>) {
        let change = ClientChange {
            of: self.of.clone(),
            name: Arc::clone(&self.name),
            lasted,
        };
        // Once the engine ends there is nobody to be told.
        let _ = self.events.send(RunEvent::Client(change));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.tell(Some(self.since.elapsed()));
    }
}

impl CoreSeats {
    /// Without clients. `homes`: of volumes.
    pub fn new(
        senders: Vec<Sender>,
        homes: Homes,
        clients_max: u16,
        events: mpsc::Sender<RunEvent>,
    ) -> Self {
        Self {
            events,
            taken: senders.iter().map(|_| AtomicU32::new(0)).collect(),
            senders,
            homes,
            clients_max: clients_max.into(),
        }
    }
}

impl CoreSeats {
    /// Told who comes and goes.
    pub fn events(&self) -> &mpsc::Sender<RunEvent> {
        &self.events
    }
}

impl Seats {
    /// Of a volume without clients.
    pub fn new(volume: u16, cores: &Arc<CoreSeats>) -> Self {
        Self {
            volume,
            cores: Arc::clone(cores),
            taken: cores.senders.iter().map(|_| AtomicU32::new(0)).collect(),
            turn: Mutex::default(),
        }
    }

    fn turn(&self) -> MutexGuard<'_, Turn> {
        // Every change to it is one assignment.
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn home(&self) -> usize {
        self.cores.homes.core_of(self.volume)
    }

    /// Clients that come from now on go to the volume's home. Returns whether that is news.
    pub fn keep_home(&self) -> bool {
        let is_spread = self.cores.senders.len() > 1 && self.volume < MIRRORS_FROM;
        is_spread && !std::mem::replace(&mut self.turn().keeps_home, true)
    }

    /// Whether they do because of [`Self::keep_home`].
    pub fn keeps_home(&self) -> bool {
        self.turn().keeps_home
    }

    /// Gives a new client its core.
    pub fn take(self: &Arc<Self>) -> (&Sender, Seat) {
        let core = {
            let mut turn = self.turn();
            let core = match turn.keeps_home || self.volume >= MIRRORS_FROM {
                true => self.home(),
                false => self.choose(self.home().wrapping_add(turn.given)),
            };
            turn.given = turn.given.wrapping_add(1);
            self.taken[core].fetch_add(1, Ordering::Relaxed);
            self.cores.taken[core].fetch_add(1, Ordering::Relaxed);
            core
        };
        let seats = Arc::clone(self);
        (&self.cores.senders[core], Seat { seats, core })
    }

    /// The core with the fewest clients of the volume, of equals the first from `first` on.
    fn choose(&self, first: usize) -> usize {
        let count = self.taken.len();
        let all = (0..count).map(|at| first.wrapping_add(at) % count);
        let best = all.min_by_key(|core| {
            let is_full = self.cores.taken[*core].load(Ordering::Relaxed) >= self.cores.clients_max;
            (is_full, self.taken[*core].load(Ordering::Relaxed))
        });
        let Some(best) = best else {
            unreachable!("an engine has a core");
        };
        best
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken[self.core].fetch_sub(1, Ordering::Relaxed);
        self.seats.cores.taken[self.core].fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Mailbox;
    use std::collections::BTreeMap;

    fn cores(count: usize, clients_max: u16) -> Arc<CoreSeats> {
        told(count, clients_max).0
    }

    fn told(count: usize, clients_max: u16) -> (Arc<CoreSeats>, mpsc::Receiver<RunEvent>) {
        let mailbox = |_| Mailbox::new("test").unwrap().0;
        let senders = (0..count).map(mailbox).collect();
        let homes = Homes::new(count, BTreeMap::new());
        let (to, events) = mpsc::channel();
        let seats = CoreSeats::new(senders, homes, clients_max, to);
        (Arc::new(seats), events)
    }

    #[test]
    fn clients_that_come_and_go_are_told() {
        let (cores, events) = told(1, 64);
        let seats = Arc::new(Seats::new(3, &cores));
        let client = seats.take().1.taken_by(7, "10.0.0.9:1");
        let told = || match events.recv().unwrap() {
            RunEvent::Client(it) => it,
            other => panic!("{other:?}"),
        };
        let came = told();
        assert_eq!((came.of, came.lasted), (ClientOf::Nbd(3, 7), None));
        drop(client);
        let went = told();
        assert!(&*went.name == "10.0.0.9:1" && went.lasted.is_some());
        assert_eq!(cores.taken[0].load(Ordering::Relaxed), 0);
    }

    fn take(seats: &Arc<Seats>) -> (usize, Seat) {
        let seat = seats.take().1;
        (seat.core, seat)
    }

    #[test]
    fn clients_go_where_the_fewest_are_and_in_turn() {
        let cores = cores(3, 64);
        let seats = Arc::new(Seats::new(1, &cores));
        let mut all: Vec<_> = (0..6).map(|_| take(&seats)).collect();
        let order: Vec<usize> = all.iter().map(|it| it.0).collect();
        assert_eq!(order, [1, 2, 0, 1, 2, 0], "from the home on");
        all.retain(|it| it.0 != 2);
        assert_eq!([take(&seats).0, take(&seats).0], [2, 2], "the fewest");
        drop(all);
        // Of equals not always the first: short connections are spread, too.
        let passing: Vec<usize> = (0..3).map(|_| take(&seats).0).collect();
        assert_eq!(passing.iter().sum::<usize>(), 3, "{passing:?}");
        assert!(cores.taken.iter().all(|it| it.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn full_core_is_passed_over_while_another_has_a_place() {
        let cores = cores(2, 2);
        let others = Arc::new(Seats::new(0, &cores));
        others.keep_home();
        let _there = [take(&others), take(&others)];
        let seats = Arc::new(Seats::new(2, &cores));
        let all = [0; 3].map(|_| take(&seats));
        assert_eq!(
            all.each_ref().map(|it| it.0),
            [1, 1, 0],
            "all are full then"
        );
    }

    #[test]
    fn clients_of_a_mirror_or_with_few_queues_are_at_home() {
        let cores = cores(2, 64);
        let mirror = Arc::new(Seats::new(MIRRORS_FROM + 1, &cores));
        assert!(!mirror.keep_home(), "it did before");
        assert_eq!([0; 3].map(|_| take(&mirror).0), [1; 3]);
        let seats = Arc::new(Seats::new(0, &cores));
        assert_ne!(take(&seats).0, take(&seats).0);
        assert!(seats.keep_home() && !seats.keep_home());
        assert_eq!([0; 3].map(|_| take(&seats).0), [0; 3]);
    }
}
