//! A queue on its way to another process: its descriptors, and nothing else (U2).
use crate::layout::Header;
use crate::open::{Connection, region};
use crate::queue::{Held, Queue};
use crate::{Error, Form, Kind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use sys::{Errno, Shared, passing};

/// All of a queue that can be passed on. Its data memory goes along; other registered memory is the
/// passer's to pass.
#[derive(Debug)]
pub struct Parts {
    held: Held,
    form: Form,
}

impl Queue {
    /// Takes the queue apart, to be passed on.
    ///
    /// # Errors
    /// And the queue. [`Error::Busy`]: commands are in flight; [`Error::OutOfStep`]: who has it
    /// next would take an answer that may come yet for theirs.
    pub fn into_parts(self) -> Result<Parts, Box<(Error, Self)>> {
        if self.in_flight() > 0 {
            return Err(Box::new((Error::Busy, self)));
        }
        if let Err(error) = self.held().connection.is_in_step() {
            return Err(Box::new((error, self)));
        }
        let (held, form) = self.into_held();
        Ok(Parts { held, form })
    }

    /// Puts a queue together again.
    ///
    /// # Errors
    /// The descriptors are none of a queue; the system has no memory.
    pub fn from_parts(parts: Parts) -> Result<Self, Error> {
        let (memory, header) = load(&parts.held.ring)?;
        if (header.kind == Kind::UserIrq) != parts.held.interrupt.is_some() {
            return Err(Error::Protocol("another kind of queue"));
        }
        let memory = Arc::new(memory);
        Ok(Self::new(parts.held, memory, header, parts.form))
    }
}

impl Parts {
    /// Sends it over a Unix socket. The queue is the receiver's when this was received.
    ///
    /// # Errors
    /// As `sendmsg`.
    pub fn send(self, to: &UnixStream) -> Result<(), Error> {
        let held = &self.held;
        let data = held.data.as_ref();
        let mut descriptors = vec![
            held.connection.socket(),
            held.ring.as_fd(),
            held.kick.as_fd(),
        ];
        descriptors.extend(held.interrupt.as_ref().map(AsFd::as_fd));
        descriptors.extend(data.map(|data| data.file()));
        let (bytes, address) = data.map_or((0, 0), |data| (data.len() as u64, data.address()));
        let mut message = [0; 24];
        message[..8].copy_from_slice(&bytes.to_le_bytes());
        message[8..16].copy_from_slice(&address.to_le_bytes());
        message[16] = held.interrupt.is_some().into();
        message[17] = self.form as u8;
        match passing::send(to, &message, &descriptors, true) {
            Ok(24) => Ok(()),
            Ok(_) => Err(Error::system("pass a queue on", Errno::MSGSIZE)),
            Err(source) => Err(Error::system("pass a queue on", source)),
        }
    }

    /// Receives it.
    ///
    /// # Errors
    /// As `recvmsg`; what came is no queue.
    pub fn receive(from: &UnixStream) -> Result<Self, Error> {
        let failed = |source| Error::system("receive a queue", source);
        let mut descriptors = Vec::new();
        let mut message = [0; 24];
        let count = passing::receive(from, &mut message, &mut descriptors, true);
        if count.map_err(failed)? != message.len() {
            return Err(failed(Errno::BADMSG));
        }
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| message[at + n]));
        let (bytes, address) = (long(0), long(8));
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(failed(Errno::BADMSG));
        let (socket, ring, kick): (OwnedFd, OwnedFd, OwnedFd) = (next()?, next()?, next()?);
        let interrupt = (message[16] != 0).then(&mut next).transpose()?;
        let data = match bytes {
            0 => None,
            bytes => Some(region(next()?, bytes, address)?),
        };
        let held = Held {
            connection: Connection::new(socket),
            ring,
            kick,
            interrupt,
            data,
        };
        let form = match message[17] {
            1 => Form::Prp,
            2 => Form::Sgl,
            _ => Form::Auto,
        };
        Ok(Self { held, form })
    }
}

fn load(ring: &OwnedFd) -> Result<(Shared, Header), Error> {
    let size = rustix::fs::fstat(ring).map_err(|source| Error::system("fstat", source))?;
    let bytes = usize::try_from(size.st_size).unwrap_or(0);
    let memory = Shared::map(ring, bytes)?;
    let header = Header::load(&memory).ok_or(Error::Protocol("no queue in the memory"))?;
    Ok((memory, header))
}
