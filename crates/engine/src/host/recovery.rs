//! Rules of a volume for paths that fail: its knobs, and what they have led to.
use super::types::HostEvent;
use super::{Multipath, probation};
use multipath::AnaUse;
use multipath::health::Limits;

/// Fate of writes whose path was lost before it answered (T9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteFailover {
    /// They are held until the lost controller can't execute them any more.
    Fenced,
    /// They go to another path at once. A controller that was cut off may then execute the old copy
    /// over data that were written and acknowledged since: they are lost silently.
    Immediate,
}

/// Rules of a volume for failing paths. Made by `default()` or [`Recovery::NONE`], then changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// Lost paths are connected again, and I/O survives them.
    pub enabled: bool,
    /// First wait before a lost path is connected again; doubled with every failure. 100 ms: what a
    /// restarted target or a rerouted network needs at least, and not yet felt.
    pub reconnect_min_ns: u64,
    /// Longest such wait. 10 s, as nvme-cli: a path that returns after a night is used within
    /// seconds, and a dead target sees six attempts a minute. A path that dies again before it has
    /// lived so long goes on with the wait it had.
    pub reconnect_max_ns: u64,
    /// A path that was lost so long is given up; `u64::MAX`: never. 600 s, as nvme-cli: longer than
    /// a controller takes to be exchanged or started anew. Paths of a volume that was never ready
    /// are not given up.
    pub ctrl_loss_ns: u64,
    /// From the loss of the last usable path on, I/O that waits for one fails after so long, and
    /// later I/O at once; `u64::MAX`: it waits. Off, as nvme-cli: a file system survives a pause,
    /// and no error.
    pub fast_io_fail_ns: u64,
    /// Whether writes wait for proof or bound. Fenced: acknowledged data are never lost.
    pub write_failover: WriteFailover,
    /// Stands in for a Command Quiesce Time that the controller doesn't report, and for a shorter
    /// one where it is longer than [`Recovery::QUIESCE_NS`].
    pub quiesce_ns: u64,
    /// All controllers share their write cache, so that any of them can flush for all.
    pub shared_write_cache: bool,
    /// Longest wait of a flush for a lost controller with unflushed writes (T13). 60 s: longer than
    /// a target takes to restart, shorter than people take to reboot.
    pub flush_timeout_ns: u64,
    /// Conditions that put a path on probation. Off in [`Recovery::NONE`].
    pub health: Limits,
    /// Use of non-optimized paths; `None`: strict, but merge for weighted-latency (T44).
    pub ana: Option<AnaUse>,
    /// Most repetitions of an I/O on a busy path. 5, as the kernel's host has it.
    pub retries_max: u8,
    /// Time that one I/O may spend in attempts, waits without a path and holds aside (T4). 120 s:
    /// four I/O time-outs of 30 s.
    pub attempts_ns: u64,
    /// The engine before this one did not stop cleanly: what it had sent may be executed for so
    /// long from the start of this one, until then no data are changed (T9), `u64::MAX`: nothing
    /// bounds it; and controllers may have unflushed writes of it, however long ago that was (T13).
    /// 0 after one that stopped in order and left such writes.
    pub unclean_stop_ns: Option<u64>,
    /// The engine before this one had lost acknowledged writes with a path that left, and was gone
    /// before a flush had failed for that: the first one does (T13). A mark says so as long as
    /// [`HostEvent::Loss`](super::HostEvent::Loss) does.
    pub unreported_loss: bool,
    /// No controller's queues are opened before [`HostControl::Marked`] has said that its bound is
    /// kept for the engine after this one. The number comes back in what is asked and said of that
    /// ([`Mark::serial`]), and is ignored where an answer has another one.
    ///
    /// [`HostControl::Marked`]: super::HostControl::Marked
    /// [`Mark::serial`]: super::Mark::serial
    pub marks: Option<u64>,
    /// The volume's home, a core: it gets an I/O queue first where a controller grants fewer than
    /// there are cores. `None`: the core of the volume's number.
    pub home: Option<u16>,
}

impl Recovery {
    /// 5 s: longer than a disk's own error recovery usually takes.
    pub const QUIESCE_NS: u64 = 5_000_000_000;

    /// A lost path stays lost and its I/O fails: for measurements that want to see every error.
    pub const NONE: Self = Self {
        enabled: false,
        reconnect_min_ns: 100_000_000,
        reconnect_max_ns: 10_000_000_000,
        ctrl_loss_ns: 600_000_000_000,
        fast_io_fail_ns: u64::MAX,
        write_failover: WriteFailover::Fenced,
        quiesce_ns: Self::QUIESCE_NS,
        shared_write_cache: false,
        flush_timeout_ns: 60_000_000_000,
        health: Limits::OFF,
        ana: None,
        retries_max: 5,
        attempts_ns: 120_000_000_000,
        unclean_stop_ns: None,
        unreported_loss: false,
        marks: None,
        home: None,
    };

