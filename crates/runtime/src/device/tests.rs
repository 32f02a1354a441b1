//! Room for requests to files; errors of the system.
use super::*;
use crate::FileDevice;
use engine::machine::Span;
use sys::{Arena, RingConfig};

const NOW: (u64, fn(u32) -> u64) = (0, |_| u64::MAX);

/// A ring whose completions are not used.
fn ring() -> Ring {
    let config = RingConfig {
        operations_max: FILE_OPERATIONS_MAX as u32 + 2,
        buffers: 1,
        buffers_lent: 1,
        buffer_bytes: 4096,
    };
    Ring::new(&config, Arena::new(4096 + SCRATCH_BYTES).unwrap()).unwrap()
}

#[test]
fn a_compare_that_waits_for_scratch_memory_holds_up_nothing_behind_it() {
    let path = std::env::temp_dir().join(format!("braid-compares-{}", std::process::id()));
    let file = FileDevice::open(path.clone(), false, Some(4096)).unwrap();
    std::fs::remove_file(path).unwrap();
    let mut devices = {
        let wake = Arc::new(Wake::new("test").unwrap());
        Devices::new(&[Device::File(Arc::new(file))], 4096, wake).unwrap()
    };
    let mut ring = ring();
    let (extent, span) = (Extent::new(0, 4096), Span { at: 0, len: 4096 });
    let begin = |devices: &mut Devices, ring: &mut Ring, op| {
        let request = DeviceRequest {
            id: 0,
            device: LocalDevice(0),
            op,
            offset: 0,
            length: 4096,
            span,
        };
        devices.begin(ring, 0, &request, extent, (0, u64::MAX), false);
    };
    // One device alone gets half of the memory.
    let half = COMPARES_MAX / 2;
    for slot in 0..FILE_OPERATIONS_MAX {
        let op = if slot < half {
            DeviceOp::Compare
        } else {
            DeviceOp::Read
        };
        begin(&mut devices, &mut ring, op);
    }
    begin(&mut devices, &mut ring, DeviceOp::Compare);
    begin(&mut devices, &mut ring, DeviceOp::Read);
    let waiting = |devices: &Devices| devices.compares[&LocalDevice(0)].waiting.len();
    let read = half as u32;
    assert!(devices.handle(&mut ring, read, Ok(4096), NOW).is_some());
    assert_eq!(devices.in_flight, FILE_OPERATIONS_MAX, "the read started");
    assert!(!devices.is_idle() && waiting(&devices) == 1);
    assert!(devices.handle(&mut ring, 0, Err(Errno::IO), NOW).is_some());
    assert_eq!(devices.in_flight, FILE_OPERATIONS_MAX, "and the compare");
    assert_eq!(waiting(&devices), 0);
}

