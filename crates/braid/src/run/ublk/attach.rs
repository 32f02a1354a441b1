//! Queues of a device on their way to the cores, whether it is new or taken over.
use super::record::Recovery;
use super::takeover::TakesOver;
use super::{Inner, REMOVE_WAIT, SOON, STEP_WAIT, Wanted, note};
use crate::log;
use crate::run::service::Service;
use cores::{Begun, NodeQueue, RunControl, UblkControl};
use std::collections::BTreeMap;
use std::fs;
use std::mem;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::sleep;
use std::time::{Duration, Instant};
use sys::Errno;
use sys::ublk::{
    Control, Info, UblkMapping, UblkQueue, UblkRing, device_path, node_path, open_device,
};

/// How often a step that fails is logged again.
const SAY_AGAIN: Duration = Duration::from_secs(10);

/// Queues of a device on their way to the cores.
pub struct Attaching<'a> {
    service: &'a Service,
    pub inner: &'a mut Inner,
    wanted: &'a Wanted,
    id: u32,
    mark: u64,
    /// The process that served it last.
    pid: i32,
    depth: u16,
    count: u16,
    /// Rings of queues that have no core yet.
    rings: BTreeMap<u16, UblkRing>,
    /// Place for the descriptor of the device.
    pub spare: Option<fs::File>,
    file: Option<Arc<OwnedFd>>,
    mapped: BTreeMap<u16, UblkMapping>,
    /// Those that cores could not begin.
    again: BTreeMap<u16, Box<NodeQueue>>,
    /// Core and number of those that are served.
    pub queues: Vec<(u16, u32)>,
    said: Option<Instant>,
}

impl<'a> Attaching<'a> {
    /// # Errors
    /// A ring can't be made.
    pub fn new(
        service: &'a Service,
        inner: &'a mut Inner,
        wanted: &'a Wanted,
        info: &Info,
    ) -> Result<Self, String> {
        let rings = (0..info.queues).map(|it| Ok((it, UblkRing::new(info.depth)?)));
        let rings: Result<_, sys::Error> = rings.collect();
        Ok(Self {
            service,
            inner,
            wanted,
            id: info.id,
            mark: info.server_flags,
            pid: info.pid,
            depth: info.depth,
            count: info.queues,
            rings: rings.map_err(|error| format!("{}: {error}", node_path(info.id)))?,
            spare: None,
            file: None,
            mapped: BTreeMap::new(),
            again: BTreeMap::new(),
            queues: Vec::new(),
            said: None,
        })
    }

    /// Opens, maps and fetches all, where a failure does no harm.
    pub fn attach_all(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        while let Err(error) = self.open() {
            // The system makes the file a moment after the device.
            if error != Errno::NOENT || begun.elapsed() > STEP_WAIT {
                return Err(format!("{}: {error}", device_path(self.id)));
            }
            sleep(SOON);
        }
        for queue in 0..self.count {
            let mapped = self.map(queue);
            mapped.map_err(|why| format!("queue {queue} can't be mapped: {why}"))?;
        }
        let fetched = self.fetch().unwrap_or_else(Err);
        fetched.map_err(|why| format!("not all queues can be fetched from: {why}"))
    }
}

impl Attaching<'_> {
    fn control(&mut self) -> &mut Control {
        match &mut self.inner.control {
            Some(control) => control,
            None => unreachable!("the device was found by it"),
        }
    }
}

impl TakesOver for Attaching<'_> {
    fn note_begun(&mut self) -> Result<(), String> {
        let key = (self.id, self.mark);
        note(self.inner, key, |it| it.recovery = Recovery::Begun)
    }

    fn note_mapping(&mut self) -> Result<(), String> {
        // A process that has the number of the one before is not told from it.
        let own = std::process::id() as i32;
        let pid = (own != self.pid).then_some(own);
        let key = (self.id, self.mark);
        note(self.inner, key, |it| it.recovery = Recovery::Mapping(pid))
    }

    fn begin(&mut self) -> Result<(), Errno> {
        let id = self.id;
        self.control().start_recovery(id)
    }

    fn open(&mut self) -> Result<(), Errno> {
        let id = self.id;
        self.spare = None;
        match open_device(id) {
            Ok(file) => {
                self.file = Some(Arc::new(file));
                Ok(())
            }
            Err(error) => match self.control().info(id) {
                Err(Errno::NODEV) => Err(Errno::NODEV),
                _ => Err(error),
            },
        }
    }

    fn map(&mut self, queue: u16) -> Result<(), Errno> {
        let Some(file) = &self.file else {
            unreachable!("it was opened");
        };
        let mapped = UblkMapping::new(file, queue, self.depth);
        self.mapped.insert(queue, mapped.map_err(|it| it.source)?);
        Ok(())
    }

    fn fetch(&mut self) -> Result<Result<(), Errno>, Errno> {
        while let Some((queue, ring)) = self.rings.pop_first() {
            let Some(mapped) = self.mapped.remove(&queue) else {
                unreachable!("queue {queue} is mapped");
            };
            self.inner.queues_ever += 1;
            let of = NodeQueue {
                number: self.inner.queues_ever,
                volume: self.wanted.volume,
                node: node_path(self.id),
                queue: UblkQueue::new(ring, mapped),
            };
            self.again.insert(queue, Box::new(of));
        }
        // All at once: until the last one has fetched, a kill of the engine loses the device.
        let mut answers = Vec::new();
        for (queue, of) in mem::take(&mut self.again) {
            let cores = &self.wanted.cores;
            let core = cores[usize::from(queue) % cores.len()];
            let number = of.number;
            let (told, answer) = mpsc::sync_channel(1);
            let attach = UblkControl::Attach(of, told);
            let sender = self.service.senders.core(core);
            sender.send(RunControl::Ublk(attach));
            answers.push((queue, core, number, answer));
        }
        let (mut passes, mut is_final) = (Ok(()), Ok(()));
        for (queue, core, number, answer) in answers {
            match answer.recv() {
                Ok(Begun::Serves) => self.queues.push((core, number)),
                Ok(Begun::NotYet(of, error)) => {
                    self.again.insert(queue, of);
                    passes = Err(error);
                }
                Ok(Begun::Refused(error)) => is_final = Err(error),
                // The core has ended, and the engine with it.
                Err(_) => is_final = Err(Errno::PIPE),
            }
        }
        is_final.map(|()| passes)
    }

    fn end(&mut self) -> Result<(), Errno> {
        let id = self.id;
        self.control().end_recovery(id)
    }

    fn pause(&mut self, step: &str, why: &str) -> ControlFlow<()> {
        // After the first map an end loses the device: the engine's own end waits for that a while.
        let holds = !self.mapped.is_empty() || !self.again.is_empty() || !self.queues.is_empty();
        let stops = self.service.nodes.stops.get();
        if stops.is_some_and(|since| !holds || since.elapsed() > REMOVE_WAIT) {
            return ControlFlow::Break(());
        }
        if self.said.is_none_or(|at| at.elapsed() > SAY_AGAIN) {
            self.said = Some(Instant::now());
            let path = device_path(self.id);
            log::say(format!("cannot {step} {path}: {why}; this is tried again"));
        }
        sleep(SOON);
        ControlFlow::Continue(())
    }
}
