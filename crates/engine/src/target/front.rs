//! The target as a front end of [`Core`](crate::Core): its devices are the block layer's.
//!
//! # Contract
//! The caller keeps the order of overlapping changes, whichever front end sends them, so
//! [`TargetEngine::keep_order`] is not for such a target. Requests that only wait there end when
//! their connection or queue does, or their host wants them back (`next_recall`). A buffer that a
//! leg of a mirror may still read (`lend`) stays its command's until `loan_ended`, and so does the
//! place of its connection (T10).
use super::commands::{Recall, Stage};
use super::log::{Event, Why};
use super::ports::Port;
use super::{Namespace, TargetEngine};
use crate::machine::LocalDevice;
use alloc::collections::BTreeSet;
use alloc::collections::VecDeque;
use canary::Bug;
use nvme::controller::{
    Action, ConfigError, DiscoveryChange, NamespaceConfig, PortConfig, PortOffer,
};
use nvme::host::AnaState;
use nvme::wire::Status;

impl TargetEngine {
    /// Lays the buffers from byte `at` of the arena on, a multiple of 4 KiB. Before the first
    /// connection.
    pub(crate) fn place_buffers(&mut self, at: u64) {
        self.pool.place(at);
    }

    /// Ends a request that [`Output::Device`](crate::Output::Device) asked for, well or with this
    /// status.
    pub(crate) fn request_ended(&mut self, id: u32, result: Result<(), Status>, now_ns: u64) {
        self.end_overdue(now_ns);
        self.request_done(id, result, now_ns);
        self.drain(now_ns);
        self.press_on(now_ns);
    }

    /// From now on the caller is asked for requests that their hosts want back.
    pub(crate) fn allow_recalls(&mut self) {
        self.recalls = Some(VecDeque::new());
    }

    /// A request that its host wants back, or whose connection is over. The caller answers, at once
    /// or when it is asked for that request.
    pub(crate) fn next_recall(&mut self) -> Option<u32> {
        let recalls = self.recalls.as_mut()?;
        while let Some(id) = recalls.pop_front() {
            // Another command may have its slot by now.
            let command = self.commands.get(id);
            if command.is_some_and(|it| it.recall != Recall::No) {
                return Some(id);
            }
        }
        None
    }

    /// Whether a request is wanted back by an Abort: only if nothing of it was executed.
    pub(crate) fn is_wanted_undone(&self, id: u32) -> bool {
        matches!(self.commands[id].recall, Recall::Abort(..))
    }

    /// Whether a request is wanted back.
    pub(crate) fn is_recalled(&self, id: u32) -> bool {
        self.commands[id].recall != Recall::No
    }

    /// Answers a recall: `taken`, the request has not begun, and never will; else it goes on.
    pub(crate) fn recall_answered(&mut self, id: u32, taken: bool, now_ns: u64) {
        let recall = core::mem::replace(&mut self.commands[id].recall, Recall::No);
        if taken {
            let status = match recall {
                Recall::Abort(..) => Status::ABORT_REQUESTED,
                Recall::Closed | Recall::No => Status::SQ_DELETION,
            };
            self.request_ended(id, Err(status), now_ns);
        }
        self.answer_abort(recall, taken);
        self.drain(now_ns);
    }

    /// Notes that a leg may read a command's buffer after the end of its request.
    pub(crate) fn lend(&mut self, id: u32) {
        self.commands[id].loans += 1;
    }

    /// Ends a loan of a command's buffer; the command keeps its slot until its last one ends.
    pub(crate) fn loan_ended(&mut self, slot: u32, now_ns: u64) {
        let command = &mut self.commands[slot];
        command.loans -= 1;
        if command.loans == 0 && command.stage == Stage::Lent {
            self.free_command(slot);
            self.drain(now_ns);
            self.press_on(now_ns);
        }
    }

    /// As [`Subsystem::reserve_namespaces`](nvme::controller::Subsystem::reserve_namespaces).
    pub(crate) fn reserve_namespaces(&mut self, room: u32) {
        self.subsystem.reserve_namespaces(room);
    }

    /// Adds a namespace that is a device, inactive until [`Self::activate`].
    ///
    /// # Errors
    /// As of [`Subsystem::add_namespace`](nvme::controller::Subsystem::add_namespace).
    pub(crate) fn add_namespace(
        &mut self,
        config: NamespaceConfig,
        device: LocalDevice,
    ) -> Result<(), ConfigError> {
        let new = Namespace {
            nsid: config.nsid,
            device,
            block_shift: config.block_shift,
            incarnation: self.incarnation + 1,
        };
        self.subsystem.add_namespace(config)?;
        self.incarnation += 1;
        match self
            .namespaces
            .binary_search_by_key(&new.nsid, |it| it.nsid)
        {
            Ok(at) => self.namespaces[at] = new,
            Err(at) => self.namespaces.insert(at, new),
        }
        Ok(())
    }

    /// Removes a namespace, as [`Self::deactivate`] does, for good. Its place stays: a
    /// Flush of all namespaces counts them.
    pub(crate) fn remove_namespace(&mut self, nsid: u32, now_ns: u64) {
        self.deactivate(nsid, now_ns);
        self.subsystem.remove_namespace(nsid);
    }

    /// As [`Subsystem::protect`](nvme::controller::Subsystem::protect).
    pub(crate) fn protect(&mut self, nsid: u32, read_only: bool, now_ns: u64) {
        self.subsystem.protect(nsid, read_only);
        self.drain(now_ns);
    }

