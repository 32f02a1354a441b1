//! Does, on core 0, what changes of paths and volumes decide ([`super::pending_change`]).
//!
//! # Contract
//! Whatever happens, the caller that asked for a change is answered once.
use super::Multipath;
use super::change::What;
use super::connections::Role;
use super::session::Sessions;

use super::pending_change::{Next, PathView, PendingChange, VolumeView};
use super::types::HostEvent;
use alloc::string::String;
use policy::PathIndex;

impl Sessions<'_> {
    /// Shuts down the controller of a path whose queues are closed on all cores.
    fn shut_down(&mut self, at: PathIndex, now_ns: u64) {
        let session = &mut self.volume.paths[at].session;
        if !session.is_open(Role::Admin) {
            return session.close(Role::Admin, true, &mut self.on.out, now_ns);
        }
        session.shut_down(now_ns);
        self.on.out.transmit(session.conn(Role::Admin));
        self.drain_admin(at, now_ns);
        let timeout_ns = self.volume.paths[at].session.timeout_ns();
        self.on.out.wake_by(timeout_ns.unwrap_or(u64::MAX));
    }
}

impl Multipath {
    /// Core 0: takes all changes as far as they go now; whether there was any.
    fn advance_changes(&mut self, now_ns: u64) -> bool {
        let (mut at, mut any) = (0, false);
        while at < self.on.changes.pending().len() {
            let mut change = self.on.changes.take(at);
            if self.on.shutdown.has_begun() {
                change.answer(Err("the engine is stopping".into()), &mut self.on.out);
                continue;
            }
            let over = loop {
                let stage = change.stage();
                let over = if stage.is_of_volume() {
                    self.advance_volume(&mut change, now_ns)
                } else {
                    self.advance_path(&mut change, now_ns)
                };
                any |= over || change.stage() != stage;
                if over || change.stage() == stage {
                    break over;
                }
            };
            if !over {
                self.on.changes.put_back(at, change);
                at += 1;
            }
        }
        any
    }

    /// Takes changes and this core's steps as far as they go now.
    #[cold]
    pub(super) fn advance_all_changes(&mut self, now_ns: u64) {
        // Each leads to stages of the other; all of them end.
        while self.take_steps(now_ns) | self.advance_changes(now_ns) {}
    }

    /// One stage of a change of a path; true: it is over.
    fn advance_path(&mut self, change: &mut PendingChange, now_ns: u64) -> bool {
        let at = change.path;
        let it = self.volumes.get(usize::from(change.volume));
        let Some((it, path)) = it.and_then(|it| Some((it, it.paths.get(at)?))) else {
            match change.next_without_path() {
                Next::Wait => return false,
                Next::Freed => change.free_path(&mut self.on.out),
                Next::End(result) => change.answer(result, &mut self.on.out),
                next => unreachable!("{next:?} needs a path"),
            }
            return true;
        };
        let minds = change.minds_unflushed();
        let view = PathView {
            path,
            volume: it,
            doubt: minds.then(|| it.loses_by_leaving(at)).flatten(),
            needs_flush: path.is_unflushed() || it.leaves_early(at),
        };
        let next = change.next_of_path(&view, now_ns);
        let mut sessions = self.sessions(change.volume);
        match next {
            Next::Wait => {}
            Next::End(result) => {
                change.answer(result, &mut self.on.out);
                return true;
            }
            Next::Use => {
                self.order(change, What::Use, now_ns);
                change.answer(Ok(()), &mut self.on.out);
                return true;
            }
            Next::TakeBack(why) => {
                self.order(change, change.before(), now_ns);
                change.answer(Err(why), &mut self.on.out);
                return true;
            }
            Next::Lose(why) => sessions.lose(at, Some(why), now_ns),
            Next::Flush => {
                let (path, on) = sessions.path(at);
                match path.cache.is_flushing() {
                    true => path.cache.leave_final_flush(),
                    false => path.send_final_flush(on.settings, on.out, now_ns),
                }
            }
            Next::CloseQueues(flushed) => self.order(change, What::CloseQueue(flushed), now_ns),
            Next::ShutDown => sessions.shut_down(at, now_ns),
            Next::Forget(result) => self.order_to_forget(change, result, now_ns),
            Next::Freed => {
                change.free_path(&mut self.on.out);
                return true;
            }
            next @ (Next::Empty | Next::ForgetVolume | Next::VolumeFreed(_)) => {
                unreachable!("{next:?} is of a volume")
            }
        }
        false
    }

    /// Answers the change by which a path that is disconnected, or lost, leaves, and has all cores
    /// forget it.
    fn order_to_forget(
        &mut self,
        change: &mut PendingChange,
        result: Result<(), String>,
        now_ns: u64,
    ) {
        change.answer(result, &mut self.on.out);
        let it = &self.volumes[usize::from(change.volume)];
        let path = &it.paths[change.path];
        change.place = Some(path.place);
        change.kind = Some(path.kind.clone());
        // Another core's flush may have covered what one core still counts as unflushed: it would
        // fail a flush for it.
        let heard = !path.cache.awaits_reports() && !it.is_doubtful(change.path);
        let covered = !change.unflushed && heard;
        self.order(change, What::Forget(covered), now_ns);
    }

    /// One stage of a change of a volume; true: it is over.
    fn advance_volume(&mut self, change: &mut PendingChange, now_ns: u64) -> bool {
        let view = VolumeView {
            paths: self.volumes[usize::from(change.volume)]
                .paths
                .iter()
                .collect(),
            is_changing: self.on.changes.is_changing(change.volume),
        };
        match change.next_of_volume(&view, now_ns) {
            Next::Wait => {}
            Next::End(result) => {
                change.answer(result, &mut self.on.out);
                return true;
            }
            Next::Empty => {
                self.order(change, What::Close, now_ns);
                let until_ns = now_ns.saturating_add(self.on.settings.connect_timeout_ns);
                self.empty(change.volume, until_ns, now_ns);
            }
            Next::ForgetVolume => self.order(change, What::ForgetVolume, now_ns),
            Next::VolumeFreed(result) => {
                change.answer(result, &mut self.on.out);
                let freed = HostEvent::Freed(change.volume, None);
                self.on.out.report(freed);
                return true;
            }
            next => unreachable!("{next:?} is of a path"),
        }
        false
    }
}
