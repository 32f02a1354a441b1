//! From the greeting to transmission: structured replies and the allocation context if wanted, then
//! the export (Handshake; Option types).
use alloc::vec::Vec;

use super::{Error, Event, Fault, Info, Phase, Queued, Session};
use crate::limits::{BLOCK_MAX, REPLIES_MAX, REPLY_DATA_MAX, SIZE_MAX};
use crate::shape::Shape;
use crate::wire::{
    BASE_ALLOCATION, EXPORT_NAME_ZEROES, Fields, Gather, Greeting, INIT_MAGIC, OLDSTYLE_MAGIC,
    OPTION_MAGIC, OptionHeader, OptionReply, handshake, info, opt, rep, transmission,
};
use crate::{BlockSizes, Features};

/// The next input that is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Greeting,
    /// Replies to this option.
    Option(u32),
    /// Data of a reply; bytes still missing.
    Data(OptionReply, u32),
    /// The answer to Export Name.
    ExportName,
    /// Zeroes behind it.
    Zeroes(usize),
}

/// State of the handshake.
#[derive(Debug)]
pub(super) struct Negotiation {
    step: Step,
    header: Gather,
    data: Vec<u8>,
    replies: u16,
    no_zeroes: bool,
    /// Size and transmission flags.
    export: Option<(u64, u16)>,
    block_sizes: Option<BlockSizes>,
}

impl Negotiation {
    pub fn new() -> Self {
        Self {
            step: Step::Greeting,
            header: Gather::new(),
            data: Vec::new(),
            replies: 0,
            no_zeroes: false,
            export: None,
            block_sizes: None,
        }
    }
}

impl Session {
    /// Takes bytes before transmission; returns how many.
    pub(super) fn receive_handshake(&mut self, bytes: &[u8]) -> usize {
        let this = &mut self.negotiation;
        let need = match this.step {
            Step::Greeting => Greeting::LEN,
            Step::Option(_) => OptionReply::LEN,
            Step::ExportName => 10,
            Step::Data(reply, left) => {
                let n = bytes.len().min(left as usize);
                this.data.extend_from_slice(&bytes[..n]);
                self.continue_reply(reply, left - n as u32);
                return n;
            }
            Step::Zeroes(left) => {
                let n = bytes.len().min(left);
                this.step = Step::Zeroes(left - n);
                if n == left {
                    self.begin();
                }
                return n;
            }
        };
        // The greeting of an oldstyle server is shorter.
        let n = this.header.fill(need, bytes);
        let result = match this.step {
            Step::Greeting => self.greeting(),
            _ if this.header.bytes().len() < need => Ok(()),
            Step::ExportName => {
                self.export_name();
                Ok(())
            }
            _ => self.option_reply(),
        };
        if let Err(error) = result {
            self.fail(error);
        }
        n
    }

    fn greeting(&mut self) -> Result<(), Error> {
        let fault = Err(Error::Protocol(Fault::Greeting));
        let mut fields = Fields(self.negotiation.header.bytes());
        match fields.u64() {
            Some(INIT_MAGIC) => {}
            Some(_) => return fault,
            None => return Ok(()),
        }
        match fields.u64() {
            Some(OPTION_MAGIC) => {}
            Some(OLDSTYLE_MAGIC) => return Err(Error::Oldstyle),
            Some(_) => return fault,
            None => return Ok(()),
        }
        let Some(flags) = fields.u16() else {
            return Ok(());
        };
        self.negotiation.header.clear();
        let known = flags & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
        self.negotiation.no_zeroes = flags & handshake::NO_ZEROES != 0;
        self.own.extend(u32::from(known).to_be_bytes());
        if flags & handshake::FIXED_NEWSTYLE == 0 {
            // Only one option is left (Newstyle negotiation).
            self.send_export_name();
        } else if self.config.structured {
            self.send_option(opt::STRUCTURED_REPLY, &[]);
        } else {
            self.send_go();
        }
        Ok(())
    }

    fn option_reply(&mut self) -> Result<(), Error> {
        let this = &mut self.negotiation;
        let reply = OptionReply::parse(this.header.bytes());
        this.header.clear();
        let reply = reply.ok_or(Error::Protocol(Fault::OptionReply))?;
        if this.step != Step::Option(reply.option) {
            return Err(Error::Protocol(Fault::OptionReply));
        }
        if reply.len > REPLY_DATA_MAX {
            return Err(Error::Protocol(Fault::OptionReplyLength(reply.len)));
        }
        this.replies += 1;
        if this.replies > REPLIES_MAX {
            return Err(Error::Protocol(Fault::OptionReplies));
        }
        this.data.clear();
        self.continue_reply(reply, reply.len);
        Ok(())
    }

    fn continue_reply(&mut self, reply: OptionReply, left: u32) {
        if left > 0 {
            self.negotiation.step = Step::Data(reply, left);
            return;
        }
        self.negotiation.step = Step::Option(reply.option);
        if let Err(error) = self.whole_reply(&reply) {
            if matches!(error, Error::Refused(_) | Error::BlockSizes(_)) {
                self.abort();
            }
            self.fail(error);
        }
    }

