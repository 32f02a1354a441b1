//! Mirrors that start by themselves without a leg, by the record that their host keeps: what waits
//! for it, and what starts when the host was killed at any step of its life.
use super::common::{Disk, MS, SECOND};
use super::rig::{Rig, WITHOUT, configured, io, made, superblock};
use super::start::owned_by;
use engine::host::{HostEvent, IoOp};
use engine::machine::DeviceError;
use engine::mirror::{DegradedStart, LegOrder, LegStatus, MirrorOrder, MirrorState, RecordRequest};
use mirror::Id;
use mirror::assembly::degraded::{Evidence, Permission, Record};
use multipath::Outcome;
use std::cell::RefCell;
use std::rc::Rc;

const GONE: DeviceError = DeviceError::Os(19);
/// The program of a host: what it keeps beside the legs.
#[derive(Clone, Copy, Default)]
struct Host {
    record: Option<Record>,
    /// Record that it kept before the lineage that it has.
    before: Option<Record>,
    /// The record can't be written.
    is_full: bool,
}

impl Host {
    /// Evidence for the next start.
    fn evidence(self) -> Evidence {
        self.record.map_or(Evidence::None, Evidence::Record)
    }

    /// Answers what the mirror has asked.
    fn answer(&mut self, rig: &mut Rig) {
        let (asked, others): (Vec<_>, Vec<_>) = std::mem::take(&mut rig.events)
            .into_iter()
            .partition(|it| matches!(it, HostEvent::Record(..)));
        rig.events = others;
        for event in asked {
            match event {
                HostEvent::Record(_, RecordRequest::Read(_)) => {
                    rig.order(MirrorOrder::Evidence(self.evidence()));
                }
                HostEvent::Record(_, RecordRequest::Keep(record)) if !self.is_full => {
                    if self.record.map(|it| it.lineage) != Some(record.lineage) {
                        self.before = self.record;
                    }
                    self.record = Some(record);
                    rig.order(MirrorOrder::Recorded(record.lineage));
                }
                HostEvent::Record(_, RecordRequest::NeverBegan(record))
                    if self.record.map(|it| it.lineage) == Some(record.lineage) =>
                {
                    self.record = self.before;
                }
                HostEvent::Record(_, RecordRequest::Started(record, has_all))
                    if !self.is_full && record.replaces(self.evidence(), has_all) =>
                {
                    self.record = Some(record);
                }
                _ => {}
            }
        }
    }

    /// Lets at most so much time pass until it is so, and shows each step.
    fn until(
        &mut self,
        rig: &mut Rig,
        limit_ns: u64,
        mut step: impl FnMut(&Rig, Self),
        is: impl Fn(&Rig) -> bool,
    ) -> bool {
        let end_ns = rig.world.now_ns + limit_ns;
        while rig.world.now_ns < end_ns {
            if is(rig) {
                return true;
            }
            rig.run(MS, |_| true);
            step(rig, *self);
            self.answer(rig);
            step(rig, *self);
        }
        is(rig)
    }

    /// Writes one block full of a byte.
    fn write(
        &mut self,
        rig: &mut Rig,
        (block, byte): (u64, u8),
        step: impl FnMut(&Rig, Self),
    ) -> Outcome {
        let it = io(IoOp::Write { fua: false }, block);
        let at = it.span.at as usize;
        rig.world.nodes[0].arena.0[at..][..it.length as usize].fill(byte);
        rig.submit(&it);
        let is_done = |rig: &Rig| rig.done.iter().any(|done| done.cookie == it.cookie);
        assert!(
            self.until(rig, 60 * SECOND, step, is_done),
            "{:?}",
            rig.report()
        );
        let at = rig.done.iter().position(|done| done.cookie == it.cookie);
        rig.done.swap_remove(at.unwrap()).outcome
    }

    fn stop(&mut self, rig: &mut Rig, step: impl FnMut(&Rig, Self)) {
        rig.order(MirrorOrder::Stop);
        let is_over = |rig: &Rig| rig.report().state == MirrorState::Stopped;
        assert!(self.until(rig, 60 * SECOND, step, is_over));
        self.answer(rig);
    }
}

fn nothing(_: &Rig, _: Host) {}

fn is_decided(rig: &Rig) -> bool {
    rig.is_ready() || matches!(rig.report().state, MirrorState::Refused(_))
}

/// The same disk, which can't be reached.
fn unreachable(disk: &Disk) -> Disk {
    let mut disk = disk.clone();
    disk.error = Some(GONE);
    disk
}

/// State of a disk after its host is killed: what it has executed.
fn left(disk: &Disk) -> Disk {
    let bytes = disk.bytes.borrow().clone();
    let mut left = disk.clone();
    left.bytes = Rc::new(RefCell::new(bytes.clone()));
    left.durable = Some(Rc::new(RefCell::new(bytes)));
    left.error = None;
    left
}