    /// As [`Subsystem::hosts_of`](nvme::controller::Subsystem::hosts_of).
    pub(crate) fn hosts_of(&self, nsid: u32) -> BTreeSet<[u8; 16]> {
        self.subsystem.hosts_of(nsid)
    }

    /// As [`Subsystem::users_of`](nvme::controller::Subsystem::users_of).
    pub(crate) fn users_of(&self, nsid: u32) -> BTreeSet<[u8; 16]> {
        self.subsystem.users_of(nsid)
    }

    /// The host identifier of a request's command; `None`: its controller has ended.
    pub(crate) fn host_of(&self, id: u32) -> Option<[u8; 16]> {
        let number = self.commands[id].connection;
        self.subsystem.host_of(nvme::controller::ConnId(number))
    }

    /// How many ports there are, those that were withdrawn included.
    pub(crate) fn ports(&self) -> u16 {
        self.ports.len() as u16
    }

    /// Makes a port what it is to be, in place of one that was withdrawn or behind the last one.
    ///
    /// # Errors
    /// As of [`Subsystem::set_port`](nvme::controller::Subsystem::set_port).
    pub(crate) fn set_port(
        &mut self,
        index: u16,
        port: PortConfig,
        now_ns: u64,
    ) -> Result<(), ConfigError> {
        self.subsystem.set_port(index, port)?;
        if usize::from(index) == self.ports.len() {
            let entries = usize::from(self.subsystem.config().entries_max);
            let commands_max = self.connections.count() as usize * entries;
            let port = Port::new(shape::Config::default(), 0, commands_max);
            self.ports.push(port);
        }
        self.drain(now_ns);
        Ok(())
    }

    /// Withdraws a port: its connections are closed in order.
    ///
    /// # Errors
    /// There is no such port.
    pub(crate) fn withdraw_port(&mut self, index: u16, now_ns: u64) -> Result<(), ConfigError> {
        let withdraw = DiscoveryChange::Offer(index, PortOffer::Withdrawn);
        self.subsystem.change_discovery(withdraw)?;
        for id in self.connections.ids() {
            let is_there = self.connections.of(id.0).port == index;
            if is_there && !canary::has(Bug::ServesWithdrawn) {
                self.close(id, Why::Stopping);
            }
        }
        self.drain(now_ns);
        Ok(())
    }

    /// Makes an NSID inactive until [`Self::activate`].
    pub(crate) fn deactivate(&mut self, nsid: u32, now_ns: u64) {
        self.subsystem.deactivate(nsid);
        for namespace in self.namespaces.iter_mut().filter(|it| it.nsid == nsid) {
            self.incarnation += 1;
            namespace.incarnation = self.incarnation;
        }
        self.drain(now_ns);
    }

    /// Whether the namespace of a request's command has been active since the command came; also
    /// true of one for all namespaces.
    pub(crate) fn is_current(&self, id: u32) -> bool {
        let of = self.commands[id].namespace;
        of.is_none_or(|of| self.incarnation(of.nsid) == Some(of.incarnation))
    }

    /// Whether a request's command came in this incarnation of its namespace; also true of one for
    /// all namespaces.
    pub(crate) fn is_of(&self, id: u32, incarnation: u32) -> bool {
        let of = self.commands[id].namespace;
        of.is_none_or(|of| of.incarnation == incarnation)
    }

    /// The present incarnation of what has an NSID; `None`: nothing ever had it.
    pub(crate) fn incarnation(&self, nsid: u32) -> Option<u32> {
        self.namespace(nsid).map(|it| it.incarnation)
    }

    /// Makes an inactive NSID active, with this size.
    ///
    /// # Errors
    /// As of [`Subsystem::activate`](nvme::controller::Subsystem::activate).
    pub(crate) fn activate(
        &mut self,
        nsid: u32,
        blocks: u64,
        block_shift: u8,
        read_only: bool,
        now_ns: u64,
    ) -> Result<(), ConfigError> {
        self.subsystem
            .activate(nsid, blocks, block_shift, read_only)?;
        for namespace in self.namespaces.iter_mut().filter(|it| it.nsid == nsid) {
            namespace.block_shift = block_shift;
        }
        self.drain(now_ns);
        Ok(())
    }

    /// Changes the ANA state of a group as it is seen through all ports.
    pub(crate) fn set_ana(&mut self, group: u32, state: AnaState, now_ns: u64) {
        for port in 0..self.ports.len() as u16 {
            self.subsystem.set_ana_group(port, group, state, now_ns);
        }
        self.drain(now_ns);
    }

    /// The oldest event of the log not yet read, and how many before it were lost.
    pub(crate) fn next_event(&self) -> Option<(u64, Event)> {
        self.log.pop()
    }

    /// Action of the command of a request.
    pub(crate) fn action(&self, id: u32) -> Action {
        self.commands[id].action
    }

    /// Whether the command of a request is for all namespaces.
    pub(crate) fn is_for_all(&self, id: u32) -> bool {
        self.commands[id].namespace.is_none()
    }

    /// The connection of a request's command, and whether its host still gets an answer.
    pub(crate) fn asker(&self, id: u32) -> (u32, bool) {
        let number = self.commands[id].connection;
        (number, self.is_answered(number))
    }
}
