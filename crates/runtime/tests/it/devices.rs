//! Devices of every kind, through a reactor.
use crate::recorder::{Command, Options, Recording, span};
use engine::machine::{DeviceError, DeviceOp, DeviceRequest, LocalDevice, Output};
use runtime::{Device, FileDevice, MemoryDevice};
use std::path::PathBuf;
use std::sync::Arc;

const WRITE: DeviceOp = DeviceOp::Write { fua: false };
const ZEROES: DeviceOp = DeviceOp::WriteZeroes { deallocate: false };

/// A file that goes away with it.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, directory: &str) -> Self {
        Self(PathBuf::from(format!(
            "{directory}/braid-device-{name}-{}",
            std::process::id()
        )))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn with(device: Device) -> Recording {
    Recording::start(Options {
        devices: vec![device],
        ..Options::default()
    })
}

fn file(path: &Temporary, bytes: u64) -> Device {
    Device::File(Arc::new(
        FileDevice::open(path.0.clone(), false, Some(bytes)).unwrap(),
    ))
}

/// Requests that every device of at least 4 MiB must execute.
fn exercise(recording: &Recording) {
    let (first, second) = (span(0, 1 << 20), span(2 << 20, 1 << 20));
    let at = 1 << 20;
    recording.command(Command::Fill(first, 0x5a));
    assert_eq!(recording.device(WRITE, at, 1 << 20, first), Ok(()));
    assert_eq!(recording.device(DeviceOp::Flush, 0, 0, span(0, 0)), Ok(()));
    recording.command(Command::Fill(second, 1));
    assert_eq!(
        recording.device(DeviceOp::Read, at, 1 << 20, second),
        Ok(())
    );
    assert!(recording.data(second) == [0x5a; 1 << 20]);
    assert_eq!(
        recording.device(DeviceOp::Compare, at, 1 << 20, first),
        Ok(())
    );
    recording.command(Command::Fill(span((1 << 20) - 1, 1), 0x5b));
    let compared = recording.device(DeviceOp::Compare, at, 1 << 20, first);
    assert_eq!(compared, Err(DeviceError::Mismatch));
    for (number, op) in [
        ZEROES,
        DeviceOp::WriteZeroes { deallocate: true },
        DeviceOp::Deallocate,
    ]
    .iter()
    .enumerate()
    {
        let gap = at + number as u64 * 65536;
        assert_eq!(
            recording.device(*op, gap + 4096, 8192, span(0, 0)),
            Ok(()),
            "{op:?}"
        );
        assert_eq!(
            recording.device(DeviceOp::Read, gap, 65536, span(0, 65536)),
            Ok(())
        );
        let data = recording.data(span(0, 65536));
        assert!(
            data[..4096]
                .iter()
                .chain(&data[12288..])
                .all(|&byte| byte == 0x5a),
            "{op:?}"
        );
        assert!(data[4096..12288].iter().all(|&byte| byte == 0), "{op:?}");
    }
    let fua = DeviceOp::Write { fua: true };
    recording.command(Command::Fill(span(0, 4096), 3));
    assert_eq!(recording.device(fua, 0, 4096, span(0, 4096)), Ok(()));
    assert_eq!(
        recording.device(DeviceOp::Compare, 0, 4096, span(0, 4096)),
        Ok(())
    );
    // Untouched is zero.
    assert_eq!(
        recording.device(DeviceOp::Read, 3 << 20, 4096, span(0, 4096)),
        Ok(())
    );
    assert_eq!(recording.data(span(0, 4096)), [0; 4096]);
}

/// Ranges that aren't in memory of 4 MiB.
fn refuses_outside(recording: &Recording) {
    for (offset, length) in [
        (4 << 20, 4096),
        ((4 << 20) - 4096, 8192),
        (u64::MAX - 4095, 4096),
    ] {
        for op in [
            DeviceOp::Read,
            WRITE,
            DeviceOp::Compare,
            ZEROES,
            DeviceOp::Deallocate,
        ] {
            let result = recording.device(op, offset, length, span(0, length as u32));
            assert_eq!(result, Err(DeviceError::Os(22)), "{op:?} at {offset}");
        }
    }
}

