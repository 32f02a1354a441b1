//! Parameters of a node, and the next step for it: decided from what the driver says, without it.
use super::record::{DataId, NodeRecord};
use crate::units::format_bytes;
use engine::host::VolumeInfo;
use std::collections::BTreeSet;
use sys::Errno;
use sys::ublk::{Feature, Info, Params, Phase, node_path};

/// A number is chosen from the first so many.
const NUMBERS_TRIED: u32 = 1024;

/// Requests of each queue. The last tag is never used, so that the driver always has one in which
/// it sees the death of the engine at once ([`requests_max`]).
pub const DEPTH: u16 = 128;
/// Requests that may be in flight in a queue of that depth.
pub const fn requests_max(depth: u16) -> u16 {
    depth - 1
}
/// Most bytes of a request.
const REQUEST_BYTES: u32 = 512 << 10;
/// Most bytes of a discard and of a write of zeroes: the driver waits for one as for any other.
const DISCARD_BYTES: u64 = 1 << 30;
const ZEROES_BYTES: u64 = 64 << 20;
/// Features without which a node would not outlive the engine, or cost more.
const NEEDED: [(Feature, &str); 4] = [
    (Feature::UserRecovery, "USER_RECOVERY"),
    (Feature::RecoveryReissue, "USER_RECOVERY_REISSUE"),
    (Feature::IoctlEncode, "CMD_IOCTL_ENCODE"),
    (Feature::UserCopy, "USER_COPY"),
];

/// Flags of a node.
fn flags() -> u64 {
    NEEDED.iter().fold(0, |all, (it, _)| all | *it as u64)
}

/// Whether the driver has what a node needs: of its features, or of the flags of a device that it
/// has made, which it cuts without an error.
///
/// # Errors
/// What it lacks.
pub fn check_flags(has: u64) -> Result<(), String> {
    let lacks = NEEDED.iter().filter(|(it, _)| !it.is_in(has));
    let lacks: Vec<_> = lacks.map(|(_, name)| *name).collect();
    if lacks.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this kernel's ublk driver lacks {}: Linux 6.6 or newer has it",
        lacks.join(", ")
    ))
}

/// A device that is to be made. `mark`: see [`NodeRecord`].
pub fn new_info(number: u32, queues: u16, mark: u64) -> Info {
    Info {
        queues,
        depth: DEPTH,
        request_bytes: REQUEST_BYTES,
        id: number,
        flags: flags(),
        server_flags: mark,
        ..Info::default()
    }
}

/// Parameters of a node of a volume.
///
/// # Errors
/// The volume's blocks are none that a block device has.
pub fn params(info: &VolumeInfo, read_only: bool) -> Result<Params, String> {
    let block = 1_u64 << info.block_shift;
    if !(9..=12).contains(&info.block_shift) {
        let shown = format_bytes(block);
        return Err(format!("blocks of {shown}: a node has 512 B to 4 KiB"));
    }
    Ok(Params {
        is_read_only: read_only || info.read_only,
        is_rotational: false,
        // Some device below may have one: a flush that was not needed costs little.
        has_volatile_cache: true,
        block_shift: info.block_shift,
        io_shift: 12,
        request_sectors: REQUEST_BYTES / 512,
        // A file may end within a block.
        sectors: info.bytes / block * (block / 512),
        discard_bytes: Some(block as u32),
        discard_sectors: (DISCARD_BYTES / 512) as u32,
        zeroes_sectors: (ZEROES_BYTES / 512) as u32,
    })
}

/// A device, as the driver has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub info: Info,
    /// Of one that waits: the driver keeps a question about one that is being stopped waiting.
    pub params: Option<Params>,
    /// The process that served it last is another one, and runs.
    pub is_alive: bool,
    /// This engine serves it.
    pub is_served: bool,
}

/// A volume that is to have a node.
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    pub volume: &'a str,
    /// `None`: any that is free.
    pub number: Option<u32>,
    /// Numbers that the configuration gives to other volumes.
    pub reserved: &'a BTreeSet<u32>,
    pub data: &'a DataId,
    pub params: &'a Params,
}

