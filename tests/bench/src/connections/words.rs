//! PDUs and requests of hosts and clients, as bytes.
use nbd::wire::{OptionHeader, RequestHeader, cmd, handshake, opt};
use nvme::wire::SqeBuilder;
use nvme::wire::pdu::{DataHeader, Framing, PduType, flags};
use nvme::wire::sqe::{Sgl, admin, nvm};

/// Time-out of an association that sends keep-alive, ms.
pub const KATO_MS: u32 = 60_000;

fn emitted(emit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    emit(&mut bytes);
    bytes
}

/// The common header of an ICReq, of which all else is missing.
pub const HALF_IC_REQ: [u8; 8] = [0, 0, 128, 0, 128, 0, 0, 0];

fn capsule(sqe: &SqeBuilder) -> Vec<u8> {
    let kind = PduType::CapsuleCmd;
    emitted(|out| Framing::PLAIN.whole(out, kind, 0, sqe.bytes(), &[]))
}

pub fn keep_alive() -> Vec<u8> {
    capsule(&SqeBuilder::new(admin::KEEP_ALIVE).cid(2))
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
    capsule(&sqe.sgl(Sgl::Transport { len }))
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
