//! Both ends of a submission queue (Base 2.0, 3.3.1).
use super::{Entry, Full, Misbehaved, Place, SharedMemory};

/// What a host stores in the tail doorbell when it lets go of the queue: no entry has this number,
/// so whoever reads it fetches nothing more.
pub const LET_GO: u32 = u32::MAX;
/// First word of an entry that was taken back: a reserved opcode of no namespace.
const VOID: u64 = 0x7e;

/// The host's end: puts entries in, then rings once for all of them.
#[derive(Debug)]
pub struct SqProducer {
    place: Place,
    tail: u16,
    /// The controller has fetched what lies before it.
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

    /// Whether entries were pushed that the doorbell doesn't tell of.
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

    /// Tells the controller of everything that was pushed; whether there was anything.
    #[inline]
    pub fn ring(&mut self, memory: &impl SharedMemory) -> bool {
        if self.rung == self.tail {
            return false;
        }
        self.rung = self.tail;
        memory.store_word(self.place.doorbell_at, self.tail.into());
        true
    }

    /// Lets go of the queue: what the controller has not fetched it never will, or as a command
    /// that does nothing. What it has fetched it may yet execute, and is not to if it looks here
    /// first ([`SqConsumer::is_let_go`]).
    ///
    /// Of an entry one word is stored over, at once: who fetches it meanwhile has all of it, or a
    /// command that is none whatever its other words say. A look at the completions after this
    /// finds what the controller takes for heard ([`SqConsumer::was_let_go`]).
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

    /// A completion says that entries before `sqhd` were fetched.
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
    /// As the doorbell said when it was last read.
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

    /// Whether the host has let go of the queue, or nobody has it any more: nothing of it is to be
    /// executed. A load.
    #[inline]
    pub fn is_let_go(&self, memory: &impl SharedMemory) -> bool {
        memory.load_word(self.place.doorbell_at) == LET_GO
    }

    /// Whether the host has let go of the queue by the time that what was posted is there. If not,
    /// a host that lets go, and then looks at its completions once more, sees that.
    pub fn was_let_go(&self, memory: &impl SharedMemory) -> bool {
        memory.fence();
        self.is_let_go(memory)
    }

    /// Nothing is to be executed of this queue, whoever holds a copy of its commands.
    pub fn end(&self, memory: &impl SharedMemory) {
        memory.store_word(self.place.doorbell_at, LET_GO);
    }

    /// Entries to fetch; the doorbell is read only where none are known.
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

    /// A copy of the next entry; `None`: there is none as far as is known.
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
