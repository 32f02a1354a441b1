//! NVMe/TCP by hand: raw connections to the engine's NVMe/TCP server.
use crate::common::{HOST, NQN, SECOND};
use crate::nvme_server::rig::{CLIENTS, Rig, to};
use engine::limits::EXPORTS_MAX;
use nvme::wire::fabrics::{CNTLID_ANY, Cc, Connect, ConnectData, Property, property};
use nvme::wire::pdu::{DataHeader, Framing, Header, IcReq, PduType, flags, parse_response};
use nvme::wire::sqe::{Sgl, admin};
use nvme::wire::{Cqe, SqeBuilder, Status};

/// Bytes of ICResp.
const IC_RESP: usize = 128;
/// Bytes of a block.
const BLOCK: u32 = 4096;
pub const HOST_NQN: &str = "nqn.2026-01.org.example:by-hand";

/// One connection, whose commands are answered one after the other.
pub struct Wire {
    conn: usize,
    /// Bytes of the server that were taken.
    taken: usize,
    next_cid: u16,
    /// The admin connection of an I/O queue.
    admin: Option<Box<Wire>>,
}

impl Wire {
    /// A connection after ICReq and ICResp.
    pub fn open(rig: &mut Rig) -> Self {
        let addresses = &mut rig.world.nodes[CLIENTS].addresses;
        addresses.push(to(HOST, EXPORTS_MAX));
        let address = addresses.len() as u32 - 1;
        let conn = rig.clients.borrow_mut().connect_raw(address);
        let mut bytes = Vec::new();
        let request = IcReq {
            pfv: 0,
            hpda: 0,
            header_digest: false,
            data_digest: false,
            maxr2t: 0,
        };
        request.emit(&mut bytes);
        rig.clients.borrow_mut().say(conn, &bytes);
        rig.until(SECOND, |rig| {
            rig.clients.borrow().all[conn].said.len() == IC_RESP
        });
        Self {
            conn,
            taken: IC_RESP,
            next_cid: 0,
            admin: None,
        }
    }

    /// The end of Connect.
    pub fn connect(&mut self, rig: &mut Rig, nqn: &str, cntlid: u16, qid: u16) -> Cqe {
        let connect = Connect {
            recfmt: 0,
            qid,
            sqsize: 31,
            cattr: 0,
            kato_ms: 0,
        };
        let data = ConnectData {
            hostid: [9; 16],
            cntlid,
            subnqn: nqn.as_bytes(),
            hostnqn: HOST_NQN.as_bytes(),
        };
        let sqe = connect.emit().sgl(Sgl::InCapsule {
            offset: 0,
            len: ConnectData::LEN as u32,
        });
        self.ask(rig, sqe, &data.emit()).0
    }

    /// An admin queue of an association that is not enabled yet, and its controller.
    pub fn login(rig: &mut Rig, nqn: &str) -> (Self, u16) {
        let mut wire = Self::open(rig);
        let cqe = wire.connect(rig, nqn, CNTLID_ANY, 0);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        (wire, cqe.result as u16)
    }

    /// An I/O queue of a controller of its own.
    pub fn queue(rig: &mut Rig) -> Self {
        let (mut admin, cntlid) = Self::login(rig, NQN);
        let enabled = admin.set(rig, property::CC, Cc::enabled(0, 0).0);
        assert!(enabled.is_success(), "{enabled}");
        let mut wire = Self::open(rig);
        let cqe = wire.connect(rig, NQN, cntlid, 1);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        wire.admin = Some(Box::new(admin));
        wire
    }

    /// Property Set.
    pub fn set(&mut self, rig: &mut Rig, offset: u32, value: u32) -> Status {
        let set = Property {
            offset,
            wide: false,
            value: value.into(),
        };
        self.ask(rig, set.emit_set(), &[]).0.status
    }

    /// Property Get.
    pub fn get(&mut self, rig: &mut Rig, offset: u32) -> u32 {
        let get = Property {
            offset,
            wide: false,
            value: 0,
        };
        let cqe = self.ask(rig, get.emit_get(), &[]).0;
        assert!(cqe.status.is_success(), "{}", cqe.status);
        cqe.result as u32
    }

