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
use super::volumes::PathInVolume;
use super::{HostEngine, VACANT, Volume, device, probation, report};
use crate::machine::Output;
use nvme::host::Command;
use policy::PathIndex;

/// Low half of the name of a flush that no slot belongs to; the path's number is the other.
const FINAL_FLUSH: u32 = 0xffff;

/// Whether a command or request is a flush that no slot belongs to.
pub(super) fn is_final_flush(token: u32) -> bool {
    token & FINAL_FLUSH == FINAL_FLUSH
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
        let token = (self.number as u32) << 16 | FINAL_FLUSH;
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
}

impl PathInVolume<'_> {
    /// Whether this core may forget it; core 0 not before all others have.
    fn is_forgettable(&self, core: u16) -> bool {
        let path = self.path;
        let over = path.session.is_disconnected();
        let known = is_device(&path.kind)
            || matches!(path.session.state(), SessionState::Closed)
            || core != 0
            || path.session.retry_ns().is_some();
        let ended = !path.cache.is_flushing() && path.cache.abandoned_flushes.is_empty();
        let holds = self.volume.fence.first_held(path.index).is_some();
        over && known && ended && path.lane.is_empty() && !holds
    }
}

impl Sessions<'_> {
    /// An order that is about a path which is there.
    fn obey_with(&mut self, number: usize, what: &What, serial: u32, now_ns: u64) {
        let index = self.paths[number].index;
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
        let path = &mut self.paths[number];
        // A path that is removed, or joins, goes on to do so, failed or not.
        let stays = matches!(
            path.admin_state(),
            AdminState::Removing | AdminState::Joining
        );
        if to != AdminState::Failed || !stays {
            path.set_admin_state(to);
        }
        if to != AdminState::Failed {
            let step = step.map(|step| (step, serial));
            self.on.changes.set_step(Changing::Path(number), step);
        }
        let drains = !matches!(
            self.paths[number].admin_state(),
            AdminState::Enabled | AdminState::Failed | AdminState::GivenUp
        );
        self.volume.head.set_draining(index, drains);
        match what {
            What::Use | What::Restore => {
                self.paths[number].cache.flushed_to_leave = false;
                if let What::Restore = what {
                    self.volume.head.restored(index, now_ns);
                }
                self.resume(number, now_ns);
            }
            // It was to leave, was lost meanwhile, and stays.
            What::Drain if self.paths[number].is_barred() => self.resume(number, now_ns),
            What::Fail if self.on.settings.core == 0 => {
                self.paths[number].bar();
                self.lose(number, Some("failed by hand; restore it"), now_ns);
            }
            What::Fail if is_device(&self.paths[number].kind) => self.lose(number, None, now_ns),
            What::Leave => {
                self.paths[number].bar();
                self.io().path_leaves(now_ns);
            }
            What::CloseQueue(flushed) => {
                self.paths[number].cache.flushed_to_leave = *flushed;
                if *flushed {
                    self.is_covered(number, now_ns);
                }
            }
            What::Forget(true) => self.is_covered(number, now_ns),
            _ => {}
        }
        self.io().release(now_ns);
    }

    /// What all cores wrote on a path is flushed, also if this one has lost it meanwhile.
    fn is_covered(&mut self, number: usize, now_ns: u64) {
        let path = &mut self.paths[number];
        path.cache.settle();
        self.io().release_flushes(now_ns);
    }

    /// A path may be used again.
    fn resume(&mut self, number: usize, now_ns: u64) {
        let path = &mut self.paths[number];
        if !path.is_over() {
            return; // its connections stand, or are being opened
        }
        path.session.comeback.failures = 0;
        path.session.comeback.lost_ns = Some(now_ns);
        if is_device(&path.kind) {
            if path.lane.is_empty() && path.cache.abandoned_flushes.is_empty() && !path.letting_go {
                path.session.enter(SessionState::Idle);
                self.begin(number, now_ns);
            }
        } else if path.session.retry_ns().is_some() {
            path.session.enter(SessionState::Backoff { at_ns: now_ns });
            self.on.out.wake_by(now_ns);
        }
    }

    /// Does what core 0 wants done with a path, if that can be done now. Then returns whether the
    /// path had acknowledged writes that were never flushed.
    fn take_path_step(&mut self, number: usize, step: ChangeStep, now_ns: u64) -> Option<bool> {
        let path = &mut self.paths[number];
        if step == ChangeStep::CloseQueue && !path.is_over() && path.lane.is_empty() {
            self.close_drained(number, now_ns);
        }
        let flushes = step == ChangeStep::Drain && self.flushes_for_core_0(number, now_ns);
        let path = &self.paths[number];
        let done = match step {
            ChangeStep::Drain if flushes => false,
            ChangeStep::Reach => path.is_live(),
            ChangeStep::Drain => !path.is_live() || path.lane.is_empty(),
            ChangeStep::CloseQueue => path.is_over() && path.session.queue.is_none(),
            ChangeStep::Forget => self.at(number).is_forgettable(self.on.settings.core),
        };
        if !done {
            return None;
        }
        let unflushed = path.is_unflushed() || self.at(number).leaves_early();
        self.on.changes.set_step(Changing::Path(number), None);
        if step == ChangeStep::Forget {
            self.forget(number, now_ns);
        }
        Some(unflushed)
    }

    /// Closes a drained path. This is not a path loss, so no event is reported.
    fn close_drained(&mut self, number: usize, now_ns: u64) {
        let path = &mut self.paths[number];
        let before = path.session.leave();
        let index = path.index;
        self.volume.stop_asking(&before, &mut self.on.out);
        self.volume.head.lose(index);
        self.paths[number]
            .session
            .close(Role::Io, false, &mut self.on.out, now_ns);
        self.reconsider(now_ns);
    }

    /// A path has left: others were perhaps not used only for the size that it showed (T33). Core 0
    /// asks what they show now. The other cores have it asked again: what it heard before they let
    /// go of the path they have compared with that one.
    fn reconsider(&mut self, now_ns: u64) {
        if self.on.settings.core == 0 {
            return self.read_again(now_ns);
        }
        for index in self.volume.indexes() {
            if let Some(number) = self.volume.number(index)
                && self.volume.head.is_stale(index)
            {
                let (path, mut on) = self.path(number);
                path.doubt(Doubt::Namespace, &mut on, now_ns);
            }
        }
    }

    /// Nothing refers to a path any more: its place is free on this core.
    fn forget(&mut self, number: usize, now_ns: u64) {
        let path = &self.paths[number];
        let (volume, index) = (path.volume, path.index);
        // Where nobody has said yet whether there were any, there may have been.
        let lost = self.at(number).is_doubtful();
        let early = self.at(number).leaves_early();
        let it = &mut *self.volume;
        let line = |why| report::line(&it.name, path, self.on.settings.core, why);
        if lost {
            if it.is_leaving() {
                let left = line(report::left_unflushed(path));
                self.on.out.report(HostEvent::Unflushed(volume, left));
            }
            let line = line(report::unflushed(path));
            it.fail_next_flush(line, &mut self.on.out);
        } else if early {
            it.losses.note_before_claim(line(report::LEFT_EARLY));
        }
        let it = &mut *self.volume;
        it.head.forget(index);
        it.places[usize::from(index.0)] = VACANT;
        self.paths[number] = Path::vacant(number);
        let it = &mut *self.volume;
        it.settle(self.paths, &mut self.on.out);
        self.io().release_flushes(now_ns);
        let it = &mut *self.volume;
        it.report_all_paths_down(self.paths, self.on.shutdown.is_closing(), &mut self.on.out);
    }
}

