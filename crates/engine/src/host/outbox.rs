//! Output of the engine: events for its owner, outputs and times for its reactor.
use super::connections::{PathSession, Role};
use super::outputs::Outputs;
use super::timers::Timers;
use super::types::{HostConfig, HostEvent, PathNews};
use crate::machine::{ConnId, Output};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// See the module.
pub(super) struct Outbox {
    core: u16,
    cores: u16,
    connect_timeout_ns: u64,
    pub(super) outputs: Outputs,
    pub(super) timers: Timers,
    /// All but the ends of I/Os.
    events: VecDeque<HostEvent>,
    /// Connections whose machines were called since the last turn.
    touched: Vec<ConnId>,
    /// A path may be in another state than when that was asked last.
    states_changed: bool,
}

impl Outbox {
    /// With room for so many `events` and `connections` before it takes more memory.
    pub(super) fn new(
        config: &HostConfig,
        outputs: Outputs,
        events: usize,
        connections: usize,
    ) -> Self {
        Self {
            core: config.core,
            cores: config.cores,
            connect_timeout_ns: config.connect_timeout_ns,
            outputs,
            timers: Timers::new(),
            events: VecDeque::with_capacity(events),
            touched: Vec::with_capacity(connections),
            states_changed: false,
        }
    }

    /// The core that it is of.
    pub(super) fn core(&self) -> u16 {
        self.core
    }

    /// Tells the owner.
    pub(super) fn report(&mut self, event: HostEvent) {
        self.events.push_back(event);
    }

    /// A path may be in another state.
    pub(super) fn note_state(&mut self) {
        self.states_changed = true;
    }

    /// Whether any may, since this was asked last.
    #[inline]
    pub(super) fn take_states_changed(&mut self) -> bool {
        core::mem::take(&mut self.states_changed)
    }

    /// Core 0: tells the other cores, also where there are none.
    pub(super) fn publish(&mut self, news: PathNews) {
        self.events.push_back(HostEvent::Publish(news));
    }

    /// Not core 0: tells core 0.
    pub(super) fn tell_core_0(&mut self, news: PathNews) {
        self.events.push_back(HostEvent::Report(news));
    }

    /// Tells all other cores, by way of core 0.
    pub(super) fn tell_cores(&mut self, news: PathNews) {
        match self.core {
            _ if self.cores == 1 => {}
            0 => self.publish(news),
            _ => self.tell_core_0(news),
        }
    }

    /// The next event; it stays.
    #[inline]
    pub(super) fn peek_event(&self) -> Option<&HostEvent> {
        self.events.front()
    }

    /// The next event.
    #[inline]
    pub(super) fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    /// The reactor is to do something.
    #[inline]
    pub(super) fn push(&mut self, output: Output) {
        self.outputs.push(output);
    }

    /// `conn` may have something to send.
    #[inline]
    pub(super) fn transmit(&mut self, conn: ConnId) {
        self.outputs.transmit(conn);
    }

    /// Something expires or is due at `at_ns`.
    #[inline]
    pub(super) fn wake_by(&mut self, at_ns: u64) {
        self.timers.wake_by(at_ns);
    }

    /// A connection is asked for, or closed in order. Returns when it is given up, ns.
    pub(super) fn connect_by(&mut self, now_ns: u64) -> u64 {
        let until_ns = now_ns.saturating_add(self.connect_timeout_ns);
        self.wake_by(until_ns);
        until_ns
    }

    /// The machine behind a connection was called: the next turn takes its events and lets it send.
    #[inline]
    pub(super) fn touch(&mut self, session: &mut PathSession, role: Role) {
        if !session.touched[role as usize] {
            session.touched[role as usize] = true;
            self.touched.push(session.conn(role));
        }
    }

    /// Whether any machine was called since the last turn.
    #[inline]
    pub(super) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// A connection whose machine was called since the last turn.
    #[inline]
    pub(super) fn pop_touched(&mut self) -> Option<ConnId> {
        self.touched.pop()
    }
}
