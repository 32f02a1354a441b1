//! ext4 over nbdfuse and a loop device, on a volume whose two paths lead to two processes.
use crate::e2e::common::{
    Engine, Process, QUICK, QUIESCED, Target, have, mib, noise, run, skip, wait,
};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FILE_BYTES: usize = 1 << 20;
/// The export as a file (nbdfuse), as a block device (loop), as a file system. Undone in that order
/// when dropped, whatever has failed before.
struct Mounted {
    image: PathBuf,
    directory: PathBuf,
    device: Option<String>,
    is_mounted: bool,
    fuse: Process,
}

impl Mounted {
    /// Up to the block device.
    fn attach(engine: &Engine, directory: &Path) -> Self {
        let image = directory.join("image");
        let mounted = directory.join("fs");
        std::fs::write(&image, "").unwrap();
        std::fs::create_dir_all(&mounted).unwrap();
        let mut command = Command::new("nbdfuse");
        let fuse = Process::spawn(command.arg(&image).arg(engine.uri()));
        let mut this = Self {
            image,
            directory: mounted,
            device: None,
            is_mounted: false,
            fuse,
        };
        wait("nbdfuse serves", || {
            let metadata = std::fs::metadata(&this.image).ok()?;
            (metadata.len() > 0).then_some(())
        });
        // The export has blocks of 4096 B, and so must the disk.
        let image = this.image.to_str().unwrap();
        let words = ["--find", "--show", "--sector-size", "4096", image];
        this.device = Some(run("losetup", &words).trim().to_owned());
        this
    }

    fn device(&self) -> &str {
        self.device.as_deref().unwrap()
    }

    fn mount(&mut self) {
        run("mount", &[self.device(), self.directory.to_str().unwrap()]);
        self.is_mounted = true;
    }

    /// Errors that ext4 has counted, and whether it may still be written.
    fn assert_well(&self) {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        let line = mounts.lines().find(|line| line.starts_with(self.device()));
        assert!(line.unwrap().contains(" rw,"), "{line:?}");
        let name = self.device().rsplit('/').next().unwrap();
        let errors = std::fs::read_to_string(format!("/sys/fs/ext4/{name}/errors_count"));
        assert_eq!(errors.unwrap().trim(), "0");
    }

    /// Unmounted, found clean and detached; with it goes all that was cached of it.
    fn detach(mut self) {
        // A program that another test is starting has this one's files open until it is there.
        wait("it is unmounted", || {
            let mut command = Command::new("umount");
            command
                .arg(&self.directory)
                .status()
                .unwrap()
                .success()
                .then_some(())
        });
        self.is_mounted = false;
        println!("{}", run("fsck.ext4", &["-fn", self.device()]));
        run("losetup", &["-d", &self.device.take().unwrap()]);
        run("fusermount3", &["-u", self.image.to_str().unwrap()]);
        let ended = wait("nbdfuse ends", || self.fuse.child().try_wait().unwrap());
        assert!(ended.success(), "{ended}");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let quietly = |program: &str, words: &[&str]| {
            let mut command = Command::new(program);
            let _ = command.args(words).stderr(Stdio::null()).status();
        };
        if self.is_mounted {
            quietly("umount", &["-l", self.directory.to_str().unwrap()]);
        }
        if let Some(device) = &self.device {
            quietly("losetup", &["-d", device]);
        }
        quietly("fusermount3", &["-u", "-z", self.image.to_str().unwrap()]);
        // I/O that still waits for it fails then.
        self.fuse.kill();
    }
}

/// Whether this machine can mount; if not, says so.
pub fn can_mount(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        skip(test, "loop devices and mounts need root");
        return false;
    }
    let device = ["/dev/fuse", "/dev/loop-control"];
    if let Some(missing) = device.iter().find(|path| !Path::new(path).exists()) {
        skip(test, &format!("there is no {missing}"));
        return false;
    }
    let programs = [
        "nbdfuse",
        "fusermount3",
        "losetup",
        "mkfs.ext4",
        "fsck.ext4",
    ];
    have(test, &programs)
}

/// Bytes done, and the longest time that one step took.
#[derive(Default)]
struct Course {
    bytes: AtomicU64,
    longest_ns: AtomicU64,
}

