//! A system that does not give what braid needs: one line that says what, why and what to do.
use crate::cli::common::{Place, code, stderr, stdout};
use std::io::Write;
use std::process::{Command, Stdio};

/// The verbs that start reactors.
const DEMO: &str = "demo --seconds 0.1";
const BENCH: &str = "bench null:1MiB --runtime 10ms";
const TARGET: &str = "target --mem 1MiB --listen 127.0.0.1:0 --socket target.sock";
const QUEUES: &str = "queue serve mem:1MiB --socket q.sock";

/// Forbids system call 425, io_uring_setup on every architecture, and becomes the program named by
/// the arguments: no_new_privs, a filter of four instructions (load the number; is it 425? EPERM;
/// allow), execv.
const REFUSE_IO_URING: &str = r#"
import ctypes, os, struct, sys
code = [0x20, 0, 0, 0, 0x15, 0, 1, 425, 6, 0, 0, 0x50001, 6, 0, 0, 0x7fff0000]
code = struct.pack("HBBI" * 4, *code)
code = ctypes.create_string_buffer(code)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4, ctypes.addressof(code)))
prctl = ctypes.CDLL(None).prctl
if prctl(38, 1, 0, 0, 0) or prctl(22, 2, ctypes.byref(program), 0, 0):
    sys.exit("no seccomp filter")
os.execv(sys.argv[1], sys.argv[1:])
"#;

/// Whether `wrapper` can run a program here; if not, says so.
fn works(test: &str, wrapper: &[&str]) -> bool {
    let [program, args @ ..] = wrapper else {
        return false;
    };
    let mut command = Command::new(program);
    let command = command.args(args).arg("/bin/true").stderr(Stdio::null());
    let works = command.status().is_ok_and(|status| status.success());
    if !works {
        let _ = writeln!(
            std::io::stderr(),
            "SKIP {test}: {program} can't do this here"
        );
    }
    works
}

/// Runs each verb below `wrapper` and looks for all parts in its one line.
fn fails(verbs: &[&str], wrapper: &[&str], parts: &[&str]) {
    let place = Place::new();
    for verb in verbs {
        let output = place
            .wrapped(wrapper)
            .args(verb.split(' '))
            .output()
            .unwrap();
        let text = stderr(&output);
        assert_eq!(code(&output), 1, "{verb}: {text}");
        assert_eq!(
            (text.lines().count(), stdout(&output).as_str()),
            (1, ""),
            "{verb}: {text}"
        );
        assert!(text.starts_with("braid: "), "{verb}: {text}");
        for part in parts {
            assert!(text.contains(part), "{verb}: no {part:?} in: {text}");
        }
    }
}

#[test]
fn without_io_uring_each_verb_says_how_to_allow_it() {
    let wrapper = ["python3", "-c", REFUSE_IO_URING];
    if works("io-uring-refused", &wrapper) {
        let parts = [
            "cannot set up io_uring",
            "Operation not permitted",
            "io_uring",
        ];
        fails(&[DEMO, BENCH, TARGET, QUEUES], &wrapper, &parts);
    }
}

#[test]
fn too_little_locked_memory_is_named_with_its_limit() {
    // The administrator's capability stands above the limit, so it goes first.
    let root = rustix::process::geteuid().is_root();
    let drop: &[&str] = match root {
        true => &["setpriv", "--bounding-set", "-ipc_lock"],
        false => &[],
    };
    let wrapper = [drop, &["prlimit", "--memlock=0:0"]].concat();
    if works("memlock-too-low", &wrapper) {
        fails(
            &[DEMO, BENCH, TARGET, QUEUES],
            &wrapper,
            &["locked memory (ulimit -l)", "Cannot allocate memory"],
        );
    }
}

#[test]
fn a_small_stack_is_enough() {
    let wrapper = ["prlimit", "--stack=65536:65536"];
    if works("stack-too-small", &wrapper) {
        let verb = "bench null:1GiB --rw randread --runtime 0.1";
        let place = Place::new();
        let mut command = place.wrapped(&wrapper);
        let output = command.args(verb.split(' ')).output().unwrap();
        assert_eq!(code(&output), 0, "{}", stderr(&output));
    }
}

#[test]
fn too_few_open_files_are_named_with_their_limit() {
    // The standard streams; the control socket, listener and signal pipe of a target; one more.
    for (verbs, limit) in [(&[BENCH][..], 4), (&[DEMO, TARGET], 6)] {
        let limit = format!("--nofile={limit}:{limit}");
        let wrapper = ["prlimit", limit.as_str()];
        if works("nofile-too-low", &wrapper) {
            fails(
                verbs,
                &wrapper,
                &["open files (ulimit -n)", "Too many open files"],
            );
        }
    }
}

#[test]
fn read_only_block_device_is_refused_to_writers() {
    let place = Place::new();
    let file = place.path().join("disk");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    let made = Command::new("losetup")
        .args(["-r", "-f", "--show"])
        .arg(&file)
        .output();
    let Some(made) = made.ok().filter(|it| it.status.success()) else {
        let test = "read_only_block_device_is_refused_to_writers";
        let _ = writeln!(std::io::stderr(), "SKIP {test}: losetup gives no device");
        return;
    };
    let device = stdout(&made).trim().to_owned();
    let target = [
        "target",
        "--file",
        &device,
        "--listen",
        "127.0.0.1:0",
        "--socket",
        "t",
    ];
    let output = place.braid(&target);
    let mirror = place.braid(&["mirror", "create", "m0", &format!("file:{device}")]);
    let _ = Command::new("losetup").args(["-d", &device]).status();
    for output in [output, mirror] {
        let said = stderr(&output);
        assert_eq!(code(&output), 1, "{said}");
        for part in [device.as_str(), "read-only"] {
            assert!(said.contains(part), "no {part:?} in: {said}");
        }
    }
}
