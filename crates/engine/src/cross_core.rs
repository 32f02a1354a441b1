//! Changes of data that the other cores have to know of, where several cores have clients of one
//! volume (T46).
//!
//! Responsible for what cores tell each other of such changes. Each core orders the changes of its
//! own clients ([`ChangeOrder`]); a change of another core that it was told of has a place among
//! them (`places`). Two kinds are told:
//!
//! * **Alone**: a change that covers blocks partly is read, merged and written. No change that it
//!   overlaps may be under way on any core meanwhile. It asks core 0, which tells all cores; each
//!   gives it a place, and says when its turn has come there. Then it begins.
//! * **Shown**: a change that is under way for long, or whose client is gone. That client may send
//!   it again to another core, and something newer after it: these wait there until this one has
//!   ended, so that it can't be executed after them.
//!
//! **A new client** is greeted once each core has handled the ends of connections that the
//! client may have lost before, and has shown what these have under way (`arrivals`). So what it
//! sends again has an order with what it sent before, whichever cores both came to.
//!
//! No two changes wait for each other. A change that has begun waits for devices only. One that
//! asks has no place before core 0 gives it one, and these are given in one order on all cores; and
//! only changes that have begun are shown.
//!
//! # Contract
//! [`CrossCore::handle`] takes each message, in the order in which its sender sent it.
//! [`CrossCore::poll`] has those for other cores. A change that asked ends by [`CrossCore::end`],
//! one that may be shown by [`CrossCore::hide`]. A core that ends says so last of all
//! ([`CrossCore::leave`]); core 0 is the last one.
//!
//! # Limits
//! A change is shown once its core has handled the end of its connection, or once it was under way
//! for [`SHOWN_AFTER_NS`] to twice that. Until then another core does not know of it: if a client
//! sends it again sooner by a connection that it had before, there is no order between the two.
use crate::limits::{ARRIVALS_READY, SHOWN_AFTER_NS, SHOWN_AT_ONCE};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use block::order::{ChangeOrder, Ticket};
use block::{Issuer, Key, Range, SlotMap};

/// The front end that changes of other cores are ordered as.
pub(crate) const OTHER_CORES: u32 = (u32::MAX >> 1) - 1;

/// A change, on all cores: where it came from, and its key there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ChangeId {
    core: u16,
    key: u64,
}

/// A change that other cores are told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherChange {
    id: ChangeId,
    volume: u16,
    range: Range,
}

/// A client that has come, on all cores: where to, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    core: u16,
    number: u64,
    volume: u16,
}

impl Arrival {
    /// The volume that it is a client of.
    pub(crate) fn volume(self) -> u16 {
        self.volume
    }
}

/// Message of a core to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreMessage {
    /// To core 0: this change asks to be alone.
    Ask(OtherChange),
    /// Of core 0: it gets a place here.
    Place(OtherChange),
    /// To core 0: its turn has come on this core.
    Turn(ChangeId, u16),
    /// Of core 0: its turn has come on all cores.
    Begin(ChangeId),
    /// To and of core 0: it has ended, or begins no more.
    Over(ChangeId),
    /// It is under way for long, or its client is gone.
    Show(OtherChange),
    /// One that was shown has ended.
    Hide(ChangeId),
    /// A client has come: its core waits for this one's [`Self::Settled`].
    Arrived(Arrival),
    /// Clients of its volume whose connections had ended by then begin nothing more on this core,
    /// and what they have under way was shown.
    Settled(Arrival, u16),
    /// Nothing comes from this core any more.
    Left(u16),
}

/// The front end has to do something with a request of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It gets a place among this core's changes.
    Place(u64),
    /// It begins.
    Begin(u64),
    /// A client has come somewhere: [`CrossCore::settled`] follows.
    Settle(Arrival),
}