impl Course {
    fn step(&self, step: impl FnOnce()) {
        let begun = Instant::now();
        step();
        let took_ns = begun.elapsed().as_nanos() as u64;
        self.longest_ns.fetch_max(took_ns, Ordering::Relaxed);
        self.bytes.fetch_add(FILE_BYTES as u64, Ordering::Relaxed);
    }

    fn say(&self, what: &str) {
        let longest = Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed));
        println!("{what}: the longest wait for {FILE_BYTES} B was {longest:.1?}");
    }
}

fn name(directory: &Path, file: u64) -> PathBuf {
    directory.join(format!("f{file}"))
}

/// Writes files of noise, each synced.
fn write_files(directory: &Path, files: std::ops::Range<u64>, course: &Course) {
    for file in files {
        let bytes = noise(file, FILE_BYTES);
        course.step(|| {
            std::fs::write(name(directory, file), bytes).unwrap();
            let file = std::fs::File::open(name(directory, file)).unwrap();
            file.sync_all().unwrap();
        });
    }
}

fn read_files(directory: &Path, files: std::ops::Range<u64>, course: &Course) {
    for file in files {
        let expected = noise(file, FILE_BYTES);
        course.step(|| {
            let found = std::fs::read(name(directory, file)).unwrap();
            assert!(found == expected, "file {file} is not what was written");
        });
    }
}

/// `work` goes on while the target of `path` is made to hold I/O, killed and started again. It is
/// killed only when I/O that it will never answer is under way.
fn while_one_dies(
    engine: &Engine,
    target: &mut Target,
    (path, hold): (usize, &str),
    work: impl FnOnce() + Send,
) {
    std::thread::scope(|scope| {
        target.set(&[hold]);
        let work = scope.spawn(work);
        engine.wait_inflight(path);
        assert!(!work.is_finished());
        target.kill();
        engine.wait_lost(path);
        println!("path {path} has died:\n{}", engine.text(&["stat"]));
        target.restart();
        engine.wait_path(path, "live");
        work.join().unwrap();
    });
}

#[test]
fn ext4_does_not_notice_that_paths_die() {
    if !can_mount("ext4_does_not_notice_that_paths_die") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let files = mib(24);
    let bytes = (files << 20) * 3 / 2 + (64 << 20);
    let mut one = Target::of_file(path, "one", 1, bytes);
    let mut two = Target::of_file(path, "two", 1001, bytes);
    let uris = [one.uri.as_str(), &two.uri].map(str::to_owned);
    let uris = uris.each_ref().map(String::as_str);
    let engine = Engine::start(path, QUICK, QUIESCED, &uris);
    engine.wait_path(0, "live");
    engine.wait_path(1, "live");

    let mut mounted = Mounted::attach(&engine, path);
    run("mkfs.ext4", &["-q", mounted.device()]);
    mounted.mount();
    let fs = mounted.directory.clone();
    let (course, half) = (Course::default(), files / 2);
    write_files(&fs, 0..half, &course);
    course.say("writing, nothing happens");
    let course = Course::default();
    while_one_dies(&engine, &mut one, (0, "hold_writes=1h"), || {
        write_files(&fs, half..files, &course)
    });
    course.say("writing, a path dies");
    mounted.assert_well();
    mounted.detach();

    // All of it is new, so nothing comes out of a cache.
    let read = |stat: serde_json::Value| -> u64 {
        let paths = stat["paths"].as_array().unwrap().iter();
        paths.map(|path| path["bytes_read"].as_u64().unwrap()).sum()
    };
    let before = read(engine.stat());
    let mut mounted = Mounted::attach(&engine, path);
    mounted.mount();
    let course = Course::default();
    while_one_dies(&engine, &mut two, (1, "stall=1h"), || {
        read_files(&fs, 0..files, &course)
    });
    course.say("reading, a path dies");
    let bytes = read(engine.stat()) - before;
    assert!(bytes >= files << 20, "{bytes} B read: from a cache");
    mounted.assert_well();
    mounted.detach();
    assert_eq!(engine.stat()["exports"][0]["errors"], 0);
    println!("{}{}", engine.text(&["stat"]), engine.log());
    engine.end();
}
