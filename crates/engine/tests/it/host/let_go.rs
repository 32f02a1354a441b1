//! A device that hangs and can be kept from what it has not begun: a queue of a server that stands
//! still. It is told to let go; what it ends for that goes on by another path, reads at once and
//! changes when it says that nobody executes them any more.
use crate::common::{HostCore, NoMemory, host_config};
use engine::host::{
    Change, Heard, HostConfig, HostControl, HostEvent, Io, IoDone, IoOp, PathConfig, PathEvent,
    PathKind, PathNews, PathState, Recovery, VolumeConfig,
};
use engine::machine::{DeviceError, DeviceOp, DeviceRequest, Output};
use engine::{LocalDevice, Machine, Span};
use multipath::{Namespace, Outcome};
use policy::PathIndex;

const SECOND: u64 = 1_000_000_000;
const IO_TIMEOUT_NS: u64 = 30 * SECOND;
const LOST: Result<(), DeviceError> = Err(DeviceError::Lost);
const WRITE: IoOp = IoOp::Write { fua: false };

/// An engine over two queues to one namespace. Device 0 does all at once, device 1 what the test
/// says.
struct Rig {
    host: HostCore,
    now_ns: u64,
    hangs: bool,
    /// Devices whose servers have ended.
    away: Vec<u16>,
    /// With device 1.
    asked: Vec<DeviceRequest>,
    /// Under which ids it was told to let go.
    let_go: Vec<u32>,
    done: Vec<(u64, IoDone)>,
    /// Of which cores' failed flushes others were told.
    told: Vec<u16>,
    /// Losses of which the next engine would be told.
    unheard: usize,
}

fn path(number: u16) -> PathConfig {
    let identity = Namespace {
        subsystem: "nqn.2026-01.org.example:q0".into(),
        controller: number,
        nsid: 1,
        nguid: [7; 16],
        eui64: [0; 8],
        uuid: [8; 16],
        command_set: 0,
        shared: true,
    };
    PathConfig {
        uri: format!("queue:/run/{number}.sock"),
        kind: PathKind::Device {
            device: LocalDevice(number),
            bytes: 1 << 20,
            block_shift: 12,
            identity: Some(Box::new(identity)),
            read_only: false,
            deallocate_zeroes: false,
            hole_bytes: 0,
        },
        distance: 0,
        throughput: 1,
        numbers: PathConfig::ANY_NUMBER,
    }
}

fn config(core: u16, cores: u16, recovery: Recovery, paths: Vec<PathConfig>) -> HostConfig {
    HostConfig {
        core,
        cores,
        connect_timeout_ns: SECOND,
        io_timeout_ns: IO_TIMEOUT_NS,
        volumes: vec![VolumeConfig {
            name: "v0".into(),
            policy: policy::Policy::RoundRobin { bytes: 0 },
            knobs: policy::Knobs::default(),
            paths,
            recovery,
        }],
        ..host_config(0)
    }
}

impl Rig {
    fn new(recovery: Recovery) -> Self {
        Self::on_core(0, 1, recovery)
    }

    fn on_core(core: u16, cores: u16, recovery: Recovery) -> Self {
        Self::of(config(core, cores, recovery, vec![path(0), path(1)]))
    }

    fn of(config: HostConfig) -> Self {
        let mut rig = Self {
            host: HostCore::new(config),
            now_ns: SECOND,
            hangs: false,
            away: Vec::new(),
            asked: Vec::new(),
            let_go: Vec::new(),
            done: Vec::new(),
            told: Vec::new(),
            unheard: 0,
        };
        rig.settle();
        let paths = rig.host.paths(0).collect::<Vec<_>>();
        let states = paths.iter().map(|it| rig.host.path_state(0, *it));
        assert!(states.into_iter().all(|it| it == PathState::Live));
        rig
    }

    /// Over a file alone, which is device 1.
    fn over_file(core: u16, cores: u16) -> Self {
        let mut file = path(1);
        if let PathKind::Device { identity, .. } = &mut file.kind {
            *identity = None;
        }
        Self::of(config(core, cores, Recovery::default(), vec![file]))
    }

