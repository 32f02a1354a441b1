//! A reactor's thread: started, pinned, joined.
use crate::mailbox::{Mailbox, Sender};
use crate::reactor::Reactor;
use crate::{ReactorConfig, ReactorStats, RuntimeError};
use engine::Machine;
use std::any::Any;
use std::sync::mpsc::sync_channel;
use std::thread::{Builder, JoinHandle};

type Outcome<M> = Result<(M, ReactorStats), RuntimeError>;

/// A running reactor. Dropping it lets the thread run on by itself.
pub struct Handle<M: Machine> {
    name: String,
    thread: JoinHandle<Outcome<M>>,
    sender: Sender<M::Control>,
}

/// Starts a reactor thread. Errors of the set-up (io_uring disabled, limits too low) come back from
/// here.
///
/// # Errors
/// Every [`RuntimeError`] but `Loop` and those of devices.
pub fn spawn<M>(config: ReactorConfig, machine: M) -> Result<Handle<M>, RuntimeError>
where
    M: Machine + Send + 'static,
    M::Control: Send + 'static,
{
    let mailbox = Mailbox::new(&config.name)?;
    spawn_with(config, machine, mailbox)
}

/// As [`spawn`], with a mailbox that was made before: reactors that send to one another have the
/// senders from the first turn on. Messages that come before it wait in the mailbox.
///
/// # Errors
/// As [`spawn`].
pub fn spawn_with<M>(
    config: ReactorConfig,
    machine: M,
    (sender, mailbox): (Sender<M::Control>, Mailbox<M::Control>),
) -> Result<Handle<M>, RuntimeError>
where
    M: Machine + Send + 'static,
    M::Control: Send + 'static,
{
    let name = config.name.clone();
    let (ready, set_up) = sync_channel(1);
    // A ring belongs to the thread that made it, so everything is made over there.
    let body = move || -> Outcome<M> {
        let reactor = pin(&config).and_then(|()| Reactor::new(config, machine, mailbox));
        match reactor {
            Ok(reactor) => {
                let _ = ready.send(Ok(()));
                drop(ready);
                reactor.run()
            }
            Err(error) => {
                let _ = ready.send(Err(()));
                Err(error)
            }
        }
    };
    let thread = Builder::new()
        .name(name.clone())
        .spawn(body)
        .map_err(|source| RuntimeError::Thread {
            name: name.clone(),
            source,
        })?;
    let handle = Handle {
        name,
        thread,
        sender,
    };
    match set_up.recv() {
        Ok(Ok(())) => Ok(handle),
        // An error, or a panic: the thread is ending and says which.
        _ => match handle.join() {
            Err(error) => Err(error),
            Ok(_) => unreachable!("a reactor that wasn't set up can't have run"),
        },
    }
}

impl<M: Machine> Handle<M> {
    /// A sender of messages to the machine.
    pub fn sender(&self) -> Sender<M::Control> {
        self.sender.clone()
    }

    /// Whether the reactor has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for `Output::Stop` (or a fatal error); returns the machine for its final figures.
    ///
    /// # Errors
    /// [`RuntimeError::Panicked`]: the machine did. [`RuntimeError::Loop`]: the kernel refused to
    /// go on.
    pub fn join(self) -> Result<(M, ReactorStats), RuntimeError> {
        let Self {
            name,
            thread,
            sender,
        } = self;
        drop(sender);
        thread.join().unwrap_or_else(|panic| {
            Err(RuntimeError::Panicked {
                name,
                message: text(panic.as_ref()),
            })
        })
    }
}

fn pin(config: &ReactorConfig) -> Result<(), RuntimeError> {
    let Some(cpu) = config.cpu else { return Ok(()) };
    let allowed = sys::os::cpus().unwrap_or_default();
    sys::os::pin(cpu).map_err(|source| RuntimeError::Pin {
        name: config.name.clone(),
        cpu,
        allowed,
        source: source.into(),
    })
}

/// Message of a panic.
fn text(panic: &(dyn Any + Send)) -> String {
    let borrowed = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let owned = panic.downcast_ref::<String>().cloned();
    borrowed
        .or(owned)
        .unwrap_or_else(|| "no message".to_owned())
}
