//! Parameters of a node, and the next step for it: decided from what the driver says, without it.
use crate::units::format_bytes;
use engine::host::VolumeInfo;
use sys::Errno;
use sys::ublk::{Feature, Info, NEW_ID, Params, Phase};

/// Requests of each queue. The last tag is never used, so that the driver always has one in which
/// it sees the death of the engine at once ([`REQUESTS_MAX`]).
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
    match lacks.is_empty() {
        true if !Feature::Unprivileged.is_in(has & flags()) => Ok(()),
        _ => Err(format!(
            "this kernel's ublk driver lacks {}: Linux 6.6 or newer has it",
            lacks.join(", ")
        )),
    }
}

/// The mark by which an engine knows a device as its own, of one volume: FNV-1a over both names.
pub fn tag(engine: &str, volume: &str) -> u64 {
    let bytes = engine.bytes().chain([0]).chain(volume.bytes());
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    // Other servers leave 0 there.
    bytes.fold(0xcbf2_9ce4_8422_2325, hash).max(1)
}

/// A device that is to be made.
pub fn new_info(number: Option<u32>, queues: u16, tag: u64) -> Info {
    Info {
        queues,
        depth: DEPTH,
        request_bytes: REQUEST_BYTES,
        id: number.unwrap_or(NEW_ID),
        flags: flags(),
        server_flags: tag,
        ..Info::default()
    }
}

/// Parameters of a node of a volume. `request_bytes`: as the driver has them.
///
/// # Errors
/// The volume's blocks are none that a block device has.
pub fn params(info: &VolumeInfo, read_only: bool, request_bytes: u32) -> Result<Params, String> {
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
        request_sectors: request_bytes / 512,
        // A file may end within a block.
        sectors: info.bytes / block * (block / 512),
        discard_bytes: Some(block as u32),
        discard_sectors: (DISCARD_BYTES / 512) as u32,
        zeroes_sectors: (ZEROES_BYTES / 512) as u32,
    })
}

/// The next step for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the device.
    Add,
    /// It was made and never started: remove it, and make it.
    Replace,
    /// Take it over from an engine that has died.
    Recover,
    /// The engine before has not ended, or the driver has not noticed that.
    Wait,
    /// It can't be had, and why.
    Refuse(String),
}

/// The next step for a node that is to have the parameters `wanted`. `there`: the device of its
/// number, if there is one. `is_alive`: the process that served it last runs.
pub fn step(there: Option<(&Info, &Params)>, tag: u64, wanted: &Params, is_alive: bool) -> Step {
    let Some((info, params)) = there else {
        return Step::Add;
    };
    let id = info.id;
    if info.server_flags != tag {
        return Step::Refuse(match info.phase() {
            Phase::Quiesced => format!(
                "/dev/ublkb{id} is another volume's, or another engine's, and waits for that one"
            ),
            _ => format!("/dev/ublkb{id} is of process {}", info.pid),
        });
    }
    match info.phase() {
        Phase::Dead if is_alive => Step::Wait,
        Phase::Dead => Step::Replace,
        Phase::Live => Step::Wait,
        Phase::Other(state) => Step::Refuse(format!(
            "/dev/ublkb{id} is in state {state} of a newer driver"
        )),
        Phase::Quiesced => match check_flags(info.flags).and_then(|()| fits(params, wanted)) {
            Ok(()) => Step::Recover,
            Err(why) => Step::Refuse(format!(
                "/dev/ublkb{id} waits, and can't be taken over: {why}"
            )),
        },
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
    use super::*;

    const VOLUME: VolumeInfo = VolumeInfo {
        bytes: 1 << 30,
        block_shift: 12,
        transfer_max: 1 << 20,
        read_only: false,
    };

    fn there(state: u16) -> Info {
        Info {
            state,
            pid: 77,
            ..new_info(Some(3), 2, tag("e", "v0"))
        }
    }

    fn wanted() -> Params {
        params(&VOLUME, false, REQUEST_BYTES).unwrap()
    }

    fn decided(info: &Info, was: &Params, is_alive: bool) -> Step {
        step(Some((info, was)), tag("e", "v0"), &wanted(), is_alive)
    }

    fn refused(step: &Step, why: &str) {
        assert!(
            matches!(step, Step::Refuse(text) if text.contains(why)),
            "{step:?}: {why}"
        );
    }

    #[test]
    fn node_that_is_not_there_is_made() {
        assert_eq!(step(None, 1, &wanted(), false), Step::Add);
        assert_eq!(decided(&there(0), &wanted(), false), Step::Replace);
        assert_eq!(decided(&there(0), &wanted(), true), Step::Wait);
    }

    #[test]
    fn node_of_a_dead_engine_is_taken_over() {
        assert_eq!(decided(&there(2), &wanted(), false), Step::Recover);
        // The driver notices later.
        assert_eq!(decided(&there(1), &wanted(), false), Step::Wait);
        assert_eq!(decided(&there(1), &wanted(), true), Step::Wait);
        refused(&decided(&there(3), &wanted(), false), "newer driver");
    }

    #[test]
    fn node_of_others_is_left_alone() {
        for (engine, volume) in [("e", "v1"), ("f", "v0"), ("ev", "0")] {
            let other = Info {
                server_flags: tag(engine, volume),
                ..there(2)
            };
            refused(&decided(&other, &wanted(), false), "another volume's");
        }
        let foreign = Info {
            server_flags: 0,
            ..there(1)
        };
        refused(&decided(&foreign, &wanted(), true), "of process 77");
    }

    #[test]
    fn volume_that_can_not_serve_its_node_is_refused() {
        let larger = Params {
            sectors: wanted().sectors + 8,
            ..wanted()
        };
        refused(&decided(&there(2), &larger, false), "had 1");
        let smaller = Params {
            sectors: 8,
            ..wanted()
        };
        assert_eq!(decided(&there(2), &smaller, false), Step::Recover);
        let fine = Params {
            block_shift: 9,
            ..wanted()
        };
        refused(&decided(&there(2), &fine, false), "blocks of 512 B");
        let read_only = Params {
            is_read_only: true,
            ..wanted()
        };
        refused(&decided(&there(2), &read_only, false), "read_only");
        let plain = Info {
            flags: 0,
            ..there(2)
        };
        refused(&decided(&plain, &wanted(), false), "USER_RECOVERY");
    }

    #[test]
    fn size_is_in_whole_blocks() {
        let odd = VolumeInfo {
            bytes: (1 << 20) + 513,
            ..VOLUME
        };
        assert_eq!(params(&odd, false, 4096).unwrap().sectors, 2048);
        let large = VolumeInfo {
            block_shift: 13,
            ..VOLUME
        };
        assert!(params(&large, false, 4096).unwrap_err().contains("8"));
    }

    #[test]
    fn flags_that_were_dropped_are_seen() {
        assert_eq!(check_flags(0x1fe), Ok(()));
        let why = check_flags(0x1fe & !(Feature::UserCopy as u64)).unwrap_err();
        assert!(why.contains("USER_COPY"), "{why}");
    }
}
