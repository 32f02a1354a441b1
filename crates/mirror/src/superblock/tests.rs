//! A written superblock is read again, a broken one is refused, and the document says where it
//! lies.
extern crate std;
use super::super::bad::{self, BadKind};
use super::*;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use crc_fast::crc32_iscsi;
use proptest::prelude::*;
use std::format;

/// Numbers that mean nothing.
pub struct Draw(pub u64);

impl Draw {
    /// One below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % end
    }

    fn history(&mut self) -> History {
        let mut lineages = Vec::new();
        for nth in 0..=self.below(16) {
            lineages.push(Lineage {
                id: 1 + self.below(1 << 30),
                first_event: 1 + nth * 3 + self.below(3),
            });
        }
        History::from_slice(&lineages).unwrap()
    }

    fn leg(&mut self, slot: u8, bytes: u64, event: u64) -> LegEntry {
        let lack = Lack {
            position: self.below(bytes + 1),
            seen_event: self.below(event + 1),
            seen_lineage: self.below(1 << 30),
        };
        LegEntry {
            id: Id([slot + 1; 16]),
            state: match self.below(4) {
                1 => EntryState::Stale(lack),
                2 => EntryState::Rebuilding(lack),
                _ => EntryState::InSync,
            },
            label: Label::cut(&format!("file:/srv/leg {slot} é")),
        }
    }

    fn bad(&mut self, legs: &[Option<LegEntry>; LEGS_MAX], blocks: u64) -> BadBlocks {
        let mut bad = BadBlocks::default();
        for _ in 0..self.below(60) {
            let (slot, first) = (self.below(16) as u8, self.below(blocks - 8));
            let kind = [BadKind::Unwritten, BadKind::LastCopy][self.below(2) as usize];
            let end = first + 1 + self.below(8);
            if legs[usize::from(slot)].is_some() {
                bad = bad.with(slot, kind, first, end).unwrap_or(bad);
            }
        }
        bad
    }

    fn owner(&mut self) -> Owner {
        Owner {
            run: Id([7; 16]),
            host: Id([8; 16]),
            label: Label::cut("host-1, process 77"),
            since_s: self.below(1 << 30),
            heartbeat_s: self.below(1 << 30),
            bound_ms: 20_000,
        }
    }
}

/// A sound superblock.
pub fn superblock(seed: u64) -> Superblock {
    let mut draw = Draw(seed);
    let geometry = Geometry {
        bytes: (256 + draw.below(1 << 20)) << 12,
        block_shift: 9 + draw.below(4) as u8,
        region_shift: 16 + draw.below(10) as u8,
    };
    let event = 60 + draw.below(1 << 30);
    let slot = draw.below(16) as u8;
    let mut legs = [None; LEGS_MAX];
    for (at, leg) in (0..).zip(&mut legs) {
        let entry = draw.leg(at, geometry.bytes, event);
        let there = at == slot || draw.below(2) == 0;
        *leg = there.then_some(entry);
    }
    if let Some(leg) = &mut legs[usize::from(slot)] {
        leg.state = EntryState::InSync;
    }
    let mut properties = Properties::default();
    properties.set("policy", "round-robin:262144").unwrap();
    Superblock {
        features: Features {
            compatible: 0,
            read_only: draw.below(3),
            incompatible: 0,
        },
        sequence: draw.below(1 << 30),
        event,
        history: draw.history(),
        clean: draw.below(2) == 0,
        mirror: Id([9; 16]),
        slot,
        geometry,
        place: Place {
            leg_bytes: (64 << 20) + geometry.bytes + draw.below(1 << 20),
            data_offset: 64 << 20,
            bitmap_offset: 128 << 10,
        },
        created_s: draw.below(1 << 30),
        name: Name::new("v0").unwrap(),
        properties,
        owner: (draw.below(2) == 0).then(|| draw.owner()),
        previous_run: Id([9; 16]),
        heartbeat_interval_ms: draw.below(1 << 20) as u32,
        legs,
        confirmed: draw.below(1 << 30),
        mark: draw.below(1 << 30),
        cut_at: draw.below(3) / 2 * draw.below(geometry.bytes),
        bad: match draw.below(2) {
            0 => BadBlocks::default(),
            _ => draw.bad(&legs, geometry.bytes >> geometry.block_shift),
        },
    }
}

