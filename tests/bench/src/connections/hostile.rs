//! Clients as they should not be: connected and silent, or slow, and back again when they are cut
//! off.
//!
//! # Contract
//! One thread holds all of them. It looks at each idle one once a second, and lets each slow one
//! send or take one byte per pace. A peer that was closed by the server connects anew, with a bound
//! on how many a second: an attacker does.
use super::Background;
use super::peer::{Place, Queue, Wire};
use super::socket::Seen;
use super::words;
use crate::prelude::*;
use nvme::wire::pdu::{DataHeader, PduType};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;

/// Pause between two steps of the load.
const TICK: Duration = Duration::from_millis(50);
/// How often an idle connection is looked at.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// How often a silent association says that it lives.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// Connections that come again in one tick.
const AGAIN_MAX: usize = 100;
/// Longest wait for all to be there.
const READY: Duration = Duration::from_secs(120);
/// Payload of each request of a slow one, blocks of 4 KiB.
const BLOCKS: u16 = 32;
/// Requests of one that takes no answers.
const ASKED: u16 = 31;
/// Addresses that they come from.
const SOURCES: usize = 8;

/// Behaviour of one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Never says a word.
    Silent,
    /// Stops in the middle of the handshake.
    Half,
    /// Is logged in, and only says that it lives.
    Logged,
    /// Sends requests, a byte at a time.
    Trickle,
    /// Sends the data of a write, a byte at a time.
    Writer,
    /// Asks for a lot, and takes a byte at a time.
    Reader,
}

const IDLE: [Kind; 3] = [Kind::Silent, Kind::Half, Kind::Logged];
const SLOW: [Kind; 3] = [Kind::Trickle, Kind::Writer, Kind::Reader];

/// How many, and how slow.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub idle: usize,
    pub slow: usize,
    pub pace: Duration,
}

impl Plan {
    /// Pause between two steps of this one.
    fn rest(self, number: usize) -> Duration {
        let is_idle = number < self.idle;
        if is_idle { IDLE_LOOK } else { self.pace }
    }
}

/// One of them.
struct Hostile {
    kind: Kind,
    /// `None`: it was cut off, or never came in.
    queue: Option<Queue>,
    /// Bytes that it sends again and again, and how far it is.
    words: Vec<u8>,
    at: usize,
    due: Instant,
    alive: Instant,
}

/// Counters of peers.
#[derive(Default)]
pub struct Count {
    /// That are connected now, as far as they know.
    pub held: AtomicU64,
    /// Times that one was cut off, and that one didn't come in.
    pub cut: AtomicU64,
    pub refused: AtomicU64,
}

/// A load that lasts until it is dropped.
pub struct Load {
    pub count: Arc<Count>,
    _thread: Background<()>,
}

impl Load {
    /// Connects all of them; those that the server refuses come again later.
    pub fn start(place: &Place, plan: Plan) -> Result<Self> {
        let count = Arc::<Count>::default();
        let (counts, place) = (Arc::clone(&count), place.clone());
        let (to, ready) = mpsc::channel();
        let thread = Background::spawn(move |ends| {
            let mut all = open_all(&place, plan, &counts, ends);
            let _ = to.send(());
            while !ends.load(Relaxed) {
                step(&place, plan, &mut all, &counts);
                thread::sleep(TICK);
            }
        });
        let came = ready.recv_timeout(READY);
        came.with_context(|| format!("the hostile clients were not connected within {READY:?}"))?;
        Ok(Self {
            count,
            _thread: thread,
        })
    }
}

fn open_all(place: &Place, plan: Plan, count: &Count, stop: &AtomicBool) -> Vec<Hostile> {
    let idle = (0..plan.idle).map(|number| IDLE[number % IDLE.len()]);
    let slow = (0..plan.slow).map(|number| SLOW[number % SLOW.len()]);
    let mut all = Vec::new();
    for (number, kind) in idle.chain(slow).enumerate() {
        if stop.load(Relaxed) {
            break;
        }
        let now = Instant::now();
        // Spread over the second, and the pace.
        let rest = plan.rest(number);
        let mut hostile = Hostile {
            kind,
            queue: None,
            words: Vec::new(),
            at: 0,
            due: now + rest * (number as u32 % 64) / 64,
            alive: now,
        };
        hostile.open(place, number, count);
        all.push(hostile);
        // A peer that is in is cut off meanwhile, or has something to do.
        if number % AGAIN_MAX == 0 {
            step(place, plan, &mut all, count);
        }
    }
    all
}