#[test]
fn memory() {
    let recording = with(Device::Memory(Arc::new(
        MemoryDevice::new(4 << 20).unwrap(),
    )));
    exercise(&recording);
    refuses_outside(&recording);
}

#[test]
fn a_file() {
    let path = Temporary::new("file", std::env::temp_dir().to_str().unwrap());
    let recording = with(file(&path, 4 << 20));
    exercise(&recording);
    for offset in [u64::MAX - 4095, 1 << 63] {
        let result = recording.device(DeviceOp::Read, offset, 4096, span(0, 4096));
        assert_eq!(result, Err(DeviceError::Os(22)), "no file reaches {offset}");
    }
}

#[test]
fn a_file_that_was_made_longer_is_used_up_to_its_new_end() {
    let path = Temporary::new("grown", std::env::temp_dir().to_str().unwrap());
    let recording = with(file(&path, 1 << 20));
    let opened = std::fs::OpenOptions::new().write(true).open(&path.0);
    opened.unwrap().set_len(4 << 20).unwrap();
    exercise(&recording);
}

#[test]
fn a_file_without_o_direct() {
    // An odd size rules O_DIRECT out on every file system.
    let path = Temporary::new("buffered", std::env::temp_dir().to_str().unwrap());
    std::fs::write(&path.0, []).unwrap();
    let opened = std::fs::OpenOptions::new()
        .write(true)
        .open(&path.0)
        .unwrap();
    opened.set_len((4 << 20) + 100).unwrap();
    let device = FileDevice::open(path.0.clone(), false, None).unwrap();
    assert!(!device.direct());
    let recording = with(Device::File(Arc::new(device)));
    exercise(&recording);
}

#[test]
fn a_file_that_cannot_zero_ranges_has_zeroes_written() {
    // tmpfs punches holes but zeroes no ranges.
    let path = Temporary::new("tmpfs", "/dev/shm");
    let recording = with(file(&path, 4 << 20));
    exercise(&recording);
}

