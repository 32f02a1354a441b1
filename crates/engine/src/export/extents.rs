//! Block Status: which bytes of a volume are a hole.
//!
//! # Contract
//! Devices, and controllers of paths, are asked after the request came, so no change that was
//! acknowledged before is missed. They are asked for one extent after the other, of a mirror all
//! legs in sync together: a hole is what all of them call one. The answer begins with the request's
//! first byte and may end before its last. A range that cannot be known, or is not known within
//! [`EXTENT_WAIT_NS`], counts as data. No memory of the arena is involved, so a device that never
//! answers holds nothing.
//!
//! # Limits
//! [`EXTENT_QUESTIONS_MAX`] requests ask at a time; the others are answered "data" at once.
use super::{Devices, NbdServer};
use crate::host::Witness;
use crate::limits::{EXTENT_QUESTIONS_MAX, EXTENT_STEPS_MAX, EXTENT_WAIT_NS};
use crate::machine::{DeviceExtent, ExtentRequest, Output};
use crate::pipeline::Stage;
use alloc::boxed::Box;
use alloc::vec::Vec;
use block::Range;
use mirror::limits::LEGS_MAX;
use multipath::Outcome;
use nbd::limits::EXTENTS_MAX;
use nbd::wire::state::{HOLE, ZERO};
use nbd::{Extent, Kind};

/// Bits of an identifier that are a place.
const PLACE_BITS: u32 = 8;
const _: () = assert!(EXTENT_QUESTIONS_MAX <= 1 << PLACE_BITS);

/// Known extents of the range of one request.
#[derive(Debug)]
struct Map {
    /// First byte that nothing is known of, and the end of the request.
    at: u64,
    end: u64,
    /// Bytes of a block: extents end between two.
    block: u64,
    list: [Extent; EXTENTS_MAX],
    len: usize,
}

impl Map {
    fn new(range: Range, block: u32) -> Self {
        Self {
            at: range.start,
            end: range.end,
            block: block.into(),
            list: [Extent::default(); EXTENTS_MAX],
            len: 0,
        }
    }

    /// Takes what the devices say of the bytes from `at` on. `false`: there is no room for it.
    fn add(&mut self, extent: DeviceExtent) -> bool {
        let end = self.at + u64::from(extent.length.max(1));
        let whole = if end >= self.end {
            self.end
        } else {
            end - end % self.block
        };
        let is_zero = extent.is_zero && whole > self.at;
        let end = if is_zero {
            whole
        } else {
            // A block of which a part is data is data.
            let last = if extent.is_zero { self.at + 1 } else { end };
            last.next_multiple_of(self.block).min(self.end)
        };
        let length = (end - self.at) as u32;
        let flags = if is_zero { HOLE | ZERO } else { 0 };
        let (kept, free) = self.list.split_at_mut(self.len);
        match kept.last_mut().filter(|it| it.flags == flags) {
            // Within the request, whose length has 32 bits.
            Some(last) => last.length += length,
            None => {
                let Some(place) = free.first_mut() else {
                    return false;
                };
                *place = Extent { length, flags };
                self.len += 1;
            }
        }
        self.at = end;
        true
    }

    fn is_over(&self) -> bool {
        self.at == self.end
    }

    fn extents(&self) -> &[Extent] {
        &self.list[..self.len]
    }
}

/// Merges the extents of two devices: only a hole in both is one.
pub(crate) fn both(one: DeviceExtent, other: DeviceExtent) -> DeviceExtent {
    match (one.is_zero, other.is_zero) {
        (true, true) if one.length > other.length => other,
        (false, false) if one.length < other.length => other,
        (true, false) => other,
        _ => one,
    }
}

/// A request whose devices are being asked.
#[derive(Debug)]
struct Question {
    ticket: u32,
    /// Of the questions that are asked now; others are too late.
    id: u32,
    until_ns: u64,
    /// Devices that have not answered, and what the others said.
    asked: usize,
    said: Option<DeviceExtent>,
    steps: u8,
    /// The first extent is enough.
    one: bool,
    map: Map,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Questions {
    all: Box<[Option<Question>]>,
    serial: u32,
    /// Which are to be asked.
    witnesses: Vec<(Witness, u64)>,
    /// The earliest time at which one has waited long enough, or before that.
    due_ns: u64,
}

impl Questions {
    pub fn new() -> Self {
        Self {
            all: (0..EXTENT_QUESTIONS_MAX).map(|_| None).collect(),
            serial: 0,
            witnesses: Vec::with_capacity(LEGS_MAX),
            due_ns: u64::MAX,
        }
    }

