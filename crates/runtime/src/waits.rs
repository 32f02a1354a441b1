//! How a reactor waits: always polling, never, or as long as that pays.
//!
//! # Contract
//! A turn's operations reach the kernel before memory is watched, by the call that reads the clock
//! for those that may start only before a time (T49): polling comes behind it. Completions are
//! looked at in memory; the kernel is entered only when the ring says that it has work to finish
//! (`IORING_SQ_TASKRUN`).
use crate::limits::SLEEP_NS;
use crate::reactor::Reactor;
use crate::{PollTally, Poller, Polling};
use engine::Machine;
use std::fs::File;
use std::mem;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;
use sys::{Errno, Wait, os};

/// Sleeps that measure a wake-up when a reactor starts: how many, and how long.
const MEASURES: usize = 7;
const MEASURE_NS: u64 = 50_000;
/// A scheduler's tick at most kernels.
const TICK_NS: u64 = 1_000_000;

/// A reactor's way to wait.
pub(crate) struct Waits {
    mode: Mode,
    tally: Arc<PollTally>,
    /// Something arrived since the last wait, other than the end of a send.
    pub(crate) has_arrival: bool,
}

enum Mode {
    Polls,
    Decides(Box<Poller>, RunQueue),
    Sleeps,
}

/// Time that a thread waited for a CPU, as the system counts it.
struct RunQueue {
    /// `/proc/PID/task/TID/schedstat`; `None`: this kernel has none.
    file: Option<File>,
}

/// How a wait ended.
pub(crate) enum Waited {
    /// There was something to do; or perhaps there is.
    Awake,
    /// A sleep that began then, with this timer, ns.
    Slept(u64, Option<u64>),
}

/// Why memory is watched no more.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    /// There is a completion, or a timer is due.
    Ready,
    /// The kernel wants to be entered to post one.
    Enter,
    /// It took too long.
    Expired,
}

impl Waits {
    pub(crate) fn new(polling: Polling, tally: Arc<PollTally>) -> Self {
        let mode = match polling {
            Polling::Always => Mode::Polls,
            Polling::Never | Polling::Adaptive(0) => Mode::Sleeps,
            Polling::Adaptive(permille) => {
                let poller = Poller::new(permille, os::now_ns(), Arc::clone(&tally));
                Mode::Decides(Box::new(poller), RunQueue::new())
            }
        };
        Self {
            mode,
            tally,
            has_arrival: false,
        }
    }

    /// Something is sent to a peer or a device.
    #[inline]
    pub(crate) fn handle_sent(&mut self) {
        if let Mode::Decides(poller, _) = &mut self.mode {
            poller.handle_sent();
        }
    }

    fn poller(&mut self) -> Option<&mut Poller> {
        match &mut self.mode {
            Mode::Decides(poller, _) => Some(poller),
            Mode::Polls | Mode::Sleeps => None,
        }
    }
}

impl RunQueue {
    /// Of the calling thread.
    fn new() -> Self {
        let file = File::open("/proc/thread-self/schedstat").ok();
        Self { file }
    }

    /// All of it so far, ns.
    fn waited_ns(&self) -> u64 {
        let mut text = [0; 64];
        let file = self.file.as_ref();
        let read = file.and_then(|file| file.read_at(&mut text, 0).ok());
        let counted = read.and_then(|count| waited_ns(&text[..count]));
        // An involuntary switch is followed by a wait of about a tick.
        counted.unwrap_or_else(|| os::involuntary_switches() * TICK_NS)
    }
}

/// The second of three numbers: time on the CPU, time that it was waited for, how often.
fn waited_ns(schedstat: &[u8]) -> Option<u64> {
    let text = str::from_utf8(schedstat).ok()?;
    text.split_ascii_whitespace().nth(1)?.parse().ok()
}