    /// A reply with all its data.
    fn whole_reply(&mut self, reply: &OptionReply) -> Result<(), Error> {
        let failed = reply.kind & rep::ERROR != 0;
        match (reply.option, reply.kind) {
            // The client must disconnect (Termination of the session during option haggling).
            (_, rep::ERR_SHUTDOWN) => return Err(Error::Refused(reply.kind)),
            (opt::STRUCTURED_REPLY, kind) if failed || kind == rep::ACK => {
                self.structured = !failed;
                if self.structured && self.config.block_status {
                    self.send_context_selection();
                } else {
                    self.send_go();
                }
            }
            (opt::SET_META_CONTEXT, rep::META_CONTEXT) => {
                let mut fields = Fields(&self.negotiation.data);
                let id = fields.u32();
                if fields.0 == BASE_ALLOCATION.as_bytes() {
                    self.context = id;
                }
            }
            (opt::SET_META_CONTEXT, kind) if failed || kind == rep::ACK => {
                self.context = self.context.filter(|_| !failed);
                self.send_go();
            }
            (opt::GO, rep::INFO) => self.information()?,
            (opt::GO, rep::ACK) if self.negotiation.export.is_some() => self.begin(),
            (opt::GO, rep::ACK) => return Err(Error::Protocol(Fault::Info)),
            (opt::GO, rep::ERR_UNSUP) => self.send_export_name(),
            (opt::GO, kind) if failed => return Err(Error::Refused(kind)),
            _ => return Err(Error::Protocol(Fault::OptionReply)),
        }
        Ok(())
    }

    /// Reads one piece of information about the export; unknown kinds are ignored.
    fn information(&mut self) -> Result<(), Error> {
        let this = &mut self.negotiation;
        let mut fields = Fields(&this.data);
        let fault = Error::Protocol(Fault::Info);
        match fields.u16().ok_or(fault)? {
            info::EXPORT => {
                let size = fields.u64().ok_or(fault)?;
                this.export = Some((size, fields.u16().ok_or(fault)?));
            }
            info::BLOCK_SIZE => {
                let sizes = BlockSizes {
                    minimum: fields.u32().ok_or(fault)?,
                    preferred: fields.u32().ok_or(fault)?,
                    maximum: fields.u32().ok_or(fault)?,
                };
                if !sizes.are_sound() {
                    return Err(Error::BlockSizes(sizes));
                }
                this.block_sizes = Some(sizes);
            }
            _ => return Ok(()),
        }
        if fields.0.is_empty() {
            Ok(())
        } else {
            Err(fault)
        }
    }

    fn export_name(&mut self) {
        let this = &mut self.negotiation;
        let mut fields = Fields(this.header.bytes());
        this.export = fields.u64().zip(fields.u16());
        if this.no_zeroes {
            self.begin();
        } else {
            this.step = Step::Zeroes(EXPORT_NAME_ZEROES);
        }
    }

    fn send_option(&mut self, option: u32, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len() as u32).sum();
        OptionHeader { option, len }.emit(&mut self.own);
        parts
            .iter()
            .for_each(|part| self.own.extend_from_slice(part));
        self.negotiation.step = Step::Option(option);
        self.negotiation.replies = 0;
        self.kick();
    }

    fn send_context_selection(&mut self) {
        let name = self.config.export.clone();
        let lens = [name.len(), BASE_ALLOCATION.len()].map(|len| (len as u32).to_be_bytes());
        let one = 1u32.to_be_bytes();
        let query = BASE_ALLOCATION.as_bytes();
        let parts = [&lens[0], name.as_bytes(), &one, &lens[1], query];
        self.send_option(opt::SET_META_CONTEXT, &parts);
    }

    /// Asks for the export and, if the client will keep to them, its block sizes.
    fn send_go(&mut self) {
        let name = self.config.export.clone();
        let len = (name.len() as u32).to_be_bytes();
        let wanted = match self.config.block_sizes {
            true => &[1, info::BLOCK_SIZE][..],
            false => &[0],
        };
        let wanted: Vec<[u8; 2]> = wanted.iter().map(|word| word.to_be_bytes()).collect();
        self.send_option(opt::GO, &[&len, name.as_bytes(), wanted.as_flattened()]);
    }

    fn send_export_name(&mut self) {
        let name = self.config.export.clone();
        self.send_option(opt::EXPORT_NAME, &[name.as_bytes()]);
        self.negotiation.step = Step::ExportName;
    }

    /// Sends an abort, if the server is ready to receive an option.
    pub(super) fn abort(&mut self) {
        if matches!(self.negotiation.step, Step::Option(_)) {
            self.send_option(opt::ABORT, &[]);
        }
    }

    /// Capacity for an option reply's data.
    #[cfg(test)]
    pub(super) fn negotiation_room(&self) -> usize {
        self.negotiation.data.capacity()
    }

    /// Enters transmission.
    fn begin(&mut self) {
        let this = core::mem::replace(&mut self.negotiation, Negotiation::new());
        let Some((size, flags)) = this.export.filter(|(size, _)| *size <= SIZE_MAX) else {
            return self.fail(Error::Protocol(Fault::Info));
        };
        let features = Features {
            block_status: self.context.is_some(),
            ..Features::from_flags(flags)
        };
        let sizes = this.block_sizes.unwrap_or(BlockSizes {
            minimum: 1,
            ..BlockSizes::DEFAULT
        });
        self.shape = Shape {
            size,
            block_sizes: BlockSizes {
                maximum: sizes.maximum.min(BLOCK_MAX),
                ..sizes
            },
            features,
        };
        self.has_df = self.structured && flags & transmission::SEND_DF != 0;
        self.phase = Phase::Ready;
        self.deadline_ns = u64::MAX;
        let info = Info {
            size,
            features,
            block_sizes: this.block_sizes,
            structured: self.structured,
        };
        self.events.push_back(Queued::Event(Event::Ready(info)));
    }
}
