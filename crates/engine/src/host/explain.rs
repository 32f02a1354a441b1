//! Why I/Os went where they went: one now and then is written down, with what the policy saw of
//! each path, what it chose, and what came true.
//!
//! # Contract
//! [`Multipath::explain`] begins for one volume, [`Multipath::explained`] hands out what has
//! ended, [`Multipath::explain_no_more`] ends it. Choices are as they would be without. An I/O
//! that goes to another path, or to the same again, is written down again as a further attempt. Of
//! an I/O that is cut each piece is an I/O of its own. One that has to wait for something is
//! written down as that first. Flushes are not: nothing is chosen for them.
//!
//! # Limits
//! [`EXPLAINED_MAX`] attempts at a time, half of them kept for further ones, of at most
//! [`EXPLAINED_OPEN_MAX`] I/Os; a new I/O in [`EXPLAIN_PAUSE_NS`]; not always the first of a loop
//! turn, which finds the paths emptier than the others. Memory is taken when it begins. A volume
//! that nobody asks about pays one comparison per I/O.
use super::counters::group;
use super::io::VolumeIo;
use super::io_table::{EMPTY, IoTable, Slot, carries};
use super::types::{Io, PathState};
use super::volumes::Volume;
use super::{Multipath, report};
use crate::limits::{EXPLAIN_PAUSE_NS, EXPLAINED_MAX, EXPLAINED_OPEN_MAX};
use alloc::boxed::Box;
use alloc::vec::Vec;
use multipath::{Hindrance, Outcome};
use policy::limits::PATHS_MAX;
use policy::{Explained, Group, PathIndex};

/// Which I/Os are asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Most of them; further attempts of the same I/O don't count.
    pub count: u32,
    /// Reads.
    pub reads: bool,
    /// Changes of data.
    pub writes: bool,
    /// Least length, bytes.
    pub length_min: u32,
}

/// One attempt of one I/O, or piece of an I/O, to be served.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// When the first attempt of its I/O was written down, ns: names the I/O on its core.
    pub first_ns: u64,
    /// When it was placed, ns.
    pub at_ns: u64,
    /// The I/O.
    pub io: Io,
    /// Part of an I/O that is larger than a command.
    pub piece: bool,
    /// Moves to another path before.
    pub hops: u8,
    /// Repetitions on a busy path before.
    pub retries: u8,
    /// How long it had been with us before it was placed, ns.
    pub waited_ns: u64,
    /// It has no path, and what it waits for; its next attempt is written down. `None` without a
    /// path: it fails.
    pub wait: Option<Wait>,
    /// The choice, and its reason. Of no meaning where it waits for something else than a path.
    pub choice: Explained,
    /// Why the paths that could not be chosen could not; by path.
    pub obstacles: [Option<Obstacle>; PATHS_MAX],
    /// Its result; `None`: it has not ended, or had no path.
    pub came: Option<Came>,
}

/// Reason why an I/O without a path waits. Times are of the engine's clock, ns; `u64::MAX`: that is
/// not known, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A usable path, until then at most.
    Path(u64),
    /// Its path was lost before it answered: until the lost controller can't execute it any more
    /// (T9), until then at most.
    Held(u64),
    /// A change before it that overlaps, and waits itself or is cut.
    Behind,
    /// Commands of the engine before this one may be executed until then.
    UncleanStop(u64),
}

/// Result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// Answer of the path.
    pub outcome: Outcome,
    /// From being placed to its end: the policy's sample. ns.
    pub latency_ns: u64,
    /// How much of that it waited in our memory for room on its path, ns.
    pub queued_ns: u64,
}

/// Why a path could not be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// It isn't connected.
    State(PathState),
    /// It takes no I/O.
    Hindered(Hindrance),
    /// Its commands can't carry so much.
    Narrow,
    /// The I/O comes from there: it has just failed it.
    Left,
    /// The I/O is repeated on another that was busy.
    Elsewhere,
    /// It is non-optimized beside an optimized one, and `ana` is strict.
    StandsBy,
    /// It has left.
    Gone,
}

impl Obstacle {
    /// For people.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::State(state) => report::out_of_use(state),
            Self::Hindered(why) => report::hindered(why),
            Self::Narrow => "its commands are too short for this I/O",
            Self::Left => "it has just failed this I/O",
            Self::Elsewhere => "the I/O is repeated on the path that was busy",
            Self::StandsBy => "non-optimized, and stands by",
            Self::Gone => "it is gone",
        }
    }
}

/// Recorder of the choices of one volume.
pub(super) struct Explain {
    wanted: Wanted,
    /// I/Os still to be written down.
    left: u32,
    /// When the next one is.
    due_ns: u64,
    /// So many pass first.
    skip: u32,
    /// Where `skip` comes from.
    lot: u32,
    entries: Vec<Entry>,
    /// Those that were written down and have not ended for good: token of the slot's use, and
    /// since when.
    open: [Option<(u32, u64)>; EXPLAINED_OPEN_MAX],
}

