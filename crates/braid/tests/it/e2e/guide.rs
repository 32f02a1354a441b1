//! The walks of docs/guide.md, typed in as they stand there.
use crate::e2e::common::{Process, have, run};
use crate::e2e::filesystem::can_mount;
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The blocks behind `<!-- WALK -->` or `<!-- WALK:NAME -->`: the name and the text of each.
fn blocks<'a>(guide: &'a str, walk: &str) -> Vec<(&'a str, String)> {
    let mark = format!("<!-- {walk}");
    let mut blocks = Vec::new();
    let mut lines = guide.lines();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix(&mark) else {
            continue;
        };
        let name = rest.strip_suffix(" -->").unwrap().trim_start_matches(':');
        assert!(lines.next().unwrap().starts_with("```"), "{line}");
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push((name, text.join("\n") + "\n"));
    }
    blocks
}

/// Files that the walk leaves behind if it fails in the middle; nothing else.
struct Left(PathBuf, Process);

impl Drop for Left {
    fn drop(&mut self) {
        let quietly = |program: &str, words: &[&str]| {
            let mut command = Command::new(program);
            let command = command.args(words).stderr(Stdio::null());
            command
                .output()
                .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let of = |name: &str| self.0.join(name).to_str().unwrap().to_owned();
        let _ = quietly("umount", &["-l", &of("fs")]);
        let devices = quietly("losetup", &["-n", "-O", "NAME", "-j", &of("disk")]);
        for device in devices.unwrap_or_default().lines() {
            let _ = quietly("losetup", &["-d", device]);
        }
        let _ = quietly("fusermount3", &["-u", "-z", &of("disk")]);
        let group = rustix::process::Pid::from_raw(self.1.id() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// The guide's words with another directory and free ports.
fn transposed(text: &str, directory: &Path, ports: [u16; 2]) -> String {
    let text = text.replace("/tmp/walk", directory.to_str().unwrap());
    let text = text.replace("4420", &ports[0].to_string());
    text.replace("4421", &ports[1].to_string())
}

#[test]
fn two_paths_walk_works_as_typed() {
    let name = "two_paths_walk_works_as_typed";
    if !have(name, &["bash", "nbdinfo", "nbdcopy"]) {
        return;
    }
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let blocks = blocks(&guide, "walk");
    let names: BTreeSet<&str> = blocks.iter().map(|(name, _)| *name).collect();
    assert!(names.iter().eq(&["", "braid.toml", "one.toml", "root"]));
    let mounts = can_mount("guide-walk-mount");

    let directory = tempfile::tempdir().unwrap();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [free(), free()].map(|listener| listener.local_addr().unwrap().port());
    let mut script = String::new();
    for (name, text) in blocks {
        let text = transposed(&text, directory.path(), ports);
        match name {
            "" => script.push_str(&text),
            "root" if mounts => script.push_str(&text),
            "root" => {}
            file => std::fs::write(directory.path().join(file), text).unwrap(),
        }
    }
    let parts = [
        "export-size: 268435456 (256M)",
        "v0: ok",
        "v0: degraded",
        "reconnecting",
        "live again",
        "0 writes held (fenced)",
    ];
    walk(directory.path(), &script, &parts);
    let copy = directory.path().join("copy.img");
    if !mounts {
        run(
            "cmp",
            &[
                copy.to_str().unwrap(),
                directory.path().join("v0.img").to_str().unwrap(),
            ],
        );
    }
}

#[test]
fn mirror_walk_works_as_typed() {
    let name = "mirror_walk_works_as_typed";
    if !have(name, &["bash", "nbdcopy", "mkfs.ext4"]) {
        return;
    }
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide.md");
    let guide = std::fs::read_to_string(guide).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut script = String::new();
    for (name, text) in blocks(&guide, "mirror") {
        let text = text.replace("/tmp/walk", directory.path().to_str().unwrap());
        match name {
            "" => script.push_str(&text),
            file => std::fs::write(directory.path().join(file), text).unwrap(),
        }
    }
    let parts = [
        "m0: ok",
        "m0: degraded",
        "is in sync: it lacked ",
        "last check  0 differences, 0 unreadable",
        "all legs in sync are alike",
    ];
    walk(directory.path(), &script, &parts);
}

/// Where cargo has put the C library: beside this program, or above it.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let mut places = program.ancestors().skip(1).take(2);
    let found = places.find(|place| place.join("libbraid_queue.so").exists());
    found.unwrap().to_owned()
}

#[test]
fn queue_example_works_as_typed() {
    let name = "queue_example_works_as_typed";
    if !have(name, &["bash", "cc"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = std::fs::read_to_string(root.join("docs/guide.md")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let blocks = blocks(&guide, "queue");
    let [("", typed)] = &blocks[..] else {
        panic!("not one block: {blocks:?}")
    };
    assert_eq!(typed.lines().count(), 3, "three lines");
    let typed = typed
        .replace("/tmp", directory.path().to_str().unwrap())
        .replace("target/release/braid", env!("CARGO_BIN_EXE_braid"))
        .replace("target/release", library().to_str().unwrap());
    let root = root.to_str().unwrap();
    let script = format!("cd {root}\n{typed}");
    let parts = [
        "verified 1024 blocks of 4096 bytes",
        " IOPS, 127 outstanding",
    ];
    walk(directory.path(), &script, &parts);
}

/// Types in a script there: nothing of it fails, and it and all that it starts say these parts.
fn walk(directory: &Path, script: &str, parts: &[&str]) {
    let script = format!("trap 'echo \"FAILED: $BASH_COMMAND\"' ERR\n{script}");
    std::fs::write(directory.join("walk.sh"), script).unwrap();
    let log = std::fs::File::create(directory.join("log")).unwrap();
    let braid = Path::new(env!("CARGO_BIN_EXE_braid")).parent().unwrap();
    let path = format!("{}:{}", braid.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("timeout");
    command.args(["60", "bash", "-c", ". ./walk.sh; echo THE END"]);
    command.env("PATH", path).current_dir(directory);
    command.env("XDG_STATE_HOME", directory.join("state"));
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap());
    let process = Process::spawn(command.stderr(log).process_group(0));
    let mut left = Left(directory.into(), process);
    left.1.child().wait().unwrap();
    drop(left);
    let said = std::fs::read_to_string(directory.join("log")).unwrap();
    println!("{said}");
    assert!(
        !said.contains("FAILED: ") && said.contains("THE END"),
        "{said}"
    );
    for part in parts {
        assert!(said.contains(part), "{part}: {said}");
    }
}
