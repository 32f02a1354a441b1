use super::*;
use std::os::unix::fs::symlink;

/// A kernel's tree of devices.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("braid-ng-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("dev/char")).unwrap();
        Self(root)
    }

    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// `ng0n1` with number 240:0, below the directory `parent`.
    fn namespace(&self, parent: &str) {
        let own = self.0.join(parent).join("ng0n1");
        fs::create_dir_all(&own).unwrap();
        symlink(self.0.join(parent), own.join("device")).unwrap();
        symlink(own, self.0.join("dev/char/240:0")).unwrap();
    }

    fn read(&self) -> Result<Known, String> {
        Known::read(&self.0, 240, 0)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_namespace_of_one_controller_has_its_transport_and_limits() {
    let tree = Tree::new("one");
    tree.namespace("devices/nvme0");
    tree.file("devices/nvme0/transport", "pcie\n");
    let known = tree.read().unwrap();
    assert_eq!(known.transports, ["pcie"]);
    assert_eq!((known.transfer_max, known.polls), (TRANSFER_DEFAULT, false));
    assert!(known.stopped_first());
    tree.file("block/nvme0n1/queue/max_hw_sectors_kb", "512\n");
    tree.file("block/nvme0n1/queue/max_segments", "65\n");
    tree.file("block/nvme0n1/queue/io_poll", "1\n");
    let known = tree.read().unwrap();
    assert_eq!((known.transfer_max, known.polls), (65 * 4096, true));
}

#[test]
fn a_namespace_of_a_subsystem_has_one_controller_or_is_refused() {
    let tree = Tree::new("head");
    tree.namespace("devices/nvme-subsys0");
    let none = tree.read().unwrap_err();
    assert!(none.contains("no controller"), "{none}");
    tree.file("devices/nvme-subsys0/nvme0/transport", "tcp\n");
    let known = tree.read().unwrap();
    assert!(!known.stopped_first(), "{known:?}");
    tree.file("devices/nvme-subsys0/nvme1/transport", "pcie\n");
    let two = tree.read().unwrap_err();
    assert!(two.contains("nvme_core.multipath=N"), "{two}");
}

#[test]
fn t02_what_the_driver_says_of_a_command_is_told_apart() {
    let status = |status: Status| Err(DeviceError::Nvme(status));
    let os = |error: Errno| Err(DeviceError::Os(error.raw_os_error()));
    let media = Status::UNRECOVERED_READ.with_dnr();
    for (result, want) in [
        (Ok(0), Ok(())),
        (Ok(media.0.into()), status(media)),
        (Err(Errno::INTR), status(Status::HOST_ABORTED)),
        (Err(Errno::IO), status(Status::HOST_ABORTED)),
        (Err(Errno::ACCESS), status(Status::ACCESS_DENIED)),
        (Err(Errno::OPNOTSUPP), Err(DeviceError::Unsupported)),
        (Err(Errno::NODEV), os(Errno::NODEV)),
        (Err(Errno::NOMEM), os(Errno::NOMEM)),
    ] {
        assert_eq!(ended(result, false), want, "{result:?}");
    }
}

/// The kernel says Invalid Field of data that arrived damaged. A controller that says it forbids
/// to repeat the command.
#[test]
fn invalid_field_of_a_transfer_is_transport_trouble() {
    let end = |status: Status| ended(Ok(status.0.into()), false);
    let invalid = Status::INVALID_FIELD;
    let transport = Err(DeviceError::Nvme(Status::TRANSIENT_TRANSPORT));
    for op in [DeviceOp::Read, DeviceOp::Compare] {
        assert_eq!(on_fabrics(end(invalid), op), transport, "{op:?}");
        let refused = invalid.with_dnr();
        let said = Err(DeviceError::Nvme(refused));
        assert_eq!(on_fabrics(end(refused), op), said, "{op:?}");
        let media = end(Status::UNRECOVERED_READ);
        assert_eq!(on_fabrics(media, op), media);
    }
    // Nothing arrives with the end of the others.
    let write = DeviceOp::Write { fua: true };
    for op in [write, DeviceOp::Flush, DeviceOp::Deallocate] {
        let said = Err(DeviceError::Nvme(invalid));
        assert_eq!(on_fabrics(end(invalid), op), said, "{op:?}");
    }
}

/// nvmet says Internal Error (6006h) or Capacity Exceeded (6081h) of a range behind the end.
#[test]
fn error_behind_the_end_is_told_by_the_size() {
    let tree = Tree::new("size");
    let disk = tree.0.join("block/nvme0n1");
    assert_eq!(bytes_of(&disk), None);
    tree.file("block/nvme0n1/size", "2048\n");
    assert_eq!(bytes_of(&disk), Some(1 << 20));
    for (status, may) in [
        (Status(0x6006), true),
        (Status(0x6081), true),
        (Status::INTERNAL_ERROR, false),
        (Status::CAPACITY_EXCEEDED, false),
        (Status::INVALID_FIELD.with_dnr(), false),
    ] {
        assert_eq!(may_mean_range(status), may, "{status}");
    }
    let request = |op, offset, length| DeviceRequest {
        id: 1,
        device: engine::LocalDevice(0),
        op,
        offset,
        length,
        span: engine::Span::default(),
    };
    for (op, offset, length, inside) in [
        (DeviceOp::Read, 0, 1 << 20, true),
        (DeviceOp::Read, 512, 1 << 20, false),
        (DeviceOp::Write { fua: false }, u64::MAX - 511, 512, false),
        (DeviceOp::Flush, 0, 0, true),
    ] {
        let found = lies_within(&request(op, offset, length), 1 << 20);
        assert_eq!(found, inside, "{op:?} {offset}");
    }
    tree.namespace("devices/nvme0");
    tree.file("devices/nvme0/transport", "tcp\n");
    assert_eq!(tree.read().unwrap().disk, Some(disk));
}

#[test]
fn t09_what_a_fabric_may_execute_late_is_repeated_nowhere() {
    let lost = Err(DeviceError::Os(Errno::IO.raw_os_error()));
    assert_eq!(ended(Err(Errno::INTR), true), lost);
    assert_eq!(ended(Ok(Status::HOST_PATH.0.into()), true), lost);
    // The controller itself has answered.
    let denied = Status::WRITE_PROTECTED;
    assert_eq!(
        ended(Ok(denied.0.into()), true),
        Err(DeviceError::Nvme(denied))
    );
}

#[test]
fn what_is_no_namespace_says_what_would_be() {
    let file = std::env::temp_dir().join(format!("braid-ng-file-{}", std::process::id()));
    fs::write(&file, "x").unwrap();
    for (path, part) in [
        (PathBuf::from("/dev/ng999n9"), "there is none"),
        (
            PathBuf::from("/dev/null"),
            "isn't the character device of an NVMe namespace",
        ),
        (file.clone(), "no device"),
        (PathBuf::from("/proc/self"), "directory"),
    ] {
        let error = PassthroughDevice::open(path.clone(), false, false).unwrap_err();
        let error = error.to_string();
        let named = error.contains(path.to_str().unwrap());
        assert!(named && error.contains(part), "{error}");
    }
    fs::remove_file(file).unwrap();
}
