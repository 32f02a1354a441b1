//! Which bytes of a multipath volume are a hole, as the controller of one of its paths lists its
//! allocated blocks (Get LBA Status).
//!
//! # Contract
//! A question is answered once, by [`HostEvent::Extent`]: a hole only where the controller said so
//! and blocks that are not allocated read as zeroes (DLFEAT). Nothing is known where no usable path
//! can be asked, after an error, and when the path is lost meanwhile; an answer may also never
//! come. Questions hold no memory of I/O, no slot of a queue, and delay nothing.
//!
//! Core 0 has the admin connections; the other cores ask it to.
use super::Multipath;
use super::connections::Role;
use super::outbox::Outbox;
use super::path::Path;
use super::types::{HostEvent, PathEvent};
use super::volumes::Volume;
use crate::machine::{DeviceExtent, LocalDevice};
use policy::PathIndex;

/// Source that knows which bytes of a volume are holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Witness {
    /// The device that the volume is.
    Device(LocalDevice),
    /// The controllers of its paths.
    Paths(u16),
}

/// A question: the core that waits for the answer, bytes of the first block that it is not about,
/// and its name there.
#[derive(Clone, Copy)]
struct Token {
    core: u16,
    /// Less than a block, which has 64 KiB at most.
    lead: u16,
    id: u32,
}

impl Token {
    fn emit(self) -> u64 {
        u64::from(self.core) << 48 | u64::from(self.lead) << 32 | u64::from(self.id)
    }

    fn parse(token: u64) -> Self {
        Self {
            core: (token >> 48) as u16,
            lead: (token >> 32) as u16,
            id: token as u32,
        }
    }
}

impl Path {
    /// Core 0: asks its controller, for whichever core.
    pub(super) fn ask_controller(
        &mut self,
        token: u64,
        (slba, blocks): (u64, u64),
        out: &mut Outbox,
        now_ns: u64,
    ) {
        let open = self.is_live() && self.session.is_open(Role::Admin);
        let about = (self.known.target.nsid, slba, blocks);
        let admin = self.session.admin.as_mut().filter(|_| open);
        if admin.is_some_and(|admin| admin.ask_allocated(token, about, now_ns)) {
            self.questions.push(token);
            return out.touch(&mut self.session, Role::Admin);
        }
        self.answer_extent(token, None, out);
    }

    /// Core 0: its controller has answered a question, or did not.
    pub(super) fn allocation_answered(
        &mut self,
        token: u64,
        found: Option<(u32, bool)>,
        out: &mut Outbox,
    ) {
        let place = self.questions.iter().position(|&it| it == token);
        // Else it was answered when the path was lost.
        if let Some(place) = place {
            self.questions.swap_remove(place);
            self.answer_extent(token, found, out);
        }
    }

    /// Core 0: it is lost, and with it the answers of its controller.
    pub(super) fn drop_questions(&mut self, out: &mut Outbox) {
        while let Some(token) = self.questions.pop() {
            self.answer_extent(token, None, out);
        }
    }

    /// Core 0: passes an answer on.
    fn answer_extent(&self, token: u64, found: Option<(u32, bool)>, out: &mut Outbox) {
        if Token::parse(token).core == out.core() {
            return self.extent_answered(token, found, out);
        }
        out.publish(self.news(PathEvent::Extent { token, found }));
    }

    /// The answer to a question, perhaps of this core: blocks, and whether they are allocated.
    pub(super) fn extent_answered(&self, token: u64, found: Option<(u32, bool)>, out: &mut Outbox) {
        let Token { core, lead, id } = Token::parse(token);
        if core != out.core() {
            return; // another core has asked
        }
        let shift = self.known.target.block_shift;
        let extent = found.map_or(DeviceExtent::UNKNOWN, |(blocks, is_allocated)| {
            let bytes = (u64::from(blocks) << shift).saturating_sub(lead.into());
            DeviceExtent {
                length: bytes.min(u32::MAX.into()) as u32,
                is_zero: !is_allocated && bytes > 0,
            }
        });
        out.report(HostEvent::Extent(id, extent));
    }
}

impl Volume {
    /// A usable path whose controller lists allocated blocks, the others reading as zeroes.
    ///
    fn lister(&self) -> Option<PathIndex> {
        let lists = |path: &&Path| {
            let facts = path.known.facts.as_deref().filter(|_| path.is_live());
            facts.is_some_and(|it| {
                it.controller.lists_allocated && it.namespace.deallocate_reads_zero
            })
        };
        let all = self.paths.iter().filter(lists);
        let among = all.fold(0_u64, |bits, path| bits | 1 << path.index.0);
        let usable = self.head.usable_among(among);
        (usable != 0).then(|| PathIndex(usable.trailing_zeros() as u8))
    }
}

impl Multipath {
    /// Source that can be asked for holes of a volume; `None`: none.
    pub(crate) fn witness(&self, volume: u16) -> Option<Witness> {
        let it = &self.volumes[usize::from(volume)];
        let device = it.sole_device().map(Witness::Device);
        device.or_else(|| it.lister().map(|_| Witness::Paths(volume)))
    }

    /// Asks how far the bytes of a volume from `offset` on are of one kind. Answered by
    /// [`HostEvent::Extent`] with this `id`.
    pub(crate) fn ask_extent(
        &mut self,
        id: u32,
        volume: u16,
        (offset, length): (u64, u32),
        now_ns: u64,
    ) {
        let it = &mut self.volumes[usize::from(volume)];
        let Some(at) = it.lister() else {
            let unknown = HostEvent::Extent(id, DeviceExtent::UNKNOWN);
            return self.on.out.report(unknown);
        };
        let path = &mut it.paths[at];
        let shift = path.known.target.block_shift;
        let slba = offset >> shift;
        let end = (offset + u64::from(length)).next_multiple_of(1 << shift) >> shift;
        let token = Token {
            core: self.on.settings.core,
            lead: (offset - (slba << shift)) as u16,
            id,
        };
        let (token, blocks) = (token.emit(), end - slba);
        if self.on.settings.core == 0 {
            return path.ask_controller(token, (slba, blocks), &mut self.on.out, now_ns);
        }
        let what = PathEvent::AskExtent {
            token,
            slba,
            blocks,
        };
        self.on.out.tell_core_0(path.news(what));
    }
}
