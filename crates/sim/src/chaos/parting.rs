//! Wires over which nothing passes for a time.
//!
//! # Contract
//! Bytes sent meanwhile are kept, in order, and arrive when nothing parts the wire any more: bytes
//! that one partition keeps are kept by another that begins before the first is over.
use super::prelude::*;
use super::world::Due;
use core::cmp::Reverse;

impl World {
    /// Nothing passes until `end_ns`; with `way` only [in that direction](Wire::toward).
    pub fn part(&mut self, wire: Wire, way: Option<usize>, end_ns: u64) {
        let before = self.parted_ns(wire);
        let state = self.wires.entry(wire).or_default();
        let heals_ns = match way {
            Some(way) => &mut state.ways[way].heals_ns,
            None => &mut state.heals_ns,
        };
        *heals_ns = end_ns.max(*heals_ns);
        if before.iter().any(|&it| it > self.now_ns) {
            self.keep(wire, before);
        }
    }

    /// Until when nothing arrives, by direction.
    fn parted_ns(&self, wire: Wire) -> [u64; 2] {
        let state = self.wires.get(&wire).copied().unwrap_or_default();
        state.ways.map(|way| way.heals_ns.max(state.heals_ns))
    }

    /// Bytes due at the end of a partition wait for a longer one.
    fn keep(&mut self, wire: Wire, before: [u64; 2]) {
        let now = self.parted_ns(wire);
        let mut all = core::mem::take(&mut self.events).into_vec();
        for Reverse(due) in &mut all {
            let Some(way) = self.way_of(wire, due) else {
                continue;
            };
            if before[way] > self.now_ns && due.at_ns >= before[way] {
                due.at_ns = due.at_ns.max(now[way]);
            }
        }
        self.events = all.into();
    }

    /// The direction in which an event passes over the wire, if it does.
    fn way_of(&mut self, wire: Wire, due: &Due) -> Option<usize> {
        let (end, there) = match &*due.event {
            Event::Connect(end) => (end, wire.to),
            // An end's own actions do not pass over the wire.
            Event::Closed(_, Closed::ByUs) => return None,
            Event::Bytes(end, _) | Event::Room(end) | Event::Closed(end, _) => (end, end.node),
            _ => return None,
        };
        let conn = self.conn(*end)?;
        (conn.wire == wire).then(|| wire.toward(there))
    }
}