struct Entry {
    state: State,
    /// Of the slot's use.
    token: u32,
    sample: Sample,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Flying,
    Over,
}

impl Entry {
    const NEW: Self = Self {
        state: State::Free,
        token: 0,
        sample: Sample {
            first_ns: 0,
            at_ns: 0,
            io: EMPTY,
            piece: false,
            hops: 0,
            retries: 0,
            waited_ns: 0,
            wait: None,
            choice: Explained::new(),
            obstacles: [None; PATHS_MAX],
            came: None,
        },
    };
}

impl Wanted {
    fn has(&self, io: &Io) -> bool {
        let group = match group(io.op) {
            Group::Read => self.reads,
            Group::Write => self.writes,
            Group::Other => false,
        };
        group && io.length >= self.length_min
    }
}

impl Explain {
    fn new(wanted: Wanted, now_ns: u64) -> Self {
        let mut it = Self {
            wanted,
            left: wanted.count,
            due_ns: now_ns,
            skip: 0,
            lot: now_ns as u32,
            entries: (0..EXPLAINED_MAX).map(|_| Entry::NEW).collect(),
            open: [None; EXPLAINED_OPEN_MAX],
        };
        it.draw();
        it
    }

    fn draw(&mut self) {
        // The golden ratio: no rhythm of the I/Os can hide from it.
        self.lot = self.lot.wrapping_add(0x9e37_79b9);
        self.skip = self.lot >> 28;
    }

    /// Whether an I/O that is not known is one of those that are written down: since now.
    fn begin(&mut self, slot: &Slot, token: u32, now_ns: u64) -> Option<u64> {
        let begun = slot.history.hops > 0 || slot.history.retries > 0;
        if begun || self.left == 0 || now_ns < self.due_ns || !self.wanted.has(&slot.io) {
            return None;
        }
        let free = self.entries.iter().filter(|it| it.state == State::Free);
        if free.count() <= EXPLAINED_MAX / 2 {
            return None;
        }
        let open = self.open.iter_mut().find(|it| it.is_none())?;
        if self.skip > 0 && now_ns < self.due_ns.saturating_add(EXPLAIN_PAUSE_NS) {
            self.skip -= 1;
            return None;
        }
        *open = Some((token, now_ns));
        self.left -= 1;
        self.due_ns = now_ns.saturating_add(EXPLAIN_PAUSE_NS);
        self.draw();
        Some(now_ns)
    }

    /// Where to write an I/O down; `None`: it isn't one of those.
    fn entry(&mut self, slot: &Slot, token: u32, now_ns: u64) -> Option<&mut Entry> {
        let known = self.open.iter().flatten().find(|(of, _)| *of == token);
        let first_ns = match known {
            Some((_, first_ns)) => *first_ns,
            None => self.begin(slot, token, now_ns)?,
        };
        let free = self.entries.iter().position(|it| it.state == State::Free)?;
        let entry = &mut self.entries[free];
        entry.token = token;
        entry.sample = Sample {
            first_ns,
            at_ns: now_ns,
            io: slot.io,
            piece: slot.kind.is_piece() || slot.recut,
            hops: slot.history.hops,
            retries: slot.history.retries,
            waited_ns: now_ns.saturating_sub(slot.started_ns),
            wait: None,
            came: None,
            ..entry.sample
        };
        Some(entry)
    }

    /// Hands out the oldest that is over.
    fn take(&mut self) -> Option<Sample> {
        let over = self.entries.iter_mut().filter(|it| it.state == State::Over);
        let first = over.min_by_key(|it| it.sample.at_ns)?;
        first.state = State::Free;
        Some(first.sample)
    }
}

impl Volume {
    /// An I/O, or a piece, has ended for good: the next in its slot is another.
    pub(super) fn forget_explained(&mut self, token: u32) {
        let open = self.explain.iter_mut().flat_map(|it| &mut it.open);
        let those = open.filter(|it| it.is_some_and(|(of, _)| of == token));
        those.for_each(|it| *it = None);
    }

