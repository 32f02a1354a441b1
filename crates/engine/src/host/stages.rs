//! The stages of changes, on core 0: each ends when every core has answered its order, when what it
//! waits for has happened, or when its time is over.
//!
//! # Contract
//! A stage that loses its path goes on as for any lost path, and one whose time is over is called
//! off, or forced, as was asked. Whatever happens, whoever asked is answered once.
use super::change::{Job, Stage, What};
use super::path::{AdminState, FinalFlush, Link, Role};
use super::types::HostEvent;
use super::{HostEngine, VACANT, report};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

impl HostEngine {
    /// Core 0: a core, perhaps this one, has done what it was told.
    pub(super) fn step_done(&mut self, serial: u32, unflushed: bool) {
        if let Some(job) = self.jobs.iter_mut().find(|job| job.serial == serial) {
            job.left = job.left.saturating_sub(1);
            job.unflushed |= unflushed;
        }
    }

    /// Core 0: takes all changes as far as they go now; whether there was any.
    fn advance_changes(&mut self, now_ns: u64) -> bool {
        let (mut at, mut any) = (0, false);
        while at < self.jobs.len() {
            let mut job = self.jobs.swap_remove(at);
            if self.shutdown.has_begun() {
                self.answer(&mut job, Err("the engine is stopping".into()));
                continue;
            }
            let over = loop {
                let stage = job.stage;
                let over = match stage.is_of_volume() {
                    true => self.advance_volume(&mut job, now_ns),
                    false => self.advance_path(&mut job, now_ns),
                };
                any |= over || job.stage != stage;
                if over || job.stage == stage {
                    break over;
                }
            };
            if !over {
                // Back to where it was; what took its place meanwhile comes last.
                self.jobs.push(job);
                let last = self.jobs.len() - 1;
                self.jobs.swap(at, last);
                at += 1;
            }
        }
        any
    }

    /// Takes changes and errands as far as they go now.
    #[cold]
    pub(super) fn go_on(&mut self, now_ns: u64) {
        // Each leads to stages of the other; all of them end.
        while self.run_errands(now_ns) | self.advance_changes(now_ns) {}
    }

    /// When the patience with the first change is over.
    pub(super) fn changes_timeout(&self) -> Option<u64> {
        let times = self.jobs.iter().map(|job| job.until_ns);
        times.filter(|&at_ns| at_ns < u64::MAX).min()
    }

    /// One stage of a change of a path; true: it is over.
    fn advance_path(&mut self, job: &mut Job, now_ns: u64) -> bool {
        let Some(number) = self.number(job.volume, job.path) else {
            if job.stage != Stage::Forget {
                self.answer(job, Err("it has left meanwhile".into()));
            }
            return job.stage != Stage::Forget || self.forgotten(job);
        };
        let path = &self.paths[number];
        let lost = path.is_lost();
        let late = job.until_ns <= now_ns;
        if late {
            job.until_ns = u64::MAX;
        }
        // The core that has its mirror knows whether it leaves early.
        let asks = lost && !job.force && self.volumes[usize::from(job.volume)].is_leg_elsewhere;
        let leaves = matches!(job.stage, Stage::Leave | Stage::Flush) && !job.force;
        let early = || (asks && job.unflushed).then(|| report::too_early(path));
        if leaves && let Some(why) = self.loses_by_leaving(number).or_else(early) {
            self.take_back(job, now_ns);
            self.answer(job, Err(why));
            return true;
        }
        match job.stage {
            Stage::Join | Stage::Return => return self.arrive(job, number, late, now_ns),
            Stage::Drain if job.left == 0 || lost => {
                self.answer(job, Ok(()));
                return true;
            }
            Stage::Drain if late => {
                let why = format!(
                    "{}: I/O is still in flight on it; it stays draining",
                    path.uri
                );
                self.answer(job, Err(why));
                return true;
            }
            Stage::Leave if asks && job.left > 0 => {}
            Stage::Leave | Stage::Flush | Stage::Part if lost => self.begin_to_forget(job, now_ns),
            Stage::Leave if job.left == 0 => self.flush_or_part(job, number, now_ns),
            Stage::Leave | Stage::Flush if late => return self.give_up(job, number, now_ns),
            Stage::Flush => return self.flush_ended(job, number, now_ns),
            Stage::Part if job.left == 0 => {
                self.shut(number, now_ns);
                job.stage = Stage::Shut;
            }
            Stage::Shut if path.is_disconnected() && path.admin.is_none() => {
                self.begin_to_forget(job, now_ns);
            }
            Stage::Forget => return job.left == 0 && self.forgotten(job),
            _ => {}
        }
        false
    }