/// The next step for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the device of this number.
    Add(u32),
    /// It was made and never started, or was stopped: remove it, and look again.
    Delete(u32),
    /// Take it over from an engine that has died.
    Recover(u32),
    /// The engine before has not ended, or the driver has not noticed that.
    Wait,
    /// It can't be had, and why.
    Refuse(String),
}

/// The next step for a node. A device that waits is taken over for the data that its users have,
/// whatever the names of both are; a volume whose node waits gets no second one.
pub fn step(asked: &Asked<'_>, devices: &[Device], records: &[NodeRecord]) -> Step {
    let number_of = |it: &Device| it.info.id;
    let record_of = |it: &Device| {
        let is_it = |of: &&NodeRecord| (of.number, of.mark) == (it.info.id, it.info.server_flags);
        records.iter().find(is_it)
    };
    let is_ours = |it: &&Device| record_of(it).is_some_and(|of| of.data.is(asked.data));
    let own: Vec<&Device> = devices.iter().filter(is_ours).collect();
    if let Some(dead) = own.iter().find(|it| it.info.phase() == Phase::Dead) {
        return match dead.is_alive {
            true => Step::Wait,
            false => Step::Delete(number_of(dead)),
        };
    }
    match (own.first(), asked.number) {
        (Some(it), Some(number)) if number_of(it) != number => Step::Refuse(format!(
            "{} is its node, and waits for it: say ublk = {}; once it is unmounted, a reload with \
             ublk = {number} gives it that one",
            node_path(number_of(it)),
            number_of(it)
        )),
        (Some(it), _) => step_of_own(it, asked.params),
        (None, Some(number)) => match devices.iter().find(|it| number_of(it) == number) {
            None => Step::Add(number),
            Some(it) => match record_of(it) {
                Some(_) if it.info.phase() == Phase::Dead && !it.is_alive => Step::Delete(number),
                record => Step::Refuse(taken(asked, it, record)),
            },
        },
        (None, None) => {
            let is_free = |number: &u32| {
                let mut there = devices.iter().map(number_of);
                !asked.reserved.contains(number) && !there.any(|it| it == *number)
            };
            match (0..NUMBERS_TRIED).find(is_free) {
                Some(number) => Step::Add(number),
                None => Step::Refuse(format!("numbers up to {NUMBERS_TRIED} are taken")),
            }
        }
    }
}

/// The next step for a device that has been started for this data.
fn step_of_own(it: &Device, wanted: &Params) -> Step {
    let path = node_path(it.info.id);
    match it.info.phase() {
        Phase::Live if it.is_served => {
            Step::Refuse(format!("{path} is a node of the same data already"))
        }
        Phase::Live if it.is_alive => Step::Refuse(format!(
            "{path} is its node, and process {} serves it: it is taken over when that ends",
            it.info.pid
        )),
        Phase::Live | Phase::Dead => Step::Wait,
        Phase::Other(state) => {
            Step::Refuse(format!("{path} is in state {state} of a newer driver"))
        }
        Phase::Quiesced => {
            let params = it
                .params
                .as_ref()
                .ok_or("its limits are not known".to_owned());
            let fits = params.and_then(|params| fits(params, wanted));
            match check_flags(it.info.flags).and(fits) {
                Ok(()) => Step::Recover(it.info.id),
                Err(why) => Step::Refuse(format!("{path} waits, and can't be taken over: {why}")),
            }
        }
    }
}

/// Why a volume can't have a number that has a device.
fn taken(asked: &Asked<'_>, it: &Device, record: Option<&NodeRecord>) -> String {
    let path = node_path(it.info.id);
    let other = "give this volume another number, or \"auto\"";
    match (record, it.info.phase()) {
        (Some(of), Phase::Quiesced) => format!(
            "{path} waits for the data of volume {} ({}), and {} leads to other data ({}): give \
             ublk = {} to the volume that leads there, or {other}",
            of.volume, of.data, asked.volume, asked.data, of.number
        ),
        (Some(of), _) => format!("{path} is the node of volume {}: {other}", of.volume),
        // Also one of ours whose record was lost: nothing says which data its users have.
        (None, _) => format!(
            "{path} is another server's (process {}), or its record was lost: {other}",
            it.info.pid
        ),
    }
}