#[test]
fn t52_compares_of_a_hung_file_leave_memory_to_others() {
    let files = ["a", "b", "c"].map(|name| {
        let name = format!("braid-compares-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let file = FileDevice::open(path.clone(), false, Some(4096)).unwrap();
        std::fs::remove_file(path).unwrap();
        Device::File(Arc::new(file))
    });
    let wake = Arc::new(Wake::new("test").unwrap());
    let mut devices = Devices::new(&files, 4096, wake).unwrap();
    let mut ring = ring();
    let begin = |devices: &mut Devices, ring: &mut Ring, device: u16| {
        let request = DeviceRequest {
            id: 0,
            device: LocalDevice(device),
            op: DeviceOp::Compare,
            offset: 0,
            length: 4096,
            span: Span { at: 0, len: 4096 },
        };
        let extent = Extent::new(0, 4096);
        devices.begin(ring, device.into(), &request, extent, (0, u64::MAX), false);
    };
    let out = |devices: &Devices| {
        let all = (0..3).map(|it| devices.compares.get(&LocalDevice(it)));
        all.map(|it| it.map_or(0, |it| it.out)).collect::<Vec<_>>()
    };
    for device in [0, 1, 2] {
        for _ in 0..2 * COMPARES_MAX {
            begin(&mut devices, &mut ring, device);
        }
    }
    assert_eq!(out(&devices), [4, 2, 1], "none of the first two ends");
    let of_third = |devices: &Devices| {
        let mut those = devices.requests.iter().filter(|(_, it)| {
            it.request.device == LocalDevice(2) && matches!(it.step, Step::Compare(Some(_)))
        });
        those.next().map(|(key, _)| key.index())
    };
    for _ in 0..2 * COMPARES_MAX {
        let slot = of_third(&devices).expect("the third goes on");
        let ended = devices.handle(&mut ring, slot, Err(Errno::IO), NOW);
        assert!(ended.is_some());
    }
    assert_eq!(of_third(&devices), None);
}

#[test]
fn the_systems_errors_are_told_apart() {
    for (error, expected) in [
        (Errno::NOSPC, DeviceError::Full),
        (Errno::DQUOT, DeviceError::Full),
        (Errno::ROFS, DeviceError::ReadOnly),
        (Errno::PERM, DeviceError::ReadOnly),
        (Errno::OPNOTSUPP, DeviceError::Unsupported),
        (Errno::NOMEM, DeviceError::Os(12)),
        (NO_THREAD, DeviceError::NotBegun),
        (Errno::IO, DeviceError::Os(5)),
    ] {
        assert_eq!(device_error(error), expected);
    }
}

/// A kernel disk whose data arrived damaged; what it can't do otherwise is still that.
#[test]
fn not_supported_to_read_is_a_failed_transfer() {
    let unsupported = Err(DeviceError::Unsupported);
    for (op, want) in [
        (DeviceOp::Read, Err(IN_TRANSIT)),
        (DeviceOp::Compare, Err(IN_TRANSIT)),
        (DeviceOp::Write { fua: false }, unsupported),
        (DeviceOp::Flush, unsupported),
        (DeviceOp::Deallocate, unsupported),
    ] {
        let (mut devices, mut ring) = devices(written_file("unsupported").without_holes());
        let extent = Extent::new(0, 4096);
        devices.begin(&mut ring, 0, &request(op), extent, (0, u64::MAX), false);
        // Of a write the ring may say that it can't do it without waiting; a worker means it.
        devices.requests[0].by_workers |= op.is_change();
        let ended = devices.handle(&mut ring, 0, Err(Errno::OPNOTSUPP), NOW);
        assert_eq!(ended, Some((7, want)), "{op:?}");
    }
}

fn written_file(name: &str) -> FileDevice {
    let path = std::env::temp_dir().join(format!("braid-{name}-{}", std::process::id()));
    std::fs::write(&path, vec![9; 1 << 20]).unwrap();
    let file = FileDevice::open(path.clone(), false, None).unwrap();
    std::fs::remove_file(path).unwrap();
    file
}

/// One device and its ring.
fn devices(file: FileDevice) -> (Devices, Ring) {
    let wake = Arc::new(Wake::new("test").unwrap());
    let devices = Devices::new(&[Device::File(Arc::new(file))], 4096, wake).unwrap();
    (devices, ring())
}

fn request(op: DeviceOp) -> DeviceRequest {
    DeviceRequest {
        id: 7,
        device: LocalDevice(0),
        op,
        offset: 8192,
        length: if op == DeviceOp::Flush { 0 } else { 4096 },
        span: Span { at: 0, len: 4096 },
    }
}

/// The end of the one request under way; `before_ns` is what the machine says then.
fn end(devices: &mut Devices, ring: &mut Ring, before_ns: u64) -> Result<(), DeviceError> {
    end_changed(devices, ring, before_ns, |result| result)
}

/// As `end`; `change` replaces the results of the system calls.
fn end_changed(
    devices: &mut Devices,
    ring: &mut Ring,
    before_ns: u64,
    mut change: impl FnMut(Result<u32, Errno>) -> Result<u32, Errno>,
) -> Result<(), DeviceError> {
    loop {
        let _ = ring.enter(sys::Wait::No);
        let mut ended = Vec::new();
        while let Some(it) = ring.next_completion() {
            ended.push((it.tag as u32, it.result));
        }
        let mut finished = Vec::new();
        devices.inbox.take(&mut finished);
        for it in finished {
            if let crate::workers::Bytes::Lease(lease) = it.bytes {
                ring.end_lease(lease);
            }
            ended.push((it.tag as u32, it.result));
        }
        for (slot, result) in ended {
            let now = (sys::os::now_ns(), |_| before_ns);
            if let Some((id, result)) = devices.handle(ring, slot, change(result), now) {
                assert_eq!(id, 7);
                return result;
            }
        }
        std::thread::yield_now();
    }
}

fn run(of: &mut (Devices, Ring), op: DeviceOp, before: [u64; 2]) -> Result<(), DeviceError> {
    let (devices, ring) = of;
    let extent = Extent::new(0, 4096);
    devices.begin(ring, 0, &request(op), extent, (0, before[0]), false);
    let result = end(devices, ring, before[1]);
    assert!(devices.is_idle() && devices.in_flight == 0 && !ring.arena().is_busy(extent));
    result
}

const CHANGES: [DeviceOp; 4] = [
    DeviceOp::Write { fua: false },
    DeviceOp::Write { fua: true },
    DeviceOp::WriteZeroes { deallocate: false },
    DeviceOp::Deallocate,
];

#[test]
fn t49_a_late_change_is_lost_and_not_made() {
    for blocks in [false, true] {
        let mut of = devices(written_file("late").blocking(blocks));
        for op in CHANGES {
            assert_eq!(run(&mut of, op, [1, 1]), Err(DeviceError::Lost), "{op:?}");
        }
        assert_eq!(run(&mut of, DeviceOp::Read, [u64::MAX; 2]), Ok(()));
        assert_eq!(of.1.arena().bytes(Extent::new(0, 4096)), [9; 4096]);
    }
}

#[test]
fn t49_a_late_change_is_made_if_it_may_by_now() {
    for blocks in [false, true] {
        let mut of = devices(written_file("in-time").blocking(blocks));
        let in_time_ns = sys::os::now_ns() + 60_000_000_000;
        for op in CHANGES {
            assert_eq!(run(&mut of, op, [1, in_time_ns]), Ok(()), "{op:?}");
        }
        assert_eq!(run(&mut of, DeviceOp::Read, [u64::MAX; 2]), Ok(()));
        assert_eq!(of.1.arena().bytes(Extent::new(0, 4096)), [0; 4096]);
    }
}

#[test]
fn t52_a_blocking_file_is_never_on_the_ring() {
    let mut of = devices(written_file("blocks").blocking(true));
    let write = DeviceOp::Write { fua: false };
    for op in [write, DeviceOp::Flush, DeviceOp::Compare, DeviceOp::Read] {
        let extent = Extent::new(0, 4096);
        of.0.begin(&mut of.1, 0, &request(op), extent, (0, u64::MAX), false);
        assert_eq!(of.1.in_flight(), 0, "{op:?}");
        assert_eq!(end(&mut of.0, &mut of.1, u64::MAX), Ok(()));
    }
    of.1.bytes_mut(Extent::new(0, 4096)).fill(1);
    let differs = run(&mut of, DeviceOp::Compare, [u64::MAX; 2]);
    assert_eq!(differs, Err(DeviceError::Mismatch));
}

/// A file that is cut while nothing is asked of it: looked at once a second, unless that could
/// block the reactor.
#[test]
fn t52_idle_look_skips_file_systems_that_block() {
    for blocks in [false, true] {
        let name = format!("braid-idle-{blocks}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, vec![9; 1 << 16]).unwrap();
        let file = FileDevice::open_alone(path.clone()).unwrap();
        let opened = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let (mut devices, _ring) = devices(file.blocking(blocks));
        assert_eq!(devices.sizes_at_ns == u64::MAX, blocks);
        opened.set_len(4096).unwrap();
        devices.look_at_sizes(1 << 40);
        assert_eq!(devices.cuts.is_empty(), blocks);
        assert_eq!(devices.sizes_at_ns == u64::MAX, blocks);
    }
}

/// A leg's file system that makes no hole here: the ext2 driver, or one that is full. Its mirror
/// counts on zeroes, so they are written.
#[test]
fn deallocate_that_a_file_system_refuses_writes_zeroes() {
    const LENGTH: usize = 600 << 10;
    let refusals = [Errno::OPNOTSUPP, Errno::NOSPC, Errno::DQUOT];
    let ops = [
        DeviceOp::Deallocate,
        DeviceOp::WriteZeroes { deallocate: true },
    ];
    for (error, op) in refusals.into_iter().flat_map(|it| ops.map(|op| (it, op))) {
        let path = std::env::temp_dir().join(format!("braid-refused-{}", std::process::id()));
        std::fs::write(&path, vec![9; 1 << 20]).unwrap();
        let mut file = FileDevice::open(path.clone(), false, None).unwrap();
        if file.blocks() {
            return std::fs::remove_file(path).unwrap(); // not one of those file systems
        }
        file.set_sparse();
        assert!(file.deallocate_zeroes());
        let (mut devices, mut ring) = devices(file);
        let request = DeviceRequest {
            length: LENGTH as u64,
            ..request(op)
        };
        devices.begin(
            &mut ring,
            0,
            &request,
            Extent::default(),
            (0, u64::MAX),
            false,
        );
        let mut refused = 0;
        let result = end_changed(&mut devices, &mut ring, u64::MAX, |result| {
            if refused == 2 {
                return result;
            }
            // As if nothing had been done.
            refused += 1;
            std::fs::write(&path, vec![9; 1 << 20]).unwrap();
            Err(error)
        });
        assert_eq!((result, refused), (Ok(()), 2), "{op:?}, {error}");
        let found = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        let zeroes = 8192..8192 + LENGTH;
        let is_right = |at: usize| found[at] == if zeroes.contains(&at) { 0 } else { 9 };
        assert!((0..1 << 20).all(is_right), "{op:?}, {error}");
        assert!(devices.is_idle() && devices.in_flight == 0);
    }
    // Where nothing is to be freed, a file system that is full says so at once.
    let (mut devices, mut ring) = devices(written_file("full"));
    let op = DeviceOp::WriteZeroes { deallocate: false };
    devices.begin(
        &mut ring,
        0,
        &request(op),
        Extent::default(),
        (0, u64::MAX),
        false,
    );
    let full = end_changed(&mut devices, &mut ring, u64::MAX, |_| Err(Errno::NOSPC));
    assert_eq!(full, Err(DeviceError::Full));
}

/// A file whose file system says that it punches, as qemu's FUSE export does, and keeps the data: a
/// Write Zeroes that may deallocate writes zeroes. None is asked of it as a hole either.
#[test]
fn write_zeroes_does_not_punch_where_a_hole_may_keep_data() {
    for blocks in [false, true] {
        let path = std::env::temp_dir().join(format!("braid-keeps-{}", std::process::id()));
        std::fs::write(&path, vec![9; 1 << 20]).unwrap();
        let mut file = FileDevice::open(path.clone(), false, None).unwrap();
        if file.blocks() {
            return std::fs::remove_file(path).unwrap(); // not one of those file systems
        }
        file.set_sparse();
        let file = file.blocking(blocks);
        let promises = (file.hole_bytes() > 0, file.deallocated_reads_zero());
        assert_eq!(promises, (!blocks, !blocks));
        let (mut devices, mut ring) = devices(file);
        let op = DeviceOp::WriteZeroes { deallocate: true };
        devices.begin(
            &mut ring,
            0,
            &request(op),
            Extent::default(),
            (0, u64::MAX),
            false,
        );
        let begun = devices.requests.iter().map(|(_, it)| it.step);
        let how = match blocks {
            false => Allocate::PunchHole,
            true => Allocate::ZeroRange,
        };
        assert_eq!(begun.collect::<Vec<_>>(), [Step::Allocate(how)]);
        assert_eq!(end(&mut devices, &mut ring, u64::MAX), Ok(()));
        let found = std::fs::read(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!((found[8191], &found[8192..12288]), (9, &[0; 4096][..]));
    }
}

/// One whose file hangs is not answered; its place among the questions is free again after 5 s.
#[test]
fn t52_questions_of_a_hung_file_beyond_few_are_answered_at_once() {
    use crate::limits::{FILE_QUESTIONS_MAX, FILE_WORKERS_MAX};
    use crate::workers::{Bytes, Call, Complete, FileHandle, Finished, Job, Permit};
    use engine::machine::ExtentRequest;
    struct Nobody;
    impl Complete for Nobody {
        fn complete(&self, _: Finished) {}
    }
    let file = written_file("questions");
    if file.blocks() {
        return; // of such a file nothing is asked
    }
    let workers = file.workers().clone();
    let (mut devices, _ring) = devices(file);
    let mut writers = Vec::new();
    for _ in 0..FILE_WORKERS_MAX {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let memory = sys::memory_file("questions", 4096).unwrap();
        let memory = Arc::new(sys::Shared::map(&memory, 4096).unwrap());
        workers.submit(Job {
            file: Arc::new(FileHandle::new(reader, false)),
            call: Call::Read,
            offset: u64::MAX, // no position
            bytes: Bytes::Shared(memory, 0, 4096),
            permit: Permit::Always,
            tag: 0,
            to: Arc::new(Nobody),
        });
        writers.push(writer);
    }
    for id in 0..1000 {
        let request = ExtentRequest {
            id,
            device: LocalDevice(0),
            offset: 0,
            length: 1 << 20,
        };
        devices.ask_extent(&request, 0);
    }
    let beyond: Vec<_> = (FILE_QUESTIONS_MAX as u32..1000)
        .map(|id| (id, DeviceExtent::UNKNOWN))
        .collect();
    assert_eq!(std::mem::take(&mut devices.extents), beyond);
    drop(writers);
    let mut finished = Vec::new();
    let mut left = FILE_QUESTIONS_MAX;
    while left > 0 {
        devices.inbox.take(&mut finished);
        for it in finished.drain(..) {
            assert!(devices.is_answer(it.tag, it.result));
            left -= 1;
        }
        std::thread::yield_now();
    }
    let data = DeviceExtent {
        length: 1 << 20,
        is_zero: false,
    };
    let told = devices.extents.iter();
    assert!(
        told.copied()
            .all(|(id, it)| (id as usize) < FILE_QUESTIONS_MAX && it == data)
    );
}
