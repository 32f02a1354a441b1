//! The thread that makes new instances, and throws away old ones, off the path of I/O.
use crate::instance::{Compiled, Instance};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;

/// Work that may wait. It is less than there are runners and volumes; where it is more, the sender
/// does it itself.
const QUEUED_MAX: usize = 256;

pub(crate) enum Work {
    /// A new instance for a runner, whose old one has trapped.
    Renew {
        of: Arc<Compiled>,
        old: Box<Instance>,
        to: SyncSender<Option<Box<Instance>>>,
    },
    /// Of a runner that ends.
    Drop(Option<Box<Instance>>, Arc<Compiled>),
}

/// The thread; it ends with its last handle and runner.
#[derive(Clone, Debug)]
pub struct Workshop {
    work: SyncSender<Work>,
}

impl Workshop {
    /// Starts it.
    ///
    /// # Errors
    /// Of the operating system.
    pub fn start() -> io::Result<Self> {
        let (work, all) = sync_channel(QUEUED_MAX);
        let thread = thread::Builder::new().name("programs".into());
        thread.spawn(move || serve(&all))?;
        Ok(Self { work })
    }

    /// Whether it was taken; else it comes back.
    pub(crate) fn send(&self, work: Work) -> Result<(), Work> {
        let sent = self.work.try_send(work);
        sent.map_err(|(TrySendError::Full(work) | TrySendError::Disconnected(work))| work)
    }
}

#[cfg(test)]
impl Workshop {
    /// One whose work is done by the test.
    pub(crate) fn by_hand() -> (Self, Receiver<Work>) {
        let (work, all) = sync_channel(QUEUED_MAX);
        (Self { work }, all)
    }
}

fn serve(all: &Receiver<Work>) {
    for work in all {
        perform(work);
    }
}

/// Does it.
pub(crate) fn perform(work: Work) {
    match work {
        Work::Renew { of, old, to } => {
            drop(old);
            // The runner may have gone: then nobody needs it.
            let _ = to.try_send(Instance::new(&of).ok().map(Box::new));
        }
        Work::Drop(instance, of) => drop((instance, of)),
    }
}
