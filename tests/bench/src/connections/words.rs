//! What hosts and clients say, as bytes: just enough of NVMe/TCP and NBD to load a server.
//!
//! # Origin
//! NVMe-TCP 1.0, 3.6 (PDUs); Base 2.0, 6 (Fabrics commands); NBD `doc/proto.md`.

/// Bytes of a common PDU header.
pub const PDU_HEADER: usize = 8;
/// Bytes of a simple NBD reply before its data.
pub const NBD_REPLY: usize = 16;
/// PDU types.
pub const CAPSULE_RESP: u8 = 5;
pub const C2H_DATA: u8 = 7;
pub const R2T: u8 = 9;
/// Bytes of an R2T.
pub const R2T_BYTES: usize = 24;
/// In C2HData: no response follows.
pub const SUCCESS: u8 = 1 << 3;
/// Time-out of an association that says that it lives, ms.
pub const KATO_MS: u32 = 60_000;

const NBD_REQUEST: u32 = 0x2560_9513;
const NBD_OPTION: &[u8; 8] = b"IHAVEOPT";

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// The first word of a host.
pub fn ic_req() -> Vec<u8> {
    let mut pdu = vec![0; 128];
    pdu[2] = 128;
    put(&mut pdu, 4, &128_u32.to_le_bytes());
    pdu
}

/// A command capsule.
fn capsule(entry: &[u8; 64], data: &[u8]) -> Vec<u8> {
    let mut pdu = vec![4, 0, 72, if data.is_empty() { 0 } else { 72 }];
    pdu.extend((72 + data.len() as u32).to_le_bytes());
    pdu.extend(entry);
    pdu.extend(data);
    pdu
}

fn entry(opcode: u8, cid: u16) -> [u8; 64] {
    let mut entry = [0; 64];
    // SGLs are used.
    (entry[0], entry[1]) = (opcode, 0x40);
    put(&mut entry, 2, &cid.to_le_bytes());
    entry
}

/// Connect of queue `qid` of controller `cntlid` (FFFFh: a new one) with so many entries.
pub fn connect(nqn: &str, qid: u16, cntlid: u16, entries: u16, kato_ms: u32) -> Vec<u8> {
    let mut entry = entry(0x7f, 0);
    entry[4] = 1;
    put(&mut entry, 32, &1024_u32.to_le_bytes());
    entry[39] = 0x01;
    put(&mut entry, 42, &qid.to_le_bytes());
    put(&mut entry, 44, &(entries - 1).to_le_bytes());
    // No SQ flow control, so that data may carry SUCCESS.
    entry[46] = 4;
    put(&mut entry, 48, &kato_ms.to_le_bytes());
    let mut data = vec![0; 1024];
    data[0] = 7;
    put(&mut data, 16, &cntlid.to_le_bytes());
    put(&mut data, 256, nqn.as_bytes());
    put(&mut data, 512, b"nqn.2026-01.org.braid:bench-connections");
    capsule(&entry, &data)
}

/// Property Set of CC: enabled.
pub fn enable() -> Vec<u8> {
    let mut entry = entry(0x7f, 1);
    put(&mut entry, 44, &0x14_u32.to_le_bytes());
    put(&mut entry, 48, &0x0046_0001_u64.to_le_bytes());
    capsule(&entry, &[])
}

pub fn keep_alive() -> Vec<u8> {
    capsule(&entry(0x18, 2), &[])
}

fn io(opcode: u8, cid: u16, blocks: u16, slba: u64) -> Vec<u8> {
    let mut entry = entry(opcode, cid);
    entry[4] = 1;
    put(&mut entry, 32, &(u32::from(blocks) * 4096).to_le_bytes());
    // Transport data block.
    entry[39] = 0x5a;
    put(&mut entry, 40, &slba.to_le_bytes());
    put(&mut entry, 48, &(blocks - 1).to_le_bytes());
    capsule(&entry, &[])
}

/// A read of so many blocks of 4 KiB.
pub fn read(cid: u16, blocks: u16, slba: u64) -> Vec<u8> {
    io(2, cid, blocks, slba)
}

/// A write of so many blocks, whose data is to be asked for.
pub fn write(cid: u16, blocks: u16) -> Vec<u8> {
    io(1, cid, blocks, 0)
}

/// The header of all data of a write, as an R2T asks for it.
pub fn h2c_data(r2t: &[u8]) -> Vec<u8> {
    let mut pdu = vec![0; 24];
    (pdu[0], pdu[1], pdu[2], pdu[3]) = (6, 1 << 2, 24, 24);
    let length = le32(r2t, 16);
    put(&mut pdu, 4, &(24 + length).to_le_bytes());
    pdu[8..12].copy_from_slice(&r2t[8..12]);
    put(&mut pdu, 16, &length.to_le_bytes());
    pdu
}

/// A little-endian number in a PDU.
pub fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .rev()
        .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
}

/// The same of 16 bits.
pub fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from(bytes[at]) | u16::from(bytes[at + 1]) << 8
}

/// An NBD client's flags: fixed newstyle, no zeroes.
pub fn nbd_flags() -> Vec<u8> {
    3_u32.to_be_bytes().to_vec()
}

/// The choice of the default export, after which requests flow.
pub fn nbd_choice() -> Vec<u8> {
    let mut option = NBD_OPTION.to_vec();
    option.extend(1_u32.to_be_bytes());
    option.extend(0_u32.to_be_bytes());
    option
}

/// An NBD request: read, or write.
pub fn nbd_request(write: bool, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut request = NBD_REQUEST.to_be_bytes().to_vec();
    request.extend(0_u16.to_be_bytes());
    request.extend(u16::from(write).to_be_bytes());
    request.extend(cookie.to_be_bytes());
    request.extend(offset.to_be_bytes());
    request.extend(length.to_be_bytes());
    request
}

/// The cookie of a simple reply that says that all went well.
pub fn nbd_cookie(reply: &[u8; NBD_REPLY]) -> Option<u64> {
    let good = reply[..8] == [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0];
    let cookie = reply[8..]
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    good.then_some(cookie)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_what_the_headers_say() {
        for pdu in [
            ic_req(),
            enable(),
            keep_alive(),
            read(1, 16, 9),
            write(2, 32),
        ] {
            assert_eq!(le32(&pdu, 4) as usize, pdu.len());
        }
        let pdu = connect("nqn.2026-01.org.braid:x", 1, 5, 32, KATO_MS);
        assert_eq!((le32(&pdu, 4), pdu.len(), pdu[3]), (1096, 1096, 72));
        let mut r2t = vec![9; 24];
        put(&mut r2t, 16, &4096_u32.to_le_bytes());
        assert_eq!(le32(&h2c_data(&r2t), 4), 24 + 4096);
        assert_eq!(nbd_request(true, 1, 0, 4096).len(), 28);
        assert_eq!(nbd_choice().len(), 16);
    }

    #[test]
    fn a_reply_that_failed_is_none() {
        let mut reply = [0; NBD_REPLY];
        reply[..4].copy_from_slice(&[0x67, 0x44, 0x66, 0x98]);
        reply[15] = 9;
        assert_eq!(nbd_cookie(&reply), Some(9));
        reply[7] = 5;
        assert_eq!(nbd_cookie(&reply), None);
    }
}
