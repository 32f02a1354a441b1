//! Initial legs of a mirror, and the engine of its host.
use super::super::disk;
use super::super::rig::SPARE_PATHS;
use super::Shape;
use crate::chaos::prelude::*;
use engine::export::Offer;
use engine::host::{Multipath, PathConfig, PathKind, Recovery, VolumeConfig, WriteFailover};
use engine::limits::{EXPORT_ARENA_MIN, MIRROR_SCRATCH_BYTES};
use engine::mirror::{Devices, LegConfig, MirrorConfig, MirrorsConfig};
use mirror::bitmap::{Bitmap, PAGE_BYTES};
use mirror::events::{New, NewLeg};
use mirror::layout::{BITMAP_AT, COPIES_AT, Candidate, Place, plan};
use mirror::machine::Speed;
use mirror::superblock::Owner;
use mirror::{Id, Label, Name, Properties, Superblock};

/// Small, so that there are holes among what applications write.
const HOLE_BYTES: u32 = 4096;

/// For how long a leg may execute what it was given, from the end of its connection on (T9).
const BOUND_NS: u64 = 2 * KATO_MS as u64 * 1_000_000 + QUIESCE_NS;
/// The number of the mirror that applications use.
const FIRST: u8 = 1;

/// The identifier of the first mirror's leg of a slot.
pub(super) fn leg_id(slot: u8) -> Id {
    id_of(FIRST, slot)
}

fn id_of(number: u8, slot: u8) -> Id {
    Id([0x10 * number + slot; 16])
}

/// Small, so that what applications use has several of them.
const REGION_SHIFT: u8 = 16;

/// Name and number of the mirror whose legs may be exchanged with these.
const OTHER: (&str, u8) = ("m1", 2);
/// Tag of its blocks, which no write of a world has.
const TAG: u64 = 0x00ff_0000_0000_0000;

/// A leg of the other mirror has something in each block.
fn fill(leg: &mut Disk) {
    let end = leg.contents(false).len();
    for at in (leg.data_at..end).step_by(BLOCK) {
        let mut block = [0; BLOCK];
        disk::fill(&mut block, TAG + at as u64);
        leg.put(at as u64, &block);
    }
}

/// The path to a leg that is a device of its host.
fn device(leg: usize) -> PathConfig {
    PathConfig {
        uri: format!("disk:leg{leg}"),
        kind: PathKind::Device {
            device: LocalDevice(leg as u16),
            bytes: LEG_BYTES,
            block_shift: BLOCK.ilog2() as u8,
            identity: None,
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: HOLE_BYTES,
        },
        distance: 10,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    }
}

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    nvme::crc32c(0, bytes)
}

impl Shape {
    /// Legs of a new mirror, full of zeroes; behind them those of another one, where legs may be
    /// exchanged.
    ///
    /// # Panics
    /// If there can't be such a mirror.
    pub(in crate::chaos) fn disks(&self) -> Vec<Disk> {
        let made = self.try_disks(("m0", FIRST));
        assert!(made.is_some(), "no mirror can be made so: {self:?}");
        let other = self.exchanged.then(|| self.try_disks(OTHER));
        let other = other.flatten().into_iter().flatten().map(|mut disk| {
            fill(&mut disk);
            disk
        });
        made.into_iter().flatten().chain(other).collect()
    }

    fn try_disks(&self, (name, number): (&str, u8)) -> Option<Vec<Disk>> {
        let size = Candidate {
            bytes: LEG_BYTES,
            block_shift: BLOCK.ilog2() as u8,
        };
        let sizes = vec![size; self.legs];
        let (geometry, data_offset) = plan(&sizes, Some(REGION_SHIFT)).ok()?;
        let place = Place {
            leg_bytes: LEG_BYTES,
            data_offset,
            bitmap_offset: BITMAP_AT,
        };
        let new = New {
            mirror: Id([number; 16]),
            lineage: 76 + u64::from(number),
            name: Name::new(name).ok()?,
            properties: Properties::default(),
            geometry,
            created_s: 0,
            heartbeat_interval_ms: self.beat_ms,
        };
        let leg = |slot: u8| NewLeg {
            id: id_of(number, slot),
            label: Label::cut(&format!("leg{slot}")),
            in_sync: true,
        };
        let legs: Vec<NewLeg> = (0..self.legs as u8).map(leg).collect();
        let first = Superblock::new(&new, &legs, place)?;
        let bitmap = Bitmap::new(geometry.regions());
        let disk = |slot: u8| {
            let mut disk = Disk::new(LEG_BYTES / BLOCK as u64);
            disk.data_at = data_offset as usize;
            let superblock = first.on(slot, place);
            for (copy, at) in (0..).zip(COPIES_AT) {
                disk.put(at, &superblock.encode(copy, crc32c));
            }
            for page in 0..bitmap.pages() {
                let at = BITMAP_AT + (page * PAGE_BYTES) as u64;
                disk.put(at, &bitmap.encode(page, new.mirror, crc32c));
            }
            disk
        };
        Some((0..self.legs as u8).map(disk).collect())
    }
}

