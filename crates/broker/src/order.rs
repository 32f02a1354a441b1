//! Order of overlapping changes of files and volumes over all threads (T9).
//!
//! # Contract
//! A change of any queue has its place from when its thread takes it until its last operation has
//! ended, also when its client is gone by then. Changes that overlap it, of whichever queue and
//! thread, begin afterwards. So what the kernel still has of a client that died undoes nothing that
//! the next one writes. A thread that ends a change tells the threads of those that may begin.
//!
//! # Cost
//! One uncontended lock at the begin and the end of a change, of its namespace only.
use crate::limits::CHANGES_READY;
use crate::volume::Post;
use crate::worker::Message;
use block::Range;
use block::order::{ChangeOrder, Ticket};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A change that may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// Tickets of other namespaces may be the same.
    pub namespace: usize,
    /// Its slot on its thread.
    pub slot: u32,
    pub ticket: Ticket,
}

/// The order of all threads.
#[derive(Clone)]
pub struct Orders {
    /// By namespace.
    all: Arc<[Mutex<ChangeOrder>]>,
    /// By thread: where it is told of changes that may begin.
    posts: Arc<Mutex<Vec<Post>>>,
}

/// The order as one thread has it.
pub struct ThreadOrder {
    orders: Orders,
    thread: u32,
    /// Its own changes that may begin.
    begun: VecDeque<Begun>,
}

impl Orders {
    /// Of so many namespaces.
    pub fn new(namespaces: usize) -> Self {
        let order = |_| Mutex::new(ChangeOrder::new(CHANGES_READY));
        Self {
            all: (0..namespaces).map(order).collect(),
            posts: Arc::default(),
        }
    }

    /// Whether no change is under way.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.all.iter().all(|order| lock(order).is_empty())
    }

    /// A thread that is told of its changes at `post`.
    pub fn join(&self, post: &Post) -> ThreadOrder {
        let mut posts = lock(&self.posts);
        posts.push(post.clone());
        ThreadOrder {
            orders: self.clone(),
            thread: posts.len() as u32 - 1,
            begun: VecDeque::with_capacity(CHANGES_READY),
        }
    }
}

impl ThreadOrder {
    /// Gives a change of this thread its place. Returns its ticket, and whether it may begin;
    /// else it is named later, here or by [`Message::Begun`].
    pub fn admit(&self, namespace: usize, slot: u32, range: Range) -> (Ticket, bool) {
        let owner = u64::from(self.thread) << 32 | u64::from(slot);
        lock(&self.orders.all[namespace]).admit(owner, 0, range)
    }

    /// A change that began has ended.
    pub fn end(&mut self, namespace: usize, ticket: Ticket) {
        self.leave(namespace, |order| order.end(ticket));
    }

    /// A change is not executed.
    pub fn withdraw(&mut self, namespace: usize, ticket: Ticket) {
        self.leave(namespace, |order| order.withdraw(ticket));
    }

    /// A change of this thread may begin, as another thread says.
    pub fn tell(&mut self, begun: Begun) {
        self.begun.push_back(begun);
    }

    /// The next of this thread's changes that may begin.
    pub fn next(&mut self) -> Option<Begun> {
        self.begun.pop_front()
    }

    fn leave(&mut self, namespace: usize, how: impl FnOnce(&mut ChangeOrder)) {
        let mut order = lock(&self.orders.all[namespace]);
        how(&mut order);
        while let Some(begun) = order.poll_begun() {
            let (thread, slot) = ((begun.owner >> 32) as u32, begun.owner as u32);
            let begun = Begun {
                namespace,
                slot,
                ticket: begun.ticket,
            };
            if thread == self.thread {
                self.begun.push_back(begun);
                continue;
            }
            let posts = lock(&self.orders.posts);
            let Some(post) = posts.get(thread as usize) else {
                continue;
            };
            // A thread that has ended has no changes left.
            let _ = post.mailbox.send(Message::Begun(begun));
            post.has_mail.store(true, Ordering::Release);
            post.event.raise();
        }
    }
}

/// A thread that panicked leaves its places; the server ends with it.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
