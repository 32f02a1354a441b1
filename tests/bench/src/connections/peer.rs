//! Both sides of a session's beginning, as hosts and clients go through it.
use super::socket::{Address, Socket};
use super::words;
use anyhow::Result;
use nvme::wire::fabrics::{CATTR_DISABLE_SQ_FLOW, CNTLID_ANY, Connect};
use system::faults::nvme::Queue as Login;

/// Protocol of a server.
#[derive(Clone, Debug)]
pub enum Wire {
    /// NVMe/TCP, with the subsystem's NQN.
    Nvme(String),
    Nbd,
}

impl Wire {
    /// A read of so many blocks of 4 KiB, from number `block` on.
    pub fn read(&self, number: u16, blocks: u16, block: u64) -> Vec<u8> {
        let length = u32::from(blocks) * 4096;
        match self {
            Self::Nvme(_) => words::read(number, blocks, block),
            Self::Nbd => words::nbd_request(false, number.into(), block * 4096, length),
        }
    }
}

/// A server as its clients see it.
#[derive(Clone, Debug)]
pub struct Place {
    pub address: Address,
    pub wire: Wire,
}

/// A queue of a host that is logged in; NVMe has an admin connection beside it.
pub struct Queue {
    pub socket: Socket,
    /// Held, because the queue ends with it.
    #[expect(dead_code, reason = "held")]
    pub admin: Option<Socket>,
}

/// Connect of queue `qid` with so many entries.
fn connect(qid: u16, entries: u16, kato_ms: u32) -> Connect {
    Connect {
        recfmt: 0,
        qid,
        sqsize: entries - 1,
        // So that data may carry SUCCESS.
        cattr: CATTR_DISABLE_SQ_FLOW,
        kato_ms,
    }
}

impl Place {
    /// A connection that was not used yet.
    pub fn connect(&self, source: u8) -> Result<Socket> {
        Socket::connect(&self.address, source)
    }

    /// An association that is enabled, or an NBD session in transmission.
    pub fn login(&self, source: u8, kato_ms: u32) -> Result<Socket> {
        Ok(self.log_in(source, kato_ms)?.0)
    }

    /// A queue for I/O of so many entries.
    pub fn queue(&self, source: u8, entries: u16) -> Result<Queue> {
        let (socket, cntlid) = self.log_in(source, 0)?;
        let Wire::Nvme(nqn) = &self.wire else {
            let admin = None;
            return Ok(Queue { socket, admin });
        };
        let io = self.connect(source)?;
        let mut queue = Login::begin(io.stream()?)?;
        queue.connect(nqn, cntlid, &connect(1, entries, 0))?;
        Ok(Queue {
            socket: io,
            admin: Some(socket),
        })
    }

    fn log_in(&self, source: u8, kato_ms: u32) -> Result<(Socket, u16)> {
        let socket = self.connect(source)?;
        match &self.wire {
            Wire::Nvme(nqn) => {
                let mut admin = Login::begin(socket.stream()?)?;
                let cntlid = admin.connect(nqn, CNTLID_ANY, &connect(0, 32, kato_ms))?;
                admin.enable()?;
                Ok((socket, cntlid))
            }
            Wire::Nbd => {
                socket.hear_all(&mut [0; 18])?;
                socket.say(&words::nbd_flags())?;
                socket.say(&words::nbd_choice())?;
                socket.hear_all(&mut [0; 10])?;
                Ok((socket, 0))
            }
        }
    }
}
