//! Both sides of a session's beginning, as hosts and clients go through it.
use super::socket::{Address, Socket};
use super::words;
use anyhow::{Result, ensure};
use nvme::wire::fabrics::{CNTLID_ANY, ConnectResult};
use nvme::wire::pdu::{COMMON_LEN, Header, PduType, parse_response};

/// What a server speaks.
#[derive(Clone, Debug)]
pub enum Wire {
    /// NVMe/TCP, with the subsystem's NQN.
    Nvme(String),
    Nbd,
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
        initialize(&io)?;
        io.say(&words::connect(nqn, 1, cntlid, entries, 0))?;
        response(&io)?;
        Ok(Queue {
            socket: io,
            admin: Some(socket),
        })
    }

    fn log_in(&self, source: u8, kato_ms: u32) -> Result<(Socket, u16)> {
        let socket = self.connect(source)?;
        match &self.wire {
            Wire::Nvme(nqn) => {
                initialize(&socket)?;
                socket.say(&words::connect(nqn, 0, CNTLID_ANY, 32, kato_ms))?;
                let cntlid = ConnectResult::parse(response(&socket)?).cntlid;
                socket.say(&words::enable())?;
                response(&socket)?;
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

/// ICReq and ICResp.
fn initialize(socket: &Socket) -> Result<()> {
    socket.say(&words::ic_req())?;
    socket.hear_all(&mut [0; 128])
}

/// The result of a response, which must be good.
fn response(socket: &Socket) -> Result<u64> {
    let mut pdu = vec![0; COMMON_LEN];
    socket.hear_all(&mut pdu)?;
    let length = Header::parse(&pdu)?.plen as usize;
    ensure!(
        (COMMON_LEN..=4 << 20).contains(&length),
        "a PDU of {length} bytes"
    );
    pdu.resize(length, 0);
    socket.hear_all(&mut pdu[COMMON_LEN..])?;
    let cqe = parse_response(&pdu)?;
    ensure!(
        pdu[0] == PduType::CapsuleResp as u8 && cqe.status.is_success(),
        "the target refused a command: PDU type {}, status {}",
        pdu[0],
        cqe.status
    );
    Ok(cqe.result)
}
