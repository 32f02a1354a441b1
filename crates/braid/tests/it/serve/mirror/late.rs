//! Files that are not there at the start and come by themselves.
use super::place::{LEG_BYTES, Place, end};
use crate::serve::hangfs::HangFs;
use crate::serve::process::{Client, Process, at_once, begun, one_line, wait_until};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::process::Command;

impl Place {
    fn rename(&self, from: &str, to: &str) {
        std::fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Message about the leg with this number, or the one that is not there.
    fn why(&self, leg: usize) -> String {
        let status = self.told(&["mirror", "status", "v0"]);
        let why = status["legs"][leg]["why"].as_str();
        why.unwrap_or_default().to_owned()
    }
}

#[test]
fn t52_late_legs_return_by_themselves_or_are_removed() {
    at_once(&[
        late_leg_returns_and_no_other_file,
        hung_leg_returns_when_it_can,
        hung_leg_can_be_removed,
    ]);
}

fn late_leg_returns_and_no_other_file() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    assert_eq!(place.client().write(0, 1), 0);
    end(engine);
    place.config("assemble_wait = \"100ms\"\nstart_degraded = false\n");
    place.rename("b", "away");
    let mut engine = begun(place.0.path());
    engine.notes("it is tried again");
    engine.notes("not started");
    place.told(&["mirror", "assemble", "v0", "--without-missing"]);
    assert!(engine.says("v0: ready").is_some());
    assert_eq!(place.client().write(4096, 2), 0);
    let why = place.why(1);
    assert!(
        why.contains("not there since the start, and tried again"),
        "{why}"
    );
    // Neither what is no leg, nor one of another mirror, is taken or locked.
    for name in ["b", "c"] {
        File::create(place.path(name))
            .unwrap()
            .set_len(LEG_BYTES)
            .unwrap();
    }
    engine.notes("is no leg");
    let (b, c) = (place.leg("b"), place.leg("c"));
    let made = place.braid(&["mirror", "create", "v1", &b, &c]);
    assert!(made.status.success(), "{made:?}");
    engine.notes("is a leg of another mirror");
    assert_eq!(place.legs(), ["in-sync", "missing"]);
    let why = place.why(1);
    assert!(why.contains("is a leg of another mirror"), "{why}");
    let check = place.ask(&["check", "v0"]);
    assert_eq!(check.status.code(), Some(1), "{check:?}");
    let text = one_line(&check.stdout);
    assert!(text.contains("is a leg of another mirror"), "{text}");
    std::fs::remove_file(place.path("b")).unwrap();
    place.rename("away", "b");
    engine.notes("this leg is there now");
    place.until_in_sync();
    assert_eq!(place.why(1), "");
    let mut client = place.client();
    assert_eq!((client.read(0)[0], client.read(4096)[0]), (1, 2));
    end(engine);
    assert!(place.data("a") == place.data("b"), "legs differ");
}

/// A mirror whose leg 1 comes late, on a file system that hangs, and a plain volume v1.
struct Hung {
    // Unmounted before its directory goes.
    disk: HangFs,
    place: Place,
    engine: Process,
}

