//! The smallest NVMe/TCP host: one command after the other, each waited for.
//!
//! # Limits
//! A command that finds the namespace inaccessible (ANA) is repeated, as by hosts with multipath.
//! Namespace 1, whole blocks, no digests, no keep-alive; a command that takes longer than
//! `PATIENCE` fails.
use super::nbd::{BLOCK, PATIENCE};
use super::stop;
use anyhow::{Context, Result, bail, ensure};
use nvme::wire::fabrics::{CNTLID_ANY, Cc, Connect, ConnectData, ConnectResult};
use nvme::wire::fabrics::{Property, property};
use nvme::wire::pdu::{
    COMMON_LEN, DataHeader, Framing, Header, IcReq, IcResp, PduType, flags, parse_response,
};
use nvme::wire::sqe::{Sgl, admin, nvm};
use nvme::wire::{Cqe, SqeBuilder, Status};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Subsystem that is connected to.
pub const NQN: &str = "nqn.2026-01.org.example:exported";
/// Bytes that one read asks for.
const PIECE: usize = 64 << 10;
/// Bytes that an export takes in a capsule.
const IN_CAPSULE: usize = 8 << 10;
/// Longest PDU.
const PDU_MAX: usize = 4 << 20;
/// Longest wait for the namespace of a volume that is ready.
const READY: Duration = Duration::from_secs(30);

/// One queue.
pub struct Queue {
    stream: TcpStream,
    cid: u16,
    /// Most bytes of one H2CData.
    data_max: usize,
}

/// An I/O queue, and its controller's admin queue, which ends with it.
pub struct Client {
    queue: Queue,
    /// log2 of the namespace's block size.
    shift: u8,
    _admin: Queue,
}

impl Client {
    /// Connects, and waits until namespace 1 can be read.
    ///
    /// # Errors
    /// Nobody listens, or the controller says why not.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let connect = |qid| Connect {
            recfmt: 0,
            qid,
            sqsize: 31,
            cattr: 0,
            kato_ms: 0,
        };
        let mut admin = Queue::open(address)?;
        let cntlid = admin.connect(NQN, CNTLID_ANY, &connect(0))?;
        admin.enable()?;
        let csts = Property {
            offset: property::CSTS,
            wide: false,
            value: 0,
        };
        stop::wait("the controller is ready", READY, || {
            let ended = admin.command(csts.emit_get(), &[], &mut [])?;
            Ok((good("Property Get", ended)?.result & 1 == 1).then_some(()))
        })?;
        let mut queue = Queue::open(address)?;
        queue.connect(NQN, cntlid, &connect(1))?;
        let mut shift = 0;
        stop::wait("namespace 1 is there", READY, || {
            shift = admin.block_shift()?;
            Ok((shift > 0).then_some(()))
        })?;
        let mut client = Self {
            queue,
            shift,
            _admin: admin,
        };
        client.read(0, &mut [0; BLOCK])?;
        Ok(client)
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// The controller says which, or is gone.
    pub fn read(&mut self, offset: u64, blocks: &mut [u8]) -> Result<()> {
        for (number, piece) in (0..).zip(blocks.chunks_mut(PIECE)) {
            let at = offset + number * PIECE as u64;
            let sqe = self.transfer(nvm::READ, at, piece.len(), 0);
            self.done("Read", sqe, &[], piece)?;
        }
        Ok(())
    }

    /// Writes whole blocks; `fua`: they are durable then.
    ///
    /// # Errors
    /// The controller says which, or is gone.
    pub fn write(&mut self, offset: u64, blocks: &[u8], fua: bool) -> Result<()> {
        let flags = if fua { nvm::FUA } else { 0 };
        let sqe = self.transfer(nvm::WRITE, offset, blocks.len(), flags);
        self.done("Write", sqe, blocks, &mut [])
    }

    /// Flushes.
    ///
    /// # Errors
    /// The controller says which, or is gone.
    pub fn flush(&mut self) -> Result<()> {
        let flush = SqeBuilder::new(nvm::FLUSH).nsid(1);
        self.done("Flush", flush, &[], &mut [])
    }

    /// A command, until it succeeds.
    fn done(&mut self, what: &str, sqe: SqeBuilder, data: &[u8], read: &mut [u8]) -> Result<()> {
        stop::wait("the namespace is accessible", PATIENCE, || {
            let ended = self.queue.command(sqe, data, read)?;
            let is_lost = ended.status.code() == Status::ANA_INACCESSIBLE;
            Ok(match is_lost {
                true => None,
                false => Some(good(what, ended)?),
            })
        })
        .map(drop)
    }

    /// A command of whole blocks; `flags`: beside NLB.
    fn transfer(&self, opcode: u8, offset: u64, length: usize, flags: u32) -> SqeBuilder {
        let slba = offset >> self.shift;
        let len = length as u32;
        let sqe = SqeBuilder::new(opcode).nsid(1).cdw(10, slba as u32);
        let sqe = sqe.cdw(11, (slba >> 32) as u32);
        let sqe = sqe.cdw(12, ((len >> self.shift) - 1) | flags);
        sqe.sgl(Sgl::Transport { len })
    }
}

fn good(what: &str, ended: Cqe) -> Result<Cqe> {
    ensure!(ended.status.is_success(), "{what}: {}", ended.status);
    Ok(ended)
}

