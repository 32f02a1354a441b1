//! Instructions that the target machine spends on one 4 KiB read or write, payload and driver
//! excluded.
//!
//! ```text
//! cargo build --profile dist -p braid-nvme --example target_cost
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
//!     --toggle-collect='target_cost::measured*' target/dist/examples/target_cost \
//!     [write] [success] [digests]
//! ```
//! The count that callgrind prints, divided by the commands that this program prints, is it.
use nvme::controller::{
    Action, ConnId, ControllerEvent, NamespaceConfig, PortConfig, Subsystem, SubsystemConfig,
};
use nvme::host::AnaState;
use nvme::wire::fabrics::{CATTR_DISABLE_SQ_FLOW, Cc, Connect, ConnectData, Property, property};
use nvme::wire::pdu::{Framing, IcReq, PduType};
use nvme::wire::sqe::{Sgl, nvm};
use nvme::wire::{SqeBuilder, Status};

const ROUNDS: u32 = 1_000;
const BATCH: u16 = 32;
const LEN: u32 = 4096;
const NQN: &str = "nqn.2026-01.org.example:cost";
/// CRC32C of 4096 zeroes.
const ZEROES_CRC: u32 = 0x98f9_4189;

fn config() -> SubsystemConfig {
    SubsystemConfig {
        nqn: NQN.into(),
        serial: "1".into(),
        model: "cost".into(),
        cntlid_min: 1,
        cntlid_max: 1,
        namespaces: vec![NamespaceConfig {
            nsid: 1,
            blocks: 1 << 20,
            block_shift: 9,
            uuid: [1; 16],
            nguid: [1; 16],
            ana_group: 1,
            read_only: false,
            deallocate_zeroes: true,
        }],
        ports: vec![PortConfig {
            id: 1,
            traddr: "127.0.0.1".into(),
            trsvcid: "4420".into(),
            ipv6: false,
            ana: AnaState::Optimized,
        }],
        hosts: Vec::new(),
        entries_max: 128,
        io_queues_max: 1,
        transfer_shift: 17,
        in_capsule_max: 8192,
        maxh2cdata: 131_072,
        c2h_success: true,
        cqt_ms: 0,
        volatile_write_cache: false,
        compare: true,
        lba_status: true,
        connections_max: 2,
    }
}

/// Opens connection `conn` and connects queue `qid` of controller `cntlid` on it.
fn connect(target: &mut Subsystem, conn: ConnId, (qid, cntlid): (u16, u16), framing: &Framing) {
    let (header_digest, data_digest) = (framing.header_digest, framing.data_digest);
    let mut bytes = Vec::new();
    IcReq {
        pfv: 0,
        hpda: 0,
        header_digest,
        data_digest,
        maxr2t: 0,
    }
    .emit(&mut bytes);
    let cattr = CATTR_DISABLE_SQ_FLOW;
    let connect = Connect {
        recfmt: 0,
        qid,
        sqsize: 63,
        cattr,
        kato_ms: 0,
    };
    let data = ConnectData {
        hostid: [1; 16],
        cntlid,
        subnqn: NQN.as_bytes(),
        hostnqn: b"nqn.host",
    };
    let sqe = connect.emit().sgl(Sgl::InCapsule {
        offset: 0,
        len: ConnectData::LEN as u32,
    });
    framing.whole(
        &mut bytes,
        PduType::CapsuleCmd,
        0,
        sqe.bytes(),
        &data.emit(),
    );
    if qid == 0 {
        let cc = Property {
            offset: property::CC,
            wide: false,
            value: Cc::enabled(0, 0).0.into(),
        };
        framing.whole(
            &mut bytes,
            PduType::CapsuleCmd,
            0,
            cc.emit_set().bytes(),
            &[],
        );
    }
    assert!(target.open(conn, 0, 0).is_ok());
    assert_eq!(target.handle_bytes(conn, &bytes, 0), bytes.len());
    let mut out = Vec::new();
    while target.poll_transmit(conn, &mut out, 0).is_some() {}
    while target.poll_event().is_some() {}
}

/// From the bytes of a batch to all bytes to be sent for it, as the engine and its reactor do it:
/// events are handled after every call, and bytes to send are polled when all were taken.
#[inline(never)]
fn measured(target: &mut Subsystem, conn: ConnId, mut bytes: &[u8], out: &mut Vec<u8>) -> u32 {
    let mut released = 0;
    while !bytes.is_empty() {
        let used = target.handle_bytes(conn, bytes, 0);
        bytes = &bytes[used..];
        released += events(target);
        if let Some(place) = target.placement(conn) {
            target.handle_payload(conn, place.len, ZEROES_CRC, 0);
            bytes = &bytes[place.len as usize..];
            released += events(target);
        }
    }
    while let Some(sent) = target.poll_transmit(conn, out, 0) {
        if let Some(payload) = sent.payload {
            target.handle_sent(conn, payload.token);
        }
        released += events(target);
    }
    released
}

fn events(target: &mut Subsystem) -> u32 {
    let mut released = 0;
    loop {
        match target.poll_event() {
            Some(ControllerEvent::NeedBuffer { conn, token, .. }) => {
                target.buffer_ready(conn, token, 0);
            }
            Some(ControllerEvent::Command(command)) => {
                debug_assert!(matches!(
                    command.action,
                    Action::Read | Action::Write { .. }
                ));
                target.complete(command.conn, command.token, Status::SUCCESS, 0);
            }
            Some(ControllerEvent::Release { .. }) => released += 1,
            Some(_) => {}
            None => return released,
        }
    }
}

fn main() {
    let has = |word: &str| std::env::args().any(|arg| arg == word);
    let framing = Framing {
        header_digest: has("digests"),
        data_digest: has("digests"),
        alignment: 4,
    };
    let success = has("success");
    let config = SubsystemConfig {
        c2h_success: success,
        ..config()
    };
    let Ok(mut target) = Subsystem::new(config) else {
        return;
    };
    connect(&mut target, ConnId(0), (0, 0xffff), &Framing::PLAIN);
    connect(&mut target, ConnId(1), (1, 1), &framing);
    let mut bytes = Vec::new();
    for cid in 0..BATCH {
        let write = has("write");
        let (opcode, sgl, data) = if write {
            (
                nvm::WRITE,
                Sgl::InCapsule {
                    offset: 0,
                    len: LEN,
                },
                &[0; LEN as usize][..],
            )
        } else {
            (nvm::READ, Sgl::Transport { len: LEN }, &[][..])
        };
        let sqe = SqeBuilder::new(opcode)
            .cid(cid)
            .nsid(1)
            .sgl(sgl)
            .cdw(10, 8)
            .cdw(12, 7);
        framing.whole(&mut bytes, PduType::CapsuleCmd, 0, sqe.bytes(), data);
    }
    let (mut out, mut done) = (Vec::with_capacity(1 << 16), 0);
    for _ in 0..ROUNDS {
        out.clear();
        done += measured(&mut target, ConnId(1), &bytes, &mut out);
    }
    assert_eq!(done, ROUNDS * u32::from(BATCH));
    println!("{done} commands");
}