    /// A command on blocks of namespace 1; `data`: of the host.
    pub fn io(&mut self, rig: &mut Rig, opcode: u8, (slba, count): (u64, u32), data: &[u8]) -> Cqe {
        self.io_on(rig, 1, opcode, (slba, count), data)
    }

    /// The same on this namespace.
    pub fn io_on(
        &mut self,
        rig: &mut Rig,
        nsid: u32,
        opcode: u8,
        (slba, count): (u64, u32),
        data: &[u8],
    ) -> Cqe {
        let len = count * BLOCK;
        let sgl = match data.is_empty() {
            true => Sgl::Transport { len },
            false => Sgl::InCapsule { offset: 0, len },
        };
        let sqe = SqeBuilder::new(opcode).nsid(nsid).sgl(sgl);
        let sqe = sqe.cdw(10, slba as u32).cdw(11, (slba >> 32) as u32);
        self.ask(rig, sqe.cdw(12, count.wrapping_sub(1)), data).0
    }

    /// Identify Controller.
    pub fn identify_controller(&mut self, rig: &mut Rig) -> Vec<u8> {
        let (cqe, bytes) = self.identify(rig, 1, 0);
        assert!(cqe.status.is_success(), "{}", cqe.status);
        bytes
    }

    /// Identify with this CNS, over the admin queue.
    pub fn identify(&mut self, rig: &mut Rig, cns: u32, nsid: u32) -> (Cqe, Vec<u8>) {
        let sqe = SqeBuilder::new(admin::IDENTIFY).nsid(nsid).cdw(10, cns);
        let sqe = sqe.sgl(Sgl::Transport { len: 4096 });
        match self.admin.as_deref_mut() {
            Some(admin) => admin.ask(rig, sqe, &[]),
            None => self.ask(rig, sqe, &[]),
        }
    }

    /// A command with this data in its capsule: its end, and the data that came.
    pub fn ask(&mut self, rig: &mut Rig, sqe: SqeBuilder, data: &[u8]) -> (Cqe, Vec<u8>) {
        let cid = self.next_cid;
        self.next_cid += 1;
        let mut bytes = Vec::new();
        let sqe = sqe.cid(cid);
        Framing::PLAIN.whole(&mut bytes, PduType::CapsuleCmd, 0, sqe.bytes(), data);
        rig.clients.borrow_mut().say(self.conn, &bytes);
        let mut read = Vec::new();
        loop {
            let pdu = self.pdu(rig);
            let header = Header::parse(&pdu).unwrap();
            match PduType::from_byte(header.kind) {
                Some(PduType::CapsuleResp) => {
                    let cqe = parse_response(&pdu).unwrap();
                    assert_eq!(cqe.cid, cid);
                    return (cqe, read);
                }
                Some(PduType::C2hData) => {
                    let layout = header.layout(false, &Framing::PLAIN).unwrap();
                    assert_eq!(DataHeader::parse(&pdu).unwrap().cccid, cid);
                    read.extend(&pdu[(layout.header + layout.pad) as usize..]);
                    if header.flags & flags::SUCCESS != 0 {
                        return (Cqe::default(), read);
                    }
                }
                other => panic!("{other:?} in place of an answer"),
            }
        }
    }

    /// The next PDU.
    fn pdu(&mut self, rig: &mut Rig) -> Vec<u8> {
        let (conn, from) = (self.conn, self.taken);
        let whole = |rig: &Rig| {
            let clients = rig.clients.borrow();
            let client = &clients.all[conn];
            assert!(client.closed.is_none(), "closed: {:?}", client.closed);
            let said = &client.said[from..];
            let length = Header::parse(said).ok()?.plen as usize;
            said.get(..length).map(<[u8]>::to_vec)
        };
        rig.until(10 * SECOND, |rig| whole(rig).is_some());
        let pdu = whole(rig).unwrap();
        self.taken += pdu.len();
        pdu
    }
}