/// A change of this core that others know of.
#[derive(Clone, Copy, Debug)]
enum Own {
    /// By its issuer's cookie.
    Alone(u64),
    Shown,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct CrossCore {
    core: u16,
    cores: u16,
    /// Changes of this core that others know of.
    own: SlotMap<Own>,
    /// Those that ask to be alone, or are, by their cookies.
    alone: BTreeMap<u64, Key>,
    /// Those that are shown, by their places.
    shown: BTreeMap<Ticket, Key>,
    /// Places of other cores' changes among this core's.
    places: BTreeMap<ChangeId, Ticket>,
    /// Those of them that ask, and whose turn has not come here.
    waiting: BTreeMap<Ticket, ChangeId>,
    /// On core 0: the cores, a bit for each, on which the turn of a change that asks has not come.
    asking: BTreeMap<ChangeId, u64>,
    /// Cores that have ended, a bit for each.
    left: u64,
    /// Numbers of clients that have come to this core, and the cores, a bit for each, that have not
    /// settled them.
    arrivals: Vec<(u64, u64)>,
    /// Clients that have come to this core so far.
    arrived: u64,
    /// Those whose last core has settled them, and whose front end was not told.
    settled: VecDeque<u64>,
    out: VecDeque<(u16, CoreMessage)>,
    /// When changes under way are looked at next, ns; 0: there are none.
    look_ns: u64,
}

impl CrossCore {
    /// For one of so many cores.
    pub fn new(core: u16, cores: u16) -> Self {
        assert!(cores <= 64, "a bit for each core");
        Self {
            core,
            cores,
            // Clients that come one after the other take no more memory.
            arrivals: Vec::with_capacity(ARRIVALS_READY),
            settled: VecDeque::with_capacity(ARRIVALS_READY),
            out: VecDeque::with_capacity(ARRIVALS_READY),
            ..Self::default()
        }
    }

    /// Whether there is any other core.
    #[inline]
    pub fn has_others(&self) -> bool {
        self.cores > 1
    }

    fn send(&mut self, to: u16, message: CoreMessage) {
        self.out.push_back((to, message));
    }

    fn send_others(&mut self, message: CoreMessage) {
        for core in (0..self.cores).filter(|core| *core != self.core) {
            self.out.push_back((core, message));
        }
    }

    /// The cores that have not ended, a bit for each.
    fn present(&self) -> u64 {
        u64::MAX >> (64 - u32::from(self.cores)) & !self.left
    }

    fn send_to(&mut self, cores: u64, message: CoreMessage) {
        for core in (0..self.cores).filter(|core| cores >> core & 1 == 1) {
            self.send(core, message);
        }
    }

    fn id(&self, key: Key) -> ChangeId {
        ChangeId {
            core: self.core,
            key: key.to_bits(),
        }
    }

    /// A change of this core must be alone in its range. [`Step::Place`] and [`Step::Begin`] with
    /// this cookie follow, unless it ends before.
    pub fn ask(&mut self, cookie: u64, volume: u16, range: Range) {
        let key = self.own.insert(Own::Alone(cookie));
        let before = self.alone.insert(cookie, key);
        assert!(before.is_none(), "change {cookie} has asked");
        let id = self.id(key);
        self.send(0, CoreMessage::Ask(OtherChange { id, volume, range }));
    }

    /// The turn of such a change has come on this core.
    pub fn has_turn(&mut self, cookie: u64) {
        let id = self.id(self.alone[&cookie]);
        self.send(0, CoreMessage::Turn(id, self.core));
    }

    /// Such a change has ended, or its client is gone.
    pub fn end(&mut self, cookie: u64) {
        let Some(key) = self.alone.remove(&cookie) else {
            unreachable!("change {cookie} did not ask");
        };
        self.own.remove(key);
        self.send(0, CoreMessage::Over(self.id(key)));
    }

    /// Shows a change that is under way here, unless it was before; whether that is so.
    pub fn show(&mut self, place: Ticket, volume: u16, range: Range) -> bool {
        if self.shown.contains_key(&place) {
            return false;
        }
        let key = self.own.insert(Own::Shown);
        self.shown.insert(place, key);
        let id = self.id(key);
        self.send_others(CoreMessage::Show(OtherChange { id, volume, range }));
        true
    }