/// Everyone who is due does what it does.
fn step(place: &Place, plan: Plan, all: &mut [Hostile], count: &Count) {
    let now = Instant::now();
    let mut again = 0;
    for (number, hostile) in all.iter_mut().enumerate() {
        if hostile.due > now {
            continue;
        }
        hostile.due = now + plan.rest(number);
        if hostile.queue.is_none() {
            if again < AGAIN_MAX {
                again += 1;
                hostile.open(place, number, count);
            }
        } else if hostile.act(now) == Seen::Over {
            hostile.queue = None;
            count.held.fetch_sub(1, Relaxed);
            count.cut.fetch_add(1, Relaxed);
        }
    }
}

impl Hostile {
    fn open(&mut self, place: &Place, number: usize, count: &Count) {
        let source = (number % SOURCES) as u8 + 1;
        let opened = begin(self.kind, place, source);
        let Ok((queue, words)) = opened else {
            count.refused.fetch_add(1, Relaxed);
            return;
        };
        count.held.fetch_add(1, Relaxed);
        (self.queue, self.words, self.at) = (Some(queue), words, 0);
        self.alive = Instant::now();
    }

    fn act(&mut self, now: Instant) -> Seen {
        let Some(queue) = &self.queue else {
            return Seen::Over;
        };
        let mut bytes = [0; 4096];
        let most = if self.kind == Kind::Reader { 1 } else { 4096 };
        let seen = queue.socket.peep(&mut bytes[..most]);
        if seen == Seen::Over {
            return Seen::Over;
        }
        let lives = self.kind == Kind::Logged && !self.words.is_empty();
        if lives && now >= self.alive + KEEP_ALIVE {
            self.alive = now;
            return queue.socket.drip(&self.words);
        }
        if let (Kind::Writer, true, Seen::Bytes(count)) = (self.kind, self.words.is_empty(), seen) {
            return self.asked(count.min(bytes.len()), &bytes);
        }
        if !matches!(self.kind, Kind::Trickle | Kind::Writer) || self.words.is_empty() {
            return seen;
        }
        let byte = &self.words[self.at..=self.at];
        let given = queue.socket.drip(byte);
        if matches!(given, Seen::Bytes(_)) {
            self.at = (self.at + 1) % self.words.len();
        }
        given
    }

    /// A target asks for the data of a write: its header goes out, the rest a byte at a time.
    fn asked(&mut self, count: usize, bytes: &[u8]) -> Seen {
        let Some(queue) = &self.queue else {
            return Seen::Over;
        };
        let r2t = DataHeader::parse(&bytes[..count]);
        let Some(r2t) = r2t.ok().filter(|_| bytes[0] == PduType::R2t as u8) else {
            return Seen::Over;
        };
        self.words = vec![0; usize::from(BLOCKS) * 4096];
        queue.socket.drip(&words::h2c_data(&r2t))
    }
}

/// Connects one; what it will send.
fn begin(kind: Kind, place: &Place, source: u8) -> Result<(Queue, Vec<u8>)> {
    let nvme = matches!(place.wire, Wire::Nvme(_));
    if !SLOW.contains(&kind) {
        let (mut socket, mut words) = (None, Vec::new());
        if kind == Kind::Logged {
            socket = Some(place.login(source, words::KATO_MS)?);
            // NBD has no word for it.
            words = nvme.then(words::keep_alive).unwrap_or_default();
        }
        let socket = socket.map_or_else(|| place.connect(source), Ok)?;
        match kind {
            Kind::Half if nvme => socket.say(&words::HALF_IC_REQ)?,
            Kind::Half => socket.say(&words::nbd_flags()[..2])?,
            _ => {}
        }
        return Ok((
            Queue {
                socket,
                admin: None,
            },
            words,
        ));
    }
    let queue = place.queue(source, ASKED + 1)?;
    let words = match kind {
        Kind::Trickle => place.wire.read(0, 1, 0),
        Kind::Writer if nvme => {
            // Data flows when the target asks for it: as soon as it has memory.
            queue.socket.say(&words::write(0, BLOCKS))?;
            Vec::new()
        }
        Kind::Writer => {
            let length = u32::from(BLOCKS) * 4096;
            queue.socket.say(&words::nbd_request(true, 0, 0, length))?;
            vec![0; length as usize]
        }
        _ => {
            queue.socket.narrow()?;
            let asked = (0..ASKED).flat_map(|number| place.wire.read(number, BLOCKS, 0));
            queue.socket.say(&asked.collect::<Vec<u8>>())?;
            Vec::new()
        }
    };
    Ok((queue, words))
}
