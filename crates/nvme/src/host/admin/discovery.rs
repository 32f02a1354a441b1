//! The log of a discovery controller (Base 2.0, 5.16.1.23): header and entries in pieces, read anew
//! when the generation changed meanwhile.
use alloc::string::String;
use alloc::vec::Vec;

use super::ana::get_log;
use super::{Admin, Next};
use crate::host::{AdminEvent, Data, DiscoveryEntry, DiscoveryLog, HostError, Step};
use crate::limits::{DISCOVERY_ENTRIES_MAX, LOG_PIECE, LOG_RESTARTS_MAX};
use crate::wire::layout::text;
use crate::wire::log::{self, DISCOVERY_UNIT, DiscoveryHeader, Request, lid};
use crate::wire::{SqeBuilder, WireError};

/// The part of the log read so far.
#[derive(Debug, Default)]
pub struct Discovery {
    /// The header as first read; `None`: it is read next.
    header: Option<DiscoveryHeader>,
    entries: Vec<DiscoveryEntry>,
    restarts: u8,
}

impl Discovery {
    /// Entries still to be read.
    fn left(&self) -> u64 {
        self.header
            .map_or(0, |header| header.records - self.entries.len() as u64)
    }
}

impl Admin {
    /// Whether it is a discovery controller, once Identify Controller was read.
    pub fn is_discovery(&self) -> bool {
        self.facts.discovery
    }

    /// Whether the controller sends events when its discovery log changes; else the log must be
    /// polled.
    pub fn tells_discovery(&self) -> bool {
        self.facts.discovery && self.facts.events != 0
    }

    /// Whether keep-alive monitors the controller. `false`: none was configured, or the controller
    /// refused it.
    pub fn keeps_alive(&self) -> bool {
        self.keep_alive.runs()
    }

    /// Reads the discovery log again as soon as no other command is in flight, then reports
    /// `Discovery`. Nothing happens on another kind of controller.
    pub fn request_discovery(&mut self, now_ns: u64) {
        self.work.discovery = self.facts.discovery;
        self.work.discovery_from_ns = now_ns;
        self.next_work(now_ns);
    }

    /// Starts to read the log.
    pub(super) fn restart_discovery(&mut self) -> Step {
        self.discovery.header = None;
        self.discovery.entries.clear();
        Step::DiscoveryLog
    }

    /// The next command: the header, as many entries as a piece holds, …, and the header once more.
    pub(super) fn discovery_command(&self) -> (SqeBuilder, Data) {
        let unit = DISCOVERY_UNIT as u64;
        let left = self.discovery.left();
        let (len, offset) = match left {
            0 => (unit, 0),
            left => {
                let len = (left * unit).min(LOG_PIECE.into());
                (len, (1 + self.discovery.entries.len() as u64) * unit)
            }
        };
        get_log(
            &Request {
                lid: lid::DISCOVERY,
                len,
                offset,
                ..Request::default()
            },
            0,
        )
    }

    pub(super) fn discovery_finished(&mut self) -> Result<Next, HostError> {
        let step = Step::DiscoveryLog;
        let malformed = |error| HostError::Malformed { step, error };
        let left = self.discovery.left();
        if left > 0 {
            let pieces = self.page.chunks_exact(DISCOVERY_UNIT).take(left as usize);
            for piece in pieces {
                let entry = log::DiscoveryEntry::parse(piece).map_err(malformed)?;
                self.discovery.entries.push(plain(&entry));
            }
            return Ok(Next::Begin(step));
        }
        let header = DiscoveryHeader::parse(&*self.page).map_err(malformed)?;
        if header.format != 0 {
            return Err(malformed(WireError::Field { offset: 16 }));
        }
        if header.records > DISCOVERY_ENTRIES_MAX {
            return Err(HostError::Limit {
                step,
                max: DISCOVERY_ENTRIES_MAX as u32,
            });
        }
        match self.discovery.header {
            Some(first) if first.generation == header.generation => {
                self.discovery.restarts = 0;
                self.discovery.header = None;
                let entries = core::mem::take(&mut self.discovery.entries);
                let log = DiscoveryLog {
                    generation: header.generation,
                    entries,
                };
                self.tell(Vec::new(), Some(AdminEvent::Discovery(log)));
                return Ok(Next::Work);
            }
            Some(_) if self.discovery.restarts == LOG_RESTARTS_MAX => {
                return Err(HostError::Unstable(step));
            }
            Some(_) => {
                self.discovery.restarts += 1;
                self.discovery.entries.clear();
            }
            None => {}
        }
        self.discovery.header = Some(header);
        Ok(Next::Begin(step))
    }
}

fn plain(entry: &log::DiscoveryEntry) -> DiscoveryEntry {
    DiscoveryEntry {
        trtype: entry.trtype,
        adrfam: entry.adrfam,
        subtype: entry.subtype,
        treq: entry.treq,
        sectype: entry.sectype,
        port_id: entry.portid,
        cntlid: entry.cntlid,
        admin_entries_max: entry.asqsz,
        eflags: entry.eflags,
        traddr: String::from(text(&entry.traddr)),
        trsvcid: String::from(text(&entry.trsvcid)),
        subnqn: String::from(text(&entry.subnqn)),
    }
}
