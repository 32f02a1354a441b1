//! A client as it should be: 4 KiB reads, so many outstanding, on a connection that stays.
use super::Background;
use super::peer::{Place, Queue, Wire};
use crate::prelude::*;
use nbd::wire::SimpleReply;
use nvme::wire::pdu::{DataHeader, Header, PduType, flags, parse_response};
use std::sync::atomic::Ordering::Relaxed;

/// Reads outstanding.
const DEPTH: u16 = 32;
const READ_BYTES: u32 = 4096;
/// Reads go over so many blocks.
const BLOCKS: u64 = 16 << 10;

/// A client that reads until it is dropped.
pub struct Honest {
    done: Arc<AtomicU64>,
    thread: Background<Result<()>>,
}

impl Honest {
    /// Connects and begins.
    pub fn start(place: &Place) -> Result<Self> {
        let queue = place.queue(0, DEPTH + 1).context("the honest client")?;
        let (wire, done) = (place.wire.clone(), Arc::<AtomicU64>::default());
        let counter = Arc::clone(&done);
        let thread = Background::spawn(move |ends| read(&queue, &wire, &counter, ends));
        Ok(Self { done, thread })
    }

    /// Reads that have ended well.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Ends it.
    ///
    /// # Errors
    /// What ended it before: it must not be.
    pub fn end(mut self) -> Result<()> {
        self.thread
            .end()?
            .context("the honest client was not served")
    }
}

/// A read of a pseudo-random place.
fn request(wire: &Wire, number: u16, turn: &mut u64) -> Vec<u8> {
    *turn = turn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    wire.read(number, 1, *turn >> 33 & (BLOCKS - 1))
}

fn read(queue: &Queue, wire: &Wire, done: &AtomicU64, stop: &AtomicBool) -> Result<()> {
    let mut turn = 1;
    let mut out = Vec::new();
    (0..DEPTH).for_each(|number| out.extend(request(wire, number, &mut turn)));
    let mut buffer = vec![0; 512 << 10];
    let mut held = 0;
    while !stop.load(Relaxed) {
        queue.socket.say(&out)?;
        out.clear();
        held += queue.socket.hear(&mut buffer[held..])?;
        let mut at = 0;
        while let Some((length, ended)) = answer(wire, &buffer[at..held])? {
            at += length;
            if let Some(number) = ended {
                out.extend(request(wire, number, &mut turn));
                done.fetch_add(1, Relaxed);
            }
        }
        buffer.copy_within(at..held, 0);
        held -= at;
    }
    Ok(())
}

/// The answer at the beginning of these bytes, if it is whole: its length, and the request that it
/// ends.
fn answer(wire: &Wire, bytes: &[u8]) -> Result<Option<(usize, Option<u16>)>> {
    match wire {
        Wire::Nvme(_) => nvme(bytes),
        Wire::Nbd => nbd(bytes),
    }
}

fn nvme(bytes: &[u8]) -> Result<Option<(usize, Option<u16>)>> {
    let Ok(header) = Header::parse(bytes) else {
        return Ok(None);
    };
    let length = header.plen as usize;
    let Some(pdu) = bytes.get(..length) else {
        return Ok(None);
    };
    let ended = match PduType::from_byte(header.kind) {
        Some(PduType::C2hData) if header.flags & flags::SUCCESS == 0 => None,
        Some(PduType::C2hData) => Some(DataHeader::parse(pdu)?.cccid),
        Some(PduType::CapsuleResp) => {
            let cqe = parse_response(pdu)?;
            ensure!(cqe.status.is_success(), "a read failed: {}", cqe.status);
            Some(cqe.cid)
        }
        _ => bail!("a PDU of type {} instead of an answer", header.kind),
    };
    Ok(Some((length, ended)))
}

fn nbd(bytes: &[u8]) -> Result<Option<(usize, Option<u16>)>> {
    let length = SimpleReply::LEN + READ_BYTES as usize;
    if bytes.len() < SimpleReply::LEN {
        return Ok(None);
    }
    let reply = SimpleReply::parse(bytes).filter(|reply| reply.error == 0);
    let reply = reply.context("a read failed")?;
    Ok((bytes.len() >= length).then_some((length, Some(reply.cookie as u16))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_counted_once_and_only_when_they_are_whole() {
        let mut pdu = vec![0; 24 + 4096];
        (pdu[0], pdu[1], pdu[8]) = (PduType::C2hData as u8, flags::SUCCESS, 5);
        pdu[4..8].copy_from_slice(&4120_u32.to_le_bytes());
        assert_eq!(nvme(&pdu).unwrap(), Some((4120, Some(5))));
        assert_eq!(nvme(&pdu[..4119]).unwrap(), None);
        pdu[1] = 0;
        assert_eq!(nvme(&pdu).unwrap(), Some((4120, None)));
        pdu[0] = 3;
        assert!(nvme(&pdu).is_err());
    }
}
