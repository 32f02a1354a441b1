//! Both ends of a submission queue (Base 2.0, 3.3.1).
use super::{Entry, Full, Misbehaved, Place, SharedMemory};

/// Value of the tail doorbell after the host has let go of the queue. No entry has this number, so
/// the controller fetches nothing more.
pub const LET_GO: u32 = u32::MAX;
/// First word of an entry that was taken back: a reserved opcode of no namespace.
const VOID: u64 = 0x7e;

/// The host's end: puts entries in, then rings once for all of them.
#[derive(Debug)]
pub struct SqProducer {
    place: Place,
    tail: u16,
    /// The controller has fetched all entries before it.
    head: u16,
    /// Tail that the doorbell has.
    rung: u16,
}

impl SqProducer {
    /// Of a queue whose next free entry is `tail`, and in which nothing lies.
    ///
    /// # Panics
    /// Fewer than 2 entries, or `tail` is none of them.
    pub fn new(place: Place, tail: u16) -> Self {
        assert!(place.entries >= 2 && tail < place.entries, "{place:?}");
        Self {
            place,
            tail,
            head: tail,
            rung: tail,
        }
    }

    /// Entries that can be pushed now.
    #[inline]
    pub fn room(&self) -> u16 {
        self.place.entries - 1 - self.place.distance(self.head, self.tail)
    }

    /// Whether pushed entries are not yet published by the doorbell.
    #[inline]
    pub fn is_pending(&self) -> bool {
        self.rung != self.tail
    }

    /// Puts an entry behind the last one. The controller doesn't see it before [`Self::ring`].
    ///
    /// # Errors
    /// [`Full`].
    #[inline]
    pub fn push(&mut self, memory: &impl SharedMemory, entry: &Entry) -> Result<(), Full> {
        let next = self.place.next(self.tail);
        if next == self.head {
            return Err(Full);
        }
        memory.store_entry(self.place.entries_at + 64 * usize::from(self.tail), entry);
        self.tail = next;
        Ok(())
    }

    /// Publishes all pushed entries; returns whether there were any.
    #[inline]
    pub fn ring(&mut self, memory: &impl SharedMemory) -> bool {
        if self.rung == self.tail {
            return false;
        }
        self.rung = self.tail;
        memory.store_word(self.place.doorbell_at, self.tail.into());
        true
    }

    /// Lets go of the queue: entries that the controller has not fetched are never executed. It may
    /// still execute entries that it has fetched, unless it checks [`SqConsumer::is_let_go`] first,
    /// as it must.
    ///
    /// One word of each entry is overwritten atomically: a concurrent fetch gets the whole command,
    /// or one with a reserved opcode, whatever its other words are. The host then reads its
    /// completions once more: they include all that the controller counts as delivered
    /// ([`SqConsumer::was_let_go`]).
    pub fn let_go(&mut self, memory: &impl SharedMemory) {
        memory.store_word(self.place.doorbell_at, LET_GO);
        let mut at = self.head;
        while at != self.tail {
            memory.store(self.place.entries_at + 64 * usize::from(at), VOID);
            at = self.place.next(at);
        }
        memory.fence();
        (self.head, self.rung) = (self.tail, self.tail);
    }

    /// Frees the entries before `sqhd`, which a completion reported as fetched.
    ///
    /// # Errors
    /// [`Misbehaved::SqHead`]: they were never sent.
    #[inline]
    pub fn fetched(&mut self, sqhd: u16) -> Result<(), Misbehaved> {
        let sent = self.place.distance(self.head, self.rung);
        if sqhd >= self.place.entries || self.place.distance(self.head, sqhd) > sent {
            return Err(Misbehaved::SqHead { value: sqhd });
        }
        self.head = sqhd;
        Ok(())
    }
}

/// The controller's end: fetches entries, each word of each once.
#[derive(Debug)]
pub struct SqConsumer {
    place: Place,
    head: u16,
    /// Tail as last read from the doorbell.
    tail: u16,
}

impl SqConsumer {
    /// Of a queue in which nothing lies yet.
    ///
    /// # Panics
    /// Fewer than 2 entries.
    pub fn new(place: Place) -> Self {
        assert!(place.entries >= 2, "{place:?}");
        Self {
            place,
            head: 0,
            tail: 0,
        }
    }

    /// SQHD for completions: entries before it were fetched.
    #[inline]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Whether the host has let go of the queue, or [`Self::end`] was called: no command of it may
    /// be executed. One load.
    #[inline]
    pub fn is_let_go(&self, memory: &impl SharedMemory) -> bool {
        memory.load_word(self.place.doorbell_at) == LET_GO
    }

    /// Whether the host had let go of the queue when the posted completions became visible. If not,
    /// a host that lets go later sees them when it reads its completions once more.
    pub fn was_let_go(&self, memory: &impl SharedMemory) -> bool {
        memory.fence();
        self.is_let_go(memory)
    }

    /// Ends the queue: no command of it may be executed, whichever thread holds a copy.
    pub fn end(&self, memory: &impl SharedMemory) {
        memory.store_word(self.place.doorbell_at, LET_GO);
    }

    /// Number of entries to fetch; the doorbell is read only where none are known.
    ///
    /// # Errors
    /// [`Misbehaved::Doorbell`]; [`Misbehaved::LetGo`].
    #[inline]
    pub fn available(&mut self, memory: &impl SharedMemory) -> Result<u16, Misbehaved> {
        if self.head == self.tail {
            let value = memory.load_word(self.place.doorbell_at);
            let told = self.place.position(value);
            self.tail = told.ok_or(match value {
                LET_GO => Misbehaved::LetGo,
                value => Misbehaved::Doorbell { value },
            })?;
        }
        Ok(self.place.distance(self.head, self.tail))
    }

    /// Fetches a copy of the next entry; `None`: none is known.
    #[inline]
    pub fn fetch(&mut self, memory: &impl SharedMemory) -> Option<Entry> {
        if self.head == self.tail {
            return None;
        }
        let entry = memory.load_entry(self.place.entries_at + 64 * usize::from(self.head));
        self.head = self.place.next(self.head);
        Some(entry)
    }
}