    /// The place of a new one; `None`: there is no room.
    fn put(&mut self, question: Question) -> Option<usize> {
        let place = self.all.iter().position(Option::is_none)?;
        self.due_ns = self.due_ns.min(question.until_ns);
        self.all[place] = Some(question);
        Some(place)
    }

    fn get(&mut self, place: usize) -> Option<&mut Question> {
        self.all.get_mut(place)?.as_mut()
    }

    fn find(&self, id: u32) -> Option<usize> {
        let place = (id & ((1 << PLACE_BITS) - 1)) as usize;
        let question = self.all.get(place)?.as_ref()?;
        (question.id == id && question.asked > 0).then_some(place)
    }

    pub fn poll_timeout(&self) -> Option<u64> {
        (self.due_ns != u64::MAX).then_some(self.due_ns)
    }
}

impl NbdServer {
    /// A Block Status begins.
    pub(super) fn begin_status(&mut self, devices: &mut Devices, ticket: u32) {
        let now_ns = self.course.now_ns;
        let work = &mut self.table[ticket];
        work.pipeline.enter(Stage::Io);
        let request = work.request;
        if self.clients[usize::from(work.client)].orphan {
            // Its volume's number may be another's.
            work.pipeline.fail(Outcome::Stopped);
            return self.answer(devices, ticket);
        }
        let range = Range::new(request.offset, request.length.into());
        let place = self.questions.put(Question {
            ticket,
            id: 0,
            until_ns: now_ns.saturating_add(EXTENT_WAIT_NS),
            asked: 0,
            said: None,
            steps: 0,
            one: request.kind == Kind::BlockStatus { one: true },
            map: Map::new(range, work.block),
        });
        match place {
            Some(place) => self.ask_extent(devices, place),
            None => self.answer_status(ticket, &[]),
        }
    }

    /// Asks the devices of the first byte that nothing is known of.
    fn ask_extent(&mut self, devices: &mut Devices, place: usize) {
        // The highest bit is of questions of NVMe/TCP servers.
        let serial = self.questions.serial.wrapping_add(1) % (1 << (31 - PLACE_BITS));
        let mut asked = core::mem::take(&mut self.questions.witnesses);
        let Some(question) = self.questions.get(place) else {
            return;
        };
        let work = &self.table[question.ticket];
        let orphan = self.clients[usize::from(work.client)].orphan;
        let range = Range {
            start: question.map.at,
            end: question.map.end,
        };
        asked.clear();
        if !orphan {
            devices.witnesses(work.pipeline.device(), range, &mut asked);
        }
        let id = serial << PLACE_BITS | place as u32;
        question.id = id;
        question.asked = asked.len();
        question.said = None;
        question.steps += 1;
        let length = (range.end - range.start) as u32;
        for &(witness, offset) in &asked {
            match witness {
                Witness::Device(device) => {
                    self.outputs.push_back(Output::Extent(ExtentRequest {
                        id,
                        device,
                        offset,
                        length,
                    }));
                }
                Witness::Paths(volume) => {
                    let now_ns = self.course.now_ns;
                    let host = devices.host_mut();
                    host.ask_extent(id, volume, (offset, length), now_ns);
                }
            }
        }
        let none = asked.is_empty();
        self.questions.serial = serial;
        self.questions.witnesses = asked;
        if none {
            self.end_status(place, true);
        }
    }

    /// A device or a controller has answered.
    pub fn extent_found(&mut self, devices: &mut Devices, id: u32, extent: DeviceExtent) {
        let Some(place) = self.questions.find(id) else {
            return; // it was not waited for so long
        };
        let Some(question) = self.questions.get(place) else {
            return;
        };
        question.asked -= 1;
        let said = question.said.map_or(extent, |said| both(said, extent));
        question.said = Some(said);
        if question.asked > 0 {
            return;
        }
        let is_full = !question.map.add(said);
        let enough = question.one || question.steps >= EXTENT_STEPS_MAX;
        if is_full || enough || question.map.is_over() {
            self.end_status(place, false);
        } else {
            self.ask_extent(devices, place);
        }
    }

