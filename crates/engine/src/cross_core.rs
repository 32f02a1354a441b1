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
//! A change is shown once it was under way for [`SHOWN_AFTER_NS`] to twice that. Until then, and
//! until its core has heard that its client is gone, another core does not know of it: if a client
//! sends it again sooner, there is no order between the two.
use crate::limits::{SHOWN_AFTER_NS, SHOWN_AT_ONCE};
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
    /// To core 0: nothing comes from this core any more.
    Left(u16),
}

/// The front end has to do something with a request of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It gets a place among this core's changes.
    Place(u64),
    /// It begins.
    Begin(u64),
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
    /// On core 0: cores that have ended.
    left: u64,
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

    /// Nothing comes from this core any more.
    pub fn leave(&mut self) {
        if self.core > 0 {
            self.send(0, CoreMessage::Left(self.core));
        }
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
                let all = u64::MAX >> (64 - u32::from(self.cores));
                let there = all & !self.left;
                self.asking.insert(it.id, there);
                for core in (0..self.cores).filter(|core| there >> core & 1 == 1) {
                    self.send(core, CoreMessage::Place(it));
                }
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
                    for core in (1..self.cores).filter(|core| *core != id.core) {
                        if self.left >> core & 1 == 0 {
                            self.send(core, CoreMessage::Over(id));
                        }
                    }
                }
                if id.core != self.core {
                    self.take_away(order, id);
                }
            }
            CoreMessage::Show(it) => {
                self.place(order, it);
            }
            CoreMessage::Hide(id) => self.take_away(order, id),
            CoreMessage::Left(core) => {
                self.left |= 1 << core;
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
