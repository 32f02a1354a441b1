//! A new mirror "m0" over devices: what its legs hold, and an engine's configuration over them.
//! The example `mirror_cost` is compiled with it too.
use engine::host::{PathConfig, PathKind, Recovery, VolumeConfig};
use engine::limits::MIRROR_SCRATCH_BYTES;
use engine::mirror::{LegConfig, MirrorConfig, MirrorsConfig};
use engine::{LocalDevice, Span};
use mirror::bitmap::{Bitmap, PAGE_BYTES};
use mirror::events::{New, NewLeg};
use mirror::layout::{BITMAP_AT, COPIES_AT, Candidate, Place, plan};
use mirror::machine::Speed;
use mirror::superblock::Owner;
use mirror::{Id, Label, Name, Properties, Superblock};
use policy::{Knobs, Policy};

pub const LEG_BYTES: u64 = 8 << 20;
const SECOND: u64 = 1_000_000_000;

pub fn crc32c(bytes: &[u8]) -> u32 {
    nvme::crc32c(0, bytes)
}

/// The bytes of each leg; `None`: there can't be such a mirror.
pub fn legs(count: u8, in_sync: bool, properties: Properties) -> Option<Vec<Vec<u8>>> {
    let size = Candidate {
        bytes: LEG_BYTES,
        block_shift: 12,
    };
    let (geometry, data_offset) = plan(&vec![size; count.into()], None).ok()?;
    let place = Place {
        leg_bytes: LEG_BYTES,
        data_offset,
        bitmap_offset: BITMAP_AT,
    };
    let new = New {
        mirror: Id([1; 16]),
        lineage: 77,
        name: Name::new("m0").ok()?,
        properties,
        geometry,
        created_s: 0,
        heartbeat_interval_ms: 5000,
    };
    let leg = |slot: u8| NewLeg {
        id: leg_id(slot),
        label: Label::cut(&format!("disk:{slot}")),
        in_sync,
    };
    let legs: Vec<NewLeg> = (0..count).map(leg).collect();
    let first = Superblock::new(&new, &legs, place)?;
    let bitmap = Bitmap::new(geometry.regions());
    let leg = |slot| {
        let mut bytes = vec![0; LEG_BYTES as usize];
        let superblock = first.on(slot, place);
        for (copy, at) in (0..).zip(COPIES_AT) {
            let block = superblock.encode(copy, crc32c);
            bytes[at as usize..][..block.len()].copy_from_slice(&block);
        }
        for page in 0..bitmap.pages() {
            let at = BITMAP_AT as usize + page * PAGE_BYTES;
            let page = bitmap.encode(page, new.mirror, crc32c);
            bytes[at..][..PAGE_BYTES].copy_from_slice(&page);
        }
        bytes
    };
    Some((0..count).map(leg).collect())
}

/// The identifier of the leg that has a slot when its mirror is made.
pub fn leg_id(slot: u8) -> Id {
    Id([0x10 + slot; 16])
}

/// The volume of a leg: over the device of this number.
pub fn volume(number: u16) -> VolumeConfig {
    let path = PathConfig {
        uri: format!("disk:{number}"),
        kind: PathKind::Device {
            device: LocalDevice(number),
            bytes: LEG_BYTES,
            block_shift: 12,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        distance: 10,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    };
    VolumeConfig {
        name: format!("m0/{number}"),
        policy: Policy::QueueDepth,
        knobs: Knobs::default(),
        paths: vec![path],
        recovery: Recovery::default(),
    }
}

pub fn leg(number: u16) -> LegConfig {
    LegConfig {
        volume: number,
        name: format!("disk:{number}"),
        uris: vec![format!("disk:{number}")],
        distance: 10,
        throughput: 1,
    }
}

/// The mirror over the first `count` volumes.
pub fn mirror(count: u16, lineage: u64) -> MirrorConfig {
    MirrorConfig {
        name: "m0".into(),
        legs: (0..count).map(leg).collect(),
        known: None,
        knobs: Knobs::default(),
        wishes: Default::default(),
        assemble_wait_ns: 10 * SECOND,
        degraded: Default::default(),
        leg_quiesce_ns: 30 * SECOND,
        hole_bytes: engine::limits::MIRROR_HOLE_BYTES,
        owner: Owner {
            run: Id(u128::from(lineage).to_le_bytes()),
            host: Id([0x66; 16]),
            label: Label::cut("a test"),
            since_s: 1,
            heartbeat_s: 1,
            bound_ms: 0,
        },
        shared: false,
        lineage,
        speed: Speed::default(),
    }
}

/// One mirror, whose own memory begins at this byte of the arena.
pub fn mirrors(mirror: MirrorConfig, at: u64) -> MirrorsConfig {
    MirrorsConfig {
        mirrors: vec![Some(mirror)],
        elsewhere: Vec::new(),
        scratch: Span {
            at,
            len: MIRROR_SCRATCH_BYTES,
        },
        crc32c,
    }
}
