//! A controller for the admin connection: answers from a model, unless the script says otherwise.
use super::*;
use nvme::host::{Admin, AdminConfig, AdminEvent, AnaState};
use nvme::wire::fabrics::{Cap, Cc, Csts, Property, Version, property};
use nvme::wire::features::AsyncEvent;
use nvme::wire::identify::{
    Controller, Descriptor, IndependentNamespace, LbaFormat, NSID_LIST_MAX, Namespace,
    NvmNamespace, cmic, cns, cntrltype, ctratt, emit_descriptors, emit_nsids,
};
use nvme::wire::layout::{padded, terminated};
use nvme::wire::log::{self, DiscoveryEntry, DiscoveryHeader, Request, emit_ana, lid};
use nvme::wire::sqe::{FABRICS, admin, fctype};

pub const SECOND: u64 = 1_000_000_000;
pub const SUBSYSTEM: &str = "nqn.2026-01.org.example:v0";

/// Answer of a controller to one command.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    pub status: Status,
    pub result: u64,
    pub data: Vec<u8>,
    /// Nothing at all.
    pub silent: bool,
    /// With a wrong data digest.
    pub damaged: bool,
}

impl Answer {
    pub fn error(status: Status) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub fn data(data: &[u8]) -> Self {
        Self {
            data: data.to_vec(),
            ..Self::default()
        }
    }

    pub fn result(result: u64) -> Self {
        Self {
            result,
            ..Self::default()
        }
    }

    pub fn silent() -> Self {
        Self {
            silent: true,
            ..Self::default()
        }
    }
}

/// A namespace of the model.
#[derive(Clone)]
pub struct Disk {
    pub nsid: u32,
    pub id: Namespace,
    pub descriptors: Vec<Descriptor>,
    pub nvm: NvmNamespace,
    pub independent: IndependentNamespace,
}

impl Disk {
    pub fn new(nsid: u32) -> Self {
        let mut id = Namespace {
            nsze: 1000,
            ncap: 1000,
            nmic: 1,
            anagrpid: 1,
            ..Namespace::default()
        };
        id.nguid = [nsid as u8; 16];
        id.lbaf[..4].copy_from_slice(
            &LbaFormat {
                metadata: 0,
                block_shift: 12,
            }
            .emit(),
        );
        Self {
            nsid,
            id,
            descriptors: vec![
                Descriptor::Uuid([0x40 | nsid as u8; 16]),
                Descriptor::Csi(0),
            ],
            nvm: NvmNamespace::default(),
            independent: IndependentNamespace {
                nmic: 1,
                anagrpid: 1,
                ..Default::default()
            },
        }
    }
}

/// The controller's properties.
pub struct Model {
    pub cap: Cap,
    pub crto: u32,
    pub version: Version,
    /// CSTS reads that return not ready.
    pub not_ready: u32,
    pub csts: Csts,
    pub cc: Cc,
    pub id: Controller,
    pub disks: Vec<Disk>,
    pub ana: Vec<(u32, AnaState)>,
    pub ana_changes: u64,
    pub discovery: Vec<DiscoveryEntry>,
    pub generation: u64,
    pub queues: u64,
}

impl Default for Model {
    fn default() -> Self {
        let id = Controller {
            sn: padded("SN1"),
            mn: padded("Model X"),
            fr: padded("1.0"),
            cmic: cmic::MULTI_CONTROLLER | cmic::ANA,
            mdts: 5,
            cntlid: CNTLID,
            oaes: 1 << 8 | 1 << 9 | 1 << 11,
            acl: 3,
            cntrltype: cntrltype::IO,
            crdt1: 2,
            crdt2: 5,
            crdt3: 7,
            kas: 1,
            anatt: 10,
            vwc: 1,
            awun: 7,
            oncs: 0xd,
            cqt: 30,
            subnqn: terminated(SUBSYSTEM),
            ioccsz: 516,
            ..Controller::default()
        };
        Self {
            cap: Cap::fabrics(127, 1),
            crto: 0,
            version: Version::V2_0,
            not_ready: 0,
            csts: Csts::default(),
            cc: Cc::default(),
            id,
            disks: vec![Disk::new(1)],
            ana: vec![(1, AnaState::Optimized)],
            ana_changes: 1,
            discovery: Vec::new(),
            generation: 1,
            queues: 0x0003_0003,
        }
    }
}