    pub(super) fn is_possible(&self) -> bool {
        let reconnects = (1..=self.reconnect_max_ns).contains(&self.reconnect_min_ns);
        reconnects && self.health.is_possible()
    }
}

impl Multipath {
    /// Other times, repetitions and limits for a volume that runs. Waits that have begun go on as
    /// they were, but for that of I/O for a usable path; a path that was given up stays so.
    ///
    /// Not the others: what bounds a hold was kept durably before controllers were used, and what
    /// was acknowledged under one rule of failover or caches must not be judged by another.
    pub(super) fn set_recovery(&mut self, volume: u16, to: Recovery, now_ns: u64) {
        let (io_max, scratch) = (self.on.settings.io_max, self.on.settings.scratch);
        let it = self.volumes.get_mut(usize::from(volume));
        let Some(it) = it.filter(|it| !it.is_vacant()) else {
            return; // it was removed while the message was under way
        };
        if !to.is_possible() {
            let line = alloc::format!("{}: times not changed: they can't be together", it.name);
            return self.on.out.report(HostEvent::Warning(volume, line));
        }
        let before = it.recovery;
        it.recovery = Recovery {
            reconnect_min_ns: to.reconnect_min_ns,
            reconnect_max_ns: to.reconnect_max_ns,
            ctrl_loss_ns: to.ctrl_loss_ns,
            fast_io_fail_ns: to.fast_io_fail_ns,
            flush_timeout_ns: to.flush_timeout_ns,
            health: probation::limits(to.health, io_max, scratch),
            retries_max: to.retries_max,
            attempts_ns: to.attempts_ns,
            ..before
        };
        it.head.set_health(it.recovery.health);
        if it.recovery.fast_io_fail_ns != before.fast_io_fail_ns {
            it.renew_patience(&mut self.on.ios);
        }
        let io_timeout_ns = self.on.settings.io_timeout_ns;
        let unseen_ns_max = probation::unseen_ns_max(&self.volumes, io_timeout_ns);
        self.on.hedger.set_unseen_max(unseen_ns_max);
        self.on.out.wake_by(now_ns);
    }
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            enabled: true,
            health: Limits::default(),
            ..Self::NONE
        }
    }
}

/// Why writes are held. Times are of the engine's clock, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReason {
    /// The lost controller is being reset over its admin connection; unless it answers until then,
    /// its connections are closed and the bound counts.
    Resetting(u64),
    /// Connections of the lost controller are still being closed.
    Closing,
    /// The lost controller may execute them until then, ns.
    Until(u64),
    /// It says that it was reset, but not how long it takes to quiesce: it is believed then, ns.
    Quiescing(u64),
    /// Without a keep-alive time-out nothing bounds how long the lost controller may execute them.
    Unbounded,
    /// The engine before this one did not stop cleanly: what it had sent may be executed until then
    /// (`u64::MAX`: nothing bounds it).
    UncleanStop(u64),
}

/// I/Os of a volume on this core that wait, and for what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HoldStats {
    /// Changes of data held because a lost controller may yet execute them (T9).
    pub held: u32,
    /// When the oldest of them was submitted, ns; `None`: none.
    pub held_since_ns: Option<u64>,
    /// Reason why that one waits.
    pub reason: Option<HoldReason>,
    /// Of the held ones, those that wait for the end of what the engine before this one had sent.
    pub gated: u32,
    /// When the oldest of these was submitted, ns.
    pub gated_since_ns: Option<u64>,
    /// Until when changes of data wait for that, ns; `None`: they don't, `u64::MAX`: nothing bounds
    /// it.
    pub gate_until_ns: Option<u64>,
    /// Changes of data that wait behind an overlapping one.
    pub behind: u32,
    /// I/Os that wait for a usable path.
    pub queued: u32,
    /// When the oldest of them was submitted, ns.
    pub queued_since_ns: Option<u64>,
    /// Flushes that wait for a lost controller with unflushed writes (T13).
    pub flushes: u32,
    /// I/Os that wait to be repeated on a busy path.
    pub delayed: u32,
    /// Holds so far.
    pub held_total: u64,
    /// Of those, ended because the lost controller was reset: proof.
    pub proved_total: u64,
    /// Of those, ended because the bound had passed.
    pub bounded_total: u64,
    /// Of those, because the engine before this one did not stop cleanly.
    pub gated_total: u64,
    /// Changes that did not wait for that, as they were told to
    /// ([`Hints::past_gate`](super::Hints::past_gate)).
    pub past_gate_total: u64,
    /// Longest hold that has ended, ns.
    pub held_ns_max: u64,
    /// Bytes of changes in pieces that were done again: paths count them each time (T13).
    pub again_bytes_total: u64,
    /// Moves to another path so far.
    pub moved_total: u64,
    /// Most moves of one I/O away from paths that were not lost: those that count against it (T4).
    pub moved_max: u8,
    /// Flushes that failed because a lost controller did not come back to flush (T13).
    pub flushes_failed: u64,
    /// When that happened last, ns, and whose writes may be lost.
    pub flush_failed: Option<(u64, policy::PathIndex)>,
}