    /// A change that may be shown has ended here.
    #[inline]
    pub fn hide(&mut self, place: Ticket) {
        if !self.shown.is_empty() {
            self.hide_shown(place);
        }
    }

    fn hide_shown(&mut self, place: Ticket) {
        if let Some(key) = self.shown.remove(&place) {
            self.own.remove(key);
            self.send_others(CoreMessage::Hide(self.id(key)));
        }
    }

    /// When changes under way are to be looked at; `None`: there are none.
    #[inline]
    pub fn poll_timeout(&self) -> Option<u64> {
        (self.look_ns > 0).then_some(self.look_ns)
    }

    /// Once per turn: shows the changes that are under way for long.
    #[inline]
    pub fn turn(&mut self, order: &mut ChangeOrder, now_ns: u64) {
        if order.is_empty() {
            self.look_ns = 0;
        } else if self.look_ns <= now_ns {
            self.look(order, now_ns);
        }
    }

    fn look(&mut self, order: &mut ChangeOrder, now_ns: u64) {
        if self.look_ns > 0 {
            let mut left = SHOWN_AT_ONCE;
            order.for_each_begun(|begun, volume, range, looks| {
                if looks > 0 && left > 0 && self.may_show(begun.owner) {
                    left -= u32::from(self.show(begun.ticket, volume as u16, range));
                }
            });
        }
        self.look_ns = now_ns.saturating_add(SHOWN_AFTER_NS);
    }

    /// One that has asked is known by that: shown to a core before it gets its place there, it
    /// would wait for itself.
    fn may_show(&self, cookie: u64) -> bool {
        is_own(cookie) && !self.alone.contains_key(&cookie)
    }

    /// Shows what the issuer's requests change.
    pub fn show_all(&mut self, order: &mut ChangeOrder, is_its: impl Fn(u64) -> bool) {
        order.for_each_begun(|begun, volume, range, _| {
            if is_its(begun.owner) && self.may_show(begun.owner) {
                self.show(begun.ticket, volume as u16, range);
            }
        });
    }

    /// The turn of another core's change has come here.
    pub fn begun(&mut self, place: Ticket) {
        if let Some(id) = self.waiting.remove(&place) {
            self.send(0, CoreMessage::Turn(id, self.core));
        }
    }

    /// A client of the volume has come to this core: [`Self::poll_settled`] has its number once
    /// it may be greeted. `is_home`: this core has all clients of the volume.
    pub fn arrive(&mut self, volume: u16, is_home: bool) -> u64 {
        let (core, number) = (self.core, self.arrived);
        self.arrived += 1;
        let asked = match is_home {
            true => 1 << core,
            false => self.present(),
        };
        self.arrivals.push((number, asked));
        let arrival = Arrival {
            core,
            number,
            volume,
        };
        self.send_to(asked, CoreMessage::Arrived(arrival));
        number
    }

    /// This core is done with what [`Step::Settle`] asked for.
    pub fn settled(&mut self, arrival: Arrival) {
        self.send(arrival.core, CoreMessage::Settled(arrival, self.core));
    }

    /// The next client of this core that may be greeted.
    #[inline]
    pub fn poll_settled(&mut self) -> Option<u64> {
        self.settled.pop_front()
    }

    /// These cores have settled a client, or have ended.
    fn count_settled(&mut self, number: u64, cores: u64) {
        let mut all = self.arrivals.iter();
        let Some(at) = all.position(|it| it.0 == number) else {
            return; // all others have settled it, and this core had ended by then
        };
        let missing = &mut self.arrivals[at].1;
        *missing &= !cores;
        if *missing == 0 {
            self.arrivals.swap_remove(at);
            self.settled.push_back(number);
        }
    }

    /// Nothing comes from this core any more.
    pub fn leave(&mut self) {
        self.send_others(CoreMessage::Left(self.core));
    }

    /// Whether there is a message, or a client to be greeted.
    #[inline]
    pub fn has_news(&self) -> bool {
        !self.out.is_empty() || !self.settled.is_empty()
    }

    /// The next message, and the core that it is for.
    #[inline]
    pub fn poll(&mut self) -> Option<(u16, CoreMessage)> {
        self.out.pop_front()
    }

