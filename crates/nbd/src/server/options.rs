//! Option haggling: the client's queries and its choice of an export (Option types).
use alloc::vec::Vec;

use super::{CloseReason, Event, Opened, Phase, Session};
use crate::shape::Shape;
use crate::wire::{
    BASE_ALLOCATION, EXPORT_NAME_ZEROES, Fields, Greeting, OptionReply, handshake, info, opt, rep,
};
use crate::{Export, Features};

/// The reply type of an option that failed.
type Refused = u32;

/// Info or Go, taken apart.
struct Choice<'a> {
    name: &'a [u8],
    block_size: bool,
    canonical_name: bool,
    description: bool,
}

impl Session {
    pub(super) fn greet(&mut self) {
        let flags = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;
        Greeting { flags }.emit(&mut self.tx.own);
        self.kick();
    }

    /// Answers an option with all its data.
    pub(super) fn option(&mut self, option: u32, data: &[u8], now_ns: u64) {
        let result = match option {
            opt::ABORT => {
                self.reply(option, rep::ACK, &[]);
                return self.close(CloseReason::Finished, now_ns);
            }
            opt::EXPORT_NAME => return self.export_name(data, now_ns),
            _ if self.shutting => Err(rep::ERR_SHUTDOWN),
            opt::LIST if data.is_empty() => {
                self.tx.begin_list();
                return self.kick();
            }
            opt::STARTTLS if data.is_empty() => Err(rep::ERR_POLICY),
            opt::STRUCTURED_REPLY if data.is_empty() => {
                self.terms.structured = true;
                Ok(())
            }
            opt::LIST | opt::STARTTLS | opt::STRUCTURED_REPLY => Err(rep::ERR_INVALID),
            opt::INFO => self.info(option, data).map(|_| ()),
            opt::GO => return self.go(data),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data),
            _ => Err(rep::ERR_UNSUP),
        };
        self.conclude(option, result);
    }

    /// Answers an option with more data than is parsed; all of it was skipped.
    pub(super) fn option_too_big(&mut self, option: u32) {
        if option == opt::SET_META_CONTEXT {
            self.terms.context = None;
        }
        self.reply(option, rep::ERR_TOO_BIG, &[]);
    }

    /// Ends an option with its result; an error may have a text for people (Option reply types).
    fn conclude(&mut self, option: u32, result: Result<(), Refused>) {
        let exports = self.exports.clone();
        match result {
            Ok(()) => self.reply(option, rep::ACK, &[]),
            Err(rep::ERR_UNKNOWN) => {
                self.reply(option, rep::ERR_UNKNOWN, &[exports.why().as_bytes()]);
            }
            Err(kind) => self.reply(option, kind, &[]),
        }
    }

    /// Queues a reply whose data comes in parts.
    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let len = parts.iter().map(|part| part.len() as u32).sum();
        let own = &mut self.tx.own;
        OptionReply { option, kind, len }.emit(own);
        parts.iter().for_each(|part| own.extend_from_slice(part));
        self.kick();
    }

    /// EXPORT_NAME: the old way to choose, which has no error reply.
    fn export_name(&mut self, name: &[u8], now_ns: u64) {
        if self.shutting {
            return self.close(CloseReason::Shutdown, now_ns);
        }
        let Some(index) = self.exports.find(name) else {
            return self.close(CloseReason::Refused, now_ns);
        };
        let structured = self.terms.structured;
        let Export { size, features, .. } = &self.exports.list()[index];
        let own = &mut self.tx.own;
        own.extend(size.to_be_bytes());
        own.extend(features.flags(structured).to_be_bytes());
        if !self.terms.no_zeroes {
            own.resize(own.len() + EXPORT_NAME_ZEROES, 0);
        }
        self.kick();
        self.begin_transmission(index, false);
    }

    fn go(&mut self, data: &[u8]) {
        let result = self.info(opt::GO, data);
        self.conclude(opt::GO, result.map(|_| ()));
        if let Ok((index, negotiated)) = result {
            self.begin_transmission(index, negotiated);
        }
    }

    /// Info and Go: sends the information. Returns the export's index, and whether the block sizes
    /// were asked for.
    fn info(&mut self, option: u32, data: &[u8]) -> Result<(usize, bool), Refused> {
        let choice = Choice::parse(data).ok_or(rep::ERR_INVALID)?;
        let index = self.exports.find(choice.name).ok_or(rep::ERR_UNKNOWN)?;
        let exports = self.exports.clone();
        let export = &exports.list()[index];
        let flags = export.features.flags(self.terms.structured);
        let mut say = |kind: u16, parts: [&[u8]; 3]| {
            let [a, b, c] = parts;
            self.reply(option, rep::INFO, &[&kind.to_be_bytes(), a, b, c]);
        };
        say(
            info::EXPORT,
            [&export.size.to_be_bytes(), &flags.to_be_bytes(), &[]],
        );
        if choice.canonical_name {
            say(info::NAME, [export.name.as_bytes(), &[], &[]]);
        }
        if choice.description && !export.description.is_empty() {
            say(info::DESCRIPTION, [export.description.as_bytes(), &[], &[]]);
        }
        if choice.block_size {
            let sizes = export.block_sizes;
            let sizes = [sizes.minimum, sizes.preferred, sizes.maximum].map(u32::to_be_bytes);
            say(info::BLOCK_SIZE, [&sizes[0], &sizes[1], &sizes[2]]);
        }
        Ok((index, choice.block_size))
    }

    /// Both options about metadata contexts. There is one context, if the export has it.
    fn meta_context(&mut self, option: u32, data: &[u8]) -> Result<(), Refused> {
        let set = option == opt::SET_META_CONTEXT;
        if set {
            // A new selection drops the old one even if the option fails.
            self.terms.context = None;
        }
        if !self.terms.structured {
            return Err(rep::ERR_INVALID);
        }
        let mut fields = Fields(data);
        let name = fields.string().ok_or(rep::ERR_INVALID)?;
        let count = fields.u32().ok_or(rep::ERR_INVALID)?;
        let mut found = count == 0 && !set;
        for _ in 0..count {
            let query = fields.string().ok_or(rep::ERR_INVALID)?;
            // The wildcard lists, but doesn't select (The base: metadata namespace).
            found |= query == BASE_ALLOCATION.as_bytes() || (query == b"base:" && !set);
        }
        if !fields.0.is_empty() {
            return Err(rep::ERR_INVALID);
        }
        let index = self.exports.find(name).ok_or(rep::ERR_UNKNOWN)?;
        if found && self.exports.list()[index].features.block_status {
            let id = if set { CONTEXT_ID } else { 0 };
            let parts = [&id.to_be_bytes()[..], BASE_ALLOCATION.as_bytes()];
            self.reply(option, rep::META_CONTEXT, &parts);
            self.terms.context = if set { Some(index) } else { self.terms.context };
        }
        Ok(())
    }

    /// The client has chosen an export. The first request allocates the memory of all of them.
    fn begin_transmission(&mut self, index: usize, negotiated_block_size: bool) {
        let export = &self.exports.list()[index];
        let mut block_sizes = export.block_sizes;
        if !negotiated_block_size {
            block_sizes.minimum = 1;
        }
        let block_status = self.terms.structured && self.terms.context == Some(index);
        self.shape = Shape {
            size: export.size,
            block_sizes,
            features: Features {
                block_status,
                ..export.features.usable()
            },
        };
        let opened = Opened {
            export: export.id,
            negotiated_block_size,
            structured: self.terms.structured,
            block_status,
        };
        let requests = self.config.requests_max;
        self.phase = Phase::Transmission;
        self.deadline_ns = u64::MAX;
        self.rx.begin_transmission();
        self.slots.open(requests, block_status);
        self.events.push_back(Event::Opened(opened));
    }
}

/// Identifier of the only context.
pub(super) const CONTEXT_ID: u32 = 1;

impl<'a> Choice<'a> {
    /// Parses the data; `None`: the lengths do not fit. Unknown kinds of information are ignored.
    fn parse(data: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(data);
        let name = fields.string()?;
        let count = fields.u16()?;
        let wanted: Vec<u16> = (0..count).map(|_| fields.u16()).collect::<Option<_>>()?;
        fields.0.is_empty().then_some(Self {
            name,
            block_size: wanted.contains(&info::BLOCK_SIZE),
            canonical_name: wanted.contains(&info::NAME),
            description: wanted.contains(&info::DESCRIPTION),
        })
    }
}