impl Rig {
    /// One core of a process of a host whose volume is a mirror.
    pub(in crate::chaos) fn mirror_engine(&self, number: usize, core: u16, shape: Shape) -> Core {
        let layout = &self.layout;
        let legs = 0..shape.legs;
        let volumes = legs
            .map(|leg| self.leg_volume(number, leg, shape))
            .collect();
        let host = &self.hosts[number];
        let identity = make::identity(number + 16 * host.heirs);
        let config = make::host_config(layout, core, identity, volumes);
        let room = layout.targets * usize::from(layout.ports) + SPARE_PATHS;
        let engine = Multipath::with_room(config, room);
        let here = core == shape.core;
        let mirrors = MirrorsConfig {
            mirrors: vec![here.then(|| self.mirror_config(number, shape))],
            elsewhere: (0..shape.legs as u16).filter(|_| !here).collect(),
            scratch: Span {
                at: EXPORT_ARENA_MIN + u64::from(layout.more.scratch_bytes),
                len: MIRROR_SCRATCH_BYTES,
            },
            crc32c,
        };
        let engine = Devices::new(engine, mirrors);
        let mut engine = Core::new(engine, shape.legs + 1, make::EXPORT);
        if here {
            let offer = Offer {
                volume: MIRRORS_FROM,
                name: "v0".into(),
                read_only: false,
            };
            engine.handle_control(ExportControl::Offer(0, offer), self.world.now_ns);
            let scratch = u64::from(layout.more.scratch_bytes) + u64::from(MIRROR_SCRATCH_BYTES);
            front::add_server(&mut engine, layout, core, EXPORT_ARENA_MIN + scratch);
        }
        engine
    }

    fn leg_volume(&self, number: usize, leg: usize, shape: Shape) -> VolumeConfig {
        let Layout { policy, .. } = self.layout;
        let addresses = self.addresses_of(leg);
        let paths = match shape.is_local(leg) {
            true => vec![device(leg)],
            false => addresses
                .map(|address| make::path_to(address as u32, leg))
                .collect(),
        };
        VolumeConfig {
            name: format!("v0/{leg}"),
            policy,
            knobs: Knobs::default(),
            paths,
            recovery: Recovery {
                unclean_stop_ns: self.hosts[number].mark_ns,
                unreported_loss: self.hosts[number].losses >> leg & 1 != 0,
                marks: Some(0),
                quiesce_ns: QUIESCE_NS,
                fast_io_fail_ns: shape.patience_ns,
                write_failover: match shape.unfenced {
                    true => WriteFailover::Immediate,
                    false => WriteFailover::Fenced,
                },
                ..Recovery::default()
            },
        }
    }

    fn mirror_config(&self, number: usize, shape: Shape) -> MirrorConfig {
        let host = &self.hosts[number];
        let life = host.lives.all.len() as u64 + 1;
        // The leg that has a name now had another one before, where they were exchanged.
        let leg = |place: usize| LegConfig {
            volume: ((place + host.turned) % shape.legs) as u16,
            name: format!("leg{place}"),
            uris: [format!("leg{place}")].into(),
            distance: 10,
            throughput: 1,
        };
        let mut run = [0x77; 16];
        run[..8].copy_from_slice(&life.to_le_bytes());
        MirrorConfig {
            name: "m0".into(),
            legs: (0..shape.legs).map(leg).collect(),
            knobs: Knobs::default(),
            wishes: Default::default(),
            known: None,
            assemble_wait_ns: shape.assemble_wait_ns,
            hole_bytes: HOLE_BYTES,
            degraded: Default::default(),
            leg_quiesce_ns: match shape.unfenced {
                true => BOUND_NS,
                false => QUIESCE_NS,
            },
            owner: Owner {
                run: Id(run),
                host: Id([0x60 + host.heirs as u8; 16]),
                label: Label::cut(&format!("host {number}.{}", host.heirs)),
                since_s: 1,
                heartbeat_s: 1,
                bound_ms: 0,
            },
            shared: shape.shared,
            lineage: 4711 + life,
            speed: Speed {
                floor: Speed::default().floor.min(shape.ceiling),
                ceiling: shape.ceiling,
            },
        }
    }
}
