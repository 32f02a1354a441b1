//! Follows both directions of a connection, and knows which identifiers are in use.
//!
//! # Contract
//! [`Tap::said`] has the bytes sent by the end that opened the connection, [`Tap::heard`] the bytes
//! that reach it, in any pieces. An identifier is in use from when it was sent until its last
//! answer was received: until then it may still be answered, so a second use would take the old
//! answer for the new one's (T11). Every answer is of one in use: nothing is answered twice. After
//! damaged bytes a stream can't be followed.
//!
//! # Limits
//! NVMe/TCP from its first PDU on, and NBD with options and requests of fixed newstyle. Payload is
//! not looked at.
use super::prelude::*;
use nbd::wire::{
    ChunkHeader, Greeting, OPTION_REPLY_MAGIC, OptionHeader, OptionReply, REQUEST_MAGIC,
    RequestHeader, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, chunk, cmd,
};
use nvme::wire::Sqe;
use nvme::wire::pdu::{self, DataHeader, Header, PduType, flags};

/// Entries of the target's queues: commands of one connection are fewer.
pub const ENTRIES: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct Tap {
    speech: Speech,
    said: Stream,
    heard: Stream,
    /// Identifiers in use, each with its opcode and length.
    used: BTreeMap<u64, (u16, u32)>,
    /// Most of them there may be.
    most: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speech {
    Nvme,
    Nbd,
}

/// One direction: the head of what comes next, and how much of what follows is of no interest.
#[derive(Debug, Default)]
struct Stream {
    head: Vec<u8>,
    skip: u64,
    /// Heads so far.
    heads: u64,
}

impl Stream {
    /// The next head of so many bytes, as soon as it is all there; takes from `bytes`.
    fn head(&mut self, bytes: &mut &[u8], need: usize) -> bool {
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        *bytes = &bytes[skipped as usize..];
        let take = need.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..take]);
        *bytes = &bytes[take..];
        self.skip == 0 && self.head.len() >= need
    }

    /// The head is understood, and this follows it.
    fn next(&mut self, skip: u64) {
        self.head.clear();
        self.heads += 1;
        self.skip = skip;
    }

    fn magic(&self) -> u32 {
        let word = self.head.first_chunk::<4>();
        word.map_or(0, |word| u32::from_be_bytes(*word))
    }
}

impl Tap {
    /// Of a queue's connection.
    pub fn nvme() -> Self {
        Self::new(Speech::Nvme, ENTRIES - 1)
    }

    /// Of a client's connection.
    pub fn nbd() -> Self {
        Self::new(Speech::Nbd, usize::from(nbd::limits::REQUESTS_MAX))
    }

    fn new(speech: Speech, most: usize) -> Self {
        Self {
            speech,
            said: Stream::default(),
            heard: Stream::default(),
            used: BTreeMap::new(),
            most,
        }
    }