impl HostEngine {
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
                    self.sessions_of(place as usize)
                        .begin(place as usize, now_ns);
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
                if let Some(number) = self.number(volume, path) {
                    self.sessions_of(number)
                        .obey_with(number, &what, serial, now_ns);
                }
            }
        }
    }

    fn join(&mut self, volume: u16, index: PathIndex, place: usize, config: PathConfig) {
        let it = &mut self.volumes[usize::from(volume)];
        it.make_room(index, &config);
        it.head.set_draining(index, true);
        self.settle_in(volume, index, place, config);
        self.paths[place].set_admin_state(AdminState::Joining);
        self.rouse_hedger();
    }

    /// Puts a path into its place of the table.
    fn settle_in(&mut self, volume: u16, index: PathIndex, place: usize, config: PathConfig) {
        if is_device(&config.kind) {
            self.on
                .out
                .outputs
                .expect_requests(self.on.settings.io_max as usize);
        }
        for number in self.paths.len()..=place {
            self.paths.push(Path::vacant(number));
        }
        self.paths[place] = Path::new(place, volume, index, config);
        self.volumes[usize::from(volume)].places[usize::from(index.0)] = place;
    }

    fn open_volume(&mut self, volume: u16, mut config: VolumeConfig, places: &[u32], now_ns: u64) {
        let numbers = config.numbers();
        let numbers = numbers.unwrap_or_else(|| unreachable!("it was checked before"));
        let paths = core::mem::take(&mut config.paths);
        let health = &mut config.recovery.health;
        *health = probation::limits(*health, self.on.settings.io_max, self.on.settings.scratch);
        let mut it = Volume::new(volume, config, self.on.settings.io_max);
        for (index, path) in numbers.iter().zip(&paths) {
            it.make_room(*index, path);
        }
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
        self.rouse_hedger();
        for ((index, path), &place) in numbers.into_iter().zip(paths).zip(places) {
            self.settle_in(volume, index, place as usize, path);
            if self.started {
                self.sessions_of(place as usize)
                    .begin(place as usize, now_ns);
            }
        }
    }

    /// Advances what this core has yet to do for changes. Returns whether any of it was done.
    #[cold]
    pub(super) fn take_steps(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        for (of, step, serial) in self.on.changes.steps() {
            let unflushed = match of {
                Changing::Path(number) => self
                    .sessions_of(number)
                    .take_path_step(number, step, now_ns),
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
            // What waits in it is no path's, and was ended.
            ChangeStep::Forget => self.paths_of(volume).next().is_none(),
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

/// A final flush has ended.
///
/// # Panics
/// If none is under way under this name.
#[cold]
pub(super) fn final_flush_ended(paths: &mut [Path], token: u32, done: bool) {
    let path = paths.get_mut((token >> 16) as usize);
    let Some(path) = path.filter(|_| is_final_flush(token)) else {
        unreachable!("a flush ended of no path: {token:#x}");
    };
    let to = match path.cache.final_flush() {
        FinalFlush::Out { .. } => FinalFlush::Ended(done),
        // It was not for the one that waits now.
        FinalFlush::Late { .. } => FinalFlush::None,
        it => unreachable!("{}: a final flush ended that is {it:?}", path.uri),
    };
    path.cache.set_final_flush(to);
}