    fn settle(&mut self) {
        for _ in 0..100 {
            self.host.turn(&mut NoMemory, self.now_ns);
            let mut any = false;
            while let Some(output) = self.host.poll_output() {
                any = true;
                match output {
                    Output::Device(it) if self.away.contains(&it.device.0) => {
                        self.host.handle_device(it.id, LOST, self.now_ns);
                    }
                    Output::Device(it) if self.hangs && it.device == LocalDevice(1) => {
                        self.asked.push(it);
                    }
                    Output::Device(it) => self.host.handle_device(it.id, Ok(()), self.now_ns),
                    Output::LetGo { device, id } => {
                        assert_eq!(device, LocalDevice(1));
                        self.let_go.push(id);
                    }
                    _ => {}
                }
            }
            while let Some(event) = self.host.poll_event() {
                match event {
                    HostEvent::Done(done) => self.done.push((self.now_ns, done)),
                    HostEvent::Publish(PathNews::Of(.., PathEvent::FlushFailed(core, _)))
                    | HostEvent::Report(PathNews::Of(.., PathEvent::FlushFailed(core, _))) => {
                        self.told.push(core)
                    }
                    HostEvent::Loss(0, true) => self.unheard += 1,
                    _ => {}
                }
            }
            if !any {
                return;
            }
        }
        panic!("outputs without end");
    }

    fn submit(&mut self, op: IoOp, cookie: u64) {
        let len = if op == IoOp::Flush { 0 } else { 4096 };
        let io = Io {
            volume: 0,
            op,
            offset: cookie * 4096,
            length: len,
            span: Span {
                at: cookie * 4096,
                len,
            },
            source: 0,
            cookie,
        };
        self.host.submit(&io, self.now_ns).unwrap();
        self.settle();
    }

    fn pass(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            let due_ns = self.host.poll_timeout().unwrap_or(u64::MAX);
            self.now_ns = due_ns.clamp(self.now_ns + 1, end_ns);
            if due_ns <= self.now_ns {
                self.host.handle_timeout(self.now_ns);
            }
            self.settle();
        }
    }

    /// Device 1 ends what is of this kind; how many there were.
    fn end(&mut self, which: impl Fn(DeviceOp) -> bool, result: Result<(), DeviceError>) -> usize {
        let all = std::mem::take(&mut self.asked).into_iter();
        let (its, rest): (Vec<_>, _) = all.partition(|it| which(it.op));
        self.asked = rest;
        for it in &its {
            self.host.handle_device(it.id, result, self.now_ns);
        }
        self.settle();
        its.len()
    }

    fn may_be_asked(&mut self) {
        let id = self.let_go.pop().unwrap();
        self.host.handle_device(id, Ok(()), self.now_ns);
        self.settle();
    }

    fn state(&self, path: u8) -> PathState {
        self.host.path_state(0, PathIndex(path))
    }

    /// When an I/O ended, and how; `None`: it has not.
    fn ended(&self, cookie: u64) -> Option<(u64, Outcome)> {
        let mut done = self.done.iter();
        let (at_ns, done) = done.find(|(_, done)| done.cookie == cookie)?;
        Some((*at_ns, done.outcome))
    }

    fn is_done_by(&self, cookie: u64, at_ns: u64) -> bool {
        let ended = self.ended(cookie);
        ended.is_some_and(|(ended_ns, outcome)| ended_ns <= at_ns && outcome == Outcome::Done)
    }
}

fn is_read(op: DeviceOp) -> bool {
    op == DeviceOp::Read
}

