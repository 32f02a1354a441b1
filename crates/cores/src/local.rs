//! A queue server with an engine of its own, over local devices.
//!
//! # Contract
//! Its cores are those of `braid run`, without volumes: files and block devices are devices of the
//! engine, and queues are spread over the cores. A thread tells of errors that clients got. At the
//! end the server takes the queues back, and then each core flushes its devices; one that never
//! returns does not keep the server from ending.
use crate::{RunControl, RunEvent, RunMachine, Sender, notes, spawn};
use broker::limits::STOP_NS;
use broker::local::{Local, LocalNamespace};
use broker::{Broker, Config, CoreQueues, CoreWaits, ServerCore};
use engine::export::ExportControl;
use paths::board::Board;
use runtime::{Device, FileDevice, Handle, Mailbox, Polling, ReactorConfig, RuntimeError};
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often it is looked whether cores that are to end have.
const LOOK: Duration = Duration::from_millis(1);

/// See the module.
pub struct LocalServer {
    broker: Option<Broker>,
    handles: Vec<Handle<RunMachine>>,
    /// Takes the events of the cores until the last one has ended. Returns files that may not be
    /// flushed.
    listener: Option<JoinHandle<Vec<String>>>,
}

impl LocalServer {
    /// Starts it: `config`, whose namespaces these are, and a core for each of `cpus`, which it is
    /// pinned to. `warn` gets lines about errors of clients.
    ///
    /// # Errors
    /// What can't be, or what the system refuses.
    pub fn start(
        mut config: Config,
        namespaces: &[LocalNamespace],
        cpus: &[Option<usize>],
        warn: impl Fn(String) + Send + 'static,
    ) -> Result<Self, String> {
        let local = Local::new(namespaces)?;
        config.namespaces.clone_from(&local.namespaces);
        let (to, events) = mpsc::channel();
        let (handles, cores) = cores(&local, cpus, &to)?;
        drop(to); // the listener ends when the cores have
        let mut server = Self {
            broker: None,
            handles,
            listener: None,
        };
        let builder = std::thread::Builder::new().name("events".into());
        match builder.spawn(move || listen(&events, &local, warn)) {
            Ok(listener) => server.listener = Some(listener),
            Err(error) => {
                let _ = server.stop();
                return Err(format!("no thread is left: {error}"));
            }
        }
        match Broker::start(config, cores) {
            Ok(broker) => server.broker = Some(broker),
            Err(why) => {
                let _ = server.stop();
                return Err(why);
            }
        }
        Ok(server)
    }

    /// Whether it has ended by itself: something failed.
    pub fn has_ended(&self) -> bool {
        self.broker.as_ref().is_none_or(Broker::has_ended)
    }

    /// Takes all queues back, flushes the devices and ends, when their commands have.
    ///
    /// # Errors
    /// What made it fail before; a device can't be flushed; requests to devices don't return.
    pub fn stop(mut self) -> Result<(), String> {
        let ended = self.end();
        // A core that hangs is left alone.
        self.handles.clear();
        ended
    }

    fn end(&mut self) -> Result<(), String> {
        let served = self.broker.take().map_or(Ok(()), Broker::stop);
        for handle in self.handles.iter().rev() {
            let stop = ExportControl::Stop(STOP_NS);
            handle.sender().send(RunControl::Export(stop));
        }
        // Requests that a core still has would be waited for without end.
        served?;
        self.await_cores()?;
        for handle in self.handles.drain(..) {
            handle.join().map_err(|error| whole(&error))?;
        }
        // No core has anything more to tell.
        let lost = self.listener.take().map(JoinHandle::join);
        let lost = lost.transpose().map_err(|_| "a thread has panicked")?;
        let lost = lost.unwrap_or_default();
        match lost.is_empty() {
            true => Ok(()),
            false => Err(lost.join("; ")),
        }
    }