    /// The path for an I/O among those whose bits are set; it is written down if it is its turn.
    ///
    pub(super) fn choose(
        &mut self,
        ios: &mut IoTable,
        index: u32,
        able: u64,
        now_ns: u64,
    ) -> Option<PathIndex> {
        let (slot, token) = (ios.get(index), ios.token(index));
        let request = slot.request(now_ns);
        let asked = self.explain.is_some() && self.recovery.enabled;
        let patience_ns = asked.then(|| self.patience_ns(now_ns)).flatten();
        let allow = |path: PathIndex| able >> path.0 & 1 == 1;
        let explain = self.explain.as_mut();
        let Some(entry) = explain.and_then(|it| it.entry(slot, token, now_ns)) else {
            return match able {
                u64::MAX => self.head.select(&request),
                _ => self.head.select_among(&request, allow, None),
            };
        };
        let why = Some(&mut entry.sample.choice);
        let chosen = self.head.select_among(&request, allow, why);
        match chosen {
            Some(_) => {
                entry.state = State::Flying;
                entry.sample.wait = None;
            }
            None => {
                entry.state = State::Over;
                entry.sample.wait = patience_ns.map(Wait::Path);
            }
        }
        let carried = self.head.among(|limits| carries(limits, &slot.io));
        let looks = entry.sample.choice.looks().iter().zip(0_u8..);
        for (look, path) in looks {
            let there = self.paths.get(PathIndex(path));
            let state = there.map(|it| it.state(&self.recovery, &self.head));
            let hindrance = self.head.hindrance(PathIndex(path));
            let obstacle = match (state, hindrance) {
                (None, _) => Obstacle::Gone,
                (Some(PathState::Live), Some(why)) => Obstacle::Hindered(why),
                (Some(state), Some(_)) => Obstacle::State(state),
                (Some(_), None) if carried >> path & 1 == 0 => Obstacle::Narrow,
                (Some(state), None) if self.head.sits_out(PathIndex(path)) => {
                    Obstacle::State(state)
                }
                (Some(_), None) if allow(PathIndex(path)) => Obstacle::StandsBy,
                (Some(_), None) if slot.path == PathIndex(path) => Obstacle::Left,
                (Some(_), None) => Obstacle::Elsewhere,
            };
            let obstacle = (!look.usable).then_some(obstacle);
            entry.sample.obstacles[usize::from(path)] = obstacle;
        }
        // Its end has consequences.
        ios.get_mut(index).watched = true;
        chosen
    }

    /// An I/O waits for something else than a path; it is written down if it is its turn.
    #[cold]
    pub(super) fn explain_wait(&mut self, ios: &mut IoTable, index: u32, wait: Wait, now_ns: u64) {
        let (slot, token) = (ios.get(index), ios.token(index));
        let explain = self.explain.as_mut();
        if let Some(entry) = explain.and_then(|it| it.entry(slot, token, now_ns)) {
            entry.state = State::Over;
            entry.sample.wait = Some(wait);
            ios.get_mut(index).watched = true;
        }
    }

    /// An attempt has ended; it may have been written down.
    pub(super) fn explain_end(&mut self, ios: &IoTable, index: u32, outcome: Outcome, now_ns: u64) {
        let Some(explain) = &mut self.explain else {
            return; // the usual case: no attempt is written down
        };
        let (slot, token) = (ios.get(index), ios.token(index));
        let flying = |it: &&mut Entry| it.state == State::Flying && it.token == token;
        if let Some(entry) = explain.entries.iter_mut().find(flying) {
            let latency_ns = now_ns.saturating_sub(slot.placed_ns);
            // Else it was never given to the path.
            let issued = slot.issued_ns >= slot.placed_ns;
            let queued_ns = slot.issued_ns.saturating_sub(slot.placed_ns);
            entry.state = State::Over;
            entry.sample.came = Some(Came {
                outcome,
                latency_ns,
                queued_ns: if issued { queued_ns } else { latency_ns },
            });
        }
    }
}

impl VolumeIo<'_> {
    /// Places an I/O that was just submitted to a volume that is asked about, or holds others.
    #[cold]
    pub(super) fn place_oddly(&mut self, index: u32, now_ns: u64) {
        let it = &mut *self.volume;
        match it.choose(&mut self.on.ios, index, u64::MAX, now_ns) {
            Some(chosen) => self.put(index, chosen, now_ns),
            None => self.park(index, now_ns),
        }
    }
}

impl Multipath {
    /// Writes down why I/Os of a volume go where they go, from now on; what was asked about it
    /// before is forgotten. False: there is no such volume.
    pub fn explain(&mut self, volume: u16, wanted: Wanted, now_ns: u64) -> bool {
        let volume = self.volumes.get_mut(usize::from(volume));
        let Some(volume) = volume.filter(|it| !it.is_vacant()) else {
            return false; // it was removed meanwhile
        };
        volume.explain = Some(Box::new(Explain::new(wanted, now_ns)));
        true
    }

    /// The oldest attempt that was written down and has ended.
    pub fn explained(&mut self, volume: u16) -> Option<Sample> {
        let volume = self.volumes.get_mut(usize::from(volume))?;
        volume.explain.as_mut()?.take()
    }

    /// Nothing of a volume is written down any more. Records that were not handed out yet follow,
    /// also what has not ended.
    pub fn explain_no_more(&mut self, volume: u16) -> impl Iterator<Item = Sample> + use<> {
        let volume = self.volumes.get_mut(usize::from(volume));
        let mut rest = volume.and_then(|volume| volume.explain.take());
        let entries = rest.iter_mut().flat_map(|it| &mut it.entries);
        let flying = entries.filter(|it| it.state == State::Flying);
        flying.for_each(|it| it.state = State::Over);
        core::iter::from_fn(move || rest.as_mut()?.take())
    }
}
