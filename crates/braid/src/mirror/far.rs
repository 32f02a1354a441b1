//! A leg over NVMe/TCP, without an engine of `braid run`: read and written by an engine of its own
//! without front ends, one I/O after the other.
//!
//! # Contract
//! What is written is durable only after [`Far::flush`]. Nothing locks a namespace: who has it is
//! known by its beats ([`super::leg`]).
use super::leg::Access;
use super::same::Storage;
use crate::ends::{FileAccess, Resources, VolumePlan};
use crate::uri::{PathKeys, PathUri};
use anyhow::{anyhow, bail};
use engine::export::{ExportControl, ExportEvent};
use engine::host::{HostConfig, HostControl, HostEvent, Io, IoOp, Multipath, VolumeInfo};
use engine::limits::SCRATCH_BYTES;
use engine::machine::Memory;
use engine::{Around, Core, Machine, Span};
use nvme::host::{DIGESTS_DIFFER, Digests};
use policy::{Knobs, PathIndex, Policy};
use runtime::ReactorConfig;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

/// Longest I/O, bytes.
const PIECE: u32 = 128 << 10;
/// How long a path may take to connect, and one I/O, ns.
const CONNECT_TIMEOUT_NS: u64 = 10_000_000_000;
const IO_TIMEOUT_NS: u64 = 30_000_000_000;
const KATO_MS: u32 = 10_000;
/// The engine gives up by itself; this is for the case that it does not.
const LIMIT: Duration = Duration::from_secs(150);

/// One I/O.
#[derive(Debug)]
struct Task {
    op: IoOp,
    offset: u64,
    /// To be written, or as long as is to be read.
    bytes: Vec<u8>,
}

#[derive(Debug)]
enum Control {
    Host(HostControl),
    Do(Task),
}

#[derive(Debug)]
enum Event {
    Ready(VolumeInfo, Storage),
    Failed(String),
    Done(Result<Vec<u8>, String>),
}

/// The engine, and the I/O that is under way.
struct FarMachine {
    engine: Core,
    told: Sender<Event>,
    next: Option<Task>,
    task: Option<Task>,
    /// Something was submitted in this turn.
    again: bool,
}

impl FarMachine {
    /// The controlling thread may be gone; then nobody needs to know.
    fn tell(&self, event: Event) {
        let _ = self.told.send(event);
    }

    fn begin(&mut self, task: Task, memory: &mut dyn Memory, now_ns: u64) {
        let span = Span {
            at: 0,
            len: task.bytes.len() as u32,
        };
        if matches!(task.op, IoOp::Write { .. }) {
            memory.bytes_mut(span).copy_from_slice(&task.bytes);
        }
        let io = Io {
            volume: 0,
            op: task.op,
            offset: task.offset,
            length: span.len,
            span,
            source: 0,
            cookie: 1,
        };
        self.again = true;
        match self.engine.submit(&io, now_ns) {
            Ok(()) => self.task = Some(task),
            Err(error) => self.tell(Event::Done(Err(format!("{error:?}")))),
        }
    }

    fn drain(&mut self, memory: &mut dyn Memory) {
        while let Some(event) = self.engine.poll_event() {
            let ExportEvent::Host(event) = event else {
                unreachable!("{event:?}: it has no front ends");
            };
            match event {
                HostEvent::Ready(volume, info) => {
                    let path = self.engine.host().path_report(volume, PathIndex(0), 0);
                    let storage = path.facts.as_ref().map(Storage::of_namespace);
                    let storage = storage.unwrap_or_default();
                    self.tell(Event::Ready(info, storage));
                }
                HostEvent::Failed(_, why) => self.tell(Event::Failed(why)),
                HostEvent::Done(done) => {
                    let Some(mut task) = self.task.take() else {
                        continue;
                    };
                    let len = task.bytes.len() as u32;
                    let span = Span { at: 0, len };
                    task.bytes.copy_from_slice(memory.bytes(span));
                    self.tell(Event::Done(match done.outcome.is_done() {
                        true => Ok(task.bytes),
                        false => Err(done.outcome.to_string()),
                    }));
                }
                // The rest comes with the end of an I/O.
                _ => {}
            }
        }
    }
}

impl Around for FarMachine {
    type Inner = Core;
    type Control = Control;

    fn inner(&self) -> &Core {
        &self.engine
    }
    fn inner_mut(&mut self) -> &mut Core {
        &mut self.engine
    }

    fn turn(&mut self, memory: &mut dyn Memory, now_ns: u64) {
        self.again = false;
        self.engine.turn(memory, now_ns);
        self.drain(memory);
        if let Some(task) = self.next.take() {
            self.begin(task, memory, now_ns);
        }
    }

    fn handle_control(&mut self, message: Control, now_ns: u64) {
        match message {
            Control::Host(message) => {
                let message = ExportControl::Host(message);
                self.engine.handle_control(message, now_ns);
            }
            Control::Do(task) => self.next = Some(task),
        }
    }

    fn poll_timeout(&self) -> Option<u64> {
        match self.next.is_some() || self.again {
            true => Some(0),
            false => self.engine.poll_timeout(),
        }
    }

    fn handle_timeout(&mut self, now_ns: u64) {
        if self.engine.poll_timeout().is_some_and(|due| due <= now_ns) {
            self.engine.handle_timeout(now_ns);
        }
    }
}

/// A namespace that is open.
pub struct Far {
    handle: Option<runtime::Handle<FarMachine>>,
    events: Receiver<Event>,
    info: VolumeInfo,
    storage: Storage,
    name: String,
}