    /// A path is to be in use; true: it is, or won't be.
    fn arrive(&mut self, job: &mut Job, number: usize, late: bool, now_ns: u64) -> bool {
        let path = &self.paths[number];
        let lost = path.is_over();
        match job.stage {
            Stage::Join if lost => {
                let line = path.comeback.line.clone();
                let unknown = || format!("{}: not every core could open its queue", path.uri);
                job.failure = Some(
                    Some(line)
                        .filter(|it| !it.is_empty())
                        .unwrap_or_else(unknown),
                );
                self.begin_to_forget(job, now_ns);
            }
            Stage::Join if job.left == 0 => {
                self.order(job, What::Use, now_ns);
                self.answer(job, Ok(()));
                return true;
            }
            Stage::Join if late => self.lose(number, Some("not connected in time"), now_ns),
            Stage::Return if path.is_live() => {
                self.answer(job, Ok(()));
                return true;
            }
            Stage::Return if late || path.admin_state() == AdminState::GivenUp => {
                let of = &self.volumes[usize::from(path.volume)];
                let tried_ns = of.recovery.ctrl_loss_ns;
                let why = match path.admin_state() {
                    AdminState::GivenUp => report::stays_lost(&of.name, path, tried_ns),
                    _ => report::not_yet(&path.comeback.line, tried_ns),
                };
                self.answer(job, Err(why));
                return true;
            }
            _ => {}
        }
        false
    }

    /// All cores are drained. Any core's flush covers what the controller completed for all (T13).
    fn flush_or_part(&mut self, job: &mut Job, number: usize, now_ns: u64) {
        let early = self.leaves_early(number);
        let path = &mut self.paths[number];
        let live = path.is_live();
        if live && (job.unflushed || path.is_unflushed() || early) {
            job.stage = Stage::Flush;
            match path.cache.final_flush.is_out() {
                true => path.cache.final_flush = FinalFlush::Late,
                false => self.flush_for_good(number, now_ns),
            }
        } else {
            // One that is just coming back has not flushed what it had.
            job.stage = Stage::Part;
            self.order(job, What::Part(live), now_ns);
        }
    }

    fn flush_ended(&mut self, job: &mut Job, number: usize, now_ns: u64) -> bool {
        match self.paths[number].cache.final_flush {
            FinalFlush::Out | FinalFlush::Late => {}
            FinalFlush::None => self.flush_for_good(number, now_ns),
            FinalFlush::Ended(true) => {
                job.stage = Stage::Part;
                self.order(job, What::Part(true), now_ns);
            }
            FinalFlush::Ended(false) => return self.give_up(job, number, now_ns),
        }
        false
    }

    /// A path can't leave in order: it is lost, or used again.
    fn give_up(&mut self, job: &mut Job, number: usize, now_ns: u64) -> bool {
        if job.force {
            self.lose(
                number,
                Some("removed before all of its I/O had ended"),
                now_ns,
            );
            return false;
        }
        let what = match job.stage {
            Stage::Flush => "its controller didn't flush",
            _ => "its I/O didn't end in time",
        };
        let now = match job.drained {
            true => "it is draining again",
            false => "it is in use again",
        };
        let why = format!("{}: {what}; {now}", self.paths[number].uri);
        self.take_back(job, now_ns);
        self.answer(job, Err(why));
        true
    }

    /// A path that can't leave is what it was before.
    fn take_back(&mut self, job: &mut Job, now_ns: u64) {
        let what = match job.drained {
            true => What::Drain,
            false => What::Use,
        };
        self.order(job, what, now_ns);
    }

