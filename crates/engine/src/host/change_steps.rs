//! Carries out, on each core, the orders by which core 0 changes paths and volumes, and answers
//! them.
//!
//! # Contract
//! One step per path or volume at a time: a later order replaces it. Steps are tried in every turn
//! while there are any; I/O pays nothing for them. A path is forgotten when it has no I/O, none of
//! its writes is held (T9), its connections are over, and, on core 0, those of all other cores are;
//! what it had in its cache unflushed then fails the volume's next flush (T13).
use super::cache::FinalFlush;
use super::change::{Order, What, is_device};
use super::connections::{Role, SessionState};
use super::outbox::Outbox;
use super::path::{AdminState, Path};
use super::pending_change::{ChangeStep, Changing};
use super::session::Sessions;
use super::types::{Doubt, HostConfig, HostEvent, PathConfig, VolumeConfig};
use super::{Multipath, Volume, device, probation, report};
use crate::machine::Output;
use nvme::host::Command;
use policy::PathIndex;

/// Low half of the name of a flush that no slot belongs to; the path's place is the other.
const FINAL_FLUSH: u32 = 0xffff;

/// Whether a command or request is a flush that no slot belongs to.
pub(super) fn is_final_flush(token: u32) -> bool {
    token & FINAL_FLUSH == FINAL_FLUSH
}

/// The place of the path that it is of.
pub(super) fn final_flush_place(token: u32) -> usize {
    (token >> 16) as usize
}

impl Path {
    /// If it waits to be connected again, it doesn't before a user asks for it.
    fn bar(&mut self) {
        if self.session.retry_ns().is_some() {
            self.session
                .enter(SessionState::Backoff { at_ns: u64::MAX });
        }
    }

    fn is_barred(&self) -> bool {
        self.session.retry_ns() == Some(u64::MAX)
    }

    /// Sends a flush that belongs to no I/O; its end is noted here. A controller has the time of an
    /// I/O for it (T12), whoever still waits for it.
    pub(super) fn send_final_flush(
        &mut self,
        settings: &HostConfig,
        out: &mut Outbox,
        now_ns: u64,
    ) {
        let token = (self.place as u32) << 16 | FINAL_FLUSH;
        if let Some(device) = self.kind.device() {
            let until_ns = u64::MAX;
            self.cache.set_final_flush(FinalFlush::Out { until_ns });
            let request = device::flush(device, token);
            return out.push(Output::Device(request));
        }
        let command = Command::flush(self.known.target.nsid, token);
        let queue = self.session.queue.as_mut();
        let given = queue.is_some_and(|queue| queue.submit(&command, now_ns).is_ok());
        if given {
            let until_ns = now_ns.saturating_add(settings.io_timeout_ns);
            self.cache.set_final_flush(FinalFlush::Out { until_ns });
            out.transmit(self.session.conn(Role::Io));
            out.wake_by(until_ns);
        } else {
            self.cache.set_final_flush(FinalFlush::Ended(false));
        }
    }

    /// Its final flush has ended.
    ///
    /// # Panics
    /// If none is under way under this name.
    #[cold]
    pub(super) fn final_flush_ended(&mut self, token: u32, done: bool) {
        let is_own = final_flush_place(token) == self.place && is_final_flush(token);
        assert!(
            is_own,
            "{}: a flush of another path ended: {token:#x}",
            self.uri
        );
        let to = match self.cache.final_flush() {
            FinalFlush::Out { .. } => FinalFlush::Ended(done),
            // It was not for the one that waits now.
            FinalFlush::Late { .. } => FinalFlush::None,
            it => unreachable!("{}: a final flush ended that is {it:?}", self.uri),
        };
        self.cache.set_final_flush(to);
    }
}

impl Volume {
    /// Whether this core may forget a path; core 0 not before all others have.
    fn is_forgettable(&self, at: PathIndex, core: u16) -> bool {
        let path = &self.paths[at];
        let over = path.session.is_disconnected();
        let known = is_device(&path.kind)
            || matches!(path.session.state(), SessionState::Closed)
            || core != 0
            || path.session.retry_ns().is_some();
        let ended = !path.cache.is_flushing() && path.cache.abandoned_flushes.is_empty();
        let holds = self.fence.first_held(at).is_some();
        over && known && ended && path.lane.is_empty() && !holds
    }
}