    /// Bytes are sent.
    ///
    /// # Errors
    /// Returns the violation in sent bytes.
    pub fn said(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let more = match self.speech {
                Speech::Nvme => self.command(&mut bytes)?,
                Speech::Nbd => self.request(&mut bytes)?,
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Bytes have arrived.
    ///
    /// # Errors
    /// Returns the violation in received bytes.
    pub fn heard(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() {
            let more = match self.speech {
                Speech::Nvme => self.response(&mut bytes)?,
                Speech::Nbd => self.reply(&mut bytes)?,
            };
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Requests without an answer, but those that wait for something to happen.
    pub fn unanswered(&self) -> usize {
        let event = u16::from(nvme::wire::sqe::admin::ASYNC_EVENT_REQUEST);
        let waits = |opcode| self.speech == Speech::Nvme && opcode == event;
        self.used.values().filter(|it| !waits(it.0)).count()
    }

    fn begin(&mut self, id: u64, what: (u16, u32)) -> Result<(), String> {
        if self.used.insert(id, what).is_some() {
            return Err(format!(
                "identifier {id:#x} is used while its earlier use may still be answered"
            ));
        }
        if self.used.len() > self.most {
            let (count, most) = (self.used.len(), self.most);
            return Err(format!(
                "{count} requests on a connection that takes {most}"
            ));
        }
        Ok(())
    }

    fn find(&self, id: u64) -> Result<(u16, u32), String> {
        let found = self.used.get(&id).copied();
        found.ok_or_else(|| format!("identifier {id:#x} is answered, and was not in use"))
    }

    /// One PDU of a host; false: it is not all there.
    fn command(&mut self, bytes: &mut &[u8]) -> Result<bool, String> {
        let Some((kind, _)) = pdu_head(&mut self.said, bytes) else {
            return Ok(false);
        };
        let own = core::mem::take(&mut self.said.head);
        if kind == Some(PduType::CapsuleCmd)
            && let Ok(sqe) = Sqe::new(&own[pdu::COMMON_LEN..])
        {
            self.begin(sqe.cid().into(), (sqe.opcode().into(), 0))?;
        } else if kind == Some(PduType::H2cData)
            && let Ok(data) = DataHeader::parse(&own)
        {
            self.find(data.cccid.into())?;
        }
        Ok(true)
    }

    /// One PDU of a target.
    fn response(&mut self, bytes: &mut &[u8]) -> Result<bool, String> {
        let Some((kind, flag)) = pdu_head(&mut self.heard, bytes) else {
            return Ok(false);
        };
        let own = core::mem::take(&mut self.heard.head);
        match kind {
            Some(PduType::CapsuleResp) => {
                let cid = pdu::parse_response(&own).map_or(0, |cqe| cqe.cid.into());
                self.find(cid)?;
                self.used.remove(&cid);
            }
            Some(PduType::C2hData | PduType::R2t) => {
                let id = DataHeader::parse(&own).map_or(0, |data| data.cccid.into());
                self.find(id)?;
                if kind == Some(PduType::C2hData) && flag & flags::SUCCESS != 0 {
                    self.used.remove(&id);
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// One option or request of a client.
    fn request(&mut self, bytes: &mut &[u8]) -> Result<bool, String> {
        let said = &mut self.said;
        // The first word is the client's flags.
        if !said.head(bytes, 4) {
            return Ok(false);
        }
        if said.heads == 0 {
            said.next(0);
        } else if said.magic() == REQUEST_MAGIC {
            if !said.head(bytes, RequestHeader::LEN) {
                return Ok(false);
            }
            let Some(it) = RequestHeader::parse(&said.head) else {
                return Err("no request".into());
            };
            let data = if it.command == cmd::WRITE {
                it.length
            } else {
                0
            };
            said.next(data.into());
            if it.command != cmd::DISC {
                self.begin(it.cookie, (it.command, it.length))?;
            }
        } else {
            if !said.head(bytes, OptionHeader::LEN) {
                return Ok(false);
            }
            let Some(it) = OptionHeader::parse(&said.head) else {
                return Err("neither option nor request".into());
            };
            said.next(it.len.into());
        }
        Ok(true)
    }

    /// One reply of a server.
    fn reply(&mut self, bytes: &mut &[u8]) -> Result<bool, String> {
        if self.heard.heads > 0 && !self.heard.head(bytes, 4) {
            return Ok(false);
        }
        let need = match self.heard.heads {
            0 => Greeting::LEN,
            _ => match self.heard.magic() {
                SIMPLE_REPLY_MAGIC => SimpleReply::LEN,
                STRUCTURED_REPLY_MAGIC => ChunkHeader::LEN,
                magic if u64::from(magic) == OPTION_REPLY_MAGIC >> 32 => OptionReply::LEN,
                magic => return Err(format!("a reply that begins with {magic:#x}")),
            },
        };
        if !self.heard.head(bytes, need) {
            return Ok(false);
        }
        let head = core::mem::take(&mut self.heard.head);
        let mut skip = 0;
        if self.heard.heads == 0 {
        } else if let Some(it) = OptionReply::parse(&head) {
            skip = it.len;
        } else if let Some(it) = SimpleReply::parse(&head) {
            let (command, length) = self.find(it.cookie)?;
            self.used.remove(&it.cookie);
            if command == cmd::READ && it.error == 0 {
                skip = length;
            }
        } else if let Some(it) = ChunkHeader::parse(&head) {
            self.find(it.cookie)?;
            skip = it.len;
            if it.flags & chunk::DONE != 0 {
                self.used.remove(&it.cookie);
            }
        }
        self.heard.next(skip.into());
        Ok(true)
    }
}

/// The next PDU of a stream: its header is left in `head`. `None`: it is not all there.
fn pdu_head(stream: &mut Stream, bytes: &mut &[u8]) -> Option<(Option<PduType>, u8)> {
    if !stream.head(bytes, pdu::COMMON_LEN) {
        return None;
    }
    let common = Header::parse(&stream.head).ok()?;
    let length = usize::from(common.hlen).max(pdu::COMMON_LEN);
    if !stream.head(bytes, length) {
        return None;
    }
    let head = core::mem::take(&mut stream.head);
    stream.next(u64::from(common.plen).saturating_sub(length as u64));
    stream.head = head;
    Some((PduType::from_byte(common.kind), common.flags))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::wire::pdu::Framing;
    use nvme::wire::{Cqe, SqeBuilder};

    fn capsule(cid: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let sqe = SqeBuilder::new(2).cid(cid);
        Framing::PLAIN.whole(&mut out, PduType::CapsuleCmd, 0, sqe.bytes(), &[7; 100]);
        out
    }

    fn answer(cid: u16) -> Vec<u8> {
        let mut out = Vec::new();
        let cqe = Cqe {
            result: 0,
            sqhd: 0,
            sqid: 1,
            cid,
            status: nvme::wire::Status::SUCCESS,
        };
        Framing::PLAIN.whole(&mut out, PduType::CapsuleResp, 0, &cqe.emit(), &[]);
        out
    }

    /// In pieces of any size.
    fn pieces(mut each: impl FnMut(&[u8]) -> Result<(), String>, bytes: &[u8]) -> bool {
        bytes.chunks(7).all(|piece| each(piece).is_ok())
    }

    #[test]
    fn t11_an_identifier_that_may_still_be_answered_is_not_used_again() {
        let mut tap = Tap::nvme();
        assert!(pieces(|it| tap.said(it), &capsule(5)));
        assert!(pieces(|it| tap.said(it), &capsule(6)));
        assert!(pieces(|it| tap.heard(it), &answer(5)));
        assert!(pieces(|it| tap.said(it), &capsule(5)), "it was answered");
        assert!(!pieces(|it| tap.said(it), &capsule(6)), "it was not");
    }

    #[test]
    fn nothing_is_answered_twice() {
        let mut tap = Tap::nvme();
        assert!(pieces(|it| tap.said(it), &capsule(5)));
        assert!(pieces(|it| tap.heard(it), &answer(5)));
        assert!(!pieces(|it| tap.heard(it), &answer(5)));
    }

    #[test]
    fn no_more_commands_than_entries() {
        let mut tap = Tap::nvme();
        let taken = (0..).take_while(|&cid| tap.said(&capsule(cid)).is_ok());
        assert_eq!(taken.count(), ENTRIES - 1);
    }

    #[test]
    fn a_cookie_is_in_use_until_the_last_chunk() {
        let mut tap = Tap::nbd();
        let request = |command, cookie| {
            let mut out = Vec::new();
            let (flags, offset, length) = (0, 0, 512);
            let it = RequestHeader {
                flags,
                command,
                cookie,
                offset,
                length,
            };
            it.emit(&mut out);
            out.resize(out.len() + if command == cmd::WRITE { 512 } else { 0 }, 9);
            out
        };
        let reply = |cookie, flags| {
            let mut out = Vec::new();
            let (kind, len) = (chunk::OFFSET_DATA, 520);
            ChunkHeader {
                flags,
                kind,
                cookie,
                len,
            }
            .emit(&mut out);
            out.resize(out.len() + 520, 9);
            out
        };
        assert!(tap.said(&[0; 4]).is_ok() && tap.heard(&[0; Greeting::LEN]).is_ok());
        assert!(pieces(|it| tap.said(it), &request(cmd::WRITE, 1)));
        assert!(pieces(|it| tap.said(it), &request(cmd::READ, 2)));
        assert!(pieces(|it| tap.heard(it), &reply(2, 0)));
        assert!(
            !pieces(|it| tap.said(it), &request(cmd::READ, 2)),
            "half of it is to come"
        );
        let mut tap = Tap::nbd();
        assert!(tap.said(&[0; 4]).is_ok() && tap.heard(&[0; Greeting::LEN]).is_ok());
        assert!(pieces(|it| tap.said(it), &request(cmd::READ, 2)));
        assert!(pieces(|it| tap.heard(it), &reply(2, chunk::DONE)));
        assert!(pieces(|it| tap.said(it), &request(cmd::READ, 2)));
        assert!(
            !pieces(|it| tap.heard(it), &reply(3, chunk::DONE)),
            "no question before"
        );
    }
}
