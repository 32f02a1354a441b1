//! Get LBA Status: which bytes of a device are a hole.
//!
//! # Contract
//! As for Block Status of the NBD server (`export/extents`): what holds the bytes is asked after
//! the command came, of a mirror all legs in sync together, and what is not known within
//! [`EXTENT_WAIT_NS`] is data.
//!
//! # Limits
//! [`EXTENT_QUESTIONS_MAX`] questions of a server at a time: one more ends the oldest, as data.
use super::NvmeServer;
use crate::export::both;
use crate::host::Witness;
use crate::limits::{EXTENT_QUESTIONS_MAX, EXTENT_WAIT_NS};
use crate::machine::{DeviceExtent, ExtentRequest, Machine, Output};
use crate::mirror::Devices;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use block::Range;

/// Identifiers of questions of NVMe/TCP servers have this bit, and behind it the server's place.
const OURS: u32 = 1 << 31;
const SERIAL_BITS: u32 = 24;
const SERVERS_MAX: u64 = 1 << (31 - SERIAL_BITS);

/// Place of the NVMe/TCP server that has asked; `None`: the NBD server has.
pub(crate) fn server_of(id: u32) -> Option<usize> {
    (id & OURS != 0).then_some(((id & !OURS) >> SERIAL_BITS) as usize)
}

pub(super) struct Questions {
    /// In the order in which they were asked.
    all: VecDeque<Question>,
    /// Tag that the identifiers of this server have in common.
    tag: u32,
    serial: u32,
    witnesses: Vec<(Witness, u64)>,
}

struct Question {
    /// The target's.
    of: u32,
    /// Ours, for all that are asked.
    id: u32,
    until_ns: u64,
    /// How many have not answered, and what the others said together.
    asked: usize,
    said: Option<DeviceExtent>,
}

impl Questions {
    /// None, of the server in this place; `None`: there are too many servers.
    pub fn new(place: u64) -> Option<Self> {
        (place < SERVERS_MAX).then(|| Self {
            all: VecDeque::new(),
            tag: OURS | (place as u32) << SERIAL_BITS,
            serial: 0,
            witnesses: Vec::new(),
        })
    }

    /// Serial number of the question before the first.
    pub fn begin_at(&mut self, serial: u32) {
        self.serial = serial % (1 << SERIAL_BITS);
    }

    /// One of those that were asked has answered: what all of them say, if that was the last.
    fn answered(&mut self, id: u32, extent: DeviceExtent) -> Option<(u32, DeviceExtent)> {
        // One that is not there was not waited for so long.
        let at = self.all.iter().position(|it| it.id == id)?;
        let question = &mut self.all[at];
        question.asked -= 1;
        let said = question.said.map_or(extent, |said| both(said, extent));
        question.said = Some(said);
        if question.asked > 0 {
            return None;
        }
        let of = question.of;
        self.all.remove(at);
        Some((of, said))
    }

    /// When the oldest question has waited long enough, ns.
    pub fn due_ns(&self) -> Option<u64> {
        self.all.front().map(|it| it.until_ns)
    }

    /// The oldest question, if it has waited long enough or there is no room for another.
    fn pop_late(&mut self, now_ns: u64) -> Option<u32> {
        let is_full = self.all.len() > EXTENT_QUESTIONS_MAX;
        let is_late = is_full || self.due_ns()? <= now_ns;
        is_late.then(|| self.all.pop_front())?.map(|it| it.of)
    }
}

impl NvmeServer {
    /// Asks all that hold the bytes of a device from an offset on.
    pub(super) fn ask_extent(&mut self, devices: &mut Devices, of: ExtentRequest, now_ns: u64) {
        let Some(questions) = &mut self.questions else {
            unreachable!("Get LBA Status is not offered");
        };
        let range = Range::new(of.offset, of.length.into());
        devices.witnesses(of.device.0, range, &mut questions.witnesses);
        if questions.witnesses.is_empty() {
            let unknown = DeviceExtent::UNKNOWN;
            return self.target.handle_extent(of.id, unknown, now_ns);
        }
        questions.serial = (questions.serial + 1) % (1 << SERIAL_BITS);
        let id = questions.tag | questions.serial;
        questions.all.push_back(Question {
            of: of.id,
            id,
            until_ns: now_ns.saturating_add(EXTENT_WAIT_NS),
            asked: questions.witnesses.len(),
            said: None,
        });
        for &(witness, offset) in &questions.witnesses {
            match witness {
                Witness::Device(device) => self.outputs.push_back(Output::Extent(ExtentRequest {
                    id,
                    device,
                    offset,
                    length: of.length,
                })),
                Witness::Paths(volume) => {
                    let host = devices.host_mut();
                    host.ask_extent(id, volume, (offset, of.length), now_ns);
                }
            }
        }
        self.expire_extents(now_ns);
    }

    /// One of those that were asked has answered.
    pub fn extent_found(&mut self, id: u32, extent: DeviceExtent, now_ns: u64) {
        let questions = self.questions.as_mut();
        if let Some((of, said)) = questions.and_then(|it| it.answered(id, extent)) {
            self.target.handle_extent(of, said, now_ns);
        }
    }

    /// Ends questions that have waited long enough.
    pub(super) fn expire_extents(&mut self, now_ns: u64) {
        while let Some(of) = self.questions.as_mut().and_then(|it| it.pop_late(now_ns)) {
            self.target.handle_extent(of, DeviceExtent::UNKNOWN, now_ns);
        }
    }
}
