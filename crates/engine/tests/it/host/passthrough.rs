//! Namespaces that somebody else drives, as paths: what they are, what their ends mean, and the end
//! of one.
use crate::common::{HostCore, NoMemory, host_config};
use engine::host::{
    Attached, HostConfig, HostEvent, Io, IoDone, IoOp, PathConfig, PathKind, PathState, Recovery,
    VolumeConfig,
};
use engine::machine::{DeviceError, DeviceRequest, Output};
use engine::{LocalDevice, Machine, Span};
use multipath::Outcome;
use nvme::host::{AnaState, ControllerInfo, NamespaceInfo};
use nvme::wire::Status;
use policy::PathIndex;

const SECOND: u64 = 1_000_000_000;
/// ENODEV.
const GONE: Result<(), DeviceError> = Err(DeviceError::Os(19));

fn attached(cntlid: u16, nsid: u32) -> Attached {
    Attached {
        controller: ControllerInfo {
            cntlid,
            subnqn: "nqn.2026-01.org.example:q0".into(),
            serial: "s".into(),
            model: "m".into(),
            firmware: "f".into(),
            transfer_max: Some(64 << 10),
            write_zeroes_max: None,
            deallocate_blocks_max: None,
            entries_max: 128,
            io_queues: 0,
            in_capsule_max: 0,
            kas: 0,
            traffic_keep_alive: false,
            cqt_ms: 0,
            crdt: [0; 3],
            volatile_write_cache: false,
            oncs: 0xc,
            lists_allocated: false,
            ana: false,
            anatt_s: 0,
            multi_controller: true,
        },
        namespace: NamespaceInfo {
            nsid,
            blocks: 2048,
            block_shift: 9,
            nguid: [0; 16],
            eui64: [nsid as u8; 8],
            uuid: [nsid as u8; 16],
            csi: 0,
            shared: true,
            ana_group: 0,
            ana_state: AnaState::Optimized,
            read_only: false,
            atomic_blocks: 1,
            boundary_blocks: 0,
            optimal_write_blocks: 0,
            deallocate_reads_zero: true,
            hole_blocks: 0,
        },
    }
}

/// An engine over such paths, and what it told.
struct Rig {
    host: HostCore,
    now_ns: u64,
    asked: Vec<DeviceRequest>,
    done: Vec<IoDone>,
    said: Vec<String>,
}

impl Rig {
    fn new(all: &[Attached]) -> Self {
        Self::of(&[all])
    }

    /// With the paths of each volume.
    fn of(volumes: &[&[Attached]]) -> Self {
        let mut number = 0;
        let mut path = |facts: &Attached| {
            let device = LocalDevice(number);
            number += 1;
            PathConfig {
                uri: format!("nvme-ng:/dev/ng{}n1", device.0),
                kind: PathKind::Passthrough {
                    device,
                    facts: Box::new(facts.clone()),
                },
                distance: 0,
                throughput: 1,
                numbers: PathConfig::ANY_NUMBER,
            }
        };
        let volume = |(name, all): (u16, &&[Attached])| VolumeConfig {
            name: format!("v{name}"),
            policy: policy::Policy::RoundRobin { bytes: 0 },
            knobs: policy::Knobs::default(),
            paths: all.iter().map(&mut path).collect(),
            recovery: Recovery::default(),
        };
        let config = HostConfig {
            connect_timeout_ns: SECOND,
            io_timeout_ns: 30 * SECOND,
            volumes: (0..).zip(volumes).map(volume).collect(),
            ..host_config(0)
        };
        let mut rig = Self {
            host: HostCore::new(config),
            now_ns: SECOND,
            asked: Vec::new(),
            done: Vec::new(),
            said: Vec::new(),
        };
        rig.turn();
        rig
    }

    fn turn(&mut self) {
        self.now_ns += 1000;
        self.host.turn(&mut NoMemory, self.now_ns);
        while let Some(output) = self.host.poll_output() {
            match output {
                Output::Device(request) => self.asked.push(request),
                // The driver takes nothing back.
                Output::LetGo { id, .. } => self.host.handle_device(id, Ok(()), self.now_ns),
                _ => {}
            }
        }
        while let Some(event) = self.host.poll_event() {
            match event {
                HostEvent::Done(done) => self.done.push(done),
                HostEvent::Failed(_, line) | HostEvent::Warning(_, line) => self.said.push(line),
                _ => {}
            }
        }
    }

    fn submit(&mut self, op: IoOp, cookie: u64) {
        let io = Io {
            volume: 0,
            op,
            offset: cookie * 4096,
            length: 4096,
            span: Span {
                at: cookie * 4096,
                len: 4096,
            },
            source: 0,
            cookie,
        };
        self.host.submit(&io, self.now_ns).unwrap();
        self.turn();
    }

    /// Ends all that was asked of a device.
    fn end(&mut self, device: u16, end: Result<(), DeviceError>) -> usize {
        let (its, rest) = std::mem::take(&mut self.asked)
            .into_iter()
            .partition::<Vec<_>, _>(|it| it.device == LocalDevice(device));
        self.asked = rest;
        for request in &its {
            self.host.handle_device(request.id, end, self.now_ns);
        }
        self.turn();
        its.len()
    }

    fn state(&self, path: u8) -> PathState {
        self.host.path_state(0, PathIndex(path))
    }
}