/// The block again with a checksum that fits.
fn sealed(mut block: [u8; SUPERBLOCK_BYTES]) -> [u8; SUPERBLOCK_BYTES] {
    let sum = checksum(&block, CHECKSUM, crc32_iscsi);
    CHECKSUM.set(&mut block, sum.into());
    block
}

proptest! {
    #[test]
    fn what_was_written_is_read_again(seed: u64, copy in 0_u8..2) {
        let superblock = superblock(seed);
        let block = superblock.encode(copy, crc32_iscsi);
        prop_assert_eq!(Superblock::parse(&block, copy, crc32_iscsi), Ok(superblock));
        let other = Superblock::parse(&block, 1 - copy, crc32_iscsi);
        prop_assert_eq!(other, Err(ParseError::Misplaced(copy)));
    }

    /// A superblock with the right checksum still states nothing that can't be, and never ends us.
    #[test]
    fn hostile_blocks_are_refused_or_mean_something(
        seed: u64,
        changes in prop::collection::vec((0_usize..3984, any::<u8>()), 1..6),
        rubbish in any::<bool>(),
    ) {
        let mut block = superblock(seed).encode(0, crc32_iscsi);
        for &(at, byte) in &changes {
            block[at] = byte;
        }
        if rubbish {
            block[200..3000].iter_mut().zip(1_u32..).for_each(|(byte, at)| {
                *byte = (seed.rotate_left(at) ^ u64::from(at)) as u8;
            });
        }
        if let Ok(read) = Superblock::parse(&sealed(block), 0, crc32_iscsi) {
            prop_assert!(read.geometry.is_sound() && read.place.holds(&read.geometry));
            prop_assert!(read.in_sync().next().is_some());
            let unknown = Features { compatible: 0, ..read.features };
            let kept = Superblock { features: unknown, ..read };
            let again = Superblock::parse(&read.encode(1, crc32_iscsi), 1, crc32_iscsi);
            prop_assert_eq!(again, Ok(kept));
            let _ = (read.begun(5), read.stopped(), read.without(read.slot, read.seen()));
        }
    }

    #[test]
    fn any_bytes_of_any_length_are_an_answer(
        bytes in prop::collection::vec(any::<u8>(), 0..5000), magic: bool,
    ) {
        let mut bytes = bytes;
        if magic {
            bytes.splice(0..bytes.len().min(8), MAGIC);
        }
        prop_assert!(Superblock::parse(&bytes, 0, crc32_iscsi).is_err());
    }
}

#[test]
fn every_byte_that_changes_is_seen() {
    let block = superblock(3).encode(0, crc32_iscsi);
    for at in 0..SUPERBLOCK_BYTES {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = block;
            bad[at] ^= flip;
            assert!(
                Superblock::parse(&bad, 0, crc32_iscsi).is_err(),
                "byte {at} ^ {flip:#x}"
            );
        }
    }
    for length in 8..SUPERBLOCK_BYTES {
        let short = Superblock::parse(&block[..length], 0, crc32_iscsi);
        assert_eq!(short, Err(ParseError::Length(length)));
    }
    assert_eq!(
        Superblock::parse(&block[..7], 0, crc32_iscsi),
        Err(ParseError::Missing)
    );
}

#[test]
fn what_a_newer_braid_wrote_is_known_as_such_and_not_taken_apart() {
    let mut block = superblock(3).encode(0, crc32_iscsi);
    INCOMPATIBLE.set(&mut block, 6);
    // Nothing behind is looked at.
    EVENT.set(&mut block, u64::MAX);
    let error = Superblock::parse(&sealed(block), 0, crc32_iscsi).unwrap_err();
    assert_eq!(error, ParseError::Incompatible(4), "it knows the other one");
    assert!(error.is_newer() && error.to_string().contains("newer braid"));
    VERSION_AT.set(&mut block, 2);
    let error = Superblock::parse(&sealed(block), 0, crc32_iscsi).unwrap_err();
    assert_eq!(error, ParseError::Version(2));
    assert!(error.is_newer() && error.to_string().contains("format 2"));
    assert!(
        !Superblock::parse(&block, 0, crc32_iscsi)
            .unwrap_err()
            .is_newer(),
        "nobody wrote that"
    );
    let mut block = superblock(3).encode(0, crc32_iscsi);
    COMPATIBLE.set(&mut block, u64::MAX);
    assert!(Superblock::parse(&sealed(block), 0, crc32_iscsi).is_ok());
}