    /// The controller of a path whose queues are closed on all cores is shut down.
    fn shut(&mut self, number: usize, now_ns: u64) {
        let path = &mut self.paths[number];
        let conn = path.conn(Role::Admin);
        match (path.link(Role::Admin), &mut path.admin) {
            (Link::Open, Some(admin)) => {
                path.shutting_down = true;
                admin.shutdown(now_ns);
                self.outputs.transmit(conn);
                self.drain_admin(number, now_ns);
                let timeout_ns = self.paths[number].timeout_ns();
                self.timers.wake_by(timeout_ns.unwrap_or(u64::MAX));
            }
            _ => self.close(number, Role::Admin, true, now_ns),
        }
    }

    /// A path is disconnected, or lost: whoever asked is answered, and all cores forget it.
    fn begin_to_forget(&mut self, job: &mut Job, now_ns: u64) {
        let result = job.failure.take().map_or(Ok(()), Err);
        self.answer(job, result);
        job.stage = Stage::Forget;
        let number = self.number(job.volume, job.path);
        job.place = number.unwrap_or(VACANT);
        job.kind = number.map(|number| self.paths[number].kind.clone());
        job.until_ns = u64::MAX;
        // Another core's flush may have covered what one core still counts as unflushed: it would
        // fail a flush for it.
        let heard = |number: usize| !self.paths[number].cache.unheard && !self.is_doubtful(number);
        let covered = !job.unflushed && number.is_some_and(heard);
        self.order(job, What::Forget(covered), now_ns);
    }

    /// All cores have forgotten a path.
    fn forgotten(&mut self, job: &mut Job) -> bool {
        if job.left == 0 {
            let freed = HostEvent::Freed(job.volume, Some(job.path));
            self.events.push_back(freed);
            self.events.extend(job.kind.take().map(HostEvent::Released));
        }
        job.left == 0
    }

    /// Why a new volume can't be; `late`: not every core has it, and the time is over.
    fn why_not_open(&self, volume: u16, late: bool) -> Option<String> {
        let mut paths = self.paths_of(volume);
        if let Some(refused) = paths.find(|path| path.refused) {
            return Some(refused.comeback.line.clone());
        }
        let mut paths = self.paths_of(volume);
        if paths.all(|path| path.comeback.tried && path.is_over()) {
            let lines = self
                .paths_of(volume)
                .map(|path| path.comeback.line.as_str());
            let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
            return Some(match lines.is_empty() {
                true => "none of its paths could be connected on every core".into(),
                false => lines.join("; "),
            });
        }
        late.then(|| "its paths were not connected on every core in time".into())
    }

    /// One stage of a change of a volume; true: it is over.
    fn advance_volume(&mut self, job: &mut Job, now_ns: u64) -> bool {
        let late = job.until_ns <= now_ns;
        if late {
            // It goes on however late it is, and nobody need be woken for that again.
            job.until_ns = u64::MAX;
        }
        match job.stage {
            Stage::Open => {
                job.failure = self.why_not_open(job.volume, late && job.left > 0);
                if job.failure.is_some() {
                    job.stage = Stage::Empty;
                    self.order(job, What::Close, now_ns);
                    let until_ns = now_ns.saturating_add(self.settings.connect_timeout_ns);
                    self.empty(job.volume, until_ns, now_ns);
                } else if job.left == 0 {
                    self.answer(job, Ok(()));
                    return true;
                }
            }
            Stage::Empty => {
                let mut jobs = self.jobs.iter();
                let empty = self.paths_of(job.volume).next().is_none()
                    && !jobs.any(|it| it.volume == job.volume);
                if empty {
                    job.stage = Stage::ForgetVolume;
                    self.order(job, What::ForgetVolume, now_ns);
                }
            }
            _ if job.left == 0 => {
                let result = job.failure.take().map_or(Ok(()), Err);
                self.answer(job, result);
                self.events.push_back(HostEvent::Freed(job.volume, None));
                return true;
            }
            _ => {}
        }
        false
    }
}