impl Sessions<'_> {
    /// An order that is about a path which is there.
    fn obey_with(&mut self, at: PathIndex, what: &What, serial: u32, now_ns: u64) {
        let (to, step) = match what {
            What::Use | What::Restore => (AdminState::Enabled, None),
            What::Drain => (AdminState::Draining, Some(ChangeStep::Drain)),
            What::Leave => (AdminState::Removing, Some(ChangeStep::Drain)),
            What::CloseQueue(_) => (AdminState::Removing, Some(ChangeStep::CloseQueue)),
            What::Forget(_) => (AdminState::Removing, Some(ChangeStep::Forget)),
            What::Fail => (AdminState::Failed, None),
            What::Join(..) | What::Open(..) | What::Close | What::ForgetVolume => {
                unreachable!("an order about no path that is there")
            }
        };
        let path = &mut self.volume.paths[at];
        // A path that is removed, or joins, goes on to do so, failed or not.
        let stays = matches!(
            path.admin_state(),
            AdminState::Removing | AdminState::Joining
        );
        if to != AdminState::Failed || !stays {
            path.set_admin_state(to);
            self.on.out.note_state();
        }
        if to != AdminState::Failed {
            let step = step.map(|step| (step, serial));
            self.on.changes.set_step(Changing::Path(path.place), step);
        }
        let drains = !matches!(
            self.volume.paths[at].admin_state(),
            AdminState::Enabled | AdminState::Failed | AdminState::GivenUp
        );
        self.volume.head.set_draining(at, drains);
        match what {
            What::Use | What::Restore => {
                self.volume.paths[at].cache.flushed_to_leave = false;
                if let What::Restore = what {
                    self.volume.head.restored(at, now_ns);
                }
                self.resume(at, now_ns);
            }
            // It was to leave, was lost meanwhile, and stays.
            What::Drain if self.volume.paths[at].is_barred() => self.resume(at, now_ns),
            What::Fail if self.on.settings.core == 0 => {
                self.volume.paths[at].bar();
                self.lose(at, Some("failed by hand; restore it"), now_ns);
            }
            What::Fail if is_device(&self.volume.paths[at].kind) => self.lose(at, None, now_ns),
            What::Leave => {
                self.volume.paths[at].bar();
                self.io().path_leaves(now_ns);
            }
            What::CloseQueue(flushed) => {
                self.volume.paths[at].cache.flushed_to_leave = *flushed;
                if *flushed {
                    self.is_covered(at, now_ns);
                }
            }
            What::Forget(true) => self.is_covered(at, now_ns),
            _ => {}
        }
        self.io().release(now_ns);
    }

    /// The writes of all cores on a path are flushed, also if this one has lost it meanwhile.
    fn is_covered(&mut self, at: PathIndex, now_ns: u64) {
        self.volume.paths[at].cache.settle();
        self.io().release_flushes(now_ns);
    }

    /// A path may be used again.
    fn resume(&mut self, at: PathIndex, now_ns: u64) {
        let path = &mut self.volume.paths[at];
        if !path.is_over() {
            return; // its connections stand, or are being opened
        }
        path.session.comeback.failures = 0;
        path.session.comeback.lost_ns = Some(now_ns);
        if is_device(&path.kind) {
            if path.lane.is_empty() && path.cache.abandoned_flushes.is_empty() && !path.letting_go {
                path.session.enter(SessionState::Idle);
                self.begin(at, now_ns);
            }
        } else if path.session.retry_ns().is_some() {
            path.session.enter(SessionState::Backoff { at_ns: now_ns });
            self.on.out.wake_by(now_ns);
        }
    }

    /// Does what core 0 wants done with a path, if that can be done now. Then returns whether the
    /// path had acknowledged writes that were never flushed.
    fn take_path_step(&mut self, at: PathIndex, step: ChangeStep, now_ns: u64) -> Option<bool> {
        let path = &mut self.volume.paths[at];
        if step == ChangeStep::CloseQueue && !path.is_over() && path.lane.is_empty() {
            self.close_drained(at, now_ns);
        }
        let flushes = step == ChangeStep::Drain && self.flushes_for_core_0(at, now_ns);
        let path = &self.volume.paths[at];
        let done = match step {
            ChangeStep::Drain if flushes => false,
            ChangeStep::Reach => path.is_live(),
            ChangeStep::Drain => !path.is_live() || path.lane.is_empty(),
            ChangeStep::CloseQueue => path.is_over() && path.session.queue.is_none(),
            ChangeStep::Forget => self.volume.is_forgettable(at, self.on.settings.core),
        };
        if !done {
            return None;
        }
        let unflushed = path.is_unflushed() || self.volume.leaves_early(at);
        self.on.changes.set_step(Changing::Path(path.place), None);
        if step == ChangeStep::Forget {
            self.forget(at, now_ns);
        }
        Some(unflushed)
    }

    /// Closes a drained path. This is not a path loss, so no event is reported.
    fn close_drained(&mut self, at: PathIndex, now_ns: u64) {
        let (path, mut on) = self.path(at);
        let before = path.session.leave();
        path.stop_asking(&before, &mut on);
        on.head.lose(at);
        path.session.close(Role::Io, false, on.out, now_ns);
        self.reconsider(now_ns);
    }

    /// A path has left: others were perhaps not used only for the size that it showed (T33). Core 0
    /// asks what they show now. The other cores have it asked again: what it heard before they let
    /// go of the path they have compared with that one.
    fn reconsider(&mut self, now_ns: u64) {
        if self.on.settings.core == 0 {
            return self.read_again(now_ns);
        }
        for at in self.volume.paths.indexes() {
            if self.volume.paths.get(at).is_some() && self.volume.head.is_stale(at) {
                let (path, mut on) = self.path(at);
                path.doubt(Doubt::Namespace, &mut on, now_ns);
            }
        }
    }

    /// Nothing refers to a path any more: its place is free on this core.
    fn forget(&mut self, at: PathIndex, now_ns: u64) {
        // Where nobody has said yet whether there were any, there may have been.
        let lost = self.volume.is_doubtful(at);
        let early = self.volume.leaves_early(at);
        let it = &mut *self.volume;
        let path = it.paths.remove(at);
        self.on.out.note_state();
        self.on.owners[path.place] = None;
        it.head.forget(at);
        let line = |why| report::line(&it.name, &path, self.on.settings.core, why);
        if lost {
            if it.is_leaving() {
                let left = line(report::left_unflushed(&path));
                self.on.out.report(HostEvent::Unflushed(it.number, left));
            }
            let line = line(report::unflushed(&path));
            it.fail_next_flush(line, &mut self.on.out);
        } else if early {
            it.losses.note_before_claim(line(report::LEFT_EARLY));
        }
        it.settle(&mut self.on.out);
        self.io().release_flushes(now_ns);
        self.volume
            .report_all_paths_down(self.on.shutdown.is_closing(), &mut self.on.out);
    }
}