impl Hung {
    /// `None`: no io_uring, or nothing can be mounted.
    fn new() -> Option<Self> {
        let place = Place::new()?;
        let disk = match HangFs::mount(&place.path("disk"), LEG_BYTES as usize) {
            Ok(disk) => disk,
            Err(reason) => {
                let line = format!("SKIP hung-late-leg: FUSE can't be mounted: {reason}\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
                return None;
            }
        };
        std::fs::remove_file(place.path("b")).unwrap();
        symlink(disk.file(), place.path("b")).unwrap();
        let (a, b) = (place.leg("a"), place.leg("b"));
        let made = place.braid(&["mirror", "create", "v0", &a, &b, "--force"]);
        assert!(made.status.success(), "{made:?}");
        let engine = place.start();
        assert_eq!(place.client().write(0, 1), 0);
        place.until_in_sync();
        end(engine);
        std::fs::remove_file(place.path("b")).unwrap();
        place.config("assemble_wait = \"100ms\"\nstart_degraded = false\n");
        let mut open = File::options();
        let mut config = open.append(true).open(place.path("b.toml")).unwrap();
        let more = format!(
            "[[volume]]\nname = \"v1\"\n[[volume.path]]\nuri = \"mem:1MiB\"\n\
             [[volume.export]]\nnbd = \"unix:{}\"\n",
            place.path("v1.sock").display()
        );
        config.write_all(more.as_bytes()).unwrap();
        let mut engine = begun(place.0.path());
        engine.notes("not started");
        place.told(&["mirror", "assemble", "v0", "--without-missing"]);
        assert!(engine.says("v0: ready").is_some());
        disk.hang();
        symlink(disk.file(), place.path("b")).unwrap();
        wait_until(|| (disk.held() > 0).then_some(()));
        Some(Self {
            disk,
            place,
            engine,
        })
    }

    /// Both volumes are written to.
    fn serves(&self, fill: u8) {
        assert_eq!(self.place.client().write(4096, fill), 0);
        let plain = self.place.path("v1.sock");
        assert_eq!(Client::open_named(&plain, "v1").write(0, fill), 0);
    }
}

/// The mirror, the other volume and verbs go on; the leg is in sync once its file answers.
fn hung_leg_returns_when_it_can() {
    let Some(mut it) = Hung::new() else {
        return;
    };
    it.serves(2);
    for words in [
        &["stat"][..],
        &["mirror", "status", "v0"],
        &["mirror", "speed", "v0", "--floor", "2MiB"],
        &["policy", "set", "v0", "round-robin"],
        &["policy", "set", "v1", "round-robin"],
        &["reload"],
    ] {
        it.place.told(words);
    }
    let check = it.place.ask(&["check", "v1"]);
    assert_eq!(check.status.code(), Some(0), "{check:?}");
    let restored = it.place.ask(&["mirror", "restore", "v0", "1"]);
    assert_eq!(restored.status.code(), Some(1), "{restored:?}");
    it.disk.go_on();
    it.engine.notes("this leg is there now");
    it.place.until_in_sync();
    let mut client = it.place.client();
    assert_eq!((client.read(0)[0], client.read(4096)[0]), (1, 2));
    drop(client);
    end(it.engine);
}

/// It can be removed while it hangs; a file that hangs is not added; other verbs go on.
fn hung_leg_can_be_removed() {
    let Some(mut it) = Hung::new() else {
        return;
    };
    let removed = it.place.told(&["mirror", "remove", "v0", "1"]);
    // It was not reached.
    assert_eq!(removed["carries_superblock"], true, "{removed}");
    let again = it.place.ask(&["mirror", "add", "v0", &it.place.leg("b")]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let why = String::from_utf8_lossy(&again.stderr);
    assert!(why.contains("its file system hangs"), "{why}");
    it.serves(3);
    let new = File::create(it.place.path("c")).unwrap();
    new.set_len(LEG_BYTES).unwrap();
    it.place.told(&["mirror", "add", "v0", &it.place.leg("c")]);
    it.place.until_in_sync();
    it.place.told(&["mirror", "stop", "v0"]);
    it.disk.go_on();
    it.engine.signal(rustix::process::Signal::TERM);
    assert!(it.engine.ended().success(), "{}", it.engine.seen);
}

#[test]
fn mirror_starts_with_a_leg_that_comes_late() {
    let Some(place) = Place::new() else {
        return;
    };
    let engine = place.start();
    assert_eq!(place.client().write(0, 1), 0);
    end(engine);
    for wait in ["100ms", "30s"] {
        place.config(&format!(
            "assemble_wait = \"{wait}\"\nstart_degraded = false\n"
        ));
        place.rename("b", "away");
        let mut engine = begun(place.0.path());
        engine.notes("it is tried again");
        if wait == "100ms" {
            engine.notes("not started");
        }
        place.rename("away", "b");
        assert!(engine.says("v0: ready").is_some());
        place.until_in_sync();
        assert_eq!(place.client().read(0)[0], 1);
        end(engine);
    }
}

#[test]
fn file_of_a_volume_that_comes_late_is_opened() {
    let Some(place) = Place::new() else {
        return;
    };
    let (file, nbd) = (place.path("late.img"), place.path("v0.sock"));
    let text = format!(
        "drain_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"file:{}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n[[volume]]\nname = \"v1\"\n\
         [[volume.path]]\nuri = \"mem:1MiB\"\n",
        file.display(),
        nbd.display()
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    let mut engine = begun(place.0.path());
    engine.notes("it begins without its path");
    assert!(engine.says("v1: ready").is_some());
    wait_until(|| place.path("c.sock").exists().then_some(()));
    let check = place.ask(&["check"]);
    let text = one_line(&check.stdout);
    assert_eq!(check.status.code(), Some(2), "{text}");
    assert!(
        text.contains("not there since the start, and tried again"),
        "{text}"
    );
    let uri = "nvme-tcp://127.0.0.1:9/nqn.2026-01.org.example:v0";
    let added = place.ask(&["path", "add", "v0", uri]);
    let text = String::from_utf8_lossy(&added.stderr);
    assert_eq!(added.status.code(), Some(1), "{text}");
    assert!(
        text.contains("a local device is no other path's data"),
        "{text}"
    );
    File::create(place.path("made"))
        .unwrap()
        .set_len(LEG_BYTES)
        .unwrap();
    std::fs::rename(place.path("made"), &file).unwrap();
    assert!(engine.says("v0: ready, 16 MiB").is_some());
    let mut client = Client::open(&nbd);
    assert_eq!(client.write(0, 7), 0);
    assert_eq!(client.read(0)[0], 7);
    let check = place.ask(&["check"]);
    assert_eq!(check.status.code(), Some(0), "{check:?}");
    end(engine);
}

/// R6: its volume gets another name while the file system that it is on does not answer.
#[test]
fn file_that_comes_late_joins_a_renamed_volume() {
    let Some(place) = Place::new() else {
        return;
    };
    let disk = match HangFs::mount(&place.path("disk"), LEG_BYTES as usize) {
        Ok(disk) => disk,
        Err(reason) => {
            let line = format!("SKIP renamed-late-file: FUSE can't be mounted: {reason}\n");
            let _ = std::io::stderr().write_all(line.as_bytes());
            return;
        }
    };
    let (file, nbd) = (place.path("late.img"), place.path("v0.sock"));
    let config = |name: &str| {
        let text = format!(
            "drain_timeout = \"5s\"\n[[volume]]\nname = \"{name}\"\n[[volume.path]]\n\
             uri = \"file:{}\"\n[[volume.export]]\nnbd = \"unix:{}\"\n",
            file.display(),
            nbd.display()
        );
        std::fs::write(place.path("b.toml"), text).unwrap();
    };
    config("v0");
    let mut engine = begun(place.0.path());
    engine.notes("it begins without its path");
    symlink(disk.file(), &file).unwrap();
    engine.notes("when it has not changed for");
    disk.hang_whole();
    wait_until(|| (disk.held() > 0).then_some(()));
    config("w0");
    assert_eq!(place.told(&["reload"])["changed"], "renamed v0 to w0");
    // It is settled by then.
    std::thread::sleep(std::time::Duration::from_secs(3));
    disk.go_on();
    engine.notes("w0: its path is there now");
    assert!(
        !engine.seen.contains("there is no volume"),
        "{}",
        engine.seen
    );
    assert_eq!(Client::open_named(&nbd, "w0").write(0, 7), 0);
    end(engine);
}

/// A block device that comes late: its node is a dangling link first, then that of a loop device.
#[test]
fn block_device_of_a_volume_that_comes_late_is_opened() {
    let Some(place) = Place::new() else {
        return;
    };
    let (node, data) = (place.path("disk"), place.path("data.img"));
    File::create(&data).unwrap().set_len(LEG_BYTES).unwrap();
    let text = format!(
        "drain_timeout = \"5s\"\n[[volume]]\nname = \"v0\"\n[[volume.path]]\nuri = \"file:{}\"\n\
         [[volume.export]]\nnbd = \"unix:{}\"\n",
        node.display(),
        place.path("v0.sock").display()
    );
    std::fs::write(place.path("b.toml"), text).unwrap();
    let mut engine = begun(place.0.path());
    engine.notes("it begins without its path");
    let made = Command::new("losetup")
        .args(["-f", "--show"])
        .arg(&data)
        .output();
    let made = match made {
        Ok(made) if made.status.success() => String::from_utf8(made.stdout).unwrap(),
        other => {
            let line = format!(
                "SKIP block_device_of_a_volume_that_comes_late_is_opened: no loop device: \
                 {other:?}\n"
            );
            let _ = std::io::stderr().write_all(line.as_bytes());
            return end(engine);
        }
    };
    let device = made.trim();
    symlink(device, &node).unwrap();
    assert!(engine.says("v0: ready, 16 MiB").is_some());
    assert_eq!(Client::open(&place.path("v0.sock")).write(0, 9), 0);
    end(engine);
    let freed = Command::new("losetup").args(["-d", device]).status();
    assert!(freed.is_ok_and(|it| it.success()), "{device}");
    let data = std::fs::read(&data).unwrap();
    assert_eq!(data[..512], [9; 512]);
}