fn engine(disks: &[Disk], degraded: DegradedStart, wait_ns: u64) -> Rig {
    let (host, mut mirror) = configured(disks);
    (mirror.degraded, mirror.assemble_wait_ns) = (degraded, wait_ns);
    let mut disks = disks.to_vec();
    for disk in &mut disks {
        // Each write is seen by itself.
        disk.delay_ns = 2 * MS;
    }
    Rig::with(&disks, host, mirror)
}

/// One that may start by itself.
fn willing(disks: &[Disk]) -> Rig {
    let degraded = DegradedStart {
        permission: Permission::On,
        records: true,
        ..DegradedStart::default()
    };
    engine(disks, degraded, 200 * MS)
}

/// One with this leg alone, decided.
fn alone(disks: &[Disk], there: usize, host: &mut Host) -> Rig {
    let disks: Vec<Disk> = (0..disks.len())
        .map(|leg| match leg == there {
            true => disks[leg].clone(),
            false => unreachable(&disks[leg]),
        })
        .collect();
    let mut rig = willing(&disks);
    assert!(host.until(&mut rig, 60 * SECOND, nothing, is_decided));
    rig
}

/// Two legs that were written and stopped.
fn stopped() -> (Vec<Disk>, Host) {
    let (disks, mut host) = (made(2, true), Host::default());
    let mut rig = willing(&disks);
    assert!(host.until(&mut rig, 60 * SECOND, nothing, Rig::is_ready));
    assert_eq!(host.write(&mut rig, (0, 1), nothing), Outcome::Done);
    host.stop(&mut rig, nothing);
    (disks, host)
}