impl Multipath {
    /// Does what core 0 says, or takes note of it.
    pub(super) fn obey(&mut self, order: Order, now_ns: u64) {
        let Order {
            serial,
            volume,
            path,
            what,
        } = order;
        match what {
            What::Join(place, config) => {
                self.join(volume, path, place as usize, *config);
                let step = Some((ChangeStep::Reach, serial));
                self.on
                    .changes
                    .set_step(Changing::Path(place as usize), step);
                if self.started {
                    self.sessions(volume).begin(path, now_ns);
                }
            }
            What::Open(config, places) => {
                self.open_volume(volume, *config, &places, now_ns);
                let step = Some((ChangeStep::Reach, serial));
                self.on.changes.set_step(Changing::Volume(volume), step);
            }
            What::Close => {
                self.on.changes.set_step(Changing::Volume(volume), None);
                let it = &mut self.volumes[usize::from(volume)];
                it.leave();
            }
            What::ForgetVolume => {
                self.volumes[usize::from(volume)].fail_waits(&mut self.on.ios, now_ns);
                let step = Some((ChangeStep::Forget, serial));
                self.on.changes.set_step(Changing::Volume(volume), step);
            }
            _ => {
                // Else it has left on this core.
                if self.path_of(volume, path).is_some() {
                    self.sessions(volume).obey_with(path, &what, serial, now_ns);
                }
            }
        }
    }