#[test]
fn numbers_that_cannot_be_are_refused_by_the_name_of_their_field() {
    let u64_max = u64::MAX;
    for (field, number, name) in [
        (SLOT, 200, "slot"),
        (CLEAN, 2, "clean"),
        (BLOCK_SHIFT, 13, "bytes"),
        (REGION_SHIFT, 255, "bytes"),
        (LINEAGES, 0, "lineages"),
        (LINEAGES, 17, "lineages"),
        (EVENT, 1, "lineages"),
        (EVENT, u64_max, "event"),
        (SEQUENCE, u64_max, "sequence"),
        (BYTES, u64_max - 4095, "bytes"),
        (BYTES, 1 << 62, "bytes"),
        (BYTES, 0, "bytes"),
        (LEG_BYTES, 0, "data offset"),
        (DATA_OFFSET, u64_max - 4095, "data offset"),
        (DATA_OFFSET, 1 << 17, "data offset"),
        (BITMAP_OFFSET, u64_max - 4095, "data offset"),
        (BITMAP_OFFSET, 4096, "data offset"),
        (field_of_leg(ENTRY_STATE), 4, "legs"),
        (field_of_bad(bad::ENTRY_KIND), 3, "bad blocks"),
        (field_of_bad(bad::ENTRY_BLOCKS), 0, "bad blocks"),
        (field_of_bad(bad::ENTRY_START), u64_max, "bad blocks"),
        (field_of_bad(bad::ENTRY_SLOT), 16, "bad blocks"),
    ] {
        let mut superblock = superblock(17);
        let slot = superblock.slot;
        superblock.bad = BadBlocks::default()
            .with(slot, BadKind::Unwritten, 3, 5)
            .unwrap();
        let mut block = superblock.encode(0, crc32_iscsi);
        field.set(&mut block, number);
        let error = Superblock::parse(&sealed(block), 0, crc32_iscsi);
        assert_eq!(
            error,
            Err(ParseError::Field(name)),
            "{number:#x} at {}",
            field.at
        );
    }
}

fn field_of_leg(entry: Field) -> Field {
    field(LEGS.at + entry.at, entry.bytes)
}

#[test]
fn t50_a_cut_and_its_feature_go_together() {
    let whole = Superblock {
        cut_at: 0,
        bad: BadBlocks::default(),
        ..superblock(3)
    };
    let cut = Superblock {
        cut_at: 4096,
        ..whole
    };
    let bits = |of: &Superblock| INCOMPATIBLE.number(&of.encode(0, crc32_iscsi));
    assert_eq!((bits(&whole), bits(&cut)), (0, CUT));
    for (of, at, bits) in [
        (&whole, 4096, 0),
        (&whole, 0, CUT),
        (&cut, 0, CUT),
        (&cut, 4096, 0),
        (&cut, cut.geometry.bytes, CUT),
        (&cut, u64::MAX, CUT),
    ] {
        let mut block = of.encode(0, crc32_iscsi);
        CUT_AT.set(&mut block, at);
        INCOMPATIBLE.set(&mut block, bits);
        let error = Superblock::parse(&sealed(block), 0, crc32_iscsi);
        assert_eq!(error, Err(ParseError::Field("cut at")), "{at} {bits}");
    }
}

fn field_of_bad(entry: Field) -> Field {
    field(BAD.at + entry.at, entry.bytes)
}

#[test]
fn bad_blocks_have_their_feature_and_no_leg_that_is_none() {
    let whole = Superblock {
        cut_at: 0,
        ..superblock(3)
    };
    let slot = whole.slot;
    let bad = BadBlocks::default();
    let some = bad.with(slot, BadKind::Unwritten, 7, 8).unwrap();
    for (record, bits) in [(bad, 0), (some, BAD_BLOCKS)] {
        let written = Superblock {
            bad: record,
            ..whole
        };
        let mut block = written.encode(0, crc32_iscsi);
        assert_eq!(INCOMPATIBLE.number(&block), bits);
        assert_eq!(Superblock::parse(&block, 0, crc32_iscsi), Ok(written));
        // The bit and the record belong together.
        INCOMPATIBLE.set(&mut block, bits ^ BAD_BLOCKS);
        let read = Superblock::parse(&sealed(block), 0, crc32_iscsi);
        match bits {
            0 => assert_eq!(read, Err(ParseError::Field("bad blocks"))),
            _ => assert_eq!(read.map(|it| it.bad), Ok(bad)),
        }
    }
    let mut gone = Superblock { bad: some, ..whole };
    let other = (0..16).find(|it| whole.legs[usize::from(*it)].is_none());
    gone.bad = some.with(other.unwrap(), BadKind::LastCopy, 1, 2).unwrap();
    let read = Superblock::parse(&gone.encode(0, crc32_iscsi), 0, crc32_iscsi);
    assert_eq!(read, Err(ParseError::Field("bad blocks")));
}

