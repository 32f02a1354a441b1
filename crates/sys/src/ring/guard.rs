//! Operations that may start only before a given time (T49).
//!
//! # Contract
//! A guarded operation is put into the submission ring directly before `io_uring_enter`, after the
//! clock was read. If its time has passed by then, it is not submitted: it ends with [`LATE`], and
//! nothing of it was done. So a process that stood still (SIGSTOP, a frozen container) does not
//! execute earlier decisions. A stop between the clock and the system call that follows it remains
//! possible.
use super::{Completion, Fd, Held, OpId, Returned, Ring, split};
use crate::freeze::{self, Point};
use crate::{Errno, os};
use io_uring::squeue;
use std::collections::VecDeque;

/// Result of an operation that was not started because its time had passed: nothing of it was
/// done. The kernel reports it of cancelled operations, of which there are none with a time.
pub const LATE: Errno = Errno::CANCELED;

/// Operations of one ring that wait for the clock.
pub(super) struct Guarded<E> {
    /// With the time before which each may start, and its slot's number.
    waiting: VecDeque<(u64, u64, E)>,
    /// Slots of those whose time has passed.
    late: VecDeque<u64>,
}

impl<E> Default for Guarded<E> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            late: VecDeque::new(),
        }
    }
}

impl<E> Guarded<E> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn has_late(&self) -> bool {
        !self.late.is_empty()
    }

    pub(super) fn add(&mut self, before_ns: u64, id: u64, entry: E) {
        self.waiting.push_back((before_ns, id, entry));
    }

    pub(super) fn next_late(&mut self) -> Option<u64> {
        self.late.pop_front()
    }

    /// Reads the clock and submits the operations that may still start; the rest is late.
    /// Operations without room in the ring stay here.
    pub(super) fn submit(&mut self, mut push: impl FnMut(&E) -> bool) {
        if self.waiting.is_empty() {
            return;
        }
        let now_ns = os::now_ns();
        while let Some((before_ns, id, entry)) = self.waiting.front() {
            if *before_ns <= now_ns {
                self.late.push_back(*id);
            } else if !push(entry) {
                return;
            }
            self.waiting.pop_front();
        }
    }

    /// Nothing of it is submitted any more.
    fn drop_all(&mut self) {
        let waiting = self.waiting.drain(..);
        self.late.extend(waiting.map(|(_, id, _)| id));
    }
}

impl Ring {
    /// As `start`, of an operation that may start only before a time; `u64::MAX`: at any time.
    pub(super) fn start_before(
        &mut self,
        before_ns: u64,
        (tag, fd): (u64, &Fd),
        held: Held,
        entry: squeue::Entry,
    ) -> OpId {
        if before_ns == u64::MAX {
            return self.start(tag, fd, held, entry);
        }
        let id = self.place(tag, fd, held);
        self.guarded.add(before_ns, id.0, entry.user_data(id.0));
        id
    }

    /// The kernel is entered next.
    pub(super) fn submit_guarded(&mut self) {
        // Entries are in the backlog because the submission ring was full.
        if self.guarded.is_empty() || !self.backlog.is_empty() {
            return;
        }
        freeze::point(Point::Submit);
        freeze::begin();
        let mut queue = self.uring.submission();
        // SAFETY: as in `flush_backlog`: the memory is the slot's, or locked in the arena, until
        // the completion was taken.
        self.guarded
            .submit(|entry| unsafe { queue.push(entry) }.is_ok());
        freeze::point(Point::Clock);
    }

    pub(super) fn drop_guarded(&mut self) {
        self.guarded.drop_all();
    }

    /// The next operation that was not submitted in time.
    pub(super) fn next_late(&mut self) -> Option<Completion> {
        let id = self.guarded.next_late()?;
        let (index, _) = split(id);
        let tag = self.slots[index as usize].tag;
        if let Held::Extent(extent, access) = self.release(index) {
            self.arena.unlock(extent, access);
        }
        Some(late(tag))
    }
}

/// The end of an operation whose time had passed.
pub(super) fn late(tag: u64) -> Completion {
    Completion {
        tag,
        result: Err(LATE),
        more: false,
        nonempty: false,
        returned: Returned::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Extent, RingConfig, Wait, WriteHow};

    fn ring() -> Ring {
        let config = RingConfig {
            operations_max: 1024,
            buffers: 1,
            buffers_lent: 1,
            buffer_bytes: 4096,
        };
        Ring::new(&config, Arena::new(1 << 20).unwrap()).unwrap()
    }

    fn file(name: &str) -> (std::fs::File, Fd) {
        let path = std::env::temp_dir().join(format!("braid-{name}-{}", std::process::id()));
        let mut options = std::fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let fd = Fd::new(file.try_clone().unwrap().into());
        (file, fd)
    }

    fn how(before_ns: u64) -> WriteHow {
        WriteHow {
            durable: false,
            nowait: false,
            before_ns,
        }
    }

    #[test]
    fn t49_a_write_whose_time_passed_is_not_submitted() {
        let (file, fd) = file("late");
        let mut ring = ring();
        let extent = Extent::new(0, 4096);
        ring.bytes_mut(extent).fill(7);
        ring.write(&fd, extent, 0, how(os::now_ns()), 1);
        assert!(ring.wants_enter() && ring.in_flight() == 1);
        ring.enter(Wait::Forever).unwrap();
        let ended = ring.next_completion().unwrap();
        assert_eq!((ended.tag, ended.result), (1, Err(LATE)));
        assert!(ring.in_flight() == 0 && !ring.arena().is_busy(extent));
        assert_eq!(file.metadata().unwrap().len(), 0, "nothing was written");
    }

    #[test]
    fn t49_writes_in_time_are_done_however_many() {
        let (file, fd) = file("in-time");
        let mut ring = ring();
        let extent = Extent::new(0, 512);
        // More than the submission ring holds.
        for number in 0..1000 {
            let before_ns = os::now_ns() + 60_000_000_000;
            ring.write(&fd, extent, 512 * number, how(before_ns), number);
        }
        let mut ended = 0;
        while ended < 1000 {
            ring.enter(Wait::Forever).unwrap();
            while let Some(completion) = ring.next_completion() {
                assert_eq!(completion.result, Ok(512));
                ended += 1;
            }
        }
        assert_eq!(file.metadata().unwrap().len(), 512_000);
    }

    #[test]
    fn a_ring_dropped_with_guarded_writes_drops_them() {
        let (file, fd) = file("dropped");
        let mut ring = ring();
        ring.write(&fd, Extent::new(0, 512), 0, how(u64::MAX - 1), 0);
        drop(ring);
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
