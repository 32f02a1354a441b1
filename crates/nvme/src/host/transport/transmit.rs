//! Sends capsules in the order of submission, and the data that R2Ts ask for.
//!
//! Several writes in transfer alternate PDU by PDU, with capsules of other commands in between: a
//! large write does not delay small commands.
use super::{Connection, Index, Queued, Refusal, Sending};
use crate::TxPayload;
use crate::host::{Data, Digests};
use crate::limits::{ADMIN_IN_CAPSULE, TRANSMIT_RUN_MAX};
use crate::wire::pdu::{DataHeader, IcReq, PduType, TermReq, flags};
use crate::wire::sqe::{FABRICS, Sgl, nvm};
use crate::wire::{SqeBuilder, crc::crc32c};
use alloc::vec::Vec;

impl Connection {
    /// Appends the next bytes to send; `None`: nothing.
    pub fn poll_transmit(&mut self, out: &mut Vec<u8>) -> Option<Sending> {
        if let Some(Refusal { error, header, len }) = self.refusal.take() {
            TermReq::emit(error, true, &header[..len], out);
            return Some(Sending::Whole);
        }
        let mut whole = 0;
        while whole < TRANSMIT_RUN_MAX
            && let Some(next) = self.queued.pop_front()
        {
            let sending = match next {
                Queued::IcReq => self.send_icreq(out),
                Queued::Command(index) => self.send_command(index, out),
                Queued::Data(index, cid) => match self.send_data(index, cid, out) {
                    Some(sending) => sending,
                    None => continue,
                },
            };
            if sending != Sending::Whole {
                return Some(sending);
            }
            whole += 1;
        }
        (whole > 0).then_some(Sending::Whole)
    }

    fn send_icreq(&self, out: &mut Vec<u8>) -> Sending {
        let Digests { header, data } = self.settings.digests;
        IcReq {
            pfv: 0,
            hpda: 0,
            header_digest: header,
            data_digest: data,
            maxr2t: 0,
        }
        .emit(out);
        Sending::Whole
    }

    /// A capsule, with the data in it where that fits (T23).
    #[inline]
    fn send_command(&mut self, index: Index, out: &mut Vec<u8>) -> Sending {
        self.slots.mark_sent(index);
        let in_capsule_max = self.settings.in_capsule_max;
        let slot = self.slots.at(index);
        let command = slot.command;
        // Connect's data always goes in the capsule (NVMe-TCP 1.0, 3.3.2.1).
        let most = if command.opcode == FABRICS {
            ADMIN_IN_CAPSULE
        } else {
            in_capsule_max
        };
        let (sgl, in_capsule) = match command.data {
            Data::None => (Sgl::Transport { len: 0 }, 0),
            Data::Out(len) if len <= most => (Sgl::InCapsule { offset: 0, len }, len),
            Data::In(len) | Data::Out(len) => (Sgl::Transport { len }, 0),
        };
        let mut cdw = command.cdw;
        if slot.own && command.opcode == nvm::DATASET_MANAGEMENT {
            cdw[2..].fill(0); // the range, which goes as data
        }
        let sqe = SqeBuilder::new(command.opcode)
            .cid(slot.cid)
            .nsid(command.nsid)
            .sgl(sgl);
        slot.moved = in_capsule;
        slot.granted = in_capsule;
        let sqe = sqe.cdws(&cdw);
        self.tx_framing
            .begin(out, PduType::CapsuleCmd, 0, sqe.bytes(), in_capsule);
        if in_capsule == 0 {
            Sending::Whole
        } else {
            self.lend(index, 0, in_capsule)
        }
    }

    /// The next H2CData that answers an R2T (T20); `None`: its command has ended meanwhile.
    fn send_data(&mut self, index: Index, cid: u16, out: &mut Vec<u8>) -> Option<Sending> {
        if self.slots.find(cid) != Some(index) {
            return None;
        }
        let maxh2cdata = self.maxh2cdata;
        let slot = self.slots.at(index);
        let offset = slot.moved;
        let length = (slot.granted - offset).min(maxh2cdata);
        slot.moved += length;
        let last = slot.moved == slot.granted;
        let header = DataHeader {
            cccid: cid,
            ttag: slot.ttag,
            offset,
            length,
        };
        let flag = if last { flags::LAST } else { 0 };
        self.tx_framing
            .begin(out, PduType::H2cData, flag, &header.emit(), length);
        if !last {
            self.queued.push_back(Queued::Data(index, cid));
        }
        Some(self.lend(index, offset, length))
    }

    #[inline]
    fn lend(&mut self, index: Index, offset: u32, len: u32) -> Sending {
        self.slots.lend(index);
        let digest = self.tx_framing.data_digest;
        let slot = self.slots.at(index);
        let payload = TxPayload {
            token: slot.command.token,
            offset,
            len,
            digest,
        };
        if slot.own {
            Sending::Own(slot.command, payload)
        } else {
            Sending::Payload(payload)
        }
    }

    /// Puts a range of the owner's data behind the header that asked for it.
    pub fn append_own(&mut self, payload: &TxPayload, data: &[u8], out: &mut Vec<u8>) {
        let at = payload.offset as usize;
        let range = &data[at..at + payload.len as usize];
        out.extend_from_slice(range);
        if payload.digest {
            out.extend_from_slice(&crc32c(0, range).to_le_bytes());
        }
        self.handle_sent(payload.token);
    }
}
