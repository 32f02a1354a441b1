//! Messages between the server's thread, the cores that have its queues, and its connections.
use crate::lane::{GivenUp, Lane};
use crate::session::Brought;
use crate::transfer::Region;
use crate::{Identity, Namespace};
use queue::protocol::Request;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::Sender;
use sys::os::Event;

/// To a core.
pub enum Message {
    /// The first one: the server hears of the end of the core from now on.
    Attach,
    /// A queue to serve.
    Add(Box<Lane>),
    /// Its client is gone.
    Remove(u64),
    /// Registered memory comes or goes.
    Region(u64, usize, Option<Region>),
    /// Everything ends.
    Stop,
}

/// To the socket's thread, from cores and from connections.
pub enum News {
    /// A queue that was to be removed, or was given up, has ended. Dropping it takes time.
    Removed(u64, Box<Lane>),
    /// All cores know of the changes that a queue has under way whose client is gone.
    Shown(u64),
    /// Memory that no command uses any more. Dropping it takes time.
    Let(Vec<Region>),
    /// Registered memory came or went: the core knows. The memory of before.
    Region(u64, Option<Region>),
    /// Another set of namespaces, for queues that are opened from now on.
    Namespaces(Vec<Namespace>, Option<Identity>),
    /// A client asks.
    Heard(u64, Request, Brought),
    /// A connection is at its end.
    Gone(u64),
    /// A connection of a user is closed.
    Closed(u32),
    /// A queue was given up.
    Broken(u64, GivenUp),
    /// A core has none of the server's queues any more, as it was told to, or has ended.
    Ended,
}

/// A server, as the core that has its queues knows it.
pub struct Link {
    /// How long the core looks for commands before it sleeps, ns.
    pub spin_ns: u64,
    pub news: Sender<News>,
    /// Raised with each piece of news.
    pub news_event: Arc<Event>,
    /// System calls that raised interrupts of its queues.
    pub raised: AtomicU64,
}

impl Link {
    pub fn tell(&self, news: News) {
        // A server that has ended asks for nothing more.
        let _ = self.news.send(news);
        self.news_event.raise();
    }
}

/// A message of a server to a core that has its queues.
pub struct ToCore {
    link: Arc<Link>,
    /// `None`: the core has taken it.
    message: Option<Message>,
}

impl ToCore {
    pub(crate) fn new(link: &Arc<Link>, message: Message) -> Self {
        Self {
            link: Arc::clone(link),
            message: Some(message),
        }
    }

    /// The server that sent it, and the message.
    pub(crate) fn take(mut self) -> (Arc<Link>, Message) {
        let message = self.message.take();
        let message = message.unwrap_or_else(|| unreachable!("a message is taken once"));
        (Arc::clone(&self.link), message)
    }
}

impl Drop for ToCore {
    /// Of a core that took an attachment, its end is told by its queues.
    fn drop(&mut self) {
        if let Some(Message::Attach) = self.message {
            self.link.tell(News::Ended);
        }
    }
}

/// How a core has waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreWaits {
    /// Calls of `io_uring_enter`.
    pub enters: u64,
    /// How often it slept.
    pub sleeps: u64,
}

/// A core of an engine, as a server knows it.
pub struct ServerCore {
    /// Hands it a message, in order, and wakes it. Drops it where the core has ended.
    pub post: Box<dyn Fn(ToCore) + Send>,
    /// How it has waited.
    pub waits: Box<dyn Fn() -> CoreWaits + Send>,
}
