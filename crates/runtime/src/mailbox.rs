//! Messages from other threads: a bounded queue, and an event that wakes the reactor.
//!
//! # Contract
//! A sender raises the event only if it is not raised since the reactor last looked, so many
//! messages cost one wake-up. The reactor lowers it *before* it looks: a message that arrives in
//! between raises it again.
use crate::device::Opened;
use crate::limits::MAILBOX_MAX;
use crate::{Device, PollStats, PollTally, RuntimeError};
use engine::LocalDevice;
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use sys::Fd;
use sys::os::Event;

/// An event that is raised once for many messages.
#[derive(Debug)]
pub(crate) struct Wake {
    event: Event,
    raised: AtomicBool,
}

impl Wake {
    pub(crate) fn new(name: &str) -> Result<Self, RuntimeError> {
        let event = Event::new().map_err(|source| descriptor(name, source))?;
        Ok(Self {
            event,
            raised: AtomicBool::new(false),
        })
    }

    /// Descriptor that becomes readable when it is raised.
    pub(crate) fn watched(&self, name: &str) -> Result<Fd, RuntimeError> {
        let cloned = self.event.try_clone();
        cloned
            .map(Fd::new)
            .map_err(|source| descriptor(name, source))
    }

    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.event.raise();
        }
    }

    pub(crate) fn lower(&self) {
        self.event.lower();
        self.raised.swap(false, Ordering::AcqRel);
    }
}

/// Messages of a mailbox.
#[derive(Debug)]
pub(crate) enum Mail<C> {
    /// For the machine.
    Control(C),
    /// A socket accepted elsewhere, the number of the listener to report for it, and what is kept
    /// with it.
    Adopt(u32, OwnedFd, Option<Kept>),
    /// Sets the address of an address number.
    Address(u32, SocketAddr),
    /// Sets the device of a device number.
    Device(LocalDevice, Option<Box<Opened>>),
    /// Wakes the reactor when it is readable.
    Watch(OwnedFd),
}

/// Kept by the reactor with a connection, and dropped once that has ended or was turned away.
pub type Kept = Box<dyn Any + Send>;

/// Sends messages to a reactor from any thread; wakes it. Cloneable.
#[derive(Debug)]
pub struct Sender<C> {
    queue: SyncSender<Mail<C>>,
    wake: Arc<Wake>,
    tally: Arc<PollTally>,
}

impl<C> Clone for Sender<C> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            wake: Arc::clone(&self.wake),
            tally: Arc::clone(&self.tally),
        }
    }
}

/// Why a message was not taken; it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError<C> {
    /// As many messages as the mailbox holds wait already.
    Full(C),
    /// The reactor is gone.
    Gone(C),
}

impl<C: Send> Sender<C> {
    /// False if the reactor is gone. Waits while the mailbox is full, so a reactor that might send
    /// to one that sends to it uses [`Sender::try_send`].
    pub fn send(&self, message: C) -> bool {
        let sent = self.queue.send(Mail::Control(message)).is_ok();
        self.wake.raise();
        sent
    }

    /// Hands over a connected stream socket (TCP or Unix) that the caller accepted: the machine
    /// hears `handle_accepted(listener)`, in order with the messages sent before. The number need
    /// not be one of `ReactorConfig::listeners`. `kept` is dropped when the connection has ended,
    /// or at once where it is turned away. False if the reactor is gone.
    pub fn adopt(&self, listener: u32, socket: OwnedFd, kept: Option<Kept>) -> bool {
        let sent = self.queue.send(Mail::Adopt(listener, socket, kept)).is_ok();
        self.wake.raise();
        sent
    }

    /// From now on address number `number` of `Output::Open` stands for `address`, before messages
    /// that are sent later; numbers are dense. False if the reactor is gone.
    pub fn set_address(&self, number: u32, address: SocketAddr) -> bool {
        let sent = self.queue.send(Mail::Address(number, address)).is_ok();
        self.wake.raise();
        sent
    }

    /// From now on `device` stands for this, before messages that are sent later; numbers are
    /// dense. Its former device must be in no request. `None`: for nothing, and its file is closed.
    /// False if the reactor is gone.
    ///
    /// # Errors
    /// No descriptor is left for it; then nothing has changed.
    pub fn set_device(
        &self,
        number: LocalDevice,
        device: Option<&Device>,
    ) -> Result<bool, RuntimeError> {
        let opened = device.map(Opened::new).transpose()?.map(Box::new);
        let sent = self.queue.send(Mail::Device(number, opened)).is_ok();
        self.wake.raise();
        Ok(sent)
    }