    /// Waits until all cores have flushed their devices and have ended.
    fn await_cores(&self) -> Result<(), String> {
        let until = Instant::now() + Duration::from_nanos(STOP_NS);
        while !self.handles.iter().all(Handle::is_finished) {
            if Instant::now() >= until {
                let s = STOP_NS / 1_000_000_000;
                return Err(format!("flushes of files have not returned for {s} s"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            let _ = self.end();
        }
    }
}

/// Tells of errors of clients, until no core has anything to tell any more. Returns a line for each
/// file that may not be flushed.
fn listen(events: &Receiver<RunEvent>, local: &Local, warn: impl Fn(String)) -> Vec<String> {
    let mut lost: Vec<String> = Vec::new();
    for event in events {
        match event {
            RunEvent::Error(error) => {
                warn(notes::client_error(local.name(error.volume), &error));
            }
            RunEvent::MoreErrors(volume, count) => {
                warn(notes::more_errors(local.name(volume), count));
            }
            RunEvent::Unflushed(_, line) if !lost.contains(&line) => lost.push(line),
            _ => {}
        }
    }
    lost
}

/// Starts the cores.
fn cores(
    local: &Local,
    cpus: &[Option<usize>],
    events: &mpsc::Sender<RunEvent>,
) -> Result<(Vec<Handle<RunMachine>>, Vec<ServerCore>), String> {
    let name = |core: u16| format!("queues-{core}");
    let count = cpus.len() as u16;
    let mailboxes = (0..count).map(|core| Mailbox::new(&name(core)));
    let mailboxes: Result<Vec<_>, _> = mailboxes.collect();
    let mailboxes = mailboxes.map_err(|error| whole(&error))?;
    let senders: Vec<Sender> = mailboxes.iter().map(|it| it.0.clone()).collect();
    let board = Arc::new(Board::new(&vec![0; cpus.len()], 0));
    let mut handles = Vec::new();
    for ((core, mailbox), cpu) in (0..).zip(mailboxes).zip(cpus) {
        let (engine, arena_bytes) = local.core(core, count);
        let queues = CoreQueues::new().map_err(|error| format!("epoll: {error}"))?;
        let kicks = queues.kicks().map_err(|error| format!("epoll: {error}"))?;
        mailbox.0.watch(kicks);
        let machine = RunMachine::new(
            (engine, queues),
            core,
            senders.clone(),
            events.clone(),
            Arc::clone(&board),
        );
        let config = ReactorConfig {
            name: name(core),
            cpu: *cpu,
            // Queues say for how long it is to look for commands.
            polling: Polling::Never,
            arena_bytes,
            per_peer_max: None,
            addresses: Vec::new(),
            listeners: Vec::new(),
            devices: devices(local, core)?,
        };
        let handle = spawn(config, machine, mailbox);
        handles.push(handle.map_err(|error| whole(&error))?);
    }
    Ok((handles, senders.iter().map(server_core).collect()))
}

/// The engine's devices for a core. Each has descriptions of files of its own: the system reports a
/// failed write once to each of them (T13).
fn devices(local: &Local, core: u16) -> Result<Vec<Device>, String> {
    let own = |device: &Device| match device {
        Device::File(file) if core > 0 => {
            let file = FileDevice::open(file.path().to_owned(), file.read_only(), None);
            file.map(|it| Device::File(Arc::new(it)))
                .map_err(|error| whole(&error))
        }
        other => Ok(other.clone()),
    };
    local.devices.iter().map(own).collect()
}

/// An error with its causes.
fn whole(error: &RuntimeError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// A core as a queue server knows it.
pub fn server_core(sender: &Sender) -> ServerCore {
    let (post, waits) = (sender.clone(), sender.clone());
    ServerCore {
        post: Box::new(move |message| {
            post.send(RunControl::Queue(message));
        }),
        waits: Box::new(move || {
            let stats = waits.poll_stats();
            CoreWaits {
                enters: stats.enters,
                sleeps: stats.slept,
            }
        }),
    }
}