/// Rows `| at | bytes | name | …` of the document below a heading.
fn rows(heading: &str) -> Vec<(usize, usize, String)> {
    let document = include_str!("../format.md");
    let part = document
        .split("\n## ")
        .find(|part| part.starts_with(heading))
        .unwrap();
    let rows = part.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (at, bytes) = (cells.next()?.parse().ok()?, cells.next()?.parse().ok()?);
        Some((at, bytes, cells.next()?.to_string()))
    });
    rows.collect()
}

/// The document's rows are the code's fields, in order, and what lies between them is reserved.
pub fn documented(heading: &str, fields: &[(Field, &str)], end: usize) {
    let mut expected = Vec::new();
    let mut at = 0;
    for (field, name) in fields {
        if field.at > at {
            expected.push((at, field.at - at, "reserved".to_string()));
        }
        expected.push((field.at, field.bytes, name.to_string()));
        at = field.at + field.bytes;
    }
    if at < end {
        expected.push((at, end - at, "reserved".to_string()));
    }
    assert_eq!(rows(heading), expected, "format.md, {heading}");
}

#[test]
fn the_document_says_where_everything_lies() {
    let fields = [
        (MAGIC_AT, "magic"),
        (CHECKSUM, "checksum"),
        (VERSION_AT, "version"),
        (COMPATIBLE, "compatible"),
        (READ_ONLY, "read-only"),
        (INCOMPATIBLE, "incompatible"),
        (SEQUENCE, "sequence"),
        (MIRROR, "mirror"),
        (LEG, "leg"),
        (SLOT, "slot"),
        (COPY, "copy"),
        (CLEAN, "clean"),
        (BLOCK_SHIFT, "block shift"),
        (REGION_SHIFT, "region shift"),
        (LINEAGES, "lineages"),
        (EVENT, "event"),
        (BYTES, "bytes"),
        (LEG_BYTES, "leg bytes"),
        (DATA_OFFSET, "data offset"),
        (BITMAP_OFFSET, "bitmap offset"),
        (CREATED, "created"),
        (BEAT_INTERVAL, "beat interval"),
        (NAME, "name"),
        (PROPERTIES, "properties"),
        (OWNER_RUN, "owner's run"),
        (OWNER_HOST, "owner's host"),
        (OWNER_SINCE, "owned since"),
        (OWNER_BEAT, "last beat"),
        (OWNER_LABEL, "owner's label"),
        (OWNER_BOUND, "owner's bound"),
        (PREVIOUS_RUN, "previous run"),
        (CUT_AT, "cut at"),
        (HISTORY, "history"),
        (LEGS, "legs"),
        (BAD, "bad blocks"),
        (CONFIRMED, "confirmed"),
        (MARK, "mark"),
    ];
    documented("Superblock", &fields, SUPERBLOCK_BYTES);
    let fields = [(LINEAGE_ID, "lineage"), (LINEAGE_FIRST, "first event")];
    documented("An entry of the history", &fields, LINEAGE_ENTRY_BYTES);
    let fields = [
        (ENTRY_ID, "leg"),
        (ENTRY_STATE, "state"),
        (ENTRY_SEEN_EVENT, "seen event"),
        (ENTRY_SEEN_LINEAGE, "seen lineage"),
        (ENTRY_POSITION, "position"),
        (ENTRY_LABEL, "label"),
    ];
    documented("An entry of the legs", &fields, LEG_ENTRY_BYTES);
    let fields = [
        (bad::ENTRY_START, "first block"),
        (bad::ENTRY_BLOCKS, "blocks"),
        (bad::ENTRY_SLOT, "slot"),
        (bad::ENTRY_KIND, "kind"),
    ];
    documented("An entry of the bad blocks", &fields, BAD_ENTRY_BYTES);
}
