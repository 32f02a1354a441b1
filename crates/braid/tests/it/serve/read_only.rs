//! A volume over a block device that the kernel protects from writes.
use crate::serve::nbd;
use crate::serve::no_io_uring;
use crate::serve::process::{SOON, begun};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::process::Command;

#[test]
fn read_only_block_device_is_exported_read_only() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let disk = directory.join("disk");
    std::fs::File::create(&disk)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let made = Command::new("losetup")
        .args(["-r", "-f", "--show"])
        .arg(&disk)
        .output();
    let Some(made) = made.ok().filter(|it| it.status.success()) else {
        let test = "read_only_block_device_is_exported_read_only";
        let _ = writeln!(std::io::stderr(), "SKIP {test}: losetup gives no device");
        return;
    };
    let device = String::from_utf8_lossy(&made.stdout).trim().to_owned();
    let export = directory.join("v0.sock");
    let text = format!(
        "[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"file:{device}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        export.display()
    );
    std::fs::write(directory.join("b.toml"), text).unwrap();
    let engine = begun(directory);
    let flags = std::panic::catch_unwind(|| {
        let mut engine = engine;
        if engine.says("v0: ready").is_none() {
            engine.notes("io_uring");
            no_io_uring::skip(&engine.seen);
            return None;
        }
        let mut stream = UnixStream::connect(&export).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Some(nbd::choose(&mut stream, "v0"))
    });
    let gone = Command::new("losetup").args(["-d", &device]).status();
    assert!(gone.unwrap().success());
    if let Some(flags) = flags.unwrap() {
        assert!(flags & 2 != 0, "READ_ONLY is not in {flags:#b}");
    }
}