    fn join(&mut self, volume: u16, index: PathIndex, place: usize, config: PathConfig) {
        let it = &mut self.volumes[usize::from(volume)];
        it.make_room(index, &config);
        it.head.set_draining(index, true);
        self.settle_in(volume, index, place, config);
        self.volumes[usize::from(volume)].paths[index].set_admin_state(AdminState::Joining);
        self.on.out.note_state();
        self.on.rouse_hedger();
    }

    /// Puts a path into its place of the table.
    fn settle_in(&mut self, volume: u16, index: PathIndex, place: usize, config: PathConfig) {
        if is_device(&config.kind) {
            self.on
                .out
                .outputs
                .expect_requests(self.on.settings.io_max as usize);
        }
        let owners = &mut self.on.owners;
        owners.resize(owners.len().max(place + 1), None);
        let before = owners[place].replace((volume, index));
        assert!(before.is_none(), "place {place} is another path's");
        let path = Path::new(place, volume, index, config);
        self.volumes[usize::from(volume)].paths.insert(path);
        self.on.out.note_state();
    }

    fn open_volume(&mut self, volume: u16, config: VolumeConfig, places: &[u32], now_ns: u64) {
        let (it, paths) = Volume::open(volume, config, &self.on.settings);
        let at = usize::from(volume);
        if at == self.volumes.len() {
            self.volumes.push(it);
        } else {
            self.volumes[at] = it;
        }
        let io_timeout_ns = self.on.settings.io_timeout_ns;
        let unseen_ns_max = probation::unseen_ns_max(&self.volumes, io_timeout_ns);
        self.on.hedger.set_unseen_max(unseen_ns_max);
        if self.started {
            self.volumes[at].shut_gate(&mut self.on.out, now_ns);
        }
        self.on.rouse_hedger();
        for ((index, path), &place) in paths.into_iter().zip(places) {
            self.settle_in(volume, index, place as usize, path);
            if self.started {
                self.sessions(volume).begin(index, now_ns);
            }
        }
    }

    /// Advances what this core has yet to do for changes. Returns whether any of it was done.
    #[cold]
    pub(super) fn take_steps(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        for (of, step, serial) in self.on.changes.steps() {
            let unflushed = match of {
                Changing::Path(place) => match self.owner(place) {
                    Some((mut sessions, at)) => sessions.take_path_step(at, step, now_ns),
                    None => unreachable!("{step:?} of a path that has left"),
                },
                Changing::Volume(volume) => self.take_volume_step(volume, step).then_some(false),
            };
            if let Some(unflushed) = unflushed {
                self.on
                    .changes
                    .answer_order(serial, unflushed, &mut self.on.out);
                any = true;
            }
        }
        any
    }

    /// Does what core 0 wants done with a volume, if that can be done now; whether it was.
    fn take_volume_step(&mut self, volume: u16, step: ChangeStep) -> bool {
        let at = usize::from(volume);
        let done = match step {
            ChangeStep::Reach => self.volumes[at].ready.is_some(),
            // An I/O that waits in it is no path's, and was ended.
            ChangeStep::Forget => self.volumes[at].paths.iter().next().is_none(),
            ChangeStep::Drain | ChangeStep::CloseQueue => unreachable!("{step:?} is of a path"),
        };
        if done {
            self.on.changes.set_step(Changing::Volume(volume), None);
            if step == ChangeStep::Forget {
                self.volumes[at] = Volume::vacant(volume);
                self.on.out.report(HostEvent::Removed(volume));
            }
        }
        done
    }
}