#[test]
fn t09_t12_a_device_that_hangs_lets_go_and_reads_go_at_once_and_writes_when_it_says_so() {
    let mut rig = Rig::new(Recovery::default());
    rig.hangs = true;
    let begun_ns = rig.now_ns;
    for cookie in 0..8 {
        rig.submit(if cookie < 4 { IoOp::Read } else { WRITE }, cookie);
    }
    assert_eq!((rig.asked.len(), rig.done.len()), (4, 4));
    rig.pass(IO_TIMEOUT_NS - SECOND);
    assert_eq!((rig.let_go.len(), rig.state(1)), (0, PathState::Live));
    rig.pass(SECOND);
    assert_eq!(rig.let_go.len(), 1);
    assert_eq!(rig.state(1), PathState::Reconnecting);
    assert_eq!(
        rig.done.len(),
        4,
        "nothing is ended before the device says so"
    );
    assert_eq!(rig.end(is_read, LOST), 2);
    assert_eq!(rig.done.len(), 6);
    let due_ns = begun_ns + IO_TIMEOUT_NS;
    assert!((0..4).all(|cookie| rig.is_done_by(cookie, due_ns)));
    // Its changes wait for it, what comes now goes the other way.
    rig.submit(WRITE, 20);
    rig.pass(5 * SECOND);
    assert_eq!(rig.done.len(), 7);
    assert_eq!(rig.end(|_| true, LOST), 2);
    assert_eq!(rig.done.len(), 9);
    assert_eq!(rig.done.iter().filter(|(_, it)| it.cookie < 20).count(), 8);
    let quiet_ns = due_ns + 5 * SECOND;
    assert!((4..8).all(|cookie| rig.is_done_by(cookie, quiet_ns)));
    // It has ended all, and may not be asked yet.
    rig.pass(60 * SECOND);
    assert_eq!(rig.state(1), PathState::Reconnecting);
    assert!(rig.asked.is_empty() && rig.let_go.len() == 1);
    rig.hangs = false;
    rig.may_be_asked();
    assert_eq!(rig.state(1), PathState::Live);
}

#[test]
fn a_device_that_may_be_asked_before_it_has_ended_all_is_used_when_it_has() {
    let mut rig = Rig::new(Recovery::default());
    rig.hangs = true;
    (0..2).for_each(|cookie| rig.submit(WRITE, cookie));
    rig.pass(IO_TIMEOUT_NS);
    rig.hangs = false;
    rig.may_be_asked();
    assert_eq!(rig.state(1), PathState::Reconnecting);
    assert_eq!(rig.end(|_| true, LOST), 1);
    assert_eq!(rig.state(1), PathState::Live);
    assert!(rig.done.iter().all(|(_, it)| it.outcome == Outcome::Done));
    // And again, the next time.
    rig.hangs = true;
    (2..4).for_each(|cookie| rig.submit(WRITE, cookie));
    rig.pass(IO_TIMEOUT_NS);
    assert_eq!(
        (rig.let_go.len(), rig.state(1)),
        (1, PathState::Reconnecting)
    );
}