/// Whether a volume can serve a node that its clients know as it was.
fn fits(there: &Params, wanted: &Params) -> Result<(), String> {
    if wanted.sectors < there.sectors {
        let [was, is] = [there, wanted].map(|it| format_bytes(it.sectors * 512));
        return Err(format!("the volume had {was} and has {is}"));
    }
    if wanted.block_shift > there.block_shift {
        let [was, is] = [there, wanted].map(|it| 1 << it.block_shift);
        return Err(format!("the volume had blocks of {was} B and has {is} B"));
    }
    if wanted.is_read_only != there.is_read_only {
        return Err("read_only of its export has changed".into());
    }
    Ok(())
}

/// Why there is no control device.
pub fn no_driver(error: Errno) -> String {
    match error {
        Errno::NOENT => "no ublk driver here: say modprobe ublk_drv. Kernels from 6.0 on may have \
                         it; of Debian, linux-image-amd64 of 13 and of bookworm-backports do, the \
                         6.1 of Debian 12 does not"
            .into(),
        Errno::ACCESS | Errno::PERM => {
            "/dev/ublk-control: permission denied; a node that outlives the engine needs root"
                .into()
        }
        error => format!("/dev/ublk-control: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::{namespace, record};
    use super::*;

    const VOLUME: VolumeInfo = VolumeInfo {
        bytes: 1 << 30,
        block_shift: 12,
        transfer_max: 1 << 20,
        read_only: false,
    };
    const MARK: u64 = 9;
    const DEAD: u16 = 0;
    const LIVE: u16 = 1;
    const QUIESCED: u16 = 2;

    fn device(number: u32, state: u16) -> Device {
        Device {
            info: Info {
                state,
                pid: 77,
                ..new_info(number, 2, MARK)
            },
            params: Some(wanted()),
            is_alive: false,
            is_served: false,
        }
    }

    fn wanted() -> Params {
        params(&VOLUME, false).unwrap()
    }

    /// The step for a volume that leads to the data `uuid`.
    fn decided(number: Option<u32>, uuid: u8, devices: &[Device], records: &[NodeRecord]) -> Step {
        let asked = Asked {
            volume: "v1",
            number,
            reserved: &BTreeSet::from([0]),
            data: &namespace(uuid),
            params: &wanted(),
        };
        step(&asked, devices, records)
    }

    /// The same where a device 3 has users of the data 1.
    fn of_three(number: Option<u32>, uuid: u8, it: &Device) -> Step {
        let records = [record(3, MARK, namespace(1))];
        decided(number, uuid, std::slice::from_ref(it), &records)
    }

    fn refused(step: &Step, parts: &[&str]) {
        let Step::Refuse(text) = step else {
            panic!("{step:?}: {parts:?}");
        };
        for part in parts {
            assert!(text.contains(part), "{text}: {part}");
        }
    }

    #[test]
    fn node_that_is_not_there_is_made() {
        assert_eq!(decided(Some(3), 1, &[], &[]), Step::Add(3));
        // The record of a device that is gone binds nothing.
        assert_eq!(
            decided(Some(4), 1, &[], &[record(3, MARK, namespace(1))]),
            Step::Add(4)
        );
        let others = [1, 2].map(|number| device(number, LIVE));
        assert_eq!(
            decided(None, 1, &others, &[]),
            Step::Add(3),
            "0 is reserved"
        );
        assert_eq!(of_three(Some(3), 1, &device(3, DEAD)), Step::Delete(3));
        assert_eq!(of_three(Some(3), 2, &device(3, DEAD)), Step::Delete(3));
        assert_eq!(of_three(Some(4), 1, &device(3, DEAD)), Step::Delete(3));
        let begins = Device {
            is_alive: true,
            ..device(3, DEAD)
        };
        assert_eq!(of_three(Some(3), 1, &begins), Step::Wait);
    }

    #[test]
    fn node_of_a_dead_engine_is_taken_over() {
        for number in [Some(3), None] {
            let step = |state| of_three(number, 1, &device(3, state));
            assert_eq!(step(QUIESCED), Step::Recover(3));
            // The driver notices later.
            assert_eq!(step(LIVE), Step::Wait);
            refused(&step(3), &["newer driver"]);
        }
        let runs = Device {
            is_alive: true,
            ..device(3, LIVE)
        };
        refused(&of_three(Some(3), 1, &runs), &["process 77 serves it"]);
        let own = Device {
            is_served: true,
            ..device(3, LIVE)
        };
        refused(&of_three(None, 1, &own), &["of the same data"]);
    }

    #[test]
    fn node_is_never_given_to_other_data() {
        let waits = device(3, QUIESCED);
        let uuid = |byte: u8| uuid::Uuid::from_bytes([byte; 16]).to_string();
        refused(
            &of_three(Some(3), 2, &waits),
            &["volume v0", &uuid(1), "v1 leads", &uuid(2), "ublk = 3"],
        );
        assert_eq!(of_three(None, 2, &waits), Step::Add(1), "beside it");
        refused(&of_three(Some(3), 2, &device(3, LIVE)), &["of volume v0"]);
    }

    #[test]
    fn swapped_names_leave_nodes_with_their_data() {
        let marked = |number, mark| Device {
            info: Info {
                server_flags: mark,
                ..device(number, QUIESCED).info
            },
            ..device(number, QUIESCED)
        };
        let devices = [marked(1, 11), marked(2, 12)];
        let records = [record(1, 11, namespace(1)), record(2, 12, namespace(2))];
        let step = |number, uuid| decided(number, uuid, &devices, &records);
        assert_eq!(step(Some(1), 1), Step::Recover(1));
        assert_eq!(step(None, 2), Step::Recover(2));
        refused(&step(Some(1), 2), &["/dev/ublkb2 is its node", "ublk = 2"]);
        refused(&step(Some(2), 1), &["/dev/ublkb1 is its node", "ublk = 1"]);
    }

    #[test]
    fn volume_whose_node_waits_gets_no_second_one() {
        for state in [QUIESCED, LIVE] {
            let step = of_three(Some(4), 1, &device(3, state));
            refused(&step, &["/dev/ublkb3 is its node", "ublk = 3", "ublk = 4"]);
        }
    }

    #[test]
    fn device_without_a_record_is_left_alone() {
        let foreign = device(3, QUIESCED);
        let records = [record(3, MARK + 1, namespace(1))];
        let step = decided(Some(3), 1, std::slice::from_ref(&foreign), &records);
        refused(&step, &["process 77", "another number"]);
        assert_eq!(decided(None, 1, &[foreign], &records), Step::Add(1));
        let dead = decided(Some(3), 1, &[device(3, DEAD)], &records);
        refused(&dead, &["another server's"]);
    }

    #[test]
    fn volume_that_can_not_serve_its_node_is_refused() {
        let step = |params: Params| {
            let there = Device {
                params: Some(params),
                ..device(3, QUIESCED)
            };
            of_three(Some(3), 1, &there)
        };
        let larger = Params {
            sectors: wanted().sectors + 8,
            ..wanted()
        };
        refused(&step(larger), &["had 1"]);
        let smaller = Params {
            sectors: 8,
            ..wanted()
        };
        assert_eq!(step(smaller), Step::Recover(3));
        let fine = Params {
            block_shift: 9,
            ..wanted()
        };
        refused(&step(fine), &["blocks of 512 B"]);
        let read_only = Params {
            is_read_only: true,
            ..wanted()
        };
        refused(&step(read_only), &["read_only"]);
        let mut plain = device(3, QUIESCED);
        plain.info.flags = 0;
        refused(&of_three(Some(3), 1, &plain), &["USER_RECOVERY"]);
    }

    #[test]
    fn size_is_in_whole_blocks() {
        let odd = VolumeInfo {
            bytes: (1 << 20) + 513,
            ..VOLUME
        };
        assert_eq!(params(&odd, false).unwrap().sectors, 2048);
        let large = VolumeInfo {
            block_shift: 13,
            ..VOLUME
        };
        assert!(params(&large, false).unwrap_err().contains("8"));
    }

    #[test]
    fn flags_that_were_dropped_are_seen() {
        assert_eq!(check_flags(0x1fe), Ok(()));
        let why = check_flags(0x1fe & !(Feature::UserCopy as u64)).unwrap_err();
        assert!(why.contains("USER_COPY"), "{why}");
    }
}