    /// How the reactor has waited so far.
    pub fn poll_stats(&self) -> PollStats {
        self.tally.read()
    }

    /// From now on the reactor also wakes when this descriptor becomes readable, which its machine
    /// lowers in its turn. There is one. False if the reactor is gone.
    pub fn watch(&self, descriptor: OwnedFd) -> bool {
        let sent = self.queue.send(Mail::Watch(descriptor)).is_ok();
        self.wake.raise();
        sent
    }

    /// Sends without waiting.
    ///
    /// # Errors
    /// The mailbox is full, or the reactor is gone.
    pub fn try_send(&self, message: C) -> Result<(), SendError<C>> {
        let sent = self.queue.try_send(Mail::Control(message));
        sent.map_err(|error| match error {
            TrySendError::Full(Mail::Control(message)) => SendError::Full(message),
            TrySendError::Disconnected(Mail::Control(message)) => SendError::Gone(message),
            _ => unreachable!("what comes back is what was sent"),
        })?;
        self.wake.raise();
        Ok(())
    }
}

/// The reactor's end of a mailbox, until it is started ([`spawn_with`](crate::spawn_with)).
pub struct Mailbox<C> {
    queue: Receiver<Mail<C>>,
    wake: Arc<Wake>,
    tally: Arc<PollTally>,
}

impl<C: Send> Mailbox<C> {
    /// A mailbox of the reactor `name`, and its senders' end.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(name: &str) -> Result<(Sender<C>, Self), RuntimeError> {
        let wake = Arc::new(Wake::new(name)?);
        let tally = Arc::new(PollTally::default());
        let (sender, queue) = sync_channel(MAILBOX_MAX);
        Ok((
            Sender {
                queue: sender,
                wake: Arc::clone(&wake),
                tally: Arc::clone(&tally),
            },
            Self { queue, wake, tally },
        ))
    }

    /// Descriptor that becomes readable when there are messages.
    pub(crate) fn watched(&self, name: &str) -> Result<Fd, RuntimeError> {
        self.wake.watched(name)
    }

    /// The reactor's waits, as its senders read them.
    pub(crate) fn tally(&self) -> Arc<PollTally> {
        Arc::clone(&self.tally)
    }

    /// The event that wakes the reactor, for other senders.
    pub(crate) fn wake(&self) -> Arc<Wake> {
        Arc::clone(&self.wake)
    }

    /// Call when it was readable, before taking the messages.
    pub(crate) fn lower(&self) {
        self.wake.lower();
    }

    /// The next message.
    pub(crate) fn take(&self) -> Option<Mail<C>> {
        self.queue.try_recv().ok()
    }
}

fn descriptor(name: &str, source: sys::Errno) -> RuntimeError {
    RuntimeError::Descriptor {
        name: name.to_owned(),
        object: "an eventfd",
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_messages_raise_the_event_once_and_none_is_lost() {
        let (sender, mailbox) = Mailbox::new("test").unwrap();
        for number in 0..10 {
            assert!(sender.send(number));
        }
        assert!(mailbox.wake.event.lower());
        assert!(!mailbox.wake.event.lower());
        mailbox.lower();
        assert!(sender.send(10));
        assert!(mailbox.wake.event.lower());
        let taken = std::iter::from_fn(|| mailbox.take()).map(|mail| match mail {
            Mail::Control(number) => number,
            _ => unreachable!(),
        });
        let taken: Vec<i32> = taken.collect();
        assert_eq!(taken, (0..=10).collect::<Vec<i32>>());
    }

    #[test]
    fn a_full_mailbox_and_a_gone_reactor_say_so() {
        let (sender, mailbox) = Mailbox::new("test").unwrap();
        for number in 0..MAILBOX_MAX {
            sender.try_send(number).unwrap();
        }
        assert_eq!(sender.try_send(7), Err(SendError::Full(7)));
        drop(mailbox);
        assert_eq!(sender.try_send(7), Err(SendError::Gone(7)));
        assert!(!sender.clone().send(8));
    }
}