#[test]
fn t13_a_flush_of_a_device_that_lets_go_waits_for_it_to_return() {
    let mut rig = Rig::new(Recovery::default());
    (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
    rig.hangs = true;
    rig.submit(IoOp::Flush, 9);
    rig.pass(IO_TIMEOUT_NS);
    assert_eq!(rig.end(|op| op == DeviceOp::Flush, LOST), 1);
    assert_eq!(rig.ended(9), None, "it may have lost what it acknowledged");
    rig.hangs = false;
    rig.may_be_asked();
    rig.pass(SECOND);
    assert_eq!(rig.ended(9).unwrap().1, Outcome::Done);
}

/// EIO.
const FAILED: Result<(), DeviceError> = Err(DeviceError::Os(5));

#[test]
fn t04_io_that_all_queues_refuse_waits_until_one_of_their_servers_is_back() {
    for back in 0..2 {
        let mut rig = Rig::new(Recovery::default());
        rig.away = vec![0, 1];
        for cookie in 0..8 {
            rig.submit(if cookie < 4 { IoOp::Read } else { WRITE }, cookie);
        }
        rig.pass(20 * SECOND);
        assert_eq!(rig.done.len(), 0);
        rig.away = vec![1 - back];
        rig.pass(SECOND);
        let back_ns = rig.now_ns;
        assert!((0..8).all(|cookie| rig.is_done_by(cookie, back_ns)));
    }
}

#[test]
fn io_that_all_queues_refuse_fails_after_fast_io_fail_tmo() {
    let mut rig = Rig::new(Recovery {
        fast_io_fail_ns: 5 * SECOND,
        ..Recovery::default()
    });
    rig.away = vec![0, 1];
    let begun_ns = rig.now_ns;
    rig.submit(IoOp::Read, 0);
    rig.pass(4 * SECOND);
    assert_eq!(rig.ended(0), None);
    rig.pass(2 * SECOND);
    let (at_ns, outcome) = rig.ended(0).unwrap();
    assert_eq!(outcome, Outcome::PathError);
    assert!(at_ns <= begun_ns + 5 * SECOND);
}

fn is_flush(op: DeviceOp) -> bool {
    op == DeviceOp::Flush
}

#[test]
fn t13_a_flush_that_fails_after_its_path_was_given_up_is_told_to_those_that_wait() {
    // Whatever number a system calls it by (ETIMEDOUT, ENOLINK): it says it once.
    for errno in [5, 110, 67] {
        let mut rig = Rig::new(Recovery::default());
        (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
        rig.hangs = true;
        rig.submit(IoOp::Flush, 9);
        rig.pass(IO_TIMEOUT_NS);
        assert_eq!(rig.ended(9), None);
        assert_eq!(rig.end(is_flush, Err(DeviceError::Os(errno))), 1);
        assert_ne!(rig.ended(9).unwrap().1, Outcome::Done, "{errno}");
        assert!(rig.told.is_empty(), "there is one core");
        // A flush that comes now covers none of those writes.
        rig.hangs = false;
        rig.may_be_asked();
        rig.submit(IoOp::Flush, 10);
        assert_eq!(rig.ended(10).unwrap().1, Outcome::Done);
    }
}

#[test]
fn t13_a_flush_that_a_system_failed_is_not_asked_again() {
    for errno in [5, 110, 67] {
        let mut rig = Rig::new(Recovery::default());
        (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
        rig.hangs = true;
        rig.submit(IoOp::Flush, 9);
        rig.hangs = false;
        assert_eq!(rig.end(is_flush, Err(DeviceError::Os(errno))), 1);
        rig.pass(SECOND);
        let outcome = rig.ended(9).map(|it| it.1);
        assert_eq!(outcome, Some(Outcome::MediaError), "{errno}");
    }
}

/// A system says it once: to whichever flush, and whoever wrote.
#[test]
fn t13_a_flush_that_a_system_failed_fails_those_under_way_too() {
    for (core, cores) in [(0, 1), (0, 2), (1, 2)] {
        let mut rig = Rig::on_core(core, cores, Recovery::default());
        (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
        rig.hangs = true;
        rig.submit(IoOp::Flush, 9);
        rig.submit(IoOp::Flush, 10);
        rig.hangs = false;
        let first = rig.asked.remove(0);
        rig.host.handle_device(first.id, FAILED, rig.now_ns);
        rig.settle();
        assert_eq!(rig.ended(9).map(|it| it.1), Some(Outcome::MediaError));
        assert_eq!(rig.end(is_flush, Ok(())), 1);
        let other = rig.ended(10).map(|it| it.1);
        assert!(other.is_some_and(|it| it != Outcome::Done), "{other:?}");
        assert!(
            rig.told.is_empty(),
            "a server tells each queue, and so each core"
        );
        rig.submit(IoOp::Flush, 11);
        assert_eq!(rig.ended(11).unwrap().1, Outcome::Done);
    }
}

/// Each flush that is under way hears of it, and none that comes later, of a client of another core
/// or of the next engine.
#[test]
fn t13_a_flush_that_failed_is_told_on_every_core_to_those_that_are_there() {
    for (core, from) in [(0, 0), (0, 1), (1, 1), (1, 0)] {
        let mut rig = Rig::over_file(core, 2);
        (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
        rig.hangs = true;
        rig.submit(IoOp::Flush, 9);
        rig.hangs = false;
        let before = rig.host.volume(0).unwrap().flush_losses();
        let result = if core == from { FAILED } else { Ok(()) };
        let news = PathNews::Of(
            0,
            PathIndex(0),
            PathEvent::FlushFailed(from, Heard::ByClient),
        );
        rig.host.handle_control(HostControl::Path(news), rig.now_ns);
        assert_eq!(rig.end(is_flush, result), 1);
        assert_ne!(rig.ended(9).unwrap().1, Outcome::Done, "{core} {from}");
        assert_eq!(rig.host.volume(0).unwrap().flush_losses(), before + 1);
        assert_eq!(rig.unheard, 0, "{core} {from}");
        let told = usize::from(core == from || core == 0);
        assert_eq!(rig.told, vec![from; told], "{core} {from}");
        rig.submit(IoOp::Flush, 10);
        assert_eq!(rig.ended(10).unwrap().1, Outcome::Done, "{core} {from}");
    }
}

/// ENODEV, ENOMEM, EBADE: asked again, the system would say that all is well.
#[test]
fn t13_a_flush_of_a_file_is_asked_once_whatever_its_error() {
    for errno in [5, 19, 12, 52] {
        let mut rig = Rig::over_file(0, 1);
        rig.submit(WRITE, 0);
        rig.hangs = true;
        rig.submit(IoOp::Flush, 9);
        rig.hangs = false;
        rig.end(is_flush, Err(DeviceError::Os(errno)));
        assert_eq!(rig.ended(9).unwrap().1, Outcome::MediaError, "{errno}");
    }
}

#[test]
fn t13_a_durable_write_that_failed_took_the_report_of_others() {
    let mut rig = Rig::over_file(0, 1);
    rig.submit(WRITE, 0);
    rig.hangs = true;
    rig.submit(IoOp::Write { fua: true }, 1);
    rig.hangs = false;
    rig.end(|_| true, FAILED);
    assert_eq!(rig.ended(1).unwrap().1, Outcome::MediaError);
    rig.submit(IoOp::Flush, 2);
    assert_ne!(rig.ended(2).unwrap().1, Outcome::Done);
    rig.submit(IoOp::Flush, 3);
    assert_eq!(rig.ended(3).unwrap().1, Outcome::Done);
}

/// Its descriptor leads nowhere any more: to wait helps nothing.
#[test]
fn io_of_a_disk_that_is_gone_fails_at_once() {
    let mut rig = Rig::over_file(0, 1);
    rig.hangs = true;
    rig.submit(IoOp::Read, 0);
    while rig.end(|_| true, Err(DeviceError::Os(19))) > 0 {}
    assert_eq!(rig.ended(0).map(|it| it.1), Some(Outcome::PathError));
}

#[test]
fn t13_a_flush_that_failed_late_is_told_on_every_core() {
    for (core, from) in [(0, 0), (0, 1), (1, 1), (1, 0)] {
        let mut rig = Rig::on_core(core, 2, Recovery::default());
        (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
        if core == from {
            rig.hangs = true;
            rig.submit(IoOp::Flush, 9);
            rig.pass(IO_TIMEOUT_NS + Recovery::default().flush_timeout_ns);
            rig.hangs = false;
            rig.may_be_asked();
            assert_eq!(rig.end(is_flush, FAILED), 1);
        }
        let news = PathNews::Of(
            0,
            PathIndex(1),
            PathEvent::FlushFailed(from, Heard::ByNobody),
        );
        rig.host.handle_control(HostControl::Path(news), rig.now_ns);
        rig.settle();
        // Of core 0's own nobody tells it, and it tells all what any core says.
        let told = usize::from(core == from || core == 0);
        assert_eq!(rig.told, vec![from; told], "{core} {from}");
        rig.submit(IoOp::Flush, 10);
        assert_ne!(rig.ended(10).unwrap().1, Outcome::Done, "{core} {from}");
        rig.submit(IoOp::Flush, 11);
        assert_eq!(rig.ended(11).unwrap().1, Outcome::Done, "{core} {from}");
    }
}

#[test]
fn t13_a_flush_that_fails_when_nobody_waits_any_more_is_told_to_the_next_one() {
    let mut rig = Rig::new(Recovery::default());
    (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
    rig.hangs = true;
    rig.submit(IoOp::Flush, 9);
    rig.pass(IO_TIMEOUT_NS + Recovery::default().flush_timeout_ns);
    assert_ne!(rig.ended(9).unwrap().1, Outcome::Done);
    // Its end comes now, and in the same moment it is well again.
    rig.hangs = false;
    rig.may_be_asked();
    assert_eq!(rig.end(is_flush, FAILED), 1);
    assert_eq!(rig.state(1), PathState::Live);
    rig.submit(IoOp::Flush, 10);
    assert_ne!(rig.ended(10).unwrap().1, Outcome::Done, "it is told");
    rig.submit(IoOp::Flush, 11);
    assert_eq!(rig.ended(11).unwrap().1, Outcome::Done, "once");
}

/// A path leaves, and the flush for that fails: in time, or when the change was called off.
#[test]
fn t13_failed_flush_before_leaving_is_told_once() {
    for (is_late, is_leg) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut rig = Rig::new(Recovery::default());
        if is_leg {
            rig.host.set_leg(0, true);
            rig.host.inherit(0, false);
        }
        (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
        let change = Change::RemovePath {
            volume: 0,
            path: PathIndex(1),
            force: false,
        };
        rig.hangs = true;
        let remove = HostControl::Change {
            ticket: 1,
            change,
            wait_ns: SECOND,
        };
        rig.host.handle_control(remove, rig.now_ns);
        rig.settle();
        rig.pass(if is_late { 2 * SECOND } else { SECOND / 2 });
        let case = format!("late {is_late}, leg {is_leg}");
        assert_eq!(rig.end(is_flush, FAILED), 1, "{case}");
        rig.hangs = false;
        assert_eq!(rig.state(1), PathState::Live, "{case}");
        assert_eq!(rig.unheard, 1, "{case}");
        rig.submit(IoOp::Flush, 10);
        assert_ne!(rig.ended(10).unwrap().1, Outcome::Done, "{case}");
        rig.submit(IoOp::Flush, 11);
        assert_eq!(rig.ended(11).unwrap().1, Outcome::Done, "{case}");
    }
}

/// An engine stops, and its last flush of a device fails: the next engine tells a client.
#[test]
fn t13_failed_flush_at_stop_is_kept_as_a_loss() {
    for (end, losses) in [(Ok(()), 0), (FAILED, 1), (LOST, 0)] {
        let mut rig = Rig::new(Recovery::default());
        (0..4).for_each(|cookie| rig.submit(WRITE, cookie));
        rig.hangs = true;
        rig.host.handle_control(HostControl::Stop, rig.now_ns);
        rig.settle();
        assert_eq!(rig.end(is_flush, end), 1);
        assert_eq!(rig.unheard, losses, "{end:?}");
    }
}

#[test]
fn without_recovery_what_a_device_lets_go_fails() {
    let mut rig = Rig::new(Recovery::NONE);
    rig.hangs = true;
    (0..2).for_each(|cookie| rig.submit(IoOp::Read, cookie));
    rig.pass(IO_TIMEOUT_NS);
    assert_eq!((rig.let_go.len(), rig.end(is_read, LOST)), (1, 1));
    assert_eq!(rig.done.len(), 2);
    assert!(
        rig.done
            .iter()
            .any(|(_, it)| it.outcome == Outcome::TimedOut)
    );
    rig.may_be_asked();
    assert_ne!(rig.state(1), PathState::Live, "a lost path stays lost");
}