    /// Answers a request with what is known. `is_data`: the rest is data, if there is room.
    fn end_status(&mut self, place: usize, is_data: bool) {
        let Some(mut question) = self.questions.all.get_mut(place).and_then(Option::take) else {
            return;
        };
        if is_data && !question.map.is_over() {
            question.map.add(DeviceExtent::UNKNOWN);
        }
        self.answer_status(question.ticket, question.map.extents());
    }

    /// Those that have waited long enough are answered.
    pub(super) fn expire_questions(&mut self, now_ns: u64) {
        if self.questions.due_ns > now_ns {
            return;
        }
        for place in 0..self.questions.all.len() {
            let late = self.questions.get(place).map(|it| it.until_ns <= now_ns);
            if late == Some(true) {
                self.end_status(place, true);
            }
        }
        let left = self.questions.all.iter().flatten();
        self.questions.due_ns = left.map(|it| it.until_ns).min().unwrap_or(u64::MAX);
    }

    /// No extents: all of it is data.
    fn answer_status(&mut self, ticket: u32, extents: &[Extent]) {
        let work = &mut self.table[ticket];
        work.pipeline.enter(Stage::Answered);
        let (client, token) = (work.client, work.request.token);
        let it = &mut self.clients[usize::from(client)];
        self.counters[it.export as usize].requests += 1;
        if let Some(session) = it.session() {
            session.complete_status(token, extents, self.course.now_ns);
        }
        self.touch(client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hole(length: u32) -> DeviceExtent {
        DeviceExtent {
            length,
            is_zero: true,
        }
    }

    fn data(length: u32) -> DeviceExtent {
        DeviceExtent {
            length,
            is_zero: false,
        }
    }

    fn map(start: u64, end: u64, said: &[DeviceExtent]) -> Vec<(u32, bool)> {
        let mut map = Map::new(Range { start, end }, 4096);
        for extent in said {
            assert!(!map.is_over() && map.add(*extent));
        }
        let extents = map.extents().iter();
        extents
            .map(|it| (it.length, it.flags == HOLE | ZERO))
            .collect()
    }

    #[test]
    fn neighbours_of_one_kind_are_one_extent() {
        let said = [
            hole(4096),
            hole(8192),
            data(4096),
            data(4096),
            hole(1 << 20),
        ];
        let want = [(12288, true), (8192, false), (45056, true)];
        assert_eq!(map(0, 65536, &said), want);
        assert_eq!(map(4096, 8192, &[DeviceExtent::UNKNOWN]), [(4096, false)]);
    }

    #[test]
    fn block_that_is_partly_data_is_data() {
        // Data from byte 5000 on, of a file system with smaller blocks: the second answer is of
        // byte 4096.
        let said = [hole(5000), hole(904), hole(8192)];
        let want = [(4096, true), (4096, false), (8192, true)];
        assert_eq!(map(0, 16384, &said), want);
        assert_eq!(
            map(0, 16384, &[data(1), hole(16384)]),
            [(4096, false), (12288, true)]
        );
        // A client that asked for no block sizes may ask of any bytes.
        assert_eq!(map(100, 300, &[hole(200)]), [(200, true)]);
        assert_eq!(
            map(100, 9000, &[hole(200), hole(4904)]),
            [(3996, false), (4904, true)]
        );
        assert_eq!(
            map(0, 4096, &[data(0)]),
            [(4096, false)],
            "a device that lies"
        );
    }

    #[test]
    fn hole_is_what_all_call_one() {
        assert_eq!(both(hole(8192), hole(4096)), hole(4096));
        assert_eq!(both(hole(4096), hole(8192)), hole(4096));
        assert_eq!(both(hole(8192), data(4096)), data(4096));
        assert_eq!(both(data(4096), hole(8192)), data(4096));
        assert_eq!(both(data(4096), data(8192)), data(8192));
        assert_eq!(both(data(8192), data(4096)), data(8192));
    }

    #[test]
    fn map_without_room_takes_no_more() {
        let mut map = Map::new(Range::new(0, 1 << 20), 4096);
        for at in 0..16 {
            assert!(map.add(if at % 2 == 0 { hole(4096) } else { data(4096) }));
        }
        assert!(!map.add(hole(4096)) && map.add(data(4096)));
        assert_eq!((map.at, map.extents().len()), (17 * 4096, 16));
    }
}