/// Digests to try in turn: as many as a controller can have, but those that are demanded always.
fn offers(demanded: Digests) -> impl Iterator<Item = Digests> {
    let all = [(true, true), (true, false), (false, true), (false, false)];
    let all = all.map(|(header, data)| Digests { header, data });
    let fits = move |it: &Digests| it.header >= demanded.header && it.data >= demanded.data;
    all.into_iter().filter(fits)
}

impl Far {
    /// Connects the path of a leg, with the digests that its controller offers.
    ///
    /// # Errors
    /// A name that can't be resolved, a path that can't be used; the engine says why.
    pub fn open(uri: &PathUri, access: &Access) -> anyhow::Result<Self> {
        let mut refused = None;
        for digests in offers(access.digests) {
            match Self::open_with(uri, access, digests) {
                Err(error) if error.to_string().contains(DIGESTS_DIFFER) => refused = Some(error),
                result => return result,
            }
        }
        Err(refused.unwrap_or_else(|| anyhow!("{uri}: no digests to try")))
    }

    fn open_with(uri: &PathUri, access: &Access, digests: Digests) -> anyhow::Result<Self> {
        let mut resources = Resources::default();
        let volume = resources.volume(&VolumePlan {
            name: uri.to_string(),
            policy: Policy::QueueDepth,
            knobs: Knobs::default(),
            paths: vec![PathKeys::from(uri.clone())],
            quiesce_ns: engine::host::Recovery::default().quiesce_ns,
            access: FileAccess::Alone,
        })?;
        let scratch = Span {
            at: PIECE.into(),
            len: SCRATCH_BYTES,
        };
        let config = HostConfig {
            core: 0,
            cores: 1,
            identity: access.identity.clone(),
            digests,
            kato_ms: KATO_MS,
            connect_timeout_ns: CONNECT_TIMEOUT_NS,
            io_timeout_ns: IO_TIMEOUT_NS,
            io_max: 8,
            scratch,
            volumes: vec![volume],
        };
        config.check().map_err(|error| anyhow!("{error}"))?;
        let (told, events) = mpsc::channel();
        let machine = FarMachine {
            engine: Core::without_front_ends(Multipath::new(config)),
            told,
            next: None,
            task: None,
            again: false,
        };
        let reactor = ReactorConfig {
            name: "braid-leg".to_owned(),
            cpu: None,
            polling: runtime::Polling::Never,
            arena_bytes: scratch.at + u64::from(scratch.len),
            per_peer_max: None,
            addresses: resources.addresses,
            listeners: Vec::new(),
            devices: resources.devices,
        };
        let mut far = Self {
            handle: Some(runtime::spawn(reactor, machine)?),
            events,
            info: VolumeInfo {
                bytes: 0,
                block_shift: 9,
                transfer_max: 0,
                read_only: false,
            },
            storage: Storage::default(),
            name: uri.to_string(),
        };
        loop {
            match far.event()? {
                Event::Ready(info, storage) => {
                    (far.info, far.storage) = (info, storage);
                    return Ok(far);
                }
                Event::Failed(why) => bail!(why),
                Event::Done(_) => {}
            }
        }
    }

    /// Its size and blocks.
    pub fn info(&self) -> VolumeInfo {
        self.info
    }

    /// Which namespace it is.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    fn event(&self) -> anyhow::Result<Event> {
        let event = self.events.recv_timeout(LIMIT);
        event.map_err(|_| anyhow!("{}: it does not answer", self.name))
    }

    fn one(&self, task: Task) -> anyhow::Result<Vec<u8>> {
        if let Some(handle) = &self.handle {
            handle.sender().send(Control::Do(task));
        }
        loop {
            match self.event()? {
                Event::Done(done) => return done.map_err(|why| anyhow!("{}: {why}", self.name)),
                Event::Failed(why) => bail!(why),
                Event::Ready(..) => {}
            }
        }
    }

    /// Bytes of an I/O.
    fn piece(&self) -> u64 {
        match self.info.transfer_max {
            0 => PIECE.into(),
            most => most.min(PIECE).into(),
        }
    }

    /// Up to `bytes` bytes at `offset`: fewer where it ends.
    ///
    /// # Errors
    /// They can't be read.
    pub fn read(&self, offset: u64, bytes: usize) -> anyhow::Result<Vec<u8>> {
        let block = 1_u64 << self.info.block_shift;
        let end = (offset + bytes as u64).min(self.info.bytes);
        let from = offset / block * block;
        let to = end.next_multiple_of(block).min(self.info.bytes);
        let mut read = Vec::with_capacity(bytes);
        let mut at = from;
        while at < to {
            let length = (to - at).min(self.piece());
            let task = Task {
                op: IoOp::Read,
                offset: at,
                bytes: vec![0; length as usize],
            };
            read.extend_from_slice(&self.one(task)?);
            at += length;
        }
        read.drain(..read.len().min((offset - from) as usize));
        read.truncate(end.saturating_sub(offset) as usize);
        Ok(read)
    }

    /// Writes `bytes`, whole blocks, at `offset`.
    ///
    /// # Errors
    /// They can't be written.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
        let piece = self.piece() as usize;
        for (at, bytes) in (offset..).step_by(piece).zip(bytes.chunks(piece)) {
            self.one(Task {
                op: IoOp::Write { fua: false },
                offset: at,
                bytes: bytes.to_vec(),
            })?;
        }
        Ok(())
    }

    /// Makes durable what was written.
    ///
    /// # Errors
    /// It can't be.
    pub fn flush(&self) -> anyhow::Result<()> {
        let bytes = Vec::new();
        let (op, offset) = (IoOp::Flush, 0);
        self.one(Task { op, offset, bytes }).map(|_| ())
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        if let Some(handle) = self.handle.take() {
            handle.sender().send(Control::Host(HostControl::Stop));
            // The failed request has reported what ended it.
            let _ = handle.join();
        }
    }
}
