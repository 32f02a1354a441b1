//! Both ends of a submission queue (Base 2.0, 3.3.1).
use super::{Entry, Full, Misbehaved, Place, SharedMemory};

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

    /// Entries to fetch; the doorbell is read only where none are known.
    ///
    /// # Errors
    /// [`Misbehaved::Doorbell`].
    #[inline]
    pub fn available(&mut self, memory: &impl SharedMemory) -> Result<u16, Misbehaved> {
        if self.head == self.tail {
            let value = memory.load_word(self.place.doorbell_at);
            let told = self.place.position(value);
            self.tail = told.ok_or(Misbehaved::Doorbell { value })?;
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