impl Model {
    pub fn traffic_based(mut self) -> Self {
        self.id.ctratt = ctratt::TRAFFIC_KEEP_ALIVE;
        self
    }

    pub fn answer(&mut self, sqe: &Sqe<'_>) -> Answer {
        match sqe.opcode() {
            FABRICS => self.fabrics(sqe),
            admin::IDENTIFY => self.identify(sqe.cdw(10) as u8, sqe.nsid()),
            admin::GET_LOG_PAGE => self.log(sqe),
            admin::SET_FEATURES if sqe.cdw(10) == 7 => Answer::result(self.queues),
            admin::ASYNC_EVENT_REQUEST => Answer::silent(),
            admin::SET_FEATURES | admin::KEEP_ALIVE => Answer::default(),
            _ => Answer::error(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    fn fabrics(&mut self, sqe: &Sqe<'_>) -> Answer {
        if sqe.fctype() == fctype::CONNECT {
            return Answer::result(CNTLID.into());
        }
        let asked = Property::parse(sqe).unwrap();
        if sqe.fctype() == fctype::PROPERTY_SET {
            assert_eq!(asked.offset, property::CC);
            self.cc = Cc(asked.value as u32);
            return Answer::default();
        }
        Answer::result(match asked.offset {
            property::CAP => self.cap.0,
            property::VS => self.version.0.into(),
            property::CRTO => self.crto.into(),
            property::CSTS if self.not_ready > 0 => {
                self.not_ready -= 1;
                0
            }
            property::CSTS if self.csts != Csts::default() => self.csts.0.into(),
            property::CSTS => Csts::new(self.cc.en(), false, if self.cc.shn() > 0 { 2 } else { 0 })
                .0
                .into(),
            other => panic!("property {other:#x}"),
        })
    }

    fn identify(&mut self, cns: u8, nsid: u32) -> Answer {
        if cns == cns::CONTROLLER {
            return Answer::data(&self.id.emit());
        }
        if cns == cns::ACTIVE_NAMESPACES {
            let above = self
                .disks
                .iter()
                .map(|disk| disk.nsid)
                .filter(|&other| other > nsid);
            return Answer::data(&emit_nsids(above.take(NSID_LIST_MAX)));
        }
        if cns == cns::COMMAND_SET_CONTROLLER {
            return Answer::data(&[0; 4096]);
        }
        let Some(disk) = self.disks.iter().find(|disk| disk.nsid == nsid) else {
            return Answer::error(Status::INVALID_NAMESPACE.with_dnr());
        };
        match cns {
            cns::NAMESPACE => Answer::data(&disk.id.emit()),
            cns::DESCRIPTORS => Answer::data(&emit_descriptors(&disk.descriptors)),
            cns::COMMAND_SET_NAMESPACE => Answer::data(&disk.nvm.emit()),
            cns::INDEPENDENT_NAMESPACE => Answer::data(&disk.independent.emit()),
            _ => Answer::error(Status::INVALID_FIELD.with_dnr()),
        }
    }

    fn log(&mut self, sqe: &Sqe<'_>) -> Answer {
        let request = Request::parse(&std::array::from_fn(|i| sqe.cdw(10 + i)));
        let mut page = Vec::new();
        match request.lid {
            lid::ANA => {
                // 512 bytes: read only because an odd event named it.
                assert!(request.lsp == log::ANA_GROUPS_ONLY || request.len == 512);
                let groups = self.ana.iter().map(|&(id, state)| (id, 0, state, 0..0));
                emit_ana(self.ana_changes, groups, &mut page);
            }
            lid::DISCOVERY => {
                let records = self.discovery.len() as u64;
                let generation = self.generation;
                page.extend(
                    DiscoveryHeader {
                        generation,
                        records,
                        format: 0,
                    }
                    .emit(),
                );
                self.discovery
                    .iter()
                    .for_each(|entry| page.extend(entry.emit()));
            }
            _ => {}
        }
        let (from, len) = (request.offset as usize, request.len as usize);
        assert!(len <= 4096);
        page.resize((from + len).max(page.len()), 0);
        Answer::data(&page[from..from + len])
    }
}

type Script = Box<dyn FnMut(&Sqe<'_>) -> Option<Answer>>;

/// An admin association and its controller.
pub struct AdminPeer {
    pub admin: Admin,
    pub model: Model,
    pub framing: Framing,
    pub now_ns: u64,
    pub piece: usize,
    /// Called first.
    pub script: Script,
    /// Commands seen since last taken.
    pub seen: Vec<String>,
    /// Data that came with commands, and the commands' names.
    pub data: Vec<(String, Vec<u8>)>,
    /// The event request that is outstanding.
    pub event_cid: Option<u16>,
    /// How often the host waited for answers.
    pub rounds: usize,
}

pub fn admin_config() -> AdminConfig {
    AdminConfig {
        host: identity(),
        subsystem: SUBSYSTEM.into(),
        digests: Digests::default(),
        kato_ms: 20_000,
        io_queues: 2,
        timeout_ns: 5 * SECOND,
        nsid: None,
    }
}

impl AdminPeer {
    /// Connected at time 0; the handshake is to come.
    pub fn new(config: AdminConfig, model: Model) -> Self {
        let mut admin = Admin::new(config);
        admin.handle_connected(0);
        Self {
            admin,
            model,
            framing: Framing::PLAIN,
            now_ns: 0,
            piece: usize::MAX,
            script: Box::new(|_| None),
            seen: Vec::new(),
            data: Vec::new(),
            event_cid: None,
            rounds: 0,
        }
    }

    /// Ready, with the events so far.
    pub fn ready(config: AdminConfig, model: Model) -> Self {
        let mut peer = Self::new(config, model);
        peer.run();
        match peer.admin.poll_event() {
            Some(AdminEvent::Ready(_)) => {}
            other => panic!("{other:?}"),
        }
        peer.seen.clear();
        peer
    }

    pub fn scripted(mut self, script: impl FnMut(&Sqe<'_>) -> Option<Answer> + 'static) -> Self {
        self.script = Box::new(script);
        self
    }

    /// Answers until the host sends nothing more.
    pub fn run(&mut self) {
        loop {
            let mut stream = Vec::new();
            while let Some(transmit) = self.admin.poll_transmit(&mut stream, self.now_ns) {
                assert_eq!(transmit.payload, None);
            }
            if stream.is_empty() {
                return;
            }
            self.rounds += 1;
            for pdu in parse_sent(&stream, &self.framing) {
                self.answer(&pdu);
            }
        }
    }

    /// To `at_ns`, with every timer on the way.
    pub fn run_until(&mut self, at_ns: u64) {
        while let Some(next) = self.admin.poll_timeout().filter(|&next| next <= at_ns) {
            self.now_ns = self.now_ns.max(next);
            self.admin.handle_timeout(self.now_ns);
            self.run();
        }
        self.now_ns = at_ns;
    }

    fn answer(&mut self, pdu: &Sent) {
        match pdu.kind {
            PduType::IcReq => {
                let asked = nvme::wire::pdu::IcReq::parse(&pdu.header).unwrap();
                let (header_digest, data_digest) = (asked.header_digest, asked.data_digest);
                let mut out = Vec::new();
                IcResp {
                    pfv: 0,
                    cpda: 0,
                    header_digest,
                    data_digest,
                    maxh2cdata: 4096,
                }
                .emit(&mut out);
                self.give(&out);
                self.framing = Framing {
                    header_digest,
                    data_digest,
                    alignment: 4,
                };
            }
            PduType::CapsuleCmd => {
                let sqe = pdu.sqe();
                self.seen.push(name(&sqe));
                if !pdu.data.is_empty() {
                    self.data.push((name(&sqe), pdu.data.clone()));
                }
                let answer = (self.script)(&sqe).unwrap_or_else(|| self.model.answer(&sqe));
                if sqe.opcode() == admin::ASYNC_EVENT_REQUEST && answer.silent {
                    assert_eq!(self.event_cid, None, "one outstanding");
                    self.event_cid = Some(sqe.cid());
                }
                self.reply(sqe.cid(), &answer);
            }
            PduType::H2cTermReq => self.seen.push("TermReq".into()),
            other => panic!("{other:?}"),
        }
    }

    pub fn reply(&mut self, cid: u16, answer: &Answer) {
        if answer.silent {
            return;
        }
        let mut out = Vec::new();
        if !answer.data.is_empty() && answer.status.is_success() {
            let length = answer.data.len() as u32;
            let header = DataHeader {
                cccid: cid,
                ttag: 0,
                offset: 0,
                length,
            }
            .emit();
            let last = nvme::wire::pdu::flags::LAST;
            self.framing
                .whole(&mut out, PduType::C2hData, last, &header, &answer.data);
            if answer.damaged {
                *out.last_mut().unwrap() ^= 1;
            }
        }
        let cqe = Cqe {
            cid,
            sqhd: 0,
            status: answer.status,
            result: answer.result,
            sqid: 0,
        };
        self.framing
            .whole(&mut out, PduType::CapsuleResp, 0, &cqe.emit(), &[]);
        self.give(&out);
    }

    pub fn give(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(self.piece.min(bytes.len())) {
            assert_eq!(self.admin.handle_bytes(piece, self.now_ns), piece.len());
        }
    }

    /// Reports an event, and runs the host's reaction.
    pub fn event(&mut self, event: AsyncEvent) {
        let cid = self.event_cid.take().expect("an event request");
        self.reply(cid, &Answer::result(event.emit().into()));
        self.run();
    }

    pub fn take_seen(&mut self) -> Vec<String> {
        std::mem::take(&mut self.seen)
    }

    pub fn events(&mut self) -> Vec<AdminEvent> {
        std::iter::from_fn(|| self.admin.poll_event()).collect()
    }

    /// The error of the last event.
    pub fn error(&mut self) -> HostError {
        match self.events().pop() {
            Some(AdminEvent::Failed(error)) => error,
            other => panic!("{other:?} instead of a failure"),
        }
    }
}

/// A command in words.
pub fn name(sqe: &Sqe<'_>) -> String {
    let nsid = sqe.nsid();
    match sqe.opcode() {
        FABRICS => match sqe.fctype() {
            fctype::CONNECT => "Connect".into(),
            fctype::PROPERTY_GET => format!("Get {:#x}", Property::parse(sqe).unwrap().offset),
            fctype::PROPERTY_SET => {
                let set = Property::parse(sqe).unwrap();
                format!("Set {:#x} {:#x}", set.offset, set.value)
            }
            other => panic!("fctype {other:#x}"),
        },
        admin::IDENTIFY => format!("Identify {:02x} {nsid}", sqe.cdw(10)),
        admin::GET_LOG_PAGE => {
            let request = Request::parse(&std::array::from_fn(|i| sqe.cdw(10 + i)));
            format!("Log {:02x} {}+{}", request.lid, request.offset, request.len)
        }
        admin::SET_FEATURES => format!("Feature {:02x} {:#x}", sqe.cdw(10), sqe.cdw(11)),
        admin::ASYNC_EVENT_REQUEST => "Event request".into(),
        admin::KEEP_ALIVE => "Keep alive".into(),
        admin::ABORT => format!("Abort {:#x}", sqe.cdw(10)),
        admin::GET_LBA_STATUS => format!("Allocated {nsid} {}", sqe.cdw(10)),
        other => panic!("opcode {other:#x}"),
    }
}