impl<M: Machine> Reactor<M>
where
    M::Control: Send,
{
    /// Submits everything; polls or sleeps until there is something to do.
    pub(crate) fn wait(&mut self, now_ns: u64) -> Result<Waited, Errno> {
        let timer_ns = self.next_timeout();
        let behind = self.wants_send_end && self.ring.has_unreported();
        self.wants_send_end = behind;
        let is_busy = self.again
            || self.mail
            || behind
            || self.ring.has_completion()
            || self.devices.has_results()
            || !self.machine.may_sleep(now_ns);
        if matches!(self.waits.mode, Mode::Polls) {
            if self.ring.wants_enter() {
                self.ring.enter(Wait::No)?;
            }
            if !is_busy && self.watch_memory(timer_ns, u64::MAX) == Watched::Enter {
                self.ring.enter(Wait::No)?;
            }
            return Ok(Waited::Awake);
        }
        if !is_busy && self.poll(now_ns, timer_ns)? {
            return Ok(Waited::Awake);
        }
        let is_busy = is_busy || !self.devices.arm_queues();
        let from_ns = os::now_ns();
        let wait = match timer_ns {
            _ if is_busy => Wait::No,
            None => Wait::Forever,
            Some(at_ns) => match at_ns.saturating_sub(from_ns) {
                0 => Wait::No,
                left_ns => Wait::AtMost(Duration::from_nanos(left_ns)),
            },
        };
        if wait == Wait::No {
            if self.ring.wants_enter() {
                self.ring.enter(wait)?;
            }
            return Ok(Waited::Awake);
        }
        if let Some(poller) = self.waits.poller() {
            poller.begin_wait(from_ns);
        }
        self.ring.enter(wait)?;
        Ok(Waited::Slept(from_ns, timer_ns))
    }

    /// Submits, and watches memory as long as that pays. Whether there is something to do.
    fn poll(&mut self, now_ns: u64, timer_ns: Option<u64>) -> Result<bool, Errno> {
        let Mode::Decides(poller, run_queue) = &mut self.waits.mode else {
            return Ok(false);
        };
        let poll_ns = poller.poll_ns(now_ns, timer_ns);
        if poll_ns == 0 {
            return Ok(false);
        }
        if poller.is_check_due(now_ns) && poller.handle_run_wait(run_queue.waited_ns(), now_ns) {
            return Ok(false);
        }
        if self.ring.wants_enter() {
            self.ring.enter(Wait::No)?;
        }
        let from_ns = os::now_ns();
        let watched = self.watch_memory(timer_ns, from_ns.saturating_add(poll_ns));
        let until_ns = os::now_ns();
        if let Some(poller) = self.waits.poller() {
            poller.begin_wait(from_ns);
            poller.handle_polled(from_ns, until_ns, watched != Watched::Expired);
        }
        if watched == Watched::Enter {
            self.ring.enter(Wait::No)?;
        }
        Ok(watched != Watched::Expired)
    }

    /// Watches memory until there is something to do, or `until_ns`; `u64::MAX`: for ever.
    #[inline(never)] // `bench cores` leaves its instructions out
    fn watch_memory(&mut self, timer_ns: Option<u64>, until_ns: u64) -> Watched {
        let end_ns = timer_ns.unwrap_or(u64::MAX).min(until_ns);
        loop {
            if self.ring.has_completion() || self.devices.is_queue_ready() {
                return Watched::Ready;
            }
            if self.ring.wants_enter() {
                return Watched::Enter;
            }
            if end_ns != u64::MAX && end_ns <= os::now_ns() {
                return match timer_ns == Some(end_ns) {
                    true => Watched::Ready,
                    false => Watched::Expired,
                };
            }
            std::hint::spin_loop();
        }
    }

    /// A wait is over, and the time was read.
    pub(crate) fn note_wait(&mut self, waited: Waited) {
        let Waited::Slept(from_ns, timer_ns) = waited else {
            return;
        };
        // Else something was there already.
        if self.now_ns.saturating_sub(from_ns) <= SLEEP_NS {
            return;
        }
        self.waits.tally.set_enters(self.ring.enters());
        let has_completion = self.ring.has_completion();
        let timer_ns = timer_ns.filter(|at_ns| *at_ns <= self.now_ns && !has_completion);
        let now_ns = self.now_ns;
        match self.waits.poller() {
            Some(poller) => poller.handle_slept(from_ns, timer_ns, now_ns),
            None => self.waits.tally.count_sleep(),
        }
    }

    /// Events were handled: a wait ends with the first that is an arrival.
    #[inline]
    pub(crate) fn note_arrival(&mut self) {
        let now_ns = self.now_ns;
        if mem::take(&mut self.waits.has_arrival)
            && let Some(poller) = self.waits.poller()
        {
            poller.handle_arrival(now_ns);
        }
    }

    /// Before the first turn: how late a sleeper wakes here.
    pub(crate) fn measure_wakeup(&mut self) -> Result<(), Errno> {
        if self.waits.poller().is_none() {
            return Ok(());
        }
        let mut late_ns = Vec::with_capacity(MEASURES);
        for _ in 0..MEASURES {
            let at_ns = os::now_ns() + MEASURE_NS;
            self.ring
                .enter(Wait::AtMost(Duration::from_nanos(MEASURE_NS)))?;
            // A connection was accepted meanwhile.
            if self.ring.has_completion() {
                break;
            }
            late_ns.push(os::now_ns().saturating_sub(at_ns));
        }
        if let Some(poller) = self.waits.poller() {
            poller.handle_measured(&mut late_ns);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_for_a_cpu_is_the_second_number() {
        assert_eq!(waited_ns(b"7053416 1234567 42\n"), Some(1_234_567));
        assert_eq!(waited_ns(b"7053416\n"), None);
        let without = RunQueue { file: None };
        assert_eq!(without.waited_ns() % TICK_NS, 0);
    }
}