impl Queue {
    fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Self::begin(stream)
    }

    /// A connection after ICReq and ICResp.
    ///
    /// # Errors
    /// The peer does not answer, or as no controller does.
    pub fn begin(stream: TcpStream) -> Result<Self> {
        let mut queue = Self {
            stream,
            cid: 0,
            data_max: 0,
        };
        let mut bytes = Vec::new();
        let request = IcReq {
            pfv: 0,
            hpda: 0,
            header_digest: false,
            data_digest: false,
            maxr2t: 0,
        };
        request.emit(&mut bytes);
        queue.stream.write_all(&bytes)?;
        let response = IcResp::parse(&queue.pdu()?)?;
        queue.data_max = response.maxh2cdata as usize;
        Ok(queue)
    }

    /// Connect: the identifier of the controller.
    ///
    /// # Errors
    /// The controller refuses.
    pub fn connect(&mut self, nqn: &str, cntlid: u16, connect: &Connect) -> Result<u16> {
        let data = ConnectData {
            hostid: [0x6b; 16],
            cntlid,
            subnqn: nqn.as_bytes(),
            hostnqn: b"nqn.2026-01.org.example:faults-host",
        };
        let ended = self.command(connect.emit(), &data.emit(), &mut [])?;
        Ok(ConnectResult::parse(good("Connect", ended)?.result).cntlid)
    }

    /// Property Set of CC: the controller of this admin queue is enabled.
    ///
    /// # Errors
    /// The controller refuses.
    pub fn enable(&mut self) -> Result<()> {
        let cc = Property {
            offset: property::CC,
            wide: false,
            value: Cc::enabled(0, 0).0.into(),
        };
        good("Property Set", self.command(cc.emit_set(), &[], &mut [])?).map(drop)
    }

    /// log2 of the block size of namespace 1; 0: it is not active.
    fn block_shift(&mut self) -> Result<u8> {
        let identify = SqeBuilder::new(admin::IDENTIFY).nsid(1);
        let mut found = [0; 4096];
        let len = found.len() as u32;
        let sqe = identify.sgl(Sgl::Transport { len });
        let ended = self.command(sqe, &[], &mut found)?;
        if ended.status.code() == Status::INVALID_NAMESPACE {
            return Ok(0);
        }
        good("Identify", ended)?;
        // FLBAS leads to the format in use, whose third byte is LBADS.
        let format = usize::from(found[26] & 0xf);
        Ok(found[128 + 4 * format + 2])
    }

    /// One command with this data of ours, or whose data is read: its end.
    fn command(&mut self, sqe: SqeBuilder, data: &[u8], read: &mut [u8]) -> Result<Cqe> {
        self.cid = self.cid.wrapping_add(1) & 0x7fff;
        let (mut sqe, mut inside) = (sqe.cid(self.cid), &[][..]);
        if !data.is_empty() && data.len() <= IN_CAPSULE {
            let len = data.len() as u32;
            sqe = sqe.sgl(Sgl::InCapsule { offset: 0, len });
            inside = data;
        }
        let mut bytes = Vec::new();
        Framing::PLAIN.whole(&mut bytes, PduType::CapsuleCmd, 0, sqe.bytes(), inside);
        self.stream.write_all(&bytes).context("send a command")?;
        loop {
            let pdu = self.pdu()?;
            let header = Header::parse(&pdu)?;
            match PduType::from_byte(header.kind) {
                Some(PduType::CapsuleResp) => {
                    let cqe = parse_response(&pdu)?;
                    ensure!(cqe.cid == self.cid, "the end of another command");
                    return Ok(cqe);
                }
                Some(PduType::R2t) => self.send_data(&DataHeader::parse(&pdu)?, data)?,
                Some(PduType::C2hData) => {
                    let own = DataHeader::parse(&pdu)?;
                    let (from, length) = (own.offset as usize, own.length as usize);
                    let into = read.get_mut(from..from + length);
                    let into = into.context("data beyond what was asked for")?;
                    let at = usize::from(header.pdo);
                    let found = pdu.get(at..at + length).context("C2HData is cut")?;
                    into.copy_from_slice(found);
                    if header.flags & flags::SUCCESS != 0 {
                        return Ok(Cqe::default());
                    }
                }
                _ => bail!("a PDU of type {} in place of an answer", header.kind),
            }
        }
    }

    /// Sends the data that an R2T asks for.
    fn send_data(&mut self, r2t: &DataHeader, data: &[u8]) -> Result<()> {
        let end = (r2t.offset + r2t.length) as usize;
        let asked = data.get(r2t.offset as usize..end);
        let asked = asked.context("an R2T beyond the command's data")?;
        let mut bytes = Vec::new();
        let mut offset = r2t.offset;
        for piece in asked.chunks(self.data_max.max(BLOCK)) {
            let length = piece.len() as u32;
            let own = DataHeader {
                offset,
                length,
                ..*r2t
            };
            offset += length;
            let flag = match offset as usize == end {
                true => flags::LAST,
                false => 0,
            };
            Framing::PLAIN.whole(&mut bytes, PduType::H2cData, flag, &own.emit(), piece);
        }
        self.stream.write_all(&bytes).context("send data")
    }

    /// The next PDU.
    fn pdu(&mut self) -> Result<Vec<u8>> {
        let mut pdu = vec![0; COMMON_LEN];
        self.stream.read_exact(&mut pdu).context("no answer")?;
        let length = Header::parse(&pdu)?.plen as usize;
        ensure!(
            (COMMON_LEN..=PDU_MAX).contains(&length),
            "a PDU of {length} bytes"
        );
        pdu.resize(length, 0);
        let rest = self.stream.read_exact(&mut pdu[COMMON_LEN..]);
        rest.context("a PDU that is cut")?;
        Ok(pdu)
    }
}