    /// This core's number.
    pub fn core(&self) -> u16 {
        self.core
    }

    /// Takes a message of a core, or of this one. Returns what the change's front end has to do.
    pub fn handle(&mut self, order: &mut ChangeOrder, message: CoreMessage) -> Option<Step> {
        match message {
            CoreMessage::Ask(it) => {
                assert_eq!(self.core, 0, "core 0 is asked");
                self.asking.insert(it.id, self.present());
                self.send_to(self.present(), CoreMessage::Place(it));
            }
            CoreMessage::Place(it) if it.id.core == self.core => {
                return self.own_cookie(it.id).map(Step::Place);
            }
            CoreMessage::Place(it) => {
                let (place, begins) = self.place(order, it);
                match begins {
                    true => self.send(0, CoreMessage::Turn(it.id, self.core)),
                    false => drop(self.waiting.insert(place, it.id)),
                }
            }
            CoreMessage::Turn(id, core) => self.count_turn(id, 1 << core),
            CoreMessage::Begin(id) => return self.own_cookie(id).map(Step::Begin),
            CoreMessage::Over(id) => {
                if self.core == 0 {
                    let asked = self.asking.remove(&id);
                    assert!(asked.is_some(), "a change is over that did not ask");
                    // Those that had left before it asked have no place of it.
                    let others = self.present() & !(1 | 1 << id.core);
                    self.send_to(others, CoreMessage::Over(id));
                }
                if id.core != self.core {
                    self.take_away(order, id);
                }
            }
            CoreMessage::Show(it) => {
                self.place(order, it);
            }
            CoreMessage::Hide(id) => self.take_away(order, id),
            CoreMessage::Arrived(it) => return Some(Step::Settle(it)),
            CoreMessage::Settled(it, core) => self.count_settled(it.number, 1 << core),
            CoreMessage::Left(core) => {
                self.left |= 1 << core;
                let arrivals: Vec<u64> = self.arrivals.iter().map(|it| it.0).collect();
                for number in arrivals {
                    self.count_settled(number, 1 << core);
                }
                let asking: Vec<ChangeId> = self.asking.keys().copied().collect();
                for id in asking {
                    self.count_turn(id, 1 << core);
                }
            }
        }
        None
    }

    /// The cookie of a change that asked; `None`: it has ended meanwhile.
    fn own_cookie(&self, id: ChangeId) -> Option<u64> {
        match self.own.get(Key::from_bits(id.key))? {
            Own::Alone(cookie) => Some(*cookie),
            Own::Shown => unreachable!("{id:?} did not ask"),
        }
    }

    /// Gives a change of another core a place; and whether its turn is now.
    fn place(&mut self, order: &mut ChangeOrder, it: OtherChange) -> (Ticket, bool) {
        let owner = Issuer::FrontEnd(OTHER_CORES, 0).to_cookie();
        let (place, begins) = order.admit(owner, it.volume.into(), it.range);
        let before = self.places.insert(it.id, place);
        assert!(before.is_none(), "{:?} has a place", it.id);
        (place, begins)
    }

    fn take_away(&mut self, order: &mut ChangeOrder, id: ChangeId) {
        let Some(place) = self.places.remove(&id) else {
            unreachable!("{id:?} has no place here");
        };
        self.waiting.remove(&place);
        order.withdraw(place);
    }

    /// On core 0: the turn of a change has come on these cores.
    fn count_turn(&mut self, id: ChangeId, cores: u64) {
        let Some(missing) = self.asking.get_mut(&id) else {
            return; // it has ended meanwhile
        };
        let before = *missing;
        *missing &= !cores;
        if before > 0 && *missing == 0 {
            self.send(id.core, CoreMessage::Begin(id));
        }
    }
}

/// Whether the issuer is a front end of this core.
fn is_own(cookie: u64) -> bool {
    !matches!(Issuer::of_cookie(cookie), Issuer::FrontEnd(OTHER_CORES, _))
}

#[cfg(test)]
mod tests;