/// A file that has all its space when it is opened keeps it, unless it is said to be sparse.
#[test]
fn zeroing_gives_up_space_of_sparse_files_only() {
    use std::os::unix::fs::MetadataExt;
    const MIB: u64 = 1 << 20;
    for (directory, full, said, holes) in [
        ("/dev/shm", false, false, true),
        ("/dev/shm", true, false, false),
        ("/dev/shm", true, true, true),
        (std::env::temp_dir().to_str().unwrap(), false, false, true),
        (std::env::temp_dir().to_str().unwrap(), true, false, false),
        (std::env::temp_dir().to_str().unwrap(), true, true, true),
    ] {
        let path = Temporary::new(&format!("space-{full}-{said}"), directory);
        let made = std::fs::File::create(&path.0).unwrap();
        made.set_len(4 * MIB).unwrap();
        if full {
            let mode = rustix::fs::FallocateFlags::empty();
            rustix::fs::fallocate(&made, mode, 0, 4 * MIB).unwrap();
        }
        let mut file = FileDevice::open(path.0.clone(), false, None).unwrap();
        if !file.deallocate_zeroes() {
            eprintln!("SKIP {directory}: its file system does not say that holes are zeroes");
            continue;
        }
        if said {
            file.set_sparse();
        }
        let hole_bytes = file.hole_bytes();
        assert_eq!(hole_bytes > 0, holes, "{directory} {full} {said}");
        assert!(hole_bytes.is_multiple_of(4096));
        let recording = with(Device::File(Arc::new(file)));
        recording.command(Command::Fill(span(0, MIB as u32), 7));
        assert_eq!(recording.device(WRITE, 0, MIB, span(0, MIB as u32)), Ok(()));
        let space = || made.metadata().unwrap().blocks() * 512;
        let before = space();
        let op = DeviceOp::WriteZeroes { deallocate: true };
        assert_eq!(recording.device(op, 0, MIB, span(0, 0)), Ok(()));
        let given_up = before.saturating_sub(space());
        let want = if holes { MIB } else { 0 };
        assert_eq!(given_up, want, "{directory} {full} {said}");
        let read = recording.device(DeviceOp::Read, 0, MIB, span(0, MIB as u32));
        assert_eq!(read, Ok(()));
        let zeroes = recording.data(span(0, MIB as u32));
        assert!(zeroes.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn null_swallows_writes_and_reads_zeroes() {
    let recording = with(Device::Null);
    recording.command(Command::Fill(span(0, 8192), 9));
    assert_eq!(
        recording.device(WRITE, 1 << 50, 8192, span(0, 8192)),
        Ok(())
    );
    assert_eq!(
        recording.device(DeviceOp::Read, 1 << 50, 4096, span(0, 4096)),
        Ok(())
    );
    assert_eq!(recording.data(span(4095, 2)), [0, 9]);
    assert_eq!(
        recording.device(DeviceOp::Compare, 0, 4096, span(0, 4096)),
        Ok(())
    );
    let compared = recording.device(DeviceOp::Compare, 0, 4096, span(4096, 4096));
    assert_eq!(compared, Err(DeviceError::Mismatch));
}

#[test]
fn a_read_only_file_is_read_and_not_written() {
    let path = Temporary::new("read-only", std::env::temp_dir().to_str().unwrap());
    std::fs::write(&path.0, [8; 1 << 16]).unwrap();
    let device = FileDevice::open(path.0.clone(), true, None).unwrap();
    let recording = with(Device::File(Arc::new(device)));
    assert_eq!(
        recording.device(DeviceOp::Read, 4096, 4096, span(0, 4096)),
        Ok(())
    );
    assert_eq!(recording.data(span(0, 4096)), [8; 4096]);
    for op in [
        WRITE,
        DeviceOp::Write { fua: true },
        ZEROES,
        DeviceOp::Deallocate,
    ] {
        let result = recording.device(op, 0, 4096, span(0, 4096));
        assert_eq!(result, Err(DeviceError::ReadOnly), "{op:?}");
    }
    assert_eq!(recording.device(DeviceOp::Flush, 0, 0, span(0, 0)), Ok(()));
    assert_eq!(
        recording.device(DeviceOp::Compare, 0, 4096, span(0, 4096)),
        Ok(())
    );
}

#[test]
fn of_a_file_that_we_have_alone_nothing_is_used_any_more_that_was_cut_off() {
    // It is cut before the first request, which looks; then after one, where a read meets the end.
    for filled in [false, true] {
        let path = Temporary::new(&format!("alone-{filled}"), "/dev/shm");
        std::fs::write(&path.0, [7; 1 << 16]).unwrap();
        let device = Arc::new(FileDevice::open_alone(path.0.clone()).unwrap());
        let recording = with(Device::File(Arc::clone(&device)));
        recording.command(Command::Fill(span(0, 8192), 9));
        if filled {
            assert_eq!(recording.device(WRITE, 0, 8192, span(0, 8192)), Ok(()));
        }
        let cut = std::fs::OpenOptions::new().write(true).open(&path.0);
        let cut = cut.unwrap();
        cut.set_len(32768).unwrap();
        // A size that was looked at counts for 1 ms, and the reactor looks when it begins.
        std::thread::sleep(std::time::Duration::from_millis(2));
        let end = |op, offset| recording.device(op, offset, 4096, span(0, 4096));
        let short = Err(DeviceError::CutShort);
        if filled {
            assert_eq!(end(DeviceOp::Read, 32768), short);
        }
        for op in [WRITE, DeviceOp::Write { fua: true }, ZEROES, DeviceOp::Read] {
            assert_eq!(end(op, 40960), short, "{op:?}");
        }
        assert_eq!(path.0.metadata().unwrap().len(), 32768);
        assert_eq!(end(WRITE, 0), Ok(()));
        assert_eq!(end(DeviceOp::Read, 28672), Ok(()));
        assert_eq!(recording.device(DeviceOp::Flush, 0, 0, span(0, 0)), Ok(()));
        // Long again: there are holes in it.
        cut.set_len(1 << 16).unwrap();
        assert_eq!(end(DeviceOp::Read, 40960), short);
        assert_eq!(device.take_as_it_is().unwrap(), 1 << 16);
        assert_eq!(end(DeviceOp::Read, 40960), Ok(()));
    }
}

#[test]
fn what_was_cut_off_a_file_cannot_be_read() {
    for size in [0, 4096, 65536 + 4096, 70_000] {
        let path = Temporary::new(
            &format!("cut-{size}"),
            std::env::temp_dir().to_str().unwrap(),
        );
        std::fs::write(&path.0, vec![6; 1 << 20]).unwrap();
        let device = FileDevice::open(path.0.clone(), false, None).unwrap();
        let recording = with(Device::File(Arc::new(device)));
        let opened = std::fs::OpenOptions::new()
            .write(true)
            .open(&path.0)
            .unwrap();
        opened.set_len(size).unwrap();
        recording.command(Command::Fill(span(0, 1 << 20), 6));
        for op in [DeviceOp::Read, DeviceOp::Compare] {
            for (offset, length) in [(0, 1 << 20), (size / 4096 * 4096, 4096)] {
                let result = recording.device(op, offset, length, span(0, length as u32));
                assert_eq!(
                    result,
                    Err(DeviceError::Os(5)),
                    "{size}: {op:?} at {offset}"
                );
            }
            // The remaining data is there.
            let left = size / 4096 * 4096;
            if left > 0 {
                let result = recording.device(op, 0, left, span(0, left as u32));
                assert_eq!(result, Ok(()), "{size}: {op:?}");
            }
        }
    }
}

#[test]
fn more_requests_than_operations_all_end() {
    let path = Temporary::new("many", std::env::temp_dir().to_str().unwrap());
    let recording = with(file(&path, 16 << 20));
    let count = 1500;
    for id in 0..count {
        let op = match id % 3 {
            0 => WRITE,
            1 => DeviceOp::Read,
            _ => DeviceOp::Compare,
        };
        // Compared with zeroes that were never written; the others elsewhere.
        let offset = if id % 3 == 2 {
            8 << 20
        } else {
            u64::from(id) * 4096
        };
        let at = u64::from(id % 3) << 21 | u64::from(id / 3) << 12;
        let span = span(at, 4096);
        let request = DeviceRequest {
            id,
            device: LocalDevice(0),
            op,
            offset,
            length: 4096,
            span,
        };
        recording.output(Output::Device(request));
    }
    let mut ended = vec![false; count as usize];
    for _ in 0..count {
        match recording.next() {
            crate::recorder::Event::Device(id, result) => {
                assert_eq!(result, Ok(()), "request {id}");
                assert!(!std::mem::replace(&mut ended[id as usize], true));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn two_reactors_share_a_memory_device() {
    let memory = Arc::new(MemoryDevice::new(1 << 20).unwrap());
    let (one, other) = (
        with(Device::Memory(Arc::clone(&memory))),
        with(Device::Memory(Arc::clone(&memory))),
    );
    one.command(Command::Fill(span(0, 4096), 0x11));
    assert_eq!(one.device(WRITE, 8192, 4096, span(0, 4096)), Ok(()));
    assert_eq!(
        other.device(DeviceOp::Read, 8192, 4096, span(0, 4096)),
        Ok(())
    );
    assert_eq!(other.data(span(0, 4096)), [0x11; 4096]);
}

#[test]
fn devices_come_and_go_while_the_reactor_runs() {
    let recording = with(Device::Null);
    let path = Temporary::new("later", env!("CARGO_TARGET_TMPDIR"));
    let descriptors = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap();
        let leads = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).ok();
        let all = all.filter_map(|entry| leads(entry.unwrap()));
        all.filter(|to| *to == path.0).count()
    };
    let set = |device: Option<&Device>| recording.sender().set_device(LocalDevice(0), device);
    let later = file(&path, 4 << 20);
    set(Some(&later)).unwrap();
    exercise(&recording);
    assert_eq!(descriptors(), 2, "ours and the reactor's");
    let memory = Device::Memory(Arc::new(MemoryDevice::new(4 << 20).unwrap()));
    set(Some(&memory)).unwrap();
    exercise(&recording);
    assert_eq!(descriptors(), 1, "it was closed with its last user");
    set(None).unwrap();
    let read = recording.device(DeviceOp::Read, 0, 4096, span(0, 4096));
    assert_eq!(read, Err(DeviceError::Os(6)));
    recording.stop();
}
