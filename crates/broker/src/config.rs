//! Namespaces of a broker, and users with their shares (U1, U5).
use nvme::queue::check;
use queue::Kind;
use runtime::MemoryDevice;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, PoisonError};

/// Storage of the blocks of a namespace.
#[derive(Clone, Debug)]
pub enum Store {
    /// None: no data are moved at all, so reads leave the memory as it is.
    Null,
    /// Memory of this process.
    Memory(Arc<MemoryDevice>),
    /// A device of the engine that has the queues.
    Engine(Arc<EngineNamespace>),
}

/// A device of an engine as a namespace.
#[derive(Debug)]
pub struct EngineNamespace {
    /// The engine's number of it, which is no other's that has an [`EngineNamespace`].
    number: u32,
    /// Of its device, in messages.
    name: String,
    /// `None`: the device has not been ready.
    shape: Mutex<Option<Shape>>,
}

/// Size of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// log2 of the block size, 9 to 12.
    pub block_shift: u8,
    /// Blocks.
    pub blocks: u64,
    /// Its device takes no changes.
    pub read_only: bool,
}

impl EngineNamespace {
    /// One of a device that has not been ready.
    pub fn new(number: u32, name: String) -> Self {
        let shape = Mutex::default();
        Self {
            number,
            name,
            shape,
        }
    }

    /// See [`QueueCommand::namespace`](engine::QueueCommand::namespace).
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its device is ready, which all queues see, or has another size: for queues that are opened
    /// from now on. `None`: it can't be used.
    pub fn set_shape(&self, shape: Option<Shape>) {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner) = shape;
    }

    fn shape(&self) -> Option<Shape> {
        *self.shape.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store {
    /// Its name in messages.
    pub fn name(&self) -> &str {
        match self {
            Self::Null => "null:",
            Self::Memory(_) => "mem:",
            Self::Engine(it) => &it.name,
        }
    }
}

/// A namespace: its NSID is its place among them, from 1.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Storage of its blocks.
    pub store: Store,
    /// log2 of the block size, 9 to 12; of no use where its device says it
    /// ([`EngineNamespace::set_shape`]).
    pub block_shift: u8,
    /// Blocks; as the block size.
    pub blocks: u64,
    /// No client may change it.
    pub read_only: bool,
}

impl Namespace {
    /// Its size; `None`: its device has not been ready.
    fn shape(&self) -> Option<Shape> {
        let own = Shape {
            block_shift: self.block_shift,
            blocks: self.blocks,
            read_only: self.read_only,
        };
        match &self.store {
            Store::Engine(it) => it.shape().map(|it| Shape {
                read_only: it.read_only || self.read_only,
                ..it
            }),
            Store::Null | Store::Memory(_) => Some(own),
        }
    }
}

/// A client's right to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceRight {
    /// Which one.
    pub nsid: u32,
    /// First block.
    pub first: u64,
    /// Behind the last block; beyond the end means the end.
    pub end: u64,
    /// No changes.
    pub read_only: bool,
}

/// Rights of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Namespaces, each once; `None`: all, as they are.
    pub namespaces: Option<Vec<NamespaceRight>>,
    /// Most commands in flight on one queue; one less than its entries.
    pub depth_max: u16,
    /// Most queues at a time of all clients of this user.
    pub queues_max: u32,
    /// Most bytes of memory of all queues of this user, besides their rings.
    pub memory_max: u64,
}

/// Rights by user.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// By uid.
    pub users: Vec<(u32, Grant)>,
    /// All others; `None`: nothing.
    pub others: Option<Grant>,
}

impl Rights {
    /// Rights of a user.
    pub fn of(&self, uid: u32) -> Option<&Grant> {
        let named = self.users.iter().find(|(user, _)| *user == uid);
        named.map(|(_, grant)| grant).or(self.others.as_ref())
    }
}

/// Identity that the namespaces show, for those who have other paths to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// NQN of the subsystem that they belong to.
    pub subsystem: String,
    /// Identifier of this controller in that: no other one's.
    pub controller: u16,
    /// NGUID and UUID of each.
    pub namespaces: Vec<([u8; 16], [u8; 16])>,
}

impl Identity {
    /// Of namespace `index` + 1.
    pub(crate) fn of(&self, index: usize) -> Option<queue::Identity> {
        let &(nguid, uuid) = self.namespaces.get(index)?;
        Some(queue::Identity {
            subsystem: self.subsystem.clone(),
            controller: self.controller,
            nguid,
            uuid,
        })
    }
}

/// All of it.
#[derive(Debug)]
pub struct Config {
    /// Listens already.
    pub listener: UnixListener,
    /// Namespaces.
    pub namespaces: Vec<Namespace>,
    /// Identity of these; `None`: none, so they are the same as nothing else.
    pub identity: Option<Identity>,
    /// Queues of kind `user_poll`.
    pub user_poll: u32,
    /// Queues of kind `user_irq`.
    pub user_irq: u32,
    /// Most bytes of memory that a queue has, besides its rings.
    pub memory_max: u64,
    /// How long a connection without a queue may say nothing, ns ([`crate::limits::PATIENCE_NS`]).
    pub patience_ns: u64,
    /// How long a core looks for commands before it sleeps, ns.
    pub spin_ns: u64,
    /// How far clients are believed.
    pub trust: check::Trust,
    /// Rights by user.
    pub rights: Rights,
}

impl Config {
    pub(crate) fn queues(&self, kind: Kind) -> u32 {
        match kind {
            Kind::UserPoll => self.user_poll,
            Kind::UserIrq => self.user_irq,
        }
    }
}

impl Grant {
    /// To everything.
    pub fn whole() -> Self {
        Self {
            namespaces: None,
            depth_max: u16::MAX,
            queues_max: u32::MAX,
            memory_max: u64::MAX,
        }
    }

    /// The namespaces as a queue of this client has them, by NSID − 1.
    pub(crate) fn views(&self, namespaces: &[Namespace]) -> Vec<Option<check::Namespace>> {
        let view = |(index, namespace): (usize, &Namespace)| {
            let shape = namespace.shape()?;
            let whole = check::Namespace {
                block_shift: shape.block_shift,
                blocks: shape.blocks,
                first: 0,
                end: shape.blocks,
                read_only: shape.read_only,
            };
            let Some(rights) = &self.namespaces else {
                return Some(whole);
            };
            let right = rights.iter().find(|it| it.nsid as usize == index + 1)?;
            Some(check::Namespace {
                first: right.first.min(shape.blocks),
                end: right.end.min(shape.blocks),
                read_only: whole.read_only || right.read_only,
                ..whole
            })
        };
        namespaces.iter().enumerate().map(view).collect()
    }
}
