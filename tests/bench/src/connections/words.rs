//! PDUs and requests of hosts and clients, as bytes.
use nbd::wire::{OptionHeader, RequestHeader, cmd, handshake, opt};
use nvme::wire::SqeBuilder;
use nvme::wire::fabrics::{CATTR_DISABLE_SQ_FLOW, Cc, Connect, ConnectData, Property, property};
use nvme::wire::pdu::{DataHeader, Framing, IcReq, PduType, flags};
use nvme::wire::sqe::{Sgl, admin, nvm};

/// Time-out of an association that sends keep-alive, ms.
pub const KATO_MS: u32 = 60_000;

fn emitted(emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    emit(&mut bytes);
    bytes
}

/// ICReq.
pub fn ic_req() -> Vec<u8> {
    let request = IcReq {
        pfv: 0,
        hpda: 0,
        header_digest: false,
        data_digest: false,
        maxr2t: 0,
    };
    emitted(|out| request.emit(out))
}

fn capsule(sqe: &SqeBuilder, data: &[u8]) -> Vec<u8> {
    let kind = PduType::CapsuleCmd;
    emitted(|out| Framing::PLAIN.whole(out, kind, 0, sqe.bytes(), data))
}

/// Connect of queue `qid` of controller `cntlid` with so many entries.
pub fn connect(nqn: &str, qid: u16, cntlid: u16, entries: u16, kato_ms: u32) -> Vec<u8> {
    let connect = Connect {
        recfmt: 0,
        qid,
        sqsize: entries - 1,
        // So that data may carry SUCCESS.
        cattr: CATTR_DISABLE_SQ_FLOW,
        kato_ms,
    };
    let data = ConnectData {
        hostid: [7; 16],
        cntlid,
        subnqn: nqn.as_bytes(),
        hostnqn: b"nqn.2026-01.org.braid:bench-connections",
    };
    let sgl = Sgl::InCapsule {
        offset: 0,
        len: ConnectData::LEN as u32,
    };
    capsule(&connect.emit().sgl(sgl), &data.emit())
}

/// Property Set of CC: enabled.
pub fn enable() -> Vec<u8> {
    let set = Property {
        offset: property::CC,
        wide: false,
        value: Cc::enabled(0, 0).0.into(),
    };
    capsule(&set.emit_set().cid(1), &[])
}

pub fn keep_alive() -> Vec<u8> {
    capsule(&SqeBuilder::new(admin::KEEP_ALIVE).cid(2), &[])
}

fn io(opcode: u8, cid: u16, blocks: u16, slba: u64) -> Vec<u8> {
    let len = u32::from(blocks) * 4096;
    let cdws = [
        slba as u32,
        (slba >> 32) as u32,
        u32::from(blocks) - 1,
        0,
        0,
        0,
    ];
    let sqe = SqeBuilder::new(opcode).cid(cid).nsid(1).cdws(&cdws);
    capsule(&sqe.sgl(Sgl::Transport { len }), &[])
}

/// A read of so many blocks of 4 KiB.
pub fn read(cid: u16, blocks: u16, slba: u64) -> Vec<u8> {
    io(nvm::READ, cid, blocks, slba)
}

/// A write of so many blocks, whose data is to be asked for.
pub fn write(cid: u16, blocks: u16) -> Vec<u8> {
    io(nvm::WRITE, cid, blocks, 0)
}

/// The header of all data of a write, as an R2T asks for it.
pub fn h2c_data(r2t: &DataHeader) -> Vec<u8> {
    let (kind, own) = (PduType::H2cData, r2t.emit());
    emitted(|out| Framing::PLAIN.begin(out, kind, flags::LAST, &own, r2t.length))
}

/// An NBD client's flags.
pub fn nbd_flags() -> Vec<u8> {
    let flags = u32::from(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    flags.to_be_bytes().to_vec()
}

/// The choice of the default export, after which requests flow.
pub fn nbd_choice() -> Vec<u8> {
    let option = OptionHeader {
        option: opt::EXPORT_NAME,
        len: 0,
    };
    emitted(|out| option.emit(out))
}

/// An NBD request: read, or write.
pub fn nbd_request(write: bool, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let request = RequestHeader {
        flags: 0,
        command: if write { cmd::WRITE } else { cmd::READ },
        cookie,
        offset,
        length,
    };
    emitted(|out| request.emit(out))
}