#[test]
fn two_controllers_of_a_namespace_share_its_io_and_one_that_vanishes_loses_none() {
    let mut rig = Rig::new(&[attached(1, 1), attached(2, 1)]);
    for cookie in 0..8 {
        let write = IoOp::Write { fua: false };
        rig.submit(if cookie % 2 == 0 { IoOp::Read } else { write }, cookie);
    }
    let of = |device| {
        rig.asked
            .iter()
            .filter(move |it| it.device == LocalDevice(device))
    };
    assert_eq!((of(0).count(), of(1).count()), (4, 4));
    // Requests that the driver had are ended, then it knows the device no more.
    let first = rig
        .asked
        .iter()
        .find(|it| it.device == LocalDevice(1))
        .copied();
    let aborted = Err(DeviceError::Nvme(Status::HOST_ABORTED));
    let first = first.unwrap();
    rig.asked.retain(|it| it.id != first.id);
    rig.host.handle_device(first.id, aborted, rig.now_ns);
    rig.turn();
    assert_eq!(rig.state(1), PathState::Live, "one reset is no loss");
    assert!(rig.end(1, GONE) >= 3);
    assert_eq!(rig.state(1), PathState::Failed);
    let lost: Vec<_> = rig
        .said
        .iter()
        .filter(|it| it.contains("is gone"))
        .collect();
    assert!(
        lost.len() == 1 && lost[0].contains("nvme-ng:/dev/ng1n1"),
        "{:?}",
        rig.said
    );
    assert_eq!(rig.end(0, Ok(())), 8);
    assert_eq!(rig.done.len(), 8);
    assert!(rig.done.iter().all(|it| it.outcome == Outcome::Done));
    // It is not asked again, though all that it had has ended.
    for cookie in 8..12 {
        rig.submit(IoOp::Read, cookie);
    }
    assert_eq!((rig.end(0, Ok(())), rig.asked.len()), (4, 0));
}

#[test]
fn t02_what_the_medium_says_moves_to_no_other_path() {
    let mut rig = Rig::new(&[attached(1, 1), attached(2, 1)]);
    rig.submit(IoOp::Read, 0);
    let end = Err(DeviceError::Nvme(Status::UNRECOVERED_READ.with_dnr()));
    assert_eq!(rig.end(0, end) + rig.end(1, end), 1);
    assert_eq!(rig.done[0].outcome, Outcome::MediaError);
}

#[test]
fn t31_another_namespace_and_the_same_controller_twice_are_refused() {
    for (second, word) in [
        (attached(2, 7), "refused beside nvme-ng:/dev/ng0n1"),
        (attached(1, 1), "refused beside nvme-ng:/dev/ng0n1"),
    ] {
        let rig = Rig::new(&[attached(1, 1), second]);
        assert!(
            rig.said.iter().any(|it| it.contains(word)),
            "{:?}",
            rig.said
        );
        assert_eq!(rig.state(0), PathState::Live);
        assert_ne!(rig.state(1), PathState::Live);
    }
}

/// Two paths of one volume may not have one controller, and two volumes not one path.
#[test]
fn t31_one_controller_below_two_volumes_is_admitted() {
    let states = |nsid| {
        let rig = Rig::of(&[&[attached(1, 1)], &[attached(1, nsid)]]);
        let states = [0, 1].map(|volume| rig.host.path_state(volume, PathIndex(0)));
        (states, rig.said)
    };
    let (both, said) = states(2);
    assert_eq!((both, said), ([PathState::Live; 2], Vec::new()));
    let (both, said) = states(1);
    assert_eq!(both[0], PathState::Live);
    assert_ne!(both[1], PathState::Live);
    let line = "refused beside nvme-ng:/dev/ng0n1: both claim to be controller 1";
    assert!(said.iter().any(|it| it.contains(line)), "{said:?}");
}

/// A device that is given up may never answer: its flush has nothing that it may still use.
#[test]
fn t13_a_flush_that_a_device_never_ends_fails_in_time_and_the_path_returns_with_its_end() {
    let mut cached = [attached(1, 1), attached(2, 1)];
    for it in &mut cached {
        it.controller.volatile_write_cache = true;
    }
    let mut rig = Rig::new(&cached);
    for cookie in 0..4 {
        rig.submit(IoOp::Write { fua: false }, cookie);
    }
    assert_eq!(rig.end(0, Ok(())) + rig.end(1, Ok(())), 4);
    rig.done.clear();
    rig.submit(IoOp::Flush, 9);
    while rig.end(0, Ok(())) > 0 {}
    let late = rig.asked.clone();
    assert!(
        late.len() == 1 && late[0].device == LocalDevice(1),
        "{late:?}"
    );
    for _ in 0..61 {
        rig.now_ns += SECOND;
        rig.host.handle_timeout(rig.now_ns);
        rig.turn();
    }
    assert_eq!(rig.done.len(), 1, "{:?}", rig.said);
    assert_ne!(rig.done[0].outcome, Outcome::Done);
    assert_eq!(rig.state(1), PathState::Reconnecting);
    // It was told once; the other path goes on.
    rig.done.clear();
    rig.submit(IoOp::Flush, 10);
    rig.submit(IoOp::Read, 11);
    while rig.end(0, Ok(())) > 0 {}
    let done: Vec<_> = rig.done.iter().map(|it| it.outcome).collect();
    assert_eq!(done, [Outcome::Done; 2]);
    assert_eq!(rig.end(1, Ok(())), 1);
    assert_eq!(rig.state(1), PathState::Live);
}
