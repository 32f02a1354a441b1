//! Others' NBD clients over two paths that lead to two processes.
use crate::e2e::common::{
    Engine, Process, QUICK, QUIESCED, Target, have, mib, noise, run, text, wait,
};
use serde_json::json;
use std::path::Path;
use std::process::{Command, Stdio};

/// Two processes over one file, an engine over both.
struct House {
    engine: Engine,
    targets: [Target; 2],
}

impl House {
    fn build(directory: &Path, bytes: u64) -> Self {
        let one = Target::of_file(directory, "one", 1, bytes);
        let two = Target::of_file(directory, "two", 1001, bytes);
        let uris = [one.uri.as_str(), &two.uri];
        let engine = Engine::start(directory, QUICK, QUIESCED, &uris);
        engine.wait_path(0, "live");
        engine.wait_path(1, "live");
        let targets = [one, two];
        Self { engine, targets }
    }

    /// Both paths served, and no client got an error.
    fn end(self) {
        self.end_of([0, 1]);
    }

    /// The same of these paths.
    fn end_of<const N: usize>(self, paths: [usize; N]) {
        let stat = self.engine.stat();
        for path in paths {
            assert!(stat["paths"][path]["writes"].as_u64().unwrap() > 0);
        }
        assert_eq!(stat["exports"][0]["errors"], 0);
        self.engine.end();
    }
}

#[test]
fn nbdinfo_tells_all_of_an_export() {
    if !have("nbdinfo_tells_all_of_an_export", &["nbdinfo"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::start(directory.path(), "", "", &["mem:64MiB"]);
    let info = run("nbdinfo", &["--json", &engine.uri()]);
    let mut info: serde_json::Value = serde_json::from_str(&info).unwrap();
    // The content of the file is guessed by file(1), where that is installed.
    info["exports"][0]
        .as_object_mut()
        .unwrap()
        .remove("content");
    let expected = json!({
        "protocol": "newstyle-fixed", "TLS": false, "structured": true,
        "exports": [{
            "export-name": "v0", "uri": engine.uri(),
            "contexts": ["base:allocation"],
            "is_rotational": false, "is_read_only": false, "can_cache": true, "can_df": true,
            "can_fast_zero": true, "can_flush": true, "can_fua": true, "can_multi_conn": true,
            "can_trim": true, "can_zero": true, "block_size_minimum": 512,
            "block_size_preferred": 4096, "block_size_maximum": 32 << 20,
            "export-size": 64 << 20, "export-size-str": "64M",
        }],
    });
    assert_eq!(info, expected, "{info:#}");
    let list = run("nbdinfo", &["--list", &engine.uri()]);
    assert!(list.contains("export=\"v0\""), "{list}");
    engine.end();
}

#[test]
fn nbdcopy_over_two_paths_in_and_out_is_identical() {
    let name = "nbdcopy_over_two_paths_in_and_out_is_identical";
    if !have(name, &["nbdcopy", "cmp"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let bytes = mib(48) << 20;
    let house = House::build(directory.path(), bytes);
    let (image, back) = (directory.path().join("in"), directory.path().join("out"));
    let [image, back] = [&image, &back].map(|path| path.to_str().unwrap());
    std::fs::write(image, noise(1, bytes as usize)).unwrap();
    run("nbdcopy", &["--flush", image, &house.engine.uri()]);
    run("nbdcopy", &[&house.engine.uri(), back]);
    run("cmp", &[image, back]);
    run(
        "cmp",
        &[image, directory.path().join("v0").to_str().unwrap()],
    );
    house.end();
}

#[test]
fn qemu_img_makes_checks_and_compares_images() {
    let name = "qemu_img_makes_checks_and_compares_images";
    if !have(name, &["qemu-img", "qemu-io"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let house = House::build(directory.path(), 64 << 20);
    let image = directory.path().join("image");
    std::fs::write(&image, noise(2, 16 << 20)).unwrap();
    let (image, uri) = (image.to_str().unwrap(), house.engine.uri());
    let info = run("qemu-img", &["info", "--output=json", &uri]);
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["virtual-size"], 64 << 20);
    // Raw, then as qcow2 inside the export.
    let convert = ["convert", "-f", "raw", image, "-n", "-O", "raw", &uri];
    run("qemu-img", &convert);
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", image, &uri],
    );
    run("qemu-img", &["create", "-q", "-f", "qcow2", &uri, "16M"]);
    let convert = ["convert", "-f", "raw", image, "-n", "-O", "qcow2", &uri];
    run("qemu-img", &convert);
    run("qemu-img", &["check", "-f", "qcow2", &uri]);
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "qcow2", image, &uri],
    );
    let commands =
        "write -P 7 1000 70000,read -P 7 1000 70000,write -z 1M 1M,read -P 0 1M 1M,flush";
    let commands = commands.split(',').flat_map(|command| ["-c", command]);
    let words: Vec<&str> = ["-f", "qcow2", &uri].into_iter().chain(commands).collect();
    let said = run("qemu-io", &words);
    assert!(!said.contains("verification failed"), "{said}");
    run("qemu-img", &["check", "-f", "qcow2", &uri]);
    house.end();
}

#[test]
fn fio_verifies_while_a_path_dies_and_returns() {
    if !have("fio_verifies_while_a_path_dies_and_returns", &["fio"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let each = mib(32) / 4;
    let mut house = House::build(directory.path(), (4 * each) << 20);
    let uri = format!("--uri={}", house.engine.uri());
    let mut command = Command::new("fio");
    command.args(["--name=t", "--ioengine=nbd", &uri, "--rw=randrw"]);
    command.args(["--bs=4k", "--iodepth=32", "--numjobs=4", "--thread"]);
    command.args([
        format!("--size={each}M"),
        format!("--offset_increment={each}M"),
    ]);
    command.args(["--verify=crc32c", "--verify_state_save=0"]);
    command.args(["--group_reporting", "--output-format=json"]);
    // Both kinds of I/O are under way on a path that answers no more, when its target dies.
    house.targets[0].set(&["stall=1h"]);
    let mut fio = Process::spawn(command.stdout(Stdio::piped()).current_dir(directory.path()));
    house.engine.wait_inflight(0);
    house.targets[0].kill();
    house.engine.wait_lost(0);
    assert!(fio.child().try_wait().unwrap().is_none());
    house.targets[0].restart();
    house.engine.wait_path(0, "live");
    let ended = wait("fio ends", || fio.child().try_wait().unwrap());
    let mut said = Vec::new();
    let mut out = fio.child().stdout.take().unwrap();
    std::io::Read::read_to_end(&mut out, &mut said).unwrap();
    let said = text(&said);
    assert!(ended.success(), "{said}");
    let said: serde_json::Value = serde_json::from_str(&said[said.find('{').unwrap()..]).unwrap();
    let job = &said["jobs"][0];
    assert_eq!(job["error"], 0);
    // Everything that was written is read again by the verification.
    let (read, written) = (&job["read"]["total_ios"], &job["write"]["total_ios"]);
    assert_eq!(read.as_u64().unwrap(), each * 4 * 256, "{written} writes");
    let longest = &job["write"]["clat_ns"]["max"];
    println!("fio: {read} reads, {written} writes, longest write {longest} ns");
    // All that was left to be written may have been when the other one was back.
    house.end_of([1]);
}