fn refusal(rig: &Rig) -> String {
    match rig.report().state {
        MirrorState::Refused(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn t14_the_half_that_went_on_alone_starts_and_no_other() {
    let (disks, mut host) = stopped();
    let before = [left(&disks[0]), left(&disks[1])];
    let mut rig = alone(&disks, 0, &mut host);
    assert!(rig.is_ready(), "{:?}", rig.lines());
    let said = rig.lines().join("\n");
    assert!(
        said.contains("STARTED DEGRADED") && said.contains("leg 1 (disk:1)"),
        "{said}"
    );
    assert_eq!(rig.report().started_without, [1]);
    assert_eq!(rig.read(0), Ok(1));
    let event = |disk: &Disk| superblock(disk).superblock.event;
    assert_eq!(event(&disks[0]), event(&before[0]), "nothing was changed");
    assert_eq!(host.write(&mut rig, (0, 2), nothing), Outcome::Done);
    host.stop(&mut rig, nothing);
    drop(rig);
    // By what the host knows, by what another one knows, and by what it knew before.
    let rig = alone(&disks, 1, &mut host);
    let why = refusal(&rig);
    assert!(why.contains("leg 0 (disk:0) may have newer data"), "{why}");
    assert!(why.contains("--without-missing"), "{why}");
    let why = refusal(&alone(&disks, 1, &mut Host::default()));
    assert!(why.contains("no record"), "{why}");
    // The half that has everything starts, and so do both: the other is rebuilt.
    let mut rig = alone(&disks, 0, &mut host.clone());
    assert_eq!(rig.read(0), Ok(2));
    let mut rig = willing(&disks);
    let in_sync = |rig: &Rig| rig.is_ready() && rig.statuses() == [LegStatus::InSync; 2];
    assert!(host.until(&mut rig, 60 * SECOND, nothing, in_sync));
    assert_eq!(rig.read(0), Ok(2));
}

/// Its disks were in another host, which started it with both and was killed; what it has changed
/// since was on the other one.
#[test]
fn t14_a_half_that_another_host_has_not_released_waits() {
    let (disks, mut host) = stopped();
    owned_by(&disks, 0x99);
    let why = refusal(&alone(&disks, 1, &mut host));
    assert!(why.contains("did not stop it in order"), "{why}");
    let owner = superblock(&disks[1]).superblock.owner.unwrap();
    assert_eq!(owner.host, Id([0x99; 16]), "nothing is written");
}

/// The record is asked for when the legs were decided upon without it, and one is lost then.
#[test]
fn start_that_loses_a_leg_as_it_writes_asks_for_the_record_soon() {
    let (disks, mut host) = stopped();
    let mut rig = willing(&disks);
    rig.disk(1).delay_ns = 20 * MS;
    let before = superblock(&disks[0]).superblock.sequence;
    let writes = |_: &Rig| superblock(&disks[0]).superblock.sequence != before;
    assert!(host.until(&mut rig, 60 * SECOND, nothing, writes));
    rig.disk(1).error = Some(GONE);
    assert!(host.until(&mut rig, 5 * SECOND, nothing, Rig::is_ready));
    assert_eq!(rig.report().started_without, [1]);
}

/// The answer about the record is late, and the leg comes, or the user says to go on.
#[test]
fn a_start_that_needs_no_record_does_not_wait_for_it() {
    for by_word in [false, true] {
        let (disks, _) = stopped();
        let mut rig = willing(&[disks[0].clone(), unreachable(&disks[1])]);
        let asked = |rig: &Rig| {
            let mut events = rig.events.iter();
            events.any(|it| matches!(it, HostEvent::Record(_, RecordRequest::Read(_))))
        };
        rig.until(60 * SECOND, asked);
        rig.run(SECOND, |_| false);
        assert!(!is_decided(&rig));
        match by_word {
            true => rig.order(WITHOUT),
            false => rig.disk(1).error = None,
        }
        rig.until(60 * SECOND, Rig::is_ready);
    }
}

#[test]
fn t14_nothing_is_changed_before_its_lineage_is_recorded() {
    let (disks, mut host) = stopped();
    let before: Vec<u64> = disks
        .iter()
        .map(|it| superblock(it).superblock.event)
        .collect();
    let mut rig = willing(&disks);
    assert!(host.until(&mut rig, 60 * SECOND, nothing, Rig::is_ready));
    host.is_full = true;
    rig.submit(&io(IoOp::Write { fua: false }, 0));
    let has_ended = |rig: &Rig| !rig.done.is_empty();
    assert!(!host.until(&mut rig, 10 * SECOND, nothing, has_ended));
    let after: Vec<u64> = disks
        .iter()
        .map(|it| superblock(it).superblock.event)
        .collect();
    assert_eq!(before, after);
    assert!(rig.report().waits_for_record);
    assert_eq!(rig.read(3), Ok(0), "reads don't wait");
    // It can be stopped: nothing that waits for the record was written.
    let mut stopping = willing(&[left(&disks[0]), left(&disks[1])]);
    let mut full = host;
    assert!(full.until(&mut stopping, 60 * SECOND, nothing, Rig::is_ready));
    stopping.submit(&io(IoOp::Write { fua: false }, 0));
    assert!(!full.until(&mut stopping, SECOND, nothing, has_ended));
    full.stop(&mut stopping, nothing);
    assert!(!stopping.done[0].outcome.is_done());
    // Killed now, either half is as good as the other.
    for there in [0, 1] {
        let rig = alone(
            &[left(&disks[0]), left(&disks[1])],
            there,
            &mut host.clone(),
        );
        assert!(rig.is_ready(), "{:?}", rig.lines());
    }
    let record = rig.engine.borrow().mirror(engine::mirror::MIRRORS_FROM);
    assert!(record.is_some_and(|it| it.waits_for_record));
}

/// As [`stopped`]; it was started again and is told to stop while a write waits for the record.
fn stopped_as_it_waits_for_its_record() -> (Vec<Disk>, Host, Rig) {
    let (disks, mut host) = stopped();
    let mut rig = willing(&disks);
    assert!(host.until(&mut rig, 60 * SECOND, nothing, Rig::is_ready));
    rig.submit(&io(IoOp::Write { fua: false }, 0));
    rig.until(SECOND, |rig| rig.report().waits_for_record);
    rig.order(MirrorOrder::Stop);
    (disks, host, rig)
}

/// The program is about to write the record: the write that waits for that does not fail.
#[test]
fn stop_waits_for_a_record_that_is_being_written() {
    let (disks, mut host, mut rig) = stopped_as_it_waits_for_its_record();
    rig.run(5 * MS, |_| false);
    host.stop(&mut rig, nothing);
    assert_eq!(rig.done[0].outcome, Outcome::Done);
    assert!(superblock(&disks[0]).superblock.clean);
}

/// The program writes the record only when the mirror has stopped without it: nothing was written
/// that a half lacks.
#[test]
fn record_of_a_lineage_that_never_began_does_not_keep_a_half_from_starting() {
    let (disks, mut host, mut rig) = stopped_as_it_waits_for_its_record();
    rig.until(10 * SECOND, |rig| {
        rig.report().state == MirrorState::Stopped
    });
    assert!(!rig.done[0].outcome.is_done());
    host.answer(&mut rig);
    for there in [0, 1] {
        let given = [left(&disks[0]), left(&disks[1])];
        let rig = alone(&given, there, &mut host.clone());
        assert!(rig.is_ready(), "{:?}", rig.lines());
    }
}

/// Whatever was acknowledged is on the half that starts, wherever the host was killed.
#[test]
fn t14_a_kill_at_any_step_starts_no_half_without_acknowledged_writes() {
    struct Moment {
        disks: [Disk; 2],
        host: Host,
        acknowledged: Vec<(u64, u8)>,
    }
    let (disks, mut host) = (made(2, true), Host::default());
    let mut moments: Vec<Moment> = Vec::new();
    let mut seen = Vec::new();
    let mut acknowledged: Vec<(u64, u8)> = Vec::new();
    // Both; then one alone; then both; then the other alone.
    for (round, there) in [&[0, 1][..], &[0], &[0, 1], &[1]].into_iter().enumerate() {
        let given: Vec<Disk> = (0..2)
            .map(|leg| match there.contains(&leg) {
                true => disks[leg].clone(),
                false => unreachable(&disks[leg]),
            })
            .collect();
        let mut rig = willing(&given);
        let mut look = |acknowledged: &[(u64, u8)], host: Host| {
            let shown = |disk: &Disk| {
                let it = superblock(disk).superblock;
                (it.event, it.history.current().id, it.clean)
            };
            let key = (
                [shown(&disks[0]), shown(&disks[1])],
                host.record,
                acknowledged.len(),
            );
            if !seen.contains(&key) {
                seen.push(key);
                moments.push(Moment {
                    disks: [left(&disks[0]), left(&disks[1])],
                    host,
                    acknowledged: acknowledged.to_vec(),
                });
            }
        };
        let is_well = |rig: &Rig| {
            let well = |status| status == LegStatus::InSync;
            rig.is_ready()
                && rig.statuses().into_iter().filter(|it| well(*it)).count() == there.len()
        };
        let started = host.until(
            &mut rig,
            60 * SECOND,
            |_, host| look(&acknowledged, host),
            is_well,
        );
        assert!(started, "{:?}", rig.lines());
        for write in 0..2 {
            let it = (write, 10 * round as u8 + write as u8 + 1);
            let done = host.write(&mut rig, it, |_, host| look(&acknowledged, host));
            assert_eq!(done, Outcome::Done);
            acknowledged.push(it);
            look(&acknowledged, host);
        }
        host.stop(&mut rig, |_, host| look(&acknowledged, host));
        look(&acknowledged, host);
    }
    let mut started = 0;
    for (at, moment) in moments.iter().enumerate() {
        for there in [0, 1] {
            let mut rig = alone(&moment.disks, there, &mut moment.host.clone());
            if !rig.is_ready() {
                continue;
            }
            started += 1;
            for block in 0..2 {
                let mut last = moment.acknowledged.iter().rev();
                let last = last.find(|it| it.0 == block).map(|it| it.1);
                // A write that was not acknowledged may be there too.
                let found = rig.read(block).unwrap();
                let next = last.map_or(0, |it| it.next_multiple_of(10) + 1 + block as u8);
                assert!(
                    last.is_none_or(|last| found == last || found == next),
                    "moment {at}: leg {there} alone has {found}, acknowledged was {last:?}"
                );
            }
            // By its own word it needs no other leg, or the record says so.
            let state = superblock(&moment.disks[there]).superblock;
            let needs_other = state.in_sync().any(|slot| usize::from(slot) != there);
            let none = alone(&moment.disks, there, &mut Host::default());
            assert!(
                !(needs_other && none.is_ready()),
                "moment {at}: without a record"
            );
        }
    }
    assert!(
        moments.len() > 15 && started > 4,
        "{} {started}",
        moments.len()
    );
}

#[test]
fn a_mirror_waits_for_a_leg_by_what_that_had() {
    let (disks, mut host) = stopped();
    // It left before the last stop.
    let mut rig = willing(&disks);
    assert!(host.until(&mut rig, 60 * SECOND, nothing, Rig::is_ready));
    rig.order_leg(1, LegOrder::Fail);
    let is_stale = |rig: &Rig| rig.statuses()[1] == LegStatus::Stale;
    assert!(host.until(&mut rig, 60 * SECOND, nothing, is_stale));
    assert_eq!(host.write(&mut rig, (0, 2), nothing), Outcome::Done);
    host.stop(&mut rig, nothing);
    let given = [disks[0].clone(), unreachable(&disks[1])];
    let waited = |gone_wait_ns| {
        let degraded = DegradedStart {
            gone_wait_ns,
            ..DegradedStart::default()
        };
        let mut rig = engine(&given, degraded, 10 * SECOND);
        let began_ns = rig.world.now_ns;
        rig.until(60 * SECOND, Rig::is_ready);
        rig.world.now_ns - began_ns
    };
    assert!(waited(None) >= 10 * SECOND);
    assert!(waited(Some(SECOND)) < 2 * SECOND);
    assert!(waited(Some(20 * SECOND)) >= 20 * SECOND);
}
